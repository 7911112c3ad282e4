"""Class centres, a reference of the comparison: its scores, its sum, and who can name it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles import bench as double
from tests.doubles.example_records import Records
from tests.doubles.tasks import make_replay_task
from tests.doubles.word_embedding import DIMENSION, embed
from undersong.comparison import reference_methods
from undersong.comparison.cell import Bench, Cell, Variant
from undersong.comparison.reference_methods.class_centres import METHOD, Options, centre_scores
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import quantise
from undersong_protocol.statistics import PublicInputs
from undersong_server import methods
from undersong_server.methods.interface import Setting
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

WORDS = {"a": "harbour ship rope", "b": "mountain snow goat"}


@pytest.fixture(autouse=True)
def _own_offers(monkeypatch):
    """What one test offers, no other one knows."""
    monkeypatch.setattr(methods, "OFFERED", {})


@pytest.fixture
def task_file(tmp_path):
    """Records of two subjects; half of a pool's texts are of the other label's subject."""
    private = [{"text": f"{WORDS[label]} {n}", "label": label} for n in range(40) for label in "ab"]
    pool = [
        {"text": f"{WORDS['ba'[n % 2] if n % 4 < 2 else 'ab'[n % 2]]} {n}", "label": "ab"[n % 2]} for n in range(120)
    ]
    return make_replay_task(
        tmp_path,
        private,
        generators={"one": pool},
        data={"file_records": 80},
        federation={"parties": 1},
        method={"name": "mixture"},
    )


def scored_by_hand(x, label, sums, score):
    """The score of one text, by loops over labels and coordinates."""
    cosines = [
        sum(a * b for a, b in zip(x, total, strict=True)) / math.sqrt(sum(b * b for b in total)) for total in sums
    ]
    own, others = cosines[label], [cosine for place, cosine in enumerate(cosines) if place != label]
    if score == "contrast":
        return own - max(others)
    return own - 2 * (score == "filtered" and own < max(others))


@pytest.mark.parametrize("score", ["own", "filtered", "contrast"])
def test_class_centre_scores_equal_cosines_computed_by_hand(score):
    rng = np.random.default_rng(4)
    x, sums, labels = rng.normal(size=(30, 5)).astype(np.float32), rng.normal(size=(3, 5)) * 9, rng.integers(0, 3, 30)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = centre_scores(x, labels, sums, score)
    expected = [scored_by_hand(row.tolist(), label, sums.tolist(), score) for row, label in zip(x, labels, strict=True)]
    assert found == pytest.approx(expected, abs=1e-6)
    assert centre_scores(x, labels, sums * np.array([[0.1], [7.0], [300.0]]), score) == pytest.approx(found)


def test_class_centres_plan_charges_one_sum_of_norm_one(task_file):
    reference_methods.offer("class-centres")
    plan = plan_run(tasks.load(task_file, ["method={name='class-centres'}", "privacy.epsilon=4"])).plan
    assert [planned.name for planned in plan.sums] == ["centres"]
    assert plan["centres"].build().sensitivity.l2 == 1.0
    assert plan.epsilon() == pytest.approx(4.0, rel=1e-3)
    assert plan["centres"].sigma > 0
    with pytest.raises(ConfigurationError):
        METHOD.plan(Options(), Setting(("only",), ("one",)))


@pytest.mark.heavy
@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 2**32 - 1)), min_size=1, max_size=8), st.data())
def test_one_record_moves_the_sum_by_at_most_its_bound(records, data):
    vectors = [np.random.default_rng(seed).normal(size=384) for _, seed in records]
    unit = quantise(np.array([vector / np.linalg.norm(vector) for vector in vectors], dtype=np.float32))
    statistic = METHOD.plan(Options(), Setting(tuple("abc"), ("one",)))[0].statistic
    held = Records(labels=[label for label, _ in records], embeddings=unit.tolist())
    rows = statistic.rows(held, PublicInputs(), {}).take(np.arange(len(records))).toarray()
    left_out = data.draw(st.integers(0, len(records) - 1))
    change = rows.sum(axis=0) - np.delete(rows, left_out, axis=0).sum(axis=0)
    assert np.linalg.norm(change) <= statistic.sensitivity.l2 + 1e-9
    assert (np.linalg.norm(change) > 0.9) == (records[left_out][0] >= 0)


def test_the_best_texts_of_each_label_are_published(task_file, monkeypatch):
    wide = np.eye(DIMENSION, 384, dtype=np.float32)  # as many coordinates as the plan's embedder has
    monkeypatch.setattr("tests.doubles.bench.embed", lambda texts: quantise(embed(texts) @ wide))
    reference_methods.offer("class-centres")
    changes = ["method={name='class-centres', samples=100, keep=0.4}", "privacy.epsilon=inf"]
    task = tasks.load(task_file, changes)
    samples, run = double.run_method(task, plan_run(task), seed=3)
    assert [run.ordered, len(samples)] == [100, 40]
    assert sorted({sample.label for sample in samples}) == ["a", "b"]
    wrong = [sample for sample in samples if not sample.text.startswith(WORDS[sample.label])]
    assert wrong == []
    assert any(not sample.text.startswith(WORDS[sample.label]) for sample in run.pool.samples)


def test_class_centres_runs_in_a_comparison_and_not_as_a_task_s_method(task_file, tmp_path):
    with pytest.raises(ConfigurationError):
        plan_run(tasks.load(task_file, ["method={name='class-centres'}"]))
    variant = Variant.parse("class-centres:score=own")
    methods.OFFERED.clear()  # as in a worker, which gets the parsed variant
    task = Bench(task_file, (), tmp_path / "test.jsonl", 10).task(Cell(variant, 4.0, 1, 40, 0))
    assert isinstance(task.options, Options)
    assert task.options.score == "own"
    assert not set(reference_methods.names()) & set(methods.own_names())
    with pytest.raises(ConfigurationError, match="sum"):
        Bench(task_file, (), tmp_path / "test.jsonl", 10).task(
            Cell(Variant.parse("class-centres:sum=1"), 4.0, 1, 40, 0)
        )
