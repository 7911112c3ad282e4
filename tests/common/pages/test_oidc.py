"""Log-in by an identity provider that runs: npm's oidc-provider."""

import functools
import html
import json
import re
import secrets
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from tests.doubles.pace import examples
from tests.doubles.plain_browser import Browser
from tests.doubles.processes import free_port
from undersong_common.errors import ConfigurationError
from undersong_common.pages import oidc
from undersong_common.pages.accounts import ROLES, roles_by_group
from undersong_common.pages.oidc import Provider, mount_oidc
from undersong_common.pages.site import PageSettings, Site

VERSION = "9"
SECRET = secrets.token_urlsafe(24)
HOST = "127.0.0.1:8700"


@pytest.fixture(scope="module")
def provider_folder(tmp_path_factory):
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
def issuer(provider_folder):
    port = free_port()
    script = Path(__file__).with_name("provider.mjs")
    process = subprocess.Popen(
        ["node", str(script), str(port), f"http://{HOST}/oidc/return"],
        cwd=provider_folder,
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


def led_there(answer):
    """The provider's address to which the screen that begins a log-in leads, and its query."""
    address = html.unescape(re.search(r'href="([^"]+)" data-state', answer.text)[1])
    return address, dict(parse_qsl(urlsplit(address).query))


def came_back(browser, place):
    """Sends the form of the way back, as the page's script does in the tab that has begun."""
    sent = dict(parse_qsl(urlsplit(place).query))
    return browser.post("/oidc/return", of=place, **sent)


def person(site, name, browser=None, begin="/oidc/start"):
    """Logs in as a person does: our link, the provider's forms, and back. The browser and its last answer."""
    browser = browser or Browser(site)
    begun = browser.get(begin)
    assert begun.status_code == 200, begun.text
    with httpx.Client(follow_redirects=False) as there:
        answer = there.get(led_there(begun)[0])
        for _ in range(12):
            if answer.is_redirect:
                place = urljoin(str(answer.url), answer.headers["location"])
                if place.startswith(f"http://{HOST}/"):
                    return browser, came_back(browser, place.removeprefix(f"http://{HOST}")), place
                answer = there.get(place)
                continue
            action = html.unescape(re.search(r'action="([^"]+)"', answer.text)[1])
            fields = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', answer.text))
            if 'name="login"' in answer.text:
                fields |= {"login": name, "password": "any"}
            answer = there.post(urljoin(str(answer.url), action), data=fields)
    raise AssertionError("the provider does not lead back")


@pytest.mark.slow
def test_provider_log_in_gives_the_role_of_the_local_account(site):
    assert "Log in with your organisation" in Browser(site).get("/login").text
    connecting = Browser(site).enter(site.accounts.link("ada@hospital.example"))
    assert "Log in with your organisation" not in connecting.get("/account").text
    _, answer, _ = person(site, "ada", connecting, "/account/organisation")
    assert answer.status_code == 303, answer.text
    browser, answer, place = person(site, "ada")
    assert answer.status_code == 303, answer.text
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert browser.get("/").status_code == 303  # the cookie alone is nobody's
    inside = browser.entered(answer.headers["location"]).get("/")
    assert inside.status_code == 200
    assert "ada@hospital.example" in inside.text
    assert "operator" in inside.text
    again = came_back(browser, place.removeprefix(f"http://{HOST}"))  # a code and a state count once
    assert again.status_code == 403
    noted = [entry.what for entry in site.audit.entries()]
    assert noted == ["log in by link", "connect the identity provider", "log in by the identity provider"]
    kept = b"".join(path.read_bytes() for path in site.settings.folder.iterdir())
    assert SECRET.encode() not in kept


@pytest.mark.slow
def test_person_without_account_or_verified_address_is_refused(site):
    site.accounts.set_role("unchecked@hospital.example", "operator")
    for name, why in (("eve", "has no account here"), ("unchecked", "has not checked")):
        browser, answer, _ = person(site, name)
        assert answer.status_code == 403
        assert why in answer.text
        assert browser.get("/").status_code == 303
        assert SECRET not in answer.text


@pytest.mark.slow
def test_log_in_that_was_not_begun_at_this_browser_is_refused(site):
    for query in ("", "?code=x&state=y", "?error=access_denied"):
        assert came_back(Browser(site), f"/oidc/return{query}").status_code == 403
    state = led_there(Browser(site).get("/oidc/start"))[1]["state"]
    assert "not begun here" in came_back(Browser(site), f"/oidc/return?code=x&state={state}").text


def test_identity_provider_without_tls_name_or_secret_is_refused():
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


@functools.cache
def signing_key(of="the provider's"):
    return RSAKey.generate_key(2048)


class FakeProvider:
    """A provider in this process. Changes of its answers: ``metadata``, and keywords of :meth:`enter`."""

    def __init__(
        self, folder, issuer="https://idp.example", site=None, page=f"http://{HOST}", client="console", **settings
    ):
        self.site = site or Site(PageSettings("Test", (HOST,), 8700, False, folder, (("/", "Now", "viewer"),), ()))
        if site is None:
            self.site.get("/", lambda visit: visit.show("account.html.j2", "Inside"))
        http = httpx.Client(transport=httpx.MockTransport(lambda request: self.answered(request)))
        provider = Provider(issuer, client, SECRET, "email", f"{page}/oidc/return", **settings)
        self.client = client
        mount_oidc(self.site, provider, http)
        self.issuer = "https://idp.example" if "idp.example" in issuer else issuer
        self.key = signing_key()
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

    def connected(self, name, role, **changes):
        """Adds a local account whose person has connected the provider."""
        self.site.accounts.set_role(name, role)
        browser = Browser(self.site).enter(self.site.accounts.link(name))
        assert self.enter(browser=browser, begin="/account/organisation", **changes) == 303
        return browser

    def enter(self, **changes):
        """Logs in with changed claims; None leaves a claim out. Returns the status of the way back."""
        return self.entered(**changes).status_code

    def entered(self, *, key=None, algorithm="RS256", typ=None, browser=None, begin="/oidc/start", **changes):
        browser = browser or Browser(self.site)
        begun = browser.get(begin)
        if begun.status_code != 200:
            return begun
        return came_back(browser, self.led_back(begun, key=key, algorithm=algorithm, typ=typ, **changes))

    def led_back(self, begun, **changes):
        """The address to which the provider leads back who has begun like this; it answers with these claims."""
        return self.identified(led_there(begun)[1], **changes)

    def identified(self, asked, *, key=None, algorithm="RS256", typ=None, **changes):
        state, nonce = asked["state"], asked["nonce"]
        claims = {"iss": self.issuer, "aud": self.client, "sub": "1", "nonce": nonce}
        claims |= {"iat": time.time(), "exp": time.time() + 60}
        claims |= {"email": "ada@hospital.example", "email_verified": True, **changes}
        claims = {name: value for name, value in claims.items() if value is not None}
        if changes.get("nonce") == ["NONCE"]:
            claims["nonce"] = [nonce]
        header = {"alg": algorithm} | ({} if typ is None else {"typ": typ})
        self.token = jwt.encode(header, claims, key or self.key, algorithms=[algorithm])
        return f"/oidc/return?code=x&state={state}"


@pytest.fixture
def fake(tmp_path):
    made = FakeProvider(tmp_path / "page")
    made.connected("ada@hospital.example", "operator")
    made.asked.clear()
    yield made
    made.site.close()


@pytest.mark.slow
def test_oidc_token_that_is_not_for_this_log_in_is_refused(fake):
    assert fake.enter() == 303
    assert fake.enter(azp="console") == 303
    assert fake.enter(aud=["console"]) == 303
    assert fake.enter(aud=["console", "another"], azp="console") == 303
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
        {"key": signing_key("another's")},
        {"key": OctKey.import_key(SECRET), "algorithm": "HS256"},
        {"algorithm": "RS512"},
        {"key": RSAKey.generate_key(1024)},
        {"nonce": ["NONCE"]},
        {"azp": ["console"]},
        {"typ": "at+jwt"},
        {"email_verified": False},
        {"sub": "2"},
        {"sub": 1},
    )
    assert {str(each): fake.enter(**each) for each in refused} == {str(each): 403 for each in refused}


class ProxyHandler(BaseHTTPRequestHandler):
    """Answers whatever is asked through it as somebody's own provider would."""

    def do_GET(self):
        issuer = self.path.partition("/.well-known")[0]
        places = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        body = json.dumps({"issuer": issuer, **{place: f"{issuer}/{place}" for place in places}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.heavy
@pytest.mark.parametrize("is_option", [False, True])
def test_proxy_of_the_environment_is_not_used_for_the_provider(tmp_path, monkeypatch, is_option):
    """The attack: a second page with the same provider, whose environment leads to somebody's own one."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ProxyHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxy, issuer = f"http://127.0.0.1:{server.server_port}", f"http://127.0.0.1:{free_port()}"
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        site = Site(PageSettings("Test", (HOST,), 8700, False, tmp_path, (), ()))
        provider = Provider(issuer, "console", SECRET, "email", f"http://{HOST}/oidc/return")
        mount_oidc(site, replace(provider, proxy=proxy) if is_option else provider)
        assert (Browser(site).get("/oidc/start").status_code == 200) is is_option
        assert site.accounts.duties.provider.endswith(f" {proxy}") is is_option
        site.close()
        server.shutdown()


@pytest.mark.heavy
def test_certificates_of_the_environment_are_not_trusted(tmp_path, monkeypatch):
    (tmp_path / "none.pem").write_text("no certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    oidc._http_client("").close()
    with pytest.raises(ConfigurationError) as caught:
        oidc._http_client("ftp://user:password@proxy.example")
    assert "password" not in str(caught.value)


def test_short_signing_key_of_the_identity_provider_is_refused(fake):
    fake.key = RSAKey.generate_key(1024)
    assert fake.enter() == 403
    fake.key = signing_key()
    assert fake.enter() == 303


def test_email_and_its_verification_must_come_from_one_document(fake):
    fake.userinfo = {"sub": "1", "email": "ada@hospital.example", "email_verified": False}
    assert fake.enter(email=None, email_verified=True) == 403
    fake.userinfo["email_verified"] = True
    assert fake.enter(email=None, email_verified=None) == 303


@pytest.mark.slow
def test_log_ins_begun_by_strangers_do_not_end_an_honest_one(fake):
    honest = Browser(fake.site)
    begun = honest.get("/oidc/start")
    stranger = Browser(fake.site)
    for _ in range(examples(40, 1001)):
        assert stranger.get("/oidc/start").status_code == 200
    assert not fake.asked  # the addresses, which are known, are not asked for
    assert came_back(honest, fake.led_back(begun)).status_code == 303


@pytest.mark.heavy
@pytest.mark.parametrize("passed_s", [601.0, -86400.0])
def test_begun_log_in_expires_and_its_state_cannot_be_forged(fake, monkeypatch, passed_s):
    browser = Browser(fake.site)
    state = led_there(browser.get("/oidc/start"))[1]["state"]
    later = f"9{state}"
    (cookie,) = browser.client.cookies
    browser.client.cookies = {cookie: later}
    assert came_back(browser, f"/oidc/return?code=x&state={later}").status_code == 403
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + passed_s)
    browser.client.cookies = {cookie: state}
    assert came_back(browser, f"/oidc/return?code=x&state={state}").status_code == 403
    assert not fake.asked


def test_slow_identity_provider_occupies_few_threads_of_the_page(tmp_path):
    fake = FakeProvider(tmp_path / "page")
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
        assert [each.result() for each in held] == [200] * 4
    assert Browser(fake.site).get("/oidc/start").status_code == 200
    fake.site.close()


def test_oidc_code_is_exchanged_with_the_announced_pkce_verifier(fake):
    assert fake.enter() == 303
    exchange = [each for each in fake.asked if each.method == "POST"][-1]
    sent = dict(parse_qsl(exchange.content.decode()))
    assert (sent["grant_type"], sent["code"]) == ("authorization_code", "x")
    assert len(sent["code_verifier"]) >= 43
    assert exchange.headers["authorization"] == httpx.BasicAuth("console", SECRET)._auth_header
    begun = led_there(Browser(fake.site).get("/oidc/start"))[1]
    assert begun["code_challenge_method"] == "S256"
    assert begun["code_challenge"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("issuer", "status"),
    [
        ("https://idp.example", 303),
        ("https://IDP.example:443/", 303),
        ("https://idp.example:444", 403),
        ("https://idp.example.evil.example", 403),
        ("https://idp.example@evil.example", 403),
        ("https://idp.example/realm", 403),
        ("http://idp.example", 403),
        (None, 403),
    ],
)
def test_issuer_addresses_are_compared_by_their_url_parts(tmp_path, issuer, status):
    fake = FakeProvider(tmp_path / "page", roles={"it": "operator"})
    fake.metadata["issuer"] = fake.issuer = issuer
    assert fake.enter(groups=["it"]) == status
    fake.site.close()


def test_log_in_fails_if_an_address_of_the_provider_lacks_tls(tmp_path):
    fake = FakeProvider(tmp_path / "page", roles={"it": "operator"})
    for place in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
        before = dict(fake.metadata)
        for clear in ("http://idp.example", "http://localhost:80"):
            fake.metadata[place] = f"{clear}/{place}"
            assert fake.enter(groups=["it"]) == 403, place
        fake.metadata = before
    assert fake.enter(groups=["it"]) == 303
    fake.site.close()


@pytest.mark.heavy
def test_groups_decide_roles_at_each_log_in(tmp_path):
    fake = FakeProvider(tmp_path / "page", roles={"it": "operator", "officers": "viewer", "heads": "administrator"})
    accounts = fake.site.accounts
    assert [fake.enter(groups=groups) for groups in (None, [], ["others"], "others", [["it"]])] == [403] * 5
    assert accounts.people() == []
    for groups, role in ((["officers", "it"], "operator"), (["officers"], "viewer"), ("heads", "administrator")):
        assert fake.enter(groups=groups) == 303
        assert accounts.find("ada@hospital.example").role == role
    assert fake.enter(groups=["it"]) == 403  # the only administrator stays one
    bo = {"sub": "2", "email": "bo@hospital.example"}
    assert fake.enter(groups=["officers"], **bo) == 303
    fake.userinfo = {"sub": "2", "groups": ["it"]}
    assert fake.enter(**bo) == 303
    assert accounts.find("bo@hospital.example").role == "operator"
    fake.userinfo = {"sub": "1", "groups": ["heads"]}  # of somebody else
    assert fake.enter(**bo) == 403
    noted = [entry.about for entry in fake.site.audit.entries() if entry.what.startswith("role by")]
    assert noted == ["operator", "viewer", "administrator", "viewer", "operator"]
    fake.site.close()


@pytest.mark.heavy
def test_provider_name_equal_to_a_local_account_does_not_become_it(tmp_path):
    fake = FakeProvider(tmp_path / "page", roles={"it": "viewer"})
    accounts = fake.site.accounts
    accounts.set_role("ada@hospital.example", "administrator")
    accounts.set_role("bo@hospital.example", "administrator")
    refused = fake.entered(groups=["it"])
    assert refused.status_code == 403
    assert "is not connected with this person" in refused.text
    assert accounts.sessions() == []
    assert accounts.find("ada@hospital.example").role == "administrator"
    ada = fake.connected("ada@hospital.example", "administrator", groups=["it"])
    assert fake.enter(groups=["it"], email="another.name@hospital.example") == 303  # the person counts, not the name
    assert accounts.find("another.name@hospital.example") is None
    assert fake.enter(groups=["it"], sub="2") == 403
    assert fake.enter(groups=["it"], sub="2", email="new@hospital.example") == 303
    assert fake.entered(browser=ada, begin="/account/organisation", groups=["it"], sub="2").status_code == 403
    assert [each.name for each in accounts.people() if each.connected] == [
        "ada@hospital.example",
        "new@hospital.example",
    ]
    fake.site.close()


def test_provider_log_in_without_groups_opens_no_account_by_its_name(fake):
    fake.site.accounts.set_role("bo@hospital.example", "administrator")
    refused = fake.entered(sub="2", email="bo@hospital.example")
    assert (refused.status_code, "connect the identity provider under Your account" in refused.text) == (403, True)


def test_same_oidc_subject_of_another_issuer_is_another_person(fake):
    fake.site.accounts.remove("ada@hospital.example")
    other = FakeProvider(None, "https://other.example", roles={"it": "viewer"}, site=Site(fake.site.settings))
    assert other.enter(groups=["it"]) == 303
    assert fake.enter() == 403  # the same sub, of another issuer
    other.site.close()


def test_return_from_the_provider_in_another_browser_needs_a_confirmation(fake):
    attacker, victim = Browser(fake.site), Browser(fake.site)
    place = fake.led_back(attacker.get("/oidc/start"))
    victim.client.cookies = dict(attacker.client.cookies)  # planted from another port of this machine
    before = len(fake.site.accounts.sessions())
    shown = victim.get(place)
    assert shown.status_code == 200
    assert re.search(r"<noscript>[^/]*if you have just begun to log in here yourself.*<button>", shown.text)
    sent = dict(parse_qsl(urlsplit(place).query))
    for origin in ("http://127.0.0.1:9000", "null"):
        answer = victim.post("/oidc/return", of=place, headers={"origin": origin}, **sent)
        assert answer.status_code == 403
        assert "sent by another site" in answer.text
    assert not fake.asked
    assert len(fake.site.accounts.sessions()) == before


def test_state_admits_once_however_often_the_provider_takes_the_code(fake):
    browser = Browser(fake.site)
    place = fake.led_back(browser.get("/oidc/start"))
    held = dict(browser.client.cookies)
    assert came_back(browser, place).status_code == 303
    for again in (browser, Browser(fake.site)):
        again.client.cookies = held
        answer = came_back(again, place)
        assert (answer.status_code, "was used already" in answer.text) == (403, True)


def test_account_is_connected_with_a_provider_only_in_its_own_session(fake):
    accounts = fake.site.accounts
    accounts.set_role("bo", "viewer")
    secret = accounts.link("bo")
    browser = Browser(fake.site).enter(secret)
    place = fake.led_back(browser.get("/account/organisation"), sub="2")
    for session in accounts.sessions():
        accounts.end_number(session.number)
    assert came_back(browser, place).status_code == 403
    assert not accounts.find("bo").connected
    token = accounts.make_token("bo", "script", days=1)
    asked = Browser(fake.site).get("/account/organisation", headers={"authorization": f"Bearer {token}"})
    assert "data-state" not in asked.text


def test_roles_of_groups_are_read_from_the_command_line():
    assert roles_by_group(["cn=it,dc=example=operator", "all=viewer"], ROLES) == {
        "cn=it,dc=example": "operator",
        "all": "viewer",
    }
    for wrong in ("it", "=viewer", "it=root"):
        with pytest.raises(ConfigurationError) as refused:
            roles_by_group([wrong], ROLES)
        assert refused.value.code == "no-role"
