"""Finds the places of a matrix product that a kernel treats alike: where a row stands there changes none of its bits.

The order of a product's additions depends on its shape, the kernel and a row's place in it, never on values. So one
product with the same row at every place shows, for its shape, which places are alike. On kernels for AVX2 places
alternate every 6 rows; with the product turned round (features by tokens), all but the first and last 8 are alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Bools, Float32

TOKENS = 208  # places of a product: small enough for the second-level cache, and 192 of them are alike with AVX2
# Candidate periods, in places: after how many a kernel may treat the next place like the first one.
PERIODS = (1, 4, 6, 8, 12, 16, 24)
# Tokens of a typical text. Texts begin at multiples of the period, and free places weigh less beside a longer text.
_TYPICAL_TEXT = 32
_LITTLE_WASTE = 1.1  # places for each token, up to which the other of the two PRODUCTS is not tried
_MOST_WASTE = 1.4  # places for each token, from which one product for each text costs no more

Layer = tuple[Float32, Float32]  # weights [outputs, inputs] and bias [outputs, 1]
Product = Callable[[Float32, Layer], Float32]


@dataclass(frozen=True)
class Places:
    """A run of places in products over ``TOKENS`` columns; places a multiple of ``period`` apart are alike.

    Attributes:
        product: the function, one of ``PRODUCTS``, that computes these products.
        first: number of the first place.
        count: number of places, a multiple of ``period``.
        period: a text that begins at a multiple of it has the same bits wherever it begins.
    """

    product: Product
    first: int
    count: int
    period: int

    @property
    def cost(self) -> float:
        """Number of places in a product for each token of typical texts."""
        return TOKENS / self.count * (_TYPICAL_TEXT + (self.period - 1) / 2) / _TYPICAL_TEXT


def features_by_tokens(columns: Float32, layer: Layer) -> Float32:
    """Returns weights @ columns + bias, float32 [outputs, n] of columns [inputs, n]."""
    weights, bias = layer
    outputs: Float32 = weights @ columns
    outputs += bias
    return outputs


def tokens_by_features(columns: Float32, layer: Layer) -> Float32:
    """Returns the same as :func:`features_by_tokens`, computed with the tokens as rows."""
    weights, bias = layer
    outputs = np.ascontiguousarray((columns.T @ weights.T).T)
    outputs += bias
    return outputs


PRODUCTS: tuple[Product, ...] = (features_by_tokens, tokens_by_features)


def like_places(layers: Sequence[Layer]) -> Places | None:
    """Returns the places that are alike in the products of all ``layers``, or None if too few are.

    Call it with as many library threads as the products will use. Two calls on one machine return the same, because no
    time is measured.
    """
    best_places = None
    for product in PRODUCTS:
        outputs = [_one_row_everywhere(product, layer) for layer in layers]
        for period in PERIODS:
            places = _longest_run(product, outputs, period)
            if places.count and places.cost <= (_MOST_WASTE if best_places is None else best_places.cost - 1e-9):
                best_places = places
        if best_places is not None and best_places.cost <= _LITTLE_WASTE:
            break
    return best_places


def _one_row_everywhere(product: Product, layer: Layer) -> Float32:
    """Returns a product's outputs for the same row at every place, float32 [outputs, TOKENS]."""
    row: Float32 = np.random.default_rng(0).standard_normal((layer[0].shape[1], 1), dtype=np.float32)
    return product(np.repeat(row, TOKENS, axis=1), layer)


def _longest_run(product: Product, trial_outputs: Sequence[Float32], period: int) -> Places:
    """Returns the longest run of places that are alike, a ``period`` apart, in all outputs; its count may be 0."""
    # It is True where a place and the one a period later have equal bits.
    is_alike: Bools = np.ones(TOKENS - period, dtype=np.bool_)
    for outputs in trial_outputs:
        is_alike &= (outputs[:, period:] == outputs[:, :-period]).all(axis=0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_alike, [False]]).astype(np.int8)))
    run_starts = edges[::2]
    run_lengths = np.diff(edges)[::2]
    if not len(run_starts):
        return Places(product, 0, 0, period)
    longest_index = int(run_lengths.argmax())
    return Places(
        product, int(run_starts[longest_index]), (int(run_lengths[longest_index]) + period) // period * period, period
    )
