"""One contract for every transport: the same inputs, opened sums, ledgers and refusals, whatever carries them.

"gRPC" is the real server with real daemons; "Flower" is the real ClientApp on Flower's own in-memory grid and loop.
(test_flower_processes.py starts Flower's programs.) Every party folder is made by the hospital's own commands.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback

import numpy as np
import pytest

from tests.doubles.carried import TRANSPORTS, carried, losing, stage_of
from tests.doubles.pace import slow_but
from tests.doubles.parties import EMBEDDER, embed
from undersong_common.errors import PrivacyRefusal, RoundAborted
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg import parameters
from undersong_protocol.secagg.drawn import Draw
from undersong_protocol.secagg.parameters import Member, defaults
from undersong_protocol.statistics import TopQVotes
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as fed
from undersong_protocol.wire.public import Input, Segment, encode_embeddings
from undersong_server.database.journal import Journal
from undersong_server.federation.agreement import introduce
from undersong_server.federation.exchange import PublicBlocks
from undersong_server.federation.sums import Federation
from undersong_server.progress import Silent

pytestmark = pytest.mark.heavy

LABELS = ("x", "y")
CANDIDATES = [f"candidate {number}" for number in range(30)]
REFERENCE = "in process"
OTHERS = [kind for kind in TRANSPORTS if kind != REFERENCE]


def unhurried(kinds):
    """The same transports; those that start daemons or Flower's loop for every case, only in the long suite."""
    return [pytest.param(kind, marks=pytest.mark.slow) if kind in ("gRPC", "Flower") else kind for kind in kinds]


class Run:
    """A run of a few votes over whichever transport."""

    def __init__(self, hospitals, transport, folder, *, sums=2, epsilon=4.0, run="a run", progress=None):
        names = sorted(hospitals.homes)
        threshold, dropouts, colluders = defaults(len(names))
        statistic = TopQVotes(q=3, candidates=len(CANDIDATES), labels=len(LABELS))
        plan = plan_sums(
            [SumRequest(f"votes/{number}", statistic) for number in range(1, sums + 1)],
            Privacy(epsilon, 1e-4),
            Quorum(len(names), threshold, dropouts, colluders),
        )
        found = introduce(transport, names, 30.0)
        self.manifest = Manifest(
            run=run,
            task={"name": "test", "description": "a note", "labels": list(LABELS)},
            method="test",
            embedder=EMBEDDER,
            roster=tuple(Member(name, found[name].identity) for name in names),
            plan=plan,
        )
        labels = np.array([number % 2 for number in range(len(CANDIDATES))], dtype=np.int64)
        journal = Journal(folder / f"{run}.sqlite")
        blocks = PublicBlocks(journal)
        self.inputs = [Input("candidates", (Segment(blocks.add(encode_embeddings(embed(CANDIDATES), labels))),))]
        self.federation = Federation(
            transport,
            self.manifest,
            journal,
            progress or Silent(),
            blocks=blocks,
            timeout_s=20.0,
        )

    def open(self, number):
        return self.federation.private_sum(f"votes/{number}", self.inputs)


def stacks_of_threads():
    """Where each thread of this process stands: one that hangs is the reason why a party does not answer."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = (
        (names.get(ident, ident), traceback.format_stack(frame)) for ident, frame in sys._current_frames().items()
    )
    return "\n".join(f"{name}:\n{''.join(lines)}" for name, lines in stacks)


def opened_by(kind, folder, lost=frozenset()):
    """What two sums open to and what they cost."""
    with carried(kind, folder) as (hospitals, transport):
        heard = Heard()
        run = Run(hospitals, losing(transport, lost) if lost else transport, folder, progress=heard)
        run.federation.agree()
        opened = [run.open(number) for number in (1, 2)]
        receipts = run.federation.receipts()
        assert sorted(receipts) == sorted(hospitals.homes), f"{heard.said}\n{stacks_of_threads()}"
        return [(each.values.tolist(), each.survivors) for each in opened], hospitals.charges()


# p2 loses a stage of the first sum and another one of the second: one dropout is tolerated at a time
LOST = frozenset({("p2", "votes/1", "share"), ("p1", "votes/2", "mask")})


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return {lost: opened_by(REFERENCE, tmp_path_factory.mktemp("reference"), lost) for lost in (frozenset(), LOST)}


@pytest.mark.parametrize("kind", OTHERS)
def test_every_transport_opens_and_charges_the_same_sums(kind, tmp_path, reference):
    assert opened_by(kind, tmp_path) == reference[frozenset()]


@pytest.mark.parametrize("kind", unhurried(OTHERS))
def test_every_transport_opens_the_survivors_sum_after_dropouts(kind, tmp_path, reference):
    opened, charges = reference[LOST]
    assert [survivors for _, survivors in opened] == [("p0", "p1", "p3"), ("p0", "p2", "p3")]
    assert opened_by(kind, tmp_path, LOST) == (opened, charges)


@pytest.mark.parametrize("kind", unhurried(TRANSPORTS))
def test_sum_on_the_merkle_graph_opens_over_every_transport(kind, tmp_path, reference, monkeypatch):
    """The graph of thousands of parties, among four: the same sums open as on the complete graph, with its noise."""
    monkeypatch.setattr(parameters.SumParameters, "merkle", property(lambda self: True))
    monkeypatch.setattr(parameters, "choose_draw", lambda *_: Draw(3, 2, choosers=3, stray=0))
    # The same manifest was read before, and its numbers are kept.
    monkeypatch.setattr(Manifest, "sum_parameters", lambda self, name, attempt: self._compute_parameters(name, attempt))
    assert opened_by(kind, tmp_path, LOST) == reference[LOST]


@pytest.mark.parametrize("kind", slow_but(TRANSPORTS, [REFERENCE, "gRPC"]))
def test_parties_refusals_have_the_same_words_over_every_transport(kind, tmp_path):
    with carried(kind, tmp_path, budget=5.0) as (hospitals, transport):
        with pytest.raises(PrivacyRefusal, match="p0 refuses: the run asks for epsilon 6, more than the policy allows"):
            Run(hospitals, transport, tmp_path, epsilon=6.0, run="too much").federation.agree()
        run = Run(hospitals, transport, tmp_path)
        run.federation.agree()
        with pytest.raises(PrivacyRefusal, match="not in the approved plan"):
            run.federation.private_sum("votes/9", run.inputs)
        run.open(1)
        # another plan under the same name could isolate somebody's contribution by subtraction
        (tmp_path / "other").mkdir()
        with pytest.raises(PrivacyRefusal, match="p0 refuses: run 'a run' was charged under another manifest"):
            Run(hospitals, transport, tmp_path / "other", sums=1).federation.agree()
        assert all(len(charges) == 1 for charges in hospitals.charges().values())


@pytest.mark.parametrize("kind", unhurried(TRANSPORTS))
def test_sum_of_too_few_parties_is_void_and_costs_nothing(kind, tmp_path):
    with carried(kind, tmp_path) as (hospitals, transport):
        lost = {(party, "votes/1", "mask") for party in ("p1", "p2")}
        carrier = losing(transport, lost)
        run = Run(hospitals, carrier, tmp_path, sums=1)
        run.federation.agree()
        assert run.open(1).survivors == ("p0", "p1", "p2", "p3")
        assert {charge[2] for charge in hospitals.charges()["p1"]} == {1}
        # and where they stay away the run ends with the reason
        again = Run(hospitals, carrier, tmp_path, sums=1, run="another run")
        again.federation.agree()
        carrier.lost = {(party, "votes/1", stage) for party in ("p1", "p2") for stage in ("share", "void_sum")}
        carrier.lost |= {(party, "votes/1", "open_sum") for party in ("p1", "p2")}
        with pytest.raises(RoundAborted, match="p1: does not answer"):
            again.open(1)


def test_a_paused_party_is_a_dropout_on_flower(tmp_path):
    with carried("Flower", tmp_path) as (hospitals, transport):
        run = Run(hospitals, transport, tmp_path)
        run.federation.agree()
        (hospitals.homes["p3"] / "paused").write_bytes(b"")
        (hospitals.homes["p3"] / "paused").chmod(0o600)
        begun = time.monotonic()
        assert run.open(1).survivors == ("p0", "p1", "p2")
        assert time.monotonic() - begun < 15.0  # it says at once that it does not take part
        (hospitals.homes["p3"] / "paused").unlink()
        assert run.open(2).survivors == ("p0", "p1", "p2", "p3")


def test_party_that_left_its_coordinator_answers_nothing_on_flower(tmp_path):
    """The attack: after `revoke --coordinator` the SuperNode signed and answered as before."""
    from tests.doubles.party_home import command

    with carried("Flower", tmp_path, parties=3) as (hospitals, transport):
        run = Run(hospitals, transport, tmp_path)
        run.federation.agree()
        run.open(1)
        before = hospitals.charges()
        command("revoke", "--coordinator", "--home", hospitals.homes["p1"])
        for request in (
            fed.Request(version=codec.VERSION, introduce=fed.Introduce()),
            fed.Request(version=codec.VERSION, propose=fed.ProposeManifest(manifest=run.manifest.to_bytes())),
            fed.Request(version=codec.VERSION, close_run=fed.CloseRun(manifest_hash=run.manifest.hash)),
        ):
            data = request.SerializeToString()
            (reply,) = transport.exchange_batches({"p1": [data]}, timeout_s=20.0)["p1"]
            assert "does not let it answer" in codec.decode_reply(reply, "p1").refusal.problem
        assert run.open(2).survivors == ("p0", "p2")
        assert {name: spent for name, spent in hospitals.charges().items() if name == "p1"} == {"p1": before["p1"]}
        kept = json.loads(command("outbox", "--last", 1, "--json", "--home", hospitals.homes["p1"]))["entries"]
        assert kept[0]["kind"] == "refusal"  # what it did say is on record too
    assert "joined no coordinator" in command(
        "supernode", "--fab-hash", "0" * 64, "--home", hospitals.homes["p1"], code=2
    )


def test_a_daemon_beside_a_supernode_is_refused(tmp_path):
    from undersong_client.home import PartyHome
    from undersong_server.flower.app import FlowerTransport

    with carried("Flower", tmp_path, parties=3) as (hospitals, transport):
        said = []
        with PartyHome(hospitals.homes["p0"]).running():
            beside = FlowerTransport(transport._grid, identities=None, say=said.append, outstanding=64)
            assert beside.locate(timeout_s=20.0) == ["p1", "p2"]
        assert "this party is not ready" in said[-1]


def test_unforeseen_error_s_message_does_not_reach_flower_s_superlink(tmp_path, monkeypatch, capsys):
    from undersong_client import flower_app
    from undersong_protocol.wire import codec
    from undersong_server.flower.app import INTRODUCE

    def failing(*_, **__):
        raise KeyError("a private note")

    with carried("Flower", tmp_path, parties=1) as (_, transport):
        monkeypatch.setattr(flower_app, "answers", failing)
        replies = transport.exchange_batches({"p0": [INTRODUCE]}, timeout_s=20.0)["p0"]
    assert codec.decode_reply(replies[0], "p0").refusal.problem == "an internal error; its log has the details"
    assert "KeyError" in (said := capsys.readouterr().out)
    assert "private note" not in said


class Stale:
    """A carrier that answers one party's requests for a stage with what that party, or another, said before.

    Args:
        kept: (party, sum, stage) whose reply is kept; it is given in place of the reply to ``due``.
    """

    def __init__(self, transport, kept, due):
        self._transport, self._kept, self._due, self.given = transport, kept, due, 0
        self._reply = None

    def exchange(self, requests, *, timeout_s):
        return self._transport.exchange(requests, timeout_s=timeout_s)

    def exchange_batches(self, requests, *, timeout_s):
        asked = {name: list(batch) for name, batch in requests.items()}
        replies = {
            name: list(batch) for name, batch in self._transport.exchange_batches(asked, timeout_s=timeout_s).items()
        }
        for name, batch in asked.items():
            for place, request in enumerate(batch):
                found = (name, *stage_of(request))
                if found == self._kept and name in replies:
                    self._reply = replies[name][place]
        for name, batch in asked.items():
            for place, request in enumerate(batch):
                if (name, *stage_of(request)) == self._due and name in replies and self._reply is not None:
                    replies[name][place], self.given = self._reply, self.given + 1
        return replies


class Heard(Silent):
    def __init__(self):
        self.said = []

    def say(self, message):
        self.said.append(message)


@pytest.mark.parametrize(
    ("whose", "stage", "survivors"),
    [
        ("p2", "mask", 3),
        pytest.param("p2", "prepare_sum", 3, marks=pytest.mark.slow),
        pytest.param("p2", "share", 3, marks=pytest.mark.slow),
        pytest.param("p2", "consistency", 4, marks=pytest.mark.slow),
        pytest.param("p2", "unmask", 4, marks=pytest.mark.slow),
        pytest.param("p1", "mask", 3, marks=pytest.mark.slow),
        pytest.param("p1", "unmask", 4, marks=pytest.mark.slow),
    ],
)
def test_a_stale_or_foreign_reply_on_flower_is_named_and_enters_no_sum(tmp_path, whose, stage, survivors):
    """In p2's place comes what it said in an earlier round, or what another party says in this one."""
    heard = Heard()
    with carried("Flower", tmp_path) as (hospitals, transport):
        kept = (whose, "votes/1" if whose == "p2" else "votes/2", stage)
        carrier = Stale(transport, kept, ("p2", "votes/2", stage))
        run = Run(hospitals, carrier, tmp_path, progress=heard)
        run.federation.agree()
        run.open(1)
        opened = run.open(2)
    assert carrier.given == 1
    assert len(opened.survivors) == survivors  # a party whose vector is in the sum already stays in it
    assert ("p2" in opened.survivors) == (survivors == 4)
    words = "of another private sum" if whose == "p2" else "in another party's place"
    assert [said for said in heard.said if "p2: answered" in said and words in said], heard.said
