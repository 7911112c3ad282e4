"""Participation: which hospitals are in each opened sum of a run, in words for card, report, dossier and ``verify``."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from undersong_common.printable import counted, first_named, noun, printable
from undersong_protocol.agreement.full_names import with_full_name


@dataclass(frozen=True)
class Participation:
    """Hospitals of a run, and for each sum that was opened the hospitals that are in it.

    Attributes:
        parties: names of all hospitals, in the manifest's order.
        sums: name and hospitals of each opened sum, in the plan's order.
        full_names: full names by party, in the operator's words.
    """

    parties: tuple[str, ...]
    sums: tuple[tuple[str, Collection[str]], ...]
    full_names: Mapping[str, str] = field(default_factory=dict)

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
        return f"{counted(len(self.parties), 'hospital')}: {', '.join(self.names)}"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each hospital, with its full name where the plan states one."""
        return tuple(with_full_name(party, self.full_names.get(party, "")) for party in self.parties)

    @property
    def chips(self) -> tuple[str, ...]:
        """The hospitals' names as small labels, at most ``MOST_CHIPS``, and a last label with the number of the others.

        A hospital that is not in every opened sum has the sums in which it took part beside its name.

        >>> sums = (("one", {"x", "y"}), ("two", {"y"}), ("three", {"x", "y"}))
        >>> Participation(("x", "y", "z"), sums).chips
        ('x (in 2 of 3 sums)', 'y', 'z (in no sum)')
        >>> Participation(("x", "y"), sums[:2]).chips
        ('x (until sum 1 of 2)', 'y')
        >>> len(Participation(tuple(f"h{n}" for n in range(40)), ()).chips)
        13
        """
        absence_notes = {party: self._note_absence(party) for party in self.parties}
        # Hospitals that missed a sum come first, so that the limit leaves them out last: a reader cannot guess them.
        named_parties = sorted(self.parties, key=lambda party: not absence_notes[party])[:MOST_CHIPS]
        names = [f"{printable(party, 120)}{absence_notes[party]}" for party in self.parties if party in named_parties]
        unnamed_count = len(self.parties) - len(named_parties)
        return (*names, *([f"{unnamed_count} more"] if unnamed_count else []))

    def _note_absence(self, party: str) -> str:
        """Returns in brackets in which sums a hospital took part; "" if it is in every opened sum."""
        attended_sums = [sum_number for sum_number, (_, hospitals) in enumerate(self.sums, 1) if party in hospitals]
        if len(attended_sums) == len(self.sums):
            return ""
        if not attended_sums:
            return " (in no sum)"
        if attended_sums == list(range(1, len(attended_sums) + 1)):
            return f" (until sum {len(attended_sums)} of {len(self.sums)})"
        return f" (in {len(attended_sums)} of {counted(len(self.sums), 'sum')})"

    @property
    def counts(self) -> str:
        """The number of opened sums by their number of hospitals, the most frequent first.

        >>> rest = [("b", {"x", "y"}), ("c", {"x", "y"})]
        >>> Participation(("x", "y", "z"), (("a", {"x", "y", "z"}), *rest)).counts
        '2 sums of 2 hospitals, 1 sum of 3 hospitals'
        >>> Participation(("x", "y"), ()).counts
        'no sum was opened'
        """
        sums_by_size = Counter(len(hospitals) for _, hospitals in self.sums)
        size_words = [
            f"{counted(sum_count, 'sum')} of {counted(hospital_count, 'hospital')}"
            for hospital_count, sum_count in sorted(
                sums_by_size.items(), key=lambda count_and_frequency: (-count_and_frequency[1], count_and_frequency[0])
            )
        ]
        return ", ".join(size_words) or "no sum was opened"

    @property
    def absences(self) -> tuple[str, ...]:
        """A sentence about every hospital that is not in all opened sums: in which of them it took part."""
        return tuple(filter(None, (self._describe_absence(party) for party in self.parties)))

    @property
    def sentences(self) -> tuple[str, ...]:
        """:attr:`absences` and then :attr:`counts` as a sentence; none if every hospital is in every opened sum."""
        if self.absences:
            return (*self.absences, f"Opened: {self.counts}.")
        return ()

    def _describe_absence(self, party: str) -> str:
        """Returns the sentence of :attr:`absences` about one hospital; "" if it is in every opened sum.

        >>> sums = (("one", {"x", "y"}), ("two", {"x", "y"}), ("three", {"y"}), ("four", {"y"}))
        >>> Participation(("x", "y"), sums).absences
        ("x took part until sum 2 of 4 ('two'); the 2 sums after it were opened without it.",)
        >>> Participation(("x", "y"), (sums[0], sums[2], sums[1])).absences
        ("x took part in 2 of 3 sums; this sum was opened without it: 'three'.",)
        >>> Participation(("x", "y"), (sums[2],)).absences
        ('x is in no opened sum.',)
        """
        attended_sums = [sum_number for sum_number, (_, hospitals) in enumerate(self.sums, 1) if party in hospitals]
        printed_name = printable(party, 120)
        if len(attended_sums) == len(self.sums):
            return ""
        if not attended_sums:
            return f"{printed_name} is in no opened sum."
        last_sum = attended_sums[-1]
        if attended_sums == list(range(1, last_sum + 1)):
            later_sums = len(self.sums) - last_sum
            was_or_were = "was" if later_sums == 1 else "were"
            return (
                f"{printed_name} took part until sum {last_sum} of {len(self.sums)}"
                f" ({_quote_names([self.sums[last_sum - 1][0]])});"
                f" the {counted(later_sums, 'sum')} after it {was_or_were} opened without it."
            )
        missing_sums = [sum_name for sum_name, hospitals in self.sums if party not in hospitals]
        sums_subject = "this sum was" if len(missing_sums) == 1 else "these sums were"
        return (
            f"{printed_name} took part in {len(attended_sums)} of {len(self.sums)} {noun(len(self.sums), 'sum')};"
            f" {sums_subject} opened without it: {_quote_names(missing_sums)}."
        )


MOST_CHIPS = 12  # largest number of hospitals that are listed by name and not only counted
MOST_NAMES = 20  # names of sums in one sentence


def _quote_names(names: Sequence[str]) -> str:
    return first_named([f"'{printable(name, 60)}'" for name in names], MOST_NAMES)
