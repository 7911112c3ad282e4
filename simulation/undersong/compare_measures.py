"""What a comparison measures of each cell's corpus beside the test texts, other than its usefulness."""

from __future__ import annotations

import math
from collections.abc import Sequence

from undersong_common.arrays import Float32
from undersong_common.threads import one_numpy_thread

HEADINGS = {
    "frechet": "Frechet",
    "mauve": "MAUVE",
    "density": "density",
    "coverage": "coverage",
    "distinct_bigrams": "different word pairs",
    "self_bleu": "self-BLEU",
    "vendi": "Vendi score",
    "wrong_labels": "wrong labels",
}
"""Keys of :func:`measured`, and the columns' names."""


def measured(
    texts: Sequence[str],
    labels: Sequence[str],
    embeddings: Float32,
    reference: Float32,
    *,
    rows: int,
    seed: int,
) -> dict[str, float | None]:
    """Every figure of :data:`HEADINGS`; None where one cannot be computed.

    All but the share of wrong labels are of ``rows`` texts of the corpus, [n, d], and as many of the test set:
    figures compare at equal numbers only. They are None where a side has fewer.
    """
    from undersong_server.evaluation import diversity, metrics
    from undersong_server.evaluation.label_errors import corpus_label_errors
    from undersong_server.evaluation.mauve import FEWEST_TEXTS, mauve
    from undersong_server.evaluation.neighbourhoods import neighbourhoods

    found: dict[str, float | None] = dict.fromkeys(HEADINGS)
    with one_numpy_thread():
        if len(set(labels)) > 1:
            found["wrong_labels"] = corpus_label_errors(embeddings, labels, seed=seed).share
        if min(len(texts), len(reference)) < rows:
            return found
        ours, theirs = metrics.equal_choice(len(texts), len(reference), rows=rows, seed=seed)
        synthetic, real = embeddings[ours], reference[theirs]
        chosen = [texts[row] for row in ours]
        found["frechet"] = metrics.frechet_distance(synthetic, real) if rows > 1 else None
        if rows > 5:
            near = neighbourhoods(synthetic, real)
            found["density"], found["coverage"] = near.density, near.coverage
        if rows >= FEWEST_TEXTS:
            found["mauve"] = mauve(synthetic, real, seed=seed)
        found["distinct_bigrams"] = diversity.distinct_n(chosen, 2)
        found["self_bleu"] = diversity.self_bleu(chosen, seed=seed)
        found["vendi"] = diversity.vendi_score(synthetic)
    return {name: value if value is not None and math.isfinite(value) else None for name, value in found.items()}
