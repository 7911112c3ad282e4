"""Mask graphs: the complete graph up to 200 parties, k-regular neighbourhoods above (Bell et al. 2020).

Parties stand on a circle in the order of a jointly derived permutation; each is linked to the k/2 next on either side
(Harary 1962). A party's mask is split among its k neighbours and its secrets are shared with them under threshold T,
so what the complete graph guarantees for counts holds here for neighbourhoods up to a failure probability. With ``a``
adversaries and ``d`` dropouts in all among n parties, in any positions chosen before the permutation is known:

* *one kind of share* (secrecy): a lying coordinator that shows different survivor sets to a party's neighbours gets
  both of its secrets only if 2T <= k + x, x its adversarial neighbours. The union bound n P[x >= 2T - k] must stay
  below 2^-40. As T <= k this includes Bell's own condition, fewer than T adversaries in a neighbourhood.
* *connected* (secrecy): honest survivors fall apart only where k/2 neighbouring places on the circle all belong to
  adversaries or dropouts: n P[k/2 given places all bad] must stay below 2^-40 as well.
* *recovery* (correctness): every party keeps at least T surviving neighbours: n P[dropped > k - T] below 2^-20.

The probabilities are exact hypergeometric tails in integers, so both sides compute the same k and T. The degree is the
least even one for which a threshold exists, the threshold the least that meets both secrecy conditions. For 1000
parties, 100 adversaries and 100 dropouts this gives k = 96 and T = 67 (secrecy 2^-43.1, recovery 2^-20.6),
docs/secagg.md's figures; k = 94 has no threshold.

Known limit: the bounds hold for dropouts that do not depend on the permutation (Bell's model). A coordinator that
*claims* dropouts after it has seen the circle can cut an arc off only between two runs of k/2 places, each of which
holds at least T - k/2 adversaries (else the arc's end lacks T share holders): at most (n P[that run])^2 / 2, 2^-32
for the figures above. Party identities are enrolled, so it cannot draw again at will: each try is an attempt.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar

from undersong_common.errors import ConfigurationError, InternalError, PrivacyRefusal
from undersong_common.privacy.stream import KeyStream

COMPLETE_UP_TO = 200
LARGEST_DEGREE = 1024  # neighbours; without a limit the search for a peer's plan of 10 000 parties would take hours
SECRECY_BITS = 40
RECOVERY_BITS = 20

_SEED = b"undersong/graph-seed/1\x00"


@dataclass(frozen=True)
class Neighbourhood:
    """Degree and threshold of a k-regular mask graph.

    Attributes:
        degree: k, number of neighbours of each party.
        threshold: T, number of shares that reconstruct a secret.
    """

    member_noun: ClassVar[str] = "neighbours"
    degree: int
    threshold: int

    def check(self, neighbour_count: int, subject: str) -> None:
        """Raises PrivacyRefusal if a set of parties, named ``subject``, has too few of a party's neighbours."""
        if neighbour_count < self.threshold:
            raise PrivacyRefusal(
                f"{subject} keeps {neighbour_count} of {self.degree} {self.member_noun}, {self.threshold} are needed",
                "start a new attempt when more parties are present",
            )


@lru_cache(maxsize=16)
def choose_neighbourhood(
    parties: int,
    adversaries: int,
    dropouts: int,
    secrecy_bits: int = SECRECY_BITS,
    recovery_bits: int = RECOVERY_BITS,
) -> Neighbourhood:
    """Returns the least even degree with a threshold that meets the module's three conditions, and the least threshold.

    Raises ConfigurationError if no degree below n - 1 meets them, so that only the complete graph is safe, or no degree
    up to ``LARGEST_DEGREE``.

    >>> best = choose_neighbourhood(1000, 100, 100)
    >>> best.degree, best.threshold
    (96, 67)
    """
    if min(adversaries, dropouts) < 0 or adversaries + dropouts >= parties:
        raise ConfigurationError(
            f"{adversaries} adversaries and {dropouts} dropouts among {parties} parties leave no honest survivor",
            "lower federation.colluders or federation.tolerated_dropouts until at least one is left",
            code="impossible-graph",
        )
    bad_parties = adversaries + dropouts
    for degree in range(2, min(parties - 1, LARGEST_DEGREE + 1), 2):
        draw_ways = math.comb(parties - 1, degree)
        half_degree = degree // 2
        parting_count = parties * math.comb(bad_parties, half_degree)
        part_ways = math.comb(parties, half_degree)
        if parting_count << secrecy_bits > part_ways:
            continue
        hostile_tails = upper_tails(parties - 1, adversaries, degree)
        dropped_tails = upper_tails(parties - 1, dropouts, degree)
        for threshold in range(half_degree + 1, degree + 1):
            expected_exposures = parties * hostile_tails[2 * threshold - degree]
            if expected_exposures << secrecy_bits > draw_ways:
                continue
            expected_stuck = parties * dropped_tails[degree - threshold + 1]
            if expected_stuck << recovery_bits > draw_ways:
                # A higher threshold makes recovery fail still more often, so this degree is too small.
                break
            return Neighbourhood(degree, threshold)
    raise ConfigurationError(
        f"no neighbourhood of {parties} parties withstands {adversaries} adversaries and {dropouts} dropouts "
        f"at 2^-{secrecy_bits} and 2^-{recovery_bits}",
        f"lower federation.colluders or federation.tolerated_dropouts, or plan for at most {COMPLETE_UP_TO} parties, "
        "who use the complete graph",
        code="no-neighbourhood",
    )


def upper_tails(population: int, marked_count: int, draw_count: int) -> list[int]:
    """Returns, for x from 0 to ``draw_count`` + 1, the exact number of ways to draw at least x of ``marked_count``."""
    unmarked_count = population - marked_count
    least_marked = max(0, draw_count - unmarked_count)
    draw_ways = math.comb(marked_count, least_marked) * math.comb(unmarked_count, draw_count - least_marked)
    tail_ways = [0] * (draw_count + 2)
    # Each count follows from the one before it: computing each anew would take ``draws`` times as long.
    for marked_drawn in range(least_marked, draw_count + 1):
        tail_ways[marked_drawn] = draw_ways
        draw_ways = (
            draw_ways
            * (marked_count - marked_drawn)
            * (draw_count - marked_drawn)
            // ((marked_drawn + 1) * (unmarked_count - draw_count + marked_drawn + 1))
        )
    for marked_drawn in range(draw_count, -1, -1):
        tail_ways[marked_drawn] += tail_ways[marked_drawn + 1]
    return tail_ways


def graph_seed(sid: bytes, nonces: Sequence[bytes]) -> bytes:
    """Returns the 32-byte seed of the permutation, H(sid', nonces), from 32-byte nonces of all parties in roster order.

    All parties commit to their nonces before any is revealed, so one honest party suffices to make the seed random.
    Raises InternalError for a nonce of another length.
    """
    if any(len(nonce) != 32 for nonce in nonces):
        raise InternalError("a graph nonce has another length than 32 bytes", code="nonce-length")
    return hashlib.sha256(_SEED + hashlib.sha256(sid).digest() + b"".join(nonces)).digest()


def below(stream: KeyStream, choice_count: int) -> int:
    """Draws an integer of [0, choice_count), uniform and exact.

    It is a little-endian 64-bit word of the stream modulo ``choice_count``; words at or above the largest multiple of
    ``choice_count`` are skipped.
    """
    largest_word = (1 << 64) - (1 << 64) % choice_count
    random_word = largest_word
    while random_word >= largest_word:
        random_word = int.from_bytes(stream.read(8), "little")
    return random_word % choice_count


def permutation(parties: int, seed: bytes) -> tuple[int, ...]:
    """Returns a uniformly random order of 0..n-1 from a 32-byte seed: Fisher-Yates from the top, exact.

    The index below i + 1 is :func:`below` of the seed's stream.
    """
    party_order = list(range(parties))
    stream = KeyStream(seed)
    for last_place in range(parties - 1, 0, -1):
        swapped_place = below(stream, last_place + 1)
        party_order[last_place], party_order[swapped_place] = party_order[swapped_place], party_order[last_place]
    return tuple(party_order)


@lru_cache(maxsize=16)
def survivors_per_run(parties: int, colluders: int, run_length: int) -> int:
    """Returns the least number of survivors on ``run_length`` neighbouring places that surely include an honest party.

    It is the least x with parties * P[at least x colluders in ``run_length`` neighbouring places] < 2^-40.

    >>> survivors_per_run(1000, 100, 48)
    27
    """
    run_ways = math.comb(parties, run_length)
    colluder_tails = upper_tails(parties, colluders, run_length)
    return next(
        survivor_count
        for survivor_count in range(1, run_length + 2)
        if parties * colluder_tails[survivor_count] << SECRECY_BITS <= run_ways
    )


PartiesOf = Callable[[int], frozenset[int]]
"""Party -> other parties, by roster index."""


class MaskGraph:
    """The mask graph of one attempt, as far as its user knows it: an edge joins two parties that share a pairwise mask.

    Args:
        plan: degree and threshold; None for the complete graph.
        holders_of: the holders of shares of a party's secrets: those that it drew (Merkle graph), its neighbours
            (k-regular graph), or all parties and itself (complete graph).
        choosers: the parties of whose secrets a party holds shares; None if they are its holders.
        order: the order of the parties on the circle of the k-regular graph, a permutation of 0..n-1.
        colluders: c, for the runs of places on that circle.
    """

    def __init__(
        self,
        plan: Neighbourhood | None,
        holders_of: PartiesOf,
        choosers: PartiesOf | None = None,
        *,
        order: tuple[int, ...] = (),
        colluders: int = 0,
    ) -> None:
        self._plan = plan
        self._holders_of = holders_of
        self._choosers = choosers or holders_of
        self._order = order
        self._colluders = colluders

    @property
    def complete(self) -> bool:
        """True if every two parties share a mask."""
        return self._plan is None

    def neighbours(self, party: int, present: Collection[int]) -> tuple[int, ...]:
        """Returns the parties in ``present`` that share a mask with ``party``, ascending. A set is fastest."""
        return _sort_present((self._holders_of(party) | self._choosers(party)) - {party}, present)

    def holders(self, dealer: int, present: Collection[int]) -> tuple[int, ...]:
        """Returns the parties in ``present`` that hold shares of ``dealer``'s secrets, ascending."""
        return _sort_present(self._holders_of(dealer), present)

    def dealers(self, holder: int, present: Collection[int]) -> tuple[int, ...]:
        """Returns the parties in ``present`` of whose secrets ``holder`` holds shares, ascending."""
        return _sort_present(self._choosers(holder), present)

    def leads(self, party: int, neighbour: int) -> bool:
        """Returns True if ``party`` deals the secret of its pair with ``neighbour``, whose keys it knows.

        If each holds shares of the other's secrets, the party with the lower roster index deals it.
        """
        return neighbour in self._holders_of(party) and (party < neighbour or neighbour not in self._choosers(party))

    def check(self, party: int, remaining: Collection[int], subject: str) -> None:
        """Raises PrivacyRefusal if too few honest masks protect ``party``'s vector in a sum over ``remaining``.

        Args:
            subject: beginning of the error, which names the set.
        """
        survivors = frozenset(remaining)
        self.check_around(party, survivors, subject)
        self.check_runs(survivors, subject)

    def check_around(self, party: int, remaining: Collection[int], subject: str) -> None:
        """Raises PrivacyRefusal if ``remaining`` has fewer holders of ``party``'s secrets than the threshold."""
        if self._plan is not None:
            self._plan.check(len(self.holders(party, remaining)), subject)

    def check_runs(self, remaining: Collection[int], subject: str) -> None:
        """Raises PrivacyRefusal if a run of degree / 2 places on the circle holds too few of ``remaining``."""
        if self._plan is None or not self._order:
            return
        run_length = self._plan.degree // 2
        least_survivors = survivors_per_run(len(self._order), self._colluders, run_length)
        survival_by_place = [party in remaining for party in self._order]
        survivor_count = sum(survival_by_place[:run_length])
        for run_start in range(len(survival_by_place)):
            if survivor_count < least_survivors:
                raise PrivacyRefusal(
                    f"{subject} leaves {survivor_count} survivors on {run_length} neighbouring places of the mask"
                    f" graph, {least_survivors} are needed",
                    "start a new attempt: a fresh permutation spreads dropouts",
                    code="neighbourhood-too-small",
                )
            run_end = (run_start + run_length) % len(survival_by_place)
            survivor_count += survival_by_place[run_end] - survival_by_place[run_start]


def _sort_present(parties: frozenset[int], present: Collection[int]) -> tuple[int, ...]:
    if isinstance(present, (Set, Mapping)):
        present_set = present
    else:
        present_set = frozenset(present)
    return tuple(sorted([party for party in parties if party in present_set]))


@lru_cache(maxsize=8)
def complete(parties: int) -> MaskGraph:
    """Returns the complete graph, in which every party holds shares of every party's secrets, also of its own."""
    all_parties = frozenset(range(parties))
    return MaskGraph(None, lambda _party: all_parties)


@lru_cache(maxsize=8)
def regular(parties: int, colluders: int, plan: Neighbourhood, seed: bytes) -> MaskGraph:
    """Returns the k-regular graph from a 32-byte seed: a circulant over a permutation of the parties.

    Raises InternalError for a degree that is odd, below 2 or above n - 2.
    """
    if plan.degree % 2 or not 2 <= plan.degree < parties - 1:
        raise InternalError(
            f"degree {plan.degree} among {parties} parties is odd, below 2 or above {parties - 2}",
            code="degree-out-of-range",
        )
    party_order = permutation(parties, seed)
    place_of_party = {party: place for place, party in enumerate(party_order)}
    neighbour_steps = (*range(-plan.degree // 2, 0), *range(1, plan.degree // 2 + 1))

    @cache
    def circle_neighbours(party: int) -> frozenset[int]:
        return frozenset([party_order[(place_of_party[party] + step) % parties] for step in neighbour_steps])

    return MaskGraph(plan, circle_neighbours, order=party_order, colluders=colluders)


def drawn_graph(
    plan: Neighbourhood, drawn: Mapping[int, Collection[int]], choosers: Mapping[int, Collection[int]]
) -> MaskGraph:
    """Returns the Merkle graph as far as known: by party, whom it drew (``drawn``) and who drew it (``choosers``)."""
    holders = {party: frozenset(neighbours) for party, neighbours in drawn.items()}
    dealers = {party: frozenset(neighbours) for party, neighbours in choosers.items()}
    return MaskGraph(plan, holders.__getitem__, dealers.__getitem__)
