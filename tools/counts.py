"""Sizes of the code, and figures of how it reads.

``python -m tools.counts`` prints a table of the packages, the tools and the tests, then the figures with their goals.
A statement is an ``ast.stmt`` node; generated messages do not count. ``python -m tools.counts rooms`` has a row per
folder, and ``python -m tools.counts figures`` prints the figures alone. CONTRIBUTING.md states the habits behind them.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tools.documents import ROOT, tracked


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


PACKAGES = ("common", "protocol", "client", "server", "simulation")
# First words of subordinate clauses, with which no docstring should open.
CLAUSES = word_set("what whether of as where who whose how that which when why until because if")
# A comment that opens with one of these continues a line of code instead of being a sentence.
FRAGMENTS = (CLAUSES - {"when", "because", "if"}) | word_set(
    "at in on by with without from to into than under over after before between beside among"
)
# Words that say how a value came about or where it stands, and not what it is. A name of such words alone counts.
GRAMMAR = word_set(
    """
    found known given kept asked opened shown named said told left chosen wanted stated seen made begun held taken done
    refused declared answered ended needed used listed changed decided counted sent lost read got gone led come came
    each every own other others one another most whole rest both any all none some such same ours theirs its them they
    what which where when how that this these those at now out of on in over under until before after here there around
    inside outside beside between together alone about once again more less than as so too only up down off for by from
    """
)
MOST_PARAMETERS, MOST_LINES, LONGEST_TEST_NAME = 7, 60, 70
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DIRECTIVE = re.compile(r"noqa|type:|pragma|fmt:|nosec|!|mypy")
WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")


@dataclass
class Size:
    """Numbers of files, lines and so on of one row of the table: sums over its files."""

    files: int = 0
    lines: int = 0
    statements: int = 0
    docstrings: int = 0
    clauses: int = 0

    def add(self, source: str) -> None:
        """Adds the lines, statements and docstrings of one file's ``source`` to the sums."""
        nodes = list(ast.walk(ast.parse(source)))
        openings = [
            opening(text) for node in nodes if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node))
        ]
        self.files += 1
        self.lines += source.count("\n")
        self.statements += sum(isinstance(node, ast.stmt) for node in nodes)
        self.docstrings += len(openings)
        self.clauses += sum(word in CLAUSES for word in openings)


@dataclass(frozen=True)
class Figure:
    """A figure of how the code reads, beside its goal."""

    name: str
    value: float
    goal: str


def opening(docstring: str) -> str:
    """Returns the first word of a docstring, in small letters.

    >>> opening("Whether it holds."), opening("What's left: nothing.")
    ('whether', "what's")
    """
    return docstring.split()[0].rstrip(",;:.").casefold()


def sizes(folders: Collection[str] = (*PACKAGES, "tools", "tests"), *, rooms: bool = False) -> dict[str, Size]:
    """Returns the sizes by top folder, or with ``rooms`` by folder."""
    rows: defaultdict[str, Size] = defaultdict(Size)
    for path in tracked("*.py"):
        path_parts = path.relative_to(ROOT).parts
        if path_parts[0] in folders and not path.name.endswith("_pb2.py"):
            rows["/".join(path_parts[:-1][:3]) if rooms else path_parts[0]].add(path.read_text(encoding="utf-8"))
    return dict(sorted(rows.items()))


def figures(product: Mapping[str, str], tests: Mapping[str, str], documents: Collection[str]) -> list[Figure]:
    """Returns how the code reads, in figures: of product and test sources by path, and of the documents' texts."""
    trees = [ast.parse(source) for source in product.values()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    test_nodes = [node for source in tests.values() for node in ast.walk(ast.parse(source))]
    functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
    docstrings = [text for node in nodes if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node))]
    test_names = [node.name for node in test_nodes if isinstance(node, FUNCTIONS) and node.name.startswith("test_")]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    names = [name for tree in trees for name in bound_names(tree)]
    texts = [text for source in product.values() for text in comments(source)]
    statements, test_statements = (sum(isinstance(node, ast.stmt) for node in group) for group in (nodes, test_nodes))
    repeated_classes = sum(count > 1 and name not in ("Options", "Settings") for name, count in classes.items())
    plain_names = [node.name.strip("_") for node in functions if not re.fullmatch(r"__\w+__", node.name)]
    return [
        Figure("grammar words, % of bound names", percentage(sum(map(is_grammar, names)), len(names)), "4.0"),
        Figure(
            "one-word functions, %", percentage(sum("_" not in name for name in plain_names), len(plain_names)), "45"
        ),
        Figure("comments that are fragments, %", percentage(sum(map(is_fragment, texts)), len(texts)), "5"),
        Figure("docstrings that open with a clause", sum(opening(text) in CLAUSES for text in docstrings), "0"),
        Figure(
            "functions over 7 parameters", sum(count_parameters(node) > MOST_PARAMETERS for node in functions), "20"
        ),
        Figure("functions over 60 lines", sum(count_lines(node) > MOST_LINES for node in functions), "15"),
        Figure("class names that stand twice", repeated_classes, "3"),
        Figure("test statements per statement", round(test_statements / max(1, statements), 2), "1.10"),
        Figure("test names over 70 characters", sum(len(name) > LONGEST_TEST_NAME for name in test_names), "0"),
        Figure("words of documents", sum(len(WORD.findall(text)) for text in documents), "72000"),
    ]


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Yields every parameter and every plain name that is assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg


def comments(source: str) -> Iterator[str]:
    """Yields the text of every comment; whole lines that follow each other are one comment."""
    last_row = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("#").strip()
        if token.type != tokenize.COMMENT or not text or DIRECTIVE.match(text):
            continue
        row, fills_line = token.start[0], token.line.strip().startswith("#")
        if not fills_line or row != last_row + 1:
            yield text
        last_row = row if fills_line else -1


def is_grammar(name: str) -> bool:
    """Returns True if a name consists of words of grammar alone.

    >>> is_grammar("found_each"), is_grammar("opened_sum")
    (True, False)
    """
    parts = name.strip("_").lower().split("_")
    return parts != [""] and all(part in GRAMMAR for part in parts)


def is_fragment(comment: str) -> bool:
    return opening(comment) in FRAGMENTS


def count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = (*function.args.args, *function.args.kwonlyargs)
    return sum(argument.arg not in ("self", "cls") for argument in arguments)


def count_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def percentage(part: int, whole: int) -> float:
    return round(100 * part / max(1, whole), 1)


def read_figures() -> list[Figure]:
    """Returns the figures of this checkout."""
    sources = {str(path.relative_to(ROOT)): path for path in tracked("*.py") if not path.name.endswith("_pb2.py")}
    product, tests = (
        {name: path.read_text(encoding="utf-8") for name, path in sources.items() if name.split("/")[0] in folders}
        for folders in (PACKAGES, ("tests",))
    )
    return figures(product, tests, [path.read_text(encoding="utf-8") for path in tracked("*.md")])


def print_sizes(*, rooms: bool) -> None:
    """Prints the table, and the sum over the packages."""
    rows = sizes(rooms=rooms)
    counted = [vars(size) for name, size in rows.items() if not name.startswith(("tests", "tools"))]
    rows["the five packages"] = Size(**{key: sum(size[key] for size in counted) for key in vars(Size())})
    print(f"{'':44}{' files':>6}{'lines':>8}{'statements':>12}{'docstrings':>12}{'clauses':>9}")
    for name, size in rows.items():
        print(f"{name:44}{size.files:6}{size.lines:8}{size.statements:12}{size.docstrings:12}{size.clauses:9}")


def main(words: Collection[str]) -> None:
    """Prints the table, by top folder or by folder, unless ``words`` of the command line ask for the figures alone."""
    if "figures" not in words:
        print_sizes(rooms="rooms" in words)
    for figure in read_figures():
        print(f"{figure.name:36}{figure.value:>9g}   goal: {figure.goal}")


if __name__ == "__main__":
    main(sys.argv[1:])
