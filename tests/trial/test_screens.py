"""What commands show on terminals of 60, 80 and 120 columns, in a pipe and under NO_COLOR: golden files, nothing cut.

``UPDATE_SCREENS=1`` writes the files anew; read what changed before you commit it.
"""

import contextlib
import io
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.doubles.party_home import command, write_notes
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from tests.trial.stranger import program_commands
from undersong_client.consent.approvals import Proposals
from undersong_client.home import PartyHome
from undersong_common.errors import TransportError
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge
from undersong_common.program.configuration import read_toml
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics import LabelHistogram, TopQVotes
from undersong_server.authority import Issued
from undersong_server.operations import runs
from undersong_server.runs.folder import Awaited, AwaitedParty, RunStatus
from undersong_server.runs.planning import Planned

pytestmark = pytest.mark.heavy

SCREENS = Path(__file__).parent / "screens"
WIDTHS = {"60": 60, "80": 80, "120": 120, "nocolor": 80}
NOW = time.time()  # of the list of parties: it shows minutes, which go on while other tests keep the machine busy
PARTIES = ("alpha", "beta", "heart-institute", "omega")
FIXED_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
FRAME = re.compile(r"[\s─━│┃┏┓┗┛┡┩├┤┬┴┼╇└┘┌┐-]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A hospital with fixed keys and three plans, a ledger, and a task: always the same."""
    folder = tmp_path_factory.mktemp("screens")
    home = folder / "home"
    command("init", "alpha", "--insecure-noise-seed", 7, "--home", home)
    command("budget", "set", "--epsilon", 4, "--delta", "1e-4", "--per-run", 2, "--home", home)
    command("policy", "set", "--question", "all", "--home", home)
    notes = write_notes(folder / "alpha.jsonl")
    command("data", "add", notes, "--label-field", "label", "--user-field", "patient", "--home", home)
    from undersong_client import keys
    from undersong_common.models.embedding import Embedder

    opened = PartyHome(home)
    own = Member("alpha", keys.identity(opened).public_key().public_bytes_raw())
    others = [Member(name, bytes([number]) * 32) for number, name in enumerate(("beta", "delta", "gamma", "omega"), 2)]
    quorum = Quorum(parties=5, threshold=4, tolerated_dropouts=1, colluders=1)
    sums = [SumRequest("labels", LabelHistogram(2))]
    sums += [SumRequest(f"votes/{n}", TopQVotes(q=8, candidates=60 * n, labels=2)) for n in (1, 2, 3)]
    plan = plan_sums(sums, Privacy(1.5, 1e-5, "user", 4), quorum)
    task = {
        "name": "triage",
        "description": "a nurse's note at the front desk",
        "labels": ["good", "bad"],
        "purpose": "to teach a classifier that all of the hospitals may use",
        "publication": "https://example.org/triage, open to everyone",
        "generators": ["big (gpt-4o-mini at api.example.org)"],
    }
    for run in ("spring", "a run with a much longer name than others"):
        manifest = Manifest(run, task, "wasp", Embedder.load().fingerprint, (own, *others), plan)
        Proposals(opened).receive(manifest, at=1.7e9)
    ledger = Ledger.read(home / "ledger.jsonl")
    for number, run in enumerate(("winter", "winter", "late winter")):
        charge = Charge(run, "00" * 32, f"votes/{number + 1}", 0, (Gaussian(5.0 + number),), alone=(Gaussian(2.0),))
        ledger.charge(charge, at=1.7e9 + number)
    make_task(folder / "task")
    office(folder)
    return folder


def office(folder):
    """Four parties, one of them away because its daemon does not start, and two runs that wait."""
    home = make_home(folder / "office")
    planned = Planned("", read_toml(folder / "task" / "task.toml"), str(folder), PARTIES, 0, None, 120.0)
    with contextlib.closing(home.registry()) as registry:
        for number, name in enumerate(PARTIES, 1):
            registry.invite(name, b"token", expires_at=2e9, now=1.7e9, contact=f"Dr Novak, 0{number} 234")
            registry.enrol(name, bytes([number]) * 32, Issued("", f"{number}", 2e9 + number * 86400), now=1.7e9)
            shared = 2.5 if number == 1 else None
            registry.seen(name, now=NOW - 7300 * number, software="undersong 1.0", embedder="ab" * 32,
                          epsilon_left=shared, paused=number == 2)  # fmt: skip
        registry.invite("harbour-view", b"token", expires_at=2e9, now=1.7e9)
        registry.refused_start("omega", "policy")
    people = Awaited(
        (AwaitedParty("beta", True, 20.0), AwaitedParty("omega", False, 7200.0)), 1.7e9, None, 4,
        "waiting for people at beta, omega to approve (2 of 4 hospitals have)", "people",
    )  # fmt: skip
    machines = Awaited(
        (AwaitedParty("omega", False, 7200.0),), 1.7e9, 1.7e9 + 120, 3,
        "waiting for omega (away for 7200 s); with 3 of 4 parties it goes on in 30 s",
    )  # fmt: skip
    for name, waiting in (("spring", people), ("summer", machines)):
        run = home.run(name)
        run.create(replace(planned, name=name))
        run.write_status(RunStatus("running", waiting=waiting))
        run.say("beta: connected, its people have to decide")


COMMANDS = {
    "requests": ("undersong-party", ("requests", "--home", "home")),
    "preview": ("undersong-party", ("preview", "spring", "--home", "home")),
    "ledger": ("undersong-party", ("ledger", "--home", "home")),
    "plan": ("undersong", ("plan", "task/task.toml")),
    "parties": ("undersong", ("parties", "--home", "office")),
    "watch": ("undersong", ("run", "watch", "spring", "--timeout", "0", "--home", "office")),
    "watch-machines": ("undersong", ("run", "watch", "summer", "--timeout", "0", "--home", "office")),
}


def steady(text, place):
    """What a change of the protocol changes is put the same: a plan's hash and its words. So are other days' times."""
    for number, request in enumerate(Proposals(PartyHome(place / "home")).all()):
        text = text.replace(request.manifest, f"{number:064d}").replace(request.manifest[:12], f"{number:012d}")
        # as one phrase, since a word may stand elsewhere too; where they are folded hangs on their length
        text = re.sub(r"\s+".join(request.words.split()), " ".join(FIXED_WORDS), text)
    text = re.sub(r"(?<!\d)20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\b", lambda found: _dated(found[0]), text)
    text = re.sub(r"(alpha\.jsonl,\s+read\s+)20\d\d-\d\d-\d\d", r"\g<1>DATE-READ.", text)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def shown(name, place, monkeypatch, kind):
    """What a command prints, with what is another one each day put the same."""
    program, arguments = COMMANDS[name]
    monkeypatch.chdir(place)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    for key in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen: io.StringIO = io.StringIO() if kind == "pipe" else Terminal()
    if kind != "pipe":
        monkeypatch.setenv("COLUMNS", str(WIDTHS[kind]))
    if kind == "nocolor":
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(runs, "POLL_S", 0.0)
    if name == "parties":
        monkeypatch.setattr(time, "time", lambda: NOW)
    with contextlib.suppress(TransportError):  # the watching ends, the run goes on
        program_commands(program).main(list(arguments), standalone_mode=False)
    return screen.getvalue()


def _dated(stamp):
    return stamp if stamp.startswith("2023-11-14") else "2023-11-14 00:00:00"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["60", "80", "120", "nocolor", "pipe"])
@pytest.mark.parametrize("name", COMMANDS)
def test_command_screens_equal_their_stored_copies_at_every_width(name, kind, place, monkeypatch):
    found = shown(name, place, monkeypatch, kind)
    if kind in WIDTHS:
        lines = [ESCAPES.sub("", line) for line in found.splitlines()]
        # A command that is to be copied stays one line, which the terminal itself folds.
        long = [line for line in lines if len(line) > WIDTHS[kind] and " " in line.strip()]  # a hash is one word
        assert [line for line in long if not line.startswith("next: ")] == []
        whole = ESCAPES.sub("", shown(name, place, monkeypatch, "pipe"))
        narrow = FRAME.sub("", ESCAPES.sub("", found))
        assert [word for word in set(re.findall(r"[\w.@/]{4,}", whole)) if word not in narrow] == []
        assert "…" not in found
    if kind == "nocolor":
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]", found)  # bold may stay, colours may not
    path, found = SCREENS / f"{name}.{kind}.txt", steady(found, place)
    if os.environ.get("UPDATE_SCREENS"):
        path.write_bytes(found.encode())
    assert found == path.read_bytes().decode()  # carriage returns and all
