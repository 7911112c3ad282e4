"""The coordinator as a program: its home folder, and the process that serves parties and drives runs."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.lock import holding, is_held
from undersong_protocol.enrolment import TOKEN_BYTES, EnrolmentRequest, Grant, Package, check_address, check_party_name
from undersong_server.authority import SERVER_DAYS, Authority
from undersong_server.coordinator.grpc_driver import RunDriver
from undersong_server.coordinator.metrics import Metrics
from undersong_server.coordinator.parties import ENROLLED, REVOKED, Registry
from undersong_server.release.signature import Signer
from undersong_server.runs.folder import ENDED, RunFolder, read_json, replace_json

log = logging.getLogger(__name__)

DEFAULT_BIND = "0.0.0.0:7443"
DEFAULT_METRICS = "127.0.0.1:9464"
INVITATION_DAYS = 14
RENEW_BEFORE_DAYS = 30
POLL_S = 0.25


@dataclass(frozen=True)
class CoordinatorSettings:
    """``coordinator.json``.

    Attributes:
        name: the coordinator's name, as the parties read it.
        bind: host:port that the server listens on; nothing a party ever sees.
        addresses: host:port by which parties reach it, tried in order.
        metrics: host:port of the HTTP endpoint with metrics and health; "" for none.
    """

    name: str
    bind: str
    addresses: tuple[str, ...]
    metrics: str = DEFAULT_METRICS

    @property
    def server_names(self) -> list[str]:
        """The names of the server's certificate: the hosts of the addresses."""
        return list(dict.fromkeys(_host_port(address)[0] for address in self.addresses))


class CoordinatorHome:
    """A coordinator's folder: settings, keys, registry, runs. Everything a backup needs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        value = read_json(path / "coordinator.json")
        if value is None:
            raise ConfigurationError(
                f"{path}: no coordinator lives here",
                "make one with `undersong coordinator init`, or name it with --home",
            )
        self.settings = CoordinatorSettings(**{**value, "addresses": tuple(value["addresses"])})

    @classmethod
    def create(cls, path: Path, settings: CoordinatorSettings, *, now: float) -> CoordinatorHome:
        """Makes the folder with fresh keys. Raises ConfigurationError where one exists, or a name is none."""
        if (path / "coordinator.json").exists():
            raise ConfigurationError(f"{path}: holds a coordinator already", "name another --home")
        check_party_name(settings.name)
        for address in settings.addresses:
            check_address(address)
        _host_port(settings.bind)
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        Authority.create(path / "authority", settings.name, settings.server_names, now=now)
        Registry(path / "registry.sqlite").close()
        replace_json(path / "coordinator.json", asdict(settings), durable=True)
        return cls(path)

    def authority(self) -> Authority:
        return Authority.open(self.path / "authority")

    def registry(self) -> Registry:
        return Registry(self.path / "registry.sqlite")

    def run(self, name: str) -> RunFolder:
        """A run's folder by the run's name (which may not exist yet)."""
        if "/" in name or name.startswith("."):
            raise ConfigurationError(f"{name!r} is no name of a run", "see `undersong run list`")
        return RunFolder(self.path / "runs" / name)

    def runs(self) -> list[RunFolder]:
        """Every run, by name."""
        folder = self.path / "runs"
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return [run for run in map(RunFolder, found) if run.exists]

    @property
    def served(self) -> bool:
        """Whether a process serves this home now."""
        return is_held(self._lock)

    @property
    def connected(self) -> list[str]:
        """Parties with a stream to the serving process, a moment ago; nobody where there is no such process."""
        serving = read_json(self.path / "serving.json")
        return [] if serving is None or not self.served else list(serving.get("connected", ()))

    def serving(self) -> AbstractContextManager[None]:
        """Held by the one serving process. Raises ConfigurationError where another one has it."""
        return holding(
            self._lock, ConfigurationError(f"{self.path}: another process serves this coordinator", "stop it first")
        )

    @property
    def _lock(self) -> Path:
        return self.path / "serving.lock"

    # Parties

    def invite(self, name: str, *, now: float, days: float = INVITATION_DAYS) -> Package:
        """A new invitation; ``sign`` it with the authority's signing key."""
        authority, registry = self.authority(), self.registry()
        expires = int(now + days * 86400)
        token = os.urandom(TOKEN_BYTES)
        registry.invite(check_party_name(name), token, expires_at=expires, now=now)
        registry.close()
        return Package(
            coordinator=self.settings.name,
            addresses=self.settings.addresses,
            server_name=self.settings.server_names[0],
            ca_certificate=authority.certificate_pem.decode("ascii"),
            signing_key=authority.signing_public,
            party=name,
            token=token,
            expires_s=expires,
        )

    def sign(self, request: EnrolmentRequest, *, now: float, days: float | None = None) -> bytes:
        """The grant's bytes for a request that holds its invitation's token, or for a renewal by the same identity.

        Raises ConfigurationError that says what does not fit.
        """
        registry = self.registry()
        try:
            if request.renewal:
                known = registry.party(request.party)
                if known.state != ENROLLED or known.identity != request.identity.hex():
                    raise ConfigurationError(
                        f"{request.party}: only the enrolled party itself renews its certificate",
                        "revoke it and invite it under another name if its identity key was lost",
                    )
            else:
                request.check_token(registry.token(request.party, now=now))
            authority = self.authority()
            lifetime = {} if days is None else {"days": days}
            issued = authority.issue_party(request.party, request.tls_key(), now=now, **lifetime)
            registry.enrol(request.party, request.identity, issued, now=now)
        finally:
            registry.close()
        grant = Grant(
            coordinator=self.settings.name,
            party=request.party,
            identity=request.identity,
            certificate=issued.pem.decode("ascii"),
            chain=(authority.certificate_pem.decode("ascii"),),
        )
        return grant.sign(authority.signing_key)

    def renew(self, name: str, request: bytes) -> bytes:
        """The grant for a renewal that arrived over the stream of the party ``name``."""
        parsed = EnrolmentRequest.parse(request)
        if parsed.party != name or not parsed.renewal:
            raise ConfigurationError("a stream renews the certificate of its own party only")
        return self.sign(parsed, now=time.time())

    def revoke(self, name: str, reason: str, *, now: float) -> None:
        """Shuts a party out for good; a serving process ends its stream within seconds."""
        registry = self.registry()
        registry.revoke(name, reason, now=now)
        self.authority().write_revocations(registry.revoked_serials(), now=now)
        registry.close()


class Coordinator:
    """The serving process: parties on one side, runs on the other, the operator's wishes in between."""

    def __init__(
        self, home: CoordinatorHome, *, public_cache: Path, environment: Mapping[str, str], keepalive_s: float
    ) -> None:
        from undersong_server.coordinator.grpc_server import (
            GrpcServer,  # gRPC reads the cipher suites when it is first imported
        )
        from undersong_server.coordinator.grpc_transport import GrpcTransport
        from undersong_server.coordinator.metrics import Endpoint

        self._home = home
        self._public_cache = public_cache
        self._environment = environment
        self._stopping = threading.Event()
        self._drivers: dict[str, RunDriver] = {}
        self.metrics = Metrics()
        self._registry = home.registry()
        self._authority = home.authority()
        self._renew_server()
        self.transport = GrpcTransport(self.metrics)
        host, port = _host_port(home.settings.bind)
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
        self.endpoint: Endpoint | None = None
        if home.settings.metrics:
            self.endpoint = Endpoint(*_host_port(home.settings.metrics), self.metrics, self.health)
        self._since = time.time()
        self._told: list[str] = []
        self._tell([])

    def health(self) -> dict[str, Any]:
        """What ``/healthz`` says."""
        return {
            "status": "stopping" if self._stopping.is_set() else "ok",
            "connected": self.server.connected,
            "runs": {run.name: run.status()["state"] for run in self._home.runs()},
        }

    def _tell(self, connected: list[str]) -> None:
        """Renews what commands read of this process."""
        self._told = connected
        replace_json(
            self._home.path / "serving.json",
            {
                "pid": os.getpid(),
                "port": self.server.port,
                "metrics_port": self.endpoint.port if self.endpoint else None,
                "since": self._since,
                "connected": connected,
            },
            durable=False,
        )

    def stop(self) -> None:
        self._stopping.set()

    def serve(self) -> None:
        """Until :meth:`stop` is called. Runs that were under way go on at the next start."""
        log.info("serving %s on port %d", self._home.settings.name, self.server.port)
        reviewed = 0.0
        while not self._stopping.is_set():
            for run in self._home.runs():
                try:
                    self._tend(run)
                except UndersongError as error:
                    log.error("run %s: %s", run.name, error.problem)
            if (connected := self.server.connected) != self._told:
                self._tell(connected)
            if time.monotonic() - reviewed > 60.0:
                reviewed = time.monotonic()
                self._renew_server()
                self._figures()
            self._stopping.wait(POLL_S)
        for driver in self._drivers.values():
            driver.interrupt("running")
        for driver in self._drivers.values():
            driver.join(10.0)
        self.server.close()
        if self.endpoint is not None:
            self.endpoint.close()

    def _tend(self, run: RunFolder) -> None:
        """Brings what a run does in line with what the operator wants."""
        action, number = run.wanted()
        if action is None:
            return
        driver = self._drivers.get(run.name)
        alive = driver is not None and driver.alive
        if action == "run":
            status = run.status()
            # A run that ended is begun again only by a newer wish (after a failure, `run resume`).
            carried_out = status["state"] in ENDED and int(status.get("number", 0)) >= number
            if not alive and not carried_out and status["state"] not in ("finished", "stopped"):
                driver = RunDriver(
                    run,
                    self.transport,
                    expelled=self._expelled,
                    public_cache=self._public_cache,
                    environment=self._environment,
                    number=number,
                    signer=Signer(self._home.settings.name, self._authority),
                )
                self._drivers[run.name] = driver
                driver.start()
            return
        becomes: Any = "paused" if action == "pause" else "stopped"
        if alive and driver is not None:
            driver.interrupt(becomes)
        elif run.status()["state"] not in (*ENDED, becomes):
            run.write_status({**run.status(), "state": becomes, "number": number}, durable=True)

    def _expelled(self) -> Sequence[str]:
        return [party.name for party in self._registry.parties() if party.state == REVOKED]

    def _renew_server(self) -> None:
        """A new server certificate where the old one ends soon or lacks a name; handshakes take it from then on."""
        now, names = time.time(), self._home.settings.server_names
        soon = self._authority.server_expires_at - now < RENEW_BEFORE_DAYS * 86400
        if soon or sorted(self._authority.server_names) != sorted(names):
            self._authority.issue_server(names, now=now, days=SERVER_DAYS)
            log.info("the server's certificate was renewed")

    def _figures(self) -> None:
        states: dict[str, float] = {}
        for run in self._home.runs():
            state = run.status()["state"]
            states[state] = states.get(state, 0.0) + 1.0
        self.metrics.replace("undersong_runs", states, "state")
        ends = {party.name: party.certificate_expires_at for party in self._registry.parties()}
        ends["coordinator"] = self._authority.server_expires_at
        self.metrics.replace(
            "undersong_certificate_expires_seconds", {name: end for name, end in ends.items() if end}, "name"
        )


def serve(home: CoordinatorHome, *, public_cache: Path, environment: Mapping[str, str], keepalive_s: float) -> None:
    """Serves until SIGTERM or SIGINT."""
    # Three descriptors a connection: the party's, and both ends of the way to gRPC.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with home.serving():
        coordinator = Coordinator(home, public_cache=public_cache, environment=environment, keepalive_s=keepalive_s)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: coordinator.stop())
        coordinator.serve()


def _host_port(address: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]*)):(\d{1,5})", address)
    if match is None or int(match[3]) > 65535:
        raise ConfigurationError(f"{address!r} is not host:port", "write for example 0.0.0.0:7443")
    return match[1] or match[2], int(match[3])
