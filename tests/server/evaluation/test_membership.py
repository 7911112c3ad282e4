"""Attacks see a model that memorised its training data, and see nothing where there is nothing; intervals cover."""

import io
import json
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from rich.console import Console

from tests.doubles.corpora import write_corpus
from undersong_common.errors import ConfigurationError
from undersong_common.intervals import auc_interval
from undersong_common.text.table import Table
from undersong_server.cli.evaluation_screen import render
from undersong_server.evaluation import evaluate as attacks
from undersong_server.evaluation.evaluate import evaluate_tables, membership
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.operations.releases import evaluate
from undersong_server.pool import Sample


@dataclass
class Memory:
    """A model that is sharper on what it has seen, by ``edge``."""

    seen: set[str]
    edge: float
    labels = ("a", "b")

    def probabilities(self, embeddings):
        rng = np.random.default_rng(0)
        sharp = rng.uniform(0.5, 0.9, len(embeddings)) + self.edge * (embeddings[:, 0] > 0)
        return np.stack([sharp, 1 - sharp], axis=1)


def records(name, count):
    table = Table(tuple(f"{name} {n}" for n in range(count)), ("a",) * count, None)
    return table, np.full((count, 1), 1.0 if name == "member" else -1.0, dtype=np.float32)


def test_every_membership_attack_detects_a_memorising_model():
    found = membership("x", Memory(set(), 0.1), records("member", 300), records("other", 300))
    assert [attack.name for attack in found.attacks] == ["entropy", "confidence", "confidence in the true label"]
    for attack in found.attacks:
        assert attack.auc.low > 0.6
        assert attack.accuracy.low > 0.5
        assert attack.true_positives.low > 0.01
        for interval in (attack.auc, attack.accuracy, attack.true_positives):
            assert interval.low <= interval.value <= interval.high


@pytest.mark.heavy
def test_no_membership_attack_detects_a_model_that_memorised_nothing():
    """The intervals of 200 innocent models miss the truth in about 1 of 20; more than 22 has chance below 1e-3."""
    missed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        interval = auc_interval(rng.normal(size=80), rng.normal(size=120))
        missed += not interval.low <= 0.5 <= interval.high
    assert 1 <= missed <= 22
    found = membership("x", Memory(set(), 0.0), records("member", 400), records("other", 400))
    assert found.attacks[0].accuracy.low < 0.5 < found.attacks[0].accuracy.high


@pytest.mark.slow
def test_attack_threshold_is_evaluated_on_records_that_did_not_choose_it():
    """An attack that fitted its threshold to its own judges would win on pure noise of few records."""
    rng = np.random.default_rng(1)
    values = [
        attacks._judge_attack("x", [rng.normal(size=20), rng.normal(size=20)], seed).accuracy.value
        for seed in range(100)
    ]
    assert np.mean(values) == pytest.approx(0.5, abs=0.04)  # wrong once in 2 000; five deviations with 300


def test_too_few_records_are_refused():
    with pytest.raises(ConfigurationError) as refused:
        membership("x", Memory(set(), 0.0), records("member", 3), records("other", 9))
    assert refused.value.code == "too-few-records"


@pytest.fixture
def run(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"{label} {n} " + " ".join(map(str, rng.integers(0, 50, 4))), label) for n in range(30) for label in "ab"]
    write_corpus(tmp_path / "run", [Sample(text, label, "one", 0, "zero_shot") for text, label in rows])
    for name, part in (("members", rows[:30]), ("others", rows[30:])):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in part)
        )
    return tmp_path


def hash_words(texts):
    rows = [np.bincount([zlib.crc32(word.encode()) % 16 for word in text.split()], minlength=16) for text in texts]
    return np.array(rows, dtype=np.float32) / np.linalg.norm(rows, axis=1, keepdims=True).astype(np.float32)


@pytest.mark.heavy
def test_the_report_shows_the_attacks_on_both_models(run):
    pair = (run / "members.jsonl", run / "others.jsonl")
    report = evaluate(
        run / "run", EvaluationOptions(train_private=pair[0], membership=pair, head="linear"), embed=hash_words
    )
    assert [each.data for each in report.membership] == ["synthetic", "private data only, no privacy"]
    shown = report.to_json()["membership"][0]
    assert (shown["members"], shown["nonmembers"]) == (30, 30)
    assert {"value", "low", "high"} == set(shown["attacks"][0]["auc"])
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(report))
    assert "balanced accuracy" in console.export_text()


def test_attacks_over_trainings_report_the_first_and_the_mean_area():
    sides = records("member", 20), records("other", 20)
    apart = [membership("x", Memory(set(), edge), *sides) for edge in (0.0, 0.2)]
    together = attacks.attacks_over_trainings(apart)
    for number, attack in enumerate(together.attacks):
        assert attack.auc == apart[0].attacks[number].auc
        areas = [each.attacks[number].auc.value for each in apart]
        assert attack.auc_over_seeds.value == pytest.approx(sum(areas) / 2)
    assert attacks.attacks_over_trainings(apart[:1]) == apart[0]


def test_a_corpus_without_labels_has_no_model_to_attack(run):
    pair = (run / "members.jsonl", run / "others.jsonl")
    unlabelled = Table(("one", "two"), None, None)
    with pytest.raises(ConfigurationError) as refused:
        evaluate_tables("run", unlabelled, EvaluationOptions(membership=pair), embed=hash_words)
    assert refused.value.code == "labels-missing"


def test_attack_auc_equals_scikit_learns_with_delongs_variance() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(2)
    positive, negative = np.round(rng.normal(0.6, 1, 40), 1), np.round(rng.normal(0, 1, 55), 1)  # with ties
    found = auc_interval(positive, negative)
    truth, scores = np.repeat([1, 0], [40, 55]), np.concatenate([positive, negative])
    assert found.value == pytest.approx(roc_auc_score(truth, scores))
    wins = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)  # DeLong et al. 1988, by definition
    variance = wins.mean(axis=1).var(ddof=1) / 40 + wins.mean(axis=0).var(ddof=1) / 55
    assert found.high - found.value == pytest.approx(1.959964 * variance**0.5, rel=1e-6)
