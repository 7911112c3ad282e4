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
from typing import TYPE_CHECKING, Any, Literal

from undersong_server.journal import Journal

if TYPE_CHECKING:
    import openai

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
MARK = "undersong"  # of a batch's metadata
_LISTED = 100  # batches in which one is looked for that was submitted and not noted


Result = tuple[str, Mapping[str, Any] | None, str]
"""One line of a batch's output: the request's identifier, and the body of a completion or a problem."""


@dataclass(frozen=True)
class Batches:
    """The batches of one generator.

    Attributes:
        journal: keeps their numbers.
        name: the generator's.
        endpoint: path that each line of a batch asks, e.g. "/v1/chat/completions".
        poll_s: pause between two looks at a batch.
        patiently: makes one call of the client, again if the endpoint says that it is asked too often.
    """

    client: openai.OpenAI
    journal: Journal
    name: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    poll_s: float
    patiently: Callable[[Callable[[], Any]], Any]

    def results(self, bodies: Mapping[str, Mapping[str, Any]]) -> Iterator[Result]:
        """Yields one result per body, out of batches noted before and of one new batch.

        Raises what the client raises.
        """
        missing = dict(bodies)
        entries = self.journal.items(prefix(self.name))
        noted = [json.loads(value) for key, value in sorted(entries.items()) if key.endswith("/requests")]
        for identifiers in [*noted, None]:
            asked = list(missing) if identifiers is None else identifiers
            if missing.keys() & asked:
                for result in self._ended(asked, bodies):
                    if missing.pop(result[0], None) is not None:
                        yield result
        for identifier in missing:
            yield identifier, None, "the batch ended without it"

    def _ended(self, identifiers: Sequence[str], bodies: Mapping[str, Mapping[str, Any]]) -> Iterator[Result]:
        """Results of one batch, which is submitted unless it was; waits until it has ended."""
        mark = hashlib.sha256("\n".join(identifiers).encode()).hexdigest()
        key = f"{prefix(self.name)}{mark}"
        noted = self.journal.get(f"{key}/number")
        number = noted.decode() if noted else None
        if number is None:
            known = self.journal.get(f"{key}/requests") is not None
            number = self._submitted(mark) if known else None
            if number is None and not all(each in bodies for each in identifiers):
                return  # never submitted, and parts of it were answered otherwise
            if not known:
                self.journal.put(f"{key}/requests", json.dumps(list(identifiers)).encode())
            number = number or self._submit(mark, {each: bodies[each] for each in identifiers})
            self.journal.put(f"{key}/number", number.encode())
        while (batch := self.patiently(partial(self.client.batches.retrieve, number))).status not in ENDED:
            time.sleep(self.poll_s)
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            yield from _lines(self.patiently(partial(self.client.files.content, file)).text)

    def _submit(self, mark: str, bodies: Mapping[str, Mapping[str, Any]]) -> str:
        lines = [
            json.dumps({"custom_id": each, "method": "POST", "url": self.endpoint, "body": body})
            for each, body in bodies.items()
        ]
        content = ("requests.jsonl", "\n".join(lines).encode())
        file = self.patiently(lambda: self.client.files.create(file=content, purpose="batch"))
        batch = self.patiently(
            lambda: self.client.batches.create(
                input_file_id=file.id, endpoint=self.endpoint, completion_window="24h", metadata={MARK: mark}
            )
        )
        return str(batch.id)

    def _submitted(self, mark: str) -> str | None:
        """The number of a batch that an earlier process submitted and could not note."""
        listed = self.patiently(lambda: self.client.batches.list(limit=_LISTED)).data
        return next((str(batch.id) for batch in listed if (batch.metadata or {}).get(MARK) == mark), None)


def prefix(name: str) -> str:
    """Returns the beginning of a generator's keys among the notes."""
    return f"batch/{name}/"


def _lines(content: str) -> Iterator[Result]:
    for entry in (json.loads(line) for line in content.split("\n") if line.strip()):
        response = entry.get("response") or {}
        body = response.get("body")
        if response.get("status_code") == 200 and isinstance(body, dict):
            yield entry["custom_id"], body, ""
        else:
            error = entry.get("error") or (body or {}).get("error") or {}
            yield entry["custom_id"], None, str(error.get("message") or "no reason given")[:200]
