"""Reads and sets the hospital's budget over all runs and its policy. Everything that they do not name is refused."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from undersong_client.consent import plugins, policy
from undersong_client.home import PartyHome
from undersong_client.records import cautions
from undersong_client.storage import datasets
from undersong_common.errors import ConfigurationError
from undersong_common.privacy.ledger import TOLERANCE, Ledger
from undersong_protocol import statistics
from undersong_protocol.agreement.bounds import MinimumColluders, weak_delta
from undersong_protocol.agreement.enrolment import named_party

Confirm = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class BudgetFacts:
    """The budget, and what is left of it.

    Attributes:
        spent, left: None where there is no ledger.
        warnings: what is weak about it, in words.
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
    """The budget as the policy states it, and what the ledger has of it."""
    opened = PartyHome(home)
    allowed = policy.read(opened)
    spent = Ledger.read(opened.ledger).spent(allowed.total_delta) if opened.ledger.exists() else None
    left = None if spent is None else max(0.0, allowed.total_epsilon - spent)
    if left is not None and left <= TOLERANCE * allowed.total_epsilon:  # a plan is calibrated no closer than that
        left = 0.0
    return BudgetFacts(allowed, spent, left, tuple(weak_delta(allowed.total_delta)))


def set_budget(
    home: Path,
    *,
    epsilon: float,
    delta: float,
    per_run: float | None = None,
    parts: int = 1,
    confirm: Confirm = lambda _cautions: None,
) -> BudgetFacts:
    """Sets the budget over all runs; a smaller one than what was spent refuses every further run.

    Args:
        per_run: the most that one run may promise; None allows all of it.
        parts: into which delta is divided.
        confirm: called with what the records speak against, where they do; may refuse.

    Raises ConfigurationError for a figure out of range.
    """
    opened = PartyHome(home)
    if not epsilon > 0:
        raise ConfigurationError(
            f"epsilon {epsilon:g} is not above 0", "to take part in nothing: undersong-party pause"
        )
    changes = {
        "total_epsilon": epsilon,
        "total_delta": delta,
        "total_parts": parts,
        "run_epsilon": epsilon if per_run is None else per_run,
    }
    changed = _change(opened, changes, confirm)
    if opened.ledger.exists():
        datasets.declare(Ledger.read(opened.ledger), changed, at=time.time())
    return budget(home)


@dataclass(frozen=True)
class PolicyFacts:
    """The policy, its signature checked.

    Attributes:
        share_budget: whether the operator is told what is left.
        share_policy: whether the operator is told what the policy allows.
        questions: the part of each kind of question that is allowed: "all", "some" or "none".
        missing: choices without which it allows nothing, in words; empty where a run may be allowed.
        warnings: what is weak about it, in words.
    """

    allowed: policy.HospitalPolicy
    share_budget: bool
    share_policy: bool
    warnings: tuple[str, ...] = ()

    @property
    def questions(self) -> dict[str, str]:
        allowed = set(self.allowed.statistics)
        every = {question: set(statistics.of_question(question)) for question in statistics.QUESTIONS}
        return {
            question: "all" if names <= allowed else "some" if names & allowed else "none"
            for question, names in every.items()
        }

    @property
    def missing(self) -> tuple[str, ...]:
        allowed = self.allowed
        chosen = (
            (allowed.statistics or allowed.trusted_statistics, "no kind of question is allowed"),
            (allowed.units, "nobody is named whom a run must protect"),
            (allowed.has_budget, "no budget is set"),
            (allowed.run_epsilon, "the largest epsilon of a run is 0"),
        )
        return tuple(words for is_set, words in chosen if not is_set)

    def to_json(self) -> dict[str, Any]:
        shared = {"share_budget": self.share_budget, "share_policy": self.share_policy}
        return {**self.allowed.to_json(), **shared}


def show(home: Path) -> PolicyFacts:
    """The policy. Raises PrivacyRefusal where this party's key has not signed it."""
    opened = PartyHome(home)
    allowed = policy.read(opened)
    settings = opened.settings
    weak = tuple(cautions.weak_policy(allowed))
    return PolicyFacts(allowed, settings.share_budget, settings.share_policy, weak)


def set_policy(
    home: Path,
    *,
    questions: Sequence[str] | None = None,
    named_statistics: Sequence[str] | None = None,
    units: Sequence[str] | None = None,
    minimum_parties: int | None = None,
    minimum_threshold: int | None = None,
    required_parties: Sequence[str] | None = None,
    run_epsilon: float | None = None,
    approval: str | None = None,
    two_people: bool | None = None,
    declared_units: int | None = None,
    require_post_quantum: str | None = None,
    minimum_colluders: MinimumColluders | None = None,
    share_budget: bool | None = None,
    share_policy: bool | None = None,
    confirm: Confirm = lambda _cautions: None,
) -> PolicyFacts:
    """Changes the policy and signs it; None leaves a rule as it is.

    Args:
        questions: kinds of questions that are allowed (``statistics.QUESTIONS``). Of a kind of which a specialist has
            allowed a part, that part stays.
        named_statistics: those that are allowed, for a specialist; not beside ``questions``.
        run_epsilon: the most that one run may promise.
        required_parties: each ``NAME=FINGERPRINT``; an empty list takes back every one of before.
        minimum_colluders: "default" demands what a plan assumes by default for its number of parties.
        confirm: called with what the records speak against, where they do; may refuse.

    Raises ConfigurationError that names the rule.
    """
    opened = PartyHome(home)
    if questions is not None:
        named_statistics = _of_questions(questions, policy.read(opened).statistics)
    changes: dict[str, Any] = {
        "run_epsilon": run_epsilon,
        "required_parties": None
        if required_parties is None
        else tuple("=".join(named_party(each)) for each in required_parties),
        "statistics": None if named_statistics is None else _known(named_statistics),
        "units": None if units is None else tuple(units),
        "minimum_parties": minimum_parties,
        "minimum_threshold": minimum_threshold,
        "approval": approval,
        "two_people": two_people,
        "declared_units": declared_units,
        "require_post_quantum": require_post_quantum,
        "minimum_colluders": minimum_colluders,
    }
    _change(opened, {key: value for key, value in changes.items() if value is not None}, confirm)
    if share_budget is not None:
        opened.change(share_budget=share_budget)
    if share_policy is not None:
        opened.change(share_policy=share_policy)
    return show(home)


def colluders(stated: str) -> MinimumColluders:
    """The rule that a person wrote. Raises ConfigurationError for neither a whole number nor "default"."""
    text = stated.strip()
    if text == "default":
        return "default"
    if not text.isdecimal():
        raise ConfigurationError(f"the smallest number of colluders is {text!r}", 'write a whole number or "default"')
    return int(text)


def installed(home: Path) -> tuple[plugins.Installed, ...]:
    """The statistics that other packages declare here, with their source hashes. Imports none of them."""
    return plugins.installed(policy.read(PartyHome(home)))


def trust(home: Path, name: str, source: str) -> PolicyFacts:
    """Allows another package's statistic, while its installed source has that very hash.

    Args:
        source: SHA-256 (hex) that this party's people have read or been told; what is installed must have it.

    Raises ConfigurationError where no package declares it, or what is installed has another hash.
    """
    opened = PartyHome(home)
    allowed = policy.read(opened)
    here = {each.name: each for each in plugins.installed(allowed) if each.source}.get(name)
    if here is None:
        raise ConfigurationError(
            f"no installed package declares the statistic {name!r}",
            "install it beside this program; undersong-party policy plugins shows what there is",
        )
    if here.source != source:
        raise ConfigurationError(
            f"the statistic {name!r} of {here.package} has the source {here.source}, not {source}",
            "install the release whose hash you were told, or compare the hash once more",
        )
    _trust(opened, allowed, {**allowed.trusted, name: source})
    return show(home)


def distrust(home: Path, name: str) -> PolicyFacts:
    """Takes it back: every further run that asks for the statistic is refused. Raises ConfigurationError."""
    opened = PartyHome(home)
    allowed = policy.read(opened)
    left = {known: source for known, source in allowed.trusted.items() if known != name}
    if left == allowed.trusted:
        raise ConfigurationError(f"the statistic {name!r} is not trusted", "see undersong-party policy plugins")
    _trust(opened, allowed, left)
    return show(home)


def _trust(opened: PartyHome, allowed: policy.HospitalPolicy, trusted: Mapping[str, str]) -> None:
    policy.write(
        opened, replace(allowed, trusted_statistics=tuple(f"{name}={trusted[name]}" for name in sorted(trusted)))
    )


def _known(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in statistics.names():
            raise ConfigurationError(f"statistic {name!r} is unknown", f"known are {', '.join(statistics.names())}")
    return tuple(names)


def _of_questions(questions: Sequence[str], allowed: Sequence[str]) -> list[str]:
    unknown = sorted(set(questions) - {*statistics.QUESTIONS, "all"})
    if unknown:
        raise ConfigurationError(
            f"kind of question {unknown[0]!r} is unknown", f"choose among {', '.join(statistics.QUESTIONS)}, all"
        )
    found: list[str] = []
    for question in statistics.QUESTIONS if "all" in questions else dict.fromkeys(questions):
        every = statistics.of_question(question)
        found += [name for name in every if name in allowed] or every
    return found


def _change(opened: PartyHome, changes: Mapping[str, Any], confirm: Confirm) -> policy.HospitalPolicy:
    """Changes and signs the policy; where it makes consent standing, what depends on the records is looked at now."""
    wanted = replace(policy.read(opened), **changes)
    if wanted.approval == "standing" and opened.settings.data:
        confirm(cautions.of_standing_consent(wanted, datasets.load(opened).table, opened.settings.user_field))
    policy.write(opened, wanted)
    return wanted
