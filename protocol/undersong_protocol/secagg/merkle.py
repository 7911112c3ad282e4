"""Merkle trees over a fixed number of leaves, and proofs of several leaves at once.

A root binds its label and the number of leaves. A leaf's hash binds its label and index (:func:`leaf`), and leaves,
nodes and roots are hashed under different labels, so that no leaf can pass for a node or a root. The last node of an
odd level moves up as it is: the number of leaves fixes which nodes do, and no leaf is counted twice.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from undersong_common.errors import InternalError, PeerFault
from undersong_protocol.secagg.sid import DIGEST_BYTES, Field, digest, encode

_NODE = hashlib.sha256(encode("merkle node", ()))

Places = list[npt.NDArray[np.int64]]
"""By level from the leaves up: indices of the nodes that a proof shows, ascending."""


def leaf(label: str, index: int, *fields: Field) -> bytes:
    """Returns the hash (32 bytes) of the leaf with this index."""
    return digest("merkle leaf", label, index, *fields)


class Tree:
    """A Merkle tree with all its nodes, from which proofs are made."""

    def __init__(self, label: str, leaves: Sequence[bytes]) -> None:
        if not leaves:
            raise InternalError(f"the Merkle tree {label!r} is to be made of no leaves", code="no-leaves")
        self._levels = []
        level = list(leaves)
        while True:
            self._levels.append(np.frombuffer(b"".join(level), np.uint8).reshape(-1, DIGEST_BYTES))
            if len(level) == 1:
                break
            node_pairs = [_hash_node(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
            level = node_pairs + level[len(node_pairs) * 2 :]
        self.root = _hash_root(label, len(leaves), level[0])

    def proof(self, places: Places) -> bytes:
        """Returns the nodes at ``places`` (:func:`places`), which prove the leaves that these were computed for."""
        return b"".join(level[nodes].tobytes() for level, nodes in zip(self._levels, places, strict=False))


def places(size: int, indices: Iterable[int]) -> Places:
    """Returns, per level of a tree of ``size`` leaves, the positions of the nodes that prove the leaves ``indices``."""
    proof_places: Places = []
    nodes = np.unique(np.fromiter(indices, np.int64))
    while size > 1:
        is_known = np.zeros(size + 1, dtype=bool)
        is_known[nodes] = True
        is_known[size] = True  # The last node of an odd level has no sibling to show.
        siblings = nodes ^ 1
        proof_places.append(siblings[~is_known[siblings]])
        nodes = np.unique(nodes >> 1)
        size = (size + 1) // 2
    return proof_places


def check(
    label: str, root: bytes, size: int, leaves: Mapping[int, bytes], proof: bytes, sender: str, subject: str
) -> None:
    """Raises PeerFault that names ``sender`` unless ``leaves`` ({index: hash}) are in the tree with this root.

    Args:
        proof: exactly the nodes that the computation lacks, level by level from the leaves up, ascending.
        subject: names the leaves in the error.
    """
    if leaves:
        required_node_count = sum(map(len, places(size, leaves)))
    else:
        required_node_count = -1  # No proof is valid for no leaves.
    proof_fault = PeerFault(sender, f"{subject}: not under the root that was shown", code="not-under-root")
    if len(proof) != required_node_count * DIGEST_BYTES:
        raise proof_fault
    proof_nodes = iter(
        [proof[start_byte : start_byte + DIGEST_BYTES] for start_byte in range(0, len(proof), DIGEST_BYTES)]
    )
    level = dict(sorted(leaves.items()))
    level_width = size
    while level_width > 1:
        parent_level: dict[int, bytes] = {}
        for index, node_digest in level.items():
            if index // 2 in parent_level:
                continue
            if index ^ 1 >= level_width:
                parent_level[index // 2] = node_digest
                continue
            if index ^ 1 in level:
                sibling_digest = level[index ^ 1]
            else:
                sibling_digest = next(proof_nodes)
            if index & 1:
                parent_level[index // 2] = _hash_node(sibling_digest, node_digest)
            else:
                parent_level[index // 2] = _hash_node(node_digest, sibling_digest)
        level = parent_level
        level_width = (level_width + 1) // 2
    if _hash_root(label, size, level[0]) != root:
        raise proof_fault


def _hash_node(left: bytes, right: bytes) -> bytes:
    hasher = _NODE.copy()
    hasher.update(left + right)
    return hasher.digest()


def _hash_root(label: str, size: int, top: bytes) -> bytes:
    return digest("merkle root", label, size, top)
