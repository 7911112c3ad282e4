"""The commands for task files: ``init``, ``plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undersong_common import entry
from undersong_common.rows import screen
from undersong_server.cli.options import AsJson, Assignments, TaskFile, print_json


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong``."""
    app.command()(init)
    app.command()(plan)


def init(
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A table whose columns and labels fill the file.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where to write the task file.")] = Path("task.toml"),
    quiet: entry.Quiet = False,
) -> None:
    """Writes a commented task file."""
    from undersong_server.operations import tasks

    tasks.write_template(out, source)
    if not quiet:
        print(f"wrote {out}: edit it, then `undersong plan {out}` and `undersong simulate {out}`")


def plan(task_file: TaskFile, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Shows every private sum of a run, its noise, and the generators' calls. Spends nothing."""
    from undersong_server.cli.plan_screen import render
    from undersong_server.operations import tasks

    figures = tasks.plan(task_file, assignments or ())
    if as_json:
        print_json(figures.to_json())
    else:
        screen().print(render(figures))
