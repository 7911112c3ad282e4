"""The sheet of a proposed run, made from plan, folder and ledger (``make_sheet``), and its page (``sheet_page``)."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from undersong_client.consent.approvals import Proposal
from undersong_client.consent.differences import changes_to_read
from undersong_client.consent.people import PersonalDecision, remedy_of_refusal
from undersong_client.consent.policy import HospitalPolicy, review
from undersong_client.consent.rules import decider_words
from undersong_client.consent.run_terms import duration_section, kept_section, rejection_words
from undersong_client.consent.sheet import (
    NO_LIST,
    NO_LIST_AS_SIGNED,
    NOTHING_BESIDE,
    BudgetEffect,
    FinalCost,
    NamedParty,
    OwnRecords,
    ReleaseGroup,
    RunEnd,
    Sheet,
    StatedTask,
    Surroundings,
    UnitPromise,
)
from undersong_client.consent.trust import TrustedCoordinator
from undersong_client.home import case_caution, unit_word
from undersong_common.errors import UndersongError
from undersong_common.printable import counted, finite, printable
from undersong_common.privacy import accounting, impact
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge
from undersong_common.program.drill import MARK, PARTY_WORDS
from undersong_common.program.printed_page import PageSection, PrintedPage
from undersong_protocol import limits, statistics
from undersong_protocol.agreement import words
from undersong_protocol.agreement.enrolment import party_fingerprint
from undersong_protocol.agreement.manifest import Manifest, plan_words

WORDS = "The nine words of this plan, to approve it by and to compare over the telephone"
WORDS_OF_ENDED = "The nine words of this plan"
FOR_YOU = "Before you decide, for you alone (the operator is told nothing of it)"
NOTED = "Noted before the decision, for you alone (the operator was told nothing of it)"
ALLOWED = "What the plan allowed to leave, and no more"
NOTHING_LEFT = "None of your numbers left."
NAME_STAYS = (
    "The run has ended, and nobody can withdraw from it any more. Published texts cannot be recalled, and they name"
    " this hospital as one that took part; one that had withdrawn is named as one that took part until then."
)
NAME_IN_PRINT = (
    "If the run takes place with you, what is published names your hospital as one that took part. If you withdraw"
    " while it runs, it is named all the same, with the sum until which it took part. Published texts cannot be"
    " recalled."
)
RUNS_TOGETHER = "Each run draws its random noise anew; so these use less together than each by itself and then added."
NEWER_FILE = "A newer version of the file does not begin again at zero."
BEYOND_PARTICIPATION = (
    "The same figures hold for any other question about {subject}, such as what the records say, on which somebody"
    " could otherwise only toss a coin. The programs that give the texts know public material and these numbers; no"
    " record is shown to them."
)
ASK_FIRST = (
    "Look up the operator's telephone number elsewhere than on this sheet. Ask whether this run is theirs, and under"
    " which agreement with your hospital it runs."
)
COMPARE = (
    "Compare the nine words, and the fingerprints {place}, by telephone with the operator{hospitals}."
    " If anything differs: Reject."
)
DECIDE = "Decide in the program: Approve or Reject, on its page under Requests, or where it asks you. Only that counts."
WITHDRAW = (
    "Change your mind: choose Withdraw on the page, under Requests, until the run ends, which Requests shows."
    " Before the run has begun, it then does not begin, and nothing published names your hospital."
    " Later, nothing more leaves: what was opened stays opened, may still steer and be published, and counts against"
    " your budget; a number that had left may still be opened with its sum and counts too, and your hospital stays"
    " named."
)
MOST_NAMES = 12  # names of hospitals on the sheet; further ones are only counted
LEAST_SAVING = 0.99  # A joint cost below this share of the sum of two costs is worth a sentence.
BRACKETED = re.compile(r" \([^()]*\)")
LONGEST_SENTENCE = 600  # characters of the operator's words: one page must hold them


@dataclass(frozen=True)
class PartySide:
    """Additions of a party's folder to a plan, for its own people.

    Attributes:
        name, identity, teacher_model: as in :func:`undersong_client.consent.policy.review`.
        embedder: SHA-256 (hex) of this party's embedding model.
        policy: the party's policy.
        cautions: warnings that depend on the records (:mod:`undersong_client.records.cautions`).
        warnings: warnings that do not depend on the records.
        has_labels: True if the data set has a column of labels.
        coordinator: the coordinator that this party has joined; None without one.
        own: figures by which its people recognise the data set.
        drill: True if this party's folder is a rehearsal's.
    """

    name: str
    identity: bytes
    embedder: str
    policy: HospitalPolicy
    cautions: Sequence[str]
    warnings: Sequence[str]
    has_labels: bool
    teacher_model: str
    coordinator: TrustedCoordinator | None
    own: OwnRecords
    drill: bool


def make_sheet(manifest: Manifest, party: PartySide, ledger: Ledger | None) -> Sheet:
    """Returns the sheet of a proposed run; ``objections`` lists the reasons of the policy's checks.

    Args:
        ledger: the data set's ledger, for the cost; None if it cannot be read.
    """
    plan = manifest.plan
    quorum = plan.quorum
    bounds = party.policy.bounds
    refusals = _refusals(manifest, party)
    plan_cost = None
    if ledger is not None:
        plan_charge = _plan_charge(manifest)
        try:
            ledger.check_room(plan_charge)
        except UndersongError as error:
            refusals.append(error)
        plan_cost = _compute_cost(ledger, plan_charge)
    coordinator = party.coordinator
    return Sheet(
        two_people=party.policy.two_people,
        drill=party.drill,
        run=manifest.run,
        manifest=manifest.hash.hex(),
        task=_stated_task(manifest.task),
        operator=operator_words(manifest.task, coordinator),
        asked=tuple(words.questions(plan)),
        own=party.own,
        method=manifest.method,
        coordinator=None if coordinator is None else NamedParty(coordinator.name, coordinator.fingerprint),
        privacy=_compute_promise(manifest, party.own.word),
        cost=plan_cost,
        party=party.name,
        required_parties=tuple(party_name for party_name, _ in bounds.required_parties),
        parties=tuple(
            NamedParty(member.name, party_fingerprint(member.name, member.identity)) for member in manifest.roster
        ),
        others=words.others(plan),
        tolerated_dropouts=quorum.tolerated_dropouts,
        colluders=quorum.colluders,
        post_quantum=quorum.post_quantum,
        releases=_group_releases(manifest),
        clock_bits=max((limits.bits(planned_sum.first_rung_s) for planned_sum in plan.sums), default=0.0),
        first_rung_s=min((planned.first_rung_s for planned in plan.sums), default=0.0),
        numbers_in_all=sum(planned.dimension for planned in plan.sums),
        labels_missing=bool(manifest.task.get("labels")) and not party.has_labels,
        objections=tuple(refusal.problem for refusal in refusals),
        remedies=tuple(refusal.remedy for refusal in refusals),
        cautions=tuple(party.cautions),
        warnings=tuple(party.warnings),
    )


def with_request(sheet: Sheet, request: Proposal, *, is_signed: bool, end: RunEnd | None) -> Sheet:
    """Returns a sheet, whether signed or made now, with what the request is at present.

    Args:
        end: the run's end; None before.
    """
    return replace(
        sheet,
        objections=sheet.objections if end is None else (),  # nothing is left to refuse
        words=plan_words(bytes.fromhex(request.manifest)),
        number=request.number,
        revises=request.revises,
        changes=request.changes,
        replaced=request.replaced,
        as_signed=is_signed,
        people=request.people,
        ended=end,
    )


def _refusals(manifest: Manifest, party: PartySide) -> list[UndersongError]:
    """The reason of the policy's checks against the plan; [] if they accept it."""
    try:
        review(
            manifest,
            party.policy.bounds,
            name=party.name,
            identity=party.identity,
            embedder=party.embedder,
            teacher_model=party.teacher_model,
        )
    except UndersongError as error:
        return [error]
    return []


def _stated_task(task: Mapping[str, Any]) -> StatedTask:
    words_by_field: dict[str, Any] = {
        stated_field.name: task.get(stated_field.name) for stated_field in fields(StatedTask)
    }
    return StatedTask(**words_by_field)


def _plan_charge(manifest: Manifest) -> Charge:
    """The charge of a whole plan."""
    plan = manifest.plan
    charged_events = tuple(plan.charged_events())
    alone_events = tuple(plan.alone_events())
    return Charge(manifest.run, manifest.hash.hex(), "", 0, charged_events, alone=alone_events, unit=plan.privacy.unit)


def _compute_promise(manifest: Manifest, user_word: str) -> UnitPromise:
    plan = manifest.plan
    plan_privacy = plan.privacy
    charged_events = plan.charged_events()
    return UnitPromise(
        epsilon=finite(plan_privacy.epsilon),
        delta=plan_privacy.delta,
        unit=plan_privacy.unit,
        unit_word=unit_word(plan_privacy.unit, user_word),
        max_per_unit=plan_privacy.max_per_unit,
        max_records=plan_privacy.max_records,
        best_guess=accounting.best_guess(charged_events),
        epsilon_if_all_others_collude=finite(plan.epsilon_if_all_others_collude()),
        stopping_refunds=accounting.is_one_gaussian(charged_events),
    )


def _compute_cost(ledger: Ledger, charge: Charge) -> BudgetEffect | None:
    """The run's cost at the delta of the data set's budget, so that the figures can be subtracted; None without one."""
    if (budget := ledger.budget) is None:
        return None
    delta = budget.delta
    empty_charge = replace(charge, events=(), alone=())
    spent_after = ledger.spent_with(charge, delta)
    return BudgetEffect(
        delta=delta,
        budget=finite(budget.epsilon),
        before=finite(ledger.spent_with(empty_charge, delta)),
        alone=finite(accounting.epsilon(charge.events, delta)),
        after=finite(spent_after),
        best_guess_after=ledger.best_guess_with(charge, delta),
        left_after=finite(max(0.0, budget.epsilon - spent_after)),
        worst_before=finite(ledger.spent_if_all_others_collude(delta, empty_charge)),
        worst_after=finite(ledger.spent_if_all_others_collude(delta, charge)),
    )


def operator_words(task: Mapping[str, Any], coordinator: TrustedCoordinator | None) -> str:
    """Returns who asks: the operator's legal name and contact as the plan states them, else the coordinator's name."""
    operator = printable(str(task.get("operator") or ""), LONGEST_SENTENCE)
    contact_words = printable(str(task.get("contact") or ""), LONGEST_SENTENCE)
    contact_details = contact_words
    if not operator and not contact_words and coordinator is not None:
        contact_details = f"coordinator {printable(coordinator.name, 63)!r}"
    operator_name = operator or "the operator"
    return f"{operator_name} ({contact_details})" if contact_details else operator_name


def sheet_page(sheet: Sheet, beside: Surroundings = NOTHING_BESIDE) -> PrintedPage:
    """Returns a sheet as a page: short answers and the budget first, all further figures folded.

    The page of an ended run speaks of the past, and has the figures as it ran where the ledger has them.
    """
    is_open = sheet.ended is None
    check_words = sheet.words.split()
    words_in_threes = tuple(
        " ".join(check_words[first_word : first_word + 3]) for first_word in range(0, len(check_words), 3)
    )
    unlabelled_words = "the run uses labels and your data set has no label column: your records count for none"
    warnings = [*_policy_points(sheet), *sheet.cautions, *[unlabelled_words] * sheet.labels_missing]
    signed_words = ("Approved: the figures on this sheet are those that were signed.",) if sheet.as_signed else ()
    return PrintedPage(
        _title(sheet),
        (
            *marked(sheet),
            *_end_sections(sheet),
            *_change_sections(sheet, beside),
            *_refusal_sections(sheet),
            *_list_points("Who decided", map(_describe_decision, sheet.people)),
            _in_short(sheet, beside),
            purpose(sheet),
            *_risk_table(sheet),
            *_own_records(sheet, beside),
            *_budget_sections(sheet, beside),
            *_list_points(FOR_YOU if is_open else NOTED, warnings),
            _hospital_section(sheet),
            *([duration_section(sheet)] if is_open else []),
            kept_section(),
            *_choice_sections(sheet, beside),
            PageSection(WORDS if is_open else WORDS_OF_ENDED, signed_words, aloud=words_in_threes),
            *_fingerprints_to_compare(sheet),
            _figure_section(sheet),
            replace(leaves(sheet) if is_open else leaves(sheet, ALLOWED), folded=True),
            *_folded_fingerprints(sheet),
            *_receipt_sections(sheet),
        ),
        note="What is decided counts for the plan of the nine words below and for no other.",
        signature=f"For {sheet.party}'s files: approved / rejected (strike out one); only the choice on the page counts"
        if is_open
        else f"Filed for {sheet.party}:",
        signers=2 if sheet.two_people else 1,
        entries=_entries(sheet) if is_open else (),
    )


def _title(sheet: Sheet) -> str:
    run = repr(printable(sheet.run, 120))
    if sheet.ended is None:
        return f"May the run {run} use the records of {sheet.party}?"
    if sheet.ended.cost is None:
        return f"The run {run} has ended without the records of {sheet.party}"
    return f"The run {run} has used the records of {sheet.party}"


def _policy_points(sheet: Sheet) -> Iterator[str]:
    """Yields what the policy says to the run, and the warnings that the first answers do not have already."""
    if sheet.ended is None and not sheet.objections:
        yield (
            "your policy and your budget allow this run: both limit the figures that hold while"
            f" {_most_helpers(sheet)} the operator"
        )
        if not sheet.required_parties and len(sheet.parties) > 1:
            yield ("your policy names no hospital that must take part; whoever sets it can name those that you know")
    for warning in sheet.warnings:
        if warning != words.opened_numbers(sheet.others):
            yield _beside_the_run(sheet, warning)


def _beside_the_run(sheet: Sheet, warning: str) -> str:
    """Sets the policy's number of other hospitals beside this run's; returns every other warning as it was signed."""
    if warning == words.by_policy(sheet.others) and sheet.ended is None:
        return (
            f"a sum of this run may open with as few as {counted(sheet.others, 'other hospital')}, and your policy"
            " demands no more; whoever sets it can demand more, and this run is then refused"
        )
    for helper_count in range(sheet.others):
        if warning == words.by_policy(helper_count):
            allowed_words = f"only {helper_count}" if helper_count else "none"
            allowed_words += (
                ", which could subtract its own numbers and see yours, blurred" if helper_count == 1 else ""
            )
            if sheet.ended is None:
                needs_verb, accept_verb = "needs", "accept"
            else:
                needs_verb, accept_verb = "needed", "have accepted"
            return (
                f"this run {needs_verb} the numbers of at least {counted(sheet.others, 'other hospital')}; your policy"
                f" would also {accept_verb} a run with {allowed_words}; for later runs, whoever sets it can demand more"
            )
    return warning


def _list_points(title: str, points: Iterable[str], *, loud: bool = False) -> list[PageSection]:
    """One section of these points; none if there are no points."""
    point_list = tuple(points)
    return [PageSection(title, points=point_list, loud=loud)] if point_list else []


def _refusal_sections(sheet: Sheet) -> list[PageSection]:
    """Says what this party's guard refuses, and the remedy."""
    if not sheet.objections:
        return []
    refusal_points = (
        *map(printable, sheet.objections),
        f"Remedy: {remedy_of_refusal(sheet.remedies, sheet.operator)}.",
    )
    return _list_points("Your hospital REFUSES it as it stands:", refusal_points, loud=True)


def _describe_decision(person: PersonalDecision) -> str:
    return person.words(f"{datetime.fromtimestamp(person.at_s, UTC):%Y-%m-%d %H:%M} UTC")


def _in_short(sheet: Sheet, beside: Surroundings) -> PageSection:
    """Sentences for a reader without statistics: the request, the numbers that leave, the risk, the hospital's name."""
    operator = sheet.operator
    run_end = sheet.ended
    end_cost = None if run_end is None else run_end.cost
    hospitals = counted(len(sheet.parties), "hospital")
    if run_end is None:
        asks_verb, steer_verb = "asks", "steer"
    else:
        asks_verb, steer_verb = "asked", "steered"
    own_statistics = [release.statistic for release in sheet.releases if not release.source]
    writers = [_split_writer(writer)[0] for writer in sheet.task.generators or ()]
    examples = tuple(map(printable, words.examples(own_statistics, sheet.task.labels or (), writers)))
    request_words = f"{operator[0].upper()}{operator[1:]} {asks_verb}: {words.asked(sheet.asked)}."
    if run_end is not None and end_cost is None:
        return PageSection("In short", figures=(("What was asked", request_words), ("What left", NOTHING_LEFT)))
    programs = words.programs(sheet.task.generators or ())
    request_words += (
        f" These numbers, added to those of others, {steer_verb} {programs}, in the run"
        f" {printable(sheet.run, 120)!r} of {hospitals} in all.{_limit_words(sheet, beside)}"
    )
    counts_words = words.counted_numbers(sheet.numbers_in_all)
    blurring_words = (
        "blurred here by random noise and then scrambled: the operator can read nothing but a sum with those of others"
    )
    if end_cost is None:
        leaving_words = (
            f"{counts_words} about your records, {blurring_words}. {_opened_with(sheet)} {words.ANEW}"
            " The operator may publish the sums with the texts. No record, no text and no part of a text leaves."
            f"{_time_words(sheet)}"
        )
    else:
        answer_words = counted(end_cost.releases, "answer")
        leaving_words = (
            f"At most {counts_words} about your records in {answer_words}, {blurring_words}. {_opened_with(sheet)} No"
            " record, no text and"
            " no part of a text has left."
        )
    return PageSection(
        "In short",
        figures=(
            ("What is asked" if run_end is None else "What was asked", request_words),
            *[("Also asked", f"{further_clause}.") for further_clause in words.further(sheet.asked)],
            *([("For example", f"{'; '.join(examples)}.")] if examples else []),
            *_describe_deciders(sheet, beside),
            ("What leaves" if run_end is None else "What left", leaving_words),
            ("The risk of this run", _risk_words(sheet)),
            *_risk_of_all(sheet, beside),
            *_worst_of_all(sheet),
            *_beyond_participation(sheet),
            *([("The name of your hospital", NAME_IN_PRINT)] if run_end is None else []),
        ),
    )


def _limit_words(sheet: Sheet, beside: Surroundings) -> str:
    """Says how many records of one unit count, which ones of a unit with more, and how many such units there are."""
    sheet_privacy = sheet.privacy
    if sheet_privacy.unit == "sample":
        return ""
    record_limit = sheet_privacy.max_per_unit
    verb = "counts" if record_limit == 1 else "count"
    verb_of_some = "is" if record_limit == 1 else "are"
    cut_words = "" if beside.units_cut is None else f" ({beside.units_cut:,} here)"
    return (
        f" Of one {sheet_privacy.unit_word}, at most {counted(record_limit, 'record')} {verb}; of one with"
        f" more{cut_words}, {record_limit} {verb_of_some} drawn at random."
    )


def _beyond_participation(sheet: Sheet) -> list[tuple[str, str]]:
    """Says that the figures of the risk bound whatever is learned, and not participation alone."""
    if sheet.privacy.epsilon is None:
        return []
    guessed_subject = _guessed_unit(sheet.privacy)
    return [("What else could be learned", BEYOND_PARTICIPATION.format(subject=guessed_subject))]


def _risk_table(sheet: Sheet) -> list[PageSection]:
    """The risks of this run and of all runs in cases of 100, by who guesses: on average, and in an unlucky case."""
    if sheet.ended is not None or sheet.privacy.epsilon is None:
        return []
    head = ["who guesses", "this run, on average", f"this run, {impact.UNLUCKY}"]
    if _has_risk_of_all(sheet):
        head += ["all runs, on average", f"all runs, {impact.UNLUCKY}"]
    risks_of_reader = {_usual_reader(sheet): _usual_risks(sheet)}
    if _can_be_undone(sheet):
        risks_of_reader[_worst_reader(sheet)] = _worst_risks(sheet)
    rows = [(reader, *map(impact.cases, risks)) for reader, risks in risks_of_reader.items()]
    sentences = (
        "With all that somebody can see, a guess is right in at most so many. An average counts every run, the unlucky"
        " ones too. The noise is drawn by chance, and an unlucky case is one in which it hides less.",
        *_chance_words(sheet),
        "Not in these figures: the time of an answer, and what people in your own house see.",
    )
    return [PageSection(f"The risk in cases of 100, {words.AS_PLANNED}", sentences, table=(tuple(head), *rows))]


def _has_risk_of_all(sheet: Sheet) -> bool:
    """True if the sheet has the risk of all runs: not without a budget, and not as an earlier version signed it."""
    return sheet.cost is not None and sheet.cost.best_guess_after is not None


def _can_be_undone(sheet: Sheet) -> bool:
    """True if the promise fails where all other hospitals help the operator."""
    return len(sheet.parties) - 1 > sheet.colluders


def _usual_risks(sheet: Sheet) -> list[float]:
    """Shares of right guesses while the promise holds: on average and in an unlucky case, of this run and of all."""
    risks = [sheet.privacy.best_guess, _certainty(sheet.privacy.epsilon, sheet.privacy.delta)]
    cost = sheet.cost
    if cost is not None and cost.best_guess_after is not None:
        risks += [cost.best_guess_after, _certainty(cost.after, cost.delta)]
    return risks


def _worst_risks(sheet: Sheet) -> list[float]:
    """The same shares if all other hospitals help the operator in every run."""
    sure_alone = _certainty(sheet.privacy.epsilon_if_all_others_collude, sheet.privacy.delta)
    risks = [_guess_if_all_help(sheet.privacy), sure_alone]
    cost = sheet.cost
    if cost is not None and cost.best_guess_after is not None:
        risks += [_guess_of_all_if_all_help(sheet), max(_certainty(cost.worst_after, cost.delta), sure_alone)]
    return risks


def _worst_of_all(sheet: Sheet) -> list[tuple[str, str]]:
    """The largest figures of the table of risks, for the first answers: all help the operator, in an unlucky case."""
    if sheet.ended is not None or sheet.privacy.epsilon is None or not _can_be_undone(sheet):
        return []
    risks = _worst_risks(sheet)
    of_all = f", and from all runs together in at most {impact.cases(risks[3])}" if _has_risk_of_all(sheet) else ""
    return [
        (
            "If all others help",
            f"If all other hospitals help the operator, then {impact.UNLUCKY} a guess from this run is right in at most"
            f" {impact.cases(risks[1])} of 100 cases{of_all}.",
        )
    ]


def _usual_reader(sheet: Sheet) -> str:
    """Names who guesses while the promise holds."""
    helpers = ""
    if sheet.colluders:
        helpers = f", with the help of {counted(min(sheet.colluders, len(sheet.parties) - 1), 'other hospital')}"
    return f"the operator, and whoever sees all that is published{helpers}"


def _worst_reader(sheet: Sheet) -> str:
    """Names who guesses where the promise no longer holds: whoever can subtract the numbers of all others of a sum."""
    together = "all other hospitals with the operator"
    if sheet.colluders:
        return together
    if sheet.others <= 1:
        return f"one other hospital for itself, if it is alone with you in a sum; or {together}"
    return f"{together} (one other hospital for itself: less)"


def _chance_words(sheet: Sheet) -> list[str]:
    """Says how often a run is worse than the table's unlucky case: for one unit, and for any of the data set's."""
    sheet_cost = sheet.cost
    deltas = {"runs like this one": sheet.privacy.delta}
    if sheet_cost is not None and sheet_cost.best_guess_after is not None:
        if sheet_cost.delta == sheet.privacy.delta:
            deltas = {"runs like this one, or series of all runs like these": sheet_cost.delta}
        else:
            deltas["series of all runs like these"] = sheet_cost.delta
    unit_total = _unit_total(sheet)
    people = unit_word("user", sheet.own.word if sheet.own else "", 2)
    frequencies = []
    for runs, delta in deltas.items():
        if not delta:
            continue
        frequency = f"{impact.worse_runs(delta, runs=runs)} for {_guessed_unit(sheet.privacy)}"
        if unit_total:
            frequency += f", and at most {2 * unit_total:,} for any of all {unit_total:,} {people}"
        frequencies.append(f"{_start_sentence(frequency)}.")
    return [" ".join(frequencies)] if frequencies else []


def _unit_total(sheet: Sheet) -> int:
    """The number of patients of the data set; 0 where no column names them, or there are not several."""
    if sheet.privacy.unit != "user" or sheet.own is None:
        return 0
    people = unit_word("user", sheet.own.word, 2)
    count = next((text for name, text in sheet.own.rows if name == people), "").replace(",", "")
    return int(count) if count.isdigit() and count not in ("0", "1") else 0


def _certainty(epsilon: float | None, delta: float) -> float:
    return 1.0 if epsilon is None else impact.certainty(epsilon, delta)


def _guess_of_all_if_all_help(sheet: Sheet) -> float:
    """The best guess from all runs if all others help the operator in each; of the first run, that of this run."""
    sheet_cost = sheet.cost
    if sheet_cost is None or sheet_cost.worst_after is None:
        return 1.0
    if not sheet_cost.before and not sheet_cost.worst_before:
        plan_guess = _guess_if_all_help(sheet.privacy)
    else:
        plan_guess = accounting.best_guess_of(
            sheet_cost.worst_after, sheet_cost.delta, one_gaussian=_are_one_gaussian(sheet_cost)
        )
    return max(plan_guess, sheet_cost.best_guess_after or 0.0)


def _are_one_gaussian(cost: BudgetEffect) -> bool:
    """True if all runs together are Gaussians without subsampling: their two figures are then one curve's.

    Only of these does the pair of epsilon and delta determine the best guess.
    """
    if cost.after is None or cost.best_guess_after is None:
        return False
    gaussian_guess = accounting.best_guess_of(cost.after, cost.delta, one_gaussian=True)
    return math.isclose(gaussian_guess, cost.best_guess_after, abs_tol=1e-6)


def _time_words(sheet: Sheet) -> str:
    """Says that the time of an answer is seen, too, which no epsilon covers."""
    if not sheet.clock_bits:
        return ""
    return " The operator sees how long an answer takes, too: it may tell roughly how many records you have."


def _opened_with(sheet: Sheet) -> str:
    """Says with how many others this hospital's numbers are opened."""
    return f"{words.opened_numbers(sheet.others, 'Your numbers', has_ended=sheet.ended is not None)}."


def _own_records(sheet: Sheet, beside: Surroundings) -> list[PageSection]:
    """The figures by which its people recognise the data set; an undecided sheet says more than the words it signs."""
    if sheet.own is None:
        return []
    no_list = NO_LIST_AS_SIGNED if sheet.as_signed or sheet.ended is not None else NO_LIST
    record_rows = tuple((name, no_list if text == NO_LIST_AS_SIGNED else text) for name, text in sheet.own.rows)
    people = unit_word("user", sheet.own.word, 2)
    if beside.objection_list:
        record_rows = tuple(
            (name, f"{text} ({beside.objection_list})" if name == f"{people} who object" else text)
            for name, text in record_rows
        )
    later = (
        f"Of {people} who object later, nothing more leaves as soon as IT has added the file anew with the longer list;"
        " what was opened before stays opened."
    )
    return [PageSection("Your records, counted without the rows left out", (later,), figures=record_rows)]


def _promise_as_it_ran(sheet: Sheet) -> UnitPromise:
    """The promise that the ledger's charge of an ended run amounts to; the plan's before."""
    planned_privacy = sheet.privacy
    if (
        sheet.ended is None
        or (end_cost := sheet.ended.cost) is None
        or end_cost.epsilon is None
        or planned_privacy.epsilon is None
    ):
        return planned_privacy
    ended_guess = planned_privacy.best_guess
    if planned_privacy.stopping_refunds:  # The charge is one Gaussian, which the two figures determine.
        ended_guess = accounting.best_guess_of(end_cost.epsilon, end_cost.delta, one_gaussian=True)
    return replace(planned_privacy, epsilon=end_cost.epsilon, delta=end_cost.delta, best_guess=ended_guess)


def _risk_words(sheet: Sheet) -> str:
    promised_privacy = _promise_as_it_ran(sheet)
    if sheet.ended is None:
        stage_words = ""
    else:
        stage_words = f", {words.AS_IT_RAN}"
    epsilon = promised_privacy.epsilon
    unit_word = promised_privacy.unit_word
    if epsilon is None:
        return f"This run is NOT private: nothing is promised to any {unit_word}."
    subjects = {"sample": "one record was", "party": "the records of one hospital were"}
    subject = subjects.get(promised_privacy.unit, f"one {unit_word}'s records were")
    if sheet.ended is None:
        sure = impact.certainty(epsilon, promised_privacy.delta)
        worse = f" ({impact.worse_runs(promised_privacy.delta)})" if promised_privacy.delta else ""
        rare = f"; {impact.UNLUCKY}, in {impact.cases(sure)}{worse}."
    else:
        rare = f". {_start_sentence(impact.worst_guess(epsilon, promised_privacy.delta))}."
    several = case_caution(unit_word) if promised_privacy.unit == "user" else ""
    return (
        f"Suppose that somebody wants to know whether {subject} used, and sees everything published and all numbers"
        f" that the operator sees. Then {impact.guess(promised_privacy.best_guess, _guessed_unit(promised_privacy))}"
        f" (epsilon {epsilon:.4g}{stage_words}){rare} {_helper_words(sheet)}"
        f"{f' {several[0].upper()}{several[1:]}.' if several else ''}"
    ).rstrip()


def _start_sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}"


def _helper_words(sheet: Sheet) -> str:
    """Says how many other hospitals may help the operator before the promise fails, and what it is if all do."""
    sheet_privacy = sheet.privacy
    other_count = len(sheet.parties) - 1
    if other_count < 1:
        return ""
    if sheet.colluders >= other_count:
        return "This holds even if all other hospitals help the operator."
    holds = f"This holds only while {_most_helpers(sheet)} the operator"
    if sheet.colluders:
        holds += "."
    else:
        holds += " or guesses for itself: each can subtract its own numbers from an opened sum, and its own noise."
    if 0 < sheet.others < other_count:
        # A sum that opens without some hospitals is open to fewer helpers.
        counts_words = "that one counts" if sheet.others == 1 else "these count"
        holds += f" A sum may open with {counted(sheet.others, 'other hospital')}; then {counts_words} as all others."
    if sheet_privacy.epsilon_if_all_others_collude is None:
        return f"{holds} If all others did, nothing would be promised."
    worst_guess = impact.cases(_guess_if_all_help(sheet_privacy))
    return f"{holds} If all others did, a guess would, on average, be right in at most {worst_guess} of 100 cases."


def _most_helpers(sheet: Sheet) -> str:
    """Says how many other hospitals may help the operator while the promise holds, with the verb."""
    if not sheet.colluders:
        return "no other hospital helps"
    return f"at most {counted(sheet.colluders, 'other hospital')} {'helps' if sheet.colluders == 1 else 'help'}"


def _guess_if_all_help(privacy: UnitPromise) -> float:
    epsilon = privacy.epsilon_if_all_others_collude
    if epsilon is None:
        return 1.0
    return accounting.best_guess_of(epsilon, privacy.delta, one_gaussian=privacy.stopping_refunds)


def _budget_sections(sheet: Sheet, beside: Surroundings) -> list[PageSection]:
    """The data set's budget before and after, in parts of the whole: the one picture of the sheet."""
    sheet_cost = sheet.cost
    if not sheet_cost or not sheet_cost.budget:
        return []
    share_before, _, share_after = _budget_shares(sheet_cost, sheet_cost.budget)
    if sheet.ended is not None:
        return _budget_of_ended(sheet.ended.cost, sheet_cost.budget, share_before)
    if not math.isfinite(share_after):
        return [PageSection("Your budget", ("It limits nothing that this run takes: the run is not private.",))]
    before, after = _percent(share_before), _percent(share_after)
    remainder = f"{100 - after} % would be left" if share_after <= 1 else "that is MORE than there is"
    earlier_words = f" (by {_list_runs(beside)})" if before else ""
    summary = f"Used before: {before} %{earlier_words}. Used after this run: {after} %; {remainder}."
    whole_guess = accounting.best_guess_of(
        sheet_cost.budget, sheet_cost.delta, one_gaussian=_are_one_gaussian(sheet_cost)
    )
    sentences = [
        f"{summary} {NEWER_FILE}",
        f"At 100 %, {impact.right_guess(whole_guess, _guessed_unit(sheet.privacy))}.",
        *_passed_limits(sheet, sheet_cost, beside.largest_epsilon),
    ]
    if sheet_cost.delta != sheet.privacy.delta:
        sentences.append(
            f"These shares stand at your budget's delta, {impact.chance(sheet_cost.delta)}, which your hospital chose;"
            " the"
            f" promise of this run stands at {impact.chance(sheet.privacy.delta)}, which its operator chose."
        )
    return [
        PageSection("Your budget for all runs over these records", tuple(sentences), bar=(share_before, share_after))
    ]


def _budget_shares(cost: BudgetEffect, budget: float) -> tuple[float, float, float]:
    """The shares of a budget that are used before this run, by it alone, and after it."""
    before, alone, after = (
        math.inf if epsilon is None else epsilon / budget for epsilon in (cost.before, cost.alone, cost.after)
    )
    return before, alone, after


def _name_earlier(cost: BudgetEffect, beside: Surroundings) -> str:
    """Names the earlier runs beside a total over all runs, in brackets; says so where there is none before."""
    if not cost.before and not beside.earlier_runs:
        return " (none before this one)"
    return f" ({_list_runs(beside)})"


def _list_runs(beside: Surroundings) -> str:
    """Names the earlier runs over these records."""
    names = [repr(printable(run, 120)) for run in beside.earlier_runs]
    if not names:
        return "the runs that the screen Budget names"
    remainder = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{remainder}"


def _passed_limits(sheet: Sheet, cost: BudgetEffect, largest_epsilon: float) -> list[str]:
    """Says by how much the figures pass budget and policy if all others help the operator, where they do."""
    if len(sheet.parties) < 2 or sheet.colluders >= len(sheet.parties) - 1:
        return []
    alone = sheet.privacy.epsilon_if_all_others_collude
    points = []
    if cost.budget and cost.worst_after is not None and cost.worst_after > cost.budget:
        points.append(f"all runs together would use {_percent(cost.worst_after / cost.budget):,} % of your budget")
    if alone is not None and alone > largest_epsilon:
        share = _percent(alone / largest_epsilon)
        points.append(f"this run alone {share:,} % of the most that your policy allows for one run")
    if alone is None:
        points.append("nothing would be promised of this run")
    if not points:
        return []
    return [
        f"Budget and policy do not limit the worst case. If all other hospitals help the operator,"
        f" {', and '.join(points)}."
    ]


def _budget_of_ended(cost: FinalCost | None, budget: float, share_before: float) -> list[PageSection]:
    """The budget at the end of a run, by what the ledger has charged."""
    if cost is None or cost.epsilon is None or cost.spent is None:
        return []
    share_alone = cost.epsilon / budget
    share_spent = cost.spent / budget
    summary = (
        f"By itself this run has used {_percent(share_alone)} %. All runs up to its end have used"
        f" {_percent(share_spent)} %; {max(0, 100 - _percent(share_spent))} % was left then."
    )
    bar_shares = (min(share_before, share_spent), share_spent)
    return [PageSection("Your budget for all runs over these records", (summary,), bar=bar_shares)]


def _why_less(share_before: float, share_alone: float, share_after: float) -> list[str]:
    """A sentence for runs that together cost less than the sum of what each costs by itself; [] if they do not."""
    if not share_before or share_after > (share_before + share_alone) * LEAST_SAVING:
        return []
    before, alone, together, added = (
        f"{100 * share:.1f} %" for share in (share_before, share_alone, share_after, share_before + share_alone)
    )
    return [
        f"Used before: {before}; by itself this run would use {alone}. Together it is {together} and not {added}."
        f" {RUNS_TOGETHER}"
    ]


def _percent(share: float) -> int:
    """A share of the budget as it is shown, so that sums and remainders are those of the figures shown."""
    return round(100 * share)


def _risk_of_all(sheet: Sheet, beside: Surroundings) -> list[tuple[str, str]]:
    """The risk of all runs over these records, this one included, in the words of :func:`_risk_words`."""
    sheet_cost = sheet.cost
    if (
        sheet_cost is None or sheet_cost.best_guess_after is None
    ):  # no budget, or a sheet that an earlier version signed
        return []
    if sheet.ended is None:
        stage_words = ""
    else:
        stage_words = f" ({words.AS_PLANNED} when it was decided)"
    guess_words = impact.right_guess(sheet_cost.best_guess_after, _guessed_unit(sheet.privacy))
    helped_words = ""
    if sheet.ended is None:
        certainty = impact.cases(_certainty(sheet_cost.after, sheet_cost.delta))
        frequency = impact.worse_runs(sheet_cost.delta, runs="series of such runs")
        helped_words = f"; {impact.UNLUCKY}, in {certainty} ({frequency})"
    if sheet.ended is None and _can_be_undone(sheet):
        worst_guess = impact.cases(_guess_of_all_if_all_help(sheet))
        helped_words += f"; if all others helped in every run, on average in at most {worst_guess}"
    return [
        (
            "The risk of all runs",
            f"From all runs over these records{_name_earlier(sheet_cost, beside)} and this one together{stage_words},"
            f" {guess_words}{helped_words}.",
        )
    ]


def _guessed_unit(privacy: UnitPromise) -> str:
    return {"sample": "one record", "party": "one hospital"}.get(privacy.unit, f"one {privacy.unit_word}")


def _choice_sections(sheet: Sheet, beside: Surroundings) -> list[PageSection]:
    """What a person can do and in which order, and what becomes of the hospital's name; an ended run has the latter."""
    if sheet.ended is not None:
        return _list_points("What stays", [] if sheet.ended.cost is None else [NAME_STAYS])
    withdraw_words = f"{WITHDRAW} The others see that you no longer answer: {_silence_words(sheet)}"
    if sheet.as_signed:
        return [PageSection("What you can do", points=(withdraw_words,))]
    return [
        PageSection("What you do, in order", points=_steps(sheet), ordered=True),
        PageSection(
            "What you can do",
            points=(
                "Approve: choose Approve and type the nine words below. The agreement or legal basis has a place in"
                " the comment, which stays in your hospital.",
                "Refuse: choose Reject. Nothing leaves, and this run does not take place, because it begins only when"
                " all of its hospitals have approved. The operator is told that yours has refused, and reads the reason"
                " if you write one; this program tells the others only that the run has stopped."
                " The operator may plan another run without you, or ask you anew.",
                rejection_words(sheet, beside),
                f"Wait: {_waiting_words(sheet, beside)} No date is set: the run waits for every"
                " hospital of its plan, until its operator gives it up.",
                withdraw_words,
            ),
        ),
    ]


def _steps(sheet: Sheet) -> tuple[str, str, str]:
    """What a person does before and when deciding; so many hospitals are called that the figures hold."""
    calls = _calls(sheet)
    if calls > MOST_NAMES:
        hospitals = "as many other hospitals as you can reach"
    elif calls == len(sheet.parties) - 1:
        hospitals = {1: "the other hospital", 2: "both other hospitals"}.get(calls, f"all {calls} other hospitals")
    else:
        unchecked = len(sheet.parties) - 1 - calls
        hospitals = (
            f"{calls} of the other hospitals: {'one' if unchecked == 1 else unchecked} that nobody has called could be"
            " the operator's invention, and for no more the risks above hold"
        )
    if calls:
        hospitals = f" and with {hospitals} (look up their numbers yourself, too)"
    else:
        hospitals = ""
    place = "below them" if _lists_fingerprints(sheet) else "below them, or for a specialist further below"
    return ASK_FIRST, COMPARE.format(place=place, hospitals=hospitals), DECIDE


def _calls(sheet: Sheet) -> int:
    """The least number of other hospitals that leaves no more uncalled than may help, and of which each sum has one."""
    other_count = len(sheet.parties) - 1
    return min(other_count, max(other_count - sheet.others + 1, other_count - sheet.colluders))


def _entries(sheet: Sheet) -> tuple[str, ...]:
    """What a person enters by hand on paper: whom they called, and under which agreement the run takes place."""
    calls = _calls(sheet)
    others = [party for party in sheet.parties if party.name != sheet.party]
    if calls > MOST_NAMES:
        called = [NamedParty("a hospital", "")]
    elif calls == len(others) or _lists_fingerprints(sheet):
        called = others
    else:
        called = [NamedParty("a hospital", "")] * calls
    operator = NamedParty("the operator", sheet.coordinator.fingerprint if sheet.coordinator else "")
    return (
        _call_entry(operator),
        *(
            _call_entry(hospital, f" (any {calls} of these {len(called)})" * (calls < len(called)))
            for hospital in called
        ),
        "Agreement or legal basis of this run, as you have learned it:",
    )


def _call_entry(called: NamedParty, choice: str = "") -> str:
    """The line of one call, with the fingerprint that is heard on it; ``choice`` says how many such calls suffice."""
    fingerprint = f"fingerprint {called.fingerprint}" if called.fingerprint else "fingerprint"
    return (
        f"Called{choice}: {called.name}: number, day; nine words the same: yes / no; {fingerprint} the same: yes / no"
    )


def _waiting_words(sheet: Sheet, beside: Surroundings) -> str:
    """Says what leaves while a person does not decide, by who decides here."""
    if beside.is_standing:
        return "it stops nothing, since no person has to approve; Reject and Withdraw do."
    if sheet.two_people:
        return "nothing leaves until both have approved, and silence is no consent."
    return "nothing leaves while nobody approves, and silence is no consent; but IT can approve without you."


def _describe_deciders(sheet: Sheet, beside: Surroundings) -> list[tuple[str, str]]:
    """Says of a run that is undecided who has to approve it, and whether one person can without another."""
    if sheet.ended is not None or sheet.as_signed:
        return []
    rule = decider_words(is_standing=beside.is_standing, two_people=sheet.two_people)
    if beside.is_standing:
        consequence = "No person is asked before it; Reject and Withdraw stop it all the same."
    elif sheet.two_people:
        consequence = "One of them alone approves nothing."
    else:
        consequence = (
            "IT can approve without you: somebody at a terminal of this machine suffices. Whoever sets the policy can"
            f" ask for {decider_words(is_standing=False, two_people=True)}."
        )
    return [("Who decides here", f"By your policy, {rule}. {consequence}")]


def _silence_words(sheet: Sheet) -> str:
    """Says what becomes of a run of which hospitals fall silent after its start."""
    if not sheet.tolerated_dropouts:
        return "a run that has begun ends if any hospital no longer answers."
    return (
        f"a run that has begun goes on while at most {counted(sheet.tolerated_dropouts, 'hospital')}"
        f" {'is' if sheet.tolerated_dropouts == 1 else 'are'} missing from a sum."
    )


def _hospital_section(sheet: Sheet) -> PageSection:
    """The other parties by name: one proves itself by its fingerprint, which is folded."""
    if (run_end := sheet.ended) is None:
        title = "Who takes part"
    else:
        title = "Who was to take part" if run_end.cost is None else "Who took part, by the plan"
    party_names = [party.name for party in sheet.parties]
    names_shown = ", ".join(
        f"{party_name} (you)" if party_name == sheet.party else party_name for party_name in party_names[:MOST_NAMES]
    )
    others_words = ""
    if len(party_names) > MOST_NAMES:
        others_words = f" and {len(party_names) - MOST_NAMES} more"
    sentences = [
        f"{counted(len(party_names), 'hospital')}, as the operator names them: {names_shown}{others_words}.",
        "Nobody can check another hospital's numbers: one that lies could spoil the texts. One that leaves"
        " out its noise counts, in the risks above, as one that helps the operator.",
    ]
    return PageSection(title, tuple(sentences))


def marked(sheet: Sheet) -> list[PageSection]:
    """Returns a section that marks the page as a drill's; [] for any other run."""
    return [PageSection(MARK, (PARTY_WORDS,), loud=True)] if sheet.drill else []


def _end_sections(sheet: Sheet) -> list[PageSection]:
    """Cost of an ended run."""
    if sheet.ended is None:
        return []
    if (end_cost := sheet.ended.cost) is None:
        return [PageSection("This run has ended:", (f"It has cost nothing. {NOTHING_LEFT}",))]
    end_rows = (
        ("this run by itself", f"epsilon {_epsilon_words(end_cost.epsilon)}"),
        ("spent in all after it", f"epsilon {_epsilon_words(end_cost.spent)}"),
    )
    return [PageSection("This run has ended:", ("It is charged to your ledger:",), figures=end_rows)]


def _receipt_sections(sheet: Sheet) -> list[PageSection]:
    """Figures of an ended run for a specialist, folded: releases, delta, the receipt with its signature."""
    if sheet.ended is None:
        return []
    receipt_rows = []
    if (end_cost := sheet.ended.cost) is not None:
        receipt_rows.append(
            ("what was charged", f"{counted(end_cost.releases, 'release')}, at the budget's delta {end_cost.delta:g}")
        )
    if (receipt := sheet.ended.receipt) is not None:
        receipt_body = json.loads(receipt.body)
        receipt_rows += [
            (
                "its receipt",
                f"{counted(len(receipt_body['entries']), 'entry', 'entries')}, chain {receipt_body['chain']}",
            ),
            ("signed by your hospital", receipt.signature),
        ]
    return [PageSection("The end of this run", figures=tuple(receipt_rows), folded=True)] if receipt_rows else []


def _change_sections(sheet: Sheet, beside: Surroundings) -> list[PageSection]:
    """Loudly, whether it is another plan than before, what became of that one, and what is better or worse."""
    if sheet.replaced:
        return [PageSection("THIS PLAN WAS REPLACED: another one was proposed under this name since.", loud=True)]
    if sheet.number > 1:
        title = f"ANOTHER PLAN: number {sheet.number} under this name. What differs from the one shown here before:"
    elif sheet.revises:
        title = f"IT REVISES {printable(sheet.revises, 120)!r}. What differs from the plan shown here before:"
    else:
        return []
    change_points = tuple(map(printable, changes_to_read(sheet.changes)))
    earlier_words = (beside.earlier_plan,) if beside.earlier_plan else ()
    return [PageSection(title, earlier_words, change_points, loud=True)]


def purpose(sheet: Sheet, *, is_complete: bool = False) -> PageSection:
    """Returns the section on the run's purpose, in its operator's words.

    Args:
        is_complete: True for a page that has no other part of the sheet: who runs it, and the kinds of models.
    """
    task = sheet.task
    not_stated = "the operator has not stated it"
    writers = task.generators or ()
    generator_names = _join_writers(writers if is_complete else _in_plain_words(writers)) or not_stated
    publication = task.publication or f"{not_stated}; take it as published to everyone"
    published_words = _cut_sentence(publication.replace(".; ", "; "))  # The plan joins sentences of the operator.
    purpose_rows = [
        ("purpose", _cut_sentence(task.purpose or not_stated)),
        *([("who runs it", printable(sheet.operator, LONGEST_SENTENCE))] if is_complete else []),
        ("what one text is", _cut_sentence(task.description or not_stated)),
        ("labels", printable(", ".join(task.labels or ()), LONGEST_SENTENCE) or "none"),
        ("who writes the texts", generator_names),
        *([("columns beside the text", printable(", ".join(task.columns)))] if task.columns else []),
        ("published", published_words),
        ("agreement, legal basis", "the plan states none"),
    ]
    return PageSection("What it is for, in the operator's words", figures=tuple(purpose_rows))


def _split_writer(writer: str) -> tuple[str, str]:
    """Splits what the plan says of a generator into its name and what it is, which stands in brackets."""
    name, bracket, kind = writer.partition(" (")
    return name, kind.removesuffix(")") if bracket else ""


def _in_plain_words(writers: Sequence[str]) -> tuple[str, ...]:
    """The generators without the field's name of their kind, which stands in brackets within the brackets."""
    plain_writers = []
    for name, kind in map(_split_writer, writers):
        plain_kind = BRACKETED.sub("", kind)
        plain_writers.append(f"{name} ({plain_kind})" if plain_kind else name)
    return tuple(plain_writers)


def _join_writers(writers: Sequence[str]) -> str:
    """The generators by name; what several of them are stands once."""
    names_of_kind: dict[str, list[str]] = {}
    for name, kind in map(_split_writer, writers):
        names_of_kind.setdefault(kind, []).append(name)
    groups = []
    for kind, names in names_of_kind.items():
        each = "each " if len(names) > 1 else ""
        groups.append(f"{', '.join(names)}{f' ({each}{kind})' if kind else ''}")
    return _cut_sentence("; ".join(groups))


def leaves(sheet: Sheet, title: str = "What leaves, sum by sum") -> PageSection:
    """Returns the section on every private sum of the plan: its question, number of coordinates and noise."""
    release_points = (
        *(_leaves_by(release, sheet.privacy.unit_word) for release in sheet.releases),
        "Each vector is noised here, then masked (scrambled): the operator sees random numbers, and only the sum over"
        f" the hospitals that answer opens, {counted(sheet.others + 1, 'hospital')} at least.",
        "Post-quantum masks are on: who records these messages cannot open them with a later quantum computer either."
        if sheet.post_quantum
        else "Post-quantum masks are OFF: who records these messages could open them with a later quantum computer.",
    )
    summary = (
        f"Only sums over your records, {sheet.numbers_in_all:,} whole numbers in"
        f" {sum(release.releases for release in sheet.releases)} releases."
        " No text, no record, no embedding of one record."
    )
    return PageSection(title, (summary,), release_points)


def _leaves_by(release: ReleaseGroup, unit: str) -> str:
    times_words = ""
    if release.releases > 1:
        times_words = f"{release.releases} times "
    fewest_numbers = min(release.numbers)
    most_numbers = max(release.numbers)
    return (
        f"{times_words}{release.statistic}{_kind_words(release)}: {release.meaning}; {fewest_numbers:,}"
        f"{f' to {most_numbers:,}' if most_numbers > fewest_numbers else ''} numbers{' each' if times_words else ''}."
        f" The noise in the opened sum has a standard deviation of at least {release.sigma:.3g}, however many hospitals"
        f" answer; one {unit}, with all records that count, changes the whole by at most"
        f" {release.l2_sensitivity:.3g}."
    )


def _kind_words(release: ReleaseGroup) -> str:
    """Names the kind of question that a policy allows or not, in brackets; "" for another package's."""
    statistic = None if release.source else statistics.known(release.statistic)
    if statistic is None or statistic.question not in statistics.QUESTIONS:
        return ""
    return f" (in your policy: {statistics.QUESTIONS[statistic.question][0].lower()})"


def _figure_section(sheet: Sheet) -> PageSection:
    """Every other figure of the run, each with the reason why it differs from the one epsilon of the sheet."""
    sheet_privacy = sheet.privacy
    coordinator = sheet.coordinator
    writers = sheet.task.generators or ()
    delta = f"delta {sheet_privacy.delta:g}"
    promise_words = f"epsilon {_epsilon_words(sheet_privacy.epsilon)} at {delta}"
    epsilon_alone = _epsilon_words(sheet_privacy.epsilon_if_all_others_collude, "cannot be stated")
    rung_words = ", ".join(f"{1000 * sheet.first_rung_s * 2**rung_step:g}" for rung_step in range(3))
    if sheet_privacy.unit == "sample":
        cap_words = ""
    else:
        cap_words = f" (at most {counted(sheet_privacy.max_per_unit, 'record')})"
    figure_rows = [
        (
            "the promise",
            f"{promise_words} for one {sheet_privacy.unit_word}{cap_words}, the whole run."
            f"{' This is the epsilon above.' if sheet.ended is None else ''}",
        ),
        *_cost_rows(sheet.cost, sheet_privacy, is_open=sheet.ended is None),
        *([("delta, and twice delta", _twice_delta(sheet_privacy.delta))] if sheet_privacy.delta else []),
        (
            f"if all others help the operator, {words.AS_PLANNED}",
            f"epsilon {epsilon_alone} at {delta}. The others can subtract their own noise; yours alone is left."
            f" {words.PLANNED}",
        ),
        (
            "time of an answer",
            f"tells at most {sheet.clock_bits:.1f} bits for each sum ({math.floor(2**sheet.clock_bits):,} times that"
            " can be told apart), beside epsilon, which covers the numbers alone."
            f" It depends on how many records you have; an answer leaves {rung_words} ms ... after it is asked for,"
            " whichever comes next, so that its time shows no more than that.",
        ),
        (
            "stopping early",
            "costs what was opened until then. The releases of this run can be priced one by one."
            if sheet_privacy.stopping_refunds
            else "does not refund. The whole plan is charged when the first vector is asked for: its releases cannot be"
            " priced one by one.",
        ),
        *([("who writes the texts", _join_writers(writers))] if _in_plain_words(writers) != tuple(writers) else []),
        ("method", f"{printable(sheet.method, 120)}, for the task {printable(sheet.task.name, 120)!r}."),
        ("the plan's hash", sheet.manifest),
    ]
    if coordinator is not None:
        figure_rows.append(("fingerprint of who runs it", coordinator.fingerprint))
    title = "The figures, and why they differ" if sheet.ended is None else "The figures as planned, and why they differ"
    return PageSection(title, figures=tuple(figure_rows), folded=True)


def _twice_delta(delta: float) -> str:
    """Explains the chance that stands beside the table of risks."""
    return (
        f"delta {delta:g} is {impact.chance(delta)}: by so much the promise of epsilon may fail as a whole. For one"
        " outcome it gives this: the odds shift by at most 2 e^epsilon, but with a chance of at most twice delta,"
        f" {impact.chance_of_more(delta)}. An unlucky case is counted so."
    )


def _cost_rows(cost: BudgetEffect | None, privacy: UnitPromise, *, is_open: bool) -> list[tuple[str, str]]:
    """The run's effect on the budget, for a specialist."""
    if cost is None:
        return []
    is_same_delta = cost.delta == privacy.delta
    if is_same_delta:
        delta_words = ""
    else:
        delta_words = " Your budget has another delta than the run."
    saving_words = ""
    if is_open and cost.budget:
        saving_words = "".join(f" {sentence}" for sentence in _why_less(*_budget_shares(cost, cost.budget)))
    return [
        (
            "this run, in your budget",
            f"epsilon {_epsilon_words(cost.alone)} at delta {cost.delta:g}.{delta_words}",
        ),
        (
            "your budget, before -> after",
            f"epsilon {_epsilon_words(cost.before)} -> {_epsilon_words(cost.after)} of"
            f" {_epsilon_words(cost.budget)}, left {_epsilon_words(cost.left_after)}.{saving_words}",
        ),
        (
            "worst case, before -> after",
            f"epsilon {_epsilon_words(cost.worst_before)} -> {_epsilon_words(cost.worst_after)}. Every other"
            " hospital helps the operator, in every run over these records. Your budget does not limit this figure.",
        ),
    ]


def _lists_fingerprints(sheet: Sheet) -> bool:
    """True if a sheet has few enough hospitals to list their fingerprints where people compare them."""
    return len(sheet.parties) <= MOST_NAMES


def _fingerprints_to_compare(sheet: Sheet) -> list[PageSection]:
    """The fingerprints that people read out to each other, beside the nine words: the operator's and each hospital's.

    Of many hospitals it has this hospital's own; the others are folded.
    """
    if sheet.ended is not None:
        return []
    shown = sheet if _lists_fingerprints(sheet) else replace(sheet, parties=_own_party(sheet))
    party_section = fingerprints(shown)
    operator = () if sheet.coordinator is None else (f"{sheet.coordinator.fingerprint}  (the operator)",)
    sentences = (
        "On the telephone each reads out its own, and the other compares it with the line here: you read yours, the"
        " operator and each hospital read theirs.",
        *party_section.sentences,
    )
    return [
        replace(
            party_section,
            title=f"{party_section.title}, to compare over the telephone",
            sentences=sentences,
            columns=(*operator, *party_section.columns),
        )
    ]


def _own_party(sheet: Sheet) -> tuple[NamedParty, ...]:
    return tuple(party for party in sheet.parties if party.name == sheet.party)


def _folded_fingerprints(sheet: Sheet) -> list[PageSection]:
    """The fingerprints of all hospitals, folded, unless they stand beside the nine words."""
    if sheet.ended is None and _lists_fingerprints(sheet):
        return []
    return [replace(fingerprints(sheet), folded=True)]


def fingerprints(sheet: Sheet) -> PageSection:
    """Returns the parties with their fingerprints, because a name alone proves nothing."""
    parties = sheet.parties
    required_names = sheet.required_parties
    # Fingerprint and marks stand before the name, because a name may imitate them.
    party_rows = [
        f"{party.fingerprint}  {'(you)  ' if party.name == sheet.party else ''}"
        f"{'(named by your policy)  ' if party.name in required_names else ''}{party.name}"
        for party in parties
    ]
    proof_words = "Only a fingerprint that its hospital has told you says who it is."
    return PageSection("Who takes part, by fingerprint", (proof_words,), columns=tuple(party_rows))


def who_takes_part(sheet: Sheet) -> PageSection:
    """Returns the section on the parties for a page that says nothing else of them."""
    party_section = fingerprints(sheet)
    sentences = [
        f"{counted(len(sheet.parties), 'hospital')}, as the operator names them.",
        *party_section.sentences,
        f"A sum opens with your numbers and those of at least {counted(sheet.others, 'other hospital')}."
        f" A run begins only when all have approved; {_silence_words(sheet)}",
    ]
    if not sheet.required_parties and len(sheet.parties) > 1:
        sentences.append("Your policy names none of them that must take part.")
    return replace(party_section, sentences=tuple(sentences))


def _cut_sentence(text: str) -> str:
    cut_sentence = printable(" ".join(text.split()), LONGEST_SENTENCE)
    if len(text) <= LONGEST_SENTENCE:
        return cut_sentence
    return f"{cut_sentence} ({len(text)} characters in all)"


def _epsilon_words(value: float | None, unlimited: str = "without limit") -> str:
    return unlimited if value is None else f"{value:.4g}"


def _group_releases(manifest: Manifest) -> tuple[ReleaseGroup, ...]:
    """Sums of one statistic with the same noise, together."""
    dimensions_by_release: dict[tuple[Any, ...], list[int]] = {}
    for planned_sum in manifest.plan.sums:
        sum_question = words.question(planned_sum)
        release_key = (
            planned_sum.statistic,
            sum_question,
            planned_sum.source,
            planned_sum.sigma,
            planned_sum.l2,
            planned_sum.law,
        )
        dimensions_by_release.setdefault(release_key, []).append(planned_sum.dimension)
    return tuple(
        ReleaseGroup(statistic, asks, program_source, len(dimensions), tuple(dimensions), sigma, l2, law)
        for (statistic, asks, program_source, sigma, l2, law), dimensions in dimensions_by_release.items()
    )
