"""What leaves a party looks random and holds no secret; what stays shows none of it to a debugger or a log."""

import logging
import traceback
from typing import Any

import numpy as np
import pytest

from tests.doubles.coded import raises
from tests.doubles.secagg import (
    QUESTION,
    answer,
    drive,
    enrolled_key,
    names_of,
    open_parties,
    parameters_of,
    secrets_of,
    stage_of,
    vector_of,
)
from undersong_common.errors import ConfigurationError, InternalError, PeerFault
from undersong_protocol.secagg import ring
from undersong_protocol.secagg.party import DERIVED, PartyMachine, WantsInput
from undersong_protocol.secagg.transitions import Phase, Stage
from undersong_protocol.statistics.vectors import GridVector, NoisyVector
from undersong_protocol.wire.messages import secagg_pb2 as wire

pytestmark = pytest.mark.usefixtures("both_kinds_of_masks")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"graph_above": 7}, {"merkle": (7, 5)}, {"tolerated_dropouts": 0, "colluders": 3}]
)
def test_whole_transcript_holds_no_secret_and_no_clean_vector(
    changes: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    parameters = parameters_of(12, sigma=300.0, dimension=64, **changes)
    parties = open_parties(parameters)
    shares: set[bytes] = set()
    sent: list[bytes] = []

    def look(name: str, message: wire.Request) -> None:
        if stage_of(message) is Stage.CONSISTENCY:
            for peer in parties[name]._state.peers.values():
                shares.update(value for value in (peer.self_share, peer.mask_share) if value)

    # One vector is lost, so mask keys, self-mask seeds and noise values are all opened.
    lost = [] if parameters.direct else ["p03"]
    drive(
        parameters,
        parties,
        lambda name, at: name in lost and at is Stage.MASK,
        transcript=sent,
        bend_request=look,
    )
    for name in names_of(12):
        for kind, secret in secrets_of(parameters, name).items():
            assert not any(secret in message for message in sent), f"{kind} of {name}"
        clean = vector_of(name, 64).values
        for data in (clean.tobytes(), clean.astype(np.uint32).tobytes()):
            assert not any(data in message for message in sent)
    requests_and_earlier = [m for m in sent if wire.Reply.FromString(m).stage != Stage.UNMASK]
    assert shares or parameters.direct
    assert not any(share in message for share in shares for message in requests_and_earlier)
    assert not caplog.records


@pytest.mark.parametrize("changes", [{}, {"merkle": (5, 3)}])
def test_self_mask_and_mask_key_shares_of_one_peer_are_never_both_released(changes: dict[str, object]) -> None:
    parameters = parameters_of(7, tolerated_dropouts=2, **changes)
    parties = open_parties(parameters)
    held: dict[str, dict[int, tuple[bytes, bytes]]] = {}
    opened: dict[str, bytes] = {}

    def look(name: str, message: wire.Request) -> None:
        if stage_of(message) is Stage.UNMASK:
            held[name] = {
                party: (peer.self_share, peer.mask_share)
                for party, peer in parties[name]._state.peers.items()
                if peer.self_share
            }

    def keep(name: str, reply: wire.Reply) -> None:
        if reply.stage == Stage.UNMASK:
            opened[name] = reply.body

    drive(
        parameters,
        parties,
        lambda name, at: name in ("p02", "p05") and at is Stage.MASK,
        bend_request=look,
        bend_reply=keep,
    )
    for name, body in opened.items():
        assert held[name]
        for party, (self_share, mask_share) in held[name].items():
            assert (self_share in body) != (mask_share in body)
            assert (mask_share in body) == (party in (2, 5))


@pytest.mark.heavy
def test_masked_vectors_are_uniform() -> None:
    """Chi-squared over the bytes of every masked vector of small clean vectors; false alarm below 1e-6 a vector."""
    for changes in ({}, {"tolerated_dropouts": 0, "colluders": 2}, {"graph_above": 3}, {"merkle": (4, 3)}):
        parameters = parameters_of(8, dimension=40_000, modulus_bits=32, **changes)
        vectors: dict[str, bytes] = {}

        def keep(name: str, reply: wire.Reply, vectors: dict[str, bytes] = vectors) -> None:
            if reply.stage == Stage.MASK:
                vectors[name] = reply.body

        drive(parameters, open_parties(parameters), bend_reply=keep)
        for body in vectors.values():
            counts = np.bincount(np.frombuffer(body, dtype=np.uint8), minlength=256)
            expected = len(body) / 256
            statistic = float(((counts - expected) ** 2 / expected).sum())
            assert 255 - 5 * 22.6 < statistic < 255 + 5 * 22.6
        words = [np.frombuffer(body, dtype="<u4").astype(np.float64) for body in vectors.values()]
        correlations = np.corrcoef(words) - np.eye(len(words))
        assert np.abs(correlations).max() < 5 / np.sqrt(40_000)


def test_vector_of_a_sum_of_one_party_is_masked_too() -> None:
    parameters = parameters_of(1, dimension=64, modulus_bits=32)
    vectors: list[bytes] = []
    opened = drive(
        parameters,
        open_parties(parameters),
        bend_reply=lambda _, reply: vectors.append(reply.body) if reply.stage == Stage.MASK else None,
    )
    clean = vector_of("p00", 64).values
    np.testing.assert_array_equal(opened.values, clean)
    assert (ring.to_signed(ring.unpack(vectors[0], 32, 64), 32) != clean).all()


def _until_mask(machine_of: str = "p01") -> tuple[PartyMachine, bytes]:
    parameters = parameters_of(4, sigma=30.0)
    parties = open_parties(parameters)
    found: dict[str, bytes] = {}

    class Stop(Exception):
        pass

    def stop(name: str, message: wire.Request) -> None:
        if stage_of(message) is Stage.MASK and name == machine_of:
            found["request"] = message.SerializeToString(deterministic=True)
            raise Stop

    with pytest.raises(Stop):
        drive(parameters, parties, bend_request=stop)
    return parties[machine_of], found["request"]


def test_derived_keys_are_dropped_with_the_secrets_that_they_come_from() -> None:
    parameters = parameters_of(10)
    parties = open_parties(parameters)
    left: dict[Stage, set[str]] = {}

    def look(name: str, message: wire.Request) -> None:
        if name == "p01":
            left[stage_of(message)] = vars(parties[name]).keys() & DERIVED.values()

    drive(parameters, parties, bend_request=look)
    assert "_channel_agreement" in left[Stage.SHARE] - left[Stage.MASK]
    assert left[Stage.MASK]
    assert not left[Stage.CONSISTENCY]


def test_vector_beyond_one_party_s_share_of_the_ring_is_not_masked() -> None:
    machine, request = _until_mask()
    machine.receive(request)
    parameters = machine._parameters
    largest = (1 << (parameters.modulus_bits - 1)) // parameters.size
    for value in (largest + 1, -largest - 1):
        with pytest.raises(ConfigurationError, match="is larger than the ring was planned for"):
            machine.provide(GridVector(np.full(17, value)), QUESTION)
    assert machine.provide(GridVector(np.full(17, -largest)), QUESTION).vector


def test_only_a_grid_vector_of_its_shape_is_masked_and_no_value_is_shown() -> None:
    machine, request = _until_mask()
    with raises(InternalError, "vector-too-early"):
        machine.provide(vector_of("p01", 17), QUESTION)
    assert isinstance(machine.receive(request), WantsInput)
    secret = 123_456_789
    wrong: Any
    for wrong, error in (
        (NoisyVector(np.full(17, secret)), InternalError),
        (GridVector(np.full(16, secret)), InternalError),
        (GridVector(np.full((17, 1), secret)), InternalError),
        (GridVector(np.full(17, secret, dtype=np.int32)), InternalError),
        (GridVector(np.full(17, float(secret))), InternalError),
        (GridVector(np.full(17, secret)), ConfigurationError),
        (GridVector(np.full(17, -(2**63))), ConfigurationError),
    ):
        with pytest.raises(error) as caught:
            machine.provide(wrong, QUESTION)
        assert str(secret) not in "".join(traceback.format_exception(caught.value))
        assert machine.phase is Phase.SHARED
    reply = machine.provide(vector_of("p01", 17), QUESTION)
    assert reply.vector


def test_every_copy_of_a_masked_vector_asks_the_ledger_for_its_charge() -> None:
    """A ledger that refused, or could not be written, must be asked again: no message makes the machine forget it."""
    machine, request = _until_mask()
    first = answer(machine, request, vector_of("p01", 17))
    assert first.vector
    with pytest.raises(PeerFault):
        machine.receive(b"\xff")
    restored = PartyMachine.restore(machine._parameters, "p01", enrolled_key("p01"), machine.snapshot())
    assert machine.receive(request) == first
    assert restored.receive(request) == first


def test_reprs_of_secure_aggregation_show_no_secret() -> None:
    machine, request = _until_mask()
    wants = machine.receive(request)
    reply = machine.provide(vector_of("p01", 17), QUESTION)
    shown = repr(machine) + repr(wants) + repr(reply) + repr(machine._state) + repr(machine._pending)
    secrets = secrets_of(parameters_of(4, sigma=30.0), "p01")
    for secret in secrets.values():
        assert repr(secret)[2:10] not in shown
    assert "PartyMachine('p01', MASKED)" in shown
