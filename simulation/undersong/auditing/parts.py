"""Parts of an audit: its checks of the noise, what its attacks prove, and the canaries that it plants.

The noise that an audit finds is compared with the planned noise: its law, its place, and its independence.

Every check reads normal scores: the quantile of a value under the planned law, as the same quantile of N(0, 1). They
are independent standard normals in a sound build, whichever the law. ``alarm`` bounds the chance of a false accusation
by one check over all sums, runs and parties. The tails are exact (binomial, chi-square, normal), or are bounds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import fft
from scipy.special import ndtri
from scipy.stats import binom, chi2, norm

from undersong_common.arrays import Bools, Float32, Float64, Int64
from undersong_common.intervals import clopper_pearson
from undersong_common.models.embedding import Embed
from undersong_common.privacy.accounting import gaussian_epsilon
from undersong_common.text.table import Table, concatenate
from undersong_server import learning
from undersong_server.evaluation.evaluate import entropy, of_label
from undersong_server.pool import Sample

WIDEST_TABLE = 1 << 12  # integer deviation above which a discrete Gaussian is compared with the continuous one
SMALLEST_TAIL = 1e-16  # Quantiles are clipped to it, so scores end at 8.2.
REACH = 80  # scales of Laplace noise in a table; e^-40 is beyond either end
COMPARED_AT_SHIFTS = 4_000_000_000  # pairs of sums times shifts that are compared at most, one or two minutes
MOST_NAMED = 3  # places that one check names at most
FEWEST_COMPARED = 64  # coordinates; smaller sums are not compared with each other

_TAILS = np.array([1e-4, 1e-3, 1e-2])
_LEVELS = np.sort(np.concatenate([_TAILS, np.arange(1, 32) / 32, 1.0 - _TAILS]))
_EDGES: Float64 = ndtri(_LEVELS)
_MASSES: Float64 = np.diff(_LEVELS, prepend=0.0, append=1.0)


def gaussian_scores(noise: Int64, variance: float) -> Float32:
    """Normal scores of noise that should be discrete Gaussian of this variance, float32, of the shape of ``noise``."""
    deviation = math.sqrt(variance)
    if deviation > WIDEST_TABLE:
        return (noise / deviation).astype(np.float32)
    return _score_integers(noise, _gaussian_table(variance))


def laplace_scores(noise: Int64, scale: float, shares: float) -> Float32:
    """Normal scores, float32, of noise that should be discrete Laplace of this scale, or a fraction of it.

    Args:
        shares: fraction of the planned noise shares that ``noise`` is the sum of; 1.0 is all.
    """
    return _score_integers(noise, _laplace_table(scale, shares))


def largest_laplace_mass(scale: float, shares: float) -> float:
    """Returns the largest probability of one integer under the law of :func:`laplace_scores`."""
    return float(_laplace_table(scale, shares).max())


@lru_cache(maxsize=16)
def _gaussian_table(variance: float) -> Float64:
    reach = math.ceil(12.0 * math.sqrt(variance))
    weights: Float64 = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2.0 * variance))
    weights /= weights.sum()
    return weights


@lru_cache(maxsize=4)
def _laplace_table(scale: float, shares: float) -> Float64:
    """Inverts the characteristic function of NB(shares, p) - NB(shares, p), p = exp(-1 / scale)."""
    size = 1 << math.ceil(math.log2(REACH * max(scale, 1.0)))
    p = math.exp(-1.0 / scale)
    cosines = np.cos(2.0 * np.pi * np.arange(size // 2 + 1) / size)
    masses: Float64 = fft.irfft(((1.0 - p) ** 2 / (1.0 - 2.0 * p * cosines + p * p)) ** shares, size)
    return np.clip(np.roll(masses, size // 2), 0.0, None)[1:]


def _score_integers(noise: Int64, weights: Float64) -> Float32:
    """Scores under a law on the integers around 0; within one integer's mass the quantile is uniform."""
    place = np.clip(noise + len(weights) // 2, 0, len(weights) - 1)
    below = (np.cumsum(weights) - weights)[place] + np.random.default_rng().random(len(noise)) * weights[place]
    return ndtri(np.clip(below, SMALLEST_TAIL, 1.0 - SMALLEST_TAIL)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Shape:
    """Counts and energy of scores; they add up over runs and sums.

    Attributes:
        counts: scores between the quantiles, int64.
        energies, sizes: sum of squares and number of the coordinates in each block: all, halves, quarters, and
            residues modulo 2 to 8.
        reach: largest absolute score; 0 of no score.
    """

    counts: Int64
    energies: Float64
    sizes: Int64
    reach: float

    def __add__(self, addend: "Shape") -> "Shape":
        return Shape(
            self.counts + addend.counts,
            self.energies + addend.energies,
            self.sizes + addend.sizes,
            max(self.reach, addend.reach),
        )


def shape_of(scores: Float32) -> Shape:
    """Shape of the scores of one sum or of one party's share in it."""
    n, squares = len(scores), scores.astype(np.float64) ** 2
    blocks = [
        *(slice(n * part // parts, n * (part + 1) // parts) for parts in (1, 2, 4) for part in range(parts)),
        *(slice(residue, None, modulus) for modulus in range(2, 9) for residue in range(modulus)),
    ]
    counts = np.bincount(np.searchsorted(_EDGES, scores), minlength=len(_MASSES))
    energies = np.array([squares[block].sum() for block in blocks])
    sizes = np.array([len(squares[block]) for block in blocks])
    return Shape(counts, energies, sizes, float(np.abs(scores).max(initial=0.0)))


def other_law(shapes: Mapping[str, Shape], alarm: float) -> list[str]:
    """Names, of ``shapes`` by name, of noise whose scores do not fall between the quantiles as often as planned."""
    counts = np.array([shape.counts for shape in shapes.values()]).reshape(-1, len(_MASSES))
    totals = counts.sum(axis=1, keepdims=True)
    tail = np.minimum(binom.cdf(counts, totals, _MASSES), binom.sf(counts - 1, totals, _MASSES))
    return _name_faulty(shapes, tail.min(axis=1, initial=1.0) < alarm / (2 * max(counts.size, 1)))


def without_tails(shapes: Mapping[str, Shape], alarm: float) -> list[str]:
    """Names, of ``shapes`` by name, of noise that never goes as far from 0 as so many values of the planned law do."""
    totals = np.array([shape.counts.sum() for shape in shapes.values()])
    within = 1.0 - 2.0 * norm.sf(np.array([shape.reach for shape in shapes.values()]))
    return _name_faulty(shapes, within**totals < alarm / max(len(shapes), 1))


def uneven(shapes: Mapping[str, Shape], alarm: float) -> list[str]:
    """Names, of ``shapes`` by name, of noise that is too large or too small in a block of coordinates."""
    energies = np.array([shape.energies for shape in shapes.values()])
    sizes = np.array([shape.sizes for shape in shapes.values()])
    freedom = np.maximum(sizes, 1)
    tail = np.minimum(chi2.cdf(energies, freedom), chi2.sf(energies, freedom))
    tail = np.where(sizes > 0, tail, 1.0).reshape(len(shapes), -1)
    return _name_faulty(shapes, tail.min(axis=1, initial=1.0) < alarm / (2 * max(tail.size, 1)))


def repeated_within(series: Mapping[str, Sequence[Float32]], alarm: float) -> list[str]:
    """Names of the sums whose noise, in one run or in all together, is correlated with itself at some lag.

    ``series``: the scores of each sum by its name, one array per run. ``alarm``: chance of a false alarm, over all
    sums and lags together.

    A lag's sum over N products is a quadratic form of norm 1: beyond sqrt(2 N t) + 2 t with a chance of e^-t (Laurent
    and Massart 2000, lemma 1).
    """
    scores_by_sum = {name: np.array(rows, dtype=np.float64) for name, rows in series.items() if len(rows[0]) > 1}
    tests = sum((len(rows) + 1) * rows.shape[1] for rows in scores_by_sum.values())
    t = math.log(2 * max(tests, 1) / alarm)
    is_repeated = []
    for rows in scores_by_sum.values():
        runs, n = rows.shape
        spectra = np.abs(fft.rfft(rows, fft.next_fast_len(2 * n, real=True))) ** 2
        lags = fft.irfft(spectra, fft.next_fast_len(2 * n, real=True))[:, 1:n]
        one_run_bound, all_runs_bound = (math.sqrt(2 * many * n * t) + 2 * t for many in (1, runs))
        is_repeated.append(np.abs(lags).max() > one_run_bound or np.abs(lags.sum(axis=0)).max() > all_runs_bound)
    return _name_faulty(scores_by_sum, np.array(is_repeated, dtype=bool))


def repeated_between(series: Sequence[tuple[str, Float32]], alarm: float) -> list[str]:
    """Pairs of sums, of (name, scores) in ``series``, whose noise is correlated at some shift, over all coordinates.

    Given one of the two, their product is normal, of the norm of what overlaps. Each sum is compared with the
    following ones, in order of length, as far as ``COMPARED_AT_SHIFTS`` goes; all pairs are compared unshifted.
    """
    by_length = sorted(
        (named_scores for named_scores in series if len(named_scores[1]) >= FEWEST_COMPARED),
        key=lambda named_scores: len(named_scores[1]),
    )
    if len(by_length) < 2:
        return []
    names, many = [name for name, _ in by_length], len(by_length)
    rows = np.zeros((many, len(by_length[-1][1])), dtype=np.float32)
    for row, (_, scores) in zip(rows, by_length, strict=True):
        row[: len(scores)] = scores
    norms = np.maximum(np.linalg.norm(rows, axis=1), 1e-30)
    length = fft.next_fast_len(2 * rows.shape[1], real=True)
    following = min(many - 1, max(1, COMPARED_AT_SHIFTS // (many * length)))
    above = norm.isf(alarm / (2 * many * (many + following * length)))
    pairs = np.argwhere(np.triu(np.abs(rows @ rows.T) > above * norms[:, None], 1)).tolist()
    spectra = fft.rfft(rows, length)
    for first in range(many - 1):
        if len(pairs) >= MOST_NAMED:
            break
        products = fft.irfft(spectra[first].conj() * spectra[first + 1 : first + 1 + following], length)
        partners = np.flatnonzero(np.abs(products).max(axis=1) > above * norms[first]) + first + 1
        for partner in partners.tolist():
            if [first, partner] not in pairs:
                pairs.append([first, partner])
    return [f"{names[first]} and {names[second]}" for first, second in pairs[:MOST_NAMED]]


def _name_faulty(names: Mapping[str, object], at_fault: Bools) -> list[str]:
    return [name for name, fault in zip(names, at_fault, strict=True) if fault][:MOST_NAMED]


# Estimates with their intervals, and lower bounds of the privacy loss that an attack's success proves.
# A mechanism that is (epsilon, delta)-differentially private bounds how well anybody can tell that a record was
# there. An attack that does better than a promise allows refutes the promise; one that does not proves nothing.

CONFIDENCE = 0.999  # confidence with which all bounds of one audit hold together
STAKES = np.array([[0.125], [0.25], [0.5], [1.0]])  # shares of the wealth that the bets of mean_at_least risk


@dataclass(frozen=True)
class Detection:
    """Success of an attack with a threshold fixed beforehand at telling which records were there.

    The records of one run share its noise, its candidates and its corpus, so that guesses about them are dependent.
    Bounds are therefore computed over runs, which are independent.

    Attributes:
        hits, present: scores over the threshold, of the trials with the record.
        false_alarms, absent: scores over the threshold, of the trials without it.
        right: share of right guesses in each run.
        caught, alarms: hits, and false alarms, of each run as a share of all its records.
        alarm: chance that a bound below is wrong.
    """

    hits: int
    present: int
    false_alarms: int
    absent: int
    right: tuple[float, ...]
    caught: tuple[float, ...] = ()
    alarms: tuple[float, ...] = ()
    alarm: float = 1.0 - CONFIDENCE

    @classmethod
    def of_runs(
        cls, runs: Sequence[tuple[Bools, Float64]], threshold: float, alarm: float = 1.0 - CONFIDENCE
    ) -> "Detection":
        """Counts runs of (presence bool [c], scores float64 [c]) at a ``threshold`` that was chosen without them.

        Each record must have been present by a fair coin of its own.
        """
        guesses = [(present, scores > threshold) for present, scores in runs]
        return cls(
            hits=sum(int((claims & present).sum()) for present, claims in guesses),
            present=sum(int(present.sum()) for present, _ in guesses),
            false_alarms=sum(int((claims & ~present).sum()) for present, claims in guesses),
            absent=sum(int((~present).sum()) for present, _ in guesses),
            right=tuple(float((claims == present).mean()) for present, claims in guesses),
            caught=tuple(float((claims & present).mean()) for present, claims in guesses),
            alarms=tuple(float((claims & ~present).mean()) for present, claims in guesses),
            alarm=alarm,
        )

    @property
    def accuracy(self) -> float:
        """Lower bound of the expected share of right guesses."""
        return mean_at_least(self.right, self.alarm)

    @property
    def mu(self) -> float:
        """Lower bound of mu of a Gaussian mechanism; 0 if nothing is proven.

        A guess about a fair coin is right with probability (1 + TPR - FPR) / 2, which mu-Gaussian privacy bounds by
        Phi(mu / 2) (Dong, Roth and Su 2022, section 2: the trade-off curve of two unit normals mu apart). The bound is
        exact for the mean over a run's records; with TPR = 1 - FPR it is inv_Phi(TPR) - inv_Phi(FPR).
        """

        return max(0.0, 2.0 * float(norm.ppf(self.accuracy)))

    def epsilon_if_gaussian(self, delta: float) -> float:
        """Lower bound of epsilon at ``delta`` of a mechanism known to be Gaussian; 0 if nothing is proven."""
        return float(gaussian_epsilon(self.mu, delta)) if self.mu > 0.0 else 0.0

    def epsilon(self, delta: float) -> float:
        """Lower bound of epsilon at ``delta`` of any mechanism; 0 if nothing is proven.

        TPR <= e^epsilon FPR + delta and the same of the complements (Kairouz, Oh and Viswanath 2015, theorem 2.1) add
        up to accuracy <= (e^epsilon + delta) / (e^epsilon + 1).
        """
        accuracy = self.accuracy
        return max(0.0, math.log((accuracy - delta) / (1.0 - accuracy))) if accuracy > delta else 0.0

    def rates(self, independent: bool) -> tuple[float, float]:
        """Lower bound of the true-positive and upper bound of the false-positive rate; they hold together.

        A fair coin plants a record, so that a run's hits over all its records are expected to be half the rate.

        Args:
            independent: the noise of a run's scores is independent, as that of :func:`orthogonal_scores` is in
                Gaussian sums: trials are then counted one by one.
        """
        if not self.present or not self.absent:
            return 0.0, 1.0
        if independent:
            level = 1.0 - self.alarm  # an interval may be wrong on either side, of which one is used
            hit_counts, alarm_counts = (self.hits, self.present), (self.false_alarms, self.absent)
            return clopper_pearson(*hit_counts, level).low, clopper_pearson(*alarm_counts, level).high
        missed = mean_at_least([1.0 - share for share in self.alarms], self.alarm / 2)
        return 2.0 * mean_at_least(self.caught, self.alarm / 2), min(1.0, 2.0 * (1.0 - missed))

    def epsilon_of_rates(self, delta: float, gaussian: bool) -> float:
        """Lower bound of epsilon by both rates: of a mechanism known to be Gaussian, or of any; 0 if nothing is proven.

        TPR <= e^epsilon FPR + delta (Kairouz, Oh and Viswanath 2015, theorem 2.1); of a Gaussian mechanism,
        inv_Phi(TPR) <= inv_Phi(FPR) + mu (Dong, Roth and Su 2022, section 2).
        """
        true_rate, false_rate = self.rates(independent=gaussian)
        if gaussian:
            mu = float(norm.ppf(true_rate) - norm.ppf(false_rate))
            return float(gaussian_epsilon(mu, delta)) if mu > 0.0 else 0.0
        return max(0.0, math.log((true_rate - delta) / false_rate)) if true_rate > delta else 0.0


def mean_at_least(values: Sequence[float], alarm: float) -> float:
    """Lower bound of the mean of independent numbers in [0, 1] of any law, wrong with a chance of ``alarm`` at most.

    Whoever bets against a mean of m multiplies a wealth of 1 by 1 + stake (x / m - 1) at each number x. If the mean is
    m or less, that wealth, averaged over the stakes, is expected to stay at 1 at most, and it passes 1 / alarm with a
    chance of ``alarm`` at most (Waudby-Smith and Ramdas 2024, section 4). The bound is the largest m that is refuted.

    >>> round(mean_at_least([1.0] * 20, 1e-3), 3), mean_at_least([0.0] * 20, 1e-3)
    (0.661, 0.0)
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not numbers.any():
        return 0.0
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        with np.errstate(divide="ignore"):
            wealth = np.log1p(STAKES * (numbers / middle - 1.0)).sum(axis=1)
        refuted = float(np.logaddexp.reduce(wealth)) - math.log(len(STAKES)) >= -math.log(alarm)
        low, high = (middle, high) if refuted else (low, middle)
    return low


def whole_scores(rows: Float64, residual: Float64, present: Bools, rate: float = 1.0) -> tuple[Float64, Float64]:
    """Scores and signals as of :func:`orthogonal_scores`, along whole contributions; rows that overlap share noise."""
    signals = np.linalg.norm(rows, axis=1)
    return rows @ residual / np.maximum(signals, 1e-9) + rate * present * signals, signals


def orthogonal_scores(rows: Float64, residual: Float64, present: Bools, rate: float = 1.0) -> tuple[Float64, Float64]:
    """Scores of several known contributions to one noisy vector, with independent noise, and their signals.

    Each contribution is seen along the part of it that is orthogonal to those before it, after everything else that is
    present has been taken away (whoever attacks one record knows all others). With noise N(0, 1) per coordinate and
    ``rate`` 1 the scores are independent N(present * signal, 1).

    Args:
        rows: contributions in units of the noise's deviation, float64 [c, k].
        residual: opened vector less ``rate`` times the contributions of all that is present, these rows among it, same
            units, float64 [k].
        present: True for each contribution that is in the vector, bool [c].
        rate: sampling rate of the units; nobody knows who was drawn, which adds to the noise.

    Returns:
        (scores, signals), float64 [c] each; both are zero for a row that the others before it span.
    """
    basis, triangle = np.linalg.qr(rows.T)  # rows.T = basis @ triangle, column by column
    diagonal = np.zeros(len(rows))
    diagonal[: min(rows.shape)] = np.diag(triangle)
    scores = np.zeros(len(rows))
    scores[: basis.shape[1]] = basis.T @ residual
    usable = np.abs(diagonal) > 1e-9
    signals = np.where(usable, np.abs(diagonal), 0.0)
    return np.where(usable, np.sign(diagonal) * scores, 0.0) + rate * present * signals, signals


# Records that an audit plants among the private ones, and attacks on the corpus that say which of them were there.

KINDS = ("rare end", "far off", "many words", "twin")
REPEATS = 6  # least number of a real record's words before the rare end begins; half of a longer record


@dataclass(frozen=True)
class Canary:
    """One privacy unit of records that nobody else has.

    Attributes:
        kind: how it is made (:data:`KINDS`).
        rows: its records; several where a user's records count by their sum.
    """

    kind: str
    rows: Table


def make_canaries(
    private: Table, labels: Sequence[str], rare_words: Sequence[str], count: int, rng: np.random.Generator, *, rows: int
) -> list[Canary]:
    """Makes ``count`` canaries, their kinds in turn.

    "rare end" begins as one of the private records and ends in words that hardly anybody writes (Meeus et al. 2025,
    section 5: synthetic text echoes a canary best that starts in distribution and ends with high perplexity).
    "far off" has rare words only: the extreme of every vote for the furthest candidates. "many words" has 120
    different words: as many terms, keyphrases and words of length as a record can have. "twin" is a private record
    with one word changed: the extreme of votes for the nearest.

    Args:
        private: the records they hide among, at least one.
        labels: the task's; a canary has one of them, or the label of the record it starts from. Empty: no labels.
        rare_words: public words to draw from, the commonest first; at least 300.
        rows: records per canary, all alike: what a user at the cap contributes.
    """
    canaries = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        row = int(rng.integers(len(private)))
        words = private.texts[row].split()
        label = private.labels[row] if private.labels is not None else ""
        match kind:
            case "rare end":
                prefix_length = max(min(REPEATS, len(words)), len(words) // 2)
                text = " ".join([*words[:prefix_length], *_draw_words(rare_words, 12, rng)])
            case "far off" | "many words":
                text = " ".join(_draw_words(rare_words, 30 if kind == "far off" else 120, rng))
                label = labels[int(rng.integers(len(labels)))] if labels else label
            case _:
                words[int(rng.integers(len(words)))] = _draw_words(rare_words, 1, rng)[0]
                text = " ".join(words)
        user = f"canary-{number}"
        canaries.append(
            Canary(
                kind,
                Table(
                    (text,) * rows,
                    None if private.labels is None else (label,) * rows,
                    None if private.users is None else (user,) * rows,
                ),
            )
        )
    return canaries


def planted(tables: dict[str, Table], canaries: Sequence[Canary], homes: Sequence[str]) -> dict[str, Table]:
    """Adds each canary to the table of the party that ``homes`` names for it, after the party's own records."""
    result = dict(tables)
    for canary, home in zip(canaries, homes, strict=True):
        result[home] = concatenate([result[home], canary.rows])
    return result


def _draw_words(words: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    return [words[int(index)] for index in rng.choice(len(words), count, replace=False)]


SIMILARITY = "the corpus alone: similarity of its nearest text"
TRIPLES = "the corpus alone: word triples it shares"
ENTROPY = "a task model trained on the corpus: entropy of its prediction"
CERTAINTY = "a task model trained on the corpus: confidence in the true label"


def attack_corpus(
    samples: Sequence[Sample], canaries: Sequence[Canary], labels: Sequence[str], embed: Embed
) -> dict[str, Float64]:
    """Attacks the corpus: scores of the canaries, float64 [c], by attack; zeros for an attack with nothing to read.

    The attacks are the nearest text's cosine and the share of shared word triples (after Meeus et al. 2025, section 3);
    with ``labels``, also a task model trained on the corpus (Salem et al. 2019, Yeom et al. 2018).
    """
    names = [SIMILARITY, TRIPLES, *([ENTROPY, CERTAINTY] if len(labels) > 1 else [])]
    scores = {name: np.zeros(len(canaries)) for name in names}
    if not samples:
        return scores
    texts = [sample.text for sample in samples]
    canary_embeddings, sample_embeddings = embed([canary.rows.texts[0] for canary in canaries]), embed(texts)
    scores[SIMILARITY] = np.asarray(canary_embeddings @ sample_embeddings.T, dtype=np.float64).max(axis=1)
    corpus_triples = {triple for text in texts for triple in _word_triples(text)}
    scores[TRIPLES] = np.array([_share_of_triples(canary.rows.texts[0], corpus_triples) for canary in canaries])
    sample_labels = [sample.label for sample in samples]
    if ENTROPY in scores and len(set(sample_labels)) > 1:
        model = learning.train(sample_embeddings, sample_labels, head="linear")
        probabilities = model.probabilities(canary_embeddings)
        scores[ENTROPY] = -entropy(probabilities)
        true_labels = tuple(canary.rows.labels[0] if canary.rows.labels else "" for canary in canaries)
        scores[CERTAINTY] = of_label(probabilities, model.labels, true_labels)
    return scores


def _share_of_triples(text: str, corpus_triples: set[tuple[str, str, str]]) -> float:
    triples = _word_triples(text)
    return sum(triple in corpus_triples for triple in triples) / max(1, len(triples))


def _word_triples(text: str) -> list[tuple[str, str, str]]:
    words = text.lower().split()
    return list(zip(words, words[1:], words[2:], strict=False))
