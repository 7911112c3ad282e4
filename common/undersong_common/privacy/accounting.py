"""Computes the (epsilon, delta) of a sequence of releases under add/remove adjacency, and the noise for a given cost.

A release is an *event*; a plan is a sequence of events. Compositions of unsampled Gaussians are exact (mu^2 adds,
Dong, Roth, Su 2019, corollary 3.3; conversion: Balle, Wang 2018, theorem 8). Everything else goes through the privacy
loss distribution of dp-accounting with pessimistic rounding, so that a figure is never below the truth.

The noise that parties sample is a sum of discrete Gaussians, the events are continuous ones: see
:func:`charged_sigma` for why that is sound.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from undersong_common.errors import ConfigurationError, PrivacyRefusal

# Variance given away when a sum of discrete Gaussians is charged as one continuous Gaussian (docs/privacy.md, "Noise").
SMOOTHING_VARIANCE = 4.0
# Statistical distance of one drawn noise coordinate from the exact discrete law (noise.py).
SAMPLER_DISTANCE = 2.0**-110

# Resolution of a loss distribution: its plausible range is divided into about so many cells.
_GRID, _COARSE_GRID = 50_000, 5_000
_NO_NOISE = 1e-100  # a noise multiplier below it is none
_FINEST_CELL, _COARSEST_CELL = 1e-7, 1.0
_ROOT_TOLERANCE = 1e-12  # absolute, as dp_accounting's


class _Release:
    """Base class of events; it checks every number of an event when the event is made."""

    def __post_init__(self) -> None:
        for parameter_name, parameter_value in vars(self).items():
            _check_range(
                f"{type(self).__name__}.{parameter_name}",
                parameter_value,
                1.0 if parameter_name == "sampling_rate" else math.inf,
            )


@dataclass(frozen=True)
class Gaussian(_Release):
    """``count`` Gaussian releases, each on a fresh Poisson subsample of rate ``sampling_rate``.

    Attributes:
        noise_multiplier: noise standard deviation over L2 sensitivity; 0 means no noise, inf no release.
        sampling_rate: probability in [0, 1] with which each unit takes part, independently, in secret.
        count: number of such releases.
    """

    noise_multiplier: float
    sampling_rate: float = 1.0
    count: int = 1


@dataclass(frozen=True)
class Laplace(_Release):
    """``count`` Laplace releases; ``noise_multiplier`` is the scale b over the L1 sensitivity (0: no noise).

    A vector is charged as one coordinate that moves by the whole L1 sensitivity, its worst case.
    """

    noise_multiplier: float
    count: int = 1


@dataclass(frozen=True)
class DiscreteLaplace(_Release):
    """``count`` discrete Laplace releases, P(x) proportional to exp(-``epsilon`` |x|) on the integers.

    Attributes:
        epsilon: epsilon per integer unit of L1 sensitivity; inf means no noise.
        sensitivity: L1 sensitivity in integer units; one release is (epsilon x sensitivity, 0)-DP.
        count: number of such releases.
    """

    epsilon: float
    sensitivity: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sensitivity < 1:
            raise ConfigurationError(
                f"DiscreteLaplace.sensitivity is {self.sensitivity}, below 1", "give an integer >= 1"
            )


@dataclass(frozen=True)
class Pure(_Release):
    """``count`` releases by an unspecified mechanism that is (``epsilon``, 0)-DP each time."""

    epsilon: float
    count: int = 1


Event = Gaussian | Laplace | DiscreteLaplace | Pure


def epsilon(events: Iterable[Event], delta: float) -> float:
    """Returns the smallest epsilon at which the composed ``events`` are (epsilon, ``delta``)-DP; inf without noise.

    Args:
        events: the releases, in any order (fixed before the first of them is made).
        delta: in [0, 1].

    Raises:
        ConfigurationError: ``delta`` lies outside [0, 1].

    >>> round(epsilon([Gaussian(1.08116)], 1e-5), 3)
    4.0
    """
    _check_range("delta", delta, highest=1.0)
    return _composed_epsilon(_merge_events(events), delta)


def delta(events: Iterable[Event], epsilon: float) -> float:
    """Returns the smallest delta at which the composed ``events`` are (``epsilon``, delta)-DP.

    Raises:
        ConfigurationError: ``epsilon`` is negative or not a number.

    >>> f"{delta([Gaussian(1.08116)], 4.0):.2e}"
    '1.00e-05'
    """
    _check_range("epsilon", epsilon)
    return _composed_delta(_merge_events(events), epsilon, _GRID)


def best_guess(events: Iterable[Event]) -> float:
    """Returns the largest chance with which an attacker guesses right if one privacy unit was in the data.

    The attacker sees all of ``events``; before that, both answers are equally likely. No guess is right more often than
    (1 + d) / 2, where d is the total variation distance between the releases with and without the unit; d is the delta
    at epsilon 0. For mu-Gaussian-DP that is Phi(mu / 2). Source: Dong, Roth, Su 2022, section 2.1 (errors of the first
    and second kind), and their definition 2.6.

    >>> round(best_guess([Gaussian(1.08116)]), 3)
    0.678
    """
    return (1.0 + delta(events, 0.0)) / 2.0


def best_guess_of_several(events: Sequence[Event], unit_count: int) -> float:
    """Returns the bound of :func:`best_guess` about ``unit_count`` units that are all in the data, or none of them.

    mu-Gaussian-DP for one unit is (unit_count x mu)-Gaussian-DP for so many (Dong, Roth, Su 2022, theorem 2.14). Of
    other releases the total variation distances of one unit after another add up at most.

    >>> round(best_guess_of_several([Gaussian(1.08116)], 5), 3), best_guess_of_several([Pure(1.0)], 1) < 0.74
    (0.99, True)
    """
    if all(isinstance(event, Gaussian) and event.sampling_rate == 1.0 for event in events):
        gaussians = [event for event in events if isinstance(event, Gaussian)]
        return best_guess([replace(event, noise_multiplier=event.noise_multiplier / unit_count) for event in gaussians])
    return min(1.0, 0.5 + unit_count * (best_guess(events) - 0.5))


def best_guess_of(epsilon: float, delta: float, *, one_gaussian: bool) -> float:
    """Returns the bound of :func:`best_guess` where only (``epsilon``, ``delta``) is known of the releases.

    Args:
        one_gaussian: True if they are Gaussians without subsampling, which the two figures determine. Otherwise the
            definition for an event and for its complement, added, gives a total variation distance of at most
            (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz, Oh, Viswanath 2015, theorem 2.1).

    >>> round(best_guess_of(4.0, 1e-5, one_gaussian=True), 3), round(best_guess_of(1.0, 0.0, one_gaussian=False), 3)
    (0.678, 0.731)
    """
    if math.isinf(epsilon):
        return 1.0
    if one_gaussian and epsilon > 0.0 and 0.0 < delta < 1.0:
        return best_guess([Gaussian(1.0 / gaussian_mu(epsilon, delta))])
    inverse_factor = math.exp(-epsilon)
    return min(1.0, (1.0 + delta * inverse_factor) / (1.0 + inverse_factor))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Returns the largest mu for which mu-Gaussian-DP implies (``epsilon``, ``delta``)-DP; inf if epsilon is inf.

    1/mu is the exact noise multiplier of one release. Source: Balle and Wang 2018, theorem 8.

    Raises:
        ConfigurationError: epsilon negative, or delta not in (0, 1).

    >>> round(1 / gaussian_mu(4.0, 1e-5), 5)
    1.08116
    """
    _check_target(epsilon, delta)
    if math.isinf(epsilon):
        return math.inf
    from scipy.optimize import brentq

    log_delta = np.log(delta)
    low_sigma, high_sigma = 1e-1, 1.0
    while _log_delta(low_sigma, epsilon) < log_delta:
        low_sigma, high_sigma = low_sigma / 10, low_sigma
    while _log_delta(high_sigma, epsilon) > log_delta:
        low_sigma, high_sigma = high_sigma, high_sigma * 10
    return 1.0 / float(
        brentq(lambda sigma: _log_delta(sigma, epsilon) - log_delta, low_sigma, high_sigma, xtol=_ROOT_TOLERANCE)
    )


def is_one_gaussian(events: Iterable[Event]) -> bool:
    """Returns True if all events with a finite noise multiplier are Gaussians without subsampling."""
    return all(
        _releases_nothing(event) or (isinstance(event, Gaussian) and event.sampling_rate == 1.0) for event in events
    )


def composed_mu(events: Iterable[Event]) -> float | None:
    """Returns the mu of a composition of Gaussians without subsampling; None if there is another event.

    The squares of the events' mu add.
    """
    match _merge_events(events):
        case ():
            return 0.0
        case (Gaussian(noise_multiplier=0.0, sampling_rate=1.0),):
            return math.inf
        case (Gaussian(sampling_rate=1.0) as gaussian,):
            return math.sqrt(gaussian.count) / gaussian.noise_multiplier
    return None


def calibrate(build: Callable[[float], Sequence[Event]], epsilon: float, delta: float) -> float:
    """Returns the smallest noise scale, to 1e-6 relative, at which ``build(scale)`` is (``epsilon``, ``delta``)-DP.

    Args:
        build: returns the events of the whole plan at a noise scale; larger scales must be more private.
        epsilon: the target; inf asks for no noise and gives 0.
        delta: in (0, 1).

    Returns:
        A scale at or above the smallest one: the plan at the returned scale always satisfies the target.

    Raises:
        ConfigurationError: a target out of range.
        PrivacyRefusal: no scale suffices, because the parts that do not scale cost too much already.

    >>> round(calibrate(lambda z: [Gaussian(z, count=4)], 4.0, 1e-5), 4)
    2.1623
    """
    _check_target(epsilon, delta)
    if math.isinf(epsilon):
        return 0.0

    def log_ratio(spent_delta: float) -> float:
        """Returns log(delta spent / delta), negative if the plan is affordable; at least -700, for the root finder."""
        if spent_delta <= 0.0:
            return -700.0
        return max(math.log(spent_delta / delta), -700.0)

    def excess(log_scale: float, cell_count: int) -> float:
        return log_ratio(_composed_delta(_merge_events(build(math.exp(log_scale))), epsilon, cell_count))

    def likely_excess(log_scale: float) -> float:
        """Estimates ``excess`` by the one Gaussian that the plan resembles: quick, and a few percent off."""
        return log_ratio(_gaussian_delta(_likely_mu(_merge_events(build(math.exp(log_scale)))), epsilon))

    if (root_and_slope := _secant_root(lambda x: excess(x, _COARSE_GRID), likely_excess)) is None:
        root = _bracketed_root(lambda x: excess(x, _COARSE_GRID), epsilon, delta)
        if root == -math.inf:
            return 0.0  # The plan holds nothing that scales, and is affordable without noise.
        root_shift = 1e-4
        root_and_slope = (
            root,
            (excess(root + root_shift, _COARSE_GRID) - excess(root - root_shift, _COARSE_GRID)) / (2 * root_shift),
        )
    return math.exp(_refine_root(lambda x: excess(x, _GRID), *root_and_slope))


def _refine_root(excess: Callable[[float], float], root: float, excess_slope: float) -> float:
    """Returns a point a little above the root of ``excess``, from a nearby root and the slope there.

    A loss distribution on the fine grid is ten times dearer than on the coarse one: from the coarse root a few steps
    suffice. They aim a little above the root, because whoever computes epsilon at the result inverts delta with an
    error of 1e-11.
    """
    fine_excess = excess(root)
    for _ in range(8):
        root_step = fine_excess / excess_slope if excess_slope < 0.0 else 1e-7
        if 5e-8 <= root_step <= 4e-7:
            break
        root += 2e-7 - root_step
        fine_excess = excess(root)
    root_shift = 2e-7
    # Rounding may leave the root on the side that spends too much, so noise is added until the target holds.
    while fine_excess > 0.0:
        root_shift *= 2
        root += root_shift
        fine_excess = excess(root)
    return root


def _likely_mu(merged_events: tuple[Event, ...]) -> float:
    """Returns mu of the Gaussian that a plan resembles: a guess from which :func:`calibrate` starts, never a charge.

    It takes subsampled releases by their limit for small rates (Bu, Dong, Long, Su 2020), and others by the mean of
    their privacy loss, which for a Gaussian is mu^2 / 2.
    """
    squared_mu = 0.0
    for event in merged_events:
        if _is_noiseless(event):
            return math.inf
        if isinstance(event, Gaussian):
            reciprocal_variance = 1.0 / event.noise_multiplier**2
            squared_mu += event.count * min(
                reciprocal_variance, event.sampling_rate**2 * math.expm1(min(reciprocal_variance, 700.0))
            )
        elif isinstance(event, Laplace):
            loss = 1.0 / event.noise_multiplier
            squared_mu += event.count * 2.0 * (loss + math.expm1(-loss))
        else:
            loss = event.epsilon * (event.sensitivity if isinstance(event, DiscreteLaplace) else 1)
            squared_mu += event.count * 2.0 * loss * math.tanh(loss / 2)
    return math.sqrt(squared_mu)


def _secant_root(
    excess: Callable[[float], float], likely_excess: Callable[[float], float], tolerance: float = 1e-5
) -> tuple[float, float] | None:
    """Returns the root of ``excess`` and its slope there, by secant steps from those of ``likely_excess``.

    It evaluates ``excess``, which is slow, three or four times instead of a dozen times. It returns None if the steps
    do not converge. The caller checks the result.
    """
    from scipy.optimize import brentq

    widest_step = 12.0
    if likely_excess(-widest_step) <= 0.0 or likely_excess(widest_step) >= 0.0:
        return None
    root = float(brentq(likely_excess, -widest_step, widest_step, xtol=1e-4))
    likely_slope = (likely_excess(root + 1e-3) - likely_excess(root - 1e-3)) / 2e-3
    root_excess = excess(root)
    for _ in range(8):
        if not likely_slope < -1e-3:
            return None
        root_step = -root_excess / likely_slope
        if abs(root_step) < tolerance:
            return root + root_step, likely_slope
        if abs(root_step) > 2.0:
            return None
        previous_excess = root_excess
        root = root + root_step
        root_excess = excess(root)
        likely_slope = (root_excess - previous_excess) / root_step
    return None


def _bracketed_root(excess: Callable[[float], float], epsilon: float, delta: float) -> float:
    """Returns the root of ``excess`` by Brent's method in an interval around it; -inf if nothing in the plan scales."""
    upper_end = 0.0
    while excess(upper_end) > 0.0:
        upper_end += 1.0
        if upper_end > 40.0:
            raise PrivacyRefusal(
                f"no amount of noise brings this plan to epsilon {epsilon:g} at delta {delta:g}",
                "raise epsilon, or drop the releases whose noise is fixed",
                code="no-noise-suffices",
            )
    lower_end = upper_end - 1.0
    while excess(lower_end) <= 0.0:
        lower_end, upper_end = lower_end - 1.0, lower_end
        if lower_end < -40.0:
            return -math.inf
    from scipy.optimize import brentq

    return float(brentq(excess, lower_end, upper_end, xtol=1e-6))


def charged_sigma(variance: float) -> float:
    """Returns the standard deviation of the continuous Gaussian that accounts for discrete noise of total ``variance``.

    N_Z(0, s^2) with every share >= 3 equals, up to a factor exp(+-4 exp(-8 pi^2)) = 1 +- 2e-34 a coordinate, a
    randomised rounding of N(0, s^2 - 4); what is made from the continuous release alone is no less private. The
    argument and the result are in integer units (docs/privacy.md, "Noise").

    Args:
        variance: sum of the honest survivors' variances, integer units squared; inf is allowed.

    Raises:
        PrivacyRefusal: the variance is 4 or less, so that no continuous Gaussian accounts for it.

    >>> charged_sigma(13.0)
    3.0
    """
    if not variance > SMOOTHING_VARIANCE:
        raise PrivacyRefusal(
            f"a noise variance of {variance:g} integer units squared is too small to be charged as a Gaussian",
            "raise the statistic's integer scale so that every party's share is at least 3 integer units",
            code="variance-too-small",
        )
    return math.sqrt(variance - SMOOTHING_VARIANCE)


def sampled_variance(charged: float) -> float:
    """Returns the variance to draw, in integer units squared, to be charged as the standard deviation ``charged``.

    It is the inverse of :func:`charged_sigma`, except that 0 (no noise) gives 0.

    >>> sampled_variance(3.0)
    13.0
    """
    _check_range("charged sigma", charged)
    return charged * charged + SMOOTHING_VARIANCE if charged > 0.0 else 0.0


def usable_delta(delta: float, *, sample_count: int, epsilon: float) -> float:
    """Returns the part of ``delta`` that is left for the mechanisms after subtracting the samplers' inexactness.

    A mechanism within total variation distance g of an (epsilon, d)-DP one is (epsilon, d + (1 + e^epsilon) g)-DP;
    g = sample_count x 2^-110.

    Args:
        delta: the declared delta.
        sample_count: noise coordinates drawn over the whole plan by all parties.
        epsilon: the declared epsilon; inf (no noise) costs nothing.

    Raises:
        PrivacyRefusal: nothing is left.
    """
    if math.isinf(epsilon):
        return delta
    delta_cost = sample_count * SAMPLER_DISTANCE * (1.0 + math.exp(min(epsilon, 700.0)))
    remaining_delta = math.nextafter(delta - delta_cost, -math.inf)  # A cost below delta's last bit takes that bit.
    if not remaining_delta > 0.0:
        raise PrivacyRefusal(
            f"delta {delta:g} does not cover the error of the noise sampler over {sample_count} samples at epsilon "
            f"{epsilon:g}",
            "raise delta or lower epsilon",
            code="delta-too-small",
        )
    return remaining_delta


# ------------------------------------------------------------------------------------------------- composition


def _merge_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """Returns a plan in canonical form: one Gaussian for all without subsampling, equal events as one with a count.

    Events that release nothing are left out.
    """
    noisy_events = [event for event in events if not _releases_nothing(event)]
    squared_mu = math.fsum(
        _squared_mu(event) for event in noisy_events if isinstance(event, Gaussian) and event.sampling_rate == 1.0
    )
    event_counts = count_events(
        event for event in noisy_events if not (isinstance(event, Gaussian) and event.sampling_rate == 1.0)
    )
    if squared_mu > 0.0:
        gaussian_event = [Gaussian(1.0 / math.sqrt(squared_mu))]
    else:
        gaussian_event = []
    return (*gaussian_event, *(replace(event, count=event_counts[event]) for event in sorted(event_counts, key=repr)))


def count_events(events: Iterable[Event]) -> Counter[Event]:
    """Counts equal events; a key is the event with count 1."""
    event_counts: Counter[Event] = Counter()
    for event in events:
        event_counts[event if event.count == 1 else replace(event, count=1)] += event.count
    return event_counts


def _releases_nothing(event: Event) -> bool:
    match event:
        case Gaussian():
            return event.count == 0 or event.sampling_rate == 0.0 or math.isinf(event.noise_multiplier)
        case Laplace():
            return event.count == 0 or math.isinf(event.noise_multiplier)
    return event.count == 0 or event.epsilon == 0.0


def _squared_mu(event: Gaussian) -> float:
    """Returns mu^2; infinity if there is so little noise that a sum with others would leave the range of floats."""
    if event.noise_multiplier < _NO_NOISE:
        return math.inf
    return event.count * (1.0 / event.noise_multiplier) ** 2


def _pure_bound(event: Event) -> float:
    """Returns epsilon of an event at delta 0."""
    match event:
        case Gaussian():
            return math.inf
        case Laplace():
            if event.noise_multiplier == 0.0:
                return math.inf
            return event.count / event.noise_multiplier
        case DiscreteLaplace():
            return event.count * event.sensitivity * event.epsilon
    return event.count * event.epsilon


def _is_noiseless(event: Event) -> bool:
    if isinstance(event, Gaussian):
        return event.noise_multiplier == 0.0
    return math.isinf(_pure_bound(event))


@lru_cache(maxsize=4096)
def _composed_epsilon(merged_events: tuple[Event, ...], delta: float) -> float:
    if not merged_events or delta == 1.0:
        return 0.0
    if delta == 0.0:
        return math.fsum(_pure_bound(event) for event in merged_events)
    if (mu := composed_mu(merged_events)) is not None:
        return gaussian_epsilon(mu, delta)
    if any(map(_is_noiseless, merged_events)) or _grid_cell(merged_events, _GRID) > _COARSEST_CELL:
        return math.inf  # An epsilon in the tens of thousands protects nobody more than no noise does.
    return float(_loss_distribution(merged_events, _GRID).get_epsilon_for_delta(delta))


@lru_cache(maxsize=4096)
def _composed_delta(merged_events: tuple[Event, ...], epsilon: float, cell_count: int) -> float:
    if not merged_events or math.isinf(epsilon):
        return 0.0
    if (mu := composed_mu(merged_events)) is not None:
        return _gaussian_delta(mu, epsilon)
    # Without noise, or with losses in the thousands, 1 is an upper bound. It occurs only while a scale is calibrated.
    if any(map(_is_noiseless, merged_events)) or _grid_cell(merged_events, cell_count) > _COARSEST_CELL:
        return 1.0
    return float(_loss_distribution(merged_events, cell_count).get_delta_for_epsilon(epsilon))


def _gaussian_delta(mu: float, epsilon: float) -> float:
    """Returns Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), computed in logarithms.

    :func:`_log_delta` computes the same in the order of ``dp_accounting``. The two differ by up to 4e-11, and the noise
    of signed plans was calibrated with this one, so that neither can take the other's place.
    """
    if mu == 0.0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    from scipy.special import log_ndtr

    first_log = float(log_ndtr(mu / 2 - epsilon / mu))
    second_log = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    if second_log < first_log:
        return math.exp(first_log) * -math.expm1(second_log - first_log)
    return 0.0


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns the epsilon at ``delta`` of a mu-Gaussian-DP mechanism; the inverse of :func:`gaussian_mu`."""
    if math.isinf(mu) or delta == 0.0:
        return math.inf
    sigma, log_delta = 1.0 / mu, np.log(delta)
    if delta == 1.0 or _log_delta(sigma, 0.0) < log_delta:
        return 0.0
    from scipy.optimize import brentq

    low_epsilon, high_epsilon = 0.0, 1.0
    while _log_delta(sigma, high_epsilon) > log_delta:
        low_epsilon, high_epsilon = high_epsilon, high_epsilon * 10
    return float(
        brentq(lambda epsilon: _log_delta(sigma, epsilon) - log_delta, low_epsilon, high_epsilon, xtol=_ROOT_TOLERANCE)
    )


def _log_delta(sigma: float, epsilon: float) -> float:
    """Returns the logarithm of the delta at ``epsilon`` of one Gaussian release with the noise multiplier ``sigma``.

    Source: Balle and Wang 2018, theorem 8. The operations and their order are those of ``dp_accounting``, so that the
    two agree to the last bit; there a general distribution of scipy takes fifty times as long.
    """
    from scipy.special import log_ndtr

    loss_boundary = epsilon * sigma + 1 / (2 * sigma)
    first_log = log_ndtr(1 / sigma - loss_boundary)
    second_log = epsilon + log_ndtr(-loss_boundary)
    if second_log <= first_log:
        return float(first_log + np.log1p(-np.exp(second_log - first_log)))
    return -math.inf


def _grid_cell(merged_events: tuple[Event, ...], cell_count: int) -> float:
    """Returns the width of a cell of losses: about the range of plausible composed losses divided by ``cell_count``."""
    squared_mu = math.fsum(
        event.count * (event.sampling_rate / event.noise_multiplier) ** 2
        for event in merged_events
        if isinstance(event, Gaussian)
    )
    largest_mu = max(
        (1.0 / event.noise_multiplier for event in merged_events if isinstance(event, Gaussian)), default=0.0
    )
    pure_epsilon = math.fsum(_pure_bound(event) for event in merged_events if not isinstance(event, Gaussian))
    loss_span = pure_epsilon + squared_mu / 2 + 8 * math.sqrt(squared_mu) + largest_mu**2 / 2 + 8 * largest_mu
    cell_width = max(loss_span / cell_count, _FINEST_CELL)
    # Pure losses are rounded up to the grid: a grid that holds the commonest of them exactly wastes none of it.
    pure_events = [
        event for event in merged_events if isinstance(event, Pure | DiscreteLaplace) and event.epsilon >= cell_width
    ]
    if pure_events:
        loss = max(pure_events, key=lambda event: event.count).epsilon
        cell_width = loss / math.ceil(loss / cell_width) * (1.0 + 1e-12)
    return cell_width


@lru_cache(maxsize=16)
def _loss_distribution(merged_events: tuple[Event, ...], cell_count: int) -> Any:
    """Returns the composed privacy loss distribution (dp_accounting.pld), for add and remove, rounded up.

    The last distributions, a few MB each, are cached, because a consent sheet states several figures of one plan.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    cell_width = _grid_cell(merged_events, cell_count)
    composed_losses = None
    for event in merged_events:
        match event:
            case Gaussian():
                event_losses = pld.from_gaussian_mechanism(
                    event.noise_multiplier, sampling_prob=event.sampling_rate, value_discretization_interval=cell_width
                )
            case Laplace():
                event_losses = pld.from_laplace_mechanism(
                    event.noise_multiplier, value_discretization_interval=cell_width
                )
            case DiscreteLaplace():
                event_losses = _discrete_laplace_loss(event, cell_width)
            case Pure():
                event_losses = pld.from_privacy_parameters(
                    DifferentialPrivacyParameters(event.epsilon, 0.0), value_discretization_interval=cell_width
                )
        if event.count > 1:
            event_part = event_losses.self_compose(event.count)
        else:
            event_part = event_losses
        if composed_losses is None:
            composed_losses = event_part
        else:
            composed_losses = composed_losses.compose(event_part)
    return composed_losses


def _discrete_laplace_loss(event: DiscreteLaplace, cell_width: float) -> Any:
    """Returns the loss distribution of one release, each loss rounded up to a multiple of ``cell_width``.

    The time and memory of ``pld.from_discrete_laplace_mechanism`` grow with the sensitivity; here they follow the
    number of cells alone. The loss at x is epsilon (sensitivity - 2 x) for 0 <= x <= sensitivity, and constant beyond.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    highest_loss = math.ceil(event.epsilon * event.sensitivity / cell_width)
    losses = np.arange(-highest_loss, highest_loss + 1)  # multiples of ``cell``
    # From this noise on the loss is at most the one of the same index.
    least_noise = np.ceil((event.sensitivity - losses * (cell_width / event.epsilon)) / 2)
    tail_above = np.exp(-event.epsilon * least_noise.clip(0, event.sensitivity)) / (1.0 + math.exp(-event.epsilon))
    cumulative_masses = np.where(least_noise > event.sensitivity, 0.0, np.where(least_noise > 0, tail_above, 1.0))
    cumulative_masses[-1] = 1.0
    loss_masses = np.diff(cumulative_masses, prepend=0.0)
    mass_by_cell = dict(zip(losses[loss_masses > 0].tolist(), loss_masses[loss_masses > 0].tolist(), strict=True))
    loss_pmf = pld_pmf.create_pmf(mass_by_cell, cell_width, infinity_mass=0.0, pessimistic_estimate=True)
    return privacy_loss_distribution.PrivacyLossDistribution(loss_pmf)


# ------------------------------------------------------------------------------------------------------ checks


def _check_range(name: str, value: float, highest: float = math.inf) -> None:
    if not 0.0 <= value <= highest:  # The comparison refuses nan too.
        if math.isfinite(highest):
            range_words = f"between 0 and {highest:g}"
        else:
            range_words = "0 or more"
        raise ConfigurationError(f"{name} is {value}, not {range_words}", f"give a number {range_words}")


def _check_target(epsilon: float, delta: float) -> None:
    if not epsilon > 0.0:
        raise ConfigurationError(f"epsilon is {epsilon}, not above 0", "give a number above 0 (inf for no noise)")
    if not 0.0 < delta < 1.0:
        raise ConfigurationError(
            f"delta is {delta}, not between 0 and 1", "give a number between 0 and 1, below one over the records"
        )
