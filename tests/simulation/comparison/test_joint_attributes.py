"""Joint attributes and topics, references of the comparison: tables, their bound, projections, draws and prompts."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from tests.doubles import bench as double
from tests.doubles.example_records import Records
from tests.doubles.tasks import make_replay_task
from tests.doubles.word_embedding import DIMENSION, embed
from undersong.comparison import reference_methods
from undersong.comparison.reference_methods import joint_attributes
from undersong.comparison.reference_methods.joint_attributes import (
    AttributeTables,
    Options,
    nearest_tables,
    shares_in,
    topic_words,
)
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import quantise
from undersong_protocol.statistics import LabelledEmbeddings, PublicFacts, PublicInputs
from undersong_server import methods
from undersong_server.methods import undersong
from undersong_server.methods.augpe import Cells
from undersong_server.methods.interface import Attribute, Setting
from undersong_server.pool import Sample
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

SUBJECTS = {"a": ("harbour", "bridge"), "b": ("mountain", "valley")}
DIRECTIONS = np.array([[1, 0], [-1, 0], [0, 1]], dtype=np.float32)
VALUES = PublicInputs(
    embeddings={"values": LabelledEmbeddings(DIRECTIONS, np.zeros(3, dtype=np.int64))},
    texts={"columns": ("sex", "female", "male")},
)


@pytest.fixture(autouse=True)
def _offered(monkeypatch):
    monkeypatch.setattr(methods, "OFFERED", {})
    reference_methods.offer("joint-attributes")


@pytest.fixture
def task_file(tmp_path, monkeypatch):
    """Notes whose place is one of two, which no other label has; label a has thrice as many of its first place."""
    wide = np.eye(DIMENSION, 384, dtype=np.float32)
    monkeypatch.setattr("tests.doubles.bench.embed", lambda texts: quantise(embed(texts) @ wide))
    rows = [("a", 0)] * 3 + [("a", 1)] + [("b", 0)] * 2 + [("b", 1)] * 2
    private = [
        {"text": f"{SUBJECTS[label][n]} note {k}", "label": label, "place": SUBJECTS[label][n]}
        for k in range(60)
        for label, n in rows
    ]
    pool = [
        {"text": f"{SUBJECTS[label][n]} report {k}", "label": label, "place": ""}
        for k in range(100)
        for label in "ab"
        for n in range(2)
    ]
    return make_replay_task(
        tmp_path,
        private,
        generators={"one": pool[::2], "two": pool[1::2]},
        privacy={"epsilon": 8.0},
        federation={"parties": 1},
        method={"name": "joint-attributes", "samples": 120},
    )


PLACE = 'attributes=[{name="place", values=["harbour", "bridge", "mountain", "valley"], column="place"}]'


def counted_by_hand(labels, places, sexes):
    """The tables of a list of three values and of a column of two and a missing one, by loops."""
    first, second = [[0] * 3 for _ in range(2)], [[0] * 3 for _ in range(2)]
    for label, place, sex in zip(labels, places, sexes, strict=True):
        if label >= 0:
            first[label][place] += 1
            second[label][{"female": 0, "male": 1}.get(sex.lower(), 2)] += 1
    return first, second


def some_records(seed, count):
    rng = np.random.default_rng(seed)
    labels, places = rng.integers(-1, 2, count), rng.integers(0, 3, count)
    sexes = rng.choice(["Female", "male", "", "?"], count).tolist()
    return labels, places, sexes, Records(labels=labels, embeddings=DIRECTIONS[places] * 0.5, columns={"sex": sexes})


def test_attribute_tables_equal_counts_by_hand():
    labels, places, sexes, records = some_records(0, 40)
    statistic = AttributeTables(2, (3,), (3,))
    statistic.check_inputs(VALUES, PublicFacts(embedding_size=2, labels=2))
    counts = statistic.rows(records, VALUES, {}).take(np.arange(40)).toarray().sum(axis=0)
    assert [table.tolist() for table in statistic.split(counts)] == list(counted_by_hand(labels, places, sexes))


@pytest.mark.heavy
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.sampled_from([((3,), ()), ((), (3,)), ((3,), (3,))]))
def test_one_record_moves_the_tables_by_at_most_their_bound(seed, count, sizes):
    _, _, _, records = some_records(seed, count)
    statistic = AttributeTables(2, *sizes)
    rows = statistic.rows(records, VALUES, {}).take(np.arange(count)).toarray()
    bound = statistic.sensitivity
    for row, label in zip(rows, records.labels, strict=True):
        norms = [np.abs(row).sum(), np.linalg.norm(row), np.abs(row).max()]
        assert norms == pytest.approx([bound.l1, bound.l2, bound.linf] if label >= 0 else [0, 0, 0])


@pytest.mark.parametrize("sizes", [(0, (3,), ()), (2, (), ())])
def test_tables_without_labels_or_attributes_are_refused(sizes):
    with pytest.raises(ConfigurationError):
        AttributeTables(*sizes)


@pytest.mark.parametrize("seed", range(4))
def test_nearest_tables_equal_those_of_a_general_solver(seed):
    rng = np.random.default_rng(seed)
    noisy = [rng.normal(2, 4, size=(3, 2)), rng.normal(2, 4, size=(3, 4))][: 1 + seed % 2]
    flat, ends = np.concatenate([table.ravel() for table in noisy]), np.cumsum([table.size for table in noisy])[:-1]
    weights = [1 / table.shape[1] for table in noisy]
    total = sum(w * table.sum() for w, table in zip(weights, noisy, strict=True)) / sum(weights)

    def margins(x):
        return [part.reshape(3, -1).sum(axis=1) for part in np.split(x, ends)]

    equal = [{"type": "eq", "fun": lambda x: margins(x)[0] - margins(x)[-1]}] * (len(noisy) > 1)
    solved = minimize(
        lambda x: ((x - flat) ** 2).sum(),
        np.full(len(flat), 1.0),
        bounds=[(0, None)] * len(flat),
        constraints=[{"type": "eq", "fun": lambda x: margins(x)[0].sum() - total}, *equal],
        options={"ftol": 1e-12, "maxiter": 500},
    )
    found = np.concatenate([table.ravel() for table in nearest_tables(noisy)])
    assert found == pytest.approx(solved.x, abs=1e-4)
    assert found.min() >= 0


def test_nearest_tables_keep_consistent_ones_and_give_zeros_for_noise():
    right = [np.array([[3.0, 0.0], [1.0, 2.0]]), np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 0.0]])]
    for found, table in zip(nearest_tables(right), right, strict=True):
        assert found == pytest.approx(table, abs=1e-9)
    assert not nearest_tables([np.array([[-1.0, 0.5]])])[0].any()


def test_label_without_records_uses_the_attribute_shares_of_all_records():
    table = np.array([[6.0, 2.0], [0.0, 0.0]])
    assert [shares_in(table, label).tolist() for label in range(2)] == [[0.75, 0.25], [0.75, 0.25]]
    assert shares_in(np.zeros((2, 2)), 0).tolist() == [0.5, 0.5]


def test_plan_charges_joint_tables_instead_of_the_label_sum(task_file):
    joint, apart = (
        plan_run(tasks.load(task_file, [f"method={{name='{name}'}}", PLACE])).plan
        for name in ("joint-attributes", "undersong")
    )
    assert [planned.name for planned in joint.sums] == [planned.name for planned in apart.sums]
    assert joint["labels"].build() == AttributeTables(2, (), (5,))
    assert joint.epsilon() == pytest.approx(apart.epsilon(), rel=1e-6) == pytest.approx(8.0, rel=1e-3)
    # The tables have L2 1 where labels and attribute beside each other have sqrt(2): less noise at the same charge.
    assert joint["labels"].sigma * math.sqrt(2) == pytest.approx(apart["labels"].sigma, rel=1e-6)


def test_option_topics_adds_one_sum_that_the_plan_charges(task_file):
    plan = plan_run(tasks.load(task_file, ["method.topics=8"])).plan
    names = [planned.name for planned in plan.sums]
    assert names[:2] == ["labels", "topics"]
    assert plan["topics"].build().sensitivity.l2 == 1.0
    assert plan.epsilon() == pytest.approx(8.0, rel=1e-3)
    tone = Attribute("tone", ("calm",), column=False)
    with pytest.raises(ConfigurationError):
        joint_attributes.plan(Options(topics=8), Setting(("a", "b"), ("one",), attributes=(tone,)))


@pytest.mark.slow
def test_joint_attributes_orders_use_attribute_values_of_their_label(task_file):
    shares = {}
    for name in ("joint-attributes", "undersong"):
        task = tasks.load(task_file, [f"method={{name='{name}', samples=120}}", PLACE])
        samples, _ = double.run_method(task, plan_run(task), seed=3)
        pairs = Counter((sample.label, dict(sample.attributes)["place"]) for sample in samples)
        shares[name] = sum(count for (label, place), count in pairs.items() if place in SUBJECTS[label]) / len(samples)
    assert shares["joint-attributes"] > 0.9
    assert shares["undersong"] < 0.7


@pytest.mark.slow
def test_later_orders_name_words_of_their_label_s_topics(task_file, monkeypatch):
    orders, write = [], double.CountingRun.write
    monkeypatch.setattr(
        double.CountingRun, "write", lambda self, step, t, given: orders.extend((t, each) for each in given)
        or write(self, step, t, given)
    )  # fmt: skip
    task = tasks.load(task_file, ["method.topics=4"])
    _, run = double.run_method(task, plan_run(task), seed=3)
    assert not any(order.terms for t, order in orders if t == 0)
    named = [(order.label, set(order.terms)) for t, order in orders if t > 0]
    assert len(named) > 20
    right = sum(bool(terms & set(SUBJECTS[label])) for label, terms in named)
    wrong = sum(bool(terms & set(SUBJECTS["ba"["ab".index(label)]])) for label, terms in named)
    assert right > 0.9 * len(named)
    assert wrong < 0.1 * len(named)
    assert len(run.records["topics"][0][1]) <= 4


def test_topic_is_described_by_the_words_that_other_topics_lack():
    texts = [f"card {word} blocked" for word in ("pin", "rate")] * 20
    samples = [Sample(text, "", "one", 0, "zero_shot") for text in texts]
    named = topic_words(samples, Cells(np.zeros((2, 3), dtype=np.float32), np.arange(40) % 2))
    assert named == [("pin",), ("rate",)]


def test_joint_attributes_without_either_option_equals_default_method(task_file):
    given = tasks.load(task_file, ["method={name='undersong', samples=120}"])
    setting = plan_run(given).setting
    assert joint_attributes.plan(Options(samples=120), setting) == undersong.plan(given.options, setting)
