"""The benchmark of the private score's interval: what a run sees, and what counts as covered."""

import numpy as np
import pytest

from benchmarks import judged_settings, private_score
from tests.doubles.word_embedding import embed
from undersong_common.models.embedding import quantise
from undersong_server.methods.parts.private_score import PrivateScore


def near(texts):
    return quantise(embed(texts))


@pytest.fixture
def tasks(monkeypatch):
    rng = np.random.default_rng(3)
    monkeypatch.setattr(private_score, "SAMPLES", 60)
    monkeypatch.setattr(private_score, "EPSILONS", (4.0,))
    pools = {name: judged_settings.invented_reviews(rng, 120, shift=shift) for name, shift in (("a", 0.0), ("b", -1.0))}
    rows = judged_settings.invented_reviews(rng, 260)
    setting = judged_settings.Setting("a guest's review of a hotel", [], [], pools, records=80)
    return {"stars": private_score.real_task(setting, rows, 100)}


def test_private_score_benchmark_never_trains_on_held_out_records(tasks):
    real = tasks["stars"]
    seen = {row["text"] for row in real.setting.private}
    held_out = {row["text"] for row in real.rows[-real.held_out :]}
    assert (len(seen), len(held_out)) == (160, 100)
    assert not seen & held_out


@pytest.mark.slow
def test_private_score_benchmark_figures_count_its_runs(tasks, tmp_path):
    (row,) = private_score.measure(iter(tasks.items()), tmp_path, near, 7, 2)
    assert row["runs"] == 7
    assert all(0 <= row[figure] <= 7 for figure in private_score.FIGURES)
    assert 0 < row["truth"] < 100
    assert row["anew"] >= 5  # of seven; so few held-out texts have a chance of their own
    assert "| stars | 4 |" in private_score.figures_table([row])


def test_private_score_benchmark_counts_intervals_that_cover_the_truth():
    sure = PrivateScore(0.5, 0.4, 0.6, 0.001, 0.05)
    far = PrivateScore(0.9, 0.8, 1.0, 0.001, 0.05)
    scored = private_score.Scored([(sure, far), (far, sure)], (0.55, 0.9), np.array([0.7, 0.9]))
    assert scored.counts() == {"covered": 1, "anew": 1, "other": 1, "unsampled": 0}
