"""A party's secret state between messages, and its serialisation, which the caller must encrypt at rest."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import DecodeError

from undersong_common.errors import ConfigurationError
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.sid import VERSION
from undersong_protocol.secagg.transitions import SECRETS, Phase, Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire

Replies = Callable[[Stage, int], bytes | None]
"""(stage, roll) -> the reply that was given; None where it is not known."""


class Peer(NamedTuple):
    """Keys and shares of another party that this party holds; for itself, the shares that it keeps.

    ``agreed`` is the X25519 secret of both channel keys, with which the other party's shares are decrypted;
    ``identity`` the enrolled key of a neighbour that this party drew (Merkle graph).
    """

    channel_key: bytes = b""
    agreed: bytes = b""
    mask_key: bytes = b""
    nonce_commitment: bytes = b""
    self_share: bytes = b""
    mask_share: bytes = b""
    channel_kem: bytes = b""
    mask_kem: bytes = b""
    identity: bytes = b""

    def __repr__(self) -> str:
        return "Peer(hidden)"

    @property
    def is_public(self) -> bool:
        """True if it holds what every party was shown, and nothing secret."""
        return not (self.agreed or self.self_share or self.mask_share)

    @classmethod
    def from_wire(cls, peer: wire.Peer) -> "Peer":
        return cls(
            peer.channel_key,
            peer.agreed,
            peer.mask_key,
            peer.nonce_commitment,
            peer.self_share,
            peer.mask_share,
            peer.channel_kem,
            peer.mask_kem,
            peer.identity,
        )

    def to_wire(self, index: int) -> wire.Peer:
        return wire.Peer(
            party=index,
            channel_key=self.channel_key,
            agreed=self.agreed,
            mask_key=self.mask_key,
            nonce_commitment=self.nonce_commitment,
            self_share=self.self_share,
            mask_share=self.mask_share,
            channel_kem=self.channel_kem,
            mask_kem=self.mask_kem,
            identity=self.identity,
        )


@dataclass(frozen=True, repr=False)
class Answered:
    """A request's SHA-256 and the reply that every repetition of the request gets."""

    request: bytes
    reply: bytes


@dataclass(repr=False)
class PartyState:
    """The whole state of a party in one attempt; its fields are explained at ``Snapshot`` in secagg.proto.

    ``secrets`` are erased in place. ``mask_secrets`` holds, by roster index, the secret of each pairwise mask. It is
    filled only between the request for a vector and the vector, and so is never in a snapshot.
    """

    phase: Phase
    advert: bytes
    secrets: dict[str, bytearray]
    adverts_hash: bytes = b""
    transcript: bytes = b""
    question: bytes = b""
    rolls: int = 0
    present: tuple[int, ...] = ()
    sharers: tuple[int, ...] = ()
    survivors: tuple[int, ...] = ()
    drawn: tuple[int, ...] = ()
    choosers: tuple[int, ...] = ()
    peers: dict[int, Peer] = field(default_factory=dict)
    mask_secrets: dict[int, bytes] = field(default_factory=dict)
    answered: dict[tuple[Stage, int], Answered] = field(default_factory=dict)
    tombstone: str = ""
    released: bool = False

    def secret(self, name: str) -> bytes:
        """Returns a secret by name; raises KeyError if it was erased."""
        return bytes(self.secrets[name])

    def recorded_reply(self, stage: Stage) -> tuple[bytes, bytes]:
        """Returns (body, signature) of the reply that this party gave to a stage."""
        reply = wire.Reply.FromString(self.answered[stage, 0].reply)
        return reply.body, reply.signature

    def erase(self, names: tuple[str, ...]) -> None:
        """Overwrites and forgets secrets by name. Python may hold further short-lived copies."""
        for secret_name in names:
            secret = self.secrets.pop(secret_name, None)
            if secret is not None:
                secret[:] = bytes(len(secret))

    def to_bytes(self, parameters: SumParameters, party: int, without: Collection[tuple[Stage, int]]) -> bytes:
        """Serialises the state; equal states give equal bytes.

        Args:
            without: replies, by stage and roll, to leave out, which the caller stores beside the snapshot.
        """
        indexed_peers = sorted(self.peers.items())
        snapshot_message = wire.Snapshot(
            version=VERSION,
            sid=parameters.sid,
            terms=parameters.terms,
            party=party,
            phase=int(self.phase),
            **{secret_name: bytes(secret) for secret_name, secret in self.secrets.items()},
            advert=self.advert,
            adverts_hash=self.adverts_hash,
            transcript=self.transcript,
            question=self.question,
            rolls=self.rolls,
            present=self.present,
            sharers=self.sharers,
            survivors=self.survivors,
            drawn=self.drawn,
            choosers=self.choosers,
            peers=[peer.to_wire(index) for index, peer in indexed_peers if not peer.is_public],
            answered=[
                wire.Answered(
                    stage=int(stage),  # type: ignore[arg-type]
                    roll=roll,
                    request=answer.request,
                    reply=b"" if (stage, roll) in without else answer.reply,
                )
                for (stage, roll), answer in sorted(self.answered.items())
            ],
            tombstone=self.tombstone,
            released=self.released,
        ).SerializeToString(deterministic=True)
        return b"".join(
            [
                snapshot_message,
                *(_serialise_public_peer(index, peer) for index, peer in indexed_peers if peer.is_public),
            ]
        )

    @classmethod
    def from_bytes(cls, parameters: SumParameters, party: int, data: bytes, replies: Replies) -> "PartyState":
        """Reads a state. Raises ConfigurationError if it is damaged, or of another version, sum or party.

        Args:
            replies: returns a reply, by stage and roll, that was left out of the snapshot.
        """
        message = wire.Snapshot()
        try:
            message.ParseFromString(data)
        except DecodeError:
            message = wire.Snapshot()
        damaged_error = ConfigurationError(
            f"the stored state of {parameters.query!r} attempt {parameters.attempt} is damaged or of another sum",
            "restore the party's journal; without it the attempt must be voided",
            code="damaged-state",
        )
        if (message.version, message.sid, message.terms, message.party) != (
            VERSION,
            parameters.sid,
            parameters.terms,
            party,
        ):
            raise damaged_error
        answer_by_stage = {}
        for stored_answer in message.answered:
            stage = Stage(stored_answer.stage)
            reply = stored_answer.reply or replies(stage, stored_answer.roll)
            if not reply:
                raise damaged_error
            answer_by_stage[stage, stored_answer.roll] = Answered(stored_answer.request, reply)
        return cls(
            phase=Phase(message.phase),
            advert=message.advert,
            secrets={
                secret_name: bytearray(secret_bytes)
                for secret_name in SECRETS
                if (secret_bytes := getattr(message, secret_name))
            },
            adverts_hash=message.adverts_hash,
            transcript=message.transcript,
            question=message.question,
            rolls=message.rolls,
            present=tuple(message.present),
            sharers=tuple(message.sharers),
            survivors=tuple(message.survivors),
            drawn=tuple(message.drawn),
            choosers=tuple(message.choosers),
            peers={peer.party: Peer.from_wire(peer) for peer in message.peers},
            answered=answer_by_stage,
            tombstone=message.tombstone,
            released=message.released,
        )


@lru_cache(maxsize=1 << 12)
def _serialise_public_peer(index: int, peer: Peer) -> bytes:
    """Returns a peer as an entry of a snapshot's list, cached: simulated parties of a large graph hold the same."""
    return wire.Snapshot(peers=[peer.to_wire(index)]).SerializeToString(deterministic=True)
