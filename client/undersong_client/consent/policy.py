"""The hospital's policy, whose file its identity key signs; whatever the policy does not name is refused."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from undersong_client.consent import policy_file
from undersong_client.home import PartyHome, WrittenByAnotherVersion
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_protocol.agreement import bounds, enrolment
from undersong_protocol.agreement.bounds import MinimumColluders, Policy, RequirePostQuantum
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.secagg.parameters import defaults

Approval = Literal["each", "standing"]
UNITS = ("sample", "user", "party")
MOST_DEFAULTS = 10  # parties; from four on, a plan assumes the same number of colluding ones


@dataclass(frozen=True)
class HospitalPolicy:
    """Limits that a hospital sets for every run. The defaults allow nothing: no coordinator, no epsilon.

    Attributes:
        coordinators: fingerprints of the trusted coordinators.
        statistics: names of the allowed statistics.
        units: accepted privacy units; only "user" protects a patient with several records.
        minimum_parties: least number of parties, this one included, with whose vectors a sum is opened; with 2, the
            one other party can subtract its own.
        run_epsilon: largest epsilon of one run.
        total_epsilon, total_delta: budget of the data set over all runs; a run's own delta may not be larger either.
        total_parts: number of parts into which that delta is divided (``undersong_common.privacy.spending``).
        two_people: True requires the approval of two people, a privacy officer and one for IT.
        declared_units: a public upper bound on the number of privacy units (patients) in the data set, which the
            operator reads; a run whose delta is not below 1 / declared_units is refused. 0 declares nothing.
        required_parties: ``NAME=FINGERPRINT`` of parties that must take part; a coordinator can invent any others.
        approval: "each" run waits for a person, or "standing": every run within these bounds is signed.
        require_post_quantum: "always" refuses runs without post-quantum masks, "never" accepts them.
        minimum_colluders: runs that assume fewer colluding parties are refused; "default": fewer than a plan assumes by
            default for its number of parties.
    """

    coordinators: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    units: tuple[str, ...] = UNITS
    minimum_parties: int = 2
    run_epsilon: float = 0.0
    total_epsilon: float = 0.0
    total_delta: float = 1e-5
    total_parts: int = 1
    approval: Approval = "each"
    two_people: bool = False
    declared_units: int = 0
    required_parties: tuple[str, ...] = ()
    require_post_quantum: RequirePostQuantum = "always"
    minimum_colluders: MinimumColluders = "default"

    @property
    def deciders(self) -> str:
        """People who have to approve a run, in words."""
        if self.approval == "standing":
            return "nobody: every run within the policy is signed by itself"
        return "two people: a privacy officer and one for IT" if self.two_people else "one person"

    def __post_init__(self) -> None:
        remedy = "see `undersong-party policy set --help` and `undersong-party budget set --help`"
        least, post_quantum = self.minimum_colluders, get_args(RequirePostQuantum)
        unknown = sorted(set(self.units) - set(UNITS))
        faults: tuple[tuple[object, str, str], ...] = (
            (
                any(math.isnan(value) or value < 0 for value in (self.run_epsilon, self.total_epsilon)),
                "an epsilon is below 0 or not a number",
                remedy,
            ),
            (
                self.run_epsilon > self.total_epsilon,
                f"epsilon {self.run_epsilon:g} a run is more than {self.total_epsilon:g} in all",
                "lower what one run may promise, or raise the budget",
            ),
            (not 0 < self.total_delta < 1, f"delta {self.total_delta:g} is not between 0 and 1", remedy),
            (self.total_parts < 1, f"a budget of {self.total_parts} parts", remedy),
            (
                self.minimum_parties < 1,
                "the smallest number of parties is 1",
                remedy,
            ),
            (
                type(self.declared_units) is not int or self.declared_units < 0,
                "the declared number of units is not a whole number of at least 0",
                remedy,
            ),
            (
                least != "default" and (type(least) is not int or least < 0),
                f"the smallest number of colluders is {least!r}",
                'write a number or "default"',
            ),
            (
                self.approval not in get_args(Approval),
                f"approval {self.approval!r} is unknown",
                'write "each" or "standing"',
            ),
            (
                self.two_people and self.approval == "standing",
                "two people are asked for, and standing approval asks nobody",
                "choose one of them",
            ),
            (
                self.require_post_quantum not in post_quantum,
                f"require_post_quantum {self.require_post_quantum!r} is unknown",
                f"choose among {', '.join(post_quantum)}",
            ),
            (unknown, f"unit {', '.join(unknown)!r} is unknown", f"choose among {', '.join(UNITS)}"),
        )
        ConfigurationError.raise_together((problem, help_) for is_wrong, problem, help_ in faults if is_wrong)
        for required in self.required_parties:
            enrolment.named_party(required)

    @property
    def has_budget(self) -> bool:
        return self.total_epsilon > 0

    @property
    def bounds(self) -> Policy:
        """Returns the bounds that are checked for every manifest."""
        return Policy(
            largest_epsilon=self.run_epsilon,
            largest_delta=self.total_delta,
            minimum_parties=self.minimum_parties,
            statistics=frozenset(self.statistics),
            units=frozenset(self.units),
            declared_units=self.declared_units,
            required_parties=tuple(enrolment.named_party(required) for required in self.required_parties),
            require_post_quantum=self.require_post_quantum,
            minimum_colluders=self.minimum_colluders,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, with "inf" for infinity."""
        value = asdict(self)
        for key in ("run_epsilon", "total_epsilon"):
            value[key] = "inf" if math.isinf(value[key]) else value[key]
        return {key: list(item) if isinstance(item, tuple) else item for key, item in value.items()}


def write(home: PartyHome, policy: HospitalPolicy) -> None:
    """Signs the policy and replaces its file."""
    policy_file.write_fields(home, policy.to_json())


def read(home: PartyHome) -> HospitalPolicy:
    """Reads the policy and checks its signature.

    Raises:
        PrivacyRefusal: the file was changed by hand, or signed by another key.
        ConfigurationError: the file is missing or damaged, or a value is out of range.
    """
    signed = policy_file.read_fields(home)
    try:
        fields: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in signed.items()}
        fields |= {key: float(fields[key]) for key in ("run_epsilon", "total_epsilon")}
        fields.pop(policy_file.FORMER_TRUST, None)
        if "minimum_threshold" in fields:  # 0.3.0 had two numbers; people were told the larger one
            fields["minimum_parties"] = max(fields["minimum_parties"], fields.pop("minimum_threshold"))
        return HospitalPolicy(**fields)
    except (TypeError, KeyError, ValueError):
        raise WrittenByAnotherVersion(
            f"{home.policy}: was written by another version", "set it again: undersong-party policy set"
        ) from None


# The rules that take names of what is allowed, and those that are stricter the larger or the smaller they are.
_ALLOWED = ("coordinators", "statistics", "units")
_STRICTER_IF_LARGER = ("minimum_parties", "declared_units")
_STRICTER_IF_SMALLER = ("run_epsilon", "total_epsilon", "total_delta")


def loosened(policy_before: HospitalPolicy, policy_after: HospitalPolicy) -> tuple[str, ...]:
    """Returns the rules that the change loosens, in words; () if every plan that was refused still is.

    A rule is loosened if any plan that was refused, or that waited for a person, could be signed after the change. It
    does not matter if another rule becomes stricter.
    """
    is_looser = {
        **{rule: bool({*getattr(policy_after, rule)} - {*getattr(policy_before, rule)}) for rule in _ALLOWED},
        **{rule: getattr(policy_after, rule) < getattr(policy_before, rule) for rule in _STRICTER_IF_LARGER},
        **{rule: getattr(policy_after, rule) > getattr(policy_before, rule) for rule in _STRICTER_IF_SMALLER},
        "required_parties": bool({*policy_before.required_parties} - {*policy_after.required_parties}),
        # More parts allow more runs; fewer leave a larger delta, and so a smaller epsilon, to the runs that were.
        "total_parts": policy_after.total_parts != policy_before.total_parts,
        "approval": policy_after.approval == "standing" and policy_before.approval != "standing",
        "two_people": policy_before.two_people and not policy_after.two_people,
        "require_post_quantum": policy_after.require_post_quantum != "always"
        and policy_before.require_post_quantum == "always",
        "minimum_colluders": _assumes_fewer(policy_after.minimum_colluders, policy_before.minimum_colluders),
    }
    return _change_words(policy_before, policy_after, [rule for rule, looser in is_looser.items() if looser])


def changed(policy_before: HospitalPolicy, policy_after: HospitalPolicy) -> tuple[str, ...]:
    """Returns every rule that differs, in words, with its value before and after."""
    old, new = policy_before.to_json(), policy_after.to_json()
    return _change_words(policy_before, policy_after, [rule for rule in old if old[rule] != new[rule]])


def _change_words(policy_before: HospitalPolicy, policy_after: HospitalPolicy, rules: Sequence[str]) -> tuple[str, ...]:
    """Returns the rules with their values before and after; who has to approve a run is one rule for the reader."""
    old, new = policy_before.to_json(), policy_after.to_json()
    changes = [
        f"who decides: {policy_before.deciders} -> {policy_after.deciders}"
        if rule in ("approval", "two_people")
        else f"{rule.replace('_', ' ')}: {_rule_words(old[rule])} -> {_rule_words(new[rule])}"
        for rule in rules
    ]
    return tuple(dict.fromkeys(changes))


def _assumes_fewer(rule_after: MinimumColluders, rule_before: MinimumColluders) -> bool:
    """True if some number of parties may assume fewer colluding ones after than before."""

    def least(rule: MinimumColluders, parties: int) -> int:
        return defaults(parties)[2] if rule == "default" else rule

    return any(least(rule_after, parties) < least(rule_before, parties) for parties in range(1, MOST_DEFAULTS + 1))


def _rule_words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def change(home: PartyHome, **changes: Any) -> HospitalPolicy:
    """Changes fields of the policy: reads the file, applies and checks the changes, signs and writes it."""
    policy = replace(read(home), **changes)
    write(home, policy)
    return policy


def review(
    manifest: Manifest,
    policy: Policy,
    *,
    name: str,
    identity: bytes,
    embedder: str,
    teacher_model: str = "",
) -> None:
    """Checks everything in a manifest that a party can check by itself, before the party signs.

    Args:
        policy: the party's bounds.
        name, identity: this party's name and Ed25519 public key, as the roster must list them.
        embedder: SHA-256 (hex) of this party's embedding model.
        teacher_model: this party's local model for fine-tuning; "" for no model.

    Raises:
        PrivacyRefusal: the manifest is wrong or exceeds a bound, which the error names.
        ConfigurationError: the party lacks something that the run needs.
    """
    bounds.check_statistics(manifest.plan, policy)
    manifest.plan.check_form()
    # The bounds come before ``verify``, which builds statistics and prices noise.
    bounds.check(manifest.plan, manifest.roster, policy)
    manifest.verify()
    matches = [member for member in manifest.roster if member.name == name]
    if not matches or matches[0].identity != identity:
        raise PrivacyRefusal("the manifest's roster does not hold this party's own name and key")
    if manifest.embedder != embedder:
        raise PrivacyRefusal(
            f"the run uses embedder {manifest.embedder[:16]}..., this party holds {embedder[:16]}...",
            "install the same embedding model everywhere",
        )
    for planned in manifest.plan.sums:  # last: it may load a model, which a refused run is not worth
        planned.build().check_party(teacher_model)
