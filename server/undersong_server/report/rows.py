"""Sentences on what the rows of a corpus are like, counted by patterns from the published texts alone."""

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import groupby
from textwrap import shorten

import numpy as np

from undersong_common.arrays import Int64
from undersong_common.printable import counted
from undersong_server.pool import Sample
from undersong_server.report.data import ReportData, number

TITLE = "What the rows are like"
EXAMPLES = "Some rows, drawn by chance:"  # begins a paragraph
PHRASE_WORDS = 5  # words of a phrase that is counted
LEAST_ROWS, LEAST_SHARE = 5, 0.02  # rows, and share of the rows, in which a phrase stands at least
SHOWN_PHRASES = 3
MOST_ROWS = 2000  # rows whose phrases are counted
SHOWN_ROWS = 4
CARD_ROWS, CARD_LETTERS = 3, 300  # rows in a card, and letters of each at most

WORD = re.compile(r"[^\W_]+")
PLACEHOLDER = re.compile(r"<[A-Z][A-Z0-9_ -]*>|\[[A-Z][\w '-]{0,30}\]|\[\*\*|\{\{?\w+\}\}?")
MARKUP = re.compile(
    r"(?i:https?:|www\.|\bhref\b|\b(?:quot|amp|lt|gt|nbsp);)|&#?\w+;|</?[a-z][a-z0-9]*(?: [^<>]*)?/?>"
    r"|\]\(|```|(?<!\[)\*\*\w"
)
CLOSING = re.compile(r"[.!?…:;。！？।؟][\"'”’»)\]*]*\s*$")


def describe_rows(data: ReportData) -> tuple[str, ...]:
    """Returns sentences on lengths, placeholders, markup, endings, mended labels and other labels."""
    if not data.samples:
        return ()
    texts = [sample.text for sample in data.samples]
    sentences = [_say_lengths(texts), _say_faults(texts), _say_labels(data), data.mismatches.rows_sentence]
    return tuple(filter(None, sentences))


def example_rows(data: ReportData) -> list[Sample]:
    """Draws a few rows by chance; the signed plan decides which, so that they are the same every time."""
    return [
        data.samples[row_number]
        for row_number in _public_rng(data).permutation(len(data.samples))[:SHOWN_ROWS].tolist()
    ]


def quote_rows(data: ReportData) -> str:
    """Returns a few rows of :func:`example_rows` in one paragraph; "" for a corpus without texts."""
    quotes = [
        f'"{shorten(sample.text, CARD_LETTERS, placeholder="...")}"{f" ({sample.label})" if sample.label else ""}'
        for sample in example_rows(data)[:CARD_ROWS]
    ]
    return f"{EXAMPLES} {'; '.join(quotes)}." if quotes else ""


def length_at(word_counts: Sequence[int] | Int64, share: float) -> int:
    """Returns the number of words that ``share`` of the texts have at most, a half rounded up."""
    return math.floor(float(np.quantile(word_counts, share)) + 0.5)


def _public_rng(data: ReportData) -> np.random.Generator:
    return np.random.default_rng(list(data.plan_hash.encode()))


def _say_lengths(texts: Sequence[str]) -> str:
    word_counts = [len(text.split()) for text in texts]
    shortest, median, longest = (length_at(word_counts, share) for share in (0.05, 0.5, 0.95))
    return f"Length in words: median {median}, nine in ten between {shortest} and {longest}."


def frequent_phrases_by_row(texts: Sequence[str]) -> tuple[list[set[str]], int]:
    """Returns each text's phrases that stand in many texts, and the number of texts from which on they are many."""
    phrases_by_row = list(map(_phrases, texts))
    row_count_by_phrase = Counter(phrase for phrases in phrases_by_row for phrase in phrases)
    least_row_count = max(LEAST_ROWS, math.ceil(LEAST_SHARE * len(texts)))
    frequent_phrases = {phrase for phrase, row_count in row_count_by_phrase.items() if row_count >= least_row_count}
    return [phrases & frequent_phrases for phrases in phrases_by_row], least_row_count


def split_at_phrases(text: str, phrases: Collection[str]) -> list[tuple[str, bool]]:
    """Returns a text in pieces, each with True if it belongs to one of the phrases of :func:`frequent_phrases_by_row`.

    >>> split_at_phrases("So: A b, c d e.", {"a b c d e"})
    [('So: ', False), ('A b, c d e', True), ('.', False)]
    """
    matches = list(WORD.finditer(text))
    is_phrase_word = [False] * len(matches)
    for first_word_number in range(len(matches) - PHRASE_WORDS + 1):
        if (
            " ".join(match[0].casefold() for match in matches[first_word_number : first_word_number + PHRASE_WORDS])
            in phrases
        ):
            is_phrase_word[first_word_number : first_word_number + PHRASE_WORDS] = [True] * PHRASE_WORDS
    pieces: list[tuple[str, bool]] = []
    last_end = 0
    for is_phrase, group in groupby(range(len(matches)), key=is_phrase_word.__getitem__):
        word_numbers = list(group)
        if is_phrase:
            pieces += [(text[last_end : matches[word_numbers[0]].start()], False)]
            last_end = matches[word_numbers[-1]].end()
            pieces += [(text[matches[word_numbers[0]].start() : last_end], True)]
    return [(piece, is_phrase) for piece, is_phrase in [*pieces, (text[last_end:], False)] if piece]


def describe_phrases(data: ReportData) -> str:
    """Says in how many rows a phrase stands that other rows have, too, and which phrases are the most frequent."""
    drawn_row_numbers = _public_rng(data).permutation(len(data.samples))[:MOST_ROWS].tolist()
    frequent_by_row, least_row_count = frequent_phrases_by_row(
        [data.samples[row_number].text for row_number in drawn_row_numbers]
    )
    scope_words = (
        f" of {number(len(drawn_row_numbers))} rows that were drawn"
        if len(drawn_row_numbers) < len(data.samples)
        else " rows"
    )
    if not any(frequent_by_row):
        return f"No phrase of {PHRASE_WORDS} words stands in {least_row_count} or more{scope_words}."
    phrase_row_count = sum(map(bool, frequent_by_row))
    (top_phrase, top_count), *further_phrases = _phrases_of_most_rows(frequent_by_row, least_row_count)
    further_words = ", ".join(f'"{phrase}" ({number(row_count)})' for phrase, row_count in further_phrases)
    next_words = f"; then, in rows with none of those before it: {further_words}" if further_phrases else ""
    drawn_count = len(drawn_row_numbers)
    return (
        f"{number(phrase_row_count)} of {number(drawn_count)} rows ({100 * phrase_row_count / drawn_count:.0f} %) hold"
        f" a phrase of {PHRASE_WORDS} words that stands in {least_row_count} or more{scope_words}. The most frequent:"
        f' "{top_phrase}" ({counted(top_count, "row")}){next_words}.'
    )


def _phrases(text: str) -> set[str]:
    text_words = WORD.findall(text.casefold())
    return {" ".join(text_words[start : start + PHRASE_WORDS]) for start in range(len(text_words) - PHRASE_WORDS + 1)}


def _phrases_of_most_rows(phrases_by_row: Sequence[set[str]], least_row_count: int) -> list[tuple[str, int]]:
    """Returns phrases with their numbers of rows: each time the phrase that stands in most rows without an earlier one.

    So the parts of one longer phrase are shown once, and no phrase is passed over that stands in rows of its own.
    """
    shown_phrases: list[tuple[str, int]] = []
    remaining_rows = list(phrases_by_row)
    for _ in range(SHOWN_PHRASES):
        row_count_by_phrase = Counter(phrase for phrases in remaining_rows for phrase in phrases)
        top_phrase = min(row_count_by_phrase, key=lambda phrase: (-row_count_by_phrase[phrase], phrase), default="")
        if row_count_by_phrase[top_phrase] < least_row_count:
            break
        shown_phrases.append((top_phrase, row_count_by_phrase[top_phrase]))
        remaining_rows = [phrases for phrases in remaining_rows if top_phrase not in phrases]
    return shown_phrases


def _say_faults(texts: Sequence[str]) -> str:
    """Counts the rows with placeholders, those with links or markup, and those without a closing mark."""
    placeholder_row_count, markup_row_count = (
        sum(bool(pattern.search(text)) for text in texts) for pattern in (PLACEHOLDER, MARKUP)
    )
    open_row_count = sum(not CLOSING.search(text) for text in texts)
    return (
        f"{counted(placeholder_row_count, 'row')} with a placeholder such as <NAME> or [NAME],"
        f" {number(markup_row_count)} with pieces of links or markup, {number(open_row_count)} without a"
        " closing mark at the end."
    )


def _say_labels(data: ReportData) -> str:
    if data.mended_labels is None or not data.named_labels:
        return ""
    if not data.mended_labels:
        return "No row with another label than was ordered."
    return f"{counted(data.mended_labels, 'row')} with another label than was ordered, since the method corrected it."
