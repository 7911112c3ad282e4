"""What a shell completes: names in the coordinator's folder. They are read from the disk, without loading a program."""

from __future__ import annotations

from pathlib import Path

import typer

from undersong_server import defaults


def run_names(context: typer.Context, incomplete: str) -> list[str]:
    """The runs of the folder that --home or $UNDERSONG_HOME names."""
    home = context.params.get("home")
    folder = Path(home or defaults.HOME) / "runs"
    if not folder.is_dir():
        return []
    return sorted(run.name for run in folder.iterdir() if run.name.startswith(incomplete))
