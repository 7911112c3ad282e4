"""A database that is closed while other threads read it: they are told so, and the process goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.doubles.pace import examples
from tests.doubles.processes import environment

pytestmark = pytest.mark.heavy

REGISTRY = """
from undersong_server.coordinator.parties import SCHEMA, Registry
from undersong_server.database.sqlite import Sqlite
def opened(path):
    registry = Registry(Sqlite(path, SCHEMA))
    return registry.parties, registry.close
"""
STORE = """
from undersong_client.storage import store
def opened(path):
    journal = store.Store(path, "alpha", bytes(32))
    journal.put_all({f"key {number}": bytes(2000) for number in range(50)})
    return (lambda: (journal.get("key 3"), journal.put("key 4", bytes(3000)))), (lambda: store.close(path))
"""
CLOSED_UNDER_READERS = """
import sqlite3, sys, threading, time
from pathlib import Path

def reading(read):
    try:
        while True:
            read()
    except sqlite3.ProgrammingError as error:
        assert "closed" in str(error)

for number in range(int(sys.argv[2])):
    read, close = opened(Path(sys.argv[1]) / f"{number}.sqlite")
    readers = [threading.Thread(target=reading, args=(read,), daemon=True) for _ in range(4)]
    for reader in readers:
        reader.start()
    time.sleep(0.01)
    close()
    for reader in readers:
        reader.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize("database", [REGISTRY, STORE], ids=["registry", "store"])
def test_reading_a_closed_database_gives_an_error_and_no_crash(database, tmp_path):
    script = [sys.executable, "-c", database + CLOSED_UNDER_READERS, tmp_path, str(examples(6, 20))]
    done = subprocess.run(script, env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
