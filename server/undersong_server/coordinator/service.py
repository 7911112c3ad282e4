"""The serving process of a coordinator: it serves the parties and drives the runs."""

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from undersong_common.errors import MachineFault, UndersongError
from undersong_common.program.machine import HeldSteps, check_descriptors
from undersong_common.program.notices import EXPIRES_SOON_S, Notices
from undersong_server.authority import SERVER_DAYS
from undersong_server.cluster import Cluster, connected
from undersong_server.coordinator.grpc_transport import GrpcTransport
from undersong_server.coordinator.home import CoordinatorHome, Serving, host_port
from undersong_server.coordinator.metrics import HELD_UP, FolderMetrics, Metrics, MetricsServer
from undersong_server.coordinator.parties import CLOCKS_DIFFER_S, REVOKED
from undersong_server.coordinator.run_driver import Endings, GrpcRunDriver
from undersong_server.database.turn import turn
from undersong_server.release.files import Signer
from undersong_server.runs.folder import ENDED, FINAL, STATE_AFTER, UNREADABLE, RunFolder, RunStatus
from undersong_server.runs.planning import coordinator_task

log = logging.getLogger(__name__)

RENEW_BEFORE_DAYS = 30  # A server certificate that ends sooner is renewed.
REVIEW_S = 60.0  # time between two looks at the certificates
STOP_S = 10.0  # longest wait for a run to reach its next step when the process stops
POLL_S = 0.25  # pause between two looks at the requested actions
DESCRIPTORS = 8192  # three per connection: the party's, and both ends of the relay to gRPC
REVIEWING = "reviewing certificates"
RUN_STEP = "run "  # start of the name of a step that serves one run


class Coordinator:
    """One serving process of a home. Parties connect to it; it carries out the actions that the operator requests.

    Args:
        public_cache: file with embeddings of public texts.
        environment: variables in which generators find their keys.
        keepalive_s: seconds of silence on a stream after which either side sends a ping.
        cluster: shares the work of the runs' models and embeddings.
        stopping: ends the process once it is set.
    """

    def __init__(
        self,
        home: CoordinatorHome,
        *,
        public_cache: Path,
        environment: Mapping[str, str],
        keepalive_s: float,
        cluster: Cluster | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        # It is imported here because gRPC reads the cipher suites, which the program sets, at its first import.
        from undersong_server.coordinator.grpc_server import GrpcServer

        self._home = home
        self._public_cache = public_cache
        self._environment = environment
        self._cluster = cluster
        self._stopping = stopping or threading.Event()
        self._drivers: dict[str, GrpcRunDriver] = {}
        self._held = HeldSteps(home.held_steps_file, root=home.path / "coordinator.json")
        self.metrics = Metrics()
        self.metrics.registry.register(
            FolderMetrics(lambda: Counter(self._states().values()), self._certificates, self._held.all)
        )
        self._registry = home.registry()
        self._authority = home.authority()
        self._renew_server()
        self.transport = GrpcTransport(self.metrics, epoch=home.epoch or 0)
        self._endings = Endings(self.transport, self._held)
        host, port = host_port(home.settings.bind)
        self.server = GrpcServer(
            host,
            port,
            coordinator=home.settings.name,
            authority=self._authority,
            registry=self._registry,
            transport=self.transport,
            metrics=self.metrics,
            renew=home.renew,
            keepalive_s=keepalive_s,
        )
        self.endpoint: MetricsServer | None = None
        if home.settings.metrics:
            self.endpoint = MetricsServer(*host_port(home.settings.metrics), self.metrics.registry, self.health)
        self._notices = Notices(home.settings.notify, home.settings.name)
        self._under_way: set[str] = set()  # names of the runs that were under way at the last check
        self._listed: list[RunFolder] = []
        self._since = time.time()
        self._written: dict[str, float] = {}
        self._stated_at: dict[str, float] = {}  # time of the last statement since this process began, by party
        self._write_serving({})

    def health(self) -> dict[str, Any]:
        """The answer of ``/healthz``: "status", "connected" parties, the state of "runs", and what is "held_up"."""
        machine_steps = [step for step in self._held.all() if step.of_machine]
        running_status = HELD_UP if machine_steps else "ok"
        return {
            "status": "stopping" if self._stopping.is_set() else running_status,
            "connected": self.server.connected,
            "runs": self._states(),
            "held_up": [asdict(step) for step in self._held.all()],
        }

    def _write_serving(self, connected_since: Mapping[str, float]) -> None:
        self._written = dict(connected_since)
        metrics_port = self.endpoint.port if self.endpoint else None
        clock_offset_s = time.time() - time.monotonic()
        self._stated_at |= {name: clock_offset_s + since_s for name, since_s in connected_since.items()}
        names = tuple(connected_since)
        self._home.write_serving(
            Serving(os.getpid(), self.server.port, metrics_port, self._since, names, dict(self._stated_at))
        )

    def stop(self) -> None:
        self._stopping.set()

    def serve(self) -> None:
        """Serves until :meth:`stop` is called. Runs that were under way go on at the next start."""
        log.info("serving %s on port %d", self._home.settings.name, self.server.port)
        reviewed_at_s = reviewed_clock_offset_s = 0.0  # offset: wall clock, which people may set, less monotonic one
        self._endings.start()
        while not self._stopping.is_set():
            self._held.attempt("copying what other machines requested", self._copy_requests)
            self._held.attempt("looking for runs", self._tend_all)
            if (connected_since := self.server.connected_since) != self._written:
                self._held.attempt("noting who is connected", partial(self._write_serving, connected_since))
            now_s = time.monotonic()
            clock_offset_s = time.time() - time.monotonic()
            is_review_due = (
                now_s - reviewed_at_s > REVIEW_S or abs(clock_offset_s - reviewed_clock_offset_s) > CLOCKS_DIFFER_S
            )
            if is_review_due and self._held.attempt(REVIEWING, self._review):
                reviewed_at_s, reviewed_clock_offset_s = now_s, clock_offset_s
            self._stopping.wait(POLL_S)
        for driver in self._drivers.values():
            driver.interrupt("running")
        # All threads share one deadline: until they end, the next serving process gets no parties.
        give_up_at_s = time.monotonic() + STOP_S
        for thread in [driver.thread for driver in self._drivers.values()]:
            if thread.is_alive():  # If the database was away, the thread has not begun.
                thread.join(max(0.0, give_up_at_s - time.monotonic()))
        self._endings.stop()
        self._held.close()
        self.server.close()
        if self.endpoint is not None:
            self.endpoint.close()

    def _copy_requests(self) -> None:
        self._home.copy_shared("plan.json", "requested.json")

    def _tend_all(self) -> None:
        """Carries out the requested action of every run. A fault of one run holds up that run only."""
        runs = self._home.runs()
        steps = {f"{RUN_STEP}{run.name}": run for run in runs}
        for step, run in steps.items():
            self._held.attempt(step, partial(self._tend, run))
        self._held.keep_only(set(steps), RUN_STEP)

    def _review(self) -> None:
        self._renew_server()
        self._tell_of_certificates()
        if "authority" in self._authority.not_yet_valid(time.time()):
            raise MachineFault(
                "the authority's own certificate is not yet valid, so that no hospital connects",
                "it was made while this machine's clock was ahead, or the clock is behind now: correct the clock, or"
                " make the coordinator anew",
                code="authority-ahead",
            )

    def drives(self, run: str) -> bool:
        """True while a run of that name is under way here, until its last status is written."""
        driver = self._drivers.get(run)
        return driver is not None and driver.thread.is_alive()

    def _tend(self, run: RunFolder) -> None:
        """Carries out the requested action of a run."""
        requested_action = run.requested()
        if requested_action.action is None:
            return
        driver = None
        if self.drives(run.name):
            driver = self._drivers[run.name]
        status = run.status()
        self._tell(run.name, status, requested_action.number)
        # A run that ended begins again only by a newer request (after a failure, `run resume`).
        is_carried_out = status.state in ENDED and status.number >= requested_action.number
        next_state = STATE_AFTER.get(requested_action.action)
        is_given_up = status.state == "failed" and next_state == "stopped"
        if next_state is not None and driver is not None:
            driver.interrupt(next_state)
        elif next_state is not None and (is_given_up or status.state not in (*ENDED, next_state)):
            final_status = replace(status, state=next_state, number=requested_action.number, waiting=None, error=None)
            run.write_status(final_status, durable=True)
        elif driver is None and (status.state in FINAL or is_carried_out or (next_state and status.state in ENDED)):
            self._endings.note(run, status)
        elif driver is None and next_state is None:
            self._endings.forget(run)
            self._drivers[run.name] = self._make_driver(run, requested_action.number)
            self._drivers[run.name].start()

    def _tell(self, run: str, status: RunStatus, number: int) -> None:
        """Sends a notice of a run that waits for an approval, or that has ended while this process serves."""
        if status.waiting is not None and status.waiting.whom == "people":
            self._notices.tell("request-waits", f"{run} {number}", about=run)
        if status.state not in ENDED:
            self._under_way.add(run)
        elif run in self._under_way:
            self._under_way.remove(run)
            self._notices.tell("run-ended", f"{run} {number}", about=run)

    def _tell_of_certificates(self) -> None:
        for party_name, expires_at in self._certificates().items():
            if expires_at - time.time() < EXPIRES_SOON_S:
                self._notices.tell("certificate-expires", f"{party_name} {expires_at}", about=party_name)

    def _make_driver(self, run: RunFolder, number: int) -> GrpcRunDriver:
        return GrpcRunDriver(
            run,
            self.transport,
            expelled=lambda: [party.name for party in self._registry.parties() if party.state == REVOKED],
            public_cache=self._public_cache,
            environment=self._environment,
            number=number,
            cluster=self._cluster,
            epoch=self._home.epoch,
            held=self._held,
            signer=Signer(self._home.settings.name, self._authority, self._registry.identities()),
        )

    def _renew_server(self) -> None:
        """Issues a new server certificate where the old one does not serve; later handshakes use it.

        Such a one ends soon, lacks a name, or is not yet valid, because it was issued while the clock was ahead.
        """
        now_s = time.time()
        server_names = self._home.settings.server_names
        is_expiring = self._authority.server_expires_at - now_s < RENEW_BEFORE_DAYS * 86400
        is_not_valid_yet = "server" in self._authority.not_yet_valid(now_s)
        if is_expiring or is_not_valid_yet or sorted(self._authority.server_names) != sorted(server_names):
            self._authority.issue_server(server_names, now=now_s, days=SERVER_DAYS)
            if is_not_valid_yet:
                reason = ": it was not yet valid, issued while the clock was ahead"
            else:
                reason = ""
            log.info("the server's certificate was renewed%s", reason)

    def _states(self) -> dict[str, str]:
        """State by run; the runs of the last list where they cannot be listed now."""
        with suppress(UndersongError):
            self._listed = self._home.runs()
        return {run.name: _shown_state(run) for run in self._listed}

    def _certificates(self) -> dict[str, float]:
        """End of each certificate in use by its owner, seconds since the epoch."""
        parties = self._registry.parties()
        end_by_owner = {party.name: party.certificate_expires_at for party in parties if party.state != REVOKED}
        end_by_owner["coordinator"] = self._authority.server_expires_at
        return {party_name: expires_at for party_name, expires_at in end_by_owner.items() if expires_at}


def _shown_state(run: RunFolder) -> str:
    try:
        return run.status().state
    except UndersongError:
        return UNREADABLE


def serve(
    home: CoordinatorHome,
    *,
    public_cache: Path,
    environment: Mapping[str, str],
    keepalive_s: float,
    ray: str | None,
    standby: bool = False,
) -> None:
    """Serves the parties until SIGTERM or SIGINT. Arguments as of :class:`Coordinator`; ``ray`` is a cluster's address.

    Args:
        standby: waits until no other process serves the coordinator.

    Raises Superseded when another process has taken over, Away when the database stays away.
    """
    check_descriptors(DESCRIPTORS)
    with ExitStack() as stack:
        cluster = stack.enter_context(connected(ray))
        stopping = threading.Event()  # A signal or the loss of this process's turn sets it.
        serving_turn = stack.enter_context(
            turn(
                home.storage,
                home.candidate(),
                stopping.set,
                standby=standby,
                meanwhile=partial(_copy_runs_of_others, home),
            )
        )
        home.copy_shared()
        coordinator = Coordinator(
            home,
            public_cache=public_cache,
            environment=environment,
            keepalive_s=keepalive_s,
            cluster=cluster,
            stopping=stopping,
        )
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, lambda _number, _frame: stopping.set())
        coordinator.serve()
        if serving_turn.lost_by is not None:
            raise serving_turn.lost_by


def _copy_runs_of_others(home: CoordinatorHome) -> None:
    """Copies what the serving machine has kept of the runs, so that this one could go on with them."""
    for run in home.copy_shared():
        _check_public_files(run)


def _check_public_files(run: RunFolder) -> None:
    """Tells the operator of a standby early which public files of a run are missing on its machine."""
    try:
        stored_plan = run.planned()
        task = coordinator_task(stored_plan.task, Path(stored_plan.folder), stored_plan.roster)
        files = [task.locate(file) for generator in task.generators for file in generator.files]
        problem = ", ".join(f"{path} is missing" for path in files if not path.exists())
    except UndersongError as error:
        problem = error.problem
    except (TypeError, KeyError):
        problem = "its plan is of another release"
    if problem:
        log.warning("run %s could not be continued here: %s", run.name, problem)
