import pytest
from pydantic import BaseModel, ConfigDict

from undersong_common.configuration import nearest, override, read_toml, validate
from undersong_common.errors import ConfigurationError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    epsilon: float


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    privacy: Inner
    entries: tuple[Inner, ...] = ()


def test_an_unknown_key_names_the_nearest_known_one():
    with pytest.raises(ConfigurationError, match=r"task.toml: privacy.epsilonn: unknown key; did you mean 'epsilon'\?"):
        validate(Outer, {"privacy": {"epsilon": 1, "epsilonn": 2}}, "task.toml")


def test_every_fault_of_the_file_is_listed_at_once():
    with pytest.raises(ConfigurationError) as caught:
        validate(Outer, {"privacy": {"epsilon": "much"}, "entries": [{}]}, "task.toml")
    assert "privacy.epsilon" in str(caught.value)
    assert "(given: 'much')" in str(caught.value)
    assert "entries[0].epsilon: is required and missing" in str(caught.value)


def test_overrides_reach_nested_sections_and_list_entries_without_touching_the_original():
    data = {"privacy": {"epsilon": 4}, "entries": [{"epsilon": 1}]}
    changed = override(data, ["privacy.epsilon=0.5", "entries.0.epsilon=2", "task.name=night shift"])
    assert changed == {"privacy": {"epsilon": 0.5}, "entries": [{"epsilon": 2}], "task": {"name": "night shift"}}
    assert data == {"privacy": {"epsilon": 4}, "entries": [{"epsilon": 1}]}


@pytest.mark.parametrize("assignment", ["epsilon", "=4", "a..b=1", "entries.7.epsilon=1", "privacy.epsilon.deep=1"])
def test_a_faulty_override_is_named(assignment):
    with pytest.raises(ConfigurationError, match="--set"):
        override({"privacy": {"epsilon": 4}, "entries": [{"epsilon": 1}]}, [assignment])


@pytest.mark.parametrize(
    ("content", "words"), [(b"a = ", "not valid TOML"), (b"a = '\xff'", "not UTF-8"), (None, "no such file")]
)
def test_an_unreadable_file_is_named(tmp_path, content, words):
    path = tmp_path / "task.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_toml(path)
    assert str(path) in str(caught.value)


def test_nearest_lists_all_words_where_none_is_near():
    assert nearest("zzz", ["wasp", "dpkps"]) == "known: dpkps, wasp"
