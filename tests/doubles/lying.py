"""A coordinator that bends one request: victims must refuse by name and forget; their secrets were never sent."""

import contextlib
from collections.abc import Callable

import pytest

from tests.doubles.coded import raises
from tests.doubles.secagg import drive, enrolled_key, open_parties, secrets_of, stage_of
from undersong_common.errors import PrivacyRefusal, UndersongError
from undersong_protocol.secagg.coordinator import SumAborted
from undersong_protocol.secagg.messages import advertise_request
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.transitions import Phase, Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire

VICTIM = "p03"

Bend = Callable[[wire.Request], object]
Lie = Callable[[SumParameters, wire.Request], object]


def bytes_of(part: str, field: str, change: Callable[[bytes], bytes]) -> Lie:
    """Changes one field of bytes of the stage's request."""

    def bend(_: SumParameters, message: wire.Request) -> None:
        sent = getattr(message, part)
        setattr(sent, field, change(getattr(sent, field)))

    return bend


def told(data: bytes) -> Callable[[bytes], bytes]:
    return lambda _: data


class Refused(Exception):
    """The stage has ended in which somebody refused."""


def play_lying_coordinator(
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
    lie: Lie,
    error: type[UndersongError],
    words: str,
    victims: tuple[str, ...] = (VICTIM,),
) -> None:
    """The victims refuse with these words, are tombstoned for good, and their secrets were never sent."""
    refusals, parties, sent = play_lying_coordinator(
        parameters, stage, lambda message: lie(parameters, message), victims
    )
    assert set(refusals) == set(victims)
    for victim in victims:
        with pytest.raises(error, match=words):
            raise refusals[victim]
        machine = parties[victim]
        assert machine.phase is Phase.TOMBSTONED
        with raises(PrivacyRefusal, "attempt-ended"):
            machine.receive(advertise_request(parameters))
        restored = PartyMachine.restore(parameters, victim, enrolled_key(victim), machine.snapshot())
        assert restored.phase is Phase.TOMBSTONED
        snapshot = machine.snapshot()
        everything = b"".join(sent)
        for name, secret in secrets_of(parameters, victim).items():
            assert secret not in snapshot, f"{name} survives the tombstone"
            assert secret not in everything, f"{name} was sent"
