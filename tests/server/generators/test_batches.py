"""Batch files against a server that has them: nothing is submitted twice, and half a batch is used."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from tests.doubles.chat_server import ChatServer, completion, serving
from tests.doubles.pace import slow_after
from undersong_common.errors import GenerationError
from undersong_server.database.journal import Journal
from undersong_server.generators.author import Author
from undersong_server.generators.interface import BudgetExhausted, Completion, GenerationRequest, Loss
from undersong_server.generators.kinds.openai import OpenAIGenerator, OpenAISettings
from undersong_server.generators.kinds.openai import batches as openai_batches
from undersong_server.generators.kinds.openai import generator as openai_generator
from undersong_server.generators.kinds.openai.batches import BatchRequest
from undersong_server.generators.orders import Order
from undersong_server.progress import Silent
from undersong_server.prompts.rendering import Prompts, TaskWords

pytestmark = pytest.mark.heavy


class BatchServer:
    """Files and batches as OpenAI has them; a batch has ended at its second look, without the lines in ``lost``."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.lost: set[int] = set()
        self.fails_after: int | None = None  # requests that are answered before the server is gone
        self.throttled: int | None = None  # each request is answered once it was refused so often
        self.refused = 0
        self.says = "Answer to {}"
        self.url = ""
        self.spoils: dict[str, tuple[int, str]] = {}  # answers by what is asked for; the server does what it was asked

    def reply(self, path: str, _headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        status, content = self.answered(path, body)
        status, content = self.spoils.get(self.what(path, body), (status, content))
        return status, {"Content-Type": "application/json"}, content.encode()

    def what(self, path: str, body: bytes) -> str:
        """What is asked for: "create", "list", or "batch" or "file" with its place among the batches, from 1."""
        if path.startswith("/v1/batches") and "/" not in path.removeprefix("/v1/batches"):
            return "create" if body else "list"
        name = path.split("/")[3] if path.count("/") > 2 else ""
        files = [f"out-{batch['input_file_id']}" for batch in self.batches.values()]
        return (
            f"batch {[*self.batches, name].index(name) + 1}"
            if name in self.batches
            else (f"file {files.index(name) + 1}" if name in files else path)
        )

    def answered(self, path: str, body: bytes) -> tuple[int, str]:
        if self.fails_after is not None:
            self.fails_after -= 1
            if self.fails_after < 0:
                return 500, "{}"
        if self.throttled is not None:
            self.refused = (self.refused + 1) % (self.throttled + 1)
            if self.refused:
                return 429, "{}"
        if path == "/v1/files":
            number = f"file-{len(self.files)}"
            found = re.search(rb"\r\n\r\n(\{.*\})\r\n--", body, re.DOTALL)
            assert found is not None
            self.files[number] = found[1].decode()
            return 200, json.dumps({"id": number, "object": "file", "purpose": "batch"})
        if path == "/v1/batches":
            asked = json.loads(body)
            number = f"batch-{len(self.batches)}"
            self.batches[number] = {"id": number, "looks": 0, "status": "in_progress", **asked}
            return 200, json.dumps(self.batches[number])
        if path.startswith("/v1/batches?"):
            return 200, json.dumps({"object": "list", "data": list(self.batches.values())})
        if path.startswith("/v1/batches/"):
            batch = self.batches[path.rsplit("/", 1)[1]]
            batch["looks"] += 1
            if batch["looks"] > 1:
                batch |= {"status": "completed", "output_file_id": f"out-{batch['input_file_id']}"}
            return 200, json.dumps(batch)
        if path.startswith("/v1/files/out-"):
            lines = self.files[path.split("/")[3].removeprefix("out-")].split("\n")
            return 200, "\n".join(self.line(json.loads(line), n) for n, line in enumerate(lines) if n not in self.lost)
        return 404, "{}"

    def line(self, asked: dict[str, Any], number: int) -> str:
        body = completion(self.says.format(asked["body"]["messages"][-1]["content"], number=number))
        response = (
            {"status_code": 200, "body": body}
            if number != 3
            else {"status_code": 400, "body": {"error": {"message": "too long"}}}
        )
        return json.dumps({"custom_id": asked["custom_id"], "response": response, "error": None})


def generator(server: BatchServer | ChatServer, journal: Journal, **fields: Any) -> OpenAIGenerator:
    table = {"name": "far", "kind": "openai", "model": "tiny", "base_url": server.url, "api_key_env": "", "batch": True}
    prices = {"price_per_1k_prompt": 1.0, "price_per_1k_completion": 1.0, "max_tokens": 20, "batch_poll_s": 0.01}
    prices |= {"max_wait_s": 0.01}
    return OpenAIGenerator(OpenAISettings(**{**table, **prices, **fields}), environment={}, journal=journal)


def capped(server: BatchServer, journal: Journal, token_budget: int) -> OpenAIGenerator:
    """A generator whose endpoint has answered before, so that it is seen what an answer is billed."""
    far = generator(server, journal, token_budget=token_budget)
    far.observe([GenerationRequest("zero_shot", "x", "before", 0)], [Completion("a text")])
    return far


def requests(count: int) -> list[GenerationRequest]:
    return [GenerationRequest("zero_shot", "x", f"text {n}", n) for n in range(count)]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_generator, "PATIENCE_S", 0.2)


def test_batch_is_submitted_once_at_half_price_and_one_line_fails_alone(journal: Journal) -> None:
    with serving(BatchServer()) as server:
        answers = dict(generator(server, journal).answer(requests(6)))
    assert len(server.batches) == 1
    assert isinstance(answers[3], GenerationError)
    assert "too long" in str(answers[3])
    assert answers[5] == Completion("Answer to text 5", 11, 7, 0.009)


@pytest.mark.parametrize("batch", [False, True])
def test_answered_requests_of_a_batch_do_not_count_as_lost(journal: Journal, batch: bool) -> None:
    """None of them counts as lost, in this process or the next, beside what its answer took."""
    prompts = Prompts(TaskWords(description="a note", labels=("x",)))
    orders = [Order("far", "zero_shot", "x")] * 3
    counted = itertools.count()
    single = ChatServer(lambda _prompt: completion(f"Text {next(counted)} of many."), key="")
    with serving(BatchServer() if batch else single) as server:
        if isinstance(server, BatchServer):
            server.says = "Text {number} of many."
        far = generator(server, journal, batch=batch)
        Author({"far": far}, prompts, journal, Silent(), seed=1).write("one", 0, orders)
        again = generator(server, journal, batch=batch)
        Author({"far": again}, prompts, journal, Silent(), seed=1).write("one", 0, orders)
    assert journal.items("attempt/") == {}
    assert far.lost == again.lost == Loss()
    assert far._budget._spent.tolist() == again._budget._spent.tolist()


def test_rate_limited_batch_call_is_retried(journal: Journal) -> None:
    with serving(BatchServer()) as server:
        server.throttled = 2
        answers = dict(generator(server, journal, max_wait_s=0.01, max_retries=2).answer(requests(3)))
        assert all(isinstance(answer, Completion) for answer in answers.values())
        assert len(server.batches) == len(server.files) == 1
        server.throttled = 10**6
        with pytest.raises(GenerationError) as stopped:
            dict(generator(server, journal, max_wait_s=0.01, max_retries=2).answer(requests(5)))
        assert stopped.value.code == "batch-unreachable"


def test_resume_submits_a_new_batch_once_the_endpoint_is_mended(journal: Journal) -> None:
    prompts = Prompts(TaskWords(description="a note", labels=("x",)))
    orders = [Order("far", "zero_shot", "x")] * 3
    with serving(BatchServer()) as server:
        server.says = "I can't help with that request."
        for _ in range(2):
            writer = Author({"far": generator(server, journal)}, prompts, journal, Silent(), seed=1)
            with pytest.raises(GenerationError) as stopped:
                writer.write("one", 0, orders)
            assert stopped.value.code == "answers-useless"
        server.says = "A note about person {number}."
        writer = Author({"far": generator(server, journal)}, prompts, journal, Silent(), seed=1)
        assert all(writer.write("one", 0, orders))


@pytest.mark.parametrize("answered", [1, 2, 3, 4])
def test_process_killed_at_any_call_submits_no_batch_twice(journal: Journal, answered: int) -> None:
    with serving(BatchServer()) as server:
        server.fails_after = answered  # the file, the batch, the first look, the second look
        with pytest.raises(GenerationError) as stopped:
            dict(generator(server, journal).answer(requests(3)))
        assert stopped.value.code == "batch-unreachable"
        server.fails_after = None
        answers = dict(generator(server, journal).answer(requests(3)))
    assert [answers[n].text for n in range(3)] == [f"Answer to text {n}" for n in range(3)]  # type: ignore[union-attr]
    assert len(server.batches) == 1


def test_answers_read_before_a_kill_are_not_requested_again(journal: Journal) -> None:
    with serving(BatchServer()) as server:
        dict(generator(server, journal).answer(requests(3)))
        rest = dict(generator(server, journal).answer([*requests(3)[1:], *requests(5)[4:]]))
    assert [answer.text for _, answer in sorted(rest.items()) if isinstance(answer, Completion)] == [
        "Answer to text 1",
        "Answer to text 2",
        "Answer to text 4",
    ]
    assert len(server.batches) == 2  # the second with text 4 alone
    assert len(server.files["file-1"].split("\n")) == 1


def test_requests_are_split_into_files_within_line_and_byte_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (openai_batches.MOST_LINES, openai_batches.MOST_BYTES) == (50_000, 200_000_000)
    monkeypatch.setattr(openai_batches, "MOST_LINES", 500)
    asked = {f"{number:032}": BatchRequest({"messages": "a note"}, (1, 1), 0.0) for number in range(1_001)}
    parts = list(openai_batches._split_requests(asked))
    assert [len(part) for part in parts] == [500, 500, 1]
    assert {name: request for part in parts for name, request in part.items()} == asked
    few = dict(list(asked.items())[:10])
    (line,) = {len(openai_batches._request_line(name, each, "/v1/chat/completions")) + 1 for name, each in few.items()}
    monkeypatch.setattr(openai_batches, "MOST_BYTES", 4 * line)
    assert [len(part) for part in openai_batches._split_requests(few)] == [4, 4, 2]


def test_batch_files_are_submitted_together_and_read_in_order(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_batches, "MOST_LINES", 3)
    with serving(BatchServer()) as server:
        answers = dict(generator(server, journal).answer(requests(7)))
        assert [len(file.split("\n")) for file in server.files.values()] == [3, 3, 1]
        assert sorted(answers) == list(range(7))
        again = dict(generator(server, journal).answer(requests(7)))
        assert len(server.batches) == 3
        assert again == answers


def test_partial_batch_is_used_and_too_small_a_budget_submits_none(journal: Journal) -> None:
    with serving(BatchServer()) as server:
        with pytest.raises(BudgetExhausted):
            dict(generator(server, journal, price_budget_usd=0.01).answer(requests(3)))
        assert server.batches == {}
        server.lost = {1}
        answers = dict(generator(server, journal).answer(requests(3)))
    assert [isinstance(answers[n], Completion) for n in range(3)] == [True, False, True]


@pytest.mark.parametrize(("cap", "sizes"), [({}, [5]), ({"token_budget": 10_000}, [1, 4])])
def test_first_batch_under_a_cap_measures_the_billed_size_of_an_answer(
    journal: Journal, cap: dict[str, Any], sizes: list[int]
) -> None:
    with serving(BatchServer()) as server:
        assert len(dict(generator(server, journal, **cap).answer(requests(5)))) == 5
    assert [len(file.split("\n")) for file in server.files.values()] == sizes


NOT_THERE = json.dumps({"error": {"message": "No batch is here under our retention policy."}})
CAP = 1500  # tokens
WORST = 90  # tokens of one of the five requests of the tests below


def taken(far: OpenAIGenerator, journal: Journal) -> list[Completion]:
    """Answers to five requests, whose attempts are taken out of the journal as the author does."""
    answers = [answer for _, answer in far.answer(requests(5)) if isinstance(answer, Completion)]
    journal.exchange([answer.attempt for answer in answers], [])
    return answers


def whole_processes(server: BatchServer, journal: Journal, count: int) -> list[GenerationError]:
    """Errors of processes one after the other, each with five requests under a cap, up to one that ends well."""
    errors = []
    for _ in range(count):
        try:
            taken(capped(server, journal, CAP), journal)
        except GenerationError as error:
            errors.append(error)
        else:
            break
    return errors


ACCEPTED_AND_LOST = {
    "status-404": {f"batch {n}": (404, NOT_THERE) for n in range(1, 20)},
    "status-410": {f"batch {n}": (410, "gone") for n in range(1, 20)},
    "status-403": {f"batch {n}": (403, NOT_THERE) for n in range(1, 20)},
    "status-400": {f"batch {n}": (400, NOT_THERE) for n in range(1, 20)},
    "file-404": {f"file {n}": (404, NOT_THERE) for n in range(1, 20)},
    "creation-cut": {"create": (504, "<title>Gateway</title>"), "list": (200, '{"data": []}')},
    "creation-without-id": {"create": (200, '{"id": null}'), "list": (404, "{}")},
    "list-of-nonsense": {"create": (200, "{"), "list": (200, '{"data": [1, {"metadata": 3}, {"id": null}]}')},
}


@pytest.mark.parametrize("kind", slow_after(ACCEPTED_AND_LOST, 3))
def test_budget_holds_over_restarts_that_each_lose_an_accepted_batch(journal: Journal, kind: str) -> None:
    with serving(BatchServer()) as server:
        server.spoils = ACCEPTED_AND_LOST[kind]
        errors = whole_processes(server, journal, 8)
        assert len(errors) == 8
        assert isinstance(errors[-1], BudgetExhausted)
        submitted = sum(len(server.files[batch["input_file_id"]].split("\n")) for batch in server.batches.values())
        assert 5 < submitted <= CAP // WORST
        assert "an answer was lost, and counts at its worst case" in str(errors[-1])
        lost = generator(server, journal).lost
        assert lost.attempts == submitted
        assert lost.tokens == submitted * WORST
        server.spoils = {}
        assert len(taken(capped(server, journal, 10 * CAP), journal)) >= 4  # the fourth line is refused


@pytest.mark.parametrize("what", ["batch 1", "file 1"])
def test_second_process_replaces_a_batch_that_is_gone_for_ever(journal: Journal, what: str) -> None:
    with serving(BatchServer()) as server:
        server.spoils = {what: (404, NOT_THERE)}
        (error,) = whole_processes(server, journal, 2)
        assert error.code == "batch-gone"
        assert "retention policy" in str(error)
        assert "same command again" in error.remedy
        assert "correct model" not in error.remedy
        assert len(server.batches) == 2
        assert generator(server, journal).lost.attempts == 5


@pytest.mark.parametrize("what", ["batch 1", "file 1"])
def test_process_that_cannot_find_its_batch_stops_before_paying_again(journal: Journal, what: str) -> None:
    """It may have been started with another key or address: the next one with the right ones reads the batch."""
    with serving(BatchServer()) as server:
        server.fails_after = 2  # the file and the batch
        with pytest.raises(GenerationError):
            dict(generator(server, journal).answer(requests(3)))
        server.fails_after, server.spoils = None, {what: (404, NOT_THERE)}
        with pytest.raises(GenerationError) as stopped:
            dict(generator(server, journal).answer(requests(3)))
        assert stopped.value.code == "batch-gone"
        assert len(server.batches) == 1
        server.spoils = {}
        answers = dict(generator(server, journal).answer(requests(3)))
    assert [answers[n].text for n in range(3)] == [f"Answer to text {n}" for n in range(3)]  # type: ignore[union-attr]
    assert len(server.batches) == 1


def test_batch_that_reappears_is_read_and_no_longer_counts_as_lost(journal: Journal) -> None:
    with serving(BatchServer()) as server:
        server.spoils = {"file 1": (404, NOT_THERE)}
        whole_processes(server, journal, 1)
        assert generator(server, journal).lost.attempts == 5
        server.spoils = {}
        far = generator(server, journal)
        assert len(taken(far, journal)) == 5
        assert len(server.batches) == 2  # the second with the line that was refused
        assert far.lost.attempts == generator(server, journal).lost.attempts == 0


@pytest.mark.parametrize("status", [400, 401, 413, 500])
def test_a_batch_that_was_not_accepted_costs_nothing(journal: Journal, status: int) -> None:
    with serving(BatchServer()) as server:
        server.spoils = {"create": (status, "no"), "list": (200, '{"data": []}')}
        for _ in range(5):
            (error,) = whole_processes(server, journal, 1)
            assert not isinstance(error, BudgetExhausted)
            assert "asked after" not in str(error)
        assert generator(server, journal).lost.attempts == 0


@pytest.mark.parametrize(
    ("status", "fields", "lost"),
    [
        ("completed", {}, 1),
        ("completed", {"request_counts": {"total": 5, "completed": 4, "failed": 1}}, 1),
        ("expired", {"request_counts": {"total": 5, "completed": 3, "failed": 1}}, 0),
        ("cancelled", {}, 1),
        ("cancelled", {"request_counts": {"total": 5, "completed": 3, "failed": 0}}, 0),
        ("failed", {"request_counts": {"completed": 3}, "usage": {"total_tokens": 72}}, 1),
        ("failed", {"request_counts": {"completed": 3}, "usage": {"total_tokens": 54}}, 0),
    ],
)
def test_unanswered_request_of_an_ended_batch_counts_as_lost_if_billable(
    journal: Journal, status: str, fields: dict[str, Any], lost: int
) -> None:
    """Five requests: one is refused in its line, one is left out, three are answered for 18 tokens each."""
    with serving(BatchServer()) as server:
        server.lost = {1}
        ended = {"id": "x", "status": status, "output_file_id": "out-file-0", **fields}
        server.spoils = {"batch 1": (200, json.dumps(ended))}
        far = generator(server, journal)
        answers = dict(far.answer(requests(5)))
        assert sum(isinstance(answer, Completion) for answer in answers.values()) == 3
        assert far.lost.attempts == lost
