"""The table of writers: what each generator wrote, how near the records are to it, and what became of its texts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undersong_server.methods.parts import support
from undersong_server.pool import Sample

WRITERS = "Who wrote it"  # heading of the table
COLUMNS = (
    "generator",
    "texts written",
    "hospital records nearest",
    "at equal nearness",
    "share of the last orders",
    "in the corpus",
    "set aside",
    "in no file",
    "why it wrote no more",
)
ALL_STAYED = "–"


@dataclass(frozen=True)
class Writer:
    """One generator's row.

    Attributes:
        written: texts that were kept when they were written.
        nearest: noisy number of records that are nearest to its texts, and its standard error; None if no sum asked.
        expected: that number, if the texts of all generators were equally near; None if no sum asked.
        last_weight: its share of the last orders; None if the method weighs no generators.
        published, set_aside: what became of its texts; the others are in no file.
        reason: why it wrote no more; "" if it did not stop.
    """

    name: str
    written: int
    nearest: tuple[float, float] | None
    expected: float | None
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
        nearest_words = expected_words = ALL_STAYED
        if self.nearest is not None and self.expected is not None:
            nearest_words = f"{max(0.0, self.nearest[0]):.0f}, give or take {self.nearest[1]:.0f}"
            expected_words = f"{self.expected:.0f}"
        return (
            self.name,
            str(self.written),
            nearest_words,
            expected_words,
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
    published = Counter(sample.generator for sample in samples)
    set_aside = Counter(row[2] for _, rows in records.get(support.RECORD, ()) for row in rows)
    reasons = {
        name: f"after round {round_number + 1}: {reason}"
        for round_number, reason_by_name in records.get(support.LEFT_OUT, ())
        for name, reason in reason_by_name.items()
    }
    recorded_support = records.get("support", ())
    votes = support.Support.from_json(recorded_support[-1][1]) if recorded_support else None
    for place, (name, written_texts) in enumerate(written.items()):
        nearest = expected = None
        if votes is not None and votes.expected[place] > support.NO_VOTES:
            expected = float(votes.expected[place])
            nearest = float(votes.votes[place]), float(votes.error[place]) * expected
        last_weight = last_weights[place] if last_weights else None
        yield Writer(
            *(name, written_texts, nearest, expected, last_weight),
            *(published[name], set_aside[name], reasons.get(name, "")),
        )
