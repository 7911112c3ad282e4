"""Pages to print and sign, such as consent sheets and dossiers, as text and as one HTML file without script."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file

BAR_COLUMNS = 40  # width of the bar of a budget


@dataclass(frozen=True)
class PageSection:
    """One part of a page, with a title and any of the contents below.

    Attributes:
        sentences: paragraphs.
        points: items of a list; ``ordered`` numbers them.
        figures: (name, value) pairs.
        columns: lines whose spaces are kept.
        table: rows of equal length, the first of which is the head; () for no table.
        unbroken: True keeps each cell of the table on one line.
        aloud: groups of words that people read out to each other, to compare fingerprints.
        bar: shares of a budget that are used before and after a run, drawn as a bar; None for no bar.
        loud: True puts the section into a frame of its own.
        folded: True hides the section under the words :attr:`PrintedPage.fold`, which a reader opens.
    """

    title: str
    sentences: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    ordered: bool = False
    figures: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    unbroken: bool = False
    aloud: tuple[str, ...] = ()
    bar: tuple[float, float] | None = None
    loud: bool = False
    folded: bool = False


@dataclass(frozen=True)
class PrintedPage:
    """A page that somebody reads, files or signs. All its strings are printable, and markup in them has no effect.

    Attributes:
        note: a remark on the whole page, shown beside the time at which it was made.
        signature: words above the line to sign on; "" if nobody signs.
        signers: number of people who sign.
        entries: what they enter by hand above their signatures, with a line for each.
        decision: words above a further line, for whoever decides upon the advice that was signed; "" without one.
        footer: words at the foot of every printed page, before its number; "" for none.
        fold: words that a reader clicks on to open the folded sections.
    """

    title: str
    sections: tuple[PageSection, ...]
    note: str = ""
    signature: str = ""
    signers: int = 1
    entries: tuple[str, ...] = ()
    decision: str = ""
    footer: str = ""
    fold: str = "For a specialist"

    def lines(self) -> list[str]:
        """Returns the page as lines of text."""
        page_lines = [self.title]
        is_folded = False
        for section in sorted(self.sections, key=lambda section: section.folded):
            if section.folded and not is_folded:
                page_lines += ["", f"{self.fold.upper()}"]
                is_folded = True
            name_width = max((len(name) for name, _ in section.figures), default=0)
            column_widths = [max(map(len, column)) for column in zip(*section.table, strict=True)]
            page_lines += [
                "",
                section.title,
                *([] if section.bar is None else [_budget_bar(*section.bar)]),
                *(f"  {sentence}" for sentence in section.sentences),
                *(f"    {name.ljust(name_width)}   {figure}" for name, figure in section.figures),
                *_mark_points(section),
                *([f"    {'   '.join(section.aloud)}"] if section.aloud else []),
                *(f"    {line}" for line in section.columns),
                *("    " + "   ".join(map(str.ljust, row, column_widths)).rstrip() for row in section.table),
            ]
        return page_lines

    def write(self, path: Path, *, at: str) -> None:
        """Writes the page as HTML to a new file, for this user only. Raises ConfigurationError if the file exists."""
        if path.exists():
            raise ConfigurationError(f"{path}: exists already", "name another file")
        replace_file(path, self.html(at=at).encode("utf-8"))

    def html(self, *, at: str) -> str:
        """Returns the page as HTML, all strings escaped; ``at`` is the time at which it was made, in words."""
        footer = _quote_for_css(self.footer)
        return str(self._render_template("printed_page.html.j2", at=at, body=self.body(2), footer=footer))

    def body(self, level: int) -> Markup:
        """Returns the page without its title as HTML, for a file of its own or for a part of a screen.

        Args:
            level: level of the sections' HTML headings, such as 2 for h2.
        """
        return self._render_template("printed_sections.html.j2", level=level)

    def _render_template(self, name: str, **context: object) -> Markup:
        page_template = template("undersong_common.pages", name, "templates")
        return Markup(page_template.render(page=self, **context))  # noqa: S704 - rendered


def _mark_points(section: PageSection) -> list[str]:
    """Returns the items of a section's list as lines, each after its number or a dash."""
    marks = (f"{number}." if section.ordered else "-" for number in range(1, len(section.points) + 1))
    return [f"  {mark} {point}" for mark, point in zip(marks, section.points, strict=True)]


def _quote_for_css(text: str) -> Markup:
    """Returns a text as a string of CSS, where HTML's escapes have no effect: all but letters and digits is escaped."""
    characters = (
        character if character == " " or (character.isascii() and character.isalnum()) else f"\\{ord(character):06x} "
        for character in text
    )
    return Markup(f'"{"".join(characters)}"')  # noqa: S704 - escaped above


def _budget_bar(before: float, after: float) -> str:
    """Returns a budget's shares before and after a run (0 to 1) as a bar of # and + on one line."""
    first_end, second_end = (min(BAR_COLUMNS, round(BAR_COLUMNS * part)) for part in (before, after))
    return f"    [{'#' * first_end}{'+' * (second_end - first_end)}{'.' * (BAR_COLUMNS - second_end)}]"


def template(package: str, name: str, folder: str = "", **filters: Callable[..., Any]) -> Template:
    """Returns a Jinja template from a package's folder; a missing value is an error, and values in HTML are escaped."""
    environment = Environment(
        loader=PackageLoader(package, folder),
        autoescape=name.endswith(".html.j2"),  # Markdown and text have no markup of HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(name)
