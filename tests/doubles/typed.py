"""A typed command in this process. typer builds its tree of commands for every call; here it is built once."""

import functools
from typing import Any

import click
import typer.main
from click.testing import CliRunner, Result


def typed(app: typer.Typer, *arguments: object, **options: Any) -> Result:
    """What a command line prints, its exit code or the error that it ends with."""
    return CliRunner().invoke(built(app), [str(argument) for argument in arguments], **options)


def built(app: typer.Typer) -> click.Command:
    """The program's tree of commands."""
    return _built(app, len(app.registered_commands) + len(app.registered_groups))


@functools.cache
def _built(app: typer.Typer, _mounted: int) -> click.Command:
    return typer.main.get_command(app)
