"""From the last release's wheel to this program, back, and away: nothing is lost, whatever either of them refuses."""

import json
import shutil
import subprocess
import sys
import tarfile

import pytest

from tests.doubles.coded import raises
from tests.doubles.party_home import write_notes
from tests.doubles.processes import HOSPITAL, ROOT, command, environment
from tests.doubles.typed import typed
from tools import wheels
from undersong.cli import app as operator_app
from undersong_client.cli.app import app as hospital_app
from undersong_client.consent import policy
from undersong_client.home import PartyHome
from undersong_client.storage import datasets
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy.ledger import Ledger
from undersong_common.program import entry

pytestmark = pytest.mark.slow

RELEASE = "7c21bf3a006394e0d49705f71215cbd48753edaa"  # CHANGELOG.md's 0.2.0
CHARGE = """
import sys
from pathlib import Path
from undersong_client import datasets, policy
from undersong_client.state import PartyHome
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import Charge
home = PartyHome(Path(sys.argv[1]))
ledger, kept = datasets.open_ledger(home, policy.read(home), Path(sys.argv[2]) / "undersong" / "ledgers", at=2.0)
ledger.charge(Charge("run", "00" * 32, "votes/1", 0, (Gaussian(5.0),)))
kept.keep(ledger)
"""


class Release:
    """The programs of the last release, in a folder of their own, with a hospital and a coordinator they set up."""

    def __init__(self, folder):
        self.folder = folder
        archive = folder / "release.tar"
        found = subprocess.run(["git", "-C", ROOT, "archive", RELEASE, "-o", archive], capture_output=True, check=False)
        if found.returncode:
            pytest.skip("this checkout has no history back to the last release")
        with tarfile.open(archive) as packed:
            packed.extractall(folder / "source")
        self.site = wheels.install(folder / "site", wheels.build(folder / "source", folder / "wheel"))
        self.data = folder / "machine"
        self.data.mkdir()
        self.notes = write_notes(self.data / "notes.jsonl")
        self.party, self.home = self.data / "party", self.data / "coordinator"

    def __call__(self, program, *arguments):
        done = self.run(self.site / "bin" / program, *arguments)
        assert done.returncode == 0, f"{program} {arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run(self, *command):
        own = environment(PYTHONPATH=str(self.site), XDG_STATE_HOME=str(self.data / "state"))
        return subprocess.run([sys.executable, *map(str, command)], env=own, capture_output=True, text=True)


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    made = Release(tmp_path_factory.mktemp("release"))
    made("undersong", "coordinator", "init", "--address", "localhost:7443", "--metrics", "", "--home", made.home)
    at = ("--home", made.party)
    made("undersong-party", "init", "alpha", *at)
    made("undersong-party", "data", "add", made.notes, "--label-field", "label", "--user-field", "patient", *at)
    made("undersong-party", "budget", "set", "--epsilon", 8, "--delta", "1e-4", *at)
    done = made.run("-c", CHARGE, made.party, made.data / "state")
    assert done.returncode == 0, done.stderr
    return made


def read_files(folder):
    """Contents by name, without what SQLite makes beside a database that is open."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


@pytest.fixture
def machine_folder(release, tmp_path, monkeypatch):
    """A copy of the release's folders, on which this program's commands run."""
    folder = tmp_path / "machine"
    shutil.copytree(release.data, folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    return folder


COLUMNS = ("--label-field", "label", "--user-field", "patient")


def test_folders_of_the_last_release_are_refused_and_stay_usable_by_it(release, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(release.data / "state"))
    monkeypatch.setattr(entry, "only_tls_1_3", lambda: None)  # earlier tests of this process have imported gRPC
    before = read_files(release.data)
    for words in (
        ("run",),
        ("check", "--offline"),
        ("ledger",),
        ("data", "add", release.notes, *COLUMNS),
        ("restore-ledger", "--charge-missing"),
    ):
        with raises(ConfigurationError, "other-version"):
            type_hospital(*words, "--home", release.party)
    for words in (("parties",), ("coordinator", "backup", release.folder / "backup")):
        with raises(ConfigurationError, "registry-version"):
            type_operator(*words, "--home", release.home)
    done = command(HOSPITAL, ["ledger", "--json", "--home", release.party])
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "other-version")
    assert read_files(release.data) == before
    # rollback: the old wheel, the same folders
    assert "the chain holds" in release("undersong-party", "ledger", "--verify", "--home", release.party)
    release("undersong", "parties", "--home", release.home)


def test_hospital_s_new_folder_after_an_upgrade_keeps_its_spending(release, machine_folder):
    old, new = machine_folder / "party", machine_folder / "new"
    type_hospital("init", "alpha", "--home", new)
    shutil.copytree(old / "keys", new / "keys", dirs_exist_ok=True)
    shutil.copy(old / "policy.json", new)
    add = ("data", "add", machine_folder / "notes.jsonl", *COLUMNS, "--home", new)
    with raises(PrivacyRefusal, "ledger-missing"):  # the checkpoints outside the folder know of a charge
        type_hospital(*add)
    type_hospital(*add, "--restore-ledger", old / "ledger.jsonl")
    ledger = Ledger.read(new / "ledger.jsonl")
    assert ledger.spent(1e-5) == pytest.approx(Ledger.read(old / "ledger.jsonl").spent(1e-5))
    assert ledger.spent(1e-5) > 0
    datasets.open_ledger(
        PartyHome(new), policy.read(PartyHome(new)), machine_folder / "state" / "undersong" / "ledgers", at=9.0
    )


def type_hospital(*arguments):
    """A command of this program in this process; raises its error."""
    _raised(typed(hospital_app, *arguments))


def type_operator(*arguments):
    _raised(typed(operator_app, *arguments))


def _raised(done):
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
