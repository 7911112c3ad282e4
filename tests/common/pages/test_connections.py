"""Connections that ask nothing, or read nothing, keep nobody out."""

import contextlib
import socket
import threading
import time

import httpx
import pytest

from tests.doubles.loops import wait_for
from tests.doubles.pace import slow_after
from tests.doubles.served_page import ServedPage
from undersong_common.pages import frame
from undersong_common.pages.site import PageSettings, Site
from undersong_common.pages.stream import Pulse, PulseStream

pytestmark = pytest.mark.heavy

ASSET = b"GET /assets/0/htmx.min.js HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n\r\n"


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setattr(frame, "MOST_CONNECTIONS", 30)
    monkeypatch.setattr(frame, "MOST_AT_WORK", 40)

    def build(hosts, port):
        made = Site(
            PageSettings(
                title="Test page", hosts=hosts, port=port, tls=False, folder=tmp_path / "page", menu=(), packages=()
            )
        )
        PulseStream(made, lambda _topic: Pulse("1"))
        return made

    with ServedPage(build) as made:
        yield made


def connected(served, sent=b"", *, small=False):
    made = socket.socket()
    if small:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    made.connect(("127.0.0.1", served.port))
    made.sendall(sent)
    return made


def half(served):
    """Beginnings of requests, and requests whose answers nobody reads."""
    head = b"POST /login HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-length: 100\r\n\r\nname=" % served.port
    return {"silent": b"", "half a head": head[:30], "half a body": head, "unread": ASSET % served.port * 400}


def welcome(login):
    """True if the page answers. While the flood is still answered, this connection may be the oldest and is cut."""
    try:
        return httpx.get(login, timeout=20).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_after(["silent", "half a head", "half a body", "unread"], 3))
def test_idle_connections_beyond_the_limit_keep_no_browser_out(served, kind):
    sent = half(served)[kind]
    held = [connected(served, sent, small=kind == "unread") for _ in range(42)]
    try:
        login = f"{served.address}/login"
        # What was asked before is answered; a request that meets a full house meanwhile is told to try again.
        wait_for(lambda: all(welcome(login) for _ in range(3)), 20.0)
    finally:
        for each in held:
            each.close()


def test_an_idle_connection_ends_and_one_that_is_answered_goes_on(served, monkeypatch):
    monkeypatch.setattr(frame, "PATIENCE_S", 1.0)
    held = {kind: connected(served, sent, small=kind == "unread") for kind, sent in half(served).items()}
    beats = []
    served.site.accounts.set_role("ada", "administrator")
    secret = served.site.accounts.begin("ada", address="x")
    cookie, _, tab = secret.partition(".")

    def watch():
        headers = {"cookie": f"{served.site.settings.cookie}={cookie}"}
        with httpx.stream("GET", f"{served.address}/s/{tab}/stream", headers=headers, timeout=20) as answer:
            for line in answer.iter_lines():
                beats.append(line)
                if beats.count("event: pulse") == 4:
                    return

    watcher = threading.Thread(target=watch)
    watcher.start()
    trickling = connected(served)
    end = time.monotonic() + 20
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            trickling.sendall(b"x")
            time.sleep(0.1)
    assert time.monotonic() < end
    for kind, each in held.items():
        each.settimeout(20)
        received = b"."
        try:
            while received:
                received = each.recv(65536)
        except ConnectionResetError:
            received = b""
        assert received == b"", kind
    watcher.join(20)
    assert beats.count("event: pulse") == 4
