"""One chromium for the tests of a session; each test has windows with a profile of their own."""

import pytest

from tests.doubles.authority import Authority
from tests.doubles.chromium import Window, chromium_path
from tests.doubles.example_console import example_coordinator
from tests.doubles.hospitals import CLINIC
from tests.doubles.party_home import HashedEmbedder, joined
from tests.doubles.served_page import ServedPage
from undersong_client.cli.options import checkpoints_folder
from undersong_client.page.application import PartyPaths
from undersong_client.page.application import build as build_page
from undersong_common.models.embedding import Embedder
from undersong_server.console.application import build as build_console
from undersong_server.console.run_pages import ConsoleContext

CONSOLE_SCREENS = {
    "home": "/",
    "parties": "/parties",
    "party": "/parties/one/childrens",
    "invite": "/parties/invite",
    "sign": "/parties/sign",
    "runs": "/runs",
    "new-run": "/runs/new",
    "run": "/runs/one/triage%20spring",
    "compare": "/compare?run=triage+spring&run=triage+summer",
    "generators": "/generators",
    "audit": "/audit",
    "people": "/people",
    "account": "/account",
}
RESULT = {"result": "/runs/one/triage%20result/result"}  # of tests.doubles.example_console.add_result
PAGE_SCREENS = {
    "now": "/",
    "requests": "/requests",
    "budget": "/budget",
    "outbox": "/outbox",
    "policy": "/policy",
    "check": "/check",
    "coordinator": "/coordinator",
    "log": "/log",
}


@pytest.fixture(scope="session")
def chromium():
    path = chromium_path()
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def window(chromium):
    """Opens windows; they close with the test."""
    opened = []

    def open_one(address, **options):
        opened.append(Window(chromium, address, **options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def served_console(home, *tasks):
    return ServedPage(lambda hosts, port: build_console(ConsoleContext(home, tasks), hosts=hosts, port=port))


def served_page(home):
    places = PartyPaths(home, checkpoints_folder(home))
    return ServedPage(lambda hosts, port: build_page(places, hosts=hosts, port=port))


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    return example_coordinator(tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def console(chromium, coordinator):
    with served_console(coordinator, CLINIC) as served:
        yield served


@pytest.fixture(scope="module")
def party(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospital")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(folder / "state"))
        patched.setattr(Embedder, "load", lambda *_: HashedEmbedder())
        yield joined(folder, Authority())


@pytest.fixture(scope="module")
def page(chromium, party):
    with served_page(party) as served:
        yield served


def enrol_by_clicks(operator, hospital, name, folder):
    """Invites, compares both fingerprints and signs, in the windows of both sides."""
    operator.page.get_by_role("link", name="Hospitals", exact=True).click()
    operator.page.get_by_role("link", name="Invite a hospital").click()
    told = operator.page.locator(".fingerprint").inner_text()
    operator.page.get_by_label("Name of the hospital").fill(name)
    operator.page.get_by_label("Telephone contact there").fill(f"Dr. {name}, 555-01")
    operator.page.get_by_role("button", name="Invite").click()
    package = operator.fetch(operator.page.get_by_role("link", name="Download the package").click, folder)
    hospital.page.get_by_role("link", name="Coordinator").click()
    hospital.page.get_by_label("Package file").set_input_files(package)
    hospital.page.get_by_label("Its fingerprint").fill(told)
    hospital.page.get_by_role("button", name="Compare").click()
    spoken = hospital.page.locator(".fingerprint").inner_text()
    request = hospital.fetch(hospital.page.get_by_role("link", name="Fetch the request").click, folder)
    operator.page.get_by_role("link", name="sign it", exact=True).click()
    operator.page.get_by_label("Request file").set_input_files(request)
    operator.page.get_by_label("Its fingerprint, as the hospital states it").fill(spoken)
    operator.page.get_by_role("button", name="Compare and sign").click()
    grant = operator.fetch(operator.page.get_by_role("link", name="Download the reply").click, folder)
    hospital.page.get_by_label("Grant file").set_input_files(grant)
    hospital.page.get_by_role("button", name="Install the certificate").click()
    hospital.page.get_by_text("Enrolled; the certificate is valid until").wait_for()
