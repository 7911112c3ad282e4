"""A coordinator with three parties, and its console in this process."""

from __future__ import annotations

import contextlib

import pytest

from tests.doubles.entered_console import entered_console
from tests.doubles.plain_browser import HOST, Browser
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_server.console.application import build
from undersong_server.console.run_pages import ConsoleContext

PARTIES = ("alpha", "beta", "gamma")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_home(tmp_path_factory.mktemp("coordinator") / "home", PARTIES).path


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    stated = {"where": "here", "licence": "CC0-1.0", "contact": "a@b.example"}
    make_task(folder, task={"purpose": "tests"}, publication=stated)
    return folder


@pytest.fixture(scope="module")
def site(home, tasks):
    made = build(ConsoleContext(home, (tasks,)), hosts=(HOST,), port=8700)
    made.accounts.set_role("ada", "administrator")
    yield made
    made.close()


@pytest.fixture
def console(site):
    return Browser(site).enter(site.accounts.link("ada"))


@pytest.fixture
def entered():
    """Enters the console of a folder of the test's own as its administrator."""
    with contextlib.ExitStack() as stack:
        yield lambda home: stack.enter_context(entered_console(home))
