"""The generator of an endpoint repeats an attempt until there is an answer or a limit is reached.

Each attempt is journaled before it is made.

The one layer of retries is here: it knows the deadline, the caps and the state of each exchange.

Budgets hold in advance: a call is made only if its worst case still fits. That is the prompt's UTF-8 bytes (a
tokeniser with bytes to fall back on never makes more tokens of it) plus 64 for the chat template, and ``max_tokens``;
more where an endpoint was seen to bill more. An attempt whose answer was lost on the way may have been billed, so it
counts at its worst case, in this process and in every later one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.database.journal import Journal
from undersong_server.generators.endpoints import UNREPORTED, AttemptLog, CallBudget, Pace, merge_sources
from undersong_server.generators.interface import MOST_CHARACTERS, BudgetExhausted, Completion, GenerationRequest, Loss
from undersong_server.generators.kinds.openai import states
from undersong_server.generators.kinds.openai.attempt import EndpointConnection, longest_body
from undersong_server.generators.kinds.openai.batches import Batches, BatchRequest, BatchSettings
from undersong_server.generators.kinds.openai.batches import Path as BatchPath
from undersong_server.generators.kinds.openai.batches import Result as BatchResult
from undersong_server.generators.kinds.openai.settings import Endpoint, EndpointSettings
from undersong_server.generators.kinds.openai.states import Exchange, ExchangeOutcome, ExchangeState, judge

PATIENCE_S = 120.0  # shortest wait for a busy endpoint that announces no pause
_FIRST_PAUSE_S = 0.5
_RETRIES_OF_UNREACHABLE = 2  # applies before the run's first answer, when the address may be wrong


@dataclass
class _Patience:
    """The attempts of one request so far, and whether another one follows.

    Attributes:
        begun_s: start of the first attempt, by the monotonic clock.
        counted: attempts that count against ``max_retries``: those that the endpoint did not put off by a stated pause.
    """

    begun_s: float
    counted: int = 0
    attempts: int = 0
    busy_since_s: float | None = None

    def pause_s(self, outcome: ExchangeOutcome, settings: EndpointSettings, *, answered: bool) -> float | None:
        """Returns the pause before the next attempt; None if there is none."""
        now_s = time.monotonic()
        self.attempts += 1
        give_up_at_s = self.begun_s + settings.deadline_s
        announced_pause_s = outcome.pause_s
        is_put_off = announced_pause_s is not None and not outcome.billed
        self.counted += not is_put_off
        if announced_pause_s is None:
            next_pause_s = self._growing_pause_s(settings)
        else:
            next_pause_s = self._announced_pause_s(announced_pause_s, settings)
        if now_s + (announced_pause_s or 0.0) >= give_up_at_s:
            return None
        if is_put_off:
            return next_pause_s
        retry_limit = settings.max_retries
        if outcome.kind == "unreachable" and not answered:
            retry_limit = min(retry_limit, _RETRIES_OF_UNREACHABLE)
        elif outcome.state is ExchangeState.WAIT and not outcome.billed:
            self.busy_since_s = now_s if self.busy_since_s is None else self.busy_since_s
            if now_s - self.busy_since_s < PATIENCE_S:
                return next_pause_s
        if self.counted <= retry_limit:
            return next_pause_s
        return None

    def _growing_pause_s(self, settings: EndpointSettings) -> float:
        return min(_FIRST_PAUSE_S * 2.0 ** min(self.counted - 1, 30), settings.max_wait_s) * random.uniform(0.5, 1.0)

    @staticmethod
    def _announced_pause_s(announced: float, settings: EndpointSettings) -> float:
        # A random part more than the server asks for, so that the threads do not all return at once.
        return max(announced, min(_FIRST_PAUSE_S, settings.max_wait_s)) * random.uniform(1.0, 1.1)


@dataclass
class _AddressHealth:
    """Whether one address has answered in this process, and its failures since its last answer."""

    answered: bool = False
    failed_in_a_row: int = 0
    forbidden_in_a_row: int = 0


class OpenAIGenerator:
    """Answers requests in ``concurrency`` threads and yields the answers in the order in which they arrive."""

    def __init__(
        self,
        settings: EndpointSettings,
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
            journal: keeps attempts and the numbers of batches; None asks for each text by itself, even with ``batch``.

        Raises:
            ConfigurationError: the key variable is not set, or holds what cannot be a key; no ``ca_file``.
        """
        self.name = settings.name
        self._settings = settings
        self._keys = [self._read_key(address.api_key_env, environment) for address in settings.addresses]
        self._secrets = [
            key for key, address in zip(self._keys, settings.addresses, strict=True) if address.api_key_env
        ]
        self._connections = self._make_connections(folder)
        self._turns = itertools.count()
        self._budget = CallBudget(self.name, settings.token_budget, settings.price_budget_usd)
        self._log = AttemptLog(journal, self.name)
        earlier_loss = self._log.lost
        self._budget.charge(earlier_loss.tokens, earlier_loss.price_usd)
        self._budget.last_loss = earlier_loss.words
        self._tally: Counter[str] = Counter(calls=0, retries=0, lost_attempts=0, failed=0)
        self._lock = threading.Lock()
        self._answered = False
        self._healths = [_AddressHealth() for _ in self._connections]
        self._first_call = threading.Lock()  # held by one call at a time until the first answer shows what is billed
        self._overrun = 1.0  # largest number of tokens that an answer took, in multiples of those that it was allowed
        self._pace = Pace(
            concurrency=settings.concurrency,
            requests_per_minute=settings.requests_per_minute,
            tokens_per_minute=settings.tokens_per_minute,
            longest_wait_s=settings.max_wait_s,
        )
        self._batches: Batches | None = None
        if journal is not None and settings.batch:
            self._batches = self._make_batches(journal)
        self._fallback: OpenAIGenerator | None = None
        self._uses_fallback = False
        if settings.fallback:
            self._fallback = OpenAIGenerator(settings.of_fallback, environment=environment, folder=folder)
            self._fallback._budget = self._budget
            self._fallback._log = self._log

    @property
    def _is_capped(self) -> bool:
        return self._settings.token_budget is not None or self._settings.price_budget_usd is not None

    def _make_connections(self, folder: Path) -> list[EndpointConnection]:
        """Returns a connection for each address; none connects yet. Raises ConfigurationError for a missing CA file."""
        settings = self._settings
        ca_file = folder / settings.ca_file if settings.ca_file else None
        if ca_file is not None and not ca_file.is_file():
            raise ConfigurationError(
                f"generator {self.name}: ca_file {ca_file}: no such file", "check the path", code="ca-file-missing"
            )
        return [
            EndpointConnection(
                endpoint.base_url,
                self._key_header(endpoint, key),
                proxy=settings.proxy,
                ca_file=ca_file,
                name=self.name,
            )
            for endpoint, key in zip(settings.addresses, self._keys, strict=True)
        ]

    def _read_key(self, variable: str, environment: Mapping[str, str]) -> str:
        if variable:
            key = environment.get(variable, "").strip()
        else:
            key = "none"
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

    def _key_header(self, address: Endpoint, key: str) -> dict[str, str]:
        if not address.api_key_env:
            return {}
        bearer = ""
        if self._settings.key_header.casefold() == "authorization":
            bearer = "Bearer "
        return {self._settings.key_header: f"{bearer}{key}"}

    @property
    def counts(self) -> dict[str, int]:
        with self._lock:
            return {**self._tally, **self._pace.counts}

    @property
    def lost(self) -> Loss:
        """Attempts of the whole run whose answers were lost, at their worst case."""
        return self._log.lost

    def observe(self, requests: Sequence[GenerationRequest], answers: Sequence[Completion | GenerationError]) -> None:
        """Counts the tokens and dollars of journaled answers towards the budgets."""
        # The journal does not say which of several addresses an earlier process's answer came from.
        if len(self._healths) == 1:
            health = self._healths[0]
        else:
            health = _AddressHealth()
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Completion):
                self._budget.charge(answer.prompt_tokens + answer.completion_tokens, answer.price_usd)
                self._note_answer(request, answer, health)

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion | GenerationError]]:
        """Yields answers as the interface says. At most ``concurrency`` answers are under way or not yet yielded, so
        that an interruption loses no more than these.

        Raises:
            BudgetExhausted: the next call could exceed a budget.
            ConfigurationError: a ``ca_file`` without certificates.
            GenerationError: the account or a setting is at fault, or ten requests in a row have failed for good.
        """
        if not requests:
            return
        for connection in self._connections:
            _ = connection.pool  # A fault of ca_file is raised before the first call.
        if self._batches is not None:
            yield from self._answer_by_batches(requests, self._batches)
            return
        waiting_indices = iter(range(len(requests)))  # shared by the threads

        def work(stop: threading.Event) -> Iterator[tuple[int, Completion | GenerationError]]:
            for request_index in waiting_indices:
                if stop.is_set():
                    return
                answer = self._answer_or_fall_back(requests[request_index], stop)
                if answer is None:
                    return
                yield request_index, answer

        thread_count = min(self._settings.concurrency, len(requests))
        failures: list[BaseException] = []
        # No new call follows a failure. Calls in flight are paid for, so their answers are awaited.
        yield from merge_sources(
            {f"{self.name}-{thread_number}": work for thread_number in range(thread_count)}, failures
        )
        if failures:
            raise failures[0]

    # These methods answer one request by several attempts.

    def _answer_or_fall_back(
        self, request: GenerationRequest, stop: threading.Event
    ) -> Completion | GenerationError | None:
        """Returns the model's answer, or the fallback's if it gives none. Raises as :meth:`_ask_patiently` does."""
        fallback = self._fallback
        if fallback is None:
            return self._ask_patiently(request, stop)
        if not self._uses_fallback:
            try:
                answer = self._ask_patiently(request, stop)
                if not isinstance(answer, GenerationError):
                    return answer
            except BudgetExhausted:
                raise
            except (ConfigurationError, GenerationError):
                self._uses_fallback = True
        self._count_event("by_fallback")
        answer = fallback._ask_patiently(request, stop)
        if not isinstance(answer, Completion):
            return answer
        return replace(answer, note=", ".join(filter(None, (answer.note, f"by {fallback._settings.model}"))))

    def _ask_patiently(self, request: GenerationRequest, stop: threading.Event) -> Completion | GenerationError | None:
        """Returns the answer after as many attempts as it needs; None if stopped. Raises what ends the iteration."""
        patience = _Patience(time.monotonic())
        self._count_event("calls")
        while True:
            attempt = self._attempt_call(request, patience, stop)
            if attempt is None or isinstance(attempt, Completion):
                return attempt
            outcome, connection = attempt
            if outcome.state not in (ExchangeState.WAIT, ExchangeState.LOST):
                return self._end_request(outcome, connection)
            pause_s = patience.pause_s(outcome, self._settings, answered=self._answered)
            if pause_s is None:
                return self._end_request(outcome, connection, f"no answer after {patience.attempts} attempts")
            self._count_event("retries")
            if len(self._connections) == 1 and outcome.pause_s is not None and outcome.throttled:
                self._pace.hold(pause_s)
            if stop.wait(pause_s):
                return None

    def _end_request(
        self, outcome: ExchangeOutcome, connection: EndpointConnection, problem_words: str = ""
    ) -> Completion | GenerationError:
        """Returns what becomes of a request without an answer. Raises GenerationError if the run stops with it."""
        if outcome.kind == "content":
            self._count_event("failed")
            return Completion(outcome.words, note=f"refused by the endpoint ({outcome.words})", finish="filter")
        if problem_words:
            failure_words = f"{problem_words} ({outcome.words})"
        else:
            failure_words = outcome.words
        is_fatal = outcome.state is ExchangeState.ACCOUNT or outcome.kind == "unreachable"
        health = self._healths[self._connections.index(connection)]
        if outcome.kind == "forbidden" and health.answered:
            with self._lock:
                health.forbidden_in_a_row += 1
                is_fatal = health.forbidden_in_a_row >= states.FORBIDDEN_IN_A_ROW
        if is_fatal:
            raise self._stopped_error(outcome, connection, failure_words)
        self._count_event("failed")
        with self._lock:
            health.failed_in_a_row += outcome.state is not ExchangeState.REQUEST and outcome.kind != "forbidden"
            failure_count = health.failed_in_a_row
        if failure_count >= states.FAILURES_IN_A_ROW:
            raise GenerationError(
                f"generator {self.name}: {failure_count} requests in a row have failed, the last one: {failure_words}",
                self._outcome_remedy(outcome, connection),
                code="endpoint-fails",
            )
        return GenerationError(f"generator {self.name}: {failure_words}", self._outcome_remedy(outcome, connection))

    def _stopped_error(self, outcome: ExchangeOutcome, connection: EndpointConnection, words: str) -> GenerationError:
        return GenerationError(
            f"generator {self.name}: {connection.base_url}, model {self._settings.model!r}: {words}",
            self._outcome_remedy(outcome, connection),
            code=outcome.problem.code,
        )

    def _outcome_remedy(self, outcome: ExchangeOutcome, connection: EndpointConnection) -> str:
        variable = self._settings.addresses[self._connections.index(connection)].api_key_env or "api_key_env"
        return outcome.problem.remedy.format(variable=variable)

    def _count_event(self, counter_name: str, increase: int = 1) -> None:
        with self._lock:
            self._tally[counter_name] += increase

    def _note_answer(self, request: GenerationRequest, answer: Completion, health: _AddressHealth) -> None:
        """Notes that an address answers, and how many tokens the answer took beside those that it was allowed."""
        _, (_, allowed_tokens) = self._settings.body_of(request)
        with self._lock:
            if answer.finish != "filter" or answer.completion_tokens:
                self._answered = health.answered = True
                health.failed_in_a_row = health.forbidden_in_a_row = 0
            self._overrun = max(self._overrun, answer.completion_tokens / allowed_tokens)
            self._budget.unreported += answer.note == UNREPORTED

    def _worst_case(self, most: tuple[int, int]) -> tuple[int, int]:
        """Returns the most tokens that a request can read and write, by what the endpoint has billed before."""
        return most[0], round(most[1] * self._overrun)

    # These methods make one attempt.

    def _attempt_call(
        self, request: GenerationRequest, patience: _Patience, stop: threading.Event
    ) -> Completion | tuple[ExchangeOutcome, EndpointConnection] | None:
        """Makes one call within the limits. Returns the answer, the outcome of any other state, or None if stopped.

        Under a cap the calls before the first answer are made one at a time: what an endpoint bills beyond what it was
        allowed is then seen before several calls take it at once.
        """
        with nullcontext() if self._answered or not self._is_capped else self._first_call:
            return self._attempt_within_limits(request, patience, stop)

    def _attempt_within_limits(
        self, request: GenerationRequest, patience: _Patience, stop: threading.Event
    ) -> Completion | tuple[ExchangeOutcome, EndpointConnection] | None:
        settings = self._settings
        body, token_bounds = settings.body_of(request)
        worst = self._worst_case(token_bounds)
        reserved_amounts = (sum(worst), settings.price_usd(*worst))
        self._budget.reserve(*reserved_amounts)
        self._pace.start(reserved_amounts[0], stop)
        used_amounts = (0, 0.0)
        is_throttled = False
        connection = self._connections[next(self._turns) % len(self._connections)]
        try:
            if stop.is_set():
                return None
            attempt_key = self._log.begin(*reserved_amounts)
            outcome = self._judge_body(connection, request.kind, body, worst, patience)
            is_throttled = outcome.throttled
            completion = outcome.completion
            if completion is None:
                self._log.end(attempt_key, lost=outcome.billed, words=outcome.words)
                if outcome.billed:
                    used_amounts = reserved_amounts
                    self._count_event("lost_attempts")
                    self._budget.last_loss = outcome.words
                return outcome, connection
            answer = self._answer_of(completion, attempt_key, token_bounds[1], time.monotonic() - patience.begun_s)
            used_amounts = (answer.prompt_tokens + answer.completion_tokens, answer.price_usd)
            self._note_answer(request, answer, self._healths[self._connections.index(connection)])
            return answer
        finally:
            self._pace.end(throttled=is_throttled, tokens=reserved_amounts[0], took=used_amounts[0])
            self._budget.settle(reserved_amounts, used_amounts)

    def _judge_body(
        self,
        connection: EndpointConnection,
        kind: str,
        body: Mapping[str, Any],
        worst: tuple[int, int],
        patience: _Patience,
    ) -> ExchangeOutcome:
        settings = self._settings
        left_s = patience.begun_s + settings.deadline_s - time.monotonic()
        exchange = connection.exchange(
            "POST",
            "/chat/completions" if "messages" in body else "/completions",
            json.dumps(body).encode(),
            timeout_s=max(0.05, min(settings.timeout_s, left_s)),
            most_bytes=longest_body(worst[1]),
            headers=settings.request_fields(kind).headers,
        )
        self._pace.note_limits(exchange.headers)
        if exchange.fault == "late" and left_s < settings.timeout_s:
            exchange = replace(exchange, detail=f"no answer within the {settings.deadline_s:g} s of deadline_s")
        return self._judge_exchange(exchange, worst)

    def _judge_exchange(self, exchange: Exchange, worst: tuple[int, int]) -> ExchangeOutcome:
        return judge(exchange, worst, self._secrets, time.time())

    def _answer_of(
        self, completion: states.ReadCompletion, key: str, allowed_tokens: int, seconds: float = 0.0
    ) -> Completion:
        """Returns the answer that settles an attempt, of a request that was allowed so many tokens."""
        usage = completion.usage
        is_overlong = not completion.finish and len(completion.text) > MOST_CHARACTERS * allowed_tokens
        return Completion(
            completion.text,
            usage.prompt,
            usage.completion,
            self._settings.price_usd(usage.prompt, usage.completion),
            "" if usage.reported else UNREPORTED,
            "overlong" if is_overlong else completion.finish,
            seconds,
            key,
        )

    # These methods answer by batches.

    def _make_batches(self, journal: Journal) -> Batches:
        settings = self._settings
        connection = self._connections[0]
        return Batches(
            connection,
            journal,
            self._log,
            BatchSettings(
                poll_s=settings.batch_poll_s,
                timeout_s=settings.timeout_s,
                max_wait_s=settings.max_wait_s,
                patience_s=PATIENCE_S,
                deadline_s=settings.deadline_s,
                headers=settings.headers,
            ),
            name=self.name,
            judge=self._judge_exchange,
            stopped=lambda outcome, said: self._stopped_error(outcome, connection, f"{said}: {outcome.words}"),
        )

    def _answer_by_batches(
        self, requests: Sequence[GenerationRequest], batches: Batches
    ) -> Iterator[tuple[int, Completion | GenerationError]]:
        """Yields answers from batch files. The worst cases of new ones are reserved before anything is submitted."""
        index_by_identifier: dict[str, int] = {}
        for index, request in enumerate(requests):
            content = json.dumps([self._settings.body_of(request)[0], request.seed], sort_keys=True)
            index_by_identifier[hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]] = index
        for result in batches.earlier_results(self._batch_requests(requests, index_by_identifier)):
            # Its worst case was charged when this process began; the true cost takes its place.
            charged_loss = self._log.take_over(result.key)
            self._budget.charge(-charged_loss.tokens, -charged_loss.price_usd)
            charged_amounts = (charged_loss.tokens, charged_loss.price_usd)
            answer, used_amounts = self._batch_result(
                requests[index_by_identifier[result.identifier]], result, charged_amounts
            )
            self._budget.charge(*used_amounts)
            if answer is not None:
                yield index_by_identifier.pop(result.identifier), answer
        while index_by_identifier:
            # The first request is sent alone, as with single calls, so that a bill above its bound is seen early.
            if self._is_capped and not self._answered:
                part = dict(list(index_by_identifier.items())[:1])
            else:
                part = index_by_identifier
            yield from self._ask_new_batches(requests, part, batches)
            index_by_identifier = {name: index for name, index in index_by_identifier.items() if name not in part}

    def _batch_requests(
        self, requests: Sequence[GenerationRequest], index_by_identifier: Mapping[str, int]
    ) -> dict[str, BatchRequest]:
        batch_requests = {}
        for identifier, index in index_by_identifier.items():
            body, token_bounds = self._settings.body_of(requests[index])
            worst = self._worst_case(token_bounds)
            batch_requests[identifier] = BatchRequest(body, worst, self._settings.price_usd(*worst))
        return batch_requests

    def _ask_new_batches(
        self, requests: Sequence[GenerationRequest], index_by_identifier: Mapping[str, int], batches: Batches
    ) -> Iterator[tuple[int, Completion | GenerationError]]:
        batch_requests = self._batch_requests(requests, index_by_identifier)
        reserved_amounts = (
            sum(sum(reservation.worst) for reservation in batch_requests.values()),
            sum(reservation.price_usd for reservation in batch_requests.values()),
        )
        self._budget.reserve(*reserved_amounts)
        spent_amounts = (0, 0.0)
        if requests[0].style == "chat":
            path: BatchPath = "/v1/chat/completions"
        else:
            path = "/v1/completions"
        try:
            for result in batches.results(batch_requests, path):
                request_reserve = (
                    sum(batch_requests[result.identifier].worst),
                    batch_requests[result.identifier].price_usd,
                )
                answer, used_amounts = self._batch_result(
                    requests[index_by_identifier[result.identifier]], result, request_reserve
                )
                spent_amounts = (spent_amounts[0] + used_amounts[0], spent_amounts[1] + used_amounts[1])
                yield index_by_identifier[result.identifier], answer or self._batch_failure(result.outcome)
        finally:
            unsettled_loss = self._log.give_up()
            self._budget.settle(
                reserved_amounts,
                (spent_amounts[0] + unsettled_loss.tokens, spent_amounts[1] + unsettled_loss.price_usd),
            )

    def _batch_result(
        self, request: GenerationRequest, result: BatchResult, worst_amounts: tuple[int, float]
    ) -> tuple[Completion | None, tuple[int, float]]:
        """Settles the attempt that a batch made; returns its answer, None for none, and what it took."""
        outcome = result.outcome
        self._count_event("calls")
        if outcome.completion is None:
            self._log.end(result.key, lost=outcome.billed, words=outcome.words)
            if not outcome.billed:
                return None, (0, 0.0)
            self._count_event("lost_attempts")
            self._budget.last_loss = outcome.words
            return None, worst_amounts
        _, (_, allowed_tokens) = self._settings.body_of(request)
        answer = self._answer_of(outcome.completion, result.key, allowed_tokens)
        self._log.settle(result.key)
        self._note_answer(request, answer, self._healths[0])
        return answer, (answer.prompt_tokens + answer.completion_tokens, answer.price_usd)

    def _batch_failure(self, outcome: ExchangeOutcome) -> Completion | GenerationError:
        """Returns what becomes of a line of a batch without an answer. Raises GenerationError if the run stops."""
        if outcome.state is ExchangeState.ACCOUNT and outcome.kind != "forbidden":
            raise self._stopped_error(outcome, self._connections[0], f"a line of its batch: {outcome.words}")
        if outcome.kind == "content":
            return self._end_request(outcome, self._connections[0])
        self._count_event("failed")
        remedy = self._outcome_remedy(outcome, self._connections[0])
        return GenerationError(f"generator {self.name}: no answer in its batch ({outcome.words})", remedy)
