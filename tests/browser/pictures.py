"""Writes the pictures of docs/console.md: ``python -m tests.browser.pictures``. The screens are those of the tests.

Pillow gives each picture a palette (``pip install pillow``; nothing else of this project needs it).
"""

import importlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from playwright.sync_api import sync_playwright

from tests.browser.conftest import CONSOLE_SCREENS, PAGE_SCREENS, RESULT, served_console, served_page
from tests.client.cli.test_cli import proposed
from tests.doubles.authority import Authority
from tests.doubles.chromium import WIDTHS, chromium_path
from tests.doubles.example_console import add_result, example_coordinator
from tests.doubles.hospitals import CLINIC
from tests.doubles.party_home import HashedEmbedder, joined
from tests.doubles.processes import ROOT
from undersong_common.models.embedding import Embedder

PLACE = ROOT / "docs" / "pictures" / "console"
SCALES = {"narrow": 0.7, "wide": 0.6}
HIGHEST = {"narrow": 1500, "wide": 1900}  # CSS pixels; what lies below is cut off
COLOURS = 96


def main() -> None:
    image = importlib.import_module("PIL.Image")
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        browser = driver.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox", "--disable-gpu"])

        def take(served: Any, program: str, screens: dict[str, str]) -> None:
            for width, pixels in WIDTHS.items():
                page = browser.new_context(
                    viewport={"width": pixels, "height": 500}, device_scale_factor=SCALES[width], locale="en-GB"
                ).new_page()
                page.goto(served.link(f"ada-{width}"))
                page.get_by_role("button", name="Enter").click()
                page.wait_for_url("**/account")
                base = page.url.removesuffix("/account")
                for screen, path in screens.items():
                    page.goto(f"{base}{path}")
                    page.wait_for_load_state("load")
                    height = page.evaluate("document.documentElement.scrollHeight")
                    clip = {"x": 0, "y": 0, "width": pixels, "height": min(height, HIGHEST[width])}
                    shot = image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip))).convert("RGB")
                    shot.quantize(COLOURS).save(PLACE / f"{program}-{screen}-{width}.png", optimize=True)

        coordinator = example_coordinator(folder)
        add_result(coordinator, folder)
        with served_console(coordinator, CLINIC) as console:
            take(console, "console", CONSOLE_SCREENS | RESULT)
        with mock.patch.object(Embedder, "load", return_value=HashedEmbedder()):
            party = joined(folder, Authority())
            manifest = proposed(party, run="triage spring").hash.hex()
            request = {"request": f"/requests/{manifest}", "approval": f"/requests/{manifest}/approve"}
            with served_page(party) as page:
                take(page, "page", PAGE_SCREENS | request)


if __name__ == "__main__":
    main()
