"""Actions on the runs that were proposed to this party: read them and decide about them."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undersong_client import keys
from undersong_client.consent import approvals
from undersong_client.consent.approvals import Proposal, Proposals
from undersong_client.consent.people import ROLES_OF_TWO, Decision, Person, note_decision, remedy_of_refusal
from undersong_client.home import PartyHome
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError, PrivacyRefusal, UndersongError
from undersong_common.printable import counted, finite, printable, shell_word

if TYPE_CHECKING:
    from undersong_common.privacy.ledger import Ledger
    from undersong_common.program.printed_page import Page


def requests(home: Path) -> tuple[Proposal, ...]:
    """Returns the plans that were proposed to this party, with the decisions, oldest first."""
    return tuple(Proposals(PartyHome(home)).all())


@dataclass(frozen=True)
class Consent:
    """Everything that people read before they decide: a request, its figures, and the sheet that shows them.

    The figures are current until the plan is approved. After that they are those of the signed sheet.
    """

    request: Proposal
    figures: dict[str, Any]

    @property
    def hash(self) -> str:
        """Hash (hex) of everything that the sheet shows."""
        return approvals.sheet_hash(self.figures)

    @property
    def sheet(self) -> "Page":
        from undersong_client.consent import preview

        return preview.sheet(self.figures)

    def to_json(self) -> dict[str, Any]:
        return {**self.figures, "decision": self.request.decision}


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
            f"{counted(len(waiting_plans), 'plan waits', 'plans wait')} for a decision",
            "see `undersong-party requests`, and name the RUN",
            code="which-run",
        )
    return waiting_plans[0].manifest


def consent(home: Path, run: str, *, checkpoints: Path) -> Consent:
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
    request = proposals.find(run)
    signed = None if request.has_lapsed else proposals.sheet(request)
    return _consent(party_home, proposals, request, checkpoints, signed)


def _consent(
    party_home: PartyHome,
    proposals: Proposals,
    request: Proposal,
    checkpoints: Path,
    signed: dict[str, Any] | None = None,
) -> Consent:
    from undersong_client.consent import policy
    from undersong_client.storage import datasets
    from undersong_protocol.agreement.manifest import plan_words

    ledger, _ = datasets.open_ledger(party_home, policy.read(party_home), checkpoints, at=time.time())
    has_ended = bool(request.ended_s)
    current = signed or figures(party_home, proposals, request, None if has_ended else ledger)
    if has_ended:
        current = {**current, "objections": []}  # nothing is left to refuse
    return Consent(
        request,
        {
            "two_people": policy.read(party_home).two_people,
            **current,
            "words": plan_words(bytes.fromhex(request.manifest)),
            "number": request.number,
            "revises": request.revises,
            "changes": list(request.changes),
            "replaced": request.replaced,
            "as_signed": signed is not None,
            "people": [asdict(person) for person in request.people],
            "ended": _ended(party_home, proposals, request, ledger) if has_ended else None,
        },
    )


def _ended(party_home: PartyHome, proposals: Proposals, request: Proposal, ledger: "Ledger") -> dict[str, Any]:
    """Cost of an ended run, and its receipt as the coordinator has it; None for what there is none of."""
    from undersong_protocol.agreement import receipt
    from undersong_protocol.agreement.manifest import Manifest

    outcome: dict[str, Any] = {"cost": None, "receipt": None}
    entries = ledger.run_entries(request.run)
    if entries and entries[-1]["kind"] == "close" and entries[-1]["manifest"] == request.manifest:
        manifest = Manifest.from_bytes(proposals.manifest_bytes(request))
        body = receipt.body(manifest, party_home.settings.party, entries)
        signature = keys.identity(party_home).sign(tagged_hash(receipt.TAG, body))
        outcome["receipt"] = {"body": body.decode("utf-8"), "signature": signature.hex()}
    delta = request.delta if ledger.budget is None else ledger.budget.delta
    charged = any((total.run, total.manifest) == (request.run, request.manifest) for total in ledger.totals())
    cost = next((run_cost for run_cost in ledger.costs(delta) if charged and run_cost.run == request.run), None)
    if cost is not None:
        figures = {"epsilon": finite(cost.epsilon), "spent": finite(cost.spent)}
        outcome["cost"] = {**figures, "releases": cost.releases, "delta": delta}
    return outcome


def own_part(home: Path, request: Proposal) -> str:
    """Returns a sentence on the sums that this party's numbers left for before a run was withdrawn; "" for other runs.

    It reads the ledger and the plan. Raises ConfigurationError if the plan is damaged, PrivacyRefusal if the ledger is.
    """
    if request.decision != "revoked":
        return ""
    from undersong_common.privacy.ledger import Ledger
    from undersong_protocol.agreement.manifest import Manifest

    party_home = PartyHome(home)
    manifest = Manifest.from_bytes(Proposals(party_home).manifest_bytes(request))
    sums = [query.name for query in manifest.plan.sums]
    numbers: list[int] = []
    if party_home.ledger.exists():
        ledger = Ledger.read(party_home.ledger)
        numbers = [
            number for number, name in enumerate(sums, 1) if "sent" in ledger.attempts(request.run, name).values()
        ]
    if not numbers:
        return "This hospital took part in no sum: none of its numbers has left."
    last = printable(sums[numbers[-1] - 1], 60)
    return (
        f"This hospital took part until sum {numbers[-1]} of {len(sums)} ({last!r}): its numbers left"
        f" for {counted(len(numbers), 'sum')}, and for none after that."
    )


def figures(opened: PartyHome, known: Proposals, request: Proposal, ledger: "Ledger | None") -> dict[str, Any]:
    """Returns the figures of a request (``consent.preview.figures``), with its cost if there is a ledger."""
    from undersong_client.consent import policy, preview, trust
    from undersong_client.records import cautions, snapshot
    from undersong_client.storage import datasets
    from undersong_client.storage.own_figures import own_figures
    from undersong_protocol.agreement.manifest import Manifest

    manifest = Manifest.from_bytes(known.manifest_bytes(request))
    manifest.plan.check_form()  # a file of an earlier version may hold figures of any kind
    data = datasets.load(opened)
    allowed = policy.read(opened)
    settings = opened.settings
    return preview.figures(
        manifest,
        party=settings.party,
        identity=keys.identity(opened).public_key().public_bytes_raw(),
        embedder=settings.load_embedder().fingerprint,
        policy=allowed.bounds,
        ledger=ledger,
        cautions=cautions.of_manifest(manifest, data, settings.user_is),
        warnings=[*cautions.of_plan(manifest, allowed), *filter(None, [snapshot.facts(opened).lengths.words])],
        has_labels=data.table.labels is not None,
        teacher_model=settings.teacher_model,
        coordinator=trust.coordinator(opened) if opened.coordinator.exists() else None,
        own_figures=own_figures(opened, manifest.labels).for_sheet(),
        drill=settings.drill,
    )


def note_shown(home: Path, consent: Consent) -> None:
    """Records that this sheet was shown to a person, who may approve it from now on."""
    Proposals(PartyHome(home)).previewed(consent.request, consent.figures, at=time.time())


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
        sheet: hash of the sheet that was read (:attr:`Consent.hash`); None takes the one that ``preview`` showed last.
        confirm: called with warnings that depend on the records, if there are any; raises an error to refuse.

    Raises:
        ConfigurationError: there is no such run, it has ended, was rejected or revoked, or another person must approve.
        AnotherSheet: budget, records or policy have changed, so that nobody has read the present sheet.
        PrivacyRefusal: the words are another plan's, the plan has changed, or the policy's checks refuse it.
    """

    party_home = PartyHome(home)
    proposals = Proposals(party_home)
    request = proposals.find(run)
    try:
        proposals.check_words(request, words)
    except PrivacyRefusal:
        from undersong_protocol.agreement.words import first_difference

        differs = first_difference(words.split(), request.words.split())
        note_decision(party_home, "approve refused", f"{request.run}, not the plan's words: {differs}", person)
        raise
    sheet = request.previewed_sheet if sheet is None else sheet
    approvals.check_decision(request, "approved")
    if request.decision == "approved" and not request.has_lapsed:
        return request  # the sheet stays as it was signed
    present_consent = _consent(party_home, proposals, request, checkpoints)
    figures = present_consent.figures
    if figures["objections"]:
        raise PrivacyRefusal(
            f"this party's guard refuses run {request.run!r}, whatever is approved: {'; '.join(figures['objections'])}",
            remedy_of_refusal(figures["remedies"], figures["operator"]),
        )
    if sheet != present_consent.hash:
        previewed_parts = request.previewed_parts if sheet == request.previewed_sheet else {}
        parts = approvals.sheet_parts(figures).items()
        raise AnotherSheet(
            request.run, [name for name, part in parts if previewed_parts.get(name, part) != part], bool(sheet)
        )
    confirm(figures["cautions"])
    roles = ROLES_OF_TWO if figures["two_people"] else ()
    if roles:
        from undersong_client.consent import two_people

        earlier_approvals = [approval for approval in request.approvals if approval.sheet == sheet]
        two_people.check_one_of_two(party_home, person, earlier_approvals)
    proposal = proposals.decide(request, "approved", at=time.time(), figures=figures, person=person, roles=roles)
    _note(party_home, "approve", request, person)
    return proposal


def _note(party_home: PartyHome, what: str, request: Proposal, person: Person) -> None:
    comment = f": {person.comment}" if person.comment else ""
    subject = f"{request.run} ({request.manifest[:12]}): {person.name}, {person.role}{comment}"
    note_decision(party_home, what, subject, person)


class AnotherSheet(PrivacyRefusal):
    """The run's present sheet was not shown to the person who approves it."""

    def __init__(self, run: str, parts: Sequence[str], shown: bool) -> None:
        changed_parts = f"{', '.join(parts) or 'budget, records or policy'}: no longer what it says"
        difference = f"has CHANGED since it was shown: {changed_parts}" if shown else "was not shown"
        remedy = f"read it, then decide: undersong-party preview {shell_word(run)}"
        super().__init__(f"the sheet of run {run!r} {difference}", remedy, code="another-sheet")


@dataclass(frozen=True)
class Decided:
    """A signed decision; ``still_approved`` is the number of other plans of this name that stay approved."""

    request: Proposal
    still_approved: int = 0


def reject(home: Path, run: str, person: Person) -> Decided:
    """Rejects the latest plan under a run's name for good; the person's comment is sent to the operator."""
    party_home = PartyHome(home)
    proposals = Proposals(party_home)
    request = proposals.find(run)
    proposal = proposals.decide(request, "rejected", at=time.time(), reason=person.comment, person=person)
    _note(party_home, "reject", request, person)
    return Decided(proposal, len(_approved(proposals, run, request)))


def revoke(home: Path, run: str, person: Person, *, checkpoints: Path) -> Decided:
    """Withdraws the consent to every plan that was approved under a run's name; the comment goes to the operator.

    Raises ConfigurationError if no plan was approved, or if the run has ended: what was released stays released.
    """
    from undersong_client.consent import policy
    from undersong_client.storage import datasets

    party_home = PartyHome(home)
    proposals = Proposals(party_home)
    now_s = time.time()
    request = proposals.find(run, decision="approved")
    decision: Decision = "revoked"
    approvals.check_decision(request, decision)
    # A name stands for every plan that was approved under it: another one than the last must not be signed either.
    for proposal in _approved(proposals, run, request):
        if not proposal.ended_s:
            proposals.decide(proposal, decision, at=now_s, reason=person.comment, person=person)
    withdrawal = Decided(proposals.decide(request, decision, at=now_s, reason=person.comment, person=person))
    _note(party_home, "revoke", request, person)
    # The ledger is closed too: an older decision that a backup puts back would otherwise answer for the run again.
    with suppress(UndersongError):  # a run is never answered without a ledger that counts
        ledger, ledger_checkpoints = datasets.open_ledger(party_home, policy.read(party_home), checkpoints, at=now_s)
        ledger.close(request.run, request.manifest, at=now_s)
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


def _approved(proposals: Proposals, run: str, request: Proposal) -> list[Proposal]:
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

    with ExitStack() as resources:
        try:
            resources.enter_context(home.running())
        except ConfigurationError:
            return  # a daemon, or a message over Flower, has just begun, and looks after it itself
        ready = assemble(home, checkpoints=checkpoints, clock=time.time, one_message=True)
        JournaledParty(home, ready).look_after()
