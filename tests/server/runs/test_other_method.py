"""Another method on the command line: what the file says for its own method is set aside by name, not refused."""

from __future__ import annotations

import pytest

from tests.doubles.tasks import make_task
from tests.examples.test_task_files import CLINIC, TASKS
from undersong_common.errors import ConfigurationError
from undersong_server import methods
from undersong_server.runs import task


@pytest.mark.heavy
@pytest.mark.parametrize("path", [*TASKS, CLINIC], ids=lambda path: path.stem)
def test_every_shipped_task_can_be_loaded_with_every_method(path):
    for name in methods.names():
        loaded = task.load(path, [f"method.name={name}"])
        assert type(loaded.options) is methods.load(name).Options


def test_options_of_another_method_are_ignored_and_named_once(tmp_path):
    path = make_task(tmp_path, samples=30)
    loaded = task.load(path, ["method.name=dpkps", "method.pairs=8"])
    assert loaded.set_aside == ("rounds", "votes", "examples", "shortlist")
    assert (loaded.options.samples, loaded.options.pairs, loaded.options.examples) == (30, 8, ())
    (remark,) = loaded.remarks
    assert "'dpkps'" in remark
    assert "rounds, votes, examples, shortlist" in remark
    assert task.load(path).remarks == ()


def test_method_option_of_the_command_line_is_never_set_aside(tmp_path):
    path = make_task(tmp_path)
    for name, value in (("examples", 4), ("shortlist", 4)):  # 4 examples is what the file says, too
        with pytest.raises(ConfigurationError) as refused:
            task.load(path, ["method.name=dpkps", f"method.{name}={value}"])
        assert set(refused.value.places) == {f"method.{name}"}


def test_option_values_invalid_for_another_method_are_set_aside(tmp_path):
    path = make_task(tmp_path, method={"name": "mixture", "samples": 24})
    text = path.read_text().replace('name = "mixture"', 'name = "dpga"\npopulation = 40\nelite = 10')
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("votes", "examples", "shortlist")))
    path.write_text(text)
    assert task.load(path).options.elite == 10
    loaded = task.load(path, ["method.name=wasp"])
    assert set(loaded.set_aside) == {"population", "elite"}
    assert loaded.options.samples == 24


def test_preset_of_the_command_line_replaces_the_file_s_method_options(tmp_path):
    path = make_task(tmp_path, samples=30)
    loaded = task.load(path, ["method.name=dpga", "method.preset=paper", "method.elite=70"])
    assert {"samples", "rounds"} <= set(loaded.set_aside)
    assert (loaded.options.samples, loaded.options.rounds, loaded.options.elite) == (None, 10, 70)
