"""Distances to the closest record: against a plain loop, and what copies look like."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

import undersong_common.overlap as module
from undersong_common.overlap import closest_distances, closest_records


def directions(rows: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(rows, 12)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_distances_are_those_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_ROWS", 7)  # the blocks' seams are what can go wrong
    rows, records = directions(40, 0), directions(30, 1)
    expected = [min(1 - float(a.astype(np.float64) @ b) for b in records) for a in rows]
    assert closest_distances(rows, records) == pytest.approx(expected, abs=1e-6)


def test_texts_of_the_same_kind_are_nearer_to_the_training_records_half_of_the_time() -> None:
    found = closest_records(directions(400, 2), directions(300, 3), directions(500, 4))
    assert (found.rows, found.records) == (400, 300)
    assert found.closer.low < 0.5 < found.closer.high
    assert found.training == pytest.approx(found.holdout, rel=0.15)


def test_copies_are_seen() -> None:
    training = directions(300, 3)
    synthetic = np.concatenate([training[:100], directions(100, 2)])
    found = closest_records(synthetic, training, directions(300, 4))
    assert found.closer.low > 0.6
    assert found.training[0] == pytest.approx(0.0, abs=1e-6)
    assert found.holdout[0] > 0.1
    assert asdict(found)["closer"]["value"] == found.closer.value


def test_a_tie_counts_half() -> None:
    same = directions(20, 5)
    assert closest_records(same, same, same).closer.value == 0.5


def test_without_records_nothing_is_closest() -> None:
    with pytest.raises(ValueError, match="no rows"):
        closest_records(directions(3, 0), directions(3, 1)[:0], directions(3, 2))
