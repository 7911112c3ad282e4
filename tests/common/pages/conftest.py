"""A page with one screen and one action, and a browser without script."""

import pytest

from tests.doubles.plain_browser import HOST, Browser
from undersong_common.errors import ConfigurationError
from undersong_common.pages.site import PageSettings, Site


@pytest.fixture
def site(tmp_path):
    settings = PageSettings(
        title="Test page",
        hosts=(HOST,),
        port=8700,
        tls=False,
        folder=tmp_path / "page",
        menu=(("/", "Now", "viewer"), ("/people", "People", "administrator")),
        packages=(),
    )
    made = Site(settings)
    made.done = []
    made.get("/", lambda visit: visit.show("account.html.j2", "<b>\x1b[2J</b>"))
    made.get("/people", lambda visit: visit.show("account.html.j2", "People"), least="administrator")

    def act(visit):
        if visit.form.get("fail"):
            raise ConfigurationError("it <i>failed</i>", "try again")
        made.done.append(visit.form.get("what"))
        return visit.go("/", "done")

    made.post("/act", act, least="operator")
    yield made
    made.close()


@pytest.fixture
def browser(site):
    return Browser(site)


@pytest.fixture
def inside(site):
    site.accounts.set_role("ada", "administrator")
    return Browser(site).enter(site.accounts.link("ada"))
