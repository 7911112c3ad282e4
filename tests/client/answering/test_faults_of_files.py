"""A fault of a party's file comes from its file alone: no message of a coordinator brings one about.

While a file is at fault, the party answers nothing that needs it, and refuses nothing. A coordinator that could cause
such an error would silence the party for good.
"""

import json
from typing import Any

import pytest

from tests.doubles.pace import examples, slow_after
from tests.doubles.restarts import ME, Federated, Hospital, vector_in
from tests.federation.faults.test_one_fault import CONTENTS, foreign
from undersong_client.consent.approvals import Proposals
from undersong_client.home import PartyHome
from undersong_common.canonical import canonical_json
from undersong_common.errors import ConfigurationError
from undersong_common.program.machine import FAULTS_OF_FILES
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import Input, Segment

pytestmark = pytest.mark.heavy  # every case is a hospital's whole folder

WORDS = ("", "\0", "\ud800", "a\u2028b", "../../policy", "x" * 300, "x" * 100_000, "\r\n{}", "policy.json", "\u202e")
NUMBERS: tuple[Any, ...] = (0, -1, 2**63, 10**4299, 1e308, -0.0, float("nan"), float("inf"), "1", None, True, [], {})
PATHS = (
    *(("run",), ("method",), ("embedder",), ("task", "name"), ("task", "labels", 0), ("roster", 0, "name")),
    *(("roster", 0, "identity"), ("plan", "sums", 0, "name")),
)


def refusal(reply):
    return codec.decode_reply(reply, ME).refusal.problem


def make_request(**body):
    return wire.Request(version=codec.VERSION, **body).SerializeToString()


@pytest.fixture
def hospital(tmp_path):
    return Hospital(tmp_path)


@pytest.fixture
def federated(hospital, tmp_path):
    return Federated(tmp_path, hospital.identity, 2)


def edited(manifest, path, value):
    whole = json.loads(manifest.to_bytes())
    place = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return whole


def numbers_in(value, path=()):
    """The paths of all numbers in a JSON value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        if (path, key) == (("plan", "sums"), 1):
            continue  # as the first
        yield from numbers_in(part, (*path, key))
    if isinstance(value, int | float):
        yield path


def proposals(manifest):
    """Manifests with one value that is none of its kind, each as canonical as it can be written."""
    cases = [(path, word) for path in PATHS for word in (*WORDS, *NUMBERS)]
    cases += [(path, number) for path in numbers_in(json.loads(manifest.to_bytes())) for number in NUMBERS]
    for path, value in cases[:: examples(5, 1)]:
        whole = edited(manifest, path, value)
        try:
            yield canonical_json(whole)
        except (ValueError, TypeError):
            yield json.dumps(whole, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass")
    yield canonical_json(edited(manifest, ("task", "revises"), "../../policy"))
    yield b'{"task":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def check_that_it_answers(hospital):
    """Every stored request can be read, and an honest run goes through, now and after a restart."""
    home = PartyHome(hospital.path)
    files = list(home.requests.glob("*.json"))
    assert len(Proposals(home).all()) == len(files)
    party, federated = hospital.start(), Federated(hospital.folder, hospital.identity, 2, run="another run")
    federated.agree(lambda asked: party.answer(asked).reply)
    vectors = []
    federated.run(lambda _stage, asked: vectors.append(vector_in(answer := party.answer(asked).reply)) or answer)
    assert any(vectors)


@pytest.mark.slow
def test_hostile_proposal_is_never_reported_as_a_damaged_local_file(hospital, federated):
    party = hospital.start()
    for data in proposals(federated.manifest):
        party.answer(make_request(propose=wire.ProposeManifest(manifest=data)))
        party.answer(make_request(agree=wire.AgreeManifest(manifest=data, signatures={ME: b"", "": bytes(64)})))
    check_that_it_answers(hospital)


@pytest.mark.slow
def test_hostile_later_message_is_never_reported_as_a_damaged_local_file(hospital, federated):
    party = hospital.start()
    federated.agree(lambda asked: party.answer(asked).reply)
    hashes = (federated.manifest.hash, b"", bytes(31), bytes(32), bytes(5000), b"../../policy.json\0".ljust(32))
    names = ("votes/1", *(word for word in WORDS if word.isprintable()), "\0", "votes/1/0")
    for hash_ in hashes:
        party.answer(make_request(close_run=wire.CloseRun(manifest_hash=hash_)) if hash_ != hashes[0] else b"")
        party.answer(make_request(suspend_run=wire.SuspendRun(manifest_hash=hash_)))
        for name in names:
            for attempt in (7, 2**31, 2**32 - 1):
                slot = {"manifest_hash": hash_, "sum": name, "attempt": attempt}
                segments = (Segment(block) for block in (b"", bytes(31), bytes(32), bytes(5000), b"../x"))
                inputs = [Input(name, (segment,)).to_wire() for segment in segments]
                for kind, message in (
                    ("open_sum", wire.OpenSum(**slot, inputs=inputs, blocks=[b"", b"\xff" * 99], payload=b"\xff")),
                    ("prepare_sum", wire.PrepareSum(**slot, payload=b"\0")),
                    ("sum_step", wire.SumStep(**slot, payload=bytes(10_000))),
                    ("void_sum", wire.VoidSum(**slot)),
                ):
                    party.answer(make_request(**{kind: message}))
    check_that_it_answers(hospital)


@pytest.mark.parametrize("content", slow_after(["a folder", *CONTENTS], 2))
def test_damaged_request_file_stops_its_run_until_the_file_is_restored(hospital, federated, content):
    party = hospital.start()
    federated.agree(lambda asked: party.answer(asked).reply)
    other = Federated(hospital.folder, hospital.identity, 2, run="another run")
    opening = federated.opening()
    file = PartyHome(hospital.path).requests / f"{federated.manifest.hash.hex()}.json"
    with foreign(file, CONTENTS.get(content)):
        for asked in (*federated.agreement, opening, opening):
            with pytest.raises(ConfigurationError) as fault:
                party.answer(asked)
            assert fault.value.code in FAULTS_OF_FILES
            assert str(file) in fault.value.problem
        other.agree(lambda asked: party.answer(asked).reply)
        other.run(lambda _stage, asked: party.answer(asked).reply)
    assert codec.decode_reply(party.answer(opening).reply, ME).WhichOneof("body") == "sum_reply"


@pytest.mark.parametrize(
    ("key", "value"),
    slow_after(
        [("signature", ""), ("signature", 5), ("signature", "zz"), ("decided_s", 6.5), ("reason", "for a friend")], 2
    ),
)
def test_an_approval_changed_by_hand_is_refused(hospital, federated, key, value):
    party = hospital.start()
    federated.agree(lambda asked: party.answer(asked).reply)
    file = PartyHome(hospital.path).requests / f"{federated.manifest.hash.hex()}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    assert "is not signed by this party's key" in refusal(party.answer(federated.opening()).reply)


def test_an_approval_changed_for_another_decision_is_refused(hospital, federated):
    party = hospital.start()
    federated.agree(lambda asked: party.answer(asked).reply)
    Proposals(PartyHome(hospital.path)).decide(Proposals(PartyHome(hospital.path)).all()[0], "revoked", at=7.0)
    file = PartyHome(hospital.path).requests / f"{federated.manifest.hash.hex()}.json"
    file.write_text(file.read_text().replace('"revoked"', '"approved"'))
    assert refusal(party.answer(federated.opening()).reply)
