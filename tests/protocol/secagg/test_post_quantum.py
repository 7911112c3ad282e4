"""Hybrid masks: what must be refused, what a dropped party's seed opens, and that neither half alone opens a vector."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.doubles.coded import raises
from tests.doubles.lying import bytes_of, check_refused, told
from tests.doubles.secagg import (
    QUESTION,
    drive,
    enrolled_key,
    entropy_of,
    expected_sum,
    false_body,
    names_of,
    open_parties,
    open_party,
    parameters_of,
    resign,
    secrets_of,
    seed_of,
    stage_of,
    vector_of,
)
from undersong_common.errors import PeerFault, UndersongError
from undersong_protocol.secagg import keys, ring
from undersong_protocol.secagg.coordinator import SumAborted
from undersong_protocol.secagg.masking import SEALED_PAIR_BYTES, MaskKeys, Sign, add_masks, seal_pair
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.transitions import Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire

LIAR = "p04"
MODES: dict[str, tuple[int, dict[str, Any]]] = {
    "complete": (10, {"tolerated_dropouts": 2}),
    "k-regular": (20, {"tolerated_dropouts": 3, "graph_above": 7, "sigma": 1500.0}),
}

OTHER_MODES: dict[str, tuple[int, dict[str, Any]]] = {
    "k-regular, small": (12, {"tolerated_dropouts": 2, "graph_above": 7}),
    "direct": (5, {"tolerated_dropouts": 0, "colluders": 2}),
    "k-regular, direct": (12, {"tolerated_dropouts": 0, "graph_above": 7}),
}


def parameters_in(mode: str) -> SumParameters:
    n, changes = (OTHER_MODES | MODES)[mode]
    return parameters_of(n, post_quantum=True, modulus_bits=32, **{"sigma": 400.0, **changes})


def _ten(**changes: object) -> SumParameters:
    return parameters_of(10, post_quantum=True, tolerated_dropouts=2, sigma=400.0, **changes)


# --- dropouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lost", [("p00",), (-1,), ("p04", "p05"), ("p00", -1)], ids=str)
def test_masks_of_parties_that_vanished_are_rebuilt_from_dealt_seeds(mode: str, lost: tuple[Any, ...]) -> None:
    """The lowest index dealt every secret of its pairs, the highest received all; two neighbours vanish at once."""
    parameters = parameters_in(mode)
    names = names_of(parameters.size)
    gone = [names[each] if isinstance(each, int) else each for each in lost]
    opened = drive(parameters, open_parties(parameters), lambda name, at: name in gone and at is Stage.MASK)
    survivors = [name for name in names if name not in gone]
    assert opened.survivors == tuple(survivors)
    assert not opened.faults
    np.testing.assert_array_equal(opened.values, expected_sum(parameters, survivors))


def _drive_with_false_pairs(dropped: str, change: Callable[[wire.Shares, PartyMachine], object]) -> SumAborted:
    """The attempt's end where the liar deals false secrets of pairs and ``dropped`` vanishes before its vector."""
    parameters = _ten()
    parties = open_parties(parameters)

    lie = false_body(parameters, LIAR, Stage.SHARE, wire.Shares, lambda shares: change(shares, parties[LIAR]))
    with pytest.raises(SumAborted) as caught:
        drive(parameters, parties, lambda name, at: name == dropped and at is Stage.MASK, refusals={}, bend_reply=lie)
    return caught.value


def _deal_to_last(secret: bytes, hashed: bytes | None = None) -> Callable[[wire.Shares, PartyMachine], None]:
    """The liar deals ``secret`` to p09, well sealed and, unless ``hashed`` is given, well hashed."""

    def change(shares: wire.Shares, liar: PartyMachine) -> None:
        transcript = liar._state.transcript
        public = keys.ShareHasher(transcript).one("pair", 4, 9, secret) if hashed is None else hashed
        seed = secrets_of(liar._parameters, "p09")["mask"]
        last = MaskKeys(seed, post_quantum=True)
        agreed = last.agreed(LIAR, MaskKeys(secrets_of(liar._parameters, LIAR)["mask"], post_quantum=True).public)
        sealed = seal_pair(agreed, keys.encapsulate(last.kem.public), transcript, 4, 9, secret, public)
        shares.pairs = shares.pairs[:-SEALED_PAIR_BYTES] + sealed
        shares.pair_hashes = shares.pair_hashes[:-32] + public

    return change


def _spoilt(shares: wire.Shares, _liar: object = None) -> None:
    """The last secret of a pair does not open."""
    shares.pairs = shares.pairs[:-1] + bytes([shares.pairs[-1] ^ 1])


@pytest.mark.parametrize(("dropped", "change"), [(LIAR, _deal_to_last(bytes(32))), ("p09", _spoilt)])
def test_false_pair_secret_aborts_naming_its_dealer_after_a_dropout(
    dropped: str, change: Callable[[wire.Shares, PartyMachine], object]
) -> None:
    aborted = _drive_with_false_pairs(dropped, change)
    assert f"the secret of its pair with p09 of {LIAR} does not match" in str(aborted)
    assert [fault.party for fault in aborted.faults] == [LIAR]


def test_pair_secret_that_differs_from_its_hash_is_refused_naming_dealer() -> None:
    parameters = _ten()
    parties, refusals = open_parties(parameters), dict[str, UndersongError]()
    false = _deal_to_last(bytes(32), hashed=seed_of("another"))
    lie = false_body(parameters, LIAR, Stage.SHARE, wire.Shares, lambda shares: false(shares, parties[LIAR]))
    # Without that secret p09's masks cannot be taken out of the others' vectors.
    with pytest.raises(SumAborted) as caught:
        drive(parameters, parties, refusals=refusals, bend_reply=lie)
    assert set(refusals) == {"p09"}
    assert f"{LIAR}: dealt a secret of a pair that differs from its public hash" in str(refusals["p09"])
    assert [fault.party for fault in caught.value.faults] == [LIAR]


@pytest.mark.heavy
@pytest.mark.parametrize("mode", OTHER_MODES)
def test_secret_that_does_not_open_ends_the_attempt_naming_its_dealer(mode: str) -> None:
    parameters = parameters_in(mode)
    first, refusals = names_of(parameters.size)[0], dict[str, UndersongError]()
    lie = false_body(parameters, first, Stage.SHARE, wire.Shares, _spoilt)
    with pytest.raises(SumAborted) as caught:
        drive(parameters, open_parties(parameters), refusals=refusals, bend_reply=lie)
    assert len(refusals) == 1
    assert first in str(*refusals.values())
    assert "does not open" in str(*refusals.values())
    if "direct" not in mode:  # shares open the dealer's false secret to the coordinator, by its signed hash
        assert [fault.party for fault in caught.value.faults] == [first]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("field", "words"), [("pairs", "5 blocks of 1136"), ("pair_hashes", "5 blocks of 32"), ("ciphertexts", "1170")]
)
def test_party_that_leaves_out_a_pair_secret_is_named(field: str, words: str) -> None:
    parameters = _ten()

    def cut(shares: wire.Shares) -> None:
        setattr(shares, field, getattr(shares, field)[:-1])

    lie = false_body(parameters, LIAR, Stage.SHARE, wire.Shares, cut)
    opened = drive(parameters, open_parties(parameters), refusals={}, bend_reply=lie)
    assert words in str(opened.faults[0])
    assert [fault.party for fault in opened.faults] == [LIAR]


# --- keys -------------------------------------------------------------------------------------------------------------


def _not_canonical(key: bytes) -> bytes:
    """The same key with its first coefficient above the modulus 3329."""
    return bytes([0xFF, key[1] | 0x0F]) + key[2:]


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1], ids=["channel", "mask"])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("swapped", "sent another ML-KEM-768 key than the one whose hash it signed"),
        ("not canonical", "advertised a malformed ML-KEM-768 key"),
        ("copied", "advertised a duplicate key"),
        ("short", "bytes of ML-KEM-768 keys with advertise keys instead of 2368"),
    ],
)
def test_party_with_a_false_ml_kem_key_is_left_out_by_name(how: str, words: str, place: int) -> None:
    parameters = _ten()
    first = wire.Reply.FromString(open_party(parameters, "p01").advertise().payload)

    def block(data: bytes) -> bytes:
        return data[place * keys.KEM_KEY_BYTES : (place + 1) * keys.KEM_KEY_BYTES]

    def lie(name: str, reply: wire.Reply) -> None:
        if name != LIAR or reply.stage != Stage.ADVERTISE:
            return
        old = block(reply.kem_keys)
        new = {"not canonical": _not_canonical(old), "short": old[:-1]}.get(how, block(first.kem_keys))
        reply.kem_keys = reply.kem_keys.replace(old, new)
        if how in ("not canonical", "copied"):
            reply.body = reply.body.replace(keys.kem_key_hash(old), keys.kem_key_hash(new))
            resign(parameters, reply)

    opened = drive(parameters, open_parties(parameters), bend_reply=lie)
    assert [fault.party for fault in opened.faults] == [LIAR]
    assert words in str(opened.faults[0])
    np.testing.assert_array_equal(opened.values, expected_sum(parameters, [n for n in names_of(10) if n != LIAR]))


@pytest.mark.parametrize("mode", [mode for mode in OTHER_MODES if "direct" in mode])
def test_false_key_ends_the_attempt_naming_it_where_all_are_needed(mode: str) -> None:
    def lie(name: str, reply: wire.Reply) -> None:
        if name == LIAR and reply.stage == Stage.ADVERTISE:
            reply.kem_keys = reply.kem_keys[:-1] + bytes([reply.kem_keys[-1] ^ 1])

    parameters = parameters_in(mode)
    with pytest.raises(SumAborted) as caught:
        drive(parameters, open_parties(parameters), bend_reply=lie)
    assert [fault.party for fault in caught.value.faults] == [LIAR]
    assert "sent another ML-KEM-768 key than the one whose hash it signed" in str(caught.value.faults[0])


def _exchange(data: bytes, one: int, other: int, size: int) -> bytes:
    blocks = [data[start : start + size] for start in range(0, len(data), size)]
    blocks[one], blocks[other] = blocks[other], blocks[one]
    return b"".join(blocks)


SHOWED = "coordinator: showed another ML-KEM-768 key of p"
FALSE_KEYS: dict[str, tuple[Callable[[bytes, int], bytes], str]] = {
    "missing": (lambda given, _size: b"", "ML-KEM-768 keys: expected"),
    "of two peers swapped": (lambda given, size: _exchange(given, 0, 1, size), SHOWED),
    "made up": (lambda given, _size: given[:-1184] + bytes(1184), SHOWED),
    "missing, of ten": (lambda given, _size: b"", "ML-KEM-768 keys: expected 10 blocks of 2368 bytes, got 0"),
    "of two peers swapped, of ten": (lambda given, size: _exchange(given, 1, 2, size), f"{SHOWED}01"),
    "channel for mask": (lambda given, size: _exchange(given, 2, 3, size // 2), f"{SHOWED}01"),
    "this party's own": (lambda given, size: _exchange(given, 3, 4, size), f"{SHOWED}03"),
    "made up, of ten": (lambda given, _size: given[:-1184] + bytes(1184), f"{SHOWED}09"),
}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("mode", "how"),
    [(mode, how) for mode in OTHER_MODES for how in [*FALSE_KEYS][:3]]
    + [("complete", how) for how in [*FALSE_KEYS][3:]],
)
def test_false_keys_that_the_coordinator_shows_are_refused_in_every_mode(mode: str, how: str) -> None:
    change, words = FALSE_KEYS[how]
    size = 1184 if "direct" in mode else 2368  # no channel without shares

    lie = bytes_of("share", "kem_keys", lambda old: change(old, size))
    check_refused(parameters_in(mode), Stage.SHARE, lie, PeerFault, words)


def test_keys_of_strangers_are_refused_on_the_regular_graph() -> None:
    lie = bytes_of("share", "kem_keys", lambda given: given + bytes(2368))
    check_refused(parameters_in("k-regular"), Stage.SHARE, lie, PeerFault, "ML-KEM-768 keys: expected")


def test_classical_masks_take_no_ml_kem_keys_and_no_secrets_of_pairs() -> None:
    parameters = parameters_of(10, post_quantum=False)
    for stage, part, field, size, what in (
        (Stage.SHARE, "share", "kem_keys", 1184, "ML-KEM-768 keys"),
        (Stage.MASK, "mask", "pairs", 1136, "secrets of pairs"),
    ):
        lie = bytes_of(part, field, told(bytes(size)))
        check_refused(parameters, stage, lie, PeerFault, f"{what}: expected 0 blocks")


def test_an_advert_without_hashes_of_ml_kem_keys_is_refused() -> None:
    parameters = _ten()
    lie = false_body(parameters, LIAR, Stage.ADVERTISE, wire.Advert, lambda advert: advert.ClearField("mask_kem"))
    opened = drive(parameters, open_parties(parameters), bend_reply=lie)
    assert "lacks a commitment or a hash of this mode" in str(opened.faults[0])


# --- ciphertexts ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["complete", *OTHER_MODES])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda given: _exchange(given, 0, 1, SEALED_PAIR_BYTES), "does not open: swapped or corrupted ciphertext"),
        (lambda given: bytes([given[0] ^ 1]) + given[1:], "does not open: swapped or corrupted ciphertext"),
        (lambda given: given[:-1] + bytes([given[-1] ^ 1]), "does not open: swapped or corrupted ciphertext"),
        (lambda given: given[:-SEALED_PAIR_BYTES], "secrets of pairs: expected"),
    ],
    ids=["swapped", "ML-KEM ciphertext", "AEAD", "missing"],
)
def test_altered_pair_secrets_are_refused(mode: str, change: Callable[[bytes], bytes], words: str) -> None:
    parameters = parameters_in(mode)
    last = names_of(parameters.size)[-1]  # all its neighbours dealt to it
    check_refused(parameters, Stage.MASK, bytes_of("mask", "pairs", change), PeerFault, words, (last,))


@pytest.mark.heavy
def test_ciphertexts_of_another_attempt_do_not_open() -> None:
    """The same secrets and keys, another sid: what was dealt there is bound to it."""
    earlier, now = _ten(), _ten(attempt=1)
    found: dict[str, bytes] = {}
    same = {
        name: PartyMachine.open(earlier, name, enrolled_key(name), entropy_of(name, now.attempt))
        for name in names_of(10)
    }

    def keep(name: str, message: wire.Request) -> None:
        if name == "p03" and stage_of(message) is Stage.MASK:
            found.update(pairs=message.mask.pairs, ciphertexts=message.mask.ciphertexts)

    drive(earlier, same, bend_request=keep)
    for field, words in (("pairs", "pair with this party does not open"), ("ciphertexts", "shares for this party")):
        check_refused(now, Stage.MASK, bytes_of("mask", field, told(found[field])), PeerFault, words)


# --- secrecy ----------------------------------------------------------------------------------------------------------


def _vectors_and_transcript(parameters: SumParameters) -> tuple[dict[str, np.ndarray], bytes]:
    vectors: dict[str, np.ndarray] = {}
    parties = open_parties(parameters)

    def keep(name: str, reply: wire.Reply) -> None:
        if reply.stage == Stage.MASK:
            vectors[name] = ring.unpack(reply.body, 32, parameters.dimension, name)

    drive(parameters, parties, bend_reply=keep)
    return vectors, parties["p00"]._state.transcript


@pytest.mark.heavy
@pytest.mark.parametrize("broken", ["X25519", "ML-KEM-768", "both"])
@pytest.mark.parametrize("mode", ["complete", "direct"])
def test_breaking_only_one_of_x25519_and_ml_kem_reveals_no_vector(mode: str, broken: str) -> None:
    """All X25519 secrets, or all secrets of pairs: a vector's masks follow from both together only."""
    changes = {"tolerated_dropouts": 0, "colluders": 2} if mode == "direct" else {}
    parameters = parameters_of(4, post_quantum=True, dimension=4000, modulus_bits=32, **changes)
    vectors, transcript = _vectors_and_transcript(parameters)
    mine = MaskKeys(secrets_of(parameters, "p00")["mask"], post_quantum=True)
    masks: list[tuple[bytes, Sign]] = []
    if mode == "complete":
        masks.append((secrets_of(parameters, "p00")["self_mask"], -1))
    for other in (1, 2, 3):
        others = MaskKeys(secrets_of(parameters, f"p{other:02d}")["mask"], post_quantum=True)
        known = mine.agreed("", others.public) if broken != "ML-KEM-768" else bytes(32)
        known += mine.pair_secret(transcript, other) if broken != "X25519" else bytes(32)
        masks.append((keys.mask_key(transcript, QUESTION, known, 0, other), -1))
    left = vectors["p00"].copy()
    add_masks(left, masks)
    clean = vector_of("p00", 4000).values.astype(np.uint32)
    assert np.array_equal(left, clean) == (broken == "both")
    if broken != "both":
        counts = np.bincount(np.frombuffer((left - clean).tobytes(), dtype=np.uint8), minlength=256)
        expected = 16_000 / 256
        assert abs(float(((counts - expected) ** 2 / expected).sum()) - 255) < 5 * 22.6


@pytest.mark.parametrize("mode", ["complete", "direct"])
def test_a_coordinator_cannot_deal_secrets_of_pairs_of_its_own(mode: str) -> None:
    """Anybody can encapsulate to p03. Whoever deals it every r and breaks X25519 later would open its vector alone."""
    changes = {"tolerated_dropouts": 0, "colluders": 2} if mode == "direct" else {}
    parameters = parameters_of(4, post_quantum=True, modulus_bits=32, **changes)
    parties = open_parties(parameters)
    last = MaskKeys(secrets_of(parameters, "p03")["mask"], post_quantum=True).kem.public
    planted, refusals = bytes(range(32)), dict[str, UndersongError]()

    def plant(name: str, message: wire.Request) -> None:
        if name == "p03" and stage_of(message) is Stage.MASK:
            transcript = parties["p00"]._state.transcript
            hasher = keys.ShareHasher(transcript)
            hashes = [hasher.one("pair", dealer, 3, planted) for dealer in range(3)]
            message.mask.pairs = b"".join(
                seal_pair(b"", keys.encapsulate(last), transcript, dealer, 3, planted, hashes[dealer])
                for dealer in range(3)
            )
            message.mask.pair_hashes = b"".join(hashes)

    with contextlib.suppress(SumAborted):
        drive(parameters, parties, bend_request=plant, refusals=refusals)
    assert "the secret of its pair with this party does not open" in str(refusals["p03"])


def test_an_opened_seed_opens_no_share_that_its_owner_dealt_or_holds() -> None:
    """Channel keys are drawn apart: the coordinator that rebuilt a seed tries it on everything that it carried."""
    parameters = _ten()
    parties, carried = open_parties(parameters), dict[str, bytes]()

    def keep(name: str, message: wire.Request) -> None:
        if stage_of(message) is Stage.MASK:
            carried[name] = message.mask.ciphertexts

    drive(parameters, parties, lambda name, at: name == "p09" and at is Stage.MASK, bend_request=keep)
    transcript = parties["p00"]._state.transcript
    seed = secrets_of(parameters, "p09")["mask"]
    opened = MaskKeys(seed, post_quantum=True)
    size = keys.CIPHERTEXT_BYTES + keys.SEALED_BYTES
    block = carried["p00"][-size:]  # from p09 to p00
    ciphertext, sealed = block[: keys.CIPHERTEXT_BYTES], block[keys.CIPHERTEXT_BYTES :]
    channel = keys.public_key(secrets_of(parameters, "p00")["channel"])
    agreed = opened.agreed("p00", channel)
    key = keys.share_key(transcript, agreed + opened.kem.decapsulate(ciphertext), 9, 0)
    assert keys.unseal(key, transcript, 9, 0, sealed, ciphertext + bytes(64)) is None
    drawn = secrets_of(parameters, "p09")
    derived = {opened.pair_secret(transcript, other) for other in range(10)} | {opened._secret}
    assert derived.isdisjoint(drawn.values())


def test_secrets_of_the_channel_are_erased_when_the_vector_is_masked() -> None:
    parameters = parameters_of(4, post_quantum=True, sigma=30.0)
    parties = open_parties(parameters)
    drawn = secrets_of(parameters, "p02")
    seen: dict[Stage, bytes] = {}

    def look(name: str, message: wire.Request) -> None:
        if name == "p02":
            seen[stage_of(message)] = parties["p02"].snapshot()  # as it stands before this request

    drive(parameters, parties, bend_request=look)
    agreed = keys.Agreement(drawn["channel"]).shared("p00", keys.public_key(secrets_of(parameters, "p00")["channel"]))
    transcript = parties["p00"]._state.transcript
    pairs = [
        MaskKeys(secrets_of(parameters, "p00")["mask"], post_quantum=True).pair_secret(transcript, 2),
        MaskKeys(drawn["mask"], post_quantum=True).pair_secret(transcript, 3),
    ]
    assert drawn["channel"] in seen[Stage.SHARE]
    assert drawn["channel"] not in seen[Stage.MASK]
    for secret in (drawn["channel_kem"], drawn["mask"], agreed):
        assert secret in seen[Stage.MASK]
        assert secret not in seen[Stage.CONSISTENCY]
    for secret in pairs:
        assert not any(secret in snapshot for snapshot in seen.values())
    last = parties["p02"].snapshot()
    # The root of the noise chain is what its last reply opens here: nobody dropped out.
    assert not any(secret in last for name, secret in drawn.items() if name != "noise_root")


@pytest.mark.heavy
@pytest.mark.parametrize("mode", OTHER_MODES)
def test_keys_of_masks_are_erased_when_the_vector_is_masked_in_every_mode(mode: str) -> None:
    parameters = parameters_in(mode)
    parties, drawn = open_parties(parameters), secrets_of(parameters, "p02")
    seen: dict[Stage, bytes] = {}

    def look(name: str, message: wire.Request) -> None:
        if name == "p02":
            seen[stage_of(message)] = parties["p02"].snapshot()  # as it stands before this request

    drive(parameters, parties, bend_request=look)
    for kind in ("mask",) if "direct" in mode else ("channel_kem", "mask"):
        assert drawn[kind] in seen[Stage.MASK]
        assert drawn[kind] not in seen[Stage.CONSISTENCY]


def test_a_masked_pair_secret_is_in_no_snapshot_between_request_and_vector() -> None:
    parameters = parameters_of(4, post_quantum=True)
    parties = open_parties(parameters)
    requests: list[bytes] = []

    def keep(name: str, message: wire.Request) -> None:
        if name == "p03" and stage_of(message) is Stage.MASK:
            requests.append(message.SerializeToString(deterministic=True))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(parameters, parties, bend_request=keep)
    machine = parties["p03"]
    before = machine.snapshot()
    machine.receive(requests[0])
    assert machine._pending is not None
    assert [len(secret) for secret in machine._pending.next_state.mask_secrets.values()] == [64, 64, 64]
    assert machine.snapshot() == before


def test_ml_kem_library_refuses_the_keys_that_the_standard_refuses() -> None:
    public = keys.KemSecretKey(bytes(32)).public
    with raises(PeerFault, "malformed-key"):
        keys.check_kem_key("p07", _not_canonical(public), keys.kem_key_hash(_not_canonical(public)))
    with pytest.raises(ValueError, match="ML-KEM-768"):
        keys.encapsulate(_not_canonical(public))
    secret, ciphertext = keys.encapsulate(public)
    assert keys.KemSecretKey(bytes(32)).decapsulate(ciphertext) == secret
    false = keys.KemSecretKey(bytes(32)).decapsulate(bytes(keys.CIPHERTEXT_BYTES))
    assert len(false) == 32
    assert false != secret
