"""Lists as a command prints them: for a person at a terminal, or for the next program."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from undersong_common.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 160  # columns, where the output is no terminal


def screen() -> Console:
    """Where tables and panels go: as wide as the terminal, and wide enough for every column where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def show_rows(headings: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> None:
    """A table on the terminal; plain lines with tabs elsewhere. Cells may be of a peer: made printable."""
    if not rows:
        print(nothing)
        return
    rows = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        print("\t".join(headings))
        for row in rows:
            print("\t".join(row))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    screen().print(table)
