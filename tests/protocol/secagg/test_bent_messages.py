"""Messages bent at random, in every mode alike: complete, k-regular and Merkle graph, and direct mode.

The named lies are in test_lying_coordinator.py and test_lying_party.py; here hypothesis bends any field of any request
or reply. What is opened is the survivors' exact sum or nothing, a party that refused stays silent, and no secret of a
party stands in anything that it sent.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.pace import examples
from tests.doubles.secagg import (
    drive,
    enrolled_key,
    expected_sum,
    names_of,
    open_parties,
    parameters_of,
    resign,
    secrets_of,
    stage_of,
)
from undersong_common.errors import PrivacyRefusal, UndersongError
from undersong_protocol.secagg.coordinator import SumAborted, UnmaskedSum
from undersong_protocol.secagg.messages import advertise_request
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.transitions import Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire

MODES: dict[str, tuple[int, dict[str, object]]] = {
    "complete": (5, {"tolerated_dropouts": 1, "colluders": 1}),
    "direct": (4, {"tolerated_dropouts": 0, "colluders": 1}),
    "k-regular": (12, {"tolerated_dropouts": 2, "colluders": 1, "graph_above": 7}),
    "Merkle": (12, {"tolerated_dropouts": 2, "colluders": 1, "merkle": (6, 4)}),
    "k-regular, direct": (12, {"tolerated_dropouts": 0, "colluders": 1, "graph_above": 7}),
}
STAGES: list[Stage] = [stage for stage in Stage if stage is not Stage.VOID]
QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def parameters_in(mode: str, post_quantum: bool) -> SumParameters:
    n, changes = MODES[mode]
    return parameters_of(n, sigma=100.0, dimension=5, post_quantum=post_quantum, **changes)


@dataclass(frozen=True)
class Bend:
    """One change of one message: which field (counted), how, and with what."""

    stage: Stage
    party: str
    field: int
    how: str
    at: int
    signed: bool = True


HOW = ("flip", "cut", "longer", "empty", "number", "drop", "twice", "swap")


@st.composite
def bends(draw: st.DrawFn, names: list[str], stages: list[Stage]) -> Bend:
    return Bend(
        draw(st.sampled_from(stages)),
        draw(st.sampled_from(names)),
        draw(st.integers(0, 9)),
        draw(st.sampled_from(HOW)),
        draw(st.integers(0, 2**12)),
        draw(st.booleans()),
    )


def bend(message: Any, how: Bend) -> None:
    """Changes one field of a protobuf message in place, as far as its kind allows."""
    present = [(descriptor, value) for descriptor, value in message.ListFields() if descriptor.name != "stage"]
    if not present:
        return
    descriptor, value = present[how.field % len(present)]
    name = descriptor.name
    if isinstance(value, bytes):
        setattr(message, name, _bent_bytes(value, how))
    elif isinstance(value, bool | int | float):
        setattr(message, name, type(value)(max(0, value + (1 if how.how in ("flip", "longer", "twice") else -1))))
    elif isinstance(value, str):
        setattr(message, name, value + "x")
    elif hasattr(value, "ListFields"):
        bend(value, how)
    elif len(value):
        _bend_list(value, how)


def _bent_bytes(value: bytes, how: Bend) -> bytes:
    if how.how == "cut":
        return value[: how.at % (len(value) + 1)]
    if how.how == "longer":
        return value + bytes(1 + how.at % 64)
    if how.how == "empty" or not value:
        return b""
    if how.how in ("swap", "twice") and len(value) >= 64:  # blocks of 32 bytes change places
        blocks = [value[start : start + 32] for start in range(0, len(value), 32)]
        one, two = how.at % len(blocks), (how.at // 64) % len(blocks)
        blocks[one], blocks[two] = blocks[two], blocks[one]
        return b"".join(blocks)
    changed = bytearray(value)
    changed[how.at // 8 % len(changed)] ^= 1 << (how.at % 8)
    return bytes(changed)


def _bend_list(values: Any, how: Bend) -> None:
    at = how.at % len(values)
    if how.how == "drop":
        del values[at]
    elif how.how == "twice":
        values.append(values[at])
    elif how.how == "swap" and len(values) > 1:
        copies = [type(each).FromString(each.SerializeToString()) for each in values]
        other = (at + 1) % len(copies)
        copies[at], copies[other] = copies[other], copies[at]
        del values[:]
        values.extend(copies)
    else:
        bend(values[at], how)


def opened_under(
    parameters: SumParameters, parties: dict[str, PartyMachine], **given: Any
) -> tuple[UnmaskedSum | None, dict[str, UndersongError], list[bytes]]:
    refusals: dict[str, UndersongError] = {}
    sent: list[bytes] = []
    try:
        return drive(parameters, parties, refusals=refusals, transcript=sent, **given), refusals, sent
    except SumAborted:
        return None, refusals, sent


def check_sum(parameters: SumParameters, opened: UnmaskedSum, doubtful: set[str]) -> None:
    """The exact sum of the survivors, where those in doubt may or may not have opened their excess noise."""
    survivors = set(opened.survivors)
    doubtful = doubtful & survivors
    choices = itertools.chain.from_iterable(
        itertools.combinations(sorted(doubtful), count) for count in range(len(doubtful) + 1)
    )
    assert any(
        np.array_equal(opened.values, expected_sum(parameters, opened.survivors, unopened)) for unopened in choices
    ), "what was opened is not the survivors' sum"


def check_parties(parameters: SumParameters, parties: dict[str, PartyMachine], sent: list[bytes]) -> None:
    """Who has ended the attempt stays silent and has forgotten; nobody's secrets were sent."""
    everything = b"".join(sent)
    for name, machine in parties.items():
        # The chains of noise and nonces are opened in the end; these secrets never are, as they stand.
        for secret in ("channel", "channel_kem", "mask", "self_mask", "noise_own", "sharing"):
            assert secrets_of(parameters, name)[secret] not in everything, f"{secret} of {name} was sent"
        if machine.tombstone:
            with raises(PrivacyRefusal, "attempt-ended"):
                machine.receive(advertise_request(parameters))
            restored = PartyMachine.restore(parameters, name, enrolled_key(name), machine.snapshot())
            assert restored.tombstone == machine.tombstone
            assert secrets_of(parameters, name)["channel"] not in machine.snapshot()


MASKED = 2**20  # far above every vector with its noise, far below a mask's largest coordinate


def check_lying_coordinator(mode: str, data: st.DataObject) -> None:
    parameters = parameters_in(mode, data.draw(st.booleans()))
    parties = open_parties(parameters)
    chosen = data.draw(st.lists(bends(names_of(parameters.size), STAGES), min_size=1, max_size=3))
    bent: set[str] = set()

    def lie(name: str, message: wire.Request) -> None:
        for how in chosen:
            if (how.party, how.stage) == (name, stage_of(message)):
                before = message.SerializeToString(deterministic=True)
                stage = message.WhichOneof("stage")
                bend(getattr(message, str(stage)), how)
                if message.SerializeToString(deterministic=True) != before:
                    bent.add(name)

    opened, refusals, sent = opened_under(parameters, parties, bend_request=lie)
    # On the Merkle graph two roots or two sets U2 are two transcripts: shares of one do not open under the other, and
    # masks do not cancel.
    split = mode == "Merkle" and any(how.stage in (Stage.REVEAL, Stage.MASK) and how.party in bent for how in chosen)
    assert split or set(refusals) <= bent, "a party refuses for what another one was told"
    assert all(parties[name].tombstone for name in refusals), "a party that refused goes on"
    if opened is not None and split:
        apart = int(np.abs(opened.values - expected_sum(parameters, opened.survivors)).max())
        if apart < MASKED:  # no mask is left in it: nobody's vector may be missing either
            check_sum(parameters, opened, bent)
    elif opened is not None:
        check_sum(parameters, opened, bent)
    check_parties(parameters, parties, sent)


def check_lying_party(mode: str, data: st.DataObject) -> None:
    parameters = parameters_in(mode, data.draw(st.booleans()))
    parties = open_parties(parameters)
    chosen = data.draw(st.lists(bends(names_of(parameters.size), STAGES), min_size=1, max_size=2))
    liars: set[str] = set()

    def lie(name: str, reply: wire.Reply) -> None:
        for how in chosen:
            if how.party != name or how.stage != reply.stage:
                continue
            before = reply.SerializeToString(deterministic=True)
            if (
                reply.stage == Stage.MASK
            ):  # a false vector is poisoning, which nothing stops; an unsigned one is stopped
                reply.body = _bent_bytes(reply.body, how)
            elif how.signed:
                _bend_body(reply, how)
                resign(parameters, reply)
            else:
                bend(reply, how)
            if reply.SerializeToString(deterministic=True) != before:
                liars.add(name)

    opened, _, sent = opened_under(parameters, parties, bend_reply=lie)
    if opened is not None:
        assert {fault.party for fault in opened.faults} <= liars, "somebody else is blamed"
        check_sum(parameters, opened, liars | {fault.party for fault in opened.faults})
    check_parties(parameters, parties, sent)


_BODIES: dict[int, Callable[[], Any]] = {
    int(Stage.ADVERTISE): wire.Advert,
    int(Stage.SHARE): wire.Shares,
    int(Stage.UNMASK): wire.Opening,
}


def _bend_body(reply: wire.Reply, how: Bend) -> None:
    make = _BODIES.get(int(reply.stage))
    if make is None:
        reply.body = _bent_bytes(reply.body, how)
        return
    body = make()
    try:
        body.ParseFromString(reply.body)
    except DecodeError:  # it was bent before
        reply.body = _bent_bytes(reply.body, how)
        return
    bend(body, how)
    reply.body = body.SerializeToString(deterministic=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES)
@settings(QUIET, max_examples=examples(5, 1500))
@given(data=st.data())
def test_randomly_altered_requests_open_no_secret(mode: str, data: st.DataObject) -> None:
    check_lying_coordinator(mode, data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES)
@settings(QUIET, max_examples=examples(5, 1500))
@given(data=st.data())
def test_randomly_altered_replies_open_no_wrong_sum(mode: str, data: st.DataObject) -> None:
    check_lying_party(mode, data)
