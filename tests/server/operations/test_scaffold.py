"""``undersong new method``: what it writes is found, planned and simulated as it stands."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from tests.doubles.coded import raises
from tests.doubles.foreign_package import write_metadata
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.processes import SOURCES, succeed
from tools import wheels
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embedder
from undersong_server.operations.tasks import new_method


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """The package, installed as `pip install -e` does: on the import path, with its entry points beside it."""
    folder = tmp_path / "package"
    assert "pyproject.toml" in new_method("better-half", folder)
    write_metadata(folder / "src", "undersong_better_half", "0.1.0", (folder / "pyproject.toml").read_text())
    monkeypatch.syspath_prepend(str(folder / "src"))
    yield folder
    sys.modules.pop("better_half", None)


@pytest.mark.heavy
def test_test_of_a_scaffolded_method_passes_as_written(begun, tmp_path, monkeypatch):
    monkeypatch.setattr(Embedder, "load", HashedEmbedder)
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path / "cache"))
    spec = importlib.util.spec_from_file_location("written", begun / "tests" / "test_better_half.py")
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    trial = tmp_path / "trial"
    trial.mkdir()
    task = written.task.__wrapped__(trial)
    written.test_the_plan_names_its_private_sums(task)
    written.test_a_simulation_spends_its_plan_and_writes_a_corpus(task, trial)


@pytest.mark.slow
def test_scaffolded_package_can_be_installed_and_tested(tmp_path):
    folder = tmp_path / "package"
    new_method("better-half", folder)
    target = wheels.install(tmp_path / "site", wheels.build(folder, tmp_path / "wheels"))
    path = os.pathsep.join(map(str, (target, *SOURCES)))
    options = ("-q", "-p", "no:cacheprovider", "--rootdir", folder, "-c", "/dev/null")
    assert "2 passed" in succeed("pytest", [*options, folder], env={"PYTHONPATH": path}, timeout_s=240)


@pytest.mark.parametrize(
    ("name", "code"),
    [("wasp", "name-taken"), ("Better", "invalid-name"), ("class", "invalid-name"), ("json", "name-taken")],
)
def test_method_name_that_is_no_module_name_is_refused(tmp_path, name, code):
    with raises(ConfigurationError, code):
        new_method(name, tmp_path / "package")
    assert not (tmp_path / "package").exists()


def test_new_method_refuses_a_folder_that_is_not_empty(tmp_path):
    (tmp_path / "mine").write_text("")
    with raises(ConfigurationError, "folder-exists"):
        new_method("better-half", tmp_path)
