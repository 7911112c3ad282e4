"""The keyphrases of private records from one noisy histogram of public terms: DP-KPS's, and Aug-PE's with them."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics.terms import TermHistogram, words
from undersong_server.methods.interface import RunContext, Setting
from undersong_server.methods.parts.keyphrases import significant_terms
from undersong_server.methods.parts.papers import PresetOptions

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
    terms = _distinct(lines)
    if not terms:
        raise ConfigurationError(f"method.vocabulary: {path}: holds no term", "write one term a line")
    return terms


@lru_cache(maxsize=4)
def english_words(count: int, skip: int) -> tuple[str, ...]:
    """About ``count`` English words by frequency (wordfreq), without the ``skip`` commonest of the language.

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
    listed = top_n_list("en", count + skip, wordlist="best")[skip:]
    return _distinct(word for word in listed if len(word) >= SHORTEST and word.isalpha())


def _distinct(terms: Iterable[str]) -> tuple[str, ...]:
    kept: dict[str, str] = {}
    for term in terms:
        if folded := " ".join(words(term)):
            kept.setdefault(folded, " ".join(term.split()))
    return tuple(kept.values())


class VocabularyOptions(PresetOptions):
    """[method] keys of a method that asks for the records' vocabulary.

    Attributes:
        vocabulary: file of public terms; "" takes ``vocabulary_words`` English words without the ``common_words``
            commonest.
        document_terms: S, distinct terms of a record that count in the vocabulary histogram.
        document_repeats: the first S terms count, of which several may be the same.
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
    """The paper's V~ from the planned sum "vocabulary": terms that noise does not explain, the most frequent first.

    Raises ConfigurationError where there are fewer than two.
    """
    vocabulary = options.terms(run.setting)
    opened = run.private_sum("vocabulary", [run.publish_texts("vocabulary", vocabulary)])
    found = significant_terms(
        opened.natural, opened.sigma, most=options.keyphrases, false_share=options.false_terms, law=law
    )
    if len(found) < 2:
        raise ConfigurationError(
            "no term of the vocabulary stands out of the noise: the records hardly use it",
            "name a vocabulary of the field (method.vocabulary), or raise epsilon or method.false_terms",
        )
    kept = tuple(vocabulary[term] for term in found)
    run.record("keyphrases", 0, kept)
    return kept
