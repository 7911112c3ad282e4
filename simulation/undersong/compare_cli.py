"""``undersong compare``: the researcher's bench, mounted on the command line by undersong.cli."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from undersong_common.errors import ConfigurationError
from undersong_server.cli.app import AsJson, Assignments, TaskFile, print_json

_Value = TypeVar("_Value")


def compare(
    task_file: TaskFile,
    test: Annotated[Path, typer.Option("--test", metavar="FILE", help="Labelled test set.")],
    methods: Annotated[
        str,
        typer.Option(
            help="NAME, NAME:key=value+key=value, single:GENERATOR, private-only, dp-lora:model=FOLDER or "
            "dp-sgd:model=FOLDER (both centralised: one trainer sees every record); commas between."
        ),
    ] = "wasp,mixture,private-only",
    epsilon: Annotated[str, typer.Option(help="Budgets; inf adds no noise.")] = "1,4,8",
    parties: Annotated[str, typer.Option(help="Numbers of parties (else the task's).")] = "",
    records: Annotated[
        str, typer.Option(help="Private records in all, about: one number, or one for each of --parties.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="How many, counted from --first-seed.", min=1)] = 20,
    first_seed: Annotated[int, typer.Option(min=0)] = 0,
    baseline: Annotated[str | None, typer.Option(help="Reference of the paired differences (else the first).")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of cells and tables.")] = Path("runs/comparison"),
    jobs: Annotated[int, typer.Option(help="Worker processes; 0 is one a core.", min=0)] = 0,
    head: Annotated[str, typer.Option(help="Task model: linear, mlp or auto (slower).")] = "linear",
    assignments: Assignments = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the folder's cells.")] = False,
    insecure_noise_seed: Annotated[
        int | None, typer.Option(help="Reproducible noise: the cells are then private to nobody.", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compares methods by what a small task model learns from their corpora; the same command continues."""
    from undersong_server.cli.display import Display

    with Display(Console(stderr=True)) as display:
        lines = compared(
            task_file,
            test=test,
            methods=_split(methods, str, "--methods"),
            epsilons=_split(epsilon, float, "--epsilon"),
            parties=_split(parties, int, "--parties"),
            records=_split(records, int, "--records"),
            seeds=range(first_seed, first_seed + seeds),
            baseline=baseline,
            out=out,
            jobs=jobs,
            head=head,
            assignments=tuple(assignments or ()),
            fresh=fresh,
            insecure_noise_seed=insecure_noise_seed,
            command=shlex.join(["undersong", *sys.argv[1:]]),
            progress=display,
        )
    if as_json:
        print_json(lines)
    else:
        Console(soft_wrap=True).print(
            (out / "comparison.md").read_text(encoding="utf-8"), markup=False, highlight=False
        )


def compared(
    task_file: Path,
    *,
    test: Path,
    methods: list[str],
    epsilons: list[float],
    parties: list[int],
    records: list[int],
    seeds: range,
    out: Path,
    jobs: int,
    command: str,
    progress: Any,
    baseline: str | None = None,
    head: str = "linear",
    assignments: tuple[str, ...] = (),
    fresh: bool = False,
    insecure_noise_seed: int | None = None,
    name: str = "comparison",
) -> dict[str, Any]:
    """Runs (or continues) a comparison, writes ``NAME.md``, ``.csv`` and ``.html`` into ``out``, returns the table."""
    from undersong import compare_table
    from undersong.compare import CELLS, Grid, default_jobs, frechet_rows
    from undersong.compare import compare as run
    from undersong.compare_cell import Bench, read_test
    from undersong_server.evaluation.task_model import HEADS
    from undersong_server.release.files import write_files
    from undersong_server.runs import task as tasks

    if head not in HEADS:
        raise ConfigurationError(f"--head {head!r}: unknown", f"choose one of {', '.join(HEADS)}")
    task = tasks.load(task_file, assignments)
    table = read_test(test, task)
    samples = task.options.samples or 2 * len(table)
    grid = Grid.of(
        methods=methods, epsilons=epsilons, parties=parties, records=records, seeds=list(seeds), baseline=baseline
    )
    bench = Bench(
        task_file,
        assignments,
        test.absolute(),
        frechet_rows(len(table), samples),
        head=head,
        insecure_noise_seed=insecure_noise_seed,
        test_table=table,
    )
    if fresh and (out / CELLS).is_dir():
        shutil.rmtree(out / CELLS)
    found = run(bench, grid, out, jobs=jobs or default_jobs(), progress=progress)
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


def _split(text: str, convert: Callable[[str], _Value], option: str) -> list[_Value]:
    try:
        return [convert(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigurationError(f"{option} {text!r}: not a list of numbers", "separate them by commas") from None
