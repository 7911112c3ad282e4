"""Settings of an OpenAI-compatible endpoint: a ``[[generators]]`` table, its requests, and what they cost at most."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from undersong_common.printable import fingerprinted
from undersong_common.program.configuration import ADDRESS, OPTIONAL_ADDRESS
from undersong_server.generators.interface import (
    TEMPLATE_TOKENS,
    Estimate,
    GenerationRequest,
    LanguageModelSettings,
    PromptFormat,
    expected_tokens,
    one_or_many,
    prompt_room,
)
from undersong_server.prompts.rendering import KINDS, estimated_tokens

BATCH_PRICE = 0.5  # price of a batch's tokens, as a share of their usual price
_BATCH_S = (60.0, 86400.0)  # shortest and longest wait for a batch
_MOST_STOPS = 4  # most stop sequences that OpenAI's endpoints take
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
_RESERVED_FIELDS = frozenset(
    {"model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed", "n"}
    | {"best_of", "stream", "echo", "response_format", "presence_penalty", "frequency_penalty", "reasoning_effort"}
    # Names of the same fields at llama.cpp, Ollama, TGI, Mistral, Anthropic and OpenRouter.
    | {"n_predict", "num_predict", "max_new_tokens", "max_output_tokens", "max_tokens_to_sample", "options", "models"}
    | {"random_seed", "stop_sequences", "stream_options", "num_return_sequences", "system", "input"}
)
"""Fields of a request that have a setting, or that would make an answer of another form."""
_LONGEST_MODEL = 50  # characters of a model's name that are shown whole

# Headers that this program sets itself.
_PROGRAM_HEADERS = r"(?i)^(authorization|host|cookie|connection|content-.*|transfer-.*|proxy-.*|user-agent|accept)$"
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


def _further_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError for a field of ``extra_body`` that has a setting: plans, caps and signatures read that one."""
    if reserved_names := sorted(name for name in fields if name.casefold() in _RESERVED_FIELDS):
        raise ValueError(
            f"{', '.join(reserved_names)}: not taken in extra_body; use the key of that name beside it, or leave it out"
        )
    return fields


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
    extra_body: Annotated[dict[str, Any], AfterValidator(_further_fields)] = {}
    headers: _Headers = {}


class Endpoint(BaseModel):
    """One address of a model.

    Attributes:
        base_url: up to and including ``/v1``. With a key https, or http on this machine only.
        api_key_env: name of the environment variable that holds the key, which ends in ``_API_KEY``; "" for an endpoint
            that needs none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = Field(default="https://api.openai.com/v1", pattern=ADDRESS)
    api_key_env: str = "OPENAI_API_KEY"

    def check_key(self, proxy: str) -> None:
        """Raises ValueError for a key that would be another secret of this machine, or go out unencrypted."""
        key_variable = self.api_key_env
        if not key_variable:
            return
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*_API_KEY", key_variable):
            # The value is not shown if it may be a key in place of its variable's name.
            named_words = ""
            if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", key_variable):
                named_words = f" {key_variable!r}"
            raise ValueError(
                f"api_key_env{named_words} is no name that ends in _API_KEY; export the key under such a name, and"
                " write that"
                ' name here ("" for an endpoint without keys)'
            )
        through_proxy = proxy and _is_loopback(self.base_url)
        if through_proxy:
            setting_name, passed_host = "proxy", proxy
        else:
            setting_name, passed_host = "base_url", self.base_url
        if self.base_url.startswith("http:") and not _is_loopback(passed_host):
            raise ValueError(
                f"{setting_name} {passed_host!r} would carry the key of {key_variable} unencrypted over a network; use"
                ' a base_url with https, or api_key_env = "" for an endpoint without keys'
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


class EndpointSettings(LanguageModelSettings, RequestFields, Endpoint):
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
    proxy: str = Field(default="", pattern=OPTIONAL_ADDRESS)
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
        """Raises ValueError if the table would send another secret of this machine, or a key unencrypted."""
        for address in self._all_addresses:
            address.check_key(self.proxy)
        field_sets: tuple[RequestFields, ...] = (self, *self.kinds.values())
        headers = [header for fields in field_sets for header in fields.headers.items()]
        for header_name, header_value in headers:
            has_key_sign = (
                re.fullmatch(_PROGRAM_HEADERS, header_name)
                or re.search(_SENSITIVE, header_name)
                or re.match(_KEY, header_value)
            )
            if has_key_sign or header_name.casefold() == self.key_header.casefold():
                raise ValueError(
                    f"headers: {header_name} cannot be set in a task file; name the key's variable as api_key_env, and"
                    " its header as key_header"
                )
        return self

    @model_validator(mode="after")
    def _keys_of_the_table_fit_together(self) -> Self:
        if self.batch and (self.endpoints or self.fallback):
            raise ValueError(
                "batch: a batch goes to one address and one model; leave out endpoints and fallback, or batch"
            )
        for kind, fields in self.kinds.items():
            if kind not in KINDS:
                raise ValueError(f"kinds: no prompt is of the kind {kind!r}; there are {', '.join(sorted(KINDS))}")
            if self.batch and fields.headers:
                raise ValueError(
                    f"kinds.{kind}: the requests of a batch have no headers of their own; give the generator's, or"
                    " batch = false"
                )
        stated_prices = (self.price_per_1k_prompt is not None, self.price_per_1k_completion is not None)
        if any(stated_prices) and not all(stated_prices):
            raise ValueError("price_per_1k_prompt and price_per_1k_completion go together: give both or none")
        if self.price_budget_usd is not None and not all(stated_prices):
            raise ValueError("price_budget_usd needs price_per_1k_prompt and price_per_1k_completion")
        fallback_settings = self.fallback
        if fallback_settings and [
            fallback_settings.price_per_1k_prompt is not None,
            fallback_settings.price_per_1k_completion is not None,
        ] != list(stated_prices):
            raise ValueError("fallback: give both prices if the generator has prices, and none if it has none")
        return self

    @property
    def packages(self) -> tuple[str, ...]:
        return ("httpcore",)

    @property
    def addresses(self) -> tuple[Endpoint, ...]:
        """Every address of the model: the generator's own, then ``endpoints``."""
        return (self, *self.endpoints)

    @property
    def _all_addresses(self) -> tuple[Endpoint, ...]:
        return (*self.addresses, *([self.fallback] if self.fallback else []))

    @property
    def of_fallback(self) -> EndpointSettings:
        """The settings of the fallback: these settings with its address, model and prices in place of their own."""
        assert self.fallback is not None
        return self.model_copy(update={**dict(self.fallback), "endpoints": (), "fallback": None})

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        key_hosts = []
        for address in self._all_addresses:
            clear_proxy = address.base_url.startswith("http:") and self.proxy  # the proxy reads the key
            key_hosts.append((urlsplit(clear_proxy or address.base_url).netloc.lower(), address.api_key_env))
        return tuple((host, variable) for host, variable in key_hosts if variable)

    def request_fields(self, kind: str) -> RequestFields:
        """Returns the fields of a request for one kind of prompt."""
        kind_fields = self.kinds.get(kind)
        if kind_fields is None:
            return self
        own_values: dict[str, Any] = {name: getattr(kind_fields, name) for name in kind_fields.model_fields_set}
        return self.model_copy(update={**own_values, "headers": {**self.headers, **kind_fields.headers}})

    def prompt_format(self, folder: Path) -> PromptFormat:
        field_sets = [self, *(self.request_fields(kind) for kind in self.kinds)]
        longest_answer = max(fields.max_tokens for fields in field_sets)
        system_tokens = max(estimated_tokens(fields.system or "") for fields in field_sets)
        return PromptFormat(
            style=self.style, prompt_tokens=prompt_room(self.context_tokens, longest_answer + system_tokens)
        )

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
        host_names = dict.fromkeys(str(urlsplit(address.base_url).hostname) for address in self.addresses)
        fallback_words = f", else {self.of_fallback.writer}" if self.fallback else ""
        return f"{fingerprinted(self.model, _LONGEST_MODEL)} at {', '.join(host_names)}{fallback_words}"

    def price_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Returns the US dollars of that many tokens; 0.0 if the task names no price."""
        prompt_price = self.price_per_1k_prompt or 0.0
        completion_price = self.price_per_1k_completion or 0.0
        price_factor = BATCH_PRICE if self.batch else 1.0
        return price_factor * (prompt_tokens * prompt_price + completion_tokens * completion_price) / 1000.0

    def estimate(self, calls: int, prompt_words: int = 250, answer_words: int = 0) -> Estimate:
        """Estimates tokens, price and seconds; ``concurrency`` answers at once.

        An answer takes 0.3 s and a second per 100 tokens (low), or 3 s and a second per 20; a batch a minute to a day.
        """
        prompt_tokens, answer_tokens = expected_tokens(calls, prompt_words, self.max_tokens, answer_words)
        price_range = None
        if self.price_per_1k_prompt is not None:
            price_range = (
                self.price_usd(prompt_tokens[0], answer_tokens[0]),
                self.price_usd(prompt_tokens[1], answer_tokens[1]),
            )
        call_waves = -(-calls // self.concurrency)
        least_tokens = answer_tokens[0] / max(1, calls)
        seconds_range = call_waves * (0.3 + least_tokens / 100.0), call_waves * (3.0 + self.max_tokens / 20.0)
        seconds_range = _BATCH_S if self.batch else seconds_range
        return Estimate(
            calls,
            (prompt_tokens[0] + answer_tokens[0], prompt_tokens[1] + answer_tokens[1]),
            price_range,
            seconds_range,
        )

    def caps(self, estimate: Estimate) -> list[tuple[str, float, tuple[float, float]]]:
        stated_caps = (
            ("token_budget", self.token_budget, estimate.tokens),
            ("price_budget_usd", self.price_budget_usd, estimate.price_usd or (0.0, 0.0)),  # a price cap needs prices
        )
        return [
            (key, stated_cap, expected_use) for key, stated_cap, expected_use in stated_caps if stated_cap is not None
        ]

    def body_of(self, request: GenerationRequest) -> tuple[dict[str, Any], tuple[int, int]]:
        """Returns the body of a request, and the most tokens that it can read and write."""
        fields_of_kind = self.request_fields(request.kind)
        is_chat = request.style == "chat"
        system = request.system if fields_of_kind.system is None else fields_of_kind.system
        chat_turns = [{"role": "user", "content": request.prompt}]
        if system and (not is_chat or self.system_role == "user"):
            chat_turns[0]["content"] = f"{system}\n\n{request.prompt}"
        elif system:
            chat_turns.insert(0, {"role": self.system_role, "content": system})
        read_tokens = sum(
            len(chat_turn["content"].encode("utf-8", "replace")) + TEMPLATE_TOKENS for chat_turn in chat_turns
        )
        longest_answer = fields_of_kind.max_tokens * request.room
        body_fields: dict[str, Any] = {
            "model": self.model,
            # Legacy completions know this field by one name only.
            self.max_tokens_field if is_chat else "max_tokens": longest_answer,
            **fields_of_kind.model_dump(include={"temperature", "top_p", "presence_penalty", "frequency_penalty"}),
            "reasoning_effort": fields_of_kind.reasoning_effort or None,
            "stop": list(dict.fromkeys((*request.stop, *fields_of_kind.stop)))[:_MOST_STOPS] or None,
            "seed": request.seed % 2**31 if fields_of_kind.send_seed else None,  # a signed 32-bit number everywhere
            "response_format": _LIST_SCHEMA if self.structured and request.kind == "keywords" else None,
        }
        prompt = {"messages": chat_turns} if is_chat else {"prompt": chat_turns[0]["content"]}
        sent_fields = {name: value for name, value in body_fields.items() if value is not None}
        return {**sent_fields, **fields_of_kind.extra_body, **prompt}, (read_tokens, longest_answer)

    def cache_parts(self, request: GenerationRequest) -> list[Any]:
        """Returns everything that decides the answer to a request: addresses, headers and body."""
        addresses = [address.base_url for address in self.addresses]
        if self.fallback:
            addresses.append(f"{self.fallback.model} at {self.fallback.base_url}")
        return [addresses, self.request_fields(request.kind).headers, self.body_of(request)[0]]
