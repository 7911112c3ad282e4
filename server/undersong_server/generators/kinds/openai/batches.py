"""Batch files: many requests, answered within a day at half the price.

A batch's number is noted before it is asked after, and that it is about to be submitted before that: whatever kills the
process, the next one finds the batch, by its number or by the mark it bears, and pays for none twice. A batch that ends
before all of it is answered gives what it has; the rest is asked for in the next.

Each line of a result is an exchange of its own. One that cannot be read is one failed order, and ends the reading of no
other.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from undersong_common.errors import GenerationError
from undersong_server.generators.endpoints import AttemptLog, batch_prefix
from undersong_server.generators.kinds.openai.attempt import Connection, longest_body
from undersong_server.generators.kinds.openai.states import PROBLEMS, Exchange, State, Verdict, parsed
from undersong_server.journal import Journal

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
MARK = "undersong"  # of a batch's metadata
MOST_LINES, MOST_BYTES = 50_000, 200_000_000  # of a batch's file
EMPTY_IN_A_ROW = 2
"""Batches of which nothing came back, one after the other, before the run stops."""
_LISTED = 100  # batches of a page in which one is looked for that was submitted and not noted
_PAGES = 20
_FILE_TIMEOUT_S = 900.0  # at least, for a file of up to 200 MB
_SMALL_BYTES = 10_000_000  # bound of an answer that is no file
_FIRST_PAUSE_S = 0.5

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
        poll_s: pause between two looks at a batch; max_wait_s: longest pause after a look that failed.
        patience_s: how long calls that fail are made again, and an enqueued limit is waited for.
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


class _Line(NamedTuple):
    """What one line of a batch's result says.

    Attributes:
        identifier: of its request; "" where the line has none.
        is_exchange: the endpoint has answered the request, well or not; otherwise the batch ended before it was asked.
    """

    identifier: str
    verdict: Verdict
    is_exchange: bool = True


class Batches:
    """The batches of one generator."""

    def __init__(
        self,
        connection: Connection,
        journal: Journal,
        log: AttemptLog,
        settings: BatchSettings,
        *,
        name: str,
        judge: Callable[[Exchange, tuple[int, int]], Verdict],
        stopped: Callable[[Verdict, str], GenerationError],
    ) -> None:
        """The journal keeps the batches' numbers, the log their worst cases.

        Args:
            name: the generator's.
            stopped: makes the error that ends a run.
        """
        self._connection = connection
        self._journal = journal
        self._log = log
        self._settings = settings
        self._name = name
        self._judge = judge
        self._stopped = stopped
        self._empty_in_a_row = 0
        self._next_s = 0.0  # before which no batch is submitted, by the monotonic clock

    def results(self, asked: Mapping[str, BatchRequest], endpoint: Path) -> Iterator[tuple[str, Verdict]]:
        """Yields one (identifier, verdict) per request, from batches that were submitted before and from new ones.

        Raises GenerationError if the endpoint cannot be asked, or batch after batch gives nothing back.
        """
        missing = dict(asked)
        for batch in self._noted(missing):
            try:
                ended = self._ended(batch.number)
            except GenerationError as error:
                if error.code != PROBLEMS["model"].code:
                    raise
                continue  # another endpoint than the one that it was submitted to
            for identifier, verdict, _ in self._read(batch, asked, ended):
                if verdict.state is State.ANSWER and missing.pop(identifier, None) is not None:
                    yield identifier, verdict
                elif verdict.billed and identifier in missing:
                    self._log.end(self._log.batch_key(identifier), lost=True, words=verdict.words)
        submitted = [self._submit(part, endpoint) for part in _parts(missing)]
        for batch in submitted:
            verdicts = self._outcome(batch, asked, endpoint)
            for identifier, verdict in verdicts.items():
                if verdict.completion is None:
                    self._log.end(self._log.batch_key(identifier), lost=verdict.billed, words=verdict.words)
            pauses = [each.pause_s or 0.0 for each in verdicts.values() if each.state is State.WAIT]
            self._next_s = time.monotonic() + max((s for s in pauses if s <= self._settings.deadline_s), default=0.0)
            if self._empty_in_a_row >= EMPTY_IN_A_ROW:
                raise self._stopped(next(iter(verdicts.values())), "nothing came back of its last batches")
            yield from verdicts.items()

    # One batch

    def _outcome(self, batch: _Submitted, asked: Mapping[str, BatchRequest], endpoint: Path) -> dict[str, Verdict]:
        """Returns the verdict on each request of a new batch; submits it again while an enqueued limit ends it."""
        begun = time.monotonic()
        pause = max(self._settings.poll_s, _FIRST_PAUSE_S)
        while True:
            ended = self._ended(batch.number)
            whole = self._failure(ended)
            if whole.state is not State.WAIT or ended["status"] != "failed":
                break
            if time.monotonic() + pause > begun + self._settings.patience_s:
                for identifier in batch.identifiers:
                    self._log.end(self._log.batch_key(identifier), lost=False)
                raise self._stopped(whole, "its batch was put off again and again")
            time.sleep(pause)
            pause = min(2.0 * pause, max(self._settings.max_wait_s, pause))
            batch = self._submit({name: asked[name] for name in batch.identifiers}, endpoint)
        verdicts: dict[str, Verdict] = {}
        unreadable, came_back = 0, False
        for line in self._read(batch, asked, ended):
            unreadable += not line.identifier
            if line.identifier in batch.identifiers:
                verdicts.setdefault(line.identifier, line.verdict)
                came_back |= line.is_exchange
        self._empty_in_a_row = 0 if came_back else self._empty_in_a_row + 1
        for identifier in batch.identifiers:
            if identifier not in verdicts:
                words = f"{unreadable} lines of its result cannot be read" if unreadable else whole.words
                verdicts[identifier] = replace(whole, words=words, billed=unreadable > 0)
        return verdicts

    def _ended(self, number: str) -> Mapping[str, Any]:
        """Waits until a batch has ended, and returns it."""
        while True:
            batch = self._json("GET", f"/batches/{number}")
            if batch.get("status") in ENDED:
                return batch
            time.sleep(self._settings.poll_s)

    def _failure(self, batch: Mapping[str, Any]) -> Verdict:
        """Returns the verdict on what a batch leaves out, by its own errors."""
        stated = batch.get("errors") or f"the batch is {batch.get('status')}, and ended without it"
        return self._judge(Exchange(400, body=json.dumps({"error": stated}).encode()), (0, 0))

    def _read(self, batch: _Submitted, asked: Mapping[str, BatchRequest], ended: Mapping[str, Any]) -> Iterator[_Line]:
        """Yields the lines of a batch's files."""
        longest = max((each.worst[1] for each in asked.values()), default=0)
        most_bytes = max(_SMALL_BYTES, 2 * len(batch.identifiers) * longest_body(longest))
        for key in ("output_file_id", "error_file_id"):
            if not isinstance(ended.get(key), str):
                continue
            content = self._call(
                "GET", f"/files/{ended[key]}/content", most_bytes=most_bytes, timeout_s=_FILE_TIMEOUT_S
            )
            for line in content.split(b"\n"):
                if line.strip():
                    yield self._read_line(line, asked)

    def _read_line(self, line: bytes, asked: Mapping[str, BatchRequest]) -> _Line:
        entry = parsed(line)
        identifier = entry.get("custom_id") if isinstance(entry, dict) else None
        if not isinstance(identifier, str):
            return _Line("", Verdict(State.LOST, "lost", "a line of its result cannot be read", billed=True))
        response = entry.get("response")
        response = response if isinstance(response, dict) else {}
        status, body = response.get("status_code"), response.get("body")
        if not isinstance(status, int) or isinstance(status, bool):
            status = 400 if body is None else 200
        is_exchange = body is not None
        if not is_exchange:
            body = {"error": entry.get("error") or "no reason given"}
        content = body if isinstance(body, str) else json.dumps(body)
        worst = asked[identifier].worst if identifier in asked else (0, 0)
        verdict = self._judge(Exchange(status, body=content.encode("utf-8", "surrogatepass")), worst)
        return _Line(identifier, verdict, is_exchange)

    # Submission

    def _noted(self, missing: Mapping[str, BatchRequest]) -> Iterator[_Submitted]:
        """Yields the batches that were submitted before and hold a request that is still missing."""
        prefix = batch_prefix(self._name)
        entries = self._journal.items(prefix)
        for key in sorted(key for key in entries if key.endswith("/requests")):
            stem = key.removeprefix(prefix).removesuffix("/requests")
            identifiers = json.loads(entries[key])
            if not missing.keys() & identifiers:
                continue
            noted = entries.get(f"{prefix}{stem}/number")
            number = noted.decode() if noted else self._submitted(stem)
            if number is None:
                continue
            if not noted:
                self._journal.put(f"{prefix}{stem}/number", number.encode())
            yield _Submitted(stem, number, identifiers)

    def _submit(self, part: Mapping[str, BatchRequest], endpoint: Path) -> _Submitted:
        """Submits one batch; the journal says so before, and knows its number after."""
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        prefix = batch_prefix(self._name)
        identifiers = list(part)
        place = sum(key.endswith("/requests") for key in self._journal.items(prefix))
        mark = hashlib.sha256("\n".join([str(place), *identifiers]).encode()).hexdigest()
        stem = f"{place:08}-{mark[:32]}"
        self._log.begin_batch({name: (sum(each.worst), each.price_usd) for name, each in part.items()})
        self._journal.put(f"{prefix}{stem}/requests", json.dumps(identifiers).encode())
        lines = [_line(name, each, endpoint) for name, each in part.items()]
        boundary = f"undersong-{mark[:32]}"
        form = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        file = self._json("POST", "/files", _multipart(b"\n".join(lines), boundary), form, timeout_s=_FILE_TIMEOUT_S)
        wanted = {
            "input_file_id": self._text(file, "id"),
            "endpoint": endpoint,
            "completion_window": "24h",
            "metadata": {MARK: stem},
        }
        batch = self._json("POST", "/batches", json.dumps(wanted).encode(), is_safe=False)
        number = self._text(batch, "id")
        self._journal.put(f"{prefix}{stem}/number", number.encode())
        return _Submitted(stem, number, identifiers)

    def _submitted(self, stem: str) -> str | None:
        """Returns the number of a batch that an earlier process submitted and could not note."""
        after = ""
        for _ in range(_PAGES):
            page = self._json("GET", f"/batches?limit={_LISTED}{after}")
            batches = [each for each in page.get("data") or () if isinstance(each, dict)]
            for batch in batches:
                if (batch.get("metadata") or {}).get(MARK) == stem:
                    return self._text(batch, "id")
            if not page.get("has_more") or not batches:
                break
            after = f"&after={batches[-1].get('id')}"
        return None

    # Calls

    def _json(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        is_safe: bool = True,
        timeout_s: float = 0.0,
    ) -> Mapping[str, Any]:
        body = self._call(method, path, content, headers, most_bytes=_SMALL_BYTES, timeout_s=timeout_s, is_safe=is_safe)
        value = parsed(body)
        return value if isinstance(value, dict) else {}

    def _text(self, value: Mapping[str, Any], key: str) -> str:
        if isinstance(value.get(key), str) and value[key]:
            return str(value[key])
        raise self._unreachable(f"an answer about its batch has no {key}")

    def _call(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        most_bytes: int,
        timeout_s: float = 0.0,
        is_safe: bool = True,
    ) -> bytes:
        """Returns the body of a good answer; makes the call again while it fails and that is safe.

        Args:
            is_safe: the call may be made again even if its answer was lost: nothing is submitted by it.
        """
        settings = self._settings
        begun, pause = time.monotonic(), _FIRST_PAUSE_S
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
            verdict = self._judge(exchange, (0, 0))
            is_unheard = verdict.throttled or verdict.kind == "unreachable"
            if verdict.state not in (State.WAIT, State.LOST):
                raise self._stopped(verdict, "its batch cannot be asked after")
            wait_s = min(pause, settings.max_wait_s) if verdict.pause_s is None else verdict.pause_s
            if not (is_safe or is_unheard) or time.monotonic() + wait_s > begun + settings.patience_s:
                raise self._unreachable(verdict.words)
            time.sleep(wait_s)
            pause *= 2.0

    def _unreachable(self, words: str) -> GenerationError:
        return GenerationError(
            f"generator {self._name}: its batch cannot be reached ({words})",
            "run the same command again: the batch is noted, and found again",
            code="batch-unreachable",
        )


def _line(identifier: str, request: BatchRequest, endpoint: Path) -> bytes:
    return json.dumps({"custom_id": identifier, "method": "POST", "url": endpoint, "body": request.body}).encode()


def _parts(requests: Mapping[str, BatchRequest]) -> Iterator[dict[str, BatchRequest]]:
    """Yields the requests in parts that a batch's file can hold."""
    part: dict[str, BatchRequest] = {}
    size = 0
    for name, request in requests.items():
        length = len(_line(name, request, "/v1/chat/completions")) + 1
        if part and (len(part) == MOST_LINES or size + length > MOST_BYTES):
            yield part
            part, size = {}, 0
        part[name] = request
        size += length
    if part:
        yield part


def _multipart(content: bytes, boundary: str) -> bytes:
    """Returns the form (RFC 7578) that uploads a batch's file."""
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
        'Content-Disposition: form-data; name="file"; filename="requests.jsonl"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    return head.encode() + content + f"\r\n--{boundary}--\r\n".encode()
