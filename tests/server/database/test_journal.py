import sqlite3
import subprocess
import sys

import pytest

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError, InternalError
from undersong_server.database.journal import Journal


def test_journal_lists_and_deletes_only_keys_with_the_given_prefix(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    journal.put_all([("sum/1/x", b"a"), ("sum/10/x", b"b"), ("sum/1", b"c"), ("sum/1/%", b"d")])
    assert list(journal.items("sum/1/")) == ["sum/1/%", "sum/1/x"]
    with pytest.raises(InternalError):  # all or none
        journal.exchange((), [("sum/2", b"e"), ("sum/1", b"f")], forgotten="sum/1/")
    assert list(journal.items("sum/1/")) == ["sum/1/%", "sum/1/x"]
    journal.exchange((), [("sum/2", b"e")], forgotten="sum/1/")
    assert list(journal.items("sum/")) == ["sum/1", "sum/10/x", "sum/2"]
    assert journal.get("sum/1") == b"c"


@pytest.mark.heavy
def test_journal_values_survive_a_killed_process(tmp_path):
    path = tmp_path / "journal.sqlite"
    program = (
        "import os, signal, sys; from pathlib import Path; from undersong_server.database.journal import Journal\n"
        "Journal(Path(sys.argv[1])).put('key', b'value'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    finished = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert finished.returncode == -9
    assert Journal(path).get("key") == b"value"


@pytest.mark.heavy
def test_second_process_on_a_journal_is_told_to_wait(tmp_path):
    path = tmp_path / "journal.sqlite"
    first = Journal(path)
    with raises(ConfigurationError, "journal-in-use"):
        Journal(path)
    first.close()
    Journal(path)


def test_journal_of_another_version_is_refused_by_name(tmp_path):
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE entry SET value = x'3939' WHERE key = 'journal/version'")
    database.close()
    with raises(ConfigurationError, "journal-version"):
        Journal(path)
