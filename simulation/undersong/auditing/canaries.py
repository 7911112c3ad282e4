"""Canaries of an audit: the records that it plants, and how they are made."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from undersong_common.text.table import Table, concatenate

KINDS = ("rare end", "far off", "many words", "twin")
# A "rare end" canary begins with so many words of a real record, or with half of a longer record.
REPEATS = 6


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
    private: Table,
    labels: Sequence[str],
    rare_words: Sequence[str],
    count: int,
    rng: np.random.Generator,
    *,
    row_count: int,
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
        row_count: records per canary, all alike: what a user at the cap contributes.
    """
    new_canaries = []
    for canary_number in range(count):
        canary_kind = KINDS[canary_number % len(KINDS)]
        source_row_number = int(rng.integers(len(private)))
        source_words = private.texts[source_row_number].split()
        label = ""
        if private.labels is not None:
            label = private.labels[source_row_number]
        match canary_kind:
            case "rare end":
                prefix_length = max(min(REPEATS, len(source_words)), len(source_words) // 2)
                canary_text = " ".join([*source_words[:prefix_length], *_draw_words(rare_words, 12, rng)])
            case "far off" | "many words":
                canary_text = " ".join(_draw_words(rare_words, 30 if canary_kind == "far off" else 120, rng))
                if labels:
                    label = labels[int(rng.integers(len(labels)))]
            case _:
                source_words[int(rng.integers(len(source_words)))] = _draw_words(rare_words, 1, rng)[0]
                canary_text = " ".join(source_words)
        user = f"canary-{canary_number}"
        new_canaries.append(
            Canary(
                canary_kind,
                Table(
                    (canary_text,) * row_count,
                    None if private.labels is None else (label,) * row_count,
                    None if private.users is None else (user,) * row_count,
                ),
            )
        )
    return new_canaries


def planted(tables: dict[str, Table], canaries: Sequence[Canary], homes: Sequence[str]) -> dict[str, Table]:
    """Adds each canary to the table of the party that ``homes`` names for it, after the party's own records."""
    tables_with_canaries = dict(tables)
    for canary, home_name in zip(canaries, homes, strict=True):
        tables_with_canaries[home_name] = concatenate([tables_with_canaries[home_name], canary.rows])
    return tables_with_canaries


def _draw_words(words: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    return [words[int(index)] for index in rng.choice(len(words), count, replace=False)]
