"""Overview for the operator: what needs action, lists that stay fast with thousands of runs, and a support bundle.

Live results of a run too (weights, sums, texts), and the generators' usage over several runs.
"""

import io
import math
import os
import platform
import re
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from undersong_common.errors import ConfigurationError, PrivacyRefusal, UndersongError
from undersong_common.files import file_state
from undersong_common.models.model_files import WEIGHTS_MISSING, has_packaged_weights
from undersong_common.pages.store import Offer
from undersong_common.printable import counted, duration, joined, json_text, number, with_iso_times
from undersong_common.privacy import impact
from undersong_common.program.machine import fault_of
from undersong_common.version import SOFTWARE
from undersong_protocol.agreement.words import sum_titles
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.parties import ENROLLED, INVITED
from undersong_server.methods.parts import private_score, support
from undersong_server.operations import coordinator
from undersong_server.operations.enrolment import PartyFacts, UnfetchedFile, unfetched_file
from undersong_server.operations.enrolment import parties as every_party
from undersong_server.operations.runs import UNDER_WAY, RunSummary, evaluation_error, log, may_resume
from undersong_server.pool import Sample
from undersong_server.runs.folder import (
    UNEVALUATED,
    UNREADABLE,
    Annotations,
    RunFailure,
    RunFolder,
    RunStatus,
    UnreadableRun,
)
from undersong_server.runs.planning import PlanFigures, Planned, plan_figures

REJECTED = "rejected"  # a filter beside the states of runs: runs that have failed because hospitals refused them
CERTIFICATE_DAYS = 30.0  # A certificate that ends sooner is noticed.
INVITED_S = 86400.0  # time in which an invited party sends its request
AWAY_S = 120.0  # a party that is away for less may be restarting
NEW_S = 900.0  # time within which an enrolled party should have installed its grant
MOST_SUMMARIES = 50_000  # largest number of summaries in memory, outdated ones of a run included
BUNDLED_LOGS = 50  # newest runs whose log is in a support bundle


def list_runs(home: Path) -> list[RunSummary]:
    """Returns every run of a coordinator, newest first. A run whose status has not changed is not read again."""
    summaries = [_summary(run.path) for run in CoordinatorHome(home).runs()]
    return [run for _, run in sorted(summaries, key=lambda summary: (-summary[0], summary[1].run))]


def find_run(home: Path, name: str) -> RunSummary | None:
    """Returns one run as :func:`list_runs` has it, without a look at the others; None if there is none of this name."""
    try:
        run = CoordinatorHome(home).run(name)
    except ConfigurationError:  # a name that no run can have
        return None
    return _summary(run.path)[1] if run.exists else None


def _summary(path: Path) -> tuple[float, RunSummary]:
    """Time at which a run was planned, and its summary; of an unreadable run, 0 and a summary with its fault."""
    try:
        status_file = os.stat(f"{path}/status.json")
        plan_file = os.stat(f"{path}/plan.json")
        # Unlike st_mtime, st_ctime changes with permissions too, by which a run becomes readable or unreadable.
        versions = (status_file.st_ctime_ns, status_file.st_ino, plan_file.st_ctime_ns, plan_file.st_ino)
        return _read_summary(str(path), *versions, *map(file_state, _own_words(path)))
    except (OSError, UndersongError) as error:
        fault = error if isinstance(error, UndersongError) else _unreadable(path, error)
        failure = RunFailure(fault.problem, fault.remedy, fault.exit_code)
        return 0.0, RunSummary(path.name, (), RunStatus(UNREADABLE, error=failure))


def _own_words(path: Path) -> tuple[str, str]:
    """Paths of the files with the operator's notes on a run and its mark as put away; most runs have neither."""
    return f"{path}/annotations.json", f"{path}/put-away"


def _unreadable(path: Path, error: OSError) -> UndersongError:
    """The error that :class:`RunFolder` raises for such a run, in words for people; else one made of ``error``."""
    try:
        RunFolder(path).planned()
        RunFolder(path).status()
    except UndersongError as unreadable:
        return unreadable
    return fault_of(error, path)


@lru_cache(maxsize=MOST_SUMMARIES)
def _read_summary(path: str, *_versions: object) -> tuple[float, RunSummary]:
    run = RunFolder(Path(path))
    planned_at = os.stat(run.path / "plan.json").st_mtime
    try:
        annotations = run.annotations()
    except UnreadableRun:
        annotations = Annotations()  # The run's own screen tells of the damage, and the run goes on without them.
    return planned_at, RunSummary(
        run.name,
        run.planned().roster,
        run.status(),
        note=annotations.note,
        tags=annotations.tags,
        put_away=run.is_put_away,
        downloaded=annotations.downloaded_at > 0.0,
    )


def listed_runs(
    runs: Sequence[RunSummary], *, find: str = "", state: str = "", tag: str = "", archive: bool = False
) -> list[RunSummary]:
    """Runs whose name, note or tag contains ``find``, in this state and with this tag; "" is any.

    Args:
        state: REJECTED lists every run that hospitals have rejected, those that were put away too.
        archive: lists the runs that were put away instead of the others.
    """
    needle = find.casefold()
    return [
        run
        for run in runs
        if _is_in_list(run, state, archive=archive)
        and (not tag or tag in run.tags)
        and any(needle in words.casefold() for words in (run.run, run.note, *run.tags))
    ]


def _is_in_list(run: RunSummary, state: str, *, archive: bool) -> bool:
    if state == REJECTED:
        return run.status.error is not None and bool(run.status.error.rejected_by)
    return run.put_away == archive and state in ("", run.status.state)


@dataclass(frozen=True)
class Need:
    """Notice for the operator: ``says`` states the problem, ``remedy`` the action.

    ``failed`` is True for a run that can be revised or put away, ``resumes`` for one that could go on as it is.
    """

    grade: Literal["soon", "now"]
    kind: Literal["coordinator", "party", "run"]
    name: str
    says: str
    remedy: str = ""
    failed: bool = False
    resumes: bool = False


def needs(
    home: Path,
    runs: Sequence[RunSummary],
    parties: Sequence[PartyFacts],
    offers: Mapping[str, Offer] = MappingProxyType({}),
) -> tuple[Need, ...]:
    """Returns the notices on coordinator, parties and runs that need the operator's attention, urgent ones first.

    Args:
        offers: the files for hospitals that the console has made, by name.
    """
    unfetched_by_party = {
        party_facts.party.name: file
        for party_facts in parties
        if (file := unfetched_file(party_facts, offers)) is not None
    }
    return tuple(sorted(_needs(home, runs, parties, unfetched_by_party), key=lambda need: need.grade == "soon"))


def _needs(
    home: Path,
    runs: Sequence[RunSummary],
    parties: Sequence[PartyFacts],
    unfetched_by_party: Mapping[str, UnfetchedFile],
) -> Iterator[Need]:
    coordinator_facts = coordinator.show(home)
    now_s = time.time()
    if not coordinator_facts.served:
        remedy = "start its service on its machine: `undersong coordinator serve`"
        yield Need("now", "coordinator", coordinator_facts.name, "is not running", remedy)
    for step in coordinator_facts.held_up:
        if step.of_machine:
            yield Need("now", "coordinator", coordinator_facts.name, step.says, step.remedy)
    if coordinator_facts.certificate_expires_at - now_s < CERTIFICATE_DAYS * 86400:
        says = f"has a certificate that ends in {duration(max(0.0, coordinator_facts.certificate_expires_at - now_s))}"
        yield Need("soon", "coordinator", coordinator_facts.name, says, "the serving process renews it by itself")
    if not has_packaged_weights():
        says = "has no weights of the packaged embedder, without which most runs are refused"
        yield Need("soon", "coordinator", coordinator_facts.name, says, f"on its machine: {WEIGHTS_MISSING[1]}")
    needed_parties = {party for run in runs if run.status.state in UNDER_WAY for party in run.parties}
    waiting_runs = [(run, run.status.waiting) for run in runs if run.status.waiting is not None]
    awaited_parties = {
        awaited_party.party for _, reason in waiting_runs for awaited_party in reason.parties
    }  # A notice on the run names each of these.
    for party_facts in parties:
        name = party_facts.party.name
        if name in unfetched_by_party:
            if not unfetched_by_party[name].is_overdue:
                continue
            waiting_s = max(0.0, now_s - unfetched_by_party[name].since)
            says = f"has waited for {duration(waiting_s)}: {unfetched_by_party[name].words}"
            remedy = f"on its own screen: download it, or make a new {unfetched_by_party[name].kind}"
            yield Need("soon", "party", name, says, remedy)
            continue
        yield from _of_party(
            party_facts,
            now_s,
            served=coordinator_facts.served,
            needed=name in needed_parties,
            awaited=name in awaited_parties,
        )
    yield from _unsigned(parties, unfetched_by_party, now_s)
    facts_by_name = {party_facts.party.name: party_facts for party_facts in parties}
    for run, reason in waiting_runs:
        awaited_facts = [
            facts_by_name[awaited_party.party]
            for awaited_party in reason.parties
            if awaited_party.party in facts_by_name
        ]
        remarks = [
            (party_facts.party.name, party_facts.away_because, party_facts.party.contact)
            for party_facts in awaited_facts
        ]
        remedies = [
            f"{name}: {away_because}" if away_because else f"telephone {name}: {contact}"
            for name, away_because, contact in remarks
            if away_because or contact
        ]
        yield Need("soon", "run", run.run, f"is {reason.sentence}", "; ".join(remedies))
    for run in runs:
        status = run.status
        if status.state == UNREADABLE and status.error is not None:
            yield Need("now", "run", run.run, f"cannot be read: {status.error.problem}", status.error.remedy)
        elif status.error is not None and not run.put_away:
            rejecting_parties = [facts_by_name[name] for name in status.error.rejected_by if name in facts_by_name]
            contacts = {party_facts.party.name: party_facts.party.contact for party_facts in rejecting_parties}
            reasons = status.error.screen_words
            if len(status.error.rejected_by) == 1:  # Its name stands just before: "it" is enough.
                name = status.error.rejected_by[0]
                reasons = re.sub(rf"^{re.escape(name)} (?=says: |gives |has )", "it ", reasons)
                reasons = reasons.removeprefix(f"{name} refuses: ")
            other_words = f" {status.error.others(run.parties)}".rstrip()
            says = f"{'is ' if status.error.rejected_by else ''}{status.state_words}: {reasons}"
            if other_words:
                says = f"{says.rstrip('.')}.{other_words}"
            remedy = status.error.advise(contacts)
            resumes = may_resume(home, status) and status.error.exit_code != PrivacyRefusal.exit_code
            yield Need("now", "run", run.run, says, remedy, failed=True, resumes=resumes)
        elif status.state == "paused":
            yield Need("soon", "run", run.run, "is paused", "resume or stop it")
        elif not run.put_away and (failure := evaluation_error(home, run.run, status)) is not None:
            time_since = duration(max(0.0, now_s - (status.at or now_s)))
            says = f"has finished, and {UNEVALUATED} {time_since} ago: {failure.problem}"
            yield Need("soon", "run", run.run, says, failure.remedy)


def _unsigned(
    parties: Sequence[PartyFacts], unfetched_by_party: Mapping[str, UnfetchedFile], now_s: float
) -> Iterator[Need]:
    """The hospitals that were invited lately and are not signed, as one notice; each older one has a notice of its own.

    Args:
        unfetched_by_party: files that nobody has downloaded, by the hospital that waits for one.
    """
    party_names = [
        facts.party.name
        for facts in parties
        if facts.party.state == INVITED and facts.party.name not in unfetched_by_party
        if now_s - facts.party.invited_at <= INVITED_S
    ]
    if party_names:
        says = f"{'is' if len(party_names) == 1 else 'are'} invited and not signed yet: {joined(party_names)}"
        yield Need(
            "soon", "coordinator", counted(len(party_names), "hospital"), says, "sign each request when it comes"
        )


def _of_party(facts: PartyFacts, now_s: float, *, served: bool, needed: bool, awaited: bool) -> Iterator[Need]:
    party = facts.party
    if party.state == INVITED and now_s - party.invited_at > INVITED_S:
        says = f"was invited {duration(now_s - party.invited_at)} ago and is not enrolled"
        yield Need("soon", "party", party.name, says, "sign its request when it comes, or invite it again")
    if party.state != ENROLLED:
        return
    ends_at = party.certificate_expires_at
    if ends_at is not None and ends_at - now_s < CERTIFICATE_DAYS * 86400:
        remedy = "its program renews it while it runs; else the hospital renews it on its page, under Coordinator"
        if ends_at > now_s:
            says = f"has a certificate that ends in {duration(ends_at - now_s)}"
            yield Need("soon", "party", party.name, says, remedy)
        else:
            yield Need("now", "party", party.name, "has a certificate that has ended", remedy)
    if awaited or (facts.is_left_out and not needed):
        return
    away_s = now_s - (party.last_seen or party.enrolled_at or now_s)
    grade: Literal["soon", "now"] = "soon"
    if needed:
        grade = "now"
    if party.does_not_start and facts.away_because:
        remedy = "the hospital's page tells the whole reason and what to do, under Now"
        yield Need(grade, "party", party.name, f"is away: {facts.away_because}", remedy)
    elif served and not facts.connected and party.last_seen and away_s > AWAY_S:
        says = f"is away for {duration(away_s)}"
        yield Need(grade, "party", party.name, says, "ask the hospital to start its program")
    elif served and not facts.connected and not party.last_seen and away_s > NEW_S:
        remedy = "ask the hospital to start its program; its program has to receive the reply"
        yield Need(grade, "party", party.name, "has never connected", remedy)
    elif party.paused:
        yield Need("soon", "party", party.name, "is paused by its people", "ask the hospital")


@dataclass(frozen=True)
class RecentCosts:
    """Cost of the newest runs: money for their generators, and the privacy that they have spent.

    Attributes:
        runs: number of runs counted.
        charged: number of these that have asked for a private sum; the others have spent no epsilon.
        epsilon, delta: sums over these: an upper bound for a patient in all of them; inf if one is not private.
    """

    runs: int
    price_usd: float
    charged: int
    epsilon: float
    delta: float

    @property
    def in_words(self) -> str:
        """What the total means for a patient; "" if no epsilon was spent, or a run is not private."""
        if not self.charged or not math.isfinite(self.epsilon):
            return ""
        return impact.total(self.epsilon, self.delta, composed=False)


def spending(home: Path, runs: Sequence[RunSummary]) -> RecentCosts:
    """Adds up the cost of the started runs, at most the 200 newest."""
    coordinator_home = CoordinatorHome(home)
    started_runs = [run for run in runs if run.status.since is not None][:200]
    charged_runs = [run for run in started_runs if run.status.charged or run.status.state == "finished"]
    privacy_sections = [
        stored_plan.task["privacy"]
        for run in charged_runs
        if (stored_plan := _readable_plan(coordinator_home.run(run.run)))
    ]
    usages = [usage for run in started_runs for usage in _readable_usage(coordinator_home.run(run.run)).values()]
    return RecentCosts(
        len(started_runs),
        math.fsum(float(usage["price_usd"]) for usage in usages),
        len(charged_runs),
        math.fsum(float(section["epsilon"]) for section in privacy_sections),
        math.fsum(float(section["delta"]) for section in privacy_sections),
    )


@dataclass(frozen=True)
class EpsilonLeft:
    """The rest of a hospital's budget: its own statement, less what runs have promised since.

    Attributes:
        stated: as the hospital's program stated it when it connected; ``stated_at`` is None where the time is unknown.
        later_runs, promised: number of the runs since then that have asked it for a sum, and the sum of their epsilons.
    """

    stated: float
    stated_at: float | None
    later_runs: int
    promised: float

    @property
    def now(self) -> float:
        return max(0.0, self.stated - self.promised)


def epsilon_left(home: Path, facts: PartyFacts, runs: Sequence[RunSummary]) -> EpsilonLeft | None:
    """Returns what remains of a hospital's budget now; None for a hospital that does not state it."""
    stated, stated_at = facts.party.epsilon_left, facts.stated_at
    if stated is None:
        return None
    since_s = math.inf if stated_at is None else stated_at
    charged_runs = [run for run in runs if run.status.charged and facts.party.name in run.parties]
    later_runs = [run for run in charged_runs if run.status.at is not None and run.status.at > since_s]
    plans = [plan for run in later_runs if (plan := _readable_plan(CoordinatorHome(home).run(run.run)))]
    promised = math.fsum(float(plan.task["privacy"]["epsilon"]) for plan in plans)
    return EpsilonLeft(stated, stated_at, len(later_runs), promised)


def _readable_plan(run_folder: RunFolder) -> Planned | None:
    """The plan of a run; None where it cannot be read: the run's own notice says so."""
    try:
        return run_folder.planned()
    except UnreadableRun:
        return None


def _readable_usage(run_folder: RunFolder) -> Mapping[str, Mapping[str, Any]]:
    """Usage of each generator of a run, by name; {} where it cannot be read."""
    try:
        return run_folder.usage()
    except UnreadableRun:
        return {}


def embedders(parties: Sequence[PartyFacts]) -> Mapping[str, int]:
    """Number of enrolled parties per embedding model's hash (hex); more than one entry means that some differ."""
    return Counter(facts.party.embedder for facts in parties if facts.party.state == ENROLLED and facts.party.embedder)


def fitting(parties: Sequence[PartyFacts], *, find: str = "", state: str = "") -> list[PartyFacts]:
    """Parties whose name contains ``find``, in the given state; "" is any, "connected" and "away" are states too."""
    return [
        party_facts
        for party_facts in parties
        if find in party_facts.party.name
        and (
            not state
            or party_facts.party.state == state
            or (party_facts.party.state == ENROLLED and state == ("connected" if party_facts.connected else "away"))
        )
    ]


def support_bundle(home: Path) -> bytes:
    """Returns a ZIP file for support: parties by name and fingerprint, states and logs.

    Texts, journals, task files, key files, telephone contacts, notes and tags are left out.
    """
    runs = list_runs(home)
    contents: dict[str, object] = {
        "program.json": {"software": SOFTWARE, "python": platform.python_version(), "system": platform.platform()},
        "coordinator.json": {key: content for key, content in asdict(coordinator.show(home)).items() if key != "home"},
        "parties.json": [
            {key: field_value for key, field_value in party.to_json().items() if key != "contact"}
            for party in every_party(home)
        ],
        "runs.json": [
            {key: field_value for key, field_value in run.to_json().items() if key != "tags"} for run in runs
        ],
    }
    newest_runs = sorted(runs, key=lambda run: -(run.status.at or 0.0))[:BUNDLED_LOGS]
    bundle_file = io.BytesIO()
    with zipfile.ZipFile(bundle_file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, json_text(with_iso_times(content)))
        for log_number, run in enumerate(run for run in newest_runs if run.parties):
            archive.writestr(f"logs/{log_number:03}.txt", "\n".join([run.run, *_readable_log(home, run.run)]) + "\n")
    return bundle_file.getvalue()


def _readable_log(home: Path, run: str) -> Sequence[str]:
    """The last lines of a run's log, or in their place what is wrong with it."""
    try:
        return log(home, run)
    except UnreadableRun as fault:
        return [fault.problem]


MOST_TEXTS = 60


@dataclass(frozen=True)
class OpenedSum:
    """A private sum that was opened.

    Attributes:
        sigma: standard deviation of its noise, natural units.
        epsilon_after: epsilon spent in all after it; None if the run is not private.
        vote_fractions, noise: each generator's fraction of the votes, and the standard deviation of its noise; empty if
            the sum counts no votes for candidates.
    """

    name: str
    at: float
    survivors: tuple[str, ...]
    sigma: float
    epsilon_after: float | None
    vote_fractions: tuple[float, ...] = ()
    noise: tuple[float, ...] = ()


@dataclass(frozen=True)
class LiveRun:
    """Results that a run has recorded so far.

    Attributes:
        weights: rows by round, one weight per generator.
        weights_noise: maps each round to the standard deviation of each weight's noise, if the method reports it.
        texts: the latest texts, which generators wrote: untrusted; newest first; ``written`` counts all.
        usage: per generator, the counts of :class:`undersong_server.generators.author.AuthorUsage` and of
            :class:`undersong_server.generators.author.Speed`; ``counted`` holds the generator's own counts.
        ordered: number of texts that the plan orders.
        score: the private score, once it is measured.
        unjudged: generators that the records neither clear nor refuse, and of which nothing judged the texts one by
            one.
        unpublished: number of texts in no file by reason; empty where the method recorded none.
        counts_words: says how many records are nearest to each generator's texts; "" where they were not asked.
    """

    generators: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    sums: tuple[OpenedSum, ...]
    texts: tuple[Sample, ...]
    written: int
    usage: Mapping[str, Mapping[str, Any]]
    weights_noise: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    ordered: int = 0
    score: private_score.PrivateScore | None = None
    unjudged: tuple[str, ...] = ()
    unpublished: Mapping[str, int] = field(default_factory=dict)
    counts_words: str = ""

    @property
    def kept(self) -> int:
        """Number of texts that were kept when they were written."""
        return sum(int(counts.get("kept", 0)) for counts in self.usage.values())

    @property
    def last_weight_errors(self) -> tuple[float, ...]:
        """Standard error that the noise gives each of the last weights; empty where the method tells none."""
        return self.weights_noise.get(len(self.weights) - 1, ())

    def generator_left_s(self, name: str) -> float | None:
        """Seconds of writing left for a generator at its own rate and last weight; None before its first answer."""
        rate = answer_rate(self.usage.get(name, {}))
        if rate is None or name not in self.generators:
            return None
        if self.weights:
            share = self.weights[-1][self.generators.index(name)]
        else:
            share = 1.0 / len(self.generators)
        return max(0, self.ordered - self.written) * share / rate

    @property
    def left_s(self) -> float | None:
        """Seconds of writing left of the slowest generator, since all write at once; None before a first answer."""
        seconds = [self.generator_left_s(name) for name in self.generators]
        return max((left_s for left_s in seconds if left_s is not None), default=None)


def answer_rate(usage: Mapping[str, Any]) -> float | None:
    """Answers per second of a generator while calls were under way; None before the first answer."""
    return usage["answered"] / usage["busy_s"] if usage.get("busy_s") else None


def mean_latency_s(usage: Mapping[str, Any]) -> float | None:
    """Mean seconds from a call's first attempt to its answer; None if the generator does not report it."""
    return usage["latency_s"] / usage["timed"] if usage.get("timed") else None


@dataclass(frozen=True)
class RunPlanFacts:
    """A run's plan: its figures, its private sums by name, and epsilon after each (empty if the run is not private).

    ``titles``: what each private sum asks, by its name.
    """

    planned: Planned
    figures: PlanFigures
    sums: tuple[str, ...]
    epsilon_after: tuple[float, ...]
    titles: Mapping[str, str] = field(default_factory=dict)


def run_plan(home: Path, run: str) -> RunPlanFacts:
    """Returns the plan of a run. Raises ConfigurationError for an unknown run.

    It is computed once until its file changes, since its noise takes a second to compute.
    """
    return _computed_plan(home, run, file_state(CoordinatorHome(home).run(run).path / "plan.json"))


@lru_cache(maxsize=200)
def _computed_plan(home: Path, run: str, _version: object) -> RunPlanFacts:
    stored_plan = CoordinatorHome(home).run(run).planned()
    planned_task = stored_plan.load()
    plan = planned_task.plan
    is_private = math.isfinite(plan.privacy.epsilon)
    if is_private:
        epsilons = tuple(plan.epsilon_after(sum_index + 1) for sum_index in range(len(plan.sums)))
    else:
        epsilons = ()
    sum_names = tuple(planned_sum.name for planned_sum in plan.sums)
    return RunPlanFacts(stored_plan, plan_figures(planned_task), sum_names, epsilons, sum_titles(plan.sums))


def live(home: Path, run: str, plan: RunPlanFacts) -> LiveRun:
    """Returns the results that a run has recorded so far. Raises ConfigurationError for an unknown run."""
    weights: dict[int, tuple[float, ...]] = {}
    noise: dict[int, tuple[float, ...]] = {}
    sums: dict[str, OpenedSum] = {}
    texts: list[Sample] = []
    usage: Mapping[str, Mapping[str, Any]] = {}
    unpublished: Mapping[str, int] = {}
    score, support_votes, is_judged = None, None, False
    for event in CoordinatorHome(home).run(run).live():
        if event["kind"] == "record" and event["name"] == "weights":
            weights[int(event["round"])] = tuple(event["value"])
        elif event["kind"] == "record" and event["name"] == "weights noise":
            noise[int(event["round"])] = tuple(event["value"])
        elif event["kind"] == "record" and event["name"] == private_score.RECORD:
            score = private_score.PrivateScore.from_json(event["value"])
        elif event["kind"] == "record" and event["name"] == "support":
            support_votes = support.Support.from_json(event["value"])
        elif event["kind"] == "record" and event["name"] == support.UNPUBLISHED:
            unpublished = event["value"]
        elif event["kind"] == "record" and event["name"] == support.RECORD:
            is_judged = True  # Texts are set aside: the votes' word filter has judged the others, too.
        elif event["kind"] == "sum":
            sum_number = len(sums) if event["name"] not in sums else None
            sums[event["name"]] = OpenedSum(
                event["name"],
                event["at"],
                tuple(event["survivors"]),
                event["sigma"],
                plan.epsilon_after[sum_number]
                if sum_number is not None and sum_number < len(plan.epsilon_after)
                else None,
                tuple(event.get("shares", ())),
                tuple(event.get("noise", ())),
            )
        elif event["kind"] == "texts":
            texts += [Sample(text, label, generator, event["round"], "") for text, label, generator in event["texts"]]
        elif event["kind"] == "usage":
            usage = event["usage"]
    generators, unjudged = plan.figures.generators, []
    if support_votes is not None and not is_judged:
        unjudged = support.unjudged_generators(support_votes, generators, generators)
    return LiveRun(
        generators=generators,
        weights=tuple(weights[round_] for round_ in sorted(weights)),
        sums=tuple(sums.values()),
        texts=tuple(texts[: -MOST_TEXTS - 1 : -1]),
        written=len(texts),
        usage=usage,
        weights_noise=noise,
        ordered=plan.figures.generator_calls,
        score=score,
        unjudged=tuple(unjudged),
        unpublished=unpublished,
        counts_words="" if support_votes is None else support_votes.counts_words(range(len(generators)), generators),
    )


@dataclass(frozen=True)
class GeneratorUsage:
    """Usage of one generator over several runs.

    Attributes:
        run: the newest run, whose task a trial takes.
        runs: number of runs in which it has written.
        counts: sums of the counts of :class:`undersong_server.generators.author.AuthorUsage`; ``faults`` by kind.
        counted: the generator's own counts besides its calls: waits for a limit, retries, answers from a cache, ...
            Those of its corpus are the newest run's, since every run reads the whole corpus.
    """

    name: str
    kind: str
    run: str
    runs: int
    counts: Mapping[str, float]
    faults: Mapping[str, float]
    counted: Mapping[str, float]


def generator_usage(home: Path, runs: Sequence[str]) -> tuple[GeneratorUsage, ...]:
    """Returns the usage of every generator of these runs, by name.

    Args:
        runs: newest first.
    """
    coordinator_home = CoordinatorHome(home)
    plans = {run: stored_plan for run in runs if (stored_plan := _readable_plan(coordinator_home.run(run)))}
    usages = [_readable_usage(coordinator_home.run(run)) for run in plans]
    newest_run_by_name = {
        str(table.get("name", "")): (str(table.get("kind", "")), run)
        for run, stored_plan in reversed(plans.items())
        for table in stored_plan.task.get("generators", ())
    }
    return tuple(
        _usage_of(name, kind, run, [usage[name] for usage in usages if name in usage])
        for name, (kind, run) in sorted(newest_run_by_name.items())
    )


# Counts of a generator's corpus, which no call changes.
CORPUS_COUNTS = frozenset({"texts", "corpus rows", "duplicate rows", "rows of other labels", "labels without corpus"})


def _usage_of(name: str, kind: str, run: str, usages: Sequence[Mapping[str, Any]]) -> GeneratorUsage:
    """Returns a generator's usage over several runs; ``usages`` has that of each run, the newest first."""
    counts_by_run = [
        {key.replace("_", " "): n for key, n in usage.get("counted", {}).items() if key != "calls"} for usage in usages
    ]
    faults_by_run = [usage.get("faults", {}) for usage in usages]
    corpus_counts = {
        key: count
        for counts_of_run in reversed(counts_by_run)
        for key, count in counts_of_run.items()
        if key in CORPUS_COUNTS
    }
    counted = {**_sum(counts_by_run), **corpus_counts}
    return GeneratorUsage(
        name, kind, run, len(usages), counts=_sum(usages), faults=_sum(faults_by_run), counted=counted
    )


def _sum(parts: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Adds the numbers of ``parts`` by key; values of other types are left out."""
    totals: dict[str, float] = defaultdict(int)
    for part in parts:
        for key, value in part.items():
            if isinstance(value, int | float):
                totals[key] += value
    return dict(totals)


@dataclass(frozen=True)
class UsageColumn:
    """A column of the table of generators: its title, and the lines that a generator has in it."""

    title: str
    lines: Callable[[GeneratorUsage], Sequence[str]]


def usage_columns(usages: Sequence[GeneratorUsage]) -> tuple[UsageColumn, ...]:
    """Returns the columns that are not empty for all generators, in their order."""
    columns = (
        UsageColumn("Runs", lambda usage: _count_lines(usage.runs)),
        *(UsageColumn(title, partial(_counted_lines, key=key)) for title, key in COUNT_TITLES.items()),
        UsageColumn("Unusable answers", lambda usage: [f"{fault} {count}" for fault, count in usage.faults.items()]),
        UsageColumn("Tokens", lambda usage: _count_lines(_tokens(usage))),
        UsageColumn("US$", _price_lines),
        UsageColumn("Answers/s", _speed_lines),
    )
    return tuple(column for column in columns if any(column.lines(usage) for usage in usages))


COUNT_TITLES = {  # key of a count by the title of its column
    "Calls": "calls",
    "Usable texts": "kept",
    "Repeated calls": "retried",
    "Orders without a text": "dropped",
    "Cut": "cut",
}


def _count_lines(count: float) -> list[str]:
    return [number(count)] if count else []


def _counted_lines(usage: GeneratorUsage, key: str) -> list[str]:
    return _count_lines(usage.counts.get(key, 0))


def _tokens(usage: GeneratorUsage) -> float:
    return usage.counts.get("prompt_tokens", 0) + usage.counts.get("completion_tokens", 0)


def _price_lines(usage: GeneratorUsage) -> list[str]:
    price_usd = usage.counts.get("price_usd", 0)
    return [f"{price_usd:.2f}"] if price_usd else []


def _speed_lines(usage: GeneratorUsage) -> list[str]:
    """Answers a second, seconds a call, and the generator's own counts."""
    rate, latency_s = answer_rate(usage.counts), mean_latency_s(usage.counts)
    speeds = [] if rate is None else [number(rate)]
    latencies = [] if latency_s is None else [f"{number(latency_s)} s a call"]
    return [*speeds, *latencies, *(f"{name} {number(count)}" for name, count in usage.counted.items())]
