"""``undersong audit`` notices each planted mistake that is a loss of privacy, and accuses no harmless one."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.doubles.party_home import HashedEmbedder
from tests.doubles.tasks import make_task
from tests.planted.privacy import MISTAKES
from undersong import auditing
from undersong.auditing import AuditReport, AuditSettings
from undersong_common.embedding import Embedder
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

FEW, MANY = 4, 64
PATIENTS = ('privacy.unit="user"', "privacy.max_per_user=2")
WASP = 'name = "wasp"\nsamples = 24\nrounds = 3\nvotes = 3\nexamples = 4\nshortlist = 4'
DPGA = 'name = "dpga"\npopulation = 16\nelite = 4\nrounds = 2\nkeywords = false\nembedding_size = 48'
TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "records": (WASP, ()),
    "patients": (WASP, PATIENTS),
    "sums of patients": (WASP, (*PATIENTS, 'privacy.user_contribution="sum"')),
    "subsamples": (DPGA, ()),
}
# A mistake of the noise and the harmless one; the others take longer and run with the slow tests.
QUICK = (
    "component 0 is drawn from the anchor",
    "rounding is to the nearest integer",
)
PLANTED = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MISTAKES]
SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]

pytestmark = pytest.mark.heavy


def audited(folder: Path, monkeypatch: pytest.MonkeyPatch, task: str, seed: int, runs: int) -> AuditReport:
    """The audit of a small task in this process, where the mistake is planted."""
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    monkeypatch.setattr(auditing, "_loaded", cache(auditing._loaded.__wrapped__))
    method, keys = TASKS[task]
    file = make_task(folder / "task", records=12)
    file.write_text(re.sub(r"(?<=\[method\]\n)[^\[]*", method + "\n", file.read_text("utf-8")), "utf-8")
    settings = AuditSettings(file, keys, runs=runs, canaries=8, seed=seed)
    run_plan = plan_run(tasks.load(file, list(keys)))
    return auditing.report(settings, run_plan, [auditing.observe(settings, run) for run in range(runs)])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PLANTED)
def test_audit_notices_what_is_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seed: int) -> None:
    planted = MISTAKES[name]
    planted.change(monkeypatch)
    runs = MANY if "B" in planted.noticed_by else FEW
    faults = audited(tmp_path, monkeypatch, planted.task, seed, runs).faults
    assert bool(faults) == bool(planted.noticed_by), faults


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_audit_accuses_no_sound_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    assert audited(tmp_path, monkeypatch, task, 0, FEW).faults == []
