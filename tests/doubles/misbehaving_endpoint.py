"""A fake OpenAI-compatible endpoint on 127.0.0.1 that misbehaves in one way: ``with Endpoint("balance") as it``.

It counts its calls, the tokens that it would have billed, the prompts that it was asked twice, and those of them that
it had answered before. An own scenario is a function of the call's number and body; it serves lines of batches alike.
"""

import json
import random
import re
import threading
import time
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

THINGS = (
    *("crushing chest pain", "wheezing since Monday", "pain right lower belly", "a swollen wrist", "fever and rigors"),
    *("slurred speech", "palpitations", "a dog bite", "a red hot leg", "a first seizure", "burning after supper"),
    *("green sputum", "dizzy on standing", "a cut thumb", "back pain at night"),
)
WAYS = (
    *("came by ambulance", "walked in alone", "brought by a neighbour", "sent by the pharmacy", "referred by phone"),
    *("carried by his sons", "dropped off by taxi", "known to the ward"),
)


def note(number):
    """One invented note, different for each number."""
    r = random.Random(number)
    person = f"{r.randint(18, 95)}{r.choice('MF')} with {r.choice(THINGS)}, {r.choice(WAYS)}"
    return f"{person}, bed {number}, pulse {r.randint(50, 150)}, seen after {r.randint(2, 90)} minutes."


def completion(text, reason="stop", usage=(40, 20), **further):
    found = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}],
        **further,
    }
    if usage is not None:
        found["usage"] = (
            usage
            if isinstance(usage, dict)
            else {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
        )
    return found


def answer(number, **further):
    return 200, {}, completion(f"<text>{note(number)}</text>", **further)


def error(status, body, **headers):
    return status, headers, body


@dataclass(frozen=True)
class After:
    """Answers the first calls well, and the others by ``then``: a status, headers and body, or another scenario."""

    good: int
    then: object

    def __call__(self, number, body):
        if number <= self.good:
            return answer(number)
        return self.then(number, body) if callable(self.then) else self.then


def beginning(scenario, good):
    """The scenario with its fault after so many good calls, or good batches."""
    rule = SCENARIOS[scenario]
    if isinstance(rule, dict):
        return {**rule, "from": good + 1}
    return replace(rule, good=good) if isinstance(rule, After) else After(good, rule)


def asks_for_injury(body):
    return 'of the category \\"injury' in json.dumps(body["messages"])


def flagged(number, body):
    if asks_for_injury(body):
        return error(
            403,
            {
                "error": {
                    "message": "the input was flagged for violence by the model's moderation",
                    "code": 403,
                    "metadata": {"reasons": ["violence"]},
                }
            },
        )
    return answer(number)


class Minute:
    """Five answers in each window of time; the pause stands in the body only."""

    def __init__(self, window_s=20.0):
        self.window_s = window_s
        self.begun = self.given = 0

    def __call__(self, number, body):
        now = time.monotonic()
        if now - self.begun > self.window_s:
            self.begun, self.given = now, 0
        self.given += 1
        if self.given <= 5:
            return answer(number)
        left = self.window_s - (now - self.begun)
        return error(
            429,
            [
                {
                    "error": {
                        "code": 429,
                        "message": f"You exceeded your current quota. Please retry in {left:.3f}s.",
                        "status": "RESOURCE_EXHAUSTED",
                        "details": [
                            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{left:.2f}s"}
                        ],
                    }
                }
            ],
        )


EVENTS = 'data: {"choices":[{"index":0,"delta":{"content":"a note"}}]}\n\ndata: [DONE]\n\n'
TRICKLE = b"a byte each 0.3 s, for ever"
SCENARIOS: dict[str, Any] = {
    "well": lambda number, body: answer(number),
    "balance": After(16, error(402, {"error": {"message": "Insufficient Balance", "code": "invalid_request_error"}})),
    "billing": After(
        16,
        error(400, {"error": {"message": "Billing hard limit has been reached", "code": "billing_hard_limit_reached"}}),
    ),
    "key-revoked": After(16, error(403, {"error": {"message": "this key has been revoked"}})),
    "parameter": After(
        16, error(422, {"detail": [{"loc": ["body", "max_tokens"], "msg": "extra fields not permitted"}]})
    ),
    "balance-in-200": After(16, (200, {}, {"error": {"message": "Insufficient credits", "code": 402}})),
    "moderation": flagged,
    "reasoning-beside": lambda number, body: answer(
        number,
        usage={
            "prompt_tokens": 300,
            "completion_tokens": 60,
            "total_tokens": 2360,
            "completion_tokens_details": {"reasoning_tokens": 2000},
        },
    ),
    "usage-zero": lambda number, body: answer(number, usage=(0, 0)),
    "usage-negative": lambda number, body: answer(number, usage=(40, -500)),
    "usage-huge": lambda number, body: answer(number, usage={"prompt_tokens": 40, "completion_tokens": 10**30}),
    "events": lambda number, body: (200, {"Content-Type": "text/event-stream"}, EVENTS),
    "pause-in-body": Minute(),
    "latin-1-header": lambda number, body: (
        200,
        {"Content-Type": "application/json;charset=ISO-8859-1"},
        completion(f"<text>männlich, {note(number)}</text>"),
    ),
    "mark": lambda number, body: (
        200,
        {"Content-Type": "application/json"},
        "\ufeff" + json.dumps(completion(f"<text>{note(number)}</text>")),
    ),
    "gemini-key": lambda number, body: error(
        400, [{"error": {"code": 400, "message": "API key not valid", "status": "INVALID_ARGUMENT"}}]
    ),
    "error-string": lambda number, body: error(422, {"error": "inputs and new tokens must be at most 1024"}),
    "error-raw": lambda number, body: error(
        400,
        {
            "error": {
                "message": "Provider returned error",
                "metadata": {"raw": '{"error": "max_tokens must be at most 256"}'},
            }
        },
    ),
    # Further vendors
    "anthropic-credit": After(
        16,
        error(
            400,
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to use the API."},
            },
        ),
    ),
    "minimax-balance": After(
        16, (200, {}, {"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}})
    ),
    "llama-context": After(16, error(400, {"error": {"message": "the request exceeds the available context size"}})),
    "ndjson": After(16, (200, {}, '{"message":{"content":"54M"},"done":false}\n{"done":true}\n')),
    "page": After(16, (200, {"Content-Type": "text/html"}, "<html><title>Sign in to the network</title></html>")),
    "brotli": After(16, (200, {"Content-Encoding": "br"}, "not compressed at all")),
    "tool-calls": After(16, (200, {}, completion(None, "tool_calls"))),
    "gemini-safety": lambda number, body: (
        (200, {}, {"promptFeedback": {"blockReason": "SAFETY"}}) if asks_for_injury(body) else answer(number)
    ),
    "azure-filter": lambda number, body: (
        (200, {}, completion(None, "content_filter", usage=(40, 0))) if asks_for_injury(body) else answer(number)
    ),
    "usage-float": lambda number, body: answer(
        number, usage={"prompt_tokens": 40.5, "completion_tokens": "20", "total_tokens": 60}
    ),
    "trickle": lambda number, body: (200, {}, TRICKLE),
    # batches: what the n-th batch (from 1) or its third line becomes
    "batch-failed": {"from": 3, "status": "failed"},
    "batch-expired": {"from": 3, "status": "expired"},
    "batch-line-page": {"line": {"response": {"status_code": 502, "body": "<html>Bad gateway</html>"}}},
    "batch-line-string": {"line": {"response": None, "error": "Internal error"}},
    "batch-line-body-string": {"line": {"response": {"status_code": 400, "body": {"error": "inputs too long"}}}},
    "batch-line-no-id": {"line": "no-id"},
    "batch-line-cut": {"line": "cut"},
}


class Endpoint:
    """Serves a scenario on 127.0.0.1 while it is entered; ``respond`` alone needs no socket."""

    def __init__(self, scenario):
        self.scenario = SCENARIOS[scenario] if isinstance(scenario, str) else scenario
        self.calls = self.billed = self.twice = self.paid_twice = 0
        self.answered = set()
        self.bodies, self.files, self.batches, self.lock = {}, {}, {}, threading.Lock()

    def __enter__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # a body would wait 40 ms for the acknowledgement of its headers

            def log_message(self, *_):
                pass

            def do_POST(self):
                outer._serve(self, self.rfile.read(int(self.headers.get("content-length") or 0)))

            def do_GET(self):
                self.do_POST()

        class Server(ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 128

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def _serve(self, handler, raw):
        status, headers, content = self.respond(handler.command, handler.path, raw)
        if content == TRICKLE:
            return self._trickle(handler)
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(content))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    def respond(self, command, path, raw):
        """The status, headers and bytes of an answer; a test without sockets calls it too."""
        if "completions" in path:
            status, headers, found = self._call(json.loads(raw))
        else:
            status, headers, found = self._batch(command, path, raw)
        if isinstance(found, bytes):
            return status, headers, found
        content = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        try:
            return status, headers, content.encode()
        except UnicodeEncodeError:  # half a surrogate pair
            return status, headers, json.dumps(found).encode()

    def _call(self, body):
        """One request, by itself or as the line of a batch."""
        key = json.dumps(body.get("messages", body.get("prompt")))
        with self.lock:
            self.calls += 1
            number = self.calls
            self.twice += key in self.bodies
            self.paid_twice += key in self.answered
            self.bodies[key] = number
        status, headers, found = self.scenario(number, body) if callable(self.scenario) else answer(number)
        if status == 200 and isinstance(found, dict) and found.get("choices"):
            with self.lock:
                if any((choice.get("message") or {}).get("content") for choice in found["choices"]):
                    self.answered.add(key)
                usage = found.get("usage")
                total = usage.get("total_tokens") if isinstance(usage, dict) else None
                self.billed += total if isinstance(total, int) and total > 0 else 0
        return status, headers, found

    def _trickle(self, handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"1\r\n\n\r\n")
                handler.wfile.flush()
                time.sleep(0.3)
        except OSError:
            handler.close_connection = True

    def _batch(self, command, path, raw):
        if path == "/v1/files" and command == "POST":
            name = f"file-{len(self.files)}"
            self.files[name] = re.search(rb"\r\n\r\n(\{.*\})\r?\n", raw, re.S)[1].decode().split("\n")
            return (
                200,
                {},
                {"id": name, "object": "file", "bytes": 1, "created_at": 1, "filename": "r", "purpose": "batch"},
            )
        if path == "/v1/batches" and command == "POST":
            given = json.loads(raw)
            name = f"batch-{len(self.batches) + 1}"
            self.batches[name] = {
                "id": name,
                "object": "batch",
                "endpoint": given["endpoint"],
                "input_file_id": given["input_file_id"],
                "completion_window": "24h",
                "status": "validating",
                "created_at": 1,
                "metadata": given.get("metadata"),
            }
            self._end(len(self.batches), self.batches[name])
            return (
                200,
                {},
                {**self.batches[name], "status": "validating", "output_file_id": None, "error_file_id": None},
            )
        if path.startswith("/v1/batches/"):
            if isinstance(self.scenario, dict) and self.scenario.get("trickles", len(self.batches) + 1) <= len(
                self.batches
            ):
                return 200, {}, TRICKLE
            return 200, {}, self.batches[path.rsplit("/", 1)[1]]
        if path.startswith("/v1/batches"):
            return 200, {}, {"object": "list", "data": list(self.batches.values())[::-1], "has_more": False}
        if path.startswith("/v1/files/"):
            return 200, {"Content-Type": "application/octet-stream"}, "\n".join(self.files[path.split("/")[3]])
        return 404, {}, {"error": {"message": "no such path"}}

    def _end(self, number, batch):
        rule = self.scenario if isinstance(self.scenario, dict) else {}
        lines = [json.loads(line) for line in self.files[batch["input_file_id"]]]
        bad = number >= rule["from"] if "from" in rule else False
        if bad and rule.get("status") == "failed":
            message = "Enqueued token limit reached. Please try again once some batches have been completed."
            batch.update(
                status="failed",
                errors={
                    "object": "list",
                    "data": [{"code": "token_limit_exceeded", "message": message, "line": None, "param": None}],
                },
                output_file_id=None,
                error_file_id=None,
            )
            return
        out, err = [], []
        for place, line in enumerate(lines):
            own = {"id": f"r{place}", "custom_id": line["custom_id"]}
            if bad and "status" in rule:
                expired = {"code": "batch_expired", "message": "the window has ended"}
                err.append(json.dumps({**own, "response": None, "error": expired}))
                continue
            status, _, body = self._call(line["body"])
            whole = {**own, "response": {"status_code": status, "request_id": "x", "body": body}, "error": None}
            if number != rule.get("from", 1) or place != 2 or "line" not in rule:
                (out if status == 200 else err).append(json.dumps(whole))
                continue
            self.answered.discard(json.dumps(line["body"].get("messages")))
            if rule["line"] == "no-id":
                out.append(json.dumps({key: value for key, value in whole.items() if key != "custom_id"}))
            elif rule["line"] == "cut":
                out.append('{"custom_id": "abc", "respon')
            else:
                err.append(json.dumps({**own, "error": None, **rule["line"]}))
        name = batch["id"]
        self.files[f"out-{name}"], self.files[f"err-{name}"] = out, err
        batch.update(
            status=rule.get("status", "completed") if bad else "completed",
            output_file_id=f"out-{name}" if out else None,
            error_file_id=f"err-{name}" if err else None,
        )
