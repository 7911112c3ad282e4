"""Drivers of runs: each takes one run from its folder to its outputs. A subclass provides the transport."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from undersong_common import embedders
from undersong_common.embedding import CachedEmbedder, Embedder, PublicFileCache
from undersong_common.errors import ConfigurationError, InternalError, TransportError, UndersongError
from undersong_common.plurals import counted
from undersong_common.repeats import without_numbers
from undersong_server.coordinator.grpc_transport import GrpcTransport, Presence, Waiting
from undersong_server.federation.driver import Transport
from undersong_server.journal import Journal
from undersong_server.release.publish import publish, report_data
from undersong_server.release.signature import Signer
from undersong_server.runs.execution import Outcome, execute
from undersong_server.runs.folder import STATE_AFTER, Awaited, AwaitedParty, RunFailure, RunFolder, RunStatus, State
from undersong_server.runs.planning import Planned, RunPlan, build_author

log = logging.getLogger(__name__)

ROSTER_POLL_S = 0.5
STATUS_S = 0.5  # the status file is renewed at most this often


class Interrupted(BaseException):
    """The operator requested another action. No handler of errors may hold it up."""


class RunDriver(ABC):
    """One run that is under way; implements :class:`undersong_server.progress.Progress`.

    Args:
        public_cache: file with embeddings of public texts.
        environment: where generators find their keys.
        number: of the requested action that this driver carries out.
        signer: puts the coordinator's name under what is published.
    """

    def __init__(
        self, folder: RunFolder, *, public_cache: Path, environment: Mapping[str, str], number: int, signer: Signer
    ) -> None:
        self.folder = folder
        self.number = number
        self._public_cache = public_cache
        self._environment = environment
        self._signer = signer
        self._interrupted: State | None = None
        charged = folder.status().charged
        self._status = RunStatus(state="waiting", number=number, since=time.time(), charged=charged)
        self._written = 0.0
        self._needed = 0
        self._reply_bytes = 0

    @abstractmethod
    def await_roster(self, planned: Planned, journal: Journal) -> None:
        """Blocks until every party is there; once the manifest is signed, until enough of them are."""

    @abstractmethod
    def carrier(self, planned: Planned) -> Transport:
        """The transport as this run uses it."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Waits between two questions for an approval."""

    def interrupt(self, becomes: State) -> None:
        """Ends the run at its next step; its journal keeps everything. ``becomes`` is the state it is left in."""
        self._interrupted = becomes

    def run(self) -> None:
        """Drives the run to its end, whatever that is: the status says it."""
        try:
            self._conduct()
            self._end("finished")
        except Interrupted:
            state = self._interrupted or "paused"
            if state == "running":  # the coordinator stops: whoever starts it again goes on
                message = "the coordinator was stopped; the run goes on when it is started again"
                self._status = replace(self._status, message=message)
                self._end("waiting")
            else:
                self._end(state)
        except UndersongError as error:
            self._end("failed", RunFailure(error.problem, error.remedy, error.exit_code))
        except Exception as error:  # noqa: BLE001 - its words may hold anything, so only its kind and place are kept
            frames = traceback.extract_tb(error.__traceback__)
            place = " < ".join(f"{frame.filename.rsplit('/', 2)[-1]}:{frame.lineno}" for frame in reversed(frames[-5:]))
            problem = f"internal error: {type(error).__name__} at {place}"
            self._end("failed", RunFailure(problem, "", InternalError.exit_code))

    def _end(self, state: State, error: RunFailure | None = None) -> None:
        if error is not None:
            log.error("run %s failed: %s", self.folder.name, error.problem)
            self.folder.say(f"failed: {error.problem}")
        else:
            log.info("run %s is %s", self.folder.name, state)
            self.folder.say(state)
        self._status = replace(self._status, state=state, phase="", done=0, total=0, waiting=None, error=error)
        self._note(durable=True)

    def _conduct(self) -> None:
        planned = self.folder.planned()
        run_plan = planned.load()
        quorum = run_plan.plan.quorum
        self._needed = quorum.parties - quorum.tolerated_dropouts
        self._reply_bytes = run_plan.plan.largest_reply_bytes
        journal = Journal(self.folder.journal_path)
        try:
            embedder = embedders.check(run_plan.task.embedder.model)
            embed = CachedEmbedder(embedder, PublicFileCache(self._public_cache)).encode
            while True:
                self.await_roster(planned, journal)
                try:
                    outcome = self._outcome(planned, run_plan, journal, embed, embedder)
                    break
                except TransportError as error:
                    self.say(f"{error.problem}; asking again")
            self.folder.note_heard(RunStatus("finished", self.number), outcome.receipts)
            self._heed_request()
            self._publish(planned, run_plan, outcome, embed)
        finally:
            journal.close()

    def _outcome(
        self, planned: Planned, run_plan: RunPlan, journal: Journal, embed: Any, embedder: Embedder
    ) -> Outcome:
        self._status = replace(self._status, state="running")
        self.folder.begin_live()
        author = build_author(run_plan.task, embed, self._environment, journal, self, seed=planned.seed)
        return execute(
            run_plan,
            name=planned.name,
            transport=self.carrier(planned),
            parties=list(planned.roster),
            author=author,
            journal=journal,
            progress=self,
            embed=embed,
            embedder=embedder.fingerprint,
            seed=planned.seed,
            identities=self._signer.identities,
            timeout_s=planned.patience_s,
            sleep=self.sleep,
            observe=self._observe,
        )

    def _publish(self, planned: Planned, run_plan: RunPlan, outcome: Outcome, embed: Any) -> None:
        insecure = planned.insecure_noise_seed is not None
        report = report_data(
            run_plan,
            outcome,
            embed,
            created=time.strftime("%Y-%m-%d %H:%M"),
            insecure_noise=insecure,
        )
        publish(self.folder.output, outcome, report, signer=self._signer)

    def _observe(self, kind: str, facts: Mapping[str, Any]) -> None:
        if kind == "asks":
            self._status = replace(self._status, charged=True)
            self._note(durable=True)
        else:
            self.folder.tell(kind, facts)

    def _heed_request(self) -> None:
        """Raises Interrupted where the operator requested another action and the serving process has not looked yet."""
        becomes = STATE_AFTER.get(self.folder.requested().action or "")
        if becomes is not None:
            self.interrupt(becomes)
        self.check()

    def check(self) -> None:
        """Raises Interrupted where the operator requested another action."""
        if self._interrupted is not None:
            raise Interrupted

    def update(self, phase: str, done: int, total: int) -> None:
        self.check()
        waiting = None if self.awaits_people else self._status.waiting
        self._status = replace(self._status, phase=phase, done=done, total=total, waiting=waiting)
        self._note()

    @property
    def awaits_people(self) -> bool:
        """Whether somebody has to decide, and no machine is at fault."""
        return self._status.waiting is not None and self._status.waiting.whom == "people"

    def await_people(self, parties: Sequence[str], done: int, total: int) -> None:
        self.check()
        before = self._status.waiting
        since = before.since if before is not None and before.whom == "people" else time.time()
        awaited = Awaited(
            parties=self.described(parties),
            since=since,
            goes_on_at=None,
            goes_on_with=total,
            words=f"waiting for people at {', '.join(parties)} to approve ({done} of {total} hospitals have)",
            whom="people",
        )
        self._status = replace(self._status, phase="", done=0, total=0, waiting=awaited)
        self._note()

    def described(self, parties: Sequence[str]) -> tuple[AwaitedParty, ...]:
        """How these parties are connected, as far as the transport knows."""
        return tuple(AwaitedParty(name, True, None) for name in parties)

    def say(self, message: str) -> None:
        self.check()
        self._status = replace(self._status, message=message)
        self.folder.say(message)
        alike = (self.folder.name, without_numbers(message))
        log.info("run %s: %s", self.folder.name, message, extra={"alike": alike})
        self._note()

    def _note(self, *, durable: bool = False) -> None:
        now = time.monotonic()
        if durable or now - self._written >= STATUS_S:
            self._written = now
            self.folder.write_status(self._status, durable=durable)


class GrpcRunDriver(RunDriver):
    """One run that is under way.

    Args:
        transport: of the whole coordinator.
        expelled: names of parties that were revoked; called again and again.
        public_cache, environment, number, signer: see :class:`RunDriver`.
    """

    def __init__(
        self,
        folder: RunFolder,
        transport: GrpcTransport,
        *,
        expelled: Callable[[], Sequence[str]],
        public_cache: Path,
        environment: Mapping[str, str],
        number: int,
        signer: Signer,
    ) -> None:
        super().__init__(folder, public_cache=public_cache, environment=environment, number=number, signer=signer)
        self._transport = transport
        self._expelled = expelled
        self._journal: Journal | None = None
        self._thread = threading.Thread(target=self.run, name=f"run {folder.name}", daemon=True)

    def start(self) -> None:
        self._note(durable=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def carrier(self, planned: Planned) -> Transport:
        return _PatientTransport(self, self._transport, planned, self._needed, self._reply_bytes)

    def sleep(self, seconds: float) -> None:
        self._transport.sleep(seconds)

    def await_roster(self, planned: Planned, journal: Journal) -> None:
        """Blocks until every party is connected; once the manifest is signed, until enough of them are."""
        begun = time.time()
        self._journal = journal
        needed = self._needed if self._signed else len(planned.roster)
        while True:
            self.check()
            presence = self._transport.presence(planned.roster)
            connected = [name for name, seen in presence.items() if seen.connected]
            gone = sorted(set(planned.roster) & set(self._expelled()))
            if len(planned.roster) - len(gone) < needed:
                raise ConfigurationError(
                    f"{', '.join(gone)}: revoked, and the run needs {needed} of its {len(planned.roster)} parties",
                    "plan a new run without them",
                )
            if len(connected) >= needed:
                self._status = replace(self._status, waiting=None)
                return
            missing = {name: seen for name, seen in presence.items() if not seen.connected}
            awaited = Awaited(
                parties=_described(missing),
                since=begun,
                goes_on_at=None,
                goes_on_with=needed,
                words=f"waiting for {_names(missing)} to connect; the run goes on as soon as {needed} of"
                f" {counted(len(planned.roster), 'party is', 'parties are')} there ({len(connected)} now)",
            )
            self._status = replace(self._status, state="waiting", waiting=awaited)
            self._note()
            time.sleep(ROSTER_POLL_S)

    @property
    def _signed(self) -> bool:
        """Whether everybody has signed the manifest: before that a run needs every party."""
        return self._journal is not None and self._journal.get("manifest/signatures") is not None

    def waits(self, waiting: Waiting, asked: int) -> None:
        """Tells in the status that a request is under way and replies are missing."""
        self.check()
        if self.awaits_people and all(seen.connected for seen in waiting.missing.values()):
            return  # a machine that is asked anew each second whether its people have decided
        signed = self._signed
        needed = self._needed if signed else asked
        late = f"{waiting.answered} of {asked} have answered, {f'the quorum is {needed}' if signed else 'all must'}"
        if not signed:
            outcome = f"in {waiting.left_s:.0f} s they are asked again"
        elif waiting.answered >= needed:
            outcome = f"in {waiting.left_s:.0f} s it goes on without them"
        else:
            outcome = f"in {waiting.left_s:.0f} s it goes on only if {needed - waiting.answered} more answer by then"
        before = self._status.waiting
        awaited = Awaited(
            parties=_described(waiting.missing),
            since=time.time() if before is None else before.since,
            goes_on_at=time.time() + waiting.left_s,
            goes_on_with=needed,
            words=f"waiting for {_names(waiting.missing)}; {late}; {outcome}",
        )
        self._status = replace(self._status, waiting=awaited)
        self._note()

    def described(self, parties: Sequence[str]) -> tuple[AwaitedParty, ...]:
        return _described(self._transport.presence(parties))

    def answered(self) -> None:
        """Tells in the status that the request is over."""
        if self._status.waiting is not None and not self.awaits_people:
            self._status = replace(self._status, waiting=None)
            self._note()


class _PatientTransport:
    """The transport as one run uses it: it checks for the operator's request, and spends its patience once per party.

    A party that was away for a whole request is not waited for again until it has been connected, as long as the others
    are enough for the run.
    """

    def __init__(
        self, driver: GrpcRunDriver, transport: GrpcTransport, planned: Planned, needed: int, reply_bytes: int
    ) -> None:
        self._driver = driver
        self._transport = transport
        self._roster = planned.roster
        self._patience_s = planned.patience_s
        self._needed = needed
        self._reply_bytes = reply_bytes
        self._gone: dict[str, float] = {}  # since when a party that was waited for in vain has been away

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        self._driver.check()

        def watch(waiting: Waiting) -> bool:
            self._driver.waits(waiting, len(requests))
            return self._given_up >= set(waiting.missing)

        begun = time.monotonic()
        replies = self._transport.exchange(requests, timeout_s=timeout_s, watch=watch, reply_bytes=self._reply_bytes)
        if time.monotonic() - begun >= self._patience_s:
            missing = self._transport.presence([name for name in requests if name not in replies])
            self._gone.update({name: seen.since for name, seen in missing.items() if not seen.connected})
        self._driver.answered()
        return replies

    @property
    def _given_up(self) -> set[str]:
        """The parties that are not waited for; empty where the run cannot go on without them."""
        now = self._transport.presence(self._gone)
        away = {name for name, since in self._gone.items() if not now[name].connected and now[name].since == since}
        return away if len(self._roster) - len(away) >= self._needed else set()


def _described(missing: Mapping[str, Presence]) -> tuple[AwaitedParty, ...]:
    now = time.monotonic()
    return tuple(
        AwaitedParty(name, seen.connected, round(now - seen.since, 1) if seen.heard is not None else None)
        for name, seen in sorted(missing.items())
    )


def _names(missing: Mapping[str, Presence]) -> str:
    now = time.monotonic()
    words = []
    for name, seen in sorted(missing.items()):
        if seen.connected:
            words.append(f"{name} (connected, at work)")
        elif seen.heard is None:
            words.append(f"{name} (not connected since the coordinator started)")
        else:
            words.append(f"{name} (away for {now - seen.since:.0f} s)")
    return ", ".join(words)
