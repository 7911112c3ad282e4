"""The room of databases keeps its words to itself: no other room knows how machines share a coordinator."""

import re
from pathlib import Path

import pytest

import undersong_server

SERVER = Path(undersong_server.__file__).parent
WORDS = re.compile(r"postgres|psycopg|\bleases?\b|shared[ _]?files?\b", re.IGNORECASE)
OPTION = "Connection string of an empty PostgreSQL database; without it, the folder is all."  # the help of --storage


def lines_with_words(folder: Path) -> list[str]:
    texts = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    return [
        f"{path.relative_to(folder)}: {line.strip()}"
        for path, text in texts.items()
        if path.relative_to(folder).parts[0] != "database"
        for line in text.splitlines()
        if WORDS.search(line.replace(OPTION, ""))
    ]


@pytest.mark.heavy
def test_only_the_database_package_mentions_leases_and_postgresql() -> None:
    assert lines_with_words(SERVER) == []


def test_test_of_database_words_notices_one_in_another_package(tmp_path: Path) -> None:
    for room in ("database", "runs"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "folder.py").write_text("from psycopg import connect\nrelease = 1\n", encoding="utf-8")
    assert lines_with_words(tmp_path) == ["runs/folder.py: from psycopg import connect"]
