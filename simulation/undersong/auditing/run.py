"""``undersong audit``: attacks real runs of a task with planted records, and says what epsilon the attacks prove.

Every run is one whole simulation: real parties, noise, masks and method, with canaries planted by fair coins. Up to
six attackers are played. Two read every opened sum and know all records but the canary, the strongest attackers that
the promise speaks of; one of them names only the canaries of which it is surest. The others have the published corpus
alone (Meeus et al. 2025). What an attack proves is a lower bound; the promise is an upper one. All bounds of one audit
hold together with the stated confidence.

The audit has all parties, so it also measures: the noise that the sums hold beside the vectors that entered them, and
each party's share of it (size, law, place and independence: ``noise_checks``), how far one unit moves a vector of real
records, what the clamp leaves of rows outside their bound, whether the coins of a subsample decide it and how many
units they take, and what the parties' ledgers charged. A source checkout also plays a hostile coordinator against two
copies of a party: ``python -m tests.noninterference.audit``.
"""

import hmac
import math
import os
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.stats import binom, binomtest, chi2, gamma, norm

from undersong.auditing import neighbours as audit_units
from undersong.auditing import noise_checks
from undersong.auditing import noise_watch as audit_noise
from undersong.auditing.attacks import CONFIDENCE, Detection, attack_corpus, orthogonal_scores, whole_scores
from undersong.auditing.canaries import Canary, make_canaries, planted
from undersong.run.processes import each_in_processes
from undersong_client.answering import grid_vectors
from undersong_client.records.private import PrivateRecords
from undersong_common.arrays import Bools, Float32, Float64, Int64
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.models import embedders
from undersong_common.models.embedding import CachedEmbedder, Embed, Embedder, MemoryCache
from undersong_common.printable import that_hold
from undersong_common.privacy.accounting import Gaussian, epsilon, gaussian_mu
from undersong_common.privacy.ledger import Ledger
from undersong_common.text.table import Table, concatenate
from undersong_protocol.agreement.plan import Plan, PlannedSum, Privacy
from undersong_protocol.secagg.noise_share import laplace_scale, noise_plan
from undersong_protocol.statistics import PublicInputs, Rows
from undersong_protocol.statistics.vectors import GridVector, NoisySum
from undersong_server.federation.driver import opened_sum
from undersong_server.progress import Progress, Silent
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import RunPlan, plan_run

RARE_WORDS = 20_000  # commonest words of the language; the later half of them counts as rare
NOISE_ALARM = 1e-6  # probability that all checks together accuse the noise of a sound build
NOISE_CHECKS = 7  # The alarm is shared by size, law, tails, blocks, repetition within and between sums, known noise.
SMALLEST_LAPLACE = 10.0  # integer scale from which the absolute values of Laplace noise are exponential enough
COINS_ALARM = 1e-9  # probability that a sound subsample looks as if its coins did not matter or took a wrong share
COUNTED_UNITS = 400  # Coins of so many units are counted: 1.2 of the planned rate is then 17 deviations away.
FEWEST_COINS = 200  # subsamples drawn at least, to estimate the sampling rate
MOST_COINS = 20_000  # subsamples drawn for that: so many suffice for sampling rates up to 0.998
SUBSAMPLES = 2_000  # drawn to see that no two are equal, and that units take part independently
MOST_UNITS = 2_000  # units of those subsamples; at a rate below 0.009 subsamples need not differ
PROBE_ROW_SCALE = 1_000.0  # norm of a probe row, in multiples of its bound
FEWEST_UNITS = 4  # integer units that must be left of a clamped row, so that rounding takes half of it at most
LEAST_NOISE = 0.05  # smallest share of the planned noise for which an audit's power is computed
BOUND_TOLERANCE = 1e-6  # above what rounding lets a norm pass its bound
MEANING = (
    "An attack that fails proves nothing: these are lower bounds, and no number of runs proves the promise kept.",
    "One that succeeds beyond the promise refutes it.",
)
DEFAULT_RUNS = 64  # below which an audit says what it cannot see
ZERO = ", where a party's exact vector is 0"  # The name of the noise at these coordinates ends with it.
SURE = 0.01  # share of absent records that an attack on the sums takes for planted where it names the surest only
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
        apart: the same along directions of their own: weaker, and with independent noise.
        signals: rise of that score if it was planted, in deviations of the planned noise, float64 [c].
        corpus: scores of the attacks on the corpus, by name, float64 [c].
        noise: by sum, the opened values less the vectors that entered it.
        largest: the most that one unit moves a vector over the bound that the plan declares: a canary the empty
            vector, and one of several units a vector of real records.
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
    likenesses: Mapping[str, audit_noise.Likeness] = field(default_factory=dict)


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
        largest, (clamp_low, clamp_high) = 1.0 + BOUND_TOLERANCE, self.clamp
        deviation, bound = self.noise or (1.0, 1.0)
        return that_hold(
            *(
                (
                    verdict.epsilon > self.epsilon,
                    f"{verdict.attack}: epsilon is at least {verdict.epsilon:.3g}, not {self.epsilon:g}",
                )
                for verdict in self.verdicts
            ),
            (bound < 1.0, f"the opened sums hold {deviation:.3g} of the noise's planned deviation"),
            (
                self.excess > 1.0,
                f"noise of more than {self.excess:.3g} of the planned deviation: its shares are not independent",
            ),
            (
                self.largest > largest,
                f"one unit moves a vector by {self.largest:.3g} of the declared sensitivity: it counts too much, or the"
                " rows of others depend on it",
            ),
            (
                clamp_high > largest or clamp_low < 0.5,
                "rows outside their bound are not clamped:"
                f" {clamp_high if clamp_high > largest else clamp_low:.3g} of the declared sensitivity is left",
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
        """Plain JSON values."""
        return {**asdict(self), "confidence": CONFIDENCE, "faults": self.faults}

    def lines(self) -> list[str]:
        """The report as a person reads it."""
        ways = (self.refutable_by_noise, "by the measured noise"), (self.refutable_by_attack, "by the first attack")
        refutable = [f"{'none' if epsilon is None else f'{epsilon:.3g}'} {means}" for epsilon, means in ways]
        overrides = f"; set for the audit: {', '.join(self.overrides)}" if self.overrides else ""
        noise = "unknown" if self.noise is None else f"{self.noise[0]:.3f}"
        return [
            f"{self.task!r} with {self.method}: promised epsilon {self.epsilon:g} at delta {self.delta:g}"
            f" per {self.unit}",
            f"{self.runs} runs, {self.canaries} canaries each{overrides}",
            *(f"  {verdict}" for verdict in self.verdicts),
            f"  all of these hold together with {CONFIDENCE:.1%} confidence, over runs",
            f"  a planted record moves its score by {self.signal:.0%} of what the promise allows",
            f"  the noise in the opened sums is {noise} of what the parties must draw together",
            f"  one unit moves a vector by {self.largest:.6g} of the declared sensitivity at most",
            f"  of rows {PROBE_ROW_SCALE:g} times their bound,"
            f" {self.clamp[0]:.6g} to {self.clamp[1]:.6g} of the bound is left",
            f"smallest epsilon that this audit could have refuted, by too little noise: {', '.join(refutable)}",
            *([f"REFUTED: {fault}" for fault in self.faults] or ["nothing refutes the promise"]),
            *self.unseen,
            *MEANING,
        ]


def audit(settings: AuditSettings, progress: Progress) -> AuditReport:
    """Runs the simulations of an audit and attacks them. Raises ConfigurationError for a task that it cannot attack."""
    task = tasks.load(settings.task_file, list(settings.assignments))
    run_plan = plan_run(task)
    _check_settings(settings, run_plan)
    _load_embedder.cache_clear()
    observed: dict[int, Observations] = {}
    for number, observations in each_in_processes(
        observe, [(settings, run) for run in range(settings.runs)], settings.jobs
    ):
        observed[number] = observations
        progress.update("runs", len(observed), settings.runs)
    return report(settings, run_plan, [observed[run] for run in range(settings.runs)])


def report(settings: AuditSettings, run_plan: RunPlan, observed: Sequence[Observations]) -> AuditReport:
    """Combines the observations of all runs into one report."""

    plan, promise = run_plan.plan, run_plan.plan.privacy
    delta = promise.delta
    mu = gaussian_mu(promise.epsilon, delta)
    alarm = (1.0 - CONFIDENCE) / (2 + len(observed[0].corpus))
    # Half of its own signal tells best whether a canary was there; the attacker knows it.
    sums = Detection.of_runs([(run.present, run.sums - run.signals / 2) for run in observed], 0.0, alarm)
    surest = Detection.of_runs([(run.present, run.apart) for run in observed], float(norm.isf(SURE)), alarm)
    gaussian = all(planned.law == "gaussian" and planned.sampling_rate == 1.0 for planned in plan.sums)
    verdicts = (
        _make_verdict("every opened sum, by somebody who knows all other records", sums, delta, gaussian),
        _make_verdict(f"the same, naming {SURE:.0%} of absent records only", surest, delta, gaussian, by_rates=True),
        *(_corpus_verdict(name, observed, delta, alarm) for name in observed[0].corpus),
    )
    signals = np.concatenate([run.signals for run in observed])
    noise, excess = _noise_deviation(observed)
    measured = noise[0] / noise[1] if noise else 0.0  # the share of the planned noise that is found too little
    attacked = _attack_power(
        sums, signals, lambda detection: _proven_epsilon(detection, delta, gaussian) > promise.epsilon
    )
    return AuditReport(
        task=run_plan.task.task.name,
        method=run_plan.task.method.name,
        unit=promise.unit,
        epsilon=promise.epsilon,
        delta=delta,
        overrides=settings.assignments,
        runs=len(observed),
        canaries=settings.canaries,
        signal=float(signals.mean()) / mu,
        noise=noise,
        largest=max(run.largest for run in observed),
        clamp=(min(run.clamp[0] for run in observed), max(run.clamp[1] for run in observed)),
        verdicts=verdicts,
        refutable_by_noise=_epsilon_with(plan, max(measured, LEAST_NOISE)) if noise else None,
        refutable_by_attack=None if attacked is None else _epsilon_with(plan, attacked),
        excess=excess,
        findings=tuple(
            dict.fromkeys([*_irregular_noise(observed), *(finding for run in observed for finding in run.findings)])
        ),
    )


def _noise_deviation(observed: Sequence[Observations]) -> tuple[tuple[float, float] | None, float]:
    """Deviation over the planned one with its upper bound where that is smallest, and the largest lower bound.

    Sums are judged together and one by one. One of the bounds fails with a chance of ``NOISE_ALARM / NOISE_CHECKS``.
    """

    names = list(dict.fromkeys((size.law, name) for run in observed for name, size in run.noise.items()))
    laws = dict.fromkeys(law for law, _ in names)
    groups = [[name for group_law, name in names if group_law == law] for law in laws] + [[name] for _, name in names]
    bounds, excess = [], 0.0
    for group in groups:
        parts = [run.noise[name] for run in observed for name in group if name in run.noise]
        coordinates, size = sum(part.coordinates for part in parts), math.fsum(part.size for part in parts)
        gaussian = parts[0].law == "gaussian"
        # Squares of normals, or exponentials: more shares of Laplace noise than the honest ones' only add to these.
        law, power = (chi2(coordinates), 0.5) if gaussian else (gamma(coordinates), 1.0)
        alarm = NOISE_ALARM / (NOISE_CHECKS * 2 * len(groups))
        bounds.append((float(size / law.ppf(alarm)) ** power, (size / coordinates) ** power))
        if gaussian:
            excess = max(excess, float(size / law.isf(alarm)) ** power)
    if not bounds:
        return None, excess
    upper, deviation = min(bounds)
    return (deviation, upper), excess


def _irregular_noise(observed: Sequence[Observations]) -> list[str]:
    """Findings about the noise of all sums together, of each sum in all runs and in one, and of each party's share."""
    shapes: dict[str, noise_checks.Shape] = {}
    series: dict[str, list[Float32]] = {}
    all_scores: list[tuple[str, Float32]] = []
    likenesses: dict[str, audit_noise.Likeness] = {}
    for number, run in enumerate(observed):
        measured = {name: size.scores for name, size in run.noise.items() if len(size.scores)}
        for name, scores in measured.items():
            series.setdefault(name, []).append(scores)
            all_scores.append((f"run {number}, {name}", scores))
            shape = noise_checks.shape_of(scores)
            for group in ("all sums", name, f"run {number}, {name}"):
                audit_noise.add_evidence(shapes, group, shape)
        for name, shape in run.shares.items():
            audit_noise.add_evidence(shapes, name, shape)
            audit_noise.add_evidence(shapes, f"run {number}, {name}", shape)
            if not name.endswith((ZERO, audit_noise.LASTING)):  # both are parts of other shapes
                audit_noise.add_evidence(shapes, "all parties' shares", shape)
        for name, likeness in run.likenesses.items():
            audit_noise.add_evidence(likenesses, name, likeness)
    alarm = NOISE_ALARM / NOISE_CHECKS
    return [
        *(f"{pair} hold the same noise" for pair in noise_checks.repeated_between(all_scores, alarm)),
        *(f"{name}: the noise is not of the planned law" for name in noise_checks.other_law(shapes, alarm)),
        *(f"{name}: the noise has no tails" for name in noise_checks.without_tails(shapes, alarm)),
        *(f"{name}: the noise is too small or large in places" for name in noise_checks.uneven(shapes, alarm)),
        *(f"a party's noise follows from {name}" for name in audit_noise.known_noise(likenesses, alarm)),
        *(f"{name}: the noise repeats within the sum" for name in noise_checks.repeated_within(series, alarm)),
    ]


def _proven_epsilon(detection: Detection, delta: float, gaussian: bool) -> float:
    return detection.epsilon_if_gaussian(delta) if gaussian else detection.epsilon(delta)


def _make_verdict(attack: str, detection: Detection, delta: float, gaussian: bool, by_rates: bool = False) -> Verdict:
    runs = len(detection.right)
    perfect = replace(
        detection,
        hits=detection.present,
        false_alarms=0,
        right=(1.0,) * runs,
        caught=(0.5,) * runs,
        alarms=(0.0,) * runs,
    )
    reached, perfect_bound = (
        outcome.epsilon_of_rates(delta, gaussian) if by_rates else _proven_epsilon(outcome, delta, gaussian)
        for outcome in (detection, perfect)
    )
    return Verdict(attack, detection, reached, perfect_bound)


def _corpus_verdict(name: str, observed: Sequence[Observations], delta: float, alarm: float) -> Verdict:
    """A threshold that told the first runs' canaries apart best, judged on the others."""
    runs = [(run.present, run.corpus[name]) for run in observed]
    learnt = max(1, round(LEARNT * len(runs)))
    present, scores = (np.concatenate(column) for column in zip(*runs[:learnt], strict=True))
    present_scores, absent_scores = scores[present], scores[~present]
    gains = {
        float(t): float((present_scores > t).mean() - (absent_scores > t).mean())
        for t in np.unique([*present_scores, *absent_scores])
    }
    threshold = max(gains, key=gains.__getitem__) if len(present_scores) and len(absent_scores) else math.inf
    return _make_verdict(name, Detection.of_runs(runs[learnt:], threshold, alarm), delta, gaussian=False)


def _attack_power(detection: Detection, signals: Float64, refutes: Callable[[Detection], bool]) -> float | None:
    """The largest share of the planned noise at which the attack on the sums is expected to refute the promise."""

    def refuted(share: float) -> bool:
        right = float(norm.cdf(signals / 2 / share).mean())
        return refutes(replace(detection, right=(right,) * len(detection.right)))

    shares = np.geomspace(1.0, LEAST_NOISE, 50)
    first = bisect_left(shares, True, key=refuted)  # less noise is refuted more easily
    return float(shares[first]) if first < len(shares) else None


def _epsilon_with(plan: Plan, share: float) -> float:
    """Epsilon of a build whose Gaussian sums hold this share of the planned noise."""
    events = [
        replace(event, noise_multiplier=event.noise_multiplier * share) if isinstance(event, Gaussian) else event
        for event in plan.charged_events()
    ]
    return epsilon(events, plan.usable_delta)


def _check_settings(settings: AuditSettings, run_plan: RunPlan) -> None:
    privacy = run_plan.plan.privacy
    ConfigurationError.raise_first(
        (
            not math.isfinite(privacy.epsilon) or not run_plan.plan.sums,
            "the task promises nothing: there is no epsilon to audit",
            "set privacy.epsilon",
            "",
        ),
        (
            privacy.unit == "party",
            'privacy.unit is "party": a canary would be a whole party',
            'audit the task with unit "user" or "sample"',
            "",
        ),
        (
            settings.runs < 2 or settings.canaries < 1,
            "an audit needs two runs and one canary at least",
            "raise --runs and --canaries",
            "",
        ),
    )


# One run, in a process of its own


class _Watched:
    """Computes what a party computes, and keeps it: the audit's attacker knows every record but one."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[PlannedSum, PublicInputs]] = {}
        # Two vectors by sum and party, of its last attempt: as computed, and as if sub-sampling left out no unit.
        self.vectors: dict[str, dict[PrivateRecords, tuple[Int64, Int64]]] = {}
        self.coins: dict[str, list[bytes]] = {}  # coins of all attempts, by sub-sampled sum
        self.noise = audit_noise.NoiseWatch()

    def __call__(
        self,
        planned: PlannedSum,
        records: PrivateRecords,
        public: PublicInputs,
        privacy: Privacy,
        *,
        coins: bytes,
        memory: dict[str, Any],
    ) -> GridVector:
        vector = grid_vectors.grid_vector(planned, records, public, privacy, coins=coins, memory=memory)
        unsampled_vector = vector
        if planned.sampling_rate < 1.0:
            unsampled_vector = grid_vectors.grid_vector(
                _without_sampling(planned), records, public, privacy, coins=coins, memory=memory
            )
            self.coins.setdefault(planned.name, []).append(coins)
        self.sums[planned.name] = planned, public
        self.vectors.setdefault(planned.name, {})[records] = vector.values, unsampled_vector.values
        return vector

    def repeated_coins(self) -> set[str]:
        """Sums with coins that another attempt, party or sum has too."""
        counts = Counter(coins for sum_coins in self.coins.values() for coins in sum_coins)
        return {name for name, sum_coins in self.coins.items() if any(counts[coins] > 1 for coins in sum_coins)}


@cache
def _load_embedder(model: str, max_windows: int) -> tuple[Embedder, MemoryCache]:
    """The embedder of one worker process, or of one audit here, and what it has embedded."""
    return embedders.load(model, max_windows), MemoryCache()


def observe(settings: AuditSettings, number: int) -> Observations:
    """Runs the ``number``-th simulation of an audit, with canaries and coins of its own, and attacks it."""
    from undersong.run.records import private_tables
    from undersong.run.simulation import simulate
    from undersong.run.workspace import Workspace, ledger_path

    task = tasks.load(settings.task_file, list(settings.assignments))
    run_plan = plan_run(task)
    embedder, embedding_cache = _load_embedder(task.embedder.model, task.embedder.max_windows)
    embed = CachedEmbedder(embedder, embedding_cache).encode
    tables = private_tables(task, settings.seed)
    canaries = _make_run_canaries(settings, run_plan, concatenate(list(tables.values())))
    near = audit_units.real_neighbours(
        list(tables.values())[number % len(tables)],
        canaries[number % len(canaries)],
        task.task.labels,
        np.random.default_rng([settings.seed, 0xAD, number]),
        privacy=run_plan.plan.privacy,
        number=number,
    )
    present = np.random.default_rng([settings.seed, 0xC0, number]).random(len(canaries)) < 0.5
    planted_canaries = [canary for canary, is_present in zip(canaries, present, strict=True) if is_present]
    watched = _Watched()
    with (
        tempfile.TemporaryDirectory(prefix="undersong-audit-") as folder,
        Workspace(Path(folder) / "run", task, {"audit": number}, fresh=False) as workspace,
    ):
        outcome = simulate(
            run_plan,
            workspace,
            planted(tables, planted_canaries, [_choose_home(canary, list(tables)) for canary in planted_canaries]),
            seed=settings.seed * 1_000_003 + number,
            insecure_noise_seed=None,
            public_cache=embedding_cache,
            environment={},
            progress=Silent(),
            embedder=embedder,
            private_cache=embedding_cache,
            contribution=watched,
            machine=watched.noise.machine(),
        ).outcome
        sums = {name: opened_sum(workspace.journal, name) for name in watched.sums}
        unpaid = [name for name in tables if not _is_paid(watched, Ledger.read(ledger_path(workspace.state, name)))]
    opened_sums = {name: noisy_sum for name, noisy_sum in sums.items() if noisy_sum is not None}
    attacked = _attack_sums(run_plan, watched, opened_sums, canaries, present, embed, near)
    return replace(
        attacked,
        corpus=attack_corpus(outcome.samples, canaries, task.task.labels, embed),
        findings=(*attacked.findings, *(f"{name}: its ledger charged less than the plan costs" for name in unpaid)),
    )


def _is_paid(watched: _Watched, ledger: Ledger) -> bool:
    """Returns True if a party's ledger charged each computed sum at the price of the plan."""
    charged = {(charge.query, charge.events) for charge in ledger.charges()}
    return all((name, (planned.event(),)) in charged for name, (planned, _) in watched.sums.items())


def _make_run_canaries(settings: AuditSettings, run_plan: RunPlan, private: Table) -> list[Canary]:
    """The same in every run: their coins differ."""
    from wordfreq import top_n_list

    rng = np.random.default_rng([settings.seed, 0xCA])

    privacy = run_plan.plan.privacy
    rows = privacy.max_per_unit if privacy.unit == "user" else 1
    rare = top_n_list("en", RARE_WORDS)[RARE_WORDS // 2 :]
    return make_canaries(private, run_plan.task.task.labels, rare, settings.canaries, rng, rows=rows)


def _choose_home(canary: Canary, parties: Sequence[str]) -> str:
    """Its party, by a hash of the canary alone."""
    digest = hmac.digest(b"home of a canary", "\0".join(canary.rows.texts).encode("utf-8", "surrogatepass"), "sha256")
    return parties[int.from_bytes(digest[:8], "big") % len(parties)]


def _attack_sums(
    run_plan: RunPlan,
    watched: _Watched,
    opened_sums: Mapping[str, NoisySum],
    canaries: Sequence[Canary],
    present: Bools,
    embed: Embed,
    near: Sequence[audit_units.Neighbours],
) -> Observations:
    """Attacks all opened sums for every canary, with the weights of the plan. Does not attack the corpus.

    A sum weighs as much as the plan lets it tell of one unit, L2 sensitivity over sigma, so that the weighted score of
    an absent canary is N(0, 1) however its own contributions turn out. Where units are sub-sampled their coins are
    unknown: the contributions then count at the sampling rate, and what is left of the others adds to the noise.
    """
    privacy, labels = run_plan.plan.privacy, run_plan.task.task.labels

    def held(rows: Table) -> PrivateRecords:
        return PrivateRecords(rows, labels, privacy, key=bytes(32), embed=embed)

    canary_records, all_records = (
        [held(canary.rows) for canary in canaries],
        held(concatenate([canary.rows for canary in canaries])),
    )
    real = [[held(table) for table in tables] for tables in near]
    aligned = [[held(table) for table in tables] for tables in audit_units.aligned_neighbours(labels, privacy)]
    roomy = replace(privacy, max_records=max(privacy.max_records, 2 * max(audit_units.CROWDS)))
    scores, apart, signals, square = *(np.zeros(len(canaries)) for _ in range(3)), 0.0
    noise: dict[str, NoiseSize] = {}
    shares: dict[str, noise_checks.Shape] = {}
    independent: dict[float, bool] = {}
    largest, clamps, coins, rates = 0.0, [], watched.repeated_coins(), set()
    quorum = run_plan.plan.quorum
    for name, noisy_sum in opened_sums.items():
        planned, public = watched.sums[name]
        full_sum = _without_sampling(planned)
        rows = np.array(
            [
                grid_vectors.grid_vector(full_sum, records, public, privacy, coins=bytes(32), memory={}).values
                for records in canary_records
            ],
            dtype=np.float64,
        )
        moved = np.concatenate(
            [
                *(audit_units.moves(full_sum, group, public, privacy) for group in real),
                *(
                    audit_units.moves(
                        full_sum, group, public, roomy, partial(audit_units.aligned_rows, full_sum.build())
                    )
                    for group in aligned
                ),
            ]
        )
        entered, unsampled = (np.sum(vectors, axis=0) for vectors in zip(*watched.vectors[name].values(), strict=True))
        residual = (noisy_sum.values - planned.sampling_rate * unsampled) / planned.sigma_integer
        view = rows / planned.sigma_integer, residual, present, planned.sampling_rate
        score, signal = whole_scores(*view)
        survivors = len(noisy_sum.survivors)
        if survivors != len(watched.vectors[name]):
            raise InternalError(f"{name}: the vectors of {survivors} parties are in the sum, others were watched")
        noise_values = noisy_sum.values - entered
        sizes = np.abs(noise_values.astype(np.float64))
        planned_noise = noise_plan(
            planned.drawn_sigma_integer, quorum.parties, quorum.tolerated_dropouts, quorum.noise_colluders, planned.law
        )
        if planned.law == "gaussian":
            variance = float(planned_noise.opened_variance(quorum.parties - survivors))
            normal_scores = noise_checks.gaussian_scores(noise_values, variance)
            noise[name] = NoiseSize(planned.law, len(noise_values), float(sizes @ sizes) / variance, normal_scores)
        else:
            scale = laplace_scale(planned.drawn_sigma_integer)
            if scale >= SMALLEST_LAPLACE:
                shares_in_sum = survivors * (1.0 / planned_noise.honest_survivors)
                normal_scores = noise_checks.laplace_scores(noise_values, scale, shares_in_sum)
                noise[name] = NoiseSize(planned.law, len(noise_values), float(sizes.sum()) / scale, normal_scores)
        for party, watched_share in enumerate(watched.noise.shares[name].values(), 1):
            noise_share = watched_share.under(planned_noise)
            for part, draw in noise_share.draws.items():
                shares[f"{name}, party {party}{part}"] = noise_checks.shape_of(draw.scores)
            shape = noise_checks.shape_of(noise_share.total.scores[noise_share.zeros])
            audit_noise.add_evidence(shares, name + ZERO, shape)
        largest = max(largest, *(_ratio_to_bounds(vector, _declared_bounds(planned)) for vector in (*rows, *moved)))
        clamps += clamped_shares(planned, canary_records[0], all_records, public, privacy)
        if planned.sampling_rate < 1.0:
            secret, right = subsample_is_sound(planned, public, privacy)
            if right and (rate := planned.sampling_rate) not in independent:
                independent[rate] = coins_are_independent(rate, privacy)
            coins |= set() if secret and (not right or independent[rate]) else {name}
            rates |= set() if right or not secret else {name}
        weight = planned.l2 / planned.sigma
        scores += weight * score
        apart += weight * orthogonal_scores(*view)[0]
        signals += weight * planned.sampling_rate * signal
        square += weight * weight
    deviation = math.sqrt(square)
    clamp = (min(clamps), max(clamps))
    return Observations(
        present,
        scores / deviation,
        apart / deviation,
        signals / deviation,
        {},
        noise,
        largest,
        clamp,
        (
            *(f"{name}: the coins of its subsample are not secret and independent" for name in sorted(coins)),
            *(f"{name}: its subsample takes another share of the units than planned" for name in sorted(rates)),
            *([audit_noise.ADVERTISED] if watched.noise.advertised else []),
        ),
        shares,
        watched.noise.likenesses,
    )


def clamped_shares(
    planned: PlannedSum, unit: PrivateRecords, units: PrivateRecords, public: PublicInputs, privacy: Privacy
) -> list[float]:
    """Has vectors computed of rows far outside their bounds; returns each vector's size over its declared bound.

    Sizes are about 1 in a sound build, and never more. The vectors are of one ``unit`` with rows of one large
    coordinate, upwards and downwards, and with large rows; and of a party with more ``units`` than it may count.
    """
    planned = _without_sampling(planned)
    far = PROBE_ROW_SCALE * planned.linf
    bounds = _declared_bounds(planned)
    largest = bounds[2] / privacy.norm_factor  # coordinate of one clamped row

    def share(records: PrivateRecords, row: sp.csr_array[Any], allowed: Privacy, bound: Float64) -> float:
        all_rows = sp.csr_array(sp.vstack([row] * len(records), format="csr"))
        vector = grid_vectors.grid_vector(
            planned,
            records,
            public,
            allowed,
            coins=bytes(32),
            memory={},
            rows=lambda *_: Rows(all_rows, records.units),
        ).values.astype(np.float64)
        return _ratio_to_bounds(vector, bound)

    single_row = sp.csr_array(([far], ([0], [0])), shape=(1, planned.dimension))
    shares = [
        *(share(unit, row, privacy, bounds) for row in (single_row, -single_row)),
        share(units, single_row, replace(privacy, max_records=1), np.array([np.inf, np.inf, largest])),
    ]
    flat = share(unit, sp.csr_array(np.full((1, planned.dimension), far)), privacy, bounds)
    # Rounding toward zero leaves little of coordinates of a few integer units.
    return [*(shares if largest >= FEWEST_UNITS else (max(size, 1.0) for size in shares)), max(flat, 1.0)]


def _declared_bounds(planned: PlannedSum) -> Float64:
    """L1, L2 and Linf that the plan declares, integer units."""
    return np.array([planned.l1, planned.l2, planned.linf]) * planned.scale


def _ratio_to_bounds(vector: Float64, bounds: Float64) -> float:
    """The largest of a vector's L1, L2 and Linf over its bound."""
    sizes = np.abs(vector)
    return float(np.max(np.array([sizes.sum(), np.sqrt(sizes @ sizes), sizes.max()]) / bounds))


def subsample_is_sound(planned: PlannedSum, public: PublicInputs, privacy: Privacy) -> tuple[bool, bool]:
    """Returns whether a party's coins decide who takes part, and whether they take the planned share of the units.

    Each is False for a sound build with a chance of ``COINS_ALARM``. Every unit contributes as much as it may to one
    coordinate. Whatever the others do, one unit's coin leaves a given vector a probability of max(rate, 1 - rate) at
    most; the number of units that take part in all draws is binomial.
    """

    rate = planned.sampling_rate
    draws = max(1 + math.ceil(math.log(COINS_ALARM) / math.log(max(rate, 1.0 - rate))), FEWEST_COINS)
    linf = planned.linf / privacy.norm_factor
    if draws > MOST_COINS or linf * planned.scale < 1.0:
        return True, True  # too few draws, or too small numbers, to accuse anybody
    units = _unit_records(COUNTED_UNITS, privacy)
    row = sp.csr_array(([linf] * len(units), ([*range(len(units))], [0] * len(units))), (len(units), planned.dimension))
    allowed = replace(privacy, max_records=len(units))

    def first(planned: PlannedSum) -> int:
        vector = grid_vectors.grid_vector(
            planned,
            units,
            public,
            allowed,
            coins=os.urandom(32),
            memory={},
            rows=lambda *_: Rows(row, units.units),
        )
        return int(vector.values[0])

    population = COUNTED_UNITS
    unit_value = first(_without_sampling(planned)) / population
    counts = [round(first(planned) / unit_value) for _ in range(draws)]
    count_test = binomtest(min(max(sum(counts), 0), draws * population), draws * population, rate)
    return len(set(counts)) > 1, count_test.pvalue > COINS_ALARM


def coins_are_independent(rate: float, privacy: Privacy) -> bool:
    """Returns False if two of many subsamples are equal, or if two units take part together too often or too rarely.

    It does so for a sound build with a chance of ``COINS_ALARM``. Coins of 20 bits repeat in 2 000 subsamples.
    """

    pairs = SUBSAMPLES * (SUBSAMPLES - 1) / 2
    agreeing = rate * rate + (1.0 - rate) * (1.0 - rate)  # one unit in two subsamples
    units_needed = math.ceil(math.log(COINS_ALARM / 2 / pairs) / math.log(agreeing))
    units = _unit_records(min(units_needed, MOST_UNITS), privacy)
    subsamples = np.array([grid_vectors.poisson_subsample(units, rate, os.urandom(32)) for _ in range(SUBSAMPLES)])
    if units_needed <= MOST_UNITS and len(np.unique(subsamples, axis=0)) < SUBSAMPLES:
        return False
    rarer = (subsamples if rate <= 0.5 else ~subsamples).astype(np.float32)
    joint_counts = (rarer.T @ rarer)[np.triu_indices(len(units), 1)]
    chance = min(rate, 1.0 - rate) ** 2
    tail = np.minimum(binom.cdf(joint_counts, SUBSAMPLES, chance), binom.sf(joint_counts - 1, SUBSAMPLES, chance))
    return bool(tail.min() > COINS_ALARM / (4 * len(tail)))


def _unit_records(count: int, privacy: Privacy) -> PrivateRecords:
    names = tuple(f"unit {number}" for number in range(count))
    return PrivateRecords(Table(names, None, names), (), privacy, key=bytes(32), embed=_reads_nothing)


def _reads_nothing(texts: Sequence[str]) -> Float32:
    raise InternalError("a subsample is drawn without reading a text")


def _without_sampling(planned: PlannedSum) -> PlannedSum:
    return replace(planned, sampling_rate=1.0)
