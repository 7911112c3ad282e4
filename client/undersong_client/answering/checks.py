"""Checks of a request that need nothing but their arguments; each raises for a request that is not answered.

A coordinator's *epoch* is a number that rises when another process takes over from the one before.
"""

from undersong_client.storage.attempts import Attempt
from undersong_common.errors import ConfigurationError, PrivacyRefusal, TransportError
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.secagg.party import Reply, WantsInput
from undersong_protocol.wire.public import Input

EPOCH_AHEAD_S = 86400  # seconds by which an epoch may lie ahead of this party's clock


def check_epoch_clock(epoch: int, now_s: float) -> None:
    """Raises TransportError for an epoch that is more than a day ahead of this party's clock.

    Otherwise one forged request would shut out the coordinator for good, whose own epochs are never so far ahead.
    """
    if epoch > int(now_s) + EPOCH_AHEAD_S:
        raise TransportError(
            f"epoch {epoch} lies more than a day ahead of this machine's clock, {int(now_s)}",
            "correct the clock that is wrong, at the coordinator or here",
            code="epoch-ahead",
        )


def check_epoch_order(epoch: int, highest_epoch: int) -> None:
    """Raises ConfigurationError for a coordinator's epoch below the highest one that was heard."""
    if epoch < highest_epoch:
        raise ConfigurationError(
            f"this request is of a coordinator that was replaced: epoch {epoch}, and {highest_epoch} was heard",
            "stop that process; the one that took over goes on",
            code="lower-epoch",
        )


def check_one_manifest(manifest: Manifest, signed_hash: bytes | None) -> None:
    """Raises PrivacyRefusal if another manifest was signed under the run's name; None means that none was."""
    if signed_hash is not None and signed_hash != manifest.hash:
        # The same run over another roster could isolate one party's contribution by subtraction.
        raise PrivacyRefusal(f"run {manifest.run!r} has another manifest already", "start a new run under a new name")


def check_signed(manifest: Manifest, signed_hash: bytes | None) -> None:
    """Raises PrivacyRefusal unless this party has signed the manifest itself."""
    if signed_hash != manifest.hash:
        raise PrivacyRefusal(
            f"this party has not signed the manifest of run {manifest.run!r} that it shall agree to",
            "propose that manifest first",
        )


def check_agreed(manifest: Manifest | None) -> Manifest:
    """Returns the agreed manifest. Raises PrivacyRefusal if there is none."""
    if manifest is None:
        raise PrivacyRefusal(
            "the request names a manifest that was not agreed on here", "agree on the manifest before asking for a sum"
        )
    return manifest


def check_same_question(sum_name: str, question: bytes, first_question: bytes | None) -> None:
    """Raises PrivacyRefusal if a sum is asked another question than at first; None means that it was not asked yet."""
    if first_question is not None and first_question != question:
        raise PrivacyRefusal(
            f"{sum_name}: its public inputs are not those with which it was first asked",
            "a sum asks one question, in repeated and spare attempts too; plan another sum for another question",
            code="other-question",
        )


def check_opened(attempt: Attempt | None, sum_name: str, attempt_number: int) -> Attempt:
    """Returns the attempt. Raises PrivacyRefusal if it was never opened here, or is gone."""
    if attempt is None:
        raise PrivacyRefusal(
            f"{sum_name}: attempt {attempt_number} was never opened at this party, or its keys are gone for good",
            "begin a new attempt",
        )
    return attempt


def check_inputs_named(attempt: Attempt) -> tuple[Input, ...]:
    """Returns the references to the attempt's public inputs. Raises PrivacyRefusal if they were never named."""
    if attempt.inputs is None:
        raise PrivacyRefusal(
            f"{attempt.query}: a vector is asked for before its public inputs were named",
            "open the sum with them first",
        )
    return attempt.inputs


def check_first_stage(step: Reply | WantsInput) -> Reply:
    """Returns the reply. Raises PrivacyRefusal if the request was one that asks for the vector."""
    if isinstance(step, WantsInput):
        raise PrivacyRefusal(
            "the coordinator's first request of a private sum asks for a vector", "start a new attempt"
        )
    return step
