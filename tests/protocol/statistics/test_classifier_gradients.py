"""Gradients of a public classifier: what the sum is, its bounds for anything that may be published, and refusals."""

import math
import tracemalloc

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
from undersong_protocol.statistics.classifier_gradients import GRADIENT_SCALE, ClassifierGradients
from undersong_protocol.statistics.classifier_votes import NEVER
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.projections import COUNT, PLACE

WIDTH = 12


class Records:
    def __init__(self, embeddings, labels, units=None):
        self.embeddings, self.labels = quantise(embeddings), np.asarray(labels)
        self.units = np.arange(len(self.labels)) if units is None else np.asarray(units)

    def __len__(self):
        return len(self.labels)


def table(statistic, records, classifier, projections):
    """The rows, float64 [n, P + 1, C], of inputs that a party takes."""
    public = PublicInputs(numbers={"classifier": classifier, "projections": projections})
    statistic.check_inputs(public, PublicFacts(records.embeddings.shape[1], statistic.labels))
    rows = statistic.rows(records, public, {})
    return rows, rows.take(np.arange(len(rows))).reshape(-1, statistic.directions + 1, statistic.labels)


def made(seed=0, count=40, directions=4, labels=3):
    rng = np.random.default_rng(seed)
    numbers = (COEFFICIENTS.quantised(rng.normal(size=(WIDTH + 1, columns))) for columns in (labels, directions))
    return Records(rng.normal(size=(count, WIDTH)), rng.integers(-1, labels, count)), *numbers


def errors_of(records, classifier):
    """e - p of each record, float64 [n, C], with exponents as they are; zeros without a label."""
    logits = records.embeddings.astype(np.float64) @ classifier[:-1] + classifier[-1]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    known = records.labels >= 0
    found = -odds / odds.sum(axis=1, keepdims=True) * known[:, None]
    found[known, records.labels[known]] += 1.0
    return found


def test_the_sum_is_the_gradient_of_the_log_likelihood_along_the_directions():
    """By differences, where the classifier is not very wrong; exponents are looked up in steps of 1/4096."""
    records, classifier, projections = made(count=300)
    close = np.linalg.norm(errors_of(records, classifier), axis=1) <= 1.0
    assert 30 < (close & (records.labels >= 0)).sum() < 200
    records = Records(records.embeddings[close], records.labels[close])
    statistic = ClassifierGradients(4, 3)
    found = table(statistic, records, classifier, projections)[1].sum(axis=0)
    x, known = records.embeddings.astype(np.float64), records.labels >= 0
    q = x @ projections[:-1] - projections[-1]
    lengths = np.linalg.norm(q, axis=1, keepdims=True)
    assert lengths.min() < 1 < lengths.max()
    u = np.hstack([np.full((len(x), 1), COUNT), PLACE * q / np.maximum(1.0, lengths)])

    def likelihood(change):
        logits = (x @ classifier[:-1] + classifier[-1] + u @ change)[known]
        odds = np.exp(logits)
        return np.log(odds[np.arange(known.sum()), records.labels[known]] / odds.sum(axis=1)).sum()

    for at in np.ndindex(5, 3):
        step = np.zeros((5, 3))
        step[at] = 1e-4
        assert found[at] == pytest.approx((likelihood(step) - likelihood(-step)) / 2e-4, abs=0.02)


def test_what_a_classifier_is_very_wrong_about_counts_with_length_one_and_in_its_direction():
    records, classifier, projections = made(count=200)
    errors = table(ClassifierGradients(4, 3), records, classifier, projections)[1][:, 0] / COUNT
    plain = errors_of(records, classifier)
    lengths = np.linalg.norm(plain, axis=1)
    assert (lengths > 1.1).sum() > 10
    assert errors == pytest.approx(plain / np.maximum(1.0, lengths)[:, None], abs=2e-4)


@st.composite
def published(draw):
    """Ordinary and the largest numbers, labels that a classifier never saw, far offsets, directions that are alike."""
    directions, labels = draw(st.integers(1, 9)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = st.sampled_from([0.0, 2.0**-16, 0.3, 5.0, COEFFICIENTS.largest])
    found = []
    for columns in (labels, directions):
        values = rng.normal(size=(WIDTH + 1, columns)) * draw(sizes)
        values[-1] = rng.normal(size=columns) * draw(sizes)
        if draw(st.booleans()):
            values[-1, rng.integers(0, columns)] = NEVER
        if draw(st.booleans()):
            values[:] = values[:, :1]
        found.append(COEFFICIENTS.quantised(values))
    values = rng.normal(size=(20, WIDTH))
    values[:3] = np.array([0.0, 1.0, -1.0])[:, None] * np.eye(WIDTH)[0]
    return ClassifierGradients(directions, labels), Records(values, rng.integers(-1, labels, 20)), *found


@settings(max_examples=25, deadline=None)
@given(published(), st.integers(1, 3), st.sampled_from(["mean", "sum"]))
def test_no_unit_passes_the_bounds_whatever_is_published(given_, most, way):
    """In integers, where nothing is rounded; and nothing is clipped: an outer product has the product of the norms."""
    statistic, records, classifier, projections = given_
    rows, matrix = table(statistic, records, classifier, projections)
    flat = matrix.reshape(len(matrix), -1)
    for asked, row, _ in units_within_bounds(statistic, rows, flat, GRADIENT_SCALE, most, way, longest_square=1):
        assert np.abs(row).max() > 0 or not flat[asked].sum(axis=0).round(3).any()


@pytest.mark.parametrize("alike", [True, False])
def test_every_bound_is_reached_by_a_classifier_that_is_sure_of_wrong_labels(alike):
    statistic, bound = ClassifierGradients(4, 3), ClassifierGradients(4, 3).sensitivity
    projections = np.zeros((3, 4))
    projections[0] = 9.0 if alike else [9.0, 0.0, 0.0, 0.0]
    classifier = np.array([[0.0, 40.0, 40.0], [0.0] * 3, [0.0] * 3])
    row = np.abs(table(statistic, Records(np.array([[1.0, 0.0]]), [0]), classifier, projections)[1][0])
    assert np.linalg.norm(row) == pytest.approx(bound.l2, rel=1e-14)
    if alike:
        assert row.sum() == pytest.approx(bound.l1, rel=1e-14)
    else:
        assert row.max() == pytest.approx(bound.linf, rel=1e-14)


SURE_ERRORS = np.array([[0.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]]) / math.sqrt(2.0)

TIED_ERRORS = np.array([[0.5, -0.5, 0.0], [-0.5, 0.5, 0.0], np.array([-0.5, -0.5, 1.0]) / math.sqrt(1.5)])


def test_errors_of_ties_of_sure_labels_and_of_labels_that_nothing_bears():
    statistic, projections = ClassifierGradients(1, 3), np.zeros((3, 1))
    records = Records(np.array([[1.0, 0.0]] * 5), [0, 1, 2, -1, 7])
    for biases, expected in (
        ([0.0, -0.0, 0.0], np.eye(3) - 1 / 3),
        ([0.0, -16.0, NEVER], SURE_ERRORS),  # from 16 exponents on a label has no odds at all
        ([NEVER, NEVER, NEVER], np.eye(3) - 1 / 3),
        ([65536.0, 65536.0, NEVER], TIED_ERRORS),
    ):
        errors = table(statistic, records, np.array([[0.0] * 3, [0.0] * 3, biases]), projections)[1]
        assert errors[:3, 0] == pytest.approx(COUNT * expected, abs=1e-15)
        assert not errors[:, 1].any()
        assert not errors[3:].any()


def test_rows_of_many_labels_take_little_more_memory_than_the_rows_themselves():
    records, classifier, projections = made(count=400, directions=64, labels=77)
    statistic = ClassifierGradients(64, 77)
    assert statistic.dimension == 5_005
    tracemalloc.start()
    try:
        table(statistic, records, classifier, projections)
        assert tracemalloc.get_traced_memory()[1] < 1.3 * 8 * 400 * 5_005
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["classifier", "projections"])
def test_what_does_not_fit_is_refused(name):
    statistic, facts = ClassifierGradients(4, 3), PublicFacts(WIDTH, 3)
    good = dict(zip(("classifier", "projections"), made()[1:], strict=True))
    statistic.check_inputs(PublicInputs(numbers=good), facts)
    for wrong, why in (
        (good[name][:-1], "of shape"),
        (good[name][:, :-1], "of shape"),
        (good[name].T, "of shape"),
        (good[name][None], "of shape"),
        (good[name] + 2.0**-17, "multiples"),
        (good[name] + COEFFICIENTS.largest * 2, "at most"),
        (np.full_like(good[name], np.nan), "finite"),
        (np.full_like(good[name], 1e308), "finite"),
    ):
        with pytest.raises(ConfigurationError, match=f"{name}.*{why}"):
            statistic.check_inputs(PublicInputs(numbers=good | {name: wrong}), facts)
    with pytest.raises(ConfigurationError, match=name):
        statistic.check_inputs(PublicInputs(numbers={key: good[key] for key in good if key != name}), facts)
    with raises(ConfigurationError, "other-labels"):
        statistic.check_inputs(PublicInputs(numbers=good), PublicFacts(WIDTH, 4))


@pytest.mark.parametrize("wrong", [(0, 2), (1, 1), (True, 2), (1, 2.0), (-1, 2)])
def test_no_plan_has_fewer_than_one_direction_or_two_labels(wrong):
    with raises(ConfigurationError, "number-out-of-range"):
        ClassifierGradients(*wrong)


def test_it_travels_by_name_and_parameters():
    statistic = ClassifierGradients(3, 5)
    assert statistics.build(statistic.name, statistics.parameters(statistic)) == statistic
    assert math.isclose(statistic.sensitivity.l1, 2 * math.sqrt(0.8) * (0.5 + math.sqrt(0.75 * 3)))
