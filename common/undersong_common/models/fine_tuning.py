"""Fine-tunes a local encoder (BERT and its kin) as a classifier of texts; nothing is downloaded or written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.models import model_files
from undersong_common.printable import encodable

_REMEDY = "name a folder with config.json, weights and tokenizer files"


@dataclass(frozen=True)
class FineTuning:
    """Settings for fine-tuning a local model. Defaults are the usual ones for BERT-base (Devlin et al. 2019, A.3).

    Attributes:
        path: local folder with a transformers model and tokenizer; nothing is downloaded.
        epochs: passes over the training texts.
        batch: texts per gradient step.
        max_tokens: tokens of a text that are read, from its beginning.
        warmup: share of the steps in which the learning rate rises; afterwards it falls linearly to zero.
        dropout: True switches the model's own dropout on, which draws from torch's global random state.
    """

    path: Path
    epochs: int = 4
    batch: int = 32
    learning_rate: float = 3e-5
    max_tokens: int = 256
    warmup: float = 0.1
    dropout: bool = True


def check_folder(model: str | Path) -> Path:
    """Returns the folder of the model to fine-tune: "packaged", or a local folder. Does not read its files.

    Raises ConfigurationError if the folder or its config.json is missing.
    """
    if not (path := model_files.model_folder(model)).is_dir():
        raise ConfigurationError(
            f"{path}: no such folder", "name a local folder that holds a transformers model", code="folder-missing"
        )
    if not (path / "config.json").is_file():  # transformers would guess a model from the folder's name
        raise ConfigurationError(
            f"{path}: is not a usable transformers model: it has no config.json", _REMEDY, code="model-unloadable"
        )
    return path


def load(model: str | Path, classes: int) -> tuple[Any, Any]:
    """Returns a model with a new classification head, drawn from torch's global random state, and its tokenizer.

    Args:
        model: "packaged", or a local folder.
        classes: number of outputs of the head.

    Raises ConfigurationError if the folder holds no usable encoder, or could run code when it is loaded.
    """
    path = check_folder(model)
    model_files.checked_hashes(model)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    verbosity_before = logging.get_verbosity()
    logging.set_verbosity_error()  # The library would warn that the head's weights are new, as they are meant to be.
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        encoder = AutoModelForSequenceClassification.from_pretrained(
            path,
            num_labels=classes,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # noqa: BLE001 - what a malformed folder raises depends on where it is malformed
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigurationError(
            f"{path}: is not a usable transformers model: {reason}", _REMEDY, code="model-unloadable"
        ) from None
    finally:
        logging.set_verbosity(verbosity_before)
    if tokenizer.pad_token is None:
        raise ConfigurationError(f"{path}: its tokenizer has no padding token", "name an encoder, such as a BERT")
    return encoder, tokenizer


def logits(model: Any, tokenizer: Any, texts: Sequence[str], settings: FineTuning) -> Float64:
    """Returns the model's logits for n texts, float64 [n, classes]."""
    import torch

    model.eval()
    batch_logits = [np.zeros((0, model.config.num_labels))]
    with torch.inference_mode():
        for batch_start in range(0, len(texts), settings.batch):
            batch_tokens = _tokenize_texts(
                model, tokenizer, texts[batch_start : batch_start + settings.batch], settings
            )
            batch_logits.append(model(**batch_tokens).logits.double().cpu().numpy())
    return np.concatenate(batch_logits)


@dataclass(frozen=True)
class TrainingTexts:
    """Texts to learn from, with the class and the weight of each: int64 and float64 [n]."""

    texts: Sequence[str]
    classes: Int64
    weights: Float64


def optimise(
    model: Any,
    tokenizer: Any,
    training: TrainingTexts,
    *,
    fit: Int64,
    held: Int64,
    settings: FineTuning,
    shuffled: Callable[[Int64], Int64],
) -> int:
    """Trains the whole model in place; returns the number (from 1) of the epoch whose weights it keeps.

    Args:
        fit: row numbers to train on.
        held: row numbers whose lowest loss chooses the epoch; if it is empty, the last epoch is kept.
        shuffled: returns the row numbers it is given in a new order; called once an epoch.

    Raises ConfigurationError if the loss on ``held`` is not finite after any epoch.
    """
    import torch

    model_device = next(model.parameters()).device

    def loss_of(row_numbers: Int64) -> Any:
        batch_tokens = _tokenize_texts(
            model, tokenizer, [training.texts[row_number] for row_number in row_numbers], settings
        )
        losses = torch.nn.functional.cross_entropy(
            model(**batch_tokens).logits.float(),
            torch.as_tensor(training.classes[row_numbers], device=model_device),
            reduction="none",
        )
        return losses * torch.as_tensor(training.weights[row_numbers], device=model_device, dtype=torch.float32)

    adamw = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    rate_schedule = _make_schedule(adamw, settings, len(fit))
    best_state: tuple[float, int, dict[str, Any]] = (float("inf"), 0, {})
    for epoch in range(1, settings.epochs + 1):
        model.train(settings.dropout)
        for batch_rows in _batches(shuffled(fit), settings.batch):
            adamw.zero_grad(set_to_none=True)
            loss_of(batch_rows).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adamw.step()
            rate_schedule.step()
        if not len(held):
            continue
        model.eval()
        with torch.inference_mode():
            held_loss = sum(float(loss_of(batch_rows).sum()) for batch_rows in _batches(held, settings.batch))
        if held_loss < best_state[0]:
            best_state = (held_loss, epoch, _copy_weights(model))
    if not len(held):
        return settings.epochs
    if not best_state[2]:
        raise ConfigurationError(
            f"{settings.path}: fine-tuning diverged (the loss is not a number)", "lower the learning rate"
        )
    model.load_state_dict(best_state[2])
    return best_state[1]


def _batches(row_numbers: Int64, batch_size: int) -> Iterator[Int64]:
    """Yields row numbers in their order, at most ``batch_size`` at a time."""
    for batch_start in range(0, len(row_numbers), batch_size):
        yield row_numbers[batch_start : batch_start + batch_size]


def _copy_weights(model: Any) -> dict[str, Any]:
    """Returns a copy of a model's weights in the memory of the machine, by name."""
    return {
        parameter_name: parameter_value.detach().cpu().clone()
        for parameter_name, parameter_value in model.state_dict().items()
    }


def _make_schedule(optimiser: Any, settings: FineTuning, row_count: int) -> Any:
    """Returns a schedule of learning rates that rise in the warm-up, and then fall to zero in a line."""
    import torch

    step_count = settings.epochs * -(-row_count // settings.batch)
    warmup_count = max(1, round(settings.warmup * step_count))

    def factor(step: int) -> float:
        return min((step + 1) / warmup_count, max(0.0, (step_count - step) / max(1, step_count - warmup_count)))

    return torch.optim.lr_scheduler.LambdaLR(optimiser, factor)


def _tokenize_texts(model: Any, tokenizer: Any, texts: Sequence[str], settings: FineTuning) -> Any:
    most_tokens = min(settings.max_tokens, tokenizer.model_max_length)
    tokens = tokenizer(
        [encodable(text) for text in texts],
        padding=True,
        truncation=True,
        max_length=most_tokens,
        return_tensors="pt",
    )
    return tokens.to(next(model.parameters()).device)
