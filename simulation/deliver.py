"""A simulation from task file to finished folder: plan, run, publish, and the researcher's comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from common.embedding import PublicFileCache
from common.errors import ConfigurationError
from common.privacy.ledger import Ledger
from common.table import Table, concatenate, read_table
from server import planning
from server.evaluation.evaluate import EvaluationReport, evaluate_tables
from server.progress import Progress
from server.publish import publish
from server.report import ReportData, report_data, screen
from server.task import Task
from simulation.simulate import Simulated, ledger_path, simulate
from simulation.workspace import Workspace


@dataclass(frozen=True)
class Delivered:
    """A finished run's folder and what there is to say about it."""

    folder: Path
    report: ReportData

    def to_json(self) -> dict[str, Any]:
        return self.report.summary() | {"folder": str(self.folder)}

    def screen(self) -> RenderableType:
        return screen(self.report, self.folder)
