"""A source without a header has notes and ids in the place of names; no message shows one."""

import csv
import json

import pyarrow
import pyarrow.parquet
import pytest

from tests.client.records.test_sources import url_file
from tests.doubles.party_home import command, set_up
from tests.doubles.typed import typed
from undersong_client.cli.app import app

ROWS = (["Mrs Quimby texts of a rash", "letter", "QUIMBY-4711"], ["Mr Quimby coughs", "letter", "QUIMBY-4712"])
HIDDEN = ("quimby", "letter")  # of which the second would be a usual name of a column
SUFFIXES = ("csv", "tsv", "CSV", "xlsx", "parquet", "jsonl", "ndjson", "sql")


def write_headless(path, rows=ROWS):
    """Writes rows without a header: the first of them takes its place."""
    names = rows[0]
    match path.suffix.lower():
        case ".xlsx":
            book = pytest.importorskip("openpyxl").Workbook()
            for row in rows:
                book.active.append(row)
            book.save(path)
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, zip(*rows, strict=True), strict=True))), path)
        case ".jsonl" | ".ndjson":
            path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
        case ".sql":
            path.write_text("SELECT " + ", ".join(f"'{value}'" for value in names))
        case suffix:
            with path.open("w", newline="") as file:
                csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",").writerows(rows)
    return path


@pytest.fixture
def home(tmp_path):
    set_up(tmp_path / "home", ("init", "alpha"))
    return tmp_path / "home"


def failed(*arguments):
    """What a command shows that ends with exit code 2, its report included."""
    done = typed(app, *arguments, standalone_mode=False)
    assert getattr(done.exception, "exit_code", done.exit_code) == 2, done.output
    error = done.exception
    shown = f"{done.output}{error}{error.remedy}{getattr(error, 'report', '')}"
    assert not [word for word in HIDDEN if word in shown.casefold()]
    return shown


@pytest.mark.heavy
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_source_without_a_header_shows_nothing_of_its_rows(home, tmp_path, suffix):
    source = write_headless(tmp_path / f"notes.{suffix}")
    database = ("--database", url_file(tmp_path, "sqlite://")) if suffix == "sql" else ()
    add = ("data", "add", source, "--user-field", "patient", "--label-field", "kind", *database, "--home", home)
    for options in ((), ("--dry-run",), ("--dry-run", "--json")):
        shown = failed(*add, *options)
    assert "no column 'text'" in shown
    assert "it has 3 columns" in shown


def test_a_refresh_without_a_header_shows_nothing_of_its_rows(home, tmp_path):
    source = write_headless(tmp_path / "notes.csv", (["text", "kind", "patient"], *ROWS))
    command("data", "add", source, "--user-field", "patient", "--label-field", "kind", "--home", home)
    write_headless(source)
    assert "is its first row the header?" in failed("data", "refresh", "--home", home)


def test_workbook_sheet_names_are_counted_and_not_shown_in_an_error(home, tmp_path):
    book = pytest.importorskip("openpyxl").Workbook()
    for name in ("Mrs Quimby", "Quimby 4712"):
        book.create_sheet(name).append(["text"])
    book.save(tmp_path / "notes.xlsx")
    shown = failed("data", "add", tmp_path / "notes.xlsx", "--sheet", "Mrs Quim", "--dry-run", "--home", home)
    assert "sheet 2 of 3 has a similar name" in shown


def test_similar_column_name_is_proposed_in_a_file_without_header(home, tmp_path):
    source = write_headless(tmp_path / "notes.csv", (["Note Text", "kind", "patient"], *ROWS))
    assert "did you mean 'Note Text'?" in failed("data", "add", source, "--text-field", "note_text", "--home", home)
    assert "column 1 of 3 has a similar name" in failed(
        "data", "add", source, "--text-field", "notes text", "--home", home
    )
