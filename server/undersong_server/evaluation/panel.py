"""The panel: three small task models that judge a published corpus by its texts and labels alone.

The panel score of a corpus is the mean accuracy of ``words``, ``head`` and ``mlp`` on real texts. ``words`` shares
nothing with the embeddings that methods see. Settings are frozen: a figure of another setting is another figure. A
fine-tuned encoder (``evaluation.fine_tuning``) is reported beside the panel, not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from undersong_common.arrays import Float32
from undersong_common.errors import ConfigurationError
from undersong_common.workers import one_numpy_thread
from undersong_server.evaluation import task_model
from undersong_server.evaluation.scores import Scores, score

Model = Literal["words", "head", "mlp"]
MODELS: tuple[Model, ...] = ("words", "head", "mlp")
WORD_NGRAMS = (1, 2)
CHARACTER_NGRAMS = (2, 5)  # inside words, padded with a space (scikit-learn's char_wb); the whole vocabulary
WORDS_STRENGTH = 3.0  # scikit-learn's C
WORDS_ITERATIONS = 300
MLP_UNITS = (64,)
SETTINGS: dict[Model, str] = {
    "words": "TF-IDF of word 1-2-grams and character 2-5-grams within words, sublinear; logistic regression, C = 3",
    "head": f"linear head on the embeddings; C of {', '.join(f'{each:g}' for each in task_model.STRENGTHS)} chosen on"
    " a held-out fifth of the corpus",
    "mlp": "one hidden layer of 64 units on the embeddings; early stopping on a held-out fifth of the corpus",
}


def settings() -> str:
    """One line that stands under every table of the panel."""
    models = "; ".join(f"{name}: {text}" for name, text in SETTINGS.items())
    return f"Panel score: mean accuracy of {len(MODELS)} task models, trained on text and label alone. {models}."


class Labelled(NamedTuple):
    """Texts with a label each and their embeddings, float32 [n, d]."""

    texts: Sequence[str]
    labels: Sequence[str]
    embeddings: Float32


@dataclass(frozen=True, eq=False)
class PanelScores:
    """Scores of the panel's models on the same real texts, by name; each figure is the models' mean."""

    models: Mapping[Model, Scores]

    @property
    def accuracy(self) -> float:
        """The panel score, 0 to 1."""
        return self._mean(lambda scores: scores.accuracy)

    @property
    def balanced_accuracy(self) -> float:
        return self._mean(lambda scores: scores.balanced_accuracy)

    @property
    def macro_f1(self) -> float:
        return self._mean(lambda scores: scores.macro_f1)

    @property
    def rarest_recall(self) -> float:
        """Recall of the label with the fewest real texts."""
        return self._mean(lambda scores: scores.rarest_recall)

    @property
    def rows(self) -> int:
        """Number of real texts."""
        return next(iter(self.models.values())).rows

    def accuracies(self) -> dict[str, float]:
        """The accuracy of each model by its name."""
        return {str(name): each.accuracy for name, each in self.models.items()}

    def figures(self) -> dict[str, float]:
        """Fractions by name: the panel score, each model's accuracy, macro-F1 and the rarest label's recall."""
        return {
            "panel": self.accuracy,
            **self.accuracies(),
            "macro_f1": self.macro_f1,
            "rarest_recall": self.rarest_recall,
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "macro_f1": self.macro_f1,
            "rarest_recall": self.rarest_recall,
            "rows": self.rows,
            "models": {name: each.as_dict() for name, each in self.models.items()},
            "settings": settings(),
        }

    def _mean(self, figure: Callable[[Scores], float]) -> float:
        return float(np.mean([figure(each) for each in self.models.values()]))


def judge(corpus: Labelled, test: Labelled, *, seed: int = 0) -> PanelScores:
    """Trains each model on the corpus and scores it on the test texts.

    Raises ConfigurationError where numbers of texts, labels and embeddings differ, or one side is empty.
    """
    found = {model: predict(model, corpus, test.texts, test.embeddings, seed) for model in MODELS}
    return PanelScores({model: score(test.labels, predicted) for model, predicted in found.items()})


def predict(model: Model, corpus: Labelled, texts: Sequence[str], embeddings: Float32, seed: int = 0) -> list[str]:
    """Predicted label of each text by one model of the panel, trained on the corpus.

    A corpus of a single label predicts that label.
    """
    for name, rows, labelled in (("corpus", corpus, len(corpus.labels)), ("test", (texts, embeddings), len(texts))):
        sizes = {len(rows[0]), len(rows[-1]), labelled}
        if len(sizes) > 1 or 0 in sizes:
            raise ConfigurationError(
                f"{name}: numbers of texts, labels and embeddings are {sorted(sizes)}", "give one of each a text"
            )
    if len(set(corpus.labels)) == 1:
        return [corpus.labels[0]] * len(texts)
    if model == "words":
        return _words(corpus, texts)
    if model == "head":
        trained = task_model.train(corpus.embeddings, corpus.labels, head="linear", seed=seed)
    else:
        trained = task_model.train(corpus.embeddings, corpus.labels, head="mlp", hidden=MLP_UNITS, seed=seed)
    return task_model.predict(trained, embeddings)


def _words(corpus: Labelled, texts: Sequence[str]) -> list[str]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    common = {"sublinear_tf": True, "dtype": np.float32}
    model = make_pipeline(
        make_union(
            TfidfVectorizer(ngram_range=WORD_NGRAMS, **common),
            TfidfVectorizer(analyzer="char_wb", ngram_range=CHARACTER_NGRAMS, **common),
        ),
        LogisticRegression(C=WORDS_STRENGTH, max_iter=WORDS_ITERATIONS),
    )
    with one_numpy_thread():
        return [str(label) for label in model.fit(corpus.texts, corpus.labels).predict(texts)]
