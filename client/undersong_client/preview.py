"""What a run would take from this hospital, in figures (``figures``) and in plain words (``words``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from undersong_client.guard import Policy, review
from undersong_common.errors import UndersongError
from undersong_common.printable import printable
from undersong_common.privacy.ledger import Charge, Ledger
from undersong_protocol import ladder
from undersong_protocol.enrolment import party_fingerprint
from undersong_protocol.manifest import Manifest

# A statistic that is not listed is shown with its name and its figures.
WORDS = {
    "top_q_votes": "for each candidate text, how many of your records have it among their nearest (and furthest) ones",
    "corrected_votes": "for each candidate text, how many of your records have it among their nearest ones, corrected"
    " for texts that are near to everything",
    "projections": "the sum of your records' positions along a few public directions, and how many they are",
    "classifier_votes": "for each of a few public classifiers, how well it labels your records",
    "label_histogram": "how many of your records have each label",
    "length_histogram": "how many of your records have each length",
    "term_histogram": "in how many of your records each word of a public list occurs",
    "metadata_histograms": "how many of your records have each label, each length and each of a few public keywords",
    "embedding_sum": "the sum of your records' embeddings, from which only their common direction can be seen",
    "outer_products": "how your records vary along a few public directions, summed over all of them",
    "teacher_votes": "for each of a few public texts, how many of the classifiers that are trained here, each on a part"
    " of your records, take it for one of yours; the classifiers stay here",
    "fourier_features": "sums of random waves over your records' phrases, from which only densities can be estimated",
}


def figures(
    manifest: Manifest,
    *,
    party: str,
    identity: bytes,
    embedder: str | None,
    policy: Policy,
    ledger: Ledger | None,
    cautions: Sequence[str],
    has_labels: bool,
    teacher_model: str = "",
) -> dict[str, Any]:
    """JSON-able figures of a proposed run; ``objections`` lists what the guard refuses, in its own words.

    Whatever depends on the records stands in them for this party's own people: none of it may leave.

    Args:
        embedder: SHA-256 (hex) of this party's model; None skips that check.
        cautions: what the records speak against (:mod:`undersong_client.cautions`).
        teacher_model: as of :func:`undersong_client.guard.review`.
    """
    privacy, quorum = manifest.plan.privacy, manifest.plan.quorum
    objections = []
    try:
        review(
            manifest,
            policy,
            name=party,
            identity=identity,
            embedder=embedder or manifest.embedder,
            teacher_model=teacher_model,
        )
    except UndersongError as error:
        objections.append(error.problem)
    room: dict[str, Any] = {}
    if ledger is not None:
        charge = Charge(manifest.run, manifest.hash.hex(), "", 0, tuple(manifest.plan.charged_events()))
        try:
            ledger.check_room(charge)
        except UndersongError as error:
            objections.append(error.problem)
        if ledger.budget is not None:
            spent = ledger.spent(ledger.budget.delta)
            room = {
                "budget_epsilon": _finite(ledger.budget.epsilon),
                "budget_delta": ledger.budget.delta,
                "spent_epsilon": _finite(spent),
                "left_epsilon": _finite(max(0.0, ledger.budget.epsilon - spent)),
            }
    return {
        "run": manifest.run,
        "manifest": manifest.hash.hex(),
        "task": {key: manifest.task.get(key) for key in ("name", "description", "labels")},
        "method": manifest.method,
        "privacy": {
            "epsilon": _finite(privacy.epsilon),
            "delta": privacy.delta,
            "unit": privacy.unit,
            "max_per_unit": privacy.max_per_unit,
            "max_records": privacy.max_records,
            "epsilon_if_all_others_collude": _finite(manifest.plan.epsilon_if_all_others_collude()),
        },
        "budget": room,
        "party": party,
        "required_parties": [name for name, _ in policy.required_parties],
        "parties": [
            {"name": member.name, "fingerprint": party_fingerprint(member.name, member.identity)}
            for member in manifest.roster
        ],
        "threshold": quorum.threshold,
        "tolerated_dropouts": quorum.tolerated_dropouts,
        "colluders": quorum.colluders,
        "releases": _releases(manifest),
        "clock_bits": max((ladder.bits(planned.first_rung_s) for planned in manifest.plan.sums), default=0.0),
        "first_rung_s": min((planned.first_rung_s for planned in manifest.plan.sums), default=0.0),
        "numbers_in_all": sum(planned.dimension for planned in manifest.plan.sums),
        "labels_missing": bool(manifest.task.get("labels")) and not has_labels,
        "objections": objections,
        "cautions": list(cautions),
    }


def words(value: dict[str, Any]) -> list[str]:
    """The figures as sentences.

    Args:
        value: of :func:`figures`, and of its request ``words``, ``changes``, ``number`` and ``replaced``.
    """
    privacy, budget = value["privacy"], value["budget"]
    epsilon = "no limit (this run is NOT private)" if privacy["epsilon"] is None else f"{privacy['epsilon']:g}"
    run, task, method = (printable(each, 120) for each in (value["run"], value["task"]["name"], value["method"]))
    lines = [f"Run {run!r} of the task {task!r}, method {method!r}."]
    lines += _which(value)
    if value["objections"]:
        lines.append("This party REFUSES it as it stands:")
        lines += [f"  - {printable(objection)}" for objection in value["objections"]]
    lines += [
        "",
        "What leaves this building, if you approve:",
        f"  Only sums over your records, {value['numbers_in_all']:,} whole numbers in {_count(value)} releases."
        " No text, no embedding, no record.",
    ]
    for release in value["releases"]:
        times = f"{release['releases']} times " if release["releases"] > 1 else ""
        low, high = min(release["numbers"]), max(release["numbers"])
        lines.append(
            f"  - {times}{release['statistic']}: {release['meaning']}; {low:,}{f' to {high:,}' if high > low else ''}"
            f" numbers{' each' if times else ''}, with noise of standard deviation {release['sigma']:.3g} in the opened"
            f" sum, where one {privacy['unit']} changes the whole by at most {release['l2_sensitivity']:.3g}."
        )
    lines += [
        "  Each vector is noised here, then masked: the coordinator sees random numbers, and only the sum over all"
        " parties opens.",
        f"  A vector leaves {_rungs(value['first_rung_s'])} ... after it is asked for, whichever comes next: how long"
        f" it took, which depends on how many records you have, shows in at most {value['clock_bits']:.1f} bits.",
        "",
        "What it costs:",
        f"  epsilon {epsilon} at delta {privacy['delta']:g} for one {privacy['unit']}"
        + (f" (at most {privacy['max_per_unit']} records)" if privacy["unit"] != "sample" else "")
        + ", the whole run.",
    ]
    if budget:
        total = "no limit" if budget["budget_epsilon"] is None else f"{budget['budget_epsilon']:g}"
        left = "no limit" if budget["left_epsilon"] is None else f"{budget['left_epsilon']:.4g}"
        spent = "more than can be counted" if budget["spent_epsilon"] is None else f"{budget['spent_epsilon']:.4g}"
        lines.append(
            f"  Your data set's budget is epsilon {total} at delta {budget['budget_delta']:g}; spent so far {spent},"
            f" left before this run {left}."
        )
    collude = privacy["epsilon_if_all_others_collude"]
    lines += [
        "",
        "Who takes part:",
        *_roster(value),
        f"  At least {value['threshold']} of them must take part to open a sum; {value['tolerated_dropouts']} may be"
        " missing.",
        f"  The promise holds even if {_colluders(value['colluders'])}.",
        "  If every other party colludes against you, your own noise alone still gives "
        + ("no guarantee that can be stated." if collude is None else f"epsilon {collude:.4g}."),
    ]
    if value["cautions"]:
        lines += ["", "Before you decide, for you alone (the operator is told nothing of it):"]
        lines += [f"  - {caution}" for caution in value["cautions"]]
    if value["labels_missing"]:
        lines += ["", "Note: the run uses labels and your data set has no label column: your records count for none."]
    return lines


def _rungs(first_s: float) -> str:
    return ", ".join(f"{1000 * first_s * 2**step:g}" for step in range(3)) + " ms"


def _which(value: dict[str, Any]) -> list[str]:
    """Which plan this is, and loudly whether it is another one than before."""
    nine = value["words"].split()
    lines = ["", "The words of this plan, to approve it by and to compare over the telephone:"]
    lines.append("    " + "   ".join(" ".join(nine[start : start + 3]) for start in range(0, len(nine), 3)))
    if value["replaced"]:
        lines += ["", "THIS PLAN WAS REPLACED: another one was proposed under this name since."]
    elif value["number"] > 1:
        lines += ["", f"ANOTHER PLAN: number {value['number']} under this name. Against what was shown here before:"]
        lines += [f"  - {printable(change)}" for change in value["changes"] or ["nothing"]]
    return [*lines, ""]


def _roster(value: dict[str, Any]) -> list[str]:
    """The parties by identity: a name alone proves nothing."""
    parties, required = value["parties"], value["required_parties"]
    lines = [
        f"  {len(parties)} parties, as the coordinator names them; only a fingerprint that its hospital has told you"
    ]
    lines.append("  says who it is:")
    for party in parties:
        # What this program knows stands before the name, which may imitate a fingerprint or a mark.
        mark = "(this party)  " if party["name"] == value["party"] else ""
        mark += "(named by your policy)  " if party["name"] in required else ""
        lines.append(f"    {party['fingerprint']}  {mark}{party['name']}")
    if not required and len(parties) > 1:
        lines.append("  Your policy names none of them (undersong-party policy set --require-party NAME=FINGERPRINT).")
    return lines


def _releases(manifest: Manifest) -> list[dict[str, Any]]:
    """Sums of one statistic with the same noise, together."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for planned in manifest.plan.sums:
        key = (planned.statistic, planned.sigma, planned.l2, planned.law)
        groups.setdefault(key, []).append(planned.dimension)
    return [
        {
            "statistic": statistic,
            "meaning": WORDS.get(statistic, "a sum of bounded numbers computed from your records"),
            "releases": len(dimensions),
            "numbers": dimensions,
            "sigma": sigma,
            "l2_sensitivity": l2,
            "law": law,
        }
        for (statistic, sigma, l2, law), dimensions in groups.items()
    ]


def _count(value: dict[str, Any]) -> int:
    return sum(release["releases"] for release in value["releases"])


def _colluders(count: int) -> str:
    if count == 0:
        return "the coordinator reads everything it receives (no party is assumed to help it)"
    return f"the coordinator and {count} other part{'y' if count == 1 else 'ies'} put everything they see together"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
