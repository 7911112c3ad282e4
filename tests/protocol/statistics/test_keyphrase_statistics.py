"""Term histograms and Fourier features: what counts, what does not, and bounds that no record passes."""

import math

import numpy as np
import pytest

from tests.doubles.example_records import Records, dense
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import quantise
from undersong_protocol.statistics import LabelledEmbeddings, PublicInputs
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.terms import FourierFeatures, TermHistogram, Terms

TERMS = ("heart", "heart failure", "pain", "Chest  Pain", "fever", "x-ray")


def vectors(count, dimension=24, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(count, dimension))
    return quantise(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def publish_terms(terms=TERMS, seed=0):
    return PublicInputs(
        texts={"vocabulary": terms, "terms": terms},
        embeddings={
            "terms": LabelledEmbeddings(vectors(len(terms), seed=seed), np.full(len(terms), -1, dtype=np.int64))
        },
    )


def rows_of(statistic, records):
    return statistic.rows(records, publish_terms(), {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Heart FAILURE and pain", [1, 2]),
        ("heart\n\tfailure", [1]),
        ("failure of the heart", [0]),
        ("chest pain, pain", [3, 2]),
        ("chest. Pain", [3]),  # punctuation only separates
        ("heartfelt painful fevers", []),
        ("X ray, x-ray: fever", [5, 4]),
        ("", []),
    ],
)
def test_longest_terms_match_in_order_with_case_and_spaces_folded(text, found):
    assert Terms(TERMS).of(text) == found


def test_only_the_first_distinct_terms_count():
    records = Records(["fever fever heart pain", "nothing of that", "pain"])
    found = dense(rows_of(TermHistogram(vocabulary=6, distinct=2), records))
    assert found.tolist() == [
        [1, 0, 0, 0, 1, 0],
        [0] * 6,
        [0, 0, 1, 0, 0, 0],
    ]
    total = contribute(
        TermHistogram(vocabulary=6, distinct=2),
        TermHistogram(vocabulary=6, distinct=2).rows(records, publish_terms(), {}),
        scale=256,
    )
    assert (total.values / 256).tolist() == [1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ((), "empty"),
        (("fever", "Fever"), "differ only in case"),
        (("x ray", "X-Ray"), "differ only"),
        (("--",), "no word"),
        (("fever", " ".join(f"w{n}" for n in range(17))), "term 2, .* more than 16 words"),
    ],
)
def test_malformed_keyphrase_vocabularies_are_refused(terms, message):
    with pytest.raises(ConfigurationError, match=message):
        Terms(terms)


def test_fourier_vector_of_a_record_has_exact_norm_in_its_class_only():
    statistic = FourierFeatures(pairs=6, classes=3, lengths=(1, 2), phrases=2)
    rows = rows_of(statistic, Records(["fever and pain", "heart", "no term", "pain"], [2, 0, 1, -1]))
    matrix = dense(rows)
    assert rows.units.tolist() == [0, 1]  # neither the record without a term nor the one without a label
    assert np.linalg.norm(matrix[:, :]) == pytest.approx(math.sqrt(2 * 2 * 6))
    blocks = matrix.reshape(2, 3, 24)
    assert np.flatnonzero(np.abs(blocks[0]).sum(axis=1)).tolist() == [2]
    assert np.flatnonzero(np.abs(blocks[1]).sum(axis=1)).tolist() == [0]


def test_fourier_ensemble_l2_bound_is_the_root_of_its_structures():
    one = FourierFeatures(pairs=512).sensitivity
    assert one.l2 == pytest.approx(math.sqrt(512))
    assert one.l1 == pytest.approx(math.sqrt(2) * 512)
    five = FourierFeatures(pairs=512, lengths=(1, 2, 4, 8, 16), phrases=10)
    assert five.sensitivity.l2 == pytest.approx(math.sqrt(5) * one.l2, rel=1e-12)
    assert sum(weight**2 for weight in five.weights) == pytest.approx(5, rel=1e-12)
    assert five.sensitivity.linf == max(five.weights) > 1
    assert 4 * one.l1 < five.sensitivity.l1 < 5 * one.l1
    linear = FourierFeatures(pairs=512, lengths=tuple(range(1, 11)), phrases=10)
    assert linear.weights == pytest.approx([1.0] * 10, rel=1e-12)
    assert linear.sensitivity.l1 == pytest.approx(10 * one.l1)


@pytest.mark.parametrize(("lengths", "phrases", "width"), [((1, 2, 4, 8, 16), 10, 2.0), ((1, 2, 4), 3, 5.0)])
def test_weights_give_the_noise_the_same_share_of_every_structure_s_error(lengths, phrases, width):
    """The error without noise, from explicit vectors: two records and a query of orthogonal phrases."""
    statistic = FourierFeatures(pairs=4, lengths=lengths, phrases=phrases, width=width)

    def concatenated(who, filled, length, padding):
        blocks = np.zeros((length, 3 * length + 1))
        for position in range(length):
            if position < filled:
                blocks[position, 3 * position + who] = 1
            elif padding:
                blocks[position, -1] = 1
        return blocks.ravel()

    shares, shorter = [], 0
    for length, weight in zip(lengths, statistic.weights, strict=True):
        query = concatenated(2, min(shorter + 1, phrases), length, padding=False)
        x, y = (concatenated(who, min(length, phrases), length, padding=True) - query for who in (0, 1))
        kernel = [math.exp(-width / length * float(d @ d)) for d in (x - y, x + y, x, y)]
        shares.append(1 / (weight**2 * ((kernel[0] + kernel[1]) / 2 - kernel[2] * kernel[3])))
        shorter = length
    assert shares == pytest.approx([shares[0]] * len(shares), rel=1e-9)


def test_structure_weights_stay_finite_and_none_becomes_negligible():
    for width in (1e-5, 2.0, 999.0, 9e5):
        weights = FourierFeatures(pairs=1, lengths=(1, 2, 4, 64), phrases=5, width=width).weights
        assert min(weights) >= 0.1 * max(weights) * (1 - 1e-12)
        assert sum(weight**2 for weight in weights) == pytest.approx(4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pairs": 0},
        {"pairs": 4, "lengths": ()},
        {"pairs": 4, "lengths": (1, 2), "averaged": True},
        {"pairs": 4, "width": 0.0},
        {"pairs": 4, "width": "wide"},
        {"pairs": 4, "phrases": 0},
    ],
)
def test_wrong_parameters_of_features_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        FourierFeatures(**wrong)


@pytest.mark.heavy
def test_features_estimate_the_kernel_without_bias():
    """Mean over 400 independent sets of 64 frequencies against the kernel itself, at six standard errors."""
    points = vectors(2, seed=5)
    inputs = PublicInputs(
        texts={"terms": ("one", "two")},
        embeddings={"terms": LabelledEmbeddings(points, np.array([-1, -1]))},
    )
    true = math.exp(-2.0 * float(((points[0].astype(float) - points[1]) ** 2).sum()))
    found = []
    for seed in range(400):
        statistic = FourierFeatures(pairs=64, averaged=True, seed=seed)
        rows = statistic.rows(Records(["one", "two"]), inputs, {})
        one, two = rows.take(np.arange(2)).toarray()
        found.append(float(one @ two) / 64)
    assert abs(np.mean(found) - true) < 6 * np.std(found) / math.sqrt(len(found))
    assert np.std(found) > 0
