"""Cells over Ray: measured in its workers, kept as with any other engine, and one that fails leaves the others."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.simulation.comparison.test_compare import figures, grid
from undersong.comparison import grid as comparing
from undersong.comparison.cell import Bench, Cell
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_server.progress import Silent


class Odd(Bench):
    """Measures cells of odd seeds only, and says where."""

    def measure(self, cell: Cell):
        if cell.seed % 2 == 0:
            raise UndersongError("an even seed")
        return figures(0.5) | {"frechet": float(os.getpid())}


@pytest.fixture
def odd(bench: Bench) -> Bench:
    return Odd(bench.task_file, (), bench.test, 10)


@pytest.mark.slow
def test_ray_workers_measure_cells_and_skip_finished_ones(odd, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    shape = grid(methods=["wasp"], parties=[], records=[])
    shape = replace(shape, seeds=(1, 2, 3))
    found = comparing.compare(odd, shape, tmp_path / "out", jobs=2, progress=Silent(), ray="")
    assert {cell.seed for cell in found} == {1, 3}
    assert os.getpid() not in {value["frechet"] for value in found.values()}
    asked = []

    def none_left(_bench, cells, *_):
        asked.extend(cells)
        return [(cell, UndersongError("again")) for cell in cells]

    monkeypatch.setattr(comparing, "_measure_cells", none_left)
    again = comparing.compare(odd, shape, tmp_path / "out", jobs=2, progress=Silent())
    assert again == found
    assert {cell.seed for cell in asked} == {2}


def test_unreachable_ray_cluster_is_refused_with_its_address(odd):
    with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:9"):
        list(comparing._measure_cells(odd, [grid().cells()[0]], 1, "127.0.0.1:9"))
