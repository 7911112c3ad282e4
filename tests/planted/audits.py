"""Runs ``undersong audit`` over each planted mistake at its default size.

``python -m tests.planted.audits FILE --seeds 1 2 3`` appends one line of JSON per mistake and seed to FILE, and goes on
where an earlier call ended. The task is small: each run is a whole simulation all the same. Exit code 1 where an audit
misses a mistake or accuses a harmless change.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.party_home import HashedEmbedder
from tests.doubles.tasks import make_task
from tests.planted.privacy import MISTAKES, Mistake
from undersong.auditing import run as auditing
from undersong.auditing import verdict
from undersong.auditing.verdict import DEFAULT_RUNS, AuditReport, AuditSettings
from undersong_common.models.embedding import Embedder
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

CANARIES = 16  # default of the command
FEW_RUNS = 4  # in which a mistake marked "A" must be noticed
LOOKS = (2, 4, 8, 16, 32)  # runs after which an audit may end early
SOUND = "nothing is planted"
PATIENTS = ('privacy.unit="user"', "privacy.max_per_user=2")
WASP = 'name = "wasp"\nsamples = 24\nrounds = 3\nvotes = 3\nexamples = 4\nshortlist = 4'
MIXTURE = 'name = "mixture+labels"\nsamples = 24'
DPGA = 'name = "dpga"\npopulation = 16\nelite = 4\nrounds = 2\nkeywords = false\nembedding_size = 48'
TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "records": (WASP, ()),
    "patients": (WASP, PATIENTS),
    "sums of patients": (WASP, (*PATIENTS, 'privacy.user_contribution="sum"')),
    "means of patients": (MIXTURE, PATIENTS),
    "subsamples": (DPGA, ()),
}


def audit_small_task(
    folder: Path, monkeypatch: pytest.MonkeyPatch, task: str, seed: int, runs: int, canaries: int
) -> AuditReport:
    """Audits one of ``TASKS`` in this process, where a mistake may be planted.

    It ends before ``runs`` where it has a fault that further runs could not take back.
    """
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    monkeypatch.setattr(auditing, "_load_embedder", cache(auditing._load_embedder.__wrapped__))
    method, keys = TASKS[task]
    file = make_task(folder / "task", records=12)
    file.write_text(re.sub(r"(?<=\[method\]\n)[^\[]*", method + "\n", file.read_text("utf-8")), "utf-8")
    settings = AuditSettings(file, keys, runs=runs, canaries=canaries, seed=seed)
    run_plan = plan_run(tasks.load(file, list(keys)))
    observations: list[verdict.Observations] = []
    while len(observations) < runs:
        observations.append(auditing.observe(settings, len(observations)))
        if len(observations) in (runs, *LOOKS):
            report = verdict.report(replace(settings, runs=len(observations)), run_plan, observations)
            if lasting_faults(report, observations):
                break
    return report


def lasting_faults(report: AuditReport, observations: Sequence[verdict.Observations]) -> list[str]:
    """Returns the faults that no further run takes back: of single runs, and the largest move and clamp of all."""
    findings = tuple(finding for seen in observations for finding in seen.findings)
    return replace(report, noise=None, excess=0.0, verdicts=(), findings=findings).faults


def audit_mistake(name: str, mistake: Mistake, seed: int, runs: int) -> dict[str, Any]:
    """Plants a mistake and audits; returns what the audit said and what it took."""
    began_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        mistake.change(monkeypatch)
        report = audit_small_task(Path(folder), monkeypatch, mistake.task, seed, runs, CANARIES)
    return {
        "mistake": name,
        "seed": seed,
        "runs": runs,
        "ended_after": report.runs,
        "as_listed": bool(report.faults) == bool(mistake.noticed_by),
        "faults": report.faults,
        "processor_s": round(time.process_time() - began_s, 1),
    }


def listed_mistakes() -> dict[str, Mistake]:
    """Returns the mistakes, and the sound build under each task; those that need many runs come first."""
    sound = {f"{SOUND} ({task})": Mistake(lambda _monkeypatch: None, "", task) for task in TASKS}
    listed = {**MISTAKES, **sound}
    order = sorted(listed, key=lambda name: (listed[name].task == "subsamples", "A" in listed[name].noticed_by))
    return {name: listed[name] for name in order}


def read_finished(file: Path) -> set[tuple[str, int, int]]:
    """Returns name, seed and number of runs of each audit in the file."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return {(line["mistake"], line["seed"], line["runs"]) for line in map(json.loads, lines)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--marked", default="", help="only mistakes that are marked with this letter")
    parser.add_argument("--few", action="store_true", help=f"{FEW_RUNS} runs for what is marked with A")
    options = parser.parse_args(arguments)
    for seed in options.seeds:
        marked = {name: each for name, each in listed_mistakes().items() if options.marked in each.noticed_by}
        for name, mistake in marked.items():
            runs = FEW_RUNS if options.few and "A" in mistake.noticed_by else DEFAULT_RUNS
            if (name, seed, runs) not in read_finished(options.file):
                line = json.dumps(audit_mistake(name, mistake, seed, runs))
                with options.file.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
                print(line, flush=True)
    wrong = [line for line in options.file.read_text("utf-8").splitlines() if not json.loads(line)["as_listed"]]
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
