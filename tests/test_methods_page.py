"""Every row of docs/methods.md names a paper's part, a place in the program and a test, or says that it is not done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"(\w+) (tests/[\w/]+\.py)", " ".join(PAGE.split())))
PACKAGES = ("protocol/undersong_protocol", "client/undersong_client", "server/undersong_server", "simulation/undersong")
PROGRAM = {
    str(path): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in (ROOT / package).rglob("*")
    if path.suffix in (".py", ".toml")
}
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("| paper's part |", "|---"))
]


def test_all_four_methods_have_rows():
    assert len(ROWS) >= 40
    for name in ("wasp", "dpga", "dpkps", "discriminator"):
        assert f'`method = "{name}"`' in PAGE


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1][:40])
def test_a_row_names_its_check(row):
    part, element, here, where, verdict, check = row
    assert part
    assert element
    assert verdict.startswith(("faithful", "deliberately otherwise", "option", "not done"))
    if verdict == "not done":
        assert (where, check, "not done" in here) == ("none", "none", True)
        return
    path, _, symbol = where.partition("::")
    places = [text for name, text in PROGRAM.items() if name.endswith(f"/{path}")]
    assert places, where
    assert any(re.search(rf"^ *(class|def) {symbol}\b", text, re.M) for text in places) or not symbol, where
    file, _, name = check.partition("::")
    source = (ROOT / FILES[file]).read_text(encoding="utf-8")
    assert f"\ndef {name}(" in source
