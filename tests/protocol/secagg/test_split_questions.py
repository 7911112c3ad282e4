"""A coordinator that asks some parties one question and some another learns neither group's sum.

Without q in the pairwise seeds it would: the masks inside each group and between the groups would all cancel, and the
difference of the vectors that two questions give is as good as a vector in the clear.
"""

from collections.abc import Collection, Mapping

import numpy as np
import pytest

from tests.doubles.coded import raises
from tests.doubles.pace import slow_after
from tests.doubles.secagg import (
    QUESTION,
    drive,
    enrolled_key,
    exact_sum,
    names_of,
    open_parties,
    parameters_of,
    secrets_of,
    seed_of,
    stage_of,
    vector_of,
)
from undersong_common.errors import InternalError, PeerFault, UndersongError
from undersong_protocol.secagg import keys, ring, sid
from undersong_protocol.secagg.coordinator import SumAborted
from undersong_protocol.secagg.evidence import check_evidence
from undersong_protocol.secagg.graph import MaskGraph, drawn_graph
from undersong_protocol.secagg.masking import MaskKeys, Sign, add_masks
from undersong_protocol.secagg.messages import from_bitmap, to_bitmap
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.transitions import Stage
from undersong_protocol.statistics.vectors import Ring
from undersong_protocol.wire.messages import secagg_pb2 as wire

pytestmark = pytest.mark.usefixtures("both_kinds_of_masks")

OTHER = seed_of("other inputs")
DIMENSION = 4000
BITS = 32


class Split:
    """One attempt in which ``others`` were told other inputs, and everything that the coordinator got to see of it."""

    def __init__(self, parameters: SumParameters, others: set[str], lost: Collection[str] = ()) -> None:
        self.parameters = parameters
        self.others = others
        self.parties = open_parties(parameters)
        self.vectors: dict[str, Ring] = {}
        self.statements: dict[str, wire.Reply] = {}
        self.refusals: dict[str, UndersongError] = {}
        self.aborted: SumAborted | None = None
        self.values: np.ndarray | None = None
        asked = {name: OTHER if name in others else QUESTION for name in names_of(parameters.size)}
        try:
            opened = drive(
                parameters,
                self.parties,
                lambda name, at: name in lost and at is Stage.MASK,
                refusals=self.refusals,
                bend_reply=self._keep,
                asked=asked,
            )
            self.values = opened.values
            self.faults = [fault.party for fault in opened.faults]
        except SumAborted as aborted:
            self.aborted = aborted
            self.faults = [fault.party for fault in aborted.faults]

    def _keep(self, name: str, reply: wire.Reply) -> None:
        if reply.stage == Stage.MASK:
            self.vectors[name] = ring.unpack(reply.body, BITS, DIMENSION, name)
        if reply.stage == Stage.CONSISTENCY:
            self.statements[name] = reply

    @property
    def transcript(self) -> bytes:
        return self.parties["p00"]._state.transcript

    @property
    def topology(self) -> MaskGraph:
        if not self.parameters.merkle:
            return self.parameters.topology(self.transcript)
        states = {self.parameters.index(name): machine._state for name, machine in self.parties.items()}
        drawn, choosers = ({p: getattr(s, each) for p, s in states.items()} for each in ("drawn", "choosers"))
        return drawn_graph(self.parameters.draw, drawn, choosers)

    def without_self_masks(self, group: set[str]) -> Ring:
        """The group's vectors, their self masks taken out as if all had been opened: the most it could ever get."""
        total = np.zeros(DIMENSION, dtype=np.uint32)
        for name in group:
            total += self.vectors[name]
        if not self.parameters.direct:
            add_masks(total, [(secrets_of(self.parameters, name)["self_mask"], -1) for name in sorted(group)])
        return total

    def crossing(self, group: set[str], within: Collection[str] | None = None) -> Ring:
        """The group's masks towards all others (those in ``within``), computed with everybody's secrets."""
        own, transcript = self.parameters, self.transcript
        secrets = {name: secrets_of(own, name)["mask"] for name in names_of(own.size)}
        masks: list[tuple[bytes, Sign]] = []
        topology = self.topology
        for name in group:
            me, question = own.index(name), OTHER if name in self.others else QUESTION
            mine = MaskKeys(secrets[name], own.post_quantum)
            for other in topology.neighbours(me, range(own.size)):
                if own.name(other) not in group and (within is None or own.name(other) in within):
                    others = MaskKeys(secrets[own.name(other)], own.post_quantum)
                    shared = mine.agreed(own.name(other), others.public)
                    if own.post_quantum:
                        leads = topology.leads(me, other)
                        shared += (mine if leads else others).pair_secret(transcript, other if leads else me)
                    bound = sid.masked_among(question, to_bitmap(range(own.size), own.size)) if own.merkle else question
                    key = keys.mask_key(transcript, bound, shared, me, other)
                    masks.append((key, 1 if me < other else -1))
        total = np.zeros(DIMENSION, dtype=np.uint32)
        add_masks(total, masks)
        return total


def check_uniform(words: Ring) -> None:
    """Chi-squared over the bytes; false alarm below 1e-6."""
    counts = np.bincount(np.frombuffer(words.tobytes(), dtype=np.uint8), minlength=256)
    expected = 4 * len(words) / 256
    assert abs(float(((counts - expected) ** 2 / expected).sum()) - 255) < 5 * 22.6


MODES: Mapping[str, tuple[int, dict[str, object]]] = {
    "complete": (10, {}),
    "k-regular": (20, {"graph_above": 7, "tolerated_dropouts": 2}),
    "direct": (4, {"tolerated_dropouts": 0, "colluders": 2}),
    "Merkle": (20, {"merkle": (9, 7), "tolerated_dropouts": 2}),
}


def split(mode: str, others: int) -> tuple[Split, set[str], set[str]]:
    n, changes = MODES[mode]
    parameters = parameters_of(n, dimension=DIMENSION, modulus_bits=BITS, **changes)
    group = set(names_of(n)[-others:])
    return Split(parameters, group), group, set(names_of(n)) - group


@pytest.mark.heavy
@pytest.mark.parametrize("others", slow_after([1, 2, 3], 1))
@pytest.mark.parametrize("mode", MODES)
def test_two_groups_of_parties_asked_different_questions_reveal_no_sum(mode: str, others: int) -> None:
    played, small, large = split(mode, others)
    assert set(played.vectors) == small | large
    for group in (small, large, small | large):
        left = played.without_self_masks(group)
        exact = exact_sum(group, DIMENSION).astype(np.uint32)
        check_uniform(left - exact)
        # What hides it are exactly the masks between the groups, which nobody but their two owners can compute.
        assert np.array_equal(left, exact + sum_of_crossings(played, group, small, large))
    if played.values is not None:
        check_uniform(played.values.astype(np.uint32) - exact_sum(small | large, DIMENSION).astype(np.uint32))


def sum_of_crossings(played: Split, group: set[str], small: set[str], large: set[str]) -> Ring:
    if group == small | large:
        return played.crossing(small) + played.crossing(large)
    return played.crossing(group)


def test_masks_of_two_groups_would_cancel_if_seeds_ignored_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure above sees it: with masks that do not depend on q everything cancels."""
    real = keys.mask_key
    monkeypatch.setattr(keys, "mask_key", lambda transcript, _q, *rest: real(transcript, bytes(32), *rest))
    played, small, large = split("complete", 3)
    left = played.without_self_masks(small | large)
    assert np.array_equal(left, exact_sum(small | large, DIMENSION).astype(np.uint32))


@pytest.mark.parametrize("mode", ["complete", "k-regular"])
def test_the_coordinator_names_who_answered_another_question(mode: str) -> None:
    played, small, _ = split(mode, 2)
    assert played.faults == sorted(small)


def test_direct_mode_sum_aborts_naming_who_answered_another_question() -> None:
    played, small, _ = split("direct", 1)
    assert played.aborted is not None
    assert played.faults == sorted(small)
    assert "another question" in str(played.aborted)


def test_sum_aborts_if_too_few_parties_answered_each_question() -> None:
    played, _, _ = split("complete", 5)
    assert played.aborted is not None
    assert "5 parties are left and T = 6 are needed" in str(played.aborted)
    assert not any(party.released for party in played.parties.values())


@pytest.mark.parametrize("mode", ["complete", "k-regular"])
def test_party_refuses_a_survivor_signature_on_another_question(mode: str) -> None:
    """Half and half: the coordinator shows each party signatures of both groups, as many as it needs."""
    played, small, large = split(mode, MODES[mode][0] // 2)
    own = played.parameters
    shown = sorted(own.index(name) for name in [*sorted(small), *sorted(large)])[: own.threshold + 1]
    for name, party in played.parties.items():
        mine = small if name in small else large
        chosen = sorted({own.index(name), *shown})
        request = wire.Request(version=sid.VERSION, sid=own.sid)
        request.unmask.signers = to_bitmap(chosen, own.size)
        request.unmask.signatures = b"".join(played.statements[own.name(signer)].signature for signer in chosen)
        culprit = next(own.name(signer) for signer in chosen if own.name(signer) not in mine)
        with pytest.raises(PeerFault, match=f"{culprit}: its statement on this U3 .*of another question"):
            party.receive(request.SerializeToString())
        assert not party.released


@pytest.mark.parametrize("known", ["dropped", "colluder"])
def test_knowing_one_party_s_masks_does_not_open_a_split_sum(known: str) -> None:
    """p09's mask key is known: its vector is claimed lost and the key opened, or p09 is its accomplice."""
    lost = {"p09"} if known == "dropped" else set()
    parameters = parameters_of(10, dimension=DIMENSION, modulus_bits=BITS)
    played = Split(parameters, {"p07", "p08"}, lost)
    group, small = set(names_of(9)), {"p07", "p08"}
    assert (set(played.vectors) - group == set()) == (known == "dropped")
    hidden = played.without_self_masks(group) - exact_sum(group, DIMENSION).astype(np.uint32)
    hidden -= played.crossing(group)  # every mask with p09
    check_uniform(hidden)
    assert np.array_equal(hidden, played.crossing(small, group) + played.crossing(group - small, group))


def test_signed_evidence_states_which_question_was_asked() -> None:
    parameters = parameters_of(5)
    opened = drive(parameters, open_parties(parameters))
    assert check_evidence(parameters, opened.evidence).question == QUESTION
    message = wire.Evidence.FromString(opened.evidence)
    assert from_bitmap(message.survivors, 5, "x", "y") == tuple(range(5))
    message.question = OTHER
    with raises(PeerFault, "forged-statement"):
        check_evidence(parameters, message.SerializeToString())
    message.question = b""
    with raises(PeerFault, "evidence-without-question"):
        check_evidence(parameters, message.SerializeToString())


def test_party_masks_no_vector_without_the_question_s_digest() -> None:
    parameters = parameters_of(1)
    party = open_parties(parameters)["p00"]
    requests: list[bytes] = []

    class Stop(Exception):
        pass

    def stop(_name: str, message: wire.Request) -> None:
        if stage_of(message) is Stage.MASK:
            requests.append(message.SerializeToString(deterministic=True))
            raise Stop

    with pytest.raises(Stop):
        drive(parameters, {"p00": party}, bend_request=stop)
    party.receive(requests[0])
    with raises(InternalError, "question-length"):
        party.provide(vector_of("p00", 17), b"")
    reply = party.provide(vector_of("p00", 17), QUESTION)
    again = PartyMachine.restore(parameters, "p00", enrolled_key("p00"), party.snapshot())
    assert again.receive(requests[0]) == reply
    assert again._state.question == QUESTION
