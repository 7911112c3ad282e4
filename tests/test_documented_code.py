"""The Python blocks of the documents run as they stand, one after the other within a page."""

import re
from pathlib import Path

import pytest

from tests.doubles.party_home import HashedEmbedder
from undersong_common.models.embedding import Embedder

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> str:
    """A page's blocks as one program whose lines have the page's numbers."""
    text = (DOCS / page).read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for found in BLOCK.finditer(text):
        first = text[: found.start(1)].count("\n")
        for number, line in enumerate(found[1].splitlines(), start=first):
            lines[number] = line
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_ten_line_example_of_the_library_page_runs(monkeypatch, tmp_path):
    pytest.importorskip("pandas")
    monkeypatch.setattr(Embedder, "load", HashedEmbedder)
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path))
    names: dict[str, object] = {}
    exec(compile(blocks("library.md"), "docs/library.md", "exec"), names)
    assert 8 <= len(names["corpus"]) <= 12  # repeated texts are dropped
    assert set(names["ledger"]["party"]) == {"party-1", "party-2", "party-3"}
    assert len(names["found"].scores) == 2
