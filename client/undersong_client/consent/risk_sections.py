"""The risk of a run and of all runs on its sheet: who guesses, how often rightly, and while how many may help.

Each figure is computed from the fields that a sheet has signed. The *excepted runs* are those, at most twice delta of
all, in which nothing is promised.
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
from undersong_common.version import SOFTWARE
from undersong_protocol.agreement import words

BEYOND_PARTICIPATION = (
    "The same figures hold for any other yes-or-no question about {subject}, such as whether the records name a certain"
    " illness, for somebody who could otherwise only toss a coin, because they bound all that the records of {subject}"
    " can change in what is seen."
)
NO_RECORD_SHOWN = (
    "The writers know public material and the opened sums; no record is shown to them. So these figures bound what a"
    " published text can tell of {subject}, too."
)
KNOWS_MORE = (
    "Somebody who knows more beforehand guesses right more often without this run, too; {rare}the run shifts the odds"
    " of that guess by a factor of at most {factor}: a chance of 1 in 100 becomes at most {after} in 100{of_all}."
)
HELPING = "shares its numbers or keys, adds no noise, lies about a failed attempt, or is its invention"
MORE_HELP = "If more hospitals help"  # names the row of the first answers; others refer to it by this name
OVER_THE_NOISE = "on average over the random noise"
MOST_EXCEPTED = 0.1  # If a larger share of runs is excepted, the sheet says why.
# Shares of runs: the sheet says how sure a guess becomes in at most so many; its first answers say the first.
RARE_SHARE, RARER_SHARE = 0.01, 0.001


def meaning_section(sheet: Sheet) -> list[PageSection]:
    """Says what the figures of the risk bound and what they leave out; the figures stand in the first answers alone."""
    privacy = sheet.privacy
    if privacy.epsilon is None:
        return []
    seen_sentence = (
        "Each guess is made by somebody who sees everything published and all numbers that the operator sees."
    )
    beyond_sentence = BEYOND_PARTICIPATION.format(subject=guessed_unit(privacy))
    sentences = [f"{seen_sentence} {beyond_sentence} {_knows_more(sheet)}", *_bad_luck_in_runs(sheet)]
    sentences.append(NO_RECORD_SHOWN.format(subject=guessed_unit(privacy)))
    if sheet.ended is None:
        sentences.append(
            "Not in these figures: the time of an answer, and what people in your own house see."
            f" The figures hold if this software, {SOFTWARE}, does what it states, which no figure shows: ask IT who"
            " has examined this version."
        )
    return [PageSection("What the figures of the risk mean", tuple(sentences))]


def _knows_more(sheet: Sheet) -> str:
    """Says what the promise and all runs together bound for somebody who does not only toss a coin."""
    privacy, cost = sheet.privacy, sheet.cost
    epsilon = privacy.epsilon or 0.0
    exception_words = "outside the excepted runs, " if privacy.delta else ""
    raised_chance = _raised_chance(impact.certainty(epsilon, privacy.delta))
    of_all_words = ""
    if sheet.ended is None and cost is not None and cost.best_guess_after is not None and cost.before:
        certainty_of_all = _certainty_of_all(cost.after, cost, _delta_of_all(sheet, cost))
        of_all_words = f", and by all runs together at most {_raised_chance(certainty_of_all)} in 100"
    factor = impact.odds_factor(epsilon, privacy.delta)
    return KNOWS_MORE.format(factor=f"{factor:.3g}", rare=exception_words, after=raised_chance, of_all=of_all_words)


def _bad_luck_in_runs(sheet: Sheet) -> list[str]:
    """Says how often a guess becomes as sure as "with bad luck", of this run and of all; [] of an ended run."""
    privacy, cost = sheet.privacy, sheet.cost
    if sheet.ended is not None or privacy.epsilon is None:
        return []
    sentence = f"“With bad luck” is a bound for every {privacy.unit_word}, whatever the records are: no guess is surer"
    if not privacy.delta:
        return [f"{sentence}."]
    words_of_run = _rare_words(privacy.epsilon, privacy.delta, "runs", one_gaussian=privacy.stopping_refunds)
    sentence += f" outside the excepted runs. {words_of_run}"
    if cost is not None and cost.best_guess_after is not None and cost.before:
        delta = _delta_of_all(sheet, cost)
        epsilon_of_all = _epsilon_of_all(cost.after, cost, delta)
        words_of_all = _rare_words(epsilon_of_all, delta, "series", one_gaussian=are_one_gaussian(cost))
        sentence += (
            f" A series is all these runs, each with noise of its own: {_excepted_share(delta)} series are excepted,"
            f" and {_start_small(words_of_all)}"
        )
    if _rarity(sheet, privacy.epsilon, privacy.delta):
        sentence += _rare_of_all_units(sheet)
    return [f"{sentence} The figures on average count every run, the excepted ones, too."]


def _rare_words(epsilon: float | None, delta: float, counted_noun: str, *, one_gaussian: bool) -> str:
    """Says how sure a guess becomes in at most 1 % and 0.1 % of runs, if one Gaussian determines that.

    Args:
        counted_noun: what is counted.
    """
    shares = [share for share in (RARE_SHARE, RARER_SHARE) if share > 2 * delta]
    if epsilon is None or not one_gaussian or not shares:
        return "How often one comes near it, these figures do not say."
    limit_words = [
        f"{impact.cases(impact.rare_certainty(epsilon, delta, share))} of 100 cases in at most"
        f" {_share_words(share)} {counted_noun}"
        for share in shares
    ]
    return f"A guess is surer than {', and surer than '.join(limit_words)}."


def _rarity(sheet: Sheet, epsilon: float, delta: float) -> str:
    """Says beside a figure with bad luck what a guess passes in at most 1 % of runs; "" where that is not known."""
    if not sheet.privacy.stopping_refunds or 2 * delta >= RARE_SHARE:
        return ""
    case_words = impact.cases(impact.rare_certainty(epsilon, delta, RARE_SHARE))
    share_words = _share_words(RARE_SHARE)
    return f", but over {case_words} for one given {sheet.privacy.unit_word} in at most {share_words} runs"


def _share_words(share: float) -> str:
    return impact.chance(share).replace(" in ", " of ")


def _rare_of_all_units(sheet: Sheet) -> str:
    """Says that the chances of an unlucky run are those of one given unit, and the chance that it meets any of all."""
    unit_total = _unit_total(sheet)
    unit_words = sheet.privacy.unit_word
    one_unit = f" Each of these shares is of one given {unit_words}"
    if not unit_total:
        return f"{one_unit}."
    people_words = f"all {unit_total:,} {unit_word('user', sheet.own.word if sheet.own else '', 2)}"
    privacy = sheet.privacy
    limits = [
        f"over {impact.cases(impact.rare_certainty(privacy.epsilon or 0.0, privacy.delta, share))}"
        f" {_share_of_any(share * unit_total)}"
        for share in (RARE_SHARE, RARER_SHARE)
        if share > 2 * privacy.delta
    ]
    return f"{one_unit}: for somebody among {people_words}, this run's guess may be {' and '.join(limits)}."


def _share_of_any(share: float) -> str:
    """Returns in how many runs at most something befalls somebody; a bound of half the runs says nothing."""
    return "in any run" if share > 0.5 else f"in at most 1 of {math.floor(1.0 / share):,} runs"


def _start_small(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:]}"


def _raised_chance(certainty: float) -> str:
    """Returns what a chance of 1 in 100 becomes at most, in cases of 100, where even odds become ``certainty``."""
    return impact.cases(certainty / (certainty + 99.0 * (1.0 - certainty)))


def _rows_left_out(sheet: Sheet, most_in_rows: int) -> list[str]:
    """Says which row holds for a number of helpers without a row, and for fewer hospitals in a sum with this one.

    Args:
        most_in_rows: the largest number of helpers, but all others, that has a row.
    """
    other_count = len(sheet.parties) - 1
    sentences = []
    counts_between = range(most_in_rows + 1, other_count)
    if counts_between:
        number_words = (
            f"{counts_between[0]}" if len(counts_between) == 1 else f"{counts_between[0]} to {counts_between[-1]}"
        )
        is_one = counts_between[-1] == 1
        sentences.append(
            f"The figures of {number_words} {'other lie' if is_one else 'others lie'} between the last two rows."
        )
    missing_count = other_count - sheet.others
    if missing_count < 1:
        return sentences
    if sheet.others <= 1:
        return [*sentences, "One that is alone with you in a sum counts as all others."]
    silent_words = counted(missing_count, "hospital")
    return [
        *sentences,
        f"If {silent_words} {'does' if missing_count == 1 else 'do'} not answer, only {sheet.others} others are in a"
        f" sum with you: the last row then holds if these {sheet.others} help, and the rows above it hold as they are.",
    ]


def can_be_undone(sheet: Sheet) -> bool:
    """True if the promise fails where all other hospitals help the operator."""
    return len(sheet.parties) - 1 > sheet.colluders


def _worst_risks(sheet: Sheet) -> list[float]:
    """Returns the shares of :func:`_promised_risks` if all other hospitals help the operator in every run."""
    certainty_alone = _certainty(sheet.privacy.epsilon_if_all_others_collude, sheet.privacy.delta)
    risks = [_guess_if_all_help(sheet.privacy), certainty_alone]
    cost = sheet.cost
    if cost is not None and cost.best_guess_after is not None:
        certainty_of_all = _certainty_of_all(cost.worst_after, cost, _delta_of_all(sheet, cost))
        risks += [_guess_of_all_if_all_help(sheet), max(certainty_of_all, certainty_alone)]
    return risks


def more_help(sheet: Sheet, surroundings: Surroundings) -> list[PageSection]:
    """The figures by how many hospitals help the operator: as many as the promise allows, one more, and all others."""
    if sheet.ended is not None or sheet.privacy.epsilon is None or not can_be_undone(sheet):
        return []
    cost = sheet.cost
    allowed_words = f"at most {counted(sheet.colluders, 'other')}" if sheet.colluders else "no other"
    rows = [_help_row(allowed_words, *_promised_risks(sheet))]
    sentences = [
        f"A hospital helps the operator if it {HELPING}. The best guess about {guessed_unit(sheet.privacy)} is right in"
        " at most so many of 100 cases, on average and with bad luck.",
        *_rows_left_out(sheet, sheet.colluders + (surroundings.one_more is not None)),
    ]
    table_head: tuple[str, ...] = ("who helps", "this run", "with bad luck")
    has_all_runs = cost is not None and cost.best_guess_after is not None
    if has_all_runs:
        table_head = (*table_head, "all runs", "bad luck in all")
    if (one_more := surroundings.one_more) is not None:
        one_more_words = counted(sheet.colluders + 1, "other")
        rows.append(_help_row(one_more_words, *one_more, *_one_more_of_all(sheet, surroundings)))
        if has_all_runs and cost is not None and cost.before:
            sentences.append(
                f"For {one_more_words}, the figures of all runs are rather too high than too low: for the earlier runs"
                " they assume that all others helped."
            )
    rows.append(_help_row("all others", *_worst_risks(sheet)))
    return [PageSection(MORE_HELP, (" ".join(sentences),), table=(table_head, *rows))]


def _help_row(helper_words: str, *risks: float) -> tuple[str, ...]:
    """A row of the table: who helps, and each share of right guesses as a number of cases."""
    if risks[0] == 1.0:
        return helper_words, *("nothing is promised" for _ in risks)
    return helper_words, *(impact.cases(right_share) for right_share in risks)


def _promised_risks(sheet: Sheet) -> list[float]:
    """The shares of right guesses that the promise bounds: of this run, and of all runs where a budget counts them."""
    privacy, cost = sheet.privacy, sheet.cost
    risks = [privacy.best_guess, _certainty(privacy.epsilon, privacy.delta)]
    if cost is not None and cost.best_guess_after is not None:
        risks += [cost.best_guess_after, _certainty_of_all(cost.after, cost, _delta_of_all(sheet, cost))]
    return risks


def _one_more_of_all(sheet: Sheet, surroundings: Surroundings) -> list[float]:
    """Returns the shares of all runs if one more hospital helps in this one, and all others in the earlier ones."""
    cost, spent, one_more = sheet.cost, surroundings.one_more_spent, surroundings.one_more
    if cost is None or cost.best_guess_after is None or one_more is None:
        return []
    if not cost.before and not cost.worst_before:
        return list(one_more)
    if spent is None:
        return [1.0, 1.0]
    guess = accounting.best_guess_of(spent, cost.delta, one_gaussian=are_one_gaussian(cost))
    certainty = _certainty_of_all(spent, cost, _delta_of_all(sheet, cost))
    return [max(guess, cost.best_guess_after, one_more[0]), max(certainty, one_more[1])]


def _cases_words(right_share: float) -> str:
    return f"{impact.cases(right_share)} of 100 cases{impact.protection_words(right_share)}"


def _excepted_of_all_units(sheet: Sheet, delta: float, chooser: str) -> str:
    """Says how many runs are excepted for any of the data set's units, and why if that is a large share.

    Args:
        chooser: whoever has chosen ``delta``, with the verb.
    """
    unit_total = _unit_total(sheet)
    if not delta or not unit_total:
        return ""
    share = 2 * unit_total * delta
    people_words = f"all {unit_total:,} {unit_word('user', sheet.own.word if sheet.own else '', 2)}"
    reason = f", because {chooser} counts with {impact.chance(delta)}"
    if share > 0.5:
        return f"; for {people_words} together, nothing is promised{reason}"
    reason_words = reason if share > MOST_EXCEPTED else ""
    return f"; for at least one of {people_words}, 1 of {math.floor(1.0 / share):,} runs{reason_words}"


def _unit_total(sheet: Sheet) -> int:
    """The number of patients of the data set; 0 where no column names them, or there are not several."""
    if sheet.privacy.unit != "user" or sheet.own is None:
        return 0
    people_word = unit_word("user", sheet.own.word, 2)
    count_text = next((text for name, text in sheet.own.rows if name == people_word), "").replace(",", "")
    return int(count_text) if count_text.isdigit() and count_text not in ("0", "1") else 0


def _certainty(epsilon: float | None, delta: float) -> float:
    return 1.0 if epsilon is None else impact.certainty(epsilon, delta)


def _delta_of_all(sheet: Sheet, cost: BudgetEffect) -> float:
    """The delta of the figures of all runs: this run's if it is the smaller one and the figures can be computed at it.

    The figures can if all runs together are one Gaussian, whose epsilon at one delta determines it at every other.
    """
    return sheet.privacy.delta if 0.0 < sheet.privacy.delta < cost.delta and are_one_gaussian(cost) else cost.delta


def _epsilon_of_all(epsilon: float | None, cost: BudgetEffect, delta: float) -> float | None:
    """Returns the epsilon of all runs at ``delta``, computed from ``epsilon``, the one at the budget's delta."""
    if not epsilon or delta == cost.delta:
        return epsilon
    return accounting.gaussian_epsilon(accounting.gaussian_mu(epsilon, cost.delta), delta)


def _certainty_of_all(epsilon: float | None, cost: BudgetEffect, delta: float) -> float:
    """Returns how often a guess from all runs is right with bad luck, at ``delta``, by an epsilon at the budget's."""
    return _certainty(_epsilon_of_all(epsilon, cost, delta), delta)


def _guess_of_all_if_all_help(sheet: Sheet) -> float:
    """The best guess from all runs if all others help the operator in each; before any other run, from this one."""
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
    """The promise that the ledger's charge of an ended run amounts to; before the end, the plan's."""
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
    epsilon = promised_privacy.epsilon
    unit_word = promised_privacy.unit_word
    if epsilon is None:
        return f"This run is NOT private: nothing is promised to any {unit_word}."
    subjects = {"sample": "one record was", "party": "the records of one hospital were"}
    subject = subjects.get(promised_privacy.unit, f"one {unit_word}'s records were")
    as_ran_words = "" if sheet.ended is None else f" (epsilon {epsilon:.4g}, {words.AS_IT_RAN})"
    mean_guess = impact.guess(promised_privacy.best_guess, f"whether {subject} used", OVER_THE_NOISE)
    several_caution = case_caution(unit_word) if promised_privacy.unit == "user" else ""
    sentences = (
        f"{_start_sentence(mean_guess)}{as_ran_words}.",
        _bad_luck(sheet, epsilon, promised_privacy.delta),
        helper_words(sheet),
        f"{_start_sentence(several_caution)}." if several_caution else "",
    )
    return " ".join(filter(None, sentences))


def _bad_luck(sheet: Sheet, epsilon: float, delta: float) -> str:
    """Says what a guess reaches in a single run at most, and in how many runs nothing is promised."""
    sentence = f"With bad luck in this one run, in up to {impact.cases(impact.certainty(epsilon, delta))}"
    if not delta:
        return f"{sentence}."
    sentence += f"{_rarity(sheet, epsilon, delta)}."
    of_all_units = _excepted_of_all_units(sheet, delta, "the operator")
    return f"{sentence} In {_excepted_share(delta)} such runs (the excepted runs{of_all_units}), nothing is promised."


def _excepted_share(delta: float) -> str:
    return f"at most {impact.chance_of_more(delta).replace(' in ', ' of ')}"


def _start_sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}"


def helper_words(sheet: Sheet) -> str:
    """Says how many other hospitals may help the operator before the promise fails, and of an ended run what if all."""
    other_count = len(sheet.parties) - 1
    if other_count < 1:
        return ""
    if sheet.colluders >= other_count:
        return f"This holds even if all other hospitals help the operator: even if each {HELPING}."
    helping_words = "" if sheet.ended is None else f" ({HELPING})"  # An open sheet says this beside its table.
    sentence = f"This holds only while {_most_helpers(sheet)} the operator{helping_words}"
    if sheet.colluders:
        sentence += "."
    else:
        sentence += " or guesses for itself: each can subtract its own numbers from an opened sum, and its own noise."
    if sheet.ended is None:  # The table of an open sheet has the figures.
        return sentence
    if sheet.privacy.epsilon_if_all_others_collude is None:
        return f"{sentence} If all others helped, nothing would be promised."
    worst_guess = _cases_words(_guess_if_all_help(sheet.privacy))
    return f"{sentence} If all others helped, a guess would, on average, be right in at most {worst_guess}."


def _most_helpers(sheet: Sheet) -> str:
    """Says how many other hospitals may help the operator while the promise holds, with the verb."""
    if not sheet.colluders:
        return "no other hospital helps"
    return f"at most {counted(sheet.colluders, 'other hospital')} {'helps' if sheet.colluders == 1 else 'help'}"


def _guess_if_all_help(privacy: UnitPromise) -> float:
    epsilon = privacy.epsilon_if_all_others_collude
    if epsilon is None:
        return 1.0
    return accounting.best_guess_of(epsilon, privacy.delta, one_gaussian=privacy.stopping_refunds)


def risk_of_all(sheet: Sheet, surroundings: Surroundings) -> list[tuple[str, str]]:
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
    if sheet.ended is None:
        guess_words += f"{_guess_before(sheet_cost)}{_rare_of_all(sheet, sheet_cost)}"
    return [
        (
            "The risk of all runs",
            f"From all runs over these records{name_earlier(sheet_cost, surroundings)} and this one"
            f" together{stage_words}, {guess_words}.{_same_condition(sheet, sheet_cost)}",
        )
    ]


def _same_condition(sheet: Sheet, cost: BudgetEffect) -> str:
    """Says that the figure of all runs holds while as few hospitals help as for this run's; "" where all may."""
    if sheet.ended is not None or not can_be_undone(sheet):
        return ""
    if not cost.before:
        return " The same condition holds."
    return " The same condition holds for each earlier run: its sheet names its hospitals."


def _guess_before(cost: BudgetEffect) -> str:
    """Says in brackets how often the guess was right before this run; "" if it is the first, or is not known."""
    if not cost.before or not are_one_gaussian(cost):
        return ""
    return f" ({impact.cases(accounting.best_guess_of(cost.before, cost.delta, one_gaussian=True))} before this one)"


def _rare_of_all(sheet: Sheet, cost: BudgetEffect) -> str:
    """Says what a guess from all runs reaches with bad luck, and the excepted series where delta is another one."""
    delta = _delta_of_all(sheet, cost)
    bad_luck = f"; with bad luck, in up to {impact.cases(_certainty_of_all(cost.after, cost, delta))}"
    if cost.before and are_one_gaussian(cost):
        bad_luck += f" ({impact.cases(_certainty_of_all(cost.before, cost, delta))} before)"
    if delta == sheet.privacy.delta:
        return bad_luck
    of_all_units = _excepted_of_all_units(sheet, delta, "your hospital's budget")
    bracket_words = f" ({of_all_units.removeprefix('; ')})" if of_all_units else ""
    return f"{bad_luck}, outside {_excepted_share(delta)} such series{bracket_words}"


def guessed_unit(privacy: UnitPromise) -> str:
    return {"sample": "one record", "party": "one hospital"}.get(privacy.unit, f"one {privacy.unit_word}")
