"""Any endpoint with OpenAI's chat or legacy completions: one prompt and one answer per call (never ``n`` > 1).

The one layer of retries is here (the client library's own are off): 429, 5xx, timeouts, cut connections and answers
that cannot be read are tried again after an exponential pause with jitter. An endpoint that announces a pause by
Retry-After is asked again after that pause, as often as it announces one, up to the deadline. What no retry cures (a
wrong key, an unknown model, an endpoint that is not there) stops the run with one ConfigurationError.

Budgets hold in advance: a call is made only if its worst case still fits. That is the prompt's UTF-8 bytes (a
tokeniser with bytes to fall back on never makes more tokens of it) plus 64 for the chat template, and ``max_tokens``.
An attempt whose answer was lost on the way may have been billed, so it counts at its worst case.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import queue
import random
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_common.version import SOFTWARE
from undersong_server.generators.batches import Batches, Notes
from undersong_server.generators.budget import CallBudget
from undersong_server.generators.interface import Answer, BudgetExhausted, Finish, GenerationRequest
from undersong_server.generators.pace import Pace
from undersong_server.generators.settings import Endpoint, OpenAISettings
from undersong_server.prompts.rendering import LIST_KINDS

if TYPE_CHECKING:
    import httpx
    import openai
    import tenacity

_TEMPLATE_TOKENS = 64  # around the prompt, for each of its roles
_FIRST_PAUSE_S = 0.5
_RETRIES_OF_UNREACHABLE = 2  # before the first answer of the run: then the address is wrong
_FAILURES_IN_A_ROW = 10
# Gateways that lost the answer of a server that may have written it
_BILLED_STATUS = frozenset({502, 504, 520, 522, 524})
_FINISH: dict[str, Finish] = {"length": "length", "max_tokens": "length", "content_filter": "filter"}
_MOST_STOPS = 4  # that OpenAI's endpoints take
_LIST_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "names",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"names": {"type": "array", "items": {"type": "string"}}},
            "required": ["names"],
            "additionalProperties": False,
        },
    },
}
_SENT_HEADERS = frozenset({"accept-encoding", "connection", "content-length"})  # of those that the library writes
_KIND = "Undersong-Kind"  # tells our hook whose headers a request bears, and is taken out there
_JSON = {"Accept": "application/json", "Content-Type": "application/json"}


class _Transient(Exception):
    """This attempt failed, another may not."""

    def __init__(
        self, problem: str, *, lost: bool = False, retry_after_s: float | None = None, unreachable: bool = False
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.address = ""
        self.throttled = False
        self.lost = lost
        self.retry_after_s = retry_after_s
        self.unreachable = unreachable


@dataclass(frozen=True)
class _Done:
    index: int
    result: Answer | GenerationError | None  # None: abandoned because the iteration is over
    failure: BaseException | None = None  # ends the iteration


@dataclass(frozen=True)
class _Parts:
    """The parts of a chat completion that are used."""

    text: str
    reason: str
    prompt_tokens: int | None
    completion_tokens: int | None
    refused: bool = False  # the endpoint says that the model refuses


@dataclass(repr=False)
class _Route:
    """One address with its key, and the client that speaks to it."""

    address: Endpoint
    key: str
    client: openai.OpenAI | None = None


class OpenAIGenerator:
    """Answers requests in ``concurrency`` threads and yields the answers in the order in which they arrive."""

    def __init__(
        self,
        settings: OpenAISettings,
        *,
        environment: Mapping[str, str],
        folder: Path = Path(),
        clock: Callable[[], float] = time.time,
        notes: Notes | None = None,
    ) -> None:
        """Looks up the key; connects at the first call.

        Args:
            settings: the task's table.
            environment: where the key variable is looked up, and nothing else.
            folder: where a relative ``ca_file`` starts.
            clock: seconds since the epoch, for Retry-After dates.
            notes: where the numbers of batches are kept; None asks for each text by itself, whatever is set.

        Raises:
            ConfigurationError: the key variable is not set, or holds what cannot be a key; no ``ca_file``.
        """
        self.name = settings.name
        self._settings = settings
        self._clock = clock
        self._notes = notes
        self._routes = [_Route(address, self._key(address, environment)) for address in settings.addresses]
        self._turns = itertools.count()
        self._ca_file = folder / settings.ca_file if settings.ca_file else None
        if self._ca_file is not None and not self._ca_file.is_file():
            raise ConfigurationError(f"generator {self.name}: ca_file {self._ca_file}: no such file", "check the path")
        self._budget = CallBudget(self.name, settings.token_budget, settings.price_budget_usd)
        self._tally: Counter[str] = Counter(calls=0, retries=0, lost_attempts=0, failed=0)
        self._lock = threading.Lock()
        self._answered = False
        self._in_a_row = 0
        self._pace = Pace(
            concurrency=settings.concurrency,
            requests_per_minute=settings.requests_per_minute,
            tokens_per_minute=settings.tokens_per_minute,
            longest_wait_s=settings.max_wait_s,
        )

    def _key(self, address: Endpoint, environment: Mapping[str, str]) -> str:
        variable = address.api_key_env
        key = environment.get(variable, "").strip() if variable else "none"
        if not key:
            raise ConfigurationError(
                f"generator {self.name}: the environment variable {variable} with its key is not set",
                f'export {variable}=..., or set api_key_env = "" for an endpoint without keys',
            )
        if not re.fullmatch(r"[\x21-\x7e]+", key):
            raise ConfigurationError(
                f"generator {self.name}: the environment variable {variable} holds no key (a space, a line"
                " break, or a character beyond ASCII)",
                f"export {variable} anew, with the key alone",
            )
        return key

    @property
    def counts(self) -> dict[str, int]:
        with self._lock:
            return {**self._tally, **self._pace.counts}

    def observe(self, requests: Sequence[GenerationRequest], answers: Sequence[Answer | GenerationError]) -> None:
        """What was spent before counts towards the budgets."""
        for _, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Answer):
                self._budget.charge(answer.prompt_tokens + answer.completion_tokens, answer.price_usd)

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Answer | GenerationError]]:
        """As the interface says. At most ``concurrency`` answers are under way that were not yielded yet, so that an
        interruption loses no more than those.

        Raises:
            BudgetExhausted: the next call could exceed a budget.
            ConfigurationError: 401, 403, 404, an exhausted account, or an endpoint that is not there.
            GenerationError: ten requests in a row have failed for good.
        """
        if not requests:
            return
        self._connect()
        if self._settings.batch and self._notes is not None:
            yield from self._batched(requests, self._notes)
            return
        todo: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        done: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        stop = threading.Event()
        width = min(self._settings.concurrency, len(requests))
        for number in range(width):
            # Daemons: an interrupted process does not wait for calls in flight.
            threading.Thread(
                target=self._work, args=(requests, todo, done, stop), daemon=True, name=f"{self.name}-{number}"
            ).start()
        try:
            for index in range(width):
                todo.put(index)
            following, running = width, width
            failure: BaseException | None = None
            while running:
                item = done.get()
                running -= 1
                if item.failure is not None:
                    failure = failure or item.failure
                    stop.set()  # calls in flight are paid for, so their answers are awaited; no new one is made
                if failure is None and following < len(requests):
                    todo.put(following)
                    following += 1
                    running += 1
                if item.result is not None:
                    yield item.index, item.result
            if failure is not None:
                raise failure
        finally:
            stop.set()
            for _ in range(width):
                todo.put(None)

    def _work(
        self,
        requests: Sequence[GenerationRequest],
        todo: queue.SimpleQueue[int | None],
        done: queue.SimpleQueue[_Done],
        stop: threading.Event,
    ) -> None:
        while (index := todo.get()) is not None:
            if stop.is_set():
                done.put(_Done(index, None))
                continue
            try:
                done.put(_Done(index, self._persist(requests[index], stop)))
            except BaseException as failure:  # noqa: BLE001 - the iterating thread raises it
                done.put(_Done(index, None, failure))

    def _batched(
        self, requests: Sequence[GenerationRequest], notes: Notes
    ) -> Iterator[tuple[int, Answer | GenerationError]]:
        """Answers out of batch files. Their worst cases are reserved together, before anything is submitted."""
        from openai import APIError, APIStatusError
        from openai.types import Completion
        from openai.types.chat import ChatCompletion

        chat = requests[0].style == "chat"
        bodies, places, worst = {}, {}, {}
        for index, request in enumerate(requests):
            turns = self._messages(request)
            longest = self._settings.request_fields(request.kind).max_tokens * request.room
            fields = self._fields(request, longest)
            extra = fields.pop("extra_body", {})
            body = {**fields, **extra, **({"messages": turns} if chat else {"prompt": turns[0]["content"]})}
            content = json.dumps([body, request.seed], sort_keys=True)
            identifier = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]
            bodies[identifier], places[identifier] = body, index
            read = sum(len(turn["content"].encode("utf-8", "replace")) + _TEMPLATE_TOKENS for turn in turns)
            worst[identifier] = (read, longest)
        total = (sum(read for read, _ in worst.values()), sum(longest for _, longest in worst.values()))
        reserved = (sum(total), self._settings.price_usd(*total))
        self._budget.reserve(*reserved)
        took = (0, 0.0)
        client, address = self._routes[0].client, self._routes[0].address
        assert client is not None
        path = "/v1/chat/completions" if chat else "/v1/completions"

        def asked(call: Callable[[], Any]) -> Any:
            try:
                return call()
            except APIStatusError as error:
                found = self._status_failure(error, address)
                raise (found if isinstance(found, _Transient) and found.throttled else error) from None

        batches = Batches(
            notes,
            self.name,
            path,
            poll_s=self._settings.batch_poll_s,
            patiently=lambda call: self._attempts(threading.Event())(asked, call),
        )
        try:
            for identifier, result in batches.results(client, bodies):
                self._count("calls")
                answer: Answer | GenerationError
                if result.body is None:
                    self._count("failed")
                    answer = GenerationError(f"generator {self.name}: no answer in its batch ({result.problem})")
                else:
                    made: Any = (ChatCompletion if chat else Completion).model_construct(None, **result.body)
                    try:
                        answer = self._read(made, worst[identifier])
                    except _Transient as failure:
                        answer = GenerationError(f"generator {self.name}: {failure.problem}")
                if isinstance(answer, Answer):
                    took = (took[0] + answer.prompt_tokens + answer.completion_tokens, took[1] + answer.price_usd)
                yield places[identifier], answer
        except (APIError, _Transient) as error:
            found = self._status_failure(error, address) if isinstance(error, APIStatusError) else None
            if isinstance(found, ConfigurationError):
                raise found from None
            said = error.problem if isinstance(error, _Transient) else type(error).__name__
            raise GenerationError(
                f"generator {self.name}: its batch cannot be reached ({said})",
                "run the same command again: the batch is noted, and found again",
            ) from None
        finally:
            self._budget.settle(reserved, took)

    # One request: several attempts

    def _persist(self, request: GenerationRequest, stop: threading.Event) -> Answer | GenerationError | None:
        """The answer after as many attempts as it needs; raises what ends the whole iteration."""
        lost: list[tuple[int, int]] = []
        self._count("calls")
        begun = time.monotonic()
        attempts = self._attempts(stop)
        try:
            answer = attempts(self._attempt, request, lost, stop)
        except _Transient as failure:
            return None if stop.is_set() else self._given_up(failure, attempts.statistics["attempt_number"])
        except GenerationError as refused:
            if isinstance(refused, BudgetExhausted):
                raise
            self._count("failed")
            self._fail_in_a_row(refused.problem, only_before_first_answer=True)
            return refused
        if answer is None:
            return None
        answer = replace(answer, seconds=time.monotonic() - begun)
        with self._lock:
            self._answered, self._in_a_row = True, 0
        if lost:
            prompt = answer.prompt_tokens + sum(tokens for tokens, _ in lost)
            completion = answer.completion_tokens + sum(tokens for _, tokens in lost)
            answer = replace(
                answer,
                prompt_tokens=prompt,
                completion_tokens=completion,
                price_usd=self._settings.price_usd(prompt, completion),
                note=", ".join(filter(None, (answer.note, "lost attempts at worst case"))),
            )
        return answer

    def _attempts(self, stop: threading.Event) -> tenacity.Retrying:
        import tenacity

        deadline = time.monotonic() + self._settings.deadline_s
        put_off: list[float] = []
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Transient),
            stop=lambda state: stop.is_set() or self._enough(state, put_off, deadline),
            wait=self._pause,
            sleep=tenacity.sleep_using_event(stop),
            before_sleep=lambda _: self._count("retries"),
            reraise=True,
        )

    def _given_up(self, failure: _Transient, attempts: int) -> GenerationError:
        if failure.unreachable:
            raise ConfigurationError(
                f"generator {self.name}: {failure.address} cannot be reached ({failure.problem})",
                "start the endpoint or correct base_url, then run the same command again",
            )
        self._count("failed")
        self._fail_in_a_row(failure.problem)
        return GenerationError(f"generator {self.name}: no answer after {attempts} attempts ({failure.problem})")

    def _fail_in_a_row(self, problem: str, *, only_before_first_answer: bool = False) -> None:
        with self._lock:
            if only_before_first_answer and self._answered:
                return
            self._in_a_row += 1
            if self._in_a_row < _FAILURES_IN_A_ROW:
                return
        raise GenerationError(
            f"generator {self.name}: {_FAILURES_IN_A_ROW} requests in a row have failed, the last one: {problem}",
            "look after the endpoint and the generator's settings, then run the same command again; answers are kept",
        )

    def _enough(self, state: tenacity.RetryCallState, put_off: list[float], deadline: float) -> bool:
        """Returns whether no further attempt is made; notes in ``put_off`` the pause that the endpoint announces."""
        failure = state.outcome.exception() if state.outcome else None
        retries = self._settings.max_retries
        if isinstance(failure, _Transient):
            if failure.retry_after_s is not None:
                deadline -= failure.retry_after_s
                put_off += [failure.retry_after_s] * (not failure.lost)
            if failure.unreachable and not self._answered:
                retries = min(retries, _RETRIES_OF_UNREACHABLE)
        return state.attempt_number - len(put_off) > retries or time.monotonic() >= deadline

    def _pause(self, state: tenacity.RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome else None
        longest = self._settings.max_wait_s
        if isinstance(failure, _Transient) and failure.retry_after_s is not None:
            # A random part more than the server asks for, so that the threads do not all return at once.
            return max(failure.retry_after_s, min(_FIRST_PAUSE_S, longest)) * random.uniform(1.0, 1.1)
        return min(_FIRST_PAUSE_S * 2.0 ** (state.attempt_number - 1), longest) * random.uniform(0.5, 1.0)

    def _count(self, what: str) -> None:
        with self._lock:
            self._tally[what] += 1

    # One attempt

    def _attempt(self, request: GenerationRequest, lost: list[tuple[int, int]], stop: threading.Event) -> Answer | None:
        turns = self._messages(request)
        read = sum(len(turn["content"].encode("utf-8", "replace")) + _TEMPLATE_TOKENS for turn in turns)
        worst = (read, self._settings.request_fields(request.kind).max_tokens * request.room)
        reserved = (sum(worst), self._settings.price_usd(*worst))
        self._budget.reserve(*reserved)
        self._pace.start(reserved[0], stop)
        took, throttled = (0, 0.0), False
        route = self._routes[next(self._turns) % len(self._routes)]
        try:
            if stop.is_set():
                return None
            answer = self._call(route, request, turns, worst)
            took = (answer.prompt_tokens + answer.completion_tokens, answer.price_usd)
            return answer
        except _Transient as failure:
            failure.address, throttled = route.address.base_url, failure.throttled
            if failure.lost:
                took = reserved
                lost.append(worst)
                self._count("lost_attempts")
            raise
        finally:
            self._pace.end(throttled=throttled, tokens=reserved[0], took=took[0])
            self._budget.settle(reserved, took)

    def _messages(self, request: GenerationRequest) -> list[dict[str, str]]:
        """The turns of a chat; for a completion, one with the text that is continued."""
        settings, own = self._settings, self._settings.request_fields(request.kind).system
        system = request.system if own is None else own
        if not system:
            return [{"role": "user", "content": request.prompt}]
        if request.style == "completion" or settings.system_role == "user":
            return [{"role": "user", "content": f"{system}\n\n{request.prompt}"}]
        return [{"role": settings.system_role, "content": system}, {"role": "user", "content": request.prompt}]

    def _fields(self, request: GenerationRequest, longest: int) -> dict[str, Any]:
        """What a request says besides its prompt."""
        settings, own = self._settings, self._settings.request_fields(request.kind)
        given: dict[str, Any] = {
            "model": settings.model,
            # A legacy completion has one name for it.
            settings.max_tokens_field if request.style == "chat" else "max_tokens": longest,
            "temperature": own.temperature,
            "top_p": own.top_p,
            "presence_penalty": own.presence_penalty,
            "frequency_penalty": own.frequency_penalty,
            "reasoning_effort": own.reasoning_effort or None,
            "stop": list(dict.fromkeys((*request.stop, *own.stop)))[:_MOST_STOPS] or None,
            "seed": request.seed % 2**31 if own.send_seed else None,  # a signed 32-bit number everywhere
            "response_format": _LIST_SCHEMA if settings.structured and request.kind in LIST_KINDS else None,
            "extra_body": own.extra_body or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _call(
        self, route: _Route, request: GenerationRequest, turns: list[dict[str, str]], worst: tuple[int, int]
    ) -> Answer:
        """One HTTP request. Raises _Transient, GenerationError (this request only) or ConfigurationError."""
        import openai

        assert route.client is not None
        fields = {**self._fields(request, worst[1]), "extra_headers": {_KIND: request.kind}}
        try:
            if request.style == "completion":
                response: Any = route.client.completions.create(prompt=turns[0]["content"], **fields)
            else:
                messages: Any = turns
                response = route.client.chat.completions.create(messages=messages, **fields)
        # `from None` everywhere: the library's errors carry the request with its key.
        except openai.APITimeoutError as error:
            connected = type(error.__cause__).__name__ not in ("ConnectTimeout", "PoolTimeout")
            raise _Transient(
                f"no answer within {self._settings.timeout_s:g} s", lost=connected, unreachable=not connected
            ) from None
        except openai.APIStatusError as error:
            raise self._status_failure(error, route.address) from None
        except openai.APIConnectionError as error:
            cause = type(error.__cause__).__name__
            refused = cause in ("ConnectError", "UnsupportedProtocol")
            problem = f"no connection: {error.__cause__}" if refused else f"the connection was cut ({cause})"
            raise _Transient(problem, lost=not refused, unreachable=refused) from None
        except (openai.APIError, ValueError, TypeError) as error:
            raise _Transient(f"the answer could not be read ({type(error).__name__})", lost=True) from None
        return self._read(response, worst)

    def _read(self, response: Any, worst: tuple[int, int]) -> Answer:
        # Some servers stream although nobody asked them to; the client library then gives the body as it came.
        parts = _streamed(response) if isinstance(response, str) else _whole(response)
        if parts is None:
            raise _Transient("the answer is no complete chat completion", lost=True)
        notes = []
        prompt, completion = parts.prompt_tokens, parts.completion_tokens
        if prompt is None or completion is None:
            prompt, completion = worst[0], min(worst[1], len(parts.text.encode("utf-8", "replace")))
            notes.append("usage not reported")
        price = self._settings.price_usd(prompt, completion)
        finish = "refusal" if parts.refused else _FINISH.get(parts.reason, "")
        return Answer(parts.text, prompt, completion, price, ", ".join(notes), finish)

    def _status_failure(self, error: openai.APIStatusError, address: Endpoint) -> Exception:
        status, said = error.status_code, _said(error)
        where = f"generator {self.name}: {address.base_url}"
        if status in (401, 403):
            variable = address.api_key_env or "api_key_env"
            # The server's own words are left out: some repeat the key.
            return ConfigurationError(f"{where} refuses the key ({status})", f"set {variable} to a key that may use it")
        if 300 <= status < 400:
            # Where to is left out too: it may hold anything.
            return ConfigurationError(
                f"{where} sends elsewhere ({status}), which is not followed", "write the address itself as base_url"
            )
        if status == 404:
            return ConfigurationError(
                f"{where} does not know the model {self._settings.model!r} or the path ({said})",
                "correct model, or base_url (which ends before /chat/completions, mostly with /v1)",
            )
        if status == 429 and error.code == "insufficient_quota":
            return ConfigurationError(f"{where}: the account's quota is used up", "top the account up")
        if status in (408, 409, 425, 429) or status >= 500:
            announced = _retry_after_s(error.response.headers, self._clock())
            failure = _Transient(
                f"status {status}" + ("" if announced is None else f", which asks for a pause of {announced:.0f} s"),
                lost=status in _BILLED_STATUS,
                retry_after_s=announced,
            )
            failure.throttled = status == 429
            return failure
        return GenerationError(f"{where} refuses the request ({status}: {said})")

    def _connect(self) -> None:
        for route in self._routes:
            if route.client is None:
                route.client = self._client(route)

    def _client(self, route: _Route) -> openai.OpenAI:
        import openai

        settings = self._settings
        try:
            verify: Any = True if self._ca_file is None else ssl.create_default_context(cafile=str(self._ca_file))
        except (OSError, ssl.SSLError):
            raise ConfigurationError(
                f"generator {self.name}: ca_file {self._ca_file}: holds no certificate in PEM form",
                "name the file with your authority's certificate",
            ) from None
        return openai.OpenAI(
            api_key=route.key,
            base_url=route.address.base_url,
            timeout=settings.timeout_s,
            max_retries=0,
            # The library would read a proxy, more headers and other addresses from the environment, and follow a
            # redirect to another host.
            http_client=openai.DefaultHttpxClient(
                trust_env=False,
                follow_redirects=False,
                proxy=settings.proxy or None,
                verify=verify,
                timeout=settings.timeout_s,
                event_hooks={
                    "request": [lambda request: self._only_what_is_set(request, route)],
                    "response": [lambda response: self._pace.heed(response.headers)],
                },
            ),
        )

    def _only_what_is_set(self, request: httpx.Request, route: _Route) -> None:
        """The last word on every request: no header but these leaves, whatever the library or the environment adds."""
        settings = self._settings
        form, kind = request.headers.get("Content-Type", ""), request.headers.get(_KIND, "")
        for name in set(request.headers) - _SENT_HEADERS:
            del request.headers[name]
        request.headers.update({"Host": request.url.netloc.decode("ascii"), "User-Agent": SOFTWARE, **_JSON})
        if form.startswith("multipart/form-data;"):  # a batch's file; the library names its boundary here
            request.headers["Content-Type"] = form
        request.headers.update(settings.request_fields(kind).headers)
        if route.address.api_key_env:
            bearer = "Bearer " if settings.key_header.casefold() == "authorization" else ""
            request.headers[settings.key_header] = f"{bearer}{route.key}"
        for name, value in (("OpenAI-Organization", settings.organization), ("OpenAI-Project", settings.project)):
            if value:
                request.headers[name] = value


def _whole(response: Any) -> _Parts | None:
    choices: Any = getattr(response, "choices", None)
    choice = choices[0] if isinstance(choices, list) and choices else None
    message, usage = getattr(choice, "message", None), getattr(response, "usage", None)
    content = getattr(message, "content", None) if message is not None else getattr(choice, "text", None)
    if message is None and not isinstance(content, str):
        return None
    refusal = getattr(message, "refusal", None)
    refused = isinstance(refusal, str) and bool(refusal.strip())
    return _Parts(
        content if isinstance(content, str) and content else str(refusal) if refused else "",
        getattr(choice, "finish_reason", None) or "",
        _number(getattr(usage, "prompt_tokens", None)),
        _number(getattr(usage, "completion_tokens", None)),
        refused,
    )


def _streamed(body: str) -> _Parts | None:
    """The chunks of a server-sent stream put together; None where it is not one, or ends before its end."""
    text, reason = "", ""
    usage: dict[str, Any] = {}
    ended = False
    for line in body.splitlines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or not data:
            continue
        if data == "[DONE]":
            ended = True
            continue
        try:
            chunk = json.loads(data)
            usage = chunk.get("usage") or usage
            for choice in (chunk.get("choices") or [])[:1]:
                text += (choice.get("delta") or {}).get("content") or choice.get("text") or ""
                reason = choice.get("finish_reason") or reason
        except (ValueError, AttributeError, TypeError):
            return None
    if not ended and not reason:
        return None
    return _Parts(text, reason, _number(usage.get("prompt_tokens")), _number(usage.get("completion_tokens")))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _said(error: openai.APIStatusError) -> str:
    body = error.body
    said = body.get("message") if isinstance(body, dict) else None
    return " ".join(str(said if said else "no reason given").split())[:200]


def _retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks for, as a number (RFC 9110, 10.2.3) or a date; None where it says nothing clear."""
    milliseconds, value = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        seconds = float(milliseconds) / 1000.0 if milliseconds is not None else float(value or "")
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value or "").timestamp() - now
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
