"""Checks each request before the application: Host header, session's address, size of the body. Adds safe headers."""

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import HTTPException
from fastapi.responses import PlainTextResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.ext import Extension
from jinja2.runtime import Context
from markupsafe import Markup, escape
from starlette.datastructures import QueryParams
from uvicorn.protocols.http.h11_impl import H11Protocol

from undersong_common.pages.store import Grade, new_key
from undersong_common.printable import duration, noun, number, page_words, printable, printable_lines

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

LARGEST_BODY_BYTES, LARGEST_OPEN_BODY_BYTES = 8 * 2**20, 2**16  # Addresses of a session have the first limit.
TOO_LARGE = "What was sent is too large."
REPORTS = "/csp-report"  # Browsers report there what the policy stopped.
INSIDE = re.compile(r"/s/([A-Za-z0-9_-]{43})(/.*)", re.DOTALL)  # the half of a session's secret that is no cookie
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'; report-uri /csp-report"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # "no-referrer" would send forms with the origin "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class Frame:
    """Wraps an ASGI application: refuses wrong Host headers and large bodies, and adds security headers to each answer.

    A page must not be reached under another name, because an attacker's name may lead to this machine (DNS rebinding).
    A path that begins with a session's secret reaches the application without it; ``scope["tab"]`` holds that secret.

    Args:
        hosts: values of the Host header that are answered, each with its port.
        tls: True tells browsers to come back over TLS only.
    """

    def __init__(self, application: Application, hosts: Sequence[str], *, tls: bool) -> None:
        self._application = application
        self._hosts = frozenset(host.lower() for host in hosts)
        self._headers = dict(HEADERS)
        if tls:
            self._headers["strict-transport-security"] = "max-age=31536000"

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        host_headers = [
            header_value.decode("latin-1") for header_name, header_value in scope["headers"] if header_name == b"host"
        ]
        content_length = next(
            (header_value for header_name, header_value in scope["headers"] if header_name == b"content-length"), b"0"
        )
        if len(host_headers) != 1 or host_headers[0].lower() not in self._hosts:
            log.warning("refused a request for the host %s", printable(", ".join(host_headers), 100))
            misdirected_answer = PlainTextResponse("This page is not served under that name.\n", 421, self._headers)
            await misdirected_answer(scope, receive, send)
            return
        if session_path := INSIDE.fullmatch(scope["path"]):
            scope = {**scope, "tab": session_path[1], "path": session_path[2]}
        # Reports, and forms outside a session, are read before the sender is known. Anybody can invent a session's
        # address, so that reports have the lower limit there too.
        if session_path and session_path[2] != REPORTS:
            largest_body_bytes = LARGEST_BODY_BYTES
        else:
            largest_body_bytes = LARGEST_OPEN_BODY_BYTES
        if not content_length.isdigit() or int(content_length) > largest_body_bytes:
            await PlainTextResponse(f"{TOO_LARGE}\n", 413, self._headers)(scope, receive, send)
            return
        received_bytes = 0

        async def receive_bounded() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > largest_body_bytes:
                raise HTTPException(413, TOO_LARGE)
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer_headers = {header_name for header_name, _ in message["headers"]}
                added_headers = [
                    (header_name.encode(), header_value.encode()) for header_name, header_value in self._headers.items()
                ]
                message["headers"] = [
                    *message["headers"],
                    *(header for header in added_headers if header[0] not in answer_headers),
                ]
            await send(message)

        await self._application(scope, receive_bounded, send_with_headers)


PATIENCE_S = 30.0  # longest time in which a request arrives whole, or a browser reads what was written
MOST_CONNECTIONS = 300  # One more closes the connection that has waited longest for its browser.
MOST_AT_WORK = 400  # One more request is answered with 503.


class BrowserConnection(H11Protocol):  # type: ignore[misc]  # uvicorn is untyped here
    """One browser's connection, which is closed if the browser is too slow to send a request or read an answer.

    Beyond ``MOST_CONNECTIONS`` the one that has waited longest is closed. Bytes that trickle in extend no time limit.
    """

    _end_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_waiting()
        if (excess_connections := len(self.connections) - MOST_CONNECTIONS) > 0:
            waiting_connections = sorted(
                (connection for connection in self.connections if connection.waiting),
                key=lambda connection: connection.since,
            )
            for connection in waiting_connections[:excess_connections]:
                connection.transport.abort()

    def on_response_complete(self) -> None:
        self._start_waiting()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def waiting(self) -> bool:
        """True while the server waits for the browser to send a request or its rest, or to read an answer."""
        return self.flow.write_paused or self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _start_waiting(self) -> None:
        self._stop_waiting()
        self.since = self.loop.time()
        self._end_timer = self.loop.call_later(PATIENCE_S, self._end_if_waiting)

    def _stop_waiting(self) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()

    def _end_if_waiting(self) -> None:
        if self.waiting:
            self.transport.abort()


# The functions below make templates that escape every shown value and make invisible characters visible.

LONGEST = 2_000  # characters of one shown value
COMMAND = re.compile(r"`?(undersong(?:-party)? [^`;]*)`?")


class _Inside(Extension):
    """Puts every link and form of a template under the session's address, the variable ``base``."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return re.sub(r'\b(href|(?:form)?action)="/(?!assets/)', r'\1="{{ base }}/', source)


def environment(packages: Sequence[str], actions: Mapping[str, tuple[str, str]] = MappingProxyType({})) -> Environment:
    """Returns the Jinja environment of a page: the templates of ``packages``, then the shared ones.

    Each value shown passes :func:`undersong_common.printable.printable` and is escaped. ``|exact`` only escapes (for
    values of forms); ``|lines`` keeps line breaks, and so does ``|said`` of an error's words.

    Args:
        packages: modules with a folder ``templates``.
        actions: (address, words) of the page's action, by the shell command that does the same. Remedies on screens
            then name the action in place of the command. An address "" means an action of the same screen.
    """
    template_environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "undersong_common.pages")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible_value,
        extensions=[_Inside],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template_environment.filters |= {
        "exact": _escape_exactly(str),
        "commands": _replace_commands,
        "sentence": _escape_exactly(_begin_sentence),
        "said": _escape_exactly(lambda text: _visible_lines(page_words(str(text)))),
        "lines": _escape_exactly(_visible_lines),
        "path": lambda text: Markup(quote(str(text), safe="")),  # noqa: S704 - quoted
        "when": when,
        "number": _escape_exactly(number),
        "plural": _escape_exactly(plural),
        # A number stays beside its unit.
        "duration": _escape_exactly(
            lambda seconds: duration(seconds).replace(" min", "\xa0min").replace(" s", "\xa0s")
        ),
    }
    template_environment.globals |= {
        "actions": actions,
        "action_key": new_key,
        "box_class": box_class,
        "query": _changed_query,
        "infinity": math.inf,
    }
    return template_environment


# Words that begin a sentence and that no hospital, run or file is called.
_FIRST_WORDS = frozenset(
    {"a", "an", "it", "no", "nobody", "not", "nothing", "some", "the", "there", "this", "what", "your"}
)


def _begin_sentence(text: str) -> str:
    """Returns an error's words with a capital letter, unless they may begin with a name, which keeps its letters."""
    shown_text = _visible_lines(page_words(str(text)))
    if shown_text.partition(" ")[0] in _FIRST_WORDS:
        return shown_text[:1].upper() + shown_text[1:]
    return shown_text


def _escape_exactly(make_words: Callable[..., str]) -> Callable[..., Markup]:
    """Returns a template filter that only escapes what ``make_words`` returns; its narrow spaces, for example, stay."""
    return lambda *arguments: Markup(escape(make_words(*arguments)))  # noqa: S704 - escaped


@pass_context
def _replace_commands(context: Context, text: Any) -> Markup:
    """Returns a remedy with the page's own actions in place of commands; without actions, with commands as typed.

    A clause that names a command that the page has no action for keeps what stands before the colon, or is left out.
    """
    if not (actions := context["actions"]):
        return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(_visible_value(str(text))))))  # noqa: S704 - escaped
    page_clauses = []
    for clause in page_words(str(text)).split("; "):
        text_before, command = [*COMMAND.split(clause, maxsplit=1), ""][:2]  # "" of a clause without a command
        page_action = next(
            (action for typed_command, action in actions.items() if command.startswith(typed_command)), None
        )
        clause_html = escape(_visible_value(text_before))
        if command and page_action is None:
            clause_html = escape(_visible_value(text_before.rpartition(":")[0].removesuffix(", then")))
        elif page_action is not None:
            if page_action[0]:
                action_html = '<a href="{0}{1}">{2}</a>'
            else:
                action_html = "<strong>{2}</strong>"
            clause_html += Markup(action_html).format(context["base"], *page_action)  # noqa: S704 - format escapes
        page_clauses += [clause_html] * bool(clause_html)
    return Markup("; ").join(page_clauses)


_BOX_CLASSES: Mapping[Grade, str] = {
    "done": "notice done",
    "news": "notice",
    "warn": "notice warn",
    "bad": "problem",
}


def box_class(grade: Grade) -> str:
    """Returns the HTML class of a box, whose colour follows the grade of what it says."""
    return _BOX_CLASSES[grade]


def _visible_value(value: Any) -> Any:
    if type(value) is str:
        return _restore_thousands(printable(value, LONGEST))
    return value


_ESCAPED_THOUSANDS = re.compile(r"(?<=[0-9])\\u202f(?=[0-9]{3})")


def _restore_thousands(text: str) -> str:
    """Returns printable words with the narrow space of :func:`number` in place of its escape."""
    return _ESCAPED_THOUSANDS.sub("\u202f", text)


def _visible_lines(text: object) -> str:
    return _restore_thousands(printable_lines(str(text)))


def when(seconds: float | None, nothing: str = "never") -> Markup:
    """Returns HTML for a time in UTC, which the page's script turns into the reader's zone; ``nothing`` for None."""
    if not seconds:
        return Markup("{}").format(nothing)
    utc_time = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        utc_time.isoformat(timespec="seconds").replace("+00:00", "Z"), utc_time.strftime("%Y-%m-%d %H:%M:%S")
    )


def plural(count: int, one: str, many: str = "") -> str:
    """Returns a count with its noun.

    >>> plural(1, "party", "parties"), plural(0, "run")
    ('1 party', '0 runs')
    """
    return f"{number(count)} {noun(count, one, many)}"


def _changed_query(current_query: Any, **changes: Any) -> Markup:
    """Returns an address's query with some values changed, so that other filters of a list stay as they are."""
    if isinstance(current_query, QueryParams):
        current_pairs = current_query.multi_items()
    else:
        current_pairs = dict(current_query).items()
    remaining_pairs = [
        (query_key, query_value) for query_key, query_value in current_pairs if query_key not in (*changes, "part")
    ]
    changed_pairs = [
        (query_key, query_value) for query_key, query_value in changes.items() if query_value not in (None, "")
    ]
    return Markup(escape("?" + urlencode([*remaining_pairs, *changed_pairs])))  # noqa: S704 - escaped
