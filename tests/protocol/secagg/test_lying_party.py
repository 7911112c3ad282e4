"""Every misbehaviour of a party, against the real coordinator: named, and either survived or a clean abort."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.doubles.coded import raises
from tests.doubles.secagg import (
    QUESTION,
    drive,
    enrolled_key,
    entropy_of,
    expected_sum,
    expected_variance,
    names_of,
    open_parties,
    open_party,
    parameters_of,
    resign,
    secrets_of,
)
from undersong_common.errors import PeerFault, UndersongError
from undersong_protocol.secagg import keys, shamir, sid
from undersong_protocol.secagg.coordinator import SumAborted, UnmaskedSum
from undersong_protocol.secagg.evidence import check_evidence
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.transitions import Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire

pytestmark = pytest.mark.usefixtures("both_kinds_of_masks")

LIAR = "p04"
Bend = Callable[[wire.Reply], object]


def play_liar(
    parameters: SumParameters,
    stage: Stage,
    bend: Bend,
    sign: bool = True,
    lost: tuple[str, ...] = (),
    refusals: dict[str, UndersongError] | None = None,
) -> UnmaskedSum:
    """Bend the liar's reply of one stage and, being the liar, sign it; ``lost`` parties' vectors do not arrive."""

    def lie(name: str, reply: wire.Reply) -> None:
        if name == LIAR and reply.stage == stage:
            bend(reply)
            if sign:
                resign(parameters, reply)

    return drive(
        parameters,
        open_parties(parameters),
        lambda name, at: name in lost and at is Stage.MASK,
        refusals={} if refusals is None else refusals,
        bend_reply=lie,
    )


def check_left_out(parameters: SumParameters, stage: Stage, bend: Bend, words: str, sign: bool = True) -> None:
    """The liar is named and left out; the others' sum is exact."""
    opened = play_liar(parameters, stage, bend, sign)
    with pytest.raises(PeerFault, match=words):
        raise opened.faults[0]
    assert [fault.party for fault in opened.faults] == [LIAR]
    in_sum = stage in (Stage.CONSISTENCY, Stage.UNMASK)
    survivors = [name for name in names_of(parameters.size) if in_sum or name != LIAR]
    assert list(opened.survivors) == survivors
    unopened = [LIAR] if in_sum else []
    np.testing.assert_array_equal(opened.values, expected_sum(parameters, survivors, unopened))


def _sum(**changes: object) -> SumParameters:
    return parameters_of(10, tolerated_dropouts=2, sigma=400.0, **changes)


# --- one reply bent at one point ------------------------------------------------------------------------------------


def _body(kind: type[Any] | None, change: Callable[[Any], Any]) -> Bend:
    """Changes the message in a reply's body in place; without a kind, gives other bytes for the bytes that it has."""

    def bend(reply: wire.Reply) -> None:
        if kind is None:
            reply.body = change(reply.body)
            return
        body = kind.FromString(reply.body)
        change(body)
        reply.body = body.SerializeToString()

    return bend


def _advert(field: str, value: bytes | None) -> Bend:
    return _body(
        wire.Advert, lambda advert: advert.ClearField(field) if value is None else setattr(advert, field, value)
    )


def _copied(field: str) -> Bend:
    def bend(reply: wire.Reply) -> None:
        first = wire.Reply.FromString(open_party(_sum(), "p01").advertise().payload)
        _advert(field, getattr(wire.Advert.FromString(first.body), field))(reply)

    return bend


def _short(kind: type[Any], field: str, begin: int | None, end: int | None) -> Bend:
    return _body(kind, lambda body: setattr(body, field, getattr(body, field)[begin:end]))


def _wrong_share(dealer: int) -> Bend:
    def change(opening: wire.Opening) -> None:
        start = 33 * dealer
        opening.shares = opening.shares[:start] + bytes(33) + opening.shares[start + 33 :]

    return _body(wire.Opening, change)


def _by_a_stranger(reply: wire.Reply) -> None:
    body = sid.body_hash(reply.body)
    reply.signature = keys.sign(enrolled_key("stranger"), _sum().sid, reply.stage, reply.party, body)


def _late(reply: wire.Reply) -> None:
    other = Stage.ADVERTISE if reply.stage == Stage.SHARE else Stage.SHARE
    reply.stage = int(other)  # type: ignore[assignment]


# Sentences of the faults, and the lies that lead to each.
ANY: dict[str, tuple[bool, list[Bend]]] = {
    "does not carry its enrolled identity's": (False, [lambda reply: reply.ClearField("signature"), _by_a_stranger]),
    "in another party's place": (True, [lambda reply: setattr(reply, "party", 7)]),
    "of another private sum": (True, [lambda reply: setattr(reply, "sid", bytes(32))]),
    "speaks version 99": (True, [lambda reply: setattr(reply, "version", 99)]),
    "late or repeated reply": (True, [_late]),
}
NO_MESSAGE = {"malformed": [_body(None, lambda _: b"\xff\xff\xff")]}
ONE: dict[Stage, dict[str, list[Bend]]] = {
    Stage.ADVERTISE: {
        **NO_MESSAGE,
        "low-order X25519 key": [_advert("mask_key", point) for point in sorted(keys._LOW_ORDER)],
        "duplicate key or commitment": [
            _copied(field) for field in ("channel_key", "mask_key", "commitment", "noise_anchor")
        ],
        "lacks a commitment": [_advert(field, None) for field in ("commitment", "noise_anchor")],
        "is for other terms": [_advert("terms", bytes(32))],
    },
    Stage.SHARE: {
        **NO_MESSAGE,
        "expected 9 blocks of (82|1170)": [_short(wire.Shares, "ciphertexts", None, -1)],
        "expected 10 blocks of 64": [_short(wire.Shares, "hashes", None, -1)],
    },
    Stage.MASK: {
        "a packed vector of 17 words of 26 bits is 56": [
            _body(None, change) for change in (lambda b: b[:-1], lambda b: b + b"\0", lambda b: b"", lambda b: b * 2)
        ],
        "padding bits are not zero": [_body(None, lambda body: body[:-1] + b"\xff")],
    },
    Stage.CONSISTENCY: {"signed another question, or other sets": [_body(None, lambda _: bytes(32))]},
    Stage.UNMASK: {
        **NO_MESSAGE,
        **{
            f"opened a wrong self share of p0{dealer}: not the one whose hash": [_wrong_share(dealer)]
            for dealer in (0, 4, 9)
        },
        "expected 10 blocks of 33 bytes": [_short(wire.Opening, "shares", 33, None)],
    },
}


@pytest.mark.heavy
@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.CONSISTENCY, Stage.UNMASK])
@pytest.mark.parametrize(
    ("words", "sign", "bend"), [(words, sign, bend) for words, (sign, bends) in ANY.items() for bend in bends]
)
def test_party_whose_reply_frame_is_altered_is_left_out(stage: Stage, words: str, sign: bool, bend: Bend) -> None:
    check_left_out(_sum(), stage, bend, words, sign)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("stage", "words", "bend"),
    [(stage, words, bend) for stage, faults in ONE.items() for words, bends in faults.items() for bend in bends],
)
def test_party_whose_reply_is_altered_is_left_out(stage: Stage, words: str, bend: Bend) -> None:
    check_left_out(_sum(), stage, bend, words)


@pytest.mark.heavy
def test_party_revealing_an_uncommitted_nonce_is_left_out() -> None:
    parameters = parameters_of(20, graph_above=7, tolerated_dropouts=2, sigma=0.0)
    lie = _body(None, lambda _: bytes(32))
    check_left_out(parameters, Stage.REVEAL, lie, "its nonce is not the one it committed to")


# --- several replies, and what follows ------------------------------------------------------------------------------


def test_party_that_replies_garbage_is_left_out() -> None:
    """Bytes that are no reply at all, straight into the coroutine."""
    from undersong_protocol.secagg.coordinator import private_sum

    parameters = _sum()
    parties = open_parties(parameters)
    coordinator = private_sum(parameters, lambda: QUESTION)
    requests = next(coordinator)
    replies = {name: parties[name].receive(request).payload for name, request in requests.items()}  # type: ignore[union-attr]
    requests = coordinator.send({**replies, LIAR: b"\xff\xff\xff"})
    assert set(requests) == set(names_of(10)) - {LIAR}


def test_corrupted_share_is_refused_by_its_holder_who_names_the_dealer() -> None:
    def corrupt(shares: wire.Shares) -> None:
        shares.ciphertexts = shares.ciphertexts[:10] + bytes([shares.ciphertexts[10] ^ 1]) + shares.ciphertexts[11:]

    parameters = _sum()
    refusals: dict[str, UndersongError] = {}
    opened = play_liar(parameters, Stage.SHARE, _body(wire.Shares, corrupt), refusals=refusals)
    assert f"{LIAR}: its shares for this party do not open" in str(refusals["p00"])
    # One holder is lost, which is within the tolerated dropouts: the sum is that of the others, the liar included.
    np.testing.assert_array_equal(opened.values, expected_sum(parameters, names_of(10)[1:]))


def _false_shares(parameters: SumParameters, transcript: bytes, honest: bytes, kind: str) -> bytes:
    """The liar's shares of another secret than it advertised: well sealed and, but for kind "hash", well hashed."""
    me = parameters.index(LIAR)
    secrets = {**secrets_of(parameters, LIAR), kind: bytes(range(32))}
    points = range(1, parameters.size + 1)
    one = shamir.share(secrets["self_mask"], parameters.threshold, points, entropy_of("false 1"))
    two = shamir.share(secrets["mask"], parameters.threshold, points, entropy_of("false 2"))
    channel, hasher = keys.Agreement(secrets["channel"]), keys.ShareHasher(transcript)
    shares = wire.Shares.FromString(honest)
    shares.ClearField("ciphertexts")
    shares.ClearField("hashes")
    for holder, name in enumerate(names_of(parameters.size)):
        public = bytes(64) if kind == "hash" else hasher.both(me, holder, one[holder + 1], two[holder + 1])
        shares.hashes += public
        if holder != me:
            drawn, ciphertext = secrets_of(parameters, name), b""
            shared = channel.shared(name, keys.public_key(drawn["channel"]))
            if parameters.post_quantum:
                encapsulated, ciphertext = keys.encapsulate(keys.KemSecretKey(drawn["channel_kem"]).public)
                shared += encapsulated
            key = keys.share_key(transcript, shared, me, holder)
            plain = one[holder + 1] + two[holder + 1]
            shares.ciphertexts += ciphertext + keys.seal(key, transcript, me, holder, plain, ciphertext + public)
    return shares.SerializeToString()


@pytest.mark.parametrize(("kind", "words"), [("self_mask", "self-mask seed"), ("mask", "mask key")])
def test_shares_of_a_false_secret_abort_the_sum_naming_the_dealer(kind: str, words: str) -> None:
    parameters = _sum()
    parties = open_parties(parameters)

    def lie(name: str, reply: wire.Reply) -> None:
        if name == LIAR and reply.stage == Stage.SHARE:
            reply.body = _false_shares(parameters, parties[LIAR]._state.transcript, reply.body, kind)
            resign(parameters, reply)

    # A false mask key shows only where the liar's vector is missing.
    def drop(name: str, at: Stage) -> bool:
        return kind == "mask" and name == LIAR and at is Stage.MASK

    with pytest.raises(SumAborted, match=f"the {words} of {LIAR} does not match its advert") as caught:
        drive(parameters, parties, drop, refusals={}, bend_reply=lie)
    assert {fault.party for fault in caught.value.faults} == {LIAR}


def test_shares_that_differ_from_their_hashes_are_refused_by_their_holders() -> None:
    """Sealed with the false hashes, so they open: else a holder could later be blamed for its dealer's lie."""
    parameters = _sum()
    parties = open_parties(parameters)
    refusals: dict[str, UndersongError] = {}

    def lie(name: str, reply: wire.Reply) -> None:
        if name == LIAR and reply.stage == Stage.SHARE:
            reply.body = _false_shares(parameters, parties[LIAR]._state.transcript, reply.body, "hash")
            resign(parameters, reply)

    with pytest.raises(SumAborted):
        drive(parameters, parties, refusals=refusals, bend_reply=lie)
    assert set(refusals) == set(names_of(10)) - {LIAR}
    for refusal in refusals.values():
        assert f"{LIAR}: dealt shares that differ from their public hashes" in str(refusal)


def test_wrong_share_of_a_dropped_mask_key_is_named_and_the_sum_opens() -> None:
    opened = play_liar(_sum(), Stage.UNMASK, _wrong_share(9), lost=("p09",))
    assert str(opened.faults[0]).startswith(f"{LIAR}: opened a wrong mask share of p09")
    np.testing.assert_array_equal(opened.values, expected_sum(_sum(), names_of(10)[:-1], [LIAR]))


@pytest.mark.heavy
@pytest.mark.parametrize("value", [b"", bytes(32), bytes(5)])
def test_wrong_noise_seed_leaves_excess_noise_in_and_names_the_party(value: bytes) -> None:
    parameters = _sum()
    opened = play_liar(parameters, Stage.UNMASK, _body(wire.Opening, lambda o: setattr(o, "noise_chain", value)))
    assert [fault.party for fault in opened.faults] == [LIAR]
    assert "does not lead to the advertised anchor" in str(opened.faults[0])
    np.testing.assert_array_equal(opened.values, expected_sum(parameters, names_of(10), [LIAR]))
    assert opened.variance > expected_variance(parameters, 0)


def test_opened_variance_counts_excess_noise_of_a_party_lost_at_the_end() -> None:
    parameters = _sum()
    opened = drive(parameters, open_parties(parameters), lambda name, at: name == LIAR and at is Stage.UNMASK)
    assert opened.faults == ()
    np.testing.assert_array_equal(opened.values, expected_sum(parameters, names_of(10), [LIAR]))
    assert opened.variance == pytest.approx(float(parameters.noise_plan.opened_variance(0, unopened_count=1)))
    assert opened.variance > expected_variance(parameters, 0)


def test_too_many_wrong_shares_abort_the_sum_naming_every_liar() -> None:
    parameters = _sum()
    liars = names_of(10)[:5]

    def lie(name: str, reply: wire.Reply) -> None:
        if name in liars and reply.stage == Stage.UNMASK:
            _body(wire.Opening, lambda o: setattr(o, "shares", bytes(len(o.shares))))(reply)
            resign(parameters, reply)

    with pytest.raises(SumAborted, match="5 parties are left and T = 6 are needed") as caught:
        drive(parameters, open_parties(parameters), bend_reply=lie)
    assert [fault.party for fault in caught.value.faults] == liars


# --- evidence -------------------------------------------------------------------------------------------------------


def test_signed_evidence_is_valid_only_for_its_sum_and_its_signers() -> None:
    parameters = _sum()
    opened = drive(parameters, open_parties(parameters))
    assert check_evidence(parameters, opened.evidence).signers == tuple(names_of(10))
    with raises(PeerFault, "evidence-of-another-sum"):
        check_evidence(dataclasses.replace(parameters, attempt=1), opened.evidence)
    evidence = wire.Evidence.FromString(opened.evidence)
    evidence.survivors = b"\xff\x01"
    with raises(PeerFault, "evidence-outside-survivors"):
        check_evidence(parameters, evidence.SerializeToString())
    evidence.signers = b"\xff\x01"
    evidence.signatures = evidence.signatures[:-64]
    with raises(PeerFault, "forged-statement"):
        check_evidence(parameters, evidence.SerializeToString())
    evidence.signers, evidence.signatures = b"\x01\x00", evidence.signatures[:64]
    with raises(PeerFault, "evidence-too-few"):
        check_evidence(parameters, evidence.SerializeToString())
    with raises(PeerFault, "evidence-damaged"):
        check_evidence(parameters, b"\xff")
