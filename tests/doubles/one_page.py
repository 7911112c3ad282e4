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


def next_step_of(screen: str) -> str:
    """The one step with which a screen ends, without markup; fails where it does not end with one."""
    main = screen.rpartition("</main>")[0]
    last = main[main.rindex("<section ") :]
    assert 'data-part="next_step"' in last, last[:200]
    assert screen.count('data-part="next_step"') == 1
    words = re.sub(r"<[^>]+>", " ", last.partition("</h2>")[2])
    assert not main.rpartition("</section>")[2].strip()
    return " ".join(words.split()).replace(" .", ".").replace(" ,", ",")
