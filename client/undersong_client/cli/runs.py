"""``undersong-party requests``, ``preview``, ``approve``, ``reject`` and ``revoke``: the runs that were proposed."""

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_client import operations
from undersong_client.cli.data import show_progress
from undersong_client.cli.options import (
    DespiteCautions,
    HomeFolder,
    RunName,
    checkpoints_folder,
    confirm_cautions,
    home_of,
    local_time,
    print_json,
    print_result,
)
from undersong_client.consent import people
from undersong_client.home import PartyHome
from undersong_common.errors import ConfigurationError
from undersong_common.printable import counted, printable, shell_word, that_hold
from undersong_common.program.options import AsJson, with_options
from undersong_common.program.terminal import show_lines, show_rows

if TYPE_CHECKING:
    from undersong_client.consent.approvals import Proposal
    from undersong_client.operations.corpus import CorpusCheck
    from undersong_client.operations.runs import Decided
    from undersong_common.text.overlap import Overlap


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong-party``."""
    app.add_typer(corpus_app, name="corpus")
    for command in (requests, preview, approve, reject, revoke, dossier, evidence):
        app.command()(command)
    app.command("restore-evidence")(restore_evidence)


def requests(home: HomeFolder = None, as_json: AsJson = False) -> None:
    """The plans that were proposed to this party, and what was decided."""

    folder = home_of(home)
    proposals = operations.runs.requests(folder)
    if as_json:
        print_json({"requests": [asdict(request) for request in proposals]})
        return
    stages = operations.runs.stages(folder, proposals)
    show_rows(
        ("run", "decision", "epsilon", "delta", "parties", "method", "received", "manifest"),
        [
            (
                request.run,
                _standing(request, stages.get(request.manifest, "")),
                "not private" if request.epsilon is None else f"{request.epsilon:g}",
                f"{request.delta:g}",
                str(request.parties),
                request.method,
                local_time(request.received_s),
                request.manifest[:12],
            )
            for request in proposals
        ],
        "no run was proposed yet",
    )
    refused_runs = [request.run for request in proposals if request.refused]
    if refused_runs:
        refusal_lines = [f"{printable(run)} is refused here" for run in refused_runs]
        show_lines(
            [
                f"{refusal_line}: undersong-party preview shows what to ask the operator for"
                for refusal_line in refusal_lines
            ]
        )


def _standing(request: "Proposal", stage: str) -> str:
    """The state of a proposed plan, for a table's cell; ``stage`` says whether the run of an approved one has begun."""
    standing_parts = that_hold(
        (True, request.decision + (f" ({request.reason})" if request.reason else "")),
        (stage, stage),
        (request.ended_s, f"ended {local_time(request.ended_s)}"),
        (request.has_lapsed, f"{'LAPSED' if request.lapse else 'RESTORED'}, waits for the approval once more"),
        (request.suspended, f"SUSPENDED {local_time(request.suspended_s)}: {request.suspended}"),
        (request.replaced, "REPLACED by another plan since"),
        (request.changes and not request.replaced, f"ANOTHER PLAN than before: {'; '.join(request.changes_to_read)}"),
        (request.objection, f"REFUSED by this party's guard: {request.objection}"),
    )
    return "; ".join(standing_parts)


def preview(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="The run's name; the one that waits for you if not given.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--print", metavar="FILE.html", help="Write the page as HTML, to print and sign.")
    ] = None,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Shows on one page what a run would take from this building and what it would cost. Decides nothing."""
    folder = home_of(home)
    shown_preview = operations.runs.preview(
        folder, run or operations.runs.only_waiting(folder), checkpoints=checkpoints_folder(folder)
    )
    if page is not None:
        shown_preview.page.write(page, at=local_time(time.time()))
    if as_json:
        print_json(shown_preview.to_json())
        return
    show_lines(shown_preview.page.lines())
    shown_request = shown_preview.request
    print()
    if page is not None:
        print(f"wrote {page}: print it, and keep it with the signature")
    if shown_request.ended_s:
        print(f"this run ended {local_time(shown_request.ended_s)}; it was {shown_request.decision}")
    elif shown_request.suspended:
        print(f"suspended {local_time(shown_request.suspended_s)}: {shown_request.suspended}")
    elif shown_request.is_open:
        run_word = shell_word(shown_request.run)
        print(f"next: undersong-party approve {run_word} WORDS, or undersong-party reject {run_word}")
    else:
        withdraw_hint = f"; to withdraw: undersong-party revoke {shell_word(shown_request.run)}"
        print(f"decided: {shown_request.decision}{withdraw_hint if shown_request.decision == 'approved' else ''}")
        if run_part := operations.runs.own_part(folder, shown_request):
            show_lines([run_part])
    show_lines(operations.runs.others_part(folder, shown_request))
    operations.runs.note_shown(folder, shown_preview)


Name = Annotated[str, typer.Option("--name", help="Who decides (default: this account of the machine).")]
RoleOption = Annotated[
    str, typer.Option("--role", help='"privacy officer", "IT", "management" or "other": shown on sheet and dossier.')
]
Reason = Annotated[str, typer.Option("--reason", help="Told to the operator.")]


def _person(home: Path, name: str, role: str, comment: str) -> people.Person:
    return people.person_of_terminal(PartyHome(home), name, role, comment)


@dataclass(frozen=True)
class Decider:
    """The person who decides, as sheet and dossier name them."""

    name: Name = ""
    role: RoleOption = "other"


@with_options()
def approve(
    run: RunName,
    decider: Decider,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORDS]...", help="The plan's nine words as `preview` shows them, or its whole hash."),
    ] = None,
    comment: Annotated[str, typer.Option(help="Stands on sheet and dossier; stays here.")] = "",
    despite_cautions: DespiteCautions = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Signs the consent to one plan: that of these words. Without them it shows the sheet, and asks for them."""
    folder = home_of(home)
    if not words:
        words = _ask_words(folder, run)
    proposal = operations.runs.approve(
        folder,
        run,
        words=" ".join(words),
        person=_person(folder, decider.name, decider.role, comment),
        checkpoints=checkpoints_folder(folder),
        confirm=lambda cautions: confirm_cautions(cautions, despite_cautions),
    )
    _print_decision(proposal, as_json)


def _ask_words(folder: Path, run: str) -> list[str]:
    """Shows the sheet and asks for the plan's words. Raises ConfigurationError where nobody sits at a terminal."""
    shown_preview = operations.runs.preview(folder, run, checkpoints=checkpoints_folder(folder))
    show_lines(shown_preview.page.lines())
    operations.runs.note_shown(folder, shown_preview)
    if not sys.stdin.isatty():
        raise operations.runs.which_plan(shown_preview.request.run)
    return str(typer.prompt("the nine words of this plan, to approve it")).split()


def reject(
    run: RunName,
    reason: Reason = "",
    name: Name = "",
    role: RoleOption = "other",
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Refuses the plan that stands under a run's name now, for good."""
    folder = home_of(home)
    rejection: Decided = operations.runs.reject(folder, run, _person(folder, name, role, reason))
    _print_decision(rejection.request, as_json)
    if rejection.still_approved and not as_json:
        print(f"an earlier plan of this run stays approved; to withdraw that: undersong-party revoke {shell_word(run)}")


def revoke(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run whose consent is withdrawn.")] = None,
    coordinator: Annotated[
        bool, typer.Option("--coordinator", help="Leave the coordinator: its trust and the certificate go.")
    ] = False,
    reason: Reason = "",
    name: Name = "",
    role: RoleOption = "other",
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Withdraws the consent to a run: nothing more of it leaves. What was released stays released, and charged."""
    folder = home_of(home)
    if coordinator == (run is not None):
        raise ConfigurationError(
            "revoke takes exactly one of RUN and --coordinator", "name a RUN, or pass --coordinator"
        )
    if run is not None:
        _print_decision(
            operations.runs.revoke(
                folder, run, _person(folder, name, role, reason), checkpoints=checkpoints_folder(folder)
            ).request,
            as_json,
        )
        return
    operations.runs.leave(folder, checkpoints=checkpoints_folder(folder))
    membership_json = {"party": PartyHome(folder).settings.party, "coordinator": None}
    print_result(
        as_json, membership_json, "left the coordinator; a running daemon disconnects within a second. The ledger stays"
    )


def _print_decision(proposal: "Proposal", as_json: bool) -> None:
    run = printable(proposal.run)
    check_words = printable(proposal.words)
    is_pending = proposal.decision == "pending"
    if is_pending:
        second_person_hint = "; a second person must approve too: a privacy officer and one for IT"
    else:
        second_person_hint = ""
    sentence = (
        f"{run}: {proposal.decision}, signed (manifest {proposal.manifest[:12]}, {check_words}){second_person_hint}"
    )
    print_result(as_json, asdict(proposal), sentence)


def dossier(
    run: RunName,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="The page, to print or to file.")],
    audit: Annotated[
        Path | None, typer.Option("--audit", metavar="FILE.json", help="What `undersong audit --json` wrote.")
    ] = None,
    home: HomeFolder = None,
) -> None:
    """A run as one page for the privacy officer's files: what left, what it cost, what is kept. Sends nothing."""
    page = operations.dossier.dossier(home_of(home), run, audit=audit, format_local_time=local_time)
    page.write(out, at=local_time(time.time()))
    print(f"wrote {out}: print it from a browser, to paper or to PDF")


def evidence(
    file: Annotated[Path, typer.Argument(metavar="FILE.zip", help="The file to write.")],
    home: HomeFolder = None,
) -> None:
    """Saves decisions, sheets as signed, dossiers, hashes of the outbox and the log in one file. Sends nothing."""
    operations.evidence.save_file(home_of(home), file, format_local_time=local_time)
    print(f"wrote {file}: it holds no secret and no record; it comes back with undersong-party restore-evidence FILE")


def restore_evidence(
    file: Annotated[Path, typer.Argument(metavar="FILE.zip", help="What `undersong-party evidence` wrote.")],
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Brings back saved evidence that this folder lacks. A refusal counts again, an approval has to be given again."""
    restored_evidence = operations.evidence.restore(home_of(home), file)
    count_words = (
        counted(restored_evidence.requests, "request"),
        counted(restored_evidence.messages, "message"),
        counted(restored_evidence.log_entries, "entry", "entries"),
    )
    sentence = "restored {} with the decisions, {} of the outbox and {} of the log; what was here stays".format(
        *count_words
    )
    print_result(as_json, asdict(restored_evidence), sentence)


# ``undersong-party corpus check``.

corpus_app = typer.Typer(help="A published corpus beside this party's records. Sends nothing.", no_args_is_help=True)

NOT_PRIVATE = (
    "not private: these figures read the records themselves. Keep them in the building; whoever acts on them, or asks"
    " for another corpus because of them, reveals something about the records."
)


@corpus_app.callback()
def corpus() -> None: ...


@corpus_app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a published run, or a file of its texts.")],
    held_out: Annotated[
        Path | None,
        typer.Option(help="Records in the form of the data set, in place of those that --hold-out kept out."),
    ] = None,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Says whether a corpus copies the records: words, names and numbers, closeness, and a guess at who took part."""
    corpus_check = operations.corpus.check(home_of(home), folder, held_out, progress=show_progress(time.monotonic()))
    print_result(
        as_json, corpus_check.to_json() | {"note": NOT_PRIVATE}, *_corpus_check_lines(corpus_check), NOT_PRIVATE
    )


def _corpus_check_lines(corpus_check: "CorpusCheck") -> list[str]:
    identifier_counts = corpus_check.identifiers
    shared_count = sum((identifier_counts.in_private or {}).values())
    check_lines = [
        f"{counted(corpus_check.texts, 'text')} beside {counted(corpus_check.records, 'record')} of the data set"
        f" and {corpus_check.held_out} held out",
        f"copied from the data set: {_overlap_words(corpus_check.copies)}",
        *(
            []
            if corpus_check.chance is None
            else [f"the same of records held out, which nobody can have copied: {_overlap_words(corpus_check.chance)}"]
        ),
        f"names after a title and long numbers: {sum(identifier_counts.different.values())} different ones,"
        f" {shared_count} of them in a record too{_rows(identifier_counts.private_rows)}",
    ]
    if corpus_check.closest is None or corpus_check.membership is None:
        return [
            *check_lines,
            "closeness and membership: not computed, since no records are held out (undersong-party data add --hold-out"
            " before the first run, or --held-out FILE)",
        ]
    closer_share = corpus_check.closest.closer
    membership_guess = corpus_check.membership
    return [
        *check_lines,
        f"closer to a record than to every record held out: {closer_share.value:.1%} of the texts"
        f" ({closer_share.low:.1%} to"
        f" {closer_share.high:.1%}; 50 % says that nothing was copied)",
        f"distance to the closest record, 5 % quantile and median: {corpus_check.closest.training[0]:.3f},"
        f" {corpus_check.closest.training[1]:.3f}; held out: {corpus_check.closest.holdout[0]:.3f},"
        f" {corpus_check.closest.holdout[1]:.3f}",
        f"guess who took part, by closeness (area under the ROC curve): {membership_guess.value:.3f}"
        f" ({membership_guess.low:.3f} to"
        f" {membership_guess.high:.3f}; 0.5 is guessing)",
    ]


def _overlap_words(overlap: "Overlap") -> str:
    return (
        f"{len(overlap.verbatim)} texts word for word{_rows(overlap.verbatim)}, {len(overlap.near_verbatim)}"
        f" nearly{_rows(overlap.near_verbatim)}, {len(overlap.shared_run)} with eight words or more in a row"
    )


def _rows(rows: tuple[int, ...]) -> str:
    """Names the first rows of the corpus, in brackets."""
    if rows:
        return f" (rows {', '.join(map(str, rows[:10]))}{', ...' if len(rows) > 10 else ''})"
    return ""
