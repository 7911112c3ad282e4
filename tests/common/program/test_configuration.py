from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from undersong_common.errors import ConfigurationError
from undersong_common.program import configuration
from undersong_common.program.configuration import (
    LARGEST_FILE_BYTES,
    MOST_LEVELS,
    NAME,
    nearest,
    override,
    parse_toml,
    read_toml,
    validate,
)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    epsilon: float


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    privacy: Inner
    entries: tuple[Inner, ...] = ()


def test_an_unknown_key_names_the_nearest_known_one():
    with pytest.raises(ConfigurationError, match=r"task\.toml: privacy\.epsilonn: unknown key") as caught:
        validate(Outer, {"privacy": {"epsilon": 1, "epsilonn": 2}}, "task.toml")
    assert caught.value.remedy == "privacy.epsilonn: did you mean 'epsilon'?"


class Words(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: Annotated[int, Field(ge=1, le=9)] = 1
    share: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.5
    text: Annotated[str, Field(min_length=2, max_length=4, pattern="^[a-z]*$")] = "ab"
    name: Annotated[str, Field(pattern=NAME)] = "ab"
    flag: bool = True
    kind: Literal["one", "two"] = "one"
    several: tuple[str, ...] = ()
    inner: Inner = Inner(epsilon=1)


@pytest.mark.parametrize(
    ("key", "value", "problem", "remedy"),
    [
        ("number", "many", "number: is not a whole number (given: 'many')", "number: write a whole number"),
        ("number", 1.5, "is not a whole number", "whole number"),
        ("number", 0, "number: is below 1 (given: 0)", "choose 1 or more"),
        ("number", 10, "number: is above 9", "choose 9 or less"),
        ("share", 0, "share: is not above 0", "choose a value above 0"),
        ("share", 1, "share: is not below 1", "choose a value below 1"),
        ("share", "half", "share: is not a number", "without quotes"),
        ("share", float("nan"), "share: is not", ""),
        ("text", 7, "text: is not text", "put it in quotes"),
        ("text", "a", "text: is too short", "at least 2 characters"),
        ("text", "abcde", "text: is too long", "at most 4 characters"),
        ("text", "AB", "text: has a form that is not allowed", "it must match"),
        ("name", "two words", "name: has a form that is not allowed", "begin with a letter or digit"),
        ("flag", "perhaps", "flag: is neither true nor false", "without quotes"),
        ("kind", "three", "kind: is none of 'one' or 'two'", "choose one of"),
        ("several", "one", "several: is not a list", "write a list"),
        ("inner", 3, "inner: is not a section", "[section]"),
    ],
)
def test_validation_errors_use_our_own_words_for_problem_and_remedy(key, value, problem, remedy):
    with pytest.raises(ConfigurationError) as caught:
        validate(Words, {key: value}, "task.toml")
    assert caught.value.problem.startswith(f"task.toml: {problem}") or problem in caught.value.problem
    assert remedy in caught.value.remedy
    for foreign in ("Input should", "valid", "pydantic"):
        assert foreign not in str(caught.value)


def test_every_fault_of_the_file_is_listed_at_once():
    with pytest.raises(ConfigurationError) as caught:
        validate(Outer, {"privacy": {"epsilon": "much"}, "entries": [{}]}, "task.toml")
    assert "privacy.epsilon" in str(caught.value)
    assert "(given: 'much')" in str(caught.value)
    assert "entries[0].epsilon: is required and missing" in str(caught.value)
    assert "write epsilon = ... under [[entries]], table 1 of that name" in str(caught.value)


def test_overrides_reach_nested_keys_and_leave_the_original_unchanged():
    data = {"privacy": {"epsilon": 4}, "entries": [{"epsilon": 1}]}
    changed = override(data, ["privacy.epsilon=0.5", "entries.0.epsilon=2", "task.name=night shift"])
    assert changed == {"privacy": {"epsilon": 0.5}, "entries": [{"epsilon": 2}], "task": {"name": "night shift"}}
    assert data == {"privacy": {"epsilon": 4}, "entries": [{"epsilon": 1}]}


@pytest.mark.parametrize("assignment", ["epsilon", "=4", "a..b=1", "entries.7.epsilon=1", "privacy.epsilon.deep=1"])
def test_faulty_override_of_a_task_setting_is_refused(assignment):
    with pytest.raises(ConfigurationError, match="--set"):
        override({"privacy": {"epsilon": 4}, "entries": [{"epsilon": 1}]}, [assignment])


@pytest.mark.parametrize(
    ("content", "words"), [(b"a = ", "not valid TOML"), (b"a = '\xff'", "not UTF-8"), (None, "no such file")]
)
def test_unreadable_task_file_is_refused_naming_it(tmp_path, content, words):
    path = tmp_path / "task.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_toml(path)
    assert str(path) in str(caught.value)


def test_suggestion_lists_all_known_words_if_none_is_near():
    assert nearest("zzz", ["wasp", "dpkps"]) == "known: dpkps, wasp"


def test_a_file_s_length_and_levels_are_bounded_before_it_is_parsed(monkeypatch):
    levels = ".".join("abcdefghijklmnopqrst"[:MOST_LEVELS])
    assert parse_toml("t", f"{levels}=1\ntext='a.b'\nnumbers=[0.1,0.2]".encode())
    monkeypatch.setattr(configuration.tomllib, "loads", None)  # nothing below is parsed
    for text, code in ((f"{levels}.z=1", "file-too-deep"), ("#" * (LARGEST_FILE_BYTES + 1), "file-too-large")):
        with pytest.raises(ConfigurationError) as caught:
            parse_toml("t", text.encode())
        assert caught.value.code == code
    assert override({"a": 1}, [f"a=1\n{levels}.z=1"])["a"].startswith("1\n")


class Either(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: Annotated[int, Field(ge=1)] | tuple[Annotated[int, Field(ge=1)], ...] = 1
    shares: Literal["even"] | dict[str, Annotated[float, Field(gt=0)]] = "even"


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        ({"count": 0}, ["count: is below 1 (given: 0)"]),
        ({"count": [3, 0]}, ["count[1]: is below 1 (given: 0)"]),
        ({"count": "x"}, ["count: is not a whole number (given: 'x')"]),
        ({"shares": {"a": -1}}, ["shares.a: is not above 0.0 (given: -1)"]),
        ({"shares": "odd"}, ["shares: is none of 'even' (given: 'odd')"]),
        ({"counts": 1}, ["counts: unknown key"]),
    ],
)
def test_key_of_several_types_is_refused_with_the_fault_of_its_own_type(data, problems):
    with pytest.raises(ConfigurationError) as refused:
        configuration.validate(Either, data, "the file")
    assert refused.value.problem.splitlines() == [f"the file: {problem}" for problem in problems]


class Address(BaseModel):
    base_url: Annotated[str, Field(pattern=configuration.ADDRESS)] = ""
    proxy: Annotated[str, Field(pattern=configuration.OPTIONAL_ADDRESS)] = ""


@pytest.mark.parametrize("key", ["base_url", "proxy"])
@pytest.mark.parametrize(
    "address", ["https://me:SECRET@host/v1", "http://me:a/SECRET@host", "https://host/v1?key=SECRET", "//SECRET@host"]
)
def test_password_or_query_of_a_refused_address_is_not_shown(key, address):
    with pytest.raises(ConfigurationError) as refused:
        validate(Address, {key: address}, "task.toml")
    assert "SECRET" not in str(refused.value)
    assert f"{key}: has a form that is not allowed (given: " in refused.value.problem
    assert "without user and query" in refused.value.remedy


@pytest.mark.parametrize(
    ("model", "data", "key"),
    [
        (Words, {"number": True}, "number"),
        (Words, {"inner": {"epsilon": True}, "flag": True}, "inner.epsilon"),
        (Outer, {"privacy": {"epsilon": 1}, "entries": [{"epsilon": 1}, {"epsilon": False}]}, "entries[1].epsilon"),
        (Either, {"count": [3, True]}, "count[1]"),
        (Either, {"shares": {"a": True}}, "shares.a"),
    ],
)
def test_true_or_false_for_a_number_is_refused(model, data, key):
    with pytest.raises(ConfigurationError) as refused:
        validate(model, data, "task.toml")
    assert refused.value.problem == f"task.toml: {key}: is true or false, not a number"


def test_byte_order_mark_before_toml_is_passed_over():
    assert parse_toml("t", b"\xef\xbb\xbfa = 1\n") == {"a": 1}
