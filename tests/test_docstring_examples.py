"""The examples in docstrings are true."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OF_THE_LIBRARY = {
    "undersong.library.functions",
    "undersong.library.results",
    "undersong.library.task_files",
}  # tests/simulation/library/test_library_examples.py
PACKAGES = ("common", "protocol", "client", "server", "simulation")
MODULES = [
    ".".join(path.relative_to(ROOT / package).with_suffix("").parts)
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MODULES) - OF_THE_LIBRARY))
def test_docstring_examples_of_each_module_run_as_shown(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_some_modules_have_docstring_examples() -> None:
    assert len(MODULES) > 20
