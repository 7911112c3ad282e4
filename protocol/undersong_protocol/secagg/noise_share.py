"""Noise shares of parties, of which the excess is removed after few dropouts: XNoise (Jiang et al. 2024, Dordis).

Of n parties at most D drop out and c collude. A party adds component 0 of variance sigma^2 / (n - c) and components
k = 1..D of sigma^2 / ((n - c - k + 1)(n - c - k)). Their sums telescope: components 0..r have sigma^2 / (n - c - r). So
after r dropouts the n - r survivors need exactly components 0..r, and components r + 1..D are removed from the sum.

The removable components' seeds come from a hash chain: V_1 is fresh, V_{k+1} = H("chain", V_k), component k is drawn
from H("seed", V_k), and the anchor V_{D+1} is advertised. Opening V_{r+1} gives components r + 1..D, is checked
against the anchor and says nothing about components 1..r. Component 0 has its own seed, which never leaves. A value
that is missing leaves its excess in the sum: more noise, never less.
"""

import hashlib
import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from undersong_common.errors import ConfigurationError, InternalError, PeerFault
from undersong_common.privacy.noise import (
    BLOCK_BYTES,
    SMALLEST_SHARE_SIGMA,
    DiscreteGaussian,
    DiscreteLaplaceShare,
    IntegerNoise,
    Law,
    Target,
)
from undersong_common.privacy.stream import LONG_BYTES, SEED_BYTES, KeyStream, LongStream
from undersong_protocol.statistics.vectors import GridVector, NoisyVector

CHAIN_DOMAIN = b"undersong/noise-chain/1\x00"
SEED_DOMAIN = b"undersong/noise-seed/1\x00"
_SMALLEST_VARIANCE = Fraction(SMALLEST_SHARE_SIGMA) ** 2


@dataclass(frozen=True)
class NoisePlan:
    """Split of a noise variance sigma^2 among n parties of which D may drop out and c collude; public.

    ``sigma`` is the standard deviation of the *drawn* noise that at least n - D - c honest survivors reach together.
    ``sigma`` 0 is no noise (epsilon infinite), without components.

    Attributes:
        sigma: planned standard deviation of the honest survivors' sum, integer units.
        parties: n, every party of the roster.
        dropouts: D, tolerated.
        colluders: c, tolerated.
        law: "laplace" deals discrete Laplace noise of scale sigma / sqrt(2) instead, in shares that no removal changes:
            every party adds NB(r, p) - NB(r, p) with r = 1 / (n - D - c), and what more survivors bring stays.
        components: exact variances of a party's components; one entry if nothing is removable.
        removal: True if components 1..D exist. False for D = 0, and if one of them or component 0 would have a
            deviation below 3 units: then there is a single component sigma^2 / (n - D - c) and the excess stays.
    """

    sigma: float
    parties: int
    dropouts: int = 0
    colluders: int = 0
    law: Law = "gaussian"
    components: tuple[Fraction, ...] = field(init=False, repr=False)
    removal: bool = field(init=False)

    def __post_init__(self) -> None:
        """Raises ConfigurationError for counts that leave no honest survivor or a share that cannot be drawn."""
        if min(self.dropouts, self.colluders) < 0 or self.honest_survivors < 1:
            raise ConfigurationError(
                f"of {self.parties} parties, {self.dropouts} tolerated dropouts and {self.colluders} colluders leave no"
                " honest survivor to bring the noise",
                "tolerate fewer dropouts or colluders",
            )
        if not math.isfinite(self.sigma) or self.sigma < 0:
            raise ConfigurationError(
                f"the standard deviation of the noise is {self.sigma}", "give a finite number that is not negative"
            )
        component_variances: list[Fraction] = []
        if self.sigma > 0 and self.law == "laplace":
            component_variances = [Fraction(self._laplace_share().deviation) ** 2]
        elif self.sigma > 0:
            single_variance = self.variance / self.honest_survivors
            if single_variance < _SMALLEST_VARIANCE:
                raise ConfigurationError(
                    f"a party's noise share has standard deviation {math.sqrt(single_variance):.3g} integer units, too"
                    " small to be drawn exactly",
                    f"raise the statistic's integer scale until sigma is at least "
                    f"{smallest_sigma(self.parties, self.dropouts, self.colluders):.4g} integer units",
                )
            honest_parties = self.parties - self.colluders
            component_variances = [self.variance / honest_parties]
            component_variances += [
                self.variance / ((honest_parties - dropped + 1) * (honest_parties - dropped))
                for dropped in range(1, self.dropouts + 1)
            ]
            if min(component_variances) < _SMALLEST_VARIANCE:
                component_variances = [single_variance]
            for component in component_variances:
                DiscreteGaussian.check_variance(component)
        object.__setattr__(self, "components", tuple(component_variances))
        object.__setattr__(self, "removal", len(component_variances) > 1)

    @property
    def honest_survivors(self) -> int:
        """Smallest number of honest survivors whose noise adds up to the planned noise: n - D - c."""
        return self.parties - self.dropouts - self.colluders

    @property
    def variance(self) -> Fraction:
        """The exact variance that the honest survivors' noise reaches together."""
        return Fraction(self.sigma) ** 2

    @property
    def share_variance(self) -> Fraction:
        """Variance of one party's noise before removal, the sum over its components."""
        return sum(self.components, Fraction(0))

    def component_law(self, index: int) -> IntegerNoise:
        """Returns the distribution of component ``index`` of a party's noise."""
        if self.law == "laplace":
            return self._laplace_share()
        numerator, denominator = self.components[index].as_integer_ratio()
        return (_narrow if numerator <= _NARROW * denominator else _wide)(numerator, denominator)

    def _laplace_share(self) -> DiscreteLaplaceShare:
        return DiscreteLaplaceShare(laplace_scale(self.sigma), self.honest_survivors)

    def opened_components(self, dropped_count: int) -> range:
        """Returns the indices of the components that are removed after so many dropouts; empty if none can be.

        Raises InternalError for more dropouts than tolerated; callers abort the attempt before.
        """
        if not 0 <= dropped_count <= self.dropouts:
            raise InternalError(
                f"{dropped_count} dropouts are not from 0 to {self.dropouts}, the tolerated number",
                code="too-many-dropouts",
            )
        if self.removal:
            return range(dropped_count + 1, self.dropouts + 1)
        return range(0)

    def opened_variance(self, dropped_count: int, unopened_count: int = 0) -> Fraction:
        """Returns the variance of all survivors' noise in the opened sum after r = ``dropped_count`` dropouts.

        With removal it is sigma^2 (n - r) / (n - r - c), plus the excess of each of the ``unopened_count`` survivors
        whose chain value is missing. Without removal it is (n - r) sigma^2 / (n - D - c).
        """
        removed_variance = sum(
            (self.components[component_index] for component_index in self.opened_components(dropped_count)), Fraction(0)
        )
        survivors = self.parties - dropped_count
        if not 0 <= unopened_count <= survivors:
            raise InternalError(
                f"{unopened_count} noise values are missing, of {survivors} survivors", code="too-many-missing-values"
            )
        return survivors * (self.share_variance - removed_variance) + unopened_count * removed_variance


@lru_cache(maxsize=128)
def noise_plan(sigma: float, parties: int, dropouts: int, colluders: int, law: Law = "gaussian") -> NoisePlan:
    """Returns a cached :class:`NoisePlan`, because its fractions take as long to compute as the keys of an attempt."""
    return NoisePlan(sigma, parties, dropouts, colluders, law=law)


# Each tolerated dropout adds one law, from which every party of a simulation draws. The tables of a law whose variance
# is at most ``_NARROW`` take at most 50 kB, those of another law up to 2 MB. Fewer of the latter are therefore cached.
_NARROW = 2**10  # integer units squared


def _gaussian_of(numerator: int, denominator: int) -> DiscreteGaussian:
    """Returns the discrete Gaussian law of variance ``numerator`` / ``denominator``.

    It takes two integers, because its caches look these up in a fifth of the time that a fraction takes.
    """
    return DiscreteGaussian.of_variance(Fraction(numerator, denominator))


_narrow = lru_cache(maxsize=1024)(_gaussian_of)
_wide = lru_cache(maxsize=32)(_gaussian_of)


def laplace_scale(sigma: float) -> float:
    """Returns the scale b = sigma / sqrt(2) of the Laplace law with standard deviation ``sigma``."""
    return sigma / math.sqrt(2.0)


def smallest_sigma(parties: int, dropouts: int, colluders: int, removal: bool = False) -> float:
    """Returns the least sigma, in integer units, that a noise plan accepts; with ``removal``, that allows removal.

    >>> smallest_sigma(10, 3, 0), round(smallest_sigma(10, 3, 0, removal=True), 2)
    (7.937253933193772, 28.46)
    """
    honest_parties = parties - colluders
    least_variance = _SMALLEST_VARIANCE * (
        honest_parties * (honest_parties - 1) if removal and dropouts else honest_parties - dropouts
    )
    sigma = math.sqrt(least_variance)
    # The square root may be rounded down. The result is rounded up, so that a noise plan accepts it.
    while Fraction(sigma) ** 2 < least_variance:
        sigma = math.nextafter(sigma, math.inf)
    return sigma


@dataclass(frozen=True, repr=False)
class NoiseSeeds:
    """One party's secret noise seeds for one attempt, never used again.

    Attributes:
        own: 32 bytes, seed of component 0; never leaves the party.
        root: 32 bytes, V_1 of the chain.
    """

    own: bytes
    root: bytes

    def __post_init__(self) -> None:
        if len(self.own) != SEED_BYTES or len(self.root) != SEED_BYTES:
            raise InternalError(f"a noise seed has another length than {SEED_BYTES} bytes", code="seed-length")

    def __repr__(self) -> str:
        return "NoiseSeeds(hidden)"

    def anchor(self, plan: NoisePlan) -> bytes:
        """Returns the chain's end V_{D+1}, 32 bytes, which is advertised and commits to the removable components."""
        return _advance_chain(self.root, plan.dropouts)

    def opening(self, plan: NoisePlan, dropped_count: int) -> bytes | None:
        """Returns V_{r+1}, 32 bytes, which opens components r+1..D after r dropouts; None without any."""
        if not plan.opened_components(dropped_count):
            return None
        return _advance_chain(self.root, dropped_count)


def add_noise(grid: GridVector, plan: NoisePlan, seeds: NoiseSeeds) -> NoisyVector:
    """Returns a new int64 [d]: the vector plus all components of this party's noise, drawn in chunks."""
    noisy_values = grid.values.copy()
    chain_value = seeds.root
    for index in range(len(plan.components)):
        if index == 0:
            seed = seeds.own
        else:
            seed = _hash_link(SEED_DOMAIN, chain_value)
            chain_value = _hash_link(CHAIN_DOMAIN, chain_value)
        _add_component(noisy_values, plan.component_law(index), seed)
    return NoisyVector(noisy_values)


def check_opening(chain_value: bytes, plan: NoisePlan, dropped_count: int, anchor: bytes, party: str) -> None:
    """Raises PeerFault that names ``party`` unless ``chain_value`` is V_{r+1} of the chain that ends at ``anchor``."""
    step_count = len(plan.opened_components(dropped_count))
    if not step_count:
        raise PeerFault(
            party,
            "opened a noise value, and the plan removes no noise after these dropouts",
            code="noise-not-taken-back",
        )
    if len(chain_value) != SEED_BYTES or _advance_chain(chain_value, step_count) != anchor:
        raise PeerFault(
            party, "the opened noise value does not lead to the advertised anchor", code="noise-off-its-anchor"
        )


def remove_opened(total: Target, plan: NoisePlan, dropped_count: int, chain_value: bytes) -> None:
    """Subtracts the components that a checked ``chain_value`` opens from ``total``, int64 or ring words [d]."""
    for index in plan.opened_components(dropped_count):
        _add_component(total, plan.component_law(index), _hash_link(SEED_DOMAIN, chain_value), sign=-1)
        chain_value = _hash_link(CHAIN_DOMAIN, chain_value)


def _add_component(target: Target, law: IntegerNoise, seed: bytes, sign: int = 1) -> None:
    is_long = len(target) * law.blocks * BLOCK_BYTES >= LONG_BYTES
    law.add_to(target, LongStream(seed) if is_long else KeyStream(seed), sign)


def _advance_chain(chain_value: bytes, step_count: int) -> bytes:
    for _ in range(step_count):
        chain_value = _hash_link(CHAIN_DOMAIN, chain_value)
    return chain_value


def _hash_link(domain: bytes, chain_value: bytes) -> bytes:
    return hashlib.sha256(domain + chain_value).digest()
