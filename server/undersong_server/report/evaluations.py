"""The kept figures of a finished run beside a public test file, for Result and Compare."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from undersong_common.intervals import Interval
from undersong_server.report.data import PANEL_SCORE, Good, Measure
from undersong_server.runs.folder import RunFolder, replace_json

EVALUATION_FILE = "evaluation.json"  # file of a run's folder


@dataclass(frozen=True)
class KeptMeasure:
    """A kept figure as a number: its good end, and the interval where it has one.

    ``mark`` names the figure to compare with, and whose it is, of a figure that is good near it; "" elsewhere.
    """

    value: float
    good: Good
    percent: bool
    interval: tuple[float, float] | None = None
    mark: str = ""


@dataclass(frozen=True)
class Evaluated:
    """A finished run's figures by an evaluation with one public test file, as the report shows them.

    Attributes:
        test: the file's name, and the first digits of its SHA-256: figures beside different files do not compare.
        figures: the figures by name, formatted.
        measures: the same as numbers.
        texts: number of texts that were drawn of the corpus; 0 where an earlier version took all.
    """

    test: str
    figures: Mapping[str, str]
    measures: Mapping[str, KeptMeasure] = field(default_factory=dict)
    texts: int = 0

    @property
    def texts_words(self) -> str:
        return f"{self.texts:,}" if self.texts else "all"


_EVALUATED = TypeAdapter(Evaluated)


def name_test(path: Path, name: str = "") -> str:
    """Returns the words by which kept figures name a test file, of its name and its content.

    Args:
        name: the file's name where it was uploaded; "" takes that of the path.
    """
    return f"{name or path.name}, {hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"


def make_evaluation(test: str, measures: Sequence[Measure], by_texts: Interval | None, texts: int) -> Evaluated:
    """Returns the figures of one evaluation as they are kept.

    Args:
        test: the test file, by :func:`name_test`.
        by_texts: interval of the panel score by the choice of test texts; None without a panel.
        texts: number of the corpus's texts that were judged.
    """
    interval_by_measure = {} if by_texts is None else {PANEL_SCORE: by_texts}
    return Evaluated(
        test,
        {measure.name: measure.shown for measure in measures},
        {
            measure.name: _kept_measure(measure, interval_by_measure.get(measure.name, measure.interval))
            for measure in measures
        },
        texts,
    )


def _kept_measure(measure: Measure, interval: Interval | None) -> KeptMeasure:
    interval_ends = None if interval is None else (interval.low, interval.high)
    mark = f"{measure.written(measure.mark)}, {measure.mark_name}" if measure.good == "beside" else ""
    return KeptMeasure(measure.value, measure.good, measure.percent, interval_ends, mark)


def keep_evaluation(folder: RunFolder, evaluation: Evaluated) -> None:
    """Writes a run's figures in the place of earlier ones."""
    replace_json(folder.path / EVALUATION_FILE, asdict(evaluation), durable=False)


def evaluated(folder: RunFolder) -> Evaluated | None:
    """Reads the figures that :func:`keep_evaluation` wrote of a run; None if there are none yet.

    Raises UnreadableRun if they are damaged.
    """
    return folder.read_object(EVALUATION_FILE, _EVALUATED.validate_python)
