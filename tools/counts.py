"""Sizes of the code: statements and files per package, and docstrings that open with a subordinate clause.

``python -m tools.counts`` prints a table of the packages, the tools and the tests. A statement is an ``ast.stmt`` node;
generated messages do not count. ``python -m tools.counts rooms`` has a row per folder.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from tools.documents import ROOT, tracked

PACKAGES = ("common", "protocol", "client", "server", "simulation")
# First words of subordinate clauses.
CLAUSES = frozenset(
    [
        "what",
        "whether",
        "of",
        "as",
        "where",
        "who",
        "whose",
        "how",
        "that",
        "which",
        "when",
        "why",
        "until",
        "because",
        "if",
    ]
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Size:
    """Sums over the files of one row."""

    files: int = 0
    lines: int = 0
    statements: int = 0
    docstrings: int = 0
    clauses: int = 0

    def add(self, source: str) -> None:
        """Counts one file."""
        nodes = list(ast.walk(ast.parse(source)))
        opened = [opening(text) for node in nodes if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node))]
        self.files += 1
        self.lines += source.count("\n")
        self.statements += sum(isinstance(node, ast.stmt) for node in nodes)
        self.docstrings += len(opened)
        self.clauses += sum(word in CLAUSES for word in opened)


def opening(docstring: str) -> str:
    """First word of a docstring, in small letters.

    >>> opening("Whether it holds."), opening("What's left: nothing.")
    ('whether', "what's")
    """
    return docstring.split()[0].rstrip(",;:.").casefold()


def sizes(folders: Collection[str] = (*PACKAGES, "tools", "tests"), *, rooms: bool = False) -> dict[str, Size]:
    """Sizes by top folder, or by folder."""
    found: defaultdict[str, Size] = defaultdict(Size)
    for path in tracked("*.py"):
        parts = path.relative_to(ROOT).parts
        if parts[0] in folders and not path.name.endswith("_pb2.py"):
            found["/".join(parts[:-1][:3]) if rooms else parts[0]].add(path.read_text(encoding="utf-8"))
    return dict(sorted(found.items()))


def main(*, rooms: bool) -> None:
    """Prints the table, and the sum over the packages."""
    found = sizes(rooms=rooms)
    counted = [vars(size) for name, size in found.items() if not name.startswith(("tools", "tests"))]
    found["the five packages"] = Size(**{key: sum(each[key] for each in counted) for key in vars(Size())})
    print(f"{'':44}{' files':>6}{'lines':>8}{'statements':>12}{'docstrings':>12}{'clauses':>9}")
    for name, size in found.items():
        print(f"{name:44}{size.files:6}{size.lines:8}{size.statements:12}{size.docstrings:12}{size.clauses:9}")


if __name__ == "__main__":
    main(rooms="rooms" in sys.argv[1:])
