"""What a plan promises is what a simulation does: sums, epsilon, calls, tokens and money, for every method."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.doubles.chat_server import ChatServer, completion, serving
from tests.doubles.delivery import delivered
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.steerable import steer_by_packaged
from tests.examples.test_task_files import CLINIC, TASKS, public_files
from undersong.run.simulation import Delivered
from undersong_common.models import embedders
from undersong_common.privacy import accounting
from undersong_server import methods
from undersong_server.operations import tasks as task_files
from undersong_server.runs import task as tasks

pytestmark = pytest.mark.slow

A_LABEL = 40  # rows of every file
SMALL = {  # what a small run of a shipped task's method needs beside its number of texts
    "discriminator": ("method.queries=16", f"method.embedding_size={HashedEmbedder.dimension}"),
    "dpkps": ("method.pairs=32", "method.length=3", "method.false_terms=1"),
    "wasp": ("method.rounds=2",),
}


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


def simulate_anew(path: Path, folder: Path, *assignments: str) -> Delivered:
    return delivered(tasks.load(path, assignments), folder / "out", fresh=True)


TOKENS_PER_WORD = 1.5  # of this endpoint's model
GENERATORS = "".join(
    f"""
[[generators]]
name = "{name}"
kind = "openai"
model = "tiny"
base_url = "URL"
api_key_env = ""
max_tokens = 160
price_per_1k_prompt = 0.5
price_per_1k_completion = 1.5
"""
    for name in ("near", "far")
)
OPTIONS = {
    "dpga": ["method.samples=150", "method.rounds=2", "method.embedding_size=48"],
    "discriminator": ["method.samples=120", "method.queries=20", "method.contrast=20", "method.embedding_size=48"],
    "dpkps": ["privacy.epsilon=30.0", "method.samples=60", "method.vocabulary=words.txt", "method.length=3"],
    "mixture": ["method.samples=60"],
    "vector": ["method.samples=60", "method.embedding_size=48"],
    "tuned": [
        "method.samples=30",
        "method.prompts=10",
        "method.texts=4",
        "method.rejected=2",
        "method.embedding_size=48",
    ],
    "mixture+labels": ["method.samples=60"],
    "cleaned-mixture": ["method.samples=60"],
}


def paid_writer() -> ChatServer:
    """Writes texts of 30 to 60 words that are no near duplicates, or lists of names; tells the tokens of each call."""
    words = [f"word{number}" for number in range(400)]
    drawn = random.Random(5)
    calls = itertools.count()

    def write(prompt: str) -> dict[str, Any]:
        chosen = drawn.choices(words, k=drawn.randint(30, 60))
        listed = "Reply with the names only" in prompt
        text = ", ".join(chosen) if listed else " ".join([f"Note {next(calls)}:", *chosen, "."])
        read, written = (round(TOKENS_PER_WORD * len(each.split())) for each in (prompt, text))
        return completion(text, usage=(read, written))

    return ChatServer(write, key="")


def with_endpoints(folder: Path, url: str) -> Path:
    """The clinic's task with two endpoints that cost something for its n-gram models."""
    head, _, rest = CLINIC.read_text(encoding="utf-8").partition("[[generators]]")
    tail = rest[rest.index("[embedder]") : rest.index("[evaluation]")]
    text = (head + GENERATORS.replace("URL", url) + "\n" + tail).replace('"data/', f'"{CLINIC.parent}/data/')
    public = (CLINIC.parent / "data" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    common = Counter(word for line in public for word in set(json.loads(line)["text"].lower().split()))
    words = [word for word, _ in common.most_common(300) if word.isalpha() and len(word) > 3]
    (folder / "words.txt").write_text("\n".join(words), encoding="utf-8")
    path = folder / "task.toml"
    path.write_text(text, encoding="utf-8")
    return path


def check_files(path: Path, done: Delivered, *assignments: str) -> None:
    """The run's own files and counts beside the plan that anybody could have asked for before."""
    planned = task_files.plan(path, assignments, environment={})
    figures, report = planned.figures, done.report
    assert {sample.generator for sample in report.samples} == set(figures.generators)
    assert report.privacy.is_private is False  # the noise is reproducible here
    manifest = json.loads((done.folder / "manifest.json").read_text(encoding="utf-8"))
    promised = [size for each in figures.sums for size in each.dimension]
    signed = manifest["manifest"]["plan"]["sums"]
    assert [each["dimension"] for each in signed] == promised
    not_asked = {each["name"] for each in signed} - set(manifest["sums"])
    assert not_asked <= {"thresholds"}  # which are for labels that public texts say should be careful
    assert set(manifest["sums"]) <= {each["name"] for each in signed}
    asked = len(promised) - len(not_asked)
    for receipt in manifest["receipts"].values():
        charges = [each for each in json.loads(receipt["body"])["entries"] if each["kind"] == "charge"]
        assert len(charges) == asked
        if not promised:
            continue
        events = [
            accounting.Gaussian(event["noise_multiplier"], event["sampling_rate"], event["count"])
            for charge in charges
            for event in charge["events"]
        ]
        spent = accounting.epsilon(events, figures.privacy.delta)
        planned_epsilon = figures.sums[-1].epsilon_so_far or 0.0
        assert spent < planned_epsilon if not_asked else spent == pytest.approx(planned_epsilon, rel=1e-6)
    assert len(report.privacy.epsilon_after) == len(promised)
    groups = list(itertools.accumulate(each.releases for each in figures.sums))
    assert [report.privacy.epsilon_after[last - 1] for last in groups] == [each.epsilon_so_far for each in figures.sums]
    assert report.privacy.promise == figures.privacy
    orders = sum(each.count.orders for each in report.usage)
    task = tasks.load(path, assignments)
    published = methods.load(task.method.name).published(task.options)
    fewest = figures.generator_calls if published is None else min(published, figures.generator_calls)
    assert fewest + figures.trial_calls <= orders <= figures.generator_calls + figures.trial_calls
    if figures.cost is not None:
        calls = sum(each.count.calls for each in report.usage)
        assert calls == orders + sum(each.count.retried for each in report.usage)
        within(sum(each.tokens for each in report.usage), figures.cost.tokens)
        spent = sum(each.count.price_usd for each in report.usage)
        within(spent, figures.cost.price_usd or (0.0, 0.0))  # without a configured price nothing is counted


def embeds_by_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedders, "load", HashedEmbedder)
    monkeypatch.setattr(embedders, "dimension", lambda _model: HashedEmbedder.dimension)


def within(found: float, promised: tuple[float, float]) -> None:
    assert promised[0] <= found
    assert found <= promised[1]


@pytest.mark.parametrize("method", methods.names())
def test_run_of_the_clinic_with_paid_generators_costs_what_its_plan_states(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeds_by_hash(monkeypatch)
    steer_by_packaged(monkeypatch)
    options = OPTIONS.get(method, ["method.samples=60", "method.rounds=3"])
    assignments = [f'method.name="{method}"', *options]
    with serving(paid_writer()) as writer:
        path = with_endpoints(tmp_path, writer.url)
        done = simulate_anew(path, tmp_path, *assignments)
        check_files(path, done, *assignments)


@pytest.mark.parametrize("path", [*TASKS, CLINIC], ids=lambda path: path.stem)
def test_run_of_a_shipped_task_takes_the_calls_that_its_plan_states(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeds_by_hash(monkeypatch)
    with serving(paid_writer()) as writer:
        here = CLINIC if path == CLINIC else with_texts(path, tmp_path, writer.url)
        loaded = tasks.load(here)
        labels = len(loaded.task.labels)
        size: tuple[str, ...] = (
            () if path == CLINIC else (f"data.file_records={A_LABEL * labels}", f"data.records={20 * labels}")
        )
        # The writer's answers have 45 to 90 tokens.
        endpoints = (n for n, each in enumerate(loaded.generators) if path != CLINIC and each.kind == "openai")
        size += tuple(f"generators.{each}.max_tokens=160" for each in endpoints)
        few = (f"method.samples={8 * max(labels, 10)}", *SMALL.get(loaded.method.name, ()), *size)
        check_files(here, simulate_anew(here, tmp_path, *few), *few)
