"""The report's colours can be told from what they stand on: 4.5 to 1 for text, 3 to 1 for series (WCAG 2.2)."""

from __future__ import annotations

import re
from importlib import resources

import pytest

TEXT, GRAPHICS = 4.5, 3.0
WORDS = ("ink", "soft", "faint", "accent")
GROUNDS = ("paper", "card", "wash")
PAIRS = [
    *((word, ground, TEXT) for word in WORDS for ground in GROUNDS),
    *((word, ground, TEXT) for word in ("good", "bad") for ground in ("paper", "card", f"{word}-wash")),
    *((f"c{number}", ground, GRAPHICS) for number in range(10) for ground in ("paper", "card")),
]


def css():
    return (resources.files("undersong_server.report") / "report.css").read_text(encoding="utf-8")


def themes():
    """Colours by name, of each theme; the dark one stands twice, for the system's choice and for the reader's."""
    blocks = re.findall(r"(:root[^{]*)\{([^}]*--paper:[^}]*)\}", css())
    found = {
        name.strip(): dict(map(six_digits, re.findall(r"--([\w-]+):\s*(#[0-9a-f]+)", body))) for name, body in blocks
    }
    light, dark, system = found[":root"], found[':root[data-theme="dark"]'], found[':root:not([data-theme="light"])']
    assert dark == system
    printed = {**light, **found[':root, :root[data-theme="dark"]']}
    assert len(found) == 4
    return {"light": light, "dark": dark, "printed": printed}


def six_digits(token):
    name, colour = token
    return name, colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])


def luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_ratio_equals_the_wcag_values_of_known_colours():
    assert contrast("#ffffff", "#000000") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", ["light", "dark", "printed"])
def test_text_and_series_colours_have_enough_contrast(theme):
    colours = themes()[theme]
    weak = {}
    for word, ground, least in PAIRS:
        found = contrast(colours[word], colours[ground])
        if found < least:
            weak[word, ground] = round(found, 2)
    assert weak == {}
