"""The private side: five hospitals, each with its own case mix and its own habits at the triage desk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from examples.clinic.cases import LABELS, Case, Patient, draw_case, draw_label, draw_patient
from examples.clinic.grammar import chance, expand, pick, pick_some, whole

VAGUE = 0.26  # chance of a complaint that fits several streams
STRAY = 0.16  # chance of a finding of another stream
RETURNS = 0.13  # chance that the next patient has been here before
NEGATIVES = (
    *("nil CP", "no SOB", "afebrile at home", "no LOC", "nil vom", "denies HA", "no trauma", "no cough", "no palps"),
    *("bowels OK", "no rash", "PU ok", "no weakness", "nil recent travel", "no calf pain", "no neck pain", "nil D+V"),
)


# Words of a complaint that state its onset already.
_SAYS_WHEN = re.compile(r"\d/(7|52)|onset|since|\dh ago|today|last wk")


@dataclass(frozen=True)
class Hospital:
    """A site: ``mix`` weighs the six streams in the order of LABELS, the rest are habits of writing."""

    name: str
    mix: tuple[float, ...]
    ages: tuple[int, int] = (0, 99)
    who: tuple[str, ...] = ("{age}{S}",)
    opener: tuple[str, ...] = ("c/o",)
    onset: tuple[str, ...] = ("x{n}/7", "since am", "since yest", "{n}h ago", "{n}/7 hx")
    joint: str = ". "
    vitals: str = "BP {bp} HR {hr} SpO2 {spo2}% T {temp}"
    history: str = "Hx {history}"
    closing: tuple[str, ...] = ("", "", "ECG done", "bloods sent", "IVC in", "analgesia given", "to WR")
    swaps: Mapping[str, str] = field(default_factory=dict)
    fahrenheit: bool = False
    capitals: bool = False


HOSPITALS = (
    Hospital(
        "harbour-general",
        (2, 2, 4.5, 2, 2, 3),
        who=("{age}{S}", "{age} y/o {S}", "Pt {age}{S}"),
        opener=("c/o", "p/w", "PC:"),
        closing=("", "", "cat 2", "cat 3", "ECG done", "bloods sent", "IVC in"),
    ),
    Hospital(
        "childrens",
        (0.4, 4, 2, 3, 5, 1.2),
        ages=(0, 16),
        who=("{age}yo {sex}", "{age} yr old {sex} w mum", "{age}yo {sex}, dad present"),
        opener=("b/w", "w", "c/o", "brought in,"),
        vitals="T {temp} HR {hr} RR {rr} sats {spo2}% RA",
        history="PMHx: {history}",
        joint="; ",
        closing=("", "", "EMLA on", "paracetamol given", "sticker chart", "obs 1 hrly"),
    ),
    Hospital(
        "heart-institute",
        (7, 3, 1.2, 0.6, 1.2, 1.6),
        ages=(34, 99),
        who=("{S}{age}", "{age}{S}"),
        opener=("adm w", "c/o", "ref GP:"),
        vitals="HR {hr}, BP {bp}, sat {spo2} %, RR {rr}",
        history="bg: {history}",
        joint=" // ",
        closing=("", "12-lead done", "monitored bed", "bloods sent", "cardiology aware", "trop 0h"),
    ),
    Hospital(
        "ranges-district",
        (1.5, 1.5, 2, 6, 2, 1.2),
        who=("{age} yo {sex}", "{sex} {age}"),
        opener=("presents w", "came in w", "walked in,"),
        onset=("today", "since last night", "this am", "{n} days", "abt {n} hrs"),
        vitals="obs: bp {bp} p {hr} t {temp} sats {spo2}",
        history="h/o {history}",
        joint=", ",
        fahrenheit=True,
        closing=("", "", "dr to see", "x-ray open till 8", "family driving", "tfr if worse"),
    ),
    Hospital(
        "stella-maris",
        (2, 2.4, 2.4, 2, 2.2, 4),
        ages=(48, 99),
        who=("{age}{S}", "{age} YR {SEX}", "{SEX} {age}"),
        opener=("C/O", "BIBA", "FROM NH,"),
        vitals="BP {bp} P {hr} RR {rr} T {temp} SATS {spo2}% GCS {gcs}",
        history="HX {history}",
        capitals=True,
        closing=("", "ECG", "BLOODS", "NOK AWARE", "CAT 2", "CAT 3", "TROLLEY 4"),
    ),
)


def hospital_notes(hospital: Hospital, rng: Random, count: int) -> list[dict[str, str]]:
    """Returns ``count`` notes with text, label and patient; some patients come back, at most three times."""
    mix = dict(zip(LABELS, hospital.mix, strict=True))
    notes: list[dict[str, str]] = []
    visits: dict[Patient, int] = {}
    cases: dict[Patient, Case] = {}
    while len(notes) < count:
        former_patients = [patient for patient, visit_count in visits.items() if visit_count < 4]
        if former_patients and chance(rng, RETURNS):
            patient = pick(rng, former_patients)
            label = cases[patient].label if chance(rng, 0.7) else draw_label(rng, mix)
        else:
            patient = None
            label = draw_label(rng, mix)
        is_child = None if hospital.ages[1] > 20 and hospital.ages[0] < 17 else hospital.ages[1] <= 20
        if patient is not None:
            is_child = patient.age < 16
        case = draw_case(rng, label, vague=VAGUE, stray=STRAY, findings=(1, 3), child=is_child)
        if patient is None:
            patient = draw_patient(rng, f"{hospital.name}-{len(visits) + 1:04d}", case, hospital.ages)
        is_returning = patient in visits
        visits[patient] = visits.get(patient, 0) + 1
        cases.setdefault(patient, case)
        notes.append(
            {"text": write(hospital, patient, case, is_returning, rng), "label": label, "patient": patient.name}
        )
    return notes


def write(hospital: Hospital, patient: Patient, case: Case, is_returning: bool, rng: Random) -> str:
    """Returns one triage note, as the desk of this hospital would type it."""
    template_values = {
        **patient.words,
        **_vitals(hospital, case, rng),
        "age": f"{patient.age}" if patient.age else f"{whole(rng, 3, 11)}/12",
        "S": "F" if patient.woman else "M",
        "sex": "female" if patient.woman else "male",
        "SEX": "LADY" if patient.woman else "GENT",
        "side": pick(rng, ("L", "R")),
        "n": str(whole(rng, 2, 5)),
        "history": ", ".join(patient.history) or pick(rng, ("nil", "nil PMH", "nil sig")),
    }
    template_values["onset"] = expand(pick(rng, hospital.onset), rng, template_values)
    complaint = expand(case.complaint["terse"], rng, template_values)
    opening = f"{expand(pick(rng, hospital.who), rng, template_values)} {pick(rng, hospital.opener)} {complaint}"
    if not _SAYS_WHEN.search(complaint) and template_values["onset"] not in complaint and chance(rng, 0.7):
        opening += f" {template_values['onset']}"
    middle = [expand(sign, rng, template_values) for sign in case.findings["terse"]]
    middle += pick_some(rng, NEGATIVES, whole(rng, 0, 2))
    if chance(rng, 0.6):
        middle.append(expand(hospital.history, rng, template_values))
    if is_returning:
        middle.insert(0, pick(rng, ("re-attends", "back again", "seen here last wk", "2nd visit")))
    note_parts = [opening, *middle]
    if chance(rng, 0.8):
        note_parts.append(expand(hospital.vitals, rng, template_values))
    note_parts.append(pick(rng, hospital.closing))
    note = hospital.joint.join(part for part in note_parts if part)
    return note.upper() if hospital.capitals else note


def _vitals(hospital: Hospital, case: Case, rng: Random) -> dict[str, str]:
    systolic = round(case.vitals["sys"])
    temperature = case.vitals["temp"]
    return {
        "bp": f"{systolic}/{round(systolic * (0.52 + 0.14 * rng.random()))}",
        "hr": str(round(case.vitals["hr"])),
        "rr": str(round(case.vitals["rr"])),
        "spo2": str(round(case.vitals["spo2"])),
        "temp": f"{temperature * 1.8 + 32:.0f}F" if hospital.fahrenheit else f"{temperature:.1f}",
        "gcs": pick(rng, ("15", "15", "15", "14")),
    }
