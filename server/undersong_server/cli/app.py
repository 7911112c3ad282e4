"""The operator's and the researcher's command line, ``undersong``; undersong.cli adds ``simulate`` and ``compare``.

Commands parse, call ``undersong_server.operations`` and print.
"""

import typer

from undersong_common.program import entry
from undersong_server.cli import console, coordinator, run_commands, service, tasks

app = typer.Typer(
    name="undersong",
    help="Writes a labelled synthetic corpus out of private text that never leaves its owners.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they print local variables
    context_settings=entry.HELP_OPTIONS,
)
for group in (tasks.app, coordinator.enrolment_app, run_commands.release_app):
    app.add_typer(group)
app.add_typer(tasks.new_app, name="new")
coordinator.app.add_typer(service.app, name="service")
app.add_typer(coordinator.app, name="coordinator")
app.add_typer(run_commands.app, name="run")
app.add_typer(console.app, name="console")


@app.callback()
def program(version: entry.ShowVersion = False) -> None: ...
