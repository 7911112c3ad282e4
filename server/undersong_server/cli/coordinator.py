"""The operator's commands for the coordinator and its parties: ``coordinator``, ``invite``, ``sign``, ``revoke``,
``parties``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from undersong_common.errors import ConfigurationError
from undersong_common.printable import json_text
from undersong_common.rows import show_rows
from undersong_server.coordinator.service import (
    DEFAULT_BIND,
    DEFAULT_METRICS,
    INVITATION_DAYS,
    CoordinatorHome,
    CoordinatorSettings,
)
from undersong_server.release.files import write_files

DEFAULT_HOME = Path("coordinator")

HomeFolder = Annotated[
    Path, typer.Option("--home", envvar="UNDERSONG_HOME", help="The coordinator's folder (or $UNDERSONG_HOME).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
PartyName = Annotated[
    str, typer.Argument(metavar="NAME", help="The party's name: lower-case letters, digits, - and _.")
]

coordinator_app = typer.Typer(help="Makes and serves a coordinator.", no_args_is_help=True, add_completion=False)


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong``."""
    app.add_typer(coordinator_app, name="coordinator")
    for command in (invite, sign, revoke, parties):
        app.command()(command)


@coordinator_app.command()
def init(
    address: Annotated[
        list[str], typer.Option("--address", help="host:port by which parties reach it; repeat for several.")
    ],
    name: Annotated[str, typer.Option(help="The coordinator's name, as the parties read it.")] = "coordinator",
    bind: Annotated[str, typer.Option(help="host:port to listen on; no party ever sees it.")] = DEFAULT_BIND,
    metrics: Annotated[
        str, typer.Option(help='host:port of metrics and health over HTTP; "" for none.')
    ] = DEFAULT_METRICS,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Makes the coordinator's folder: certificate authority, signing key, registry. Nothing is sent anywhere."""
    made = CoordinatorHome.create(home, CoordinatorSettings(name, bind, tuple(address), metrics), now=time.time())
    fingerprint = made.authority().fingerprint
    if as_json:
        _print_json({"home": str(home), "name": name, "fingerprint": fingerprint, "addresses": list(address)})
        return
    print(f"made {home}; back it up: it holds the keys")
    print(f"fingerprint: {fingerprint}")
    print("tell it to every hospital by telephone or on paper, never with the package")


@coordinator_app.command()
def show(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """The fingerprint, addresses and certificate of this coordinator, and whether it is served now."""
    opened = CoordinatorHome(home)
    authority = opened.authority()
    value = {
        "name": opened.settings.name,
        "fingerprint": authority.fingerprint,
        "addresses": list(opened.settings.addresses),
        "bind": opened.settings.bind,
        "metrics": opened.settings.metrics,
        "certificate_names": authority.server_names,
        "certificate_expires_at": authority.server_expires_at,
        "served": opened.served,
    }
    if as_json:
        _print_json(value)
        return
    for key, item in value.items():
        shown = _day(item) if key.endswith("_at") else item
        print(f"{key.replace('_', ' ')}: {', '.join(item) if isinstance(item, list) else shown}")


@coordinator_app.command()
def serve(
    home: HomeFolder = DEFAULT_HOME,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object a line on standard error.")] = False,
    keepalive: Annotated[
        float, typer.Option(help="Seconds of silence after which a party is asked; thrice that and it is gone.", min=1)
    ] = 20.0,
    debug: Annotated[bool, typer.Option("--debug", help="Log more (never private data).")] = False,
) -> None:
    """Listens for the parties and drives the runs, until SIGTERM. Started again, it goes on where it was."""
    from undersong_common import logs
    from undersong_common.tls import only_tls_1_3
    from undersong_server.cli.app import public_cache_path
    from undersong_server.coordinator import service as coordinator

    only_tls_1_3()
    logs.to_stderr(("undersong_common", "undersong_protocol", "undersong_server"), as_json=log_json, debug=debug)
    coordinator.serve(
        CoordinatorHome(home), public_cache=public_cache_path(), environment=dict(os.environ), keepalive_s=keepalive
    )


@coordinator_app.command()
def healthy(home: HomeFolder = DEFAULT_HOME) -> None:
    """Asks the serving process whether it is well (exit code 0), for a container's or a monitor's health check."""
    import urllib.error
    import urllib.request

    from undersong_server.runs.folder import read_json

    opened = CoordinatorHome(home)
    serving = read_json(opened.path / "serving.json")
    if not opened.served or serving is None or not serving.get("metrics_port"):
        raise ConfigurationError(f"{home}: is not served, or without metrics", "undersong coordinator serve")
    host = opened.settings.metrics.rpartition(":")[0].strip("[]")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    shown = f"[{host}]" if ":" in host else host
    try:
        with urllib.request.urlopen(f"http://{shown}:{serving['metrics_port']}/healthz", timeout=5) as reply:
            print(reply.read().decode("utf-8"))
    except (urllib.error.URLError, OSError):
        raise ConfigurationError(f"{home}: the serving process does not answer", "look into its log") from None


def invite(
    name: PartyName,
    out: Annotated[Path | None, typer.Option(help="The package file to write (else NAME.package).")] = None,
    days: Annotated[float, typer.Option(help="How long the invitation is open.", min=0.001)] = INVITATION_DAYS,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Writes a signed enrolment package for one hospital. It admits one request: hand it over like a password."""
    opened = CoordinatorHome(home)
    package = opened.invite(name, now=time.time(), days=days)
    path = out or Path(f"{name}.package")
    _write(path, package.sign(opened.authority().signing_key))
    if as_json:
        _print_json({"party": name, "package": str(path), "fingerprint": package.fingerprint})
        return
    print(f"wrote {path} for {name}; the invitation is open for {days:g} days")
    print(f"fingerprint, to be told by another way: {package.fingerprint}")


def sign(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="The request file the hospital sent back.")],
    out: Annotated[Path | None, typer.Option(help="The grant file to write (else NAME.grant).")] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="What the hospital says its request's fingerprint is; refused if it differs.")
    ] = None,
    days: Annotated[float | None, typer.Option(help="Life of the certificate (else 365 days).", min=0.0001)] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Enrols the party: checks its request against the invitation and writes the certificate grant."""
    from undersong_protocol.enrolment import LARGEST_FILE_BYTES, EnrolmentRequest, same_fingerprint

    with request.open("rb") as file:
        data = file.read(LARGEST_FILE_BYTES + 1)
    parsed = EnrolmentRequest.parse(data)
    if fingerprint is not None and not same_fingerprint(fingerprint, parsed.fingerprint):
        raise ConfigurationError(
            f"{request}: its fingerprint is {parsed.fingerprint}, not the one that was stated",
            "ask the hospital which request file is its own",
        )
    grant = CoordinatorHome(home).sign(parsed, now=time.time(), days=days)
    path = out or Path(f"{parsed.party}.grant")
    _write(path, grant)
    if as_json:
        _print_json({"party": parsed.party, "grant": str(path), "request_fingerprint": parsed.fingerprint})
        return
    print(f"enrolled {parsed.party} (its request's fingerprint: {parsed.fingerprint}); wrote {path}: hand it back")


def revoke(
    name: PartyName,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Shuts a party out for good, with every certificate it has. Its stream ends within seconds."""
    CoordinatorHome(home).revoke(name, reason, now=time.time())
    if as_json:
        _print_json({"party": name, "state": "revoked"})
    else:
        print(f"{name} is revoked; runs that need it say so")


def parties(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Everyone who was invited: state, connected or when last seen, certificate, software, embedder, budget left."""
    opened = CoordinatorHome(home)
    registry = opened.registry()
    found = registry.parties()
    registry.close()
    connected = opened.connected
    if as_json:
        _print_json([{**party.to_json(), "connected": party.name in connected} for party in found])
        return
    show_rows(
        ("party", "state", "last seen", "certificate until", "software", "embedder", "epsilon left"),
        [
            (
                party.name,
                party.state + (" (paused)" if party.paused else ""),
                "connected"
                if party.name in connected
                else "never"
                if party.last_seen is None
                else _ago(time.time() - party.last_seen),
                "" if party.certificate_expires_at is None else _day(party.certificate_expires_at),
                party.software,
                party.embedder[:12],
                "not shared" if party.epsilon_left is None else f"{party.epsilon_left:g}",
            )
            for party in found
        ],
        "nobody was invited yet: undersong invite NAME",
    )


def _write(path: Path, data: bytes) -> None:
    write_files(path.absolute().parent, {path.name: data})
    path.chmod(0o600)


def _print_json(value: Any) -> None:
    print(json_text(value))


def _day(seconds: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(float(seconds)))


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
