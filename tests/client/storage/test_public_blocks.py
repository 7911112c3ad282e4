"""Public blocks on disk."""

import os
import time

import numpy as np
import pytest

from tests.doubles.coded import raises
from undersong_client.storage.public_blocks import DiskBlocks
from undersong_common.errors import PeerFault
from undersong_common.models.embedding import publishable
from undersong_protocol.wire import public


def block(seed: int = 0, rows: int = 20) -> bytes:
    values = publishable(np.random.default_rng(seed).normal(size=(rows, 16)).astype(np.float32))
    return public.encode_embeddings(values, np.zeros(rows, dtype=np.int64))


def test_public_blocks_survive_a_restart_and_a_damaged_one_is_absent(tmp_path):
    data = block()
    identity = DiskBlocks(tmp_path).add(data).id
    again = DiskBlocks(tmp_path)
    assert np.array_equal(again.get(identity).values, public.decode_block(data).values)
    (path,) = tmp_path.glob("*/*")
    path.write_bytes(data[:-1])
    assert DiskBlocks(tmp_path).get(identity) is None
    assert not path.exists()
    assert DiskBlocks(tmp_path).get(b"x" * 32) is None


def test_public_blocks_use_bounded_memory_and_none_is_lost(tmp_path):
    blocks = DiskBlocks(tmp_path, memory_bytes=4000)
    identities = [blocks.add(block(seed)).id for seed in range(10)]
    assert len(blocks._decoded) <= 4
    assert all(blocks.get(identity) is not None for identity in identities)
    assert len(blocks._decoded) <= 4


@pytest.mark.parametrize("identity", [b"", b"../../../etc/passwd", b"x" * 33])
def test_public_block_name_that_is_no_hash_is_refused(tmp_path, identity):
    with raises(PeerFault, "no-hash"):
        DiskBlocks(tmp_path).get(identity)


def test_malformed_public_block_is_not_stored(tmp_path):
    with pytest.raises(PeerFault):
        DiskBlocks(tmp_path).add(b"junk")
    assert list(tmp_path.iterdir()) == []


def test_folder_of_public_blocks_is_bounded_and_keeps_the_last_read(tmp_path):
    size = len(block())
    blocks = DiskBlocks(tmp_path, memory_bytes=0, disk_bytes=4 * size + 100)
    first = blocks.add(block(0)).id
    for seed in range(1, 12):
        os.utime(tmp_path / first.hex()[:2] / first.hex(), (time.time() + seed, time.time() + seed))
        blocks.add(block(seed))
        held = sum(path.stat().st_size for path in tmp_path.glob("*/*"))
        assert held <= 4 * size + 100
    assert held > 3 * size
    assert DiskBlocks(tmp_path).get(first) is not None


@pytest.mark.parametrize("oldest", range(4))
def test_least_recently_read_public_block_is_deleted_first(tmp_path, oldest):
    blocks = DiskBlocks(tmp_path, memory_bytes=0, disk_bytes=4 * len(block()) + 100)
    identities = [blocks.add(block(seed)).id for seed in range(4)]
    for number, identity in enumerate(identities):
        read_s = 1_000.0 if number == oldest else 2_000.0
        os.utime(tmp_path / identity.hex()[:2] / identity.hex(), (read_s, read_s))
    blocks.add(block(4))
    held = [(tmp_path / identity.hex()[:2] / identity.hex()).exists() for identity in identities]
    assert held == [number != oldest for number in range(4)]
