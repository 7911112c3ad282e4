"""Schedules: options of a method that list one value a round decide its plan, its orders and its prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.doubles.bench import run_method
from tests.doubles.tasks import make_task
from tests.doubles.topic_writer import topic_writer
from undersong_common.errors import ConfigurationError
from undersong_server.prompts.rendering import MASK
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load

GENETIC = ["elite=8", "rounds=2", "keywords=false", "length=false", "embedding_size=48"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "written", "voted"),
    [
        ("wasp", ["samples=[30, 10, 20]", "rounds=3"], [30, 10, 20], [30, 40]),
        ("fusegen", ["samples=[30, 10]", "rounds=2"], [30, 10], []),
        ("augpe", ["samples=[40, 20, 10]", "rounds=3"], [40, 20, 10], [40, 40]),
        ("augpe", ["samples=[30, 20, 10]", "rounds=3", "selection=sampling"], [30, 20, 10], [30, 20]),
        ("augpe", ["corpus=[40, 20, 30]", "rounds=3"], [40, 10, 15], [40, 20]),
        ("augpe", ["samples=[40, 20, 10]", "rounds=3", "corpus=selected"], [40, 20], [40, 40]),
        ("pretext", ["samples=[20, 10]", "rounds=2", "seeds=0.5"], [20, 10, 30], [20, 10]),
        ("dpga", ["population=[24, 40]", "corpus=population", *GENETIC], [24, 32, 32], [24, 40]),
        ("dpga", ["population=[24, 40]", "corpus=elite", *GENETIC], [24, 32], [24, 40]),
        ("dpga", ["population=[24, 24]", *GENETIC], [24, 16], [24, 24]),
        ("undersong", ["samples=[40, 20]", "rounds=2", "score=false"], [40, 20], [40]),
    ],
)
def test_schedule_list_sets_the_orders_and_votes_of_every_round(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    options: Sequence[str],
    written: list[int],
    voted: list[int],
) -> None:
    topic_writer(monkeypatch)
    path = make_task(tmp_path, parties=1, records=200)
    changes = [f"method.{option}" for option in options]
    task = load(path, [f"method.name={method}", "privacy.epsilon=inf", *changes])
    run_plan = plan_run(task)
    candidates = [planned.parameters.get("candidates") for planned in run_plan.plan.sums]
    assert [count for count in candidates if count is not None] == voted
    corpus, made = run_method(task, run_plan, seed=3)
    counts = Counter(sample.round for sample in made.pool.samples)
    assert [counts[t] for t in range(len(written))] == written
    assert len(corpus) <= sum(written)
    assert set(range(len(voted))) <= set(made.corpora)  # what stands after a round has its figures
    if method != "undersong":  # which counts the texts besides that it may have to order anew
        assert made.ordered == run_plan.generator_calls == sum(written)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("augpe", ["samples=60", "rounds=3", "mask_rate=[0.5, 1.0, 0.1]"]),
        ("pretext", ["samples=60", "rounds=3", "mask_rate=[0.5, 1.0, 0.1]"]),
        ("dpga", ["population=24", "corpus=elite", "mask_rate=[1.0, 0.1, 0.5]", *GENETIC, "rounds=3"]),
    ],
)
def test_mask_rate_schedule_sets_the_share_of_hidden_words_of_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, options: Sequence[str]
) -> None:
    asked = topic_writer(monkeypatch)
    path = make_task(tmp_path, parties=1, records=200)
    changes = [f"method.{option}" for option in options]
    task = load(path, [f"method.name={method}", "privacy.epsilon=inf", *changes])
    run_method(task, plan_run(task), seed=3)
    requests = [request for _, request in asked if request.kind == "fill_in"]
    assert [request.mask_rate for request in requests] == sorted((each.mask_rate for each in requests), reverse=True)
    assert {request.mask_rate for request in requests} == {1.0, 0.1}
    for request in requests:
        if request.mask_rate == 1.0:
            assert " ".join([MASK] * len(request.parents[0].split())) in request.prompt


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["name=wasp", "samples=[30, 10]", "rounds=3"], "samples lists 2 values and rounds is 3"),
        (["name=augpe", "mask_rate=[0.5]"], "mask_rate lists 1 values and rounds is 5"),
        (["name=augpe", "corpus=[10, 60]", "rounds=2"], "a population of 60 texts needs 30 selected ones"),
        (["name=dpga", "population=[20, 8]", *GENETIC], "elite must be smaller"),
        (["name=dpga", "population=[20, 20]", "samples=90", *GENETIC], "leave out samples"),
        (["name=fusegen", "samples=[30, 0]", "rounds=2"], "samples"),
        (["name=dpkps", "samples=[30, 10]"], "samples"),
        *(
            ([f"name={method}", "rounds=1001"], "rounds: is above 1000")
            for method in ("undersong", "augpe", "dpga", "fusegen", "pretext", "tuned", "wasp")
        ),
    ],
)
def test_schedule_of_the_wrong_length_is_refused_naming_its_key(tmp_path: Path, options: list[str], key: str) -> None:
    path = make_task(tmp_path, parties=1, records=20)
    with pytest.raises(ConfigurationError) as refused:
        plan_run(load(path, [f"method.{option}" for option in options]))
    assert key in str(refused.value)
