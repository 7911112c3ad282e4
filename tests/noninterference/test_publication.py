"""What a run publishes is a function of its opened sums: two data sets, the same sums, the same files to the byte."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.delivery import delivered
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.tasks import LABELS, make_task, write_rows
from undersong_common.models.embedding import Embedder
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.federation.sums import Federation
from undersong_server.runs import task as tasks


def read_files(folder: Path) -> dict[str, bytes]:
    """Every file but those of the private state folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".undersong" not in path.relative_to(folder).parts
    }


def run(task: Path, out: Path, cache: Path) -> dict[str, bytes]:
    delivered(tasks.load(task, []), out, insecure_noise_seed=5, public_cache=cache)
    return read_files(out)


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["undersong", pytest.param("wasp", marks=pytest.mark.slow)])
def test_equal_opened_sums_give_equal_published_files(tmp_path: Path, monkeypatch: Any, method: str) -> None:
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    opened: dict[str, NoisySum] = {}
    real = Federation.private_sum
    exact: list[list[int]] = []

    def repeated(self: Federation, name: str, inputs: Any) -> NoisySum:
        found = real(self, name, inputs)  # asked, charged, masked and opened as ever
        exact.append([int(value) for value in found.values])
        return opened.setdefault(name, found)

    monkeypatch.setattr(Federation, "private_sum", repeated)
    task = make_task(tmp_path / "task", records=8, method={"name": method})
    text = task.read_text(encoding="utf-8")
    if method == "undersong":  # has none of WASP's further options
        text = re.sub(r"(?m)^(votes|examples|shortlist) = .*\n", "", text)
    task.write_text(text, encoding="utf-8")
    first = run(task, tmp_path / "first", tmp_path / "cache.sqlite")
    sums = len(exact)
    for number, path in enumerate(sorted((tmp_path / "task" / "private").glob("*.jsonl"))):
        rows: list[dict[str, object]] = [
            {"text": f"other words {number} {row} zzz", "label": LABELS[0], "user": f"v{row}"}
            for row in range(3 + number)
        ]
        write_rows(path, rows)
    second = run(task, tmp_path / "second", tmp_path / "cache.sqlite")
    assert exact[:sums] != exact[sums:]  # the data sets are really others
    assert sorted(first) == sorted(second)
    different = [name for name in first if first[name] != second[name]]
    assert not different, {name: _first_difference(first[name], second[name]) for name in different}
    assert any(name.endswith(".jsonl") for name in first)
    assert not any(b"zzz" in content for content in second.values())


def _first_difference(one: bytes, two: bytes) -> str:
    at = next((index for index, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return json.dumps(
        [one[max(0, at - 80) : at + 40].decode("latin-1"), two[max(0, at - 80) : at + 40].decode("latin-1")]
    )
