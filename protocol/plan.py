"""The plan: every private sum of a run, its sensitivity and its noise, fixed before anything is asked.

A method lists :class:`SumRequest` values; :func:`plan_sums` calibrates their noise together so that the whole run
spends exactly (epsilon, delta); the result is shown to the operator, approved by every party and hashed into the
manifest. A party does not believe the plan: :meth:`Plan.verify` recomputes sensitivity, scale, modulus and epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from common.errors import ConfigurationError, PrivacyRefusal
from common.privacy import accounting
from protocol import statistics
from protocol.secagg import noise_share, ring
from protocol.statistics import Statistic

Unit = Literal["sample", "user", "party"]
Contribution = Literal["mean", "sum"]

SMALLEST_SIGMA = 64.0  # integer units: the loss of sigma_eff = sqrt(sigma^2 - 4) stays below 0.1 % (PRIVACY.md)
LARGEST_SCALE_BITS = 40
EPSILON_TOLERANCE = 1e-6  # relative; the calibration's bisection stops within it


@dataclass(frozen=True)
class Privacy:
    """What one run promises, under add/remove adjacency of one unit.

    Attributes:
        epsilon, delta: the budget of the whole run; epsilon may be ``inf`` (research only: no privacy at all).
        unit: whose presence is hidden: one record, one user (patient), or one whole party.
        max_per_unit: cap on a unit's records (1 for unit "sample").
        contribution: how a unit's records count together: their mean (same norm as one) or their sum (times the cap).
        max_records: public cap on a party's records; it fixes the modulus.
    """

    epsilon: float
    delta: float
    unit: Unit = "sample"
    max_per_unit: int = 1
    contribution: Contribution = "mean"
    max_records: int = 100_000

    @property
    def norm_factor(self) -> int:
        """How many times the norm of one record's row a unit may reach."""
        return self.max_per_unit if self.unit != "sample" and self.contribution == "sum" else 1

    @property
    def scale_factor(self) -> int:
        """Extra integer resolution, so that a mean over max_per_unit records keeps every record's weight."""
        return self.max_per_unit if self.unit != "sample" and self.contribution == "mean" else 1


@dataclass(frozen=True)
class Quorum:
    """Public shape of the federation: parties n, threshold T, tolerated dropouts D, colluders c, spare attempts."""

    parties: int
    threshold: int
    tolerated_dropouts: int
    colluders: int
    spare_attempts: int = 0


@dataclass(frozen=True)
class SumRequest:
    """One private sum that a method will make.

    Attributes:
        name: unique in the run and stable, such as ``votes/1``; the journal's key.
        statistic: its public parameters and bounds.
        budget_share: its part of the Gaussian budget (mu squared) relative to the other sums'.
        sampling_rate: Poisson rate q of the units each party lets take part (1 = all), by its own secret coins.
    """

    name: str
    statistic: Statistic
    budget_share: float = 1.0
    sampling_rate: float = 1.0


@dataclass(frozen=True)
class PlannedSum:
    """One private sum with its noise. Sensitivities and ``sigma`` are natural units (one vote, one count = 1).

    ``sigma`` is the standard deviation that is charged; the noise really drawn has integer variance
    ``sigma_integer**2 + 4`` (PRIVACY.md, discrete noise accounted as continuous).
    """

    name: str
    statistic: str
    parameters: Mapping[str, Any]
    dimension: int
    l1: float
    l2: float
    linf: float
    scale: int
    sigma_integer: float
    modulus_bits: int
    sampling_rate: float = 1.0

    @property
    def sigma(self) -> float:
        return self.sigma_integer / self.scale

    @property
    def drawn_sigma_integer(self) -> float:
        """Standard deviation, integer units, that the honest survivors' noise must reach together."""
        return math.sqrt(accounting.sampled_variance(self.sigma_integer)) if self.sigma_integer else 0.0

    def build(self) -> Statistic:
        """The statistic, rebuilt from its wire name and public parameters."""
        return statistics.build(self.statistic, self.parameters)

    def event(self) -> accounting.Gaussian:
        """What this sum is charged as (multiplier 0, epsilon infinity, in the explicit no-privacy mode)."""
        return accounting.Gaussian(self.sigma / self.l2, sampling_rate=self.sampling_rate)


@dataclass(frozen=True)
class Plan:
    """Every private sum of a run, in order, with the promise they keep together."""

    privacy: Privacy
    quorum: Quorum
    sums: tuple[PlannedSum, ...] = field(default=())

    def __getitem__(self, name: str) -> PlannedSum:
        for planned in self.sums:
            if planned.name == name:
                return planned
        raise PrivacyRefusal(f"the private sum {name!r} is not in the approved plan", "plan and approve a new run")

    def epsilon_after(self, releases: int) -> float:
        """Epsilon, at the plan's delta, after the first ``releases`` sums (information, not the limit)."""
        return accounting.epsilon(_events(self.sums[:releases]), self.privacy.delta)

    def epsilon(self) -> float:
        """Epsilon of the whole plan, priced spare attempts included."""
        return accounting.epsilon(self.charged_events(), self.privacy.delta)

    def epsilon_if_all_others_collude(self) -> float:
        """Epsilon against a coalition of every other party and the coordinator, who can subtract all other noise.

        Only one party's own share then protects its records: variance sigma^2 / (n - c) when nobody drops out
        (XNoise component 0), the least it ever keeps.
        """
        honest = self.quorum.parties - self.quorum.colluders
        events = [
            accounting.Gaussian(event.noise_multiplier / math.sqrt(honest), sampling_rate=event.sampling_rate)
            for event in self.charged_events()
        ]
        return accounting.epsilon(events, self.privacy.delta)

    def charged_events(self) -> list[accounting.Gaussian]:
        """Every release of the plan in order, priced spare attempts at the end."""
        events = _events(self.sums)
        return [*events, *_spare_events(events, self.quorum.spare_attempts)]

    def verify(self) -> None:
        """What every party recomputes before it signs. Raises PrivacyRefusal with the first figure that is wrong."""
        names = [planned.name for planned in self.sums]
        if len(set(names)) != len(names):
            raise PrivacyRefusal("the plan names a private sum twice", "give every sum its own name")
        for planned in self.sums:
            statistic = planned.build()
            if planned.dimension != statistic.dimension:
                raise PrivacyRefusal(f"{planned.name}: dimension {planned.dimension} is not {statistic.dimension}")
            bound = statistic.sensitivity
            factor = self.privacy.norm_factor
            for norm, stated, true in (
                ("L1", planned.l1, bound.l1 * factor),
                ("L2", planned.l2, bound.l2 * factor),
                ("Linf", planned.linf, bound.linf * factor),
            ):
                if not math.isclose(stated, true, rel_tol=1e-9):
                    raise PrivacyRefusal(f"{planned.name}: {norm} sensitivity {stated} is not {true}")
            if planned.modulus_bits != _modulus_bits(statistic, planned, self.privacy, self.quorum):
                raise PrivacyRefusal(f"{planned.name}: modulus of {planned.modulus_bits} bits does not fit its sum")
            if not 0.0 < planned.sampling_rate <= 1.0:
                raise PrivacyRefusal(f"{planned.name}: sampling rate {planned.sampling_rate} is not in (0, 1]")
            if math.isfinite(self.privacy.epsilon) and planned.sigma_integer < SMALLEST_SIGMA:
                raise PrivacyRefusal(
                    f"{planned.name}: sigma {planned.sigma_integer:.4g} in integer units is too coarse"
                )
        spent = self.epsilon()
        if spent > self.privacy.epsilon * (1 + EPSILON_TOLERANCE):
            raise PrivacyRefusal(
                f"the plan spends epsilon {spent:.6g}, more than the {self.privacy.epsilon:.6g} it declares",
                "ask the operator for a plan whose noise fits its promise",
            )

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; infinite epsilon is written as null, since JSON has no infinity."""
        privacy = asdict(self.privacy)
        privacy["epsilon"] = self.privacy.epsilon if math.isfinite(self.privacy.epsilon) else None
        return {"privacy": privacy, "quorum": asdict(self.quorum), "sums": [asdict(planned) for planned in self.sums]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        privacy = dict(value["privacy"])
        if privacy["epsilon"] is None:
            privacy["epsilon"] = math.inf
        return cls(
            Privacy(**privacy), Quorum(**value["quorum"]), tuple(PlannedSum(**planned) for planned in value["sums"])
        )


def plan_sums(requests: Sequence[SumRequest], privacy: Privacy, quorum: Quorum) -> Plan:
    """Calibrates the noise of all ``requests`` together to (epsilon, delta). Raises ConfigurationError."""
    if not requests:
        return Plan(privacy, quorum)
    total = sum(request.budget_share for request in requests)
    shares = [request.budget_share / total for request in requests]

    def events(factor: float) -> list[accounting.Gaussian]:
        main = [
            accounting.Gaussian(factor / math.sqrt(share), sampling_rate=request.sampling_rate)
            for request, share in zip(requests, shares, strict=True)
        ]
        return main + _spare_events(main, quorum.spare_attempts)

    private = math.isfinite(privacy.epsilon)
    factor = accounting.calibrate(events, privacy.epsilon, privacy.delta) if private else 0.0
    planned = [
        _planned(request, factor / math.sqrt(share), privacy, quorum)
        for request, share in zip(requests, shares, strict=True)
    ]
    return Plan(privacy, quorum, tuple(planned))


def _events(sums: Sequence[PlannedSum]) -> list[accounting.Gaussian]:
    return [planned.event() for planned in sums]


def _spare_events(events: Sequence[accounting.Gaussian], spares: int) -> list[accounting.Gaussian]:
    # A spare attempt may repeat any sum, so each is priced as the dearest.
    return [min(events, key=lambda event: event.noise_multiplier)] * spares if events else []


def _planned(request: SumRequest, multiplier: float, privacy: Privacy, quorum: Quorum) -> PlannedSum:
    statistic = request.statistic
    bound = statistic.sensitivity
    factor = privacy.norm_factor
    scale = statistic.base_scale * privacy.scale_factor
    if multiplier:
        while not _fine_enough(multiplier * bound.l2 * factor * scale, quorum):
            scale *= 2
            if scale.bit_length() > LARGEST_SCALE_BITS:
                raise ConfigurationError(
                    f"{request.name}: its noise is too small to be drawn exactly", "lower privacy.epsilon"
                )
    planned = PlannedSum(
        name=request.name,
        statistic=statistic.name,
        parameters=statistics.parameters(statistic),
        dimension=statistic.dimension,
        l1=bound.l1 * factor,
        l2=bound.l2 * factor,
        linf=bound.linf * factor,
        scale=scale,
        sigma_integer=multiplier * bound.l2 * factor * scale,
        modulus_bits=0,
        sampling_rate=request.sampling_rate,
    )
    bits = _modulus_bits(statistic, planned, privacy, quorum)
    return PlannedSum(**{**asdict(planned), "modulus_bits": bits})


def _fine_enough(sigma_integer: float, quorum: Quorum) -> bool:
    """Whether the noise can be charged as continuous, and XNoise can remove its excess."""
    dropouts = quorum.tolerated_dropouts
    smallest = noise_share.smallest_sigma(quorum.parties, dropouts, quorum.colluders, removal=dropouts > 0)
    return sigma_integer >= max(SMALLEST_SIGMA, smallest)


def _modulus_bits(statistic: Statistic, planned: PlannedSum, privacy: Privacy, quorum: Quorum) -> int:
    honest = quorum.parties - quorum.tolerated_dropouts - quorum.colluders
    sigma_total = planned.drawn_sigma_integer * math.sqrt(quorum.parties / honest)
    return ring.modulus_bits(
        parties=quorum.parties,
        max_records=privacy.max_records,
        linf=statistic.sensitivity.linf,
        scale=planned.scale,
        sigma_total=sigma_total,
    )
