"""An embedding that can be reasoned about: one fixed random direction a word, summed and normalised."""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np

from undersong_common.arrays import Float32, Float64

DIMENSION = 64


def embed(texts: Sequence[str]) -> Float32:
    """float32 [n, 64] unit vectors; texts that share words are near each other."""
    out = np.zeros((len(texts), DIMENSION))
    for row, text in enumerate(texts):
        for word in text.lower().replace(",", " ").replace(".", " ").split():
            out[row] += direction_of(word, DIMENSION)
    return (out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-9)).astype(np.float32)


@functools.lru_cache(maxsize=20_000)
def direction_of(text: str, dimension: int) -> Float64:
    """Returns a random direction that is always the same for a text, float64 [dimension], not normalised."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).normal(size=dimension)
