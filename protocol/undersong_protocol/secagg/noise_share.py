"""Noise shares whose excess can be taken back: XNoise (Jiang et al. 2024, Dordis), with one opening for a whole tail.

Of n parties at most D drop out and c collude. A party adds component 0 of variance sigma^2 / (n - c) and components
k = 1..D of sigma^2 / ((n - c - k + 1)(n - c - k)), which telescope: components 0..r are sigma^2 / (n - c - r), so
after r dropouts the n - r survivors need exactly those, and components r + 1..D are taken back.

The removable components' seeds come from a hash chain: V_1 is fresh, V_{k+1} = H("chain", V_k), component k is drawn
from H("seed", V_k), and the anchor V_{D+1} is advertised. Opening V_{r+1} gives components r + 1..D, is checked
against the anchor and says nothing about components 1..r. Component 0 has its own seed, which never leaves. A value
that is missing leaves its excess in the sum: more noise, never less.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from undersong_common.errors import ConfigurationError, InternalError, PeerFault
from undersong_common.privacy.noise import (
    ROUNDING_VARIANCE,
    SMALLEST_SHARE_SIGMA,
    DiscreteGaussian,
    DiscreteLaplaceShare,
    IntegerNoise,
    Target,
)
from undersong_common.privacy.stream import SEED_BYTES, KeyStream
from undersong_protocol.statistics.vectors import GridVector, NoisyVector

Entropy = Callable[[int], bytes]
Law = Literal["gaussian", "laplace"]

_CHAIN = b"undersong/noise-chain/1\x00"
_SEED = b"undersong/noise-seed/1\x00"
_SMALLEST_VARIANCE = Fraction(SMALLEST_SHARE_SIGMA) ** 2


@dataclass(frozen=True)
class NoisePlan:
    """The split of sigma^2 among n parties of which D may drop out and c collude. Public; all in integer units.

    ``sigma`` is the deviation that the n - D - c honest survivors reach in any case: what is *sampled*. To charge a
    continuous Gaussian for it, see :meth:`charged`. ``sigma`` 0 is no noise at all (epsilon infinite): no components.

    Attributes:
        sigma: planned standard deviation of the honest survivors' sum, integer units.
        parties: n, every party of the roster.
        dropouts: D, tolerated.
        colluders: c, tolerated.
        rounding_variance: added to sigma^2 exactly (4 where sigma is the charged one).
        law: "laplace" deals discrete Laplace noise of scale sigma / sqrt(2) instead, in shares that no removal changes:
            every party adds NB(r, p) - NB(r, p) with r = 1 / (n - D - c), and what more survivors bring stays.
        components: variances of a party's components, exact; one entry where nothing is removable.
        removal: whether components 1..D exist. False for D = 0, and where one of them or component 0 would have a
            deviation below 3 units: then there is a single component sigma^2 / (n - D - c) and the excess stays.
    """

    sigma: float
    parties: int
    dropouts: int = 0
    colluders: int = 0
    rounding_variance: int = 0
    law: Law = "gaussian"
    components: tuple[Fraction, ...] = field(init=False, repr=False)
    removal: bool = field(init=False)

    def __post_init__(self) -> None:
        """Raise ConfigurationError for counts that leave no honest survivor or a share that cannot be drawn."""
        floor = self.parties - self.dropouts - self.colluders
        if min(self.dropouts, self.colluders) < 0 or floor < 1:
            raise ConfigurationError(
                f"{self.parties} parties with {self.dropouts} dropouts and {self.colluders} colluders tolerated",
                "leave at least one honest survivor to bring the noise",
            )
        if not math.isfinite(self.sigma) or self.sigma < 0 or self.rounding_variance < 0:
            raise ConfigurationError(
                f"noise of standard deviation {self.sigma}", "sigma must be finite and not negative"
            )
        components: list[Fraction] = []
        if self.sigma > 0 and self.law == "laplace":
            components = [Fraction(self._laplace_share().deviation) ** 2]
        elif self.sigma > 0:
            single = self.variance / floor
            if single < _SMALLEST_VARIANCE:
                raise ConfigurationError(
                    f"a noise share of standard deviation {math.sqrt(single):.3g} integer units",
                    f"raise the statistic's integer scale until sigma is at least "
                    f"{smallest_sigma(self.parties, self.dropouts, self.colluders):.4g} integer units",
                )
            honest = self.parties - self.colluders
            components = [self.variance / honest]
            components += [self.variance / ((honest - k + 1) * (honest - k)) for k in range(1, self.dropouts + 1)]
            if min(components) < _SMALLEST_VARIANCE:
                components = [single]
            for component in components:
                DiscreteGaussian.check_variance(component)
        object.__setattr__(self, "components", tuple(components))
        object.__setattr__(self, "removal", len(components) > 1)

    @classmethod
    def charged(cls, sigma_charged: float, parties: int, dropouts: int = 0, colluders: int = 0) -> "NoisePlan":
        """The plan whose honest noise may be charged as a continuous Gaussian of ``sigma_charged``: sigma^2 + 4."""
        return cls(sigma_charged, parties, dropouts, colluders, ROUNDING_VARIANCE if sigma_charged > 0 else 0)

    @property
    def variance(self) -> Fraction:
        """The honest survivors' planned variance, exact."""
        return Fraction(self.sigma) ** 2 + self.rounding_variance

    @property
    def share_variance(self) -> Fraction:
        """Variance of one party's noise before any is removed: the sum of its components."""
        return sum(self.components, Fraction(0))

    def component_law(self, index: int) -> IntegerNoise:
        """The distribution of component ``index``."""
        return self._laplace_share() if self.law == "laplace" else _gaussian(self.components[index])

    def _laplace_share(self) -> DiscreteLaplaceShare:
        return DiscreteLaplaceShare(laplace_scale(self.sigma), self.parties - self.dropouts - self.colluders)

    def opened_components(self, dropped: int) -> range:
        """Indices of the components taken back after ``dropped`` dropouts; empty where nothing is removable.

        Raises InternalError beyond the tolerated dropouts: the caller aborts before it asks.
        """
        if not 0 <= dropped <= self.dropouts:
            raise InternalError(f"{dropped} dropouts where {self.dropouts} are tolerated", code="too-many-dropouts")
        return range(dropped + 1, self.dropouts + 1) if self.removal else range(0)

    def opened_variance(self, dropped: int, unopened: int = 0) -> Fraction:
        """Variance of the noise left in the opened sum after ``dropped`` dropouts, all survivors' shares counted.

        With removal sigma^2 (n - r) / (n - r - c), and the excess of each of ``unopened`` survivors whose chain value
        is missing; without, (n - r) sigma^2 / (n - D - c).
        """
        removed = sum((self.components[k] for k in self.opened_components(dropped)), Fraction(0))
        survivors = self.parties - dropped
        if not 0 <= unopened <= survivors:
            raise InternalError(f"{unopened} values missing from {survivors} survivors", code="too-many-missing-values")
        return survivors * (self.share_variance - removed) + unopened * removed


@lru_cache(maxsize=128)
def noise_plan(sigma: float, parties: int, dropouts: int, colluders: int, law: Law = "gaussian") -> NoisePlan:
    """A cached :class:`NoisePlan`: its fractions take as long to compute as the keys of an attempt."""
    return NoisePlan(sigma, parties, dropouts, colluders, law=law)


@lru_cache(maxsize=32)
def _gaussian(variance: Fraction) -> DiscreteGaussian:
    return DiscreteGaussian.of_variance(variance)


def laplace_scale(sigma: float) -> float:
    """Scale b of the Laplace law that is named by its continuous standard deviation sigma = sqrt(2) b."""
    return sigma / math.sqrt(2.0)


def smallest_sigma(parties: int, dropouts: int, colluders: int, removal: bool = False) -> float:
    """The least sigma, in integer units, that a plan accepts (or, with ``removal``, with which it can take back).

    >>> smallest_sigma(10, 3, 0), round(smallest_sigma(10, 3, 0, removal=True), 2)
    (7.937253933193772, 28.46)
    """
    honest = parties - colluders
    least = _SMALLEST_VARIANCE * (honest * (honest - 1) if removal and dropouts else honest - dropouts)
    sigma = math.sqrt(least)
    # Rounded up, so that the plan accepts the value it was told.
    while Fraction(sigma) ** 2 < least:
        sigma = math.nextafter(sigma, math.inf)
    return sigma


@dataclass(frozen=True, repr=False)
class NoiseSeeds:
    """One party's secret noise seeds for one attempt; never reused, never in a repr.

    Attributes:
        own: 32 bytes, the stream of component 0; never leaves the party.
        root: 32 bytes, V_1 of the chain.
    """

    own: bytes
    root: bytes

    def __post_init__(self) -> None:
        if len(self.own) != SEED_BYTES or len(self.root) != SEED_BYTES:
            raise InternalError(f"noise seeds are {SEED_BYTES} bytes each", code="seed-length")

    def __repr__(self) -> str:
        return "NoiseSeeds(hidden)"

    @classmethod
    def fresh(cls, entropy: Entropy) -> "NoiseSeeds":
        """New seeds; ``entropy`` is called for 32 bytes (own), then 32 bytes (root)."""
        return cls(entropy(SEED_BYTES), entropy(SEED_BYTES))

    def anchor(self, plan: NoisePlan) -> bytes:
        """V_{D+1}, 32 bytes: what is advertised, and binds the removable components. Also valid without removal."""
        return _advance(self.root, plan.dropouts)

    def opening(self, plan: NoisePlan, dropped: int) -> bytes | None:
        """V_{r+1}, 32 bytes, which opens components r+1..D and no other; None where there is nothing to take back."""
        if not plan.opened_components(dropped):
            return None
        return _advance(self.root, dropped)


def add_noise(grid: GridVector, plan: NoisePlan, seeds: NoiseSeeds) -> NoisyVector:
    """The vector plus all of this party's components; a new int64 [d], drawn and added in chunks."""
    values = grid.values.copy()
    value = seeds.root
    for index in range(len(plan.components)):
        if index == 0:
            seed = seeds.own
        else:
            seed = _hash(_SEED, value)
            value = _hash(_CHAIN, value)
        plan.component_law(index).add_to(values, KeyStream(seed))
    return NoisyVector(values)


def check_opening(value: bytes, plan: NoisePlan, dropped: int, anchor: bytes, party: str) -> None:
    """Raise PeerFault naming ``party`` unless ``value`` is the chain's V_{r+1} for its advertised ``anchor``."""
    steps = len(plan.opened_components(dropped))
    if not steps:
        raise PeerFault(party, "opened noise where the plan takes none back", code="noise-not-taken-back")
    if len(value) != SEED_BYTES or _advance(value, steps) != anchor:
        raise PeerFault(
            party, "the opened noise value does not lead to the advertised anchor", code="noise-off-its-anchor"
        )


def remove_opened(total: Target, plan: NoisePlan, dropped: int, value: bytes) -> None:
    """Subtract the components opened by a checked ``value`` from ``total``, int64 or ring words [d], in place."""
    for index in plan.opened_components(dropped):
        plan.component_law(index).add_to(total, KeyStream(_hash(_SEED, value)), sign=-1)
        value = _hash(_CHAIN, value)


def _advance(value: bytes, steps: int) -> bytes:
    for _ in range(steps):
        value = _hash(_CHAIN, value)
    return value


def _hash(domain: bytes, value: bytes) -> bytes:
    return hashlib.sha256(domain + value).digest()
