"""Parses and writes messages of a federation, checks their version, and parses the bytes of any peer's message."""

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from undersong_common.canonical import tagged_hash
from undersong_common.errors import (
    ConfigurationError,
    InternalError,
    PeerFault,
    PrivacyRefusal,
    RoundAborted,
    TransportError,
    UndersongError,
)
from undersong_common.printable import printable
from undersong_protocol.limits import LARGEST_MANIFEST_BYTES, LARGEST_PARTIES
from undersong_protocol.wire.messages import federation_pb2 as wire

_Message = TypeVar("_Message", bound=Message)
_Body = TypeVar("_Body", wire.Request, wire.Reply)

VERSION = 3
NO_MESSAGE = "sent bytes that are not a message", "check that the peer is Undersong"
LONGEST_WORDS = 600  # largest number of characters that are read of a refusal
LARGEST_BLOCKS_BYTES = 128 * 2**20  # size of all public blocks in one request
LARGEST_BLOCKS = 4096
# Sizes of a request's body by its kind, without blocks: several times what the largest accepted manifest needs.
LARGEST_BODY_BYTES = {
    "introduce": 4096,
    "propose": LARGEST_MANIFEST_BYTES + 4096,
    "agree": LARGEST_MANIFEST_BYTES + 256 * LARGEST_PARTIES,
    "open_sum": 16 * 2**20,
    "prepare_sum": 16 * 2**20,
    "sum_step": 16 * 2**20,
    "void_sum": 4096,
    "close_run": 4096,
    "suspend_run": 4096,
}

_OPEN_SUM = wire.Request.OPEN_SUM_FIELD_NUMBER
_BODIES = {field.number: name for name, field in wire.Request.DESCRIPTOR.fields_by_name.items()}
_KINDS: dict[type[UndersongError], wire.Refusal.Kind] = {  # kind of refusal, by the class of its error
    ConfigurationError: wire.Refusal.CONFIGURATION,
    PrivacyRefusal: wire.Refusal.PRIVACY,
    PeerFault: wire.Refusal.PROTOCOL,
    RoundAborted: wire.Refusal.ABORTED,
    TransportError: wire.Refusal.LATER,
}


def parsed(
    message_class: type[_Message], data: bytes, sender: str, problem: str, remedy: str = "", code: str = ""
) -> _Message:
    """Parses a message of this class. Raises PeerFault that names ``sender``, with ``problem``, for malformed bytes."""
    try:
        return message_class.FromString(data)
    except DecodeError:
        raise PeerFault(sender, problem, remedy, code=code) from None


def decode_request(data: bytes) -> wire.Request:
    """Parses a request. Raises PeerFault of the coordinator if it is malformed, too large or of another version."""
    _check_sizes(data, "coordinator")
    return _check_message(parsed(wire.Request, data, "coordinator", *NO_MESSAGE), "coordinator")


def decode_reply(data: bytes, party: str) -> wire.Reply:
    """Parses a reply. Raises PeerFault that names ``party`` if it is malformed or of another version."""
    return _check_message(parsed(wire.Reply, data, party, *NO_MESSAGE), party)


def introduction_digest(challenge: bytes, address: str, introduction: wire.Introduction) -> bytes:
    """Returns the SHA-256 that a party signs to introduce itself; it is valid for this challenge and address only.

    Args:
        address: address of the party as each side knows it by itself: :func:`flower_address` in Flower, else "".
    """
    statement_parts = (
        introduction.name.encode(),
        introduction.identity,
        introduction.software.encode(),
        introduction.embedder,
    )
    statistic_names = [name.encode() for name in introduction.statistics]
    return tagged_hash("undersong introduction", challenge, address.encode(), *statement_parts, *statistic_names)


def flower_address(run: int, node: int) -> str:
    """Returns the address of a Flower SuperNode (``node``) in a Flower run, for :func:`introduction_digest`."""
    return f"flower/{run}/{node}"


def batch(record: Mapping[str, object], key: str) -> list[bytes]:
    """Returns the messages under ``key`` in a record from Flower; [] if the value is not a list of bytes."""
    messages = record.get(key)
    if isinstance(messages, list) and all(isinstance(message, bytes) for message in messages):
        return messages
    return []


def _check_message(message: _Body, peer: str) -> _Body:
    if message.version != VERSION:
        raise PeerFault(
            peer,
            f"speaks version {message.version} of the protocol, this program speaks {VERSION}",
            "run the same version of Undersong at the coordinator and at every party",
        )
    if message.WhichOneof("body") is None:
        raise PeerFault(peer, "sent a message without content", "run the same version of Undersong everywhere")
    return message


def _check_sizes(data: bytes, peer: str) -> None:
    bytes_by_field: Counter[int] = Counter()
    for field_number, field_content in field_sizes(data, peer, largest_count=16):
        if field_number == _OPEN_SUM:
            block_bytes = _count_block_bytes(field_content, peer)
        else:
            block_bytes = 0
        bytes_by_field[field_number] += len(field_content) - block_bytes
    for field_number, field_bytes in bytes_by_field.items():
        body_kind = _BODIES.get(field_number, "")
        if field_bytes > LARGEST_BODY_BYTES.get(body_kind, 4096):
            raise PeerFault(
                peer,
                f"sent {body_kind or 'an unknown field'} of {field_bytes} bytes;"
                f" {LARGEST_BODY_BYTES.get(body_kind, 4096)} are allowed",
                "plan a smaller run",
            )


def _count_block_bytes(body: memoryview, peer: str) -> int:
    """Returns the bytes of all public blocks in an OpenSum message. Raises PeerFault if they are too many."""
    block_sizes = [
        len(field_content)
        for field_number, field_content in field_sizes(body, peer, largest_count=LARGEST_BLOCKS + 256)
        if field_number == wire.OpenSum.BLOCKS_FIELD_NUMBER
    ]
    if len(block_sizes) > LARGEST_BLOCKS or sum(block_sizes) > LARGEST_BLOCKS_BYTES:
        raise PeerFault(
            peer,
            f"sent {len(block_sizes)} public blocks of {sum(block_sizes)} bytes in one request; {LARGEST_BLOCKS} of"
            f" {LARGEST_BLOCKS_BYTES} are allowed",
            "plan a smaller run",
        )
    return sum(block_sizes)


def refusal(error: UndersongError) -> wire.Reply:
    """Converts an error to a reply for the coordinator, with its words for peers; an unexpected error shows none of its
    own.
    """
    refusal_kind = next(
        (refusal_kind for error_class, refusal_kind in _KINDS.items() if isinstance(error, error_class)), None
    )
    if refusal_kind is None:
        return wire.Reply(
            version=VERSION,
            refusal=wire.Refusal(
                kind=wire.Refusal.INTERNAL,
                problem="an internal error; its log has the details",
                remedy="look into the party's log",
            ),
        )
    return wire.Reply(version=VERSION, refusal=wire.Refusal(kind=refusal_kind, problem=error.told, remedy=error.remedy))


def raise_refusal(party: str, message: wire.Refusal) -> None:
    """Raises a refusal that ``party`` sent, as an error of the same class whose message names the party."""
    problem = printable(message.problem, LONGEST_WORDS)
    remedy_words = printable(message.remedy, LONGEST_WORDS)
    if message.kind == wire.Refusal.PROTOCOL:
        raise PeerFault(party, problem, remedy_words)
    refusal_class = next(
        (error_class for error_class, refusal_kind in _KINDS.items() if refusal_kind == message.kind), InternalError
    )
    verb = "cannot answer now" if message.kind == wire.Refusal.LATER else "refuses"
    raise refusal_class(f"{party} {verb}: {problem}", remedy_words)


def field_sizes(data: bytes | memoryview, peer: str, *, largest_count: int) -> list[tuple[int, memoryview]]:
    """Lists (field number, content) of every field of a protobuf message, in order, without parsing inner messages.

    Args:
        peer: sender, for errors.
        largest_count: largest number of fields.

    Raises:
        PeerFault: the message has more fields than ``largest_count``, or is malformed.
    """
    data_view = memoryview(data)
    numbered_fields: list[tuple[int, memoryview]] = []
    position = 0
    while position < len(data_view):
        if len(numbered_fields) >= largest_count:
            raise PeerFault(
                peer, f"sent a message of more than {largest_count} fields", "run the same version everywhere"
            )
        tag, position = _read_varint(data_view, position, peer)
        content_start = position
        match tag & 7:
            case 0:  # varint
                _, position = _read_varint(data_view, position, peer)
            case 1:  # eight bytes
                position += 8
            case 2:  # a length and so many bytes
                content_bytes, content_start = _read_varint(data_view, position, peer)
                position = content_start + content_bytes
            case 5:  # four bytes
                position += 4
            case _:
                raise _malformed_message(peer)
        if position > len(data_view):
            raise _malformed_message(peer)
        numbered_fields.append((tag >> 3, data_view[content_start:position]))
    return numbered_fields


def _read_varint(view: memoryview, position: int, peer: str) -> tuple[int, int]:
    varint = bit_shift = 0
    while position < len(view) and bit_shift < 64:
        varint_byte = view[position]
        varint |= (varint_byte & 0x7F) << bit_shift
        position += 1
        if varint_byte < 0x80:
            return varint, position
        bit_shift += 7
    raise _malformed_message(peer)


def _malformed_message(peer: str) -> PeerFault:
    return PeerFault(peer, *NO_MESSAGE)


RECORD = "undersong"  # name of the record that a Flower message carries
REQUESTS = "requests"  # list of bytes
REPLIES = "replies"  # list of bytes, as many as the requests, or none
MESSAGE_TYPE = "query"
