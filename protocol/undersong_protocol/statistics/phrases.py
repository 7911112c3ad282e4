"""Terms of a public vocabulary in a text: longest match over words, case and white space folded."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from undersong_common.errors import ConfigurationError

LONGEST_TERM = 16  # words: what one word of a text can cost stays small, whatever is published

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Case-folded runs of letters and digits; everything between them only separates.

    >>> words("Top-up  FAILED: Marie's card")
    ['top', 'up', 'failed', 'marie', 's', 'card']
    """
    if text.isascii():  # is its own normal form
        return [text.lower()] if text.isalpha() else _WORD.findall(text.lower())
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class Terms:
    """A vocabulary made ready for matching; :func:`matcher` keeps the last ones.

    Args:
        terms: words or phrases, public.

    Raises:
        ConfigurationError: no term, a term without a letter or digit or of more than ``LONGEST_TERM`` words, or two
            that are the same when folded.
    """

    def __init__(self, terms: Sequence[str]) -> None:
        if not terms:
            raise ConfigurationError("the vocabulary is empty", "name a file with one term a line")
        self._index: dict[str, int] = {}
        self._longest: dict[str, int] = {}  # words of the longest term that begins with this word
        for number, term in enumerate(terms):
            found = words(term)
            if not found:
                raise ConfigurationError(f"vocabulary term {number + 1}, {term[:80]!r}, has no word", "remove it")
            if len(found) > LONGEST_TERM:
                raise ConfigurationError(
                    f"vocabulary term {number + 1}, {term[:80]!r}, has more than {LONGEST_TERM} words", "shorten it"
                )
            first = self._index.setdefault(" ".join(found), number)
            if first != number:
                raise ConfigurationError(
                    f"vocabulary terms {terms[first]!r} and {term!r} differ only in case, spaces or punctuation",
                    "keep one of them",
                )
            self._longest[found[0]] = max(self._longest.get(found[0], 0), len(found))

    def each(self, text: str) -> Iterator[int]:
        """The terms of ``text`` in the order in which they occur, repeats included.

        At each word the longest term that begins there is taken and its words are used up.
        """
        text_words = words(text)
        position = 0
        while position < len(text_words):
            length = min(self._longest.get(text_words[position], 0), len(text_words) - position)
            while length:
                number = self._index.get(" ".join(text_words[position : position + length]))
                if number is not None:
                    yield number
                    break
                length -= 1
            position += max(1, length)

    def of(self, text: str, most: int | None = None) -> list[int]:
        """The first ``most`` distinct terms of ``text``, in the order in which they occur; all where None.

        >>> Terms(["heart", "heart failure", "pain"]).of("PAIN, heart\\n failure; heart pain")
        [2, 1, 0]
        """
        found: dict[int, None] = {}
        for number in self.each(text):
            found.setdefault(number)
            if len(found) == most:
                break
        return list(found)


@lru_cache(maxsize=2)
def matcher(terms: tuple[str, ...]) -> Terms:
    """``Terms`` of a public vocabulary; a large one costs seconds, and a simulation's parties share it."""
    return Terms(terms)
