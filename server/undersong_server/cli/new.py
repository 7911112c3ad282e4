"""``undersong new ...``: begins a package of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undersong_common import entry
from undersong_common.printable import shell_path
from undersong_server.cli.options import AsJson, print_json

new_app = typer.Typer(help="Begin a package that adds something to Undersong.", no_args_is_help=True)


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong``."""
    app.add_typer(new_app, name="new")


@new_app.callback()
def group() -> None: ...


@new_app.command("method")
def method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the method: small letters, digits, hyphens.")],
    out: Annotated[Path | None, typer.Option("--out", help="The package's folder (else NAME).")] = None,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Writes a package with a method that runs, its plan, its test and its entry point."""
    from undersong_server.operations import scaffold

    begun = scaffold.new_method(name, out or Path(name))
    if as_json:
        print_json(begun.to_json())
    elif not quiet:
        folder = shell_path(begun.folder)
        print(f"wrote {', '.join(begun.files)} into {begun.folder}")
        print(f"next: pip install -e {folder}, then pytest {folder}; undersong plan TASK.toml --method {name}")
