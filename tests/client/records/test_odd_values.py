"""Values that no parser expects, in every kind of column: a row is read, or refused by name, and never a bug."""

import contextlib
import copy
import datetime
import decimal
import json
import sqlite3

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.client.records.test_sources import attachment, document, url_file, write_lines
from tests.doubles.coded import raises
from tests.doubles.pace import slow_after
from undersong_client.home import Declared
from undersong_client.records import sources
from undersong_common.errors import ConfigurationError

GOOD = {"text": "a note", "label": "A", "patient": "7", "age": "4"}
FIELDS = {"label_field": "label", "user_field": "patient", "attribute_fields": {"age": "age"}}
TOO_MANY_DIGITS = "1" + "0" * 5000  # more than Python reads as a number
ODD_JSON = (
    r'"\ud800"', r'"x\udc80y"', r'"a\u0000b"', r'"\uffff"', r'"\ufdd0"', r'"\u001b[31m"', '""', "{}", "[]", "[[[]]]",
    "1" + "0" * 3000, TOO_MANY_DIGITS, "-1" + "0" * 350, "NaN", "Infinity", "1e400", "1.5", "true", "null",
    '{"a": {"b": 1}}', "[" * 900 + "]" * 900,
)  # fmt: skip


def check_reading(declared):
    """Reads a source in both ways; whatever is read can be written as UTF-8, and so can each reason."""
    for dry in (True, False):
        with contextlib.suppress(ConfigurationError):
            reading = sources.read(declared, dry=dry)
            words = [reading.table.labels, reading.table.users, list(reading.refusals)]
            json.dumps(words, ensure_ascii=False).encode()
            assert reading.rows == len(reading.table) + len(reading.skipped)


@pytest.mark.slow
@pytest.mark.parametrize("column", GOOD)
@pytest.mark.parametrize("value", ODD_JSON, ids=range(len(ODD_JSON)))
def test_unusual_json_values_are_read_or_refused_naming_the_row(tmp_path, column, value):
    row = {name: json.dumps(good) for name, good in GOOD.items()} | {column: value}
    (tmp_path / "a.jsonl").write_text("{" + ", ".join(f'"{name}": {text}' for name, text in row.items()) + "}\n")
    check_reading(Declared(str(tmp_path / "a.jsonl"), **FIELDS))


@pytest.mark.parametrize("column", ["label", "patient", "age"])
def test_half_a_surrogate_pair_is_refused_by_row_and_column(tmp_path, column):
    write_lines(tmp_path / "a.jsonl", [GOOD, GOOD | {column: "x\ud800"}])
    with raises(ConfigurationError, "refused-row") as refused:
        sources.read(Declared(str(tmp_path / "a.jsonl"), **FIELDS))
    assert f"a.jsonl:2: the {'user ' if column == 'patient' else ''}column {column!r}: half of" in refused.value.problem


def test_number_with_too_many_digits_is_refused_as_a_patient_id(tmp_path):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a note", "patient": {TOO_MANY_DIGITS}}}\n')
    with raises(ConfigurationError, "refused-row"):
        sources.read(Declared(str(tmp_path / "a.jsonl"), user_field="patient"))


ODD_ARROW = (
    pyarrow.array([datetime.date(9999, 12, 31)]),
    pyarrow.array([2**60], pyarrow.timestamp("us", tz="Europe/Berlin")),
    pyarrow.array([-(2**62)], pyarrow.timestamp("us")),
    pyarrow.array([2**62], pyarrow.duration("s")),
    pyarrow.array([decimal.Decimal("7.00")], pyarrow.decimal128(10, 2)),
    pyarrow.array([decimal.Decimal(10**60)], pyarrow.decimal256(76, 2)),
    pyarrow.array([b"\xff"]),
    pyarrow.array([b"\xff"]).view(pyarrow.string()),
    pyarrow.array(["a"], pyarrow.large_string()),
    pyarrow.array(["a"]).dictionary_encode(),
    pyarrow.array([2**64 - 1], pyarrow.uint64()),
    pyarrow.array([float("inf")]),
    pyarrow.array([True]),
    pyarrow.array([[1, 2]]),
    pyarrow.array([{"a": 1}]),
    pyarrow.array([[("a", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int32())),
    pyarrow.nulls(1),
)


@pytest.mark.slow
@pytest.mark.parametrize("column", GOOD)
@pytest.mark.parametrize("values", ODD_ARROW, ids=lambda values: str(values.type))
def test_unusual_parquet_columns_are_read_or_refused_naming_the_row(tmp_path, column, values):
    columns = {name: pyarrow.array([good]) for name, good in GOOD.items()} | {column: values}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    check_reading(Declared(str(tmp_path / "a.parquet"), **FIELDS))


@pytest.mark.slow
@pytest.mark.parametrize("column", GOOD)
@pytest.mark.parametrize("affinity", slow_after(["", "TEXT", "INTEGER", "REAL", "BLOB", "DATETIME"], 3))
def test_unusual_database_values_are_read_or_refused_naming_the_row(tmp_path, column, affinity):
    pytest.importorskip("sqlalchemy")
    (tmp_path / "a.sql").write_text("SELECT text, label, patient, age FROM note")
    file = tmp_path / "a.sqlite"
    url = url_file(tmp_path, f"sqlite:///{file}")
    for value in ("NULL", "9e999", "1.5", "x'ff'", "CAST(x'ff41' AS TEXT)", "CAST(x'eda080' AS TEXT)", "char(55296)"):
        file.unlink(missing_ok=True)
        values = {name: f"'{good}'" for name, good in GOOD.items()} | {column: value}
        with sqlite3.connect(file) as database:
            names = ", ".join(f"{name} {affinity if name == column else ''}" for name in GOOD)
            database.execute(f"CREATE TABLE note ({names})")
            database.execute(f"INSERT INTO note VALUES ({', '.join(values.values())})")
        check_reading(Declared(str(tmp_path / "a.sql"), database=url, **FIELDS))


ODD_OBJECTS = (
    "\ud800", "\0", 10**400, float("nan"), float("inf"), 1.5, 1j, True, None, b"x", [1], {1}, {"a": 1}, object(), type,
    np.datetime64("NaT"), np.datetime64("2020"), np.timedelta64(1, "D"), np.array([1, 2]), datetime.date(2020, 1, 1),
    decimal.Decimal("sNaN"), range(3),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("column", GOOD)
@pytest.mark.parametrize("value", ODD_OBJECTS, ids=range(len(ODD_OBJECTS)))
def test_unusual_objects_in_a_data_frame_are_read_or_refused(column, value):
    pandas = pytest.importorskip("pandas")
    from undersong.run.frames import rows_of, with_patient_ids

    values = np.empty(1, dtype=object)
    values[0] = value
    frame = pandas.DataFrame({name: [good] for name, good in GOOD.items()})
    frame = frame.assign(**{column: pandas.Series(values, dtype=object)})
    with contextlib.suppress(ConfigurationError):
        named = with_patient_ids(frame, "patient", "records")
        table = rows_of(named, "records", "text", "label", "patient", columns={"age": "age"})
        json.dumps([table.labels, table.users], ensure_ascii=False).encode()


def members(value, path=()):
    """Yields the path of every value inside a resource."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from members(value[key], (*path, key))


NOTE = document(
    1, {"contentType": "text/plain", "url": "Binary/1"}, meta={"lastUpdated": "2024-01-01", "versionId": "1"}
)
PATIENT = {
    "resourceType": "Patient",
    "id": "7",
    "identifier": [{"system": "s", "value": "1"}],
    "link": [{"type": "replaces", "other": {"reference": "Patient/8"}}],
}
BUNDLE = {"resourceType": "Bundle", "entry": [{"fullUrl": "urn:uuid:1", "resource": {**PATIENT, "id": "9"}}]}
EXPORT = (NOTE, PATIENT, BUNDLE, {"resourceType": "Binary", "id": "1", **attachment("text/plain", b"words")})
ODD_MEMBERS: tuple[object, ...] = (
    "\ud800",
    "Patient/\ud800",
    "Patient?identifier=%ff|\ud800",
    10**400,
    float("nan"),
    True,
    [],
    {"a": {}},
    "\0",
)


@pytest.mark.slow
@pytest.mark.parametrize("number", slow_after(range(len(EXPORT)), 2))
def test_unusual_members_of_a_fhir_resource_are_read_or_named_as_skipped(tmp_path, number):
    for path in members(EXPORT[number]):
        for value in ODD_MEMBERS:
            rows = copy.deepcopy(list(EXPORT))
            holder = rows[number]
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
            write_lines(tmp_path / "all.ndjson", rows)
            check_reading(Declared(str(tmp_path), user_field="patient", label_field="type"))
