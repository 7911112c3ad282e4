"""The ledger: charged once, before a send, in a chain that a crash cannot break and nobody can rewrite unseen."""

import fcntl
import json
import math
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.pace import examples
from undersong_common.errors import ConfigurationError, MachineFault, PrivacyRefusal, UndersongError
from undersong_common.privacy import accounting
from undersong_common.privacy import spending as spending_module
from undersong_common.privacy.accounting import DiscreteLaplace, Gaussian, Laplace, Pure
from undersong_common.privacy.ledger import VOIDED_VECTORS, Ledger
from undersong_common.privacy.spending import (
    Budget,
    Charge,
    PlanPrice,
    RunSpending,
    Statement,
    charged_of,
    compressed,
    parts,
    price,
    surely_within,
)

HASH = "ab" * 32
VECTOR, OTHER = "cc" * 32, "dd" * 32


@contextmanager
def refuses(code: str, kind: type[UndersongError] = PrivacyRefusal) -> Iterator[None]:
    with pytest.raises(kind) as raised:
        yield
    assert raised.value.code == code


def vote(number: int, run: str = "r", multiplier: float = 2.0, attempt: int = 0, manifest: str = HASH) -> Charge:
    return Charge(run, manifest, f"votes/{number}", attempt, (Gaussian(multiplier),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.jsonl"


@pytest.mark.heavy
def test_charges_are_read_back_from_the_ledger(path: Path) -> None:
    ledger = Ledger.open(path, "f1", Budget(8.0, 1e-5, 2), at=5.0)
    mixed = Charge("s", HASH, "all", 0, (Pure(0.1), Laplace(10.0, 3), DiscreteLaplace(0.1), Gaussian(9.0, 0.5, 4)))
    ledger.charge(vote(1), at=6.5)
    ledger.charge(mixed)
    again = Ledger.open(path, "f1")
    assert again.charges() == [vote(1), mixed]
    assert again.budget == Budget(8.0, 1e-5, 2)
    assert again.head == ledger.head
    assert [entry["at"] for entry in again.entries()] == [5.0, 6.5, 0.0]
    assert Ledger.verify(path) == 3


def test_ledger_that_two_threads_share_is_not_locked_for_good(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.open(path, "f1", at=5.0)
    chain = ledger._chain
    is_waiting = threading.Event()
    lock, sync = fcntl.flock, chain.sync
    reader = threading.Thread(target=ledger.refresh, daemon=True)

    def flock(file: int, operation: int) -> None:
        if threading.current_thread() is reader:
            is_waiting.set()
        lock(file, operation)

    def sync_while_another_thread_reads() -> None:
        if not reader.ident:
            reader.start()
            assert is_waiting.wait(10.0)
        sync()

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(chain, "sync", sync_while_another_thread_reads)
    ledger.charge(vote(1), at=6.0)
    reader.join(10.0)
    assert not reader.is_alive()
    with path.open("rb") as file:
        lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError if a thread has left a lock behind
    assert Ledger.read(path).state(vote(1)) == "charged"


def test_charging_the_same_attempt_again_adds_no_cost(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    for _ in range(3):
        ledger.charge(vote(1))
    Ledger.open(path, "f").charge(vote(1), at=99.0)
    assert ledger.charges() == [vote(1)]
    with refuses("other-content"):
        ledger.charge(vote(1, multiplier=3.0))
    with refuses("other-content"):
        ledger.charge(replace(vote(1), question=OTHER))
    with refuses("other-manifest"):
        ledger.charge(vote(2, manifest="cd" * 32))
    with refuses("other-manifest"):
        ledger.check_room(vote(2, manifest="cd" * 32))
    ledger.charge(vote(1, attempt=1), spare_attempts=1)
    assert len(ledger.charges()) == 2


def test_ledger_adds_squared_mu_of_gaussian_runs(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    assert ledger.spent(1e-5) == 0.0
    for run in ("a", "b", "c"):
        for number in range(4):
            ledger.charge(vote(number, run, 3.0))
    assert ledger.spent(1e-5) == pytest.approx(accounting.epsilon([Gaussian(3.0, count=12)], 1e-5))


@pytest.mark.heavy
def test_ledger_adds_epsilon_and_delta_of_runs_that_are_not_gaussian(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    ledger.charge(vote(1, "a"))
    ledger.charge(vote(1, "b"))
    ledger.charge(Charge("c", HASH, "q", 0, (Laplace(2.0),)))
    ledger.charge(Charge("c", HASH, "w", 0, (Gaussian(2.0, 0.5),)))
    expected = accounting.epsilon([Gaussian(2.0)] * 2, 5e-6) + accounting.epsilon(
        [Laplace(2.0), Gaussian(2.0, 0.5)], 5e-6
    )
    assert ledger.spent(1e-5) == pytest.approx(expected)


def test_charge_beyond_the_budget_is_refused_and_not_written(path: Path) -> None:
    noise = accounting.calibrate(lambda s: [Gaussian(s, count=4)], 4.0, 1e-5)
    ledger = Ledger.open(path, "f", Budget(4.0, 1e-5))
    whole = Charge("r", HASH, "", 0, (Gaussian(noise, count=4),))
    ledger.check_room(whole)
    for number in range(4):
        ledger.charge(vote(number, multiplier=noise))
        ledger.check_room(whole)
    before = path.read_bytes()
    with refuses("over-budget"):
        ledger.charge(vote(4, multiplier=1000 * noise / 100))
    with refuses("over-budget"):
        ledger.check_room(Charge("next", HASH, "", 0, (Gaussian(20.0),)))
    assert path.read_bytes() == before
    ledger.declare(Budget(math.inf, 1e-5))
    ledger.charge(vote(4, multiplier=0.0))
    assert ledger.spent(1e-5) == math.inf
    assert Ledger.open(path, "f").budget == Budget(math.inf, 1e-5)
    ledger.declare(None)
    assert Ledger.open(path, "f").budget is None


def test_ledger_does_not_count_void_attempts_and_keeps_them_void(path: Path) -> None:
    ledger = Ledger.open(path, "f", Budget(2.5, 1e-5))
    ledger.charge(vote(1))
    ledger.send(vote(1), VECTOR)
    with refuses("over-budget"):
        ledger.charge(vote(1, attempt=1), spare_attempts=1)
    ledger.void(vote(1), "ee" * 32)
    ledger.void(vote(1), "ff" * 32)
    assert ledger.spent(1e-5) == 0.0
    assert ledger.state(vote(1)) == "void"
    ledger.charge(vote(1, attempt=1))
    for act in (ledger.charge, lambda charge: ledger.send(charge, VECTOR)):
        with refuses("attempt-void"):
            act(vote(1))
    assert Ledger.open(path, "f").charges() == [vote(1, attempt=1)]


def test_void_certificate_for_an_unsent_vector_changes_no_ledger_line(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    ledger.charge(vote(1))
    before = path.read_bytes()
    ledger.void(vote(1), "ee" * 32)
    ledger.void(vote(9), "ee" * 32)
    assert path.read_bytes() == before
    assert ledger.charges() == [vote(1)]


def test_three_vectors_of_a_sum_may_be_void_before_a_spare_attempt(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    for attempt in range(VOIDED_VECTORS):
        ledger.charge(vote(1, attempt=attempt))
        ledger.send(vote(1, attempt=attempt), VECTOR)
        ledger.void(vote(1, attempt=attempt), "ee" * 32)
    ledger.charge(vote(1, attempt=3))
    ledger.send(vote(1, attempt=3), VECTOR)
    with refuses("too-many-voids"):
        ledger.void(vote(1, attempt=3), "ee" * 32)
    with refuses("no-spare-attempt"):
        ledger.charge(vote(1, attempt=4))
    ledger.charge(vote(1, attempt=4), spare_attempts=1)
    # Another sum has its own three, and what never left is not counted.
    ledger.charge(vote(2))
    for attempt in range(1, 6):
        ledger.withdraw(vote(2, attempt=attempt - 1))
        ledger.charge(vote(2, attempt=attempt), spare_attempts=1)
    assert ledger.voided("r", "votes/1") == 3
    assert ledger.voided("r", "votes/2") == 0


def test_epsilon_if_all_others_collude_counts_every_sent_vector(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    seen = [replace(vote(1, attempt=attempt), alone=(Gaussian(0.7),)) for attempt in range(4)]
    for charge in seen[:2]:
        ledger.charge(charge)
        ledger.send(charge, VECTOR)
        ledger.void(charge, "ee" * 32)
    ledger.charge(seen[2])
    ledger.withdraw(seen[2])
    ledger.charge(seen[3])
    ledger.send(seen[3], VECTOR)
    assert ledger.spent(1e-5) == pytest.approx(accounting.epsilon([Gaussian(2.0)], 1e-5))
    assert ledger.spent_if_all_others_collude(1e-5) == pytest.approx(accounting.epsilon([Gaussian(0.7, count=3)], 1e-5))


def test_sent_vector_is_recorded_by_hash_and_another_one_is_refused(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    with refuses("attempt-unknown"):
        ledger.send(vote(1), VECTOR)
    ledger.charge(vote(1))
    ledger.charge(vote(1))
    assert ledger.state(vote(1)) == "charged"
    for _ in range(2):
        ledger.send(vote(1), VECTOR)
        Ledger.open(path, "f").send(vote(1), VECTOR)
    assert ledger.state(vote(1)) == "sent"
    with refuses("other-vector"):
        ledger.send(vote(1), OTHER)
    with refuses("attempt-sent"):
        ledger.charge(vote(1))
    with refuses("attempt-sent"):
        ledger.withdraw(vote(1))
    with refuses("charged-before"):
        ledger.check_attempt(vote(1), 5)
    assert [entry["kind"] for entry in ledger.entries()] == ["genesis", "charge", "sent"]


def test_charge_of_an_attempt_that_sent_nothing_is_withdrawn_for_good(path: Path) -> None:
    ledger = Ledger.open(path, "f", Budget(2.5, 1e-5))
    ledger.withdraw(vote(1))
    ledger.charge(vote(1))
    with refuses("no-spare-attempt"):
        ledger.check_attempt(vote(1, attempt=1), 0)
    ledger.withdraw(vote(1))
    ledger.withdraw(vote(1))
    assert ledger.spent(1e-5) == 0.0
    for act in (ledger.charge, lambda charge: ledger.send(charge, VECTOR)):
        with refuses("attempt-withdrawn"):
            act(vote(1))
    ledger.check_attempt(vote(1, attempt=1), 0)
    ledger.charge(vote(1, attempt=1))
    assert ledger.attempts("r", "votes/1") == {0: "withdrawn", 1: "charged"}


def test_spare_attempts_are_counted_over_all_sums_of_a_run(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    for number in (1, 2):
        ledger.charge(vote(number), spare_attempts=1)
    ledger.charge(vote(1, attempt=1), spare_attempts=1)
    with refuses("no-spare-attempt"):
        ledger.charge(vote(2, attempt=1), spare_attempts=1)
    ledger.charge(vote(2, "another run", attempt=1))


def test_charging_a_sum_for_a_second_question_is_refused(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    ledger.charge(replace(vote(1), question=VECTOR))
    ledger.withdraw(vote(1))
    with refuses("other-question"):
        ledger.charge(replace(vote(1, attempt=1), question=OTHER))
    ledger.charge(replace(vote(1, attempt=1), question=VECTOR))
    ledger.charge(replace(vote(2), question=OTHER))


def test_charge_for_an_older_data_set_is_refused_for_the_newer_one(path: Path) -> None:
    ledger = Ledger.open(path, "old")
    ledger.charge(vote(1))
    ledger.charge(vote(2))
    ledger.send(vote(2), VECTOR)
    ledger.adopt("new")
    with refuses("data-replaced"):
        ledger.charge(vote(1))
    ledger.send(vote(2), VECTOR)  # what left may leave again


def test_charge_for_an_ended_run_is_refused(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    ledger.charge(vote(1))
    ledger.close("r", HASH)
    ledger.close("r", HASH)
    assert ledger.totals()[0].closed
    for act in (ledger.charge, ledger.check_room, lambda charge: ledger.check_attempt(charge, 9)):
        with refuses("run-ended"):
            act(vote(2))
    assert len(ledger.entries()) == 3


@settings(deadline=None, max_examples=30)
@given(st.floats(0.3, 50.0), st.integers(1, 40), st.floats(1e-9, 1e-3), st.floats(0.9, 1.1))
def test_quick_budget_check_agrees_with_the_full_price(sigma: float, count: int, delta: float, share: float) -> None:
    runs = {"a": [Gaussian(sigma, count=count)], "b": [Gaussian(2 * sigma)]}
    costs = price(runs, delta, 2)
    said = surely_within(parts(runs), share * costs, delta / 2)
    assert not said or costs <= share * costs * (1 + 1e-9)
    assert said or costs >= share * costs * (1 - 1e-9)
    assert not surely_within(parts({**runs, "c": [Pure(0.1)]}), math.inf, delta)  # two parts: the price decides


def test_almost_zero_noise_is_within_no_budget() -> None:
    """Its square is beyond the range of floats, or that of two of them is."""
    for sigma in (1e-300, 1e-154, 1e-100, 0.0):
        assert not surely_within([[Gaussian(sigma), Gaussian(sigma)]], 8.0, 1e-5)


# Parts of the budget


def mixed(run: str) -> Charge:
    return Charge(run, HASH, "q", 0, (Laplace(4.0), Gaussian(4.0, 0.5)))


@pytest.mark.slow
def test_delta_of_a_budget_part_is_fixed_when_the_budget_is_declared(path: Path) -> None:
    ledger = Ledger.open(path, "f", Budget(30.0, 1e-5, parts=3))
    part = 1e-5 / 3
    ledger.charge(vote(1, "a"))
    assert ledger.spent(1e-5) == pytest.approx(accounting.epsilon([Gaussian(2.0)], part))
    ledger.charge(mixed("b"))
    ledger.charge(vote(1, "c"))  # joins the other Gaussian run
    expected = accounting.epsilon([Gaussian(2.0)] * 2, part) + accounting.epsilon(mixed("b").events, part)
    assert ledger.spent(1e-5) == pytest.approx(expected)
    ledger.charge(mixed("d"))
    with refuses("too-many-parts"):
        ledger.check_room(mixed("e"))
    with refuses("too-many-parts"):
        ledger.charge(mixed("e"))
    ledger.declare(Budget(30.0, 1e-5, parts=4))
    ledger.charge(mixed("e"))
    # A part that is open is never closed by a later budget of fewer.
    ledger.declare(Budget(30.0, 1e-5, parts=1))
    with refuses("too-many-parts"):
        ledger.charge(mixed("g"))
    ledger.charge(vote(2, "a"))


@pytest.mark.heavy
def test_a_budget_of_one_part_is_for_gaussian_runs_or_for_one_other_run(path: Path) -> None:
    whole = accounting.epsilon(mixed("b").events, 1e-5)
    ledger = Ledger.open(path, "f", Budget(whole, 1e-5))
    ledger.charge(mixed("b"))
    assert ledger.spent(1e-5) == pytest.approx(whole)
    with refuses("too-many-parts"):
        ledger.charge(vote(1, "a", multiplier=1000.0))


# A run that is not purely Gaussian

SAMPLED = [Charge("s", HASH, f"votes/{n}", 0, (Gaussian(2.0, 0.5),), "", (Gaussian(1.0, 0.5),)) for n in range(3)]
WHOLE = PlanPrice((Gaussian(2.0, 0.5, 4),), (Gaussian(1.0, 0.5, 13),))


def end_charge(ledger: Ledger, charge: Charge, end: str) -> None:
    ledger.charge(charge)
    if end == "withdrawn":
        ledger.withdraw(charge)
    elif end != "charged":
        ledger.send(charge, VECTOR)
    if end == "void":
        ledger.void(charge, "ee" * 32)
    if end in ("closed", "withdrawn"):
        ledger.close("s", HASH)


@pytest.mark.heavy
@pytest.mark.parametrize("end", ["charged", "open", "closed", "void", "withdrawn"])
def test_a_sub_sampled_run_costs_its_whole_plan_from_its_first_charge(path: Path, end: str) -> None:
    """Stopping adaptively is no refund: the price of the sums so far understated delta by 3.0 to 3.9 times."""
    ledger = Ledger.open(path, "f", Budget(30.0, 1e-5))
    ledger.begin(SAMPLED[0], WHOLE)
    assert ledger.spent(1e-5) == 0.0  # nothing was charged yet
    end_charge(ledger, SAMPLED[0], end)
    whole, alone = accounting.epsilon(WHOLE.events, 1e-5), accounting.epsilon(WHOLE.alone, 1e-5)
    for each in (ledger, Ledger.open(path, "f")):
        assert each.spent(1e-5) == pytest.approx(whole)
        assert each.spent_if_all_others_collude(1e-5) == pytest.approx(alone)
        (cost,) = each.costs(1e-5)
        assert (cost.epsilon, cost.spent, cost.whole_plan) == (pytest.approx(whole), pytest.approx(whole), True)
        (stated,) = each.statement().runs
        assert (stated.events, stated.alone) == (WHOLE.events, WHOLE.alone)
        assert stated.at_most().events == WHOLE.events


def test_the_whole_plan_is_charged_once_and_a_gaussian_run_as_it_goes(path: Path) -> None:
    ledger = Ledger.open(path, "f", Budget(30.0, 1e-5))
    ledger.begin(SAMPLED[0], WHOLE)
    for charge in SAMPLED:
        end_charge(ledger, charge, "open")
        assert ledger.spent(1e-5) == pytest.approx(accounting.epsilon(WHOLE.events, 1e-5))
    other = Ledger.open(path.with_name("other"), "f")
    other.begin(vote(1), PlanPrice((Gaussian(2.0, count=9),)))
    other.charge(vote(1))
    assert other.spent(1e-5) == pytest.approx(accounting.epsilon([Gaussian(2.0)], 1e-5))
    assert not other.costs(1e-5)[0].whole_plan


@pytest.mark.heavy
def test_budget_check_of_a_run_counts_its_whole_plan(path: Path) -> None:
    """A run that stops after one sum leaves what its plan leaves, also if its sums so far are Gaussian."""
    whole = accounting.epsilon([Gaussian(2.0), Laplace(1.0, 3)], 5e-6)
    plan = PlanPrice((Gaussian(2.0), Laplace(1.0, 3)))
    ledger = Ledger.open(path, "f", Budget(whole + 1.0, 1e-5, 2))
    ledger.begin(vote(1), plan)
    ledger.charge(vote(1))
    ledger.close("r", HASH)
    next_run = Charge("next", HASH, "", 0, (Laplace(1.0, 3),))
    with refuses("over-budget"):
        ledger.check_room(next_run)
    small = Ledger.open(path.with_name("small"), "f", Budget(whole * 0.9, 1e-5, 2))
    small.begin(vote(1), plan)
    with refuses("over-budget"):
        small.charge(vote(1))


@pytest.mark.parametrize("parts", [0, -1])
def test_budget_with_fewer_than_one_part_is_refused(parts: int) -> None:
    with raises(ConfigurationError, "no-parts"):
        Budget(1.0, 1e-5, parts)


# What was lost


def test_charges_recorded_as_lost_are_counted_and_end_their_runs(path: Path) -> None:
    ledger = Ledger.open(path, "f", Budget(4.0, 1e-5))
    gone = Charge("gone", HASH, "", 0, (Gaussian(2.0, count=3),), "", (Gaussian(1.0, count=3),))
    ledger.lose([gone])
    again = Ledger.open(path, "f")
    assert again.spent(1e-5) == pytest.approx(accounting.epsilon([Gaussian(2.0, count=3)], 1e-5))
    assert again.spent_if_all_others_collude(1e-5) == pytest.approx(accounting.epsilon([Gaussian(1.0, count=3)], 1e-5))
    with refuses("run-ended"):
        again.charge(vote(1, "gone"))
    with refuses("over-budget"):
        again.charge(vote(1, "next", multiplier=1.5))
    again.charge(vote(1, "next", multiplier=20.0))


@pytest.mark.parametrize("lost", [Budget(4.0, 1e-5), None])
def test_ledger_that_lost_its_whole_budget_allows_no_charge(path: Path, lost: Budget | None) -> None:
    ledger = Ledger.open(path, "f", Budget(4.0, 1e-5))
    ledger.lose([], [lost])
    assert ledger.spent(1e-5) == (4.0 if lost else math.inf)
    with refuses("over-budget"):
        ledger.check_room(vote(1, multiplier=1e6))
    ledger.declare(Budget(8.0, 2e-5))
    if lost is None:
        with refuses("over-budget"):
            ledger.charge(vote(1, multiplier=1e6))
        return
    # A larger budget leaves what it has more.
    whole = accounting.calibrate(lambda s: [Gaussian(s)], 4.0, 1e-5)
    ledger.check_room(vote(1, multiplier=whole))
    with refuses("over-budget"):
        ledger.check_room(vote(1, multiplier=whole * 0.999))


def test_other_privacy_unit_is_refused_also_by_a_restored_ledger(tmp_path: Path) -> None:
    sample, user = (replace(vote(1, unit), unit=unit, alone=(Gaussian(1.0),)) for unit in ("sample", "user"))
    ledger = Ledger.open(tmp_path / "one.jsonl", "f")
    ledger.charge(vote(1, "of an earlier version, which wrote no unit"))
    ledger.charge(sample)
    restored = Ledger.open(tmp_path / "two.jsonl", "f")
    known = [RunSpending.from_json(json.loads(json.dumps(run.to_json()))) for run in ledger.statement().runs]
    restored.lose(restored.statement().missing(known))
    for each in (ledger, Ledger.read(ledger.path), Ledger.read(restored.path)):
        each.check_room(replace(vote(2, "next"), unit="sample"))
        for refused in (each.check_room, each.charge):
            with refuses("other-unit"):
                refused(user)
    ledger.withdraw(sample)  # nothing of it counts any more
    ledger.charge(user)


# Receipts and statements


def test_receipt_entries_of_a_run_show_no_data_set_other_runs_or_times(tmp_path: Path) -> None:
    shown = []
    for number, fingerprint in enumerate(("aa", "bb")):
        ledger = Ledger.open(tmp_path / str(number), fingerprint, at=float(number))
        if number:
            ledger.charge(vote(7, "other"), at=3.0)
        ledger.begin(vote(1), PlanPrice((Gaussian(2.0, count=2),)))
        ledger.charge(replace(vote(1), alone=(Gaussian(0.5 + number),)), at=float(number))
        ledger.send(vote(1), VECTOR if number else OTHER, at=float(number))
        ledger.charge(vote(2), at=5.0 * number)
        ledger.withdraw(vote(2), at=float(number))
        ledger.void(vote(1), "ee" * 32, at=float(number))
        ledger.close("r", HASH, at=float(number))
        shown.append(ledger.run_entries("r"))
    assert shown[0] == shown[1]
    assert [entry["kind"] for entry in shown[0]] == ["charge", "charge", "withdrawn", "void", "close"]
    assert not {"at", "hash", "previous", "entry", "alone", "unit"} & {key for entry in shown[0] for key in entry}


@pytest.mark.heavy
def test_ledger_statement_has_the_ledger_s_figures_and_survives_json(path: Path) -> None:
    ledger = Ledger.open(path, "f", Budget(40.0, 1e-5, 2))
    plan = PlanPrice((Gaussian(2.0, count=5),), (Gaussian(1.0, count=20),))
    ledger.begin(vote(1), plan)
    for number in (1, 2, 3):
        charge = replace(vote(number), alone=(Gaussian(1.0),))
        ledger.charge(charge)
        ledger.send(charge, VECTOR)
    ledger.void(vote(3), "ee" * 32)
    ledger.charge(mixed("closed"))
    ledger.close("closed", HASH)
    ledger.lose([Charge("gone", HASH, "", 0, (Gaussian(9.0),))], [Budget(1.0, 1e-6)])
    found = Ledger.open(path, "f").statement()
    assert Statement.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert (found.head, found.entries, found.budget) == (ledger.head, 12, Budget(40.0, 1e-5, 2))
    runs = {spent.run: spent for spent in found.runs}
    assert runs["r"] == RunSpending("r", HASH, (Gaussian(2.0, count=2),), (Gaussian(1.0, count=3),), plan)
    assert runs["closed"].closed
    assert runs["closed"].events == mixed("closed").events
    assert runs["gone"].closed
    assert found.lost_budgets == (Budget(1.0, 1e-6),)
    # An open run may have cost its whole plan, and more than it where that was shown.
    assert runs["r"].at_most().events == (Gaussian(2.0, count=5),)
    assert runs["r"].at_most().alone == (Gaussian(1.0, count=20),)
    more = RunSpending("r", HASH, (Gaussian(2.0, count=7), Gaussian(3.0)))
    assert runs["r"].at_most(more).events == (Gaussian(2.0, count=7), Gaussian(3.0))
    assert runs["closed"].at_most().events == mixed("closed").events


def test_ledger_totals_follow_every_entry(path: Path) -> None:
    """Added to as charges come, counted anew where something is taken away: always what its charges add up to."""
    ledger, other = Ledger.open(path, "f"), Ledger.open(path, "f")
    charges = [replace(vote(number), alone=(Gaussian(1.0),)) for number in range(6)]
    lost: list[Charge] = []

    def check() -> None:
        for each in (ledger, other, Ledger.open(path, "f")):
            counted: dict[str, list[accounting.Event]] = {}
            alone: dict[str, list[accounting.Event]] = {}
            known = [(charge, each.state(charge)) for charge in charges if each.state(charge) != "unknown"]
            for charge, state in [*((charge, "lost") for charge in lost), *known]:
                counted.setdefault(charge.run, []).extend(charge.events if state not in ("void", "withdrawn") else ())
                alone.setdefault(charge.run, []).extend(charge.alone if state in ("sent", "void", "lost") else ())
            totals = {total.run: total for total in each.totals()}
            assert totals.keys() == counted.keys()
            for run, total in totals.items():
                assert total.events == compressed(counted[run])
                assert total.alone == compressed(alone[run])

    for charge in charges:
        ledger.charge(charge)
        check()
    for charge in charges[:4]:
        other.send(charge, VECTOR)
        check()
    ledger.withdraw(charges[5])
    check()
    ledger.void(charges[0], "ee" * 32)
    check()
    lost.append(Charge("gone", HASH, "", 0, (Gaussian(9.0, count=2),), "", (Gaussian(3.0),)))
    other.lose(lost)
    check()
    charges.append(replace(vote(7), alone=(Gaussian(1.0),)))
    ledger.charge(charges[-1])
    check()


def test_interrupted_ledger_total_is_computed_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a count is less than was spent; memory may end in the middle of one, or a signal come."""
    ledger = Ledger.open(path, "f", Budget(1.9, 1e-5))
    for number in range(3):
        ledger.charge(vote(number, multiplier=6.0))
    ledger.withdraw(vote(2, multiplier=6.0))
    calls: list[object] = []

    def breaks_off(*events: Any) -> Any:
        if calls:
            raise MemoryError
        calls.append(events)
        return charged_of(*events)

    with monkeypatch.context() as patch:
        patch.setattr(spending_module, "charged_of", breaks_off)
        with pytest.raises(MemoryError):
            ledger.totals()
    assert [total.events for total in ledger.totals()] == [(Gaussian(6.0, count=2),)]


def test_charges_missing_from_an_older_ledger_are_added_once(tmp_path: Path) -> None:
    older, newer = Ledger.open(tmp_path / "older", "f"), Ledger.open(tmp_path / "newer", "f")
    for ledger in (older, newer):
        ledger.begin(vote(1), PlanPrice((Gaussian(2.0, count=5),)))
        ledger.charge(vote(1))
    newer.charge(vote(2))
    newer.charge(mixed("b"))
    shown = [spent.at_most() for spent in newer.statement().runs]
    missing = {charge.run: charge.events for charge in older.statement().missing(shown)}
    assert missing["r"] == (Gaussian(2.0, count=4),)
    assert missing["b"] == mixed("b").events
    older.lose(older.statement().missing(shown))
    assert older.spent(1e-5) == pytest.approx(
        accounting.epsilon([Gaussian(2.0, count=5)], 5e-6) + accounting.epsilon(mixed("b").events, 5e-6)
    )


def test_ledger_refuses_another_data_set_until_it_is_adopted(path: Path) -> None:
    Ledger.open(path, "old").charge(vote(1))
    with refuses("other-data-set"):
        Ledger.open(path, "new")
    Ledger.read(path).adopt("new")
    assert Ledger.open(path, "new").charges() == [vote(1)]
    with refuses("no-ledger", ConfigurationError):
        Ledger.read(path.with_name("none"))


def filled(path: Path) -> bytes:
    """A ledger with an entry of every kind but ``lost``; the last is a void certificate."""
    ledger = Ledger.open(path, "f", Budget(100.0, 1e-5))
    ledger.begin(vote(0), PlanPrice((Gaussian(2.0, count=3),), (Gaussian(1.0, count=12),)))
    for number in range(3):
        ledger.charge(vote(number))
    ledger.withdraw(vote(0))
    ledger.declare(Budget(90.0, 1e-5, 2))
    ledger.adopt("f")
    ledger.close("another", HASH)
    ledger.send(vote(1), VECTOR)
    ledger.void(vote(1), "ee" * 32)
    return path.read_bytes()


@pytest.mark.slow
def test_last_ledger_line_cut_at_any_byte_is_repaired(path: Path) -> None:
    """A crash at any byte of a write leaves the ledger as it was before that write."""
    data = filled(path)
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(data)):
        path.write_bytes(data[:cut])
        if cut > last:
            with raises(PrivacyRefusal, "incomplete-line"):
                Ledger.verify(path)
        ledger = Ledger.open(path, "f")
        assert path.read_bytes() == data[:last]
        assert len(ledger.charges()) == 2
    ledger.void(vote(1), "ee" * 32)
    assert path.read_bytes() == data


@pytest.mark.parametrize("zeros", [1, 300, 4096])
def test_zero_bytes_that_a_lost_write_left_in_the_ledger_are_dropped(path: Path, zeros: int) -> None:
    """A file system may keep a file's new length and not the bytes of the write: nobody acted upon them."""
    data = filled(path)
    path.write_bytes(data + bytes(zeros))
    assert Ledger.open(path, "f").head == Ledger.read(path).head
    assert path.read_bytes() == data


@pytest.mark.heavy
@pytest.mark.parametrize("line", [b"\n", b"{}\n", b'{"entry": 1}\n', bytes(200) + b"\n", b"[[[[\n"])
@pytest.mark.parametrize("place", [0, 3, 8])
def test_foreign_line_in_the_ledger_is_refused_and_not_changed(path: Path, line: bytes, place: int) -> None:
    lines = filled(path).splitlines(keepends=True)
    damaged = b"".join([*lines[:place], line, *lines[place:]])
    path.write_bytes(damaged)
    with pytest.raises(PrivacyRefusal, match=f"line {place + 1}"):
        Ledger.open(path, "f")
    assert path.read_bytes() == damaged


def test_ledger_snapshot_does_not_change_with_later_charges(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    ledger.charge(vote(1))
    snapshot = Ledger.snapshot(path)
    before = snapshot.spent(1e-5), snapshot.costs(1e-5), snapshot.entries(), snapshot.charges()
    ledger.charge(vote(2))
    assert (snapshot.spent(1e-5), snapshot.costs(1e-5), snapshot.entries(), snapshot.charges()) == before
    assert Ledger.read(path).spent(1e-5) > before[0]


@pytest.mark.heavy
@settings(max_examples=examples(30, 120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_changed_byte_in_the_ledger_is_detected_naming_its_line(path: Path, data: st.DataObject) -> None:
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


@pytest.mark.parametrize("removed", range(8))
def test_removed_and_swapped_ledger_lines_are_detected(path: Path, removed: int) -> None:
    lines = filled(path).splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:removed] + lines[removed + 1 :]))
    with pytest.raises(PrivacyRefusal, match=f"line {removed + 1}"):
        Ledger.verify(path)
    swapped = [*lines[:removed], lines[removed + 1], lines[removed], *lines[removed + 2 :]]
    path.write_bytes(b"".join(swapped))
    with pytest.raises(PrivacyRefusal, match=f"line {removed + 1}"):
        Ledger.verify(path)


def test_lines_removed_from_an_open_ledger_are_detected(path: Path) -> None:
    data = filled(path)
    ledger = Ledger.open(path, "f")
    path.write_bytes(data[: data.rstrip(b"\n").rfind(b"\n") + 1])
    with refuses("shorter"):
        ledger.charge(vote(7))


def test_open_ledger_replaced_by_one_of_equal_length_is_detected(path: Path) -> None:
    ledger = Ledger.open(path, "f")
    ledger.charge(vote(1))
    copy = path.with_name("copy.jsonl")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)
    assert ledger.state(vote(1)) == "charged"
    ledger.charge(vote(2))
    other = Ledger.open(path.with_name("other.jsonl"), "f")
    other.charge(vote(1))
    other.charge(vote(3))
    assert other.path.stat().st_size == path.stat().st_size
    other.path.replace(path)
    for used in (lambda: ledger.state(vote(1)), lambda: ledger.charge(vote(4))):
        with refuses("other-entries"):
            used()


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

    monkeypatch.setattr("undersong_common.program.chain.os.write", spy_write)
    monkeypatch.setattr("undersong_common.program.chain.os.fsync", spy_sync)
    ledger.charge(vote(1))
    assert acts == ["write", "sync"]


@pytest.mark.parametrize("short", [True, False])
def test_a_full_disk_is_a_machine_fault_and_leaves_no_trace(
    path: Path, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    ledger = Ledger.open(path, "f")
    before = path.read_bytes()
    import os as system

    write = system.write

    def failing(file: int, line: bytes) -> int:
        if short:
            return write(file, line[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("undersong_common.program.chain.os.write", failing)
    with refuses("enospc", MachineFault):
        ledger.charge(vote(1))
    monkeypatch.undo()
    assert path.read_bytes() == before
    ledger.charge(vote(1))
    assert ledger.charges() == [vote(1)]


def _charge_many(path: str, run: str, count: int) -> None:
    ledger = Ledger.open(Path(path), "f")
    for number in range(count):
        ledger.charge(vote(number, run))


@pytest.mark.slow
def test_processes_that_charge_at_once_write_one_hash_chain(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers: list[Any] = [context.Process(target=_charge_many, args=(str(path), name, 25)) for name in ("a", "b", "b")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert Ledger.verify(path) == 51
    assert len(Ledger.open(path, "f").charges()) == 50


def test_ledger_lines_have_only_public_fields(path: Path) -> None:
    filled(path)
    keys = {key for line in path.read_text().splitlines() for key in json.loads(line)}
    assert keys == {
        *("entry", "kind", "version", "data", "budget", "at", "run", "manifest", "query", "attempt", "events"),
        *("certificate", "previous", "hash", "question", "alone", "plan", "vector", "unit"),
    }


def test_ledger_gives_the_cost_of_each_run_and_of_all_runs_up_to_it(tmp_path: Path) -> None:
    delta = 1e-5
    ledger = Ledger.open(tmp_path / "ledger.jsonl", "data", Budget(50.0, delta))
    multipliers = {"spring": (4.0, 5.0), "autumn": (3.0,)}
    for run, noises in multipliers.items():
        for number, noise in enumerate(noises):
            ledger.charge(Charge(run, HASH, f"votes/{number}", 0, (Gaussian(noise),)), at=1.0)
    spring, autumn = ([Gaussian(noise) for noise in noises] for noises in multipliers.values())
    first, second = ledger.costs(delta)
    assert (first.run, first.releases, second.run, second.releases) == ("spring", 2, "autumn", 1)
    prices = [first.epsilon, first.spent, second.epsilon, second.spent]
    expected = [spring, spring, autumn, [*spring, *autumn]]
    assert prices == pytest.approx([accounting.epsilon(events, delta) for events in expected])
