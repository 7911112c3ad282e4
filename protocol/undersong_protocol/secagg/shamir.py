"""Shamir secret sharing of 32-byte secrets over the prime field of p = 2^256 + 297 (Shamir 1979).

Any ``threshold`` shares give the secret, fewer say nothing about it. A share is the polynomial's value at the holder's
point, 33 bytes little-endian; the point is public and travels beside it. The field is larger than every 32-byte string,
so a secret is its own field element, and a combination that leaves 32 bytes is a proof that a share is wrong.
"""

import math
from collections.abc import Callable, Iterable, Mapping

from undersong_common.errors import ConfigurationError, InternalError, PeerFault, RoundAborted
from undersong_common.printable import repeated

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
# A coefficient is 512 uniform bits modulo p, which is within 2^-255 of uniform.
COEFFICIENT_BYTES = 64

Entropy = Callable[[int], bytes]


def share(secret: bytes, threshold: int, points: Iterable[int], entropy: Entropy) -> dict[int, bytes]:
    """Splits ``secret`` (32 bytes) into shares at ``points``: {point: 33 bytes}.

    ``entropy`` is called once, for ``64 * (threshold - 1)`` bytes: 64 little-endian bytes per coefficient, reduced
    modulo p, lowest degree first. About 0.5 ms for 100 points and threshold 51.

    Raises ConfigurationError for a threshold outside 1..number of points, a repeated point or one outside 1..p-1;
    InternalError for a secret or entropy of the wrong length.
    """
    if len(secret) != SECRET_BYTES:
        raise InternalError(f"a shared secret is {SECRET_BYTES} bytes, got {len(secret)}", code="secret-length")
    checked_points = _check_points(points)
    if not 1 <= threshold <= len(checked_points):
        raise ConfigurationError(
            f"the threshold {threshold} is not between 1 and {len(checked_points)}, the number of share holders",
            "choose a threshold from 1 to the number of holders",
            code="threshold-out-of-range",
        )
    random_bytes = entropy(COEFFICIENT_BYTES * (threshold - 1))
    if len(random_bytes) != COEFFICIENT_BYTES * (threshold - 1):
        raise InternalError(
            "the entropy source returned another number of bytes than it was asked for", code="entropy-length"
        )
    coefficient_blocks = (
        random_bytes[start_byte : start_byte + COEFFICIENT_BYTES]
        for start_byte in range(0, len(random_bytes), COEFFICIENT_BYTES)
    )
    coefficients = [
        int.from_bytes(secret, "little"),
        *(int.from_bytes(coefficient_bytes, "little") % PRIME for coefficient_bytes in coefficient_blocks),
    ]
    coefficients.reverse()
    return {
        point: _evaluate_polynomial(coefficients, point).to_bytes(SHARE_BYTES, "little") for point in checked_points
    }


def _evaluate_polynomial(descending: list[int], x: int) -> int:
    """Returns the polynomial at ``x`` modulo p by Horner's rule; reduced once, as points are small and it is slow."""
    polynomial_value = 0
    for coefficient in descending:
        polynomial_value = polynomial_value * x + coefficient
    return polynomial_value % PRIME


def _check_points(points: Iterable[int]) -> list[int]:
    checked_points = list(points)
    if len(set(checked_points)) != len(checked_points):
        raise ConfigurationError(
            f"the share point {repeated(checked_points)[0]} is repeated", "give every holder its own point"
        )
    for point in checked_points:
        if not 0 < point < PRIME:
            raise ConfigurationError(f"the share point {point} lies outside 1..p-1", "number the holders from 1")
    return checked_points


def share_value(data: bytes, holder: str) -> int:
    """Reads the field element in a share. Raises PeerFault that names ``holder`` unless it is 33 bytes and below p."""
    if len(data) != SHARE_BYTES:
        raise PeerFault(holder, f"a share is {SHARE_BYTES} bytes, got {len(data)}")
    share_number = int.from_bytes(data, "little")
    if share_number >= PRIME:
        raise PeerFault(holder, "a share is not an element of the field")
    return share_number


def lagrange_weights(points: Iterable[int]) -> dict[int, int]:
    """Returns weights w with secret = sum over x of w[x] * (share at x) modulo p, for the set of ``points``.

    The weights serve for every secret that is shared at these points. They need one modular inversion (Montgomery's
    trick). Raises ConfigurationError for no point, and for a repeated or out-of-range one.
    """
    checked_points = _check_points(points)
    if not checked_points:
        raise ConfigurationError("no share point to combine at", "collect at least the threshold of shares first")
    # Each product is reduced once: the points are small, and multiplying by a small number is faster than reducing.
    point_product = math.prod(checked_points)
    numerators = [point_product // point % PRIME for point in checked_points]
    denominators = [
        math.prod([other_point - x for other_point in checked_points if other_point != x]) % PRIME
        for x in checked_points
    ]
    partial_products = [1]
    for denominator in denominators:
        partial_products.append(partial_products[-1] * denominator % PRIME)
    inverse_product = pow(partial_products[-1], -1, PRIME)
    weight_by_point: dict[int, int] = {}
    for index in range(len(checked_points) - 1, -1, -1):
        weight_by_point[checked_points[index]] = numerators[index] * partial_products[index] * inverse_product % PRIME
        inverse_product = inverse_product * denominators[index] % PRIME
    return weight_by_point


def combine(shares: Mapping[int, bytes], threshold: int, weights: Mapping[int, int] | None = None) -> bytes:
    """Reconstructs a 32-byte secret from at least ``threshold`` shares {point: 33 bytes}.

    Without ``weights`` it uses the ``threshold`` lowest points. With :func:`lagrange_weights` it uses exactly their
    points, and ``shares`` must hold them all. A wrong share gives a wrong secret or an error, so the caller must check
    the result against the dealer's commitment.

    Raises RoundAborted for too few shares, or if a wrong share leads to no 32-byte string; PeerFault that names the
    point for a share of the wrong length or outside the field.
    """
    if threshold < 1:
        raise ConfigurationError(
            f"the threshold {threshold} is below 1", "choose a threshold of 1 or more", code="threshold-out-of-range"
        )
    if weights is None:
        if len(shares) < threshold:
            raise RoundAborted(
                f"{len(shares)} shares where {threshold} are needed",
                "start a new attempt with the parties that answer",
                code="too-few-shares",
            )
        weights = lagrange_weights(sorted(shares)[:threshold])
    elif len(weights) < threshold:
        raise RoundAborted(
            f"weights of {len(weights)} points where {threshold} shares are needed", code="too-few-weights"
        )
    missing_points = weights.keys() - shares.keys()
    if missing_points:
        raise RoundAborted(
            f"{len(missing_points)} of the {len(weights)} shares of the survivor set are missing", code="shares-missing"
        )
    weighted_sum = (
        sum(weight * share_value(shares[point], f"holder of share {point}") for point, weight in weights.items())
        % PRIME
    )
    if weighted_sum >> (8 * SECRET_BYTES):
        raise RoundAborted(
            "the shares do not combine to a 32-byte secret: at least one of them is wrong", code="shares-do-not-combine"
        )
    return weighted_sum.to_bytes(SECRET_BYTES, "little")
