"""A task states its language by name or code: prompts have the name, the card the code, a wrong one is one error."""

import pytest

from tests.doubles.tasks import make_task
from undersong_common.errors import ConfigurationError
from undersong_server.runs.task import load


@pytest.mark.parametrize(
    ("stated", "name", "code"),
    [
        ("en", "English", "en"),
        ("English", "English", "en"),
        ("ENGLISH", "English", "en"),
        ("de_at", "German", "de-AT"),
        ("DE-at", "German", "de-AT"),
        ("castilian", "Spanish", "es"),
        ("", "", ""),
    ],
)
def test_task_and_publication_language_accept_a_name_or_a_code(tmp_path, stated, name, code):
    sections = {"task": {"language": stated}, "publication": {"language": stated}}
    task = load(make_task(tmp_path, **sections))
    assert (task.task.language, task.publication.language) == (name, code)


@pytest.mark.parametrize("key", ["task.language", "publication.language"])
@pytest.mark.parametrize(("stated", "guess"), [("Germn", "did you mean German?"), ("xx", "such as English or en")])
def test_unknown_language_is_one_error_naming_its_key_and_a_suggestion(tmp_path, key, stated, guess):
    section, _, name = key.partition(".")
    with pytest.raises(ConfigurationError) as refused:
        load(make_task(tmp_path, **{section: {name: stated}}))
    assert f"{key}: names no language (given: {stated!r})" in refused.value.problem
    assert guess in refused.value.remedy
    assert list(refused.value.places) == [key]


@pytest.mark.parametrize(
    ("languages", "on_card"),
    [(("German", ""), "de"), (("German", "de-CH"), "de-CH"), (("Swiss German", ""), ""), (("", ""), "")],
)
def test_card_language_defaults_to_the_language_of_the_texts(tmp_path, languages, on_card):
    of_texts, of_card = languages
    task = load(make_task(tmp_path, task={"language": of_texts}, publication={"language": of_card}))
    assert task.card_words.language == on_card
