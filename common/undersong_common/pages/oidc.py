"""Log-in to a page by an identity provider (OpenID Connect, authorization code with PKCE).

Authlib speaks the protocol and checks the claims; this file decides what is requested and who may enter. The provider
identifies a person by its issuer and their ``sub``. Names decide nothing: the provider lets a person enter an existing
account only after that account's own person has connected it. The role is that of the account, or of the person's
groups if groups are mapped to roles.
"""

import hmac
import json
import os
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import httpx
from authlib.common.errors import AuthlibBaseError
from authlib.oauth2.client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from fastapi.requests import Request
from fastapi.responses import HTMLResponse, Response
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet, RSAKey

from undersong_common.errors import ConfigurationError, PrivacyRefusal, TransportError, UndersongError
from undersong_common.pages.accounts import ROLES, Account, Role
from undersong_common.pages.duties import provider_identity, provider_key
from undersong_common.pages.serving import is_loopback
from undersong_common.pages.site import Site, Visit, source_address
from undersong_common.pages.store import Message, digest
from undersong_common.printable import printable

ALGORITHMS = ["RS256", "ES256", "EdDSA", "PS256"]
TIMEOUT_S = 10.0
WAITS_S = 10 * 60.0  # longest time from the begin of a log-in until the provider sends the browser back
ADDRESSES_S = 5 * 60.0  # longest use of the provider's addresses before they are asked for again
MOST_ASKING = 4  # largest number of log-ins that ask the provider at one time; others are told to try again
SMALLEST_RSA_BITS = 2048
LEEWAY_S = 60


@dataclass(frozen=True)
class Provider:
    """Settings for log-in by an identity provider.

    Attributes:
        issuer: address of the provider.
        client, secret: client id and client secret of this page at the provider.
        claim: claim that names a new account here; an e-mail address counts only if the provider verified it.
        redirect: address of this page to which the provider sends browsers back.
        groups: claim that lists a person's groups.
        roles: role by group; empty leaves roles to the accounts here. Otherwise each log-in gives a person the highest
            role of their groups, and a person without an account a new one. People in none of these groups are refused.
        duties: duty under the rule of two by group; empty leaves duties to administrators here. Otherwise each log-in
            gives a person the duty of the first of these groups that lists them, and none to whom no group lists.
        proxy: address of the proxy by which the provider is reached; "" for none.
    """

    issuer: str
    client: str
    secret: str = field(repr=False)
    claim: str
    redirect: str
    groups: str = "groups"
    roles: Mapping[str, Role] = field(default_factory=dict)
    duties: Mapping[str, str] = field(default_factory=dict)
    proxy: str = field(default="", repr=False)

    @property
    def key(self) -> str:
        """The name of this provider for one page (:func:`undersong_common.pages.duties.provider_key`)."""
        return provider_key(self.issuer, self.client, self.proxy)

    @property
    def tables(self) -> str:
        """The settings that give people their names, roles and duties here, in one line; the order of duties counts."""
        return json.dumps([self.claim, self.groups, sorted(self.roles.items()), list(self.duties.items())])

    def __post_init__(self) -> None:
        if not self.client or not self.secret:
            raise ConfigurationError(
                "the client id or the client secret of this page at the identity provider is missing",
                "give --oidc-client, and the secret in the environment variable of --oidc-secret-env",
                code="no-client",
            )
        _address_origin(self.issuer)


def _address_origin(address: str) -> tuple[str, str, int | None, str]:
    """Returns scheme, host, port and path of an address as httpx, which connects, reads them; default ports are None.

    Raises ConfigurationError for an address that is not encrypted, unless it is on this machine, or names a user.
    """
    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL("")
    is_encrypted = url.scheme == "https" or (url.scheme == "http" and is_loopback(url.host))
    if not is_encrypted or not url.host or url.userinfo:
        problem = f"{printable(str(address))}: an identity provider is reached over TLS"
        raise ConfigurationError(problem, "give an https address without a user", code="provider-without-tls")
    return url.scheme, url.host, url.port, url.path.rstrip("/")


def _is_strong_key(key: Key) -> bool:
    return not isinstance(key, RSAKey) or key.public_key.key_size >= SMALLEST_RSA_BITS


def mount_oidc(site: Site, provider: Provider, http: httpx.Client | None = None) -> None:
    """Adds the log-in by an identity provider to a page, without contacting the provider until somebody logs in.

    Args:
        http: client for requests to the provider, which must follow no redirect; None makes one.
    """
    _OidcLogin(site, provider, http or _http_client(provider.proxy))


def _http_client(proxy: str) -> httpx.Client:
    """Returns a client that takes neither a proxy nor certificates from the environment.

    Whoever starts a page sets its environment, and could otherwise have a program of their own answer as the provider.
    Beside the public authorities, those that the machine's administrator has installed are trusted.

    Raises ConfigurationError for an address that is no proxy's, which it does not show: it may hold a password.
    """
    context = httpx.create_ssl_context(trust_env=False)
    paths = ssl.get_default_verify_paths()
    if os.path.isfile(paths.openssl_cafile):
        context.load_verify_locations(cafile=paths.openssl_cafile)
    if os.path.isdir(paths.openssl_capath):
        context.load_verify_locations(capath=paths.openssl_capath)
    try:
        return httpx.Client(timeout=TIMEOUT_S, trust_env=False, verify=context, proxy=proxy or None)
    except (httpx.InvalidURL, ValueError):
        raise ConfigurationError(
            "the address of the identity provider's proxy is not an HTTP address", "give http://HOST:PORT: --oidc-proxy"
        ) from None


class _OidcLogin:
    """The routes by which people log in to one page by its identity provider."""

    def __init__(self, site: Site, provider: Provider, http: httpx.Client) -> None:
        self._site = site
        self._provider = provider
        self._http = http
        # State and secrets of a log-in follow from this key and the cookie, so that beginning one needs no memory.
        self._key = secrets.token_bytes(32)
        self._request_slots = threading.BoundedSemaphore(MOST_ASKING)
        # Time until which the provider's addresses are used without asking again, and the addresses.
        self._known_addresses: tuple[float, Mapping[str, Any]] | None = None
        self._cookie = f"{site.settings.cookie}_oidc"
        self._lock = threading.Lock()
        self._used_states: dict[str, float] = {}  # end of validity (seconds since the epoch) by state that was used
        self._pending_connections: dict[str, tuple[str, str]] = {}  # state and session's secret, by account
        site.raw("/oidc/start", self._guard_route(self._begin_login))
        site.entrance("/oidc/return", "Log in", self._finish_login)
        site.get("/account/organisation", self._begin_connecting)
        site.accounts.duties.serve_with(provider.key, provider.tables)
        site.entrances.append(("/oidc/start", "Log in with your organisation"))

    def _guard_route(self, act: Callable[[Request], Response]) -> Callable[[Request], Any]:
        """Returns the endpoint of a route, which shows an error as a page."""

        def endpoint(request: Request) -> Response:
            try:
                return act(request)
            except UndersongError as error:
                problem = f"{error.problem}. {error.remedy}."
                refusal_page = self._site.render_outside(
                    "refused.html.j2", "Log in", address=request.url.path, problem=problem
                )
                return HTMLResponse(refusal_page, status_code=503 if isinstance(error, TransportError) else 403)

        return endpoint

    def _oauth_client(self) -> OAuth2Client:
        """Returns a new client for one request, because a client keeps the token that it receives."""
        provider = self._provider
        settings = {"redirect_uri": provider.redirect, "scope": "openid email profile", "code_challenge_method": "S256"}
        return OAuth2Client(self._http, provider.client, provider.secret, **settings)

    def _derive_secret(self, purpose: str, of: str) -> str:
        return hmac.new(self._key, f"{purpose} {of}".encode(errors="replace"), "sha256").hexdigest()

    @contextmanager
    def _admit_request(self) -> Iterator[None]:
        """Admits ``MOST_ASKING`` requests to the provider at a time, because each holds one of the page's threads.

        Raises TransportError for one more.
        """
        if not self._request_slots.acquire(blocking=False):
            raise TransportError("too many people log in at this moment", "try again in a few seconds")
        try:
            yield
        finally:
            self._request_slots.release()

    def _begin_login(self, _request: Request) -> Response:
        return self._lead_to_provider()[1]

    def _begin_connecting(self, visit: Visit) -> Response:
        if visit.session is None:
            raise PrivacyRefusal(
                "a script's token cannot connect an account with the identity provider",
                "log in to the page in a browser, and connect the account there",
            )
        login_state, login_answer = self._lead_to_provider()
        with self._lock:
            self._pending_connections[visit.person.name] = login_state, visit.secret
        return login_answer

    def _lead_to_provider(self) -> tuple[str, Response]:
        """Returns a new OAuth state, and the screen that leads this browser to the provider with it.

        The screen's script keeps the state in the tab's storage, which no other port and no other site can write; a
        cookie can be planted from another port.
        """
        state_start = f"{int(time.time() + WAITS_S)}_{secrets.token_hex(16)}"
        login_state = f"{state_start}_{self._derive_secret('state', state_start)}"
        login_address, _ = self._oauth_client().create_authorization_url(
            self._provider_addresses()["authorization_endpoint"],
            state=login_state,
            nonce=self._derive_secret("nonce", login_state),
            code_verifier=self._derive_secret("verifier", login_state),
        )
        form_answer = HTMLResponse(
            self._site.render_outside(
                "oidc_start.html.j2", "Log in", address="/oidc/start", there=login_address, state=login_state
            )
        )
        form_answer.set_cookie(
            self._cookie,
            login_state,
            httponly=True,
            secure=self._site.settings.tls,
            samesite="strict",
            path="/",
            max_age=600,
        )
        return login_state, form_answer

    def _finish_login(self, request: Request, fields: Mapping[str, str]) -> str:
        """Returns the secret of a session of the person whom the provider names; a state lets somebody in once."""
        returned_state = fields.get("state", "")
        self._check_state(request, returned_state)
        if fields.get("error"):
            provider_error = printable(fields["error"], 60)
            raise PrivacyRefusal(f"the identity provider refuses: {provider_error}", "begin the log-in again")
        signed_claims = self._signed_claims(fields.get("code", ""), returned_state)
        own_session = self._use_state(returned_state)
        if not self._site.accounts.duties.is_served_with(self._provider.key, self._provider.tables):
            raise PrivacyRefusal(
                "another page of this folder was started since, with another identity provider or other roles by group",
                "log in at that page",
            )
        person_digest = digest(json.dumps([signed_claims["iss"], signed_claims["sub"]]))
        source = source_address(request)
        if own_session is not None:
            return self._connect_account(signed_claims, person_digest, own_session)
        page_account = self._account_of(signed_claims, person_digest)
        if self._provider.duties:
            duty_group = next(
                (
                    duty_group
                    for duty_group in self._provider.duties
                    if duty_group in self._claimed_groups(signed_claims)
                ),
                "",
            )
            self._site.accounts.duties.follow_groups(
                page_account.name, self._provider.duties.get(duty_group, ""), duty_group
            )
        identity_fields = {"issuer": str(signed_claims["iss"]), "subject": str(signed_claims["sub"])}
        session_secret = self._site.accounts.begin(
            page_account.name, address=source, log_in="provider", **identity_fields
        )
        self._site.audit.note(page_account.name, "log in by the identity provider", source)
        return session_secret

    def _check_state(self, request: Request, returned_state: str) -> None:
        """Raises PrivacyRefusal for a state that this page did not give to this browser a short time ago."""
        is_same_browser = secrets.compare_digest(
            returned_state.encode(), request.cookies.get(self._cookie, "").encode()
        )
        state_start, _, state_proof = returned_state.rpartition("_")
        is_proof_valid = secrets.compare_digest(
            state_proof.encode(), self._derive_secret("state", state_start).encode()
        )
        if (
            not is_same_browser
            or not is_proof_valid
            or not 0 <= int(state_start.partition("_")[0]) - time.time() <= WAITS_S
        ):
            raise PrivacyRefusal("this log-in was not begun here, or too long ago", "begin it again")

    def _use_state(self, returned_state: str) -> str | None:
        """Marks a state as used. Returns the secret of the session that asked to be connected by it; None if none did.

        Raises PrivacyRefusal for a state that was used before.
        """
        with self._lock:  # Only people of the provider reach this line, so that the table of states stays small.
            now_s = time.time()
            self._used_states = {
                used_state: expires_at_s
                for used_state, expires_at_s in self._used_states.items()
                if expires_at_s > now_s
            }
            if returned_state in self._used_states:
                raise PrivacyRefusal("this log-in was used already", "begin it again", code="state-used")
            self._used_states[returned_state] = now_s + WAITS_S
            asking_name = next(
                (
                    account_name
                    for account_name, (connecting_state, _) in self._pending_connections.items()
                    if connecting_state == returned_state
                ),
                None,
            )
            if asking_name is None:
                return None
            return self._pending_connections.pop(asking_name)[1]

    def _claimed_groups(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        claimed_groups = claims.get(self._provider.groups)
        return tuple(map(str, claimed_groups if isinstance(claimed_groups, list) else [claimed_groups]))

    def _connect_account(self, claims: Mapping[str, Any], person: str, session_secret: str) -> str:
        """Has the person enter the account of a session that has asked for it; returns the session's secret."""
        accounts = self._site.accounts
        if (session := accounts.session(session_secret)) is None:
            raise PrivacyRefusal("the session that has asked for this has ended", "log in, and connect it again")
        identities = {*session.identities, provider_identity(str(claims["iss"]), str(claims["sub"]))}
        accounts.connect(session.account.name, person, by=sorted(identities))
        self._site.audit.note(session.account.name, "connect the identity provider")
        accounts.leave_message(session_secret, Message("Connected: you can log in with your organisation from now on."))
        return session_secret

    def _account_of(self, claims: Mapping[str, Any], person: str) -> Account:
        """Returns the person's account, with the role of their groups if groups are mapped to roles."""
        provider = self._provider
        accounts = self._site.accounts
        claimed_name = str(claims.get(provider.claim, ""))
        if provider.claim == "email" and claims.get("email_verified") is not True:
            raise PrivacyRefusal("the identity provider has not checked this e-mail address", "have it checked there")
        if not claimed_name:
            raise PrivacyRefusal(
                f"the identity provider states no claim {provider.claim!r} about this person", "correct --oidc-claim"
            )
        known_account = accounts.of_person(person)
        claimed_groups = self._claimed_groups(claims)
        role = max(
            (provider.roles[group] for group in claimed_groups if group in provider.roles),
            key=ROLES.index,
            default=None,
        )
        if provider.roles and role is None:
            self._refuse_login(claimed_name, "is in no group that may enter", "ask an administrator")
        if not provider.roles and known_account is None:
            self._refuse_login(
                claimed_name,
                "has no account",
                "have an administrator let you in by a link, then connect the identity provider under Your account",
            )
        if known_account is not None and role in (None, known_account.role):
            return known_account
        assert role is not None
        if known_account is None:
            page_account = accounts.set_role(claimed_name, role, person=person)
        else:
            page_account = accounts.set_role(known_account.name, role)
        self._site.audit.note(page_account.name, "role by the identity provider's groups", role)
        return page_account

    def _refuse_login(self, name: str, reason: str, remedy: str) -> NoReturn:
        """Notes that nobody was let in by the name that the provider states, and raises PrivacyRefusal."""
        self._site.audit.note("nobody", "log-in refused", printable(f"{name} by the identity provider", 100))
        raise PrivacyRefusal(f"{printable(name, 64)} {reason} here", remedy)

    def _signed_claims(self, login_code: str, login_state: str) -> Mapping[str, Any]:
        """Returns the claims that the provider has signed about the person, each of them checked."""
        provider_addresses = self._provider_addresses()
        with self._admit_request():
            return self._check_claims(login_code, login_state, provider_addresses)

    def _check_claims(
        self, login_code: str, login_state: str, provider_addresses: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        provider = self._provider
        nonce = self._derive_secret("nonce", login_state)
        try:
            token_response = self._oauth_client().fetch_token(
                provider_addresses["token_endpoint"],
                code=login_code,
                code_verifier=self._derive_secret("verifier", login_state),
                auth=(provider.client, provider.secret),
            )
            provider_keys = KeySet(
                [
                    provider_key
                    for provider_key in KeySet.import_key_set(self._fetch_json(provider_addresses["jwks_uri"]))
                    if _is_strong_key(provider_key)
                ]
            )
            id_token = jwt.decode(str(token_response["id_token"]), provider_keys, algorithms=ALGORITHMS)
            if str(id_token.header.get("typ", "JWT")).lower() != "jwt":
                raise ValueError("the token is no JWT")
            expected_claims = {"iss": provider_addresses["issuer"], "aud": provider.client, "nonce": nonce}
            token_claims = CodeIDToken(
                id_token.claims,
                id_token.header,
                {"sub": {"essential": True}}
                | {
                    claim_name: {"essential": True, "value": expected_value}
                    for claim_name, expected_value in expected_claims.items()
                },
                {"client_id": provider.client, "nonce": nonce, "access_token": token_response.get("access_token")},
            )
            token_claims.validate(leeway=LEEWAY_S)
            if type(token_claims["sub"]) is not str:
                raise ValueError("sub is no text")
        except (AuthlibBaseError, JoseError, httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            # The provider's own words in an error are not shown, because they may hold a code or a secret.
            raise PrivacyRefusal(
                f"the identity provider's token is missing or not valid ({type(error).__name__})",
                "begin the log-in again",
            ) from None
        if (
            not {provider.claim, *((provider.groups,) if provider.roles or provider.duties else ())}
            <= token_claims.keys()
            and "userinfo_endpoint" in provider_addresses
        ):
            bearer_header = {"authorization": f"Bearer {token_response.get('access_token', '')}"}
            userinfo_json = self._fetch_json(provider_addresses["userinfo_endpoint"], headers=bearer_header)
            if userinfo_json.get("sub") == token_claims["sub"]:
                # An address and the provider's word that it has checked it come from one document.
                if provider.claim in token_claims:
                    email_source = token_claims
                else:
                    email_source = userinfo_json
                return {**userinfo_json, **token_claims, "email_verified": email_source.get("email_verified")}
        return dict(token_claims)

    def _provider_addresses(self) -> Mapping[str, Any]:
        """Returns the provider's metadata with its addresses, from memory for up to ``ADDRESSES_S``.

        Raises ConfigurationError or PrivacyRefusal if an address is not encrypted, or if the issuer is not the one of
        the settings. The issuer is returned as the provider writes it, because its tokens name it so.
        """
        if self._known_addresses is not None and time.monotonic() < self._known_addresses[0]:
            return self._known_addresses[1]
        with self._admit_request():
            metadata = self._fetch_json(f"{self._provider.issuer.rstrip('/')}/.well-known/openid-configuration")
        address_names = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
        optional_names = [address_name for address_name in ("userinfo_endpoint",) if address_name in metadata]
        origin_by_name = {
            address_name: _address_origin(metadata.get(address_name, ""))
            for address_name in (*address_names, *optional_names)
        }
        if origin_by_name["issuer"] != _address_origin(self._provider.issuer):
            raise PrivacyRefusal(
                "the provider's metadata states another issuer than --oidc-issuer", "correct --oidc-issuer"
            )
        if {origin[0] for origin in origin_by_name.values()} != {origin_by_name["issuer"][0]}:
            raise PrivacyRefusal(
                "the identity provider lists addresses without TLS beside those with it", "tell its operator"
            )
        self._known_addresses = time.monotonic() + ADDRESSES_S, metadata
        return metadata

    def _fetch_json(self, address: str, **options: Any) -> dict[str, Any]:
        try:
            provider_answer = self._http.get(address, **options)
            provider_answer.raise_for_status()
            return dict(provider_answer.json())
        except (httpx.HTTPError, ValueError, TypeError) as error:
            raise PrivacyRefusal(
                f"the identity provider does not answer as it should ({type(error).__name__})",
                "try again, or tell its operator",
            ) from None
