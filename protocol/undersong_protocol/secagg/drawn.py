"""The Merkle graph: each party draws its neighbours itself, once the root of all keys is fixed (Bell et al. 2020).

A party draws k others uniformly from the whole roster with coins that never leave it, deals its shares to these alone,
and sees signatures of T of these before it opens any share. It has masks with those that it drew and with those that
drew it, its *choosers*. So what protects a party depends on its own draw alone, and a coordinator that tries other keys
has no second draw to choose from in an attempt.

With ``a`` adversaries, invented members of the roster among them, and ``d`` dropouts in all among n parties, and h = n
- a, each of these holds but for a probability of 2^-40 (*recovery*: 2^-20), by the union over every party and every set
of parties that a coordinator may pick after it has seen all draws:

* *one kind of share*: nobody drew 2T - k adversaries. So no two groups of T holders, each of which was shown another
  view, open both secrets of a party; nor is the mask key of a party opened that saw T of its draw sign its own view.
* *one view*: at most m honest parties see T signatures of views of up to h/2 signers, and no set of up to m has, each
  of them, 2T - k of its draw within the set and the adversaries. These views' parties in a sum would be such a set, so
  a sum is of the one view with a majority. All parties of a sum are such a set too, so there are more than m.
* *heard*: a party whose draw the coordinator keeps quiet about is in no sum if nobody in it drew the party, since masks
  are bound to U2. The sum's parties are all but those, the dropouts, and the few whose mask keys other views' holders
  open; holders, too, are among the dropouts or the unheard. Unheard and opened ones are at most ``stray``.
* *recovery*: everybody keeps T of its draw.

So one sum alone can open, of one view, and all honest parties that this view does not call dropped out are in it but
for at most ``stray``, for which the noise is planned as for so many more colluders. The proof is in docs/secagg.md,
"The Merkle graph".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import ClassVar

from undersong_common.errors import ConfigurationError
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.secagg.graph import RECOVERY_BITS, SECRECY_BITS, Neighbourhood, below, upper_tails

MERKLE_ABOVE = 2_000
LARGEST_STRAY = 100  # A plan has at least so many parties for each stray party (``Draw.stray``).
LARGEST_DRAW = 256  # neighbours that a party draws: a plan that needs more costs too much to send

INDEX = Struct("<I")  # form of a roster index in messages


@dataclass(frozen=True)
class Draw(Neighbourhood):
    """Numbers of a Merkle graph; see the module.

    Attributes:
        degree, threshold: k, the parties that each party draws, and T of them that open its secrets.
        choosers: the most honest parties that drew one and the same party, but for a probability of 2^-40.
        stray: the most honest parties that a sum may lack without being told; the noise is planned as for so many
            more colluders.
    """

    member_noun: ClassVar[str] = "drawn neighbours"
    choosers: int
    stray: int


@lru_cache(maxsize=16)
def choose_draw(parties: int, adversaries: int, dropouts: int) -> Draw:
    """Returns the draw with the least k that meets the module's conditions, and the largest T that recovery allows.

    Raises ConfigurationError if no k up to ``LARGEST_DRAW`` does.

    >>> choose_draw(10_000, 100, 1_000)
    Draw(degree=82, threshold=53, choosers=172, stray=51)
    """
    if min(adversaries, dropouts) >= 0 and adversaries + dropouts < parties:
        for degree in range(2, min(parties - 1, LARGEST_DRAW) + 1):
            fitting_draw = _fit_draw(parties, adversaries, dropouts, degree)
            if fitting_draw is not None:
                return fitting_draw
    raise ConfigurationError(
        f"no draw of up to {LARGEST_DRAW} neighbours among {parties} parties withstands {adversaries} adversaries and "
        f"{dropouts} dropouts at 2^-{SECRECY_BITS} and 2^-{RECOVERY_BITS}",
        "lower federation.colluders or federation.tolerated_dropouts",
        code="no-neighbourhood",
    )


def merkle(parties: int, dropouts: int, above: int = MERKLE_ABOVE) -> bool:
    """Returns True if a run uses the Merkle graph: of more than ``above`` parties, of which some may drop out."""
    return parties > above and dropouts > 0


def stray(parties: int, adversaries: int, dropouts: int) -> int:
    """Returns :attr:`Draw.stray` of the graph that such a run uses by default; 0 unless it is the Merkle graph."""
    if merkle(parties, dropouts):
        return choose_draw(parties, adversaries, dropouts).stray
    return 0


def _fit_draw(n: int, adversaries: int, dropouts: int, k: int) -> Draw | None:
    draw_ways = math.comb(n - 1, k)
    dropped_tails = upper_tails(n - 1, dropouts, k)
    fitting_thresholds = [
        threshold_candidate
        for threshold_candidate in range(k // 2 + 1, k + 1)
        if n * dropped_tails[k - threshold_candidate + 1] << RECOVERY_BITS <= draw_ways
    ]
    if not fitting_thresholds:
        return None
    threshold = fitting_thresholds[-1]
    if n * upper_tails(n - 1, adversaries, k)[2 * threshold - k] << SECRECY_BITS > draw_ways:
        return None

    def surprise_bits(marked_count: int, least_count: int) -> float:
        """Returns -log2 of the probability that one party draws at least ``least_count`` of ``marked_count`` others."""
        tail_ways = upper_tails(n - 1, min(marked_count, n - 1), k)[least_count]
        if tail_ways:
            return math.log2(draw_ways) - math.log2(tail_ways)
        return math.inf

    def log2_sets(population_size: int, size: int) -> float:
        """Returns log2 of the number of sets of ``size`` parties among ``population_size``."""
        return (
            math.lgamma(population_size + 1) - math.lgamma(size + 1) - math.lgamma(population_size - size + 1)
        ) / math.log(2)

    # Sets of one size are so unlikely that sets of all n sizes together stay below the bound.
    least_log2 = -SECRECY_BITS - math.log2(n)
    honest_count = n - adversaries
    half_honest = honest_count // 2
    dropped_sets = log2_sets(honest_count, dropouts)

    def find_largest_size(largest: int, bound: Callable[[int], float], least: float = least_log2) -> int:
        """Returns the largest size of which ``bound`` is ``least`` or more; ``bound`` falls as the size grows."""
        low_size, high_size = 0, largest
        while low_size < high_size:
            middle_size = (low_size + high_size + 1) // 2
            if bound(middle_size) >= least:
                low_size = middle_size
            else:
                high_size = middle_size - 1
        return low_size

    def count_misled(signer_count: int) -> int:
        """Returns the most parties that see T signatures of views that ``signer_count`` honest parties sign."""
        split_surprise = surprise_bits(signer_count - 1 + adversaries, threshold)
        view_sets = log2_sets(honest_count, signer_count)
        return find_largest_size(signer_count, lambda r: view_sets + log2_sets(signer_count, r) - r * split_surprise)

    def log2_unheard(absent_count: int, missed_count: int) -> float:
        """Returns log2 of the expected number of pairs of sets of honest parties whose second set nobody else drew.

        Args:
            absent_count: size of the first set, the parties that are away.
            missed_count: size of the second set, the parties that nobody else drew.
        """
        if missed_count > n - 1 - k:
            return -math.inf
        avoiding_sets = log2_sets(n - 1, k) - log2_sets(n - 1 - missed_count, k)
        return (
            log2_sets(honest_count, absent_count)
            + log2_sets(honest_count, missed_count)
            - (honest_count - absent_count - missed_count) * avoiding_sets
        )

    def has_no_set(largest: int, least: int) -> bool:
        """True if no set of up to ``largest`` parties has each draw ``least`` of the set and the adversaries."""
        size = 1
        while size <= largest:
            # All sizes up to ``largest_tried`` are bounded together: as many sets as there are of that size,
            # each as likely as a set of the smallest size.
            largest_tried = min(largest, size + size // 128)
            if (
                log2_sets(honest_count, largest_tried) - size * surprise_bits(largest_tried - 1 + adversaries, least)
                >= least_log2
            ):
                return False
            size = largest_tried + 1
        return True

    misled_count = count_misled(half_honest)
    if not has_no_set(misled_count, 2 * threshold - k):
        return None
    signed_surprise = surprise_bits(misled_count + adversaries, threshold)
    # Turned parties are those whose mask keys can be opened by holders that saw another view signed.
    turned_size = find_largest_size(
        half_honest, lambda s: log2_sets(honest_count, misled_count) + log2_sets(honest_count, s) - s * signed_surprise
    )
    largest_absent_count = dropouts + turned_size
    # Numbers of honest parties that a sum may miss: it always has more of them than can be misled.
    missed_counts = range(honest_count - largest_absent_count - misled_count)
    largest_missed_count = max(
        (w for w in missed_counts if log2_unheard(largest_absent_count, w) >= least_log2), default=-1
    )
    if largest_missed_count in (-1, len(missed_counts) - 1):
        return None
    # The coordinator chooses the dropouts once, and with them both the parties that nobody drew and those whose keys
    # it can open. So each pair of these two numbers must be unlikely together, and not each number alone.
    stray_count = 0
    for fixed_missed_count in range(largest_missed_count + 1):
        turn_surprise = surprise_bits(dropouts + fixed_missed_count + adversaries, threshold)

        def joint_bits(s: int, missed: int = fixed_missed_count, turn: float = turn_surprise) -> float:
            return (
                log2_sets(honest_count, s)
                - s * turn
                + log2_unheard(dropouts + s, missed)
                - log2_sets(honest_count, dropouts + s)
                + dropped_sets
            )

        if joint_bits(0) >= least_log2 - math.log2(n):
            stray_count = max(
                stray_count, fixed_missed_count + find_largest_size(turned_size, joint_bits, least_log2 - math.log2(n))
            )
    if stray_count > n // LARGEST_STRAY or dropouts + stray_count >= half_honest:
        return None
    chooser_count = k + 1  # Chernoff: P[X >= x] <= exp(x - k) (k/x)^x for a sum of independent choices with mean k
    least_exponent = -least_log2 * math.log(2)
    while chooser_count < n - 1 and chooser_count * math.log(chooser_count / k) - chooser_count + k < least_exponent:
        chooser_count += 1
    return Draw(k, threshold, chooser_count, stray_count)


def draw(party_count: int, party_index: int, degree: int, coins: bytes) -> tuple[int, ...]:
    """Returns ``degree`` roster indices other than ``party_index``, ascending, out of 0..``party_count`` - 1.

    They are uniform and exact, drawn from ``coins``, a 32-byte seed.
    """
    stream = KeyStream(coins)
    neighbours: set[int] = set()
    while len(neighbours) < degree:
        index = below(stream, party_count - 1)
        neighbours.add(index + (index >= party_index))
    return tuple(sorted(neighbours))
