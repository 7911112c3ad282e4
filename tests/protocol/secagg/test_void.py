"""Void certificates: when an attempt can never be opened any more, and who may say so."""

import dataclasses

import pytest

from tests.doubles.coded import raises
from tests.doubles.secagg import drive, enrolled_key, names_of, open_parties, open_party, parameters_of, secrets_of
from undersong_common.errors import PrivacyRefusal
from undersong_protocol.secagg.coordinator import SumAborted, check_void_certificate, is_void
from undersong_protocol.secagg.evidence import statements_needed
from undersong_protocol.secagg.messages import advertise_request
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.sid import VERSION
from undersong_protocol.secagg.transitions import Phase, Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire

pytestmark = pytest.mark.usefixtures("both_kinds_of_masks")


def aborted_at(parameters: SumParameters, stage: Stage) -> dict[str, PartyMachine]:
    """Machines of an attempt whose every reply from ``stage`` on was lost."""
    parties = open_parties(parameters)
    with pytest.raises(SumAborted):
        drive(parameters, parties, lambda name, at: at >= stage)
    return parties


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.CONSISTENCY, Stage.UNMASK])
def test_enough_signed_statements_make_an_attempt_void(stage: Stage) -> None:
    parameters = parameters_of(10)
    parties = aborted_at(parameters, stage)
    # n - T + c = 10 - 6 + 1: more than five.
    assert statements_needed(parameters) == 6
    statements = {name: parties[name].void_statement().payload for name in names_of(10)[:6]}
    assert is_void(parameters, statements)
    check_void_certificate(parameters, statements)
    statements.pop("p00")
    assert not is_void(parameters, statements)
    with raises(PrivacyRefusal, "not-void"):
        check_void_certificate(parameters, statements)


def test_void_statement_erases_secrets_and_leaves_a_tombstone() -> None:
    parameters = parameters_of(10, sigma=90.0)
    machine = aborted_at(parameters, Stage.CONSISTENCY)["p01"]
    statement = machine.void_statement()
    assert not statement.vector
    assert machine.phase is Phase.TOMBSTONED
    snapshot = machine.snapshot()
    assert not any(secret in snapshot for secret in secrets_of(parameters, "p01").values())
    with raises(PrivacyRefusal, "attempt-ended"):
        machine.receive(advertise_request(parameters))
    restored = PartyMachine.restore(parameters, "p01", enrolled_key("p01"), snapshot)
    assert restored.void_statement() == statement


def test_party_that_never_took_part_can_sign_a_void_statement() -> None:
    parameters = parameters_of(10)
    assert open_party(parameters, "p01").void_statement().payload


def test_void_statement_is_refused_after_shares_were_released() -> None:
    parameters = parameters_of(10)
    parties = open_parties(parameters)
    drive(parameters, parties)
    with raises(PrivacyRefusal, "shares-released"):
        parties["p01"].void_statement()
    restored = PartyMachine.restore(parameters, "p01", enrolled_key("p01"), parties["p01"].snapshot())
    with raises(PrivacyRefusal, "shares-released"):
        restored.void_statement()


def test_direct_mode_party_cannot_void_an_attempt_after_its_vector_left() -> None:
    parameters = parameters_of(4, tolerated_dropouts=0, colluders=2)
    parties = open_parties(parameters)
    with pytest.raises(SumAborted):
        drive(parameters, parties, lambda name, at: at is Stage.MASK and name == "p03")
    for name in names_of(3):
        with raises(PrivacyRefusal, "shares-released"):
            parties[name].void_statement()
        # Not even a failed check afterwards makes it eligible.
        request = wire.Request(
            version=VERSION, sid=parameters.sid, consistency=wire.ConsistencyRequest(survivors=b"\x01")
        )
        with pytest.raises(PrivacyRefusal):
            parties[name].receive(request.SerializeToString())
        with raises(PrivacyRefusal, "shares-released"):
            parties[name].void_statement()
    # p03's reply was lost on the way, which p03 cannot know; a party that was never asked can say so.
    assert statements_needed(parameters) == 3


def test_void_statements_of_other_sums_stages_or_signers_do_not_count() -> None:
    parameters = parameters_of(10)
    parties = aborted_at(parameters, Stage.MASK)
    statements = {name: parties[name].void_statement().payload for name in names_of(10)[:6]}
    other = dataclasses.replace(parameters, attempt=1)
    assert not is_void(other, statements)
    foreign = open_party(other, "p00").void_statement().payload
    assert not is_void(parameters, {**statements, "p00": foreign})
    assert not is_void(parameters, {**statements, "p00": statements["p01"]})
    assert not is_void(parameters, {**statements, "p00": b"\xff"})
    advert = open_party(parameters, "p00").advertise().payload
    assert not is_void(parameters, {**statements, "p00": advert})
    assert not is_void(parameters, {**{k: v for k, v in statements.items() if k != "p00"}, "stranger": b""})


def test_regular_graph_counts_released_shares_by_neighbourhoods() -> None:
    parameters = parameters_of(300, tolerated_dropouts=30, colluders=20)
    plan = parameters.graph
    assert plan is not None
    needed = statements_needed(parameters)
    assert needed >= 300 - parameters.threshold + 20 + 1
    released = (300 - needed + 20) * plan.degree
    assert released < 270 * plan.threshold
