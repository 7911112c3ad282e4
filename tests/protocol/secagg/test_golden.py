"""The golden transcripts, replayed from the file alone, and the requests in it that must be refused."""

import json
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import undersong_common.errors
from tests.doubles.secagg import answer
from tests.doubles.secagg_vectors import FILE, RECORDED, vectors, written
from undersong_protocol.secagg.coordinator import private_sum
from undersong_protocol.secagg.evidence import check_evidence
from undersong_protocol.secagg.parameters import Member, SumParameters
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.transitions import SECRETS
from undersong_protocol.statistics.vectors import GridVector

GOLDEN: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
KINDS = ("classical", "post_quantum")
TRANSCRIPTS = [(kind, name) for kind in KINDS for name, value in GOLDEN[kind].items() if "rounds" in value]


def _parameters(described: dict[str, Any]) -> SumParameters:
    values = dict(described)
    values["manifest_hash"] = bytes.fromhex(values["manifest_hash"])
    values["roster"] = tuple(Member(name, bytes.fromhex(key)) for name, key in values["roster"])
    return SumParameters(**values)


def _open(parameters: SumParameters, name: str, party: dict[str, Any]) -> PartyMachine:
    secrets = iter([bytes.fromhex(party["secrets"][kind]) for kind in SECRETS])
    identity = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(party["identity_secret"]))
    return PartyMachine.open(parameters, name, identity, lambda size: next(secrets), RECORDED)


@pytest.mark.heavy
def test_golden_vectors_of_secure_aggregation_are_what_this_program_writes() -> None:
    assert json.loads(json.dumps(vectors())) == GOLDEN, "python -m tests.doubles.secagg_vectors (a new version?)"


@pytest.mark.parametrize(("kind", "name"), TRANSCRIPTS)
def test_parties_answer_as_the_golden_vectors_record(kind: str, name: str) -> None:
    recorded = GOLDEN[kind][name]
    parameters = _parameters(recorded["parameters"])
    assert parameters.sid.hex() == recorded["sid"]
    assert parameters.terms.hex() == recorded["terms"]
    for party, values in recorded["parties"].items():
        if any(entry["requests"].get(party, "").startswith("sha256") for entry in recorded["rounds"]):
            continue
        machine = _open(parameters, party, values)
        vector = GridVector(np.array(values["vector"], dtype=np.int64))
        asked = bytes.fromhex(recorded["question"])
        for entry in recorded["rounds"]:
            if party in entry["replies"]:
                reply = answer(machine, bytes.fromhex(entry["requests"][party]), vector, asked)
                assert reply.payload.hex() == entry["replies"][party]


@pytest.mark.parametrize(("kind", "name"), TRANSCRIPTS)
def test_coordinator_asks_and_opens_as_the_golden_vectors_record(kind: str, name: str) -> None:
    recorded = GOLDEN[kind][name]
    parameters = _parameters(recorded["parameters"])
    coordinator = private_sum(parameters, lambda: bytes.fromhex(recorded["question"]))
    requests = next(coordinator)
    for entry in recorded["rounds"]:
        assert {party: written(parameters, party, request) for party, request in requests.items()} == entry["requests"]
        try:
            requests = coordinator.send({party: bytes.fromhex(reply) for party, reply in entry["replies"].items()})
        except StopIteration as stop:
            opened = stop.value
    assert opened.values.tolist() == recorded["values"]
    assert list(opened.survivors) == recorded["survivors"]
    assert opened.variance == recorded["variance"]
    assert opened.evidence.hex() == recorded["evidence"]
    assert check_evidence(parameters, opened.evidence).survivors == opened.survivors
    assert check_evidence(parameters, opened.evidence).question.hex() == recorded["question"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, id=f"{kind} {number} {case['instead_of']} {case['words']}")
        for kind in KINDS
        for number, case in enumerate(GOLDEN[kind]["refused"])
    ],
)
def test_bad_requests_of_the_golden_vectors_are_refused(kind: str, case: dict[str, str]) -> None:
    recorded = GOLDEN[kind]["five_parties_one_lost"]
    parameters = _parameters(recorded["parameters"])
    machine = _open(parameters, "p01", recorded["parties"]["p01"])
    vector = GridVector(np.array(recorded["parties"]["p01"]["vector"], dtype=np.int64))
    for entry in recorded["rounds"]:
        if entry["stage"] == case["instead_of"]:
            break
        answer(machine, bytes.fromhex(entry["requests"]["p01"]), vector, bytes.fromhex(recorded["question"]))
    with pytest.raises(getattr(undersong_common.errors, case["error"]), match=case["words"]):
        machine.receive(bytes.fromhex(case["request"]))
