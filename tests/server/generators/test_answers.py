"""Answers of endpoints, and what the corpus may hold of each: tags, thinking, data, characters, languages."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.misbehaving_endpoint import Endpoint, completion
from tests.doubles.pace import examples
from undersong_server.database.journal import Journal
from undersong_server.generators.author import Author
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.openai import OpenAIGenerator, OpenAISettings
from undersong_server.generators.kinds.openai import batches as openai_batches
from undersong_server.generators.kinds.openai.attempt import EndpointConnection
from undersong_server.generators.kinds.openai.states import Exchange, ExchangeState, judge
from undersong_server.generators.orders import Order
from undersong_server.generators.reading import read
from undersong_server.progress import Silent
from undersong_server.prompts.rendering import Prompts, TaskWords

FOLDER = Path(__file__).parent / "answers"
CASES = [
    json.loads(line)
    for file in sorted(FOLDER.glob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]
LABELS = ("cardiac", "trauma")
ORDERS = examples(2, 6)  # of a step, one of which gets the answer


def prompts(case: dict[str, Any]) -> Prompts:
    return Prompts(
        TaskWords(
            description=case["description"] or "a nurse's triage note",
            language=case["language"],
            labels=LABELS,
            line_breaks=case["line_breaks"],
        )
    )


def exchange(case: dict[str, Any]) -> Exchange:
    return Exchange(200, body=json.dumps(case["body"]).encode())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_reading_a_recorded_answer_gives_a_text_or_fault_its_case_accepts(case: dict[str, Any]) -> None:
    verdict = judge(exchange(case), (500, 100))
    if verdict.completion is None:
        assert verdict.state is ExchangeState.LOST
        assert None in case["accept"]
        return
    prompt = prompts(case).render("zero_shot", label="cardiac")
    request = GenerationRequest("zero_shot", "cardiac", prompt.user, 1, system=prompt.system)
    answer = Completion(verdict.completion.text, finish=verdict.completion.finish)
    reading = read(answer, request, language=case["language"], line_breaks=case["line_breaks"])
    assert (None if reading.fault else reading.text) in case["accept"], reading


def write_text(case: dict[str, Any], *, batch: bool, round_: int, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The text that a run of two rounds makes of the answer, which an order of one round gets at every attempt."""

    def respond(number: int, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        if 'of the category "cardiac"' in json.dumps(body["messages"]).replace("\\", ""):
            return 200, {}, case["body"]
        return 200, {}, completion(f"<text>{number * 7919}/{number}, {number * 104729}</text>")  # of no language

    endpoint = Endpoint(respond)

    def exchange(_self: EndpointConnection, method: str, path: str, content: bytes = b"", **_options: Any) -> Exchange:
        status, _, answer = endpoint.respond(method, f"/v1{path}", content)
        return Exchange(status, body=answer)

    monkeypatch.setattr(EndpointConnection, "exchange", exchange)
    monkeypatch.setattr(openai_batches, "_FIRST_PAUSE_S", 0.0)
    table: dict[str, Any] = {"name": "far", "kind": "openai", "model": "tiny", "base_url": "http://127.0.0.1:1/v1"}
    table |= {"api_key_env": "", "batch": batch, "max_retries": 0, "max_wait_s": 0.0, "concurrency": 1}
    journal = Journal(Path(":memory:"))
    far = OpenAIGenerator(OpenAISettings(**table), environment={}, journal=journal)
    author = Author({"far": far}, prompts(case), journal, Silent(), seed=1)
    texts: list[str | None] = []
    for number in range(2):
        labels = ["trauma"] * (ORDERS - 1) + ["cardiac" if number == round_ else "trauma"]
        samples = author.write(f"round {number}", number, [Order("far", "zero_shot", label) for label in labels])
        assert None not in samples[:-1]
        texts.append(samples[-1].text if samples[-1] else None)
        author.close_orders()  # as a private sum does
    author.check_finished()
    usage = author.usage["far"]
    assert usage.calls == endpoint.calls <= 2 * ORDERS + 2
    assert usage.kept + usage.dropped == 2 * ORDERS
    assert endpoint.paid_twice == 0  # what is asked again is asked by another prompt
    stated = case["body"].get("usage") or {}
    if stated.get("total_tokens") and not usage.notes:
        assert usage.prompt_tokens + usage.completion_tokens == endpoint.billed
    return texts[round_]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: CASES[number]["name"])
def test_author_keeps_of_a_recorded_answer_only_what_its_case_accepts(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By single calls and in batches, in the first and in a later round; in the quicker suites by one of the four."""
    case = CASES[number]
    ways = list(product((False, True), (0, 1)))
    first = number % len(ways)
    for batch, round_ in [*ways[first:], *ways[:first]][: examples(1, len(ways))]:
        assert write_text(case, batch=batch, round_=round_, monkeypatch=monkeypatch) in case["accept"], (batch, round_)
