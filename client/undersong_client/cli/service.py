"""``undersong-party service install`` and ``service remove``: the daemon and the page as units of systemd."""

import os
import pwd
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from undersong_client import operations
from undersong_client.cli.options import HomeFolder, home_of, print_result
from undersong_common.printable import shell_path, that_hold
from undersong_common.program import entry
from undersong_common.program.options import AsJson
from undersong_common.program.services import ADMINISTRATOR_UNITS

app = typer.Typer(help="Runs daemon and page as services of this machine.", no_args_is_help=True)


def mount(program: typer.Typer) -> None:
    """Adds the commands to ``undersong-party``."""
    program.add_typer(app, name="service")


@app.command()
def install(
    print_only: Annotated[bool, typer.Option("--print", help="Show the steps and the units; change nothing.")] = False,
    state: Annotated[
        Path | None,
        typer.Option(help="The folder `undersong` in $XDG_STATE_HOME, where whoever added the data set has set that."),
    ] = None,
    home: HomeFolder = None,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Makes the account, moves this party's folder to it, writes the units and starts them. Needs root."""
    services = operations.services
    service_installation = services.installation(_folder_to_move(home), _state_to_move(state))
    if print_only:
        print(*service_installation.describe_steps(), sep="\n")
        return
    record = service_installation.install()
    program_path = shell_path(Path(sys.executable).parent / "undersong-party")
    account_command = f"sudo -u {services.ACCOUNT} env UNDERSONG_PARTY_HOME={services.FOLDER}/home"
    account_command += f" XDG_STATE_HOME={services.FOLDER}/state {program_path}"
    is_ready = service_installation.is_ready
    hidden_source = services.source_hidden_from_account()
    print_result(
        as_json,
        {**asdict(record), "home": f"{services.FOLDER}/home", "started": is_ready},
        *that_hold(
            (record.moved_from, f"moved {record.moved_from} to {services.FOLDER}/home"),
            (record.units, f"wrote {', '.join(record.units)} to {ADMINISTRATOR_UNITS}"),
            (is_ready, f"enabled and started {', '.join(services.service().started)}"),
            (True, f"from now on, commands run as the account: {account_command} status"),
            (not is_ready, f"next: that with enroll in place of status, then: sudo {program_path} service install"),
            (
                hidden_source,
                f"the account cannot read {hidden_source}: before `data refresh`, add it from a place where it can",
            ),
        ),
        quiet="" if quiet else None,
    )


@app.command()
def remove(as_json: AsJson = False, quiet: entry.Quiet = False) -> None:
    """Stops and removes the units, and moves the party's folder back to where it was. Needs root."""
    services = operations.services
    record = services.installation(None, None).remove()
    print_result(
        as_json,
        asdict(record),
        *that_hold(
            (record.units, f"removed {', '.join(record.units)}"),
            (record.moved_from, f"moved {services.FOLDER}/home back to {record.moved_from}"),
            (not record.moved_from, f"{services.FOLDER} and its account stay: the ledger proves what was spent"),
        ),
        quiet="" if quiet else None,
    )


def _state_to_move(state_option: Path | None) -> Path | None:
    """Returns the folder that --state names, else the caller's own in $XDG_STATE_HOME; root's variable names none."""
    if state_option is not None:
        return state_option.absolute()
    if os.geteuid() and (state_home := os.environ.get("XDG_STATE_HOME")):
        return Path(state_home).absolute() / "undersong"
    return None


def _folder_to_move(home: Path | None) -> Path | None:
    """Returns the folder that --home names, else the usual one of whoever called sudo; None if nothing is to move."""
    sudo_user = os.environ.get("SUDO_USER")
    if home is None and sudo_user and not os.environ.get("UNDERSONG_PARTY_HOME"):
        folder = Path(pwd.getpwnam(sudo_user).pw_dir) / ".config" / "undersong-party"
    else:
        folder = home_of(home).absolute()
    if folder == Path(operations.services.FOLDER) / "home":
        return None
    if home is not None or (folder / "settings.json").exists():
        return folder
    return None
