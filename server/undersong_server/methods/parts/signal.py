"""Expected signal of a private sum beside its noise: the answer that an expected number of records would give."""

import math
from typing import NamedTuple

from undersong_protocol.statistics import Statistic
from undersong_protocol.statistics.label_words import LabelWords

MEASURED = ("counts", "nearest")  # questions whose coordinates are counts or votes, which a number of records tells of
TELLING = 0.25  # share of a label's records that contain its most telling words


class Signal(NamedTuple):
    """An expected answer in natural units, and the size from which on an answer is told from noise."""

    expected: float
    noise: float

    @property
    def is_noise(self) -> bool:
        return self.expected < self.noise

    def least_records(self, records: int) -> int:
        """Returns the number of records from which on the answer is told from noise; this is that of ``records``."""
        return math.ceil(records * self.noise / self.expected)

    def __str__(self) -> str:
        return f"{self.expected:.3g} expected, noise up to {self.noise:.3g}"


def least_count(sigma: float, word_count: int) -> float:
    """Returns the count from which on a word is told from noise, which reaches it once among ``word_count`` words."""
    return sigma * math.sqrt(2.0 * math.log(max(2, word_count)))


def expected_signal(statistic: Statistic, sigma: float, record_count: float) -> Signal:
    """Returns what so many records are expected to answer, and the answer up to which noise of ``sigma`` hides it.

    Nobody declares how many records each label has, so labels count as equally frequent. For counted words the answer
    is the count of a word that only one label's records have. For any other sum it is what each coordinate gets if
    every record adds all that it may, spread evenly.
    """
    if isinstance(statistic, LabelWords):
        return Signal(TELLING * record_count / statistic.labels, least_count(sigma, statistic.cells))
    return Signal(record_count * statistic.sensitivity.l1 / statistic.dimension, sigma)
