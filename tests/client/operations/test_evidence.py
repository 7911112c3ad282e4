"""Saved evidence comes back in a folder made anew from a backup of ledger and keys, and consents to nothing."""

import json
import shutil
import zipfile

import pytest

from tests.client.cli.test_cli import proposed
from tests.doubles.coded import raises
from tests.doubles.pace import slow_after
from tests.doubles.party_home import HashedEmbedder, command, joined
from undersong_client.consent.approvals import Proposals
from undersong_client.home import PartyHome
from undersong_client.operations import evidence
from undersong_client.operations import outbox as outboxes
from undersong_client.storage.outbox import Outbox
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.models.embedding import Embedder
from undersong_common.pages.store import FILE_NAME, AuditLog
from undersong_protocol.agreement.manifest import plan_words

COLUMNS = ("--label-field", "label", "--user-field", "patient")


@pytest.fixture
def home(tmp_path, authority, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    return joined(tmp_path, authority)


def decided(home):
    """A folder with an approval, a refusal and a message that left; the approved and the refused plan."""
    approved, refused = proposed(home), proposed(home, run="autumn", epsilon=1.0)
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(approved.hash), "--home", home)
    command("reject", "autumn", "--reason", "not before the board has met", "--home", home)
    outbox = Outbox(PartyHome(home))
    outbox.record(b"signed", at=8.0, kind="signature", run="spring")
    outbox.record(b"masked", at=9.0, kind="sum_reply", answer_to="sum_step", run="spring", query="votes/1", attempt=0)
    return approved, refused


def lost_and_restored(home, tmp_path):
    """The same party in a new folder, from the copies that the handbook names."""
    backup, new = tmp_path / "backup", tmp_path / "new"
    backup.mkdir()
    command("ledger", "--backup", backup / "ledger.jsonl", "--home", home)
    for name in ("policy.json", "coordinator.json"):
        shutil.copy(home / name, backup)
    shutil.copytree(home / "keys", backup / "keys")
    shutil.rmtree(home)
    command("init", "alpha", "--home", new)
    shutil.copytree(backup / "keys", new / "keys", dirs_exist_ok=True)
    for name in ("policy.json", "coordinator.json"):
        shutil.copy(backup / name, new)
    restore = ("--restore-ledger", backup / "ledger.jsonl", "--home", new)
    command("data", "add", tmp_path / "alpha.jsonl", *COLUMNS, *restore)
    return new


@pytest.mark.heavy
def test_restoring_evidence_brings_back_decisions_outbox_and_log(home, tmp_path):
    approved, refused = decided(home)
    saved = tmp_path / "alpha.zip"
    command("evidence", saved, "--home", home)
    assert "exists already" in command("evidence", saved, "--home", home, code=2)
    before, log = Outbox(PartyHome(home)).entries(), AuditLog(PartyHome(home).page / FILE_NAME).entries()
    sheet = Proposals(PartyHome(home)).sheet(Proposals(PartyHome(home)).find("spring"))
    new = lost_and_restored(home, tmp_path)
    counts = json.loads(command("restore-evidence", saved, "--home", new, "--json"))
    assert counts == {"requests": 2, "messages": 2, "log_entries": len(log)}
    requests = Proposals(PartyHome(new))
    request = requests.find("spring")
    assert [person.decision for person in request.people] == ["approved"]
    assert requests.is_signed(request)
    assert requests.sheet(request) == sheet
    assert requests.find("autumn").reason == "not before the board has met"
    assert Outbox(PartyHome(new)).entries() == before
    assert AuditLog(PartyHome(new).page / FILE_NAME).entries()[: len(log)] == log
    page = tmp_path / "dossier.html"
    command("dossier", "spring", "--out", page, "--home", new)
    assert before[1].sha256 in page.read_text()
    with raises(PrivacyRefusal, "plan-rejected"):
        requests.reason_to_wait(refused)
    again = json.loads(command("restore-evidence", saved, "--home", new, "--json"))
    assert again == {"requests": 0, "messages": 0, "log_entries": 0}
    assert approved.hash.hex() == request.manifest


@pytest.mark.slow
@pytest.mark.parametrize("withdrawn", [False, True])
def test_a_restored_approval_consents_to_nothing_until_given_again(home, tmp_path, withdrawn):
    approved, _ = decided(home)
    saved = tmp_path / "alpha.zip"
    command("evidence", saved, "--home", home)
    if withdrawn:  # after the evidence was saved; the ledger knows
        command("revoke", "spring", "--home", home)
    new = lost_and_restored(home, tmp_path)
    command("restore-evidence", saved, "--home", new)
    requests = Proposals(PartyHome(new))
    assert requests.find("spring").undecided
    assert "waits for the approval" in requests.reason_to_wait(approved)
    with raises(PrivacyRefusal, "plan-restored"):
        requests.check(approved)
    assert "once more" in command("requests", "--home", new)
    command("preview", "spring", "--home", new)
    command("approve", "spring", plan_words(approved.hash), "--home", new, code=3 if withdrawn else 0)
    if not withdrawn:
        requests.check(approved)
        assert len(requests.find("spring").people) == 1


@pytest.mark.heavy
def test_restored_evidence_overwrites_no_local_decision(home, tmp_path):
    approved, _ = decided(home)
    saved = tmp_path / "alpha.zip"
    command("evidence", saved, "--home", home)
    command("revoke", "spring", "--home", home)
    Outbox(PartyHome(home)).record(b"later", at=10.0, kind="receipt", run="spring")
    assert evidence.restore(home, saved) == evidence.RestoredCounts(0, 0, 0)
    with raises(PrivacyRefusal, "plan-revoked"):
        Proposals(PartyHome(home)).check(approved)


@pytest.mark.heavy
def test_restored_messages_are_listed_before_newer_ones_and_marked(home, tmp_path):
    decided(home)
    saved = tmp_path / "alpha.zip"
    command("evidence", saved, "--home", home)
    new = lost_and_restored(home, tmp_path)
    Outbox(PartyHome(new)).record(b"hello", at=99.0, kind="hello")
    command("restore-evidence", saved, "--home", new)
    entries = Outbox(PartyHome(new)).entries()
    assert [(entry.number, entry.kind) for entry in entries] == [(1, "signature"), (2, "sum_reply"), (3, "hello")]
    assert Outbox(PartyHome(new)).data(3) == b"hello"
    with raises(ConfigurationError, "bytes-not-saved"):
        outboxes.message(new, 2)
    newest, masked, signed = outboxes.listed(new, last=3)
    assert "not its bytes" not in newest[1]
    assert "its length and hash" in masked[1]
    assert (masked[2], signed[2]) == (True, False)


def change_file(saved, name, change):
    """The archive with one of its files changed, or added."""
    with zipfile.ZipFile(saved) as old:
        files = {member: old.read(member) for member in old.namelist()}
    files[name] = change(files.get(name, b""))
    with zipfile.ZipFile(saved, "w") as new:
        for member, data in files.items():
            new.writestr(member, data)
    return saved


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "change"),
    slow_after(
        [
            (f"requests/{'ab' * 32}.json", lambda _: b"{}"),
            ("outbox.json", lambda data: data + b" "),
            ("log.jsonl", lambda _: b""),
            ("evidence.json", lambda _: b"[]"),
            ("evidence.json", lambda _: b'{"files": {}}'),
        ],
        3,
    ),
)
def test_changed_or_added_file_of_evidence_is_refused_and_none_written(home, tmp_path, name, change):
    decided(home)
    saved = tmp_path / "alpha.zip"
    command("evidence", saved, "--home", home)
    new = lost_and_restored(home, tmp_path)
    with raises(ConfigurationError, "no-evidence"):
        evidence.restore(new, change_file(saved, name, change))
    assert not Proposals(PartyHome(new)).all()
    assert not Outbox(PartyHome(new)).entries()


@pytest.mark.heavy
@pytest.mark.parametrize("data", [b"", b"PK\x05\x06", b"PK\x03\x04" + bytes(40), b"{}"])
def test_file_that_is_no_evidence_is_refused(home, tmp_path, data):
    file = tmp_path / "any.zip"
    file.write_bytes(data)
    assert "restore" not in command("restore-evidence", file, "--home", home, code=2)


def test_evidence_that_another_key_signed_is_not_restored(home, tmp_path):
    decided(home)
    saved, new = tmp_path / "alpha.zip", tmp_path / "stranger"
    command("evidence", saved, "--home", home)
    command("init", "alpha", "--home", new)
    said = command("restore-evidence", saved, "--home", new, code=2)
    assert "not signed by the key of this folder" in said
    assert not Proposals(PartyHome(new)).all()


def test_evidence_holds_no_record_and_no_secret(home, tmp_path):
    decided(home)
    saved = tmp_path / "alpha.zip"
    command("evidence", saved, "--home", home)
    secrets = [path.read_bytes() for path in (home / "keys").iterdir() if path.suffix in (".key", ".secret")]
    with zipfile.ZipFile(saved) as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
    assert secrets
    assert not any(secret in content for secret in secrets)
    assert b"private note" not in content
    assert b"patient 1" not in content


def test_restored_log_survives_a_second_restore(tmp_path):
    first, second = AuditLog(tmp_path / "a" / FILE_NAME), AuditLog(tmp_path / "b" / FILE_NAME)
    first.note("anna", "one")
    early = first.saved()
    first.note("anna", 'a "previous":"' + "0" * 64 + '"')
    second.note("ben", "own")
    assert (second.bring_back(early), second.bring_back(first.saved()), second.bring_back(early)) == (1, 1, 0)
    third = AuditLog(tmp_path / "c" / FILE_NAME)
    assert third.bring_back(second.saved()) == 3
    assert [entry.who for entry in third.entries()] == ["anna", "anna", "ben"]
    assert second.bring_back(second.saved()) == 0
    broken = first.saved().replace(b"anna", b"eve!", 1)
    with pytest.raises(PrivacyRefusal):
        third.bring_back(broken)


@pytest.mark.heavy
def test_damaged_request_is_left_out_of_evidence_and_others_are_saved(home, tmp_path, caplog):
    approved, refused = decided(home)
    third = proposed(home, run="winter", epsilon=0.5)
    path = home / "requests" / f"{third.hash.hex()}.json"
    path.write_bytes(path.read_bytes()[:50])
    (home / "requests" / f"{approved.hash.hex()}.manifest").unlink()
    (home / "requests" / f"{approved.hash.hex()}.manifest").mkdir(mode=0o700)
    assert [request["run"] for request in json.loads(command("requests", "--home", home, "--json"))["requests"]] == [
        "spring",
        "autumn",
    ]
    command("evidence", tmp_path / "alpha.zip", "--home", home)
    assert f"{approved.hash.hex()}.manifest: is not a file" in caplog.text
    new = lost_and_restored(home, tmp_path)
    counts = json.loads(command("restore-evidence", tmp_path / "alpha.zip", "--home", new, "--json"))
    assert counts["requests"] == 2
    assert f"{third.hash.hex()}.json" in caplog.text
    assert not (new / "requests" / path.name).exists()
    assert Proposals(PartyHome(new)).find("autumn").manifest == refused.hash.hex()
