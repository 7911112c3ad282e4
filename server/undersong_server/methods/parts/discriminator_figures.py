"""Figures of the method discriminator: the epsilon that its paper's noise spends, and its accuracy on real texts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from undersong_common.arrays import Int64
from undersong_common.embedding import Embed
from undersong_common.errors import ConfigurationError
from undersong_common.privacy import accounting
from undersong_protocol.agreement.plan import Privacy
from undersong_server.evaluation.scores import discrimination, precision_and_recall
from undersong_server.methods.interface import Records

STRICT_SHARE = 0.25  # of the synthetic texts that precision, recall and F1 let pass for real


@dataclass(frozen=True)
class PaperNoise:
    """The paper's noise, in records: of a class's count (``tutor``), and of the scalar sum for one query (``answer``).

    The paper noises two counts for each query, private and public, and takes the larger; the difference decides, so one
    scalar of sigma / sqrt(2) decides by the same law.
    """

    tutor: float
    answer: float


def paper_noise(stated: Privacy, tutor_epsilon: float) -> PaperNoise:
    """Section 4: analytic Gaussians of sensitivity sqrt(2) at ``tutor_epsilon`` and at the rest; no noise at infinity.

    No delta and no sigma is printed; both mechanisms are taken at the run's delta.

    >>> noise = paper_noise(Privacy(4.0, 1e-5), 0.4)
    >>> round(noise.answer * math.sqrt(2), 3)
    1.676
    """
    if math.isinf(stated.epsilon):
        return PaperNoise(0.0, 0.0)
    if stated.epsilon <= tutor_epsilon:
        raise ConfigurationError(
            f"method.tutor_epsilon {tutor_epsilon:g} leaves nothing of epsilon {stated.epsilon:g}", "lower it"
        )
    tutor, answer = (
        accounting.calibrate(lambda one: [accounting.Gaussian(one)], epsilon, stated.delta)
        for epsilon in (tutor_epsilon, stated.epsilon - tutor_epsilon)
    )
    return PaperNoise(math.sqrt(2.0) * tutor, answer)


def paper_figures(stated: Privacy, queries: int, tutor_epsilon: float) -> Mapping[str, float]:
    """Returns sigma of one of the paper's answers, and epsilon of all of them: two counts per query, scalar counts.

    Empty if epsilon leaves the teachers nothing.
    """
    if stated.epsilon <= tutor_epsilon:
        return {}
    noise = paper_noise(stated, tutor_epsilon)
    return {
        "sigma": math.sqrt(2.0) * noise.answer,
        "epsilon_really_spent": _composed(noise.answer, queries, stated.delta),
        "epsilon_as_scalar_counts": _composed(math.sqrt(2.0) * noise.answer, queries, stated.delta),
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
