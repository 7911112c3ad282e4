"""The site's pages of the papers, from the table of every paper.

A method's table lies in undersong_server/methods/papers, that of a method which only a comparison can name in
undersong/comparison/reference_methods.

``python -m tools.papers METHOD`` prints the page of one paper.
"""

import sys
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from benchmarks import paper_tables as measured
from undersong.comparison import reference_methods
from undersong_server.methods.parts import papers

VERDICTS = {
    "faithful": "as the paper has it (the test compares with an independent computation, or with figures typed anew)",
    "as written": "as the paper says, in our wording (the test looks at what is done)",
    "otherwise": "done in another way, which the row states",
    "not done": "missing",
}
HEAD = ("where in the paper", "element", "here", "`preset` sets", "code", "verdict", "test")
OFFERED = '`[method] name = "{}"`'
COMPARED = "`undersong compare --methods {}`; no task can name it"
PUBLISHED = "the published code"  # heading of a column that a page without such code does not have


def page(method: str) -> str:
    """Returns the page of one method's paper."""
    table, usage = table_of(method), COMPARED if is_reference(method) else OFFERED
    lines = [f"# {table['title']}: the paper, element by element", "", f"{table['paper']}", ""]
    lines += [f"{usage.format(method)}. {table['about'].strip()}", ""]
    for key, remark in papers.NOT_PRIVATE.items():
        if steps := [f"{row[key]}." for row in table["elements"] if key in row]:
            lines += [f"**{remark.capitalize()}.** {' '.join(step[0].upper() + step[1:] for step in steps)}", ""]
    lines += [f"Verdicts: {'; '.join(f'*{verdict}*, {meaning}' for verdict, meaning in VERDICTS.items())}.", ""]
    head = [*HEAD[:3], *([PUBLISHED] if _is_compared(table) else []), *HEAD[3:]]
    lines += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    several = any("presets" in row for row in table["elements"])
    lines += [f"| {' | '.join(_cells(row, several, _is_compared(table)))} |" for row in table["elements"]]
    measured_lines = measured.section(method, measured.read_cells())
    if table.get("tables"):
        lines += ["", "## The paper's tables", "", TABLES.strip(), MEASURED if measured_lines else NOT_MEASURED]
    for paper_table in table.get("tables", []):
        lines += ["", f"### {paper_table['name']}", "", paper_table["numbers"]]
        if "command" in paper_table:
            lines += ["", *(f"    {line}" for line in paper_table["command"].strip().splitlines())]
    return "\n".join([*lines, *measured_lines]) + "\n"


TABLES = """
The commands give the panel's score beside the metrics of the paper that `compare` knows; FOLDER holds the data. The
numbers are the paper's, with its models, data and task model."""
MEASURED = '`python -m benchmarks.papers` runs some of these rows small: "Measured here, small" has what was measured.'
NOT_MEASURED = "`python -m benchmarks.papers` has the same rows at a small size; none of them has been measured yet."


def overview() -> str:
    """Returns the verdicts with their meaning, and a table of all papers with links to their pages."""
    lines = ["| verdict | meaning |", "|---|---|"]
    lines += [f"| {verdict} | {meaning} |" for verdict, meaning in VERDICTS.items()]
    lines += ["", "| paper | method | page |", "|---|---|---|"]
    for name in methods():
        table = table_of(name)
        lines.append(f"| {table['paper'].split(': ')[0]} | `{name}` | [{table['title']}](papers/{name}.md) |")
    return "\n".join(lines)


def methods() -> list[str]:
    """Returns the methods that have a table, in the order of the index."""
    offered = [file.name.removesuffix(".toml") for file in papers.FILES.iterdir() if file.name.endswith(".toml")]
    return sorted([*offered, *reference_methods.names()], key=lambda name: (table_of(name).get("order", 9), name))


def is_reference(method: str) -> bool:
    """Returns True if only a comparison can name the method."""
    return method in reference_methods.names()


def table_of(method: str) -> Mapping[str, Any]:
    """Returns the table that lays a method beside its paper, as its TOML file states it."""
    if is_reference(method):
        file = resources.files(reference_methods).joinpath(Path(source(method)).name)
        return tomllib.loads(file.read_text(encoding="utf-8"))
    return papers.table(method)


def source(method: str) -> str:
    """Returns the path of a method's table in the repository."""
    if is_reference(method):
        return f"simulation/undersong/comparison/reference_methods/{method.replace('-', '_')}.toml"
    return f"server/undersong_server/methods/papers/{method}.toml"


def pages() -> dict[str, str]:
    """Returns the page of every paper by its place below docs/."""
    return {f"papers/{name}.md": page(name) for name in methods()}


def _is_compared(table: Mapping[str, Any]) -> bool:
    """Returns True if a page says what the authors' program does otherwise."""
    return any("published" in row for row in table["elements"])


def _cells(row: Mapping[str, Any], several: bool, compared: bool) -> list[str]:
    """Returns the cells of an element's line; its presets are named if the page has ``several``."""
    set_options = [f"`{key.removeprefix('method.')} = {_toml(value)}`" for key, value in row.get("set", {}).items()]
    names = [f"({', '.join(row.get('presets', [papers.PAPER]))})"] if set_options and several else []
    here = row["here"] + "".join(
        f" **{remark.capitalize()}.**" for key, remark in papers.NOT_PRIVATE.items() if key in row
    )
    code, test = (f"`{row[key]}`" if key in row else "" for key in ("code", "test"))
    published = [row.get("published", "")] if compared else []
    cells = [
        row["where"],
        row["element"],
        here,
        *published,
        ", ".join(set_options) + "".join(f" {name}" for name in names),
    ]
    return [cell.replace("|", "\\|") for cell in [*cells, code, row["verdict"], test]]


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return (
        str(value).lower() if isinstance(value, bool) else repr(value) if not isinstance(value, str) else f'"{value}"'
    )


if __name__ == "__main__":
    print(page(sys.argv[1]), end="")
