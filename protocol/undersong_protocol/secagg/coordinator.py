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
    """The shares that one party dealt: a block of ciphertext and one of hashes for each holder.

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
    """Requests that differ by party, each made when it is looked up: all of ten thousand together fill a memory."""

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
        found_adverts = self._read_adverts(replies)
        adverts = {party: advert for party, (advert, _) in found_adverts.items()}
        kem_keys = {party: kem_key for party, (_, kem_key) in found_adverts.items()}
        del replies, found_adverts
        signed = adverts_to_wire(adverts.values())
        nonces: bytes = b""
        present = tuple(adverts)
        topology: MaskGraph
        tree: merkle.Tree | None = None
        if parameters.merkle:
            tree = merkle.Tree("adverts", [advert_leaf(adverts.get(party), party) for party in range(parameters.size)])
            present, topology, transcript = yield from self._collect_draws(adverts, tree)
        else:
            bodies = ((party, advert.body) for party, advert in adverts.items())
            transcript = sid.adverts_hash(parameters.sid, parameters.terms, bodies)
            if parameters.graph is not None:
                present, nonces, transcript = yield from self._collect_nonces(adverts, signed, transcript)
                signed = []
            topology = parameters.topology(transcript)
        if parameters.merkle:
            holding: Collection[int] = frozenset(adverts)
        else:
            holding = present

        dealt: dict[int, _Dealt] = {}
        sharers = present
        if parameters.deals:
            if tree is not None:
                replies = yield self._leaf_requests(topology, present, adverts, kem_keys, tree)
            else:
                replies = yield self._share_requests(topology, present, kem_keys, signed, nonces)
            dealt = self._collect_replies(Stage.SHARE, replies, present, partial(self._parse_shares, topology, holding))
            sharers = tuple(dealt)
            del replies
            self._check_reachable(Stage.SHARE, topology, sharers, sharers)
            signed, nonces = [], b""
        del kem_keys, tree

        replies = yield self._mask_requests(topology, sharers, dealt, signed, nonces)
        total, survivors = self._add_up(replies, sharers)
        del replies
        self._check_reachable(Stage.MASK, topology, sharers, survivors)
        question = self._question()

        request = request_bytes(
            parameters, consistency=wire.ConsistencyRequest(survivors=to_bitmap(survivors, parameters.size))
        )
        replies = yield self._request_to_all(survivors, request)
        statement = sid.opened_set(
            transcript, question, to_bitmap(sharers, parameters.size), to_bitmap(survivors, parameters.size)
        )
        faults_before = len(self._faults)
        signatures = self._collect_replies(
            Stage.CONSISTENCY, replies, survivors, partial(self._parse_statement, statement)
        )
        if parameters.direct and len(self._faults) > faults_before:
            # Nobody's mask is opened here, so a vector of another question would leave its masks in the sum.
            raise self._abort_error(Stage.CONSISTENCY, "a party does not sign what was asked of all")
        evidence = evidence_bytes(parameters, transcript, question, sharers, survivors, signatures)
        dropped = parameters.size - len(survivors)
        unopened = 0
        if not parameters.direct:
            replies = yield self._unmask_requests(topology, signatures)
            openings = self._collect_replies(
                Stage.UNMASK, replies, signatures, self._parse_opening(topology, transcript, sharers, survivors, dealt)
            )
            if parameters.merkle:
                masked = sid.masked_among(question, to_bitmap(sharers, parameters.size))
            else:
                masked = question
            self._remove_masks(total, topology, (transcript, masked), adverts, dealt, survivors, openings)
            unopened = self._remove_noise(total, adverts, survivors, openings, dropped)
        return UnmaskedSum(
            values=ring.to_signed(total, parameters.modulus_bits),
            survivors=tuple(map(parameters.name, survivors)),
            variance=float(parameters.noise_plan.opened_variance(dropped, unopened)),
            evidence=evidence,
            faults=tuple(self._faults),
        )

    # --- rounds -----------------------------------------------------------------------------------------------------

    def _read_adverts(self, replies: Replies) -> dict[int, tuple[Advert, bytes]]:
        """Valid adverts and ML-KEM keys by party. Of two parties with the same key the later one is left out."""
        used_values: set[bytes] = set()

        def parse(party: int, reply: Parsed) -> tuple[Advert, bytes]:
            name = self._parameters.name(party)
            advert = parse_advert(self._parameters, party, reply.body, reply.signature)
            for start, expected in enumerate(filter(None, (advert.keys.channel_kem, advert.keys.mask_kem))):
                keys.check_kem_key(
                    name, reply.kem_keys[start * keys.KEM_KEY_BYTES : (start + 1) * keys.KEM_KEY_BYTES], expected
                )
            check_fresh(name, advert, used_values)
            return advert, reply.kem_keys

        return self._collect_replies(Stage.ADVERTISE, replies, range(self._parameters.size), parse)

    def _collect_nonces(
        self, adverts: dict[int, Advert], signed: list[wire.SignedAdvert], adverts_hash: bytes
    ) -> Generator[Requests, Replies, tuple[tuple[int, ...], bytes, bytes]]:
        """(who revealed, their nonces, the graph's seed): rolled anew without whoever did not reveal."""
        parameters = self._parameters
        present = tuple(adverts)
        for roll in range(ROLLS):
            bitmap = to_bitmap(present, parameters.size)
            request = request_bytes(parameters, reveal=wire.RevealRequest(roll=roll, adverts=signed, present=bitmap))
            replies = yield self._request_to_all(present, request)

            def parse(party: int, reply: Parsed, roll: int = roll) -> bytes:
                name = parameters.name(party)
                body = reply.body
                if len(body) != sid.DIGEST_BYTES or sid.advance(body, roll + 1) != adverts[party].keys.nonce_commitment:
                    raise PeerFault(name, "its nonce is not the one it committed to")
                return body

            revealed = self._collect_replies(Stage.REVEAL, replies, present, parse)
            if len(revealed) == len(present):
                nonces = list(revealed.values())
                seed = graph_seed(sid.roll_hash(adverts_hash, roll, bitmap), nonces)
                return present, b"".join(nonces), seed
            present = tuple(revealed)
            signed = []
        raise self._abort_error(Stage.REVEAL, f"parties kept dropping out over {ROLLS} rolls of the nonces")

    def _collect_draws(
        self, adverts: dict[int, Advert], tree: merkle.Tree
    ) -> Generator[Requests, Replies, tuple[tuple[int, ...], MaskGraph, bytes]]:
        """(who drew neighbours, the Merkle graph, its transcript)."""
        parameters = self._parameters
        bitmap = to_bitmap(adverts, parameters.size)

        def request(party: int) -> bytes:
            path = tree.proof(merkle.places(parameters.size, [party]))
            return request_bytes(parameters, reveal=wire.RevealRequest(present=bitmap, root=tree.root, path=path))

        replies = yield self._requests_by_party(adverts, request)
        draws = self._collect_replies(
            Stage.REVEAL, replies, adverts, lambda party, reply: parse_drawn(parameters, party, reply.body)
        )
        choosers: dict[int, list[int]] = defaultdict(list)
        for party, neighbours in draws.items():
            for neighbour in neighbours:
                choosers[neighbour].append(party)
        graph = drawn_graph(parameters.draw, draws, {party: choosers[party] for party in draws})
        return tuple(draws), graph, sid.rooted_hash(parameters.sid, parameters.terms, tree.root, bitmap)

    def _leaf_requests(
        self,
        topology: MaskGraph,
        present: tuple[int, ...],
        adverts: Mapping[int, Advert],
        kem_keys: Mapping[int, bytes],
        tree: merkle.Tree,
    ) -> Requests:
        """Share-keys requests of the Merkle graph: what each party drew, with proofs, and who drew it."""
        parameters = self._parameters
        signed = {entry.party: entry for entry in adverts_to_wire(adverts.values())}
        chooser_blocks = {party: chooser_bytes(adverts[party]) for party in present}
        enrolled = [wire.Enrolled(name=member.name, identity=member.identity) for member in parameters.roster]

        def request(party: int) -> bytes:
            holders = topology.holders(party, adverts)
            places = merkle.places(parameters.size, holders)
            return request_bytes(
                parameters,
                share=wire.ShareRequest(
                    adverts=map(signed.__getitem__, holders),
                    adverts_proof=tree.proof(places),
                    roster=map(enrolled.__getitem__, holders),
                    roster_proof=parameters.roster_tree.proof(places),
                    choosers=b"".join(map(chooser_blocks.__getitem__, topology.dealers(party, chooser_blocks))),
                    kem_keys=b"".join(map(kem_keys.__getitem__, holders)),
                ),
            )

        return self._requests_by_party(present, request)

    def _unmask_requests(self, topology: MaskGraph, signatures: Mapping[int, bytes]) -> Requests:
        """Requests with as many signatures on U3 as a party needs to see; more would cost it and prove no more."""
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
        enough = [party for party in signatures if len(drawn_signers[party]) == parameters.share_threshold]
        return self._requests_by_party(enough, lambda party: request(drawn_signers[party]))

    def _share_requests(
        self,
        topology: MaskGraph,
        present: tuple[int, ...],
        kem_keys: Mapping[int, bytes],
        signed: list[wire.SignedAdvert],
        nonces: bytes,
    ) -> dict[str, bytes]:
        """Share-keys requests: equal for everybody, but for the neighbours' ML-KEM keys on the k-regular graph."""
        parameters = self._parameters

        def request(holders: Iterable[int]) -> bytes:
            key_blocks = b"".join(map(kem_keys.__getitem__, holders))
            return request_bytes(
                parameters, share=wire.ShareRequest(adverts=signed, nonces=nonces, kem_keys=key_blocks)
            )

        if topology.complete or not parameters.post_quantum:
            return self._request_to_all(present, request(present))
        return {parameters.name(party): request(topology.holders(party, present)) for party in present}

    def _mask_requests(
        self,
        topology: MaskGraph,
        sharers: tuple[int, ...],
        dealt: Mapping[int, _Dealt],
        signed: list[wire.SignedAdvert],
        nonces: bytes,
    ) -> Requests:
        parameters = self._parameters
        bitmap = to_bitmap(sharers, parameters.size)
        sharing = frozenset(sharers)

        def request(party: int) -> bytes:
            neighbours = topology.neighbours(party, sharing) if parameters.deals else ()
            dealers: list[int] = []
            if not parameters.direct:
                dealers = [dealer for dealer in topology.dealers(party, sharing) if dealer != party]
            lower: list[int] = []
            if parameters.post_quantum:
                lower = [dealer for dealer in neighbours if topology.leads(dealer, party)]
            return request_bytes(
                parameters,
                mask=wire.MaskRequest(
                    adverts=signed,
                    nonces=nonces,
                    sharers=bitmap,
                    ciphertexts=b"".join(dealt[dealer].sealed[party] for dealer in dealers),
                    hashes=b"".join(dealt[dealer].hashes[party] for dealer in dealers),
                    pairs=b"".join(dealt[dealer].pairs[party] for dealer in lower),
                    pair_hashes=b"".join(dealt[dealer].pair_hashes[party] for dealer in lower),
                ),
            )

        return self._requests_by_party(sharers, request)

    def _add_up(self, replies: Replies, sharers: tuple[int, ...]) -> tuple[Ring, tuple[int, ...]]:
        """The sum of the masked vectors and whose they are (U3); one vector is unpacked at a time."""
        parameters = self._parameters
        total: Ring = np.zeros(parameters.dimension, dtype=parameters.dtype)

        def parse(party: int, reply: Parsed) -> bool:
            words = ring.unpack(reply.body, parameters.modulus_bits, parameters.dimension, parameters.name(party))
            np.add(total, words, out=total)
            return True

        return total, tuple(self._collect_replies(Stage.MASK, replies, sharers, parse))

    def _remove_masks(
        self,
        total: Ring,
        topology: MaskGraph,
        bound: tuple[bytes, bytes],
        adverts: Mapping[int, Advert],
        dealt: Mapping[int, _Dealt],
        survivors: tuple[int, ...],
        openings: Mapping[int, tuple[dict[int, bytes], bytes]],
    ) -> None:
        """Take every mask out of ``total``: the survivors' self masks, the dropped parties' pairwise ones.

        ``bound``: transcript and q (Merkle graph: ``sid.masked_among``), to which the pairwise ones belong. ``dealt``:
        by everybody in U2.
        """
        parameters = self._parameters
        alive = set(survivors)
        masks: list[tuple[bytes, Sign]] = []
        weights: dict[tuple[int, ...], dict[int, int]] = {}
        for party in dealt:
            secret = self._combine_shares(party, topology.holders(party, openings), openings, weights)
            if party in alive:
                if keys.self_mask_commitment(parameters.sid, party, secret) != adverts[party].keys.commitment:
                    raise self._false_dealer(party, "self-mask seed")
                masks.append((secret, -1))
                continue
            mask_keys = MaskKeys(secret, parameters.post_quantum)
            if mask_keys.public != adverts[party].keys.mask_key:
                raise self._false_dealer(party, "mask key")
            if parameters.post_quantum and keys.kem_key_hash(mask_keys.kem.public) != adverts[party].keys.mask_kem:
                raise self._false_dealer(party, "mask key (ML-KEM-768)")
            for neighbour in topology.neighbours(party, alive):
                shared = mask_keys.agreed(parameters.name(neighbour), adverts[neighbour].keys.mask_key)
                if parameters.post_quantum:
                    if topology.leads(party, neighbour):
                        dealer, holder = party, neighbour
                    else:
                        dealer, holder = neighbour, party
                    shared += self._pair_secret(bound[0], mask_keys, shared, dealer, holder, party == dealer, dealt)
                # The neighbour added its mask where its index is the lower one: the opposite is done here.
                masks.append((keys.mask_key(*bound, shared, party, neighbour), -1 if neighbour < party else 1))
        add_masks(total, masks)

    def _pair_secret(
        self,
        transcript: bytes,
        mask_keys: MaskKeys,
        x25519_secret: bytes,
        dealer: int,
        holder: int,
        dealer_dropped: bool,
        dealt: Mapping[int, _Dealt],
    ) -> bytes:
        """The secret of a dropped party's pair with a survivor, rebuilt from the dropped party's seed alone."""
        hashed = dealt[dealer].pair_hashes[holder]
        secret: bytes | None
        if dealer_dropped:
            secret = mask_keys.pair_secret(transcript, holder)
        else:
            secret = mask_keys.open_pair(transcript, x25519_secret, dealer, holder, dealt[dealer].pairs[holder], hashed)
        if secret is None or keys.ShareHasher(transcript).one("pair", dealer, holder, secret) != hashed:
            raise self._false_dealer(dealer, f"secret of its pair with {self._parameters.name(holder)}")
        return secret

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
        points = tuple(holder + 1 for holder in holders[:threshold])
        if points not in weights:
            weights[points] = shamir.lagrange_weights(points)
        shares = {point: openings[point - 1][0][dealer] for point in points}
        try:
            return shamir.combine(shares, threshold, weights[points])
        except (RoundAborted, PeerFault):
            # Every share equals the hash its dealer signed, so it is the dealing that is wrong.
            raise self._false_dealer(dealer, "secret") from None

    def _remove_noise(
        self,
        total: Ring,
        adverts: Mapping[int, Advert],
        survivors: tuple[int, ...],
        openings: Mapping[int, tuple[dict[int, bytes], bytes]],
        dropped: int,
    ) -> int:
        """Take the opened excess noise out of ``total``; the number of survivors whose excess stays in."""
        plan = self._parameters.noise_plan
        if not plan.opened_components(dropped):
            return 0
        unopened = 0
        for party in survivors:
            value = b""
            if party in openings:
                value = openings[party][1]
            try:
                check_opening(value, plan, dropped, adverts[party].keys.noise_anchor, self._parameters.name(party))
            except PeerFault as fault:
                unopened += 1
                if party in openings:
                    self._faults.append(fault)
                continue
            remove_opened(total, plan, dropped, value)
        return unopened

    # --- what a reply must be ---------------------------------------------------------------------------------------

    def _parse_shares(self, topology: MaskGraph, present: Collection[int], party: int, reply: Parsed) -> _Dealt:
        parameters = self._parameters
        name = parameters.name(party)
        message = parsed(wire.Shares, reply.body, name, "its shares are malformed")
        holders = () if parameters.direct else topology.holders(party, present)
        other_holders = [holder for holder in holders if holder != party]
        neighbours = topology.neighbours(party, present) if parameters.post_quantum else ()
        higher = [neighbour for neighbour in neighbours if topology.leads(party, neighbour)]
        size = keys.SEALED_BYTES + (keys.CIPHERTEXT_BYTES if parameters.post_quantum else 0)
        sealed = split_blocks(message.ciphertexts, size, len(other_holders), name, "its encrypted shares")
        hashes = split_blocks(message.hashes, 2 * keys.SHARE_HASH_BYTES, len(holders), name, "its hashes of shares")
        pairs = split_blocks(message.pairs, SEALED_PAIR_BYTES, len(higher), name, "its secrets of pairs")
        pair_hashes = split_blocks(message.pair_hashes, PAIR_HASH_BYTES, len(higher), name, "hashes of those")
        return _Dealt(
            dict(zip(other_holders, sealed, strict=True)),
            dict(zip(holders, hashes, strict=True)),
            dict(zip(higher, pairs, strict=True)),
            dict(zip(higher, pair_hashes, strict=True)),
        )

    def _parse_statement(self, statement: bytes, party: int, reply: Parsed) -> bytes:
        if reply.body != statement:
            raise PeerFault(self._parameters.name(party), "signed another question, or other sets, than it was shown")
        return reply.signature

    def _parse_opening(
        self,
        topology: MaskGraph,
        transcript: bytes,
        sharers: tuple[int, ...],
        survivors: tuple[int, ...],
        dealt: Mapping[int, _Dealt],
    ) -> Callable[[int, Parsed], tuple[dict[int, bytes], bytes]]:
        parameters = self._parameters
        alive = set(survivors)
        sharing = frozenset(sharers)
        hasher = keys.ShareHasher(transcript)

        def parse(party: int, reply: Parsed) -> tuple[dict[int, bytes], bytes]:
            name = parameters.name(party)
            message = parsed(wire.Opening, reply.body, name, "its opened shares are malformed")
            dealers = topology.dealers(party, sharing)
            shares = split_blocks(message.shares, shamir.SHARE_BYTES, len(dealers), name, "its opened shares")
            for dealer, share in zip(dealers, shares, strict=True):
                public = dealt[dealer].hashes[party]
                if dealer in alive:
                    kind = "self"
                    expected = public[: keys.SHARE_HASH_BYTES]
                else:
                    kind = "mask"
                    expected = public[keys.SHARE_HASH_BYTES :]
                if hasher.one(kind, dealer, party, share) != expected:
                    raise PeerFault(
                        name,
                        f"opened a wrong {kind} share of {parameters.name(dealer)}: not the one whose hash was dealt",
                    )
            return dict(zip(dealers, shares, strict=True)), message.noise_chain

        return parse

    # --- common -----------------------------------------------------------------------------------------------------

    def _collect_replies(
        self,
        stage: Stage,
        replies: Replies,
        parties: Iterable[int],
        parse: Callable[[int, Parsed], Checked],
    ) -> dict[int, Checked]:
        """The valid replies by party, ascending; faults are kept. Raises SumAborted where too few are left."""
        parameters = self._parameters
        results: dict[int, Checked] = {}
        for party in parties:
            payload = replies.get(parameters.name(party))
            if payload is None:
                continue
            try:
                results[party] = parse(party, parse_reply(parameters, parameters.name(party), payload, stage))
            except PeerFault as fault:
                self._faults.append(fault)
        need = coordinator_rule(stage, parameters.traits).need
        least = {"n - D": parameters.quorum, "T": parameters.threshold, "n": parameters.size, "0": 0}[need]
        if len(results) < least:
            remaining_words = counted(len(results), "party is", "parties are")
            raise self._abort_error(stage, f"{remaining_words} left and {need} = {least} are needed")
        return results

    def _check_reachable(
        self, stage: Stage, topology: MaskGraph, dealers: Iterable[int], holders: Collection[int]
    ) -> None:
        """Raise SumAborted where parties would refuse ``holders``, or a dealer's secrets could not be recovered."""
        remaining = set(holders)
        try:
            topology.check_runs(remaining, "the sum")
            for dealer in dealers:
                topology.check_around(dealer, remaining, f"the sum (for {self._parameters.name(dealer)})")
        except PrivacyRefusal as refusal:
            raise self._abort_error(stage, refusal.problem) from None

    def _requests_by_party(self, parties: Iterable[int], request: Callable[[int], bytes]) -> Requests:
        return _RequestsByParty({self._parameters.name(party): party for party in parties}, request)

    def _request_to_all(self, parties: Iterable[int], request: bytes) -> dict[str, bytes]:
        return dict.fromkeys(map(self._parameters.name, parties), request)

    def _false_dealer(self, dealer: int, secret_name: str) -> SumAborted:
        name = self._parameters.name(dealer)
        self._faults.append(PeerFault(name, f"dealt shares of another {secret_name} than it committed to"))
        return self._abort_error(Stage.UNMASK, f"the {secret_name} of {name} does not match its advert")

    def _abort_error(self, stage: Stage, problem: str) -> SumAborted:
        return SumAborted(
            stage.title,
            problem,
            "start a new attempt (fresh keys, noise and shares) when the parties named are back or left out",
            tuple(self._faults),
        )
