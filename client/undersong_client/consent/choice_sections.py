"""The choices of a person on a run's sheet: who decides, the steps in order, the calls, and what each choice does."""

from collections.abc import Sequence

from undersong_client.consent.budget_sections import BUDGET_TITLE, protects_nobody
from undersong_client.consent.risk_sections import MORE_HELP
from undersong_client.consent.rules import decider_consequence, decider_words
from undersong_client.consent.run_terms import rejection_words
from undersong_client.consent.sheet import (
    MOST_NAMES,
    NO_LIST,
    NO_LIST_AS_SIGNED,
    PERIOD,
    NamedParty,
    Sheet,
    Surroundings,
)
from undersong_client.home import unit_word
from undersong_common.printable import counted, first_named
from undersong_common.program.printed_page import PageSection

NAME_STAYS = (
    "The run has ended, and nobody can withdraw from it any more. Published texts cannot be recalled, and they name"
    " this hospital as one that took part; one that had withdrawn is named as one that took part until then."
)
IN_ORDER = "What you do, in order"
CHECK_OBJECTIONS = (
    "Ask IT for the list of {people} who object, and have the file added anew with it; if nobody objects, have that"
    " confirmed in writing, and an empty list added{period}. Do not approve before: the sheet is then made anew, and"
    " the nine words stay."
)
ASK_FIRST = (
    "Look up the operator's telephone number elsewhere than on this sheet. Ask whether this run is theirs, under which"
    " agreement with your hospital, and what its own words above leave open, such as whether the texts are published in"
    " your hospital's name.{names} On which legal basis your hospital computes these numbers from its records is for"
    " you to judge. Do not approve before you have the agreement, the legal basis and what else the lines beside the"
    " signature ask in writing."
)
READ_EARLIER = (
    f"Read under “{BUDGET_TITLE}” who approved the earlier runs, and which ones have not ended. If one of those should"
    " not go on, choose Withdraw for it under Requests."
)
ASK_EXAMINED = (
    "Ask IT who has examined this version of the software. If nobody has, every figure here rests on the word of its"
    " makers."
)
SET_BUDGET = (
    " Have a smaller budget set, too, as “Before you decide” recommends: before you approve, since the sheet is then"
    " made anew."
)
ASK_PERIOD = "; ask which period the records cover, too"
TWO_PEOPLE = (
    "If IT must not approve alone, have your policy ask for {deciders}. It is set under Policy in this software, or"
    " by a command of IT: order it in writing. From then on, in the software, only both together can undo it, or"
    " allow more by policy or budget, and Log shows that; by changing the software's files, IT could undo it alone."
    " Each of the two needs an account of their own with that role: order yours, too. The rule counts for this run,"
    " unless it is approved already."
)
CALL_PROVES = (
    " A call shows that a hospital exists and holds its key. Whether it helps the operator no call shows: that remains"
    " your trust."
)
TWO_PEOPLE_FIRST = " IT can approve while you wait: do step 1 first."
ASK_NAMES = " Ask for full name and town of {hospitals}."
COMPARE = (
    "Compare the nine words, and the fingerprints {place}, by telephone with the operator{hospitals}."
    "{uncalled} If anything differs, have it read out once more; if it still differs: Reject. A hospital that you do"
    " not reach counts as one that you do not call."
)
DECIDE = (
    "Whoever decides for the hospital chooses Approve or Reject in this software, which IT runs, on its page under"
    " Requests. Only a choice in it counts."
)
APPROVAL_STANDS = (
    "An approval is for the plan that the nine words name, and for your records as they were read for this sheet. It"
    " is signed with this sheet's figures, and Log shows the account that approved (the name beside it is what that"
    " person typed). If records, budget or policy change before it, the sheet has to be read again. If IT has other"
    " records read after it, from this file or another one, the approval lapses, which the operator is told: nothing"
    " leaves before somebody approves once more, and a run that has begun goes on or ends as with a hospital that is"
    " silent. Once your first numbers have been asked for, which is when your budget is charged, the run ends at your"
    " hospital instead, as if you had chosen Withdraw. A file that is changed and not read again changes nothing: the"
    " run uses the records as they were read."
)
TO_WRITE_ON = "______________"  # on the printed sheet


def choice_sections(sheet: Sheet, beside: Surroundings) -> list[PageSection]:
    """What a person can do and in which order, and what becomes of the hospital's name; an ended run has the latter."""
    if sheet.ended is not None:
        return [] if sheet.ended.cost is None else [PageSection("What stays", points=(NAME_STAYS,))]
    withdraw_words = (
        f"Change your mind: choose Withdraw under Requests, until the run ends."
        f" “What can be undone” says what becomes of the run. The operator keeps your hospital's name and the fact that"
        f" it withdrew; what has left and is opened counts against your budget. The others see that you no longer"
        f" answer: {silence_words(sheet)}"
    )
    if sheet.as_signed:
        return [PageSection("What you can do", points=(withdraw_words,))]
    return [
        PageSection(IN_ORDER, points=steps(sheet, beside), ordered=True),
        PageSection(
            "What you can do",
            points=(
                "Approve: choose Approve and type the nine words below. Agreement and legal basis have a place in the"
                " comment, which stays in your hospital.",
                APPROVAL_STANDS,
                "Refuse: choose Reject. Nothing leaves, and this run does not take place. The operator is told that"
                " yours has refused, reads the reason if you write one, and keeps both with your hospital's name; its"
                " software tells the others only that the run has stopped. The operator may plan another run without"
                " you, or ask you anew.",
                rejection_words(sheet, beside),
                f"Ask or wait: choose nothing; {waiting_words(sheet, beside)} No date is set: the run waits for every"
                " hospital of its plan, until its operator, who knows which ones have approved, gives it up.",
                withdraw_words,
            ),
        ),
    ]


def objections_unchecked(sheet: Sheet) -> bool:
    """True if a sheet that is to be decided has no list of the people who object."""
    return not sheet.as_signed and sheet.ended is None and _objection_row(sheet) in (NO_LIST, NO_LIST_AS_SIGNED)


def objections_then(sheet: Sheet) -> str:
    """Returns what a signed sheet says of objections, as the end of a clause; "" where it has no people."""
    row_text = _objection_row(sheet)
    if not row_text:
        return ""
    if row_text in (NO_LIST, NO_LIST_AS_SIGNED):
        return "; its sheet names no list of objections"
    return f"; objections then: {row_text}"


def _objection_row(sheet: Sheet) -> str:
    """The signed words on the people who object; "" where no column names them."""
    if sheet.own is None:
        return ""
    row_name = f"{unit_word('user', sheet.own.word, 2)} who object"
    return next((text for name, text in sheet.own.rows if name == row_name), "")


def next_words(sheet: Sheet, beside: Surroundings) -> str:
    """Names the steps of :func:`steps` in a few words, for the section In short."""
    people_words = "two people, " if not (sheet.two_people or beside.is_standing) else ""
    objection_words = "objections, " if objections_unchecked(sheet) else ""
    return f"“{IN_ORDER}”: {people_words}{objection_words}telephone, nine words, decision."


def steps(sheet: Sheet, beside: Surroundings) -> tuple[str, ...]:
    """What a person does before and when deciding; so many hospitals are called that the figures hold."""
    first_steps = []
    if not sheet.two_people and not beside.is_standing:
        first_steps.append(TWO_PEOPLE.format(deciders=decider_words(is_standing=False, two_people=True)))
    if objections_unchecked(sheet):
        people_word = unit_word("user", sheet.own.word if sheet.own else "", 2)
        has_period = sheet.own is not None and any(row[0] == PERIOD for row in sheet.own.rows)
        period_words = "" if has_period else ASK_PERIOD
        first_steps.append(CHECK_OBJECTIONS.format(people=people_word, period=period_words))
    if beside.earlier_decisions:
        first_steps.append(READ_EARLIER)
    first_steps.append(f"{ASK_EXAMINED}{SET_BUDGET if protects_nobody(sheet.cost) else ''}")
    return *first_steps, ASK_FIRST.format(names=_ask_names(sheet)), _compare_words(sheet), DECIDE


def _ask_names(sheet: Sheet) -> str:
    """Has a person ask for the full names that the plan does not state; "" if it states those of all others."""
    if not sheet.without_full_name:
        return ""
    if sheet.has_full_names:
        return ASK_NAMES.format(hospitals=first_named(sheet.without_full_name, MOST_NAMES))
    return ASK_NAMES.format(hospitals="the other hospitals")


def _compare_words(sheet: Sheet) -> str:
    """Says with whom a person compares words and fingerprints, and what it means not to call a hospital."""
    call_count, uncalled_words = _call_count(sheet), ""
    if call_count > MOST_NAMES:
        hospital_words = "as many other hospitals as you can reach"
    elif call_count == len(sheet.parties) - 1:
        hospital_words = {1: "the other hospital", 2: "both other hospitals"}.get(
            call_count, f"all {call_count} other hospitals"
        )
    else:
        hospital_words = f"{call_count} of the other hospitals"
        uncalled_words = f" {count_uncalled(sheet)}"
        if sheet.colluders < len(sheet.parties) - 1:
            uncalled_words += f" If one more helps, “{MORE_HELP}” says what holds."
    if call_count:
        hospital_words = (
            f" and with {hospital_words} (look up the numbers of those named under “Who takes part”, and ask for"
            " whoever decides there about Undersong: the privacy officer, or IT)"
        )
        uncalled_words = f"{CALL_PROVES}{uncalled_words}"
    else:
        hospital_words = ""
    place_words = "below them" if lists_fingerprints(sheet) else "below them, or for a specialist further below"
    return COMPARE.format(place=place_words, hospitals=hospital_words, uncalled=uncalled_words)


def count_uncalled(sheet: Sheet) -> str:
    """Says that hospitals that nobody has called may be invented, and use up helpers that the risk allows."""
    uncalled_count = len(sheet.parties) - 1 - _call_count(sheet)
    if uncalled_count == 1:
        subject_words = "the one that you do not call as one that helps"
    else:
        subject_words = f"the {uncalled_count} that you do not call as ones that help"
    further_words = (
        "no other" if uncalled_count == sheet.colluders else f"at most {sheet.colluders - uncalled_count} more"
    )
    return f"Count {subject_words} the operator: the figures of the risk then allow {further_words}."


def _call_count(sheet: Sheet) -> int:
    """The least number of other hospitals that leaves no more uncalled than may help, and of which each sum has one."""
    other_count = len(sheet.parties) - 1
    return min(other_count, max(other_count - sheet.others + 1, other_count - sheet.colluders))


def calls_section(sheet: Sheet) -> PageSection:
    """Returns the fingerprints that people read out to each other, as a table in which they note each call by hand."""
    call_count = _call_count(sheet)
    other_parties = [party for party in sheet.parties if party.name != sheet.party]
    if lists_fingerprints(sheet) or call_count == len(other_parties) <= MOST_NAMES:
        called_parties = other_parties
    else:
        called_parties = [NamedParty("a hospital", TO_WRITE_ON)] * (1 if call_count > MOST_NAMES else call_count)
    operator = NamedParty("the operator", sheet.coordinator.fingerprint if sheet.coordinator else TO_WRITE_ON)
    own_rows = [
        (f"you ({party.name})", party.fingerprint, "", "", "", "")
        for party in sheet.parties
        if party.name == sheet.party
    ]
    choice_words = (
        f" Call all {len(called_parties)}, or any {call_count}, as “{IN_ORDER}” says."
        if call_count < len(called_parties)
        else ""
    )
    return PageSection(
        "Who takes part, by fingerprint, to compare over the telephone",
        (
            "A fingerprint is a short form of the public key by which signatures are checked. Each reads out its own,"
            " and the other compares it with its own sheet. Only a fingerprint that"
            f" its hospital has told you says who it is.{choice_words}",
        ),
        table=(
            ("who", "fingerprint", "number, day", "words the same", "fingerprint the same", "yours the same there"),
            *own_rows,
            *(_call_row(party, sheet.required_parties) for party in (operator, *called_parties)),
        ),
        unbroken=True,
    )


def _call_row(called: NamedParty, required_parties: Sequence[str]) -> tuple[str, ...]:
    """The row of one call: whom, the fingerprint that is heard, and places to write on."""
    name = f"{called.name} (named by your policy)" if called.name in required_parties else called.name
    return name, called.fingerprint, TO_WRITE_ON, *["yes / no"] * 3


def waiting_words(sheet: Sheet, beside: Surroundings) -> str:
    """Says what leaves while a person does not decide, by who decides here."""
    if beside.is_standing:
        return "it stops nothing, since no person has to approve; Reject and Withdraw do."
    if sheet.two_people:
        return "nothing leaves until both have approved, and silence is no consent."
    return f"nothing leaves while nobody here approves, and silence is no consent.{TWO_PEOPLE_FIRST}"


def describe_deciders(sheet: Sheet, beside: Surroundings) -> list[tuple[str, str]]:
    """Says of a run that is undecided who has to approve it, and whether one person can without another."""
    if sheet.ended is not None or sheet.as_signed:
        return []
    rule_words = decider_words(is_standing=beside.is_standing, two_people=sheet.two_people)
    consequence = decider_consequence(is_standing=beside.is_standing, two_people=sheet.two_people)
    state_words = "; nobody has decided yet" if beside.is_undecided and not beside.is_standing else ""
    return [
        (
            "Who decides here",
            f"By your hospital's policy (its rules in this software, Undersong), {rule_words}{state_words}."
            f" {consequence}",
        )
    ]


def silence_words(sheet: Sheet) -> str:
    """Says what becomes of a run of which hospitals fall silent after its start."""
    if not sheet.tolerated_dropouts:
        return "a run that has begun ends if any hospital no longer answers."
    return (
        f"a run that has begun goes on while at most {counted(sheet.tolerated_dropouts, 'hospital')}"
        f" {'is' if sheet.tolerated_dropouts == 1 else 'are'} missing from a sum."
    )


def lists_fingerprints(sheet: Sheet) -> bool:
    """True if a sheet has few enough hospitals to list their fingerprints where people compare them."""
    return len(sheet.parties) <= MOST_NAMES
