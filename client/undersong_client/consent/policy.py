"""The hospital's policy, whose file its identity key signs; whatever the policy does not name is refused."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from undersong_client.consent import policy_file
from undersong_client.consent.rules import PolicyRules, decider_words, rules_of
from undersong_client.home import PartyHome, WrittenByAnotherVersion
from undersong_common.errors import PrivacyRefusal
from undersong_common.privacy import impact
from undersong_protocol.agreement import bounds, enrolment
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.agreement.manifest import Manifest


@dataclass(frozen=True)
class HospitalPolicy(PolicyRules):
    """The rules of a hospital's policy, in force for its runs; :class:`PolicyRules` states each of them."""

    @property
    def deciders(self) -> str:
        """People who have to approve a run, in words."""
        return decider_words(is_standing=self.approval == "standing", two_people=self.two_people)

    @property
    def has_budget(self) -> bool:
        return self.total_epsilon > 0

    @property
    def whole_budget(self) -> str:
        """Sentence on what the budget protects once runs of Gaussian sums have used it up."""
        return impact.whole_budget_of(self.total_epsilon, self.total_delta)

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
            required_parties=tuple(enrolment.named_party(party_entry) for party_entry in self.required_parties),
            require_post_quantum=self.require_post_quantum,
            minimum_colluders=self.minimum_colluders,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, with "inf" for infinity."""
        policy_fields = asdict(self)
        for epsilon_field in ("run_epsilon", "total_epsilon"):
            if math.isinf(policy_fields[epsilon_field]):
                policy_fields[epsilon_field] = "inf"
        return {
            field_name: list(field_value) if isinstance(field_value, tuple) else field_value
            for field_name, field_value in policy_fields.items()
        }


def write(home: PartyHome, policy: HospitalPolicy) -> None:
    """Signs the policy and replaces its file."""
    policy_file.write_fields(home, policy.to_json())


def read(home: PartyHome, *, latest: bool = True) -> HospitalPolicy:
    """Reads the policy and checks its signature.

    Args:
        latest: False accepts an older policy that was put back, so that another one can be set.

    Raises:
        PrivacyRefusal: the file was changed by hand, signed by another key, or is an older one that was put back.
        ConfigurationError: the file is missing or damaged, or a value is out of range.
    """
    signed_fields = policy_file.read_fields(home, latest=latest)
    try:
        policy_fields: dict[str, Any] = {
            field_name: tuple(field_value) if isinstance(field_value, list) else field_value
            for field_name, field_value in signed_fields.items()
        }
        policy_fields |= {key: float(policy_fields[key]) for key in ("run_epsilon", "total_epsilon")}
        policy_fields.pop(policy_file.FORMER_TRUST, None)
        if "minimum_threshold" in policy_fields:  # 0.3.0 had two numbers; people were told the larger one
            policy_fields["minimum_parties"] = max(
                policy_fields["minimum_parties"], policy_fields.pop("minimum_threshold")
            )
        return HospitalPolicy(**policy_fields)
    except (TypeError, KeyError, ValueError):
        raise WrittenByAnotherVersion(
            f"{home.policy}: was written by another version", "set it again: undersong-party policy set"
        ) from None


def loosened(policy_before: HospitalPolicy, policy_after: HospitalPolicy) -> tuple[str, ...]:
    """Returns the rules that the change loosens, in words; () if every plan that was refused is still refused.

    A rule is loosened if any plan that was refused, or that waited for a person, could be signed after the change. It
    does not matter if another rule becomes stricter.
    """
    looser_rules = [
        rule_name
        for rule_name, rule in rules_of(type(policy_after)).items()
        if rule.is_looser(getattr(policy_before, rule_name), getattr(policy_after, rule_name))
    ]
    return _change_words(policy_before, policy_after, looser_rules)


def changed(policy_before: HospitalPolicy, policy_after: HospitalPolicy) -> tuple[str, ...]:
    """Returns every rule that differs, in words, with its value before and after."""
    old_fields = policy_before.to_json()
    new_fields = policy_after.to_json()
    return _change_words(
        policy_before,
        policy_after,
        [rule_name for rule_name in old_fields if old_fields[rule_name] != new_fields[rule_name]],
    )


def _change_words(
    policy_before: HospitalPolicy, policy_after: HospitalPolicy, rule_names: Sequence[str]
) -> tuple[str, ...]:
    """Returns the rules with their values before and after; who has to approve a run is one rule for the reader."""
    old_fields = policy_before.to_json()
    new_fields = policy_after.to_json()
    change_words = [
        f"who decides: {policy_before.deciders} -> {policy_after.deciders}"
        if rule_name in ("approval", "two_people")
        else f"{rule_name.replace('_', ' ')}: {_rule_words(old_fields[rule_name])}"
        f" -> {_rule_words(new_fields[rule_name])}"
        for rule_name in rule_names
    ]
    return tuple(dict.fromkeys(change_words))


def _rule_words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def change(home: PartyHome, **changes: Any) -> HospitalPolicy:
    """Changes fields of the policy: reads the file, applies and checks the changes, signs and writes it."""
    changed_policy = replace(read(home), **changes)
    write(home, changed_policy)
    return changed_policy


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
    # The bounds come before ``verify``, which takes longer: it builds statistics and prices noise.
    bounds.check(manifest.plan, manifest.roster, policy)
    manifest.verify()
    own_members = [member for member in manifest.roster if member.name == name]
    if not own_members or own_members[0].identity != identity:
        raise PrivacyRefusal(
            "the manifest's roster does not hold this party's own name and key",
            "have the operator plan the run with the party as it has enrolled",
        )
    if manifest.embedder != embedder:
        raise PrivacyRefusal(
            f"the run uses embedder {manifest.embedder[:16]}..., this party holds {embedder[:16]}...",
            "install the same embedding model everywhere",
        )
    for planned_sum in manifest.plan.sums:  # This comes last, because it may load a model.
        planned_sum.build().check_party(teacher_model)
