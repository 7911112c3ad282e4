"""The processes that share one collection (tests/workers.py): their reports, and that a dead one loses one test."""

import os
import subprocess
import sys

import pytest

from tests.doubles.processes import ROOT

FIRST = """
import os, pytest

@pytest.fixture(scope="session", autouse=True)
def begun(tmp_path_factory):
    yield
    print("torn down")

def test_passes(tmp_path):
    assert tmp_path.is_dir()

def test_fails():
    print("said before")
    assert [1] == [2]

def test_dies():
    os.kill(os.getpid(), 9)

def test_comes_after(): pass
"""
SECOND = """
import time, warnings

def test_warns():
    warnings.warn("thin ice")
    time.sleep(1.0)  # while the other process dies

def test_interrupts():
    raise KeyboardInterrupt
"""


@pytest.mark.heavy
def test_every_test_is_reported_once_though_processes_die(tmp_path):
    (tmp_path / "test_first.py").write_text(FIRST)
    (tmp_path / "test_second.py").write_text(SECOND)
    options = ["-p", "conftest", "-p", "no:cacheprovider", "--without-torch", "--processes", "2", "-rA", "-q"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    shown = done.stdout
    assert done.returncode == 1, shown + done.stderr
    assert "3 failed, 3 passed" in shown
    assert "FAILED test_first.py::test_dies - its process ended: signal 9" in shown
    assert "PASSED test_first.py::test_comes_after" in shown
    for words in ("assert [1] == [2]", "said before", "thin ice", "KeyboardInterrupt"):
        assert words in shown
