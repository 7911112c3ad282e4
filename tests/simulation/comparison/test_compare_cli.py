"""What the command hands on; the comparison itself is tested in test_compare.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.doubles.tasks import JUDGED, make_task
from undersong.cli import app
from undersong.run.options import ComparisonOptions
from undersong_common.errors import ConfigurationError


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[ComparisonOptions]:
    calls: list[ComparisonOptions] = []

    def compared(_task: Path, options: ComparisonOptions, **_arguments: Any) -> list[Any]:
        calls.append(options)
        return []

    monkeypatch.setattr("undersong.comparison.grid.compared", compared)
    return calls


@pytest.mark.parametrize(("options", "test"), [([], "test.jsonl"), (["--test", "other.jsonl"], "other.jsonl")])
def test_comparison_without_a_test_file_uses_that_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: list[ComparisonOptions], options: list[str], test: str
) -> None:
    path = make_task(tmp_path, evaluation=JUDGED)
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["compare", str(path), "--methods", "wasp,dpkps", *options], standalone_mode=False)
    (arguments,) = called
    assert arguments.methods == ["wasp", "dpkps"]
    assert Path(str(arguments.test)).resolve() == tmp_path / test


def test_comparison_without_any_test_file_is_refused(tmp_path: Path, called: list[ComparisonOptions]) -> None:
    path = make_task(tmp_path)
    done = CliRunner().invoke(app, ["compare", str(path)], standalone_mode=False)
    assert isinstance(done.exception, ConfigurationError)
    assert "--test FILE" in done.exception.remedy
    assert "evaluation.test" in done.exception.remedy
    assert not called
