"""The journal of what left: its file, what survives a crash, and what a message says."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from undersong_client.operations import outbox as descriptions
from undersong_client.storage import outbox, outbox_file
from undersong_client.storage.outbox import Outbox
from undersong_common.errors import ConfigurationError
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2, secagg_pb2


def sum_reply() -> bytes:
    payload = secagg_pb2.Reply(
        version=1, sid=b"s" * 32, party=2, stage=secagg_pb2.MASK, body=b"m" * 1000, signature=b"g" * 64
    )
    reply = federation_pb2.SumReply(payload=payload.SerializeToString())
    return federation_pb2.Reply(version=codec.VERSION, sum_reply=reply).SerializeToString()


def test_what_left_is_kept_byte_for_byte_once_and_decoded(tmp_path):
    journal = Outbox(tmp_path / "outbox.log")
    data = sum_reply()
    for at in (1.0, 2.0):
        journal.record(data, at=at, kind="sum_reply", answer_to="sum_step", run="r", query="votes/1", attempt=0)
    journal.record(data, at=3.0, kind="sum_reply", answer_to="sum_step", run="r", query="votes/1", attempt=1)
    first, second = Outbox(tmp_path / "outbox.log").entries()
    assert (first.number, first.times, first.bytes, first.at) == (1, 2, len(data), 1.0)
    assert second.attempt == 1
    assert journal.data(1) == data
    shown = descriptions.decode("sum_reply", data)
    assert shown["sum_reply"]["stage"] == 4
    assert shown["sum_reply"]["body"].startswith("1000 bytes, sha256 ")
    assert shown["sum_reply"]["sid"] == (b"s" * 32).hex()
    assert [entry.number for entry in journal.entries(last=1)] == [2]
    assert journal.entries(run="other") == []
    with pytest.raises(ConfigurationError, match="no entry 9"):
        journal.data(9)


def test_every_kind_of_reply_can_be_decoded():
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
    with pytest.raises(ConfigurationError, match="cannot be decoded"):
        descriptions.decode("refusal", b"\xff\xff\xff")


@pytest.fixture
def unsynced(monkeypatch):
    """For hundreds of messages."""
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    monkeypatch.setattr(outbox, "AHEAD_BYTES", 1000)


def kept(path: Path) -> list[tuple[int, bytes, int]]:
    read = Outbox(path)
    return [(entry.number, read.data(entry.number), entry.times) for entry in read.entries()]


def written(path: Path) -> bytes:
    return path.read_bytes().rstrip(b"\0")


def test_a_message_is_on_the_disk_and_its_owners_only_when_it_is_recorded(tmp_path, monkeypatch):
    path, before = tmp_path / "outbox.log", os.umask(0)
    synced = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (real(file), synced.append(written(path)), path.stat().st_mode))
    folders = []
    monkeypatch.setattr(outbox, "sync_folder", folders.append)
    try:
        assert Outbox(path).entries() == []
        assert not path.exists()  # who only reads makes none
        Outbox(path).record(b"a" * 1000, at=1.0, kind="receipt")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert synced == [written(path)]
    assert folders == [tmp_path]
    restarted = Outbox(path)  # whoever made the file may have been killed before its folder was on the disk
    restarted.record(b"masked" * 100, at=2.0, kind="sum_reply")
    assert len(synced) == len(folders) == 2
    restarted.record(b"later", at=3.0, kind="sum_reply")
    assert len(synced) == 3
    assert folders == [tmp_path, tmp_path]
    assert b"masked" * 100 in path.read_bytes()  # as it is
    assert b"a" * 1000 not in path.read_bytes()  # deflated
    assert path.stat().st_size == outbox_file.AHEAD_BYTES  # nothing grew


@pytest.mark.parametrize("last", ["message", "repeat"])
def test_what_a_crash_cut_off_at_any_byte_is_read_by_nobody_and_cut_by_the_next_message(tmp_path, unsynced, last):
    path, torn = tmp_path / "outbox.log", tmp_path / "torn.log"
    journal = Outbox(path)
    journal.record(b"first", at=1.0, kind="sum_reply")
    begin = len(written(path))
    journal.record(b"first" if last == "repeat" else b"second\n\n", at=1.0, kind="sum_reply")
    image = written(path)
    for end in range(begin, len(image)):
        for ahead in (0, 100):
            torn.write_bytes(image[:end] + bytes(ahead))
            read = Outbox(torn)
            assert [(entry.number, entry.times) for entry in read.entries()] == [(1, 1)], end
            read.record(b"third", at=1.0, kind="sum_reply")
            assert written(torn) == image[:begin] + written(torn)[begin:]
            assert kept(torn) == [(1, b"first", 1), (2, b"third", 1)], end


def test_holes_that_a_crash_of_the_machine_left_in_the_last_message_are_no_message(tmp_path, unsynced):
    path, torn = tmp_path / "outbox.log", tmp_path / "torn.log"
    journal = Outbox(path)
    journal.record(b"first", at=1.0, kind="sum_reply")
    begin = len(written(path))
    journal.record(b"x" * 300, at=1.0, kind="sum_reply")
    image = path.read_bytes()
    for hole in range(begin, len(image.rstrip(b"\0")), 7):
        torn.write_bytes(image[:hole] + bytes(16) + image[hole + 16 :])
        Outbox(torn).record(b"third", at=1.0, kind="sum_reply")
        assert kept(torn) == [(1, b"first", 1), (2, b"third", 1)], hole - begin


@pytest.mark.parametrize("harm", ["a line's beginning", "zeros over a line", "a message's end", "a foreign file"])
def test_damage_is_an_error_that_says_where_and_nothing_is_written_over_it(tmp_path, harm):
    path = tmp_path / "outbox.log"
    journal = Outbox(path)
    ends = [0]
    for data in (b"first", b"second", b"third"):
        journal.record(data, at=1.0, kind="sum_reply")
        ends.append(len(written(path)))
    image = bytearray(path.read_bytes())
    place = ends[1]
    if harm == "a line's beginning":
        image[place] = ord("[")
    elif harm == "zeros over a line":
        image[place : place + 50] = bytes(50)
    elif harm == "a message's end":
        image[ends[2] - 1] = ord("x")
    else:
        image, place = bytearray(b"not an outbox, and long enough to be looked at by anybody"), 0
    path.write_bytes(image)
    for attempt in (Outbox(path).entries, lambda: Outbox(path).record(b"new", at=1.0, kind="k")):
        with pytest.raises(ConfigurationError, match=rf"outbox\.log: is damaged at byte {place}\b") as error:
            attempt()
        assert "move it away" in error.value.remedy
    assert path.read_bytes() == image


def test_a_message_that_is_not_the_one_that_was_kept_is_not_shown(tmp_path):
    path = tmp_path / "outbox.log"
    for data in (b"first", b"second"):
        Outbox(path).record(data, at=1.0, kind="sum_reply")
    path.write_bytes(path.read_bytes().replace(b"\nfirst\n", b"\nfirts\n"))
    assert len(Outbox(path).entries()) == 2
    with pytest.raises(ConfigurationError, match="is damaged at byte"):
        Outbox(path).data(1)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (b'"stored": 5', b'"stored": 99999999999999999999'),
        (b'"number": 1', b'"number": "1"'),
        (b'"at": 1.0', b'"at": [1.0]'),
        (b'"run": ""', b'"run": null'),
    ],
)
def test_a_line_that_was_edited_is_damage(tmp_path, was, now):
    path = tmp_path / "outbox.log"
    Outbox(path).record(b"first", at=1.0, kind="sum_reply")
    image = path.read_bytes().replace(was, now)
    path.write_bytes(image)
    for attempt in (Outbox(path).entries, lambda: Outbox(path).record(b"second", at=1.0, kind="k")):
        with pytest.raises(ConfigurationError, match="is damaged at byte 0,"):
            attempt()
    assert path.read_bytes() == image


def test_a_line_of_a_later_version_is_neither_read_nor_cut(tmp_path):
    path = tmp_path / "outbox.log"
    Outbox(path).record(b"first", at=1.0, kind="sum_reply")
    image = path.read_bytes().replace(b', "stored"', b', "new": 1, "stored"')
    path.write_bytes(image)
    with pytest.raises(ConfigurationError, match="another version"):
        Outbox(path).record(b"second", at=1.0, kind="sum_reply")
    assert path.read_bytes() == image


@pytest.mark.parametrize("failing", ["writing", "half", "syncing"])
def test_a_full_disk_keeps_nothing_and_sends_nothing_until_there_is_room(tmp_path, monkeypatch, failing):
    path = tmp_path / "outbox.log"
    journal = Outbox(path)
    journal.record(b"first", at=1.0, kind="sum_reply")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def half(file, parts, place):
        return os.pwrite(file, b"".join(parts)[:100], place)

    name, broken = {"writing": ("pwritev", full), "half": ("pwritev", half), "syncing": ("fdatasync", full)}[failing]
    with monkeypatch.context() as context:
        context.setattr(os, name, broken)
        with pytest.raises(ConfigurationError, match="No space left") as error:
            journal.record(b"second", at=1.0, kind="sum_reply")
    assert "nothing was sent" in error.value.remedy
    assert kept(path) == [(1, b"first", 1)]
    journal.record(b"third", at=1.0, kind="sum_reply")
    assert kept(path) == [(1, b"first", 1), (2, b"third", 1)]


def test_what_fits_while_the_zeros_ahead_do_not_is_kept(tmp_path, monkeypatch):
    journal = Outbox(tmp_path / "outbox.log")
    monkeypatch.setattr(os, "pwritev", lambda file, parts, place: os.pwrite(file, b"".join(parts)[:1000], place))
    for data in (b"first", b"second"):
        journal.record(data, at=1.0, kind="sum_reply")
    assert kept(tmp_path / "outbox.log") == [(1, b"first", 1), (2, b"second", 1)]


@pytest.mark.parametrize("how", ["removed", "emptied", "replaced"])
def test_a_file_that_is_taken_away_from_an_open_outbox_loses_nothing_later(tmp_path, how):
    path = tmp_path / "outbox.log"
    journal = Outbox(path)
    journal.record(b"first", at=1.0, kind="sum_reply")
    if how == "removed":
        path.unlink()
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        Outbox(tmp_path / "other.log").record(b"other's", at=1.0, kind="sum_reply")
        (tmp_path / "other.log").replace(path)
    journal.record(b"first", at=1.0, kind="sum_reply")
    journal.record(b"second", at=1.0, kind="sum_reply")
    found = [data for _, data, _ in kept(path)]
    assert found == ([b"other's"] if how == "replaced" else []) + [b"first", b"second"]


def test_several_outboxes_of_one_file_take_turns(tmp_path, monkeypatch):
    path = tmp_path / "outbox.log"
    monkeypatch.setattr(os, "fdatasync", lambda _: time.sleep(0.0003))  # others come in between if they can

    def write(journal, name):
        for number in range(30):
            journal.record(f"{name} {number}".encode(), at=1.0, kind="sum_reply")
            journal.record(b"the same", at=1.0, kind="sum_reply")

    threads = [threading.Thread(target=write, args=(Outbox(path), name)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = kept(path)
    assert [number for number, _, _ in found] == list(range(1, 92))
    assert {data: times for _, data, times in found} == {
        b"the same": 90,
        **{f"{name} {number}".encode(): 1 for name in "abc" for number in range(30)},
    }


def test_a_folder_in_its_place_is_an_error_to_who_reads_and_to_who_writes(tmp_path):
    path = tmp_path / "outbox.log"
    path.mkdir()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        Outbox(path).record(b"a", at=1.0, kind="hello")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Outbox(path).entries()


def test_who_reads_waits_while_another_writes(tmp_path):
    path = tmp_path / "outbox.log"
    Outbox(path).record(b"first", at=1.0, kind="sum_reply")
    reader = threading.Thread(target=Outbox(path).entries)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        reader.start()
        reader.join(0.05)
        assert reader.is_alive()
    reader.join(5.0)
    assert not reader.is_alive()


@pytest.mark.slow
def test_processes_that_are_killed_while_they_write_leave_whole_messages(tmp_path):
    path = tmp_path / "outbox.log"
    write = (
        "import hashlib, os, sys, pathlib\n"
        "from undersong_client.storage.outbox import Outbox\n"
        "journal = Outbox(pathlib.Path(sys.argv[1]))\n"
        "while True:\n"
        "    data = os.urandom(50000)\n"
        "    journal.record(data, at=1.0, kind='sum_reply')\n"
        "    print(hashlib.sha256(data).hexdigest(), flush=True)"
    )
    said = []
    for _ in range(5):
        both = [
            subprocess.Popen([sys.executable, "-c", write, str(path)], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        time.sleep(0.7)
        for each in both:
            each.kill()
            said += each.communicate()[0].split()
    found = Outbox(path).entries()
    assert [entry.number for entry in found] == list(range(1, len(found) + 1))
    assert len(said) > 10
    assert set(said) <= {entry.sha256 for entry in found}
    assert len(Outbox(path).data(found[-1].number)) == 50000


def test_a_list_reads_no_messages(tmp_path, unsynced, monkeypatch):
    journal = Outbox(tmp_path / "outbox.log")
    for number in range(10):
        journal.record(bytes([number]) * 2**20, at=1.0, kind="sum_reply")
    read, real = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: read.append(len(real(*arguments))) or real(*arguments))
    assert len(Outbox(tmp_path / "outbox.log").entries(last=3)) == 3
    assert sum(read) < 2 * 2**20  # the last one, to see that it is whole


def test_every_message_that_leaves_is_told_in_plain_words():
    def entry(kind):
        return outbox.Entry(7, 1.0, "sum_step", kind, "spring", "votes/1", 0, 1234, "00" * 32, 2)

    def reply(**body):
        return federation_pb2.Reply(version=1, **body).SerializeToString()

    def sum_reply(stage):
        payload = secagg_pb2.Reply(version=1, stage=stage, body=bytes(400)).SerializeToString()
        return reply(sum_reply=federation_pb2.SumReply(payload=payload))

    stages = {
        name: descriptions.words(entry("sum_reply"), sum_reply(value))
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
    said = descriptions.words(entry("pending"), reply(pending=federation_pb2.Pending(reason="waits\x1b[2J")))
    assert said[-1] == "  in these words: waits\\x1b[2J"
