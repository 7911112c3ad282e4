"""Reads and sets the hospital's budget over all runs and its policy. Whatever the policy does not allow is refused."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from undersong_client.consent import policy, two_people
from undersong_client.consent.people import Person, note_decision
from undersong_client.consent.rules import PolicyChoices, changes_of
from undersong_client.home import PartyHome
from undersong_client.records import cautions
from undersong_client.storage import datasets, own_figures
from undersong_common.errors import ConfigurationError
from undersong_common.printable import that_hold
from undersong_common.privacy.ledger import TOLERANCE, Ledger
from undersong_protocol import statistics
from undersong_protocol.agreement.bounds import weak_delta
from undersong_protocol.agreement.enrolment import named_party

Confirm = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class BudgetFacts:
    """The budget and what is left of it.

    Attributes:
        allowed: the policy, which states the budget.
        spent, left: epsilon; None without a ledger.
        warnings: sentences on weak choices.
    """

    allowed: policy.HospitalPolicy
    spent: float | None
    left: float | None
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "epsilon": self.allowed.total_epsilon,
            "delta": self.allowed.total_delta,
            "parts": self.allowed.total_parts,
            "per_run": self.allowed.run_epsilon,
            "spent_epsilon": self.spent,
            "left_epsilon": self.left,
        }


def budget(home: Path) -> BudgetFacts:
    """Returns the budget that the policy states, and the spent and remaining epsilon from the ledger."""
    party_home = PartyHome(home)
    current_policy = policy.read(party_home)
    spent_epsilon = remaining_epsilon = None
    if party_home.ledger.exists():
        spent_epsilon = Ledger.read(party_home.ledger).spent(current_policy.total_delta)
        remaining_epsilon = max(0.0, current_policy.total_epsilon - spent_epsilon)
        # Plans are calibrated only to this tolerance. So a smaller remainder counts as nothing.
        if remaining_epsilon <= TOLERANCE * current_policy.total_epsilon:
            remaining_epsilon = 0.0
    return BudgetFacts(current_policy, spent_epsilon, remaining_epsilon, tuple(weak_delta(current_policy.total_delta)))


def set_budget(
    home: Path,
    *,
    epsilon: float,
    delta: float | None = None,
    per_run: float | None = None,
    parts: int = 1,
    person: Person | None = None,
    confirm: Confirm = lambda _cautions: None,
) -> BudgetFacts:
    """Sets the budget over all runs. A budget below what was spent refuses every further run.

    Args:
        delta: None takes the one that fits the number of patients (``storage.own_figures``).
        per_run: largest epsilon of one run; None allows the whole budget.
        parts: number of parts into which delta is divided (``undersong_common.privacy.spending``).
        person: whoever sets it.
        confirm: called with warnings that depend on the records, if there are any; raises an error to refuse.

    Raises ConfigurationError for a figure out of range, WaitsForSecondPerson if another person must agree.
    """
    party_home = PartyHome(home)
    if not epsilon > 0:
        raise ConfigurationError(
            f"epsilon {epsilon:g} is not above 0",
            "give an epsilon above 0; to take part in no run: undersong-party pause",
        )
    changed_rules = {
        "total_epsilon": epsilon,
        "total_delta": proposed_delta(home)[0] if delta is None else delta,
        "total_parts": parts,
        "run_epsilon": epsilon if per_run is None else per_run,
    }
    new_policy = _change(party_home, changed_rules, confirm, person)
    if party_home.ledger.exists():
        datasets.declare(Ledger.read(party_home.ledger), new_policy, at=time.time())
    return budget(home)


def proposed_delta(home: Path) -> tuple[float, str]:
    """Returns the delta to propose for the budget, and the proposal with its reason as a sentence."""
    return own_figures.delta_of(PartyHome(home))


@dataclass(frozen=True)
class PolicyFacts:
    """The policy, whose signature was checked.

    Attributes:
        share_budget: True tells the operator what is left of the budget.
        share_policy: True tells the operator the policy's bounds.
        questions: allowed part of each kind of question: "all", "some" or "none".
        missing: sentences on choices without which the policy allows no run; () if it may allow one.
        warnings: sentences on weak choices.
    """

    allowed: policy.HospitalPolicy
    share_budget: bool
    share_policy: bool
    warnings: tuple[str, ...] = ()

    @property
    def questions(self) -> dict[str, str]:
        allowed_names = set(self.allowed.statistics)
        names_of_question = {question: set(statistics.of_question(question)) for question in statistics.QUESTIONS}
        return {
            question: "all"
            if statistic_names <= allowed_names
            else "some"
            if statistic_names & allowed_names
            else "none"
            for question, statistic_names in names_of_question.items()
        }

    @property
    def missing(self) -> tuple[str, ...]:
        current_policy = self.allowed
        return tuple(
            that_hold(
                (not current_policy.statistics, "no kind of question is allowed"),
                (not current_policy.units, "nobody is named whom a run must protect"),
                (not current_policy.has_budget, "no budget is set"),
                (not current_policy.run_epsilon, "the largest epsilon of a run is 0"),
            )
        )

    def to_json(self) -> dict[str, Any]:
        return {**self.allowed.to_json(), "share_budget": self.share_budget, "share_policy": self.share_policy}


def show(home: Path) -> PolicyFacts:
    """Reads the policy. Raises PrivacyRefusal unless this party's key has signed it."""
    party_home = PartyHome(home)
    current_policy = policy.read(party_home)
    settings = party_home.settings
    return PolicyFacts(
        current_policy,
        settings.share_budget,
        settings.share_policy,
        warnings=tuple(cautions.weak_policy(current_policy)),
    )


def set_policy(
    home: Path,
    options: PolicyChoices,
    *,
    run_epsilon: float | None = None,
    person: Person | None = None,
    confirm: Confirm = lambda _cautions: None,
) -> PolicyFacts:
    """Changes the policy and signs it.

    Args:
        options: an object of :data:`undersong_client.consent.rules.PolicyOptions`; what is None in it stays.
        run_epsilon: largest epsilon of one run, which a command sets with the budget; None leaves it.
        person: whoever changes it.
        confirm: called with warnings that depend on the records, if there are any; raises an error to refuse.

    Raises ConfigurationError that names the rule, WaitsForSecondPerson if another person must agree.
    """
    party_home = PartyHome(home)
    changed_rules = changes_of(policy.HospitalPolicy, options)
    if run_epsilon is not None:
        changed_rules["run_epsilon"] = run_epsilon
    if options.require_nobody:
        changed_rules["required_parties"] = ()
    if "required_parties" in changed_rules:
        changed_rules["required_parties"] = tuple(
            "=".join(named_party(party)) for party in changed_rules["required_parties"]
        )
    named_statistics = options.named_statistics
    if options.questions is not None:
        named_statistics = _statistics_of_questions(options.questions, policy.read(party_home, latest=False).statistics)
    if named_statistics is not None:
        changed_rules["statistics"] = _check_statistics(named_statistics)
    _change(party_home, changed_rules, confirm, person)
    if options.share_budget is not None:
        party_home.change(share_budget=options.share_budget)
    if options.share_policy is not None:
        party_home.change(share_policy=options.share_policy)
    return show(home)


def _check_statistics(names: Sequence[str]) -> tuple[str, ...]:
    for statistic_name in names:
        if statistic_name not in statistics.names():
            raise ConfigurationError(
                f"statistic {statistic_name!r} is unknown", f"known are {', '.join(statistics.names())}"
            )
    return tuple(names)


def _statistics_of_questions(questions: Sequence[str], allowed: Sequence[str]) -> list[str]:
    if unknown_questions := sorted(set(questions) - {*statistics.QUESTIONS, "all"}):
        raise ConfigurationError(
            f"kind of question {unknown_questions[0]!r} is unknown",
            f"choose among {', '.join(statistics.QUESTIONS)}, all",
        )
    statistic_names: list[str] = []
    for question in statistics.QUESTIONS if "all" in questions else dict.fromkeys(questions):
        question_names = statistics.of_question(question)
        statistic_names += [
            statistic_name for statistic_name in question_names if statistic_name in allowed
        ] or question_names
    return statistic_names


def _change(
    party_home: PartyHome, changes: Mapping[str, Any], confirm: Confirm, person: Person | None
) -> policy.HospitalPolicy:
    """Changes and signs the policy; if it makes consent standing, first confirms the warnings about the records."""
    new_policy = replace(policy.read(party_home, latest=False), **changes)
    if new_policy.approval == "standing" and party_home.settings.data:
        confirm(cautions.of_standing_consent(new_policy, datasets.load(party_home).table, party_home.settings.user_is))
    _sign(party_home, new_policy, person)
    return new_policy


def _sign(party_home: PartyHome, new_policy: policy.HospitalPolicy, person: Person | None) -> None:
    """Signs and writes a policy that this person may set; the log has every value before and after."""
    former_policy = policy.read(party_home, latest=False)
    change_words = "; ".join(policy.changed(former_policy, new_policy))
    try:
        two_people.check_loosening(party_home, former_policy, new_policy, person)
    except two_people.WaitsForSecondPerson:
        note_decision(party_home, "policy set, waits for a second person", change_words, person)
        raise
    policy.write(party_home, new_policy)
    if change_words:
        note_decision(party_home, "policy set", change_words, person)
