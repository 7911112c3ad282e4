import errno
import json
import os
import re
from collections import Counter
from dataclasses import fields, replace

import pyarrow.parquet
import pytest

from tests.doubles.coded import raises
from tests.doubles.corpora import write_corpus
from undersong_common.errors import ConfigurationError, MachineFault
from undersong_server.generators.author import AuthorUsage
from undersong_server.pool import RESERVED_COLUMNS, Origin, Sample
from undersong_server.release.files import OUTPUT_NAMES, PURPOSES, charges, lineage
from undersong_server.release.rounds import RoundFigure
from undersong_server.report.data import FEWER, GeneratorUse
from undersong_server.report.usefulness import table_of

SAMPLES = [
    Sample('He said "no"\nand left', "chest", "good", 0, "zero_shot"),
    Sample("Ärztin – 患者 \u2028 🙂", "", "mixed", 3, "contrast"),
]


def test_both_corpus_formats_hold_every_sample(tmp_path):
    jsonl, parquet = write_corpus(tmp_path / "a" / "b", SAMPLES)
    rows = [json.loads(line) for line in jsonl.read_text(encoding="utf-8").split("\n")[:-1]]
    assert rows == pyarrow.parquet.read_table(parquet).to_pylist()
    assert rows[1] == {
        "text": SAMPLES[1].text,
        "label": "",
        "generator": "mixed",
        "round": 3,
        "prompt_kind": "contrast",
    }
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["synthetic.jsonl", "synthetic.parquet"]


def test_attributes_are_columns_in_the_order_of_the_samples(tmp_path):
    names = [f"trait {number}" for number in (3, 1, 4, 0, 5, 9, 2, 6)]
    sample = Sample("a note", "chest", "good", 0, "metadata", tuple((name, "x") for name in names))
    jsonl, parquet = write_corpus(tmp_path, [sample])
    assert list(json.loads(jsonl.read_text())) == [*RESERVED_COLUMNS, *names]
    assert pyarrow.parquet.read_table(parquet).column_names == [*RESERVED_COLUMNS, *names]
    assert list(table_of([sample]).columns) == names


def test_same_samples_give_the_same_corpus_bytes(tmp_path):
    first = [path.read_bytes() for path in write_corpus(tmp_path / "1", SAMPLES)]
    assert first == [path.read_bytes() for path in write_corpus(tmp_path / "2", SAMPLES)]


def test_corpus_without_rows_and_text_with_a_lone_surrogate_are_written(tmp_path):
    jsonl, parquet = write_corpus(tmp_path, [])
    assert jsonl.read_bytes() == b""
    assert pyarrow.parquet.read_table(parquet).column_names == list(RESERVED_COLUMNS)
    jsonl, parquet = write_corpus(tmp_path, [Sample("half \ud83d emoji", "a", "g", 0, "k")])
    assert json.loads(jsonl.read_text())["text"] == pyarrow.parquet.read_table(parquet)["text"][0].as_py()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_leaves_the_published_files_unchanged(tmp_path, monkeypatch, failing, code):
    write_corpus(tmp_path, SAMPLES[:1])
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

    def full(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, failing, full)
    with raises(MachineFault, errno.errorcode[code].lower()) as caught:
        write_corpus(tmp_path, SAMPLES)
    assert str(tmp_path) in str(caught.value)
    assert "output.dir" in caught.value.remedy
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


def test_every_published_file_has_a_stated_purpose():
    assert set(PURPOSES) == set(OUTPUT_NAMES)
    assert all(PURPOSES.values())


def test_card_explains_every_column_of_the_csv_and_jsonl_files():
    text = Sample("a text", "a", "one", 0, "zero_shot")
    shown = replace(text, text="shown")
    origins = (Origin(shown), Origin(text, good=("shown",)))
    lineage_keys = {key for line in lineage((text,), origins).splitlines() for key in json.loads(line)}
    columns = {"lineage.jsonl": lineage_keys, "rounds.csv": {field.name for field in fields(RoundFigure)}}
    columns["rounds.csv"] |= {"texts", "weight"}
    columns["set-aside.jsonl"] = {"reason"}
    assert "text" in lineage_keys  # of a text that a prompt showed
    for name, names in columns.items():
        assert [column for column in names if not re.search(rf"\b{column}\b", PURPOSES[name])] == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with raises(ConfigurationError, "folder-unwritable"):
        write_corpus(tmp_path / "file" / "run", SAMPLES)


def test_generator_notes_count_prompts_that_showed_fewer_examples():
    used = AuthorUsage(calls=3, fewer_examples=2, notes=Counter({"repeat": 1}))
    assert GeneratorUse("far", "openai", used).notes == [f"{FEWER}: 2", "repeat: 1"]
    assert GeneratorUse("far", "openai", AuthorUsage(calls=3)).notes == []


@pytest.mark.parametrize(
    "manifest",
    [
        *({}, {"receipts": []}, {"receipts": {"a": 1}}, {"receipts": {"a": {}}}, {"receipts": {"a": {"body": 3}}}),
        *({"receipts": {"a": {"body": each}}} for each in ("{", "[]", "{}", '{"entries": 3}', '{"entries": ["x"]}')),
        {"receipts": {"a": {"body": '{"entries": [], "entries": [{"party": "b"}]}'}}},
    ],
)
def test_error_for_unreadable_receipts_names_the_manifest_file(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with raises(ConfigurationError, "receipts-unreadable") as caught:
        charges(tmp_path)
    assert str(tmp_path / "manifest.json") in caught.value.problem


def test_published_charges_name_the_party_of_each_receipt(tmp_path):
    body = json.dumps({"entries": [{"party": "another", "query": "votes"}]})
    (tmp_path / "manifest.json").write_text(json.dumps({"receipts": {"alpha": {"body": body}}}))
    assert charges(tmp_path) == [{"party": "alpha", "query": "votes"}]
