"""Counts of records that use each term of a public vocabulary; a record counts for its first S distinct terms."""

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from undersong_common.arrays import Int64
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import check_names
from undersong_protocol.statistics.interface import (
    Number,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
)
from undersong_protocol.statistics.registry import register

# Terms of a public vocabulary in a text: longest match over words, case and white space folded.

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


@register
@dataclass(frozen=True)
class TermHistogram(Statistic, question="counts"):
    """Records per term; a record counts once for each of its first ``distinct`` (S) different terms.

    Distinct terms make the L2 sensitivity sqrt(S); repeats counted make it S
    (docs/privacy.md, "Statistics"). A record without any term counts nowhere.

    Attributes:
        vocabulary: number of terms.
        distinct: S.
        repeats: counts the first S terms of a record, of which several may be the same, as DP-KPS (A.1) does.

    Public input: texts named "vocabulary", exactly that many.

    >>> TermHistogram(vocabulary=1000, distinct=9).sensitivity
    Sensitivity(l1=9.0, l2=3.0, linf=1.0)
    """

    name: ClassVar[str] = "term_histogram"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = "in how many of your records, or how often in them, each word of a public list occurs"
    vocabulary: Number
    distinct: Number
    repeats: bool = False

    @property
    def dimension(self) -> int:
        return self.vocabulary

    @property
    def sensitivity(self) -> Sensitivity:
        most = float(self.most)
        return Sensitivity(most, most, most) if self.repeats else Sensitivity(most, math.sqrt(most), 1.0)

    @property
    def most(self) -> int:
        """Terms of a record that count."""
        return self.distinct if self.repeats else min(self.distinct, self.vocabulary)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[TermHistogram, Inputs]":
        terms = choose.terms(choose.integer(1, 20))
        return cls(vocabulary=len(terms), distinct=choose.integer(1, 6), repeats=choose.yes()), (("vocabulary", terms),)

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, texts=("vocabulary",))
        vocabulary = public.texts_of("vocabulary")
        if len(vocabulary) != self.vocabulary:
            raise ConfigurationError(
                f"{len(vocabulary)} terms were published, the plan has {self.vocabulary}",
                "publish the planned ones",
                code="term-count",
            )
        matcher(tuple(vocabulary))

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        terms = matcher(tuple(public.texts_of("vocabulary")))
        texts = records.texts

        def compute(asked: Int64) -> sp.csr_array[Any]:
            found = [self._of(terms, texts[row]) for row in asked]
            starts = np.cumsum([0, *(len(one) for one in found)])
            columns = np.array([term for one in found for term in one], dtype=np.int64)
            counted = sp.csr_array((np.ones(len(columns)), columns, starts), shape=(len(found), self.dimension))
            counted.sum_duplicates()
            return counted

        return Rows(compute, records.units, width=self.most)

    def _of(self, terms: Terms, text: str) -> list[int]:
        return list(islice(terms.each(text), self.distinct)) if self.repeats else terms.of(text, self.distinct)
