"""Extras of what is built from pyproject.toml's table: ``python -m tools.extras NAME`` prints them with commas.

The Makefile asks it before anything is installed, so it needs nothing but Python.
"""

import sys
import tomllib
from pathlib import Path

PYPROJECT = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
# Requirements, by package, of which no program of ours makes use.
UNUSED: dict[str, list[str]] = PYPROJECT["tool"]["undersong"]["unused"]


def extras_of(build: str) -> list[str]:
    """Returns the extras with which a build installs undersong.

    The builds are "hospital", "party-image", "coordinator-image" and "environment".
    """
    return list(PYPROJECT["tool"]["undersong"]["extras"][build])


if __name__ == "__main__":
    print(",".join(extras_of(sys.argv[1])))
