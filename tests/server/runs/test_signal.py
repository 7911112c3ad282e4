"""Plans and simulations say, by one function, which answers will be noise."""

from __future__ import annotations

from pathlib import Path

from tests.doubles.tasks import make_task
from undersong_server.runs.planning import RunPlan, noise_warnings, plan_figures, plan_run
from undersong_server.runs.task import load


def planned(folder: Path, *options: str) -> RunPlan:
    return plan_run(load(make_task(folder, samples=24), list(options)))


def test_plan_states_the_expected_signal_when_records_are_declared(tmp_path: Path) -> None:
    for option in ("privacy.expected_records=300", "data.file_records=300"):
        declared = plan_figures(planned(tmp_path, option))
        said = [*declared.method_notes, *declared.weak]
        assert any(sentence.startswith("votes/1: ") and "of 300 records" in sentence for sentence in said), option
    silent = plan_figures(planned(tmp_path))
    assert not any("records" in sentence for sentence in (*silent.method_notes, *silent.weak))


def test_simulation_and_plan_warn_of_the_same_noisy_sums(tmp_path: Path) -> None:
    for records in (10, 100_000):
        run = planned(tmp_path, f"privacy.expected_records={records}")
        told = [warning for warning in plan_figures(run).weak if "will be noise" in warning]
        assert told == list(noise_warnings(run, records))
        assert bool(told) == (records == 10)
    assert not list(noise_warnings(planned(tmp_path, "privacy.epsilon=inf"), 10))
