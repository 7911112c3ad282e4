"""The best guesses about a patient, each with who guesses: one table for card, report and ``undersong verify``."""

from collections.abc import Mapping
from dataclasses import dataclass

from undersong_common.privacy import impact
from undersong_protocol.agreement import words
from undersong_protocol.agreement.plan import Privacy

HEADER = ("who guesses, and about whom", "right in at most so many of 100 cases; a coin is in 50")
NEARLY_CERTAIN = 0.95  # probability of a right guess


@dataclass(frozen=True)
class Guesses:
    """Largest chances of a right guess; None for what was not computed or is bounded by nothing.

    Attributes:
        promise: of the run; noun: of its unit, such as "patient"; hospitals: number of all.
        of_readers: of whoever reads what is published, on average over the noise.
        at_all_hospitals: the same about one unit with records at every hospital.
        of_colluders_as_planned, of_colluders_as_it_ran: of the operator and all other hospitals together.
    """

    promise: Privacy
    noun: str
    hospitals: int
    of_readers: float | None
    at_all_hospitals: float | None
    of_colluders_as_planned: float | None
    of_colluders_as_it_ran: float | None

    @property
    def chances(self) -> Mapping[str, float]:
        """The largest chance of a right guess by who guesses about whom; empty for a promise that nothing bounds."""
        if self.of_readers is None:
            return {}
        about, colluders = f"about one {self.noun}", "the operator and all other hospitals together"
        chances = {
            f"a reader of what is published, {about} of one hospital, on average": self.of_readers,
            self._nearly_all: impact.certainty(self.promise.epsilon, self.promise.delta),
            f"a reader, {about} with records at all {self.hospitals} hospitals, on average": self.at_all_hospitals,
            f"{colluders}, {about} of one hospital, on average, {words.AS_PLANNED}": self.of_colluders_as_planned,
            f"the same colluders, {words.AS_IT_RAN}": self.of_colluders_as_it_ran,
        }
        return {whose: right for whose, right in chances.items() if right is not None}

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """Rows of (who guesses about whom, in how many of 100 cases that is right at most)."""
        return tuple(
            # Words on the protection are of an average; the row on nearly all runs is of each single run.
            (whose, f"{impact.cases(right)}{'' if whose == self._nearly_all else impact.protection_words(right)}")
            for whose, right in self.chances.items()
        )

    @property
    def average_words(self) -> str:
        """Says how a reader's average and the figure of nearly all runs are both true; "" without an average."""
        if self.of_readers is None:
            return ""
        right = impact.certainty(self.promise.epsilon, self.promise.delta)
        counted_words = " that still count" if self.promise.delta else ""
        sure_words = ", in which a guess may be nearly certain" if right >= NEARLY_CERTAIN else ""
        return (
            f"{impact.cases(self.of_readers)} and {impact.cases(right)}, the two figures of a reader about one"
            " hospital, both hold: the first is an average over all outcomes of the noise, and the figure by which to"
            f" compare corpora; the second is of the worst outcomes{counted_words}{sure_words}."
        )

    @property
    def _nearly_all(self) -> str:
        return f"the same, {impact.nearly_all(self.promise.delta)}"
