"""The states' table: every case, and that each of many mistakes in the table is noticed by one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.doubles.misbehaving_endpoint import SCENARIOS, Endpoint, completion
from undersong_server.generators.kinds.openai import states
from undersong_server.generators.kinds.openai.states import (
    Exchange,
    ExchangeOutcome,
    ExchangeState,
    TokenUsage,
    judge,
    read_usage,
)

WORST = (500, 100)


def verdict(status: int, body: Any, **headers: str) -> ExchangeOutcome:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return judge(Exchange(status, headers, content), WORST, ["secret-key"])


def said(words: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": words, **fields}}


STATES: list[tuple[int, Any, ExchangeState]] = [
    (200, completion("<text>A note.</text>"), ExchangeState.ANSWER),
    *((status, said("no"), ExchangeState.WAIT) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529)),
    *((status, said("no"), ExchangeState.ACCOUNT) for status in (301, 307, 401, 402, 403, 404, 407)),
    *((status, said("no"), ExchangeState.REFUSED) for status in (400, 405, 410, 418, 422, 451)),
    *((status, said("flagged by moderation"), ExchangeState.REQUEST) for status in (200, 400, 403, 422)),
    (400, said("This model's maximum context length is 8192 tokens"), ExchangeState.REQUEST),
    (413, said("no"), ExchangeState.REQUEST),
    (400, said("Billing hard limit has been reached"), ExchangeState.ACCOUNT),
    (400, said("API key not valid"), ExchangeState.ACCOUNT),
    (400, said("the model is loading"), ExchangeState.WAIT),
    (400, said("Enqueued token limit reached"), ExchangeState.WAIT),
    (429, said("exceeded", code="insufficient_quota"), ExchangeState.ACCOUNT),
    (429, said("You exceeded your current quota. Please retry in 20s."), ExchangeState.WAIT),
    (429, said("quota of requests per minute; see billing"), ExchangeState.WAIT),
    (200, said("Insufficient credits", code=402), ExchangeState.ACCOUNT),
    (200, said("slow down", code="429"), ExchangeState.WAIT),
    (200, {"choices": []}, ExchangeState.LOST),
    (200, b'data: {"choices": []}\n\n', ExchangeState.LOST),
    (200, b'{"choices": [{"mess', ExchangeState.LOST),
    (200, b"[" * 100_000, ExchangeState.LOST),
    *((200, completion("half", reason=reason), ExchangeState.LOST) for reason in ("error", "abort", "network-error")),
]


def check_states() -> None:
    for status, body, state in STATES:
        assert verdict(status, body).state is state, (status, body)


def check_costs() -> None:
    assert all(verdict(status, said("no")).billed for status in (502, 504, 520, 522, 524))
    assert not any(verdict(status, said("no")).billed for status in (400, 429, 500, 503))
    assert verdict(200, {"choices": []}).billed
    for fault in ("late", "cut", "large"):
        assert judge(Exchange(fault=fault), WORST).billed
    assert not judge(Exchange(fault="unreachable"), WORST).billed


def check_ends() -> None:
    ends = {
        **dict.fromkeys(("stop", "EOS-token", "end_turn"), ""),
        **dict.fromkeys(("length", "MAX_TOKENS", "model_length"), "length"),
        **dict.fromkeys(("SAFETY", "content-filter", "blocklist"), "filter"),
        "tool_calls": "unknown",
    }
    for reason, finish in ends.items():
        found = verdict(200, completion("A note.", reason=reason)).completion
        assert found is not None
        assert found.finish == finish
    unstated = verdict(200, completion("A note.", reason=None)).completion
    assert unstated is not None
    assert unstated.finish == "unknown"
    filtered = verdict(200, {"choices": [{"message": None, "finish_reason": "content_filter"}]}).completion
    assert filtered is not None
    assert (filtered.text, filtered.finish) == ("", "filter")


def check_usage() -> None:
    def usage(**fields: Any) -> TokenUsage:
        return read_usage(fields, "A note.", WORST)

    assert usage(prompt_tokens=40, completion_tokens=20) == TokenUsage(40, 20)
    assert usage(prompt_tokens=40, completion_tokens=20, total_tokens=90) == TokenUsage(40, 50)
    reasoning = {"completion_tokens_details": {"reasoning_tokens": 2000}}
    assert usage(prompt_tokens=300, completion_tokens=60, total_tokens=2360, **reasoning) == TokenUsage(300, 2060)
    assert usage(prompt_tokens=300, completion_tokens=60, **reasoning) == TokenUsage(300, 2060)
    for tokens in (0, -500, 10**7 + 1, 10**30, 2.5, True, "7", None, float("nan")):
        assert usage(prompt_tokens=40, completion_tokens=tokens) == TokenUsage(*WORST, reported=False)
    assert usage(prompt_tokens=40, completion_tokens=10**7) == TokenUsage(40, 10**7)


def check_limits() -> None:
    assert (states.FAILURES_IN_A_ROW, states.FORBIDDEN_IN_A_ROW) == (10, 3)
    assert len(verdict(400, said("x" * 1000)).words) < 250


CHECKS = (check_states, check_costs, check_ends, check_usage, check_limits)


@pytest.mark.parametrize("check", CHECKS)
def test_table_of_endpoint_states_decides_every_case_as_stated(check: Callable[[], None]) -> None:
    check()


def check_all() -> None:
    for check in CHECKS:
        check()


MISTAKES: list[tuple[str, Any]] = [
    *(("STATUS_STATES", {**states.STATUS_STATES, status: ExchangeState.REFUSED}) for status in (408, 409, 425, 429)),
    *(("STATUS_STATES", {**states.STATUS_STATES, status: ExchangeState.WAIT}) for status in (401, 402, 404, 407)),
    ("WORDED_STATUSES", {400, 413, 422}),
    ("WORDED_STATUSES", {403, 413, 422}),
    ("BILLED_STATUSES", {504, 520, 522, 524}),
    ("BILLED_STATUSES", states.BILLED_STATUSES | {500}),
    ("FAULT_STATES", {**states.FAULT_STATES, "late": ExchangeState.WAIT}),
    ("FAULT_STATES", {**states.FAULT_STATES, "unreachable": ExchangeState.LOST}),
    ("ENDS", {**states.ENDS, "length": ""}),
    ("ENDS", {**states.ENDS, "tool_calls": ""}),
    ("ENDS", {**states.ENDS, "safety": ""}),
    ("LOST_ENDS", {"abort", "network_error"}),
    ("MOST_TOKENS", 10**31),
    ("FAILURES_IN_A_ROW", 11),
    ("FORBIDDEN_IN_A_ROW", 1),
    ("SHOWN_CHARACTERS", 2000),
    *(
        ("PROBLEMS", {**states.PROBLEMS, kind: states.Problem(state, "x", "x")})
        for kind, state in (
            ("content", ExchangeState.REFUSED),
            ("long", ExchangeState.WAIT),
            ("quota", ExchangeState.REFUSED),
        )
    ),
]


@pytest.mark.heavy
@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistake_in_the_table_of_endpoint_states_is_noticed(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    name, planted = MISTAKES[number]
    monkeypatch.setattr(states, name, planted)
    with pytest.raises((AssertionError, KeyError)):
        check_all()


# Bodies of vendors: Anthropic's and Gemini's compatible endpoints, vLLM, llama.cpp, Ollama, Azure, MiniMax, ...
VENDORS: list[tuple[int, Any, ExchangeState, str]] = [
    (400, {"__type": "ThrottlingException", "message": "Rate exceeded"}, ExchangeState.WAIT, "Rate exceeded"),
    (400, {"__type": "TooManyRequestsException", "message": "Slow down"}, ExchangeState.WAIT, "Slow down"),
    (
        403,
        {"error": {"message": "We have suspended your organization's access for violating our usage policies."}},
        ExchangeState.ACCOUNT,
        "suspended",
    ),
    (
        529,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        ExchangeState.WAIT,
        "Overloaded",
    ),
    (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "Your credit balance is too low to access the API.",
            },
        },
        ExchangeState.ACCOUNT,
        "credit balance",
    ),
    (200, {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, ExchangeState.REQUEST, "PROHIBITED"),
    (200, {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {}}, ExchangeState.REQUEST, "SAFETY"),
    (
        400,
        [{"error": {"code": 400, "message": "User location is not supported."}}],
        ExchangeState.REFUSED,
        "User location",
    ),
    (
        400,
        {"object": "error", "message": "This model's maximum context length is 2048 tokens.", "code": 400},
        ExchangeState.REQUEST,
        "2048",
    ),
    (404, {"object": "error", "message": "The model `x` does not exist."}, ExchangeState.ACCOUNT, "does not exist"),
    (
        503,
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        ExchangeState.WAIT,
        "Loading",
    ),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
            }
        },
        ExchangeState.REQUEST,
        "context size",
    ),
    (404, said('model "x" not found, try pulling it first'), ExchangeState.ACCOUNT, "try pulling"),
    (500, said("model requires more system memory than is available"), ExchangeState.WAIT, "system memory"),
    (
        400,
        said(
            "The response was filtered",
            code="content_filter",
            innererror={"code": "ResponsibleAIPolicyViolation"},
        ),
        ExchangeState.REQUEST,
        "filtered",
    ),
    (
        429,
        said("exceeded token rate limit of your pricing tier. Please retry after 7 seconds."),
        ExchangeState.WAIT,
        "retry after 7",
    ),
    (401, {"error": {"code": "401", "message": "invalid subscription key"}}, ExchangeState.ACCOUNT, "subscription key"),
    (403, said("Public access is disabled."), ExchangeState.ACCOUNT, "Public access"),
    (
        200,
        {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}, "choices": None},
        ExchangeState.ACCOUNT,
        "insufficient balance",
    ),
    (200, {"code": 1113, "msg": "账户余额不足"}, ExchangeState.ACCOUNT, "余额不足"),
    (200, {"base_resp": {"status_code": 1002, "status_msg": "rate limit exceeded"}}, ExchangeState.WAIT, "rate limit"),
    (
        422,
        {"error": "Input validation error: `inputs` must have less than 4096 tokens."},
        ExchangeState.REQUEST,
        "4096",
    ),
    (
        422,
        {"object": "error", "message": {"detail": [{"type": "extra_forbidden", "msg": "Extra inputs not permitted"}]}},
        ExchangeState.REFUSED,
        "Extra inputs",
    ),
    (403, {"Message": "User is not authorized to access this resource"}, ExchangeState.ACCOUNT, "not authorized"),
    (403, {"code": "no permission", "error": "Your team has no credits left."}, ExchangeState.ACCOUNT, "no credits"),
    (200, b"<html><head><title>Sign in to the network</title></head></html>", ExchangeState.LOST, "Sign in"),
    (
        200,
        b'{"message":{"content":"54M"},"done":false}\n{"message":{"content":""},"done":true}\n',
        ExchangeState.LOST,
        "stream",
    ),
    (200, b': keep-alive\n\ndata: {"choices": []}\n\n', ExchangeState.LOST, "stream"),
    (200, b'id: 1\ndata: {"choices": []}\n\n', ExchangeState.LOST, "stream"),
    (
        200,
        {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "54M"}}]},
        ExchangeState.LOST,
        "no complete",
    ),
    (
        200,
        {"success": False, "errors": [{"code": 7003, "message": "Could not route"}]},
        ExchangeState.LOST,
        "Could not route",
    ),
    (200, b"", ExchangeState.LOST, ""),
    (204, b"", ExchangeState.LOST, ""),
    (
        403,
        said("Your organization's access has been suspended for violating our usage policies."),
        ExchangeState.ACCOUNT,
        "susp",
    ),
    (400, said("Your account was banned under our content policy."), ExchangeState.REFUSED, "banned"),
    (403, b"<html><title>Just a moment...</title></html>", ExchangeState.ACCOUNT, "Just a moment"),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("status", "body", "state", "words"), VENDORS, ids=lambda value: str(value)[:40])
def test_error_state_and_words_are_read_from_the_bodies_of_all_vendors(
    status: int, body: Any, state: ExchangeState, words: str
) -> None:
    judged = verdict(status, body)
    assert judged.state is state
    assert words in judged.words


def test_throttling_under_any_status_slows_the_calls() -> None:
    assert verdict(400, b'{"__type": "ThrottlingException", "message": "Rate exceeded"}').throttled
    assert not verdict(400, b'{"error": "the model is loading"}').throttled


@pytest.mark.parametrize(
    ("status", "words", "names"),
    [
        (410, "gone", True),
        (400, "The model `m` has been decommissioned and is no longer supported.", True),
        (422, "max_tokens is too small", False),
    ],
)
def test_the_remedy_for_a_withdrawn_model_names_the_setting(status: int, words: str, names: bool) -> None:
    judged = verdict(status, {"error": {"message": words}})
    assert judged.state is ExchangeState.REFUSED
    assert ("set model" in judged.problem.remedy) == names


def test_a_completion_that_mentions_an_error_is_an_answer() -> None:
    for words in ("Billing office called, credits refunded.", "The card is loading.", "Flagged for review."):
        assert verdict(200, completion(f"<text>{words}</text>", message="ok")).state is ExchangeState.ANSWER


@pytest.mark.parametrize(
    ("body", "pause"),
    [
        (b'{"retryDelay": "38s"}', 38.0),
        (b"Please try again in 20s.", 20.0),
        (b"Please retry in 19.5s.", 19.5),
        (b"try again in 6m0s", 360.0),
        (b"Try again in 250ms", 0.25),
        (b"try again later", None),
    ],
)
def test_announced_pause_is_read_from_a_response_body(body: bytes, pause: float | None) -> None:
    assert states.announced_pause_s({}, body, 0.0) == pause


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-32-be"])
def test_json_encoding_is_detected_from_its_bytes(encoding: str) -> None:
    assert states.parsed('{"a": "männlich"}'.encode(encoding)) == {"a": "männlich"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"detail": [{"loc": ["body"], "msg": "not permitted"}]}', "not permitted"),
        (b'[{"error": {"message": "API key not valid"}}]', "API key not valid"),
        (b"<html><head><title>502 Bad gateway</title></head></html>", "502 Bad gateway"),
        (b"upstream timed out", "upstream timed out"),
        (b'{"message": "no key sk-proj-0123456789 here"}', "no key *** here"),
        (b'{"message": "no secret-key"}', "no ***"),
    ],
)
def test_error_words_are_read_from_any_body_with_keys_masked(body: bytes, words: str) -> None:
    assert words in verdict(400, body).words


@pytest.mark.parametrize("written", ["ward/key+7==", "ward%2Fkey%2B7%3D%3D", "d2FyZC9rZXkrNz09", "ward/key%2B7%3D%3D"])
def test_key_is_masked_however_an_endpoint_repeats_it(written: str) -> None:
    assert states.masked(f"no access for {written} here", ["ward/key+7=="]) == "no access for *** here"


@pytest.mark.parametrize(("part", "shown"), [("rd/key+7", "***"), ("key+7==", "key+7=="), ("hos/ward/key", "hos/***")])
def test_eight_consecutive_characters_of_a_key_are_masked_anywhere(part: str, shown: str) -> None:
    assert states.masked(f"the key ...{part}, unknown", ["ward/key+7=="]) == f"the key ...{shown}, unknown"


def test_every_simulated_endpoint_response_maps_to_a_state() -> None:
    body = json.dumps({"messages": []}).encode()
    for scenario in SCENARIOS.values():
        if callable(scenario):
            status, headers, content = Endpoint(scenario).respond("POST", "/v1/chat/completions", body)
            lower = {name.lower(): value for name, value in headers.items()}
            assert judge(Exchange(status, lower, content), WORST).state in ExchangeState


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "moved to eu-2"}}',
        b"moved to eu-2",
        b"<html><title>moved to eu-2</title><p>x</p></html>",
    ],
)
def test_redirect_error_shows_its_message_and_target_without_secrets(status: int, body: bytes) -> None:
    location = {"location": "https://me:pass@eu-2.example/v1/chat?key=hidden#there"}
    verdict = judge(Exchange(status, location, body), (1, 1))
    assert (verdict.state, verdict.kind) == (ExchangeState.ACCOUNT, "redirect")
    assert verdict.words == f"status {status}: leads to eu-2.example/v1/chat: moved to eu-2"
    assert judge(Exchange(status, {"location": "https://[x"}, body), (1, 1)).words == f"status {status}: moved to eu-2"


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        ({"code": 402, "message": "Provider credits exhausted"}, ExchangeState.ACCOUNT, "credits exhausted"),
        ({"code": 400, "message": "bad parameter"}, ExchangeState.REFUSED, "bad parameter"),
        ({"code": "503", "message": "no worker"}, ExchangeState.WAIT, "no worker"),
        ({"message": "flagged by moderation"}, ExchangeState.REQUEST, "flagged by moderation"),
        ("overloaded", ExchangeState.WAIT, "overloaded"),
        ("the worker died", ExchangeState.LOST, "the worker died"),
    ],
)
def test_error_inside_a_completion_choice_gives_its_state_and_words(
    error: object, state: ExchangeState, words: str
) -> None:
    choice = {"message": {"content": "half a text"}, "finish_reason": "error", "error": error}
    verdict = judge(Exchange(200, {}, json.dumps({"choices": [choice]}).encode()), (1, 1))
    assert verdict.state is state
    assert verdict.billed == (state is ExchangeState.LOST)
    assert words in verdict.words
    assert "half a text" not in verdict.words
    assert "status 400" not in verdict.words or isinstance(error, dict)


def test_renewable_quota_error_advises_to_wait_not_to_lower_concurrency() -> None:
    body = {"error": {"message": "You exceeded your monthly allotment.", "code": "insufficient_quota"}}
    verdict = judge(Exchange(429, {"retry-after": "86400"}, json.dumps(body).encode()), (1, 1))
    assert (verdict.state, verdict.pause_s) == (ExchangeState.WAIT, 86400.0)
    assert verdict.problem.remedy.startswith("wait until the quota renews")
    short = judge(Exchange(429, {"retry-after": "2"}, b'{"error": {"message": "Rate limit reached"}}'), (1, 1))
    assert short.problem.remedy.startswith("lower concurrency")
