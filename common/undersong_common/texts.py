"""Texts as tokenizers take them."""

from __future__ import annotations


def encodable(text: str) -> str:
    """``text`` with U+FFFD in place of lone surrogates, which JSON can hold and UTF-8 cannot.

    A record that holds one is embedded as any other: a tokenizer would refuse it, and that refusal would tell.

    >>> encodable("a\\ud800b") == "a\\N{REPLACEMENT CHARACTER}b"
    True
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
