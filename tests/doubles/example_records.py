"""Records for tests of statistics: written down, or any texts, labels and embeddings; each its own unit by default."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64, UInt64
from undersong_common.models.embedding import GRID, quantise
from undersong_protocol.statistics import Rows
from undersong_protocol.statistics.examples import WORDS

ODD_TEXTS = ("", " \n\t", "PAIN pain  Pain, chest-pain", "\ud800 lone surrogate", "ﬁne ½ Ⅷ", "word " * 400, "\0")


class Records:
    """Implements ``undersong_protocol.statistics.RecordView`` over what a test writes down; no label is -1."""

    local_model = ""

    def __init__(
        self,
        texts: Sequence[str] = (),
        labels: Any = None,
        embeddings: Any = (),
        columns: Mapping[str, Sequence[str]] | None = None,
        units: Any = None,
    ) -> None:
        count = max(len(texts), len(embeddings), 0 if labels is None else len(labels))
        self.texts = texts
        self.labels: Int64 = np.full(count, -1) if labels is None else np.asarray(labels, dtype=np.int64)
        self.embeddings: Float32 = np.asarray(embeddings, dtype=np.float32)
        self.units: Int64 = np.arange(count) if units is None else np.asarray(units, dtype=np.int64)
        self.unit_hashes: UInt64 = self.units.astype(np.uint64)
        self.columns = columns or {}

    def __len__(self) -> int:
        return len(self.labels)


def dense(rows: Rows) -> Float64:
    """All rows as one matrix."""
    matrix = rows.take(np.arange(len(rows)))
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


class ExampleRecords:
    """Implements ``undersong_protocol.statistics.RecordView``; ``take`` gives some of the records in another order.

    Args:
        labels: of the task; records have these, none, and numbers outside them.
    """

    def __init__(self, seed: int, count: int, *, size: int, labels: int, local_model: str = "") -> None:
        rng = np.random.default_rng(seed)
        self.texts: Sequence[str] = tuple(
            ODD_TEXTS[rng.integers(len(ODD_TEXTS))] if rng.random() < 0.1 else " ".join(rng.choice(WORDS, 5))
            for _ in range(count)
        )
        values = rng.normal(size=(count, size))
        values[rng.random(count) < 0.05] = 0.0
        alone = rng.random(count) < 0.05
        values[alone] = np.eye(size)[rng.integers(0, size, alone.sum())] * rng.choice([1.0, -1.0, 1.0 / GRID])
        self.embeddings: Float32 = quantise(values)
        outside = np.array([-1, -5, labels, labels + 7, 2**40])
        self.labels: Int64 = np.where(
            rng.random(count) < 0.1, rng.choice(outside, count), rng.integers(0, max(1, labels), count)
        ).astype(np.int64)
        self.units: Int64 = np.arange(count)
        self.unit_hashes: UInt64 = rng.integers(0, 2**63, count).astype(np.uint64)
        self.columns = {name: [*rng.choice([*WORDS, ""], count)] for name in WORDS[::2]}
        self.local_model = local_model

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Int64) -> "ExampleRecords":
        """The records at these positions; their units keep their numbers."""
        found = object.__new__(ExampleRecords)
        found.texts = tuple(self.texts[row] for row in rows)
        found.embeddings, found.labels = self.embeddings[rows], self.labels[rows]
        found.units, found.unit_hashes = self.units[rows], self.unit_hashes[rows]
        found.columns = {name: [column[row] for row in rows] for name, column in self.columns.items()}
        found.local_model = self.local_model
        return found
