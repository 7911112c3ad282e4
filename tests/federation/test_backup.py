"""A coordinator that is lost in the middle of a run: its backup goes into an empty folder, and the run ends there."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.doubles.alliance import Alliance
from tests.doubles.pace import slow_after
from tests.doubles.party_home import HashedEmbedder
from undersong_common.errors import PrivacyRefusal
from undersong_common.models.embedding import Embedder
from undersong_server.coordinator import run_driver
from undersong_server.federation.sums import Federation

pytestmark = pytest.mark.heavy

NAMES = ("alpha", "beta", "gamma")


@pytest.fixture
def backed_up_alliance(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    with Alliance(tmp_path, NAMES) as made:
        yield made


def after_a_sum(monkeypatch, number, act):
    """Calls ``act`` once, when the sum of that number has been opened."""
    original, opened = Federation.private_sum, []

    def private_sum(self, *arguments, **options):
        found = original(self, *arguments, **options)
        opened.append(found)
        if len(opened) == number:
            act()
        return found

    monkeypatch.setattr(Federation, "private_sum", private_sum)


def replaced(alliance, backup):
    """The coordinator's folder is gone, and another machine serves what the backup holds."""
    alliance.halt()
    shutil.rmtree(alliance.home)
    restored = json.loads(alliance.operator("coordinator", "restore", backup, "--json"))
    alliance.serve()
    alliance.until(lambda: sorted(alliance.coordinator.server.connected) == sorted(alliance.hospitals))
    return restored


@pytest.mark.slow
def test_coordinator_restored_from_a_live_backup_finishes_its_run(backed_up_alliance, monkeypatch, tmp_path):
    backup = tmp_path / "backup"

    def lost():
        backed_up_alliance.operator("coordinator", "backup", backup)
        backed_up_alliance.coordinator.stop()

    after_a_sum(monkeypatch, 1, lost)
    backed_up_alliance.start("long")
    backed_up_alliance.until(lambda: not backed_up_alliance.coordinator.drives("long") and backup.exists())
    restored = replaced(backed_up_alliance, backup)
    assert restored["paused"] == ["long"]
    backed_up_alliance.until(lambda: backed_up_alliance.shown("long")["status"]["state"] == "paused")
    backed_up_alliance.operator("run", "resume", "long")
    backed_up_alliance.watch("long")
    backed_up_alliance.operator("export", "long", "--out", tmp_path / "published")
    verdict = backed_up_alliance.verdict(tmp_path / "published")
    assert verdict["holds"], verdict["faults"]
    sums = json.loads((tmp_path / "published" / "manifest.json").read_text())["sums"]
    for each in backed_up_alliance.hospitals.values():
        assert sorted(each.charges) == sorted(("long", name, 0) for name in sums)


@pytest.mark.slow
@pytest.mark.parametrize("same", slow_after([False, True], 1), ids=["other texts", "the same texts"])
def test_coordinator_restored_from_before_a_run_charges_nobody_again(same, backed_up_alliance, monkeypatch, tmp_path):
    backup = tmp_path / "backup"
    after_a_sum(monkeypatch, 1, lambda: backed_up_alliance.operator("coordinator", "backup", backup))
    backed_up_alliance.start("older")
    backed_up_alliance.watch("older")
    before = {name: each.charges for name, each in backed_up_alliance.hospitals.items()}
    build = run_driver.build_author
    if not same:
        monkeypatch.setattr(
            run_driver, "build_author", lambda *rest, seed, **named: build(*rest, seed=seed + 1, **named)
        )
    replaced(backed_up_alliance, backup)
    backed_up_alliance.operator("run", "resume", "older")
    backed_up_alliance.watch("older", code=0 if same else PrivacyRefusal.exit_code)
    assert {name: each.charges for name, each in backed_up_alliance.hospitals.items()} == before
