"""Fine-tuning of a causal language model by DP-SGD (Abadi et al. 2016). Opacus clips and adds noise.

The optimiser is AdamW without weight decay at a constant rate, as in Li et al. 2022 ("Large language models can be
strong differentially private learners"), which takes the privatised gradients only. Opacus's parts are used, not its
PrivacyEngine: that one rounds the sampling rate to 1 / ceil(n / batch) and keeps an account of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_common.privacy.accounting import Gaussian

if TYPE_CHECKING:
    import torch

DROPOUTS = (  # where the usual architectures keep their dropout; noise regularises already
    "attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "dropout", "activation_dropout", "hidden_dropout",
    "dropout_prob",
)  # fmt: skip
AGREEMENT = 1e-3  # how far Opacus's gradient of one text may lie from autograd's, relative, in float32


@dataclass(frozen=True)
class Schedule:
    """The releases of one training: ``steps`` noisy sums of clipped gradients, each of a fresh Poisson sample.

    Attributes:
        sampling_rate: probability with which each record is in a step's sample, independently.
        noise_multiplier: noise deviation over the clipping norm; 0 for no privacy.
    """

    sampling_rate: float
    steps: int
    noise_multiplier: float

    @property
    def events(self) -> list[Gaussian]:
        """Events to charge: adding or removing one record moves a step's sum by at most the clipping norm."""
        return [Gaussian(self.noise_multiplier, self.sampling_rate, self.steps)]


@dataclass(frozen=True, repr=False)
class Example:
    """A record as the model reads it: token numbers, of which those from ``start`` on are learned."""

    ids: tuple[int, ...]
    start: int


class Trainer:
    """Trains a model by DP-SGD: each step releases one noisy sum of the records' clipped gradients.

    The model is a causal language model; a subclass with another ``losses`` trains another kind.
    """

    def __init__(self, model: Any, *, clip: float, rate: float, expected_batch: float, chunk: int, pad: int) -> None:
        """Wraps the model's trainable weights.

        Args:
            model: a causal language model on its device; weights that do not ask for a gradient stay as they are.
            clip: L2 norm that no record's gradient exceeds.
            rate: AdamW's learning rate.
            expected_batch: records in a step's sample on average; what the noisy sum is divided by.
            chunk: records whose gradients are held at once; it changes memory and time, not the result.
            pad: a token to pad with.

        Raises:
            ConfigurationError: the model has a trainable layer that Opacus refuses.
        """
        _without_dropout(model)
        model.train()  # Opacus's hooks work in training mode only
        self._model = model
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._chunk, self._pad = chunk, pad
        self._device = self._weights[0].device
        self._clip, self._rate, self._expected_batch = clip, rate, expected_batch
        try:
            self._hooked = self._wrapped(model)
        except NotImplementedError as error:
            raise unsupported_error(model, error) from None

    def _wrapped(self, model: Any) -> Any:
        from opacus import GradSampleModule

        return GradSampleModule(model, loss_reduction="sum")

    def optimiser(self, noise_multiplier: float, stream: torch.Generator) -> Any:
        """Returns Opacus's optimiser over AdamW: it clips, sums, adds noise from ``stream`` and averages."""
        import torch
        from opacus.optimizers import DPOptimizer

        return DPOptimizer(
            torch.optim.AdamW(self._weights, lr=self._rate, weight_decay=0.0),
            noise_multiplier=noise_multiplier,
            max_grad_norm=self._clip,
            expected_batch_size=self._expected_batch,
            generator=stream,
        )

    def fit(
        self, examples: Sequence[Any], schedule: Schedule, *, entropy: Callable[[int], bytes], oom_remedy: str
    ) -> None:
        """Trains in place.

        Args:
            examples: one per record, as ``losses`` reads them (:class:`Example`).
            schedule: what is released.
            entropy: bytes for the secret Poisson samples and the noise; torch's streams are seeded with them.
            oom_remedy: what to do where a chunk does not fit into memory.

        Raises:
            ConfigurationError: a chunk does not fit.
            GenerationError: the weights are not finite any more.
        """
        import torch
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler

        def stream(device: Any) -> torch.Generator:
            return torch.Generator(device=device).manual_seed(int.from_bytes(entropy(8), "little") >> 1)

        optimiser = self.optimiser(schedule.noise_multiplier, stream(self._device))
        batches = UniformWithReplacementSampler(
            num_samples=len(examples),
            sample_rate=schedule.sampling_rate,
            steps=schedule.steps,
            generator=stream("cpu"),
        )
        try:
            for rows in batches:
                self.accumulate(optimiser, [examples[row] for row in rows])
        except torch.OutOfMemoryError:
            raise ConfigurationError(f"the gradients of {self._chunk} records do not fit", oom_remedy) from None
        self._hooked.remove_hooks()
        self._hooked.eval()
        for weight in self._weights:
            for attribute in ("grad_sample", "summed_grad", "_forward_counter", "_norm_sample"):
                if hasattr(weight, attribute):
                    delattr(weight, attribute)
            weight.grad = None
        if not all(bool(torch.isfinite(weight).all()) for weight in self._weights):
            raise GenerationError("the fine-tuned weights are not finite any more", "lower rate")

    def accumulate(self, optimiser: Any, batch: Sequence[Any]) -> None:
        """Takes one step of Opacus's ``optimiser``: clips every record, chunk by chunk, and adds noise once."""
        chunks = [batch[start : start + self._chunk] for start in range(0, len(batch), self._chunk)]
        for number, chunk in enumerate(chunks):
            self._backward(chunk)
            optimiser.signal_skip_step(number + 1 < len(chunks))
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        if not chunks:  # no record was drawn: the step releases noise all the same
            self._nothing()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def _nothing(self) -> None:
        """Sets the gradients of a batch without records, to which the step adds its noise."""
        import torch

        for weight in self._weights:
            weight.grad_sample = torch.zeros((0, *weight.shape), dtype=weight.dtype, device=weight.device)

    def losses(self, batch: Sequence[Any]) -> torch.Tensor:
        """Mean cross-entropy over the learned tokens of each record, float32 [n]."""
        import torch

        width = max(len(example.ids) for example in batch)
        ids = torch.full((len(batch), width), self._pad)
        attention_mask, is_learned = torch.zeros_like(ids), torch.zeros_like(ids)
        for row, example in enumerate(batch):
            ids[row, : len(example.ids)] = torch.tensor(example.ids)
            attention_mask[row, : len(example.ids)] = 1
            is_learned[row, example.start : len(example.ids)] = 1
        ids, attention_mask, is_learned = (
            ids.to(self._device),
            attention_mask.to(self._device),
            is_learned[:, 1:].to(self._device),
        )
        # Each row has its own positions: GPT-2 would look up one row for all, and with it one gradient for all.
        positions = torch.arange(width, device=self._device).expand(len(batch), width)
        logits = self._hooked(
            input_ids=ids, attention_mask=attention_mask, position_ids=positions, use_cache=False
        ).logits
        token_losses = torch.nn.functional.cross_entropy(
            logits[:, :-1].float().transpose(1, 2), ids[:, 1:], reduction="none"
        )
        return (token_losses * is_learned).sum(1) / is_learned.sum(1)

    def _backward(self, batch: Sequence[Any]) -> None:
        """Computes each record's gradient and stores it in the weights' ``grad_sample``."""
        with quiet_hooks():
            self.losses(batch).sum().backward()

    def _clear(self) -> None:
        for weight in self._weights:
            weight.grad = weight.grad_sample = None

    def check(self, public: Sequence[Any]) -> None:
        """Checks on public texts that Opacus's gradients in a batch equal autograd's of each text alone.

        Clipping bounds a record's influence only where the gradient that is clipped is the record's own; an
        architecture whose layers mix rows, or that Opacus does not understand, is refused here.

        Raises:
            ConfigurationError: they differ, or Opacus fails.
        """
        import torch

        # fresh adapters have zeros that would hide half of the gradients
        zero_weights = [weight for weight in self._weights if not weight.any()]
        _fill(zero_weights, 0.02)
        try:
            single_gradients = []
            for example in public:
                self._backward([example])
                single_gradients.append([torch.zeros_like(w) if w.grad is None else w.grad for w in self._weights])
                self._clear()
            self._backward(public)
            largest_error = max(
                _distance([weight.grad_sample[row] for weight in self._weights], expected)
                for row, expected in enumerate(single_gradients)
            )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a layer that Opacus does not know fails in any way
            raise unsupported_error(self._hooked, error) from None
        finally:
            _fill(zero_weights, 0.0)
            self._clear()
        if not largest_error < AGREEMENT:
            raise unsupported_error(
                self._hooked, ValueError(f"one text's gradient is off by {largest_error:.2g} of its length")
            )


@contextmanager
def quiet_hooks() -> Iterator[None]:
    """Silences torch's warning that the hook of a first layer fires although its input has no gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield


def _without_dropout(model: Any) -> None:
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in DROPOUTS:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _fill(weights: Iterable[Any], deviation: float) -> None:
    import torch

    with torch.no_grad():
        for weight in weights:
            weight.normal_(0.0, deviation) if deviation else weight.zero_()


def _distance(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Returns the relative distance |found - expected| / |expected|, over all weights together."""
    squared_distance = sum(
        float((actual - reference).square().sum()) for actual, reference in zip(found, expected, strict=True)
    )
    squared_norm = sum(float(reference.square().sum()) for reference in expected)
    return float((squared_distance / squared_norm) ** 0.5) if squared_norm else float(squared_distance > 0)


def unsupported_error(model: Any, error: Exception) -> ConfigurationError:
    """Returns the error for a model whose layers Opacus does not understand."""
    model_class = type(getattr(model, "_module", model)).__name__
    reason = " ".join(str(error).split())[:300]
    return ConfigurationError(
        f"Opacus cannot take the gradient of each record in {model_class}: {type(error).__name__}: {reason}",
        "name another model folder (Llama, Qwen2, GPT-2 and GPT-NeoX are known to work); dp-lora trains linear layers "
        "only, so it can take some models that dp-sgd cannot",
    )
