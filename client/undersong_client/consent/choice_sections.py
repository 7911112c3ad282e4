"""The choices of a person on a run's sheet: who decides, the steps in order, the calls, and what each choice does."""

from undersong_client.consent.risk_sections import MORE_HELP
from undersong_client.consent.rules import decider_consequence, decider_words
from undersong_client.consent.run_terms import rejection_words
from undersong_client.consent.sheet import MOST_NAMES, NamedParty, Sheet, Surroundings
from undersong_common.printable import counted
from undersong_common.program.printed_page import PageSection

NAME_STAYS = (
    "The run has ended, and nobody can withdraw from it any more. Published texts cannot be recalled, and they name"
    " this hospital as one that took part; one that had withdrawn is named as one that took part until then."
)
ASK_FIRST = (
    "Look up the operator's telephone number elsewhere than on this sheet. Ask whether this run is theirs, and under"
    " which agreement and on which legal basis it uses your records; choose Reject if none is named."
)
COMPARE = (
    "Compare the nine words, and the fingerprints {place}, by telephone with the operator{hospitals}."
    "{uncalled} If anything differs: Reject."
)
DECIDE = "Decide in the program: Approve or Reject, on its page under Requests, or where it asks you. Only that counts."
WITHDRAW = (
    "Change your mind: choose Withdraw on the page, under Requests, until the run ends, which Requests shows."
    " Before the run has begun, it then does not begin, and nothing published names your hospital."
    " Later, nothing more leaves: what was opened stays opened, may still steer and be published, and counts against"
    " your budget; a number that had left may still be opened with its sum and counts too, and your hospital stays"
    " named, with the sum until which it took part."
)


def choice_sections(sheet: Sheet, beside: Surroundings) -> list[PageSection]:
    """What a person can do and in which order, and what becomes of the hospital's name; an ended run has the latter."""
    if sheet.ended is not None:
        return [] if sheet.ended.cost is None else [PageSection("What stays", points=(NAME_STAYS,))]
    withdraw_words = f"{WITHDRAW} The others see that you no longer answer: {silence_words(sheet)}"
    if sheet.as_signed:
        return [PageSection("What you can do", points=(withdraw_words,))]
    return [
        PageSection("What you do, in order", points=steps(sheet), ordered=True),
        PageSection(
            "What you can do",
            points=(
                "Approve: choose Approve and type the nine words below. The agreement or legal basis has a place in"
                " the comment, which stays in your hospital.",
                "Refuse: choose Reject. Nothing leaves, and this run does not take place, because it begins only when"
                " all of its hospitals have approved. The operator is told that yours has refused, reads the reason"
                " if you write one, and keeps both with your hospital's name; this program tells the others only that"
                " the run has stopped."
                " The operator may plan another run without you, or ask you anew.",
                rejection_words(sheet, beside),
                f"Wait: {waiting_words(sheet, beside)} No date is set: the run waits for every"
                " hospital of its plan, until its operator gives it up.",
                withdraw_words,
            ),
        ),
    ]


def steps(sheet: Sheet) -> tuple[str, str, str]:
    """What a person does before and when deciding; so many hospitals are called that the figures hold."""
    calls, uncalled = _calls(sheet), ""
    if calls > MOST_NAMES:
        hospitals = "as many other hospitals as you can reach"
    elif calls == len(sheet.parties) - 1:
        hospitals = {1: "the other hospital", 2: "both other hospitals"}.get(calls, f"all {calls} other hospitals")
    else:
        unchecked = len(sheet.parties) - 1 - calls
        hospitals = f"{calls} of the other hospitals"
        uncalled = (
            f" {'One hospital' if unchecked == 1 else f'{unchecked} hospitals'} that you have not called could be the"
            f" operator's invention, and then {'is one' if unchecked == 1 else 'are among those'} that the risk"
            " counts as helping the operator."
            + (
                f" If one more helps or lies, “{MORE_HELP}” says what holds."
                if sheet.colluders < len(sheet.parties) - 1
                else ""
            )
        )
    if calls:
        hospitals = f" and with {hospitals} (look up their numbers yourself, too)"
    else:
        hospitals = ""
    place = "below them" if lists_fingerprints(sheet) else "below them, or for a specialist further below"
    return ASK_FIRST, COMPARE.format(place=place, hospitals=hospitals, uncalled=uncalled), DECIDE


def _calls(sheet: Sheet) -> int:
    """The least number of other hospitals that leaves no more uncalled than may help, and of which each sum has one."""
    other_count = len(sheet.parties) - 1
    return min(other_count, max(other_count - sheet.others + 1, other_count - sheet.colluders))


def entries(sheet: Sheet) -> tuple[str, ...]:
    """What a person enters by hand on paper: whom they called, and under which agreement the run takes place."""
    calls = _calls(sheet)
    others = [party for party in sheet.parties if party.name != sheet.party]
    if calls > MOST_NAMES:
        called = [NamedParty("a hospital", "")]
    elif calls == len(others) or lists_fingerprints(sheet):
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


def waiting_words(sheet: Sheet, beside: Surroundings) -> str:
    """Says what leaves while a person does not decide, by who decides here."""
    if beside.is_standing:
        return "it stops nothing, since no person has to approve; Reject and Withdraw do."
    if sheet.two_people:
        return "nothing leaves until both have approved, and silence is no consent."
    return "nothing leaves while nobody approves, and silence is no consent; but IT can approve without you."


def describe_deciders(sheet: Sheet, beside: Surroundings) -> list[tuple[str, str]]:
    """Says of a run that is undecided who has to approve it, and whether one person can without another."""
    if sheet.ended is not None or sheet.as_signed:
        return []
    rule = decider_words(is_standing=beside.is_standing, two_people=sheet.two_people)
    consequence = decider_consequence(is_standing=beside.is_standing, two_people=sheet.two_people)
    return [("Who decides here", f"By your policy, {rule}. {consequence}")]


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
