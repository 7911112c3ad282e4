"""The ledger: charged once, before a send, in a chain that a crash cannot break and nobody can rewrite unseen."""

from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy import accounting
from undersong_common.privacy.accounting import DiscreteLaplace, Gaussian, Laplace, Pure
from undersong_common.privacy.ledger import Budget, Charge, Ledger

HASH = "ab" * 32


def vote(number: int, run: str = "r", multiplier: float = 2.0, attempt: int = 0, manifest: str = HASH) -> Charge:
    return Charge(run, manifest, f"votes/{number}", attempt, (Gaussian(multiplier),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.jsonl"


def test_what_is_charged_is_there_again(path: Path) -> None:
    ledger = Ledger.open(path, "f1", Budget(8.0, 1e-5), at=5.0)
    mixed = Charge("s", HASH, "all", 0, (Pure(0.1), Laplace(10.0, 3), DiscreteLaplace(0.1), Gaussian(9.0, 0.5, 4)))
    ledger.charge(vote(1), at=6.5)
    ledger.charge(mixed)
    again = Ledger.open(path, "f1")
    assert again.charges() == [vote(1), mixed]
    assert again.budget == Budget(8.0, 1e-5)
    assert again.head == ledger.head
    assert [entry["at"] for entry in again.entries()] == [5.0, 6.5, 0.0]
    assert Ledger.verify(path) == 3


def test_the_same_attempt_is_charged_once(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    for _ in range(3):
        ledger.charge(vote(1))
    Ledger.open(path, "f").charge(vote(1), at=99.0)
    assert ledger.charges() == [vote(1)]
    with pytest.raises(PrivacyRefusal, match="other content"):
        ledger.charge(vote(1, multiplier=3.0))
    with pytest.raises(PrivacyRefusal, match="another manifest"):
        ledger.charge(vote(2, manifest="cd" * 32))
    with pytest.raises(PrivacyRefusal, match="another manifest"):
        ledger.check_room(vote(2, manifest="cd" * 32))
    ledger.charge(vote(1, attempt=1))
    assert len(ledger.charges()) == 2


def test_gaussian_runs_add_mu_squared(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    assert ledger.spent(1e-5) == 0.0
    for run in ("a", "b", "c"):
        for number in range(4):
            ledger.charge(vote(number, run, 3.0))
    assert ledger.spent(1e-5) == pytest.approx(accounting.epsilon([Gaussian(3.0, count=12)], 1e-5))


def test_other_runs_add_epsilon_and_delta(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    ledger.charge(vote(1, "a"))
    ledger.charge(vote(1, "b"))
    ledger.charge(Charge("c", HASH, "q", 0, (Laplace(2.0),)))
    ledger.charge(Charge("c", HASH, "w", 0, (Gaussian(2.0, 0.5),)))
    expected = accounting.epsilon([Gaussian(2.0)] * 2, 5e-6) + accounting.epsilon(
        [Laplace(2.0), Gaussian(2.0, 0.5)], 5e-6
    )
    assert ledger.spent(1e-5) == pytest.approx(expected)


def test_the_budget_holds(path: Path) -> None:
    noise = accounting.calibrate(lambda s: [Gaussian(s, count=4)], 4.0, 1e-5)
    ledger = Ledger.open(path, "f", Budget(4.0, 1e-5))
    whole = Charge("r", HASH, "", 0, (Gaussian(noise, count=4),))
    ledger.check_room(whole)
    for number in range(4):
        ledger.charge(vote(number, multiplier=noise))
        ledger.check_room(whole)
    before = path.read_bytes()
    with pytest.raises(PrivacyRefusal, match="budget is 4"):
        ledger.charge(vote(4, multiplier=1000 * noise / 100))
    with pytest.raises(PrivacyRefusal, match="budget"):
        ledger.check_room(Charge("next", HASH, "", 0, (Gaussian(20.0),)))
    assert path.read_bytes() == before
    ledger.declare(Budget(math.inf, 1e-5))
    ledger.charge(vote(4, multiplier=0.0))
    assert ledger.spent(1e-5) == math.inf
    assert Ledger.open(path, "f").budget == Budget(math.inf, 1e-5)
    ledger.declare(None)
    assert Ledger.open(path, "f").budget is None


def test_void_attempts_do_not_count_and_stay_void(path: Path) -> None:
    ledger = Ledger.open(path, "f", Budget(2.5, 1e-5))
    ledger.charge(vote(1))
    with pytest.raises(PrivacyRefusal, match="budget"):
        ledger.charge(vote(1, attempt=1))
    ledger.void(vote(1), "ee" * 32)
    ledger.void(vote(1), "ff" * 32)
    assert ledger.spent(1e-5) == 0.0
    assert ledger.is_void(vote(1))
    ledger.charge(vote(1, attempt=1))
    ledger.void(vote(9), "ee" * 32)
    for dead in (vote(1), vote(9)):
        with pytest.raises(PrivacyRefusal, match="void"):
            ledger.charge(dead)
    assert Ledger.open(path, "f").charges() == [vote(1, attempt=1)]


def test_another_data_set_is_refused_until_adopted(path: Path) -> None:
    Ledger.open(path, "old").charge(vote(1))
    with pytest.raises(PrivacyRefusal, match="another data set"):
        Ledger.open(path, "new")
    Ledger.read(path).adopt("new")
    assert Ledger.open(path, "new").charges() == [vote(1)]
    with pytest.raises(ConfigurationError, match="no such"):
        Ledger.read(path.with_name("none"))


def filled(path: Path) -> bytes:
    ledger = Ledger.open(path, "f", Budget(100.0, 1e-5))
    for number in range(3):
        ledger.charge(vote(number))
    ledger.void(vote(1), "ee" * 32)
    return path.read_bytes()


def test_every_cut_of_the_last_line_is_repaired_and_nothing_else(path: Path) -> None:
    """A crash at any byte of a write leaves the ledger as it was before that write."""
    data = filled(path)
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(data)):
        path.write_bytes(data[:cut])
        if cut > last:
            with pytest.raises(PrivacyRefusal, match="line 5: incomplete"):
                Ledger.verify(path)
        ledger = Ledger.open(path, "f")
        assert path.read_bytes() == data[:last]
        assert len(ledger.charges()) == 3
    ledger.void(vote(1), "ee" * 32)
    assert path.read_bytes() == data


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_changed_byte_is_found_and_its_line_named(path: Path, data: st.DataObject) -> None:
    if path.exists():
        path.unlink()
    whole = filled(path)
    position = data.draw(st.integers(0, len(whole) - 2))
    changed = bytearray(whole)
    changed[position] = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[position]))
    path.write_bytes(changed)
    line = whole[:position].count(b"\n") + 1
    with pytest.raises(PrivacyRefusal, match=f"line {line}"):
        Ledger.verify(path)
    with pytest.raises(PrivacyRefusal, match=f"line {line}"):
        Ledger.open(path, "f")
    assert path.read_bytes() == bytes(changed)


@pytest.mark.parametrize("removed", [0, 1, 2, 3])
def test_removed_and_swapped_lines_are_found(path: Path, removed: int) -> None:
    lines = filled(path).splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:removed] + lines[removed + 1 :]))
    with pytest.raises(PrivacyRefusal, match=f"line {removed + 1}"):
        Ledger.verify(path)
    swapped = [*lines[:removed], lines[removed + 1], lines[removed], *lines[removed + 2 :]]
    path.write_bytes(b"".join(swapped))
    with pytest.raises(PrivacyRefusal, match=f"line {removed + 1}"):
        Ledger.verify(path)


def test_lines_that_vanish_under_an_open_ledger_are_noticed(path: Path) -> None:
    data = filled(path)
    ledger = Ledger.open(path, "f")
    path.write_bytes(data[: data.rstrip(b"\n").rfind(b"\n") + 1])
    with pytest.raises(PrivacyRefusal, match="shorter"):
        ledger.charge(vote(7))


def test_a_charge_is_on_the_disk_before_it_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.open(path, "f")
    acts: list[str] = []
    import os as system

    write, sync = system.write, system.fsync

    def spy_write(file: int, line: bytes) -> int:
        acts.append("write")
        return write(file, line)

    def spy_sync(file: int) -> None:
        acts.append("sync")
        sync(file)

    monkeypatch.setattr("undersong_common.privacy.ledger.os.write", spy_write)
    monkeypatch.setattr("undersong_common.privacy.ledger.os.fsync", spy_sync)
    ledger.charge(vote(1))
    assert acts == ["write", "sync"]


@pytest.mark.parametrize("short", [True, False])
def test_a_full_disk_is_a_refusal_and_leaves_no_trace(path: Path, monkeypatch: pytest.MonkeyPatch, short: bool) -> None:
    ledger = Ledger.open(path, "f")
    before = path.read_bytes()
    import os as system

    write = system.write

    def failing(file: int, line: bytes) -> int:
        if short:
            return write(file, line[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("undersong_common.privacy.ledger.os.write", failing)
    with pytest.raises(PrivacyRefusal, match="could not be written"):
        ledger.charge(vote(1))
    monkeypatch.undo()
    assert path.read_bytes() == before
    ledger.charge(vote(1))
    assert ledger.charges() == [vote(1)]


def _charge_many(path: str, run: str, count: int) -> None:
    ledger = Ledger.open(Path(path), "f")
    for number in range(count):
        ledger.charge(vote(number, run))


def test_two_processes_share_one_chain(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers: list[Any] = [context.Process(target=_charge_many, args=(str(path), name, 25)) for name in ("a", "b", "b")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert Ledger.verify(path) == 51
    assert len(Ledger.open(path, "f").charges()) == 50


def test_only_public_fields_are_written(path: Path) -> None:
    filled(path)
    keys = {key for line in path.read_text().splitlines() for key in json.loads(line)}
    assert keys == {
        *("entry", "kind", "version", "data", "budget", "at", "run", "manifest", "query", "attempt", "events"),
        *("certificate", "previous", "hash", "question"),
    }
