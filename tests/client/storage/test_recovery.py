"""A lost or older ledger is no dead end, and never a fresh budget."""

import json
import math
import shutil

import pytest

from tests.client.storage.test_datasets import POLICY, declare_and_add, make_home, release
from tests.doubles.coded import raises
from tests.doubles.party_home import command, write_notes
from undersong_client.consent import policy
from undersong_client.home import Declared
from undersong_client.operations import data, services
from undersong_client.storage import checkpoints, datasets
from undersong_client.storage.addition import Addition, AdditionOptions
from undersong_client.storage.checkpoints import Source
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge, PlanPrice

DELTA = 1e-4


@pytest.fixture
def marks(tmp_path):
    return tmp_path / "marks"


@pytest.fixture
def home(tmp_path):
    made = make_home(tmp_path / "home")
    declare_and_add(made, write_notes(tmp_path / "notes.jsonl"), tmp_path)
    return made


def backed_up(home, path):
    shutil.copyfile(home.ledger, path)
    return path


def begin(home, tmp_path, run, plan):
    """A run that has charged one release of a plan of several."""
    ledger, kept = datasets.open_ledger(home, POLICY, tmp_path / "marks", at=2.0)
    charge = Charge(run, "00" * 32, "votes/1", 0, (Gaussian(5.0),), alone=(Gaussian(9.0),))
    ledger.begin(charge, PlanPrice((Gaussian(5.0, count=plan),), (Gaussian(9.0, count=plan),)))
    ledger.charge(charge)
    kept.keep(ledger)
    return ledger


def test_one_command_restores_a_lost_older_or_broken_ledger(home, tmp_path, marks):
    old = backed_up(home, tmp_path / "old")
    spent = release(home, tmp_path).spent(DELTA)
    new = backed_up(home, tmp_path / "new")
    for lose in ("lost", "older", "broken"):
        if lose == "lost":
            home.ledger.unlink()
        elif lose == "older":
            shutil.copyfile(old, home.ledger)
        else:
            home.ledger.write_text(home.ledger.read_text().replace("5.0", "9.0"))
        with pytest.raises(PrivacyRefusal) as refused:
            datasets.open_ledger(home, POLICY, marks, at=3.0)
        assert "restore" in refused.value.remedy
        restored = data.restore_ledger(home.path, checkpoints=marks, backup=new)
        assert (restored.runs, restored.whole_budget, restored.spending.spent) == ((), False, spent)
        assert restored.spending.left == pytest.approx(4.0 - spent)
        datasets.open_ledger(home, POLICY, marks, at=3.0)


def test_older_backup_is_restored_only_with_its_missing_charges_counted(home, tmp_path, marks):
    old = backed_up(home, tmp_path / "old")
    begin(home, tmp_path, "open", plan=3)
    home.ledger.unlink()
    with raises(PrivacyRefusal, "ledger-too-old"):
        data.restore_ledger(home.path, checkpoints=marks, backup=old)
    assert not home.ledger.exists()
    restored = data.restore_ledger(home.path, checkpoints=marks, backup=old, charge_missing=True)
    assert (restored.runs, restored.whole_budget) == (("open",), False)
    ledger, _ = datasets.open_ledger(home, POLICY, marks, at=3.0)
    whole = Ledger.open(tmp_path / "other", "f", None)
    whole.charge(Charge("open", "00" * 32, "votes/1", 0, (Gaussian(5.0, count=3),)))
    assert ledger.spent(DELTA) == pytest.approx(whole.spent(DELTA))  # the whole plan of a run that was open
    assert {total.run: total.closed for total in ledger.totals()}["open"]
    with raises(ConfigurationError, "nothing-to-restore"):
        data.restore_ledger(home.path, checkpoints=marks, charge_missing=True)


def test_moving_a_party_folder_with_an_older_ledger_is_refused(home, tmp_path, marks):
    old = backed_up(home, tmp_path / "old")
    release(home, tmp_path)
    services._write_heads(home, marks)
    shutil.copy(old, home.ledger)
    with raises(PrivacyRefusal, "ledger-too-old"):
        services._write_heads(home, marks)


def test_without_backup_or_checkpoint_the_whole_budget_counts_as_spent(home, tmp_path, marks):
    release(home, tmp_path)
    shutil.rmtree(marks)
    shutil.rmtree(checkpoints.beside(tmp_path / "notes.jsonl"))
    home.ledger.write_text("not a ledger\n")
    with raises(ConfigurationError, "which-backup"):
        data.restore_ledger(home.path, checkpoints=marks)
    restored = data.restore_ledger(home.path, checkpoints=marks, charge_missing=True)
    assert restored.whole_budget
    assert (restored.spending.spent, restored.spending.left) == (4.0, 0.0)
    assert len(list(home.path.glob("ledger.broken-*.jsonl"))) == 1  # set aside, not deleted


@pytest.mark.parametrize("lost", [False, True])
def test_old_backup_does_not_refill_a_lost_ledger_without_checkpoints(home, tmp_path, marks, lost):
    release(home, tmp_path, "first")
    old = backed_up(home, tmp_path / "old")
    release(home, tmp_path, "second")
    shutil.rmtree(marks)
    shutil.rmtree(checkpoints.beside(tmp_path / "notes.jsonl"))
    home.ledger.unlink() if lost else home.ledger.write_text("not a ledger\n")
    with raises(PrivacyRefusal, "backup-unproven"):
        data.restore_ledger(home.path, checkpoints=marks, backup=old)
    restored = data.restore_ledger(home.path, checkpoints=marks, backup=old, charge_missing=True)
    assert restored.whole_budget


def test_restore_refuses_a_backup_with_fewer_charges_than_the_ledger(home, tmp_path, marks):
    old = backed_up(home, tmp_path / "old")
    ledger = release(home, tmp_path)
    with raises(PrivacyRefusal, "backup-lacks-charges"):
        data.restore_ledger(home.path, checkpoints=marks, backup=old)
    assert Ledger.read(home.ledger).head == ledger.head


def test_ledger_of_a_running_daemon_cannot_be_restored(home, tmp_path, marks):
    with home.running(), raises(ConfigurationError, "daemon-runs"):
        data.restore_ledger(home.path, checkpoints=marks, charge_missing=True)


def test_showing_a_missing_ledger_fails_and_makes_no_file(tmp_path):
    home = make_home(tmp_path / "home")
    assert "no such ledger" in command("ledger", "--home", home.path, code=2)
    assert not home.ledger.exists()


def test_new_folder_restores_the_backup_and_asks_for_a_budget(home, tmp_path, marks, monkeypatch):
    spent = release(home, tmp_path).spent(DELTA)
    backup = backed_up(home, tmp_path / "backup")
    shutil.rmtree(home.path)
    monkeypatch.setattr("undersong_client.cli.data.checkpoints_folder", lambda _home: marks)
    new = tmp_path / "new"
    command("init", "alpha", "--home", new)
    fields = ("--label-field", "label", "--user-field", "patient", "--home", new)
    refused = command("data", "add", tmp_path / "notes.jsonl", *fields, code=3)
    assert "--restore-ledger BACKUP" in refused
    assert "--charge-missing" in refused
    said = command("data", "add", tmp_path / "notes.jsonl", *fields, "--restore-ledger", backup)
    assert f"spent epsilon {spent:.4g} at delta 0.0001" in said
    assert "next: undersong-party budget set --epsilon 4 --delta 0.0001" in said
    command("budget", "set", "--epsilon", 4, "--delta", DELTA, "--home", new)
    assert f"left {4 - spent:.4g}" in command("budget", "show", "--home", new)


def test_new_folder_without_a_backup_goes_on_from_the_checkpoints(home, tmp_path, marks):
    spent = release(home, tmp_path).spent(DELTA)
    shutil.rmtree(home.path)
    fresh = make_home(home.path)
    declared, options = Declared(str(tmp_path / "notes.jsonl")), AdditionOptions(source=Source(charge_missing=True))
    added = Addition(fresh, declared, POLICY, marks, 3.0, options=options).run()
    assert added.restored is not None
    assert not added.restored.whole_budget
    assert added.ledger.spent(DELTA) == pytest.approx(spent)


@pytest.mark.parametrize("older_place", ["beside the data", "in the state folder"])
def test_newer_of_two_checkpoints_decides_what_was_spent(home, tmp_path, marks, older_place):
    ledger = begin(home, tmp_path, "spring", plan=3)
    places = {"beside the data": checkpoints.beside(tmp_path / "notes.jsonl"), "in the state folder": marks}
    [older] = places[older_place].glob("*.json")
    older_mark = older.read_bytes()
    ledger, kept = datasets.open_ledger(home, POLICY, marks, at=3.0)
    ledger.close("spring", "00" * 32)
    kept.keep(ledger)
    older.write_bytes(older_mark)  # that place could not be written the second time
    spent = ledger.spent(DELTA)
    home.ledger.unlink()
    restored = data.restore_ledger(home.path, checkpoints=marks, charge_missing=True)
    assert restored.spending.spent == pytest.approx(spent), "one sum of three, since the run has ended"


def test_owner_can_state_past_spending_if_no_record_of_it_is_left(home, tmp_path, marks):
    release(home, tmp_path)
    shutil.rmtree(home.path)
    shutil.rmtree(marks)
    shutil.rmtree(checkpoints.beside(tmp_path / "notes.jsonl"))
    fresh = make_home(home.path)
    policy.write(fresh, policy.HospitalPolicy())
    declared, restoration = Declared(str(tmp_path / "notes.jsonl")), data.Restoration(charge_missing=True)
    added = data.add(fresh.path, declared, checkpoints=marks, restoration=restoration)
    assert added.restored is not None
    assert math.isinf(added.restored.spending.spent)


def test_ledger_totals_by_run_add_up_at_one_delta(home, tmp_path):
    for run in ("first", "second"):
        release(home, tmp_path, run)
    facts = data.ledger(home.path, verify=True)
    assert [cost.run for cost in facts.runs] == ["first", "second"]
    assert facts.runs[-1].spent == pytest.approx(facts.spending.spent)
    assert facts.runs[0].spent == pytest.approx(facts.runs[0].epsilon)
    assert facts.runs[0].spent < facts.runs[1].spent
    assert [entry.get("epsilon") is None for entry in facts.entries] == [True, False, False]
    said = command("ledger", "--verify", "--home", home.path)
    assert "left after it" in said
    assert f"left {facts.spending.left:.4g}" in said
    value = json.loads(command("ledger", "--json", "--home", home.path))
    assert value["left_epsilon"] == facts.spending.left
    assert value["entries"][0]["at"] == 1.0  # not a date
