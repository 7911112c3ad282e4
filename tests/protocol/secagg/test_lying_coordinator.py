"""Every misbehaviour of a coordinator that docs/secagg.md rules out, against real parties: each is refused by name.

A lying coordinator is the honest one with one request bent at one point. Its victims must refuse, stay refused, and
nothing that they ever sent may contain a secret that the round they reached does not open.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.doubles.coded import raises
from tests.doubles.lying import VICTIM, Bend, Lie, bytes_of, check_refused, play_lying_coordinator, told
from tests.doubles.secagg import (
    QUESTION,
    drive,
    enrolled_key,
    entropy_of,
    names_of,
    open_parties,
    open_party,
    parameters_of,
    secrets_of,
    stage_of,
    vector_of,
)
from undersong_common.errors import PeerFault, PrivacyRefusal, UndersongError
from undersong_protocol.secagg import keys, messages, sid
from undersong_protocol.secagg.coordinator import SumAborted
from undersong_protocol.secagg.messages import advertise_request, adverts_from_wire, from_bitmap, to_bitmap
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.party import PartyMachine, Reply, WantsInput
from undersong_protocol.secagg.transitions import Phase, Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire

pytestmark = pytest.mark.usefixtures("both_kinds_of_masks")

LOW_ORDER = sorted(keys._LOW_ORDER)


# --- one request bent at one point ----------------------------------------------------------------------------------


def _terms(field: str, value: object) -> Lie:
    def bend(parameters: SumParameters, message: wire.Request) -> None:
        setattr(message.advertise, field, not parameters.post_quantum if field == "post_quantum" else value)

    return bend


def _advert_of(message: wire.Request, party: int) -> wire.SignedAdvert:
    return next(advert for advert in message.share.adverts if advert.party == party)


def _forged(signer: str, party: int, **fields: bytes | str | int) -> Lie:
    """Signs one advert with other fields: bytes, another field's name, or the party of whom a field is copied."""

    def bend(parameters: SumParameters, message: wire.Request) -> None:
        entry = _advert_of(message, party)
        advert = wire.Advert.FromString(entry.body)
        for field, given in fields.items():
            if isinstance(given, int):
                given = getattr(wire.Advert.FromString(_advert_of(message, given).body), field)
            setattr(advert, field, getattr(advert, given) if isinstance(given, str) else given)
        entry.body = advert.SerializeToString()
        body = sid.body_hash(entry.body)
        entry.signature = keys.sign(enrolled_key(signer), parameters.sid, Stage.ADVERTISE, party, body)

    return bend


def _exchanged(parameters: SumParameters, message: wire.Request) -> None:
    one, two = _advert_of(message, 1), _advert_of(message, 2)
    one.body, two.body = two.body, one.body
    one.signature, two.signature = two.signature, one.signature


def _earlier(parameters: SumParameters, message: wire.Request) -> None:
    old = open_party(dataclasses.replace(parameters, attempt=1), "p05").advertise().payload
    entry, reply = _advert_of(message, 5), wire.Reply.FromString(old)
    entry.body, entry.signature = reply.body, reply.signature


def _adverts_of(*kept: int) -> Lie:
    def bend(parameters: SumParameters, message: wire.Request) -> None:
        adverts = [_advert_of(message, party) for party in kept]
        del message.share.adverts[:]
        message.share.adverts.extend(adverts)

    return bend


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _sealed_bytes(parameters: SumParameters) -> int:
    """A block of shares for one holder."""
    return keys.SEALED_BYTES + (keys.CIPHERTEXT_BYTES if parameters.post_quantum else 0)


def _corrupted(block: int, at: int) -> Lie:
    """One bit of one block of shares; ``at`` as in a slice."""

    def bend(parameters: SumParameters, message: wire.Request) -> None:
        size = _sealed_bytes(parameters)
        message.mask.ciphertexts = _flip(message.mask.ciphertexts, block * size + at % size)

    return bend


def _swapped(parameters: SumParameters, message: wire.Request) -> None:
    data, size = message.mask.ciphertexts, _sealed_bytes(parameters)
    message.mask.ciphertexts = data[size : 2 * size] + data[:size] + data[2 * size :]


def _set(message: wire.Request, stage: Stage, parties: set[int], size: int = 10) -> None:
    if stage is Stage.MASK:
        message.mask.sharers = to_bitmap(parties, size)
    else:
        message.consistency.survivors = to_bitmap(parties, size)


def _signers(message: wire.Request) -> tuple[list[int], list[bytes]]:
    data = message.unmask.signatures
    listed = from_bitmap(message.unmask.signers, 10, "", "")
    return list(listed), [data[start : start + 64] for start in range(0, len(data), 64)]


def _with_signers(message: wire.Request, signers: list[int], signatures: list[bytes]) -> None:
    message.unmask.signers = to_bitmap(signers, 10)
    message.unmask.signatures = b"".join(signatures)


def _signed(change: Callable[[SumParameters, list[int], list[bytes]], tuple[list[int], list[bytes]]]) -> Lie:
    """Changes who signed and what."""
    return lambda parameters, message: _with_signers(message, *change(parameters, *_signers(message)))


def _strangers(parameters: SumParameters, signers: list[int], signatures: list[bytes]) -> tuple[list[int], list[bytes]]:
    body = sid.body_hash(bytes(32))
    forged = keys.sign(enrolled_key("stranger"), parameters.sid, Stage.CONSISTENCY, signers[0], body)
    return signers, [forged, *signatures[1:]]


def _reveal(message: wire.Request, roll: int, present: bytes = b"") -> None:
    message.ClearField("share")
    message.reveal.MergeFrom(wire.RevealRequest(roll=roll, present=present))


def _rolled(roll: int) -> Lie:
    return lambda _, message: setattr(message.reveal, "roll", roll)


def _kept(stage: Stage, parties: set[int]) -> Lie:
    return lambda _, message: _set(message, stage, parties)


OWN_KEY = keys.public_key(bytes(range(32)))
UNSIGNED = "its advert does not carry its enrolled identity's"
NO_SETS = (b"", bytes(3), b"\xff\xff")
CLOSED = "its shares for this party do not open"
TERMS: dict[str, tuple[object, str]] = {
    "threshold": (5, "threshold is not the approved one: 5 instead of 6"),
    "sigma": (1.0, "sigma is not the approved one: 1.0 instead of 400.0"),
    "tolerated_dropouts": (3, "tolerated_dropouts is not the approved one: 3 instead of 2"),
    "colluders": (0, "colluders is not the approved one: 0 instead of 1"),
    "modulus_bits": (64, "ring"),
    "dimension": (16, "dimension is not the approved one: 16 instead of 17"),
    "parties": (9, "number of parties is not the approved one: 9 instead of 10"),
    "roster": (bytes(32), "roster is not the approved one"),
    "graph_above": (4, "graph_above is not the approved one"),
    "post_quantum": (None, "post_quantum is not the approved one"),
    "law": ("laplace", "law of the noise is not the approved one: 'laplace' instead of 'gaussian'"),
}
# Sentences of the refusals, and the lies that lead to each.
TEN: dict[tuple[Stage, type[UndersongError]], dict[str, list[Lie]]] = {
    (Stage.SHARE, PeerFault): {
        f"p01: {UNSIGNED}": [_exchanged],
        f"p05: {UNSIGNED}": [
            _forged("coordinator", 5, mask_key=OWN_KEY),
            lambda _, m: _advert_of(m, 5).ClearField("signature"),
            _earlier,
        ],
        "p05: advertised a low-order X25519 key": [
            _forged("p05", 5, **{field: point}) for field in ("channel_key", "mask_key") for point in LOW_ORDER
        ],
        "p05: advertised a malformed X25519 key": [
            _forged("p05", 5, mask_key=key)
            for key in (b"", bytes(31), (2**255 - 19).to_bytes(32, "little"), b"\xff" * 32)
        ],
        "p05: advertised a duplicate key or commitment": [
            *(_forged("p05", 5, **{field: 2}) for field in ("channel_key", "mask_key", "commitment")),
            _forged("p05", 5, mask_key="channel_key"),
        ],
        "p05: its advert is for other terms": [_forged("p05", 5, terms=bytes(32))],
        "out of order, twice": [lambda _, m: m.share.adverts.append(_advert_of(m, 5))],
        "not enrolled": [lambda _, m: m.share.adverts.add(party=10, body=b"x", signature=bytes(64))],
        "p03: its advert": [lambda _, m: setattr(_advert_of(m, 3), "signature", _advert_of(m, 4).signature)],
    },
    (Stage.SHARE, PrivacyRefusal): {
        # Even a coordinator that holds the identity key cannot make a party mask with keys it did not advertise.
        "swapped keys": [_forged(VICTIM, 3, mask_key=OWN_KEY)],
        "omits this party": [_adverts_of(0, 1, 2, *range(4, 10))],
        "8 parties, at least 9 are needed": [_adverts_of(*range(8))],
        "reveal coins was asked for out of order": [lambda _, m: _reveal(m, 0)],
    },
    (Stage.MASK, PeerFault): {
        # At the beginning, in the middle and at the end of the first block of shares, and in the second one.
        f"p00: {CLOSED}: swapped or corrupted": [_corrupted(0, 0), _corrupted(0, 40), _corrupted(0, -1), _swapped],
        f"p01: {CLOSED}: swapped or corrupted": [_corrupted(1, 0), bytes_of("mask", "hashes", lambda d: _flip(d, 70))],
        "coordinator: .*expected 9 blocks": [
            bytes_of("mask", field, lambda data: data[:-1]) for field in ("ciphertexts", "hashes")
        ],
        "no set over a roster of 10": [bytes_of("mask", "sharers", told(data)) for data in NO_SETS],
    },
    **{
        (stage, PrivacyRefusal): {
            words: [_kept(stage, kept)]
            for kept, words in (
                (set(range(10)) - {3}, "omits this party"),
                (set(range(8)), "8 parties, at least 9 are needed"),
                ({3}, "1 party, at least 9 are needed"),
            )
        }
        for stage in (Stage.MASK, Stage.CONSISTENCY)
    },
    (Stage.CONSISTENCY, PeerFault): {
        "no set over a roster of 10": [bytes_of("consistency", "survivors", told(data)) for data in NO_SETS],
    },
    (Stage.UNMASK, PrivacyRefusal): {
        "5 signatures on U3 where 6 are needed": [_signed(lambda _, who, what: (who[:-1], what[:-1]))],
    },
    (Stage.UNMASK, PeerFault): {
        # One party's signature again, as if another had given it.
        "p05: its statement on this U3 .forged, duplicate": [
            _signed(lambda _, who, what: (who, [*what[:-1], what[0]]))
        ],
        "p00: its statement on this U3": [_signed(_strangers)],
        "p03: its statement on this U3": [_signed(lambda _, who, what: (who, [*what[:3], what[4], *what[4:]]))],
        "expected 6 blocks of 64 bytes": [bytes_of("unmask", "signatures", lambda data: data[:-1])],
    },
}
GRAPH: dict[tuple[Stage, type[UndersongError]], dict[str, list[Lie]]] = {
    (Stage.SHARE, PrivacyRefusal): {
        "another nonce for this party": [bytes_of("share", "nonces", lambda old: old[:96] + bytes(32) + old[128:])],
        "attempt 0: the coordinator asks for nonces anew although nobody": [
            lambda _, m: _reveal(m, 1, present=to_bitmap(range(20), 20))
        ],
    },
    (Stage.SHARE, PeerFault): {
        "p00: its nonce is not the one it committed to": [
            bytes_of("share", "nonces", lambda old: bytes(32) + old[32:])
        ],
        # Leaving out a nonce after all were seen would let the coordinator choose among graphs.
        "coordinator: revealed nonces: expected 20 blocks": [bytes_of("share", "nonces", lambda old: old[:-32])],
        "adverts again after the nonces": [lambda _, m: m.share.adverts.add(party=0)],
    },
    (Stage.REVEAL, PrivacyRefusal): {
        "others than those who advertised": [bytes_of("reveal", "present", told(to_bitmap(range(19), 20)))],
        **{f"nonce roll {roll}; roll 0 is next": [_rolled(roll)] for roll in (1, 7, 8)},
    },
}


def _cases(table: dict[tuple[Stage, type[UndersongError]], dict[str, list[Lie]]]) -> list[Any]:
    return [
        pytest.param(stage, lie, error, words, id=f"{stage.title}: {words} {number}")
        for (stage, error), sentences in table.items()
        for words, lies in sentences.items()
        for number, lie in enumerate(lies)
    ]


@pytest.mark.heavy
@pytest.mark.parametrize("field", TERMS)
def test_terms_that_differ_from_the_approved_plan_are_refused(field: str) -> None:
    value, words = TERMS[field]
    parameters = parameters_of(10, tolerated_dropouts=2, sigma=400.0)
    check_refused(parameters, Stage.ADVERTISE, _terms(field, value), PrivacyRefusal, words)


@pytest.mark.heavy
@pytest.mark.parametrize(("stage", "lie", "error", "words"), _cases(TEN))
def test_party_among_ten_refuses_an_altered_request(
    stage: Stage, lie: Lie, error: type[UndersongError], words: str
) -> None:
    check_refused(parameters_of(10), stage, lie, error, words)


@pytest.mark.heavy
@pytest.mark.parametrize(("stage", "lie", "error", "words"), _cases(GRAPH))
def test_party_on_the_regular_graph_refuses_an_altered_request(
    stage: Stage, lie: Lie, error: type[UndersongError], words: str
) -> None:
    check_refused(parameters_of(20, graph_above=7, tolerated_dropouts=2), stage, lie, error, words)


def test_direct_mode_refuses_any_missing_party() -> None:
    parameters = parameters_of(4, tolerated_dropouts=0, colluders=2)
    lie = bytes_of("mask", "sharers", lambda _: to_bitmap({1, 2, 3}, 4))
    check_refused(parameters, Stage.MASK, lie, PrivacyRefusal, "3 parties, at least 4 are needed")


# --- the terms, versions and garbage --------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"attempt": 1}, {"query": "votes/2"}, {"run": "another"}])
def test_request_with_a_replayed_or_foreign_sid_is_refused(change: dict[str, object]) -> None:
    parameters = parameters_of(10)
    machine = open_party(parameters, VICTIM)
    machine.advertise()
    with raises(PrivacyRefusal, "request-of-another-sum"):
        machine.receive(advertise_request(dataclasses.replace(parameters, **change)))  # type: ignore[arg-type]
    # A message of another attempt says nothing about this one.
    assert machine.phase is Phase.ADVERTISED


def test_request_of_another_version_is_refused_clearly() -> None:
    parameters = parameters_of(10)
    message = wire.Request.FromString(advertise_request(parameters))
    message.version = 1
    with pytest.raises(PeerFault, match=f"speaks version 1 of secure aggregation, this program speaks {sid.VERSION}"):
        open_party(parameters, VICTIM).receive(message.SerializeToString())


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"", b"\x08\x01"])
def test_garbage_request_is_refused_and_changes_nothing(data: bytes) -> None:
    parameters = parameters_of(10)
    machine = open_party(parameters, VICTIM)
    with pytest.raises((PeerFault, PrivacyRefusal)):
        machine.receive(data)
    assert machine.phase is Phase.OPENED


# --- adverts --------------------------------------------------------------------------------------------------------


def test_different_adverts_shown_to_parties_cannot_be_mixed() -> None:
    """The victim is shown somebody's older advert instead of the present one: sid' differs, no share opens."""
    parameters = parameters_of(10)
    twin = PartyMachine.open(parameters, "p09", enrolled_key("p09"), entropy_of("p09", "another draw"))
    other = wire.Reply.FromString(twin.advertise().payload)

    def bend(message: wire.Request) -> None:
        entry = _advert_of(message, 9)
        entry.body, entry.signature = other.body, other.signature

    refusals, _, _ = play_lying_coordinator(parameters, Stage.SHARE, bend)
    if parameters.post_quantum:
        # That advert has the hash of another key than the one beside it.
        assert "coordinator: showed another ML-KEM-768 key of p09" in str(refusals[VICTIM])
        return
    assert "p00: its shares for this party do not open" in str(refusals[VICTIM])
    assert all(f"{VICTIM}: its shares for this party do not open" in str(refusals[n]) for n in ("p00", "p09"))


# --- shares ---------------------------------------------------------------------------------------------------------


def test_shares_sent_back_to_the_party_that_dealt_them_are_refused() -> None:
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


# --- sets of parties ------------------------------------------------------------------------------------------------


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


def test_masking_set_with_a_party_that_did_not_advertise_is_refused() -> None:
    everyone = set(range(10))
    _refuse_one(
        parameters_of(10, tolerated_dropouts=2),
        Stage.ADVERTISE,
        Stage.MASK,
        lambda m: _set(m, Stage.MASK, everyone),
        "U2 lists parties that did not advertise keys",
    )


def test_party_refuses_survivors_who_are_not_in_the_masking_set() -> None:
    _refuse_one(
        parameters_of(10, tolerated_dropouts=2),
        Stage.SHARE,
        Stage.CONSISTENCY,
        lambda m: _set(m, Stage.CONSISTENCY, set(range(10))),
        "U3 lists parties that did not share keys",
    )


# --- opening --------------------------------------------------------------------------------------------------------


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
            patched.setattr(messages, "_LAST", {})  # in a process of its own it has read no adverts before
            return PartyMachine.receive(victim, request)

    monkeypatch.setattr(victim, "receive", receive)
    drive(parameters_of(10), parties)
    adverts = [name for name in names_of(10) if name != VICTIM]
    signers = [name for name in names_of(6) if name != VICTIM]
    assert verified == [enrolled_key(name).public_key().public_bytes_raw() for name in adverts + signers]


def test_signature_skipped_by_one_party_s_check_is_checked_by_another() -> None:
    parameters = parameters_of(10)
    shown: list[wire.Request] = []
    play_lying_coordinator(parameters, Stage.SHARE, shown.append)
    forged, other = (_advert_of(shown[0], party) for party in (3, 4))
    forged.signature = other.signature
    adverts = shown[0].share.adverts
    read = adverts_from_wire(parameters, adverts, (forged.party, forged.body, forged.signature))
    assert tuple(read) == tuple(range(10))
    with pytest.raises(PeerFault, match="p03: its advert"):
        adverts_from_wire(parameters, adverts, (other.party, other.body, other.signature))


def test_signatures_of_parties_that_are_no_survivors_are_refused() -> None:
    parameters = parameters_of(10, tolerated_dropouts=2)

    def bend(message: wire.Request) -> None:
        signers, signatures = _signers(message)
        _with_signers(message, [*signers[1:], 9], [*signatures[1:], bytes(64)])

    _refuse_one(parameters, Stage.MASK, Stage.UNMASK, bend, "foreign signatures")


def test_different_survivor_sets_shown_to_parties_open_no_sum() -> None:
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


def test_different_masking_sets_shown_to_parties_open_no_sum() -> None:
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


def test_second_unmask_request_with_another_set_is_refused() -> None:
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


@pytest.mark.heavy
@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE, Stage.MASK])
def test_different_request_for_an_answered_stage_is_refused(stage: Stage) -> None:
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


def test_repeated_requests_get_equal_bytes_when_finished_or_restored() -> None:
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
    machine = PartyMachine.restore(parameters, VICTIM, enrolled_key(VICTIM), parties[VICTIM].snapshot())
    for stage, request in requests.items():
        again = machine.receive(request)
        assert again.payload == replies[stage]  # type: ignore[union-attr]
        assert again.vector == (stage is Stage.MASK)  # type: ignore[union-attr]
    secrets = secrets_of(parameters, VICTIM)
    for name in secrets:
        # With no dropout the whole noise chain is opened: its first value is then no secret any more.
        assert name == "noise_root" or secrets[name] not in machine.snapshot()


@pytest.mark.heavy
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
def test_request_that_skips_a_stage_is_refused(reached: Stage, skipped_to: Stage) -> None:
    parameters = parameters_of(10)
    _, requests = _stored_requests(parameters)
    machine = open_party(parameters, VICTIM)
    for stage in (Stage.ADVERTISE, Stage.SHARE, Stage.MASK):
        if stage <= reached:
            machine.receive(requests[stage])
            if stage is Stage.MASK:
                machine.provide(vector_of(VICTIM, parameters.dimension), QUESTION)
    with raises(PrivacyRefusal, "out-of-order"):
        machine.receive(requests[skipped_to])
    assert machine.phase is Phase.TOMBSTONED


# --- the k-regular graph --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [Stage.MASK, Stage.CONSISTENCY])
@pytest.mark.slow
def test_party_refuses_too_many_claimed_dropouts_among_its_neighbours(stage: Stage) -> None:
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


@pytest.mark.parametrize("cut", [100, 0, 299])
def test_dropouts_that_empty_an_arc_of_the_neighbour_circle_are_refused(cut: int) -> None:
    """No party loses too many neighbours, yet a run of places is almost empty: the second rule of topology."""
    parameters = parameters_of(300, tolerated_dropouts=30, colluders=20)
    assert parameters.graph is not None
    topology = parameters.topology(bytes(32))
    run = parameters.graph.degree // 2
    order = topology._order
    half = (run - 5) // 2
    gone = {order[(cut + place) % 300] for place in range(-half, half)}
    kept = set(range(300)) - gone
    assert len(kept) >= parameters.quorum
    with raises(PrivacyRefusal, "neighbourhood-too-small"):
        topology.check_runs(kept, "U3")


# --- direct mode ----------------------------------------------------------------------------------------------------


def test_unmask_request_in_direct_mode_is_refused() -> None:
    parameters = parameters_of(4, tolerated_dropouts=0, colluders=2)
    parties = open_parties(parameters)
    drive(parameters, parties)
    request = wire.Request(version=sid.VERSION, sid=parameters.sid, unmask=wire.UnmaskRequest())
    with raises(PrivacyRefusal, "out-of-order"):
        parties[VICTIM].receive(request.SerializeToString())
