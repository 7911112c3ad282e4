"""Deep CORAL: the task model's hidden features of its training texts and of a client's own texts get equal covariances.

Source: Sun, Saenko 2016. Texts written from keyphrases differ in style from what they stand for; the client's texts
need no labels. Deviations: the loss is divided by the target's squared covariance norm instead of 4 d^2, so that a
weight means the same for every embedder; and the weight is chosen, not given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.threads import one_torch_thread
from undersong_server.evaluation.task_model import HIDDEN_UNITS, MLP_DROPOUT, MLPHead

WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0)
EPOCHS = 15
BATCH = 256  # covariances of 256 hidden units need many rows
VALIDATION_SHARE = 0.2
LEAST_TARGET_TEXTS = 20


@dataclass(frozen=True, eq=False)
class Adapted:
    """An adapted head, its weight of the CORAL loss, and how far the covariances were apart without and with it."""

    head: MLPHead
    weight: float
    distance_before: float
    distance_after: float

    @property
    def labels(self) -> tuple[str, ...]:
        return self.head.labels

    @property
    def description(self) -> str:
        return (
            f"MLP head ({self.head.units}), Deep CORAL weight {self.weight:g}: covariance distance"
            f" {self.distance_before:.3f} -> {self.distance_after:.3f}"
        )

    def probabilities(self, embeddings: Float32) -> Float64:
        return self.head.probabilities(embeddings)


def adapt(source: Float32, labels: list[str] | tuple[str, ...], target: Float32, *, seed: int = 0) -> Adapted:
    """Trains the MLP head on ``source`` [n, d] with labels, its features aligned with those of ``target`` [m, d].

    A fifth of the source is held out; of the weights whose loss on it is within one (paired) standard error of the
    best, the largest is taken: the data say nothing against it. Then all of the source is used.

    Raises ConfigurationError for fewer than two labels or fewer than 20 target texts.
    """
    names, y = np.unique(np.asarray(labels, dtype=object).astype(str), return_inverse=True)
    if len(names) < 2:
        raise ConfigurationError("the texts to adapt have fewer than two labels", "adapt a labelled corpus")
    if len(target) < LEAST_TARGET_TEXTS:
        raise ConfigurationError(
            f"{len(target)} target texts are too few for a covariance", f"give at least {LEAST_TARGET_TEXTS}"
        )
    y = y.astype(np.int64).ravel()
    order = np.random.default_rng([seed, 0xC0]).permutation(len(y))
    held = order[: max(1, round(VALIDATION_SHARE * len(y)))]
    fit = order[len(held) :]
    texts = tuple(str(name) for name in names)
    losses = {}
    for weight in WEIGHTS:
        head = _trained(source[fit], y[fit], texts, target, weight, seed)
        losses[weight] = -np.log(np.maximum(head.probabilities(source[held])[np.arange(len(held)), y[held]], 1e-12))
    best = min(losses, key=lambda weight: float(losses[weight].mean()))
    # paired: the same held-out texts under two weights differ by far less than the texts among each other
    chosen = max(weight for weight in WEIGHTS if _no_worse(losses[weight] - losses[best]))
    plain = _trained(source, y, texts, target, 0.0, seed)
    head = plain if chosen == 0.0 else _trained(source, y, texts, target, chosen, seed)
    return Adapted(head, chosen, covariance_distance(plain, source, target), covariance_distance(head, source, target))


def _no_worse(excess: Float64) -> bool:
    """Whether a mean excess loss is within its own standard error."""
    return bool(float(excess.mean()) <= float(excess.std()) / len(excess) ** 0.5)


def covariance_distance(head: MLPHead, source: Float32, target: Float32) -> float:
    """|C_source - C_target|^2 / |C_target|^2 (Frobenius) of the hidden features."""
    one, two = np.cov(head.features(source), rowvar=False), np.cov(head.features(target), rowvar=False)
    return float(((one - two) ** 2).sum() / max(float((two**2).sum()), 1e-24))


def _trained(x: Float32, y: Int64, names: tuple[str, ...], target: Float32, weight: float, seed: int) -> MLPHead:
    import torch

    rng = torch.Generator().manual_seed(seed % (1 << 63))
    scale = float(np.sqrt(x.shape[1]))  # unit embeddings get coordinates of variance 1
    width, classes = x.shape[1], len(names)
    hidden = ((torch.rand(width, HIDDEN_UNITS, generator=rng) * 2 - 1) * (6.0 / width) ** 0.5).requires_grad_()
    output = ((torch.rand(HIDDEN_UNITS, classes, generator=rng) * 2 - 1) * HIDDEN_UNITS**-0.5).requires_grad_()
    hidden_bias, bias = torch.zeros(HIDDEN_UNITS).requires_grad_(), torch.zeros(classes).requires_grad_()
    optimiser = torch.optim.AdamW([hidden, hidden_bias, output, bias], lr=2e-3, weight_decay=1e-2)
    texts, labels = torch.from_numpy(np.ascontiguousarray(x)) * scale, torch.from_numpy(y)
    others = torch.from_numpy(np.ascontiguousarray(target)) * scale
    with one_torch_thread():
        for _ in range(EPOCHS):
            for rows in torch.split(torch.randperm(len(texts), generator=rng), BATCH):
                features = torch.relu(texts[rows] @ hidden + hidden_bias)
                keep = (torch.rand(features.shape, generator=rng) >= MLP_DROPOUT).float() / (1 - MLP_DROPOUT)
                loss = torch.nn.functional.cross_entropy((features * keep) @ output + bias, labels[rows])
                if weight and len(rows) > 1:
                    drawn = torch.randint(len(others), (min(BATCH, len(others)),), generator=rng)
                    loss = loss + weight * _coral(features, torch.relu(others[drawn] @ hidden + hidden_bias))
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()

    def array(tensor: Any) -> Float64:
        return np.asarray(tensor.detach().numpy(), dtype=np.float64)

    return MLPHead(names, ((array(hidden) * scale, array(hidden_bias)),), array(output), array(bias), EPOCHS)


def _coral(source: Any, target: Any) -> Any:
    """The relative squared distance of two covariances; the target's norm is a constant to the gradient."""
    import torch

    one, two = torch.cov(source.T), torch.cov(target.T)
    return (one - two).square().sum() / two.detach().square().sum().clamp_min(1e-12)
