"""A data set's budget outlives this program's folder; counts are right; nothing is sent."""

import json
import shutil
import stat
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.doubles.coded import raises
from tests.doubles.party_home import write_notes
from undersong_client import keys
from undersong_client.consent import policy
from undersong_client.home import Declared, PartyHome, PartySettings
from undersong_client.records import snapshot
from undersong_client.records.objections import Objections
from undersong_client.storage import checkpoints, datasets
from undersong_client.storage.addition import Addition, AdditionOptions, _log_exclusion
from undersong_client.storage.checkpoints import Source
from undersong_client.storage.own_figures import own_figures
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.models.embedding import TextLengths
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge
from undersong_common.program.chain import HashChain
from undersong_common.text.table import Table

POLICY = policy.HospitalPolicy(total_epsilon=4.0, run_epsilon=2.0, total_delta=1e-4)


def make_home(path):
    home = PartyHome.create(path, PartySettings(party="alpha"))
    keys.create(home)
    policy.write(home, POLICY)
    return home


def declare_and_add(home, file, tmp_path, **changes):
    fields = {name: changes.pop(name) for name in Declared.__dataclass_fields__ if name in changes}
    declared = Declared(str(file), **{"label_field": "label", "user_field": "patient", **fields})
    policy, at, embedder = changes.pop("policy", POLICY), changes.pop("at", 1.0), changes.pop("embedder", None)
    options = AdditionOptions(**changes)
    added = Addition(home, declared, policy, tmp_path / "marks", at, embedder, options).run()
    return added.survey, added.ledger


def test_data_set_facts_give_each_count_of_a_source_under_its_name():
    objections = SimpleNamespace(units=frozenset("abcdef"), present=5, records=7, look_alikes=("of the list",))
    reading = SimpleNamespace(
        table=Table(["one", "one", "two", "three", "three"], ["x", "x", "x", "y", "y"], ["p", "p", "p", "q", "q"]),
        rows=30,
        empty=12,
        skipped=(),
        objections=objections,
        lost=8,
        refused=9,
        look_alikes=("of the source",),
        filter_rows=(31, 30),
        missing_words=10,
        label_forms=[("X", "x")],
    )
    assert datasets.survey(reading, TextLengths(5, 0, 0)) == datasets.Survey(
        rows=30,
        empty=12,
        records=5,
        duplicates=2,
        labels={"x": 3, "y": 2},
        users=2,
        largest_user=3,
        lengths=TextLengths(5, 0, 0),
        listed_identifiers=6,
        excluded_patients=5,
        excluded_records=7,
        lost=8,
        refused=9,
        look_alikes=("of the source", "of the list"),
        filter_rows=(31, 30),
        missing_words=10,
        label_forms=(("X", "x"),),
    )


def test_exclusion_log_has_each_count_under_its_name(home):
    objections = SimpleNamespace(
        units=frozenset("abcdef"), present=2, records=5, matched={"a"}, out={"a", "b", "c"}, resembling={}
    )
    _log_exclusion(home, SimpleNamespace(key=bytes(32)), objections, 7.0)
    log = HashChain(home.exclusions, datasets.EXCLUSIONS_TAG)
    assert log.verify() == 1
    (entry,) = log.entries
    assert (entry["at"], entry["identifiers"], entry["patients"], entry["records"]) == (7.0, 6, 2, 5)
    assert (len(entry["matched"]), len(entry["out"]), entry["resembling"]) == (1, 3, [])
    assert set(entry["matched"]) < set(entry["out"])
    home.change(exclusions="objectors.txt")
    said = "of 6 identifiers on the list, 2 are in the source and keep out 5 records"
    assert datasets.exclusion_words(home) == said
    assert datasets.exclusion_list_words(home) == "by a list of 6 numbers, read 1970-01-01"
    listed = Objections(frozenset("abcdef"), 2, 5, (), {}, frozenset("a"), {}, frozenset("abc"), {})
    assert listed.sentence == said


def test_party_s_figures_count_objecting_patients_not_their_records(home, notes, tmp_path):
    declare_and_add(home, notes, tmp_path)
    objections = SimpleNamespace(units=frozenset("abc"), present=2, records=5, matched=(), out=(), resembling={})
    home.change(exclusions="objectors.txt")
    assert own_figures(home).objectors == 0
    _log_exclusion(home, SimpleNamespace(key=bytes(32)), objections, 7.0)
    figures = own_figures(home)
    assert (figures.objectors, figures.records, figures.patients) == (2, 12, 6)


def test_the_sealed_copy_states_the_number_of_its_own_records(home, tmp_path):
    notes = write_notes(tmp_path / "many.jsonl", records=60)
    declare_and_add(home, notes, tmp_path, hold_out=50)
    sealed = datasets.load(home).table
    assert 0 < len(sealed) < 60
    assert snapshot.facts(home).rows == len(sealed)


def release(home, tmp_path, run="run"):
    """One release as the daemon makes it: charge, then mark."""
    ledger, marks = datasets.open_ledger(home, POLICY, tmp_path / "marks", at=2.0)
    ledger.charge(Charge(run, "00" * 32, "votes/1", 0, (Gaussian(5.0),)))
    marks.keep(ledger)
    return ledger


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path / "home")


@pytest.fixture
def notes(tmp_path):
    return write_notes(tmp_path / "notes.jsonl")


def test_data_add_counts_records_duplicates_labels_and_users(home, tmp_path):
    rows = [("a", "x", "1"), ("a", "y", "1"), ("  ", "x", "2"), ("b", "x", "3"), (None, "x", "3"), ("c", "x", "1")]
    file = tmp_path / "notes.jsonl"
    file.write_text("".join(json.dumps({"text": t, "label": label, "patient": p}) + "\n" for t, label, p in rows))
    found, ledger = declare_and_add(home, file, tmp_path)
    assert replace(found, skipped=()) == datasets.Survey(
        6,
        2,
        records=4,
        duplicates=1,
        labels={"x": 3, "y": 1},
        users=2,
        largest_user=3,
        lengths=TextLengths(4, 0, 0),
        lost=2,
    )
    assert [row.where.rpartition(":")[2] for row in found.skipped] == ["3", "5"]
    assert (ledger.budget.epsilon, ledger.budget.delta) == (4.0, 1e-4)
    assert len(datasets.load(home).table) == 4
    assert home.settings.cache == str(checkpoints.beside(file))


def test_adding_the_same_file_again_changes_nothing(home, notes, tmp_path):
    first = declare_and_add(home, notes, tmp_path)[1].entries()
    assert declare_and_add(home, notes, tmp_path)[1].entries() == first


@pytest.mark.parametrize("hold_out", [0, 50])
def test_unchanged_source_file_is_reported_as_unchanged(home, notes, tmp_path, hold_out):
    write_notes(notes, records=120)  # A key of this home holds patients out; of six it may hold out none, or all.
    declare_and_add(home, notes, tmp_path, hold_out=hold_out)
    assert datasets.changed_since(home) == ""


def test_new_version_of_a_data_set_keeps_what_was_spent(home, notes, tmp_path):
    declare_and_add(home, notes, tmp_path)
    spent = release(home, tmp_path).spent(1e-4)
    write_notes(notes, records=14)
    assert len(datasets.load(home).table) == 12  # what was added, not what the file holds now
    assert "not what was added any more" in datasets.changed_since(home)
    with raises(ConfigurationError, "another-data-set"):
        declare_and_add(home, notes, tmp_path)
    with raises(ConfigurationError, "runs-under-way"):  # a run ends on the version that it began with
        declare_and_add(home, notes, tmp_path, new_version=True)
    _, ledger = declare_and_add(home, notes, tmp_path, new_version=True, abandon=True)
    assert ledger.spent(1e-4) == spent > 0
    assert all(total.closed for total in ledger.totals())


def test_folder_lost_before_the_first_charge_is_replaced_without_cost(home, notes, tmp_path):
    declare_and_add(home, notes, tmp_path)
    shutil.rmtree(home.path)
    declare_and_add(make_home(home.path), notes, tmp_path)


@pytest.mark.parametrize(("lost", "renamed"), [("beside", False), ("beside", True), ("user state", False)])
def test_a_reinstalled_party_is_refused_until_its_ledger_is_restored(home, notes, tmp_path, lost, renamed):
    declare_and_add(home, notes, tmp_path)
    spent = release(home, tmp_path).spent(1e-4)
    backup = tmp_path / "backup.jsonl"
    shutil.copyfile(home.ledger, backup)
    shutil.rmtree(home.path)
    if lost == "beside":
        shutil.rmtree(checkpoints.beside(notes))
    else:
        shutil.rmtree(tmp_path / "marks")
    if renamed:
        notes = notes.rename(tmp_path / "other.jsonl")
    fresh = make_home(home.path)
    with raises(PrivacyRefusal, "ledger-missing") as raised:
        declare_and_add(fresh, notes, tmp_path)
    assert "--restore-ledger" in raised.value.remedy
    assert not fresh.ledger.exists()
    _, ledger = declare_and_add(fresh, notes, tmp_path, source=Source(backup))
    assert ledger.spent(1e-4) == spent
    assert stat.S_IMODE(fresh.ledger.stat().st_mode) == 0o600
    datasets.open_ledger(fresh, POLICY, tmp_path / "marks", at=3.0)


def test_a_forged_backup_is_refused(home, notes, tmp_path):
    declare_and_add(home, notes, tmp_path)
    release(home, tmp_path)
    backup = tmp_path / "backup.jsonl"
    backup.write_text(home.ledger.read_text().replace("5.0", "9.0"))
    shutil.rmtree(home.path)
    with raises(PrivacyRefusal, "broken-chain"):
        declare_and_add(make_home(home.path), notes, tmp_path, source=Source(backup))


def test_ledger_is_opened_with_the_changed_budget_of_the_policy(home, notes, tmp_path):
    declare_and_add(home, notes, tmp_path)
    larger = policy.change(home, total_epsilon=9.0)
    ledger, _ = datasets.open_ledger(home, larger, tmp_path / "marks", at=3.0)
    assert Ledger.read(home.ledger).budget.epsilon == ledger.budget.epsilon == 9.0


def test_ledger_of_a_policy_without_a_budget_refuses_a_charge(home, notes, tmp_path):
    _, ledger = declare_and_add(home, notes, tmp_path, policy=policy.HospitalPolicy())
    with raises(PrivacyRefusal, "over-budget"):
        ledger.charge(Charge("run", "00" * 32, "votes/1", 0, (Gaussian(5.0),)))
