"""Drives one run in a thread of the serving process, and says at every moment what it does and for whom it waits."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.embedding import CachedEmbedder, Embedder, PublicFileCache
from common.errors import ConfigurationError, InternalError, TransportError, UndersongError
from server import generators
from server.conduct import Outcome, conduct
from server.grpc_transport import GrpcTransport, Presence, Waiting
from server.imprint import Signer
from server.journal import Journal
from server.planning import RunPlan
from server.prompting import Prompts
from server.publish import publish, report_data
from server.run_folder import Planned, RunFolder, State

log = logging.getLogger(__name__)

STATUS_S = 0.5  # how often the status file is renewed at most
ROSTER_POLL_S = 0.5


class Interrupted(BaseException):
    """The operator wants something else. No handler of errors may hold it up."""


class RunDriver:
    """One run that is under way.

    Args:
        transport: of the whole coordinator.
        expelled: names of parties that were revoked, asked now and then.
        public_cache: file with embeddings of public texts.
        environment: where generators find their keys.
        number: of the operator's wish that this driver carries out.
        signer: puts the coordinator's name under what is published.
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
        self.folder = folder
        self.number = number
        self._transport = transport
        self._expelled = expelled
        self._public_cache = public_cache
        self._environment = environment
        self._signer = signer
        self._wish: State | None = None
        self._status: dict[str, Any] = {"state": "waiting", "number": number, "since": time.time()}
        self._written = 0.0
        self._needed = 0
        self._thread = threading.Thread(target=self._run, name=f"run {folder.name}", daemon=True)

    def start(self) -> None:
        self._note(durable=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def interrupt(self, becomes: State) -> None:
        """Ends the run at its next step; its journal keeps everything. ``becomes`` is the state it is left in."""
        self._wish = becomes

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._conduct()
            self._end("finished")
        except Interrupted:
            state = self._wish or "paused"
            if state == "running":  # the coordinator stops: whoever starts it again goes on
                self._status["message"] = "the coordinator was stopped; the run goes on when it is started again"
                self._end("waiting")
            else:
                self._end(state)
        except UndersongError as error:
            self._end("failed", {"problem": error.problem, "remedy": error.remedy, "exit_code": error.exit_code})
        except Exception as error:  # noqa: BLE001 - its words may hold anything, so only its kind and place are kept
            frames = traceback.extract_tb(error.__traceback__)
            place = " < ".join(f"{frame.filename.rsplit('/', 2)[-1]}:{frame.lineno}" for frame in reversed(frames[-5:]))
            problem = f"internal error: {type(error).__name__} at {place}"
            self._end("failed", {"problem": problem, "remedy": "", "exit_code": InternalError.exit_code})

    def _end(self, state: State, error: Mapping[str, Any] | None = None) -> None:
        for key in ("waiting", "phase", "done", "total"):
            self._status.pop(key, None)
        if error is not None:
            self._status["error"] = dict(error)
            log.error("run %s failed: %s", self.folder.name, error["problem"])
            self.folder.say(f"failed: {error['problem']}")
        else:
            log.info("run %s is %s", self.folder.name, state)
            self.folder.say(state)
        self._status["state"] = state
        self._note(durable=True)

    def _conduct(self) -> None:
        planned = self.folder.planned()
        run_plan = planned.load()
        quorum = run_plan.plan.quorum
        self._needed = quorum.parties - quorum.tolerated_dropouts
        journal = Journal(self.folder.journal_path)
        try:
            embedder = Embedder.load(run_plan.task.embedder.model)
            embed = CachedEmbedder(embedder, PublicFileCache(self._public_cache)).encode
            while True:
                self._await_roster(planned, journal)
                try:
                    outcome = self._outcome(planned, run_plan, journal, embed, embedder)
                    break
                except TransportError as error:
                    self.say(f"{error.problem}; asking again")
            self._publish(planned, run_plan, outcome, embed)
        finally:
            journal.close()

    def _outcome(
        self, planned: Planned, run_plan: RunPlan, journal: Journal, embed: Any, embedder: Embedder
    ) -> Outcome:
        task = run_plan.task
        self._status["state"] = "running"
        built = generators.build(
            task.generators,
            labels=task.task.labels,
            folder=task.locate(""),
            embed=embed,
            environment=self._environment,
        )
        prompts = task.locate(task.prompts.folder) if task.prompts.folder else None
        return conduct(
            run_plan,
            name=planned.name,
            transport=_Watched(self, self._transport, planned.roster, self._needed),
            parties=list(planned.roster),
            generators=built,
            prompts=Prompts.load(description=task.task.description, labels=task.task.labels, folder=prompts),
            journal=journal,
            progress=self,
            embed=embed,
            embedder=embedder.fingerprint,
            seed=planned.seed,
            timeout_s=planned.patience_s,
            sleep=self._transport.sleep,
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
        import json

        ledgers = {party: json.loads(receipt.body)["entries"] for party, receipt in outcome.receipts.items()}
        publish(self.folder.output, outcome, report, ledgers, signer=self._signer)

    # For whom it waits

    def _await_roster(self, planned: Planned, journal: Journal) -> None:
        """Until every party is connected; once the manifest is signed, until enough of them are."""
        begun = time.time()
        signed = journal.get("manifest/signatures") is not None
        needed = self._needed if signed else len(planned.roster)
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
                self._status.pop("waiting", None)
                return
            missing = {name: seen for name, seen in presence.items() if not seen.connected}
            self._status["state"] = "waiting"
            self._status["waiting"] = {
                "for": _described(missing),
                "since": begun,
                "goes_on_at": None,
                "goes_on_with": needed,
                "words": f"waiting for {_names(missing)} to connect; the run goes on as soon as {needed} of"
                f" {len(planned.roster)} parties are there ({len(connected)} now)",
            }
            self._note()
            time.sleep(ROSTER_POLL_S)

    def waits(self, waiting: Waiting, asked: int) -> None:
        """A request is under way and replies are missing."""
        self.check()
        enough = waiting.answered >= self._needed
        late = f"{waiting.answered} of {asked} have answered, the quorum is {self._needed}"
        outcome = "without them" if enough else f"only if {self._needed - waiting.answered} more answer by then"
        self._status["waiting"] = {
            "for": _described(waiting.missing),
            "since": self._status.get("waiting", {}).get("since", time.time()),
            "goes_on_at": time.time() + waiting.left_s,
            "goes_on_with": self._needed,
            "words": f"waiting for {_names(waiting.missing)}; {late}; in {waiting.left_s:.0f} s it goes on {outcome}",
        }
        self._note()

    def answered(self) -> None:
        if self._status.pop("waiting", None) is not None:
            self._note()

    def check(self) -> None:
        """Raises Interrupted where the operator wants this run to end here."""
        if self._wish is not None:
            raise Interrupted

    # Progress (server/progress.py)

    def update(self, phase: str, done: int, total: int) -> None:
        self.check()
        self._status.update(phase=phase, done=done, total=total)
        self._note()

    def say(self, message: str) -> None:
        self.check()
        self._status["message"] = message
        self.folder.say(message)
        log.info("run %s: %s", self.folder.name, message)
        self._note()

    def _note(self, *, durable: bool = False) -> None:
        now = time.monotonic()
        if durable or now - self._written >= STATUS_S:
            self._written = now
            self.folder.write_status(self._status, durable=durable)


class _Watched:
    """The transport as one run uses it: with an eye on the operator, and with its patience spent once a party.

    A party that was away for a whole request is not waited for again until it has been connected, as long as the others
    are enough for the run.
    """

    def __init__(self, driver: RunDriver, transport: GrpcTransport, roster: Sequence[str], needed: int) -> None:
        self._driver = driver
        self._transport = transport
        self._roster = roster
        self._needed = needed
        self._gone: dict[str, float] = {}  # since when a party that was waited for in vain has been away

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        self._driver.check()

        def watch(waiting: Waiting) -> bool:
            self._driver.waits(waiting, len(requests))
            return self._given_up >= set(waiting.missing)

        begun = time.monotonic()
        replies = self._transport.exchange(requests, timeout_s=timeout_s, watch=watch)
        if time.monotonic() - begun >= timeout_s:
            missing = self._transport.presence([name for name in requests if name not in replies])
            self._gone.update({name: seen.since for name, seen in missing.items() if not seen.connected})
        self._driver.answered()
        return replies

    @property
    def _given_up(self) -> set[str]:
        """Whom nobody need wait for; nobody where the run cannot go on without them."""
        now = self._transport.presence(self._gone)
        away = {name for name, since in self._gone.items() if not now[name].connected and now[name].since == since}
        return away if len(self._roster) - len(away) >= self._needed else set()


def _described(missing: Mapping[str, Presence]) -> list[dict[str, Any]]:
    now = time.monotonic()
    return [
        {
            "party": name,
            "connected": seen.connected,
            "seconds": round(now - seen.since, 1) if seen.heard is not None else None,
        }
        for name, seen in sorted(missing.items())
    ]


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
