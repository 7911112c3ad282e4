"""``undersong compare``: the researcher's bench, mounted on the command line by undersong.cli."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from undersong_common import entry
from undersong_common.errors import ConfigurationError
from undersong_server.cli.options import AsJson, Assignments, TaskFile, print_json

_Value = TypeVar("_Value")


def compare(
    task_file: TaskFile,
    methods: Annotated[
        str,
        typer.Option(
            help="NAME, NAME:key=value+key=value, single:GENERATOR, private-only, and, centralised (one trainer "
            "sees every record), dp-lora:model=FOLDER, dp-sgd:model=FOLDER, dp-sgd-classifier, ghost-classifier; "
            "commas between."
        ),
    ] = "wasp,mixture,private-only",
    test: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Test set, labelled where the task has labels (else its evaluation.test)."),
    ] = None,
    epsilon: Annotated[str, typer.Option(help="Budgets; inf adds no noise.")] = "1,4,8",
    parties: Annotated[str, typer.Option(help="Numbers of parties (else the task's).")] = "",
    records: Annotated[
        str, typer.Option(help="Private records in all, about: one number, or one for each of --parties.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="How many, counted from --first-seed.", min=1)] = 20,
    first_seed: Annotated[int, typer.Option(min=0)] = 0,
    baseline: Annotated[
        str | None, typer.Option(help="Reference of the paired differences (else the table's).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of cells and tables.")] = Path("runs/comparison"),
    jobs: Annotated[int, typer.Option(help="Worker processes; 0 is one per core.", min=0)] = 0,
    engine: Annotated[
        Literal["processes", "ray"], typer.Option(help="What spreads the cells: this machine's processes, or Ray.")
    ] = "processes",
    ray_address: Annotated[
        str, typer.Option(help="Of a Ray cluster, with the same files under the same paths (else this machine).")
    ] = "",
    assignments: Assignments = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the folder's cells.")] = False,
    public_data: Annotated[
        bool, typer.Option("--public-data", help="The records are public: keep their embeddings on this disk.")
    ] = False,
    insecure_noise_seed: Annotated[
        int | None, typer.Option(help="Reproducible noise: the cells are then private to nobody.", min=0)
    ] = None,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Compares methods by what the panel's task models learn from their corpora; the same command continues.

    The folder has one table: another command with the same task adds its methods, budgets, sizes and seeds to it.
    """
    from undersong import front
    from undersong.task_files import Task
    from undersong_server.cli.display import display

    if ray_address and engine != "ray":
        raise ConfigurationError("--ray-address without --engine ray", "add --engine ray")
    task = Task.load(task_file, *(assignments or ()))
    with display(quiet) as progress:
        comparison = front.compare(
            task,
            _split(methods, str, "--methods"),
            test=test,
            epsilons=_split(epsilon, float, "--epsilon"),
            parties=_split(parties, int, "--parties"),
            records=_split(records, int, "--records"),
            seeds=range(first_seed, first_seed + seeds),
            baseline=baseline,
            out=out,
            jobs=jobs,
            ray=ray_address if engine == "ray" else None,
            fresh=fresh,
            public_data=public_data,
            insecure_noise_seed=insecure_noise_seed,
            command=shlex.join(["undersong", *sys.argv[1:]]),
            progress=progress,
        )
    if as_json:
        print_json(comparison.to_json())
    else:
        print(comparison)


def _split(text: str, convert: Callable[[str], _Value], option: str) -> list[_Value]:
    try:
        return [convert(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigurationError(f"{option} {text!r}: not a list of numbers", "separate them by commas") from None
