"""The pool: every synthetic sample written so far, in the order of writing."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Int64
from undersong_common.errors import ConfigurationError

# Columns of every corpus; no attribute may have such a name.
RESERVED_COLUMNS = ("text", "label", "generator", "round", "prompt_kind")
TRIAL_REMEDY = "see prompts and answers with `undersong try`, mend the generators or the prompts"


@dataclass(frozen=True)
class Sample:
    """One synthetic text.

    Attributes:
        text: the text, after cleaning.
        label: one of the task's labels, or "" where the task has none.
        generator: name of the generator that wrote it.
        round: round of the run in which it was written, counted from 0.
        kind: prompt kind, such as "zero_shot" or "contrast".
        attributes: names and values with which it was ordered; the same names for every sample of a corpus.
    """

    text: str
    label: str
    generator: str
    round: int
    kind: str
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Origin:
    """A written text and the texts that its request showed the model, word for word: synthetic or public ones.

    Attributes:
        parents: texts that the model was asked to vary or to cross.
        good, bad: examples that the model was asked to follow, and not to follow.
    """

    sample: Sample
    parents: tuple[str, ...] = ()
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        return (*self.parents, *self.good, *self.bad)


def no_texts_error(step: str) -> ConfigurationError:
    """Returns the error of a run whose generators wrote no text at a step, such as "first round"."""
    return ConfigurationError(f"no generator wrote a usable text of the {step}", TRIAL_REMEDY, code="no-samples")


def keep_each_once(samples: Sequence[Sample]) -> list[Sample]:
    """Keeps each text once, at its first position, under the label that most of its samples have (of equals the first).

    >>> keep_each_once([Sample("a", label, "one", 0, "") for label in ("x", "y", "y")])[0].label
    'y'
    """
    label_counts: dict[str, Counter[str]] = {}
    for sample in samples:
        label_counts.setdefault(sample.text, Counter())[sample.label] += 1
    label_of_text = {text: counts.most_common(1)[0][0] for text, counts in label_counts.items()}
    first_samples = {sample.text: sample for sample in reversed(samples) if sample.label == label_of_text[sample.text]}
    return [first_samples[text] for text in label_counts]


class Pool:
    """The samples written so far, by position. Label and generator numbers follow the task file's order.

    Args:
        labels: the task's labels; empty means one class.
        generators: the generators' names.
    """

    def __init__(self, labels: Sequence[str], generators: Sequence[str]) -> None:
        self._label_number = {label: label_number for label_number, label in enumerate(labels)}
        self._generator_number = {generator: generator_number for generator_number, generator in enumerate(generators)}
        self.samples: list[Sample] = []

    def __len__(self) -> int:
        return len(self.samples)

    def extend(self, samples: Iterable[Sample]) -> None:
        self.samples.extend(samples)

    @property
    def label_of(self) -> Int64:
        """Number of each sample's label, int64 [N]; 0 for all where the task has no labels."""
        return np.array([self._label_number.get(sample.label, 0) for sample in self.samples], dtype=np.int64)

    @property
    def generator_of(self) -> Int64:
        """Number of each sample's generator, int64 [N]."""
        return np.array([self._generator_number[sample.generator] for sample in self.samples], dtype=np.int64)

    def of_label(self, label: int) -> Int64:
        """Positions of the samples of one label, int64, ascending."""
        return np.flatnonzero(self.label_of == label)

    def texts_of(self, positions: Iterable[int]) -> list[str]:
        return [self.samples[int(position)].text for position in positions]
