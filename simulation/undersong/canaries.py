"""Records that an audit plants among the private ones, to see whether anybody can tell that they were there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from undersong_common.table import Table

KINDS = ("rare end", "far off", "many words", "twin")
REPEATS = 6  # of a real record's words before the rare end begins: at least so many, else half of it


@dataclass(frozen=True)
class Canary:
    """One privacy unit of records that nobody else has.

    Attributes:
        kind: how it is made (:data:`KINDS`).
        rows: its records; several where a user's records count by their sum.
    """

    kind: str
    rows: Table

    def __repr__(self) -> str:
        # A canary begins as a private record does.
        return f"Canary(kind={self.kind!r}, rows={len(self.rows)})"


def make_canaries(
    private: Table, labels: Sequence[str], rare_words: Sequence[str], count: int, rng: np.random.Generator, *, rows: int
) -> list[Canary]:
    """``count`` canaries, their kinds in turn.

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
    made = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        row = int(rng.integers(len(private)))
        words = private.texts[row].split()
        label = private.labels[row] if private.labels is not None else ""
        if kind == "rare end":
            kept = max(min(REPEATS, len(words)), len(words) // 2)
            text = " ".join([*words[:kept], *_some(rare_words, 12, rng)])
        elif kind == "far off":
            text = " ".join(_some(rare_words, 30, rng))
            label = labels[int(rng.integers(len(labels)))] if labels else label
        elif kind == "many words":
            text = " ".join(_some(rare_words, 120, rng))
            label = labels[int(rng.integers(len(labels)))] if labels else label
        else:
            changed = list(words)
            changed[int(rng.integers(len(words)))] = _some(rare_words, 1, rng)[0]
            text = " ".join(changed)
        user = f"canary-{number}"
        made.append(
            Canary(
                kind,
                Table(
                    (text,) * rows,
                    None if private.labels is None else (label,) * rows,
                    None if private.users is None else (user,) * rows,
                ),
            )
        )
    return made


def planted(tables: dict[str, Table], canaries: Sequence[Canary], homes: Sequence[str]) -> dict[str, Table]:
    """The parties' tables with each canary at the party ``homes`` names for it, after the party's own records."""
    result = dict(tables)
    for canary, home in zip(canaries, homes, strict=True):
        own = result[home]
        result[home] = replace(
            own,
            texts=own.texts + canary.rows.texts,
            labels=None if own.labels is None else own.labels + (canary.rows.labels or ()),
            users=None if own.users is None else own.users + (canary.rows.users or ()),
        )
    return result


def _some(words: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    return [words[int(index)] for index in rng.choice(len(words), count, replace=False)]
