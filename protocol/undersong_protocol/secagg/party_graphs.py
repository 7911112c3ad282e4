"""The steps of one party in one attempt that depend on its mask graph: complete, k-regular or Merkle.

They check what the coordinator shows of the other parties, and fix the transcript to which every key is bound.
"""

from collections.abc import Sequence
from functools import lru_cache

from undersong_common.errors import InternalError, PeerFault, PrivacyRefusal
from undersong_common.printable import counted
from undersong_protocol.secagg import keys, merkle, sid
from undersong_protocol.secagg.drawn import draw
from undersong_protocol.secagg.graph import MaskGraph, drawn_graph, graph_seed
from undersong_protocol.secagg.messages import (
    COORDINATOR,
    adverts_from_wire,
    around_from_wire,
    drawn_bytes,
    from_bitmap,
    split_blocks,
    to_bitmap,
)
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.state import PartyState
from undersong_protocol.secagg.transitions import Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire

ROLLS = 8
"""Largest number of rounds in which nonces are revealed. A round is repeated if a party drops out of it, which uses up
one tolerated dropout."""
TELL_OPERATOR = "start a new attempt, and tell the coordinator's operator"


class CompleteGraph:
    """Every party exchanges masks and shares with every other one; the transcript follows from the adverts.

    The other graphs override some of its methods. A method changes the ``next_state`` that it is given.
    """

    largest_rolls = 0

    def __init__(self, parameters: SumParameters, index: int) -> None:
        self._parameters = parameters
        self._index = index

    def commit_nonce(self, state: PartyState) -> bytes:
        """Returns the advert's commitment to this party's nonces; empty for a graph that needs none."""
        return b""

    def reveal(self, next_state: PartyState, request: wire.RevealRequest) -> bytes:
        """Returns the body of the reply to a reveal request."""
        if request.roll != next_state.rolls or request.roll >= self.largest_rolls:
            raise PrivacyRefusal(
                f"the coordinator asks for nonce roll {request.roll}; roll {next_state.rolls} is next, of at most"
                f" {ROLLS}",
                "start a new attempt",
            )
        return self._answer_reveal(next_state, request)

    def _answer_reveal(self, next_state: PartyState, request: wire.RevealRequest) -> bytes:
        raise InternalError("a party on the complete graph was asked for a nonce, and it has none")

    def fix_transcript(self, next_state: PartyState, request: wire.ShareRequest | wire.MaskRequest) -> None:
        """Fixes the transcript and the peers of this attempt."""
        if request.nonces:
            raise PeerFault(COORDINATOR, "showed nonces although the graph is complete")
        self._adopt_adverts(next_state, request.adverts)

    def mask_graph(self, state: PartyState) -> MaskGraph:
        """Returns the mask graph; of a Merkle graph, only this party's part."""
        return self._parameters.topology(state.transcript)

    def bind_mask_key(self, mask_key: bytes) -> bytes:
        """Returns the part of a dealer's mask key to which its sealed shares are bound; empty but on a Merkle graph."""
        return b""

    def receives_from(self, state: PartyState, holder: int) -> bool:
        """Returns True if a holder of this party's shares deals shares to this party too."""
        return True

    def bind_question(self, state: PartyState) -> bytes:
        """Returns the bytes to which pairwise masks are bound: the question, on a Merkle graph together with U2."""
        return state.question

    def check_signers(self, state: PartyState, signers: Sequence[int]) -> int:
        """Checks whose signatures on U3 are shown, and returns how many are needed."""
        return self._parameters.threshold

    def identity_of(self, state: PartyState, signer: int) -> bytes:
        """Returns the enrolled identity key of a party that signs the list of survivors, U3."""
        return self._parameters.roster[signer].identity

    def check_set(self, parties: tuple[int, ...], set_name: str) -> None:
        """Raises PrivacyRefusal for a set without this party, or too small to hide one party in it."""
        if self._index not in parties:
            raise PrivacyRefusal(f"{set_name} omits this party, which has answered every request", TELL_OPERATOR)
        if len(parties) < self._parameters.quorum:
            set_size = counted(len(parties), "party", "parties")
            raise PrivacyRefusal(
                f"{set_name} has {set_size}, at least {self._parameters.quorum} are needed",
                "start a new attempt when more parties are present",
            )

    def _adopt_adverts(self, next_state: PartyState, signed_adverts: Sequence[wire.SignedAdvert]) -> None:
        """Checks the adverts of all parties and stores their keys. They fix U1, who advertised, and the transcript."""
        reader_entry = self._index, *next_state.recorded_reply(Stage.ADVERTISE)
        adverts = adverts_from_wire(self._parameters, signed_adverts, reader_entry)
        present_parties = tuple(adverts)
        self.check_set(present_parties, "the list of adverts")
        if adverts[self._index].body != next_state.advert:
            raise PrivacyRefusal(
                "the coordinator shows other keys for this party than it advertised (swapped keys)", TELL_OPERATOR
            )
        next_state.present = present_parties
        next_state.transcript = next_state.adverts_hash = adverts.hash
        next_state.peers = {party: peer for party, peer in adverts.peers.items() if party != self._index}


class RegularGraph(CompleteGraph):
    """The k-regular graph, drawn from nonces that all parties reveal; drawn again if a party drops out before that."""

    largest_rolls = ROLLS

    def commit_nonce(self, state: PartyState) -> bytes:
        return sid.advance(state.secret("nonce"), ROLLS)

    def _answer_reveal(self, next_state: PartyState, request: wire.RevealRequest) -> bytes:
        if request.roll == 0:
            self._adopt_adverts(next_state, request.adverts)
        revealers = from_bitmap(request.present, self._parameters.size, COORDINATOR, "who reveals nonces")
        if request.roll == 0 and revealers != next_state.present:
            raise PrivacyRefusal(
                "the coordinator asks others than those who advertised for the first nonces", TELL_OPERATOR
            )
        if request.roll and not set(revealers) < set(next_state.present):
            parameters = self._parameters
            raise PrivacyRefusal(
                f"{parameters.query}, attempt {parameters.attempt}: the coordinator asks for nonces anew"
                " although nobody dropped out",
                "start a new attempt",
            )
        self.check_set(revealers, "the nonce round")
        next_state.present = revealers
        next_state.rolls += 1
        return _reveal_nonce(next_state, request.roll)

    def fix_transcript(self, next_state: PartyState, request: wire.ShareRequest | wire.MaskRequest) -> None:
        parameters = self._parameters
        if request.adverts:
            raise PeerFault(COORDINATOR, "showed adverts again after the nonces were revealed")
        nonce_blocks = split_blocks(
            request.nonces, sid.DIGEST_BYTES, len(next_state.present), COORDINATOR, "revealed nonces"
        )
        roll_number = next_state.rolls - 1
        expected_commitments = _commit_nonces(request.nonces, roll_number + 1)
        for party, nonce, commitment in zip(next_state.present, nonce_blocks, expected_commitments, strict=True):
            if party == self._index:
                if nonce != _reveal_nonce(next_state, roll_number):
                    raise PrivacyRefusal("the coordinator shows another nonce for this party than it revealed")
            elif commitment != next_state.peers[party].nonce_commitment:
                raise PeerFault(
                    parameters.name(party), "its nonce is not the one it committed to", "start a new attempt"
                )
        present_bitmap = to_bitmap(next_state.present, parameters.size)
        next_state.transcript = graph_seed(
            sid.roll_hash(next_state.adverts_hash, roll_number, present_bitmap), nonce_blocks
        )
        neighbours = set(self.mask_graph(next_state).neighbours(self._index, next_state.present))
        next_state.peers = {party: peer for party, peer in next_state.peers.items() if party in neighbours}


class MerkleGraph(CompleteGraph):
    """Each party draws its neighbours with coins that nobody else knows, under the root of all adverts."""

    largest_rolls = 1

    def _answer_reveal(self, next_state: PartyState, request: wire.RevealRequest) -> bytes:
        """Fixes the transcript, then draws the neighbours."""
        parameters = self._parameters
        self_index = self._index
        if request.adverts:
            raise PeerFault(COORDINATOR, "showed adverts with the root of all, before this party drew its neighbours")
        present_parties = from_bitmap(request.present, parameters.size, COORDINATOR, "who advertised keys")
        self.check_set(present_parties, "the root of adverts")
        own_leaf = {self_index: merkle.leaf("advert", self_index, next_state.advert)}
        merkle.check(
            "adverts",
            request.root,
            parameters.size,
            own_leaf,
            request.path,
            COORDINATOR,
            "the keys that this party advertised",
        )
        next_state.present = present_parties
        next_state.adverts_hash = request.root
        next_state.transcript = sid.rooted_hash(parameters.sid, parameters.terms, request.root, request.present)
        draw_coins = keys.hkdf(next_state.transcript, next_state.secret("nonce"), b"draw")
        next_state.drawn = draw(parameters.size, self_index, parameters.draw.degree, draw_coins)
        next_state.rolls = 1
        return drawn_bytes(next_state.drawn)

    def fix_transcript(self, next_state: PartyState, request: wire.ShareRequest | wire.MaskRequest) -> None:
        """Checks and stores the keys of parties that this one drew or that drew it. The transcript is fixed already."""
        if not isinstance(request, wire.ShareRequest):
            raise InternalError("the Merkle graph fixes its peers in the share-keys round")
        self.mask_graph(next_state).check(self._index, next_state.present, "U1 (who advertised keys)")
        next_state.choosers, next_state.peers = around_from_wire(self._parameters, self._index, next_state, request)

    def mask_graph(self, state: PartyState) -> MaskGraph:
        return drawn_graph(self._parameters.draw, {self._index: state.drawn}, {self._index: state.choosers})

    def bind_mask_key(self, mask_key: bytes) -> bytes:
        # A chooser's mask key comes without its signature, but the chooser's shares open under its true key alone.
        return mask_key

    def receives_from(self, state: PartyState, holder: int) -> bool:
        return holder in state.choosers

    def bind_question(self, state: PartyState) -> bytes:
        return sid.masked_among(state.question, to_bitmap(state.sharers, self._parameters.size))

    def check_signers(self, state: PartyState, signers: Sequence[int]) -> int:
        if not set(signers) <= set(state.drawn):
            raise PrivacyRefusal(
                "U3 is signed by parties that this one did not draw (foreign signatures)", TELL_OPERATOR
            )
        return self._parameters.share_threshold

    def identity_of(self, state: PartyState, signer: int) -> bytes:
        return state.peers[signer].identity


def graph_of(parameters: SumParameters, index: int) -> CompleteGraph:
    """Returns the object with a party's steps for the mask graph that the parameters fix."""
    if parameters.merkle:
        return MerkleGraph(parameters, index)
    if parameters.graph is not None:
        return RegularGraph(parameters, index)
    return CompleteGraph(parameters, index)


def _reveal_nonce(state: PartyState, roll: int) -> bytes:
    return sid.advance(state.secret("nonce"), ROLLS - 1 - roll)


@lru_cache(maxsize=1)
def _commit_nonces(nonces: bytes, step_count: int) -> tuple[bytes, ...]:
    """Returns the commitments to revealed nonces; the parties of a simulation are shown the same nonces."""
    nonce_starts = range(0, len(nonces), sid.DIGEST_BYTES)
    return tuple(
        [sid.advance(nonces[nonce_start : nonce_start + sid.DIGEST_BYTES], step_count) for nonce_start in nonce_starts]
    )
