"""The ``[[generators]]`` tables of a task file: one frozen model per ``kind``.

Paths are kept as written; ``build_generators`` resolves them against the folder of the task file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import core_schema

from undersong_common.printable import printable
from undersong_server.generators import other_packages
from undersong_server.generators.interface import Estimate, PromptFormat
from undersong_server.prompts.rendering import KINDS
from undersong_server.prompts.trimming import estimated_tokens

# English text has about 1.3 tokens per word with the usual byte-pair vocabularies; the high figure covers other
# languages and clinical abbreviations.
_TOKENS_PER_WORD = (1.2, 2.0)
BATCH_PRICE = 0.5  # of a batch's tokens, of their usual price
_TEMPLATE_TOKENS = 64  # of a chat template around a prompt


def _none_or_value(value: object) -> object:
    """TOML has no null: "none" stands for it."""
    return None if value == "none" else value


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


# A host and a path: no user name, password, query or fragment.
_ADDRESS = r"^https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$"


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class CommonSettings(BaseModel):
    """Base of every kind's settings, of other packages' kinds too. A key that a kind does not have is an error.

    Attributes:
        kind: each subclass states its own, as a Literal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)
    kind: str

    @property
    def words(self) -> str:
        """Who writes, in a few words for the people who approve a run: name, and which model where."""
        return f"{self.name} ({self._behind})"

    @property
    def files(self) -> tuple[str, ...]:
        """What it reads before it can write, as the task file says it; none where it asks an endpoint."""
        return ()

    @property
    def lacks_cache(self) -> bool:
        """Whether it asks an endpoint whose answers it could keep across runs, and names no file for them."""
        return False

    @property
    def _behind(self) -> str:
        return f"{self.kind}, of another package"

    def estimate(self, calls: int, prompt_words: int = 250) -> Estimate:
        """Expected cost of ``calls`` calls with prompts of so many words."""
        raise NotImplementedError

    def caps(self, estimate: Estimate) -> list[tuple[str, float, float]]:
        """The caps that are set, each as (key, cap, the estimate's highest figure)."""
        return []

    def identity(self) -> dict[str, Any]:
        """What may not change while a run goes on. A language model's table may be mended: its name and kind stay."""
        return self.model_dump(mode="json")

    def prompt_format(self, folder: Path) -> PromptFormat:
        """How its prompts are made. ``folder`` is where relative paths start. The embedded generators read none."""
        return PromptFormat(reads=False, rendered=False)


def _room(context: int | None, answer: int) -> int | None:
    """Tokens that a prompt may have; a quarter of the context where the answer would take more than the rest."""
    return None if context is None else max(context - answer - _TEMPLATE_TOKENS, context // 4)


def _context_of(model: Path) -> int | None:
    """Tokens that a model's folder says it holds; None where it says nothing (the generator names what is wrong)."""
    try:
        found = json.loads((model / "config.json").read_text(encoding="utf-8"))
        context: int | None = found.get("max_position_embeddings") or found.get("n_positions")
    except (OSError, ValueError, AttributeError):
        return None
    return context


class NgramSettings(CommonSettings):
    """The embedded n-gram model over a public corpus.

    Attributes:
        corpus: JSONL file or files with ``text`` and, where there is one, ``label``.
        order: length of the longest n-gram, 2 to 4.
        temperature: below 1 frequent continuations become more frequent, above 1 rarer ones do.
        cache: probability that a word is drawn from the good examples' (or the parents') n-grams where those know the
            context.
        penalty: probability that a word that completes a distinctive n-gram of the bad examples is refused.
        shared: probability that a word is drawn from the model of all labels instead of the label's own.
    """

    kind: Literal["ngram"]
    corpus: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_one_or_many)] = Field(
        min_length=1
    )
    order: int = Field(default=3, ge=2, le=4)
    temperature: float = Field(default=1.0, gt=0.0, le=10.0)
    cache: float = Field(default=0.35, ge=0.0, le=1.0)
    penalty: float = Field(default=0.8, ge=0.0, lt=1.0)
    shared: float = Field(default=0.05, ge=0.0, le=1.0)

    @property
    def files(self) -> tuple[str, ...]:
        return self.corpus

    @property
    def _behind(self) -> str:
        return "an n-gram model of a public corpus, at the coordinator"

    def estimate(self, calls: int, prompt_words: int = 250) -> Estimate:
        """Costs nothing; takes 0.2 to 5 ms per text and 1 to 20 s of training."""
        return Estimate(calls, (0, 0), (0.0, 0.0), (1.0 + 0.0002 * calls, 20.0 + 0.005 * calls))


class ReplaySettings(CommonSettings):
    """A file of texts that a real model wrote earlier.

    Attributes:
        path: JSONL file with ``text`` and ``label``.
        temperature: of the softmax over (mean cosine to the good - mean cosine to the bad examples). The default 0.05
            makes a text that is 0.05 closer e times as likely; cosine differences within a label spread by about that.
    """

    kind: Literal["replay"]
    path: str = Field(min_length=1)
    temperature: float = Field(default=0.05, gt=0.0, le=100.0)

    @property
    def files(self) -> tuple[str, ...]:
        return (self.path,)

    @property
    def _behind(self) -> str:
        return "texts that were written before"

    def estimate(self, calls: int, prompt_words: int = 250) -> Estimate:
        """Costs nothing; takes under 1 ms per text, and up to a minute to embed the file once."""
        return Estimate(calls, (0, 0), (0.0, 0.0), (0.0001 * calls, 60.0 + 0.001 * calls))


_Stop = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_one_or_many)]
_NOT_THEIRS = r"(?i)^(authorization|host|cookie|connection|content-.*|transfer-.*|proxy-.*|user-agent|accept)$"
# Task files, plans and reports are read by many: a header that bears a key or a password is none of theirs.
_SENSITIVE = r"(?i)(^|[-_])(api-?key|key|(access|auth|session)?token|secret|password|auth|authorization|credentials?)$"
_KEY = r"(?i)\s*(bearer|basic)\s|\s*(sk|pk|gsk|hf|ghp|xai)[-_]|\s*AIza"  # what keys begin with
_Headers = dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")], Annotated[str, Field(pattern=r"^[\x20-\x7e]*$")]]


class RequestFields(BaseModel):
    """Fields of a request to an endpoint, for one kind of prompt; what is left out is the generator's own.

    Attributes:
        temperature: "none" sends none (some reasoning models refuse it).
        top_p: nucleus of the sampling; None sends none.
        max_tokens: longest answer in tokens.
        stop: strings that end an answer, besides those of a completion prompt; endpoints take four in all.
        presence_penalty, frequency_penalty: None sends none.
        reasoning_effort: of reasoning models, e.g. "low"; "" sends none.
        send_seed: sends the request's seed; some endpoints refuse the field.
        system: in place of the templates' system part; before the text that a completion continues. "" sends none.
        extra_body: further fields of the request, as the endpoint knows them.
        headers: further headers of the request; none of them is a secret. Those of a kind come on top of the
            generator's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: Annotated[Annotated[float, Field(ge=0.0, le=2.0)] | None, BeforeValidator(_none_or_value)] = 1.0
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    max_tokens: int = Field(default=512, ge=1)
    stop: _Stop = ()
    presence_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(default=None, ge=-2.0, le=2.0)
    reasoning_effort: str = Field(default="", pattern=r"^[a-z]*$")
    send_seed: bool = False
    system: str | None = None
    extra_body: dict[str, Any] = {}
    headers: _Headers = {}


class Endpoint(BaseModel):
    """A further address of the same model; calls go to all of them in turn."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = Field(default="https://api.openai.com/v1", pattern=_ADDRESS)
    api_key_env: str = "OPENAI_API_KEY"


def _check_key(address: Endpoint, proxy: str) -> None:
    """Raises ValueError for a key that would be another secret of this machine, or go out unencrypted."""
    variable = address.api_key_env
    if not variable:
        return
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*_API_KEY", variable):
        # not repeated where it may be a key that stands where its variable's name belongs
        named = f" {variable!r}" if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", variable) else ""
        raise ValueError(
            f"api_key_env{named} is no name that ends in _API_KEY; export the key under such a name, and write that"
            ' name here ("" for an endpoint without keys)'
        )
    key, passed = "base_url", address.base_url
    if proxy and _is_loopback(passed):
        key, passed = "proxy", proxy
    if address.base_url.startswith("http:") and not _is_loopback(passed):
        raise ValueError(
            f"{key} {passed!r} would carry the key of {variable} unencrypted over a network; write a base_url with"
            ' https, or api_key_env = "" for an endpoint without keys'
        )


class OpenAISettings(CommonSettings, RequestFields):
    """An OpenAI-compatible endpoint. Its RequestFields hold for every kind of prompt that ``kinds`` leaves out.

    Attributes:
        style: "chat" asks a model that follows instructions (chat completions); "completion" has a base model continue
            a text (legacy completions).
        context_tokens: prompt and answer that the model holds; prompts show fewer examples where they need be. None
            trims nothing.
        model: the model's name at the endpoint.
        base_url: up to and including ``/v1``. With a key https, or http on this machine only.
        api_key_env: name of the environment variable that holds the key, which ends in ``_API_KEY``; "" for an endpoint
            that needs none.
        organization, project: sent as OpenAI-Organization and OpenAI-Project; "" sends none.
        proxy: ``http://HOST:PORT`` that calls go through; "" goes straight. The environment's proxies are not asked.
        ca_file: certificates (PEM) by which the endpoint's is checked, relative to the task file; "" takes the usual.
        max_tokens_field: newer OpenAI models want "max_completion_tokens", other servers "max_tokens".
        system_role: the role that bears it; "user" puts it before the user's own part.
        structured: asks for lists (keywords) as JSON of a schema, which not every endpoint knows.
        key_header: the header that carries the key: "Authorization" (after "Bearer") or, alone, another one.
        endpoints: further addresses with keys of their own.
        kinds: other request fields for single kinds of prompts.
        concurrency: calls in flight at once; fewer after a 429, until calls go well again.
        requests_per_minute, tokens_per_minute: no more than that; head-room that an endpoint states is heeded, too.
        deadline_s: for one text with all its attempts; no further attempt begins after it.
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
    base_url: str = Field(default="https://api.openai.com/v1", pattern=_ADDRESS)
    api_key_env: str = "OPENAI_API_KEY"
    organization: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]*$")
    project: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]*$")
    proxy: str = Field(default="", pattern=rf"{_ADDRESS}|^$")
    ca_file: str = ""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    system_role: Literal["system", "developer", "user"] = "system"
    structured: bool = False
    key_header: str = Field(default="Authorization", pattern=r"^[A-Za-z0-9-]+$")
    endpoints: tuple[Endpoint, ...] = ()
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

    def identity(self) -> dict[str, Any]:
        return self.model_dump(mode="json", include={"name", "kind"})

    def prompt_format(self, folder: Path) -> PromptFormat:
        own = [self, *(self.request_fields(kind) for kind in self.kinds)]
        answer = max(fields.max_tokens for fields in own)
        system = max(estimated_tokens(fields.system or "") for fields in own)
        return PromptFormat(style=self.style, prompt_tokens=_room(self.context_tokens, answer + system))

    @property
    def lacks_cache(self) -> bool:
        return not self.cache

    @property
    def addresses(self) -> tuple[Endpoint, ...]:
        """Every address that is asked."""
        return (Endpoint(base_url=self.base_url, api_key_env=self.api_key_env), *self.endpoints)

    def request_fields(self, kind: str) -> RequestFields:
        """The fields of a request for one kind of prompt."""
        own = self.kinds.get(kind)
        if own is None:
            return self
        update: dict[str, Any] = {name: getattr(own, name) for name in own.model_fields_set}
        return self.model_copy(update={**update, "headers": {**self.headers, **own.headers}})

    @model_validator(mode="after")
    def _keys_go_where_they_belong(self) -> Self:
        """A task file says what is sent where: neither another secret of this machine, nor a key in the clear."""
        for address in self.addresses:
            _check_key(address, self.proxy)
        asked: tuple[RequestFields, ...] = (self, *self.kinds.values())
        for fields in asked:
            for name, value in fields.headers.items():
                theirs = re.fullmatch(_NOT_THEIRS, name) or re.search(_SENSITIVE, name) or re.match(_KEY, value)
                if theirs or name.casefold() == self.key_header.casefold():
                    raise ValueError(
                        f"headers: {name} is not the task file's to set; a key is named by api_key_env, and its header"
                        " by key_header"
                    )
        return self

    @model_validator(mode="after")
    def _batches_have_one_address(self) -> Self:
        if self.batch and self.endpoints:
            raise ValueError("batch and endpoints: a batch is asked of one address; name it by base_url")
        return self

    @model_validator(mode="after")
    def _kinds_can_be_asked(self) -> Self:
        for kind, fields in self.kinds.items():
            if kind not in KINDS:
                raise ValueError(f"kinds: no prompt is of the kind {kind!r}; there are {', '.join(sorted(KINDS))}")
            if self.batch and fields.headers:
                raise ValueError(
                    f"kinds.{kind}: the requests of a batch have no headers of their own; give the generator's, or"
                    " batch = false"
                )
        return self

    @model_validator(mode="after")
    def _prices_belong_together(self) -> Self:
        known = (self.price_per_1k_prompt is not None, self.price_per_1k_completion is not None)
        if any(known) and not all(known):
            raise ValueError("price_per_1k_prompt and price_per_1k_completion go together: give both or none")
        if self.price_budget_usd is not None and not all(known):
            raise ValueError("price_budget_usd needs price_per_1k_prompt and price_per_1k_completion")
        return self

    def price_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """US dollars of that many tokens; 0.0 where the task names no price."""
        prompt, completion = self.price_per_1k_prompt or 0.0, self.price_per_1k_completion or 0.0
        factor = BATCH_PRICE if self.batch else 1.0
        return factor * (prompt_tokens * prompt + completion_tokens * completion) / 1000.0

    def caps(self, estimate: Estimate) -> list[tuple[str, float, float]]:
        price = (estimate.price_usd or (0.0, 0.0))[1]  # a price cap needs prices
        found = (
            ("token_budget", self.token_budget, estimate.tokens[1]),
            ("price_budget_usd", self.price_budget_usd, price),
        )
        return [(key, cap, most) for key, cap, most in found if cap is not None]

    @property
    def _behind(self) -> str:
        hosts = dict.fromkeys(str(urlsplit(address.base_url).hostname) for address in self.addresses)
        return f"{printable(self.model, 50)} at {', '.join(hosts)}"

    def estimate(self, calls: int, prompt_words: int = 250) -> Estimate:
        """Expected cost of ``calls`` calls.

        Low: 1.2 tokens per word and answers of an eighth of max_tokens, written at 100 tokens/s after 0.3 s; high:
        2 tokens per word and answers of max_tokens at 20 tokens/s after 3 s; ``concurrency`` at once.
        """
        prompts = [round(calls * prompt_words * factor) for factor in _TOKENS_PER_WORD]
        answers = [-(-self.max_tokens // 8), self.max_tokens]
        price = None
        if self.price_per_1k_prompt is not None:
            price = (self.price_usd(prompts[0], calls * answers[0]), self.price_usd(prompts[1], calls * answers[1]))
        waves = -(-calls // self.concurrency)
        return Estimate(
            calls,
            (prompts[0] + calls * answers[0], prompts[1] + calls * answers[1]),
            price,
            (waves * (0.3 + answers[0] / 100.0), waves * (3.0 + answers[1] / 20.0)),
        )


class TransformersSettings(CommonSettings):
    """A local folder with a language model, causal or sequence to sequence (T5).

    Attributes:
        style: "chat" asks, through the tokenizer's chat template where it has one; "completion" has the model continue.
        path: folder as ``save_pretrained`` writes it, tokenizer included.
        device: "auto" takes the first GPU if there is one; else "cpu", "cuda", "cuda:1", "mps".
        device_map: for a model that no single device holds, as accelerate takes it: "auto", "balanced",
            "balanced_low_0", "sequential", or the device of each part by name. "" puts it whole on ``device``.
        quantization: weights in fewer bits, by bitsandbytes: "nf4" and "fp4" (4 bits), "int8"; "" the folder's own.
        double_quantization: quantizes the scales of 4-bit weights, too (0.4 bits a weight less).
        dtype: "auto" is the folder's own on a GPU and float32 on a CPU; with 4 bits it is what is computed in.
        batch_size: prompts at once.
        temperature: 0 decodes greedily.
        top_p: nucleus of the sampling; 1 is all.
        max_new_tokens: longest answer in tokens.
    """

    kind: Literal["transformers"]
    style: Literal["chat", "completion"] = "chat"
    path: str = Field(min_length=1)
    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    device_map: Literal["", "auto", "balanced", "balanced_low_0", "sequential"] | dict[str, int | str] = ""
    quantization: Literal["", "nf4", "fp4", "int8"] = ""
    double_quantization: bool = False
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    batch_size: int = Field(default=8, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, le=10.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    max_new_tokens: int = Field(default=256, ge=1)

    @model_validator(mode="after")
    def _one_place(self) -> TransformersSettings:
        if self.device_map and self.device != "auto":
            raise ValueError("device and device_map both say where the model lies; give one of them")
        if self.double_quantization and self.quantization not in ("nf4", "fp4"):
            raise ValueError('double_quantization is of 4-bit weights: set quantization = "nf4" or "fp4"')
        return self

    @property
    def files(self) -> tuple[str, ...]:
        return (self.path,)

    @property
    def _behind(self) -> str:
        return "a language model at the coordinator"

    def identity(self) -> dict[str, Any]:
        return self.model_dump(mode="json", include={"name", "kind"})

    def prompt_format(self, folder: Path) -> PromptFormat:
        context = _context_of(folder / self.path)
        return PromptFormat(style=self.style, prompt_tokens=_room(context, self.max_new_tokens))

    def estimate(self, calls: int, prompt_words: int = 250) -> Estimate:
        """Costs nothing. Batches of an eighth of max_new_tokens at 50 steps/s (low) up to all of it at 2 steps/s."""
        steps = -(-calls // self.batch_size) * self.max_new_tokens
        low, high = (round(calls * prompt_words * factor) for factor in _TOKENS_PER_WORD)
        written = (calls * -(-self.max_new_tokens // 8), calls * self.max_new_tokens)
        return Estimate(calls, (low + written[0], high + written[1]), (0.0, 0.0), (steps / 8 / 50.0, steps / 2.0))


class VllmSettings(CommonSettings):
    """A local folder with a causal language model, written with by vLLM's offline engine (the extra ``vllm``).

    Attributes:
        path: folder as ``save_pretrained`` writes it, tokenizer included.
        style: as of TransformersSettings.
        temperature, top_p: of the sampling; temperature 0 decodes greedily.
        max_new_tokens: longest answer in tokens.
        context_tokens: prompt and answer together; None takes the model's own.
        memory: share of the GPU's memory that the engine takes.
        tensor_parallel: GPUs over which the model is divided.
        quantization: as vLLM names it, e.g. "bitsandbytes"; "" takes the folder's own.
        eager: compiles nothing: the engine starts in seconds and writes more slowly.
    """

    kind: Literal["vllm"]
    path: str = Field(min_length=1)
    style: Literal["chat", "completion"] = "chat"
    temperature: float = Field(default=1.0, ge=0.0, le=10.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    max_new_tokens: int = Field(default=256, ge=1)
    context_tokens: int | None = Field(default=None, ge=256)
    memory: float = Field(default=0.9, gt=0.0, le=1.0)
    tensor_parallel: int = Field(default=1, ge=1)
    quantization: str = Field(default="", pattern=r"^[a-z0-9_-]*$")
    eager: bool = False

    def identity(self) -> dict[str, Any]:
        return self.model_dump(mode="json", include={"name", "kind"})

    def prompt_format(self, folder: Path) -> PromptFormat:
        context = self.context_tokens or _context_of(folder / self.path)
        return PromptFormat(style=self.style, prompt_tokens=_room(context, self.max_new_tokens))

    @property
    def _behind(self) -> str:
        return "a language model at the coordinator"

    def estimate(self, calls: int, prompt_words: int = 250) -> Estimate:
        """Costs nothing. A hundred answers at once, at 20 to 100 tokens a second each, after a minute of loading."""
        low, high = (round(calls * prompt_words * factor) for factor in _TOKENS_PER_WORD)
        written = (calls * -(-self.max_new_tokens // 8), calls * self.max_new_tokens)
        waves = -(-calls // 100)
        seconds = (30.0 + waves * self.max_new_tokens / 8 / 100.0, 180.0 + waves * self.max_new_tokens / 20.0)
        return Estimate(calls, (low + written[0], high + written[1]), (0.0, 0.0), seconds)


_Own = Annotated[
    NgramSettings | ReplaySettings | OpenAISettings | TransformersSettings | VllmSettings, Field(discriminator="kind")
]
_OWN_KINDS = ("ngram", "replay", "openai", "transformers", "vllm")


class _AnyKind:
    """A table of this program's kinds, else of a kind that an installed package declares."""

    stands_for = _Own  # for errors that name a kind's keys

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            _validated,
            handler.generate_schema(_Own),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda settings, info: settings.model_dump(mode=info.mode), info_arg=True
            ),
        )


def _validated(value: Any, own: core_schema.ValidatorFunctionWrapHandler) -> CommonSettings:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    found = other_packages.find(kind) if isinstance(kind, str) and kind not in _OWN_KINDS else None
    if found is None:
        validated: CommonSettings = own(value)
        return validated
    try:
        settings: CommonSettings = found.Settings.model_validate(value)
        return settings
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
    raise ValueError(f"of kind {kind!r}: {'; '.join(faults)}")


GeneratorSettings = Annotated[CommonSettings, _AnyKind()]
