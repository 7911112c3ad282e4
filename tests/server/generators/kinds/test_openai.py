"""The endpoint generator against a real HTTP server and one that misbehaves."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.chat_server import ChatServer, FaultProxy, completion, error_body, serving
from tests.doubles.loops import wait_for
from tests.doubles.processes import SOURCES
from undersong_common.arrays import Float32
from undersong_common.errors import ConfigurationError, GenerationError, UndersongError
from undersong_common.program.configuration import validate
from undersong_common.version import SOFTWARE
from undersong_server.generators.interface import BudgetExhausted, Completion, GenerationRequest, Surroundings
from undersong_server.generators.kinds.openai import OpenAIGenerator, OpenAISettings
from undersong_server.generators.kinds.openai import generator as openai_generator
from undersong_server.generators.kinds.openai.states import retry_after_s
from undersong_server.generators.reading import read as read_answer

pytestmark = pytest.mark.heavy


def no_embedding(texts: Sequence[str]) -> Float32:
    raise AssertionError("an endpoint embeds nothing")


ROOT = Path(__file__).resolve().parents[4]
KEY = {"TEST_API_KEY": "secret-key"}


def make_requests(count: int) -> list[GenerationRequest]:
    return [GenerationRequest("zero_shot", "card", f"Write text {index}.", index) for index in range(count)]


def generator(url: str, environment: dict[str, str] | None = None, **fields: Any) -> OpenAIGenerator:
    settings = OpenAISettings(
        **{
            "name": "far",
            "kind": "openai",
            "model": "tiny",
            "base_url": url,
            "api_key_env": "TEST_API_KEY",
            "max_wait_s": 0.05,
            "timeout_s": 5.0,
            "max_tokens": 20,
            **fields,
        }
    )
    return OpenAIGenerator(settings, environment=KEY if environment is None else environment)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two minutes of patience with a busy endpoint, but in the test of them."""
    monkeypatch.setattr(openai_generator, "PATIENCE_S", 0.0)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serving(ChatServer(lambda prompt: completion(f"About {prompt}"))) as running:
        yield running


@contextlib.contextmanager
def faulty(server: ChatServer, *faults: Any) -> Iterator[FaultProxy]:
    with serving(FaultProxy(server, list(faults))) as proxy:
        yield proxy


def one(far: OpenAIGenerator) -> Completion | GenerationError:
    ((_, answer),) = far.answer(make_requests(1))
    return answer


def read(far: OpenAIGenerator, count: int, kept: list[Any]) -> None:
    """Keeps what was yielded although the iteration may end in an error."""
    for item in far.answer(make_requests(count)):
        kept.append(item)  # noqa: PERF402 - list.extend is not promised to keep them


def test_answers_carry_text_usage_and_price(server: ChatServer) -> None:
    far = generator(server.url, price_per_1k_prompt=1.0, price_per_1k_completion=10.0)
    answers = dict(far.answer(make_requests(20)))
    assert sorted(answers) == list(range(20))
    seventh = answers[7]
    assert isinstance(seventh, Completion)
    assert replace(seventh, price_usd=0.0) == Completion("About Write text 7.", 11, 7)
    assert seventh.price_usd == pytest.approx(0.011 + 0.07)
    counts = {name: count for name, count in far.counts.items() if name != "waited"}
    assert counts == {"calls": 20, "retries": 0, "lost_attempts": 0, "failed": 0, "slowed_down": 0}


def test_request_body_has_exactly_the_fields_that_the_settings_ask_for(server: ChatServer) -> None:
    one(generator(server.url, temperature=0.5))
    one(generator(server.url, temperature=None, send_seed=True, max_tokens_field="max_completion_tokens"))
    first, second = server.bodies
    message = [{"role": "user", "content": "Write text 0."}]
    assert first == {"model": "tiny", "messages": message, "temperature": 0.5, "max_tokens": 20}
    assert second == {"model": "tiny", "messages": message, "seed": 0, "max_completion_tokens": 20}


def test_concurrent_calls_stay_within_the_limit_and_wait_for_the_reader() -> None:
    with serving(ChatServer(lambda prompt: completion(prompt), delay_s=0.05)) as server:
        far = generator(server.url, concurrency=4)
        answers = far.answer(make_requests(40))
        next(answers)
        time.sleep(0.4)
        assert len(server.bodies) <= 5  # the other 35 wait until their answers could be journaled
        assert len(list(answers)) == 39
        assert server.most_at_once == 4


def test_closing_the_answer_iterator_early_stops_further_calls(server: ChatServer) -> None:
    answers: Any = generator(server.url, concurrency=2).answer(make_requests(50))
    next(answers)
    answers.close()
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("far-")], 20.0)
    assert len(server.bodies) <= 4


INTERRUPTED = """
import sys
from tests.server.generators.kinds.test_openai import generator, make_requests
try:
    for index, answer in generator(sys.argv[1], concurrency=3, timeout_s=60.0).answer(make_requests(50)):
        print("kept", index, flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.slow
def test_interrupt_ends_at_once_despite_calls_in_flight() -> None:
    def write(prompt: str) -> dict[str, Any]:
        time.sleep(0.0 if "text 0." in prompt else 30.0)
        return completion(prompt)

    with serving(ChatServer(write)) as server:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
        process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, server.url],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            # A shell starts what runs in its background with interrupts ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"kept 0\n"
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert time.monotonic() - started < 10.0
        process.stdout.close()


@pytest.mark.parametrize(
    "fault",
    [
        ("status", 429, {"Retry-After": "0"}),
        ("status", 500, {}),
        ("status", 503, {}),
        ("status", 502, {}),
        ("status", 408, {}),
        "cut",
        "cut at once",
        "garbage",
        "page",
        "not a completion",
    ],
)
def test_transient_fault_is_retried(server: ChatServer, fault: Any) -> None:
    with faulty(server, fault, fault) as proxy:
        far = generator(proxy.url, max_retries=2)
        answer = one(far)
        assert isinstance(answer, Completion)
        assert answer.text == "About Write text 0."
        assert len(proxy.arrivals) == 3
        assert far.counts["retries"] == 2
        # What may have been billed although the answer was lost counts at its worst case.
        lost = 0 if fault[0] == "status" and fault[1] != 502 else 2
        assert far.counts["lost_attempts"] == lost
        assert far.lost.attempts == lost
        assert far.lost.tokens == lost * (len(b"Write text 0.") + 64 + 20)
        assert answer.completion_tokens == 7


def test_slow_answers_time_out_and_are_asked_again(server: ChatServer) -> None:
    with faulty(server, ("slow", 2.5)) as proxy:
        far = generator(proxy.url, timeout_s=1.0)
        assert isinstance(one(far), Completion)
        assert far.lost.attempts == 1


def test_timeout_error_names_the_setting_that_limited_the_attempt(server: ChatServer) -> None:
    with faulty(server, *[("slow", 2.0)] * 3) as proxy:
        late = one(generator(proxy.url, timeout_s=0.3, deadline_s=9.0, max_retries=0))
        last = one(generator(proxy.url, timeout_s=0.6, deadline_s=0.8, max_retries=9))
    assert "no answer within 0.3 s" in str(late)
    assert "no answer within the 0.8 s of deadline_s" in str(last)


def test_only_the_request_whose_retries_are_used_up_fails(server: ChatServer) -> None:
    with faulty(server, *[("status", 500, {})] * 3) as proxy:
        far = generator(proxy.url, max_retries=2, concurrency=1)
        answers = dict(far.answer(make_requests(3)))
        assert isinstance(answers[0], GenerationError)
        assert "3 attempts (status 500: try later)" in str(answers[0])
        assert isinstance(answers[1], Completion)
        assert isinstance(answers[2], Completion)


def test_retry_after_header_delays_the_next_attempt(server: ChatServer) -> None:
    with faulty(server, ("status", 429, {"Retry-After": "0.4"})) as proxy:
        one(generator(proxy.url, max_wait_s=5.0))
        assert 0.4 <= proxy.arrivals[1] - proxy.arrivals[0] < 10.0
    soon = (datetime.now(UTC) + timedelta(seconds=2)).replace(microsecond=0)
    with faulty(server, ("status", 503, {"Retry-After": format_datetime(soon, usegmt=True)})) as proxy:
        one(generator(proxy.url, max_wait_s=5.0))
        assert datetime.now(UTC) >= soon
        assert proxy.arrivals[1] - proxy.arrivals[0] < 10.0


def test_announced_pauses_do_not_use_up_the_retries(server: ChatServer) -> None:
    with faulty(server, *[("status", 429, {"Retry-After": "0.1"})] * 30) as proxy:
        far = generator(proxy.url, max_wait_s=0.01, max_retries=1, concurrency=4)
        answers = dict(far.answer(make_requests(12)))
        assert all(isinstance(answer, Completion) for answer in answers.values())
        assert len(proxy.arrivals) == 42
    with faulty(server, *[("status", 502, {"Retry-After": "0.1"})] * 30) as proxy:  # each may be billed
        assert isinstance(one(generator(proxy.url, max_retries=1)), GenerationError)
        assert len(proxy.arrivals) == 2


def test_announced_pause_beyond_the_deadline_fails_the_request_at_once(server: ChatServer) -> None:
    with faulty(server, *[("status", 429, {"Retry-After": "7200"})] * 30) as proxy:
        answer = one(generator(proxy.url, deadline_s=3600.0))
        assert isinstance(answer, GenerationError)
        assert "7200 s" in answer.problem
        assert len(proxy.arrivals) == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_every_format_of_the_retry_after_header_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, 10.0) == seconds


# Faults that no retry cures


def test_missing_api_key_variable_is_refused_at_the_start() -> None:
    settings = OpenAISettings(name="far", kind="openai", model="m", api_key_env="TEST_API_KEY")
    with pytest.raises(ConfigurationError) as refused:
        settings.build(Surroundings((), Path(), no_embedding, {"TEST_API_KEY": " "}))
    assert refused.value.code == "endpoint-key-missing"
    assert "TEST_API_KEY" in refused.value.remedy


def test_an_endpoint_without_keys_needs_no_variable() -> None:
    with serving(ChatServer(lambda prompt: completion(prompt), key="")) as server:
        assert isinstance(one(generator(server.url, environment={}, api_key_env="")), Completion)


@pytest.mark.parametrize(
    ("held", "code"),
    [
        ("sk-wrong", "endpoint-key-refused"),
        *((held, "endpoint-key-malformed") for held in ("two words", "line\r\nX-Other: 1", "schlüssel")),
    ],
)
def test_wrong_or_missing_key_is_named_by_its_variable_and_never_shown(
    server: ChatServer, held: str, code: str
) -> None:
    with pytest.raises(UndersongError) as failure:
        one(generator(server.url, environment={"TEST_API_KEY": held}))
    assert failure.value.code == code
    assert "TEST_API_KEY" in failure.value.remedy
    assert held not in str(failure.value)
    assert failure.value.__cause__ is None
    assert failure.value.__suppress_context__ or failure.value.__context__ is None
    assert server.bodies == []


# What leaves this machine


@dataclass
class Recorder:
    """Answers every call, or sends it elsewhere, and keeps the headers and paths."""

    elsewhere: str = ""
    status: int = 307
    url: str = ""
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def reply(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.seen.append((path, headers))
        if self.elsewhere:
            return self.status, {"Location": self.elsewhere + "?sk-in-the-address"}, b""
        return 200, {"Content-Type": "application/json"}, json.dumps(completion("fine")).encode()


HIDDEN_SETTINGS = {
    "OPENAI_API_KEY": "sk-of-another-task",
    "OPENAI_ADMIN_KEY": "sk-admin",
    "OPENAI_ORG_ID": "org-hidden",
    "OPENAI_PROJECT_ID": "proj-hidden",
    "OPENAI_CUSTOM_HEADERS": "X-Hidden: 1\nHost: hidden.example\nAuthorization: Bearer hidden\nUser-Agent: hidden",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/hidden",
    **dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9"),
    "NO_PROXY": "",
    "no_proxy": "",
}


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HIDDEN_SETTINGS.items():
        monkeypatch.setenv(name, value)


NAMED = {"OpenAI-Organization": "org-1", "OpenAI-Project": "proj_2"}


@pytest.mark.usefixtures("hidden")
def test_request_headers_are_only_those_that_the_settings_name() -> None:
    with serving(Recorder()) as recorder:
        assert isinstance(one(generator(recorder.url)), Completion)
        assert isinstance(one(generator(recorder.url, headers=NAMED)), Completion)
        assert isinstance(one(generator(recorder.url, environment={}, api_key_env="")), Completion)
    plain, named, open_ = (headers for _, headers in recorder.seen)
    host = recorder.url.removeprefix("http://").removesuffix("/v1")
    always = {
        "host": host,
        "accept": "application/json",
        "content-type": "application/json",
        "user-agent": SOFTWARE,
        "accept-encoding": plain["accept-encoding"],
        "connection": "keep-alive",
        "content-length": plain["content-length"],
    }
    key = {"authorization": "Bearer secret-key"}
    assert plain == always | key
    assert named == always | key | {name.lower(): value for name, value in NAMED.items()}
    assert open_ == always


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("same_host", [True, False])
def test_redirect_is_an_error_and_is_not_followed(status: int, same_host: bool) -> None:
    with serving(Recorder()) as other, serving(Recorder(status=status)) as recorder:
        recorder.elsewhere = f"{recorder.url if same_host else other.url}/chat/completions"
        with pytest.raises(GenerationError) as failure:
            one(generator(recorder.url))
    assert failure.value.code == "endpoint-redirects"
    assert recorder.url in failure.value.problem
    assert "sk-in-the-address" not in str(failure.value)
    assert (len(recorder.seen), other.seen) == (1, [])


@pytest.mark.usefixtures("hidden")
def test_requests_go_through_the_proxy_that_the_settings_name() -> None:
    with serving(Recorder()) as proxy:
        far = generator("http://localhost:1/v1", proxy=proxy.url.removesuffix("/v1"))
        assert isinstance(one(far), Completion)
    assert [path for path, _ in proxy.seen] == ["http://localhost:1/v1/chat/completions"]


def settings_error(**fields: Any) -> str:
    with pytest.raises(ConfigurationError) as failure:
        validate(OpenAISettings, {"name": "far", "kind": "openai", "model": "m", **fields}, "[[generators]]")
    return str(failure.value)


VARIABLES = ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "MY_API_KEY_OLD")
KEYS = ("sk-proj-0123456789abcdef", "AKIA0123456789", "ghp_abcdefghijkl")
CLEAR = (
    *("http://api.example.com/v1", "http://10.0.0.5:8000/v1", "http://localhost.example.com/v1"),
    *("http://127.0.0.1.example.com/v1", "http://[2001:db8::1]/v1", "http://0.0.0.0:8000/v1"),
)
NO_ADDRESSES = (
    *(
        "http://localhost@evil.example/v1",
        "https://user:password@api.example.com/v1",
        "https://api.example.com/v1?key=1",
    ),
    *("https://api.example.com/v1#x", "https://api.example.com\\@evil.example/v1", "ftp://api.example.com/v1"),
    "https:///v1",
)
ELSEWHERE = "http://proxy.example.com:3128"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        *(({"api_key_env": name}, [f"api_key_env '{name}' is no name that ends in _API_KEY"]) for name in VARIABLES),
        *(({"api_key_env": key}, ["api_key_env is no name that ends in _API_KEY"]) for key in KEYS),
        *(
            ({"base_url": url}, [f"base_url '{url}' would carry the key of OPENAI_API_KEY unencrypted", "with https"])
            for url in CLEAR
        ),
        (
            {"base_url": "http://localhost:8000/v1", "proxy": ELSEWHERE},
            [f"proxy '{ELSEWHERE}' would carry the key"],
        ),
        *(({"base_url": url}, ["base_url"]) for url in NO_ADDRESSES),
        *(({"proxy": url}, ["proxy"]) for url in NO_ADDRESSES),
    ],
)
def test_settings_that_would_show_or_misplace_a_key_are_refused(fields: dict[str, str], words: list[str]) -> None:
    said = settings_error(**fields)
    assert all(each in said for each in words)
    assert not any(key in said for key in KEYS)


def test_an_address_needs_tls_unless_local_or_without_a_key() -> None:
    here = ("http://localhost:1/v1", "http://127.9.9.9/v1", "http://[::1]:8/v1", "https://a.b/v1")
    given: list[dict[str, Any]] = [*({"base_url": url, "api_key_env": ""} for url in CLEAR), {"proxy": ELSEWHERE}]
    for fields in (*given, *({"base_url": url} for url in here)):  # by https a proxy is a tunnel
        OpenAISettings(name="far", kind="openai", model="m", **fields)


def test_ca_file_is_read_and_a_missing_or_malformed_one_is_named(tmp_path: Path) -> None:
    settings = OpenAISettings(name="far", kind="openai", model="m", api_key_env="TEST_API_KEY", ca_file="ca.pem")
    with pytest.raises(ConfigurationError) as missing:
        OpenAIGenerator(settings, environment=KEY, folder=tmp_path)
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigurationError) as malformed:
        one(OpenAIGenerator(settings, environment=KEY, folder=tmp_path))
    assert [each.value.code for each in (missing, malformed)] == ["ca-file-missing", "ca-file-malformed"]
    assert "ca.pem" in missing.value.problem
    assert "ca.pem" in malformed.value.problem


def test_error_for_an_unknown_model_or_path_names_it(server: ChatServer) -> None:
    for wrong, named in ((generator(server.url, model="huge"), "'huge'"), (generator(server.url + "/v1"), "/v1/v1")):
        with pytest.raises(GenerationError) as refused:
            one(wrong)
        assert refused.value.code == "endpoint-model-unknown"
        assert named in refused.value.problem


def fallback_to(server: ChatServer, **fields: Any) -> dict[str, Any]:
    return {"fallback": {"base_url": server.url, "model": "tiny", "api_key_env": "TEST_API_KEY", **fields}}


def test_fallback_answers_once_the_model_has_a_fatal_error(server: ChatServer) -> None:
    far = generator(server.url, model="retired", concurrency=1, **fallback_to(server))
    answers = [answer for _, answer in sorted(far.answer(make_requests(5)))]
    assert [answer.text for answer in answers if isinstance(answer, Completion)] == [
        f"About Write text {index}." for index in range(5)
    ]
    assert {answer.note for answer in answers if isinstance(answer, Completion)} == {"by tiny"}
    assert [body["model"] for body in server.bodies].count("retired") == 1  # it is not asked again
    assert far.counts["by_fallback"] == 5
    assert "retired at" in far._settings.writer
    assert "else tiny at" in far._settings.writer
    with pytest.raises(GenerationError):
        one(generator(server.url, model="retired"))


def test_model_and_fallback_share_one_token_budget(
    server: ChatServer,
) -> None:
    prices: dict[str, Any] = {"price_per_1k_prompt": 1.0, "price_per_1k_completion": 1.0}
    dear = {"price_per_1k_prompt": 10.0, "price_per_1k_completion": 10.0}
    with faulty(server, "pass", ("status", 400, {}), "pass") as first:
        far = generator(first.url, concurrency=1, price_budget_usd=10.0, **prices, **fallback_to(server, **dear))
        answers = dict(far.answer(make_requests(3)))
    found = [answer for _, answer in sorted(answers.items()) if isinstance(answer, Completion)]
    assert [answer.note for answer in found] == ["", "by tiny", ""]
    assert [round(answer.price_usd, 6) for answer in found] == [0.018, 0.18, 0.018]
    assert far._fallback is not None
    assert far._fallback._budget is far._budget
    poor = generator(server.url, model="retired", token_budget=90, **fallback_to(server))
    with pytest.raises(BudgetExhausted):  # its cap holds for both models together
        list(poor.answer(make_requests(9)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch": True}, "leave out endpoints and fallback"),
        ({"price_per_1k_prompt": 1.0, "price_per_1k_completion": 1.0}, "give both prices"),
    ],
)
def test_fallback_with_contradictory_settings_is_refused(
    server: ChatServer, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        generator(server.url, **fields, **fallback_to(server))
    elsewhere = {"base_url": "http://198.51.100.7/v1", "model": "tiny", "api_key_env": "TEST_API_KEY"}
    with pytest.raises(ValueError, match="unencrypted"):
        generator(server.url, fallback=elsewhere)


def test_unreachable_endpoint_fails_after_few_retries_naming_its_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
    far = generator(url, max_retries=10, max_wait_s=0.05)
    with pytest.raises(GenerationError) as failure:
        list(far.answer(make_requests(30)))
    assert failure.value.code == "endpoint-unreachable"
    assert url in failure.value.problem
    assert far.counts["retries"] <= 2 * 8


def test_exhausted_account_quota_ends_the_run(server: ChatServer) -> None:
    with (
        faulty(server, ("status", 429, {"code": "insufficient_quota"})) as proxy,
        pytest.raises(GenerationError) as failure,
    ):
        one(generator(proxy.url))
    assert failure.value.code == "endpoint-quota"


def test_answers_to_earlier_requests_are_yielded_before_a_fatal_error(server: ChatServer) -> None:
    with faulty(server, "pass", "pass", ("slow", 0.3), ("status", 401, {})) as proxy:
        kept: list[Any] = []
        with pytest.raises(GenerationError):
            read(generator(proxy.url, concurrency=2), 10, kept)
    assert len(kept) == len(server.bodies) == 3
    assert all(isinstance(answer, Completion) for _, answer in kept)


def test_request_that_the_endpoint_refuses_fails_alone() -> None:
    def write(prompt: str) -> dict[str, Any]:
        return error_body("context too long") if prompt.endswith("text 3.") else completion(prompt)

    with serving(ChatServer(write)) as server:
        answers = dict(generator(server.url, concurrency=1).answer(make_requests(5)))
    assert [index for index, answer in answers.items() if isinstance(answer, GenerationError)] == [3]
    assert "400: context too long" in str(answers[3])


def test_an_endpoint_that_refuses_every_request_ends_the_run() -> None:
    with serving(ChatServer(lambda _: error_body("temperature is not supported"))) as server:
        far = generator(server.url, concurrency=1)
        with pytest.raises(GenerationError) as stopped:
            list(far.answer(make_requests(100)))
        assert stopped.value.code == "endpoint-fails"
        assert "temperature is not supported" in stopped.value.problem  # the endpoint's own words
        assert len(server.bodies) == 10


@pytest.mark.parametrize(("status", "most"), [(422, 10), (403, 3)])
def test_successful_answer_resets_the_count_of_consecutive_failures(server: ChatServer, status: int, most: int) -> None:
    """One fewer than would stop the run, an answer, and so on."""
    with faulty(server, *["pass", *[("status", status, {})] * (most - 1)] * 3) as proxy:
        answers = dict(generator(proxy.url, concurrency=1).answer(make_requests(3 * most)))
    assert [index for index, answer in answers.items() if isinstance(answer, Completion)] == [0, most, 2 * most]


def test_budget_error_counts_answers_that_reported_no_usage() -> None:
    with serving(ChatServer(lambda _: completion("Text", usage=None))) as server:
        far = generator(server.url, token_budget=200)
        with pytest.raises(BudgetExhausted, match=r"usage not reported: [1-9]"):
            list(far.answer(make_requests(100)))


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (completion("Half of", reason="length"), ("", "length")),
        (completion("Text", usage=None), ("usage not reported", "")),
        (completion(None), ("", "")),
        (completion("", reason="content_filter"), ("", "filter")),
        (completion(None, refusal="I can't help with that."), ("", "refusal")),
    ],
)
def test_answer_with_unusual_fields_gets_a_note_and_a_finish_reason(
    body: dict[str, Any], note: tuple[str, str]
) -> None:
    with serving(ChatServer(lambda _: body)) as server:
        far = generator(server.url)
        answer = one(far)
    assert isinstance(answer, Completion)
    assert (answer.note, answer.finish) == note
    assert answer.prompt_tokens > 0
    assert far._budget._spent[0] == 18 or "usage" in answer.note  # a filtered answer is paid too


def test_unreadable_answer_is_requested_again_and_counted() -> None:
    bodies: list[Any] = [completion("One"), 'data: {"choices": []}', "[1]", ""]
    with serving(ChatServer(lambda _: bodies.pop())) as server:
        far = generator(server.url)
        answer = one(far)
    assert isinstance(answer, Completion)
    assert (answer.text, far.counts["lost_attempts"]) == ("One", 3)


def test_completion_prompt_begins_with_the_generators_system_words(server: ChatServer) -> None:
    far = generator(server.url, system="From the bank's archive.", kinds={"random": {"system": ""}})
    for kind in ("zero_shot", "random"):
        dict(far.answer([GenerationRequest(kind, "card", "Text:", 1, style="completion")]))
    assert [body["prompt"] for body in server.bodies] == ["From the bank's archive.\n\nText:", "Text:"]


def test_prompts_leave_room_for_the_longest_answer_and_system_part() -> None:
    def room(**fields: Any) -> int | None:
        settings = OpenAISettings(name="a", kind="openai", model="m", context_tokens=1000, max_tokens=100, **fields)
        return settings.prompt_format(Path()).prompt_tokens

    plain = room()
    assert plain is not None
    assert room(kinds={"persona": {"max_tokens": 300}}) == plain - 200
    assert room(kinds={"persona": {"system": "x" * 30}}) == plain - 10


def test_chat_has_system_then_user_turn_and_completion_has_one_prompt(server: ChatServer) -> None:
    far = generator(server.url)
    asked = GenerationRequest("zero_shot", "card", "Write.", 1, system="You write.")
    continued = GenerationRequest("zero_shot", "card", "Text:", 1, style="completion", stop=("\n",), room=2)
    answers = dict(far.answer([asked, continued]))
    assert all(isinstance(answer, Completion) and answer.text for answer in answers.values())
    chat, plain = sorted(server.bodies, key=lambda body: "prompt" in body)
    assert [(turn["role"], turn["content"]) for turn in chat["messages"]] == [
        ("system", "You write."),
        ("user", "Write."),
    ]
    assert (plain["prompt"], plain["stop"], plain["max_tokens"]) == ("Text:", ["\n"], 40)


def test_request_fields_of_settings_and_of_a_kind_are_sent(server: ChatServer) -> None:
    far = generator(
        server.url,
        temperature=0.7,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        reasoning_effort="low",
        stop="</text>",
        max_tokens_field="max_completion_tokens",
        send_seed=True,
        extra_body={"top_k": 20},
        structured=True,
        system="Be brief.",
        system_role="developer",
        kinds={
            "keywords": {"temperature": None, "max_tokens": 50, "extra_body": {"think": False}},
            "persona": {"system": "You are a novelist.", "send_seed": False},
            "random": {"system": ""},
        },
    )
    asked = [
        GenerationRequest(kind, "card", "Write.", 7, system="You write.", stop=("###",))
        for kind in ("zero_shot", "random", "persona", "keywords")
    ]
    for request in asked:  # one after the other
        dict(far.answer([request]))
    text, plain, person, names = server.bodies
    turns = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Write."}]
    shared = {
        **{"model": "tiny", "messages": turns, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": -0.5},
        **{"reasoning_effort": "low", "stop": ["###", "</text>"], "seed": 7},
    }
    usual = {**shared, "temperature": 0.7, "max_completion_tokens": 20, "top_k": 20}
    assert text == usual
    assert plain == {**usual, "messages": turns[1:]}
    del usual["seed"]
    assert person == {**usual, "messages": [{"role": "developer", "content": "You are a novelist."}, turns[1]]}
    schema = names.pop("response_format")
    assert schema["json_schema"]["schema"]["properties"]["names"]["type"] == "array"
    assert names == {**shared, "max_completion_tokens": 50, "think": False}


def test_temperature_or_system_turn_that_an_endpoint_refuses_is_not_sent(server: ChatServer) -> None:
    far = generator(server.url, temperature="none", system_role="user")
    dict(far.answer([GenerationRequest("zero_shot", "card", "Write.", 7, system="You write.")]))
    assert "temperature" not in server.bodies[0]
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "You write.\n\nWrite."}]


def test_calls_alternate_over_the_endpoints_each_with_its_own_key() -> None:
    def write(_prompt: str) -> dict[str, Any]:
        return completion("A text.")

    with serving(ChatServer(write)) as one_server, serving(ChatServer(write, key="other-key")) as other:
        keys = {**KEY, "OTHER_API_KEY": "other-key"}
        far = generator(one_server.url, keys, endpoints=[{"base_url": other.url, "api_key_env": "OTHER_API_KEY"}])
        answers = dict(far.answer(make_requests(10)))
    assert len(answers) == 10
    assert len(one_server.bodies) == len(other.bodies) == 5


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"headers": {"Authorization": "x"}}, "Authorization"),
        ({"headers": {"x-name": "x"}, "key_header": "X-Name"}, "x-name"),
        ({"headers": {"X-API-Key": "x"}}, "X-API-Key"),
        ({"headers": {"x-goog-apikey": "x"}}, "x-goog-apikey"),
        ({"headers": {"X-Auth-Token": "x"}}, "X-Auth-Token"),
        ({"headers": {"X-Team": "Bearer x"}}, "X-Team"),
        ({"headers": {"X-Team": "sk-x"}}, "X-Team"),
        ({"endpoints": [{"base_url": "https://far.example/v1"}], "batch": True}, "one address"),
        ({"kinds": {"persona": {"headers": {"client-secret": "x"}}}}, "client-secret"),
        ({"kinds": {"persona": {"headers": {"x-team": "x"}}}, "batch": True}, "of a batch"),
        ({"kinds": {"personas": {"top_p": 0.5}}}, "'personas'.*persona"),
        ({"endpoints": [{"base_url": "http://far.example/v1"}]}, "unencrypted"),
        ({"endpoints": [{"base_url": "https://far.example/v1", "api_key_env": "HOME"}]}, "_API_KEY"),
        ({"price_budget_usd": 1.0}, "price_budget_usd needs"),
        ({"price_per_1k_prompt": 1.0}, "go together"),
    ],
)
def test_invalid_headers_endpoints_and_prices_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        generator("http://127.0.0.1:1/v1", **fields)


def test_api_key_header_and_extra_headers_can_be_configured() -> None:
    seen: list[dict[str, str]] = []

    class Listening(ChatServer):
        def reply(self, path: str, headers: dict[str, str], body: bytes) -> Any:
            seen.append(headers)
            return super().reply(path, headers, body)

    with serving(Listening(lambda _: completion("A text."), key="")) as server:
        own = {"headers": {"x-team": "people", "x-tier": "slow"}}
        far = generator(server.url, key_header="api-key", headers={"x-team": "notes"}, kinds={"persona": own})
        for kind in ("zero_shot", "persona"):
            dict(far.answer([GenerationRequest(kind, "card", "Write.", 1)]))
    assert [headers["api-key"] for headers in seen] == ["secret-key"] * 2
    assert [headers["x-team"] for headers in seen] == ["notes", "people"]
    assert [headers.get("x-tier") for headers in seen] == [None, "slow"]
    assert all("authorization" not in headers and "undersong-kind" not in headers for headers in seen)


def test_deadline_ends_the_retries_of_one_request(server: ChatServer) -> None:
    with faulty(server, *[("status", 503, {})] * 50) as proxy:
        far = generator(proxy.url, max_retries=20, max_wait_s=0.2, deadline_s=0.3, concurrency=1)
        assert isinstance(one(far), GenerationError)
        assert 1 < len(proxy.arrivals) < 12


@pytest.mark.slow
def test_concurrency_is_halved_by_a_429_and_grows_with_success(server: ChatServer) -> None:
    with faulty(server, *[("status", 429, {"retry-after": "0"})] * 3) as proxy:
        far = generator(proxy.url, concurrency=8, max_retries=10)
        answers = dict(far.answer(make_requests(60)))
    assert all(isinstance(answer, Completion) for answer in answers.values())
    assert far.counts["slowed_down"] == 3
    assert far._pace.allowed > 3


def raw_bytes(head: bytes, body: bytes, *, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"HTTP/1.1 200 OK\r\n" + head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % size + body


GOOD = json.dumps(completion("A note.")).encode()
BARE = zlib.compressobj(wbits=-15)
BARE_DEFLATE = BARE.compress(GOOD) + BARE.flush()
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
BYTES: dict[str, tuple[bytes, bool]] = {
    "gzip": (raw_bytes(b"Content-Encoding: gzip\r\n", gzip.compress(GOOD)), True),
    "x-gzip": (raw_bytes(b"Content-Encoding: X-GZIP\r\n", gzip.compress(GOOD)), True),
    "zlib": (raw_bytes(b"Content-Encoding: deflate\r\n", zlib.compress(GOOD)), True),
    "bare deflate": (raw_bytes(b"Content-Encoding: deflate\r\n", BARE_DEFLATE), True),
    "cut gzip": (raw_bytes(b"Content-Encoding: gzip\r\n", gzip.compress(GOOD)[:-12]), False),
    "no gzip at all": (raw_bytes(b"Content-Encoding: gzip\r\n", GOOD), False),
    "brotli": (raw_bytes(b"Content-Encoding: br\r\n", b"\x0b\x02\x80hello\x03"), False),
    "a large page, compressed": (raw_bytes(b"Content-Encoding: gzip\r\n", gzip.compress(b"0" * 10**7)), False),
    "chunks": (CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD), True),
    "chunk of no size": (CHUNKED + b"zz\r\n" + GOOD, False),
    "chunk cut": (CHUNKED + b"%x\r\n%s" % (len(GOOD) + 9, GOOD), False),
    "no last chunk": (CHUNKED + b"%x\r\n%s\r\n" % (len(GOOD), GOOD), False),
    "shorter than stated": (raw_bytes(b"", GOOD, length=len(GOOD) + 5), False),
    "longer than stated": (raw_bytes(b"", GOOD, length=len(GOOD) - 5), False),
    "UTF-8 cut": (raw_bytes(b"", GOOD.replace(b"A note.", b"A not\xc3")), False),
    "no status line": (b"A note.\r\n\r\n", False),
    "nothing": (b"", False),
}


@pytest.mark.parametrize("name", BYTES)
def test_truncated_or_malformed_response_counts_as_a_lost_attempt(name: str) -> None:
    content, is_answer = BYTES[name]

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(content)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        far = generator(f"http://127.0.0.1:{server.server_address[1]}/v1", max_retries=0)
        answer = one(far)
        server.shutdown()
    assert isinstance(answer, Completion) == is_answer, answer
    assert far.lost.attempts == (not is_answer)  # it may have been billed


RESERVED = (
    *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed"),
    *("n", "best_of", "stream", "echo", "response_format", "presence_penalty", "frequency_penalty", "reasoning_effort"),
    *("n_predict", "num_predict", "max_new_tokens", "max_output_tokens", "random_seed", "stop_sequences", "models"),
    *("Max_Tokens", "STREAM"),
)


@pytest.mark.parametrize("name", RESERVED)
def test_extra_body_refuses_a_field_that_has_its_own_setting(name: str) -> None:
    for fields in ({"extra_body": {name: 1}}, {"kinds": {"persona": {"extra_body": {name: 1}}}}):
        with pytest.raises(ValueError, match=rf"{name}: not taken in extra_body"):
            generator("http://127.0.0.1:1/v1", **fields)


def test_extra_body_refuses_every_field_that_requests_contain() -> None:
    settings = generator("http://127.0.0.1:1/v1", send_seed=True, reasoning_effort="low", structured=True)._settings
    full = settings.model_copy(update={"top_p": 0.5, "presence_penalty": 0.1, "frequency_penalty": 0.1, "stop": ("x",)})
    body, _ = full.body_of(GenerationRequest("keywords", "card", "Write.", 1))
    assert body.keys() <= set(RESERVED)
    assert len(body) == 11


def test_writer_names_of_long_model_names_stay_different() -> None:
    names = ["a" * 60 + end for end in "xy"]
    writers = [generator("http://127.0.0.1:1/v1", model=name)._settings.writer for name in names]
    assert writers[0] != writers[1]
    assert all(len(writer) < 120 for writer in writers)
    assert generator("http://127.0.0.1:1/v1", model="short")._settings.writer == "short at 127.0.0.1"


@pytest.mark.parametrize(("characters", "finish"), [(400, ""), (401, "overlong")])
def test_answer_far_longer_than_max_tokens_is_rejected(characters: int, finish: str) -> None:
    with serving(ChatServer(lambda _: completion("x" * characters))) as server:
        answer = one(generator(server.url, max_tokens=20))
    assert isinstance(answer, Completion)
    assert answer.finish == finish
    fault = read_answer(answer, make_requests(1)[0]).fault
    assert (fault == "longer than it was allowed to be") == bool(finish)


# Budgets


@pytest.mark.parametrize("concurrency", [1, 8])
def test_token_budget_is_almost_used_up_and_never_exceeded(server: ChatServer, concurrency: int) -> None:
    worst = len(b"Write text 10.") + 64 + 20
    far = generator(server.url, token_budget=1000, concurrency=concurrency)
    kept: list[Any] = []
    with pytest.raises(BudgetExhausted) as stopped:
        read(far, 200, kept)
    assert stopped.value.code == "budget-exhausted"
    assert "token_budget 1000;" in stopped.value.problem
    spent = 18 * len(server.bodies)
    assert spent <= 1000
    assert spent > 1000 - worst - 18
    assert len(kept) == len(server.bodies)  # every call that was paid for was yielded


def test_budget_holds_when_an_endpoint_bills_more_than_was_allowed() -> None:
    """The first call is made alone: what it bills is reserved for every later one."""
    with serving(ChatServer(lambda prompt: completion(prompt, usage=(11, 900)), delay_s=0.02)) as server:
        far = generator(server.url, token_budget=5000, concurrency=8)
        with pytest.raises(BudgetExhausted):
            list(far.answer(make_requests(40)))
        assert 0 < 911 * len(server.bodies) <= 5000
        assert server.most_at_once > 1


def test_the_price_budget_is_never_exceeded(server: ChatServer) -> None:
    far = generator(server.url, price_budget_usd=1.0, price_per_1k_prompt=1.0, price_per_1k_completion=2.0)
    kept: list[Any] = []
    with pytest.raises(BudgetExhausted) as stopped:
        read(far, 200, kept)
    assert "price_budget_usd 1;" in stopped.value.problem
    price = sum(answer.price_usd for _, answer in kept)
    assert price == pytest.approx(0.025 * len(server.bodies))
    assert 0.8 < price <= 1.0


def test_lost_attempts_count_against_the_token_budget(server: ChatServer) -> None:
    with faulty(server, *["cut"] * 100) as proxy:
        far = generator(proxy.url, token_budget=500, concurrency=1, max_retries=20, max_wait_s=0.0)
        with pytest.raises(BudgetExhausted):
            list(far.answer(make_requests(10)))
        assert len(proxy.arrivals) == 500 // (len(b"Write text 0.") + 64 + 20)


def test_usage_of_an_earlier_process_counts_against_the_token_budget(server: ChatServer) -> None:
    far = generator(server.url, token_budget=1000)
    far.observe(make_requests(2), [Completion("x", 500, 450), GenerationError("none")])
    with pytest.raises(BudgetExhausted):
        list(far.answer(make_requests(1)))
    assert far._budget._spent[0] == 950
    assert server.bodies == []


def test_actual_tokens_and_price_lie_within_the_estimated_range(server: ChatServer) -> None:
    far = generator(server.url, price_per_1k_prompt=1.0, price_per_1k_completion=1.0)
    answers = [answer for _, answer in far.answer(make_requests(50)) if isinstance(answer, Completion)]
    took = sum(answer.prompt_tokens + answer.completion_tokens for answer in answers)
    estimate = far._settings.estimate(50, prompt_words=8)
    assert estimate.tokens[0] <= took <= estimate.tokens[1]
    assert estimate.price_usd is not None
    assert estimate.price_usd[0] <= sum(answer.price_usd for answer in answers) <= estimate.price_usd[1]
    assert OpenAISettings(name="a", kind="openai", model="m").estimate(50).price_usd is None
