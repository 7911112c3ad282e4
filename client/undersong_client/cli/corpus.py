"""``undersong-party corpus check``."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_client import operations
from undersong_client.cli.data import show_progress
from undersong_client.cli.options import AsJson, HomeFolder, home_of, print_result
from undersong_common.printable import counted

if TYPE_CHECKING:
    from undersong_client.operations.corpus import CorpusCheck
    from undersong_common.overlap import Overlap

corpus_app = typer.Typer(help="A published corpus beside this party's records. Sends nothing.", no_args_is_help=True)

NOT_PRIVATE = (
    "not private: these figures read the records themselves. Keep them in the building; whoever acts on them, or asks"
    " for another corpus because of them, reveals something about the records."
)


def mount(app: typer.Typer) -> None:
    """Adds the command to ``undersong-party``."""
    app.add_typer(corpus_app, name="corpus")


@corpus_app.callback()
def corpus() -> None: ...


@corpus_app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a published run, or a file of its texts.")],
    held_out: Annotated[
        Path | None,
        typer.Option(help="Records in the form of the data set, in place of those that --hold-out kept out."),
    ] = None,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Says whether a corpus copies the records: words, names and numbers, closeness, and a guess at who took part."""
    found = operations.corpus.check(home_of(home), folder, held_out, progress=show_progress(time.monotonic()))
    print_result(as_json, found.to_json() | {"note": NOT_PRIVATE}, *_lines(found), NOT_PRIVATE)


def _lines(found: "CorpusCheck") -> list[str]:
    numbers = found.identifiers
    inside = sum((numbers.in_private or {}).values())
    lines = [
        f"{counted(found.texts, 'text')} beside {counted(found.records, 'record')} of the data set"
        f" and {found.held_out} held out",
        f"copied from the data set: {_copied(found.copies)}",
    ]
    if found.chance is not None:
        lines.append(f"the same of records held out, which nobody can have copied: {_copied(found.chance)}")
    lines.append(
        f"names after a title and long numbers: {sum(numbers.different.values())} different ones, {inside} of them in a"
        f" record too{_rows(numbers.private_rows)}"
    )
    if found.closest is None or found.membership is None:
        lines.append(
            "closeness and membership: not computed, since no records are held out (undersong-party data add --hold-out"
            " before the first run, or --held-out FILE)"
        )
        return lines
    closer, guess = found.closest.closer, found.membership
    lines += [
        f"closer to a record than to every record held out: {closer.value:.1%} of the texts ({closer.low:.1%} to"
        f" {closer.high:.1%}; 50 % says that nothing was copied)",
        f"distance to the closest record, 5 % quantile and median: {found.closest.training[0]:.3f},"
        f" {found.closest.training[1]:.3f}; held out: {found.closest.holdout[0]:.3f}, {found.closest.holdout[1]:.3f}",
        f"guess who took part, by closeness (area under the ROC curve): {guess.value:.3f} ({guess.low:.3f} to"
        f" {guess.high:.3f}; 0.5 is guessing)",
    ]
    return lines


def _copied(found: "Overlap") -> str:
    return (
        f"{len(found.verbatim)} texts word for word{_rows(found.verbatim)}, {len(found.near_verbatim)}"
        f" nearly{_rows(found.near_verbatim)}, {len(found.shared_run)} with eight words or more in a row"
    )


def _rows(rows: tuple[int, ...]) -> str:
    """Names the first rows of the corpus, in brackets."""
    return f" (rows {', '.join(map(str, rows[:10]))}{', ...' if len(rows) > 10 else ''})" if rows else ""
