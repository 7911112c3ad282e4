"""The panel: three small task models that judge a published corpus by its texts and labels alone, per seed and group.

Scores state how well the labels that a model predicts agree with the true ones.

The panel score of a corpus is the mean accuracy of ``words``, ``head`` and ``mlp`` on real texts. ``words`` shares
nothing with the embeddings that methods see. The settings never change, or figures would not compare. A
fine-tuned encoder (``learning.fine_tune``) is reported beside the panel, not in it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.intervals import Interval, clopper_pearson, over_seeds
from undersong_common.program.library_threads import one_library_thread
from undersong_server import learning

FIGURES = ("accuracy", "balanced_accuracy", "macro_f1", "rarest_recall")
AVERAGES = {
    "macro_precision_of_all_labels": "macro P",
    "macro_recall_of_all_labels": "macro R",
    "macro_f1_of_all_labels": "macro F1",
    "weighted_precision": "weighted P",
    "weighted_recall": "weighted R",
    "weighted_f1": "weighted F1",
}
"""Keys of :attr:`Scores.averages`, and their headings."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Agreement of predicted and true labels, by scikit-learn's definitions; figures are NaN without texts.

    Attributes:
        labels: names, in the order of the confusion matrix.
        confusion: int64 [L, L], rows true, columns predicted.
        recall: of each label, float64 [L]; 0 if the test set has no such text.
        accuracy: share of texts with the right label.
        balanced_accuracy: mean recall over the labels that occur in the test set.
        macro_f1: mean F1 over the labels that are true or predicted at least once.
        rarest_recall: recall of the label with the fewest test texts, the first by name of several.
        averages: precision, recall and F1 over all labels: macro, and weighted by the test texts.
    """

    labels: tuple[str, ...]
    confusion: Int64
    recall: Float64
    accuracy: float = math.nan
    balanced_accuracy: float = math.nan
    macro_f1: float = math.nan
    rarest_recall: float = math.nan
    averages: dict[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of judged texts."""
        return int(self.confusion.sum())

    def figures(self) -> dict[str, float]:
        """The figures that are stated of every task model, by name (:data:`FIGURES`)."""
        return {figure_name: getattr(self, figure_name) for figure_name in FIGURES}

    def as_dict(self) -> dict[str, Any]:
        """Returns figures, averages, labels and confusion matrix as plain JSON values."""
        return {
            **self.figures(),
            **self.averages,
            "rows": self.rows,
            "labels": list(self.labels),
            "confusion": self.confusion.tolist(),
        }


def score(true: Sequence[str], predicted: Sequence[str]) -> Scores:
    """Compares predicted labels with the true ones; ``labels`` of the result are the labels of both, sorted.

    Raises ValueError if lengths differ.

    >>> score(["a", "b", "b"], ["a", "b", "a"]).accuracy
    0.6666666666666666
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    label_names = sorted({*true, *predicted})
    if not label_names:
        return Scores((), np.zeros((0, 0), dtype=np.int64), np.zeros(0))
    confusion_counts = confusion_matrix(true, predicted, labels=label_names)
    precision, recall, f1, support = precision_recall_fscore_support(
        true, predicted, labels=label_names, zero_division=0
    )
    average_by_figure = {}
    for figure_name, label_values in (("precision", precision), ("recall", recall), ("f1", f1)):
        average_by_figure[f"macro_{figure_name}_of_all_labels"] = float(label_values.mean())
        average_by_figure[f"weighted_{figure_name}"] = float(np.average(label_values, weights=support))
    is_present = support > 0
    return Scores(
        tuple(label_names),
        confusion_counts,
        recall,
        accuracy=float(np.trace(confusion_counts) / len(true)),
        balanced_accuracy=float(recall[is_present].mean()),
        macro_f1=float(f1.mean()),
        rarest_recall=float(recall[np.where(is_present, support, len(true) + 1).argmin()]),
        averages=average_by_figure,
    )


Model = Literal["words", "head", "mlp"]
MODELS: tuple[Model, ...] = ("words", "head", "mlp")
WORD_NGRAMS = (1, 2)
CHARACTER_NGRAMS = (2, 5)  # inside words, padded with a space (scikit-learn's char_wb); the whole vocabulary
WORDS_STRENGTH = 3.0  # scikit-learn's C
WORDS_ITERATIONS = 300  # most iterations of the logistic regression's fit
MLP_UNITS = (64,)  # widths of the hidden layers of "mlp"
SETTINGS: dict[Model, str] = {
    "words": "TF-IDF of word 1-2-grams and character 2-5-grams within words, sublinear; logistic regression, C = 3",
    "head": f"linear head on the embeddings; C of {', '.join(f'{strength:g}' for strength in learning.STRENGTHS)}"
    " chosen on a held-out fifth of the corpus",
    "mlp": "one hidden layer of 64 units on the embeddings; early stopping on a held-out fifth of the corpus",
}


def settings() -> str:
    """Describes the models of the panel and their settings in one line, which stands under every table of the panel."""
    models = "; ".join(f"{model_name}: {text}" for model_name, text in SETTINGS.items())
    return f"Panel score: mean accuracy of {len(MODELS)} task models, trained on text and label alone. {models}."


class Labelled(NamedTuple):
    """Texts with a label each and their embeddings, float32 [n, d]."""

    texts: Sequence[str]
    labels: Sequence[str]
    embeddings: Float32


@dataclass(frozen=True, eq=False)
class PanelScores:
    """Scores of the panel's models, or of one model, on the same real texts; each figure is the models' mean."""

    models: Mapping[str, Scores]

    def figures(self) -> dict[str, float]:
        """The models' means by name (:data:`FIGURES`); the mean accuracy is the panel score, 0 to 1."""
        figures_by_model = [scores.figures() for scores in self.models.values()]
        return {
            figure_name: float(np.mean([model_figures[figure_name] for model_figures in figures_by_model]))
            for figure_name in FIGURES
        }

    def averages(self) -> dict[str, float]:
        """The models' means of precision, recall and F1 (:data:`AVERAGES`)."""
        return {
            average_name: float(np.mean([scores.averages[average_name] for scores in self.models.values()]))
            for average_name in AVERAGES
        }

    def accuracies(self) -> dict[str, float]:
        """The accuracy of each model by its name."""
        return {model_name: scores.accuracy for model_name, scores in self.models.items()}

    def recalls(self) -> dict[str, float]:
        """The models' mean recall of each label that has test texts."""
        recalls_by_label: dict[str, list[float]] = {}
        for scores in self.models.values():
            for label, recall, texts in zip(scores.labels, scores.recall, scores.confusion.sum(axis=1), strict=True):
                if texts:
                    recalls_by_label.setdefault(label, []).append(float(recall))
        return {label: float(np.mean(recalls)) for label, recalls in sorted(recalls_by_label.items())}

    @property
    def rows(self) -> int:
        """Number of real texts that the models were scored on."""
        return next(iter(self.models.values())).rows

    def as_dict(self) -> dict[str, Any]:
        """Returns the mean figures and the scores of each model as plain JSON values."""
        return {
            **self.figures(),
            "rows": self.rows,
            "models": {model_name: scores.as_dict() for model_name, scores in self.models.items()},
        }


def judge(corpus: Labelled, test: Labelled, *, seed: int = 0) -> PanelScores:
    """Trains each model on the corpus and scores it on the test texts.

    Raises ConfigurationError if numbers of texts, labels and embeddings differ, or one side is empty.
    """
    predictions = {model: predict(model, corpus, test.texts, test.embeddings, seed) for model in MODELS}
    return PanelScores({model: score(test.labels, predicted) for model, predicted in predictions.items()})


def predict(model: Model, corpus: Labelled, texts: Sequence[str], embeddings: Float32, seed: int = 0) -> list[str]:
    """Trains one model of the panel on the corpus and predicts the label of each text.

    If the corpus has a single label, that one is predicted. Raises ConfigurationError as :func:`judge` does.
    """
    for side_name, side_rows, label_count in (
        ("corpus", corpus, len(corpus.labels)),
        ("test", (texts, embeddings), len(texts)),
    ):
        row_counts = {len(side_rows[0]), len(side_rows[-1]), label_count}
        if len(row_counts) > 1 or 0 in row_counts:
            raise ConfigurationError(
                f"{side_name}: texts, labels and embeddings are not equally many, or none ({sorted(row_counts)})",
                "give each text one label and one embedding",
            )
    if len(set(corpus.labels)) == 1:
        return [corpus.labels[0]] * len(texts)
    if model == "words":
        return _predict_by_words(corpus, texts)
    if model == "head":
        task_model = learning.train(corpus.embeddings, corpus.labels, head="linear", seed=seed)
    else:
        task_model = learning.train(corpus.embeddings, corpus.labels, head="mlp", hidden=MLP_UNITS, seed=seed)
    return learning.predict(task_model, embeddings)


def _predict_by_words(corpus: Labelled, texts: Sequence[str]) -> list[str]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    vectorizer_options = {"sublinear_tf": True, "dtype": np.float32}
    model = make_pipeline(
        make_union(
            TfidfVectorizer(ngram_range=WORD_NGRAMS, **vectorizer_options),
            TfidfVectorizer(analyzer="char_wb", ngram_range=CHARACTER_NGRAMS, **vectorizer_options),
        ),
        LogisticRegression(C=WORDS_STRENGTH, max_iter=WORDS_ITERATIONS),
    )
    with one_library_thread():
        return [str(label) for label in model.fit(corpus.texts, corpus.labels).predict(texts)]


Predicted = Mapping[str, Sequence[str]]
"""Labels of the test texts by each model: those of the panel, or a single one."""


@dataclass(frozen=True, eq=False)
class TrainedModels:
    """Scores on the test set of one training set's task models, one per seed.

    Attributes:
        data: the training set in words.
        rows: size of the training set.
        model: the model that was chosen with the first seed, or "panel".
        runs: scores on the whole test set, one per seed.
        groups: scores per group of the test file, one per seed each; empty if the file names no groups.
    """

    data: str
    rows: int
    model: str
    runs: tuple[PanelScores, ...]
    groups: dict[str, tuple[PanelScores, ...]]

    @property
    def scores(self) -> PanelScores:
        """Scores of the first seed."""
        return self.runs[0]

    @property
    def accuracy_by_label(self) -> dict[str, float]:
        """The share of each label's test texts that are labelled rightly, the mean over models and seeds."""
        recalls_by_seed = [scores.recalls() for scores in self.runs]
        return {label: float(np.mean([recalls[label] for recalls in recalls_by_seed])) for label in recalls_by_seed[0]}

    @property
    def description(self) -> str:
        """The model's name; for the panel with the mean accuracy of each of its models."""
        if not self.accuracy_by_model:
            return self.model
        return f"{self.model}: " + ", ".join(
            f"{model_name} {100 * mean:.1f} %" for model_name, mean in self.accuracy_by_model.items()
        )

    @property
    def accuracy_by_model(self) -> dict[str, float]:
        """The mean accuracy over the seeds of each of the panel's models, by its name; {} for one model."""
        if len(self.scores.models) == 1:
            return {}
        return {
            model_name: sum(run.models[model_name].accuracy for run in self.runs) / len(self.runs)
            for model_name in self.scores.models
        }

    def interval(self, figure: str, group: str | None = None) -> Interval:
        """Returns a figure (:data:`FIGURES`) over the seeds, on the whole test set or on one group of it."""
        return over_seeds([run.figures()[figure] for run in (self.runs if group is None else self.groups[group])])

    @property
    def accuracy_by_texts(self) -> Interval:
        """The accuracy over the seeds with the exact interval that the number of test texts gives it."""
        accuracy, row_count = self.interval("accuracy").value, self.scores.rows
        return replace(clopper_pearson(round(accuracy * row_count), row_count), value=accuracy)

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values: the first seed's scores and, of several seeds, the mean with its interval."""
        models_json: dict[str, Any] = {
            "data": self.data,
            "rows": self.rows,
            "model": self.model,
            **self.scores.as_dict(),
        }
        if len(self.runs) > 1:
            models_json["over_seeds"] = {"seeds": len(self.runs), **self._interval_figures(None)}
        if self.groups:
            models_json["groups"] = {
                group_name: {"rows": scores[0].rows, **self._interval_figures(group_name)}
                for group_name, scores in self.groups.items()
            }
        return models_json

    def _interval_figures(self, group: str | None) -> dict[str, Any]:
        interval_by_figure = {figure_name: self.interval(figure_name, group) for figure_name in FIGURES}
        return {
            figure_name: {"mean": interval.value, "low": interval.low, "high": interval.high}
            for figure_name, interval in interval_by_figure.items()
        }


def score_models(
    data: str,
    row_count: int,
    runs: Sequence[tuple[str, Predicted]],
    true: Sequence[str],
    groups: Sequence[str] | None = None,
) -> TrainedModels:
    """Scores task models of one training set, one per seed, on the test set and on each group of it.

    Args:
        data: the training set in words; ``row_count`` is its size.
        runs: name of the model and its predictions, one pair per seed; the first one's name is kept.
        true: the test texts' labels.
        groups: the test texts' groups, if they have any.
    """

    def scored(scored_row_numbers: Sequence[int]) -> tuple[PanelScores, ...]:
        true_labels = [true[row_number] for row_number in scored_row_numbers]
        return tuple(
            PanelScores(
                {
                    model_name: score(true_labels, [model_predictions[row_number] for row_number in scored_row_numbers])
                    for model_name, model_predictions in predicted.items()
                }
            )
            for _, predicted in runs
        )

    positions_by_group: dict[str, list[int]] = {group_name: [] for group_name in sorted(set(groups or ()))}
    for row_number, group in enumerate(groups or ()):
        positions_by_group[group].append(row_number)
    runs_by_group = {group_name: scored(positions) for group_name, positions in positions_by_group.items()}
    return TrainedModels(data, row_count, runs[0][0], scored(range(len(true))), runs_by_group)
