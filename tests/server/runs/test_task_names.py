"""A task whose names no party would sign is refused when it is read, not when everybody is connected."""

from __future__ import annotations

import pytest

from tests.doubles.coded import raises
from tests.doubles.forgeries import FORGERIES, harmless
from undersong_common.errors import ConfigurationError
from undersong_common.program import configuration
from undersong_server.runs.task import (
    AttributeSection,
    EvaluationSection,
    PromptsSection,
    PublicationSection,
    Task,
    TaskSection,
)


def read(**changes):
    value = {"name": "triage", "description": "a note", "labels": ["a", "b"], **changes}
    return configuration.validate(TaskSection, value, "the task file")


@pytest.mark.heavy
@pytest.mark.parametrize("forged", FORGERIES, ids=ascii)
def test_label_with_control_characters_is_refused_in_an_escaped_message(forged):
    with pytest.raises(ConfigurationError) as refused:
        read(labels=["a", forged])
    assert harmless(refused.value.problem.replace("\n", ""))


def test_names_with_extra_spaces_and_overlong_descriptions_are_refused():
    for changes in ({"name": "a  b"}, {"name": "a "}, {"labels": ["a "]}, {"description": "a" * 20_001}):
        with pytest.raises(ConfigurationError):
            read(**changes)
    assert read(labels=["\u05e9\u05dc\u05d5\u05dd", "c\u0153ur"]).labels[1] == "c\u0153ur"


def test_task_labels_are_unicode_normalised_like_the_records_labels():
    task = read(labels=["cafe\u0301", "b"], label_descriptions={"cafe\u0301": "a place"})
    assert task.labels == ("caf\u00e9", "b")
    assert task.label_descriptions == {"caf\u00e9": "a place"}
    with pytest.raises(ConfigurationError) as refused:
        read(labels=["caf\u00e9", "cafe\u0301"])
    assert "keep one" in refused.value.remedy


def test_attribute_values_are_unicode_normalised_like_the_records_values():
    value = {"name": "sex", "values": ["ma\u0308nnlich", "weiblich"]}
    assert configuration.validate(AttributeSection, value, "the task file").values[0] == "m\u00e4nnlich"
    with pytest.raises(ConfigurationError, match="stands more than once"):
        configuration.validate(AttributeSection, {**value, "values": ["ma\u0308n", "m\u00e4n"]}, "the task file")


def test_more_than_1000_labels_are_refused_naming_the_key():
    with pytest.raises(ConfigurationError) as refused:
        read(labels=[f"label {number}" for number in range(1001)])
    assert "labels: has 1001 labels" in refused.value.problem
    assert "at most 1000" in refused.value.remedy


def task_of(folder, path):
    value = {
        "task": {"name": "triage", "description": "a note"},
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "method": {"name": "undersong"},
        "data": {"path": path},
        "federation": {"parties": 2},
        "folder": folder,
    }
    return configuration.validate(Task, value, "the task file")


def test_same_private_file_for_two_parties_is_refused(tmp_path):
    (tmp_path / "link.csv").symlink_to("a.csv")
    assert task_of(tmp_path, ["a.csv", "b.csv"]).parties == 2
    for path in (["a.csv", "./a.csv"], ["a.csv", "link.csv"]):
        with raises(ConfigurationError, "file-twice") as refused:
            _ = task_of(tmp_path, path).parties
        assert str(tmp_path / "a.csv") in refused.value.problem


@pytest.mark.parametrize("path", ["*.csv", "empty"])
def test_error_for_a_pattern_or_folder_without_files_names_it(tmp_path, path):
    (tmp_path / "empty").mkdir()
    with raises(ConfigurationError, "no-such-file") as refused:
        _ = task_of(tmp_path, path).parties
    assert str(tmp_path / path) in refused.value.problem


def test_publication_terms_to_sign_list_place_licence_and_makers():
    given = {"where": "https://example.org/triage", "licence": "CC-BY-4.0", "makers": "the alliance"}
    stated = configuration.validate(PublicationSection, given, "the task file").stated
    assert stated == "https://example.org/triage; licence: CC-BY-4.0; made by: the alliance"
    assert PublicationSection().stated == ""


@pytest.mark.parametrize("name", ["", "  "])
def test_blank_file_or_folder_option_counts_as_not_given(name):
    assert EvaluationSection(test=name, encoder=name) == EvaluationSection()
    assert PromptsSection(folder=name) == PromptsSection()
