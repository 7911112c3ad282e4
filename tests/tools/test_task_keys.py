"""The site's reference of the task file names every key that the program reads, and explains it."""

import re

import pytest

from tools import task_keys
from undersong_server import methods
from undersong_server.runs.task import Task


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "model"),
    [
        ("[privacy]", Task.model_fields["privacy"].annotation),
        *((f"[method] of {name}", methods.load(name).Options) for name in methods.own_names()),
    ],
)
def test_documented_section_lists_every_key_of_its_settings(section, model):
    rows = task_keys.page().partition(f"## {section}\n")[2].partition("\n## ")[0]
    keys = [name for name, info in model.model_fields.items() if not info.exclude]
    assert re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) == keys


def test_every_key_of_a_task_file_is_explained():
    rows = [line for line in task_keys.page().split("\n") if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if row.endswith("|  |")] == []
