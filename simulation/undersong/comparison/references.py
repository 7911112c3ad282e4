"""Centralised references of a comparison: what a trainer who sees every private record makes of them.

Other packages declare them as entry points of the group ``undersong.references``; benchmarks/dpsgd is one such package.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embed
from undersong_common.program import configuration, plugins
from undersong_common.text.table import Table
from undersong_server.runs.task import Task

# References in benchmarks/dpsgd.
OF_THE_CHECKOUT = ("dp-sgd", "dp-lora", "dp-sgd-classifier", "ghost-classifier", "da-dp-sgd", "da-ghost")


@dataclass(frozen=True, repr=False)
class ReferenceResult:
    """Result of a reference, or of a method's run in its place.

    Attributes:
        corpus: texts with their labels that the trained model wrote; None for a classifier.
        predicted: the label that the trained classifier gives each test text; None for a writer.
        facts: about the training, as plain JSON values.
        records: of a method's run, what it noted under each name, as (round, value).
    """

    corpus: Table | None = None
    predicted: Sequence[str] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    records: Mapping[str, Sequence[tuple[int, Any]]] = field(default_factory=dict)


class Reference(BaseModel):
    """Options of one reference. Its name is that of the entry point."""

    name: ClassVar[str]
    model_config = ConfigDict(frozen=True, extra="forbid")

    def check(self, task: Task) -> None:
        """Raises ConfigurationError if the reference cannot run on the task."""
        raise NotImplementedError

    def train(
        self, task: Task, records: Table, test: Table, *, embed: Embed, seed: int, insecure_noise_seed: int | None
    ) -> ReferenceResult:
        """Trains on the records and writes a corpus, or predicts the labels of the test texts.

        Args:
            records: every private record; no labels if the task has none.
            embed: texts -> unit embeddings, float32 [n, d].
            seed: public seed of the first weights and of the writing.
            insecure_noise_seed: tests only; makes Poisson samples and noise reproducible.

        Raises ConfigurationError for what :meth:`check` finds, and GenerationError if the training fails.
        """
        raise NotImplementedError


def parse(text: str) -> Reference | None:
    """Reads ``NAME:key=value+key=value`` as options of an installed reference; None for another name.

    Raises ConfigurationError for a wrong option, or a reference of benchmarks/dpsgd that is not installed.
    """
    name, _, option_text = text.partition(":")
    if (plugin := plugins.find("references", name)) is None:
        if name in OF_THE_CHECKOUT:
            raise ConfigurationError(
                f"--methods {text}: the package undersong-dpsgd is not installed",
                "run pip install ./benchmarks/dpsgd in a source checkout",
            )
        return None
    option_pairs = [option.partition("=") for option in option_text.split("+") if option]
    reference_class: type[Reference] = plugins.load(plugin)
    return configuration.validate(reference_class, {key: value for key, _, value in option_pairs}, f"--methods {text}")
