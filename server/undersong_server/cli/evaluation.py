"""``undersong evaluate``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from undersong_common.rows import screen
from undersong_server.cli.options import AsJson, RayAddress, print_json, with_options
from undersong_server.evaluation.options import EvaluationOptions


def mount(app: typer.Typer) -> None:
    """Adds the command to ``undersong``."""
    app.command()(evaluate)


@with_options(EvaluationOptions)
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The output folder of a finished run.")],
    options: EvaluationOptions,
    ray: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Trains the panel's task models on a run's corpus, tests them, and compares with files that the caller holds."""
    from undersong_server.operations import evaluation

    report = evaluation.evaluate(folder, replace(options, ray=ray))
    if as_json:
        print_json(report.to_json())
        return
    from undersong_server.cli.evaluation_screen import render

    screen().print(render(report))
