"""Options, paths and output that all commands of ``undersong-party`` share."""

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undersong_common.errors import ConfigurationError
from undersong_common.printable import finite, json_text, with_iso_times
from undersong_common.program import drill
from undersong_common.program.owner import home_folder, work_in

if TYPE_CHECKING:
    from undersong_client.storage.checkpoints import LedgerSpending

HEADS = "undersong/ledgers"  # folder for heads of ledgers, below a state folder
USED_UP_SHARE = 1e-3  # largest remaining share of a budget at which the budget counts as used up


def _announce_drill(context: typer.Context, home_option: Path | None) -> Path | None:
    """Says before anything else that a folder belongs to a drill (a rehearsal), if it does."""
    if not context.resilient_parsing:
        work_in(home_of(home_option))
        mark_drill(home_of(home_option))
    return home_option


def mark_drill(home: Path) -> None:
    """Says on standard error that a folder belongs to a drill (a rehearsal), if it does."""
    drill.announce(home / "settings.json", drill.PARTY_WORDS)


HomeFolder = Annotated[
    Path | None,
    typer.Option(
        "--home",
        help="This party's folder (else $UNDERSONG_PARTY_HOME, ~/.config/undersong-party).",
        callback=_announce_drill,
        readable=False,  # an error that names the folder's owner helps more
    ),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run's name, or the beginning of its manifest's hash.")]
SamePatient = Annotated[
    str | None,
    typer.Option(metavar="KIND,...", help="Ids that differ only so are one patient: zeros, case, ... Kept."),
]
OtherPatient = Annotated[
    str | None, typer.Option(metavar="KIND,...", help="Ids that differ only so are different patients. Kept.")
]
DespiteCautions = Annotated[
    bool, typer.Option("--despite-cautions", help="Go on although this data set speaks against it; asks nothing.")
]


def home_of(home_option: Path | None) -> Path:
    """Returns the folder that --home names, or the default one."""
    if home_option is not None:
        return home_option
    if folder := os.environ.get("UNDERSONG_PARTY_HOME"):
        return Path(folder)
    config_home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config_home) if config_home else home_folder() / ".config") / "undersong-party"


def checkpoints_folder(home: Path) -> Path:
    """The folder for heads of ledgers, outside the party's folder ``home``: in $XDG_STATE_HOME, else the user's own.

    Units and images keep one beside the party's folder, which a command that is typed there finds without a variable.
    """
    if state_home := os.environ.get("XDG_STATE_HOME"):
        return Path(state_home) / HEADS
    beside_home = home.absolute().parent / "state" / HEADS
    if os.path.lexists(beside_home):
        return beside_home
    return home_folder() / ".local" / "state" / HEADS


def confirm_cautions(cautions: Sequence[str], is_confirmed: bool) -> None:
    """Shows the cautions about a data set and has a person accept them.

    Raises ConfigurationError if nobody does; the operator is told nothing either way.
    """
    if not cautions or is_confirmed:
        return
    from undersong_client.records.declared import caution_remedy

    if sys.stdin.isatty():
        for caution in cautions:
            print(f"caution: {caution}", file=sys.stderr)
        print(f"remedy: {caution_remedy(cautions)}", file=sys.stderr)
        if typer.confirm("go on despite this?", err=True):
            return
    raise ConfigurationError(
        f"the cautions about this data set were not accepted: {'; '.join(cautions)}", caution_remedy(cautions)
    )


def warn(sentences: Sequence[str]) -> None:
    """Prints a warning about a weak choice to standard error, and asks nothing."""
    for sentence in sentences:
        print(f"warning: {sentence}", file=sys.stderr)


def local_time(seconds: float) -> str:
    """Returns a time (seconds since the epoch) as text, in this machine's time zone; "" for 0."""
    if seconds:
        return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))
    return ""


def print_json(value: Mapping[str, Any]) -> None:
    """Prints one JSON object, with times as ISO 8601 and infinity, which JSON lacks, as the text "inf"."""
    print(json_text(with_iso_times(finite(value, instead=str))))


def print_result(as_json: bool, value: Mapping[str, Any], *lines: str, quiet: str | None = None) -> None:
    """Prints a command's result as JSON, or as lines for people.

    Args:
        quiet: text to print instead of the lines, "" for nothing; None prints the lines.
    """
    if as_json:
        print_json(value)
    elif printed_lines := lines if quiet is None else tuple(filter(None, [quiet])):
        print(*printed_lines, sep="\n")


def spending_words(spending: "LedgerSpending") -> str:
    """The spent and the remaining budget in one line, with what the whole budget protects."""
    from undersong_common.privacy import impact

    if math.isinf(spending.spent):
        spent_words = "more than can be counted"
    else:
        spent_words = f"epsilon {spending.spent:.4g}"
    if spending.budget is None or spending.left is None:
        return f"spent {spent_words} at delta {spending.delta:g}; no budget is set: undersong-party budget set"
    if math.isinf(spending.budget):
        total_words = "no limit"
    else:
        total_words = f"{spending.budget:g}"
    if math.isinf(spending.left):
        remaining_words = "no limit"
    else:
        remaining_words = f"{spending.left:.4g}"
    words = f"spent {spent_words} of {total_words} at delta {spending.delta:g}; left {remaining_words}"
    if is_used_up(spending.spent, spending.budget):
        words += ": too little for another run; to allow more: undersong-party budget set"
    return f"{words}. {impact.whole_budget_of(spending.budget, spending.delta)}"


def is_used_up(spent: float, budget: float) -> bool:
    """Returns True if no useful run fits into the remaining budget.

    A run that was planned for the whole budget leaves a small remainder.
    """
    return not math.isinf(budget) and budget - spent <= USED_UP_SHARE * budget
