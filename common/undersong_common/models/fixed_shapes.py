"""Batches of fixed shapes for models that torch computes; each shape is tried out before a text is embedded in it.

Batches have one of a few widths, chosen by a window's number of tokens. All batches of a width have the same number of
rows, and the last one is filled up. Where a trial shows that a row's vector depends on its place in the batch or on the
other rows, batches of that width have one row.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from undersong_common.arrays import Float32, Int64
from undersong_common.models.encoders import Mask, PaddedEncoder, Tokens
from undersong_common.models.workers import in_order

log = logging.getLogger(__name__)

# Measured with all-MiniLM-L6-v2 on one core: 128 to 256 tokens are within a tenth of each other, for notes and for
# short questions; larger batches leave the cache, and filling up the last one costs more.
_TOKENS_A_BATCH = 192
_NARROWEST = 4  # tokens; widths are multiples of it, or of an eighth of the next power of two
_TRIAL_WORDS = ("alpha", "of", "the", "chest", "was", "1987")  # words of the texts that try out a batch


class FixedShapes:
    """An :class:`undersong_common.models.encoders.Encoder` on top of one that reads padded rows.

    Args:
        padded: the model.
        dimension: number of coordinates of its vectors.
        alone: True has one row in every batch. A model with a mixture of experts needs it: how many tokens an expert
            reads, and so the shape of its products, depends on all rows, which no trial can show.
    """

    def __init__(self, padded: PaddedEncoder, dimension: int, *, alone: bool = False) -> None:
        self._padded = padded
        self._dimension = dimension
        self._alone = alone
        self._rows: dict[int, int] = {}  # rows of a batch, by its width
        self.window = padded.window
        self.special = padded.special

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self._padded.ids(texts)

    def batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Returns the numbers of the windows of each batch, the widest batches first."""
        texts_by_width: dict[int, list[int]] = {}
        for text_number, length in enumerate(lengths):
            texts_by_width.setdefault(batch_width(length, self.window), []).append(text_number)
        return [
            texts_by_width[width][batch_start : batch_start + self.batch_rows(width)]
            for width in sorted(texts_by_width, reverse=True)
            for batch_start in range(0, len(texts_by_width[width]), self.batch_rows(width))
        ]

    def vectors(self, windows: Sequence[Tokens]) -> Float32:
        """Returns one vector per window of a batch, float32 [n, d].

        If the model fails at the batch, each window is computed by itself in a batch of the same shape, and its vector
        is zero if that fails. A window has the same bits either way, because the trial of the shape has shown it.
        """
        window_width = batch_width(len(windows[0]), self.window)
        batch_size = self.batch_rows(window_width)
        (filler_ids,) = self._padded.ids([""])
        filler_rows = [np.array(filler_ids, dtype=np.int32)] * (batch_size - len(windows))
        try:
            return self._compute_rows([*windows, *filler_rows], window_width)[: len(windows)]
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a model raises
            log.warning("the embedding model fails at a text: %s", type(error).__name__)
        vectors = np.zeros((len(windows), self._dimension), dtype=np.float32)
        for batch_row, window in enumerate(windows):
            with suppress(Exception):
                vectors[batch_row] = self._compute_rows([window] * batch_size, window_width)[0]
        return vectors

    def batch_rows(self, width: int) -> int:
        """Returns the number of rows in a batch of that width: one if rows change each other, which is tried once."""
        if width not in self._rows:
            if self._alone or width >= self.window:
                row_count = 1
            else:
                row_count = max(1, _TOKENS_A_BATCH // width)
            if row_count > 1 and not self._are_independent(row_count, width):
                row_count = 1
            self._rows[width] = row_count
        return self._rows[width]

    def _are_independent(self, size: int, width: int) -> bool:
        """Returns True if a text has the same bits in every row of a batch, beside itself and beside other texts.

        False also if the model fails at that width: then each text is embedded by itself.
        """
        try:
            trial_texts = [" ".join(_TRIAL_WORDS[first_index:] * width) for first_index in range(len(_TRIAL_WORDS))]
            trial_ids, *other_texts = (np.array(ids, dtype=np.int32) for ids in self._padded.ids(trial_texts))
            other_rows = [ids[: width - 1 - text_number % (width - 2)] for text_number, ids in enumerate(other_texts)]
            trial_row = trial_ids[: width // 2 + 1]
            has_trial_row = np.stack([np.full(size, True), np.arange(size) % 2 == 0, np.arange(size) % 2 == 1])
            batches = [
                [
                    trial_row if is_trial_row else other_rows[(trial + batch_row) % len(other_rows)]
                    for batch_row, is_trial_row in enumerate(trial_places)
                ]
                for trial, trial_places in enumerate(has_trial_row)
            ]
            trial_vectors = np.stack(list(in_order(lambda rows: self._compute_rows(rows, width), batches)))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - whatever a model raises
            return False
        return all(vector.tobytes() == trial_vectors[0, 0].tobytes() for vector in trial_vectors[has_trial_row])

    def _compute_rows(self, rows: Sequence[Tokens], width: int) -> Float32:
        return self._padded.vectors(*_padded_rows(rows, width, self._padded.pad))


def _padded_rows(rows: Sequence[Tokens], width: int, pad: int) -> tuple[Int64, Mask]:
    """Returns padded ids, int64 [rows, width], and a mask that is True at a text's tokens."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), width), pad, dtype=np.int64)
    for batch_row, row in enumerate(rows):
        ids[batch_row, : len(row)] = row
    return ids, np.arange(width) < lengths[:, None]


def batch_width(token_count: int, limit: int) -> int:
    """Returns the width of the batches for a text of so many tokens, below the limit at least one more than it has.

    torch computes a batch whose rows are all full in another way, without a mask. With one free place in every row no
    text can cause that for others. At the limit, where a row may be full, batches have one row.

    >>> [batch_width(tokens, 256) for tokens in (2, 7, 8, 40, 70, 255, 256)]
    [4, 8, 12, 48, 80, 256, 256]
    """
    padded_count = token_count + 1
    width_step = max(_NARROWEST, (1 << (padded_count - 1).bit_length()) // 8)
    return min(-(-padded_count // width_step) * width_step, limit)
