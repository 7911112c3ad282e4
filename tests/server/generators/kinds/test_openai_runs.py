"""A run of two steps against any sequence of exchanges: within its cap, nothing paid twice, always resumable."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from undersong_common.errors import GenerationError
from undersong_server.generators.author import Author
from undersong_server.generators.kinds.openai import OpenAIGenerator, OpenAISettings
from undersong_server.generators.kinds.openai import generator as openai_generator
from undersong_server.generators.kinds.openai.attempt import Connection
from undersong_server.generators.kinds.openai.states import Exchange
from undersong_server.generators.orders import Order
from undersong_server.journal import Journal
from undersong_server.progress import Silent
from undersong_server.prompts.rendering import Prompts, TaskWords

CAP, MOST = 6000, 60  # tokens
ORDERS = 6

EXCHANGES: st.SearchStrategy[Any] = st.one_of(
    st.just("well"),
    st.just("well"),
    st.sampled_from(["late", "cut", "large", "unreachable", "die"]),
    st.tuples(
        st.sampled_from([200, 301, 400, 401, 402, 403, 404, 418, 422, 429, 500, 502, 503]),
        st.sampled_from(
            [
                b"",
                b"<html><title>Bad gateway</title></html>",
                b'{"error": "no"}',
                b'{"error": {"message": "flagged by moderation", "code": 403}}',
                b'{"error": {"message": "Insufficient credits", "code": 402}}',
                b'{"choices": [{"message": null}], "usage": []}',
                b'data: {"choices": []}',
                b"[" * 5000,
                b'{"choices": [{"message": {"content": "<text>half"}, "finish_reason": "length"}]}',
            ]
        ),
    ),
    st.sampled_from([{"prompt_tokens": -4}, {"prompt_tokens": 9, "completion_tokens": 10**30}, None, [], {}]).map(
        lambda usage: ("usage", usage)
    ),
)


class Killed(BaseException):
    """The process dies after the endpoint has answered, before anything is kept."""


class Scripted:
    """Stands for the connection: answers by a script, then well; knows what an endpoint would have billed."""

    def __init__(self, script: Sequence[Any]) -> None:
        self.script = list(script)
        self.calls = self.billed = 0
        self.paid: list[str] = []
        self.lost: set[str] = set()

    def exchange(self, body: Mapping[str, Any]) -> Exchange:
        step: Any = self.script.pop(0) if self.script else "well"
        self.calls += 1
        prompt = json.dumps(body["messages"])
        worst = len(prompt.encode()) // 4 + MOST // 2  # a tokenizer makes fewer tokens than bytes
        if step == "unreachable":
            return Exchange(fault="unreachable", detail="no connection")
        if step in ("late", "cut", "large", "die"):
            self.billed += worst
            self.lost.add(prompt)
            if step == "die":
                raise Killed
            return Exchange(fault=step, detail="lost")
        if step != "well" and step[0] != "usage":
            status, content = step
            self.billed += worst if status in (200, 502) else 0
            return Exchange(status, body=content)
        self.billed += worst
        self.paid.append(prompt)
        text = f"<text>Patient {self.calls} came with complaint {self.calls * 7919}, and left.</text>"
        usage = {"prompt_tokens": worst - 10, "completion_tokens": 10} if step == "well" else step[1]
        choice = {"message": {"content": text}, "finish_reason": "stop"}
        return Exchange(200, body=json.dumps({"choices": [choice], "usage": usage}).encode())


def write(journal: Journal, sums: list[tuple[str, int]]) -> None:
    """One process: two steps, each followed by what stands for a private sum over its texts."""
    table: dict[str, Any] = {
        "name": "far",
        "kind": "openai",
        "model": "tiny",
        "base_url": "http://127.0.0.1:1/v1",
        "api_key_env": "",
    }
    limits: dict[str, Any] = {
        "max_tokens": MOST,
        "token_budget": CAP,
        "concurrency": 1,
        "max_wait_s": 0.0,
        "max_retries": 1,
    }
    far = OpenAIGenerator(OpenAISettings(**table, **limits), environment={}, journal=journal)
    prompts = Prompts(TaskWords(description="a note", labels=("x", "y")))
    author = Author({"far": far}, prompts, journal, Silent(), seed=1)
    for number in range(2):
        step = f"round {number}"
        written = author.write(step, number, [Order("far", "zero_shot", "xy"[place % 2]) for place in range(ORDERS)])
        author.close_orders()
        sums.append((step, sum(sample is not None for sample in written)))
    author.check_finished()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(EXCHANGES, max_size=30))
def test_any_sequence_of_exchanges_stays_within_the_cap_and_can_be_continued(
    monkeypatch: pytest.MonkeyPatch, script: Sequence[Any]
) -> None:
    endpoint = Scripted(script)

    def exchange(_self: Connection, _method: str, _path: str, content: bytes, **_options: Any) -> Exchange:
        return endpoint.exchange(json.loads(content))

    monkeypatch.setattr(openai_generator, "PATIENCE_S", 0.0)
    monkeypatch.setattr(Connection, "exchange", exchange)
    journal = Journal(Path(":memory:"))
    sums: list[tuple[str, int]] = []
    for _ in range(len(script) + 3):
        try:
            write(journal, sums)
        except Killed:
            continue
        except GenerationError as failure:
            if failure.code == "budget-exhausted":
                break
            continue
        break
    else:
        raise AssertionError("the same command never ends")
    assert endpoint.billed <= CAP
    assert all(2 * came >= ORDERS for _, came in sums)
    assert len(endpoint.paid) - len(set(endpoint.paid)) == 0
