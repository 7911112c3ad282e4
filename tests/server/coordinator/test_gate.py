"""Admission of connections, without sockets: no crowd keeps a newcomer or a party out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.pace import examples
from undersong_server.coordinator.gate import ConnectionLimits, Rate, source_of

SMALL = {"total": 20, "most_unauthenticated": 8, "per_source": 3, "known_factor": 2, "per_party": 2, "burst": 1e9}


@pytest.mark.heavy
@settings(max_examples=examples(60, 300), deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(0, 9)),
            st.tuples(st.just("prove"), st.integers(0, 60), st.integers(0, 9)),
            st.tuples(st.just("leave"), st.integers(0, 60)),
        ),
        max_size=120,
    )
)
def test_connection_limits_are_never_exceeded_by_any_sequence_of_steps(steps):
    limits: ConnectionLimits[int] = ConnectionLimits(**SMALL)
    alive: set[int] = set()
    for number, (step, *arguments) in enumerate(steps, 1000):
        if step == "take":
            leaving = limits.enter(number, f"source {arguments[0]}", 0.0)
            if leaving is not None:
                alive.add(number)
        elif step == "prove":
            leaving = limits.authenticate(1000 + arguments[0], f"party {arguments[1]}")
        else:
            leaving = [1000 + arguments[0]]
            limits.leave(leaving[0])
            leaving = [each for each in leaving if each in alive]
        assert set(leaving or []) <= alive
        alive -= set(leaving or [])
        assert len(limits) == len(alive)
        assert len(limits) <= SMALL["total"]
        assert limits.unauthenticated <= SMALL["most_unauthenticated"]


def test_source_with_most_connections_loses_one_to_a_new_source():
    limits: ConnectionLimits[str] = ConnectionLimits(**SMALL)
    for number in range(100):
        limits.enter(f"crowd {number % 4} {number}", f"crowd {number % 4}", 0.0)
    assert limits.unauthenticated == SMALL["most_unauthenticated"]
    (leaving,) = limits.enter("honest", "elsewhere", 0.0) or []
    assert leaving.startswith("crowd")
    for number in range(100, 104):  # one each: the crowd's own oldest give way, not the newcomer
        assert "honest" not in (limits.enter(f"crowd {number}", f"crowd {number % 4}", 0.0) or [])
    assert limits.authenticate("honest", "heart") == []


def test_unauthenticated_connections_displace_no_authenticated_source():
    limits: ConnectionLimits[str] = ConnectionLimits(**SMALL)
    limits.enter("first", "hospital", 0.0)
    limits.authenticate("first", "heart")
    assert [limits.enter(f"again {number}", "hospital", 0.0) for number in range(6)] == [[]] * 6
    for number in range(50):
        leaving = limits.enter(f"stranger {number}", f"address {number}", 0.0)
        assert leaving is None or all(each.startswith("stranger") for each in leaving)
    assert limits.unauthenticated == SMALL["most_unauthenticated"]
    for number in range(6):
        limits.authenticate(f"again {number}", f"party {number}")
    assert limits.unauthenticated == 2


def test_connection_from_a_new_address_is_admitted_beside_known_ones():
    limits: ConnectionLimits[str] = ConnectionLimits(**SMALL)
    for number in range(3):
        limits.enter(f"first {number}", f"hospital {number}", 0.0)
        limits.authenticate(f"first {number}", f"party {number}")
    for number in range(8):
        limits.enter(f"again {number}", f"hospital {number % 3}", 0.0)
    assert limits.enter("stranger", "elsewhere", 0.0) is None
    assert limits.enter("hospital's", "hospital 1", 0.0) == ["again 0"]


def test_oldest_connection_of_a_party_is_closed_for_its_newest():
    limits: ConnectionLimits[int] = ConnectionLimits(**SMALL)
    found = []
    for number in range(5):
        limits.enter(number, f"address {number}", 0.0)
        found.append(limits.authenticate(number, "heart"))
    assert found == [[], [], [0], [1], [2]]
    assert limits.authenticate(4, "heart") == []  # it speaks again


def test_party_with_most_connections_loses_one_at_the_total_limit():
    limits: ConnectionLimits[int] = ConnectionLimits(**SMALL)
    found = []
    for number in range(14):
        limits.enter(number, f"address {number}", 0.0)
        found.append(limits.authenticate(number, f"party {min(number, 10)}"))
    assert found[11] == []
    assert found[12] in ([10], [11])
    assert len(limits) == 12


def test_rate_of_connections_from_one_source_is_limited():
    rate = Rate(3.0, 2.0)
    assert [rate.allows("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert rate.allows("b", 0.0)
    assert [rate.allows("a", 1.0) for _ in range(3)] == [True, True, False]


def test_ipv6_address_counts_with_its_network():
    assert source_of("2001:db8:1:2:3:4:5:6") == source_of("2001:db8:1:2::1") == "2001:db8:1:2::/64"
    assert source_of("127.0.0.9") == "127.0.0.9"
