"""Warnings (cautions) about a run that depend on a party's records, for its own people; no reply contains them.

Replies must not depend on the records (docs/privacy.md, Non-interference), so a warning is not a refusal. A person
reads the warnings before approving. With standing consent they are shown when it is given, and later in log and status.
"""

import math
from collections.abc import Sequence
from typing import NoReturn

from undersong_client.consent.policy import HospitalPolicy
from undersong_client.home import unit_word
from undersong_client.records.private import DataSet, PrivateRecords, unit_count
from undersong_common.errors import InternalError
from undersong_common.printable import printable, that_hold
from undersong_common.text.table import Table
from undersong_protocol.agreement.bounds import FEW_PARTIES, weak_delta
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy
from undersong_protocol.agreement.words import by_policy, opened_numbers

EMPTY = "the data set has no record: this party would answer with zeros"


def of_plan(manifest: Manifest, policy: HospitalPolicy) -> list[str]:
    """Returns warnings about weak choices in a plan and in a policy; they do not depend on the records."""
    plan_privacy = manifest.plan.privacy
    party_count = len(manifest.roster)
    fewest_parties = manifest.plan.quorum.fewest
    few_cautions = that_hold(
        (party_count == 1, "you are the only party: the sum that opens is your own"),
        (
            party_count > 1 and fewest_parties < FEW_PARTIES,
            opened_numbers(fewest_parties - 1),
        ),
    )
    return [
        *(weak_delta(plan_privacy.delta) if math.isfinite(plan_privacy.epsilon) else ()),
        *few_cautions,
        *weak_policy(policy),
    ]


def weak_policy(policy: HospitalPolicy) -> list[str]:
    """Returns warnings about weak choices in a policy, one sentence each."""
    return that_hold(
        (
            policy.approval == "standing",
            "consent is standing: every run within the policy is signed without anybody looking at it",
        ),
        (
            policy.minimum_parties < FEW_PARTIES,
            by_policy(policy.minimum_parties - 1),
        ),
        (
            policy.require_post_quantum == "never",
            "the policy accepts runs whose masks are not post-quantum: who records their messages could open them with"
            " a later quantum computer",
        ),
    )


def of_manifest(manifest: Manifest, data: DataSet, user_is: str = "") -> list[str]:
    """Returns warnings about a run of this manifest with this data set; ``user_is`` is the word for one user."""
    plan_privacy = manifest.plan.privacy
    private_records = PrivateRecords(data.table, manifest.labels, plan_privacy, key=data.key, embed=_refuse_embedding)
    return [
        *of_run(plan_privacy, private_records, has_users=data.table.users is not None, user_is=user_is),
        *(
            f"the run asks for {printable(column_name)!r}, and no column of the data set stands for it: it would"
            " count as missing in every record"
            for column_name in manifest.task.get("columns", ())
            if column_name not in data.table.columns
        ),
    ]


def of_run(privacy: Privacy, records: PrivateRecords, *, has_users: bool, user_is: str = "") -> list[str]:
    """Returns warnings about a run with these records, as sentences for the party's own people.

    Args:
        privacy: the run's privacy guarantee.
        records: the records that would take part.
        has_users: True if the data set has a column of user ids.
        user_is: this data set's word for one user, such as "resident"; "" takes the default word.
    """
    lacks_users = privacy.unit == "user" and not has_users
    delta = privacy.delta if math.isfinite(privacy.epsilon) else 0.0
    return that_hold(
        (
            lacks_users,
            f"the run protects {unit_word('user', user_is, 2)}, and the data set has no column that names them: no"
            " record would take part",
        ),
        (not lacks_users and not len(records), EMPTY),
        *((True, sentence) for sentence in _delta_warnings(delta, privacy.unit, records.unit_count, user_is)),
        (
            records.unlisted_labels,
            f"{records.unlisted_labels} of {len(records)} records have a label that the task does not list: they would"
            " count as records without label, which no question by label counts",
        ),
    )


def of_standing_consent(policy: HospitalPolicy, table: Table, user_is: str = "") -> list[str]:
    """Returns warnings about standing consent with this policy and data set."""
    warnings = [] if len(table) else [EMPTY]
    for privacy_unit in ("sample", "user"):
        if privacy_unit in policy.units:
            unit_total = unit_count(table, privacy_unit)
            # The policy refuses a run whose delta is not below 1 / declared_units. So delta needs a warning only where
            # the data set has more units than the policy declares.
            if not unit_total <= policy.declared_units:
                warnings += _delta_warnings(policy.total_delta, privacy_unit, unit_total, user_is)
            if 0 < policy.declared_units < unit_total:
                warnings.append(
                    f"the policy declares at most {policy.declared_units} privacy units, the data set has"
                    f" {unit_total}"
                    f" {unit_word(privacy_unit, user_is, unit_total)}"
                )
    return warnings


def _refuse_embedding(_texts: Sequence[str]) -> NoReturn:
    raise InternalError("a warning about records has asked for their embeddings, which it does not need")


def _delta_warnings(delta: float, unit: str, unit_total: int, user_is: str) -> list[str]:
    if unit == "party" or delta * unit_total < 1:
        return []
    return [
        f"delta {delta:g} is not below 1 / {unit_total}, one over the number of {unit_word(unit, user_is, 2)} here: a"
        " mechanism that publishes a whole record now and then would be allowed"
    ]
