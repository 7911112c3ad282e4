"""Every task file that comes with the project is valid, and the clinic's finds its data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.clinic.cases import LABELS
from undersong_server.generators.kinds.replay import ReplaySettings
from undersong_server.runs import task

ROOT = Path(__file__).parents[2]
TASKS = sorted((ROOT / "benchmarks" / "tasks").glob("*.toml"))
CLINIC = ROOT / "examples" / "clinic" / "task.toml"


def public_files(loaded: task.Task) -> list[Path]:
    paths: list[str] = [] if loaded.evaluation.test is None else [loaded.evaluation.test]
    for generator in loaded.generators:
        paths += getattr(generator, "corpus", ())
        paths += [generator.path] if isinstance(generator, ReplaySettings) else []
    return [loaded.locate(path) for path in paths]


def test_expected_example_task_files_exist() -> None:
    assert {path.stem for path in TASKS} >= {"banking_groups", "movie_reviews", "mts_dialog", "banking77", "banking10"}


ONE_CURATOR = ("dbpedia14", "mimic")  # as its paper, DP-KPS, has it


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_example_task_is_valid_and_reads_only_below_the_given_root(path: Path, tmp_path: Path) -> None:
    loaded = task.load(path, [f"data.root={tmp_path}"])
    files = [*loaded.files, *public_files(loaded)]
    assert len(files) >= 2
    assert all(file.is_relative_to(tmp_path) for file in files)
    assert loaded.parties >= (1 if path.stem in ONE_CURATOR else 5)
    assert loaded.data.label is not None
    assert loaded.generators


def test_the_clinic_finds_its_hospitals_corpora_and_test_set() -> None:
    loaded = task.load(CLINIC)
    assert loaded.task.labels == LABELS
    assert loaded.one_file_per_party
    assert loaded.parties == len(loaded.files) == 5
    assert len(public_files(loaded)) == 4
    for file in (*loaded.files, *public_files(loaded)):
        assert {json.loads(line)["label"] for line in file.read_text(encoding="utf-8").splitlines()} <= set(LABELS)


def test_every_key_of_the_clinic_is_explained() -> None:
    """A comment stands above each key, or above the run of keys it belongs to."""
    explained = False
    for line in CLINIC.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            explained = True
        elif not line.strip():
            explained = False
        elif "=" in line:
            assert explained, line
