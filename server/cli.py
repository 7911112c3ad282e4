"""The operator's and the researcher's command line (``undersong``); ``simulate`` is mounted by simulation.cli."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from common.errors import ConfigurationError
from server import task as tasks

app = typer.Typer(
    name="undersong",
    help="Writes a labelled synthetic corpus out of private text that never leaves its owners.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they print local variables
    add_completion=False,
)

TaskFile = Annotated[Path, typer.Argument(metavar="TASK.toml", help="The task file (`undersong init` writes one).")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the task file; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def public_cache_path() -> Path:
    """Where embeddings of public texts are kept between runs: $UNDERSONG_CACHE, or the user's cache folder."""
    base = os.environ.get("UNDERSONG_CACHE") or os.environ.get("XDG_CACHE_HOME")
    folder = Path(base) if base else Path.home() / ".cache"
    return folder / "undersong" / "public-embeddings.sqlite"


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


@app.command()
def plan(task_file: TaskFile, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Shows every private sum of a run, its noise, and the generators' calls. Spends nothing."""
    from server import planning
    from server.plan_screen import render

    run_plan = planning.plan_run(tasks.load(task_file, assignments or ()))
    figures = planning.to_json(run_plan)
    if as_json:
        print_json(figures)
    else:
        Console().print(render(run_plan, figures))


@app.command()
def init(
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A table whose columns and labels fill the file.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where to write the task file.")] = Path("task.toml"),
) -> None:
    """Writes a commented task file."""
    from server.template import commented_task

    if out.exists():
        raise ConfigurationError(f"{out}: exists already", "choose another --out, or remove it")
    out.write_text(commented_task(source, out.absolute().parent), encoding="utf-8")
    print(f"wrote {out}: edit it, then `undersong plan {out}` and `undersong simulate {out}`")
