"""``policy.json``: the fields of the hospital's policy, signed by its identity key.

:mod:`undersong_client.consent.policy` says what the fields mean. This file imports little, so that `undersong-party
status` starts at once.
"""

from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature

from undersong_client import keys
from undersong_client.home import PartyHome, read_json, write_json
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import PrivacyRefusal, UndersongError
from undersong_common.printable import printable, shell_path

TAG = "undersong policy"
FORMER_TRUST = "trusted_statistics"  # Policies of 0.3 and earlier named statistics of other packages here.
LONGEST_NAMES = 300  # characters of the names that one sentence lists


def write_fields(home: PartyHome, fields: Mapping[str, Any]) -> None:
    """Signs the fields and replaces the file."""
    signature = keys.identity(home).sign(tagged_hash(TAG, canonical_json(fields)))
    write_json(home.policy, {"policy": fields, "signature": signature.hex()})


def read_fields(home: PartyHome) -> dict[str, Any]:
    """Reads the fields as they were signed.

    Raises:
        PrivacyRefusal: the file was changed by hand, or signed by another key.
        ConfigurationError: the file is missing or damaged.
    """
    value = read_json(home.policy)
    fields = value.get("policy")
    try:
        signature = bytes.fromhex(value["signature"])
        keys.identity(home).public_key().verify(signature, tagged_hash(TAG, canonical_json(fields)))
    except (KeyError, TypeError, ValueError, InvalidSignature):
        raise PrivacyRefusal(
            f"{home.policy}: is not signed by this party's key",
            "put back the file of the last backup; without one, go on in a new folder: `undersong-party enroll PACKAGE"
            f" --home NEW`, then `undersong-party data add FILE --restore-ledger {shell_path(home.ledger)} --home NEW`."
            " Only `undersong-party policy set` and `budget set` may change it",
            code="policy-not-signed",
        ) from None
    return fields if isinstance(fields, dict) else {}


def former_trust(home: PartyHome) -> str:
    """Returns a sentence that names the statistics of other packages that the policy trusts; "" without such trust.

    An earlier release let a hospital trust such a statistic by its source's hash and signed the trust with the policy.
    The signed bytes stay as they are until somebody sets the policy again. Returns "" for a file that cannot be read,
    too: :func:`read_fields` says what is wrong with it.
    """
    try:
        trusted = read_fields(home).get(FORMER_TRUST) or ()
    except UndersongError:
        return ""
    if not trusted:
        return ""
    names = ", ".join(statistic.partition("=")[0] for statistic in trusted)
    return (
        f"the policy trusts statistics of other packages ({printable(names, LONGEST_NAMES)}). A hospital computes only"
        " statistics of its release of Undersong: the trust has no effect, and runs that ask for them are refused until"
        " a release has them. The next `undersong-party policy set` removes the trust"
    )
