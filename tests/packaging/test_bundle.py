"""The bundle that `flwr run` pushes: two files, this release's version, and components that are installed."""

from __future__ import annotations

import importlib
import io
import tomllib
import zipfile

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from tests.doubles.flower import BUNDLE
from undersong_common.version import VERSION

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # in Flower's builder


def test_it_holds_no_program():
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(BUNDLE))) as bundle:
        assert sorted(bundle.namelist()) == [".info/CONTENT", "README.md", "pyproject.toml"]


def test_its_version_is_the_programs():
    assert tomllib.loads((BUNDLE / "pyproject.toml").read_text())["project"]["version"] == VERSION


def test_its_components_are_installed():
    components = tomllib.loads((BUNDLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    for name, kind in (("serverapp", ServerApp), ("clientapp", ClientApp)):
        module, _, attribute = components[name].partition(":")
        assert isinstance(getattr(importlib.import_module(module), attribute), kind)
