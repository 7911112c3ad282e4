"""``policy.json``: the fields of the hospital's policy, signed by its identity key.

:mod:`undersong_client.consent.policy` says what the fields mean. This file imports little, so that `undersong-party
status` starts at once.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature

from undersong_client import keys
from undersong_client.home import PartyHome, read_json, write_json
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import PrivacyRefusal, UndersongError
from undersong_common.pages.store import FILE_NAME, AuditLog
from undersong_common.printable import printable, shell_path
from undersong_common.program.machine import named_faults

TAG = "undersong policy"
FORMER_TRUST = "trusted_statistics"  # Policies of 0.3 and earlier named statistics of other packages here.
# Words of the log's entry on a signed policy.
SIGNED, TWO_PEOPLE, ONE_PERSON = "policy signed", "two people", "one person"
REPLACEMENT_S = 0.2  # wait for a policy that was noted in the log and whose file is being replaced
LONGEST_NAMES = 300  # characters of the names that one sentence lists


@dataclass(frozen=True)
class SignedPolicy:
    """The entry of the page's log about the policy that was signed last.

    Attributes:
        digest: hash (hex) of its fields.
        two_people: True if it asks for two people.
        entry: hash (hex) of the entry.
    """

    digest: str
    two_people: bool
    entry: str


def last_signed(home: PartyHome) -> SignedPolicy | None:
    """Returns the log's entry on the last signed policy; None if no policy ever asked for two people.

    It reads the end of the log alone. Whoever decides by the rule of two checks the log's whole chain
    (``consent.two_people``).
    """
    path = home.page / FILE_NAME
    if not path.exists():
        return None
    with named_faults(path):
        log_bytes = path.read_bytes()
    entry_start = (
        log_bytes.rfind(b"\n", 0, max(0, log_bytes.rfind(f'"what":"{SIGNED}"'.encode(), 0, log_bytes.rfind(b"\n") + 1)))
        + 1
    )
    try:
        log_entry = json.loads(log_bytes[entry_start : log_bytes.find(b"\n", entry_start) + 1])
        digest, _, decider_words = log_entry["about"].partition(", ")
        if log_entry["what"] == SIGNED:
            return SignedPolicy(digest, decider_words == TWO_PEOPLE, str(log_entry["hash"]))
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # The log has no such entry, or is damaged, which the check of its chain finds.


def digest_of(fields: Mapping[str, Any]) -> str:
    return tagged_hash(f"{TAG} digest", canonical_json(fields)).hex()


def write_fields(home: PartyHome, fields: Mapping[str, Any]) -> None:
    """Signs the fields and replaces the file.

    Once a policy has asked for two people, the log notes every later policy, so that no older file passes for it.
    """
    signature = keys.identity(home).sign(tagged_hash(TAG, canonical_json(fields)))
    former_fields = None
    if home.policy.exists():
        former_fields = read_json(home.policy).get("policy")
    is_noted = bool(fields.get("two_people")) or last_signed(home) is not None
    if is_noted:
        _note_signed(home, fields)
    try:
        write_json(home.policy, {"policy": fields, "signature": signature.hex()})
    except UndersongError:
        if is_noted and isinstance(former_fields, dict):
            _note_signed(home, former_fields)
        raise


def _note_signed(home: PartyHome, fields: Mapping[str, Any]) -> None:
    last_entry = last_signed(home)
    digest = digest_of(fields)
    if last_entry is None or last_entry.digest != digest:
        decider_words = TWO_PEOPLE if fields.get("two_people") else ONE_PERSON
        AuditLog(home.page / FILE_NAME).note("policy", SIGNED, f"{digest}, {decider_words}")


def is_latest(home: PartyHome, fields: Mapping[str, Any]) -> bool:
    """Returns False for fields that were signed before others, as those of a file that was put back."""
    last_entry = last_signed(home)
    return last_entry is None or last_entry.digest == digest_of(fields)


def read_fields(home: PartyHome, *, latest: bool = True) -> dict[str, Any]:
    """Reads the fields as they were signed.

    Args:
        latest: False accepts an older policy that was put back.

    Raises:
        PrivacyRefusal: the file was changed by hand, signed by another key, or is an older one that was put back.
        ConfigurationError: the file is missing or damaged.
    """
    policy_fields = _verified_fields(home)
    if latest and not is_latest(home, policy_fields):
        time.sleep(REPLACEMENT_S)  # A policy is noted a moment before its file is replaced.
        policy_fields = _verified_fields(home)
        if not is_latest(home, policy_fields):
            raise PrivacyRefusal(
                f"{home.policy}: is not the policy that was signed last",
                "put back the file of that one; or have the policy set again, by two people where it asked for two:"
                " `undersong-party policy set`",
                code="policy-put-back",
            )
    return policy_fields


def _verified_fields(home: PartyHome) -> dict[str, Any]:
    policy_json = read_json(home.policy)
    policy_fields = policy_json.get("policy")
    try:
        signature = bytes.fromhex(policy_json["signature"])
        keys.identity(home).public_key().verify(signature, tagged_hash(TAG, canonical_json(policy_fields)))
    except (KeyError, TypeError, ValueError, InvalidSignature):
        raise PrivacyRefusal(
            f"{home.policy}: is not signed by this party's key",
            "put back the file of the last backup; without one, go on in a new folder: `undersong-party enroll PACKAGE"
            f" --home NEW`, then `undersong-party data add FILE --restore-ledger {shell_path(home.ledger)} --home NEW`."
            " Only `undersong-party policy set` and `budget set` may change it",
            code="policy-not-signed",
        ) from None
    return policy_fields if isinstance(policy_fields, dict) else {}


def note_first(home: PartyHome) -> None:
    """Notes a policy for two people that an earlier version has signed and not noted in the log."""
    policy_fields = read_fields(home)
    if policy_fields.get("two_people") and last_signed(home) is None:
        _note_signed(home, policy_fields)


def former_trust(home: PartyHome) -> str:
    """Returns a sentence that names the statistics of other packages that the policy trusts; "" without such trust.

    An earlier release let a hospital trust such a statistic by its source's hash and signed the trust with the policy.
    The signed bytes stay as they are until somebody sets the policy again. Returns "" for a file that cannot be read,
    too: :func:`read_fields` says what is wrong with it.
    """
    try:
        trusted_statistics = read_fields(home).get(FORMER_TRUST) or ()
    except UndersongError:
        return ""
    if not trusted_statistics:
        return ""
    statistic_names = ", ".join(statistic.partition("=")[0] for statistic in trusted_statistics)
    return (
        f"the policy trusts statistics of other packages ({printable(statistic_names, LONGEST_NAMES)}). A hospital"
        " computes only"
        " statistics of its release of Undersong: the trust has no effect, and runs that ask for them are refused until"
        " a release has them. The next `undersong-party policy set` removes the trust"
    )
