"""What an operator reads while a run waits."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from tests.doubles.tasks import JUDGED, make_task, write_rows
from undersong_common.errors import ConfigurationError, MachineFault, PrivacyRefusal
from undersong_server.authority import Authority
from undersong_server.coordinator.grpc_transport import Presence, Waiting
from undersong_server.coordinator.metrics import Metrics
from undersong_server.coordinator.run_driver import GrpcRunDriver, _describe_test, _name_test
from undersong_server.database.journal import Journal
from undersong_server.federation.agreement import Rejected
from undersong_server.release.files import Signer
from undersong_server.runs.folder import MEASURING, RunFolder, RunStatus
from undersong_server.runs.planning import Planned
from undersong_server.runs.task import load


@pytest.fixture
def driver(tmp_path):
    from undersong_server.coordinator.grpc_transport import GrpcTransport

    (tmp_path / "run").mkdir()
    folder = RunFolder(tmp_path / "run")
    (folder.path / "plan.json").write_text("{}")  # a folder without a plan is no run
    folder.write_status(RunStatus())
    made = GrpcRunDriver(
        folder,
        GrpcTransport(Metrics()),
        expelled=lambda: [],
        public_cache=tmp_path / "cache.sqlite",
        environment={},
        number=1,
        signer=Signer(
            "clinics", Authority.create(tmp_path / "authority", "clinics", ["localhost"], now=time.time()), {}
        ),
    )
    made._needed_count = 3
    made._journal = Journal(tmp_path / "journal.sqlite")
    yield made
    made._journal.close()


class AwayTransport:
    """Everybody answers at once but those who are away; they are waited for until the watch says that it is enough."""

    def __init__(self, away):
        self.since = dict.fromkeys(away, 1.0)
        self.connected = set()

    def presence(self, names):
        return {name: Presence(self._there(name), self.since.get(name, 0.0), 0.0) for name in names}

    def _there(self, name):
        return name not in self.since or name in self.connected

    def exchange(self, requests, *, timeout_s, watch, reply_bytes):
        assert reply_bytes == 1000
        end = time.monotonic() + timeout_s
        missing = [name for name in requests if not self._there(name)]
        while missing and time.monotonic() < end:
            if watch(Waiting(self.presence(missing), len(requests) - len(missing), end - time.monotonic())):
                break
            time.sleep(0.005)
        return {name: b"" for name in requests if name not in missing}


def waited(watched, timeout_s=0.2):
    begun = time.monotonic()
    watched.exchange(dict.fromkeys(("alpha", "beta", "delta", "gamma"), b""), timeout_s=timeout_s)
    return time.monotonic() - begun


def watched_over(driver, transport):
    driver._planned = Planned("a run", {}, "", ("alpha", "beta", "delta", "gamma"), 0, None, 0.2)
    driver._transport, driver._reply_bytes = transport, 1000
    return driver


def test_party_that_missed_a_request_is_awaited_again_only_when_connected(driver):
    transport = AwayTransport(["gamma"])
    watched = watched_over(driver, transport)
    assert waited(watched, 0.05) >= 0.05  # a question that waits for less than the patience spends none of it
    assert waited(watched) >= 0.2
    assert waited(watched) < 0.1
    transport.connected.add("gamma")
    assert waited(watched) < 0.1
    transport.connected.clear()
    transport.since["gamma"] = 2.0
    assert waited(watched) >= 0.2


@pytest.mark.heavy
def test_parties_needed_for_the_quorum_are_awaited_at_every_request(driver):
    watched = watched_over(driver, AwayTransport(["gamma", "delta"]))
    assert [waited(watched) >= 0.2 for _ in range(3)] == [True, True, True]


def words(driver, answered):
    missing = {"beta": Presence(True, 0.0, 0.0)}
    driver.waits(Waiting(missing, answered, 5.0), 4)
    return driver._status.waiting.words, driver._status.waiting.goes_on_with


def test_run_waits_for_all_parties_until_everybody_has_signed(driver):
    said, needed = words(driver, 3)
    assert "3 of 4 have answered, all must before the first sum; in 5 s they are asked again" in said
    assert needed == 4


def test_run_goes_on_with_a_quorum_once_everybody_has_signed(driver):
    driver._journal.put_json("manifest/signatures", {})
    assert words(driver, 3) == (
        "waiting for beta (connected, at work); 3 of 4 have answered, the quorum is 3; in 5 s it goes on without them",
        3,
    )
    assert "it goes on only if 1 more answer by then" in words(driver, 2)[0]


def test_status_awaiting_approval_names_who_approved_and_the_plans_words(driver):
    driver.await_people(["beta"], ["alpha", "gamma"], "nine words")
    assert driver._status.waiting.words == (
        "waiting for people at beta to approve (2 of 3 hospitals have: alpha, gamma); this plan's words: nine words"
    )


def test_approval_is_written_to_the_status_at_once_despite_throttling(driver):
    """The next request may wait for a silent hospital for as long as the run has patience."""
    driver.await_people(["alpha", "beta"], [], "nine words")
    driver.say("alpha has approved: 1 of 2")
    driver.await_people(["beta"], ["alpha"], "nine words")
    assert "1 of 2 hospitals have: alpha" in driver.folder.status().words


def test_failed_run_names_who_refused_and_who_had_approved(driver, monkeypatch):
    def refuse():
        raise Rejected({"beta": PrivacyRefusal("beta refuses")}, ["alpha", "gamma"])

    monkeypatch.setattr(driver, "_conduct", refuse)
    driver.run()
    failure = driver.folder.status().error
    assert (failure.rejected_by, failure.approved_by) == (("beta",), ("alpha", "gamma"))


def test_status_says_that_a_run_is_prepared_before_its_plan_is_loaded(driver, monkeypatch):
    said = []
    monkeypatch.setattr(driver.folder, "planned", lambda: Planned("a run", {}, "", (), 0, None, 0.2))
    monkeypatch.setattr(Planned, "load", lambda _: said.append(driver.folder.status().message) or 1 / 0)
    driver.run()
    assert [words[:16] for words in said] == ["prepares the run"]


@pytest.mark.parametrize("phase", ["embedding texts", MEASURING])
def test_status_names_the_purpose_of_an_embedding_phase(driver, phase):
    driver._embedding_phase = phase
    driver._with_progress(SimpleNamespace(encode=lambda texts, on_progress: on_progress(1, 2)))(["a text"])
    driver._show(durable=True)
    status = driver.folder.status()
    assert (status.phase, status.done, status.total) == (phase, 1, 2)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("private sum who/1", "private sum: how well it goes"),
        ("who/1: left out: alpha is away", "private sum: how well it goes; left out: alpha is away"),
        ("private sum who/1: alpha lies", "private sum: how well it goes; alpha lies"),
        ("who/2: left out: alpha is away", "who/2: left out: alpha is away"),
        ("labels are read", "labels are read"),
        ("alpha has approved: 1 of 5", "alpha has approved: 1 of 5"),
    ],
)
def test_status_and_log_name_a_sum_by_its_question(driver, words, shown):
    driver._sum_titles = {"who/1": "how well it goes", "labels": "how many of each"}
    driver.update(words, 1, 5)
    driver.say(words)
    driver._show(durable=True)
    assert driver.folder.status().phase == shown
    assert driver.folder.log()[-1].endswith(f" {shown}")


def fail_with(error):
    def fails(*_):
        raise error

    return fails


@pytest.mark.parametrize(
    ("error", "problem", "remedy"),
    [
        (ConfigurationError("test.jsonl:3: no label", "fill the row"), "test.jsonl:3: no label", "fill the row; then"),
        (ValueError("a private word"), "internal error: ValueError", "evaluate the run on its Result"),
    ],
)
def test_run_whose_evaluation_fails_finishes_and_states_the_error(driver, monkeypatch, error, problem, remedy):
    monkeypatch.setattr(driver, "_figures", fail_with(error))
    assert driver._evaluate(None, None, None, None, None) == ((), ())
    status = driver.folder.status()
    assert status.evaluation_error.problem.startswith(problem)
    assert status.evaluation_error.remedy.startswith(remedy)
    assert f"the evaluation failed: {problem}" in driver.folder.log()[-1]
    assert "a private word" not in driver.folder.log()[-1]
    driver._end("finished", message="24 texts, not evaluated")
    ended = driver.folder.status()
    assert (ended.state, ended.evaluation_error) == ("finished", status.evaluation_error)
    assert "the evaluation failed: " in ended.words


def test_fault_of_the_machine_does_not_count_as_failed_evaluation(driver, monkeypatch):
    monkeypatch.setattr(driver, "_figures", fail_with(MachineFault("no space", "free some")))
    with pytest.raises(MachineFault):
        driver._evaluate(None, None, None, None, None)
    assert driver._status.evaluation_error is None


@pytest.mark.parametrize("charged", [False, True])
def test_charged_run_with_a_damaged_test_file_loses_only_its_evaluation(driver, tmp_path, charged):
    task = load(make_task(tmp_path, evaluation=JUDGED))
    write_rows(tmp_path / "test.jsonl", [{"note": "a", "label": "garden"}])
    driver._status = RunStatus("waiting", 1, charged=charged)
    if not charged:
        with pytest.raises(ConfigurationError, match="has no column 'text'"):
            driver._read_test(task)
        return
    assert driver._read_test(task) is None
    assert "has no column 'text'" in driver.folder.status().evaluation_error.problem
    assert _name_test(task, None) == ""
    assert _describe_test(task, None) == "test.jsonl (which could not be read)"
