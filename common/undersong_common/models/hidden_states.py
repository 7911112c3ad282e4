"""Embeds texts as a language model's mean hidden states of one layer, and maps embeddings back into that layer.

A folder holds a causal model as ``save_pretrained`` writes it and two files more, which :func:`prepare` makes from
public texts: settings, and a linear map from the layer's states, minus their public mean, to a few coordinates. The
coordinates lie along the principal axes of the public texts' standardised states. A random projection to 64
coordinates kept a third of the length of a label's mean difference; these axes kept three quarters (docs/vector.md).
All files are in the fingerprint.

    python -m undersong_common.models.hidden_states MODEL_FOLDER NEW_FOLDER --texts corpus.jsonl --layer 9 --size 64
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.models.encoders import Mask, special_around, without_collections
from undersong_common.models.model_files import HIDDEN_STATES, check_language_model, hidden_state_settings
from undersong_common.printable import encodable
from undersong_common.program import extras
from undersong_common.program.library_threads import one_library_thread
from undersong_common.text.table import read_table

ARRAYS = "hidden_states.safetensors"
WINDOW = 256  # default number of tokens that the model reads at once
_LEAST_DEVIATION = 1e-3  # smallest divisor of a coordinate that hardly varies, as a share of the median deviation
_SPECIAL_TOKENS_OF = "card"  # a text whose special tokens are those of any text


@dataclass(frozen=True)
class Axes:
    """Linear maps between a layer's hidden states (size h) and the coordinates of embeddings (size d).

    Attributes:
        layer: number of layers that a text has passed where the states are read, at least 1.
        mean: mean over the public texts of their mean states, float32 [h].
        into: matrix from states minus the mean to coordinates, float32 [h, d].
        back: matrix from differences of embeddings to differences of states, float32 [d, h].
    """

    layer: int
    mean: Float32
    into: Float32
    back: Float32

    @classmethod
    def read(cls, folder: Path) -> "Axes":
        """Reads the maps from a folder made by :func:`prepare`.

        Raises ConfigurationError if the files are missing or their shapes contradict each other.
        """
        from safetensors.numpy import load_file

        settings = hidden_state_settings(folder)
        try:
            axis_arrays = load_file(folder / ARRAYS)
            axes = cls(settings["layer"], axis_arrays["mean"], axis_arrays["into"], axis_arrays["back"])
        except Exception as error:  # noqa: BLE001 - whatever a damaged file makes the library raise
            raise ConfigurationError(f"{folder / ARRAYS}: cannot be read: {error}", "prepare the folder anew") from None
        state_size = len(axes.mean)
        stated_size = settings["size"]
        if axes.into.shape != (state_size, stated_size) or axes.back.shape != (stated_size, state_size):
            raise ConfigurationError(
                f"{folder / ARRAYS}: its arrays do not fit the stated {stated_size} coordinates",
                "prepare the folder anew",
            )
        return axes


class _Layers:
    """The first layers of a causal model and its tokenizer."""

    def __init__(self, folder: Path, layer_number: int) -> None:
        with without_collections(), extras.named(str(folder)):
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            loading_options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
            try:
                self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, **loading_options)
                causal_model, loading_report = AutoModelForCausalLM.from_pretrained(
                    folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **loading_options
                )
            except Exception as error:  # noqa: BLE001 - a broken folder makes the library fail in any way
                raise ConfigurationError(
                    f"{folder}: cannot be loaded as a causal model: {error}", "name a complete folder"
                ) from None
        if loading_report["missing_keys"]:  # The library draws missing weights at random.
            raise ConfigurationError(
                f"{folder}: lacks weights of its model", "copy the model's whole folder there again"
            )
        model = causal_model.get_decoder()
        layers = getattr(model, "layers", ())
        if not hasattr(model, "norm") or not 1 <= layer_number <= len(layers):
            raise ConfigurationError(
                f"{folder}: has no layer {layer_number} whose states can be read ({len(layers)} found)",
                "name another layer, or a causal model such as Gemma, Llama, Mistral or Qwen",
            )
        # Layers after this one are neither kept nor computed.
        model.layers, model.norm = layers[:layer_number], torch.nn.Identity()
        model.config.num_hidden_layers = layer_number
        self._model = model.eval()
        special_probe = self._tokenizer(_SPECIAL_TOKENS_OF, return_special_tokens_mask=True)
        self.special = special_around(special_probe["special_tokens_mask"])
        self.pad = int(self._tokenizer.pad_token_id or 0)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        clean_texts = [encodable(text.strip()) for text in texts]
        ids_of_texts: list[list[int]] = self._tokenizer(clean_texts, truncation=False, padding=False, verbose=False)[
            "input_ids"
        ]
        return ids_of_texts

    def means(self, ids: Int64, mask: Mask) -> Any:
        """Returns each row's mean state, a tensor [rows, h], without the special tokens before the text."""
        import torch

        attention_mask = torch.from_numpy(mask)
        layer_states = self._model(
            input_ids=torch.from_numpy(ids), attention_mask=attention_mask.to(torch.int64), use_cache=False
        ).last_hidden_state
        text_mask = attention_mask.clone()
        text_mask[:, : self.special[0]] = False
        return (layer_states * text_mask[:, :, None]).sum(dim=1) / text_mask.sum(dim=1, keepdim=True)


class HiddenStates(_Layers):
    """An :class:`Encoder` whose vectors are mean hidden states of a text's own tokens, computed by torch on the CPU."""

    def __init__(self, folder: Path) -> None:
        import torch

        axes = Axes.read(folder)
        super().__init__(folder, axes.layer)
        self.window = hidden_state_settings(folder)["window"]
        self._mean, self._into = torch.from_numpy(axes.mean), torch.from_numpy(axes.into)

    def vectors(self, ids: Int64, mask: Mask) -> Float32:
        """Returns each row's coordinates, float32 [rows, d]; NaN for a text without a token of its own."""
        import torch

        with one_library_thread(), torch.inference_mode():
            coordinates: Float32 = ((self.means(ids, mask) - self._mean) @ self._into).numpy()
        return coordinates


def prepare(model: Path, folder: Path, texts: Sequence[str], *, layer: int, size: int, window: int = WINDOW) -> None:
    """Copies a causal model's folder to the new ``folder`` and adds a linear map computed from public texts.

    Args:
        texts: more than ``size`` public texts; texts that the model itself wrote for the task are best.
        layer: number of the layer whose states are read, from 1; a middle one is usual.
        size: coordinates of an embedding.
        window: tokens that an embedding reads at once.

    Raises ConfigurationError if ``folder`` exists, the texts are too few, or the model has no such layer.
    """
    import torch

    check_language_model(model, "prepare")
    if folder.exists():
        raise ConfigurationError(f"{folder}: exists already", "name a new folder")
    layers = _Layers(model, layer)
    with one_library_thread(), torch.inference_mode():
        text_rows = [np.array([ids[:window]], dtype=np.int64) for ids in layers.ids(texts)]
        text_means = [layers.means(row, np.ones(row.shape, dtype=np.bool_))[0].numpy() for row in text_rows]
    finite_means = np.array([row for row in text_means if np.isfinite(row).all()], dtype=np.float64)
    if len(finite_means) <= size:
        raise ConfigurationError(
            f"{len(finite_means)} public texts are too few for {size} axes, which need more than {size}",
            "give more texts, or a lower size",
        )
    shutil.copytree(model, folder)
    from safetensors.numpy import save_file

    save_file(_axes(finite_means, size), folder / ARRAYS)
    (folder / HIDDEN_STATES).write_text(json.dumps({"layer": layer, "size": size, "window": window}) + "\n")


@one_library_thread()
def _axes(states: Float64, size: int) -> dict[str, Float32]:
    """Returns the arrays of :class:`Axes`: the principal axes of public states [n, h], each scaled to deviation 1."""
    mean = states.mean(axis=0)
    state_deviations = states.std(axis=0)
    state_deviations = np.maximum(state_deviations, _LEAST_DEVIATION * np.median(state_deviations) + 1e-12)
    standard_states = (states - mean) / state_deviations
    axes = np.linalg.svd(standard_states, full_matrices=False)[2][:size]
    # Embeddings are unit vectors, so that the matrix ``back`` has to restore a typical length.
    typical_length = float(np.median(np.linalg.norm(standard_states @ axes.T, axis=1)))
    axis_arrays = {
        "mean": mean,
        "into": axes.T / state_deviations[:, None],
        "back": typical_length * axes * state_deviations,
    }
    return {
        array_name: np.ascontiguousarray(axis_array, dtype=np.float32) for array_name, axis_array in axis_arrays.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs :func:`prepare` with the options of a command line."""
    argument_parser = argparse.ArgumentParser(
        prog="python -m undersong_common.models.hidden_states", description=prepare.__doc__
    )
    argument_parser.add_argument("model", type=Path)
    argument_parser.add_argument("folder", type=Path)
    argument_parser.add_argument("--texts", type=Path, required=True)
    argument_parser.add_argument("--layer", type=int, required=True)
    argument_parser.add_argument("--size", type=int, default=64)
    argument_parser.add_argument("--window", type=int, default=WINDOW)
    options = argument_parser.parse_args(arguments)
    public_texts = read_table(options.texts, "text").texts
    prepare(options.model, options.folder, public_texts, layer=options.layer, size=options.size, window=options.window)


if __name__ == "__main__":
    try:
        main()
    except ConfigurationError as error:
        sys.exit(str(error))
