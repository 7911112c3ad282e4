"""A whole comparison: every cell of a grid is one real simulation, judged by one task model on one test set.

Cells are independent, so they run in several processes; each leaves one JSON file, and the same command continues a
comparison that was stopped. Every variant has the same epsilon, delta, unit and number of generator calls, and the same
seed gives the same private records, so that differences are paired by seed. The table is written as Markdown, CSV and a
page while cells end.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from undersong.comparison import table as compare_table
from undersong.comparison.cell import Bench, Cell, read_test
from undersong.run.options import ComparisonOptions
from undersong.run.processes import each_in_processes
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.files import holding
from undersong_common.program import extras
from undersong_server.cluster import Cluster
from undersong_server.methods.parts.schedules import total
from undersong_server.progress import Progress
from undersong_server.release.files import write_files
from undersong_server.runs import task as tasks

CELLS = "cells"
Measured = tuple[Cell, "dict[str, Any] | UndersongError"]
FRECHET_ROWS = 2000  # largest number of texts of each side that are compared


def check(bench: Bench, grid: compare_table.ComparisonGrid, progress: Progress) -> None:
    """Checks every cell of the grid before the first one runs, and reports options of the task that are set aside.

    Raises ConfigurationError for a variant that cannot run, a file that is missing or cannot be read, a generator that
    cannot be built, or records that no federation of the grid can hold.
    """
    # Seeds change nothing about what can run, so one cell of each group of seeds is checked.
    distinct_cells = {(cell.variant, cell.epsilon, cell.parties, cell.records): cell for cell in grid.cells()}
    cell_remarks = (
        f"{cell.variant.name}: {remark}" for cell in distinct_cells.values() for remark in bench.check(cell)
    )
    for remark in dict.fromkeys(cell_remarks):
        progress.say(remark)


def known_cells(bench: Bench, grid: compare_table.ComparisonGrid, folder: Path) -> dict[Cell, dict[str, Any]]:
    """Reads the figures of the cells in ``folder``. Raises ConfigurationError for cells of another comparison."""
    cell_folder, mismatch = folder / CELLS, f"{folder / CELLS}: holds cells of another comparison"
    stored_figures = {
        cell: read_kept(cell_folder / f"{cell.name}.json", bench.fingerprint, mismatch, "the cell is run again")
        for cell in grid.cells()
    }
    return {cell: figures for cell, figures in stored_figures.items() if figures is not None}


def compare(
    bench: Bench,
    grid: compare_table.ComparisonGrid,
    folder: Path,
    *,
    jobs: int,
    progress: Progress,
    on_cell: Callable[[Cell, dict[str, Any]], None] = lambda _cell, _value: None,
    ray: str | None = None,
) -> dict[Cell, dict[str, Any]]:
    """Measures every cell that ``folder`` does not hold yet; returns all of them.

    A cell that fails is reported and left out (the rest is still worth having); the same command tries it again.

    Args:
        on_cell: called with each cell that was measured now and its figures, after they have been written.
        ray: address of a Ray cluster that computes the cells (``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``; "" begins
            Ray on this machine); None takes processes of this machine.

    Raises:
        ConfigurationError: what :func:`check` finds, a folder of another comparison, or no cell that succeeded.
    """
    check(bench, grid, progress)
    grid_cells = grid.cells()
    cell_folder = folder / CELLS
    measured_cells = known_cells(bench, grid, folder)
    open_cells = [cell for cell in grid_cells if cell not in measured_cells]
    if measured_cells:
        progress.say(f"{len(measured_cells)} of {len(grid_cells)} cells are known from {cell_folder}")
    progress.update("cells", len(measured_cells), len(grid_cells))
    cell_failures = []
    for cell, outcome in _measure_cells(bench, open_cells, jobs, ray):
        if isinstance(outcome, UndersongError):
            cell_failures.append(f"{cell.name}: {outcome.problem}")
            progress.say(f"left out: {cell_failures[-1]}")
        else:
            write_files(
                cell_folder,
                {f"{cell.name}.json": json.dumps(outcome | {"comparison": bench.fingerprint}, sort_keys=True)},
            )
            measured_cells[cell] = outcome
            on_cell(cell, outcome)
        progress.update("cells", len(measured_cells) + len(cell_failures), len(grid_cells))
    if not measured_cells:
        raise ConfigurationError(
            f"no cell of the comparison succeeded; the first failed: {cell_failures[0]}",
            "mend that, and what the messages above say of the other cells",
            code="no-cell",
        )
    return measured_cells


def read_kept(path: Path, fingerprint: str, mismatch: str, without_it: str) -> dict[str, Any] | None:
    """Reads a file that an earlier command of the same comparison left; None if there is no file.

    Args:
        fingerprint: of this comparison, which the file has to state.
        mismatch: the error's sentence if the file states another one.
        without_it: what happens after the file is deleted, as the error for a damaged one says.

    Raises ConfigurationError for a file that is damaged, or of another comparison.
    """
    try:
        stored_json: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise ConfigurationError(f"{path}: cannot be read", f"delete it; {without_it}") from None
    if stored_json.pop("comparison", None) != fingerprint:
        raise ConfigurationError(
            f"{mismatch} (another task file, option or test file)",
            "name another folder with --out, or start over with --fresh",
            code="other-comparison",
        )
    return stored_json


def _measure_cells(bench: Bench, cells: Sequence[Cell], jobs: int, ray: str | None = None) -> Iterator[Measured]:
    """Yields (cell, its figures or the error that stopped it) as each ends, over Ray or in processes of this machine.

    An existing cluster runs as many cells at once as it has cores. Raises ConfigurationError without Ray.
    """
    in_process = jobs == 1 and ray is None
    function, shared = (guarded, bench) if in_process else (_in_worker, replace(bench))
    cell_calls = [(shared, cell) for cell in cells]
    with nullcontext() if ray is None else Cluster(ray, jobs, option="--ray-address") as cluster:
        if cluster is None:
            numbered_results = each_in_processes(function, cell_calls, jobs)
        else:
            numbered_results = cluster.each(function, cell_calls)
        for cell_number, cell_outcome in numbered_results:
            yield cells[cell_number], cell_outcome


# A worker keeps its bench, so that embedder and caches stay loaded from cell to cell.
_benches: dict[str, Bench] = {}


def _in_worker(bench: Bench, cell: Cell) -> dict[str, Any] | UndersongError:
    return guarded(_benches.setdefault(repr(bench), bench), cell)


def guarded(bench: Bench, cell: Cell) -> dict[str, Any] | UndersongError:
    """Measures a cell; returns its figures, or the error that stopped it, so that the other cells go on."""
    try:
        return bench.measure(cell)
    except UndersongError as error:
        return UndersongError(error.problem)  # An error of this plain class can be sent between processes.


LOCK = "comparison.lock"  # held by the one command that measures cells and writes the tables of a folder
WRITING_SHARE = 0.05  # largest share of the time that is spent on writing tables between two cells


def compared(
    task_file: Path,
    options: ComparisonOptions,
    *,
    command: str,
    progress: Progress,
    assignments: Sequence[str] = (),
    name: str = "comparison",
) -> dict[str, Any]:
    """Runs or continues a comparison, writes ``NAME.md``, ``.csv``, ``.html`` and ``.json``, returns the table.

    The table of a folder grows: what another command adds stands beside what is there. It is written as cells end.

    Args:
        options: with ``test`` and ``out``.
        command: the command that is stated beside the tables.
        assignments: ``section.key=value`` overrides of the task file.

    Raises ConfigurationError for a grid or a task that cannot run, and where another command writes into ``out``.
    """
    test_path, folder = Path(str(options.test)), Path(str(options.out))
    task = tasks.load(task_file, assignments)
    test_table = read_test(test_path, task)
    extras.require("sklearn", "pandas")
    sample_count = total(task.options.samples or 2 * len(test_table))
    folder.mkdir(parents=True, exist_ok=True)
    table_file = folder / f"{name}.json"
    busy_error = ConfigurationError(
        f"{folder}: another command is comparing into this folder",
        "wait until it ends, or name another folder with --out",
        code="folder-in-use",
    )
    with holding(folder / LOCK, busy_error):
        if options.fresh:
            shutil.rmtree(folder / CELLS, ignore_errors=True)
            table_file.unlink(missing_ok=True)
        # At most half of the ordered texts: a few orders are always dropped, and every corpus must have so many.
        frechet_row_count = max(2, min(FRECHET_ROWS, len(test_table), sample_count // 2))
        cell_bench = Bench(
            task_file,
            tuple(assignments),
            test_path.absolute(),
            frechet_row_count,
            insecure_noise_seed=options.insecure_noise_seed,
            test_table=test_table,
            public_data=options.public_data,
        )
        mismatch = f"{table_file}: is the table of another comparison"
        stored_table = read_kept(table_file, cell_bench.fingerprint, mismatch, "the table begins anew")
        new_grid, merged_grid = _merge_grids(options, stored_table)
        table_commands = [*dict.fromkeys([*(stored_table["commands"] if stored_table else ()), command])]
        result_tables = _Tables(cell_bench, merged_grid, folder, name, task.task.name, table_commands)
        compare(
            cell_bench,
            new_grid,
            folder,
            jobs=options.jobs or len(os.sched_getaffinity(0)),
            progress=progress,
            on_cell=result_tables.add,
            ray=options.ray,
        )
        return result_tables.write()


def _merge_grids(
    options: ComparisonOptions, stored_table: dict[str, Any] | None
) -> tuple[compare_table.ComparisonGrid, compare_table.ComparisonGrid]:
    """Returns the grid of these options, and that of the table which holds it beside what is stored."""
    if stored_table is None:
        stored_grid = None
    else:
        stored_grid = compare_table.ComparisonGrid.from_json(stored_table["grid"])
    stored_variants = () if stored_grid is None else tuple(variant.name for variant in stored_grid.variants)
    new_grid = compare_table.ComparisonGrid.of(options, stored_variants)
    merged_grid = new_grid if stored_grid is None else stored_grid.with_more(new_grid)
    if options.baseline is not None:
        merged_grid = replace(merged_grid, baseline=options.baseline)
    return new_grid, merged_grid


@dataclass
class _Tables:
    """The tables of one folder, written anew while cells end."""

    bench: Bench
    grid: compare_table.ComparisonGrid
    folder: Path
    name: str
    title: str
    commands: Sequence[str]
    next_s: float = 0.0  # earliest time of the next writing

    @cached_property
    def _cell_figures(self) -> dict[Cell, dict[str, Any]]:
        return known_cells(self.bench, self.grid, self.folder)

    def add(self, cell: Cell, figures: dict[str, Any]) -> None:
        """Adds the figures of a cell that has ended; writes the tables unless that was done a moment ago."""
        self._cell_figures[cell] = figures
        started_at_s = time.monotonic()
        if started_at_s < self.next_s:
            return
        self.write()
        self.next_s = time.monotonic() + (time.monotonic() - started_at_s) / WRITING_SHARE

    def write(self) -> dict[str, Any]:
        """Writes every form of the table; returns it as plain JSON values."""
        grid, command = self.grid, "\n".join(self.commands)
        table_lines = compare_table.summary(grid, self._cell_figures)
        title = f"{self.title}: {', '.join(variant.name for variant in grid.variants)}"
        table_json = compare_table.to_json(grid, table_lines)
        state_json = {"comparison": self.bench.fingerprint, "grid": grid.to_json(), "commands": list(self.commands)}
        write_files(
            self.folder,
            {
                f"{self.name}.md": compare_table.markdown(title, grid, table_lines, command),
                f"{self.name}.csv": table_lines.to_csv(index=False),
                f"{self.name}.html": compare_table.page(title, grid, table_lines, command),
                f"{self.name}.json": json.dumps(state_json | {"table": table_json}, sort_keys=True, indent=1),
            },
        )
        return table_json
