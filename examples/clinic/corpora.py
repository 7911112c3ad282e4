"""The public side: three corpora for three embedded generators of visibly different quality.

``handbook`` is about the same work but written for a public readership: whole sentences, every stream equally often,
few ambiguous cases. ``offdomain`` has nothing to do with it. ``mixed`` is a bulletin board: many of its posts are
off-topic, and the others were filed by people who guessed the stream of a complaint.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from random import Random
from typing import Any

from examples.clinic.cases import LABELS, Case, Patient, draw_case, draw_patient
from examples.clinic.grammar import chance, expand, pick, pick_some, whole

# Wrong guesses of laymen: the stream under which a poster files a complaint, by its true stream.
GUESSES = {
    "cardiac": "respiratory",
    "respiratory": "infection",
    "abdominal": "cardiac",
    "injury": "neurological",
    "infection": "abdominal",
    "neurological": "injury",
}
WRONG_GUESS = 0.75  # chance that a post is filed under the wrong stream
OFF_TOPIC = 0.3  # chance of an off-topic post

_NEGATIVES = (
    *("no fever", "no cough", "no chest pain", "no headache", "no vomiting", "no weakness", "no rash"),
    *("normal bowels", "no trouble breathing", "no fall or knock", "no swelling of the legs"),
)
_ONSET = ("since this morning", "for {n} days", "since last night", "for the past {n} hours", "for about a week")


def handbook(rng: Random, count: int) -> list[dict[str, str]]:
    """Returns the good corpus: advice-line records, teaching vignettes and exercise notes, balanced over labels."""
    rows = []
    for number in range(count):
        label = LABELS[number % len(LABELS)]
        case = draw_case(rng, label, vague=0.2, stray=0.12, findings=(1, 3))
        patient = draw_patient(rng, "", case, (0, 99))
        register = pick(rng, (_advice_line, _vignette, _exercise), (4, 3, 4))
        rows.append({"text": register(case, patient, rng), "label": label})
    return rows


def offdomain(rng: Random, count: int) -> list[dict[str, str]]:
    """Returns the worst corpus: hotels, repairs, weather, garages, parcels and restaurants under the streams' names."""
    return [_off_topic(rng, LABELS[number % len(LABELS)]) for number in range(count)]


def mixed(rng: Random, count: int) -> list[dict[str, str]]:
    """Returns the middling corpus: off-topic posts, and complaints of which many stand under the wrong stream."""
    rows = []
    for number in range(count):
        label = LABELS[number % len(LABELS)]
        if chance(rng, OFF_TOPIC):
            rows.append(_off_topic(rng, label))
            continue
        case = draw_case(rng, label, vague=0.4, stray=0.2, findings=(0, 1))
        patient = draw_patient(rng, "", case, (0, 99))
        register = pick(rng, (_post, _advice_line, _exercise), (6, 1, 3))
        filed_label = GUESSES[label] if chance(rng, WRONG_GUESS) else label
        rows.append({"text": register(case, patient, rng), "label": filed_label})
    return rows


def _draw_values(patient: Patient, rng: Random, left: str, right: str) -> dict[str, str]:
    template_values = {
        **patient.words,
        "age": str(max(patient.age, 1)),
        "person": _person(patient),
        "side": pick(rng, (left, right)),
        "n": str(whole(rng, 2, 5)),
    }
    return template_values | {"onset": expand(pick(rng, _ONSET), rng, template_values)}


def _person(patient: Patient) -> str:
    if patient.age < 16:
        return "girl" if patient.woman else "boy"
    return "woman" if patient.woman else "man"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _advice_line(case: Case, patient: Patient, rng: Random) -> str:
    template_values = _draw_values(patient, rng, "left", "right")
    caller = pick(rng, ("Caller reports", "The caller describes", "Call about", "Asked for advice about"))
    sentences = [f"{caller} {expand(case.complaint['plain'], rng, template_values)} {template_values['onset']}."]
    sentences.append(f"{template_values['age']} year old {template_values['person']}.")
    sentences += [_sentence(expand(sign, rng, template_values)) for sign in case.findings["plain"]]
    if chance(rng, 0.5):
        sentences.append(_sentence(" and ".join(pick_some(rng, _NEGATIVES, 2))))
    sentences.append(
        pick(rng, ("", "Told to come in.", "Sent an ambulance.", "Advised to be seen today.", "Will ring back."))
    )
    return " ".join(sentence for sentence in sentences if sentence)


def _vignette(case: Case, patient: Patient, rng: Random) -> str:
    template_values = _draw_values(patient, rng, "left", "right")
    complaint = expand(case.complaint["plain"], rng, template_values)
    opening = f"A {template_values['age']}-year-old {template_values['person']} presents with {complaint}"
    sentences = [f"{opening} {template_values['onset']}."]
    sentences += [_sentence(expand(sign, rng, template_values)) for sign in case.findings["plain"]]
    vitals = case.vitals
    if chance(rng, 0.6):
        sentences.append(
            f"Blood pressure is {round(vitals['sys'])}/{round(vitals['sys'] * 0.6)}, pulse {round(vitals['hr'])}, "
            f"temperature {vitals['temp']:.1f}, oxygen saturation {round(vitals['spo2'])} percent."
        )
    return " ".join(sentences)


def _exercise(case: Case, patient: Patient, rng: Random) -> str:
    template_values = _draw_values(patient, rng, "L", "R")
    complaint = expand(case.complaint["terse"], rng, template_values)
    phrases = [f"{template_values['age']} yr {template_values['person']} c/o {complaint}"]
    phrases.append(template_values["onset"])
    phrases += [expand(sign, rng, template_values) for sign in case.findings[pick(rng, ("terse", "plain"), (2, 1))]]
    phrases += pick_some(rng, _NEGATIVES, whole(rng, 0, 1))
    if patient.history and chance(rng, 0.6):
        phrases.append("hx " + ", ".join(patient.history))
    vitals = case.vitals
    if chance(rng, 0.7):
        phrases.append(f"BP {round(vitals['sys'])}/{round(vitals['sys'] * 0.6)} HR {round(vitals['hr'])}")
        phrases.append(f"SpO2 {round(vitals['spo2'])}% temp {vitals['temp']:.1f}")
    return ". ".join(phrases)


def _post(case: Case, patient: Patient, rng: Random) -> str:
    template_values = _draw_values(patient, rng, "left", "right")
    opening = pick(rng, ("I have", "My neighbour has", "Does anyone else get", "Third time this year:", "Help,"))
    sentences = [f"{opening} {expand(case.complaint['plain'], rng, template_values)} {template_values['onset']}."]
    sentences += [_sentence(expand(sign, rng, template_values)) for sign in case.findings["plain"]]
    sentences.append(
        pick(rng, ("Any ideas?", "Tea did not help.", "Waiting for my turn.", "Thanks in advance.", "Is it bad?"))
    )
    return " ".join(sentences)


def _off_topic(rng: Random, label: str) -> dict[str, str]:
    topic: dict[str, Any] = next(entry for entry in _topics() if entry["label"] == label)
    template_values = {"room": str(whole(rng, 102, 619)), "n": str(whole(rng, 2, 9))}
    who = expand(pick(rng, topic["who"]), rng, template_values)
    what = expand(pick(rng, topic["what"]), rng, template_values)
    phrases = [f"{who}: {what}"]
    phrases += [expand(item, rng, template_values) for item in pick_some(rng, topic["then"], whole(rng, 1, 3))]
    return {"text": " ".join(_sentence(phrase) for phrase in phrases), "label": label}


def _topics() -> list[dict[str, Any]]:
    path = Path(__file__).parent / "offdomain.toml"
    topics: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["topic"]
    return topics
