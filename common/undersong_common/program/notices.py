"""Notices to people that something waits for them, sent to a command or an HTTP address of theirs.

A notice names the program, the event, the run or the certificate, and the time. It never holds a text, a count of
records or a budget.
"""

import json
import logging
import queue
import shlex
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from undersong_common.errors import ConfigurationError

log = logging.getLogger(__name__)

EVENTS = ("request-waits", "run-ended", "certificate-expires", "budget-low", "data-stopped", "test")
RETRY_S = (0.0, 5.0, 30.0, 120.0)  # pause before each attempt
ATTEMPT_S = 10.0
EXPIRES_SOON_S = 14 * 86400.0  # time left to a certificate from which its owner gets a notice
LOCAL = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Notice:
    """A notice about one event, as it is sent to people.

    Attributes:
        event: one of ``EVENTS``.
        name: name of the party or coordinator whose program sends it.
        about: name of the run or owner of the certificate that it concerns; "" if it concerns the party itself.
        at_s: seconds since the epoch.
    """

    event: str
    name: str
    about: str
    at_s: float

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode("ascii")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it might lead to any host, and its answer is an HTTPError."""

    def redirect_request(self, *_: Any) -> None:
        return None


def opener_for(address: str) -> urllib.request.OpenerDirector:
    """Returns an opener for an HTTP address: it follows no redirect and, for this machine, uses no proxy."""
    is_local = urlsplit(address).hostname in LOCAL
    if is_local:
        proxies = [urllib.request.ProxyHandler({})]
    else:
        proxies = []
    return urllib.request.build_opener(_NoRedirects, *proxies)


def check_target(target: str) -> None:
    """Raises ConfigurationError for another machine's address without TLS, and for a malformed target."""
    try:
        command_words = shlex.split(target)
    except ValueError:
        command_words = []
    if not command_words:
        raise ConfigurationError(
            f"the notice's command {target!r} is empty, or a quote in it is not closed",
            "write a command or an address",
            code="notice-target",
        )
    scheme, is_address, _ = command_words[0].partition("://")
    if is_address and scheme not in ("https", "http"):
        remedy = "write the address with https://, in small letters"
        raise ConfigurationError(f"{target}: is no address that a notice can go to", remedy, code="notice-target")
    if scheme == "http" and is_address and urlsplit(command_words[0]).hostname not in LOCAL:
        raise ConfigurationError(
            f"{target}: notices would go unencrypted to another machine", "use https", code="notice-target"
        )
    if is_address and target != command_words[0]:
        remedy = "write the address alone, without spaces or quotes around it"
        raise ConfigurationError(f"{target}: holds more than an address", remedy, code="notice-target")


def describe_target(target: str, name: str, *, test: bool) -> tuple[dict[str, Any], str, bool]:
    """Describes where notices go, as JSON and in words. With ``test`` it sends a test notice to that target.

    The third value is False if the test notice did not arrive.
    """
    if not test:
        return {"notify": target}, f"told: {target or 'nobody'}", True
    has_arrived = bool(target) and deliver(target, Notice("test", name, "", time.time()), wait=lambda _s: None)
    notice_words = f"told: {target or 'nobody'}; it {'arrived' if has_arrived else 'did NOT arrive'}"
    return {"notify": target, "arrived": has_arrived}, notice_words, has_arrived


def deliver(target: str, notice: Notice, wait: Callable[[float], object] = time.sleep) -> bool:
    """Sends a notice to ``target``: posts it to an address, or runs a command with it on standard input.

    It tries again after each pause of ``RETRY_S``, in seconds. Returns True if an attempt succeeded.
    """
    for pause_s in RETRY_S:
        wait(pause_s)
        try:
            _deliver_once(target, notice.to_json())
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            log.warning("the notice %s was not delivered: %s", notice.event, type(error).__name__)
        else:
            return True
    return False


class Notices:
    """Sends notices to one target in order, from a thread of its own so that no caller waits.

    Nothing is sent if the target is "".
    """

    def __init__(self, target: str, name: str, clock: Callable[[], float] = time.time) -> None:
        self._target = target
        self._name = name
        self._clock = clock
        self._queued_events: set[tuple[str, str]] = set()
        self._queue: queue.SimpleQueue[Notice] = queue.SimpleQueue()
        if target:
            threading.Thread(target=self._deliver_queue, name="notices", daemon=True).start()

    def tell(self, event: str, subject: str = "", *, about: str = "") -> None:
        """Queues a notice of an event, once for each event and subject while this program runs."""
        if self._target and (event, subject) not in self._queued_events:
            self._queued_events.add((event, subject))
            self._queue.put(Notice(event, self._name, about, self._clock()))

    def _deliver_queue(self) -> None:
        while True:
            deliver(self._target, self._queue.get())


def _deliver_once(target: str, body: bytes) -> None:
    if target.startswith(("https://", "http://")):
        request = urllib.request.Request(target, body, {"Content-Type": "application/json"})  # noqa: S310 - checked
        with opener_for(target).open(request, timeout=ATTEMPT_S):
            return
    subprocess.run(  # noqa: S603 - the command of this machine's own people
        shlex.split(target),
        input=body,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=ATTEMPT_S,
        check=True,
    )
