"""A rule that concerns two keys of the form marks both; generators are called by their names."""

import pytest

from undersong_common.errors import ConfigurationError
from undersong_server.operations.drafts import Draft
from undersong_server.operations.form_faults import PARTIES, fault_places, form_words
from undersong_server.runs.planning import coordinator_task, plan_run

PARTIES_OF_RUN = ("alpha", "beta", "gamma")
GENERATORS = [{"kind": "ngram", "name": name, "corpus": "here.txt"} for name in ("one", "two")]


def make_draft(**sections):
    return {
        "task": {"name": "triage", "description": "a note", "labels": ["a", "b"], **sections.pop("task", {})},
        "privacy": {"epsilon": 4.0, "delta": 1e-5, **sections.pop("privacy", {})},
        "method": {"name": "wasp", **sections.pop("method", {})},
        "generators": sections.pop("generators", GENERATORS),
        **sections,
    }


def sections_of(data):
    return Draft("x", "a template", ".", data, {}).sections


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({"privacy": {"noise_multiplier": 2.0}}, {"privacy.epsilon", "privacy.noise_multiplier"}),
        ({"method": {"name": "dpga", "elite": 90, "population": 60}}, {"method.elite", "method.population"}),
        ({"method": {"name": "augpe", "cells": 9000, "samples": 600}}, {"method.cells", "method.samples"}),
        ({"generators": [*GENERATORS, GENERATORS[0]]}, {"generators.0.name", "generators.2.name"}),
        ({"privacy": {"distance": True}}, {"privacy.distance", "privacy.expected_records"}),
        ({"federation": {"threshold": 1, "colluders": 1}}, {"federation.threshold", "federation.colluders", PARTIES}),
        ({"federation": {"tolerated_dropouts": 2, "colluders": 0}}, {"federation.tolerated_dropouts", PARTIES}),
        ({"privacy": {"epsilon": -1}}, {"privacy.epsilon"}),
        ({"task": {"words": [60, 40]}}, {"task.words"}),
    ],
)
def test_error_over_several_fields_is_shown_at_each_of_them(tmp_path, changes, places):
    (tmp_path / "here.txt").write_text("a text\n" * 40)
    data = make_draft(**changes)
    with pytest.raises(ConfigurationError) as refused:
        plan_run(coordinator_task(data, tmp_path, PARTIES_OF_RUN))
    error = refused.value
    faults = error.places or {"": f"{error.problem}; {error.remedy}"}
    marked = {path for place, words in faults.items() for path in fault_places(sections_of(data), place, words)}
    assert places <= marked, faults
    assert marked - places <= {"federation.colluders", "federation.threshold"}, faults


@pytest.mark.parametrize(
    ("words", "places", "shown"),
    [
        ("generator two: the file is not there", ["generators.1"], "the file is not there"),
        ("generators[1].model is dear; take generators[0]", [], "the model of two is dear; take one"),
        ("nothing of the form", [], "nothing of the form"),
    ],
)
def test_form_errors_name_generators_and_not_their_position(words, places, shown):
    sections = sections_of(make_draft())
    assert fault_places(sections, "", words) == places
    assert form_words(sections, words) == shown


@pytest.mark.parametrize("name", ["one", "corpus"])
def test_missing_file_of_a_generator_is_reported_at_its_field(tmp_path, name):
    data = make_draft(generators=[{"kind": "ngram", "name": name}])
    with pytest.raises(ConfigurationError) as refused:
        coordinator_task(data, tmp_path, PARTIES_OF_RUN)
    assert refused.value.remedy == "write corpus = ... under [[generators]], table 1 of that name"
    ((place, words),) = refused.value.places.items()
    assert fault_places(sections_of(data), place, words) == ["generators.0.corpus"]
    shown = form_words(sections_of(data), words)
    assert shown.endswith("is required and missing; fill in this field")
    assert "corpus" not in shown


def test_generator_option_is_a_choice_among_the_generators_names():
    method = next(section for section in sections_of(make_draft(method={"name": "dpga"})) if section.path == "method")
    (field,) = [field for field in method.fields if field.path == "method.keyword_generator"]
    assert (field.control, field.choices) == ("choice", ("", "one", "two"))
