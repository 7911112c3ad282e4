"""Signed evidence that one set of survivors was opened: kept with a release, checked by anybody afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from undersong_common.errors import PeerFault
from undersong_protocol.secagg import keys, sid
from undersong_protocol.secagg.messages import COORDINATOR, check_version, from_bitmap, split_blocks, to_bitmap
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.transitions import Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire


@dataclass(frozen=True)
class OpenedBy:
    """The facts that evidence proves: the survivors in the sum, their signers (names, roster order) and the question.

    ``question`` is q, the digest (32 bytes) of the public inputs that all of them were asked.
    """

    survivors: tuple[str, ...]
    signers: tuple[str, ...]
    question: bytes


def evidence_bytes(
    parameters: SumParameters,
    transcript: bytes,
    question: bytes,
    sharers: tuple[int, ...],
    survivors: tuple[int, ...],
    signatures: Mapping[int, bytes],
) -> bytes:
    """The signed step 3 statements of an opened sum, serialised."""
    size = parameters.size
    return wire.Evidence(
        version=sid.VERSION,
        sid=parameters.sid,
        transcript=transcript,
        question=question,
        sharers=to_bitmap(sharers, size),
        survivors=to_bitmap(survivors, size),
        signers=to_bitmap(signatures, size),
        signatures=b"".join(signature for _, signature in sorted(signatures.items())),
    ).SerializeToString(deterministic=True)


def check_evidence(parameters: SumParameters, evidence: bytes) -> OpenedBy:
    """Check every signature of an evidence. Raises PeerFault naming the coordinator or the false signer."""
    message = wire.Evidence()
    try:
        message.ParseFromString(evidence)
    except DecodeError:
        raise PeerFault(COORDINATOR, "the evidence is damaged", code="evidence-damaged") from None
    check_version(message.version, COORDINATOR)
    if message.sid != parameters.sid:
        raise PeerFault(COORDINATOR, "the evidence is of another private sum", code="evidence-of-another-sum")
    size = parameters.size
    survivors = from_bitmap(message.survivors, size, COORDINATOR, "the survivors")
    sharers = from_bitmap(message.sharers, size, COORDINATOR, "the sharers")
    signers = from_bitmap(message.signers, size, COORDINATOR, "the signers")
    if not set(signers) <= set(survivors) <= set(sharers):
        raise PeerFault(
            COORDINATOR,
            "the evidence has signers outside the survivors, or survivors that shared nothing",
            code="evidence-outside-survivors",
        )
    if len(survivors) < parameters.quorum or (not parameters.direct and len(signers) < parameters.threshold):
        raise PeerFault(COORDINATOR, "the evidence has too few survivors or signers", code="evidence-too-few")
    if len(message.question) != sid.DIGEST_BYTES:
        raise PeerFault(
            COORDINATOR, "the evidence does not say which question was asked", code="evidence-without-question"
        )
    body = sid.opened_set(message.transcript, message.question, message.sharers, message.survivors)
    signatures = split_blocks(message.signatures, keys.SIGNATURE_BYTES, len(signers), COORDINATOR, "signatures")
    for signer, signature in zip(signers, signatures, strict=True):
        member = parameters.roster[signer]
        keys.check_signature(
            member.identity,
            member.name,
            parameters.sid,
            Stage.CONSISTENCY,
            signer,
            body,
            signature,
            "its statement on the survivors",
        )
    return OpenedBy(
        tuple(map(parameters.name, survivors)), tuple(map(parameters.name, signers)), bytes(message.question)
    )
