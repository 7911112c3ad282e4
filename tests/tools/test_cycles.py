"""The check of circular imports finds a circle, wherever in a file the import stands."""

import sys
from itertools import pairwise

import grimp

from tools.cycles import cycle


def test_import_cycle_is_named_in_the_order_of_its_imports():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": set(), "d": {"a"}}) == []
    found = cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})
    assert found[0] == found[-1]
    assert sorted(found[1:]) == ["a", "b", "c"]
    order = dict(pairwise(found))
    assert order == {"a": "b", "b": "c", "c": "a"}


def test_imports_in_functions_and_for_type_checkers_count_for_cycles(tmp_path, monkeypatch):
    package = tmp_path / "circular_example"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("def f():\n    from circular_example import two\n    return two\n")
    (package / "two.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import circular_example.one\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    graph = grimp.build_graph("circular_example", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert set(cycle(imported)) == {"circular_example.one", "circular_example.two"}
