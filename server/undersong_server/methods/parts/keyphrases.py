"""Terms whose counts noise alone does not explain, and sequences of them from noisy kernel densities (DP-KPS).

Everything here reads noised sums and public terms only: it is post-processing and costs no privacy.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from undersong_common.arrays import Float32, Float64, Floats, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.models.workers import cosines, sines
from undersong_protocol.statistics.terms import FourierFeatures, TermHistogram, words
from undersong_server.methods.interface import RunContext, Setting
from undersong_server.methods.parts.papers import PresetOptions


def significant_terms(
    term_counts: Float64, sigma: float, *, most: int, false_share: float, law: Literal["gaussian", "laplace"]
) -> Int64:
    """Returns the at most ``most`` terms with the highest noisy counts, of which about ``false_share`` are noise alone.

    Benjamini and Hochberg 1995 with the public law of the noise. The paper takes the N highest whatever they are: of a
    large vocabulary most of those are terms that no record uses. ``false_share`` 1 does as the paper does.

    Args:
        term_counts: noisy, natural units, float64 [V]; ``sigma`` is their noise's standard deviation.

    Returns:
        int64 positions, the highest count first; ties to the lower index.
    """
    likeliest_terms = np.argsort(-term_counts, kind="stable")[:most]
    if false_share >= 1.0:
        return likeliest_terms
    highest_counts = term_counts[likeliest_terms]
    if sigma <= 0.0:
        return likeliest_terms[highest_counts > 0.0]
    from scipy.special import ndtr

    if law == "laplace":
        false_chances = np.minimum(0.5 * np.exp(-math.sqrt(2.0) * np.maximum(highest_counts, 0.0) / sigma), 1.0)
    else:
        false_chances = ndtr(-highest_counts / sigma)
    passing_ranks = np.flatnonzero(
        false_chances <= false_share * np.arange(1, len(likeliest_terms) + 1) / len(term_counts)
    )
    if len(passing_ranks):
        return likeliest_terms[: passing_ranks[-1] + 1]
    return likeliest_terms[:0]


def sequence_text(terms: Iterable[str]) -> str:
    """Joins the terms of a sequence to the text that is embedded, with ", " between them."""
    return ", ".join(terms)


UNFILLED = -1  # stands in a sequence after its end, in place of a term's number


class Densities:
    """Kernel densities of every class over the terms, from the opened sum of their features.

    Args:
        features: the statistic that was summed.
        sums: float64 [features.dimension], natural units.
        vectors: quantised embeddings of the terms, float32 [N, d].
        repeats: whether a sequence may have a term twice, as the paper's do.
    """

    def __init__(self, features: FourierFeatures, sums: Float64, vectors: Float32, *, repeats: bool = False) -> None:
        self._features = features
        self._repeats = repeats
        sums_by_structure = sums.reshape(max(1, features.classes), len(features.lengths), 2, features.pairs)
        # Cosine and sine sums as one complex number per frequency: an estimate is then the real part of a product.
        density_waves = (sums_by_structure[:, :, 0] - 1j * sums_by_structure[:, :, 1]) / np.array(features.weights)[
            None, :, None
        ]
        self._sums = density_waves.astype(np.complex64) / features.pairs
        self._vectors = vectors
        self._tables: dict[tuple[int, int], Int64] = {}

    @property
    def terms(self) -> int:
        return len(self._vectors)

    def of_terms(self, label: int) -> Float64:
        """The label's density at each term, of sequences of one term, times its number n of records.

        float64 [N], N terms; noise can make it negative.
        """
        return self.of_prefixes(label, np.arange(self.terms)[:, None])

    def of_prefixes(self, label: int, prefixes: Int64) -> Float64:
        """The label's density at each prefix of l terms, times its number of records: int64 [T, l] -> float64 [T].

        It is estimated by the shortest structure that holds l phrases (l' of them), the query padded with zeros, times
        exp(u (l' - l)).
        Raises ConfigurationError where no structure is long enough.
        """
        prefix_length = prefixes.shape[1]
        structure = self._structure_of(prefix_length)
        prefix_waves = self._class_state(label, structure, prefixes[:, :-1])
        term_waves = self._phase_waves(structure, prefix_length - 1)
        last_terms = prefixes[:, -1]
        pair_count = self._features.pairs
        density_estimates = np.einsum(
            "tm,tm->t", prefix_waves.real, term_waves[:pair_count, last_terms].T.astype(np.float64)
        )
        density_estimates -= np.einsum(
            "tm,tm->t", prefix_waves.imag, term_waves[pair_count:, last_terms].T.astype(np.float64)
        )
        rescaled_estimates: Float64 = self._length_rescaling(structure, prefix_length) * density_estimates
        return rescaled_estimates

    def independent(
        self,
        label: int,
        sequence_count: int,
        sequence_length: int,
        rng: np.random.Generator,
        *,
        sharpness: float = 1.0,
        highest: int | None = None,
    ) -> Int64:
        """Draws ``sequence_count`` sequences of ``sequence_length`` terms, each term from the density over the terms.

        Terms are drawn in proportion to the density to the power of ``sharpness`` (1: the paper), among the ``highest``
        of the highest density; among all if that is None. They are int64 [sequence_count, sequence_length].
        """
        term_weights = np.tile(_raise_estimates(self.of_terms(label)[None, :], sharpness), (sequence_count, 1))
        chosen_terms = np.zeros((sequence_count, sequence_length), dtype=np.int64)
        for position in range(sequence_length):
            chosen_terms[:, position] = _draw_columns(
                term_weights, self._taken_terms(chosen_terms[:, :position]), rng, highest
            )
        return chosen_terms

    def iterative(
        self,
        label: int,
        sequence_count: int,
        sequence_length: int,
        rng: np.random.Generator,
        *,
        sharpness: float = 1.0,
        highest: int | None = None,
        ends: bool = False,
    ) -> Int64:
        """Draws ``sequence_count`` sequences, each next term by the density of the prefix that it makes.

        The prefix's features are multiplied once with those of all terms, so that a step of all sequences together is
        one matrix product [sequence_count, 2m] x [2m, N]. A kernel on l' phrases is l' times as wide a phrase as one on
        a single phrase; if ``sharpness`` is not 1, densities are raised to sharpness x l', which undoes it. At 1 they
        are raised to no power. Each step draws among its own ``highest`` terms, as :meth:`independent` does.

        With ``ends`` a sequence ends, and holds -1 from there on, where no term has as high a density as the end: most
        records that begin so have no further term, and what is drawn there says nothing of them. Sequences are int64
        [sequence_count, sequence_length].
        """
        chosen_terms = np.zeros((sequence_count, sequence_length), dtype=np.int64)
        for position in range(sequence_length):
            structure = self._structure_of(position + 1)
            prefix_waves = self._class_state(label, structure, chosen_terms[:, :position])
            density_estimates = np.hstack([prefix_waves.real, -prefix_waves.imag]) @ self._phase_waves(
                structure, position
            )
            term_weights, end_estimates = density_estimates[:, :-1], density_estimates[:, -1]
            if sharpness == 1.0:
                weight_power = 1.0
            else:
                weight_power = sharpness * self._features.lengths[structure]
            chosen_terms[:, position] = _draw_columns(
                _raise_estimates(term_weights, weight_power),
                self._taken_terms(chosen_terms[:, :position]),
                rng,
                highest,
            )
            if ends and position:
                has_ended = (chosen_terms[:, position - 1] == UNFILLED) | (end_estimates > term_weights.max(axis=1))
                chosen_terms[has_ended, position] = UNFILLED
        return chosen_terms

    def _taken_terms(self, drawn_terms: Int64) -> Int64:
        if self._repeats:
            return drawn_terms[:, :0]
        return drawn_terms

    def _structure_of(self, phrase_count: int) -> int:
        structures = [
            structure_number
            for structure_number, structure_length in enumerate(self._features.lengths)
            if structure_length >= phrase_count
        ]
        if not structures:
            raise ConfigurationError(f"no density holds prefixes of {phrase_count} phrases", "plan a longer structure")
        return min(structures, key=lambda structure: self._features.lengths[structure])

    def _length_rescaling(self, structure: int, prefix_length: int) -> float:
        structure_length = self._features.lengths[structure]
        return math.exp(self._features.width / structure_length * (structure_length - prefix_length))

    def _class_state(self, label: int, structure: int, prefixes: Int64) -> npt.NDArray[np.complex64]:
        """The class's sums, multiplied by the complex phases of each prefix, complex64 [T, m]."""
        phase_sums = np.zeros((len(prefixes), self._features.pairs), dtype=np.int64)
        for position in range(prefixes.shape[1]):
            phase_sums += self._phase_table(structure, position)[prefixes[:, position]]
        phase_waves = (cosines(phase_sums) + 1j * sines(phase_sums)).astype(np.complex64)
        turned_waves: npt.NDArray[np.complex64] = self._sums[label, structure] * phase_waves
        return turned_waves

    def _phase_table(self, structure: int, position: int) -> Int64:
        """Phases of every term at a position, int64 [N + 1, m]; the last row, index ``UNFILLED``, is for no term."""
        table_key = (structure, position)
        if table_key not in self._tables:
            self._tables[table_key] = self._features.phases(structure, position, self._vectors)
        return self._tables[table_key]

    def _phase_waves(self, structure: int, position: int) -> Float32:
        """Cosines, then sines, of the phases of every term and, last, of no term, float32 [2m, N + 1]."""
        term_phases = self._phase_table(structure, position).T
        return np.vstack([cosines(term_phases), sines(term_phases)]).astype(np.float32)


def _raise_estimates(estimates: Floats, power: float) -> Float64:
    """Raises estimates to ``power``: those below zero become zero, each row's largest one, so that none overflows."""
    positive_estimates = np.maximum(estimates, 0.0).astype(np.float64)
    raised_estimates: Float64 = (
        positive_estimates / np.maximum(positive_estimates.max(axis=1, keepdims=True), 1e-300)
    ) ** power
    return raised_estimates


def _draw_columns(weights: Floats, taken: Int64, rng: np.random.Generator, highest_count: int | None) -> Int64:
    """Draws one column per row, in proportion to its weight, none of ``taken``; evenly if no weight is left.

    Of the other columns only those of the ``highest_count`` highest weights are drawn, and all that equal the last.
    """
    is_free = np.ones(weights.shape, dtype=bool)
    np.put_along_axis(is_free, taken, False, axis=1)
    free_weights = np.where(is_free, weights, 0.0).astype(np.float64)
    if highest_count is not None and highest_count < free_weights.shape[1]:
        free_weights[free_weights < np.partition(free_weights, -highest_count, axis=1)[:, [-highest_count]]] = 0.0
    is_empty = free_weights.sum(axis=1) <= 0.0
    free_weights[is_empty] = is_free[is_empty]
    cumulative_weights = np.cumsum(free_weights, axis=1)
    drawn_points = rng.random(len(cumulative_weights)) * cumulative_weights[:, -1]
    drawn_columns = (cumulative_weights <= drawn_points[:, None]).sum(axis=1)
    # Rounding may point beyond the last term that has weight.
    last_free_columns = weights.shape[1] - 1 - np.argmax(free_weights[:, ::-1] > 0, axis=1)
    columns: Int64 = np.minimum(drawn_columns, last_free_columns)
    return columns


# Public vocabularies: a file of terms, or English words by frequency. Terms differ in more than case and spaces.

SHORTEST = 3  # letters of a word of the default vocabulary


@lru_cache(maxsize=4)
def read_vocabulary(path: Path) -> tuple[str, ...]:
    """Reads the terms of a UTF-8 file, one per line, in its order; of terms that differ only in case the first is kept.

    Raises ConfigurationError, which names the file, if it is missing, unreadable or without a term.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigurationError(f"method.vocabulary: {path}: no such file", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"method.vocabulary: {path}: cannot be read ({type(error).__name__})", "give a UTF-8 file, one term a line"
        ) from None
    distinct_terms = _distinct_terms(lines)
    if not distinct_terms:
        raise ConfigurationError(f"method.vocabulary: {path}: holds no term", "write one term a line")
    return distinct_terms


@lru_cache(maxsize=4)
def english_words(word_count: int, skipped_count: int) -> tuple[str, ...]:
    """Returns about ``word_count`` English words by frequency (wordfreq), without the ``skipped_count`` commonest.

    Common words say nothing about a class and would use up a record's first S terms. Words with other characters than
    letters, or fewer than three, are left out.

    Raises ConfigurationError where wordfreq is not installed.
    """
    try:
        from wordfreq import top_n_list
    except ImportError:
        raise ConfigurationError(
            "the default vocabulary needs the package wordfreq", "pip install wordfreq, or name method.vocabulary"
        ) from None
    frequent_words = top_n_list("en", word_count + skipped_count, wordlist="best")[skipped_count:]
    return _distinct_terms(word for word in frequent_words if len(word) >= SHORTEST and word.isalpha())


def _distinct_terms(terms: Iterable[str]) -> tuple[str, ...]:
    term_by_folding: dict[str, str] = {}
    for term in terms:
        if folded_term := " ".join(words(term)):
            term_by_folding.setdefault(folded_term, " ".join(term.split()))
    return tuple(term_by_folding.values())


class VocabularyOptions(PresetOptions):
    """[method] keys of a method that asks for the records' vocabulary.

    Attributes:
        vocabulary: file of public terms; "" takes ``vocabulary_words`` English words without the ``common_words``
            commonest.
        document_terms: S, distinct terms of a record that count in the vocabulary histogram.
        document_repeats: True counts the first S terms of a record, of which several may be the same.
        keyphrases: N, the most terms that are kept.
        false_terms: share of the kept terms that noise alone may have brought there; 1 keeps the N highest.
    """

    vocabulary: str = ""
    vocabulary_words: Annotated[int, Field(ge=1)] = 60_000
    common_words: Annotated[int, Field(ge=0)] = 200
    document_terms: Annotated[int, Field(ge=1)] = 10
    document_repeats: bool = False
    keyphrases: Annotated[int, Field(ge=1)] = 1000
    false_terms: Annotated[float, Field(gt=0, le=1)] = 0.1

    def terms(self, setting: Setting) -> tuple[str, ...]:
        """The public vocabulary: the terms of the file, or English words if no file is named."""
        if self.vocabulary:
            return read_vocabulary(setting.folder / self.vocabulary)
        return english_words(self.vocabulary_words, self.common_words)

    def histogram(self, setting: Setting) -> TermHistogram:
        """Returns the statistic of the private sum "vocabulary"."""
        return TermHistogram(len(self.terms(setting)), self.document_terms, self.document_repeats)


def private_keyphrases(
    options: VocabularyOptions, run: RunContext, *, law: Literal["gaussian", "laplace"] = "gaussian"
) -> tuple[str, ...]:
    """Opens the planned sum "vocabulary"; returns the terms that noise does not explain, most frequent first (V~).

    Raises ConfigurationError where there are fewer than two.
    """
    vocabulary = options.terms(run.setting)
    term_counts = run.private_sum("vocabulary", [run.publish_texts("vocabulary", vocabulary)])
    significant_numbers = significant_terms(
        term_counts.natural, term_counts.sigma, most=options.keyphrases, false_share=options.false_terms, law=law
    )
    if len(significant_numbers) < 2:
        raise ConfigurationError(
            "no term of the vocabulary stands out of the noise: the records hardly use it",
            "name a vocabulary of the field (method.vocabulary), or raise epsilon or method.false_terms",
        )
    keyphrases = tuple(vocabulary[term_number] for term_number in significant_numbers)
    run.record("keyphrases", 0, keyphrases)
    return keyphrases
