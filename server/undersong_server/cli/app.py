"""The operator's and the researcher's command line (``undersong``); ``simulate`` is mounted by undersong.cli."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from undersong_common import entry
from undersong_common.errors import ConfigurationError
from undersong_common.printable import json_text
from undersong_common.rows import screen
from undersong_server.cli import coordinator as coordinator_cli
from undersong_server.cli import runs as run_cli
from undersong_server.runs import task as tasks

app = typer.Typer(
    name="undersong",
    help="Writes a labelled synthetic corpus out of private text that never leaves its owners.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they print local variables
    add_completion=False,
)


@app.callback()
def program(version: entry.ShowVersion = False) -> None: ...


coordinator_cli.mount(app)
run_cli.mount(app)

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
    print(json_text(value))


@app.command()
def plan(task_file: TaskFile, assignments: Assignments = None, as_json: AsJson = False) -> None:
    """Shows every private sum of a run, its noise, and the generators' calls. Spends nothing."""
    from undersong_server.cli.plan_screen import render
    from undersong_server.runs import planning
    from undersong_server.runs.plan_figures import plan_figures

    figures = plan_figures(planning.plan_run(tasks.load(task_file, assignments or ())))
    if as_json:
        print_json(figures.to_json())
    else:
        screen().print(render(figures))


@app.command()
def init(
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A table whose columns and labels fill the file.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where to write the task file.")] = Path("task.toml"),
) -> None:
    """Writes a commented task file."""
    from undersong_server.runs.template import commented_task

    if out.exists():
        raise ConfigurationError(f"{out}: exists already", "choose another --out, or remove it")
    out.write_text(commented_task(source, out.absolute().parent), encoding="utf-8")
    print(f"wrote {out}: edit it, then `undersong plan {out}` and `undersong simulate {out}`")


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The output folder of a finished run.")],
    test: Annotated[Path | None, typer.Option(help="Labelled real texts to test on.")] = None,
    train_private: Annotated[
        Path | None, typer.Option(help="Private training texts: the non-private reference.")
    ] = None,
    overlap: Annotated[Path | None, typer.Option(help="A private file to search the synthetic texts for.")] = None,
    adapt: Annotated[
        Path | None, typer.Option(help="Unlabelled texts of a client: adapts the task model to them (Deep CORAL).")
    ] = None,
    sequences: Annotated[
        bool, typer.Option("--sequences", help="Judge the run's keyphrase sequences alone, without any model.")
    ] = False,
    membership: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="MEMBERS NONMEMBERS", help="Real texts, private or not: attacks the task model with them."
        ),
    ] = None,
    head: Annotated[str, typer.Option(help="Head of the task model: auto, linear or mlp.")] = "auto",
    bert: Annotated[Path | None, typer.Option(help="A local encoder folder to fine-tune as well.")] = None,
    text_field: Annotated[str, typer.Option(help="Text column of the files.")] = "text",
    label_field: Annotated[str, typer.Option(help='Label column of the files; "" if they have none.')] = "label",
    embedder: Annotated[str, typer.Option(help='"packaged" or a local sentence-transformers folder.')] = "packaged",
    seed: Annotated[int, typer.Option(help="Fixes the task model's split and start.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Trains the small task model on a run's corpus, tests it, and compares with files that the caller holds."""
    from undersong_common.embedding import CachedEmbedder, Embedder, MemoryCache
    from undersong_common.fine_tuning import FineTuning
    from undersong_server.evaluation.evaluate import evaluate as evaluate_run
    from undersong_server.evaluation.task_model import HEADS

    if head not in HEADS:
        raise ConfigurationError(f"--head {head}: unknown", f"choose one of {', '.join(HEADS)}")
    model = embedder if embedder == "packaged" else Path(embedder)
    report = evaluate_run(
        folder,
        test=test,
        train_private=train_private,
        overlap=overlap,
        adapt_to=adapt,
        sequences=sequences,
        membership=membership,
        # in memory only: these files may be private
        embed=CachedEmbedder(Embedder.load(model), MemoryCache()).encode,
        head=head,
        fine_tuning=None if bert is None else FineTuning(bert),
        text_field=text_field,
        label_field=label_field or None,
        seed=seed,
    )
    if as_json:
        print(report.to_json())
    else:
        screen().print(report.render())
