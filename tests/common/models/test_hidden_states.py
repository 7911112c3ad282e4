"""A small causal model as an embedder: its rows depend on one text, and its folder is checked when it is prepared."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.common.models.test_embedding import some_texts, threads
from tests.doubles.pace import slow_after
from tests.doubles.tiny_llama import SENTENCES, save_tiny_llama
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embedder
from undersong_common.models.hidden_states import ARRAYS, Axes, main, prepare
from undersong_common.models.model_files import HIDDEN_STATES

pytestmark = pytest.mark.heavy
PUBLIC = [*SENTENCES, *(text for text in some_texts(7, 30) if text)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="module")
def folder(model: Path) -> Path:
    """The folder that the command line makes."""
    texts = model.parent / "public.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in PUBLIC), encoding="utf-8")
    made = model.parent / "prepared"
    main([str(model), str(made), "--texts", str(texts), "--layer", "1", "--size", "8", "--window", "40"])
    return made


@pytest.mark.slow
@pytest.mark.parametrize("count", slow_after([2, 1, 3, 4], 1))
def test_a_text_has_the_same_bits_on_any_threads_beside_any_texts(folder: Path, count: int) -> None:
    """A text in one window and one in several, alone and among others, in any order; each row has norm 1 or 0."""
    embedder = Embedder.load(folder)
    texts = [*SENTENCES, " ".join(SENTENCES), " ".join(SENTENCES * 2), "pain", ""]
    expected = [embedder.encode([text])[0].tobytes() for text in texts]
    rng = np.random.default_rng(count)
    with threads(count):
        together = [*texts, *some_texts(count, 12)]
        order = rng.permutation(len(together))
        rows = embedder.encode([together[place] for place in order])
    assert embedder.lengths(texts).long == 2
    assert embedder.dimension == rows.shape[1] == 8
    assert {
        place: row.tobytes() for place, row in zip(order.tolist(), rows, strict=True) if place < len(texts)
    } == dict(enumerate(expected))
    lengths = np.linalg.norm(rows, axis=1)
    assert np.all((np.abs(lengths - 1.0) < 1e-6) | (lengths == 0.0))
    assert not rows[list(order).index(len(texts) - 1)].any()  # the empty text says nothing


def test_hidden_state_coordinates_are_public_differences_and_map_back(model: Path, folder: Path) -> None:
    """The mean of the public texts lies at zero, and what goes into the layer and comes back is the same."""
    axes = Axes.read(folder)
    scale = axes.back @ axes.into
    assert np.allclose(scale, scale[0, 0] * np.eye(8), atol=1e-3 * scale[0, 0])
    assert scale[0, 0] > 1  # a unit vector is as long as a public text's difference
    assert Embedder.load(folder).fingerprint != Embedder.load(other_map(model)).fingerprint


def other_map(model: Path) -> Path:
    made = model.parent / "other"
    if not made.exists():
        prepare(model, made, PUBLIC, layer=2, size=8, window=40)
    return made


def test_hidden_states_that_cannot_be_prepared_are_refused(model: Path, folder: Path, tmp_path: Path) -> None:
    for texts, layer, size, made in (
        (PUBLIC, 1, 8, folder),  # which exists
        (PUBLIC[:8], 1, 8, tmp_path / "few"),
        (PUBLIC, 3, 8, tmp_path / "deep"),
        (PUBLIC, 0, 8, tmp_path / "none"),
    ):
        with pytest.raises(ConfigurationError):
            prepare(model, made, texts, layer=layer, size=size)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["weights", "map", "size", "number"])
def test_a_damaged_folder_is_refused_before_a_text_is_read(model: Path, tmp_path: Path, fault: str) -> None:
    from safetensors.numpy import load_file, save_file

    made = tmp_path / "made"
    prepare(model, made, PUBLIC, layer=1, size=8)
    if fault == "weights":
        weights = load_file(made / "model.safetensors")
        del weights["model.layers.0.mlp.up_proj.weight"]
        save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
    elif fault == "map":
        save_file({"mean": np.zeros(3, dtype=np.float32)}, made / ARRAYS)
    else:
        changed = {"layer": 1, "size": 9 if fault == "size" else -1, "window": 40}
        (made / HIDDEN_STATES).write_text(json.dumps(changed))
    with pytest.raises(ConfigurationError):
        Embedder.load(made).try_out()
