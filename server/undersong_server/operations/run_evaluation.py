"""Evaluation of a run's corpus by a public test file, kept beside the run, so that runs can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.operations import evaluation
from undersong_server.report.data import measures_of
from undersong_server.runs.folder import RunFolder, read_json, replace_json

FILE = "evaluation.json"


@dataclass(frozen=True)
class Evaluated:
    """A finished run's figures of the report (undersong_server.report.data) beside one test file.

    Attributes:
        test: the file's name, and the first digits of its SHA-256: figures beside different files do not compare.
        figures: each as the reader sees it, by name.
    """

    test: str
    figures: Mapping[str, str]


def evaluate_run(
    home: Path,
    run: str,
    options: EvaluationOptions,
) -> Evaluated:
    """Evaluates a finished run's corpus beside a test file that is public, and keeps the figures for comparisons.

    Raises ConfigurationError for a run that has not finished, and as
    :func:`undersong_server.operations.evaluation.evaluate` does.
    """
    folder = CoordinatorHome(home).finished(run, "evaluate it when it has finished")
    test = options.test
    if not isinstance(test, Path):
        raise ConfigurationError(f"{run}: is evaluated beside a test file only", "name one with --test")
    report = evaluation.evaluate(folder.output, options)
    digest = hashlib.sha256(test.read_bytes()).hexdigest()
    found = Evaluated(f"{test.name}, {digest[:8]}", {each.name: each.shown for each in measures_of(report)})
    replace_json(folder.path / FILE, asdict(found), durable=False)
    return found


def evaluated(folder: RunFolder) -> Evaluated | None:
    """Figures that :func:`evaluate_run` kept; None before that."""
    value = read_json(folder.path / FILE)
    return None if value is None else Evaluated(**value)
