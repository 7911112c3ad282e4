"""How different the texts of one corpus are from each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from undersong_common.arrays import Floats

SELF_BLEU_TEXTS = 200  # drawn: each is compared with all others, and the mean settles long before


def distinct_n(texts: Sequence[str], n: int) -> float:
    """Different n-grams over all n-grams of all texts, words split at white space, 0 to 1 (Li et al. 2016).

    It falls as a corpus grows: compare corpora of equal size. NaN where no text has n words.

    >>> distinct_n(["a b a b"], 2)
    0.6666666666666666
    """
    seen: set[tuple[str, ...]] = set()
    total = 0
    for text in texts:
        words = text.split()
        grams = list(zip(*(words[start:] for start in range(n)), strict=False))
        seen.update(grams)
        total += len(grams)
    return len(seen) / total if total else float("nan")


def self_bleu(texts: Sequence[str], *, seed: int = 0) -> float:
    """Mean BLEU-4 of a text against the others of the corpus, 0 to 1 (Zhu et al. 2018); lower is more diverse.

    sacrebleu's sentence BLEU (exponential smoothing) over at most 200 texts drawn with ``seed``. NaN below two.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.helpers import extract_all_word_ngrams

    chosen = list(texts)
    if len(chosen) > SELF_BLEU_TEXTS:
        rng = np.random.default_rng([seed, 0x5B])
        chosen = [chosen[index] for index in np.sort(rng.choice(len(chosen), SELF_BLEU_TEXTS, replace=False))]
    if len(chosen) < 2:
        return float("nan")
    measure = BLEU(effective_order=True)
    order = measure.max_ngram_order
    counted = [extract_all_word_ngrams(measure.tokenizer(text.rstrip()), 1, order) for text in chosen]
    # Of each n-gram the two largest counts, and whose the largest is: the references of a text are all texts but it,
    # and sacrebleu would count their n-grams anew for each.
    largest: dict[tuple[str, ...], tuple[int, int, int]] = {}
    for index, (grams, _) in enumerate(counted):
        for gram, count in grams.items():
            first, owner, second = largest.get(gram, (0, -1, 0))
            largest[gram] = (count, index, first) if count > first else (first, owner, max(second, count))
    lengths = [length for _, length in counted]
    scores = []
    for index, (grams, length) in enumerate(counted):
        correct, total = [0] * order, [0] * order
        for gram, count in grams.items():
            first, owner, second = largest[gram]
            correct[len(gram) - 1] += min(count, second if owner == index else first)
            total[len(gram) - 1] += count
        others = [*lengths[:index], *lengths[index + 1 :]]
        closest = min(others, key=lambda other: (abs(other - length), other))
        scores.append(
            BLEU.compute_bleu(correct, total, length, closest, measure.smooth_method, effective_order=True).score
        )
    return float(np.mean(scores)) / 100


def vendi_score(embeddings: Floats) -> float:
    """Effective number of different texts, 1 to n: exp of the entropy of the similarities' eigenvalues.

    Friedman and Dieng 2023, definition 3.1, with cosine similarity of unit vectors [n, d]. The eigenvalues of the
    n x n matrix X X'/n are those of X' X/n, which is d x d; so it is at most d: compare corpora of equal size. NaN
    without rows.
    """
    if not len(embeddings):
        return float("nan")
    rows = np.asarray(embeddings, dtype=np.float64)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    gram = rows.T @ rows if rows.shape[1] < len(rows) else rows @ rows.T
    values = np.linalg.eigvalsh(gram / len(rows))
    some = values[values > 1e-12]
    return float(np.exp(-(some * np.log(some)).sum()))
