"""The decisions of the default method a second time, written from the numbered steps of docs/method.md alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_array

PARTS = {"labels": 2, "support": 2, "who": 5, "verdict": 3, "votes": 2, "centres": 6, "score": 1}
TEXTS_JUDGED, TIE, ANSWER_VARIANCE, TRAINING_VARIANCE, BY_LABEL_VARIANCE = 3, 1, 0.12, 0.08, 0.1
CERTAINTY, RARE, STRENGTH, AXES, TRUST, REACH = 0.5, 0.5, 3, 80, 0.5, 2
BUCKETS = 2**14


@dataclass
class Case:
    """The public facts of a run: K generators, C labels, and its options."""

    generators: int
    labels: int
    samples: int
    written: float = 1
    rounds: int = 3

    @property
    def texts(self) -> int:
        return round(self.samples * self.written)


@dataclass
class Texts:
    """Written texts in order: embeddings, float [n, d], and the numbers of their labels and generators, int [n]."""

    x: Any
    label: Any
    generator: Any
    words: list[Any] = field(default_factory=list)  # each text's buckets
    windows: list[Any] = field(default_factory=list)  # buckets of each of its windows

    def where(self, rows: Any) -> Texts:
        numbers = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows, dtype=int)
        words, windows = ([of[n] for n in numbers] for of in (self.words, self.windows))
        return Texts(self.x[numbers], self.label[numbers], self.generator[numbers], words, windows)


def plan(case: Case) -> dict[str, float]:
    """Step 0: the sums in their order, with their parts of the budget."""
    k, c, t = case.generators, case.labels, case.rounds
    asked = {"labels": float(PARTS["labels"])} if c > 1 else {}
    if c > 1 and (k == 1 or case.written > 1):
        asked["centres"] = float(PARTS["centres"])
    for number in range(1, t):
        if number == 1 and k > 1:
            asked["support"] = float(PARTS["support"])
        ordered = sum(largest_remainder(np.full(t, case.texts / t))[:number])
        if k > 1 and c > 1 and ordered >= TEXTS_JUDGED * k * c:
            asked[f"who/{number}"] = PARTS["who"] / (t - 1)
        if c < 2:
            asked[f"votes/{number}"] = PARTS["votes"] / (t - 1)
    if c > 1:
        asked["verdict"] = PARTS["verdict"]
    else:
        asked["score"] = PARTS["score"]
    return asked


def shrunk(values: Any, variance: float, factor: float) -> Any:
    """Deviations from the mean, less the part that is noise (step 1.1)."""
    spread = values.var(ddof=1)
    return (values - values.mean()) * (max(0.0, 1 - factor * variance / spread) if spread > 0 else 0.0)


def shares(counts: Any, sigma: float) -> tuple[Any, Any]:
    """Step 1: label shares p, and the records m of each label."""
    n, e = max(counts.sum(), sigma, 1.0), 1 / len(counts)
    d = shrunk(counts / n, (sigma / n) ** 2 + e / n, 2)
    p = np.sqrt(np.maximum(e + d, e / 10))
    p /= p.sum()
    m = max(counts.sum(), sigma * math.sqrt(len(counts)), 1.0)
    return p, p**2 / (p**2).sum() * m


def largest_remainder(parts: Any) -> Any:
    whole = np.floor(np.asarray(parts) + 1e-9).astype(int)
    left = round(float(np.sum(parts))) - whole.sum()
    whole[np.argsort(-(np.round(parts - whole, 9)), kind="stable")[:left]] += 1
    return whole


def shared(missing: Any, texts: int) -> Any:
    """``texts`` in proportion to what is missing."""
    missing = np.maximum(missing, 0.0)
    if not texts:
        return np.zeros(len(missing), dtype=int)
    return largest_remainder(texts * missing / missing.sum())


def round_size(case: Case, number: int) -> int:
    """Step 2: texts of round ``number`` (from 0)."""
    return int(largest_remainder(np.full(case.rounds, case.texts / case.rounds))[number])


def orders(case: Case, size: int, p: Any, texts: Texts, aside: Any, chosen: Any, spent: Any) -> Any:
    """Steps 2.1 and 2.2: ``size`` texts more, int [K, C]; ``aside`` is bool [n], ``chosen`` and ``spent`` [K, C]."""
    gave = tally(case, texts.where(~aside))
    published = gave * chosen
    rare = p < RARE / case.labels
    q = np.where(rare, p * (gave.sum() + size) / (published.sum() + size), p)
    q[~rare] *= (1 - q[rare].sum()) / q[~rare].sum()
    found = np.zeros_like(gave)
    for label, count in enumerate(shared(q * (published.sum() + size) - published.sum(axis=0), size)):
        able = chosen[:, label] & ~spent[:, label]
        willing = able if able.any() else chosen[:, label]
        equal = (published[willing, label].sum() + count) / willing.sum()
        missing = np.where(willing, equal - published[:, label], 0.0)
        turn = np.roll(np.arange(case.generators), -label)  # of equal remainders the label's own number is the first
        found[turn, label] = shared(missing[turn], count)
    return found


def tally(case: Case, texts: Texts) -> Any:
    counts = np.zeros((case.generators, case.labels), dtype=int)
    np.add.at(counts, (texts.generator, texts.label), 1)
    return counts


def linear(x: Any, y: Any, labels: int, strength: float, weights: Any = None) -> Any:
    """A linear classifier as a function: [n, d] -> probabilities [n, C]; 0 for a label that it has not seen."""
    seen = np.unique(y)
    # Of two labels scikit-learn has one row of weights; softmax has two, whose penalty is half as large.
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=strength * (2 if len(seen) == 2 else 1), max_iter=2000, tol=1e-8)
    if len(seen) > 1:
        model.fit(x, y, weights)

    def probabilities(given: Any) -> Any:
        found = np.zeros((given.shape[0], labels))
        found[:, seen] = model.predict_proba(given) if len(seen) > 1 else 1.0
        return found

    return probabilities


def support(case: Case, answer: Any, sigma: float, m: Any, texts: Texts) -> tuple[Any, Any]:
    """Step 2.4: which generators are unsupported, and which supported, bool [K] each."""
    total = max(answer.sum(), sigma * math.sqrt(case.generators), 1.0)
    if round_size(case, 0) < 3 * case.generators * case.labels:
        share = np.bincount(texts.generator, minlength=case.generators) / len(texts.generator)
    else:
        share = tally(case, texts) / np.maximum(tally(case, texts).sum(axis=0), 1) @ (m / m.sum())
    expected = total * share / share.sum()
    part = np.clip(answer / total, 1 / total, 1)
    error = np.sqrt(sigma**2 + total * part * (1 - part)) / np.maximum(expected, 1e-9)
    s = np.where(expected > 0, answer / np.maximum(expected, 1e-9), 0.0)
    best = int(np.argmax(s))

    def beside(most: float) -> tuple[Any, Any]:
        top = min(s[best], most)
        errors = np.sqrt(error**2 + (s / top) ** 2 * error[best] ** 2) / top
        errors[best] = 0
        return s / top, errors

    r, e = beside(math.inf)
    enough = (r - 2 * e > 0.75) & (s - 2 * error > 0.25)
    r, e = beside(2.0)
    return (r + 2 * math.log(3) * e**2 < 0.25) & enough.any(), enough


def set_aside(texts: Texts, unsupported: Any, supported: Any, drawn: Any) -> tuple[Any, Any]:
    """Step 2.5: the texts that are set aside, bool [n], and the generators that are left out, bool [K]."""
    if not unsupported.any():
        return unsupported[texts.generator], unsupported
    unlike, left_out = off_subject(texts, unsupported, supported, drawn), ~supported
    if unlike is not None:
        for k in np.flatnonzero(~supported & ~unsupported):
            left_out[k] = unlike[texts.generator == k].mean() > 0.1
    return left_out[texts.generator] | (False if unlike is None else unlike), left_out


def off_subject(texts: Texts, unsupported: Any, supported: Any, drawn: Any) -> Any:
    """Step 2.5: the texts that a classifier finds off the subject, bool [n], or None if none can judge.

    ``drawn`` permutes so many good and bad ones.
    """
    bad, good = unsupported[texts.generator], supported[texts.generator]
    if not good.sum() >= 49 or not bad.sum() >= 5:
        return None
    fold = np.full(len(bad), -1)
    for side, order in zip((good, bad), drawn(good.sum(), bad.sum()), strict=True):
        fold[side] = order % 5
    chance = np.ones(len(bad))
    for part in range(-1, 5):
        learned = [(each, good[n]) for n in np.flatnonzero((fold >= 0) & (fold != part)) for each in texts.windows[n]]
        y = np.array([int(side) for _, side in learned])
        weights = np.where(y == 1, len(y) / (2 * y.sum()), len(y) / (2 * (1 - y).sum()))
        judge = word_classifier([each for each, _ in learned], y, 2, weights)
        for n in np.flatnonzero(fold == part):
            chance[n] = judge(texts.windows[n])[:, 1].min()
    as_low = np.array([(chance[good] <= each).sum() for each in chance])
    unlike = (chance < 0.5) & np.where(good, as_low <= 0.02 * good.sum(), as_low + 1 <= 0.02 * (good.sum() + 1))
    return unlike if unlike[bad].mean() >= 0.5 else None


def judges(case: Case, p: Any, texts: Texts) -> list[Any]:
    """Step 3.1: a classifier of each generator's texts, each label weighing p_c in all."""
    found = []
    for k in range(case.generators):
        own = texts.where(texts.generator == k)
        weights = (p / np.maximum(np.bincount(own.label, minlength=case.labels), 1))[own.label]
        found.append(linear(own.x, own.label, case.labels, STRENGTH, weights * len(own.x) / weights.sum()))
    return found


def who(case: Case, answer: Any, sigma: float, m: Any, texts: Texts, chosen: Any, blocks: bool) -> tuple[Any, bool]:
    """Steps 3.2 to 3.5: who is chosen for which label, bool [K, C], and whether blocks stay."""
    s, counts = answer.reshape(case.labels, case.generators).T, tally(case, texts)
    used, total = case.labels if blocks else 1, m.sum()
    g = s[:, :used].sum(axis=1) / total
    v = used * (sigma / total) ** 2 + ANSWER_VARIANCE / total + TRAINING_VARIANCE / counts.sum(axis=1)
    gains, variances = np.tile(g[:, None], case.labels), np.tile(v[:, None], case.labels)
    if blocks:
        own = s / m
        noise = (sigma / m) ** 2 + ANSWER_VARIANCE / m + TRAINING_VARIANCE / np.maximum(counts, 1)
        blocks = bool(((own - g[:, None]) ** 2 - noise).mean() > BY_LABEL_VARIANCE)
        gains, variances = (own, noise) if blocks else (gains, variances)
    found = chosen.copy()
    for label in range(case.labels):
        b = int(np.where(chosen[:, label], gains[:, label], -np.inf).argmax())
        distance = TIE * np.sqrt(variances[:, label] + variances[b, label])
        found[:, label] &= gains[b, label] - gains[:, label] <= distance
    return found, blocks


def clearly(values: Any, bound: float) -> bool:
    """Step 5: whether the mean is above the bound by more than two standard errors."""
    return bool(np.mean(values) - 2 * np.std(values) / math.sqrt(len(values)) > bound)


def cleaned(case: Case, texts: Texts, fold: Any) -> Any:
    """Step 5: the cleaned label of each text, -1 where it is dropped; ``fold`` is the number of each text's fold."""
    kinds = []
    for by_words in (False, True):
        means = []
        for group in (fold, texts.generator) if case.generators > 1 else (fold,):
            answers = np.zeros((len(texts.x), case.labels))
            for each in np.unique(group):
                mine, others = texts.where(group == each), texts.where(group != each)
                if by_words:
                    found = word_classifier(others.words, others.label, case.labels)(mine.words)
                else:
                    found = linear(others.x, others.label, case.labels, 1.0)(mine.x)
                answers[group == each] = found
            means.append(answers)
        kinds.append(np.mean(means, axis=0))
    rows = np.arange(len(texts.x))

    def least(chance: Any) -> Any:
        return np.array(
            [chance[texts.label == c, c].mean() if (texts.label == c).any() else 1 for c in range(case.labels)]
        )

    contradicted = kinds[0].argmax(axis=1) == kinds[1].argmax(axis=1)
    for each in kinds:
        contradicted &= (each.argmax(axis=1) != texts.label) & (each[rows, texts.label] < least(each)[texts.label])
    chance = (kinds[0] + kinds[1]) / 2
    own, best, thresholds = chance[rows, texts.label], chance.argmax(axis=1), least(chance)
    found = texts.label.copy()
    first, second = (each.argmax(axis=1) for each in kinds)
    alike = 1.0 * (first == second) - ((first == texts.label) * 0.5 + (second == texts.label) * 0.5)
    if not (clearly(best == texts.label, 0.5) or clearly(alike, 0.0)):
        return found
    for label in range(case.labels):
        rows = np.flatnonzero(contradicted & (texts.label == label))
        most = math.floor(0.2 * (texts.label == label).sum())
        for row in rows[np.argsort(-(chance.max(axis=1) - own)[rows], kind="stable")[:most]]:
            found[row] = best[row] if chance[row, best[row]] >= thresholds[best[row]] else -1
    return found


def of_chosen(case: Case, p: Any, texts: Texts, chosen: Any) -> Any:
    """Step 5: which texts, of those not set aside, are of chosen generators, bool [n], with those of rare labels."""
    found = chosen[texts.generator, texts.label]
    for label in np.flatnonzero(p < RARE / case.labels):
        further = np.flatnonzero(~found & (texts.label == label))
        wanted = round(p[label] * len(texts.x)) - (found & (texts.label == label)).sum()
        found[further[: max(0, wanted)]] = True
    return found


def along_axes(x: Any) -> tuple[Any, Any]:
    """Step 6.1: the axes, [d, a], and the texts about their mean along them, [n, a]."""
    about = x - x.mean(axis=0)
    axes = np.linalg.eigh(about.T @ about)[1][:, ::-1][:, :AXES]
    return axes, about @ axes


def centres(sums: Any, sigma: float, m: Any, axes: Any) -> Any:
    """Step 6.2: the records' centre of each label about that of all, less the part that is noise, [C, a]."""
    sums = np.asarray(sums).reshape(len(m), -1)
    a = (sums / m[:, None] - sums.sum(axis=0) / m.sum()) @ axes
    v = (sigma / m[:, None]) ** 2
    t = max(0.0, (a**2 - v).mean())
    return a * t / (t + v) if t > 0 else np.zeros_like(a)


def label_chances(f: Any, a: Any, label: Any) -> Any:
    """Step 6.3: the probability of each label for each text, [n, C]."""
    w = np.bincount(label, minlength=len(a)) / len(label)
    variance = ((f - a[label]) ** 2).mean()
    near = np.where(w > 0, (f @ a.T - (a**2).sum(axis=1) / 2) / variance, -np.inf)
    order = (1 - TRUST) * w[label][:, None] + TRUST * np.eye(len(a))[label]
    found = w * np.exp(near - near.max(axis=1, keepdims=True)) * order
    return found / found.sum(axis=1, keepdims=True)


def by_centres(case: Case, sums: Any, sigma: float, p: Any, m: Any, texts: Texts) -> Any:
    """Step 6: the label of each chosen text, int [n], -1 for those that are too many."""
    axes, f = along_axes(texts.x)
    a = centres(sums, sigma, m, axes)
    chance = label_chances(f, a, texts.label)
    found = np.where((p < RARE / case.labels)[texts.label], texts.label, chance.argmax(axis=1))
    if len(found) <= case.samples:
        return found
    kept = np.full(len(found), -1)
    for label, count in enumerate(places(case, found, p)):
        for n in range(count):
            free = np.flatnonzero((found == label) & (kept < 0))
            means = (f[kept == label].sum(axis=0) + f[free]) / (n + 1)
            kept[free[((means - REACH * a[label]) ** 2).sum(axis=1).argmin()]] = label
    return kept


def places(case: Case, label: Any, p: Any) -> Any:
    """Step 6.4: how many texts of each label stay, int [C]."""
    there, found = np.bincount(label, minlength=case.labels), np.zeros(case.labels, dtype=int)
    while found.sum() < case.samples:
        free = np.where(found < there, p, 0.0)
        found = np.minimum(found + shared(free, case.samples - found.sum()), there)
    return found


def word_classifier(words: list[Any], label: Any, labels: int, weights: Any = None) -> Any:
    """Step 7: the word classifier as a function of bucket sets: probabilities, [n, C]; 0 for a label not seen."""
    seen, there = np.unique(label), np.zeros((len(words), BUCKETS))
    for row, each in enumerate(words):
        there[row, each] = 1
    idf = np.log((1 + len(words)) / (1 + there.sum(axis=0))) + 1
    roots = np.sqrt(np.maximum(there.sum(axis=1, keepdims=True), 1))
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=STRENGTH, max_iter=500)
    if len(seen) > 1:
        model.fit(csr_array(there * idf / roots), label, weights)

    def scores(given: list[Any]) -> Any:
        found, chances = np.zeros((len(given), BUCKETS)), np.zeros((len(given), labels))
        for row, each in enumerate(given):
            found[row, each] = idf[each] / math.sqrt(max(1, len(each)))
        chances[:, seen] = model.predict_proba(csr_array(found)) if len(seen) > 1 else 1.0
        return chances

    return scores


def verdict(answer: Any, sigma: float, m: Any) -> tuple[float, float, bool]:
    """Step 7: the gain, its standard error, and whether the choice is published."""
    total = m.sum()
    gain = answer[0] / total
    error = math.sqrt((sigma / total) ** 2 + max(0.0, 2 * answer[2] / total - gain**2) / total)
    return gain, error, bool(gain > CERTAINTY * error)


def score(answer: Any, sigma: float, m: Any, counted: float, taken: bool) -> tuple[float, float, float]:
    """Step 7: the published corpus's score, and the ends of its interval; ``counted`` is the noise of m."""
    total = m.sum()
    excess = (answer[1] + (answer[0] if taken else -answer[0])) / total
    value = min(1.0, max(0.0, (1 + excess) / 2))
    noise = (sigma**2 / 2 + (excess / 2 * counted) ** 2) / total**2
    smooth = (value * total + 0.5) / (total + 1)
    error = math.sqrt(noise + smooth * (1 - smooth) / total)
    return value, max(0.0, value - 1.96 * error), min(1.0, value + 1.96 * error)
