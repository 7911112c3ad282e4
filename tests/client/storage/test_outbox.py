"""The outbox: what survives a crash, and what a message says."""

import contextlib
import hashlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from undersong_client import keys
from undersong_client.home import PartyHome, PartySettings
from undersong_client.operations import outbox as descriptions
from undersong_client.storage import outbox, store
from undersong_client.storage.outbox import Outbox, Stored
from undersong_client.storage.store import Store
from undersong_common.errors import ConfigurationError, MachineFault
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2, secagg_pb2


@pytest.fixture
def home(tmp_path: Path) -> PartyHome:
    made = PartyHome.create(tmp_path / "party", PartySettings(party="alpha"))
    keys.create(made)
    return made


def journal_of(home: PartyHome) -> Store:
    return Store(home.journal, "alpha", keys.secret(home, "store"), home.attempts)


def read_entries(home: PartyHome) -> list[tuple[int, bytes, int]]:
    """Entries as another process reads them."""
    store.close(home.journal)
    read = Outbox(home)
    return [(entry.number, read.data(entry.number), entry.times) for entry in read.entries()]


def sum_reply() -> bytes:
    payload = secagg_pb2.Reply(
        version=1, sid=b"s" * 32, party=2, stage=secagg_pb2.MASK, body=b"m" * 1000, signature=b"g" * 64
    )
    reply = federation_pb2.SumReply(payload=payload.SerializeToString())
    return federation_pb2.Reply(version=codec.VERSION, sum_reply=reply).SerializeToString()


def test_outbox_keeps_each_message_byte_for_byte_and_decodes_it(home):
    journal = Outbox(home)
    data = sum_reply()
    for at in (1.0, 2.0):
        journal.record(data, at=at, kind="sum_reply", answer_to="sum_step", run="r", query="votes/1", attempt=0)
    journal.record(data, at=3.0, kind="sum_reply", answer_to="sum_step", run="r", query="votes/1", attempt=1)
    first, second = Outbox(home).entries()
    assert (first.number, first.times, first.bytes, first.at) == (1, 2, len(data), 1.0)
    assert second.attempt == 1
    assert journal.data(1) == data
    shown = descriptions.decode("sum_reply", data)
    assert shown["sum_reply"]["stage"] == 4
    assert shown["sum_reply"]["body"].startswith("1000 bytes, sha256 ")
    assert shown["sum_reply"]["sid"] == (b"s" * 32).hex()
    assert [entry.number for entry in journal.entries(last=1)] == [2]
    assert journal.entries(run="other") == []
    with pytest.raises(ConfigurationError):
        journal.data(9)


def test_outbox_decodes_every_kind_of_reply():
    replies = {
        "introduction": federation_pb2.Introduction(name="a", identity=b"i" * 32, statistics=["x", "y"]),
        "missing": federation_pb2.MissingBlocks(blocks=[b"b" * 32]),
        "receipt": federation_pb2.Receipt(body=b'{"a":1}', signature=b"s" * 64),
        "refusal": federation_pb2.Refusal(kind=federation_pb2.Refusal.PRIVACY, problem="no"),
        "pending": federation_pb2.Pending(reason="waits"),
    }
    for kind, body in replies.items():
        data = federation_pb2.Reply(version=1, **{kind: body}).SerializeToString()
        assert descriptions.decode(kind, data)[kind]
    assert (
        descriptions.decode(
            "receipt", data=federation_pb2.Reply(version=1, receipt=replies["receipt"]).SerializeToString()
        )["receipt"]["body"]
        == '{"a":1}'
    )
    with pytest.raises(ConfigurationError):
        descriptions.decode("refusal", b"\xff\xff\xff")


def test_outbox_is_readable_by_its_owner_and_reading_makes_no_file(home):
    before = os.umask(0)
    try:
        assert Outbox(home).entries() == []
        assert not home.journal.exists()
        Outbox(home).record(b"a", at=1.0, kind="receipt")
    finally:
        os.umask(before)
    assert home.journal.stat().st_mode & 0o777 == 0o600
    assert read_entries(home) == [(1, b"a", 1)]


def test_long_reply_is_stored_once_and_outlives_attempt_and_journal(home):
    journal, reply = journal_of(home), os.urandom(50_000)
    journal.put_all({"answered/1/mask": reply, "answered/1/share": b"never sent", "run/spring": b"hash"})
    for _ in range(2):
        Outbox(home).record(b"head" + reply, at=1.0, kind="sum_reply", stored=Stored("answered/1/mask", len(reply)))
    with contextlib.closing(sqlite3.connect(home.journal)) as database:
        assert database.execute("SELECT head FROM sent").fetchall() == [(b"head",)]
    journal.begin_compartment("attempt").end({}, "answered/1/")
    assert journal.get("answered/1/share") is None
    assert read_entries(home) == [(1, b"head" + reply, 2)]
    store.discard(home.journal, home.attempts)
    assert journal_of(home).get("run/spring") is None
    assert read_entries(home) == [(1, b"head" + reply, 2)]


def test_outbox_refuses_to_show_a_stored_message_that_was_changed(home):
    Outbox(home).record(b"first", at=1.0, kind="sum_reply")
    with store.journal(home.journal).writing() as database:
        database.execute("UPDATE sent SET head = ?", (b"firts",))
    assert len(Outbox(home).entries()) == 1
    with pytest.raises(ConfigurationError):
        Outbox(home).data(1)


@pytest.mark.parametrize("harm", ["no database", "a folder"])
def test_a_journal_that_cannot_be_read_is_an_error_until_it_is_discarded(home, harm):
    if harm == "a folder":
        home.journal.mkdir()
    else:
        home.journal.write_bytes(b"not a database, and long enough to be looked at by anybody" * 100)
    for attempt in (Outbox(home).entries, lambda: Outbox(home).record(b"new", at=1.0, kind="k")):
        with pytest.raises(ConfigurationError):
            attempt()
    if harm == "no database":
        store.discard(home.journal, home.attempts)
        assert Outbox(home).entries() == []


def test_journal_keeps_writes_of_a_transaction_whole_or_not_at_all(home):
    journal, sent = journal_of(home), Outbox(home)
    with sent.together():
        journal.put("state", b"1")
        sent.record(b"first", at=1.0, kind="sum_reply")
        assert journal.get("state") == b"1"
        with contextlib.closing(sqlite3.connect(home.journal)) as other:  # nothing of it is there for others yet
            assert other.execute("SELECT (SELECT count(*) FROM entry) + (SELECT count(*) FROM sent)").fetchone() == (0,)
    with contextlib.suppress(RuntimeError), sent.together():
        journal.put("state", b"2")
        journal.commit()
        journal.put("state", b"3")
        sent.record(b"second", at=1.0, kind="sum_reply")
        raise RuntimeError
    assert read_entries(home) == [(1, b"first", 1)]
    assert journal_of(home).get("state") == b"2"


@pytest.mark.parametrize("together", [False, True])
def test_journal_on_a_full_disk_keeps_nothing_until_there_is_room(home, together):
    sent, journal = Outbox(home), store.journal(home.journal)
    sent.record(b"first", at=1.0, kind="sum_reply")

    def record(data: bytes) -> None:
        if not together:
            sent.record(data, at=1.0, kind="sum_reply")
            return
        with sent.together():
            Store(home.journal, "alpha", bytes(32)).put("state", data)
            sent.record(data, at=1.0, kind="sum_reply")

    pages = journal.connection.execute("PRAGMA page_count").fetchone()[0]
    journal.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(MachineFault):
        record(b"x" * 100_000)
    journal.connection.execute("PRAGMA max_page_count = 1000000")
    written = threading.Thread(target=record, args=(b"third",))  # no lock is left behind
    written.start()
    written.join(5.0)
    assert not written.is_alive()
    assert read_entries(home) == [(1, b"first", 1), (2, b"third", 1)]


def test_journal_accepts_writes_of_other_threads_during_an_answer(home):
    sent = Outbox(home)
    with sent.together():
        other = threading.Thread(target=lambda: sent.record(b"hello", at=1.0, kind="hello"))
        other.start()
        other.join(5.0)
        assert not other.is_alive()
        Store(home.journal, "alpha", bytes(32)).put("state", b"1")
        other = threading.Thread(target=lambda: sent.record(b"again", at=1.0, kind="hello"))
        other.start()
        time.sleep(0.05)
        sent.record(b"reply", at=1.0, kind="sum_reply")
    other.join(5.0)
    assert [data for _, data, _ in read_entries(home)] == [b"hello", b"reply", b"again"]


@pytest.mark.slow
def test_processes_that_are_killed_while_they_write_leave_whole_messages(home):
    write = (
        "import hashlib, os, sys, pathlib\n"
        "from undersong_client.home import PartyHome\n"
        "from undersong_client.storage.outbox import Outbox\n"
        "journal = Outbox(PartyHome(pathlib.Path(sys.argv[1])))\n"
        "while True:\n"
        "    data = os.urandom(50000)\n"
        "    journal.record(data, at=1.0, kind='sum_reply')\n"
        "    print(hashlib.sha256(data).hexdigest(), flush=True)"
    )
    said = []
    for _ in range(5):
        both = [
            subprocess.Popen([sys.executable, "-c", write, str(home.path)], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        time.sleep(1.5)
        for each in both:
            each.kill()
            said += each.communicate()[0].split()
    found = read_entries(home)
    assert [number for number, _, _ in found] == list(range(1, len(found) + 1))
    assert len(said) > 10
    assert set(said) <= {hashlib.sha256(data).hexdigest() for _, data, _ in found}


def test_outbox_describes_every_sent_message_in_plain_words():
    def entry(kind):
        return outbox.Entry(7, 1.0, "sum_step", kind, "spring", "votes/1", 0, 1234, "00" * 32, 2)

    def reply(**body):
        return federation_pb2.Reply(version=1, **body).SerializeToString()

    def sum_reply(stage):
        payload = secagg_pb2.Reply(version=1, stage=stage, body=bytes(400)).SerializeToString()
        return reply(sum_reply=federation_pb2.SumReply(payload=payload))

    stages = {
        name: descriptions.SentMessage(entry("sum_reply"), sum_reply(value), {}).words()
        for name, value in secagg_pb2.Stage.items()
        if name != "UNKNOWN"
    }
    assert len({lines[1] for lines in stages.values()}) == len(stages)  # each stage has words of its own
    assert "A step of a sum." not in {lines[1] for lines in stages.values()}
    for name, lines in stages.items():
        assert lines[0] == (
            "Entry 7: 1234 bytes, 2 times, in answer to sum_step (run 'spring', sum 'votes/1', attempt 0)."
        )
        assert (descriptions.NOTHING in lines) == (name != "MASK"), name
    assert "400 bytes" in stages["MASK"][-1]
    kinds = {field.name for field in federation_pb2.Reply.DESCRIPTOR.oneofs_by_name["body"].fields} - {"sum_reply"}
    assert kinds <= set(descriptions.KINDS)
    said = descriptions.SentMessage(
        entry("pending"), reply(pending=federation_pb2.Pending(reason="waits\x1b[2J")), {}
    ).words()
    assert said[-1] == "  in these words: waits\\x1b[2J"
