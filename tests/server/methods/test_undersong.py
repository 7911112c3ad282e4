"""The plan of undersong: a public number of records divides the budget, and a wrong one leaves a sound run."""

from collections import Counter

import numpy as np
import pytest

from tests.doubles import bench
from tests.doubles.tasks import make_task
from tests.doubles.topic_writer import topic_writer
from tests.doubles.word_embedding import embed
from undersong_common.embedding import quantise
from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.plan import Privacy
from undersong_server.generators.interface import Answer
from undersong_server.generators.kinds.ngram import NgramGenerator
from undersong_server.methods import undersong
from undersong_server.methods.interface import Setting
from undersong_server.methods.parts import consistency, soft_labels
from undersong_server.methods.undersong import Options, plan
from undersong_server.runs.planning import plan_run
from undersong_server.runs.task import load


def asked(labels=2, generators=2, *, records=1000, epsilon=4.0, **options):
    names = tuple(f"label {n}" for n in range(labels)), tuple(f"generator {n}" for n in range(generators))
    setting = Setting(*names, privacy=Privacy(epsilon, 1e-5), expected_records=records)
    return {request.name: request for request in plan(Options(rounds=2, **options), setting)}


def test_the_plan_asks_for_what_the_task_can_use():
    soft = ["errors/1", "errors/2", "errors/3", "last verdict"]
    near = ["places", "authors"]
    assert list(asked()) == ["moments", *near, "useful", "votes/1", "votes/2", "verdict", *soft]
    assert list(asked(labels=0)) == [*near, "votes/1"]
    assert list(asked(generators=1)) == ["moments", "votes/1", "votes/2", "verdict", *soft]
    assert list(asked(verdict=False)) == ["moments", *near, "useful", "votes/1"]
    assert asked(labels=4, generators=3)["authors"].statistic.classes == 3
    assert list(asked(without="near")) == list(asked())
    assert list(asked(epsilon=float("inf"))) == list(asked(records=10_000))


def test_single_texts_are_voted_on_where_noise_leaves_the_votes_of_regions_standing():
    few, many = asked(samples=600, records=50), asked(samples=600, records=100)
    assert list(many) == ["moments", "places", "authors", "useful", "votes/1", "votes/2", "verdict", "thresholds"]
    assert list(few) == [*list(many)[:5], "verdict"]
    assert list(asked(samples=600, records=100, without="voted")) == [*list(few), "thresholds"]
    assert list(asked(samples=600, records=100, verdict=False)) == list(many)[:5]
    assert list(asked(samples=6000, records=100)) == [*list(few), "thresholds"]
    assert [many[name].statistic.name for name in ("votes/1", "votes/2")] == ["corrected_votes", "equal_votes"]
    # every text is a candidate of the last votes, and the verdict has one corpus more
    assert (many["votes/1"].statistic.candidates, many["votes/2"].statistic.candidates) == (300, 600)
    assert many["verdict"].statistic.classifiers == few["verdict"].statistic.classifiers + 1


def test_few_expected_records_are_not_asked_for_what_noise_would_drown():
    kinds = Counter()
    for records in (20, 100, 1000, 10_000):
        names = asked(labels=20, records=records)
        kind = next((name for name in ("moments", "labels") if name in names), "neither")
        kinds[kind] += 1
        assert {"useful", "places"} <= set(names)
        assert ("verdict" in names) == (records > 20)
    assert kinds == {"neither": 1, "labels": 1, "moments": 2}
    assert "moments" not in asked(labels=10, records=300, epsilon=1.0)
    assert "moments" in asked(labels=10, records=300, epsilon=4.0)


def test_gradients_are_asked_where_a_label_has_many_records():
    for labels, epsilon, least in ((2, 4.0, 900), (10, 4.0, 4400), (2, 1.0, 3500)):
        few, many = (asked(labels, epsilon=epsilon, records=records) for records in (least // 2, least))
        assert [name for name in many if name not in few] == ["errors/1", "errors/2", "errors/3", "last verdict"]
        assert [name for name in few if name not in many] == ["thresholds"]  # which the gradients move as well
    assert asked(2, records=1000)["errors/1"].statistic.directions == 384  # every axis of the packaged embedder
    assert "last verdict" not in asked(without="soft")
    assert "errors/1" not in asked(verdict=False)


@pytest.mark.parametrize(("labels", "least"), [(2, 90), (20, 240)])
def test_thresholds_are_asked_where_their_noise_is_small_and_labels_are_made(labels, least):
    for epsilon, times in ((4.0, 1.0), (1.0, 3.5)):
        few, many = (asked(labels, epsilon=epsilon, records=int(least * times * part)) for part in (0.85, 1.0))
        assert "thresholds" not in few
        along = many["thresholds"].statistic
        assert (along.name, along.directions, along.labels) == ("projections", labels - 1, labels)
    enough = 2 * least
    for left_out in ("soft", "thresholds"):
        assert list(asked(labels, records=enough, without=left_out)) == list(asked(labels, records=enough))[:-1]
    assert list(asked(labels, records=enough))[-1] == "thresholds"
    assert "thresholds" not in asked(labels, records=enough, verdict=False)
    assert "thresholds" in asked(labels, records=enough, generators=3)
    assert "thresholds" not in asked(labels, records=enough, generators=1)  # nobody else's texts say how careful to be
    assert "thresholds" in asked(labels, records=20_000, without="gradients")


def test_labels_that_teach_the_records_classifier_need_more_near_texts():
    for texts, of_texts, of_records in ((300, False, False), (500, True, False), (800, True, True)):
        weights = np.concatenate([np.ones(texts), np.full(5000, 1e-6)])  # few count, however many there are
        found = [undersong._can_teach(weights, 384, of_records=each) for each in (False, True)]
        assert found == [of_texts, of_records]


def test_labels_are_judged_by_many_records_though_gradients_are_not_asked():
    many = asked(labels=10, records=3000)
    assert "errors/1" not in many
    assert list(many)[-1] == "last verdict"
    assert "last verdict" not in asked(labels=10, records=2000)
    assert list(asked(labels=2, records=3000, without="gradients"))[-2:] == ["thresholds", "last verdict"]


@pytest.mark.parametrize(("strength", "sources"), [(0.2, 1), (0.2, 2), (2.0, 1), (2.0, 2), (5.0, 2), (None, 2)])
def test_labels_are_as_sure_as_other_generators_texts_let_them_be(strength, sources, tmp_path, monkeypatch):
    topic_writer(monkeypatch)
    monkeypatch.setattr("tests.doubles.bench.embed", lambda texts: quantise(embed(texts)))
    monkeypatch.setattr(soft_labels, "strength_for_others", lambda *_: strength)
    monkeypatch.setattr(consistency, "alike", lambda *_: np.arange(2) % sources)
    task = load(make_task(tmp_path, parties=1, records=40, samples=40), ["method.name=undersong", "method.rounds=2"])
    taught, original = [], soft_labels.labels_that_teach

    def teach(*given):
        taught.append(given[-1])
        return original(*given)

    monkeypatch.setattr(soft_labels, "labels_that_teach", teach)
    _, run = bench.run_method(task, plan_run(task), seed=3)
    careful, sure = strength == 0.2, strength == 2.0 and sources == 2
    assert taught == [soft_labels.STRONGEST] * careful + [soft_labels.SURE] * sure
    assert run.records.get("strength", []) == [(0, strength)] * (careful or sure or strength == 5.0)


def test_a_menu_without_its_only_row_is_the_mixture(tmp_path, monkeypatch):
    topic_writer(monkeypatch)
    options = ["method.name=undersong", "method.rounds=2", "method.verdict=false", "method.without=trusted"]
    task = load(make_task(tmp_path, parties=1, records=20, samples=20), options)
    samples, _ = bench.run_method(task, plan_run(task), seed=3)
    assert samples


def test_where_nothing_was_written_nobody_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(
        NgramGenerator, "answer", lambda self, requests: ((i, Answer("")) for i in range(len(requests)))
    )
    task = load(make_task(tmp_path, parties=1, records=20, samples=20), ["method.name=undersong", "method.rounds=2"])
    asked_for = []
    monkeypatch.setattr(bench.CountingRun, "private_sum", lambda self, name, inputs: asked_for.append(name))
    with pytest.raises(ConfigurationError, match="wrote no text in the first round"):
        bench.run_method(task, plan_run(task), seed=3)
    assert asked_for == []


def test_a_shorter_menu_is_judged_with_less_noise():
    whole, shorter = asked()["verdict"].statistic, asked(without="matched")["verdict"].statistic
    assert whole.sensitivity.l2 > shorter.sensitivity.l2


def test_usefulness_has_room_for_a_block_of_each_label_whatever_the_texts_will_say():
    assert asked(labels=10, generators=3)["useful"].statistic.dimension == 30
    assert asked(labels=10, generators=3)["useful"].statistic.sensitivity.l2 == pytest.approx((2 / 3) ** 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("block_of", [[0, 0], [0, 1]])
def test_a_mistaken_generator_is_found_by_its_labels_together_and_one_by_one(block_of, tmp_path, monkeypatch):
    topic_writer(monkeypatch, mistaken=["poor"])
    monkeypatch.setattr("tests.doubles.bench.embed", lambda texts: quantise(embed(texts)))
    monkeypatch.setattr(consistency, "blocks", lambda halves, embeddings: np.array(block_of))
    task = load(make_task(tmp_path, parties=1, records=200, samples=40), ["method.name=undersong", "method.rounds=2"])
    samples, run = bench.run_method(task, plan_run(task), seed=3)
    assert run.records["blocks"] == [(0, block_of)]
    good, poor = (sum(each.generator == name for each in samples) for name in ("good", "poor"))
    assert good > 2 * poor
    (_, trusted), (_, weights) = run.records["trust"][0], run.records["weights"][-1]
    assert trusted[0] > 0.95
    assert sum(weights) == pytest.approx(1.0)
