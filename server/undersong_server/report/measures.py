"""The figures by which a corpus is judged, each with its scale and what is good, for the report's reader.

They are made of the corpus and of a public test file alone; a figure that reads a private file has no place here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from undersong_server.evaluation.evaluate import Distances, EvaluationReport
from undersong_server.evaluation.intervals import Interval, over_seeds

Good = Literal["high", "low", "beside"]
WORDS: dict[Good, str] = {"high": "high is good", "low": "low is good", "beside": "good near the mark"}


@dataclass(frozen=True)
class Measure:
    """One figure.

    Attributes:
        name: in words; says: what it tells, in one sentence.
        value: the figure; ``low`` and ``high`` are the ends of its scale, as ``scale`` says them in words.
        good: which end is good, or that a figure near ``mark`` is.
        mark: a figure to compare with, NaN where there is none; ``mark_name`` says whose it is.
        interval: over the seeds, None where nothing was trained or with one seed only.
        percent: shown in per cent.
    """

    name: str
    says: str
    value: float
    low: float
    high: float
    scale: str
    good: Good
    mark: float = math.nan
    mark_name: str = ""
    interval: Interval | None = None
    percent: bool = False

    @property
    def shown(self) -> str:
        """The figure as the reader sees it."""
        return self.written(self.value)

    @property
    def good_words(self) -> str:
        return WORDS[self.good]

    def written(self, value: float) -> str:
        """Any figure on this scale."""
        if self.percent:
            return f"{100 * value:.1f} %"
        return f"{value:.1f}" if self.high > 20 else f"{value:.3f}"


def measures_of(report: EvaluationReport) -> tuple[Measure, ...]:
    """Of a corpus against a test file, in reading order; what could not be computed is left out.

    Reads the panel's scores, the distances to the first reference and the label errors, nothing else.
    """
    found = [*_useful(report), *(_beside(report.distances[0]) if report.distances else ()), *_labels(report)]
    return tuple(each for each in found if math.isfinite(each.value))


def _useful(report: EvaluationReport) -> Iterator[Measure]:
    if not report.trained:
        return
    trained = report.trained[0]
    names = {
        "accuracy": (
            "panel score",
            "share of the test texts that small models of the corpus label rightly; their mean",
        ),
        "balanced_accuracy": ("balanced accuracy", "the same with every label weighing alike"),
        "macro_f1": ("macro-F1", "precision and recall of each label together, every label weighing alike"),
        "rarest_recall": ("rarest label", "share of the test texts of the rarest label that are found"),
    }
    for figure, (name, says) in names.items():
        interval = trained.interval(figure)
        yield Measure(
            name, says, interval.value, 0.0, 1.0, "0 to 100 %", "high", interval=_known(interval), percent=True
        )


def _beside(found: Distances) -> Iterator[Measure]:
    real = "the test texts'"

    def share(name: str, value: float, says: str, good: Good = "high") -> Measure:
        return Measure(name, says, value, 0.0, 1.0, "0 to 1", good)

    def alike(name: str, value: float, mark: float, says: str) -> Measure:
        return Measure(name, says, value, 0.0, 1.0, "0 to 1", "beside", mark, real)

    yield Measure(
        "Frechet distance",
        "how far mean and spread of the embeddings are from the test texts'; depends on the number of texts",
        found.frechet,
        0.0,
        max(1.0, found.frechet),
        "0 and up",
        "low",
    )
    yield share("precision", found.precision, "synthetic texts that lie where test texts lie")
    yield share("recall", found.recall, "test texts that lie where synthetic texts lie")
    yield Measure(
        "density",
        "how many test texts have a synthetic text near, seen from the synthetic ones",
        found.density,
        0.0,
        max(2.0, found.density),
        "0 and up",
        "beside",
        1.0,
        "equal sets'",
    )
    yield share(
        "coverage", found.coverage, "test texts with a synthetic text near; about 0.97 for two halves of one set"
    )
    yield share("MAUVE", found.mauve, "how far the two sets are one distribution, seen from all their mixtures")
    yield alike("different word pairs", found.distinct_bigrams, found.reference_distinct_bigrams, "of all word pairs")
    yield alike("self-BLEU", found.self_bleu, found.reference_self_bleu, "how much a text repeats the other texts")
    yield Measure(
        "Vendi score",
        "how many different texts the corpus holds in effect",
        found.vendi,
        1.0,
        max(1.25 * found.vendi, 1.25 * found.reference_vendi, 2.0),
        f"1 to {found.rows}",
        "beside",
        found.reference_vendi,
        real,
    )
    yield alike("self-similarity", found.self_similarity, found.reference_self_similarity, "mean cosine of two texts")
    yield Measure(
        "bits per word",
        "what a small language model that read the corpus needs per word of the test texts",
        found.next_word_after,
        0.0,
        1.1 * max(found.next_word_before, found.next_word_after),
        "0 and up",
        "low",
        found.next_word_before,
        "before the corpus",
    )
    yield share("length divergence", found.length, "between the lengths of both sets, in bits", "low")
    if found.label is not None:
        yield share("label divergence", found.label, "between the label shares of both sets, in bits", "low")


def _labels(report: EvaluationReport) -> Iterator[Measure]:
    if report.label_errors is None:
        return
    interval = over_seeds(report.label_error_shares)
    yield Measure(
        "wrong labels",
        "labels that models which did not see the text disagree with (confident learning)",
        interval.value,
        0.0,
        1.0,
        "0 to 100 %",
        "low",
        interval=_known(interval),
        percent=True,
    )


def _known(interval: Interval) -> Interval | None:
    return None if math.isnan(interval.low) else interval
