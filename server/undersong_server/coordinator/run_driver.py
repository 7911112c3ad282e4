"""Drivers of runs: each takes one run from its folder to its outputs, and tells the parties how it ended."""

import contextlib
import logging
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from undersong_common.errors import (
    ConfigurationError,
    InternalError,
    MachineFault,
    TransportError,
    UndersongError,
)
from undersong_common.models import embedders
from undersong_common.models.embedding import CachedEmbedder, Embed, PublicFileCache
from undersong_common.printable import counted, duration
from undersong_common.program import extras
from undersong_common.program.logs import without_numbers
from undersong_common.program.machine import HeldSteps, fault_of, internal_error
from undersong_common.text.table import Table
from undersong_protocol.agreement.manifest import PLAN_WORDS, Manifest
from undersong_protocol.agreement.words import sum_titles
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server.cluster import Cluster, spread
from undersong_server.coordinator.grpc_transport import GrpcTransport, Presence, Waiting
from undersong_server.database.interface import Away, Superseded
from undersong_server.database.journal import Journal
from undersong_server.federation.agreement import Rejected
from undersong_server.federation.exchange import Transport, decode
from undersong_server.progress import Progress
from undersong_server.release.files import Signer, publish, report_data
from undersong_server.release.rounds import figures_by_round
from undersong_server.report import usefulness
from undersong_server.report.data import Figures, ReportData
from undersong_server.report.evaluations import (
    keep_evaluation,
    keep_help,
    keep_mismatches,
    make_evaluation,
    name_test,
)
from undersong_server.runs.execution import Outcome, PublicEmbedder, RunMonitor, RunParties, StartedRun, execute
from undersong_server.runs.folder import (
    EMBEDDING,
    FAILED,
    FINAL,
    MEASURING,
    PREPARING,
    REJECTED,
    RESTART_REMEDY,
    STATE_AFTER,
    SUM_PHASE,
    UNEVALUATED,
    Awaited,
    AwaitedParty,
    RunFailure,
    RunFolder,
    RunStatus,
    State,
    UnreadableRun,
)
from undersong_server.runs.planning import Planned, RunPlan, build_author, require_packages
from undersong_server.runs.task import Task

log = logging.getLogger(__name__)

ROSTER_POLL_S = 0.5  # pause between two looks for connected parties, or for the end of a pause
STATUS_S = 0.5  # shortest time between two writes of the status file
ENDINGS_POLL_S = 0.5  # pause between two looks for parties to tell of an ending
ASK_AGAIN_S = 2.0  # time between two requests to a party that cannot answer now
TELL_TIMEOUT_S = 5.0  # longest wait for a party's answer on the end of a run; it is told again later


class Interrupted(BaseException):
    """The operator requested another action. It is no Exception, so that no handler of errors catches it."""


class RunDriver(Progress, ABC):
    """One run that is under way; its progress goes into the run's status.

    A subclass sets the transport that carries the requests of this run to its parties.

    Args:
        public_cache: file with embeddings of public texts.
        environment: variables in which generators find their keys.
        number: number of the requested action that this driver carries out.
        signer: signs the published files in the coordinator's name.
        expelled: returns the names of revoked parties; called again and again.
        cluster: its workers embed public texts where they are many, and run the models in local folders.
        epoch: of the serving process; nothing more of the run is stored once another process has taken over.
        held: collects the steps that fail because the machine lacks something, and are tried again.
    """

    carrier: Transport

    def __init__(
        self,
        run_folder: RunFolder,
        *,
        public_cache: Path,
        environment: Mapping[str, str],
        number: int,
        signer: Signer,
        expelled: Callable[[], Sequence[str]] = tuple,
        cluster: Cluster | None = None,
        epoch: int | None = None,
        held: HeldSteps | None = None,
    ) -> None:
        self.folder = run_folder
        self._held = held or HeldSteps()
        self._epoch = epoch
        self.number = number
        self._public_cache = public_cache
        self._environment = environment
        self._signer = signer
        self._expelled = expelled
        self._cluster = cluster
        self._journal: Journal | None = None
        self._interrupted: State | None = None
        self._embedding_phase = EMBEDDING
        is_charged = run_folder.status().charged
        self._status = RunStatus(state="waiting", number=number, since=time.time(), phase=PREPARING, charged=is_charged)
        self._written_at_s = 0.0
        self._last_message = ""
        self._needed_count = 0
        self._reply_bytes = 0
        self._sum_titles: Mapping[str, str] = {}  # what each planned sum asks, by its name

    def await_roster(self, planned: Planned, journal: Journal) -> None:
        """Blocks until every party of the roster is connected; if the manifest is signed, until its quorum is."""
        started_at_s = time.time()
        self._journal = journal
        party_count = len(planned.roster)
        required_count = self._needed_count if self._signed else party_count
        while True:
            self.check()
            missing_parties = self.missing(planned)
            expelled_names = sorted(set(planned.roster) & set(self._expelled()))
            if party_count - len(expelled_names) < required_count:
                raise ConfigurationError(
                    f"{', '.join(expelled_names)}: revoked, and the run needs {required_count} of its"
                    f" {party_count} hospitals",
                    "plan a new run without them",
                    code="too-few-parties",
                )
            if party_count - len(missing_parties) >= required_count:
                self._status = replace(self._status, waiting=None)
                return
            waiting_words = (
                f"waiting for {_describe_missing(missing_parties)} to connect; the run goes on as soon as"
                f" {required_count} of {counted(party_count, 'hospital is', 'hospitals are')} there"
                f" ({party_count - len(missing_parties)} now)"
            )
            self._show(
                state="waiting", waiting=Awaited(missing_parties, started_at_s, None, required_count, waiting_words)
            )
            time.sleep(ROSTER_POLL_S)

    @property
    def _signed(self) -> bool:
        """True once everybody has signed the manifest; before that a run needs every party."""
        return self._journal is not None and self._journal.get("manifest/signatures") is not None

    @abstractmethod
    def missing(self, planned: Planned) -> tuple[AwaitedParty, ...]:
        """The parties of the roster that are not connected."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Waits ``seconds`` between two requests to a party that has not decided, or cannot answer now."""

    def interrupt(self, next_state: State) -> None:
        """Ends the run at its next step; its journal keeps everything. ``next_state`` is the state it is left in."""
        self._interrupted = next_state

    def run(self) -> None:
        """Drives the run to its end, which the status then states, or until another process has taken over."""
        step = f"the work of run {self.folder.name}"
        try:
            while not self._is_over(step):
                self._await_end_of_pause(step)
        except Superseded as error:
            log.error("run %s: %s", self.folder.name, error.problem)
        except UndersongError as error:  # Its status is unchanged, so that the next serving process drives it again.
            log.error("run %s is left for now: %s", self.folder.name, error.problem)
        finally:
            self._held.release(step)

    def _is_over(self, step: str) -> bool:
        """Drives the run; False if the machine or the run's own files hold it up, and it is to be tried again."""
        try:
            self._run()
        except (MachineFault, UnreadableRun) as fault:
            held_step = self._held.hold(step, fault)
            with contextlib.suppress(UndersongError):
                retry_words = f"{held_step.problem}; {held_step.remedy}; tried again by itself"
                self._show(durable=True, state="waiting", waiting=None, phase="", done=0, total=0, message=retry_words)
            return self._interrupted == "running"  # The process ends; the run goes on when it is started again.
        return True

    def _await_end_of_pause(self, step: str) -> None:
        while self._held.pause_s(step) > 0.0 and self._interrupted is None:
            time.sleep(min(ROSTER_POLL_S, self._held.pause_s(step)))

    def _run(self) -> None:
        try:
            with extras.named():
                summary = self._conduct()
            self._end("finished", message=summary)
        except Interrupted:
            end_state = self._interrupted or "paused"
            if end_state == "running":  # The coordinator stops; the run goes on when it is started again.
                message = "the coordinator was stopped; the run goes on when it is started again"
                self._end("waiting", message=message)
            else:
                self._end(end_state)
        except (Superseded, Away, MachineFault, UnreadableRun):
            raise
        except Rejected as error:
            failure = RunFailure(
                error.problem,
                error.remedy,
                error.exit_code,
                rejected_by=error.parties,
                approved_by=error.approved,
            )
            self._end("failed", failure)
        except UndersongError as error:
            self._end("failed", RunFailure(error.problem, error.remedy, error.exit_code))
        except (OSError, sqlite3.Error) as error:
            run_fault = fault_of(error, root=self.folder.path.parent.parent / "coordinator.json")
            if isinstance(run_fault, MachineFault):
                raise run_fault from None
            self._end("failed", RunFailure(run_fault.problem, run_fault.remedy, run_fault.exit_code))
        except Exception as error:  # noqa: BLE001 - its words may hold anything, so only its kind and place are kept
            self._end("failed", RunFailure(internal_error(error).problem, RESTART_REMEDY, InternalError.exit_code))

    def _end(self, state: State, error: RunFailure | None = None, **changes: Any) -> None:
        if error is not None:
            error = replace(error, problem=self._with_questions(error.problem))
            end_words = REJECTED if error.rejected_by else FAILED
            log.error("run %s %s: %s", self.folder.name, end_words, error.problem)
            self.folder.say(f"{end_words}: {error.problem}")
        else:
            log.info("run %s is %s", self.folder.name, state)
            self.folder.say(state)
        self._show(durable=True, state=state, phase="", done=0, total=0, waiting=None, error=error, **changes)

    def _conduct(self) -> str:
        """Carries the run out and publishes it; returns the summary of what was published."""
        stored_plan = self._planned = self.folder.planned()
        self.say("prepares the run; the hospitals are asked once it is ready, which may take minutes")
        run_plan = stored_plan.load()
        self._sum_titles = sum_titles(run_plan.plan.sums)
        test = self._read_test(run_plan.task)
        # Its name holds its hash: when the run ends, hours later, another file may lie there.
        test_name = _name_test(run_plan.task, test)
        require_packages(run_plan)
        quorum = run_plan.plan.quorum
        self._needed_count = quorum.parties - quorum.tolerated_dropouts
        self._reply_bytes = run_plan.plan.largest_reply_bytes
        with closing(self.folder.journal(self._epoch)) as journal:
            embedder_section = run_plan.task.embedder
            embedder = embedders.check(embedder_section.model, embedder_section.max_windows)
            embed = self._with_progress(
                spread(embedder, embedder_section.model, PublicFileCache(self._public_cache), self._cluster)
            )
            parties = RunParties(
                self.carrier, list(stored_plan.roster), self._signer.identities, stored_plan.patience_s, self.sleep
            )
            while True:
                self.await_roster(stored_plan, journal)
                self._status = replace(self._status, state="running", phase="")
                self.folder.begin_live()
                try:
                    outcome = self._execute(run_plan, journal, parties, PublicEmbedder(embed, embedder.fingerprint))
                    break
                except TransportError as error:
                    self.say(f"{error.problem}; {error.remedy}; asking again")
                    self.sleep(ASK_AGAIN_S)
            self.folder.note_heard(RunStatus("finished", self.number), outcome.receipts)
            # The operator may have requested another action that the serving process has not seen yet.
            self._interrupted = STATE_AFTER.get(self.folder.requested().action or "", self._interrupted)
            self.check()
            self._embedding_phase = MEASURING  # Every sum is opened.
            report = report_data(
                run_plan,
                outcome,
                embedder.lengths,
                created=time.strftime("%Y-%m-%d %H:%M"),
                insecure_noise=stored_plan.insecure_noise_seed is not None,
                figures=self._evaluate(run_plan, outcome, test, embed, journal),
                test_set=_describe_test(run_plan.task, test),
                earlier=self._describe_earlier(run_plan.task.task.revises),
            )
            rounds = figures_by_round(run_plan, outcome, embed, test.texts if test else (), seed=stored_plan.seed)
            publish(self.folder.output, outcome, report, signer=self._signer, rounds=rounds)
            self._keep_evaluation(test_name, report)
            keep_help(self.folder, report)
            keep_mismatches(self.folder, report)
            self.folder.share_output()
        return report.summary if self._status.evaluation_error is None else f"{report.summary}, not evaluated"

    def _read_test(self, task: Task) -> Table | None:
        """Reads the task's public test file; None where it names none.

        A file that cannot be used ends the run before any party is asked. Of a run that has asked them, which goes on
        after a restart, it costs the evaluation alone: what they were charged bought the texts.
        """
        try:
            return usefulness.read_test_file(task)
        except ConfigurationError as error:
            if not self._status.charged:
                raise
            self._note_unevaluated(error.problem, error.remedy, error.exit_code)
            return None

    def _evaluate(
        self, run_plan: RunPlan, outcome: Outcome, test: Table | None, embed: Embed, journal: Journal
    ) -> Figures:
        """Figures of the corpus beside the test file; none where they cannot be made, which the status then states."""
        try:
            return self._figures(run_plan, outcome, test, embed, journal)
        except (Superseded, Away, MachineFault, UnreadableRun, OSError, sqlite3.Error):
            raise
        except UndersongError as error:
            self._note_unevaluated(error.problem, error.remedy, error.exit_code)
        except Exception as error:  # noqa: BLE001 - its words may hold anything, so only its kind and place are kept
            self._note_unevaluated(internal_error(error).problem, "", InternalError.exit_code)
        return (), ()

    def _note_unevaluated(self, problem: str, remedy: str, exit_code: int) -> None:
        """States in status and log why the texts are published without an evaluation, and what to do about it."""
        evaluate_words = "evaluate the run on its Result"
        failure = RunFailure(problem, f"{remedy}; then {evaluate_words}" if remedy else evaluate_words, exit_code)
        log.error("run %s: %s: %s", self.folder.name, UNEVALUATED, failure.problem)
        self.folder.say(f"{UNEVALUATED}: {failure.problem}; {failure.remedy}")
        self._show(durable=True, evaluation_error=failure)

    def _execute(self, run_plan: RunPlan, journal: Journal, parties: RunParties, embedder: PublicEmbedder) -> Outcome:
        """Executes the plan with an author of its own; the journal answers what was asked before."""
        assert self._planned is not None
        stored_plan = self._planned
        author = build_author(
            run_plan.task,
            embedder.embed,
            self._environment,
            journal,
            self,
            seed=stored_plan.seed,
            cluster=self._cluster,
        )
        started_run = StartedRun(stored_plan.name, journal, stored_plan.seed)
        return execute(run_plan, started_run, parties, author, embedder, RunMonitor(self, self._observe))

    def _describe_earlier(self, revised_run: str) -> str:
        """Says whether the plan that this run replaces has asked the records anything; "" if it replaces none."""
        if not revised_run:
            return ""
        try:
            was_charged = RunFolder(self.folder.path.parent / revised_run).status().charged
        except UndersongError:  # The folder was removed, or is damaged.
            return f"It replaces the run {revised_run!r}, of which nothing is left here."
        if was_charged:
            return (
                f"It replaces the run {revised_run!r}, in which the records were asked: what was opened there adds to"
                " what is promised here."
            )
        return f"It replaces the run {revised_run!r}, in which nothing was asked of the records: that adds nothing."

    def _keep_evaluation(self, test_name: str, report: ReportData) -> None:
        """Keeps the card's figures beside the test file for Result and Compare; nothing without a test file."""
        if not test_name or not report.measures:
            return
        panel = report.own_accuracy
        by_texts = None if panel is None else panel.by_texts
        keep_evaluation(self.folder, make_evaluation(test_name, report.measures, by_texts, len(report.samples)))

    def _figures(
        self, run_plan: RunPlan, outcome: Outcome, test: Table | None, embed: Embed, journal: Journal
    ) -> Figures:
        """Figures of the corpus beside the task's public test file, for the card that is signed; none without one."""
        if test is None:
            return (), ()
        self._show(phase=MEASURING, done=0, total=0)
        assert self._planned is not None
        seed = self._planned.seed
        corpora = {usefulness.OURS: usefulness.table_of(outcome.samples)}
        if usefulness.writes_baseline(run_plan, test):
            make_author = partial(build_author, run_plan.task, embed, self._environment, journal, self, seed=seed)
            corpora |= usefulness.write_baselines(run_plan, outcome.samples, make_author)
        return usefulness.figures(run_plan.task, corpora, test, embed=embed, seed=seed)

    def _with_progress(self, embedder: CachedEmbedder) -> Embed:
        """An embedder of public texts whose progress the status shows."""
        return lambda texts: embedder.encode(texts, partial(self.update, self._embedding_phase))

    def _observe(self, kind: str, facts: Mapping[str, Any]) -> None:
        if kind == "asks":
            self._show(durable=True, charged=True)
        else:
            self.folder.tell(kind, facts)

    def check(self) -> None:
        """Raises Interrupted if the operator has requested another action for the run."""
        if self._interrupted is not None:
            raise Interrupted

    def update(self, phase: str, done: int, total: int) -> None:
        self.check()
        phase = self._with_questions(phase)
        waiting = None if self.awaits_people else self._status.waiting
        self._show(phase=phase, done=done, total=total, waiting=waiting)

    @property
    def awaits_people(self) -> bool:
        """True while the run waits for people to approve it, and for no machine."""
        return self._status.waiting is not None and self._status.waiting.whom == "people"

    def await_people(self, parties: Sequence[str], approved: Sequence[str], words: str) -> None:
        self.check()
        party_count = len(parties) + len(approved)
        have_words = f"{len(approved)} of {party_count} hospitals have{': ' if approved else ''}{', '.join(approved)}"
        previous_wait = self._status.waiting
        awaited = Awaited(
            parties=self.described(parties),
            since=previous_wait.since if previous_wait is not None and previous_wait.whom == "people" else time.time(),
            goes_on_at=None,
            goes_on_with=party_count,
            words=f"waiting for people at {', '.join(parties)} to approve ({have_words}){PLAN_WORDS}{words}",
            whom="people",
        )
        # News is written at once: the next write comes only after all who were asked have answered.
        is_news = previous_wait is None or previous_wait.words != awaited.words
        self._show(durable=is_news, phase="", done=0, total=0, waiting=awaited)

    def described(self, parties: Sequence[str]) -> tuple[AwaitedParty, ...]:
        """Returns the named parties with the state of their connections; all count as connected where none is known."""
        return tuple(AwaitedParty(party_name, True, None) for party_name in parties)

    def say(self, message: str) -> None:
        self.check()
        message = self._with_questions(message)
        # A run that waits, or is tried again, repeats its message: the log has it once.
        if message != self._last_message:
            self.folder.say(message)
            alike = (self.folder.name, without_numbers(message))
            log.info("run %s: %s", self.folder.name, message, extra={"alike": alike})
            self._last_message = message
        self._show(message=message)

    def _with_questions(self, words: str) -> str:
        """Replaces a sum's name at the begin of words by what the sum asks, which people know better."""
        name, colon, rest = words.removeprefix(SUM_PHASE).partition(":")
        title = self._sum_titles.get(name)
        if title is None or not (colon or words.startswith(SUM_PHASE)):
            return words
        return f"{SUM_PHASE.strip()}: {title}" + (f";{rest}" if colon else "")

    def _show(self, *, durable: bool = False, **changes: Any) -> None:
        """Changes the status, and writes it unless it was written a moment ago; ``durable`` always writes it."""
        self._status = replace(self._status, **changes)
        now_s = time.monotonic()
        if durable or now_s - self._written_at_s >= STATUS_S:
            self._written_at_s = now_s
            self.folder.write_status(self._status, durable=durable)


class GrpcRunDriver(RunDriver):
    """One run over the native transport, in a thread of its own.

    It is the run's :class:`Transport` too: it checks for the operator's request, and spends its patience once per
    party. A party that was away for a whole request is not waited for again until it has been connected, as long as
    the others are enough for the run.

    Args:
        transport: the transport of the whole coordinator, which its runs share.
        rest: see :class:`RunDriver`.
    """

    def __init__(self, run_folder: RunFolder, transport: GrpcTransport, **rest: Any) -> None:
        super().__init__(run_folder, **rest)
        self.carrier = self
        self._transport = transport
        self._gone: dict[str, float] = {}  # time at which a party that did not answer in time went away, by party
        self.thread = threading.Thread(target=self.run, name=f"run {run_folder.name}", daemon=True)

    def start(self) -> None:
        self._show(durable=True)
        self.thread.start()

    def sleep(self, seconds: float) -> None:
        self._transport.sleep(seconds)

    def missing(self, planned: Planned) -> tuple[AwaitedParty, ...]:
        return tuple(party for party in self.described(planned.roster) if not party.connected)

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        self.check()

        def watch(waiting: Waiting) -> bool:
            self.waits(waiting, len(requests))
            return self._given_up >= set(waiting.missing)

        started_at_s = time.monotonic()
        replies = self._transport.exchange(requests, timeout_s=timeout_s, watch=watch, reply_bytes=self._reply_bytes)
        if time.monotonic() - started_at_s >= self._planned.patience_s:
            missing_presences = self._transport.presence(
                [party_name for party_name in requests if party_name not in replies]
            )
            self._gone.update(
                {
                    party_name: presence.since
                    for party_name, presence in missing_presences.items()
                    if not presence.connected
                }
            )
        if self._status.waiting is not None and not self.awaits_people:
            self._show(waiting=None)
        return replies

    @property
    def _given_up(self) -> set[str]:
        """The parties that are not waited for; empty if the run cannot go on without them."""
        presences = self._transport.presence(self._gone)
        away_parties = {
            party_name
            for party_name, since in self._gone.items()
            if not presences[party_name].connected and presences[party_name].since == since
        }
        if len(self._planned.roster) - len(away_parties) >= self._needed_count:
            return away_parties
        return set()

    def waits(self, waiting: Waiting, asked_count: int) -> None:
        """Shows in the status that replies to a request to ``asked_count`` parties are missing."""
        self.check()
        if self.awaits_people and all(seen.connected for seen in waiting.missing.values()):
            return  # No reply is missing: such a machine is asked each second if its people have decided.
        is_signed = self._signed
        required_count = self._needed_count if is_signed else asked_count
        rule_words = f"the quorum is {required_count}" if is_signed else "all must before the first sum"
        answer_words = f"{waiting.answered} of {asked_count} have answered, {rule_words}"
        if not is_signed:
            outcome_words = "they are asked again"
        elif waiting.answered >= required_count:
            outcome_words = "it goes on without them"
        else:
            outcome_words = f"it goes on only if {required_count - waiting.answered} more answer by then"
        previous_wait = self._status.waiting
        now_s = time.time()
        missing_parties = _described(waiting.missing)
        awaited = Awaited(
            parties=missing_parties,
            since=now_s if previous_wait is None else previous_wait.since,
            goes_on_at=now_s + waiting.left_s,
            goes_on_with=required_count,
            words=f"waiting for {_describe_missing(missing_parties)}; {answer_words};"
            f" in {duration(waiting.left_s)} {outcome_words}",
        )
        self._show(waiting=awaited)

    def described(self, parties: Sequence[str]) -> tuple[AwaitedParty, ...]:
        return _described(self._transport.presence(parties))


def _describe_test(task: Task, test: Table | None) -> str:
    """Returns the test file's name and size for a reader of the card; "" where the task names none."""
    if task.evaluation.test is None:
        return ""
    size_words = "which could not be read" if test is None else counted(len(test), "public text")
    return f"{Path(task.evaluation.test).name} ({size_words})"


def _name_test(task: Task, test: Table | None) -> str:
    """Returns name and hash of the run's test file, for figures that are kept; "" without one that could be read."""
    if task.evaluation.test is None or test is None:
        return ""
    return name_test(task.locate(task.evaluation.test))


def _described(missing: Mapping[str, Presence]) -> tuple[AwaitedParty, ...]:
    now_s = time.monotonic()
    return tuple(
        AwaitedParty(
            party_name, presence.connected, round(now_s - presence.since, 1) if presence.heard is not None else None
        )
        for party_name, presence in sorted(missing.items())
    )


def _describe_missing(missing: Iterable[AwaitedParty]) -> str:
    party_words = []
    for party in missing:
        away_words = "not connected since the coordinator started"
        if party.seconds is not None:
            away_words = f"away for {duration(party.seconds)}"
        party_words.append(f"{party.party} ({'connected, at work' if party.connected else away_words})")
    return ", ".join(party_words)


def tell_ending(
    transport: Transport, run: RunFolder, status: RunStatus, parties: Collection[str], timeout_s: float = TELL_TIMEOUT_S
) -> set[str]:
    """Tells ``parties`` how a run has ended; returns those that answered, and notes in the folder those that were told.

    Parties are not told of a run that was never proposed. Raises ConfigurationError while its journal is in use.
    """
    if not run.has_journal:
        return set(parties)
    with closing(run.journal()) as journal:
        manifest_bytes = journal.get("manifest")
    if manifest_bytes is None:
        return set(parties)
    hash_ = Manifest.from_bytes(manifest_bytes).hash
    request = wire.Request(version=codec.VERSION, suspend_run=wire.SuspendRun(manifest_hash=hash_))
    if status.state in FINAL:
        request = wire.Request(version=codec.VERSION, close_run=wire.CloseRun(manifest_hash=hash_))
    replies = transport.exchange(dict.fromkeys(parties, request.SerializeToString()), timeout_s=timeout_s)
    told_parties = {
        party_name
        for party_name, reply_bytes in replies.items()
        if decode(party_name, reply_bytes).WhichOneof("body") in ("noted", "receipt")
    }
    run.note_heard(status, run.heard(status) | told_parties)
    return set(replies)


class Endings:
    """Tells every party how its runs have ended, in a thread. Absent parties are told when they are connected again.

    A run that is finished or stopped is closed at the parties. One that has failed may go on, and is suspended there.
    """

    def __init__(self, transport: GrpcTransport, held: HeldSteps | None = None) -> None:
        self._transport = transport
        self._held = held or HeldSteps()
        # Each run's folder, its final status, and the parties that have not answered yet, by the run's name.
        self._endings: dict[str, tuple[RunFolder, RunStatus, set[str]]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="endings", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(TELL_TIMEOUT_S)

    def note(self, run: RunFolder, status: RunStatus) -> None:
        """Begins to tell parties of a run that has ended and that nothing drives; a second call changes nothing."""
        _, noted_status, _ = self._endings.get(run.name, (None, RunStatus(), None))
        if (noted_status.state, noted_status.number) != (status.state, status.number):
            self._endings[run.name] = run, status, set(run.planned().roster) - run.heard(status)

    def forget(self, run: RunFolder) -> None:
        """Stops telling parties how ``run`` ended, because it goes on."""
        self._endings.pop(run.name, None)

    def _work(self) -> None:
        while not self._stopping.wait(ENDINGS_POLL_S):
            silent_names: set[str] = set()  # names of parties that did not answer, which are not waited for again
            for run, status, untold_names in list(self._endings.values()):
                presences = self._transport.presence(untold_names - silent_names)
                connected = [party_name for party_name, presence in presences.items() if presence.connected]
                if not connected or self._stopping.is_set():
                    continue
                # A damaged folder must not keep the other runs' parties waiting.
                step = f"telling the parties how run {run.name} ended"
                tell = partial(self._tell, run, status, untold_names, connected, silent_names)
                self._held.attempt(step, tell)

    def _tell(
        self,
        run: RunFolder,
        status: RunStatus,
        untold_names: set[str],
        connected: Sequence[str],
        silent_names: set[str],
    ) -> None:
        told_parties = tell_ending(self._transport, run, status, connected)
        untold_names.difference_update(told_parties)
        silent_names |= set(connected) - told_parties
