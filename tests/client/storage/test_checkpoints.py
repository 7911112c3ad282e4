"""Heads of a ledger outside the party's folder: whatever is cut off, no older ledger passes."""

import hashlib
import json
import os
import shutil
import threading

import pytest

from tests.client.storage.test_datasets import POLICY, declare_and_add, make_home, release
from tests.doubles.coded import raises
from tests.doubles.party_home import write_notes
from undersong_client.home import PartyHome
from undersong_client.operations import data
from undersong_client.storage import checkpoints, datasets
from undersong_common import files
from undersong_common.errors import ConfigurationError, MachineFault, PrivacyRefusal
from undersong_common.privacy.ledger import Ledger
from undersong_common.text.table import read_table


class Kept:
    """A party that has released three times, with its files as they were after each."""

    def __init__(self, folder):
        self.folder = folder
        self.home = make_home(folder / "home")
        self.notes = write_notes(folder / "notes.jsonl")
        declare_and_add(self.home, self.notes, folder)
        (second,) = (folder / "marks").glob("*.json")
        self.places = (checkpoints.beside(self.notes) / "mark.json", second)
        self.ledgers, self.marks = [], []
        for number in range(3):
            self.release(f"run {number}")

    def release(self, run):
        release(self.home, self.folder, run)
        self.ledgers.append(self.home.ledger.read_bytes())
        self.marks.append([place.read_bytes() for place in self.places])

    def starts(self, ledger=None):
        """With the present ledger, or with an older one, which is taken away again."""
        if ledger is not None:
            self.home.ledger.write_bytes(ledger)
        try:
            datasets.open_ledger(PartyHome(self.home.path), POLICY, self.folder / "marks", at=9.0)
        except PrivacyRefusal as refusal:
            if "older than the releases" not in refusal.problem:
                raise
            return False
        finally:
            self.home.ledger.write_bytes(self.ledgers[-1])
        return True


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("spoiled", ["a place", "a place deleted", "an old copy", "old copies of both"])
def test_older_ledger_is_refused_while_one_newer_checkpoint_is_readable(kept, spoiled):
    first, second = kept.places
    if spoiled == "a place":
        shutil.copyfile(first, second)  # heads do not say which place they are of
        first.write_bytes(kept.marks[0][0])
    elif spoiled == "a place deleted":
        second.unlink()
    elif spoiled == "an old copy":
        second.write_bytes(kept.marks[0][1])
    else:
        first.write_bytes(kept.marks[1][0])
        second.write_bytes(kept.marks[0][1])
    reached = 1 if spoiled == "old copies of both" else 2  # the release whose head is left
    for number, ledger in enumerate(kept.ledgers):
        if number < reached:
            assert not kept.starts(ledger)
    assert kept.starts()
    kept.release("after it")  # and every place is up again
    first.unlink()
    assert not kept.starts(kept.ledgers[-2])


def test_checkpoint_file_without_a_readable_line_is_refused_as_damaged(kept):
    place = kept.places[0]
    for damaged in (b"", bytes(len(place.read_bytes())), place.read_bytes()[:-1]):
        place.write_bytes(damaged)
        with pytest.raises(ConfigurationError):
            datasets.open_ledger(kept.home, POLICY, kept.folder / "marks", at=9.0)


def test_checkpoint_lines_of_0_2_0_are_read_and_broken_ones_are_not(kept):
    def slots(*orders):
        contents = [b"%016d %s" % (order, kept.marks[order][0]) for order in orders]
        return b"".join(
            (hashlib.sha256(each).hexdigest().encode() + b" " + each + b"\n").ljust(8192) for each in contents
        )

    def starts(ledger, data):
        kept.places[1].unlink(missing_ok=True)
        kept.places[0].write_bytes(data)
        return kept.starts(ledger)

    second, third = slots(1), slots(2)
    broken = third.replace(b'"ledger_entries"', b'"Ledger_entries"')
    assert not starts(kept.ledgers[1], third + second)
    assert starts(None, third + second)
    assert not starts(kept.ledgers[0], broken + second)
    assert starts(kept.ledgers[1], broken + second)
    with pytest.raises(ConfigurationError):
        starts(None, broken)


def test_one_of_two_checkpoint_places_may_be_read_only_but_not_both(kept, monkeypatch):
    ledger, marks = datasets.open_ledger(kept.home, POLICY, kept.folder / "marks", at=9.0)
    read_only = {str(kept.places[0])}
    own_mkstemp = files.tempfile.mkstemp

    def refuses_new(prefix, dir):
        if str(dir) in {os.path.dirname(place) for place in read_only}:
            raise OSError(30, "Read-only file system")
        return own_mkstemp(prefix=prefix, dir=dir)

    monkeypatch.setattr(files.tempfile, "mkstemp", refuses_new)
    before = kept.places[0].read_bytes()
    ledger.close("run 0", "00" * 32)
    marks.keep(ledger)
    assert kept.places[0].read_bytes() == before
    assert ledger.head.encode() in kept.places[1].read_bytes()
    read_only.add(str(kept.places[1]))
    ledger.close("run 1", "00" * 32)
    with raises(MachineFault, "no-checkpoint"):
        marks.keep(ledger)


def test_checkpoints_follow_the_restored_ledger_and_not_the_lost_one(kept):
    kept.home.ledger.write_bytes(kept.ledgers[0])
    restored = data.restore_ledger(kept.home.path, checkpoints=kept.folder / "marks", charge_missing=True)
    assert restored.runs == ("run 1", "run 2")
    datasets.open_ledger(kept.home, POLICY, kept.folder / "marks", at=9.0)
    chain = {entry["hash"] for entry in Ledger.read(kept.home.ledger).entries()}
    for place in kept.places:
        assert json.loads(place.read_bytes())["ledger_head"] in chain


def test_process_with_an_older_ledger_head_keeps_the_newer_checkpoint(kept, monkeypatch):
    """A command has read the ledger; while it keeps the head, the daemon releases and keeps its own."""
    ledger, marks = datasets.open_ledger(kept.home, POLICY, kept.folder / "marks", at=9.0)
    ledger.close("run 0", "00" * 32)
    known = kept.home.ledger.read_bytes()
    replaced = checkpoints.replace_where_possible
    daemon = threading.Thread(target=kept.release, args=("the daemon's",))

    def late(paths, content):
        monkeypatch.setattr(checkpoints, "replace_where_possible", replaced)
        daemon.start()
        daemon.join(0.2)
        assert daemon.is_alive()  # it waits for the ledger
        return replaced(paths, content)

    monkeypatch.setattr(checkpoints, "replace_where_possible", late)
    marks.keep(ledger)
    daemon.join(10.0)
    assert not kept.starts(known)


VARIANTS = {
    "copied": lambda rows: rows,
    "in another order": lambda rows: rows[::-1],
    "other spacing": lambda rows: [{**row, "text": f" {row['text']}".replace("note", "note ")} for row in rows],
    "a row twice": lambda rows: [*rows, rows[0]],
    "other ids": lambda rows: [{**row, "patient": "one"} for row in rows],
    "no labels": lambda rows: [{**row, "label": ""} for row in rows],
}


@pytest.mark.heavy
@pytest.mark.parametrize(("variant", "named"), [*((each, "now") for each in VARIANTS), ("copied", "by 0.2.0")])
def test_a_new_folder_finds_the_checkpoint_of_the_same_texts(kept, variant, named):
    rows = VARIANTS[variant]([json.loads(line) for line in kept.notes.read_text().splitlines()])
    other = kept.folder / "elsewhere" / "other.jsonl"
    other.parent.mkdir()
    other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if named == "by 0.2.0":
        table = read_table(other, "text", "label", "patient")
        kept.places[1].rename(kept.places[1].with_stem(checkpoints.former_name(table, kept.folder / "marks")))
    with raises(PrivacyRefusal, "ledger-missing"):
        declare_and_add(
            make_home(kept.folder / "new"), other, kept.folder, label_field="" if variant == "no labels" else "label"
        )
