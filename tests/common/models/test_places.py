"""Like places of a product: what a kernel treats alike is found, and a text's bits do not depend on where it stands."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.doubles.tiny_bert import write_numpy_bert
from undersong_common.arrays import Bools, Float32
from undersong_common.models import places
from undersong_common.models.numpy_bert import NumpyBert
from undersong_common.models.places import TOKENS, Layer, Product, like_places

EDGES = (np.arange(TOKENS) < 8) | (np.arange(TOKENS) >= TOKENS - 8)
SIXES = np.arange(TOKENS) // 6 % 2 == 1
MIDDLE = EDGES | (np.arange(TOKENS) // 4 == 25)
NOWHERE = np.zeros(TOKENS, dtype=np.bool_)
EVERYWHERE = np.arange(TOKENS)


def kernel(different: Any) -> Product:
    """A product of which some places give other last bits, in one shape; the others take one order of additions."""

    def product(columns: Float32, layer: Layer) -> Float32:
        outputs = (layer[0][:, :, None] * columns).sum(axis=1) + layer[1]
        if columns.shape[1] == TOKENS:
            outputs *= 1 + np.asarray(different, dtype=np.float32) * np.float32(2.0**-20)
        return outputs

    return product


LAYERS = [
    (
        np.random.default_rng(outputs).standard_normal((outputs, 12), dtype=np.float32),
        np.zeros((outputs, 1), np.float32),
    )
    for outputs in (12, 36)
]


@pytest.mark.parametrize(
    ("features_first", "tokens_first", "expected"),
    [
        (NOWHERE, NOWHERE, (0, 0, TOKENS, 1)),
        (EDGES, SIXES, (0, 8, TOKENS - 16, 1)),
        (SIXES, EDGES, (1, 8, TOKENS - 16, 1)),
        (EVERYWHERE, SIXES, (1, 0, 204, 12)),
        (MIDDLE, EVERYWHERE, None),
        (EVERYWHERE, EVERYWHERE, None),
    ],
)
def test_matrix_places_count_as_alike_if_the_kernel_computes_them_alike(
    monkeypatch: pytest.MonkeyPatch, features_first: Bools, tokens_first: Bools, expected: tuple[int, ...] | None
) -> None:
    monkeypatch.setattr(places, "PRODUCTS", products := (kernel(features_first), kernel(tokens_first)))
    run = like_places(LAYERS)
    assert run == like_places(LAYERS)
    assert expected == (run and (products.index(run.product), run.first, run.count, run.period))


def test_shape_of_one_layer_suffices_to_exclude_a_matrix_place(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, edges = kernel(NOWHERE), kernel(EDGES)

    def product(columns: Float32, layer: Layer) -> Float32:
        return (edges if len(layer[0]) == 36 else whole)(columns, layer)

    monkeypatch.setattr(places, "PRODUCTS", (product,))
    run = like_places(LAYERS)
    assert run is not None
    assert (run.first, run.count) == (8, TOKENS - 16)


@pytest.mark.parametrize("product", places.PRODUCTS)
def test_plain_and_transposed_matrix_product_agree(product: Product) -> None:
    columns = np.random.default_rng(0).standard_normal((12, 30), dtype=np.float32)
    for weights, bias in LAYERS:
        outputs = product(columns, (weights, bias + 1))
        assert outputs.flags.c_contiguous
        np.testing.assert_allclose(outputs, weights @ columns + 1, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numpy_bert(tmp_path_factory.mktemp("bert"), size=48, window=64)


def different_rows(bert: NumpyBert) -> int:
    """Number of windows that have other bits in a batch, or in another order of it, than alone."""
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(2, 40, 30), [64, 64, 2, 2, 2, 7, 7]])
    windows = [rng.integers(4, 80, length).astype(np.int32) for length in lengths]
    alone = [bert.vectors([window])[0].tobytes() for window in windows]
    orders = [np.arange(len(windows)), rng.permutation(len(windows))]
    different = 0
    for order in orders:
        rows = bert.vectors([windows[number] for number in order])
        different += sum(row.tobytes() != alone[number] for number, row in zip(order, rows, strict=True))
    return different


KERNELS = {"all alike": (NOWHERE,), "edges": (EDGES,), "sixes": (EVERYWHERE, SIXES), "no two": (EVERYWHERE,)}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_window_has_the_same_bits_among_any_others_on_any_kernel(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str
) -> None:
    monkeypatch.setattr(places, "PRODUCTS", tuple(kernel(different) for different in KERNELS[name]))
    bert = NumpyBert(folder)
    assert (bert.places is None) == (name == "no two")
    assert different_rows(bert) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["edges", "sixes", "no two"])
def test_embedding_bits_depend_on_the_batch_without_table_of_like_places(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str
) -> None:
    product = kernel(KERNELS[name][-1])
    monkeypatch.setattr(
        "undersong_common.models.numpy_bert.like_places", lambda _: places.Places(product, 0, TOKENS, 1)
    )
    assert different_rows(NumpyBert(folder)) > 0


def test_batches_hold_every_window_once_and_waste_few_token_positions(folder: Path) -> None:
    bert = NumpyBert(folder)
    lengths = np.random.default_rng(1).integers(2, 64, 500).tolist()
    batches = bert.batches(lengths)
    assert sorted(number for batch in batches for number in batch) == list(range(500))
    room = bert.places.count if bert.places else TOKENS
    used = [sum(lengths[number] for number in batch) for batch in batches]
    assert sum(-(-tokens // room) * room for tokens in used) <= 1.1 * sum(lengths)
    assert bert.batches([]) == []
