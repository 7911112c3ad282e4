"""Encoders from token ids to vectors, and the one for a sentence-transformers folder, which torch computes.

Torch comes with the extra ``embed``. The packaged model is computed by numpy (undersong_common.models.numpy_bert).
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Float32, Int64
from undersong_common.printable import encodable
from undersong_common.program import extras
from undersong_common.program.library_threads import one_library_thread

_DEFAULT_WINDOW = 512  # tokens, where a folder names no limit
_PROBE = "card"  # a text whose special tokens are those of any text

Mask = npt.NDArray[np.bool_]
Tokens = npt.NDArray[np.int32]  # ids of one text or window


class Encoder(Protocol):
    """Interface of a model that turns texts into token ids, and windows of token ids into vectors.

    Attributes:
        window: largest number of tokens that the model reads at once, special tokens included.
        special: numbers of special tokens before a text's own tokens, and after them.
    """

    window: int
    special: tuple[int, int]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns each text's token ids, special tokens included, without a limit on their number.

        Raises what a tokenizer raises.
        """

    def batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Returns the numbers of the windows of each batch; ``lengths`` are the windows' numbers of tokens."""

    def vectors(self, windows: Sequence[Tokens]) -> Float32:
        """Returns one vector per window of a batch, float32 [n, d].

        A window has the same bits in every batch. Several threads may call at once.
        """


class PaddedEncoder(Protocol):
    """Interface of a model that reads rows of one width, as :mod:`undersong_common.models.fixed_shapes` gives them.

    Attributes:
        window, special: as those of an :class:`Encoder`.
        pad: token id that fills up a short row.
    """

    window: int
    special: tuple[int, int]
    pad: int

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns what :meth:`Encoder.ids` returns."""

    def vectors(self, ids: Int64, mask: Mask) -> Float32:
        """Returns one vector per row of ids [rows, width], float32 [rows, d]; ``mask`` is False where a row is padded.

        Several threads may call at once.
        """


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
        self._is_lower_case = bool(getattr(model[0], "do_lower_case", False))
        self.window = int(model.max_seq_length or _DEFAULT_WINDOW)
        self.special = special_around(model.tokenizer(_PROBE, return_special_tokens_mask=True)["special_tokens_mask"])
        self.pad = int(model.tokenizer.pad_token_id or 0)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        clean_texts = [encodable(text.strip().lower() if self._is_lower_case else text.strip()) for text in texts]
        ids_of_texts: list[list[int]] = self.model.tokenizer(
            clean_texts, truncation=False, padding=False, verbose=False
        )["input_ids"]
        return ids_of_texts

    def vectors(self, ids: Int64, mask: Mask) -> Float32:
        import torch

        features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
        with one_library_thread(), torch.inference_mode():
            embeddings: Float32 = self.model(features)["sentence_embedding"].float().cpu().numpy()
        return embeddings


def special_around(mask: Sequence[int]) -> tuple[int, int]:
    """Returns the numbers of special tokens before and after a text's own, from its mask (1: special, 0: own)."""
    text_positions = [position for position, is_special in enumerate(mask) if not is_special]
    if text_positions:
        return (text_positions[0], len(mask) - 1 - text_positions[-1])
    return (0, 0)


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
