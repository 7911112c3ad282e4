"""Probabilities of a public classifier: what their sum is, its bounds whatever may be published, and refusals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.unit_bounds import units_within_bounds
from undersong_common.embedding import quantise
from undersong_common.errors import ConfigurationError
from undersong_protocol import statistics
from undersong_protocol.statistics import PublicFacts, PublicInputs
from undersong_protocol.statistics.classifier_probabilities import (
    PROBABILITY_SCALE,
    ClassifierProbabilities,
)
from undersong_protocol.statistics.contribution import BLOCK_ROWS, contribute
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.projections import COUNT, PLACE

WIDTH = 12
LARGEST = COEFFICIENTS.largest


class Records:
    """Without labels, which this statistic does not read."""

    def __init__(self, embeddings):
        self.embeddings = quantise(embeddings)
        self.units = np.arange(len(self.embeddings))

    def __len__(self):
        return len(self.units)


def table(statistic, records, classifier):
    """The rows, float64 [n, K + 1], of an input that a party takes."""
    public = PublicInputs(numbers={"classifier": classifier})
    statistic.check_inputs(public, PublicFacts(records.embeddings.shape[1], 0))
    rows = statistic.rows(records, public, {})
    return rows, rows.take(np.arange(len(rows)))


def made(seed=0, count=40, classes=3, size=1.0):
    rng = np.random.default_rng(seed)
    records = Records(rng.normal(size=(count, WIDTH)))
    return records, COEFFICIENTS.quantised(size * rng.normal(size=(WIDTH + 1, classes)))


@pytest.mark.parametrize("classes", [2, 3, 100])
def test_the_sum_is_that_of_the_centred_probabilities(classes):
    """Against plain exponentials; those of the statistic are looked up in steps of 1/4096."""
    records, classifier = made(count=200, classes=classes, size=3.0)
    found = table(ClassifierProbabilities(classes), records, classifier)[1]
    for row, x in zip(found, records.embeddings.astype(np.float64), strict=True):
        odds = [math.exp(float(x @ classifier[:-1, k] + classifier[-1, k])) for k in range(classes)]
        expected = [math.sqrt(classes / (classes - 1)) * (each / sum(odds) - 1 / classes) for each in odds]
        assert row[0] == COUNT
        assert row[1:] == pytest.approx(PLACE * np.array(expected), abs=2e-4)
    likeliest = (records.embeddings @ classifier[:-1] + classifier[-1]).argmax(axis=1)
    assert (found[:, 1:].argmax(axis=1) == likeliest).all()
    assert len(set(likeliest.tolist())) > 1


def test_probabilities_of_ties_and_of_sure_classes():
    statistic, records = ClassifierProbabilities(3), Records(np.array([[1.0, 0.0], [0.0, 0.0]]))
    for biases, expected in (
        ([0.0, -0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]),
        ([0.0, -16.0, -LARGEST], [1.0, 0.0, 0.0]),  # from 16 exponents on a class has no odds at all
        ([-LARGEST, -LARGEST, -LARGEST], [1 / 3, 1 / 3, 1 / 3]),
        ([LARGEST, LARGEST, -LARGEST], [0.5, 0.5, 0.0]),
    ):
        rows = table(statistic, records, np.array([[0.0] * 3, [0.0] * 3, biases]))[1]
        assert rows[:, 0].tolist() == [COUNT, COUNT]
        for row in rows[:, 1:]:
            assert row / PLACE / math.sqrt(3 / 2) + 1 / 3 == pytest.approx(expected, abs=1e-15)


@st.composite
def published(draw):
    """Ordinary and the largest numbers, classes that nothing speaks for, classes that are alike, and one class sure."""
    classes = draw(st.sampled_from([2, 3, 4, 7, 30, 100]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = st.sampled_from([0.0, 2.0**-16, 0.3, 5.0, LARGEST])
    classifier = rng.normal(size=(WIDTH + 1, classes)) * draw(sizes)
    classifier[-1] = rng.normal(size=classes) * draw(sizes)
    if draw(st.booleans()):
        classifier[-1, rng.integers(0, classes)] = draw(st.sampled_from([-LARGEST, LARGEST]))
    if draw(st.booleans()):
        classifier[:] = classifier[:, :1]
    values = rng.normal(size=(20, WIDTH))
    values[:3] = np.array([0.0, 1.0, -1.0])[:, None] * np.eye(WIDTH)[0]
    return ClassifierProbabilities(classes), Records(values), COEFFICIENTS.quantised(classifier)


@settings(max_examples=40, deadline=None)
@given(published(), st.integers(1, 3), st.sampled_from(["mean", "sum"]))
def test_no_unit_passes_the_bounds_whatever_is_published(given_, most, way):
    """In integers, where nothing is rounded; and nothing is clipped, so that a unit's integers are its rows'."""
    statistic, records, classifier = given_
    rows, matrix = table(statistic, records, classifier)
    units = units_within_bounds(statistic, rows, matrix, PROBABILITY_SCALE, most, way, longest_square=1)
    for asked, row, factor in units:
        exact = matrix[asked].sum(axis=0) * factor
        assert np.abs(row - exact).max() < 1 + 1e-6


@pytest.mark.parametrize("classes", [2, 3, 4, 10, 100, 1000])
@pytest.mark.parametrize("bias", [16.0, LARGEST])
def test_every_bound_is_reached_by_a_classifier_that_is_sure(classes, bias):
    statistic, bound = ClassifierProbabilities(classes), ClassifierProbabilities(classes).sensitivity
    classifier = np.zeros((3, classes))
    classifier[-1, classes // 2] = bias
    rows, matrix = table(statistic, Records(np.array([[0.6, -0.8]])), classifier)
    row = np.abs(matrix[0])
    assert row.sum() == pytest.approx(bound.l1, rel=1e-14)
    assert np.linalg.norm(row) == pytest.approx(bound.l2, rel=1e-14)
    assert row.max() == pytest.approx(bound.linf, rel=1e-14)
    for scale in (PROBABILITY_SCALE, 2**22):
        integers = contribute(statistic, rows, scale=scale).values.tolist()
        assert (scale - classes) ** 2 < sum(value**2 for value in integers) <= scale**2


def test_sums_over_parts_of_the_records_add_up_to_the_sum_of_all():
    """More records than are computed at a time, in another order."""
    count = BLOCK_ROWS + 300
    records, classifier = made(count=count, classes=5, size=4.0)
    statistic = ClassifierProbabilities(5)
    rows, matrix = table(statistic, records, classifier)
    order = np.random.default_rng(0).permutation(count)
    np.testing.assert_array_equal(rows.take(order), matrix[order])
    whole = contribute(statistic, rows, scale=PROBABILITY_SCALE).values
    parts = [
        contribute(statistic, table(statistic, Records(records.embeddings[part]), classifier)[0], scale=4096).values
        for part in np.split(order, [1, 40, 1000, BLOCK_ROWS + 1])
    ]
    np.testing.assert_array_equal(sum(parts), whole)
    assert whole[0] == count * COUNT * PROBABILITY_SCALE
    nobody = contribute(statistic, table(statistic, Records(np.zeros((0, WIDTH))), classifier)[0], scale=4096)
    assert not nobody.values.any()


@pytest.mark.parametrize("labels", [0, 3, 9])
def test_the_task_may_have_any_labels_or_none(labels):
    public = PublicInputs(numbers={"classifier": made()[1]})
    ClassifierProbabilities(3).check_inputs(public, PublicFacts(WIDTH, labels))


def test_what_does_not_fit_is_refused():
    statistic, facts, good = ClassifierProbabilities(3), PublicFacts(WIDTH, 3), made()[1]
    for wrong, why in (
        (good[:-1], "of shape"),
        (good[:, :-1], "of shape"),
        (good.T, "of shape"),
        (good[None], "of shape"),
        (good + 2.0**-17, "multiples"),
        (good + LARGEST * 2, "at most"),
        (np.full_like(good, np.nan), "finite"),
        (np.full_like(good, -np.inf), "finite"),
        (np.full_like(good, 1e308), "finite"),
    ):
        with pytest.raises(ConfigurationError, match=f"classifier.*{why}"):
            statistic.check_inputs(PublicInputs(numbers={"classifier": wrong}), facts)
    for numbers in ({}, {"classifiers": good}, {"classifier": good, "projections": good}):
        with pytest.raises(ConfigurationError, match="classifier_probabilities"):
            statistic.check_inputs(PublicInputs(numbers=numbers), facts)
    long = PublicFacts(4097, 3)
    with raises(ConfigurationError, "embeddings-too-long"):
        statistic.check_inputs(PublicInputs(numbers={"classifier": np.zeros((4098, 3))}), long)


@pytest.mark.parametrize("wrong", [0, 1, -1, True, 2.0, "2"])
def test_no_plan_has_fewer_than_two_classes(wrong):
    with raises(ConfigurationError, "number-out-of-range"):
        ClassifierProbabilities(wrong)


def test_it_travels_by_name_and_parameters():
    statistic = ClassifierProbabilities(5)
    assert statistics.build(statistic.name, statistics.parameters(statistic)) == statistic
    assert statistic.dimension == 6
