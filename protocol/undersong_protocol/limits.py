"""Largest sizes of a run, so that no coordinator or party can make another work without end; send times of vectors.

Each size is several times what the largest run in docs/ needs. A plan beyond one is refused: by the coordinator when it
plans, and by every party before it reads the plan further. A vector leaves a party only at a rung: one of the public
times 20 ms, 40 ms, 80 ms and so on after its request.
"""

import math
from typing import Literal

from undersong_common.errors import PrivacyRefusal

RequirePostQuantum = Literal["always", "never"]  # a party's rule on post-quantum masks
MinimumColluders = int | Literal["default"]  # fewest colluders that a party's rule lets a run assume
LARGEST_MANIFEST_BYTES = 4 * 2**20
LARGEST_PARTIES = 10_000
LARGEST_SUMS = 1_000
LARGEST_PARTIES_TIMES_SUMS = 500_000  # the noise of every sum is checked against every party that may drop out
LARGEST_LABELS = 1_000
LARGEST_DIMENSION = 2**24  # coordinates of one private sum
LARGEST_DRAWS = 2**30  # numbers of noise that one party draws for one sum, which takes some minutes
LARGEST_SPARE_ATTEMPTS = 100
LARGEST_PARAMETERS = 2_048  # number of values in one statistic's public parameters
LARGEST_NUMBER = 2**53  # No figure of a plan is larger.
LARGEST_RECORDS = 2**40  # records of a party; a plan's modulus has to hold the sum of so many
LARGEST_RECORDS_OF_A_UNIT = 2**20
LARGEST_SCALE = 2**41  # integer units per natural unit
LARGEST_MECHANISMS = 32  # Each different mechanism of a numerical composition takes a tenth of a second.


def check_size(quantity: str, count: int, allowed: int) -> None:
    """Raises PrivacyRefusal if a run has more than ``allowed`` of ``quantity``; the error names both numbers."""
    if count > allowed:
        raise PrivacyRefusal(f"the run has {count} {quantity}; {allowed} are allowed", "plan a smaller run")


# Public send times ("rungs") of a masked vector, which the plan fixes: the vector leaves its party at the next one.
# How long a vector takes to compute depends on the records: on how many there are, and a little on what is in them.
# So a party waits with it until 20, 40, 80, ... ms after the request was taken up, whichever comes next, and answers
# nothing else meanwhile. Who watches the clock learns which rung it was: at most log2(LOOKS) bits a sum, and usually
# nothing, since the same sum over the same records takes the same rung. No other reply reads a record.
# Where another process computes the vector, the party looks for it at public times only, once for each rung and twice
# for the second one (:func:`handover_s`). An observer may notice, before the rung, that the party works on the vector
# that it found. So :func:`bits` counts the times of these looks and not the rungs.

FIRST_S = 0.02
LOOKS = 24
"""Times at which a vector may be found: two for the second rung, one for each other. The last rung that counts is 23
hours, longer than any coordinator waits; the ladder itself does not end."""
LARGEST_FIRST_S = 3600.0


def leaving_s(elapsed_s: float, first_s: float = FIRST_S) -> float:
    """Returns the send time of a vector: the first rung at or after ``elapsed_s``, in seconds since the request.

    >>> [leaving_s(elapsed) for elapsed in (0.0, 0.02, 0.021, 0.05, 1.0)]
    [0.02, 0.02, 0.04, 0.08, 1.28]
    """
    if elapsed_s <= first_s:
        return first_s
    rung_s = first_s * 2.0 ** math.ceil(math.log2(elapsed_s / first_s))
    # Rounding can give a time just above a rung the logarithm of that rung.
    return rung_s if rung_s >= elapsed_s else 2.0 * rung_s


def handover_s(elapsed_s: float, first_s: float = FIRST_S) -> float:
    """Returns the next time, in seconds since the request, at which a party asks whether its vector has been computed.

    Another process computes the vector. A party asks half a first rung before each rung, and also at the first rung,
    when most vectors are done. Between asking and the rung it masks, journals and sends the vector. So its
    behaviour depends on the records only by which of these times found the vector done.

    >>> [round(handover_s(elapsed), 3) for elapsed in (0.0, 0.01, 0.011, 0.021, 0.05, 1.0)]
    [0.01, 0.01, 0.02, 0.03, 0.07, 1.27]
    """
    # The margin keeps a look at the first rung from being repeated because of a difference in the last bit.
    if first_s / 2 < elapsed_s < first_s * (1 - 1e-9):
        return first_s
    return leaving_s(elapsed_s + first_s / 2, first_s) - first_s / 2


def bits(first_s: float = FIRST_S) -> float:
    """Returns the most bits of information that the send time of one vector can reveal about the records.

    It is the base 2 logarithm of the number of times of :func:`handover_s`.

    >>> round(bits(), 2)
    4.58
    """
    last_rung_s = FIRST_S * 2.0 ** (LOOKS - 2)
    rung_count = max(1, 1 + math.floor(math.log2(last_rung_s / first_s)))
    return math.log2(rung_count + (rung_count > 1))
