"""The classifiers of dp_classifier.py and their training, in which Opacus clips and adds noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embed
from undersong_common.models.fine_tuning import load
from undersong_common.printable import encodable
from undersong_dpsgd.dpsgd_training import AGREEMENT, Trainer, quiet_hooks, unsupported_error


@dataclass(frozen=True, repr=False)
class Labelled:
    """A record as the classifier reads it: its embedding or its token numbers, a tensor; and its label's number."""

    read: torch.Tensor
    label: int


class LinearClassifier(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A linear layer on the embeddings of texts."""

    def __init__(self, embed: Embed, width: int, classes: int) -> None:
        super().__init__()
        self._embed = embed
        self._scale = width**0.5  # unit embeddings then have coordinates of variance 1
        self.layer = _blank(width, classes)

    def read(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Each text's embedding, float32 [d]."""
        return list(torch.from_numpy(self._embed(texts)).float() * self._scale)

    def batch(self, read: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Stacks embeddings into the argument of :meth:`forward`, float32 [n, d]."""
        return (torch.stack(list(read)),)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Logits, float32 [n, classes]."""
        logits: torch.Tensor = self.layer(embeddings)
        return logits


def on_embeddings(embed: Embed, classes: int) -> LinearClassifier:
    """Returns a :class:`LinearClassifier` with as many inputs as ``embed`` gives coordinates."""
    return LinearClassifier(embed, embed(["size"]).shape[1], classes)


class TunedEncoder(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A linear layer on the mean of an encoder's last hidden states; the encoder's last layers are trained too."""

    def __init__(self, folder: Path, classes: int, *, layers: int, tokens: int) -> None:
        """Raises ConfigurationError if the folder holds no encoder, or one without a list of layers."""
        super().__init__()
        loaded_model, self._tokenizer = load(folder, classes)
        self.encoder = loaded_model.base_model
        for weight in self.encoder.parameters():
            weight.requires_grad_(False)
        stacks: list[Any] = [module for module in self.encoder.modules() if isinstance(module, torch.nn.ModuleList)]
        if not stacks:
            raise ConfigurationError(f"{folder}: its encoder has no list of layers", "use layers=0")
        for layer in sorted(stacks, key=lambda stack: len(stack))[-1][-layers:]:
            layer.requires_grad_(True)
        self._tokens = min(tokens, self._tokenizer.model_max_length)
        self.layer = _blank(self.encoder.config.hidden_size, classes)

    def read(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Each text's token numbers, int64 [length]."""
        encoded_texts = self._tokenizer([encodable(text) for text in texts], truncation=True, max_length=self._tokens)
        return [torch.tensor(ids) for ids in encoded_texts["input_ids"]]

    def batch(self, read: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Pads token numbers into the arguments of :meth:`forward`: numbers and mask, int64 [n, length]."""
        ids = torch.nn.utils.rnn.pad_sequence(list(read), batch_first=True, padding_value=self._tokenizer.pad_token_id)
        attention_mask = torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(text_ids) for text_ids in read], batch_first=True
        )
        return ids, attention_mask

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Logits, float32 [n, classes]."""
        hidden = self.encoder(input_ids=ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(2).to(hidden.dtype)
        mean = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
        logits: torch.Tensor = self.layer(mean * mean.shape[1] ** 0.5)
        return logits


def _blank(inputs: int, classes: int) -> torch.nn.Linear:
    """Returns a linear layer of zeros, so that every label is equally likely before the first step."""
    layer = torch.nn.Linear(inputs, classes)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    return layer


class ClassifierTrainer(Trainer):
    """DP-SGD of a classifier: cross-entropy of each record's label."""

    def losses(self, batch: Sequence[Any]) -> torch.Tensor:
        """Cross-entropy of each record, float32 [n]."""
        labels = torch.tensor([record.label for record in batch], device=self._device)
        return torch.nn.functional.cross_entropy(self._logits(batch), labels, reduction="none")

    def _logits(self, batch: Sequence[Any]) -> torch.Tensor:
        read = self._model.batch([record.read for record in batch])
        logits: torch.Tensor = self._hooked(*(part.to(self._device) for part in read))
        return logits.float()

    def logits(self, read: Sequence[Any]) -> Any:
        """Logits of each text, float32 [n, classes], an array."""
        with torch.inference_mode():
            parts = [
                self._logits([Labelled(model_input, 0) for model_input in read[start : start + self._chunk]]).cpu()
                for start in range(0, len(read), self._chunk)
            ]
        return torch.cat(parts).numpy()


class GhostTrainer(ClassifierTrainer):
    """The same steps by ghost clipping: gradient norms of the records, then one gradient of weighted losses."""

    def _wrapped(self, model: Any) -> Any:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        return GradSampleModuleFastGradientClipping(
            model, loss_reduction="sum", max_grad_norm=self._clip, use_ghost_clipping=True
        )

    def optimiser(self, noise_multiplier: float, stream: torch.Generator) -> Any:
        """Returns Opacus's optimiser over AdamW: it adds noise from ``stream`` to the clipped sum and averages."""
        from opacus.optimizers import DPOptimizerFastGradientClipping

        return DPOptimizerFastGradientClipping(
            torch.optim.AdamW(self._weights, lr=self._rate, weight_decay=0.0),
            noise_multiplier=noise_multiplier,
            max_grad_norm=self._clip,
            expected_batch_size=self._expected_batch,
            generator=stream,
        )

    def _backward(self, batch: Sequence[Any]) -> None:
        """Computes the sum of the batch's clipped gradients and stores it in the weights' ``grad``."""
        losses = self._first_pass(batch)
        weights = self._hooked.get_clipping_coef().detach()
        self._hooked.disable_hooks()
        with quiet_hooks():
            (weights * losses).sum().backward()
        self._hooked.enable_hooks()

    def _first_pass(self, batch: Sequence[Any]) -> torch.Tensor:
        with quiet_hooks():
            losses = self.losses(batch)
            losses.sum().backward(retain_graph=True)
        for weight in self._weights:
            weight.grad = None
        return losses

    def _nothing(self) -> None:
        for weight in self._weights:
            weight.grad = torch.zeros_like(weight)

    def check(self, public: Sequence[Any]) -> None:
        """Checks on public texts that the gradient norms computed for a batch equal autograd's for each text alone.

        Raises:
            ConfigurationError: they differ, or Opacus fails.
        """
        try:
            single_norms = []
            for example in public:
                self._hooked.disable_hooks()
                with quiet_hooks():
                    self.losses([example]).sum().backward()
                self._hooked.enable_hooks()
                gradients = [weight.grad for weight in self._weights if weight.grad is not None]
                single_norms.append(torch.stack([gradient.norm() for gradient in gradients]).norm())
                self._clear()
            self._first_pass(public)
            batch_norms = self._hooked.get_norm_sample()
        except Exception as error:  # noqa: BLE001 - a layer that Opacus does not know fails in any way
            raise unsupported_error(self._hooked, error) from None
        finally:
            self._clear()
        largest_error = max(
            abs(float(batch_norm / single_norm) - 1)
            for batch_norm, single_norm in zip(batch_norms, single_norms, strict=True)
        )
        if not largest_error < AGREEMENT:
            raise unsupported_error(
                self._hooked, ValueError(f"the norm of one text's gradient is off by {largest_error:.2g}")
            )
