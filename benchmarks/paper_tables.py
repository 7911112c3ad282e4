"""The papers' tables as data: their rows (papers.toml), measured cells (papers.jsonl) and the text of their pages.

A cell is a row with a seed. papers.jsonl has a line for each measured cell, with the commit at which it was measured. A
journal has the figures of a fine-tuned encoder, which cost more, in a line of their own.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from undersong_common.intervals import Interval, over_seeds

HERE = Path(__file__).parent
FIGURES = HERE / "papers.jsonl"
PLACE = ("epsilon", "parties", "records")
LEAST_SEEDS = 3  # that a row needs to be shown on a page
LEAST_REACH = 1.0  # points; even where seeds agree, another kernel may decide a few test texts otherwise


def read_plan() -> dict[str, Any]:
    """Returns the papers and their tables, as papers.toml has them."""
    return tomllib.loads((HERE / "papers.toml").read_text(encoding="utf-8"))


def rows_of(paper: Mapping[str, Any], table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of a table, each with every key that its table or its paper gives once for all."""
    common = {key: level[key] for level in (paper, table) for key in (*PLACE, "seeds", "setting") if key in level}
    return [{**common, **row, "set": [*paper.get("set", []), *table.get("set", [])]} for row in table["rows"]]


def key_of(name: str, row: Mapping[str, Any], seed: int) -> list[Any]:
    """Returns the key of a cell in a file of figures: name, table row and seed."""
    return [name, row["method"], *(row.get(key) for key in ("setting", *PLACE)), row["set"], seed]


class Line(NamedTuple):
    """A row of a paper's table, with the figure that is compared."""

    paper: str
    table: str
    judged: str
    row: dict[str, Any]

    def key(self, seed: int) -> str:
        """Returns the key of a cell in :func:`by_cell`."""
        return json.dumps(key_of(self.paper, self.row, seed))

    @property
    def is_fine_tuned(self) -> bool:
        return self.judged.startswith("tuned.")


def lines_of(names: Iterable[str], tables: Sequence[str] = ("",)) -> list[Line]:
    """Returns the rows of these papers' tables whose names begin so, in the order of papers.toml."""
    papers = read_plan()
    return [
        Line(name, table["name"], table["judged"], row)
        for name in names
        for table in papers[name]["tables"]
        if table["name"].startswith(tuple(tables))
        for row in rows_of(papers[name], table)
    ]


def read_cells(path: Path = FIGURES) -> list[dict[str, Any]]:
    """Returns the measured cells, a line each. A last line that an interruption cut off is no measured cell."""
    whole_lines = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole_lines.splitlines()]


def append_cell(path: Path, cell: Mapping[str, Any]) -> None:
    """Adds a line to a file of figures, in the place of one that an interruption cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write((json.dumps(cell) + "\n").encode())


def by_cell(cells: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns figures and commit of each cell. A line of another commit replaces the cell's earlier figures."""
    figures: dict[str, dict[str, Any]] = {}
    for cell in cells:
        key = json.dumps(cell["cell"])
        if figures.get(key, {}).get("commit") != cell["commit"]:
            figures[key] = {"commit": cell["commit"]}
        figures[key].update(cell["figures"])
    return figures


def adopt(measured: Iterable[Mapping[str, Any]], path: Path = FIGURES) -> int:
    """Puts measured cells into papers.jsonl in the place of its older ones, in the order of papers.toml.

    Cells of no row are left out. Returns the number of cells that were taken.
    """
    new_figures = by_cell(measured)
    figures = by_cell(read_cells(path)) | new_figures
    keys = [line.key(seed) for line in lines_of(read_plan()) for seed in range(line.row["seeds"])]
    chosen_keys = [key for key in dict.fromkeys(keys) if key in figures]
    rows = [
        {"cell": json.loads(key), "commit": figures[key]["commit"]}
        | {"figures": {name: value for name, value in figures[key].items() if name != "commit"}}
        for key in chosen_keys
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return sum(key in new_figures for key in chosen_keys)


def shares_by_seed(figures: Mapping[int, Any], key: str) -> dict[int, float]:
    """Returns a figure, or one inside another ("tuned.accuracy"), by seed, in %."""
    values: dict[int, float] = {}
    for seed, cell in figures.items():
        value: Any = cell
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None and math.isfinite(value):
            values[seed] = 100 * value
    return values


def reach_of(values: Iterable[float]) -> float:
    """Returns how far, in points, a new measurement may lie from the mean of its row's ``values`` in a check."""
    interval = over_seeds(list(values))
    return max(LEAST_REACH, interval.high - interval.low)  # twice half of the interval


# Page


def section(name: str, cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the lines of a paper's page that say what was measured here; none if nothing was."""
    paper = read_plan().get(name, {})
    figures_by_cell = by_cell(cells)
    lines: list[str] = []
    unmeasured: list[str] = []
    for table in paper.get("tables", []):
        rows = rows_of(paper, table)
        figures = {row["name"]: _shown_cells(name, row, table["judged"], figures_by_cell) for row in rows}
        if sum(map(bool, figures.values())) < 2:  # no two rows can be set side by side
            unmeasured.append(table["name"])
            continue
        lines += ["", f"### {table['name']}, measured here", "", table["about"].strip()]
        lines += ["", f"    {command_of(name, table)}", *_table(table, rows, figures), *_claims(table, figures)]
    if not lines:
        return []
    if unmeasured:
        lines += ["", f"Not measured by three seeds yet: {', '.join(unmeasured)}."]
    return ["", "## Measured here, small", "", paper["about"].strip(), "", RULE.strip(), *lines]


def _shown_cells(
    name: str, row: Mapping[str, Any], judged: str, known: Mapping[str, Mapping[str, Any]]
) -> dict[int, Mapping[str, Any]]:
    """Returns a row's cells by seed; none if too few seeds have the figure ``judged``."""
    cells = {seed: known[key] for seed in range(row["seeds"]) if (key := json.dumps(key_of(name, row, seed))) in known}
    return cells if len(shares_by_seed(cells, judged)) >= LEAST_SEEDS else {}


RULE = """
A figure is the mean of its seeds with Student's interval of 95 %; records, their division, noise, texts and task model
all change with the seed. Each row names the commit that it was measured at. A row with fewer than three seeds is not
shown: it stands below its table as not measured yet. The command above a table measures its missing cells, cheapest
first, into a journal (`--out FILE`) that it continues after any interruption; the machine was shared, on which the
figures do not depend. `python -m benchmarks.papers --data FOLDER --check 12` measures twelve drawn cells anew, at least
one of each paper, and fails where one is farther from its row's mean than twice half the interval (one point at least).

A claim of the paper, or one that decides a choice made here, is judged on the differences of two rows, paired by seed:
*seen* where the interval of the difference is above zero, *against* where it is below, else *not resolved*, which says
nothing for either row. Each pair is judged by itself, without a correction for their number. The *panel* is the mean of
readers of words and of embeddings (docs/judging.md). The test texts are the same at every seed, so that no interval
says how the figures would move on others."""


def command_of(name: str, table: Mapping[str, Any]) -> str:
    """Returns the command that measures a table."""
    tuned_option = " --fine-tuned" if table["judged"].startswith("tuned.") else ""
    return f"python -m benchmarks.papers --data FOLDER --papers {name} --tables '{table['name']}'{tuned_option}"


def _table(
    table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], figures: Mapping[str, Mapping[int, Any]]
) -> list[str]:
    columns = {
        name: key
        for name, key in table["columns"].items()
        if any(shares_by_seed(figures[row["name"]], key) for row in rows)
    }
    head = ["", "paper", *columns, "texts", "seeds", "commit"]
    lines = ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        if cells := figures[row["name"]]:
            values = [_figure(shares_by_seed(cells, key).values()) for key in columns.values()]
            texts = [cell["rows"] for cell in cells.values() if cell.get("rows")]
            values += [f"{np.mean(texts):.0f}" if texts else "-", str(len(cells))]
            commits = ", ".join(dict.fromkeys(cell["commit"] for cell in cells.values()))
            lines.append(f"| {row['name']} | {row.get('paper', '-')} | {' | '.join(values)} | {commits} |")
    missing = [_name_missing(row) for row in rows if not figures[row["name"]]]
    return [*lines, "", f"Not measured by three seeds yet: {'; '.join(missing)}."] if missing else lines


def _name_missing(row: Mapping[str, Any]) -> str:
    return row["name"] if row["paper"] == "-" else f"{row['name']} (the paper's: {row['paper']})"


def _figure(values: Iterable[float]) -> str:
    """Returns the mean in words, with half the width of its 95 % interval if there are several seeds."""
    interval = over_seeds(list(values))
    if math.isnan(interval.value):
        return "-"
    half = f" ± {(interval.high - interval.low) / 2:.1f}" if math.isfinite(interval.high) else ""
    return f"{interval.value:.1f}{half}"


def _claims(table: Mapping[str, Any], figures: Mapping[str, Mapping[int, Any]]) -> list[str]:
    lines: list[str] = []
    for claim in table.get("claims", []):
        better, worse = (shares_by_seed(figures.get(claim[side], {}), table["judged"]) for side in ("better", "than"))
        pairs = sorted(better.keys() & worse.keys())
        gain = over_seeds([better[seed] - worse[seed] for seed in pairs])
        prefix = f"{claim['of']}: " if "of" in claim else ""
        text = f"* {prefix}{claim['better']} above {claim['than']}: {verdict_of(gain)}"
        if math.isfinite(gain.low):
            text += f", {gain.value:+.1f} ({gain.low:+.1f} to {gain.high:+.1f}; {len(pairs)} pairs)"
        lines.append(f"{text}.")
    return ["", *lines] if lines else []


def verdict_of(gain: Interval) -> str:
    """Returns what the interval of a paired difference says of the claim that the difference is above zero."""
    if not math.isfinite(gain.low):
        return "not judged, a row is not measured yet"
    return "seen" if gain.low > 0 else "against" if gain.high < 0 else "not resolved"
