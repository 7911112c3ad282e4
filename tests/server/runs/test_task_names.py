"""A task whose names no party would sign is refused when it is read, not when everybody is connected."""

from __future__ import annotations

import pytest

from tests.doubles.forgeries import FORGERIES, harmless
from undersong_common.errors import ConfigurationError
from undersong_common.program import configuration
from undersong_server.runs.task import EvaluationSection, PromptsSection, PublicationSection, TaskSection


def read(**changes):
    value = {"name": "triage", "description": "a note", "labels": ["a", "b"], **changes}
    return configuration.validate(TaskSection, value, "the task file")


@pytest.mark.heavy
@pytest.mark.parametrize("forged", FORGERIES, ids=ascii)
def test_a_label_that_cannot_be_read_whole_is_refused_in_harmless_words(forged):
    with pytest.raises(ConfigurationError) as refused:
        read(labels=["a", forged])
    assert harmless(refused.value.problem.replace("\n", ""))


def test_names_with_a_space_too_many_and_endless_descriptions_are_refused():
    for changes in ({"name": "a  b"}, {"name": "a "}, {"labels": ["a "]}, {"description": "a" * 20_001}):
        with pytest.raises(ConfigurationError):
            read(**changes)
    assert read(labels=["\u05e9\u05dc\u05d5\u05dd", "c\u0153ur"]).labels[1] == "c\u0153ur"


def test_labels_are_composed_as_the_labels_of_records_are():
    task = read(labels=["cafe\u0301", "b"], label_descriptions={"cafe\u0301": "a place"})
    assert task.labels == ("caf\u00e9", "b")
    assert task.label_descriptions == {"caf\u00e9": "a place"}
    with pytest.raises(ConfigurationError) as refused:
        read(labels=["caf\u00e9", "cafe\u0301"])
    assert "keep one" in refused.value.remedy


def test_hospitals_sign_licence_makers_contact_and_place():
    given = {"where": "https://example.org/triage", "licence": "CC-BY-4.0", "makers": "the alliance"}
    stated = configuration.validate(PublicationSection, given, "the task file").stated
    assert stated == "https://example.org/triage; licence: CC-BY-4.0; made by: the alliance"
    assert PublicationSection().stated == ""


@pytest.mark.parametrize("name", ["", "  "])
def test_a_blank_name_of_a_file_leaves_it_out_and_names_no_folder(name):
    assert EvaluationSection(test=name, encoder=name) == EvaluationSection()
    assert PromptsSection(folder=name) == PromptsSection()
