"""What a party says of itself or refuses with forges no line of the operator's screens and logs."""

from __future__ import annotations

import contextlib
import io

import grpc
import pytest

from tests.doubles.forgeries import FORGERIES, harmless
from tests.doubles.stream import Credentials, Served, Stream, make_home
from tests.doubles.tasks import make_task
from tests.doubles.typed import built, typed
from undersong_common.errors import PeerFault, UndersongError
from undersong_common.program import entry
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as fed
from undersong_server.cli.app import app
from undersong_server.defaults import RunOptions
from undersong_server.operations import runs
from undersong_server.runs.folder import Awaited, AwaitedParty, RunFailure, RunStatus

WHOLE = [forged for forged in FORGERIES if "\ud800" not in forged]  # protobuf and files hold whole characters only


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_home(tmp_path_factory.mktemp("coordinator") / "home", ("alpha", "beta", "gamma"))


@pytest.fixture(scope="module")
def run(home, tmp_path_factory):
    runs.plan(home.path, make_task(tmp_path_factory.mktemp("task")), RunOptions(name="first"))
    return home.run("first")


def screen(home, *arguments):
    """Everything a command prints, errors too, as the program's entry point prints them."""
    out, err = io.StringIO(), io.StringIO()
    command = [*arguments, "--home", str(home.path)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        entry.run(lambda: built(app).main(command, standalone_mode=False))
    return (out.getvalue() + err.getvalue()).split("\n")


@pytest.mark.slow
def test_lists_and_logs_escape_control_characters_in_stored_strings(home, run):
    commands = [["parties"], ["run", "list"], ["run", "show", "first"], ["run", "watch", "first"]]
    commands += [[*each, "--json"] for each in commands]
    honest = None
    for text in ("honest", *WHOLE[::3]):
        with contextlib.closing(home.registry()) as registry:
            registry.seen("alpha", now=1.0, software=text, embedder=text, epsilon_left=None, paused=False)
        (run.path / "log.txt").unlink(missing_ok=True)
        run.say(f"alpha refuses: {text}")
        waiting = Awaited((AwaitedParty("beta", False, None),), 1.0, None, 3, f"waiting: {text}")
        run.write_status(RunStatus("failed", 0, None, 1.5, text, 1, 2, text, waiting, RunFailure(text, text, 3)))
        screens = [screen(home, *each) for each in commands]
        for found in screens:
            assert all(harmless(line.replace("\t", "")) for line in found), (text, found)
        if "\n" not in text:  # where our own words have lines, a peer's must have been made printable on their way in
            honest = honest or [len(found) for found in screens]
            assert [len(found) for found in screens] == honest, text
    assert len(run.log()) == 1


@pytest.mark.parametrize("kind", fed.Refusal.Kind.values())
def test_control_characters_in_a_partys_refusal_are_escaped_to_one_line(kind):
    for forged in WHOLE:
        with pytest.raises(UndersongError) as error:
            codec.raise_refusal("alpha", fed.Refusal(kind=kind, problem=forged, remedy=forged))
        assert harmless(error.value.problem), ascii(forged)
        assert harmless(error.value.remedy), ascii(forged)
        assert isinstance(error.value, PeerFault) == (kind == fed.Refusal.PROTOCOL)


def test_control_characters_of_a_connecting_party_are_escaped_when_stored(home, caplog):
    forged = "undersong 1\x1b[2J\nbeta connected from 127.0.0.1 (undersong 1)"
    with Served(home) as server:
        keys = Credentials(home, "omega")
        with Stream(server.port, keys.for_grpc) as stream:
            stream.hello("omega", software=forged, epsilon_left=float("nan"))
        with Stream(server.port, keys.for_grpc) as stream, pytest.raises(grpc.RpcError):
            stream.hello("omega", version=99, software=forged)
    with contextlib.closing(home.registry()) as registry:
        found = registry.party("omega")
    assert found.software == r"undersong 1\x1b[2J\nbeta connected from ...: REFUSED, transport version 99"
    assert found.epsilon_left is None
    assert all(harmless(record.getMessage()) for record in caplog.records)
    assert typed(app, "parties", "--home", home.path).exit_code == 0
