"""The counts of CONTRIBUTING.md: statements, and docstrings that open with a subordinate clause."""

import pytest

from tools.counts import PACKAGES, Size, sizes


def test_statements_and_openings_are_counted():
    size = Size()
    size.add('"""Whether it holds."""\n\n\ndef f():\n    """Returns one."""\n    return 1\n')
    assert size == Size(files=1, lines=6, statements=4, docstrings=2, clauses=1)


@pytest.mark.heavy
def test_no_docstring_of_the_packages_opens_with_a_subordinate_clause():
    found = sizes(PACKAGES)
    assert {name: found[name].clauses for name in PACKAGES} == dict.fromkeys(PACKAGES, 0)
