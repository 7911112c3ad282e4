"""Fine-tuning a local encoder (BERT and its kin) as the task model: slower than a head, but it reads texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Float64
from undersong_common.errors import ConfigurationError
from undersong_common.fine_tuning import FineTuning, load, logits, optimise
from undersong_server.evaluation.task_model import VALIDATION_SHARE


@dataclass(frozen=True, eq=False)
class FineTunedModel:
    """A fine-tuned classifier of texts; ``labels`` names the columns of ``probabilities``."""

    labels: tuple[str, ...]
    description: str
    _model: Any = field(repr=False)
    _tokenizer: Any = field(repr=False)
    _settings: FineTuning

    def probabilities(self, texts: Sequence[str]) -> Float64:
        """float64 [n, L]; rows sum to 1."""
        import torch

        found = torch.from_numpy(logits(self._model, self._tokenizer, texts, self._settings))
        return np.asarray(torch.softmax(found, dim=1).numpy(), dtype=np.float64)

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The most probable label of each text."""
        return [self.labels[column] for column in np.argmax(self.probabilities(texts), axis=1)]


def fine_tune(
    texts: Sequence[str],
    labels: Sequence[str],
    settings: FineTuning,
    *,
    weights: npt.ArrayLike | None = None,
    seed: int = 0,
) -> FineTunedModel:
    """Fine-tunes the whole model and keeps the epoch with the lowest loss on a held-out fifth.

    Runs on a GPU where torch sees one. torch's global random state is restored afterwards. Raises ConfigurationError
    where the folder holds no usable model, or labels or weights do not fit.
    """
    import torch

    names, number = np.unique(np.asarray(labels, dtype=object).astype(str), return_inverse=True)
    if len(names) < 2 or len(texts) != len(labels):
        raise ConfigurationError(
            f"{len(texts)} texts with {len(labels)} labels, {len(names)} different",
            "give every text one of two or more",
        )
    w = np.ones(len(texts)) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != (len(texts),) or not np.isfinite(w).all() or (w < 0).any() or w.sum() <= 0:
        raise ConfigurationError(f"weights of shape {w.shape} for {len(texts)} texts are not usable", "one >= 0 a text")
    w = w * (len(w) / w.sum())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, tokenizer = load(settings.path, len(names))
        model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        order = np.random.default_rng([seed, 0xBE27]).permutation(len(texts))
        held = order[: max(1, round(VALIDATION_SHARE * len(texts)))]
        epoch = optimise(
            model,
            tokenizer,
            texts,
            number.ravel(),
            w,
            fit=order[len(held) :],
            held=held,
            settings=settings,
            shuffled=lambda rows: rows[torch.randperm(len(rows)).numpy()],
        )
    description = f"fine-tuned {settings.path.name} (epoch {epoch} of {settings.epochs})"
    return FineTunedModel(tuple(str(name) for name in names), description, model, tokenizer, settings)
