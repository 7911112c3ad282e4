"""Scores of task models trained on one set of texts, per seed and per group of the test file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from undersong_server.evaluation.intervals import Interval, over_seeds
from undersong_server.evaluation.panel import Model, PanelScores
from undersong_server.evaluation.scores import Scores, score

AnyScores = Scores | PanelScores  # of one task model, or means of the panel's
Predicted = (
    Sequence[str] | Mapping[Model, Sequence[str]]
)  # labels of the test texts, by the panel by each of its models

FIGURES: dict[str, Callable[[AnyScores], float]] = {
    "accuracy": lambda scores: scores.accuracy,
    "balanced_accuracy": lambda scores: scores.balanced_accuracy,
    "macro_f1": lambda scores: scores.macro_f1,
    "rarest_recall": lambda scores: scores.rarest_recall,
}


@dataclass(frozen=True, eq=False)
class Trained:
    """One training set's task models, one per seed, and how they did on the test set.

    Attributes:
        data: what they were trained on, in words.
        rows: size of the training set.
        model: which model was chosen with the first seed, or "panel".
        runs: scores on the whole test set, one per seed.
        groups: scores per group of the test file, one per seed each; empty where the file names no groups.
    """

    data: str
    rows: int
    model: str
    runs: tuple[AnyScores, ...]
    groups: dict[str, tuple[AnyScores, ...]]

    @property
    def scores(self) -> AnyScores:
        """Those of the first seed."""
        return self.runs[0]

    @property
    def description(self) -> str:
        """The model, and of the panel each model's mean accuracy."""
        by_model = [each.models for each in self.runs if isinstance(each, PanelScores)]
        if not by_model:
            return self.model
        means = {name: sum(models[name].accuracy for models in by_model) / len(by_model) for name in by_model[0]}
        return f"{self.model}: " + ", ".join(f"{name} {100 * mean:.1f} %" for name, mean in means.items())

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
    train: Callable[[int], tuple[str, Predicted]],
    true: Sequence[str],
    *,
    seeds: Sequence[int],
    groups: Sequence[str] | None = None,
) -> Trained:
    """Trains once per seed and scores each model's predictions on the test set.

    Args:
        train: from a seed to the model's description and what it predicts of the test texts.
        true: the test texts' labels.
        groups: the test texts' groups, where they have any.
    """
    members = (
        {name: [row for row, group in enumerate(groups) if group == name] for name in sorted(set(groups or ()))}
        if groups
        else {}
    )
    descriptions, runs = [], []
    by_group: dict[str, list[AnyScores]] = {name: [] for name in members}
    for seed in seeds:
        description, predicted = train(seed)
        descriptions.append(description)
        runs.append(_scored(true, predicted, range(len(true))))
        for name, chosen in members.items():
            by_group[name].append(_scored(true, predicted, chosen))
    found = {name: tuple(scores) for name, scores in by_group.items()}
    return Trained(data, rows, descriptions[0], tuple(runs), found)


def _scored(true: Sequence[str], predicted: Predicted, rows: Sequence[int]) -> AnyScores:
    """Scores of some of the test texts."""
    if isinstance(predicted, Mapping):
        return PanelScores({model: _of_model(true, labels, rows) for model, labels in predicted.items()})
    return _of_model(true, predicted, rows)


def _of_model(true: Sequence[str], predicted: Sequence[str], rows: Sequence[int]) -> Scores:
    return score([true[row] for row in rows], [predicted[row] for row in rows])


def over_trainings(found: Sequence[Trained]) -> Trained:
    """Task models of the same texts as one, in their order; the model that is named is the first's."""
    first = found[0]
    groups = {name: tuple(scores for each in found for scores in each.groups[name]) for name in first.groups}
    return replace(first, runs=tuple(scores for each in found for scores in each.runs), groups=groups)
