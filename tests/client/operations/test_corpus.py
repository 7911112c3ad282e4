"""A hospital compares a published corpus with its records and with those that it held out."""

import json
import shutil
from pathlib import Path

import pytest

from tests.doubles.coded import raises
from tests.doubles.pace import slow_after
from tests.doubles.party_home import HashedEmbedder, command, write_notes
from undersong_client.cli.data import SourceOptions
from undersong_client.cli.options import checkpoints_folder
from undersong_client.consent import policy
from undersong_client.home import PartyHome, PartySettings
from undersong_client.operations import corpus
from undersong_client.storage import datasets
from undersong_common.errors import ConfigurationError
from undersong_common.models import embedders
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Budget, Charge

FIELDS = ("--label-field", "label", "--user-field", "patient")
SECRET = "Dr Jane Quux saw patient 4711 0815 42 in the fourth ward of the old house at night"


@pytest.fixture
def party(tmp_path, monkeypatch):
    monkeypatch.setattr(embedders, "load", lambda *_: HashedEmbedder())
    command("init", "alpha", "--insecure-noise-seed", 5, "--home", tmp_path / "alpha")  # one choice in every run
    return tmp_path / "alpha"


def publish_folder(folder, texts):
    folder.mkdir()
    (folder / "synthetic.jsonl").write_text(
        "".join(json.dumps({"text": each, "label": "good"}) + "\n" for each in texts)
    )
    return folder


@pytest.mark.heavy
def test_records_are_held_out_by_patient_and_no_run_reads_them(party, tmp_path):
    notes = write_notes(tmp_path / "notes.jsonl", records=400)
    looked = command("data", "add", notes, *FIELDS, "--hold-out", 25, "--home", party, "--dry-run")
    said = command("data", "add", notes, *FIELDS, "--hold-out", 25, "--home", party)
    assert set(said.splitlines()[1:-2]) <= set(looked.splitlines()), "the dry run counts the same"
    home = PartyHome(party)
    inside, outside = datasets.load(home).table, corpus._held_out(home, None)
    assert len(inside) + len(outside) == 400
    assert 60 <= len(outside) <= 140
    assert f"held out: {len(outside)} records" in said
    assert not set(inside.users) & set(outside.users)
    assert b"private note" not in home.held_out.read_bytes()
    write_notes(notes, records=404)
    command("data", "refresh", "--home", party)
    assert set(corpus._held_out(home, None).users) >= set(outside.users), "a patient stays on one side"
    command("data", "erase", "--home", party)
    assert not home.held_out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    slow_after(
        [
            ((), (*FIELDS, "--hold-out", 10)),
            (("--hold-out", 20), ("--label-field", "label", "--hold-out", 20)),
            (("--hold-out", 20), (*FIELDS, "--hold-out", 20, "--same-patient", "case")),
            (("--hold-out", 20), (*FIELDS, "--hold-out", 20, "--other-patient", "bases")),
        ],
        4,
    ),
    ids=["none before", "chosen by another column", "ids joined", "ids told apart"],
)
@pytest.mark.parametrize("lost", [False, True])
def test_no_record_is_held_out_once_the_ledger_has_a_charge(party, tmp_path, before, after, lost):
    notes = write_notes(tmp_path / "notes.jsonl", records=40)
    command("data", "add", notes, *FIELDS, *before, "--home", party)
    command("budget", "set", "--epsilon", 4, "--delta", "1e-4", "--home", party)
    ledger = Ledger.read(PartyHome(party).ledger)
    charge = Charge("run", "00" * 32, "votes/1", 0, (Gaussian(5.0),))
    ledger.lose([charge]) if lost else ledger.charge(charge)
    ledger.close("run", "00" * 32)
    sealed = datasets.load(PartyHome(party)).table
    said = command("data", "add", notes, *after, "--new-version", "--home", party, code=2)
    assert "would be held out now" in said
    assert datasets.load(PartyHome(party)).table == sealed


@pytest.mark.heavy
@pytest.mark.parametrize("other", [(*FIELDS, "--hold-out", 0), ("--label-field", "label", "--hold-out", 20)])
def test_interrupted_sealing_holds_out_no_record_that_a_run_reads(party, tmp_path, monkeypatch, other):
    notes = write_notes(tmp_path / "notes.jsonl", records=40)
    add = ("data", "add", notes, "--new-version", "--home", party)
    command(*add, *FIELDS, "--hold-out", 20)
    command("budget", "set", "--epsilon", 4, "--delta", "1e-4", "--home", party)
    seal = datasets.snapshot.seal
    with monkeypatch.context() as killed:

        def sealed(*given, **named):
            seal(*given, **named)
            raise MemoryError

        killed.setattr(datasets.snapshot, "seal", sealed)
        command(*add, *other, code=None)
    ledger = Ledger.read(PartyHome(party).ledger)
    assert ledger.fingerprint == datasets.snapshot.facts(PartyHome(party)).fingerprint, "it would be answered from"
    ledger.charge(Charge("run", "00" * 32, "votes/1", 0, (Gaussian(5.0),)))
    ledger.close("run", "00" * 32)
    assert "would be held out now" in command(*add, *FIELDS, "--hold-out", 20, code=2)


def test_no_record_is_held_out_after_a_ledger_was_lost(party, tmp_path):
    notes = write_notes(tmp_path / "notes.jsonl", records=40)
    add = ("data", "add", notes, "--new-version", "--home", party)
    command(*add, *FIELDS)
    Ledger.read(PartyHome(party).ledger).lose([], [Budget(4.0, 1e-4)])
    assert "would be held out now" in command(*add, *FIELDS, "--hold-out", 20, code=2)


@pytest.mark.parametrize(("stated", "percent"), [(None, 20), (0, 0), (5, 5)])
def test_stated_hold_out_percentage_replaces_the_former_one(stated, percent):
    source = SourceOptions(Path("notes.jsonl"), hold_out=stated)
    assert source.declaration(PartySettings(party="alpha", hold_out=20)).hold_out == percent


@pytest.mark.parametrize(
    ("option", "written", "field", "pair"),
    [
        ("label_map", "18842-5=discharge", "label_map", ("18842-5", "discharge")),
        ("label_map", "stage=2=second", "label_map", ("stage=2", "second")),
        ("label_map", "A=", "label_map", ("A", "")),
        ("attribute", "sex=sex=2", "attribute_fields", ("sex", "sex=2")),
        ("fhir_system", "a=https://ehr.example/f?v=4", "fhir_systems", ("a", "https://ehr.example/f?v=4")),
    ],
)
def test_option_pair_is_split_at_the_separator_after_its_name(option, written, field, pair):
    source = SourceOptions(Path("notes.jsonl"), **{option: [written]})
    assert getattr(source.declaration(PartySettings(party="alpha")), field) == dict([pair])


@pytest.mark.heavy
@pytest.mark.parametrize("percent", [0, 25])
@pytest.mark.usefixtures("party")
def test_a_new_folder_that_holds_out_other_records_has_no_fresh_budget(tmp_path, percent):
    notes = write_notes(tmp_path / "notes.jsonl", records=40)
    for name in ("first", "second"):
        command("init", "alpha", "--home", tmp_path / name)
    command("data", "add", notes, *FIELDS, "--hold-out", 25, "--home", tmp_path / "first")
    home = PartyHome(tmp_path / "first")
    ledger, kept = datasets.open_ledger(home, policy.read(home), checkpoints_folder(home.path), at=2.0)
    ledger.lose([Charge("run", "00" * 32, "votes/1", 0, (Gaussian(5.0),))])
    kept.keep(ledger)
    again = ("data", "add", shutil.copy(notes, tmp_path / "copied.jsonl"), *FIELDS, "--hold-out", percent)
    assert "restore-ledger" in command(*again, "--home", tmp_path / "second", code=3)


@pytest.mark.heavy
def test_corpus_check_finds_a_copied_corpus_and_clears_an_honest_one(party, tmp_path):
    notes = write_notes(tmp_path / "notes.jsonl", records=400)
    with notes.open("a") as file:
        file.write(json.dumps({"text": SECRET, "label": "good", "patient": "patient 0"}) + "\n")
    command("data", "add", notes, *FIELDS, "--hold-out", 30, "--home", party)
    inside = datasets.load(PartyHome(party)).table.texts
    copied = publish_folder(tmp_path / "copied", [*inside[:150], SECRET])
    found = corpus.check(party, copied)
    assert len(found.copies.verbatim) >= 150
    assert found.chance.verbatim == ()
    assert found.closest.closer.low > 0.5
    assert found.membership.low > 0.5
    honest = publish_folder(tmp_path / "honest", [f"invented text {n} of nobody" for n in range(150)])
    found = corpus.check(party, honest)
    assert (found.copies.verbatim, found.identifiers.private_rows) == ((), ())
    assert found.membership.low < 0.5 < found.membership.high
    assert found.closest.closer.low < 0.6
    said = command("corpus", "check", honest, "--home", party)
    assert "not private" in said
    assert "private note" not in said
    figures = json.loads(command("corpus", "check", copied, "--json", "--home", party))
    assert figures["membership"]["low"] > 0.5
    assert "private note" not in json.dumps(figures)
    assert "Quux" not in json.dumps(figures)


def test_corpus_check_counts_names_and_numbers_of_records_by_row(party, tmp_path):
    notes = tmp_path / "notes.jsonl"
    notes.write_text("".join(json.dumps({"text": f"{SECRET} {n}"}) + "\n" for n in range(3)))
    command("data", "add", notes, "--home", party)
    found = corpus.check(
        party, publish_folder(tmp_path / "corpus", ["all well", "Dr Jane Quux wrote", "call 030 1234567"])
    )
    assert found.identifiers.private_rows == (2,)
    assert found.identifiers.different == {"names": 1, "dates": 0, "numbers": 1}


def test_corpus_check_states_no_membership_without_held_out_records(party, tmp_path):
    command("data", "add", write_notes(tmp_path / "notes.jsonl"), *FIELDS, "--home", party)
    texts = publish_folder(tmp_path / "corpus", ["one text", "another text"])
    assert corpus.check(party, texts).membership is None
    said = command("corpus", "check", texts, "--home", party)
    assert "not computed" in said
    assert "ROC" not in said


def test_corpus_check_refuses_held_out_records_of_the_data_set(party, tmp_path):
    command("data", "add", write_notes(tmp_path / "notes.jsonl", records=40), *FIELDS, "--home", party)
    texts = publish_folder(tmp_path / "corpus", ["one text"])
    with raises(ConfigurationError, "not-held-out"):
        corpus.check(party, texts, write_notes(tmp_path / "other.jsonl", records=40, start=30))
    with raises(ConfigurationError, "too-few-held-out"):
        corpus.check(party, texts, write_notes(tmp_path / "few.jsonl", records=4, start=1000))
    assert corpus.check(party, texts, write_notes(tmp_path / "enough.jsonl", start=1000, records=40)).held_out == 40


@pytest.mark.parametrize("records", [0, 3])
def test_corpus_check_does_not_compare_a_data_set_of_few_records(party, tmp_path, records):
    notes = write_notes(tmp_path / "notes.jsonl", records=3)
    none = () if records else ("--filter", "true")
    command("data", "add", notes, *FIELDS, *none, "--despite-cautions", "--home", party)
    assert len(datasets.load(PartyHome(party)).table) == records
    others = write_notes(tmp_path / "others.jsonl", start=1000, records=40)
    PartyHome(party).change(row_filter="")
    with raises(ConfigurationError, "too-few-held-out"):
        corpus.check(party, publish_folder(tmp_path / "corpus", ["one text"]), others)
