"""The demo of the pages leaves nothing: no process, and nothing beside the example's data."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.clinic import console
from tests.doubles.loops import wait_for
from tests.doubles.processes import environment

ONE_HOSPITAL = "from examples.clinic import console; console.HOSPITALS = console.HOSPITALS[:1]; console.main()"
DATA = Path(console.__file__).parent / "data"


def under(parent: int) -> list[int]:
    """Processes begun by a process."""
    return [int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are read from /proc")
def test_sigterm_ends_every_demo_program_and_leaves_its_data_unchanged(tmp_path):
    before = sorted(DATA.rglob("*"))
    with (tmp_path / "said").open("wb") as said:
        demo = subprocess.Popen([sys.executable, "-c", ONE_HOSPITAL], cwd=tmp_path, env=environment(), stdout=said)
    wait_for(lambda: demo.poll() is not None or b"Open each link" in (tmp_path / "said").read_bytes(), 120.0)
    assert demo.poll() is None
    programs = under(demo.pid)
    assert len(programs) == 3  # coordinator, console, the hospital's page
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(60) == 0
    assert not [each for each in programs if Path(f"/proc/{each}").exists()]
    assert sorted(DATA.rglob("*")) == before
