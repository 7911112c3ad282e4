"""A page to read, print and sign: consent sheets and dossiers, as text and as one HTML file without script."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file


@dataclass(frozen=True)
class Section:
    """A part of a page: sentences, points, figures as (name, value), words that keep their columns, a table.

    Attributes:
        table: rows of equal length; the first is the head. Empty for none.
        loud: in a frame of its own.
    """

    title: str
    sentences: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    loud: bool = False


@dataclass(frozen=True)
class Page:
    """Something that somebody reads, files or signs. All its strings are printable; none of them is markup.

    Attributes:
        note: what counts for the whole page, beside the time at which it was made.
        signature: the line above the one to sign on; empty if nobody signs.
    """

    title: str
    sections: tuple[Section, ...]
    note: str = ""
    signature: str = ""

    def lines(self) -> list[str]:
        """The page as text."""
        shown = [self.title]
        for section in self.sections:
            shown += ["", section.title]
            shown += [f"  {sentence}" for sentence in section.sentences]
            width = max((len(name) for name, _ in section.figures), default=0)
            shown += [f"    {name.ljust(width)}   {figure}" for name, figure in section.figures]
            shown += [f"  - {point}" for point in section.points]
            shown += [f"    {line}" for line in section.columns]
            widths = [max(map(len, column)) for column in zip(*section.table, strict=True)]
            for row in section.table:
                shown.append("    " + "   ".join(map(str.ljust, row, widths)).rstrip())
        return shown

    def write(self, path: Path, *, at: str) -> None:
        """Writes the HTML to a new file, readable by this user only. Raises ConfigurationError if it exists."""
        if path.exists():
            raise ConfigurationError(f"{path}: exists already", "name another file")
        replace_file(path, self.html(at=at).encode("utf-8"))

    def html(self, *, at: str) -> str:
        """The page as HTML, everything in it escaped; ``at``: the time at which it was made, in words."""
        from jinja2 import Environment, StrictUndefined

        source = (resources.files("undersong_common") / "printed_page.html.j2").read_text(encoding="utf-8")
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        return environment.from_string(source).render(page=self, at=at)
