"""The budget of a data set on a run's sheet: its shares before and after, and why two runs cost less than their sum."""

import math

from undersong_client.consent.risk_sections import are_one_gaussian, guessed_unit
from undersong_client.consent.run_terms import list_runs
from undersong_client.consent.sheet import BudgetEffect, FinalCost, Sheet, Surroundings
from undersong_common.privacy import accounting, impact
from undersong_common.program.printed_page import PageSection

RUNS_TOGETHER = "Each run draws its random noise anew, so that together they use less."
BUDGET_TITLE = "Your budget for all runs over these records"
NOT_IN_STEP = "The bar shows the budget and not the risk: a small part of the budget can raise the guess by much."
NEWER_FILE = "A newer version of the file does not begin again at zero."
LEAST_SAVING = 0.99  # A joint cost below this share of the sum of two costs is worth a sentence.


def budget_sections(sheet: Sheet, surroundings: Surroundings) -> list[PageSection]:
    """Returns the section on the data set's budget before and after the run; its bar is the sheet's only picture."""
    sheet_cost = sheet.cost
    if not sheet_cost or not sheet_cost.budget:
        return []
    share_before, _, share_after = budget_shares(sheet_cost, sheet_cost.budget)
    if sheet.ended is not None:
        return _budget_of_ended(sheet.ended.cost, sheet_cost.budget, share_before)
    if not math.isfinite(share_after):
        return [PageSection("Your budget", ("It limits nothing that this run takes: the run is not private.",))]
    summary = used_words(*budget_shares(sheet_cost, sheet_cost.budget), list_runs(surroundings))
    whole_words = impact.whole_budget(guess_at_the_end(sheet_cost), guessed_unit(sheet.privacy))
    sentences = (
        f"{summary} {NOT_IN_STEP} {whole_words} {NEWER_FILE}",
        *[f"Before this run: {'; '.join(surroundings.earlier_decisions)}."] * bool(surroundings.earlier_decisions),
        *_passed_limits(sheet, sheet_cost, surroundings.largest_epsilon),
    )
    return [PageSection(BUDGET_TITLE, sentences, bar=(share_before, share_after))]


def guess_at_the_end(cost: BudgetEffect | None) -> float:
    """Returns the share of right guesses about one unit once the whole budget is used; 0 without a budget."""
    if cost is None or not cost.budget:
        return 0.0
    return accounting.best_guess_of(cost.budget, cost.delta, one_gaussian=are_one_gaussian(cost))


def protects_nobody(cost: BudgetEffect | None) -> bool:
    """True if the whole budget is practically no protection of one unit."""
    return bool(impact.protection_words(guess_at_the_end(cost)))


def budget_shares(cost: BudgetEffect, budget: float) -> tuple[float, float, float]:
    """The shares of a budget that are used before this run, by it alone, and after it."""
    before, alone, after = (
        math.inf if epsilon is None else epsilon / budget for epsilon in (cost.before, cost.alone, cost.after)
    )
    return before, alone, after


def _passed_limits(sheet: Sheet, cost: BudgetEffect, largest_epsilon: float) -> list[str]:
    """Says how far this run exceeds budget and policy if all others help the operator; [] if it exceeds neither."""
    if len(sheet.parties) < 2 or sheet.colluders >= len(sheet.parties) - 1:
        return []
    epsilon_alone = sheet.privacy.epsilon_if_all_others_collude
    points = []
    if cost.budget and cost.worst_after is not None and cost.worst_after > cost.budget:
        points.append(f"all runs together would use {_percent(cost.worst_after / cost.budget):,} % of your budget")
    if epsilon_alone is not None and epsilon_alone > largest_epsilon:
        percent_of_limit = _percent(epsilon_alone / largest_epsilon)
        points.append(f"this run alone {percent_of_limit:,} % of the most that your policy allows for one run")
    if epsilon_alone is None:
        points.append("nothing would be promised of this run")
    if not points:
        return []
    return [
        f"Budget and policy do not limit the worst case. If all other hospitals help the operator,"
        f" {', and '.join(points)}."
    ]


def _budget_of_ended(cost: FinalCost | None, budget: float, share_before: float) -> list[PageSection]:
    """The budget at the end of a run, by what the ledger has charged."""
    if cost is None or cost.epsilon is None or cost.spent is None:
        return []
    share_alone = cost.epsilon / budget
    share_spent = cost.spent / budget
    summary = (
        f"By itself this run has used {_percent(share_alone)} %. All runs up to its end have used"
        f" {_percent(share_spent)} %; {max(0, 100 - _percent(share_spent))} % was left then."
    )
    bar_shares = (min(share_before, share_spent), share_spent)
    return [PageSection(BUDGET_TITLE, (summary,), bar=bar_shares)]


def use_less_together(before: float, alone: float, after: float) -> bool:
    """True if a run and the runs before it use less together than the sum of their amounts, by more than rounding."""
    return bool(before) and after <= (before + alone) * LEAST_SAVING


def used_words(share_before: float, share_alone: float, share_after: float, earlier_runs: str) -> str:
    """Returns the shares before and after a run; with tenths where the runs together use less.

    >>> used_words(0.214, 0.104, 0.317, "'spring'").partition(" The bar")[0]
    "Used before: 21 % (by 'spring': Requests has the sheets). Used after this run: 32 %; 68 % would be left."
    >>> used_words(0.214, 0.104, 0.25, "'spring'").partition(". ")[2].partition(". ")[0]
    'Used after this run: 25.0 %; 75.0 % would be left'
    """
    digit_count = 1 if use_less_together(share_before, share_alone, share_after) else 0
    before_words, after_words = (f"{100 * share:.{digit_count}f} %" for share in (share_before, share_after))
    remaining_percent = 100 - round(100 * share_after, digit_count)
    added_percent = round(100 * share_after, digit_count) - round(100 * share_before, digit_count)
    left_words = (
        f"{remaining_percent:.{digit_count}f} % would be left" if share_after <= 1 else "that is MORE than there is"
    )
    left_words += f". The bar shows the two: this run adds {added_percent:.{digit_count}f} %"
    earlier_words = f" (by {earlier_runs}: Requests has the sheets)" if share_before else ""
    return f"Used before: {before_words}{earlier_words}. Used after this run: {after_words}; {left_words}."


def _percent(share: float) -> int:
    """Returns a share in whole per cent. Sums and remainders are computed from these, as the reader adds them."""
    return round(100 * share)
