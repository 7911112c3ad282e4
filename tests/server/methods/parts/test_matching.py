"""Shares by matching: a mixture is found again, noise keeps shares equal, and what is published is exact."""

from dataclasses import replace

import numpy as np
import pytest

from undersong_common.embedding import quantise
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.projections import COUNT, PLACE
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import judging, matching
from undersong_server.methods.parts.authors import Authors
from undersong_server.methods.parts.doubt import noise_effect_of_sums
from undersong_server.methods.parts.places import cell_shares, group_sums

WIDTH, LABELS, GENERATORS = 24, 3, 4


def texts(rng, author, labels, spread=0.15):
    """Unit embeddings around a centre per label, shifted by who wrote them."""
    centres, shifts = np.eye(WIDTH)[:LABELS], 0.6 * np.eye(WIDTH)[LABELS : LABELS + GENERATORS]
    return quantise(centres[labels] + shifts[author] + spread * rng.normal(size=(len(author), WIDTH)))


def corpus(seed, count=1200):
    rng = np.random.default_rng(seed)
    author, labels = np.arange(count) % GENERATORS, rng.integers(0, LABELS, count)
    return texts(rng, author, labels), labels, author


def answered(basis, embeddings, labels, sigma=0.0, seed=0):
    """What the statistic would open: computed here by hand, in natural units, with Gaussian noise."""
    published = basis.published()
    place = embeddings.astype(np.float64) @ published[:WIDTH] - published[WIDTH + labels]
    place /= np.maximum(1.0, np.linalg.norm(place, axis=1, keepdims=True))
    total = np.concatenate([[COUNT * len(labels)], PLACE * place.sum(axis=0)])
    total += np.random.default_rng(seed).normal(0, sigma, len(total)) if sigma else 0.0
    return NoisySum(np.rint(total * 1024).astype(np.int64), 1024, sigma, ("p",))


def shares(places, basis, public, **options):
    prior = options.pop("prior", np.full(GENERATORS, 1 / GENERATORS))
    return matching.matched_shares(places, basis, basis.means(*public, GENERATORS), prior, **options)


@pytest.mark.parametrize("truth", [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.1, 0.2, 0.3, 0.4], [0.25] * 4])
def test_the_mixture_that_the_records_are_is_found(truth):
    public = corpus(1)
    basis = matching.Basis.of(*public, GENERATORS, LABELS)
    rng = np.random.default_rng(2)
    author, labels = rng.choice(GENERATORS, size=3000, p=truth), rng.integers(0, LABELS, 3000)
    evidence = answered(basis, texts(rng, author, labels), labels)
    assert matching.records_of(evidence) == pytest.approx(3000)
    assert shares(evidence, basis, public) == pytest.approx(truth, abs=0.06)


def test_noise_keeps_the_shares_equal_and_few_records_keep_them_near():
    public = corpus(1)
    basis = matching.Basis.of(*public, GENERATORS, LABELS)
    rng = np.random.default_rng(3)
    labels = rng.integers(0, LABELS, 40)
    private = texts(rng, np.zeros(40, dtype=np.int64), labels)
    heavy = np.array([shares(answered(basis, private, labels, 400.0, seed), basis, public) for seed in range(20)])
    assert np.abs(heavy - 0.25).max() < 0.2
    assert heavy.mean(axis=0) == pytest.approx([0.25] * 4, abs=0.1)
    light = shares(answered(basis, private, labels, 2.0), basis, public)
    assert light[0] > 0.6


def test_the_prior_decides_where_texts_lie_in_one_place_and_where_noise_drowns_them():
    _, labels, author = corpus(6)
    twins = np.where(author == 3, 0, author)  # generators 0 and 3 write from the same place
    public = texts(np.random.default_rng(7), twins, labels), labels, author
    basis = matching.Basis.of(*public, GENERATORS, LABELS)
    rng = np.random.default_rng(8)
    wanted = rng.integers(0, LABELS, 400)
    private = texts(rng, np.zeros(400, dtype=np.int64), wanted)
    prior = np.array([0.7, 0.1, 0.1, 0.1])
    found = shares(answered(basis, private, wanted, 2.0), basis, public, prior=prior)
    assert found[0] > 0.6
    assert found[1] + found[2] < 0.15
    assert shares(answered(basis, private, wanted, 1e6), basis, public, prior=prior) == pytest.approx(prior, abs=0.02)


def test_records_outside_the_hull_do_not_put_all_weight_on_the_nearest_generator():
    public = corpus(1)
    basis = matching.Basis.of(*public, GENERATORS, LABELS)
    rng = np.random.default_rng(9)
    labels, author = rng.integers(0, LABELS, 3000), np.zeros(3000, dtype=np.int64)
    inside = shares(answered(basis, texts(rng, author, labels), labels), basis, public)
    away = np.zeros(WIDTH)
    away[LABELS + 1 : LABELS + GENERATORS] = -0.35  # beyond the first generator, on the far side of the others
    beyond = quantise(texts(rng, author, labels) + away)
    outside = shares(answered(basis, beyond, labels), basis, public)
    assert inside[0] > 0.97
    assert 0.3 < outside[0] < 0.95


def test_a_task_without_labels_and_a_generator_that_lacks_a_label():
    embeddings, labels, author = corpus(4)
    none = np.full(len(labels), -1)
    basis = matching.Basis.of(embeddings, none, author, GENERATORS, 0)
    assert basis.centres.shape == (1, WIDTH)
    kept = (labels != 0) | (author != 1)
    lacking = matching.Basis.of(embeddings[kept], labels[kept], author[kept], GENERATORS, LABELS)
    assert np.isfinite(lacking.published()).all()
    assert np.isfinite(lacking.means(embeddings[kept], labels[kept], author[kept], GENERATORS)).all()


def test_what_is_published_gives_exact_products():
    public = corpus(5)
    published = matching.Basis.of(*public, GENERATORS, LABELS).published()
    embeddings = public[0].astype(np.float64)
    exact = embeddings @ published[:WIDTH]
    order = np.random.default_rng(0).permutation(WIDTH)
    assert (embeddings[:, order] @ published[order] == exact).all()
    COEFFICIENTS.check("projections", published)


@pytest.mark.heavy
def test_the_told_noise_of_trust_matched_and_near_shares_is_what_many_draws_show():
    public, rng = corpus(1), np.random.default_rng(4)
    basis = matching.Basis.of(*public, GENERATORS, LABELS)
    author, labels = rng.choice(GENERATORS, size=2000, p=[0.4, 0.3, 0.2, 0.1]), rng.integers(0, LABELS, 2000)
    places = answered(basis, texts(rng, author, labels), labels, sigma=40.0)
    useful = NoisySum(np.array([60, 20, -30, -50]) * 1024, 1024, 30.0, ("p",))
    embeddings, public_labels, writer = public
    authors = Authors.of(embeddings, public_labels, writer, GENERATORS, np.full(LABELS, 1.0 / LABELS), rng)
    said = NoisySum(np.array([1400, 40, 0, -20, -20]) * 1024, 1024, 30.0, ("p",))
    evidence = judging.Evidence(
        (places, said, useful),
        basis,
        basis.means(*public, GENERATORS),
        authors,
        alike=np.arange(GENERATORS),
        block_of=np.zeros(LABELS, dtype=np.int64),
        label_shares=np.full(LABELS, 1.0 / LABELS),
        sample_variance=1e-5,
        strength=40.0,
        rng=lambda: np.random.default_rng(9),
    )

    def weights(*sums):
        found = evidence.shares(*sums)
        return (found.trust + found.matched + found.near)[:, 0] / 3.0

    told = noise_effect_of_sums(weights, *evidence.sums)
    drawn = []
    for _ in range(40):
        steps = [np.rint(rng.normal(0, each.sigma * each.scale, len(each.values))) for each in evidence.sums]
        moved = [replace(each, values=each.values + step) for each, step in zip(evidence.sums, steps, strict=True)]
        drawn.append(weights(*moved))
    assert np.all(np.abs(np.log(told / np.std(drawn, axis=0))) < np.log(1.6))
    assert noise_effect_of_sums(weights, *(replace(each, sigma=0.0) for each in evidence.sums)).tolist() == [0.0] * 4


def test_sums_of_groups_are_those_of_adding_row_after_row_to_the_last_bit():
    rng = np.random.default_rng(5)
    rows, group = rng.normal(size=(300, 7)).astype(np.float32), rng.integers(0, 4, 300)
    expected = np.zeros((5, 7))
    np.add.at(expected, group, rows)
    np.testing.assert_array_equal(group_sums(rows, group, 5), expected)


def test_texts_weigh_so_that_generators_and_labels_have_their_shares():
    author, group = np.array([0, 0, 0, 1, 1, 0]), np.array([0, 0, 1, 1, 1, 0])  # the second has none of label 0
    found = cell_shares(author, group, np.array([[0.3, 0.2], [0.4, 0.1]]))
    assert found == pytest.approx([0.1, 0.1, 0.2, 0.05, 0.05, 0.1])
