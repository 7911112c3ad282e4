"""A party's vector: checked inputs before any record is looked at, and coins that belong to one unit each."""

import math
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.pace import examples, slow_after
from tests.doubles.parties import make_manifest, make_party, make_tables
from tests.noninterference import coordinator as hostile
from tests.noninterference.coordinator import Course
from tests.noninterference.hospital import NAME, TotalEmbedder
from tests.noninterference.questions import Asked
from undersong.run.simulation import InProcess
from undersong_client.answering.computation import KEPT_STATES, RecordComputation, VectorRequest
from undersong_client.answering.grid_vectors import poisson_subsample
from undersong_client.answering.party import Party
from undersong_client.records.private import DataSet, PrivateRecords
from undersong_common.errors import PrivacyRefusal, RoundAborted
from undersong_common.text.table import Table
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, Unit, plan_sums
from undersong_protocol.secagg.parameters import defaults
from undersong_protocol.statistics import LabelledEmbeddings, PublicInputs, TopQVotes
from undersong_protocol.statistics.classifier_votes import ClassifierVotes
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import Input, Segment, block_id, encode_numbers
from undersong_server.database.journal import Journal
from undersong_server.federation.exchange import PublicBlocks
from undersong_server.federation.sums import Federation
from undersong_server.progress import Silent

COINS = bytes(range(32))
LABELS = ("x", "y")


def hold_rows(rows: list[tuple[str, str]], unit: Unit) -> PrivateRecords:
    texts, users = zip(*rows, strict=True) if rows else ((), ())
    privacy = Privacy(1.0, 1e-5, unit, 1 if unit == "sample" else 8)
    return PrivateRecords(
        Table(tuple(texts), None, tuple(users)), (), privacy, key=COINS, embed=lambda _: pytest.fail("not asked for")
    )


def taking_part(rows: list[tuple[str, str]], unit: Unit, rate: float = 0.5, coins: bytes = COINS) -> list[str]:
    """The texts whose unit takes part, sorted: equal texts of other units are told apart by their number only."""
    records = hold_rows(rows, unit)
    kept = poisson_subsample(records, rate, coins)
    assert len(kept) == records.unit_count
    return sorted(text for text, one in zip(records.texts, records.units, strict=True) if kept[one])


ROWS = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("uvwxyz")), min_size=1, max_size=30)


@pytest.mark.heavy
@settings(max_examples=examples(25, 100), deadline=None)
@given(ROWS, st.sampled_from(["sample", "user"]), st.randoms(use_true_random=False), st.data())
def test_subsample_coin_of_a_unit_depends_on_no_other_unit(
    rows: list[tuple[str, str]], unit: Unit, random: Any, data: st.DataObject
) -> None:
    """One unit less, in any place, and in any order: the others that take part are the same ones."""
    before = taking_part(rows, unit)
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert taking_part(shuffled, unit) == before
    gone = data.draw(st.integers(0, len(rows) - 1))
    left = [row for at, row in enumerate(rows) if (at != gone if unit == "sample" else row[1] != rows[gone][1])]
    after = taking_part(left, unit)
    assert not Counter(after) - Counter(before)
    # Eight records of a user count at most.
    assert (Counter(before) - Counter(after)).total() in (0, min(8, len(rows) - len(left)))


def test_equal_records_are_subsampled_independently() -> None:
    kept = taking_part([("the same", "u")] * 4000, "sample", rate=0.25)
    assert abs(len(kept) - 1000) < 6 * math.sqrt(4000 * 0.25 * 0.75)


@pytest.mark.heavy
@pytest.mark.parametrize("rate", slow_after([0.01, 0.5, 0.99], 1))
def test_subsample_takes_units_at_the_charged_rate(rate: float) -> None:
    rows = [(f"text {n}", "u") for n in range(20_000)]
    deviation = math.sqrt(len(rows) * rate * (1 - rate))
    one, two = (taking_part(rows, "sample", rate, coins) for coins in (COINS, bytes(32)))
    assert max(abs(len(kept) - rate * len(rows)) for kept in (one, two)) < 6 * deviation
    both = len(set(one) & set(two))
    assert abs(both - rate * rate * len(rows)) < 6 * math.sqrt(len(rows) * rate**2 * (1 - rate**2))
    assert taking_part([], "sample", rate) == []


def test_malformed_inputs_are_refused_before_a_record_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = make_tables(3, 5, LABELS)
    threshold, dropouts, colluders = defaults(3)
    requests = [SumRequest(f"places/{n}", ClassifierVotes(classifiers=2, labels=2)) for n in (1, 2)]
    plan = plan_sums(requests, Privacy(math.inf, 1e-5), Quorum(3, threshold, dropouts, colluders))
    parties = {name: make_party(tmp_path, name, table) for name, table in tables.items()}
    journal = Journal(tmp_path / "journal.sqlite")
    blocks = PublicBlocks(journal)
    federation = Federation(InProcess(parties), make_manifest(plan, parties, LABELS), journal, Silent(), blocks=blocks)
    federation.agree()

    def published(value: float) -> Input:
        numbers = np.zeros((2, 49, 2))
        numbers[0, 7] = value
        data = encode_numbers(numbers)
        blocks.add(data)
        return Input("classifiers", (Segment(block_id(data)),))

    federation.private_sum("places/1", [published(0.5)])
    with monkeypatch.context() as patched:
        for party in parties.values():
            patched.setattr(party.computation, "vector", lambda *_, **__: pytest.fail("a record was looked at"))
        with pytest.raises(RoundAborted, match="p0 refuses: public numbers 'classifiers'"):
            federation.private_sum("places/2", [published(1e308)])


def classifier_course(party: Party, values: np.ndarray, attempt: int = 0) -> Course:
    plan = plan_sums(
        [SumRequest("places", ClassifierVotes(classifiers=2, labels=2))], Privacy(math.inf, 1e-5), Quorum(1, 1, 0, 0)
    )
    manifest = make_manifest(plan, {party.name: party}, LABELS)
    block = encode_numbers(values)
    return Course(manifest, "places", attempt, Asked([Input("classifiers", (Segment(block_id(block)),))], [block]))


@pytest.fixture
def agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Party:
    """A party that has signed the plan, and reads no record."""
    party = make_party(tmp_path, NAME, make_tables(1, 5, LABELS)["p0"])
    manifest = classifier_course(party, np.zeros((2, 49, 2))).manifest
    read_reply(party, hostile.proposal(manifest))
    signature = manifest.sign(party._identity)
    read_reply(party, hostile.request(agree=agreed_by(manifest, signature)))
    monkeypatch.setattr(party.computation, "vector", lambda *_, **__: pytest.fail("a record was looked at"))
    return party


def agreed_by(manifest: Manifest, signature: bytes) -> wire.AgreeManifest:
    return wire.AgreeManifest(manifest=manifest.to_bytes(), signatures={NAME: signature})


def read_reply(party: Party, message: bytes) -> wire.Reply:
    return wire.Reply.FromString(party.handle(message))


def spoilt_values() -> np.ndarray:
    values = np.zeros((2, 49, 2))
    values[0, 7] = 1e308
    return values


def test_malformed_public_inputs_are_refused_when_a_sum_is_opened(agreed: Party) -> None:
    """Nothing is begun, no question is fixed and nothing charged: the same attempt opens with other inputs."""
    bad, good = classifier_course(agreed, spoilt_values()), classifier_course(agreed, np.zeros((2, 49, 2)))
    assert "public numbers 'classifiers'" in read_reply(agreed, bad.opening()).refusal.problem
    assert agreed._attempts.last(bad.manifest, "places") == -1
    assert agreed._attempts.question(bad.manifest, "places") is None
    assert read_reply(agreed, good.opening()).WhichOneof("body") == "sum_reply"
    assert not agreed._ledger.charges()


def test_malformed_public_inputs_are_refused_again_before_a_charge(
    agreed: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself, for an attempt that an earlier version of this program may have opened without the check."""
    course = classifier_course(agreed, spoilt_values())
    with monkeypatch.context() as unchecked:
        unchecked.setattr(ClassifierVotes, "check_inputs", lambda *_: None)
        course.take(read_reply(agreed, course.opening()))
        while course.stage != "mask":
            course.take(read_reply(agreed, course.step()))
    agreed._resolved_question._checked_for = None  # as after a restart
    assert "public numbers 'classifiers'" in read_reply(agreed, course.step()).refusal.problem
    assert not agreed._ledger.charges()


def test_a_vector_is_charged_before_a_record_is_looked_at(agreed: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    course = classifier_course(agreed, np.zeros((2, 49, 2)))
    charged_sums: list[str] = []

    def vector(*_: Any, **__: Any) -> None:
        charged_sums.extend(charge.query for charge in agreed._ledger.charges())
        raise PrivacyRefusal("the records cannot be read now")

    monkeypatch.setattr(agreed.computation, "vector", vector)
    course.take(read_reply(agreed, course.opening()))
    while course.stage != "mask":
        course.take(read_reply(agreed, course.step()))
    assert read_reply(agreed, course.step()).refusal.problem == "the records cannot be read now"
    assert charged_sums == ["places"]


def test_a_new_attempt_ends_the_one_before_it(agreed: Party) -> None:
    first, second = (classifier_course(agreed, np.zeros((2, 49, 2)), attempt) for attempt in (0, 1))
    first.take(read_reply(agreed, first.opening()))
    assert read_reply(agreed, second.opening()).WhichOneof("body") == "sum_reply"
    assert "a new attempt was begun" in read_reply(agreed, first.step()).refusal.problem


@pytest.mark.slow
def test_memory_kept_between_sums_is_bounded_however_many_sums_follow() -> None:
    rows = 2_000
    table = Table(tuple(f"note {n}" for n in range(rows)), tuple("xy"[n % 2] for n in range(rows)), None)
    embedder = TotalEmbedder()
    computation = RecordComputation("p", DataSet(table, COINS), embedder.encode)
    candidates = LabelledEmbeddings(embedder.encode(["a candidate"]), np.zeros(1, dtype=np.int64))
    public = PublicInputs({"candidates": candidates})
    privacy = Privacy(4.0, 1e-6, max_records=rows)
    requests = [SumRequest(f"votes/{n}", TopQVotes(q=30, candidates=1, labels=2 + n)) for n in range(12)]
    held = []
    tracemalloc.start()
    try:
        for planned in plan_sums(requests, privacy, Quorum(3, 2, 1, 0)).sums:
            vector = computation.vector(VectorRequest("run", LABELS, planned, privacy, public, COINS)).vector
            assert vector.values.any()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    state = rows * 30 * 2 * 8  # bytes: q nearest and furthest candidates of each record
    assert held[KEPT_STATES - 1] - held[0] > 0.9 * state * (KEPT_STATES - 1)
    assert held[-1] - held[KEPT_STATES - 1] < 0.5 * state
