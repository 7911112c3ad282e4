"""Next-word accuracy of a trigram model, for corpora without labels; ``undersong evaluate`` reports its loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

from undersong_server.evaluation.metrics import Trigrams, places


def next_word_accuracy(training: Sequence[str], texts: Sequence[str], *, language: str = "en") -> float:
    """Share of words of ``texts`` that a trigram model of ``training`` finds likeliest, 0 to 1; NaN without texts.

    >>> next_word_accuracy(["a cat sat", "a cat ran off"], ["a cat sat"])
    0.75
    """
    model = Likeliest(training, language)
    is_right = [model.likeliest(context) == word for word, context in places(texts)]
    return sum(is_right) / len(is_right) if is_right else math.nan


class Likeliest(Trigrams):
    """Trigrams that name the most probable word."""

    def __init__(self, training: Sequence[str], language: str) -> None:
        super().__init__(training, language)
        self._likeliest: dict[tuple[str, ...], str] = {}

    def likeliest(self, context: tuple[str, ...]) -> str:
        """Returns the most probable word after the context, the alphabetically first of several.

        The probabilities of words that no longer context has counted are proportional to those without context, so
        only the likeliest of them is compared with the counted words.
        """
        if context not in self._likeliest:
            if context:
                words = {self.likeliest(())}
                for size in range(1, len(context) + 1):
                    words |= self._followers[size].get(context[len(context) - size :], {}).keys()
            else:
                words = {*self._followers[0].get((), {}), *self.general}
            self._likeliest[context] = max(sorted(words), key=lambda word: self.probability(word, context))
        return self._likeliest[context]
