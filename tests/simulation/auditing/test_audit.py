"""The canary audit: planted records, what their scores prove, and builds that it must catch."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from tests.doubles.pace import examples, slow_but
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.tasks import make_task
from tests.doubles.word_embedding import embed
from tests.noninterference import audit as harness
from tests.noninterference import coordinator as hostile
from tests.noninterference import rounds
from tests.noninterference.bodies import QUIET
from tests.noninterference.public_examples import well_formed
from tests.noninterference.questions import LABELS, NAMES, facts_of
from undersong.auditing import noise_checks, verdict
from undersong.auditing import run as module
from undersong.auditing.attacks import CERTAINTY, ENTROPY, SIMILARITY, TRIPLES, Detection, attack_corpus
from undersong.auditing.canaries import KINDS, Canary, make_canaries, planted
from undersong.auditing.noise_watch import NoiseDraw, known_noise
from undersong.auditing.verdict import AuditSettings, NoiseSize, Observations, report
from undersong.run import simulation
from undersong.run.options import SimulationOptions
from undersong_client.answering import grid_vectors
from undersong_client.answering.party import Party
from undersong_client.records import private
from undersong_client.records.private import PrivateRecords
from undersong_client.storage.attempts import Attempts
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.models.embedding import Embedder
from undersong_common.privacy import noise
from undersong_common.privacy.accounting import Gaussian, gaussian_mu
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.stream import KeyStream
from undersong_common.text.table import Table
from undersong_protocol.agreement.plan import Privacy
from undersong_protocol.secagg import noise_share
from undersong_protocol.secagg import party as secagg_party
from undersong_protocol.secagg.noise_share import NoiseSeeds
from undersong_protocol.statistics import PublicInputs, contribution
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.interface import Rows
from undersong_protocol.statistics.vectors import GridVector, NoisyVector
from undersong_protocol.wire.messages import secagg_pb2 as secagg
from undersong_server.pool import Sample
from undersong_server.progress import Silent
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import RunPlan, plan_run

pytestmark = pytest.mark.heavy

CLINIC = Path(__file__).resolve().parents[3] / "examples" / "clinic" / "task.toml"
WORDS = [f"rare{number}" for number in range(400)]
PRIVATE = Table(
    ("chest pain since noon and short of breath", "fell from a ladder"), ("cardiac", "injury"), ("p1", "p2")
)


@pytest.mark.parametrize("signal", [0.0, 0.5, 2.0, 4.0])
def test_attack_power_is_the_largest_share_of_planned_noise_it_refutes(signal):
    from scipy.stats import norm

    detection, signals = Detection(0, 1, 0, 1, (0.5,), (0.0,), (0.0,)), np.array([signal, 2 * signal])
    shares = np.geomspace(1.0, verdict.LEAST_NOISE, 50)
    right = np.mean([norm.cdf(each / 2 / shares) for each in signals], axis=0)
    for least in (0.4, 0.55, 0.9, 0.999, 1.1):
        first = next((share for share, found in zip(shares, right, strict=True) if found >= least), None)
        assert verdict._attack_power(detection, signals, lambda each: each.right[0] >= least) == first  # noqa: B023


def test_audit_detects_a_canary_of_little_signal_by_half_of_that_signal() -> None:
    mu = gaussian_mu(4.0, 1e-5)
    weak = concluded(observed(0.4 * mu, 0.1, runs=100)).verdicts[0].detection
    assert weak.hits / weak.present > 0.9 > 0.1 > weak.false_alarms / weak.absent


def test_every_kind_of_canary_is_planted_at_one_party() -> None:
    made = make_canaries(PRIVATE, ["cardiac", "injury"], WORDS, 8, np.random.default_rng(0), row_count=3)
    assert [canary.kind for canary in made] == [*KINDS, *KINDS]
    assert all(len(set(canary.rows.texts)) == 1 and len(canary.rows) == 3 for canary in made)
    assert len({canary.rows.users for canary in made}) == 8
    assert not any(canary.rows.texts[0] in repr(canary) for canary in made)
    word_counts = {canary.kind: len(set(canary.rows.texts[0].split())) for canary in made}
    assert (word_counts["far off"], word_counts["many words"]) == (30, 120)
    tables = planted({"a": PRIVATE, "b": PRIVATE}, made[:2], ["b", "b"])
    assert (len(tables["a"]), len(tables["b"])) == (2, 8)
    assert tables["b"].users is not None
    assert set(tables["b"].users) == {"p1", "p2", "canary-0", "canary-1"}


def observed(
    mu: float, noise: float, *, runs: int = 24, canaries: int = 40, largest: float = 1.0
) -> list[Observations]:
    """What runs show whose scores move by ``mu`` planned deviations and whose noise is ``noise`` of the planned."""
    rng = np.random.default_rng(5)
    found = []
    for _ in range(runs):
        present = rng.random(canaries) < 0.5
        scores = present * mu + noise * rng.normal(size=canaries)
        corpus = {"chance": rng.normal(size=canaries)}
        drawn = (noise * rng.normal(size=5000)).astype(np.float32)
        noises = {"votes": NoiseSize("gaussian", 5000, float(drawn @ drawn), drawn)}
        found.append(Observations(present, scores, scores, np.full(canaries, mu), corpus, noises, largest))
    return found


@cache
def clinic_plan(epsilon: float) -> RunPlan:
    return plan_run(tasks.load(CLINIC, [f"privacy.epsilon={epsilon}"]))


def concluded(observations: list[Observations], epsilon: float = 4.0) -> verdict.AuditReport:
    settings = AuditSettings(CLINIC, (f"privacy.epsilon={epsilon}",))
    return report(settings, clinic_plan(epsilon), observations)


def test_audit_of_simulated_observations_accuses_no_sound_build() -> None:
    found = concluded(observed(gaussian_mu(4.0, 1e-5), 1.0))
    assert found.faults == []
    assert found.verdicts[0].epsilon <= 4.0
    assert found.signal == pytest.approx(1.0)
    assert "nothing refutes the promise" in found.lines()


@pytest.mark.parametrize(("chance", "is_accused"), [(1e-7, False), (1e-9, True)])
def test_small_noise_is_a_fault_if_chance_explains_it_less_than_stated(chance: float, is_accused: bool) -> None:
    """Seven checks of one sum, each from both sides and twice, share an alarm of 1e-6."""
    first, *others = observed(0.0, 1.0, runs=4)
    small = replace(first.noise["votes"], size=float(chi2.ppf(chance, 5000)))
    runs = [replace(first, noise={"votes": small}), *(replace(each, noise={}) for each in others)]
    faults = concluded(runs).faults
    assert ["of the noise's planned deviation" in fault for fault in faults] == [True] * is_accused


@pytest.mark.parametrize(("largest", "is_accused"), [(1.0 + 1e-9, False), (1.001, True)])
def test_sensitivity_beyond_the_declared_one_by_a_thousandth_is_a_fault(largest: float, is_accused: bool) -> None:
    faults = concluded(observed(0.0, 1.0, runs=4, largest=largest)).faults
    assert ["of the declared sensitivity" in fault for fault in faults] == [True] * is_accused


def test_a_doubled_sensitivity_is_caught_by_the_bound_and_by_the_attack() -> None:
    found = concluded(observed(2 * gaussian_mu(4.0, 1e-5), 1.0, runs=100, largest=2.0))
    assert any("of the declared sensitivity" in fault for fault in found.faults)
    assert found.verdicts[0].epsilon > 4.0
    assert any(line.startswith("REFUTED") for line in found.lines())


def test_audit_catches_a_corpus_that_shows_canaries_and_no_chance_match() -> None:
    runs = observed(0.0, 1.0, runs=100)
    shown = [replace(each, corpus={"copies": each.present.astype(np.float64)}) for each in runs]
    found = concluded(shown, 1.0)
    assert found.verdicts[2].epsilon > 1.0
    assert ["epsilon is at least" in fault for fault in found.faults] == [True]
    assert concluded(runs).verdicts[1].epsilon == 0.0


def test_attack_on_the_corpus_is_judged_on_runs_not_used_for_training() -> None:
    of_sums, _, of_corpus = concluded(observed(0.0, 1.0, runs=24)).verdicts
    assert (len(of_sums.detection.right), len(of_corpus.detection.right)) == (24, 12)


def test_each_run_of_each_audit_has_a_simulation_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    class Reached(Exception):
        pass

    def simulated(_run_plan: Any, _workspace: Any, _tables: Any, options: SimulationOptions, *_: Any) -> None:
        seeds.append(options.seed)
        raise Reached

    monkeypatch.setattr(simulation, "simulate", simulated)
    for seed, number in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        with pytest.raises(Reached):
            module.observe(AuditSettings(CLINIC, seed=seed), number)
    assert len(set(seeds)) == 4


def test_attack_by_surest_records_names_one_of_100_absent_records() -> None:
    surest = concluded(observed(0.0, 1.0, runs=100)).verdicts[1].detection
    assert 0.005 < surest.false_alarms / surest.absent < 0.02  # of 2 000, wrong by chance one time in 100, seed 5 fixed


def test_halved_noise_in_one_small_sum_of_many_is_caught() -> None:
    """It moves the deviation of all sums together by 2 %; each sum is looked at, and the alarm divided among them."""
    rng = np.random.default_rng(3)
    runs = observed(0.0, 1.0)
    small = [
        replace(each, noise={**each.noise, "labels": NoiseSize("gaussian", 100, 0.25 * float(rng.chisquare(100)))})
        for each in runs
    ]
    assert concluded(runs).faults == []
    assert ["of the noise's planned deviation" in fault for fault in concluded(small).faults] == [True]


def test_noise_that_two_sums_share_is_caught() -> None:
    runs = observed(0.0, 1.0)
    again = [replace(runs[0], noise={**runs[0].noise, "labels": runs[1].noise["votes"]}), *runs[1:]]
    assert concluded(again).faults == ["run 0, labels and run 1, votes hold the same noise"]


@pytest.mark.parametrize(("sign", "is_known"), [(1, True), (-1, True), (0, False)])
def test_noise_that_others_know_is_found_also_with_its_sign_turned(sign: int, is_known: bool) -> None:
    """Integers of opposite sign are equal nowhere, so that only the scores tell."""
    rng = np.random.default_rng(3)
    draws = [
        NoiseDraw(np.rint(100 * scores).astype(np.int64), scores, 0.004)
        for scores in rng.normal(size=(2, 400)).astype(np.float32)
    ]
    known = NoiseDraw(sign * draws[0].values, sign * draws[0].scores, 0.004) if sign else draws[1]
    assert known_noise({"a seed": draws[0].likeness(known)}, 1e-6) == ["a seed"] * is_known


Noises = Callable[[np.random.Generator], list[np.ndarray[Any, Any]]]


def normals(rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    return [rng.normal(size=400) for _ in range(64)]


def on_some(factor: float, kept: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Noises:
    """More noise on some coordinates, and none on the others: the sum of squares is right."""
    return lambda rng: [factor * each * kept(np.arange(400)) for each in normals(rng)]


def shifted(rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    once = rng.normal(size=464)
    return [once[64 - run : 464 - run] * (-1) ** run for run in range(64)]


TAILS = "the noise has no tails"
PLACES, LAW, WITHIN, BETWEEN = (
    *("the noise is too small or large in a block of coordinates", "the noise is not of the planned law"),
    *("the noise repeats within the sum", "hold the same noise"),
)


@pytest.mark.parametrize(
    ("noises", "words"),
    [
        pytest.param(normals, set(), id="sound"),
        pytest.param(on_some(math.sqrt(2), lambda at: at < 200), {PLACES, LAW}, id="half"),
        pytest.param(on_some(math.sqrt(7), lambda at: at % 7 == 3), {PLACES, LAW}, id="every seventh"),
        pytest.param(lambda rng: [np.sign(each) for each in normals(rng)], {LAW, TAILS}, id="two points"),
        pytest.param(lambda rng: [np.tile(each[:200], 2) for each in normals(rng)], {WITHIN}, id="tiled"),
        pytest.param(lambda rng: [np.tile(each[:50], 8) for each in normals(rng)], {WITHIN}, id="tiled eight times"),
        pytest.param(shifted, {BETWEEN}, id="shifted"),
        pytest.param(lambda rng: [rng.laplace(size=400) / math.sqrt(2) for _ in range(64)], {LAW}, id="other law"),
        pytest.param(lambda rng: [np.clip(each, -2.0, 2.0) for each in normals(rng)], {LAW, TAILS}, id="without tails"),
    ],
)
def test_audit_catches_noise_of_the_right_size_that_is_not_as_planned(noises: Noises, words: set[str]) -> None:
    """A sound build is accused with a chance of 1e-6; 64 runs of one sum of 400 coordinates."""
    drawn = [each.astype(np.float32) for each in noises(np.random.default_rng(11))]
    runs = [
        replace(run, noise={"votes": NoiseSize("gaussian", 400, float(each @ each), each)})
        for run, each in zip(observed(0.0, 1.0, runs=64), drawn, strict=True)
    ]
    faults = concluded(runs).faults
    assert all(any(word in fault for fault in faults) for word in words), faults
    assert bool(faults) == bool(words), faults


@pytest.mark.parametrize("shares", [0.25, 1.0, 1.5])
@pytest.mark.parametrize("scale", [10.0, 300.0])
def test_scores_of_sound_noise_are_standard_normals(scale: float, shares: float) -> None:
    """Wrong once in 1e6 for each."""
    laplace = noise.DiscreteLaplaceShare(scale, 4).sample(KeyStream(bytes(32)), round(40_000 * shares * 4))
    sums = laplace.reshape(-1, round(4 * shares)).sum(axis=1)
    gaussian = noise.DiscreteGaussian(scale / 3).sample(KeyStream(bytes(32)), 40_000)
    shapes = {
        "laplace": noise_checks.shape_of(noise_checks.laplace_scores(sums, scale, shares)),
        "gaussian": noise_checks.shape_of(noise_checks.gaussian_scores(gaussian, (scale / 3) ** 2)),
    }
    assert noise_checks.other_law(shapes, 1e-6) == noise_checks.uneven(shapes, 1e-6) == []
    wrong = {"laplace": noise_checks.shape_of(noise_checks.laplace_scores(sums, 1.3 * scale, shares))}
    assert noise_checks.other_law(wrong, 1e-6) == ["laplace"]


def test_the_audit_says_which_epsilon_it_could_have_refuted() -> None:
    mu = gaussian_mu(4.0, 1e-5)
    few, many = concluded(observed(mu, 1.0, runs=16)), concluded(observed(mu, 1.0, runs=100))
    assert few.refutable_by_attack is None  # as so few runs cannot, however often the attack is right
    assert few.verdicts[0].most < 4.0 < many.verdicts[0].most
    assert many.refutable_by_attack is not None
    assert many.refutable_by_noise is not None
    assert 4.0 < many.refutable_by_noise < 4.2 < many.refutable_by_attack < 12.0
    assert any("none by the first attack" in line for line in few.lines())
    # What it names, it refutes: a build of that epsilon, with some luck to spare.
    share = mu / gaussian_mu(1.3 * many.refutable_by_attack, 1e-5)
    assert concluded(observed(mu, share, runs=100)).verdicts[0].epsilon > 4.0


@pytest.mark.slow
def test_largest_provable_epsilon_is_that_of_perfect_guesses() -> None:
    for each in concluded(observed(gaussian_mu(4.0, 1e-5), 1.0, runs=100)).verdicts[:2]:
        assert each.epsilon < each.most
    for each in concluded(observed(100.0, 0.01, runs=100)).verdicts[:2]:
        assert each.epsilon == each.most > 4.0


def test_false_alarm_rate_is_divided_among_all_attackers() -> None:
    one, five = observed(0.0, 1.0), observed(0.0, 1.0)
    five = [replace(each, corpus={str(number): each.corpus["chance"] for number in range(4)}) for each in five]
    assert concluded(one).verdicts[0].detection.alarm == pytest.approx(1e-3 / 3)
    assert [verdict.detection.alarm for verdict in concluded(five).verdicts] == pytest.approx([1e-3 / 6] * 6)


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [("privacy.epsilon=inf", "promises nothing"), ('privacy.unit="party"', "a canary would be a whole party")],
)
def test_task_that_cannot_be_audited_is_refused(assignment: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        module.audit(AuditSettings(CLINIC, (assignment,)), Silent())


@pytest.mark.slow
def test_audit_finds_no_fault_in_real_runs_of_the_clinic() -> None:
    """Four real simulations: planned noise, planned sensitivity, and no attack beyond the promise."""
    settings = AuditSettings(CLINIC, ("method.samples=120", "method.rounds=3"), runs=4, canaries=8)
    found = module.audit(settings, Silent())
    assert found.faults == []
    assert found.largest == pytest.approx(1.0, abs=1e-3)
    assert found.noise is not None
    assert found.noise[0] == pytest.approx(1.0, abs=0.45)  # wrong once in 20 000: 104 coordinates, 8 in one sum


def test_the_corpus_is_attacked_by_its_texts_and_by_the_task_model() -> None:
    table = Table(
        ("red kite over the hill", "blue boat on the lake", "a stranger's note"), ("hill", "lake", "lake"), None
    )
    canaries = [Canary("twin", table.take([row])) for row in range(3)]
    written = [
        Sample(text, label, "g", 0, "zero_shot")
        for text, label in [("Red kite over the moor", "hill"), ("blue boat on the lake", "lake")] * 5
    ]
    found = attack_corpus(written, canaries, ["hill", "lake"], embed)
    assert found[TRIPLES].tolist() == pytest.approx([2 / 3, 1.0, 0.0])
    assert found[SIMILARITY][1] == pytest.approx(1.0, abs=1e-5)
    for name in (SIMILARITY, CERTAINTY, ENTROPY):
        assert found[name].argmin() == 2, name
    assert set(attack_corpus(written, canaries, [], embed)) == {SIMILARITY, TRIPLES}
    nothing = attack_corpus([], canaries, ["hill", "lake"], embed)
    assert set(nothing) == set(found)
    assert not any(scores.any() for scores in nothing.values())


PRIVACIES = [
    Privacy(4.0, 1e-4),
    Privacy(4.0, 1e-4, "user", 3),
    Privacy(4.0, 1e-4, "user", 3, "sum", max_records=9),
]


@pytest.mark.parametrize("privacy", PRIVACIES, ids=["sample", "mean", "sum"])
@pytest.mark.parametrize("name", slow_but(NAMES, ["label_histogram", "embedding_sum"]))
def test_audit_accuses_no_sound_clipping_or_subsampling(name: str, privacy: Privacy) -> None:
    """Every registered statistic: rows outside the bound leave the bound, and coins decide."""
    texts = tuple(f"note {row}" for row in range(12))
    table = Table(texts, ("good",) * 12, tuple(f"user {row // 3}" for row in range(12)))
    unit, units = (
        PrivateRecords(part, LABELS, privacy, key=bytes(32), embed=embed)
        for part in (table.take([0] if privacy.unit == "sample" else [0, 1, 2]), table)
    )

    @settings(QUIET, max_examples=examples(1, 3), phases=[Phase.generate])
    @given(data=st.data())
    def tried(data: st.DataObject) -> None:
        statistic = data.draw(well_formed(name, facts_of(LABELS))).statistic
        planned = hostile.plan((statistic,), privacy, 3, 1.0).sums[0]
        shares = module.clamped_shares(planned, unit, units, PublicInputs(), privacy)
        assert min(shares) >= 0.5
        assert max(shares) <= 1.0 + verdict.BOUND_TOLERANCE
        sampled = replace(planned, sampling_rate=0.6)
        assert module.subsample_is_sound(sampled, PublicInputs(), privacy) == (True, True)

    tried()


Patch = Callable[[pytest.MonkeyPatch], None]
PARTIES = 3  # of make_task


def halved_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = noise.DiscreteGaussian._draw
    monkeypatch.setattr(noise.DiscreteGaussian, "_draw", lambda self, words: whole(self, words) // 2)


def rows_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every unit stands in the rows a second time, as a unit of its own."""
    sound = contribute

    def twice(statistic: Any, rows: Rows, **named: Any) -> GridVector:
        every = np.tile(np.arange(len(rows)), 2)
        return sound(statistic, Rows(rows.take(every), np.concatenate([rows.units, rows.units + len(rows)])), **named)

    monkeypatch.setattr(grid_vectors, "contribute", twice)


def rows_that_follow_the_number_of_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is within its bound, and changes its sign with every unit that comes or goes."""
    sound = contribute

    def following(statistic: Any, rows: Rows, **named: Any) -> GridVector:
        sign = (-1.0) ** len(set(rows.units.tolist()))
        other = Rows(lambda asked: rows.take(asked) * sign, rows.units, rows.width or statistic.dimension)
        return sound(statistic, other, **named)

    monkeypatch.setattr(grid_vectors, "contribute", following)


def repeated_texts_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all records of a party with the same text, whosever they are, the first counts alone."""
    sound = private._capped

    def once(table: Table, *named: Any) -> list[int]:
        rows = {text: row for row, text in reversed(list(enumerate(table.texts)))}
        return [row for row in sound(table, *named) if rows[table.texts[row]] == row]

    monkeypatch.setattr(private, "_capped", once)


def no_clamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit's rows count as they are, however long."""
    monkeypatch.setattr(contribution, "_clip_rows", lambda _statistic, matrix: matrix)
    add: Any = contribution._add_rounded
    unbounded = (math.inf, math.inf, math.inf)
    monkeypatch.setattr(contribution, "_add_rounded", lambda *given: add(*given[:4], unbounded))


def no_clamp_but_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit's rows are not clamped; one that passes the bound is left out at the end."""
    monkeypatch.setattr(contribution, "_clip_rows", lambda _statistic, matrix: matrix)


def no_cap_on_records(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = contribute
    monkeypatch.setattr(
        grid_vectors, "contribute", lambda *given, **named: sound(*given, **{**named, "max_records": None})
    )


def same_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Attempts.new
    monkeypatch.setattr(Attempts, "new", lambda *given: replace(new(*given), coins=bytes(32)))


def coins_of_sixteen_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = grid_vectors.poisson_subsample
    monkeypatch.setattr(grid_vectors, "poisson_subsample", lambda records, rate, coins: sound(records, rate, coins[:2]))


def one_coin_of_two_units(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = grid_vectors.poisson_subsample

    def paired(records: PrivateRecords, rate: float, coins: bytes) -> Any:
        taken = sound(records, rate, coins)
        even = len(taken) // 2 * 2
        taken[1:even:2] = taken[0:even:2]
        return taken

    monkeypatch.setattr(grid_vectors, "poisson_subsample", paired)


def twice_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = grid_vectors.poisson_subsample
    monkeypatch.setattr(
        grid_vectors,
        "poisson_subsample",
        lambda records, rate, coins: sound(records, 1.0 - (1.0 - rate) / 2.0, coins),
    )


def one_noise_of_all_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every party draws the same noise, so that their shares add up to more, and anybody can take it away."""
    sound = noise_share.add_noise
    monkeypatch.setattr(
        secagg_party, "add_noise", lambda grid, plan, seeds: sound(grid, plan, NoiseSeeds(bytes(32), seeds.root))
    )


def each_share(change: Callable[[np.ndarray[Any, Any], int], np.ndarray[Any, Any]]) -> Patch:
    """Parties add another noise than they drew; ``change`` has the number of shares drawn before."""

    def planted(monkeypatch: pytest.MonkeyPatch) -> None:
        sound, drawn = noise_share.add_noise, count()

        def other(grid: GridVector, plan: Any, seeds: NoiseSeeds) -> NoisyVector:
            share = sound(grid, plan, seeds).values - grid.values
            return NoisyVector(grid.values + np.rint(change(share, next(drawn))).astype(np.int64))

        monkeypatch.setattr(secagg_party, "add_noise", other)

    return planted


def noise_of_seeds_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each party has one noise, which it shifts by one coordinate from sum to sum."""
    sound, drawn = noise_share.add_noise, count()

    def again(grid: GridVector, plan: Any, _seeds: NoiseSeeds) -> NoisyVector:
        number, party = divmod(next(drawn), PARTIES)
        share = sound(grid, plan, NoiseSeeds(bytes([party]) * 32, bytes(32))).values - grid.values
        return NoisyVector(grid.values + np.roll(share, number))

    monkeypatch.setattr(secagg_party, "add_noise", again)


def a_cheap_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    charge = Ledger.charge
    free = (Gaussian(1e6),)
    monkeypatch.setattr(
        Ledger, "charge", lambda self, of, **named: charge(self, replace(of, events=free, alone=free), **named)
    )


def halved_laplace(monkeypatch: pytest.MonkeyPatch) -> None:
    share = noise.DiscreteLaplaceShare
    monkeypatch.setattr(noise_share, "DiscreteLaplaceShare", lambda scale, parties: share(scale / 2, parties))


WASP = 'name = "wasp"\nsamples = 24\nrounds = 3\nvotes = 3\nexamples = 4\nshortlist = 4'
USERS = WASP + '\n--set privacy.unit="user"\n--set privacy.max_per_user=3'
TEACHERS = (
    'name = "discriminator"\nsamples = 24\nteachers = 13\ndiscriminator = "teachers"\nqueries = 10\ncontrast = 10'
)
LARGE = WASP.replace("24", "400")
LAPLACE = 'name = "dpkps"\nnoise = "laplace"\nsamples = 24\nfalse_terms = 1'
SAMPLED = 'name = "dpga"\npopulation = 16\nelite = 4\nrounds = 2\nkeywords = false\nembedding_size = 48'


@pytest.fixture
def small(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AuditSettings:
    """An audit of a small task whose embedder has no weights; the test names its method's section, and other keys."""
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    monkeypatch.setattr(module, "_load_embedder", cache(module._load_embedder.__wrapped__))
    task = make_task(tmp_path / "task", records=12)
    method, *keys = request.param.split("\n--set ")
    whole = re.sub(r"(?<=\[method\]\n)[^\[]*", method + "\n", task.read_text(encoding="utf-8"))
    task.write_text(whole, encoding="utf-8")
    return AuditSettings(task, tuple(keys), runs=2, canaries=8)


def audited_here(settings: AuditSettings) -> verdict.AuditReport:
    """The audit of real runs in this process, where it is broken."""
    run_plan = plan_run(tasks.load(settings.task_file, list(settings.assignments)))
    runs = [module.observe(settings, number) for number in range(settings.runs)]
    return report(settings, run_plan, runs)


MOVED = "of the declared sensitivity: it counts too much, or the rows of others depend on it"
CLAMP = "rows outside their bound are not clamped"
FOLLOWS = "a party's noise follows from"
TOO_LITTLE, TOO_MUCH = "of the noise's planned deviation", "its shares are not independent"
NOISE = {PLACES, LAW, TAILS, WITHIN, BETWEEN, FOLLOWS, TOO_LITTLE, TOO_MUCH}


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("small", "patch", "words"),
    [
        pytest.param(WASP, halved_noise, {TOO_LITTLE}, id="noise halved"),
        pytest.param(
            WASP, rows_counted_twice, {"one unit moves a vector by 2 of", CLAMP}, id="a row counted twice", marks=SLOW
        ),
        pytest.param(
            WASP, rows_that_follow_the_number_of_units, {MOVED}, id="rows that follow the number of units", marks=SLOW
        ),
        pytest.param(WASP, repeated_texts_removed, {MOVED}, id="the first of equal texts counts", marks=SLOW),
        pytest.param(USERS, repeated_texts_removed, {MOVED}, id="equal texts of several patients", marks=SLOW),
        pytest.param(WASP, no_clamp, {CLAMP}, id="no clamp"),
        pytest.param(WASP, no_clamp_but_the_last, {CLAMP}, id="no clamp but the last", marks=SLOW),
        pytest.param(WASP, no_cap_on_records, {CLAMP}, id="no cap on records", marks=SLOW),
        pytest.param(
            SAMPLED, same_coins, {"the coins of its subsample are not secret"}, id="the same coins", marks=SLOW
        ),
        pytest.param(SAMPLED, coins_of_sixteen_bits, {"not secret and independent"}, id="coins of 16 bits", marks=SLOW),
        pytest.param(
            SAMPLED, one_coin_of_two_units, {"not secret and independent"}, id="one coin of two units", marks=SLOW
        ),
        pytest.param(SAMPLED, twice_the_rate, {"another share of the units"}, id="more are sampled", marks=SLOW),
        pytest.param(LARGE, one_noise_of_all_parties, {TOO_MUCH}, id="one noise of all parties", marks=SLOW),
        pytest.param(WASP, a_cheap_charge, {"its ledger charged less"}, id="a charge below the price", marks=SLOW),
        pytest.param(LAPLACE, halved_laplace, {TOO_LITTLE}, id="laplace noise halved", marks=SLOW),
        pytest.param(
            LARGE,
            each_share(lambda share, _: share * math.sqrt(2) * (np.arange(len(share)) < len(share) // 2)),
            {PLACES, LAW},
            id="noise on half of the coordinates",
            marks=SLOW,
        ),
        pytest.param(
            LARGE,
            each_share(lambda share, _: np.tile(share[: len(share) // 2], 2)),
            {WITHIN},
            id="noise tiled",
            marks=SLOW,
        ),
        pytest.param(LARGE, noise_of_seeds_again, {BETWEEN}, id="noise of seeds again, shifted", marks=SLOW),
        pytest.param(LARGE, None, set(), id="sound, large", marks=SLOW),
        pytest.param(LAPLACE, None, set(), id="sound, laplace", marks=SLOW),
        pytest.param(TEACHERS, None, set(), id="sound, teachers of shards", marks=SLOW),
        pytest.param(USERS, None, set(), id="sound, by patient", marks=SLOW),
        pytest.param(WASP, None, set(), id="sound"),
        pytest.param(SAMPLED, None, set(), id="sound, sub-sampled", marks=SLOW),
    ],
    indirect=["small"],
)
def test_audit_catches_planted_faults_in_real_runs(
    small: AuditSettings, monkeypatch: pytest.MonkeyPatch, patch: Patch | None, words: set[str]
) -> None:
    """A sound build is accused with a chance of 1e-3 by the attacks together, 1e-6 by the noise and 1e-9 by coins."""
    if patch is not None:
        patch(monkeypatch)
    faults = audited_here(small).faults
    expected = words | NOISE if words & NOISE else words  # wrong noise shows in more than one way
    assert all(any(word in fault for word in expected) for fault in faults), faults
    assert all(any(word in fault for fault in faults) for word in words), faults


@pytest.mark.slow
def test_audit_catches_a_refusal_that_depends_on_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = examples(1, 15)
    found = rounds.play("one sum of label_histogram", examples=tried, seed=1)
    assert found.found == ""
    assert found.examples == tried
    assert found.vectors > 0

    step = Party._sum_step

    def many(party: Party) -> bool:
        computation: Any = party.computation
        return len(computation.data.table) > 5

    def speaking(self: Party, message: Any, timing: Any) -> Any:
        if secagg.Request.FromString(message.payload).WhichOneof("stage") == "mask" and many(self):
            raise PrivacyRefusal("too many records")
        return step(self, message, timing)

    monkeypatch.setattr(Party, "_sum_step", speaking)
    spoken = rounds.play("one sum of label_histogram", examples=tried, seed=1)
    assert spoken.found.startswith("sum_step")
    concluding = harness.WholeReport(**vars(concluded(observed(0.0, 1.0))), played=(spoken,))
    assert [fault.startswith("one sum of label_histogram: ") for fault in concluding.faults] == [True]
    assert concluding.to_json()["played"][0]["body"] == "one sum of label_histogram"
    assert any("a hostile coordinator sent" in line for line in concluding.lines())


def test_noninterference_plays_of_an_audit_follow_from_the_plan() -> None:
    assert rounds.bodies_of(["top_q_votes", "top_q_votes", "unheard of"]) == [
        *("conversations", "one subsample"),
        *("one sum of top_q_votes", "one unit of top_q_votes", "one aligned unit of top_q_votes"),
    ]


def test_audit_in_a_checkout_plays_the_noninterference_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def played(body: str, *, examples: int, seed: int) -> rounds.Played:
        given[body] = {"examples": examples, "seed": seed}
        return rounds.Played(body, examples, 1, 1, "")

    monkeypatch.setattr(rounds, "play", played)
    monkeypatch.setattr(harness, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    monkeypatch.setattr(module, "audit", lambda *_: concluded(observed(0.0, 1.0)))
    monkeypatch.setattr(sys, "argv", ["audit", str(CLINIC), "--examples", "7", "--seed", "3", "--quiet"])
    with pytest.raises(SystemExit) as ended:
        harness.main()
    assert ended.value.code in (None, 0)
    assert {"conversations", "one subsample"} < set(given)
    assert all(each == {"examples": 7, "seed": 3} for each in given.values())


def test_audit_of_few_runs_says_what_it_cannot_show() -> None:
    few, default = (
        concluded(observed(0.0, 1.0, runs=runs)) for runs in (verdict.DEFAULT_RUNS - 1, verdict.DEFAULT_RUNS)
    )
    assert default.unseen == ()
    assert few.unseen[0] in few.lines()
