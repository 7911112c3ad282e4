"""Sets of parties on the wire: bit i % 8 of byte i / 8 is party i of the roster; one encoding per set."""

from __future__ import annotations

from collections.abc import Iterable

from undersong_common.errors import PeerFault


def to_bitmap(parties: Iterable[int], size: int) -> bytes:
    """The bitmap of ``parties`` over a roster of ``size``.

    >>> to_bitmap({0, 9}, 10).hex()
    '0102'
    """
    bits = 0
    for party in parties:
        bits |= 1 << party
    return bits.to_bytes((size + 7) // 8, "little")


def from_bitmap(data: bytes, size: int, sender: str, what: str) -> tuple[int, ...]:
    """Ascending members of a bitmap. Raises PeerFault naming ``sender`` for another length or padding bits set."""
    bits = int.from_bytes(data, "little")
    if len(data) != (size + 7) // 8 or bits >> size:
        raise PeerFault(sender, f"{what} is no set over a roster of {size} parties")
    return tuple([party for party, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"])
