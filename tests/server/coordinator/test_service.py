"""The serving process: what it says of itself, and how it carries out what the operator requests."""

from __future__ import annotations

import json
import threading
import time
import urllib.request

import pytest

from tests.doubles.coded import raises
from tests.doubles.hospitals import operator
from tests.doubles.loops import wait_for
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.stream import Credentials, make_home
from tests.doubles.tasks import make_task
from undersong_common.errors import ConfigurationError, TransportError
from undersong_common.models.embedding import Embedder
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.run_driver import GrpcRunDriver
from undersong_server.coordinator.service import Coordinator
from undersong_server.database.interface import Away
from undersong_server.defaults import RunOptions
from undersong_server.operations import coordinator as operations
from undersong_server.operations import enrolment, runs
from undersong_server.runs.folder import ENDED, Awaited, RunStatus


@pytest.fixture
def home(tmp_path):
    made = make_home(tmp_path / "home", ("alpha", "beta", "gamma"), metrics="127.0.0.1:0")
    runs.plan(made.path, make_task(tmp_path / "task"), RunOptions(name="first"))
    return made.path


@pytest.fixture
def served(home, tmp_path, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    opened = CoordinatorHome(home)
    with opened.hold():
        coordinator = Coordinator(opened, public_cache=tmp_path / "cache.sqlite", environment={}, keepalive_s=5.0)
        thread = threading.Thread(target=coordinator.serve)
        thread.start()
        yield coordinator
        coordinator.stop()
        thread.join(30.0)


def test_health_command_ignores_proxy_environment_variables(served, home, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody answers
    monkeypatch.delenv("no_proxy", raising=False)
    operator("coordinator", "healthy", "--home", home)


def test_notice_command_is_set_tested_and_removed(home):
    notify = ("coordinator", "notify", "--home", home)
    operator(*notify, "http://example.org/hook", code=ConfigurationError.exit_code)
    assert "it arrived" in operator(*notify, "true", "--test")
    assert CoordinatorHome(home).settings.notify == "true"
    assert "did NOT arrive" in operator(*notify, "false", "--test", code=TransportError.exit_code)
    assert json.loads(operator(*notify, "--none", "--json")) == {"notify": ""}


def test_health_and_metrics_of_a_served_coordinator_count_its_runs(home, served):
    health = operations.health(home)
    assert health == {"status": "ok", "connected": [], "runs": {"first": "planned"}, "held_up": []}
    with urllib.request.urlopen(f"http://127.0.0.1:{served.endpoint.port}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    assert 'undersong_runs{state="planned"} 1.0' in text
    for name in ("alpha", "beta", "coordinator"):
        assert f'undersong_certificate_expires_seconds{{name="{name}"}}' in text


def test_damaged_status_file_is_reported_and_other_runs_go_on(home, served):
    (CoordinatorHome(home).run("first").path / "status.json").write_text("{")
    assert operations.health(home)["runs"] == {"first": "unreadable"}
    assert operations.show(home).served


def test_a_planned_run_is_paused_and_stopped_by_request_without_a_driver(home, served):
    folder = CoordinatorHome(home).run("first")
    runs.request(home, "first", "pause")
    wait_for(lambda: folder.status().state == "paused")
    assert folder.status().number == 1
    runs.request(home, "first", "stop")
    wait_for(lambda: folder.status().state == "stopped")
    with raises(ConfigurationError, "run-ended"):
        runs.request(home, "first", "run")


@pytest.mark.heavy
def test_a_run_goes_on_by_itself_once_the_database_answers_again(home, served, monkeypatch):
    away = [Away("PostgreSQL does not answer", "start it")] * 2

    def conduct(_driver):
        if away:
            raise away.pop()

    monkeypatch.setattr(GrpcRunDriver, "_conduct", conduct)
    runs.request(home, "first", "run")
    folder = CoordinatorHome(home).run("first")
    wait_for(lambda: folder.status().state in ENDED)
    assert (folder.status().state, away) == ("finished", [])


def test_run_that_waits_for_its_database_does_not_delay_the_stop(home, served, monkeypatch):
    tried = threading.Event()

    def start(_driver):
        tried.set()
        raise Away("PostgreSQL does not answer", "start it")

    monkeypatch.setattr(GrpcRunDriver, "start", start)
    runs.request(home, "first", "run")
    assert tried.wait(10.0)
    served.stop()
    wait_for(lambda: served._endings._stopping.is_set())


def test_notice_command_gets_missing_approvals_ends_and_certificates(home, tmp_path, monkeypatch):
    said = tmp_path / "said"
    operations.notify(home, f"tee -a {said}")
    opened = CoordinatorHome(home)
    Credentials(opened, "delta", days=3.0)
    Credentials(opened, "epsilon", days=3.0)
    enrolment.revoke(home, "epsilon", "left")
    waiting = Awaited((), 0.0, None, 1, "waiting for people at alpha to approve", "people")
    folder = opened.run("first")
    runs.request(home, "first", "run")
    coordinator = Coordinator(opened, public_cache=tmp_path / "cache.sqlite", environment={}, keepalive_s=5.0)
    try:
        coordinator._tell_of_certificates()
        for status in (RunStatus("waiting"), RunStatus("waiting", waiting=waiting), RunStatus("finished", number=1)):
            folder.write_status(status, durable=True)
            for _ in range(2):
                coordinator._tell("first", folder.status(), 1)
        wait_for(lambda: said.exists() and b"run-ended" in said.read_bytes())
    finally:
        coordinator.server.close()
        coordinator.endpoint.close()
    told = [json.loads(line) for line in said.read_text().replace("}{", "}\n{").splitlines()]
    assert [(each["event"], each["about"]) for each in told] == [
        ("certificate-expires", "delta"),
        ("request-waits", "first"),
        ("run-ended", "first"),
    ]
    assert all(set(each) == {"event", "name", "about", "at_s"} for each in told)


@pytest.mark.heavy
def test_no_notice_is_sent_of_a_run_that_ended_before_this_process(home, served, monkeypatch):
    told = []
    monkeypatch.setattr(served._notices, "tell", lambda *event, **_: told.append(event))
    runs.request(home, "first", "stop")
    folder = CoordinatorHome(home).run("first")
    wait_for(lambda: folder.status().state == "stopped")
    served._under_way.clear()
    told.clear()
    time.sleep(0.6)
    assert told == []


@pytest.mark.heavy
def test_failed_run_restarts_only_on_a_request_newer_than_its_failure(home, served):
    folder = CoordinatorHome(home).run("first")
    runs.request(home, "first", "run")
    wait_for(lambda: folder.status().state == "waiting")  # for parties that never connect
    driver = served._drivers["first"]
    driver.interrupt("failed")
    wait_for(lambda: not driver.thread.is_alive())
    folder.write_status(RunStatus("failed", number=1))
    time.sleep(0.6)
    assert folder.status().state == "failed"
    runs.request(home, "first", "run")
    wait_for(lambda: folder.status().waiting is not None)
    assert folder.status().number == 2
    assert folder.status().waiting.goes_on_with == 3


@pytest.mark.heavy
def test_time_of_a_partys_last_statement_is_kept_after_it_disconnects(served, home, monkeypatch):
    streams = {"alpha": time.monotonic() - 60.0}
    monkeypatch.setattr(type(served.server), "connected_since", property(lambda _: dict(streams)))

    def alpha():
        return next(facts for facts in enrolment.parties(home) if facts.party.name == "alpha")

    wait_for(lambda: alpha().connected)
    stated_at = alpha().stated_at
    assert stated_at == pytest.approx(time.time() - 60.0, abs=20.0)
    streams.clear()
    wait_for(lambda: not alpha().connected)
    assert alpha().stated_at == stated_at
