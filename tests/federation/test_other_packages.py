"""A statistic of another package over a whole federation: every hospital refuses it and imports nothing of it.

With daemons as processes, each hospital and the coordinator has an installation of its own, which shows by a file
beside it whether anybody has imported the package there.
"""

from __future__ import annotations

import json

import pytest

from tests.doubles import foreign_package
from tests.doubles.foreign_package import NAME
from tests.doubles.hospitals import HOSPITALS, Federation, clinic_task, some_notes
from tests.doubles.party_home import HashedEmbedder, sign_former_trust
from undersong_common.models.embedding import Embedder

pytestmark = pytest.mark.slow

SEED = 7
NAMES = HOSPITALS[:3]
TRUSTING = NAMES[1]
METHOD = '[method]\nname = "sentences"\nsamples = 24\nkeep = 12\nmost = 3\n'
SHOWS = "\n\nfrom pathlib import Path\n\n(Path(__file__).parents[1] / 'imported').touch()\n"


@pytest.fixture
def package_folders(tmp_path, monkeypatch):
    """The folder of packages at each place; the operator's commands of this process use the coordinator's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    folders = {name: foreign_package.write_package(tmp_path / "packages" / name) for name in ("coordinator", *NAMES)}
    for folder in folders.values():
        with (folder / "sentences" / "statistic.py").open("a") as program:
            program.write(SHOWS)
    with foreign_package.installed(folders["coordinator"]):
        yield folders


def make_federation(tmp_path, installed) -> Federation:
    notes = some_notes(tmp_path / "notes", 12, NAMES)
    federation = Federation(tmp_path, notes, noise_seed=SEED, weights=False, packages=installed)
    head, _, tail = clinic_task(tmp_path).read_text().partition("[method]")
    task = head.replace("parties = 5", "parties = 3").replace("colluders = 1", "colluders = 0")
    federation.task = tmp_path / "sentences.toml"
    federation.task.write_text(f"{task}{METHOD}\n{tail[tail.index('[[generators]]') :]}")
    return federation


def imported(installed) -> list[str]:
    return [name for name in NAMES if (installed[name] / "imported").exists()]


def spent(federation) -> list[float]:
    return [json.loads(each("budget", "show", "--json"))["spent_epsilon"] for each in federation.hospitals.values()]


@pytest.mark.timeout(600)
def test_daemons_refuse_another_package_s_statistic_even_if_once_trusted(package_folders, tmp_path):
    with make_federation(tmp_path, package_folders) as federation:
        federation.set_up()
        trusting = federation.hospitals[TRUSTING]
        signed = sign_former_trust(trusting.home, NAME)
        trusting.daemon.end()
        trusting.daemon.start()
        options = ("--name", "first", "--insecure-noise-seed", SEED, "--patience", 60)
        federation.operator("run", "plan", federation.task, *options)
        federation.operator("run", "start", "first")
        status = federation.wait("first", ["failed", "finished", "stopped"], 300.0)
        words = f"the statistic '{NAME}' is another package's"
        assert status["state"] == "failed", status
        assert words in status["error"]["problem"]
        refusing = [name for name in NAMES if f"{name} refuses" in status["error"]["problem"]]
        assert refusing
        for name in refusing:
            (request,) = json.loads(federation.hospitals[name]("requests", "--json"))["requests"]
            assert words in request["objection"]  # The hospital's people read the refusal too.
        assert imported(package_folders) == []
        assert spent(federation) == [0, 0, 0]
        assert (trusting.home / "policy.json").read_bytes() == signed
        assert f"({NAME})" in trusting("status")
        assert trusting.daemon.text().count(f"({NAME})") == 1
