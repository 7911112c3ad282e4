"""Plans and simulations say, by one function, which answers will be noise."""

from __future__ import annotations

from pathlib import Path

from tests.doubles.tasks import make_task
from undersong_server.runs.planning import RunPlan, noise_warnings, plan_figures, plan_run
from undersong_server.runs.task import load


def planned(folder: Path, *options: str) -> RunPlan:
    return plan_run(load(make_task(folder, samples=24), list(options)))


def test_a_plan_states_the_signal_where_somebody_declared_the_records(tmp_path: Path) -> None:
    declared = plan_figures(planned(tmp_path, "privacy.expected_records=300")).method_notes
    assert any(note.startswith("votes/1: ") and "of 300 records" in note for note in declared)
    assert not any("records" in note for note in plan_figures(planned(tmp_path)).method_notes)


def test_a_simulation_warns_of_the_same_answers_that_the_plan_calls_noise(tmp_path: Path) -> None:
    for records in (10, 100_000):
        run = planned(tmp_path, f"privacy.expected_records={records}")
        told = [note for note in plan_figures(run).method_notes if "will be noise" in note]
        assert told == [f"{warning}." for warning in noise_warnings(run, records)]
        assert bool(told) == (records == 10)
    assert not list(noise_warnings(planned(tmp_path, "privacy.epsilon=inf"), 10))
