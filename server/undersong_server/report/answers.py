"""The first screen of card and report: six answers to whoever receives a corpus, made from the run's own values."""

import math
from dataclasses import dataclass

from undersong_common.printable import counted, joined, printable
from undersong_common.privacy import impact
from undersong_common.version import VERSION
from undersong_protocol.agreement import words
from undersong_server.methods.parts.support import COUNTS, WORD_FILTER
from undersong_server.report.before_training import (
    BEFORE,
    describe_nearness,
    describe_test_file,
    describe_training,
)
from undersong_server.report.card_facts import TEST_FILE_HASH
from undersong_server.report.check_words import CHECK_WORDS
from undersong_server.report.conclusion import conclude
from undersong_server.report.data import (
    UNIT_WORDS,
    UNITS,
    ZERO_SHOT,
    ReportData,
    number,
)
from undersong_server.report.guesses import HEADER
from undersong_server.report.sum_answers import SUM_ANSWERS, WORTH
from undersong_server.report.terms import (
    CORPUS_ALONE,
    LICENCES,
    NGRAM,
    USE_LIMITS,
    cite_licence,
    is_example,
    mark_example,
)
from undersong_server.report.verdict import (
    NOT_MEASURED,
    TEST_FILE,
    UNFIT,
    alarms_of,
    compare_with_frequent,
    headline,
    is_alone,
    is_unfit,
    list_baselines,
    meaning,
    scored_hospitals,
    verdict,
    without_records,
)
from undersong_server.report.writers import WRITERS

SHOWN_HOSPITALS = 3  # names of hospitals that a sentence gives as examples
MOST_SUMS = 20  # sums that one sentence names
FURTHER_QUESTIONS = f'under "{SUM_ANSWERS}"'
UNREAD_SCORE = ", since no sum counted the records of just those hospitals that are in the sum which measures it"
TOLD_FINGERPRINT = "FINGERPRINT-YOU-WERE-TOLD"  # placeholder in the command, which a receiver replaces
SIMULATED = "This is a simulation: one program played every hospital, on one machine."
ASK_PARTY = (  # stands after the sentence on what the command does
    " `--party NAME=FINGERPRINT`, once for each hospital that tells you its own fingerprint, checks that hospital's key"
    " without the coordinator's word."
)
OTHER_ATTEMPTS = (  # stands after the number of times that a sum counts against colluders
    "The spare_attempts of manifest.json are others: repeats for which the epsilon of the run itself pays."
)
EXIT_CODES = (
    "Its exit code is 2 without manifest.json; 3 if something was changed; else 8 if nothing shows who made the files,"
    " or no file of the corpus is here; else 0, even if files are missing (INCOMPLETE names them)."
)
COPIED_FINGERPRINT = (  # stands after the exit codes
    " `--fingerprint` compares the signing key with a fingerprint from elsewhere; with one that is copied from these"
    " files the exit code is 0, too, which proves nothing."
)
CHANGED_REPORT = "Whoever changed the files may have changed report.html, too."
IN_BROWSER = "Without installing anything:"  # begins the paragraph on what report.html checks
KINDS = {  # what a generator of each kind is
    NGRAM: "an n-gram model of a public corpus",
    "openai": "a language model",
    "transformers": "a language model",
    "replay": f"a file of {words.WRITTEN_BEFORE}",
    "function": "a program",
}
WORD_SALAD = (
    "An n-gram model writes word salad: phrases of its subject in a likely order, which seldom make a whole sentence"
    " and may mix several cases."
)


NOBODY_REAL = (
    "If every record is invented, no real person is protected, and the figures show what a run with real records would"
    " promise."
)


class OurWords(str):
    """A sentence in Markdown without words of other people: a page shows its code and links, and escapes all others."""


MAKERS_FIGURES = OurWords(
    "These figures are the makers' word; `undersong verify . --test FILE` measures the score on texts of your own."
)


@dataclass(frozen=True)
class Answer:
    """A receiver's question with its answer.

    Attributes:
        anchor: its place in a page; title: the question in a few words.
        sentences: the answer, a paragraph each.
        command: a line to type; "" if there is none.
        details: what a specialist reads beside the answer, which a page folds.
        table: figures of the answer, a row of headings first; () for none.
    """

    anchor: str
    title: str
    sentences: tuple[str, ...]
    command: str = ""
    details: tuple[str, ...] = ()
    table: tuple[tuple[str, str], ...] = ()


def answers(data: ReportData) -> tuple[Answer, ...]:
    """Returns what the corpus is, its terms, its promise, how good it is, what to read first, and how to check it."""
    command, warning = "", tuple(filter(None, [data.privacy.warning]))
    if data.simulated or data.publisher[1]:
        # A receiver gets the true fingerprint from a hospital: one from this folder would only be compared with itself.
        fingerprint_option = f" --fingerprint {TOLD_FINGERPRINT}" if _can_compare(data) else ""
        command = f"undersong verify .{fingerprint_option}"
    return (
        Answer("what", "What it is", (*warning, *_describe_corpus(data))),
        Answer("may-i", "May I use it", (*warning, *_state_permission(data))),
        Answer(
            "promise",
            "What is promised",
            _state_promise(data),
            details=_detail_promise(data),
            table=_list_guesses(data),
        ),
        Answer("good", WORTH, _state_worth(data), details=_detail_worth(data)),
        Answer("train", BEFORE, describe_training(data)),
        Answer("check", "How to check it", _explain_check(data), command),
    )


def _describe_corpus(data: ReportData) -> tuple[str, ...]:
    labels = f" with {counted(len(data.named_labels), 'label')}" if data.named_labels else ""
    texts_words = f"{counted(len(data.samples), data.noun)}{labels}"
    # The opening says what was ordered only: a figure further below says how many texts are what was ordered.
    description_clause = f", ordered as: {data.description.rstrip('.')}" if data.description else ""
    simulation_words = [SIMULATED] if data.simulated else []
    sentences = [f"{texts_words}{description_clause}.", *simulation_words, *_name_authors(data)]
    if not data.privacy.epsilon_after:
        return (*sentences, "No private record was asked anything: the texts depend on public inputs only.")
    participation = data.participation
    sums_words = "noisy sums" if data.privacy.is_private else "sums"
    holders = participation.named if participation else f"{counted(data.privacy.quorum.parties, 'hospital')}"
    steered_words = joined(list(data.steered)) or "the method's choices"
    sentences.append(
        f"Private records steered {steered_words}, by {sums_words} only; no generator was shown a private text. They"
        f" lie at {holders}. {_describe_records(data)}"
    )
    if data.questions:
        # Where one question more is left, its own words are as short as a count of further questions.
        most_questions = words.MOST_QUESTIONS + (len(data.questions) == words.MOST_QUESTIONS + 1)
        sentences.append(
            f"The hospitals were asked {words.asked(data.questions, 'their', FURTHER_QUESTIONS, most_questions)}."
        )
    return (*sentences, *(participation.sentences if participation else ()), *_number_questions(data), *data.unopened)


def _describe_records(data: ReportData) -> str:
    """Says whose the records are, as far as the makers have stated it."""
    if data.publication.records:
        return f"The records, as the makers state them: {data.publication.records.rstrip('.')}."
    if data.publication.invented_records:
        return "As the makers state, they are invented."
    return "Take them for records of real patients: the makers have stated nothing else."


def _number_questions(data: ReportData) -> list[str]:
    """Returns the sentences that number the questions by sum if a hospital is missing from a sum; no reason is told."""
    participation = data.participation
    if participation is None or participation.is_whole or not data.sum_questions:
        return []
    place_by_question = {question: place for place, question in enumerate(data.questions, 1)}
    sum_words = [f"'{printable(name, 60)}' {place_by_question[question]}" for name, question in data.sum_questions]
    return [
        f"The sums in order, with the place of their question in the order above: {joined(sum_words[:MOST_SUMS])}"
        f"{' and so on' if len(sum_words) > MOST_SUMS else ''}. Why a hospital left, these files do not say."
    ]


def _name_authors(data: ReportData) -> list[str]:
    """Names who wrote the published texts, how such texts read, and whose texts are not published."""
    kind_by_generator, authors = {generator_use.name: generator_use.kind for generator_use in data.usage}, data.authors
    described_generators = {
        name: f"{name} ({KINDS[kind_by_generator[name]]})" if kind_by_generator.get(name) in KINDS else name
        for name in data.generators
    }
    copying_generators = {use.name for use in data.author_uses if use.is_copied}
    described_by_verb = {
        "written by": [described_generators[name] for name in authors if name not in copying_generators],
        "copied from": [described_generators[name] for name in authors if name in copying_generators],
    }
    origin_words = joined(
        [
            f"{verb} {words.join_writers(generator_words)}"
            for verb, generator_words in described_by_verb.items()
            if generator_words
        ]
    )
    sentences = [f"{origin_words[0].upper()}{origin_words[1:]}, with the method {data.method}."]
    if NGRAM in map(kind_by_generator.get, authors):
        sentences.append(WORD_SALAD)
    other_generators = [name for name in data.generators if name not in authors]
    if other_generators:
        place_words = f'"{WORTH}" and "{WRITERS}" say' if data.set_aside else f'"{WRITERS}" says'
        why_words = f"; {place_words} why" if data.writers else ""
        other_words = words.join_writers([described_generators[name] for name in other_generators])
        sentences.append(f"{other_words} gave texts, too; none of these is in the corpus{why_words}.")
    return sentences


THE_MAKERS = 'This page calls them "the makers".'
MAKERS_WORDS = "As the makers state:"
ONLY_LICENCE_BINDS = "The licence alone binds you; the rest of this paragraph is the makers' advice."
LICENCE_DECIDES = (
    "The licence binds you; the rest of this paragraph binds you where the licence's own words state it, and is the"
    " makers' advice elsewhere."
)


def _quote_makers(data: ReportData) -> str:
    """The makers' words on use, limits, trained models and purpose, and if they bind; "" if there are none."""
    publication = data.publication
    text_by_title = {
        "Intended use": publication.intended_use,
        "Limits": publication.limits,
        "Models trained on the texts": publication.trained_models,
        f"Purpose, {'as the plan states it' if data.simulated else 'as the hospitals approved it'}": data.purpose,
    }
    quoted_texts = [f"{title}: {text.rstrip('.')}." for title, text in text_by_title.items() if text]
    opening = MAKERS_WORDS
    if publication.licence:
        opening = ONLY_LICENCE_BINDS if publication.licence in LICENCES else LICENCE_DECIDES
    return " ".join([opening, *quoted_texts]) if quoted_texts else ""


def _doubt_models(data: ReportData) -> str:
    """Says that the makers state nothing of models trained on the texts; "" if they do."""
    if data.publication.trained_models:
        return ""
    return (
        "Licence and limits are of the texts. What of the limits holds for a model that is trained on them, the makers"
        f" have not stated{data.terms.ask(' before you use such a model')}."
    )


def _name_makers(data: ReportData, maker_names: str) -> str:
    """Says who ran it, in whose name and where it is published, and how they are reached."""
    publication = data.publication
    signed_words = "" if data.simulated else ", by the plan that every hospital has signed"
    operator, operator_contact = data.operator
    operator_words = f"Run by {words.run_by(operator, mark_example(operator_contact))}{signed_words}."
    contact = mark_example(publication.contact)
    makers_words = f"Published in the name of {words.run_by(maker_names, contact)}. {THE_MAKERS}"
    if not maker_names:
        makers_words = "Its makers have not named themselves."
    if not publication.contact:
        makers_words += " They have stated no contact."
    elif not maker_names:
        makers_words += f" Contact: {contact}."
    publication_place = mark_example(publication.where.rstrip("."))
    where_words = f"Where it is published: {publication_place}." if publication_place else ""
    return " ".join(filter(None, (operator_words if operator else "", makers_words, where_words)))


def _state_permission(data: ReportData) -> tuple[str, ...]:
    publication = data.publication
    maker_names = publication.makers or data.publisher[0]
    unfit_words = f"{UNFIT} " if is_unfit(data) else ""
    may_credit = bool(publication.licence and maker_names)
    return (
        data.terms.allow(),
        *([CORPUS_ALONE] if data.set_aside else []),
        USE_LIMITS,
        *data.terms.quote_sources(),
        *filter(None, [data.terms.name_sources()]),
        _name_makers(data, maker_names),
        *(
            [f'Credit to give: "{data.task} ({data.run}), by {maker_names}, {cite_licence(publication.licence)}".']
            if may_credit
            else []
        ),
        *([] if publication.intended_use else ["Its makers have stated no intended use."]),
        *filter(None, [_quote_makers(data)]),
        f"Language: {publication.language}." if publication.language else "Its makers have not stated the language.",
        f"{unfit_words}{data.origin} They may be wrong, and are no facts about anybody and no ground for care."
        " Nobody has read every text or checked every label.",
        *filter(None, [_doubt_models(data)]),
    )


def _state_promise(data: ReportData) -> tuple[str, ...]:
    privacy_statement = data.privacy
    if not privacy_statement.is_private or not privacy_statement.epsilon_after:
        return (privacy_statement.headline,)
    epsilon, unit_words = privacy_statement.promise.epsilon, UNIT_WORDS[privacy_statement.promise.unit]
    delta = privacy_statement.promise.delta
    leading_words, *further_words = [impact.worst_guess(epsilon, delta)]
    if privacy_statement.best_guess is not None:
        further_words = [privacy_statement.guesses.average_words]
        leading_words = impact.guess(privacy_statement.best_guess, f"one {unit_words}")
    return (
        f"Suppose that somebody thinks it as likely as not that a certain {unit_words} is among the records, and then"
        f" reads all that is published. Then {leading_words}. The promise is"
        f" for {UNITS[privacy_statement.promise.unit]}.",
        *further_words,
        *([impact.SEVERAL_HOSPITALS] if privacy_statement.promise.unit == "user" else []),
        *([NOBODY_REAL] if data.publication.invented_records else []),
        *([data.earlier] if data.earlier else []),
        OurWords("What must hold for this to be true stands under [Privacy](#privacy)."),
    )


def _list_guesses(data: ReportData) -> tuple[tuple[str, str], ...]:
    """Returns the table of whose best guess is right how often; () where nothing was promised or asked."""
    privacy_statement = data.privacy
    if not privacy_statement.is_private or not privacy_statement.epsilon_after:
        return ()
    rows = privacy_statement.guesses.rows
    return (HEADER, *rows) if rows else ()


def _detail_promise(data: ReportData) -> tuple[str, ...]:
    """Sentences on epsilon, delta and the worst case, and on the epsilon if all others join against one hospital."""
    privacy_statement = data.privacy
    if not privacy_statement.is_private or not privacy_statement.epsilon_after:
        return ()
    epsilon_alone = privacy_statement.epsilon_if_all_others_collude
    epsilon_ran = privacy_statement.epsilon_against_all_as_it_ran
    ran_words = f" `undersong verify` states it {words.AS_IT_RAN}."
    if epsilon_ran is not None:
        ran_words = f" {words.AS_IT_RAN.capitalize()} it is {number(epsilon_ran)}, by `undersong verify`."
    epsilon, delta = privacy_statement.promise.epsilon, privacy_statement.promise.delta
    delta_words = f", its delta {impact.chance(delta)}" if delta else ""
    epsilon_words = f"The epsilon of this run is {number(epsilon)}{delta_words}. {impact.yardstick()}"
    sentences = [privacy_statement.headline, epsilon_words, _odds_words(epsilon, delta)]
    if epsilon_alone is not None and math.isfinite(epsilon_alone):
        sentences.append(
            OurWords(
                f"If the operator and all other hospitals join against one hospital, its epsilon is at most"
                f" {number(epsilon_alone)} {words.AS_PLANNED}.{ran_words} {words.PLANNED}"
                f" {OTHER_ATTEMPTS}"
            )
        )
    return tuple(filter(None, sentences))


def _odds_words(epsilon: float, delta: float) -> str:
    """Says by which rule the worst case follows from epsilon and delta (docs/privacy.md)."""
    if not delta:
        return ""
    odds_factor = number(impact.odds_factor(epsilon, delta))
    return (
        f"By epsilon and delta, the odds shift by at most 2 e^epsilon = {odds_factor}, or by more with a chance of at"
        " most 2 delta."
    )


def _state_worth(data: ReportData) -> tuple[str, ...]:
    """Returns the answer on quality: the conclusion, its figures, what was not measured, and the texts set aside."""
    opening = [conclude(data), headline(data), describe_test_file(data), *alarms_of(data), without_records(data)]
    opening.append(verdict(data))
    sentences = list(dict.fromkeys(filter(None, opening)))
    if data.own_accuracy is None:
        reason = "" if data.test_set else ": the task names none"
        sentences.append(f"On a test file of real texts: {NOT_MEASURED}{reason}.")
    elif data.score:
        sentences.append(f"{data.score.sentence(is_private=data.privacy.is_private)}{scored_hospitals(data)}.")
    sentences += filter(None, [compare_with_frequent(data)])
    if data.score is None:
        unread_words = UNREAD_SCORE if data.has_unread_score else ""
        sentences.append(f"On the hospitals' own records: {NOT_MEASURED}{unread_words}.")
    sentences += [f"{_split_remark(remark)[0].rstrip('.')}." for remark in data.remarks]
    if not data.support_measured and not data.set_aside:
        sentences.append(f"Whether the texts are of the task's kind: {NOT_MEASURED}.")
    if not describe_nearness(data):
        sentences.append(f"Distance to {data.test_set or TEST_FILE}: {NOT_MEASURED}.")
    if data.own_accuracy is not None or data.score is not None:
        sentences.append(MAKERS_FIGURES)
    return tuple(sentences)


def _split_remark(remark: str) -> tuple[str, str]:
    """Returns what a remark says first, and the counts behind it with how far the word filter is to be trusted."""
    part_starts = [remark.find(start) for start in (COUNTS, WORD_FILTER) if start in remark]
    split_index = min(part_starts, default=len(remark))
    return remark[:split_index].strip(), remark[split_index:]


def _detail_worth(data: ReportData) -> tuple[str, ...]:
    """Sentences on how the figures were measured, and on what became of the unpublished texts."""
    sentences = [*filter(None, [meaning(data), _explain_baselines(data)])]
    if data.score is not None:
        if data.score.zero_shot is not None:
            sentences.append(f"{data.score.sentence(is_private=data.privacy.is_private)}{scored_hospitals(data)}.")
        sentences.append(
            "Of 100 intervals like these, 95 hold the true figure. That of the records counts the noise of the sum and"
            " the chance of which records there are."
        )
    sentences += _detail_panel(data)
    if data.test_hash:
        sentences.append(TEST_FILE_HASH.format(data.test_hash))
    sentences += filter(None, [_split_remark(remark)[1] for remark in data.remarks])
    if data.aside_starts:
        start_words = "; ".join(f'"{start}" ({generator})' for generator, start in data.aside_starts)
        sentences.append(f"Set aside were texts such as: {start_words}.")
    sentences += filter(None, [data.unpublished or data.nothing_aside])
    return tuple(sentences)


def _detail_panel(data: ReportData) -> list[str]:
    """Says that the panel score's interval is over test texts, and why rows are zero-shot though records steered."""
    own_accuracy = data.own_accuracy
    if own_accuracy is None:
        return []
    interval_words = "The interval (95 %) of the score on the test file is of the choice of test texts."
    kind_words = (
        "Rows of the corpus bear zero_shot as prompt_kind because their prompts showed no other text; what the records"
        " steered is who wrote them and which of them stay."
    )
    has_zero_shot = any(figure.data == ZERO_SHOT for figure in list_baselines(data))
    has_zero_shot = has_zero_shot and any(sample.kind == "zero_shot" for sample in data.samples)
    return [*([interval_words] if own_accuracy.by_texts else []), *([kind_words] if has_zero_shot else [])]


def _explain_baselines(data: ReportData) -> str:
    """Says what the texts of each comparison are."""
    baselines, sentences = list_baselines(data), []
    if any(map(is_alone, baselines)):
        sentences.append(
            f"Texts of {joined(list(data.authors))} alone are ordered anew from what wrote this corpus. The records"
            " chose it, but somebody who reads a few texts might have chosen it, too."
        )
    if any(figure.data == ZERO_SHOT for figure in baselines) and len(data.generators) > 1:
        aside_words = ", also from those whose texts the records set aside" if data.set_aside else ""
        sentences.append(f"The zero-shot texts are from {joined(list(data.generators))} in equal parts{aside_words}.")
    return " ".join(sentences)


def _teller(data: ReportData) -> tuple[str, str]:
    """The people whom a receiver can ask, "operator" or else "makers", and their contact; "" for an example."""
    role, contact = ("operator", data.operator[1]) if data.operator[0] else ("makers", data.publication.contact)
    return role, "" if is_example(contact) else contact


def _explain_fingerprint(data: ReportData) -> str:
    """Says which two fingerprints a receiver compares, and from whom the true one is to be had."""
    participation, (teller, contact) = data.participation, _teller(data)
    if not data.terms.whom_to_ask:
        return f"These files name {data.publisher[1]}. {CHECK_WORDS['nobody confirms']} {CHECK_WORDS['copied']}"
    hospitals = f", such as {', '.join(participation.names[:SHOWN_HOSPITALS])}" if participation else ""
    return (
        f"Have the true fingerprint read to you by a hospital that took part{hospitals}, or by the {teller}"
        f"{f' ({contact})' if contact else ''}, over a number or an address that you look up elsewhere than in this"
        f" folder. Compare it with {data.publisher[1]}, all eight groups."
    )


def _can_compare(data: ReportData) -> bool:
    """True if a coordinator has signed the corpus and somebody can be asked for its fingerprint."""
    return bool(data.publisher[1] and data.terms.whom_to_ask)


def _explain_check(data: ReportData) -> tuple[str, ...]:
    else_words = f"; else ask the {_teller(data)[0]} for it" if data.terms.whom_to_ask else ""
    placeholder_words = f" with the fingerprint in place of {TOLD_FINGERPRINT}" if _can_compare(data) else ""
    recompute_words = (
        f"recomputes epsilon and the best guess offline, {words.AS_PLANNED} and {words.AS_IT_RAN}, and checks"
        " signatures and the hash of each file that is here"
    )
    if data.simulated:
        signer_words = (
            "A simulation has no coordinator: the program that ran it has signed it with all its hospitals' keys."
        )
    elif data.publisher[1]:
        signer_words = (
            f"The fingerprint is that of the coordinator, the program of the run's operator, which calls itself"
            f" {data.publisher[0]!r}: the start of a SHA-256 of its certificate and signing key."
            f" {_explain_fingerprint(data)}"
        )
    else:
        return ("Nobody has signed these files, so nothing shows who made them.",)
    return (
        OurWords(
            f"The command below, typed in the folder of the files{placeholder_words}, {recompute_words}."
            f" `pip install undersong=={VERSION}` installs the program where your package index has it{else_words}."
            " With `--test FILE` it also trains small models on the corpus and states their score on your own test"
            f" file.{ASK_PARTY if _can_compare(data) else ''} {EXIT_CODES}"
            f"{COPIED_FINGERPRINT if data.publisher[1] else ''}"
        ),
        signer_words,
        "No hospital has signed anything: what these files say is the word of whoever ran the simulation."
        if data.simulated
        else "The coordinator's fingerprint vouches for these files and for the hospitals' keys. The hospitals have"
        " signed the plan (operator, questions, noise, purpose, licence) and their receipts; intended use, limits,"
        " sources and the figures of this page stand under the coordinator's signature alone.",
        _explain_browser(data),
    )


def _explain_browser(data: ReportData) -> str:
    """Says what report.html checks without an installation."""
    opening = f'{IN_BROWSER} open report.html and drop the files on "Check these files". That finds a changed file'
    if not data.publisher[1]:
        return f"{opening}; who made the files, it cannot tell."
    if not _can_compare(data):
        return f"{opening} and, where the browser can, a forged signature. {CHANGED_REPORT}"
    return (
        f"{opening}, compares the key that manifest.json names with the fingerprint that you were told and, where the"
        f" browser can, checks the coordinator's signature. {CHANGED_REPORT}"
    )
