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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.stats import binom, binomtest

from undersong.auditing import neighbours, noise_checks, noise_watch
from undersong.auditing.attacks import attack_corpus, orthogonal_scores, whole_scores
from undersong.auditing.canaries import Canary, make_canaries, planted
from undersong.auditing.verdict import (
    PROBE_ROW_SCALE,
    SMALLEST_LAPLACE,
    ZERO,
    AuditReport,
    AuditSettings,
    NoiseSize,
    Observations,
    report,
)
from undersong.run.processes import each_in_processes
from undersong_client.answering import grid_vectors
from undersong_client.records.private import PrivateRecords
from undersong_common.arrays import Bools, Float32, Float64, Int64
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.models import embedders
from undersong_common.models.embedding import CachedEmbedder, Embed, Embedder, MemoryCache
from undersong_common.privacy.ledger import Ledger
from undersong_common.text.table import Table, concatenate
from undersong_protocol.agreement.plan import PlannedSum, Privacy, Quorum
from undersong_protocol.secagg.noise_share import laplace_scale, noise_plan
from undersong_protocol.statistics import PublicInputs, Rows
from undersong_protocol.statistics.vectors import GridVector, NoisySum
from undersong_server.federation.preparation import opened_sum
from undersong_server.progress import Progress, Silent
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import RunPlan, plan_run

RARE_WORDS = 20_000  # commonest words of the language; the later half of them counts as rare
COINS_ALARM = 1e-9  # probability that a sound subsample looks as if its coins did not matter or took a wrong share
COUNTED_UNITS = 400  # Coins of so many units are counted: 1.2 of the planned rate is then 17 deviations away.
FEWEST_COINS = 200  # subsamples drawn at least, to estimate the sampling rate
MOST_COINS = 20_000  # subsamples drawn for that: so many suffice for sampling rates up to 0.998
SUBSAMPLES = 2_000  # drawn to see that no two are equal, and that units take part independently
MOST_UNITS = 2_000  # units of those subsamples; at a rate below 0.009 subsamples need not differ
FEWEST_UNITS = 4  # integer units that must be left of a clamped row, so that rounding takes half of it at most


def audit(settings: AuditSettings, progress: Progress) -> AuditReport:
    """Runs the simulations of an audit and attacks them. Raises ConfigurationError for a task that it cannot attack."""
    task = tasks.load(settings.task_file, list(settings.assignments))
    run_plan = plan_run(task)
    _check_settings(settings, run_plan)
    _load_embedder.cache_clear()
    observations_by_run: dict[int, Observations] = {}
    for run_number, observations in each_in_processes(
        observe, [(settings, run_number) for run_number in range(settings.runs)], settings.jobs
    ):
        observations_by_run[run_number] = observations
        progress.update("runs", len(observations_by_run), settings.runs)
    return report(settings, run_plan, [observations_by_run[run_number] for run_number in range(settings.runs)])


def _check_settings(settings: AuditSettings, run_plan: RunPlan) -> None:
    plan_privacy = run_plan.plan.privacy
    ConfigurationError.raise_first(
        (
            not math.isfinite(plan_privacy.epsilon) or not run_plan.plan.sums,
            "the task promises nothing: there is no epsilon to audit",
            "set privacy.epsilon",
            "",
        ),
        (
            plan_privacy.unit == "party",
            'privacy.unit is "party": a canary would be a whole party',
            'audit the task with unit "user" or "sample"',
            "",
        ),
        (
            settings.runs < 2 or settings.canaries < 1,
            f"an audit of {settings.runs} runs with {settings.canaries} canaries each is too small: two runs and one"
            " canary are needed",
            "raise --runs and --canaries",
            "",
        ),
    )


class _WatchedComputation:
    """Computes what a party computes, and keeps it: the audit's attacker knows every record but one."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[PlannedSum, PublicInputs]] = {}
        # Two vectors by sum and party, of its last attempt: as computed, and as if sub-sampling left out no unit.
        self.vectors: dict[str, dict[PrivateRecords, tuple[Int64, Int64]]] = {}
        self.coins: dict[str, list[bytes]] = {}  # coins of all attempts, by sub-sampled sum
        self.noise = noise_watch.NoiseWatch()

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
        """Returns the names of sums with coins that another attempt, party or sum has too."""
        uses_of_coins = Counter(coins for sum_coins in self.coins.values() for coins in sum_coins)
        return {name for name, sum_coins in self.coins.items() if any(uses_of_coins[coins] > 1 for coins in sum_coins)}


@cache
def _load_embedder(model: str, max_windows: int) -> tuple[Embedder, MemoryCache]:
    """Returns the embedder of one worker process, or of one audit in this process, with its cache."""
    return embedders.load(model, max_windows), MemoryCache()


def observe(settings: AuditSettings, run_number: int) -> Observations:
    """Runs the ``run_number``-th simulation of an audit, with canaries and coins of its own, and attacks it."""
    from undersong.run.options import SimulationOptions
    from undersong.run.records import private_tables
    from undersong.run.simulation import Embeddings, Host, simulate
    from undersong.run.workspace import PartyProgram, Workspace, ledger_path

    task = tasks.load(settings.task_file, list(settings.assignments))
    run_plan = plan_run(task)
    embedder, embedding_cache = _load_embedder(task.embedder.model, task.embedder.max_windows)
    cached_embed = CachedEmbedder(embedder, embedding_cache).encode
    party_tables = private_tables(task, settings.seed)
    run_canaries = _make_run_canaries(settings, run_plan, concatenate(list(party_tables.values())))
    neighbour_tables = neighbours.real_neighbours(
        list(party_tables.values())[run_number % len(party_tables)],
        run_canaries[run_number % len(run_canaries)],
        task.task.labels,
        np.random.default_rng([settings.seed, 0xAD, run_number]),
        privacy=run_plan.plan.privacy,
        run_number=run_number,
    )
    is_present_by_canary = np.random.default_rng([settings.seed, 0xC0, run_number]).random(len(run_canaries)) < 0.5
    planted_canaries = [
        canary for canary, is_present in zip(run_canaries, is_present_by_canary, strict=True) if is_present
    ]
    watched_computation = _WatchedComputation()
    with (
        tempfile.TemporaryDirectory(prefix="undersong-audit-") as folder,
        Workspace(Path(folder) / "run", task, {"audit": run_number}, fresh=False) as workspace,
    ):
        run_outcome = simulate(
            run_plan,
            workspace,
            planted(
                party_tables,
                planted_canaries,
                [_choose_home(canary, list(party_tables)) for canary in planted_canaries],
            ),
            SimulationOptions(seed=settings.seed * 1_000_003 + run_number),
            Embeddings(embedding_cache, embedding_cache, embedder),
            Host({}, Silent()),
            PartyProgram(watched_computation, watched_computation.noise.machine()),
        ).outcome
        sums = {name: opened_sum(workspace.journal, name) for name in watched_computation.sums}
        ledgers = {name: Ledger.read(ledger_path(workspace.state, name)) for name in party_tables}
        unpaid_parties = [name for name, ledger in ledgers.items() if not _is_paid(watched_computation, ledger)]
    opened_sums = {name: noisy_sum for name, noisy_sum in sums.items() if noisy_sum is not None}
    attacked_sums = _attack_sums(
        run_plan, watched_computation, opened_sums, run_canaries, is_present_by_canary, cached_embed, neighbour_tables
    )
    return replace(
        attacked_sums,
        corpus=attack_corpus(run_outcome.samples, run_canaries, task.task.labels, cached_embed),
        findings=(
            *attacked_sums.findings,
            *(f"{name}: its ledger charged less than the plan costs" for name in unpaid_parties),
        ),
    )


def _is_paid(watched: _WatchedComputation, ledger: Ledger) -> bool:
    """Returns True if a party's ledger charged each computed sum at the price of the plan."""
    charged_sums = {(charge.query, charge.events) for charge in ledger.charges()}
    return all((name, (planned.event(),)) in charged_sums for name, (planned, _) in watched.sums.items())


def _make_run_canaries(settings: AuditSettings, run_plan: RunPlan, private: Table) -> list[Canary]:
    """Returns the canaries of every run. Runs differ only in the coins that decide which of them are planted."""
    from wordfreq import top_n_list

    rng = np.random.default_rng([settings.seed, 0xCA])

    plan_privacy = run_plan.plan.privacy
    canary_rows = plan_privacy.max_per_unit if plan_privacy.unit == "user" else 1
    rare_words = top_n_list("en", RARE_WORDS)[RARE_WORDS // 2 :]
    return make_canaries(private, run_plan.task.task.labels, rare_words, settings.canaries, rng, row_count=canary_rows)


def _choose_home(canary: Canary, parties: Sequence[str]) -> str:
    """Returns the party in whose records a canary is planted, by a hash of the canary alone."""
    digest = hmac.digest(b"home of a canary", "\0".join(canary.rows.texts).encode("utf-8", "surrogatepass"), "sha256")
    return parties[int.from_bytes(digest[:8], "big") % len(parties)]


class _KnownRecords:
    """The records that the attackers know, as a party holds them.

    Attributes:
        canaries: the records of each canary; ``all_canaries`` holds them in one table.
        near: the tables of each group of real neighbours (``neighbours.Neighbours``); ``aligned``: of invented ones.
    """

    def __init__(
        self, run_plan: RunPlan, canaries: Sequence[Canary], near: Sequence[neighbours.Neighbours], embed: Embed
    ) -> None:
        self.privacy = run_plan.plan.privacy
        self._labels = run_plan.task.task.labels
        self._embed = embed
        self.canaries = [self._hold(canary.rows) for canary in canaries]
        self.all_canaries = self._hold(concatenate([canary.rows for canary in canaries]))
        self.near = [[self._hold(table) for table in tables] for tables in near]
        aligned_tables = neighbours.aligned_neighbours(self._labels, self.privacy)
        self.aligned = [[self._hold(table) for table in tables] for tables in aligned_tables]

    def _hold(self, rows: Table) -> PrivateRecords:
        return PrivateRecords(rows, self._labels, self.privacy, key=bytes(32), embed=self._embed)


class _SumAttack:
    """The attack on one opened sum.

    Where units are sub-sampled their coins are unknown: the canaries' contributions then count at the sampling rate,
    and what is left of the others adds to the noise.
    """

    def __init__(
        self, noisy_sum: NoisySum, name: str, watched: _WatchedComputation, records: _KnownRecords, quorum: Quorum
    ) -> None:
        self.planned, self._public = watched.sums[name]
        self._name = name
        self._noisy_sum = noisy_sum
        self._records = records
        self._shares = watched.noise.shares[name]
        self._full_sum = _without_sampling(self.planned)
        self._survivor_count = len(noisy_sum.survivors)
        if self._survivor_count != len(watched.vectors[name]):
            raise InternalError(
                f"{name}: the vectors of {self._survivor_count} parties are in the sum,"
                f" {len(watched.vectors[name])} were watched"
            )
        vectors, unsampled_vectors = zip(*watched.vectors[name].values(), strict=True)
        self._entered, self._unsampled = np.sum(vectors, axis=0), np.sum(unsampled_vectors, axis=0)
        self._parties = quorum.parties
        self._planned_noise = noise_plan(
            self.planned.drawn_sigma_integer,
            quorum.parties,
            quorum.tolerated_dropouts,
            quorum.noise_colluders,
            self.planned.law,
        )
        self._rows = np.array(
            [
                grid_vectors.grid_vector(
                    self._full_sum, canary_records, self._public, records.privacy, coins=bytes(32), memory={}
                ).values
                for canary_records in records.canaries
            ],
            dtype=np.float64,
        )

    @property
    def weight(self) -> float:
        """The plan's measure of what the sum may tell of one unit: L2 sensitivity over sigma."""
        return self.planned.l2 / self.planned.sigma

    def score(self, present: Bools) -> tuple[Float64, Float64, Float64]:
        """Returns both attackers' scores of each canary, and the signal of its contribution."""
        planned_sum = self.planned
        residual = (self._noisy_sum.values - planned_sum.sampling_rate * self._unsampled) / planned_sum.sigma_integer
        attack_view = self._rows / planned_sum.sigma_integer, residual, present, planned_sum.sampling_rate
        scores, signals = whole_scores(*attack_view)
        return scores, orthogonal_scores(*attack_view)[0], planned_sum.sampling_rate * signals

    def largest_ratio(self) -> float:
        """Returns the largest norm, over its declared bound, of the canaries' vectors and of moves to a neighbour."""
        record_privacy = self._records.privacy
        # Invented neighbours may hold more records than the task allows a party.
        roomy_privacy = replace(record_privacy, max_records=max(record_privacy.max_records, 2 * max(neighbours.CROWDS)))
        align_rows = partial(neighbours.aligned_rows, self._full_sum.build())
        group_moves = [
            neighbours.moves(self._full_sum, neighbour_group, self._public, record_privacy)
            for neighbour_group in self._records.near
        ]
        group_moves += [
            neighbours.moves(self._full_sum, group, self._public, roomy_privacy, align_rows)
            for group in self._records.aligned
        ]
        bounds = _declared_bounds(self.planned)
        return max(_ratio_to_bounds(vector, bounds) for vector in (*self._rows, *np.concatenate(group_moves)))

    def clamps(self) -> list[float]:
        """Returns the norms of clamped vectors over their declared bounds (:func:`clamped_shares`)."""
        held_records = self._records
        return clamped_shares(
            self.planned, held_records.canaries[0], held_records.all_canaries, self._public, held_records.privacy
        )

    def noise_size(self) -> NoiseSize | None:
        """Returns the size of the noise in the sum; None where it is too small for its law to be seen."""
        noise_values = self._noisy_sum.values - self._entered
        noise_law = self.planned.law
        noise_magnitudes = np.abs(noise_values.astype(np.float64))
        if noise_law == "gaussian":
            variance = float(self._planned_noise.opened_variance(self._parties - self._survivor_count))
            normal_scores = noise_checks.gaussian_scores(noise_values, variance)
            return NoiseSize(
                noise_law, len(noise_values), float(noise_magnitudes @ noise_magnitudes) / variance, normal_scores
            )
        drawn_scale = laplace_scale(self.planned.drawn_sigma_integer)
        if drawn_scale < SMALLEST_LAPLACE:
            return None
        shares_in_sum = self._survivor_count * (1.0 / self._planned_noise.honest_survivors)
        normal_scores = noise_checks.laplace_scores(noise_values, drawn_scale, shares_in_sum)
        return NoiseSize(noise_law, len(noise_values), float(noise_magnitudes.sum()) / drawn_scale, normal_scores)

    def add_share_shapes(self, shapes: dict[str, noise_checks.Shape]) -> None:
        """Adds the shape of each part of each party's noise share to ``shapes``."""
        for party, watched_share in enumerate(self._shares.values(), 1):
            noise_share = watched_share.under(self._planned_noise)
            for part_name, draw in noise_share.draws.items():
                shapes[f"{self._name}, party {party}{part_name}"] = noise_checks.shape_of(draw.scores)
            total_shape = noise_checks.shape_of(noise_share.total.scores[noise_share.zeros])
            noise_watch.add_evidence(shapes, self._name + ZERO, total_shape)

    def check_subsample(self, are_independent: Callable[[float], bool]) -> tuple[bool, bool]:
        """Returns whether the coins are secret and independent, and whether they take the planned share of units."""
        if self.planned.sampling_rate == 1.0:
            return True, True
        is_secret, is_planned_share = subsample_is_sound(self.planned, self._public, self._records.privacy)
        are_sound = is_secret and (not is_planned_share or are_independent(self.planned.sampling_rate))
        return are_sound, is_planned_share or not is_secret


def _attack_sums(
    run_plan: RunPlan,
    watched: _WatchedComputation,
    opened_sums: Mapping[str, NoisySum],
    canaries: Sequence[Canary],
    present: Bools,
    embed: Embed,
    near: Sequence[neighbours.Neighbours],
) -> Observations:
    """Attacks all opened sums for every canary, with the weights of the plan. Does not attack the corpus.

    A sum weighs as much as the plan lets it tell of one unit, so that the weighted score of an absent canary is N(0, 1)
    however its own contributions turn out.
    """
    known_records = _KnownRecords(run_plan, canaries, near, embed)
    scores, orthogonal, signals = (np.zeros(len(canaries)) for _ in range(3))
    noise_by_sum: dict[str, NoiseSize] = {}
    shape_by_name: dict[str, noise_checks.Shape] = {}
    bound_ratios = [0.0]
    clamp_ratios = []
    attack_weights = []
    unsound_coins = watched.repeated_coins()
    wrong_rates = set()
    are_independent = cache(lambda rate: coins_are_independent(rate, known_records.privacy))
    for name, noisy_sum in opened_sums.items():
        sum_attack = _SumAttack(noisy_sum, name, watched, known_records, run_plan.plan.quorum)
        sum_scores, sum_orthogonal, sum_signals = sum_attack.score(present)
        scores += sum_attack.weight * sum_scores
        orthogonal += sum_attack.weight * sum_orthogonal
        signals += sum_attack.weight * sum_signals
        attack_weights.append(sum_attack.weight)
        if (noise_size := sum_attack.noise_size()) is not None:
            noise_by_sum[name] = noise_size
        sum_attack.add_share_shapes(shape_by_name)
        bound_ratios.append(sum_attack.largest_ratio())
        clamp_ratios += sum_attack.clamps()
        has_sound_coins, has_planned_rate = sum_attack.check_subsample(are_independent)
        if not has_sound_coins:
            unsound_coins.add(name)
        if not has_planned_rate:
            wrong_rates.add(name)
    deviation = math.sqrt(sum(attack_weight * attack_weight for attack_weight in attack_weights))
    return Observations(
        present,
        scores / deviation,
        orthogonal / deviation,
        signals / deviation,
        {},
        noise_by_sum,
        max(bound_ratios),
        (min(clamp_ratios), max(clamp_ratios)),
        (
            *(f"{name}: the coins of its subsample are not secret and independent" for name in sorted(unsound_coins)),
            *(f"{name}: its subsample takes another share of the units than planned" for name in sorted(wrong_rates)),
            *([noise_watch.ADVERTISED] if watched.noise.advertised else []),
        ),
        shape_by_name,
        watched.noise.likenesses,
    )


def clamped_shares(
    planned: PlannedSum, unit: PrivateRecords, units: PrivateRecords, public: PublicInputs, privacy: Privacy
) -> list[float]:
    """Computes vectors of rows far outside their bounds, and returns each vector's norm over its declared bound.

    These ratios are about 1 in a sound build, and never more. The vectors are of one ``unit`` with rows of one large
    coordinate, upwards and downwards, and with large rows; and of a party with more ``units`` than it may count.
    """
    planned = _without_sampling(planned)
    probe_coordinate = PROBE_ROW_SCALE * planned.linf
    bounds = _declared_bounds(planned)
    largest_coordinate = bounds[2] / privacy.norm_factor  # coordinate of one clamped row

    def clamp_ratio(records: PrivateRecords, row: sp.csr_array[Any], allowed: Privacy, bound: Float64) -> float:
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

    single_row = sp.csr_array(([probe_coordinate], ([0], [0])), shape=(1, planned.dimension))
    clamped_ratios = [
        *(clamp_ratio(unit, row, privacy, bounds) for row in (single_row, -single_row)),
        clamp_ratio(units, single_row, replace(privacy, max_records=1), np.array([np.inf, np.inf, largest_coordinate])),
    ]
    flat_ratio = clamp_ratio(unit, sp.csr_array(np.full((1, planned.dimension), probe_coordinate)), privacy, bounds)
    # Rounding toward zero leaves little of coordinates of a few integer units: a small ratio is no finding there.
    return [
        *(
            clamped_ratios
            if largest_coordinate >= FEWEST_UNITS
            else (max(clamped_ratio, 1.0) for clamped_ratio in clamped_ratios)
        ),
        max(flat_ratio, 1.0),
    ]


def _declared_bounds(planned: PlannedSum) -> Float64:
    """Returns the L1, L2 and Linf sensitivity that the plan declares, in integer units."""
    return np.array([planned.l1, planned.l2, planned.linf]) * planned.scale


def _ratio_to_bounds(vector: Float64, bounds: Float64) -> float:
    """Returns the largest of a vector's L1, L2 and Linf norm over its bound."""
    coordinate_sizes = np.abs(vector)
    return float(
        np.max(
            np.array([coordinate_sizes.sum(), np.sqrt(coordinate_sizes @ coordinate_sizes), coordinate_sizes.max()])
            / bounds
        )
    )


def subsample_is_sound(planned: PlannedSum, public: PublicInputs, privacy: Privacy) -> tuple[bool, bool]:
    """Returns whether a party's coins decide who takes part, and whether they take the planned share of the units.

    Each is False for a sound build with a chance of ``COINS_ALARM``. Every unit contributes as much as it may to one
    coordinate. Whatever the other coins are, one unit's coin gives each vector a probability of max(rate, 1 - rate) at
    most. The number of units that take part in all draws is binomial.
    """

    sampling_rate = planned.sampling_rate
    draw_count = max(
        1 + math.ceil(math.log(COINS_ALARM) / math.log(max(sampling_rate, 1.0 - sampling_rate))), FEWEST_COINS
    )
    coordinate_bound = planned.linf / privacy.norm_factor
    if draw_count > MOST_COINS or coordinate_bound * planned.scale < 1.0:
        return True, True  # too few draws, or too small numbers, to accuse anybody
    unit_records = _unit_records(COUNTED_UNITS, privacy)
    unit_rows = sp.csr_array(
        ([coordinate_bound] * len(unit_records), ([*range(len(unit_records))], [0] * len(unit_records))),
        (len(unit_records), planned.dimension),
    )
    privacy_of_units = replace(privacy, max_records=len(unit_records))

    def compute_first_coordinate(planned: PlannedSum) -> int:
        vector = grid_vectors.grid_vector(
            planned,
            unit_records,
            public,
            privacy_of_units,
            coins=os.urandom(32),
            memory={},
            rows=lambda *_: Rows(unit_rows, unit_records.units),
        )
        return int(vector.values[0])

    unit_count = COUNTED_UNITS
    unit_value = compute_first_coordinate(_without_sampling(planned)) / unit_count
    drawn_counts = [round(compute_first_coordinate(planned) / unit_value) for _ in range(draw_count)]
    coin_count = draw_count * unit_count
    count_test = binomtest(min(max(sum(drawn_counts), 0), coin_count), coin_count, sampling_rate)
    return len(set(drawn_counts)) > 1, count_test.pvalue > COINS_ALARM


def coins_are_independent(rate: float, privacy: Privacy) -> bool:
    """Returns False if two of many subsamples are equal, or if two units take part together too often or too rarely.

    A sound build gets False with a chance of ``COINS_ALARM``. Coins of only 20 bits would repeat in 2 000 subsamples.
    """

    pair_count = SUBSAMPLES * (SUBSAMPLES - 1) / 2
    agreement_chance = rate * rate + (1.0 - rate) * (1.0 - rate)  # one unit in two subsamples
    needed_unit_count = math.ceil(math.log(COINS_ALARM / 2 / pair_count) / math.log(agreement_chance))
    unit_records = _unit_records(min(needed_unit_count, MOST_UNITS), privacy)
    subsamples = np.array(
        [grid_vectors.poisson_subsample(unit_records, rate, os.urandom(32)) for _ in range(SUBSAMPLES)]
    )
    if needed_unit_count <= MOST_UNITS and len(np.unique(subsamples, axis=0)) < SUBSAMPLES:
        return False
    rarer_choices = (subsamples if rate <= 0.5 else ~subsamples).astype(np.float32)
    joint_counts = (rarer_choices.T @ rarer_choices)[np.triu_indices(len(unit_records), 1)]
    joint_chance = min(rate, 1.0 - rate) ** 2
    tail_probabilities = np.minimum(
        binom.cdf(joint_counts, SUBSAMPLES, joint_chance), binom.sf(joint_counts - 1, SUBSAMPLES, joint_chance)
    )
    return bool(tail_probabilities.min() > COINS_ALARM / (4 * len(tail_probabilities)))


def _unit_records(count: int, privacy: Privacy) -> PrivateRecords:
    names = tuple(f"unit {number}" for number in range(count))
    return PrivateRecords(Table(names, None, names), (), privacy, key=bytes(32), embed=_refuse_to_embed)


def _refuse_to_embed(texts: Sequence[str]) -> Float32:
    raise InternalError(f"{len(texts)} texts were to be read for a subsample, which depends on no text")


def _without_sampling(planned: PlannedSum) -> PlannedSum:
    return replace(planned, sampling_rate=1.0)
