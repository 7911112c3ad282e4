"""The commands for the parties of a coordinator: ``invite``, ``sign``, ``revoke``, ``parties``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from undersong_common import entry
from undersong_common.files import replace_file
from undersong_common.plurals import noun
from undersong_common.rows import show_rows
from undersong_server import defaults
from undersong_server.cli.options import DEFAULT_HOME, AsJson, HomeFolder, day, print_json, say_whether_served

PartyName = Annotated[
    str, typer.Argument(metavar="NAME", help="The party's name: lower-case letters, digits, - and _.")
]


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong``."""
    for command in (invite, sign, revoke, parties):
        app.command()(command)


def invite(
    name: PartyName,
    out: Annotated[Path | None, typer.Option(help="The package file to write (else NAME.package).")] = None,
    days: Annotated[float, typer.Option(help="How long the invitation is open.", min=0.001)] = defaults.INVITATION_DAYS,
    again: Annotated[
        bool, typer.Option("--again", help="For an enrolled hospital that has lost its folder and its keys.")
    ] = False,
    contact: Annotated[str, typer.Option(help="Whom to telephone there; `run watch` shows it. Never sent.")] = "",
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Writes a signed enrolment package for one hospital. It admits one request: hand it over like a password."""
    from undersong_server.operations import audit, enrolment

    invitation = enrolment.invite(home, name, days=days, again=again, contact=contact)
    audit.note_command(home, "invite", name)
    path = out or Path(f"{name}.package")
    _write(path, invitation.package)
    if as_json:
        print_json({"party": name, "package": str(path), "fingerprint": invitation.fingerprint})
    elif quiet:
        print(invitation.fingerprint)
    else:
        print(f"wrote {path} for {name}; the invitation is open for {days:g} {noun(days, 'day')}")
        print(f"fingerprint, to be told by another way: {invitation.fingerprint}")


def sign(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="The request file the hospital sent back.")],
    out: Annotated[Path | None, typer.Option(help="The grant file to write (else NAME.grant).")] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(help="The request's fingerprint as the hospital told it by telephone; needed but for a renewal."),
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
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Enrols the party: checks its request against invitation and fingerprint, and writes the certificate grant."""
    from undersong_protocol.agreement.enrolment import LARGEST_FILE_BYTES, EnrolmentRequest
    from undersong_server.operations import audit, enrolment

    with request.open("rb") as file:
        data = file.read(LARGEST_FILE_BYTES + 1)
    if fingerprint is None and sys.stdin.isatty() and not (read := EnrolmentRequest.parse(data)).renewal:
        fingerprint = typer.prompt(f"fingerprint of {read.party}'s request, as the hospital told it by telephone")
    enrolled = enrolment.sign(home, data, fingerprint=fingerprint, replaces=replaces, days=days)
    audit.note_command(home, "sign", f"{enrolled.party} {enrolled.kind}, request {enrolled.request_fingerprint}")
    path = out or Path(f"{enrolled.party}.grant")
    _write(path, enrolled.grant)
    if as_json:
        print_json(
            {
                "party": enrolled.party,
                "kind": enrolled.kind,
                "grant": str(path),
                "request_fingerprint": enrolled.request_fingerprint,
            }
        )
    elif not quiet:
        done = {
            "enrolled": f"enrolled {enrolled.party}",
            "renewed": f"renewed the certificate of {enrolled.party}",
            "replaced": f"{enrolled.party} has another key from now on, and its old certificates are revoked",
        }[enrolled.kind]
        print(f"{done} (its request's fingerprint: {enrolled.request_fingerprint}); wrote {path}: hand it back")
        if enrolled.kind == "replaced":
            print("hospitals whose policy names it (--require-party) need its new fingerprint")


def revoke(
    name: PartyName,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Shuts a party out for good, with every certificate it has. Its stream ends within seconds."""
    from undersong_server.operations import audit, enrolment

    enrolment.revoke(home, name, reason)
    audit.note_command(home, "revoke", name)
    if as_json:
        print_json({"party": name, "state": "revoked"})
    elif not quiet:
        print(f"{name} is revoked; runs that need it say so")


def parties(home: HomeFolder = DEFAULT_HOME, as_json: AsJson = False) -> None:
    """Everyone who was invited: state, last seen, certificate, software, embedder, budget left, fingerprint."""
    from undersong_server.operations import enrolment

    found = enrolment.parties(home)
    if as_json:
        print_json([facts.to_json() for facts in found])
        return
    rows = []
    for facts in found:
        party = facts.party
        seen = "never" if party.last_seen is None else _ago(time.time() - party.last_seen)
        rows.append(
            (
                party.name,
                party.state + (" (paused)" if party.paused else ""),
                "connected" if facts.connected else seen if seen == "never" else f"away, seen {seen}",
                facts.away_because,
                "" if party.certificate_expires_at is None else day(party.certificate_expires_at),
                party.software,
                party.embedder[:12],
                "not shared" if party.epsilon_left is None else f"{party.epsilon_left:g}",
                facts.fingerprint,
            )
        )
    headings = (
        "party",
        "state",
        "last seen",
        "away because",
        "certificate until",
        "software",
        "embedder",
        "epsilon left",
        "fingerprint",
    )
    show_rows(headings, rows, "nobody was invited yet: undersong invite NAME")
    if rows:
        say_whether_served(home)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
