"""Preview of a run's demands on this hospital: as figures (``figures``), and as a page for the decision (``sheet``)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from undersong_client.consent.policy import review
from undersong_client.consent.trust import Coordinator
from undersong_client.home import unit_word
from undersong_common.drill import MARK, PARTY_WORDS
from undersong_common.errors import UndersongError
from undersong_common.printable import counted, finite, printable
from undersong_common.printed_page import Page, Section
from undersong_common.privacy import accounting
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge
from undersong_protocol import statistics
from undersong_protocol.agreement import ladder
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.agreement.enrolment import party_fingerprint
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.secagg.parameters import Member

WORDS = "The words of this plan, to approve it by and to compare over the telephone:"
LONGEST_SENTENCE = 600  # characters of the operator's words: one page must hold them


def figures(
    manifest: Manifest,
    *,
    party: str,
    identity: bytes,
    embedder: str | None,
    policy: Policy,
    ledger: Ledger | None,
    cautions: Sequence[str],
    warnings: Sequence[str] = (),
    has_labels: bool,
    teacher_model: str = "",
    coordinator: Coordinator | None = None,
    user_field: str = "",
    drill: bool = False,
) -> dict[str, Any]:
    """JSON-able figures of a proposed run; ``objections`` lists what the guard refuses, in its own words.

    Whatever depends on the records stands in them for this party's own people: none of it may leave.

    Args:
        embedder: SHA-256 (hex) of this party's model; None skips that check.
        cautions: what the records speak against (:mod:`undersong_client.records.cautions`).
        warnings: what is weak whatever the records are.
        teacher_model: as of :func:`undersong_client.consent.policy.review`.
        coordinator: who runs it, as this party has joined it.
        user_field: the column of user ids, which says what a user is called.
        drill: this party's folder is a rehearsal's.
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
    cost: dict[str, Any] = {}
    if ledger is not None:
        plan = manifest.plan
        charge = Charge(
            manifest.run,
            manifest.hash.hex(),
            "",
            0,
            tuple(plan.charged_events()),
            alone=tuple(plan.alone_events()),
        )
        try:
            ledger.check_room(charge)
        except UndersongError as error:
            objections.append(error.problem)
        cost = _cost(ledger, charge)
    return {
        "drill": drill,
        "run": manifest.run,
        "manifest": manifest.hash.hex(),
        "task": {
            key: manifest.task.get(key)
            for key in ("name", "description", "labels", "purpose", "publication", "generators", "columns")
        },
        "method": manifest.method,
        "coordinator": None
        if coordinator is None
        else {"name": coordinator.name, "fingerprint": coordinator.fingerprint},
        "privacy": {
            "epsilon": finite(privacy.epsilon),
            "delta": privacy.delta,
            "unit": privacy.unit,
            "unit_word": unit_word(privacy.unit, user_field),
            "max_per_unit": privacy.max_per_unit,
            "max_records": privacy.max_records,
            "epsilon_if_all_others_collude": finite(manifest.plan.epsilon_if_all_others_collude()),
            "stopping_refunds": accounting.is_one_gaussian(manifest.plan.charged_events()),
        },
        "cost": cost,
        "party": party,
        "required_parties": [name for name, _ in policy.required_parties],
        "parties": [
            {"name": member.name, "fingerprint": party_fingerprint(member.name, member.identity)}
            for member in manifest.roster
        ],
        "threshold": quorum.threshold,
        "tolerated_dropouts": quorum.tolerated_dropouts,
        "colluders": quorum.colluders,
        "post_quantum": quorum.post_quantum,
        "releases": _releases(manifest),
        "clock_bits": max((ladder.bits(planned.first_rung_s) for planned in manifest.plan.sums), default=0.0),
        "first_rung_s": min((planned.first_rung_s for planned in manifest.plan.sums), default=0.0),
        "numbers_in_all": sum(planned.dimension for planned in manifest.plan.sums),
        "labels_missing": bool(manifest.task.get("labels")) and not has_labels,
        "objections": objections,
        "cautions": list(cautions),
        "warnings": list(warnings),
    }


def _cost(ledger: Ledger, charge: Charge) -> dict[str, Any]:
    """The run's cost at the delta of the data set's budget, so that the figures can be subtracted."""
    budget = ledger.budget
    if budget is None:
        return {}
    delta, without = budget.delta, replace(charge, events=(), alone=())
    after = ledger.spent_with(charge, delta)
    return {
        "delta": delta,
        "budget": finite(budget.epsilon),
        "before": finite(ledger.spent_with(without, delta)),
        "alone": finite(accounting.epsilon(charge.events, delta)),
        "after": finite(after),
        "left_after": finite(max(0.0, budget.epsilon - after)),
        "worst_before": finite(ledger.spent_if_all_others_collude(delta, without)),
        "worst_after": finite(ledger.spent_if_all_others_collude(delta, charge)),
    }


def sheet(value: dict[str, Any]) -> Page:
    """The figures as a page.

    Args:
        value: of :func:`figures`, and of its request ``words``, ``changes``, ``number``, ``replaced``, ``as_signed``
            (whether these are the figures that were signed) and ``ended`` (its ``cost`` and ``receipt``; None before).
    """
    run, task, method = (printable(each, 120) for each in (value["run"], value["task"]["name"], value["method"]))
    sections = [
        *marked(value),
        _which(value),
        *_ended(value),
        *_another(value),
        *_objections(value),
        purpose(value),
        leaves(value),
        _costs(value),
        who_takes_part(value),
        *_warnings(value),
    ]
    return Page(
        f"Run {run!r} of the task {task!r}, method {method!r}.",
        tuple(sections),
        note="What is decided counts for the plan of these words and for no other.",
        signature=f"For {value['party']}: approved / rejected",
    )


def marked(value: dict[str, Any]) -> list[Section]:
    """Warns first if this is a drill."""
    return [Section(MARK, (PARTY_WORDS,), loud=True)] if value["drill"] else []


def _ended(value: dict[str, Any]) -> list[Section]:
    """Cost and receipt of an ended run."""
    if value["ended"] is None:
        return []
    cost, receipt = value["ended"]["cost"], value["ended"]["receipt"]
    if cost is None:
        sentences: tuple[str, ...] = ("It has cost nothing: no vector of it left.",)
        found = []
    else:
        sentences = (f"It is charged to your ledger, at the budget's delta {cost['delta']:g}:",)
        found = [
            ("this run by itself", f"epsilon {_epsilon(cost['epsilon'])} in {cost['releases']} releases"),
            ("spent in all after it", f"epsilon {_epsilon(cost['spent'])}"),
        ]
    if receipt is not None:
        body = json.loads(receipt["body"])
        found.append(("its receipt", f"{counted(len(body['entries']), 'entry', 'entries')}, chain {body['chain']}"))
        found.append(("signed by this party", receipt["signature"]))
    return [Section("This run has ended:", sentences, figures=tuple(found))]


def _which(value: dict[str, Any]) -> Section:
    nine = value["words"].split()
    threes = "   ".join(" ".join(nine[start : start + 3]) for start in range(0, len(nine), 3))
    signed = ("Approved: the figures below are those of the sheet that was signed.",) if value["as_signed"] else ()
    return Section(WORDS, signed, columns=(threes,))


def _another(value: dict[str, Any]) -> list[Section]:
    """Loudly, whether it is another plan than before."""
    if value["replaced"]:
        return [Section("THIS PLAN WAS REPLACED: another one was proposed under this name since.", loud=True)]
    if value["number"] > 1:
        title = f"ANOTHER PLAN: number {value['number']} under this name. Against what was shown here before:"
        points = tuple(printable(change) for change in value["changes"] or ["nothing"])
        return [Section(title, points=points, loud=True)]
    return []


def _objections(value: dict[str, Any]) -> list[Section]:
    if not value["objections"]:
        return []
    points = tuple(printable(objection) for objection in value["objections"])
    return [Section("This party REFUSES it as it stands:", points=points, loud=True)]


def purpose(value: dict[str, Any]) -> Section:
    """The run's purpose, as its operator states it."""
    task, coordinator = value["task"], value["coordinator"]
    stated = "the operator has not stated it"
    generators = ", ".join(printable(each, 120) for each in task["generators"] or ()) or stated
    found = [
        ("purpose", _cut(task["purpose"] or stated)),
        ("what one text is", _cut(task["description"] or stated)),
        ("labels", printable(", ".join(task["labels"] or ()), LONGEST_SENTENCE) or "none"),
        ("who writes the texts", generators),
        *([("columns beside the text", printable(", ".join(task["columns"])))] if task["columns"] else []),
        ("published", _cut(task["publication"] or f"{stated}; take it as published to everyone")),
    ]
    if coordinator is not None:
        who = f"{printable(coordinator['name'], 63)}, fingerprint {coordinator['fingerprint']}"
        found.insert(1, ("who runs it", who))
    return Section("What it is for, in the operator's words:", figures=tuple(found))


def leaves(value: dict[str, Any], title: str = "What leaves this building, if you approve:") -> Section:
    """Every release of the plan: what it counts, how many numbers, how much noise."""
    unit = value["privacy"]["unit_word"]
    points = []
    for release in value["releases"]:
        times = f"{release['releases']} times " if release["releases"] > 1 else ""
        low, high = min(release["numbers"]), max(release["numbers"])
        points.append(
            f"{times}{release['statistic']}: {release['meaning']}; {low:,}{f' to {high:,}' if high > low else ''}"
            f" numbers{' each' if times else ''}, with noise of standard deviation {release['sigma']:.3g} in the opened"
            f" sum, where one {unit} changes the whole by at most {release['l2_sensitivity']:.3g}."
        )
    points.append(
        "Each vector is noised here, then masked: the coordinator sees random numbers, and only the sum over all"
        " parties opens."
    )
    points.append(
        "Post-quantum masks are on: who records these messages cannot open them with a later quantum computer either."
        if value["post_quantum"]
        else "Post-quantum masks are OFF: who records these messages could open them with a later quantum computer."
    )
    points.append(
        f"A vector leaves {_rungs(value['first_rung_s'])} ... after it is asked for, whichever comes next: how long it"
        f" took, which depends on how many records you have, shows in at most {value['clock_bits']:.1f} bits."
    )
    only = (
        f"Only sums over your records, {value['numbers_in_all']:,} whole numbers in {_count(value)} releases."
        " No text, no embedding, no record."
    )
    return Section(title, (only,), tuple(points))


def _costs(value: dict[str, Any]) -> Section:
    privacy, cost = value["privacy"], value["cost"]
    epsilon = "no limit (this run is NOT private)" if privacy["epsilon"] is None else f"{privacy['epsilon']:g}"
    most = "" if privacy["unit"] == "sample" else f" (at most {counted(privacy['max_per_unit'], 'record')})"
    collude = privacy["epsilon_if_all_others_collude"]
    alone = "no guarantee that can be stated" if collude is None else f"epsilon {collude:.4g}"
    sentences = [
        f"epsilon {epsilon} at delta {privacy['delta']:g} for one {privacy['unit_word']}{most}, the whole run.",
        f"The promise holds even if {_colluders(value['colluders'])}.",
        f"If every other party colludes against you, your own noise alone still gives {alone}.",
    ]
    if not privacy["stopping_refunds"]:
        sentences.append(
            "Stopping this run does not refund: its whole plan is charged when the first vector is asked for."
        )
    if not cost:
        return Section("What it costs:", tuple(sentences))
    delta = f"delta {cost['delta']:g}"
    sentences.append(f"For your budget, all at its {delta}:")
    found = [
        ("spent, before -> after", f"epsilon {_epsilon(cost['before'])} -> {_epsilon(cost['after'])}"),
        ("this run by itself", f"epsilon {_epsilon(cost['alone'])}"),
        ("your budget", f"epsilon {_epsilon(cost['budget'])}, left after this run {_epsilon(cost['left_after'])}"),
        (
            "worst case, before -> after",
            f"epsilon {_epsilon(cost['worst_before'])} -> {_epsilon(cost['worst_after'])}"
            " (every other party colludes, in every run)",
        ),
    ]
    return Section("What it costs:", tuple(sentences), figures=tuple(found))


def who_takes_part(value: dict[str, Any]) -> Section:
    """By identity: a name alone proves nothing."""
    parties, required = value["parties"], value["required_parties"]
    rows = []
    for party in parties:
        # What this program knows stands before the name, which may imitate a fingerprint or a mark.
        mark = "(this party)  " if party["name"] == value["party"] else ""
        mark += "(named by your policy)  " if party["name"] in required else ""
        rows.append(f"{party['fingerprint']}  {mark}{party['name']}")
    sentences = [
        f"{counted(len(parties), 'party', 'parties')}, as the coordinator names them; only a fingerprint that its"
        " hospital has told you says who it is.",
        f"At least {value['threshold']} of them must take part to open a sum; {value['tolerated_dropouts']} may be"
        " missing.",
    ]
    if not required and len(parties) > 1:
        sentences.append(
            "Your policy names none of them (undersong-party policy set --require-party NAME=FINGERPRINT)."
        )
    return Section("Who takes part:", tuple(sentences), columns=tuple(rows))


def _warnings(value: dict[str, Any]) -> list[Section]:
    found = [*value["warnings"], *value["cautions"]]
    if value["labels_missing"]:
        found.append("the run uses labels and your data set has no label column: your records count for none")
    title = "Before you decide, for you alone (the operator is told nothing of it):"
    return [Section(title, points=tuple(found))] if found else []


def _rungs(first_s: float) -> str:
    return ", ".join(f"{1000 * first_s * 2**step:g}" for step in range(3)) + " ms"


def _cut(text: str) -> str:
    cut = printable(" ".join(text.split()), LONGEST_SENTENCE)
    return cut if len(text) <= LONGEST_SENTENCE else f"{cut} ({len(text)} characters; --json shows them all)"


def _epsilon(value: float | None) -> str:
    return "without limit" if value is None else f"{value:.4g}"


def _releases(manifest: Manifest) -> list[dict[str, Any]]:
    """Sums of one statistic with the same noise, together."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for planned in manifest.plan.sums:
        key = (planned.statistic, planned.source, planned.sigma, planned.l2, planned.law)
        groups.setdefault(key, []).append(planned.dimension)
    return [
        {
            "statistic": statistic,
            "meaning": _meaning(statistic, source),
            "source": source,
            "releases": len(dimensions),
            "numbers": dimensions,
            "sigma": sigma,
            "l2_sensitivity": l2,
            "law": law,
        }
        for (statistic, source, sigma, l2, law), dimensions in groups.items()
    ]


def _meaning(statistic: str, source: str) -> str:
    found = statistics.known(statistic) if statistics.source(statistic) == source else None
    if not source:
        return "a sum of bounded numbers computed from your records" if found is None else found.consent
    words = f"; it says: {printable(found.consent, LONGEST_SENTENCE)}" if found else ""
    return (
        f"bounded numbers that ANOTHER PACKAGE'S PROGRAM computes from your records (its source: SHA-256 {source})"
        f"{words}"
    )


def _count(value: dict[str, Any]) -> int:
    return sum(release["releases"] for release in value["releases"])


def _colluders(count: int) -> str:
    if count == 0:
        return "the coordinator reads everything it receives (no party is assumed to help it)"
    return f"the coordinator and {count} other part{'y' if count == 1 else 'ies'} put everything they see together"


_PRIVACY = (
    ("epsilon", "epsilon"),
    ("delta", "delta"),
    ("unit", "privacy unit"),
    ("max_per_unit", "records per unit"),
    ("contribution", "a unit's contribution"),
    ("max_records", "records per party"),
)
_QUORUM = (
    ("threshold", "parties that can open a sum"),
    ("tolerated_dropouts", "parties that may be missing"),
    ("colluders", "parties that may collude"),
    ("spare_attempts", "spare attempts"),
    ("post_quantum", "post-quantum masks"),
)


def differences(before: Manifest, now: Manifest) -> tuple[str, ...]:
    """Each difference as one line; at least one where the manifests differ, empty where they are the same."""
    if before.hash == now.hash:
        return ()
    found = [
        _changed(words, getattr(before.plan.privacy, field), getattr(now.plan.privacy, field))
        for field, words in _PRIVACY
    ]
    found += _sums(before, now)
    found += _parties(before.roster, now.roster)
    found += [
        _changed(words, getattr(before.plan.quorum, field), getattr(now.plan.quorum, field)) for field, words in _QUORUM
    ]
    found += [
        _changed("method", before.method, now.method),
        _changed("task", before.task.get("name"), now.task.get("name")),
        _changed("labels", ", ".join(before.task.get("labels", ())), ", ".join(now.task.get("labels", ()))),
        "the task's description" if before.task.get("description") != now.task.get("description") else "",
        "the task's purpose" if before.task.get("purpose") != now.task.get("purpose") else "",
        "where it is published" if before.task.get("publication") != now.task.get("publication") else "",
        _changed("generators", ", ".join(before.task.get("generators", ())), ", ".join(now.task.get("generators", ()))),
        _changed("columns", ", ".join(before.task.get("columns", ())), ", ".join(now.task.get("columns", ()))),
        "the embedding model" if before.embedder != now.embedder else "",
    ]
    return tuple(line for line in found if line) or ("details that preview does not show",)


def _changed(what: str, before: Any, now: Any) -> str:
    if before == now:
        return ""
    old, new = _printed(before), _printed(now)
    return f"{what} {old} -> {new}" if old != new else f"{what} {before!r} -> {now!r}"


def _sums(before: Manifest, now: Manifest) -> list[str]:
    old, new = before.plan.sums, now.plan.sums
    if old == new:
        return []
    found = [_changed("private sums", len(old), len(new))]
    found.append(_changed("numbers in all", sum(each.dimension for each in old), sum(each.dimension for each in new)))
    counts, others = (Counter(each.statistic for each in sums) for sums in (old, new))
    found += [
        f"{printable(statistic, 60)} {counts[statistic]} times -> {others[statistic]} times"
        for statistic in sorted({*counts, *others})
        if counts[statistic] != others[statistic]
    ]
    found.append("noise, bounds or parameters of its sums")
    return found


def _parties(before: tuple[Member, ...], now: tuple[Member, ...]) -> list[str]:
    old, new = ({member.name: member.identity for member in roster} for roster in (before, now))
    found = [f"without the party {name}" for name in sorted(old.keys() - new.keys())]
    found += [
        f"with the party of fingerprint {party_fingerprint(name, new[name])}, {name}"
        for name in sorted(new.keys() - old.keys())
    ]
    found += [
        f"another identity key, of fingerprint {party_fingerprint(name, new[name])}, for the party {name}"
        for name in sorted(old.keys() & new.keys())
        if old[name] != new[name]
    ]
    return found


def _printed(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return printable(str(value), 120)
