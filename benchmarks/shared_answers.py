"""An endpoint of this machine that keeps a model's answers, so that all arms of a comparison have the same texts.

Requests that differ only in the public hints of their prompts, and in the other labels that these name, are one
question here. The k-th time that a run asks a question it gets the k-th answer that any run got to it, and the model
is asked only where there is none. So arms that order the same, the zero-shot texts above all, differ by what they
choose and not by luck, and a comparison that was stopped goes on without asking anything twice.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.live_pool import LONGEST_ANSWER_S

_OTHER_LABELS = re.compile(r" and not, for example: .*?\.(?=\s)", re.DOTALL)
_HINTS = re.compile(r"\s*So that it is unlike other texts, let this shape it where it fits: [^\n]*")


def question_of(body: dict[str, Any]) -> str:
    """Returns a request's body without the hints that only make the prompts of a batch differ."""
    messages = [turn | {"content": remove_hints(str(turn["content"]))} for turn in body.get("messages", [])]
    return json.dumps(body | {"messages": messages}, sort_keys=True)


def remove_hints(prompt: str) -> str:
    """Returns a prompt without its hints and without the names of other labels.

    >>> remove_hints('It is "a" and not, for example: b, c. Use about 8 words.\\nSo that it is unlike other texts, let '
    ... 'this shape it where it fits: calm; no figure.\\nMake it specific.')
    'It is "a" Use about 8 words.\\nMake it specific.'
    """
    return _HINTS.sub("", _OTHER_LABELS.sub("", prompt))


class Answers:
    """Stores answers to questions in a SQLite file and asks the model for missing ones."""

    def __init__(self, path: Path, upstream: str) -> None:
        self._upstream = upstream
        self._counts: dict[str, Counter[str]] = {}
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS answer (question TEXT, number INTEGER, body TEXT, answer BLOB,"
            " PRIMARY KEY (question, number))"
        )

    def begin(self, run: str) -> None:
        """Counts the questions of a run from the first one on."""
        with self._lock:
            self._counts[run] = Counter()

    def answer(self, run: str, draw: str, body: dict[str, Any]) -> bytes:
        """Returns the answer to the next request of a run like this one; ``draw`` are runs that share answers.

        Raises urllib.error.HTTPError as the model's server does.
        """
        key = hashlib.sha256(f"{draw}\n{question_of(body)}".encode()).hexdigest()
        with self._lock:
            counts = self._counts.setdefault(run, Counter())
            number = counts[key]
            counts[key] += 1
            stored_answer = self._kept(key, number)
        if stored_answer is not None:
            return stored_answer
        request_bytes = json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._upstream}/chat/completions" if "messages" in body else f"{self._upstream}/completions",
            request_bytes,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=LONGEST_ANSWER_S) as reply:
            answer_bytes: bytes = reply.read()
        with self._lock:
            row = (key, number, json.dumps(body), answer_bytes)
            self._database.execute("INSERT OR IGNORE INTO answer VALUES (?, ?, ?, ?)", row)
            return self._kept(key, number) or answer_bytes

    def _kept(self, key: str, number: int) -> bytes | None:
        row = self._database.execute(
            "SELECT answer FROM answer WHERE question = ? AND number = ?", (key, number)
        ).fetchone()
        return None if row is None else bytes(row[0])


@contextmanager
def sharing(answers: Answers) -> Iterator[str]:
    """Serves ``answers``; yields the address. Requests go to ADDRESS/DRAW/RUN/v1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            _, draw, run, *_ = self.path.split("/")
            try:
                status, content = 200, answers.answer(run, draw, body)
            except urllib.error.HTTPError as error:
                status, content = error.code, error.read()
            except OSError as error:
                status, content = 503, json.dumps({"error": {"message": str(error)}}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Logs nothing: the benchmark prints a line for each cell."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
