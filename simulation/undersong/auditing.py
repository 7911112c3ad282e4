"""``undersong audit``: attacks real runs of a task with planted records, and says what epsilon the attacks prove.

Every run is one whole simulation: real parties, noise, masks and method, with canaries planted by fair coins. Up to
six attackers are played. Two read every opened sum and know all records but the canary, the strongest attackers that
the promise speaks of; one of them names only the canaries of which it is surest. The others have the published corpus
alone (Meeus et al. 2025). What an attack proves is a lower bound; the promise is an upper one. All bounds of one audit
hold together with the stated confidence.

The audit has all parties, so it also measures: the noise that the sums hold beside the vectors that entered them, and
each party's share of it (size, law, place and independence: ``audit_parts``), how far one unit moves a vector of real
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

from undersong import audit_noise, audit_parts, audit_units
from undersong.audit_parts import (
    CONFIDENCE,
    Canary,
    Detection,
    attack_corpus,
    make_canaries,
    orthogonal_scores,
    planted,
    whole_scores,
)
from undersong.processes import each_in_processes
from undersong_client.answering import grid_vectors
from undersong_client.records.private import PrivateRecords
from undersong_common import embedders
from undersong_common.arrays import Bools, Float32, Float64, Int64
from undersong_common.embedding import CachedEmbedder, Embed, Embedder, MemoryCache
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.printable import that_hold
from undersong_common.privacy.accounting import Gaussian, epsilon, gaussian_mu
from undersong_common.privacy.ledger import Ledger
from undersong_common.table import Table, concatenate
from undersong_protocol.agreement.plan import Plan, PlannedSum, Privacy
from undersong_protocol.secagg.noise_share import laplace_scale, noise_plan
from undersong_protocol.statistics import PublicInputs, Rows
from undersong_protocol.statistics.vectors import GridVector, NoisySum
from undersong_server.federation.driver import opened_sum
from undersong_server.progress import Progress, Silent
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import RunPlan, plan_run

RARE_WORDS = 20_000  # of the language's commonest: the later half is rare
NOISE_ALARM = 1e-6  # how often an audit of a sound build would accuse its noise, by all checks together
NOISE_CHECKS = 7  # that share the alarm: size, law, tails, blocks, repetition within and between sums, known noise
SMALLEST_LAPLACE = 10.0  # integer scale from which the absolute values of Laplace noise are exponential enough
COINS_ALARM = 1e-9  # how often a sound subsample would look as if its coins did not matter, or took a wrong share
COUNTED_UNITS = 400  # whose coins are counted: a rate of 1.2 of the planned one is then 17 deviations away
FEWEST_COINS = 200  # subsamples drawn at least, to estimate the sampling rate
MOST_COINS = 20_000  # subsamples drawn for that: so many suffice for sampling rates up to 0.998
SUBSAMPLES = 2_000  # drawn to see that no two are equal, and that units take part independently
MOST_UNITS = 2_000  # in these; subsamples of a rate below 0.009 are not asked to differ
OUTSIDE = 1_000.0  # times its bound: a row with which the clamp is probed
FEWEST_UNITS = 4  # integer units that must be left of a clamped row, so that rounding takes half of it at most
LEAST_NOISE = 0.05  # smallest share of the planned noise for which an audit's power is computed
BOUND_TOLERANCE = 1e-6  # above what rounding lets a norm pass its bound
MEANING = (
    "An attack that fails proves nothing: these are lower bounds, and no number of runs proves the promise kept.",
    "One that succeeds beyond the promise refutes it.",
)
DEFAULT_RUNS = 64  # below which an audit says what it cannot see
ZERO = ", where a party's exact vector is 0"  # ends the name of the noise at these coordinates
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
        scores: normal scores of all coordinates (``audit_parts``), float32.
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
    shares: Mapping[str, audit_parts.Shape] = field(default_factory=dict)
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
        seen = self.detection
        return (
            f"{self.attack}: proves epsilon >= {self.epsilon:.3g}"
            f" ({seen.hits} of {seen.present} planted records found, {seen.false_alarms} of {seen.absent} false"
            f" alarms; so many runs prove {self.most:.3g} at most)"
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
        largest, (least, most) = 1.0 + BOUND_TOLERANCE, self.clamp
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
                most > largest or least < 0.5,
                f"rows outside their bound are not clamped: {most if most > largest else least:.3g} of the declared"
                " sensitivity is left",
            ),
            *((True, finding) for finding in self.findings),
        )

    @property
    def unseen(self) -> tuple[str, ...]:
        """Sentences on what fewer runs than the default cannot show; empty for as many."""
        if self.runs >= DEFAULT_RUNS:
            return ()
        most = max((verdict.most for verdict in self.verdicts), default=0.0)
        return (
            f"{self.runs} runs cannot show what {DEFAULT_RUNS} show: noise that is missing at few coordinates, rows"
            " that depend on how many real records there are (a run tries one number of units from 41 to 200), or an"
            f" attack that would prove epsilon above {most:.3g}",
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "confidence": CONFIDENCE, "faults": self.faults}

    def lines(self) -> list[str]:
        """The report as a person reads it."""
        ways = (self.refutable_by_noise, "by the measured noise"), (self.refutable_by_attack, "by the first attack")
        refutable = [f"{'none' if epsilon is None else f'{epsilon:.3g}'} {how}" for epsilon, how in ways]
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
            f"  of rows {OUTSIDE:g} times their bound, {self.clamp[0]:.6g} to {self.clamp[1]:.6g} of the bound is left",
            f"smallest epsilon that this audit could have refuted, by too little noise: {', '.join(refutable)}",
            *([f"REFUTED: {fault}" for fault in self.faults] or ["nothing refutes the promise"]),
            *self.unseen,
            *MEANING,
        ]


def audit(settings: AuditSettings, progress: Progress) -> AuditReport:
    """Runs the simulations of an audit and attacks them. Raises ConfigurationError for a task that it cannot attack."""
    task = tasks.load(settings.task_file, list(settings.assignments))
    run_plan = plan_run(task)
    _check(settings, run_plan)
    _loaded.cache_clear()
    observed: dict[int, Observations] = {}
    for number, seen in each_in_processes(observe, [(settings, run) for run in range(settings.runs)], settings.jobs):
        observed[number] = seen
        progress.update("runs", len(observed), settings.runs)
    return report(settings, run_plan, [observed[run] for run in range(settings.runs)])


def report(settings: AuditSettings, run_plan: RunPlan, observed: Sequence[Observations]) -> AuditReport:
    """Combines the observations of all runs into one report."""

    plan, promise = run_plan.plan, run_plan.plan.privacy
    delta = promise.delta
    mu = gaussian_mu(promise.epsilon, delta)
    alarm = (1.0 - CONFIDENCE) / (2 + len(observed[0].corpus))
    # Half of its own signal tells best whether a canary was there; the attacker knows it.
    sums = Detection.of_runs([(each.present, each.sums - each.signals / 2) for each in observed], 0.0, alarm)
    surest = Detection.of_runs([(each.present, each.apart) for each in observed], float(norm.isf(SURE)), alarm)
    gaussian = all(planned.law == "gaussian" and planned.sampling_rate == 1.0 for planned in plan.sums)
    verdicts = (
        _verdict("every opened sum, by somebody who knows all other records", sums, delta, gaussian),
        _verdict(f"the same, naming {SURE:.0%} of absent records only", surest, delta, gaussian, by_rates=True),
        *(_corpus_verdict(name, observed, delta, alarm) for name in observed[0].corpus),
    )
    signals = np.concatenate([each.signals for each in observed])
    noise, excess = _noise(observed)
    measured = noise[0] / noise[1] if noise else 0.0  # the share of the planned noise that is found too little
    attacked = _attack_power(sums, signals, lambda found: _proven(found, delta, gaussian) > promise.epsilon)
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
        largest=max(each.largest for each in observed),
        clamp=(min(each.clamp[0] for each in observed), max(each.clamp[1] for each in observed)),
        verdicts=verdicts,
        refutable_by_noise=_epsilon_with(plan, max(measured, LEAST_NOISE)) if noise else None,
        refutable_by_attack=None if attacked is None else _epsilon_with(plan, attacked),
        excess=excess,
        findings=tuple(
            dict.fromkeys([*_irregular_noise(observed), *(one for run in observed for one in run.findings)])
        ),
    )


def _noise(observed: Sequence[Observations]) -> tuple[tuple[float, float] | None, float]:
    """Deviation over the planned one with its upper bound where that is smallest, and the largest lower bound.

    Sums are judged together and one by one. One of the bounds fails with a chance of ``NOISE_ALARM / NOISE_CHECKS``.
    """

    names = list(dict.fromkeys((each.law, name) for seen in observed for name, each in seen.noise.items()))
    laws = dict.fromkeys(law for law, _ in names)
    groups = [[name for of, name in names if of == law] for law in laws] + [[name] for _, name in names]
    found, excess = [], 0.0
    for group in groups:
        parts = [each.noise[name] for each in observed for name in group if name in each.noise]
        coordinates, size = sum(part.coordinates for part in parts), math.fsum(part.size for part in parts)
        gaussian = parts[0].law == "gaussian"
        # Squares of normals, or exponentials: more shares of Laplace noise than the honest ones' only add to these.
        law, power = (chi2(coordinates), 0.5) if gaussian else (gamma(coordinates), 1.0)
        alarm = NOISE_ALARM / (NOISE_CHECKS * 2 * len(groups))
        found.append((float(size / law.ppf(alarm)) ** power, (size / coordinates) ** power))
        if gaussian:
            excess = max(excess, float(size / law.isf(alarm)) ** power)
    if not found:
        return None, excess
    upper, deviation = min(found)
    return (deviation, upper), excess


def _irregular_noise(observed: Sequence[Observations]) -> list[str]:
    """Findings about the noise of all sums together, of each sum in all runs and in one, and of each party's share."""
    shapes: dict[str, audit_parts.Shape] = {}
    series: dict[str, list[Float32]] = {}
    every: list[tuple[str, Float32]] = []
    likenesses: dict[str, audit_noise.Likeness] = {}

    def add(name: str, shape: audit_parts.Shape) -> None:
        shapes[name] = shapes[name] + shape if name in shapes else shape

    for number, run in enumerate(observed):
        measured = {name: each.scores for name, each in run.noise.items() if len(each.scores)}
        for name, scores in measured.items():
            series.setdefault(name, []).append(scores)
            every.append((f"run {number}, {name}", scores))
            shape = audit_parts.shape_of(scores)
            for group in ("all sums", name, f"run {number}, {name}"):
                add(group, shape)
        for name, shape in run.shares.items():
            add(name, shape)
            add(f"run {number}, {name}", shape)
            if not name.endswith((ZERO, audit_noise.LASTING)):  # both are parts of other shapes
                add("all parties' shares", shape)
        for name, likeness in run.likenesses.items():
            likenesses[name] = likenesses[name] + likeness if name in likenesses else likeness
    alarm = NOISE_ALARM / NOISE_CHECKS
    return [
        *(f"{pair} hold the same noise" for pair in audit_parts.repeated_between(every, alarm)),
        *(f"{name}: the noise is not of the planned law" for name in audit_parts.other_law(shapes, alarm)),
        *(f"{name}: the noise has no tails" for name in audit_parts.without_tails(shapes, alarm)),
        *(f"{name}: the noise is too small or large in places" for name in audit_parts.uneven(shapes, alarm)),
        *(f"a party's noise follows from {name}" for name in audit_noise.known_noise(likenesses, alarm)),
        *(f"{name}: the noise repeats within the sum" for name in audit_parts.repeated_within(series, alarm)),
    ]


def _proven(detection: Detection, delta: float, gaussian: bool) -> float:
    return detection.epsilon_if_gaussian(delta) if gaussian else detection.epsilon(delta)


def _verdict(attack: str, detection: Detection, delta: float, gaussian: bool, by_rates: bool = False) -> Verdict:
    runs = len(detection.right)
    perfect = replace(
        detection,
        hits=detection.present,
        false_alarms=0,
        right=(1.0,) * runs,
        caught=(0.5,) * runs,
        alarms=(0.0,) * runs,
    )
    reached, most = (
        each.epsilon_of_rates(delta, gaussian) if by_rates else _proven(each, delta, gaussian)
        for each in (detection, perfect)
    )
    return Verdict(attack, detection, reached, most)


def _corpus_verdict(name: str, observed: Sequence[Observations], delta: float, alarm: float) -> Verdict:
    """A threshold that told the first runs' canaries apart best, judged on the others."""
    runs = [(each.present, each.corpus[name]) for each in observed]
    learnt = max(1, round(LEARNT * len(runs)))
    present, scores = (np.concatenate(column) for column in zip(*runs[:learnt], strict=True))
    shown, hidden = scores[present], scores[~present]
    gains = {float(t): float((shown > t).mean() - (hidden > t).mean()) for t in np.unique([*shown, *hidden])}
    threshold = max(gains, key=gains.__getitem__) if len(shown) and len(hidden) else math.inf
    return _verdict(name, Detection.of_runs(runs[learnt:], threshold, alarm), delta, gaussian=False)


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


def _check(settings: AuditSettings, run_plan: RunPlan) -> None:
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
        # By sum and party: the vector of its last attempt, and the one as if no unit were left out by sub-sampling.
        self.vectors: dict[str, dict[PrivateRecords, tuple[Int64, Int64]]] = {}
        self.coins: dict[str, list[bytes]] = {}  # by sub-sampled sum
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
        found = grid_vectors.grid_vector(planned, records, public, privacy, coins=coins, memory=memory)
        everyone = found
        if planned.sampling_rate < 1.0:
            everyone = grid_vectors.grid_vector(
                _unsampled(planned), records, public, privacy, coins=coins, memory=memory
            )
            self.coins.setdefault(planned.name, []).append(coins)
        self.sums[planned.name] = planned, public
        self.vectors.setdefault(planned.name, {})[records] = found.values, everyone.values
        return found

    def repeated_coins(self) -> set[str]:
        """Sums with coins that another attempt, party or sum has too."""
        counts = Counter(coins for each in self.coins.values() for coins in each)
        return {name for name, each in self.coins.items() if any(counts[coins] > 1 for coins in each)}


@cache
def _loaded(model: str, max_windows: int) -> tuple[Embedder, MemoryCache]:
    """The embedder of one worker process, or of one audit here, and what it has embedded."""
    return embedders.load(model, max_windows), MemoryCache()


def observe(settings: AuditSettings, number: int) -> Observations:
    """Runs the ``number``-th simulation of an audit, with canaries and coins of its own, and attacks it."""
    from undersong.records import private_tables
    from undersong.simulation import simulate
    from undersong.workspace import Workspace, ledger_path

    task = tasks.load(settings.task_file, list(settings.assignments))
    run_plan = plan_run(task)
    embedder, kept = _loaded(task.embedder.model, task.embedder.max_windows)
    embed = CachedEmbedder(embedder, kept).encode
    tables = private_tables(task, settings.seed)
    canaries = _canaries(settings, run_plan, concatenate(list(tables.values())))
    near = audit_units.real_neighbours(
        list(tables.values())[number % len(tables)],
        canaries[number % len(canaries)],
        task.task.labels,
        np.random.default_rng([settings.seed, 0xAD, number]),
        privacy=run_plan.plan.privacy,
        number=number,
    )
    present = np.random.default_rng([settings.seed, 0xC0, number]).random(len(canaries)) < 0.5
    chosen = [canary for canary, there in zip(canaries, present, strict=True) if there]
    watched = _Watched()
    with (
        tempfile.TemporaryDirectory(prefix="undersong-audit-") as folder,
        Workspace(Path(folder) / "run", task, {"audit": number}, fresh=False) as workspace,
    ):
        outcome = simulate(
            run_plan,
            workspace,
            planted(tables, chosen, [_home(canary, list(tables)) for canary in chosen]),
            seed=settings.seed * 1_000_003 + number,
            insecure_noise_seed=None,
            public_cache=kept,
            environment={},
            progress=Silent(),
            embedder=embedder,
            private_cache=kept,
            contribution=watched,
            machine=watched.noise.machine(),
        ).outcome
        sums = {name: opened_sum(workspace.journal, name) for name in watched.sums}
        unpaid = [name for name in tables if not _paid(watched, Ledger.read(ledger_path(workspace.state, name)))]
    opened = {name: found for name, found in sums.items() if found is not None}
    attacked = _attack_sums(run_plan, watched, opened, canaries, present, embed, near)
    return replace(
        attacked,
        corpus=attack_corpus(outcome.samples, canaries, task.task.labels, embed),
        findings=(*attacked.findings, *(f"{name}: its ledger charged less than the plan costs" for name in unpaid)),
    )


def _paid(watched: _Watched, ledger: Ledger) -> bool:
    """Returns True if a party's ledger charged each computed sum at the price of the plan."""
    charged = {(charge.query, charge.events) for charge in ledger.charges()}
    return all((name, (planned.event(),)) in charged for name, (planned, _) in watched.sums.items())


def _canaries(settings: AuditSettings, run_plan: RunPlan, private: Table) -> list[Canary]:
    """The same in every run: their coins differ."""
    from wordfreq import top_n_list

    rng = np.random.default_rng([settings.seed, 0xCA])

    privacy = run_plan.plan.privacy
    rows = privacy.max_per_unit if privacy.unit == "user" else 1
    rare = top_n_list("en", RARE_WORDS)[RARE_WORDS // 2 :]
    return make_canaries(private, run_plan.task.task.labels, rare, settings.canaries, rng, rows=rows)


def _home(canary: Canary, parties: Sequence[str]) -> str:
    """Its party, by a hash of the canary alone."""
    digest = hmac.digest(b"home of a canary", "\0".join(canary.rows.texts).encode("utf-8", "surrogatepass"), "sha256")
    return parties[int.from_bytes(digest[:8], "big") % len(parties)]


def _attack_sums(
    run_plan: RunPlan,
    watched: _Watched,
    opened: Mapping[str, NoisySum],
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

    alone, everyone = [held(each.rows) for each in canaries], held(concatenate([each.rows for each in canaries]))
    real = [[held(table) for table in tables] for tables in near]
    aligned = [[held(table) for table in tables] for tables in audit_units.aligned_neighbours(labels, privacy)]
    roomy = replace(privacy, max_records=max(privacy.max_records, 2 * max(audit_units.CROWDS)))
    scores, apart, signals, square = *(np.zeros(len(canaries)) for _ in range(3)), 0.0
    noise: dict[str, NoiseSize] = {}
    shares: dict[str, audit_parts.Shape] = {}
    independent: dict[float, bool] = {}
    largest, clamps, coins, rates = 0.0, [], watched.repeated_coins(), set()
    quorum = run_plan.plan.quorum
    for name, found_sum in opened.items():
        planned, public = watched.sums[name]
        whole = _unsampled(planned)
        rows = np.array(
            [
                grid_vectors.grid_vector(whole, records, public, privacy, coins=bytes(32), memory={}).values
                for records in alone
            ],
            dtype=np.float64,
        )
        moved = np.concatenate(
            [
                *(audit_units.moves(whole, group, public, privacy) for group in real),
                *(
                    audit_units.moves(whole, group, public, roomy, partial(audit_units.aligned_rows, whole.build()))
                    for group in aligned
                ),
            ]
        )
        entered, unsampled = (np.sum(each, axis=0) for each in zip(*watched.vectors[name].values(), strict=True))
        residual = (found_sum.values - planned.sampling_rate * unsampled) / planned.sigma_integer
        seen_by = rows / planned.sigma_integer, residual, present, planned.sampling_rate
        found, signal = whole_scores(*seen_by)
        survivors = len(found_sum.survivors)
        if survivors != len(watched.vectors[name]):
            raise InternalError(f"{name}: the vectors of {survivors} parties are in the sum, others were watched")
        left = found_sum.values - entered
        sizes = np.abs(left.astype(np.float64))
        drawn = noise_plan(
            planned.drawn_sigma_integer, quorum.parties, quorum.tolerated_dropouts, quorum.noise_colluders, planned.law
        )
        if planned.law == "gaussian":
            variance = float(drawn.opened_variance(quorum.parties - survivors))
            seen = audit_parts.gaussian_scores(left, variance)
            noise[name] = NoiseSize(planned.law, len(left), float(sizes @ sizes) / variance, seen)
        else:
            scale = laplace_scale(planned.drawn_sigma_integer)
            share = 1.0 / (quorum.parties - quorum.tolerated_dropouts - quorum.noise_colluders)
            if scale >= SMALLEST_LAPLACE:
                seen = audit_parts.laplace_scores(left, scale, survivors * share)
                noise[name] = NoiseSize(planned.law, len(left), float(sizes.sum()) / scale, seen)
        for party, watched_share in enumerate(watched.noise.shares[name].values(), 1):
            noise_share = watched_share.under(drawn)
            for part, draw in noise_share.draws.items():
                shares[f"{name}, party {party}{part}"] = audit_parts.shape_of(draw.scores)
            zeros = name + ZERO
            shape = audit_parts.shape_of(noise_share.whole.scores[noise_share.zeros])
            shares[zeros] = shares[zeros] + shape if zeros in shares else shape
        largest = max(largest, *(_over(each, _bounds(planned)) for each in (*rows, *moved)))
        clamps += clamped_shares(planned, alone[0], everyone, public, privacy)
        if planned.sampling_rate < 1.0:
            secret, right = subsample_is_sound(planned, public, privacy)
            if right and (rate := planned.sampling_rate) not in independent:
                independent[rate] = coins_are_independent(rate, privacy)
            coins |= set() if secret and (not right or independent[rate]) else {name}
            rates |= set() if right or not secret else {name}
        weight = planned.l2 / planned.sigma
        scores += weight * found
        apart += weight * orthogonal_scores(*seen_by)[0]
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
    planned = _unsampled(planned)
    far = OUTSIDE * planned.linf
    bounds = _bounds(planned)
    largest = bounds[2] / privacy.norm_factor  # coordinate of one clamped row

    def share(records: PrivateRecords, row: sp.csr_array[Any], allowed: Privacy, bound: Float64) -> float:
        every = sp.csr_array(sp.vstack([row] * len(records), format="csr"))
        vector = grid_vectors.grid_vector(
            planned,
            records,
            public,
            allowed,
            coins=bytes(32),
            memory={},
            rows=lambda *_: Rows(every, records.units),
        ).values.astype(np.float64)
        return _over(vector, bound)

    one = sp.csr_array(([far], ([0], [0])), shape=(1, planned.dimension))
    found = [
        *(share(unit, row, privacy, bounds) for row in (one, -one)),
        share(units, one, replace(privacy, max_records=1), np.array([np.inf, np.inf, largest])),
    ]
    flat = share(unit, sp.csr_array(np.full((1, planned.dimension), far)), privacy, bounds)
    # Rounding toward zero leaves little of coordinates of a few integer units.
    return [*(found if largest >= FEWEST_UNITS else (max(each, 1.0) for each in found)), max(flat, 1.0)]


def _bounds(planned: PlannedSum) -> Float64:
    """L1, L2 and Linf that the plan declares, integer units."""
    return np.array([planned.l1, planned.l2, planned.linf]) * planned.scale


def _over(vector: Float64, bounds: Float64) -> float:
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
    one = first(_unsampled(planned)) / population
    counts = [round(first(planned) / one) for _ in range(draws)]
    taken = binomtest(min(max(sum(counts), 0), draws * population), draws * population, rate)
    return len(set(counts)) > 1, taken.pvalue > COINS_ALARM


def coins_are_independent(rate: float, privacy: Privacy) -> bool:
    """Returns False if two of many subsamples are equal, or if two units take part together too often or too rarely.

    It does so for a sound build with a chance of ``COINS_ALARM``. Coins of 20 bits repeat in 2 000 subsamples.
    """

    pairs = SUBSAMPLES * (SUBSAMPLES - 1) / 2
    agreeing = rate * rate + (1.0 - rate) * (1.0 - rate)  # one unit in two subsamples
    wanted = math.ceil(math.log(COINS_ALARM / 2 / pairs) / math.log(agreeing))
    units = _unit_records(min(wanted, MOST_UNITS), privacy)
    drawn = np.array([grid_vectors.poisson_subsample(units, rate, os.urandom(32)) for _ in range(SUBSAMPLES)])
    if wanted <= MOST_UNITS and len(np.unique(drawn, axis=0)) < SUBSAMPLES:
        return False
    rarer = (drawn if rate <= 0.5 else ~drawn).astype(np.float32)
    together = (rarer.T @ rarer)[np.triu_indices(len(units), 1)]
    chance = min(rate, 1.0 - rate) ** 2
    tail = np.minimum(binom.cdf(together, SUBSAMPLES, chance), binom.sf(together - 1, SUBSAMPLES, chance))
    return bool(tail.min() > COINS_ALARM / (4 * len(tail)))


def _unit_records(count: int, privacy: Privacy) -> PrivateRecords:
    names = tuple(f"unit {number}" for number in range(count))
    return PrivateRecords(Table(names, None, names), (), privacy, key=bytes(32), embed=_reads_nothing)


def _reads_nothing(texts: Sequence[str]) -> Float32:
    raise InternalError("a subsample is drawn without reading a text")


def _unsampled(planned: PlannedSum) -> PlannedSum:
    return replace(planned, sampling_rate=1.0)
