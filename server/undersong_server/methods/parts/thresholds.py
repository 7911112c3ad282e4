"""A classifier's biases, moved by how far the records of each label lie from its texts; docs/method.md, section 5."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_protocol.statistics.projections import PLACE
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.places import Directions, class_means, radius_of

EXPECTED = 0.15  # deviation of the records from the texts along the logits, in deviations of a label's texts


def at_thresholds(
    head: Float64,
    embeddings: Float32,
    label_of: Int64,
    weights: Float64,
    records: float,
    ask: Callable[[Float64], NoisySum],
) -> Float64:
    """Returns the classifier with its biases corrected for the shift of the records' logits common to all labels.

    Records report their places around their own label's texts along the C - 1 contrasts of the logits
    (:class:`~undersong_protocol.statistics.projections.Projections`). The label shares and the distances between labels
    therefore add no noise. The mean shift is shrunk by the noise, the sampling error of the records and the prior
    deviation ``EXPECTED``.

    Args:
        head: the classifier that the texts teach, float64 [d + 1, C].
        embeddings: of the texts, unit [n, d]; label_of: int64 [n]; weights: of the corpus, float64 [n].
        records: approximate number of records.
        ask: publishes projections and opens the sum of places along them.
    """
    classes, x = head.shape[1], embeddings.astype(np.float64)
    contrasts = np.linalg.svd(np.eye(classes) - 1.0 / classes)[0][:, : classes - 1]
    centres = class_means(x, label_of, weights, classes)
    logits = head[:-1] @ contrasts
    places = (x - centres[label_of]) @ logits
    frame = Directions(logits, centres, radius_of(places))
    opened, unit = ask(frame.published()), frame.radius / PLACE
    spread = float((weights @ places**2).mean() / weights.sum())
    expected, noise = EXPECTED**2 * spread, (opened.sigma * unit / records) ** 2 + spread / records
    found = head.copy()
    found[-1] -= contrasts @ (opened.natural[1:] * (unit / records)) * (expected / (expected + noise))
    return found
