"""Units of systemd: they parse, write no core dump, and run commands that exist."""

import re
import shutil
import subprocess

import pytest
import typer

from undersong_common.program import services

UNITS = sorted(services.UNITS.iterdir())
SERVICES = [path for path in UNITS if path.suffix == ".service"]


@pytest.mark.heavy
@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_systemd_service_is_hardened_and_runs_an_existing_command(path):
    from undersong.cli import app as operator
    from undersong_client.cli.app import app as hospital

    lines = path.read_text(encoding="utf-8").splitlines()
    for needed in (
        "LimitCORE=0",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "CapabilityBoundingSet=",
        "UMask=0077",
    ):
        assert needed in lines
    assert any(re.fullmatch(r"User=undersong(-party)?", line) for line in lines)
    assert any(line.startswith("EnvironmentFile=-") for line in lines)
    if any(line.startswith("Restart=") for line in lines):
        words = next(line for line in lines if line.startswith("RestartPreventExitStatus=")).partition("=")[2].split()
        assert "2" in words
        assert "75" not in words
    if path.stem == "undersong-coordinator":
        assert "ExecStart=/opt/undersong/bin/undersong coordinator serve --log-json" in lines
        assert {"User=undersong", "Restart=always", "WantedBy=multi-user.target"} <= set(lines)
    started = next(line for line in lines if line.startswith("ExecStart=")).removeprefix("ExecStart=").split()
    found = typer.main.get_command(hospital if started[0].endswith("-party") else operator)
    for word in started[1:]:
        if word.startswith("--"):
            assert any(word in each.opts for each in found.params), word
        elif hasattr(found, "commands"):
            found = found.commands[word]


@pytest.mark.slow
def test_systemd_analyze_finds_no_fault_in_any_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    for path in UNITS:
        text = path.read_text(encoding="utf-8").replace("/opt/undersong/bin/", "/usr/bin/env ")
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / path.name) for path in UNITS)],
        capture_output=True,
        text=True,
    )
    own = [line for line in done.stderr.splitlines() if "undersong" in line]
    assert not own, own
    assert done.returncode == 0, done.stderr
