"""A fake OpenAI-compatible endpoint on 127.0.0.1 that misbehaves in one way: ``with Endpoint("balance") as it``.

It counts its calls, the tokens that it would have billed, and the orders that it was asked twice. An own scenario is a
function of the call's number and body.
"""

import json
import random
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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


def after(good, then):
    """Answers the first calls well, and the others by `then`."""
    return lambda number, body: answer(number) if number <= good else then


def flagged(number, body):
    if 'of the category \\"injury' in json.dumps(body["messages"]):
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
    """Five answers in each 20 s; the pause stands in the body only."""

    def __init__(self):
        self.begun = self.given = 0

    def __call__(self, number, body):
        now = time.monotonic()
        if now - self.begun > 20:
            self.begun, self.given = now, 0
        self.given += 1
        if self.given <= 5:
            return answer(number)
        left = 20 - (now - self.begun)
        return error(
            429,
            [
                {
                    "error": {
                        "code": 429,
                        "message": f"You exceeded your current quota. Please retry in {left:.3f}s.",
                        "status": "RESOURCE_EXHAUSTED",
                        "details": [
                            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{left:.0f}s"}
                        ],
                    }
                }
            ],
        )


EVENTS = 'data: {"choices":[{"index":0,"delta":{"content":"a note"}}]}\n\ndata: [DONE]\n\n'
SCENARIOS = {
    "well": lambda number, body: answer(number),
    "balance": after(16, error(402, {"error": {"message": "Insufficient Balance", "code": "invalid_request_error"}})),
    "billing": after(
        16,
        error(400, {"error": {"message": "Billing hard limit has been reached", "code": "billing_hard_limit_reached"}}),
    ),
    "key-revoked": after(16, error(403, {"error": {"message": "this key has been revoked"}})),
    "parameter": after(
        16, error(422, {"detail": [{"loc": ["body", "max_tokens"], "msg": "extra fields not permitted"}]})
    ),
    "balance-in-200": after(16, (200, {}, {"error": {"message": "Insufficient credits", "code": 402}})),
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
    "trickle": "trickle",
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
    def __init__(self, scenario, port=0):
        self.scenario = SCENARIOS[scenario] if isinstance(scenario, str) else scenario
        self.calls = self.billed = self.twice = 0
        self.bodies, self.files, self.batches, self.lock = {}, {}, {}, threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

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

        self.server = Server(("127.0.0.1", port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def _serve(self, handler, raw):
        batched = isinstance(self.scenario, dict)
        if "completions" in handler.path:
            body = json.loads(raw)
            key = json.dumps(body.get("messages", body.get("prompt")))
            with self.lock:
                self.calls += 1
                number = self.calls
                self.twice += key in self.bodies
                self.bodies[key] = number
            if self.scenario == "trickle":
                return self._trickle(handler)
            status, headers, found = answer(number) if batched else self.scenario(number, body)
            if status == 200 and isinstance(found, dict) and "choices" in found:
                self.billed += sum(max(0, v) for k, v in (found.get("usage") or {}).items() if k == "total_tokens")
        else:
            status, headers, found = self._batch(handler.command, handler.path, raw)
        content = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        try:
            content = content.encode()
        except UnicodeEncodeError:  # half a surrogate pair
            content = json.dumps(found).encode()
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(content))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

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
        if bad and rule["status"] == "failed":
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
            with self.lock:
                self.calls += 1
                key = json.dumps(line["body"].get("messages"))
                self.twice += key in self.bodies
                self.bodies[key] = self.calls
                text = note(self.calls)
            whole = {
                **own,
                "response": {"status_code": 200, "request_id": "x", "body": completion(f"<text>{text}</text>")},
                "error": None,
            }
            if bad:
                err.append(
                    json.dumps(
                        {**own, "response": None, "error": {"code": "batch_expired", "message": "the window has ended"}}
                    )
                )
            elif number == 1 and place == 2 and "line" in rule:
                if rule["line"] == "no-id":
                    out.append(json.dumps({key: value for key, value in whole.items() if key != "custom_id"}))
                elif rule["line"] == "cut":
                    out.append('{"custom_id": "abc", "respon')
                else:
                    err.append(json.dumps({**own, "error": None, **rule["line"]}))
            else:
                out.append(json.dumps(whole))
        name = batch["id"]
        self.files[f"out-{name}"], self.files[f"err-{name}"] = out, err
        batch.update(
            status=rule["status"] if bad else "completed",
            output_file_id=f"out-{name}" if out else None,
            error_file_id=f"err-{name}" if err else None,
        )
