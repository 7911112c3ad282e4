"""Results that print as the command line shows them, in a terminal and in a notebook."""

from __future__ import annotations

import html
import io
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDTH = 160  # columns: every table of the command line fits
HEIGHT_PX = 640  # of a page within a notebook
PREFORMATTED = '<pre style="overflow-x:auto;line-height:1.25;font-family:monospace">{code}</pre>'


class Shown(ABC):
    """A value that prints as its screen: text in ``str`` and ``repr``, HTML in a notebook."""

    @abstractmethod
    def screen(self) -> RenderableType:
        """What the command line shows of it."""

    def __str__(self) -> str:
        console = _console()
        with console.capture() as captured:
            console.print(self.screen())
        return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        console = _console()
        console.print(self.screen())
        return console.export_html(inline_styles=True, code_format=PREFORMATTED)


def _console() -> Console:
    from rich.console import Console

    return Console(record=True, file=io.StringIO(), width=WIDTH, force_jupyter=False)


class Page:
    """An HTML file that a notebook shows within the page; it loads nothing from elsewhere."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"

    def _repr_html_(self) -> str:
        content = html.escape(self.path.read_text(encoding="utf-8"))
        style = f"width:100%;height:{HEIGHT_PX}px;border:1px solid #ccc"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{content}"></iframe>'
