"""vLLM's offline engine, where it is installed; and what is said where it is not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.doubles.tiny_llama import save_tiny_llama
from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.generators.interface import Answer, Finish, GenerationRequest
from undersong_server.generators.kinds.vllm import VllmGenerator, VllmSettings
from undersong_server.operations.tasks import try_generator

pytestmark = pytest.mark.heavy
INSTALLED = importlib.util.find_spec("vllm") is not None


@pytest.fixture
def small_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine in this process; where it runs on a processor, with a GiB of memory."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


def needs_vllm(test: Callable[..., None]) -> Callable[..., None]:
    absent = pytest.mark.skipif(not INSTALLED, reason="vLLM is not installed: its engine is not tested here")
    marked: Callable[..., None] = pytest.mark.slow(pytest.mark.usefixtures("small_engine")(absent(test)))
    return marked


def settings(**fields: object) -> VllmSettings:
    return VllmSettings.model_validate({"name": "fast", "kind": "vllm", "path": "tiny", "max_new_tokens": 12, **fields})


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        VllmGenerator(settings(), folder=tmp_path)


@pytest.mark.skipif(INSTALLED, reason="vLLM is installed here")
def test_without_vllm_the_remedy_is_its_extra(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        VllmGenerator(settings(), folder=tmp_path)
    assert refused.value.code == "no-package"
    assert refused.value.problem.startswith("generator fast: ")
    assert 'undersong[vllm]", or use kind = "transformers"' in refused.value.remedy


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", ""),
        ("length", "length"),
        ("abort", None),
        ("error", None),
        (None, "unknown"),
        ("repetition", "unknown"),
    ],
)
def test_an_end_has_the_state_that_it_has_at_an_endpoint(
    reason: str | None, finish: Finish | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr("undersong_server.generators.kinds.vllm.require", lambda _package: None)
    monkeypatch.setattr("undersong_server.generators.kinds.vllm.prompt_ids", lambda *_, **__: [1, 2])
    generator = VllmGenerator(settings(), folder=tmp_path)
    written = SimpleNamespace(text="A note.", token_ids=[3], finish_reason=reason)
    generator._engine = SimpleNamespace(
        get_tokenizer=lambda: None,
        llm_engine=SimpleNamespace(model_config=SimpleNamespace(max_model_len=100)),
        generate=lambda *_, **__: [SimpleNamespace(outputs=[written], prompt_token_ids=[1, 2])],
    )
    monkeypatch.setattr(VllmGenerator, "_sampling", lambda *_: None)
    ((_, answer),) = generator.answer([GenerationRequest("zero_shot", "", "Write.", 1)])
    assert isinstance(answer, GenerationError) if finish is None else answer == Answer("A note.", 2, 1, finish=finish)


@needs_vllm
def test_a_real_engine_writes_each_request_its_own_answer(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path / "tiny", positions=512, width=128)  # its processor's attention wants heads of 32
    generator = VllmGenerator(settings(memory=0.2, eager=True), folder=tmp_path)
    requests = [GenerationRequest("zero_shot", "", f"Write {n}.", n, system="You write.") for n in range(8)]
    together = dict(generator.answer(requests))
    assert all(isinstance(answer, Answer) and 0 < answer.completion_tokens <= 12 for answer in together.values())
    assert len({answer.text for answer in together.values() if isinstance(answer, Answer)}) == 8
    again = dict(generator.answer(requests[:2]))
    assert [again[n] for n in range(2)] == [together[n] for n in range(2)]

    letter = next(answer.text for answer in together.values() if isinstance(answer, Answer))[3]
    stopped = dict(generator.answer([replace(requests[0], stop=(letter,)), replace(requests[1], prompt="word " * 600)]))
    assert isinstance(stopped[0], Answer)
    assert letter not in stopped[0].text
    assert isinstance(stopped[1], GenerationError)
    assert generator.counts == {"prompts_too_long": 1}


TASK = """
[task]
name = "triage"
description = "a nurse's triage note"
labels = ["cardiac", "injury"]
[data]
path = "nothing.jsonl"
text = "text"
label = "label"
[privacy]
epsilon = 4.0
delta = 1e-5
[federation]
parties = 2
[method]
name = "mixture"
samples = 20
[[generators]]
name = "fast"
kind = "vllm"
path = "tiny"
style = "completion"
max_new_tokens = 40
memory = 0.2
eager = true
"""


@needs_vllm
def test_a_whole_trial_is_written_by_the_engine(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path / "tiny", positions=512, width=128)
    (tmp_path / "task.toml").write_text(TASK, encoding="utf-8")
    tried = try_generator("fast", tmp_path / "task.toml", (), environment={}, texts=6)
    assert [each.label for each in tried] == ["cardiac", "injury"] * 3
    assert len({each.answer for each in tried}) == 6  # what an untrained model writes is hardly a text
    assert all(each.answer and each.completion_tokens > 0 for each in tried)
