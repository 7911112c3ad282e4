"""Log-in by an identity provider (OpenID Connect, authorization code with PKCE).

The provider identifies a person; the role is that of the account here, and a person without an account is refused.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
from fastapi.concurrency import run_in_threadpool
from fastapi.requests import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from undersong_common.errors import ConfigurationError, PrivacyRefusal, UndersongError
from undersong_common.pages.serving import is_loopback
from undersong_common.pages.site import Site, session_base
from undersong_common.printable import printable

ALGORITHMS = ["RS256", "ES256", "EdDSA", "PS256"]
TIMEOUT_S = 10.0
WAITS_S = 10 * 60.0
MOST_WAITING = 1000
LEEWAY_S = 60


@dataclass(frozen=True)
class Provider:
    """An identity provider as this page knows it.

    Attributes:
        issuer: its address.
        client, secret: this page's name and secret there.
        claim: name of the claim that names an account here; an e-mail address counts only if the provider verified it.
        redirect: this page's address to come back to.
    """

    issuer: str
    client: str
    secret: str = field(repr=False)
    claim: str
    redirect: str

    def __post_init__(self) -> None:
        if not self.client or not self.secret:
            raise ConfigurationError(
                "the identity provider needs this page's name and secret", "see --oidc-client", code="no-client"
            )
        try:
            address = httpx.URL(self.issuer)  # as the client that connects to it reads it
        except httpx.InvalidURL:
            address = httpx.URL("")
        encrypted = address.scheme == "https" or (address.scheme == "http" and is_loopback(address.host))
        if not encrypted or not address.host or address.userinfo:
            said = f"{printable(self.issuer)}: an identity provider is reached over TLS"
            raise ConfigurationError(said, "give an https address without a user", code="provider-without-tls")


@dataclass(frozen=True)
class _Started:
    """A log-in that was begun at one browser."""

    nonce: str
    verifier: str
    until: float


def mount_oidc(site: Site, provider: Provider) -> None:
    """Adds the log-in to a page. The provider is asked for its addresses when somebody first logs in."""
    _OidcLogin(site, provider)


class _OidcLogin:
    def __init__(self, site: Site, provider: Provider) -> None:
        self._site = site
        self._provider = provider
        self._started: dict[str, _Started] = {}
        self._lock = threading.Lock()
        self._cookie = f"{site.settings.cookie}_oidc"
        site.raw("/oidc/start", self._start)
        site.raw("/oidc/return", self._return)
        site.entrances.append(("/oidc/start", "Log in with your organisation"))

    async def _start(self, request: Request) -> Response:
        return await run_in_threadpool(self._guarded, self._begin, request)

    async def _return(self, request: Request) -> Response:
        return await run_in_threadpool(self._guarded, self._finish, request)

    def _guarded(self, act: Any, request: Request) -> Response:
        try:
            answer: Response = act(request)
            return answer
        except UndersongError as error:
            problem = f"{error.problem}. {error.remedy}."
            text = self._site.render_outside("refused.html.j2", "Log in", address=request.url.path, problem=problem)
            return HTMLResponse(text, status_code=403)

    def _begin(self, request: Request) -> Response:
        addresses = self._addresses()
        state, started = (
            secrets.token_urlsafe(32),
            _Started(secrets.token_urlsafe(32), secrets.token_urlsafe(48), time.monotonic() + WAITS_S),
        )
        with self._lock:
            alive = {key: each for key, each in self._started.items() if each.until > time.monotonic()}
            self._started = dict(list(alive.items())[-MOST_WAITING + 1 :]) | {state: started}
        challenge = base64.urlsafe_b64encode(hashlib.sha256(started.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._provider.client,
            "redirect_uri": self._provider.redirect,
            "scope": "openid email profile",
            "state": state,
            "nonce": started.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        answer = RedirectResponse(f"{addresses['authorization_endpoint']}?{urlencode(query)}", status_code=303)
        # Lax, unlike the session's: the provider's site leads back here.
        answer.set_cookie(
            self._cookie, state, httponly=True, secure=self._site.settings.tls, samesite="lax", path="/", max_age=600
        )
        return answer

    def _finish(self, request: Request) -> Response:
        state = request.query_params.get("state", "")
        with self._lock:
            started = self._started.pop(state, None)
        begun_here = secrets.compare_digest(state.encode(), request.cookies.get(self._cookie, "").encode())
        if started is None or not begun_here or started.until < time.monotonic():
            raise PrivacyRefusal("this log-in was not begun here, or too long ago", "begin it again")
        if "error" in request.query_params:
            said = printable(request.query_params["error"], 60)
            raise PrivacyRefusal(f"the identity provider refuses: {said}", "begin again")
        claims = self._claims(request.query_params.get("code", ""), started)
        name = str(claims.get(self._provider.claim, ""))
        if self._provider.claim == "email" and claims.get("email_verified") is not True:
            raise PrivacyRefusal("the identity provider has not checked this e-mail address", "have it checked there")
        account = self._site.accounts.find(name) if name else None
        if account is None:
            self._site.audit.note("nobody", "log-in refused", printable(f"{name} by the identity provider", 100))
            raise PrivacyRefusal(
                f"{printable(name, 64) or 'this person'} has no account here", "ask an administrator to add it"
            )
        source = "" if request.client is None else request.client.host
        secret = self._site.accounts.begin(account.name, address=source)
        self._site.audit.note(account.name, "log in by the identity provider", source)
        # A cookie that is SameSite=Strict is not sent with what another site began: one step more on our own.
        text = self._site.render_outside("entered.html.j2", "Logged in", address="/oidc", base=session_base(secret))
        answer = HTMLResponse(text)
        self._site.set_session(answer, secret)
        answer.delete_cookie(self._cookie, path="/")
        return answer

    def _claims(self, code: str, started: _Started) -> Mapping[str, Any]:
        """Returns the claims that the provider has signed about the person, each of them checked."""
        addresses = self._addresses()
        given = self._asked(
            "POST",
            addresses["token_endpoint"],
            data={
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": self._provider.redirect,
                "code_verifier": started.verifier,
            },
            auth=(self._provider.client, self._provider.secret),
        )
        keys = self._asked("GET", addresses["jwks_uri"])
        try:
            token = jwt.decode(str(given["id_token"]), KeySet.import_key_set(keys), algorithms=ALGORITHMS)
            own = self._provider.client
            registry = jwt.JWTClaimsRegistry(
                leeway=LEEWAY_S,
                iss={"essential": True, "value": self._provider.issuer},
                aud={"essential": True, "value": own},
                azp={"essential": token.claims.get("aud") not in (own, [own]), "value": own},
                sub={"essential": True},
                exp={"essential": True},
                nonce={"essential": True, "value": started.nonce},
            )
            registry.validate(token.claims)
        except (JoseError, KeyError, ValueError) as error:
            raise PrivacyRefusal(
                f"what the identity provider says does not hold ({type(error).__name__})", "begin again"
            ) from None
        claims: dict[str, Any] = dict(token.claims)
        if self._provider.claim not in claims and "userinfo_endpoint" in addresses:
            bearer = {"authorization": f"Bearer {given.get('access_token', '')}"}
            told = self._asked("GET", addresses["userinfo_endpoint"], headers=bearer)
            if told.get("sub") == claims.get("sub"):
                claims = {**told, **claims}
        return claims

    def _addresses(self) -> Mapping[str, Any]:
        found = self._asked("GET", f"{self._provider.issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self._provider.issuer:
            raise PrivacyRefusal("the identity provider calls itself otherwise", "correct --oidc-issuer")
        return found

    def _asked(self, method: str, address: str, **options: Any) -> dict[str, Any]:
        """The provider's answer; what it says in an error is not shown, because it may hold a code or a secret."""
        try:
            answer = httpx.request(method, address, timeout=TIMEOUT_S, follow_redirects=False, **options)
            answer.raise_for_status()
            return dict(answer.json())
        except (httpx.HTTPError, ValueError, TypeError) as error:
            raise PrivacyRefusal(
                f"the identity provider does not answer as it should ({type(error).__name__})", "try again, or tell it"
            ) from None
