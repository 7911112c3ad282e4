"""Invented notes of 600 to 1 500 words whose label is decided in the last third; no note is about anybody."""

from collections.abc import Iterator

import numpy as np

LABELS = ("home", "died", "surgery", "rehabilitation", "left early", "intensive care")
COMMON = (
    "The patient came by {way} on {day} and was seen in the {place}.",
    "There was {sign} since {day}, without any {other}.",
    "Blood pressure was {high} over {low}, pulse {low}, temperature normal.",
    "The history includes {illness} and {illness2}, treated by the family doctor.",
    "The {part} was examined and showed {finding}.",
    "Laboratory values of {day} were repeated and were {grade}.",
    "The medication was continued: {drug} in the morning and {drug2} in the evening.",
    "The patient lives with {person} and works in a {work}.",
    "An X-ray of the {part} was taken on {day} and read as {finding}.",
    "Nursing noted {sign} during the night, and rest helped.",
)
FILLS = {
    "way": ("ambulance", "taxi", "train", "car"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "the weekend"),
    "place": ("emergency room", "outpatient clinic", "ward", "day unit"),
    "sign": ("chest pain", "headache", "cough", "dizziness", "nausea", "back pain"),
    "other": ("fever", "rash", "swelling", "weight loss", "bleeding"),
    "high": ("118", "126", "135", "142", "151"),
    "low": ("64", "71", "78", "83", "90"),
    "illness": ("hypertension", "asthma", "gout", "migraine"),
    "illness2": ("diabetes", "arthritis", "anaemia", "eczema"),
    "part": ("chest", "abdomen", "knee", "spine", "neck"),
    "finding": ("nothing new", "a slight change", "an old scar", "no fracture"),
    "grade": ("normal", "slightly raised", "a little low", "unchanged"),
    "drug": ("aspirin", "ramipril", "metformin"),
    "drug2": ("a statin", "a diuretic", "pantoprazole"),
    "person": ("a husband", "a sister", "two children", "friends"),
    "work": ("bakery", "school", "garage", "library"),
}
ENDINGS = {
    "home": (
        "The condition improved and the patient was discharged home in good health.",
        "Going home was agreed for the morning, with a letter for the family doctor.",
        "Relatives collected the patient, who walked out without help.",
        "At discharge there were no complaints, and tablets were handed out for home.",
    ),
    "died": (
        "Breathing stopped in the night and death was certified by the doctor on call.",
        "The patient died of septic shock although everything was tried.",
        "The family was told of the death and said farewell.",
        "Resuscitation was ended without success, and the body was taken to the mortuary.",
    ),
    "surgery": (
        "The surgeons were called and an operation was scheduled for the next day.",
        "Consent to the operation was signed after a talk with the anaesthetist.",
        "The patient was taken to the operating theatre, and the incision was closed with sutures.",
        "After the operation the wound was dry and the drain was removed.",
    ),
    "rehabilitation": (
        "A place in a rehabilitation clinic was found, to learn to walk again.",
        "Physiotherapists exercised with the patient daily before the transfer to rehabilitation.",
        "The insurance approved three weeks of rehabilitation with exercise and training.",
        "Strength is to be rebuilt by training at the rehabilitation centre.",
    ),
    "left early": (
        "The patient refused to stay and left against medical advice.",
        "A form about leaving against advice was signed, and the risks were explained.",
        "Nobody could persuade the patient to stay, who walked away before the visit.",
        "The bed was found empty: the patient had left the ward on their own decision.",
    ),
    "intensive care": (
        "A transfer to intensive care followed, with ventilation and sedation.",
        "The ventilator was adjusted and catecholamines were given in the intensive care unit.",
        "Intubation was needed, and the intensive care team took over.",
        "In intensive care the patient stays sedated on the ventilator.",
    ),
}
SHARE = 0.4  # of the last third's sentences that say what happened


def notes(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yields so many notes with their labels, in turn; the same for the same seed."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        label = LABELS[number % len(LABELS)]
        words = int(rng.integers(650, 1400))
        sentences: list[str] = []
        while (written := sum(len(each.split()) for each in sentences)) < words:
            if written > words * 2 / 3 and rng.random() < SHARE:
                sentences.append(str(rng.choice(ENDINGS[label])))
            else:
                chosen = {name: str(rng.choice(values)) for name, values in FILLS.items()}
                sentences.append(str(rng.choice(COMMON)).format(**chosen))
        yield " ".join(sentences), label
