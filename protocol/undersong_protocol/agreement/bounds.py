"""A party's policy: public bounds on the plans that it accepts, which it may share with the coordinator's operator.

Both sides call :func:`check`: a party before it signs, and an operator who plans a run with a party that has shared its
bounds. No check reads a record.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from undersong_common.errors import PrivacyRefusal
from undersong_common.printable import counted
from undersong_protocol.agreement.enrolment import party_fingerprint
from undersong_protocol.agreement.plan import PLAN_ANEW, SOURCE, Plan, Privacy
from undersong_protocol.agreement.words import together
from undersong_protocol.limits import MinimumColluders, RequirePostQuantum
from undersong_protocol.secagg.parameters import Member, defaults

LONGEST_JSON = 16_384  # characters


@dataclass(frozen=True)
class Policy:
    """Bounds on the runs that a party accepts.

    Attributes:
        largest_epsilon: largest epsilon of one run; inf (no privacy at all) is for simulations only.
        largest_delta: largest delta of one run.
        minimum_parties: least number of parties, this one included, whose vectors every opened sum holds: a run whose
            sums open with fewer is refused, however many are on its list.
        statistics: names of the allowed statistics of this program; None allows every statistic that is registered
            here, other packages' too, and is for simulations only.
        units: accepted privacy units; None accepts all.
        declared_units: a public upper bound on the number of privacy units in the data set; a run whose delta is not
            below 1 / declared_units is refused. 0 declares nothing and refuses no run.
        required_parties: names and fingerprints of parties without which a run is refused.
        require_post_quantum: "always" refuses a run without post-quantum masks, of any size; "never" accepts it.
        minimum_colluders: a run that assumes fewer colluding parties is refused; "default" demands what a plan assumes
            by default for its number of parties (docs/secagg.md, "Manifest").
    """

    largest_epsilon: float
    largest_delta: float = 1e-3
    minimum_parties: int = 1
    statistics: frozenset[str] | None = None
    units: frozenset[str] | None = None
    declared_units: int = 0
    required_parties: tuple[tuple[str, str], ...] = ()
    require_post_quantum: RequirePostQuantum = "never"
    minimum_colluders: MinimumColluders = 0

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, with "inf" for infinity."""
        policy_json = asdict(self)
        for list_key in ("statistics", "units"):
            if policy_json[list_key] is not None:
                policy_json[list_key] = sorted(policy_json[list_key])
        policy_json["required_parties"] = [list(party) for party in self.required_parties]
        if math.isinf(self.largest_epsilon):
            policy_json["largest_epsilon"] = "inf"
        return policy_json

    @classmethod
    def from_json(cls, policy_json: Mapping[str, Any]) -> "Policy":
        """Reads what :meth:`to_json` returned. Raises ValueError for a malformed policy."""
        from pydantic import TypeAdapter  # only an operator reads a policy that another program wrote

        return TypeAdapter(cls).validate_python(policy_json)


def check_statistics(plan: Plan, policy: Policy) -> None:
    """Raises PrivacyRefusal if a plan names a statistic that the policy does not allow.

    A policy with a list of statistics is a hospital's, and allows no statistic of another package. Call this before any
    statistic of the plan is built.
    """
    for planned in plan.sums:
        if planned.source and (not isinstance(planned.source, str) or not SOURCE.fullmatch(planned.source)):
            raise PrivacyRefusal(
                f"{planned.name}: the hash of the statistic's source code is no SHA-256 in hexadecimal", PLAN_ANEW
            )
        if policy.statistics is None:
            continue
        if planned.source:
            raise PrivacyRefusal(
                f"{planned.name}: the statistic {planned.statistic!r} is another package's (source {planned.source}),"
                " and a hospital computes only statistics of its release of Undersong",
                "install a release of Undersong with that statistic, and have the run planned with it",
                code="foreign-statistic",
            )
        if planned.statistic not in policy.statistics:
            raise PrivacyRefusal(
                f"{planned.name}: the policy does not allow the statistic {planned.statistic!r}",
                "plan the run without it, or have this party's people allow that kind of question",
            )


def _absent_party(roster: Sequence[Member], policy: Policy) -> str:
    """Says which party the policy requires and the roster lacks, or has with another key; "" if it lacks none."""
    required_names = dict(policy.required_parties)
    fingerprints = {
        member.name: party_fingerprint(member.name, member.identity)
        for member in roster
        if member.name in required_names
    }
    for required_name, fingerprint in policy.required_parties:
        if fingerprints.get(required_name) == fingerprint:
            continue
        absence_words = "takes no part"
        if required_name in fingerprints:
            absence_words = f"has the fingerprint {fingerprints[required_name]}"
        return (
            f"the policy wants the party {required_name} with the fingerprint {fingerprint},"
            f" and {required_name} {absence_words}"
        )
    return ""


def _check_epsilon(privacy: Privacy, policy: Policy) -> None:
    """Raises PrivacyRefusal for more epsilon than the policy allows; the operator is not told how much it allows."""
    if privacy.epsilon > policy.largest_epsilon:
        epsilon_words = f"the run asks for epsilon {privacy.epsilon:g}"
        raise PrivacyRefusal(
            f"{epsilon_words}, the policy allows {policy.largest_epsilon:g}",
            "plan the run with a smaller epsilon (privacy.epsilon)",
            told=f"{epsilon_words}, more than the policy allows in one run",
        )


def _list_delta_checks(privacy: Privacy, policy: Policy) -> tuple[tuple[object, str, str], ...]:
    """Returns a row per bound on delta: a condition that is true if the bound is broken, the problem, the remedy."""
    return (
        (
            privacy.delta > policy.largest_delta,
            f"the run asks for delta {privacy.delta:g}, the policy allows {policy.largest_delta:g}",
            f"plan the run with privacy.delta = {policy.largest_delta:g}",
        ),
        (
            # A delta of 1/n or more would allow a mechanism that publishes one whole record.
            math.isfinite(privacy.epsilon) and privacy.delta * policy.declared_units >= 1,
            f"the run asks for delta {privacy.delta:g}, which is not below 1 / {policy.declared_units}, the number of"
            " privacy units that this party declares",
            f"plan the run with privacy.delta below {1 / max(policy.declared_units, 1):.3g}",
        ),
    )


def check(plan: Plan, roster: Sequence[Member], policy: Policy) -> None:
    """Raises PrivacyRefusal, which names the first broken bound, if a plan with these parties breaks the policy."""
    check_statistics(plan, policy)
    privacy = plan.privacy
    _check_epsilon(privacy, policy)
    quorum = plan.quorum
    absent_party = _absent_party(roster, policy)
    most_dropouts = quorum.parties - policy.minimum_parties  # the most with which enough parties are left
    if most_dropouts >= 0:
        dropouts_change = f"federation.tolerated_dropouts = {most_dropouts}"
    else:
        dropouts_change = "more parties"
    if policy.minimum_colluders == "default":
        least_colluders = defaults(quorum.parties)[2]
    else:
        least_colluders = policy.minimum_colluders
    if policy.units is None:
        allowed_units = None
    else:
        allowed_units = sorted(policy.units)
    bound_checks: tuple[tuple[object, str, str], ...] = (
        *_list_delta_checks(privacy, policy),
        (absent_party, absent_party, "plan the run with that party"),
        (
            quorum.fewest < policy.minimum_parties,
            f"a sum of the run may open with {counted(quorum.fewest, 'party', 'parties')} of {quorum.parties}, and this"
            f" party's numbers are to be {together(policy.minimum_parties - 1)}",
            f"plan the run with {dropouts_change}: {policy.minimum_parties} parties have to answer each sum",
        ),
        (
            quorum.colluders < least_colluders,
            f"the run assumes {counted(quorum.colluders, 'colluding party', 'colluding parties')}, the policy wants"
            f" {least_colluders}",
            f"plan the run with federation.colluders = {least_colluders} or more",
        ),
        (
            policy.require_post_quantum == "always" and not quorum.post_quantum,
            "the run's masks are not post-quantum: who records its messages could open them with a later quantum"
            " computer; the policy wants hybrid masks",
            "plan the run with federation.post_quantum = true",
        ),
        (
            allowed_units is not None and privacy.unit not in allowed_units,
            f"the run protects one {privacy.unit}, the policy wants one {' or one '.join(allowed_units or ())}",
            f"plan the run with privacy.unit = {' or '.join(allowed_units or ())}",
        ),
    )
    for is_broken, problem, remedy in bound_checks:
        if is_broken:
            raise PrivacyRefusal(problem, remedy)


WEAK_DELTA = 1e-3
FEW_PARTIES = 3  # With fewer parties, one can subtract its own part from the opened sum.


def weak_delta(delta: float) -> list[str]:
    """Returns a warning, as one sentence, if ``delta`` is so large that it promises little; else []."""
    if delta < WEAK_DELTA:
        return []
    return [
        f"delta {delta:g} allows anything to happen once in {round(1 / delta):,} times: take one far below"
        " 1 / (number of patients)"
    ]


def weak_plan(plan: Plan) -> list[str]:
    """Returns warnings about a plan for the operator who makes it, one sentence per weak choice."""
    if math.isfinite(plan.privacy.epsilon):
        warnings = weak_delta(plan.privacy.delta)
    else:
        warnings = []
    if plan.quorum.parties == 1:
        warnings.append("there is only one party: the sum that opens is its own")
    elif plan.quorum.parties < FEW_PARTIES:
        warnings.append("there are only two parties: each can subtract its own part from the opened sum")
    return warnings
