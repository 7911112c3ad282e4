"""Sources of a hospital: every row is read or named with its reason, and nothing of a record is shown or leaves."""

import base64
import gc
import gzip
import json
import shutil
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.doubles.coded import raises
from tests.doubles.party_home import command, set_up, write_notes
from tests.doubles.postgres import PORT, PostgresServer
from undersong_client.home import Declared, PartyHome
from undersong_client.records import sources
from undersong_client.records.database import select
from undersong_client.records.private import unit_count
from undersong_client.storage import datasets
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.program.chain import HashChain

SECRET = "Zebedee Quux has a rare disease"
OMOP = Path(__file__).parents[3] / "examples" / "omop" / "notes.sql"
LOINC = "http://loinc.org"
RTF = rb"{\rtf1\ansi\ansicpg1252 F\'fcr {\b drei} Tage\par}"


def attachment(kind, content=None, **more):
    return {
        "contentType": kind,
        **({"data": base64.b64encode(content).decode()} if content is not None else {}),
        **more,
    }


def document(number, *attachments, patient="Patient/7", **more):
    return {
        "resourceType": "DocumentReference",
        "id": f"d{number}",
        "status": "current",
        "type": {"coding": [{"system": "http://local", "code": "L1"}, {"system": LOINC, "code": "18842-5"}]},
        "subject": {"reference": patient},
        "date": "2024-02-03T10:00:00Z",
        "content": [{"attachment": each} for each in attachments],
        **more,
    }


def report(number, **more):
    concept = {"coding": [{"system": LOINC, "code": "24323-8"}]}
    subject = {"reference": "https://ehr.example/fhir/Patient/8/_history/2"}
    fields = {"id": f"r{number}", "status": "final", "code": concept, "subject": subject}
    return {"resourceType": "DiagnosticReport", **fields, **more}


@pytest.fixture
def bulk(tmp_path):
    """A bulk export: what can be read first, what cannot after it."""
    folder = tmp_path / "bulk"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "one.txt").write_bytes("Grüße".encode("latin-1"))
    (folder / "files" / "orphan.pdf").write_bytes(b"%PDF")
    (tmp_path / "outside.txt").write_text(SECRET)
    html = (
        b"<html><head><title>no</title></head><body><p>Pain &amp; fever</p><script>x()</script>since<br>Monday</body>"
    )
    documents = [
        document(1, attachment("text/plain", b"plain text")),
        document(2, attachment("text/html; charset=utf-8", html)),
        document(3, attachment("application/rtf", RTF)),
        document(4, attachment("text/plain; charset=iso-8859-1", url="files/one.txt")),
        document(5, attachment("text/plain", url="Binary/b1")),
        document(6, attachment("application/pdf", b"%PDF"), attachment("text/plain", b"the same as text")),
        document(7, attachment("application/pdf", b"%PDF")),
        document(8, attachment("text/plain", b"withdrawn"), status="entered-in-error"),
        document(9, attachment("text/plain", b"of a group"), patient="Group/1"),
        document(10, attachment("text/plain", url="../outside.txt")),
        document(11, attachment("text/plain", url="https://ehr.example/files/2")),
        document(12, attachment("text/plain", "Grüße".encode("latin-1"))),
        document(13, attachment("text/plain", b"no label"), type={"text": "free"}),
    ]
    write_lines(folder / "DocumentReference.000.ndjson", documents, broken=True)
    form = attachment("text/html", b"<p>CT of the chest")
    reports = [report(1, presentedForm=[form]), report(2, conclusion="no finding"), report(3)]
    (folder / "DiagnosticReport.ndjson.gz").write_bytes(gzip.compress(lines(reports)))
    binary = {"resourceType": "Binary", "id": "b1", **attachment("text/plain", b"in a Binary")}
    write_lines(folder / "Binary.ndjson", [binary, {**binary, "id": "b2"}])
    write_lines(folder / "Patient.ndjson", [{"resourceType": "Patient", "id": "7", "name": [{"family": SECRET}]}])
    return folder


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_lines(path, rows, *, broken=False):
    path.write_bytes(lines(rows) + (b'{"resourceType": "Docu\n' if broken else b""))


def declared(path, **fields):
    return Declared(str(path), **{"label_field": "label", "user_field": "patient", **fields})


def test_every_fhir_resource_of_a_bulk_export_is_read_or_named_as_skipped(bulk):
    found = sources.read(declared(bulk, label_field=f"type|{LOINC}", label_map={"": "report"}))
    texts = dict(zip(found.table.texts, zip(found.table.labels, found.table.users, strict=True), strict=True))
    assert texts == {
        "plain text": ("18842-5", "7"),
        "Pain & fever\nsince\nMonday": ("18842-5", "7"),
        "Für drei Tage\n": ("18842-5", "7"),
        "Grüße": ("18842-5", "7"),
        "in a Binary": ("18842-5", "7"),
        "the same as text": ("18842-5", "7"),
        "no label": ("report", "7"),
        "CT of the chest": ("24323-8", "8"),
        "no finding": ("24323-8", "8"),
    }
    named = {each.where for each in found.skipped}
    documents = {f"DocumentReference.000.ndjson:{line}" for line in (7, 8, 9, 10, 11, 12, 14)}
    rest = {"DiagnosticReport.ndjson.gz:3", "Binary.ndjson:2", "Patient.ndjson:1", "files/orphan.pdf"}
    assert named == documents | rest
    assert found.rows == len(found.table) + len(found.skipped)
    assert not any(SECRET in each.why for each in found.skipped)


def test_fhir_resource_without_the_label_is_named_as_skipped(bulk):
    found = sources.read(declared(bulk, label_field="type.coding.code"))
    assert "DocumentReference.000.ndjson:13" in {each.where for each in found.skipped}
    assert set(found.table.labels) == {"L1"}


def test_a_dry_run_shows_shapes_and_seals_nothing(tmp_path):
    home = tmp_path / "home"
    set_up(home, ("init", "alpha"))
    rows = [{"text": SECRET, "label": "a", "patient": str(number)} for number in range(1, 21)]
    rows[1]["text"] = ""
    (tmp_path / "notes.ndjson").write_bytes(lines(rows))
    fields = ("--label-field", "label", "--user-field", "patient", "--dry-run", "--home", home)
    said = command("data", "add", tmp_path / "notes.ndjson", *fields)
    assert "19 records of 20 rows; 1 without text is left out" in said
    assert "not read: 1, because its text is empty" in said
    assert f"a, {len(SECRET)} characters: Xxxxxxx Xxxx xxx x xxxx xxxxxxx" in said
    assert "Zebedee" not in said
    shown = json.loads(command("data", "add", tmp_path / "notes.ndjson", *fields, "--json"))
    assert (shown["records"], shown["stops"]) == (19, [])
    assert "Zebedee" not in json.dumps(shown)
    assert not PartyHome(home).sealed.exists()
    assert not PartyHome(home).ledger.exists()
    assert PartyHome(home).settings.data == ""


def test_dry_run_names_every_faulty_row_by_the_sheet_s_number(tmp_path):
    book = pytest.importorskip("openpyxl").Workbook()
    for row in [
        ("Text", "Fall"),
        (SECRET, "7"),
        (SECRET, None),
        (None, None),
        (SECRET, " "),
        (None, None),
        (SECRET, "8"),
    ]:
        book.active.append(row)
    book.save(tmp_path / "notes.xlsx")
    home = tmp_path / "home"
    set_up(home, ("init", "alpha"))
    add = (
        "data",
        "add",
        tmp_path / "notes.xlsx",
        "--text-field",
        "Text",
        "--user-field",
        "Fall",
        "--user-is",
        "case",
        "--home",
        home,
    )
    said = command(*add, "--dry-run", code=2)
    found = sources.read(
        declared(tmp_path / "notes.xlsx", text_field="Text", label_field="", user_field="Fall"), dry=True
    )
    assert (len(found.table), found.rows, found.empty, found.refused) == (2, 4, 0, 2)
    why = "the user column 'Fall' is empty or not an id"
    assert [(each.where.rpartition(": ")[2], each.why) for each in found.skipped] == [("row 3", why), ("row 5", why)]
    assert "2 rows: the user column 'Fall' is empty or not an id" in said
    assert "Zebedee" not in said
    assert "row 3: the user column" in command(*add, code=2)


@pytest.mark.parametrize("name", ["a.ndjson", "a.jsonl.gz", "a.ndjson.gz"])
def test_nested_columns_and_labels_are_mapped(tmp_path, name):
    rows = [
        {"note": {"body": f"note {label}"}, "codes": [{"system": "x"}, {"code": label}], "who": {"id": 7}}
        for label in ("A", "B", "C", None, "D")
    ]
    data = lines(rows)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    fields = {"text_field": "note.body", "label_field": "codes.code", "user_field": "who.id"}
    found = sources.read(declared(tmp_path / name, **fields, label_map={"A": "one", "B": "", "": "none", "*": "rest"}))
    assert found.table.labels == ("one", "rest", "none", "rest")
    assert found.table.texts == ("note A", "note C", "note None", "note D")
    assert [each.where.rpartition(":")[2] for each in found.skipped] == ["2"]
    assert (found.rows, found.empty) == (5, 0)


def test_truncated_compressed_file_is_refused(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n' * 100)[:-12])
    with pytest.raises(ConfigurationError):
        sources.read(Declared(str(tmp_path / "a.jsonl.gz")))


@pytest.mark.heavy
def test_hospital_s_filter_program_gets_every_row_and_chooses_records(tmp_path):
    notes = write_notes(tmp_path / "notes.jsonl")
    script = tmp_path / "own filter.py"
    script.write_text(
        "import json, sys\nfor line in sys.stdin:\n    row = json.loads(line)\n"
        "    if row['patient'] != 'patient 0':\n        print(json.dumps({**row, 'text': row['text'].upper()}))\n"
    )
    found = sources.read(declared(notes, row_filter=f"{sys.executable} '{script}'"))
    assert len(found.table) == 10
    assert found.table.texts[0] == "PRIVATE NOTE 2"
    assert found.filter_rows == (12, 10)
    for faulty in ("sys.exit(3)", "print(1)"):
        script.write_text(f"import sys\n{faulty}\n")
        with raises(ConfigurationError, "filter"):
            sources.read(declared(notes, row_filter=f"{sys.executable} '{script}'"))
    with raises(ConfigurationError, "filter"):
        sources.read(declared(notes, row_filter="/no/such/program"))


def test_standard_error_of_a_filter_is_not_shown(tmp_path, capfd):
    notes = write_notes(tmp_path / "notes.jsonl")
    assert len(sources.read(declared(notes, row_filter="tee /dev/stderr")).table) == 12
    with raises(ConfigurationError, "filter"):
        sources.read(declared(notes, row_filter="sh -c 'tee /dev/stderr; exit 3'"))
    assert "private note" not in capfd.readouterr().err


TABLES = """
CREATE TABLE concept (concept_id integer PRIMARY KEY, concept_name varchar(255) NOT NULL);
CREATE TABLE note (
    note_id integer PRIMARY KEY, person_id integer NOT NULL, note_date date NOT NULL, note_type_concept_id integer,
    note_class_concept_id integer NOT NULL, note_title varchar(250), note_text text NOT NULL,
    encoding_concept_id integer, language_concept_id integer, provider_id integer,
    visit_occurrence_id integer, note_source_value varchar(50));
INSERT INTO concept VALUES (706391, 'Discharge summary'), (706531, 'Consult note');
INSERT INTO note (note_id, person_id, note_date, note_class_concept_id, note_text) VALUES
    (1, 7, '2024-01-01', 706391, 'home: stable'), (2, 7, '2024-01-02', 706531, 'seen'),
    (3, 8, '2024-01-03', 706391, 'out');
"""


@pytest.fixture
def omop(tmp_path):
    """URL file of an OMOP database in SQLite."""
    with sqlite3.connect(tmp_path / "omop.sqlite") as database:
        database.executescript(TABLES)
    return url_file(tmp_path, f"sqlite:///{tmp_path / 'omop.sqlite'}")


def url_file(folder, url):
    file = folder / "url.txt"
    file.touch(mode=0o600)
    file.write_text(url + "\n")
    return str(file)


def check_omop(url):
    found = sources.read(declared(OMOP, database=url))
    assert found.table.texts == ("home: stable", "seen", "out")
    assert found.table.labels == ("Discharge summary", "Consult note", "Discharge summary")
    assert found.table.users == ("7", "7", "8")


def test_notes_of_an_omop_database_are_read(omop, monkeypatch):
    pytest.importorskip("sqlalchemy")
    check_omop(omop)
    monkeypatch.setenv("OMOP_URL", Path(omop).read_text().strip())
    check_omop("env:OMOP_URL")


def test_query_that_writes_and_unsafe_database_url_are_refused(omop, tmp_path):
    pytest.importorskip("sqlalchemy")
    query = tmp_path / "query.sql"
    query.write_text("DELETE FROM note")
    with raises(ConfigurationError, "no-query"):
        sources.read(declared(query, database=omop))
    query.write_text("WITH old AS (SELECT 1) DELETE FROM note")
    with raises(ConfigurationError, "database"):
        sources.read(declared(query, database=omop))
    check_omop(omop)
    Path(omop).chmod(0o644)
    with raises(ConfigurationError, "database-url"):
        sources.read(declared(OMOP, database=omop))
    with raises(ConfigurationError, "database-url"):
        sources.read(declared(OMOP, database="env:NOT_SET_HERE"))


@pytest.mark.heavy
def test_query_that_is_closed_early_raises_no_warning(omop, monkeypatch):
    warnings = []
    monkeypatch.setattr(sys, "unraisablehook", warnings.append)
    rows = select(OMOP, omop)
    next(rows)
    circle = [rows]
    circle.append(circle)
    del rows, circle
    gc.collect()
    assert warnings == []


def test_database_error_shows_no_value_of_query_or_url(tmp_path):
    pytest.importorskip("sqlalchemy")
    query = tmp_path / "query.sql"
    query.write_text(f"SELECT '{SECRET}' FROM nowhere")
    with raises(ConfigurationError, "database") as caught:
        sources.read(declared(query, database=url_file(tmp_path, f"sqlite:///{tmp_path}/hunter2.sqlite")))
    assert SECRET not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.slow
def test_notes_of_an_omop_database_are_read_from_postgresql(tmp_path):
    driver = next((name for name in ("psycopg", "psycopg2", "pg8000") if _has(name)), None)
    if driver is None:
        pytest.skip("needs a driver for PostgreSQL")
    with PostgresServer() as server:
        server.run_sql(TABLES)
        socket = f"host={server.folder}&port={PORT}"
        if driver == "pg8000":
            socket = f"unix_sock={server.folder}/.s.PGSQL.{PORT}"
        url = url_file(tmp_path, f"postgresql+{driver}://reader@/postgres?{socket}")
        check_omop(url)
        query = tmp_path / "query.sql"
        query.write_text("WITH gone AS (DELETE FROM note RETURNING note_text AS text) SELECT * FROM gone")
        with raises(ConfigurationError, "database"):
            sources.read(Declared(str(query), database=url))
        check_omop(url)


def _has(name):
    from importlib.util import find_spec

    return find_spec(name) is not None


@pytest.fixture
def party(tmp_path):
    home = tmp_path / "home"
    set_up(home, ("init", "alpha"))
    return home


def add(party, notes, *options):
    fields = ("--label-field", "label", "--user-field", "patient")
    return command("data", "add", notes, *fields, *options, "--home", party)


def test_a_patient_in_several_spellings_is_one_user_and_excluded_as_one(tmp_path):
    names = ("P1", "P1 ", " P1", "Patient/P1", "P1\t", "P2")
    write_lines(tmp_path / "notes.jsonl", [{"text": f"note {n}", "patient": name} for n, name in enumerate(names)])
    (tmp_path / "wishes.txt").write_text("Patient/ P1\n")
    source = Declared(str(tmp_path / "notes.jsonl"), user_field="patient")
    assert unit_count(sources.read(source).table, "user") == 2
    left = sources.read(replace(source, exclusions=str(tmp_path / "wishes.txt")))
    assert (left.table.users, left.objections.present) == (("P2",), 1)


def test_share_of_lost_rows_is_taken_of_all_rows_with_objectors_records(tmp_path):
    rows = [{"text": f"a note {number}", "patient": "P1" if number < 20 else "P2"} for number in range(30)]
    write_lines(tmp_path / "notes.jsonl", [*rows, {"text": "", "patient": "P2"}])
    (tmp_path / "wishes.txt").write_text("P1\n")
    source = Declared(str(tmp_path / "notes.jsonl"), user_field="patient", exclusions=str(tmp_path / "wishes.txt"))
    reading = sources.read(source)
    assert (len(reading.table), reading.lost) == (10, 1)
    assert list(reading.lost_shares.values()) == [1 / 31]
    assert not reading.cautions(None)  # one row of 31 is less than one of twenty


@pytest.mark.parametrize("line", ["P1,Ada", "P1;Ada", "P1\tAda", '"P1"', "mrn=P1"])
def test_an_exclusion_list_with_a_second_column_or_quotes_is_refused(tmp_path, line):
    write_lines(tmp_path / "notes.jsonl", [{"text": "a note", "patient": "P1"}])
    (tmp_path / "wishes.txt").write_text(f"P2\n{line}\n")
    source = Declared(str(tmp_path / "notes.jsonl"), user_field="patient", exclusions=str(tmp_path / "wishes.txt"))
    with raises(ConfigurationError, "no-exclusions"):
        sources.read(source)


def test_patients_on_the_exclusion_list_are_not_sealed(party, tmp_path):
    notes, wishes = write_notes(tmp_path / "notes.jsonl"), tmp_path / "wishes.txt"
    wishes.write_text("patient 1\n\n patient 3 \nnobody\n")
    said = add(party, notes, "--exclude", wishes)
    assert "of 3 identifiers on the list, 2 are in the source and keep out 4 records" in said
    home = PartyHome(party)
    assert not {"patient 1", "patient 3"} & set(datasets.load(home).table.users)
    log = HashChain(home.exclusions, "undersong exclusions 1")
    assert log.verify() == 1
    assert (log.entries[0]["identifiers"], log.entries[0]["patients"], log.entries[0]["records"]) == (3, 2, 4)
    assert "patient" not in home.exclusions.read_text().replace('"patients"', "")
    wishes.write_text("patient 0\n")
    sealed = home.sealed.read_bytes()
    assert datasets.load(home).table.users[0] == "patient 0", "the list acts when a snapshot is sealed, not before"
    assert home.sealed.read_bytes() == sealed
    command("data", "refresh", "--home", party, code=2)  # one identifier was in the source, two were before
    command("data", "refresh", "--despite-cautions", "--home", party)
    assert "patient 0" not in datasets.load(home).table.users
    wishes.unlink()
    command("data", "refresh", "--home", party, code=2)  # no version is sealed without the list
    add(party, notes, "--new-version", "--no-exclude")
    assert len(datasets.load(home).table) == 12


def test_exclusion_list_needs_the_column_of_patients(party, tmp_path):
    (tmp_path / "wishes.txt").write_text("7\n")
    notes = write_notes(tmp_path / "notes.jsonl")
    command("data", "add", notes, "--exclude", tmp_path / "wishes.txt", "--home", party, code=2)
    assert not PartyHome(party).sealed.exists()


@pytest.mark.heavy
def test_a_refresh_says_what_changed_and_inherits_what_was_spent(party, tmp_path):
    from undersong_common.privacy.accounting import Gaussian
    from undersong_common.privacy.ledger import Ledger
    from undersong_common.privacy.spending import Charge

    notes = write_notes(tmp_path / "notes.jsonl")
    add(party, notes)
    home = PartyHome(party)
    command("budget", "set", "--epsilon", 4, "--delta", "1e-4", "--home", party)
    assert "unchanged" in command("data", "refresh", "--home", party)
    ledger = Ledger.read(home.ledger)
    ledger.charge(Charge("run", "00" * 32, "votes/1", 0, (Gaussian(5.0),)))
    spent = ledger.spent(1e-4)
    assert "unchanged" in command("data", "refresh", "--home", party), "an open run meets the same version"
    write_notes(notes, records=8, start=8)
    command("data", "refresh", "--home", party, code=2)  # the run under way keeps its version
    assert len(datasets.load(home).table) == 12
    said = command("data", "refresh", "--abandon-runs", "--home", party)
    assert "4 records are new, 8 are gone; 2 patients are new, 4 are gone" in said
    assert Ledger.read(home.ledger).spent(1e-4) == spent > 0
    shutil.rmtree(tmp_path / "notes.jsonl", ignore_errors=True)
    write_notes(notes, records=6, start=1000)  # other patients altogether
    command("data", "refresh", "--home", party)
    assert Ledger.read(home.ledger).spent(1e-4) == spent


def test_data_set_is_not_used_for_answers_after_its_last_day(party, tmp_path):
    add(party, write_notes(tmp_path / "notes.jsonl"))
    command("data", "keep-until", "2001-02-03", "--home", party)
    home = PartyHome(party)
    with raises(PrivacyRefusal, "retention-over"):
        datasets.check_retention(home, 1e9)
    datasets.check_retention(home, 9.8e8)
    command("data", "keep-until", "none", "--home", party)
    datasets.check_retention(home, 1e12)
    ledger = home.ledger.read_bytes()
    command("data", "erase", "--home", party)
    assert not home.sealed.exists()
    assert home.ledger.read_bytes() == ledger
    with pytest.raises(ConfigurationError):
        datasets.load(home)
