"""Largest sizes of a run that both ends read, so that no peer can make the other work without end, and send times.

Each figure is several times what the largest run of the documents needs; a plan beyond one is refused by name, at the
coordinator when it is planned and at every party before it is read.
"""

import math

from undersong_common.errors import PrivacyRefusal

LARGEST_MANIFEST_BYTES = 4 * 2**20
LARGEST_PARTIES = 10_000
LARGEST_SUMS = 1_000
LARGEST_PARTIES_TIMES_SUMS = 500_000  # the noise of every sum is checked against every party that may drop out
LARGEST_LABELS = 1_000
LARGEST_DIMENSION = 2**24  # of one private sum
LARGEST_DRAWS = 2**30  # of noise, by one party for one sum: some minutes
LARGEST_SPARE_ATTEMPTS = 100
LARGEST_PARAMETERS = 2_048  # values of one statistic's public parameters
LARGEST_NUMBER = 2**53  # of any kind in a plan
LARGEST_RECORDS = 2**40  # of a party, for the modulus
LARGEST_RECORDS_OF_A_UNIT = 2**20
LARGEST_SCALE = 2**41  # integer units per natural unit
LARGEST_MECHANISMS = 32  # that differ, where losses are composed numerically: each takes a tenth of a second


def check_size(what: str, found: int, allowed: int) -> None:
    """Raises PrivacyRefusal, which names both numbers, if ``found`` is above ``allowed``."""
    if found > allowed:
        raise PrivacyRefusal(f"the run has {found} {what}; {allowed} are allowed", "plan a smaller run")


# Public send times of a masked vector: it leaves a party at the next rung of a ladder that the plan fixes.
# How long a vector takes to compute depends on the records: on how many there are, and a little on what is in them.
# So a party waits with it until 20, 40, 80, ... ms after the request was taken up, whichever comes next, and answers
# nothing else meanwhile. Who watches the clock learns which rung it was: at most log2(LOOKS) bits a sum, and usually
# nothing, since the same sum over the same records takes the same rung. No other reply reads a record.
# Where another process computes the vector, the party looks for it at public times only, once for each rung and twice
# for the second one (:func:`handover_s`). What it does from then on may be heard within the rung: these times are
# counted.

FIRST_S = 0.02
LOOKS = 24
"""Times at which a vector may be found: two for the second rung, one for each other. The last rung that counts is 23
hours, longer than any coordinator waits; the ladder itself does not end."""
LARGEST_FIRST_S = 3600.0


def leaving_s(elapsed_s: float, first_s: float = FIRST_S) -> float:
    """The first rung, in seconds, that is not below ``elapsed_s``.

    >>> [leaving_s(elapsed) for elapsed in (0.0, 0.02, 0.021, 0.05, 1.0)]
    [0.02, 0.02, 0.04, 0.08, 1.28]
    """
    if elapsed_s <= first_s:
        return first_s
    rung = first_s * 2.0 ** math.ceil(math.log2(elapsed_s / first_s))
    return rung if rung >= elapsed_s else 2.0 * rung  # the logarithm of a number just above a rung may be the rung's


def handover_s(elapsed_s: float, first_s: float = FIRST_S) -> float:
    """The next time, in seconds, to look for another process's vector: half a first rung before each rung.

    Within the second rung it is looked for at the first one, too: most vectors that are not done after half a rung are
    done by then, and a party keeps a core busy until it takes them over. A party learns at these times only that its
    vector is done, and has the rest of the rung to mask, journal and send it: what it does then, and when, depends on
    no record but through which of these times it was.

    >>> [round(handover_s(elapsed), 3) for elapsed in (0.0, 0.01, 0.011, 0.021, 0.05, 1.0)]
    [0.01, 0.01, 0.02, 0.03, 0.07, 1.27]
    """
    if first_s / 2 < elapsed_s < first_s * (1 - 1e-9):  # not that look again, by a difference's last bit
        return first_s
    return leaving_s(elapsed_s + first_s / 2, first_s) - first_s / 2


def bits(first_s: float = FIRST_S) -> float:
    """The most that the time of one vector can show: the logarithm of how many looks there are from the first one on.

    >>> round(bits(), 2)
    4.58
    """
    last = FIRST_S * 2.0 ** (LOOKS - 2)
    rungs = max(1, 1 + math.floor(math.log2(last / first_s)))
    return math.log2(rungs + (rungs > 1))
