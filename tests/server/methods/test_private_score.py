"""The private score: its interval covers what held-out records would say, and mistakes in it are noticed."""

from types import SimpleNamespace

import numpy as np
import pytest

from undersong_protocol.statistics.classifier_votes import CorpusComparison, ScoredComparison
from undersong_protocol.statistics.contribution import contribute, least_scale
from undersong_protocol.statistics.interface import LabelledEmbeddings, PublicInputs
from undersong_protocol.statistics.similarity import ScoredSimilarity
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.private_score import PrivateScore, ZeroShot, score_of, similarity_score

RUNS, HELD_OUT, RECORDS = 100, 5000, 300
SIGMAS = {1.0: 9.2, 4.0: 2.7}  # of the sums of a plan of the default method, by epsilon
LEAST_COVERED = 95
# Over 20 000 runs the interval covers 97.4 % at epsilon 1 and 98.6 % at epsilon 4 (Bhatia and Davis is an upper bound),
# so that fewer than 95 of 100 are covered with 4 and with 0.3 of 100 seeds; the seed is fixed. An error without the
# part of the sample covers 51 %, the interval of the other corpus at most 1.1 %.


def draw_answers(rng: np.random.Generator, count: int) -> np.ndarray:
    """Means over two classifiers of (right by the first corpus, right by the second), float [n, 2]."""
    hard = rng.random((count, 1))  # some records are hard for everybody
    return np.stack([(rng.random((count, 2)) > hard * scale).mean(axis=1) for scale in (0.9, 0.6)], axis=1)


def measured(rng: np.random.Generator, sigma: float, *, second: bool) -> PrivateScore:
    first, other = draw_answers(rng, RECORDS).T
    rows = ScoredComparison(2)._margin_row(first, other)
    values = np.rint((rows.sum(axis=0) + rng.normal(0, sigma, 3)) * 256).astype(np.int64)
    spread = sigma * np.sqrt(6)
    counted = max(1.0, RECORDS + rng.normal(0, spread))
    return score_of(NoisySum(values, 256, sigma, ("p",)), counted, spread, second=second)


def covered(epsilon: float, *, second: bool = True, truth: int = 1, sampled: bool = True) -> int:
    rng = np.random.default_rng(11)
    held_out = draw_answers(rng, HELD_OUT)[:, truth].mean()
    found = [measured(rng, SIGMAS[epsilon], second=second) for _ in range(RUNS)]
    if sampled:
        return sum(each.low <= held_out <= each.high for each in found)
    return sum(abs(each.value - held_out) <= 1.96 * each.noise for each in found)


@pytest.mark.parametrize("epsilon", SIGMAS)
@pytest.mark.parametrize("corpus", [0, 1])
def test_private_score_interval_covers_the_score_on_held_out_records(epsilon, corpus):
    assert covered(epsilon, second=bool(corpus), truth=corpus) >= LEAST_COVERED


@pytest.mark.parametrize("epsilon", SIGMAS)
def test_interval_test_notices_the_score_of_the_wrong_corpus(epsilon):
    assert covered(epsilon, second=False, truth=1) < LEAST_COVERED


def test_interval_test_notices_an_interval_without_sampling_error():
    assert covered(4.0, sampled=False) < LEAST_COVERED


def test_private_score_needs_no_more_noise_than_the_comparison_alone():
    plain, scored = CorpusComparison(2), ScoredComparison(2)
    assert scored.sensitivity == plain.sensitivity
    halves = np.array([0.0, 0.5, 1.0])
    first, second = (each.ravel() for each in np.meshgrid(halves, halves))
    rows = scored._margin_row(first, second)
    assert np.linalg.norm(rows, axis=1).max() == pytest.approx(scored.sensitivity.l2)
    assert np.abs(rows).sum(axis=1).max() == pytest.approx(scored.sensitivity.l1)


def test_private_score_stays_within_0_and_1_and_is_stated_in_a_sentence():
    sure = score_of(NoisySum(np.array([0, 256 * 400, 0]), 256, 0.01, ("p",)), 400.0, 0.0, second=True)
    assert (sure.value, sure.high) == (1.0, 1.0)
    assert 0.9 < sure.low < 1.0
    sentence = PrivateScore(0.71, 0.64, 0.78, 0.02, 0.03).sentence(is_private=True)
    assert "labels the hospitals' own records right in 71 % of cases (64 to 78), measured privately" in sentence


class Cloud:
    """Records and texts without labels in a cloud; half of the unsteered texts lie elsewhere."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._centres = rng.normal(size=(2, 1, 24))
        published, near, far = (self._drawn(rng, 120, kind) for kind in (0, 0, 1))
        self.texts = np.concatenate([published, near[:60], far[:60]])
        self.published = np.arange(240) < 120

    def _drawn(self, rng: np.random.Generator, count: int, kind: int) -> np.ndarray:
        points = self._centres[kind] + rng.normal(size=(count, 24))
        return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)

    def records(self, rng: np.random.Generator, count: int) -> SimpleNamespace:
        return SimpleNamespace(embeddings=self._drawn(rng, count, 0), units=np.arange(count))


class OneSum:
    """A run that opens one sum with Gaussian noise."""

    def __init__(self, cloud: Cloud, rng: np.random.Generator, sigma: float) -> None:
        self._cloud, self._rng, self._sigma = cloud, rng, sigma

    def rng(self, step):
        return self._rng

    def publish_pool(self):
        return LabelledEmbeddings(self._cloud.texts, np.full(240, -1))

    def publish_numbers(self, name, numbers):
        return numbers

    def private_sum(self, name, inputs):
        public = PublicInputs({"candidates": inputs[0]}, {"corpora": inputs[1]})
        statistic = ScoredSimilarity(240)
        rows = statistic.rows(self._cloud.records(self._rng, RECORDS), public, {}).take(np.arange(RECORDS))
        assert np.linalg.norm(rows, axis=1).max() <= statistic.sensitivity.l2
        assert np.abs(rows).sum(axis=1).max() <= statistic.sensitivity.l1
        noisy = (rows.sum(axis=0) + self._rng.normal(0, self._sigma, 4)) * 4096
        return NoisySum(np.rint(noisy).astype(np.int64), 4096, self._sigma, ("p",))


def test_similarity_parts_are_summed_in_the_same_unit():
    statistic = ScoredSimilarity(2)
    record = SimpleNamespace(embeddings=np.array([[1.0, 0.0]], dtype=np.float32), units=np.arange(1))
    texts = LabelledEmbeddings(np.array([[0.5, 0.0], [0.75, 0.0]], dtype=np.float32), np.full(2, -1))
    rows = statistic.rows(record, PublicInputs({"candidates": texts}, {"corpora": np.array([1.0, 2.0])}), {})
    scale = least_scale(statistic, "mean", 1, "gaussian")
    difference, surplus, square, count = contribute(statistic, rows, scale=scale).values.tolist()
    assert (difference, surplus, square, count) == (4096 // 4, 4096 // 4, 4096 // 32, 4096 // 2)


def similarity_runs(epsilon):
    rng = np.random.default_rng(7)
    cloud = Cloud(rng)
    near = cloud.records(rng, HELD_OUT).embeddings @ cloud.texts.T
    truth = [near[:, marked].max(axis=1).mean() for marked in (cloud.published, ~cloud.published)]
    sums = (OneSum(cloud, rng, SIGMAS[epsilon]) for _ in range(RUNS))
    return truth, [similarity_score(each, "score", cloud.published, ~cloud.published) for each in sums]


@pytest.mark.heavy
@pytest.mark.parametrize("epsilon", SIGMAS)
def test_private_similarity_interval_covers_that_of_held_out_records(epsilon):
    (published, unsteered), scores = similarity_runs(epsilon)
    assert sum(score.low <= published <= score.high for score in scores) >= LEAST_COVERED
    gains = [score.value - score.zero_shot.value for score in scores]
    within = [
        abs(gain - (published - unsteered)) <= 1.96 * score.zero_shot.error
        for gain, score in zip(gains, scores, strict=True)
    ]
    assert sum(within) >= 88  # of 1 500 gains 94.6 and 94.3 % lie within; 0.4 % of seeds give fewer than 88 of 100
    assert {score.zero_shot.texts for score in scores} == {120}


def test_similarity_sentence_compares_with_texts_written_without_records():
    score = PrivateScore(0.52, 0.5, 0.54, 0.01, 0.01, "similarity", ZeroShot(200, 0.47, 0.01))
    sentence = score.sentence(is_private=True)
    assert "200 of these texts. The nearest of them is on average 0.52 (0.50 to 0.54) similar to the record" in sentence
    assert "of 200 texts that no record has steered, 0.47." in sentence
    assert sentence.endswith("A difference above 0 is good: it is +0.05, give or take 0.01")
    assert PrivateScore.from_json(score.to_json()) == score
    assert PrivateScore.from_json({"value": 0.5, "low": 0.4, "high": 0.6, "noise": 0.0, "sample": 0.1}).is_share
