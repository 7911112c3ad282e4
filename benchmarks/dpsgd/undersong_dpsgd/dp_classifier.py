"""Classifiers trained by DP-SGD on all private records together, as a reference point: no corpus, only a classifier.

This is centralised, as dpsgd.py is: one trainer sees every record in the clear. What the trained classifier
scores on the test set stands in a comparison beside what a task model learns from synthetic texts at the same
(epsilon, delta); a classifier does one task only, where a corpus serves for any. ``dp-sgd-classifier`` computes the
gradient of each record (Abadi et al. 2016), ``ghost-classifier`` only its norm, and clips by weighing the records'
losses in a second pass (Li et al. 2022, section 4): the same noisy sums up to rounding, with less memory. Song et al.
2024 compare with both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from undersong.comparison.references import ReferenceResult
from undersong_common.errors import ConfigurationError
from undersong_common.models import model_files
from undersong_common.models.embedding import Embed
from undersong_common.models.model_files import check_language_model
from undersong_common.text.table import Table
from undersong_dpsgd import dpsgd
from undersong_server.runs.task import Task


class Options(dpsgd.Training):
    """``dp-sgd-classifier``: a linear layer on public embeddings, and the last layers of the encoder where wanted.

    The defaults are a start, not a recommendation: what trains best depends on the number of records.

    Attributes:
        layers: the encoder's last layers that are trained too; 0 trains the linear layer on the embeddings alone.
        model: "packaged", or the folder of an encoder; "" takes the task's embedder. Read where ``layers`` > 0.
        epochs: how often a record takes part on average.
        batch: records in a step on average; from there the Poisson sampling rate, batch / records.
        clip: L2 norm that a record's gradient is cut down to.
        rate: learning rate.
        tokens: of a text that the encoder reads.
        chunk: records whose gradients are held at once; changes memory and time only.
    """

    name: ClassVar[str] = "dp-sgd-classifier"

    layers: Annotated[int, Field(ge=0, le=100)] = 0
    model: str = ""
    epochs: Annotated[float, Field(gt=0, le=10_000)] = 20
    batch: Annotated[int, Field(ge=1)] = 256
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    rate: Annotated[float, Field(gt=0, le=1)] = 3e-3
    tokens: Annotated[int, Field(ge=2)] = 128
    chunk: Annotated[int, Field(ge=1)] = 64

    def check(self, task: Task) -> None:
        """Raises ConfigurationError if labels, package or encoder are missing, or the unit is not the record."""
        if not task.task.labels:
            raise ConfigurationError(f"{self.name}: the task has no labels", "leave it out")
        dpsgd.check_training(task, self, ("opacus",))
        if self.layers:
            check_language_model(_encoder_folder(task, self), self.name)

    def train(
        self, task: Task, records: Table, test: Table, *, embed: Embed, seed: int, insecure_noise_seed: int | None
    ) -> ReferenceResult:
        """Trains on the records (:func:`train_classifier`) and predicts the labels of the test texts."""
        names = task.task.labels
        classifier = train_classifier(
            task, self, records, names, embed=embed, seed=seed, insecure_noise_seed=insecure_noise_seed
        )
        return ReferenceResult(
            predicted=[names[number] for number in classifier.logits(test.texts).argmax(1)], facts=classifier.facts
        )


class GhostOptions(Options):
    """``ghost-classifier``: the same options, another way to clip."""

    name: ClassVar[str] = "ghost-classifier"


@dataclass(frozen=True, eq=False)
class Classifier:
    """A trained classifier of texts: ``logits`` gives float32 [n, classes]; ``facts`` are plain JSON values."""

    logits: Callable[[Sequence[str]], Any]
    facts: dict[str, Any]


def train_classifier(
    task: Task,
    options: Options,
    records: Table,
    names: Sequence[str],
    *,
    embed: Embed,
    seed: int,
    insecure_noise_seed: int | None,
) -> Classifier:
    """Trains on the records.

    Args:
        records: every private record, labelled by ``names``, which are public.
        embed: texts -> unit embeddings, float32 [n, d]; for ``layers`` 0.
        seed: torch's; public.
        insecure_noise_seed: tests only; makes the Poisson samples and the noise reproducible.

    Raises:
        ConfigurationError: what :meth:`Options.check` finds, an encoder that Opacus cannot train, or no records.
        GenerationError: training ended in weights that are not finite.
    """
    import torch

    from undersong_dpsgd.dp_classifier_training import (
        ClassifierTrainer,
        GhostTrainer,
        Labelled,
        TunedEncoder,
        on_embeddings,
    )

    options.check(task)
    count, plan, entropy_source = dpsgd.begin_training(task, options, records.texts, insecure_noise_seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if options.layers:
            model = TunedEncoder(
                _encoder_folder(task, options), len(names), layers=options.layers, tokens=options.tokens
            )
        else:
            model = on_embeddings(embed, len(names))
        trainer_class = GhostTrainer if isinstance(options, GhostOptions) else ClassifierTrainer
        trainer = trainer_class(
            model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            clip=options.clip,
            rate=options.rate,
            expected_batch=plan.sampling_rate * count,
            chunk=options.chunk,
            pad=0,
        )
        description = task.task.description
        public = [
            Labelled(model_input, 0)
            for model_input in model.read([description, f"{description}: {', '.join(names)} {description}"])
        ]
        trainer.check(public)
        label_numbers = {name: number for number, name in enumerate(names)}
        trainer.fit(
            [
                Labelled(model_input, label_numbers[label])
                for model_input, label in zip(model.read(records.texts), records.labels or (), strict=True)
            ],
            plan,
            entropy=entropy_source,
            oom_remedy=f"lower chunk ({options.chunk})",
        )
    return Classifier(lambda texts: trainer.logits(model.read(texts)), dpsgd.spending(task, plan))


def _encoder_folder(task: Task, options: Options) -> Path:
    model_name = options.model or task.embedder.model
    path = model_name if model_name == model_files.PACKAGED else Path(model_name).expanduser().absolute()
    return model_files.model_folder(path)
