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
* *not apart*: no set of up to h/2 honest parties has, each of them, T of its draw within the set and the adversaries.
  The parties of a sum that opens are such a set, since the T that opened a self mask share masks with its owner.
* *one view*: fewer than m honest parties see T signatures of views other than the one with most signers, and no set of
  fewer than m has, each of them, 2T - k of its draw within the set and the adversaries. These views' parties in the sum
  would be such a set. Without a majority view nothing opens.
* *heard*: a party whose draw the coordinator keeps quiet about is in no sum if everybody who drew it is said to have
  dropped out. That many dropouts cut off few: ``stray`` with the few whose mask keys those can open.
* *recovery*: everybody keeps T of its draw.

So one sum alone can open, of one view, and all honest parties that this view does not call dropped out are in it but
for at most ``stray``, for which the noise is planned as for so many more colluders. The proof is in docs/secagg.md,
"The Merkle graph".
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.secagg.graph import RECOVERY_BITS, SECRECY_BITS, Neighbourhood, Topology, upper_tails

MERKLE_ABOVE = 2_000
LARGEST_STRAY = 100  # one in so many parties at most
LARGEST_DRAW = 256  # neighbours that a party draws: a plan that needs more costs too much to send

INDEX = Struct("<I")


@dataclass(frozen=True)
class Draw(Neighbourhood):
    """Numbers of a Merkle graph; see the module.

    Attributes:
        degree, threshold: k, the parties that each party draws, and T of them that open its secrets.
        choosers: the most honest parties that drew one and the same, but for a probability of 2^-40.
        stray: parties by which the noise is planned higher than for the colluders alone.
    """

    choosers: int
    stray: int


@lru_cache(maxsize=16)
def choose_draw(parties: int, adversaries: int, dropouts: int) -> Draw:
    """Returns the least k that meets the module's conditions, with the largest T that recovery allows.

    Raises ConfigurationError if no k up to ``LARGEST_DRAW`` does.

    >>> choose_draw(10_000, 100, 1_000)
    Draw(degree=82, threshold=53, choosers=172, stray=51)
    """
    if min(adversaries, dropouts) >= 0 and adversaries + dropouts < parties:
        for degree in range(2, min(parties - 1, LARGEST_DRAW) + 1):
            found = _draw(parties, adversaries, dropouts, degree)
            if found is not None:
                return found
    raise ConfigurationError(
        f"no draw of up to {LARGEST_DRAW} neighbours among {parties} parties withstands {adversaries} adversaries and "
        f"{dropouts} dropouts at 2^-{SECRECY_BITS} and 2^-{RECOVERY_BITS}",
        "lower federation.colluders or federation.tolerated_dropouts",
        code="no-neighbourhood",
    )


def merkle(parties: int, dropouts: int, above: int = MERKLE_ABOVE) -> bool:
    """Returns True if so many parties use the Merkle graph: more than ``above``, and some may drop out."""
    return parties > above and dropouts > 0


def stray(parties: int, adversaries: int, dropouts: int) -> int:
    """Returns :attr:`Draw.stray` of the graph that so many parties use by default; 0 if it is not the Merkle graph."""
    return choose_draw(parties, adversaries, dropouts).stray if merkle(parties, dropouts) else 0


def _draw(n: int, adversaries: int, dropouts: int, k: int) -> Draw | None:
    draws = math.comb(n - 1, k)
    lost = upper_tails(n - 1, dropouts, k)
    fitting = [t for t in range(k // 2 + 1, k + 1) if n * lost[k - t + 1] << RECOVERY_BITS <= draws]
    if not fitting:
        return None
    threshold = fitting[-1]
    if n * upper_tails(n - 1, adversaries, k)[2 * threshold - k] << SECRECY_BITS > draws:
        return None

    def surprise(marked: int, least: int) -> float:
        """-log2 of the probability that one party draws ``least`` of ``marked`` others."""
        ways = upper_tails(n - 1, min(marked, n - 1), k)[least]
        return math.log2(draws) - math.log2(ways) if ways else math.inf

    def sets(of: int, size: int) -> float:
        return (math.lgamma(of + 1) - math.lgamma(size + 1) - math.lgamma(of - size + 1)) / math.log(2)

    unlikely = -SECRECY_BITS - math.log2(n)  # of one size, so that all sizes together are
    honest = n - adversaries
    half = honest // 2

    def most(largest: int, bound: Callable[[int], float]) -> int:
        """The largest size that is not unlikely; ``bound`` stays unlikely once it is."""
        low, high = 0, largest
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if bound(middle) >= unlikely else (low, middle - 1)
        return low

    def misled(signers: int) -> int:
        """The most parties that see T signatures of views that ``signers`` honest parties sign."""
        split = surprise(signers - 1 + adversaries, threshold)
        return most(signers, lambda r: sets(honest, signers) + sets(signers, r) - r * split)

    def opened(holders: int) -> int:
        """The most parties whose mask key ``holders`` honest parties can open."""
        turned = surprise(holders + adversaries, threshold)
        return most(half, lambda s: sets(honest, holders) + sets(honest, s) - s * turned)

    def unheard(out: int) -> int:
        """The most parties that nobody in a sum drew from which ``out`` honest parties are out."""

        def bound(w: int) -> float:
            missed = math.comb(n - 1 - w, k)
            return (
                sets(honest, out)
                + sets(honest, w)
                - (honest - out - w) * (math.log2(draws) - math.log2(missed) if missed else math.inf)
            )

        return most(half - out, bound)

    def none(largest: int, least: int) -> bool:
        """True if no set of up to ``largest`` parties has, each, ``least`` of its draw within it or the adversaries."""
        size = 1
        while size <= largest:
            last = min(
                largest, size + size // 128
            )  # sizes up to it: as many sets as of the last, as likely as the first
            if sets(honest, last) - size * surprise(last - 1 + adversaries, least) >= unlikely:
                return False
            size = last + 1
        return True

    others = misled(half)
    # Views without a majority fall into three groups of at most half, half and a third of the honest parties.
    seeing = min(2 * others + misled(honest // 3), honest)
    several = sets(honest, seeing) + sets(honest, half) - half * surprise(seeing + adversaries, threshold)
    if several >= unlikely or not none(others, 2 * threshold - k) or not none(half, threshold):
        return None
    turned = opened(others)
    if dropouts + turned >= half:
        return None
    turned = opened(min(others, unheard(dropouts + turned)))  # those that turned are unheard: both bounds once more
    stray = turned + unheard(dropouts + turned)
    if stray > n // LARGEST_STRAY:
        return None
    choosers = k + 1  # Chernoff: P[X >= x] <= exp(x - k) (k/x)^x for a sum of independent choices with mean k
    while choosers < n - 1 and choosers * math.log(choosers / k) - choosers + k < -unlikely * math.log(2):
        choosers += 1
    return Draw(k, threshold, choosers, stray)


def draw(parties: int, me: int, degree: int, coins: bytes) -> tuple[int, ...]:
    """Returns ``degree`` others than ``me`` out of 0..n-1, ascending; uniform and exact, from a 32-byte seed."""
    stream = KeyStream(coins)
    others = parties - 1
    limit = (1 << 64) - (1 << 64) % others
    found: set[int] = set()
    while len(found) < degree:
        word = int.from_bytes(stream.read(8), "little")
        if word < limit:
            other = word % others
            found.add(other + (other >= me))
    return tuple(sorted(found))


class DrawnTopology:
    """The Merkle graph as far as somebody knows it: the coordinator all of it, a party its own place.

    It answers as ``graph.Topology`` does, for the parties in ``drawn``.
    """

    complete = False

    def __init__(
        self, plan: Neighbourhood, drawn: Mapping[int, tuple[int, ...]], choosers: Mapping[int, tuple[int, ...]]
    ) -> None:
        """``drawn``, ``choosers``: by party, whom it drew and who drew it, ascending."""
        self._plan = plan
        self._drawn = {party: frozenset(others) for party, others in drawn.items()}
        self._choosers = {party: frozenset(others) for party, others in choosers.items()}

    def neighbours(self, party: int, among: Collection[int]) -> tuple[int, ...]:
        """Returns the parties in ``among`` that share a mask with ``party``, ascending. A set is fastest."""
        return _within(self._drawn[party] | self._choosers[party], among)

    def holders(self, dealer: int, among: Collection[int]) -> tuple[int, ...]:
        """Returns the parties in ``among`` that hold shares of ``dealer``'s secrets: those that it drew, ascending."""
        return _within(self._drawn[dealer], among)

    def dealers(self, holder: int, among: Collection[int]) -> tuple[int, ...]:
        """Returns the parties in ``among`` of whose secrets ``holder`` holds shares: its choosers, ascending."""
        return _within(self._choosers[holder], among)

    def leads(self, party: int, other: int) -> bool:
        """Returns True if ``party`` deals the secret of its pair with ``other``: it drew it, and knows its keys."""
        return other in self._drawn[party] and (party < other or other not in self._choosers[party])

    def check(self, party: int, remaining: Collection[int], what: str) -> None:
        """Raises PrivacyRefusal if ``remaining`` holds fewer of those that ``party`` drew than the threshold."""
        self.check_around(party, remaining, what)

    def check_around(self, party: int, remaining: Collection[int], what: str) -> None:
        """Raises PrivacyRefusal if ``remaining`` holds fewer of those that ``party`` drew than the threshold."""
        around = len(self.holders(party, remaining))
        if around < self._plan.threshold:
            raise PrivacyRefusal(
                f"{what} keeps {around} of {self._plan.degree} drawn neighbours, {self._plan.threshold} are needed",
                "start a new attempt when more parties are present",
            )

    def check_runs(self, remaining: Collection[int], what: str) -> None:
        """Does nothing: no order of the parties is drawn."""


MaskGraph = Topology | DrawnTopology


def _within(parties: frozenset[int], among: Collection[int]) -> tuple[int, ...]:
    kept = among if isinstance(among, frozenset | set | dict) else frozenset(among)
    return tuple(sorted([party for party in parties if party in kept]))
