"""Helpers that the readers of all kinds of sources use."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.table import NO_GZIP, gzip_lines


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
