"""Answers of endpoints, and what the corpus may hold of each: tags, thinking, data, characters, languages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from undersong_server.generators.interface import Answer, Finish, GenerationRequest
from undersong_server.generators.reading import read
from undersong_server.prompts.rendering import Prompts, TaskWords

FOLDER = Path(__file__).parent / "answers"
CASES = [
    json.loads(line)
    for file in sorted(FOLDER.glob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]

LOST = ("error", "abort", "network_error", "insufficient_system_resource")
REASONS: dict[Finish, tuple[str, ...]] = {
    "": ("stop", "eos", "eos_token", "end_turn", "stop_sequence"),
    "length": ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"),
    "filter": (*("content_filter", "safety", "sensitive", "prohibited_content", "recitation", "refusal", "blocklist"),),
}


def request(case: dict[str, Any]) -> GenerationRequest:
    task = TaskWords(
        description=case["description"] or "a nurse's triage note",
        language=case["language"],
        labels=("cardiac", "trauma"),
        line_breaks=case["line_breaks"],
    )
    prompt = Prompts(task).render("zero_shot", label="cardiac")
    return GenerationRequest("zero_shot", "cardiac", prompt.user, 1, system=prompt.system)


def answer_of(body: dict[str, Any]) -> Answer | None:
    """The answer in the body of a completion; None for one that was lost."""
    choice = body["choices"][0]
    reason = str(choice["finish_reason"]).casefold().replace("-", "_")
    finish: Finish = next((finish for finish, reasons in REASONS.items() if reason in reasons), "unknown")
    content = choice["message"]["content"] or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return None if reason in LOST else Answer(text, finish=finish)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_corpus_holds_of_an_answer_what_it_may(case: dict[str, Any]) -> None:
    answer = answer_of(case["body"])
    if answer is None:
        assert None in case["accept"]
        return
    reading = read(answer, request(case), language=case["language"], line_breaks=case["line_breaks"])
    assert (None if reading.fault else reading.text) in case["accept"], reading
