"""A file of two slots: whatever a crash cuts off, what mattered most before the write can still be read."""

from __future__ import annotations

import os

import pytest

from undersong_common import slots
from undersong_common.slots import PAGE, TwoSlots, blank, contents


def always(_content: bytes) -> bool:
    return True


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "file"
    made.write_bytes(blank(1, b"one"))
    return made


def test_the_last_two_contents_stay_and_the_file_keeps_its_size_and_its_inode(path):
    before = path.stat()
    assert contents(path.read_bytes()) == [b"one"]
    file = TwoSlots(path)
    for order, content in enumerate((b"two, and longer", b"three", b"four"), 2):
        assert file.overwrite(order, content, beside=always)
    assert contents(path.read_bytes()) == [b"four", b"three"]
    assert (path.stat().st_size, path.stat().st_ino) == (before.st_size, before.st_ino)
    assert os.listdir(path.parent) == ["file"]


def test_a_write_that_was_cut_off_anywhere_leaves_the_one_before(path):
    file = TwoSlots(path)
    assert file.overwrite(2, b"two" * 50, beside=always)
    before = path.read_bytes()
    assert file.overwrite(3, b"three", beside=always)
    after = path.read_bytes()
    changed = [place for place in range(len(after)) if before[place] != after[place]]
    for length in range(changed[0], changed[-1] + 1):
        for torn in (after[:length] + before[length:], before[:length] + after[length:]):  # either end first
            left = contents(torn)
            assert b"two" * 50 in left
            assert {b"one", b"two" * 50, b"three"}.issuperset(left)
    half = changed[len(changed) // 2]
    path.write_bytes(after[:half] + before[half:])
    assert TwoSlots(path).overwrite(4, b"four", beside=always)  # in the place of what was cut off
    assert contents(path.read_bytes()) == [b"four", b"two" * 50]


def test_each_byte_that_is_another_one_is_found(path):
    whole = path.read_bytes()
    for place in range(whole.index(b"\n") + 1):
        assert contents(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]) == []
    for length in (0, 1, PAGE, len(whole) - 1):
        assert contents(whole[:length]) == []


def test_of_several_writers_none_overwrites_the_highest(path):
    one, other = TwoSlots(path), TwoSlots(path)
    assert one.overwrite(5, b"five", beside=always)
    assert other.overwrite(4, b"four, late", beside=always)
    assert contents(path.read_bytes()) == [b"five", b"four, late"]
    assert one.overwrite(6, b"six", beside=always)
    assert contents(path.read_bytes()) == [b"six", b"five"]


def test_what_may_not_stay_is_asked_for_once_and_again_when_another_has_written(path):
    asked = []
    file = TwoSlots(path)
    for order in (2, 3):
        assert file.overwrite(order, b"mine", beside=lambda content: not asked.append(content))
    assert asked == [b"one"]
    assert TwoSlots(path).overwrite(4, b"another's", beside=always)
    assert not file.overwrite(5, b"mine", beside=lambda content: content == b"mine")
    assert contents(path.read_bytes())[0] == b"another's"


@pytest.mark.parametrize("what", ["missing", "link", "second name", "folder", "too long", "nothing whole", "replaced"])
def test_what_cannot_be_overwritten_is_left_as_it_is(path, monkeypatch, what):
    elsewhere = path.with_name("elsewhere")
    content = b"new"
    if what == "missing":
        path.unlink()
    elif what == "link":
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
    elif what == "second name":
        os.link(path, elsewhere)
    elif what == "folder":
        path.unlink()
        path.mkdir()
    elif what == "too long":
        content = bytes(3 * PAGE)
    elif what == "nothing whole":
        path.write_bytes(bytes(4 * PAGE))
    else:
        elsewhere.write_bytes(path.read_bytes())
        monkeypatch.setattr(slots, "sync_data", lambda _file: os.replace(elsewhere, path))
    before = path.read_bytes() if path.is_file() else b""
    assert not TwoSlots(path).overwrite(2, content, beside=always)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_slot_that_did_not_reach_the_disk_is_the_next_one_written(path, monkeypatch):
    file = TwoSlots(path)
    assert file.overwrite(2, b"two", beside=always)

    def fails(_file: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(slots, "sync_data", fails)
        assert not file.overwrite(3, b"three", beside=always)
    assert file.overwrite(4, b"four", beside=always)
    assert contents(path.read_bytes()) == [b"four", b"two"]
