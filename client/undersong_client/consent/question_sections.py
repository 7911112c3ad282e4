"""The questions of a run on its sheet: who asks which ones, in one sentence, and the list of all of them."""

from undersong_client.consent.sheet import MOST_NAMES, Sheet
from undersong_common.printable import first_named, printable
from undersong_common.program.printed_page import PageSection
from undersong_protocol.agreement import words
from undersong_protocol.statistics.classifier_votes import CorpusComparison, ScoredComparison
from undersong_protocol.statistics.similarity import ScoredSimilarity
from undersong_protocol.statistics.support import WRITER_ASIDE

ALL_QUESTIONS = "All questions of the plan"  # names the list that "and k more, below" refers to
NOT_STATED = "the operator has not stated it"
MOST_LABELS = 8  # names of labels beside the questions; a longer list stands whole further below
COMPARING_METHOD = "undersong"  # No other package can give a method this name, and none of the others compares sets.
_PUBLISHES_BETTER = (
    "The first has all of them but unsuitable ones; the second has those that the hospitals' earlier answers select."
    " The second is published if this answer finds it better, else the first."
)
# By the statistic of a question of COMPARING_METHOD, which two sets of texts it compares and what for. A sheet signs
# the questions themselves and not these sentences.
_COMPARED_SETS = {
    CorpusComparison.name: _PUBLISHES_BETTER,
    ScoredComparison.name: f"{_PUBLISHES_BETTER} The answer also serves to state, in card and report, how well the"
    " published one teaches.",
    ScoredSimilarity.name: "The first has texts of the first round; the second has those that are published. The answer"
    " decides nothing: it serves to state, in card and report, how near either set is to the records.",
}
LONGEST_SENTENCE = 600  # characters of the operator's words: one page must hold them


def first_sentence(sheet: Sheet) -> str:
    """Returns who asks what: the first questions of the plan by their own clauses, and the number of further ones."""
    operator = sheet.operator
    role_words = "" if operator.lower().startswith("the operator") else ", the operator,"
    verb = "asks" if sheet.ended is None else "asked"
    return f"{operator[:1].upper()}{operator[1:]}{role_words} {verb}: {words.asked(_plain_questions(sheet))}."


def question_section(sheet: Sheet) -> PageSection:
    """Returns the section on who asks what and for what, with the words that the questions use."""
    rows = [("for what", f"“{cut_sentence(sheet.task.purpose)}”" if sheet.task.purpose else NOT_STATED)]
    labels = tuple(map(printable, sheet.task.labels or ()))
    if labels and any("label" in question for question in sheet.asked):
        rows.append(("a label", f"the kind of a record: {first_named(labels, MOST_LABELS)}"))
    writers = sheet.task.generators or ()
    rows.append(("the writers", f"{words.programs(writers)}{_steering_words(sheet)}"))
    title = "What is asked" if sheet.ended is None else "What was asked"
    return PageSection(title, (first_sentence(sheet),), figures=tuple(rows))


def list_sections(sheet: Sheet) -> list[PageSection]:
    """Returns the list of every question, once, with what explains it; [] for a plan without questions."""
    explanations = _explain_sets(sheet)
    points = tuple(
        f"{plain_question}. {explanations[question]}" if question in explanations else plain_question
        for question, plain_question in zip(sheet.asked, _plain_questions(sheet), strict=True)
    )
    return [PageSection(ALL_QUESTIONS, points=points)] if points else []


def _explain_sets(sheet: Sheet) -> dict[str, str]:
    """Returns by question which two sets of texts are compared, who wrote them, and what for."""
    if sheet.method != COMPARING_METHOD:
        return {}
    names = [printable(words.split_writer(writer)[0], LONGEST_SENTENCE) for writer in sheet.task.generators or ()]
    names_words = f" ({first_named(names, MOST_NAMES)})" if names else ""
    origin_sentence = f"Both sets are texts of this run's writers{names_words}."
    return {
        release.meaning: f"{origin_sentence} {_COMPARED_SETS[release.statistic]}"
        for release in sheet.releases
        if release.statistic in _COMPARED_SETS and not release.source
    }


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
