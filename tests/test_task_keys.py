"""The reference of the task file says what the program reads, and says it of every key."""

from tests import task_keys


def test_the_page_is_what_the_models_say():
    assert task_keys.PAGE.read_text(encoding="utf-8") == task_keys.page(), "run python -m tests.task_keys"


def test_every_key_is_explained():
    rows = [line for line in task_keys.page().split("\n") if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if row.endswith("|  |")] == []
