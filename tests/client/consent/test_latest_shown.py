"""``approve --latest-shown`` holds for what this terminal has shown, in a terminal of its own (a pseudo-terminal)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from tests.client.cli.test_cli import proposed
from tests.doubles.coded import raises
from tests.doubles.party_home import command, joined
from tests.doubles.processes import environment
from undersong_client.consent import approvals
from undersong_client.consent.approvals import Requests
from undersong_client.home import PartyHome
from undersong_common.errors import ConfigurationError, PrivacyRefusal

SHELL = """
import os, subprocess, sys
os.setsid()
window = os.open(os.environ["TERMINAL"], os.O_RDWR)  # the first terminal that a session's leader opens is its own
for line in sys.stdin:
    into_a_file = line.startswith("piped ")
    words = line.removeprefix("piped ").split()
    out = window if words[0] == "preview" and not into_a_file else subprocess.PIPE
    done = subprocess.run(
        [sys.executable, "-m", "undersong_client.cli.app", *words], stdout=out, stderr=subprocess.PIPE, text=True
    )
    print(done.returncode, ((done.stdout or "") + done.stderr).replace(chr(10), " "), flush=True)
"""


def check(home, request, *, at):
    return approvals.check_shown(home, request.run, request.manifest, request.changes, at=at)


class Terminal:
    """A login: commands that are typed one after the other in one window."""

    def __init__(self, home):
        main, self._window = os.openpty()
        own = {"TERMINAL": os.ttyname(self._window), "UNDERSONG_PARTY_HOME": str(home)}
        self._shell = subprocess.Popen(
            [sys.executable, "-c", SHELL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(**own),
        )
        threading.Thread(target=self._display, args=(main,), daemon=True).start()

    def _display(self, main):
        """What a window does: takes what is written, so that whoever writes is not held up."""
        with contextlib.suppress(OSError):
            while os.read(main, 65536):
                pass
        os.close(main)

    def __call__(self, typed):
        self._shell.stdin.write(typed + "\n")
        self._shell.stdin.flush()
        code, _, said = self._shell.stdout.readline().partition(" ")
        return int(code), said.strip()

    def close(self):
        self._shell.stdin.close()
        self._shell.wait(20)
        os.close(self._window)  # which ends the display


@pytest.fixture
def home(tmp_path, authority):
    return joined(tmp_path, authority)


@pytest.fixture
def terminals(home):
    made = [Terminal(home) for _ in range(2)]
    yield made
    for each in made:
        each.close()


@pytest.mark.slow
def test_only_the_terminal_that_showed_the_plan_approves_it_so(home, terminals):
    mine, other = terminals
    approve = "approve spring --latest-shown"
    proposed(home, epsilon=0.1)
    code, said = mine(approve)
    assert (code, "has not shown run 'spring'" in said) == (2, True), said
    assert mine("piped preview spring")[0] == 0
    code, said = mine(approve)
    assert (code, "has not shown run 'spring'" in said) == (2, True), said
    assert mine("preview spring")[0] == 0
    code, said = other(approve)
    assert (code, "has not shown run 'spring'" in said) == (2, True), said
    proposed(home, epsilon=2.0)
    code, said = mine(approve)
    assert (code, "CHANGED since this terminal showed it: epsilon 0.1 -> 2" in said) == (3, True)
    assert mine("preview spring")[0] == 0
    code, said = mine(approve)
    assert (code, "approved" in said) == (0, True)
    assert Requests(PartyHome(home)).find("spring").decision == "approved"


def test_where_there_is_no_terminal_the_words_are_needed(home, monkeypatch):
    proposed(home)
    monkeypatch.setattr(approvals, "terminal_session", lambda: "")
    command("preview", "spring", "--home", home)
    assert "needs a terminal" in command("approve", "spring", "--latest-shown", "--home", home, code=2)
    assert "which plan" in command("approve", "spring", "zebra", "--latest-shown", "--home", home, code=2)


def test_what_a_program_read_or_another_run_or_an_old_screen_showed_does_not_count(home, monkeypatch):
    monkeypatch.setattr(approvals, "terminal_session", lambda: "0:1:2")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    opened, requests = PartyHome(home), Requests(PartyHome(home))
    proposed(home)
    proposed(home, run="autumn")
    command("preview", "spring", "--json", "--home", home)
    spring, autumn = requests.find("spring"), requests.find("autumn")
    with raises(ConfigurationError, "not-shown"):
        check(opened, spring, at=time.time())
    approvals.note_shown(opened, spring.run, spring.manifest, "ab", at=100.0)
    assert check(opened, spring, at=100.0 + approvals.SHOWN_LASTS_S) == "ab"
    for at in (99.0, 101.0 + approvals.SHOWN_LASTS_S):
        with raises(ConfigurationError, "not-shown"):
            check(opened, spring, at=at)
    approvals.note_shown(opened, autumn.run, autumn.manifest, "ab", at=101.0)
    with raises(ConfigurationError, "not-shown"):
        check(opened, spring, at=102.0)
    approvals.note_shown(opened, spring.run, spring.manifest, "ab", at=103.0)
    changed = proposed(home, epsilon=0.5)
    assert requests.find("spring").manifest == changed.hash.hex()
    with pytest.raises(PrivacyRefusal, match=r"CHANGED since this terminal showed it: epsilon 1\.5 -> 0\.5"):
        check(opened, requests.find("spring"), at=104.0)


def test_a_damaged_record_of_what_was_shown_stops_no_proposal(home):
    (home / "shown.json").write_text("[]")
    (home / "shown.json").chmod(0o600)
    assert approvals.last_shown(PartyHome(home)) == {}
    first = proposed(home)
    approvals.note_shown(PartyHome(home), "spring", first.hash.hex(), "ab", at=5.0)
    assert json.loads((home / "shown.json").read_text())["seen"] == {first.hash.hex(): [5.0, "ab"]}
