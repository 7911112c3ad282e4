"""The pages of docs/ that lead a person through the steps of their screens."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
MOST_WORDS = 400


def steps_of(person: str) -> list[str]:
    """The steps of a person's page, in their order; the page is short enough to be read."""
    text = (DOCS / f"one-page-{person}.md").read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS, person
    return [step.rstrip(".") for step in re.findall(r"(?m)^\d+\. \*\*(.+?)\*\*", text)]
