"""Bytes to messages and back, with the version checked: the only place that parses what a peer sent."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from undersong_common.errors import (
    ConfigurationError,
    InternalError,
    PeerFault,
    PrivacyRefusal,
    RoundAborted,
    UndersongError,
)
from undersong_common.printable import printable
from undersong_protocol.messages import federation_pb2 as wire

VERSION = 2
LONGEST_WORDS = 600  # characters of a refusal that are read

_KINDS: dict[type[UndersongError], wire.Refusal.Kind] = {
    ConfigurationError: wire.Refusal.CONFIGURATION,
    PrivacyRefusal: wire.Refusal.PRIVACY,
    PeerFault: wire.Refusal.PROTOCOL,
    RoundAborted: wire.Refusal.ABORTED,
}


def decode_request(data: bytes) -> wire.Request:
    """Raises PeerFault (of the coordinator) for bytes that are no request of this version."""
    request = wire.Request()
    _parse(request, data, "coordinator")
    return request


def decode_reply(data: bytes, party: str) -> wire.Reply:
    """Raises PeerFault that names ``party`` for bytes that are no reply of this version."""
    reply = wire.Reply()
    _parse(reply, data, party)
    return reply


def _parse(message: wire.Request | wire.Reply, data: bytes, peer: str) -> None:
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise PeerFault(peer, "sent bytes that are not a message", "check that the peer is Undersong") from None
    if message.version != VERSION:
        raise PeerFault(
            peer,
            f"speaks version {message.version} of the protocol, this program speaks {VERSION}",
            "run the same version of Undersong at the coordinator and at every party",
        )
    if message.WhichOneof("body") is None:
        raise PeerFault(peer, "sent a message without content", "run the same version of Undersong everywhere")


def refusal(error: UndersongError) -> wire.Reply:
    """An error as the reply a peer reads; an unexpected one says no more than that it happened."""
    kind = next((kind for known, kind in _KINDS.items() if isinstance(error, known)), None)
    if kind is None:
        return wire.Reply(
            version=VERSION,
            refusal=wire.Refusal(
                kind=wire.Refusal.INTERNAL,
                problem="an internal error; its log has the details",
                remedy="look into the party's log",
            ),
        )
    return wire.Reply(version=VERSION, refusal=wire.Refusal(kind=kind, problem=error.problem, remedy=error.remedy))


def raise_refusal(party: str, message: wire.Refusal) -> None:
    """The refusal that ``party`` sent, as an error of the same kind that names it."""
    said, remedy = printable(message.problem, LONGEST_WORDS), printable(message.remedy, LONGEST_WORDS)
    problem = f"{party} refuses: {said}"
    if message.kind == wire.Refusal.CONFIGURATION:
        raise ConfigurationError(problem, remedy)
    if message.kind == wire.Refusal.PRIVACY:
        raise PrivacyRefusal(problem, remedy)
    if message.kind == wire.Refusal.ABORTED:
        raise RoundAborted(problem, remedy)
    if message.kind == wire.Refusal.PROTOCOL:
        raise PeerFault(party, said, remedy)
    raise InternalError(problem, remedy)
