"""Figures of the method discriminator: the epsilon that its paper's noise spends, and its accuracy on real texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from undersong_common.arrays import Int64
from undersong_common.embedding import Embed
from undersong_common.privacy import accounting
from undersong_server.evaluation.scores import discrimination, precision_and_recall
from undersong_server.methods.interface import Records

STRICT_SHARE = 0.25  # of the synthetic texts that precision, recall and F1 let pass for real
PAPER_SIGMA = 1.676  # of each query's counts (Song et al. 2024, epsilon 3.6)


def paper_figures(queries: int, delta: float) -> Mapping[str, float]:
    """Returns the epsilon of the paper's noise over all queries, for its two counts per query and for scalar counts."""
    return {
        "sigma": PAPER_SIGMA,
        "epsilon_really_spent": _composed(PAPER_SIGMA / math.sqrt(2.0), queries, delta),
        "epsilon_as_scalar_counts": _composed(PAPER_SIGMA, queries, delta),
    }


def figures(records: Records, embed: Embed, test: Sequence[str], labels: Int64) -> Mapping[str, Any]:
    """Measures how well the discriminator separates real test texts from candidates that it was not fitted on.

    Args:
        records: of the run: "discriminator", "student" and "held out".
        embed: texts to quantised embeddings.
        test: real texts, with ``labels`` as indices, int64 [n].
    """
    found: dict[str, Any] = {"discriminator": records["discriminator"][-1][1]}
    student, (held, classes) = records["student"][-1][1], records["held out"][-1][1]
    if student is None or not len(held):
        return found
    real, others = np.maximum(labels, 0), [one.text for one in held]
    given = student.scores(test, embed(test), real), real, student.scores(others, embed(others), classes), classes
    accuracy, auc = discrimination(*given)
    precision, recall, f1 = precision_and_recall(*given, STRICT_SHARE)
    return found | {
        "discriminator_accuracy": accuracy,
        "discriminator_auc": auc,
        "discriminator_precision": precision,
        "discriminator_recall": recall,
        "discriminator_f1": f1,
    }


def _composed(multiplier: float, count: int, delta: float) -> float:
    return accounting.epsilon([accounting.Gaussian(multiplier, count=count)], delta)
