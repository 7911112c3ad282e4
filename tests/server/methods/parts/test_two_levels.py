"""Votes in two levels: public cells, the best of them within the room, and the price of one flat vote."""

from __future__ import annotations

import numpy as np
import pytest

from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import publishable
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import TopQVotes
from undersong_server.methods import augpe
from undersong_server.methods.augpe import Cells
from undersong_server.methods.interface import Setting


def blobs(count: int, each: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(count, 16))
    rows = np.repeat(centres, each, axis=0) + 0.05 * rng.normal(size=(count * each, 16))
    return publishable(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.mark.heavy  # scikit-learn is loaded
def test_cell_centres_are_reproducible_and_exactly_publishable():
    rows = blobs(5, 20)
    cells = augpe.cells_of(rows, 5, seed=3)
    assert len(cells.centres) == len(np.unique(cells.cell_of)) <= 5
    assert np.array_equal(cells.centres, publishable(cells.centres))
    assert np.array_equal(augpe.cells_of(rows, 5, seed=3).cell_of, cells.cell_of)  # everybody who asks gets the same
    assert len(augpe.cells_of(rows[:3], 8, seed=3).cell_of) == 3


def test_best_cells_are_taken_whole_and_the_last_one_from_its_centre():
    rows = np.array([[1.0, 0.0], [0.5, 0.0], [0.75, 0.0], [0.0, 1.0], [0.0, 0.5]], dtype=np.float32)
    cells = Cells(np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32), np.array([0, 0, 0, 1, 1]))
    assert augpe.members(cells, rows, np.array([1, 0]), 4).tolist() == [0, 2, 3, 4]
    assert augpe.members(cells, rows, np.array([0, 1]), 3).tolist() == [0, 1, 2]
    assert augpe.members(cells, rows, np.array([1]), 9).tolist() == [3, 4]


def test_two_levels_of_votes_need_root_two_of_the_flat_votes_noise():
    privacy, quorum = Privacy(2.0, 1e-5), Quorum(10, 6, 1, 1)
    vote = TopQVotes(q=1, candidates=5000, furthest=False)
    flat = plan_sums([SumRequest("votes", vote)], privacy, quorum)
    two = plan_sums(augpe.plan_cell_votes("votes", cell_count=200, within=500, q=1), privacy, quorum)
    assert two.epsilon() == pytest.approx(flat.epsilon(), rel=1e-3)
    assert [planned.dimension for planned in two.sums] == [200, 500]
    for planned in two.sums:
        assert planned.sigma == pytest.approx(2**0.5 * flat.sums[0].sigma, rel=1e-3)


def test_augpe_refuses_as_many_cells_as_texts():
    options = augpe.Options(samples=60, rounds=3, cells=40)
    with pytest.raises(ConfigurationError, match=r"method\.cells is 40"):
        augpe.plan(options, Setting(("a", "b"), ("one",)))
