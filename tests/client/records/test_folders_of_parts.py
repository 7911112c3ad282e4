"""Folders whose files are the parts of one table, as Spark and others write them."""

import gzip
import json
from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest

from tests.doubles.coded import raises
from undersong_client.home import Declared
from undersong_client.records import sources
from undersong_common.errors import ConfigurationError

FIELDS = {"text_field": "text", "label_field": "kind", "user_field": "patient"}
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def row(number, **more):
    return {"text": f"note {number}", "kind": "A", "patient": number, **more}


@pytest.fixture
def folder(tmp_path):
    """The folder of a job by Spark, with its marker and checksums."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "_SUCCESS").touch()
    (tmp_path / "out" / "._SUCCESS.crc").touch()
    (tmp_path / "out" / ".part-00000.crc").write_bytes(b"crc")
    return tmp_path / "out"


def read_folder(folder, **choices):
    return sources.read(Declared(str(folder), **FIELDS, **choices))


@pytest.mark.parametrize("suffix", ["json", "jsonl", "ndjson", "json.gz", "jsonl.gz"])
def test_part_files_in_json_lines_are_read_as_one_table(folder, suffix):
    parts = [[row(1), row(2)], [], [row(1)], [{"text": "note 3", "patient": 3}, row(4)]]
    for number, rows in enumerate(parts):
        content = lines(rows)
        packed = gzip.compress(content) if suffix.endswith("gz") else content
        (folder / f"part-{number:05}-0f2c.c000.{suffix}").write_bytes(packed)
    reading = sources.read(Declared(str(folder), **FIELDS), dry=True)
    assert reading.table.users == ("1", "2", "1", "4")
    (skipped,) = reading.skipped
    assert skipped.where.endswith(f"part-00003-0f2c.c000.{suffix}:1")


def test_declared_column_that_no_part_of_a_folder_has_is_refused(folder):
    for number in range(2):
        (folder / f"part-{number}.json").write_bytes(lines([row(number)]))
    with raises(ConfigurationError, "no-column") as caught:
        sources.read(replace(Declared(str(folder), **FIELDS), text_field="letter"))
    assert str(folder) in caught.value.problem


def test_a_key_that_a_part_leaves_out_is_missing(folder):
    (folder / "part-0.json").write_bytes(lines([row(1)]))
    (folder / "part-1.json").write_bytes(lines([{"kind": "A", "patient": 2}]))
    reading = read_folder(folder)
    assert (len(reading.table), reading.empty) == (1, 1)


@pytest.mark.parametrize("suffix", ["json", "ndjson"])
def test_folder_of_fhir_resources_is_not_read_as_a_table(folder, suffix):
    resource = {"resourceType": "Patient", "id": "1"}
    (folder / f"a.{suffix}").write_bytes(lines([resource]))
    if suffix == "ndjson":
        assert {skipped.cause for skipped in read_folder(folder).skipped} == {"resource"}
    else:
        with raises(ConfigurationError, "no-ndjson"):
            read_folder(folder)


def test_json_over_several_lines_is_refused_with_a_remedy(folder):
    (folder / "a.ndjson").write_text(json.dumps({"resourceType": "Bundle", "entry": []}, indent=2))
    with raises(ConfigurationError, "no-json") as caught:
        read_folder(folder)
    assert caught.value.remedy == "write one JSON object a line"


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_values_in_names_of_folders_are_columns_and_are_not_shown(folder, suffix):
    for name in ("kind=A%20b/patient=4711", "kind=A%20b/patient=0815", f"kind=B/patient={HIVE_NULL}"):
        (folder / name).mkdir(parents=True)
        part = folder / name / f"part-0.{suffix}"
        match suffix:
            case "parquet":
                pyarrow.parquet.write_table(pyarrow.table({"text": [f"note {name[:6]}"]}), part)
            case "csv":
                part.write_text("text\nnote\n")
            case "json":
                part.write_bytes(lines([{"text": "note"}]))
    reading = sources.read(Declared(str(folder), **FIELDS), dry=True)
    assert sorted(zip(reading.table.users, reading.table.labels, strict=True)) == [("0815", "A b"), ("4711", "A b")]
    (skipped,) = reading.skipped
    assert skipped.where.startswith(f"{folder}/kind=(folder 2 of 2)/patient=(folder 1 of 1)/part-0.{suffix}")
    with raises(ConfigurationError, "no-column") as caught:
        sources.read(replace(Declared(str(folder), **FIELDS), text_field="letter"), dry=True)
    assert "kind=(folder 1 of 2)/patient=(folder 1 of 2)" in str(caught.value) or suffix == "json"
    assert "4711" not in str(caught.value)
    assert "0815" not in str(caught.value)


def test_skipped_rows_of_two_folders_are_named_with_their_folders(folder):
    for name in ("jahr=2019", "jahr=2020", "jahr=2021"):
        (folder / name).mkdir(parents=True)
        (folder / name / "part-0.csv").write_text('text\n" "\nnote\n')
    reading = sources.read(Declared(str(folder)), dry=True)
    places = [row.where.removeprefix(f"{folder}/") for row in reading.skipped]
    assert places == [f"jahr=(folder {number} of 3)/part-0.csv: row 1" for number in (1, 2, 3)]
