"""``undersong-party data ...`` and ``undersong-party ledger``."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from undersong_client.cli_options import (
    AsJson,
    DespiteCautions,
    HomeFolder,
    checkpoints_folder,
    confirm_cautions,
    home_of,
    print_json,
)
from undersong_client.state import PartyHome
from undersong_common import entry
from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file
from undersong_common.rows import show_rows

data_app = typer.Typer(help="This party's data set. None of these commands sends anything.", no_args_is_help=True)


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong-party``."""
    app.add_typer(data_app, name="data")
    app.command()(ledger)


@data_app.command()
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL, CSV or Parquet.")],
    text_field: Annotated[str, typer.Option(help="The column of texts.")] = "text",
    label_field: Annotated[str, typer.Option(help="The column of labels; none if empty.")] = "",
    user_field: Annotated[str, typer.Option(help="The column of patient ids; none if empty.")] = "",
    cache_dir: Annotated[
        Path | None, typer.Option(help="Where encrypted embeddings are kept (default: beside the data).")
    ] = None,
    new_version: Annotated[
        bool, typer.Option("--new-version", help="The file replaces the present one; what was spent stays spent.")
    ] = False,
    restore_ledger: Annotated[
        Path | None, typer.Option(help="A backup of this data set's ledger, after this party's folder was lost.")
    ] = None,
    despite_cautions: DespiteCautions = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Declares the data set and says what is in it: counts, empty records, duplicates. Sends nothing."""
    from undersong_client import datasets, policy

    opened = PartyHome(home_of(home))
    with opened.running():
        found, ledger = datasets.add(
            opened,
            file,
            text=text_field,
            label=label_field,
            user=user_field,
            policy=policy.read(opened),
            checkpoints=checkpoints_folder(),
            cache=cache_dir,
            new_version=new_version,
            restore=restore_ledger,
            confirm=lambda found: confirm_cautions(found, despite_cautions),
            at=time.time(),
        )
    if as_json:
        print_json({**asdict(found), "fingerprint": ledger.fingerprint, "ledger_entries": len(ledger.entries())})
        return
    print(f"{found.records} records of {found.rows} rows; {found.empty} without text are left out")
    print(f"{found.duplicates} records repeat another one's text")
    if found.labels:
        print("labels: " + ", ".join(f"{label} {count}" for label, count in found.labels.items()))
    if found.users is not None:
        print(f"{found.users} users; the one with most records has {found.largest_user}")
    print(f"data set {ledger.fingerprint[:16]}...; nothing was sent")


@data_app.command()
def embed(home: HomeFolder = None, as_json: AsJson = False, quiet: entry.Quiet = False) -> None:
    """Computes the records' embeddings now and keeps them encrypted; the daemon would do it later. Sends nothing."""
    from undersong_client import datasets
    from undersong_client.assemble import Embeddings
    from undersong_common.embedding import Embedder

    opened = PartyHome(home_of(home))
    table = datasets.load(opened).table
    begun = time.monotonic()
    progress = (lambda _done, _total: None) if quiet else _progress(begun)
    Embeddings(opened, Embedder.load(opened.settings.embedder), progress).warm(table)
    took = time.monotonic() - begun
    if as_json:
        print_json({"records": len(table), "seconds": round(took, 3)})
    elif not quiet:
        print(f"{len(table)} records are embedded ({took:.0f} s)")


def _progress(begun: float) -> Any:
    shown = [0.0]

    def show(done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - shown[0] < 1.0:
            return
        shown[0] = now
        left = (now - begun) * (total - done) / max(done, 1)
        end = "\r" if sys.stderr.isatty() and done < total else "\n"
        print(f"embedded {done} of {total} records, about {left:.0f} s left   ", end=end, file=sys.stderr, flush=True)

    return show


@data_app.command("teacher-model")
def teacher_model(
    folder: Annotated[
        str | None, typer.Argument(metavar="[FOLDER]", help='A local transformers encoder, or "packaged".')
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Take part in no run that fine-tunes teachers.")] = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Names the local model that runs with fine-tuned teachers use; a running daemon uses it at once. Sends nothing."""
    from undersong_common import fine_tuning
    from undersong_common.model_files import PACKAGED

    opened = PartyHome(home_of(home))
    if none == (folder is not None):
        raise ConfigurationError("teacher-model needs one model", 'name a FOLDER, or "packaged", or pass --none')
    named = folder if folder in (None, PACKAGED) else str(Path(folder).absolute())
    if named is not None:
        fine_tuning.load(named, classes=2)
    settings = opened.change(teacher_model=named or "")
    if as_json:
        print_json({"teacher_model": settings.teacher_model})
    else:
        print(f"teacher model: {settings.teacher_model or 'none'}; nothing was sent")


@data_app.command()
def show(home: HomeFolder = None, as_json: AsJson = False) -> None:
    """Which file is declared, and its fields."""
    settings = PartyHome(home_of(home)).settings
    names = ("data", "text_field", "label_field", "user_field", "cache", "embedder", "teacher_model")
    value = {name: getattr(settings, name) for name in names}
    if as_json:
        print_json(value)
        return
    for key, item in value.items():
        print(f"{key}: {item or 'none'}")


def ledger(
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every entry against the chain, change nothing.")
    ] = False,
    backup: Annotated[Path | None, typer.Option(help="Copy the ledger to this file.")] = None,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """What every release of the data set cost, and what is left."""
    from undersong_common.privacy.ledger import Ledger

    path = PartyHome(home_of(home)).ledger
    checked = Ledger.verify(path) if verify else None
    read = Ledger.read(path)
    if backup is not None:
        if backup.exists():
            raise ConfigurationError(f"{backup}: exists already", "name another file")
        replace_file(backup, path.read_bytes())
    budget = read.budget
    spent = None if budget is None else read.spent(budget.delta)
    left = None if budget is None or spent is None else max(0.0, budget.epsilon - spent)
    if as_json:
        print_json(
            {
                "data": read.fingerprint,
                "head": read.head,
                "verified_entries": checked,
                "budget": None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta},
                "spent_epsilon": spent,
                "left_epsilon": left,
                "entries": read.entries(),
            }
        )
        return
    show_rows(
        ("entry", "kind", "run", "sum", "attempt", "when"),
        [
            (
                str(entry["entry"]),
                entry["kind"],
                str(entry.get("run", "")),
                str(entry.get("query", "")),
                str(entry.get("attempt", "")),
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at"])),
            )
            for entry in read.entries()
        ],
        "empty",
    )
    if checked is not None:
        print(f"{checked} entries, the chain holds; head {read.head[:16]}...")
    if budget is not None and spent is not None and left is not None:
        print(f"spent epsilon {spent:.4g} of {budget.epsilon:g} at delta {budget.delta:g}; left {left:.4g}")
