"""Texts by attributes: shares from marginals, pairs where they stand, a run that orders, votes and keeps by them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.doubles.bench import run_method
from tests.doubles.tasks import make_replay_task
from tests.doubles.word_embedding import embed
from undersong_common.embedding import quantise
from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.plan import Privacy
from undersong_server.methods import attributes
from undersong_server.methods.attributes import Options
from undersong_server.methods.interface import Attribute, Setting
from undersong_server.methods.parts.marginals import joint_shares
from undersong_server.release.files import corpus_files
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

LISTS = {"place": ("harbour town", "mountain village"), "mood": ("glad thanks", "bitter anger")}


ATTRIBUTES = tuple(Attribute(name, values, column=False) for name, values in LISTS.items())


def setting(records=1000, epsilon=4.0, labels=("a", "b"), attributes=ATTRIBUTES):
    privacy = Privacy(epsilon, 1e-5)
    return Setting(labels, ("one", "two"), privacy=privacy, expected_records=records, attributes=attributes)


def test_joint_shares_have_the_margins_that_they_are_given():
    rng = np.random.default_rng(0)
    truth = rng.random((3, 2, 4)) ** 2
    truth /= truth.sum()
    single = [truth.sum(axis=tuple(a for a in range(3) if a != axis)) for axis in range(3)]
    pairs = {(0, 1): truth.sum(axis=2), (0, 2): truth.sum(axis=1), (1, 2): truth.sum(axis=0)}
    found = joint_shares(single, pairs).reshape(truth.shape)
    for table, share in pairs.items():
        (other,) = {0, 1, 2} - set(table)
        assert found.sum(axis=other) == pytest.approx(share, abs=1e-3)
    product = joint_shares(single, {}).reshape(truth.shape)
    assert np.abs(found - truth).sum() < np.abs(product - truth).sum()
    apart = {(0, 1): np.array([[1.0, 0.0], [0.0, 0.0]])}  # says that what the margins have does not occur
    assert joint_shares([np.array([0.0, 1.0]), np.array([1.0, 0.0])], apart).tolist() == [0.0, 0.0, 1.0, 0.0]
    emptied = {(0, 1): np.array([[0.5, 0.5], [0.0, 0.0]])}  # by noise: the margin knows that the second value occurs
    assert joint_shares([np.array([0.75, 0.25]), np.array([0.5, 0.5])], emptied).reshape(2, 2).sum(axis=1)[1] > 0.2


def test_pairs_are_asked_for_where_expected_records_stand_above_the_noise():
    def names(options, given):
        return [request.name for request in attributes.plan(options, given)]

    options = Options()
    assert names(options, setting(10_000)) == ["marginals", "pairs", "votes"]
    assert names(options, setting(30, epsilon=1.0)) == ["marginals", "votes"]
    assert names(Options(pairs="always"), setting(1)) == ["marginals", "pairs", "votes"]
    assert names(Options(pairs="never"), setting(10_000)) == ["marginals", "votes"]
    assert names(Options(), setting(10_000, attributes=())) == ["marginals", "votes"]  # the label alone has no pair
    for given in (setting(10_000), setting(30)):
        assert sum(request.budget_share for request in attributes.plan(options, given)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "given", "said"),
    [
        (Options(), setting(labels=(), attributes=()), "no attributes"),
        (Options(), setting(attributes=(Attribute("n", tuple(map(str, range(60_000))), True),)), "combinations"),
    ],
)
def test_attributes_that_cannot_be_are_refused(options, given, said):
    with pytest.raises(ConfigurationError, match=said):
        attributes.plan(options, given)


@pytest.fixture
def task_file(tmp_path):
    """Notes of two labels: those of "a" are mostly of the harbour, those of "b" of the mountain, all of them bitter."""
    rng = np.random.default_rng(0)

    def note(place, mood, number):
        return f"{LISTS['place'][place]} {LISTS['mood'][mood]} {number}"

    def row(place_of, mood_share, number):
        label = int(rng.random() < 0.25)
        return {"text": note(place_of(label), int(rng.random() < mood_share), number), "label": "ab"[label]}

    private = [row(lambda label: label if rng.random() < 0.9 else 1 - label, 0.9, n) for n in range(400)]
    pool = [row(lambda _label: int(rng.random() < 0.5), 0.5, n) for n in range(1000, 1600)]
    return make_replay_task(
        tmp_path,
        private,
        generators={"one": pool[:300], "two": pool[300:]},
        privacy={"epsilon": 8.0, "expected_records": 400},
        federation={"parties": 1},
        method={"name": "attributes", "samples": 120},
        attributes=[{"name": name, "values": values} for name, values in LISTS.items()],
    )


@pytest.fixture
def task_with_columns(tmp_path):
    """Notes of women are of the harbour, of men of the mountain; a tenth says nothing of sex."""
    rng = np.random.default_rng(0)
    rows = [("female", 0), ("Male", 1), ("", 1)]
    chosen = [rows[row] for row in rng.choice(3, 400, p=[0.6, 0.3, 0.1])]
    private = [{"text": f"{LISTS['place'][p]} {n}", "label": "ab"[n % 2], "sex": s} for n, (s, p) in enumerate(chosen)]
    pool = [{"text": f"{LISTS['place'][n % 2]} {n}", "label": "ab"[n // 2 % 2], "sex": ""} for n in range(1000, 1600)]
    return make_replay_task(
        tmp_path,
        private,
        generators={"one": pool},
        privacy={"epsilon": 8.0, "expected_records": 400},
        federation={"parties": 1},
        method={"name": "attributes", "samples": 120},
        attributes=[{"name": "gender", "values": ["female", "male"], "column": "sex"}],
    )


def test_a_corpus_has_the_columns_of_the_records(task_with_columns, monkeypatch):
    monkeypatch.setattr("tests.doubles.bench.embed", lambda texts: quantise(embed(texts)))
    task = tasks.load(task_with_columns)
    samples, run = run_method(task, plan_run(task), seed=3)
    assert run.records["shares of gender"][-1][1] == pytest.approx([0.6, 0.3, 0.1], abs=0.06)
    assert run.records["gender in the corpus"][-1][1] == pytest.approx([0.6, 0.3, 0.1], abs=0.1)
    assert {sample.attributes for sample in samples} == {(("gender", v),) for v in ("female", "male", "")}
    rows = [json.loads(line) for line in corpus_files(samples)["synthetic.jsonl"].decode().splitlines()]
    assert [row["gender"] for row in rows] == [sample.attributes[0][1] for sample in samples]
    first = [sample for sample in run.pool.samples if sample.round == 0]
    of_men = {sample for sample in first if sample.attributes == (("gender", "male"),) and "mountain" in sample.text}
    assert 0 < len(of_men) < len(first) / 4
    assert of_men <= set(samples)  # records vote among the texts of their own column


def test_prompts_name_a_column_and_its_value(task_with_columns):
    given = plan_run(tasks.load(task_with_columns)).setting
    combinations = np.array([[0, 0], [1, 2]])
    run = SimpleNamespace(setting=given, rng=lambda _step: np.random.default_rng(0))
    orders = attributes._orders(Options(), run, "step", combinations, np.array([1, 1]), {})
    assert {order.terms for order in orders} == {("gender female",), ()}  # a missing value is not named


def test_a_method_that_does_not_read_attributes_refuses_them(task_with_columns):
    with pytest.raises(ConfigurationError, match="attributes"):
        plan_run(tasks.load(task_with_columns, ["method.name=mixture"]))


@pytest.mark.parametrize(
    "given", ["{name='a', values=['x', 'X']}", "{name='text', values=['x']}", "{name='a', values=[]}"]
)
def test_attributes_that_nobody_can_answer_are_refused_with_the_task(task_with_columns, given):
    with pytest.raises(ConfigurationError):
        tasks.load(task_with_columns, [f"attributes=[{given}]"])


def shares_of(texts, word):
    return sum(word in text for text in texts) / len(texts)


@pytest.mark.parametrize("pairs", ["never", "auto"])
def test_a_run_has_the_attributes_of_the_records(task_file, monkeypatch, pairs):
    monkeypatch.setattr("tests.doubles.bench.embed", lambda texts: quantise(embed(texts)))
    task = tasks.load(task_file, [f"method.pairs={pairs}"])
    run_plan = plan_run(task)
    samples, run = run_method(task, run_plan, seed=3)
    assert run.asked == [planned.name for planned in run_plan.plan.sums]
    assert ("pairs" in run.asked) == (pairs == "auto")
    assert run.ordered == run_plan.generator_calls == 120
    assert len({sample.text for sample in samples}) == len(samples) > 80
    assert run.records["shares of label"][-1][1] == pytest.approx([0.75, 0.25], abs=0.06)
    assert run.records["shares of mood"][-1][1] == pytest.approx([0.1, 0.9], abs=0.06)
    of_label = {label: [sample.text for sample in samples if sample.label == label] for label in "ab"}
    assert len(of_label["a"]) / len(samples) == pytest.approx(0.75, abs=0.08)
    assert shares_of([sample.text for sample in samples], "bitter") > 0.75
    harbour = [shares_of(of_label[label], "harbour") for label in "ab"]
    if pairs == "auto":  # that the place depends on the label only pairs can say
        assert harbour[0] > harbour[1] + 0.4
    else:
        assert abs(harbour[0] - harbour[1]) < 0.4


def test_a_party_answers_and_the_run_spends_its_plan(task_file):
    from undersong_common.privacy import accounting

    run_plan = plan_run(tasks.load(task_file, ["privacy.epsilon=2"]))
    events = [planned.event() for planned in run_plan.plan.sums]
    assert accounting.epsilon(events, 1e-5) == pytest.approx(2.0, rel=1e-3)
    shares = {planned.name: (planned.build().sensitivity.l2 / planned.sigma) ** 2 for planned in run_plan.plan.sums}
    total = sum(shares.values())
    assert shares["votes"] / total == pytest.approx(0.7, abs=0.01)
