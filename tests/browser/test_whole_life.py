"""The whole life of a federation by clicks and keys alone, on both sides, with real daemons."""

import json
import re
import signal
import threading
import zipfile

import pytest

from examples.clinic.console import ConsoleDemo
from tests.browser.conftest import enrol_by_clicks
from tests.doubles.hospitals import HOSPITALS, some_notes
from tests.doubles.loops import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def demo(tmp_path, monkeypatch, chromium):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "demo" / "state"))
    for name in ("grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ConsoleDemo(tmp_path / "demo", some_notes(tmp_path / "notes", 14)) as made:
        ended = threading.Event()

        def tend():
            while not ended.wait(0.5):
                made.tend()

        tending = threading.Thread(target=tend, daemon=True)
        tending.start()
        yield made
        ended.set()
        tending.join(5)


def test_operator_and_hospital_go_from_invitation_to_verify_in_browsers(demo, window, tmp_path):
    assert len(demo.links) == 6
    address = demo.links["console"].partition("/enter")[0]
    operator = window(address).enter(demo.links["console"])
    hospitals = {}
    for name in HOSPITALS:
        hospitals[name] = window(demo.links[name].partition("/enter")[0]).enter(demo.links[name])
        enrol_by_clicks(operator, hospitals[name], name, tmp_path)
    operator.page.get_by_role("link", name="Hospitals", exact=True).click()
    for name in HOSPITALS:  # the daemons connect by themselves, and the screen says so by itself
        row = operator.page.get_by_role("row").filter(has_text=name)
        row.get_by_text("connected", exact=True).wait_for(timeout=180_000)
    operator.shoot("life-parties-wide")

    operator.page.get_by_role("link", name="Runs", exact=True).click()
    operator.page.get_by_role("link", name="New run").click()
    operator.page.get_by_label("Task file task.toml (clinic)").check()
    operator.page.get_by_role("button", name="Begin").click()
    operator.page.get_by_label("Samples").fill("60")
    operator.page.locator("#so-far dd").filter(has_text=re.compile(r"^90\b")).first.wait_for()
    operator.shoot("life-plan-wide")
    operator.page.get_by_label("Name of the run").fill("spring")
    operator.page.get_by_role("button", name="Plan this run").click()
    operator.page.get_by_role("button", name="Start").click()

    for name, each in hospitals.items():
        _approve(each, name)
    operator.page.get_by_text("has approved").first.wait_for(timeout=60_000)
    # Whatever becomes of the pages, one killed and one hanging, the run goes on.
    demo.process("console").kill()
    demo.process("console").wait()
    demo.process("childrens page").send_signal(signal.SIGSTOP)
    status = demo.home / "runs" / "spring" / "status.json"
    wait_for(
        lambda: json.loads(status.read_text())["state"] == "finished",
        300.0,
        said=lambda: status.read_text() + demo.output("coordinator")[-3000:],
    )
    demo.process("childrens page").send_signal(signal.SIGCONT)
    operator.page.get_by_text("Stale since").wait_for(timeout=15_000)
    port = address.rpartition(":")[2]
    demo.start("console", "undersong.cli", "console", "serve", "--home", demo.home, "--port", port)
    operator.page.get_by_role("link", name="Result", exact=True).wait_for(timeout=60_000)
    operator.page.get_by_text(re.compile(r"The last 12 of [6-9]\d;")).wait_for(timeout=60_000)
    operator.check("finished run")
    operator.shoot("life-run-wide")
    operator.page.get_by_role("link", name="Result", exact=True).click()
    operator.page.get_by_text("Files: whole").wait_for()
    operator.page.get_by_text("What was checked").click()
    operator.page.get_by_text("every signature, charge and statement holds").wait_for()
    operator.check("result")
    operator.shoot("life-result-wide")
    whole = operator.fetch(operator.page.get_by_role("button", name="Download everything").click, tmp_path)
    assert "spring/dossier.html" in zipfile.ZipFile(whole).namelist()
    operator.page.get_by_text("Read and mark the").click()
    operator.page.get_by_label("Label", exact=True).select_option(index=1)
    operator.page.get_by_role("button", name="Show").click()
    assert "label=" in operator.page.url
    operator.page.get_by_text("Each file (").click()
    corpus = operator.fetch(operator.page.get_by_role("link", name="synthetic.jsonl").click, tmp_path)
    assert corpus.read_bytes() == (demo.home / "runs" / "spring" / "output" / "synthetic.jsonl").read_bytes()
    operator.go("/audit")
    for what in ("invite", "sign", "run plan", "run start", "export"):
        assert operator.page.get_by_role("cell", name=what, exact=True).count() >= 1, what
    operator.check("audit")
    for name, each in hospitals.items():
        each.page.get_by_role("banner").get_by_role("link", name="Budget").click()
        each.page.get_by_role("row").filter(has_text="spring").wait_for()
        each.page.get_by_role("banner").get_by_role("link", name="Outbox").click()
        assert each.page.get_by_text("receipt").count() >= 1, name
        each.check(f"outbox of {name}")
    hospitals["childrens"].shoot("life-outbox-wide")


def _approve(hospital, name):
    hospital.page.get_by_role("link", name="Now").click()
    hospital.page.get_by_role("link", name="spring", exact=True).click(timeout=120_000)
    words = hospital.page.locator("pre.words").inner_text()
    if name == "childrens":
        hospital.check("sheet")
        hospital.shoot("life-sheet-wide")
    hospital.page.get_by_role("link", name="Approve…").click()
    hospital.page.get_by_label("The nine words of the plan").fill(words)
    hospital.page.get_by_label("Your name").fill(f"Dr. {name}")
    if hospital.page.get_by_label("I have read it").count():
        hospital.page.get_by_label("I have read it").check()
    hospital.page.get_by_role("button", name="Sign the approval").click()
    hospital.page.get_by_text("Approved, and signed by this party's key").wait_for()
