"""Files as other systems write them: no record is lost, joined or split without a line that says so."""

import gzip
import json
import sqlite3
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.client.records.test_sources import url_file
from tests.doubles.party_home import command, set_up
from tests.doubles.typed import typed
from undersong_client.cli.app import app, main
from undersong_client.records.declared import first_places

CASES = Path(__file__).parent / "cases"
CSV = ("--user-field", "person_id", "--label-field", "label")
XLSX = ("--text-field", "Text", "--label-field", "Klasse", "--user-field", "Fall", "--user-is", "case")
PARQUET = ("--user-field", "patient", "--label-field", "label")
ALL_KINDS = "quotes,width,numbers,decimals,zeros"
COUNTS = ("records", "users", "lost", "refused")


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    set_up(folder, ("init", "alpha"))
    return folder


def dry(home, file, *options):
    """Exit code, counts and error of a dry run."""
    arguments = ("data", "add", file, *options, "--dry-run", "--json", "--home", home)
    done = typed(app, *arguments, standalone_mode=False)
    code = getattr(done.exception, "exit_code", done.exit_code)
    value = json.loads(done.stdout) if done.stdout else json.loads(json.dumps(getattr(done.exception, "report", {})))
    return code, value, str(done.exception or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "options", "code", "counts", "words"),
    [
        ("csv_id_forms.csv", CSV, 2, (16, 10, 0, 0), "only by leading zeros"),
        ("csv_id_forms.csv", (*CSV, "--same-patient", ALL_KINDS), 0, (16, 2, 0, 0), ""),
        ("csv_id_forms.csv", (*CSV, "--other-patient", ALL_KINDS), 0, (16, 10, 0, 0), ""),
        (
            "jsonl_reference_ids.jsonl",
            ("--user-field", "patient.reference"),
            2,
            (7, 3, 0, 0),
            "the base of a reference",
        ),
        (
            "jsonl_object_ids.jsonl",
            ("--user-field", "patient"),
            2,
            (0, 0, 0, 3),
            "3 rows: the user column 'patient': an object is no id",
        ),
        (
            "pq_struct_ids.parquet",
            ("--user-field", "patient"),
            2,
            (0, 0, 0, 3),
            "3 rows: the user column 'patient': an object is no id",
        ),
        ("csv_null_words.csv", CSV, 2, (2, 1, 0, 6), "6 rows: the user column 'person_id' is empty or not an id"),
        ("csv_label_space.csv", CSV, 0, (3, 3, 0, 0), ""),
        ("csv_dup_header.csv", ("--user-field", "person_id"), 2, None, "the column 'text' stands 2 times"),
        ("xlsx_duplicate_header.xlsx", XLSX, 2, None, "the column 'Text' stands 2 times"),
        ("csv_empty_text.csv", ("--user-field", "person_id"), 2, (2, 2, 2, 0), "2 of 4 rows or documents"),
        ("tsv_unquoted_swallow.tsv", CSV, 2, None, "5 rows if its quotes are letters like any other, 2 if"),
        ("tsv_unquoted_swallow.tsv", (*CSV, "--quoting", "none"), 0, (5, 5, 0, 0), ""),
        ("tsv_unquoted_swallow.tsv", (*CSV, "--quoting", "csv"), 0, (2, 2, 0, 0), ""),
        ("excl_notes.csv", (*CSV, "--exclude", CASES / "excl_list_zeros.txt"), 2, (4, 3, 0, 0), "0 of 2 identifiers"),
        (
            "excl_notes.csv",
            (*CSV, "--exclude", CASES / "excl_list_zeros.txt"),
            2,
            (4, 3, 0, 0),
            "but for leading zeros",
        ),
        (
            "excl_notes.csv",
            (*CSV, "--exclude", CASES / "excl_list_quoted.txt"),
            2,
            None,
            "excl_list_quoted.txt: line 1",
        ),
        (
            "excl_notes.csv",
            (*CSV, "--exclude", CASES / "excl_list_columns.csv"),
            2,
            None,
            "excl_list_columns.csv: line 1",
        ),
        ("xlsx_dimension_small.xlsx", XLSX, 0, (6, 6, 0, 0), ""),
        ("xlsx_strict.xlsx", XLSX, 0, (6, 6, 0, 0), ""),
        ("xlsx_crlf.xlsx", XLSX, 0, (3, 3, 0, 0), ""),
        ("xlsx_formula_no_value.xlsx", XLSX, 2, (2, 2, 4, 0), "4 of 6 rows or documents"),
        ("xlsx_hidden_rows.xlsx", XLSX, 0, (4, 4, 0, 0), ""),
        ("xlsx_stray_last_cell.xlsx", XLSX, 0, (6, 6, 0, 0), ""),
        ("pq_year_9999_tz.parquet", PARQUET, 0, (3, 2, 0, 0), ""),
        ("pq_ns.parquet", PARQUET, 0, (3, 2, 0, 0), ""),
        ("pq_duration_ns.parquet", PARQUET, 0, (3, 2, 0, 0), ""),
        ("pq_bad_utf8_other.parquet", PARQUET, 0, (3, 2, 0, 0), ""),
    ],
)
def test_dry_run_of_each_example_file_counts_every_row(home, file, options, code, counts, words):
    ended, value, error = dry(home, CASES / file, *options)
    assert (ended, tuple(value[name] for name in COUNTS) if value else None) == (code, counts), error
    assert words in error
    if value:
        assert value["rows"] == value["records"] + len(value["skipped"]) + value["excluded_records"]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "row 1"),
        (3, "row 1, row 2, row 3"),
        (4, "row 1, row 2, row 3 and 1 more"),
        (9, "row 1, row 2, row 3 and 6 more"),
    ],
)
def test_error_names_three_places_and_counts_the_others(count, words):
    assert first_places([f"row {number}" for number in range(1, count + 1)]) == words


def test_rows_without_text_are_reported_with_their_row_numbers(home):
    _, value, _ = dry(home, CASES / "csv_empty_text.csv", "--user-field", "person_id")
    assert [row["where"].rpartition(": ")[2] for row in value["skipped"]] == ["row 2", "row 3"]
    assert {row["why"] for row in value["skipped"]} == {"its text is empty"}
    _, value, _ = dry(home, CASES / "xlsx_formula_no_value.xlsx", *XLSX)
    assert {row["why"] for row in value["skipped"]} == {
        "its text is empty, or a formula without a stored value: open and save the workbook"
    }
    _, value, _ = dry(home, CASES / "csv_null_words.csv", *CSV)
    assert [row["where"].rpartition(": ")[2] for row in value["skipped"]] == [f"row {n}" for n in range(2, 8)]


def test_a_missing_label_is_refused_with_the_options_that_read_it(home, tmp_path):
    notes = tmp_path / "notes.jsonl"
    notes.write_text('{"text": "a", "label": null}\n{"text": "b", "label": "x"}\n')
    add = ("data", "add", notes, "--label-field", "label", "--home", home)
    said = command(*add, code=2)
    assert "fill the row, or name a label for it: --label-map =LABEL (--label-map = leaves it out)" in said
    assert "labels: unknown 1, x 1" in command(*add, "--dry-run", "--label-map", "=unknown")
    assert "labels: x 1" in command(*add, "--dry-run", "--label-map", "=")


def test_labels_are_stripped_and_differences_in_case_are_shown(home):
    _, value, _ = dry(home, CASES / "csv_label_space.csv", *CSV)
    assert value["labels"] == {"Discharge": 1, "discharge": 2}
    assert value["label_forms"] == [["Discharge", "discharge"]]
    said = command("data", "add", CASES / "csv_label_space.csv", *CSV, "--dry-run", "--home", home)
    assert "labels differ by capital letters only: Discharge, discharge" in said


def test_long_note_is_read_and_words_for_missing_values_are_counted(home, tmp_path):
    (tmp_path / "long.csv").write_text('patient,text\n1,"' + "word " * 40_000 + '"\n2,short\n3,N/A\n4,None\n')
    code, value, _ = dry(home, tmp_path / "long.csv", "--user-field", "patient")
    assert (code, value["records"], value["missing_words"]) == (0, 4, 2)


@pytest.fixture
def ids(tmp_path):
    """Options for a database with one id in two numeric forms."""
    pytest.importorskip("sqlalchemy")
    with sqlite3.connect(tmp_path / "ids.sqlite") as database:
        database.executescript(
            "CREATE TABLE note (person_id, text TEXT);"
            "INSERT INTO note VALUES (7, 'one'), (7.0, 'two'), (8, 'three');"
            "CREATE TABLE optout (person_id REAL); INSERT INTO optout VALUES (7);"
        )
    (tmp_path / "plain.sql").write_text("SELECT text, person_id AS patient FROM note", "utf-16")
    (tmp_path / "cast.sql").write_text(
        "\ufeffSELECT text, CAST(person_id AS VARCHAR(20)) AS patient FROM note", "utf-8"
    )
    (tmp_path / "objectors.sql").write_text("SELECT person_id FROM optout")
    return ("--user-field", "patient", "--database", url_file(tmp_path, f"sqlite:///{tmp_path / 'ids.sqlite'}"))


def test_database_ids_that_differ_by_decimals_need_an_answer_to_be_joined(home, tmp_path, ids):
    assert dry(home, tmp_path / "plain.sql", *ids)[1]["users"] == 2
    code, value, error = dry(home, tmp_path / "cast.sql", *ids)
    assert (code, value["users"]) == (2, 3)
    assert "1 id differs from another one only by decimals" in error
    code, value, _ = dry(home, tmp_path / "cast.sql", *ids, "--same-patient", "decimals")
    assert (code, value["users"]) == (0, 2)
    code, value, _ = dry(home, tmp_path / "plain.sql", *ids, "--exclude", tmp_path / "objectors.sql")
    assert (code, value["users"], value["excluded_patients"], value["excluded_records"]) == (0, 1, 1, 2)


def test_exclusion_query_that_selects_two_columns_is_refused(home, tmp_path, ids):
    (tmp_path / "two.sql").write_text("SELECT person_id, 1 FROM optout")
    code, _, error = dry(home, tmp_path / "plain.sql", *ids, "--exclude", tmp_path / "two.sql")
    assert code == 2
    assert "selects 2 columns" in error


def test_a_missing_sqlite_file_is_an_error_and_is_not_made(home, tmp_path, ids):
    url = url_file(tmp_path, f"sqlite:///{tmp_path / 'typo.sqlite'}")
    code, _, error = dry(home, tmp_path / "plain.sql", "--database", url)
    assert code == 2
    assert "does not exist" in error
    assert not (tmp_path / "typo.sqlite").exists()


@pytest.mark.heavy
@pytest.mark.parametrize("end", ["", ";", " -- a comment", "; -- the end\n", ";\n/* the; end */;"])
def test_a_value_that_a_database_cannot_deliver_names_its_column(home, tmp_path, ids, end):
    with (tmp_path / "plain.sql").open("a", encoding="utf-16-le") as query:
        query.write(end)
    with sqlite3.connect(tmp_path / "ids.sqlite") as database:
        database.execute("INSERT INTO note VALUES (9, CAST(x'ff73656372657420' AS TEXT))")
    code, _, error = dry(home, tmp_path / "plain.sql", *ids)
    assert code == 2
    assert "a value of the column 'text' cannot be read" in error
    assert "secret" not in error


def test_a_declared_column_that_a_query_selects_twice_is_refused(home, tmp_path, ids):
    (tmp_path / "twice.sql").write_text("SELECT text, text, person_id AS patient FROM note")
    code, _, error = dry(home, tmp_path / "twice.sql", *ids)
    assert code == 2
    assert "the column 'text' stands 2 times" in error


def test_repeated_json_key_is_refused_only_if_its_column_is_used(home, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "text": "b", "patient": {"id": 1, "x": 1, "x": 2}}\n')
    fields = ("--user-field", "patient.id")
    code, _, error = dry(home, tmp_path / "a.jsonl", *fields)
    assert code == 2
    assert "the key 'text' stands twice" in error
    (tmp_path / "a.jsonl").write_text('{"text": "b", "patient": {"id": 1, "x": 1, "x": 2}}\n{"text": "c"}\n')
    code, value, _ = dry(home, tmp_path / "a.jsonl", *fields)
    assert (code, value["records"], value["refused"]) == (2, 1, 1)  # a key that is left out is a missing value


def test_folder_of_part_files_is_read_as_one_table(home, tmp_path):
    folder = tmp_path / "notes.parquet"
    folder.mkdir()
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-0.crc").write_text("x")
    for part in range(2):
        rows = [{"text": f"note {part}", "patient": part, "label": "a"}]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"part-{part}.parquet")
    code, value, _ = dry(home, folder, *PARQUET)
    assert (code, value["records"], value["users"]) == (0, 2, 2)


def test_folder_of_compressed_part_files_is_read_as_one_table(home, tmp_path):
    (tmp_path / "notes").mkdir()
    for part in range(2):
        content = f"text,patient\nnote {part},{part}\n".encode()
        (tmp_path / "notes" / f"part-{part}.csv.gz").write_bytes(gzip.compress(content))
    code, value, _ = dry(home, tmp_path / "notes", "--user-field", "patient")
    assert (code, value["records"], value["users"]) == (0, 2, 2)


def test_bad_utf8_in_a_declared_column_is_refused_by_row(home, tmp_path):
    texts = pyarrow.array([b"good", b"bad secret \xff"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "patient": [1, 2]}), tmp_path / "a.parquet")
    code, _, error = dry(home, tmp_path / "a.parquet", "--user-field", "patient")
    assert code == 2
    assert "row 2: the value of column 'text' cannot be read" in error
    assert "secret" not in error


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('a,1\n"b ""c""",2\n', ["a", 'b "c"']),
        ('5" wide,1\nsays "ah",2\n', ['5" wide', 'says "ah"']),
        ('"two\nlines",1\n', ["two\nlines"]),
        ('"good" she said,1\n', ['"good" she said']),
    ],
)
def test_csv_quotes_are_read_in_the_form_that_fits_the_whole_file(tmp_path, content, texts, end):
    from undersong_common.text.row_files import read_rows

    path = tmp_path / "a.csv"
    path.write_bytes(("text,n\n" + content).replace("\n", end).encode())
    assert [row.values["text"].replace("\r\n", "\n") for row in read_rows(path)] == texts


@pytest.mark.parametrize(
    "content",
    [
        "sep=;\r\ntext;n\r\na, b;7\r\n",
        '\ufeff"sep=;"\n"text";"n"\n"a, b";"7"\n',
        "text|n\na, b|7\n",
        "\ufefftext\tn\na, b\t7\n",
    ],
)
def test_csv_separators_that_other_programs_write_are_recognised(tmp_path, content):
    from undersong_common.text.row_files import read_rows

    (tmp_path / "a.csv").write_text(content, "utf-8", newline="")
    (row,) = read_rows(tmp_path / "a.csv")
    assert row.values == {"text": "a, b", "n": "7"}


def workbook(path, cells):
    book = pytest.importorskip("openpyxl").Workbook()
    for place, value in cells.items():
        book.active[place] = value
    book.save(path)
    return path


def test_far_away_cell_is_refused_and_rows_keep_the_sheet_s_numbers(home, tmp_path):
    cells = {"B3": "Text", "C3": "Fall", "B5": "one", "C5": 7, "B6": "#N/A", "C6": 8.0, "B8": "two"}
    code, value, _ = dry(home, workbook(tmp_path / "a.xlsx", cells), *XLSX[:2], *XLSX[4:])
    assert (code, value["records"], value["lost"]) == (2, 1, 1)
    assert [row["where"].rpartition(": ")[2] for row in value["skipped"]] == ["row 6", "row 8"]
    far = workbook(tmp_path / "far.xlsx", {**cells, "XFD1048576": "far"})
    code, _, error = dry(home, far, "--text-field", "Text")
    assert code == 2
    assert "far from the table" in error


def test_blank_row_above_a_workbook_s_table_is_not_its_header(home, tmp_path):
    cells = {"A1": " ", "C2": "\t", "B4": "Text", "C4": "Fall", "B5": "one", "C5": 7, "B6": "  "}
    code, value, _ = dry(home, workbook(tmp_path / "a.xlsx", cells), *XLSX[:2], *XLSX[4:])
    assert (code, value["rows"], value["records"]) == (0, 1, 1)


def test_label_map_finds_a_label_in_any_form_of_unicode(home, tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,Pa\u0308diatrie\nb,P\u00e4diatrie\u200b\nc,Chirurgie\n", "utf-8")
    add = (
        tmp_path / "a.csv",
        "--label-field",
        "label",
        "--label-map",
        "Pa\u0308diatrie=ward",
        "--label-map",
        "*=other",
    )
    _, value, _ = dry(home, *add)
    assert value["labels"] == {"ward": 2, "other": 1}


def test_label_is_shown_on_one_line_without_invisible_characters(home, tmp_path):
    (tmp_path / "a.csv").write_text('text,label\na,"x\ny\x1b[2J"\nb,x y[2J\nc,caf\u00e9\nd,cafe\u0301\n', "utf-8")
    add = ("data", "add", tmp_path / "a.csv", "--label-field", "label", "--dry-run", "--home", home)
    assert "labels: caf\u00e9 2, x y[2J 2\n" in command(*add)


@pytest.mark.parametrize("options", [("--label-field", "text"), ("--label-field", "pid"), ("--attribute", "sex=pid")])
def test_text_or_id_column_as_label_or_attribute_is_refused_unshown(home, tmp_path, options):
    (tmp_path / "a.csv").write_text("text,pid\nsecret note,secret-7\n")
    code, value, error = dry(home, tmp_path / "a.csv", "--user-field", "pid", *options)
    assert (code, value) == (2, {})
    assert "secret" not in error
    assert "name another column for one of them" in error


def test_workbook_sheet_is_chosen_by_its_name(home, tmp_path):
    book = pytest.importorskip("openpyxl").Workbook()
    for name in ("notes", "legend"):
        book.create_sheet(name).append(["text"])
        book[name].append([name])
    book.save(tmp_path / "a.xlsx")
    assert "--sheet NAME" in dry(home, tmp_path / "a.xlsx")[2]
    assert dry(home, tmp_path / "a.xlsx", "--sheet", "notes")[1]["records"] == 1
    code, _, error = dry(home, tmp_path / "a.xlsx", "--sheet", "Notes")
    assert code == 2
    assert "did you mean 'notes'" in error


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet", ".xlsx", ".jsonl.gz", ".ndjson", ".sql"])
@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 200, b"PK\x03\x04" + b"\xff" * 200, b'{"text": ' + b"[" * 5000, b'"\n"' * 9]
)
def test_parser_exceptions_become_configuration_errors_with_a_remedy(home, tmp_path, suffix, content):
    (tmp_path / f"a{suffix}").write_bytes(content)
    code, _, error = dry(home, tmp_path / f"a{suffix}", "--user-field", "text")
    assert code in (0, 2)
    assert code == 0 or "remedy" in error


def test_failing_dry_run_prints_counts_and_error_as_one_json_object(home, monkeypatch, capsys):
    arguments = ["data", "add", str(CASES / "csv_empty_text.csv"), "--user-field", "person_id", "--dry-run", "--json"]
    monkeypatch.setattr("sys.argv", ["undersong-party", *arguments, "--home", str(home)])
    with pytest.raises(SystemExit) as ended:
        main()
    value = json.loads(capsys.readouterr().out)
    assert (ended.value.code, value["records"], value["error"]["code"]) == (2, 2, "would-stop")


# What is sealed


@pytest.mark.heavy
def test_source_that_stops_a_dry_run_is_sealed_only_after_a_decision(home):
    add = ("data", "add", CASES / "csv_empty_text.csv", "--user-field", "person_id", "--home", home)
    command(*add, code=2)
    assert not (home / "data.sealed").exists()
    command(*add, "--despite-cautions")
    assert (home / "data.sealed").exists()
    assert "row 2: the user column" in command(
        "data", "add", CASES / "csv_null_words.csv", *CSV, "--home", home, code=2
    )


def test_refresh_remedy_names_the_command_that_has_its_option(home, tmp_path):
    notes = tmp_path / "notes.tsv"
    notes.write_text("text\tpatient\na note\t1\n")
    command("data", "add", notes, "--user-field", "patient", "--home", home)
    notes.write_bytes((CASES / "tsv_unquoted_swallow.tsv").read_bytes())
    said = command("data", "refresh", "--home", home, code=2)
    assert "--quoting none or --quoting csv (undersong-party data add FILE --new-version, with this option" in said


@pytest.mark.heavy
def test_choice_about_look_alike_ids_is_kept_for_every_refresh(home, tmp_path):
    notes = tmp_path / "notes.csv"
    notes.write_bytes((CASES / "csv_id_forms.csv").read_bytes())
    add = ("data", "add", notes, *CSV, "--home", home)
    assert "--same-patient" in command(*add, "--despite-cautions", code=2)  # a caution is no choice
    assert "; 2 users" not in command(*add, "--same-patient", ALL_KINDS)
    shown = json.loads(command("data", "show", "--json", "--home", home))
    assert set(shown["same_patient"]) == set(ALL_KINDS.split(","))
    assert "unchanged" in command("data", "refresh", "--home", home)
    notes.write_text(notes.read_text("utf-8") + "P7;one;A\np7;two;A\n", "utf-8")
    assert "--same-patient case" in command("data", "refresh", "--home", home, code=2)
    assert "data add FILE --new-version" not in command("data", "refresh", "--home", home, code=2)
    command("data", "refresh", "--other-patient", "case", "--home", home)
    shown = json.loads(command("data", "show", "--json", "--home", home))
    assert (set(shown["same_patient"]), shown["other_patient"]) == (set(ALL_KINDS.split(",")), ["case"])
