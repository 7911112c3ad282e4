"""The endpoint generator against a real server of another make: ``transformers serve`` with a tiny Llama."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.tiny_llama import save_tiny_llama
from tools.serve_environment import transformers_serve
from undersong_server.generators.cleaning import clean
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.openai import OpenAIGenerator, OpenAISettings
from undersong_server.prompts.rendering import Prompts, TaskWords

# The first test may have to build the server's environment.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("serve") / "tiny")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with transformers_serve(port, tmp_path_factory.mktemp("hub")) as base_url:
        yield base_url


SMALL: dict[str, Any] = {"max_tokens": 12, "concurrency": 2, "timeout_s": 30.0, "max_retries": 2}


def far(url: str, model: Path | str, **fields: Any) -> OpenAIGenerator:
    table = {"name": "far", "kind": "openai", "model": str(model), "base_url": url, "api_key_env": ""}
    return OpenAIGenerator(OpenAISettings(**{**table, **SMALL, **fields}), environment={})


def make_chat_requests(count: int) -> list[GenerationRequest]:
    prompts = Prompts(TaskWords(description="a nurse's triage note", labels=("cardiac", "injury")))
    return [
        GenerationRequest("zero_shot", label, prompts.render("zero_shot", label=label, number=seed).user, seed)
        for seed in range(count)
        for label in ("cardiac", "injury")
    ][:count]


def test_a_real_server_answers_with_texts_and_usage(url: str, model: Path) -> None:
    generator = far(url, model)
    found = dict(generator.answer(make_chat_requests(8)))
    assert sorted(found) == list(range(8))
    answers = [answer for answer in found.values() if isinstance(answer, Completion)]
    assert len(answers) == 8
    assert len({answer.text for answer in answers}) >= 6  # it samples
    assert all("<|" not in clean(answer.text).text for answer in answers)
    assert all(0 < answer.completion_tokens <= 13 for answer in answers if "not reported" not in answer.note)
    assert generator.counts["failed"] == 0
