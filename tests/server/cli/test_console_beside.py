"""``coordinator serve --console``: two processes that start together, of which the console stops nothing."""

import os
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.doubles.hospitals import operator
from tests.doubles.loops import wait_for
from tests.doubles.processes import CoordinatorProcess, free_port

pytestmark = pytest.mark.heavy


@pytest.fixture
def served(tmp_path):
    home, port = tmp_path / "coordinator", free_port()
    place = ("--address", f"localhost:{port}", "--bind", f"127.0.0.1:{port}", "--metrics", "")
    operator("coordinator", "init", *place, "--home", home)
    with CoordinatorProcess(home, port, "--console", "--console-port", free_port(), weights=False) as process:
        wait_for(lambda: "/enter#" in process.text(), 60.0, said=process.text, every_s=0.1)
        yield process


def console_of(process):
    """Address and process id of the console."""
    address = re.search(r"(http://\S+)/enter#", process.text())[1]
    (child,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/stat")
        if path.read_text().rpartition(")")[2].split()[1] == str(process.process.pid)
    ]
    return address, child


def is_answering(address):
    try:
        return urllib.request.urlopen(f"{address}/login", timeout=5).status == 200
    except OSError:
        return False


@pytest.mark.slow
def test_coordinator_survives_its_killed_console_and_still_exits_cleanly(served):
    address, child = console_of(served)
    assert is_answering(address)
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: not is_answering(address), 10.0, said=served.text)
    assert served.running
    assert served.end() == 0


@pytest.mark.slow
def test_console_process_ends_when_its_coordinator_is_killed(served):
    address, _ = console_of(served)
    assert is_answering(address)
    served.kill()
    wait_for(lambda: not is_answering(address), 20.0, said=served.text, every_s=0.1)
