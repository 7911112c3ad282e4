"""Densities of keyphrases and their prefixes against plain sums over the records, and the samplers' draws."""

import math

import numpy as np
import pytest

from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import quantise
from undersong_common.privacy.accounting import gaussian_mu
from undersong_protocol.statistics import LabelledEmbeddings, PublicInputs
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.terms import FourierFeatures
from undersong_server.methods.parts.keyphrases import (
    UNFILLED,
    Densities,
    english_words,
    read_vocabulary,
    significant_terms,
)


class Records:
    def __init__(self, texts, labels):
        self.texts, self.labels = texts, np.array(labels, dtype=np.int64)
        self.units = np.arange(len(texts))
        self.embeddings = np.zeros((len(texts), 2), dtype=np.float32)

    def __len__(self):
        return len(self.texts)


def unit_vectors(count, dimension, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(count, dimension))
    return quantise(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def opened(statistic, records, terms, vectors):
    public = PublicInputs(
        texts={"terms": terms},
        embeddings={"terms": LabelledEmbeddings(vectors, np.full(len(terms), -1, dtype=np.int64))},
    )
    scale = statistic.base_scale
    return contribute(statistic, statistic.rows(records, public, {}), scale=scale).values / scale


def exact_prefix(sequences, prefix, vectors, u, length):
    """Sum over records of exp(-u |x - y|^2) for y's phrases; an unfilled position is orthogonal to every term."""
    total = 0.0
    for sequence in sequences:
        squared = 0.0
        for position, term in enumerate(prefix):
            if position < len(sequence):
                squared += float(((vectors[sequence[position]].astype(float) - vectors[term]) ** 2).sum())
            else:
                squared += 1.0 + float((vectors[term].astype(float) ** 2).sum())
        total += math.exp(-u * squared)
    return total


TERMS = tuple(f"t{number}" for number in range(12))


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(1, 2, 4), (1, 2, 3, 4)])
def test_prefix_density_estimates_are_unbiased_for_every_length(lengths):
    """Theorem A.1: over 60 independent sets of frequencies the mean estimate is within six standard errors."""
    rng = np.random.default_rng(3)
    vectors = unit_vectors(12, 16, seed=1)
    sequences = [rng.permutation(12)[: rng.integers(1, 5)].tolist() for _ in range(25)]
    records = Records([" ".join(TERMS[term] for term in sequence) for sequence in sequences], [0] * 25)
    for size in (1, 2, 3, 4):
        prefix = np.array([sequences[0][:1] + [2, 5, 7][: size - 1]])
        held = min(length for length in lengths if length >= size)
        found = []
        for seed in range(60):
            statistic = FourierFeatures(pairs=128, classes=1, lengths=lengths, phrases=4, seed=seed)
            sums = opened(statistic, records, TERMS, vectors)
            found.append(Densities(statistic, sums, vectors).of_prefixes(0, prefix)[0])
        true = exact_prefix(sequences, prefix[0], vectors, 2.0 / held, held)
        # the rounding toward zero takes up to 1/2048 of every feature
        assert abs(np.mean(found) - true) < 6 * np.std(found) / math.sqrt(len(found)) + 25 / 1024, (size, true)


def test_density_of_a_term_is_the_sum_of_each_records_mean_kernel():
    vectors = unit_vectors(12, 16, seed=2)
    records = Records(["t0 t1", "t1 t2 t3", "t11"], [0, 0, 1])
    statistic = FourierFeatures(pairs=4096, classes=2, averaged=True)
    densities = Densities(statistic, opened(statistic, records, TERMS, vectors), vectors)
    squared = ((vectors[:, None].astype(float) - vectors[None]) ** 2).sum(axis=2)
    kernel = np.exp(-2.0 * squared)
    assert densities.of_terms(0) == pytest.approx(
        kernel[:, [0, 1]].mean(axis=1) + kernel[:, [1, 2, 3]].mean(axis=1), abs=0.12
    )
    assert densities.of_terms(1) == pytest.approx(kernel[:, 11], abs=0.12)


@pytest.mark.heavy
def test_density_noise_deviation_does_not_depend_on_the_feature_count():
    """docs/privacy.md, number 4: 0.89 on n times the density at epsilon 5; sqrt(structures) for an ensemble."""
    z = 1.0 / gaussian_mu(5.0, 1e-5)
    assert z == pytest.approx(0.89, abs=0.01)
    vectors = unit_vectors(3, 16)
    for pairs, lengths in ((64, (1,)), (256, (1,)), (128, (1, 2, 4, 8, 16))):
        statistic = FourierFeatures(pairs=pairs, classes=600, lengths=lengths, phrases=10)
        noise = np.random.default_rng(5).normal(scale=statistic.sensitivity.l2 * z, size=statistic.dimension)
        densities = Densities(statistic, noise, vectors)
        values = [densities.of_prefixes(label, np.array([[0]]))[0] for label in range(600)]
        # 600 values: within 15 % with probability over 0.9999
        assert np.std(values) == pytest.approx(z * math.sqrt(len(lengths)) / statistic.weights[0], rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["independent", "iterative"])
def test_drawn_sequences_follow_the_density_and_never_repeat_a_term(sampler):
    vectors = unit_vectors(12, 200, seed=4)  # nearly orthogonal
    records = Records(["t3 t4 t5"] * 200 + ["t8 t9"] * 100, [0] * 200 + [1] * 100)
    statistic = FourierFeatures(
        pairs=1024,
        classes=2,
        lengths=(1,) if sampler == "independent" else (1, 2, 3),
        phrases=3,
        averaged=sampler == "independent",
        width=9.0,
    )
    densities = Densities(statistic, opened(statistic, records, TERMS, vectors), vectors)
    draw = getattr(densities, sampler)
    drawn = draw(0, 300, 3, np.random.default_rng(0))
    assert drawn.shape == (300, 3)
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    assert np.isin(drawn, [3, 4, 5]).mean() > 0.6  # evenly drawn ones: 0.25
    if sampler == "iterative":  # the order of the records is learned too
        assert (drawn[:, 0] == 3).mean() > 0.6
    assert np.array_equal(drawn, draw(0, 300, 3, np.random.default_rng(0)))


@pytest.mark.slow
def test_key_phrase_sequence_ends_where_most_records_with_its_prefix_end():
    vectors = unit_vectors(12, 200, seed=4)  # nearly orthogonal
    records = Records(["t3 t4"] * 200 + ["t5 t6 t7"] * 200, [0] * 400)
    statistic = FourierFeatures(pairs=2048, lengths=(1, 2, 4), phrases=4, width=9.0)
    densities = Densities(statistic, opened(statistic, records, TERMS, vectors), vectors)
    options = {"sharpness": 4.0, "highest": 3}
    drawn = densities.iterative(0, 300, 4, np.random.default_rng(0), ends=True, **options)
    lengths = (drawn != UNFILLED).sum(axis=1)
    assert ((drawn == UNFILLED) == (np.arange(4) >= lengths[:, None])).all()  # a place after the end is empty too
    assert lengths.min() >= 1
    assert (lengths[(drawn[:, :2] == [3, 4]).all(axis=1)] == 2).all()
    assert (lengths[(drawn[:, :3] == [5, 6, 7]).all(axis=1)] == 3).all()
    assert {2, 3} <= set(lengths.tolist())
    whole = densities.iterative(0, 300, 4, np.random.default_rng(0), **options)
    assert (whole != UNFILLED).all()
    assert np.array_equal(whole[:, 0], drawn[:, 0])


@pytest.mark.parametrize("sampler", ["independent", "iterative"])
def test_sampled_term_has_one_of_the_highest_densities(sampler):
    """Against a sort of the densities of all extensions: in proportion among three, and the greatest one alone."""
    vectors = unit_vectors(8, 6, seed=1)
    statistic = FourierFeatures(pairs=64, lengths=(1,) if sampler == "independent" else (1, 2), phrases=2)
    sums = np.random.default_rng(5).normal(size=statistic.dimension)
    draw = getattr(Densities(statistic, sums, vectors, repeats=True), sampler)
    first = Densities(statistic, sums, vectors).of_prefixes(0, np.arange(8)[:, None])
    three = sorted(range(8), key=lambda term: -first[term])[:3]
    assert first[three].min() > 0
    shares = np.bincount(draw(0, 6000, 1, np.random.default_rng(1), highest=3)[:, 0], minlength=8) / 6000
    assert shares[three] == pytest.approx(first[three] / first[three].sum(), abs=0.03)
    assert shares[three].sum() == 1.0
    assert set(draw(0, 50, 1, np.random.default_rng(1), highest=1)[:, 0].tolist()) == {three[0]}
    distinct = getattr(Densities(statistic, sums, vectors), sampler)(0, 1, 2, np.random.default_rng(1), highest=1)[0]
    if sampler == "independent":
        assert distinct.tolist() == three[:2]
    else:
        after = Densities(statistic, sums, vectors).of_prefixes(0, np.array([[three[0], term] for term in range(8)]))
        after[three[0]] = -np.inf  # no term twice
        assert distinct.tolist() == [three[0], int(after.argmax())]


def test_terms_of_a_class_without_records_are_drawn_evenly():
    vectors = unit_vectors(6, 8)
    statistic = FourierFeatures(pairs=16, classes=2, lengths=(1, 2), phrases=2)
    densities = Densities(statistic, np.zeros(statistic.dimension), vectors)
    drawn = densities.iterative(1, 6000, 2, np.random.default_rng(0))
    assert np.bincount(drawn[:, 0], minlength=6).min() > 850
    assert (drawn[:, 0] != drawn[:, 1]).all()


def test_density_of_a_longer_prefix_than_was_released_is_refused():
    densities = Densities(FourierFeatures(pairs=4), np.zeros(8), unit_vectors(3, 4))
    with pytest.raises(ConfigurationError, match="no density holds prefixes of 2"):
        densities.of_prefixes(0, np.array([[0, 1]]))


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_terms_whose_density_is_within_noise_are_left_out(law):
    rng = np.random.default_rng(1)
    counts = np.zeros(50_000)
    counts[:40] = 90.0
    noise = (
        rng.normal(scale=10, size=50_000) if law == "gaussian" else rng.laplace(scale=10 / math.sqrt(2), size=50_000)
    )
    found = significant_terms(counts + noise, 10.0, most=1000, false_share=0.1, law=law)
    assert set(range(40)) - set(found.tolist()) == set() or law == "laplace"
    assert (found >= 40).mean() < 0.3  # 0.1 on average
    assert len(significant_terms(counts + noise, 10.0, most=1000, false_share=1.0, law=law)) == 1000
    assert len(significant_terms(noise, 10.0, most=1000, false_share=0.1, law=law)) <= 3
    assert significant_terms(counts, 0.0, most=30, false_share=0.1, law=law).tolist() == list(range(30))
    assert len(significant_terms(counts, 0.0, most=1000, false_share=0.1, law=law)) == 40


def test_vocabulary_file_gives_distinct_terms_or_an_error_naming_the_fault(tmp_path):
    path = tmp_path / "terms.txt"
    path.write_text("Chest pain\n\n  fever \nFEVER\n--\nx-ray\n", encoding="utf-8")
    assert read_vocabulary(path) == ("Chest pain", "fever", "x-ray")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n--\n")
    with pytest.raises(ConfigurationError, match="holds no term"):
        read_vocabulary(empty)
    with pytest.raises(ConfigurationError, match="no such file"):
        read_vocabulary(tmp_path / "none.txt")
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        read_vocabulary(broken)


def test_english_vocabulary_omits_the_commonest_and_shortest_words():
    pytest.importorskip("wordfreq")
    found = english_words(3000, 200)
    assert 2000 < len(found) <= 3000
    assert not {"the", "and", "of"} & set(found)
    assert min(map(len, found)) >= 3
    assert len(set(found)) == len(found)
