"""One version everywhere, and the versions of files that CHANGELOG.md lists are the programs' own."""

from __future__ import annotations

import importlib
import re

import pytest
import yaml

from tests.doubles.processes import ROOT, SOURCES
from undersong_common.version import VERSION

ROW = re.compile(r"^\| [^|]+ \| `(undersong_[\w/]+)\.py` \| (\d+) \|", re.MULTILINE)
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_citation_and_changes_are_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION
    newest = re.findall(r"^## (\d\S*) \((\d{4}-\d\d-\d\d)\)$", CHANGES, re.MULTILINE)[0]
    assert newest == (VERSION, str(citation["date-released"]))
    assert f"| `undersong_common/version.py` | {VERSION} |" in CHANGES


@pytest.mark.parametrize(("module", "version"), ROW.findall(CHANGES))
def test_a_listed_version_of_a_file_is_the_programs_own(module, version):
    listed = importlib.import_module(module.replace("/", "."))
    assert (listed.SCHEMA_VERSION if hasattr(listed, "SCHEMA_VERSION") else listed.VERSION) == int(version)


def test_every_version_of_a_file_is_listed():
    listed = {module for module, _ in ROW.findall(CHANGES)}
    named = re.compile(r"^(?:SCHEMA_)?VERSION = \d", re.MULTILINE)
    files = [path for package in SOURCES[1:] for path in package.rglob("*.py") if named.search(path.read_text("utf-8"))]
    assert {str(path.relative_to(ROOT)).partition("/")[2].removesuffix(".py") for path in files} == listed
