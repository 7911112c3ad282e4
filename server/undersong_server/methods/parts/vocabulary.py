"""Public vocabularies: a file of terms, or English words by frequency. Terms differ in more than case and spaces."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics.phrases import words

SHORTEST = 3  # letters of a word of the default vocabulary


@lru_cache(maxsize=4)
def read_vocabulary(path: Path) -> tuple[str, ...]:
    """The terms of a UTF-8 file, one per line, in its order; of terms that differ only in case the first is kept.

    Raises ConfigurationError naming the file where it is missing, unreadable or without a term.
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
