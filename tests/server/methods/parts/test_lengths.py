"""The private histogram of lengths: its share of the budget, and the lengths that are ordered by it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.doubles.bench import run_federated
from tests.doubles.tasks import make_task
from undersong_common.errors import ConfigurationError
from undersong_common.text.table import read_table
from undersong_protocol.agreement.plan import SumRequest
from undersong_protocol.statistics import LabelHistogram
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.generators.kinds.ngram import NgramGenerator
from undersong_server.methods.parts.metadata import (
    RANGE_EDGES,
    compare_lengths,
    length_quantiles,
    make_length_draw,
    with_lengths,
)
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load


def test_adding_the_length_sum_keeps_the_ratios_of_the_other_sums() -> None:
    sums = [SumRequest("a", LabelHistogram(2), 3.0), SumRequest("b", LabelHistogram(2), 1.0)]
    added = with_lengths(sums, 0.02)
    assert [request.name for request in added] == ["lengths", "a", "b"]
    assert added[1:] == sums
    assert added[0].budget_share / sum(request.budget_share for request in added) == pytest.approx(0.02)
    fixed = [SumRequest("a", LabelHistogram(2), noise_multiplier=3.0)]
    with pytest.raises(ConfigurationError, match=r"privacy\.lengths"):
        with_lengths(fixed, 0.02)


def opened(counts: dict[int, float], sigma: float) -> NoisySum:
    values = np.random.default_rng(0).normal(0.0, sigma, len(RANGE_EDGES) - 1)
    for words, count in counts.items():
        values[np.searchsorted(RANGE_EDGES, words, side="right") - 1] += count
    return NoisySum(np.rint(values * 256).astype(np.int64), 256, sigma, ("p",))


def test_drawn_lengths_follow_the_histogram_of_the_records_lengths() -> None:
    draw = make_length_draw(opened({9: 300.0, 30: 100.0}, 3.0))
    drawn = [draw(Random(seed)) for seed in range(4000)]
    assert 0.65 < np.mean([8 <= words < 11 for words in drawn]) < 0.8
    assert 0.2 < np.mean([26 <= words < 34 for words in drawn]) < 0.3
    assert draw(Random(5)) == draw(Random(5))
    assert min(make_length_draw(opened({}, 3.0))(Random(seed)) for seed in range(200)) >= 1


def test_length_quantiles_are_read_from_the_noisy_histogram() -> None:
    low, median, high = length_quantiles(opened({9: 300.0, 30: 100.0}, 3.0))
    assert 8 <= low < median < 11
    assert 26 < high < 34
    assert length_quantiles(opened({9: 300.0}, 0.0)) == pytest.approx([8.3, 9.5, 10.7])


@pytest.mark.parametrize(
    ("words", "said"),
    [(12, "as long as the records"), (33, "3.3 times as long"), (4, "0.4 times as long")],
)
def test_length_sentence_compares_the_texts_with_the_records_quantiles(words: int, said: str) -> None:
    sentence = compare_lengths([8.0, 10.0, 14.0], ["word " * words] * 5)
    assert said in sentence
    assert ("another" in sentence) == (words != 12)


@pytest.mark.heavy
def test_run_with_private_lengths_orders_texts_of_the_records_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_task(tmp_path, parties=3, records=60, privacy={"lengths": True, "epsilon": 16.0})
    task = load(path)
    plan = plan_run(task)
    assert plan.plan.sums[0].name == "lengths"
    words: list[int | None] = []
    answer = NgramGenerator.answer

    def spied(self, requests):
        words.extend(request.words for request in requests)
        return answer(self, requests)

    monkeypatch.setattr(NgramGenerator, "answer", spied)
    tables = {f"p{n}": read_table(file, "text", "label") for n, file in enumerate(task.files)}
    outcome = run_federated(task, plan, tmp_path / "run", tables, seed=1)
    assert "lengths" in outcome.sums
    assert any(remark.startswith("Length: ") for _, remark in outcome.records["remarks"])
    assert len(outcome.samples) > 10
    assert None not in words
    # Every private text has eight words; noise alone lets another bin in now and then, with little weight.
    assert np.mean([6 <= word <= 11 for word in words if word is not None]) > 0.7
