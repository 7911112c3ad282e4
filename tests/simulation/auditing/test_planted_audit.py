"""``undersong audit`` notices each planted mistake that is a loss of privacy, and accuses no harmless one."""

from pathlib import Path

import pytest

from tests.planted.audits import TASKS, audit_small_task
from tests.planted.privacy import MISTAKES

FEW, MANY = 4, 64  # runs
CANARIES = 8
# The others run with the slow tests, the harmless ones too; test_audit.py beside this file audits a sound build.
QUICK = ("component 0 is drawn from the anchor",)
PLANTED = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MISTAKES]
SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]

pytestmark = pytest.mark.heavy


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PLANTED)
def test_audit_notices_each_planted_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    planted = MISTAKES[name]
    planted.change(monkeypatch)
    runs = MANY if "B" in planted.noticed_by else FEW
    faults = audit_small_task(tmp_path, monkeypatch, planted.task, seed, runs, CANARIES).faults
    assert bool(faults) == bool(planted.noticed_by), faults


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_audit_accuses_no_build_without_a_planted_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    assert audit_small_task(tmp_path, monkeypatch, task, 0, FEW, CANARIES).faults == []
