"""Participation: which hospitals are in each opened sum of a run, in words for card, report, dossier and ``verify``."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from undersong_common.printable import counted, noun, printable


@dataclass(frozen=True)
class Participation:
    """Hospitals of a run, and for each sum that was opened the hospitals that are in it.

    Attributes:
        parties: names of all hospitals, in the manifest's order.
        sums: name and hospitals of each opened sum, in the plan's order.
    """

    parties: tuple[str, ...]
    sums: tuple[tuple[str, Collection[str]], ...]

    @property
    def is_whole(self) -> bool:
        """True if every hospital is in every opened sum."""
        return not self.absences

    @property
    def named(self) -> str:
        """The hospitals in words.

        >>> Participation(("north", "south"), ()).named, Participation(("north",), ()).named
        ('2 hospitals: north, south', '1 hospital: north')
        """
        names = ", ".join(printable(party, 120) for party in self.parties)
        return f"{counted(len(self.parties), 'hospital')}: {names}"

    @property
    def counts(self) -> str:
        """The number of opened sums by their number of hospitals, the most frequent first.

        >>> rest = [("b", {"x", "y"}), ("c", {"x", "y"})]
        >>> Participation(("x", "y", "z"), (("a", {"x", "y", "z"}), *rest)).counts
        '2 sums of 2 hospitals, 1 sum of 3 hospitals'
        >>> Participation(("x", "y"), ()).counts
        'no sum was opened'
        """
        sizes = Counter(len(hospitals) for _, hospitals in self.sums)
        parts = [
            f"{counted(number, 'sum')} of {counted(size, 'hospital')}"
            for size, number in sorted(
                sizes.items(), key=lambda size_and_number: (-size_and_number[1], size_and_number[0])
            )
        ]
        return ", ".join(parts) or "no sum was opened"

    @property
    def absences(self) -> tuple[str, ...]:
        """A sentence about every hospital that is not in all opened sums: until which one it took part."""
        return tuple(filter(None, (self._describe_absence(party) for party in self.parties)))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences on who took part, beside the names: none if every hospital is in every sum."""
        if self.absences:
            return (*self.absences, f"Opened: {self.counts}.")
        return ()

    def _describe_absence(self, party: str) -> str:
        """The sentence about one hospital; "" if it is in every opened sum.

        >>> sums = (("one", {"x", "y"}), ("two", {"x", "y"}), ("three", {"y"}), ("four", {"y"}))
        >>> Participation(("x", "y"), sums).absences
        ("x took part until sum 2 of 4 ('two'); the 2 sums after it were opened without it.",)
        >>> Participation(("x", "y"), (sums[0], sums[2], sums[1])).absences
        ("x took part in 2 of 3 sums; this sum was opened without it: 'three'.",)
        >>> Participation(("x", "y"), (sums[2],)).absences
        ('x is in no opened sum.',)
        """
        numbers = [number for number, (_, hospitals) in enumerate(self.sums, 1) if party in hospitals]
        name = printable(party, 120)
        if len(numbers) == len(self.sums):
            return ""
        if not numbers:
            return f"{name} is in no opened sum."
        last = numbers[-1]
        if numbers == list(range(1, last + 1)):
            later_sums = len(self.sums) - last
            were = "was" if later_sums == 1 else "were"
            return (
                f"{name} took part until sum {last} of {len(self.sums)} ({_quote_names([self.sums[last - 1][0]])});"
                f" the {counted(later_sums, 'sum')} after it {were} opened without it."
            )
        missing = [sum_name for sum_name, hospitals in self.sums if party not in hospitals]
        subject = "this sum was" if len(missing) == 1 else "these sums were"
        return (
            f"{name} took part in {len(numbers)} of {len(self.sums)} {noun(len(self.sums), 'sum')};"
            f" {subject} opened without it: {_quote_names(missing)}."
        )


MOST_NAMES = 20  # names of sums in one sentence


def _quote_names(names: Sequence[str]) -> str:
    remainder = ""
    if len(names) > MOST_NAMES:
        remainder = f" and {len(names) - MOST_NAMES} more"
    return ", ".join(f"'{printable(name, 60)}'" for name in names[:MOST_NAMES]) + remainder
