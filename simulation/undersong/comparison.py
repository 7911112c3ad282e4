"""A whole comparison: measure every cell of the grid, write the table as Markdown, CSV and a page."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undersong import compare_table
from undersong.compare_cell import Bench, read_test
from undersong.compare_cells import CELLS, Grid, compare, default_jobs, frechet_rows
from undersong_server.evaluation.heads import Head
from undersong_server.progress import Progress
from undersong_server.release.files import write_files
from undersong_server.runs import task as tasks


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
    head: Head = "linear",
    assignments: Sequence[str] = (),
    fresh: bool = False,
    insecure_noise_seed: int | None = None,
    name: str = "comparison",
) -> dict[str, Any]:
    """Runs or continues a comparison, writes ``NAME.md``, ``.csv`` and ``.html`` into ``out``, returns the table.

    Args:
        test: labelled test set.
        methods, epsilons, parties, records, baseline: the grid (:meth:`Grid.of`).
        jobs: worker processes; 0 is one per core.
        command: what made it, for the tables.
        assignments: ``section.key=value`` overrides of the task file.
        fresh: forgets the cells that ``out`` holds.

    Raises ConfigurationError for a grid or a task that cannot run.
    """
    task = tasks.load(task_file, assignments)
    table = read_test(test, task)
    samples = task.options.samples or 2 * len(table)
    grid = Grid.of(methods=methods, epsilons=epsilons, parties=parties, records=records, seeds=seeds, baseline=baseline)
    bench = Bench(
        task_file,
        tuple(assignments),
        test.absolute(),
        frechet_rows(len(table), samples),
        head=head,
        insecure_noise_seed=insecure_noise_seed,
        test_table=table,
    )
    if fresh and (out / CELLS).is_dir():
        shutil.rmtree(out / CELLS)
    found = compare(bench, grid, out, jobs=jobs or default_jobs(), progress=progress)
    lines = compare_table.lines(grid, found)
    title = f"{task.task.name}: {', '.join(variant.name for variant in grid.variants)}"
    write_files(
        out,
        {
            f"{name}.md": compare_table.markdown(title, grid, lines, command),
            f"{name}.csv": compare_table.to_csv(lines),
            f"{name}.html": compare_table.page(title, grid, lines, command),
        },
    )
    return compare_table.to_json(grid, lines)
