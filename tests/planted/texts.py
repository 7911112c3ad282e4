"""Reads ``mistakes.toml``: mistakes as a text of a file, the wrong text in its place, and tests that should notice."""

import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("mistakes.toml")
LEAST = {
    "bounds": 8,
    "noise": 8,
    "accounting": 8,
    "secure aggregation": 12,
    "consent": 10,
    "frames": 5,
    "journal": 8,
    "records": 5,
    "pages": 5,
    "generators": 9,
    "exit codes": 2,
    "corpus": 4,
}
"""Rooms, and the least number of mistakes of each. The list never shrinks."""


@dataclass(frozen=True)
class TextMistake:
    """One mistake.

    Attributes:
        room: one of ``LEAST``.
        name: the mistake in words.
        file: file of the source tree; ``text`` stands in it once.
        wrong: stands there instead where the mistake is planted.
        tests: files of tests, or tests in them, that should notice.
    """

    room: str
    name: str
    file: str
    text: str
    wrong: str
    tests: tuple[str, ...]

    def plant(self, root: Path) -> str:
        """Plants the mistake below ``root``; returns what the file held. Raises ValueError for a stale entry."""
        path = root / self.file
        before = path.read_text("utf-8")
        if before.count(self.text) != 1:
            raise ValueError(
                f"{self.name}: its text stands {before.count(self.text)} times in {self.file}, not once:"
                f" correct the entry in {LIST.name}"
            )
        path.write_text(before.replace(self.text, self.wrong), "utf-8")
        return before


def read_mistakes(file: Path = LIST) -> list[TextMistake]:
    """Returns the listed mistakes. Raises ValueError for two of one name."""
    tables = tomllib.loads(file.read_text("utf-8"))["mistake"]
    mistakes = [TextMistake(**{**table, "tests": tuple(table["tests"])}) for table in tables]
    names = Counter(mistake.name for mistake in mistakes)
    if doubled := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"{file.name} has two mistakes of one name: {', '.join(doubled)}")
    return mistakes
