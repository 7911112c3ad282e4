"""The operator's and the privacy officer's decisions by keys alone: no click, and no field that a program fills."""

import re
import time

import pytest

from tests.browser.conftest import served_console
from tests.client.cli.test_cli import proposed
from tests.doubles.hospitals import CLINIC, HOSPITALS
from tests.doubles.keyboard import Keyboard
from undersong_client.consent.approvals import Proposals
from undersong_client.home import PartyHome
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.operations import runs
from undersong_server.runs.folder import RunFailure, RunStatus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def entered(window, served, person):
    """A person who has come in by a one-time link, at the first screen."""
    opened = window(served.address)
    keys = Keyboard(opened)
    opened.page.goto(served.link(person))
    opened.until("document.getElementById('code').value.length > 20")
    keys.to("Enter", "button").follow()
    opened.page.wait_for_url("**/account")
    opened.base = opened.page.url.removesuffix("/account")
    keys.to("Go on without").follow()
    opened.page.get_by_role("heading", level=1).wait_for()
    return opened, keys


def test_keyboard_alone_describes_plans_and_starts_a_run(coordinator, chromium, window):
    with served_console(coordinator, CLINIC) as console:
        operator, keys = entered(window, console, "kim")
        page = operator.page
        keys.to("Runs", "link").follow()
        keys.to("New run").follow()
        keys.to("Classification: texts with labels", "radio").press("ArrowDown", "ArrowUp")
        keys.to("Begin").follow()
        page.get_by_text("Still missing").wait_for()

        # Enter in a field checks the form, and the keys go on from that field.
        keys.to("Name (required)").write("triage").follow().until("Name (required)")
        assert page.locator("[aria-invalid]").count() > 0
        keys.to("Purpose (required)").write("trying the keys")
        keys.to("Description (required)").write("a note of an emergency department")
        keys.to("Label 1").write("cardiac").to("Meaning of label 1").write("of the heart")
        keys.to("Label 2").write("injury").to("More rows").follow()
        keys.until("Label 3").write("infection")
        keys.to("Where (required)").write("at home").to("Licence (required)").write("CC0-1.0")
        keys.to("Contact (required)").write("kim@example.org")
        keys.to("childrens (away)", "checkbox").press("Space")
        assert not page.get_by_label("childrens").is_checked()
        keys.press("Space").to("Samples").write("60")

        keys.to("Kind of generator").write("replay").to("Add a generator").follow()
        # The keys go on in the generator that was added.
        keys.until("Name (required)").to("Path (required)").write("data/corpora/handbook")
        keys.to("Try it: 5 texts").follow()
        page.locator("#trial:focus").get_by_text("5 texts,").wait_for()
        keys.to("Remove", key="Shift+Tab")
        keys.to("Name of the run").write("by keys").to("Plan this run").follow()
        page.get_by_text("Planned: no hospital is asked until you start it.").wait_for()
        assert "Planned" in page.evaluate("document.activeElement.textContent")
        task = CoordinatorHome(coordinator).run("by keys").planned().load().task
        assert (task.task.labels, task.method.samples) == (("cardiac", "injury", "infection"), 60)
        keys.to("Start").follow()
        page.get_by_text("then the hospitals are asked to approve.").wait_for()
        operator.check("started by keys")
        assert console.site.violations == []


def test_keyboard_alone_revises_a_rejected_run(coordinator, console, window):
    options = RunOptions(name="refused", parties=HOSPITALS)
    runs.plan(coordinator, CLINIC / "task.toml", options)
    refused = RunFailure("harbour-general refuses run 'refused': too much epsilon", "revise it", 3)
    CoordinatorHome(coordinator).run("refused").write_status(RunStatus("failed", 1, error=refused))
    operator, keys = entered(window, console, "rae")
    keys.to("Revise refused").follow()
    page = operator.page
    page.get_by_text("too much epsilon").wait_for()
    keys.to("Epsilon (required)").write("1.5")
    page.locator("#so-far .figures dd").filter(has_text=re.compile(r"^1\.5\b")).wait_for()
    assert keys.at() == ("textbox", "Epsilon (required)")  # the figures beside it are renewed while one types
    keys.write("1.2").to("The task file")
    page.locator("#so-far .figures dd").filter(has_text=re.compile(r"^1\.2\b")).wait_for()
    assert keys.at()[1] == "The task file"  # it stands in what was renewed
    keys.to("Epsilon (required)", key="Shift+Tab")
    keys.write("-1").to("Plan this run").follow()
    # A fault gets the focus, and is described where it stands.
    keys.until("Epsilon (required)").write("1.5").to("Plan this run").follow()
    page.get_by_text("Planned: no hospital is asked until you start it.").wait_for()
    planned = CoordinatorHome(coordinator).run(f"refused revised {time.strftime('%Y-%m-%d')}").planned()
    assert (planned.task["task"]["revises"], planned.task["privacy"]["epsilon"]) == ("refused", 1.5)
    assert console.site.violations == []


def test_keyboard_alone_approves_a_request_by_its_nine_words(page, party, window):
    manifest = proposed(party, run="approved by keys")
    officer, keys = entered(window, page, "ines")
    keys.to("approved by keys").follow()
    words = officer.page.locator("pre.words").inner_text()
    keys.to("For a specialist", "DisclosureTriangle").press("Enter")
    keys.to("Approve…", key="Shift+Tab").follow()
    keys.to("The nine words of the plan").write("three other words").to("Your name").write("Dr. Ines Roth")
    keys.to("Your role").write("privacy").to(
        "Comment, for your own files: the agreement or legal basis, for example"
    ).press("Enter")
    refusal = officer.page.locator(".problem.refused:focus")
    refusal.wait_for()
    keys.to("The nine words of the plan", key="Shift+Tab").write(words)
    keys.to("Sign the approval").follow()
    officer.page.get_by_text("Approved, and signed by this party's key").wait_for()
    found = Proposals(PartyHome(party)).known(manifest.hash)
    assert [(each.name, each.role) for each in found.people] == [("Dr. Ines Roth", "privacy officer")]
    assert page.site.violations == []


def test_keyboard_alone_rejects_a_request_while_others_arrive(page, party, window):
    manifest = proposed(party, run="rejected by keys")
    officer, keys = entered(window, page, "jan")
    keys.to("rejected by keys").follow()
    keys.to("Reject…").press("Enter")
    keys.to("Your name").write("Dr. Jan Lind").to("Why, for the operator (you need not say)").write("too many votes")
    keys.to("I reject this plan for good").press("Space")
    proposed(party, run="arrives meanwhile")
    officer.page.wait_for_timeout(2500)
    assert keys.at() == ("checkbox", "I reject this plan for good")
    keys.to("Sign the rejection").follow()
    officer.page.get_by_text("Rejected. The operator reads your reason.").wait_for()
    found = Proposals(PartyHome(party)).known(manifest.hash)
    assert (found.decision, found.reason) == ("rejected", "too many votes")
    assert page.site.violations == []


def test_keyboard_focus_stays_when_that_part_of_the_page_is_renewed(page, party, window):
    officer, keys = entered(window, page, "mia")
    keys.to("Pause", "button")
    proposed(party, run="one more")
    officer.page.get_by_role("link", name="one more").wait_for()
    assert keys.at() == ("button", "Pause")
    keys.to("one more", "link", key="Shift+Tab")
    proposed(party, run="yet another")
    officer.page.get_by_role("link", name="yet another").wait_for()
    assert keys.at() == ("link", "one more")
