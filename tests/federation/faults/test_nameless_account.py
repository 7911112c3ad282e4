"""A uid that the user database does not know, without HOME and without a folder to write in but its own (OpenShift)."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.client.cli.test_cli import proposed
from tests.doubles.authority import Authority
from tests.doubles.party_home import HashedEmbedder, joined
from tests.doubles.processes import HOSPITAL, OPERATOR, SOURCES, WEIGHTLESS
from undersong_common.models.embedding import Embedder

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

UID = 54321
AS_NOBODY = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
# It may read this checkout and its interpreter, which may lie below another account's folder.
READING = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
VARIABLES = {
    "PATH": os.defpath,
    "PYTHONPATH": os.pathsep.join(map(str, (WEIGHTLESS, *SOURCES))),
    "PYTHONDONTWRITEBYTECODE": "1",
    "HF_HUB_OFFLINE": "1",
}


def started(prefix, *arguments, timeout_s=120):
    """A process without HOME and XDG variables, in a folder that it cannot write in."""
    words = [*prefix, sys.executable, *map(str, arguments)]
    return subprocess.run(words, cwd="/", env=VARIABLES, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.fixture(scope="module")
def nobody():
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can begin a process of another uid, by setpriv")
    for prefix in (AS_NOBODY, [*AS_NOBODY, *READING]):
        if started(prefix, "-c", "import undersong_client, encodings").returncode == 0:
            return prefix
    return pytest.skip(f"uid {UID} can read neither the interpreter nor this checkout")


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as made:  # pytest's own folders are closed to other accounts
        os.chmod(made, 0o755)
        own = Path(made) / "own"
        own.mkdir()
        os.chown(own, UID, UID)
        yield own


@pytest.fixture
def run(nobody):
    def run(program, *arguments, code=0):
        done = started(nobody, "-m", program, *arguments)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    return run


def test_a_party_of_a_nameless_account_is_made_and_has_its_data(folder, run):
    notes, home = folder / "notes.csv", folder / "party"
    notes.write_text("text,label,patient\na cough,chest,one\na fall,leg,two\n")
    os.chmod(notes, 0o644)
    run(HOSPITAL, "init", "alpha", "--home", home)
    fields = ("--text-field", "text", "--label-field", "label", "--user-field", "patient")
    assert "2 records" in run(HOSPITAL, "data", "add", notes, *fields, "--home", home)
    run(HOSPITAL, "budget", "set", "--epsilon", 4, "--delta", "1e-4", "--home", home)
    run(HOSPITAL, "policy", "set", "--question", "all", "--home", home)
    assert "not running" in run(HOSPITAL, "status", "--home", home, code=6)
    run(HOSPITAL, "ledger", "--verify", "--home", home)


def test_a_coordinator_of_a_nameless_account_is_made_and_invites(folder, run):
    home = folder / "coordinator"
    run(OPERATOR, "coordinator", "init", "--address", "localhost:7443", "--home", home)
    run(OPERATOR, "invite", "alpha", "--out", folder / "alpha.package", "--home", home)
    assert "alpha" in run(OPERATOR, "parties", "--home", home)
    assert "fingerprint" in run(OPERATOR, "coordinator", "show", "--home", home)
    assert run(OPERATOR, "run", "list", "--home", home)


def test_an_approval_of_a_nameless_account_names_its_number(folder, run, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Embedder, "load", lambda *_: HashedEmbedder())
        patched.setenv("XDG_STATE_HOME", str(folder / "state"))
        home = joined(folder, Authority())
        manifest = proposed(home)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, UID, UID)
    run(HOSPITAL, "preview", "spring", "--home", home)
    run(HOSPITAL, "approve", "spring", manifest.hash.hex(), "--home", home)
    (request,) = json.loads(run(HOSPITAL, "requests", "--home", home, "--json"))["requests"]
    assert request["decision"] == "approved"
    assert str(UID) in json.dumps(request)


SUDO = """#!/bin/sh
# As sudo -u '#NUMBER' does: no variable of the caller's is passed on.
shift 2
exec env -i {variables} HOME=/nowhere {prefix} "$@"
"""


def test_printed_sudo_line_for_another_account_works_as_it_is_typed(folder, run, nobody):
    """The folder came from a variable, which sudo does not pass on."""
    home, sudo = folder / "a party", folder.parent / "sudo"
    run(HOSPITAL, "init", "two", "--home", home)
    variables = [f"{name}={value}" for name, value in VARIABLES.items()]
    sudo.write_text(SUDO.format(prefix=shlex.join(nobody), variables=shlex.join(variables)))
    sudo.chmod(0o755)
    root = {**VARIABLES, "PATH": f"{folder.parent}:{os.defpath}"}

    def typed(*words, **more):
        return subprocess.run(words, cwd="/", env=root | more, capture_output=True, text=True, timeout=120, check=False)

    command = (sys.executable, "-m", HOSPITAL, "policy", "set", "--question", "all")
    refused = typed(*command, UNDERSONG_PARTY_HOME=str(home))
    line = next(part for part in refused.stderr.splitlines() if "sudo -u" in part).partition("run it as ")[2]
    done = typed("sh", "-c", line)
    assert done.returncode == 0, done.stderr
    assert (home / "policy.json").stat().st_uid == UID
