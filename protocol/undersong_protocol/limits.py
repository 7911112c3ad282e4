"""Largest sizes of a run that both ends read, so that no peer can make the other work without end.

Each figure is several times what the largest run of the documents needs; a plan beyond one is refused by name, at the
coordinator when it is planned and at every party before it is read.
"""

from undersong_common.errors import PrivacyRefusal

LARGEST_MANIFEST_BYTES = 4 * 2**20
LARGEST_PARTIES = 10_000
LARGEST_SUMS = 1_000
LARGEST_PARTIES_TIMES_SUMS = 500_000  # the noise of every sum is checked against every party that may drop out
LARGEST_LABELS = 1_000
LARGEST_DIMENSION = 2**24  # of one private sum
LARGEST_SPARE_ATTEMPTS = 100
LARGEST_PARAMETERS = 2_048  # values of one statistic's public parameters
LARGEST_NUMBER = 2**53  # of any kind in a plan
LARGEST_RECORDS = 2**40  # of a party, for the modulus
LARGEST_RECORDS_OF_A_UNIT = 2**20
LARGEST_SCALE = 2**41  # integer units per natural unit
LARGEST_MECHANISMS = 32  # that differ, where losses are composed numerically: each takes a tenth of a second


def check_size(what: str, found: int, allowed: int) -> None:
    """Raises PrivacyRefusal that names both numbers."""
    if found > allowed:
        raise PrivacyRefusal(f"the run has {found} {what}; {allowed} are allowed", "plan a smaller run")
