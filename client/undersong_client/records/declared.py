"""Declaration of a data set's source, and what its readers share."""

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
        data: file or folder; a file ``.sql`` holds a query.
        text_field, label_field, user_field: columns; "" for none. ``a.b`` names a value inside a nested row.
        attribute_fields: columns by the attribute of the operator's task files that they stand for.
        encoding: of a text file.
        label_map: labels by what stands in the source; "" leaves the record out, the key "" is a missing label, and
            "*" any other label.
        row_filter: command of the hospital that gets every row as a line of JSON and writes the rows that count.
        database: file that holds the database's URL, or ``env:NAME`` of a variable that does.
        exclusions: file or query of the identifiers of patients who take no part.
        hold_out: per cent of the patients (of the records, without ids) that are kept out, to judge a corpus by.
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
        """The declaration that a party's settings hold."""
        return cls(**{name: getattr(settings, name) for name in cls.__dataclass_fields__})

    @property
    def path(self) -> Path:
        return Path(self.data)

    def absolute(self) -> "Declared":
        """The same with absolute paths, for a program that starts in another folder."""

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
        """True where reading it starts no program and asks no database."""
        return not (self.row_filter or self.path.suffix == ".sql" or self.exclusions.endswith(".sql"))


@dataclass(frozen=True)
class Skipped:
    """A row or resource that was not read: its place and the reason, never its content."""

    where: str
    why: str


Skip = Callable[[str, str], None]  # with the place and the reason of a row that is not read


def value_at(node: Any, parts: list[str]) -> Any:
    """The value at a dotted path; of a list without a number, the first element that has one. None: there is none.

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
    """Lines of a file that may be compressed, with their numbers from 1; without blank ones."""
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
