"""Files that carry other labels than their task states: a warning with the file's labels, in plan and on the form."""

import json

import pytest

from tests.doubles.tasks import JUDGED, LABELS, make_task, write_rows
from undersong_server.operations import tasks
from undersong_server.runs.file_labels import MOST_LABELS, label_warnings, other_labels, task_files
from undersong_server.runs.task import load

KITCHEN, GARDEN = LABELS


def rows_of(labels):
    return [{"text": f"text {number} of {label}", "label": label} for label in labels for number in range(3)]


@pytest.mark.parametrize(
    ("labels", "is_warned"),
    [
        ((KITCHEN, GARDEN), False),
        ((KITCHEN,), False),  # another generator may have the rest
        ((KITCHEN, GARDEN, "attic"), False),  # the task may need fewer labels than the file has
        ((KITCHEN.title(), GARDEN), True),
        (("attic", "cellar"), True),
    ],
)
def test_plan_warns_of_a_generator_file_with_other_labels(tmp_path, labels, is_warned):
    task_file = make_task(tmp_path)
    write_rows(tmp_path / "poor.jsonl", rows_of(labels))
    assert bool(list(label_warnings(load(task_file)))) is is_warned
    figures = tasks.plan(task_file, environment={}).figures
    assert [words.startswith("poor.jsonl has other labels") for words in figures.other_labels] == [True] * is_warned
    choices = figures.to_json().get("weak_choices", [])
    file_labels = json.dumps(sorted(labels))
    assert any(f"--set 'task.labels={file_labels}'" in words for words in choices) is is_warned


@pytest.mark.parametrize(("labels", "is_warned"), [((KITCHEN,), False), ((KITCHEN, "attic"), True)])
def test_plan_warns_of_each_test_file_label_that_the_task_lacks(tmp_path, labels, is_warned):
    task_file = make_task(tmp_path, evaluation=JUDGED)
    write_rows(tmp_path / "test.jsonl", rows_of(labels))
    task = load(task_file)
    differences = list(other_labels(task_files(task), task.task.labels))
    assert [difference.file.key for difference in differences] == ["evaluation.test"] * is_warned
    assert all("before any hospital is asked" in difference.words for difference in differences)


def test_plan_of_a_task_without_labels_has_no_label_warning(tmp_path):
    task_file = make_task(tmp_path, task={"labels": []})
    assert list(label_warnings(load(task_file))) == []


def test_form_offers_no_labels_from_a_column_of_distinct_numbers(tmp_path):
    task_file = make_task(tmp_path)
    write_rows(tmp_path / "poor.jsonl", rows_of(map(str, range(MOST_LABELS + 1))))
    task = load(task_file)
    (difference,) = other_labels(task_files(task), task.task.labels)
    assert not difference.can_be_used
    assert "has 101 different labels" in difference.words
    assert "--set" not in difference.remedy
