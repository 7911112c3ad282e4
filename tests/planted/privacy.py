"""Mistakes that somebody could make where privacy is made, each with the change that makes it and who must notice it.

``undersong audit`` must notice each of "A" in four runs and each of "B" in 64, its default; the non-interference
harness each of "H". What is marked with none of them is harmless, and nobody may accuse it.
"""

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from undersong_client.answering import grid_vectors
from undersong_client.records import private
from undersong_client.storage.attempts import Attempts
from undersong_protocol.secagg import noise_share
from undersong_protocol.secagg import party as secagg_party
from undersong_protocol.secagg.noise_share import NoisePlan, NoiseSeeds
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.statistics import contribution
from undersong_protocol.statistics.interface import Rows, Sensitivity
from undersong_protocol.statistics.vectors import GridVector, NoisyVector

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mistake:
    """One planted mistake.

    Attributes:
        change: plants it.
        noticed_by: of "A", "B" and "H", who must notice it.
        task: kind of task under which it is a loss (``audits.TASKS``).
        body, statistic: the harness' conversation that finds it, and about which statistic.
    """

    change: Patch
    noticed_by: str
    task: str = "records"
    body: str = "one_aligned_unit"
    statistic: str = "label_histogram"


MISTAKES: dict[str, Mistake] = {}


def mistake(name: str, noticed_by: str, task: str = "records", **harness: str) -> Callable[[Patch], Patch]:
    """Lists the change that follows under ``name``."""

    def register(change: Patch) -> Patch:
        MISTAKES[name] = Mistake(change, noticed_by, task, **harness)
        return change

    return register


# Noise

Values = np.ndarray[Any, Any]


def share_becomes(change: Callable[[Values, NoisePlan, NoiseSeeds, GridVector], Values]) -> Patch:
    """Parties add another noise than they drew."""

    def planted(monkeypatch: pytest.MonkeyPatch) -> None:
        sound = noise_share.add_noise

        def add_noise(grid: GridVector, plan: NoisePlan, seeds: NoiseSeeds) -> NoisyVector:
            share = sound(grid, plan, seeds).values - grid.values
            return NoisyVector(grid.values + np.rint(change(share, plan, seeds, grid)).astype(np.int64))

        monkeypatch.setattr(secagg_party, "add_noise", add_noise)

    return planted


def seed_becomes(seed: Callable[[PartyMachine, Any, NoiseSeeds, NoisePlan], bytes]) -> Patch:
    """Component 0 is drawn from another seed than its own secret one."""

    def planted(monkeypatch: pytest.MonkeyPatch) -> None:
        def noisy(self: PartyMachine, grid: GridVector, state: Any) -> NoisyVector:
            plan = self._parameters.noise_plan
            seeds = NoiseSeeds(state.secret("noise_own"), state.secret("noise_root"))
            other = NoiseSeeds(hashlib.sha256(seed(self, state, seeds, plan)).digest(), seeds.root)
            return noise_share.add_noise(grid, plan, other)

        monkeypatch.setattr(PartyMachine, "_add_noise_share", noisy)

    return planted


def deviation(plan: NoisePlan) -> float:
    return math.sqrt(plan.share_variance)


def removable(plan: NoisePlan, seeds: NoiseSeeds, length: int) -> Values:
    """Components 1 to D of a share."""
    values = np.zeros(length, dtype=np.int64)
    if plan.removal:
        noise_share.remove_opened(values, plan, 0, seeds.root)
    return -values


def uniform(share: Values, plan: NoisePlan, *_: Any) -> Values:
    reach = deviation(plan) * math.sqrt(3)
    return np.random.default_rng(list(os.urandom(8))).uniform(-reach, reach, len(share))


def second_half_repeats(share: Values, *_: Any) -> Values:
    half = len(share) // 2
    return np.concatenate([share[:half], share[:half], share[2 * half :]])


@mistake("a fifth of the shares has no component 0", "A")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = count()

    def change(share: Values, plan: NoisePlan, seeds: NoiseSeeds, _grid: GridVector) -> Values:
        return share if next(drawn) % 5 else removable(plan, seeds, len(share))

    share_becomes(change)(monkeypatch)


@mistake("the noise is the same at every party", "A")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    first: dict[bytes, bytes] = {}
    seed_becomes(lambda machine, _s, seeds, _p: first.setdefault(machine._parameters.sid, seeds.own))(monkeypatch)


for title, who, patch in (
    ("the share is divided by the number of parties", "A", share_becomes(lambda share, plan, *_: share / plan.parties)),
    ("the noise is halved", "A", share_becomes(lambda share, *_: share / 2)),
    (
        "the noise is clipped at 2 sigma",
        "A",
        share_becomes(lambda share, plan, *_: np.clip(share, -2 * deviation(plan), 2 * deviation(plan))),
    ),
    ("the noise is uniform", "A", share_becomes(uniform)),
    ("the noise's second half repeats the first", "A", share_becomes(second_half_repeats)),
    (
        "no noise where the exact coordinate is 0",
        "B",
        share_becomes(lambda share, _p, _s, grid: share * (grid.values != 0)),
    ),
    ("the noise is seeded by the plan", "A", seed_becomes(lambda _m, _s, _seeds, plan: repr(plan).encode())),
    (
        "the noise is the same in every round",
        "A",
        seed_becomes(lambda machine, *_: machine._identity.private_bytes_raw()),
    ),
    ("component 0 is drawn from the anchor", "A", seed_becomes(lambda _m, _s, seeds, plan: seeds.anchor(plan))),
    (
        "component 0 is drawn from a later chain value",
        "A",
        seed_becomes(lambda _m, _s, seeds, plan: noise_share.SEED_DOMAIN + seeds.anchor(plan)),
    ),
    ("component 0 is drawn from the session id", "A", seed_becomes(lambda machine, *_: machine._parameters.sid)),
):
    mistake(title, who)(patch)


# Contributions


def doubled_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a unit may contribute after rounding is twice the declared bound."""
    integer_limits = contribution._integer_limits
    monkeypatch.setattr(
        contribution,
        "_integer_limits",
        lambda bound, scale, tolerance: integer_limits(bound, 2 * scale, tolerance),
    )


def rows_become(monkeypatch: pytest.MonkeyPatch, change: Callable[[Rows, Values], Any]) -> None:
    """``change`` has the rows and the numbers of those that are asked for."""
    sound = contribution.contribute

    def contribute(statistic: Any, rows: Rows, **named: Any) -> GridVector:
        other = Rows(lambda asked: change(rows, asked), rows.units, rows.width or statistic.dimension)
        return sound(statistic, other, **named)

    monkeypatch.setattr(grid_vectors, "contribute", contribute)


@mistake("rows are twice as long and clamped at 2", "AH")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    clipped = contribution._clip_rows
    monkeypatch.setattr(contribution, "_clip_rows", lambda statistic, matrix: clipped(statistic, matrix) * 2.0)
    doubled_bound(monkeypatch)


@mistake("rows are clamped at 2", "AH")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    clipped = contribution._clip_rows

    def wide(statistic: Any, matrix: Any) -> Any:
        bound = statistic.sensitivity
        other: Any = SimpleNamespace(
            name=statistic.name,
            dimension=statistic.dimension,
            sensitivity=Sensitivity(2 * bound.l1, 2 * bound.l2, 2 * bound.linf),
        )
        return clipped(other, matrix)

    monkeypatch.setattr(contribution, "_clip_rows", wide)
    doubled_bound(monkeypatch)


@mistake("max_per_user is ignored", "AH", "sums of patients")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = private._capped
    wide = 64
    monkeypatch.setattr(
        private,
        "_capped",
        lambda table, privacy, key: (
            sound(table, replace(privacy, max_per_unit=wide), key)
            if privacy.unit == "user"
            else sound(table, privacy, key)
        ),
    )
    whole = contribution.contribute
    monkeypatch.setattr(
        grid_vectors, "contribute", lambda *given, **named: whole(*given, **{**named, "max_per_unit": wide})
    )


def numbered(names: list[Any]) -> Values:
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def unit_of_patient_and_label(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = private._units
    monkeypatch.setattr(
        private,
        "_units",
        lambda table, privacy: (
            numbered(list(zip(table.users or (), table.labels or table.texts, strict=True)))
            if privacy.unit == "user"
            else sound(table, privacy)
        ),
    )


mistake("a unit is a patient and a label", "AH", "patients")(unit_of_patient_and_label)


@mistake("each record is its own unit", "AH", "patients")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_units", lambda table, _privacy: np.arange(len(table), dtype=np.int64))


# A user's votes are scaled to the bound of one unit: of two units, each is scaled to it.
mistake("a user's votes are scaled to the bound for each label", "AH", "patients")(unit_of_patient_and_label)


@mistake("a user's votes are scaled to the bound of the sum", "AH", "patients")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    add: Any = contribution._add_rounded
    monkeypatch.setattr(
        contribution, "_add_rounded", lambda total, sums, scale, *given: add(total, sums, 2.0 * scale, *given)
    )
    doubled_bound(monkeypatch)


@mistake("a mean is a sum for units of two records", "AH", "means of patients")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = contribution._unit_sums

    def unit_sums(*given: Any) -> Any:
        return ((sums, np.where(sizes == 2, 1, sizes)) for sums, sizes in sound(*given))

    monkeypatch.setattr(contribution, "_unit_sums", unit_sums)
    doubled_bound(monkeypatch)


@mistake("a row mixes in the record before it", "AH", "patients", body="one_unit", statistic="embedding_sum")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_become(monkeypatch, lambda rows, asked: rows.take(asked) + rows.take(np.maximum(asked - 1, 0)))


@mistake("a party's sum is scaled by 40 / max(40, n)", "BH")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contribution.contribute

    def scaled(statistic: Any, rows: Rows, **named: Any) -> GridVector:
        units = max(40, len(np.unique(rows.units)))
        return GridVector(np.trunc(whole(statistic, rows, **named).values * (40 / units)).astype(np.int64))

    monkeypatch.setattr(grid_vectors, "contribute", scaled)


# Subsamples


@mistake("units are sampled at 1.2 of the rate", "A", "subsamples")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = grid_vectors.poisson_subsample
    monkeypatch.setattr(
        grid_vectors, "poisson_subsample", lambda records, rate, coins: sound(records, min(1.0, 1.2 * rate), coins)
    )


@mistake("the coins are the same in every round", "AH", "subsamples", body="one_subsample")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Attempts.new
    monkeypatch.setattr(Attempts, "new", lambda *given: replace(new(*given), coins=bytes(32)))


# Harmless


@mistake("rounding is to the nearest integer", "")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nearest:
        trunc = staticmethod(np.rint)

        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

    monkeypatch.setattr(contribution, "np", Nearest())


@mistake("records without a label count in the first block", "")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = private._label_indices
    monkeypatch.setattr(private, "_label_indices", lambda table, names: np.maximum(sound(table, names), 0))
