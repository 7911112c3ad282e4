"""The distilled student as a fine-tuned encoder (Song et al. 2024): it reads texts, where the linear one has vectors.

It learns to tell the queries that more teachers than usual took for private from the others. Each query weighs as much
as its noisy count is away from the mean of its class: a majority that noise alone may have made says little. The paper
has neither that weight nor counts centred by class: its labels are the majorities themselves (``hard``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.fine_tuning import FineTuning
from undersong_server.evaluation.task_model import FineTunedModel, fine_tune

SETTINGS = FineTuning(Path(), epochs=8, batch=16, learning_rate=5e-5, max_tokens=256)
PRIVATE, OTHER = "private", "synthetic"


@dataclass(frozen=True, eq=False)
class FineTunedStudent:
    """Scores, higher for what could have been private; only scores within one class compare."""

    model: FineTunedModel

    def scores(self, texts: Sequence[str], _embeddings: Float32, _classes: Int64) -> Float64:
        """Log-odds of "private" for each text, float64 [n]."""
        found = np.clip(self.model.probabilities(texts), 1e-12, None)
        return np.asarray(
            np.log(found[:, self.model.labels.index(PRIVATE)] / found[:, self.model.labels.index(OTHER)]),
            dtype=np.float64,
        )


def fine_tuned(
    texts: Sequence[str], centred: Float64, folder: Path, *, seed: int, hard: bool = False, rate: float | None = None
) -> FineTunedStudent:
    """The student of queries whose noisy counts, less their class's mean, are ``centred``, float64 [r].

    With ``hard`` they are counts less half of the teachers, and all weigh alike (Song et al. 2024, Eq. 1, 2).

    Raises ConfigurationError where ``folder`` holds no usable encoder, or all counts are the same.
    """
    labels = [PRIVATE if count > 0 else OTHER for count in centred]
    settings = replace(SETTINGS, path=folder, learning_rate=rate or SETTINGS.learning_rate)
    weights = None if hard else np.abs(centred)
    return FineTunedStudent(fine_tune(texts, labels, settings, weights=weights, seed=seed))
