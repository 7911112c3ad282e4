"""The cost that a plan states is of prompts as they will be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.tasks import make_task
from undersong_server.runs.planning import plan_figures, plan_run
from undersong_server.runs.task import load

ENDPOINT = """
[[generators]]
name = "far"
kind = "openai"
model = "tiny"
base_url = "https://far.example/v1"
max_tokens = 400
price_per_1k_prompt = 1.0
price_per_1k_completion = 2.0
"""


def cost(folder: Path, **task: object) -> tuple[tuple[int, int], tuple[float, float]]:
    path = make_task(folder, samples=90, task=task)
    path.write_text(path.read_text(encoding="utf-8").partition("[[generators]]")[0] + ENDPOINT, encoding="utf-8")
    figures = plan_figures(plan_run(load(path, ["method.examples=8"])))
    assert figures.cost is not None
    assert figures.cost.price_usd is not None
    return figures.cost.tokens, figures.cost.price_usd


def test_plan_s_expected_time_is_a_range_that_grows_with_the_work(tmp_path: Path) -> None:
    def seconds(*given: str, parties: int = 3) -> tuple[float, float]:
        path = make_task(tmp_path / str(parties), samples=90, parties=parties)  # its generators count no tokens
        return plan_figures(plan_run(load(path, list(given)))).cost.seconds

    least = seconds()
    assert 0 < least[0] < least[1] < 4 * least[0]
    more = [seconds("method.samples=9000"), seconds(parties=20), seconds("task.words=[900, 1500]")]
    assert all(low > least[0] and high > least[1] for low, high in more)


def test_estimated_tokens_and_price_cover_eight_long_examples(tmp_path: Path) -> None:
    (_, short), _ = cost(tmp_path / "short", words=[10, 12])
    (low, long), (cheap, dear) = cost(tmp_path / "long", words=[200, 240])
    assert long >= 90 * (8 * 240 + 400)
    assert long - short >= 90 * 8 * 200
    assert 90 * 200 < low < 90 * 600  # a prompt without examples, and the shortest text
    assert cheap < dear
    assert dear >= long / 1000


def test_plan_states_the_number_of_batches_and_that_each_may_take_a_day(tmp_path: Path) -> None:
    def planned(keys: str) -> tuple[str, float]:
        path = make_task(tmp_path / keys[:5], samples=90)
        path.write_text(path.read_text(encoding="utf-8").partition("[[generators]]")[0] + ENDPOINT + keys, "utf-8")
        figures = plan_figures(plan_run(load(path, [])))
        return " ".join(figures.method_notes), figures.cost.seconds[1]

    words, longest = planned("batch = true\n")
    assert "generator far: asks by batches, each answered within a day: up to 3 for each step" in words
    assert longest >= 86400
    words, longest = planned("concurrency = 8\n")
    assert "batches" not in words
    assert longest < 86400


@pytest.mark.heavy
def test_worst_case_epsilon_names_how_many_colluders_it_assumes(tmp_path: Path) -> None:
    of_five, of_two = (
        plan_figures(plan_run(load(make_task(tmp_path / str(parties), parties=parties)))) for parties in (5, 2)
    )
    assert of_five.epsilon_if_all_others_collude is not None
    assert of_two.epsilon_if_all_others_collude is not None
    assert of_two.epsilon_if_all_others_collude < of_five.epsilon_if_all_others_collude
    assert of_five.worst_case_words == "if all 4 other hospitals help the coordinator"
    assert of_two.worst_case_words == "if the other hospital helps the coordinator"
    for figures in (of_five, of_two):
        helpers = f"no more than {figures.quorum.colluders} of the {figures.quorum.parties} hospitals help"
        assert f"Tell the hospitals the promise, epsilon 4: a budget counts it, and it holds while {helpers}" in (
            figures.collusion_words
        )
        assert figures.worst_case_words in figures.collusion_words
