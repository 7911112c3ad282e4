"""``undersong-party drill``: a rehearsal's party."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undersong_client.cli.options import AsJson, checkpoints_folder, home_of, mark_drill, print_json
from undersong_common.errors import ConfigurationError
from undersong_common.printable import shell_path


def mount(app: typer.Typer) -> None:
    """Adds the command to ``undersong-party``."""
    app.command()(drill)


def drill(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="The party's name, as the drill's package has it.")
    ] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the drill's folder with everything in it.")] = False,
    home: Annotated[
        Path | None, typer.Option("--home", help="A folder of the drill's own (else the usual one with -drill).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Makes a party for a rehearsal: other keys, invented records, a throw-away budget. Everything else is real."""
    from undersong_client.operations import drill as operation
    from undersong_client.operations import joining

    usual = home_of(None)
    folder = usual.with_name(f"{usual.name}-drill") if home is None else home
    if remove == bool(name):
        raise ConfigurationError("a drill is made or removed", "give a NAME, or --remove")
    if remove:
        operation.remove(folder)
        print(f"removed {folder}")
        return
    made = operation.create(folder, name, checkpoints=checkpoints_folder())
    fingerprint = joining.own_fingerprint(made)
    mark_drill(folder)
    if as_json:
        print_json({"home": str(made.path), "party": name, "fingerprint": fingerprint, "drill": True})
        return
    at = shell_path(made.path)
    print(f"made {made.path}: invented records in {made.drill_records}")
    print(f"this party's fingerprint, for the operator: {fingerprint}")
    print("then everything as in a real run, with --home:")
    print(f'  undersong-party enroll PACKAGE --fingerprint "AS TOLD" --home {at}')
    print(f"  undersong-party enroll --grant FILE --home {at}")
    print(f"  undersong-party run --home {at}")
    print(f"  undersong-party preview drill --home {at}, and approve it by its words")
    print(f"when it is over: undersong-party drill --remove --home {at}")
