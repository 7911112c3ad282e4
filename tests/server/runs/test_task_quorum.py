"""What [federation] leaves out has its default."""

from __future__ import annotations

import pytest

from undersong_common.program import configuration
from undersong_server.runs.task import Task


@pytest.mark.parametrize(
    ("parties", "stated", "expected"),
    [(5, None, True), (201, None, True), (201, False, False), (5, False, False)],
)
def test_masks_are_post_quantum_unless_the_file_says_otherwise(parties, stated, expected):
    value = {
        "task": {"name": "triage", "description": "a note", "labels": ["a", "b"]},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "federation": {"parties": parties} | ({} if stated is None else {"post_quantum": stated}),
        "method": {"name": "wasp"},
    }
    task = configuration.validate(Task, value, "the task file")
    assert task.quorum().post_quantum is expected
