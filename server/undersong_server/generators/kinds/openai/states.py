"""States of an exchange with an endpoint: bytes in, an outcome out, without I/O and without a clock.

An exchange is the response to one attempt: a status with its headers and bytes, one line of a batch's result, or a
fault of the connection. It ends in one of six states, and the state alone decides what happens next; the words of the
endpoint are shown to people.

    ANSWER    a completion: it is read
    REQUEST   this request's fault (content, a prompt that is too long): this order fails, the others go on
    WAIT      the endpoint is busy: asked again after a pause
    ACCOUNT   the account or a setting: the run stops at once
    REFUSED   another refusal: ten in a row stop the run
    LOST      no answer that can be read, and perhaps billed: asked again, and its worst case counts as spent
"""

import base64
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from undersong_common.printable import printable
from undersong_server.generators.interface import Finish


class ExchangeState(Enum):
    """The six states of an exchange."""

    ANSWER = "answer"
    REQUEST = "this request's"
    WAIT = "wait"
    ACCOUNT = "account or settings"
    REFUSED = "refused"
    LOST = "lost"


Fault = Literal["", "unreachable", "certificate", "proxy", "late", "cut", "large"]
SHOWN_CHARACTERS = 200  # characters of an endpoint's message that are shown
SECRET_CHARACTERS = 8  # so many characters of a key, next to each other, are masked in every message
MOST_TOKENS = 10**7  # largest token count that a usage can state

STATUS_STATES: dict[int, ExchangeState] = {
    **dict.fromkeys((408, 409, 425, 429), ExchangeState.WAIT),
    **dict.fromkeys((401, 402, 404, 407), ExchangeState.ACCOUNT),
}
"""States of the statuses that mean the same whatever words come with them; :func:`_kind_of` has the others."""
WORDED_STATUSES = {200, 400, 403, 413, 422}
"""Statuses whose words decide the state; 200 is that of an error inside a good answer that states no code."""
BILLED_STATUSES = {502, 504, 520, 522, 524}
"""Statuses of a gateway that lost the answer of a server, which may have written and billed it."""
FAULT_STATES: dict[Fault, ExchangeState] = {
    "unreachable": ExchangeState.WAIT,
    "certificate": ExchangeState.ACCOUNT,
    "proxy": ExchangeState.ACCOUNT,
    "late": ExchangeState.LOST,
    "cut": ExchangeState.LOST,
    "large": ExchangeState.LOST,
}
ENDS: dict[str, Finish] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence"), ""),
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"), "length"
    ),
    **dict.fromkeys(
        ("content_filter", "safety", "sensitive", "prohibited_content", "recitation", "refusal", "blocklist"), "filter"
    ),
}
"""Why an answer ended, by the reason that an endpoint states; any other reason is unknown."""
LOST_ENDS = {"error", "abort", "network_error", "insufficient_system_resource"}
"""Reasons for which an answer ended that mean that there is no answer."""


@dataclass(frozen=True)
class Problem:
    """A kind of problem that an endpoint states, with the state that it has and its remedy."""

    state: ExchangeState
    code: str
    remedy: str


PROBLEMS: dict[str, Problem] = {
    "content": Problem(ExchangeState.REQUEST, "endpoint-content", "reword task.description or the label"),
    "long": Problem(ExchangeState.REQUEST, "endpoint-prompt-long", "set context_tokens, or lower max_tokens"),
    "busy": Problem(ExchangeState.WAIT, "endpoint-busy", "lower concurrency, or wait, and run the same command again"),
    "used-up": Problem(
        ExchangeState.WAIT,
        "endpoint-quota",
        "wait until the quota renews, or raise it, then run the same command again; answers are kept",
    ),
    "quota": Problem(
        ExchangeState.ACCOUNT,
        "endpoint-quota",
        "top the account up or raise its limit, then run the same command again",
    ),
    "key": Problem(
        ExchangeState.ACCOUNT,
        "endpoint-key-refused",
        "set {variable} to a key that may use it, then run the same command again",
    ),
    "forbidden": Problem(
        ExchangeState.ACCOUNT,
        "endpoint-key-refused",
        "set {variable} to a key that may use it, then run the same command again",
    ),
    "model": Problem(
        ExchangeState.ACCOUNT,
        "endpoint-model-unknown",
        "correct model, or base_url (which ends before /chat/completions, mostly with /v1)",
    ),
    "redirect": Problem(ExchangeState.ACCOUNT, "endpoint-redirects", "write the address itself as base_url"),
    "proxy": Problem(ExchangeState.ACCOUNT, "endpoint-proxy", "look after the proxy, or correct the key proxy"),
    "certificate": Problem(
        ExchangeState.ACCOUNT,
        "endpoint-certificate",
        "name the file with your authority's certificate as ca_file, or correct base_url",
    ),
    "unreachable": Problem(
        ExchangeState.WAIT,
        "endpoint-unreachable",
        "start the endpoint or correct base_url, then run the same command again",
    ),
    "refused": Problem(
        ExchangeState.REFUSED,
        "endpoint-fails",
        "look after the endpoint and the generator's settings, then run the same command again; answers are kept",
    ),
    "withdrawn": Problem(
        ExchangeState.REFUSED,
        "endpoint-fails",
        "set model to one that the endpoint serves, then run the same command again; answers are kept",
    ),
    "gone": Problem(
        ExchangeState.LOST,
        "batch-gone",
        "correct base_url or the key if these are not those that it was submitted with; then run the same command"
        " again: what is still not there is asked for again, and counts at its worst case",
    ),
    "lost": Problem(
        ExchangeState.LOST,
        "endpoint-fails",
        "look after the endpoint and base_url, then run the same command again; answers are kept",
    ),
}
STATUS_PROBLEMS = {401: "key", 402: "quota", 404: "model", 407: "proxy"}
FAILURES_IN_A_ROW = 10
"""Number of orders that fail one after the other before the run stops."""
FORBIDDEN_IN_A_ROW = 3
"""Number of statuses 403 that are not about content before the run stops; before the first answer one is enough."""

_I = re.IGNORECASE
_CONTENT = re.compile(
    r"content[ _-]?(filter|management|policy)|moderat|flagged|responsible.?ai|safety (system|filter|setting)"
    r"|prohibited.?content|inappropriate|usage polic|\A(safety|blocklist|recitation|spii)\b|敏感|违规"
    r"|(?<!organization )(?<!organisation )(?<!organization's )(?<!network )(?<!access )(?<!data )\bpolicy",
    _I,
)
# An account or key is shut out, perhaps by a policy: such words say nothing about the content of the request.
_SHUT_OUT = (
    r"\b(account|organi[sz]ation|access|subscription|project|workspace|team|key)\b",
    r"\b(suspend|deactivat|terminat|bann|revok)ed",
)
_SUSPENDED = re.compile("|".join(".{0,60}".join(words) for words in (_SHUT_OUT, _SHUT_OUT[::-1])), _I)
_BILLING = re.compile(
    r"billing|insufficient[ _]?(balance|quota|fund|credit)|\bcredits?\b(?! card)|\bbalance\b|payment|prepaid|arrear"
    r"|余额|欠费|hard.limit|spend(ing)?.limit|current quota|account.{0,20}(suspended|deactivated|overdue)",
    _I,
)
_QUOTA = re.compile(r"insufficient.?quota|allotment|allowance|quota.{0,40}(month|week|day)|(month|week|dai)ly", _I)
_A_WHILE = re.compile(r"per.?(second|minute|hour|day)|\b[rt]p[smd]\b|rate.?limit", _I)
_THROTTLED = re.compile(r"throttl|rate.?(limit|exceeded)|too.?many.?requests", _I)
_BUSY = re.compile(
    rf"\bloading\b|overloaded|\bbusy\b|warming|enqueued|temporarily|at capacity|{_THROTTLED.pattern}", _I
)
_WITHDRAWN = re.compile(
    r"\bmodel.{0,80}(deprecated|withdrawn|retired|decommissioned|discontinued|no longer|not (found|available)|sunset"
    r"|not exist)",
    _I,
)
_LONG = re.compile(
    r"context.?(length|window|size)|maximum context|too (long|large|many (input )?tokens)|reduce the length"
    r"|(prompt|inputs?)\b.{0,60}(exceed|longer|at most|fewer than|less than)|string_above_max_length",
    _I,
)
_KEY = re.compile(r"api[ _-]?key|authenticat|unauthori[sz]ed|invalid.{0,12}(token|credential)", _I)


@dataclass(frozen=True)
class Exchange:
    """The response to one attempt: a status with headers and body, or a fault of the connection.

    Attributes:
        status: the HTTP status; 0 if none came.
        headers: of the response, names in lower case.
        body: bytes of the response, without the compression that a Content-Encoding states.
        fault: fault of the connection, "" for none; ``detail`` says more about it.
    """

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    fault: Fault = ""
    detail: str = ""


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one answer; ``reported`` is False if the endpoint states no numbers that can be true."""

    prompt: int
    completion: int
    reported: bool = True


@dataclass(frozen=True)
class ReadCompletion:
    """A completion that was read, as the endpoint wrote it."""

    text: str
    finish: Finish
    usage: TokenUsage


@dataclass(frozen=True)
class ExchangeOutcome:
    """The state of an exchange, with its completion or its problem.

    Attributes:
        kind: key of ``PROBLEMS``; "" for an answer.
        words: the problem as people read it.
        pause_s: pause that the endpoint announces; None if it announces none.
        billed: True if the answer may have been written and billed, so that its worst case counts.
        throttled: True if the endpoint says that it is asked too often.
    """

    state: ExchangeState
    kind: str = ""
    words: str = ""
    pause_s: float | None = None
    billed: bool = False
    throttled: bool = False
    completion: ReadCompletion | None = None

    @property
    def problem(self) -> Problem:
        return PROBLEMS[self.kind]


def judge(
    exchange: Exchange, worst: tuple[int, int], secrets: Sequence[str] = (), now_s: float = 0.0
) -> ExchangeOutcome:
    """Judges an exchange: returns its state, with its completion or its problem.

    Args:
        worst: most tokens that the request can read and write.
        secrets: keys that the words must not show.
        now_s: seconds since the epoch, for a pause that is announced as a date.
    """
    if exchange.fault:
        exchange_state = FAULT_STATES[exchange.fault]
        problem_kind = exchange.fault if exchange.fault in PROBLEMS else "lost"
        return ExchangeOutcome(
            exchange_state, problem_kind, masked(exchange.detail, secrets), billed=exchange_state is ExchangeState.LOST
        )
    body_json = parsed(exchange.body)
    endpoint_words = masked(words_of(body_json, exchange.body), secrets)
    pause_s = announced_pause_s(exchange.headers, exchange.body, now_s)
    if not 200 <= exchange.status < 300:
        location_words = ""
        if 300 <= exchange.status < 400:
            location_words = _host_and_path(exchange.headers.get("location", ""))
        if location_words:
            endpoint_words = f"leads to {_with_words(masked(location_words, secrets), endpoint_words)}"
        return _judge_status(exchange.status, body_json, endpoint_words, pause_s)
    content_type = exchange.headers.get("content-type", "").casefold()
    if "event-stream" in content_type or (body_json is None and _STREAM.match(exchange.body)):
        return ExchangeOutcome(ExchangeState.LOST, "lost", "an event stream, where none was asked for", billed=True)
    return _judge_answer(body_json, endpoint_words, pause_s, worst)


def _judge_answer(
    body_json: Any, endpoint_words: str, pause_s: float | None, worst: tuple[int, int]
) -> ExchangeOutcome:
    """Returns the state of a body that came with a good status."""
    answer_choices = _as_object(body_json).get("choices")
    first_choice = None
    if isinstance(answer_choices, list) and answer_choices and isinstance(answer_choices[0], dict):
        first_choice = answer_choices[0]
    stated_error = next(
        (
            error_node["error"]
            for error_node in (body_json, first_choice)
            if isinstance(error_node, dict) and error_node.get("error")
        ),
        None,
    )
    if stated_error is None and first_choice is None and isinstance(body_json, dict) and _status_in(body_json):
        stated_error = body_json
    if stated_error is not None:
        status = _status_in(stated_error) or _status_in(body_json)
        status_outcome = _judge_status(status or 200, body_json, endpoint_words, pause_s)
        if not status and first_choice is not None and status_outcome.state is ExchangeState.REFUSED:
            error_words = _with_words("the answer ended by an error", endpoint_words)
            return ExchangeOutcome(ExchangeState.LOST, "lost", error_words, pause_s, billed=True)
        return status_outcome
    if first_choice is None:
        completion = None
    else:
        completion = _read_completion(body_json, first_choice, worst)
    if completion is not None:
        return ExchangeOutcome(ExchangeState.ANSWER, completion=completion)
    # Some vendors state an error by words and a code of their own, under a good status.
    if first_choice is None and isinstance(body_json, dict):
        problem_kind = _kind_of_words(200, endpoint_words)
    else:
        problem_kind = "refused"
    if problem_kind != "refused":
        return ExchangeOutcome(PROBLEMS[problem_kind].state, problem_kind, endpoint_words, pause_s)
    error_words = "the answer is no complete completion"
    if endpoint_words:
        error_words += f" ({endpoint_words})"
    return ExchangeOutcome(ExchangeState.LOST, "lost", error_words, billed=True)


def _judge_status(status: int, body_json: Any, endpoint_words: str, pause_s: float | None) -> ExchangeOutcome:
    status_signs = f"{endpoint_words} {' '.join(_codes_of(body_json))}"
    problem_kind = _kind_of(status, status_signs, announced=pause_s is not None)
    if problem_kind == "refused" and (status == 410 or _WITHDRAWN.search(status_signs)):
        problem_kind = "withdrawn"
    status_words = _with_words(f"status {status}", endpoint_words)
    if pause_s is not None:
        status_words += f", which asks for a pause of {pause_s:.0f} s"
    if status == 407:
        status_words = f"the proxy answers with {status_words}"
    is_throttled = status in (429, 503, 529) or (problem_kind == "busy" and bool(_THROTTLED.search(status_signs)))
    return ExchangeOutcome(
        PROBLEMS[problem_kind].state,
        problem_kind,
        status_words,
        pause_s,
        billed=status in BILLED_STATUSES,
        throttled=is_throttled,
    )


def _with_words(problem: str, words: str) -> str:
    """Returns a problem, followed by the endpoint's words if there are any."""
    if words:
        return f"{problem}: {words}"
    return problem


def _host_and_path(location: str) -> str:
    """Returns host and path of a redirect's address; its other parts (a user, a query) may be secret."""
    try:
        location_parts = urlsplit(location.strip())
        return f"{location_parts.netloc.rpartition('@')[2]}{location_parts.path}"
    except ValueError:
        return ""


def _kind_of(status: int, words_and_codes: str, *, announced: bool) -> str:
    """Returns the key of ``PROBLEMS`` for a status and the words and codes that came with it."""
    if 300 <= status < 400:
        return "redirect"
    if status in WORDED_STATUSES:
        return _kind_of_words(status, words_and_codes)
    if status == 429 and _BILLING.search(words_and_codes) and not announced and not _A_WHILE.search(words_and_codes):
        return "quota"
    if status == 429 and _QUOTA.search(words_and_codes):
        return "used-up"
    exchange_state = STATUS_STATES.get(status, ExchangeState.WAIT if status >= 500 else ExchangeState.REFUSED)
    if exchange_state is ExchangeState.ACCOUNT:
        return STATUS_PROBLEMS[status]
    if exchange_state is ExchangeState.WAIT:
        return "busy"
    return "refused"


def _kind_of_words(status: int, words_and_codes: str) -> str:
    if _CONTENT.search(words_and_codes) and not _SUSPENDED.search(words_and_codes):
        return "content"
    if _BILLING.search(words_and_codes):
        return "quota"
    if _BUSY.search(words_and_codes):
        return "busy"
    if status == 413 or _LONG.search(words_and_codes):
        return "long"
    if status == 403:
        return "forbidden"
    if _KEY.search(words_and_codes):
        return "key"
    return "refused"


# The names below read the bodies of responses.


def parsed(body: bytes) -> Any:
    """Returns the JSON of a body in UTF-8, -16 or -32, with or without a byte order mark; None if it holds none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def decompress(body: bytes, encoding: str, limit: int) -> bytes | None:
    """Returns a body without its Content-Encoding; None if it cannot be read, or is larger than ``limit``."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        return None
    for window_bits in (47, -15):  # gzip or zlib by its head, and the bare deflate of some servers
        with suppress(zlib.error):
            inflater = zlib.decompressobj(window_bits)
            inflated_body = inflater.decompress(body, limit)
            if inflater.eof:
                return inflated_body
            return None
    return None


def _status_in(value: Any) -> int:
    """Returns the HTTP status that an error states as its code; 0 for none."""
    if not isinstance(value, dict):
        return 0
    for key in ("code", "status", "status_code"):
        status_code = value.get(key)
        if isinstance(status_code, str) and status_code.isascii() and status_code.isdecimal() and len(status_code) == 3:
            status_code = int(status_code)
        if isinstance(status_code, int) and not isinstance(status_code, bool) and 300 <= status_code < 600:
            return status_code
    return 0


def _codes_of(value: Any) -> Iterable[str]:
    """Yields the error codes and types that a body states for programs, such as "insufficient_quota"."""
    for error in value if isinstance(value, list) else [value]:
        if not isinstance(error, dict):
            continue
        for key in ("code", "type", "__type", "status", "finish_reason"):
            if isinstance(error.get(key), str):
                yield error[key]
        for key in ("error", "innererror", "choices"):
            yield from _codes_of(error.get(key))


_WORD_KEYS = (
    *("message", "error", "detail", "details", "msg", "errors", "data", "error_description", "title", "reason"),
    *("error_msg", "errormessage", "base_resp", "status_msg", "promptfeedback", "blockreason"),
)
_STREAM = re.compile(rb"\s*(?:(?:data|event|id|retry)?:[^\n]|\{[^\n]*\}\r?\n\s*\{)")
_DEEPEST = 6  # levels of nested values in which words are looked for


def words_of(value: Any, body: bytes = b"") -> str:
    """Returns the words of an error in any body: JSON's usual places, plain text, or the title of a page; "" for none.

    >>> words_of({"error": {"message": "Provider returned error", "metadata": {"raw": '{"error": "too long"}'}}})
    'Provider returned error: too long'
    """
    sentence_words = dict.fromkeys(words for words in _words_in(value, 0) if words)
    if sentence_words or value is not None:
        return ": ".join(sentence_words)
    body_text = body.decode("utf-8", "replace").strip()
    title = re.search(r"<title[^>]*>(.*?)</title>|<h1[^>]*>(.*?)</h1>", body_text, re.DOTALL | _I)
    if title:
        body_text = title[1] or title[2] or ""
    return " ".join(re.sub(r"<[^<>]{0,1000}>", " ", body_text).split())


def _words_in(value: Any, depth: int) -> Iterable[str]:
    if depth > _DEEPEST:
        return
    if isinstance(value, str):
        inner_value = None
        if value.lstrip()[:1] in ("{", "["):
            inner_value = parsed(value.encode("utf-8", "replace"))
        if isinstance(inner_value, dict | list):
            yield from _words_in(inner_value, depth + 1)
        else:
            yield " ".join(value.split())
    elif isinstance(value, list):
        for list_item in value[:3]:
            yield from _words_in(list_item, depth + 1)
    elif isinstance(value, dict):
        value_by_key = {key.casefold(): part for key, part in value.items() if isinstance(key, str)}
        word_key = next((key for key in _WORD_KEYS if value_by_key.get(key)), None)
        if word_key is not None:
            yield from _words_in(value_by_key[word_key], depth + 1)
        elif isinstance(value_by_key.get("choices"), list):  # an error inside an answer; a message there is the model's
            for choice in value_by_key["choices"][:1]:
                yield from _words_in(choice.get("error") if isinstance(choice, dict) else None, depth + 1)
        metadata = value.get("metadata")
        if isinstance(metadata, dict):
            yield from _words_in(metadata.get("raw"), depth + 1)


_SECRET = re.compile(
    r"(?i)\bbearer\s+\S+|\b(?:sk|pk|gsk|hf|ghp|xai)[-_][^\s\"',;]{6,}|\bAIza[0-9A-Za-z_-]{8,}"
    r"|\b(?=[A-Za-z_-]*[0-9])(?=[0-9_-]*[A-Za-z])[0-9A-Za-z_-]{32,}"
)


def masked(words: str, secrets: Sequence[str] = ()) -> str:
    """Returns the beginning of an endpoint's words, printable, with keys masked.

    >>> masked("Incorrect API key provided: sk-proj-0123456789.")
    'Incorrect API key provided: ***'
    """
    shown_words = _without_parts(words[: 10 * SHOWN_CHARACTERS], secrets)
    return printable(_SECRET.sub("***", shown_words), SHOWN_CHARACTERS)


def _without_parts(words: str, secrets: Sequence[str]) -> str:
    """Returns ``words`` with stars in place of ``SECRET_CHARACTERS`` or more of a secret, in any written form."""
    secret_parts = {
        written_secret[start : start + SECRET_CHARACTERS]
        for secret in secrets
        for written_secret in _written_forms(secret)
        for start in range(max(1, len(written_secret) - SECRET_CHARACTERS + 1))
    }
    is_secret = [False] * len(words)
    for part in filter(None, secret_parts):
        for found_part in re.finditer(f"(?={re.escape(part)})", words):
            is_secret[found_part.start() : found_part.start() + len(part)] = [True] * len(part)
    return "".join(
        "***" if is_masked else "".join(character for character, _ in characters)
        for is_masked, characters in groupby(zip(words, is_secret, strict=True), key=itemgetter(1))
    )


def _written_forms(secret: str) -> Iterable[str]:
    """Returns a secret as an endpoint may repeat it: as it is, in an address, and in base64 with or without padding."""
    in_base64 = base64.b64encode(secret.encode()).decode()
    return (secret, quote(secret, safe=""), quote(secret), in_base64, in_base64.rstrip("="))


# The names below read the pause that an endpoint announces.

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|milli|s|m|h)", _I)
_UNITS_S = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_STATED_PAUSE = re.compile(
    r"(?:retry_?delay\\?\"\s*:\s*\\?\"|(?:try|retry)(?: again)?(?: in| after)\s+)"
    r"((?:\d+(?:\.\d+)?\s*(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|h)(?![a-z])\s*)+)",
    _I,
)


def announced_pause_s(headers: Mapping[str, str], body: bytes, now_s: float) -> float | None:
    """Returns the pause in seconds that an endpoint announces, in a header or its body; None for none."""
    header_pause_s = retry_after_s(headers, now_s)
    if header_pause_s is not None:
        return header_pause_s
    stated_pauses = _STATED_PAUSE.findall(body[:65536].decode("utf-8", "replace"))
    pauses_s = [
        sum(float(number) * _UNITS_S[unit.casefold()] for number, unit in _DURATION.findall(text))
        for text in stated_pauses
    ]
    if pauses_s:
        return max(pauses_s)
    return None


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Returns the seconds of Retry-After, a number (RFC 9110, 10.2.3) or a date; None if it says nothing clear."""
    retry_milliseconds = headers.get("retry-after-ms")
    retry_after = headers.get("retry-after")
    try:
        if retry_milliseconds is not None:
            retry_seconds = float(retry_milliseconds) / 1000.0
        else:
            retry_seconds = float(retry_after or "")
    except ValueError:
        try:
            retry_seconds = parsedate_to_datetime(retry_after or "").timestamp() - now_s
        except (ValueError, TypeError, OverflowError):
            return None
    if math.isfinite(retry_seconds):
        return max(0.0, retry_seconds)
    return None


# The names below read completions.


def _read_completion(
    body: Mapping[str, Any], choice: Mapping[str, Any], worst: tuple[int, int]
) -> ReadCompletion | None:
    """Returns the completion in the first choice of a body; None if there is none that can be read."""
    reason = choice.get("finish_reason")
    finish_reason = _finish_of(reason)
    if finish_reason is None:
        return None
    message = choice.get("message")
    if isinstance(message, dict):
        answer_text = content_text(message.get("content"))
        refusal = message.get("refusal")
    elif message is None and isinstance(choice.get("text"), str):
        answer_text = choice["text"]
        refusal = None
    elif message is None and finish_reason == "filter":
        answer_text, refusal = "", None
    else:
        return None
    if isinstance(refusal, str) and refusal.strip():
        answer_text = answer_text or refusal
        finish_reason = "refusal"
    return ReadCompletion(answer_text, finish_reason, read_usage(body.get("usage"), answer_text, worst))


def _finish_of(reason: Any) -> Finish | None:
    """Returns why an answer ended; None if the reason means that there is no answer."""
    reason_name = ""
    if isinstance(reason, str):
        reason_name = reason.strip().casefold().replace("-", "_")
    if reason_name in LOST_ENDS:
        return None
    return ENDS.get(reason_name, "unknown")


def content_text(content: Any) -> str:
    """Returns the text of a message's content: a string, or its parts of type text one after the other."""
    if isinstance(content, str):
        return content
    content_parts = content if isinstance(content, list) else []
    part_texts = [
        part.get("text")
        for part in content_parts
        if isinstance(part, dict) and part.get("type") in ("text", "output_text")
    ]
    return "".join(text for text in part_texts if isinstance(text, str))


def read_usage(usage: Any, text: str, worst: tuple[int, int]) -> TokenUsage:
    """Returns the tokens of an answer as its body states them if that can be true; otherwise the worst case.

    Completion tokens are the larger of ``completion_tokens`` and the total less the prompt, plus the reasoning tokens
    if these are more than that.
    """
    usage_json = _as_object(usage)
    prompt_tokens = _token_count(usage_json.get("prompt_tokens"))
    completion_tokens = _token_count(usage_json.get("completion_tokens"))
    if prompt_tokens is None or completion_tokens is None:
        return TokenUsage(*worst, reported=False)
    token_details = _as_object(usage_json.get("completion_tokens_details"))
    total_tokens = _token_count(usage_json.get("total_tokens"), absent=prompt_tokens + completion_tokens)
    reasoning_tokens = _token_count(token_details.get("reasoning_tokens"), absent=0)
    if total_tokens is None or reasoning_tokens is None:
        return TokenUsage(*worst, reported=False)
    completion_tokens = max(completion_tokens, total_tokens - prompt_tokens)
    if reasoning_tokens > completion_tokens:
        completion_tokens += reasoning_tokens
    if prompt_tokens == 0 or (completion_tokens == 0 and text):
        return TokenUsage(*worst, reported=False)
    return TokenUsage(prompt_tokens, completion_tokens)


def _as_object(value: Any) -> dict[str, Any]:
    """Returns a JSON object, empty in place of any other value."""
    if isinstance(value, dict):
        return value
    return {}


def _token_count(value: Any, absent: int | None = None) -> int | None:
    """Returns ``value`` if it can be a number of tokens; None for any other value.

    ``absent`` is returned for a field that is left out or null.
    """
    if value is None:
        return absent
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value <= MOST_TOKENS or value != int(value):
        return None
    return int(value)
