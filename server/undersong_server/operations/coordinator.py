"""The coordinator itself: make its folder, look at it, serve it, ask whether it is well."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_server import defaults
from undersong_server.coordinator import service
from undersong_server.coordinator.home import CoordinatorHome, CoordinatorSettings

HEALTH_S = 5.0


@dataclass(frozen=True)
class CoordinatorFacts:
    """A coordinator as its operator sees it; everything in it is public.

    Attributes:
        fingerprint: what each hospital compares, told by telephone or on paper.
        addresses: host:port by which parties reach it; ``bind`` and ``metrics`` are where it listens.
        certificate_names, certificate_expires_at: of the server's certificate; seconds since the epoch.
        served: whether a process serves it now.
        drill: whether it is for rehearsals only.
    """

    home: Path
    name: str
    fingerprint: str
    addresses: tuple[str, ...]
    bind: str
    metrics: str
    certificate_names: tuple[str, ...]
    certificate_expires_at: float
    served: bool
    drill: bool

    def to_json(self) -> dict[str, Any]:
        lists = {"addresses": list(self.addresses), "certificate_names": list(self.certificate_names)}
        return {**asdict(self), "home": str(self.home), **lists}


def create(
    home: Path,
    *,
    name: str,
    addresses: Sequence[str],
    bind: str = defaults.BIND,
    metrics: str = defaults.METRICS,
    drill: bool = False,
) -> CoordinatorFacts:
    """Makes a coordinator's folder: certificate authority, signing key, registry. Nothing is sent anywhere.

    Args:
        metrics: "" for no metrics.
        drill: for rehearsals only.

    Raises ConfigurationError where one exists, or a name or address is invalid.
    """
    CoordinatorHome.create(home, CoordinatorSettings(name, bind, tuple(addresses), metrics, drill), now=time.time())
    return show(home)


def show(home: Path) -> CoordinatorFacts:
    """The coordinator in ``home``. Raises ConfigurationError where there is none."""
    opened = CoordinatorHome(home)
    authority, settings = opened.authority(), opened.settings
    return CoordinatorFacts(
        home=home,
        name=settings.name,
        fingerprint=authority.fingerprint,
        addresses=settings.addresses,
        bind=settings.bind,
        metrics=settings.metrics,
        certificate_names=tuple(authority.server_names),
        certificate_expires_at=authority.server_expires_at,
        served=opened.served,
        drill=settings.drill,
    )


def is_served(home: Path) -> bool:
    """Whether a process serves the coordinator now. Raises ConfigurationError where there is none."""
    return CoordinatorHome(home).served


def mark(home: Path) -> list[object]:
    """Changes when a party connects, leaves, is invited, signed or revoked."""
    opened = CoordinatorHome(home)
    found: list[object] = [list(opened.connected)]
    for name in ("registry.sqlite", "registry.sqlite-wal", "coordinator.json"):
        path = opened.path / name
        found.append([path.stat().st_mtime_ns, path.stat().st_size] if path.exists() else None)
    return found


def serve(home: Path, *, public_cache: Path, environment: Mapping[str, str], keepalive_s: float) -> None:
    """Listens for the parties and drives the runs until SIGTERM or SIGINT; started again, it goes on where it was.

    Call ``undersong_common.tls.only_tls_1_3`` first, before anything imports gRPC.

    Args:
        public_cache: file with embeddings of public texts.
        environment: where generators find their keys.
        keepalive_s: silence on a stream after which either side asks.
    """
    service.serve(CoordinatorHome(home), public_cache=public_cache, environment=environment, keepalive_s=keepalive_s)


@dataclass(frozen=True)
class Health:
    """What a serving process says of itself: "ok" or what it does instead, who is connected, and the runs' states."""

    status: str
    connected: tuple[str, ...]
    runs: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {"status": self.status, "connected": list(self.connected), "runs": dict(self.runs)}


def health(home: Path) -> Health:
    """Asks the serving process whether it is well. Raises ConfigurationError where it does not say so."""
    opened = CoordinatorHome(home)
    serving = opened.serving
    if serving is None or not serving.metrics_port:
        raise ConfigurationError(f"{home}: is not served, or without metrics", "undersong coordinator serve")
    host = opened.settings.metrics.rpartition(":")[0].strip("[]")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    shown = f"[{host}]" if ":" in host else host
    try:
        with urllib.request.urlopen(f"http://{shown}:{serving.metrics_port}/healthz", timeout=HEALTH_S) as reply:
            value = json.loads(reply.read())
    except (urllib.error.URLError, OSError):
        raise ConfigurationError(f"{home}: the serving process does not answer", "look into its log") from None
    return Health(value["status"], tuple(value["connected"]), value["runs"])
