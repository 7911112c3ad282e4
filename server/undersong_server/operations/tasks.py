"""Task files: write one to begin with, and see what a run of it would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.table import UTF_8
from undersong_server.runs import task
from undersong_server.runs.plan_figures import PlanFigures, cap_faults, plan_figures
from undersong_server.runs.planning import plan_run
from undersong_server.runs.tables import task_faults
from undersong_server.runs.template import commented_task


def write_template(
    out: Path,
    source: Path | None = None,
    *,
    text: str | None = None,
    label: str | None = None,
    user: str | None = None,
    encoding: str = UTF_8,
) -> None:
    """Writes a commented task file; columns and labels come from the table ``source`` where one is given.

    Args:
        text, label, user, encoding: as of :func:`undersong_server.runs.template.commented_task`.

    Raises ConfigurationError where ``out`` exists, or the table cannot be read.
    """
    if out.exists():
        raise ConfigurationError(f"{out}: exists already", "choose another --out, or remove it")
    out.write_text(
        commented_task(source, out.absolute().parent, text=text, label=label, user=user, encoding=encoding),
        encoding="utf-8",
    )


@dataclass(frozen=True)
class TaskPlan:
    """A plan.

    Attributes:
        unready: what a simulation would refuse although a coordinator needs none of it, one sentence each.
        remarks: what of the task file does not count in this plan.
    """

    figures: PlanFigures
    unready: tuple[str, ...]
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**self.figures.to_json(), "unready": list(self.unready), "remarks": list(self.remarks)}


def plan(task_file: Path, assignments: Sequence[str] = ()) -> TaskPlan:
    """Every private sum of a run of the task, its noise, and the generators' calls. Spends nothing.

    Reads every file that a simulation reads, by the same rule; of private rows it tells numbers only.

    Args:
        assignments: ``section.key=value`` overrides.

    Raises ConfigurationError that names file, key, value and remedy; every file at fault and every cap at once.
    """
    read = task.load(task_file, assignments)
    run_plan = plan_run(read)
    figures = plan_figures(run_plan)
    ConfigurationError.raise_together([*task_faults(read, run_plan.plan), *cap_faults(run_plan)])
    unready = () if read.data.path else ("data.path names no private records (a coordinator needs none)",)
    return TaskPlan(figures, unready, read.remarks)
