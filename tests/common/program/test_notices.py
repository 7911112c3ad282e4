"""Notices reach a command or an address, again after a failure, and hold nothing private."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError
from undersong_common.program.notices import RETRY_S, Notice, Notices, check_target, deliver

NOTICE = Notice("request-waits", "alpha", "first", 12.0)
SAID = {"event": "request-waits", "name": "alpha", "about": "first", "at_s": 12.0}


@pytest.fixture
def address():
    """A server that fails twice, and what it was told."""
    told: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(503 if len(told) < 3 else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", told
        server.shutdown()


def test_notice_is_posted_again_until_its_address_takes_it(address):
    url, told = address
    waited: list[float] = []
    assert deliver(url, NOTICE, waited.append)
    assert [json.loads(body) for body in told] == [SAID] * 3
    assert waited == list(RETRY_S[:3])


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_notice_follows_no_redirect_and_counts_as_undelivered(code):
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(code if self.path == "/" else 204)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            paths.append(self.path)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert not deliver(f"http://127.0.0.1:{server.server_port}/", NOTICE, lambda _seconds: None)
        server.shutdown()
    assert set(paths) == {"/"}


def test_notice_command_gets_the_notice_on_standard_input(tmp_path):
    assert deliver(f"tee '{tmp_path}/a file'", NOTICE)
    assert json.loads((tmp_path / "a file").read_text()) == SAID
    waited: list[float] = []
    assert not deliver("false", NOTICE, waited.append)
    assert waited == list(RETRY_S)


def test_repeated_event_sends_one_notice(tmp_path):
    said = tmp_path / "said"
    notices = Notices(f"tee -a {said}", "alpha", clock=lambda: 12.0)
    for _ in range(3):
        notices.tell("request-waits", "ab", about="first")
    notices.tell("run-ended", "ab", about="first")
    ended = threading.Event()
    for _ in range(500):
        if said.exists() and b"run-ended" in said.read_bytes():
            break
        ended.wait(0.02)
    assert said.read_text().count("request-waits") == 1
    assert said.read_text().count("run-ended") == 1


NO_TARGETS = (
    *("http://example.org/hook", "HTTP://example.org/hook", " http://example.org/hook", "'http://example.org/hook'"),
    *("http://localhost@example.org/", "http://127.0.0.1.example.org/", "http://localhost:1\\@example.org/"),
    *("ftp://example.org/hook", "file:///etc/passwd", "https://example.org/hook and more"),
    *("", " ", "'unclosed"),
)
TARGETS = (
    *("https://example.org/hook", "http://[::1]:80/hook", "http://localhost/hook", "http://127.0.0.1:8080/"),
    *("mail -s 'a request waits' officer@example.org", "curl -T - https://example.org/hook"),
)


@pytest.mark.parametrize("target", TARGETS)
def test_notice_target_may_be_https_this_machine_or_a_command(target):
    check_target(target)


@pytest.mark.parametrize("target", NO_TARGETS)
def test_notice_target_in_clear_or_unreadable_is_refused(target):
    with raises(ConfigurationError, "notice-target"):
        check_target(target)
