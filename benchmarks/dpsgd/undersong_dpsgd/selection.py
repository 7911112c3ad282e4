"""``da-dp-sgd`` and ``da-ghost``: texts of the task's generators that a privately trained discriminator selects.

The baselines "DA with DP-SGD" and "DA with Ghost" of Song et al. 2024 (Table 1): instead of teachers, one trainer who
sees every record trains a binary classifier of private records against written texts by DP-SGD, or by ghost clipping;
the texts that it finds likeliest to be private are kept, in the noisy shares of the labels. The label shares (the
paper's "tutor") and the training are charged as the paper adds them: epsilon in two parts, delta in two halves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from undersong.comparison.references import ReferenceResult
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embed
from undersong_common.privacy import accounting
from undersong_common.text.table import Table
from undersong_dpsgd import dp_classifier
from undersong_server.database.journal import Journal
from undersong_server.generators.orders import Order
from undersong_server.methods.discriminator import kept
from undersong_server.methods.parts import papers
from undersong_server.methods.parts.metadata import shares_of_counts
from undersong_server.methods.parts.selection import largest_remainder
from undersong_server.progress import Silent
from undersong_server.report.usefulness import table_of
from undersong_server.runs.planning import build_author
from undersong_server.runs.task import Task

SIDES = ("written", "private")


class Options(dp_classifier.Options):
    """``da-dp-sgd``: the options of ``dp-sgd-classifier`` train the discriminator.

    Attributes:
        preset: "paper" has the author, the prompt and the numbers of texts of ``discriminator:preset=paper``; "" writes
            by the task alone.
        samples: texts that are written; ``kept`` of them are the corpus.
        prompt, words: as of ``discriminator``.
        tutor_epsilon: of the task's epsilon, for the label shares.
    """

    name: ClassVar[str] = "da-dp-sgd"

    preset: Literal["", "paper"] = ""
    samples: Annotated[int, Field(ge=2)] = 6000
    kept: Annotated[int, Field(ge=1)] = 3750
    tutor_epsilon: Annotated[float, Field(gt=0)] = 0.4
    prompt: Literal["zero_shot", "author"] = "zero_shot"
    words: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, options_table: Any) -> Any:
        if not isinstance(options_table, Mapping) or options_table.get("preset") != papers.PAPER:
            return options_table
        preset_values = papers.sections("discriminator", papers.PAPER)["method"]
        return {
            **{key: preset_values[key] for key in ("samples", "kept", "tutor_epsilon", "prompt", "words")},
            **options_table,
        }

    def check(self, task: Task) -> None:
        """Raises ConfigurationError as ``dp-sgd-classifier``, or if ``tutor_epsilon`` leaves no epsilon to train."""
        super().check(task)
        if self.tutor_epsilon >= task.privacy.epsilon:
            raise ConfigurationError(
                f"{self.name}: tutor_epsilon {self.tutor_epsilon:g} leaves nothing of epsilon {task.privacy.epsilon:g}",
                "lower tutor_epsilon",
            )

    def train(
        self, task: Task, records: Table, test: Table, *, embed: Embed, seed: int, insecure_noise_seed: int | None
    ) -> ReferenceResult:
        """Writes candidates in the noisy shares of the labels, trains the discriminator, and keeps the best texts."""
        names, delta = task.task.labels, task.privacy.delta / 2
        if self.preset:
            preset_sections = papers.sections("discriminator", self.preset)
            sections = {key: getattr(task, key).model_copy(update=preset_sections[key]) for key in ("task", "prompts")}
            task = task.model_copy(update=sections)
        multiplier = 1.0 / accounting.gaussian_mu(self.tutor_epsilon, delta)
        rng = np.random.default_rng(insecure_noise_seed)  # not seeded: fresh bytes of the operating system
        counts = np.bincount([names.index(label) for label in records.labels or ()], minlength=len(names))
        shares = shares_of_counts(counts + multiplier * rng.normal(size=len(names)))
        journal = Journal(Path(":memory:"))
        try:
            author = build_author(task, embed, os.environ, journal, Silent(), seed=seed)
            label_numbers = np.repeat(np.arange(len(names)), largest_remainder(shares, self.samples))
            generator_names = [generator.name for generator in task.generators]
            orders = [
                Order(generator_names[i % len(generator_names)], self.prompt, names[label], words=self.words)
                for i, label in enumerate(label_numbers)
            ]
            candidates = [sample for sample in author.write("candidates", 0, orders) if sample is not None]
        finally:
            journal.close()
        sides = Table(
            (*records.texts, *(sample.text for sample in candidates)),
            (SIDES[1],) * len(records) + (SIDES[0],) * len(candidates),
            None,
        )
        privacy = task.privacy.model_copy(update={"epsilon": task.privacy.epsilon - self.tutor_epsilon, "delta": delta})
        data = task.data.model_copy(update={"records": None, "file_records": len(sides)})
        discriminator = dp_classifier.train_classifier(
            task.model_copy(update={"privacy": privacy, "data": data}), self, sides, SIDES, embed=embed, seed=seed,
            insecure_noise_seed=insecure_noise_seed,
        )  # fmt: skip
        logits = discriminator.logits([sample.text for sample in candidates])
        label_of = np.array([names.index(sample.label) for sample in candidates], dtype=np.int64)
        best_rows = kept(logits[:, 1] - logits[:, 0], label_of, shares, min(1.0, self.kept / len(candidates)))
        usage = author.usage.values()
        facts = {
            "generator_calls": sum(generator_usage.calls for generator_usage in usage),
            "dropped": sum(generator_usage.dropped for generator_usage in usage),
        }
        if (training_epsilon := discriminator.facts["epsilon_spent"]) is not None:
            facts["epsilon_spent"] = self.tutor_epsilon + training_epsilon
        return ReferenceResult(table_of(candidates[i] for i in best_rows), facts=discriminator.facts | facts)


class GhostOptions(Options, dp_classifier.GhostOptions):
    """``da-ghost``: the same discriminator, trained by ghost clipping."""

    name: ClassVar[str] = "da-ghost"
