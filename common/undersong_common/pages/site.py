"""A page's web application: routes with log-in and roles, forms with CSRF protection, parts that fail separately."""

import hmac
import logging
import math
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.requests import Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from markupsafe import Markup

from undersong_common.errors import ConfigurationError, PrivacyRefusal, TransportError, UndersongError
from undersong_common.pages.accounts import Account, Accounts, Role, Session, TooManyAttempts
from undersong_common.pages.frame import LARGEST_BODY_BYTES, POLICY, Frame, box_class, environment
from undersong_common.pages.store import (
    FILE_NAME,
    AuditLog,
    Downloads,
    Grade,
    Message,
    PageStore,
    StillRunning,
)
from undersong_common.printable import is_number, printable, with_iso_times
from undersong_common.program import extras
from undersong_common.program.logs import place_of
from undersong_common.program.machine import PROGRAM_REMEDY, internal_error
from undersong_common.version import VERSION

log = logging.getLogger(__name__)

MOST_FIELDS = 2_000
MOST_FILES = 100  # largest number of file fields in one form, empty ones included
PAGE_ROWS = 50  # rows of a long list on one page
NEXT_STEP = "next_step"  # name of the part with which every screen ends
LIVE = "/live"  # end of the addresses of forms that are sent while somebody types
MOST_COOKIES = 8  # largest number of cookies of the session cookie's name that are tried
ASSETS = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
Part = Callable[[], Mapping[str, Any]]
Handler = Callable[["Visit"], Response]


@dataclass(frozen=True)
class PageSettings:
    """Settings of a page.

    Attributes:
        title: name of the page, shown on every screen.
        hosts: values of the Host header that are answered.
        port: port of the listening socket.
        tls: True if browsers reach the page over TLS.
        folder: folder for accounts, sessions and the audit log.
        menu: (address, name, least role) of each screen in the menu.
        packages: modules whose templates belong to this page.
        notice: sentence above every screen; "" for no sentence.
        actions: the argument of :func:`undersong_common.pages.frame.environment`.
        next_step: the one step that comes next for a visitor, which every screen ends with; None for a page without.
        fault_remedy: what a person does about a fault in the program.
    """

    title: str
    hosts: tuple[str, ...]
    port: int
    tls: bool
    folder: Path
    menu: tuple[tuple[str, str, Role], ...]
    packages: tuple[str, ...]
    notice: str = ""
    actions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    next_step: Callable[["Visit"], "NextStep"] | None = None
    fault_remedy: str = PROGRAM_REMEDY

    @property
    def cookie(self) -> str:
        """Name of the session's cookie; it holds the port, because browsers share cookies among the ports of a host."""
        return f"{'__Host-' if self.tls else ''}undersong_{self.port}"


@dataclass(frozen=True)
class NextStep:
    """The step that a person takes next.

    Attributes:
        words: the step as an order.
        address: address of the screen for it; "" if it is this screen, or none.
        other: a step that may be taken instead; None if there is none.
    """

    words: str
    address: str = ""
    other: "NextStep | None" = None


class Forbidden(PrivacyRefusal):
    """A request that was forged, or for which the person's role is too low."""


@dataclass
class Visit:
    """One request, after log-in and role have been checked, with methods that make its answer.

    Attributes:
        person: account of the sender.
        session: session of the sender; None for a script with a token.
        path: variable parts of the request's path, by name.
        form: maps each text field of the form to its last value.
        lists: maps each text field of the form to all its values.
        files: contents of the files sent, by field name; ``file_names`` says how their sender calls them.
    """

    site: "Site"
    request: Request
    person: Account
    session: Session | None
    path: Mapping[str, str]
    form: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    file_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def identities(self) -> tuple[str, ...]:
        """Identities of the sender (:attr:`Session.identities`); of a script's token, those of its account."""
        if self.session is None:
            return (self.person.name,)
        return self.session.identities

    @property
    def query(self) -> Mapping[str, str]:
        return dict(self.request.query_params)

    @property
    def page_number(self) -> int:
        """Number (from 1) of the page of a long list that the query asks for; 1 without a query."""
        page_text = self.query.get("page", "1")
        return max(1, int(page_text)) if is_number(page_text) else 1

    def listed(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Returns the fields of a template for one page of a long list: the page that the query asks for, or the last.

        ``rows`` holds the page's rows, ``page`` its number from 1, ``of`` the number of pages, and ``all`` the number
        of rows on all pages.
        """
        page_count = max(1, math.ceil(len(rows) / PAGE_ROWS))
        page = min(self.page_number, page_count)
        return {
            "rows": rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS],
            "page": page,
            "of": page_count,
            "all": len(rows),
        }

    def page(
        self, title: str, parts: Mapping[str, Part], *, template: str = "page.html.j2", **context: Any
    ) -> Response:
        """Renders a screen of several parts, or only the part that the query names.

        An error message takes the place of a part that fails; the other parts are shown. Raises ConfigurationError if
        the screen has no part of that name.
        """
        context = {**self._page_context(title), **context}
        part_name = self.query.get("part")
        if part_name == NEXT_STEP:
            return HTMLResponse(self._render_next_step(context))
        if part_name is not None:
            if part_name not in parts:  # The page's script would put a whole screen into the place of the part.
                raise ConfigurationError("this screen has no such part", "open the screen again", code="no-such-part")
            return HTMLResponse(self._render_part(part_name, parts[part_name], context))
        parts_html = {}
        for shown_name, load_part in parts.items():
            parts_html[shown_name] = Markup(self._render_part(shown_name, load_part, context))  # noqa: S704 - rendered
        step_html = self._render_next_step(context)
        return HTMLResponse(self.site.render(template, {**context, "parts": parts_html, NEXT_STEP: step_html}))

    def part(self, name: str, **context: Any) -> Response:
        """Renders one part of a screen by itself."""
        return HTMLResponse(self._render_part(name, lambda: context, self._page_context("")))

    def show(self, template: str, title: str, *, status: int = 200, **context: Any) -> Response:
        """Renders a screen from one template."""
        context = {**self._page_context(title), **context}
        step_html = self._render_next_step(context)
        return HTMLResponse(self.site.render(template, {**context, NEXT_STEP: step_html}), status_code=status)

    def _page_context(self, title: str) -> dict[str, Any]:
        message = None
        if "part" not in self.query:
            message = self.site.accounts.take_message(self.secret)
        return {
            "title": title,
            "base": self.base,
            "person": self.person,
            "csrf": "" if self.session is None else self.session.csrf,
            "address": self.request.url.path,
            "asked": self.request.query_params,
            "message": message,
        }

    def _render_next_step(self, context: Mapping[str, Any]) -> Markup:
        """Returns the HTML of the next step, which ends every screen; "" on a page without one and without log-in."""
        find_next_step = self.site.settings.next_step
        if find_next_step is None or self.session is None:
            return Markup("")
        step_html = self._render_part(NEXT_STEP, lambda: {"step": self._unlinked_here(find_next_step(self))}, context)
        return Markup(step_html)  # noqa: S704 - rendered

    def _unlinked_here(self, step: "NextStep") -> "NextStep":
        """Returns the step, without its link if that leads to the screen that is shown."""
        return replace(step, address="") if unquote(step.address) == unquote(self.request.url.path) else step

    def _render_part(self, name: str, load: Part, context: Mapping[str, Any]) -> str:
        try:
            # No field of a part takes the place of its name, by which the screen asks for it again.
            return self.site.render(f"parts/{name}.html.j2", {**context, **load(), "part": name})
        except UndersongError as error:
            fault_words = {"problem": error.problem, "remedy": error.remedy}
        except Exception as error:  # noqa: BLE001 - one part must not blank the others; its words may hold anything
            log.error("part %s failed: %s", name, place_of(error))
            part_fault = internal_error(error, self.site.settings.fault_remedy)
            fault_words = {"problem": part_fault.problem, "remedy": part_fault.remedy}
        return self.site.render("parts/failed.html.j2", {**context, "part": name, **fault_words})

    def go(self, location: str, message: str = "", grade: Grade = "done") -> str:
        """Returns ``location``, where an action sends the browser; ``message`` is shown there once.

        Args:
            grade: kind of the message, which colours its box (:func:`undersong_common.pages.frame.box_class`).
        """
        if message:
            self.site.accounts.leave_message(self.secret, Message(message, grade))
        return location

    def offer(self, name: str, data: bytes) -> str:
        """Keeps a file in memory for this person to fetch once; returns its key."""
        self.site.store.note_offer(name)
        return self.site.downloads.keep(self.person.name, name, data)

    def note(self, what: str, about: str = "") -> None:
        """Writes an entry to the audit log: this person did ``what``."""
        self.site.audit.note(self.person.name, what, about)

    def check_typed(self, name: str) -> None:
        """Raises ConfigurationError unless the person typed ``name``, to confirm an action that cannot be undone."""
        if self.form.get("typed", "").strip() != name:
            raise ConfigurationError(f"what you typed is not {name!r}", "type the name exactly")

    @property
    def base(self) -> str:
        """Prefix of every path in the address of this session's screens."""
        return session_base(self.secret)

    @property
    def secret(self) -> str:
        return self.site.secret(self.request)

    @property
    def source(self) -> str:
        return source_address(self.request)


class Site:
    """The web application of one page: log-in, sessions, static files, and the routes that are added to it."""

    def __init__(self, settings: PageSettings) -> None:
        self.settings = settings
        self.store = PageStore(settings.folder)
        self.accounts = Accounts(self.store)
        self.audit = AuditLog(settings.folder / FILE_NAME)
        self.downloads = Downloads()
        self.violations: list[str] = []
        self.ending = threading.Event()  # set when the program is asked to end
        self.entrances: list[tuple[str, str]] = []  # (address, words) of further ways to log in
        self._templates = environment(settings.packages, settings.actions)
        self._templates.globals |= {
            "site_title": settings.title,
            "site_notice": settings.notice,
            "menu": settings.menu,
            "version": VERSION,
            "entrances": self.entrances,
        }
        self._api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        self._api.add_exception_handler(
            404, lambda request, _error: self._answer_request(request, _nothing_here, "viewer")
        )
        self.entrance("/enter", "Enter by a link", self._enter_account)
        self.entrance("/login", "Log in", self._login)
        self.raw("/healthz", lambda: json_answer({"status": "ok"}))
        self._api.add_api_route("/csp-report", self._log_violation, methods=["POST"], response_model=None)
        self.raw("/assets/{version}/{name}", self._asset)
        self.routes(
            {
                "/account": lambda visit: visit.show("account.html.j2", "Your account"),
                "/download/{key}": self._download,
            },
            {"/logout": self._logout, "/account": self._set_password},
        )
        self.application = Frame(self._api, settings.hosts, tls=settings.tls)

    def close(self) -> None:
        self.store.close()

    def render(self, template: str, context: Mapping[str, Any]) -> str:
        return str(self._templates.get_template(template).render(**context))

    # These methods serve the routes.

    def get(self, path: str, handler: Handler, *, least: Role = "viewer") -> None:
        """Adds a screen for people with at least the role ``least``; ``handler`` runs in its own thread."""

        def endpoint(request: Request) -> Response:
            return self._answer_request(request, handler, least)

        self.raw(path, endpoint)

    def post(self, path: str, act: Callable[[Visit], str | Response], *, least: Role = "operator") -> None:
        """Adds an action for people with at least the role ``least``; ``act`` runs once per form, even if sent twice.

        ``act`` returns the address that the browser is sent to. If ``path`` ends with ``LIVE``, it may run repeatedly
        and returns a part of the screen.
        """

        async def endpoint(request: Request) -> Response:
            # This comes before the body is read, so that a stranger's body costs nothing.
            if await run_in_threadpool(self.who, request) is None:
                return self._to_login(request)
            form = await _read_form(request)

            def handler(visit: Visit) -> Response:
                visit.form, visit.lists, visit.files, visit.file_names = form
                self._check_form(visit)
                if path.endswith(LIVE):
                    return cast("Response", act(visit))
                form_scope = f"{visit.secret} {request.url.path}"
                location = self.store.once(visit.form.get("action", ""), lambda: cast("str", act(visit)), of=form_scope)
                if _wants_json(request):
                    return JSONResponse({"location": f"{visit.base}{location}"})
                return RedirectResponse(f"{visit.base}{location}", status_code=303)

            return await run_in_threadpool(self._answer_request, request, handler, least)

        self._api.add_api_route(path, endpoint, methods=["POST"], response_model=None)

    def routes(
        self,
        screens: Mapping[str, Handler],
        actions: Mapping[str, Callable[[Visit], str | Response]] = MappingProxyType({}),
        *,
        least: Role = "viewer",
    ) -> None:
        """Adds screens and actions by path as :meth:`get` and :meth:`post` do, all for the same least role."""
        for path, handler in screens.items():
            self.get(path, handler, least=least)
        for path, act in actions.items():
            self.post(path, act, least=least)

    def raw(self, path: str, endpoint: Callable[..., Any]) -> None:
        """Adds a GET route whose handler checks log-in and role itself (:meth:`who`)."""
        self._api.add_api_route(path, endpoint, methods=["GET"], response_model=None)

    def who(self, request: Request, *, active: bool = True) -> tuple[Account, Session | None] | None:
        """Returns the sender's account and session; None without log-in.

        A session is recognised by both halves of its secret. A script's token counts for GET only; its session is None.
        """
        header = request.headers.get("authorization", "")
        if header.startswith("Bearer ") and request.method == "GET":
            account = self.accounts.by_token(header.removeprefix("Bearer "))
            if account is None:
                return None
            return account, None
        session = self.accounts.session(self.secret(request), active=active)
        if session is None:
            return None
        return session.account, session

    def secret(self, request: Request) -> str:
        """Returns the secret of a request's session, joined from the half in the cookie and the half in the path."""
        path_half = request.scope.get("tab", "")
        cookie_prefix = f"{self.settings.cookie}="
        # Cookies know no ports: another port's page may have set one of the same name, with another path.
        cookie_pairs = (pair.strip() for line in request.headers.getlist("cookie") for pair in line.split(";"))
        cookie_values = [pair.removeprefix(cookie_prefix) for pair in cookie_pairs if pair.startswith(cookie_prefix)][
            :MOST_COOKIES
        ] or [""]
        session_secrets = [f"{cookie}.{path_half}" for cookie in cookie_values]
        return next(
            (secret for secret in session_secrets[:-1] if self.accounts.session(secret, active=False)),
            session_secrets[-1],
        )

    def _answer_request(self, request: Request, handler: Handler, least: Role) -> Response:
        if (visitor := self.who(request, active="part" not in request.query_params)) is None:
            return self._to_login(request)
        person, session = visitor
        grade: Grade = "bad"
        title = "That did not work"
        visit = Visit(self, request, person, session, dict(request.path_params))
        try:
            if not person.may(least):
                raise Forbidden(f"this needs the role {least}; yours is {person.role}", "ask an administrator")
            with extras.named():
                return handler(visit)
        except UndersongError as error:
            if isinstance(error, Forbidden):
                http_status = 403
            elif request.method == "POST":
                http_status = 409
            else:
                http_status = 404
            error_text = {"problem": error.problem, "remedy": error.remedy}
            error_code = error.code
            if isinstance(error, StillRunning):
                http_status, grade, title = 202, "news", "It is under way"
        except Exception as error:  # noqa: BLE001 - its words may hold anything, so only its kind and place are shown
            log.error("%s %s failed: %s", request.method, printable(request.url.path, 200), place_of(error))
            page_fault = internal_error(error, self.settings.fault_remedy)
            error_text = {"problem": page_fault.problem, "remedy": page_fault.remedy}
            http_status, error_code = 500, page_fault.code
        if _wants_json(request):
            problem_html = self.render("problem.html.j2", {**error_text, "base": visit.base, "grade": grade})
            html_fields = {"shown": problem_html, "box": box_class(grade)}
            return JSONResponse({**error_text, "code": error_code, **html_fields}, status_code=http_status)
        return visit.show("error.html.j2", title, status=http_status, grade=grade, **error_text)

    def _check_form(self, visit: Visit) -> None:
        self._same_origin(visit.request)
        expected = "" if visit.session is None else visit.session.csrf
        if not expected or not hmac.compare_digest(expected.encode(), visit.form.get("csrf", "").encode()):
            raise Forbidden("the form belongs to no session or another one", "open the page again, and send its form")

    def _same_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
            raise Forbidden("the form was sent by another site", "use this page's own forms")

    def _to_login(self, request: Request) -> Response:
        if "part" in request.query_params or _wants_json(request):
            return JSONResponse({"problem": "nobody is logged in"}, status_code=401)
        return RedirectResponse("/login", status_code=303)

    # These methods serve the log-in.

    def entrance(self, path: str, title: str, act: Callable[[Request, Mapping[str, str]], str]) -> None:
        """Adds a form for somebody without a session; a cookie of its own binds the form to this browser.

        ``act`` gets the fields of the form that was sent and returns a session's secret.
        """
        show_form = partial(self._show_outside, f"{path.strip('/').replace('/', '_')}.html.j2", title)

        async def get(request: Request) -> Response:
            if "tab" in request.scope:
                return RedirectResponse(path, status_code=303)
            return await run_in_threadpool(show_form, request, "")

        async def post(request: Request) -> Response:
            # A session's address allows a larger body, which nobody who is not logged in may send.
            if "tab" in request.scope:
                return RedirectResponse(path, status_code=303)
            fields, *_ = await _read_form(request)

            def answer() -> Response:
                try:
                    self._same_origin(request)
                    form_token = request.cookies.get(f"{self.settings.cookie}_form", "")
                    if not form_token or not hmac.compare_digest(form_token.encode(), fields.get("csrf", "").encode()):
                        raise Forbidden("the form was not made for this browser", "open the page again; allow cookies")
                    session_secret = act(request, fields)
                except UndersongError as error:
                    refusal = show_form(request, f"{error.problem}. {error.remedy[:1].upper()}{error.remedy[1:]}.")
                    refusal.status_code = 503 if isinstance(error, TransportError) else 403
                    if isinstance(error, TooManyAttempts):
                        refusal.status_code = 429
                        refusal.headers["retry-after"] = str(int(error.wait_s) + 1)
                    return refusal
                return self.entered(session_secret, "/account" if path == "/enter" else "/")

            return await run_in_threadpool(answer)

        self._api.add_api_route(path, get, methods=["GET"], response_model=None)
        self._api.add_api_route(path, post, methods=["POST"], response_model=None)

    def entered(self, session_secret: str, location: str) -> Response:
        """Returns a redirect to ``location`` within a new session, which sets the session's cookie."""
        answer = RedirectResponse(f"{session_base(session_secret)}{location}", status_code=303)
        # Without TLS a browser sends the cookie only below this session's own path, which no server on another port
        # receives. With TLS it sends the cookie for all paths, as the prefix ``__Host-`` demands.
        if self.settings.tls:
            cookie_path = "/"
        else:
            cookie_path = f"{session_base(session_secret)}/"
        self._set_cookie(answer, self.settings.cookie, session_secret.partition(".")[0], cookie_path)
        answer.delete_cookie(f"{self.settings.cookie}_form", path="/")
        return answer

    def _set_cookie(self, answer: Response, name: str, value: str, path: str = "/") -> None:
        answer.set_cookie(name, value, httponly=True, secure=self.settings.tls, samesite="strict", path=path)

    def _show_outside(self, template: str, title: str, request: Request, problem: str) -> Response:
        csrf = secrets.token_urlsafe(16)
        answer = HTMLResponse(
            self.render_outside(
                template, title, address=request.url.path, problem=problem, csrf=csrf, asked=request.query_params
            )
        )
        self._set_cookie(answer, f"{self.settings.cookie}_form", csrf)
        return answer

    def render_outside(self, template: str, title: str, **context: Any) -> str:
        """Renders a screen for somebody without a session."""
        default_context: dict[str, Any] = {"base": "", "person": None, "csrf": "", "message": None, "asked": {}}
        return self.render(template, {**default_context, "title": title, **context})

    def _enter_account(self, request: Request, fields: Mapping[str, str]) -> str:
        secret = self.accounts.enter_by_link(fields.get("code", ""), address=source_address(request))
        self._note_session(secret, "log in by link")
        return secret

    def _login(self, request: Request, fields: Mapping[str, str]) -> str:
        source = source_address(request)
        account_name = fields.get("name", "")
        password = fields.get("password", "")
        try:
            session_secret = self.accounts.enter_by_password(account_name, password, address=source)
        except TooManyAttempts:  # Nothing is noted, because whoever is refused must not fill the disk.
            raise
        except PrivacyRefusal:
            self.audit.note("nobody", "log-in refused", printable(account_name, 64))
            raise
        self._note_session(session_secret, "log in by password")
        return session_secret

    def _note_session(self, session_secret: str, what: str) -> None:
        if (session := self.accounts.session(session_secret)) is not None:
            self.audit.note(session.account.name, what, session.address)

    def _logout(self, visit: Visit) -> str:
        visit.note("log out")
        self.accounts.end(visit.secret)
        return "/login"

    def _download(self, visit: Visit) -> Response:
        file = self.downloads.take(visit.path["key"], visit.person.name)
        visit.note("download", file.name)
        self.store.note_fetched(file.name)
        return download(file.data, file.name)

    def _set_password(self, visit: Visit) -> str:
        password = visit.form.get("password", "")
        if password != visit.form.get("again", ""):
            raise ConfigurationError("the two passwords differ", "type the same one twice")
        self.accounts.set_password(visit.person.name, password, keep=visit.secret)
        visit.note("set password")
        return visit.go("/", "Your password is set. Your other sessions have ended.")

    # These methods serve assets and take reports.

    def _asset(self, request: Request) -> Response:
        asset_name = request.path_params["name"]
        if asset_name not in ASSETS:
            return Response(status_code=404)
        asset_bytes = (resources.files("undersong_common.pages") / "assets" / asset_name).read_bytes()
        cache_headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(asset_bytes, media_type=ASSETS[asset_name], headers=cache_headers)

    async def _log_violation(self, request: Request) -> Response:
        """Logs a browser's report that the content security policy stopped something: it may be an attack."""
        body = await request.body()  # The class Frame limits its size.
        if len(self.violations) < 100:
            report = re.sub(r"/s/[\w-]+", "/s/...", body[:1000].decode("utf-8", "replace"))  # no secret in a log
            self.violations.append(printable(report, 1000))
            log.warning("a browser reports what the policy %r refused: %s", POLICY[:18], self.violations[-1])
        return Response(status_code=204)


def _nothing_here(visit: Visit) -> Response:
    raise ConfigurationError("there is no such page", "begin at the first page, by the menu")


def _wants_json(request: Request) -> bool:
    """Returns True for a script with a token, and for the page's own script, which keeps a refused form as it is."""
    headers = request.headers
    return "authorization" in headers or "hx-request" in headers or headers.get("accept") == "application/json"


Form = tuple[dict[str, str], dict[str, list[str]], dict[str, bytes], dict[str, str]]


async def _read_form(request: Request) -> Form:
    """Returns the last text of each field of a form, all texts of each, the files' contents, and their names."""
    fields: dict[str, list[str]] = {}
    files: dict[str, bytes] = {}
    file_names: dict[str, str] = {}
    content_type = request.headers.get("content-type", "")
    if not content_type.startswith(("application/x-www-form-urlencoded", "multipart/form-data")):
        return {}, {}, {}, {}
    async with request.form(max_files=MOST_FILES, max_fields=MOST_FIELDS, max_part_size=LARGEST_BODY_BYTES) as form:
        for field_name, field_value in form.multi_items():
            if isinstance(field_value, str):
                # A multipart field may declare its own encoding, which can yield lone surrogates.
                text = field_value.encode("utf-8", "replace").decode("utf-8")
                fields.setdefault(field_name.encode("utf-8", "replace").decode("utf-8"), []).append(text)
            else:
                files[field_name] = await field_value.read()
                file_names[field_name] = (field_value.filename or "").encode("utf-8", "replace").decode("utf-8")
    return {field_name: field_values[-1] for field_name, field_values in fields.items()}, fields, files, file_names


def source_address(request: Request) -> str:
    """Returns the address of the machine that sent a request; "" if its connection states none."""
    if request.client is None:
        return ""
    host: str = request.client.host
    return host


def session_base(session_secret: str) -> str:
    """Returns the path prefix of a session's screens, made of the second half of its secret; "" without a session."""
    path_half = session_secret.partition(".")[2]
    return f"/s/{path_half}" if path_half else ""


def json_answer(value: Any) -> Response:
    """Returns a JSON answer for scripts, with times as ISO 8601."""
    return JSONResponse(with_iso_times(value))


def download(data: bytes, name: str, kind: str = "application/octet-stream") -> Response:
    """Returns an answer that the browser saves as a file; name characters other than A-Z a-z 0-9 . - become _."""
    safe_name = "".join(
        character if character.isascii() and (character.isalnum() or character in "._-") else "_" for character in name
    )
    return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{safe_name}"'})
