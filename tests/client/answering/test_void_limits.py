"""What a coalition of everyone else gains by attempts that it calls void, or aborts: bounded, and priced in advance."""

import os
from itertools import product
from pathlib import Path

import pytest

from tests.doubles.pace import slow_but
from tests.doubles.parties import identity_of
from tests.doubles.restarts import ME, SUM, Federated, Hospital, vector_in
from undersong_client.storage.attempts import ATTEMPT_EVERY_S, FREE_ATTEMPTS
from undersong_common.privacy import accounting
from undersong_common.privacy.ledger import VOIDED_VECTORS, Ledger
from undersong_protocol.secagg.coordinator import SumAborted
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire

PARTIES = {"shares": 3, "direct": 2}
SUMS = (SUM, "votes/2")


class Coalition:
    """A coordinator and every other party of the roster, which are its own: they sign whatever it likes."""

    def __init__(self, folder: Path, parties: int, spare_attempts: int) -> None:
        (folder / "hospital").mkdir()
        self.hospital = Hospital(folder / "hospital")
        self.party = self.hospital.start()
        self.federated = Federated(folder, self.hospital.identity, parties, spare_attempts=spare_attempts)
        self.federated.agree(lambda request: self.party.answer(request).reply)
        self.left: set[bytes] = set()
        self.refused = ""

    def certificate(self, name: str, attempt: int) -> wire.VoidCertificate:
        """Everyone but the hospital signs that nothing of an attempt was opened, which is false."""
        parameters = self.federated.manifest.sum_parameters(name, attempt)
        statements = {}
        for sybil in self.federated.others:
            machine = PartyMachine.open(parameters, sybil, identity_of(sybil), os.urandom)
            statements[sybil] = machine.void_statement().payload
        return wire.VoidCertificate(attempt=attempt, statements=statements)

    def opens(self, name: str, attempt: int) -> bool:
        """Whether an attempt is opened, after every earlier one was called void."""

        def ask(_stage: str, request: bytes) -> bytes:
            reply = self.party.answer(request).reply
            message = codec.decode_reply(reply, ME)
            if message.WhichOneof("body") == "refusal":
                self.refused = message.refusal.problem
            if vector := vector_in(reply):
                self.left.add(vector)
            return reply

        try:
            opened = self.federated.run(ask, attempt, name, [self.certificate(name, each) for each in range(attempt)])
        except SumAborted:
            return False
        return ME in opened.survivors

    @property
    def ledger(self) -> Ledger:
        return Ledger.read(self.hospital.path / "ledger.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "spare_attempts"), slow_but(product(PARTIES, [0, 1]), [("shares", 1), ("direct", 0)]))
def test_vectors_that_fake_parties_void_stay_within_stated_worst_case(
    tmp_path: Path, mode: str, spare_attempts: int
) -> None:
    coalition = Coalition(tmp_path, PARTIES[mode], spare_attempts)
    opened = 0
    for name in SUMS:
        spare = spare_attempts if name == SUM else 0  # of the whole run
        for attempt in range(1 + VOIDED_VECTORS + spare):
            assert coalition.opens(name, attempt), coalition.refused
            opened += 1
        # The honest ones among them have ended the last attempt too: nothing goes on from here.
        last = 1 + VOIDED_VECTORS + spare
        assert not coalition.opens(name, last)
        assert f"{name}: attempt {last} needs a spare attempt, and the plan's {spare_attempts} are used" in (
            coalition.refused
        )
    ledger, plan = coalition.ledger, coalition.federated.manifest.plan
    assert len(coalition.left) == opened == len(SUMS) * (1 + VOIDED_VECTORS) + spare_attempts
    assert [ledger.voided(coalition.federated.manifest.run, name) for name in SUMS] == [VOIDED_VECTORS] * len(SUMS)
    # At the assumed number of honest parties the plan was spent, no more.
    assert ledger.spent(plan.usable_delta) <= plan.epsilon() * (1 + 1e-6)
    # Against everyone else, every vector that left counts, and what the plan stated before the run covers it.
    left = [plan[name].event_alone(plan.quorum) for name in SUMS for _ in range(1 + VOIDED_VECTORS)]
    left += [plan[SUM].event_alone(plan.quorum)] * spare_attempts
    assert ledger.spent_if_all_others_collude(plan.usable_delta) == pytest.approx(
        accounting.epsilon(left, plan.usable_delta), rel=1e-6
    )
    stated = plan.epsilon_if_all_others_collude()
    assert 0.99 * stated <= ledger.spent_if_all_others_collude(plan.usable_delta) <= stated * (1 + 1e-6)


@pytest.mark.heavy
def test_void_certificate_for_an_unsent_vector_refunds_nothing(tmp_path: Path) -> None:
    coalition = Coalition(tmp_path, 3, 0)
    reply = coalition.party.answer(coalition.federated.opening()).reply
    assert codec.decode_reply(reply, ME).WhichOneof("body") == "sum_reply"
    assert coalition.opens(SUM, 1), coalition.refused
    ledger = coalition.ledger
    assert ledger.attempts(coalition.federated.manifest.run, SUM) == {1: "sent"}
    assert ledger.voided(coalition.federated.manifest.run, SUM) == 0


@pytest.mark.heavy
@pytest.mark.parametrize("prepared", [False, True])
def test_abandoned_attempts_cost_nothing_but_their_number_is_bounded(tmp_path: Path, prepared: bool) -> None:
    """Each makes the party draw keys and write: some at once, then one a minute, restarts included."""
    coalition = Coalition(tmp_path, 3, 0)
    hospital = coalition.hospital

    def begun(attempt: int) -> str:
        """Why an attempt is not begun; empty where it is."""
        federated = coalition.federated
        request = federated.preparing(attempt) if prepared else federated.opening(attempt=attempt)
        message = codec.decode_reply(coalition.party.answer(request).reply, ME)
        if message.WhichOneof("body") == "sum_reply":
            return ""
        assert message.refusal.kind == wire.Refusal.ABORTED
        return message.refusal.problem

    assert [begun(attempt) for attempt in range(FREE_ATTEMPTS)] == [""] * FREE_ATTEMPTS
    assert f"{FREE_ATTEMPTS} attempts were begun, the last one 0 s ago" in begun(FREE_ATTEMPTS)
    coalition.party = hospital.start()
    hospital.now += ATTEMPT_EVERY_S - 1.0
    assert f"{FREE_ATTEMPTS} attempts were begun, the last one 59 s ago" in begun(FREE_ATTEMPTS)
    hospital.now += 1.0
    assert begun(FREE_ATTEMPTS) == ""
    assert f"{FREE_ATTEMPTS + 1} attempts were begun, the last one 0 s ago" in begun(FREE_ATTEMPTS + 1)
    assert coalition.ledger.charges() == []
    assert len(list((hospital.path / "attempts").iterdir())) == 1  # each has ended the one before it
