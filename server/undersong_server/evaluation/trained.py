"""What task models trained on one set of texts reach on a test set: per seed, and per group of the test file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from undersong_server.evaluation.intervals import Interval, over_seeds
from undersong_server.evaluation.scores import Scores, score

FIGURES: dict[str, Callable[[Scores], float]] = {
    "accuracy": lambda scores: scores.accuracy,
    "balanced_accuracy": lambda scores: scores.balanced_accuracy,
    "macro_f1": lambda scores: scores.macro_f1,
}


@dataclass(frozen=True, eq=False)
class Trained:
    """One training set's task models, one per seed, and how they did on the test set.

    Attributes:
        data: what they were trained on, in words.
        rows: size of the training set.
        model: which model was chosen with the first seed.
        runs: scores on the whole test set, one per seed.
        groups: scores per group of the test file, one per seed each; empty where the file names no groups.
    """

    data: str
    rows: int
    model: str
    runs: tuple[Scores, ...]
    groups: dict[str, tuple[Scores, ...]]

    @property
    def scores(self) -> Scores:
        """Those of the first seed."""
        return self.runs[0]

    def interval(self, figure: str, group: str | None = None) -> Interval:
        """A figure (:data:`FIGURES`) over the seeds, on the whole test set or one group of it."""
        return over_seeds([FIGURES[figure](each) for each in (self.runs if group is None else self.groups[group])])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: the first seed's scores, and with several seeds the mean of all with its interval."""
        result: dict[str, Any] = {"data": self.data, "rows": self.rows, "model": self.model, **self.scores.as_dict()}
        if len(self.runs) > 1:
            result["over_seeds"] = {"seeds": len(self.runs), **self._intervals(None)}
        if self.groups:
            result["groups"] = {
                name: {"rows": found[0].rows, **self._intervals(name)} for name, found in self.groups.items()
            }
        return result

    def _intervals(self, group: str | None) -> dict[str, Any]:
        found = {name: self.interval(name, group) for name in FIGURES}
        return {name: {"mean": each.value, "low": each.low, "high": each.high} for name, each in found.items()}


def judged(
    data: str,
    rows: int,
    train: Callable[[int], tuple[str, Sequence[str]]],
    true: Sequence[str],
    *,
    seeds: Sequence[int],
    groups: Sequence[str] | None = None,
) -> Trained:
    """Trains once per seed and scores each model's predictions on the test set.

    Args:
        train: from a seed to the model's description and its predicted label of every test text.
        true: the test texts' labels.
        groups: the test texts' groups, where they have any.
    """
    members = (
        {name: [row for row, group in enumerate(groups) if group == name] for name in sorted(set(groups or ()))}
        if groups
        else {}
    )
    descriptions, runs = [], []
    by_group: dict[str, list[Scores]] = {name: [] for name in members}
    for seed in seeds:
        description, predicted = train(seed)
        descriptions.append(description)
        runs.append(score(true, predicted))
        for name, chosen in members.items():
            by_group[name].append(score([true[row] for row in chosen], [predicted[row] for row in chosen]))
    found = {name: tuple(scores) for name, scores in by_group.items()}
    return Trained(data, rows, descriptions[0], tuple(runs), found)


def over_trainings(found: Sequence[Trained]) -> Trained:
    """Task models of the same texts as one, in their order; the model that is named is the first's."""
    first = found[0]
    groups = {name: tuple(scores for each in found for scores in each.groups[name]) for name in first.groups}
    return replace(first, runs=tuple(scores for each in found for scores in each.runs), groups=groups)
