"""Verdicts of an audit: what its attacks prove, what its noise looks like, and what both mean for the promise."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2, gamma, norm

from undersong.auditing import noise_checks, noise_watch
from undersong.auditing.attacks import CONFIDENCE, Detection
from undersong_common.arrays import Bools, Float32, Float64
from undersong_common.printable import that_hold
from undersong_common.privacy.accounting import Gaussian, epsilon, gaussian_mu
from undersong_protocol.agreement.plan import Plan
from undersong_server.runs.planning import RunPlan

NOISE_ALARM = 1e-6  # probability that all checks together accuse the noise of a sound build
NOISE_CHECKS = 7  # number of checks: size, law, tails, blocks, repetition within and between sums, known noise
SMALLEST_LAPLACE = 10.0  # integer scale from which the absolute values of Laplace noise are exponential enough
LEAST_NOISE = 0.05  # smallest share of the planned noise for which an audit's power is computed
BOUND_TOLERANCE = 1e-6  # relative; larger than the excess that rounding allows
MEANING = (
    "An attack that fails proves nothing: these are lower bounds, and no number of runs proves the promise kept.",
    "One that succeeds beyond the promise refutes it.",
)
PROBE_ROW_SCALE = 1_000.0  # norm of a probe row, in multiples of its bound
SURE = 0.01  # false-positive rate of the attack that names only the records with the highest scores
DEFAULT_RUNS = 64  # An audit of fewer runs says what it cannot see.
ZERO = ", where a party's exact vector is 0"  # The name of the noise at these coordinates ends with it.
LEARNT = 0.5  # share of the runs from which the corpus attacks learn their thresholds


@dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit: the task and the number of attacks.

    Attributes:
        task_file, assignments: the task, and the keys of it that are overridden.
        runs: number of whole simulations.
        canaries: number per run; a fair coin decides for each if it is planted.
        seed: seed of the canaries, their coins and the public choices of a simulation; never of noise, keys or masks.
        jobs: number of processes.
    """

    task_file: Path
    assignments: tuple[str, ...] = ()
    runs: int = DEFAULT_RUNS
    canaries: int = 24
    seed: int = 0
    jobs: int = 2


@dataclass(frozen=True, eq=False)
class NoiseSize:
    """Noise of one opened sum.

    Attributes:
        law: law of the planned noise.
        coordinates: number of coordinates of the sum.
        size: sum of squares over the variance that the parties must draw together (Gaussian), or sum of absolute
            values over the scale that the honest parties must reach together (Laplace).
        scores: normal scores of all coordinates (``noise_checks``), float32.
    """

    law: str
    coordinates: int
    size: float
    scores: Float32 = field(default_factory=lambda: np.zeros(0, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class Observations:
    """Results of one attacked run.

    Attributes:
        present: True for each canary that was planted, bool [c].
        sums: score of each canary in all opened sums together, float64 [c]; N(0, 1) if it was not planted.
        apart: the same along the part of a canary's vector that is orthogonal to the others': weaker, and with
            independent noise.
        signals: rise of that score if it was planted, in deviations of the planned noise, float64 [c].
        corpus: scores of the attacks on the corpus, by name, float64 [c].
        noise: by sum, the opened values less the vectors that entered it.
        largest: largest move of a vector by one unit, over the bound that the plan declares; of canaries alone, and of
            units that are removed from real records.
        clamp: the smallest and the largest share of its declared bound that was left of a row far outside it.
        findings: sentences on sums whose subsample does not depend on the party's secret coins, in which coins come
            twice, or which takes another share of the units than planned; on parties whose ledger charged too little.
        shares: by sum and party, the shape of the noise that the party drew; also of its component 0 alone, and of
            all parties' noise at coordinates where the exact vector is 0.
        likenesses: by what others could compute, how well it agrees with the noise that parties drew.
    """

    present: Bools
    sums: Float64
    apart: Float64
    signals: Float64
    corpus: Mapping[str, Float64]
    noise: Mapping[str, NoiseSize]
    largest: float
    clamp: tuple[float, float] = (1.0, 1.0)
    findings: tuple[str, ...] = ()
    shares: Mapping[str, noise_checks.Shape] = field(default_factory=dict)
    likenesses: Mapping[str, noise_watch.Likeness] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """Result of one attack: the lower bound of epsilon that it proves.

    Attributes:
        attack: the attack in words.
        detection: its hits and false alarms at a threshold fixed beforehand.
        epsilon: lower bound, at the promise's delta and the detection's confidence.
        most: the largest lower bound that so many runs can give, if every guess is right.
    """

    attack: str
    detection: Detection
    epsilon: float
    most: float

    def __str__(self) -> str:
        detection = self.detection
        return (
            f"{self.attack}: proves epsilon >= {self.epsilon:.3g}"
            f" ({detection.hits} of {detection.present} planted records found,"
            f" {detection.false_alarms} of {detection.absent} false alarms; so many runs prove {self.most:.3g} at most)"
        )


@dataclass(frozen=True)
class AuditReport:
    """Findings of ``undersong audit``. They concern the planted records only.

    Attributes:
        task, method, unit: what was attacked, and whose presence is hidden.
        epsilon, delta: the promise, an upper bound.
        overrides: keys of the task that were set for the audit.
        runs, canaries: simulations, and canaries per run.
        signal: mean shift of a planted canary's score over the largest that the promise allows, 0 to about 1.
        noise: deviation of the noise in the opened sums over what the parties must draw together: (found, upper
            bound), of all sums together or of the one that shows least; None if no sum's noise can be measured.
        excess: lower bound of that ratio where it is largest, of Gaussian sums; above 1, shares are not independent.
        largest: as of :class:`Observations`, over all runs; above 1 the bound is wrong.
        clamp: as of :class:`Observations`, over all runs.
        findings: those of all runs, and sentences on the law, place and independence of the noise in sums and parties'
            shares.
        verdicts: one per attack; their bounds hold together.
        refutable_by_noise, refutable_by_attack: the smallest epsilon, of a build that draws too little Gaussian noise,
            that this audit would have refuted more likely than not; None if it could have refuted no epsilon.
    """

    task: str
    method: str
    unit: str
    epsilon: float
    delta: float
    overrides: tuple[str, ...]
    runs: int
    canaries: int
    signal: float
    noise: tuple[float, float] | None
    largest: float
    clamp: tuple[float, float]
    verdicts: tuple[Verdict, ...]
    refutable_by_noise: float | None
    refutable_by_attack: float | None
    excess: float = 0.0
    findings: tuple[str, ...] = ()

    @property
    def faults(self) -> list[str]:
        """Sentences that each state a finding against the promise; empty if the promise is not refuted."""
        largest_ratio = 1.0 + BOUND_TOLERANCE
        (clamp_low, clamp_high) = self.clamp
        deviation, noise_bound = self.noise or (1.0, 1.0)
        return that_hold(
            *(
                (
                    verdict.epsilon > self.epsilon,
                    f"{verdict.attack}: epsilon is at least {verdict.epsilon:.3g}, not {self.epsilon:g}",
                )
                for verdict in self.verdicts
            ),
            (noise_bound < 1.0, f"the opened sums hold {deviation:.3g} of the noise's planned deviation"),
            (
                self.excess > 1.0,
                f"noise of more than {self.excess:.3g} of the planned deviation: its shares are not independent",
            ),
            (
                self.largest > largest_ratio,
                f"one unit moves a vector by {self.largest:.3g} of the declared sensitivity: it counts too much, or the"
                " rows of others depend on it",
            ),
            (
                clamp_high > largest_ratio or clamp_low < 0.5,
                "rows outside their bound are not clamped:"
                f" {clamp_high if clamp_high > largest_ratio else clamp_low:.3g} of the declared sensitivity is left",
            ),
            *((True, finding) for finding in self.findings),
        )

    @property
    def unseen(self) -> tuple[str, ...]:
        """Sentences on what fewer runs than the default cannot show; empty for as many."""
        if self.runs >= DEFAULT_RUNS:
            return ()
        largest_bound = max((verdict.most for verdict in self.verdicts), default=0.0)
        return (
            f"{self.runs} runs cannot show what {DEFAULT_RUNS} show: noise that is missing at few coordinates, rows"
            " that depend on how many real records there are (a run tries one number of units from 41 to 200), or an"
            f" attack that would prove epsilon above {largest_bound:.3g}",
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain JSON values."""
        return {**asdict(self), "confidence": CONFIDENCE, "faults": self.faults}

    def lines(self) -> list[str]:
        """Returns the report as lines for a person."""
        refutation_ways = (
            (self.refutable_by_noise, "by the measured noise"),
            (self.refutable_by_attack, "by the first attack"),
        )
        refutable_words = [
            f"{'none' if epsilon is None else f'{epsilon:.3g}'} {way_words}" for epsilon, way_words in refutation_ways
        ]
        overrides_words = ""
        if self.overrides:
            overrides_words = f"; set for the audit: {', '.join(self.overrides)}"
        if self.noise is None:
            noise_words = "unknown"
        else:
            noise_words = f"{self.noise[0]:.3f}"
        return [
            f"{self.task!r} with {self.method}: promised epsilon {self.epsilon:g} at delta {self.delta:g}"
            f" per {self.unit}",
            f"{self.runs} runs, {self.canaries} canaries each{overrides_words}",
            *(f"  {verdict}" for verdict in self.verdicts),
            f"  all of these hold together with {CONFIDENCE:.1%} confidence, over runs",
            f"  a planted record moves its score by {self.signal:.0%} of what the promise allows",
            f"  the noise in the opened sums is {noise_words} of what the parties must draw together",
            f"  one unit moves a vector by {self.largest:.6g} of the declared sensitivity at most",
            f"  of rows {PROBE_ROW_SCALE:g} times their bound,"
            f" {self.clamp[0]:.6g} to {self.clamp[1]:.6g} of the bound is left",
            f"smallest epsilon that this audit could have refuted, by too little noise: {', '.join(refutable_words)}",
            *([f"REFUTED: {fault}" for fault in self.faults] or ["nothing refutes the promise"]),
            *self.unseen,
            *MEANING,
        ]


def report(settings: AuditSettings, run_plan: RunPlan, observed: Sequence[Observations]) -> AuditReport:
    """Combines the observations of all runs into one report."""

    plan = run_plan.plan
    plan_promise = run_plan.plan.privacy
    delta = plan_promise.delta
    mu = gaussian_mu(plan_promise.epsilon, delta)
    verdict_alarm = (1.0 - CONFIDENCE) / (2 + len(observed[0].corpus))
    # The best threshold for a canary's score is half of its signal, which the attacker knows.
    sums_detection = Detection.of_runs(
        [(run.present, run.sums - run.signals / 2) for run in observed], 0.0, verdict_alarm
    )
    surest_detection = Detection.of_runs(
        [(run.present, run.apart) for run in observed], float(norm.isf(SURE)), verdict_alarm
    )
    is_gaussian = all(planned.law == "gaussian" and planned.sampling_rate == 1.0 for planned in plan.sums)
    verdicts = (
        _make_verdict("every opened sum, by somebody who knows all other records", sums_detection, delta, is_gaussian),
        _make_verdict(
            f"the same, naming {SURE:.0%} of absent records only", surest_detection, delta, is_gaussian, by_rates=True
        ),
        *(_corpus_verdict(name, observed, delta, verdict_alarm) for name in observed[0].corpus),
    )
    all_signals = np.concatenate([run.signals for run in observed])
    noise, excess = _noise_deviation(observed)
    # If the sums held this share of the planned noise or less, the check of its size would find too little of it.
    measured_share = noise[0] / noise[1] if noise else 0.0
    attack_power = _attack_power(
        sums_detection,
        all_signals,
        lambda detection: _proven_epsilon(detection, delta, is_gaussian) > plan_promise.epsilon,
    )
    return AuditReport(
        task=run_plan.task.task.name,
        method=run_plan.task.method.name,
        unit=plan_promise.unit,
        epsilon=plan_promise.epsilon,
        delta=delta,
        overrides=settings.assignments,
        runs=len(observed),
        canaries=settings.canaries,
        signal=float(all_signals.mean()) / mu,
        noise=noise,
        largest=max(run.largest for run in observed),
        clamp=(min(run.clamp[0] for run in observed), max(run.clamp[1] for run in observed)),
        verdicts=verdicts,
        refutable_by_noise=_epsilon_with(plan, max(measured_share, LEAST_NOISE)) if noise else None,
        refutable_by_attack=None if attack_power is None else _epsilon_with(plan, attack_power),
        excess=excess,
        findings=tuple(
            dict.fromkeys([*_irregular_noise(observed), *(finding for run in observed for finding in run.findings)])
        ),
    )


def _noise_deviation(observed: Sequence[Observations]) -> tuple[tuple[float, float] | None, float]:
    """Returns ((noise deviation over the planned one, its upper bound) where that is smallest, largest lower bound).

    Sums are judged together and one by one. One of the bounds fails with a chance of ``NOISE_ALARM / NOISE_CHECKS``.
    """

    law_and_sum = list(
        dict.fromkeys((noise_size.law, name) for run in observed for name, noise_size in run.noise.items())
    )
    noise_laws = dict.fromkeys(law for law, _ in law_and_sum)
    sums_by_law = [[name for group_law, name in law_and_sum if group_law == law] for law in noise_laws] + [
        [name] for _, name in law_and_sum
    ]
    bounds, excess = [], 0.0
    for law_sums in sums_by_law:
        sum_noises = [run.noise[name] for run in observed for name in law_sums if name in run.noise]
        coordinate_count = sum(noise_size.coordinates for noise_size in sum_noises)
        total_size = math.fsum(noise_size.size for noise_size in sum_noises)
        is_gaussian = sum_noises[0].law == "gaussian"
        # Sizes are sums of squared normals, or of exponentials, to which Laplace shares of other parties only add.
        law, size_power = (chi2(coordinate_count), 0.5) if is_gaussian else (gamma(coordinate_count), 1.0)
        check_alarm = NOISE_ALARM / (NOISE_CHECKS * 2 * len(sums_by_law))
        bounds.append(
            (float(total_size / law.ppf(check_alarm)) ** size_power, (total_size / coordinate_count) ** size_power)
        )
        if is_gaussian:
            excess = max(excess, float(total_size / law.isf(check_alarm)) ** size_power)
    if not bounds:
        return None, excess
    upper_bound, deviation = min(bounds)
    return (deviation, upper_bound), excess


def _irregular_noise(observed: Sequence[Observations]) -> list[str]:
    """Returns findings about the noise of all sums together, of each sum in all runs and in one, and of each share."""
    shape_by_name: dict[str, noise_checks.Shape] = {}
    scores_by_name: dict[str, list[Float32]] = {}
    all_scores: list[tuple[str, Float32]] = []
    likeness_by_name: dict[str, noise_watch.Likeness] = {}
    for run_number, run in enumerate(observed):
        scores_by_sum = {name: size.scores for name, size in run.noise.items() if len(size.scores)}
        for name, scores in scores_by_sum.items():
            scores_by_name.setdefault(name, []).append(scores)
            all_scores.append((f"run {run_number}, {name}", scores))
            score_shape = noise_checks.shape_of(scores)
            for shape_name in ("all sums", name, f"run {run_number}, {name}"):
                noise_watch.add_evidence(shape_by_name, shape_name, score_shape)
        for name, score_shape in run.shares.items():
            noise_watch.add_evidence(shape_by_name, name, score_shape)
            noise_watch.add_evidence(shape_by_name, f"run {run_number}, {name}", score_shape)
            if not name.endswith((ZERO, noise_watch.LASTING)):  # both are parts of other shapes
                noise_watch.add_evidence(shape_by_name, "all parties' shares", score_shape)
        for name, likeness in run.likenesses.items():
            noise_watch.add_evidence(likeness_by_name, name, likeness)
    check_alarm = NOISE_ALARM / NOISE_CHECKS
    return [
        *(f"{pair} hold the same noise" for pair in noise_checks.repeated_between(all_scores, check_alarm)),
        *(
            f"{name}: the noise is not of the planned law"
            for name in noise_checks.other_law(shape_by_name, check_alarm)
        ),
        *(f"{name}: the noise has no tails" for name in noise_checks.without_tails(shape_by_name, check_alarm)),
        *(
            f"{name}: the noise is too small or large in a block of coordinates"
            for name in noise_checks.uneven(shape_by_name, check_alarm)
        ),
        *(f"a party's noise follows from {name}" for name in noise_watch.known_noise(likeness_by_name, check_alarm)),
        *(
            f"{name}: the noise repeats within the sum"
            for name in noise_checks.repeated_within(scores_by_name, check_alarm)
        ),
    ]


def _proven_epsilon(detection: Detection, delta: float, gaussian: bool) -> float:
    if gaussian:
        return detection.epsilon_if_gaussian(delta)
    return detection.epsilon(delta)


def _make_verdict(attack: str, detection: Detection, delta: float, gaussian: bool, by_rates: bool = False) -> Verdict:
    run_count = len(detection.right)
    perfect_detection = replace(
        detection,
        hits=detection.present,
        false_alarms=0,
        right=(1.0,) * run_count,
        caught=(0.5,) * run_count,
        alarms=(0.0,) * run_count,
    )
    reached_bound, perfect_bound = (
        outcome.epsilon_of_rates(delta, gaussian) if by_rates else _proven_epsilon(outcome, delta, gaussian)
        for outcome in (detection, perfect_detection)
    )
    return Verdict(attack, detection, reached_bound, perfect_bound)


def _corpus_verdict(name: str, observed: Sequence[Observations], delta: float, alarm: float) -> Verdict:
    """Returns the verdict of the threshold that was best on the first runs' canaries, judged on the other runs."""
    runs = [(run.present, run.corpus[name]) for run in observed]
    learning_run_count = max(1, round(LEARNT * len(runs)))
    present, scores = (np.concatenate(column) for column in zip(*runs[:learning_run_count], strict=True))
    present_scores = scores[present]
    absent_scores = scores[~present]
    gains = {
        float(score_threshold): float(
            (present_scores > score_threshold).mean() - (absent_scores > score_threshold).mean()
        )
        for score_threshold in np.unique([*present_scores, *absent_scores])
    }
    if len(present_scores) and len(absent_scores):
        threshold = max(gains, key=gains.__getitem__)
    else:
        threshold = math.inf
    return _make_verdict(name, Detection.of_runs(runs[learning_run_count:], threshold, alarm), delta, gaussian=False)


def _attack_power(detection: Detection, signals: Float64, refutes: Callable[[Detection], bool]) -> float | None:
    """Returns the largest share of the planned noise at which the attack on the sums probably refutes the promise."""

    def is_refuted(share: float) -> bool:
        right_share = float(norm.cdf(signals / 2 / share).mean())
        return refutes(replace(detection, right=(right_share,) * len(detection.right)))

    noise_shares = np.geomspace(1.0, LEAST_NOISE, 50)
    refuted_index = bisect_left(noise_shares, True, key=is_refuted)  # Less noise is refuted more easily.
    if refuted_index < len(noise_shares):
        return float(noise_shares[refuted_index])
    return None


def _epsilon_with(plan: Plan, share: float) -> float:
    """Returns epsilon of a build whose Gaussian sums hold ``share`` of the planned noise deviation."""
    events = [
        replace(event, noise_multiplier=event.noise_multiplier * share) if isinstance(event, Gaussian) else event
        for event in plan.charged_events()
    ]
    return epsilon(events, plan.usable_delta)
