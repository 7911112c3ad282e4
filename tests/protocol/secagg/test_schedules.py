"""Random schedules of drops, delays, duplicates, reorderings and crashes: the exact sum or a clean abort.

Parties are durable hosts that lose power at any point of handling a request; the coordinator is restarted from the
replies it journaled. Under every schedule: what is opened is the survivors' sum to the bit (noise included), a party
never sends two different replies for one stage, never charges twice, and where few enough were lost it must open.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.host import Cut, Host
from tests.doubles.pace import examples, slow_but
from tests.doubles.secagg import QUESTION, enrolled_key, expected_sum, parameters_of, stage_of
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_protocol.secagg.coordinator import SumAborted, UnmaskedSum, private_sum
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.transitions import Stage
from undersong_protocol.wire.messages import secagg_pb2 as wire

Coordinator = Generator[Mapping[str, bytes], Mapping[str, bytes], UnmaskedSum]


@dataclass(frozen=True)
class Event:
    """Something that happens to one party in one stage instead of a plain delivery."""

    stage: Stage
    party: int
    what: str
    cut: Cut = Cut.BEFORE


@dataclass(frozen=True)
class Schedule:
    parameters: SumParameters
    events: tuple[Event, ...]
    restarts: frozenset[Stage]
    reverse: bool


def _events(n: int) -> st.SearchStrategy[Event]:
    return st.builds(
        Event,
        st.sampled_from([stage for stage in Stage if stage is not Stage.VOID]),
        st.integers(0, n - 1),
        st.sampled_from(
            ["lose request", "lose reply", "twice", "stale first", "cut", "cut and again", "cut and again"]
        ),
        st.sampled_from(Cut),
    )


@st.composite
def schedules(draw: st.DrawFn, graph: bool = False, merkle: bool = False, largest: int = 30) -> Schedule:
    n = draw(st.integers(12 if graph else 3, largest))
    colluders = draw(st.integers(0, min(2, (n - 1) // 3)))
    dropouts = draw(st.integers(0, max(0, (n - colluders - 1) // 2 - (n % 2 == 0))))
    dropouts = min(dropouts, n - ((n + colluders) // 2 + 1), 4 if graph else n)
    planned: dict[str, Any] = {
        "tolerated_dropouts": dropouts,
        "colluders": colluders,
        "sigma": draw(st.sampled_from([0.0, 30.0, 3000.0])),
        "modulus_bits": draw(st.sampled_from([32, 37])),
        "graph_above": 3 if graph else 200,
        "dimension": 9,
        "post_quantum": draw(st.booleans()),
    }
    if merkle:  # half of the others and the dropouts, but not more than there are
        planned |= {"merkle": (min(n - 1, n // 2 + dropouts), n // 4 + 1), "tolerated_dropouts": max(1, dropouts)}
    # So few parties may have no neighbourhood at the stated failure probabilities: such a plan is refused, not run.
    try:
        parameters = parameters_of(n, **planned)
    except ConfigurationError:
        if not graph:
            raise
        reject()
    return Schedule(
        parameters,
        tuple(draw(st.lists(_events(n), max_size=12))),
        draw(st.frozensets(st.sampled_from(Stage))),
        draw(st.booleans()),
    )


def _handle(host: Host, request: bytes, events: list[Event], older: list[bytes]) -> bytes | None:
    """One request with what happens to it; the reply that arrives in time, or None."""
    reply: bytes | None = None
    arrived = True
    for event in events:
        if event.what == "lose request":
            return None
        if event.what == "lose reply":
            arrived = False
        elif event.what == "twice":
            first = host.deliver(request)
            assert host.deliver(request) == first
        elif event.what == "stale first":
            for stale in older:
                host.deliver(stale)
        else:
            host.deliver(request, event.cut)
            if event.what == "cut":
                arrived = False
    reply = host.deliver(request) if arrived else reply
    return reply


def play(schedule: Schedule) -> tuple[UnmaskedSum | None, dict[str, Host], dict[Stage, set[str]]]:
    """(the opened sum or None for a clean abort, the hosts, who answered in time in each stage)."""
    parameters = schedule.parameters
    hosts = {member.name: Host(parameters, member.name) for member in parameters.roster}
    coordinator: Coordinator = private_sum(parameters, lambda: QUESTION)
    requests = next(coordinator)
    journal: list[dict[str, bytes]] = []
    answered: dict[Stage, set[str]] = {}
    older: dict[str, list[bytes]] = {name: [] for name in hosts}
    for _ in range(20):
        replies: dict[str, bytes] = {}
        names = sorted(requests, reverse=schedule.reverse)
        stage = stage_of(wire.Request.FromString(requests[names[0]])) if names else Stage.VOID
        for name in names:
            at = [e for e in schedule.events if e.stage is stage and parameters.roster[e.party].name == name]
            reply = _handle(hosts[name], requests[name], at, older[name])
            if reply is not None:
                replies[name] = reply
            older[name].append(requests[name])
        answered[stage] = answered.get(stage, set(names)) & set(replies)
        journal.append(replies)
        if stage in schedule.restarts:
            again: Coordinator = private_sum(parameters, lambda: QUESTION)
            repeated = next(again)
            for recorded in journal[:-1]:
                repeated = again.send(recorded)
            assert repeated == requests
            coordinator = again
        try:
            requests = coordinator.send(replies)
        except StopIteration as stop:
            return stop.value, hosts, answered
        except SumAborted:
            return None, hosts, answered
    raise AssertionError("the coordinator does not end")


def check_schedule(schedule: Schedule) -> None:
    parameters = schedule.parameters
    opened, hosts, answered = play(schedule)
    everyone = {member.name for member in parameters.roster}
    alive = set(everyone)
    for stage in (Stage.ADVERTISE, Stage.REVEAL, Stage.SHARE, Stage.MASK):
        alive &= answered.get(stage, everyone)
    openers = answered.get(Stage.UNMASK, set())
    if opened is not None:
        assert set(opened.survivors) == alive
        secrets = {name: host.secrets for name, host in hosts.items()}
        unopened = alive - openers
        np.testing.assert_array_equal(
            opened.values, expected_sum(parameters, opened.survivors, unopened, secrets=secrets)
        )
        assert not opened.faults
    else:
        enough = parameters.threshold if not parameters.direct else 0
        lost = len(alive) < parameters.quorum or len(answered.get(Stage.CONSISTENCY, set())) < enough
        assert lost or len(openers) < enough or parameters.graph is not None, "nothing stood in the way of the sum"
    for host in hosts.values():
        assert all(len(payloads) == 1 for payloads in host.sent.values()), "two different replies for one stage"
        assert len(host.ledger) <= 1
        assert not host.sent.get((Stage.MASK, 0)) or host.ledger, "a vector left before the ledger was written"


SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(SETTINGS, max_examples=examples(5, 600))
@given(schedules())
def test_any_schedule_sums_right_on_the_complete_graph(schedule: Schedule) -> None:
    check_schedule(schedule)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(SETTINGS, max_examples=examples(6, 600))
@given(schedules(graph=True, largest=examples(30, 60)))
def test_any_schedule_sums_right_on_the_regular_graph(schedule: Schedule) -> None:
    check_schedule(schedule)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(SETTINGS, max_examples=examples(3, 600))
@given(schedules(graph=True, merkle=True, largest=examples(24, 60)))
def test_any_schedule_sums_right_on_the_merkle_graph(schedule: Schedule) -> None:
    assert schedule.parameters.merkle
    check_schedule(schedule)


# --- every crash point, one by one ------------------------------------------------------------------------------------


MODES: dict[str, dict[str, Any]] = {
    "shares": {"tolerated_dropouts": 2},
    "direct": {"tolerated_dropouts": 0, "colluders": 2},
    "graph": {"graph_above": 7},
    "merkle": {"merkle": (7, 5)},
}
DEFAULT = [("shares", True)]


@pytest.mark.slow
@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.VOID])
@pytest.mark.parametrize(("mode", "post_quantum"), slow_but(product(MODES, [False, True]), DEFAULT))
def test_party_resumes_with_identical_bytes_after_a_power_cut_at_any_step(
    mode: str, post_quantum: bool, stage: Stage, cut: Cut
) -> None:
    changes = MODES[mode]
    parameters = parameters_of(
        12 if "graph" in mode or mode == "merkle" else 6, sigma=100.0, post_quantum=post_quantum, **changes
    )
    events = tuple(Event(stage, party, "cut and again", cut) for party in (2, 5))
    check_schedule(Schedule(parameters, events, frozenset(Stage), False))
    opened, _, _ = play(Schedule(parameters, events, frozenset(), False))
    assert opened is not None
    assert len(opened.survivors) == parameters.size


def test_a_damaged_or_foreign_snapshot_is_not_resumed() -> None:
    parameters = parameters_of(5)
    host = Host(parameters, "p01")
    coordinator: Coordinator = private_sum(parameters, lambda: QUESTION)
    host.deliver(next(coordinator)["p01"])
    assert host.snapshot is not None
    for damaged in (b"", b"\xff\xff", host.snapshot[:20]):
        with raises(UndersongError, "damaged-state"):
            PartyMachine.restore(parameters, "p01", enrolled_key("p01"), damaged)
    with raises(UndersongError, "damaged-state"):
        PartyMachine.restore(parameters_of(5, sigma=90.0), "p01", enrolled_key("p01"), host.snapshot)
    with raises(UndersongError, "damaged-state"):
        PartyMachine.restore(parameters, "p02", enrolled_key("p02"), host.snapshot)
    with raises(UndersongError, "other-identity"):
        PartyMachine.restore(parameters, "p01", enrolled_key("p02"), host.snapshot)
