"""Keyphrase sequences judged alone, without a word written by a model (DP-KPS, table 5)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_common.table import Table
from undersong_protocol.statistics.phrases import Terms, words


def read_sequences(path: Path) -> Table:
    """A run's sequences: one text per sequence, its terms with commas between them, and its label.

    Raises ConfigurationError where the run wrote none.
    """
    if not path.is_file():
        raise ConfigurationError(
            f"{path.parent}: holds no {path.name}", "only a method that writes from keyphrases (dpkps) leaves one"
        )
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Table(tuple(joined(row["terms"]) for row in rows), tuple(row["label"] for row in rows), None)


def sequences_of(table: Table, sequences: Table) -> Table:
    """The records' own sequences of the terms in ``sequences``, as long as those: the reference without privacy.

    A record without any of the terms is left out.
    """
    texts = [text.split(", ") for text in sequences.texts]
    known: dict[str, str] = {}
    for sequence in texts:
        for term in sequence:
            known.setdefault(" ".join(words(term)), term)
    terms = list(known.values())
    matcher, most = Terms(terms), max(map(len, texts))
    found = [matcher.of(text, most) for text in table.texts]
    kept = table.take([row for row, one in enumerate(found) if one])
    return Table(tuple(joined([terms[term] for term in one]) for one in found if one), kept.labels, None)


def joined(terms: Sequence[str]) -> str:
    """Writes a sequence for the embedder."""
    return ", ".join(terms)
