"""The Merkle graph: proofs, draws, the failure bound, and a coordinator that attacks them with code of its own."""

import contextlib
import dataclasses
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.lying import VICTIM, Lie, bytes_of, check_refused, play_lying_coordinator, told
from tests.doubles.secagg import (
    QUESTION,
    answer,
    drive,
    enrolled_key,
    entropy_of,
    exact_sum,
    expected_sum,
    names_of,
    open_parties,
    open_party,
    parameters_of,
    resign,
    stage_of,
    vector_of,
)
from undersong_common.errors import ConfigurationError, PeerFault, PrivacyRefusal, UndersongError
from undersong_protocol.secagg import coordinator, drawn, graph, keys, merkle, sid
from undersong_protocol.secagg.coordinator import SumAborted, private_sum
from undersong_protocol.secagg.drawn import choose_draw, draw
from undersong_protocol.secagg.evidence import check_evidence, statements_needed
from undersong_protocol.secagg.graph import Neighbourhood, upper_tails
from undersong_protocol.secagg.messages import CHOOSER_BYTES, from_bitmap, to_bitmap
from undersong_protocol.secagg.parameters import Member, RosterPart, SumParameters
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.transitions import Phase, Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire

pytestmark = pytest.mark.usefixtures("both_kinds_of_masks")

TWENTY: dict[str, Any] = {"merkle": (9, 7), "tolerated_dropouts": 2}


# --- trees ----------------------------------------------------------------------------------------------------------


def leaves_of(count: int) -> list[bytes]:
    return [merkle.leaf("test", index, f"value {index}") for index in range(count)]


def under(size: int, leaves: dict[int, bytes], proof: bytes, root: bytes, label: str = "tree") -> bool:
    try:
        merkle.check(label, root, size, leaves, proof, "coordinator", "leaves")
    except PeerFault:
        return False
    return True


@given(data=st.data())
def test_merkle_proof_proves_its_leaves_and_no_others(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    leaves = leaves_of(size)
    tree = merkle.Tree("tree", leaves)
    shown = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    proof = tree.proof(merkle.places(size, shown))
    picked = {index: leaves[index] for index in shown}
    assert under(size, picked, proof, tree.root)
    false = dict(picked)
    changed = data.draw(st.sampled_from(sorted(shown)))
    false[changed] = merkle.leaf("test", changed, "another value")
    assert not under(size, false, proof, tree.root)
    assert not under(size, picked, proof + bytes(32), tree.root)
    assert not under(size, picked, proof, tree.root, "another label")
    assert not under(size + 1, picked, proof, tree.root)
    if proof:
        at = data.draw(st.integers(0, len(proof) - 1))
        assert not under(size, picked, proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :], tree.root)
        assert not under(size, picked, proof[:-32], tree.root)
    if size > 1:  # a leaf stands in its own place alone
        moved = {(index + 1) % size: value for index, value in picked.items()}
        moved_proof = tree.proof(merkle.places(size, moved))
        assert not under(size, moved, moved_proof, tree.root)


@pytest.mark.parametrize("size", [1, 3, 5, 7, 11])
def test_merkle_tree_with_a_repeated_last_leaf_has_another_root(size: int) -> None:
    """Where odd levels repeat their last node, two lists of leaves have one root (CVE-2012-2459)."""
    leaves = leaves_of(size)
    assert merkle.Tree("tree", leaves).root != merkle.Tree("tree", [*leaves, leaves[-1]]).root


def test_merkle_node_is_not_accepted_as_a_leaf() -> None:
    leaves = leaves_of(4)
    tree = merkle.Tree("tree", leaves)
    upper = [bytes(tree._levels[1][index]) for index in range(2)]
    assert merkle.Tree("tree", upper).root != tree.root  # the number of leaves is in the root
    assert not under(2, dict(enumerate(upper)), b"", tree.root)


def test_merkle_proof_without_leaves_proves_nothing() -> None:
    tree = merkle.Tree("tree", leaves_of(3))
    assert not under(3, {}, b"", tree.root)


# --- draws and the failure bound ------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_neighbour_draws_omit_oneself_are_uniform_and_follow_from_coins() -> None:
    counts = np.zeros(20, dtype=int)
    for number in range(2000):
        found = draw(20, 7, 5, entropy_of("coins", number)(32))
        assert len(set(found)) == 5
        assert list(found) == sorted(found)
        counts[list(found)] += 1
    assert counts[7] == 0
    expected = 2000 * 5 / 19
    assert sum((counts[other] - expected) ** 2 / expected for other in range(20) if other != 7) < 60  # below 1e-6
    assert draw(20, 7, 5, bytes(32)) == draw(20, 7, 5, bytes(32)) != draw(20, 7, 5, b"\1" * 32)
    assert draw(5, 2, 4, bytes(32)) == (0, 1, 3, 4)


@pytest.mark.slow
@pytest.mark.parametrize(("parties", "adversaries"), [(1000, 10), (1000, 100), (10_000, 100)])
def test_chosen_number_of_neighbours_meets_each_security_bound(parties: int, adversaries: int) -> None:
    dropouts = parties // 10
    plan = choose_draw(parties, adversaries, dropouts)
    k, t = plan.degree, plan.threshold
    ways = math.comb(parties - 1, k)

    def of(marked: int, least: int) -> float:
        tail = upper_tails(parties - 1, marked, k)[least]
        return math.log2(tail) - math.log2(ways) if tail else -math.inf

    assert math.log2(parties) + of(adversaries, 2 * t - k) < -40
    assert math.log2(parties) + of(dropouts, k - t + 1) < -20
    honest = parties - adversaries
    for size in (1, 2, 5, honest // 10, honest // 3, honest // 2):
        assert math.log2(math.comb(honest, size)) + size * of(size - 1 + adversaries, t) < -40
    # A larger draw than needed would cost without end; fewer parties than the next size are not enough.
    assert drawn._fit_draw(parties, adversaries, dropouts, k - 1) is None
    binomial = sum(
        math.exp(
            math.lgamma(parties)
            - math.lgamma(x + 1)
            - math.lgamma(parties - x)
            + x * math.log(k / (parties - 1))
            + (parties - 1 - x) * math.log1p(-k / (parties - 1))
        )
        for x in range(plan.choosers, plan.choosers + 300)
        if x < parties
    )
    assert math.log2(parties * binomial) < -40
    assert 0 < plan.stray <= parties // 100


@pytest.mark.slow
def test_more_adversaries_need_more_neighbours_and_too_many_are_refused() -> None:
    degrees = [choose_draw(2001, adversaries, 200).degree for adversaries in (1, 100, 200)]
    assert degrees == sorted(set(degrees))
    for adversaries, dropouts in ((700, 200), (1, 1200), (-1, 3), (1990, 20)):
        with raises(ConfigurationError, "no-neighbourhood"):
            choose_draw(2001, adversaries, dropouts)


def test_noise_plan_counts_stray_parties_as_colluders() -> None:
    parameters = parameters_of(20, sigma=3000.0, **TWENTY)
    vars(parameters)["graph"] = dataclasses.replace(parameters.draw, stray=2)
    del vars(parameters)["noise_plan"]
    assert parameters.noise_plan.colluders == parameters.colluders + 2


def test_terms_of_a_sum_decide_if_it_uses_the_merkle_graph() -> None:
    small, large = parameters_of(12), parameters_of(12, merkle_above=7)
    assert not small.merkle
    assert large.merkle
    assert small.terms != large.terms != parameters_of(12, merkle_above=8).terms
    assert not parameters_of(12, merkle_above=7, tolerated_dropouts=0, colluders=3).merkle  # direct mode stays
    with raises(PrivacyRefusal, "other-terms"):
        PartyMachine.open(small, VICTIM, enrolled_key(VICTIM), entropy_of(VICTIM)).receive(
            open_request(large).replace(large.sid, small.sid)
        )


def open_request(parameters: SumParameters) -> bytes:
    return next(private_sum(parameters, lambda: QUESTION))[VICTIM]


@pytest.mark.parametrize(
    ("size", "dropouts", "colluders", "merkle"),
    [(40, 4, 2, (12, 9)), (36, 2, 4, (10, 7))],  # of the second, the honest ones' shares fill a number of parties
)
def test_merkle_graph_needs_more_statements_to_void_an_attempt(
    size: int, dropouts: int, colluders: int, merkle: tuple[int, int]
) -> None:
    """All that m silent ones leave must stay below what the honest parties' secrets of a sum take."""
    parameters = parameters_of(size, tolerated_dropouts=dropouts, colluders=colluders, merkle=merkle)
    needed = statements_needed(parameters)
    plan = parameters.draw
    releasing = parameters.size - needed + parameters.colluders
    assert releasing * plan.choosers < (parameters.quorum - parameters.colluders) * plan.threshold
    assert needed > statements_needed(parameters_of(size, tolerated_dropouts=dropouts, colluders=colluders))
    vars(parameters)["graph"] = dataclasses.replace(plan, stray=10)  # a sum of so many fewer parties may open
    releasing = parameters.size - statements_needed(parameters) + parameters.colluders
    assert releasing * plan.choosers < (parameters.quorum - parameters.colluders - 10) * plan.threshold


# --- a party that knows only its own leaf ---------------------------------------------------------------------------


def part_of(parameters: SumParameters, name: str, required: str) -> SumParameters:
    known = {parameters.index(each): parameters.roster[parameters.index(each)] for each in (name, required)}
    proof = parameters.roster_tree.proof(merkle.places(parameters.size, known))
    part = RosterPart.opened(parameters.roster_hash, parameters.size, known, proof, "coordinator")
    alone = dataclasses.replace(parameters, roster=part)
    vars(alone)["graph"] = parameters.draw
    return alone


@pytest.mark.heavy
def test_parties_that_know_their_own_leaf_and_a_required_one_sum_exactly() -> None:
    parameters = parameters_of(20, sigma=1500.0, **TWENTY)
    parties = {}
    for name in names_of(20):
        own = part_of(parameters, name, "p05")
        assert own.terms == parameters.terms
        assert own.name(5) == "p05"
        assert own.name(17) == ("p17" if name == "p17" else "party 17")
        parties[name] = PartyMachine.open(own, name, enrolled_key(name), entropy_of(name, 0))
    lost = {"p07": Stage.MASK, "p11": Stage.SHARE}
    opened = drive(parameters, parties, lambda name, at: lost.get(name) is at)
    np.testing.assert_array_equal(opened.values, expected_sum(parameters, opened.survivors))
    assert set(names_of(20)) - set(opened.survivors) == set(lost)
    assert check_evidence(parameters, opened.evidence).survivors == opened.survivors
    with raises(ConfigurationError, "roster-part"):  # whoever knows a part of the signers' keys cannot check it
        check_evidence(own, opened.evidence)


def test_a_required_party_that_is_not_under_the_root_is_refused() -> None:
    parameters = parameters_of(20, **TWENTY)
    stranger = Member("p05", enrolled_key("stranger").public_key().public_bytes_raw())
    known = {3: parameters.roster[3], 5: stranger}
    proof = parameters.roster_tree.proof(merkle.places(20, known))
    with raises(PeerFault, "not-under-root"):
        RosterPart.opened(parameters.roster_hash, 20, known, proof, "coordinator")
    with pytest.raises(ConfigurationError, match="outside the roster"):
        RosterPart.opened(parameters.roster_hash, 20, {20: stranger}, proof, "coordinator")
    with pytest.raises(ConfigurationError, match="only the Merkle graph works with a part"):
        parameters_of(20, roster=RosterPart(bytes(32), 20, {3: parameters.roster[3]}))


# --- one request bent at one point ----------------------------------------------------------------------------------


def _flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def _own_key(parameters: SumParameters, message: wire.Request) -> None:
    """The coordinator's own keys and signature in the leaf of the first drawn party, whose identity it keeps."""
    entry = message.share.adverts[0]
    advert = wire.Advert.FromString(entry.body)
    advert.mask_key = advert.channel_key = keys.public_key(bytes(range(32)))
    entry.body = advert.SerializeToString()
    body = sid.body_hash(entry.body)
    entry.signature = keys.sign(enrolled_key("coordinator"), parameters.sid, Stage.ADVERTISE, entry.party, body)


def _own_identity(parameters: SumParameters, message: wire.Request) -> None:
    _own_key(parameters, message)
    message.share.roster[0].identity = enrolled_key("coordinator").public_key().public_bytes_raw()


def _fewer(parameters: SumParameters, message: wire.Request) -> None:
    del message.share.adverts[0], message.share.roster[0]


def _exchanged(parameters: SumParameters, message: wire.Request) -> None:
    one, two = message.share.roster[:2]
    one.name, two.name = two.name, one.name


def _choosers(change: Callable[[list[bytes]], list[bytes]]) -> Lie:
    def bend(_: SumParameters, message: wire.Request) -> None:
        data = message.share.choosers
        blocks = [data[start : start + CHOOSER_BYTES] for start in range(0, len(data), CHOOSER_BYTES)]
        message.share.choosers = b"".join(change(blocks))

    return bend


def _keyed(blocks: list[bytes], channel: bytes) -> list[bytes]:
    """One chooser after all others, that the victim did not draw or meet, with this channel key."""
    return [*blocks[:-1], blocks[-1][:4] + channel + blocks[-1][36:]]


def _as_signers(count: int, those: Callable[[SumParameters, list[int]], list[int]]) -> Lie:
    def bend(parameters: SumParameters, message: wire.Request) -> None:
        signers = those(parameters, list(from_bitmap(message.unmask.signers, parameters.size, "", "")))
        message.unmask.signers = to_bitmap(signers, parameters.size)
        message.unmask.signatures = message.unmask.signatures[:64] * len(signers)

    return bend


def _undrawn(parameters: SumParameters, signers: list[int]) -> list[int]:
    """All that signed, among whom are those that the victim did not draw."""
    return list(range(parameters.size))


LIES: dict[tuple[Stage, type[UndersongError]], dict[str, list[Lie]]] = {
    (Stage.REVEAL, PeerFault): {
        "not under the root": [
            bytes_of("reveal", "root", _flipped),
            bytes_of("reveal", "path", _flipped),
            bytes_of("reveal", "path", lambda path: path[:-32]),
            bytes_of("reveal", "path", lambda path: path + bytes(32)),
        ],
        "before this party drew": [lambda _, m: m.reveal.adverts.add(party=0)],
        "no set over a roster of 20": [bytes_of("reveal", "present", told(b"\xff" * 3))],
    },
    (Stage.REVEAL, PrivacyRefusal): {
        "omits this party": [bytes_of("reveal", "present", told(to_bitmap(set(range(20)) - {3}, 20)))],
        "17 parties, at least 18 are needed": [bytes_of("reveal", "present", told(to_bitmap(range(17), 20)))],
        "nonce roll 1; roll 0 is next": [lambda _, m: setattr(m.reveal, "roll", 1)],
    },
    (Stage.SHARE, PeerFault): {
        "the adverts: not under the root": [_own_key, bytes_of("share", "adverts_proof", _flipped)],
        "the roster's members: not under the root": [
            _own_identity,
            _exchanged,
            bytes_of("share", "roster_proof", _flipped),
            bytes_of("share", "roster_proof", lambda proof: proof[:-32]),
        ],
        "adverts of others than the parties that this one drew": [
            _fewer,
            lambda _, m: m.share.adverts.append(m.share.adverts[0]),
            lambda _, m: setattr(m.share.adverts[0], "party", 3),
            bytes_of("share", "nonces", told(bytes(32))),
        ],
        "does not carry its enrolled identity's signature": [
            lambda _, m: setattr(m.share.adverts[0], "signature", m.share.adverts[1].signature)
        ],
        "out of order, or parties that did not advertise": [
            _choosers(lambda blocks: blocks[::-1]),
            _choosers(lambda blocks: [blocks[0], *blocks]),
            _choosers(lambda blocks: [*blocks[:-1], (3).to_bytes(4, "little") + blocks[-1][4:]]),
            _choosers(lambda blocks: [*blocks, (20).to_bytes(4, "little") + bytes(64)]),
        ],
        "at most 20 can have": [_choosers(lambda blocks: blocks + [bytes(CHOOSER_BYTES)] * 20)],
        "choosers: expected": [bytes_of("share", "choosers", lambda data: data + b"x")],
    },
    (Stage.UNMASK, PrivacyRefusal): {
        "did not draw .foreign signatures": [_as_signers(20, _undrawn)],
        "6 signatures on U3 where 7 are needed": [_as_signers(6, lambda _, signers: signers[:-1])],
    },
    (Stage.UNMASK, PeerFault): {
        "its statement on this U3 .forged, duplicate": [_as_signers(7, lambda _, signers: signers)],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "lie", "error", "words"),
    [
        pytest.param(stage, lie, error, words, id=f"{stage.title}: {words} {number}")
        for (stage, error), sentences in LIES.items()
        for words, lies in sentences.items()
        for number, lie in enumerate(lies)
    ],
)
def test_party_on_the_merkle_graph_refuses_an_altered_request(
    stage: Stage, lie: Lie, error: type[UndersongError], words: str
) -> None:
    check_refused(parameters_of(20, **TWENTY), stage, lie, error, words)


@pytest.mark.heavy
@pytest.mark.parametrize("channel", [bytes(32), b"\xff" * 32, keys.public_key(bytes(range(32)))])
def test_false_keys_of_a_party_that_drew_another_end_the_attempt(channel: bytes) -> None:
    """A chooser's keys come without a signature: what it sealed does not open under others."""
    parameters = parameters_of(20, **TWENTY)
    lie = _choosers(lambda blocks: _keyed(blocks, channel))
    refusals, parties, _ = play_lying_coordinator(parameters, Stage.SHARE, lambda message: lie(parameters, message))
    assert parties[VICTIM].phase is Phase.TOMBSTONED
    assert set(refusals) == {VICTIM}


def test_false_mask_key_of_a_party_that_drew_another_ends_the_attempt() -> None:
    """Its shares name the mask key under which its masks are made: a sum that comes out wrong is not opened."""
    parameters = parameters_of(20, **TWENTY)
    other = keys.public_key(bytes(range(32)))

    def bend(message: wire.Request) -> None:
        drawn_by = {entry.party for entry in message.share.adverts}
        data = message.share.choosers
        blocks = [data[start : start + CHOOSER_BYTES] for start in range(0, len(data), CHOOSER_BYTES)]
        at = next(i for i, block in enumerate(blocks) if int.from_bytes(block[:4], "little") not in drawn_by)
        blocks[at] = blocks[at][:36] + other
        message.share.choosers = b"".join(blocks)

    refusals, _, _ = play_lying_coordinator(parameters, Stage.SHARE, bend)
    assert "its shares for this party do not open" in str(refusals[VICTIM])


@pytest.mark.slow
@pytest.mark.parametrize("stage", [Stage.MASK, Stage.CONSISTENCY])
def test_party_signs_nothing_if_most_of_its_drawn_neighbours_are_gone(stage: Stage) -> None:
    parameters = parameters_of(40, merkle=(8, 5), tolerated_dropouts=12)
    parties = open_parties(parameters)

    def bend(name: str, message: wire.Request) -> None:
        if name == VICTIM and stage_of(message) is stage:
            gone = set(parties[VICTIM]._state.drawn[:4])
            bitmap = to_bitmap(set(range(40)) - gone, 40)
            if stage is Stage.MASK:
                message.mask.sharers = bitmap
            else:
                message.consistency.survivors = bitmap

    refusals: dict[str, UndersongError] = {}
    drive(parameters, parties, refusals=refusals, bend_request=bend)
    assert "keeps 4 of 8 drawn neighbours, 5 are needed" in str(refusals[VICTIM])


# --- attacks --------------------------------------------------------------------------------------------------------


def test_party_answers_one_merkle_root_per_attempt_with_one_draw() -> None:
    """Grinding: each root gives one draw, which nobody can tell beforehand, and there is one root in an attempt."""
    parameters = parameters_of(20, **TWENTY)
    adverts = {name: open_party(parameters, name).advertise().payload for name in names_of(20)}
    rounds = private_sum(parameters, lambda: QUESTION)
    next(rounds)
    request = rounds.send(adverts)[VICTIM]
    other = private_sum(parameters, lambda: QUESTION)
    next(other)
    without = other.send({name: payload for name, payload in adverts.items() if name != "p11"})[VICTIM]
    machine = open_party(parameters, VICTIM)
    machine.advertise()
    before = machine.snapshot()
    drew = machine.receive(request)
    assert machine.receive(request) == drew
    assert machine.snapshot() != before
    with raises(PrivacyRefusal, "second-request"):
        machine.receive(without)
    assert machine.phase is Phase.TOMBSTONED
    # A party that lost power before it answered draws the same again, and other coins draw others under this root.
    restored = PartyMachine.restore(parameters, VICTIM, enrolled_key(VICTIM), before)
    assert restored.receive(request) == drew
    again = PartyMachine.restore(parameters, VICTIM, enrolled_key(VICTIM), before)
    assert again.receive(without) != drew
    draws = set()
    for number in range(8):
        entropy = entropy_of(VICTIM, parameters.attempt)
        sequence = [entropy(32) for _ in range(8)]
        sequence[5] = entropy_of("other coins", number)(32)  # the secret "nonce": the advert does not change with it
        coins = iter(sequence)
        twin = PartyMachine.open(parameters, VICTIM, enrolled_key(VICTIM), partial(_next_of, coins))
        assert twin.advertise().payload == adverts[VICTIM]
        draws.add(wire.Reply.FromString(twin.receive(request).payload).body)  # type: ignore[union-attr]
    assert len(draws) == 8


def _next_of(values: Iterator[bytes], _: int) -> bytes:
    return next(values)


def test_shares_dealt_under_different_merkle_roots_cannot_be_mixed() -> None:
    """Half of the parties are shown a root with another advert of p19: nothing that they deal opens at the others."""
    parameters = parameters_of(20, **TWENTY)
    parties = open_parties(parameters)
    twin = PartyMachine.open(parameters, "p19", enrolled_key("p19"), entropy_of("p19", "twin")).advertise().payload
    adverts = {name: machine.advertise().payload for name, machine in parties.items()}
    views = [private_sum(parameters, lambda: QUESTION) for _ in range(2)]
    for view in views:
        next(view)
    requests = [view.send(adverts | ({"p19": twin} if number else {})) for number, view in enumerate(views)]
    assert requests[0]["p00"] != requests[1]["p00"]
    half = {name: int(name in names_of(20)[10:19]) for name in names_of(20)}
    for _ in (Stage.REVEAL, Stage.SHARE):
        replies = {name: parties[name].receive(requests[half[name]][name]).payload for name in names_of(20)}  # type: ignore[union-attr]
        requests = [view.send(replies) for view in views]
    refused = 0
    for name in names_of(20):
        with pytest.raises(PeerFault, match="do not open: swapped or corrupted ciphertext, or another view"):
            parties[name].receive(requests[half[name]][name])
        refused += parties[name].phase is Phase.TOMBSTONED
    assert refused == 20


def test_invented_merkle_leaf_is_refused_by_the_parties_that_drew_it() -> None:
    """p11 is away; the coordinator puts keys of its own under its leaf, and everybody whom it counts on refuses."""
    parameters = parameters_of(20, **TWENTY)
    parties = open_parties(parameters)
    adverts = {name: machine.advertise().payload for name, machine in parties.items() if name != "p11"}
    invented = wire.Advert.FromString(wire.Reply.FromString(adverts["p12"]).body)
    invented.channel_key, invented.mask_key = (keys.public_key(bytes([each]) * 32) for each in (1, 2))
    body = invented.SerializeToString()
    leaves = []
    for party, name in enumerate(names_of(20)):
        own = body if name == "p11" else wire.Reply.FromString(adverts[name]).body
        leaves.append(merkle.leaf("advert", party, own))
    tree = merkle.Tree("adverts", leaves)
    drew: dict[str, list[int]] = {}
    for party, name in enumerate(names_of(20)):
        if name == "p11":
            continue
        reveal = wire.RevealRequest(
            present=to_bitmap(range(20), 20), root=tree.root, path=tree.proof(merkle.places(20, [party]))
        )
        message = wire.Request(version=sid.VERSION, sid=parameters.sid, reveal=reveal)
        drew[name] = list(np.frombuffer(wire.Reply.FromString(answered(parties[name], message)).body, "<u4"))
    assert any(11 in others for others in drew.values())
    for name, others in drew.items():
        if 11 not in others:
            continue
        places = merkle.places(20, others)
        share = wire.ShareRequest(adverts_proof=tree.proof(places), roster_proof=parameters.roster_tree.proof(places))
        for other in others:
            known = parameters.roster[other]
            share.roster.add(name=known.name, identity=known.identity)
            reply = wire.Reply.FromString(adverts.get(known.name, adverts["p12"]))
            share.adverts.add(party=other, body=body if other == 11 else reply.body, signature=reply.signature)
        message = wire.Request(version=sid.VERSION, sid=parameters.sid, share=share)
        with pytest.raises(PeerFault, match="p11: its advert does not carry its enrolled identity's signature"):
            parties[name].receive(message.SerializeToString())


def answered(machine: PartyMachine, message: wire.Request) -> bytes:
    return answer(machine, message.SerializeToString(deterministic=True), vector_of("p00", 17)).payload


class SplitSurvivors:
    """A coordinator that shows the parties of each group other survivors, and unmasks what it can of every group.

    ``out``: by group, who is said to have dropped out; ``group``: of each party.
    """

    def __init__(self, parameters: SumParameters, group: dict[str, int], out: list[set[int]]) -> None:
        self.parameters, self.parties = parameters, open_parties(parameters)
        views = [to_bitmap(set(range(parameters.size)) - gone, parameters.size) for gone in out]
        statements: list[dict[int, bytes]] = [{} for _ in out]
        self.openings: dict[str, bytes] = {}
        self.refusals: dict[str, UndersongError] = {}

        def bend(name: str, message: wire.Request) -> None:
            me = group[name]
            if stage_of(message) is Stage.CONSISTENCY:
                message.consistency.survivors = views[me]
            if stage_of(message) is Stage.UNMASK:
                self._unmask(name, message, statements[me])

        def keep(name: str, reply: wire.Reply) -> None:
            if reply.stage == Stage.CONSISTENCY:
                statements[group[name]][reply.party] = reply.signature
                reply.body = agreed(self.parties[name], parameters, range(parameters.size))
                reply.signature = keys.sign(
                    enrolled_key(name), parameters.sid, Stage.CONSISTENCY, reply.party, sid.body_hash(reply.body)
                )
            if reply.stage == Stage.UNMASK:
                self.openings[name] = reply.body

        with contextlib.suppress(SumAborted):
            drive(parameters, self.parties, refusals=self.refusals, bend_request=bend, bend_reply=keep)
        self.statements = statements

    def _unmask(self, name: str, message: wire.Request, signed: dict[int, bytes]) -> None:
        drawn_by = self.parties[name]._state.drawn
        signers = [party for party in drawn_by if party in signed]
        message.unmask.signers = to_bitmap(signers, self.parameters.size)
        message.unmask.signatures = b"".join(signed[party] for party in signers)

    def released(self) -> dict[int, tuple[int, int]]:
        """(self-mask shares, mask-key shares) of each dealer that left the parties."""
        found: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for name, body in self.openings.items():
            opening = wire.Opening.FromString(body).shares
            state = self.parties[name]._state
            for place, dealer in enumerate(state.choosers):
                assert len(opening[33 * place : 33 * place + 33]) == 33
                found[dealer][int(dealer not in state.survivors)] += 1
        return {dealer: (one, two) for dealer, (one, two) in found.items()}


def agreed(machine: PartyMachine, parameters: SumParameters, survivors: Any) -> bytes:
    """The statement that the honest coordinator waits for, so that it goes on to unmask."""
    everybody = to_bitmap(survivors, parameters.size)
    return sid.opened_set(machine._state.transcript, QUESTION, everybody, everybody)


@pytest.mark.slow
@pytest.mark.parametrize("others", [5, 10, 15])
def test_different_survivor_sets_never_open_both_secrets_of_one_party(others: int) -> None:
    """Two groups of any sizes; the second is told that p00 dropped out."""
    parameters = parameters_of(30, merkle=(11, 8), tolerated_dropouts=3)
    group = {name: int(number < others) for number, name in enumerate(names_of(30)[1:])} | {"p00": 0}
    played = SplitSurvivors(parameters, group, [set(), {0}])
    assert all(len(each) > 0 for each in played.statements)
    for self_shares, mask_shares in played.released().values():
        assert min(self_shares, mask_shares) < parameters.share_threshold
    for name in played.openings:
        # Whoever opened anything saw that T of its own draw signed exactly its view, so its own key cannot be opened.
        mine = played.statements[group[name]]
        state = played.parties[name]._state
        assert sum(party in mine for party in state.drawn) >= parameters.share_threshold
        assert played.released().get(parameters.index(name), (0, 0))[1] < parameters.share_threshold


@pytest.mark.slow
def test_survivors_without_a_victim_s_neighbours_do_not_open_its_self_mask() -> None:
    """All but the victim's own neighbours go on: the shares of its self mask lie with those that are left out."""
    parameters = parameters_of(40, merkle=(8, 6), tolerated_dropouts=12)
    machines = open_parties(parameters)
    with pytest.raises(Stopped):
        drive(parameters, machines, bend_request=_until(Stage.SHARE))
    victim = machines[VICTIM]._state.drawn
    played = SplitSurvivors(parameters, dict.fromkeys(names_of(40), 0), [set(victim[:7])])
    assert "keeps 1 of 8 drawn neighbours" in str(played.refusals[VICTIM])
    assert played.openings
    assert played.released().get(3, (0, 0))[0] < parameters.share_threshold


@pytest.mark.slow
def test_other_masking_set_told_to_choosers_leaves_no_living_party_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the victim's choosers, who make no mask with it, are shown U2 without it; all others sign that it is alive.

    Were masks not bound to U2, the sum without the victim would open, and no dropout would count for the noise.
    """
    parameters = parameters_of(80, merkle=(12, 7), tolerated_dropouts=6)
    parties, victim = open_parties(parameters), 3
    everybody, others = to_bitmap(range(80), 80), to_bitmap(set(range(80)) - {victim}, 80)
    honest_draws = coordinator._Attempt._collect_draws
    signed: dict[int, bytes] = {}

    def quiet(self: Any, *arguments: Any) -> Any:
        present, topology, transcript = yield from honest_draws(self, *arguments)
        draws = {party: () if party == victim else topology.holders(party, present) for party in present}
        choosers = {party: set(topology.dealers(party, present)) - {victim} for party in present}
        return present, graph.drawn_graph(parameters.draw, draws, choosers), transcript

    def drew(name: str) -> bool:
        return victim in parties[name]._state.drawn

    def bend(name: str, message: wire.Request) -> None:
        stage = stage_of(message)
        if stage is Stage.MASK and not drew(name):
            message.mask.sharers = everybody
        if stage is Stage.CONSISTENCY:
            message.consistency.survivors = everybody
        if stage is Stage.UNMASK:
            signers = [party for party in parties[name]._state.drawn if party in signed]
            message.unmask.signers = to_bitmap(signers, 80)
            message.unmask.signatures = b"".join(signed[party] for party in signers)

    def keep(_: str, reply: wire.Reply) -> None:
        if reply.stage == Stage.CONSISTENCY:
            signed[reply.party] = reply.signature
            reply.body = sid.opened_set(parties["p00"]._state.transcript, QUESTION, others, others)
            resign(parameters, reply)

    monkeypatch.setattr(coordinator._Attempt, "_collect_draws", quiet)
    refusals: dict[str, UndersongError] = {}
    opened = drive(
        parameters, parties, lambda name, at: at is Stage.CONSISTENCY and drew(name), refusals, None, bend, keep
    )
    assert set(refusals) == {VICTIM}
    assert 60 < len(signed) < 79
    assert np.mean(opened.values == exact_sum(opened.survivors, parameters.dimension)) < 0.5


class Stopped(Exception):
    """The stage has come up to which a sum is played."""


def _until(stage: Stage) -> Callable[[str, wire.Request], None]:
    def stop(_: str, message: wire.Request) -> None:
        if stage_of(message) is stage:
            raise Stopped

    return stop


def cut_off(plan: Neighbourhood, parties: int, dropouts: int, seed: int) -> int:
    """Parties that a coordinator keeps out of a sum by calling everybody dropped out who drew them, unheard themselves.

    It takes those first that cost it the fewest further dropouts.
    """
    rng = random.Random(seed)
    choosers: dict[int, set[int]] = {party: set() for party in range(parties)}
    for party in range(parties):
        for other in draw(parties, party, plan.degree, rng.randbytes(32)):
            choosers[other].add(party)
    out: set[int] = set()
    left = 0
    while choosers:
        cheapest = min(choosers, key=lambda party: len(choosers[party] - out))
        out |= choosers.pop(cheapest)
        if len(out) > dropouts:
            break
        left += cheapest not in out
    return left


@pytest.mark.slow
def test_dropouts_isolate_no_more_parties_than_the_noise_plan_assumes() -> None:
    """The hidden draw: who is drawn by nobody in the sum, and whose own draw nobody hears of, has no mask in it."""
    plan = choose_draw(1000, 10, 200)
    assert 0 < cut_off(plan, 1000, 200, seed=1) <= plan.stray
    # With few neighbours many would be cut off: the bound is what the graph is chosen for.
    assert cut_off(Neighbourhood(8, 5), 1000, 200, seed=1) > 3 * plan.stray
