"""The commands for the coordinator itself: ``coordinator init|show|serve|healthy``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from undersong_common import entry
from undersong_common.plurals import counted
from undersong_server import defaults
from undersong_server.cli.options import (
    DEFAULT_HOME,
    Addresses,
    AsJson,
    Bind,
    CoordinatorName,
    HomeFolder,
    Metrics,
    day,
    print_json,
)

coordinator_app = typer.Typer(help="Makes and serves a coordinator.", no_args_is_help=True)


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong``."""
    app.add_typer(coordinator_app, name="coordinator")


@coordinator_app.command()
def init(
    address: Addresses,
    name: CoordinatorName = "coordinator",
    bind: Bind = defaults.BIND,
    metrics: Metrics = defaults.METRICS,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Makes the coordinator's folder: certificate authority, signing key, registry. Nothing is sent anywhere."""
    from undersong_server.operations import coordinator

    made = coordinator.create(home, name=name, addresses=address, bind=bind, metrics=metrics)
    if as_json:
        print_json(made.to_json())
    elif quiet:
        print(made.fingerprint)
    else:
        print(f"made {home}; back it up: it holds the keys")
        print(f"fingerprint: {made.fingerprint}")
        print("tell it to every hospital by telephone or on paper, never with the package")


@coordinator_app.command()
def show(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """The fingerprint, addresses and certificate of this coordinator, and whether it is served now."""
    from undersong_server.operations import coordinator

    facts = coordinator.show(home)
    if as_json:
        print_json(facts.to_json())
        return
    print(f"name: {facts.name}")
    print(f"fingerprint: {facts.fingerprint}")
    print(f"addresses: {', '.join(facts.addresses)}")
    print(f"bind: {facts.bind}")
    print(f"metrics: {facts.metrics or 'none'}")
    print(f"certificate names: {', '.join(facts.certificate_names)}")
    print(f"certificate expires at: {day(facts.certificate_expires_at)}")
    print(f"served: {'yes' if facts.served else 'no'}")


@coordinator_app.command()
def serve(
    home: HomeFolder = DEFAULT_HOME,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object per line on standard error.")] = False,
    keepalive: Annotated[
        float, typer.Option(help="Seconds of silence after which a party is asked; thrice that and it is gone.", min=1)
    ] = defaults.KEEPALIVE_S,
    debug: Annotated[bool, typer.Option("--debug", help="Log more (never private data).")] = False,
) -> None:
    """Listens for the parties and drives the runs, until SIGTERM. Started again, it goes on where it was."""
    from undersong_common import logs
    from undersong_common.tls import only_tls_1_3

    only_tls_1_3()  # before gRPC is imported
    logs.to_stderr(("undersong_common", "undersong_protocol", "undersong_server"), as_json=log_json, debug=debug)
    from undersong_server.operations import coordinator
    from undersong_server.operations.caches import public_cache_path

    environment = dict(os.environ)
    coordinator.serve(home, public_cache=public_cache_path(environment), environment=environment, keepalive_s=keepalive)


@coordinator_app.command()
def healthy(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False, quiet: entry.Quiet = False) -> None:
    """Asks the serving process whether it is well (exit code 0), for a container's or a monitor's health check."""
    from undersong_server.operations import coordinator

    health = coordinator.health(home)
    if as_json:
        print_json(health.to_json())
    elif not quiet:
        connected = counted(len(health.connected), "party", "parties")
        print(f"{health.status}; {connected} connected, {counted(len(health.runs), 'run')}")
