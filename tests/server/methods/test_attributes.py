"""Texts by attributes: shares from marginals, pairs where they stand, a run that orders, votes and keeps by them."""

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
from undersong_server.methods.interface import Setting
from undersong_server.methods.parts.marginals import joint_shares
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

LISTS = {"place": ("harbour town", "mountain village"), "mood": ("glad thanks", "bitter anger")}


def setting(records=1000, epsilon=4.0, labels=("a", "b")):
    return Setting(labels, ("one", "two"), privacy=Privacy(epsilon, 1e-5), expected_records=records)


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

    options = Options(attributes=LISTS)
    assert names(options, setting(10_000)) == ["marginals", "pairs", "votes"]
    assert names(options, setting(30, epsilon=1.0)) == ["marginals", "votes"]
    assert names(Options(attributes=LISTS, pairs="always"), setting(1)) == ["marginals", "pairs", "votes"]
    assert names(Options(attributes=LISTS, pairs="never"), setting(10_000)) == ["marginals", "votes"]
    assert names(Options(), setting(10_000)) == ["marginals", "votes"]  # the label alone has no pair
    for given in (setting(10_000), setting(30)):
        assert sum(request.budget_share for request in attributes.plan(options, given)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "given", "said"),
    [
        (Options(), setting(labels=()), "no attributes"),
        (Options(attributes={"mood": ("glad", "Glad")}), setting(), "twice"),
        (Options(attributes={"mood": ()}), setting(), "missing"),
        (Options(attributes={"n": tuple(map(str, range(60_000)))}), setting(), "combinations"),
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
        **{"method.attributes": LISTS},
    )


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
