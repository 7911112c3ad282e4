"""The driver, real parties and real secure aggregation together: what is opened is exact, once, or nothing."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from tests.doubles.lossy import LossyParties
from tests.doubles.pace import slow_after, slow_but
from tests.doubles.parties import embed, make_manifest, make_party, make_tables
from tests.doubles.votes import top_q_votes
from undersong.run.simulation import InProcess
from undersong_client.consent.approvals import Consent
from undersong_common.canonical import tagged_hash
from undersong_common.errors import PeerFault, RoundAborted
from undersong_common.privacy.ledger import Ledger
from undersong_protocol.agreement.manifest import plan_words
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.agreement.receipt import TAG, body
from undersong_protocol.secagg.parameters import defaults
from undersong_protocol.statistics import TopQVotes
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import Input, MemoryBlocks, Segment, encode_embeddings, named_blocks
from undersong_server.database.journal import Journal
from undersong_server.federation import agreement
from undersong_server.federation.exchange import PublicBlocks
from undersong_server.federation.sums import Federation
from undersong_server.progress import Silent

LABELS = ("x", "y")
CANDIDATES = [f"candidate {number}" for number in range(30)]
CANDIDATE_LABELS = np.array([number % 2 for number in range(30)], dtype=np.int64)


class World:
    """A federation whose every part can be thrown away and made again over the same folder."""

    def __init__(self, folder, parties=4, records=12, epsilon=math.inf, releases=2, **changes):
        self.folder = folder
        self.tables = make_tables(parties, records, LABELS)
        threshold, dropouts, colluders = defaults(parties)
        quorum = dataclasses.replace(Quorum(parties, threshold, dropouts, colluders), **changes.pop("quorum", {}))
        privacy = Privacy(epsilon, 1e-5, **changes.pop("privacy", {}))
        self.statistic = TopQVotes(q=3, candidates=len(CANDIDATES), labels=len(LABELS))
        requests = [SumRequest(f"votes/{t}", self.statistic) for t in range(1, releases + 1)]
        self.plan = plan_sums(requests, privacy, quorum)
        self.noise_seed = changes.pop("noise_seed", None)
        self.reachable = lambda name, number: True
        self.party_options = changes
        self.start()

    def start(self):
        self.store = MemoryBlocks()
        self.parties = {
            name: make_party(
                self.folder, name, table, noise_seed=self.noise_seed, blocks=self.store, **self.party_options
            )
            for name, table in self.tables.items()
        }
        self.manifest = make_manifest(self.plan, self.parties, LABELS)
        self.journal = Journal(self.folder / "journal.sqlite")
        self.blocks = PublicBlocks(self.journal)
        self.federation = Federation(
            LossyParties(self.parties, reachable=lambda name, number: self.reachable(name, number)),
            self.manifest,
            self.journal,
            Silent(),
            blocks=self.blocks,
        )

    def restart(self):
        self.journal.close()
        self.start()

    def inputs(self, count=30):
        data = encode_embeddings(embed(CANDIDATES[:count]), CANDIDATE_LABELS[:count])
        return [Input("candidates", (Segment(self.blocks.add(data)),))]

    def exact(self, names):
        near = np.zeros(len(CANDIDATES), dtype=np.int64)
        far = np.zeros_like(near)
        for name in names:
            table = self.tables[name]
            labels = np.array([LABELS.index(label) for label in table.labels])
            one, two = top_q_votes(embed(table.texts), labels, embed(CANDIDATES), CANDIDATE_LABELS, 3)
            near += one
            far += two
        return np.concatenate([near, far]) * (self.plan.sums[0].scale // 4)

    def charges(self):
        return {name: [e for e in self.ledger(name).entries() if e["kind"] == "charge"] for name in self.tables}

    def ledger(self, name):
        return Ledger.read(self.folder / f"{name}.ledger.jsonl")


class Persons(Consent):
    """Whose approval comes when they are asked a second time."""

    def __init__(self):
        self.asked = 0

    def reason_to_wait(self, manifest):
        self.asked += 1
        return "" if self.asked > 4 else "waits for the approval of a person at this party"


class Told(Silent):
    def __init__(self):
        self.lines = []

    def say(self, message):
        self.lines.append(message)


def hostile(world, reply):
    """The party p1 answers as ``reply`` has it (None: honestly); what the operator reads."""
    told = Told()
    world.federation._progress = told
    party = world.parties["p1"]
    handle = party.handle
    party.handle = lambda data: reply(wire.Request.FromString(data)) or handle(data)
    return told


def missing(*blocks):
    return wire.Reply(version=codec.VERSION, missing=wire.MissingBlocks(blocks=blocks)).SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["open_sum", "sum_step"])
@pytest.mark.parametrize("block", [b"\x07" * 32, b"short", b""])
def test_a_party_that_asks_for_an_unknown_public_block_is_left_out_by_name(tmp_path, kind, block):
    world = World(tmp_path)
    world.federation.agree()
    told = hostile(world, lambda request: missing(block) if request.WhichOneof("body") == kind else None)
    result = world.federation.private_sum("votes/1", world.inputs())
    assert (result.values == world.exact(sorted(world.parties.keys() - {"p1"}))).all()
    assert any("p1: asks for a public block" in line for line in told.lines)


@pytest.mark.heavy
def test_party_that_requests_known_blocks_again_does_not_stall_the_run(tmp_path):
    world = World(tmp_path)
    world.federation.agree()
    halves = [
        encode_embeddings(embed(part), CANDIDATE_LABELS[: len(part)]) for part in (CANDIDATES[:15], CANDIDATES[15:])
    ]
    inputs = [Input("candidates", tuple(Segment(world.blocks.add(half)) for half in halves))]
    blocks = named_blocks(inputs)
    asked = []

    def in_turn(request):
        if request.WhichOneof("body") != "open_sum":
            return None
        asked.append(request)
        assert len(asked) < 20
        return missing(blocks[len(asked) % len(blocks)])

    world.federation.private_sum("votes/1", inputs)  # from then on the party has them
    hostile(world, in_turn)
    world.federation.private_sum("votes/2", inputs)
    assert len(asked) <= 1 + len(blocks)


def test_protocol_fault_is_reported_with_the_name_of_its_party(tmp_path):
    world = World(tmp_path)
    world.federation.agree()
    party = world.parties["p1"]
    handle = party.handle

    def spoilt(data):
        reply = codec.decode_reply(handle(data), "p1")
        if reply.WhichOneof("body") == "sum_reply":
            reply.sum_reply.payload = b"\x08\x01" + reply.sum_reply.payload[:-70]
        return reply.SerializeToString()

    told = hostile(world, lambda _request: None)
    party.handle = spoilt
    world.federation.private_sum("votes/1", world.inputs())
    assert any(line.startswith("private sum votes/1: p1") for line in told.lines), told.lines


@pytest.mark.parametrize("large", [False, True])
def test_plans_nine_words_are_logged_once_while_people_decide(tmp_path, monkeypatch, large):
    world = World(tmp_path, consent=Persons())
    told, pauses = Told(), []
    if large:  # two seconds for each party to which the manifest is sent again
        monkeypatch.setattr(agreement, "APPROVAL_BYTES_S", len(world.manifest.to_bytes()) / 2)
    federation = Federation(
        InProcess(world.parties),
        world.manifest,
        world.journal,
        told,
        blocks=world.blocks,
        sleep=pauses.append,
    )
    assert len(federation.agree()) == 4
    assert pauses == [8.0 if large else 2.0]
    assert [plan_words(world.manifest.hash) in line for line in told.lines] == [True] + 4 * [False]
    assert [line.partition(" has approved")[0] for line in told.lines[1:]] == sorted(world.parties)


@pytest.mark.slow
@pytest.mark.parametrize("parties", [1, 2, 3, 5])
def test_noise_of_a_sum_has_the_planned_deviation(tmp_path, parties):
    world = World(tmp_path, parties=parties, epsilon=1.0)
    world.federation.agree()
    noise = []
    for name in ("votes/1", "votes/2"):
        opened = world.federation.private_sum(name, world.inputs())
        noise.append(opened.values - world.exact(world.tables))
        assert opened.sigma == pytest.approx(np.sqrt(_opened_variance(world)) / opened.scale)
    # 120 coordinates: the sample deviation is within a factor 1.35 with probability over 0.9999
    ratio = np.concatenate(noise).std() / np.sqrt(_opened_variance(world))
    assert 1 / 1.35 < ratio < 1.35


def _opened_variance(world):
    quorum, drawn = world.plan.quorum, world.plan.sums[0].drawn_sigma_integer
    return drawn**2 * quorum.parties / (quorum.parties - quorum.colluders)


@pytest.mark.slow
@pytest.mark.parametrize("lost_at", range(6))
def test_party_lost_at_any_message_leaves_the_exact_sum_of_the_others(tmp_path, lost_at):
    world = World(tmp_path, parties=5)
    world.federation.agree()
    # two messages are the agreement's; from then on p2 is silent
    world.reachable = lambda name, number: name != "p2" or number < 2 + lost_at
    opened = world.federation.private_sum("votes/1", world.inputs())
    everyone = sorted(world.tables)
    survivors = everyone if lost_at >= 3 else [name for name in everyone if name != "p2"]
    assert list(opened.survivors) == survivors
    assert np.array_equal(opened.values, world.exact(survivors))


def test_absent_party_gets_the_plans_signatures_before_its_first_sum(tmp_path):
    world = World(tmp_path, parties=4)
    world.reachable = lambda name, number: (name, number) != ("p2", 1)
    world.federation.agree()
    opened = world.federation.private_sum("votes/1", world.inputs())
    assert opened.survivors == tuple(sorted(world.tables))
    assert set(world.journal.items("sum/votes/1/")) == {
        f"sum/votes/1/{part}" for part in ("meta", "question", "values")
    }, "what the parties sent is deleted with the sum's opening"


@pytest.mark.heavy
def test_attempt_with_too_many_dropouts_opens_no_sum_and_is_not_charged(tmp_path):
    world = World(tmp_path, parties=5, epsilon=4.0)
    world.federation.agree()
    # p1 and p2 lose the message that asks for their masked vectors, once
    lost = {("p1", 4), ("p2", 4)}
    world.reachable = lambda name, number: (name, number) not in lost
    opened = world.federation.private_sum("votes/1", world.inputs())
    assert opened.survivors == tuple(sorted(world.tables))
    for name, charges in world.charges().items():
        assert {charge["attempt"] for charge in charges} == ({0, 1} if name not in ("p1", "p2") else {1})
        assert [charge.attempt for charge in world.ledger(name).charges()] == [1]


def test_progress_of_a_sum_counts_its_exchanges_from_zero(tmp_path):
    world = World(tmp_path)
    world.federation.agree()
    told = hostile(world, lambda _request: None)
    told.update = lambda *figures: told.lines.append(figures)
    world.federation.private_sum("votes/1", world.inputs())
    assert told.lines == [("private sum votes/1", number, 5) for number in range(5)]


def test_without_enough_parties_the_run_stops_with_the_reason_and_no_sum(tmp_path):
    world = World(tmp_path, parties=5)
    world.federation.agree()
    world.reachable = lambda name, number: name not in ("p1", "p2", "p3")
    with pytest.raises(RoundAborted, match="p1: does not answer"):
        world.federation.private_sum("votes/1", world.inputs())
    assert world.journal.get("sum/votes/1/values") is None


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it."""


def check_killed(kind, folder, at, messages, open_sums):
    """Killed at the message of that number, of so many, and continued, a run opens the sums of one that was not."""
    undisturbed = kind(folder / "one", parties=4, epsilon=2.0, noise_seed=7)
    expected = open_sums(undisturbed)

    world = kind(folder / "two", parties=4, epsilon=2.0, noise_seed=7)
    counter = itertools.count()

    def killer(name, number):
        if next(counter) == at:
            raise Killed
        return True

    world.reachable = killer
    killed = False
    try:
        open_sums(world)
    except Killed:
        killed = True
    assert killed == (at < messages)
    world.reachable = lambda name, number: killed  # sums that are open stand in the journal: nobody is asked again
    world.restart()
    found = open_sums(world)
    assert all(map(np.array_equal, found, expected))
    assert all(len(charges) == len(expected) for charges in world.charges().values())


@pytest.mark.slow
@pytest.mark.parametrize("at", slow_but(range(30), [0, 8, *range(9, 28, 4), 27, 28], quick=[0, 17, 28]))
def test_sum_is_unchanged_after_a_kill_at_any_message_and_a_restart(tmp_path, at):
    def opened(world):
        world.federation.agree()
        return [world.federation.private_sum("votes/1", world.inputs()).values]

    # proposal, signatures, then five stages, four parties each
    check_killed(World, tmp_path, at, 28, opened)


def test_receipt_lists_the_charges_of_the_run(tmp_path):
    world = World(tmp_path, epsilon=4.0)
    world.federation.agree()
    world.federation.private_sum("votes/1", world.inputs())
    receipts = world.federation.receipts()
    assert set(receipts) == set(world.tables)
    body = json.loads(receipts["p0"].body)
    assert [(entry["kind"], entry.get("query")) for entry in body["entries"]] == [
        ("charge", "votes/1"),
        ("close", None),
    ]
    assert body["manifest"] == world.manifest.hash.hex()


def changed(change):
    """The receipt's body after a change of its entries."""

    def forge(world, own):
        entries = json.loads(own)["entries"]
        change(entries)
        return body(world.manifest, "p1", entries)

    return forge


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forge", "taken"),
    slow_after(
        [
            (changed(lambda entries: None), True),
            (changed(lambda entries: entries.pop(0)), False),
            (changed(lambda entries: entries[0].update(words="of any length")), False),
            (changed(lambda entries: entries[0].update(attempt=False)), False),
            (changed(lambda entries: entries[0].update(attempt=0.0)), False),
            *((lambda _world, _own, forged=forged: forged, False) for forged in (b"\xff", b"[" * 100_000, b"{}")),
            (lambda _world, _own: b'{"party": "p1"}', False),
        ],
        5,
    ),
)
def test_false_or_incomplete_receipt_is_not_accepted(tmp_path, forge, taken):
    world = World(tmp_path, epsilon=4.0)
    world.federation.agree()
    world.federation.private_sum("votes/1", world.inputs())
    party = world.parties["p1"]
    handle = party.handle

    def lies(data):
        reply = codec.decode_reply(handle(data), "p1")
        if reply.WhichOneof("body") == "receipt":
            reply.receipt.body = forge(world, reply.receipt.body)
            reply.receipt.signature = party._identity.sign(tagged_hash(TAG, reply.receipt.body))
        return reply.SerializeToString()

    party.handle = lies
    assert sorted(world.federation.receipts()) == sorted(world.parties.keys() - (set() if taken else {"p1"}))


def test_malformed_requests_are_refused_without_an_exception(tmp_path):
    world = World(tmp_path, parties=1)
    from undersong_protocol.wire import codec

    for data in (b"", b"\xff\xff", b"\x08\x63"):
        reply = codec.decode_reply(world.parties["p0"].handle(data), "p0")
        assert reply.WhichOneof("body") == "refusal"
    with pytest.raises(PeerFault, match="p0"):
        codec.decode_reply(b"\x08\x63", "p0")
