"""A tokenizer of scored pieces joins what the file's scores join first."""

from __future__ import annotations

from benchmarks.gguf_folder import CONTROL, NORMAL, list_merges


def test_token_merges_are_ordered_by_the_score_of_the_merged_token():
    tokens = ["<bos>", "h", "e", "l", "o", "he", "hel", "lo", "hello", "el"]
    scores = [-1000.0, -9.0, -9.0, -9.0, -9.0, -1.0, -3.0, -2.0, -4.0, -1.5]
    types = [CONTROL, *[NORMAL] * 9]
    assert list_merges(tokens, scores, types) == [
        ("h", "e"),
        ("e", "l"),
        ("l", "o"),
        ("h", "el"),
        ("he", "l"),
        ("hel", "lo"),
    ]
