"""Test files beside what generators read: the same file is refused, shared texts are warned of, and lists show both."""

import json
import os
import shutil

import pytest

from tests.doubles.stream import make_home
from tests.doubles.tasks import JUDGED, make_task, write_rows
from undersong_common.errors import ConfigurationError
from undersong_server.operations import drafts, permissions, tasks
from undersong_server.runs.held_out import same_file_faults, shared_text_warnings
from undersong_server.runs.task import load


def judged_task(folder, **generator):
    task_file = make_task(folder, evaluation=JUDGED)
    text = task_file.read_text()
    for old, new in generator.items():
        text = text.replace(f"{old}.jsonl", new)
    task_file.write_text(text)
    return task_file


@pytest.mark.parametrize("way", ["the file", "a link", "a copy", "a detour"])
def test_a_generator_that_reads_the_test_file_is_refused(tmp_path, way):
    names = {
        "the file": "test.jsonl",
        "a link": "link.jsonl",
        "a copy": "copy.jsonl",
        "a detour": "private/../test.jsonl",
    }
    task_file = judged_task(tmp_path, poor=names[way])
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "test.jsonl")
    shutil.copy(tmp_path / "test.jsonl", tmp_path / "copy.jsonl")
    ((problem, remedy, place),) = same_file_faults(load(task_file))
    assert "generator poor" in problem
    assert "choose other public texts" in remedy
    assert place == "generators.1.corpus"
    with pytest.raises(ConfigurationError, match=r"evaluation\.test"):
        tasks.plan(task_file, environment={})


@pytest.mark.parametrize(("shared", "is_warned"), [(0, False), (1, False), (2, True), (20, True)])
def test_plan_warns_of_texts_that_generator_and_test_file_share(tmp_path, shared, is_warned):
    task_file = judged_task(tmp_path)
    test_rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    assert len(test_rows) == 20
    with (tmp_path / "poor.jsonl").open("a") as corpus:
        for row in test_rows[:shared]:
            corpus.write(json.dumps({**row, "text": f"  {row['text'].upper()}"}) + "\n")
    warnings = list(shared_text_warnings(load(task_file)))
    assert [f"generator poor: poor.jsonl holds {shared} of the 20 texts" in words for words in warnings] == (
        [True] * is_warned
    )
    assert not list(same_file_faults(load(task_file)))
    weak = tasks.plan(task_file, environment={}).figures.weak
    assert any("the score flatters" in words for words in weak) is is_warned


def test_shared_texts_are_found_under_any_text_column_name(tmp_path):
    task_file = make_task(tmp_path, evaluation=JUDGED, data={"text": "note"})
    test_rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    write_rows(tmp_path / "test.jsonl", [{"note": row["text"], "label": row["label"]} for row in test_rows])
    assert not list(shared_text_warnings(load(task_file)))
    write_rows(tmp_path / "poor.jsonl", test_rows)  # a corpus has the columns text and label
    (warning,) = shared_text_warnings(load(task_file))
    assert "poor.jsonl holds 20 of the 20 texts" in warning


def test_shared_texts_are_checked_again_in_a_rewritten_file_of_equal_size(tmp_path):
    task_file = judged_task(tmp_path)
    test_rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    corpus, task, sizes = tmp_path / "poor.jsonl", load(task_file), []
    for texts, is_warned in (
        (["?" * len(row["text"]) for row in test_rows], False),
        ([row["text"] for row in test_rows], True),
    ):
        corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        os.utime(corpus, (len(sizes), len(sizes)))
        sizes.append(corpus.stat().st_size)
        assert bool(list(shared_text_warnings(task))) is is_warned
    assert sizes[0] == sizes[1]


def test_task_without_a_test_file_has_no_shared_text_warning(tmp_path):
    task = load(make_task(tmp_path))
    assert not list(same_file_faults(task))
    assert not list(shared_text_warnings(task))


def test_offered_files_state_size_rows_and_the_task_that_tests_with_them(tmp_path):
    judged_task(tmp_path)
    (tmp_path / "table.csv").write_text('text,label\n"a note",a\n\nother,b\n')
    (tmp_path / "broken.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    test_files = permissions.files_of_tests([tmp_path])
    words = {path.name: permissions.file_words(path, test_files) for path in permissions.public_files([tmp_path])}
    assert words["good.jsonl"].startswith("120 rows, ")
    assert words["good.jsonl"].endswith(" kB")
    assert words["test.jsonl"].startswith("20 rows, ")
    assert words["test.jsonl"].endswith(", test file of task.toml")
    assert words["table.csv"] == "2 rows, 31 bytes"
    assert words["broken.jsonl"] == ""


@pytest.mark.parametrize(("corpus", "is_warned"), [("test.jsonl", True), ("good.jsonl", False)])
def test_draft_is_warned_when_a_corpus_is_another_tasks_test_file(tmp_path, corpus, is_warned):
    judged_task(tmp_path)
    draft = drafts.from_template(make_home(tmp_path / "home", ()).path, "classification", (tmp_path,))
    draft = drafts.add_table(draft, "generators", "ngram")
    draft.data["generators"][0]["corpus"] = corpus
    warnings = permissions.test_file_warnings(draft, [tmp_path])
    assert [f"ngram-1 would read {corpus}, the test file of task.toml" in words for words in warnings] == (
        [True] * is_warned
    )
