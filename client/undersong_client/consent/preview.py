"""Preview of a proposed run for this hospital's people, as figures (``figures``) and as a page (``sheet``)."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from undersong_client.consent.people import PersonalDecision, remedy_of_refusal
from undersong_client.consent.policy import review
from undersong_client.consent.trust import Coordinator
from undersong_client.home import case_caution, unit_word
from undersong_common.errors import UndersongError
from undersong_common.printable import counted, finite, printable
from undersong_common.privacy import accounting, impact
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge
from undersong_common.program.drill import MARK, PARTY_WORDS
from undersong_common.program.printed_page import Page, Section
from undersong_protocol import limits
from undersong_protocol.agreement import words
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.agreement.enrolment import party_fingerprint
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.secagg.parameters import Member

WORDS = "The nine words of this plan, to approve it by and to compare over the telephone"
FOR_YOU = "Before you decide, for you alone (the operator is told nothing of it)"
MOST_NAMES = 12  # names of hospitals on the sheet; further ones are only counted
LEAST_SAVING = 0.99  # A joint cost below this share of the sum of two costs is worth a sentence.
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
    own_figures: Mapping[str, Any] | None = None,
    drill: bool = False,
) -> dict[str, Any]:
    """Returns the figures of a proposed run as JSON values; ``objections`` lists the reasons of the policy's checks.

    Some figures depend on the records. They are for this party's own people, and must not leave the building.

    Args:
        party, identity, policy, teacher_model: as in :func:`undersong_client.consent.policy.review`.
        embedder: SHA-256 (hex) of this party's embedding model; None skips that check.
        ledger: the data set's ledger, for the cost; None if it cannot be read.
        cautions: warnings that depend on the records (:mod:`undersong_client.records.cautions`).
        warnings: warnings that do not depend on the records.
        has_labels: True if the data set has a column of labels.
        coordinator: the coordinator that this party has joined.
        own_figures: ``rows`` of figures of the data set, and the ``word`` for a user; None without a data set.
        drill: True if this party's folder is a rehearsal's.
    """
    privacy, quorum = manifest.plan.privacy, manifest.plan.quorum
    refusals: list[UndersongError] = []
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
        refusals.append(error)
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
            unit=privacy.unit,
        )
        try:
            ledger.check_room(charge)
        except UndersongError as error:
            refusals.append(error)
        cost = _compute_cost(ledger, charge)
    return {
        "drill": drill,
        "run": manifest.run,
        "manifest": manifest.hash.hex(),
        "task": {
            key: manifest.task.get(key)
            for key in ("name", "description", "labels", "purpose", "publication", "generators", "columns")
        },
        "operator": operator_words(manifest.task, coordinator),
        "asked": list(words.questions(manifest.plan)),
        "own": None if own_figures is None else dict(own_figures),
        "method": manifest.method,
        "coordinator": None
        if coordinator is None
        else {"name": coordinator.name, "fingerprint": coordinator.fingerprint},
        "privacy": {
            "epsilon": finite(privacy.epsilon),
            "delta": privacy.delta,
            "unit": privacy.unit,
            "unit_word": unit_word(privacy.unit, "" if own_figures is None else own_figures["word"]),
            "max_per_unit": privacy.max_per_unit,
            "max_records": privacy.max_records,
            "best_guess": accounting.best_guess(manifest.plan.charged_events()),
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
        "others": words.others(manifest.plan),
        "tolerated_dropouts": quorum.tolerated_dropouts,
        "colluders": quorum.colluders,
        "post_quantum": quorum.post_quantum,
        "releases": _group_releases(manifest),
        "clock_bits": max((limits.bits(planned.first_rung_s) for planned in manifest.plan.sums), default=0.0),
        "first_rung_s": min((planned.first_rung_s for planned in manifest.plan.sums), default=0.0),
        "numbers_in_all": sum(planned.dimension for planned in manifest.plan.sums),
        "labels_missing": bool(manifest.task.get("labels")) and not has_labels,
        "objections": [refusal.problem for refusal in refusals],
        "remedies": [refusal.remedy for refusal in refusals],
        "cautions": list(cautions),
        "warnings": list(warnings),
    }


def _compute_cost(ledger: Ledger, charge: Charge) -> dict[str, Any]:
    """The run's cost at the delta of the data set's budget, so that the figures can be subtracted."""
    if (budget := ledger.budget) is None:
        return {}
    delta, without = budget.delta, replace(charge, events=(), alone=())
    spent_after = ledger.spent_with(charge, delta)
    return {
        "delta": delta,
        "budget": finite(budget.epsilon),
        "before": finite(ledger.spent_with(without, delta)),
        "alone": finite(accounting.epsilon(charge.events, delta)),
        "after": finite(spent_after),
        "best_guess_after": ledger.best_guess_with(charge, delta),
        "left_after": finite(max(0.0, budget.epsilon - spent_after)),
        "worst_before": finite(ledger.spent_if_all_others_collude(delta, without)),
        "worst_after": finite(ledger.spent_if_all_others_collude(delta, charge)),
    }


def operator_words(task: Mapping[str, Any], coordinator: Coordinator | None) -> str:
    """Returns who asks: the operator's legal name and contact, as the plan states them, and the coordinator's name."""
    operator = printable(str(task.get("operator") or ""), LONGEST_SENTENCE)
    contact = printable(str(task.get("contact") or ""), LONGEST_SENTENCE)
    name = operator or "the operator"
    through = "" if coordinator is None else f"coordinator {printable(coordinator.name, 63)!r}"
    details = ", ".join(filter(None, [contact, through]))
    return f"{name} ({details})" if details else name


def sheet(value: dict[str, Any]) -> Page:
    """Returns the figures as a page: three sentences and the budget first, all further figures folded.

    Args:
        value: the result of :func:`figures`, with further keys of its request: ``words``, ``changes``, ``number``,
            ``revises``, ``replaced``, ``as_signed`` (True if these figures were signed), ``two_people``, ``people``
            and ``ended`` (with ``cost`` and ``receipt``; None before the end).
    """
    value = _complete_figures(value)
    nine = value["words"].split()
    threes = tuple(" ".join(nine[start : start + 3]) for start in range(0, len(nine), 3))
    unlabelled = "the run uses labels and your data set has no label column: your records count for none"
    warnings = [*value["warnings"], *value["cautions"], *[unlabelled] * value["labels_missing"]]
    signed = ("Approved: the figures on this sheet are those that were signed.",) if value["as_signed"] else ()
    return Page(
        f"May the run {printable(value['run'], 120)!r} use the records of {value['party']}?",
        (
            *marked(value),
            *_end_sections(value),
            *_change_sections(value),
            *_refusal_sections(value),
            *_list_points("Who decided", map(_describe_decision, value["people"])),
            _in_short(value),
            *_own_records(value),
            *_budget_sections(value),
            *_choice_sections(value),
            purpose(value),
            _hospital_section(value),
            *_list_points(FOR_YOU, warnings),
            Section(WORDS, signed, aloud=threes),
            _figure_section(value),
            replace(leaves(value), folded=True),
            replace(who_takes_part(value), folded=True),
        ),
        note="What is decided counts for the plan of the nine words below and for no other.",
        signature=f"For {value['party']}: approved / rejected (strike out one)",
        signers=2 if value["two_people"] else 1,
    )


def _complete_figures(value: dict[str, Any]) -> dict[str, Any]:
    """The figures of a sheet that an earlier version signed, with what the same figures say in this version's keys."""
    coordinator = value["coordinator"]
    name = "the operator" if coordinator is None else f"the operator (coordinator {coordinator['name']!r})"
    derived = {
        "operator": name,
        "asked": list(dict.fromkeys(release["meaning"] for release in value["releases"])),
        "others": len(value["parties"]) - value["tolerated_dropouts"] - 1,
        "own": None,
        "remedies": [],
    }
    return derived | value


def _list_points(title: str, points: Iterable[str], *, loud: bool = False) -> list[Section]:
    """One section of these points; none if there are no points."""
    point_list = tuple(points)
    return [Section(title, points=point_list, loud=loud)] if point_list else []


def _refusal_sections(value: dict[str, Any]) -> list[Section]:
    """Says what this party's guard refuses, and the remedy."""
    if not value["objections"]:
        return []
    points = (
        *map(printable, value["objections"]),
        f"Remedy: {remedy_of_refusal(value['remedies'], value['operator'])}.",
    )
    return _list_points("This party REFUSES it as it stands:", points, loud=True)


def _describe_decision(person: dict[str, Any]) -> str:
    return PersonalDecision(**person).words(f"{datetime.fromtimestamp(person['at_s'], UTC):%Y-%m-%d %H:%M} UTC")


def _in_short(value: dict[str, Any]) -> Section:
    """Sentences for a reader without statistics: the request, the numbers that leave, the risk of one unit."""
    privacy, operator = value["privacy"], value["operator"]
    hospitals = counted(len(value["parties"]), "hospital")
    request_words = (
        f"{operator[0].upper()}{operator[1:]} asks: {words.asked(value['asked'])}. These numbers, added to those"
        f" of others, steer language models that write invented texts, in the run {printable(value['run'], 120)!r} of"
        f" {hospitals} in all."
    )
    counts = words.counted_numbers(value["numbers_in_all"])
    leaving_words = (
        f"{counts} about your records, blurred here by random noise and then scrambled. Your numbers"
        f" {'are ' if value['others'] else ''}{words.together(value['others'])}. No record, no text and no part of a"
        " text leaves."
    )
    return Section(
        "In short",
        figures=(
            ("What is asked", request_words),
            ("What leaves", leaving_words),
            ("What it means", _risk_words(privacy)),
        ),
    )


def _own_records(value: dict[str, Any]) -> list[Section]:
    """The figures by which its people recognise the data set."""
    if value["own"] is None:
        return []
    return [Section("Your records", figures=tuple((name, text) for name, text in value["own"]["rows"]))]


def _risk_words(privacy: dict[str, Any]) -> str:
    epsilon, unit = privacy["epsilon"], privacy["unit_word"]
    if epsilon is None:
        return f"This run is NOT private: nothing is promised to any {unit}."
    subjects = {"sample": "one record was", "party": "the records of one hospital were"}
    subject = subjects.get(privacy["unit"], f"one {unit}'s records were")
    aside = f", a chance of 1 in {round(1 / privacy['delta']):,} (delta) aside" if privacy["delta"] else ""
    several = case_caution(unit) if privacy["unit"] == "user" else ""
    return (
        "Somebody who sees everything published, and all that the operator sees, and guesses as well as is possible"
        f" whether {subject} used is right in at most {impact.cases(privacy['best_guess'])} of 100 cases, instead of 50"
        f" by tossing a coin (epsilon {epsilon:g}). That is the average; in the rarest case such a guess is never surer"
        f" than {impact.surest(epsilon)}{aside}.{f' {several[0].upper()}{several[1:]}.' if several else ''}"
    )


def _budget_sections(value: dict[str, Any]) -> list[Section]:
    """The data set's budget before and after, in parts of the whole: the one picture of the sheet."""
    cost = value["cost"]
    if not cost or not cost["budget"]:
        return []
    share_before, share_after = (
        math.inf if cost[key] is None else cost[key] / cost["budget"] for key in ("before", "after")
    )
    if not math.isfinite(share_after):
        return [Section("Your budget", ("It limits nothing that this run takes: the run is not private.",))]
    remainder = f"{100 * (1 - share_after):.0f} % would be left" if share_after <= 1 else "that is MORE than there is"
    share_alone = math.inf if cost["alone"] is None else cost["alone"] / cost["budget"]
    summary = f"Used before: {100 * share_before:.0f} %. Used after this run: {100 * share_after:.0f} %; {remainder}."
    sentences = [summary, *_why_less(share_before, share_alone, share_after), *_risk_of_all(value)]
    if cost["delta"] != value["privacy"]["delta"]:
        delta_words = f"1 in {round(1 / cost['delta']):,}, and this run promises its own at 1 in"
        sentences.append(
            f"These shares stand at your budget's delta, {delta_words} {round(1 / value['privacy']['delta']):,}."
        )
    return [Section("Your budget for all runs over these records", tuple(sentences), bar=(share_before, share_after))]


def _why_less(share_before: float, share_alone: float, share_after: float) -> list[str]:
    """A sentence for runs that together cost less than the sum of what each costs by itself; [] if they do not."""
    if not share_before or share_after > (share_before + share_alone) * LEAST_SAVING:
        return []
    return [
        f"By itself this run would use {100 * share_alone:.0f} %. Together it is {100 * share_after:.0f} % and not"
        f" {100 * (share_before + share_alone):.0f} %, because the blur of each run is drawn anew: what two runs show"
        " about one person does not add up in full."
    ]


def _risk_of_all(value: dict[str, Any]) -> list[str]:
    """The risk of all runs over these records, this one included, in the words of :func:`_risk_words`."""
    guess, unit = value["cost"].get("best_guess_after"), value["privacy"]["unit_word"]
    if guess is None:  # a sheet that an earlier version signed
        return []
    subject = {"sample": "one record", "party": "this hospital"}.get(value["privacy"]["unit"], f"one {unit}")
    return [f"All runs together, this one included: {impact.guess(guess, subject)}."]


def _choice_sections(value: dict[str, Any]) -> list[Section]:
    """The ways to decide; none of them is left in an ended run."""
    if value["ended"] is not None:
        return []
    withdraw = (
        "Change your mind: choose Withdraw at any time before the run ends. Nothing more leaves. What was opened before"
        " stays opened and counts against the budget; published texts cannot be recalled, and they name this hospital"
        " as one that took part until then."
    )
    if value["as_signed"]:
        return [Section("What you can do", points=(withdraw,))]
    return [
        Section(
            "What you can do",
            points=(
                "Refuse: choose Reject. You need give no reason; if you write one, the operator reads it. Nothing"
                " leaves, and this run does not take place. The operator may plan another one without you, or ask you"
                " anew.",
                "Wait: nothing leaves until you have decided.",
                "Approve: choose Approve and type the nine words below."
                + (
                    " Your policy asks for two people: a privacy officer and one for IT." if value["two_people"] else ""
                ),
                withdraw,
            ),
        )
    ]


def _hospital_section(value: dict[str, Any]) -> Section:
    """The other parties by name: one proves itself by its fingerprint, which is folded."""
    names = [party["name"] for party in value["parties"]]
    names_shown = ", ".join(f"{name} (you)" if name == value["party"] else name for name in names[:MOST_NAMES])
    remainder = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    sentences = [
        f"{counted(len(names), 'hospital')}, as the operator names them: {names_shown}{remainder}.",
        f"Your numbers {'are ' if value['others'] else ''}{words.together(value['others'])}.",
        "Nobody can check another hospital's numbers: one that lies could spoil the corpus. It would learn nothing more"
        " by that, and what is promised to your patients stays.",
    ]
    return Section("Who takes part", tuple(sentences))


def marked(value: dict[str, Any]) -> list[Section]:
    """Returns a section that marks the page as a drill's; [] for any other run."""
    return [Section(MARK, (PARTY_WORDS,), loud=True)] if value["drill"] else []


def _end_sections(value: dict[str, Any]) -> list[Section]:
    """Cost and receipt of an ended run."""
    if value["ended"] is None:
        return []
    cost, receipt = value["ended"]["cost"], value["ended"]["receipt"]
    if cost is None:
        sentences: tuple[str, ...] = ("It has cost nothing: no vector of it left.",)
        rows = []
    else:
        sentences = (f"It is charged to your ledger, at the budget's delta {cost['delta']:g}:",)
        rows = [
            ("this run by itself", f"epsilon {_epsilon_words(cost['epsilon'])} in {cost['releases']} releases"),
            ("spent in all after it", f"epsilon {_epsilon_words(cost['spent'])}"),
        ]
    if receipt is not None:
        body = json.loads(receipt["body"])
        rows += [
            ("its receipt", f"{counted(len(body['entries']), 'entry', 'entries')}, chain {body['chain']}"),
            ("signed by this party", receipt["signature"]),
        ]
    return [Section("This run has ended:", sentences, figures=tuple(rows))]


def _change_sections(value: dict[str, Any]) -> list[Section]:
    """Loudly, whether it is another plan than before."""
    if value["replaced"]:
        return [Section("THIS PLAN WAS REPLACED: another one was proposed under this name since.", loud=True)]
    if value["number"] > 1:
        title = f"ANOTHER PLAN: number {value['number']} under this name. Against what was shown here before:"
    elif value["revises"]:
        title = f"IT REVISES {printable(value['revises'], 120)!r}. Against what was shown or decided here:"
    else:
        return []
    points = tuple(printable(change) for change in value["changes"] or ["nothing"])
    return [Section(title, points=points, loud=True)]


def purpose(value: dict[str, Any]) -> Section:
    """Returns the section on the run's purpose, in its operator's words."""
    task = value["task"]
    not_stated = "the operator has not stated it"
    generators = ", ".join(printable(generator, 120) for generator in task["generators"] or ()) or not_stated
    rows = [
        ("purpose", _cut_sentence(task["purpose"] or not_stated)),
        ("who runs it", printable(value["operator"], LONGEST_SENTENCE)),
        ("what one text is", _cut_sentence(task["description"] or not_stated)),
        ("labels", printable(", ".join(task["labels"] or ()), LONGEST_SENTENCE) or "none"),
        ("who writes the texts", generators),
        *([("columns beside the text", printable(", ".join(task["columns"])))] if task["columns"] else []),
        ("published", _cut_sentence(task["publication"] or f"{not_stated}; take it as published to everyone")),
    ]
    return Section("What it is for, in the operator's words", figures=tuple(rows))


def leaves(value: dict[str, Any], title: str = "What leaves, sum by sum") -> Section:
    """Returns the section on every private sum of the plan: its question, number of coordinates and noise."""
    points = (
        *(_leaves_by(release, value["privacy"]["unit_word"]) for release in value["releases"]),
        "Each vector is noised here, then masked: the coordinator sees random numbers, and only the sum over all"
        " parties opens.",
        "Post-quantum masks are on: who records these messages cannot open them with a later quantum computer either."
        if value["post_quantum"]
        else "Post-quantum masks are OFF: who records these messages could open them with a later quantum computer.",
    )
    summary = (
        f"Only sums over your records, {value['numbers_in_all']:,} whole numbers in"
        f" {sum(release['releases'] for release in value['releases'])} releases."
        " No text, no embedding, no record."
    )
    return Section(title, (summary,), points)


def _leaves_by(release: dict[str, Any], unit: str) -> str:
    times = f"{release['releases']} times " if release["releases"] > 1 else ""
    low, high = min(release["numbers"]), max(release["numbers"])
    return (
        f"{times}{release['statistic']}: {release['meaning']}; {low:,}{f' to {high:,}' if high > low else ''}"
        f" numbers{' each' if times else ''}, with noise of standard deviation {release['sigma']:.3g} in the opened"
        f" sum, where one {unit} changes the whole by at most {release['l2_sensitivity']:.3g}."
    )


def _figure_section(value: dict[str, Any]) -> Section:
    """Every other figure of the run, each with the reason why it differs from the one epsilon of the sheet."""
    privacy, cost, coordinator = value["privacy"], value["cost"], value["coordinator"]
    delta = f"delta {privacy['delta']:g}"
    promised = f"epsilon {_epsilon_words(privacy['epsilon'])} at {delta}"
    epsilon_alone = _epsilon_words(privacy["epsilon_if_all_others_collude"], "cannot be stated")
    rungs = ", ".join(f"{1000 * value['first_rung_s'] * 2**step:g}" for step in range(3))
    cap_words = "" if privacy["unit"] == "sample" else f" (at most {counted(privacy['max_per_unit'], 'record')})"
    rows = [
        (
            "the promise",
            f"{promised} for one {privacy['unit_word']}{cap_words}, the whole run. This is the epsilon above; it holds"
            f" even if {_colluder_words(value['colluders'])}.",
        ),
        (
            "the best guess",
            f"{100 * privacy['best_guess']:.1f} % right. It is an average over all that can be published; the"
            " certainty above is that of the most telling case, which is rare.",
        ),
        (
            f"if every other party colludes, {words.AS_PLANNED}",
            f"epsilon {epsilon_alone} at {delta}. The others can subtract their own noise; yours alone is left."
            f" {words.PLANNED}",
        ),
        (
            "time of an answer",
            f"at most {value['clock_bits']:.1f} bits for each sum. Epsilon counts numbers only; the time that an answer"
            " takes depends on how many records you have. A vector leaves"
            f" {rungs} ms ... after it is asked for, whichever comes next.",
        ),
        (
            "stopping early",
            "costs what was opened until then. The releases of this run can be priced one by one."
            if privacy["stopping_refunds"]
            else "does not refund. The whole plan is charged when the first vector is asked for: its releases cannot be"
            " priced one by one.",
        ),
        ("method", f"{printable(value['method'], 120)}, for the task {printable(value['task']['name'], 120)!r}."),
        ("the plan's hash", value["manifest"]),
        *([("fingerprint of who runs it", coordinator["fingerprint"])] if coordinator is not None else []),
    ]
    if cost:
        is_same_delta = cost["delta"] == privacy["delta"]
        delta_words = (
            "Budget and run have the same delta." if is_same_delta else "Your budget has another delta than the run."
        )
        rows[1:1] = [
            (
                "this run, in your budget",
                f"epsilon {_epsilon_words(cost['alone'])} at delta {cost['delta']:g}. {delta_words}",
            ),
            (
                "your budget, before -> after",
                f"epsilon {_epsilon_words(cost['before'])} -> {_epsilon_words(cost['after'])} of"
                f" {_epsilon_words(cost['budget'])}, left {_epsilon_words(cost['left_after'])}. Runs over the same"
                " records add up.",
            ),
            (
                "worst case, before -> after",
                f"epsilon {_epsilon_words(cost['worst_before'])} -> {_epsilon_words(cost['worst_after'])}. Every other"
                " party colludes, in every run over these records.",
            ),
        ]
    return Section("The figures, and why they differ", figures=tuple(rows), folded=True)


def who_takes_part(value: dict[str, Any]) -> Section:
    """Returns the section on the parties, with fingerprints, because a name alone proves nothing."""
    parties, required = value["parties"], value["required_parties"]
    # Fingerprint and marks stand before the name, because a name may imitate them.
    rows = [
        f"{party['fingerprint']}  {'(this party)  ' if party['name'] == value['party'] else ''}"
        f"{'(named by your policy)  ' if party['name'] in required else ''}{party['name']}"
        for party in parties
    ]
    sentences = [
        f"{counted(len(parties), 'party', 'parties')}, as the coordinator names them; only a fingerprint that its"
        " hospital has told you says who it is.",
        f"A sum opens with those of at least {value['others'] + 1} of them; {value['tolerated_dropouts']} may be"
        " missing.",
        *([] if required or len(parties) == 1 else ["Your policy names none of them that must take part."]),
    ]
    return Section("Who takes part, by fingerprint", tuple(sentences), columns=tuple(rows))


def _cut_sentence(text: str) -> str:
    cut = printable(" ".join(text.split()), LONGEST_SENTENCE)
    return cut if len(text) <= LONGEST_SENTENCE else f"{cut} ({len(text)} characters in all)"


def _epsilon_words(value: float | None, unlimited: str = "without limit") -> str:
    return unlimited if value is None else f"{value:.4g}"


def _group_releases(manifest: Manifest) -> list[dict[str, Any]]:
    """Sums of one statistic with the same noise, together."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for planned in manifest.plan.sums:
        asks = words.question(planned)
        key = (planned.statistic, asks, planned.source, planned.sigma, planned.l2, planned.law)
        groups.setdefault(key, []).append(planned.dimension)
    return [
        {
            "statistic": statistic,
            "meaning": asks,
            "source": source,
            "releases": len(dimensions),
            "numbers": dimensions,
            "sigma": sigma,
            "l2_sensitivity": l2,
            "law": law,
        }
        for (statistic, asks, source, sigma, l2, law), dimensions in groups.items()
    ]


def _colluder_words(count: int) -> str:
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


def differences(earlier: Manifest, later: Manifest) -> tuple[str, ...]:
    """Returns the differences between two manifests, one line each; () only if the manifests are equal."""
    if earlier.hash == later.hash:
        return ()
    old, new = earlier.plan, later.plan
    lines = [
        *(_value_change(words, getattr(old.privacy, field), getattr(new.privacy, field)) for field, words in _PRIVACY),
        *_sum_changes(earlier, later),
        *_party_changes(earlier.roster, later.roster),
        *(_value_change(words, getattr(old.quorum, field), getattr(new.quorum, field)) for field, words in _QUORUM),
        _value_change("method", earlier.method, later.method),
        _value_change("task", earlier.task.get("name"), later.task.get("name")),
        _value_change("labels", ", ".join(earlier.task.get("labels", ())), ", ".join(later.task.get("labels", ()))),
        _value_change("description", earlier.task.get("description", "none"), later.task.get("description", "none")),
        _value_change("purpose", earlier.task.get("purpose", "none"), later.task.get("purpose", "none")),
        _value_change("publication", earlier.task.get("publication", "none"), later.task.get("publication", "none")),
        _value_change(
            "generators", ", ".join(earlier.task.get("generators", ())), ", ".join(later.task.get("generators", ()))
        ),
        _value_change("columns", ", ".join(earlier.task.get("columns", ())), ", ".join(later.task.get("columns", ()))),
        "the embedding model" if earlier.embedder != later.embedder else "",
    ]
    return tuple(line for line in lines if line) or ("details that preview does not show",)


def _value_change(name: str, old_value: Any, new_value: Any) -> str:
    if old_value == new_value:
        return ""
    old, new = _print_value(old_value), _print_value(new_value)
    return f"{name} {old} -> {new}" if old != new else f"{name} {old_value!r} -> {new_value!r}"


def _sum_changes(earlier: Manifest, later: Manifest) -> list[str]:
    old, new = earlier.plan.sums, later.plan.sums
    if old == new:
        return []
    counts, new_counts = (Counter(planned.statistic for planned in sums) for sums in (old, new))
    return [
        _value_change("private sums", len(old), len(new)),
        _value_change(
            "numbers in all", sum(planned.dimension for planned in old), sum(planned.dimension for planned in new)
        ),
        *(
            f"{printable(statistic, 60)} {counts[statistic]} times -> {new_counts[statistic]} times"
            for statistic in sorted({*counts, *new_counts})
            if counts[statistic] != new_counts[statistic]
        ),
        "noise, bounds or parameters of its sums",
    ]


def _party_changes(old_roster: tuple[Member, ...], new_roster: tuple[Member, ...]) -> list[str]:
    old, new = ({member.name: member.identity for member in roster} for roster in (old_roster, new_roster))
    return [
        *(f"without the party {name}" for name in sorted(old.keys() - new.keys())),
        *(
            f"with the party of fingerprint {party_fingerprint(name, new[name])}, {name}"
            for name in sorted(new.keys() - old.keys())
        ),
        *(
            f"another identity key, of fingerprint {party_fingerprint(name, new[name])}, for the party {name}"
            for name in sorted(old.keys() & new.keys())
            if old[name] != new[name]
        ),
    ]


def _print_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else printable(str(value), 120)
