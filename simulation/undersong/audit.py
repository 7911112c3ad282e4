"""``undersong audit``: attacks real runs of a task with planted records, and says what epsilon the attacks prove.

Every run is one whole simulation: real parties, noise, masks and method, with canaries planted by fair coins. Two
attackers are played. One reads every opened sum and knows all records but the canary: the strongest attacker that the
promise speaks of. The other has the published corpus alone (Meeus et al. 2025). What an attack proves is a lower bound;
the promise is an upper one. Whether anything else speaks than the opened sums is played beside these runs: a hostile
coordinator against two copies of a party (undersong.noninterference).
"""

from __future__ import annotations

import hmac
import math
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from undersong.canaries import Canary, make_canaries, planted
from undersong.corpus_attacks import attack_corpus
from undersong_client.grid_vectors import grid_vector
from undersong_client.records import PrivateRecords
from undersong_common import embedders
from undersong_common.arrays import Bools, Float64, Int64
from undersong_common.embedding import CachedEmbedder, Embed, MemoryCache
from undersong_common.errors import ConfigurationError
from undersong_common.privacy.accounting import gaussian_mu
from undersong_common.table import Table, concatenate
from undersong_protocol.plan import PlannedSum, Privacy
from undersong_protocol.statistics import PublicInputs
from undersong_protocol.vectors import GridVector, NoisySum
from undersong_server.evaluation.lower_bounds import CONFIDENCE, Detection, orthogonal_scores
from undersong_server.federation.driver import opened_sum
from undersong_server.progress import Progress, Silent
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import RunPlan, plan_run

if TYPE_CHECKING:
    from undersong.noninterference.rounds import Played

RARE_WORDS = 20_000  # of the language's commonest: the later half is rare
NOISE_ALARM = 1e-6  # how often an audit of a sound build would find too little noise
BOUND_TOLERANCE = 1e-6  # above what rounding lets a norm pass its bound
LEARNT = 0.5  # share of the runs from which the corpus attacks learn their thresholds


@dataclass(frozen=True)
class AuditSettings:
    """How often to attack.

    Attributes:
        task_file, assignments: the task, and the keys of it that are overridden.
        runs: whole simulations.
        canaries: planted or not, each by a fair coin, per run.
        seed: of canaries and coins, of what the simulations do in public; never of noise, keys or masks.
        jobs: processes.
        examples: of each kind of conversation between a hostile coordinator and two copies of a party; 0 plays none.
    """

    task_file: Path
    assignments: tuple[str, ...] = ()
    runs: int = 16
    canaries: int = 24
    seed: int = 0
    jobs: int = 2
    examples: int = 60


@dataclass(frozen=True, eq=False)
class Observations:
    """What one run showed of each canary.

    Attributes:
        present: which canaries were planted, bool [c].
        sums: each one's score in all opened sums together, float64 [c]: N(0, 1) without it.
        signals: how far the score lies higher with it, as planned noise counts, float64 [c].
        corpus: scores of the attacks on the corpus, by name, float64 [c].
        noise: (coordinates, sum of squares in units of the variance that the parties must draw together) of what the
            opened Gaussian sums hold beside the parties' exact vectors.
        largest: a canary's largest contribution to a sum over the bound that the plan declares for it.
    """

    present: Bools
    sums: Float64
    signals: Float64
    corpus: Mapping[str, Float64]
    noise: tuple[int, float]
    largest: float


@dataclass(frozen=True)
class Verdict:
    """What one attack proves.

    Attributes:
        attack: what it looks at, in words.
        detection: its hits and false alarms at a threshold fixed beforehand.
        epsilon: lower bound, at the promise's delta and the detection's confidence.
    """

    attack: str
    detection: Detection
    epsilon: float


@dataclass(frozen=True)
class AuditReport:
    """What ``undersong audit`` found; all of it says something about planted records only.

    Attributes:
        task, method, unit: what was attacked, and whose presence is hidden.
        epsilon, delta: the promise, an upper bound.
        overrides: keys of the task that were set for the audit.
        runs, canaries: simulations, and canaries per run.
        signal: mean shift of a planted canary's score over the largest that the promise allows, 0 to about 1.
        noise: deviation of the noise in the opened sums over what the parties must draw together: (found, upper
            bound); None where units are sub-sampled, since nobody can know whose contributions to take away, and where
            no sum is Gaussian.
        largest: of all canaries' contributions over the bound that the plan declares; above 1 the bound is wrong.
        verdicts: one per attack.
        played: what two copies of a party told a hostile coordinator; empty where that was left out.
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
    verdicts: tuple[Verdict, ...]
    played: tuple[Played, ...] = ()

    @property
    def faults(self) -> list[str]:
        """What refutes the promise, in words; empty where nothing does."""
        found = [
            f"{verdict.attack}: epsilon is at least {verdict.epsilon:.3g}, not {self.epsilon:g}"
            for verdict in self.verdicts
            if verdict.epsilon > self.epsilon
        ]
        if self.noise is not None and self.noise[1] < 1.0:
            found.append(f"the opened sums hold {self.noise[0]:.3g} of the noise's planned deviation")
        if self.largest > 1.0 + BOUND_TOLERANCE:
            found.append(f"one unit contributes {self.largest:.3g} of the declared sensitivity")
        found += [f"{each.body}: {each.found.partition(chr(10))[0]}" for each in self.played if each.found]
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "confidence": CONFIDENCE, "faults": self.faults}


def audit(settings: AuditSettings, progress: Progress) -> AuditReport:
    """Runs the audit. Raises ConfigurationError for a task that it cannot attack."""
    task = tasks.load(settings.task_file, list(settings.assignments))
    run_plan = plan_run(task)
    _check(settings, run_plan)
    promise = run_plan.plan.privacy
    with ProcessPoolExecutor(settings.jobs, mp_context=get_context("spawn")) as pool:
        cells = [pool.submit(observe, settings, number) for number in range(settings.runs)]
        games = _games(settings, run_plan, pool)
        everything: list[Future[Any]] = [*cells, *games]
        try:
            for done, each in enumerate(as_completed(everything)):
                progress.update("runs and conversations", done, len(everything))
                each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        observed = [cell.result() for cell in cells]
        played = [game.result() for game in games]
    return report(settings, run_plan, promise, observed, played)


def _games(settings: AuditSettings, run_plan: RunPlan, pool: ProcessPoolExecutor) -> list[Future[Played]]:
    """What is played in the pool beside the runs: a cell per body."""
    if not settings.examples:
        return []
    from undersong.noninterference import rounds

    bodies = rounds.bodies_of([planned.statistic for planned in run_plan.plan.sums])
    return [pool.submit(rounds.play, body, examples=settings.examples, seed=settings.seed) for body in bodies]


def report(
    settings: AuditSettings,
    run_plan: RunPlan,
    promise: Privacy,
    observed: Sequence[Observations],
    played: Sequence[Played] = (),
) -> AuditReport:
    """What the observations of all runs prove together, and what the conversations found."""
    mu = gaussian_mu(promise.epsilon, promise.delta)
    present = np.concatenate([each.present for each in observed])
    scores = np.concatenate([each.sums for each in observed])
    sums = Detection.at(scores[present], scores[~present], mu / 2)
    gaussian = all(planned.law == "gaussian" and planned.sampling_rate == 1.0 for planned in run_plan.plan.sums)
    bound = sums.epsilon_if_gaussian(promise.delta) if gaussian else sums.epsilon(promise.delta)
    verdicts = [Verdict("every opened sum, by somebody who knows all other records", sums, bound)]
    verdicts += [_corpus_verdict(name, observed, promise.delta) for name in observed[0].corpus]
    return AuditReport(
        task=run_plan.task.task.name,
        method=run_plan.task.method.name,
        unit=promise.unit,
        epsilon=promise.epsilon,
        delta=promise.delta,
        overrides=settings.assignments,
        runs=len(observed),
        canaries=settings.canaries,
        signal=float(np.mean(np.concatenate([each.signals for each in observed]))) / mu,
        noise=_noise(run_plan, observed),
        largest=max(each.largest for each in observed),
        verdicts=tuple(verdicts),
        played=tuple(played),
    )


def _noise(run_plan: RunPlan, observed: Sequence[Observations]) -> tuple[float, float] | None:
    """Deviation over the planned one, with its upper bound: a sum of squares of normals is chi-square."""
    from scipy.stats import chi2

    if any(planned.sampling_rate < 1.0 for planned in run_plan.plan.sums):
        return None
    coordinates = sum(each.noise[0] for each in observed)
    square = sum(each.noise[1] for each in observed)
    if not coordinates:
        return None
    return math.sqrt(square / coordinates), math.sqrt(square / float(chi2.ppf(NOISE_ALARM, coordinates)))


def _corpus_verdict(name: str, observed: Sequence[Observations], delta: float) -> Verdict:
    """A threshold that told the first runs' canaries apart best, judged on the others."""
    learnt = max(1, round(LEARNT * len(observed)))

    def gathered(part: Sequence[Observations]) -> tuple[Float64, Float64]:
        present = np.concatenate([each.present for each in part])
        scores = np.concatenate([each.corpus[name] for each in part])
        return scores[present], scores[~present]

    shown, hidden = gathered(observed[:learnt])
    gains = {float(t): float((shown > t).mean() - (hidden > t).mean()) for t in np.unique([*shown, *hidden])}
    threshold = max(gains, key=gains.__getitem__) if len(shown) and len(hidden) else math.inf
    rest = observed[learnt:]
    detection = Detection.at(*gathered(rest), threshold) if rest else Detection(0, 0, 0, 0)
    return Verdict(name, detection, detection.epsilon(delta))


def _check(settings: AuditSettings, run_plan: RunPlan) -> None:
    privacy = run_plan.plan.privacy
    if not math.isfinite(privacy.epsilon) or not run_plan.plan.sums:
        raise ConfigurationError("the task promises nothing: there is no epsilon to audit", "set privacy.epsilon")
    if privacy.unit == "party":
        raise ConfigurationError(
            'privacy.unit is "party": a canary would be a whole party', 'audit the task with unit "user" or "sample"'
        )
    if settings.runs < 2 or settings.canaries < 1:
        raise ConfigurationError("an audit needs two runs and one canary at least", "raise --runs and --canaries")
    if settings.examples and find_spec("hypothesis") is None:
        raise ConfigurationError(
            "the package hypothesis, which plays the hostile coordinator, is not installed",
            "install undersong[audit], or leave that part out with --examples 0",
        )


# One run, in a process of its own


class _Watched:
    """Computes what a party computes, and keeps it: the audit's attacker knows every record but one."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[PlannedSum, PublicInputs]] = {}
        self.vectors: dict[str, list[Int64]] = {}  # exact, per party, as if no unit were left out by sub-sampling

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
        found = grid_vector(planned, records, public, privacy, coins=coins, memory=memory)
        everyone = found
        if planned.sampling_rate < 1.0:
            everyone = grid_vector(_unsampled(planned), records, public, privacy, coins=coins, memory=memory)
        self.sums[planned.name] = planned, public
        self.vectors.setdefault(planned.name, []).append(everyone.values)
        return found


_LOADED: dict[str, Any] = {}  # of one worker process: the embedder, and what it has embedded


def observe(settings: AuditSettings, number: int) -> Observations:
    """One simulation with its own canaries and coins, attacked."""
    from undersong.records import private_tables
    from undersong.simulation import simulate
    from undersong.workspace import Workspace
    from undersong_client import store

    task = tasks.load(settings.task_file, list(settings.assignments))
    run_plan = plan_run(task)
    embedder = _LOADED.setdefault("embedder", embedders.load(task.embedder.model))
    cache = _LOADED.setdefault("cache", MemoryCache())
    embed = CachedEmbedder(embedder, cache).encode
    tables = private_tables(task, settings.seed)
    canaries = _canaries(settings, run_plan, concatenate(list(tables.values())))
    present = np.random.default_rng([settings.seed, 0xC0, number]).random(len(canaries)) < 0.5
    chosen = [canary for canary, there in zip(canaries, present, strict=True) if there]
    watched = _Watched()
    with tempfile.TemporaryDirectory(prefix="undersong-audit-") as folder:
        workspace = Workspace(Path(folder) / "run", task, {"audit": number}, fresh=False)
        try:
            outcome = simulate(
                run_plan,
                workspace,
                planted(tables, chosen, [_home(canary, list(tables)) for canary in chosen]),
                seed=settings.seed * 1_000_003 + number,
                insecure_noise_seed=None,
                public_cache=cache,
                environment={},
                progress=Silent(),
                embedder=embedder,
                private_cache=cache,
                contribution=watched,
            ).outcome
            sums = {name: opened_sum(workspace.journal, name) for name in watched.sums}
        finally:
            workspace.journal.close()
            store.close(workspace.parties_path)
    opened = {name: found for name, found in sums.items() if found is not None}
    attacked = _attack_sums(run_plan, watched, opened, canaries, present, embed)
    corpus = attack_corpus(outcome.samples, canaries, task.task.labels, embed)
    return Observations(present, attacked.scores, attacked.signals, corpus, attacked.noise, attacked.largest)


@dataclass(frozen=True, eq=False)
class _Attacked:
    """:class:`Observations` of the opened sums."""

    scores: Float64
    signals: Float64
    noise: tuple[int, float]
    largest: float


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
) -> _Attacked:
    """Every canary's score and signal, float64 [c], over all opened sums with the weights of the plan.

    A sum weighs as much as the plan lets it tell of one unit, L2 sensitivity over sigma, so that the weighted score of
    an absent canary is N(0, 1) however its own contributions turn out. Where units are sub-sampled their coins are
    unknown: the contributions then count at the sampling rate, and what is left of the others adds to the noise.
    """
    privacy = run_plan.plan.privacy
    alone = [
        PrivateRecords(canary.rows, run_plan.task.task.labels, privacy, key=bytes(32), embed=embed)
        for canary in canaries
    ]
    scores, signals, square = np.zeros(len(canaries)), np.zeros(len(canaries)), 0.0
    coordinates, noise_square, largest = 0, 0.0, 0.0
    for name, found_sum in opened.items():
        planned, public = watched.sums[name]
        whole = _unsampled(planned)
        rows = np.array(
            [grid_vector(whole, records, public, privacy, coins=bytes(32), memory={}).values for records in alone],
            dtype=np.float64,
        )
        known = planned.sampling_rate * np.sum(watched.vectors[name], axis=0)
        residual = (found_sum.values - known) / planned.sigma_integer
        found, signal = orthogonal_scores(rows / planned.sigma_integer, residual, present, rate=planned.sampling_rate)
        if planned.law == "gaussian":
            # Every survivor draws, and the honest ones' noise alone must reach the plan's.
            survivors = len(found_sum.survivors)
            drawn = planned.drawn_sigma_integer / planned.sigma_integer
            variance = drawn * drawn * survivors / (survivors - run_plan.plan.quorum.colluders)
            coordinates, noise_square = (
                coordinates + len(residual),
                noise_square + float(residual @ residual) / variance,
            )
        norms = np.sqrt(np.einsum("ck,ck->c", rows, rows))
        largest = max(largest, float(norms.max()) / (planned.l2 * planned.scale))
        weight = planned.l2 / planned.sigma
        scores += weight * found
        signals += weight * signal
        square += weight * weight
    return _Attacked(scores / math.sqrt(square), signals / math.sqrt(square), (coordinates, noise_square), largest)


def _unsampled(planned: PlannedSum) -> PlannedSum:
    return replace(planned, sampling_rate=1.0)
