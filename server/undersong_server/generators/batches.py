"""Batch files of an endpoint: many requests at once, answered within a day, at half the price.

A batch's number is noted before it is asked after, and that it is about to be submitted before that: whatever kills the
process, the next one finds the batch, by its number or by the mark it bears, and pays for none twice. A batch that ends
before all of it is answered gives what it has; the rest is asked for in the next.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import openai

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
MARK = "undersong"  # of a batch's metadata
_LISTED = 100  # batches in which one is looked for that was submitted and not noted


class Notes(Protocol):
    """What survives the process: the run's journal."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...

    def items(self, prefix: str) -> dict[str, bytes]: ...


@dataclass(frozen=True)
class Result:
    """One line of a batch's output: the body of a completion, or why there is none."""

    body: Mapping[str, Any] | None
    problem: str = ""


class Batches:
    """The batches of one generator.

    Args:
        notes: where their numbers are kept.
        name: the generator's.
        endpoint: path that each line of a batch asks, e.g. "/v1/chat/completions".
        patiently: makes one call of the client, again where the endpoint says that it is asked too often.
        sleep: waits between two looks at a batch.
    """

    def __init__(
        self,
        notes: Notes,
        name: str,
        endpoint: str,
        *,
        poll_s: float,
        patiently: Callable[[Callable[[], Any]], Any],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._notes = notes
        self._prefix = prefix(name)
        self._endpoint = endpoint
        self._poll_s = poll_s
        self._patiently = patiently
        self._sleep = sleep

    def noted(self) -> list[list[str]]:
        """The request identifiers of every batch that was submitted or about to be, oldest first."""
        entries = self._notes.items(self._prefix)
        return [json.loads(value) for key, value in sorted(entries.items()) if key.endswith("/requests")]

    def results(self, client: openai.OpenAI, bodies: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Result]]:
        """The results of all bodies by their identifiers, out of batches noted before and of one new batch.

        Raises what the client raises.
        """
        missing = dict(bodies)
        for identifiers in self.noted():
            if wanted := [each for each in identifiers if each in missing]:
                for identifier, result in self._ended(client, identifiers, bodies):
                    if identifier in wanted:
                        missing.pop(identifier, None)
                        yield identifier, result
        if missing:
            answered = set()
            for identifier, result in self._ended(client, list(missing), missing):
                answered.add(identifier)
                yield identifier, result
            for identifier in missing:
                if identifier not in answered:
                    yield identifier, Result(None, "the batch ended without it")

    def _ended(
        self, client: openai.OpenAI, identifiers: Sequence[str], bodies: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[str, Result]]:
        """Results of one batch, which is submitted unless it was; waits until it has ended."""
        mark = hashlib.sha256("\n".join(identifiers).encode()).hexdigest()
        key = f"{self._prefix}{mark}"
        number = self._notes.get(f"{key}/number")
        if number is None:
            known = self._notes.get(f"{key}/requests") is not None
            found = self._submitted(client, mark) if known else None
            if found is None:
                if not all(each in bodies for each in identifiers):
                    return  # never submitted, and parts of it were answered otherwise
                if not known:
                    self._notes.put(f"{key}/requests", json.dumps(list(identifiers)).encode())
                found = self._submit(client, mark, {each: bodies[each] for each in identifiers})
            self._notes.put(f"{key}/number", found.encode())
            number = found.encode()
        named = number.decode()
        while (batch := self._patiently(lambda: client.batches.retrieve(named))).status not in ENDED:
            self._sleep(self._poll_s)
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            yield from _lines(self._patiently(partial(client.files.content, file)).text)

    def _submit(self, client: openai.OpenAI, mark: str, bodies: Mapping[str, Mapping[str, Any]]) -> str:
        lines = [
            json.dumps({"custom_id": each, "method": "POST", "url": self._endpoint, "body": body})
            for each, body in bodies.items()
        ]
        content = ("requests.jsonl", "\n".join(lines).encode())
        file = self._patiently(lambda: client.files.create(file=content, purpose="batch"))
        endpoint: Any = self._endpoint
        batch = self._patiently(
            lambda: client.batches.create(
                input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={MARK: mark}
            )
        )
        number: str = batch.id
        return number

    def _submitted(self, client: openai.OpenAI, mark: str) -> str | None:
        """The number of a batch that an earlier process submitted and could not note."""
        listed = self._patiently(lambda: client.batches.list(limit=_LISTED)).data
        found: str | None = next((batch.id for batch in listed if (batch.metadata or {}).get(MARK) == mark), None)
        return found


def prefix(name: str) -> str:
    """Returns the beginning of a generator's keys among the notes."""
    return f"batch/{name}/"


def _lines(content: str) -> Iterator[tuple[str, Result]]:
    for line in content.split("\n"):
        if not line.strip():
            continue
        entry = json.loads(line)
        response = entry.get("response") or {}
        body = response.get("body")
        if response.get("status_code") == 200 and isinstance(body, dict):
            yield entry["custom_id"], Result(body)
        else:
            error = entry.get("error") or (body or {}).get("error") or {}
            yield entry["custom_id"], Result(None, str(error.get("message") or "no reason given")[:200])
