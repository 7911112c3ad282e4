"""Authors of methods and generators see their own traceback; nothing that a record could have entered is shown."""

from __future__ import annotations

import concurrent.futures
import sys
from dataclasses import replace

import pytest

from tests.doubles.party_home import HashedEmbedder
from tests.doubles.tasks import JUDGED, make_task
from undersong import cli
from undersong.run import author_errors as authors
from undersong.run.author_errors import traceback_of
from undersong_client.answering import party
from undersong_client.cli import app as hospital
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embedder
from undersong_common.program import entry
from undersong_common.text.table import read_table
from undersong_server import methods
from undersong_server.generators.kinds import ngram
from undersong_server.runs import execution, planning

SECRET = "Grandmother Aune, born 1931"


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setattr(Embedder, "load", HashedEmbedder)
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def undersong(monkeypatch, capsys, tmp_path):
    """Runs a command of ``undersong`` to its end; returns its exit code and what it said on standard error."""
    file = make_task(tmp_path, method={"name": "mixture", "samples": 8}, evaluation=JUDGED)

    def run(name, *options, main=cli.main):
        given = [name, *(["good"] if name == "try" else []), str(file)]
        out = ["--out", str(tmp_path / "out")] if name in ("simulate", "compare") else []
        monkeypatch.setattr(sys, "argv", ["undersong", *given, *out, *options])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    return run


def fails(*_, **__):
    raise ZeroDivisionError(SECRET)


@pytest.mark.heavy
@pytest.mark.parametrize(("debug", "shown"), [(["--debug"], True), ([], False)])
def test_the_author_of_a_method_sees_the_error_of_a_simulation(undersong, monkeypatch, debug, shown):
    plugged = replace(methods.load("mixture"), run=fails)
    monkeypatch.setattr(execution.methods, "load", lambda name: plugged)
    code, said = undersong("simulate", "--quiet", *debug)
    assert code == 70
    assert (SECRET in said, "in fails" in said) == (shown, shown)
    assert "--debug" in said or shown


def test_the_author_of_a_method_sees_the_error_of_its_plan(undersong, monkeypatch):
    plugged = replace(methods.load("mixture"), plan=fails)
    monkeypatch.setattr(planning.methods, "load", lambda name: plugged)
    assert SECRET in undersong("plan", "--debug")[1]
    assert SECRET not in undersong("plan")[1]


@pytest.mark.heavy
@pytest.mark.parametrize("command", ["simulate", "try"])
def test_the_author_of_a_generator_sees_its_error(undersong, monkeypatch, command):
    monkeypatch.setattr(ngram.NgramGenerator, "answer", fails)
    assert SECRET in undersong(command, "--debug")[1]
    assert SECRET not in undersong(command)[1]


@pytest.mark.heavy
def test_the_author_of_a_method_sees_the_error_of_a_comparison(undersong, monkeypatch):
    plugged = replace(methods.load("mixture"), run=fails)
    monkeypatch.setattr(execution.methods, "load", lambda name: plugged)
    options = ["--methods", "mixture", "--epsilon", "4", "--seeds", "1", "--debug"]
    assert SECRET in undersong("compare", "--quiet", *options)[1]


@pytest.mark.heavy
def test_the_error_of_a_party_in_a_simulation_is_not_shown(undersong, monkeypatch):
    monkeypatch.setattr(party.Party, "answer", fails)
    code, said = undersong("simulate", "--quiet", "--debug")
    assert code == 70
    assert "ZeroDivisionError at" in said
    assert SECRET not in said


def test_the_error_of_reading_records_is_not_shown(undersong, monkeypatch):
    monkeypatch.setattr(cli.sys.modules["undersong.run.simulation"], "private_tables", fails)
    assert SECRET not in undersong("simulate", "--quiet", "--debug")[1]


def test_a_party_s_error_that_an_author_raised_again_is_not_shown(undersong, monkeypatch):
    answer = in_module("undersong_client.answering.party", fails)

    def again(options, run):
        try:
            answer()
        except ZeroDivisionError as error:
            raise RuntimeError(f"failed: {error}") from None

    plugged = replace(methods.load("mixture"), run=again)
    monkeypatch.setattr(execution.methods, "load", lambda name: plugged)
    code, said = undersong("simulate", "--quiet", "--debug")
    assert code == 70
    assert "RuntimeError at" in said
    assert SECRET not in said


def in_module(name, function):
    """A function of a module of that name, which calls another one."""
    made: dict[str, object] = {"__name__": name, "function": function}
    exec("def called(*given, **named): return function(*given, **named)", made)
    return made["called"]


def raised(function):
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function()
    return caught.value


@pytest.mark.parametrize(
    ("way", "shown"),
    [
        (["undersong.cli", "undersong_server.runs.execution"], True),
        (["undersong.cli", "undersong_server.generators.author", "mine"], True),
        (["mine"], True),
        (["undersong.cli", "undersong.run.simulation"], False),
        (["undersong.run.simulation", "undersong_server.evaluation.panel"], False),
        (["undersong_client.answering.party", "undersong_server.runs.execution"], False),
        (["undersong_server.runs.execution", "mine", "undersong_protocol.statistics.votes", "sklearn"], False),
        (
            ["undersong.comparison.references", "undersong_dpsgd", "undersong_server.generators.kinds.transformers"],
            False,
        ),
        (["undersong_server.methods.wasp", "undersong_common.models.embedding"], False),
    ],
)
def test_a_traceback_is_shown_if_all_our_frames_hold_public_values(way, shown):
    function = fails
    for module in reversed(way):
        function = in_module(module, function)
    assert (SECRET in traceback_of(raised(function))) is shown


def test_traceback_of_another_process_or_an_error_group_is_not_shown():
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        assert traceback_of(raised(in_module("undersong_server.methods.x", pool.submit(fails).result))) == ""

    def group():
        raise ExceptionGroup("several", [ValueError(SECRET)])

    assert traceback_of(raised(in_module("undersong_server.methods.x", group))) == ""


def test_an_expected_error_of_this_program_has_no_traceback():
    error = raised(in_module("undersong_server.runs.execution", lambda: read_table(SECRET, "text")))
    assert isinstance(error, Exception)
    assert traceback_of(error) == ""

    def refuses():
        raise ConfigurationError("a column is missing")

    assert "in refuses" in traceback_of(raised(in_module("undersong_server.methods.x", refuses)))


def test_party_command_shows_no_traceback_even_with_debug(monkeypatch, capsys):
    monkeypatch.setattr(hospital, "app", in_module("undersong_server.methods.x", fails))
    monkeypatch.setattr(sys, "argv", ["undersong-party", "run", "--debug"])
    with pytest.raises(SystemExit):
        hospital.main()
    assert SECRET not in capsys.readouterr().err
    (never,) = entry.run.__defaults__ or ()
    assert never(raised(in_module("undersong_server.methods.x", fails))) == ""
    assert set(authors.CALLERS) <= set(authors.WAY)
