"""Evaluation of a run's corpus by a public test file, kept beside the run, so that runs can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from undersong_common.embedding import Embed
from undersong_server.coordinator.home import CoordinatorHome
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
    test: Path,
    *,
    embed: Embed,
    text_field: str = "text",
    label_field: str | None = "label",
    repeats: int = 1,
) -> Evaluated:
    """Evaluates a finished run's corpus beside a test file that is public, and keeps the figures for comparisons.

    Args:
        test, embed, text_field, label_field, repeats: as of :func:`undersong_server.operations.evaluation.evaluate`.

    Raises ConfigurationError for a run that has not finished, and as that function does.
    """
    folder = CoordinatorHome(home).finished(run, "evaluate it when it has finished")
    report = evaluation.evaluate(
        folder.output, test=test, embed=embed, text_field=text_field, label_field=label_field, repeats=repeats
    )
    digest = hashlib.sha256(test.read_bytes()).hexdigest()
    found = Evaluated(f"{test.name}, {digest[:8]}", {each.name: each.shown for each in measures_of(report)})
    replace_json(folder.path / FILE, asdict(found), durable=False)
    return found


def evaluated(folder: RunFolder) -> Evaluated | None:
    """Figures that :func:`evaluate_run` kept; None before that."""
    value = read_json(folder.path / FILE)
    return None if value is None else Evaluated(**value)
