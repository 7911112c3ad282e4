"""Actions on the runs that were proposed to this party: read them and decide about them."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undersong_client import keys
from undersong_client.consent import approvals
from undersong_client.consent.approvals import Proposal, Proposals
from undersong_client.consent.people import ROLES_OF_TWO, Decision, Person, note_decision, remedy_of_refusal
from undersong_client.consent.sheet import (
    MOST_NAMES,
    FinalCost,
    RunEnd,
    Sheet,
    SignedReceipt,
    Surroundings,
    UnitPromise,
)
from undersong_client.home import PartyHome
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError, PrivacyRefusal, UndersongError
from undersong_common.printable import counted, finite, joined, printable, shell_word

if TYPE_CHECKING:
    from undersong_common.privacy.ledger import Ledger
    from undersong_common.program.printed_page import PrintedPage

BEGUN, NOT_BEGUN = "begun", "not begun yet"  # stage of an approved run, as far as this software has been told


def requests(home: Path) -> tuple[Proposal, ...]:
    """Returns the plans that were proposed to this party, with the decisions, oldest first."""
    return tuple(Proposals(PartyHome(home)).all())


@dataclass(frozen=True)
class Preview:
    """Everything that people read before they decide: a request and its sheet.

    The sheet is current until the plan is approved. After that it is the signed one.
    """

    request: Proposal
    sheet: Sheet
    surroundings: Surroundings

    @property
    def page(self) -> "PrintedPage":
        from undersong_client.consent.preview import sheet_page

        return sheet_page(self.sheet, self.surroundings)

    def to_json(self) -> dict[str, Any]:
        return {**self.sheet.to_json(), "decision": self.request.decision}


def only_waiting(home: Path) -> str:
    """Returns the hash (hex) of the only plan that waits for a decision.

    If no plan waits, it returns the only one that the policy's checks refuse. Raises ConfigurationError if there is no
    such plan or several.
    """
    proposals = Proposals(PartyHome(home)).all()
    waiting_plans = [proposal for proposal in proposals if proposal.undecided] or [
        proposal for proposal in proposals if proposal.refused
    ]
    if len(waiting_plans) != 1:
        raise ConfigurationError(
            f"no RUN is named, and {counted(len(waiting_plans), 'plan waits', 'plans wait')} for a decision",
            "see `undersong-party requests`, and name the RUN",
            code="which-run",
        )
    return waiting_plans[0].manifest


def preview(home: Path, run: str, *, checkpoints: Path) -> Preview:
    """Returns what a run would release and cost, as the basis of a decision; decides nothing.

    Args:
        run: name of the run, or the beginning of its manifest's hash.
        checkpoints: the user's folder for heads of ledgers.

    Raises:
        ConfigurationError: there is no such run, or no data set.
        PrivacyRefusal: the data set's ledger is missing, broken or outdated.
    """
    party_home = PartyHome(home)
    proposals = Proposals(party_home)
    shown_proposal = proposals.find(run)
    if shown_proposal.has_lapsed:
        signed_sheet = None
    else:
        signed_sheet = proposals.sheet(shown_proposal)
    return _preview(party_home, proposals, shown_proposal, checkpoints, signed_sheet)


def _preview(
    party_home: PartyHome,
    proposals: Proposals,
    request: Proposal,
    checkpoints: Path,
    signed_sheet: Sheet | None = None,
) -> Preview:
    from undersong_client.consent import policy
    from undersong_client.consent.preview import with_request
    from undersong_client.storage import datasets

    hospital_policy = policy.read(party_home)
    ledger, _ = datasets.open_ledger(party_home, hospital_policy, checkpoints, at=time.time())
    run_end = None
    if request.ended_s:
        run_end = _make_run_end(party_home, proposals, request, ledger)
    shown_sheet = signed_sheet or make_sheet(party_home, proposals, request, ledger if run_end is None else None)
    # A signed sheet says what it said when it was signed: beside it stand only the runs that were charged by then.
    surroundings = Surroundings(_earlier_runs(ledger, request.run, until_s=request.decided_s))
    if signed_sheet is None:
        one_more, one_more_spent = _risks_with_one_more(proposals, request, ledger)
        surroundings = Surroundings(
            earlier_runs=_earlier_runs(ledger, request.run),
            earlier_decisions=_earlier_decisions(proposals, _earlier_runs(ledger, request.run)),
            largest_epsilon=hospital_policy.run_epsilon,
            is_standing=hospital_policy.approval == "standing",
            units_cut=_count_cut_units(party_home, shown_sheet.privacy),
            objection_list=datasets.exclusion_list_words(party_home),
            earlier_plan=_earlier_plan_words(proposals, request, ledger),
            one_more=one_more,
            one_more_spent=one_more_spent,
            is_undecided=request.undecided and not request.people,
            record_fields=_record_fields(party_home),
            shared=_shared_words(party_home),
        )
    return Preview(
        request, with_request(shown_sheet, request, is_signed=signed_sheet is not None, end=run_end), surroundings
    )


def _risks_with_one_more(
    proposals: Proposals, request: Proposal, ledger: "Ledger"
) -> tuple[tuple[float, float] | None, float | None]:
    """Returns the risk if one more hospital helps the operator than the plan assumes, and the epsilon of all runs then.

    The risk is the share of right guesses about one unit, on average and with bad luck. In the earlier runs all others
    are assumed to have helped. Both are None if the one more hospital is the last one: the sheet has that risk.
    """
    from undersong_common.privacy import accounting, impact
    from undersong_common.privacy.spending import Charge
    from undersong_protocol.agreement.manifest import Manifest

    plan = Manifest.from_bytes(proposals.manifest_bytes(request)).plan
    helper_count = plan.quorum.colluders + 1
    if helper_count >= plan.quorum.parties - 1:
        return None, None
    events = tuple(plan.events_with(helper_count))
    epsilon = accounting.epsilon(events, plan.usable_delta)
    one_more = accounting.best_guess(events), impact.certainty(epsilon, plan.privacy.delta)
    if ledger.budget is None:
        return one_more, None
    charge = Charge(
        request.run, request.manifest, "", 0, tuple(plan.charged_events()), alone=events, unit=plan.privacy.unit
    )
    return one_more, finite(ledger.spent_if_all_others_collude(ledger.budget.delta, charge))


def _shared_words(party_home: PartyHome) -> str:
    """Says which of budget and policy the hospital shares with the operator now."""
    settings = party_home.settings
    shared_facts = [
        *(["what is left of the budget"] if settings.share_budget else []),
        *(["the policy"] if settings.share_policy else []),
    ]
    return joined(shared_facts) or "neither"


def _record_fields(party_home: PartyHome) -> str:
    """Says what these programs read of one record of the data set."""
    from undersong_client.home import unit_word
    from undersong_client.storage import datasets

    table = datasets.load(party_home).table
    field_words = ["one text"]
    if table.labels is not None:
        field_words.append("one label")
    if table.users is not None:
        field_words.append(f"one {unit_word('user', party_home.settings.user_is)}'s number")
    field_words += map(printable, table.columns)
    return f"{joined(field_words)}, as the file has them; ask IT what the texts hold"


def _earlier_runs(ledger: "Ledger", run: str, until_s: float = math.inf) -> tuple[str, ...]:
    """Names of the runs that the ledger has charged before ``run`` and by ``until_s``, oldest first."""
    first_charges_s: dict[str, float] = {}
    for entry in ledger.entries():
        if entry["kind"] == "charge":
            first_charges_s.setdefault(entry["run"], entry["at"])
    run_names = tuple(
        dict.fromkeys(total.run for total in ledger.totals() if first_charges_s.get(total.run, 0.0) <= until_s)
    )
    return run_names[: run_names.index(run)] if run in run_names else run_names


def _earlier_decisions(proposals: Proposals, run_names: Sequence[str]) -> tuple[str, ...]:
    """Says who approved each earlier run, when, and what its signed sheet states of a list of objections."""
    from undersong_client.consent.choice_sections import objections_then

    decision_sentences = []
    for run_name in run_names[-MOST_NAMES:]:
        approved_plans = [
            approved_plan
            for approved_plan in proposals.under(run_name)
            if approved_plan.approvals or approved_plan.decision == "approved"
        ]
        if not approved_plans:
            decision_sentences.append(f"of {printable(run_name, 120)!r}, no approval is stored here")
            continue
        approved_plan = approved_plans[-1]
        approvers = [
            f"{printable(person.name, 80)} (role{'' if person.role_from else ', as typed'}: {person.role}) on"
            f" {datetime.fromtimestamp(person.at_s, UTC):%Y-%m-%d}"
            for person in approved_plan.approvals
        ]
        signed_sheet = proposals.sheet(approved_plan)
        objection_words = "" if signed_sheet is None else objections_then(signed_sheet)
        decider_names = joined(approvers) or "the policy, without a person"
        end_words = "; it has ended" if approved_plan.ended_s else "; it has not ended, as far as is known here"
        decision_sentences.append(
            f"{printable(run_name, 120)!r} was approved by {decider_names}{objection_words}{end_words}"
        )
    return tuple(decision_sentences)


def _count_cut_units(party_home: PartyHome, privacy: UnitPromise) -> int | None:
    """The number of users with more records than count in a run; None where no user is protected or named."""
    from undersong_client.storage import datasets

    users = datasets.load(party_home).table.users
    if privacy.unit != "user" or users is None:
        return None
    return sum(record_count > privacy.max_per_unit for record_count in Counter(users).values())


def _earlier_plan_words(proposals: Proposals, request: Proposal, ledger: "Ledger") -> str:
    """A sentence on what people here decided about the plan that this one follows, and what it cost; "" without one."""
    earlier_plans = [
        earlier_plan
        for earlier_plan in proposals.under(request.revises or request.run)
        if request.revises or earlier_plan.number < request.number
    ]
    if not earlier_plans:
        return ""
    earlier_plan = earlier_plans[-1]
    by_whom = ""
    if earlier_plan.people:
        decider = earlier_plan.people[-1]
        by_whom = f" by {printable(decider.name, 80)} on {datetime.fromtimestamp(earlier_plan.decided_s, UTC):%Y-%m-%d}"
    decided_words = {
        "pending": "nobody here has decided on that plan",
        "approved": f"that plan was approved here{by_whom}",
        "rejected": f"that plan was rejected here{by_whom}",
        "revoked": f"that plan was approved here and withdrawn{by_whom}",
    }[earlier_plan.decision]
    is_charged = any(
        (total.run, total.manifest) == (earlier_plan.run, earlier_plan.manifest) for total in ledger.totals()
    )
    if is_charged:
        cost_words = "it counts in your budget"
    else:
        cost_words = "it has cost nothing of your budget"
    state_words = "has ended" if earlier_plan.ended_s else "has not ended here"
    return f"{decided_words[0].upper()}{decided_words[1:]}; it {state_words}, and {cost_words}."


def _make_run_end(party_home: PartyHome, proposals: Proposals, request: Proposal, ledger: "Ledger") -> RunEnd:
    """Returns the cost of an ended run, and its receipt, of which the coordinator has a copy."""
    from undersong_protocol.agreement import receipt
    from undersong_protocol.agreement.manifest import Manifest

    signed_receipt = None
    run_entries = ledger.run_entries(request.run)
    if run_entries and run_entries[-1]["kind"] == "close" and run_entries[-1]["manifest"] == request.manifest:
        manifest = Manifest.from_bytes(proposals.manifest_bytes(request))
        receipt_body = receipt.body(manifest, party_home.settings.party, run_entries)
        signature = keys.identity(party_home).sign(tagged_hash(receipt.TAG, receipt_body))
        signed_receipt = SignedReceipt(receipt_body.decode("utf-8"), signature.hex())
    if ledger.budget is None:
        delta = request.delta
    else:
        delta = ledger.budget.delta
    is_charged = any(
        (run_total.run, run_total.manifest) == (request.run, request.manifest) for run_total in ledger.totals()
    )
    cost = next((run_cost for run_cost in ledger.costs(delta) if is_charged and run_cost.run == request.run), None)
    if cost is None:
        return RunEnd(None, signed_receipt)
    return RunEnd(FinalCost(finite(cost.epsilon), finite(cost.spent), cost.releases, delta), signed_receipt)


def begun(home: Path, requests: Sequence[Proposal]) -> frozenset[str]:
    """Returns the hashes (hex) of those plans whose run has begun, as far as this party has been told.

    A run has begun here once this party has seen the signature of every hospital. Raises ConfigurationError if the
    journal is damaged.
    """
    from undersong_client.storage.attempts import agreed_key
    from undersong_client.storage.store import Store

    party_home = PartyHome(home)
    if not party_home.journal.exists():
        return frozenset()
    party_store = Store(party_home.journal, party_home.settings.party, keys.secret(party_home, "store"))
    return frozenset(
        request.manifest for request in requests if party_store.get(agreed_key(bytes.fromhex(request.manifest)))
    )


def stages(home: Path, requests: Sequence[Proposal]) -> dict[str, str]:
    """Returns whether each run that goes on by an approval has begun, in words, by its plan's hash (hex)."""
    approved_requests = [request for request in requests if request.goes_on]
    begun_manifests = begun(home, approved_requests) if approved_requests else frozenset()
    return {
        request.manifest: BEGUN if request.manifest in begun_manifests else NOT_BEGUN for request in approved_requests
    }


def own_part(home: Path, request: Proposal) -> str:
    """Returns a sentence on the sums for which this party's numbers have left, of an approved or a withdrawn run.

    It reads journal, ledger and plan; "" for other runs. Raises ConfigurationError if the plan or the journal is
    damaged, PrivacyRefusal if the ledger is.
    """
    if request.decision != "revoked" and not request.goes_on:
        return ""
    sent_sums, sum_total = _sent_sums(PartyHome(home), request)
    if request.decision == "revoked":
        return _part_of_withdrawn(sent_sums, sum_total)
    if not sent_sums:
        left_words = "None of your numbers has left."
    else:
        left_words = f"Your numbers have left for {len(sent_sums)} of {counted(sum_total, 'sum')}."
    if begun(home, [request]):
        return f"This run has begun. {left_words}"
    return f"This run has not begun, as far as this software has been told. {left_words}"


def _part_of_withdrawn(sent_sums: Sequence[tuple[int, str]], sum_total: int) -> str:
    if not sent_sums:
        return "This hospital took part in no sum: none of its numbers has left."
    last_number, last_name = sent_sums[-1]
    return (
        f"This hospital took part until sum {last_number} of {sum_total} ({printable(last_name, 60)!r}): its numbers"
        f" left for {counted(len(sent_sums), 'sum')}, and for none after that. What was opened before stays opened, and"
        " the published texts name this hospital as one that took part until then."
    )


def _sent_sums(party_home: PartyHome, request: Proposal) -> tuple[list[tuple[int, str]], int]:
    """The number and the name of each sum for which this party's numbers have left, and the number of all sums."""
    from undersong_common.privacy.ledger import Ledger
    from undersong_protocol.agreement.manifest import Manifest

    manifest = Manifest.from_bytes(Proposals(party_home).manifest_bytes(request))
    sum_names = [planned_sum.name for planned_sum in manifest.plan.sums]
    if not party_home.ledger.exists():
        return [], len(sum_names)
    ledger = Ledger.read(party_home.ledger)
    sent_sums = [
        (sum_number, sum_name)
        for sum_number, sum_name in enumerate(sum_names, 1)
        if "sent" in ledger.attempts(request.run, sum_name).values()
    ]
    return sent_sums, len(sum_names)


def others_part(home: Path, request: Proposal) -> tuple[str, ...]:
    """Sentences on other hospitals that are not in every sum which this one helped to open: until which they took part.

    Every sentence rests on the signatures that this party checked. Raises ConfigurationError if the journal is damaged.
    """
    from undersong_client.storage.attempts import survivors_of
    from undersong_client.storage.store import Store
    from undersong_protocol.agreement.manifest import Manifest
    from undersong_protocol.agreement.participation import Participation

    party_home = PartyHome(home)
    if not party_home.journal.exists():
        return ()
    party = party_home.settings.party
    party_store = Store(party_home.journal, party, keys.secret(party_home, "store"))
    manifest = Manifest.from_bytes(Proposals(party_home).manifest_bytes(request))
    survivors = {
        planned_sum.name: survivors_of(party_store, manifest, planned_sum.name) for planned_sum in manifest.plan.sums
    }
    opened_sums = tuple((sum_name, sum_survivors) for sum_name, sum_survivors in survivors.items() if sum_survivors)
    other_names = tuple(member.name for member in manifest.roster if member.name != party)
    if opened_sums:
        return Participation(other_names, opened_sums).absences
    return ()


def make_sheet(party_home: PartyHome, proposals: Proposals, request: Proposal, ledger: "Ledger | None") -> Sheet:
    """Returns the sheet of a request as this party's folder makes it now, with its cost if there is a ledger."""
    from undersong_client.consent import policy, preview, trust
    from undersong_client.records import cautions, snapshot
    from undersong_client.storage import datasets
    from undersong_client.storage.own_figures import own_figures
    from undersong_protocol.agreement.manifest import Manifest

    manifest = Manifest.from_bytes(proposals.manifest_bytes(request))
    manifest.plan.check_form()  # a file of an earlier version may hold figures of any kind
    data_set = datasets.load(party_home)
    hospital_policy = policy.read(party_home)
    settings = party_home.settings
    party_side = preview.PartySide(
        name=settings.party,
        identity=keys.identity(party_home).public_key().public_bytes_raw(),
        embedder=settings.load_embedder().fingerprint,
        policy=hospital_policy,
        cautions=cautions.of_manifest(manifest, data_set, settings.user_is),
        warnings=[
            *cautions.of_plan(manifest, hospital_policy),
            *filter(None, [snapshot.facts(party_home).lengths.words]),
        ],
        has_labels=data_set.table.labels is not None,
        teacher_model=settings.teacher_model,
        coordinator=trust.coordinator(party_home) if party_home.coordinator.exists() else None,
        own=own_figures(party_home, manifest.labels).for_sheet(),
        drill=settings.drill,
    )
    return preview.make_sheet(manifest, party_side, ledger)


def note_shown(home: Path, shown_preview: Preview) -> None:
    """Records that this sheet was shown to a person, who may approve it from now on."""
    Proposals(PartyHome(home)).previewed(shown_preview.request, shown_preview.sheet, at=time.time())


def approve(
    home: Path,
    run: str,
    *,
    words: str,
    checkpoints: Path,
    person: Person,
    sheet: str | None = None,
    confirm: Callable[[Sequence[str]], None] = lambda _cautions: None,
) -> Proposal:
    """Approves one plan: signs the consent and the sheet that the person read.

    The plan stays pending if the policy asks for two people and this is the first approval.

    Args:
        words: the plan's nine words or its whole hash.
        person: the person who approves.
        sheet: hash of the sheet that was read (:attr:`Sheet.hash`); None takes the one that ``preview`` showed last.
        confirm: called with warnings that depend on the records, if there are any; raises an error to refuse.

    Raises:
        ConfigurationError: there is no such run, it has ended, was rejected or revoked, or another person must approve.
        AnotherSheet: budget, records or policy have changed, so that nobody has read the present sheet.
        PrivacyRefusal: the words are another plan's, the plan has changed, or the policy's checks refuse it.
    """
    party_home = PartyHome(home)
    proposals = Proposals(party_home)
    approved_proposal = proposals.find(run)
    _check_typed_words(party_home, proposals, approved_proposal, words, person)
    approvals.check_decision(approved_proposal, "approved")
    if approved_proposal.decision == "approved" and not approved_proposal.has_lapsed:
        return approved_proposal  # the sheet stays as it was signed
    present_sheet = _preview(party_home, proposals, approved_proposal, checkpoints).sheet
    if present_sheet.objections:
        raise PrivacyRefusal(
            f"this party's policy or budget refuses run {approved_proposal.run!r}, whatever is approved:"
            f" {'; '.join(present_sheet.objections)}",
            remedy_of_refusal(present_sheet.remedies, present_sheet.operator),
        )
    _check_read(approved_proposal, approved_proposal.previewed_sheet if sheet is None else sheet, present_sheet)
    confirm(present_sheet.cautions)
    needed_roles = ROLES_OF_TWO if present_sheet.two_people else ()
    if needed_roles:
        from undersong_client.consent import two_people

        present_hash = present_sheet.hash
        earlier_approvals = [approval for approval in approved_proposal.approvals if approval.sheet == present_hash]
        two_people.check_one_of_two(party_home, person, earlier_approvals)
    proposal = proposals.decide(
        approved_proposal, "approved", at=time.time(), sheet=present_sheet, person=person, roles=needed_roles
    )
    _note(party_home, "approve", approved_proposal, person)
    return proposal


def _check_typed_words(
    party_home: PartyHome, proposals: Proposals, request: Proposal, words: str, person: Person
) -> None:
    """Raises PrivacyRefusal unless these are the plan's words; the log says where they differ."""
    try:
        proposals.check_words(request, words)
    except PrivacyRefusal:
        from undersong_protocol.agreement.words import first_difference

        differing_word = first_difference(words.split(), request.words.split())
        note_decision(party_home, "approve refused", f"{request.run}, not the plan's words: {differing_word}", person)
        raise


def _check_read(request: Proposal, read_hash: str, present_sheet: Sheet) -> None:
    """Raises AnotherSheet unless the sheet of this hash, which a person has read, is the present one."""
    if read_hash == present_sheet.hash:
        return
    if read_hash == request.previewed_sheet:
        previewed_parts = request.previewed_parts
    else:
        previewed_parts = {}
    changed_parts = [
        part_name
        for part_name, part_hash in present_sheet.part_hashes.items()
        if previewed_parts.get(part_name, part_hash) != part_hash
    ]
    raise AnotherSheet(request.run, changed_parts, bool(read_hash))


def _note(party_home: PartyHome, action: str, request: Proposal, person: Person) -> None:
    comment_words = ""
    if person.comment:
        comment_words = f": {person.comment}"
    decision_subject = f"{request.run} ({request.manifest[:12]}): {person.name}, {person.role}{comment_words}"
    note_decision(party_home, action, decision_subject, person)


class AnotherSheet(PrivacyRefusal):
    """The run's present sheet was not shown to the person who approves it."""

    def __init__(self, run: str, parts: Sequence[str], was_shown: bool) -> None:
        changed_parts = f"{', '.join(parts) or 'budget, records or policy'}: no longer what it says"
        if was_shown:
            difference_words = f"has CHANGED since it was shown: {changed_parts}"
        else:
            difference_words = "was not shown"
        read_again = f"read it, then decide: undersong-party preview {shell_word(run)}"
        super().__init__(f"the sheet of run {run!r} {difference_words}", read_again, code="another-sheet")


@dataclass(frozen=True)
class Decided:
    """A signed decision; ``still_approved`` is the number of other plans of this name that stay approved."""

    request: Proposal
    still_approved: int = 0


def reject(home: Path, run: str, person: Person) -> Decided:
    """Rejects the latest plan under a run's name for good; the person's comment is sent to the operator."""
    party_home = PartyHome(home)
    proposals = Proposals(party_home)
    rejected_proposal = proposals.find(run)
    proposal = proposals.decide(rejected_proposal, "rejected", at=time.time(), reason=person.comment, person=person)
    _note(party_home, "reject", rejected_proposal, person)
    return Decided(proposal, len(_other_approved_plans(proposals, run, rejected_proposal)))


def revoke(home: Path, run: str, person: Person, *, checkpoints: Path) -> Decided:
    """Withdraws the consent to every plan that was approved under a run's name; the comment goes to the operator.

    Raises ConfigurationError if no plan was approved, or if the run has ended: what was released stays released.
    """
    from undersong_client.consent import policy
    from undersong_client.storage import datasets

    party_home = PartyHome(home)
    proposals = Proposals(party_home)
    now_s = time.time()
    approved_proposal = proposals.find(run, decision="approved")
    revocation: Decision = "revoked"
    approvals.check_decision(approved_proposal, revocation)
    # A name stands for every plan that was approved under it: another one than the last must not be signed either.
    for proposal in _other_approved_plans(proposals, run, approved_proposal):
        if not proposal.ended_s:
            proposals.decide(proposal, revocation, at=now_s, reason=person.comment, person=person)
    withdrawal = Decided(
        proposals.decide(approved_proposal, revocation, at=now_s, reason=person.comment, person=person)
    )
    _note(party_home, "revoke", approved_proposal, person)
    # The ledger is closed too: an older decision that a backup puts back would otherwise answer for the run again.
    with suppress(UndersongError):  # Without a ledger that opens, no run is answered anyway.
        ledger, ledger_checkpoints = datasets.open_ledger(party_home, policy.read(party_home), checkpoints, at=now_s)
        ledger.close(approved_proposal.run, approved_proposal.manifest, at=now_s)
        ledger_checkpoints.keep(ledger)
    end_attempts(party_home, checkpoints)
    return withdrawal


def leave(home: Path, *, checkpoints: Path) -> None:
    """Leaves the coordinator: removes the trust in it and the certificate. The ledger stays."""
    from undersong_client.consent import trust

    party_home = PartyHome(home)
    trust.coordinator(party_home)
    trust.leave(party_home)
    end_attempts(party_home, checkpoints)


def which_plan(run: str) -> ConfigurationError:
    """Returns the error for an approval that names a run but not which of its plans."""
    return ConfigurationError(
        f"which plan of run {run!r}? It may have been changed since you saw it",
        f"undersong-party preview {shell_word(run)}, then approve it with the words that it shows",
    )


def _other_approved_plans(proposals: Proposals, run: str, request: Proposal) -> list[Proposal]:
    return [
        proposal
        for proposal in proposals.under(run)
        if proposal.decision == "approved" and proposal.manifest != request.manifest
    ]


def end_attempts(home: PartyHome, checkpoints: Path) -> None:
    """Destroys the secrets of attempts that will not go on; leaves this to the daemon if it is running.

    Args:
        checkpoints: the user's folder for heads of ledgers.

    Raises ConfigurationError or PrivacyRefusal if keys, policy or journal are missing or damaged.
    """
    if home.is_running or not any(home.attempts.glob("*.key")):
        return
    from undersong_client.answering.assemble import assemble
    from undersong_client.answering.journaled import JournaledParty

    with ExitStack() as exit_stack:
        try:
            exit_stack.enter_context(home.running())
        except ConfigurationError:
            return  # A daemon, or a message over Flower, has just begun, and ends the attempts itself.
        assembled_party = assemble(home, checkpoints=checkpoints, clock=time.time, one_message=True)
        JournaledParty(home, assembled_party).look_after()
