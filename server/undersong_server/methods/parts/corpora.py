"""The menu of candidate corpora, each a weighting of the same texts, and the records' verdict on it; docs/method.md."""

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
    """Inputs of the rules that weight the texts of each candidate corpus.

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
    """Weights texts in proportion to their votes within their label; each label keeps the total of ``weights``.

    Generators are ignored: records vote for the texts near them, whichever generator wrote those.
    """
    if facts.voted is None:
        return weights
    labels = len(facts.label_shares)
    before, after = (np.bincount(facts.label_of, weights=each, minlength=labels) for each in (weights, facts.voted))
    scaled: Float64 = facts.voted * (before / np.maximum(after, np.finfo(np.float64).tiny))[facts.label_of]
    return scaled


class Candidate(NamedTuple):
    """A candidate corpus of the menu: its weighting rule, and the prior of its gain over the mixture.

    Attributes:
        shares: of the generators, from which the gain over the mixture is expected before the records judge it.
        cost: taken off that gain: the bar that evidence has to pass.
        uncertain: standard deviation of the gain beside what is expected.
        flattered: optimism per unit of leverage: what the records' leverage adds to the verdict but not to the corpus.
        single: adjusts the weights of single texts.
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
    """Returns weights, float64 [n]: each generator-label cell's share is divided equally among its texts."""
    return cell_shares(facts.generator_of, facts.label_of, shares * facts.label_shares)


def classifiers(embeddings: Float32, label_of: Int64, classes: int, weights: Sequence[Float64]) -> Float64:
    """Trains one classifier per corpus: float64 [J, d + 1, classes], on the grid that parties accept."""
    heads = []
    for each in weights:
        kept = each > LEAST_WEIGHT * each.mean()
        heads.append(
            consistency.classifier(embeddings[kept], label_of[kept], classes, strength=STRENGTH, weights=each[kept])
        )
    return COEFFICIENTS.quantised(np.stack(heads))


def right(heads: Float64, embeddings: Float32, label_of: Int64) -> Bools:
    """Tells for each text which classifiers predict its label, bool [n, J]."""
    found = [(embeddings @ head[:-1] + head[-1]).argmax(axis=1) == label_of for head in heads]
    return np.stack(found, axis=1)


def menu(without: str, *, voted: bool) -> dict[str, Candidate]:
    """Returns the menu, with the row "voted" only if ``voted``; for ablations it omits the row ``without``."""
    return {name: row for name, row in MENU.items() if name != without and (voted or name != "voted")}


def weighed(served: Mapping[str, Candidate], facts: Facts) -> list[Float64]:
    """The texts' weights in each corpus, float64 [n] each."""
    return [candidate.weigh(facts) for candidate in served.values()]


def expected_gains(served: Mapping[str, Candidate], facts: Facts, usefulness: Float64) -> Float64:
    """Returns the prior mean gains over the mixture, float64 [J], from the generators' shrunk usefulness, [K, C]."""
    by_label = [((each.shares(facts) - equal(facts)) * usefulness).sum(axis=0) for each in served.values()]
    costs = np.array([each.cost for each in served.values()])
    found: Float64 = GAIN_PER_USEFULNESS * (np.stack(by_label) @ facts.label_shares) - costs
    return found


def flattery(served: Mapping[str, Candidate], facts: Facts) -> Float64:
    """Returns the optimism of each corpus, float64 [J]: its verdict is biased by its fit to the same records."""
    return np.array([each.flattered * facts.leverage for each in served.values()])


def verdict(
    served: Mapping[str, Candidate],
    opened: NoisySum,
    records: float,
    answers: Bools,
    expected: Float64,
    flattery: Float64,
) -> tuple[Float64, Float64]:
    """Returns the corpora's shares, float64 [J], sum 1, and the posterior mean of their gains over the mixture.

    The prior of the gains is normal around the expected ones. The opened centred answers update it, with the known
    noise and the sampling error of the records. ``BAR`` posterior deviations are subtracted from each gain. The shares
    are the softmax of the result, so a small difference moves them only in part.

    Args:
        served: the menu.
        opened: the centred right and wrong answers of the corpora's classifiers.
        records: approximate number of records.
        answers: of the same classifiers on public texts, bool [n, J]; their covariance estimates that of a record's
            answers.
        expected: prior mean gains, float64 [J]; the first is the mixture's.
        flattery: the optimism that is subtracted from each corpus's answers, float64 [J] (:func:`flattery`).
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
