"""Fine-tuning a local encoder (BERT and its kin) as the task model: slower than a head, but it reads texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError
from server.evaluation.task_model import VALIDATION_SHARE

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FineTuning:
    """How a local model is fine-tuned. Defaults are the usual ones for BERT-base (Devlin et al. 2019, A.3).

    Attributes:
        path: local folder with a transformers model and tokenizer; nothing is downloaded.
        warmup: share of the steps in which the learning rate rises; then it falls linearly to zero.
    """

    path: Path
    epochs: int = 4
    batch: int = 32
    learning_rate: float = 3e-5
    max_tokens: int = 256
    warmup: float = 0.1


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

        self._model.eval()
        device = next(self._model.parameters()).device
        parts = [np.zeros((0, len(self.labels)))]
        with torch.inference_mode():
            for start in range(0, len(texts), self._settings.batch):
                batch = _tokens(self._tokenizer, texts[start : start + self._settings.batch], self._settings, device)
                parts.append(torch.softmax(self._model(**batch).logits.double(), dim=1).cpu().numpy())
        return np.concatenate(parts)

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
        model, tokenizer = _load(settings.path, len(names))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model.to(device)
        order = np.random.default_rng([seed, 0xBE27]).permutation(len(texts))
        held = order[: max(1, round(VALIDATION_SHARE * len(texts)))]
        epoch = _optimise(model, tokenizer, texts, number.ravel(), w, order[len(held) :], held, settings, device)
    description = f"fine-tuned {settings.path.name} (epoch {epoch} of {settings.epochs})"
    return FineTunedModel(tuple(str(name) for name in names), description, model, tokenizer, settings)


def _load(path: Path, classes: int) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    if not path.is_dir():
        raise ConfigurationError(f"{path}: no such folder", "name a local folder that holds a transformers model")
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # "some weights are newly initialised" is meant: the head is new
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        model = AutoModelForSequenceClassification.from_pretrained(
            path, num_labels=classes, local_files_only=True, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path}: is not a usable transformers model: {str(error).splitlines()[0]}",
            "name a folder with config.json, weights and tokenizer files",
        ) from None
    finally:
        logging.set_verbosity(verbosity)
    return model, tokenizer


def _tokens(tokenizer: Any, texts: Sequence[str], settings: FineTuning, device: Any) -> Any:
    return tokenizer(
        list(texts), padding=True, truncation=True, max_length=settings.max_tokens, return_tensors="pt"
    ).to(device)


def _optimise(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    y: npt.NDArray[np.int64],
    w: Float64,
    fit: npt.NDArray[np.int64],
    held: npt.NDArray[np.int64],
    settings: FineTuning,
    device: Any,
) -> int:
    """Trains in place, leaves the best epoch's weights in ``model`` and returns its number."""
    import torch

    def loss_of(rows: npt.NDArray[np.int64]) -> Any:
        batch = _tokens(tokenizer, [texts[row] for row in rows], settings, device)
        each = torch.nn.functional.cross_entropy(
            model(**batch).logits.float(), torch.as_tensor(y[rows], device=device), reduction="none"
        )
        return each * torch.as_tensor(w[rows], device=device, dtype=torch.float32)

    steps = settings.epochs * -(-len(fit) // settings.batch)
    rising = max(1, round(settings.warmup * steps))
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / rising, max(0.0, (steps - step) / max(1, steps - rising)))
    )
    best: tuple[float, int, dict[str, Any]] = (float("inf"), 0, {})
    for epoch in range(1, settings.epochs + 1):
        model.train()
        order = fit[torch.randperm(len(fit)).numpy()]
        for start in range(0, len(order), settings.batch):
            optimiser.zero_grad(set_to_none=True)
            loss_of(order[start : start + settings.batch]).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        model.eval()
        with torch.inference_mode():
            total = sum(
                float(loss_of(held[start : start + settings.batch]).sum())
                for start in range(0, len(held), settings.batch)
            )
        if total < best[0]:
            state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
            best = (total, epoch, state)
    if not best[2]:
        raise ConfigurationError(
            f"{settings.path}: fine-tuning diverged (the loss is not a number)", "lower the learning rate"
        )
    model.load_state_dict(best[2])
    return best[1]
