import csv
import gzip
import json
import os
import sys

import pyarrow
import pyarrow.parquet
import pytest

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError
from undersong_common.text.table import concatenate, read_table

SECRET = "Mrs Quimby has a very particular rash"


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_csv_jsonl_and_parquet_give_the_same_rows(tmp_path, suffix):
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
        ([{"text": SECRET, "label": "x"}, {"note": SECRET, "label": "x"}], ":2: its text is empty"),
        ([{"note": SECRET, "label": "x"}], ":1: has no column 'text'"),
        ([{"text": SECRET, "label": "x"}, {"text": "  ", "label": "x"}], ":2: its text is empty"),
        ([{"text": SECRET, "label": "rash"}], ":1: its label is not in task.labels"),
        ([{"text": SECRET, "label": None}], ":1: the label column"),
        ([], "has no rows"),
    ],
)
def test_faulty_row_is_refused_by_number_without_its_content(tmp_path, rows, words):
    path = write_jsonl(tmp_path / "data.jsonl", rows)
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_table(path, "text", "label", labels=["x", "y"])
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("text", ["\u200b", "\ufeff \u00ad", "\x00\x00", "\u2800\u3164", "\u2060\n\u00a0"])
def test_text_of_invisible_characters_counts_as_empty(tmp_path, text):
    path = write_jsonl(tmp_path / "data.jsonl", [{"text": SECRET}, {"text": text}])
    with pytest.raises(ConfigurationError, match=":2: its text is empty"):
        read_table(path, "text")
    assert read_table(write_jsonl(path, [{"text": f"{text}."}]), "text").texts == (f"{text}.",)


def test_undecodable_file_is_refused_without_its_content(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"text": "ok", "label": "x"}\n{"text": "' + SECRET.encode() + b'\xff"}\n')
    with pytest.raises(ConfigurationError, match="line 2 is not UTF-8") as caught:
        read_table(path, "text", "label")
    assert SECRET not in repr(caught.value.__context__) or caught.value.__suppress_context__


def test_user_ids_of_two_types_are_one_user(tmp_path):
    path = write_jsonl(tmp_path / "data.jsonl", [{"text": "a", "user": user} for user in (7, "7", 7.0)])
    assert read_table(path, "text", None, "user").users == ("7", "7", "7")


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
def test_malformed_table_files_are_refused_naming_them(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=words):
        read_table(path, "text")


def test_repr_of_a_table_shows_counts_only(tmp_path):
    table = read_table(write_jsonl(tmp_path / "data.jsonl", [{"text": SECRET}]), "text")
    assert repr(concatenate([table, table])) == "Table(rows=2)"


ROWS = [("Ärztin, Wien; 3. Stock", "x", "7"), ("zweite\tNotiz", "y", "8")]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "delimiter"), [("a.csv", ","), ("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", "\t"), ("A.CSV", ";")]
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16"])
def test_csv_is_read_by_its_header_s_separator_and_its_encoding(tmp_path, name, delimiter, encoding):
    path = tmp_path / name
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows([("text", "label", "patient"), *ROWS])
    named = encoding if encoding in ("latin-1", "cp1252") else "utf-8"  # the others say themselves what they are
    table = read_table(path, "text", "label", "patient", encoding=named)
    assert list(zip(table.texts, table.labels, table.users, strict=True)) == ROWS


def test_file_that_is_not_utf_8_is_refused_with_line_and_encoding_option(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(("text;label\n" + SECRET + ";x\nÄrztin;y\n").encode("latin-1"))
    with pytest.raises(ConfigurationError, match="line 3 is not UTF-8") as caught:
        read_table(path, "text")
    assert "--encoding latin-1" in caught.value.remedy
    with raises(ConfigurationError, "unknown-encoding"):
        read_table(path, "text", encoding="klingon")
    with raises(ConfigurationError, "other-encoding"):
        read_table(path, "text", encoding="ascii")


def test_row_with_an_unquoted_separator_is_refused_without_its_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"text;label\n{SECRET}; again;x\n")
    with raises(ConfigurationError, "field-count") as caught:
        read_table(path, "text")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("name", "remedy"), [("a.xls", "save it as .xlsx"), ("a.json", ".jsonl"), ("a.zip", "unpack")])
def test_unsupported_file_type_is_refused_with_its_remedy(tmp_path, name, remedy):
    (tmp_path / name).write_bytes(b"x")
    with raises(ConfigurationError, "unknown-file-type") as caught:
        read_table(tmp_path / name, "text")
    assert remedy in caught.value.remedy


def workbook(path, *sheets):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for number, rows in enumerate(sheets):
        sheet = book.create_sheet(f"sheet {number}")
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def test_a_workbook_reads_as_a_csv_file_does(tmp_path):
    header = ("text", "label", "patient", None)
    path = workbook(tmp_path / "a.xlsx", [header, (ROWS[0][0], "x", 7), (None, None, None), (ROWS[1][0], "y", 8)], [])
    table = read_table(path, "text", "label", "patient")
    assert list(zip(table.texts, table.labels, table.users, strict=True)) == ROWS
    two = workbook(tmp_path / "two.xlsx", [header], [header])
    with raises(ConfigurationError, "several-sheets") as caught:
        read_table(two, "text")
    assert f"{two}: has 2 filled sheets: sheet 1" in str(caught.value)
    (tmp_path / "bad.xlsx").write_text(SECRET)
    with raises(ConfigurationError, "no-workbook") as caught:
        read_table(tmp_path / "bad.xlsx", "text")
    assert SECRET not in str(caught.value)


def test_without_the_extra_a_workbook_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with raises(ConfigurationError, "no-package") as caught:
        read_table(tmp_path / "a.xlsx", "text")
    assert caught.value.problem.startswith(f"{tmp_path / 'a.xlsx'}: ")
    assert 'undersong[xlsx]", or save the file as CSV' in caught.value.remedy


def test_a_workbook_that_inflates_too_far_is_refused_by_name(tmp_path, monkeypatch):
    openpyxl = pytest.importorskip("openpyxl")
    path, book = tmp_path / "notes.xlsx", openpyxl.Workbook()
    for text in ("text", *(SECRET * 100 for _ in range(30))):
        book.active.append([text])
    book.save(path)
    assert len(read_table(path, "text")) == 30
    monkeypatch.setattr("undersong_common.text.row_files.INFLATED_BYTES", 1000)
    monkeypatch.setattr("undersong_common.text.row_files.INFLATION", 1)
    with raises(ConfigurationError, "no-workbook"):
        read_table(path, "text")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("deep.jsonl", b'{"text": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "line 1 is not JSON"),
        ("zeros.jsonl.gz", gzip.compress(bytes(200_000)), "100 times its size"),
    ],
    ids=["deep", "inflating"],  # a test's name with the time in gzip's header would differ between pytest's processes
)
def test_a_file_that_nests_or_inflates_too_far_is_refused_by_name(tmp_path, monkeypatch, name, content, words):
    monkeypatch.setattr("undersong_common.text.row_files.INFLATED_BYTES", 1000)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=words):
        read_table(tmp_path / name, "text")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", "text,label\nnote,x\n"), ("a.jsonl", '{"text": "note", "label": "x"}\n')]
)
@pytest.mark.parametrize("named", ["utf-8", "latin-1"])
def test_utf_16_without_byte_order_mark_is_refused_naming_its_encoding(tmp_path, encoding, name, content, named):
    (tmp_path / name).write_bytes(content.encode(encoding))
    with raises(ConfigurationError, "other-encoding") as refused:
        read_table(tmp_path / name, "text", encoding=named)
    assert f"--encoding {encoding}" in refused.value.remedy
    assert read_table(tmp_path / name, "text", "label", encoding=encoding).texts == ("note",)


def test_text_with_few_null_characters_is_no_utf_16(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text\na\0b\0c\0d\0\n")
    assert len(read_table(tmp_path / "a.csv", "text")) == 1


@pytest.mark.parametrize("written", ["cp1252", "mac-roman"])
def test_windows_or_mac_text_is_not_read_as_latin_1(tmp_path, written):
    path = tmp_path / "a.csv"
    path.write_bytes("text\nplain\n\u201e\u00c4rztin\u201c \u2013 Wien\n".encode(written))
    with raises(ConfigurationError, "other-encoding") as refused:
        read_table(path, "text", encoding="latin-1")
    assert "line 3 " in refused.value.problem
    assert "--encoding cp1252 (Windows) or mac-roman" in refused.value.remedy
    assert read_table(path, "text", encoding=written).texts[1] == "\u201e\u00c4rztin\u201c \u2013 Wien"


def test_latin_1_with_the_line_end_of_mainframes_is_read(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text\none\x85two\n")
    assert read_table(tmp_path / "a.csv", "text", encoding="latin-1").texts == ("one\x85two",)


def test_labels_that_look_alike_are_read_as_one_label(tmp_path):
    labels = ["caf\u00e9 au lait", "cafe\u0301 au lait", "caf\u00e9\u200b au\u00a0lait", " caf\u00e9  au\nlait\ufeff"]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "note", "label": label} for label in labels])
    assert set(read_table(path, "text", "label", labels=[labels[0]]).labels) == {labels[0]}


def test_attribute_values_that_look_alike_are_read_as_one(tmp_path):
    values = ["M\u00e4nnlich x", " Ma\u0308nnlich\u00a0x", "M\u00e4nn\u00adlich  x"]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "note", "sex": value} for value in values])
    assert set(read_table(path, "text", columns={"sex": "sex"}).columns["sex"]) == {values[0]}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (("text", "text", None), "as the text column and as the label column"),
        (("text", "label", "label"), "as the label column and as the user column"),
        (("text", None, "text"), "as the text column and as the user column"),
    ],
)
def test_column_of_texts_or_patients_in_a_second_role_is_refused(tmp_path, columns, words):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": SECRET, "label": "x"}])
    with raises(ConfigurationError, "column-of-two-roles") as refused:
        read_table(path, *columns)
    assert words in refused.value.problem
    assert SECRET not in str(refused.value)


def test_label_column_may_also_be_an_attribute(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": SECRET, "label": "x"}])
    assert read_table(path, "text", "label", columns={"ward": "label"}).columns == {"ward": ("x",)}
    with raises(ConfigurationError, "column-of-two-roles"):
        read_table(path, "text", "label", columns={"ward": "text"})


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.csv.gz", "a.xlsx"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipe_or_device_is_refused_and_not_waited_for(tmp_path, name, kind):
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    with raises(ConfigurationError, "unreadable-source") as refused:
        read_table(tmp_path / name, "text")
    assert "is a pipe or a device" in refused.value.problem
