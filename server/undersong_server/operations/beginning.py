"""The operator's next step: to a first corpus, on a screen, for a run; and the figures of a letter to hospitals.

Only the console shows these. They are made here, because they read run folders, which the console may not import.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from undersong_common.printable import counted, joined
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.parties import ENROLLED
from undersong_server.operations import comparison, coordinator, drafts
from undersong_server.operations.enrolment import PartyFacts, parties
from undersong_server.operations.open_points import bar_to_publication, lacks_terms
from undersong_server.operations.overview import find_run, list_runs
from undersong_server.operations.runs import UNDER_WAY, RunSummary, may_resume
from undersong_server.report.evaluations import evaluated
from undersong_server.runs.folder import UNREADABLE, RunFolder, UnreadableRun

SIGN_ADDRESS = "/parties/sign"
PUBLISH = "Send the downloaded ZIP file of {run} to its receivers, or place it where they fetch it: that publishes it"
GROUNDS = ("promise", "cost", "the number of open points")  # reasons to choose a run, where no figure shows one ahead
DO_NOT_PUBLISH = "Do not publish {run}, because {reason}"


@dataclass(frozen=True)
class FirstStep:
    """One step to a coordinator's first corpus: an order (``words``), and the ``address`` of the screen for it.

    ``again``: words that lead to that screen once more, where only the operator knows if the step is over; else "".
    """

    words: str
    address: str
    is_done: bool
    again: str = ""


def first_steps(home: Path, runs: Sequence[RunSummary], parties: Sequence[PartyFacts]) -> tuple[FirstStep, ...]:
    """Returns the steps to the first corpus, in order; () once it is downloaded or put away, or two runs finished."""
    finished_runs = [run for run in runs if run.status.state == "finished"]
    if len(finished_runs) > 1 or any(run.downloaded or run.put_away for run in finished_runs):
        return ()
    coordinator_facts = coordinator.show(home)
    enrolled_parties = [party for party in parties if party.party.state == ENROLLED]
    # A run that waits for people, or that people have rejected, is not approved yet.
    is_approved = any(run.status.charged for run in runs)
    newest_address = next((f"/runs/one/{quote(run.run)}" for run in runs), "/runs")
    return (
        FirstStep(
            "Say who asks: legal name and contact",
            "/#who-asks",
            bool(coordinator_facts.operator and coordinator_facts.contact),
        ),
        FirstStep("Invite each hospital", "/parties/invite", bool(parties), _invite_next(parties)),
        FirstStep(
            "Sign each hospital's request",
            SIGN_ADDRESS,
            bool(enrolled_parties) and len(enrolled_parties) == len(parties),
        ),
        FirstStep("Plan a run", "/runs/new", bool(runs)),
        FirstStep("Start it; each hospital's people approve it", newest_address, is_approved),
        FirstStep(
            "Read its result",
            f"/runs/one/{quote(finished_runs[0].run)}/result" if finished_runs else newest_address,
            False,
        ),
    )


def _invite_next(parties: Sequence[PartyFacts]) -> str:
    """Returns the words of a link that invites one more hospital, with the number so far; "" before the first."""
    return f"{counted(len(parties), 'hospital')} so far, invite the next" if parties else ""


@dataclass(frozen=True)
class OperatorStep:
    """The one step that the operator takes next, as an order (``words``), and the address of its screen.

    ``other``: a step that may be taken instead; None if there is none.
    """

    words: str
    address: str
    other: "OperatorStep | None" = None


def next_step(home: Path, every_run: Callable[[], Sequence[RunSummary]], run_shown: str = "") -> OperatorStep:
    """Returns the step that comes next: for the run that is shown, else for the newest run that needs one.

    Args:
        every_run: lists all runs; called only where the run that is shown needs no step.
        run_shown: name of the run whose screen it is; "" for another screen.
    """
    shown_run = find_run(home, run_shown)
    # What follows a download happens outside this program.
    if shown_run is not None and shown_run.downloaded and not shown_run.put_away:
        return _step_after_download(home, shown_run.run)
    if shown_run is not None and (step := _step_of_run(home, shown_run)) is not None:
        return step
    runs = every_run()
    if not runs:
        steps = first_steps(home, runs, parties(home))
        step_number = next(step_number for step_number, step in enumerate(steps) if not step.is_done)
        repeatable_steps = [step for step in steps[:step_number] if step.again and step_number == 2]
        other = (
            OperatorStep(repeatable_steps[0].again.partition(", ")[2], repeatable_steps[0].address)
            if repeatable_steps
            else None
        )
        return OperatorStep(steps[step_number].words, steps[step_number].address, other)
    for run in _still_open([run for run in runs if not run.put_away]):
        if (step := _step_of_run(home, run)) is not None:
            return step
    return OperatorStep("Plan a run", "/runs/new")


def step_of_form(path: str, made_for: str) -> OperatorStep | None:
    """Returns the step of a screen on which something is filled in; None for another screen.

    Args:
        path: address of the screen, without the prefix under which the console is served.
        made_for: hospital for which the screen has just made a file; "" for none.
    """
    if path == "/runs/new":
        return OperatorStep("Take the example above, or choose what to begin with and press Begin", "")
    if path.startswith("/runs/new/"):
        return OperatorStep("Complete the form above, then press Plan this run; no hospital is asked yet", "")
    if path == "/parties/invite" and made_for:
        return OperatorStep(
            f"Give {made_for} the package, and the fingerprint another way; then sign its request", SIGN_ADDRESS
        )
    if path == "/parties/invite":
        return OperatorStep("Name the hospital above, then press Invite", "")
    if path == SIGN_ADDRESS and not made_for:
        return OperatorStep(
            "Choose the request above, type the fingerprint that the hospital reads to you, and sign", ""
        )
    return None


def step_of_comparison(
    compared: comparison.RunComparison, count_open_points: Callable[[str], int]
) -> OperatorStep | None:
    """Returns the step after a comparison: the result of the best run; None where no figure says which one it is.

    Args:
        count_open_points: counts a finished run's open points, by its name.
    """
    if compared.ahead is None:
        return None
    run = compared.runs[compared.ahead.place].run
    step_words = f"Read what is open on the result of {run}, which is ahead"
    if not compared.ahead.is_certain:
        differing = _differing_grounds(compared.runs, count_open_points)
        step_words = f"Read the result of {run}: no run is shown to be ahead, and {joined(GROUNDS)} are equal"
        if differing:
            step_words = f"Choose by {joined(differing)}, since no run is shown to be ahead: read the result of {run}"
    return OperatorStep(step_words, f"/runs/one/{quote(run)}/result")


def _differing_grounds(
    runs: Sequence[comparison.ComparedRun], count_open_points: Callable[[str], int]
) -> tuple[str, ...]:
    """Returns those of :data:`GROUNDS` in which the runs differ."""
    promises = {(run.epsilon, run.delta, run.unit) for run in runs}
    costs = {run.price_usd for run in runs}
    point_counts = {count_open_points(run.run) for run in runs if run.texts is not None}
    are_several = (len(promises) > 1, len(costs) > 1, len(point_counts) > 1)
    return tuple(ground for ground, differs in zip(GROUNDS, are_several, strict=True) if differs)


def _still_open(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Returns the runs down to the newest finished one, and of older ones those that are under way; newest first."""
    finished_index = next((place for place, run in enumerate(runs) if run.status.state == "finished"), len(runs))
    return [run for place, run in enumerate(runs) if place <= finished_index or run.status.state in UNDER_WAY]


def _step_of_run(home: Path, run: RunSummary) -> OperatorStep | None:
    """The step that a run needs; None for one that ended for good: stopped, put away, unreadable or downloaded."""
    if run.put_away or run.downloaded:
        return None
    status = run.status
    address = f"/runs/one/{quote(run.run)}"
    result_address = f"{address}/result"
    if status.error is not None and status.error.rejected_by:
        if draft_id := _draft_that_revises(home, run.run):
            return OperatorStep(f"Finish the revision of {run.run}, and plan it", f"/runs/new/{draft_id}")
        return OperatorStep(f"Talk to {', '.join(status.error.rejected_by)}, then revise the run {run.run}", address)
    if status.state == "finished":
        return _step_of_result(home, run, result_address)
    if status.waiting is not None:
        waited_names = ", ".join(party.party for party in status.waiting.parties)
        is_for_people = status.waiting.whom == "people"
        if is_for_people:
            words = f"Telephone whom {run.run} waits for"
        else:
            words = f"Wait, or ask whom {run.run} waits for"
        return OperatorStep(f"{words}: {waited_names}" if waited_names else words, address)
    if status.state == "failed" and not may_resume(home, status):
        return OperatorStep(f"Have IT restart the coordinator, then resume the run {run.run}", address)
    words_of_state = {
        "failed": f"Do what stands at the run {run.run} as its remedy, then resume it",
        "paused": f"Resume the run {run.run}, or stop it for good",
        "planned": f"Start the run {run.run}: its hospitals are asked then",
        "waiting": f"Wait: the run {run.run} goes on by itself",
        "running": f"Wait: the run {run.run} goes on by itself",
    }
    words = words_of_state.get(status.state, "")
    button = {"failed": "#resume", "paused": "#resume", "planned": "#start"}.get(status.state, "")
    if words:
        return OperatorStep(words, f"{address}{button}")
    return None


def _draft_that_revises(home: Path, run: str) -> str:
    """Identity of the newest unfinished draft that revises a run; "" if there is none."""
    unfinished = (draft for draft, _ in drafts.unfinished(home))
    return next((draft.identity for draft in unfinished if draft.data["task"].get("revises") == run), "")


def _step_after_download(home: Path, run: str) -> OperatorStep:
    address = f"/runs/one/{quote(run)}/result"
    if reason := bar_to_publication(home, run):
        return OperatorStep(f"{DO_NOT_PUBLISH.format(run=run, reason=reason)}; plan a run of your own", "/runs/new")
    return OperatorStep(PUBLISH.format(run=run), f"{address}#files")


def _step_of_result(home: Path, run: RunSummary, result_address: str) -> OperatorStep:
    """The step that a finished run needs, whose texts nobody has downloaded yet."""
    run_folder = CoordinatorHome(home).run(run.run)
    if not _is_evaluated(run_folder):
        if run.status.evaluation_error is not None:
            return OperatorStep(f"Evaluate {run.run} again: its evaluation failed", f"{result_address}#evaluate")
        return OperatorStep(f"Read the result of {run.run}, and evaluate it on a public test file", result_address)
    if reason := bar_to_publication(home, run.run):
        words = DO_NOT_PUBLISH.format(run=run.run, reason=reason)
        return OperatorStep(f"Read the result of {run.run}. {words}", f"{result_address}#evaluation")
    if comparison.judge(home, run.run).alarms:
        return OperatorStep(f"Read what is bad about {run.run} before you publish it", f"{result_address}#evaluation")
    if _lacks_terms(home, run.run):
        return OperatorStep(f"Read what is open on {run.run} before you publish it", f"{result_address}#publish")
    if _has_marks(run_folder):
        words = f"Download {run.run} without the marked texts, and publish it"
    else:
        words = f"Read texts of {run.run}, mark what nobody shall receive, then download and publish it"
    return OperatorStep(words, f"{result_address}#files")


def _is_evaluated(run_folder: RunFolder) -> bool:
    try:
        return evaluated(run_folder) is not None
    except UnreadableRun:  # The result tells of the damage, which another evaluation replaces.
        return False


def _lacks_terms(home: Path, run: str) -> bool:
    try:
        return lacks_terms(home, run)
    except FileNotFoundError:  # The result tells that the corpus is missing.
        return False


def _has_marks(run_folder: RunFolder) -> bool:
    try:
        return bool(run_folder.annotations().marked)
    except UnreadableRun:  # The result tells of the damage.
        return False


@dataclass(frozen=True)
class BudgetFigures:
    """Labels, epsilon and delta of a task, from which a hospital that is invited sets its budget and labels."""

    name: str
    labels: tuple[str, ...]
    epsilon: float | None
    delta: float | None


def newest_budget_figures(home: Path) -> BudgetFigures | None:
    """Returns the figures of the newest run that can be read, else of the newest draft; None without either."""
    run_names = [run.run for run in list_runs(home) if run.status.state != UNREADABLE]
    task_files = [CoordinatorHome(home).run(name).planned().task for name in run_names[:1]]
    task_files += [draft.data for draft, _ in drafts.unfinished(home)[:1]]
    if not task_files:
        return None
    task_section = task_files[0].get("task", {})
    privacy_section = task_files[0].get("privacy", {})
    amounts = [
        privacy_section.get(key) if isinstance(privacy_section.get(key), int | float) else None
        for key in ("epsilon", "delta")
    ]
    return BudgetFigures(str(task_section.get("name", "")), tuple(map(str, task_section.get("labels", ()))), *amounts)
