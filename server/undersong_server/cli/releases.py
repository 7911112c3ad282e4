"""The commands for finished runs: ``export``, ``verify``, ``dossier``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_common import entry
from undersong_common.errors import PrivacyRefusal
from undersong_common.printable import shell_path
from undersong_server import operations
from undersong_server.cli.options import DEFAULT_HOME, AsJson, HomeFolder, RunName, print_result

if TYPE_CHECKING:
    from undersong_server.operations.releases import Verdict

app = typer.Typer()

UNCONFIRMED = 8  # exit code: the papers are consistent, and nothing shows who made them


@app.command()
def export(
    name: RunName,
    out: Annotated[Path, typer.Option("--out", help="The folder to write into.")],
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Copies a finished run's corpus, card, report, manifest with receipts and ledgers into a folder of yours."""
    exported = operations.releases.export(home, name, out)
    words = f"wrote {', '.join(exported.files)} into {out}; check it with: undersong verify {shell_path(out)}"
    print_result(exported, words, as_json=as_json, quiet=quiet)


Fingerprint = Annotated[
    str | None,
    typer.Option(help="Of the coordinator that must have signed it, as one of its hospitals states it."),
]
Parties = Annotated[
    list[str] | None,
    typer.Option(
        "--party",
        metavar="NAME=FINGERPRINT",
        help="A party that must have taken part, by the fingerprint that it states; repeat for several.",
    ),
]


@app.command()
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

    stated = dict(map(named_party, parties or ()))
    verdict = operations.releases.verify(folder, fingerprint=fingerprint, parties=stated)
    print_result(verdict.to_json(), *verdict.lines(), as_json=as_json)
    _leave(verdict)


@app.command()
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
    """Writes one page about a run for a privacy officer: flow, guarantee, parties, retention, how to check it.

    The exit codes are those of `verify`; the page says what they mean.
    """
    from undersong_protocol.agreement.enrolment import named_party

    stated = dict(map(named_party, parties or ()))
    page, verdict = operations.releases.dossier(home, run, fingerprint=fingerprint, parties=stated, audit=audit)
    page.write(out, at=time.strftime("%Y-%m-%d %H:%M %Z"))
    print(f"wrote {out}: print it from a browser, to paper or to PDF")
    _leave(verdict)


def _leave(verdict: Verdict) -> None:
    """Ends with the exit code of a verdict that does not hold."""
    if verdict.faults:
        raise typer.Exit(PrivacyRefusal.exit_code)
    if not verdict.holds:
        raise typer.Exit(UNCONFIRMED)
