"""A typed command in this process. typer builds its tree of commands for every call; here it is built once."""

import functools
from typing import Any
from unittest import mock

import typer.main
import typer.testing


def typed(app: typer.Typer, *arguments: object, **options: Any) -> Any:
    """What a command line prints, its exit code or the error that it ends with."""
    with mock.patch.object(typer.testing, "_get_command", built):
        return typer.testing.CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


def built(app: typer.Typer) -> Any:
    """The program's tree of commands, of whichever copy of click typer carries."""
    return _built(app, len(app.registered_commands) + len(app.registered_groups))


@functools.cache
def _built(app: typer.Typer, _mounted: int) -> Any:
    return typer.main.get_command(app)
