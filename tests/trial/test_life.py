"""A federation's life as federation.md tells it: typed by a stranger, command by command.

Coordinator and daemons are always processes of their own. The default suite types the commands in this process, through
the programs' entry points (starting a program takes longer than most of what it does), and no process loads the
embedding model; `make test-all` starts a process for every command, with the model.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.doubles.party_home import HashedEmbedder, write_notes
from tests.doubles.processes import HOSPITAL, OPERATOR, ROOT, CoordinatorProcess, Process, environment, free_port
from tests.doubles.tasks import LABELS, make_task
from tests.trial.stranger import command_lines, command_of, separate, started, type_in_process
from undersong_common.models.embedding import Embedder

pytestmark = pytest.mark.heavy

SOON_S = 90.0
A_LOOK = ("run", "watch", "first", "--timeout", "0.5")


class Life:
    """An operator and hospitals, each in a folder of its own; what was typed is kept."""

    def __init__(self, folder, hospitals, type_one, weights):
        self.weights = weights
        self.folder = folder
        self.hospitals = hospitals
        self._type_one = type_one
        self.port = free_port()
        self.env = separate(folder)
        self.typed = []
        self.printed = {}  # all that a command printed, by (program, names of the command)
        self.daemons = {}

    def type(self, program, *words, code=0, home=None):
        env = {**self.env, **({} if home is None else {"UNDERSONG_PARTY_HOME": str(self.folder / "parties" / home)})}
        said = self._type_one(program, [str(word) for word in words], self.folder, env)
        assert said.code == code, f"{words}: {said.code}\n{said.out}{said.err}"
        _, names, _ = command_of(program, [str(word) for word in words])
        self.typed.append((program, *names))
        self.printed[program, *names] = self.printed.get((program, *names), "") + said.out
        return said.out

    def operator(self, *words, **rest):
        return self.type("undersong", *words, **rest)

    def hospital(self, name, *words, **rest):
        return self.type("undersong-party", *words, home=name, **rest)

    @contextlib.contextmanager
    def serving(self):
        """The coordinator, and whatever daemons are started meanwhile; all of them end with the context."""
        serve = CoordinatorProcess(self.folder / "coordinator", self.port, env=self.env, weights=self.weights)
        self.typed.append(("undersong", "coordinator", "serve"))
        try:
            serve.start()
            yield
        finally:
            for daemon in self.daemons.values():
                assert daemon.end() == 0, daemon.text()[-2000:]
            serve.end()

    def run_daemon(self, name):
        home, log = self.folder / "parties" / name, self.folder / f"{name}.log"
        self.daemons[name] = Process(HOSPITAL, ["run", "--home", home], log, self.env, weights=self.weights)
        self.typed.append(("undersong-party", "run"))
        self.daemons[name].start()

    def wait_until_connected(self):
        count = len(self.hospitals)
        self.until("every hospital is connected", lambda: self.operator("parties").count("connected") == count)

    def until(self, what, look):
        end = time.monotonic() + SOON_S
        while not (found := look()):
            logs = "\n".join(f"{name}: {daemon.text()[-1500:]}" for name, daemon in self.daemons.items())
            assert time.monotonic() < end, f"{what}\n{logs}"
            time.sleep(1.0 if self.weights else 0.3)
        return found


def fingerprint(said):
    return re.search(r"\b[0-9a-f]{4}(?:-[0-9a-f]{4}){7}\b", said)[0]


def walk(folder, hospitals, type_one=started, *, weights=True):
    """From nothing to a verified data set; everything that was typed, as (program, names of the command)."""
    life = Life(folder, hospitals, type_one, weights)
    told = found(life)
    task = make_task(folder / "task", parties=len(hospitals))
    with life.serving():
        for name in hospitals:
            enrol(life, name, told)
        life.wait_until_connected()
        run_once(life, task, told)
    life.operator("run", "list")
    return life


def found(life):
    """Makes the coordinator; its fingerprint."""
    (life.folder / "home").mkdir()
    address = f"localhost:{life.port}"
    places = ("--bind", f"127.0.0.1:{life.port}", "--metrics", f"127.0.0.1:{free_port()}")
    return fingerprint(
        life.operator(
            "coordinator",
            "init",
            "--address",
            address,
            *places,
            "--operator",
            "Example Hospital",
            "--contact",
            "01 234 56",
        )
    )


def enrol(life, name, told):
    life.operator("invite", name, "--contact", "Dr Novak, 01 234")
    life.hospital(name, "init", name)
    read = life.hospital(name, "enroll", f"{name}.package", "--fingerprint", told)
    life.operator("sign", f"{name}.request.json", "--fingerprint", fingerprint(read))
    notes = write_notes(life.folder / f"{name}.jsonl", labels=LABELS)
    fields = ("--text-field", "text", "--label-field", "label", "--user-field", "patient")
    said = life.hospital(name, "data", "add", notes, *fields)
    assert "6 patients; the one with most records has 2" in said
    life.hospital(name, "budget", "set", "--epsilon", 8, "--delta", "1e-4")
    life.hospital(name, "policy", "set", "--question", "all")
    if len(life.hospitals) < 3:
        life.hospital(name, "policy", "set", "--minimum-parties", 1)
    life.hospital(name, "enroll", "--grant", f"{name}.grant")
    life.hospital(name, "check")
    life.run_daemon(name)


def run_once(life, task, told):
    parties = len(life.hospitals)
    life.operator(
        "run",
        "plan",
        task,
        "--name",
        "first",
        "--set",
        f"federation.parties={parties}",
        "--set",
        "federation.colluders=0",
    )
    life.operator("run", "start", "first")
    for name in life.hospitals:
        life.until("the plan is proposed", lambda each=name: "first" in life.hospital(each, "requests"))
        page = life.hospital(name, "preview", "first", "--print", f"{name}.html")
        assert "your budget, before -> after" in page
        life.until("people are waited for", lambda: "waiting for people" in life.operator(*A_LOOK, code=6))
        words = json.loads(life.hospital(name, "preview", "first", "--json"))["words"]
        life.hospital(name, "approve", "first", *words.split())
    life.operator("run", "watch", "first", "--timeout", SOON_S)
    life.operator("export", "first", "--out", "published data")
    verdict = life.operator("verify", "published data", "--fingerprint", told)
    assert "holds" in verdict
    for name in life.hospitals:
        life.until("the run has ended", lambda each=name: "ended 20" in life.hospital(each, "requests"))
        assert "left after it" in life.hospital(name, "ledger", "--verify")
        assert "noise added" in life.hospital(name, "outbox", "--entry", masked(life, name))
        assert "has ended" not in life.hospital(name, "status")
        life.hospital(name, "revoke", "first", code=2)


def masked(life, name):
    """The number of the message that held the answer to the first sum."""
    entries = json.loads(life.hospital(name, "outbox", "--run", "first", "--json"))["entries"]
    steps = [entry for entry in entries if entry["kind"] == "sum_reply" and entry["answer_to"] == "sum_step"]
    told = [(step["number"], life.hospital(name, "outbox", "--entry", step["number"])) for step in steps[:3]]
    return next(number for number, said in told if "noise added" in said)


def in_this_process(capsys):
    def here(program, words, folder, env):
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(folder)
            wanted = environment(**env)
            for name in os.environ.keys() - wanted.keys():
                patched.delenv(name)
            for name, value in wanted.items():
                patched.setenv(name, value)
            patched.setattr(Embedder, "load", lambda *_: HashedEmbedder())
            return type_in_process(program, words, capsys, patched)

    return here


@pytest.mark.slow
def test_one_hospital_goes_from_init_to_verify_by_commands(tmp_path, capsys):
    life = walk(tmp_path, ["heart-institute"], in_this_process(capsys), weights=False)
    check_quotations(life)
    assert stat_modes(life.folder) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_of_the_federation_page_run_as_they_stand(tmp_path):
    life = walk(tmp_path, ["heart-institute", "childrens", "harbour-general"])
    page = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    section = page.partition("## The same by commands")[2].partition("\n## ")[0]
    told = [line for line in command_lines("docs/federation.md") if line[-1] in section]
    assert stat_modes(life.folder) == []
    walked = {(program, *command_of(program, words)[1]) for program, *words in told}
    assert len(walked) > 12
    assert walked <= set(life.typed), walked - set(life.typed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hanging_or_killed_pages_stop_neither_coordinator_nor_daemon(tmp_path, capsys):
    name = "heart-institute"
    life = Life(tmp_path, [name], in_this_process(capsys), weights=False)
    told = found(life)
    task = make_task(tmp_path / "task", parties=1)
    places = (
        ("console", OPERATOR, ["console", "serve"], "coordinator"),
        ("page", HOSPITAL, ["page"], f"parties/{name}"),
    )
    with life.serving(), contextlib.ExitStack() as ended:
        enrol(life, name, told)
        life.wait_until_connected()
        daemon = life.daemons[name].process.pid
        for harm in (signal.SIGSTOP, signal.SIGSEGV, signal.SIGKILL):  # it hangs, it crashes, it is killed
            pages = []
            for page, program, words, home in places:
                arguments = [*words, "--home", tmp_path / home, "--port", 0]
                served = Process(program, arguments, tmp_path / f"{page}-{harm}.log", life.env)
                ended.callback(served.kill)
                served.start()
                pages.append(served)
            for served in pages:
                life.until("the page is served", lambda each=served: "/enter#" in each.text())
                served.process.send_signal(harm)
            life.operator("coordinator", "healthy")
            life.operator("invite", f"another-{harm}")  # what the console writes, too
            life.hospital(name, "budget", "set", "--epsilon", 8, "--delta", "1e-4")  # what the page writes, too
            life.hospital(name, "status")
            if harm == signal.SIGSTOP:
                run_once(life, task, told)
        assert life.daemons[name].process.pid == daemon
        assert life.daemons[name].running


def check_quotations(life):
    """Every line that the pages say a command prints is one that it printed; "..." stands for anything."""
    for page in ("docs/federation.md", "docs/hospital.md"):
        quoted = quotations(page)
        assert len(quoted) > 10, page
        for command, line in quoted:
            wanted = re.compile(re.escape(line).replace(re.escape("..."), ".*"))
            printed = life.printed.get(command, "").splitlines()
            assert any(wanted.fullmatch(each) for each in printed), f"{page}: {' '.join(command)}: {line}\n{printed}"


def quotations(page):
    """What a page says that commands print: the program and names of each, and a line."""
    found = []
    for block in re.findall(
        r"^```text\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        for line in block.splitlines():
            if line.startswith("$ "):
                command = tuple(line.removeprefix("$ ").split())
            else:
                found.append((command, line))
    return found


def stat_modes(folder):
    """Private files that somebody else on the machine could read."""
    homes = [*(folder / "parties").rglob("*"), *(folder / "coordinator" / "authority").rglob("*.key")]
    return [path for path in homes if path.is_file() and path.stat().st_mode & 0o077 and "blocks" not in path.parts]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ordinary_user_goes_from_init_to_verify_by_commands(tmp_path):
    """In a user namespace whose one user is nobody special: without root's rights, with a home of its own."""
    unshare = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if os.name != "posix" or subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine makes no user namespaces")
    chosen = f"{__file__}::{test_one_hospital_goes_from_init_to_verify_by_commands.__name__}"
    options = ["-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={tmp_path / 'ordinary'}"]
    done = subprocess.run(
        [*unshare, sys.executable, "-m", "pytest", *options, chosen],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout[-3000:]
