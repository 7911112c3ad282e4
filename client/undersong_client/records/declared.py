"""Declaration of a data set's source, and helpers that the readers of all kinds of sources use."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.table import NO_GZIP, UTF_8, gzip_lines

VARIABLE = "env:"  # before the name of a variable that holds a database's URL


@dataclass(frozen=True)
class Declared:
    """A data set's declaration, as the party's settings keep it.

    Attributes:
        data: the source's file or folder; a file ``.sql`` holds a query.
        text_field, label_field, user_field: names of columns; "" for no column. ``a.b`` names a value in a nested row.
        attribute_fields: columns by the attribute of the operator's task files that they stand for.
        encoding: encoding of a text file.
        label_map: label by the value in the source; the value "" leaves the record out. The key "" stands for a missing
            value, and "*" for any other one.
        row_filter: the hospital's command that reads every row as a line of JSON and writes the rows to use.
        database: file that holds the database's URL, or ``env:NAME`` of a variable that holds it.
        exclusions: file or query with the identifiers of patients to leave out.
        hold_out: per cent of the patients (without ids: of the records) that are held out, to judge a corpus by.
    """

    data: str
    text_field: str = "text"
    label_field: str = ""
    user_field: str = ""
    attribute_fields: Mapping[str, str] = field(default_factory=dict)
    encoding: str = UTF_8
    label_map: Mapping[str, str] = field(default_factory=dict)
    row_filter: str = ""
    database: str = ""
    exclusions: str = ""
    hold_out: int = 0

    @classmethod
    def of(cls, settings: Any) -> "Declared":
        """Returns the declaration that a party's settings hold."""
        return cls(**{name: getattr(settings, name) for name in cls.__dataclass_fields__})

    @property
    def path(self) -> Path:
        return Path(self.data)

    def absolute(self) -> "Declared":
        """Returns the same declaration with absolute paths, for a program that starts in another folder."""

        def absolute(at: str) -> str:
            return str(Path(at).absolute()) if at and not at.startswith(VARIABLE) else at

        return replace(
            self, data=absolute(self.data), exclusions=absolute(self.exclusions), database=absolute(self.database)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        named = (self.text_field, self.label_field, self.user_field, *self.attribute_fields.values())
        return tuple(name for name in named if name)

    @property
    def is_files(self) -> bool:
        """True if reading the source starts no program and queries no database."""
        return not (self.row_filter or self.path.suffix == ".sql" or self.exclusions.endswith(".sql"))


@dataclass(frozen=True)
class Skipped:
    """A row or resource that was not read: its place and the reason, never its content."""

    where: str
    why: str


Skip = Callable[[str, str], None]  # with the place and the reason of a row that is not read


def value_at(node: Any, parts: list[str]) -> Any:
    """Returns the value at a dotted path in nested JSON; None if there is none.

    In a list it takes the element whose number the path names, or else the first element with such a value.

    >>> value_at({"type": {"coding": [{}, {"code": "x"}]}}, ["type", "coding", "code"])
    'x'
    """
    if not parts:
        return node
    if isinstance(node, list):
        if parts[0].isdigit():
            return value_at(node[int(parts[0])], parts[1:]) if int(parts[0]) < len(node) else None
        return next((found for each in node if (found := value_at(each, parts)) is not None), None)
    return value_at(node.get(parts[0]), parts[1:]) if isinstance(node, Mapping) else None


def json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file, which may be compressed, with their numbers from 1; leaves out blank lines."""
    try:
        with closing(gzip_lines(path)) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error.strerror or NO_GZIP}",
            "check the file and its permissions",
            code="unreadable-source",
        ) from None
