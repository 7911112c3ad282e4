"""Every screen at both widths, light and dark, empty, small and large: axe finds nothing, and pictures are kept."""

import re
import time
from dataclasses import asdict

import pytest

from tests.browser.conftest import CONSOLE_SCREENS, PAGE_SCREENS, RESULT, served_console, served_page
from tests.client.cli.test_cli import proposed
from tests.doubles.chromium import WIDTHS
from tests.doubles.crowds import add_parties, repeat_run
from tests.doubles.example_console import add_result, example_coordinator
from tests.doubles.hospitals import CLINIC, HOSPITALS, hospital
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_client.home import PartyHome
from undersong_client.storage.outbox import Outbox
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.operations import enrolment, overview, runs
from undersong_server.report.evaluations import EVALUATION_FILE, Evaluated, KeptMeasure
from undersong_server.runs.folder import RunFailure, RunStatus, replace_json

pytestmark = pytest.mark.slow

LARGEST_PAGE_BYTES = 300_000
ACCOUNT_MS = 2.5  # of the page of one's own account, on two cores of its own
FIRST_BYTE_MS = 100.0  # on two cores of their own; the test leaves room for what runs beside it
ROOM = 3.0


NAME_ABOVE_ITS_WORDS = "getComputedStyle(document.querySelector('td.long'), '::before').display"


@pytest.fixture(scope="module")
def finished(coordinator, tmp_path_factory):
    add_result(coordinator, tmp_path_factory.mktemp("result"))


@pytest.mark.parametrize("width", WIDTHS)
def test_every_console_screen_passes_the_browser_checks(console, finished, window, width):
    screens = CONSOLE_SCREENS | RESULT
    operator = window(console.address, width=WIDTHS[width]).enter(console.link(f"ada-{width}"))
    for name, path in screens.items():
        operator.go(path)
        operator.check(f"{name}, {width}")
        operator.shoot(f"console-{name}-{width}")
    dark = window(console.address, width=WIDTHS[width], dark=True).enter(console.link(f"dark-{width}"))
    for name, path in screens.items():
        dark.go(path)
        dark.check(f"{name}, {width}, dark")
    dark.go("/runs/one/triage%20spring")
    dark.shoot(f"console-run-dark-{width}")
    outside = window(console.address, width=WIDTHS[width])
    for name in ("login", "enter"):
        outside.go(f"/{name}")
        outside.check(name)
        outside.shoot(f"console-{name}-{width}")
    assert console.site.violations == []


def test_the_list_of_hospitals_shows_its_last_column_on_a_laptop(chromium, window, tmp_path, monkeypatch):
    home = example_coordinator(tmp_path)
    for name in HOSPITALS:
        enrolment.note_full_name(home, name, f"The {name} university hospital of the northern districts, Porto")
    left = overview.EpsilonLeft(10.0, time.time(), 3, 8.0)
    monkeypatch.setattr(overview, "epsilon_left", lambda *_: left)
    with served_console(home) as served:
        page = window(served.address, width=1400).enter(served.link()).go("/parties")
        assert page.get_by_text("of the northern districts").count() == len(HOSPITALS)
        assert page.get_by_text("less 8 of 3 runs since").count() >= len(HOSPITALS)
        region = page.get_by_role("region", name="Hospitals")
        assert region.evaluate("region => region.scrollWidth - region.clientWidth") <= 0


def test_check_box_label_with_a_link_is_laid_out_as_one_paragraph(console, coordinator, finished, window):
    aside = CoordinatorHome(coordinator).run("triage result").output / "set-aside.jsonl"
    aside.write_text('{"text": "late", "label": "injury", "generator": "mixed", "reason": "generator"}\n')
    try:
        for width in (1400, 390):
            page = window(console.address, width=width).enter(console.link(f"box-{width}")).go(RESULT["result"])
            assert page.locator("label.choice", has_text="Leave out set-aside.jsonl").evaluate(
                "label => label.children.length === 2 && label.childNodes[1].textContent.trim() === ''"
            )
    finally:
        aside.unlink()


@pytest.mark.parametrize("width", WIDTHS)
def test_form_of_a_new_run_passes_the_browser_checks(console, window, width):
    operator = window(console.address, width=WIDTHS[width]).enter(console.link(f"form-{width}"))
    page = operator.go("/runs/new")
    page.get_by_role("button", name="Begin").click()
    page.get_by_label("Kind of generator").select_option("ngram")
    page.get_by_role("button", name="Add a generator").click()
    page.locator("#generators-0").wait_for()
    for name in ("methods", "kinds"):
        page.locator(f"#{name} > summary").click()
    operator.check(f"the form of a new run, {width}")
    assert console.site.violations == []


@pytest.mark.parametrize("width", WIDTHS)
def test_screens_of_a_hidden_failed_run_pass_the_browser_checks(chromium, window, tmp_path, width):
    home = make_home(tmp_path / "home", HOSPITALS)
    runs.plan(home.path, CLINIC / "task.toml", RunOptions(name="lost", parties=HOSPITALS))
    failure = RunFailure("childrens: its people have rejected the run", "revise it", 3, HOSPITALS[:1])
    home.run("lost").write_status(RunStatus("failed", 1, error=failure))
    with served_console(home.path) as served:
        operator = window(served.address, width=WIDTHS[width]).enter(served.link())
        for path in ("/", "/runs/one/lost", "/runs"):
            operator.go(path)
            operator.check(f"{path} of a failed run, {width}")
        operator.go("/").get_by_role("button", name="Put lost away").click()
        operator.page.get_by_text("Put away: Home does not list it").wait_for()
        for path in ("/", "/runs/one/lost", "/runs", "/runs?state=archive"):
            operator.go(path)
            operator.check(f"{path} of a run that is put away, {width}")
        assert served.site.violations == []


@pytest.mark.parametrize("width", WIDTHS)
def test_compare_and_result_screens_pass_the_browser_checks(console, coordinator, finished, window, width):
    for name, value in (("triage spring", 0.71), ("triage summer", 0.64), ("triage result", 0.68)):
        measure = KeptMeasure(value, "high", percent=True, interval=(value - 0.03, value + 0.03))
        kept = Evaluated(
            "ward notes.csv, 0123abcd", {"panel score": f"{100 * value} %"}, {"panel score": measure}, 1000
        )
        replace_json(CoordinatorHome(coordinator).run(name).path / EVALUATION_FILE, asdict(kept), durable=False)
    named = "run=triage+spring&run=triage+summer&run=triage+result"
    for dark in (False, True):
        operator = window(console.address, width=WIDTHS[width], dark=dark).enter(console.link(f"c-{width}-{dark}"))
        page = operator.go(f"/compare?{named}")
        page.get_by_role("link", name="Panel score").click()
        page.wait_for_url("**sort=panel**")
        operator.check(f"compare by a figure, {width}, dark: {dark}")
        assert page.locator("table.compared thead a").all_inner_texts()[0] == "triage spring"
        page.locator("div.scroll").first.evaluate("each => { each.scrollLeft = 10000 }")
        assert page.locator("table.compared tbody th").first.is_visible()
        page = operator.go(RESULT["result"])
        page.get_by_text("Evaluate on a test file").click()
        operator.check(f"result with Evaluate open, {width}, dark: {dark}")
        page.get_by_text("Read and mark the").click()
        page.get_by_role("button", name="Mark text 1", exact=True).click()
        page.get_by_role("button", name="Download without the 1 marked").wait_for()
        operator.check(f"result with a marked text, {width}, dark: {dark}")
        page.get_by_role("button", name="Unmark text 1", exact=True).click()
        page.get_by_text("0 marked").wait_for()
        operator.shoot(f"console-evaluate-{width}")
    assert console.site.violations == []


def test_a_second_click_on_evaluate_begins_nothing_and_says_that_work_runs(
    console, coordinator, finished, window, monkeypatch
):
    calls = []

    def evaluate(*arguments):
        calls.append(arguments)
        time.sleep(3.0)
        return Evaluated("ward notes.csv, 0123abcd", {})

    monkeypatch.setattr("undersong_server.operations.releases.evaluate_uploaded", evaluate)
    operator = window(console.address).enter(console.link("twice"))
    page = operator.go(RESULT["result"])
    page.get_by_text("Evaluate on a test file").click()
    page.locator("#test").set_input_files({"name": "t.csv", "mimeType": "text/csv", "buffer": b"text,label\n"})
    page.get_by_role("button", name="Evaluate", exact=True).dblclick()
    page.get_by_text("This is under way. Another click changes nothing.").wait_for()
    page.get_by_text("Evaluated on ward notes.csv").wait_for()
    assert len(calls) == 1


def test_a_button_that_downloads_can_be_used_again_at_once(console, finished, window, tmp_path):
    operator = window(console.address).enter(console.link("downloads"))
    button = operator.go(RESULT["result"]).get_by_role("button", name="Download everything")
    for _ in range(2):
        operator.fetch(button.click, tmp_path)
        assert button.is_enabled()


@pytest.mark.parametrize("dark", [False, True])
def test_published_report_passes_the_browser_checks(coordinator, finished, window, dark):
    """As whoever receives the corpus opens it: a file, without any program."""
    report = CoordinatorHome(coordinator).run("triage result").output / "report.html"
    for width, pixels in WIDTHS.items():
        reader = window("file://", width=pixels, dark=dark)
        reader.go(str(report))
        reader.check(f"report, {width}, dark: {dark}")
        reader.shoot(f"report-{width}{'-dark' if dark else ''}")
        reader.unfold().check(f"report, all of it, {width}, dark: {dark}")


@pytest.mark.parametrize("width", WIDTHS)
def test_every_hospital_screen_passes_the_browser_checks(page, party, window, width):
    manifest = proposed(party, run=f"autumn {width}").hash.hex()
    Outbox(PartyHome(party)).record(b"", at=time.time(), kind="signature", answer_to="propose", run="autumn")
    screens = {**PAGE_SCREENS, "request": f"/requests/{manifest}", "approval": f"/requests/{manifest}/approve"}
    for dark in (False, True):
        privacy = window(page.address, width=WIDTHS[width], dark=dark).enter(page.link(f"p-{width}-{dark}"))
        for name, path in screens.items():
            privacy.go(path)
            privacy.check(f"{name}, {width}, dark: {dark}")
            if (name, width) == ("outbox", "narrow"):  # a name that stands before its words without a space
                assert privacy.page.evaluate(NAME_ABOVE_ITS_WORDS) == "block"
            if not dark:
                privacy.shoot(f"page-{name}-{width}")
    assert page.site.violations == []


def test_printed_sheet_has_room_to_sign(page, party, window):
    manifest = proposed(party, run="printed").hash.hex()
    privacy = window(page.address).enter(page.link("printer"))
    privacy.go(f"/requests/{manifest}")
    privacy.page.emulate_media(media="print")
    assert not privacy.page.get_by_role("navigation", name="Screens").is_visible()
    signatures = privacy.page.get_by_text("Signature", exact=True).all()  # of the advice, and of the decision upon it
    assert [line.is_visible() for line in signatures] == [True, True]
    assert not privacy.page.get_by_role("link", name="Approve…").is_visible()
    privacy.shoot("page-sheet-print")


def test_screens_without_any_run_pass_the_browser_checks(chromium, window, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    make_home(tmp_path / "home")
    hospital("init", "lonely", "--home", tmp_path / "lonely")
    with served_console(tmp_path / "home") as empty, served_page(tmp_path / "lonely") as alone:
        for served, screens, name in ((empty, CONSOLE_SCREENS, "console"), (alone, PAGE_SCREENS, "page")):
            person = window(served.address, width=390).enter(served.link())
            for screen, path in screens.items():
                if screen in ("party", "run", "compare"):
                    continue
                person.go(path)
                person.check(f"empty {screen}")
                assert person.page.get_by_text("internal error").count() == 0
                person.shoot(f"{name}-empty-{screen}-narrow")
            assert served.site.violations == []


def test_screens_with_one_party_and_one_run_pass_the_browser_checks(chromium, window, tmp_path):
    home = make_home(tmp_path / "home", HOSPITALS[:1])
    task = make_task(tmp_path / "task", parties=1)
    runs.plan(tmp_path / "home", task, RunOptions(name="only", parties=HOSPITALS[:1]))
    with served_console(home.path, task.parent) as served:
        operator = window(served.address, width=390).enter(served.link())
        for path in (
            "/",
            "/parties",
            f"/parties/one/{HOSPITALS[0]}",
            "/runs",
            "/runs/one/only",
            "/generators",
            "/compare",
        ):
            page = operator.go(path)
            operator.check(f"{path} of one")
            assert not re.search(r"\b1 (parties|runs|hospitals|texts|days|entries)\b", page.inner_text("main")), path
        assert served.site.violations == []


def test_screens_with_a_thousand_parties_pass_the_browser_checks(chromium, window, tmp_path):
    home = make_home(tmp_path / "home", HOSPITALS)
    add_parties(home, 1000 - len(HOSPITALS))
    runs.plan(tmp_path / "home", CLINIC / "task.toml", RunOptions(name="run 0000", parties=HOSPITALS))
    repeat_run(tmp_path / "home" / "runs" / "run 0000", 2000)
    with served_console(tmp_path / "home") as served:
        operator = window(served.address).enter(served.link())

        def first_byte(path):
            found = []
            for _ in range(5):
                operator.go(path)
                timing = operator.page.evaluate("performance.getEntriesByType('navigation')[0].toJSON()")
                assert timing["decodedBodySize"] < LARGEST_PAGE_BYTES, path
                found.append(timing["responseStart"] - timing["requestStart"])
            return min(found)

        for path in ("/", "/parties", "/parties?page=20", "/runs", "/runs?page=40", "/compare"):
            busy = first_byte("/account") / ACCOUNT_MS  # whose page does not grow: what runs beside it slows both
            assert first_byte(path) < FIRST_BYTE_MS * max(ROOM, busy), path
            operator.check(f"{path} of many")
        operator.go("/runs")
        operator.page.get_by_role("link", name="Next").click()
        operator.page.get_by_text("Page 2 of 40").wait_for()
        operator.shoot("console-many-runs-wide")
