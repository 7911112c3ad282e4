"""One version everywhere, and the versions of files that CHANGELOG.md lists are the programs' own."""

import importlib
import io
import re
import tomllib
import zipfile

import pytest
import yaml
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from tests.doubles.flower import BUNDLE
from tests.doubles.processes import ROOT, SOURCES
from undersong_common.version import VERSION

ROW = re.compile(r"^\| [^|]+ \| `(undersong_[\w/]+)\.py` \| (\d+) \|", re.MULTILINE)
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_citation_file_and_changelog_state_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION
    newest = re.findall(r"^## (\d\S*) \((\d{4}-\d\d-\d\d)\)$", CHANGES, re.MULTILINE)[0]
    assert newest == (VERSION, str(citation["date-released"]))
    assert f"| `undersong_common/version.py` | {VERSION} |" in CHANGES


@pytest.mark.parametrize(("module", "version"), ROW.findall(CHANGES))
def test_file_version_in_the_changelog_is_that_of_the_program(module, version):
    listed = importlib.import_module(module.replace("/", "."))
    assert (listed.SCHEMA_VERSION if hasattr(listed, "SCHEMA_VERSION") else listed.VERSION) == int(version)


def test_changelog_lists_every_file_version_of_the_program():
    listed = {module for module, _ in ROW.findall(CHANGES)}
    named = re.compile(r"^(?:SCHEMA_)?VERSION = \d", re.MULTILINE)
    files = [path for package in SOURCES[1:] for path in package.rglob("*.py") if named.search(path.read_text("utf-8"))]
    assert {str(path.relative_to(ROOT)).partition("/")[2].removesuffix(".py") for path in files} == listed


# The bundle that `flwr run` pushes


pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # in Flower's builder


def test_flower_bundle_contains_no_python_code():
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(BUNDLE))) as bundle:
        assert sorted(bundle.namelist()) == [".info/CONTENT", "README.md", "pyproject.toml"]


def test_flower_bundle_s_version_is_the_program_s():
    assert tomllib.loads((BUNDLE / "pyproject.toml").read_text())["project"]["version"] == VERSION


def test_components_of_the_flower_bundle_are_installed():
    components = tomllib.loads((BUNDLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    for name, kind in (("serverapp", ServerApp), ("clientapp", ClientApp)):
        module, _, attribute = components[name].partition(":")
        assert isinstance(getattr(importlib.import_module(module), attribute), kind)
