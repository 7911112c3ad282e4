"""Both pages in a real browser: a short life by clicks, and what must hold for every screen."""

import re
import threading
import time
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from zoneinfo import ZoneInfo

import httpx
import pytest

from tests.browser.conftest import CONSOLE_SCREENS, enrol_by_clicks, served_console, served_page
from tests.client.cli.test_cli import proposed
from tests.doubles.hospitals import CLINIC, HOSPITALS, hospital
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.operations import runs
from undersong_server.operations.overview import list_runs
from undersong_server.runs.folder import RunFailure, RunStatus

pytestmark = pytest.mark.heavy

HOSTILE = '<img src=x onerror=alert(1)><script>alert(2)</script>\x1b[2J\u202e" onmouseover=alert(3) x="'


@pytest.mark.slow
def test_a_hospital_joins_and_a_run_is_planned_and_started_by_clicks(
    console, coordinator, window, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    hospital("init", "lake-clinic", "--home", tmp_path / "lake")
    operator = window(console.address).enter(console.link())
    operator.page.get_by_label("New password").fill("correct horse battery")
    operator.page.get_by_label("The same again").fill("correct horse battery")
    operator.page.get_by_role("button", name="Set the password").click()
    operator.page.get_by_text("Your password is set").wait_for()
    with served_page(tmp_path / "lake") as served:
        clinic = window(served.address).enter(served.link("hospital"))
        enrol_by_clicks(operator, clinic, "lake-clinic", tmp_path)
        clinic.check("coordinator")
        assert served.site.violations == []

    operator.page.get_by_role("link", name="Runs", exact=True).click()
    operator.page.get_by_role("link", name="New run").click()
    operator.page.get_by_label("Task file task.toml (clinic)").check()
    operator.page.get_by_role("button", name="Begin").click()
    operator.page.get_by_label("Epsilon").fill("-2")
    operator.page.locator("#wrong-privacy-epsilon").wait_for()  # while it is typed
    operator.check("new run with a fault")
    operator.page.get_by_role("button", name="Plan this run").click()
    operator.page.locator(".faulty #key-privacy-epsilon").wait_for()
    operator.page.get_by_label("Epsilon").fill("3")
    operator.page.locator("#so-far .figures dd").filter(has_text=re.compile(r"^3\b")).wait_for()
    operator.check("plan")
    operator.page.get_by_label("Name of the run").fill("not / a name")
    operator.page.get_by_role("button", name="Plan this run").click()
    operator.page.locator(".problem.refused").wait_for()  # and the form stays
    assert operator.page.get_by_label("Epsilon").input_value() == "3"
    operator.page.get_by_label("Name of the run").fill("by clicks")
    operator.page.get_by_role("button", name="Plan this run").dblclick()
    operator.page.get_by_role("button", name="Start").click()
    operator.page.get_by_text("Started: the run is prepared").wait_for()
    assert CoordinatorHome(coordinator).run("by clicks").requested().action == "run"
    assert sum(run.run == "by clicks" for run in list_runs(coordinator)) == 1
    operator.page.get_by_role("button", name="Log out").click()
    operator.page.get_by_label("Name").fill("ada")
    operator.page.get_by_label("Password").fill("correct horse battery")
    operator.page.get_by_role("button", name="Log in").click()
    operator.page.get_by_role("heading", name="Home").wait_for()
    assert console.site.violations == []


@pytest.mark.parametrize("script", [True, False])
def test_enter_button_is_enabled_once_the_link_s_code_is_there(console, window, script):
    page = window(console.address, script=script).page
    page.goto(f"{console.address}/enter")
    assert page.get_by_role("button", name="Enter").is_enabled() is not script
    if script:
        page.get_by_label("Code of the link").fill("a code")
        assert page.get_by_role("button", name="Enter").is_enabled()
        page.goto("about:blank")
        page.goto(console.link())
        assert page.get_by_label("Code of the link").input_value()
        assert page.get_by_role("button", name="Enter").is_enabled()


@pytest.mark.slow
def test_typed_values_are_kept_and_shown_beside_the_form(console, coordinator, window):
    operator = window(console.address).enter(console.link("ola"))
    operator.go("/runs/new")
    operator.page.get_by_label("Task file task.toml (clinic)").check()
    operator.page.get_by_role("button", name="Begin").click()
    figures = operator.page.locator("#so-far .figures dd")
    figures.filter(has_text=re.compile(r"^4\b")).wait_for()
    operator.page.get_by_label("Name of the run").fill("as shown")
    operator.page.get_by_label("Epsilon").fill("1.5")
    figures.filter(has_text=re.compile(r"^1\.5\b")).wait_for()
    assert operator.page.get_by_label("Name of the run").input_value() == "as shown"
    operator.page.reload()
    assert operator.page.get_by_label("Epsilon").input_value() == "1.5"
    operator.page.get_by_role("button", name="Plan this run").click()
    operator.page.get_by_role("button", name="Start").wait_for()
    assert CoordinatorHome(coordinator).run("as shown").planned().task["privacy"]["epsilon"] == 1.5


@pytest.mark.slow
def test_leaving_a_form_with_unsaved_values_asks_first(console, window):
    operator = window(console.address).enter(console.link("eva"))
    page, asked = operator.go("/runs/new"), []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    page.get_by_label("Task file task.toml (clinic)").check()
    page.get_by_role("button", name="Begin").click()
    page.locator("#so-far .figures dd").filter(has_text=re.compile(r"^4\b")).wait_for()
    page.route("**/live", lambda route: route.abort())  # the coordinator's machine is away
    page.get_by_label("Name of the run").press_sequentially("half typed")
    page.evaluate("location.reload()")
    page.wait_for_timeout(800)
    assert asked == ["beforeunload"]
    assert page.get_by_label("Name of the run").input_value() == "half typed"
    page.unroute("**/live")
    page.get_by_label("Epsilon").fill("1.5")
    page.locator("#so-far .figures dd").filter(has_text=re.compile(r"^1\.5\b")).wait_for()
    page.reload()
    assert asked == ["beforeunload"]
    assert page.get_by_label("Name of the run").input_value() == "half typed"
    page.get_by_role("button", name="Plan this run").click()
    page.get_by_role("button", name="Start").wait_for()
    assert asked == ["beforeunload"]


@pytest.mark.slow
def test_charts_fill_the_width_of_their_container_after_a_resize(console, window):
    operator = window(console.address, width=1600).enter(console.link("ina"))
    operator.go(CONSOLE_SCREENS["run"])
    operator.page.locator("figure svg").first.wait_for()
    fits = "(e) => Math.abs(Math.min(e.clientWidth - 8, 560) - e.firstChild.getBoundingClientRect().width) < 2"
    for width in (1600, 390, 700):
        operator.page.set_viewport_size({"width": width, "height": 900})
        operator.until(f"[...document.querySelectorAll('.chart')].every({fits})")
    operator.go("/parties/invite")
    operator.check("invite, resized")


@pytest.mark.slow
def test_axe_finds_no_accessibility_fault_on_the_main_screens(console, page, party, window):
    """Narrow; test_every_screen.py has all of them, in both widths, light and dark."""
    operator = window(console.address, width=390).enter(console.link("op"))
    for name in ("home", "run"):
        operator.go(CONSOLE_SCREENS[name])
        operator.check(name)
    manifest = proposed(party, run="spring").hash.hex()
    privacy = window(page.address, width=390).enter(page.link())
    for path in ("/", f"/requests/{manifest}/approve"):
        privacy.go(path)
        privacy.check(path)
    assert console.site.violations == page.site.violations == []


@pytest.mark.slow
def test_browser_shows_hostile_strings_as_plain_text(console, coordinator, page, party, window):
    runs.plan(coordinator, CLINIC / "task.toml", RunOptions(name="hostile", parties=HOSPITALS))
    folder = CoordinatorHome(coordinator).run("hostile")
    folder.say(HOSTILE)
    usage = dict.fromkeys(("kept", "retried", "dropped", "prompt_tokens", "completion_tokens", "price_usd"), 1)
    folder.tell("texts", {"step": HOSTILE, "round": 0, "texts": [(HOSTILE,) * 3]})
    folder.tell("usage", {"usage": {HOSTILE: usage}})
    folder.tell("sum", {"name": HOSTILE, "sigma": 1.0, "survivors": [HOSTILE]})
    operator = window(console.address).enter(console.link())
    dialogs = []
    operator.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for path in ("/runs/one/hostile", "/runs", "/generators", "/compare?run=hostile", "/"):
        operator.go(path)
        operator.check(path)
        assert operator.page.locator("img").count() == 0
    operator.go("/runs/one/hostile")
    assert operator.page.get_by_text("<img src=x").count() > 0
    assert operator.page.get_by_text(r"\x1b[2J").count() > 0
    (party / "status.json").write_text('{"state": "waiting", "problem": "<script>alert(1)</script>"}')
    (party / "status.json").chmod(0o600)
    privacy = window(page.address).enter(page.link())
    assert privacy.page.locator("body script").count() == 0
    privacy.go("/")
    privacy.page.get_by_text("<script>alert(1)</script>").wait_for()
    assert dialogs == []
    assert console.site.violations == page.site.violations == []


@pytest.mark.slow
def test_page_whose_stream_is_cut_says_since_when_and_catches_up(coordinator, chromium, window):
    with served_console(coordinator) as served:
        operator = window(served.address).enter(served.link())
        operator.go("/runs/one/triage%20winter")
        operator.page.wait_for_timeout(1200)
        folder = CoordinatorHome(coordinator).run("triage winter")
        folder.say("said while connected")
        operator.page.get_by_text("said while connected").first.wait_for()
        served.stop()
        operator.page.get_by_text(re.compile("^Stale since")).wait_for(timeout=15_000)
        folder.say("said while the page was away")
        served.start()
        operator.page.get_by_text("said while the page was away").first.wait_for(timeout=15_000)
        operator.page.get_by_text(re.compile("^Stale since")).wait_for(state="hidden")
        assert served.site.violations == []


@pytest.mark.slow
def test_page_of_an_ended_session_says_so_and_links_to_the_login(console, window):
    operator = window(console.address).enter(console.link("eve"))
    operator.go("/")
    console.site.accounts.remove("eve")
    operator.page.get_by_text("Your session has ended").wait_for(timeout=15_000)
    operator.page.get_by_role("link", name="Log in again").click()
    operator.page.get_by_role("heading", name="Log in").wait_for()


@pytest.mark.slow
def test_one_failing_part_of_a_screen_does_not_hide_the_others(console, coordinator, window):
    runs.plan(coordinator, CLINIC / "task.toml", RunOptions(name="half", parties=HOSPITALS))
    (CoordinatorHome(coordinator).path / "runs" / "half" / "annotations.json").write_text("{")
    operator = window(console.address).enter(console.link())
    operator.go("/runs/one/half")
    assert operator.page.get_by_text("This part cannot be shown").count() >= 1
    operator.page.get_by_text("Log file").wait_for()
    operator.page.get_by_role("button", name="Start").wait_for()
    operator.check("half")


@pytest.mark.slow
def test_double_click_or_repeated_form_performs_its_action_once(console, window):
    operator = window(console.address).enter(console.link())
    operator.go("/parties/invite")
    operator.page.get_by_label("Name of the hospital").fill("twice")
    before = len(console.site.audit.entries())
    operator.page.get_by_role("button", name="Invite").dblclick()
    operator.page.get_by_role("link", name="Download the package").wait_for()
    operator.page.go_back()
    operator.page.go_forward()
    noted = [entry for entry in console.site.audit.entries()[before:] if entry.what == "invite"]
    assert len(noted) == 1


@pytest.mark.slow
def test_message_of_a_started_run_vanishes_once_the_run_is_rejected(console, coordinator, window, monkeypatch):
    monkeypatch.setattr(CoordinatorHome, "served", property(lambda home: True))
    runs.plan(coordinator, CLINIC / "task.toml", RunOptions(name="turned down", parties=HOSPITALS))
    operator = window(console.address).enter(console.link())
    operator.go("/runs/one/turned%20down").get_by_role("button", name="Start").click()
    operator.page.get_by_text("Started: the run is prepared").wait_for()
    failure = RunFailure("harbour-general refuses: no", "", 3, ("harbour-general",))
    CoordinatorHome(coordinator).run("turned down").write_status(RunStatus("failed", 1, error=failure))
    operator.page.get_by_text("rejected by harbour-general").first.wait_for()
    operator.until("!document.querySelector('main > .told')", timeout_s=5)
    operator.page.get_by_text("Ask the same plan again").click()
    operator.page.get_by_role("button", name="Resume").click()
    operator.page.get_by_text("Asked to go on").wait_for()  # the former rejection is still the last that is known
    operator.page.evaluate("htmx.trigger(document.querySelector('[data-part=standing]'), 'renew')")
    operator.page.wait_for_timeout(1000)
    assert operator.page.get_by_text("Asked to go on").is_visible()
    runs.put_away(coordinator, "turned down")


@pytest.mark.slow
def test_click_works_while_that_part_of_the_page_is_renewed(console, window):
    operator = window(console.address).enter(console.link("slow-hand"))
    operator.go("/runs")
    link = operator.page.locator("[data-part] a[href]").first
    target = link.get_attribute("href")
    assert link.evaluate("link => link.closest('[data-part]') !== null")
    link.hover()
    operator.page.mouse.down()
    operator.page.evaluate("""async () => {
      for (const part of document.querySelectorAll("[data-part]")) htmx.trigger(part, "renew");
      await new Promise((done) => setTimeout(done, 1500));
    }""")
    operator.page.mouse.up()
    operator.page.wait_for_url(f"**{target}")


@pytest.mark.slow
def test_reload_after_a_download_does_not_undo_a_later_click(console, window, tmp_path):
    operator = window(console.address).enter(console.link("quick-hand"))
    operator.go("/parties/invite")
    operator.page.get_by_label("Name of the hospital").fill("quick")
    operator.page.get_by_role("button", name="Invite").click()
    operator.fetch(operator.page.get_by_role("link", name="Download the package").click, tmp_path)
    # As on a slow machine: the next screen's answer comes after the reload was due.
    operator.page.route("**/runs", lambda route: (time.sleep(2.5), route.continue_()))
    operator.page.get_by_role("link", name="Runs", exact=True).click()
    operator.page.get_by_role("link", name="New run").wait_for()


@pytest.mark.slow
def test_pages_work_without_javascript_by_reloading(console, window):
    plain = window(console.address, script=False)
    address, _, secret = console.link("plain").partition("#")
    plain.page.goto(address)
    plain.page.locator("#code").fill(secret)
    plain.page.get_by_role("button", name="Enter").click()
    plain.page.wait_for_url("**/account")
    plain.base = plain.page.url.removesuffix("/account")
    plain.go("/runs/one/triage%20spring")
    assert "reload it to see what is new" in plain.page.inner_text("body")
    plain.page.get_by_role("heading", name="Timeline").wait_for()


class Foreign(BaseHTTPRequestHandler):
    """A page of somebody else on another port of this host; ``asked`` is whatever reaches it."""

    asked: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self):
        self.asked.append((self.path, str(self.headers)))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>foreign</title><h1>Foreign</h1>")

    def log_message(self, *_):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("script", [True, False])
def test_page_on_another_port_gets_no_usable_session_cookie(console, window, script):
    operator = window(console.address, script=script)
    address, _, secret = console.link(f"ada-{script}").partition("#")
    operator.page.goto(address)
    operator.page.locator("#code").fill(secret)
    operator.page.get_by_role("button", name="Enter").click()
    operator.page.wait_for_url("**/account")
    operator.base = operator.page.url.removesuffix("/account")
    name = console.site.settings.cookie
    cookie = next(each["value"] for each in operator.context.cookies() if each["name"] == name)
    with ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        foreign = f"http://127.0.0.1:{server.server_port}"
        Foreign.asked.clear()
        for path in ("/", "/runs", "/s/", f"/s/{'x' * 43}/runs"):
            operator.page.goto(f"{foreign}{path}")
        operator.go("/runs")
        operator.page.goto(f"{foreign}/after")
        assert {"/", "/runs", "/after"} <= {path for path, _ in Foreign.asked}
        halves = (cookie, operator.base.rpartition("/")[2])
        assert not any(half in f"{path} {told}" for half in halves for path, told in Foreign.asked)
        server.shutdown()
    for path in ("/", "/runs", "/people", "/stream?topic=all"):
        answer = httpx.get(f"{console.address}{path}", headers={"Cookie": f"{name}={cookie}"})
        assert answer.status_code in (303, 401), path
    # It was not the cookie: the tab goes on, and so do links in new ones.
    operator.go("/runs")
    with operator.context.expect_page() as opened:
        operator.page.get_by_role("link", name="Hospitals", exact=True).click(modifiers=["Control"])
    opened.value.get_by_role("heading", name="Hospitals").wait_for()


@pytest.mark.slow
def test_filters_and_scroll_position_survive_a_renewal(console, coordinator, window):
    operator = window(console.address).enter(console.link())
    operator.go("/runs?find=triage&state=planned")
    operator.page.wait_for_timeout(1200)
    runs.plan(coordinator, CLINIC / "task.toml", RunOptions(name="triage later", parties=HOSPITALS))
    operator.page.get_by_role("link", name="triage later", exact=True).wait_for()
    assert operator.page.url.endswith("/runs?find=triage&state=planned")
    assert operator.page.locator("#find").input_value() == "triage"


def test_times_are_shown_in_the_reader_s_time_zone(console, window):
    operator = window(console.address).enter(console.link("zone"))
    time = operator.go("/audit").locator("time").first
    moment = datetime.fromisoformat(time.get_attribute("datetime")).astimezone(ZoneInfo("Europe/Berlin"))
    assert f"{moment:%Y-%m-%d %H:%M:%S}" == time.inner_text()
    assert "Europe/Berlin" in operator.page.locator("footer").inner_text()


RENEW_AND_LOOK = """async () => {
  const forms = new Set();
  for (let time = 0; time < 3; time++) {
    for (const part of document.querySelectorAll("[data-part]")) htmx.trigger(part, "renew");
    for (let frame = 0; frame < 40; frame++) {
      await new Promise(requestAnimationFrame);
      for (const each of document.querySelectorAll("time")) forms.add(each.textContent.replace(/\\d/g, "0"));
    }
  }
  return [...forms];
}"""


def test_times_keep_one_format_while_a_screen_renews_itself(console, window):
    operator = window(console.address).enter(console.link("form"))
    operator.go(CONSOLE_SCREENS["run"])
    assert operator.page.evaluate(RENEW_AND_LOOK) == ["0000-00-00 00:00:00"]
