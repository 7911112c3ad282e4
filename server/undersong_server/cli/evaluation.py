"""``undersong evaluate``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from undersong_common.rows import screen
from undersong_server.cli.options import AsJson, RayAddress, print_json
from undersong_server.evaluation.heads import Head


def mount(app: typer.Typer) -> None:
    """Adds the command to ``undersong``."""
    app.command()(evaluate)


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
    head: Annotated[Head | None, typer.Option(help="Head of one more task model, beside the panel.")] = None,
    bert: Annotated[
        Path | None, typer.Option(help='A local encoder folder to fine-tune as well, or "packaged".')
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Seeds with each of which every model is trained; gives intervals.", min=1)
    ] = 1,
    personal_data: Annotated[
        bool,
        typer.Option(
            "--personal-data", help="Count names, numbers and dates, and those that the --overlap file holds too."
        ),
    ] = False,
    text_field: Annotated[str, typer.Option(help="Text column of the files.")] = "text",
    label_field: Annotated[str, typer.Option(help='Label column of the files; "" if they have none.')] = "label",
    group_field: Annotated[
        str, typer.Option(help="Column of the test file by whose groups task models are judged too.")
    ] = "",
    embedder: Annotated[str, typer.Option(help='"packaged" or a local sentence-transformers folder.')] = "packaged",
    ray: RayAddress = None,
    public_data: Annotated[
        bool,
        typer.Option("--public-data", help="All files are public: keep their embeddings on this disk, to go on from."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Fixes the task model's split and start.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Trains the small task model on a run's corpus, tests it, and compares with files that the caller holds."""
    from undersong_server.operations import evaluation
    from undersong_server.operations.caches import public_cache_path

    cache = public_cache_path(os.environ) if public_data else None
    with evaluation.workplace(embedder, ray, cache) as (embed, compute):
        report = evaluation.evaluate(
            folder,
            test=test,
            embed=embed,
            train_private=train_private,
            overlap=overlap,
            adapt_to=adapt,
            sequences=sequences,
            membership=membership,
            head=head,
            bert=bert,
            text_field=text_field,
            label_field=label_field or None,
            group_field=group_field or None,
            repeats=repeats,
            personal_data=personal_data,
            seed=seed,
            compute=compute,
        )
    if as_json:
        print_json(report.to_json())
        return
    from undersong_server.cli.evaluation_screen import render

    screen().print(render(report))
