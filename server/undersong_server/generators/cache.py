"""Answers of an endpoint kept across runs, in one file: for trying things out, where a rerun is not to be paid again.

The key is everything that decides an answer (address, headers, body) and the number of requests alike that came before
in the run, so that two orders never get one entry.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.generators.interface import Answer, GenerationRequest, Generator

NOTE = "from the cache"


class CachedGenerator:
    """An endpoint, and the file in front of it."""

    def __init__(self, asked: Generator, decides: Callable[[GenerationRequest], Any], path: Path) -> None:
        """Opens or makes the file.

        Args:
            decides: returns everything that decides the answer to a request, as JSON values.

        Raises ConfigurationError if the file cannot be used.
        """
        self.name = asked.name
        self._asked = asked
        self._decides = decides
        self._seen: Counter[str] = Counter()
        self._hits = 0
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
            self._database.execute("CREATE TABLE IF NOT EXISTS answer (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        except sqlite3.Error as error:
            raise ConfigurationError(
                f"generator {self.name}: cache {path} cannot be used: {error}",
                "name a file that can be written",
                code="cache-unusable",
            ) from None

    @property
    def counts(self) -> dict[str, int]:
        return {**self._asked.counts, "cache_hits": self._hits}

    def observe(self, requests: Sequence[GenerationRequest], answers: Sequence[Answer | GenerationError]) -> None:
        """Counts journaled requests as asked, so that the next one alike takes another entry."""
        for request in requests:
            self._key(request)
        self._asked.observe(requests, answers)

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Answer | GenerationError]]:
        keys = [self._key(request) for request in requests]
        missed = []
        for index, key in enumerate(keys):
            row = self._database.execute("SELECT value FROM answer WHERE key = ?", (key,)).fetchone()
            if row is None:
                missed.append(index)
                continue
            self._hits += 1
            kept = json.loads(row[0])
            yield index, Answer(kept["text"], note=NOTE, finish=kept["finish"])
        for position, answer in self._asked.answer([requests[index] for index in missed]):
            index = missed[position]
            if isinstance(answer, Answer):
                value = json.dumps({"text": answer.text, "finish": answer.finish})
                self._database.execute("INSERT OR REPLACE INTO answer VALUES (?, ?)", (keys[index], value))
            yield index, answer

    def _key(self, request: GenerationRequest) -> str:
        decided = json.dumps(self._decides(request), sort_keys=True)
        alike = hashlib.sha256(decided.encode()).hexdigest()
        self._seen[alike] += 1
        return f"{alike}/{self._seen[alike]}"
