"""How many live streams a session may hold, over real connections."""

import contextlib

import httpx
import pytest

from tests.doubles.loops import wait_for
from tests.doubles.served_page import ServedPage
from undersong_common.pages import stream as module
from undersong_common.pages.site import PageSettings, Site

pytestmark = pytest.mark.heavy


@pytest.fixture
def served(tmp_path):
    def build(hosts, port):
        site = Site(PageSettings("Test", hosts, port, False, tmp_path / "page", (("/", "Now", "viewer"),), ()))
        module.PulseStream(site, lambda _topic: module.Pulse("1"))
        return site

    with ServedPage(build) as made:
        yield made


@pytest.mark.slow
def test_a_session_holds_ten_streams_and_takes_none_from_others(served):
    def stream(stack, secret):
        cookie, _, tab = secret.partition(".")
        headers = {"cookie": f"{served.site.settings.cookie}={cookie}"}
        address = f"{served.address}/s/{tab}/stream?topic=all"
        return stack.enter_context(httpx.stream("GET", address, headers=headers, timeout=20)).status_code

    served.site.accounts.set_role("ada", "viewer")
    first, second = (served.site.accounts.begin("ada", address="x") for _ in range(2))
    with contextlib.ExitStack() as others:
        with contextlib.ExitStack() as own:
            assert [stream(own, first) for _ in range(module.MOST_OF_SESSION)] == [200] * module.MOST_OF_SESSION
            assert stream(own, first) == 429
            assert stream(others, second) == 200
        wait_for(lambda: stream(others, first) == 200, every_s=0.1)  # once connections are gone, places are free again
