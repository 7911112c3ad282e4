"""Sizes of the fields of a serialised message, read from its bytes before protobuf makes objects of it.

A field of two bytes becomes an object of fifty and more, so a bound on bytes alone is no bound on memory.
"""

from __future__ import annotations

from undersong_common.errors import PeerFault


def field_sizes(data: bytes | memoryview, peer: str, *, most: int) -> list[tuple[int, memoryview]]:
    """(number, content) of every field of the outermost message, in order; a number's own bytes are its content.

    Args:
        most: fields that are looked at.

    Raises:
        PeerFault: more fields than ``most``, or bytes that are no message.
    """
    view = memoryview(data)
    found: list[tuple[int, memoryview]] = []
    at = 0
    while at < len(view):
        if len(found) >= most:
            raise PeerFault(peer, f"sent a message of more than {most} fields", "run the same version everywhere")
        tag, at = _varint(view, at, peer)
        start = at
        match tag & 7:
            case 0:  # varint
                _, at = _varint(view, at, peer)
            case 1:  # eight bytes
                at += 8
            case 2:  # a length and so many bytes
                size, start = _varint(view, at, peer)
                at = start + size
            case 5:  # four bytes
                at += 4
            case _:
                raise _malformed(peer)
        if at > len(view):
            raise _malformed(peer)
        found.append((tag >> 3, view[start:at]))
    return found


def _varint(view: memoryview, at: int, peer: str) -> tuple[int, int]:
    value = shift = 0
    while at < len(view) and shift < 64:
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise _malformed(peer)


def _malformed(peer: str) -> PeerFault:
    return PeerFault(peer, "sent bytes that are not a message", "check that the peer is Undersong")
