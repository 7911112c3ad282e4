"""The risk of a run and of all runs on its sheet: who guesses, how often rightly, and while how many may help.

Each figure is computed from the fields that a sheet has signed.
"""

import math
from dataclasses import replace

from undersong_client.consent.run_terms import (
    name_earlier,
)
from undersong_client.consent.sheet import (
    BudgetEffect,
    Sheet,
    Surroundings,
    UnitPromise,
)
from undersong_client.home import case_caution, unit_word
from undersong_common.printable import counted
from undersong_common.privacy import accounting, impact
from undersong_common.program.printed_page import PageSection
from undersong_protocol.agreement import words

BEYOND_PARTICIPATION = (
    "The same figures hold for any other yes-or-no question about {subject}, such as whether the records name a certain"
    " illness, if one could otherwise only toss a coin. The programs that give the texts know public material and these"
    " numbers; no record is shown to them."
)


def beyond_participation(sheet: Sheet) -> list[tuple[str, str]]:
    """Says that the figures of the risk bound whatever is learned, and not participation alone."""
    if sheet.privacy.epsilon is None:
        return []
    guessed_subject = guessed_unit(sheet.privacy)
    return [("What else could be learned", BEYOND_PARTICIPATION.format(subject=guessed_subject))]


def risk_table(sheet: Sheet) -> list[PageSection]:
    """The risks of this run and of all runs in cases of 100, by who guesses: on average, and in an unlucky case."""
    if sheet.ended is not None or sheet.privacy.epsilon is None:
        return []
    head = ["who guesses", "this run, on average", f"this run, {impact.UNLUCKY}"]
    if _has_risk_of_all(sheet):
        head += ["all runs, on average", f"all runs, {impact.UNLUCKY}"]
    risks_of_reader = {_usual_reader(sheet): _usual_risks(sheet)}
    if _can_be_undone(sheet):
        risks_of_reader[_worst_reader(sheet)] = _worst_risks(sheet)
    rows = [(reader, *map(impact.cases, risks)) for reader, risks in risks_of_reader.items()]
    sentences = (
        "With all that somebody can see, a guess is right in at most so many. An average counts every run, the unlucky"
        " ones too. The noise is drawn by chance, and an unlucky case is one in which it hides less.",
        *_chance_words(sheet),
        "Not in these figures: the time of an answer, and what people in your own house see.",
    )
    return [PageSection(f"The risk in cases of 100, {words.AS_PLANNED}", sentences, table=(tuple(head), *rows))]


def _has_risk_of_all(sheet: Sheet) -> bool:
    """True if the sheet has the risk of all runs: not without a budget, and not as an earlier version signed it."""
    return sheet.cost is not None and sheet.cost.best_guess_after is not None


def _can_be_undone(sheet: Sheet) -> bool:
    """True if the promise fails where all other hospitals help the operator."""
    return len(sheet.parties) - 1 > sheet.colluders


def _usual_risks(sheet: Sheet) -> list[float]:
    """Shares of right guesses while the promise holds: on average and in an unlucky case, of this run and of all."""
    risks = [sheet.privacy.best_guess, _certainty(sheet.privacy.epsilon, sheet.privacy.delta)]
    cost = sheet.cost
    if cost is not None and cost.best_guess_after is not None:
        risks += [cost.best_guess_after, _certainty(cost.after, cost.delta)]
    return risks


def _worst_risks(sheet: Sheet) -> list[float]:
    """The same shares if all other hospitals help the operator in every run."""
    sure_alone = _certainty(sheet.privacy.epsilon_if_all_others_collude, sheet.privacy.delta)
    risks = [_guess_if_all_help(sheet.privacy), sure_alone]
    cost = sheet.cost
    if cost is not None and cost.best_guess_after is not None:
        risks += [_guess_of_all_if_all_help(sheet), max(_certainty(cost.worst_after, cost.delta), sure_alone)]
    return risks


def worst_of_all(sheet: Sheet) -> list[tuple[str, str]]:
    """The largest figures of the table of risks, for the first answers: all help the operator, in an unlucky case."""
    if sheet.ended is not None or sheet.privacy.epsilon is None or not _can_be_undone(sheet):
        return []
    risks = _worst_risks(sheet)
    of_all = f", and from all runs together in at most {impact.cases(risks[3])}" if _has_risk_of_all(sheet) else ""
    return [
        (
            "If all others help",
            f"If all other hospitals help the operator, then {impact.UNLUCKY} a guess from this run is right in at most"
            f" {impact.cases(risks[1])} of 100 cases{of_all}.",
        )
    ]


def _usual_reader(sheet: Sheet) -> str:
    """Names who guesses while the promise holds."""
    helpers = ""
    if sheet.colluders:
        helpers = f", with the help of {counted(min(sheet.colluders, len(sheet.parties) - 1), 'other hospital')}"
    return f"the operator, and whoever sees all that is published{helpers}"


def _worst_reader(sheet: Sheet) -> str:
    """Names who guesses where the promise no longer holds: whoever can subtract the numbers of all others of a sum."""
    together = "all other hospitals with the operator"
    if sheet.colluders:
        return together
    if sheet.others <= 1:
        return f"one other hospital for itself, if it is alone with you in a sum; or {together}"
    return f"{together} (one other hospital for itself: less)"


def _chance_words(sheet: Sheet) -> list[str]:
    """Says how often a run is worse than the table's unlucky case: for one unit, and for any of the data set's."""
    sheet_cost = sheet.cost
    deltas = {"runs like this one": sheet.privacy.delta}
    if sheet_cost is not None and sheet_cost.best_guess_after is not None:
        if sheet_cost.delta == sheet.privacy.delta:
            deltas = {"runs like this one, or series of all runs like these": sheet_cost.delta}
        else:
            deltas["series of all runs like these"] = sheet_cost.delta
    unit_total = _unit_total(sheet)
    people = unit_word("user", sheet.own.word if sheet.own else "", 2)
    frequencies = []
    for runs, delta in deltas.items():
        if not delta:
            continue
        frequency = f"{impact.worse_runs(delta, runs=runs)} for {guessed_unit(sheet.privacy)}"
        if unit_total:
            frequency += f", and at most {2 * unit_total:,} for any of all {unit_total:,} {people}"
        frequencies.append(f"{_start_sentence(frequency)}.")
    return [" ".join(frequencies)] if frequencies else []


def _unit_total(sheet: Sheet) -> int:
    """The number of patients of the data set; 0 where no column names them, or there are not several."""
    if sheet.privacy.unit != "user" or sheet.own is None:
        return 0
    people = unit_word("user", sheet.own.word, 2)
    count = next((text for name, text in sheet.own.rows if name == people), "").replace(",", "")
    return int(count) if count.isdigit() and count not in ("0", "1") else 0


def _certainty(epsilon: float | None, delta: float) -> float:
    return 1.0 if epsilon is None else impact.certainty(epsilon, delta)


def _guess_of_all_if_all_help(sheet: Sheet) -> float:
    """The best guess from all runs if all others help the operator in each; of the first run, that of this run."""
    sheet_cost = sheet.cost
    if sheet_cost is None or sheet_cost.worst_after is None:
        return 1.0
    if not sheet_cost.before and not sheet_cost.worst_before:
        plan_guess = _guess_if_all_help(sheet.privacy)
    else:
        plan_guess = accounting.best_guess_of(
            sheet_cost.worst_after, sheet_cost.delta, one_gaussian=are_one_gaussian(sheet_cost)
        )
    return max(plan_guess, sheet_cost.best_guess_after or 0.0)


def are_one_gaussian(cost: BudgetEffect) -> bool:
    """True if all runs together are Gaussians without subsampling: their two figures are then one curve's.

    Only of these does the pair of epsilon and delta determine the best guess.
    """
    if cost.after is None or cost.best_guess_after is None:
        return False
    gaussian_guess = accounting.best_guess_of(cost.after, cost.delta, one_gaussian=True)
    return math.isclose(gaussian_guess, cost.best_guess_after, abs_tol=1e-6)


def _promise_as_it_ran(sheet: Sheet) -> UnitPromise:
    """The promise that the ledger's charge of an ended run amounts to; the plan's before."""
    planned_privacy = sheet.privacy
    if (
        sheet.ended is None
        or (end_cost := sheet.ended.cost) is None
        or end_cost.epsilon is None
        or planned_privacy.epsilon is None
    ):
        return planned_privacy
    ended_guess = planned_privacy.best_guess
    if planned_privacy.stopping_refunds:  # The charge is one Gaussian, which the two figures determine.
        ended_guess = accounting.best_guess_of(end_cost.epsilon, end_cost.delta, one_gaussian=True)
    return replace(planned_privacy, epsilon=end_cost.epsilon, delta=end_cost.delta, best_guess=ended_guess)


def risk_words(sheet: Sheet) -> str:
    promised_privacy = _promise_as_it_ran(sheet)
    if sheet.ended is None:
        stage_words = ""
    else:
        stage_words = f", {words.AS_IT_RAN}"
    epsilon = promised_privacy.epsilon
    unit_word = promised_privacy.unit_word
    if epsilon is None:
        return f"This run is NOT private: nothing is promised to any {unit_word}."
    subjects = {"sample": "one record was", "party": "the records of one hospital were"}
    subject = subjects.get(promised_privacy.unit, f"one {unit_word}'s records were")
    if sheet.ended is None:
        sure = impact.certainty(epsilon, promised_privacy.delta)
        worse = f" ({impact.worse_runs(promised_privacy.delta)})" if promised_privacy.delta else ""
        rare = f"; {impact.UNLUCKY}, in {impact.cases(sure)}{worse}."
    else:
        rare = f". {_start_sentence(impact.worst_guess(epsilon, promised_privacy.delta))}."
    several = case_caution(unit_word) if promised_privacy.unit == "user" else ""
    return (
        f"Suppose that somebody wants to know whether {subject} used, and sees everything published and all numbers"
        f" that the operator sees. Then {impact.guess(promised_privacy.best_guess, guessed_unit(promised_privacy))}"
        f" (epsilon {epsilon:.4g}{stage_words}){rare} {helper_words(sheet)}"
        f"{f' {several[0].upper()}{several[1:]}.' if several else ''}"
    ).rstrip()


def _start_sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}"


def helper_words(sheet: Sheet) -> str:
    """Says how many other hospitals may help the operator before the promise fails, and what it is if all do."""
    sheet_privacy = sheet.privacy
    other_count = len(sheet.parties) - 1
    if other_count < 1:
        return ""
    if sheet.colluders >= other_count:
        return "This holds even if all other hospitals help the operator."
    holds = f"This holds only while {most_helpers(sheet)} the operator"
    if sheet.colluders:
        holds += "."
    else:
        holds += " or guesses for itself: each can subtract its own numbers from an opened sum, and its own noise."
    if 0 < sheet.others < other_count:
        # A sum that opens without some hospitals is open to fewer helpers.
        members = "this one is" if sheet.others == 1 else "these are"
        holds += (
            f" A sum may open with the numbers of only {counted(sheet.others, 'other hospital')}: for that sum,"
            f" {members} all others."
        )
    if sheet_privacy.epsilon_if_all_others_collude is None:
        return f"{holds} If all others helped, nothing would be promised."
    worst_guess = impact.cases(_guess_if_all_help(sheet_privacy))
    return f"{holds} If all others helped, a guess would, on average, be right in at most {worst_guess} of 100 cases."


def most_helpers(sheet: Sheet) -> str:
    """Says how many other hospitals may help the operator while the promise holds, with the verb."""
    if not sheet.colluders:
        return "no other hospital helps"
    return f"at most {counted(sheet.colluders, 'other hospital')} {'helps' if sheet.colluders == 1 else 'help'}"


def _guess_if_all_help(privacy: UnitPromise) -> float:
    epsilon = privacy.epsilon_if_all_others_collude
    if epsilon is None:
        return 1.0
    return accounting.best_guess_of(epsilon, privacy.delta, one_gaussian=privacy.stopping_refunds)


def risk_of_all(sheet: Sheet, beside: Surroundings) -> list[tuple[str, str]]:
    """The risk of all runs over these records, this one included, in the words of :func:`risk_words`."""
    sheet_cost = sheet.cost
    if (
        sheet_cost is None or sheet_cost.best_guess_after is None
    ):  # no budget, or a sheet that an earlier version signed
        return []
    if sheet.ended is None:
        stage_words = ""
    else:
        stage_words = f" ({words.AS_PLANNED} when it was decided)"
    guess_words = impact.right_guess(sheet_cost.best_guess_after, guessed_unit(sheet.privacy))
    helped_words = ""
    if sheet.ended is None:
        certainty = impact.cases(_certainty(sheet_cost.after, sheet_cost.delta))
        frequency = impact.worse_runs(sheet_cost.delta, runs="series of such runs")
        helped_words = f"; {impact.UNLUCKY}, in {certainty} ({frequency})"
    if sheet.ended is None and _can_be_undone(sheet):
        worst_guess = impact.cases(_guess_of_all_if_all_help(sheet))
        helped_words += f"; if all others helped in every run, on average in at most {worst_guess}"
    return [
        (
            "The risk of all runs",
            f"From all runs over these records{name_earlier(sheet_cost, beside)} and this one together{stage_words},"
            f" {guess_words}{helped_words}.",
        )
    ]


def guessed_unit(privacy: UnitPromise) -> str:
    return {"sample": "one record", "party": "one hospital"}.get(privacy.unit, f"one {privacy.unit_word}")
