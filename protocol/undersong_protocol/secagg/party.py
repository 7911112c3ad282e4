"""One party's side of one attempt of a private sum: requests in, replies out, no I/O, no clock, no hidden randomness.

The caller must keep this order, or a crash could make it send two different vectors under the same masks:

1. If a vector is wanted, charge the ledger, then call ``provide``.
2. Journal ``machine.snapshot()`` for every reply.
3. If the reply carries a vector (``Reply.vector``), record its hash in the ledger.
4. Send.

A repeated request gets the same bytes again. A different request for a stage that is done, or any failed check, ends
the attempt for this party: it becomes a *tombstone*, which keeps no secrets and answers nothing any more.
"""

import copy
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong_common.errors import ConfigurationError, InternalError, PeerFault, PrivacyRefusal, UndersongError
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.secagg import keys, shamir, sid
from undersong_protocol.secagg.masking import PAIR_HASH_BYTES, SEALED_PAIR_BYTES, MaskKeys, Sign, masked_body, seal_pair
from undersong_protocol.secagg.messages import (
    COORDINATOR,
    advertise_request,
    from_bitmap,
    parse_advert,
    parse_request,
    reply_bytes,
    split_blocks,
    to_bitmap,
)
from undersong_protocol.secagg.noise_share import NoiseSeeds, add_noise
from undersong_protocol.secagg.parameters import Entropy, SumParameters
from undersong_protocol.secagg.party_graphs import TELL_OPERATOR, graph_of
from undersong_protocol.secagg.state import Answered, PartyState, Peer, Replies
from undersong_protocol.secagg.transitions import SECRETS, PartyRule, Phase, Stage, party_rule
from undersong_protocol.statistics.vectors import GridVector, NoisyVector
from undersong_protocol.wire.messages import secagg_pb2 as wire

DERIVED = {"channel": "_channel_agreement", "mask": "_mask_keys", "channel_kem": "_channel_kem"}
"""By a secret's name: the property of a machine that caches the key derived from the secret."""


@dataclass(frozen=True)
class Reply:
    """A reply for the coordinator.

    ``vector`` is True if the payload carries the masked vector, whose hash the ledger must record before it is sent. A
    repeated reply says so too, because the machine cannot know whether the ledger was written.
    """

    payload: bytes = field(repr=False)
    vector: bool


class WantsInput:
    """Answer to a valid masked-input request: the caller must charge the ledger and then call ``provide``."""


@dataclass(repr=False)
class _Pending:
    """A verified masked-input request that waits for the vector."""

    request: bytes
    next_state: PartyState


class PartyMachine:
    """State machine of one party in one attempt.

    A wrong request raises PeerFault or PrivacyRefusal that names the fault, and ends the attempt (tombstone).
    """

    def __init__(
        self,
        parameters: SumParameters,
        party_name: str,
        identity: Ed25519PrivateKey,
        state: PartyState,
        encapsulate: keys.Encapsulate,
    ) -> None:
        self._parameters = parameters
        self._index = parameters.index(party_name)
        if identity.public_key().public_bytes_raw() != parameters.roster[self._index].identity:
            raise ConfigurationError(
                f"the identity key is not the one enrolled for {party_name!r}",
                "use the key that was enrolled, or enrol again",
                code="other-identity",
            )
        self._identity = identity
        self._graph = graph_of(parameters, self._index)
        self._state = state
        self._encapsulate = encapsulate
        self._pending: _Pending | None = None

    @classmethod
    def open(
        cls,
        parameters: SumParameters,
        party_name: str,
        identity: Ed25519PrivateKey,
        entropy: Entropy,
        encapsulate: keys.Encapsulate = keys.encapsulate,
    ) -> "PartyMachine":
        """Starts an attempt at the party ``party_name``.

        Args:
            entropy: returns random bytes; called eight times for 32 bytes, in the order of ``transitions.SECRETS``.
            encapsulate: called in the share-keys round if post-quantum, at most twice for each peer.

        Raises ConfigurationError if ``party_name`` is not in the roster or ``identity`` is not its key.
        """
        secret_by_name = {name: bytearray(entropy(32)) for name in SECRETS}
        if any(len(secret) != 32 for secret in secret_by_name.values()):
            raise InternalError("the entropy source returned another number of bytes than it was asked for")
        machine = cls(parameters, party_name, identity, PartyState(Phase.OPENED, b"", secret_by_name), encapsulate)
        machine._state.advert = machine._make_advert_body()
        return machine

    @classmethod
    def restore(
        cls,
        parameters: SumParameters,
        party_name: str,
        identity: Ed25519PrivateKey,
        snapshot: bytes,
        encapsulate: keys.Encapsulate = keys.encapsulate,
        replies: Replies = lambda _stage, _roll: None,
    ) -> "PartyMachine":
        """Resumes from :meth:`snapshot`; all later replies have the same bits as without the interruption.

        Only a share-keys reply that never left is made anew, with fresh randomness of ``encapsulate``.

        Args:
            replies: returns a reply, by stage and roll, that was left out of the snapshot.

        Raises ConfigurationError for a damaged or foreign snapshot, or a missing reply.
        """
        party_state = PartyState.from_bytes(parameters, parameters.index(party_name), snapshot, replies)
        return cls(parameters, party_name, identity, party_state, encapsulate)

    def __repr__(self) -> str:
        return f"PartyMachine({self._parameters.name(self._index)!r}, {self._state.phase.name})"

    @property
    def phase(self) -> Phase:
        """The last request that this party answered."""
        return self._state.phase

    @property
    def tombstone(self) -> str:
        """The reason why this attempt was ended at this party; "" while it is open."""
        return self._state.tombstone

    @property
    def released(self) -> bool:
        """True once this party has sent a share (in direct mode: the vector). It then cannot sign the attempt void."""
        return self._state.released

    @property
    def survivors(self) -> tuple[str, ...]:
        """Names of the parties in the sum that this party's shares open; empty until it has sent them."""
        if self._state.phase is not Phase.DONE:
            return ()
        return tuple(map(self._parameters.name, self._state.survivors))

    @property
    def answered(self) -> dict[tuple[Stage, int], bytes]:
        """Every reply given so far, by stage and roll; empty once the attempt was ended."""
        return {stage_and_roll: answer.reply for stage_and_roll, answer in self._state.answered.items()}

    def snapshot(self, *, without: Collection[tuple[Stage, int]] = ()) -> bytes:
        """Serialises this party's whole state, which is secret: encrypt it at rest.

        Args:
            without: replies, by stage and roll, to leave out. The caller stores them once, so that a masked vector is
                not written again with every later state.
        """
        return self._state.to_bytes(self._parameters, self._index, without)

    def advertise(self) -> Reply:
        """Returns the reply to the first request of an attempt, before that request comes."""
        reply = self.receive(advertise_request(self._parameters))
        assert isinstance(reply, Reply)
        return reply

    def receive(self, request: bytes) -> Reply | WantsInput:
        """Checks one request of the coordinator and answers it.

        Raises PeerFault for a malformed or forged message, and PrivacyRefusal for a request that would open more than
        was approved. Any failed check of a request for this session id ends the attempt (tombstone); the caller
        journals that state too.
        """
        stage, roll_number, message = parse_request(self._parameters, request)
        self._check_alive()
        request_digest = hashlib.sha256(request).digest()
        earlier_answer = self._state.answered.get((stage, roll_number))
        if earlier_answer is not None and earlier_answer.request == request_digest:
            return Reply(earlier_answer.reply, stage is Stage.MASK)
        try:
            if earlier_answer is not None:
                raise PrivacyRefusal(
                    f"a second, different request for {stage.title}, which this party has already answered",
                    "a new attempt needs fresh keys",
                    code="second-request",
                )
            rule = party_rule(self._state.phase, stage, self._parameters.traits)
            if rule is None:
                raise PrivacyRefusal(
                    f"{stage.title} was asked for out of order: this party is at {self._state.phase.name.lower()}",
                    "a stage can be neither skipped nor repeated; start a new attempt",
                    code="out-of-order",
                )
            next_state = copy.copy(self._state)
            next_state.peers = dict(self._state.peers)
            reply_body = self._handlers[stage](self, next_state, message)
            if reply_body is None:
                self._pending = _Pending(request_digest, next_state)
                return WantsInput()
            return self._commit_answer(
                rule, roll_number, request_digest, next_state, [reply_body], sid.body_hash(reply_body)
            )
        except UndersongError as error:
            self.end(error.problem)
            raise

    def provide(self, grid: GridVector, question: bytes) -> Reply:
        """Masks the vector and returns the reply to the masked-input request.

        The result is determined by the snapshot, the request and the arguments, so that a crash before the journal is
        written loses nothing.

        Args:
            grid: int64 [dimension].
            question: q, the 32-byte digest of the public inputs that the vector answers (``public.question``).

        Raises InternalError without a verified request, or for another shape, dtype or length of ``question``;
        ConfigurationError for a value beyond the ring's bound. These errors do not end the attempt.
        """
        pending_sum = self._pending
        if pending_sum is None:
            raise InternalError(
                "a vector was provided before the masked-input request was verified", code="vector-too-early"
            )
        if len(question) != sid.DIGEST_BYTES:
            raise InternalError(
                f"a question's digest has {sid.DIGEST_BYTES} bytes, got {len(question)}", code="question-length"
            )
        self._check_grid(grid)
        rule = party_rule(self._state.phase, Stage.MASK, self._parameters.traits)
        if rule is None:
            raise InternalError(
                f"a vector was provided in phase {self._state.phase.name.lower()}, which sends no vector"
            )
        next_state = pending_sum.next_state
        next_state.question = question
        noisy_vector = self._add_noise_share(grid, next_state)
        masked_chunks, digest = masked_body(noisy_vector, self._list_masks(next_state), self._parameters.modulus_bits)
        del noisy_vector
        self._pending = None
        return self._commit_answer(rule, 0, pending_sum.request, next_state, masked_chunks, digest)

    def _add_noise_share(self, grid: GridVector, state: PartyState) -> NoisyVector:
        """Returns the vector with this party's noise share."""
        noise_plan = self._parameters.noise_plan
        if not noise_plan.components:
            # A run of infinite epsilon has no noise: there is nothing to add, and nothing is copied.
            return NoisyVector(grid.values)
        return add_noise(grid, noise_plan, NoiseSeeds(state.secret("noise_own"), state.secret("noise_root")))

    def void_statement(self, reason: str = "the coordinator asked to void this attempt") -> Reply:
        """Ends the attempt and returns a signed statement that this party has released no share and never will.

        Journal it before sending, as every reply. Raises PrivacyRefusal if a share (in direct mode: the vector) was
        released already.
        """
        if self._state.released:
            raise PrivacyRefusal(
                "this party has released shares of this attempt, so it cannot call it void",
                "the attempt stays charged; use one of the plan's spare attempts",
                code="shares-released",
            )
        if not self._state.tombstone:
            self.end(reason)
        return Reply(self._sign_reply(Stage.VOID, (), sid.body_hash(b"")), False)

    def end(self, reason: str) -> None:
        """Ends the attempt: erases everything except ``reason``. Does nothing if the attempt is finished already."""
        self._pending = None
        if self._state.phase is Phase.DONE:
            return
        self._state.erase(SECRETS)
        self._forget_keys(SECRETS)
        self._state = PartyState(
            Phase.TOMBSTONED, self._state.advert, {}, tombstone=reason, released=self._state.released
        )

    # --- what each stage checks and answers -------------------------------------------------------------------------

    def _answer_advertise(self, next_state: PartyState, message: wire.Request) -> bytes:
        requested_terms = message.advertise
        parameters = self._parameters
        compared_terms = (
            ("number of parties", requested_terms.parties, parameters.size),
            ("roster", requested_terms.roster, parameters.roster_hash),
            ("threshold", requested_terms.threshold, parameters.threshold),
            ("tolerated_dropouts", requested_terms.tolerated_dropouts, parameters.tolerated_dropouts),
            ("colluders", requested_terms.colluders, parameters.colluders),
            ("dimension", requested_terms.dimension, parameters.dimension),
            ("modulus_bits (ring)", requested_terms.modulus_bits, parameters.modulus_bits),
            ("sigma", requested_terms.sigma, parameters.sigma),
            ("graph_above", requested_terms.graph_above, parameters.graph_above),
            ("law of the noise", requested_terms.law, parameters.law),
            ("post_quantum", requested_terms.post_quantum, parameters.post_quantum),
            ("merkle_above", requested_terms.merkle_above, parameters.merkle_above if parameters.merkle else 0),
        )
        for term_name, coordinator_term, approved_term in compared_terms:
            if coordinator_term != approved_term:
                if isinstance(approved_term, bytes):
                    term_values = ""
                else:
                    term_values = f": {coordinator_term!r} instead of {approved_term!r}"
                raise PrivacyRefusal(
                    f"the coordinator's {term_name} is not the approved one{term_values}",
                    "use the manifest every party signed",
                    code="other-terms",
                )
        return next_state.advert

    def _answer_reveal(self, next_state: PartyState, message: wire.Request) -> bytes:
        return self._graph.reveal(next_state, message.reveal)

    def _answer_share(self, next_state: PartyState, message: wire.Request) -> bytes:
        self._graph.fix_transcript(next_state, message.share)
        kem_keys = self._read_kem_keys(next_state, message.share.kem_keys)
        hasher = keys.ShareHasher(next_state.transcript)
        reply = wire.Shares()
        if self._parameters.post_quantum:
            self._deal_pairs(next_state, kem_keys, hasher, reply)
        if self._parameters.direct:
            next_state.peers = {party: Peer(mask_key=peer.mask_key) for party, peer in next_state.peers.items()}
        else:
            self._deal_shares(next_state, kem_keys, hasher, reply)
        return reply.SerializeToString()

    def _read_kem_keys(self, next_state: PartyState, key_bytes: bytes) -> dict[int, tuple[bytes, bytes]]:
        """Returns (channel key, mask key) of each neighbour. Raises PeerFault unless their hashes are in its advert."""
        parameters = self._parameters
        self_index = self._index
        kem_keys: dict[int, tuple[bytes, bytes]] = {}
        if not parameters.post_quantum:
            split_blocks(key_bytes, keys.KEM_KEY_BYTES, 0, COORDINATOR, "ML-KEM-768 keys")
            return kem_keys
        holders = self._graph.mask_graph(next_state).holders(self_index, next_state.present)
        key_blocks = split_blocks(key_bytes, parameters.kem_keys_bytes, len(holders), COORDINATOR, "ML-KEM-768 keys")
        advert_keys = parse_advert(parameters, self_index, next_state.advert, b"").keys
        for party, key_block in zip(holders, key_blocks, strict=True):
            channel_key = key_block[: -keys.KEM_KEY_BYTES]
            mask_key = key_block[-keys.KEM_KEY_BYTES :]
            expected_keys = advert_keys if party == self_index else next_state.peers[party]
            has_other_channel_key = channel_key and keys.kem_key_hash(channel_key) != expected_keys.channel_kem
            if has_other_channel_key or keys.kem_key_hash(mask_key) != expected_keys.mask_kem:
                raise PeerFault(
                    COORDINATOR,
                    f"showed another ML-KEM-768 key of {parameters.name(party)} than the one in its advert"
                    " (swapped keys)",
                )
            kem_keys[party] = channel_key, mask_key
        return kem_keys

    def _encapsulate_for(self, party: int, kem_key: bytes) -> tuple[bytes, bytes]:
        try:
            return self._encapsulate(kem_key)
        except ValueError:
            raise keys.malformed(self._parameters.name(party)) from None

    def _deal_pairs(
        self,
        next_state: PartyState,
        kem_keys: dict[int, tuple[bytes, bytes]],
        hasher: keys.ShareHasher,
        reply: wire.Shares,
    ) -> None:
        """Adds to ``reply`` r_ij for every neighbour j of a higher index (Merkle graph: that i drew), sealed for j."""
        self_index = self._index
        transcript = next_state.transcript
        topology = self._graph.mask_graph(next_state)
        mask_keys = self._mask_keys
        sealed_pairs, pair_hashes = [], []
        for party, (_, kem_mask_key) in kem_keys.items():
            if not topology.leads(self_index, party):
                continue
            pair_secret = mask_keys.pair_secret(transcript, party)
            pair_hashes.append(hasher.one("pair", self_index, party, pair_secret))
            kem_encapsulation = self._encapsulate_for(party, kem_mask_key)
            x25519_secret = mask_keys.agreed(self._parameters.name(party), next_state.peers[party].mask_key)
            sealed_pairs.append(
                seal_pair(x25519_secret, kem_encapsulation, transcript, self_index, party, pair_secret, pair_hashes[-1])
            )
        reply.pairs, reply.pair_hashes = b"".join(sealed_pairs), b"".join(pair_hashes)

    def _deal_shares(
        self,
        next_state: PartyState,
        kem_keys: dict[int, tuple[bytes, bytes]],
        hasher: keys.ShareHasher,
        reply: wire.Shares,
    ) -> None:
        """Adds to ``reply`` shares of the self-mask seed and of the mask secret for every holder, sealed for it."""
        parameters = self._parameters
        self_index = self._index
        holders = self._graph.mask_graph(next_state).holders(self_index, next_state.present)
        share_points = [holder + 1 for holder in holders]
        self_shares = self._share_secret(next_state, "self_mask", b"self", share_points)
        mask_shares = self._share_secret(next_state, "mask", b"mask", share_points)
        channel_agreement = self._channel_agreement
        bound_mask_key = self._graph.bind_mask_key(self._mask_keys.public)
        share_ciphertexts, share_hashes = [], []
        for holder in holders:
            self_share = self_shares[holder + 1]
            mask_share = mask_shares[holder + 1]
            share_hash = hasher.both(self_index, holder, self_share, mask_share)
            share_hashes.append(share_hash)
            if holder == self_index:
                next_state.peers[self_index] = Peer(self_share=self_share, mask_share=mask_share)
                continue
            holder_peer = next_state.peers[holder]
            channel_secret = channel_agreement.shared(parameters.name(holder), holder_peer.channel_key)
            if self._graph.receives_from(next_state, holder):
                kept_secret = channel_secret
            else:
                kept_secret = b""
            next_state.peers[holder] = Peer(
                agreed=kept_secret, mask_key=holder_peer.mask_key, identity=holder_peer.identity
            )
            kem_secret = ciphertext = b""
            if parameters.post_quantum:
                kem_secret, ciphertext = self._encapsulate_for(holder, kem_keys[holder][0])
            share_key = keys.share_key(next_state.transcript, channel_secret + kem_secret, self_index, holder)
            sealed_share = keys.seal(
                share_key,
                next_state.transcript,
                self_index,
                holder,
                self_share + mask_share,
                ciphertext + share_hash + bound_mask_key,
            )
            share_ciphertexts.append(ciphertext + sealed_share)
        for party in next_state.choosers:
            holder_peer = next_state.peers[party]
            if not holder_peer.agreed:
                channel_secret = channel_agreement.shared(parameters.name(party), holder_peer.channel_key)
                next_state.peers[party] = Peer(agreed=channel_secret, mask_key=holder_peer.mask_key)
        reply.ciphertexts, reply.hashes = b"".join(share_ciphertexts), b"".join(share_hashes)

    def _share_secret(
        self, next_state: PartyState, secret_name: str, share_label: bytes, share_points: Sequence[int]
    ) -> dict[int, bytes]:
        """Returns a secret's share by point, with coefficients derived from the secret ``sharing`` and the label."""
        coefficient_seed = keys.hkdf(next_state.transcript, next_state.secret("sharing"), share_label)
        return shamir.share(
            next_state.secret(secret_name),
            self._parameters.share_threshold,
            share_points,
            KeyStream(coefficient_seed).read,
        )

    def _answer_mask(self, next_state: PartyState, message: wire.Request) -> None:
        mask_request = message.mask
        parameters = self._parameters
        self_index = self._index
        if not parameters.deals:
            self._graph.fix_transcript(next_state, mask_request)
        elif mask_request.adverts or mask_request.nonces:
            raise PeerFault(COORDINATOR, "showed adverts or nonces again with the masked-input request")
        sharing_parties = from_bitmap(mask_request.sharers, parameters.size, COORDINATOR, "U2")
        self._graph.check_set(sharing_parties, "U2 (who shared keys)")
        if not set(sharing_parties) <= set(next_state.present):
            unadvertised = sorted(set(sharing_parties) - set(next_state.present))
            raise PrivacyRefusal(
                f"the coordinator's U2 lists parties that did not advertise keys: {unadvertised}", TELL_OPERATOR
            )
        topology = self._graph.mask_graph(next_state)
        topology.check(self_index, sharing_parties, "U2")
        next_state.sharers = sharing_parties
        hasher = keys.ShareHasher(next_state.transcript)
        received_shares = self._take_shares(next_state, mask_request, hasher)
        next_state.mask_secrets = self._agree_pairs(next_state, mask_request, hasher)
        # The later stages need only shares (this party's own included) and the identities of those whose signatures
        # this party will see.
        signers = {party: Peer(identity=peer.identity) for party, peer in next_state.peers.items() if peer.identity}
        next_state.peers = {party: peer for party, peer in next_state.peers.items() if party == self_index} | signers
        for party, peer in received_shares.items():
            next_state.peers[party] = peer._replace(identity=signers[party].identity if party in signers else b"")

    def _take_shares(
        self, next_state: PartyState, request: wire.MaskRequest, hasher: keys.ShareHasher
    ) -> dict[int, Peer]:
        """Opens and checks the shares that every neighbour in U2 dealt to this party."""
        parameters = self._parameters
        self_index = self._index
        dealers: Sequence[int] = ()
        if not parameters.direct:
            dealers = [
                party
                for party in self._graph.mask_graph(next_state).dealers(self_index, next_state.sharers)
                if party != self_index
            ]
        kem_size = keys.CIPHERTEXT_BYTES if parameters.post_quantum else 0
        share_ciphertexts = split_blocks(
            request.ciphertexts, kem_size + keys.SEALED_BYTES, len(dealers), COORDINATOR, "shares for this party"
        )
        share_hashes = split_blocks(
            request.hashes, 2 * keys.SHARE_HASH_BYTES, len(dealers), COORDINATOR, "hashes of shares for this party"
        )
        channel_kem = self._channel_kem if parameters.post_quantum else None
        received_shares: dict[int, Peer] = {}
        for dealer, share_ciphertext, share_hash in zip(dealers, share_ciphertexts, share_hashes, strict=True):
            ciphertext = share_ciphertext[:kem_size]
            sealed_share = share_ciphertext[kem_size:]
            kem_secret = b"" if channel_kem is None else channel_kem.decapsulate(ciphertext)
            share_key = keys.share_key(
                next_state.transcript, next_state.peers[dealer].agreed + kem_secret, dealer, self_index
            )
            bound_mask_key = self._graph.bind_mask_key(next_state.peers[dealer].mask_key)
            opened_shares = keys.unseal(
                share_key,
                next_state.transcript,
                dealer,
                self_index,
                sealed_share,
                ciphertext + share_hash + bound_mask_key,
            )
            if opened_shares is None:
                raise PeerFault(
                    parameters.name(dealer),
                    "its shares for this party do not open: swapped or corrupted ciphertext, or another view of the "
                    "adverts",
                    "start a new attempt, without this party if it happens again",
                )
            self_share = opened_shares[: shamir.SHARE_BYTES]
            mask_share = opened_shares[shamir.SHARE_BYTES :]
            if share_hash != hasher.both(dealer, self_index, self_share, mask_share):
                raise PeerFault(
                    parameters.name(dealer), "dealt shares that differ from their public hashes", "start a new attempt"
                )
            received_shares[dealer] = Peer(self_share=self_share, mask_share=mask_share)
        return received_shares

    def _agree_pairs(
        self, next_state: PartyState, request: wire.MaskRequest, hasher: keys.ShareHasher
    ) -> dict[int, bytes]:
        """Returns this party's shared secret with each neighbour in U2: of X25519, and post-quantum also the dealt one.

        Opens and checks the secrets that neighbours of a lower index dealt.
        """
        parameters = self._parameters
        self_index = self._index
        transcript = next_state.transcript
        topology = self._graph.mask_graph(next_state)
        neighbours = topology.neighbours(self_index, next_state.sharers)
        if parameters.post_quantum:
            dealers = [neighbour for neighbour in neighbours if not topology.leads(self_index, neighbour)]
        else:
            dealers = []
        pair_blocks = split_blocks(request.pairs, SEALED_PAIR_BYTES, len(dealers), COORDINATOR, "secrets of pairs")
        pair_hashes = split_blocks(
            request.pair_hashes, PAIR_HASH_BYTES, len(dealers), COORDINATOR, "hashes of secrets of pairs"
        )
        mask_keys = self._mask_keys
        pair_secrets = {
            neighbour: mask_keys.agreed(parameters.name(neighbour), next_state.peers[neighbour].mask_key)
            for neighbour in neighbours
        }
        if not parameters.post_quantum:
            return pair_secrets
        for dealer, pair_block, pair_hash in zip(dealers, pair_blocks, pair_hashes, strict=True):
            dealt_secret = mask_keys.open_pair(
                transcript, pair_secrets[dealer], dealer, self_index, pair_block, pair_hash
            )
            if dealt_secret is None:
                raise PeerFault(
                    parameters.name(dealer),
                    "the secret of its pair with this party does not open: swapped or corrupted ciphertext, or another "
                    "view of the adverts",
                    "start a new attempt, without this party if it happens again",
                )
            if hasher.one("pair", dealer, self_index, dealt_secret) != pair_hash:
                raise PeerFault(
                    parameters.name(dealer),
                    "dealt a secret of a pair that differs from its public hash",
                    "start a new attempt",
                )
            pair_secrets[dealer] += dealt_secret
        for holder in pair_secrets.keys() - dealers:
            pair_secrets[holder] += mask_keys.pair_secret(transcript, holder)
        return pair_secrets

    def _answer_consistency(self, next_state: PartyState, message: wire.Request) -> bytes:
        parameters = self._parameters
        survivors = from_bitmap(message.consistency.survivors, parameters.size, COORDINATOR, "U3")
        self._graph.check_set(survivors, "U3 (whose vectors arrived)")
        if not set(survivors) <= set(next_state.sharers):
            unshared = sorted(set(survivors) - set(next_state.sharers))
            raise PrivacyRefusal(
                f"the coordinator's U3 lists parties that did not share keys, so are not in U2: {unshared}",
                TELL_OPERATOR,
            )
        self._graph.mask_graph(next_state).check(self._index, survivors, "U3")
        next_state.survivors = survivors
        return self._opened_set(next_state)

    def _answer_unmask(self, next_state: PartyState, message: wire.Request) -> bytes:
        parameters = self._parameters
        signers = from_bitmap(message.unmask.signers, parameters.size, COORDINATOR, "the signers of U3")
        if not set(signers) <= set(next_state.survivors):
            raise PrivacyRefusal("U3 is signed by parties that are not in it (foreign signatures)", TELL_OPERATOR)
        required_count = self._graph.check_signers(next_state, signers)
        if len(signers) < required_count:
            raise PrivacyRefusal(
                f"{len(signers)} signatures on U3 where {required_count} are needed",
                "start a new attempt when more parties are present",
            )
        statement_body = self._opened_set(next_state)
        signatures = split_blocks(
            message.unmask.signatures, keys.SIGNATURE_BYTES, len(signers), COORDINATOR, "signatures on U3"
        )
        reader_statement = self._index, *next_state.recorded_reply(Stage.CONSISTENCY)
        for signer, signature in zip(signers, signatures, strict=True):
            if (signer, statement_body, signature) == reader_statement:
                continue
            keys.check_signature(
                self._graph.identity_of(next_state, signer),
                parameters.name(signer),
                parameters.sid,
                Stage.CONSISTENCY,
                signer,
                statement_body,
                signature,
                "its statement on this U3 (forged, duplicate, of another question, or for a split view)",
            )
        survivor_set = set(next_state.survivors)
        dealers = self._graph.mask_graph(next_state).dealers(self._index, next_state.sharers)
        opened_shares = [
            next_state.peers[dealer].self_share if dealer in survivor_set else next_state.peers[dealer].mask_share
            for dealer in dealers
        ]
        noise_seeds = NoiseSeeds(bytes(32), next_state.secret("noise_root"))
        noise_opening = noise_seeds.opening(parameters.noise_plan, parameters.size - len(survivor_set))
        return wire.Opening(shares=b"".join(opened_shares), noise_chain=noise_opening or b"").SerializeToString()

    _handlers: ClassVar[dict[Stage, "Callable[[PartyMachine, PartyState, wire.Request], bytes | None]"]] = {
        Stage.ADVERTISE: _answer_advertise,
        Stage.REVEAL: _answer_reveal,
        Stage.SHARE: _answer_share,
        Stage.MASK: _answer_mask,
        Stage.CONSISTENCY: _answer_consistency,
        Stage.UNMASK: _answer_unmask,
    }

    # --- parts of the stages ----------------------------------------------------------------------------------------

    def _make_advert_body(self) -> bytes:
        parameters = self._parameters
        party_state = self._state
        channel_kem, mask_kem = (keys.kem_key_hash(kem_key) if kem_key else b"" for kem_key in self._own_kem_keys)
        commitment = noise_anchor = b""
        if not parameters.direct:
            commitment = keys.self_mask_commitment(parameters.sid, self._index, party_state.secret("self_mask"))
        if parameters.noise_plan.removal:
            noise_anchor = NoiseSeeds(bytes(32), party_state.secret("noise_root")).anchor(parameters.noise_plan)
        return wire.Advert(
            channel_key=self._channel_agreement.public,
            mask_key=self._mask_keys.public,
            commitment=commitment,
            noise_anchor=noise_anchor,
            nonce_commitment=self._graph.commit_nonce(party_state),
            terms=parameters.terms,
            channel_kem=channel_kem,
            mask_kem=mask_kem,
        ).SerializeToString()

    @cached_property
    def _own_kem_keys(self) -> tuple[bytes, bytes]:
        """This party's public ML-KEM-768 keys, of channel and mask; empty where this mode has none."""
        parameters = self._parameters
        if not parameters.post_quantum:
            return b"", b""
        channel_key = b"" if parameters.direct else self._channel_kem.public
        return channel_key, self._mask_keys.kem.public

    @cached_property
    def _mask_keys(self) -> MaskKeys:
        """This party's mask keys, cached from the first use until the vector, so that no secret is agreed on twice."""
        return MaskKeys(self._state.secret("mask"), self._parameters.post_quantum)

    @cached_property
    def _channel_agreement(self) -> keys.Agreement:
        """This party's X25519 channel key, cached from the advert until the shares are dealt."""
        return keys.Agreement(self._state.secret("channel"))

    @cached_property
    def _channel_kem(self) -> keys.KemSecretKey:
        """This party's ML-KEM-768 channel key, cached because deriving it takes longer than opening a share with it."""
        return keys.KemSecretKey(self._state.secret("channel_kem"))

    def _forget_keys(self, erased: Collection[str]) -> None:
        """Drops the keys derived from secrets that are erased."""
        for secret_name, property_name in DERIVED.items():
            if secret_name in erased:
                vars(self).pop(property_name, None)

    def _list_masks(self, party_state: PartyState) -> list[tuple[bytes, Sign]]:
        """Returns (key, sign) of each mask on the noisy vector: +PRG(b_i), and +-PRG(pairwise key) for each neighbour.

        Of a pair, the party with the lower index adds the mask.
        """
        parameters = self._parameters
        self_index = self._index
        transcript = party_state.transcript
        masks: list[tuple[bytes, Sign]] = []
        if not parameters.direct:
            masks.append((party_state.secret("self_mask"), 1))
        bound_question = self._graph.bind_question(party_state)
        for neighbour, pair_secret in party_state.mask_secrets.items():
            masks.append(
                (
                    keys.mask_key(transcript, bound_question, pair_secret, self_index, neighbour),
                    1 if self_index < neighbour else -1,
                )
            )
        return masks

    def _check_grid(self, grid: GridVector) -> None:
        parameters = self._parameters
        if not isinstance(grid, GridVector):
            raise InternalError(f"only a GridVector can be masked, got {type(grid).__name__}")
        grid_values = grid.values
        if grid_values.dtype != np.int64 or grid_values.shape != (parameters.dimension,):
            raise InternalError(
                f"the sum takes int64 [{parameters.dimension}], got {grid_values.dtype} {list(grid_values.shape)}"
            )
        largest_magnitude = max(int(grid_values.max()), -int(grid_values.min()))
        if largest_magnitude > (1 << (parameters.modulus_bits - 1)) // parameters.size:
            raise ConfigurationError(
                "a value of this party's vector is larger than the ring was planned for, so the sum could wrap around",
                "plan with the largest number of records a party may bring (max_records) and the statistic's bound",
            )

    def _opened_set(self, state: PartyState) -> bytes:
        party_count = self._parameters.size
        sharer_bitmap = to_bitmap(state.sharers, party_count)
        survivors = to_bitmap(state.survivors, party_count)
        return sid.opened_set(state.transcript, state.question, sharer_bitmap, survivors)

    def _sign_reply(self, stage: Stage, body: Sequence[bytes], digest: bytes) -> bytes:
        signature = keys.sign(self._identity, self._parameters.sid, stage, self._index, digest)
        kem_keys = b""
        if stage is Stage.ADVERTISE:
            kem_keys = b"".join(self._own_kem_keys)
        return reply_bytes(self._parameters, self._index, stage, body, signature, kem_keys)

    def _commit_answer(
        self,
        rule: PartyRule,
        roll_number: int,
        request_digest: bytes,
        next_state: PartyState,
        body: Sequence[bytes],
        reply_digest: bytes,
    ) -> Reply:
        payload = self._sign_reply(rule.stage, body, reply_digest)
        next_state.answered = {**next_state.answered, (rule.stage, roll_number): Answered(request_digest, payload)}
        next_state.phase = rule.then
        next_state.erase(rule.erases)
        self._forget_keys(rule.erases)
        next_state.mask_secrets = {}
        if rule.then is Phase.DONE:
            next_state.peers = {}
        next_state.released = next_state.released or rule.releases
        self._state = next_state
        return Reply(payload, rule.charged)

    def _check_alive(self) -> None:
        if self._state.tombstone:
            raise PrivacyRefusal(
                f"this attempt is ended at this party: {self._state.tombstone}",
                "a new attempt needs fresh keys",
                code="attempt-ended",
            )
