"""Methods side by side: every cell of a grid is one real simulation, judged by one task model on one test set.

Cells are independent, so they run in several processes; each leaves one JSON file, and the same command continues a
comparison that was stopped. Every variant has the same epsilon, delta, unit and number of generator calls, and the same
seed gives the same private records, so that differences are paired by seed.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from undersong.compare_cell import PRIVATE_ONLY, Bench, Cell, Variant
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_server import methods
from undersong_server.cluster import SINGLE_THREAD, Cluster
from undersong_server.progress import Progress
from undersong_server.release.files import write_files

CELLS = "cells"
Measured = tuple[Cell, "dict[str, Any] | UndersongError"]
FRECHET_ROWS = 2000  # of corpus and test set each, or as many as the test set has


@dataclass(frozen=True)
class Grid:
    """What is compared.

    Attributes:
        variants: the first one is the reference of the paired differences, unless ``baseline`` names another.
        epsilons: budgets; ``inf`` adds no noise.
        federations: (parties, private records in all); records None takes the whole file.
        seeds: of the simulations.
    """

    variants: tuple[Variant, ...]
    epsilons: tuple[float, ...]
    federations: tuple[tuple[int | None, int | None], ...]
    seeds: tuple[int, ...]
    baseline: str

    @classmethod
    def of(
        cls,
        *,
        methods: Sequence[str],
        epsilons: Sequence[float],
        parties: Sequence[int],
        records: Sequence[int],
        seeds: Sequence[int],
        baseline: str | None = None,
        others: Sequence[str] = (),
    ) -> Grid:
        """Checks what the command line gave.

        Args:
            records: none, one for all, or one for each number of parties.
            others: variants that the folder's table has already, any of which may be the baseline.
        """
        if not methods or not epsilons or not seeds:
            raise ConfigurationError("a comparison needs methods, epsilons and seeds", "see undersong compare --help")
        if any(not epsilon > 0 for epsilon in epsilons):
            raise ConfigurationError("--epsilon: not positive", "give positive numbers, or inf for no privacy")
        if len(records) not in (0, 1, max(1, len(parties))):
            raise ConfigurationError(
                f"--records names {len(records)} sizes for {len(parties)} numbers of parties",
                "give one, or one for each number of parties",
            )
        variants = tuple(Variant.parse(name) for name in dict.fromkeys(methods))
        names = [variant.name for variant in variants]
        reference = baseline or next((name for name in names if name != PRIVATE_ONLY), names[0])
        if reference not in (*names, *others):
            known = ", ".join(dict.fromkeys((*names, *others)))
            raise ConfigurationError(f"--baseline {reference!r} is not among --methods", f"choose {known}")
        shapes: list[int | None] = list(parties) or [None]
        sizes: list[int | None] = list(records) or [None]
        sizes = sizes * len(shapes) if len(sizes) == 1 else sizes
        return cls(
            variants,
            tuple(dict.fromkeys(epsilons)),
            tuple(zip(shapes, sizes, strict=True)),
            tuple(dict.fromkeys(seeds)),
            reference,
        )

    def to_json(self) -> dict[str, Any]:
        """What :meth:`from_json` reads."""
        return {
            "methods": [variant.name for variant in self.variants],
            "epsilons": [f"{epsilon:g}" for epsilon in self.epsilons],
            "federations": [list(federation) for federation in self.federations],
            "seeds": list(self.seeds),
            "baseline": self.baseline,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Grid:
        return cls(
            tuple(Variant.parse(name) for name in value["methods"]),
            tuple(float(epsilon) for epsilon in value["epsilons"]),
            tuple((parties, records) for parties, records in value["federations"]),
            tuple(value["seeds"]),
            value["baseline"],
        )

    def with_more(self, other: Grid) -> Grid:
        """Both grids as one, this one's values first; the reference stays."""
        return Grid(
            tuple(dict.fromkeys((*self.variants, *other.variants))),
            tuple(dict.fromkeys((*self.epsilons, *other.epsilons))),
            tuple(dict.fromkeys((*self.federations, *other.federations))),
            tuple(sorted({*self.seeds, *other.seeds})),
            self.baseline,
        )

    def cell(self, variant: Variant, epsilon: float, federation: tuple[int | None, int | None], seed: int) -> Cell:
        """The cell behind a point of the grid: what a variant does not depend on is left out, so it is run once."""
        parties, records = federation
        if variant.name == PRIVATE_ONLY:
            return Cell(variant, None, None, records, seed)
        if variant.training is not None:  # on all records together, whoever holds them
            return Cell(variant, epsilon, None, records, seed)
        if not methods.load(variant.method).makes_private_sums:
            return Cell(variant, None, None, None, seed)
        return Cell(variant, epsilon, parties, records, seed)

    def cells(self) -> list[Cell]:
        """Every cell once, seed by seed, so that a stopped comparison has whole seeds."""
        every = (
            self.cell(variant, epsilon, federation, seed)
            for seed in self.seeds
            for federation in self.federations
            for epsilon in self.epsilons
            for variant in self.variants
        )
        return list(dict.fromkeys(every))


def check(bench: Bench, grid: Grid, progress: Progress) -> None:
    """Finds before the first cell what would stop one, and says what of the task is set aside.

    Raises ConfigurationError for a variant that cannot run, a file that is missing or cannot be read, a generator that
    cannot be built, or records that no federation of the grid can hold.
    """
    remarks: dict[str, None] = {}
    different = {(cell.variant, cell.epsilon, cell.parties, cell.records): cell for cell in grid.cells()}
    for cell in different.values():
        remarks |= dict.fromkeys(f"{cell.variant.name}: {remark}" for remark in bench.check(cell))
    for remark in remarks:
        progress.say(remark)


def known_cells(bench: Bench, grid: Grid, folder: Path) -> dict[Cell, dict[str, Any]]:
    """The grid's cells that ``folder`` holds. Raises ConfigurationError for cells of another comparison."""
    kept, fingerprint = folder / CELLS, bench.fingerprint()
    return {cell: value for cell in grid.cells() if (value := _read(kept, cell, fingerprint)) is not None}


def compare(
    bench: Bench,
    grid: Grid,
    folder: Path,
    *,
    jobs: int,
    progress: Progress,
    ended: Callable[[Cell, dict[str, Any]], None] = lambda _cell, _value: None,
    measure: Callable[[Bench, Sequence[Cell], int], Iterable[Measured]] | None = None,
) -> dict[Cell, dict[str, Any]]:
    """Measures every cell that ``folder`` does not hold yet; returns all of them.

    A cell that fails is reported and left out (the rest is still worth having); the same command tries it again.

    Args:
        ended: told of each cell that was measured now, when it has been written.
        measure: gives (cell, figures or the error that stopped it) as each completes; by default processes of this
            machine.

    Raises:
        ConfigurationError: what :func:`check` finds, a folder of another comparison, or no cell that succeeded.
    """
    check(bench, grid, progress)
    cells = grid.cells()
    kept = folder / CELLS
    fingerprint = bench.fingerprint()
    known = known_cells(bench, grid, folder)
    open_cells = [cell for cell in cells if cell not in known]
    if known:
        progress.say(f"{len(known)} of {len(cells)} cells are known from {kept}")
    progress.update("cells", len(known), len(cells))
    failures = []
    for cell, value in (measure or _measured)(bench, open_cells, jobs):
        if isinstance(value, UndersongError):
            failures.append(f"{cell.name}: {value.problem}")
            progress.say(f"left out: {failures[-1]}")
        else:
            write_files(kept, {f"{cell.name}.json": json.dumps(value | {"comparison": fingerprint}, sort_keys=True)})
            known[cell] = value
            ended(cell, value)
        progress.update("cells", len(known) + len(failures), len(cells))
    if not known:
        raise ConfigurationError(f"no cell succeeded; the first: {failures[0]}", "see the messages above")
    return known


def _read(folder: Path, cell: Cell, fingerprint: str) -> dict[str, Any] | None:
    return read_kept(
        folder / f"{cell.name}.json",
        fingerprint,
        another=f"{folder}: holds cells of another comparison",
        without_it="the cell is run again",
    )


def read_kept(path: Path, fingerprint: str, *, another: str, without_it: str) -> dict[str, Any] | None:
    """What an earlier command left of the comparison of that fingerprint, which it names; None where there is nothing.

    Args:
        another: what it is where it names another one.
        without_it: what happens where it is deleted.

    Raises ConfigurationError for a file that is damaged, or of another comparison.
    """
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise ConfigurationError(f"{path}: cannot be read", f"delete it; {without_it}") from None
    if value.pop("comparison", None) != fingerprint:
        raise ConfigurationError(
            f"{another} (another task file, option or test file)",
            "name another folder with --out, or start over with --fresh",
        )
    return value


def _measured(bench: Bench, cells: Sequence[Cell], jobs: int) -> Iterator[Measured]:
    """(cell, figures or the error that stopped it), as each completes."""
    if not cells:
        return
    if jobs == 1:
        for cell in cells:
            yield cell, guarded(bench, cell)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed

    # Fresh processes: forking one that has started torch's threads would hang.
    context = multiprocessing.get_context("spawn")
    before = {name: os.environ.get(name) for name in SINGLE_THREAD}
    os.environ.update(SINGLE_THREAD)  # read by the libraries when a worker loads them
    try:
        with ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_begin, initargs=(replace(bench, _loaded={}),)
        ) as pool:
            waiting = {pool.submit(_in_worker, cell): cell for cell in cells}
            try:
                for finished in as_completed(waiting):
                    yield waiting[finished], finished.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


_bench: Bench | None = None


def _begin(bench: Bench) -> None:
    global _bench
    _bench = bench
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for its next cell for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _in_worker(cell: Cell) -> dict[str, Any] | UndersongError:
    assert _bench is not None
    return guarded(_bench, cell)


def guarded(bench: Bench, cell: Cell) -> dict[str, Any] | UndersongError:
    """A cell's figures, or the error that stopped it, so that the others go on."""
    try:
        return bench.measure(cell)
    except UndersongError as error:
        return UndersongError(error.problem)  # plain, so that it travels between processes


def default_jobs() -> int:
    """One worker per core."""
    return max(1, len(os.sched_getaffinity(0)))


def frechet_rows(test_rows: int, samples: int) -> int:
    """Texts of each side in the Frechet distance: below every corpus's size, since a few orders are always dropped."""
    return max(2, min(FRECHET_ROWS, test_rows, math.floor(samples * 0.5)))


_benches: dict[tuple[Any, ...], Bench] = {}  # of this worker: what its cells share stays loaded


def over_ray(address: str) -> Callable[[Bench, Sequence[Cell], int], Iterator[Measured]]:
    """What measures cells over the cluster at ``address`` (``auto``, ``HOST:PORT``, ``ray://HOST:PORT``).

    An empty address begins Ray on this machine, with as many workers as are asked for; the cluster's own number of
    cores counts elsewhere.
    """

    def measured(bench: Bench, cells: Sequence[Cell], jobs: int) -> Iterator[Measured]:
        """(cell, figures or the error that stopped it), as each completes. Raises ConfigurationError without Ray."""
        shared = replace(bench, _loaded={})
        with Cluster(address, jobs, option="--ray-address") as cluster:
            for number, value in cluster.each(_in_ray_worker, [(shared, cell) for cell in cells]):
                yield cells[number], value

    return measured


def _in_ray_worker(bench: Bench, cell: Cell) -> dict[str, Any] | UndersongError:
    key = (bench.task_file, bench.assignments, bench.test, bench.frechet_rows, bench.insecure_noise_seed)
    return guarded(_benches.setdefault(key, bench), cell)
