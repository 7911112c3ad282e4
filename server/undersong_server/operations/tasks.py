"""Task files: write one to begin with, and see what a run of it would cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_server.runs import task
from undersong_server.runs.plan_figures import PlanFigures, plan_figures
from undersong_server.runs.planning import plan_run
from undersong_server.runs.template import commented_task


def write_template(out: Path, source: Path | None = None) -> None:
    """Writes a commented task file; columns and labels come from the table ``source`` where one is given.

    Raises ConfigurationError where ``out`` exists, or the table cannot be read.
    """
    if out.exists():
        raise ConfigurationError(f"{out}: exists already", "choose another --out, or remove it")
    out.write_text(commented_task(source, out.absolute().parent), encoding="utf-8")


def plan(task_file: Path, assignments: Sequence[str] = ()) -> PlanFigures:
    """Every private sum of a run of the task, its noise, and the generators' calls. Spends nothing.

    Args:
        assignments: ``section.key=value`` overrides.

    Raises ConfigurationError that names file, key, value and remedy.
    """
    return plan_figures(plan_run(task.load(task_file, assignments)))
