"""Files and messages of another version are refused by name.

``formats/version1.json`` was written by version 1 itself: party p0 of three, after its sum votes/1 was opened, its
vector of votes/2 sent, and its shares of votes/3 dealt.
"""

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.coded import raises
from tests.doubles.restarts import ME, Hospital
from undersong_client import keys
from undersong_client.home import PartyHome
from undersong_client.operations import data
from undersong_client.storage import checkpoints, store
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import TAG, Ledger
from undersong_common.privacy.spending import Charge
from undersong_common.program.chain import entry_hash
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire

WRITTEN: dict[str, Any] = json.loads((Path(__file__).parent / "formats" / "version1.json").read_text())
RUN = "a run"
STORE_KEY = hashlib.sha256(b"store of p0").digest()
DELTA = 1e-4


def write_ledger(path: Path, lines: int = 3) -> Path:
    path.write_text("".join(WRITTEN["ledger"].splitlines(keepends=True)[:lines]))
    return path


# The journal


@pytest.mark.parametrize("version", [0, 3, 5])
def test_a_journal_of_another_version_is_refused(tmp_path, version):
    path = tmp_path / "journal.sqlite"
    store.Store(path, ME, STORE_KEY).put("key", b"value")
    store.close(path)
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(ConfigurationError) as refused:
        store.Store(path, ME, STORE_KEY)
    assert refused.value.code == "other-version"
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT key FROM entry").fetchall() == [("key",)]


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
    journal = store.Store(hospital.path / "journal.sqlite", ME, keys.secret(PartyHome(hospital.path), "store"))
    manifest = WRITTEN["manifest"].encode()
    journal.put(f"agreed/{tagged_hash('undersong manifest', manifest).hex()}", manifest)
    party = hospital.start()

    def asked(request: bytes) -> str:
        return codec.decode_reply(party.answer(request).reply, ME).refusal.problem

    for written in WRITTEN["requests"].values():
        assert f"speaks version 1 of the protocol, this program speaks {codec.VERSION}" in asked(bytes.fromhex(written))
        request = wire.Request.FromString(bytes.fromhex(written))
        request.version = codec.VERSION
        assert "the manifest has version 1, this program speaks" in asked(request.SerializeToString())


def test_checkpoint_in_a_later_format_counts_the_whole_budget_as_spent(tmp_path):
    """Only its head can be read."""
    hospital = Hospital(tmp_path)
    head = Ledger.read(hospital.path / "ledger.jsonl").head
    written = canonical_json({"version": 3, "ledger_head": head})
    for mark in (checkpoints.beside(hospital.notes) / "mark.json", *hospital.marks.glob("*.json")):
        mark.write_bytes(written)
    (hospital.path / "ledger.jsonl").unlink()
    with raises(PrivacyRefusal, "ledger-missing"):
        hospital.start()
    restored = data.restore_ledger(hospital.path, checkpoints=hospital.marks, charge_missing=True)
    assert restored.whole_budget
    assert (restored.spending.spent, restored.spending.left) == (4.0, 0.0)
    ledger = Ledger.read(hospital.path / "ledger.jsonl")
    with raises(PrivacyRefusal, "over-budget"):
        ledger.charge(Charge("next", "00" * 32, "votes/1", 0, (Gaussian(50.0),)))
