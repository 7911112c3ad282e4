"""A whole comparison: measure every cell of the grid, write the table as Markdown, CSV and a page while cells end."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from undersong import compare_table
from undersong.compare_cell import Bench, Cell, read_test
from undersong.compare_cells import CELLS, Grid, compare, default_jobs, frechet_rows, known_cells, over_ray, read_kept
from undersong_common.errors import ConfigurationError
from undersong_common.files import holding
from undersong_server.progress import Progress
from undersong_server.release.files import write_files
from undersong_server.runs import task as tasks

LOCK = "comparison.lock"  # held by the one command that measures cells and writes the tables of a folder
WRITING_SHARE = 0.05  # of the time, at most, that writing tables between two cells takes


def compared(
    task_file: Path,
    *,
    test: Path,
    methods: Sequence[str],
    epsilons: Sequence[float],
    parties: Sequence[int],
    records: Sequence[int],
    seeds: Sequence[int],
    out: Path,
    jobs: int,
    command: str,
    progress: Progress,
    baseline: str | None = None,
    assignments: Sequence[str] = (),
    fresh: bool = False,
    public_data: bool = False,
    insecure_noise_seed: int | None = None,
    name: str = "comparison",
    ray: str | None = None,
) -> dict[str, Any]:
    """Runs or continues a comparison, writes ``NAME.md``, ``.csv``, ``.html`` and ``.json``, returns the table.

    The table of a folder grows: what another command adds stands beside what is there. It is written as cells end.

    Args:
        test: test set, labelled where the task has labels; else usefulness is the loss of a small language model.
        methods, epsilons, parties, records, baseline: the grid (:meth:`Grid.of`); without ``baseline`` the table keeps
            the one that it has.
        jobs: worker processes; 0 is one per core.
        command: what made it, for the tables.
        assignments: ``section.key=value`` overrides of the task file.
        fresh: forgets the cells that ``out`` holds, and the table.
        ray: measures the cells over the Ray cluster at this address, on this machine where it is empty; None: over
            processes of this machine.
        public_data: the private records are public: their embeddings are kept on this disk.

    Raises ConfigurationError for a grid or a task that cannot run, and where another command writes into ``out``.
    """
    task = tasks.load(task_file, assignments)
    table = read_test(test, task)
    samples = task.options.samples or 2 * len(table)
    out.mkdir(parents=True, exist_ok=True)
    busy = ConfigurationError(
        f"{out}: another command is comparing into this folder", "wait until it ends, or name another folder with --out"
    )
    with holding(out / LOCK, busy):
        if fresh:
            shutil.rmtree(out / CELLS, ignore_errors=True)
            (out / f"{name}.json").unlink(missing_ok=True)
        bench = Bench(
            task_file,
            tuple(assignments),
            test.absolute(),
            frechet_rows(len(table), samples),
            insecure_noise_seed=insecure_noise_seed,
            test_table=table,
            public_data=public_data,
        )
        path = out / f"{name}.json"
        kept = read_kept(
            path,
            bench.fingerprint(),
            another=f"{path}: is the table of another comparison",
            without_it="the table begins anew",
        )
        before = None if kept is None else Grid.from_json(kept["grid"])
        known = () if before is None else tuple(variant.name for variant in before.variants)
        given = Grid.of(
            methods=methods,
            epsilons=epsilons,
            parties=parties,
            records=records,
            seeds=seeds,
            baseline=baseline,
            others=known,
        )
        whole = given if before is None else before.with_more(given)
        if baseline is not None:
            whole = replace(whole, baseline=baseline)
        commands = [*dict.fromkeys([*(kept["commands"] if kept else ()), command])]
        tables = _Tables(bench, whole, out, name, f"{task.task.name}", commands)
        measure = None if ray is None else over_ray(ray)
        compare(bench, given, out, jobs=jobs or default_jobs(), progress=progress, ended=tables.add, measure=measure)
        return tables.write()


class _Tables:
    """The tables of one folder, written anew while cells end."""

    def __init__(self, bench: Bench, grid: Grid, out: Path, name: str, title: str, commands: Sequence[str]) -> None:
        self._bench = bench
        self._grid = grid
        self._out = out
        self._name = name
        self._title = title
        self._commands = commands
        self._found: dict[Cell, dict[str, Any]] = known_cells(bench, grid, out)
        self._next = 0.0

    def add(self, cell: Cell, value: dict[str, Any]) -> None:
        """Takes a cell that has ended; writes the tables unless that was done a moment ago."""
        self._found[cell] = value
        start = time.monotonic()
        if start < self._next:
            return
        self.write()
        self._next = time.monotonic() + (time.monotonic() - start) / WRITING_SHARE

    def write(self) -> dict[str, Any]:
        """Writes every form of the table; returns it as plain JSON values."""
        grid, command = self._grid, "\n".join(self._commands)
        lines = compare_table.lines(grid, self._found)
        title = f"{self._title}: {', '.join(variant.name for variant in grid.variants)}"
        table = compare_table.to_json(grid, lines)
        kept = {"comparison": self._bench.fingerprint(), "grid": grid.to_json(), "commands": list(self._commands)}
        write_files(
            self._out,
            {
                f"{self._name}.md": compare_table.markdown(title, grid, lines, command),
                f"{self._name}.csv": compare_table.to_csv(lines),
                f"{self._name}.html": compare_table.page(title, grid, lines, command),
                f"{self._name}.json": json.dumps(kept | {"table": table}, sort_keys=True, indent=1),
            },
        )
        return table
