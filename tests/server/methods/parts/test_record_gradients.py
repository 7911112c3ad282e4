"""The records' gradient moves the classifier of the texts as far as its noise lets it, and no further."""

import numpy as np
import pytest

from undersong_common.embedding import quantise
from undersong_protocol.statistics import PublicInputs
from undersong_protocol.statistics.classifier_gradients import ClassifierGradients
from undersong_protocol.statistics.projections import places
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import consistency, record_gradients

WIDTH, STEPS = 8, 3
STATISTIC = ClassifierGradients(record_gradients.DIRECTIONS, 2)
TEXTS_SEE, RECORDS_SEE = np.eye(WIDTH)[0], np.eye(WIDTH)[0] + 0.7 * np.eye(WIDTH)[1]  # normals of their boundaries


class Labelled:
    """Unit vectors and their labels."""

    def __init__(self, vectors, labels=None):
        self.embeddings = quantise(vectors)
        self.labels = labels
        self.units = np.arange(len(vectors))

    def __len__(self):
        return len(self.units)


def sided(rng, count, normal):
    """Vectors whose label is the side of a boundary on which each lies."""
    found = Labelled(rng.normal(size=(count, WIDTH)))
    found.labels = (found.embeddings @ normal > 0).astype(np.int64)
    return found


def opened(records, sigma, rng, statistic=STATISTIC):
    """What the records answer to a published classifier, with noise."""

    def ask(classifier, projections):
        public = PublicInputs(numbers={"classifier": classifier, "projections": projections})
        total = statistic.rows(records, public, {}).take(np.arange(len(records))).sum(axis=0)
        values = total + sigma * rng.normal(size=total.shape)
        return NoisySum(np.rint(values * 4096).astype(np.int64), 4096, sigma, ("p",))

    return ask


def test_the_classifier_follows_the_records_as_far_as_the_noise_lets_it():
    rng = np.random.default_rng(0)
    texts, records = sided(rng, 500, TEXTS_SEE), sided(rng, 2000, RECORDS_SEE)
    right = (texts.embeddings @ RECORDS_SEE > 0).astype(np.int64)
    weights = np.ones(len(texts))
    alone = consistency.classifier(texts.embeddings, texts.labels, 2, strength=1.0, weights=weights)
    told, longer, drowned = (
        record_gradients.moved(
            alone,
            texts.embeddings,
            weights,
            len(records),
            [opened(records, sigma, rng)] * steps,
        )
        for sigma, steps in ((5.0, STEPS), (5.0, 8 * STEPS), (1e4, STEPS))
    )
    before, after, at_last = (
        float((consistency.probabilities(head, texts.embeddings).argmax(axis=1) == right).mean())
        for head in (alone, told, longer)
    )
    assert after > before + 0.02
    assert at_last > after + 0.02
    assert consistency.probabilities(drowned, texts.embeddings) == pytest.approx(
        consistency.probabilities(alone, texts.embeddings), abs=0.05
    )


def test_a_change_along_the_directions_is_the_same_change_of_the_published_classifier():
    rng = np.random.default_rng(2)
    texts = sided(rng, 50, TEXTS_SEE)
    projections = record_gradients._frame(texts.embeddings, np.ones(50)).published()
    projections *= 0.4  # all texts within the radius, where places are linear
    change = rng.normal(size=(record_gradients.DIRECTIONS + 1, 2))
    lifted = record_gradients._lifted(change, projections)
    logits = places(texts.embeddings.astype(np.float64), projections[:-1], projections[-1]) @ change
    assert texts.embeddings @ lifted[:-1] + lifted[-1] == pytest.approx(logits, abs=1e-5)
