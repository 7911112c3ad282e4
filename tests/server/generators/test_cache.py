"""Answers that are kept across runs: found again for the same request, never given to two orders of one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.generators.endpoints import NOTE, CachedGenerator
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.openai import OpenAISettings


class Counting:
    """Answers with the number of its calls; requests with the label "none" fail."""

    name = "far"

    def __init__(self) -> None:
        self.calls = 0
        self.counts: dict[str, int] = {}
        self.observed = 0

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion | GenerationError]]:
        for index, request in reversed(list(enumerate(requests))):
            self.calls += 1
            yield (
                index,
                GenerationError("no")
                if request.label == "none"
                else Completion(f"text {self.calls} {id(self)}", 5, 5, 0.5),
            )

    def observe(self, requests: Sequence[GenerationRequest], answers: Sequence[Completion | GenerationError]) -> None:
        self.observed += len(answers)


def answered(
    cached: CachedGenerator, requests: Sequence[GenerationRequest], *, texts: bool = True
) -> dict[int, Completion | GenerationError]:
    """The answers to ``requests``, by index; the cache is told whether they became texts."""
    answers = dict(cached.answer(requests))
    cached.keep_texts([(request, texts) for request in requests])
    return answers


def cached(path: Path, asked: Counting, **fields: Any) -> CachedGenerator:
    settings = OpenAISettings(**{"name": "far", "kind": "openai", "model": "tiny", "api_key_env": "", **fields})
    return CachedGenerator(asked, settings.cache_parts, path)


REQUEST = GenerationRequest("zero_shot", "x", "Write.", 1)


def test_later_run_reuses_cached_answers_each_for_one_order_only(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    requests = [REQUEST, REQUEST, replace(REQUEST, prompt="Write more.")]
    before = answered(cached(tmp_path / "cache", first), requests)
    again = cached(tmp_path / "cache", second)
    after = dict(again.answer([*requests, REQUEST]))
    assert first.calls == 3
    assert second.calls == 1
    for index in range(3):
        assert after[index] == Completion(before[index].text, note=NOTE)  # type: ignore[union-attr]
    assert len({answer.text for answer in after.values() if isinstance(answer, Completion)}) == 4
    assert again.counts["cache_hits"] == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "other"},
        {"base_url": "https://else.example/v1"},
        {"temperature": 0.1},
        {"max_tokens": 9},
        {"headers": {"x-beta": "long"}},
        {"kinds": {"zero_shot": {"top_p": 0.5}}},
    ],
)
def test_cache_key_covers_every_field_that_influences_an_answer(tmp_path: Path, fields: dict[str, Any]) -> None:
    first, second = Counting(), Counting()
    answered(cached(tmp_path / "cache", first), [REQUEST])
    answered(cached(tmp_path / "cache", second, **fields), [REQUEST])
    assert second.calls == 1


def test_cache_key_ignores_limits_and_seeds_that_are_not_sent(tmp_path: Path) -> None:
    first, second, third = Counting(), Counting(), Counting()
    answered(cached(tmp_path / "cache", first), [REQUEST])
    answered(cached(tmp_path / "cache", second, concurrency=2, token_budget=9), [replace(REQUEST, seed=2)])
    assert second.calls == 0
    answered(cached(tmp_path / "cache", third, send_seed=True), [REQUEST, replace(REQUEST, seed=2)])
    assert third.calls == 2
    fourth, kinds = Counting(), {REQUEST.kind: {"send_seed": True}}
    answered(cached(tmp_path / "other", fourth, kinds=kinds), [REQUEST, replace(REQUEST, seed=2)])
    assert fourth.calls == 2


def test_failures_are_not_cached_and_journaled_answers_count_as_used(tmp_path: Path) -> None:
    first = Counting()
    answered(cached(tmp_path / "cache", first), [replace(REQUEST, label="none"), REQUEST])
    resumed = Counting()
    again = cached(tmp_path / "cache", resumed)
    again.observe([REQUEST, REQUEST], [Completion("text 1"), Completion("text 2")])
    assert resumed.observed == 2
    list(again.answer([REQUEST]))
    assert resumed.calls == 1


def test_cached_answer_that_gave_no_text_is_not_reused(tmp_path: Path) -> None:
    useless, mended = Counting(), Counting()
    answered(cached(tmp_path / "cache", useless), [REQUEST], texts=False)
    answered(cached(tmp_path / "cache", mended), [REQUEST])
    assert (useless.calls, mended.calls) == (1, 1)
    answered(cached(tmp_path / "cache", useless), [REQUEST], texts=False)  # from the file, and no text any more
    assert useless.calls == 1
    answered(cached(tmp_path / "cache", mended), [REQUEST])
    assert mended.calls == 2


def test_cache_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        cached(tmp_path / "missing" / "cache", Counting())
    assert refused.value.code == "cache-unusable"
