"""Files in a finished run's folder for Result and Compare: figures beside test files, and if the records helped."""

import contextlib
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from undersong_common.intervals import Interval
from undersong_common.printable import counted
from undersong_server.evaluation.label_mismatches import LabelMismatches
from undersong_server.report.data import DOUBTFUL_LABELS, PANEL_SCORE, Good, Measure, ReportData
from undersong_server.report.verdict import RecordsHelp, records_help
from undersong_server.runs.folder import RunFolder, UnreadableRun, replace_json

EVALUATION_FILE = "evaluation.json"  # a run's own figures, in its folder
BESIDE_FILES = "evaluation-{}.json"  # name of the figures on another test file, with the first digits of its SHA-256
HELP_FILE = "records-help.json"  # what the run's card says of the records' help
MISMATCHES_FILE = "label-mismatches.json"  # the rows that read like another label, as the run's card counts them
KEY_BY_NAME = {DOUBTFUL_LABELS: "wrong labels"}  # keys in kept files of figures that screens call otherwise
NAME_BY_KEY = {key: name for name, key in KEY_BY_NAME.items()}


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
        day: the day of the evaluation, such as "2026-11-30"; "" where an earlier version kept none.
    """

    test: str
    figures: Mapping[str, str]
    measures: Mapping[str, KeptMeasure] = field(default_factory=dict)
    texts: int = 0
    day: str = ""

    @property
    def file_hash(self) -> str:
        """First digits of the test file's SHA-256: the same file has them under any name."""
        return self.test.rpartition(", ")[2]

    @property
    def file_name(self) -> str:
        """Name of the test file."""
        return self.test.rpartition(", ")[0] or self.test

    @property
    def place_words(self) -> str:
        """Names the test file, the day and the texts that were drawn."""
        day_words = f" on {self.day}" if self.day else ""
        drawn_words = f", of {counted(self.texts, 'text')} drawn" if self.texts else ""
        return f"{self.test}{day_words}{drawn_words}"

    @property
    def texts_words(self) -> str:
        return f"{self.texts:,}" if self.texts else "all"


_EVALUATED = TypeAdapter(Evaluated)
_RECORDS_HELP = TypeAdapter(RecordsHelp)
_MISMATCHES = TypeAdapter(LabelMismatches)


def name_test(path: Path, name: str = "") -> str:
    """Returns the words by which kept figures name a test file, of its name and its content.

    Args:
        name: the file's name where it was uploaded; "" takes that of the path.
    """
    return f"{name or path.name}, {hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"


def make_evaluation(test: str, measures: Sequence[Measure], by_texts: Interval | None, text_count: int) -> Evaluated:
    """Returns the figures of one evaluation as they are kept, with today's date.

    Args:
        test: the test file, by :func:`name_test`.
        by_texts: interval of the panel score by the choice of test texts; None without a panel.
        text_count: number of the corpus's texts that were judged.
    """
    interval_by_measure = {} if by_texts is None else {PANEL_SCORE: by_texts}
    return Evaluated(
        test,
        {measure.name: measure.shown for measure in measures},
        {
            measure.name: _kept_measure(measure, interval_by_measure.get(measure.name, measure.interval))
            for measure in measures
        },
        text_count,
        time.strftime("%Y-%m-%d"),
    )


def _kept_measure(measure: Measure, interval: Interval | None) -> KeptMeasure:
    interval_ends = None if interval is None else (interval.low, interval.high)
    mark = ""
    if measure.good == "beside" and math.isfinite(measure.mark):
        mark = f"{measure.written(measure.mark)}, {measure.mark_name}"
    return KeptMeasure(measure.value, measure.good, measure.percent, interval_ends, mark)


def keep_evaluation(run_folder: RunFolder, evaluation: Evaluated) -> None:
    """Writes a run's figures beside one test file, in the place of earlier ones beside the same file alone.

    The first figures are the run's own. Those beside another test file stand beside them and never replace them.
    """
    own_evaluation = None
    with contextlib.suppress(UnreadableRun):  # Damaged figures are replaced.
        own_evaluation = evaluated(run_folder)
    if own_evaluation is None or own_evaluation.file_hash == evaluation.file_hash:
        file_name = EVALUATION_FILE
    else:
        file_name = BESIDE_FILES.format(evaluation.file_hash)
    kept_fields = asdict(evaluation)
    for field_name in ("figures", "measures"):
        kept_fields[field_name] = _rename(kept_fields[field_name], KEY_BY_NAME)
    replace_json(run_folder.path / file_name, kept_fields, durable=False)


def evaluated(run_folder: RunFolder) -> Evaluated | None:
    """Reads a run's own figures, the first that :func:`keep_evaluation` wrote; None if there are none yet.

    Raises UnreadableRun if they are damaged.
    """
    return run_folder.read_object(EVALUATION_FILE, _read_evaluation)


def _read_evaluation(fields: object) -> Evaluated:
    """Returns the figures of a kept file, under the names that screens have for them."""
    evaluation = _EVALUATED.validate_python(fields)
    figures, measures = (_rename(named, NAME_BY_KEY) for named in (evaluation.figures, evaluation.measures))
    return replace(evaluation, figures=figures, measures=measures)


def _rename(value_by_name: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    return {new_names.get(name, name): value for name, value in value_by_name.items()}


def evaluated_beside(run_folder: RunFolder) -> tuple[Evaluated, ...]:
    """Reads a run's figures beside other test files than its own, by their day.

    Raises UnreadableRun if some are damaged.
    """
    paths = sorted(run_folder.path.glob(BESIDE_FILES.format("*")))
    evaluations = (run_folder.read_object(path.name, _read_evaluation) for path in paths)
    return tuple(sorted(filter(None, evaluations), key=lambda evaluation: evaluation.day))


def keep_help(run_folder: RunFolder, data: ReportData) -> None:
    """Writes what a run's card says of the records' help."""
    replace_json(run_folder.path / HELP_FILE, asdict(records_help(data)), durable=False)


def kept_help(run_folder: RunFolder) -> RecordsHelp | None:
    """Reads what :func:`keep_help` wrote; None if the run has not finished, or finished in an earlier version.

    Raises UnreadableRun if it is damaged.
    """
    return run_folder.read_object(HELP_FILE, _RECORDS_HELP.validate_python)


def keep_mismatches(run_folder: RunFolder, data: ReportData) -> None:
    """Writes the rows of a run that read like another label."""
    replace_json(run_folder.path / MISMATCHES_FILE, asdict(data.mismatches), durable=False)


def kept_mismatches(run_folder: RunFolder) -> LabelMismatches | None:
    """Reads what :func:`keep_mismatches` wrote; None if the run has not finished, or finished in an earlier version.

    Raises UnreadableRun if it is damaged.
    """
    return run_folder.read_object(MISMATCHES_FILE, _MISMATCHES.validate_python)
