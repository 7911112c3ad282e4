"""An attempt that has ended, however it ended, has left none of its secrets in any file of its party."""

import contextlib
import os
import sqlite3
from collections.abc import Callable
from itertools import product
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.doubles.coded import raises
from tests.doubles.erasure import OF_PEERS, Secrets
from tests.doubles.pace import slow_but
from tests.doubles.party_home import command, write_notes
from tests.doubles.restarts import LABELS, ME, Federated, Hospital
from undersong_client.answering.journaled import LOOK_AFTER_S, JournaledParty
from undersong_client.home import ABANDONED_S, PartyHome
from undersong_client.operations import data
from undersong_client.storage import attempts, store
from undersong_common.errors import ConfigurationError
from undersong_protocol.secagg.transitions import SECRETS
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire

pytestmark = pytest.mark.heavy  # every file of a hospital is opened with every key

PARTIES = {"shares": 3, "direct": 2}


@pytest.fixture(autouse=True)
def every_reply_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long replies are journaled; those of a test are short."""
    monkeypatch.setattr(attempts, "LONGEST_REPLY_BYTES", 0)


class Erased:
    """A hospital whose secrets are known, and a sum that was asked for as far as its masked vector."""

    def __init__(self, folder: Path, mode: str) -> None:
        (folder / "hospital").mkdir()
        self.secrets = Secrets(ME)
        self.hospital = Hospital(folder / "hospital")
        self.hospital.entropy = self.secrets.entropy
        self.federated = Federated(folder, self.hospital.identity, PARTIES[mode])
        self.party = self.hospital.start()
        self.federated.agree(lambda request: self.party.answer(request).reply)

    def run(self, until: str = "") -> None:
        """The whole sum, or as far as the stage ``until``, after which nobody asks any more."""

        class StoppedError(Exception):
            pass

        def ask(stage: str, request: bytes) -> bytes:
            reply = self.party.answer(request).reply
            if stage == until:
                raise StoppedError
            return reply

        try:
            self.federated.run(ask)
        except StoppedError:
            assert until

    def restart(self) -> JournaledParty:
        self.party = self.hospital.start()
        return self.party

    @property
    def found(self) -> set[str]:
        return self.secrets.found(self.hospital.folder, self.hospital.path)


@pytest.fixture(params=PARTIES)
def erased(request: pytest.FixtureRequest, tmp_path: Path) -> Erased:
    return Erased(tmp_path, request.param)


def refused(erased: Erased) -> None:
    """A second, different request for a stage that was answered ends the attempt."""
    other = wire.SumStep(manifest_hash=erased.federated.manifest.hash, sum="votes/1", attempt=0)
    asked = codec.decode_request(erased.federated.asked["mask"]).sum_step
    other.payload = asked.payload + b"\xc0\x0c\x01"  # a field that nobody knows
    reply = erased.party.answer(wire.Request(version=codec.VERSION, sum_step=other).SerializeToString()).reply
    assert codec.decode_reply(reply, ME).WhichOneof("body") == "refusal"


def another_attempt(erased: Erased) -> None:
    reply = erased.party.answer(erased.federated.opening(attempt=1)).reply
    assert codec.decode_reply(reply, ME).WhichOneof("body") in ("sum_reply", "refusal")


def closed(erased: Erased) -> None:
    message = wire.CloseRun(manifest_hash=erased.federated.manifest.hash)
    reply = erased.party.answer(wire.Request(version=codec.VERSION, close_run=message).SerializeToString()).reply
    assert codec.decode_reply(reply, ME).WhichOneof("body") == "receipt"


def voided(erased: Erased) -> None:
    message = wire.VoidSum(manifest_hash=erased.federated.manifest.hash, sum="votes/1", attempt=0)
    erased.party.answer(wire.Request(version=codec.VERSION, void_sum=message).SerializeToString())


def revoked_while_it_runs(erased: Erased) -> None:
    with PartyHome(erased.hospital.path).running():  # as the daemon holds it
        command("revoke", erased.federated.manifest.run, "--home", erased.hospital.path)
    assert erased.found
    erased.party.look_after()


def revoked_while_nothing_runs(erased: Erased) -> None:
    store.close(erased.hospital.path / "journal.sqlite")
    command("revoke", erased.federated.manifest.run, "--home", erased.hospital.path)


def left(erased: Erased) -> None:
    store.close(erased.hospital.path / "journal.sqlite")
    command("revoke", "--coordinator", "--home", erased.hospital.path)


def abandoned(erased: Erased) -> None:
    erased.hospital.now += ABANDONED_S - 1.0
    erased.restart().look_after()
    assert erased.found
    erased.hospital.now += 3600.0
    erased.party.answer(wire.Request(version=codec.VERSION, introduce=wire.Introduce()).SerializeToString())


def begun_while_the_clock_was_ahead(erased: Erased) -> None:
    erased.hospital.now -= 86400.0
    erased.restart().look_after()


def abandoned_for_another_version(erased: Erased) -> None:
    """Its records take an hour to embed, and somebody interrupts that."""
    store.close(erased.hospital.path / "journal.sqlite")
    write_notes(erased.hospital.notes, labels=LABELS, start=3)
    columns = ("--label-field", "label", "--user-field", "patient", "--home", erased.hospital.path)
    with (
        patch.dict(os.environ, XDG_STATE_HOME=str(erased.hospital.folder / "state")),
        patch.object(data, "embed", side_effect=KeyboardInterrupt),
    ):
        command("data", "add", erased.hospital.notes, "--new-version", "--abandon-runs", *columns, code=None)


ENDINGS: dict[str, Callable[[Erased], None]] = {
    each.__name__: each
    for each in (
        refused,
        another_attempt,
        closed,
        voided,
        revoked_while_it_runs,
        revoked_while_nothing_runs,
        left,
        abandoned,
        begun_while_the_clock_was_ahead,
        abandoned_for_another_version,
    )
}


def kind(name: str) -> str:
    return name.split()[1]


def test_a_finished_attempt_has_left_no_secret_in_any_file(erased: Erased) -> None:
    with erased.secrets.watched():
        erased.run()
    assert {"exact vector, int64", "noise, int64"} <= set(erased.secrets.named)
    # Nobody dropped out: the last reply opens all removable noise by its root, and a share of everybody's self mask.
    kinds = set() if erased.federated.direct else {"noise_root", "self_share"}
    opened = {name for name in erased.secrets.named if kind(name) in kinds}
    assert erased.secrets.left(erased.hospital.path) == opened
    assert erased.found - opened == set()
    assert list((erased.hospital.path / "attempts").iterdir()) == []


# A vector that left in direct mode cannot be called void.
CASES = [case for case in product(PARTIES, ENDINGS) if case != ("direct", "voided")]
KEPT = [*(case for case in CASES[::2] if case[0] == "shares"), ("direct", "left")]


@pytest.mark.slow
@pytest.mark.parametrize(("erased", "ending"), slow_but(CASES, KEPT), indirect=["erased"])
def test_attempt_that_ends_early_leaves_no_secret_in_any_file(erased: Erased, ending: str) -> None:
    with erased.secrets.watched():
        erased.run(until="mask")
        under_way = {kind(name) for name in erased.found}
        # The store's key opens what is under way, and older pages of the log; direct mode has nothing of its peers.
        assert under_way == {*SECRETS, "coins", *(() if erased.federated.direct else OF_PEERS)}
        replies = attempts._replies_prefix(f"attempt/{erased.federated.manifest.hash.hex()}/votes/1/0")
        journaled = "SELECT count(*) FROM entry WHERE substr(key, 1, ?) = ?"
        journal = erased.hospital.path / "journal.sqlite"
        with contextlib.closing(sqlite3.connect(journal)) as database:
            assert database.execute(journaled, (len(replies), replies)).fetchone()[0] > 1
        ENDINGS[ending](erased)
        with contextlib.closing(sqlite3.connect(journal)) as database:
            left = database.execute("SELECT count(*) FROM sent WHERE reply <> ''").fetchone()[0]
            assert (
                database.execute(journaled, (len(replies), replies)).fetchone()[0] == left
            )  # as the outbox shows them
        found = {name for name in erased.found if "votes/1/0 " in name or not name.startswith("attempt/")}
    assert found == set()


@pytest.mark.slow
def test_erasure_cut_off_by_a_crash_is_finished_at_the_next_start(
    erased: Erased, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are gone and the key is not: the write-ahead log still holds what it opens."""

    def dies(path: Path) -> bool:
        raise KeyboardInterrupt

    with erased.secrets.watched():
        erased.run(until="mask")
        monkeypatch.setattr(store, "destroy_file", dies)
        with pytest.raises(KeyboardInterrupt):
            closed(erased)
        monkeypatch.undo()
        erased.hospital.kept(tmp_path)
        erased.hospital.restore(tmp_path)
        assert erased.found
        erased.restart()
    assert erased.found == set()


def test_write_ahead_log_left_by_a_crash_is_emptied_at_the_next_start(
    erased: Erased, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_: object) -> None:
        raise KeyboardInterrupt

    erased.run(until="mask")
    monkeypatch.setattr(store.PartyJournal, "empty_log", dies)
    with pytest.raises(KeyboardInterrupt):
        closed(erased)
    monkeypatch.undo()
    erased.hospital.kept(tmp_path)
    erased.hospital.restore(tmp_path)
    log = erased.hospital.path / "journal.sqlite-wal"
    held = log.read_bytes()[-2048:]
    erased.restart()
    assert held not in log.read_bytes()


def test_journal_entry_whose_value_is_not_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    opened = store.Store(path, "alpha", bytes(32))
    opened.put("answered/1", b"reply")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE entry SET value = 7")
    with raises(ConfigurationError, "other-key"):
        opened.get("answered/1")


def test_write_ahead_log_read_by_another_process_is_emptied_later(erased: Erased) -> None:
    journal = erased.hospital.path / "journal.sqlite"
    log = erased.hospital.path / "journal.sqlite-wal"
    with erased.secrets.watched():
        erased.run(until="mask")
        store.journal(journal).connection.execute("PRAGMA busy_timeout = 0")
        with contextlib.closing(sqlite3.connect(journal, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM entry").fetchall()
            closed(erased)
            assert log.stat().st_size > 0
            assert erased.found == set()  # the key is gone: nothing opens what the log still holds
            reader.execute("COMMIT")
            erased.hospital.now += LOOK_AFTER_S
            erased.party.look_after()
            assert log.stat().st_size == 0


def test_secrets_of_a_revoked_run_are_erased_between_answers_not_during(erased: Erased) -> None:
    """The ledger that both read and write serves one thread at a time."""
    with erased.secrets.watched():
        erased.run(until="mask")
        with PartyHome(erased.hospital.path).running():
            command("revoke", erased.federated.manifest.run, "--home", erased.hospital.path)
        with erased.party._turn_lock:  # as an answer holds it
            erased.party.look_after()
            assert erased.found
        erased.party.look_after()
    assert erased.found == set()


def test_discarding_journal_and_attempts_leaves_no_secret_in_any_file(erased: Erased) -> None:
    with erased.secrets.watched():
        erased.run(until="mask")
        store.discard(erased.hospital.path / "journal.sqlite", erased.hospital.path / "attempts")
    assert erased.found == set()


def test_a_key_is_overwritten_before_its_file_is_removed(erased: Erased, tmp_path: Path) -> None:
    with erased.secrets.watched():
        erased.run(until="mask")
        (key,) = (erased.hospital.path / "attempts").iterdir()
        os.link(key, tmp_path / "the same blocks")
        size = key.stat().st_size
        closed(erased)
    assert not key.exists()
    assert (tmp_path / "the same blocks").read_bytes() == bytes(size)
