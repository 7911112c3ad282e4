"""Cases at the triage desk: patient and complaint are drawn first, then written down in a hospital's style."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from examples.clinic.grammar import chance, pick, pick_some, whole

LABELS = ("cardiac", "respiratory", "abdominal", "injury", "infection", "neurological")
_HERE = Path(__file__).parent
# Entries of a history that only women, or only men, can have, and entries that exclude all others.
_WOMENS = ("OCP", "on OCP", "pregnant 20/40", "LMP 2/52 ago", "ovarian cyst", "breast ca on chemo")
_MENS = ("BPH",)
_NOTHING = ("nil PMH", "fit + well")


@dataclass(frozen=True)
class Patient:
    """A person as the desk knows them; ``name`` is an invented hospital number."""

    name: str
    age: int
    woman: bool
    history: tuple[str, ...]

    @property
    def words(self) -> dict[str, str]:
        """The pronouns that templates may use."""
        if self.woman:
            return {"he": "she", "his": "her", "himself": "herself"}
        return {"he": "he", "his": "his", "himself": "himself"}


@dataclass(frozen=True)
class Case:
    """One visit: the stream it belongs to, its complaint and findings as templates in both vocabularies."""

    label: str
    complaint: Mapping[str, str]
    findings: Mapping[str, tuple[str, ...]]
    history: tuple[str, ...]
    ages: tuple[int, int]
    vitals: Mapping[str, float]


@cache
def knowledge() -> dict[str, Any]:
    """Returns the presentations and vague complaints of presentations.toml."""
    return tomllib.loads((_HERE / "presentations.toml").read_text(encoding="utf-8"))


def draw_label(rng: Random, mix: Mapping[str, float]) -> str:
    """Draws a label (a stream of patients) with the chances of a hospital's case mix."""
    return pick(rng, LABELS, [mix[label] for label in LABELS])


def draw_case(
    rng: Random,
    label: str,
    *,
    vague: float,
    stray: float,
    findings: tuple[int, int],
    child: bool | None = None,
) -> Case:
    """Draws one visit of the stream ``label``.

    Args:
        vague: the chance of a complaint that fits several streams, so that only the findings tell them apart.
        stray: the chance that one finding comes from another stream, as in real notes.
        findings: the smallest and largest number of findings.
        child: True for children's presentations where the stream has any, False for adults', None for all.
    """
    entries = [entry for entry in knowledge()["presentation"] if entry["label"] == label]
    if child is not None:
        entries = [e for e in entries if (e["ages"][0] < 16 if child else e["ages"][1] >= 18)] or entries
    entry = pick(rng, entries, [e["weight"] for e in entries])
    index = int(rng.random() * 1_000_000)
    complaint = {style: entry[style][index % len(entry[style])] for style in ("terse", "plain")}
    if chance(rng, vague):
        vague_entry = pick(rng, [v for v in knowledge()["vague"] if label in v["labels"]])
        complaint = {style: vague_entry[style][index % len(vague_entry[style])] for style in ("terse", "plain")}
    count = whole(rng, *findings)
    signs_by_style = {style: pick_some(rng, entry[f"{style}_signs"], count) for style in ("terse", "plain")}
    if chance(rng, stray):
        other_entry = pick(rng, [e for e in knowledge()["presentation"] if e["label"] != label])
        for style, signs in signs_by_style.items():
            signs[-1:] = [pick(rng, other_entry[f"{style}_signs"])]
    vitals = {name: low + rng.random() * (high - low) for name, (low, high) in entry["vitals"].items()}
    return Case(
        label,
        complaint,
        {style: tuple(signs) for style, signs in signs_by_style.items()},
        tuple(entry["history"]),
        (entry["ages"][0], entry["ages"][1]),
        vitals,
    )


def draw_patient(rng: Random, name: str, case: Case, ages: Sequence[int]) -> Patient:
    """Draws a patient who fits ``case``, within the ``ages`` that the hospital sees where both are possible."""
    low, high = max(case.ages[0], ages[0]), min(case.ages[1], ages[1])
    if low > high:
        low, high = case.ages
    age, woman = whole(rng, low, high), chance(rng, 0.5)
    possible_history = [item for item in case.history if item not in (_MENS if woman else _WOMENS)]
    history = pick_some(rng, possible_history, whole(rng, 0, 2))
    if len(history) > 1:
        # An entry such as "nil PMH" excludes all others.
        history = [item for item in history if item not in _NOTHING] or history[:1]
    return Patient(name, age, woman, tuple(history))
