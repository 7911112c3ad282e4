"""``undersong drill``: a rehearsal's coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undersong_common import entry
from undersong_common.printable import shell_path
from undersong_server import defaults
from undersong_server.cli.options import Addresses, AsJson, Bind, CoordinatorName, Metrics, print_json


def mount(app: typer.Typer) -> None:
    """Adds the command to ``undersong``."""
    app.command()(drill)


def drill(
    address: Addresses,
    party: Annotated[list[str], typer.Option("--party", metavar="NAME", help="Who takes part; three at least.")],
    name: CoordinatorName = "drill",
    bind: Bind = defaults.BIND,
    metrics: Metrics = defaults.METRICS,
    home: Annotated[Path, typer.Option("--home", help="A folder of the drill's own.")] = Path("coordinator-drill"),
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Sets up a rehearsal of the real federation: a coordinator with other keys, invitations, a small task.

    Each hospital starts its side itself with `undersong-party init NAME --drill`, in a folder with invented records.
    """
    from undersong_server.operations import drill as operation

    made = operation.create(home, name=name, addresses=address, parties=party, bind=bind, metrics=metrics)
    fingerprint = made.coordinator.fingerprint
    if as_json:
        packages = [str(package) for package in made.packages]
        print_json({**made.coordinator.to_json(), "task": str(made.task), "packages": packages})
        return
    if quiet:
        print(fingerprint)
        return
    folder, at = shell_path(made.task.parent), shell_path(home)
    print(f"made {home}: a coordinator for rehearsals only, with keys of its own")
    print(f"fingerprint, to be told by telephone: {fingerprint}")
    print("hand each hospital its package, and ask it to begin with: undersong-party init NAME --drill")
    for package in made.packages:
        print(f"  {package}")
    print("then everything as in a real federation, with --home:")
    print(f"  undersong coordinator serve --home {at}")
    print(f'  undersong sign NAME.request.json --fingerprint "AS TOLD" --home {at}')
    print(f"  undersong run plan {folder}/task.toml --name drill --home {at}")
    print(f"  undersong run start drill --home {at}")
