"""A page to read, print and sign: consent sheets and dossiers, as text and as one HTML file without script."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

BAR_COLUMNS = 40  # of a budget as text


@dataclass(frozen=True)
class Section:
    """A part of a page: sentences, points, figures as (name, value), words that keep their columns, a table.

    Attributes:
        table: rows of equal length; the first is the head. Empty for none.
        aloud: words that people read out to each other, in groups.
        bar: parts of a budget that are used before and after; None for no picture.
        loud: in a frame of its own.
        folded: stands under the page's :attr:`Page.fold`, which a reader opens.
    """

    title: str
    sentences: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    aloud: tuple[str, ...] = ()
    bar: tuple[float, float] | None = None
    loud: bool = False
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """Something that somebody reads, files or signs. All its strings are printable; none of them is markup.

    Attributes:
        note: what counts for the whole page, beside the time at which it was made.
        signature: the line above the one to sign on; empty if nobody signs.
        signers: how many people sign.
        fold: name of what is folded away.
    """

    title: str
    sections: tuple[Section, ...]
    note: str = ""
    signature: str = ""
    signers: int = 1
    fold: str = "For a specialist"

    def lines(self) -> list[str]:
        """The page as text."""
        shown, folded = [self.title], False
        for section in sorted(self.sections, key=lambda section: section.folded):
            if section.folded and not folded:
                shown += ["", f"{self.fold.upper()}"]
                folded = True
            shown += ["", section.title]
            if section.bar is not None:
                before, after = (min(BAR_COLUMNS, round(BAR_COLUMNS * part)) for part in section.bar)
                shown.append(f"    [{'#' * before}{'+' * (after - before)}{'.' * (BAR_COLUMNS - after)}]")
            shown += [f"  {sentence}" for sentence in section.sentences]
            width = max((len(name) for name, _ in section.figures), default=0)
            shown += [f"    {name.ljust(width)}   {figure}" for name, figure in section.figures]
            shown += [f"  - {point}" for point in section.points]
            shown += [f"    {'   '.join(section.aloud)}"] * bool(section.aloud)
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
        return str(self._rendered("printed_page.html.j2", at=at, body=self.body(2)))

    def body(self, level: int) -> "Markup":
        """The page below its title as HTML, for a page of its own or a part of one.

        Args:
            level: of the sections' headings.
        """
        return self._rendered("printed_sections.html.j2", level=level)

    def _rendered(self, name: str, **context: object) -> "Markup":
        from markupsafe import Markup

        shown = template("undersong_common.pages", name, "templates").render(page=self, **context)
        return Markup(shown)  # noqa: S704 - rendered


def template(package: str, name: str, folder: str = "", **filters: Callable[..., Any]) -> "Template":
    """A template in a package's folder; every value that it shows is escaped if it is HTML, and must be given."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package, folder),
        autoescape=name.endswith(".html.j2"),  # Markdown and text have no markup of HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(name)
