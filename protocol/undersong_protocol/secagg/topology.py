"""The mask and share graph of an attempt, and the sets of survivors that a party accepts on it.

A lying coordinator sees the k-regular graph before it says who dropped out, so dropouts may sit in the worst places.
Two rules that every party checks by itself keep the failure probability of ``graph`` all the same:

* a party wants at least the threshold of its own neighbours among the survivors;
* each run of k/2 neighbouring places on the circle holds more survivors than colluders can be there (n P[X >= bound]
  below 2^-40, X the colluders in such a run), so an honest survivor is among them and the honest survivors hang
  together: no part of the sum has masks of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from functools import lru_cache

from undersong_common.errors import PrivacyRefusal
from undersong_protocol.secagg.graph import SECRECY_BITS, Graph, Neighbourhood, choose_neighbourhood, permutation


@lru_cache(maxsize=16)
def neighbourhood(parties: int, colluders: int, dropouts: int) -> Neighbourhood:
    """:func:`graph.choose_neighbourhood`, computed once for a roster."""
    return choose_neighbourhood(parties, colluders, dropouts)


@lru_cache(maxsize=16)
def survivors_per_run(parties: int, colluders: int, run: int) -> int:
    """The least x with parties * P[at least x colluders in ``run`` neighbouring places] < 2^-40.

    So many survivors in the run contain an honest party, but for that chance.

    >>> survivors_per_run(1000, 100, 48)
    27
    """
    ways = math.comb(parties, run)
    tail = 0
    for count in range(run, 0, -1):
        tail += math.comb(colluders, count) * math.comb(parties - colluders, run - count)
        if parties * tail << SECRECY_BITS > ways:
            return count + 1
    return 1


class Topology:
    """The mask graph of one attempt over the whole roster; public."""

    def __init__(self, parties: int, colluders: int, plan: Neighbourhood | None, order: tuple[int, ...]) -> None:
        self._graph = Graph.complete(parties) if plan is None else Graph(order, plan.degree)
        self._plan = plan
        self._order = order
        self._colluders = colluders

    @classmethod
    def of(cls, parties: int, colluders: int, plan: Neighbourhood | None, seed: bytes) -> Topology:
        """The complete graph, or the k-regular one of a 32-byte seed; cached, for it is the same at every party."""
        return _topology(parties, colluders, plan, b"" if plan is None else seed)

    @property
    def complete(self) -> bool:
        """True if everybody masks with everybody."""
        return self._plan is None

    def neighbours(self, party: int, among: Collection[int]) -> tuple[int, ...]:
        """Those of ``among`` with whom ``party`` has a mask, ascending, itself left out. A set is fastest."""
        if self._plan is None:
            return tuple(sorted(other for other in among if other != party))
        kept = among if isinstance(among, (Set, Mapping)) else frozenset(among)
        return tuple(other for other in self._graph.neighbours(party) if other in kept)

    def holders(self, dealer: int, among: Collection[int]) -> tuple[int, ...]:
        """Holders of ``dealer``'s shares: its neighbours, and on the complete graph itself too; ascending."""
        if self._plan is None:
            return tuple(sorted(among))
        return self.neighbours(dealer, among)

    def check(self, party: int, remaining: Collection[int], what: str) -> None:
        """Raise PrivacyRefusal where ``remaining`` would leave ``party``'s vector too few honest masks."""
        kept = frozenset(remaining)
        self.check_around(party, kept, what)
        self.check_runs(kept, what)

    def check_around(self, party: int, remaining: Collection[int], what: str) -> None:
        """The first rule: enough neighbours of one party."""
        if self._plan is None:
            return
        around = len(self.neighbours(party, remaining))
        if around < self._plan.threshold:
            raise PrivacyRefusal(
                f"{what} keeps {around} of {self._plan.degree} neighbours, {self._plan.threshold} are needed",
                "start a new attempt when more parties are present",
            )

    def check_runs(self, remaining: Collection[int], what: str) -> None:
        """The second rule: enough survivors on every run of k/2 places."""
        if self._plan is None:
            return
        run = self._plan.degree // 2
        needed = survivors_per_run(len(self._order), self._colluders, run)
        alive = [place in remaining for place in self._order]
        inside = sum(alive[:run])
        for start in range(len(alive)):
            if inside < needed:
                raise PrivacyRefusal(
                    f"{what} leaves {inside} survivors on {run} neighbouring places of the mask graph, {needed} are "
                    "needed",
                    "start a new attempt: a fresh permutation spreads dropouts",
                    code="neighbourhood-too-small",
                )
            inside += alive[(start + run) % len(alive)] - alive[start]


@lru_cache(maxsize=8)
def _topology(parties: int, colluders: int, plan: Neighbourhood | None, seed: bytes) -> Topology:
    return Topology(parties, colluders, plan, tuple(range(parties)) if plan is None else permutation(parties, seed))
