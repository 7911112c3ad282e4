"""The coordinator's side of one attempt: a coroutine that yields requests and is sent the replies that arrived.

It uses no randomness and no clock: the same replies give the same requests and the same sum. So a driver that journals
replies before it sends them in can run the coroutine again after a crash. The coordinator learns the sum of the
survivors' noisy vectors and nothing else, or the coroutine raises :class:`SumAborted` with every fault that it could
attribute to a party.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from undersong_common.arrays import Int64
from undersong_common.errors import PeerFault, PrivacyRefusal, RoundAborted
from undersong_common.printable import counted
from undersong_protocol.secagg import keys, merkle, ring, shamir, sid
from undersong_protocol.secagg.evidence import check_void_certificate, evidence_bytes, is_void
from undersong_protocol.secagg.graph import MaskGraph, drawn_graph, graph_seed
from undersong_protocol.secagg.masking import PAIR_HASH_BYTES, SEALED_PAIR_BYTES, MaskKeys, Sign, add_masks
from undersong_protocol.secagg.messages import (
    Advert,
    Parsed,
    SumAborted,
    advert_leaf,
    advertise_request,
    adverts_to_wire,
    check_fresh,
    chooser_bytes,
    parse_advert,
    parse_drawn,
    parse_reply,
    request_bytes,
    split_blocks,
    to_bitmap,
)
from undersong_protocol.secagg.noise_share import check_opening, remove_opened
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.party_graphs import ROLLS
from undersong_protocol.secagg.transitions import Stage, coordinator_rule
from undersong_protocol.statistics.vectors import Ring
from undersong_protocol.wire.codec import parsed
from undersong_protocol.wire.messages import secagg_pb2 as wire

__all__ = ["SumAborted", "UnmaskedSum", "check_void_certificate", "is_void", "private_sum"]

Checked = TypeVar("Checked")
Requests = Mapping[str, bytes]
Replies = Mapping[str, bytes]


@dataclass(frozen=True, eq=False)
class UnmaskedSum:
    """An opened private sum.

    Attributes:
        values: int64 [d], exact sum of the survivors' integer vectors and noise.
        survivors: names of the parties whose vectors are in the sum, in roster order.
        variance: variance of the noise in ``values``, of all survivors' shares, in squared integer units.
        evidence: the parties' signed statements on the survivors (``evidence.check_evidence``).
        faults: protocol faults that did not end the attempt; the parties at fault were dropped.
    """

    values: Int64 = field(repr=False)
    survivors: tuple[str, ...]
    variance: float
    evidence: bytes = field(repr=False)
    faults: tuple[PeerFault, ...] = ()


@dataclass(frozen=True, repr=False)
class _Dealt:
    """The shares that one party dealt, by the roster index of the holder: encrypted shares, and their hashes.

    ``pairs``, ``pair_hashes``: the sealed secret of the pair with each neighbour of a higher index, and its hash.
    """

    sealed: dict[int, bytes]
    hashes: dict[int, bytes]
    pairs: dict[int, bytes]
    pair_hashes: dict[int, bytes]


def private_sum(parameters: SumParameters, question: Callable[[], bytes]) -> Generator[Requests, Replies, UnmaskedSum]:
    """Runs one attempt: yields {party: request} per round, is sent {party: reply}, and returns the opened sum.

    A party that is missing from the replies has dropped out for good.

    Args:
        question: returns q, the digest (32 bytes) of the public inputs that every party was sent (``public.question``).
            It is called after the masked vectors have come, so that an attempt can begin before its inputs are known.

    Raises SumAborted (a RoundAborted) if fewer parties are left than ``transitions.COORDINATOR_RULES`` needs, or if a
    reconstructed secret is wrong.
    """
    attempt = _Attempt(parameters, question)
    return (yield from attempt.run())


class _RequestsByParty(Mapping[str, bytes]):
    """Requests that differ by party, each made when it is looked up: ten thousand at once would fill the memory."""

    def __init__(self, parties: Mapping[str, int], request: Callable[[int], bytes]) -> None:
        self._parties = parties
        self._request = request

    def __getitem__(self, name: str) -> bytes:
        return self._request(self._parties[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._parties)

    def __len__(self) -> int:
        return len(self._parties)


class _Attempt:
    def __init__(self, parameters: SumParameters, question: Callable[[], bytes]) -> None:
        self._parameters = parameters
        self._question = question
        self._faults: list[PeerFault] = []

    def run(self) -> Generator[Requests, Replies, UnmaskedSum]:
        parameters = self._parameters
        replies = yield dict.fromkeys((member.name for member in parameters.roster), advertise_request(parameters))
        adverts_and_keys = self._read_adverts(replies)
        adverts = {party: advert for party, (advert, _) in adverts_and_keys.items()}
        kem_keys = {party: kem_key for party, (_, kem_key) in adverts_and_keys.items()}
        del replies, adverts_and_keys
        signed_adverts = adverts_to_wire(adverts.values())
        joined_nonces: bytes = b""
        present_parties = tuple(adverts)
        topology: MaskGraph
        advert_tree: merkle.Tree | None = None
        if parameters.merkle:
            advert_tree = merkle.Tree(
                "adverts", [advert_leaf(adverts.get(party), party) for party in range(parameters.size)]
            )
            present_parties, topology, transcript = yield from self._collect_draws(adverts, advert_tree)
        else:
            advert_bodies = ((party, advert.body) for party, advert in adverts.items())
            transcript = sid.adverts_hash(parameters.sid, parameters.terms, advert_bodies)
            if parameters.graph is not None:
                present_parties, joined_nonces, transcript = yield from self._collect_nonces(
                    adverts, signed_adverts, transcript
                )
                signed_adverts = []
            topology = parameters.topology(transcript)
        if parameters.merkle:
            share_holders: Collection[int] = frozenset(adverts)
        else:
            share_holders = present_parties

        dealt_by_party: dict[int, _Dealt] = {}
        sharers = present_parties
        if parameters.deals:
            if advert_tree is not None:
                replies = yield self._make_merkle_share_requests(
                    topology, present_parties, adverts, kem_keys, advert_tree
                )
            else:
                replies = yield self._make_share_requests(
                    topology, present_parties, kem_keys, signed_adverts, joined_nonces
                )
            dealt_by_party = self._collect_replies(
                Stage.SHARE, replies, present_parties, partial(self._parse_shares, topology, share_holders)
            )
            sharers = tuple(dealt_by_party)
            del replies
            self._check_reachable(Stage.SHARE, topology, sharers, sharers)
            signed_adverts, joined_nonces = [], b""
        del kem_keys, advert_tree

        replies = yield self._make_mask_requests(topology, sharers, dealt_by_party, signed_adverts, joined_nonces)
        masked_total, survivors = self._add_up(replies, sharers)
        del replies
        self._check_reachable(Stage.MASK, topology, sharers, survivors)
        question = self._question()

        unmask_request = request_bytes(
            parameters, consistency=wire.ConsistencyRequest(survivors=to_bitmap(survivors, parameters.size))
        )
        replies = yield self._request_to_all(survivors, unmask_request)
        statement_body = sid.opened_set(
            transcript, question, to_bitmap(sharers, parameters.size), to_bitmap(survivors, parameters.size)
        )
        earlier_fault_count = len(self._faults)
        signatures = self._collect_replies(
            Stage.CONSISTENCY, replies, survivors, partial(self._parse_statement, statement_body)
        )
        if parameters.direct and len(self._faults) > earlier_fault_count:
            # In direct mode no mask is opened, so a vector that answers another question would leave masks in the sum.
            raise self._abort_error(
                Stage.CONSISTENCY, "a party signed another question or other sets of parties than were asked of all"
            )
        evidence_message = evidence_bytes(parameters, transcript, question, sharers, survivors, signatures)
        dropped_count = parameters.size - len(survivors)
        unopened_count = 0
        if not parameters.direct:
            replies = yield self._make_unmask_requests(topology, signatures)
            openings = self._collect_replies(
                Stage.UNMASK,
                replies,
                signatures,
                self._make_opening_parser(topology, transcript, sharers, survivors, dealt_by_party),
            )
            if parameters.merkle:
                mask_context = sid.masked_among(question, to_bitmap(sharers, parameters.size))
            else:
                mask_context = question
            self._remove_masks(
                masked_total, topology, (transcript, mask_context), adverts, dealt_by_party, survivors, openings
            )
            unopened_count = self._remove_noise(masked_total, adverts, survivors, openings, dropped_count)
        return UnmaskedSum(
            values=ring.to_signed(masked_total, parameters.modulus_bits),
            survivors=tuple(map(parameters.name, survivors)),
            variance=float(parameters.noise_plan.opened_variance(dropped_count, unopened_count)),
            evidence=evidence_message,
            faults=tuple(self._faults),
        )

    # --- rounds -----------------------------------------------------------------------------------------------------

    def _read_adverts(self, replies: Replies) -> dict[int, tuple[Advert, bytes]]:
        """Returns valid adverts and ML-KEM keys by party. Of two parties with the same key the later is left out."""
        used_values: set[bytes] = set()

        def parse(party: int, reply: Parsed) -> tuple[Advert, bytes]:
            party_name = self._parameters.name(party)
            advert = parse_advert(self._parameters, party, reply.body, reply.signature)
            for key_number, expected_hash in enumerate(filter(None, (advert.keys.channel_kem, advert.keys.mask_kem))):
                keys.check_kem_key(
                    party_name,
                    reply.kem_keys[key_number * keys.KEM_KEY_BYTES : (key_number + 1) * keys.KEM_KEY_BYTES],
                    expected_hash,
                )
            check_fresh(party_name, advert, used_values)
            return advert, reply.kem_keys

        return self._collect_replies(Stage.ADVERTISE, replies, range(self._parameters.size), parse)

    def _collect_nonces(
        self, adverts: dict[int, Advert], signed_adverts: list[wire.SignedAdvert], adverts_hash: bytes
    ) -> Generator[Requests, Replies, tuple[tuple[int, ...], bytes, bytes]]:
        """Returns (parties that revealed their nonce, the nonces, the graph's seed).

        If a party does not reveal, the others reveal further nonces without it, at most ``ROLLS`` times.
        """
        parameters = self._parameters
        present_parties = tuple(adverts)
        for roll_number in range(ROLLS):
            bitmap = to_bitmap(present_parties, parameters.size)
            reveal_request = request_bytes(
                parameters, reveal=wire.RevealRequest(roll=roll_number, adverts=signed_adverts, present=bitmap)
            )
            replies = yield self._request_to_all(present_parties, reveal_request)

            def parse(party: int, reply: Parsed, roll: int = roll_number) -> bytes:
                party_name = parameters.name(party)
                reply_body = reply.body
                if (
                    len(reply_body) != sid.DIGEST_BYTES
                    or sid.advance(reply_body, roll + 1) != adverts[party].keys.nonce_commitment
                ):
                    raise PeerFault(party_name, "its nonce is not the one it committed to")
                return reply_body

            nonce_by_party = self._collect_replies(Stage.REVEAL, replies, present_parties, parse)
            if len(nonce_by_party) == len(present_parties):
                nonce_values = list(nonce_by_party.values())
                seed = graph_seed(sid.roll_hash(adverts_hash, roll_number, bitmap), nonce_values)
                return present_parties, b"".join(nonce_values), seed
            present_parties = tuple(nonce_by_party)
            signed_adverts = []
        raise self._abort_error(Stage.REVEAL, f"in each of {ROLLS} attempts to reveal all nonces a party dropped out")

    def _collect_draws(
        self, adverts: dict[int, Advert], tree: merkle.Tree
    ) -> Generator[Requests, Replies, tuple[tuple[int, ...], MaskGraph, bytes]]:
        """Returns (parties that drew neighbours, the Merkle graph, its transcript)."""
        parameters = self._parameters
        bitmap = to_bitmap(adverts, parameters.size)

        def request(party: int) -> bytes:
            path = tree.proof(merkle.places(parameters.size, [party]))
            return request_bytes(parameters, reveal=wire.RevealRequest(present=bitmap, root=tree.root, path=path))

        replies = yield self._make_requests(adverts, request)
        draws = self._collect_replies(
            Stage.REVEAL, replies, adverts, lambda party, reply: parse_drawn(parameters, party, reply.body)
        )
        choosers_by_party: dict[int, list[int]] = defaultdict(list)
        for party, neighbours in draws.items():
            for neighbour in neighbours:
                choosers_by_party[neighbour].append(party)
        mask_graph = drawn_graph(parameters.draw, draws, {party: choosers_by_party[party] for party in draws})
        return tuple(draws), mask_graph, sid.rooted_hash(parameters.sid, parameters.terms, tree.root, bitmap)

    def _make_merkle_share_requests(
        self,
        topology: MaskGraph,
        present: tuple[int, ...],
        adverts: Mapping[int, Advert],
        kem_keys: Mapping[int, bytes],
        tree: merkle.Tree,
    ) -> Requests:
        """Returns share-keys requests of the Merkle graph: proven keys of drawn parties, and keys of choosers."""
        parameters = self._parameters
        signed_by_party = {entry.party: entry for entry in adverts_to_wire(adverts.values())}
        chooser_blocks = {party: chooser_bytes(adverts[party]) for party in present}
        enrolled_members = [wire.Enrolled(name=member.name, identity=member.identity) for member in parameters.roster]

        def request(party: int) -> bytes:
            holders = topology.holders(party, adverts)
            proof_places = merkle.places(parameters.size, holders)
            return request_bytes(
                parameters,
                share=wire.ShareRequest(
                    adverts=map(signed_by_party.__getitem__, holders),
                    adverts_proof=tree.proof(proof_places),
                    roster=map(enrolled_members.__getitem__, holders),
                    roster_proof=parameters.roster_tree.proof(proof_places),
                    choosers=b"".join(map(chooser_blocks.__getitem__, topology.dealers(party, chooser_blocks))),
                    kem_keys=b"".join(map(kem_keys.__getitem__, holders)),
                ),
            )

        return self._make_requests(present, request)

    def _make_unmask_requests(self, topology: MaskGraph, signatures: Mapping[int, bytes]) -> Requests:
        """Returns requests that show a party the T signatures on U3, the survivors, that it needs, and no more."""
        parameters = self._parameters

        def request(signers: Iterable[int]) -> bytes:
            shown_signatures = {party: signatures[party] for party in signers}
            bitmap = to_bitmap(shown_signatures, parameters.size)
            return request_bytes(
                parameters, unmask=wire.UnmaskRequest(signers=bitmap, signatures=b"".join(shown_signatures.values()))
            )

        if not parameters.merkle:
            return self._request_to_all(signatures, request(list(signatures)[: parameters.threshold]))
        drawn_signers = {
            party: topology.holders(party, signatures)[: parameters.share_threshold] for party in signatures
        }
        shown_signers = [party for party in signatures if len(drawn_signers[party]) == parameters.share_threshold]
        return self._make_requests(shown_signers, lambda party: request(drawn_signers[party]))

    def _make_share_requests(
        self,
        topology: MaskGraph,
        present: tuple[int, ...],
        kem_keys: Mapping[int, bytes],
        signed_adverts: list[wire.SignedAdvert],
        nonces: bytes,
    ) -> dict[str, bytes]:
        """Returns share-keys requests, equal for all but for neighbours' ML-KEM keys on the k-regular graph."""
        parameters = self._parameters

        def request(holders: Iterable[int]) -> bytes:
            key_blocks = b"".join(map(kem_keys.__getitem__, holders))
            return request_bytes(
                parameters, share=wire.ShareRequest(adverts=signed_adverts, nonces=nonces, kem_keys=key_blocks)
            )

        if topology.complete or not parameters.post_quantum:
            return self._request_to_all(present, request(present))
        return {
            parameters.name(party_index): request(topology.holders(party_index, present)) for party_index in present
        }

    def _make_mask_requests(
        self,
        topology: MaskGraph,
        sharers: tuple[int, ...],
        dealt_by_party: Mapping[int, _Dealt],
        signed_adverts: list[wire.SignedAdvert],
        nonces: bytes,
    ) -> Requests:
        parameters = self._parameters
        bitmap = to_bitmap(sharers, parameters.size)
        sharer_set = frozenset(sharers)

        def request(party_index: int) -> bytes:
            if parameters.deals:
                neighbours = topology.neighbours(party_index, sharer_set)
            else:
                neighbours = ()
            dealers: list[int] = []
            if not parameters.direct:
                dealers = [dealer for dealer in topology.dealers(party_index, sharer_set) if dealer != party_index]
            lower_neighbours: list[int] = []
            if parameters.post_quantum:
                lower_neighbours = [dealer for dealer in neighbours if topology.leads(dealer, party_index)]
            return request_bytes(
                parameters,
                mask=wire.MaskRequest(
                    adverts=signed_adverts,
                    nonces=nonces,
                    sharers=bitmap,
                    ciphertexts=b"".join(dealt_by_party[dealer].sealed[party_index] for dealer in dealers),
                    hashes=b"".join(dealt_by_party[dealer].hashes[party_index] for dealer in dealers),
                    pairs=b"".join(dealt_by_party[dealer].pairs[party_index] for dealer in lower_neighbours),
                    pair_hashes=b"".join(
                        dealt_by_party[dealer].pair_hashes[party_index] for dealer in lower_neighbours
                    ),
                ),
            )

        return self._make_requests(sharers, request)

    def _add_up(self, replies: Replies, sharers: tuple[int, ...]) -> tuple[Ring, tuple[int, ...]]:
        """Returns the sum of the masked vectors and the parties that sent them (U3); unpacks one vector at a time."""
        parameters = self._parameters
        ring_total: Ring = np.zeros(parameters.dimension, dtype=parameters.dtype)

        def parse(party: int, reply: Parsed) -> bool:
            masked_words = ring.unpack(
                reply.body, parameters.modulus_bits, parameters.dimension, parameters.name(party)
            )
            np.add(ring_total, masked_words, out=ring_total)
            return True

        return ring_total, tuple(self._collect_replies(Stage.MASK, replies, sharers, parse))

    def _remove_masks(
        self,
        masked_total: Ring,
        topology: MaskGraph,
        mask_binding: tuple[bytes, bytes],
        adverts: Mapping[int, Advert],
        dealt_by_party: Mapping[int, _Dealt],
        survivors: tuple[int, ...],
        openings: Mapping[int, tuple[dict[int, bytes], bytes]],
    ) -> None:
        """Takes every mask out of ``masked_total``: the survivors' self masks, the dropped parties' pairwise ones.

        Args:
            masked_total: sum of the masked vectors, ring words [d], changed in place.
            mask_binding: transcript and q (Merkle graph: ``sid.masked_among``), to which pairwise masks are bound.
            dealt_by_party: the shares that each party in U2 dealt.
        """
        parameters = self._parameters
        survivor_set = set(survivors)
        masks: list[tuple[bytes, Sign]] = []
        weights_by_points: dict[tuple[int, ...], dict[int, int]] = {}
        for party in dealt_by_party:
            mask_secret = self._combine_shares(party, topology.holders(party, openings), openings, weights_by_points)
            if party in survivor_set:
                if keys.self_mask_commitment(parameters.sid, party, mask_secret) != adverts[party].keys.commitment:
                    raise self._record_false_dealer(party, "self-mask seed")
                masks.append((mask_secret, -1))
                continue
            mask_keys = MaskKeys(mask_secret, parameters.post_quantum)
            if mask_keys.public != adverts[party].keys.mask_key:
                raise self._record_false_dealer(party, "mask key")
            if parameters.post_quantum and keys.kem_key_hash(mask_keys.kem.public) != adverts[party].keys.mask_kem:
                raise self._record_false_dealer(party, "mask key (ML-KEM-768)")
            for neighbour in topology.neighbours(party, survivor_set):
                shared_secret = mask_keys.agreed(parameters.name(neighbour), adverts[neighbour].keys.mask_key)
                if parameters.post_quantum:
                    if topology.leads(party, neighbour):
                        dealer, holder = party, neighbour
                    else:
                        dealer, holder = neighbour, party
                    shared_secret += self._rebuild_pair_secret(
                        mask_binding[0], mask_keys, shared_secret, dealer, holder, party == dealer, dealt_by_party
                    )
                # A neighbour with the lower index added the mask, one with the higher subtracted it: this undoes it.
                masks.append(
                    (keys.mask_key(*mask_binding, shared_secret, party, neighbour), -1 if neighbour < party else 1)
                )
        add_masks(masked_total, masks)

    def _rebuild_pair_secret(
        self,
        transcript: bytes,
        mask_keys: MaskKeys,
        x25519_secret: bytes,
        dealer: int,
        holder: int,
        dealer_dropped: bool,
        dealt_by_party: Mapping[int, _Dealt],
    ) -> bytes:
        """Rebuilds the secret of a dropped party's pair with a survivor from the dropped party's seed alone."""
        pair_hash = dealt_by_party[dealer].pair_hashes[holder]
        pair_secret: bytes | None
        if dealer_dropped:
            pair_secret = mask_keys.pair_secret(transcript, holder)
        else:
            pair_secret = mask_keys.open_pair(
                transcript, x25519_secret, dealer, holder, dealt_by_party[dealer].pairs[holder], pair_hash
            )
        if pair_secret is None or keys.ShareHasher(transcript).one("pair", dealer, holder, pair_secret) != pair_hash:
            raise self._record_false_dealer(dealer, f"secret of its pair with {self._parameters.name(holder)}")
        return pair_secret

    def _combine_shares(
        self,
        dealer: int,
        holders: tuple[int, ...],
        openings: Mapping[int, tuple[dict[int, bytes], bytes]],
        weights: dict[tuple[int, ...], dict[int, int]],
    ) -> bytes:
        threshold = self._parameters.share_threshold
        if len(holders) < threshold:
            raise self._abort_error(
                Stage.UNMASK,
                f"{len(holders)} valid shares of a secret of {self._parameters.name(dealer)}, {threshold} are needed",
            )
        share_points = tuple(holder + 1 for holder in holders[:threshold])
        if share_points not in weights:
            weights[share_points] = shamir.lagrange_weights(share_points)
        share_by_point = {point: openings[point - 1][0][dealer] for point in share_points}
        try:
            return shamir.combine(share_by_point, threshold, weights[share_points])
        except (RoundAborted, PeerFault):
            # Every share matches the hash that its dealer signed, so the dealer and not a holder is at fault.
            raise self._record_false_dealer(dealer, "secret") from None

    def _remove_noise(
        self,
        masked_total: Ring,
        adverts: Mapping[int, Advert],
        survivors: tuple[int, ...],
        openings: Mapping[int, tuple[dict[int, bytes], bytes]],
        dropped_count: int,
    ) -> int:
        """Takes the opened excess noise out of ``masked_total``. Returns the number of survivors whose excess stays."""
        noise_plan = self._parameters.noise_plan
        if not noise_plan.opened_components(dropped_count):
            return 0
        unopened_count = 0
        for party in survivors:
            opened_value = b""
            if party in openings:
                opened_value = openings[party][1]
            try:
                check_opening(
                    opened_value,
                    noise_plan,
                    dropped_count,
                    adverts[party].keys.noise_anchor,
                    self._parameters.name(party),
                )
            except PeerFault as fault:
                unopened_count += 1
                if party in openings:
                    self._faults.append(fault)
                continue
            remove_opened(masked_total, noise_plan, dropped_count, opened_value)
        return unopened_count

    # --- what a reply must be ---------------------------------------------------------------------------------------

    def _parse_shares(self, topology: MaskGraph, present: Collection[int], party: int, reply: Parsed) -> _Dealt:
        parameters = self._parameters
        party_name = parameters.name(party)
        message = parsed(wire.Shares, reply.body, party_name, "its shares are malformed")
        holders = () if parameters.direct else topology.holders(party, present)
        other_holders = [holder for holder in holders if holder != party]
        if parameters.post_quantum:
            neighbours = topology.neighbours(party, present)
        else:
            neighbours = ()
        higher_neighbours = [neighbour for neighbour in neighbours if topology.leads(party, neighbour)]
        ciphertext_bytes = keys.SEALED_BYTES + (keys.CIPHERTEXT_BYTES if parameters.post_quantum else 0)
        sealed_shares = split_blocks(
            message.ciphertexts, ciphertext_bytes, len(other_holders), party_name, "its encrypted shares"
        )
        hashes_of_shares = split_blocks(
            message.hashes, 2 * keys.SHARE_HASH_BYTES, len(holders), party_name, "its hashes of shares"
        )
        sealed_pairs = split_blocks(
            message.pairs, SEALED_PAIR_BYTES, len(higher_neighbours), party_name, "its encrypted pair secrets"
        )
        pair_hashes = split_blocks(
            message.pair_hashes,
            PAIR_HASH_BYTES,
            len(higher_neighbours),
            party_name,
            "its hashes of pair secrets",
        )
        return _Dealt(
            dict(zip(other_holders, sealed_shares, strict=True)),
            dict(zip(holders, hashes_of_shares, strict=True)),
            dict(zip(higher_neighbours, sealed_pairs, strict=True)),
            dict(zip(higher_neighbours, pair_hashes, strict=True)),
        )

    def _parse_statement(self, statement: bytes, party: int, reply: Parsed) -> bytes:
        if reply.body != statement:
            raise PeerFault(
                self._parameters.name(party), "signed another question, or other sets of parties, than were sent to it"
            )
        return reply.signature

    def _make_opening_parser(
        self,
        topology: MaskGraph,
        transcript: bytes,
        sharers: tuple[int, ...],
        survivors: tuple[int, ...],
        dealt_by_party: Mapping[int, _Dealt],
    ) -> Callable[[int, Parsed], tuple[dict[int, bytes], bytes]]:
        parameters = self._parameters
        survivor_set = set(survivors)
        sharer_set = frozenset(sharers)
        hasher = keys.ShareHasher(transcript)

        def parse(party: int, reply: Parsed) -> tuple[dict[int, bytes], bytes]:
            party_name = parameters.name(party)
            message = parsed(wire.Opening, reply.body, party_name, "its opened shares are malformed")
            dealers = topology.dealers(party, sharer_set)
            opened_shares = split_blocks(
                message.shares, shamir.SHARE_BYTES, len(dealers), party_name, "its opened shares"
            )
            for dealer, share in zip(dealers, opened_shares, strict=True):
                share_hashes = dealt_by_party[dealer].hashes[party]
                if dealer in survivor_set:
                    share_kind = "self"
                    expected_hash = share_hashes[: keys.SHARE_HASH_BYTES]
                else:
                    share_kind = "mask"
                    expected_hash = share_hashes[keys.SHARE_HASH_BYTES :]
                if hasher.one(share_kind, dealer, party, share) != expected_hash:
                    raise PeerFault(
                        party_name,
                        f"opened a wrong {share_kind} share of {parameters.name(dealer)}: not the one whose hash was"
                        " dealt",
                    )
            return dict(zip(dealers, opened_shares, strict=True)), message.noise_chain

        return parse

    # --- common -----------------------------------------------------------------------------------------------------

    def _collect_replies(
        self,
        stage: Stage,
        replies: Replies,
        parties: Iterable[int],
        parse: Callable[[int, Parsed], Checked],
    ) -> dict[int, Checked]:
        """Returns the valid replies by party, ascending, and keeps the others' faults.

        Raises SumAborted if fewer are valid than ``transitions.COORDINATOR_RULES`` needs.
        """
        parameters = self._parameters
        result_by_party: dict[int, Checked] = {}
        for party in parties:
            payload = replies.get(parameters.name(party))
            if payload is None:
                continue
            try:
                result_by_party[party] = parse(party, parse_reply(parameters, parameters.name(party), payload, stage))
            except PeerFault as fault:
                self._faults.append(fault)
        rule_need = coordinator_rule(stage, parameters.traits).need
        least_replies = {"n - D": parameters.quorum, "T": parameters.threshold, "n": parameters.size, "0": 0}[rule_need]
        if len(result_by_party) < least_replies:
            remaining_words = counted(len(result_by_party), "party is", "parties are")
            raise self._abort_error(stage, f"{remaining_words} left and {rule_need} = {least_replies} are needed")
        return result_by_party

    def _check_reachable(
        self, stage: Stage, topology: MaskGraph, dealers: Iterable[int], holders: Collection[int]
    ) -> None:
        """Raises SumAborted if parties would refuse the set ``holders``, or could not recover a dealer's secrets."""
        remaining_holders = set(holders)
        try:
            topology.check_runs(remaining_holders, "the sum")
            for dealer in dealers:
                topology.check_around(dealer, remaining_holders, f"the sum (for {self._parameters.name(dealer)})")
        except PrivacyRefusal as refusal:
            raise self._abort_error(stage, refusal.problem) from None

    def _make_requests(self, parties: Iterable[int], request: Callable[[int], bytes]) -> Requests:
        return _RequestsByParty({self._parameters.name(party): party for party in parties}, request)

    def _request_to_all(self, parties: Iterable[int], request: bytes) -> dict[str, bytes]:
        return dict.fromkeys(map(self._parameters.name, parties), request)

    def _record_false_dealer(self, dealer: int, secret_name: str) -> SumAborted:
        dealer_name = self._parameters.name(dealer)
        self._faults.append(PeerFault(dealer_name, f"dealt shares of another {secret_name} than it committed to"))
        return self._abort_error(Stage.UNMASK, f"the {secret_name} of {dealer_name} does not match its advert")

    def _abort_error(self, stage: Stage, problem: str) -> SumAborted:
        return SumAborted(
            stage.title,
            problem,
            "start a new attempt (fresh keys, noise and shares) when the parties named are back or left out",
            tuple(self._faults),
        )
