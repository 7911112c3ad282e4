"""Counts of records that use each term of a public vocabulary; a record counts for its first S distinct terms."""

import math
from dataclasses import dataclass
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
from undersong_protocol.statistics.phrases import Terms, matcher
from undersong_protocol.statistics.registry import register


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
