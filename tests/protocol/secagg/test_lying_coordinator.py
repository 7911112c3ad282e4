"""Every misbehaviour of a coordinator that docs/threat-model.md lists, against real parties: each is refused by name.

A lying coordinator is the honest one with one request bent at one point. Its victims must refuse, stay refused, and
nothing that they ever sent may contain a secret that the round they reached does not open.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

import pytest

from tests.doubles.coded import raises
from tests.doubles.secagg import (
    QUESTION,
    drive,
    entropy_of,
    identity_of,
    names_of,
    open_parties,
    open_party,
    parameters_of,
    secrets_of,
    stage_of,
    vector_of,
)
from undersong_common.errors import PeerFault, PrivacyRefusal, UndersongError
from undersong_protocol.secagg import keys, sid
from undersong_protocol.secagg.coordinator import SumAborted
from undersong_protocol.secagg.messages import advertise_request, from_bitmap, to_bitmap
from undersong_protocol.secagg.parameters import Member, SumParameters
from undersong_protocol.secagg.party import PartyMachine, Reply, WantsInput
from undersong_protocol.secagg.transitions import Phase, Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire

pytestmark = pytest.mark.usefixtures("both_kinds_of_masks")

VICTIM = "p03"
LOW_ORDER = sorted(keys._LOW_ORDER)

Bend = Callable[[wire.Request], object]


class Refused(Exception):
    """The stage has ended in which somebody refused."""


def play(
    parameters: SumParameters, stage: Stage, bend: Bend, victims: tuple[str, ...] = (VICTIM,)
) -> tuple[dict[str, UndersongError], dict[str, PartyMachine], list[bytes]]:
    """Bend the requests of one stage to the victims; (refusals, machines, everything that was sent)."""
    parties = open_parties(parameters)
    refusals: dict[str, UndersongError] = {}
    sent: list[bytes] = []
    asked: list[Stage] = []

    def lie(name: str, message: wire.Request) -> None:
        now = stage_of(message)
        if refusals and now is not asked[-1]:
            raise Refused  # whoever has refused is asked and sends nothing more
        asked.append(now)
        if now is stage and name in victims:
            bend(message)

    with contextlib.suppress(SumAborted, Refused):
        drive(parameters, parties, refusals=refusals, transcript=sent, bend_request=lie)
    return refusals, parties, sent


def check_refused(
    parameters: SumParameters,
    stage: Stage,
    bend: Bend,
    error: type[UndersongError],
    words: str,
    victims: tuple[str, ...] = (VICTIM,),
) -> None:
    """The victims refuse with these words, are tombstoned for good, and their secrets were never sent."""
    refusals, parties, sent = play(parameters, stage, bend, victims)
    assert set(refusals) == set(victims)
    for victim in victims:
        with pytest.raises(error, match=words):
            raise refusals[victim]
        machine = parties[victim]
        assert machine.phase is Phase.TOMBSTONED
        with raises(PrivacyRefusal, "attempt-ended"):
            machine.receive(advertise_request(parameters))
        restored = PartyMachine.restore(parameters, victim, identity_of(victim), machine.snapshot())
        assert restored.phase is Phase.TOMBSTONED
        snapshot = machine.snapshot()
        everything = b"".join(sent)
        for name, secret in secrets_of(parameters, victim).items():
            assert secret not in snapshot, f"{name} survives the tombstone"
            assert secret not in everything, f"{name} was sent"


# --- the terms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("threshold", 5, "threshold is not the approved one: 5 instead of 6"),
        ("sigma", 1.0, "sigma is not the approved one: 1.0 instead of 400.0"),
        ("tolerated_dropouts", 3, "tolerated_dropouts is not the approved one: 3 instead of 2"),
        ("colluders", 0, "colluders is not the approved one: 0 instead of 1"),
        ("modulus_bits", 64, "ring"),
        ("dimension", 16, "dimension is not the approved one: 16 instead of 17"),
        ("parties", 9, "number of parties is not the approved one: 9 instead of 10"),
        ("roster", bytes(32), "roster is not the approved one"),
        ("graph_above", 4, "graph_above is not the approved one"),
        ("post_quantum", None, "post_quantum is not the approved one"),
        ("law", "laplace", "law of the noise is not the approved one: 'laplace' instead of 'gaussian'"),
    ],
)
def test_changed_terms(field: str, value: object, words: str) -> None:
    parameters = parameters_of(10, tolerated_dropouts=2, sigma=400.0)
    value = not parameters.post_quantum if field == "post_quantum" else value
    check_refused(parameters, Stage.ADVERTISE, lambda m: setattr(m.advertise, field, value), PrivacyRefusal, words)


def test_leave_one_out_roster_has_other_terms() -> None:
    parameters = parameters_of(10)
    smaller = dataclasses.replace(parameters, roster=parameters.roster[:-1])
    machine = open_party(parameters, VICTIM)
    with raises(PrivacyRefusal, "other-terms"):
        machine.receive(advertise_request(smaller))


def test_a_stranger_in_the_roster_has_other_terms() -> None:
    parameters = parameters_of(10)
    stranger = Member("p09", identity_of("stranger").public_key().public_bytes_raw())
    other = dataclasses.replace(parameters, roster=(*parameters.roster[:-1], stranger))
    with raises(PrivacyRefusal, "other-terms"):
        open_party(parameters, VICTIM).receive(advertise_request(other))


@pytest.mark.parametrize("change", [{"attempt": 1}, {"query": "votes/2"}, {"run": "another"}])
def test_replayed_or_foreign_sid(change: dict[str, object]) -> None:
    parameters = parameters_of(10)
    machine = open_party(parameters, VICTIM)
    machine.advertise()
    with raises(PrivacyRefusal, "request-of-another-sum"):
        machine.receive(advertise_request(dataclasses.replace(parameters, **change)))  # type: ignore[arg-type]
    # A message of another attempt says nothing about this one.
    assert machine.phase is Phase.ADVERTISED


def test_other_version_is_refused_clearly() -> None:
    parameters = parameters_of(10)
    message = wire.Request.FromString(advertise_request(parameters))
    message.version = 1
    with pytest.raises(PeerFault, match=f"speaks version 1 of secure aggregation, this program speaks {sid.VERSION}"):
        open_party(parameters, VICTIM).receive(message.SerializeToString())


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"", b"\x08\x01"])
def test_garbage_is_refused_and_changes_nothing(data: bytes) -> None:
    parameters = parameters_of(10)
    machine = open_party(parameters, VICTIM)
    with pytest.raises((PeerFault, PrivacyRefusal)):
        machine.receive(data)
    assert machine.phase is Phase.OPENED


# --- adverts --------------------------------------------------------------------------------------------------------


def _advert_of(message: wire.Request, party: int) -> wire.SignedAdvert:
    return next(advert for advert in message.share.adverts if advert.party == party)


def _forge(parameters: SumParameters, signer: str, party: int, change: Callable[[wire.Advert], object]) -> Bend:
    """Bend one advert and sign it with ``signer``'s key."""

    def bend(message: wire.Request) -> None:
        entry = _advert_of(message, party)
        advert = wire.Advert.FromString(entry.body)
        change(advert)
        entry.body = advert.SerializeToString()
        entry.signature = keys.sign(
            identity_of(signer), parameters.sid, Stage.ADVERTISE, party, sid.body_hash(entry.body)
        )

    return bend


def test_swapped_keys_of_a_peer() -> None:
    parameters = parameters_of(10)
    own_key = keys.public_key(bytes(range(32)))
    bend = _forge(parameters, "coordinator", 5, lambda advert: setattr(advert, "mask_key", own_key))
    check_refused(parameters, Stage.SHARE, bend, PeerFault, "p05: its advert does not carry its enrolled identity's")


def test_swapped_keys_of_this_party() -> None:
    parameters = parameters_of(10)
    own_key = keys.public_key(bytes(range(32)))
    # Even a coordinator that holds the identity key cannot make a party mask with keys it did not advertise.
    bend = _forge(parameters, VICTIM, 3, lambda advert: setattr(advert, "mask_key", own_key))
    check_refused(parameters, Stage.SHARE, bend, PrivacyRefusal, "swapped keys")


def test_two_adverts_exchanged() -> None:
    def bend(message: wire.Request) -> None:
        one, two = _advert_of(message, 1), _advert_of(message, 2)
        one.body, two.body = two.body, one.body
        one.signature, two.signature = two.signature, one.signature

    check_refused(parameters_of(10), Stage.SHARE, bend, PeerFault, "p01: its advert does not carry")


def test_unsigned_keys() -> None:
    def bend(message: wire.Request) -> None:
        _advert_of(message, 5).ClearField("signature")

    check_refused(parameters_of(10), Stage.SHARE, bend, PeerFault, "p05: its advert does not carry")


def test_advert_of_an_earlier_attempt() -> None:
    parameters = parameters_of(10)
    earlier = open_party(dataclasses.replace(parameters, attempt=1), "p05").advertise()
    old = wire.Reply.FromString(earlier.payload)

    def bend(message: wire.Request) -> None:
        entry = _advert_of(message, 5)
        entry.body, entry.signature = old.body, old.signature

    check_refused(parameters, Stage.SHARE, bend, PeerFault, "p05: its advert does not carry")


@pytest.mark.parametrize("field", ["channel_key", "mask_key"])
@pytest.mark.parametrize("point", range(len(LOW_ORDER)))
def test_low_order_keys(field: str, point: int) -> None:
    parameters = parameters_of(10)
    bend = _forge(parameters, "p05", 5, lambda advert: setattr(advert, field, LOW_ORDER[point]))
    check_refused(parameters, Stage.SHARE, bend, PeerFault, "p05: advertised a low-order X25519 key")


@pytest.mark.parametrize("key", [b"", bytes(31), (2**255 - 19).to_bytes(32, "little"), b"\xff" * 32])
def test_malformed_keys(key: bytes) -> None:
    parameters = parameters_of(10)
    bend = _forge(parameters, "p05", 5, lambda advert: setattr(advert, "mask_key", key))
    check_refused(parameters, Stage.SHARE, bend, PeerFault, "p05: advertised a malformed X25519 key")


@pytest.mark.parametrize("field", ["channel_key", "mask_key", "commitment"])
def test_duplicate_keys(field: str) -> None:
    parameters = parameters_of(10)

    def bend(message: wire.Request) -> None:
        copied = getattr(wire.Advert.FromString(_advert_of(message, 2).body), field)
        _forge(parameters, "p05", 5, lambda advert: setattr(advert, field, copied))(message)

    check_refused(parameters, Stage.SHARE, bend, PeerFault, "p05: advertised a duplicate key or commitment")


def test_one_key_for_channel_and_mask() -> None:
    parameters = parameters_of(10)
    bend = _forge(parameters, "p05", 5, lambda advert: setattr(advert, "mask_key", advert.channel_key))
    check_refused(parameters, Stage.SHARE, bend, PeerFault, "p05: advertised a duplicate key")


def test_advert_for_other_terms() -> None:
    parameters = parameters_of(10)
    bend = _forge(parameters, "p05", 5, lambda advert: setattr(advert, "terms", bytes(32)))
    check_refused(parameters, Stage.SHARE, bend, PeerFault, "p05: its advert is for other terms")


def test_advert_listed_twice() -> None:
    def bend(message: wire.Request) -> None:
        message.share.adverts.append(_advert_of(message, 5))

    check_refused(parameters_of(10), Stage.SHARE, bend, PeerFault, "out of order, twice")


def test_advert_of_somebody_who_is_not_enrolled() -> None:
    def bend(message: wire.Request) -> None:
        message.share.adverts.add(party=10, body=b"x", signature=bytes(64))

    check_refused(parameters_of(10), Stage.SHARE, bend, PeerFault, "not enrolled")


def _only(message: wire.Request, kept: set[int]) -> None:
    adverts = [advert for advert in message.share.adverts if advert.party in kept]
    del message.share.adverts[:]
    message.share.adverts.extend(adverts)


def test_adverts_that_omit_this_party() -> None:
    check_refused(
        parameters_of(10), Stage.SHARE, lambda m: _only(m, set(range(10)) - {3}), PrivacyRefusal, "omits this party"
    )


def test_too_few_adverts() -> None:
    check_refused(
        parameters_of(10),
        Stage.SHARE,
        lambda m: _only(m, set(range(8))),
        PrivacyRefusal,
        "8 parties, at least 9 are needed",
    )


def test_split_views_of_the_adverts_do_not_mix() -> None:
    """The victim is shown somebody's older advert instead of the present one: sid' differs, no share opens."""
    parameters = parameters_of(10)
    twin = PartyMachine.open(parameters, "p09", identity_of("p09"), entropy_of("p09", "another draw"))
    other = wire.Reply.FromString(twin.advertise().payload)

    def bend(message: wire.Request) -> None:
        entry = _advert_of(message, 9)
        entry.body, entry.signature = other.body, other.signature

    refusals, _, _ = play(parameters, Stage.SHARE, bend)
    if parameters.post_quantum:
        # That advert has the hash of another key than the one beside it.
        assert "coordinator: showed another ML-KEM-768 key of p09" in str(refusals[VICTIM])
        return
    assert "p00: its shares for this party do not open" in str(refusals[VICTIM])
    assert all(f"{VICTIM}: its shares for this party do not open" in str(refusals[n]) for n in ("p00", "p09"))


# --- shares ---------------------------------------------------------------------------------------------------------


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _sealed_bytes(parameters: SumParameters) -> int:
    """A block of shares for one holder."""
    return keys.SEALED_BYTES + (keys.CIPHERTEXT_BYTES if parameters.post_quantum else 0)


@pytest.mark.parametrize("at", [0, 40, -1, 1])
def test_corrupted_ciphertext(at: int) -> None:
    """At the beginning, in the middle and at the end of the first block, and in the second one."""
    parameters = parameters_of(10)
    size = _sealed_bytes(parameters)
    culprit, at = ("p01", size) if at == 1 else ("p00", at % size)
    check_refused(
        parameters,
        Stage.MASK,
        lambda m: setattr(m.mask, "ciphertexts", _flip(m.mask.ciphertexts, at)),
        PeerFault,
        f"{culprit}: its shares for this party do not open: swapped or corrupted",
    )


def test_swapped_ciphertexts() -> None:
    parameters = parameters_of(10)

    def bend(message: wire.Request) -> None:
        data, size = message.mask.ciphertexts, _sealed_bytes(parameters)
        message.mask.ciphertexts = data[size : 2 * size] + data[:size] + data[2 * size :]

    check_refused(parameters, Stage.MASK, bend, PeerFault, "p00: its shares .* swapped or corrupted")


def test_shares_reflected_to_their_dealer() -> None:
    parameters = parameters_of(10)
    dealt: dict[str, wire.Shares] = {}
    parties = open_parties(parameters)
    refusals: dict[str, UndersongError] = {}

    def keep(name: str, reply: wire.Reply) -> None:
        if reply.stage == Stage.SHARE:
            dealt[name] = wire.Shares.FromString(reply.body)

    def lie(name: str, message: wire.Request) -> None:
        if stage_of(message) is Stage.MASK and name == VICTIM:
            size = _sealed_bytes(parameters)
            # What the victim sealed for p00 comes back as if p00 had sealed it for the victim.
            message.mask.ciphertexts = dealt[VICTIM].ciphertexts[:size] + message.mask.ciphertexts[size:]

    drive(parameters, parties, refusals=refusals, bend_reply=keep, bend_request=lie)
    assert "p00: its shares for this party do not open" in str(refusals[VICTIM])


def test_changed_hash_of_a_share() -> None:
    check_refused(
        parameters_of(10),
        Stage.MASK,
        lambda m: setattr(m.mask, "hashes", _flip(m.mask.hashes, 70)),
        PeerFault,
        "p01: its shares for this party do not open",
    )


@pytest.mark.parametrize("field", ["ciphertexts", "hashes"])
def test_missing_shares(field: str) -> None:
    check_refused(
        parameters_of(10),
        Stage.MASK,
        lambda m: setattr(m.mask, field, getattr(m.mask, field)[:-1]),
        PeerFault,
        "coordinator: .*expected 9 blocks",
    )


# --- sets of parties ------------------------------------------------------------------------------------------------


def _set(message: wire.Request, stage: Stage, parties: set[int], size: int = 10) -> None:
    if stage is Stage.MASK:
        message.mask.sharers = to_bitmap(parties, size)
    else:
        message.consistency.survivors = to_bitmap(parties, size)


@pytest.mark.parametrize("stage", [Stage.MASK, Stage.CONSISTENCY])
@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (set(range(10)) - {3}, "omits this party"),
        (set(range(8)), "8 parties, at least 9 are needed"),
        ({3}, "1 party, at least 9 are needed"),
    ],
)
def test_sets_that_omit_this_party_or_are_too_small(stage: Stage, kept: set[int], words: str) -> None:
    check_refused(parameters_of(10), stage, lambda m: _set(m, stage, kept), PrivacyRefusal, words)


@pytest.mark.parametrize("stage", [Stage.MASK, Stage.CONSISTENCY])
@pytest.mark.parametrize("data", [b"", bytes(3), b"\xff\xff"])
def test_sets_that_are_no_sets(stage: Stage, data: bytes) -> None:
    field = ("mask", "sharers") if stage is Stage.MASK else ("consistency", "survivors")
    check_refused(
        parameters_of(10),
        stage,
        lambda m: setattr(getattr(m, field[0]), field[1], data),
        PeerFault,
        "no set over a roster of 10",
    )


def _refuse_one(parameters: SumParameters, lost: Stage, stage: Stage, bend: Bend, words: str) -> None:
    """p09 drops out at ``lost``; then the coordinator lies to the victim about it."""
    refusals: dict[str, UndersongError] = {}

    def lie(name: str, message: wire.Request) -> None:
        if stage_of(message) is stage and name == VICTIM:
            bend(message)

    drive(
        parameters,
        open_parties(parameters),
        lambda name, at: name == "p09" and at is lost,
        refusals=refusals,
        bend_request=lie,
    )
    with pytest.raises(PrivacyRefusal, match=words):
        raise refusals[VICTIM]


def test_u2_with_somebody_who_did_not_advertise() -> None:
    everyone = set(range(10))
    _refuse_one(
        parameters_of(10, tolerated_dropouts=2),
        Stage.ADVERTISE,
        Stage.MASK,
        lambda m: _set(m, Stage.MASK, everyone),
        "U2 lists parties that did not advertise keys",
    )


def test_u3_that_exceeds_u2() -> None:
    _refuse_one(
        parameters_of(10, tolerated_dropouts=2),
        Stage.SHARE,
        Stage.CONSISTENCY,
        lambda m: _set(m, Stage.CONSISTENCY, set(range(10))),
        "U3 exceeds U2",
    )


# --- opening --------------------------------------------------------------------------------------------------------


def _signers(message: wire.Request) -> tuple[list[int], list[bytes]]:
    data = message.unmask.signatures
    listed = from_bitmap(message.unmask.signers, 10, "", "")
    return list(listed), [data[start : start + 64] for start in range(0, len(data), 64)]


def _with_signers(message: wire.Request, signers: list[int], signatures: list[bytes]) -> None:
    message.unmask.signers = to_bitmap(signers, 10)
    message.unmask.signatures = b"".join(signatures)


def test_too_few_signatures() -> None:
    def bend(message: wire.Request) -> None:
        signers, signatures = _signers(message)
        _with_signers(message, signers[:-1], signatures[:-1])

    check_refused(parameters_of(10), Stage.UNMASK, bend, PrivacyRefusal, "5 signatures on U3 where 6 are needed")


def test_duplicate_signatures() -> None:
    def bend(message: wire.Request) -> None:
        signers, signatures = _signers(message)
        # One party's signature again, as if another had given it.
        _with_signers(message, signers, [*signatures[:-1], signatures[0]])

    check_refused(parameters_of(10), Stage.UNMASK, bend, PeerFault, "p05: its statement on this U3 .forged, duplicate")


def test_foreign_signatures() -> None:
    parameters = parameters_of(10)

    def bend(message: wire.Request) -> None:
        signers, signatures = _signers(message)
        forged = keys.sign(
            identity_of("stranger"), parameters.sid, Stage.CONSISTENCY, signers[0], sid.body_hash(bytes(32))
        )
        _with_signers(message, signers, [forged, *signatures[1:]])

    check_refused(parameters, Stage.UNMASK, bend, PeerFault, "p00: its statement on this U3")


@pytest.mark.parametrize("stage", [Stage.SHARE, Stage.UNMASK])
def test_another_signature_in_this_partys_own_name(stage: Stage) -> None:
    def bend(message: wire.Request) -> None:
        if stage is Stage.SHARE:
            _advert_of(message, 3).signature = _advert_of(message, 4).signature
        else:
            signers, signatures = _signers(message)
            _with_signers(message, signers, [*signatures[:3], signatures[4], *signatures[4:]])

    check_refused(parameters_of(10), stage, bend, PeerFault, "p03: its (advert|statement on this U3)")


def test_a_party_verifies_every_signature_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    parties = open_parties(parameters_of(10))
    victim, verify = parties[VICTIM], keys.verified
    verified: list[bytes] = []

    def noted(key: bytes, statement: bytes, signature: bytes) -> None:
        verified.append(key)
        verify(key, statement, signature)

    def receive(request: bytes) -> Reply | WantsInput:
        with monkeypatch.context() as patched:
            patched.setattr(keys, "verified", noted)
            return PartyMachine.receive(victim, request)

    monkeypatch.setattr(victim, "receive", receive)
    drive(parameters_of(10), parties)
    adverts = [name for name in names_of(10) if name != VICTIM]
    signers = [name for name in names_of(6) if name != VICTIM]
    assert verified == [identity_of(name).public_key().public_bytes_raw() for name in adverts + signers]


def test_signatures_of_parties_outside_u3() -> None:
    parameters = parameters_of(10, tolerated_dropouts=2)

    def bend(message: wire.Request) -> None:
        signers, signatures = _signers(message)
        _with_signers(message, [*signers[1:], 9], [*signatures[1:], bytes(64)])

    _refuse_one(parameters, Stage.MASK, Stage.UNMASK, bend, "foreign signatures")


def test_missing_signature_bytes() -> None:
    check_refused(
        parameters_of(10),
        Stage.UNMASK,
        lambda m: setattr(m.unmask, "signatures", m.unmask.signatures[:-1]),
        PeerFault,
        "expected 6 blocks of 64 bytes",
    )


def test_split_views_of_u3_open_nothing() -> None:
    """Half the parties are shown U3 without p09, half without p08: no view gets T signatures, nobody opens."""
    parameters = parameters_of(10)

    def lie(name: str, message: wire.Request) -> None:
        if stage_of(message) is Stage.CONSISTENCY:
            omitted = 9 if int(name[1:]) < 5 else 8
            _set(message, Stage.CONSISTENCY, set(range(10)) - {omitted})

    refusals: dict[str, UndersongError] = {}
    parties = open_parties(parameters)
    sent: list[bytes] = []
    with pytest.raises(SumAborted, match="consistency: 0 parties are left"):
        drive(parameters, parties, refusals=refusals, transcript=sent, bend_request=lie)
    # The coordinator of this test is honest but for the lie: a thorough one collects what was signed.
    signed = {
        reply.party: reply
        for reply in map(wire.Reply.FromString, sent)
        if reply.stage == Stage.CONSISTENCY and len(reply.signature) == 64
    }
    request = wire.Request(version=sid.VERSION, sid=parameters.sid)
    chosen = sorted(set(signed) - {8, 9})[:6]
    request.unmask.signers = to_bitmap(chosen, 10)
    request.unmask.signatures = b"".join(signed[party].signature for party in chosen)
    for name in ("p00", "p07"):
        with raises((PeerFault, PrivacyRefusal), "forged-statement"):
            parties[name].receive(request.SerializeToString())
        assert not parties[name].released


def test_split_views_of_u2_open_nothing() -> None:
    """U3 agrees but U2 does not: the statement covers both, so the signatures do not fit together."""
    parameters = parameters_of(10, tolerated_dropouts=2)
    short = to_bitmap(set(range(9)), 10)

    def lie(name: str, message: wire.Request) -> None:
        if stage_of(message) is Stage.MASK and int(name[1:]) < 5:
            message.mask.sharers = short
            message.mask.ciphertexts = message.mask.ciphertexts[: -_sealed_bytes(parameters)]
            message.mask.hashes = message.mask.hashes[:-64]
        if stage_of(message) is Stage.CONSISTENCY:
            message.consistency.survivors = short

    parties = open_parties(parameters)
    sent: list[bytes] = []
    with pytest.raises(SumAborted, match="consistency: 0 parties are left"):
        drive(parameters, parties, refusals={}, transcript=sent, bend_request=lie)
    signed = {
        reply.party: reply
        for reply in map(wire.Reply.FromString, sent)
        if reply.stage == Stage.CONSISTENCY and len(reply.signature) == 64
    }
    assert set(signed) == set(range(9))
    request = wire.Request(version=sid.VERSION, sid=parameters.sid)
    request.unmask.signers = to_bitmap(range(6), 10)
    request.unmask.signatures = b"".join(signed[party].signature for party in range(6))
    for name in names_of(9):
        with raises(PeerFault, "forged-statement"):
            parties[name].receive(request.SerializeToString())


def _stored_requests(parameters: SumParameters) -> tuple[dict[str, PartyMachine], dict[Stage, bytes]]:
    requests: dict[Stage, bytes] = {}

    def keep(name: str, message: wire.Request) -> None:
        if name == VICTIM:
            requests[stage_of(message)] = message.SerializeToString(deterministic=True)

    parties = open_parties(parameters)
    drive(parameters, parties, bend_request=keep)
    return parties, requests


def test_a_peer_is_never_both_alive_and_dropped() -> None:
    """After signing one U3 a party is shown another, in which a survivor counts as dropped: refused, tombstoned."""
    parameters = parameters_of(10)
    parties = open_parties(parameters)

    def lie_twice(name: str, message: wire.Request) -> None:
        if stage_of(message) is Stage.UNMASK and name == VICTIM:
            message.ClearField("unmask")
            _set(message, Stage.CONSISTENCY, set(range(9)))

    refusals: dict[str, UndersongError] = {}
    drive(parameters, parties, refusals=refusals, bend_request=lie_twice)
    assert "a second, different request for consistency" in str(refusals[VICTIM])
    assert parties[VICTIM].phase is Phase.TOMBSTONED


def test_second_unmask_with_another_set() -> None:
    parameters = parameters_of(10)
    parties, requests = _stored_requests(parameters)
    message = wire.Request.FromString(requests[Stage.UNMASK])
    signers, signatures = _signers(message)
    _with_signers(message, signers[:-1], signatures[:-1])
    with raises(PrivacyRefusal, "second-request"):
        parties[VICTIM].receive(message.SerializeToString())
    consistency = wire.Request.FromString(requests[Stage.CONSISTENCY])
    _set(consistency, Stage.CONSISTENCY, set(range(9)))
    with raises(PrivacyRefusal, "second-request"):
        parties[VICTIM].receive(consistency.SerializeToString())
    assert parties[VICTIM].phase is Phase.DONE


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE, Stage.MASK])
def test_a_different_request_for_a_stage_already_answered(stage: Stage) -> None:
    parameters = parameters_of(10)

    def bend(message: wire.Request) -> None:
        message.sid = parameters.sid
        if stage is Stage.ADVERTISE:
            message.advertise.sigma = 7.0
        elif stage is Stage.SHARE:
            message.share.nonces = b"x"
        else:
            message.mask.nonces = b"x"

    refusals: dict[str, UndersongError] = {}
    parties = open_parties(parameters)
    seen: dict[Stage, wire.Request] = {}

    def replay(name: str, message: wire.Request) -> None:
        if name != VICTIM:
            return
        seen[stage_of(message)] = wire.Request.FromString(message.SerializeToString())
        if stage_of(message) is Stage.CONSISTENCY:
            message.CopyFrom(seen[stage])
            bend(message)

    drive(parameters, parties, refusals=refusals, bend_request=replay)
    assert f"a second, different request for {stage.title}" in str(refusals[VICTIM])
    assert parties[VICTIM].phase is Phase.TOMBSTONED


def test_repeated_requests_get_identical_bytes_even_when_finished_and_restored() -> None:
    parameters = parameters_of(10, sigma=50.0)
    replies: dict[int, bytes] = {}

    def keep(name: str, reply: wire.Reply) -> None:
        if name == VICTIM:
            replies[reply.stage] = reply.SerializeToString(deterministic=True)

    requests: dict[Stage, bytes] = {}
    parties = open_parties(parameters)
    drive(
        parameters,
        parties,
        bend_reply=keep,
        bend_request=lambda name, m: (
            requests.__setitem__(stage_of(m), m.SerializeToString(deterministic=True)) if name == VICTIM else None
        ),
    )
    machine = PartyMachine.restore(parameters, VICTIM, identity_of(VICTIM), parties[VICTIM].snapshot())
    for stage, request in requests.items():
        again = machine.receive(request)
        assert again.payload == replies[stage]  # type: ignore[union-attr]
        assert again.vector == (stage is Stage.MASK)  # type: ignore[union-attr]
    secrets = secrets_of(parameters, VICTIM)
    for name in secrets:
        # With no dropout the whole noise chain is opened: its first value is then no secret any more.
        assert name == "noise_root" or secrets[name] not in machine.snapshot()


@pytest.mark.parametrize(
    ("reached", "skipped_to"),
    [
        (Stage.ADVERTISE, Stage.MASK),
        (Stage.ADVERTISE, Stage.CONSISTENCY),
        (Stage.ADVERTISE, Stage.UNMASK),
        (Stage.SHARE, Stage.CONSISTENCY),
        (Stage.SHARE, Stage.UNMASK),
        (Stage.MASK, Stage.UNMASK),
    ],
)
def test_skipped_stages(reached: Stage, skipped_to: Stage) -> None:
    parameters = parameters_of(10)
    _, requests = _stored_requests(parameters)
    machine = open_party(parameters, VICTIM)
    for stage in (Stage.ADVERTISE, Stage.SHARE, Stage.MASK):
        if stage <= reached:
            machine.receive(requests[stage])
            if stage is Stage.MASK:
                machine.provide(vector_of(VICTIM, parameters.dimension), QUESTION)
    with pytest.raises(PrivacyRefusal, match=f"{skipped_to.title} was asked for out of order"):
        machine.receive(requests[skipped_to])
    assert machine.phase is Phase.TOMBSTONED


def test_nonces_where_there_is_no_graph() -> None:
    def bend(message: wire.Request) -> None:
        message.ClearField("share")
        message.reveal.roll = 0

    check_refused(parameters_of(10), Stage.SHARE, bend, PrivacyRefusal, "reveal nonces was asked for out of order")


# --- the k-regular graph --------------------------------------------------------------------------------------------


def _graph(**changes: object) -> SumParameters:
    return parameters_of(20, graph_above=7, tolerated_dropouts=2, **changes)


def test_another_nonce_for_this_party() -> None:
    def bend(message: wire.Request) -> None:
        message.share.nonces = message.share.nonces[:96] + bytes(32) + message.share.nonces[128:]

    check_refused(_graph(), Stage.SHARE, bend, PrivacyRefusal, "another nonce for this party")


def test_another_nonce_for_a_peer() -> None:
    def bend(message: wire.Request) -> None:
        message.share.nonces = bytes(32) + message.share.nonces[32:]

    check_refused(_graph(), Stage.SHARE, bend, PeerFault, "p00: its nonce is not the one it committed to")


def test_nonces_of_fewer_than_were_asked() -> None:
    """Leaving out a nonce after all were seen would let the coordinator choose among graphs."""

    def bend(message: wire.Request) -> None:
        message.share.nonces = message.share.nonces[:-32]

    check_refused(_graph(), Stage.SHARE, bend, PeerFault, "coordinator: revealed nonces: expected 20 blocks")


@pytest.mark.parametrize("roll", [1, 7, 8])
def test_rolls_out_of_order(roll: int) -> None:
    check_refused(
        _graph(), Stage.REVEAL, lambda m: setattr(m.reveal, "roll", roll), PrivacyRefusal, f"nonce roll {roll} after 0"
    )


def test_rolls_without_a_dropout() -> None:
    parameters = _graph()

    def bend(message: wire.Request) -> None:
        message.ClearField("share")
        message.reveal.roll = 1
        message.reveal.present = to_bitmap(range(20), 20)

    check_refused(parameters, Stage.SHARE, bend, PrivacyRefusal, "asked for anew although nobody dropped out")


def test_first_roll_of_others_than_advertised() -> None:
    check_refused(
        _graph(),
        Stage.REVEAL,
        lambda m: setattr(m.reveal, "present", to_bitmap(range(19), 20)),
        PrivacyRefusal,
        "others than those who advertised",
    )


def test_adverts_again_after_the_nonces() -> None:
    check_refused(
        _graph(), Stage.SHARE, lambda m: m.share.adverts.add(party=0), PeerFault, "adverts again after the nonces"
    )


@pytest.mark.parametrize("stage", [pytest.param(Stage.MASK, marks=pytest.mark.slow), Stage.CONSISTENCY])
@pytest.mark.heavy
def test_neighbours_said_to_have_dropped_out(stage: Stage) -> None:
    """Enough survivors in all, but a lying coordinator takes them from one party's neighbourhood."""
    parameters = parameters_of(100, graph_above=7, tolerated_dropouts=30, colluders=1)
    plan = parameters.graph
    assert plan is not None
    parties = open_parties(parameters)
    refusals: dict[str, UndersongError] = {}

    def lie(name: str, message: wire.Request) -> None:
        if name == VICTIM and stage_of(message) is stage:
            topology = parameters.topology(parties[VICTIM]._state.transcript)
            gone = topology.neighbours(3, range(100))[: plan.degree - plan.threshold + 1]
            kept = to_bitmap(set(range(100)) - set(gone), 100)
            if stage is Stage.CONSISTENCY:
                message.consistency.survivors = kept
            else:
                message.mask.sharers = kept

    drive(parameters, parties, refusals=refusals, bend_request=lie)
    assert "neighbours" in str(refusals[VICTIM])
    assert parties[VICTIM].phase is Phase.TOMBSTONED


def test_dropouts_placed_to_cut_the_circle() -> None:
    """No party loses too many neighbours, yet a run of places is almost empty: the second rule of topology."""
    parameters = parameters_of(300, tolerated_dropouts=30, colluders=20)
    assert parameters.graph is not None
    topology = parameters.topology(bytes(32))
    run = parameters.graph.degree // 2
    order = topology._order
    gone = set(order[100 : 100 + run - 5])
    kept = set(range(300)) - gone
    assert len(kept) >= parameters.quorum
    with raises(PrivacyRefusal, "neighbourhood-too-small"):
        topology.check_runs(kept, "U3")


# --- direct mode ----------------------------------------------------------------------------------------------------


def test_direct_mode_refuses_any_missing_party() -> None:
    parameters = parameters_of(4, tolerated_dropouts=0, colluders=2)
    check_refused(
        parameters,
        Stage.MASK,
        lambda m: setattr(m.mask, "sharers", to_bitmap({1, 2, 3}, 4)),
        PrivacyRefusal,
        "3 parties, at least 4 are needed",
    )


def test_direct_mode_has_no_unmasking() -> None:
    parameters = parameters_of(4, tolerated_dropouts=0, colluders=2)
    parties = open_parties(parameters)
    drive(parameters, parties)
    request = wire.Request(version=sid.VERSION, sid=parameters.sid, unmask=wire.UnmaskRequest())
    with raises(PrivacyRefusal, "out-of-order"):
        parties[VICTIM].receive(request.SerializeToString())
