"""A planned run of the coordinator: the task, the parties and the options that ``undersong run plan`` fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_common import configuration
from undersong_common.errors import ConfigurationError
from undersong_common.plurals import counted
from undersong_server.runs import planning
from undersong_server.runs.planning import RunPlan
from undersong_server.runs.task import Task


@dataclass(frozen=True)
class Planned:
    """What ``undersong run plan`` fixed.

    Attributes:
        name: of the run, in the manifest and of its folder.
        task: the task file with its overrides, as read; ``folder`` is where its relative paths start.
        roster: names of the parties that take part.
        seed: of everything public.
        insecure_noise_seed: tests only: the parties' noise is no secret, and the outputs say so.
        patience_s: how long one request waits for a party.
    """

    name: str
    task: Mapping[str, Any]
    folder: str
    roster: tuple[str, ...]
    seed: int
    insecure_noise_seed: int | None
    patience_s: float

    def load(self) -> RunPlan:
        """The plan with its noise, computed anew. Raises ConfigurationError."""
        return planning.plan_run(coordinator_task(self.task, Path(self.folder), self.roster))


def coordinator_task(data: Mapping[str, Any], folder: Path, roster: Sequence[str]) -> Task:
    """A task as the coordinator runs it: it knows the number of parties, and nothing of their files."""
    stated = data.get("federation", {}).get("parties")
    if stated is not None and stated != len(roster):
        raise ConfigurationError(
            f"federation.parties is {stated}, but {counted(len(roster), 'party takes', 'parties take')} part:"
            f" {', '.join(roster)}",
            "correct the task file, or name the parties with --parties A,B,C",
        )
    own = {key: value for key, value in data.items() if key != "data"}
    kept = {key: value for key, value in data.get("data", {}).items() if key in ("root", "text", "label")}
    federation = {**data.get("federation", {}), "parties": len(roster)}
    task = configuration.validate(
        Task, {**own, "data": kept, "federation": federation, "folder": folder}, "the task file"
    )
    _ = task.options  # an invalid method option is found now, not when the method starts
    return task
