"""Files that version 1 wrote are continued or refused by name; files of a later version are refused.

``formats/version1.json`` was written by version 1 itself: party p0 of three, after its sum votes/1 was opened, its
vector of votes/2 sent, and its shares of votes/3 dealt.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import sqlite3
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.doubles.restarts import ME, SUM, Federated, Hospital
from undersong_client import attempts, checkpoints, store
from undersong_client.operations import data
from undersong_client.state import write_json
from undersong_common import slots
from undersong_common.canonical import canonical_json
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import Charge, Ledger, entry_hash
from undersong_protocol import codec
from undersong_protocol.messages import federation_pb2 as wire
from undersong_protocol.secagg.party import PartyMachine

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


def test_a_ledger_of_version_1_is_continued_and_its_runs_are_over(tmp_path):
    ledger = Ledger.read(write_ledger(tmp_path / "ledger.jsonl"))
    spent = ledger.spent(DELTA)
    assert 0 < spent < math.inf
    assert ledger.attempts(RUN, "votes/1") == {0: "sent"}  # what it charged may have left
    assert math.isinf(ledger.spent_if_all_others_collude(DELTA))  # it did not write down what that shows
    manifest = ledger.charges()[0].manifest
    for name, attempt in (("votes/2", 0), ("votes/2", 1), ("votes/3", 0)):
        charge = Charge(RUN, manifest, name, attempt, (Gaussian(5.0),))
        for refused in (
            lambda c=charge: ledger.charge(c, spare_attempts=9),
            lambda c=charge: ledger.check_attempt(c, 9),
        ):
            with pytest.raises(PrivacyRefusal, match="run 'a run' has ended at this party"):
                refused()
    ledger.charge(Charge("another", "00" * 32, "votes/1", 0, (Gaussian(5.0),)))
    again = Ledger.read(ledger.path)
    kinds = [(entry["kind"], entry.get("version")) for entry in again.entries()]
    assert kinds == [("genesis", 1), ("charge", None), ("charge", None), ("format", 2), ("charge", None)]
    assert again.spent(DELTA) > spent
    assert again.attempts("another", "votes/1") == {0: "charged"}


@pytest.mark.parametrize("kind", ["genesis", "format"])
def test_a_ledger_of_a_later_version_is_refused(tmp_path, kind):
    path = write_ledger(tmp_path / "ledger.jsonl", lines=1 if kind == "genesis" else 3)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if kind == "genesis":
        lines[0]["version"] = 3
    else:
        lines.append({"entry": 4, "kind": "format", "version": 3, "at": 1.0, "previous": lines[-1]["hash"]})
    lines[-1]["hash"] = entry_hash({key: value for key, value in lines[-1].items() if key != "hash"})
    path.write_bytes(b"".join(canonical_json(line) + b"\n" for line in lines))
    with pytest.raises(ConfigurationError, match="ledger of version 3, this program knows versions 1 to 2"):
        Ledger.read(path)


# The checkpoint, and a whole party


class Upgraded(Hospital):
    """A hospital whose folder, mark and journal are those of version 1, which sealed no data set."""

    def __init__(self, folder: Path, ledger_lines: int = 3) -> None:
        super().__init__(folder)
        (self.path / "keys" / "store.key").write_text(STORE_KEY.hex())
        (self.path / "data.sealed").unlink()
        write_journal(self.path / "journal.sqlite").chmod(0o600)
        write_ledger(self.path / "ledger.jsonl", ledger_lines)
        self.mark = checkpoints.beside(self.notes) / "mark.json"
        write_json(self.mark, WRITTEN["checkpoint"])
        for mark in self.marks.glob("*.json"):
            mark.unlink()


@pytest.fixture
def make(tmp_path):
    def made(ledger_lines: int = 3) -> Upgraded:
        (tmp_path / "hospital").mkdir()
        return Upgraded(tmp_path / "hospital", ledger_lines)

    return made


def test_a_party_of_version_1_adds_its_data_again_and_takes_part_in_new_runs_only(make, tmp_path):
    hospital = make()
    with pytest.raises(ConfigurationError, match="holds no sealed data set") as refused:
        hospital.start()
    assert "data add" in refused.value.remedy
    hospital.add_data()
    party = hospital.start()

    def asked(request: bytes) -> str:
        return codec.decode_reply(party.answer(request).reply, ME).refusal.problem

    for written in WRITTEN["requests"].values():
        assert f"speaks version 1 of the protocol, this program speaks {codec.VERSION}" in asked(bytes.fromhex(written))
        request = wire.Request.FromString(bytes.fromhex(written))
        request.version = codec.VERSION
        assert "the manifest has version 1, this program speaks" in asked(request.SerializeToString())
    same = Federated(tmp_path, hospital.identity)
    proposal = wire.ProposeManifest(manifest=same.manifest.to_bytes())
    words = asked(wire.Request(version=codec.VERSION, propose=proposal).SerializeToString())
    assert "run 'a run' was charged under another manifest" in words
    new = Federated(tmp_path, hospital.identity, run="another run")
    new.agree(lambda request: party.answer(request).reply)
    assert ME in new.run(lambda _stage, request: party.answer(request).reply).survivors
    ledger = Ledger.read(hospital.path / "ledger.jsonl")
    assert [charge.run for charge in ledger.charges()] == [RUN, RUN, "another run"]
    assert ledger.attempts("another run", SUM) == {0: "sent"}
    mark = json.loads(slots.contents(hospital.mark.read_bytes())[0])
    assert (mark["version"], mark["ledger_head"]) == (2, ledger.head)


def test_a_ledger_older_than_a_checkpoint_of_version_1_is_refused(make):
    hospital = make(ledger_lines=2)
    with pytest.raises(PrivacyRefusal, match="the ledger is older than the releases"):
        hospital.add_data()


@pytest.mark.parametrize("version", [1, 3])
def test_a_checkpoint_that_does_not_say_what_was_charged_costs_the_whole_budget(make, version):
    """Version 1 kept the head only; what a later version says cannot be read."""
    hospital = make()
    hospital.add_data()
    head = json.loads(slots.contents(hospital.mark.read_bytes())[0])["ledger_head"]
    for mark in (hospital.mark, *hospital.marks.glob("*.json")):
        write_json(mark, WRITTEN["checkpoint"] if version == 1 else {"version": 3, "ledger_head": head})
    (hospital.path / "ledger.jsonl").unlink()
    with pytest.raises(PrivacyRefusal, match="ledger is missing"):
        hospital.start()
    restored = data.restore_ledger(hospital.path, checkpoints=hospital.marks, charge_missing=True)
    assert restored.whole_budget
    assert (restored.spending.spent, restored.spending.left) == (4.0, 0.0)
    ledger = Ledger.read(hospital.path / "ledger.jsonl")
    with pytest.raises(PrivacyRefusal, match="its budget is 4"):
        ledger.charge(Charge("next", "00" * 32, "votes/1", 0, (Gaussian(50.0),)))
