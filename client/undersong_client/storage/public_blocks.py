"""Stores public blocks on disk by the hash of their content, and keeps recently used ones decoded in memory."""

import contextlib
import os
from collections import OrderedDict
from pathlib import Path

from undersong_client.home import make_folder
from undersong_common.errors import PeerFault
from undersong_common.files import replace_file
from undersong_protocol.wire.public import Block, block_id, decode_block

MEMORY_BYTES = 256 * 2**20
DISK_BYTES = 4 * 2**30


class DiskBlocks:
    """Implements ``undersong_protocol.wire.public.BlockStore``.

    Args:
        folder: folder with one file per block; the coordinator sends lost blocks again.
        memory_bytes: largest size of the decoded blocks in memory.
        disk_bytes: largest size of all files; beyond it the least recently read ones are deleted.
    """

    def __init__(self, folder: Path, memory_bytes: int = MEMORY_BYTES, disk_bytes: int = DISK_BYTES) -> None:
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._disk_bytes = disk_bytes
        self._bytes_on_disk: int | None = None  # None until the first block is added
        self._decoded: OrderedDict[bytes, Block] = OrderedDict()
        self._decoded_bytes = 0

    def get(self, identity: bytes) -> Block | None:
        """Returns a block; None if the store lacks it or its file is damaged."""
        if (decoded_block := self._decoded.get(identity)) is not None:
            self._decoded.move_to_end(identity)
            return decoded_block
        path = self._path(identity)
        try:
            block_bytes = path.read_bytes()
        except FileNotFoundError:
            return None
        if block_id(block_bytes) != identity:
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return self._remember(decode_block(block_bytes))

    def add(self, data: bytes) -> Block:
        """Stores a block. Raises PeerFault if the block is malformed."""
        block_hash = block_id(data)
        if (decoded_block := self._decoded.get(block_hash)) is not None:
            return decoded_block
        block = decode_block(data)
        path = self._path(block_hash)
        if not path.exists():
            make_folder(path.parent)
            replace_file(path, data)
            self._make_room(len(data), kept_path=path)
        return self._remember(block)

    def _make_room(self, added_bytes: int, kept_path: Path) -> None:
        if self._bytes_on_disk is not None and self._bytes_on_disk + added_bytes <= self._disk_bytes:
            self._bytes_on_disk += added_bytes
            return
        files = sorted(((path, path.stat()) for path in self._folder.glob("*/*")), key=lambda file: file[1].st_mtime)
        self._bytes_on_disk = sum(file_stat.st_size for _, file_stat in files)
        for path, stat in files:
            if self._bytes_on_disk <= self._disk_bytes:
                break
            if path != kept_path:
                path.unlink(missing_ok=True)
                self._bytes_on_disk -= stat.st_size

    def _path(self, block_hash: bytes) -> Path:
        if len(block_hash) != 32:
            raise PeerFault("coordinator", "names a public block by something that is no hash", code="no-hash")
        file_name = block_hash.hex()
        return self._folder / file_name[:2] / file_name

    def _remember(self, block: Block) -> Block:
        self._decoded[block.id] = block
        self._decoded_bytes += _size(block)
        while self._decoded_bytes > self._memory_bytes and len(self._decoded) > 1:
            _, dropped_block = self._decoded.popitem(last=False)
            self._decoded_bytes -= _size(dropped_block)
        return block


def _size(block: Block) -> int:
    if block.values is None:
        return sum(len(text) for text in block.texts) + 64 * len(block.texts)
    return int(block.values.nbytes) + (0 if block.labels is None else int(block.labels.nbytes))
