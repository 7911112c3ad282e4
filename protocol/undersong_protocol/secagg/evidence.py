"""Signed evidence that a sum of certain survivors was opened, and void certificates: an attempt can never be opened.

Evidence of an opened sum is kept with a release, so that anybody can check it later. After a void certificate the sum
is attempted again at no cost in the plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from undersong_common.errors import PeerFault, PrivacyRefusal, UndersongError
from undersong_common.printable import counted
from undersong_protocol.secagg import keys, sid
from undersong_protocol.secagg.messages import (
    COORDINATOR,
    check_version,
    from_bitmap,
    parse_reply,
    split_blocks,
    to_bitmap,
)
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.transitions import Stage
from undersong_protocol.wire.codec import parsed
from undersong_protocol.wire.messages import secagg_pb2 as wire


@dataclass(frozen=True)
class OpenedBy:
    """Facts that the evidence of an opened sum proves.

    Attributes:
        survivors: names of the parties whose vectors are in the sum, in roster order.
        signers: names of the parties that signed, in roster order.
        question: q, the digest (32 bytes) of the public inputs that all of them answered.
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
    """Serialises the statements on the survivors (step 3) that parties signed, as evidence of an opened sum.

    Args:
        sharers, survivors: roster indices of the parties that shared keys and of those in the sum.
        signatures: Ed25519 signature (64 bytes) by roster index.
    """
    party_count = parameters.size
    return wire.Evidence(
        version=sid.VERSION,
        sid=parameters.sid,
        transcript=transcript,
        question=question,
        sharers=to_bitmap(sharers, party_count),
        survivors=to_bitmap(survivors, party_count),
        signers=to_bitmap(signatures, party_count),
        signatures=b"".join(signature for _, signature in sorted(signatures.items())),
    ).SerializeToString(deterministic=True)


def check_evidence(parameters: SumParameters, evidence: bytes) -> OpenedBy:
    """Checks every signature of an opened sum's evidence and returns what it proves.

    Raises PeerFault that names the coordinator for malformed evidence, or the party whose signature is false.
    """
    message = parsed(wire.Evidence, evidence, COORDINATOR, "the evidence is damaged", code="evidence-damaged")
    check_version(message.version, COORDINATOR)
    if message.sid != parameters.sid:
        raise PeerFault(COORDINATOR, "the evidence is of another private sum", code="evidence-of-another-sum")
    party_count = parameters.size
    survivors = from_bitmap(message.survivors, party_count, COORDINATOR, "the survivors")
    sharers = from_bitmap(message.sharers, party_count, COORDINATOR, "the sharers")
    signers = from_bitmap(message.signers, party_count, COORDINATOR, "the signers")
    if not set(signers) <= set(survivors) <= set(sharers):
        raise PeerFault(
            COORDINATOR,
            "the evidence has signers that are no survivors, or survivors that shared no keys",
            code="evidence-outside-survivors",
        )
    least_signers = 0 if parameters.direct else parameters.threshold
    if len(survivors) < parameters.quorum or len(signers) < least_signers:
        raise PeerFault(
            COORDINATOR,
            f"the evidence has {len(survivors)} survivors and {len(signers)} signers, {parameters.quorum} and"
            f" {least_signers} are needed",
            code="evidence-too-few",
        )
    if len(message.question) != sid.DIGEST_BYTES:
        raise PeerFault(
            COORDINATOR, "the evidence does not say which question was asked", code="evidence-without-question"
        )
    statement_body = sid.opened_set(message.transcript, message.question, message.sharers, message.survivors)
    signatures = split_blocks(message.signatures, keys.SIGNATURE_BYTES, len(signers), COORDINATOR, "signatures")
    for signer, signature in zip(signers, signatures, strict=True):
        member = parameters.roster[signer]
        keys.check_signature(
            member.identity,
            member.name,
            parameters.sid,
            Stage.CONSISTENCY,
            signer,
            statement_body,
            signature,
            "its statement on the survivors",
        )
    return OpenedBy(
        tuple(map(parameters.name, survivors)), tuple(map(parameters.name, signers)), bytes(message.question)
    )


def statements_needed(parameters: SumParameters) -> int:
    """Returns the number of parties that must sign a void certificate (docs/secagg.md, "Void attempts").

    Each signs that it released nothing. The number m is above n - T + c: then even if c of them lie, fewer than T
    parties can have released shares; in direct mode at least one honest vector was never sent. On the k-regular graph
    a threshold T' counts neighbours. There, all shares that can have been released must also be fewer than it takes to
    open the sum, which has at least n - D parties: (n - m + c) k < (n - D) T'. On the Merkle graph only the n - D - c -
    ``stray`` honest parties count that are in every sum, and a party holds shares of at most ``choosers`` others.
    """
    n = parameters.size
    c = parameters.colluders
    required_statements = n - parameters.threshold + c + 1
    if parameters.graph is not None and not parameters.direct:
        counted_survivors = parameters.quorum
        shares_per_party = parameters.graph.degree
        if parameters.merkle:
            counted_survivors -= c + parameters.draw.stray
            shares_per_party = parameters.draw.choosers
        releasing_parties = (counted_survivors * parameters.graph.threshold - 1) // shares_per_party
        required_statements = max(required_statements, n + c - releasing_parties)
    return required_statements


def check_void_certificate(parameters: SumParameters, statements: Mapping[str, bytes]) -> None:
    """Raises PrivacyRefusal unless enough parties signed valid statements that they released nothing in this attempt.

    Args:
        statements: payload of each party's reply, by name.
    """
    signed_count = 0
    problems: list[str] = []
    for name, payload in statements.items():
        try:
            statement_body = parse_reply(parameters, name, payload, Stage.VOID).body
        except UndersongError as error:
            problems.append(str(error.args[0]).splitlines()[0])
            continue
        signed_count += not statement_body
    required_statements = statements_needed(parameters)
    if signed_count < required_statements:
        signing_words = counted(signed_count, "party signs", "parties sign")
        raise PrivacyRefusal(
            f"{signing_words} that they released no share, {required_statements} are needed to call the attempt void"
            + "".join(f"; {problem}" for problem in problems),
            "use one of the plan's spare attempts, or stop the run",
            code="not-void",
        )


def is_void(parameters: SumParameters, statements: Mapping[str, bytes]) -> bool:
    """Returns True if ``statements`` prove that this attempt can never be opened (:func:`check_void_certificate`)."""
    try:
        check_void_certificate(parameters, statements)
    except PrivacyRefusal:
        return False
    return True
