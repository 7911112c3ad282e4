"""Columns with a dot in their names: a key of that name, or else a value inside another one, and never either."""

import csv
import json
import sqlite3
from dataclasses import replace

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

from tests.doubles.coded import raises
from undersong_client.home import Declared
from undersong_client.records import sources
from undersong_common.errors import ConfigurationError
from undersong_common.text.table import read_table

FIELDS = {"text_field": "note.body", "label_field": "", "user_field": "pat.no"}
PASS_ON = "cat"  # a filter that writes what it reads
FLAT = [{"note.body": "a note", "pat.no": 1}, {"note.body": "another", "pat.no": 2}]
NESTED = [{"note": {"body": "a note"}, "pat": {"no": 1}}, {"note": {"body": "another"}, "pat": {"no": 2}}]


def declare_rows(folder, rows):
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Declared(str(folder / "a.jsonl"), **FIELDS)


def write_csv(folder, rows):
    with (folder / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return Declared(str(folder / "a.csv"), **FIELDS)


def write_workbook(folder, rows):
    book = openpyxl.Workbook()
    for values in (list(rows[0]), *(list(row.values()) for row in rows)):
        book.active.append(values)
    book.save(folder / "a.xlsx")
    return Declared(str(folder / "a.xlsx"), **FIELDS)


def write_parquet(folder, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "a.parquet")
    return Declared(str(folder / "a.parquet"), **FIELDS)


def write_database(folder, rows):
    with sqlite3.connect(folder / "a.sqlite") as database:
        database.execute('CREATE TABLE notes ("note.body" TEXT, "pat.no" INT)')
        database.executemany("INSERT INTO notes VALUES (?, ?)", [tuple(row.values()) for row in rows])
    (folder / "url.txt").write_text(f"sqlite:///{folder / 'a.sqlite'}")
    (folder / "url.txt").chmod(0o600)
    (folder / "a.sql").write_text('SELECT "note.body", "pat.no" FROM notes')
    return Declared(str(folder / "a.sql"), **FIELDS, database=str(folder / "url.txt"))


def through_a_filter(folder, rows):
    declared = declare_rows(folder, rows)
    return Declared(declared.data, **FIELDS, row_filter=PASS_ON)


KEYS_AND_VALUES = (declare_rows, write_parquet, through_a_filter)


@pytest.mark.parametrize("write", [*KEYS_AND_VALUES, write_csv, write_workbook, write_database])
def test_a_key_with_a_dot_is_read_in_every_source(tmp_path, write):
    table = sources.read(write(tmp_path, FLAT)).table
    assert (table.texts, table.users) == (("a note", "another"), ("1", "2"))


@pytest.mark.parametrize("write", KEYS_AND_VALUES)
def test_value_of_a_nested_key_is_read_from_every_source(tmp_path, write):
    table = sources.read(write(tmp_path, NESTED)).table
    assert (table.texts, table.users) == (("a note", "another"), ("1", "2"))


@pytest.mark.parametrize("write", KEYS_AND_VALUES)
@pytest.mark.parametrize("also", [{"note": {"author": "x"}}, {"note": "x", "pat": None}, {"note": [{"author": "x"}]}])
def test_a_key_with_a_dot_is_read_beside_other_values(tmp_path, write, also):
    table = sources.read(write(tmp_path, [{**row, **also} for row in FLAT])).table
    assert table.texts == ("a note", "another")


@pytest.mark.parametrize("write", KEYS_AND_VALUES)
@pytest.mark.parametrize("inner", [{"body": "Zebedee"}, {"body": None, "x": 1}, [{"body": "Zebedee"}]])
def test_source_with_a_flat_and_a_nested_column_is_refused(tmp_path, write, inner):
    with raises(ConfigurationError, "name-twice") as caught:
        sources.read(write(tmp_path, [{**row, "note": inner} for row in FLAT]))
    assert "'note.body' and as 'body' in 'note'" in caught.value.problem
    assert "Zebedee" not in str(caught.value)


@pytest.mark.parametrize("write", [declare_rows, through_a_filter])
def test_rows_that_mix_flat_and_nested_columns_are_refused(tmp_path, write):
    with raises(ConfigurationError, "name-twice"):
        sources.read(write(tmp_path, [FLAT[0], NESTED[1]]))


def test_a_key_with_a_dot_that_a_row_leaves_out_is_missing(tmp_path):
    reading = sources.read(declare_rows(tmp_path, [*FLAT, {"pat.no": 3}]))
    assert (len(reading.table), reading.empty) == (2, 1)


def test_nested_key_that_stands_twice_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"note": [{"body": "x", "body": "y"}], "pat": {"no": 1}}\n')
    with raises(ConfigurationError, "name-twice"):
        sources.read(Declared(str(tmp_path / "a.jsonl"), **FIELDS))


def test_public_table_reads_nested_values_too(tmp_path):
    declare_rows(tmp_path, NESTED)
    assert read_table(tmp_path / "a.jsonl", "note.body", user="pat.no").users == ("1", "2")


def test_nested_path_may_contain_keys_with_dots(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"note.body": {"text": "x"}}\n')
    assert read_table(tmp_path / "a.jsonl", "note.body.text").texts == ("x",)


@pytest.mark.parametrize("write", KEYS_AND_VALUES)
def test_one_value_in_a_list_is_read_and_a_row_with_several_is_refused(tmp_path, write):
    ids = [["4711"], ["99", "4711"], ["4711", "99"], ["4711", "4711"]]
    rows = [
        {"note": {"body": f"note {number}"}, "pat": [{"no": value} for value in values]}
        for number, values in enumerate(ids)
    ]
    reading = sources.read(write(tmp_path, rows), dry=True)
    assert (reading.table.texts, set(reading.table.users)) == (("note 0", "note 3"), {"4711"})
    assert [skipped.where[-1:] for skipped in reading.skipped] == ["2", "3"]
    assert {skipped.why for skipped in reading.skipped} == {"the user column 'pat.no': a list is no id"}


def test_row_with_several_texts_is_skipped_and_counted_as_lost(tmp_path):
    rows = [{"note": [{"body": "one"}, {"body": "two"}], "pat": {"no": 1}}]
    reading = sources.read(declare_rows(tmp_path, rows))
    assert (len(reading.table), reading.lost) == (0, 1)


def test_first_of_several_labels_or_attribute_values_of_a_row_counts(tmp_path):
    row = {"note": {"body": "x"}, "pat": {"no": 1}, "codes": [{"code": "A"}, {"code": "B"}]}
    declared = replace(declare_rows(tmp_path, [row]), label_field="codes.code", attribute_fields={"code": "codes.code"})
    table = sources.read(declared).table
    assert (table.labels, table.columns) == (("A",), {"code": ("A",)})


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_repeated_header_among_the_rows_is_skipped(tmp_path, mark):
    (tmp_path / "a.csv").write_text(f"pat.no,note.body\n1,a note\n{mark}pat.no,note.body\n2,another\n")
    reading = sources.read(Declared(str(tmp_path / "a.csv"), **FIELDS))
    assert (reading.table.texts, reading.lost) == (("a note", "another"), 1)
    assert reading.skipped[0].why == "it repeats the header"
