"""A person without a mouse: keys alone, and what such a person needs of every place that the focus stops at."""

import time
from typing import Any

MOST_STOPS = 150  # presses of Tab before a place counts as out of reach
NAME_S = 2.0  # a busy browser works names out later than the focus moves
# Of the place that has the focus: its box within the window, what lies above its middle, and its outline.
SEEN = """() => {
  const at = document.activeElement, box = at.getBoundingClientRect(), style = getComputedStyle(at);
  const [left, top] = [Math.max(box.left, 0), Math.max(box.top, 0)];
  const [right, bottom] = [Math.min(box.right, innerWidth), Math.min(box.bottom, innerHeight)];
  const hit = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
  return {
    inside: right - left > 1 && bottom - top > 1,
    free: at.contains(hit) || (at.labels && [...at.labels].some((each) => each.contains(hit))),
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
    html: at.outerHTML.slice(0, 120),
  };
}"""


class Keyboard:
    """Presses keys in the page of a ``Window``."""

    def __init__(self, window: Any) -> None:
        self.page = window.page
        self._devtools = window.context.new_cdp_session(self.page)

    def at(self) -> tuple[str, str]:
        """Role and name of the place that has the focus, as a screen reader has them; ("", "") if it is nowhere."""
        value = self._devtools.send("Runtime.evaluate", {"expression": "document.activeElement"})["result"]
        if value.get("description", "body") == "body":  # none while a screen is loaded
            return "", ""
        asked = {"objectId": value["objectId"], "fetchRelatives": False}
        node = self._devtools.send("Accessibility.getPartialAXTree", asked)["nodes"][0]
        return node["role"]["value"], node.get("name", {}).get("value", "").strip()

    def press(self, *keys: str) -> "Keyboard":
        for key in keys:
            self.page.keyboard.press(key)
        return self

    def follow(self) -> "Keyboard":
        """Presses Enter, and waits for the screen that it leads to."""
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")
        return self

    def until(self, name: str) -> "Keyboard":
        """Waits until the page has put the focus on the place of this name."""
        end = time.monotonic() + 60
        while self.at()[1] != name:
            assert time.monotonic() < end, f"{name!r} does not get the focus; it is on {self.at()}"
            self.page.wait_for_timeout(50)
        return self

    def to(self, name: str, role: str = "", *, key: str = "Tab") -> "Keyboard":
        """Presses ``key`` until a place of this name, and role if one is given, has the focus.

        Every stop on the way has a name and an outline, and lies in the window under nothing else.
        """
        passed = []
        for _ in range(MOST_STOPS):
            self.page.keyboard.press(key)
            found = self.at()
            if found == ("", ""):  # from the last place to the first
                continue
            found = self._named(found)
            passed.append(found)
            seen = self.page.evaluate(SEEN)
            assert found[1], f"no name: {seen['html']}"
            assert all((seen["inside"], seen["free"], seen["outlined"])), (found, seen)
            if found[1] == name and role in ("", found[0]):
                return self
        raise AssertionError(f"{role} {name!r} is out of reach: {passed}")

    def _named(self, found: tuple[str, str]) -> tuple[str, str]:
        end = time.monotonic() + NAME_S
        while not found[1] and time.monotonic() < end:
            self.page.wait_for_timeout(50)
            found = self.at()
        return found

    def write(self, text: str) -> "Keyboard":
        """Types over what a field holds, or the beginning of a choice."""
        if self.at()[0] == "textbox":
            self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)
        return self
