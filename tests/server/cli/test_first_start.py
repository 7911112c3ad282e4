"""``coordinator serve`` where there is no coordinator yet, and the same line typed again."""

import socket
import sys

import pytest

from tests.doubles.coded import raises
from tests.doubles.typed import typed
from undersong_common.errors import ConfigurationError
from undersong_server import operations
from undersong_server.cli import first_start
from undersong_server.cli.app import app
from undersong_server.cli.first_start import FirstStart, make_where_missing

WHO_ASKS = {"operator": "Example Hospital", "contact": "Mara Holm, 0123"}


@pytest.fixture
def terminal(monkeypatch):
    """A terminal at which a person takes what is proposed, and what was asked there."""
    questions = []

    def answer(question, *, default):
        questions.append(question)
        return default

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(first_start.typer, "prompt", answer)
    monkeypatch.setattr(socket, "getfqdn", lambda: "notes.example.org")
    return questions


def test_first_start_on_a_terminal_asks_only_for_the_address(tmp_path, terminal, capsys):
    make_where_missing(tmp_path / "new", FirstStart(**WHO_ASKS), asks=True)
    facts = operations.coordinator.show(tmp_path / "new")
    assert (facts.addresses, facts.bind) == (("notes.example.org:7443",), "0.0.0.0:7443")
    assert (facts.operator, facts.contact) == tuple(WHO_ASKS.values())
    assert len(terminal) == 1
    assert facts.fingerprint in capsys.readouterr().out
    make_where_missing(tmp_path / "new", FirstStart(), asks=True)
    assert (len(terminal), capsys.readouterr().out) == (1, "")


def test_first_start_with_an_address_asks_nothing(tmp_path, terminal):
    make_where_missing(tmp_path / "new", FirstStart(addresses=["example.org:7443"]), asks=True)
    assert terminal == []


def test_first_start_without_terminal_names_the_missing_option(tmp_path):
    with raises(ConfigurationError, "no-coordinator") as refused:
        make_where_missing(tmp_path / "new", FirstStart(), asks=True)
    assert "--address" in refused.value.remedy
    assert not (tmp_path / "new").exists()


def test_serve_without_init_is_refused_and_creates_no_folder(tmp_path, terminal, monkeypatch):
    monkeypatch.setattr("undersong_server.cli.coordinator.only_tls_1_3", lambda: None)  # Other tests import gRPC.
    with raises(ConfigurationError, "no-coordinator"):
        raise typed(app, "coordinator", "serve", "--home", tmp_path / "new", standalone_mode=False).exception
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("setting", "other"),
    [
        ("addresses", ["b.example.org:7443"]),
        ("bind", "127.0.0.1:1"),
        ("operator", "Another"),
        ("name", "north"),
        ("drill", True),
        ("storage", "dbname=other"),
    ],
)
def test_later_start_accepts_only_the_settings_of_the_first_start(tmp_path, setting, other):
    first = FirstStart(addresses=["a.example.org:7443"], **WHO_ASKS)
    make_where_missing(tmp_path / "new", first, asks=False)
    make_where_missing(tmp_path / "new", first, asks=False)
    before = operations.coordinator.show(tmp_path / "new")
    with raises(ConfigurationError, "other-settings") as refused:
        make_where_missing(tmp_path / "new", FirstStart(**{setting: other}), asks=False)
    assert "dbname" not in refused.value.problem
    assert operations.coordinator.show(tmp_path / "new") == before
