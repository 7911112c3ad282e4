import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undersong.partition import dirichlet
from undersong_common.errors import ConfigurationError


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.sampled_from("abc"), min_size=1, max_size=60),
    parties=st.integers(1, 12),
    alpha=st.sampled_from([0.05, 1.0, 100.0, math.inf]),
    seed=st.integers(0, 99),
)
def test_every_row_goes_to_exactly_one_party_and_none_stays_empty(labels, parties, alpha, seed):
    if len(labels) < parties:
        with pytest.raises(ConfigurationError, match=r"for .* parties"):
            dirichlet(labels, len(labels), parties, alpha, seed)
        return
    shares = dirichlet(labels, len(labels), parties, alpha, seed)
    assert sorted(row for share in shares for row in share) == list(range(len(labels)))
    assert all(shares)
    assert shares == dirichlet(labels, len(labels), parties, alpha, seed)


def test_a_small_alpha_is_less_even_than_a_large_one():
    labels = ["a", "b", "c", "d"] * 250
    spread = {}
    for alpha in (0.1, 10.0):
        counts = [
            [sum(labels[row] == name for row in share) for name in "abcd"]
            for share in dirichlet(labels, len(labels), 10, alpha, 3)
        ]
        spread[alpha] = np.std(counts)
    assert spread[0.1] > 2 * spread[10.0]


def test_infinite_alpha_deals_evenly():
    shares = dirichlet(["a", "b"] * 50, 100, 5, math.inf, 0)
    assert {len(share) for share in shares} == {20}
