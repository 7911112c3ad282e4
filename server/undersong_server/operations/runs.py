"""The runs of a coordinator: plan one, request an action of it, see how all of them stand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from undersong_common import configuration
from undersong_common.drill import COORDINATOR_WORDS
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.printable import printable
from undersong_protocol.agreement import bounds
from undersong_protocol.agreement.plan import Plan
from undersong_protocol.secagg.parameters import Member
from undersong_server import defaults
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.operations.enrolment import identities, roster
from undersong_server.runs.folder import FINAL, Action, RunFolder, RunStatus
from undersong_server.runs.plan_figures import PlanFigures, cap_faults, plan_figures
from undersong_server.runs.planning import Planned, coordinator_task, plan_run

LOG_LINES = 20  # of a run's log that are shown with it


@dataclass(frozen=True)
class PlannedRun:
    """A run that was planned and asks nobody anything yet.

    ``refusals``: of hospitals that share their policy and would refuse it, by name with the reason.
    """

    run: str
    parties: tuple[str, ...]
    figures: PlanFigures
    refusals: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        named = {"run": self.run, "parties": list(self.parties), "would_refuse": dict(self.refusals)}
        return {**named, **self.figures.to_json()}


def plan(
    home: Path,
    task_file: Path,
    *,
    name: str | None = None,
    suffix: str | None = None,
    parties: Sequence[str] | None = None,
    assignments: Sequence[str] = (),
    seed: int = 0,
    patience_s: float = defaults.PATIENCE_S,
    insecure_noise_seed: int | None = None,
) -> PlannedRun:
    """Fixes a run: its task, parties, private sums and noise.

    Args:
        task_file: its [data] paths are ignored.
        name: of the run, used once; None takes the task's name and ``suffix``, which is random if None.
        parties: who takes part; None takes everyone enrolled.
        assignments: ``section.key=value`` overrides of the task file.
        seed: of everything but noise, keys and masks.
        patience_s: how long a request waits for a party before the run goes on without it.
        insecure_noise_seed: tests only; the parties run with this seed, and the output is marked as not private.

    Raises ConfigurationError that names what is invalid.
    """
    return plan_task(
        home,
        configuration.override(configuration.read_toml(task_file), assignments),
        task_file.absolute().parent,
        name=name,
        suffix=suffix,
        parties=parties,
        seed=seed,
        patience_s=patience_s,
        insecure_noise_seed=insecure_noise_seed,
    )


def plan_task(
    home: Path,
    data: Mapping[str, Any],
    folder: Path,
    *,
    name: str | None = None,
    suffix: str | None = None,
    parties: Sequence[str] | None = None,
    seed: int = 0,
    patience_s: float = defaults.PATIENCE_S,
    insecure_noise_seed: int | None = None,
) -> PlannedRun:
    """As :func:`plan`, of a task file that was read: ``folder`` is where its relative paths start."""
    names = roster(home, parties)
    if CoordinatorHome(home).settings.drill:
        data = _rehearsed(data)
    run_plan = plan_run(coordinator_task(data, folder, names))
    ConfigurationError.raise_together(cap_faults(run_plan))
    if name is None:
        if suffix is None:
            suffix = os.urandom(4).hex() if insecure_noise_seed is None else f"insecure-{insecure_noise_seed}"
        name = f"{run_plan.task.task.name} {suffix}"
    planned = Planned(name, data, str(folder), names, seed, insecure_noise_seed, patience_s)
    CoordinatorHome(home).run(name).create(planned)
    return PlannedRun(name, names, plan_figures(run_plan), tuple(refusals(home, names, run_plan.plan)))


def _rehearsed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The task with words that mark it in every hospital's preview, in the card and in the dossiers."""
    task, publication = data.get("task", {}), data.get("publication", {})
    purpose = f"{COORDINATOR_WORDS} {task.get('purpose', '')}".rstrip()
    limits = f"{COORDINATOR_WORDS} {publication.get('limits', '')}".rstrip()
    return {**data, "task": {**task, "purpose": purpose}, "publication": {**publication, "limits": limits}}


def refusals(home: Path, names: Sequence[str], plan: Plan) -> Iterator[tuple[str, str]]:
    """What the policies that hospitals have shared refuse of a plan; a guard of the party's own decides in the end."""
    keys = identities(home)
    roster = [Member(name, keys[name]) for name in names]
    with closing(CoordinatorHome(home).registry()) as registry:
        shared = {party.name: party.policy for party in registry.parties() if party.policy and party.name in names}
    for name, text in sorted(shared.items()):
        try:
            bounds.check(plan, roster, bounds.Policy.from_json(json.loads(text)))
        except PrivacyRefusal as refusal:
            yield name, printable(refusal.problem)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # of another version: its own guard will tell


@dataclass(frozen=True)
class ActionRequest:
    """An action that was requested; ``served``: whether a process is there to carry it out now."""

    run: str
    action: Action
    served: bool

    def to_json(self) -> dict[str, Any]:
        return {"run": self.run, "requested": self.action, "served": self.served}


def start(home: Path, run: str) -> ActionRequest:
    """Starts a planned run: the serving process asks the parties, waits for their approval and goes on by itself.

    This and the next three raise ConfigurationError for a run that is unknown, finished or stopped.
    """
    return _request(home, run, "run")


def pause(home: Path, run: str) -> ActionRequest:
    """Holds a run at its next step; nothing is lost."""
    return _request(home, run, "pause")


def resume(home: Path, run: str, assignments: Sequence[str] = ()) -> ActionRequest:
    """Goes on with a run that was paused, or that failed for a reason that has been mended.

    Args:
        assignments: ``generators.NUMBER.key=value``: other limits, money, keys, request fields. What the parties have
            signed (the rest of the task, and which model writes where) stays as it is.

    Raises ConfigurationError for a change of anything else, too.
    """
    if assignments:
        _amend(CoordinatorHome(home).run(run), assignments)
    return _request(home, run, "run")


def _amend(folder: RunFolder, assignments: Sequence[str]) -> None:
    planned = folder.planned()
    changed = replace(planned, task=configuration.override(planned.task, assignments))
    before, after = planned.load().task, changed.load().task
    kept = before.model_dump(exclude={"generators"}) == after.model_dump(exclude={"generators"})
    said = [(each.identity(), each.words) for each in before.generators]
    if not kept or said != [(each.identity(), each.words) for each in after.generators]:
        raise ConfigurationError(
            f"run {folder.name!r}: --set changes what the parties have signed",
            "set limits, money, keys and request fields of generators only; for anything else plan a new run",
        )
    folder.amend(changed)


def stop(home: Path, run: str) -> ActionRequest:
    """Ends a run for good. What the parties were charged stays charged."""
    return _request(home, run, "stop")


def _request(home: Path, run: str, action: Action) -> ActionRequest:
    opened = CoordinatorHome(home)
    folder = opened.run(run)
    folder.planned()
    state = folder.status().state
    if state in FINAL:
        raise ConfigurationError(f"run {run!r} is {state}", "plan a new one: undersong run plan", code="run-ended")
    folder.request(action)
    return ActionRequest(run, action, opened.served)


@dataclass(frozen=True)
class RunSummary:
    """One line of the list of runs."""

    run: str
    parties: tuple[str, ...]
    status: RunStatus

    def to_json(self) -> dict[str, Any]:
        return {"run": self.run, **self.status.to_json(), "parties": list(self.parties)}


def list_runs(home: Path) -> tuple[RunSummary, ...]:
    """Every run, by name."""
    return tuple(RunSummary(run.name, run.planned().roster, run.status()) for run in CoordinatorHome(home).runs())


def status(home: Path, run: str) -> RunStatus:
    """How one run stands. Raises ConfigurationError for an unknown one."""
    folder = CoordinatorHome(home).run(run)
    folder.planned()
    return folder.status()


@dataclass(frozen=True)
class RunDetails:
    """One run: its plan, its parties, how it stands; ``log`` holds its last lines."""

    run: str
    parties: tuple[str, ...]
    status: RunStatus
    log: tuple[str, ...]
    figures: PlanFigures

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "parties": list(self.parties),
            "status": self.status.to_json(),
            "log": list(self.log),
            "plan": self.figures.to_json(),
        }


def show(home: Path, run: str) -> RunDetails:
    """One run in full. Raises ConfigurationError for an unknown one."""
    folder = CoordinatorHome(home).run(run)
    planned = folder.planned()
    figures = plan_figures(planned.load())
    return RunDetails(run, planned.roster, folder.status(), tuple(folder.log()[-LOG_LINES:]), figures)
