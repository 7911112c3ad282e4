"""The operator's first day: steps to a first corpus, and the frame that a letter states to a hospital."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.parties import ENROLLED
from undersong_server.operations import coordinator, drafts
from undersong_server.operations.enrolment import PartyFacts
from undersong_server.operations.overview import list_runs
from undersong_server.operations.runs import RunSummary
from undersong_server.runs.folder import UNREADABLE


@dataclass(frozen=True)
class FirstStep:
    """A step to a coordinator's first corpus: ``words`` lead to the screen ``address``."""

    words: str
    address: str
    is_done: bool


def first_steps(home: Path, runs: Sequence[RunSummary], parties: Sequence[PartyFacts]) -> tuple[FirstStep, ...]:
    """Returns the steps to the first corpus, in their order; () once a run has finished."""
    if any(run.status.state == "finished" for run in runs):
        return ()
    facts = coordinator.show(home)
    enrolled = [party for party in parties if party.party.state == ENROLLED]
    is_asked = any(run.status.since is not None for run in runs)
    newest = next((f"/runs/one/{quote(run.run)}" for run in runs), "/runs")
    return (
        FirstStep("Say who asks: legal name and contact", "/#who-asks", bool(facts.operator and facts.contact)),
        FirstStep("Invite each hospital", "/parties/invite", bool(parties)),
        FirstStep("Sign each hospital's request", "/parties/sign", bool(enrolled) and len(enrolled) == len(parties)),
        FirstStep("Plan a run", "/runs/new", bool(runs)),
        FirstStep("Start it; each hospital's people approve it", newest, is_asked),
        FirstStep("Read its result", newest, False),
    )


@dataclass(frozen=True)
class BudgetFigures:
    """Figures that a hospital sets its budget and its labels by: of the newest planned run, or of a draft."""

    name: str
    labels: tuple[str, ...]
    epsilon: float | None
    delta: float | None


def newest_frame(home: Path) -> BudgetFigures | None:
    """Returns the frame of the newest run that can be read, else of the newest draft; None without either."""
    planned = [run.run for run in list_runs(home) if run.status.state != UNREADABLE]
    tasks = [CoordinatorHome(home).run(name).planned().task for name in planned[:1]]
    tasks += [draft.data for draft, _ in drafts.unfinished(home)[:1]]
    if not tasks:
        return None
    words, privacy = tasks[0].get("task", {}), tasks[0].get("privacy", {})
    amounts = [privacy.get(key) if isinstance(privacy.get(key), int | float) else None for key in ("epsilon", "delta")]
    return BudgetFigures(str(words.get("name", "")), tuple(map(str, words.get("labels", ()))), *amounts)
