"""No template writes out an amount that varies: what a page counts comes from the plan, the policy or the ledger."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = sorted(path for room in ("client", "common", "server") for path in (ROOT / room).rglob("*.j2"))
MADE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
NUMBERS = "two|three|four|five|six|seven|eight|nine|ten|dozen|hundred|[0-9]+"
COUNTED = "hospital|party|partie|patient|record|text|run|sum|question|label|generator|round|case|other"
WRITTEN_OUT = re.compile(rf"\b(?:{NUMBERS}) (?:other )?(?:{COUNTED})s?\b", re.IGNORECASE)
# A rule of the program, which no plan changes: an example that says what a case is.
RULES = {"dataset.html.j2": ["three cases"]}


def _literals(made):
    """The words within an expression stand on the page too."""
    return " … ".join(["", *re.findall(r'"([^"]*)"', made[0]), ""])


@pytest.mark.heavy
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_html_templates_write_out_no_number_that_a_setting_can_change(path):
    text = MADE.sub(_literals, path.read_text(encoding="utf-8"))
    assert WRITTEN_OUT.findall(text) == RULES.get(path.name, [])


def test_check_notices_a_number_that_is_written_out_in_a_template():
    assert WRITTEN_OUT.search("opened with those of at least four others")
    assert WRITTEN_OUT.search("A run needs 3 parties")
    assert not WRITTEN_OUT.search("opened with those of … others")
