"""The pages and tables of the site that programs write. The repository has none of them: `make docs` adds them.

A document links to the file from which a page is written. The link is good in the repository, and on the site it opens
the page. A mark such as ``<!-- generated: papers -->`` is where a table stands on the site.
"""

import re
from collections.abc import Callable

from tools import command_options, papers, task_keys, transition_tables
from tools.documents import ROOT

PICTURES = ROOT / "docs" / "pictures" / "console"
MARK = re.compile(r"<!-- generated: ([a-z-]+) -->")


def screens() -> str:
    """Returns the pictures of every screen of both pages, wide and narrow, each below its name."""
    lines = []
    for wide in sorted(PICTURES.glob("*-wide.png")):
        name = wide.stem.removesuffix("-wide")
        program, _, screen = name.partition("-")
        title = {"console": "The operator's console", "page": "The hospital's page"}[program]
        words = screen.replace("-", " ")
        lines += [f"**{title}: {words}**", ""]
        lines += [f"![{title}, {words}, {width}](pictures/console/{name}-{width}.png)" for width in ("wide", "narrow")]
        lines.append("")
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "papers": papers.overview,
    "party-transitions": transition_tables.party_table,
    "coordinator-transitions": transition_tables.coordinator_table,
    "screens": screens,
}
SOURCES = {
    **{papers.source(name): f"papers/{name}.md" for name in papers.methods()},
    "server/undersong_server/runs/task.py": task_keys.PAGE,
    "simulation/undersong/cli.py": command_options.PAGE,
}


def pages() -> dict[str, str]:
    """Returns the text of every generated page by its place below docs/."""
    return {**papers.pages(), task_keys.PAGE: task_keys.page(), command_options.PAGE: command_options.page()}


def parts() -> list[str]:
    """Returns the tables that stand at marks within pages."""
    return [part() for part in PARTS.values()]


def fill(markdown: str) -> str:
    """Returns a page with a generated part after every mark. Raises KeyError for a mark without a part."""
    return MARK.sub(lambda mark: PARTS[mark[1]](), markdown)
