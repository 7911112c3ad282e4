import json

import pyarrow
import pyarrow.parquet
import pytest

from undersong_common.errors import ConfigurationError
from undersong_common.table import concatenate, read_table

SECRET = "Mrs Quimby has a very particular rash"


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_the_three_formats_read_alike(tmp_path, suffix):
    rows = [
        {"text": 'a "note"\nwith, commas', "label": "x", "patient": "p1"},
        {"text": "é", "label": "y", "patient": "p2"},
    ]
    path = tmp_path / f"data{suffix}"
    if suffix == ".jsonl":
        write_jsonl(path, rows)
    elif suffix == ".csv":
        path.write_text('text,label,patient\n"a ""note""\nwith, commas",x,p1\né,y,p2\n', encoding="utf-8")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    table = read_table(path, "text", "label", "patient")
    assert table.texts == tuple(row["text"] for row in rows)
    assert table.labels == ("x", "y")
    assert table.users == ("p1", "p2")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"text": SECRET, "label": "x"}, {"note": SECRET, "label": "x"}], "row 2: has no column 'text'"),
        ([{"text": SECRET, "label": "x"}, {"text": "  ", "label": "x"}], "row 2: the text column 'text' is empty"),
        ([{"text": SECRET, "label": "rash"}], "row 1: its label is not in task.labels"),
        ([{"text": SECRET, "label": None}], "row 1: the label column"),
        ([], "has no rows"),
    ],
)
def test_a_faulty_row_is_named_and_never_shown(tmp_path, rows, words):
    path = write_jsonl(tmp_path / "data.jsonl", rows)
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_table(path, "text", "label", labels=["x", "y"])
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_undecodable_file_is_named_without_its_content(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"text": "ok", "label": "x"}\n{"text": "' + SECRET.encode() + b'\xff"}\n')
    with pytest.raises(ConfigurationError, match="line 2 is not UTF-8") as caught:
        read_table(path, "text", "label")
    assert SECRET not in repr(caught.value.__context__) or caught.value.__suppress_context__


def test_user_ids_of_two_types_are_refused(tmp_path):
    path = write_jsonl(tmp_path / "data.jsonl", [{"text": "a", "user": 7}, {"text": "b", "user": "7"}])
    with pytest.raises(ConfigurationError, match="mixes numbers and text"):
        read_table(path, "text", None, "user")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data.txt", b"x", "unknown file type"),
        ("data.jsonl", b"{oops\n", "line 1 is not JSON"),
        ("data.jsonl", b"[1]\n", "line 1 is not a JSON object"),
        ("data.csv", b"text,label\na\n", "row 1 has not as many fields"),
        ("data.parquet", b"PAR", "not a readable Parquet"),
    ],
)
def test_malformed_files_are_named(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=words):
        read_table(path, "text")


def test_repr_shows_counts_only(tmp_path):
    table = read_table(write_jsonl(tmp_path / "data.jsonl", [{"text": SECRET}]), "text")
    assert repr(concatenate([table, table])) == "Table(rows=2)"
