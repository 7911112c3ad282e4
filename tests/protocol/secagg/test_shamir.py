"""Secret sharing: any threshold of shares gives the secret, fewer are consistent with every secret."""

import contextlib
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError, InternalError, PeerFault, RoundAborted
from undersong_protocol.secagg.shamir import PRIME, SHARE_BYTES, combine, lagrange_weights, share, share_value

SECRETS = st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32]))


def _seeded(seed: int) -> random.Random:
    return random.Random(seed)


def test_shamir_modulus_is_prime() -> None:
    """Miller-Rabin with 64 fixed bases."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 66):
        x = pow(base, odd, PRIME)
        assert x in (1, PRIME - 1) or any((x := x * x % PRIME) == PRIME - 1 for _ in range(twos - 1))


@settings(deadline=None)
@given(SECRETS, st.integers(1, 25), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, holders: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, holders))
    points = data.draw(
        st.lists(
            st.one_of(st.integers(1, 500), st.integers(1, PRIME - 1)), min_size=holders, max_size=holders, unique=True
        )
    )
    shares = share(secret, threshold, points, _seeded(holders).randbytes)
    assert list(shares) == points
    assert all(len(piece) == SHARE_BYTES for piece in shares.values())
    chosen = data.draw(st.permutations(points))[: data.draw(st.integers(threshold, holders))]
    assert combine({x: shares[x] for x in chosen}, threshold) == secret
    weights = lagrange_weights(chosen)
    assert combine(shares, threshold, weights) == secret


@given(SECRETS, st.integers(2, 9))
def test_fewer_shares_than_the_threshold_fit_every_secret(secret: bytes, threshold: int) -> None:
    """Interpolating threshold - 1 shares and any other secret gives a valid polynomial: nothing is excluded."""
    shares = share(secret, threshold, range(1, threshold + 1), _seeded(1).randbytes)
    known = {x: shares[x] for x in range(1, threshold)}
    for claimed in (0, 1, 2**255 + 12345):
        # The share at the missing point that would make the secret equal to the claim always exists in the field.
        weights = lagrange_weights(range(1, threshold + 1))
        partial = sum(weights[x] * share_value(piece, "x") for x, piece in known.items())
        missing = (claimed - partial) * pow(weights[threshold], -1, PRIME) % PRIME
        forged = {**known, threshold: missing.to_bytes(33, "little")}
        assert combine(forged, threshold) == claimed.to_bytes(32, "little")


def test_entropy_is_asked_once_for_all_coefficients() -> None:
    asked: list[int] = []

    def entropy(size: int) -> bytes:
        asked.append(size)
        return os.urandom(size)

    share(bytes(32), 7, range(1, 11), entropy)
    assert asked == [6 * 64]


@given(SECRETS, st.binary(min_size=64, max_size=64))
def test_shamir_coefficients_use_all_64_bytes_of_entropy(secret: bytes, drawn: bytes) -> None:
    """With threshold 2 the share at x is secret + x * coefficient."""
    at_three = share_value(share(secret, 2, [3, 4], lambda size: drawn)[3], "x")
    assert at_three == (int.from_bytes(secret, "little") + 3 * int.from_bytes(drawn, "little")) % PRIME


def test_combined_shares_beyond_32_bytes_abort_the_sum() -> None:
    constant = (2**256 + 5).to_bytes(SHARE_BYTES, "little")
    with raises(RoundAborted, "shares-do-not-combine"):
        combine({1: constant, 2: constant}, 2)


@pytest.mark.parametrize("points", [[1, 2, 2], [0, 1, 2], [-1, 2, 3], [1, 2, PRIME], [1, 2, PRIME + 1]])
def test_shamir_refuses_points_that_are_out_of_range(points: list[int]) -> None:
    with pytest.raises(ConfigurationError, match="share point"):
        share(bytes(32), 2, points, os.urandom)
    with pytest.raises(ConfigurationError, match="share point"):
        lagrange_weights(points)


def test_shamir_refuses_an_empty_list_of_points() -> None:
    with pytest.raises(ConfigurationError):
        lagrange_weights([])
    with raises(ConfigurationError, "threshold-out-of-range"):
        share(bytes(32), 1, [], os.urandom)


@pytest.mark.parametrize("threshold", [0, -1, 4])
def test_threshold_outside_1_to_the_number_of_holders_is_refused(threshold: int) -> None:
    with raises(ConfigurationError, "threshold-out-of-range"):
        share(bytes(32), threshold, [1, 2, 3], os.urandom)


def test_wrong_length_of_secret_or_entropy_is_an_internal_error() -> None:
    for secret in (bytes(31), bytes(33)):
        with raises(InternalError, "secret-length"):
            share(secret, 2, [1, 2, 3], os.urandom)
    with raises(InternalError, "entropy-length"):
        share(bytes(32), 2, [1, 2, 3], lambda size: bytes(size - 1))


def test_too_few_shares_abort_the_reconstruction() -> None:
    shares = share(bytes(32), 3, [1, 2, 3, 4], os.urandom)
    with raises(RoundAborted, "too-few-shares"):
        combine({1: shares[1], 2: shares[2]}, 3)
    with raises(RoundAborted, "too-few-weights"):
        combine(shares, 3, lagrange_weights([1, 2]))
    with raises(RoundAborted, "shares-missing"):
        combine({1: shares[1], 2: shares[2], 4: shares[4]}, 3, lagrange_weights([1, 2, 3]))
    with raises(ConfigurationError, "threshold-out-of-range"):
        combine(shares, 0)


def test_a_malformed_share_names_its_holder() -> None:
    for data in (bytes(32), bytes(34), PRIME.to_bytes(33, "little"), b"\xff" * 33):
        with pytest.raises(PeerFault, match="clinic-2"):
            share_value(data, "clinic-2")


@given(st.integers(1, 2**256))
def test_a_wrong_share_never_gives_the_secret(error: int) -> None:
    secret = b"\x11" * 32
    shares = share(secret, 3, [1, 2, 3], _seeded(3).randbytes)
    shares[2] = ((share_value(shares[2], "x") + error) % PRIME).to_bytes(33, "little")
    with contextlib.suppress(RoundAborted):
        assert combine(shares, 3) != secret
