"""The questions of a run on its sheet: who asks which ones, in one sentence, and the list of all of them."""

from undersong_client.consent.sheet import Sheet
from undersong_common.printable import first_named, printable
from undersong_common.program.printed_page import PageSection
from undersong_protocol.agreement import words
from undersong_protocol.statistics.support import WRITER_ASIDE

ALL_QUESTIONS = "All questions of the plan"  # names the list that "and k more, below" refers to
NOT_STATED = "the operator has not stated it"
MOST_LABELS = 8  # names of labels beside the questions; a longer list stands whole further below
LONGEST_SENTENCE = 600  # characters of the operator's words: one page must hold them


def first_sentence(sheet: Sheet) -> str:
    """Returns who asks what: the first questions of the plan by their own clauses, and the number of further ones."""
    operator = sheet.operator
    role = "" if operator.lower().startswith("the operator") else ", the operator,"
    verb = "asks" if sheet.ended is None else "asked"
    return f"{operator[:1].upper()}{operator[1:]}{role} {verb}: {words.asked(_plain_questions(sheet))}."


def question_section(sheet: Sheet) -> PageSection:
    """Returns the section on who asks what and for what, with the words that the questions use."""
    rows = [("for what", cut_sentence(sheet.task.purpose or NOT_STATED))]
    labels = tuple(map(printable, sheet.task.labels or ()))
    if labels and any("label" in question for question in sheet.asked):
        rows.append(("a label", f"the kind of a record: {first_named(labels, MOST_LABELS)}"))
    writers = sheet.task.generators or ()
    rows.append(("the writers", f"{words.programs(writers)}{_steering_words(sheet)}"))
    title = "What is asked" if sheet.ended is None else "What was asked"
    return PageSection(title, (first_sentence(sheet),), figures=tuple(rows))


def list_sections(sheet: Sheet) -> list[PageSection]:
    """Returns the list of every question, once; [] for a plan without questions."""
    questions = words.each_asked(_plain_questions(sheet))
    return [PageSection(ALL_QUESTIONS, points=questions)] if questions else []


def cut_sentence(text: str) -> str:
    """Returns words of the operator on one line, with their length where they are cut."""
    shown_text = printable(" ".join(text.split()), LONGEST_SENTENCE)
    if len(text) <= LONGEST_SENTENCE:
        return shown_text
    return f"{shown_text} ({len(text)} characters in all)"


def _plain_questions(sheet: Sheet) -> tuple[str, ...]:
    """The plan's clauses without what the row "the writers" says already."""
    return tuple(question.replace(f" {WRITER_ASIDE}", "") for question in sheet.asked)


def _steering_words(sheet: Sheet) -> str:
    """Says that the answers steer the writers; "" of a run that ended without them."""
    if sheet.ended is None:
        return "; the answers steer them"
    return "" if sheet.ended.cost is None else "; the answers steered them"
