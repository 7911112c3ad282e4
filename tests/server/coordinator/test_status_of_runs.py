"""The status of a run states each fact under its own name: for whom it waits, since when, until when."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from undersong_common.errors import ConfigurationError, PrivacyRefusal, RoundAborted, UndersongError
from undersong_protocol.wire import framing
from undersong_server.coordinator import run_driver
from undersong_server.coordinator.grpc_server import GrpcServer
from undersong_server.coordinator.grpc_transport import Presence, Waiting
from undersong_server.coordinator.run_driver import GrpcRunDriver, RunDriver
from undersong_server.coordinator.service import Coordinator
from undersong_server.federation.agreement import Rejected
from undersong_server.runs.folder import Awaited, RunFailure, RunStatus

WAITING = Awaited((), 3.0, None, 2, "waiting")


def make_driver(**changes: Any) -> tuple[Any, list[dict[str, Any]]]:
    """A driver whose status nobody writes, and what it would have shown."""
    shown: list[dict[str, Any]] = []
    driver = SimpleNamespace(
        check=lambda: None,
        awaits_people=False,
        _signed=True,
        _needed_count=3,
        _status=SimpleNamespace(waiting=WAITING),
        _with_questions=lambda words: words,
        _show=lambda **facts: shown.append(facts),
    )
    vars(driver).update(changes)
    return driver, shown


@pytest.mark.parametrize("awaits_people", [True, False])
def test_progress_update_keeps_a_wait_for_machines_and_ends_one_for_people(awaits_people: bool) -> None:
    driver, shown = make_driver(awaits_people=awaits_people)
    GrpcRunDriver.update(cast(GrpcRunDriver, driver), "embedding", 3, 9)
    assert shown == [{"phase": "embedding", "done": 3, "total": 9, "waiting": None if awaits_people else WAITING}]


def test_a_run_says_since_when_it_waits_and_when_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_driver, "time", SimpleNamespace(time=lambda: 1_000.0, monotonic=lambda: 50.0))
    missing = {name: Presence(connected=False, since=1.0, heard=None) for name in ("gamma", "alpha", "beta")}
    driver, shown = make_driver()
    GrpcRunDriver.waits(cast(GrpcRunDriver, driver), Waiting(missing, answered=4, left_s=30.0), 5)
    driver._status.waiting = None
    GrpcRunDriver.waits(cast(GrpcRunDriver, driver), Waiting(missing, answered=2, left_s=30.0), 5)
    first, second = (facts["waiting"] for facts in shown)
    assert (first.since, second.since) == (3.0, 1_000.0)
    assert (first.goes_on_at, first.goes_on_with, first.whom) == (1_030.0, 3, "machines")
    assert [party.party for party in first.parties] == ["alpha", "beta", "gamma"]
    assert "4 of 5 have answered, the quorum is 3" in first.words
    assert first.words.endswith("it goes on without them")
    assert second.words.endswith("it goes on only if 1 more answer by then")


@pytest.mark.parametrize(("action", "state"), [("pause", "paused"), ("stop", "stopped")])
def test_request_sets_the_state_of_a_run_that_no_driver_runs(action: str, state: str) -> None:
    written: list[RunStatus] = []
    status = RunStatus("waiting", number=4, phase="labels", waiting=WAITING, error=RunFailure("a fault", "", 3))
    run = SimpleNamespace(
        name="spring",
        requested=lambda: SimpleNamespace(action=action, number=7),
        status=lambda: status,
        write_status=lambda written_status, **_: written.append(written_status),
    )
    coordinator = SimpleNamespace(drives=lambda _name: False, _drivers={}, _tell=lambda *_: None)
    Coordinator._tend(cast(Coordinator, coordinator), cast(Any, run))
    (now,) = written
    assert (now.state, now.number, now.waiting, now.error) == (state, 7, None, None)


REFUSALS = {"gamma": PrivacyRefusal("gamma: no", "ask gamma"), "alpha": PrivacyRefusal("alpha: no", "ask alpha")}
REJECTED = Rejected(REFUSALS, approved=["zeta", "beta", "epsilon"])


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ConfigurationError("a problem", "a remedy"), RunFailure("a problem", "a remedy", 2)),
        (RoundAborted("too few are left", "run it again"), RunFailure("too few are left", "run it again", 5)),
        (
            REJECTED,
            RunFailure(
                "gamma: no\nalpha: no", "ask gamma; ask alpha", 3, ("alpha", "gamma"), ("beta", "epsilon", "zeta")
            ),
        ),
    ],
    ids=["configuration", "aborted", "rejected"],
)
def test_a_failed_run_states_problem_remedy_and_exit_code(error: UndersongError, failure: RunFailure) -> None:
    ended: list[tuple[str, object]] = []

    def conduct() -> str:
        raise error

    driver = SimpleNamespace(
        _conduct=conduct, _interrupted=None, _end=lambda state, failure=None: ended.append((state, failure))
    )
    RunDriver._run(cast(RunDriver, driver))
    assert ended == [("failed", failure)]


def test_refusals_of_several_hospitals_are_sentences_on_a_screen() -> None:
    refusals = ["gamma refuses: no epsilon is left", "alpha refuses: its people have rejected run 'spring': No."]
    assert RunFailure("\n".join(refusals), "", 3).screen_words == "gamma refuses: no epsilon is left.\nalpha says: No."
    assert RunFailure(refusals[0], "", 3).screen_words == refusals[0]


def test_reason_why_a_corpus_was_not_evaluated_is_stated_with_a_remedy() -> None:
    shown: list[dict[str, Any]] = []
    folder = SimpleNamespace(name="spring", say=lambda _words: None)
    driver = SimpleNamespace(folder=folder, _show=lambda **facts: shown.append(facts))
    RunDriver._note_unevaluated(cast(RunDriver, driver), "no test file", "name it", 2)
    RunDriver._note_unevaluated(cast(RunDriver, driver), "no test file", "", 2)
    stated = [facts["evaluation_error"] for facts in shown]
    assert [failure.problem for failure in stated] == ["no test file"] * 2
    assert [failure.exit_code for failure in stated] == [2, 2]
    words = "evaluate the run on its Result"
    assert [failure.remedy for failure in stated] == [f"name it; then {words}", words]


def test_welcome_message_has_version_name_clock_and_keepalive() -> None:
    server = SimpleNamespace(_coordinator="clinics", _clock=lambda: 5.0, _keepalive_s=20.0)
    welcome = GrpcServer._welcome(cast(GrpcServer, server))
    assert (welcome.version, welcome.coordinator) == (framing.VERSION, "clinics")
    assert (welcome.clock_s, welcome.keepalive_s) == (5.0, 20.0)
