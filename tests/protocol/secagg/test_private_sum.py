"""Whole private sums over the real machines: every size, every tolerated dropout, the exact survivors' sum."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.secagg.coordinator import SumAborted
from protocol.secagg.evidence import check_evidence
from protocol.secagg.party import PartyMachine
from tests.doubles.secagg import drive, exact_sum, identity_of, names_of, open_parties, parameters_of


@pytest.mark.parametrize("n", range(1, 31))
def test_sum_is_exact_without_dropouts(n: int) -> None:
    parameters = parameters_of(n)
    opened = drive(parameters, open_parties(parameters))
    assert opened.survivors == tuple(names_of(n))
    np.testing.assert_array_equal(opened.values, exact_sum(names_of(n), parameters.dimension))
    assert opened.variance == 0.0
    assert check_evidence(parameters, opened.evidence).survivors == opened.survivors


@pytest.mark.parametrize(
    ("n", "dropouts", "colluders"), [(3, 1, 0), (4, 1, 1), (5, 1, 0), (7, 2, 1), (10, 3, 2), (30, 9, 3)]
)
@pytest.mark.parametrize("stage", range(5))
def test_sum_is_exact_after_dropouts_in_any_round(n: int, dropouts: int, colluders: int, stage: int) -> None:
    parameters = parameters_of(n, tolerated_dropouts=dropouts, colluders=colluders)
    lost = names_of(n)[1 : 1 + dropouts]
    opened = drive(parameters, open_parties(parameters), lambda name, at: name in lost and at == stage)
    expected = [name for name in names_of(n) if stage >= 3 or name not in lost]
    assert opened.survivors == tuple(expected)
    np.testing.assert_array_equal(opened.values, exact_sum(expected, parameters.dimension))


@pytest.mark.parametrize("stage", range(3))
def test_one_dropout_too_many_is_a_clean_abort(stage: int) -> None:
    parameters = parameters_of(10, tolerated_dropouts=2)
    lost = names_of(10)[:3]
    with pytest.raises(SumAborted, match="7 parties are left and n - D = 8 are needed"):
        drive(parameters, open_parties(parameters), lambda name, at: name in lost and at == stage)


def test_noise_is_in_the_sum_and_its_variance_is_told() -> None:
    parameters = parameters_of(5, dimension=20_000, sigma=100.0, modulus_bits=40)
    opened = drive(parameters, open_parties(parameters))
    noise = opened.values - exact_sum(opened.survivors, 20_000)
    assert opened.variance == pytest.approx(100.0**2 * 5 / 4)
    assert np.var(noise) / opened.variance == pytest.approx(1, abs=0.05)


def test_restored_parties_continue_to_the_bit() -> None:
    parameters = parameters_of(4, sigma=50.0)
    plain: list[bytes] = []
    expected = drive(parameters, open_parties(parameters), transcript=plain)

    class Restarting(dict[str, PartyMachine]):
        def __getitem__(self, name: str) -> PartyMachine:
            snapshot = super().__getitem__(name).snapshot()
            self[name] = PartyMachine.restore(parameters, name, identity_of(name), snapshot)
            return super().__getitem__(name)

    again: list[bytes] = []
    opened = drive(parameters, Restarting(open_parties(parameters)), transcript=again)
    assert again == plain
    np.testing.assert_array_equal(opened.values, expected.values)
