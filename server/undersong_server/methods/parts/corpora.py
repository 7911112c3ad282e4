"""The menu: corpora made of the same texts by weighing them, and the records' verdict on them; docs/method.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from undersong_common.arrays import Bools, Float32, Float64, Int64
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import consistency
from undersong_server.methods.parts.places import cell_shares

STRENGTH = 1.0  # inverse regularisation of the candidates' classifiers: what a task model's validation mostly chooses
DECISION = 150.0  # of a corpus's gain in the exponent of its share: one point of accuracy is a factor of 4.5
BAR = 0.5  # deviations of what is still unknown of a gain, which are taken off it
LEAST_VARIANCE = 1e-6  # of a corpus's answers: no more than a tenth of a point is ever known
LEAST_WEIGHT = 0.05  # of the mean weight: a candidate's classifier leaves out texts below it
GAIN_PER_USEFULNESS = 0.3  # of a corpus, expected from the usefulness of its generators before it is judged


class Facts(NamedTuple):
    """What the menu reads.

    Attributes:
        label_of, generator_of: int64 [n].
        label_shares: wanted, float64 [C].
        trust, matched: shares of the generators for each label, float64 [K, C], columns of sum 1.
        own: how likely each text's own label is, float64 [n]; None where there is one label.
        leverage: of the records on ``own`` (:func:`moments.posterior`).
        voted: the last votes for each text as far as noise does not explain them, positive, float64 [n]; None where
            they were not asked for.
    """

    label_of: Int64
    generator_of: Int64
    label_shares: Float64
    trust: Float64
    matched: Float64
    own: Float64 | None = None
    leverage: float = 0.0
    voted: Float64 | None = None


def _alike(facts: Facts, weights: Float64) -> Float64:
    return weights


def _by_own_label(facts: Facts, weights: Float64) -> Float64:
    return weights if facts.own is None else weights * facts.own


def _by_votes(facts: Facts, weights: Float64) -> Float64:
    """In proportion to the votes within a label: records of one label say nothing of another's share.

    Whose text it is does not count: records vote where they lie, whoever wrote how much there.
    """
    if facts.voted is None:
        return weights
    labels = len(facts.label_shares)
    before, after = (np.bincount(facts.label_of, weights=each, minlength=labels) for each in (weights, facts.voted))
    scaled: Float64 = facts.voted * (before / np.maximum(after, np.finfo(np.float64).tiny))[facts.label_of]
    return scaled


class Candidate(NamedTuple):
    """A row of the menu.

    Attributes:
        shares: of the generators, from which the gain over the mixture is expected before the records judge it.
        cost: taken off that gain: the bar that evidence has to pass.
        uncertain: standard deviation of the gain beside what is expected.
        flattered: points that the records' leverage adds to the verdict and not to the corpus.
        single: what the texts' weights become by what is known of single texts.
    """

    shares: Callable[[Facts], Float64]
    cost: float
    uncertain: float
    flattered: float = 0.0
    single: Callable[[Facts, Float64], Float64] = _alike

    def weigh(self, facts: Facts) -> Float64:
        """The texts' weights, float64 [n]."""
        return self.single(facts, by_shares(facts, self.shares(facts)))


def equal(facts: Facts) -> Float64:
    return np.full_like(facts.trust, 1.0 / len(facts.trust))


MENU: dict[str, Candidate] = {
    "mixture": Candidate(equal, 0.0, 0.0),
    "trusted": Candidate(lambda facts: facts.trust, 0.0, 0.01),
    "matched": Candidate(lambda facts: facts.matched, 0.01, 0.015),
    "own-labels": Candidate(equal, 0.02, 0.05, flattered=0.2, single=_by_own_label),
    "voted": Candidate(equal, 0.02, 0.05, single=_by_votes),
}

LABELLED = {  # the corpus with the labels that its texts have by public facts, or with others
    "texts": Candidate(equal, 0.0, 0.0),
    "sure": Candidate(equal, 0.0, 0.01),
    "records": Candidate(equal, -0.01, 0.02),
}


def by_shares(facts: Facts, shares: Float64) -> Float64:
    """Weights, float64 [n], so that generators and labels have their shares: each cell's share over its texts."""
    return cell_shares(facts.generator_of, facts.label_of, shares * facts.label_shares)


def classifiers(embeddings: Float32, label_of: Int64, classes: int, weights: Sequence[Float64]) -> Float64:
    """One classifier a corpus, float64 [J, d + 1, classes], on the grid on which parties take them."""
    heads = []
    for each in weights:
        kept = each > LEAST_WEIGHT * each.mean()
        heads.append(
            consistency.classifier(embeddings[kept], label_of[kept], classes, strength=STRENGTH, weights=each[kept])
        )
    return COEFFICIENTS.quantised(np.stack(heads))


def right(heads: Float64, embeddings: Float32, label_of: Int64) -> Bools:
    """Which classifiers label which texts as they are labelled, bool [n, J]."""
    found = [(embeddings @ head[:-1] + head[-1]).argmax(axis=1) == label_of for head in heads]
    return np.stack(found, axis=1)


def menu(without: str, *, voted: bool) -> dict[str, Candidate]:
    """The menu with or without the corpus by votes; for ablations without one of its rows."""
    return {name: row for name, row in MENU.items() if name != without and (voted or name != "voted")}


def weighed(served: Mapping[str, Candidate], facts: Facts) -> list[Float64]:
    """The texts' weights in each corpus, float64 [n] each."""
    return [candidate.weigh(facts) for candidate in served.values()]


def expected_gains(served: Mapping[str, Candidate], facts: Facts, usefulness: Float64) -> Float64:
    """Gains over the mixture, float64 [J], that usefulness (of generators and labels, shrunk, [K, C]) lets expect."""
    by_label = [((each.shares(facts) - equal(facts)) * usefulness).sum(axis=0) for each in served.values()]
    costs = np.array([each.cost for each in served.values()])
    found: Float64 = GAIN_PER_USEFULNESS * (np.stack(by_label) @ facts.label_shares) - costs
    return found


def flattery(served: Mapping[str, Candidate], facts: Facts) -> Float64:
    """How much better the corpora seem to the records that they were fitted to than they are, float64 [J]."""
    return np.array([each.flattered * facts.leverage for each in served.values()])


def verdict(
    served: Mapping[str, Candidate],
    opened: NoisySum,
    records: float,
    answers: Bools,
    expected: Float64,
    flattery: Float64,
) -> tuple[Float64, Float64]:
    """Shares of the corpora, float64 [J], sum 1, and their gains over the mixture as they are now believed to be.

    The gains are normal around the expected ones beforehand; the opened centred answers move them as far as the known
    noise and the records' number let them. What is still unknown of a gain is the bar: half its deviation is taken
    off. A corpus's share is the softmax of what is left, so that small differences are followed in part only.

    Args:
        served: the menu.
        opened: the centred right and wrong answers of the corpora's classifiers.
        records: how many records there are, about.
        answers: of the same classifiers on public texts, bool [n, J]: how far they differ, which is the variance of a
            record's answer.
        expected: gains, float64 [J]; the first is the mixture's.
        flattery: what is taken off the answers of each, float64 [J] (:func:`flattery`).
    """
    count = len(expected)
    centring = np.eye(count) - 1.0 / count
    spread = centring @ np.cov(answers.T.astype(np.float64), ddof=min(1, len(answers) - 1)) @ centring
    observed = opened.natural / records - centring @ flattery
    noise = ((opened.sigma / records) ** 2 + LEAST_VARIANCE) * np.eye(count) + spread / records
    before = np.diag([max(each.uncertain, 1e-4) ** 2 for each in served.values()])
    gain = before @ centring @ np.linalg.inv(centring @ before @ centring + noise)
    believed = expected + gain @ (observed - centring @ expected)
    left = before - gain @ centring @ before
    over_mixture = np.eye(count) - np.eye(count)[0]  # gains over the first
    gains, unknown = over_mixture @ believed, np.sqrt(np.diag(over_mixture @ left @ over_mixture.T).clip(0.0))
    sure = gains - BAR * unknown
    odds = np.exp(DECISION * (sure - sure.max()))
    return odds / odds.sum(), gains


def blended(weights: Sequence[Float64], shares: Float64) -> Float64:
    """The corpora's weights, each of mean 1, mixed by their shares: float64 [n] of mean 1."""
    found: Float64 = np.sum([share * each / each.mean() for share, each in zip(shares, weights, strict=True)], axis=0)
    return found
