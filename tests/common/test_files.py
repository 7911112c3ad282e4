"""Files that are replaced whole, and databases in a file."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from undersong_common.files import LOST_AND_FOUND, is_empty, open_database, replace_file, replace_where_possible
from undersong_common.pages.store import PageStore
from undersong_server.database.interface import ENTRIES
from undersong_server.database.sqlite import Sqlite


def test_file_is_replaced_in_every_folder_that_exists(tmp_path):
    places = [tmp_path / "one" / "mark", tmp_path / "gone" / "mark", tmp_path / "two" / "mark"]
    for place in (places[0], places[2]):
        place.parent.mkdir()
        replace_file(place, b"before")
    assert replace_where_possible(places, b"now") == [places[0], places[2]]
    assert [place.read_bytes() for place in (places[0], places[2])] == [b"now", b"now"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mark", "mark", "one", "two"]


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_error_in_replacing_a_file_names_it_and_not_its_temporary_file(tmp_path, monkeypatch, step):
    def full(path, *_arguments):
        raise OSError(28, "No space left on device", path if step != "fsync" else None)

    with monkeypatch.context() as planted:
        planted.setattr(os, step, full)
        with pytest.raises(OSError, match="No space left") as caught:
            replace_file(tmp_path / "status.json", b"{}")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path / "status.json"), None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("step", "before"), [("fsync", 2), ("replace", 1)])  # a folder is synced after its file
def test_copy_that_cannot_be_synced_or_renamed_keeps_its_old_content(tmp_path, monkeypatch, step, before):
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        replace_file(place, b"before")
    taken = iter((*[None] * before, OSError(28, "No space left on device")))
    own = getattr(os, step)

    def second_place_fails(*arguments):
        if error := next(taken, None):
            raise error
        own(*arguments)

    monkeypatch.setattr(os, step, second_place_fails)
    assert replace_where_possible(places, b"now") == places[:1]
    assert [place.read_bytes() for place in places] == [b"now", b"before"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_database_locked_at_its_creation_is_waited_for_only_once(tmp_path):
    path = tmp_path / "one.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            open_database(path, timeout_s=0.05)
        other.execute("ROLLBACK")
        open_database(path, timeout_s=0.05).close()


@pytest.mark.heavy
@pytest.mark.parametrize("opened", [lambda path: Sqlite(path, ENTRIES), lambda path: PageStore(path.parent)])
def test_second_sqlite_connection_keeps_the_locks_of_the_first(tmp_path, opened):
    """Without its locks, the next process that ends would delete the log that this one still writes."""
    path = tmp_path / "page.sqlite"
    kept = [opened(path), opened(path)]
    other = f"import sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('SELECT * FROM sqlite_master'); c.close()"
    subprocess.run([sys.executable, "-c", other], check=True)
    assert Path(f"{path}-wal").exists()
    for each in kept:
        each.close()


def test_folder_with_only_lost_and_found_counts_as_empty(tmp_path):
    assert is_empty(tmp_path)
    (tmp_path / LOST_AND_FOUND).mkdir()
    assert is_empty(tmp_path)
    (tmp_path / "notes.csv").touch()
    assert not is_empty(tmp_path)
