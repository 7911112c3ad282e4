"""How much a corpus teaches a small language model about real texts: the utility of a corpus without labels."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

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
    base = BaseFrequencies(language)
    followers: list[dict[tuple[str, ...], dict[str, int]]] = [defaultdict(dict) for _ in range(ORDER)]
    for text in training:
        padded = [START] * (ORDER - 1) + _words(text)
        for place in range(ORDER - 1, len(padded)):
            for size in range(ORDER):
                counts = followers[size][tuple(padded[place - size : place])]
                counts[padded[place]] = counts.get(padded[place], 0) + 1
    totals = [{context: sum(counts.values()) for context, counts in level.items()} for level in followers]
    bits, words = 0.0, 0
    for text in texts:
        padded = [START] * (ORDER - 1) + _words(text)
        for place in range(ORDER - 1, len(padded)):
            probability = base(padded[place])
            for size in range(ORDER):
                context = tuple(padded[place - size : place])
                if seen := followers[size].get(context):
                    kinds, total = len(seen), totals[size][context]
                    probability = (seen.get(padded[place], 0.0) + kinds * probability) / (total + kinds)
            bits -= math.log2(probability)
            words += 1
    return bits / words if words else math.nan


def _words(text: str) -> list[str]:
    return [*TOKEN.findall(text.lower()), END]


class BaseFrequencies:
    """The word's probability before any text was read."""

    def __init__(self, language: str) -> None:
        from wordfreq import get_frequency_dict

        frequencies = get_frequency_dict(language, wordlist="small")
        # A text of some twenty words, with a mark now and then: what the list, which is of words alone, does not say.
        self._known = {**{word: 0.85 * share for word, share in frequencies.items()}, END: 0.05, ".": 0.05, ",": 0.05}
        self._scale = (1.0 - UNKNOWN_SHARE) / sum(self._known.values())

    def __call__(self, word: str) -> float:
        spelled: float = UNKNOWN_SHARE * LETTERS ** -(len(word) + 1.0)
        return float(self._scale * self._known.get(word, 0.0) + spelled)
