"""Encoders from token ids to vectors: the packaged model in numpy, or a sentence-transformers folder in torch.

Torch comes with the extra ``embed``.

The packaged all-MiniLM-L6-v2 is a BERT of six layers (Devlin et al. 2019). Numpy is as fast at it as torch, so that a
party needs no torch. The cosine of both is above 1 - 1e-5; their bits differ, and so do their fingerprints.
"""

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from undersong_common import extras
from undersong_common.arrays import Float32, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.printable import encodable
from undersong_common.workers import one_torch_thread

_DEFAULT_WINDOW = 512  # tokens, where a folder names no limit
_PROBE = "card"  # a text whose special tokens are those of any text

# x * sigmoid(x * p(x^2)) is within 3e-5 of GELU; coefficients of p, fitted by weighted least squares on [0, 6].
_GELU = tuple(np.float32(each) for each in (1.5950150649863502, 0.07401207108563489, -0.0007031960750579506))
_GELU_SQUARE = np.float32(36.0)  # p is taken at most there

Mask = npt.NDArray[np.bool_]


class Encoder(Protocol):
    """Interface of a model that turns texts into token ids and token ids into vectors.

    Attributes:
        window: largest number of tokens that the model reads at once, special tokens included.
        special: numbers of special tokens before a text's own tokens, and after them.
        pad: token id that fills up a short row.
    """

    window: int
    special: tuple[int, int]
    pad: int

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns each text's token ids, special tokens included, without a limit on their number.

        Raises what a tokenizer raises.
        """

    def vectors(self, ids: Int64, mask: Mask) -> Float32:
        """Returns one vector per row of ids [rows, width], float32 [rows, d]; ``mask`` is False where a row is padded.

        A row has the same bits in every call with ids of the same shape. Several threads may call at once.
        """


class NumpyBert:
    """A BERT with mean pooling, computed by numpy in float32 from the files of its folder.

    Raises ConfigurationError for weights or settings that are not such a model's.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        settings = json.loads((folder / "config.json").read_bytes())
        weights = load_file(folder / "model.safetensors")
        if settings.get("model_type") != "bert" or settings.get("hidden_act") != "gelu":
            raise ConfigurationError(f"{folder}: is no BERT with GELU", "install the packaged model anew")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.pad = int(settings["pad_token_id"])
        self.window = int(json.loads((folder / "sentence_bert_config.json").read_bytes())["max_seq_length"])
        self.special = special_around(self._tokenizer.encode(_PROBE).special_tokens_mask)
        self._heads = int(settings["num_attention_heads"])
        self._epsilon = np.float32(settings["layer_norm_eps"])
        self._words = weights["embeddings.word_embeddings.weight"]
        places, kind = (
            weights["embeddings.position_embeddings.weight"],
            weights["embeddings.token_type_embeddings.weight"],
        )
        self._places = places + kind[0]
        self._norm = _pair(weights, "embeddings.LayerNorm")
        self._layers = [self._layer(weights, f"encoder.layer.{n}.") for n in range(settings["num_hidden_layers"])]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self._tokenizer.encode_batch_fast([encodable(text.strip()) for text in texts])]

    def vectors(self, ids: Int64, mask: Mask) -> Float32:
        (rows, width), heads = ids.shape, self._heads
        states = _normalised(
            (self._words[ids] + self._places[:width]).reshape(rows * width, -1), self._norm, self._epsilon
        )
        size = states.shape[1]
        hidden = np.where(mask, np.float32(0), np.float32(-np.inf))[:, None, None, :]
        for attention, joined, attention_norm, up, down, norm in self._layers:
            parts = _linear(states, attention).reshape(rows, width, 3, heads, size // heads)
            queries, keys, values = np.ascontiguousarray(parts.transpose(2, 0, 3, 1, 4))
            scores = queries @ keys.swapaxes(-1, -2)
            scores += hidden
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            found = scores @ values
            found /= scores.sum(axis=-1, keepdims=True)
            found = _linear(found.transpose(0, 2, 1, 3).reshape(rows * width, size), joined)
            found += states
            states = _normalised(found, attention_norm, self._epsilon)
            found = _linear(_gelu(_linear(states, up)), down)
            found += states
            states = _normalised(found, norm, self._epsilon)
        shown = mask.astype(np.float32)[:, :, None]
        result: Float32 = (states.reshape(rows, width, size) * shown).sum(axis=1) / shown.sum(axis=1)
        return result

    def _layer(self, weights: dict[str, Float32], place: str) -> tuple[Any, ...]:
        parts = [_transposed(weights, f"{place}attention.self.{name}") for name in ("query", "key", "value")]
        scale = np.float32((self._words.shape[1] // self._heads) ** -0.5)
        parts[0] = (parts[0][0] * scale, parts[0][1] * scale)
        return (
            (np.concatenate([each for each, _ in parts], axis=1), np.concatenate([bias for _, bias in parts])),
            _transposed(weights, f"{place}attention.output.dense"),
            _pair(weights, f"{place}attention.output.LayerNorm"),
            _transposed(weights, f"{place}intermediate.dense"),
            _transposed(weights, f"{place}output.dense"),
            _pair(weights, f"{place}output.LayerNorm"),
        )


class TorchModel:
    """A sentence-transformers model from a local folder, computed by torch on the CPU."""

    def __init__(self, folder: Path) -> None:
        with without_collections(), extras.named(str(folder)):
            from sentence_transformers import SentenceTransformer

            model: Any = SentenceTransformer(
                str(folder),
                device="cpu",
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
        self.model = model.eval()
        self._lower = bool(getattr(model[0], "do_lower_case", False))
        self.window = int(model.max_seq_length or _DEFAULT_WINDOW)
        self.special = special_around(model.tokenizer(_PROBE, return_special_tokens_mask=True)["special_tokens_mask"])
        self.pad = int(model.tokenizer.pad_token_id or 0)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        given = [encodable(text.strip().lower() if self._lower else text.strip()) for text in texts]
        found: list[list[int]] = self.model.tokenizer(given, truncation=False, padding=False, verbose=False)[
            "input_ids"
        ]
        return found

    def vectors(self, ids: Int64, mask: Mask) -> Float32:
        import torch

        features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
        with one_torch_thread(), torch.inference_mode():
            found: Float32 = self.model(features)["sentence_embedding"].float().cpu().numpy()
        return found


def special_around(mask: Sequence[int]) -> tuple[int, int]:
    """Returns the numbers of special tokens before and after a text's own, from its mask (1: special, 0: own)."""
    shown = [place for place, special in enumerate(mask) if not special]
    return (shown[0], len(mask) - 1 - shown[-1]) if shown else (0, 0)


def _pair(weights: dict[str, Float32], name: str) -> tuple[Float32, Float32]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _transposed(weights: dict[str, Float32], name: str) -> tuple[Float32, Float32]:
    return np.ascontiguousarray(weights[f"{name}.weight"].T), weights[f"{name}.bias"]


def _linear(states: Float32, layer: tuple[Float32, Float32]) -> Float32:
    found: Float32 = states @ layer[0]
    found += layer[1]
    return found


def _normalised(states: Float32, layer: tuple[Float32, Float32], epsilon: np.float32) -> Float32:
    """Layer normalisation of each row; ``states`` is overwritten."""
    states -= states.mean(axis=1, keepdims=True)
    variances = np.einsum("nd,nd->n", states, states)[:, None] / np.float32(states.shape[1])
    states *= np.float32(1) / np.sqrt(variances + epsilon)
    states *= layer[0]
    states += layer[1]
    return states


def _gelu(values: Float32) -> Float32:
    """GELU within 3e-5, float32 of any shape."""
    squares = np.minimum(values * values, _GELU_SQUARE)
    odds: Float32 = squares * -_GELU[2]
    odds -= _GELU[1]
    odds *= squares
    odds -= _GELU[0]
    odds *= values
    with np.errstate(over="ignore"):  # e^88 is infinite, and the result then zero
        np.exp(odds, out=odds)
    odds += np.float32(1)
    np.divide(values, odds, out=odds)
    return odds


@contextmanager
def without_collections() -> Iterator[None]:
    """Stops Python's garbage collection within the block, to import large libraries faster.

    Collection finds nothing among four thousand imported modules and takes a sixth of their loading time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
