"""Writes the dossier of a run for a privacy officer: the approval, what left, its cost, and what is kept how long."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from undersong_client.consent import preview
from undersong_client.consent.approvals import Proposal, Proposals
from undersong_client.consent.sheet import Sheet
from undersong_client.home import CLOCK_TOLERANCE_S, PartyHome
from undersong_client.operations import data, outbox, runs
from undersong_client.storage.outbox import Entry
from undersong_common.printable import counted, printable, shell_word
from undersong_common.privacy import impact
from undersong_common.program.printed_page import PageSection, PrintedPage
from undersong_protocol.agreement import words

MOST_MESSAGES = 400  # messages of a run that the annex lists

KEPT = (
    ("what", "where", "how long"),
    ("records", "where they were; a copy, encrypted, in the folder of this program", "until you remove the folder"),
    ("embeddings of records", "encrypted, in the cache folder", "until you remove it; made anew when needed"),
    (
        "keys, masks and noise of a sum",
        "encrypted, in the journal",
        "until the sum has ended; then overwritten, with the key that they were encrypted under",
    ),
    ("what left", "journal.sqlite", "until you remove the folder"),
    ("plans and decisions", "requests/", "until you remove them; keep those that you have signed"),
    ("what was spent", "ledger.jsonl", "as long as the records are: without it the budget counts as spent"),
)


def dossier(home: Path, run: str, *, audit: Path | None, format_local_time: Callable[[float], str]) -> PrintedPage:
    """Returns the dossier of one run as a page; reads the party's folder and sends nothing.

    Args:
        run: name of the run, or the beginning of its manifest's hash.
        audit: a file that ``undersong audit --json`` wrote; None for no audit.
        format_local_time: writes seconds since the epoch in words.

    Raises:
        ConfigurationError: there is no such run or no data set, or the file is not the result of an audit.
        PrivacyRefusal: the ledger's hash chain is broken.
    """
    party_home = PartyHome(home)
    proposals = Proposals(party_home)
    decided_proposal = proposals.find(run)
    if audit is None:
        findings = None
    else:
        findings = impact.read_audit(audit)
    ledger_facts = data.ledger(home, verify=True)
    messages = outbox.entries(home, run=decided_proposal.run)
    run_sheet = runs.make_sheet(party_home, proposals, decided_proposal, None)
    unit_word = run_sheet.privacy.unit_word
    plan_name = preview.plan_name(replace(run_sheet, words=decided_proposal.words))
    return PrintedPage(
        f"Dossier of the run {printable(decided_proposal.run, 120)!r} at {run_sheet.party}",
        (
            *preview.marked(run_sheet),
            _cost_section(decided_proposal, run_sheet, ledger_facts, _joined_ids(party_home, decided_proposal)),
            _decision_section(
                decided_proposal,
                (runs.own_part(home, decided_proposal), *runs.others_part(home, decided_proposal)),
                format_local_time,
            ),
            preview.purpose(run_sheet, is_complete=True),
            _flow_section(run_sheet),
            _sent_messages_section(messages),
            preview.leaves(run_sheet, title=preview.ALLOWED),
            PageSection(
                "Assumptions",
                points=impact.assumptions(run_sheet.colluders, len(run_sheet.parties), run_sheet.privacy.unit),
            ),
            impact.audit_section(findings),
            PageSection("What is kept here, and erased", table=KEPT),
            impact.for_the_assessment(unit_word, post_quantum=run_sheet.post_quantum),
            PageSection(
                "Hashes",
                figures=(("plan", decided_proposal.manifest), ("head of the ledger now", ledger_facts.head)),
                folded=True,
            ),
            replace(preview.who_takes_part(run_sheet), folded=True),
            *_message_sections(messages, format_local_time),
            _check_section(decided_proposal),
        ),
        note="Everything on it comes from this hospital's own folder. It holds no text of anybody.",
        signature=f"{plan_name}. Filed for {run_sheet.party}:",
        footer=plan_name,
        fold="Annex: hashes, and how to check them",
    )


def _decision_section(
    request: Proposal, part_sentences: Sequence[str], format_local_time: Callable[[float], str]
) -> PageSection:
    if request.decided_s:
        decision_words = f"{request.decision}, {format_local_time(request.decided_s)}"
    else:
        decision_words = "nobody has decided yet"
    if request.people or not request.reason:
        reason_rows = []
    else:
        reason_rows = [("reason", printable(request.reason, 400))]
    return PageSection(
        "Decision",
        tuple(filter(None, part_sentences)),
        figures=(
            ("plan, in words", request.words),
            ("proposed", format_local_time(request.received_s)),
            ("decision", decision_words),
            *(("by", approval.words(format_local_time(approval.at_s))) for approval in request.people),
            *reason_rows,
            ("ended", format_local_time(request.ended_s) if request.ended_s else "it has not ended here"),
        ),
    )


def _flow_section(sheet: Sheet) -> PageSection:
    coordinator = sheet.coordinator
    if coordinator is None:
        coordinator_words = "the coordinator"
    else:
        coordinator_words = f"the coordinator ({printable(coordinator.name, 63)})"
    return PageSection(
        "The flow of the data",
        points=(
            f"{coordinator_words} sends public texts (or figures about them) and asks for a sum over records;",
            "this machine compares them with the records, in a process that has no connection to anything outside;",
            "each record's part is cut to its declared bound, this hospital's share of the noise is added, then a"
            " mask;",
            "the masked numbers go to the coordinator over one outgoing connection (TLS 1.3); alone they are random;",
            f"{coordinator_words} adds those of all hospitals: masks cancel, the noised sum is opened;",
            f"the sum decides which texts are ordered next, from {words.programs(sheet.task.generators or ())}; these"
            " programs read public inputs and each other's texts only.",
        ),
    )


def _sent_messages_section(messages: Sequence[Entry]) -> PageSection:
    title = "What left this building"
    if not messages:
        return PageSection(title, ("No message of this run has left.",))
    total_bytes = sum(entry.bytes for entry in messages)
    answer_count = sum(bool(entry.query) for entry in messages)
    summary = (
        f"{counted(len(messages), 'message')} of {total_bytes:,} bytes in all, {answer_count:,} of them steps of sums."
    )
    return PageSection(title, (f"{summary} Only the masked answers were computed from records. The annex lists them.",))


def _message_sections(messages: Sequence[Entry], format_local_time: Callable[[float], str]) -> list[PageSection]:
    """Returns the table of every message that left, with its hash; [] if none left."""
    if not messages:
        return []
    message_rows = (
        (
            str(message_entry.number),
            format_local_time(message_entry.at),
            message_entry.kind,
            f"{printable(message_entry.query, 120)}, {message_entry.attempt}" if message_entry.query else "",
            f"{message_entry.bytes:,}",
            message_entry.sha256,
        )
        for message_entry in messages[:MOST_MESSAGES]
    )
    message_table = (("number", "when", "what", "sum, attempt", "bytes", "SHA-256"), *message_rows)
    length_remark = (f"The first {MOST_MESSAGES} are listed; the outbox has all.",) * (len(messages) > MOST_MESSAGES)
    return [PageSection("Messages that left", length_remark, table=message_table, folded=True)]


def _joined_ids(home: PartyHome, request: Proposal) -> tuple[str, ...]:
    """Returns a sentence if ids of one patient were joined after this run, whose guarantee was then of each id."""
    # A time ahead of now was read while the clock was wrong: such a run may have been before any of them.
    if request.received_s <= time.time() + CLOCK_TOLERANCE_S:
        received_s = request.received_s
    else:
        received_s = 0.0
    later_entries = [entry for entry in home.settings.joined_ids if entry["at_s"] > received_s]
    if not later_entries:
        return ()
    id_count, patient_count = (sum(entry[count_name] for entry in later_entries) for count_name in ("ids", "patients"))
    return (
        f"After this run {id_count} ids of its data set became {counted(patient_count, 'patient')}: such a patient has"
        " paid for each of its ids, and its guarantee is that of a group of so many.",
    )


def _cost_section(
    request: Proposal, sheet: Sheet, ledger_facts: data.LedgerFacts, joined_sentences: tuple[str, ...]
) -> PageSection:
    sheet_privacy = sheet.privacy
    if sheet_privacy.epsilon is None:
        epsilon = float("inf")
    else:
        epsilon = float(sheet_privacy.epsilon)
    epsilon_alone = sheet_privacy.epsilon_if_all_others_collude
    spending_rows = [
        ("promised for the whole run", f"epsilon {epsilon:g} at delta {sheet_privacy.delta:g}"),
        (
            f"against everybody else together, {words.AS_PLANNED}",
            "nothing that can be stated" if epsilon_alone is None else f"epsilon {epsilon_alone:.4g}",
        ),
    ]
    if (cost := next((run_cost for run_cost in ledger_facts.runs if run_cost.run == request.run), None)) is None:
        spending_rows.append(("charged to the ledger", "nothing: no vector was asked for"))
    else:
        delta_words = f"at the budget's delta, {ledger_facts.spending.delta:g}"
        release_words = f"{cost.releases} releases{', charged at its whole plan' if cost.whole_plan else ''}"
        spending_rows.append(("charged to the ledger", f"epsilon {cost.epsilon:.4g} {delta_words}; {release_words}"))
        spending_rows.append(("spent in all after it", f"epsilon {cost.spent:.4g} {delta_words}"))
    return PageSection(
        "The guarantee, and what it cost",
        (*impact.guarantee(epsilon, sheet_privacy.delta, sheet_privacy.unit_word), *joined_sentences),
        figures=tuple(spending_rows),
    )


def _check_section(request: Proposal) -> PageSection:
    run_word = shell_word(request.run)
    return PageSection(
        "How to check this page",
        (
            "On this machine, sending nothing: the chain of the ledger, what left, and the plan that was agreed to.",
            "With the published data set, on any machine: everybody's signatures, charges and receipts.",
        ),
        folded=True,
        columns=(
            "undersong-party ledger --verify",
            f"undersong-party outbox --run {run_word}",
            f"undersong-party preview {run_word}",
            'undersong verify FOLDER --fingerprint "COORDINATOR\'S FINGERPRINT"',
        ),
    )
