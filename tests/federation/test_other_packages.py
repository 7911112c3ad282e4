"""A statistic of another package over whole federations: refused until it is trusted, and again once it has changed.

With daemons as processes, each hospital and the coordinator has an installation of its own, which shows by a file
beside it whether anybody has imported the package there.
"""

from __future__ import annotations

import json

import pytest

from tests.doubles import foreign_package
from tests.doubles.foreign_package import NAME
from tests.doubles.hospitals import (
    HOSPITALS,
    Federation,
    clinic_task,
    exported,
    simulated,
    some_notes,
)
from tests.doubles.party_home import HashedEmbedder
from undersong_common.embedding import Embedder

pytestmark = pytest.mark.slow

SEED = 7
NAMES = HOSPITALS[:3]
CHANGED = NAMES[1]
METHOD = '[method]\nname = "sentences"\nsamples = 24\nkeep = 12\nmost = 3\n'
SHOWS = "\n\nfrom pathlib import Path\n\n(Path(__file__).parents[1] / 'imported').touch()\n"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The folder of packages at each place; the operator's commands of this process use the coordinator's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    folders = {name: foreign_package.write(tmp_path / "packages" / name) for name in ("coordinator", *NAMES)}
    for folder in folders.values():
        with (folder / "sentences" / "statistic.py").open("a") as program:
            program.write(SHOWS)
    with foreign_package.installed(folders["coordinator"]):
        yield folders


def made(tmp_path, installed) -> Federation:
    notes = some_notes(tmp_path / "notes", 12, NAMES)
    federation = Federation(tmp_path, notes, noise_seed=SEED, weights=False, packages=installed)
    head, _, tail = clinic_task(tmp_path).read_text().partition("[method]")
    task = head.replace("parties = 5", "parties = 3").replace("colluders = 1", "colluders = 0")
    federation.task = tmp_path / "sentences.toml"
    federation.task.write_text(f"{task}{METHOD}\n{tail[tail.index('[[generators]]') :]}")
    return federation


def hash_shown(each) -> str:
    """What its people read of the statistic before they trust it."""
    (found,) = json.loads(each("policy", "plugins", "--json"))["statistics"]
    assert found["name"] == NAME
    return str(found["source"])


def trust(federation) -> None:
    for each in federation.hospitals.values():
        each("policy", "trust", NAME, hash_shown(each))


def change(folder) -> None:
    with (folder / "sentences" / "statistic.py").open("a") as program:
        program.write("\n# another release\n")


def imported(installed) -> list[str]:
    return [name for name in NAMES if (installed[name] / "imported").exists()]


def spent(federation) -> list[float]:
    return [json.loads(each("budget", "show", "--json"))["spent_epsilon"] for each in federation.hospitals.values()]


def refused(federation, run, words, *, by=NAMES) -> None:
    """The run has failed by a refusal, which names the party and the reason."""
    status = federation.wait(run, ["failed", "finished", "stopped"], 300.0)
    assert status["state"] == "failed", status
    assert words in status["error"]["problem"]
    (name,) = [name for name in by if f"{name} refuses" in status["error"]["problem"]]
    requests = json.loads(federation.hospitals[name]("requests", "--json"))["requests"]
    assert [words in each["objection"] for each in requests if each["run"] == run] == [True]  # its people read it too


def holds(federation, folder, run) -> None:
    """Exported, verified, and byte for byte what the simulation in one process writes."""
    assert exported(federation, run, folder / "published")["parties"] == list(NAMES)
    alone = simulated(federation.task, folder / "simulated", federation, [], SEED, run)
    rows = (folder / "published" / "synthetic.jsonl").read_bytes()
    assert rows == (alone / "synthetic.jsonl").read_bytes()
    assert 1 <= len(rows.splitlines()) <= 12


@pytest.mark.timeout(600)
def test_daemons_answer_a_foreign_statistic_while_its_hash_is_trusted(installed, tmp_path):
    with made(tmp_path, installed) as federation:
        federation.set_up()

        def start(run):
            federation.operator(
                *("run", "plan", federation.task, "--name", run, "--insecure-noise-seed", SEED, "--patience", 60)
            )
            federation.operator("run", "start", run)

        start("first")
        refused(federation, "first", f"this party does not trust the statistic '{NAME}'")
        assert imported(installed) == []
        assert spent(federation) == [0, 0, 0]

        trust(federation)  # at once, without a restart of a daemon
        federation.operator("run", "resume", "first")
        federation.wait("first", ["finished"], 120.0)
        assert imported(installed) == list(NAMES)
        before = spent(federation)
        assert min(before) > 0
        holds(federation, tmp_path, "first")

        # one hospital installs another release than it has trusted
        changed = federation.hospitals[CHANGED]
        changed.daemon.end()
        change(installed[CHANGED])
        (installed[CHANGED] / "imported").unlink()
        changed.daemon.start()
        start("second")
        refused(federation, "second", "here that name is no other package's", by=[CHANGED])
        assert CHANGED not in imported(installed)

        # the coordinator has that release too: the others refuse it, and after they have read it everybody answers
        federation.coordinator.end()
        change(installed["coordinator"])
        foreign_package.forget()
        federation.coordinator.start()
        start("third")
        refused(federation, "third", f"this party trusts the statistic '{NAME}' with the source")
        assert spent(federation) == before
        for name, each in federation.hospitals.items():
            if name != CHANGED:
                each.daemon.end()
                change(installed[name])
                each.daemon.start()
        trust(federation)
        federation.operator("run", "resume", "third")
        federation.wait("third", ["finished"], 120.0)
        assert min(spent(federation)) > max(before)
