"""Every task file that comes with the project runs in a simulation with all its generators, and by every method."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from tests.doubles.chat_server import ChatServer, completion, serving
from tests.doubles.delivery import delivered
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.steerable import steer_by_packaged
from tests.examples.test_task_files import CLINIC, TASKS, public_files
from undersong.deliver import Delivered
from undersong_common import embedders
from undersong_server import methods
from undersong_server.runs import task as tasks

pytestmark = pytest.mark.slow

A_LABEL = 40  # rows of every file
IN_ROUNDS = ("method.rounds=2",)
SMALL = {  # what a small run of each method needs beside its number of texts
    "augpe": IN_ROUNDS,
    "discriminator": ("method.queries=16", f"method.embedding_size={HashedEmbedder.dimension}"),
    "dpga": (*IN_ROUNDS, "method.keywords_per_label=4", f"method.embedding_size={HashedEmbedder.dimension}"),
    "dpkps": ("method.pairs=32", "method.length=3", "method.false_terms=1"),
    "fusegen": IN_ROUNDS,
    "cleaned-mixture": (),
    "mixture": (),
    "mixture+labels": (),
    "pretext": IN_ROUNDS,
    "undersong": IN_ROUNDS,
    "tuned": (
        "method.prompts=8",
        "method.texts=4",
        "method.rejected=2",
        f"method.embedding_size={HashedEmbedder.dimension}",
    ),
    "vector": (f"method.embedding_size={HashedEmbedder.dimension}",),
    "wasp": IN_ROUNDS,
}
WEIGHED = ("wasp", "undersong")  # which give the generators weights


def with_texts(path: Path, folder: Path, url: str) -> Path:
    """The task, its endpoints at ``url``, with made-up rows in all its files below ``folder``."""
    written = folder / "task.toml"
    text = path.read_text(encoding="utf-8").replace('root = ""', f"root = {json.dumps(str(folder))}")
    for port in (8001, 8002):
        text = text.replace(f'"http://localhost:{port}/v1"', json.dumps(url))
    text = re.sub(r'model = "(first|second|writer)"', 'model = "tiny"', text)
    written.write_text(text, encoding="utf-8")
    loaded = tasks.load(written)
    for number, file in enumerate(dict.fromkeys([*loaded.files, *public_files(loaded)])):
        rows = [
            {loaded.data.text: f"{label} of file {number}, row {row} and more", str(loaded.data.label): label}
            for label in loaded.task.labels
            for row in range(A_LABEL)
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        table = pd.DataFrame(rows)
        if file.suffix == ".csv":
            table.to_csv(file, index=False)
        else:
            named = table.assign(text=table[loaded.data.text], label=table[str(loaded.data.label)])
            named.to_json(file, orient="records", lines=True)
    return written


def simulated(path: Path, folder: Path, *assignments: str) -> Delivered:
    return delivered(tasks.load(path, assignments), folder / "out", fresh=True)


def test_every_method_has_its_small_run() -> None:
    assert SMALL.keys() == set(methods.own_names())


@pytest.mark.parametrize(
    ("path", "method"),
    [
        (path, method)
        for path in (*(each for each in TASKS if len(tasks.load(each).generators) > 1), CLINIC)
        for method in (SMALL if path == CLINIC else WEIGHED)
    ],
    ids=lambda value: getattr(value, "stem", value),
)
def test_all_generators_of_a_shipped_task_write_together(path, method, tmp_path, monkeypatch):
    monkeypatch.setattr(embedders, "load", HashedEmbedder)
    steer_by_packaged(monkeypatch)
    calls = itertools.count()
    writer = ChatServer(
        lambda _prompt: completion(f"<text>A question, number {next(calls)}, of a bank.</text>"), key=""
    )
    with serving(writer):
        here = CLINIC if path == CLINIC else with_texts(path, tmp_path, writer.url)
        labels = len(tasks.load(here).task.labels)
        few = (f"method.samples={8 * max(labels, 10)}", *SMALL[method])
        size = () if path == CLINIC else (f"data.file_records={A_LABEL * labels}", f"data.records={20 * labels}")
        done = simulated(here, tmp_path, f"method.name={method}", *few, *size)
    wanted = {generator.name for generator in tasks.load(here).generators}
    assert len(wanted) > 1
    assert {sample.generator for sample in done.report.samples} == wanted
    assert bool(done.report.weights) or method not in WEIGHED
    assert done.report.privacy.is_private is False  # the noise is reproducible here
    assert len(done.report.samples) > (3 * labels if method in WEIGHED else 10)
