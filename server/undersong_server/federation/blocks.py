"""The public blocks of a run: what its method publishes and its parties are sent, each once, in the journal."""

from __future__ import annotations

from collections.abc import Callable

from undersong_common.errors import InternalError
from undersong_protocol.public import block_id
from undersong_server.journal import Journal


class PublicBlocks:
    """Serialised public blocks by their id, the SHA-256 of their bytes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def add(self, data: bytes) -> bytes:
        """Keeps a serialised block; returns its id, 32 bytes."""
        identity = block_id(data)
        self._journal.put(_key(identity), data)
        return identity

    def get(self, identity: bytes) -> bytes:
        """The block's bytes. Raises InternalError where it was never added."""
        data = self._journal.get(_key(identity))
        if data is None:
            raise InternalError(f"the public block {identity.hex()[:12]} is not in the journal")
        return data

    def published(self, name: str, encode: Callable[[], bytes]) -> bytes:
        """Id of the block that was published under ``name``; the first time ``encode`` makes it.

        A resumed run publishes the journaled bytes: an embedding computed anew, on another machine, could differ in its
        last bit.
        """
        identity = self._journal.get(name)
        if identity is None:
            identity = self.add(encode())
            self._journal.put(name, identity)
        return identity


def _key(identity: bytes) -> str:
    return f"block/{identity.hex()}"
