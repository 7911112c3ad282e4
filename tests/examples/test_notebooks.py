"""The example notebooks run from top to bottom in a kernel."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples").rglob("*.ipynb"))


def read_code_cells(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_committed_notebooks_keep_no_output():
    assert len(NOTEBOOKS) == 3
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), notebook.name


def test_ten_line_notebook_has_at_most_ten_lines_of_code():
    (cell,) = read_code_cells(next(each for each in NOTEBOOKS if each.stem == "ten_lines"))
    assert len([line for line in cell.split("\n") if line]) <= 10


@pytest.mark.slow
@pytest.mark.timeout(900)  # a kernel loads every package anew, and a busy machine takes minutes for it
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_jupyter_kernel_runs_the_whole_notebook(notebook, tmp_path, monkeypatch):
    import nbclient
    import nbformat

    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path))
    book = nbformat.read(notebook, as_version=4)
    nbclient.NotebookClient(book, timeout=240, resources={"metadata": {"path": str(notebook.parent)}}).execute()
    shown = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("text/html" in output.get("data", {}) for output in shown)
    assert not any(output.output_type == "error" for output in shown)
