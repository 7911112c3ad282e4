"""Writes docs/methods.md and docs/papers/ from the table of every paper (undersong_server/methods/papers).

`python -m tests.papers` writes them; a test compares what it would write with what stands there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import paper_tables as measured
from undersong_server.methods.parts import papers

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
VERDICTS = {
    "faithful": "as the paper has it (the test compares with an independent computation, or with figures typed anew)",
    "as written": "as the paper says, in our wording (the test looks at what is done)",
    "otherwise": "done in another way, which the row states",
    "not done": "missing",
}
BY_HAND = "\n## One small model, live"  # from here on the page is not the tables'
HEAD = ("where in the paper", "element", "here", "`preset` sets", "code", "verdict", "test")
PUBLISHED = "the published code"  # heading of a column that a page without such code does not have
INTRODUCTION = """# The papers, element by element

> Figures of the method `undersong` on this page were measured at commit b88cc16b, before it set texts aside, wrote
> missing ones anew and followed its verdict at half a standard error.

Each page below is written from one table in the program (`server/undersong_server/methods/papers/METHOD.toml`): an
element of the paper, where it stands there, what is done here, the file that does it, a verdict, and the test that
checks it. What an element sets under `preset = "paper"` stands in the same row, beside what the paper says of it; where
the paper gives no value, the row says that the value is ours.

    undersong simulate task.toml --method wasp --set method.preset=paper
    undersong compare task.toml --methods 'wasp:preset=paper,wasp,augpe@NAME:preset=paper'

A preset sets the method's values as the paper has them, its noise and accounting included, except where a row says
otherwise or that the paper leaves it open. Embedding model, task model, language models and data are those of the
task file, whatever the paper has. `undersong plan` prints what the noise really costs, and the ledgers charge the
real cost. Defaults, task file, preset, command line: the later one wins, and plan and report name each value that a
preset replaced and each that the command line took back. Inside [method], a key that the file has beside `preset` is a
change too; where the command line names another method than the file's and a preset, none of the file's options of its
method counts.

The column "the published code" says where the authors' program does otherwise than their paper or than this project,
as far as it was read. Figures of a paper may come from it, and a fault of it is in no preset. DP-KPS names no code;
Song's was not read.

Without a preset the defaults are the product's: less noise at equal epsilon, and prompts with hints.
`METHOD@GENERATOR` in `undersong compare` runs a method with one generator alone.

Where a step of a paper is not private as the paper states, or private only with one curator who holds all records, its
row says so. Such a preset runs in `undersong simulate` and `undersong compare` only, with epsilon infinite and all
outputs marked as not private; the epsilon of the task is then the one that the paper's accounting states. A
coordinator refuses it, naming the steps. A party needs no such list:
it computes the price of a plan's sums itself, whatever method the plan names, and refuses an epsilon beyond its policy.

| verdict | meaning |
|---|---|
"""


def page(method: str) -> str:
    """The page of one method's paper."""
    table = papers.table(method)
    lines = [f"# {table['title']}: the paper, element by element", "", f"{table['paper']}", ""]
    lines += [f'`[method] name = "{method}"`. {table["about"].strip()}', ""]
    for key, said in papers.NOT_PRIVATE.items():
        if steps := [f"{row[key]}." for row in table["elements"] if key in row]:
            lines += [f"**{said.capitalize()}.** {' '.join(step[0].upper() + step[1:] for step in steps)}", ""]
    lines += [f"Verdicts: {'; '.join(f'*{verdict}*, {meaning}' for verdict, meaning in VERDICTS.items())}.", ""]
    head = [*HEAD[:3], *([PUBLISHED] if _is_compared(table) else []), *HEAD[3:]]
    lines += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    several = any("presets" in row for row in table["elements"])
    lines += [f"| {' | '.join(_cells(row, several, _is_compared(table)))} |" for row in table["elements"]]
    ours = measured.section(method, measured.read_cells())
    if table.get("tables"):
        lines += ["", "## The paper's tables", "", TABLES.strip(), MEASURED if ours else NOT_MEASURED]
    for each in table.get("tables", []):
        lines += ["", f"### {each['name']}", "", each["numbers"]]
        if "command" in each:
            lines += ["", *(f"    {line}" for line in each["command"].strip().splitlines())]
    return "\n".join([*lines, *ours]) + "\n"


TABLES = """
The commands give the panel's score beside the metrics of the paper that `compare` knows; FOLDER holds the data. The
numbers are the paper's, with its models, data and task model."""
MEASURED = '`python -m benchmarks.papers` runs some of these rows small: "Measured here, small" has what was measured.'
NOT_MEASURED = "`python -m benchmarks.papers` has the same rows at a small size; none of them has been measured yet."


def index() -> str:
    """The page that names all others."""
    rows = [f"| {verdict} | {meaning} |" for verdict, meaning in VERDICTS.items()]
    lines = [INTRODUCTION + "\n".join(rows), "", "| paper | method | page |", "|---|---|---|"]
    for name in methods():
        table = papers.table(name)
        lines.append(f"| {table['paper'].split(': ')[0]} | `{name}` | [{table['title']}](papers/{name}.md) |")
    return "\n".join([*lines, "", ENDING.strip()]) + "\n"


ENDING = """
Beside them stand `undersong` ([method.md](method.md)), `vector` (after EPSVec, whose paper has no table here: one
private sum of hidden states steers a local model, [vector.md](vector.md)), `tuned` (after POPri: private sums give
the pairs by which a local model is tuned, [tuned.md](tuned.md)) and the baselines `mixture` (zero-shot
texts of all generators in equal parts, nothing private), `mixture+labels` (the same with the records' label shares,
from one private label histogram; `label_shares` names others than half-way to equal ones)
and `cleaned-mixture` (its texts, and where the other texts contradict a label it is replaced by the likelier one or
the text is dropped, at most a fifth of each label's). The gain of a method over it is what the records are worth
beyond their labels, see [results.md](results.md).

Every option of every method is changed in tests/server/methods/test_options_take_effect.py, which compares prompts,
plan, opened vectors or corpus with and without the change. Switching methods on the command line (`--method dpkps`)
sets the task file's options that it does not have aside and names them once."""


def methods() -> list[str]:
    """The methods that have a table, in the order of the index."""
    return sorted(
        (file.name.removesuffix(".toml") for file in papers.FILES.iterdir() if file.name.endswith(".toml")),
        key=lambda name: (papers.table(name).get("order", 9), name),
    )


def pages() -> dict[Path, str]:
    """Every generated page by its path."""
    _, heading, by_hand = (DOCS / "methods.md").read_text(encoding="utf-8").partition(BY_HAND)
    return {DOCS / "methods.md": index() + heading + by_hand} | {
        DOCS / "papers" / f"{name}.md": page(name) for name in methods()
    }


def _is_compared(table: Mapping[str, Any]) -> bool:
    """Whether a page says what the authors' program does otherwise."""
    return any("published" in row for row in table["elements"])


def _cells(row: Mapping[str, Any], several: bool, compared: bool) -> list[str]:
    """The cells of an element's line; its presets are named where the page has ``several``."""
    given = [f"`{key.removeprefix('method.')} = {_toml(value)}`" for key, value in row.get("set", {}).items()]
    names = [f"({', '.join(row.get('presets', [papers.PAPER]))})"] if given and several else []
    here = row["here"] + "".join(f" **{said.capitalize()}.**" for key, said in papers.NOT_PRIVATE.items() if key in row)
    code, test = (f"`{row[key]}`" if key in row else "" for key in ("code", "test"))
    published = [row.get("published", "")] if compared else []
    cells = [row["where"], row["element"], here, *published, ", ".join(given) + "".join(f" {name}" for name in names)]
    return [cell.replace("|", "\\|") for cell in [*cells, code, row["verdict"], test]]


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return (
        str(value).lower() if isinstance(value, bool) else repr(value) if not isinstance(value, str) else f'"{value}"'
    )


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
