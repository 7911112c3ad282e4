"""A coordinator that sends too much: refused by counts and bytes, before anything is made of it."""

import json
import os
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from undersong_common.errors import PeerFault, PrivacyRefusal
from undersong_protocol import limits as sizes
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Plan, Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.messages import parse_request
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics.histogram import LabelHistogram
from undersong_protocol.wire import codec
from undersong_protocol.wire.codec import field_sizes
from undersong_protocol.wire.messages import federation_pb2 as wire

PLAN = plan_sums([SumRequest("votes/1", LabelHistogram(2))], Privacy(4.0, 1e-5), Quorum(4, 3, 1, 1))


def manifest(*, parties: int = 4, sums: int = 1, labels: int = 2, **changes: Any) -> Manifest:
    """Wide noise, so that any number of sums keeps the promise."""
    planned = replace(PLAN.sums[0], sigma_integer=PLAN.sums[0].sigma_integer * 32)
    plan = replace(
        PLAN,
        quorum=Quorum(parties, (parties + 1) // 2 + 1, 1, 1),
        sums=tuple(replace(planned, name=f"votes/{number}", **changes) for number in range(sums)),
    )
    task = {"name": "t", "description": "d", "labels": [f"label {number}" for number in range(labels)]}
    roster = tuple(Member(f"party-{number:06}", os.urandom(32)) for number in range(parties))
    return Manifest("run", task, "wasp", "00" * 32, roster, plan)


def peak_bytes(act) -> int:
    """Python's memory at its highest, above what is there before."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_manifest_of_22_megabytes_is_refused_before_it_is_parsed(monkeypatch):
    data = manifest().to_bytes()
    long = data.replace(b'"description":"d"', b'"description":"' + b"d" * (22 * 2**20) + b'"')
    monkeypatch.setattr(json, "loads", pytest.fail)

    def read():
        with pytest.raises(PrivacyRefusal, match=r"23\d{6} bytes in its manifest; 4194304 are allowed"):
            Manifest.from_bytes(long)

    assert peak_bytes(read) < 10**5


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parties": sizes.LARGEST_PARTIES + 1}, "10001 parties; 10000 are allowed"),
        ({"sums": sizes.LARGEST_SUMS + 1}, "1001 private sums; 1000 are allowed"),
        ({"labels": sizes.LARGEST_LABELS + 1}, "1001 labels; 1000 are allowed"),
    ],
)
def test_counts_of_a_manifest_are_bounded_before_its_plan_is_parsed(changes, words, monkeypatch):
    data = manifest(**changes).to_bytes()
    monkeypatch.setattr(Plan, "from_json", pytest.fail)
    with pytest.raises(PrivacyRefusal, match=words):
        Manifest.from_bytes(data)


def noisy(parties, dropouts, dimension):
    """A plan of a sum whose noise took a party hours."""
    quorum = Quorum(parties, parties - dropouts, dropouts, 0)
    return replace(PLAN, quorum=quorum, sums=(replace(PLAN.sums[0], dimension=dimension),))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda: manifest(parties=1000, sums=501), "501000 parties times private sums; 500000 are allowed"),
        (lambda: manifest(dimension=2**24 + 1), "16777217 coordinates in votes/0; 16777216 are allowed"),
        (lambda: noisy(1_000, 100, 2**24), "1694498816 draws of noise for votes/1; 1073741824 are"),
        (
            lambda: replace(manifest(), plan=replace(PLAN, quorum=Quorum(4, 3, 1, 1, 101))),
            "101 spare attempts; 100 are",
        ),
    ],
)
def test_plan_that_would_take_a_party_too_long_is_refused(changed, words):
    with pytest.raises(PrivacyRefusal, match=words):
        changed().verify()


def test_plans_of_many_mechanisms_are_refused_before_composition(monkeypatch):
    planned = replace(PLAN.sums[0], sampling_rate=0.5)
    sums = tuple(
        replace(planned, name=f"votes/{number}", sigma_integer=planned.sigma_integer * (40 + number))
        for number in range(sizes.LARGEST_MECHANISMS + 1)
    )
    monkeypatch.setattr(Plan, "epsilon", pytest.fail)
    with pytest.raises(PrivacyRefusal, match="33 different mechanisms; 32 are allowed"):
        replace(PLAN, sums=sums).verify()


def seconds(act) -> float:
    """Processor time, the best of three."""
    found = []
    for _ in range(3):
        begun = time.process_time()
        act()
        found.append(time.process_time() - begun)
    return min(found)


def test_reading_a_manifest_costs_in_proportion_to_its_length():
    short, long = (manifest(parties=parties, sums=parties // 10).to_bytes() for parties in (500, 2000))
    grown = len(long) / len(short)
    assert 3.5 < grown < 4.5
    assert seconds(lambda: Manifest.from_bytes(long)) < 2 * grown * seconds(lambda: Manifest.from_bytes(short))
    held = [peak_bytes(lambda data=data: Manifest.from_bytes(data)) for data in (short, long)]
    assert held[1] < 1.5 * grown * held[0]
    assert held[1] < 20 * len(long)


def test_checking_a_plan_takes_time_in_proportion_to_parties_times_sums():
    def checked(parties: int, sums: int) -> float:
        quorum = Quorum(parties, parties // 2 + 2, parties // 10, 1)
        requests = [SumRequest(f"votes/{number}", LabelHistogram(2)) for number in range(sums)]
        plan = plan_sums(requests, Privacy(4.0, 1e-5), quorum)
        whole = replace(manifest(parties=parties), plan=plan)
        whole.verify()  # libraries are loaded
        return seconds(whole.verify)

    assert checked(400, 100) < 2 * 4 * checked(200, 50)


def make_request(**body: Any) -> bytes:
    return wire.Request(version=codec.VERSION, **body).SerializeToString()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            lambda: make_request(propose=wire.ProposeManifest(manifest=bytes(5 * 2**20))),
            "sent propose of 5242\\d* bytes",
        ),
        (
            lambda: make_request(close_run=wire.CloseRun(manifest_hash=bytes(5000))),
            "sent close_run of 500\\d bytes; 4096",
        ),
        (lambda: make_request(sum_step=wire.SumStep(payload=bytes(17 * 2**20))), "sent sum_step of 17\\d* bytes"),
        (
            lambda: make_request(agree=wire.AgreeManifest(signatures={str(n): bytes(2000) for n in range(10**4)})),
            "sent agree of",
        ),
        (lambda: make_request(open_sum=wire.OpenSum(blocks=[b"x"] * 4097)), "sent 4097 public blocks"),
        (
            lambda: make_request(open_sum=wire.OpenSum(blocks=[bytes(33 * 2**20)] * 4)),
            "sent 4 public blocks of 138412032 bytes",
        ),
        (lambda: make_request(open_sum=wire.OpenSum(inputs=[wire.Input()] * 5000)), "more than 4352 fields"),
        (
            lambda: make_request(
                open_sum=wire.OpenSum(
                    inputs=[wire.Input(segments=[wire.Segment(rows=[2**32 - 1] * (4 * 2**20), all_rows=False)])]
                )
            ),
            "sent open_sum of 20\\d* bytes",
        ),
        (
            lambda: make_request(introduce=wire.Introduce()) + b"\x9a\x06\x88\x27" + bytes(5000),
            "an unknown field of 5000 bytes",
        ),
        (lambda: make_request() + b"\x12\x00" * 20, "more than 16 fields"),
        (lambda: b"\x12\xff", "are not a message"),
        (lambda: b"\x12\x7f\x00", "are not a message"),
        (lambda: b"\x13", "are not a message"),
    ],
)
def test_size_limit_of_each_kind_of_request_holds_before_parsing(data, words, monkeypatch):
    received = data()

    class Unparsed:
        def __getattr__(self, name):
            pytest.fail("parsed")

    monkeypatch.setattr(codec.wire, "Request", Unparsed)
    with pytest.raises(PeerFault, match=words):
        codec.decode_request(received)


def test_repeated_bodies_of_a_request_count_together_against_its_limit():
    half = make_request(propose=wire.ProposeManifest(manifest=bytes(3 * 2**20)))
    codec.decode_request(half)
    with pytest.raises(PeerFault, match="sent propose of 6291"):
        codec.decode_request(half + half)


def test_a_secure_aggregation_request_is_measured_by_the_number_of_parties():
    parameters = manifest().sum_parameters("votes/0", 0)
    with pytest.raises(PeerFault, match=r"request of 98305 bytes; 98304 are allowed"):
        parse_request(parameters, bytes(2**16 + 4 * 8192 + 1))


def test_field_sizes_of_a_message_equal_those_that_protobuf_reads():
    message = wire.OpenSum(manifest_hash=b"hash", sum="votes", attempt=300, blocks=[b"one", b""], payload=b"p")
    found = [
        (number, bytes(content))
        for number, content in field_sizes(message.SerializeToString(), "peer", largest_count=9)
    ]
    assert found == [(1, b"hash"), (2, b"votes"), (3, b"\xac\x02"), (5, b"one"), (5, b""), (6, b"p")]
