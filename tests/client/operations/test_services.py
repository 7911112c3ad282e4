"""A party's folder moves to the service's account and back: one folder at any moment, whatever interrupts the move."""

import hashlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from tests.doubles.coded import raises
from tests.doubles.machines import ACCOUNT, MachineInFolder
from tests.doubles.pace import slow_after
from tests.doubles.party_home import command, joined
from undersong_client.home import PartyHome
from undersong_client.operations import services
from undersong_client.storage import datasets
from undersong_common.errors import ConfigurationError
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge
from undersong_common.program import services as machinery
from undersong_common.program.moving import Owner, acting_as, change_owner

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(os.geteuid() != 0, reason="accounts and units are root's"),
]

PERSON = Owner(64000, 64000)
STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "chown")


@pytest.fixture(scope="module")
def party(authority, tmp_path_factory):
    """A folder with a party as a person has set it up: ``alpha``, its notes, and ``state/undersong``."""
    with _folder() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(folder / "state"))
        home = PartyHome(joined(folder, authority))
        heads, _ = datasets.checkpoints_of(home, folder / "state" / "undersong" / "ledgers")
        ledger = Ledger.read(home.ledger)
        ledger.charge(Charge("spring", "00" * 32, "votes/1", 0, (Gaussian(5.0),)))
        heads.keep(ledger)
        yield folder


class _folder:  # noqa: N801 - used as a function
    """A temporary folder that every account may pass through."""

    def __init__(self, place=None):
        self._path = Path(tempfile.mkdtemp(prefix="undersong-service-", dir=place))

    def __enter__(self):
        self._path.chmod(0o755)
        return self._path

    def __exit__(self, *_):
        shutil.rmtree(self._path)


class Place:
    """A machine and the person's folder on it, on the same file system or on another one."""

    def __init__(self, party: Path, top: Path, person: Path) -> None:
        self.machine = MachineInFolder(top)
        self.person = person
        shutil.copytree(party, person, dirs_exist_ok=True)
        change_owner(person, PERSON)
        self.source, self.state = person / "alpha", person / "state" / "undersong"
        settings = json.loads((self.source / "settings.json").read_bytes())
        text = json.dumps(settings).replace(str(party), str(person))
        (self.source / "settings.json").write_text(text)
        self.target = self.machine.path(services.FOLDER) / "home"

    def installation(self, source=True):
        return services.installation(self.source if source else None, self.state, self.machine)

    def parties(self):
        """Every folder that could be opened as a party's."""
        return [path.parent for top in (self.person, self.machine.root) for path in top.rglob("settings.json")]


@pytest.fixture
def place(party, monkeypatch):
    monkeypatch.setattr(machinery, "check_environment", lambda program: None)
    with _folder() as top, _folder() as person:
        yield Place(party, top, person)


def digests(folder: Path):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("settings.json", "daemon.lock")
    }


def owners(folder: Path):
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def check_in_service(place):
    """The party at the account's place: whole, the account's, its ledger held by the heads that moved."""
    assert place.parties() == [place.target]
    assert owners(place.target.parent) == {ACCOUNT.uid}
    checkpoints = place.machine.path(services.STATE) / "ledgers"
    with acting_as(ACCOUNT):
        home = PartyHome(place.target)
        heads, _ = datasets.checkpoints_of(home, checkpoints)
        assert heads.read() == [Ledger.read(home.ledger).head]
        assert len(datasets.load(home).table) == 12


def test_service_install_moves_folder_owner_ledger_heads_and_cache(place):
    before = digests(place.source)
    record = place.installation().install()
    check_in_service(place)
    after = digests(place.target)
    assert {name: after[name] for name in before} == before
    assert record.moved_from == str(place.source)
    settings = json.loads((place.target / "settings.json").read_bytes())
    assert settings["cache"] == str(place.target / "cache")
    assert any(name.startswith("cache/embeddings") for name in after)
    assert place.machine.calls[0].startswith("useradd --system")
    assert place.machine.calls[-2:] == [
        "systemctl daemon-reload",
        "systemctl enable --now undersong-party.service undersong-page.service",
    ]


def test_systemd_units_run_the_programs_of_this_environment(place):
    place.installation().install()
    units = place.machine.path(machinery.ADMINISTRATOR_UNITS)
    text = (units / "undersong-party.service").read_text()
    assert f"ExecStart={Path(sys.executable).parent}/undersong-party run" in text
    assert sorted(path.name for path in units.iterdir()) == sorted(services.service().units)


def test_service_install_print_shows_every_unit_and_changes_nothing(place):
    before = digests(place.machine.root), digests(place.person)
    lines = list(place.installation().describe_steps())
    assert (digests(place.machine.root), digests(place.person), place.machine.calls) == (*before, [])
    assert [line for line in lines if line.startswith("# /etc/")] == [
        f"# {machinery.ADMINISTRATOR_UNITS}/{name}" for name in services.service().units
    ]


def test_service_remove_undoes_the_installation(place):
    before = digests(place.source), owners(place.person), os.listdir(place.machine.path("/etc"))
    place.installation().install()
    place.installation(source=False).remove()
    assert place.parties() == [place.source]
    after = digests(place.source)
    assert {name: after[name] for name in before[0]} == before[0]
    assert owners(place.person) == before[1]
    assert not place.target.parent.exists()
    assert not any(place.machine.path(machinery.ADMINISTRATOR_UNITS).iterdir())
    assert place.machine.accounts == {}
    with acting_as(PERSON):
        assert len(datasets.load(PartyHome(place.source)).table) == 12
        heads, _ = datasets.checkpoints_of(PartyHome(place.source), place.state / "ledgers")
        assert len(heads.read()) == 2


def test_service_install_twice_changes_nothing_more(place):
    place.installation().install()
    before = digests(place.machine.root)
    place.installation().install()
    assert digests(place.machine.root) == before
    check_in_service(place)


def test_old_account_has_no_fresh_budget_after_service_install(place, monkeypatch):
    place.installation().install()
    monkeypatch.setenv("XDG_STATE_HOME", str(place.state.parent))
    shutil.rmtree(place.person / ".alpha.jsonl.undersong")
    again = place.machine.root / "again"
    command("init", "alpha", "--home", again)
    options = ("--label-field", "label", "--user-field", "patient", "--home", again)
    assert "ledger is not here" in command("data", "add", place.person / "alpha.jsonl", *options, code=3)


def test_service_install_moves_no_folder_in_use(place):
    with acting_as(PERSON):
        running = PartyHome(place.source).running()
        running.__enter__()
    with raises(ConfigurationError, "daemon-runs"):
        place.installation().install()
    running.__exit__(None, None, None)
    pid = os.fork()
    if not pid:
        os.chdir(place.source)
        signal.pause()
    try:
        with raises(ConfigurationError, "in-use"):
            _until_it_is_used(place)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert place.parties() == [place.source]
    assert owners(place.source) == {PERSON.uid}


def _until_it_is_used(place):
    """Looks at the folder until the other process works in it."""
    for _ in range(200):
        machinery.check_unused(place.source)


def test_service_install_stops_at_a_link_in_the_folder(place):
    (place.source / "requests" / "out").symlink_to("/etc")
    with raises(ConfigurationError, "is-a-link"):
        place.installation().install()
    assert place.parties() == [place.source]


def test_service_install_never_joins_two_party_folders(place, party):
    place.installation().install()
    shutil.copytree(party / "alpha", place.source)
    change_owner(place.source, PERSON)
    with raises(ConfigurationError, "two-folders"):
        place.installation().install()
    with raises(ConfigurationError, "two-folders"):
        place.installation(source=False).remove()


def test_service_install_replaces_no_unit_of_somebody_else(place):
    unit = place.machine.path(machinery.ADMINISTRATOR_UNITS) / "undersong-page.service"
    unit.write_text("[Service]\n")
    with raises(ConfigurationError, "unit-exists"):
        place.installation().install()
    assert unit.read_text() == "[Service]\n"
    assert place.parties() == [place.source]


def test_service_install_refuses_if_ledger_heads_are_in_an_unknown_folder(place):
    shutil.move(place.state, place.person / "elsewhere")
    with raises(ConfigurationError, "other-state-folder"):
        place.installation().install()
    assert place.parties() == [place.source]


@pytest.mark.parametrize("hidden", ["/home", "/root", "/tmp"])
def test_environment_that_systemd_units_cannot_see_is_refused(hidden, monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "exists", lambda path: True)
    with raises(ConfigurationError, "hidden-environment"):
        machinery.check_environment(Path(hidden) / "env" / "bin" / "undersong-party")


class Killed:
    """Kills this process before its Nth change of a folder."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        for name in STEPS:
            setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, step):
        def counted(*arguments, **options):
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*arguments, **options)

        return counted


def killed_at(nth: int, action) -> bool:
    """Runs ``action`` in a process that dies before its ``nth`` step; False if it ended before."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            Killed(nth)
            action()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("disk", [None, "/var/tmp"])
def test_service_install_killed_at_any_step_continues_with_one_party(party, monkeypatch, disk):
    every_kill(party, monkeypatch, disk, stride=3)


@pytest.mark.slow
@pytest.mark.parametrize("disk", slow_after([None, "/var/tmp"], 1))
def test_service_install_killed_at_sampled_steps_leaves_one_party(party, monkeypatch, disk):
    every_kill(party, monkeypatch, disk, stride=29)


def every_kill(party, monkeypatch, disk, stride):
    """Kills installation and removal before every step, or every ``stride``th; the same command then ends each."""
    monkeypatch.setattr(machinery, "check_environment", lambda program: None)
    nth, went_on = 1, True
    while went_on:
        with _folder() as top, _folder(disk) as person:
            place = Place(party, top, person)
            went_on = killed_at(nth, lambda place=place: place.installation().install())
            assert len(place.parties()) <= 1, nth
            place.machine.accounts = {services.ACCOUNT: ACCOUNT}
            place.installation().install()
            check_in_service(place)
            assert not place.source.exists(), nth
            went_on |= killed_at(nth, lambda place=place: place.installation(source=False).remove())
            assert len(place.parties()) <= 1, nth
            if place.machine.path(services.service().record).exists():
                place.installation(source=False).remove()
            assert place.parties() == [place.source], nth
            assert owners(place.person) == {PERSON.uid}, nth
        nth += stride
    assert nth > 40


def test_sudo_line_of_service_install_states_home_and_state_folders(place, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    with raises(ConfigurationError, "not-root") as refused:
        place.installation().install()
    program = Path(sys.executable).parent / "undersong-party"
    words = ["sudo", str(program), "service", "install", "--home", str(place.source), "--state", str(place.state)]
    assert shlex.split(refused.value.remedy) == words
