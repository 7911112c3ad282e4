"""The operator's and the researcher's command line, ``undersong``; undersong.cli adds ``simulate`` and ``compare``.

Commands parse, call ``undersong_server.operations`` and print. What a command needs is imported when it is called, so
that ``--help`` answers at once.
"""

from __future__ import annotations

import typer

from undersong_common import entry
from undersong_server.cli import console, coordinator, drill, enrolment, evaluation, new, releases, runs, tasks

app = typer.Typer(
    name="undersong",
    help="Writes a labelled synthetic corpus out of private text that never leaves its owners.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they print local variables
    context_settings=entry.HELP_OPTIONS,
)
for room in (tasks, evaluation, coordinator, enrolment, runs, releases, console, drill, new):
    room.mount(app)


@app.callback()
def program(version: entry.ShowVersion = False) -> None: ...
