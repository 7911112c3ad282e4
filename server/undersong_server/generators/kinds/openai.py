"""Any endpoint with OpenAI's chat or legacy completions: one prompt and one answer per call (never ``n`` > 1).

The one layer of retries is here, since the client library's own knows neither a deadline nor a budget: 429, 5xx,
timeouts, cut connections and answers that cannot be read are tried again after an exponential pause with jitter. An
endpoint that announces a pause by Retry-After is asked again after that pause, as often as it announces one, up to the
deadline. Faults that no retry cures (a wrong key, an unknown model, an endpoint that is not there) stop the run with
one ConfigurationError.

Budgets hold in advance: a call is made only if its worst case still fits. That is the prompt's UTF-8 bytes (a
tokeniser with bytes to fall back on never makes more tokens of it) plus 64 for the chat template, and ``max_tokens``.
An attempt whose answer was lost on the way may have been billed, so it counts at its worst case.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_common.printable import printable
from undersong_common.version import SOFTWARE
from undersong_server.generators.endpoints import Batches, CachedGenerator, CallBudget, Pace, merged
from undersong_server.generators.interface import (
    TEMPLATE_TOKENS,
    Answer,
    BudgetExhausted,
    Estimate,
    Finish,
    GenerationRequest,
    Generator,
    LanguageModelSettings,
    PromptFormat,
    Surroundings,
    expected_tokens,
    one_or_many,
    prompt_room,
)
from undersong_server.journal import Journal
from undersong_server.prompts.rendering import KINDS, estimated_tokens

if TYPE_CHECKING:
    import httpx
    import openai
    import tenacity

BATCH_PRICE = 0.5  # price of a batch's tokens, as a share of their usual price
_BATCH_S = (60.0, 86400.0)  # in which a batch is answered
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

# A host and a path: no user name, password, query or fragment.
_ADDRESS = r"^https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$"
_NOT_THEIRS = r"(?i)^(authorization|host|cookie|connection|content-.*|transfer-.*|proxy-.*|user-agent|accept)$"
# Task files, plans and reports are read by many: their headers must not contain a key or a password.
_SENSITIVE = r"(?i)(^|[-_])(api-?key|key|(access|auth|session)?token|secret|password|auth|authorization|credentials?)$"
_KEY = r"(?i)\s*(bearer|basic)\s|\s*(sk|pk|gsk|hf|ghp|xai)[-_]|\s*AIza"  # beginnings of keys
# TOML has no null: "none" stands for it.
_NONE = BeforeValidator(lambda value: None if value == "none" else value)
_Headers = dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")], Annotated[str, Field(pattern=r"^[\x20-\x7e]*$")]]


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class RequestFields(BaseModel):
    """Fields of a request to an endpoint, for one kind of prompt; a field that is left out is the generator's own.

    Attributes:
        temperature: "none" sends none (some reasoning models refuse it).
        top_p: nucleus of the sampling; None sends none.
        max_tokens: longest answer in tokens.
        stop: strings that end an answer, besides those of a completion prompt; endpoints take four in all.
        presence_penalty, frequency_penalty: None sends none.
        reasoning_effort: effort of a reasoning model, e.g. "low"; "" sends none.
        send_seed: sends the request's seed; some endpoints refuse the field.
        system: in place of the templates' system part; before the text that a completion continues. "" sends none.
        extra_body: further fields of the request, as the endpoint knows them.
        headers: further headers of the request; none of them is a secret. Those of a kind come on top of the
            generator's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: Annotated[Annotated[float, Field(ge=0.0, le=2.0)] | None, _NONE] = 1.0
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    max_tokens: int = Field(default=512, ge=1)
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(one_or_many)] = ()
    presence_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    reasoning_effort: str = Field(default="", pattern=r"^[a-z]*$")
    send_seed: bool = False
    system: str | None = None
    extra_body: dict[str, Any] = {}
    headers: _Headers = {}


class Endpoint(BaseModel):
    """One address of a model.

    Attributes:
        base_url: up to and including ``/v1``. With a key https, or http on this machine only.
        api_key_env: name of the environment variable that holds the key, which ends in ``_API_KEY``; "" for an endpoint
            that needs none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = Field(default="https://api.openai.com/v1", pattern=_ADDRESS)
    api_key_env: str = "OPENAI_API_KEY"

    def check_key(self, proxy: str) -> None:
        """Raises ValueError for a key that would be another secret of this machine, or go out unencrypted."""
        variable = self.api_key_env
        if not variable:
            return
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*_API_KEY", variable):
            # not repeated if it may be a key in place of its variable's name
            named = f" {variable!r}" if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", variable) else ""
            raise ValueError(
                f"api_key_env{named} is no name that ends in _API_KEY; export the key under such a name, and write that"
                ' name here ("" for an endpoint without keys)'
            )
        through_proxy = proxy and _is_loopback(self.base_url)
        key, passed = ("proxy", proxy) if through_proxy else ("base_url", self.base_url)
        if self.base_url.startswith("http:") and not _is_loopback(passed):
            raise ValueError(
                f"{key} {passed!r} would carry the key of {variable} unencrypted over a network; write a base_url with"
                ' https, or api_key_env = "" for an endpoint without keys'
            )


class Fallback(Endpoint):
    """The model that is asked if the generator's own model gives no answer, with prices of its own.

    Attributes:
        model: its name at that address.
        price_per_1k_prompt, price_per_1k_completion: US dollars; they go together.
    """

    model: str = Field(min_length=1)
    price_per_1k_prompt: float | None = Field(default=None, ge=0.0)
    price_per_1k_completion: float | None = Field(default=None, ge=0.0)


class OpenAISettings(LanguageModelSettings, RequestFields, Endpoint):
    """Settings of an OpenAI-compatible endpoint. Its RequestFields hold for every kind of prompt not in ``kinds``.

    Attributes:
        style: "chat" asks a model that follows instructions (chat completions); "completion" has a base model continue
            a text (legacy completions).
        context_tokens: prompt and answer that the model holds; prompts show fewer examples if they must. None trims
            nothing.
        model: the model's name at the endpoint.
        proxy: ``http://HOST:PORT`` that calls go through; "" goes straight. The environment's proxies are not asked.
        ca_file: certificates (PEM) by which the endpoint's is checked, relative to the task file; "" takes the usual.
        max_tokens_field: newer OpenAI models want "max_completion_tokens", other servers "max_tokens".
        system_role: the role that bears it; "user" puts it before the user's own part.
        structured: asks for lists (keywords) as JSON of a schema, which not every endpoint knows.
        key_header: the header that carries the key: "Authorization" (after "Bearer") or, alone, another one.
        endpoints: further addresses of the same model with keys of their own; calls go to all of them in turn.
        fallback: another model, asked for a text that this one does not write after all attempts; from the first error
            on that would end the run (no such model, a refused key, ten failures in a row), for all further ones.
        kinds: other request fields for single kinds of prompts.
        concurrency: calls in flight at once; fewer after a 429, until calls go well again.
        requests_per_minute, tokens_per_minute: no more than that; head-room that an endpoint states is heeded, too.
        deadline_s: seconds for one text with all its attempts; no further attempt begins after that.
        cache: file that keeps answers across runs; "" keeps none.
        batch: asks by batch files, at half the price and within a day; looked after every ``batch_poll_s`` seconds.
        timeout_s: longest wait for one attempt.
        max_retries: further attempts after 429, 5xx, a timeout, a cut connection or an unreadable answer. An attempt
            that an endpoint puts off by Retry-After, unbilled, is none of them: ``deadline_s`` alone bounds those.
        max_wait_s: longest pause between two attempts if the endpoint announces none.
        token_budget: prompt and completion tokens of the whole run; no call is made that could exceed it.
        price_budget_usd: likewise in US dollars; needs both prices.
        price_per_1k_prompt: US dollars per 1000 prompt tokens.
        price_per_1k_completion: US dollars per 1000 completion tokens.
    """

    kind: Literal["openai"]
    style: Literal["chat", "completion"] = "chat"
    context_tokens: int | None = Field(default=None, ge=256)
    model: str = Field(min_length=1)
    proxy: str = Field(default="", pattern=rf"{_ADDRESS}|^$")
    ca_file: str = ""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    system_role: Literal["system", "developer", "user"] = "system"
    structured: bool = False
    key_header: str = Field(default="Authorization", pattern=r"^[A-Za-z0-9-]+$")
    endpoints: tuple[Endpoint, ...] = ()
    fallback: Fallback | None = None
    kinds: dict[str, RequestFields] = {}
    requests_per_minute: float | None = Field(default=None, gt=0.0)
    tokens_per_minute: float | None = Field(default=None, gt=0.0)
    deadline_s: float = Field(default=1800.0, gt=0.0)
    cache: str = ""
    batch: bool = False
    batch_poll_s: float = Field(default=30.0, gt=0.0)
    concurrency: int = Field(default=8, ge=1, le=256)
    timeout_s: float = Field(default=120.0, gt=0.0)
    max_retries: int = Field(default=5, ge=0, le=20)
    max_wait_s: float = Field(default=60.0, ge=0.0)
    token_budget: int | None = Field(default=None, ge=1)
    price_budget_usd: float | None = Field(default=None, gt=0.0)
    price_per_1k_prompt: float | None = Field(default=None, ge=0.0)
    price_per_1k_completion: float | None = Field(default=None, ge=0.0)

    @model_validator(mode="after")
    def _keys_go_where_they_belong(self) -> Self:
        """A task file says what is sent where: neither another secret of this machine, nor a key in the clear."""
        for address in self._all_addresses:
            address.check_key(self.proxy)
        asked: tuple[RequestFields, ...] = (self, *self.kinds.values())
        headers = [header for fields in asked for header in fields.headers.items()]
        for name, value in headers:
            theirs = re.fullmatch(_NOT_THEIRS, name) or re.search(_SENSITIVE, name) or re.match(_KEY, value)
            if theirs or name.casefold() == self.key_header.casefold():
                raise ValueError(
                    f"headers: {name} is not the task file's to set; a key is named by api_key_env, and its header by"
                    " key_header"
                )
        return self

    @model_validator(mode="after")
    def _keys_of_the_table_fit_together(self) -> Self:
        if self.batch and (self.endpoints or self.fallback):
            raise ValueError("batch: is asked of one address and model, without endpoints and fallback")
        for kind, fields in self.kinds.items():
            if kind not in KINDS:
                raise ValueError(f"kinds: no prompt is of the kind {kind!r}; there are {', '.join(sorted(KINDS))}")
            if self.batch and fields.headers:
                raise ValueError(
                    f"kinds.{kind}: the requests of a batch have no headers of their own; give the generator's, or"
                    " batch = false"
                )
        known = (self.price_per_1k_prompt is not None, self.price_per_1k_completion is not None)
        if any(known) and not all(known):
            raise ValueError("price_per_1k_prompt and price_per_1k_completion go together: give both or none")
        if self.price_budget_usd is not None and not all(known):
            raise ValueError("price_budget_usd needs price_per_1k_prompt and price_per_1k_completion")
        other = self.fallback
        if other and [other.price_per_1k_prompt is not None, other.price_per_1k_completion is not None] != list(known):
            raise ValueError("fallback: names both prices where the generator does, and none where it does not")
        return self

    @property
    def packages(self) -> tuple[str, ...]:
        return ("openai", "tenacity")

    @property
    def addresses(self) -> tuple[Endpoint, ...]:
        """Every address of the model: the generator's own, then ``endpoints``."""
        return (self, *self.endpoints)

    @property
    def _all_addresses(self) -> tuple[Endpoint, ...]:
        return (*self.addresses, *([self.fallback] if self.fallback else []))

    @property
    def of_fallback(self) -> OpenAISettings:
        """The settings of the fallback: these settings with its address, model and prices in place of their own."""
        assert self.fallback is not None
        return self.model_copy(update={**dict(self.fallback), "endpoints": (), "fallback": None})

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        found = []
        for address in self._all_addresses:
            in_clear = address.base_url.startswith("http:") and self.proxy  # the proxy reads the key
            found.append((urlsplit(in_clear or address.base_url).netloc.lower(), address.api_key_env))
        return tuple((host, variable) for host, variable in found if variable)

    def request_fields(self, kind: str) -> RequestFields:
        """Returns the fields of a request for one kind of prompt."""
        own = self.kinds.get(kind)
        if own is None:
            return self
        update: dict[str, Any] = {name: getattr(own, name) for name in own.model_fields_set}
        return self.model_copy(update={**update, "headers": {**self.headers, **own.headers}})

    def prompt_format(self, folder: Path) -> PromptFormat:
        own = [self, *(self.request_fields(kind) for kind in self.kinds)]
        answer = max(fields.max_tokens for fields in own)
        system = max(estimated_tokens(fields.system or "") for fields in own)
        return PromptFormat(style=self.style, prompt_tokens=prompt_room(self.context_tokens, answer + system))

    @property
    def longest_answer(self) -> int:
        return min(fields.max_tokens for fields in (self, *map(self.request_fields, self.kinds)))

    @property
    def in_batches(self) -> bool:
        return self.batch

    @property
    def lacks_cache(self) -> bool:
        return not self.cache

    @property
    def writer(self) -> str:
        hosts = dict.fromkeys(str(urlsplit(address.base_url).hostname) for address in self.addresses)
        other = f", else {self.of_fallback.writer}" if self.fallback else ""
        return f"{printable(self.model, 50)} at {', '.join(hosts)}{other}"

    def price_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Returns the US dollars of that many tokens; 0.0 if the task names no price."""
        prompt, completion = self.price_per_1k_prompt or 0.0, self.price_per_1k_completion or 0.0
        factor = BATCH_PRICE if self.batch else 1.0
        return factor * (prompt_tokens * prompt + completion_tokens * completion) / 1000.0

    def estimate(self, calls: int, prompt_words: int = 250, answer_words: int = 0) -> Estimate:
        """Estimates tokens, price and seconds; ``concurrency`` answers at once.

        An answer takes 0.3 s and a second per 100 tokens (low), or 3 s and a second per 20; a batch a minute to a day.
        """
        prompts, answers = expected_tokens(calls, prompt_words, self.max_tokens, answer_words)
        price = None
        if self.price_per_1k_prompt is not None:
            price = (self.price_usd(prompts[0], answers[0]), self.price_usd(prompts[1], answers[1]))
        waves, least = -(-calls // self.concurrency), answers[0] / max(1, calls)
        seconds = waves * (0.3 + least / 100.0), waves * (3.0 + self.max_tokens / 20.0)
        seconds = _BATCH_S if self.batch else seconds
        return Estimate(calls, (prompts[0] + answers[0], prompts[1] + answers[1]), price, seconds)

    def caps(self, estimate: Estimate) -> list[tuple[str, float, tuple[float, float]]]:
        found = (
            ("token_budget", self.token_budget, estimate.tokens),
            ("price_budget_usd", self.price_budget_usd, estimate.price_usd or (0.0, 0.0)),  # a price cap needs prices
        )
        return [(key, cap, takes) for key, cap, takes in found if cap is not None]

    def body_of(self, request: GenerationRequest) -> tuple[dict[str, Any], tuple[int, int]]:
        """Returns the body of a request, and the most tokens that it can read and write."""
        own = self.request_fields(request.kind)
        chat = request.style == "chat"
        system = request.system if own.system is None else own.system
        turns = [{"role": "user", "content": request.prompt}]
        if system and (not chat or self.system_role == "user"):
            turns[0]["content"] = f"{system}\n\n{request.prompt}"
        elif system:
            turns.insert(0, {"role": self.system_role, "content": system})
        read = sum(len(turn["content"].encode("utf-8", "replace")) + TEMPLATE_TOKENS for turn in turns)
        longest = own.max_tokens * request.room
        fields: dict[str, Any] = {
            "model": self.model,
            # A legacy completion has one name for it.
            self.max_tokens_field if chat else "max_tokens": longest,
            **own.model_dump(include={"temperature", "top_p", "presence_penalty", "frequency_penalty"}),
            "reasoning_effort": own.reasoning_effort or None,
            "stop": list(dict.fromkeys((*request.stop, *own.stop)))[:_MOST_STOPS] or None,
            "seed": request.seed % 2**31 if own.send_seed else None,  # a signed 32-bit number everywhere
            "response_format": _LIST_SCHEMA if self.structured and request.kind == "keywords" else None,
        }
        prompt = {"messages": turns} if chat else {"prompt": turns[0]["content"]}
        sent = {name: value for name, value in fields.items() if value is not None}
        return {**sent, **own.extra_body, **prompt}, (read, longest)

    def cache_parts(self, request: GenerationRequest) -> list[Any]:
        """Returns everything that decides the answer to a request: addresses, headers and body."""
        addresses = [address.base_url for address in self.addresses]
        addresses += [f"{self.fallback.model} at {self.fallback.base_url}"] if self.fallback else []
        return [addresses, self.request_fields(request.kind).headers, self.body_of(request)[0]]

    def build(self, around: Surroundings) -> Generator:
        made = OpenAIGenerator(self, environment=around.environment, folder=around.folder, journal=around.journal)
        return CachedGenerator(made, self.cache_parts, around.folder / self.cache) if self.cache else made


KIND = OpenAISettings


@dataclass(eq=False)
class _Transient(Exception):
    """This attempt failed; another may not.

    Attributes:
        lost: the answer may have been written, and billed.
        retry_after_s: pause that the endpoint announces.
        unreachable: no connection was made.
        throttled: the endpoint is asked too often.
    """

    problem: str
    address: str
    lost: bool = False
    retry_after_s: float | None = None
    unreachable: bool = False
    throttled: bool = False


class OpenAIGenerator:
    """Answers requests in ``concurrency`` threads and yields the answers in the order in which they arrive."""

    def __init__(
        self,
        settings: OpenAISettings,
        *,
        environment: Mapping[str, str],
        folder: Path = Path(),
        journal: Journal | None = None,
    ) -> None:
        """Looks up the key; connects at the first call.

        Args:
            settings: the task's table.
            environment: where the key variable is looked up, and nothing else.
            folder: where a relative ``ca_file`` starts.
            journal: keeps the numbers of batches; None asks for each text by itself, whatever is set.

        Raises:
            ConfigurationError: the key variable is not set, or holds what cannot be a key; no ``ca_file``.
        """
        self.name = settings.name
        self._settings = settings
        self._journal = journal
        self._keys = [self._key(address.api_key_env, environment) for address in settings.addresses]
        self._turns = itertools.count()
        self._ca_file = folder / settings.ca_file if settings.ca_file else None
        if self._ca_file is not None and not self._ca_file.is_file():
            raise ConfigurationError(
                f"generator {self.name}: ca_file {self._ca_file}: no such file",
                "check the path",
                code="ca-file-missing",
            )
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
        self._instead: OpenAIGenerator | None = None
        self._given_up = False
        if settings.fallback:
            self._instead = OpenAIGenerator(settings.of_fallback, environment=environment, folder=folder)
            self._instead._budget = self._budget

    def _key(self, variable: str, environment: Mapping[str, str]) -> str:
        key = environment.get(variable, "").strip() if variable else "none"
        if not key:
            raise ConfigurationError(
                f"generator {self.name}: the environment variable {variable} with its key is not set",
                f'export {variable}=..., or set api_key_env = "" for an endpoint without keys',
                code="endpoint-key-missing",
            )
        if not re.fullmatch(r"[\x21-\x7e]+", key):
            raise ConfigurationError(
                f"generator {self.name}: the environment variable {variable} holds no key (a space, a line"
                " break, or a character beyond ASCII)",
                f"export {variable} anew, with the key alone",
                code="endpoint-key-malformed",
            )
        return key

    @property
    def counts(self) -> dict[str, int]:
        with self._lock:
            return {**self._tally, **self._pace.counts}

    def observe(self, requests: Sequence[GenerationRequest], answers: Sequence[Answer | GenerationError]) -> None:
        """Counts the tokens and dollars of journaled answers towards the budgets."""
        for _, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Answer):
                self._budget.charge(answer.prompt_tokens + answer.completion_tokens, answer.price_usd)

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Answer | GenerationError]]:
        """Yields answers as the interface says. At most ``concurrency`` answers are under way or not yet yielded, so
        that an interruption loses no more than these.

        Raises:
            BudgetExhausted: the next call could exceed a budget.
            ConfigurationError: 401, 403, 404, an exhausted account, or an endpoint that is not there.
            GenerationError: ten requests in a row have failed for good.
        """
        if not requests:
            return
        clients = self._clients
        if self._settings.batch and self._journal is not None:
            yield from self._batched(clients[0], requests, self._journal)
            return
        numbers = iter(range(len(requests)))  # shared by the threads

        def work(stop: threading.Event) -> Iterator[tuple[int, Answer | GenerationError]]:
            for index in numbers:
                answer = None if stop.is_set() else self._answered_by_either(clients, requests[index], stop)
                if answer is None:
                    return
                yield index, answer

        width = min(self._settings.concurrency, len(requests))
        failures: list[BaseException] = []
        # After a failure no new call is made; calls in flight are paid for, so their answers are awaited.
        yield from merged({f"{self.name}-{number}": work for number in range(width)}, failures)
        if failures:
            raise failures[0]

    def _batched(
        self, client: openai.OpenAI, requests: Sequence[GenerationRequest], journal: Journal
    ) -> Iterator[tuple[int, Answer | GenerationError]]:
        """Yields answers from batch files. Their worst cases are reserved together before anything is submitted."""
        settings = self._settings
        bodies, indices, worst = {}, {}, {}
        for index, request in enumerate(requests):
            body, most = self._settings.body_of(request)
            content = json.dumps([body, request.seed], sort_keys=True)
            identifier = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]
            bodies[identifier], indices[identifier], worst[identifier] = body, index, most
        total = (sum(read for read, _ in worst.values()), sum(longest for _, longest in worst.values()))
        reserved = (sum(total), settings.price_usd(*total))
        self._budget.reserve(*reserved)
        took = (0, 0.0)

        def retried(call: Callable[[], Any]) -> Any:
            return self._attempts(threading.Event(), only_throttled=True)(self._made, settings, call)

        path: Any = "/v1/chat/completions" if requests[0].style == "chat" else "/v1/completions"
        batches = Batches(client, journal, self.name, path, settings.batch_poll_s, retried)
        try:
            for identifier, found, problem in batches.results(bodies):
                self._count("calls")
                answer = self._read(found, worst[identifier])
                if answer is None:
                    self._count("failed")
                    problem = problem or "it is no complete completion"
                    yield (
                        indices[identifier],
                        GenerationError(f"generator {self.name}: no answer in its batch ({problem})"),
                    )
                    continue
                took = (took[0] + answer.prompt_tokens + answer.completion_tokens, took[1] + answer.price_usd)
                yield indices[identifier], answer
        except _Transient as failure:
            raise GenerationError(
                f"generator {self.name}: its batch cannot be reached ({failure.problem})",
                "run the same command again: the batch is noted, and found again",
                code="batch-unreachable",
            ) from None
        finally:
            self._budget.settle(reserved, took)

    # One request: several attempts

    def _answered_by_either(
        self, clients: Sequence[openai.OpenAI], request: GenerationRequest, stop: threading.Event
    ) -> Answer | GenerationError | None:
        """Returns the model's answer, or where it gives none, the fallback's. Raises as :meth:`_persist`."""
        other = self._instead
        if other is None:
            return self._persist(clients, request, stop)
        if not self._given_up:
            try:
                found = self._persist(clients, request, stop)
                if not isinstance(found, GenerationError):
                    return found
            except BudgetExhausted:
                raise
            except (ConfigurationError, GenerationError):
                self._given_up = True
        self._count("by_fallback")
        found = other._persist(other._clients, request, stop)
        if not isinstance(found, Answer):
            return found
        return replace(found, note=", ".join(filter(None, (found.note, f"by {other._settings.model}"))))

    def _persist(
        self, clients: Sequence[openai.OpenAI], request: GenerationRequest, stop: threading.Event
    ) -> Answer | GenerationError | None:
        """Returns the answer after as many attempts as it needs; None if stopped. Raises what ends the iteration."""
        body, worst = self._settings.body_of(request)
        lost: list[tuple[int, int]] = []
        begun = time.monotonic()
        attempts = self._attempts(stop)
        self._count("calls")
        try:
            answer: Answer | None = attempts(self._attempt, clients, request.kind, body, worst, lost, stop)
        except BudgetExhausted:
            raise
        except GenerationError as refused:
            return self._failed(refused, refused.problem, counted=not self._answered)
        except _Transient as failure:
            if stop.is_set():
                return None
            if failure.unreachable:
                raise ConfigurationError(
                    f"generator {self.name}: {failure.address} cannot be reached ({failure.problem})",
                    "start the endpoint or correct base_url, then run the same command again",
                    code="endpoint-unreachable",
                ) from None
            number = attempts.statistics["attempt_number"]
            said = f"generator {self.name}: no answer after {number} attempts ({failure.problem})"
            return self._failed(GenerationError(said), failure.problem, counted=True)
        if answer is None:
            return None
        with self._lock:
            self._answered, self._in_a_row = True, 0
        prompt = answer.prompt_tokens + sum(tokens for tokens, _ in lost)
        completion = answer.completion_tokens + sum(tokens for _, tokens in lost)
        note = ", ".join(filter(None, (answer.note, "lost attempts at worst case" if lost else "")))
        price, seconds = self._settings.price_usd(prompt, completion), time.monotonic() - begun
        return Answer(answer.text, prompt, completion, price, note, answer.finish, seconds)

    def _failed(self, error: GenerationError, problem: str, *, counted: bool) -> GenerationError:
        """Returns the error of one request. Raises GenerationError after ten ``counted`` failures in a row."""
        self._count("failed")
        with self._lock:
            self._in_a_row += counted
            if not counted or self._in_a_row < _FAILURES_IN_A_ROW:
                return error
        raise GenerationError(
            f"generator {self.name}: {_FAILURES_IN_A_ROW} requests in a row have failed, the last one: {problem}",
            "look after the endpoint and the generator's settings, then run the same command again; answers are kept",
            code="endpoint-fails",
        )

    def _attempts(self, stop: threading.Event, *, only_throttled: bool = False) -> tenacity.Retrying:
        """Returns the policy of retries; with ``only_throttled``, of calls that must not be made twice."""
        import tenacity

        settings = self._settings
        deadline = time.monotonic() + settings.deadline_s
        put_off: list[float] = []  # pauses that the endpoint has announced

        def ends(state: tenacity.RetryCallState) -> bool:
            failure: Any = state.outcome and state.outcome.exception()
            announced = failure.retry_after_s or 0.0
            put_off.extend([announced] * (failure.retry_after_s is not None and not failure.lost))
            first = failure.unreachable and not self._answered
            retries = min(settings.max_retries, _RETRIES_OF_UNREACHABLE) if first else settings.max_retries
            past_deadline = time.monotonic() >= deadline - announced
            return stop.is_set() or past_deadline or state.attempt_number - len(put_off) > retries

        def pause(state: tenacity.RetryCallState) -> float:
            failure: Any = state.outcome and state.outcome.exception()
            announced, longest = failure.retry_after_s, settings.max_wait_s
            if announced is not None:
                # A random part more than the server asks for, so that the threads do not all return at once.
                return max(float(announced), min(_FIRST_PAUSE_S, longest)) * random.uniform(1.0, 1.1)
            return min(_FIRST_PAUSE_S * 2.0 ** (state.attempt_number - 1), longest) * random.uniform(0.5, 1.0)

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda failure: isinstance(failure, _Transient) and (failure.throttled or not only_throttled)
            ),
            stop=ends,
            wait=pause,
            sleep=tenacity.sleep_using_event(stop),
            before_sleep=lambda _: self._count("retries"),
            reraise=True,
        )

    def _count(self, what: str) -> None:
        with self._lock:
            self._tally[what] += 1

    # One attempt

    def _attempt(
        self,
        clients: Sequence[openai.OpenAI],
        kind: str,
        body: Mapping[str, Any],
        worst: tuple[int, int],
        lost: list[tuple[int, int]],
        stop: threading.Event,
    ) -> Answer | None:
        """Makes one call within the limits; notes in ``lost`` the worst case of an answer that is lost."""
        import httpx

        reserved = (sum(worst), self._settings.price_usd(*worst))
        self._budget.reserve(*reserved)
        self._pace.start(reserved[0], stop)
        took, throttled = (0, 0.0), False
        turn = next(self._turns) % len(clients)
        client, address = clients[turn], self._settings.addresses[turn]
        path = "/chat/completions" if "messages" in body else "/completions"
        headers = {_KIND: kind}
        try:
            if stop.is_set():
                return None
            response = self._made(
                address, lambda: client.post(path, cast_to=httpx.Response, body=body, options={"headers": headers})
            )
            answer = self._read(response.text, worst)
            if answer is None:
                raise _Transient("the answer is no complete completion", address.base_url, lost=True)
            took = (answer.prompt_tokens + answer.completion_tokens, answer.price_usd)
            return answer
        except _Transient as failure:
            throttled = failure.throttled
            if failure.lost:
                took = reserved
                lost.append(worst)
                self._count("lost_attempts")
            raise
        finally:
            self._pace.end(throttled=throttled, tokens=reserved[0], took=took[0])
            self._budget.settle(reserved, took)

    def _made(self, address: Endpoint, call: Callable[[], Any]) -> Any:
        """Returns the result of one call of the client.

        Raises _Transient, GenerationError (this request only) or ConfigurationError.
        """
        import openai

        where = address.base_url
        try:
            return call()
        # `from None` everywhere: the library's errors carry the request with its key.
        except openai.APITimeoutError as error:
            connected = type(error.__cause__).__name__ not in ("ConnectTimeout", "PoolTimeout")
            problem = f"no answer within {self._settings.timeout_s:g} s"
            raise _Transient(problem, where, lost=connected, unreachable=not connected) from None
        except openai.APIStatusError as error:
            raise self._status_failure(error, address) from None
        except openai.APIConnectionError as error:
            cause = type(error.__cause__).__name__
            refused = cause in ("ConnectError", "UnsupportedProtocol")
            problem = f"no connection: {error.__cause__}" if refused else f"the connection was cut ({cause})"
            raise _Transient(problem, where, lost=not refused, unreachable=refused) from None
        except (openai.APIError, ValueError, TypeError) as error:
            raise _Transient(f"the answer could not be read ({type(error).__name__})", where, lost=True) from None

    def _read(self, body: Any, worst: tuple[int, int]) -> Answer | None:
        """Returns the answer in the body of a completion, JSON or parsed; None if the body is not a complete one."""
        try:
            body = json.loads(body) if isinstance(body, str) else body
            choice, usage = body["choices"][0], body.get("usage") or {}
            message = choice.get("message")
            text = choice["text"] if message is None else message.get("content")
            refusal = None if message is None else message.get("refusal")
            finish = _FINISH.get(choice.get("finish_reason") or "", "")
            prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None
        if message is None and not isinstance(text, str):
            return None
        if isinstance(refusal, str) and refusal.strip():
            text, finish = text or refusal, "refusal"
        text = text if isinstance(text, str) else ""
        note = ""
        if not isinstance(prompt, int) or not isinstance(completion, int):
            prompt, completion = worst[0], min(worst[1], len(text.encode("utf-8", "replace")))
            note = "usage not reported"
        return Answer(text, prompt, completion, self._settings.price_usd(prompt, completion), note, finish)

    def _status_failure(self, error: openai.APIStatusError, address: Endpoint) -> Exception:
        status, body = error.status_code, error.body
        message = body.get("message") if isinstance(body, dict) else None
        said = " ".join(str(message or "no reason given").split())[:200]
        where = f"generator {self.name}: {address.base_url}"
        if status in (401, 403):
            variable = address.api_key_env or "api_key_env"
            # The server's own words are left out: some repeat the key.
            return ConfigurationError(
                f"{where} refuses the key ({status})",
                f"set {variable} to a key that may use it",
                code="endpoint-key-refused",
            )
        if 300 <= status < 400:
            # The new address is left out too: it may hold anything.
            return ConfigurationError(
                f"{where} sends elsewhere ({status}), which is not followed",
                "write the address itself as base_url",
                code="endpoint-redirects",
            )
        if status == 404:
            return ConfigurationError(
                f"{where} does not know the model {self._settings.model!r} or the path ({said})",
                "correct model, or base_url (which ends before /chat/completions, mostly with /v1)",
                code="endpoint-model-unknown",
            )
        if status == 429 and error.code == "insufficient_quota":
            return ConfigurationError(
                f"{where}: the account's quota is used up", "top the account up", code="endpoint-quota"
            )
        if status not in (408, 409, 425, 429) and status < 500:
            return GenerationError(f"{where} refuses the request ({status}: {said})")
        announced = _retry_after_s(error.response.headers, time.time())
        return _Transient(
            f"status {status}" + ("" if announced is None else f", which asks for a pause of {announced:.0f} s"),
            address.base_url,
            lost=status in _BILLED_STATUS,
            retry_after_s=announced,
            throttled=status == 429,
        )

    # What is sent

    @cached_property
    def _clients(self) -> list[openai.OpenAI]:
        """One client per address. Raises ConfigurationError for a ca_file without certificates."""
        import openai

        settings = self._settings
        try:
            verify: Any = True if self._ca_file is None else ssl.create_default_context(cafile=str(self._ca_file))
        except (OSError, ssl.SSLError):
            raise ConfigurationError(
                f"generator {self.name}: ca_file {self._ca_file}: holds no certificate in PEM form",
                "name the file with your authority's certificate",
                code="ca-file-malformed",
            ) from None
        return [
            openai.OpenAI(
                api_key=key,
                base_url=address.base_url,
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
                        "request": [partial(self._only_what_is_set, address, key)],
                        "response": [lambda response: self._pace.note_limits(response.headers)],
                    },
                ),
            )
            for address, key in zip(settings.addresses, self._keys, strict=True)
        ]

    def _only_what_is_set(self, address: Endpoint, key: str, request: httpx.Request) -> None:
        """Removes every header but these from a request, whatever the library or the environment adds."""
        settings = self._settings
        form, kind = request.headers.get("Content-Type", ""), request.headers.get(_KIND, "")
        for name in set(request.headers) - _SENT_HEADERS:
            del request.headers[name]
        request.headers.update({"Host": request.url.netloc.decode("ascii"), "User-Agent": SOFTWARE, **_JSON})
        if form.startswith("multipart/form-data;"):  # a batch's file; the library names its boundary here
            request.headers["Content-Type"] = form
        request.headers.update(settings.request_fields(kind).headers)
        if address.api_key_env:
            bearer = "Bearer " if settings.key_header.casefold() == "authorization" else ""
            request.headers[settings.key_header] = f"{bearer}{key}"


def _retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks for, as a number (RFC 9110, 10.2.3) or a date; None if it says nothing clear."""
    milliseconds, value = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        seconds = float(milliseconds) / 1000.0 if milliseconds is not None else float(value or "")
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value or "").timestamp() - now
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
