"""Terms of a run on its sheet: how long it takes, what ends it, what is kept, whom a rejection binds, earlier runs.

Each sentence is made from fields that a sheet has signed already, or from what these programs always do.
"""

from undersong_client.consent.sheet import MOST_NAMES, BudgetEffect, Sheet, Surroundings
from undersong_client.home import ABANDONED_S
from undersong_common.printable import counted, first_named, printable
from undersong_common.program.printed_page import PageSection
from undersong_protocol.agreement import words

COPIES = (
    "The table says what the software keeps. A person at the operator could keep copies: the figures of the risk bound"
    " what opened sums and texts tell, however long somebody keeps them."
)
REJECT_IS_FINAL = (
    "A Reject binds your own IT too: one person can reject, and this software then lets nobody here approve that plan."
    " A person in IT could get round it by deleting the software's files."
)
WITHDRAWAL = (
    "Withdraw before: no number has left, the run stops, and no publication names your hospital. Withdraw later:"
    " nothing more leaves; what has left may be opened, used and published; publications name your hospital."
)


def beginning_words(sheet: Sheet) -> str:
    """Returns when a run begins and where a person sees it."""
    if len(sheet.parties) == 1:
        sentence = "The run begins once your hospital approves"
    else:
        sentence = "The run begins when the last hospital approves"
        sentence += "" if sheet.as_signed else ", perhaps yours"
    return f"{sentence}. Requests shows it."


def duration_section(sheet: Sheet) -> PageSection:
    """Returns the section on the run's length, its end date, and everything that ends it."""
    sum_count = sum(release.releases for release in sheet.releases)
    given_up_words = (
        "its operator gives it up, or proposes another plan under its name. Until the operator's software tells this"
        " one so, the run stays listed here as approved. Told or not,"
        f" {ABANDONED_S / 86400:.0f} days after a sum was begun, this software erases the secrets with which that sum"
        " could still be opened."
    )
    return PageSection(
        "How long it takes, and what ends it",
        (
            f"The plan states no length and no end date. It asks its"
            f" {counted(len(sheet.asked), 'question')} in {counted(sum_count, 'sum')}, one after the other, and"
            " texts are written in between: how long that takes depends on the writers and on how soon each hospital"
            " answers. Requests shows when it has ended, once the operator's software has told this one. It ends when"
            " the first of these happens:",
        ),
        points=(
            "all sums are opened and the texts are written;",
            f"{_missing_words(sheet)};",
            "for your hospital alone: you choose Withdraw;",
            given_up_words,
        ),
    )


def _missing_words(sheet: Sheet) -> str:
    """Says how many hospitals must be missing from a sum to end the run."""
    dropout_count = sheet.tolerated_dropouts
    if dropout_count:
        return f"more than {dropout_count} of the hospitals no longer {'answers' if dropout_count == 1 else 'answer'}"
    return "one hospital no longer answers"


def kept_section() -> PageSection:
    """Returns the section on what the coordinator's software keeps, during the run and after it."""
    return PageSection("What is kept, where and how long", (COPIES,), table=words.KEPT)


def rejection_words(sheet: Sheet, surroundings: Surroundings) -> str:
    """Says whom a rejection binds: it is final for this plan, and another plan is another request."""
    if surroundings.is_standing:
        later_words = "your policy, as it is, would approve it without a person"
    elif sheet.two_people:
        later_words = "while your policy stays as it is, it needs both approvals again"
    else:
        later_words = "while your policy stays as it is, one person, you or IT, can approve that one"
    return (
        f"{REJECT_IS_FINAL} Save the evidence under Log the same day, and keep it yourself: it proves your decision"
        " even then. If somebody has approved it before you, choose Withdraw, which binds in the same way. Another"
        f" plan, or this one under another name, is another request with a sheet of its own: {later_words}."
    )


def name_earlier(cost: BudgetEffect, surroundings: Surroundings) -> str:
    """Names the earlier runs beside a total over all runs, in brackets; says so where there is none before."""
    if not cost.before and not surroundings.earlier_runs:
        return " (none before this one)"
    return f" ({list_runs(surroundings)})"


def list_runs(surroundings: Surroundings) -> str:
    """Names the earlier runs over these records."""
    names = [repr(printable(run, 120)) for run in surroundings.earlier_runs]
    if not names:
        return "the runs that the screen Budget names"
    return first_named(names, MOST_NAMES)
