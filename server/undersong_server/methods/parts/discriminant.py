"""Scores of how private candidates look, linear, from noisy votes or noisy moments. All is post-processing.

Both discriminators are linear in the embedding, with one direction per class, and both are Bayesian with known noise:
what noise alone explains is shrunk to 0, and a class with few records takes more of the direction that the classes
share.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.embedding import Embed
from undersong_common.errors import ConfigurationError
from undersong_common.fine_tuning import FineTuning
from undersong_common.privacy import accounting
from undersong_protocol.statistics.teachers import Whitening
from undersong_server.evaluation.panel import discrimination, precision_and_recall
from undersong_server.evaluation.task_model import FineTunedModel, fine_tune
from undersong_server.methods.interface import Privacy, Quorum, Records, RunContext, SumRequest, plan_sums

# Prior variances are chosen among these by marginal likelihood.
LEVELS = (0.0, *(float(level) for level in np.logspace(-4, 1, 11)))
VOTE_LEVELS = tuple(float(level) for level in np.logspace(-4, 0, 13))  # of the variance of votes, to the largest
RESIDUAL = 0.3  # share of the votes' variance (without noise) that no linear score explains
OWN_SHARE = 1.0  # prior variance of a class's deviation beside that of the common direction, for votes


@dataclass(frozen=True, eq=False)
class Discriminator:
    """Linear discriminants that score texts, higher for what could have been private; scores compare within a class.

    Attributes:
        whitening: maps embeddings to coordinates in which the public candidates of every class have mean 0.
        directions: float64 [classes, d].
    """

    whitening: Whitening
    directions: Float64

    def scores(self, _texts: Sequence[str], embeddings: Float32, classes: Int64) -> Float64:
        """Scores of texts with their embeddings, float32 [n, d], and given classes, int64 [n]: float64 [n]."""
        x = self.whitening(embeddings, classes).astype(np.float64)
        found: Float64 = np.einsum("nd,nd->n", x, self.directions[classes])
        return found


def distilled(
    whitening: Whitening,
    queries: Float32,
    query_classes: Int64,
    counts: Float64,
    *,
    sigma: float,
    teachers: int,
    classes: int,
) -> Discriminator:
    """Fits the student: Bayesian linear regression of noisy vote counts on the embeddings of the queries.

    Counts are centred by class, since the number of teachers that voted is private. Weighing them by their known noise
    says more than their majorities would, and needs no threshold. The variance of the votes without the noise is the
    likeliest one; scores are in its standard deviations.

    Args:
        queries, query_classes: float32 [r, d] and int64 [r]; ``counts`` of each with noise ``sigma``, float64 [r].
        teachers: largest number of teachers, in all, that voted.
    """
    x = whitening(queries, query_classes).astype(np.float64)
    y = counts - averaged(counts, query_classes)
    same = query_classes[:, None] == query_classes
    kernel = x @ x.T * (1.0 + OWN_SHARE * same)
    scale = max(float(np.trace(kernel)) / max(1, len(y)), 1e-12)
    values, vectors = np.linalg.eigh(kernel / scale)
    turned = vectors.T @ y

    def log_likelihood(signal: float) -> float:
        variance = signal * np.maximum(values, 0.0) + sigma**2 + RESIDUAL * signal
        return float(-0.5 * (np.log(variance) + turned**2 / variance).sum())

    # A vote is 0 or 1, so counts vary by at most half of the teachers.
    signal = max((teachers**2 / 4 * level for level in VOTE_LEVELS), key=log_likelihood)
    alpha = math.sqrt(signal) / scale * (vectors @ (turned / (signal * (values + RESIDUAL) + sigma**2)))
    own = np.stack([(alpha * (query_classes == label)) @ x for label in range(classes)])
    return Discriminator(whitening, alpha @ x + OWN_SHARE * own)


def linear_discriminant(
    whitening: Whitening, sums: Float64, counts: Float64, *, sigma: float, count_sigma: float
) -> Discriminator:
    """Fits linear discriminants from noisy sums of each class's private embeddings, against the public candidates.

    In the axes of the public covariance a class's difference of means is a common part plus its own, both normal with
    variances in proportion to that covariance, observed with known noise and the sampling error of its records; the
    two proportions are those of the highest marginal likelihood. Fisher's direction is then the posterior mean of the
    difference, divided by the covariance.

    Args:
        sums: noisy, float64 [classes, d]; ``sigma`` a coordinate.
        counts: noisy records of each class, float64 [classes]; ``count_sigma`` of each.
    """
    records = np.maximum(counts, max(1.0, count_sigma))[:, None]
    basis, variances = whitening.axes, whitening.variances
    observed = (sums / records - whitening.means) @ basis
    noise = (sigma / records) ** 2 + variances / records
    common, own = max(
        ((a, b) for a in LEVELS for b in (LEVELS if len(sums) > 1 else (0.0,))),
        key=lambda pair: _log_likelihood(observed, noise, pair[0] * variances, pair[1] * variances),
    )
    precision = 1.0 / (own * variances + noise)
    if common:
        shared = (observed * precision).sum(axis=0) / (1.0 / (common * variances) + precision.sum(axis=0))
    else:
        shared = np.zeros(observed.shape[1])
    difference = shared + own * variances * precision * (observed - shared)
    return Discriminator(whitening, whitening.whitened_direction(difference / variances))


def _log_likelihood(observed: Float64, noise: Float64, common: Float64, own: Float64) -> float:
    """Log-likelihood of ``observed`` [classes, d] up to a constant: a common variance [d], and ``own + noise``."""
    alone = own + noise
    precision = (1.0 / alone).sum(axis=0)
    quadratic = (observed**2 / alone).sum() - (
        common * (observed / alone).sum(axis=0) ** 2 / (1.0 + common * precision)
    ).sum()
    return float(-0.5 * (np.log(alone).sum() + np.log1p(common * precision).sum() + quadratic))


def averaged(values: Float64, group: Int64) -> Float64:
    """Each value replaced by the mean of its group's: float64 [n], of groups numbered from 0, int64 [n]."""
    return (np.bincount(group, weights=values) / np.maximum(np.bincount(group), 1))[group]


# Baselines of the discriminators: scores from the records' votes, as in WASP, and random scores.


def scores(kind: Literal["votes", "random"], run: RunContext) -> Float64:
    """Scores of the pool's candidates, float64 [N]: nearest minus furthest votes (the sum "votes"), or random ones."""
    if kind == "votes":
        near, far = run.votes("votes")
        return near - far
    return run.rng("random").random(len(run.pool))


# Number of teachers that a plan's queries need; a plan with too few is refused (docs/discriminator.md).

USEFUL = 10.0  # teachers per unit of sigma: with fewer the noise hides even clear majorities
FEWEST_QUERIES = 50  # that are worth proposing
FEWEST = 20  # teachers in all, where there is hardly any noise


@dataclass(frozen=True)
class TeacherNumbers:
    """Numbers of the teachers in a plan, and of those that a useful answer needs.

    Attributes:
        asked: shards per party that the options name; 0 is as many as a useful answer needs.
        queries: r, on which each teacher votes.
        requests: the plan's private sums, "teachers" among them.
    """

    asked: int
    queries: int
    requests: Sequence[SumRequest]
    privacy: Privacy
    quorum: Quorum

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the noise of each query's count, in votes."""
        return plan_sums(self.requests, self.privacy, self.quorum)["teachers"].sigma

    @property
    def per_party(self) -> int:
        if self.privacy.unit == "party":
            return 1  # one unit lies in one shard: all that a party has
        return self.asked or math.ceil(max(FEWEST, self.needed) / self.quorum.parties)

    @property
    def total(self) -> int:
        return self.quorum.parties * self.per_party

    @property
    def needed(self) -> int:
        """Number of teachers, in all, that a useful answer needs: ten times sigma."""
        return math.ceil(USEFUL * self.sigma)

    def check(self) -> None:
        """Raises ConfigurationError, with remedies, if noise hides the teachers' answers or a unit is overcharged."""
        if not math.isfinite(self.privacy.epsilon):
            return
        if self.privacy.norm_factor > 1:
            raise ConfigurationError(
                'privacy.user_contribution = "sum": a unit lies in one shard and changes one teacher, however many'
                f" records it has, and must not be charged {self.privacy.norm_factor} times",
                'set privacy.user_contribution = "mean"',
            )
        if self.total >= self.needed:
            return
        more = f"set method.teachers to {math.ceil(self.needed / self.quorum.parties)} (a party)"
        remedies = [more if self.privacy.unit != "party" else "raise privacy.epsilon"]
        fewer = math.floor(self.queries * (self.total / (USEFUL * self.sigma)) ** 2)
        if fewer >= FEWEST_QUERIES:
            remedies.append(f"lower method.queries to {fewer}")
        raise ConfigurationError(
            f"method.teachers: {self.total} teachers in all cannot answer {self.queries} queries at epsilon"
            f" {self.privacy.epsilon:g}: the noise has sigma {self.sigma:.1f} votes, and a useful answer needs"
            f" {self.needed} teachers (sigma at most a tenth of them)",
            ", ".join([*remedies, 'or set method.discriminator = "moments"']),
        )


# The distilled student as a fine-tuned encoder (Song et al. 2024): it reads texts, where the linear one has vectors.
# It learns to tell the queries that more teachers than usual took for private from the others. Each query weighs as
# much as its noisy count is away from the mean of its class: a majority that noise alone may have made says little.
# The paper has neither that weight nor counts centred by class: its labels are the majorities themselves (``hard``).

SETTINGS = FineTuning(Path(), epochs=8, batch=16, learning_rate=5e-5, max_tokens=256)
PRIVATE, OTHER = "private", "synthetic"


@dataclass(frozen=True, eq=False)
class FineTunedStudent:
    """A fine-tuned encoder that scores texts, higher for what could have been private, within a class."""

    model: FineTunedModel

    def scores(self, texts: Sequence[str], _embeddings: Float32, _classes: Int64) -> Float64:
        """Log-odds of "private" for each text, float64 [n]."""
        found = np.clip(self.model.probabilities(texts), 1e-12, None)
        return np.asarray(
            np.log(found[:, self.model.labels.index(PRIVATE)] / found[:, self.model.labels.index(OTHER)]),
            dtype=np.float64,
        )


def fine_tuned(
    texts: Sequence[str], centred: Float64, folder: Path, *, seed: int, hard: bool = False, rate: float | None = None
) -> FineTunedStudent:
    """Fine-tunes the student, an encoder, on the queries ``texts`` and their noisy counts of votes for "private".

    Args:
        centred: the counts less their class's mean, float64 [r]; with ``hard``, less half of the teachers.
        folder: the encoder.
        hard: weighs all queries alike (Song et al. 2024, Eq. 1, 2); else by the distance of the count from 0.
        rate: learning rate; None is the encoder's usual one.

    Raises ConfigurationError where ``folder`` holds no usable encoder, or all counts are the same.
    """
    labels = [PRIVATE if count > 0 else OTHER for count in centred]
    settings = replace(SETTINGS, path=folder, learning_rate=rate or SETTINGS.learning_rate)
    weights = None if hard else np.abs(centred)
    return FineTunedStudent(fine_tune(texts, labels, settings, weights=weights, seed=seed))


# Figures of the method discriminator: the epsilon that its paper's noise spends, and its accuracy on real texts.

STRICT_SHARE = 0.25  # of the synthetic texts that precision, recall and F1 let pass for real


@dataclass(frozen=True)
class PaperNoise:
    """Noise of Song et al. 2024, standard deviations in records.

    ``tutor`` is that of a class's count, ``answer`` that of the scalar sum for one query.

    The paper noises two counts for each query, private and public, and takes the larger; the difference decides, so one
    scalar of sigma / sqrt(2) decides by the same law.
    """

    tutor: float
    answer: float


def paper_noise(stated: Privacy, tutor_epsilon: float) -> PaperNoise:
    """Section 4: analytic Gaussians of sensitivity sqrt(2) at ``tutor_epsilon`` and at the rest; no noise at infinity.

    No delta and no sigma is printed. Deltas add (App. C): each mechanism is taken at half of the run's.

    >>> noise = paper_noise(Privacy(4.0, 1e-5), 0.4)
    >>> round(noise.answer * math.sqrt(2), 3)
    1.731
    """
    if math.isinf(stated.epsilon):
        return PaperNoise(0.0, 0.0)
    if stated.epsilon <= tutor_epsilon:
        raise ConfigurationError(
            f"method.tutor_epsilon {tutor_epsilon:g} leaves nothing of epsilon {stated.epsilon:g}", "lower it"
        )
    tutor, answer = (
        accounting.calibrate(lambda one: [accounting.Gaussian(one)], epsilon, stated.delta / 2)
        for epsilon in (tutor_epsilon, stated.epsilon - tutor_epsilon)
    )
    return PaperNoise(math.sqrt(2.0) * tutor, answer)


def paper_figures(stated: Privacy, queries: int, tutor_epsilon: float) -> Mapping[str, float]:
    """Returns sigma of one answer of the paper's teachers, and epsilon of all: as two counts per query, and as one.

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
        records: records of the run, among them "discriminator", "student" and "held out".
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
