"""The table of writers: what each generator wrote, and what became of its texts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undersong_server.methods.parts import support
from undersong_server.pool import Sample

WRITERS = "Where the texts come from"  # heading of the table
COLUMNS = (
    "generator",
    "texts given",
    "share of the last orders",
    "in the corpus",
    "set aside",
    "in no file",
    "why it gave no more",
)
ALL_STAYED = "–"


@dataclass(frozen=True)
class Writer:
    """One generator's row.

    Attributes:
        written: texts that were kept when they were written.
        last_weight: its share of the last orders; None if the method weighs no generators.
        published, set_aside: what became of its texts; the others are in no file.
        reason: why it wrote no more; "" if it did not stop.
    """

    name: str
    written: int
    last_weight: float | None
    published: int
    set_aside: int
    reason: str

    @property
    def in_no_file(self) -> int:
        """Texts that the method did not choose, or whose label it doubted."""
        return max(0, self.written - self.published - self.set_aside)

    @property
    def cells(self) -> tuple[str, ...]:
        """The row in words, in the order of ``COLUMNS``."""
        return (
            self.name,
            str(self.written),
            ALL_STAYED if self.last_weight is None else f"{100 * self.last_weight:.0f} %",
            str(self.published),
            str(self.set_aside),
            str(self.in_no_file),
            self.reason or ALL_STAYED,
        )


def list_writers(
    written: Mapping[str, int],
    samples: Sequence[Sample],
    last_weights: Sequence[float],
    records: Mapping[str, Sequence[tuple[int, Any]]],
) -> Iterator[Writer]:
    """Yields a row for each generator.

    Args:
        written: texts that were kept, by generator, in the task file's order.
        last_weights: of the generators in that order; empty if the method weighs none.
        records: what the run recorded.
    """
    published_counts = Counter(sample.generator for sample in samples)
    aside_counts = Counter(row[2] for _, rows in records.get(support.RECORD, ()) for row in rows)
    reason_by_generator = {
        # Where texts are set aside, another sentence says how far the records are from clearing their generator.
        name: f"after round {round_number + 1}: {_shorten(reason) if aside_counts[name] else reason}"
        for round_number, reason_by_name in records.get(support.LEFT_OUT, ())
        for name, reason in reason_by_name.items()
    }
    for place, (name, written_texts) in enumerate(written.items()):
        last_weight = last_weights[place] if last_weights else None
        yield Writer(
            *(name, written_texts, last_weight),
            *(published_counts[name], aside_counts[name], reason_by_generator.get(name, "")),
        )


def _shorten(reason: str) -> str:
    return reason if reason == support.TOO_FEW_NEAR else support.NOT_CLEARED
