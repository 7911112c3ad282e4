"""A generator's trial: what it was asked, what it answered, what that is."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.doubles.chat_server import ChatServer, completion, serving
from tests.doubles.coded import raises
from tests.doubles.tasks import make_task
from undersong.cli import app
from undersong_common.errors import ConfigurationError
from undersong_common.program import entry
from undersong_server.operations.tasks import cost_of, try_generator


def task_with_endpoint(folder: Path, url: str) -> Path:
    path = make_task(folder)
    lines = ["[[generators]]", 'name = "far"', 'kind = "openai"', 'model = "tiny"', f'base_url = "{url}"']
    lines += ['api_key_env = ""', "price_per_1k_prompt = 1.0", "price_per_1k_completion = 1.0"]
    path.write_text(path.read_text(encoding="utf-8") + "\n".join([*lines, ""]), encoding="utf-8")
    for private in (folder / "private").iterdir():
        private.unlink()  # nothing private is read
    return path


@pytest.mark.heavy
def test_try_command_shows_prompts_answers_texts_and_cost(tmp_path: Path) -> None:
    said = iter(["<text>The oven is cold.</text>", "I'm sorry, but I can't help with that request."] * 3)
    with serving(ChatServer(lambda _: completion(next(said)), key="")) as server:
        task = task_with_endpoint(tmp_path, server.url)
        tried = try_generator("far", task, ["generators.2.concurrency=1"], environment={}, texts=2)
        assert [each.fault for each in tried] == ["", "refused"]
        assert tried[0].text == "The oven is cold."
        assert tried[0].answer == "<text>The oven is cold.</text>"
        assert tried[1].text == ""
        assert [each.label for each in tried] == ["kitchen", "garden"]
        assert "a short remark" in tried[0].prompt
        assert tried[0].price_usd == pytest.approx(0.018)
        found = CliRunner().invoke(app, ["try", "far", str(task), "--texts", "2", "--json"])
        assert found.exit_code == 0
        assert len(json.loads(found.stdout)["texts"]) == 2
        shown = CliRunner().invoke(app, ["try", "far", str(task), "--texts", "2"])
        assert re.search(r"^1 of 2 kept, [0-9.]+ s, 36 tokens, US\$ 0\.0360$", shown.stdout, re.MULTILINE)


@pytest.mark.heavy
def test_try_command_without_any_text_prints_json_with_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "I'm sorry, but I can't help with that request."
    with serving(ChatServer(lambda _: completion(said), key="")) as server:
        words = ["try", "far", str(task_with_endpoint(tmp_path, server.url)), "--texts", "2", "--json"]
        monkeypatch.setattr(sys, "argv", ["undersong", *words])
        with pytest.raises(SystemExit) as ended:
            entry.run(lambda: app(words, standalone_mode=False))
    found = json.loads(capsys.readouterr().out)
    assert ended.value.code == found["error"]["exit_code"] == 7
    assert [each["answer"] for each in found["texts"]] == [said] * 2


@pytest.mark.heavy
def test_trial_states_lost_answers_and_missing_usage_at_each_text(tmp_path: Path) -> None:
    bodies: list[dict[str, Any] | str] = [
        completion("<text>Three is warm.</text>"),
        completion("<text>Two is.</text>", usage=None),
        "no completion",
        completion("<text>One is cold.</text>"),
    ]
    with serving(ChatServer(lambda _: bodies.pop(), key="")) as server:
        task = task_with_endpoint(tmp_path, server.url)
        tried = try_generator("far", task, ["generators.2.concurrency=1"], environment={}, texts=3)
    assert [each.fault for each in tried] == ["", "", ""]
    assert tried[0].lost_tokens == tried[2].lost_tokens == 0 < tried[1].lost_tokens
    assert [each.note for each in tried] == ["", "usage not reported", ""]
    assert "usage not reported: 1, which count at their worst case; answers lost on the way cost" in cost_of(tried)


def test_embedded_generator_is_tried_alone_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    path = make_task(tmp_path)
    tried = try_generator("good", path, environment={}, texts=3)
    assert [each.prompt for each in tried] == [""] * 3
    assert all(each.text for each in tried)
    with raises(ConfigurationError, "unknown-generator"):
        try_generator("goood", path, environment={})
