"""A coordinator's folder: settings, keys, runs, and the enrolment of parties in its registry."""

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.files import holding, is_held, replace_file
from undersong_common.printable import counted
from undersong_common.program import moving
from undersong_common.program.machine import HeldStep, held_steps, named_faults
from undersong_common.version import SOFTWARE
from undersong_protocol.agreement.enrolment import (
    MOST_ADDRESSES,
    TOKEN_BYTES,
    EnrolmentRequest,
    Grant,
    Package,
    check_address,
    check_party_name,
)
from undersong_server import defaults
from undersong_server.authority import AUTHORITY_DAYS, PARTY_DAYS, Authority
from undersong_server.coordinator.parties import ENROLLED, SCHEMA, SCHEMA_VERSION, Registry
from undersong_server.database.storage import Storage
from undersong_server.database.turn import Candidate
from undersong_server.runs.folder import RunFolder, RunStatus, read_json, replace_json

LONGEST_FILE_NAME = 255  # bytes


@dataclass(frozen=True)
class CoordinatorSettings:
    """The settings of a coordinator, which its folder keeps as ``coordinator.json``.

    Attributes:
        name: the coordinator's name, as the parties read it.
        bind: host:port that the server listens on; it may differ from the addresses.
        addresses: host:port by which parties reach it, tried in order.
        metrics: host:port of the HTTP endpoint with metrics and health; "" for none.
        drill: True for rehearsals with invented records only; every plan and output here says so.
        notify: command or address that is told when something waits for people, as
            :mod:`undersong_common.program.notices` says; "": none.
        storage: connection string of the database that holds registry, journals and runs (--storage); "": this folder.
        operator, contact: legal name of who runs it, and how hospitals reach a person; "" where task files say it.
    """

    name: str
    bind: str
    addresses: tuple[str, ...]
    metrics: str = defaults.METRICS
    drill: bool = False
    notify: str = ""
    storage: str = ""
    operator: str = ""
    contact: str = ""

    @property
    def server_names(self) -> list[str]:
        """The names of the server's certificate: the hosts of the addresses."""
        return list(dict.fromkeys(host_port(address)[0] for address in self.addresses))


@dataclass(frozen=True)
class Serving:
    """Facts about the serving process, which it writes into ``serving.json``.

    Attributes:
        port, metrics_port: ports that it listens on; ``metrics_port`` is None without metrics.
        since: when it started, seconds since the epoch.
        connected: names of the parties with a stream, a moment ago.
        stated_at: time at which each party, connected or away again, has connected last and stated its facts.
    """

    pid: int
    port: int
    metrics_port: int | None
    since: float
    connected: tuple[str, ...]
    stated_at: Mapping[str, float] = field(default_factory=dict)


class CoordinatorHome:
    """The folder of a coordinator, with its settings, keys, registry and runs: all that a backup needs.

    Raises ConfigurationError where ``path`` holds no coordinator.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = path / "serving.lock"
        if moving.is_moving(path):
            raise ConfigurationError(
                f"{path}: its move to the service's account or back was interrupted",
                "go on with it: the same `undersong coordinator service install` or `service remove` again",
                code="moving",
            )
        home_json = read_json(path / "coordinator.json")
        if home_json is None:
            raise ConfigurationError(
                f"{path}: holds no coordinator",
                "make one with `undersong coordinator init`, or name it with --home",
                code="no-coordinator",
            )
        try:
            self.settings = CoordinatorSettings(**{**home_json, "addresses": tuple(home_json["addresses"])})
        except (TypeError, KeyError):
            raise ConfigurationError(
                f"{path / 'coordinator.json'}: has other keys than this release writes",
                "use the release that wrote it, or restore it from a backup",
                code="damaged",
            ) from None

    @classmethod
    def create(cls, path: Path, settings: CoordinatorSettings, *, now: float) -> "CoordinatorHome":
        """Makes the folder with fresh keys; without ``bind`` it listens at the port of its first address.

        Raises ConfigurationError if the folder holds a coordinator, or a name or address is invalid.
        """
        if (path / "coordinator.json").exists():
            raise ConfigurationError(
                f"{path}: holds a coordinator already", "name another --home", code="coordinator-exists"
            )
        check_party_name(settings.name)
        if not 1 <= len(settings.addresses) <= MOST_ADDRESSES:
            raise ConfigurationError(
                f"the coordinator has {counted(len(settings.addresses), 'address', 'addresses')} for hospitals,"
                " too few or too many",
                f"give 1 to {MOST_ADDRESSES}",
                code="address-count",
            )
        for address in settings.addresses:
            check_address(address)
            if host_port(address)[0] in ANY_ADDRESS:
                raise ConfigurationError(
                    f"{address}: stands for every address of this machine, so no party can connect to it",
                    "name the host as the hospitals reach it, and this one with --bind",
                    code="address-of-nobody",
                )
        if not settings.bind:
            _, port = host_port(settings.addresses[0])
            settings = replace(settings, bind=f"{defaults.BIND_HOST}:{port}")
        host_port(settings.bind)
        if settings.metrics:
            host_port(settings.metrics)
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        home_storage = Storage(path, settings.storage, SCHEMA, SCHEMA_VERSION)
        home_storage.create()
        new_authority = Authority.create(path / "authority", settings.name, settings.server_names, now=now)
        home_storage.record_owner(new_authority.fingerprint)
        replace_json(path / "coordinator.json", asdict(settings), durable=True)
        return cls(path)

    def change(self, **changes: Any) -> None:
        """Writes changed settings; a serving process reads them at its next start."""
        self.settings = replace(self.settings, **changes)
        replace_json(self.path / "coordinator.json", asdict(self.settings), durable=True)

    def authority(self) -> Authority:
        return Authority.open(self.path / "authority")

    @cached_property
    def storage(self) -> Storage:
        """The storage of the registry, of the journals and of all that another machine needs to go on."""
        return Storage(self.path, self.settings.storage, SCHEMA, SCHEMA_VERSION)

    @property
    def epoch(self) -> int | None:
        """This process's epoch, once it serves."""
        return self.storage.epoch

    def registry(self) -> Registry:
        return Registry(self.storage.registry())

    def candidate(self, holder: str = "") -> Candidate:
        """This process as a candidate to serve, which ``holder`` names; "" for machine and folder."""
        address_words = ", ".join(self.settings.addresses)
        drill_words = str(self.settings.drill)
        return Candidate(
            holder or f"{socket.gethostname()}:{self.path.absolute()}",
            self.settings.name,
            self.authority().fingerprint,
            {"release": SOFTWARE, "name": self.settings.name, "addresses": address_words, "drill": drill_words},
            self.hold,
        )

    def copy_shared(self, *names: str) -> list[RunFolder]:
        """Copies run files that other machines have put into the database; returns runs whose plan is new or changed.

        Args:
            names: the files of a run that are copied; none for all.
        """
        planned_runs = []
        for path, file_bytes in self.storage.changed(self.path / "runs", *names):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(path, file_bytes)
            if path.name == "plan.json":
                planned_runs.append(run := self.run(path.parent.name))
                if not (run.path / "status.json").exists():
                    run.write_status(RunStatus())
        return planned_runs

    def run(self, name: str) -> RunFolder:
        """The folder of a run, which need not exist."""
        if (
            not name
            or set("/\0") & set(name)
            or name.startswith(".")
            or len(name.encode("utf-8", "replace")) > LONGEST_FILE_NAME
        ):
            raise ConfigurationError(
                f"{name!r} is not the name of a run", "see `undersong run list`", code="invalid-name"
            )
        return RunFolder(self.path / "runs" / name, self.storage)

    def finished(self, name: str, remedy: str) -> RunFolder:
        """The folder of a finished run. Raises ConfigurationError, with ``remedy``, for a run that has not finished."""
        run_folder = self.run(name)
        run_state = run_folder.status().state
        if run_state != "finished":
            raise ConfigurationError(
                f"run {name!r} is {run_state}, and has not finished", remedy, code="run-not-finished"
            )
        return run_folder

    def runs(self) -> list[RunFolder]:
        """The folder of every run, sorted by name."""
        folder = self.path / "runs"
        with named_faults(folder):
            if os.path.lexists(folder):
                paths = sorted(folder.iterdir())
            else:
                paths = []
        return [run for run in (RunFolder(path, self.storage) for path in paths) if run.exists]

    def invite(
        self,
        name: str,
        *,
        now: float,
        days: float = defaults.INVITATION_DAYS,
        again: bool = False,
        contact: str = "",
    ) -> Package:
        """A new invitation; ``sign`` it with the authority's signing key.

        Args:
            again: True for a party that is enrolled and has lost its keys.
            contact: whom to telephone there; "" keeps what was noted.

        Raises ConfigurationError for a name that is invalid, revoked, or enrolled without ``again``, and for ``days``
        beyond the authority's own life.
        """
        home_authority = self.authority()
        _check_days(days)
        expires_at = int(now + days * 86400)
        token = os.urandom(TOKEN_BYTES)
        with closing(self.registry()) as registry:
            registry.invite(check_party_name(name), token, expires_at=expires_at, now=now, again=again, contact=contact)
        return Package(
            coordinator=self.settings.name,
            addresses=self.settings.addresses,
            server_name=self.settings.server_names[0],
            ca_certificate=home_authority.certificate_pem.decode("ascii"),
            signing_key=home_authority.signing_public,
            party=name,
            token=token,
            expires_s=expires_at,
        )

    def sign(
        self,
        request: EnrolmentRequest,
        *,
        now: float,
        days: float | None = None,
        stream_serial: str | None = None,
        replaces: str | None = None,
    ) -> bytes:
        """Enrols or renews a party, and returns the grant's bytes.

        The request must hold its invitation's token, or be a renewal by the same identity.

        Args:
            days: life of the certificate; None is the usual one.
            stream_serial: serial number (hex) of the certificate whose stream carried the renewal; None if the
                operator signs.
            replaces: fingerprint of the identity key that the party had until now; None where no key may be replaced.

        Raises ConfigurationError if the request fits neither; it names the mismatch.
        """
        with closing(self.registry()) as registry:
            if request.renewal:
                party = registry.party(request.party)
                if party.state != ENROLLED or party.identity != request.identity.hex():
                    raise ConfigurationError(
                        f"{request.party}: only the enrolled party itself renews its certificate",
                        f"if its identity key was lost: undersong invite {request.party} --again",
                        code="not-its-own-renewal",
                    )
            else:
                request.check_token(registry.token(request.party, now=now))
            home_authority = self.authority()
            lifetime_days = _check_days(PARTY_DAYS if days is None else days)
            issued_certificate = home_authority.issue_party(
                request.party, request.tls_key(), now=now, days=lifetime_days
            )
            registry.enrol(
                request.party,
                request.identity,
                issued_certificate,
                now=now,
                stream_serial=stream_serial,
                replaces=replaces,
                renewal=request.renewal,
            )
        # A party that renews by a file may have lost the addresses. Over a stream it needs none, and an older release
        # could not read a grant with them.
        is_by_file = request.renewal and stream_serial is None
        grant = Grant(
            coordinator=self.settings.name,
            party=request.party,
            identity=request.identity,
            certificate=issued_certificate.pem.decode("ascii"),
            chain=(home_authority.certificate_pem.decode("ascii"),),
            addresses=self.settings.addresses if is_by_file else (),
            server_name=self.settings.server_names[0] if is_by_file else "",
        )
        return grant.sign(home_authority.signing_key)

    def renew(self, name: str, serial: str, request: bytes) -> bytes:
        """Renews the party ``name`` by a request that arrived over its stream; returns the grant's bytes.

        Args:
            serial: serial number (hex) of the certificate that the stream shows.

        Raises ConfigurationError for another party's request, and for a renewal too early or too often.
        """
        now_s = time.time()
        with closing(self.registry()) as registry:
            registry.check_renewal(name, serial, now=now_s)
        parsed_request = EnrolmentRequest.parse(request)
        if parsed_request.party != name or not parsed_request.renewal:
            raise ConfigurationError(
                "a stream renews the certificate of its own party only", code="not-its-own-renewal"
            )
        return self.sign(parsed_request, now=now_s, stream_serial=serial)

    def revoke(self, name: str, reason: str, *, now: float) -> None:
        """Shuts a party out for good; a serving process ends its stream within seconds."""
        with closing(self.registry()) as registry:
            registry.revoke(name, reason, now=now)

    @property
    def served(self) -> bool:
        """True while a process serves this coordinator, here or on another machine."""
        return is_held(self._lock) or self.storage.is_served_elsewhere

    @property
    def serving(self) -> Serving | None:
        """The facts that the serving process last wrote; None if no process serves this home now, on this machine."""
        if not is_held(self._lock):
            return None
        serving_json = read_json(self.path / "serving.json")
        try:
            if serving_json is None:
                return None
            return Serving(**{**serving_json, "connected": tuple(serving_json["connected"])})
        except (TypeError, KeyError):  # Another release's process wrote it.
            return None

    def write_serving(self, serving: Serving) -> None:
        """Replaces ``serving.json``, which :attr:`serving` reads: process, ports, start, connected parties.

        Only the serving process calls it.
        """
        replace_json(self.path / "serving.json", asdict(serving), durable=False)

    @property
    def held_steps_file(self) -> Path:
        """The file in which the serving process lists its steps that fail and are tried again."""
        return self.path / "held.json"

    @property
    def held_steps(self) -> tuple[HeldStep, ...]:
        """The steps of the serving process that fail now; none where no process serves on this machine."""
        if is_held(self._lock):
            return held_steps(self.held_steps_file)
        return ()

    @property
    def connected(self) -> Sequence[str]:
        """Names of parties that had a stream when the serving process last wrote; empty if there is no such process."""
        serving_facts = self.serving
        if serving_facts is None:
            return ()
        return serving_facts.connected

    def hold(self) -> AbstractContextManager[None]:
        """Takes the lock of the one serving process. Raises ConfigurationError if another process holds it."""
        return holding(
            self._lock,
            ConfigurationError(
                f"{self.path}: another process serves this coordinator", "stop it first", code="coordinator-in-use"
            ),
        )


ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound


def host_port(address: str) -> tuple[str, int]:
    """Splits ``HOST:PORT`` or ``[IPV6]:PORT`` in two. Raises ConfigurationError for any other form.

    >>> host_port("0.0.0.0:7443"), host_port("[::1]:7443")
    (('0.0.0.0', 7443), ('::1', 7443))
    """
    address_match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]*)):(\d{1,5})", address)
    if address_match is None or int(address_match[3]) > 65535:
        raise ConfigurationError(
            f"{address!r} is not host:port", "write for example 0.0.0.0:7443", code="invalid-address"
        )
    return address_match[1] or address_match[2], int(address_match[3])


def _check_days(days: float) -> float:
    if not 0 < days <= AUTHORITY_DAYS:
        raise ConfigurationError(
            f"--days is {days:g}, which is out of range",
            f"give more than 0 and at most {AUTHORITY_DAYS}, the life of the certificate authority in days",
            code="days-out-of-range",
        )
    return days
