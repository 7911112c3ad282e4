"""Canaries of an audit: the records that it plants, and how they are made."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from undersong_common.text.table import Table, concatenate

KINDS = ("rare end", "far off", "many words", "twin")
REPEATS = 6  # least number of a real record's words before the rare end begins; half of a longer record


@dataclass(frozen=True)
class Canary:
    """One privacy unit of records that nobody else has.

    Attributes:
        kind: how it is made (:data:`KINDS`).
        rows: its records; several where a user's records count by their sum.
    """

    kind: str
    rows: Table


def make_canaries(
    private: Table, labels: Sequence[str], rare_words: Sequence[str], count: int, rng: np.random.Generator, *, rows: int
) -> list[Canary]:
    """Makes ``count`` canaries, their kinds in turn.

    "rare end" begins as one of the private records and ends in words that hardly anybody writes (Meeus et al. 2025,
    section 5: synthetic text echoes a canary best that starts in distribution and ends with high perplexity).
    "far off" has rare words only: the extreme of every vote for the furthest candidates. "many words" has 120
    different words: as many terms, keyphrases and words of length as a record can have. "twin" is a private record
    with one word changed: the extreme of votes for the nearest.

    Args:
        private: the records they hide among, at least one.
        labels: the task's; a canary has one of them, or the label of the record it starts from. Empty: no labels.
        rare_words: public words to draw from, the commonest first; at least 300.
        rows: records per canary, all alike: what a user at the cap contributes.
    """
    canaries = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        row = int(rng.integers(len(private)))
        words = private.texts[row].split()
        label = ""
        if private.labels is not None:
            label = private.labels[row]
        match kind:
            case "rare end":
                prefix_length = max(min(REPEATS, len(words)), len(words) // 2)
                text = " ".join([*words[:prefix_length], *_draw_words(rare_words, 12, rng)])
            case "far off" | "many words":
                text = " ".join(_draw_words(rare_words, 30 if kind == "far off" else 120, rng))
                if labels:
                    label = labels[int(rng.integers(len(labels)))]
            case _:
                words[int(rng.integers(len(words)))] = _draw_words(rare_words, 1, rng)[0]
                text = " ".join(words)
        user = f"canary-{number}"
        canaries.append(
            Canary(
                kind,
                Table(
                    (text,) * rows,
                    None if private.labels is None else (label,) * rows,
                    None if private.users is None else (user,) * rows,
                ),
            )
        )
    return canaries


def planted(tables: dict[str, Table], canaries: Sequence[Canary], homes: Sequence[str]) -> dict[str, Table]:
    """Adds each canary to the table of the party that ``homes`` names for it, after the party's own records."""
    result = dict(tables)
    for canary, home in zip(canaries, homes, strict=True):
        result[home] = concatenate([result[home], canary.rows])
    return result


def _draw_words(words: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    return [words[int(index)] for index in rng.choice(len(words), count, replace=False)]
