"""The runs of a coordinator: plan one, request an action, list them, and watch one while another process drives it."""

import contextlib
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from undersong_common.errors import ConfigurationError, InternalError, PrivacyRefusal, TransportError
from undersong_common.files import file_state
from undersong_common.printable import counted, joined, number, printable
from undersong_common.program import configuration
from undersong_common.program.drill import COORDINATOR_WORDS
from undersong_protocol.agreement import bounds
from undersong_protocol.agreement.full_names import TASK_KEY, stated_for
from undersong_protocol.agreement.manifest import PLAN_WORDS
from undersong_protocol.agreement.plan import Plan
from undersong_protocol.secagg.parameters import Member
from undersong_server.coordinator.home import CoordinatorHome, CoordinatorSettings
from undersong_server.defaults import RUN_OPTIONS, RunOptions
from undersong_server.methods.interface import ANEW
from undersong_server.operations.contacts import REHEARSAL, contact_faults
from undersong_server.operations.enrolment import (
    PartyFacts,
    full_names,
    identities,
    parties,
    refuse_left_out,
    roster,
)
from undersong_server.report.evaluations import evaluated
from undersong_server.report.usefulness import read_test_file
from undersong_server.runs.folder import (
    ENDED,
    FAILED,
    FINAL,
    REJECTED,
    UNEVALUATED,
    Action,
    Annotations,
    RunFailure,
    RunFolder,
    RunStatus,
    UnreadableRun,
    logged,
)
from undersong_server.runs.held_out import same_file_faults
from undersong_server.runs.planning import (
    PlanFigures,
    Planned,
    cap_faults,
    coordinator_task,
    full_name_warnings,
    plan_figures,
    plan_run,
    require_packages,
)
from undersong_server.runs.task import Task, for_its_preset

WHO_ASKS = "state both once: undersong coordinator change --operator NAME --contact WORDS"
UNDER_WAY = ("waiting", "running", "paused")  # states of a run that has started and not ended
LONGEST_STEM = 80  # characters of the task's name, or of a revised run's name, in a proposed name of a run
CLOCKS = (" %H.%M", " %H.%M.%S")  # end the name of a second run of one day, and of another in the same minute
LOG_LINES = 20  # lines of a run's log that are displayed with it
POLL_S = 0.2  # pause between two looks at a run that is watched
Check = Callable[[Task], None]
STAMP = len("2026-01-01 00:00:00 ")  # characters before the words of a log line


@dataclass(frozen=True)
class PlannedRun:
    """Result of planning a run, which is not started yet; ``run`` is its name, "" for a preview.

    ``proposed_name``: the name that it would get now without one of the operator's.
    ``refusals``: (party, reason) for hospitals that share their policy and would refuse the run.
    ``remarks``: parts of the task that the run ignores, one sentence each.
    """

    run: str
    parties: tuple[str, ...]
    figures: PlanFigures
    refusals: tuple[tuple[str, str], ...] = ()
    proposed_name: str = ""
    remarks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        run_fields = {"run": self.run, "parties": list(self.parties), "would_refuse": dict(self.refusals)}
        return {**run_fields, "remarks": list(self.remarks), **self.figures.to_json()}


def plan(
    home: Path,
    task_file: Path | None,
    options: RunOptions = RUN_OPTIONS,
    *,
    assignments: Sequence[str] = (),
    revises: str | None = None,
) -> PlannedRun:
    """Plans a run, which fixes its task, parties, private sums and noise.

    Args:
        task_file: its [data] paths are ignored; None takes the task of the run that is revised.
        assignments: ``section.key=value`` overrides of the task file.
        revises: earlier run that this one replaces, as in :func:`plan_task`.

    Raises ConfigurationError if task, parties or options are invalid, or the name is taken.
    """
    if task_file is not None:
        task_data = configuration.read_toml(task_file)
        folder = task_file.absolute().parent
    elif revises is not None:
        earlier_plan = CoordinatorHome(home).run(revises).planned()
        task_data = dict(earlier_plan.task)
        folder = Path(earlier_plan.folder)
        if options.parties is None:
            options = replace(options, parties=earlier_plan.roster)
    else:
        raise ConfigurationError("neither a task file nor --revises was given", "name one of them", code="no-task")
    if revises is not None:
        task_data = {**task_data, "task": {**task_data.get("task", {}), "revises": revises}}
    task_data = configuration.override(task_data, assignments)
    if task_file is not None:
        task_data, _ = for_its_preset(task_data, assignments)
    return plan_task(home, task_data, folder, options)


def plan_task(
    home: Path,
    data: Mapping[str, Any],
    folder: Path,
    options: RunOptions = RUN_OPTIONS,
    *,
    check: Check = lambda _task: None,
    begun_with: str = "",
) -> PlannedRun:
    """Plans a run of parsed task data, like :func:`plan`; its relative paths start at ``folder``.

    The run that it revises, if any, is stopped unless it has ended, and is put away.

    Args:
        check: called with the validated task before any file of it is read; refuses a task by a ConfigurationError.
        begun_with: earlier run whose values were the first ones; "" for none.

    Raises ConfigurationError where the run that it revises is unknown or has finished.
    """
    revised_run = data.get("task", {}).get("revises")
    if revised_run and status(home, str(revised_run)).state == "finished":
        raise ConfigurationError(
            f"run {revised_run!r} has finished, so that nothing revises it",
            "plan a new run without revising it",
            code="run-ended",
        )
    settings = CoordinatorHome(home).settings
    if settings.drill:
        data = _mark_rehearsal(data)
    data = _with_operator(data, settings)
    planned_run = preview(home, data, folder, options.parties, check=check)
    # A run whose test file cannot be read would end at once. A preview leaves the file unread, since each change of a
    # form makes one.
    read_test_file(coordinator_task(data, folder, planned_run.parties))
    data = _with_full_names(data, home, planned_run.parties)
    run_name = options.name
    name_suffix = options.suffix
    insecure_seed = options.insecure_noise_seed
    if run_name is None and name_suffix is None and insecure_seed is None:
        run_name = proposed_name(home, data)
    elif run_name is None:
        run_name = f"{data['task']['name']} {name_suffix or f'insecure-{insecure_seed}'}"
    stored_plan = Planned(
        run_name, data, str(folder), planned_run.parties, options.seed, insecure_seed, options.patience_s
    )
    CoordinatorHome(home).run(run_name).create(stored_plan)
    if begun_with:
        CoordinatorHome(home).run(run_name).annotate(Annotations(begun_with=begun_with))
    if revised_run:
        if status(home, revised_run).state not in ENDED:
            request(home, revised_run, "stop")
        CoordinatorHome(home).run(revised_run).put_away(run_name)
    return replace(planned_run, run=run_name)


def proposed_name(home: Path, data: Mapping[str, Any]) -> str:
    """Returns a free name that tells runs apart: "triage epsilon 4 2026-11-30", the next one with its time.

    A revision of a run that its operator has named keeps that name: "spring revised 2026-11-30" for "spring".
    """
    first_words = _revised_name(home, data) or _task_and_promise(data)
    dated_name, *timed_names = (f"{first_words} {time.strftime(f'%Y-%m-%d{clock}')}" for clock in ("", *CLOCKS))
    numbered_names = (f"{timed_names[-1]} {number}" for number in itertools.count(2))
    names = itertools.chain([dated_name], timed_names, numbered_names)
    return next(name for name in names if not CoordinatorHome(home).run(name).exists)


def _task_and_promise(data: Mapping[str, Any]) -> str:
    epsilon = data.get("privacy", {}).get("epsilon")
    is_stated = isinstance(epsilon, int | float) and math.isfinite(epsilon)
    promise = [f"epsilon {epsilon:g}"] if is_stated else []
    return " ".join([str(data["task"]["name"])[:LONGEST_STEM].rstrip(), *promise])


def _revised_name(home: Path, data: Mapping[str, Any]) -> str:
    """Returns "spring revised" for a task that revises "spring"; "" without one, or if its name was proposed."""
    revised_run = str(data["task"].get("revises") or "")
    if not revised_run:
        return ""
    revised_task = CoordinatorHome(home).run(revised_run).planned().task
    if is_proposed_name(revised_run, str(revised_task["task"].get("name", ""))):
        return ""
    first_name = re.sub(r" revised \d{4}-\d\d-\d\d.*", "", revised_run)
    return f"{first_name[:LONGEST_STEM].rstrip()} revised"


def is_proposed_name(run: str, task: str) -> bool:
    """True for a name that :func:`proposed_name`, now or in earlier releases, made for a run of this task."""
    stem_pattern = re.escape(task[:LONGEST_STEM].rstrip())
    time_pattern = r"\d{4}-\d\d-\d\d(?: \d\d\.\d\d(?:\.\d\d)?)?"
    return re.fullmatch(rf"{stem_pattern}((?: epsilon \S+)? {time_pattern}| [0-9a-f]{{8}})(?: \d+)?", run) is not None


@dataclass(frozen=True)
class Revision:
    """Revisions of a run: it replaces the run ``before``, and the run ``after`` replaces it; "" for none.

    Attributes:
        changes: (key, value before, value now) of each key of the task that differs from that of the run which it
            replaces, or began with; None if missing.
        begun_with: run whose values it began with and which it does not replace; "" for none.
    """

    before: str
    after: str
    changes: tuple[tuple[str, Any, Any], ...] = ()
    begun_with: str = ""


def revision(home: Path, run: str) -> Revision:
    """Returns which run a run replaces, and which one replaces it. Raises ConfigurationError for an unknown run."""
    coordinator_home = CoordinatorHome(home)
    run_folder = coordinator_home.run(run)
    stored_plan = run_folder.planned()
    before = stored_plan.task["task"].get("revises", "")
    begun_with = "" if before else _begun_with(run_folder)
    run_revision = Revision(before, run_folder.successor, begun_with=begun_with)
    earlier_name = before or begun_with
    if not earlier_name or not (earlier_run := coordinator_home.run(earlier_name)).exists:
        return run_revision
    changes = plan_differences((earlier_run.planned(), stored_plan))
    return replace(run_revision, changes=tuple((key, *values) for key, values in changes))


def plan_differences(plans: Sequence[Planned]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Returns the keys of the task files in which plans differ, "parties" among them, with the value in each plan.

    Generators are told apart by their names: "generators" lists these, and only those of every plan have further keys.
    """
    tables_by_plan = [_generators_by_name(plan) for plan in plans]
    common_names = [name for name in tables_by_plan[0] if all(name in tables for tables in tables_by_plan)]
    values_by_plan = [
        dict(
            _keys(
                {
                    **{section: table for section, table in plan.task.items() if section != "generators"},
                    "parties": list(plan.roster),
                    "generators": {name: tables[name] for name in common_names},
                }
            )
        )
        | {"generators": list(tables)}
        for plan, tables in zip(plans, tables_by_plan, strict=True)
    ]
    # "parties" shows a hospital that is in one plan only: its full name is no further difference.
    partial_parties = {
        name for plan in plans for name in plan.roster if any(name not in other_plan.roster for other_plan in plans)
    }
    unlisted_keys = {"task.revises", *(f"federation.{TASK_KEY}.{name}" for name in partial_parties)}
    every_key = dict.fromkeys(key for values in values_by_plan for key in values if key not in unlisted_keys)
    rows = ((key, tuple(values.get(key) for values in values_by_plan)) for key in every_key)
    return tuple((key, values) for key, values in rows if any(value != values[0] for value in values))


def _generators_by_name(plan: Planned) -> dict[str, Mapping[str, Any]]:
    return {str(table.get("name")): table for table in plan.task.get("generators", ())}


def _begun_with(run_folder: RunFolder) -> str:
    try:
        return run_folder.annotations().begun_with
    except UnreadableRun:  # The screen's part of notes tells of the damage.
        return ""


def _keys(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, key_value in value.items():
        if isinstance(key_value, list) and any(isinstance(table, Mapping) for table in key_value):
            key_value = {str(table_number): table for table_number, table in enumerate(key_value, 1)}
        if isinstance(key_value, Mapping):
            yield from _keys(key_value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", key_value


def put_away(home: Path, run: str) -> None:
    """Moves a run that is not under way into the archive, out of Home and the lists; nothing of it is lost.

    One that fails anew comes back by itself. Raises ConfigurationError for a run that is unknown or under way.
    """
    run_folder = CoordinatorHome(home).run(run)
    run_state = run_folder.status().state
    if run_state in UNDER_WAY:
        raise ConfigurationError(
            f"run {run!r} is {run_state}, and cannot be put away yet",
            "put it away when it has ended, or stop it first",
            code="under-way",
        )
    run_folder.put_away()


def take_back(home: Path, run: str) -> None:
    """Takes a run out of the archive. Raises ConfigurationError for an unknown run."""
    CoordinatorHome(home).run(run).take_back()


def labels_of(home: Path, run: str) -> tuple[str, ...]:
    """Returns the labels that a run's plan lists; () without labels. Raises ConfigurationError for an unknown run."""
    return tuple(map(str, CoordinatorHome(home).run(run).planned().task["task"].get("labels", ())))


def requested_promise(home: Path, run: str) -> str:
    """Says which epsilon and delta a run's plan asks for. Raises ConfigurationError for an unknown run."""
    privacy = CoordinatorHome(home).run(run).planned().task.get("privacy", {})
    amounts = [
        f"{name} {number(float(privacy[name]))}"
        for name in ("epsilon", "delta")
        if isinstance(privacy.get(name), int | float)
    ]
    return f"This plan asks for {joined(amounts)}." if amounts else ""


def is_put_away(home: Path, run: str) -> bool:
    """True if a run was put away, and has not failed anew since."""
    return CoordinatorHome(home).run(run).is_put_away


def preview(
    home: Path,
    data: Mapping[str, Any],
    folder: Path,
    parties: Sequence[str] | None,
    *,
    check: Check = lambda _task: None,
) -> PlannedRun:
    """Computes a run's plan without creating the run. Raises the ConfigurationErrors of :func:`plan_task`."""
    party_names = roster(home, parties)
    task = coordinator_task(_with_operator(data, CoordinatorHome(home).settings), folder, party_names)
    check(task)
    run_plan = plan_run(task)
    contacts = {"publication.contact": task.publication.contact, "task.contact": _own_contact(data)}
    ConfigurationError.raise_together([*cap_faults(run_plan), *same_file_faults(task), *contact_faults(contacts)])
    require_packages(run_plan)
    refusing = tuple(refusals(home, party_names, run_plan.plan))
    remarks = tuple(full_name_warnings(task, {*party_names, *identities(home)}))
    return PlannedRun("", party_names, plan_figures(run_plan), refusing, proposed_name(home, data), remarks)


def _mark_rehearsal(data: Mapping[str, Any]) -> dict[str, Any]:
    """The task with words that mark it in every hospital's preview, in the card and in the dossiers."""
    task = data.get("task", {})
    publication = data.get("publication", {})
    purpose_words = f"{COORDINATOR_WORDS} {task.get('purpose', '')}".rstrip()
    limits = f"{COORDINATOR_WORDS} {publication.get('limits', '')}".rstrip()
    stated_terms = {**publication, "limits": limits, "invented_records": True}
    return {**data, "task": {**task, "purpose": purpose_words}, "publication": stated_terms}


def _with_operator(data: Mapping[str, Any], settings: CoordinatorSettings) -> dict[str, Any]:
    """The task with who asks: the coordinator's operator and contact, or else the makers whom the task names.

    Raises ConfigurationError where neither states both: no hospital would know whom it answers.
    """
    task = data.get("task", {})
    publication = data.get("publication", {})
    operator = (
        settings.operator or task.get("operator") or publication.get("makers") or (REHEARSAL if settings.drill else "")
    )
    contact_words = (
        settings.contact or task.get("contact") or publication.get("contact") or (REHEARSAL if settings.drill else "")
    )
    faults = [
        (
            f"the plan does not state the {value_words} of who asks",
            f"{WHO_ASKS}, or publication.{key} in the task",
            form_path,
        )
        for stated_value, value_words, key, form_path in (
            (operator, "legal name", "makers", "publication.makers"),
            (contact_words, "contact", "contact", "publication.contact"),
        )
        if not stated_value
    ]
    ConfigurationError.raise_together(faults, code="no-operator")
    return {**data, "task": {**task, "operator": operator, "contact": contact_words}}


def _with_full_names(data: Mapping[str, Any], home: Path, parties: Sequence[str]) -> dict[str, Any]:
    """The task with the parties' full names: those that the operator has noted, or else those that the task states."""
    federation = data.get("federation", {})
    stated_names = stated_for({**federation.get(TASK_KEY, {}), **full_names(home)}, parties)
    if stated_names == federation.get(TASK_KEY, {}):
        return dict(data)
    other_keys = {key: value for key, value in federation.items() if key != TASK_KEY}
    return {**data, "federation": other_keys | ({TASK_KEY: stated_names} if stated_names else {})}


def _own_contact(data: Mapping[str, Any]) -> str:
    """The contact of who asks as the task itself states it, before the coordinator's takes its place."""
    return str(data["task"].get("contact", ""))


def refusals(home: Path, names: Sequence[str], plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields (party, reason) for each shared policy that would refuse the plan. The party itself decides later."""
    roster_facts = [facts for facts in parties(home) if facts.party.name in names]
    plan_roster = [Member(facts.party.name, bytes.fromhex(facts.party.identity)) for facts in roster_facts]
    for facts in roster_facts:
        policy = facts.shared_policy
        if policy is None:
            continue
        try:
            bounds.check(plan, plan_roster, policy)
        except PrivacyRefusal as refusal:
            yield facts.party.name, printable(refusal.problem)


@dataclass(frozen=True)
class ActionRequest:
    """An action that was requested for a run; ``served`` is True if a process is there to carry it out."""

    run: str
    requested: Action
    served: bool


def request(home: Path, run: str, action: Action, assignments: Sequence[str] = ()) -> ActionRequest:
    """Requests an action for a run, which the serving process carries out.

    "run" starts a planned run: the serving process asks the parties, waits for their approval and continues by itself.
    It also continues a run that was paused, or that failed for a reason that has been fixed. "pause" pauses a run at
    its next step; nothing is lost. "stop" ends it for good; what the parties were charged stays charged.

    Args:
        assignments: ``generators.NUMBER.key=value``: other limits, money, keys, request fields. What the parties have
            signed (the rest of the task, and which model writes where) stays as it is.

    Raises ConfigurationError for a run that is unknown, finished or stopped, for the start of one with a hospital that
    is left out of new runs, and for an assignment that would change anything else.
    """
    coordinator_home = CoordinatorHome(home)
    run_folder = coordinator_home.run(run)
    if assignments:
        _amend(run_folder, assignments)
    run_state = run_folder.status().state
    if run_state in FINAL:
        raise ConfigurationError(
            f"run {run!r} is {run_state} for good", "plan a new one: undersong run plan", code="run-ended"
        )
    if action == "run" and run_state == "planned":
        with contextlib.suppress(UnreadableRun):  # The process that drives the run reports a damaged plan.
            refuse_left_out(home, run_folder.planned().roster, run)
    run_folder.request(action)
    return ActionRequest(run, action, coordinator_home.served)


def _amend(run_folder: RunFolder, assignments: Sequence[str]) -> None:
    stored_plan = run_folder.planned()
    amended_plan = replace(stored_plan, task=configuration.override(stored_plan.task, assignments))
    planned_task = stored_plan.load().task
    amended_task = amended_plan.load().task
    is_rest_equal = planned_task.model_dump(exclude={"generators"}) == amended_task.model_dump(exclude={"generators"})
    signed_generators = [(generator.identity(), generator.words) for generator in planned_task.generators]
    if not is_rest_equal or signed_generators != [
        (generator.identity(), generator.words) for generator in amended_task.generators
    ]:
        raise ConfigurationError(
            f"run {run_folder.name!r}: what the parties have signed cannot be changed (--set)",
            "set limits, money, keys and request fields of generators only; for anything else plan a new run",
            code="signed-by-parties",
        )
    run_folder.amend(amended_plan)


@dataclass(frozen=True)
class RunSummary:
    """A run as the list of runs shows it: name, parties, status, note and tags; ``put_away`` is True in the archive.

    ``downloaded`` is True once an operator has taken its texts with the marks that it has now.
    """

    run: str
    parties: tuple[str, ...]
    status: RunStatus
    note: str = field(default="", kw_only=True)
    tags: tuple[str, ...] = field(default=(), kw_only=True)
    put_away: bool = field(default=False, kw_only=True)
    downloaded: bool = field(default=False, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        labels = {"tags": list(self.tags), "put_away": self.put_away}
        return {"run": self.run, **self.status.to_json(), "parties": list(self.parties), **labels}


def roster_of(home: Path, run: str) -> tuple[str, ...]:
    """Names of the hospitals of a run. Raises ConfigurationError for an unknown one."""
    return CoordinatorHome(home).run(run).planned().roster


def evaluation_error(home: Path, run: str, status: RunStatus) -> RunFailure | None:
    """Returns the error that kept a finished run from its figures; None where it has figures or needs none."""
    if status.state != "finished" or status.evaluation_error is None:
        return None
    with contextlib.suppress(UnreadableRun):  # Figures that are damaged are made anew, too.
        if evaluated(CoordinatorHome(home).run(run)) is not None:
            return None
    return status.evaluation_error


def may_resume(home: Path, status: RunStatus) -> bool:
    """True if a paused or failed run could go on when it is resumed.

    After a fault of the program that takes a restart of the coordinator.
    """
    if status.state == "paused":
        return True
    if status.state != "failed" or status.error is None:
        return False
    serving_process = CoordinatorHome(home).serving
    is_same_program = serving_process is not None and serving_process.since <= (status.at or 0.0)
    return not (status.error.exit_code == InternalError.exit_code and is_same_program)


def status(home: Path, run: str) -> RunStatus:
    """Status of one run. Raises ConfigurationError for an unknown one."""
    return CoordinatorHome(home).run(run).status()


@dataclass(frozen=True)
class RunDetails(RunSummary):
    """One run: its plan, parties and status; ``log`` holds its last lines."""

    log: tuple[str, ...]
    figures: PlanFigures

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "parties": list(self.parties),
            "status": self.status.to_json(),
            "note": self.note,
            "tags": list(self.tags),
            "put_away": self.put_away,
            "log": list(self.log),
            "plan": self.figures.to_json(),
        }


def show(home: Path, run: str) -> RunDetails:
    """Returns plan, parties, status and log of a run. Raises ConfigurationError for an unknown one."""
    run_folder = CoordinatorHome(home).run(run)
    stored_plan = run_folder.planned()
    figures_of_plan = plan_figures(stored_plan.load())
    run_annotations = run_folder.annotations()
    return RunDetails(
        run,
        stored_plan.roster,
        run_folder.status(),
        tuple(run_folder.log()[-LOG_LINES:]),
        figures_of_plan,
        note=run_annotations.note,
        tags=run_annotations.tags,
        put_away=run_folder.is_put_away,
    )


@dataclass(frozen=True)
class RunEvent:
    """A change of a run that is watched.

    Attributes:
        lines: new lines of the run's log, without repetitions of the run's error.
        status: the run's status now.
        served: True while a process drives it.
        awaited: facts of the parties that the run waits for, by name (:func:`awaited`).
    """

    lines: tuple[str, ...]
    status: RunStatus
    served: bool
    awaited: Mapping[str, PartyFacts] = field(default_factory=dict)

    @property
    def away_because(self) -> list[tuple[str, str]]:
        """(party, known reason) for awaited parties that are away."""
        return [(name, facts.away_because) for name, facts in self.awaited.items() if facts.away_because]

    @property
    def kind(self) -> tuple[Any, ...]:
        """State, phase, awaited parties and serving: a value by which two events differ in more than a countdown."""
        status = self.status
        awaited_words: tuple[str, ...] = ()
        if status.waiting is not None:
            awaited_words = status.waiting.whom, *(party.party for party in status.waiting.parties)
        return (status.state, status.phase, awaited_words, self.served, *self.away_because)


def watch(home: Path, run: str, *, timeout_s: float | None = None) -> Iterator[RunEvent]:
    """Yields an event for each change until the run ends; the last event holds the final status.

    The first event holds the last lines of the log. If a later action is requested of a failed run, its old end does
    not count.

    Args:
        timeout_s: seconds after which watching ends; None means unlimited.

    Raises:
        ConfigurationError: no such run.
        TransportError: the run did not end in time; it goes on.
    """
    coordinator_home = CoordinatorHome(home)
    run_folder = coordinator_home.run(run)
    started_at_s = time.monotonic()
    read_line_count = max(0, len(run_folder.log()) - LOG_LINES)
    last_shown: tuple[object, ...] | None = None
    while True:
        if len(run_folder.log()) > read_line_count:
            time.sleep(POLL_S)  # A run's last log line comes just before its final status: both are one event.
        status = run_folder.status()
        is_served = coordinator_home.served
        new_lines = tuple(run_folder.log()[read_line_count:])
        read_line_count += len(new_lines)
        has_ended = status.state in FINAL or (status.state in ENDED and status.number >= run_folder.requested().number)
        event = RunEvent(new_lines, status, is_served, awaited(home, status))
        shown_words = (status.words, is_served, *event.away_because)
        if new_lines or shown_words != last_shown or has_ended:
            last_shown = shown_words
            if has_ended and status.error is not None:
                repeated_lines = {logged(status.error.problem), logged(f"failed: {status.error.problem}")}
                event = replace(event, lines=tuple(line for line in new_lines if line[STAMP:] not in repeated_lines))
            yield event
        if has_ended:
            return
        if timeout_s is not None and time.monotonic() - started_at_s > timeout_s:
            raise TransportError(
                f"run {run!r} did not end within {timeout_s:g} s", "it goes on; watch it again", code="still-running"
            )
        time.sleep(POLL_S)


def mark(home: Path, run: str) -> list[object]:
    """A value that changes when any file of a run changes; the run need not exist."""
    folder = CoordinatorHome(home).run(run).path
    watched_names = ("status.json", "requested.json", "annotations.json", "put-away", "log.txt", "live.jsonl", "output")
    return [file_state(folder / name) for name in watched_names]


def awaited(home: Path, status: RunStatus) -> dict[str, PartyFacts]:
    """Facts of the parties that the run waits for, or that have rejected it, by name."""
    awaited_parties = () if status.waiting is None else status.waiting.parties
    rejecting_names = () if status.error is None else status.error.rejected_by
    awaited_names = {*(party.party for party in awaited_parties), *rejecting_names}
    if not awaited_names:
        return {}
    return {facts.party.name: facts for facts in parties(home) if facts.party.name in awaited_names}


def log(home: Path, run: str, line_count: int = 200) -> tuple[str, ...]:
    """The last lines of a run's log. Raises ConfigurationError for an unknown run."""
    run_folder = CoordinatorHome(home).run(run)
    run_folder.planned()
    return tuple(run_folder.log()[-line_count:])


def timed_log(home: Path, run: str) -> tuple[tuple[float | None, str], ...]:
    """The last lines of a run's log as (seconds since the epoch, words), for a screen that shows the failure above."""
    error = status(home, run).error
    return tuple((time_s, _without_error(words, error)) for time_s, words in map(_split_stamp, log(home, run)))


def _split_stamp(line: str) -> tuple[float | None, str]:
    """The time of a line of a log, which has the coordinator's zone, and its words; None for a line without a time."""
    with contextlib.suppress(ValueError, OverflowError):
        return time.mktime(time.strptime(line[: STAMP - 1], "%Y-%m-%d %H:%M:%S")), line[STAMP:]
    return None, line


def _without_error(words: str, error: RunFailure | None) -> str:
    """Words of a log line; of one that repeats the run's error, only its begin: the screen shows the error above."""
    if error is None:
        return words
    problem = logged(error.problem)
    for line_start in (FAILED, REJECTED):
        if words == f"{line_start}: {problem}":
            return f"{line_start}: see above"
    return "a hospital refuses: see above" if words == problem else words


@dataclass(frozen=True)
class Moment:
    """An event of a run; ``at`` in seconds since the epoch, ``grade``: over, under way, or failed."""

    at: float
    words: str
    grade: Literal["done", "now", "bad"] = "done"


def timeline(home: Path, run: str, sum_titles: Mapping[str, str] = MappingProxyType({})) -> tuple[Moment, ...]:
    """Events of a run from its plan until now: decisions, texts written, sums opened, failures.

    Args:
        sum_titles: what each planned sum asks, by its name.

    Raises ConfigurationError for an unknown run.
    """
    run_folder = CoordinatorHome(home).run(run)
    stored_plan = run_folder.planned()
    status = run_folder.status()
    run_moments = [
        Moment((run_folder.path / "plan.json").stat().st_mtime, f"planned with {', '.join(stored_plan.roster)}")
    ]
    requested_path = run_folder.path / "requested.json"
    if requested_path.exists():
        run_moments.append(Moment(requested_path.stat().st_mtime, f"requested: {run_folder.requested().action}"))
    for time_s, line_words in map(_split_stamp, run_folder.log()):
        if time_s is not None:
            is_refusal = status.error is not None and line_words == logged(status.error.problem)
            moment_grade: Literal["done", "bad"] = (
                "bad" if is_refusal or line_words.startswith((FAILED, REJECTED, UNEVALUATED)) else "done"
            )
            shown_words = _without_error(line_words, status.error).partition(PLAN_WORDS)[0]
            run_moments.append(Moment(time_s, shown_words, moment_grade))
    for event in run_folder.live():
        if event["kind"] == "sum":
            survivor_words = f"{len(event['survivors'])} of {counted(len(stored_plan.roster), 'hospital')}"
            title = sum_titles.get(event["name"], event["name"])
            run_moments.append(Moment(event["at"], f"opened from {survivor_words}: {title}"))
        elif event["kind"] == "texts":
            run_moments.append(Moment(event["at"], _texts_words(len(event["texts"]), event["step"])))
    # The log has whole seconds, and a run ends after all that happened in its last one.
    run_moments.sort(key=lambda moment: (int(moment.at), moment.words in ENDED))
    if status.state not in ENDED and status.since is not None:
        run_moments.append(Moment(_began(status, run_moments), status.detail or status.state_words, "now"))
    return tuple(run_moments)


def _texts_words(count: int, step: str) -> str:
    if step.startswith(ANEW):
        return f"wrote {counted(count, 'text')} in place of those that the choice left out"
    return f"wrote {counted(count, 'text')}: {step}"


def _began(status: RunStatus, moments: Sequence[Moment]) -> float:
    """Start of what a run does now: since when it waits, else the time of its last event."""
    if status.waiting is not None:
        return status.waiting.since
    return max([status.since or 0.0, *(moment.at for moment in moments)])
