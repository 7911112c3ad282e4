"""Log-in by an identity provider that runs: npm's oidc-provider."""

from __future__ import annotations

import html
import re
import secrets
import shutil
import subprocess
import time
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from tests.doubles.plain_browser import Browser
from tests.doubles.processes import free_port
from undersong_common.errors import ConfigurationError
from undersong_common.pages.oidc import Provider, mount_oidc
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


def test_a_token_that_is_not_for_this_log_in_is_refused(tmp_path, monkeypatch):
    from joserfc import jwt
    from joserfc.jwk import OctKey, RSAKey

    settings = PageSettings("Test", (HOST,), 8700, False, tmp_path / "page", (("/", "Now", "viewer"),), ())
    site = Site(settings)
    site.get("/", lambda visit: visit.show("account.html.j2", "Inside"))
    issuer = "https://idp.example"
    mount_oidc(site, Provider(issuer, "console", SECRET, "email", f"http://{HOST}/oidc/return"))
    site.accounts.set_role("ada@hospital.example", "operator")
    own, other = RSAKey.generate_key(2048), RSAKey.generate_key(2048)
    given = {}

    def answered(method, address, **_):
        if address.endswith("openid-configuration"):
            places = ("authorization_endpoint", "token_endpoint", "jwks_uri")
            body = {"issuer": issuer, **{place: f"{issuer}/{place}" for place in places}}
        elif address.endswith("jwks_uri"):
            body = {"keys": [own.as_dict(private=False)]}
        else:
            body = {"id_token": given["token"]}
        return httpx.Response(200, json=body, request=httpx.Request(method, address))

    monkeypatch.setattr(httpx, "request", answered)

    def enter(*, key=own, algorithm="RS256", **changes):
        browser = Browser(site)
        begun = browser.get("/oidc/start").headers["location"]
        state, nonce = (re.search(rf"{name}=([\w-]+)", begun)[1] for name in ("state", "nonce"))
        claims = {"iss": issuer, "aud": "console", "sub": "1", "nonce": nonce, "exp": time.time() + 60}
        claims |= {"email": "ada@hospital.example", "email_verified": True, **changes}
        claims = {name: value for name, value in claims.items() if value is not None}
        given["token"] = jwt.encode({"alg": algorithm}, claims, key, algorithms=[algorithm])
        return browser.get(f"/oidc/return?code=x&state={state}").status_code

    assert enter() == 200
    assert enter(aud="another") == 403
    assert enter(iss="https://evil.example") == 403
    assert enter(nonce="replayed") == 403
    assert enter(sub=None) == 403
    assert enter(sub="") == 403
    assert enter(azp="another") == 403
    assert enter(azp="console") == 200
    assert enter(aud=["console"]) == 200
    assert enter(aud=["console", "another"]) == 403
    assert enter(aud=["console", "another"], azp="console") == 200
    assert enter(exp=time.time() - 3600) == 403
    assert enter(key=other) == 403
    assert enter(email_verified=False) == 403
    assert enter(email="eve@hospital.example") == 403
    assert enter(key=OctKey.import_key(SECRET), algorithm="HS256") == 403
    site.close()
