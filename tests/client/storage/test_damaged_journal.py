"""A party's journal after a crash or a damaged disk: the torn write is dropped, damage is told with its file."""

from __future__ import annotations

import os

import pytest

from tests.doubles.coded import raises
from undersong_client.storage.store import PartyJournal
from undersong_common.errors import ConfigurationError
from undersong_common.program.machine import FAULTS_OF_FILES

DAMAGES = {
    "cut off": lambda data: data[: len(data) // 2],
    "a torn page": lambda data: data[:100] + os.urandom(4000) + data[4100:],
    "zeros": lambda data: bytes(len(data)),
    "foreign": lambda data: b"a line of another program\n" * 400,
}


def put(journal, *keys):
    for key in keys:
        with journal.writing() as connection:
            connection.execute("INSERT INTO entry VALUES ('alpha', ?, ?)", (key, bytes(3000)))


def keys_of(path):
    journal = PartyJournal(path)
    rows = journal.read("SELECT key FROM entry ORDER BY key", ())
    journal.connection.close()
    return [key for (key,) in rows]


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "journal.sqlite"
    journal = PartyJournal(made)
    put(journal, *(f"{number:02}" for number in range(30)))
    journal.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.connection.close()
    return made


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_journal_is_refused_naming_its_file_and_not_started_anew(path, damage):
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    with raises(ConfigurationError, "damaged") as fault:
        keys_of(path)
    assert str(path) in fault.value.problem
    assert fault.value.code in FAULTS_OF_FILES  # the daemon holds the step that needs it, and answers the rest
    path.write_bytes(whole)
    assert len(keys_of(path)) == 30


@pytest.mark.parametrize("torn", [lambda log: log[:-100], lambda log: log[:-4200] + bytes(4200)], ids=["cut", "zeros"])
def test_journal_drops_the_write_that_a_crash_cut_off(path, torn):
    """It was not yet on the disk, so nothing that follows from it has left."""
    log_path = path.with_name(f"{path.name}-wal")
    journal = PartyJournal(path)
    put(journal, "x")
    put(journal, "y")
    main, log = path.read_bytes(), log_path.read_bytes()
    journal.connection.close()
    path.write_bytes(main)
    log_path.write_bytes(torn(log))
    assert keys_of(path)[-1] == "x"
