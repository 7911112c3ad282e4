"""The counts of CONTRIBUTING.md: statements, and docstrings that open with a subordinate clause."""

import pytest

from tools.counts import Size, figures


def test_statements_and_docstring_openings_are_counted():
    size = Size()
    size.add('"""Whether it holds."""\n\n\ndef f():\n    """Returns one."""\n    return 1\n')
    assert size == Size(files=1, lines=6, statements=4, docstrings=2, clauses=1)


PRODUCT = """
# From the last line on.
def run(found, given_name, a, b, c, d, e, f):
    each = found  # A sentence about the value.
    return each


class Options: ...
class Party: ...
"""


def figure(name, product=PRODUCT, tests="", documents=()):
    rows = figures({"one.py": product, "two.py": "class Options: ...\nclass Party: ...\n"}, {"t.py": tests}, documents)
    return next(row.value for row in rows if row.name.startswith(name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grammar words", 22.2),  # found and each, of nine names
        ("one-word functions", 100.0),
        ("comments that are fragments", 50.0),
        ("functions over 7 parameters", 1),
        ("functions over 60 lines", 0),
        ("class names that stand twice", 1),
    ],
)
def test_code_figures_of_a_small_example_source_are_as_counted_by_hand(name, value):
    assert figure(name) == value


def test_long_functions_long_test_names_and_words_of_documents_are_counted():
    long_function = "def compute_all():\n" + "    pass\n" * 60
    assert figure("functions over 60 lines", long_function) == 1
    assert figure("test names over", tests=f"def test_{'a' * 66}(): ...\n") == 1
    assert figure("test names over", tests=f"def test_{'a' * 65}(): ...\n") == 0
    assert figure("words of documents", documents=["# Two words\n", "| 1 | three |"]) == 3
