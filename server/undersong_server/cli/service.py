"""``undersong coordinator service install`` and ``service remove``: coordinator and console as units of systemd."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from undersong_common.printable import shell_path, that_hold
from undersong_common.program import entry
from undersong_common.program.options import AsJson
from undersong_common.program.services import ADMINISTRATOR_UNITS
from undersong_server import operations
from undersong_server.cli.options import DEFAULT_HOME, print_result

app = typer.Typer(help="Runs coordinator and console as services of this machine.", no_args_is_help=True)


@app.command()
def install(
    print_only: Annotated[bool, typer.Option("--print", help="Show the steps and the units; change nothing.")] = False,
    home: Annotated[
        Path, typer.Option(envvar="UNDERSONG_HOME", help="The coordinator's folder that moves; another account's too.")
    ] = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Makes the account, moves this coordinator's folder to it, writes the units and starts them. Needs root."""
    services = operations.services
    installation = services.installation(_folder_to_move(home))
    if print_only:
        print(*installation.describe_steps(), sep="\n")
        return
    record = installation.install()
    program = shell_path(Path(sys.executable).parent / "undersong")
    account = f"sudo -u {services.ACCOUNT} {program}"
    is_ready = installation.is_ready
    print_result(
        {**asdict(record), "home": services.HOME, "started": is_ready},
        *that_hold(
            (record.moved_from, f"moved {record.moved_from} to {services.HOME}"),
            (record.units, f"wrote {', '.join(record.units)} to {ADMINISTRATOR_UNITS}"),
            (is_ready, f"enabled and started {', '.join(services.service().started)}"),
            (not is_ready, f"next: {account} coordinator init --home {services.HOME} --address HOST:7443"),
            (not is_ready, f"then: sudo {program} coordinator service install"),
            (is_ready, f"commands run as the account: {account} coordinator healthy --home {services.HOME}"),
        ),
        as_json=as_json,
        quiet=quiet,
    )


@app.command()
def remove(as_json: AsJson = False, quiet: entry.Quiet = False) -> None:
    """Stops and removes the units, and moves the coordinator's folder back to where it was. Needs root."""
    services = operations.services
    record = services.installation(None).remove()
    print_result(
        record,
        *that_hold(
            (record.units, f"removed {', '.join(record.units)}"),
            (record.moved_from, f"moved {services.HOME} back to {record.moved_from}"),
            (not record.moved_from, f"{services.FOLDER} and its account stay: they hold the keys"),
        ),
        as_json=as_json,
        quiet=quiet,
    )


def _folder_to_move(home: Path) -> Path | None:
    """The folder to move, by --home; None if the account has it, or if the default folder has no coordinator."""
    if home.absolute() == Path(operations.services.HOME):
        return None
    if home != DEFAULT_HOME or (home / "coordinator.json").exists():
        return home.absolute()
    return None
