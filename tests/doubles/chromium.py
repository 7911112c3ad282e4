"""Debian's chromium, driven by Playwright: what it asks for, what it complains of, and whether axe finds anything."""

import os
import shutil
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.doubles.processes import ROOT

SHOTS = ROOT / "results" / "console"
WIDTHS = {"narrow": 390, "wide": 1600}
# Words of drawings that stand outside their box, or outside the window where nothing scrolls.
CUT = """() => [...document.querySelectorAll('svg text')].filter(text => {
  const here = text.getBoundingClientRect();
  const box = (text.closest('.scroll, figure') || text.ownerSVGElement).getBoundingClientRect();
  const drawing = text.ownerSVGElement.getBoundingClientRect();
  return here.width && (here.right > box.right + 1 || here.left < box.left - 1 || here.right > innerWidth + 1
    || here.right > drawing.right + 1 || here.left < drawing.left - 1
    || here.top < drawing.top - 1 || here.bottom > drawing.bottom + 1);
}).map(text => text.textContent)"""


def chromium_path() -> str:
    """Where chromium is. Skips the test where there is none."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium: apt-get install chromium, or name one with $CHROMIUM")
    return found


class Window:
    """One browser window with a profile of its own."""

    def __init__(
        self, browser: Any, address: str, *, width: int = 1280, dark: bool = False, script: bool = True
    ) -> None:
        self.address = self.base = address  # of the page; of its session, once somebody has entered
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=script,
            timezone_id="Europe/Berlin",
            locale="en-GB",
            accept_downloads=True,
        )
        self.context.set_default_timeout(60_000)  # a busy machine plans a run in half a minute
        self.page = self.context.new_page()
        self.elsewhere: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", self._asked)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _asked(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.address).netloc and not request.url.startswith("blob:"):
            self.elsewhere.append(request.url)

    def _said(self, message: Any) -> None:
        # A program that a test kills, in the browser's words and in those of htmx.
        quiet = (
            *("Failed to load resource", "ERR_CONNECTION", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED"),
            *("htmx:sendError", "htmx:afterRequest"),
        )
        if message.type == "error" and not any(word in message.text for word in quiet):
            self.complaints.append(message.text)

    def enter(self, link: str) -> "Window":
        """By a one-time link, as a person does."""
        self.page.goto(link)
        self.page.get_by_role("button", name="Enter").click()
        self.page.wait_for_url("**/account")
        self.base = self.page.url.removesuffix("/account")
        return self

    def go(self, path: str) -> Any:
        self.page.goto(f"{self.base}{path}")
        return self.page

    def unfold(self) -> "Window":
        """Opens everything on this screen that a reader can open."""
        self.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        return self

    def until(self, expression: str, timeout_s: float = 60.0) -> None:
        """Waits for a condition of the page. The page's policy forbids Playwright's own way, which asks within it."""
        end = time.monotonic() + timeout_s
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, expression
            self.page.wait_for_timeout(20)

    def check(self, name: str) -> None:
        """Axe finds nothing on this screen, it fits its width, no drawing cuts a word, and no other host is asked."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        said = [f"{name}: {each['id']}: {each['nodes'][0]['html'][:160]}" for each in found]
        assert not said, said
        wide = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name}: {wide} px too wide"
        cut = self.page.evaluate(CUT)
        assert cut == [], f"{name}: {cut}"
        assert not self.elsewhere, self.elsewhere
        assert not self.complaints, (name, self.complaints)

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.wait_for_load_state("load")
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def fetch(self, click: Any, folder: Path) -> Path:
        """The file that a click downloads."""
        with self.page.expect_download() as waiting:
            click()
        path = folder / waiting.value.suggested_filename
        waiting.value.save_as(path)
        return path

    def close(self) -> None:
        self.context.close()
