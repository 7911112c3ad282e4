"""A real HTTP server that speaks OpenAI's chat completions, and one that comes between and misbehaves."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

Reply = tuple[int, dict[str, str], bytes]


def completion(
    text: str | None, *, reason: str = "stop", usage: tuple[int, int] | None = (11, 7), refusal: str | None = None
) -> dict[str, Any]:
    """The body of a chat completion; ``refusal`` is the model's own field of that name."""
    body: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}],
    }
    if refusal is not None:
        body["choices"][0]["message"]["refusal"] = refusal
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return body


def error_body(message: str, code: str | None = None) -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def _continued(body: Any) -> dict[str, Any]:
    """A chat completion as a legacy completion."""
    choices = [
        {"index": 0, "text": choice["message"]["content"], "finish_reason": choice["finish_reason"]}
        for choice in body.get("choices", ())
    ]
    return {**body, "object": "text_completion", "choices": choices}


class ChatServer:
    """Answers every prompt with ``write(prompt)`` (a str is sent as an event stream); keeps what it was sent.

    Attributes:
        url: the ``base_url``.
        bodies: parsed request bodies, in order of arrival.
        most_at_once: the largest number of requests that were in work together.
    """

    def __init__(
        self, write: Callable[[str], dict[str, Any] | str], key: str = "secret-key", delay_s: float = 0.0
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._write, self._key, self._delay_s = write, key, delay_s
        self._at_once = 0
        self._lock = threading.Lock()
        self.url = ""

    def reply(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            time.sleep(self._delay_s)
            return self._reply(path, headers, body)
        finally:
            with self._lock:
                self._at_once -= 1

    def _reply(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        if path not in ("/v1/chat/completions", "/v1/completions"):
            return _json(404, error_body("Not Found"))
        if self._key and headers.get("authorization") != f"Bearer {self._key}":
            return _json(401, error_body(f"Incorrect API key provided: {headers.get('authorization')}"))
        asked = json.loads(body)
        with self._lock:
            self.bodies.append(asked)
        if asked["model"] != "tiny":
            return _json(404, error_body(f"The model {asked['model']!r} does not exist", "model_not_found"))
        if path == "/v1/completions":
            return _json(200, _continued(self._write(asked["prompt"])))
        written = self._write(asked["messages"][-1]["content"])
        if isinstance(written, str):
            return 200, {"Content-Type": "text/event-stream; charset=utf-8"}, written.encode()
        return _json(400 if "error" in written else 200, written)


class Upstream(Protocol):
    """Whatever has a ``base_url``."""

    url: str


class FaultProxy:
    """Passes requests on, but for those that a fault of ``faults`` meets first: one fault a request, in order.

    Faults: "pass"; ("status", number, headers); "cut" (headers and half of the body, then the connection ends);
    "cut at once" (no byte); "garbage" (200 and half of a JSON); "page" (200 and HTML); "not a completion" (200 and
    other JSON); ("slow", seconds).
    """

    def __init__(self, server: Upstream, faults: list[Any]) -> None:
        self.url = ""
        self.arrivals: list[float] = []
        self._host = server.url.removeprefix("http://").split("/", 1)[0]
        self._faults = list(faults)
        self._lock = threading.Lock()

    def reply(self, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        with self._lock:
            self.arrivals.append(time.monotonic())
            fault = self._faults.pop(0) if self._faults else "pass"
        match fault:
            case "pass":
                return self._passed(path, headers, body)
            case ("status", int(status), dict(extra)):
                code, plain, content = _json(status, error_body("try later", extra.pop("code", None)))
                return code, plain | extra, content
            case "cut":
                status, plain, content = self._passed(path, headers, body)
                return status, plain, content + b"CUT"
            case "cut at once":
                return None
            case "garbage":
                return 200, {"Content-Type": "application/json"}, b'{"choices": [{"mess'
            case "page":
                return 200, {"Content-Type": "text/html"}, b"<html>Welcome to the hotel's network</html>"
            case "not a completion":
                return _json(200, {"object": "list", "data": []})
            case ("slow", float(seconds)):
                time.sleep(seconds)
                return self._passed(path, headers, body)
        raise AssertionError(f"no such fault: {fault}")

    def _passed(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        connection = http.client.HTTPConnection(self._host, timeout=30)
        try:
            kept = {name: value for name, value in headers.items() if name in ("authorization", "content-type")}
            connection.request("POST", path, body, kept)
            response = connection.getresponse()
            return response.status, {"Content-Type": response.headers["Content-Type"]}, response.read()
        finally:
            connection.close()


@contextmanager
def serving(app: Any) -> Iterator[Any]:
    """Runs the ChatServer or FaultProxy on a free port of 127.0.0.1 and sets its ``url``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body would wait 40 ms for the acknowledgement of its headers

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = app.reply(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            if reply is None:
                self.close_connection = True
                return
            status, headers, content = reply
            cut = content.endswith(b"CUT")
            content = content.removesuffix(b"CUT")
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if cut else content)
            except OSError:
                cut = True  # the client gave up waiting
            self.close_connection |= cut

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with listening(Handler) as app.url:
        yield app


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serves on a free port of 127.0.0.1, one thread per request; the address of its API."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _json(status: int, body: dict[str, Any]) -> Reply:
    return status, {"Content-Type": "application/json"}, json.dumps(body).encode()
