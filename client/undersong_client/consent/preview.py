"""The sheet of a proposed run, made from plan, folder and ledger (``make_sheet``), and its page (``sheet_page``)."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from undersong_client.consent.approvals import Proposal
from undersong_client.consent.budget_sections import (
    RUNS_TOGETHER,
    budget_sections,
    guess_at_the_end,
    protects_nobody,
    use_less_together,
)
from undersong_client.consent.choice_sections import (
    IN_ORDER,
    calls_section,
    choice_sections,
    describe_deciders,
    lists_fingerprints,
    next_words,
    objections_unchecked,
    silence_words,
)
from undersong_client.consent.differences import changes_to_read
from undersong_client.consent.leaving_sections import left_alone_words, told_words
from undersong_client.consent.people import PersonalDecision, remedy_of_refusal
from undersong_client.consent.policy import HospitalPolicy, review
from undersong_client.consent.question_sections import (
    LONGEST_SENTENCE,
    MOST_LABELS,
    NOT_STATED,
    cut_sentence,
    list_sections,
    question_section,
)
from undersong_client.consent.risk_sections import (
    MORE_HELP,
    can_be_undone,
    meaning_section,
    more_help,
    risk_of_all,
    risk_words,
)
from undersong_client.consent.run_terms import (
    WITHDRAWAL,
    beginning_words,
    duration_section,
    kept_section,
)
from undersong_client.consent.sheet import (
    MOST_NAMES,
    NO_LIST,
    NO_LIST_AS_SIGNED,
    NOTHING_BESIDE,
    PERIOD,
    BudgetEffect,
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
from undersong_client.home import unit_word
from undersong_common.errors import UndersongError
from undersong_common.printable import counted, finite, first_named, printable
from undersong_common.privacy import accounting, impact
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge
from undersong_common.program.drill import MARK, PARTY_WORDS
from undersong_common.program.printed_page import PageSection, PrintedPage
from undersong_protocol import limits, statistics
from undersong_protocol.agreement import words
from undersong_protocol.agreement.enrolment import party_fingerprint
from undersong_protocol.agreement.full_names import LONGEST_FULL_NAME, with_full_name
from undersong_protocol.agreement.manifest import Manifest, plan_words

WORDS = "The nine words of this plan, to approve it by and to compare over the telephone"
WORDS_OF_ENDED = "The nine words of this plan"
FOR_YOU = "Before you decide, for you alone (the operator is told nothing of it)"
NOTED = "Noted before the decision, for you alone (the operator was told nothing of it)"
ALLOWED = "What the plan allowed to leave, and no more"
NO_PERIOD = "not recorded: ask IT"
NO_AGREEMENT = "the plan states none"
NO_NUMBER_OF_TEXTS = "a plan states no number: ask the operator"
NAMES_OF_WRITERS = "The operator has chosen these names."
NOTHING_LEFT = "None of your numbers left."
ENTRIES = (
    "Agreement with the operator, and your hospital's own legal basis for this run, for health data, too:",
    "Roles (joint controllers, or who processes for whom), and the operator's country and data protection officer:",
    "Impact assessment, and how {people} are informed:",
)
CONTROLLER = (
    "Decision of the hospital upon this advice, by whoever may decide for it: approve / reject (strike out one). Only"
    " the choice in the software counts."
)
KNOWN_LABELS = "labels that the plan knows"  # name of a row that a sheet signs
KNOWN_SHARE = re.compile(r"^those of (.*) of the records$")
BRACKETED = re.compile(r" \([^()]*\)")
NO_FULL_NAMES = " The plan has no full names."
OPERATORS_WORDS = "The full names are the operator's words."


@dataclass(frozen=True)
class PartySide:
    """Facts of a party's folder that a sheet states beside the plan, for its own people.

    Attributes:
        name, identity, teacher_model: as in :func:`undersong_client.consent.policy.review`.
        embedder: SHA-256 (hex) of this party's embedding model.
        policy: the party's policy.
        cautions: warnings that depend on the records (:mod:`undersong_client.records.cautions`).
        warnings: warnings that do not depend on the records.
        has_labels: True if the data set has a column of labels.
        coordinator: the coordinator that this party has joined; None without one.
        own: figures by which its people recognise the data set.
        drill: True if this party's folder belongs to a drill, a rehearsal with invented records.
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
    """Returns the sheet of a proposed run; its ``objections`` say why the policy's checks refuse the plan.

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
    coordinator, full_names = party.coordinator, manifest.full_names
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
            NamedParty(
                member.name,
                party_fingerprint(member.name, member.identity),
                full_names.get(member.name, ""),
            )
            for member in manifest.roster
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
    """Returns a sheet, signed or made now, with the present state of the request: its changes, decisions and end.

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
    """Returns the error by which the policy's checks refuse the plan; [] if they accept it."""
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
    """Returns what the ledger would be charged for a whole plan."""
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


def sheet_page(sheet: Sheet, surroundings: Surroundings = NOTHING_BESIDE) -> PrintedPage:
    """Returns a sheet as a page: short answers and the budget first, all further figures folded.

    The page of an ended run speaks of the past, and has the figures as it ran where the ledger has them.
    """
    has_not_ended = sheet.ended is None
    check_words = sheet.words.split()
    words_in_threes = tuple(
        " ".join(check_words[first_word : first_word + 3]) for first_word in range(0, len(check_words), 3)
    )
    unlabelled_words = "the run uses labels and your data set has no label column: your records count for none"
    warnings = [
        *_publication_points(sheet),
        *_policy_points(sheet),
        *sheet.cautions,
        *[unlabelled_words] * sheet.labels_missing,
    ]
    signed_words = ("Approved: the figures on this sheet are those that were signed.",) if sheet.as_signed else ()
    return PrintedPage(
        _title(sheet),
        (
            *marked(sheet),
            *_end_sections(sheet),
            *_change_sections(sheet, surroundings),
            *_refusal_sections(sheet),
            *_list_points("Who decided", map(_describe_decision, sheet.people)),
            question_section(sheet),
            _in_short(sheet, surroundings),
            *more_help(sheet, surroundings),
            *list_sections(sheet),
            purpose(sheet),
            *_request_in_full(sheet, surroundings),
            *meaning_section(sheet),
            *_own_records(sheet, surroundings),
            *budget_sections(sheet, surroundings),
            *_list_points(FOR_YOU if has_not_ended else NOTED, warnings),
            _hospital_section(sheet),
            *([duration_section(sheet)] if has_not_ended else []),
            kept_section(),
            *choice_sections(sheet, surroundings),
            PageSection(WORDS if has_not_ended else WORDS_OF_ENDED, signed_words, aloud=words_in_threes),
            *([calls_section(sheet)] if has_not_ended else []),
            _figure_section(sheet),
            replace(leaves(sheet) if has_not_ended else leaves(sheet, ALLOWED), folded=True),
            *_folded_fingerprints(sheet),
            *_receipt_sections(sheet),
        ),
        note="What is decided counts for the plan of the nine words below and for no other.",
        signature=f"{plan_name(sheet)}. Advice for {sheet.party}: approve / reject / ask further (strike out two)"
        if has_not_ended
        else f"{plan_name(sheet)}. Filed for {sheet.party}:",
        signers=2 if sheet.two_people else 1,
        entries=_entries(sheet) if has_not_ended else (),
        decision=CONTROLLER if has_not_ended else "",
        footer=plan_name(sheet),
    )


def plan_name(sheet: Sheet) -> str:
    """Returns the run's name with the plan's nine words, for every printed page and beside each signature."""
    return words.plan_name(sheet.run, sheet.words)


def _entries(sheet: Sheet) -> tuple[str, ...]:
    """Returns the entries that a person fills in by hand about the law, of which the software knows nothing."""
    people_word = unit_word("user", sheet.own.word if sheet.own else "", 2)
    return tuple(entry.format(people=people_word) for entry in ENTRIES)


def _title(sheet: Sheet) -> str:
    run_words = repr(printable(sheet.run, 120))
    if sheet.ended is None:
        return f"May the run {run_words} use the records of {sheet.party}?"
    if sheet.ended.cost is None:
        return f"The run {run_words} has ended without the records of {sheet.party}"
    return f"The run {run_words} has used the records of {sheet.party}"


def _publication_points(sheet: Sheet) -> Iterator[str]:
    """Yields what the stated licence allows others, and in whose name the texts appear if not in the operator's."""
    if sheet.ended is not None:
        return
    publication = sheet.task.publication or ""
    licence = printable(words.publication_part(publication, "licence"), LONGEST_SENTENCE)
    makers = printable(words.publication_part(publication, "made by"), LONGEST_SENTENCE)
    if licence:
        yield (
            f"the texts are published for good: whoever has them may use them as the licence ({licence}) allows,"
            " whatever the operator says under “for what”"
        )
    if makers and not sheet.operator.startswith(makers):
        yield (
            f"the texts are published in the name of (the operator's words): {makers}; ask which hospitals that means"
            " (the papers beside the texts name each hospital that takes part, unless it withdraws before the start)"
        )


def _policy_points(sheet: Sheet) -> Iterator[str]:
    """Yields what the policy says to the run, and the warnings that the first answers do not have already."""
    if sheet.ended is None and not sheet.objections:
        yield (
            "your policy and your budget allow this run; they limit the risk on the condition that “The risk of this"
            " run” states"
        )
        yield from _whole_budget_caution(sheet)
        if not sheet.required_parties and len(sheet.parties) > 1:
            yield ("your policy names no hospital that must take part; whoever sets it can name those that you know")
    for warning in sheet.warnings:
        if warning != words.opened_numbers(sheet.others):
            yield _compare_with_run(sheet, warning)


def _whole_budget_caution(sheet: Sheet) -> list[str]:
    """Says that the permission says little, where the whole budget protects practically nobody."""
    if sheet.cost is None or not sheet.cost.budget or not protects_nobody(sheet.cost):
        return []
    cases_of_tenth = impact.cases(guess_at_the_end(replace(sheet.cost, budget=sheet.cost.budget / 10)))
    return [
        f"that your budget allows this run says little: the whole budget is {impact.NO_PROTECTION}. Have a smaller one"
        f" set, of a tenth at most: at a tenth of it, a guess is, on average, right in at most {cases_of_tenth} of 100"
        " cases"
    ]


def _compare_with_run(sheet: Sheet, warning: str) -> str:
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
                need_verb, accept_verb = "needs", "accept"
            else:
                need_verb, accept_verb = "needed", "have accepted"
            return (
                f"this run {need_verb} the numbers of at least {counted(sheet.others, 'other hospital')}; your policy"
                f" would also {accept_verb} a run with {allowed_words}; for later runs, whoever sets it can demand more"
            )
    return warning


def _list_points(title: str, points: Iterable[str], *, loud: bool = False) -> list[PageSection]:
    """One section of these points; none if there are no points."""
    point_list = tuple(points)
    return [PageSection(title, points=point_list, loud=loud)] if point_list else []


def _refusal_sections(sheet: Sheet) -> list[PageSection]:
    """Says why this party's policy or budget refuses the run, and the remedy; [] if they accept it."""
    if not sheet.objections:
        return []
    refusal_points = (
        *map(printable, sheet.objections),
        f"Remedy: {remedy_of_refusal(sheet.remedies, sheet.operator)}.",
    )
    return _list_points("Your hospital REFUSES it as it stands:", refusal_points, loud=True)


def _describe_decision(person: PersonalDecision) -> str:
    return person.words(f"{datetime.fromtimestamp(person.at_s, UTC):%Y-%m-%d %H:%M} UTC")


def _in_short(sheet: Sheet, surroundings: Surroundings) -> PageSection:
    """Returns the answers by which a reader without statistics can decide; they fill at most half a printed page."""
    run_end = sheet.ended
    if run_end is not None and run_end.cost is None:
        return PageSection("In short", figures=(("What left", NOTHING_LEFT),))
    has_not_ended = run_end is None
    rows = (
        *_data_words(sheet),
        *describe_deciders(sheet, surroundings),
        ("What leaves" if has_not_ended else "What left", _leaving_words(sheet)),
        ("The risk of this run", risk_words(sheet)),
        *risk_of_all(sheet, surroundings),
        *([("What can be undone", _undone_words(sheet))] if has_not_ended else []),
        *([("What next", next_words(sheet, surroundings))] if has_not_ended and not sheet.as_signed else []),
    )
    return PageSection("In short", figures=rows)


def _undone_words(sheet: Sheet) -> str:
    return f"{beginning_words(sheet)} {WITHDRAWAL}"


def _data_words(sheet: Sheet) -> list[tuple[str, str]]:
    """Says which records the run would use, and whether nobody has checked objections."""
    if sheet.own is None or sheet.ended is not None:
        return []
    own_rows: dict[str, str] = {name: text for name, text in sheet.own.rows}  # noqa: C416 - sequences, not pairs
    people_word = unit_word("user", sheet.own.word, 2)
    record_count_words = own_rows.get("records", "0")
    data_words = (
        f"{own_rows.get('file', 'Your file')}: {record_count_words} record{'' if record_count_words == '1' else 's'}"
    )
    if people_word in own_rows:
        data_words += f" of {own_rows[people_word]} {people_word}"
    return [("Which records", f"{data_words}.{' Objections are NOT CHECKED.' if objections_unchecked(sheet) else ''}")]


def _leaving_words(sheet: Sheet) -> str:
    """Says how many numbers leave, with whose numbers they are opened, and what the operator can read."""
    end_cost = None if sheet.ended is None else sheet.ended.cost
    if end_cost is None:
        counts_words = words.most_numbers(sheet.numbers_in_all)
    else:
        planned_words = f"{words.counted_numbers(sheet.numbers_in_all)} about your records"
        counts_words = f"At most {planned_words} in {counted(end_cost.releases, 'answer')}"
    seen_words = ", and each answer's time, a hint at how many records you have" if sheet.clock_bits else ""
    return (
        f"{counts_words}, blurred by noise and scrambled here; no record, no part of a text."
        f" {_opened_with(sheet)} The operator reads of them only opened sums, which it may publish{seen_words}."
    )


def _request_in_full(sheet: Sheet, surroundings: Surroundings) -> list[PageSection]:
    """Returns the section with what the first answers omit about the questions and about what leaves."""
    if sheet.ended is not None and sheet.ended.cost is None:
        return []
    own_statistics = [release.statistic for release in sheet.releases if not release.source]
    writers = [words.split_writer(writer)[0] for writer in sheet.task.generators or ()]
    examples = tuple(map(printable, words.examples(own_statistics, sheet.task.labels or (), writers)))
    rows = []
    if examples:
        rows.append(("For example", f"{'; '.join(examples)}."))
    if limit_words := _limit_words(sheet, surroundings):
        rows.append(("Records that count", limit_words))
    if sheet.ended is None:
        rows.append(("How often", words.ANEW))
    if alone_words := left_alone_words(sheet):
        rows.append(("With whose", alone_words))
    rows.append(("Beside the numbers", told_words(sheet, surroundings)))
    return [PageSection("More on what is asked and what leaves", figures=tuple(rows))] if rows else []


def _limit_words(sheet: Sheet, surroundings: Surroundings) -> str:
    """Says how many records of one unit count, which ones of a unit with more, and how many such units there are."""
    sheet_privacy = sheet.privacy
    if sheet_privacy.unit == "sample":
        return ""
    record_limit = sheet_privacy.max_per_unit
    verb = "counts" if record_limit == 1 else "count"
    verb_of_some = "is" if record_limit == 1 else "are"
    cut_words = "" if surroundings.units_cut is None else f" ({surroundings.units_cut:,} here)"
    return (
        f"Of one {sheet_privacy.unit_word}, at most {counted(record_limit, 'record')} {verb}; of one with"
        f" more{cut_words}, {record_limit} {verb_of_some} drawn at random."
    )


def _opened_with(sheet: Sheet) -> str:
    """Says with how many others this hospital's numbers are opened."""
    return f"{words.opened_numbers(sheet.others, 'Your numbers', has_ended=sheet.ended is not None)}."


def _own_records(sheet: Sheet, surroundings: Surroundings) -> list[PageSection]:
    """Returns the section by which people recognise the data set; an undecided sheet says more than it signs."""
    if sheet.own is None:
        return []
    no_list = NO_LIST_AS_SIGNED if sheet.as_signed or sheet.ended is not None else NO_LIST
    record_rows = tuple((name, no_list if text == NO_LIST_AS_SIGNED else text) for name, text in sheet.own.rows)
    people_word = unit_word("user", sheet.own.word, 2)
    if surroundings.objection_list:
        record_rows = tuple(
            (name, f"{text} ({surroundings.objection_list})" if name == f"{people_word} who object" else text)
            for name, text in record_rows
        )
    record_rows = tuple(map(_plain_row, record_rows))
    if PERIOD not in dict(record_rows):
        record_rows = (*record_rows, (PERIOD, NO_PERIOD))
    if surroundings.record_fields:
        record_rows = (*record_rows, ("one record", surroundings.record_fields))
    later_words = (
        f"Of {people_word} who object later, nothing more leaves as soon as IT has added the file anew with the longer"
        " list, which ends your hospital's part in a run that your budget was charged for. What left before cannot be"
        " taken back, and published texts stay."
    )
    is_whole = dict(record_rows).get("rows left out", "none") == "none"
    title = "Your records" if is_whole else "Your records, counted without the rows left out"
    return [PageSection(title, (later_words,), figures=record_rows)]


def _plain_row(row: Sequence[str]) -> tuple[str, str]:
    """Returns a row of the data set's figures in plainer words than the signed ones."""
    name, text = row
    if name == KNOWN_LABELS:
        return "records with a label that the plan knows", KNOWN_SHARE.sub(r"\1", text)
    return name, text


def _hospital_section(sheet: Sheet) -> PageSection:
    """Returns the section that names the parties; the fingerprints that prove who they are stand further below."""
    if (run_end := sheet.ended) is None:
        title = "Who takes part"
    else:
        title = "Who was to take part" if run_end.cost is None else "Who took part, by the plan"
    shown_names = [_shown_name(party, is_own=party.name == sheet.party) for party in sheet.parties]
    sentences = [
        f"{counted(len(shown_names), 'hospital')}, by the names that the operator has given them:"
        f" {first_named(shown_names, MOST_NAMES)}.{_lacking_names(sheet)}",
        *([OPERATORS_WORDS] if sheet.has_full_names else []),
        f"Nobody can check another hospital's numbers: false ones could spoil the texts. {_false_number_words(sheet)}",
    ]
    return PageSection(title, tuple(sentences))


def _false_number_words(sheet: Sheet) -> str:
    """Says that false numbers of another hospital take no protection from this one's people, and what does."""
    people_word = unit_word(sheet.privacy.unit, sheet.own.word if sheet.own else "", 2)
    sentence = f"They take no protection from your {people_word}"
    if sheet.ended is not None or not can_be_undone(sheet):
        return f"{sentence}."
    return f"{sentence}; what a hospital that helps the operator takes, “{MORE_HELP}” says."


def _shown_name(party: NamedParty, *, is_own: bool) -> str:
    """Returns a party's name and full name; "(you" stands before the full name, which could imitate it."""
    if not is_own:
        return with_full_name(party.name, party.full_name)
    full_name_words = f"; {printable(party.full_name, LONGEST_FULL_NAME)}" if party.full_name else ""
    return f"{party.name} (you{full_name_words})"


def _lacking_names(sheet: Sheet) -> str:
    """Says which other hospitals of an open run have no full name in the plan; "" if all have one."""
    if sheet.ended is not None or not sheet.without_full_name:
        return ""
    if not sheet.has_full_names:
        return NO_FULL_NAMES
    return f" The plan has no full name of {first_named(sheet.without_full_name, MOST_NAMES)}."


def marked(sheet: Sheet) -> list[PageSection]:
    """Returns a section that marks the page as a drill's; [] for any other run."""
    return [PageSection(MARK, (PARTY_WORDS,), loud=True)] if sheet.drill else []


def _end_sections(sheet: Sheet) -> list[PageSection]:
    """Returns the section on the cost of an ended run; [] before the end."""
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


def _change_sections(sheet: Sheet, surroundings: Surroundings) -> list[PageSection]:
    """Says loudly that the plan differs from an earlier one, what became of that, and what is better or worse."""
    if sheet.replaced:
        return [PageSection("THIS PLAN WAS REPLACED: another one was proposed under this name since.", loud=True)]
    if sheet.number > 1:
        title = f"ANOTHER PLAN: number {sheet.number} under this name. What differs from the one shown here before:"
    elif sheet.revises:
        title = f"IT REVISES {printable(sheet.revises, 120)!r}. What differs from the plan shown here before:"
    else:
        return []
    change_points = tuple(map(printable, changes_to_read(sheet.changes)))
    earlier_words = (surroundings.earlier_plan,) if surroundings.earlier_plan else ()
    return [PageSection(title, earlier_words, change_points, loud=True)]


def purpose(sheet: Sheet, *, is_complete: bool = False) -> PageSection:
    """Returns the section on the run's purpose, in its operator's words.

    Args:
        is_complete: True for a page that has no other part of the sheet: who runs it, and the kinds of models.
    """
    task = sheet.task
    writers = task.generators or ()
    generator_names = NOT_STATED
    if writers:
        plain_writers = writers if is_complete else _in_plain_words(writers)
        generator_names = f"{_join_writers(plain_writers)}. {NAMES_OF_WRITERS}"
    publication = task.publication or f"{NOT_STATED}; take it as published to everyone"
    published_words = cut_sentence(words.publication(publication))
    is_open = sheet.ended is None and not (sheet.as_signed or is_complete)
    purpose_rows = [
        *_purpose_rows(sheet, is_complete=is_complete),
        (words.description_label(writers), cut_sentence(task.description or NOT_STATED)),
        ("who writes the texts", generator_names),
        *([("how many texts", NO_NUMBER_OF_TEXTS)] if is_open else []),
        *([("columns beside the text", printable(", ".join(task.columns)))] if task.columns else []),
        ("published", published_words),
        ("agreement", f"{NO_AGREEMENT}; see “{IN_ORDER}”" if is_open else NO_AGREEMENT),
    ]
    title = "What it is for" if is_complete else "What is written and published"
    return PageSection(f"{title}, in the operator's words", figures=tuple(purpose_rows))


def _purpose_rows(sheet: Sheet, *, is_complete: bool) -> list[tuple[str, str]]:
    """Returns the rows on purpose and labels that the section of questions, if the page has it, does not show."""
    label_names = sheet.task.labels or ()
    label_row = ("labels", printable(", ".join(label_names), LONGEST_SENTENCE) or "none")
    if is_complete:
        return [
            ("purpose", cut_sentence(sheet.task.purpose or NOT_STATED)),
            ("who runs it", printable(sheet.operator, LONGEST_SENTENCE)),
            label_row,
        ]
    return [label_row] if len(label_names) > MOST_LABELS else []


def _in_plain_words(writers: Sequence[str]) -> tuple[str, ...]:
    """Returns the generators without the technical name of their kind, which stands in the inner brackets."""
    plain_writers = []
    for name, kind in map(words.split_writer, writers):
        plain_kind = BRACKETED.sub("", kind)
        plain_writers.append(f"{name} ({plain_kind})" if plain_kind else name)
    return tuple(plain_writers)


def _join_writers(writers: Sequence[str]) -> str:
    """Returns the generators by name as one phrase; a kind that several have is stated once."""
    return cut_sentence(words.join_writers(writers))


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
    delta_words = f"delta {sheet_privacy.delta:g}"
    promise_words = f"epsilon {_epsilon_words(sheet_privacy.epsilon)} at {delta_words}"
    epsilon_alone = _epsilon_words(sheet_privacy.epsilon_if_all_others_collude, "cannot be stated")
    rung_words = ", ".join(f"{1000 * sheet.first_rung_s * 2**rung_step:g}" for rung_step in range(3))
    if sheet_privacy.unit == "sample":
        cap_words = ""
    else:
        cap_words = f" (at most {counted(sheet_privacy.max_per_unit, 'record')})"
    figure_rows = [
        (
            "the promise",
            f"{promise_words} for one {sheet_privacy.unit_word}{cap_words}, the whole run.",
        ),
        *_cost_rows(sheet.cost, sheet_privacy),
        *([("delta, and twice delta", _twice_delta(sheet_privacy.delta))] if sheet_privacy.delta else []),
        (
            f"if all others help the operator, {words.AS_PLANNED}",
            f"epsilon {epsilon_alone} at {delta_words}. The others can subtract their own noise; yours alone is left."
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
    if coordinator is not None and sheet.ended is not None:  # an open sheet has it in the table of calls
        figure_rows.append(("fingerprint of who runs it", coordinator.fingerprint))
    title = "The figures, and why they differ" if sheet.ended is None else "The figures as planned, and why they differ"
    return PageSection(title, figures=tuple(figure_rows), folded=True)


def _twice_delta(delta: float) -> str:
    """Explains delta, and the chance of at most twice delta that the odds shift by more than 2 e^epsilon."""
    return (
        f"delta {delta:g} is {impact.chance(delta)}: whatever is seen may be likelier by at most so much than epsilon"
        " allows. For one outcome it gives this: the odds shift by at most 2 e^epsilon, but with a chance of at most"
        " twice delta,"
        f" {impact.chance_of_more(delta)}. The excepted runs are counted so."
    )


def _cost_rows(cost: BudgetEffect | None, privacy: UnitPromise) -> list[tuple[str, str]]:
    """The run's effect on the budget, for a specialist."""
    if cost is None:
        return []
    at_delta = f"at delta {cost.delta:g}"
    delta_words = ""
    if cost.delta != privacy.delta:
        promised_chance = impact.chance(privacy.delta) if privacy.delta else "no such chance"
        delta_words = (
            f" Your budget is computed with {impact.chance(cost.delta)}, which your hospital chose; the promise of this"
            f" run is computed with {promised_chance}, which its operator chose."
        )
    return [
        (
            "this run, in your budget",
            f"epsilon {_epsilon_words(cost.alone)} {at_delta}.{delta_words}",
        ),
        (
            "your budget, before -> after",
            f"epsilon {_epsilon_words(cost.before)} -> {_epsilon_words(cost.after)} of"
            f" {_epsilon_words(cost.budget)}, left {_epsilon_words(cost.left_after)}, all {at_delta}.{_why_less(cost)}",
        ),
        (
            "worst case, before -> after",
            f"epsilon {_epsilon_words(cost.worst_before)} -> {_epsilon_words(cost.worst_after)} {at_delta}. Every other"
            " hospital helps the operator, in every run over these records. Your budget does not limit this figure.",
        ),
    ]


def _why_less(cost: BudgetEffect) -> str:
    """Says why the epsilon after a run is less than the sum of the one before and the run's; "" where it is not."""
    if cost.before is None or cost.alone is None or cost.after is None:
        return ""
    return f" {RUNS_TOGETHER}" if use_less_together(cost.before, cost.alone, cost.after) else ""


def _folded_fingerprints(sheet: Sheet) -> list[PageSection]:
    """The fingerprints of all hospitals, folded, unless they stand beside the nine words."""
    if sheet.ended is None and lists_fingerprints(sheet):
        return []
    return [replace(fingerprints(sheet), folded=True)]


def fingerprints(sheet: Sheet) -> PageSection:
    """Returns the parties with their fingerprints, because a name alone proves nothing."""
    parties = sheet.parties
    required_names = sheet.required_parties
    # Fingerprint and marks stand before the name, because a name may imitate them.
    party_rows = [
        f"{party.fingerprint}  {'(you)  ' if party.name == sheet.party else ''}"
        f"{'(named by your policy)  ' if party.name in required_names else ''}"
        f"{with_full_name(party.name, party.full_name)}"
        for party in parties
    ]
    proof_words = "Only a fingerprint that its hospital has told you says who it is."
    return PageSection("Who takes part, by fingerprint", (proof_words,), columns=tuple(party_rows))


def who_takes_part(sheet: Sheet) -> PageSection:
    """Returns the section on the parties for a page that says nothing else of them."""
    party_section = fingerprints(sheet)
    sentences = [
        f"{counted(len(sheet.parties), 'hospital')}, as the operator names them.",
        *([OPERATORS_WORDS] if sheet.has_full_names else []),
        *party_section.sentences,
        f"A sum opens with your numbers and those of at least {counted(sheet.others, 'other hospital')}."
        f" A run begins only when all have approved; {silence_words(sheet)}",
    ]
    if not sheet.required_parties and len(sheet.parties) > 1:
        sentences.append("Your policy names none of them that must take part.")
    return replace(party_section, sentences=tuple(sentences))


def _epsilon_words(value: float | None, unlimited: str = "without limit") -> str:
    return unlimited if value is None else f"{value:.4g}"


def _group_releases(manifest: Manifest) -> tuple[ReleaseGroup, ...]:
    """Groups the sums of one statistic that have the same question and the same noise."""
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
