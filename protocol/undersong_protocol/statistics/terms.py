"""Statistics on terms and keyphrases in records: counts of public terms, and kernel features of phrases.

A record counts for its first S distinct terms. Sums of kernel features estimate the density of a class's phrases, or of
prefixes of phrase sequences. Source: Rahimi, Recht 2007 (random Fourier features); Nagesh, Chen, Mishra, Wagner 2024
(DP-KPS, densities of keyphrases and of their prefixes). Deviations: cosine and sine stand in pairs instead of one
cosine with a random phase, so that the L2 norm is exactly sqrt(m); a record is ONE vector, however many phrases it has,
so that it counts once.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError
from undersong_common.models.workers import STEPS_A_TURN, cosines, sines
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import (
    Grid,
    check_embedding_size,
    check_embeddings,
    check_names,
    check_task_labels,
    labels_within,
)
from undersong_protocol.statistics.interface import (
    Between,
    LabelCount,
    Matrix,
    Number,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    in_blocks,
    positive_integers,
    register,
)

# Terms of a public vocabulary in a text: longest match over words, case and white space folded.

LONGEST_TERM = 16  # words: what one word of a text can cost stays small, whatever is published

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Returns the case-folded words of a text, which are runs of letters and digits.

    >>> words("Top-up  FAILED: Marie's card")
    ['top', 'up', 'failed', 'marie', 's', 'card']
    """
    if text.isascii():  # An ASCII text is its own NFKC form.
        if text.isalpha():
            return [text.lower()]
        return _WORD.findall(text.lower())
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class Terms:
    """Finds the terms of a public vocabulary in texts; :func:`matcher` caches the last objects.

    Args:
        terms: public words or phrases, which methods name by their index.

    Raises:
        ConfigurationError: there is no term, a term has no letter or digit or more than ``LONGEST_TERM`` words, or
            two terms are equal after case folding.
    """

    def __init__(self, terms: Sequence[str]) -> None:
        if not terms:
            raise ConfigurationError("the vocabulary is empty", "name a file with one term a line")
        self._number_by_term: dict[str, int] = {}
        self._longest_by_word: dict[str, int] = {}  # number of words of the longest term, by its first word
        for term_number, term in enumerate(terms):
            term_words = words(term)
            if not term_words:
                raise ConfigurationError(f"vocabulary term {term_number + 1}, {term[:80]!r}, has no word", "remove it")
            if len(term_words) > LONGEST_TERM:
                raise ConfigurationError(
                    f"vocabulary term {term_number + 1}, {term[:80]!r}, has more than {LONGEST_TERM} words",
                    "shorten it",
                )
            first_number = self._number_by_term.setdefault(" ".join(term_words), term_number)
            if first_number != term_number:
                raise ConfigurationError(
                    f"vocabulary terms {terms[first_number]!r} and {term!r} differ only in case, spaces or punctuation",
                    "keep one of them",
                )
            self._longest_by_word[term_words[0]] = max(self._longest_by_word.get(term_words[0], 0), len(term_words))

    def each(self, text: str) -> Iterator[int]:
        """Yields the indices of the terms in ``text``, in the order in which they occur, repeats included.

        Of several terms that begin at a word the longest is taken, and matching goes on behind it.
        """
        text_words = words(text)
        position = 0
        while position < len(text_words):
            term_length = min(self._longest_by_word.get(text_words[position], 0), len(text_words) - position)
            while term_length:
                term_number = self._number_by_term.get(" ".join(text_words[position : position + term_length]))
                if term_number is not None:
                    yield term_number
                    break
                term_length -= 1
            position += max(1, term_length)

    def of(self, text: str, most: int | None = None) -> list[int]:
        """Returns the indices of the first ``most`` distinct terms in ``text``, in order of occurrence; None takes all.

        >>> Terms(["heart", "heart failure", "pain"]).of("PAIN, heart\\n failure; heart pain")
        [2, 1, 0]
        """
        term_numbers: dict[int, None] = {}
        for term_number in self.each(text):
            term_numbers.setdefault(term_number)
            if len(term_numbers) == most:
                break
        return list(term_numbers)


@lru_cache(maxsize=2)
def matcher(terms: tuple[str, ...]) -> Terms:
    """Returns a cached ``Terms`` of a public vocabulary; a large one takes seconds to make."""
    return Terms(terms)


@register
@dataclass(frozen=True)
class TermHistogram(Statistic, question="counts"):
    """Counts the records that contain each term; a record counts for its first S different terms.

    The L2 sensitivity is sqrt(S), or S if repeats count (docs/privacy.md, "Statistics"). A record without any term does
    not count.

    Attributes:
        vocabulary: number of terms.
        distinct: S, terms of a record that count.
        repeats: True counts the first S terms of a record even if some are equal, as DP-KPS (A.1) does.

    Public input: texts named "vocabulary", exactly ``vocabulary`` of them.

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
    def asks(self) -> str:
        if self.repeats:
            return "how often each word of a public list occurs in your records"
        return "in how many of your records each word of a public list occurs"

    @property
    def dimension(self) -> int:
        return self.vocabulary

    @property
    def sensitivity(self) -> Sensitivity:
        most_terms = float(self.most)
        if self.repeats:
            return Sensitivity(most_terms, most_terms, most_terms)
        return Sensitivity(most_terms, math.sqrt(most_terms), 1.0)

    @property
    def most(self) -> int:
        """Largest number of a record's terms that count."""
        if self.repeats:
            return self.distinct
        return min(self.distinct, self.vocabulary)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[TermHistogram, Inputs]":
        example_terms = choose.terms(choose.integer(1, 20))
        return cls(vocabulary=len(example_terms), distinct=choose.integer(1, 6), repeats=choose.yes()), (
            ("vocabulary", example_terms),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, texts=("vocabulary",))
        vocabulary = public.texts_of("vocabulary")
        if len(vocabulary) != self.vocabulary:
            raise ConfigurationError(
                f"{self.name}: {len(vocabulary)} terms were published, the plan has {self.vocabulary}",
                "publish the planned ones",
                code="term-count",
            )
        matcher(tuple(vocabulary))

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        term_matcher = matcher(tuple(public.texts_of("vocabulary")))
        record_texts = records.texts

        def compute(row_numbers: Int64) -> Matrix:
            terms_of_record = [self._terms_of(term_matcher, record_texts[row]) for row in row_numbers]
            row_starts = np.cumsum([0, *(len(term_numbers) for term_numbers in terms_of_record)])
            columns = np.array([term for term_numbers in terms_of_record for term in term_numbers], dtype=np.int64)
            term_counts = sp.csr_array(
                (np.ones(len(columns)), columns, row_starts), shape=(len(terms_of_record), self.dimension)
            )
            term_counts.sum_duplicates()
            return term_counts

        return Rows(compute, records.units, width=self.most)

    def _terms_of(self, term_matcher: Terms, text: str) -> list[int]:
        if self.repeats:
            return list(islice(term_matcher.each(text), self.distinct))
        return term_matcher.of(text, self.distinct)


LEAST_WEIGHT = 0.1  # share of the largest weight, so that rounding to integers stays fine enough
FEATURE_SCALE = 1024  # integer units per feature; rounding toward zero takes 1/2048 of a feature on average
LARGEST_PAIRS = 2**13
LARGEST_PHRASES = 64  # phrases of a record and longest structure
MOST_LENGTHS = 32
LARGEST_PHASES = 2**28  # angles that a party computes from public terms and random frequencies, two bytes each
AVERAGED_PHRASES = 64  # phrases of one record that are averaged at a time
# Turns per unit of length. At the largest ``width``, 1e6, the standard deviation of a frequency is 225, which is
# sqrt(2e6) / (2 pi). A draw lies within 9 deviations, so that the grid holds it.
FREQUENCIES = Grid(bits=22, largest=2.0**13)
FREQUENCIES.check_exact(record_bits=11, record_norm=1.0)


@register
@dataclass(frozen=True)
class FourierFeatures(Statistic, question="directions"):
    """Sums random Fourier features of the records' phrases, from which densities of phrases or prefixes are estimated.

    A row holds cos(w.x) and sin(w.x) for m random frequencies w and for each of several *structures*, in a block of the
    record's class. A structure of length l looks at l phrases: x is their l unit vectors concatenated, and the kernel
    is exp(-u |x - y|^2) with u = width / l.

    With ``averaged`` a record is the mean of its phrases' features (density of single phrases). Otherwise x is the
    record's first ``phrases`` phrases in order, concatenated; a position that a record does not fill holds the unit
    vector of one coordinate more, orthogonal to every phrase: then x has norm sqrt(l) whatever the record, and a
    shorter prefix's density is that of the zero-padded query times exp(u (l - length of the prefix)) (theorem A.1).

    A record without a phrase, or (where there are classes) without label, contributes nothing. Every structure's block
    is multiplied by its weight (:attr:`weights`), by which a reader of the sums divides.

    Attributes:
        pairs: m, pairs of cosine and sine.
        classes: number of labels of the task; 0 puts all records into one block.
        lengths: lengths of the structures, which are released together; at most 32, each from 1 to 64.
        phrases: L, phrases of a record that count, from 1 to 64 (not for ``averaged``).
        averaged: True averages a record's phrases, as above; ``lengths`` must be (1,).
        width: u times the length of a structure.
        even: True gives all structures the same weight, as in DP-KPS.
        seed: seed of the public frequencies.

    Public inputs: texts and embeddings, both named "terms", row by row the same terms. The phases, which are the angles
    w.x, are rounded to steps of 1/65536 of a turn per term and position (undersong_common.models.workers), added as
    integers, and looked up in one table.

    >>> one = FourierFeatures(pairs=512, classes=14, lengths=(1,), averaged=True).sensitivity
    >>> one.l2**2, round(FourierFeatures(pairs=512, lengths=(1, 2, 4)).sensitivity.l2 / one.l2, 4)
    (512.0000000000001, 1.7321)
    """

    name: ClassVar[str] = "fourier_features"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "how common phrases of each kind are in your records, as sums of random waves over the phrases"
    )
    pairs: Annotated[int, Between(1, LARGEST_PAIRS)]
    classes: LabelCount = 0
    lengths: tuple[int, ...] = (1,)
    phrases: Annotated[int, Between(1, LARGEST_PHRASES)] = 1
    averaged: bool = False
    width: float = 2.0
    even: bool = False
    seed: Annotated[int, Between(0, 2**53)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_integers(self.name, "lengths", self.lengths, most_entries=MOST_LENGTHS, most=LARGEST_PHRASES)
        if self.averaged and self.lengths != (1,):
            raise ConfigurationError(
                f"{self.name}.lengths is {list(self.lengths)}, and averaged phrases have the length 1 only",
                "give lengths = [1], or averaged = false",
            )
        if not isinstance(self.width, int | float) or not 0 < self.width < 1e6:
            raise ConfigurationError(
                f"{self.name}.width is {self.width!r}, not a number above 0 and below 1e6", "give such a number"
            )

    @property
    def structure_dimension(self) -> int:
        """Number of coordinates of one structure: m cosines, then m sines."""
        return 2 * self.pairs

    @property
    def class_dimension(self) -> int:
        return len(self.lengths) * self.structure_dimension

    @property
    def dimension(self) -> int:
        return max(1, self.classes) * self.class_dimension

    @property
    def weights(self) -> tuple[float, ...]:
        """Factor of each structure's features; the squares sum to the number of structures.

        They make the noise's share of an estimate's error equal for all structures, so that the largest share is
        smallest. An estimate errs by its frequencies too. Of two records at x and y from the query, the terms cos(w.x),
        cos(w.y) have the covariance (k(x - y) + k(x + y)) / 2 - k(x) k(y), where k(d) = exp(-u |d|^2). Let phrases that
        have nothing to do with each other be orthogonal; with f of l' positions filled in both records and l in the
        query this is (a - b)^2 / 2, a = exp(-u f), b = exp(-u (2 l + 2 l' - f)). Noise whose deviation is divided by
        the weight then has the same share everywhere if the weight goes by 1 / (a - b), with l the shortest prefix that
        the structure is asked for, which is the hardest. Structures that are filled alike, as those of a linear
        ensemble, all have weight 1; one longer than L needs less, because records that end early resemble each other.

        >>> [round(weight, 3) for weight in FourierFeatures(pairs=1, lengths=(1, 2, 4, 8, 16), phrases=10).weights]
        [1.062, 1.062, 1.097, 1.135, 0.504]
        """
        if self.even:
            return (1.0,) * len(self.lengths)
        structure_needs = []
        for length in self.lengths:
            shortest_prefix = min(
                1 + max((shorter_length for shorter_length in self.lengths if shorter_length < length), default=0),
                self.phrases,
            )
            unit_width = self.width / length
            filled_positions = min(length, self.phrases)
            # Both terms of a - b have the factor exp(width), which could underflow. A kernel so narrow needs no finer
            # weights.
            width_excess = math.exp(min(self.width - unit_width * filled_positions, 100.0))
            structure_needs.append(
                1.0 / (width_excess * -math.expm1(-2 * unit_width * (shortest_prefix + length - filled_positions)))
            )
        least_need = LEAST_WEIGHT * max(structure_needs)
        structure_needs = [max(need, least_need) for need in structure_needs]
        weight_scale = math.sqrt(len(structure_needs) / math.fsum(need * need for need in structure_needs))
        return tuple(weight_scale * need for need in structure_needs)

    @property
    def sensitivity(self) -> Sensitivity:
        """The norms of one record's row.

        Each pair of each structure has cos^2 + sin^2 = 1 and |cos| + |sin| <= sqrt(2), times the structure's weight.
        """
        structure_weights = self.weights
        l1 = math.sqrt(2.0) * self.pairs * math.fsum(structure_weights)
        l2 = math.sqrt(self.pairs * len(structure_weights))
        return Sensitivity(l1, l2, max(structure_weights))

    @property
    def base_scale(self) -> int:
        return FEATURE_SCALE

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[FourierFeatures, Inputs]":
        is_averaged = choose.yes()
        statistic = cls(
            pairs=choose.one_of([1, 7, 16]),
            classes=choose.labels(facts),
            lengths=(1,) if is_averaged else choose.one_of([(1,), (1, 2, 4), (3, 1)]),
            phrases=choose.integer(1, 4),
            averaged=is_averaged,
            width=choose.one_of([0.01, 2.0, 999_999.0]),
            even=choose.yes(),
            seed=choose.integer(0, 9),
        )
        example_terms = choose.terms(choose.integer(1, 20))
        return statistic, (("terms", example_terms), ("terms", choose.embeddings(len(example_terms), facts)))

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, embeddings=("terms",), texts=("terms",))
        check_task_labels(self.name, self.classes, facts)
        check_embedding_size(self.name, facts)
        input_terms = public.texts_of("terms")
        vectors = public.embeddings_of("terms")
        check_embeddings("terms", vectors, facts, labels=0, most=len(vectors.values))
        if len(vectors.values) != len(input_terms):
            raise ConfigurationError(
                f"{self.name}: {len(input_terms)} terms were published with {len(vectors.values)} embeddings",
                "publish one embedding for each term",
            )
        filled_positions = sum(min(length, self.phrases) for length in self.lengths)
        phase_count = self.pairs * (
            filled_positions * (len(input_terms) + 1) + sum(self.lengths) * (facts.embedding_size + 1)
        )
        if phase_count > LARGEST_PHASES:
            raise ConfigurationError(
                f"{self.name}: the published terms, pairs and lengths need {phase_count} angles; {LARGEST_PHASES} are"
                " allowed",
                "publish fewer terms, or plan fewer pairs or lengths",
            )
        matcher(tuple(input_terms))

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        term_matcher = matcher(tuple(public.texts_of("terms")))
        vectors = public.embeddings_of("terms").values
        record_texts = records.texts
        most_terms = None if self.averaged else self.phrases
        if self.classes:
            record_labels = labels_within(records.labels, self.classes)
        else:
            record_labels = np.zeros(len(record_texts), dtype=np.int64)
        counted_records = np.array(
            [row for row, text in enumerate(record_texts) if record_labels[row] >= 0 and term_matcher.of(text, 1)],
            dtype=np.int64,
        )
        if self.averaged:
            compute_features = self._phrase_averages(vectors)
        else:
            compute_features = self._phrase_sequences(vectors)

        def compute(row_numbers: Int64) -> Matrix:
            record_numbers = counted_records[row_numbers]
            terms_of_record = [term_matcher.of(record_texts[row], most_terms) for row in record_numbers]
            return in_blocks(compute_features(terms_of_record), record_labels[record_numbers], self.dimension)

        return Rows(compute, records.units[counted_records], width=self.class_dimension)

    def phases(self, structure_number: int, position: int, vectors: Float32) -> Int64:
        """Returns the angle w.x of each of N terms at a position of a structure, int64 [N + 1, m].

        The unit is 1 / ``STEPS_A_TURN`` of a turn, modulo a turn. The last row is for an unfilled position.
        """
        from scipy.special import ndtri

        phrase_length = self.lengths[structure_number]
        stream_label = f"{self.seed}/{phrase_length}/{position}/{vectors.shape[1]}"
        key_stream = KeyStream(tagged_hash("fourier frequencies", stream_label.encode()))
        frequency_count = self.pairs * (vectors.shape[1] + 1)
        uniform_draws = (
            np.frombuffer(key_stream.read(8 * frequency_count), dtype="<u8") >> np.uint64(11)
        ) * 2.0**-53 + 2.0**-54
        deviation = math.sqrt(2.0 * self.width / phrase_length)  # exp(-u |d|^2) is the transform of N(0, 2 u)
        turn_fractions = FREQUENCIES.quantised(deviation / (2.0 * math.pi) * ndtri(uniform_draws))
        frequencies = turn_fractions.reshape(vectors.shape[1] + 1, self.pairs)
        phase_rows = np.vstack([vectors.astype(np.float64) @ frequencies[:-1], frequencies[-1:]])
        return np.rint(phase_rows * STEPS_A_TURN).astype(np.int64) & (STEPS_A_TURN - 1)

    def _phrase_averages(self, vectors: Float32) -> Callable[[Sequence[list[int]]], Float64]:
        phrase_phases = self.phases(0, 0, vectors)[:-1].astype(np.uint16)

        def average(term_numbers: list[int]) -> Float64:
            # A long text may hold every term, so that only a few phrases are averaged at a time.
            summed_features = np.zeros(self.class_dimension)
            for term_start in range(0, len(term_numbers), AVERAGED_PHRASES):
                term_phases = phrase_phases[term_numbers[term_start : term_start + AVERAGED_PHRASES]].astype(np.int64)
                summed_features += np.hstack([cosines(term_phases), sines(term_phases)]).sum(axis=0)
            return summed_features / len(term_numbers)

        def compute_features(terms_of_records: Sequence[list[int]]) -> Float64:
            return np.array([average(term_numbers) for term_numbers in terms_of_records]).reshape(
                -1, self.class_dimension
            )

        return compute_features

    def _phrase_sequences(self, vectors: Float32) -> Callable[[Sequence[list[int]]], Float64]:
        structure_weights = self.weights
        phases_by_structure: list[list[npt.NDArray[np.uint16]]] = []
        unfilled_phases: list[Int64] = []  # the phase of the positions that no record fills
        for structure_number, length in enumerate(self.lengths):
            filled_positions = min(length, self.phrases)
            phases_by_structure.append(
                [
                    self.phases(structure_number, position, vectors).astype(np.uint16)
                    for position in range(filled_positions)
                ]
            )
            unfilled_phase = np.zeros(self.pairs, dtype=np.int64)
            for position in range(filled_positions, length):
                unfilled_phase += self.phases(structure_number, position, vectors[:0])[-1]
            unfilled_phases.append(unfilled_phase)

        def compute_features(terms_of_records: Sequence[list[int]]) -> Float64:
            columns = np.full((len(terms_of_records), self.phrases), len(vectors), dtype=np.int64)
            for row, term_numbers in enumerate(terms_of_records):
                columns[row, : len(term_numbers)] = term_numbers
            structure_features = []
            for position_phases, unfilled_phase, structure_weight in zip(
                phases_by_structure, unfilled_phases, structure_weights, strict=True
            ):
                phase_sums: Int64 = np.repeat(unfilled_phase[None, :], len(terms_of_records), axis=0)
                for position, term_phases in enumerate(position_phases):
                    phase_sums += term_phases[columns[:, position]]
                structure_features += [structure_weight * cosines(phase_sums), structure_weight * sines(phase_sums)]
            return np.hstack(structure_features)

        return compute_features
