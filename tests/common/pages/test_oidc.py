"""Log-in by an identity provider that runs: npm's oidc-provider."""

from __future__ import annotations

import html
import re
import secrets
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qsl, urljoin

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from tests.doubles.pace import examples
from tests.doubles.plain_browser import Browser
from tests.doubles.processes import free_port
from undersong_common.errors import ConfigurationError
from undersong_common.pages.oidc import Provider, group_roles, mount_oidc
from undersong_common.pages.site import PageSettings, Site

VERSION = "9"
SECRET = secrets.token_urlsafe(24)
HOST = "127.0.0.1:8700"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with npm's oidc-provider. Skips where there is no node, or it cannot be fetched."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no node and npm: apt-get install nodejs npm")
    folder = tmp_path_factory.mktemp("provider")
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, f"oidc-provider@{VERSION}"]
    try:
        subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=180)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("npm cannot fetch oidc-provider here")
    return folder


@pytest.fixture(scope="module")
def issuer(installed):
    port = free_port()
    script = Path(__file__).with_name("provider.mjs")
    process = subprocess.Popen(
        ["node", str(script), str(port), f"http://{HOST}/oidc/return"],
        cwd=installed,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "CLIENT_SECRET": SECRET},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 30
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/.well-known/openid-configuration")
            break
        except httpx.HTTPError:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(10)


@pytest.fixture
def site(tmp_path, issuer):
    settings = PageSettings("Test", (HOST,), 8700, False, tmp_path / "page", (("/", "Now", "viewer"),), ())
    made = Site(settings)
    made.get("/", lambda visit: visit.show("account.html.j2", "Inside"))
    mount_oidc(made, Provider(issuer, "console", SECRET, "email", f"http://{HOST}/oidc/return"))
    made.accounts.set_role("ada@hospital.example", "operator")
    yield made
    made.close()


def person(site, name):
    """Logs in as a person does: our link, the provider's forms, and back. The browser and its last answer."""
    browser = Browser(site)
    begun = browser.get("/oidc/start")
    assert begun.status_code == 303, begun.text
    with httpx.Client(follow_redirects=False) as there:
        answer = there.get(begun.headers["location"])
        for _ in range(12):
            if answer.is_redirect:
                place = urljoin(str(answer.url), answer.headers["location"])
                if place.startswith(f"http://{HOST}/"):
                    return browser, browser.get(place.removeprefix(f"http://{HOST}")), place
                answer = there.get(place)
                continue
            action = html.unescape(re.search(r'action="([^"]+)"', answer.text)[1])
            fields = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', answer.text))
            if 'name="login"' in answer.text:
                fields |= {"login": name, "password": "any"}
            answer = there.post(urljoin(str(answer.url), action), data=fields)
    raise AssertionError("the provider does not lead back")


@pytest.mark.slow
def test_a_person_of_the_provider_enters_with_the_role_of_the_account_here(site):
    assert "Log in with your organisation" in Browser(site).get("/login").text
    browser, answer, place = person(site, "ada")
    assert answer.status_code == 200, answer.text
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert browser.get("/").status_code == 303  # the cookie alone is nobody's
    inside = browser.entered(re.search(r'href="(/s/[^"]+)" data-go', answer.text)[1]).get("/")
    assert inside.status_code == 200
    assert "ada@hospital.example" in inside.text
    assert "operator" in inside.text
    again = browser.get(place.removeprefix(f"http://{HOST}"))  # a code and a state count once
    assert again.status_code == 403
    assert [entry.what for entry in site.audit.entries()] == ["log in by the identity provider"]
    kept = b"".join(path.read_bytes() for path in site.settings.folder.iterdir())
    assert SECRET.encode() not in kept


@pytest.mark.slow
def test_who_has_no_account_or_no_checked_address_is_refused(site):
    site.accounts.set_role("unchecked@hospital.example", "operator")
    for name, why in (("eve", "has no account here"), ("unchecked", "has not checked")):
        browser, answer, _ = person(site, name)
        assert answer.status_code == 403
        assert why in answer.text
        assert browser.get("/").status_code == 303
        assert SECRET not in answer.text


@pytest.mark.slow
def test_what_was_not_begun_at_this_browser_is_refused(site):
    for query in ("", "?code=x&state=y", "?error=access_denied"):
        assert Browser(site).get(f"/oidc/return{query}").status_code == 403
    victim = Browser(site)
    begun = Browser(site).get("/oidc/start").headers["location"]
    state = re.search(r"state=([\w-]+)", begun)[1]
    assert "not begun here" in victim.get(f"/oidc/return?code=x&state={state}").text


def test_a_provider_needs_tls_a_name_and_a_secret():
    for issuer in (
        "http://idp.example",
        "http://localhost:80@idp.example",
        "http://127.0.0.1:@idp.example",
        "http://localhost:80.idp.example",
        "https://user@idp.example",
        "https:idp.example",
    ):
        with pytest.raises(ConfigurationError) as refused:
            Provider(issuer, "console", "s", "email", "x")
        assert refused.value.code == "provider-without-tls"
    with pytest.raises(ConfigurationError) as refused:
        Provider("https://idp.example", "console", "", "email", "x")
    assert refused.value.code == "no-client"
    for issuer in ("https://idp.example", "http://localhost:80", "http://127.0.0.1:8080/realm", "http://[::1]:80"):
        assert Provider(issuer, "console", "s", "email", "x").issuer == issuer
    assert "hidden" not in repr(Provider("https://idp.example", "console", "hidden", "email", "x"))


class FakeProvider:
    """A provider in this process. Changes of its answers: ``metadata``, and keywords of :meth:`enter`."""

    def __init__(self, folder, issuer="https://idp.example", site=None, **settings):
        self.site = site or Site(PageSettings("Test", (HOST,), 8700, False, folder, (("/", "Now", "viewer"),), ()))
        if site is None:
            self.site.get("/", lambda visit: visit.show("account.html.j2", "Inside"))
        http = httpx.Client(transport=httpx.MockTransport(lambda request: self.answered(request)))
        provider = Provider(issuer, "console", SECRET, "email", f"http://{HOST}/oidc/return", **settings)
        mount_oidc(self.site, provider, http)
        self.issuer = "https://idp.example"
        self.key = RSAKey.generate_key(2048)
        places = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint")
        self.metadata = {"issuer": self.issuer, **{place: f"{self.issuer}/{place}" for place in places}}
        self.userinfo = {}
        self.token = ""
        self.asked = []

    def answered(self, request):
        self.asked.append(request)
        if request.url.path.endswith("openid-configuration"):
            return httpx.Response(200, json=self.metadata)
        if request.url.path.endswith("jwks_uri"):
            return httpx.Response(200, json={"keys": [self.key.as_dict(private=False)]})
        if request.url.path.endswith("userinfo_endpoint"):
            return httpx.Response(200, json=self.userinfo)
        return httpx.Response(200, json={"id_token": self.token, "access_token": "held", "token_type": "Bearer"})

    def enter(self, *, key=None, algorithm="RS256", typ=None, **changes):
        """Logs in with changed claims; None leaves a claim out. Returns the status of the way back."""
        browser = Browser(self.site)
        begun = browser.get("/oidc/start")
        if begun.status_code != 303:
            return begun.status_code
        address = begun.headers["location"]
        state, nonce = (re.search(rf"{name}=([\w-]+)", address)[1] for name in ("state", "nonce"))
        claims = {"iss": self.issuer, "aud": "console", "sub": "1", "nonce": nonce}
        claims |= {"iat": time.time(), "exp": time.time() + 60}
        claims |= {"email": "ada@hospital.example", "email_verified": True, **changes}
        claims = {name: value for name, value in claims.items() if value is not None}
        if changes.get("nonce") == ["NONCE"]:
            claims["nonce"] = [nonce]
        header = {"alg": algorithm} | ({} if typ is None else {"typ": typ})
        self.token = jwt.encode(header, claims, key or self.key, algorithms=[algorithm])
        return browser.get(f"/oidc/return?code=x&state={state}").status_code


@pytest.fixture
def fake(tmp_path):
    made = FakeProvider(tmp_path / "page")
    made.site.accounts.set_role("ada@hospital.example", "operator")
    yield made
    made.site.close()


def test_a_token_that_is_not_for_this_log_in_is_refused(fake):
    assert fake.enter() == 200
    assert fake.enter(azp="console") == 200
    assert fake.enter(aud=["console"]) == 200
    assert fake.enter(aud=["console", "another"], azp="console") == 200
    refused = (
        {"aud": "another"},
        {"aud": ["console", "another"]},
        {"azp": "another"},
        {"iss": "https://evil.example"},
        {"iss": "https://idp.example/"},
        {"nonce": "replayed"},
        {"nonce": None},
        {"sub": None},
        {"sub": ""},
        {"exp": time.time() - 3600},
        {"exp": None},
        {"at_hash": "AAAA"},
        {"key": RSAKey.generate_key(2048)},
        {"key": OctKey.import_key(SECRET), "algorithm": "HS256"},
        {"algorithm": "RS512"},
        {"key": RSAKey.generate_key(1024)},
        {"nonce": ["NONCE"]},
        {"azp": ["console"]},
        {"typ": "at+jwt"},
        {"email_verified": False},
        {"email": "eve@hospital.example"},
    )
    assert {str(each): fake.enter(**each) for each in refused} == {str(each): 403 for each in refused}


def test_a_short_key_of_the_provider_is_refused(fake):
    fake.key = RSAKey.generate_key(1024)
    assert fake.enter() == 403
    fake.key = RSAKey.generate_key(2048)
    assert fake.enter() == 200


def test_an_address_and_the_word_that_it_was_checked_come_from_one_document(fake):
    fake.userinfo = {"sub": "1", "email": "ada@hospital.example", "email_verified": False}
    assert fake.enter(email=None, email_verified=True) == 403
    fake.userinfo["email_verified"] = True
    assert fake.enter(email=None, email_verified=None) == 200


@pytest.mark.heavy
def test_begun_log_ins_of_strangers_do_not_end_another_one(fake):
    honest = Browser(fake.site)
    begun = honest.get("/oidc/start").headers["location"]
    stranger = Browser(fake.site)
    for _ in range(examples(40, 1001)):
        assert stranger.get("/oidc/start").status_code == 303
    assert len(fake.asked) == 1  # the addresses are asked for once
    state, nonce = (re.search(rf"{name}=([\w-]+)", begun)[1] for name in ("state", "nonce"))
    claims = {"iss": fake.issuer, "aud": "console", "sub": "1", "nonce": nonce, "iat": time.time()}
    claims |= {"exp": time.time() + 60, "email": "ada@hospital.example", "email_verified": True}
    fake.token = jwt.encode({"alg": "RS256"}, claims, fake.key)
    assert honest.get(f"/oidc/return?code=x&state={state}").status_code == 200


def test_a_begun_log_in_ends_after_a_time_and_its_state_cannot_be_made_up(fake, monkeypatch):
    browser = Browser(fake.site)
    state = re.search(r"state=([\w-]+)", browser.get("/oidc/start").headers["location"])[1]
    later = f"9{state}"
    (cookie,) = browser.client.cookies
    browser.client.cookies = {cookie: later}
    assert browser.get(f"/oidc/return?code=x&state={later}").status_code == 403
    assert len(fake.asked) == 1
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 601)
    browser.client.cookies = {cookie: state}
    assert browser.get(f"/oidc/return?code=x&state={state}").status_code == 403
    assert len(fake.asked) == 1


def test_a_slow_provider_holds_few_threads_of_the_page(fake):
    waiting, go = threading.Semaphore(0), threading.Event()
    answered = fake.answered

    def slow(request):
        waiting.release()
        assert go.wait(30)
        return answered(request)

    fake.answered = slow
    with ThreadPoolExecutor(8) as pool:
        held = [pool.submit(lambda: Browser(fake.site).get("/oidc/start").status_code) for _ in range(4)]
        assert all(waiting.acquire(timeout=30) for _ in held)
        assert Browser(fake.site).get("/oidc/start").status_code == 503
        go.set()
        assert [each.result() for each in held] == [303] * 4
    assert Browser(fake.site).get("/oidc/start").status_code == 303


def test_the_code_is_exchanged_with_the_verifier_that_was_announced(fake):
    assert fake.enter() == 200
    exchange = next(each for each in fake.asked if each.method == "POST")
    sent = dict(parse_qsl(exchange.content.decode()))
    assert (sent["grant_type"], sent["code"]) == ("authorization_code", "x")
    assert len(sent["code_verifier"]) >= 43
    assert exchange.headers["authorization"] == httpx.BasicAuth("console", SECRET)._auth_header
    begun = Browser(fake.site).get("/oidc/start").headers["location"]
    assert "code_challenge_method=S256" in begun
    assert "code_challenge=" in begun


@pytest.mark.parametrize(
    ("issuer", "status"),
    [
        ("https://idp.example", 200),
        ("https://IDP.example:443/", 200),
        ("https://idp.example:444", 403),
        ("https://idp.example.evil.example", 403),
        ("https://idp.example@evil.example", 403),
        ("https://idp.example/realm", 403),
        ("http://idp.example", 403),
        (None, 403),
    ],
)
def test_an_issuer_is_compared_by_its_parts(fake, issuer, status):
    fake.metadata["issuer"] = fake.issuer = issuer
    assert fake.enter() == status


def test_no_address_of_the_provider_is_asked_in_clear(fake):
    for place in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
        before = dict(fake.metadata)
        for clear in ("http://idp.example", "http://localhost:80"):
            fake.metadata[place] = f"{clear}/{place}"
            assert fake.enter() == 403, place
        fake.metadata = before
    assert fake.enter() == 200


def test_groups_decide_roles_at_each_log_in(tmp_path):
    fake = FakeProvider(tmp_path / "page", roles={"it": "operator", "officers": "viewer", "heads": "administrator"})
    accounts = fake.site.accounts
    assert [fake.enter(groups=groups) for groups in (None, [], ["others"], "others", [["it"]])] == [403] * 5
    assert accounts.people() == []
    for groups, role in ((["officers", "it"], "operator"), (["officers"], "viewer"), ("heads", "administrator")):
        assert fake.enter(groups=groups) == 200
        assert accounts.find("ada@hospital.example").role == role
    assert fake.enter(groups=["it"]) == 403  # the only administrator stays one
    assert fake.enter(groups=["officers"], email="bo@hospital.example") == 200
    fake.userinfo = {"sub": "1", "groups": ["it"]}
    assert fake.enter(email="bo@hospital.example") == 200
    assert accounts.find("bo@hospital.example").role == "operator"
    fake.userinfo = {"sub": "2", "groups": ["heads"]}  # of somebody else
    assert fake.enter(email="bo@hospital.example") == 403
    noted = [entry.about for entry in fake.site.audit.entries() if entry.what.startswith("role by")]
    assert noted == ["operator", "viewer", "administrator", "viewer", "operator"]
    fake.site.close()


def test_roles_of_groups_are_read_from_the_command_line():
    assert group_roles(["cn=it,dc=example=operator", "all=viewer"]) == {
        "cn=it,dc=example": "operator",
        "all": "viewer",
    }
    for wrong in ("it", "=viewer", "it=root"):
        with pytest.raises(ConfigurationError) as refused:
            group_roles([wrong])
        assert refused.value.code == "no-role"
