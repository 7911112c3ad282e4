"""Batch files: many requests, answered within a day at half the price.

The journal notes first that a batch is about to be submitted, then its number, and only then is the batch asked after.
So whatever kills the process, the next one finds the batch, by its number or by the mark it bears, and pays for none
twice. A batch that ends before all of it is answered gives the answers that it has; the rest is asked for in the next.

A batch is an attempt at each of its requests, noted under a key of its own. A batch that may have been accepted and
cannot be found any more is lost: a later process asks again, and its worst case, the highest possible cost, counts as
spent.

Each line of a result is judged by itself. A line that cannot be read is one failed order; the others are still read.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from undersong_common.errors import GenerationError
from undersong_server.database.journal import Journal
from undersong_server.generators.endpoints import AttemptLog, batch_prefix
from undersong_server.generators.kinds.openai.attempt import EndpointConnection, longest_body
from undersong_server.generators.kinds.openai.states import Exchange, ExchangeOutcome, ExchangeState, parsed

_WHOLE = frozenset({"completed", "success", "succeeded", "ended"})
ENDED = _WHOLE | {"failed", "expired", "cancelled", "canceled", "error", "timeout_exceeded"}
"""Names, in lower case, of the final states of a batch; vendors have names of their own."""
MARK = "undersong"  # key in a batch's metadata
MOST_LINES, MOST_BYTES = 50_000, 200_000_000  # bounds of a batch's file
EMPTY_IN_A_ROW = 2
"""Batches of which nothing came back, one after the other, before the run stops."""
LOOKS = 4
"""Number of times that the endpoint is asked for a thing that it says it does not have, before the thing is gone."""
# Kinds of refusals that mean that the thing asked for is gone; those of the account are not among them.
_GONE = frozenset({"model", "forbidden", "refused", "withdrawn", "content", "long"})
_LISTED = 100  # number of batches on a page of the endpoint's list, in which an unrecorded batch is searched
_PAGES = 20
_FILE_TIMEOUT_S = 900.0  # shortest timeout for a file of up to 200 MB
_SMALL_BYTES = 10_000_000  # bound of an answer that is no file
_FIRST_PAUSE_S = 0.5
_NOT_THERE = "what it accepted cannot be found"

Path = Literal["/v1/chat/completions", "/v1/completions"]


class BatchRequest(NamedTuple):
    """One line of a batch: the body of its request, the most tokens it can read and write, and what these cost."""

    body: Mapping[str, Any]
    worst: tuple[int, int]
    price_usd: float


@dataclass(frozen=True)
class BatchSettings:
    """Pauses and limits of the calls that submit, look after and read batches.

    Attributes:
        poll_s: pause between two calls that ask after a batch; max_wait_s: longest pause after a call that failed.
        patience_s: how long failed calls are repeated, and a limit on the requests in the endpoint's queue is awaited.
        deadline_s: longest pause before the next batch that the lines of one may announce.
    """

    poll_s: float
    timeout_s: float
    max_wait_s: float
    patience_s: float
    deadline_s: float
    headers: Mapping[str, str]


class _Submitted(NamedTuple):
    """A batch, by the stem of its keys in the journal and its number at the endpoint, with its requests."""

    stem: str
    number: str
    identifiers: Sequence[str]


class Result(NamedTuple):
    """The outcome of one request in a batch, and the key of the attempt that it settles."""

    identifier: str
    key: str
    outcome: ExchangeOutcome


class _Gone(Exception):
    """Raised if the endpoint no longer has what it accepted, or not for this key."""

    def __init__(self, outcome: ExchangeOutcome) -> None:
        super().__init__(outcome.words)
        self.outcome = outcome


class _Line(NamedTuple):
    """The meaning of one line of a batch's result.

    Attributes:
        identifier: identifier of the line's request; "" if the line has none.
        is_exchange: True if the endpoint answered the request, well or not; False if the batch ended before.
    """

    identifier: str
    outcome: ExchangeOutcome
    is_exchange: bool = True


class Batches:
    """The batches of one generator."""

    def __init__(
        self,
        connection: EndpointConnection,
        journal: Journal,
        log: AttemptLog,
        settings: BatchSettings,
        *,
        name: str,
        judge: Callable[[Exchange, tuple[int, int]], ExchangeOutcome],
        stopped: Callable[[ExchangeOutcome, str], GenerationError],
    ) -> None:
        """The journal keeps the batches' numbers, the log their worst cases.

        Args:
            name: name of the generator.
            judge: finds the outcome of an exchange whose request could read and write at most so many tokens.
            stopped: makes the error that ends a run, from an outcome and a problem in words.
        """
        self._connection = connection
        self._journal = journal
        self._log = log
        self._settings = settings
        self._name = name
        self._judge = judge
        self._stopped = stopped
        self._empty_in_a_row = 0
        self._next_batch_at_s = 0.0  # earliest time of the next batch, by the monotonic clock

    def earlier_results(self, requests: Mapping[str, BatchRequest]) -> Iterator[Result]:
        """Yields the results of requests in batches that were submitted before; a request may be in several.

        A batch that can no longer be found has lost its requests: the endpoint may have answered and billed them.
        Raises GenerationError if the endpoint cannot be asked, or a batch is found missing for the first time: another
        key or address has no batches either, and what was paid would be asked for again.
        """
        answered_names: set[str] = set()
        gone_outcome: ExchangeOutcome | None = None
        for batch in self._journaled_batches(requests):
            open_names = [
                request_name
                for request_name in batch.identifiers
                if request_name in requests and request_name not in answered_names
            ]
            if not open_names:
                continue
            outcomes, _, lost_outcome = self._batch_outcomes(batch, requests)
            is_first = lost_outcome is not None and self._note_gone(batch)
            gone_outcome = lost_outcome if is_first else gone_outcome
            for request_name in open_names:
                if is_first and outcomes[request_name].kind == "gone":
                    continue
                if outcomes[request_name].completion is not None:
                    answered_names.add(request_name)
                yield Result(request_name, self._log.batch_key(batch.stem, request_name), outcomes[request_name])
        if gone_outcome is not None:
            raise self._stopped(gone_outcome, _NOT_THERE)

    def results(self, requests: Mapping[str, BatchRequest], endpoint: Path) -> Iterator[Result]:
        """Yields one result per request, from new batches.

        Raises GenerationError if the endpoint cannot be asked, has not what it accepted, or batch after batch gives
        nothing back.
        """
        for batch in [self._submit_part(request_part, endpoint) for request_part in _split_requests(requests)]:
            stem, outcomes = self._batch_outcome(batch, requests, endpoint)
            pauses_s = [outcome.pause_s or 0.0 for outcome in outcomes.values() if outcome.state is ExchangeState.WAIT]
            allowed_pauses_s = [pause_s for pause_s in pauses_s if pause_s <= self._settings.deadline_s]
            self._next_batch_at_s = time.monotonic() + max(allowed_pauses_s, default=0.0)
            if self._empty_in_a_row >= EMPTY_IN_A_ROW:
                for request_name, outcome in outcomes.items():
                    self._log.end(self._log.batch_key(stem, request_name), lost=outcome.billed, words=outcome.words)
                raise self._stopped(next(iter(outcomes.values())), "nothing came back of its last batches")
            for request_name, outcome in outcomes.items():
                yield Result(request_name, self._log.batch_key(stem, request_name), outcome)

    # These methods wait for the end of one batch and read its results.

    def _batch_outcome(
        self, batch: _Submitted, requests: Mapping[str, BatchRequest], endpoint: Path
    ) -> tuple[str, dict[str, ExchangeOutcome]]:
        """Returns the outcome of each request of a new batch.

        The batch is submitted again while a limit on the requests in the endpoint's queue ends it.
        """
        started_at_s = time.monotonic()
        pause_s = max(self._settings.poll_s, _FIRST_PAUSE_S)
        while True:
            outcomes, any_came_back, lost_outcome = self._batch_outcomes(batch, requests)
            if lost_outcome is not None:
                self._note_gone(batch)
                raise self._stopped(lost_outcome, _NOT_THERE)
            any_outcome = next(iter(outcomes.values()))
            if any_came_back or any_outcome.state is not ExchangeState.WAIT or any_outcome.billed:
                break
            for request_name in batch.identifiers:
                self._log.end(self._log.batch_key(batch.stem, request_name), lost=False)
            if time.monotonic() + pause_s > started_at_s + self._settings.patience_s:
                raise self._stopped(any_outcome, "its batch was put off again and again")
            time.sleep(pause_s)
            pause_s = min(2.0 * pause_s, max(self._settings.max_wait_s, pause_s))
            batch = self._submit_part(
                {request_name: requests[request_name] for request_name in batch.identifiers}, endpoint
            )
        self._empty_in_a_row = 0 if any_came_back else self._empty_in_a_row + 1
        return batch.stem, outcomes

    def _batch_outcomes(
        self, batch: _Submitted, requests: Mapping[str, BatchRequest]
    ) -> tuple[dict[str, ExchangeOutcome], bool, ExchangeOutcome | None]:
        """Waits until a batch has ended. Returns the outcome of each of its requests, and whether any came back.

        The third item says why a request cannot be found any more: the batch or a file of it is gone. Else it is None.
        """
        try:
            batch_body = self._wait_for_end(batch.number)
        except _Gone as error:
            return dict.fromkeys(batch.identifiers, error.outcome), False, error.outcome
        lines, lost_outcome = self._read_files(batch, requests, batch_body)
        outcomes: dict[str, ExchangeOutcome] = {}
        for line in lines:
            if line.identifier in batch.identifiers:
                outcomes.setdefault(line.identifier, line.outcome)
        answered_names = {line.identifier for line in lines if line.is_exchange and line.identifier in outcomes}
        unreadable_count = sum(not line.identifier for line in lines)
        outcome_of_rest = self._batch_failure(batch_body)
        if unreadable_count:
            unreadable_words = f"{unreadable_count} lines of its result cannot be read"
        else:
            unreadable_words = outcome_of_rest.words
        is_billed = unreadable_count > 0 or _may_bill_the_rest(
            batch_body, [outcomes[request_name] for request_name in answered_names]
        )
        outcome_of_rest = lost_outcome or replace(outcome_of_rest, words=unreadable_words, billed=is_billed)
        missing_names = [request_name for request_name in batch.identifiers if request_name not in outcomes]
        return (
            outcomes | dict.fromkeys(missing_names, outcome_of_rest),
            bool(answered_names),
            lost_outcome if missing_names else None,
        )

    def _wait_for_end(self, number: str) -> Mapping[str, Any]:
        """Waits until a batch has ended, and returns it."""
        while True:
            batch = self._get_object(f"/batches/{number}", "status", str)
            if batch["status"].casefold() in ENDED:
                return batch
            time.sleep(self._settings.poll_s)

    def _batch_failure(self, batch: Mapping[str, Any]) -> ExchangeOutcome:
        """Returns the outcome of the requests that an ended batch says nothing of, by the batch's own errors."""
        errors = batch.get("errors") or f"the batch is {batch.get('status')}, and ended without it"
        return self._judge(Exchange(400, body=json.dumps({"error": errors}).encode()), (0, 0))

    def _read_files(
        self, batch: _Submitted, requests: Mapping[str, BatchRequest], batch_body: Mapping[str, Any]
    ) -> tuple[list[_Line], ExchangeOutcome | None]:
        """Returns the lines of a batch's files, and why one of the files is gone, if one is."""
        longest_answer = max((request.worst[1] for request in requests.values()), default=0)
        most_bytes = max(_SMALL_BYTES, 2 * len(batch.identifiers) * longest_body(longest_answer))
        lines: list[_Line] = []
        lost_outcome = None
        for file_field in ("output_file_id", "error_file_id"):
            if not isinstance(batch_body.get(file_field), str):
                continue
            try:
                lines += self._read_lines(batch_body[file_field], batch, requests, most_bytes)
            except _Gone as error:
                lost_outcome = error.outcome
        return lines, lost_outcome

    def _read_lines(
        self, file_id: str, batch: _Submitted, requests: Mapping[str, BatchRequest], most_bytes: int
    ) -> list[_Line]:
        """Returns the lines of a file; reads it again while it has no line of this batch but something else.

        Raises _Gone if there is no such file.
        """
        lines: list[_Line] = []
        for attempt in range(LOOKS):
            time.sleep(min(_FIRST_PAUSE_S, self._settings.max_wait_s) if attempt else 0.0)
            file_bytes = self._fetch_path(f"/files/{file_id}/content", most_bytes=most_bytes, timeout_s=_FILE_TIMEOUT_S)
            lines = [self._read_line(line, requests) for line in file_bytes.split(b"\n") if line.strip()]
            if any(line.identifier in batch.identifiers for line in lines):
                break
        return lines

    def _read_line(self, line: bytes, requests: Mapping[str, BatchRequest]) -> _Line:
        entry = parsed(line)
        identifier = None
        if isinstance(entry, dict):
            identifier = entry.get("custom_id")
        if not isinstance(identifier, str):
            return _Line(
                "", ExchangeOutcome(ExchangeState.LOST, "lost", "a line of its result cannot be read", billed=True)
            )
        response = entry.get("response")
        response = response if isinstance(response, dict) else {}
        status = response.get("status_code")
        body = response.get("body")
        if not isinstance(status, int) or isinstance(status, bool):
            status = 400 if body is None else 200
        is_exchange = body is not None
        if not is_exchange:
            body = {"error": entry.get("error") or "no reason given"}
        if isinstance(body, str):
            body_text = body
        else:
            body_text = json.dumps(body)
        if identifier in requests:
            worst = requests[identifier].worst
        else:
            worst = 0, 0
        outcome = self._judge(Exchange(status, body=body_text.encode("utf-8", "surrogatepass")), worst)
        return _Line(identifier, outcome, is_exchange)

    def _note_gone(self, batch: _Submitted) -> bool:
        """Notes that a batch cannot be found; returns True if this was not noted before."""
        gone_key = f"{batch_prefix(self._name)}{batch.stem}/gone"
        is_first = not self._journal.items(gone_key)
        self._journal.put(gone_key, b"")
        return is_first

    # These methods submit a batch.

    def _journaled_batches(self, missing_requests: Mapping[str, BatchRequest]) -> Iterator[_Submitted]:
        """Yields the batches that were submitted before and hold a request that is still missing."""
        prefix = batch_prefix(self._name)
        entries = self._journal.items(prefix)
        for journal_key in sorted(journal_key for journal_key in entries if journal_key.endswith("/requests")):
            stem = journal_key.removeprefix(prefix).removesuffix("/requests")
            identifiers = json.loads(entries[journal_key])
            if not missing_requests.keys() & identifiers:
                continue
            number_bytes = entries.get(f"{prefix}{stem}/number")
            batch_id = number_bytes.decode() if number_bytes else self._find_submitted(stem)
            if batch_id is None:
                continue
            if not number_bytes:
                self._journal.put(f"{prefix}{stem}/number", batch_id.encode())
            yield _Submitted(stem, batch_id, identifiers)

    def _submit_part(self, part_requests: Mapping[str, BatchRequest], endpoint: Path) -> _Submitted:
        """Submits one batch; the journal notes that before, and the batch's number after."""
        time.sleep(max(0.0, self._next_batch_at_s - time.monotonic()))
        prefix = batch_prefix(self._name)
        identifiers = list(part_requests)
        batch_number = sum(journal_key.endswith("/requests") for journal_key in self._journal.items(prefix))
        mark = uuid.uuid4().hex
        stem = f"{batch_number:08}-{mark}"
        request_lines = [
            _request_line(request_name, request, endpoint) for request_name, request in part_requests.items()
        ]
        boundary = f"undersong-{mark}"
        form_headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        form_bytes = _multipart_form(b"\n".join(request_lines), boundary)
        uploaded_file = _json_object(
            self._call_patiently("POST", "/files", form_bytes, form_headers, timeout_s=_FILE_TIMEOUT_S)
        )
        batch_fields = {
            "input_file_id": self._text_field(uploaded_file, "id"),
            "endpoint": endpoint,
            "completion_window": "24h",
            "metadata": {MARK: stem},
        }
        # The endpoint may accept the batch now and bill each request, whether or not its answer arrives.
        attempt_keys = self._log.begin_batch(
            stem,
            {request_name: (sum(request.worst), request.price_usd) for request_name, request in part_requests.items()},
        )
        self._journal.put(f"{prefix}{stem}/requests", json.dumps(identifiers).encode())

        def end_attempts(outcome: ExchangeOutcome) -> None:
            for attempt_key in attempt_keys:
                self._log.end(attempt_key, lost=outcome.billed, words=outcome.words)

        body = json.dumps(batch_fields).encode()
        batch_id = self._text_field(
            _json_object(self._call_patiently("POST", "/batches", body, on_failure=end_attempts)), "id"
        )
        self._journal.put(f"{prefix}{stem}/number", batch_id.encode())
        return _Submitted(stem, batch_id, identifiers)

    def _find_submitted(self, stem: str) -> str | None:
        """Returns the number of a batch that an earlier process submitted and could not note; None if it has none."""
        cursor = ""
        for _ in range(_PAGES):
            try:
                page = self._get_object(f"/batches?limit={_LISTED}{cursor}", "data", list)
            except _Gone:  # an endpoint that lists no batches
                return None
            batches = [batch for batch in page["data"] if isinstance(batch, dict)]
            for batch in batches:
                metadata = batch.get("metadata")
                batch_id = batch.get("id")
                if isinstance(metadata, dict) and metadata.get(MARK) == stem and isinstance(batch_id, str) and batch_id:
                    return batch_id
            if not page.get("has_more") or not batches:
                break
            cursor = f"&after={batches[-1].get('id')}"
        return None

    # These methods make the calls.

    def _fetch_path(self, path: str, *, most_bytes: int = _SMALL_BYTES, timeout_s: float = 0.0) -> bytes:
        """Returns what the endpoint keeps at a path.

        Raises _Gone if it has nothing there at ``LOOKS`` calls: a thing that was just made may not be shown at once.
        """
        pause_s = _FIRST_PAUSE_S
        for attempt in range(1, LOOKS + 1):
            try:
                return self._call_patiently("GET", path, most_bytes=most_bytes, timeout_s=timeout_s)
            except _Gone:
                if attempt == LOOKS:
                    raise
            time.sleep(min(pause_s, self._settings.max_wait_s))
            pause_s *= 2.0
        raise AssertionError

    def _get_object(self, path: str, key: str, value_type: type) -> Mapping[str, Any]:
        """Returns the JSON object at a path, with a value of the type ``value_type`` under ``key``.

        It is asked for again while another body comes. Raises GenerationError if that goes on for ``patience_s``.
        """
        started_at_s = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        while True:
            body_json = _json_object(self._fetch_path(path))
            if isinstance(body_json.get(key), value_type):
                return body_json
            pause_s = min(pause_s, self._settings.max_wait_s)
            if time.monotonic() + pause_s > started_at_s + self._settings.patience_s:
                raise self._unreachable_error(f"an answer about its batch has no {key}")
            time.sleep(pause_s)
            pause_s *= 2.0

    def _text_field(self, value: Mapping[str, Any], key: str) -> str:
        if isinstance(value.get(key), str) and value[key]:
            return str(value[key])
        raise self._unreachable_error(f"an answer about its batch has no {key}")

    def _call_patiently(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        most_bytes: int = _SMALL_BYTES,
        timeout_s: float = 0.0,
        on_failure: Callable[[ExchangeOutcome], None] | None = None,
    ) -> bytes:
        """Returns the body of a good answer; repeats a call that fails while that is safe.

        Args:
            on_failure: called with the last outcome. A call that has it submits something, and is repeated only if the
                request cannot have reached the endpoint, or was put off.
        """
        settings = self._settings
        started_at_s = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        while True:
            exchange = self._connection.exchange(
                method,
                path,
                content,
                timeout_s=max(timeout_s, settings.timeout_s),
                most_bytes=most_bytes,
                headers={**settings.headers, **(headers or {})},
            )
            if not exchange.fault and 200 <= exchange.status < 300:
                return exchange.body
            outcome = self._judge(exchange, (0, 0))
            is_repeatable = outcome.state in (ExchangeState.WAIT, ExchangeState.LOST)
            if outcome.pause_s is None:
                wait_s = min(pause_s, settings.max_wait_s)
            else:
                wait_s = outcome.pause_s
            is_safe = on_failure is None or outcome.throttled or outcome.kind == "unreachable"
            is_over = not is_safe or time.monotonic() + wait_s > started_at_s + settings.patience_s
            if on_failure is not None and (is_over or not is_repeatable):
                on_failure(outcome)
            if not is_repeatable:
                if method == "GET" and outcome.kind in _GONE:
                    raise _Gone(replace(outcome, state=ExchangeState.LOST, kind="gone", billed=True))
                if method == "GET":
                    problem = "its batch cannot be asked after"
                else:
                    problem = "its batch is not accepted"
                raise self._stopped(outcome, problem)
            if is_over:
                raise self._unreachable_error(outcome.words)
            time.sleep(wait_s)
            pause_s *= 2.0

    def _unreachable_error(self, words: str) -> GenerationError:
        return GenerationError(
            f"generator {self._name}: its batch cannot be reached ({words})",
            "run the same command again: the batch is noted, and found again",
            code="batch-unreachable",
        )


def _json_object(body: bytes) -> Mapping[str, Any]:
    body_json = parsed(body)
    if isinstance(body_json, dict):
        return body_json
    return {}


def _may_bill_the_rest(batch_body: Mapping[str, Any], answered_outcomes: Sequence[ExchangeOutcome]) -> bool:
    """Returns True if an ended batch may bill requests of which its files say nothing.

    This follows from the batch's counts and usage, if it states them. Otherwise a batch of which nothing came back has
    begun nothing, and any other one may have answered the rest.
    """
    request_counts = batch_body.get("request_counts")
    usage = batch_body.get("usage")
    total_tokens = None
    if isinstance(usage, dict):
        total_tokens = usage.get("total_tokens")
    usages = [outcome.completion.usage for outcome in answered_outcomes if outcome.completion is not None]
    if isinstance(total_tokens, int) and total_tokens > sum(usage.prompt + usage.completion for usage in usages):
        return True
    completed_count = None
    if isinstance(request_counts, dict):
        completed_count = request_counts.get("completed")
    if isinstance(completed_count, int) and completed_count >= len(usages):
        return completed_count > len(usages)
    return batch_body["status"].casefold() in _WHOLE or bool(answered_outcomes)


def _request_line(identifier: str, request: BatchRequest, endpoint: Path) -> bytes:
    return json.dumps({"custom_id": identifier, "method": "POST", "url": endpoint, "body": request.body}).encode()


def _split_requests(requests: Mapping[str, BatchRequest]) -> Iterator[dict[str, BatchRequest]]:
    """Yields the requests in parts that a batch's file can hold."""
    part: dict[str, BatchRequest] = {}
    part_bytes = 0
    for name, request in requests.items():
        line_bytes = len(_request_line(name, request, "/v1/chat/completions")) + 1
        if part and (len(part) == MOST_LINES or part_bytes + line_bytes > MOST_BYTES):
            yield part
            part, part_bytes = {}, 0
        part[name] = request
        part_bytes += line_bytes
    if part:
        yield part


def _multipart_form(content: bytes, boundary: str) -> bytes:
    """Returns the form (RFC 7578) that uploads a batch's file."""
    form_start = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
        'Content-Disposition: form-data; name="file"; filename="requests.jsonl"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    return form_start.encode() + content + f"\r\n--{boundary}--\r\n".encode()
