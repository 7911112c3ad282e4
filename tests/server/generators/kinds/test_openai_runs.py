"""A run of two steps against any sequence of exchanges: within its cap, nothing paid twice, always resumable."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.doubles.misbehaving_endpoint import Endpoint
from tests.doubles.pace import examples
from undersong_common.errors import GenerationError
from undersong_server.database.journal import Journal
from undersong_server.generators.author import Author
from undersong_server.generators.kinds.openai import OpenAIGenerator, OpenAISettings
from undersong_server.generators.kinds.openai import generator as openai_generator
from undersong_server.generators.kinds.openai.attempt import EndpointConnection
from undersong_server.generators.kinds.openai.batches import LOOKS
from undersong_server.generators.kinds.openai.states import BILLED_STATUSES, Exchange
from undersong_server.generators.orders import Order
from undersong_server.generators.reading import REFUSED
from undersong_server.progress import Silent
from undersong_server.prompts.rendering import Prompts, TaskWords

MOST = 60  # tokens of an answer
ORDERS = 6
CAPS = {"single": 6000, "batch": 20_000}
ENDLESS = 10**9

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "choices", "usage", "content", "detail", "status", "id"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
BODIES: st.SearchStrategy[bytes] = st.one_of(
    st.sampled_from(
        [
            b"",
            b"<html><title>Bad gateway</title></html>",
            b'{"error": "no"}',
            b'{"error": {"message": "flagged by moderation", "code": 403}}',
            b'{"error": {"message": "Insufficient credits", "code": 402}}',
            b'{"error": {"message": "Please try again in 0.001s."}}',
            b'{"error": {"message": "Please try again in 50000s."}}',
            b'{"choices": [{"message": null}], "usage": []}',
            b'data: {"choices": []}',
            b"[" * 5000,
            b'{"choices": [{"message": {"content": "<text>half"}, "finish_reason": "length"}]}',
        ]
    ),
    JSON,
    st.binary(max_size=30),
)
STATUSES = st.one_of(
    st.sampled_from([200, 301, 400, 401, 402, 403, 404, 418, 422, 429, 500, 502, 503]), st.integers(200, 599)
)
PAUSES = st.sampled_from([{}, {}, {"retry-after": "0.001"}, {"retry-after": "100000"}, {"retry-after": "soon"}])
FAULTS = ["late", "cut", "large", "unreachable", "certificate", "proxy"]
USAGES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([{"prompt_tokens": -4}, {"prompt_tokens": 9, "completion_tokens": 10**30}, None, [], {}]),
    st.dictionaries(
        st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details"]),
        st.integers(-5, 0) | st.integers(10**7 + 1) | st.floats(0.1, 0.9) | st.none() | st.text(max_size=3),
    ),
)
EXCHANGES: st.SearchStrategy[Any] = st.one_of(
    st.just("well"),
    st.just("well"),
    st.sampled_from([*FAULTS, "die", "die before"]),
    st.tuples(STATUSES, PAUSES, BODIES),
    st.tuples(st.just("usage"), USAGES),
)


class Killed(BaseException):
    """The process dies before the endpoint has heard it, or after it has answered and before anything is kept."""


def text(number: int) -> str:
    return f"<text>Patient {number} came with complaint {number * 7919}, and left.</text>"


class Scripted:
    """Stands for the connection: answers by a script, then well; counts what an endpoint would have billed."""

    def __init__(self, script: Sequence[Any]) -> None:
        self.script = list(script)
        self.calls = self.billed = self.spoilt_looks = 0
        self.paid: list[str] = []

    def exchange(self, method: str, path: str, content: bytes) -> Exchange:
        step: Any = self.script.pop(0) if self.script else "well"
        if step in ("unreachable", "certificate", "proxy"):
            return Exchange(fault=step, detail="no connection")
        if step == "die before":
            raise Killed
        if isinstance(step, str) and step != "well":
            self.lose(method, path, content)
            if step == "die":
                raise Killed
            return Exchange(fault=step, detail="lost")  # type: ignore[arg-type]
        if step != "well" and step[0] != "usage":
            status, headers, body = step
            self.spoilt_looks += method == "GET"
            if status in BILLED_STATUSES or (200 <= status < 300 and b'"error"' not in body and b'"code"' not in body):
                self.lose(method, path, content)
            return Exchange(status, headers, body)
        return self.answer(method, path, content, step)

    def lose(self, method: str, path: str, content: bytes) -> None:
        """The endpoint hears it, does what was asked, and its answer is lost."""
        self.bill(json.loads(content))

    def answer(self, method: str, path: str, content: bytes, step: Any) -> Exchange:
        body = json.loads(content)
        return Exchange(200, body=json.dumps(self.completion(body, step)).encode())

    def bill(self, body: Mapping[str, Any]) -> int:
        self.calls += 1
        worst = len(json.dumps(body["messages"]).encode()) // 4 + MOST // 2  # fewer tokens than bytes
        self.billed += worst
        return worst

    def completion(self, body: Mapping[str, Any], step: Any) -> dict[str, Any]:
        worst = self.bill(body)
        self.paid.append(json.dumps(body["messages"]))
        usage = {"prompt_tokens": worst - 10, "completion_tokens": 10} if step == "well" else step[1]
        return {"choices": [{"message": {"content": text(self.calls)}, "finish_reason": "stop"}], "usage": usage}


class ScriptedBatches(Scripted):
    """The same with files and batches, whose lines are answered by a script of their own."""

    def __init__(self, script: Sequence[Any], lines: Sequence[Any]) -> None:
        super().__init__(script)
        self.lines = list(lines)
        self.endpoint: Any = Endpoint(self.line)

    def line(self, _number: int, body: Mapping[str, Any]) -> tuple[int, dict[str, str], Any]:
        step: Any = self.lines.pop(0) if self.lines else "well"
        if step != "well" and step[0] != "usage":
            status, _, content = step
            if status == 200:
                self.bill(body)
            return status, {}, content.decode("latin-1")
        return 200, {}, self.completion(body, step)

    def lose(self, method: str, path: str, content: bytes) -> None:
        self.endpoint.respond(method, f"/v1{path}", content)

    def answer(self, method: str, path: str, content: bytes, step: Any) -> Exchange:
        status, headers, body = self.endpoint.respond(method, f"/v1{path}", content)
        return Exchange(status, headers, body)


def write_in_steps(journal: Journal, sums: list[tuple[int, int]], way: str, cap: int) -> None:
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
        "token_budget": cap,
        "concurrency": 1,
        "max_wait_s": 0.0,
        "max_retries": 1,
        "batch": way == "batch",
        "batch_poll_s": 0.001,
        "deadline_s": 30.0,
    }
    far = OpenAIGenerator(OpenAISettings(**table, **limits), environment={}, journal=journal)
    prompts = Prompts(TaskWords(description="a note", labels=("x", "y")))
    author = Author({"far": far}, prompts, journal, Silent(), seed=1)
    for number in range(2):
        before = author.usage["far"].faults[REFUSED]
        orders = [Order("far", "zero_shot", "xy"[place % 2]) for place in range(ORDERS)]
        written = author.write(f"round {number}", number, orders)
        author.close_orders()
        refused = author.usage["far"].faults[REFUSED] - before  # what is refused for its content is done
        sums.append((sum(sample is not None for sample in written), refused))
    author.check_finished()


def check_run(monkeypatch: pytest.MonkeyPatch, endpoint: Scripted, way: str) -> None:
    """Plays processes one after the other until one ends well, then with a cap that nothing reaches."""

    def exchange(_self: EndpointConnection, method: str, path: str, content: bytes = b"", **_options: Any) -> Exchange:
        return endpoint.exchange(method, path, content)

    monkeypatch.setattr(openai_generator, "PATIENCE_S", 0.0)
    monkeypatch.setattr(EndpointConnection, "exchange", exchange)
    journal = Journal(Path(":memory:"))
    sums: list[tuple[int, int]] = []
    caps, codes, billed = [CAPS[way], ENDLESS], list[int](), list[tuple[int, int]]()
    for _ in range(len(endpoint.script) + 6):
        try:
            write_in_steps(journal, sums, way, caps[0])
        except Killed:
            continue
        except GenerationError as failure:
            codes.append(failure.exit_code)
            if failure.code == "budget-exhausted":
                billed.append((endpoint.billed, caps.pop(0)))
            continue
        break
    else:
        raise AssertionError("the same command never ends")
    assert set(codes) <= {7}
    assert all(spent <= cap for spent, cap in [*billed, (endpoint.billed, caps[0])])
    assert all(came and 2 * came >= ORDERS - refused for came, refused in sums)
    if endpoint.spoilt_looks < LOOKS:  # else a batch, or a file of it, may have seemed gone
        assert len(endpoint.paid) == len(set(endpoint.paid))


SETTINGS = settings(
    max_examples=examples(40, 300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.heavy
@SETTINGS
@given(script=st.lists(EXCHANGES, max_size=30))
def test_any_sequence_of_exchanges_stays_within_the_cap_after_restarts(
    monkeypatch: pytest.MonkeyPatch, script: Sequence[Any]
) -> None:
    check_run(monkeypatch, Scripted(script), "single")


LINES = st.lists(EXCHANGES.filter(lambda step: step == "well" or not isinstance(step, str)), max_size=12)


@pytest.mark.heavy
@SETTINGS
@example(script=["well", "late", (200, {}, b"")], lines=[])  # a page in place of a list, a batch or a file
@example(script=["well", "well", *[(200, {}, b"[]")] * 3], lines=[])
@example(script=["well", "well", "well", *[(200, {}, b"{}")] * 3], lines=[])
@given(script=st.lists(EXCHANGES, max_size=20), lines=LINES)
def test_any_sequence_of_exchanges_about_batches_stays_within_the_cap(
    monkeypatch: pytest.MonkeyPatch, script: Sequence[Any], lines: Sequence[Any]
) -> None:
    check_run(monkeypatch, ScriptedBatches(script, lines), "batch")
