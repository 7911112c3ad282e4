"""The commands for finished runs: ``export``, ``verify``, ``dossier``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_common import entry
from undersong_common.errors import PrivacyRefusal
from undersong_common.printable import shell_path
from undersong_server.cli.options import DEFAULT_HOME, AsJson, HomeFolder, RunName, print_json

if TYPE_CHECKING:
    from undersong_server.operations.releases import Verdict

UNCONFIRMED = 8  # exit code: nothing is wrong with the papers, and nothing shows whose they are


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong``."""
    app.command()(export)
    app.command()(verify)
    app.command()(dossier)


def export(
    name: RunName,
    out: Annotated[Path, typer.Option("--out", help="The folder to write into.")],
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Copies a finished run's corpus, card, report, manifest with receipts and ledgers into a folder of yours."""
    from undersong_server.operations import releases

    exported = releases.export(home, name, out)
    if as_json:
        print_json(exported.to_json())
    elif not quiet:
        print(f"wrote {', '.join(exported.files)} into {out}; check it with: undersong verify {shell_path(out)}")


Fingerprint = Annotated[
    str | None,
    typer.Option(help="Of the coordinator that must have signed it, as one of its hospitals has told you."),
]
Parties = Annotated[
    list[str] | None,
    typer.Option(
        "--party",
        metavar="NAME=FINGERPRINT",
        help="A party that must have taken part, by the fingerprint that it has told you; repeat for several.",
    ),
]


def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A published data set (its manifest.json).")],
    fingerprint: Fingerprint = None,
    parties: Parties = None,
    as_json: AsJson = False,
) -> None:
    """Recomputes the whole (epsilon, delta) of a published data set offline, and says who took part.

    Exit code 3 where anything does not hold; each fault is named. Exit code 8 where all papers fit together and nothing
    shows who made them: without --fingerprint, or without a signature, everything in a folder may be invented. A
    simulation is confirmed as one, and as nothing else.
    """
    from undersong_protocol.agreement.enrolment import named_party
    from undersong_server.operations import releases

    stated = dict(map(named_party, parties or ()))
    verdict = releases.verify(folder, fingerprint=fingerprint, parties=stated)
    if as_json:
        print_json(verdict.to_json())
    else:
        print("\n".join(verdict.lines()))
    _leave(verdict)


def dossier(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A finished run at this coordinator, or a published folder.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="The page, to print or to file.")],
    audit: Annotated[
        Path | None, typer.Option("--audit", metavar="FILE.json", help="What `undersong audit --json` wrote.")
    ] = None,
    fingerprint: Fingerprint = None,
    parties: Parties = None,
    home: HomeFolder = DEFAULT_HOME,
) -> None:
    """A run as one page for a privacy officer: flow, guarantee, parties, retention, how to check it.

    The exit codes are those of `verify`; the page says what they mean.
    """
    from undersong_protocol.agreement.enrolment import named_party
    from undersong_server.operations import releases

    stated = dict(map(named_party, parties or ()))
    page, verdict = releases.dossier(home, run, fingerprint=fingerprint, parties=stated, audit=audit)
    page.write(out, at=time.strftime("%Y-%m-%d %H:%M %Z"))
    print(f"wrote {out}: print it from a browser, to paper or to PDF")
    _leave(verdict)


def _leave(verdict: Verdict) -> None:
    """Ends with the exit code of a verdict that does not hold."""
    if verdict.faults:
        raise typer.Exit(PrivacyRefusal.exit_code)
    if not verdict.holds:
        raise typer.Exit(UNCONFIRMED)
