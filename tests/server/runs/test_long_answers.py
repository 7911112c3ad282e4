"""A plan says where a generator's answers end before the texts that the task asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.tasks import make_task
from undersong_server.operations.tasks import task_faults
from undersong_server.runs.task import load

ENDPOINT = "{name='model', kind='openai', model='m', base_url='http://localhost:1/v1', api_key_env='', max_tokens=%d}"


@pytest.mark.parametrize(("tokens", "at_fault"), [(512, True), (2249, True), (2250, False)])
def test_plan_refuses_max_tokens_too_small_for_the_longest_text(tmp_path: Path, tokens: int, at_fault: bool) -> None:
    given = ["task.words=[600, 1500]", f"generators=[{ENDPOINT % tokens}]"]
    faults = [
        problem
        for problem, _ in task_faults(load(make_task(tmp_path), given), environment={})
        if "answers end" in problem
    ]
    assert bool(faults) == at_fault
