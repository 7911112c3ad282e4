"""The party's daemon: connects to the coordinator, answers requests, and reconnects. It opens no port."""

import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from undersong_client import keys
from undersong_client.answering.assemble import Assembled
from undersong_client.answering.journaled import Answering
from undersong_client.consent import policy, policy_file, trust
from undersong_client.consent.approvals import Proposal, Proposals
from undersong_client.home import (
    CLOCK_TOLERANCE_S,
    SETTINGS,
    PartyHome,
    WrittenByAnotherVersion,
    clock_words,
    write_json,
)
from undersong_client.link.connection import Connection, Ended, Listener
from undersong_client.storage import datasets
from undersong_client.storage.outbox import Outbox
from undersong_common.errors import ConfigurationError, MachineFault, TransportError, UndersongError
from undersong_common.files import FileState, file_state, replace_file
from undersong_common.printable import printable, shell_path
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Budget
from undersong_common.program.machine import HeldSteps, is_passing_fault
from undersong_common.program.notices import EXPIRES_SOON_S, Notices
from undersong_common.version import SOFTWARE
from undersong_protocol.wire import framing
from undersong_protocol.wire.messages import transport_pb2 as wire

log = logging.getLogger(__name__)

CONNECTING = "connecting"  # name of the step that waits after a fault of the machine before or within a stream
LOOK_S = 0.25  # time between two checks for decisions, pauses and silence
AWAY_TOLD_S = 3600.0  # time between two lines of the log while nothing connects
STATUS_S = 5.0  # time between two writes of the status file
RENEW_LOOK_S = 3600.0  # time between two looks at the certificate and the budget
BUDGET_LOW = 0.1  # remaining share of the budget at which people are told
TELL_REASON_S = 10.0  # longest time for telling one address of the coordinator why the daemon does not start

# Figures for a monitor, by name, with their help texts. No figure depends on a record: the spent budget follows from
# the approved plans and the requested sums, both of which the coordinator knows.
METRICS = {
    "connected": "1 while a stream to the coordinator stands and the party answers.",
    "paused": "1 while the hospital's people have paused it.",
    "last_contact_seconds": "When the coordinator was last heard, seconds since the epoch.",
    "requests_waiting": "Plans that wait for a decision here.",
    "certificate_expires_seconds": "When the certificate ends, seconds since the epoch.",
    "epsilon_budget": "The budget's epsilon over all runs.",
    "epsilon_left": "What is left of it, at the budget's delta.",
    "held_up_seconds": "Since when this machine lacks something, seconds since the epoch; 0 if it lacks nothing.",
    "written_seconds": "When this file was written, seconds since the epoch: a daemon that is gone writes no more.",
}


@dataclass(frozen=True)
class Backoff:
    """Delay before the next connection: at random between a tenth and the whole of a limit that doubles.

    Attributes:
        first_s: upper limit of the delay after the first failure; it doubles with each further one.
        largest_s: largest upper limit.
        refused_s: delay after the coordinator did not accept the certificate.
    """

    first_s: float = 0.5
    largest_s: float = 60.0
    refused_s: float = 300.0

    def wait_s(self, failures: int, draw: float) -> float:
        """Returns the delay in seconds after so many failures in a row; at least a tenth of the upper limit.

        ``draw`` is a random number in [0, 1).
        """
        limit_s = min(self.largest_s, self.first_s * 2.0 ** min(max(failures - 1, 0), 30))
        return limit_s * (0.1 + 0.9 * draw)


class Daemon(Listener):
    """Keeps a party connected to its coordinator and answers the coordinator's requests.

    It ends at :meth:`stop`, or when only a person can help (then :meth:`run` raises).

    Args:
        assembled: the party.
        clock: returns seconds since the epoch.
        warm: True computes the embeddings before a run needs them.
        figures: file of ``METRICS`` for a monitor (node_exporter's textfile collector); None writes no file.
    """

    def __init__(
        self,
        home: PartyHome,
        assembled: Assembled,
        *,
        backoff: Backoff | None = None,
        use_proxy: bool = True,
        warm: bool = True,
        clock: Callable[[], float] = time.time,
        figures: Path | None = None,
    ) -> None:
        self._home = home
        self._figures_file = figures
        self._assembled = assembled
        # Threads must not share a ledger: the party's own is charged by the threads that answer.
        self._ledger = Ledger.read(assembled.ledger.path)
        self._backoff = backoff or Backoff()
        self._use_proxy = use_proxy
        self._warm = warm
        self._clock = clock
        self._outbox = Outbox(home)
        self._held_steps = HeldSteps(home.held_steps_file, root=home.path / SETTINGS, clock=clock)
        self._latest_connection: Connection | None = None
        self._answering = Answering(
            home,
            assembled,
            send=self._send_reply,
            is_stream_open=self._stream_stands,
            held_steps=self._held_steps,
            clock=clock,
        )
        self._proposals = Proposals(home)
        self._reassembler = framing.Reassembler("coordinator")
        self._boot = os.urandom(framing.ID_BYTES)  # names this start of the daemon in every Hello
        self._random = random.Random(os.urandom(16))
        self._stop_event = threading.Event()
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._status_facts: dict[str, Any] = {"state": "starting", "since_s": clock()}
        self._status_written_s = 0.0
        self._refusals_written: dict[str, float] = {}
        self._renewal_checked_s = 0.0
        self._held_back = False  # True while a reply waits for the end of a pause
        self._known_proposals: dict[str, Proposal] = {}  # last state of every proposal, by the plan's hash
        settings = home.settings
        self._notices = Notices(settings.notify, settings.party, clock)
        self._decisions_modified_ns = 0
        # Time since which no connection succeeds, and time of the last log line about it; 0 for never.
        self._away_since_s = self._away_told_s = 0.0
        self._away_reason = ""
        # Fingerprint and file states at the last check that the coordinator is trusted.
        self._trust_seen: tuple[str, FileState, FileState] | None = None

    def stop(self) -> None:
        """Ends :meth:`run` after the present request; may be called from a signal handler."""
        self._stop_event.set()

    def run(self) -> None:
        """Runs until :meth:`stop`. Raises ConfigurationError or PrivacyRefusal if only a person can help."""
        self._note_status(state="starting", pid=os.getpid(), software=SOFTWARE)
        log.info("%s starts with the party %s", SOFTWARE, self._home.settings.party)
        if sentence := policy_file.former_trust(self._home):
            log.warning("%s", sentence)
        self._attempt_step("looking after attempts", self._answering.party.look_after)
        if self._warm:
            threading.Thread(target=self._assembled.computation.warm, name="embeds", daemon=True).start()
        failure_count = 0
        try:
            while not self._stop_event.is_set():
                stream_end = self._stream_or_fault(failure_count)
                if self._stop_event.is_set():
                    break
                failure_count = 0 if stream_end.welcomed else failure_count + 1
                self._wait_between_streams(self._pause_after(stream_end, failure_count), stream_end)
        finally:
            self._answering.stop(20.0)
            self._assembled.computation.stop()
            if self._connection is not None:
                self._connection.close("the daemon stops")
            self._held_steps.close()
            self._note_status(state="stopped")
            log.info("stopped")

    # A fault of the machine, or a file of the party that cannot be read now, holds up one step, which is tried again.
    # Whatever else a person must correct ends the daemon.

    def _attempt_step(self, step: str, act: Callable[[], object]) -> None:
        if not self._held_steps.is_due(step):
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001 - what does not pass is raised again
            self._held_steps.hold(step, self._pass_fault(error))
        else:
            self._held_steps.release(step)

    def _pass_fault(self, error: Exception) -> Exception:
        """Returns a fault of the machine or of a file; raises any other error."""
        is_folder_away = isinstance(error, UndersongError) and not self._home.is_reachable
        if is_passing_fault(error) or is_folder_away:
            return error
        raise error

    def _stream_or_fault(self, failure_count: int) -> Ended:
        try:
            stream_end = self._run_stream(failure_count)
        except Exception as error:  # noqa: BLE001 - what does not pass is raised again
            held_fault = self._held_steps.hold(CONNECTING, self._pass_fault(error))
            with self._lock:
                connection = self._latest_connection
                self._connection = None
            if connection is not None:
                connection.close("its machine has a fault")
            return Ended(held_fault.problem, self._held_steps.pause_s(CONNECTING))
        self._held_steps.release(CONNECTING)
        return stream_end

    def _stream_stands(self) -> bool | None:
        """True if the present stream stands; None if only its next frame can tell."""
        connection = self._latest_connection
        stream_stands = False if connection is None else connection.stands(time.monotonic())
        if stream_stands is None and self._stop_event.is_set():
            return False
        return stream_stands

    # These methods serve one stream.

    def _run_stream(self, failure_count: int) -> Ended:
        """Dials the next address, stays as long as the stream lasts, and returns why it ended."""
        coordinator = trust.trusted(self._home)
        coordinator_address = coordinator.addresses[failure_count % len(coordinator.addresses)]
        is_paused = self._home.pause.exists()
        hello_message = self._make_hello(is_paused)
        self._outbox.record(
            _hello_text(hello_message, coordinator_address).encode(),
            at=self._clock(),
            kind="hello",
            answer_to="a new connection",
        )
        self._note_status(state="connecting", address=coordinator_address)
        self._answering.stream_ended()  # before the next stream, because a request may follow its welcome at once
        connection = Connection(
            coordinator_address,
            coordinator,
            keys.credential(self._home),
            hello=hello_message,
            reassembler=self._reassembler,
            listener=self,
            use_proxy=self._use_proxy,
        )
        self._latest_connection = connection
        try:
            welcome_message = connection.wait_welcome(self._stop_event.is_set)
        except TransportError as error:
            connection.close("no welcome")
            return connection.ended or Ended(error.problem)
        self._take_welcome(connection, welcome_message, is_paused)
        end_reason = self._stay_connected(connection, coordinator, is_paused)
        if self._stop_event.is_set():
            self._answering.stop(20.0)  # A reply that is under way still finds its stream.
        with self._lock:
            self._connection = None
        connection.close(end_reason)
        stream_end = connection.ended or Ended(end_reason, welcomed=True)
        log.info("disconnected: %s", end_reason)
        return stream_end

    def _take_welcome(self, connection: Connection, welcome: wire.Welcome, is_paused: bool) -> None:
        clock_offset_s = self._clock() - welcome.clock_s
        coordinator_name = printable(welcome.coordinator, 63)
        software_words = printable(welcome.software, 63)
        self._note_status(
            state="paused" if is_paused else "connected",
            coordinator=coordinator_name,
            coordinator_software=software_words,
            connected_s=self._clock(),
            clock_offset_s=round(clock_offset_s, 1),
            problem="",
            remedy="",
        )
        self._away_since_s = self._away_told_s = 0.0
        self._held_steps.release(CONNECTING)  # The fault is over now, and not only when this stream ends.
        log.info("connected to %s at %s", coordinator_name, connection.address)
        if abs(clock_offset_s) > CLOCK_TOLERANCE_S:
            log.warning("this machine's clock is %s: see `undersong-party check`", clock_words(clock_offset_s))
        if welcome.software != SOFTWARE:
            log.info("the coordinator runs %s, this party %s", software_words, SOFTWARE)
        with self._lock:
            self._connection = connection
        if is_paused:
            return  # The stream after the pause sends what was not acknowledged.
        # Replies are repeated only now, so that none is lost; one that is ready in this moment may go twice.
        for reply in self._answering.unacknowledged():
            connection.send_reply(reply)

    def _stay_connected(self, connection: Connection, coordinator: trust.TrustedCoordinator, is_paused: bool) -> str:
        """Blocks until the stream must be replaced; returns the reason."""
        self._decisions_modified_ns = 0
        while connection.ended is None:
            if self._stop_event.wait(LOOK_S):
                return "the daemon stops"
            connection.keep_alive(time.monotonic())
            if self._home.pause.exists() != is_paused or self._held_back:
                self._held_back = False  # the next stream sends that reply, unless it is paused too
                if not is_paused:
                    return "paused by its people"
                return "goes on"
            if not self._is_trusted(coordinator):
                return "this party's policy does not trust this coordinator any more"
            self._attempt_step("looking for decisions", partial(self._tell_decisions, connection))
            self._attempt_step("looking after attempts", self._answering.party.look_after)
            self._attempt_step("looking after certificate and budget", partial(self._renew_certificate, connection))
            self._write_status()
        return connection.ended.reason

    # The stream's thread calls these methods.

    def wants(self, id_: bytes) -> bool:
        # during a pause nothing is answered; the coordinator asks again after it
        return not self._home.pause.exists() and self._answering.wants(id_)

    def request(self, envelope: framing.Envelope) -> None:
        self._answering.request(envelope)

    def acknowledged(self, id_: bytes) -> None:
        self._answering.acknowledged(id_)

    def renewed(self, message: wire.Renewed) -> None:
        if message.problem or not message.grant:
            log.warning("the certificate was not renewed: %s", printable(message.problem) or "no reason given")
            return
        try:
            valid_until = trust.install(self._home, message.grant)
        except ConfigurationError as error:
            log.warning("the certificate was not renewed: %s", error.problem)
            return
        log.info("certificate renewed until %s; the next connection uses it", valid_until.date().isoformat())

    def _send_reply(self, reply: framing.Outgoing) -> None:
        with self._lock:
            if self._home.pause.exists():
                self._held_back = True
            elif self._connection is not None:
                self._connection.send_reply(reply)

    # While a stream lasts, these are done regularly.

    def _tell_decisions(self, connection: Connection) -> None:
        self._home.check_reachable()
        modified_ns = self._home.requests.stat().st_mtime_ns
        if modified_ns == self._decisions_modified_ns:
            return
        self._decisions_modified_ns = modified_ns
        requests = self._proposals.all()
        for request in requests:
            earlier_proposal = self._known_proposals.get(request.manifest)
            self._known_proposals[request.manifest] = request
            if earlier_proposal is not None and earlier_proposal.decision != request.decision:
                log.info("run %r: %s", request.run, request.decision)
                connection.send(wire.FromParty(decided=wire.Decided(run=request.run)))
            elif earlier_proposal is None and request.undecided:
                log.info(
                    "run %r waits for a decision: undersong-party approve %s", request.run, shell_path(request.run)
                )
            if request.ended_s and earlier_proposal is not None and not earlier_proposal.ended_s:
                self._notices.tell("run-ended", request.manifest, about=request.run)
        undecided_proposals = [request for request in requests if request.undecided]
        for request in undecided_proposals:
            self._notices.tell("request-waits", request.manifest, about=request.run)
        changed_plans = [
            {"run": request.run, "changes": list(request.changes)}
            for request in undecided_proposals
            if request.number > 1
        ]
        self._note_status(waiting=len(undecided_proposals), changed=changed_plans)

    def _renew_certificate(self, connection: Connection) -> None:
        now_s = time.monotonic()
        if self._renewal_checked_s and now_s - self._renewal_checked_s < RENEW_LOOK_S:
            return
        _, valid_until = trust.validity(self._home)
        self._renewal_checked_s = now_s
        self._note_status(certificate_until=valid_until.isoformat())
        datasets.check_retention(self._home, self._clock())
        if valid_until.timestamp() - self._clock() < EXPIRES_SOON_S:
            self._notices.tell("certificate-expires", valid_until.isoformat())
        budget = self._declared_budget()
        if budget is not None and self._epsilon_left() < BUDGET_LOW * budget.epsilon:
            self._notices.tell("budget-low", str(budget))
        if not trust.renewal_due(self._home, self._clock()):
            return
        renewal_request = trust.request(self._home, None)
        self._outbox.record(renewal_request, at=self._clock(), kind="renewal", answer_to="the certificate's age")
        connection.send(wire.FromParty(renew=wire.Renew(request=renewal_request)))

    def _is_trusted(self, coordinator: trust.TrustedCoordinator) -> bool:
        trust_state = coordinator.fingerprint, file_state(self._home.coordinator), file_state(self._home.policy)
        if trust_state == self._trust_seen:
            return True
        try:
            is_trusted = trust.trusted(self._home).fingerprint == coordinator.fingerprint
        except (UndersongError, OSError) as error:
            # Files that cannot be read now are no distrust; the party's own answers meet the same fault.
            return isinstance(error, (MachineFault, OSError)) or not self._home.is_reachable
        if is_trusted:
            self._trust_seen = trust_state
        return is_trusted

    def _make_hello(self, is_paused: bool) -> wire.Hello:
        settings = self._home.settings
        hello_message = wire.Hello(
            version=framing.VERSION,
            party=settings.party,
            software=SOFTWARE,
            embedder=self._assembled.party.embedder,
            boot=self._boot,
            held=self._reassembler.held(),
            paused=is_paused,
        )
        if settings.share_policy:
            hello_message.policy = json.dumps(policy.read(self._home).bounds.to_json())
        if settings.share_budget:
            hello_message.epsilon_left = self._epsilon_left()
        return hello_message

    def _declared_budget(self) -> Budget | None:
        self._ledger.refresh()
        return self._ledger.budget

    def _epsilon_left(self) -> float:
        budget = self._declared_budget()
        if budget is None:
            return 0.0
        return max(0.0, budget.epsilon - self._ledger.spent(budget.delta))

    # These methods serve the time without a stream.

    def _pause_after(self, stream_end: Ended, failure_count: int) -> float:
        if stream_end.reconnect_after_s < 0:
            raise ConfigurationError(
                f"the coordinator ended this connection for good: {stream_end.reason}",
                "talk to the operator; then start the daemon again",
            )
        if stream_end.refused:
            return self._backoff.refused_s * (0.5 + self._random.random())
        if stream_end.reconnect_after_s > 0:
            wait_s = max(self._backoff.first_s, min(stream_end.reconnect_after_s, 3600.0))
            return wait_s * (1.0 + 0.2 * self._random.random())
        return self._backoff.wait_s(failure_count, self._random.random())

    def _wait_between_streams(self, pause_s: float, stream_end: Ended) -> None:
        if stream_end.welcomed:
            self._note_status(state="waiting", problem=stream_end.reason)
        else:
            self._tell_away(stream_end.reason, pause_s)
        deadline_s = time.monotonic() + pause_s
        while not self._stop_event.is_set() and time.monotonic() < deadline_s:
            self._attempt_step("looking after attempts", self._answering.party.look_after)
            self._stop_event.wait(min(LOOK_S, max(0.0, deadline_s - time.monotonic())))
            self._write_status()

    def _tell_away(self, away_reason: str, pause_s: float) -> None:
        """Says since when nothing connects, and who helps: in the status, and in the log at first and once an hour."""
        now_s = self._clock()
        self._away_since_s = self._away_since_s or now_s
        since_words = time.strftime("%Y-%m-%d %H:%M", time.localtime(self._away_since_s))
        self._note_status(
            state="waiting",
            problem=f"{away_reason}, since {since_words}; nothing is lost",
            remedy="it is tried again by itself; if it lasts, ask IT: undersong-party check",
        )
        is_due = now_s >= self._away_told_s + AWAY_TOLD_S or away_reason != self._away_reason
        log.log(
            logging.WARNING if is_due else logging.DEBUG,
            "cannot connect: %s, since %s; nothing is lost; next try in %.1f s, told again in an hour",
            away_reason,
            since_words,
            pause_s,
        )
        if is_due:
            self._away_told_s = now_s
            self._away_reason = away_reason

    # These methods write the status file.

    def _note_status(self, **facts: Any) -> None:
        is_changed = any(self._status_facts.get(fact_name) != fact_value for fact_name, fact_value in facts.items())
        self._status_facts.update(facts)
        if is_changed:
            self._status_written_s = 0.0
        self._write_status()

    def _write_status(self) -> None:
        self._assembled.computation.keep_running()
        now_s = time.monotonic()
        refusals = dict(self._assembled.notes.refusals)
        if now_s - self._status_written_s < STATUS_S and self._status_written_s and refusals == self._refusals_written:
            return
        self._status_written_s = now_s
        self._refusals_written = refusals
        connection = self._latest_connection
        if connection is not None and connection.welcome is not None and connection.ended is None:
            self._status_facts["heard_s"] = self._clock() - connection.silent_s(now_s)
            self._status_facts["longest_silence_s"] = connection.longest_silence_s
        last_answer = self._answering.party.last
        if last_answer:
            answer_facts = {"answered_s": last_answer[0], "answered": last_answer[1]}
        else:
            answer_facts = {}
        refusal_facts = [{"at_s": at_s, "problem": problem} for problem, at_s in refusals.items()]
        current_facts = {
            "refused": refusal_facts,
            "cautions": dict(self._assembled.notes.cautions),
            "written_s": self._clock(),
        }
        status_facts = {**self._status_facts, **answer_facts, **current_facts}
        self._attempt_step("writing the status", partial(write_json, self._home.status, status_facts))
        self._attempt_step("writing the figures", self._write_figures)

    def _write_figures(self) -> None:
        """Writes the file for a monitor, in Prometheus's text format, which another account reads."""
        if self._figures_file is None:
            return
        link_state = self._status_facts["state"]
        certificate_end = self._status_facts.get("certificate_until")
        declared_budget = self._declared_budget()
        figure_values = {
            "connected": float(link_state == "connected"),
            "paused": float(self._home.pause.exists()),
            "last_contact_seconds": self._status_facts.get("heard_s"),
            "requests_waiting": self._status_facts.get("waiting"),
            "certificate_expires_seconds": None
            if certificate_end is None
            else datetime.fromisoformat(certificate_end).timestamp(),
            "epsilon_budget": None if declared_budget is None else declared_budget.epsilon,
            "epsilon_left": None if declared_budget is None else self._epsilon_left(),
            "held_up_seconds": min((held_step.since_s for held_step in self._held_steps.all()), default=0.0),
            "written_seconds": self._clock(),
        }
        figure_lines = (
            f"# HELP undersong_party_{figure_name} {METRICS[figure_name]}\n# TYPE undersong_party_{figure_name} gauge\n"
            f"undersong_party_{figure_name} {figure_value!r}\n"
            for figure_name, figure_value in figure_values.items()
            if figure_value is not None
        )
        replace_file(self._figures_file, "".join(figure_lines).encode("ascii"), durable=False, mode=0o644)


def _hello_text(hello: wire.Hello, address: str) -> str:
    shared_words = ""
    if hello.HasField("epsilon_left"):
        shared_words = f", epsilon left {hello.epsilon_left:.3f}"
    if hello.policy:
        shared_words += f", policy {hello.policy}"
    return f"to {address}: party {hello.party}, {hello.software}, embedder {hello.embedder.hex()[:16]}...{shared_words}"


# The coordinator may learn few reasons for not starting, each one code of ``DoesNotStart``. They depend on settings,
# policy, certificate and clock alone, and are sent before any record, ledger or model is opened. Every other reason is
# shown to this party's own people only.


def check_start(home: PartyHome, *, clock: Callable[[], float] = time.time, use_proxy: bool = True) -> None:
    """Checks settings, policy, certificate and clock before the daemon starts; reports a problem to the coordinator.

    Args:
        clock: returns seconds since the epoch.
        use_proxy: True connects through the environment's proxy.

    Raises:
        ConfigurationError, PrivacyRefusal, TransportError: a problem that prevents the start, with its remedy.
    """
    trust.coordinator(home)
    trust.validity(home)
    try:
        _ = home.settings
    except WrittenByAnotherVersion as refusal:
        _refuse_start(home, wire.DoesNotStart.VERSION, refusal, clock, use_proxy)
    try:
        policy.read(home)
    except WrittenByAnotherVersion as refusal:
        _refuse_start(home, wire.DoesNotStart.VERSION, refusal, clock, use_proxy)
    except UndersongError as refusal:
        _refuse_start(home, wire.DoesNotStart.POLICY, refusal, clock, use_proxy)
    trust.trusted(home)  # A coordinator that the policy does not trust is told nothing.
    try:
        trust.check_clock(home, clock())
    except TransportError as refusal:
        # The coordinator gets this only if it accepts the certificate. Then this machine's clock is the wrong one.
        _refuse_start(home, wire.DoesNotStart.CLOCK, refusal, clock, use_proxy)


def _refuse_start(
    home: PartyHome, reason: wire.DoesNotStart, refusal: UndersongError, clock: Callable[[], float], use_proxy: bool
) -> NoReturn:
    try:
        _tell_reason(home, reason, clock, use_proxy=use_proxy)
    except UndersongError as error:
        log.warning("the coordinator was not told that this daemon does not start: %s", error.problem)
    raise refusal


def _tell_reason(home: PartyHome, reason: wire.DoesNotStart, clock: Callable[[], float], *, use_proxy: bool) -> None:
    """Sends the reason in one Hello to the first address that answers. Raises TransportError if none does."""
    coordinator = trust.coordinator(home)
    party_name = trust.certified_name(home)
    hello_message = wire.Hello(
        version=framing.VERSION,
        party=party_name,
        software=SOFTWARE,
        boot=os.urandom(framing.ID_BYTES),
        does_not_start=reason,
    )
    party_outbox = Outbox(home)
    failed_error = TransportError(
        "coordinator.json names no address of the coordinator",
        "have the operator send a new grant: undersong-party enroll --renew",
    )
    reason_name = wire.DoesNotStart.Name(reason).lower()
    for coordinator_address in coordinator.addresses:
        summary = f"to {coordinator_address}: party {party_name}, {SOFTWARE}, does not start: {reason_name}"
        party_outbox.record(summary.encode(), at=clock(), kind="hello", answer_to="the daemon does not start")
        connection = Connection(
            coordinator_address,
            coordinator,
            keys.credential(home),
            hello=hello_message,
            reassembler=framing.Reassembler("coordinator"),
            listener=Listener(),
            use_proxy=use_proxy,
        )
        try:
            connection.wait_welcome(limit_s=TELL_REASON_S)
        except TransportError as error:
            failed_error = error
        else:
            log.info("the coordinator was told why this daemon does not start: %s", wire.DoesNotStart.Name(reason))
            return
        finally:
            connection.close("the daemon does not start")
    raise failed_error
