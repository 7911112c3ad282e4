"""Commands for the coordinator and its parties: ``coordinator init|show|serve|healthy``, ``invite``, ``sign``, ..."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_common.errors import MachineFault, TransportError
from undersong_common.files import replace_file
from undersong_common.printable import counted, duration, noun, printable, shell_path
from undersong_common.program import entry, logs
from undersong_common.program.entry import only_tls_1_3
from undersong_common.program.machine import HeldStep, rights_that_pass
from undersong_common.program.options import AsJson, Output, with_options
from undersong_server import defaults, operations
from undersong_server.cli.console import ConsoleBeside, console_beside, require_packages
from undersong_server.cli.first_start import FirstStart, made_lines, make_where_missing
from undersong_server.cli.options import (
    DEFAULT_HOME,
    HomeFolder,
    RayAddress,
    day,
    print_result,
    print_table,
    warn_if_not_served,
    warn_of_missing_weights,
)

if TYPE_CHECKING:
    from undersong_server.operations.coordinator import Backup

app = typer.Typer(help="Makes and serves a coordinator.", no_args_is_help=True)
enrolment_app = typer.Typer()

PartyName = Annotated[
    str, typer.Argument(metavar="NAME", help="The party's name: lower-case letters, digits, - and _.")
]


Operator = Annotated[str, typer.Option(**defaults.OPERATOR)]
Contact = Annotated[str, typer.Option(**defaults.CONTACT)]
Bind = Annotated[str, typer.Option(**defaults.BIND)]


@app.command()
@with_options()
def init(new: defaults.NewCoordinator, output: Output, home: HomeFolder = DEFAULT_HOME) -> None:
    """Makes the coordinator's folder: certificate authority, signing key, registry. Nothing is sent anywhere."""
    coordinator_facts = operations.coordinator.create(home, new)
    lines = made_lines(home, coordinator_facts)
    if new.drill:
        plan_command = (
            f"undersong run plan {shell_path(home / 'drill' / 'task.toml')} --name drill --home {shell_path(home)}"
        )
        lines += [
            "continue as in a real federation; each hospital begins with: undersong-party init NAME --drill",
            f"  {plan_command}",
        ]
    print_result(
        coordinator_facts, *lines, as_json=output.as_json, quiet=output.quiet, brief=coordinator_facts.fingerprint
    )
    warn_of_missing_weights()


@app.command()
def change(
    operator: Operator | None = None,
    contact: Contact | None = None,
    bind: Bind | None = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Changes who asks, as every plan from now on states it, and where the coordinator listens; the keys stay.

    What was planned before stays as it was signed.
    """
    coordinator_facts = operations.coordinator.change(home, operator=operator, contact=contact, bind=bind)
    lines = _who_asks(coordinator_facts)
    changes = [coordinator_facts.operator, coordinator_facts.contact]
    if bind is not None:
        lines.append(f"bind: {coordinator_facts.bind}{', from its next start on' if coordinator_facts.served else ''}")
        changes.append(f"listens on {coordinator_facts.bind}")
    operations.coordinator.note_command(home, "change", ", ".join(changes))
    print_result(coordinator_facts, *lines, as_json=as_json)


def _who_asks(facts: "operations.coordinator.CoordinatorFacts") -> list[str]:
    return [f"operator: {facts.operator or 'not stated'}", f"contact: {facts.contact or 'not stated'}"]


@app.command()
def show(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Shows the fingerprint, addresses and certificate of this coordinator, and whether it is running."""
    coordinator_facts = operations.coordinator.show(home)
    print_result(
        coordinator_facts,
        f"name: {coordinator_facts.name}",
        *_who_asks(coordinator_facts),
        f"fingerprint: {coordinator_facts.fingerprint}",
        f"addresses: {', '.join(coordinator_facts.addresses)}",
        f"bind: {coordinator_facts.bind}",
        f"metrics: {coordinator_facts.metrics or 'none'}",
        f"certificate names: {', '.join(coordinator_facts.certificate_names)}",
        f"certificate expires at: {day(coordinator_facts.certificate_expires_at)}",
        f"served: {'yes' if coordinator_facts.served else 'no'}",
        *(
            f"NOT YET VALID: the certificate of the {name}; look at this machine's clock"
            for name in coordinator_facts.not_yet_valid
        ),
        *held_lines(coordinator_facts.held_up),
        as_json=as_json,
    )


@dataclass(frozen=True)
class LogOptions:
    """The form and the detail of what the server logs."""

    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object per line on standard error.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Log more (never private data).")] = False


@app.command()
@with_options()
@rights_that_pass()
def serve(
    log: LogOptions,
    first: FirstStart,
    console: ConsoleBeside,
    home: HomeFolder = DEFAULT_HOME,
    keepalive: Annotated[
        float, typer.Option(help="Seconds of silence before a ping; a party is gone after three times that.", min=1)
    ] = defaults.KEEPALIVE_S,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another process serves; take over when it has died.")
    ] = False,
    ray: RayAddress = None,
) -> None:
    """Listens for the parties and drives the runs, until SIGTERM. Started again, it continues.

    Where there is no coordinator, --address makes one first; with --console it asks for the address on a terminal.
    """
    if console.is_wanted:
        require_packages()
    make_where_missing(home, first, asks=console.is_wanted and not standby)
    only_tls_1_3()  # gRPC reads this when it is imported, so it comes first.
    logs.to_stderr(
        ("undersong_common", "undersong_protocol", "undersong_server"), as_json=log.log_json, debug=log.debug
    )
    warn_of_missing_weights()
    environment = dict(os.environ)
    cache = defaults.public_cache_path(environment)
    with console_beside(home, console.port) if console.is_wanted else nullcontext():
        operations.coordinator.serve(
            home, public_cache=cache, environment=environment, keepalive_s=keepalive, ray=ray, standby=standby
        )


@app.command()
def healthy(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False, quiet: entry.Quiet = False) -> int:
    """Asks the serving process for its health: exit code 0, or 75 while its machine lacks something.

    For a container's or a monitor's health check.
    """
    health = operations.coordinator.health(home)
    connected = counted(len(health["connected"]), "party", "parties")
    unreadable = [f"run {run} cannot be read" for run, state in health["runs"].items() if state == "unreadable"]
    words = f"{health['status']}; {connected} connected, {counted(len(health['runs']), 'run')}"
    held_steps = [HeldStep(**step) for step in health["held_up"]]
    print_result(
        health, words, *(unreadable if not held_steps else ()), *held_lines(held_steps), as_json=as_json, quiet=quiet
    )
    if any(step.of_machine for step in held_steps):
        return MachineFault.exit_code
    return 0


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it will hold the keys.")],
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Writes keys, registry, runs and accounts into one file, and reads it back. The coordinator need not stop."""
    stored_backup = operations.coordinator.back_up(home, file)
    run_words = counted(len(stored_backup.runs), "run")
    words = f"wrote {file}: {run_words}; keep it encrypted, for it holds the coordinator's keys"
    print_result(stored_backup, words, as_json=as_json, quiet=quiet)
    _warn_of_faults(stored_backup)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `undersong coordinator backup` wrote.")],
    check: Annotated[bool, typer.Option("--check", help="Read and check the backup; change nothing.")] = False,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Makes a lost coordinator anew from its backup, in an empty folder. Never serve two folders of one coordinator."""
    if check:
        backup_facts = operations.coordinator.check_backup(file)
    else:
        backup_facts = operations.coordinator.restore(file, home)
    backup_time = time.strftime("%Y-%m-%d %H:%M", time.localtime(backup_facts.made_at))
    lines = [
        f"{backup_facts.coordinator}, {counted(len(backup_facts.runs), 'run')}, of {backup_time};"
        f" fingerprint: {backup_facts.fingerprint}"
    ]
    if not check:
        lines.append(
            f"restored into {home}; what was signed, revoked or invited since {backup_time} must be done again"
        )
        lines += [f"paused: {run}; continue it by `undersong run resume`, or end it" for run in backup_facts.paused]
    print_result(backup_facts, *lines, as_json=as_json, quiet=quiet)
    _warn_of_faults(backup_facts)


def _warn_of_faults(stored_backup: "Backup") -> None:
    for run, problem in stored_backup.faults.items():
        print(printable(f"warning: run {run} cannot be read: {problem}"), file=sys.stderr)


@app.command()
def notify(
    target: Annotated[
        str | None, typer.Argument(metavar="[COMMAND|URL]", help="Gets one JSON object on its input, or by POST.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Tell nobody.")] = False,
    test: Annotated[bool, typer.Option("--test", help="Tell it now that this is a test; once.")] = False,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> int:
    """Names a command or address that is told when an approval is missing, a run ends or a certificate expires."""
    value, words, has_arrived = operations.coordinator.notify(home, "" if none else target, test=test)
    print_result(value, words, as_json=as_json)
    if has_arrived:
        return 0
    return TransportError.exit_code


@dataclass(frozen=True)
class HospitalNotes:
    """The operator's notes about a hospital that is invited."""

    contact: Annotated[str, typer.Option(help="Telephone contact there; `run watch` shows it. Never sent.")] = ""
    full_name: Annotated[
        str, typer.Option(metavar="NAME, TOWN", help="Full name and town; plans state it from now on.")
    ] = ""


@enrolment_app.command()
@with_options()
def invite(
    name: PartyName,
    notes: HospitalNotes,
    output: Output,
    out: Annotated[Path | None, typer.Option(help="The package file to write (else NAME.package).")] = None,
    days: Annotated[
        float, typer.Option(help="Days that the invitation is open.", min=0.001)
    ] = defaults.INVITATION_DAYS,
    again: Annotated[
        bool, typer.Option("--again", help="For an enrolled hospital that has lost its folder and its keys.")
    ] = False,
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Writes a signed enrolment package for one hospital. It admits one request: hand it over like a password."""
    invitation = operations.enrolment.invite(
        home, name, days=days, again=again, contact=notes.contact, full_name=notes.full_name
    )
    operations.coordinator.note_command(home, "invite", name)
    path = _write(out or Path(f"{name}.package"), invitation.package)
    print_result(
        {"party": name, "package": str(path), "fingerprint": invitation.fingerprint},
        f"wrote {path} for {name}; the invitation is open for {days:g} {noun(days, 'day')}",
        f"fingerprint, to be told over another channel: {invitation.fingerprint}",
        as_json=output.as_json,
        quiet=output.quiet,
        brief=invitation.fingerprint,
    )


@enrolment_app.command()
def contact(
    name: PartyName,
    words: Annotated[str, typer.Argument(metavar="WORDS", help='Person and telephone number; "" for nobody.')],
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Notes whom to telephone at a hospital, in place of what `invite --contact` noted. Never sent."""
    operations.enrolment.note_contact(home, name, words)
    operations.coordinator.note_command(home, "contact", name)
    noted_words = f"{name}: {words or 'nobody is noted'}"
    print_result({"party": name, "contact": words}, noted_words, as_json=as_json, quiet=quiet)


@enrolment_app.command("full-name")
def full_name(
    name: PartyName,
    words: Annotated[str, typer.Argument(metavar="WORDS", help='Full name and town; "" for none.')],
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Notes a hospital's full name and town, in place of what `invite --full-name` noted. Later plans state it."""
    operations.enrolment.note_full_name(home, name, words)
    operations.coordinator.note_command(home, "full-name", name)
    noted_words = f"{name}: {words or 'no full name is noted'}"
    print_result({"party": name, "full_name": words}, noted_words, as_json=as_json, quiet=quiet)


@enrolment_app.command()
@with_options()
def sign(
    output: Output,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="The request file the hospital sent back.")],
    out: Annotated[Path | None, typer.Option(help="The grant file to write (else NAME.grant).")] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(help="The request's fingerprint, as the hospital states it by telephone; renewals need none."),
    ] = None,
    replaces: Annotated[
        str | None,
        typer.Option(
            metavar="FINGERPRINT",
            help="The party's fingerprint until now: the request's key takes its place, for a hospital that has lost"
            " its own.",
        ),
    ] = None,
    days: Annotated[float | None, typer.Option(help="Life of the certificate (else 365 days).", min=0.0001)] = None,
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """Enrols the party: checks its request against invitation and fingerprint, and writes the certificate grant."""
    from undersong_protocol.agreement.enrolment import LARGEST_FILE_BYTES, EnrolmentRequest

    with request.open("rb") as file:
        data = file.read(LARGEST_FILE_BYTES + 1)
    if fingerprint is None and sys.stdin.isatty() and not (enrolment_request := EnrolmentRequest.parse(data)).renewal:
        fingerprint = typer.prompt(
            f"fingerprint of {enrolment_request.party}'s request, as the hospital states it by telephone"
        )
    try:
        enrolled = operations.enrolment.sign(home, data, fingerprint=fingerprint, replaces=replaces, days=days)
    except operations.enrolment.OtherFingerprint as error:
        operations.coordinator.note_command(home, "sign refused", error.words)
        raise
    party = enrolled.party
    kind = enrolled.kind
    signed_fingerprint = enrolled.request_fingerprint
    operations.coordinator.note_command(home, "sign", f"{party} {kind}, request {signed_fingerprint}")
    path = _write(out or Path(f"{party}.grant"), enrolled.grant)
    outcome = {
        "enrolled": f"enrolled {party}",
        "renewed": f"renewed the certificate of {party}",
        "replaced": f"{party} has another key from now on, and its old certificates are revoked",
    }[kind]
    lines = [f"{outcome} (its request's fingerprint: {signed_fingerprint}); wrote {path}: hand it back"]
    if kind == "replaced":
        lines.append("hospitals whose policy names it (--require-party) need its new fingerprint")
    value = {"party": party, "kind": kind, "grant": str(path), "request_fingerprint": signed_fingerprint}
    print_result(value, *lines, as_json=output.as_json, quiet=output.quiet)


@enrolment_app.command()
def revoke(
    name: PartyName,
    reason: Annotated[str, typer.Option(help="Reason, for the record.")] = "",
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Shuts a party out for good, with every certificate it has. Its stream ends within seconds."""
    operations.enrolment.revoke(home, name, reason)
    operations.coordinator.note_command(home, "revoke", name)
    value = {"party": name, "state": "revoked"}
    print_result(value, f"{name} is revoked; runs that need it fail", as_json=as_json, quiet=quiet)


@enrolment_app.command("leave-out")
def leave_out(
    name: PartyName,
    undo: Annotated[bool, typer.Option("--undo", help="Take it into new runs again.")] = False,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Leaves a party out of new runs until it is taken in again. It stays enrolled, and started runs keep it."""
    operations.enrolment.leave_out(home, name, is_left_out=not undo)
    operations.coordinator.note_command(home, "take in" if undo else "leave out", name)
    words = f"new runs {'ask' if undo else 'leave out'} {name}"
    print_result({"party": name, "is_left_out": not undo}, words, as_json=as_json, quiet=quiet)


@enrolment_app.command()
def parties(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Lists the parties: state, last seen, certificate, software, embedder, budget left, fingerprint."""
    party_facts = operations.enrolment.parties(home)
    rows = []
    for facts in party_facts:
        party = facts.party
        if facts.connected:
            if facts.silent_s:
                presence = f"connected, last heard {duration(facts.silent_s)} ago"
            else:
                presence = "connected"
        elif party.last_seen is None:
            presence = "never"
        else:
            presence = f"away, seen {duration(max(0.0, time.time() - party.last_seen))} ago"
        rows.append(
            (
                party.name,
                party.state + (" (paused)" if party.paused else ""),
                presence,
                facts.away_because,
                "" if party.certificate_expires_at is None else day(party.certificate_expires_at),
                party.software,
                party.embedder[:12],
                "not shared" if party.epsilon_left is None else f"{party.epsilon_left:g}",
                facts.fingerprint,
            )
        )
    print_table(
        [facts.to_json() for facts in party_facts],
        (
            *("party", "state", "last seen", "away because", "certificate until"),
            *("software", "embedder", "epsilon left", "fingerprint"),
        ),
        rows,
        "nobody was invited yet: undersong invite NAME",
        as_json=as_json,
    )
    if rows and not as_json:
        warn_if_not_served(home)


def held_lines(held: Sequence[HeldStep]) -> list[str]:
    """Lines for a terminal on the steps of the serving process that fail and are tried again."""
    return [printable(step.words) for step in held]


def _write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)
    return path
