"""The corpus of undersong: whose texts it is made of, and what a task model learns from their labels."""

from types import SimpleNamespace

import numpy as np
import pytest

from undersong_common.embedding import quantise
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.evaluation.task_model import fit_linear
from undersong_server.methods import undersong
from undersong_server.methods.parts import consistency, judging, soft_labels
from undersong_server.methods.undersong import Judgement, Options, Written
from undersong_server.pool import Sample

WIDTH, EACH = 12, 300
NEAR, USEFUL = 0, 1
LABELS, GENERATORS = ("a", "b"), ("near", "useful")
BOUNDARY = np.eye(WIDTH)[0]  # the records' own


def texts(rng, count, place):
    return quantise(rng.normal(size=(count, WIDTH)) + place * np.eye(WIDTH)[1])


@pytest.fixture
def written():
    """One generator writes where the records lie and labels badly, the other elsewhere and labels well."""
    rng = np.random.default_rng(0)
    embeddings = np.concatenate([texts(rng, EACH, 1.5), texts(rng, EACH, -0.5)])
    author = np.repeat([NEAR, USEFUL], EACH)
    true = (embeddings @ BOUNDARY > 0).astype(np.int64)
    wrong = (embeddings @ (np.eye(WIDTH)[2] + 0.3 * BOUNDARY) > 0).astype(np.int64)
    return Written(embeddings, np.where(author == NEAR, wrong, true), author, 2, 2)


def judged(near=0.96, careful=True):
    """What the sums would say: the one generator is near, the other useful."""
    equal = np.full((2, 2), 0.5)
    near_by_label, useful = np.array([[near] * 2, [1 - near] * 2]), np.array([[0.02] * 2, [0.98] * 2])
    read = judging.Shares(np.zeros_like(equal), useful, equal, near_by_label)
    block_of = np.zeros(2, dtype=np.int64)
    rightness = np.linspace(0.9, 0.8, 8) if careful else np.linspace(0.8, 0.9, 8)
    evidence = SimpleNamespace(sums=(), shares=lambda: read, block_of=block_of, alike=np.arange(2))
    return Judgement(300.0, np.full(2, 0.5), None, read, evidence, np.zeros((2, WIDTH + 1, 2)), rightness)


def corpus(written, *, near=0.96, asked=(), **options):
    """The corpus by :func:`judged`: text numbers and labels, int64; and what was recorded."""
    samples = [
        Sample(str(number), LABELS[label], GENERATORS[author], 0, "zero_shot")
        for number, (label, author) in enumerate(zip(written.label_of, written.generator_of, strict=True))
    ]
    recorded = {"asked": []}

    def private_sum(name, published):
        recorded["asked"].append(name)
        along = dict(published)["projections"][0, 0]  # of the boundary: records lie on the second label's side
        return NoisySum(np.array([150, 30 * np.sign(along)]).astype(np.int64) * 4096, 4096, 1.0, ("p",))

    run = SimpleNamespace(
        setting=SimpleNamespace(labels=LABELS),
        pool=SimpleNamespace(samples=samples),
        rng=lambda step: np.random.default_rng(7),
        publish_numbers=lambda name, values: (name, values),
        private_sum=private_sum,
        record=lambda name, round_, value: recorded.update({name: value}),
    )
    made = undersong._corpus(
        Options(samples=2 * EACH, rounds=2, **options), run, dict.fromkeys(asked), written, judged(near)
    )
    text_of = np.array([int(each.text) for each in made])
    label_of = np.array([LABELS.index(each.label) for each in made])
    assert len(np.unique(text_of)) == len(text_of)
    return text_of, label_of, recorded


def task_model(embeddings, labels):
    """With the strength that labels are made for."""
    return fit_linear(embeddings, labels, np.ones(len(labels)), 2, soft_labels.STRONGEST)


def right(model):
    """Of records, which lie where the near generator's texts do."""
    records = texts(np.random.default_rng(99), 4000, 1.5)
    return ((records @ BOUNDARY > 0) == consistency.probabilities(model, records).argmax(axis=1)).mean()


def of_near(written, text_of):
    return (written.generator_of[text_of] == NEAR).mean()


@pytest.fixture
def careful(monkeypatch):
    monkeypatch.setattr(soft_labels, "strength_for_others", lambda *_: 0.3)


def test_a_careful_corpus_has_the_near_generator_s_texts_and_teaches_what_the_useful_one_s_do(written, careful):
    text_of, label_of, recorded = corpus(written)
    assert of_near(written, text_of) > 0.9
    assert recorded["weights"][NEAR] == pytest.approx(of_near(written, text_of))
    model = task_model(written.embeddings[text_of], label_of)
    near, useful = (
        consistency.classifier(written.embeddings[own], written.label_of[own], 2, strength=0.3)
        for own in (written.generator_of == NEAR, written.generator_of == USEFUL)
    )
    assert right(model) > right(useful) - 0.01
    assert right(model) > right(near) + 0.2


def test_the_generators_shares_are_realised_by_how_many_texts_they_have(written, careful):
    text_of, _, recorded = corpus(written, near=0.9)
    assert len(text_of) == pytest.approx(2 * EACH / (0.9**2 + 0.1**2) / 2, abs=1)  # Kish's number
    assert of_near(written, text_of) == pytest.approx(0.82, abs=0.1)  # all of its texts are in: it has no more
    assert recorded["weights"] == pytest.approx([of_near(written, text_of), 1 - of_near(written, text_of)])


@pytest.mark.parametrize("why", ["few texts", "sure", "ordered labels", "ablation"])
def test_elsewise_the_corpus_has_the_texts_that_the_records_trust(why, written, monkeypatch):
    strength = {"sure": 2.0}.get(why, 0.3)
    monkeypatch.setattr(soft_labels, "strength_for_others", lambda *_: strength)
    if why == "few texts":  # of the near generator; the other's are many, and weigh nearly nothing
        kept = np.flatnonzero((written.generator_of == USEFUL) | (np.arange(2 * EACH) < WIDTH - 2))
        written = Written(*(each[kept] for each in written[:3]), 2, 2)
    options = {"ordered labels": {"without": "soft"}, "ablation": {"without": "near"}}.get(why, {})
    text_of, _, _ = corpus(written, near=0.999, **options)
    assert of_near(written, text_of) < 0.1


def test_no_text_is_taken_for_near_where_nothing_of_generators_is_known(written, careful):
    text_of, _, _ = corpus(written, near=0.5)
    assert of_near(written, text_of) == pytest.approx(0.5, abs=0.01)
    assert len(text_of) > 0.95 * 2 * EACH


@pytest.mark.parametrize("strength", [0.3, 2.0])
def test_thresholds_are_asked_for_labels_that_follow_the_texts_less_closely(strength, written, monkeypatch):
    monkeypatch.setattr(soft_labels, "strength_for_others", lambda *_: strength)
    plain, found = corpus(written), corpus(written, asked=["thresholds"])
    assert found[-1]["asked"] == ["thresholds"] * (strength == 0.3)
    first, before = ((label_of == 0).mean() for _, label_of, _ in (found, plain))
    assert (first > before + 0.01) == (strength == 0.3)


def test_texts_are_written_by_near_generators_too_where_texts_are_followed_less_closely():
    careful, other = judged(near=0.9), judged(near=0.9, careful=False)
    assert undersong._shares_written(other, other.shares) == pytest.approx([(0.5 + 0.02 + 0.5) / 3, 1.98 / 3])
    assert undersong._shares_written(careful, careful.shares) == pytest.approx([1.92 / 4, 2.08 / 4])
