"""What a party passes on stands under its own name: to the sum of its rows, to its ledger, and to who introduces it."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.doubles.coded import raises
from tests.doubles.parties import EMBEDDER, make_party, make_tables
from undersong_client import keys
from undersong_client.answering.grid_vectors import grid_vector
from undersong_client.answering.journaled import JournaledParty
from undersong_client.answering.party import Party
from undersong_client.answering.pending import PendingReply
from undersong_client.home import PartyHome, PartySettings
from undersong_client.records.private import PrivateRecords
from undersong_client.storage.attempts import Attempt, Attempts
from undersong_client.storage.outbox import NOTHING, Outbox
from undersong_common.errors import PrivacyRefusal, RoundAborted
from undersong_common.text.table import Table
from undersong_common.version import SOFTWARE
from undersong_protocol import statistics
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, Unit, plan_sums
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics import LabelHistogram, PublicInputs
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire

QUORUM = Quorum(1, 1, 0, 0)


@pytest.mark.parametrize(
    ("unit", "max_per_unit", "max_records", "expected"),
    [("sample", 1, 3, [3.0, 2.0]), ("user", 2, 1, [1.0, 1.0]), ("user", 9, 100, [2.0, 1.0])],
)
def test_cap_on_records_of_a_unit_and_cap_on_a_party_are_both_applied(
    unit: Unit, max_per_unit: int, max_records: int, expected: list[float]
) -> None:
    """Five records of x, of two patients, and two of y, of one; without the caps x counts 5 and 2, y 2 and 1."""
    users = ("p", "p", "p", "q", "q", "r", "r")
    table = Table(tuple("abcdefg"), ("x",) * 5 + ("y",) * 2, users)
    privacy = Privacy(4.0, 1e-5, unit, max_per_unit, max_records=max_records)
    plan = plan_sums([SumRequest("labels", LabelHistogram(2))], privacy, QUORUM)
    records = PrivateRecords(table, ("x", "y"), privacy, key=bytes(32), embed=lambda _: pytest.fail("not asked for"))
    planned = plan.sums[0]
    vector = grid_vector(planned, records, PublicInputs(), privacy, coins=bytes(32), memory={})
    assert [value / planned.scale for value in vector.values] == expected


def test_ledger_charge_is_passed_the_plan_s_number_of_spare_attempts() -> None:
    quorum = Quorum(7, 5, 2, 1, spare_attempts=6)
    plan = plan_sums([SumRequest("labels", LabelHistogram(2))], Privacy(4.0, 1e-5), quorum)
    roster = tuple(Member(name, bytes([place + 1]) * 32) for place, name in enumerate("abcdefg"))
    manifest = Manifest("spring", {"name": "t"}, "wasp", "00" * 32, roster, plan)
    told: list[tuple[object, dict[str, Any]]] = []
    party = SimpleNamespace(
        _charge_of=lambda attempt: "charge",
        _clock=lambda: 9.0,
        _rules=SimpleNamespace(consent=SimpleNamespace(suspended=lambda *_, **__: None)),
        _ledger=SimpleNamespace(
            is_begun=lambda run: run == "spring", charge=lambda charge, **figures: told.append((charge, figures))
        ),
    )
    Party._charge_attempt(cast(Party, party), cast(Attempt, SimpleNamespace(manifest=manifest)))
    assert told == [("charge", {"spare_attempts": 6, "at": 9.0})]


def test_party_s_introduction_states_each_fact_and_signs_all_of_them(tmp_path: Path) -> None:
    party = make_party(tmp_path, "alpha", make_tables(1, 4, ("x", "y"))["p0"], address="node 7")
    request = wire.Request(version=codec.VERSION, introduce=wire.Introduce(challenge=b"c" * 32))
    introduction = codec.decode_reply(party.handle(request.SerializeToString()), "alpha").introduction
    assert (introduction.name, introduction.identity) == ("alpha", party.public_identity)
    assert (introduction.software, introduction.embedder.hex()) == (SOFTWARE, EMBEDDER)
    assert tuple(introduction.statistics) == tuple(statistics.names())
    digest = codec.introduction_digest(b"c" * 32, "node 7", introduction)
    Ed25519PublicKey.from_public_bytes(introduction.identity).verify(introduction.signature, digest)


def test_outbox_entry_states_kind_run_sum_attempt_and_answered_request(tmp_path: Path) -> None:
    home = PartyHome.create(tmp_path / "party", PartySettings(party="alpha"))
    keys.create(home)
    party = SimpleNamespace(
        _describe_request=lambda _request: ("open_sum", "spring", "votes/1", 2),
        _outbox=Outbox(home),
        _clock=lambda: 7.0,
        _is_news=lambda *_: False,
    )
    answer = SimpleNamespace(request=None, reply=b"six by", kind="sum_reply", stored=NOTHING)
    JournaledParty._journal_reply(cast(JournaledParty, party), cast(PendingReply, answer), 0.0, 0.0)
    (entry,) = Outbox(home).entries()
    assert (entry.at, entry.kind, entry.answer_to) == (7.0, "sum_reply", "open_sum")
    assert (entry.run, entry.query, entry.attempt) == ("spring", "votes/1", 2)
    assert (entry.bytes, entry.sha256, entry.times) == (6, hashlib.sha256(b"six by").hexdigest(), 1)


def test_each_attempt_at_a_sum_is_counted_and_after_eight_has_to_wait() -> None:
    """Eight attempts at a sum may follow each other, then one a minute (docs/secagg.md, "Void attempts")."""
    now_s = 1_000.0
    party_keys = SimpleNamespace(
        entropy=lambda _purpose: lambda size: bytes(size),
        machine=SimpleNamespace(open=lambda *_: "a machine"),
        identity=None,
        encapsulate=None,
    )
    begun = SimpleNamespace(last=20, at=now_s - 1.0, count=3)
    attempts = SimpleNamespace(
        _read_start_record=lambda _manifest, _query: begun, _clock=lambda: now_s, _keys=party_keys, _name="alpha"
    )
    manifest = SimpleNamespace(hash=bytes(32), run="spring", sum_parameters=lambda _query, _number: None)

    def begin(number: int) -> Attempt:
        return Attempts.new(cast(Attempts, attempts), cast(Manifest, manifest), "votes/1", number)

    attempt = begin(21)
    assert (attempt.number, attempt.count, attempt.before) == (21, 4, 20)
    with raises(PrivacyRefusal, ""):
        begin(20)
    begun.count = 8
    with raises(RoundAborted, ""):
        begin(21)
    begun.at = now_s - 60.0
    assert begin(21).count == 9
