"""The images' entry points as processes on the loopback interface: from empty folders to a verified corpus."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.doubles.hospitals import clinic_task, some_notes
from tests.doubles.processes import ROOT, environment, free_port

pytestmark = pytest.mark.heavy

PARTIES = ("childrens", "harbour-general", "heart-institute")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_demo_scripts_enrol_run_export_and_verify(tmp_path):
    exchange, port = tmp_path / "exchange", free_port()
    exchange.mkdir()
    notes = some_notes(tmp_path / "notes", 12, PARTIES)
    binaries = Path(sys.executable).parent
    common = {
        "PATH": f"{binaries}:/usr/bin:/bin",
        "EXCHANGE": str(exchange),
        "UNDERSONG_CACHE": str(tmp_path / "cache"),
    }
    started = []  # each is ended as a group: a script that is ended alone leaves the programs that it started
    try:
        for party in PARTIES:
            own = {
                "UNDERSONG_PARTY_HOME": str(tmp_path / party),
                "XDG_STATE_HOME": str(tmp_path / "state"),
                "PARTY": party,
                "DATA": str(notes[party]),
                "CACHE": str(tmp_path / f"{party}-cache"),
                "RUN_OPTIONS": "--no-proxy",
            }
            with (tmp_path / f"{party}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        [ROOT / "docker" / "party-demo.sh"],
                        env=environment(**common, **own),
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        own = {
            "UNDERSONG_HOME": str(tmp_path / "coordinator"),
            "ADDRESS": f"localhost:{port}",
            "BIND": f"127.0.0.1:{port}",
            "METRICS": "127.0.0.1:0",
            "PARTIES": " ".join(PARTIES),
            "TASK": str(clinic_task(tmp_path)),
            "PLAN_OPTIONS": "--set federation.parties=3 --set federation.colluders=0"
            " --set method.samples=24 --set method.rounds=2",
            "OUT": str(tmp_path / "published"),
        }
        operator = subprocess.Popen(
            [ROOT / "docker" / "coordinator-demo.sh"],
            env=environment(**common, **own),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(operator)
        output, errors = operator.communicate(timeout=840)
        logs = "\n".join((tmp_path / f"{party}.log").read_text()[-1500:] for party in PARTIES)
        assert operator.returncode == 0, f"{output[-3000:]}\n{errors[-3000:]}\n{logs}"
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            process.wait(30)
    assert "every signature, charge and statement holds" in output
    published = json.loads((tmp_path / "published" / "manifest.json").read_text())
    assert sorted(published["receipts"]) == sorted(PARTIES)
    assert published["private"] is True
