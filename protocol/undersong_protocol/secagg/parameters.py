"""The public parameters of one attempt of one private sum, equal at every party and at the coordinator."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np

from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.printable import repeated
from undersong_common.privacy.noise import Law
from undersong_protocol.secagg import keys, merkle, ring
from undersong_protocol.secagg.drawn import MERKLE_ABOVE, Draw, choose_draw
from undersong_protocol.secagg.drawn import merkle as merkle_graph
from undersong_protocol.secagg.graph import (
    COMPLETE_UP_TO,
    MaskGraph,
    Neighbourhood,
    choose_neighbourhood,
    complete,
    regular,
)
from undersong_protocol.secagg.merkle import Tree
from undersong_protocol.secagg.noise_share import NoisePlan, noise_plan
from undersong_protocol.secagg.sid import DIGEST_BYTES, digest
from undersong_protocol.secagg.sid import sid as sid_of

Entropy = Callable[[int], bytes]  # number of bytes -> so many random bytes
IDENTITY_BYTES = 32


@dataclass(frozen=True)
class Member:
    """A party as the manifest lists it: its name and its Ed25519 public key (32 bytes)."""

    name: str
    identity: bytes


@dataclass(frozen=True)
class RosterPart:
    """The members of a roster that a party was shown, beside the Merkle root of all.

    Attributes:
        root: Merkle root of the roster, 32 bytes; the manifest's reader signs it.
        size: n, number of parties.
        members: by roster index: the party itself and those that it requires.
    """

    root: bytes
    size: int
    members: Mapping[int, Member]

    @classmethod
    def opened(cls, root: bytes, size: int, members: Mapping[int, Member], proof: bytes, sender: str) -> "RosterPart":
        """Returns the part after a check that ``members`` are under ``root``.

        Raises:
            ConfigurationError: an index lies outside the roster.
            PeerFault: ``members`` are not under ``root``; it names ``sender``.
        """
        if outside_indices := [index for index in members if not 0 <= index < size]:
            raise ConfigurationError(
                f"the index {outside_indices[0]} of a member lies outside the roster of {size}",
                f"number the members from 0 to {size - 1}",
            )
        member_leaves = {index: member_leaf(index, member) for index, member in members.items()}
        merkle.check("roster", root, size, member_leaves, proof, sender, "the members shown of the roster")
        return cls(root, size, dict(members))

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def __getitem__(self, index: int) -> Member:
        if index not in self.members:
            raise ConfigurationError(
                f"party {index} of the roster was not shown here, only {len(self.members)} of {self.size} parties",
                "use the whole roster of the run's manifest",
                code="roster-part",
            )
        return self.members[index]


def member_leaf(index: int, member: Member) -> bytes:
    """Returns the hash of a member's leaf in the roster's Merkle tree, 32 bytes."""
    return merkle.leaf("member", index, member.name, member.identity)


def defaults(n: int) -> tuple[int, int, int]:
    """Returns the default threshold T, dropouts D and colluders c for n parties (docs/secagg.md, "Manifest").

    >>> [defaults(n) for n in (1, 2, 3, 4, 10)]
    [(1, 0, 0), (2, 0, 0), (2, 1, 0), (3, 1, 1), (6, 1, 1)]
    """
    dropouts = 0 if n <= 2 else 1
    colluders = 1 if n >= 4 else 0
    return default_threshold(n, colluders), dropouts, colluders


def default_threshold(n: int, colluders: int) -> int:
    """Returns T = floor((n + c) / 2) + 1, the least threshold that two disjoint honest groups cannot both reach."""
    return (n + colluders) // 2 + 1


def check_quorum(n: int, t: int, d: int, c: int) -> None:
    """Raises ConfigurationError unless threshold t, dropouts d and colluders c suit n parties (docs/secagg.md)."""
    if min(d, c) < 0:
        raise ConfigurationError(f"tolerated_dropouts {d} and colluders {c} must not be negative")
    if 2 * t <= n + c:
        raise ConfigurationError(
            f"threshold {t} with {n} parties and {c} colluders: two groups could open different sets",
            f"use a threshold of at least {default_threshold(n, c)}",
        )
    if c + 2 * d >= n:
        raise ConfigurationError(
            f"{c} colluders and {d} tolerated dropouts are too many for {n} parties: colluders and twice the dropouts"
            f" must be below {n}",
            "lower tolerated_dropouts or colluders",
        )
    if t > n - d:
        raise ConfigurationError(
            f"threshold {t} is more than the {n - d} parties left after {d} tolerated dropouts",
            "lower tolerated_dropouts or colluders",
        )


def check_graph(n: int, d: int, c: int) -> None:
    """Raises ConfigurationError if n parties need a sparse graph and none withstands d dropouts and c colluders."""
    if merkle_graph(n, d):
        choose_draw(n, c, d)
    elif n > COMPLETE_UP_TO:
        choose_neighbourhood(n, c, d)


@dataclass(frozen=True)
class SumParameters:
    """Public parameters of one attempt at one private sum.

    Attributes:
        manifest_hash: SHA-256 of the manifest that every party signed, 32 bytes.
        run, query: names of the run and of the private sum.
        attempt: number of the attempt, from 0.
        roster: all n parties, in the manifest's order; messages name a party by its index here. At a party of a Merkle
            graph the part of the roster that it knows is enough.
        threshold: T, number of shares, or of signatures, that it takes to open the sum.
        tolerated_dropouts: D; with fewer than n - D survivors nothing is opened.
        colluders: c, parties that may share what they know with the coordinator.
        dimension: d, coordinates of the sum.
        modulus_bits: bits of a coordinate on the wire, 1 to 64 (``ring.modulus_bits``).
        sigma: standard deviation, in integer units, that the honest survivors' noise reaches together; 0.0 only in a
            run without privacy. For ``law`` "laplace" it is sqrt(2) times the Laplace scale.
        graph_above: rosters larger than this use the k-regular graph.
        law: law of the noise, discrete "gaussian" or "laplace" (``NoisePlan``).
        post_quantum: True if channels and masks are hybrid, of X25519 and ML-KEM-768.
        merkle_above: rosters larger than this use the Merkle graph, if dropouts are tolerated.

    Raises ConfigurationError for parameters that docs/secagg.md, "Manifest", refuses.
    """

    manifest_hash: bytes
    run: str
    query: str
    attempt: int
    roster: tuple[Member, ...] | RosterPart
    threshold: int
    tolerated_dropouts: int
    colluders: int
    dimension: int
    modulus_bits: int
    sigma: float
    graph_above: int = COMPLETE_UP_TO
    law: Law = "gaussian"
    post_quantum: bool = True
    merkle_above: int = MERKLE_ABOVE

    def __post_init__(self) -> None:
        n = len(self.roster)
        t = self.threshold
        d = self.tolerated_dropouts
        c = self.colluders
        if len(self.manifest_hash) != DIGEST_BYTES:
            raise ConfigurationError(f"manifest_hash has {len(self.manifest_hash)} bytes, not {DIGEST_BYTES}")
        if not self.run or not self.query or not 0 <= self.attempt < 2**32:
            raise ConfigurationError(
                "a private sum needs a run, a query and an attempt from 0, not run"
                f" {self.run!r}, query {self.query!r} and attempt {self.attempt}"
            )
        if not n:
            raise ConfigurationError("the roster is empty", "list at least one party in the manifest")
        for member in self.roster:
            if len(member.identity) != IDENTITY_BYTES or not member.name:
                raise ConfigurationError(
                    f"the roster's member {member.name!r} has an identity of {len(member.identity)} bytes",
                    f"list each party with its name and an Ed25519 identity of {IDENTITY_BYTES} bytes",
                )
        if isinstance(self.roster, tuple):
            member_count = n
        else:
            member_count = len(self.roster.members)
        if member_count < n and not self.merkle:
            raise ConfigurationError(
                f"{member_count} of {n} members of the roster were given, and only the Merkle graph works with a part",
                "give the whole roster",
            )
        if (
            len({member.name for member in self.roster}) < member_count
            or len({member.identity for member in self.roster}) < member_count
        ):
            repeated_names = repeated(member.name for member in self.roster)
            repeated_keys = [key.hex() for key in repeated(member.identity for member in self.roster)]
            raise ConfigurationError(
                f"the roster lists {[*repeated_names, *repeated_keys][0]} more than once",
                "list each party, and each identity key, once",
            )
        check_quorum(n, t, d, c)
        if not 1 <= self.dimension < 2**31:
            raise ConfigurationError(f"dimension {self.dimension} lies outside 1..2^31-1")
        if not 1 <= self.modulus_bits <= ring.MAXIMUM_BITS:
            raise ConfigurationError(f"modulus_bits {self.modulus_bits} lies outside 1..{ring.MAXIMUM_BITS}")
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise ConfigurationError(f"sigma {self.sigma} is no standard deviation")
        if self.law not in get_args(Law):
            raise ConfigurationError(f"noise law {self.law!r} is unknown", f"use one of {', '.join(get_args(Law))}")
        # Both properties raise here, before anybody makes a key, for shares too small to be drawn and for counts that
        # no graph withstands.
        self.noise_plan  # noqa: B018
        self.graph  # noqa: B018

    @property
    def size(self) -> int:
        """n, number of parties in the roster."""
        return len(self.roster)

    @property
    def quorum(self) -> int:
        """n - D, the least number of survivors for which a sum is opened."""
        return self.size - self.tolerated_dropouts

    @property
    def direct(self) -> bool:
        """True in direct mode: only pairwise masks and no shares, because no dropout is tolerated.

        A single party is not in direct mode: it keeps its self mask, so that its vector too leaves masked and is opened
        in a separate step.
        """
        return self.tolerated_dropouts == 0 and self.size > 1

    @property
    def deals(self) -> bool:
        """True if the attempt has the share-keys round, in which parties deal shares, secrets of pairs, or both."""
        return self.post_quantum or not self.direct

    @property
    def kem_keys_bytes(self) -> int:
        """Bytes of a party's ML-KEM-768 public keys, for channel and mask (in direct mode only mask), or 0."""
        if self.post_quantum:
            return keys.KEM_KEY_BYTES * (1 if self.direct else 2)
        return 0

    @property
    def merkle(self) -> bool:
        """True for the Merkle graph, in which each party draws its neighbours under the root of all adverts."""
        return merkle_graph(self.size, self.tolerated_dropouts, self.merkle_above)

    @cached_property
    def graph(self) -> Neighbourhood | None:
        """Degree and threshold of a sparse mask graph, k-regular or drawn by parties; None if all pairs share masks."""
        if self.merkle:
            return choose_draw(self.size, self.colluders, self.tolerated_dropouts)
        if self.size <= self.graph_above:
            return None
        return choose_neighbourhood(self.size, self.colluders, self.tolerated_dropouts)

    @property
    def share_threshold(self) -> int:
        """Number of shares that reconstruct a secret: T on the complete graph, else the neighbourhood's threshold."""
        if self.graph is None:
            return self.threshold
        return self.graph.threshold

    @property
    def draw(self) -> Draw:
        """Degree, threshold and limits of the Merkle graph. Raises InternalError if the sum has another graph."""
        if not isinstance(self.graph, Draw):
            raise InternalError(f"{self.query}: this sum has no Merkle graph, and so no draw")
        return self.graph

    def topology(self, transcript: bytes) -> MaskGraph:
        """Returns the mask graph; ``transcript`` is the jointly derived 32-byte seed of a k-regular one."""
        if self.graph is None:
            return complete(self.size)
        return regular(self.size, self.colluders, self.graph, transcript)

    @property
    def traits(self) -> frozenset[str]:
        """The attempt's mode as the words that rules in ``transitions`` name, such as "direct" and "hybrid"."""
        return frozenset(
            {
                "complete" if self.graph is None else "graph",
                "direct" if self.direct else "shares",
                "hybrid" if self.post_quantum else "classical",
            }
        )

    @cached_property
    def noise_plan(self) -> NoisePlan:
        """Split of the noise among the parties; it has no components if sigma is 0."""
        assumed_colluders = self.colluders + (self.draw.stray if self.merkle else 0)
        return noise_plan(self.sigma, self.size, self.tolerated_dropouts, assumed_colluders, self.law)

    @property
    def dtype(self) -> np.dtype[np.uint32] | np.dtype[np.uint64]:
        """dtype of the words in which the sum is computed."""
        return ring.ring_dtype(self.modulus_bits)

    @cached_property
    def sid(self) -> bytes:
        """The session id of this attempt, 32 bytes."""
        return sid_of(self.run, self.query, self.attempt, self.manifest_hash)

    @cached_property
    def roster_tree(self) -> Tree:
        """The Merkle tree over all members of the roster, for whoever knows the whole of it."""
        return Tree("roster", [member_leaf(index, member) for index, member in enumerate(self.roster)])

    @cached_property
    def roster_hash(self) -> bytes:
        """SHA-256 over every member's name and identity, in order; for the Merkle graph the roster's Merkle root."""
        if isinstance(self.roster, RosterPart):
            return self.roster.root
        if self.merkle:
            return self.roster_tree.root
        roster_fields: list[bytes | str] = []
        for member in self.roster:
            roster_fields += [member.name, member.identity]
        return digest("roster", *roster_fields)

    @cached_property
    def terms(self) -> bytes:
        """SHA-256 of all public numbers of this attempt, which each party signs in its advert."""
        return digest(
            "terms",
            self.sid,
            self.roster_hash,
            self.threshold,
            self.tolerated_dropouts,
            self.colluders,
            self.dimension,
            self.modulus_bits,
            float(self.sigma).hex(),
            self.graph_above,
            self.law,
            int(self.post_quantum),
            *(("merkle", self.merkle_above) if self.merkle else ()),
        )

    @cached_property
    def _index_by_name(self) -> dict[str, int]:
        numbered_members: Iterable[tuple[int, Member]]
        if isinstance(self.roster, tuple):
            numbered_members = enumerate(self.roster)
        else:
            numbered_members = self.roster.members.items()
        return {member.name: index for index, member in numbered_members}

    def index(self, name: str) -> int:
        """Returns the roster index of a party. Raises ConfigurationError for a name that the manifest does not list."""
        try:
            return self._index_by_name[name]
        except KeyError:
            raise ConfigurationError(f"{name!r} is not in the roster of this sum", "check the manifest") from None

    def name(self, index: int) -> str:
        """Returns the name of the party at a roster index; "party 7" if 7 is beyond the roster, or not shown here."""
        roster_members = self.roster
        if isinstance(roster_members, tuple):
            is_listed = 0 <= index < self.size
        else:
            is_listed = index in roster_members.members
        if is_listed:
            return roster_members[index].name
        return f"party {index}"
