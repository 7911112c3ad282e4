"""Utility of a corpus without labels: the loss of a small language model that has read it on real texts."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

ORDER = 3
UNKNOWN_SHARE = 0.01  # of the base distribution: words that no list knows, spelled letter by letter
LETTERS = 27.0  # equally likely letters and the end of the word
TOKEN = re.compile(r"\w+|[^\w\s]")
START = "\x02"
END = "\x03"


def next_word_loss(training: Sequence[str], texts: Sequence[str], *, language: str = "en") -> float:
    """Mean bits per word that a trigram model needs for ``texts`` after it has read ``training``; lower is better.

    Without training texts it is the loss of general word frequencies alone (wordfreq, ``language``), so the difference
    of the two is what a corpus taught. The model interpolates by Witten and Bell (1991, method C) down to these
    frequencies, and to spelling for words they do not know: every text has a finite loss, and both models predict over
    the same words. Words in lower case, punctuation marks and the end of a text count as words. Returns NaN without
    texts.
    """
    model = _Trigrams(training, language)
    bits = [-math.log2(model.probability(word, context)) for word, context in _places(texts)]
    return sum(bits) / len(bits) if bits else math.nan


def next_word_accuracy(training: Sequence[str], texts: Sequence[str], *, language: str = "en") -> float:
    """Share of the words of ``texts`` that the model of :func:`next_word_loss` expects most, 0 to 1; NaN without texts.

    >>> next_word_accuracy(["a cat sat", "a cat ran off"], ["a cat sat"])
    0.75
    """
    model = _Trigrams(training, language)
    right = [model.likeliest(context) == word for word, context in _places(texts)]
    return sum(right) / len(right) if right else math.nan


def _places(texts: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each word of the texts and the words before it that a model sees."""
    for text in texts:
        padded = [START] * (ORDER - 1) + [*TOKEN.findall(text.lower()), END]
        for place in range(ORDER - 1, len(padded)):
            yield padded[place], tuple(padded[place - ORDER + 1 : place])


class _Trigrams:
    """Counts of the words that follow each context, and general frequencies below them."""

    def __init__(self, training: Sequence[str], language: str) -> None:
        self._base = BaseFrequencies(language)
        self._followers: list[dict[tuple[str, ...], dict[str, int]]] = [defaultdict(dict) for _ in range(ORDER)]
        for word, context in _places(training):
            for size, level in enumerate(self._followers):
                counts = level[context[ORDER - 1 - size :]]
                counts[word] = counts.get(word, 0) + 1
        self._totals = [{context: sum(seen.values()) for context, seen in level.items()} for level in self._followers]
        self._likeliest: dict[tuple[str, ...], str] = {}

    def probability(self, word: str, context: tuple[str, ...]) -> float:
        """The word's after the context, or after no more of its end than is given."""
        found = self._base(word)
        for size in range(len(context) + 1):
            end = context[len(context) - size :]
            if seen := self._followers[size].get(end):
                kinds, total = len(seen), self._totals[size][end]
                found = (seen.get(word, 0.0) + kinds * found) / (total + kinds)
        return found

    def likeliest(self, context: tuple[str, ...]) -> str:
        """The most probable word after the context, the first by name of several.

        One that no count of a longer context knows is as probable as it is without context, up to a common factor: of
        those, the likeliest without context is enough.
        """
        if context not in self._likeliest:
            if context:
                words = {self.likeliest(())}
                for size in range(1, len(context) + 1):
                    words |= self._followers[size].get(context[len(context) - size :], {}).keys()
            else:
                words = {*self._followers[0].get((), {}), *self._base.words()}
            self._likeliest[context] = max(sorted(words), key=lambda word: self.probability(word, context))
        return self._likeliest[context]


class BaseFrequencies:
    """The word's probability before any text was read."""

    def __init__(self, language: str) -> None:
        from wordfreq import get_frequency_dict

        frequencies = get_frequency_dict(language, wordlist="small")
        # A text of some twenty words, with a mark now and then: what the list, which is of words alone, does not say.
        self._known = {**{word: 0.85 * share for word, share in frequencies.items()}, END: 0.05, ".": 0.05, ",": 0.05}
        self._scale = (1.0 - UNKNOWN_SHARE) / sum(self._known.values())

    def words(self) -> Iterable[str]:
        """All that the list knows."""
        return self._known

    def __call__(self, word: str) -> float:
        spelled: float = UNKNOWN_SHARE * LETTERS ** -(len(word) + 1.0)
        return float(self._scale * self._known.get(word, 0.0) + spelled)
