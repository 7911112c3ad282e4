"""Entry point ``undersong``: the server's commands, and the simulation that brings many parties onto one machine."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from rich.console import Console

from undersong.compare_cli import compare
from undersong_common import entry
from undersong_common.errors import ConfigurationError
from undersong_server.cli import app as server_cli
from undersong_server.cli.app import AsJson, Assignments, TaskFile, app
from undersong_server.runs import task as tasks

__all__ = ("app", "main")

app.command()(compare)


@app.command()
def simulate(
    task_file: TaskFile,
    parties: Annotated[int | None, typer.Option(help="Deal one file to this many parties.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Dirichlet concentration over labels; inf: equal shares.")] = None,
    method: Annotated[str | None, typer.Option(help="Run another method than the task file's.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget of the whole run; inf is not private.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes everything but noise, keys and masks.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Output folder (else the task's output.dir).")] = None,
    assignments: Assignments = None,
    engine: Annotated[
        str, typer.Option(help='"inprocess", or "flower": Flower\'s simulation engine, for hundreds of parties.')
    ] = "inprocess",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: removes what the folder's last run wrote.")
    ] = False,
    insecure_noise_seed: Annotated[
        int | None, typer.Option(help="TESTS ONLY: reproducible noise; the output is marked as not private.", min=0)
    ] = None,
    as_json: AsJson = False,
    debug: Annotated[bool, typer.Option("--debug", help="Log what happens (never private data).")] = False,
) -> None:
    """Runs a task with every party on this machine. The same command continues a run that was stopped."""
    from undersong.deliver import deliver
    from undersong.simulate import Engine
    from undersong_server.cli.display import Display
    from undersong_server.progress import Silent

    entry.log_to_stderr(debug=debug)
    if engine not in get_args(Engine):
        raise ConfigurationError(f"--engine {engine!r} is unknown", f"choose {' or '.join(get_args(Engine))}")
    given = {
        "federation.parties": parties,
        "federation.alpha": alpha,
        "method.name": None if method is None else f'"{method}"',
        "privacy.epsilon": epsilon,
    }
    shorthand = [f"{key}={_toml(value)}" for key, value in given.items() if value is not None]
    task = tasks.load(task_file, [*shorthand, *(assignments or ())])
    folder = out if out is not None else Path(task.output.dir)
    with nullcontext(Silent()) if as_json else Display(Console(stderr=True)) as progress:
        delivered = deliver(
            task,
            folder,
            seed=seed,
            fresh=fresh,
            insecure_noise_seed=insecure_noise_seed,
            public_cache=server_cli.public_cache_path(),
            environment=os.environ,
            progress=progress,
            engine=cast(Engine, engine),
        )
    if as_json:
        server_cli.print_json(delivered.to_json())
    else:
        Console().print(delivered.screen())


def _toml(value: object) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return str(value)


def main() -> None:
    """Entry point."""
    entry.run(lambda: app(standalone_mode=False))


if __name__ == "__main__":
    main()
