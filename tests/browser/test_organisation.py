"""The log-in by an identity provider in a real browser, where another port of the same host plants cookies."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.common.pages.test_oidc import FakeProvider
from tests.doubles.plain_browser import Browser
from tests.doubles.served_page import ServedPage
from undersong_common.pages.site import PageSettings, Site

pytestmark = pytest.mark.slow


@pytest.fixture
def provider(tmp_path):
    """A served page and a port of the same host: "/authorize" is the provider's, "/plant" another user's."""
    planted = []

    class Port(BaseHTTPRequestHandler):
        def do_GET(self):
            asked = dict(parse_qsl(urlsplit(self.path).query))
            self.send_response(303)
            if self.path == "/plant":
                cookies, place = planted
                for name, value in cookies.items():
                    self.send_header("set-cookie", f"{name}={value}; path=/")
            else:
                place = fake.identified(asked, groups=["it"])
            self.send_header("location", f"{served.address}{place}")
            self.end_headers()

        def log_message(self, *_):
            pass

    port = ThreadingHTTPServer(("127.0.0.1", 0), Port)
    threading.Thread(target=port.serve_forever, daemon=True).start()
    issuer = f"http://127.0.0.1:{port.server_port}"
    menu = (("/", "Now", "viewer"),)
    with ServedPage(
        lambda hosts, port: Site(PageSettings("Test", hosts, port, False, tmp_path / "page", menu, ()))
    ) as served:
        served.site.get("/", lambda visit: visit.show("account.html.j2", "Inside"))
        fake = FakeProvider(None, issuer, served.site, served.address, roles={"it": "viewer"})
        fake.metadata["authorization_endpoint"] = f"{issuer}/authorize"
        yield fake, served, issuer, planted
    port.shutdown()


def test_provider_log_in_works_and_a_planted_cookie_logs_nobody_in(provider, window):
    fake, served, port, planted = provider
    attacker = Browser(served.site, host=served.address.removeprefix("http://"))
    place = fake.led_back(attacker.get("/oidc/start"), groups=["it"])
    planted += [dict(attacker.client.cookies), place]
    victim = window(served.address)
    victim.page.goto(f"{port}/plant")
    victim.page.get_by_text("was not begun in this tab").wait_for()
    assert served.site.accounts.sessions() == []
    victim.page.goto(f"{served.address}/login")
    victim.page.get_by_role("link", name="Log in with your organisation").click()
    victim.page.wait_for_url("**/s/*/")
    assert [each.account.name for each in served.site.accounts.sessions()] == ["ada@hospital.example"]
    assert not victim.complaints
