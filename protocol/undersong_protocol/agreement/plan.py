"""The plan: every private sum of a run, its sensitivity and its noise, fixed before the first sum.

A method lists :class:`SumRequest` values; :func:`plan_sums` calibrates their noise together so that the whole run
spends exactly (epsilon, delta). The result is shown to the operator, approved by every party and hashed into the
manifest. A party trusts no figure of it: :meth:`Plan.verify` recomputes sensitivity, scale, modulus and epsilon.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StringConstraints, TypeAdapter, ValidationError

from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.printable import printable, repeated
from undersong_common.privacy import accounting
from undersong_common.privacy.ledger import VOIDED_VECTORS
from undersong_common.privacy.noise import DiscreteLaplaceShare, Law
from undersong_protocol import limits, statistics
from undersong_protocol.limits import (
    LARGEST_DIMENSION,
    LARGEST_DRAWS,
    LARGEST_MECHANISMS,
    LARGEST_NUMBER,
    LARGEST_PARAMETERS,
    LARGEST_PARTIES,
    LARGEST_PARTIES_TIMES_SUMS,
    LARGEST_RECORDS,
    LARGEST_RECORDS_OF_A_UNIT,
    LARGEST_SCALE,
    LARGEST_SPARE_ATTEMPTS,
    LARGEST_SUMS,
    check_size,
)
from undersong_protocol.secagg import noise_share, ring
from undersong_protocol.secagg.drawn import stray
from undersong_protocol.secagg.graph import COMPLETE_UP_TO
from undersong_protocol.secagg.parameters import check_quorum
from undersong_protocol.statistics import contribution
from undersong_protocol.statistics.contribution import UnitContribution

Unit = Literal["sample", "user", "party"]

PLAN_ANEW = "have the run planned anew"
# Integer units: the loss of sigma_eff = sqrt(sigma^2 - 4) stays below 0.1 % (docs/privacy.md, "Noise").
SMALLEST_SIGMA = 64.0
LARGEST_SCALE_BITS = 40
# Each calibration lowers epsilon by what the rounding of the loss distributions adds, some 1e-5. One is usually enough.
LAPLACE_CALIBRATIONS = 8
# Smallest and largest scale of Laplace noise in integer units. From the smallest on, rounding is small beside it; up to
# the largest, the table of a party's share is computed in half a second.
LAPLACE_SCALES = (64.0, 4096.0)
# The modulus allows 12 standard deviations of Gaussian noise, and 5 times as many of Laplace noise: 85 scales, which a
# coordinate exceeds with probability e^-85.
LAPLACE_TAIL = 5.0
INTEGER_NORM_TOLERANCE = 2.0**-36  # relative; larger than the excess that statistics.contribution allows
REPLY_BYTES = 2**20  # size of the part of a reply that does not depend on the run
REPLY_BYTES_A_PARTY = 8192
REPLY_BYTES_AN_ATTEMPT = 16_384  # A receipt holds a sum's charges and voids, a few tries of each.
SOURCE = re.compile(r"([0-9a-f]{64})?")
EPSILON_TOLERANCE = 1e-6  # relative; the calibration's bisection stops within it


def _check_epsilon(epsilon: float) -> float:
    if LARGEST_NUMBER < epsilon < math.inf:
        raise ValueError(f"{epsilon:g} is finite and above {LARGEST_NUMBER:g}, the largest epsilon of a plan")
    return epsilon


def _check_parameters(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a statistic's parameters.

    Raises ValueError if there are too many values, or a number is larger than any statistic takes.
    """
    unread_values: list[Any] = [parameters]
    # The list grows while it is read: the contents of each container are appended to it.
    for parameter_value in unread_values:
        if isinstance(parameter_value, Mapping):
            unread_values += parameter_value.values()
        elif isinstance(parameter_value, (list, tuple)):
            unread_values += parameter_value
        # The comparison is negated because NaN compares as False with every number.
        if type(parameter_value) in (int, float) and not abs(parameter_value) <= LARGEST_NUMBER:
            raise ValueError(
                f"{printable(str(parameter_value), 24)} is not a number of at most {LARGEST_NUMBER} in size"
            )
        if len(unread_values) > LARGEST_PARAMETERS:
            raise ValueError(f"{len(unread_values)} or more values; a statistic has at most {LARGEST_PARAMETERS}")
    return parameters


# Types and ranges of a plan's figures. :meth:`Plan.check_form` checks them first, so that a party refuses a wrong one
# before it reads a record.
_Number = Annotated[float, Field(strict=True, ge=0, le=LARGEST_NUMBER)]
_Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST_NUMBER)]
_CountOrZero = Annotated[int, Field(strict=True, ge=0, le=LARGEST_NUMBER)]


@dataclass(frozen=True)
class Privacy:
    """The privacy guarantee of one run, under add/remove adjacency of one unit.

    Attributes:
        epsilon, delta: the budget of the whole run; epsilon may be ``inf`` (research only: no privacy at all).
        unit: the privacy unit: "sample" (one record), "user" (all records of one patient) or "party" (a whole party).
        max_per_unit: cap on a unit's records (1 for unit "sample").
        contribution: how a unit's records count together: their mean (whose norm is at most one record's) or their sum
            (at most ``max_per_unit`` times that).
        max_records: largest number of records of a party that the modulus allows for: each coordinate of a party's
            vector is clamped to what so many records reach. Clamping is 1-Lipschitz in every norm, so it costs no
            privacy.
    """

    epsilon: Annotated[float, Field(strict=True, gt=0), AfterValidator(_check_epsilon)]
    delta: Annotated[float, Field(strict=True, gt=0, lt=1)]
    unit: Unit = "sample"
    max_per_unit: _Count = 1
    contribution: UnitContribution = "mean"
    max_records: _Count = 100_000

    @property
    def norm_factor(self) -> int:
        """Largest norm of a unit's contribution, as a multiple of one record's largest norm."""
        if self.unit != "sample" and self.contribution == "sum":
            return self.max_per_unit
        return 1


@dataclass(frozen=True)
class Quorum:
    """Numbers of parties that a run's sums need and tolerate; public.

    Attributes:
        parties: n, all parties of the run.
        threshold: T, parties that it takes to open a sum.
        tolerated_dropouts: D, parties that may vanish during a sum.
        colluders: c, parties that may share what they know with the coordinator.
        spare_attempts: repeated attempts that the plan pays for.
        post_quantum: True makes channels and masks hybrid, of X25519 and ML-KEM-768.
    """

    parties: _Count
    threshold: _Count
    tolerated_dropouts: _CountOrZero
    colluders: _CountOrZero
    spare_attempts: _CountOrZero = 0
    post_quantum: StrictBool = True

    @property
    def fewest(self) -> int:
        """Least number of parties whose vectors an opened sum holds: a party releases nothing for a smaller set."""
        return self.parties - self.tolerated_dropouts

    @property
    def noise_colluders(self) -> int:
        """Colluders that the noise allows for: c, and those whom the Merkle graph may leave out (``drawn.stray``)."""
        return self.colluders + stray(self.parties, self.colluders, self.tolerated_dropouts)

    @property
    def honest_survivors(self) -> int:
        """Smallest number of honest parties whose noise adds up to the planned noise (``noise_share.NoisePlan``)."""
        return self.fewest - self.noise_colluders


@dataclass(frozen=True)
class SumRequest:
    """One private sum that a method will make.

    Attributes:
        name: name of the sum, such as ``votes/1``; unique in the run, and the same if the run is started again.
        statistic: the statistic with its public parameters.
        budget_share: part of the Gaussian budget (mu squared) for this sum, relative to the other sums.
        sampling_rate: probability with which each privacy unit takes part, drawn in secret by its party; 1 takes all.
        law: "gaussian", or "laplace" for discrete Laplace noise by the L1 sensitivity, which is pure epsilon-DP.
        epsilon: fixed epsilon of a Laplace sum; the Gaussian sums are calibrated to what it leaves. None divides the
            run's epsilon among the Laplace sums by ``budget_share``, if no sum is Gaussian.
        noise_multiplier: fixed noise of a Gaussian sum over its L2 sensitivity, such as a paper's figure; the other
            Gaussian sums are calibrated around it. None calibrates this sum too. Only a run that promises no privacy
            may have 0.
        first_rung_s: first public send time ("rung", limits.py) of this sum's vectors, in seconds after the request.
            A later first rung, for a sum that takes long to compute, shows less of the time it took.
    """

    name: str
    statistic: statistics.Statistic
    budget_share: float = 1.0
    sampling_rate: float = 1.0
    law: Law = "gaussian"
    epsilon: float | None = None
    noise_multiplier: float | None = None
    first_rung_s: float = limits.FIRST_S


@dataclass(frozen=True)
class PlannedSum:
    """One private sum of a plan with its noise. Sensitivities and ``sigma`` are in natural units, such as one vote.

    ``sigma`` is the standard deviation that is charged; the noise drawn has the variance ``sigma_integer**2 + 4`` in
    integer units (docs/privacy.md, "Noise"). If ``law`` is "laplace", ``sigma`` is sqrt(2) times the scale of the
    discrete Laplace noise, and that noise itself is charged.

    ``source`` is the SHA-256 (hex) of the source of another package's statistic; "" for this program's own statistics.
    ``scale`` is the number of integer units in a natural one; ``first_rung_s`` is as in :class:`SumRequest`.
    """

    name: str
    statistic: str
    parameters: Annotated[Mapping[str, Any], AfterValidator(_check_parameters)]
    dimension: _Count
    l1: _Number
    l2: _Number
    linf: _Number
    scale: _Count
    sigma_integer: _Number
    modulus_bits: _Count
    sampling_rate: _Number = 1.0
    law: Law = "gaussian"
    first_rung_s: _Number = limits.FIRST_S
    source: Annotated[str, StringConstraints(pattern=f"^(?:{SOURCE.pattern})$")] = ""

    @property
    def sigma(self) -> float:
        return self.sigma_integer / self.scale

    @property
    def drawn_sigma_integer(self) -> float:
        """Standard deviation, in integer units, that the noise of all honest survivors together must reach."""
        if self.law == "laplace" or not self.sigma_integer:
            return self.sigma_integer
        return math.sqrt(accounting.sampled_variance(self.sigma_integer))

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, without ``source`` if it is empty."""
        sum_fields = asdict(self)
        if self.source:
            return sum_fields
        return {key: field_value for key, field_value in sum_fields.items() if key != "source"}

    def build(self) -> statistics.Statistic:
        """Makes the statistic from its name and public parameters.

        Raises PrivacyRefusal if the program's statistic of that name has another source than the plan's.
        """
        if self.source != statistics.source(self.statistic):
            raise PrivacyRefusal(
                f"{self.name}: by the plan, the statistic {self.statistic!r} comes from {_describe_owner(self.source)};"
                f" on this machine it comes from {_describe_owner(statistics.source(self.statistic))}",
                "at a hospital, install a release of Undersong with that statistic; in a simulation, install the same"
                " release of its package",
            )
        return statistics.build(self.statistic, self.parameters)

    def event(self) -> accounting.Gaussian | accounting.DiscreteLaplace:
        """Returns the privacy event that is charged for this sum; one with infinite epsilon if the sum has no noise."""
        if self.law == "laplace":
            largest_integer_l1 = math.floor(self.l1 * self.scale * (1.0 + INTEGER_NORM_TOLERANCE))
            noise_scale = noise_share.laplace_scale(self.sigma_integer)
            return accounting.DiscreteLaplace(1.0 / noise_scale if noise_scale else math.inf, largest_integer_l1)
        return accounting.Gaussian(self.sigma / self.l2, sampling_rate=self.sampling_rate)

    def event_with_less(self, noise_share_left: float) -> accounting.Event:
        """Returns the privacy event of this sum if only a part of its variance is left (docs/privacy.md, "Noise").

        Laplace noise of which a part is missing gives no guarantee.

        Args:
            noise_share_left: variance that is left, divided by the planned one; at most 1.
        """
        if noise_share_left == 1.0 or not self.sigma_integer:
            return self.event()
        if self.law == "laplace":
            return accounting.Pure(math.inf)
        sigma = accounting.charged_sigma(noise_share_left * self.drawn_sigma_integer**2)
        return accounting.Gaussian(sigma / (self.scale * self.l2), sampling_rate=self.sampling_rate)

    def event_alone(self, quorum: Quorum) -> accounting.Event:
        """Returns the privacy event of a party's vector if all others collude and subtract all noise but its own.

        A vector always keeps noise component 0 (``noise_share.NoisePlan``), of variance sigma_i^2. It is charged as a
        continuous Gaussian of standard deviation sqrt(sigma_i^2 - 4), because rounding costs every single share a
        variance of 4 (docs/privacy.md, "Noise"). One share of Laplace noise is mostly zero and gives no guarantee,
        unless it is the whole noise.
        """
        if self.law == "laplace":
            if quorum.honest_survivors == 1:
                return self.event()
            return accounting.Pure(math.inf)
        if not self.sigma_integer:
            return self.event()
        drawn_sigma = self.drawn_sigma_integer
        noise_plan = noise_share.noise_plan(
            drawn_sigma, quorum.parties, quorum.tolerated_dropouts, quorum.noise_colluders
        )
        sigma = accounting.charged_sigma(float(noise_plan.components[0]))
        return accounting.Gaussian(sigma / (self.scale * self.l2), sampling_rate=self.sampling_rate)


@dataclass(frozen=True)
class Plan:
    """Every private sum of a run, in order, with the privacy guarantee of all of them together."""

    privacy: Privacy
    quorum: Quorum
    sums: tuple[PlannedSum, ...] = field(default=())

    def __getitem__(self, name: str) -> PlannedSum:
        planned = self._by_name.get(name)
        if planned is None:
            raise PrivacyRefusal(
                f"the private sum {name!r} is not in the approved plan",
                "plan and approve a new run",
                code="unknown-sum",
            )
        return planned

    @cached_property
    def _by_name(self) -> dict[str, PlannedSum]:
        return {planned.name: planned for planned in reversed(self.sums)}

    @property
    def usable_delta(self) -> float:
        """The declared delta minus the statistical distance of the noise samplers from their exact laws, some 1e-25.

        Raises PrivacyRefusal if nothing is left.
        """
        return _usable_delta(self.privacy, self.quorum, [planned.dimension for planned in self.sums])

    @property
    def largest_reply_bytes(self) -> int:
        """Generous upper bound on the bytes of an honest reply, be it a masked vector, shares or the receipt."""
        vector_bytes = 8 * max((planned.dimension for planned in self.sums), default=0)
        share_bytes = REPLY_BYTES_A_PARTY * self.quorum.parties
        receipt_bytes = REPLY_BYTES_AN_ATTEMPT * (len(self.sums) + self.quorum.spare_attempts)
        return max(vector_bytes, share_bytes, receipt_bytes) + REPLY_BYTES

    def epsilon_after(self, releases: int) -> float:
        """Returns epsilon, at the plan's delta, after the first ``releases`` sums; for information only."""
        return accounting.epsilon(_list_events(self.sums[:releases]), self.usable_delta)

    def epsilon(self) -> float:
        """Returns epsilon of the whole plan at its delta, spare attempts included."""
        return accounting.epsilon(self.charged_events(), self.usable_delta)

    def epsilon_if_all_others_collude(self) -> float:
        """Returns epsilon against a coalition of the coordinator and all parties but one, who subtract their own noise.

        It counts every vector that may leave the one party, in void attempts too: see :meth:`alone_events`.
        """
        return accounting.epsilon(self.alone_events(), self.usable_delta)

    def alone_events(self) -> list[accounting.Event]:
        """Returns the privacy events, as seen by all others if they collude, of all vectors that may leave a party.

        A coalition can declare an attempt void after opening it, so each sum counts 1 + ``VOIDED_VECTORS`` times. Each
        spare attempt adds the most expensive event of each kind of noise. With a single party each sum counts once.
        """
        sum_events = [planned.event_alone(self.quorum) for planned in self.sums]
        exposed_events = sum_events if self.quorum.parties == 1 else _with_void_attempts(sum_events)
        return [*exposed_events, *_price_spare_attempts(sum_events, self.quorum.spare_attempts)]

    def events_with(self, colluders: int) -> list[accounting.Event]:
        """Returns the privacy events of the whole plan if ``colluders`` parties collude, be they more than planned.

        An opened sum then lacks the noise of the further colluders. They can also certify an opened attempt as void
        (docs/secagg.md, "Void attempts"), so each sum counts as often as in :meth:`alone_events`. Where masks or noise
        do not hold against so many, as those of a sparse graph, which is chosen for the planned number, the events are
        those of :meth:`alone_events`, which hold against any number.
        """
        quorum = self.quorum
        honest_survivors = quorum.fewest - colluders
        if honest_survivors < 1 or quorum.parties > COMPLETE_UP_TO:
            return self.alone_events()
        try:
            check_quorum(quorum.parties, quorum.threshold, quorum.tolerated_dropouts, colluders)
        except ConfigurationError:
            return self.alone_events()
        noise_share_left = min(1.0, honest_survivors / quorum.honest_survivors)
        sum_events = [planned.event_with_less(noise_share_left) for planned in self.sums]
        exposed_events = _with_void_attempts(sum_events) if colluders > quorum.colluders else sum_events
        return [*exposed_events, *_price_spare_attempts(sum_events, self.quorum.spare_attempts)]

    def charged_events(self) -> list[accounting.Event]:
        """Returns the privacy events of all sums in order, followed by those of the spare attempts."""
        events = _list_events(self.sums)
        return [*events, *_price_spare_attempts(events, self.quorum.spare_attempts)]

    def check_form(self) -> None:
        """Checks the type and the upper bound of every figure without building a statistic.

        Raises PrivacyRefusal that names the first wrong figure.
        """
        checked_figures = {
            "privacy": vars(self.privacy),
            "quorum": vars(self.quorum),
            "sums": tuple(map(vars, self.sums)),
        }
        try:
            _plan_adapter().validate_python(checked_figures)
        except ValidationError as error:
            first_error = error.errors(include_url=False)[0]
            error_place = first_error["loc"]
            reason = first_error["msg"].removeprefix("Value error, ")
            wrong_field = f"{error_place[0]}.{error_place[1]}"
            if error_place[0] == "sums":
                wrong_field = f"{self.sums[int(error_place[1])].name}: {error_place[2]}"
            raise PrivacyRefusal(f"the plan's figure {wrong_field} is not valid: {reason}", PLAN_ANEW) from None
        if self.privacy.unit == "sample" and self.privacy.max_per_unit != 1:
            raise PrivacyRefusal(
                f"privacy.max_per_unit is {self.privacy.max_per_unit}; for the privacy unit sample, which is one"
                " record, it has to be 1",
                PLAN_ANEW,
            )
        _check_sizes(self)

    def verify(self) -> None:
        """Recomputes every figure, as each party does before it signs.

        Raises PrivacyRefusal that names the first wrong figure.
        """
        self.check_form()
        repeated_names = repeated(planned.name for planned in self.sums)
        if repeated_names:
            raise PrivacyRefusal(
                f"the plan names the private sum {repeated_names[0]} more than once",
                "give every sum its own name",
                code="sum-twice",
            )
        for planned in self.sums:
            self._verify_sum(planned)
        if any(planned.law != "gaussian" or planned.sampling_rate != 1.0 for planned in self.sums):
            check_size("different mechanisms", len(set(_list_events(self.sums))), LARGEST_MECHANISMS)
        spent_epsilon = self.epsilon()
        if spent_epsilon > self.privacy.epsilon * (1 + EPSILON_TOLERANCE):
            raise PrivacyRefusal(
                f"the plan spends epsilon {spent_epsilon:.6g}, more than the {self.privacy.epsilon:.6g} it declares",
                "ask the operator for a plan whose noise fits its promise",
                code="over-epsilon",
            )

    def _verify_sum(self, planned: PlannedSum) -> None:
        """Recomputes the figures of one sum. Raises PrivacyRefusal that names the first wrong one."""
        if not 0.0 < planned.sampling_rate <= 1.0:
            raise PrivacyRefusal(
                f"{planned.name}: the sampling rate {planned.sampling_rate} is not in (0, 1]", PLAN_ANEW
            )
        if not limits.FIRST_S <= planned.first_rung_s <= limits.LARGEST_FIRST_S:
            raise PrivacyRefusal(
                f"{planned.name}: first_rung_s, the first send time of its vectors, is {planned.first_rung_s:g} s and"
                f" not between {limits.FIRST_S:g} and {limits.LARGEST_FIRST_S:g} s",
                PLAN_ANEW,
            )
        statistic = planned.build()
        request = SumRequest(planned.name, statistic, law=planned.law)
        recomputed_sum = _make_planned_sum(request, planned.scale, planned.sigma_integer, self.privacy, self.quorum)
        for figure_words, figure, true_figure in (
            ("dimension", planned.dimension, recomputed_sum.dimension),
            ("L1 sensitivity", planned.l1, recomputed_sum.l1),
            ("L2 sensitivity", planned.l2, recomputed_sum.l2),
            ("Linf sensitivity", planned.linf, recomputed_sum.linf),
            ("modulus_bits", planned.modulus_bits, recomputed_sum.modulus_bits),
        ):
            if not math.isclose(figure, true_figure, rel_tol=1e-9):
                raise PrivacyRefusal(
                    f"{planned.name}: the plan states {figure_words} {figure}, and the statistic has {true_figure}",
                    PLAN_ANEW,
                )
        if planned.sampling_rate < 1.0 and statistic.whole:
            raise PrivacyRefusal(
                f"{planned.name}: the statistic {planned.statistic} cannot be taken of a subsample of the privacy"
                f" units, and the plan has sampling rate {planned.sampling_rate:g}",
                "plan it with sampling rate 1",
            )
        if planned.law == "laplace":
            if planned.sampling_rate != 1.0:
                raise PrivacyRefusal(
                    f"{planned.name}: the plan has Laplace noise and sampling rate {planned.sampling_rate:g}, which no"
                    " accountant here prices together",
                    "have the run planned with sampling rate 1",
                )
        elif math.isfinite(self.privacy.epsilon) and planned.sigma_integer < SMALLEST_SIGMA:
            raise PrivacyRefusal(
                f"{planned.name}: the noise has sigma {planned.sigma_integer:.4g} in integer units, at least"
                f" {SMALLEST_SIGMA:.4g} is needed",
                PLAN_ANEW,
            )
        quorum = self.quorum
        # The sampler makes the same call, so noise that is signed and charged can also be drawn.
        try:
            noise_share.noise_plan(
                planned.drawn_sigma_integer,
                quorum.parties,
                quorum.tolerated_dropouts,
                quorum.noise_colluders,
                planned.law,
            )
        except ConfigurationError as error:
            raise PrivacyRefusal(f"{planned.name}: {error.problem}", error.remedy, code=error.code) from None

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON values, with None for an infinite epsilon."""
        privacy_fields = asdict(self.privacy)
        if math.isfinite(self.privacy.epsilon):
            privacy_fields["epsilon"] = self.privacy.epsilon
        else:
            privacy_fields["epsilon"] = None
        return {
            "privacy": privacy_fields,
            "quorum": asdict(self.quorum),
            "sums": [planned.to_json() for planned in self.sums],
        }

    @classmethod
    def from_json(cls, plan_json: Mapping[str, Any]) -> "Plan":
        privacy_fields = dict(plan_json["privacy"])
        if privacy_fields["epsilon"] is None:
            privacy_fields["epsilon"] = math.inf
        return cls(
            Privacy(**privacy_fields),
            Quorum(**plan_json["quorum"]),
            tuple(PlannedSum(**planned) for planned in plan_json["sums"]),
        )


@cache
def _plan_adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def _describe_owner(source: str) -> str:
    if source:
        return f"another package (source {source[:16]}...)"
    return "no other package"


def _check_sizes(plan: Plan) -> None:
    """Checks the plan's sizes before a statistic is built from it, so that no plan exhausts a party's time or memory.

    Raises PrivacyRefusal for the first size above its limit, and for numbers of parties that ``check_quorum`` refuses.
    """
    party_count = plan.quorum.parties
    sum_count = len(plan.sums)
    for count_words, count, largest_count in (
        ("parties", party_count, LARGEST_PARTIES),
        ("private sums", sum_count, LARGEST_SUMS),
        ("parties times private sums", party_count * sum_count, LARGEST_PARTIES_TIMES_SUMS),
        ("spare attempts", plan.quorum.spare_attempts, LARGEST_SPARE_ATTEMPTS),
        ("records of a party", plan.privacy.max_records, LARGEST_RECORDS),
        ("records of a privacy unit", plan.privacy.max_per_unit, LARGEST_RECORDS_OF_A_UNIT),
    ):
        check_size(count_words, count, largest_count)
    try:
        check_quorum(party_count, plan.quorum.threshold, plan.quorum.tolerated_dropouts, plan.quorum.colluders)
    except ConfigurationError as error:
        raise PrivacyRefusal(error.problem, error.remedy, code=error.code) from None
    for planned in plan.sums:
        check_size(f"coordinates in {planned.name}", planned.dimension, LARGEST_DIMENSION)
        check_size(f"integer units of {planned.name}", planned.scale, LARGEST_SCALE)
        draw_count = planned.dimension * (1 + plan.quorum.tolerated_dropouts)
        check_size(f"draws of noise for {planned.name}", draw_count, LARGEST_DRAWS)


def plan_sums(requests: Sequence[SumRequest], privacy: Privacy, quorum: Quorum) -> Plan:
    """Makes the plan whose sums, with calibrated noise, together cost exactly the (epsilon, delta) of ``privacy``.

    Raises ConfigurationError if there is no such plan, or for parameters out of range.
    """
    if not requests:
        return Plan(privacy, quorum)
    is_private = math.isfinite(privacy.epsilon)
    pure_epsilons = _divide_pure_epsilon(requests, privacy.epsilon, quorum.spare_attempts)
    sharing_names = {request.name for request in requests if request.law == "laplace" and request.epsilon is None}
    planned_by_name: dict[str, PlannedSum] = {}
    for _ in range(LAPLACE_CALIBRATIONS):
        planned_by_name = {
            request.name: _plan_laplace(request, pure_epsilons[request.name], privacy, quorum)
            for request in requests
            if request.law == "laplace"
        }
        if not (is_private and sharing_names):
            break
        # The accountant rounds losses up, so sums whose epsilons add up to epsilon are charged a little more than it.
        spent_epsilon = Plan(privacy, quorum, tuple(planned_by_name.values())).epsilon()
        if spent_epsilon <= privacy.epsilon:
            break
        lowering_factor = privacy.epsilon / spent_epsilon * (1 - 1e-9)
        pure_epsilons = {
            name: pure_epsilon * lowering_factor if name in sharing_names else pure_epsilon
            for name, pure_epsilon in pure_epsilons.items()
        }
    for request in requests:
        if request.noise_multiplier is not None:
            planned_by_name[request.name] = _plan_fixed_noise(request, request.noise_multiplier, privacy, quorum)
    gaussian_requests = [request for request in requests if request.name not in planned_by_name]
    total_share = sum(request.budget_share for request in gaussian_requests)
    budget_shares = [request.budget_share / total_share for request in gaussian_requests]
    fixed_events = _list_events(list(planned_by_name.values()))

    def list_events(factor: float) -> list[accounting.Event]:
        main_events = fixed_events + [
            accounting.Gaussian(factor / math.sqrt(budget_share), sampling_rate=request.sampling_rate)
            for request, budget_share in zip(gaussian_requests, budget_shares, strict=True)
        ]
        return main_events + _price_spare_attempts(main_events, quorum.spare_attempts)

    noise_factor = 0.0
    if is_private and gaussian_requests:
        delta = _usable_delta(privacy, quorum, [request.statistic.dimension for request in requests])
        noise_factor = accounting.calibrate(list_events, privacy.epsilon, delta)
    for request, budget_share in zip(gaussian_requests, budget_shares, strict=True):
        planned_by_name[request.name] = _plan_gaussian(request, noise_factor / math.sqrt(budget_share), privacy, quorum)
    return Plan(privacy, quorum, tuple(planned_by_name[request.name] for request in requests))


def _divide_pure_epsilon(requests: Sequence[SumRequest], epsilon: float, spare_count: int) -> dict[str, float]:
    """Returns the epsilon of each Laplace sum by name. Spare attempts included, they sum to at most ``epsilon``."""
    laplace_requests = [request for request in requests if request.law == "laplace"]
    for request in laplace_requests:
        if request.epsilon is not None and not request.epsilon > 0:
            raise ConfigurationError(
                f"{request.name}: its epsilon {request.epsilon} is not above 0", "give a number above 0"
            )
        if request.sampling_rate != 1.0:
            raise ConfigurationError(
                f"{request.name}: Laplace noise cannot be combined with subsampling", "use Gaussian noise"
            )
    fixed_epsilons = {request.name: request.epsilon for request in laplace_requests if request.epsilon is not None}
    if not math.isfinite(epsilon):
        return {request.name: math.inf for request in laplace_requests} | fixed_epsilons
    sharing_requests = [request for request in laplace_requests if request.epsilon is None]
    if not sharing_requests:
        return fixed_epsilons
    if any(request.law == "gaussian" for request in requests):
        raise ConfigurationError(
            f"{sharing_requests[0].name}: the Laplace sum has no epsilon of its own, and the run has Gaussian sums too",
            "set epsilon in its SumRequest",
        )
    total_share = sum(request.budget_share for request in sharing_requests)
    largest_share = max(request.budget_share for request in sharing_requests) / total_share
    spent_epsilon = sum(fixed_epsilons.values())
    dearest_epsilon = max(fixed_epsilons.values(), default=0.0)
    # A spare attempt is priced as the dearest sum, which is one with a fixed epsilon or one that shares the rest.
    remaining_epsilon = min(
        epsilon - spent_epsilon - spare_count * dearest_epsilon,
        (epsilon - spent_epsilon) / (1 + spare_count * largest_share),
    )
    if not remaining_epsilon > 0:
        raise ConfigurationError(
            f"the Laplace sums with an epsilon of their own leave {remaining_epsilon:.4g} of the run's epsilon"
            f" {epsilon:g} for the other sums",
            "raise privacy.epsilon, or lower the epsilon of those sums",
        )
    return fixed_epsilons | {
        request.name: remaining_epsilon * request.budget_share / total_share for request in sharing_requests
    }


def _usable_delta(privacy: Privacy, quorum: Quorum, dimensions: Sequence[int]) -> float:
    # A party has one noise component more than dropouts are tolerated. Per coordinate and component it draws one
    # number, or two for a Laplace share.
    coordinate_count = sum(dimensions) + quorum.spare_attempts * max(dimensions, default=0)
    largest_draw_count = 2 * quorum.parties * (quorum.tolerated_dropouts + 1) * coordinate_count
    return accounting.usable_delta(privacy.delta, sample_count=largest_draw_count, epsilon=privacy.epsilon)


def _list_events(sums: Sequence[PlannedSum]) -> list[accounting.Event]:
    return [planned.event() for planned in sums]


def _with_void_attempts(events: Sequence[accounting.Event]) -> list[accounting.Event]:
    # Enough lying parties can certify an opened attempt as void, so each sum counts with its void attempts.
    return [replace(event, count=event.count * (1 + VOIDED_VECTORS)) for event in events]


def _price_spare_attempts(events: Sequence[accounting.Event], spare_count: int) -> list[accounting.Event]:
    # A spare attempt may repeat any sum, so each is priced as the dearest of every kind.
    gaussian_events = [event for event in events if isinstance(event, accounting.Gaussian)]
    laplace_events = [event for event in events if isinstance(event, accounting.DiscreteLaplace)]
    dearest_events: list[accounting.Event] = []
    if gaussian_events:
        least_multiplier = min(event.noise_multiplier for event in gaussian_events)
        dearest_events.append(
            accounting.Gaussian(least_multiplier, max(event.sampling_rate for event in gaussian_events))
        )
    if laplace_events:
        dearest_events.append(max(laplace_events, key=lambda event: event.epsilon * event.sensitivity))
    return dearest_events * spare_count


def _plan_fixed_noise(request: SumRequest, multiplier: float, privacy: Privacy, quorum: Quorum) -> PlannedSum:
    """Plans a Gaussian sum whose noise multiplier the request fixes."""
    if request.law != "gaussian":
        raise ConfigurationError(
            f"{request.name}: its request has Laplace noise and a noise multiplier, which only a Gaussian sum takes",
            "set its epsilon instead",
        )
    if not (multiplier > 0 or math.isinf(privacy.epsilon)):
        raise ConfigurationError(
            f"{request.name}: its noise multiplier {multiplier} is not above 0", "give a number above 0"
        )
    return _plan_gaussian(request, multiplier, privacy, quorum)


def _plan_gaussian(request: SumRequest, multiplier: float, privacy: Privacy, quorum: Quorum) -> PlannedSum:
    deviation = multiplier * request.statistic.sensitivity.l2 * privacy.norm_factor
    grid_scale = contribution.least_scale(request.statistic, privacy.contribution, privacy.max_per_unit, request.law)
    if deviation:
        while not _is_fine_enough(deviation * grid_scale, quorum):
            grid_scale *= 2
            if grid_scale.bit_length() > LARGEST_SCALE_BITS:
                raise ConfigurationError(
                    f"{request.name}: its noise is too small to be drawn exactly", "lower privacy.epsilon"
                )
    return _make_planned_sum(request, grid_scale, deviation * grid_scale, privacy, quorum)


def _plan_laplace(request: SumRequest, epsilon: float, privacy: Privacy, quorum: Quorum) -> PlannedSum:
    """Plans a sum with discrete Laplace noise of scale L1 / epsilon, in integer units that are small beside it."""
    laplace_scale = request.statistic.sensitivity.l1 * privacy.norm_factor / epsilon
    grid_scale = contribution.least_scale(request.statistic, privacy.contribution, privacy.max_per_unit, request.law)
    if laplace_scale:
        least_scale, largest_scale = LAPLACE_SCALES
        while laplace_scale * grid_scale < least_scale and grid_scale.bit_length() <= LARGEST_SCALE_BITS:
            grid_scale *= 2
        while laplace_scale * grid_scale > largest_scale and grid_scale > 1:
            grid_scale = (grid_scale + 1) // 2
        if laplace_scale * grid_scale > DiscreteLaplaceShare.LARGEST_SCALE:
            raise ConfigurationError(
                f"{request.name}: Laplace noise of scale {laplace_scale:.4g} is too wide to be drawn exactly",
                "raise epsilon, or use Gaussian noise",
            )
    return _make_planned_sum(request, grid_scale, math.sqrt(2.0) * laplace_scale * grid_scale, privacy, quorum)


def _make_planned_sum(
    request: SumRequest, scale: int, sigma_integer: float, privacy: Privacy, quorum: Quorum
) -> PlannedSum:
    statistic = request.statistic
    unit_bound = contribution.unit_sensitivity(statistic, privacy.contribution, privacy.max_per_unit, request.law)
    planned_sum = PlannedSum(
        name=request.name,
        statistic=statistic.name,
        parameters=statistics.parameters(statistic),
        dimension=statistic.dimension,
        l1=unit_bound.l1,
        l2=unit_bound.l2,
        linf=unit_bound.linf,
        scale=scale,
        sigma_integer=sigma_integer,
        modulus_bits=0,
        sampling_rate=request.sampling_rate,
        law=request.law,
        first_rung_s=request.first_rung_s,
        source=statistics.source(statistic.name),
    )
    return replace(planned_sum, modulus_bits=_compute_modulus_bits(statistic, planned_sum, privacy, quorum))


def _is_fine_enough(sigma_integer: float, quorum: Quorum) -> bool:
    """True if noise of this deviation can be charged as continuous, and its excess be removed (noise_share.py)."""
    tolerated_dropouts = quorum.tolerated_dropouts
    smallest_sigma = noise_share.smallest_sigma(
        quorum.parties, tolerated_dropouts, quorum.noise_colluders, removal=tolerated_dropouts > 0
    )
    return sigma_integer >= max(SMALLEST_SIGMA, smallest_sigma)


def _compute_modulus_bits(
    statistic: statistics.Statistic, planned: PlannedSum, privacy: Privacy, quorum: Quorum
) -> int:
    sigma_total = planned.drawn_sigma_integer * math.sqrt(quorum.parties / quorum.honest_survivors)
    if planned.law == "laplace":
        sigma_total *= LAPLACE_TAIL
    return ring.modulus_bits(
        parties=quorum.parties,
        max_records=privacy.max_records,
        linf=contribution.largest_coordinate(statistic, privacy.contribution, privacy.max_per_unit, planned.law),
        scale=planned.scale,
        sigma_total=sigma_total,
    )
