"""The first screen of card and report: five answers to whoever receives a corpus, made from the run's own values."""

import math
from dataclasses import dataclass

from undersong_common.printable import counted
from undersong_common.privacy import impact
from undersong_protocol.agreement import words
from undersong_server.report.data import UNIT_WORDS, UNITS, Accuracy, ReportData, number

NOT_MEASURED = "not measured"
SHOWN_DISTANCES = ("Frechet distance", "precision", "recall", "MAUVE")


class OurWords(str):
    """A sentence of the program alone, whose backticks enclose code. A page escapes every other sentence whole."""


@dataclass(frozen=True)
class Answer:
    """A receiver's question with its answer.

    Attributes:
        anchor: its place in a page; title: the question in a few words.
        sentences: the answer, a paragraph each.
        command: a line to type; "" if there is none.
    """

    anchor: str
    title: str
    sentences: tuple[str, ...]
    command: str = ""


def answers(data: ReportData) -> tuple[Answer, ...]:
    """Returns what the corpus is, whether it may be used, what is promised, how good it is, and how to check it."""
    command = ""
    if data.simulated or data.publisher[1]:
        option = f" --fingerprint {data.publisher[1]}" if data.publisher[1] else ""
        command = f"undersong verify .{option}"
    return (
        Answer("what", "What it is", _what(data)),
        Answer("may-i", "May I use it", _permission(data)),
        Answer("promise", "What is promised", _promise(data)),
        Answer("good", "How good it is", _worth(data)),
        Answer("check", "How to check it", _check(data), command),
    )


def _what(data: ReportData) -> tuple[str, ...]:
    named = [name for name in data.label_names if name]
    texts = counted(len(data.samples), "synthetic text") + (f" with {counted(len(named), 'label')}" if named else "")
    kind = f", each {data.description.rstrip('.')}" if data.description else ""
    sentences = [
        f"{texts}{kind}. Language models wrote them ({', '.join(data.generators)}), with the method {data.method}."
    ]
    if not data.privacy.epsilon_after:
        return (*sentences, "No private record was asked anything: the texts depend on public inputs only.")
    took_part = data.participation
    noisy = "noisy sums over all of them" if data.privacy.is_private else "sums over all of them"
    whose = took_part.named if took_part else f"{counted(data.privacy.quorum.parties, 'hospital')}"
    sentences.append(
        f"Private records steered what was written, by {noisy} only; no model was shown a private text. They lie at"
        f" {whose}."
    )
    if data.simulated:
        sentences.append("This is a simulation: one program played every hospital, on one machine.")
    if data.questions:
        sentences.append(f"The hospitals were asked {words.asked(data.questions, 'their')}.")
    return (*sentences, *(took_part.sentences if took_part else ()))


def _permission(data: ReportData) -> tuple[str, ...]:
    said = data.publication
    makers = said.makers or data.publisher[0]
    return (
        f"Licence: {said.licence}."
        if said.licence
        else "Its makers have stated no licence: ask them before you use or pass on the texts.",
        f"Made by {makers}." if makers else "Its makers have not named themselves.",
        f"Contact: {said.contact}." if said.contact else "Its makers have stated no contact.",
        f"Intended use: {said.intended_use.rstrip('.')}."
        if said.intended_use
        else "Its makers have stated no intended use.",
        f"Language: {said.language}." if said.language else "Its makers have not stated the language.",
        f"Limits: the texts are invented. They may be wrong, and must not be read as facts about anybody or used for"
        f" care. Nobody has read every text or checked every label.{f' {said.limits}' if said.limits else ''}",
    )


def _promise(data: ReportData) -> tuple[str, ...]:
    privacy = data.privacy
    if not privacy.is_private or not privacy.epsilon_after:
        return (privacy.headline,)
    epsilon, unit = privacy.promise.epsilon, UNIT_WORDS[privacy.promise.unit]
    alone = privacy.epsilon_if_all_others_collude
    surest = impact.surest(epsilon)
    return (
        privacy.headline,
        f"In words: somebody who reads all of it and for whom it was even chances whether a certain {unit} is among the"
        f" records may afterwards be {surest} sure, at the very worst{_guess(privacy.best_guess, unit)}."
        f" It protects {UNITS[privacy.promise.unit]}.",
        *(
            [
                OurWords(
                    f"If the operator and all other hospitals join against one hospital, its figure is at most epsilon"
                    f" {number(alone)}, {words.AS_PLANNED}{_guess(privacy.best_guess_if_all_others_collude, unit)};"
                    f" `undersong verify` states it {words.AS_IT_RAN}."
                )
            ]
            if alone is not None and math.isfinite(alone)
            else []
        ),
        "What must hold for this to be true stands below, under Privacy.",
    )


def _guess(right: float | None, unit: str) -> str:
    return "" if right is None else f"; on average, {impact.guess(right, f'one {unit}')}"


def _worth(data: ReportData) -> tuple[str, ...]:
    """The private score, the panel on a test file, the texts that are set aside, and the distance to the test file."""
    test = data.test_set or "a public test file"
    ours = data.own_accuracy
    sentences = [
        f"On the hospitals' own records: {data.score.sentence}. The interval has the noise of the sum and the chance"
        " of which records there are."
        if data.score
        else f"On the hospitals' own records: {NOT_MEASURED}."
    ]
    if ours is None:
        why = "" if data.test_set else ": the task names none"
        sentences.append(f"On a test file of real texts: {NOT_MEASURED}{why}.")
    else:
        models = f" ({ours.model.partition(': ')[2]})" if ": " in ours.model else ""
        sentences.append(
            f"On {test}: small models trained on these texts label {_share(ours)} of its texts rightly{models}."
            f"{' The interval is of the choice of test texts.' if ours.by_texts else ''}"
        )
        others = [f"{each.data} {_share(each)}" for each in data.published_accuracy if each.reference]
        beside = "; ".join(others) or NOT_MEASURED
        sentences.append(f"Beside it, the same models on texts that no private record has steered: {beside}.")
    labels = sum(bool(name) for name in data.label_names)
    if labels > 1 and (data.score or ours):
        sentences.append(f"Guessing among the {labels} labels would be right in {round(100 / labels)} % of cases.")
    sentences += data.remarks
    if not data.set_aside:
        sentences.append(
            "No text is set aside." if data.support_measured else f"Texts off the subject: {NOT_MEASURED}."
        )
    measures = {each.name: each for each in data.measures}
    distances = "; ".join(measures[name].in_words for name in SHOWN_DISTANCES if name in measures)
    sentences.append(f"Distance to {test}: {distances or NOT_MEASURED}.")
    return tuple(sentences)


def _share(figure: Accuracy) -> str:
    """Writes a panel score with the interval that its test texts give it."""
    share, interval = f"{100 * figure.accuracy:.1f} %", figure.by_texts
    return f"{share} ({100 * interval.low:.1f} to {100 * interval.high:.1f})" if interval else share


def _check(data: ReportData) -> tuple[str, ...]:
    privately = "recomputes every figure of privacy offline and checks every file's hash and signature"
    if data.simulated:
        who = "A simulation has no coordinator: the program that ran it has signed it with all its hospitals' keys."
    elif data.publisher[1]:
        who = (
            f"The fingerprint is that of the coordinator {data.publisher[0]}. Compare it first with the one that a"
            " hospital that took part has, or that the makers tell you over their contact: whoever changed these files"
            " would have changed it here, too."
        )
    else:
        return ("Nobody has signed these files, so nothing shows who made them.",)
    return (
        OurWords(
            f"In the folder of the files, this command {privately}; `pip install undersong` installs the program. With"
            " `--test FILE` it also trains small models on the corpus and states their score on your own test file."
        ),
        who,
        'Without installing anything: open report.html and drop the files on "Check these files".',
    )
