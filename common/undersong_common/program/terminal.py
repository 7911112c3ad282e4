"""Prints a command's tables and lists, for a person at a terminal or for the next program."""

import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from undersong_common.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

NARROWEST = 40  # columns; nothing is folded to less
UNBOUNDED = 10_000  # columns; a table is measured at this width, to learn if it fits the terminal
PIPED_WIDTH = 160  # columns, if the output is no terminal


def screen() -> "Console":
    """Returns a rich console as wide as the terminal, or ``PIPED_WIDTH`` columns wide if the output is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def show_lines(lines: Sequence[str]) -> None:
    """Prints lines that are printable already: folded between words on a terminal, whole elsewhere."""
    if not sys.stdout.isatty():
        print("".join(f"{line}\n" for line in lines), end="")
        return
    width = max(NARROWEST, screen().width)
    for line in lines:
        body = line.lstrip(" ")
        indent = " " * (len(line) - len(body) + (2 if body.startswith("- ") else 0))
        folded = textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
        print("\n".join(folded) if len(line) > width else line)


class TerminalTable:
    """Rows that rich prints as a table if the screen is wide enough for every cell, else as a list without cuts.

    Args:
        cells: one sequence of printable cells per row; a row's first cell names the row.
        left: number of columns, from the first, that are aligned to the left; None for all. The others hold figures.
    """

    def __init__(
        self, headings: Sequence[str], cells: Sequence[Sequence[str]], *, title: str = "", left: int | None = None
    ) -> None:
        self._headings = headings
        self._cells = cells
        self._title = title
        if left is None:
            self._left_columns = len(headings)
        else:
            self._left_columns = left

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self._title or None, title_justify="left")
        for column_number, heading in enumerate(self._headings):
            table.add_column(heading, justify="left" if column_number < self._left_columns else "right", no_wrap=True)
        for row in self._cells:
            table.add_row(*(Text(cell) for cell in row))
        if console.measure(table, options=options.update(width=UNBOUNDED)).maximum <= options.max_width:
            yield table
            return
        if self._title:
            yield Text(self._title, style="bold")
        for row in self._cells:
            yield Text(f"{self._headings[0]} {row[0]}", style="bold", overflow="fold")
            for heading, cell in zip(self._headings[1:], row[1:], strict=True):
                if cell:
                    yield Padding(Text(f"{heading}: {cell}" if heading else cell, overflow="fold"), (0, 0, 0, 2))


def show_rows(headings: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> None:
    """Prints a table or a list on a terminal, and lines with tabs elsewhere; every cell is made printable first.

    Args:
        nothing: sentence to print if there are no rows.
    """
    if not rows:
        print(nothing)
        return
    rows = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        print("\t".join(headings))
        for row in rows:
            print("\t".join(row))
        return
    screen().print(TerminalTable(headings, rows))
