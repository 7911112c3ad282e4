"""One patient is one privacy unit and one objection, in whatever form and kind of source an id is written."""

import contextlib
import csv
import json
import re
import sqlite3
import tempfile
import time
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.records.test_sources import attachment, document, url_file, write_lines
from tests.doubles.pace import examples
from tests.doubles.party_home import HashedEmbedder, command, set_up
from undersong_client.home import Declared, PartyHome
from undersong_client.operations import dossier
from undersong_client.records import sources
from undersong_client.storage import datasets
from undersong_common.models.embedding import Embedder, TextLengths
from undersong_common.program.chain import HashChain

INVISIBLE = "\u200b\ufeff\u200e\u00ad\u2060"
SPACES = " \u00a0\u2003\u3000"
REFERENCES = ("{}", "Patient/{}", "https://ehr.example/fhir/Patient/{}", "Patient/{}/_history/2")
UUIDS = (*REFERENCES, "urn:uuid:{}")
QUERY = "SELECT text, patient FROM note"


def write_csv(path, forms):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "patient"), *((f"note {n}", form) for n, form in enumerate(forms))])


def write_patients(path, forms):
    path.write_text("".join(json.dumps({"text": f"note {n}", "patient": x}) + "\n" for n, x in enumerate(forms)))


def write_workbook(path, forms):
    book = pytest.importorskip("openpyxl").Workbook()
    for row in [("text", "patient"), *((f"note {n}", form) for n, form in enumerate(forms))]:
        book.active.append(row)
    book.save(path)


def write_parquet(path, forms):
    columns = {"text": [f"note {n}" for n in range(len(forms))], "patient": forms}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def write_query(path, forms):
    pytest.importorskip("sqlalchemy")
    file = path.with_suffix(".sqlite")
    file.unlink(missing_ok=True)
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE note (text TEXT, patient TEXT)")
        database.executemany("INSERT INTO note VALUES (?, ?)", [(f"note {n}", form) for n, form in enumerate(forms)])
    path.write_text(QUERY)


def write_export(path, forms):
    """A FHIR export with the forms as references, also those that name the id alone."""
    path.mkdir(exist_ok=True)
    subjects = [{"reference": form, "type": "Patient"} for form in forms]
    notes = [document(n, attachment("text/plain", f"note {n}".encode())) for n in range(len(forms))]
    rows = [{**note, "subject": subject} for note, subject in zip(notes, subjects, strict=True)]
    write_lines(path / "DocumentReference.ndjson", rows)


WRITERS = {
    "export": write_export,
    "csv": write_csv,
    "tsv": lambda path, forms: path.write_text(
        "text\tpatient\n" + "".join(f"note {n}\t{form}\n" for n, form in enumerate(forms)), "utf-8"
    ),
    "jsonl": write_patients,
    "xlsx": write_workbook,
    "parquet": write_parquet,
    "sql": write_query,
}


@st.composite
def written_ids(draw):
    """Forms of one id that nobody takes for another patient's: of an export, of the next one, and of a list."""
    texts = st.text("abcXYZéöñ0123456789_", min_size=1, max_size=8).map(lambda text: "p" + text)
    name = draw(texts | st.uuids().map(str))
    is_uuid = "-" in name

    def form():
        written = name.upper() if is_uuid and draw(st.booleans()) else name
        place = draw(st.integers(0, len(written)))
        hidden = written[:place] + draw(st.text(INVISIBLE, max_size=2)) + written[place:]
        text = draw(st.sampled_from(UUIDS if is_uuid else REFERENCES)).format(
            unicodedata.normalize(draw(st.sampled_from(["NFC", "NFD"])), hidden)
        )
        return draw(st.text(SPACES, max_size=2)) + text + draw(st.text(SPACES, max_size=2))

    sizes = st.integers(1, 5)
    return [form() for _ in range(draw(sizes))], [form() for _ in range(draw(sizes))], form()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", WRITERS)
@settings(max_examples=examples(4, 15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written_ids())
def test_spellings_that_surely_mean_one_id_are_one_patient_and_objection(tmp_path, suffix, ids):
    forms, _, listed = ids
    path, wishes = tmp_path / f"notes.{suffix}", tmp_path / "wishes.txt"
    WRITERS[suffix](path, [*forms, "q-another"])
    url = url_file(tmp_path, f"sqlite:///{path.with_suffix('.sqlite')}") if suffix == "sql" else ""
    source = Declared(str(path), user_field="patient", database=url)
    reading = sources.read(source)
    assert (len(reading.table), len(set(reading.table.users)), reading.look_alikes) == (len(forms) + 1, 2, ())
    wishes.write_text(listed + "\n", "utf-8")
    without = sources.read(Declared(**{**vars(source), "exclusions": str(wishes)}))
    assert without.table.users == ("q-another",)
    assert (without.objections.present, without.objections.records) == (1, len(forms))


@settings(max_examples=examples(4, 15), deadline=None)
@given(written_ids())
def test_data_frame_ids_that_surely_mean_one_patient_are_joined(ids):
    pandas = pytest.importorskip("pandas")
    from undersong.run.frames import rows_of, with_patient_ids

    forms = ids[0]
    frame = pandas.DataFrame({"text": [f"note {n}" for n in range(len(forms))], "patient": forms})
    table = rows_of(with_patient_ids(frame, "patient", "records"), "records", "text", None, "patient")
    assert len(set(table.users)) == 1


@pytest.mark.parametrize(
    ("column", "users"), [([7, 7.0, 8], 2), ([7, None, 8], None), (["7", 7, " 7"], 1), ([True] * 3, None)]
)
def test_data_frame_ids_are_read_by_their_types(column, users):
    pandas = pytest.importorskip("pandas")
    from undersong.run.frames import rows_of, with_patient_ids
    from undersong_common.errors import ConfigurationError

    frame = pandas.DataFrame({"text": ["a", "b", "c"], "patient": pandas.Series(column, dtype=object)})
    if users is None:
        with pytest.raises(ConfigurationError, match="records: row"):
            with_patient_ids(frame, "patient", "records")
        return
    table = rows_of(with_patient_ids(frame, "patient", "records"), "records", "text", None, "patient")
    assert len(set(table.users)) == users


def test_name_of_a_patient_does_not_depend_on_other_ids_of_the_source(tmp_path):
    kinds = ["zeros", "case", "decimals"]
    names = {}
    for others in ([], ["42"], ["p7", "0042.0"]):
        write_patients(tmp_path / "a.jsonl", ["0042", "P07", *others])
        source = Declared(str(tmp_path / "a.jsonl"), user_field="patient", same_patient=kinds)
        names[tuple(others)] = sources.read(source).table.users[:2]
    assert len(set(names.values())) == 1


# At the party


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "export"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written_ids())
def test_objection_to_one_spelling_of_an_id_holds_for_any_in_a_refresh(tmp_path, monkeypatch, suffix, ids):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    forms, later_forms, listed = ids
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    home, source, wishes = folder / "home", folder / f"notes.{suffix}", folder / "wishes.txt"
    set_up(home, ("init", "alpha"))
    wishes.write_text(listed + "\n", "utf-8")
    WRITERS[suffix](source, [*forms, "q-another"])
    command("data", "add", source, "--user-field", "patient", "--exclude", wishes, "--home", home)
    WRITERS[suffix](source, [*later_forms, "q-another"])
    command("data", "refresh", "--home", home)
    assert datasets.load(PartyHome(home)).table.users == ("q-another",)


@pytest.fixture
def party(tmp_path):
    home = tmp_path / "home"
    set_up(home, ("init", "alpha"))
    return home


def test_id_like_an_objector_s_stops_data_add_until_somebody_decides(party, tmp_path):
    notes, wishes = tmp_path / "notes.jsonl", tmp_path / "wishes.txt"
    write_patients(notes, ["0042", "7", "8"])
    wishes.write_text("42\n7\n")
    add = ("data", "add", notes, "--user-field", "patient", "--exclude", wishes, "--dry-run", "--home", party)
    said = command(*add, code=2)
    assert "1 identifier on the list matches an id of the source but for leading zeros" in said
    assert f"({wishes}: line 1 like {notes}:1)" in said
    assert "--same-patient zeros" in said
    reading = sources.read(Declared(str(notes), user_field="patient", exclusions=str(wishes)))
    (alike,) = datasets.survey(reading, TextLengths(2, 0, 0)).look_alikes
    assert (alike.kinds, alike.count, alike.is_listed) == (("zeros",), 1, True)
    assert "of 2 identifiers on the list, 2 are in the source" in command(*add, "--same-patient", "zeros")
    # That the source's ids are apart says nothing about whom the list means.
    said = command(*add, "--other-patient", "zeros", code=2)
    assert "1 identifier on the list matches an id of the source but for leading zeros" in said


@pytest.mark.heavy
def test_confirmed_look_alike_ids_need_a_new_answer_only_with_new_ones(party, tmp_path):
    notes, wishes = tmp_path / "notes.jsonl", tmp_path / "wishes.txt"
    write_patients(notes, ["0042", "8"])
    wishes.write_text("42\n")
    add = ("data", "add", notes, "--user-field", "patient", "--exclude", wishes, "--home", party)
    assert "--same-patient zeros" in command(*add, code=2)
    command(*add, "--despite-cautions")
    write_patients(notes, ["0042", "8", "9"])
    command("data", "refresh", "--home", party)
    write_patients(notes, ["0042", "00042", "8"])
    assert "but for leading zeros" in command("data", "refresh", "--other-patient", "zeros", "--home", party, code=2)
    write_patients(notes, ["0042", "8"])
    wishes.write_text("42\n77\n")
    said = command("data", "refresh", "--home", party, code=2)
    assert ("acts on nobody" in said, "but for leading zeros" in said) == (True, False)
    (stored,) = re.findall(r'"resembling":\[([^]]*)\]', PartyHome(party).exclusions.read_text().splitlines()[0])
    assert re.fullmatch('"[0-9a-f]{32}"', stored)  # a keyed hash, and no identifier


@pytest.mark.heavy
def test_objection_stays_in_force_if_the_export_writes_ids_differently(party, tmp_path):
    notes, wishes, told = tmp_path / "notes.jsonl", tmp_path / "wishes.txt", tmp_path / "told.json"
    write_patients(notes, ["42", "43", "44"])
    wishes.write_text(" Patient/42\n")
    said = command("data", "add", notes, "--user-field", "patient", "--exclude", wishes, "--home", party)
    assert "of 1 identifier on the list, 1 is in the source and keeps out 1 record" in said
    write_patients(notes, ["https://ehr.example/Patient/42", "\u200b43 ", "44"])
    command("data", "refresh", "--home", party)
    home = PartyHome(party)
    assert datasets.load(home).table.users == ("43", "44")
    command("notify", f"tee {told}", "--home", party)
    sealed = home.sealed.read_bytes()
    write_patients(notes, ["0042", "0043", "0044"])
    said = command("data", "refresh", "--home", party, code=2)
    assert "acts on nobody: 0 of 1 identifier" in said
    assert "at the last seal it was 1" in said
    assert home.sealed.read_bytes() == sealed
    assert json.loads(told.read_text())["event"] == "data-stopped"
    shown = json.loads(command("data", "show", "--json", "--home", party))
    assert shown["objections"] == "of 1 identifier on the list, 1 is in the source and keeps out 1 record"
    wishes.write_text("0042\n")  # the mended list
    command("data", "refresh", "--home", party)
    assert datasets.load(home).table.users == ("0043", "0044")
    write_patients(notes, ["0043", "0044"])
    command("data", "refresh", "--home", party, code=2)
    command("data", "refresh", "--despite-cautions", "--home", party)
    entries = HashChain(home.exclusions, datasets.EXCLUSIONS_TAG)
    assert entries.verify() == 4
    assert [entry["patients"] for entry in entries.entries] == [1, 1, 1, 0]


@pytest.mark.heavy
def test_refresh_stops_if_one_objection_loses_its_match_and_one_gains_it(party, tmp_path):
    """The count of matched identifiers alone would not show it."""
    notes, wishes = tmp_path / "notes.jsonl", tmp_path / "wishes.txt"
    write_patients(notes, ["3", "43", "44"])
    wishes.write_text("3\n27\n")
    command("data", "add", notes, "--user-field", "patient", "--exclude", wishes, "--home", party)
    write_patients(notes, ["renamed", "43", "44", "27"])
    said = command("data", "refresh", "--home", party, code=2)
    assert "1 identifier was in the source at the last seal and is not any more" in said
    assert "at the last seal it was" not in said
    log = PartyHome(party).exclusions.read_text()
    command("data", "refresh", "--despite-cautions", "--home", party)
    assert PartyHome(party).exclusions.read_text().startswith(log)
    command("data", "refresh", "--home", party)  # what was confirmed once is the new state


@pytest.mark.parametrize("cause", ["no sealed copy", "the daemon runs"])
def test_every_stopped_refresh_sends_a_notice(party, tmp_path, monkeypatch, cause):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    notes, told = tmp_path / "notes.jsonl", tmp_path / "told.json"
    write_patients(notes, ["42", "43"])
    command("data", "add", notes, "--user-field", "patient", "--home", party)
    command("notify", f"tee {told}", "--home", party)
    home = PartyHome(party)
    if cause == "no sealed copy":
        home.sealed.unlink()
    with home.running() if cause == "the daemon runs" else contextlib.nullcontext():
        command("data", "refresh", "--home", party, code=2)
    assert json.loads(told.read_text())["event"] == "data-stopped"


@pytest.mark.heavy
def test_ids_joined_into_one_patient_are_counted_and_spending_stays(party, tmp_path):
    notes = tmp_path / "notes.jsonl"
    write_patients(notes, ["42", "0042", "7", "07", "8"])
    add = ("data", "add", notes, "--user-field", "patient", "--home", party)
    command(*add, "--other-patient", "zeros")
    home = PartyHome(party)
    ledger = home.ledger.read_bytes()
    home.change(same_patient=["zeros"], other_patient=[])
    said = command("data", "refresh", "--home", party)
    assert "4 ids of the version before have become 2 patients" in said
    assert home.ledger.read_bytes().startswith(ledger)
    before, after, ahead = (SimpleNamespace(received_s=at) for at in (0.0, time.time(), 1e12))
    (sentence,) = dossier._joined_ids(home, before)
    assert "4 ids of its data set became 2 patients: such a patient has paid for each of its ids" in sentence
    assert dossier._joined_ids(home, ahead) == (sentence,)  # a wrong clock's time says nothing about the order
    assert dossier._joined_ids(home, after) == ()
    assert "ids of the version before" not in command("data", "refresh", "--home", party)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'42\n"43"\n', 2),
        (b"42;\n", 1),
        (b"42\t7\n", 1),
        (b"\n\nN/A\n", 3),
        (b"Group/7\n", 1),
        (b"7\n42|Meier\n", 2),
        (b"|42|\n", 1),
        ("a\n'b'\n".encode("utf-16"), 2),
    ],
)
def test_exclusion_line_without_an_identifier_is_refused_by_number(party, tmp_path, content, line):
    write_patients(tmp_path / "notes.jsonl", ["42"])
    (tmp_path / "wishes.txt").write_bytes(content)
    add = ("data", "add", tmp_path / "notes.jsonl", "--user-field", "patient", "--dry-run", "--home", party)
    said = command(*add, "--exclude", tmp_path / "wishes.txt", code=2)
    assert f"wishes.txt: line {line}: " in said


@pytest.mark.parametrize("end", ["\r", "\r\n", "\u2028", "\x0b", "\x85"])
def test_exclusion_list_takes_line_ends_of_other_systems(tmp_path, end):
    write_patients(tmp_path / "notes.jsonl", ["42", "43", "44", "45"])
    wishes = tmp_path / "wishes.txt"
    wishes.write_bytes(f"42\n43{end}44{end}".encode())
    reading = sources.read(Declared(str(tmp_path / "notes.jsonl"), user_field="patient", exclusions=str(wishes)))
    assert (reading.table.users, reading.objections.present) == (("45",), 3)


@pytest.mark.parametrize(
    "line",
    ["43 Jane", "43/45", "43+45", "43.", "a) 43", "Nr.43", "MRN:43", "43*", "Patient 43", "43 / 45", "43 (phone)"],
)
def test_exclusion_line_with_an_id_and_more_is_asked_about(tmp_path, line):
    write_patients(tmp_path / "notes.jsonl", ["42", "43", "p 44"])
    wishes = tmp_path / "wishes.txt"
    wishes.write_text(f"42\n{line}\np 44\n46/17\n")
    reading = sources.read(Declared(str(tmp_path / "notes.jsonl"), user_field="patient", exclusions=str(wishes)))
    (caution,) = reading.cautions(None)
    assert caution.startswith("1 identifier on the list matches an id of the source but for ")


def test_utf_16_exclusion_list_with_system_and_identifier_is_read(tmp_path):
    write_patients(tmp_path / "notes.jsonl", ["42", "Patient?identifier=http://h/mrn|7"])
    source = {
        "data": str(tmp_path / "notes.jsonl"),
        "user_field": "patient",
        "exclusions": str(tmp_path / "wishes.txt"),
    }
    (tmp_path / "wishes.txt").write_text("42\r\nhttp://h/mrn | 7\r\n", "utf-16")
    reading = sources.read(Declared(**source))
    assert (len(reading.table), reading.objections.present) == (0, 2)
