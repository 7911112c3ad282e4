"""The endpoint generator against a real server of another make: ``transformers serve`` with a tiny Llama."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.chat_server import FaultProxy, serving
from tests.doubles.tiny_llama import save_tiny_llama
from tests.serve_environment import transformers_serve
from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.generators.cleaning import clean
from undersong_server.generators.interface import Answer, BudgetExhausted, GenerationRequest
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


def requests(count: int) -> list[GenerationRequest]:
    prompts = Prompts(TaskWords(description="a nurse's triage note", labels=("cardiac", "injury")))
    return [
        GenerationRequest("zero_shot", label, prompts.render("zero_shot", label=label, number=seed).user, seed)
        for seed in range(count)
        for label in ("cardiac", "injury")
    ][:count]


def test_a_real_server_answers_with_texts_and_usage(url: str, model: Path) -> None:
    generator = far(url, model)
    found = dict(generator.answer(requests(8)))
    assert sorted(found) == list(range(8))
    answers = [answer for answer in found.values() if isinstance(answer, Answer)]
    assert len(answers) == 8
    assert len({answer.text for answer in answers}) >= 6  # it samples
    assert all("<|" not in clean(answer.text) for answer in answers)
    assert all(0 < answer.completion_tokens <= 13 for answer in answers if "not reported" not in answer.note)
    assert generator.counts["failed"] == 0


def test_faults_before_a_real_server_are_survived(url: str, model: Path) -> None:
    class Upstream:
        def __init__(self, url: str) -> None:
            self.url = url

    faults: list[Any] = [("status", 429, {"Retry-After": "0"}), "pass", "cut", "garbage", ("status", 503, {})]
    with serving(FaultProxy(Upstream(url), faults)) as proxy:
        generator = far(proxy.url, model, max_wait_s=0.1, max_retries=4)  # all faults may meet one request
        answers = [answer for _, answer in generator.answer(requests(4))]
        assert [answer for answer in answers if not isinstance(answer, Answer)] == []
        assert generator.counts["retries"] == 4


def test_the_budget_holds_at_a_real_server(url: str, model: Path) -> None:
    generator = far(url, model, token_budget=1500, concurrency=1)
    answers = generator.answer(requests(200))
    spent: list[int] = []
    with pytest.raises(BudgetExhausted):  # noqa: PT012 - what comes before it is counted
        while True:
            _, answer = next(answers)
            spent += [answer.prompt_tokens + answer.completion_tokens] if isinstance(answer, Answer) else []
    assert 0 < sum(spent) <= 1500


def test_a_model_that_is_not_there_ends_the_run(url: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigurationError, GenerationError)):
        list(far(url, tmp_path / "nowhere", max_retries=0, concurrency=1).answer(requests(12)))
