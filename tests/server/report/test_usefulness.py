"""What a run trains and judges when it has ended."""

import pytest

from tests.doubles.tasks import JUDGED, make_task
from undersong_common.text.table import Table
from undersong_server.report import usefulness
from undersong_server.runs.task import load


class Trained(Exception):
    """Ends the evaluation where its models would be trained."""


def test_evaluation_settings_of_a_task_reach_the_task_models(tmp_path, monkeypatch):
    stated = {"repeats": 3, "epochs": 2, "batch": 5, "learning_rate": 0.25, "max_tokens": 7}
    task = load(make_task(tmp_path, evaluation={**JUDGED, **stated}))
    table = Table(("a", "b"), ("kitchen", "garden"), None)
    seen = []

    def evaluate(_name, _corpus, options, **_):
        seen.append(options)
        raise Trained

    monkeypatch.setattr(usefulness, "evaluate_tables", evaluate)
    with pytest.raises(Trained):
        usefulness.figures(task, {usefulness.OURS: table}, table, embed=lambda texts: None, seed=11)
    (options,) = seen
    assert {name: getattr(options, name) for name in stated} == stated
    assert (options.head, options.seed) == ("linear", 11)
