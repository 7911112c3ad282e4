"""Sentences about a plan that sheet, page, card, dossier and ``verify`` share.

They say what each sum asks, and with how many other hospitals' numbers a hospital's are opened. Each is made from the
plan, so that it says no more than holds for that plan.
"""

import re
from collections.abc import Sequence

from undersong_common.errors import UndersongError
from undersong_common.printable import counted, joined, noun, printable
from undersong_common.privacy.ledger import VOIDED_VECTORS
from undersong_protocol import statistics
from undersong_protocol.agreement.plan import Plan, PlannedSum

AS_PLANNED, AS_IT_RAN = "as planned", "as it ran"
SIGNED_PLAN = "signed plan, SHA-256"  # names the hash that every party signs; the file manifest.json has another hash
PLANNED = (
    f"As planned, each sum counts {1 + VOIDED_VECTORS} times: hospitals that join against one can open an attempt, call"
    " it failed and have it repeated; as it ran, each attempt counts that was made."
)
CONFIRMED = (
    "Before that, enough hospitals confirm that the operator cannot open the failed attempt. It then adds nothing to"
    " the risk of this run. If more hospitals help the operator than this risk counts with, they may confirm it"
    " falsely: the figures for more helpers count every attempt as opened."
)
# What is kept of a run, where and how long: for the hospital's sheet and the coordinator's dossier.
KEPT = (
    ("what", "where", "how long"),
    (
        "a hospital's answers, scrambled",
        "with the operator",
        "until their sum is opened, then erased; those of a sum that never opens, until the operator removes the run."
        " Without the keys of other hospitals they tell nobody anything",
    ),
    (
        "opened sums, the orders to the writers, and what they wrote",
        "with the operator",
        "after the run, too: no date is set, until the operator removes the run; the sums that it publishes with the"
        " texts, for good",
    ),
    (
        "texts, a card (a page that describes them) and a report, the plan, and the receipt that each hospital signs"
        " (card, plan and receipts name the hospitals)",
        "published",
        "for good: nobody can recall them",
    ),
    (
        "names and contacts of hospitals, and the public keys by which their signatures are checked",
        "with the operator",
        "after the run, and after a Reject, too: until the operator removes the files of all its runs",
    ),
    (
        "records, budgets, and the secret keys with which the software signs and masks",
        "with each hospital alone",
        "as each hospital decides",
    ),
)
WRITTEN_BEFORE = "texts that were written before"  # a plan's description of a generator that reads a file of texts
# A plan's description of a generator that learned from public texts, and of a model in a folder of the operator's.
NGRAM_WRITER = "a small program that imitates public texts (an n-gram model), run by the operator"
LOCAL_MODEL_WRITER = "a language model, run by the operator"
OF_ANOTHER_PACKAGE = "of another package"  # end of a plan's description of a generator from another package
OF_THIS_PROCESS = "of this process"  # end of a plan's description of a generator that is a simulation's own function
NOMINAL = "nominal"  # marks a planned epsilon that protects nobody, such as that of a test with known noise
NO_GUARANTEE = "This corpus carries no privacy guarantee. Do not release it."
LONGEST_TITLE = 200  # characters of a question that stands as the title of its sum
_ASIDE = re.compile(r" \([^)]*\)")  # an explanation in brackets
# The place in a question where an explanation begins.
_ADDED = re.compile(r"; |, (?=which|where|each of which|corrected|for single|and by how much)")
MOST_QUESTIONS = 3  # A sentence names at most so many questions, then it refers to a list.
LONGEST_FOREIGN = 600  # characters of a description that another package wrote
_PUBLICATION_KEY = re.compile("; (?:licence|made by|contact): ")


def question(planned: PlannedSum) -> str:
    """Returns in words what one sum asks of a hospital: the clause that its statistic has for its parameters."""
    statistic = statistics.known(planned.statistic)
    is_same_source = statistic is not None and statistics.source(planned.statistic) == planned.source
    if planned.source:
        program_words = f"ANOTHER PACKAGE'S PROGRAM computes from your records (its source: SHA-256 {planned.source})"
        explanation = ""
        if statistic is not None and is_same_source:
            explanation = f"; it says: {printable(statistic.consent, LONGEST_FOREIGN)}"
        return f"bounded numbers that {program_words}{explanation}"
    if statistic is None or not is_same_source:
        return "a sum of bounded numbers computed from your records"
    try:
        return statistics.build(planned.statistic, planned.parameters).asks
    except UndersongError:
        # The statistic refuses the parameters. So does the party, but the plan is shown before.
        return statistic.consent


def questions(plan: Plan) -> tuple[str, ...]:
    """Returns the different questions of a plan, in the plan's order."""
    return tuple(dict.fromkeys(map(question, plan.sums)))


def split_writer(description: str) -> tuple[str, str]:
    """Splits a plan's description of a generator into its name and its kind, which stands in brackets.

    >>> split_writer("big (a model (an n-gram model))"), split_writer("big")
    (('big', 'a model (an n-gram model)'), ('big', ''))
    """
    name, bracket, kind = description.partition(" (")
    return name, kind.removesuffix(")") if bracket else ""


def join_writers(writers: Sequence[str]) -> str:
    """Returns a plan's generators in words, by name; a kind that several of them have is stated once.

    >>> join_writers(["a (a model)", "b (a model)", "c"])
    'a, b (each a model); c'
    >>> join_writers(["pool (texts that were written before)"])
    'pool (a file of texts that were written before)'
    """
    names_of_kind: dict[str, list[str]] = {}
    for name, kind in map(split_writer, writers):
        names_of_kind.setdefault(f"a file of {kind}" if kind == WRITTEN_BEFORE else kind, []).append(name)
    groups = []
    for kind, names in names_of_kind.items():
        each_word = "each " if len(names) > 1 else ""
        groups.append(f"{', '.join(names)}{f' ({each_word}{kind})' if kind else ''}")
    return "; ".join(groups)


def is_copied(description: str) -> bool:
    """Returns True if the plan's description of a generator says that it takes its texts from a file."""
    return description.endswith(f"({WRITTEN_BEFORE})")


def _origin(description: str) -> str:
    """Returns the origin of a generator's texts, a key of ``_PROGRAMS``, from the plan's description of it."""
    if is_copied(description):
        return "file"
    return "program" if description.endswith((f"{OF_ANOTHER_PACKAGE})", f"{OF_THIS_PROCESS})")) else "model"


_PROGRAMS = {
    "model": "programs that write invented texts",
    "file": f"programs that take texts from a file of {WRITTEN_BEFORE}",
    "program": "other programs, whose texts may be invented or not",
}


def programs(writers: Sequence[str]) -> str:
    """Returns in words which kinds of programs give a run its texts, from the plan's descriptions of its generators.

    >>> programs(["gpt (a language model, run by the operator)"]), programs(["pool (texts that were written before)"])
    ('programs that write invented texts', 'programs that take texts from a file of texts that were written before')
    """
    origins = dict.fromkeys(map(_origin, writers))
    return joined([_PROGRAMS[origin] for origin in origins]) or "programs that give texts"


def origin_sentences(writers: Sequence[str]) -> str:
    """Returns sentences that say whose texts are invented, from the plan's descriptions of its generators.

    >>> origin_sentences(["gpt (a language model, run by the operator)"])
    'The texts are invented.'
    >>> origin_sentences(["gpt (a language model)", "pool (texts that were written before)"])[:61]
    'The texts of pool are copies of texts that were written befor'
    """
    names_by_origin: dict[str, list[str]] = {"model": [], "file": [], "program": []}
    for writer in writers:
        names_by_origin[_origin(writer)].append(printable(split_writer(writer)[0], LONGEST_FOREIGN))
    is_one_kind = sum(map(bool, names_by_origin.values())) == 1
    sentences = []
    if names_by_origin["file"]:
        of_names = "" if is_one_kind else f" of {joined(names_by_origin['file'])}"
        sentences.append(
            f"The texts{of_names} are copies of {WRITTEN_BEFORE}: who wrote them, and of whom they tell, these files do"
            " not say."
        )
    if names_by_origin["program"]:
        program_names = joined(names_by_origin["program"])
        sentences.append(f"Whether the texts of {program_names} are invented, these files do not say.")
    if names_by_origin["model"]:
        sentences.append("The texts are invented." if is_one_kind else "The other texts are invented.")
    return " ".join(sentences)


def description_label(writers: Sequence[str]) -> str:
    """Returns the label for a plan's description of one text. Where all generators invent, a text imitates it only.

    >>> description_label(["gpt (a language model)"]), description_label(["pool (texts that were written before)"])
    ('what an invented text imitates', 'what one text is')
    >>> description_label([])
    'what one text is'
    """
    return "what an invented text imitates" if set(map(_origin, writers)) == {"model"} else "what one text is"


def run_by(operator: str, contact: str) -> str:
    """Returns in words who asks the hospitals, with the contact, as a plan states both; "" where it states nobody.

    >>> run_by("the alliance", "desk@alliance.example"), run_by("the alliance", ""), run_by("", "")
    ('the alliance (contact: desk@alliance.example)', 'the alliance', '')
    """
    contact_words = f" (contact: {printable(contact, LONGEST_FOREIGN)})" if operator and contact else ""
    return f"{printable(operator, LONGEST_FOREIGN)}{contact_words}"


def publication(publication_text: str) -> str:
    """Returns a plan's ``publication`` text for readers: no full stop before a semicolon, and "made by" explained.

    >>> publication("Our page.; made by: the alliance")
    'Our page; published in the name of: the alliance'
    """
    return publication_text.replace(".; ", "; ").replace("; made by: ", "; published in the name of: ")


def publication_place(publication_text: str) -> str:
    """Returns where a plan says that a data set is published; "" where it does not state it.

    >>> publication_place("Our page.; licence: CC0"), publication_place("licence: CC0")
    ('Our page', '')
    """
    return _PUBLICATION_KEY.split(f"; {publication_text}", maxsplit=1)[0].removeprefix("; ").rstrip(".")


def publication_part(publication_text: str, key: str) -> str:
    """Returns one part of a plan's words on its publication, by its key; "" where the plan does not state it.

    >>> stated = "Our page; licence: CC0; made by: five clinics; contact: desk"
    >>> publication_part(stated, "licence"), publication_part(stated, "made by"), publication_part("A page", "licence")
    ('CC0', 'five clinics', '')
    """
    _, _, following_words = f"; {publication_text}".partition(f"; {key}: ")
    return _PUBLICATION_KEY.split(following_words, maxsplit=1)[0].rstrip(".")


def sum_titles(sums: Sequence[PlannedSum]) -> dict[str, str]:
    """Returns what each planned sum asks of the hospitals, in a few words, by its name.

    Sums that ask the same are numbered: "how many of their records have each label (2 of 3)".
    """
    titles = {planned.name: _shorten_question(question(planned)) for planned in sums}
    names_by_title: dict[str, list[str]] = {}
    for name, title in titles.items():
        names_by_title.setdefault(title, []).append(name)
    return {
        name: title if len(names) == 1 else f"{title} ({names.index(name) + 1} of {len(names)})"
        for title, names in names_by_title.items()
        for name in names
    }


def _shorten_question(clause: str) -> str:
    """Returns a question without its explanations: what stands in parentheses, and what a comma or semicolon adds."""
    return _cut_explanations(_with_possessive(clause, "their"))


def _cut_explanations(clause: str) -> str:
    return printable(_ADDED.split(_ASIDE.sub("", clause), maxsplit=1)[0], LONGEST_TITLE)


def asked(
    clauses: Sequence[str], possessive: str = "your", list_place: str = "below", most: int = MOST_QUESTIONS
) -> str:
    """Returns questions as the end of a sentence: at most ``most`` of them, then how many more a list elsewhere names.

    Args:
        possessive: "your" where the hospital itself reads it, "its" where others do.
        list_place: words for the place of that list; most: number of questions that are named.

    >>> asked(["how many of your records have each label", "b", "c", "d"], "its")
    'how many of its records have each label; b; c; and 1 more, below'
    >>> asked(["a"]), asked(["a", "b"]), asked([])
    ('a', 'a; and b', 'nothing about records')
    """
    listed_clauses = list(clauses[:most])
    if len(clauses) > most:
        listed_clauses.append(f"and {len(clauses) - most} more, {list_place}")
    elif len(listed_clauses) > 1:
        listed_clauses[-1] = f"and {listed_clauses[-1]}"
    return _with_possessive("; ".join(listed_clauses) or "nothing about records", possessive)


def further(clauses: Sequence[str], possessive: str = "your") -> tuple[str, ...]:
    """Returns the questions that :func:`asked` only counts, for the list below it.

    >>> further(["a", "b", "c", "how many of your records are long"], "its"), further(["a"])
    (('how many of its records are long',), ())
    """
    return tuple(_with_possessive(clause, possessive) for clause in clauses[MOST_QUESTIONS:])


def examples(statistic_names: Sequence[str], labels: Sequence[str], writers: Sequence[str]) -> tuple[str, ...]:
    """Returns an example of each question that has one, with the task's own labels and writers, in the plan's order.

    >>> examples(["label_histogram", "label_histogram"], ["cardiac"], ["handbook"])
    ('how many of your records are labelled cardiac',)
    """
    own_statistics = filter(None, map(statistics.known, dict.fromkeys(statistic_names)))
    illustrations = (statistic.illustrate(labels, writers) for statistic in own_statistics)
    return tuple(dict.fromkeys(filter(None, illustrations)))


def _with_possessive(clause: str, possessive: str) -> str:
    if possessive == "your":
        return clause
    return clause.replace("your records", f"{possessive} records")


def plan_name(run: str, nine_words: str) -> str:
    """Returns a run's name with its plan's nine words, for the foot of a printed page and beside a signature.

    >>> plan_name("spring", "one two"), plan_name("spring", "")
    ("Run 'spring', nine words: one two", "Run 'spring'")
    """
    run_words = f"Run {printable(run, 63)!r}"
    return f"{run_words}, nine words: {nine_words}" if nine_words else run_words


def first_difference(typed_words: Sequence[str], plan_words: Sequence[str]) -> str:
    """Returns which of the typed words differs first, for a log. It never names the wanted one, which would be copied.

    >>> first_difference(["oak", "elm"], ["oak", "ash"])
    "word 2, 'elm', differs"
    >>> first_difference(["oak"], ["oak", "ash"])
    'word 2 is missing'
    >>> first_difference(["oak"], ["oak"])
    'no word differs'
    """
    for word_number, word in enumerate(typed_words, 1):
        if word_number > len(plan_words) or word.lower() != plan_words[word_number - 1].lower():
            return f"word {word_number}, {printable(word, 40)!r}, differs"
    if len(typed_words) < len(plan_words):
        return f"word {len(typed_words) + 1} is missing"
    return "no word differs"


ANEW = (
    "An attempt at a sum fails, for example, where hospitals fall silent on the way and the rest cannot open it. Your"
    " numbers may then leave for this sum again, blurred anew, at most"
    f" {VOIDED_VECTORS} times. {CONFIRMED}"
)


def most_numbers(count: int) -> str:
    """Returns in words how many numbers a hospital sends for a plan of ``count`` coordinates in all.

    >>> most_numbers(48)
    '48 numbers about your records, up to 192 if attempts fail'
    """
    return f"{counted_numbers(count)} about your records, up to {count * (1 + VOIDED_VECTORS):,} if attempts fail"


def counted_numbers(count: int) -> str:
    """Returns a number of coordinates in words: ``12,345 numbers``, ``1 number``."""
    return f"{count:,} {noun(count, 'number')}"


def others(plan: Plan) -> int:
    """Returns the least number of other hospitals whose numbers are in each opened sum of a plan."""
    return plan.quorum.fewest - 1


def together(count: int) -> str:
    """Returns in words with whom a hospital's numbers are opened, for at least ``count`` other hospitals.

    >>> together(2)
    'opened only together with those of at least 2 other hospitals'
    >>> together(1).partition(",")[2]
    ' which can subtract its own and see yours alone, blurred'
    >>> together(0)
    'opened without those of any other hospital'
    """
    if count < 1:
        return "opened without those of any other hospital"
    if count == 1:
        caveat = ", which can subtract its own and see yours alone, blurred"
    else:
        caveat = ""
    return f"opened only together with those of at least {counted(count, 'other hospital')}{caveat}"


def opened_numbers(count: int, subject: str = "your numbers", *, has_ended: bool = False) -> str:
    """Returns :func:`together` as a clause about a hospital's numbers, of a run that goes on or has ended.

    >>> opened_numbers(0), opened_numbers(0, "Your numbers", has_ended=True)[:26]
    ('your numbers may be opened without those of any other hospital', 'Your numbers could be open')
    >>> opened_numbers(2)
    'your numbers are opened only together with those of at least 2 other hospitals'
    """
    if has_ended:
        verb_alone, verb = "could be", "were"
    else:
        verb_alone, verb = "may be", "are"
    return f"{subject} {verb_alone if count < 1 else verb} {together(count)}"


def by_policy(count: int) -> str:
    """Returns a clause on a hospital's policy: ``count`` other hospitals, at least, must be in each opened sum.

    >>> by_policy(0)
    'by your policy, your numbers may be opened without those of any other hospital'
    """
    return f"by your policy, {opened_numbers(count)}"
