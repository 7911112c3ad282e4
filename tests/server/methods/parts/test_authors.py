"""Shares by whose texts the records read like: a mixture is found again, and shares stay equal without evidence."""

from types import SimpleNamespace

import numpy as np
import pytest

from undersong_common.embedding import quantise
from undersong_protocol.statistics import PublicInputs
from undersong_protocol.statistics.classifier_probabilities import ClassifierProbabilities
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.authors import Authors, near_shares

WIDTH, LABELS, GENERATORS = 12, 2, 3
EQUAL = np.full(LABELS, 1.0 / LABELS)


def texts(rng, author, labels, apart=0.4):
    """Unit embeddings around a centre per label, shifted by who wrote them: alike for all labels, or far for some."""
    centres, shifts = np.eye(WIDTH)[:LABELS], np.eye(WIDTH)[LABELS : LABELS + GENERATORS]
    shifted = np.broadcast_to(apart, LABELS)[labels, None] * shifts[author]
    return quantise(centres[labels] + shifted + 0.3 * rng.normal(size=(len(author), WIDTH)))


def corpus(seed, count=600, **how):
    rng = np.random.default_rng(seed)
    author, labels = np.arange(count) % GENERATORS, rng.integers(0, LABELS, count)
    return texts(rng, author, labels, **how), labels, author


def learnt(public, label_shares=EQUAL):
    return Authors.of(*public, GENERATORS, label_shares, np.random.default_rng(9))


def answered(authors, embeddings, sigma=1.0, seed=0):
    """What the records would answer, opened with noise."""
    count = len(embeddings)
    records = SimpleNamespace(embeddings=embeddings, units=np.arange(count))
    public = PublicInputs(numbers={"classifier": authors.classifier})
    total = ClassifierProbabilities(GENERATORS).rows(records, public, {}).take(np.arange(count)).sum(axis=0)
    total += sigma * np.random.default_rng(seed).normal(size=total.shape)
    return NoisySum(np.rint(total * 4096).astype(np.int64), 4096, sigma, ("p",))


def records(rng, count, shares=(1, 0, 0), label_shares=EQUAL, **how):
    labels = rng.choice(LABELS, size=count, p=label_shares)
    return texts(rng, rng.choice(GENERATORS, size=count, p=shares), labels, **how)


@pytest.mark.parametrize("truth", [(0, 1, 0), (0.5, 0.5, 0), (0.2, 0.3, 0.5)])
def test_the_mixture_that_the_records_are_is_found(truth):
    authors = learnt(corpus(1, 1200))
    found = near_shares(answered(authors, records(np.random.default_rng(2), 4000, truth)), authors)
    assert found == pytest.approx(truth, abs=0.08)
    assert found.sum() == pytest.approx(1.0)
    assert found.min() > 0


def test_the_generator_is_found_whose_mean_is_nearer_to_the_others_than_one_text_is_to_another():
    public = corpus(3, 2400, apart=0.15)
    authors = learnt(public)
    means = np.stack([public[0][public[2] == k].mean(axis=0) for k in range(GENERATORS)])
    spread = np.linalg.norm(public[0] - means[public[2]], axis=1).mean()
    assert np.linalg.norm(means[0] - means[1]) < 0.3 * spread
    for k in range(GENERATORS):
        private = records(np.random.default_rng(k), 4000, np.eye(GENERATORS)[k], apart=0.15)
        assert near_shares(answered(authors, private, 2.0), authors)[k] > 0.7


def test_shares_are_equal_where_noise_is_all_and_nearer_to_equal_with_few_records():
    authors, rng = learnt(corpus(1)), np.random.default_rng(4)
    private = records(rng, 500)
    drowned = np.array([near_shares(answered(authors, private, 1e4, seed), authors) for seed in range(5)])
    assert drowned == pytest.approx(1 / GENERATORS, abs=0.02)
    clear = near_shares(answered(authors, private), authors)[0]
    assert clear > 0.8 > near_shares(answered(authors, private[:10]), authors)[0]


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_generators_of_one_source_have_one_share_however_many_records_there_are_and_wherever_they_lie(seed):
    authors = learnt(corpus(seed, 2400, apart=0.0))
    rng = np.random.default_rng(seed)
    for private in (records(rng, 4000, apart=0.0), quantise(rng.normal(size=(4000, WIDTH)) + np.eye(WIDTH)[-1])):
        assert near_shares(answered(authors, private, 0.1), authors) == pytest.approx(1 / GENERATORS)


def test_records_like_no_mixture_still_have_shares_of_the_nearest():
    public = corpus(6)
    authors = learnt(public)
    surely = public[0][public[2] == 1].mean(axis=0) + np.eye(WIDTH)[LABELS + 1]
    found = near_shares(answered(authors, quantise(np.tile(surely, (2000, 1)))), authors)
    assert np.isfinite(found).all()
    assert found.argmax() == 1


def test_label_shares_that_differ_between_records_and_texts_do_not_move_the_shares():
    rng, apart = np.random.default_rng(8), np.array([0.8, 0.1])  # texts of the first label tell more of their author
    author = np.arange(3000) % GENERATORS
    labels = np.where(rng.random(3000) < np.array([0.9, 0.5, 0.1])[author], 0, 1)  # each wrote other labels
    of_records = np.array([0.15, 0.85])
    public = texts(rng, author, labels, apart), labels, author
    authors = learnt(public, of_records)
    for truth in ((1, 0, 0), (0, 1, 0), (0.5, 0, 0.5)):
        private = records(rng, 4000, truth, of_records, apart=apart)
        assert near_shares(answered(authors, private), authors) == pytest.approx(truth, abs=0.12)


def test_a_generator_without_texts_takes_nothing_from_the_one_that_the_records_read_like():
    embeddings, labels, author = corpus(8)
    kept = author != 2
    public = embeddings[kept], labels[kept], author[kept]
    authors = learnt(public)
    COEFFICIENTS.check("classifier", authors.classifier)
    assert authors.means[2].tolist() == [0.0] * GENERATORS
    found = near_shares(answered(authors, records(np.random.default_rng(8), 4000)), authors)
    assert found[0] > 0.9
    assert np.isfinite(found).all()


def test_a_task_without_labels_and_one_of_which_a_generator_lacks_a_label():
    embeddings, labels, author = corpus(10)
    authors = learnt((embeddings, np.full_like(labels, -1), author), np.ones(1))
    private = records(np.random.default_rng(10), 4000, (0, 0, 1))
    assert near_shares(answered(authors, private), authors)[2] > 0.8
    kept = (labels != 0) | (author != 1)
    lacking = learnt((embeddings[kept], labels[kept], author[kept]))
    assert near_shares(answered(lacking, private), lacking)[2] > 0.8


def test_what_a_text_is_said_to_be_is_said_by_those_who_did_not_learn_from_it():
    rng = np.random.default_rng(11)
    author, labels = np.arange(30) % GENERATORS, np.zeros(30, dtype=np.int64)
    alike = quantise(rng.normal(size=(30, 40)))  # fewer texts than components: learnt by heart, whoever wrote them
    authors = learnt((alike, labels, author), np.ones(1))
    own = np.diag(authors.means)
    logits = alike @ authors.classifier[:-1] + authors.classifier[-1]
    assert (logits.argmax(axis=1) == author).all()
    assert own.max() < 0.2


@pytest.mark.parametrize("count", [1, 2, 4])
def test_fewer_texts_than_folds_are_enough(count):
    embeddings, labels, author = (each[:count] for each in corpus(12))
    authors = learnt((embeddings, labels, author))
    assert np.isfinite(authors.means).all()
    found = near_shares(answered(authors, embeddings), authors)
    assert found.sum() == pytest.approx(1.0)
