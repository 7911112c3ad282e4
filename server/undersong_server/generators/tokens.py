"""Text to tokens and back: words, numbers, punctuation marks and line breaks, as the n-gram model counts them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TOKEN = re.compile(
    r"(?:[^\W\d_]\.){2,}"  # e.g., U.S.
    r"|\d+(?:[.,:/]\d+)*[^\W\d_]*(?:['’-][^\W_]+)*"  # 120/80, 3.5, 10mg, 62-year-old
    r"|[^\W_]+(?:['’-][^\W_]+)*"  # don't, follow-up
    r"|\n+"
    r"|([^\w\s]|_)\1*"  # one mark, or a run of it: "...", "--"
)
_SENTENCE_END = frozenset(".!?…\n")
_NO_SPACE_BEFORE = frozenset(".,;:!?)]}%…’'°/\n")
_NO_SPACE_AFTER = frozenset("([{#$£€/\n@")
_PAIRS = {"(": ")", "[": "]", "{": "}", "“": "”", "«": "»"}
_QUOTE = frozenset('"')
_CLOSERS = {closer: opener for opener, closer in _PAIRS.items()}


def tokenise(text: str) -> list[str]:
    """Tokens in order, their case kept; several line breaks are one.

    >>> tokenise("BP 120/80, doesn't hurt (much)...")
    ['BP', '120/80', ',', "doesn't", 'hurt', '(', 'much', ')', '...']
    """
    return ["\n" if found[0][0] == "\n" else found[0] for found in _TOKEN.finditer(text)]


def detokenise(tokens: Sequence[str]) -> str:
    """A text with usual spacing, capital sentence starts and no unpaired bracket or quote.

    >>> detokenise(["can", "i", "(", "please", ")", "pay", "?", "thanks", ")"])
    'Can i (please) pay? Thanks'
    """
    written: list[str] = []
    glued, opened, sentence = True, False, True
    for token in _paired(tokens):
        mark = token[0]
        quote = token in _QUOTE
        closes = mark in _NO_SPACE_BEFORE or token in _CLOSERS or (quote and opened)
        if not glued and not closes:
            written.append(" ")
        if sentence and mark.isalnum():
            token = mark.upper() + token[1:]
        written.append(token)
        sentence = (sentence and not mark.isalnum()) or ends_sentence(token)
        glued = mark in _NO_SPACE_AFTER or token in _PAIRS or (quote and not opened)
        opened ^= quote
    return "".join(written).strip()


def ends_sentence(token: str) -> bool:
    return token[0] in _SENTENCE_END


def is_word(token: str) -> bool:
    return token[0].isalnum()


def _paired(tokens: Sequence[str]) -> list[str]:
    """Without brackets and quotes that have no partner."""
    drop: set[int] = set()
    stack: list[int] = []
    for index, token in enumerate(tokens):
        if token in _PAIRS:
            stack.append(index)
        elif token in _CLOSERS:
            if stack and tokens[stack[-1]] == _CLOSERS[token] and stack[-1] < index - 1:
                stack.pop()
            else:
                drop.add(index)
    drop.update(stack)
    quotes = [index for index, token in enumerate(tokens) if token in _QUOTE]
    if len(quotes) % 2:
        drop.add(quotes[-1])
    return [token for index, token in enumerate(tokens) if index not in drop]
