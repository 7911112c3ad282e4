"""Files that version 1 wrote are continued or refused by name; files of a later version are refused.

``formats/version1.json`` was written by version 1 itself: party p0 of three, after its sum votes/1 was opened, its
vector of votes/2 sent, and its shares of votes/3 dealt.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.doubles.restarts import ME, Federated, Hospital
from undersong_client.home import write_json
from undersong_client.operations import data
from undersong_client.storage import attempts, checkpoints, store
from undersong_common.canonical import canonical_json
from undersong_common.chain import entry_hash
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import TAG, Ledger
from undersong_common.privacy.spending import Charge
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire

WRITTEN: dict[str, Any] = json.loads((Path(__file__).parent / "formats" / "version1.json").read_text())
RUN = "a run"
STORE_KEY = hashlib.sha256(b"store of p0").digest()
DELTA = 1e-4


def write_journal(path: Path) -> Path:
    path.write_bytes(zlib.decompress(base64.b64decode(WRITTEN["journal"])))
    return path


def write_ledger(path: Path, lines: int = 3) -> Path:
    path.write_text("".join(WRITTEN["ledger"].splitlines(keepends=True)[:lines]))
    return path


def rows(path: Path) -> list[str]:
    database = sqlite3.connect(path)
    try:
        return [row[0] for row in database.execute("SELECT key FROM entry")]
    finally:
        database.close()


# The journal


def test_a_journal_of_version_1_goes_on_without_the_attempts_that_it_kept(tmp_path):
    path = write_journal(tmp_path / "journal.sqlite")
    before = {key for key in rows(path) if key.startswith("attempt/")}
    assert len(before) == 9
    with sqlite3.connect(path) as database:
        sealed = [value for key, value in database.execute("SELECT key, value FROM entry") if key in before]
    opened = store.Store(path, ME, STORE_KEY, tmp_path / "attempts")
    agreed = opened.get(f"run/{RUN}")
    assert agreed is not None
    assert opened.get(f"agreed/{agreed.hex()}") == WRITTEN["manifest"].encode()
    assert not before & set(rows(path))
    for file in tmp_path.rglob("*"):
        held = file.read_bytes() if file.is_file() else b""
        assert not any(value[-64:] in held for value in sealed), f"{file.name} still holds an attempt's secrets"
    opened.put("new", b"value")
    store.close(path)
    assert store.Store(path, ME, STORE_KEY, tmp_path / "attempts").get("new") == b"value"


@pytest.mark.slow  # the first vector of a process loads libraries for seconds
def test_an_attempt_under_way_in_a_journal_of_version_2_goes_on(tmp_path, monkeypatch):
    """Its replies stood in the machine's snapshot, and nowhere else."""
    monkeypatch.setattr(attempts, "LONGEST_REPLY_BYTES", 0)
    hospital = Hospital(tmp_path)
    path = hospital.path / "journal.sqlite"
    federated = Federated(tmp_path, hospital.identity)
    whole = PartyMachine.snapshot
    replies: dict[str, bytes] = {}
    party = hospital.start()

    def ask(stage: str, request: bytes) -> bytes:
        nonlocal party
        if stage == "consistency":
            assert not [key for key in rows(path) if key.startswith("answered/")]
            before.close()
            with sqlite3.connect(path) as database:
                database.execute("PRAGMA user_version = 2")
            party = hospital.start()
            assert party.answer(federated.asked["mask"]).reply == replies["mask"]
        replies[stage] = party.answer(request).reply
        return replies[stage]

    with ExitStack() as before:
        before.enter_context(patch.object(PartyMachine, "answered", {}))
        before.enter_context(patch.object(PartyMachine, "snapshot", lambda machine, without: whole(machine)))
        federated.agree(lambda request: party.answer(request).reply)
        assert ME in federated.run(ask).survivors
    party = hospital.start()
    assert {stage: party.answer(federated.asked[stage]).reply for stage in replies} == replies
    assert len([key for key in rows(path) if key.startswith("answered/")]) == len(replies) == 5


def test_a_journal_of_a_later_version_is_refused(tmp_path):
    path = tmp_path / "journal.sqlite"
    store.Store(path, ME, STORE_KEY)
    store.close(path)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 4")
    with pytest.raises(ConfigurationError, match="journal of version 4, this program knows versions up to 3"):
        store.Store(path, ME, STORE_KEY)


# The ledger


@pytest.mark.parametrize("version", [1, 3])
def test_a_ledger_of_another_version_is_refused(tmp_path, version):
    path = write_ledger(tmp_path / "ledger.jsonl", lines=1)
    first = {**json.loads(path.read_text()), "version": version}
    first["hash"] = entry_hash(TAG, {key: value for key, value in first.items() if key != "hash"})
    path.write_bytes(canonical_json(first) + b"\n")
    with pytest.raises(ConfigurationError) as refused:
        Ledger.read(path)
    assert refused.value.code == "other-version"


def test_a_party_with_the_ledger_of_version_1_does_not_start(tmp_path):
    hospital = Hospital(tmp_path)
    before = write_ledger(hospital.path / "ledger.jsonl").read_bytes()
    with pytest.raises(ConfigurationError) as refused:
        hospital.start()
    assert refused.value.code == "other-version"
    assert (hospital.path / "ledger.jsonl").read_bytes() == before


# Messages and the checkpoint


def test_requests_and_manifests_of_version_1_are_refused_by_name(tmp_path):
    hospital = Hospital(tmp_path)
    (hospital.path / "keys" / "store.key").write_text(STORE_KEY.hex())
    hospital.add_data()
    write_journal(hospital.path / "journal.sqlite").chmod(0o600)  # in which the manifest was agreed on
    party = hospital.start()

    def asked(request: bytes) -> str:
        return codec.decode_reply(party.answer(request).reply, ME).refusal.problem

    for written in WRITTEN["requests"].values():
        assert f"speaks version 1 of the protocol, this program speaks {codec.VERSION}" in asked(bytes.fromhex(written))
        request = wire.Request.FromString(bytes.fromhex(written))
        request.version = codec.VERSION
        assert "the manifest has version 1, this program speaks" in asked(request.SerializeToString())


@pytest.mark.parametrize("version", [1, 3])
def test_a_checkpoint_that_does_not_say_what_was_charged_costs_the_whole_budget(tmp_path, version):
    """Version 1 kept the head only; what a later version says cannot be read."""
    hospital = Hospital(tmp_path)
    head = Ledger.read(hospital.path / "ledger.jsonl").head
    written = WRITTEN["checkpoint"] if version == 1 else {"version": 3, "ledger_head": head}
    for mark in (checkpoints.beside(hospital.notes) / "mark.json", *hospital.marks.glob("*.json")):
        write_json(mark, written)
    (hospital.path / "ledger.jsonl").unlink()
    with pytest.raises(PrivacyRefusal, match="ledger is missing"):
        hospital.start()
    restored = data.restore_ledger(hospital.path, checkpoints=hospital.marks, charge_missing=True)
    assert restored.whole_budget
    assert (restored.spending.spent, restored.spending.left) == (4.0, 0.0)
    ledger = Ledger.read(hospital.path / "ledger.jsonl")
    with pytest.raises(PrivacyRefusal, match="its budget is 4"):
        ledger.charge(Charge("next", "00" * 32, "votes/1", 0, (Gaussian(50.0),)))
