"""Whole private sums over the real machines: every size and mode, every tolerated dropout, the exact survivors' sum."""

import tracemalloc
from collections.abc import Iterable

import numpy as np
import pytest

from tests.doubles.pace import slow_but
from tests.doubles.secagg import (
    QUESTION,
    RecordedEncapsulation,
    drive,
    enrolled_key,
    exact_sum,
    expected_sum,
    expected_variance,
    names_of,
    open_parties,
    parameters_of,
    secrets_of,
    stage_of,
)
from undersong_common.arrays import Int64
from undersong_common.privacy.noise import DiscreteGaussian
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.secagg.coordinator import SumAborted, private_sum
from undersong_protocol.secagg.evidence import check_evidence
from undersong_protocol.secagg.noise_share import CHAIN_DOMAIN, SEED_DOMAIN, _hash_link
from undersong_protocol.secagg.parameters import SumParameters
from undersong_protocol.secagg.party import PartyMachine, WantsInput
from undersong_protocol.secagg.transitions import Phase, Stage
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire.messages import secagg_pb2 as wire

pytestmark = pytest.mark.usefixtures("both_kinds_of_masks")

SHARES_STAGES = (Stage.ADVERTISE, Stage.SHARE, Stage.MASK, Stage.CONSISTENCY, Stage.UNMASK)
BEFORE_U3 = (Stage.ADVERTISE, Stage.REVEAL, Stage.SHARE, Stage.MASK)


@pytest.mark.parametrize("n", slow_but(range(1, 31), {1, 2, 3, 4, 5, 10, 30}, quick={1, 2, 3, 10}))
def test_sum_is_exact_without_dropouts(n: int) -> None:
    parameters = parameters_of(n)
    parties = open_parties(parameters)
    opened = drive(parameters, parties)
    assert opened.survivors == tuple(names_of(n))
    np.testing.assert_array_equal(opened.values, exact_sum(names_of(n), parameters.dimension))
    assert opened.variance == 0.0
    assert check_evidence(parameters, opened.evidence).survivors == opened.survivors
    assert {machine.phase for machine in parties.values()} == {Phase.DONE}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("n", "dropouts", "colluders"),
    slow_but([(3, 1, 0), (4, 1, 1), (5, 1, 0), (7, 2, 1), (10, 3, 2), (30, 9, 3)], [(3, 1, 0), (10, 3, 2)]),
)
@pytest.mark.parametrize("stage", SHARES_STAGES)
def test_sum_is_exact_after_dropouts_in_any_round(n: int, dropouts: int, colluders: int, stage: Stage) -> None:
    parameters = parameters_of(n, tolerated_dropouts=dropouts, colluders=colluders, sigma=300.0)
    lost = names_of(n)[1 : 1 + dropouts]
    opened = drive(parameters, open_parties(parameters), lambda name, at: name in lost and at == stage)
    survivors = [name for name in names_of(n) if stage not in BEFORE_U3 or name not in lost]
    assert opened.survivors == tuple(survivors)
    unopened = lost if stage in (Stage.CONSISTENCY, Stage.UNMASK) else []
    np.testing.assert_array_equal(opened.values, expected_sum(parameters, survivors, unopened))


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.SHARE, Stage.MASK])
def test_one_dropout_too_many_aborts_the_sum_with_a_reason(stage: Stage) -> None:
    parameters = parameters_of(10, tolerated_dropouts=2)
    lost = names_of(10)[:3]
    with pytest.raises(SumAborted, match="7 parties are left and n - D = 8 are needed"):
        drive(parameters, open_parties(parameters), lambda name, at: name in lost and at == stage)


@pytest.mark.parametrize("stage", [Stage.CONSISTENCY, Stage.UNMASK])
def test_fewer_parties_than_the_threshold_at_the_end_abort_the_sum(stage: Stage) -> None:
    parameters = parameters_of(10, tolerated_dropouts=2)
    lost = names_of(10)[:5]
    with pytest.raises(SumAborted, match="5 parties are left and T = 6 are needed"):
        drive(parameters, open_parties(parameters), lambda name, at: name in lost and at == stage)


def _noise_of(parameters: SumParameters, names: Iterable[str], components: int) -> Int64:
    """The sum of components 0..components-1 of these parties' noise."""
    total = np.zeros(parameters.dimension, dtype=np.int64)
    for name in names:
        value = secrets_of(parameters, name)["noise_root"]
        for index in range(components):
            seed = secrets_of(parameters, name)["noise_own"] if index == 0 else _hash_link(SEED_DOMAIN, value)
            value = value if index == 0 else _hash_link(CHAIN_DOMAIN, value)
            DiscreteGaussian.of_variance(parameters.noise_plan.components[index]).add_to(total, KeyStream(seed))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [100.0, 20.0])
@pytest.mark.parametrize("dropped", [0, 1, 2, 3])
def test_opened_noise_is_as_planned_for_any_dropouts_and_colluders(dropped: int, sigma: float) -> None:
    """n = 10, D = 3, c = 2; at sigma 100 the excess is taken back, at 20 its components would be too narrow."""
    parameters = parameters_of(10, tolerated_dropouts=3, colluders=2, dimension=20_000, sigma=sigma, modulus_bits=40)
    lost = names_of(10)[:dropped]
    opened = drive(parameters, open_parties(parameters), lambda name, at: name in lost and at == Stage.MASK)
    noise = opened.values - exact_sum(opened.survivors, 20_000)
    plan = parameters.noise_plan
    assert plan.removal == (sigma == 100.0)
    if plan.removal:
        assert opened.variance == pytest.approx(expected_variance(parameters, dropped))
    else:
        assert opened.variance == pytest.approx(sigma**2 * (10 - dropped) / 5)
    # A ratio's standard deviation is sqrt(2/20000) = 1 %; the seeds are fixed, so this holds or never does.
    assert np.var(noise) / opened.variance == pytest.approx(1, abs=0.02)
    colluders = opened.survivors[-2:]
    honest = noise - _noise_of(parameters, colluders, dropped + 1 if plan.removal else 1)
    left = sigma**2 if plan.removal else sigma**2 * (8 - dropped) / 5
    assert left >= sigma**2
    assert np.var(honest) / left == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("n", "colluders"), [(2, 0), (3, 1), (3, 2), (4, 2), (6, 3)])
def test_direct_mode_sums_exactly_in_three_rounds_or_four(n: int, colluders: int) -> None:
    parameters = parameters_of(n, tolerated_dropouts=0, colluders=colluders, sigma=30.0)
    assert parameters.direct
    stages: list[Stage] = []

    def note(_name: str, at: Stage) -> bool:
        stages.append(at)
        return False

    opened = drive(parameters, open_parties(parameters), note)
    assert set(stages) == {Stage.ADVERTISE, Stage.MASK, Stage.CONSISTENCY} | (
        {Stage.SHARE} if parameters.post_quantum else set()
    )
    np.testing.assert_array_equal(opened.values, expected_sum(parameters, names_of(n)))
    assert opened.variance == pytest.approx(900 * n / (n - colluders))


@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.MASK])
def test_direct_mode_aborts_when_anybody_is_missing(stage: Stage) -> None:
    parameters = parameters_of(4, tolerated_dropouts=0, colluders=2)
    with pytest.raises(SumAborted, match="3 parties are left and n = 4 are needed"):
        drive(parameters, open_parties(parameters), lambda name, at: name == "p02" and at == stage)


def test_direct_mode_opens_what_arrived_even_if_a_statement_is_lost() -> None:
    parameters = parameters_of(4, tolerated_dropouts=0, colluders=2)
    opened = drive(parameters, open_parties(parameters), lambda name, at: name == "p02" and at == Stage.CONSISTENCY)
    assert opened.survivors == tuple(names_of(4))
    assert check_evidence(parameters, opened.evidence).signers == ("p00", "p01", "p03")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "dropouts", "colluders"), slow_but([(8, 1, 0), (12, 1, 1), (30, 2, 1), (60, 6, 3)], [(8, 1, 0), (12, 1, 1)])
)
@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.REVEAL, Stage.SHARE, Stage.MASK])
def test_regular_graph_sums_exactly_after_dropouts(n: int, dropouts: int, colluders: int, stage: Stage) -> None:
    parameters = parameters_of(
        n, tolerated_dropouts=dropouts, colluders=colluders, graph_above=7, sigma=1500.0, modulus_bits=32
    )
    assert parameters.graph is not None
    assert parameters.graph.degree < n - 1
    lost = names_of(n)[2 : 2 + dropouts]
    opened = drive(parameters, open_parties(parameters), lambda name, at: name in lost and at == stage)
    survivors = [name for name in names_of(n) if name not in lost]
    assert opened.survivors == tuple(survivors)
    np.testing.assert_array_equal(opened.values, expected_sum(parameters, survivors))


def test_regular_graph_sums_exactly_in_direct_mode() -> None:
    parameters = parameters_of(30, tolerated_dropouts=0, colluders=3, graph_above=7)
    opened = drive(parameters, open_parties(parameters))
    np.testing.assert_array_equal(opened.values, exact_sum(names_of(30), parameters.dimension))


@pytest.mark.heavy
def test_regular_graph_redraws_after_dropouts_and_aborts_in_the_end() -> None:
    parameters = parameters_of(60, tolerated_dropouts=10, colluders=1, graph_above=7)
    rolls = dict.fromkeys(names_of(60), 0)

    def one_more_each_time(name: str, at: Stage) -> bool:
        rolls[name] += at is Stage.REVEAL
        return at is Stage.REVEAL and name == f"p{rolls[name] - 1:02d}"

    with pytest.raises(SumAborted, match="in each of 8 attempts"):
        drive(parameters, open_parties(parameters), one_more_each_time)
    assert rolls["p59"] == 8


class Restarting(dict[str, PartyMachine]):
    """Machines that are restored from their snapshot before every message."""

    def __getitem__(self, name: str) -> PartyMachine:
        machine = super().__getitem__(name)
        restored = PartyMachine.restore(
            machine._parameters, name, enrolled_key(name), machine.snapshot(), machine._encapsulate
        )
        assert restored.snapshot() == machine.snapshot()
        self[name] = restored
        return restored


@pytest.mark.heavy
@pytest.mark.parametrize("changes", [{}, {"graph_above": 7}, {"tolerated_dropouts": 0, "colluders": 3}])
def test_restored_parties_continue_with_identical_bytes(changes: dict[str, int]) -> None:
    parameters = parameters_of(12, sigma=50.0, **changes)
    recording = RecordedEncapsulation()
    plain: list[bytes] = []
    expected = drive(parameters, open_parties(parameters, recording), transcript=plain)
    again: list[bytes] = []
    opened = drive(parameters, Restarting(open_parties(parameters, recording)), transcript=again)
    assert again == plain
    np.testing.assert_array_equal(opened.values, expected.values)


@pytest.mark.heavy
@pytest.mark.parametrize("bits", [1, 7, 17, 32, 33, 53, 64])
def test_every_ring_width_wraps_to_the_exact_sum(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = parameters_of(5, modulus_bits=bits, dimension=131)
    bound = (2 ** (bits - 1) - 1) // 5

    def vector(name: str, dimension: int) -> GridVector:
        generator = np.random.default_rng(int(name[1:]) + 100 * bits)
        return GridVector(generator.integers(-bound, bound + 1, dimension))

    monkeypatch.setattr("tests.doubles.secagg.vector_of", vector)
    opened = drive(parameters, open_parties(parameters))
    np.testing.assert_array_equal(opened.values, sum(vector(name, 131).values for name in names_of(5)))


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [1_000_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_memory_is_bounded_by_a_few_copies_of_the_vector(dimension: int) -> None:
    """A party: the noisy copy and twice the wire bytes. The coordinator: its sum, one vector, the opened values."""
    parameters = parameters_of(3, dimension=dimension, modulus_bits=26, sigma=100.0)
    parties = open_parties(parameters)
    vector = GridVector(np.ones(dimension, dtype=np.int64))
    wire_bytes, peaks = dimension * 26 // 8, []
    coordinator = private_sum(parameters, lambda: QUESTION)
    requests = next(coordinator)
    tracemalloc.start()
    try:
        while True:
            replies = {}
            for name, request in requests.items():
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                reply = parties[name].receive(request)
                if isinstance(reply, WantsInput):
                    reply = parties[name].provide(vector, QUESTION)
                    peaks.append(tracemalloc.get_traced_memory()[1] - before)
                replies[name] = reply.payload
            stage = stage_of(wire.Request.FromString(next(iter(requests.values()))))
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                requests = coordinator.send(replies)
            except StopIteration as stop:
                opened = stop.value
                break
            finally:
                if stage in (Stage.MASK, Stage.UNMASK):
                    peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    slack = 4_000_000
    assert max(peaks[:3]) < 8 * dimension + 2 * wire_bytes + slack
    assert peaks[3] < 2 * 4 * dimension + wire_bytes + slack
    assert peaks[4] < 2 * 8 * dimension + slack
    assert abs(float(opened.values.mean()) - 3) < 1
