"""Which method's corpora train the better models, on the settings of ``judged_settings``.

    python -m benchmarks.judged --data FOLDER --out runs/judged
    python -m benchmarks.judged --out runs/judged --page docs/results.md

The first command measures the missing cells: one setting, one method, one seed each. ``--settings``, ``--methods``,
``--seeds`` and ``--first-seed`` choose them. The second puts tables between the page's marks, and a picture beside it.

A cell runs the product's own method, statistics, sensitivities, calibrated noise and ``replay`` generators on one
machine: no parties, masks or ledgers, Gaussian noise in floating point, texts as the pools have them. Its corpus is
judged by the panel (``evaluation/panel.py``), or without labels by next words and MAUVE. ``undersong compare`` on a
setting's task file runs the same with all of it. Embeddings are kept in the cache of public embeddings on this disk:
the data are public.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np

from benchmarks import judged_settings, judged_tables
from benchmarks.next_word import next_word_accuracy
from undersong_common.arrays import Float32, Float64, Int64, UInt64
from undersong_common.canonical import tagged_hash
from undersong_common.models.embedding import CachedEmbedder, Embed, Embedder, PublicFileCache, publishable
from undersong_common.program import entry
from undersong_protocol.agreement.plan import Plan, PlannedSum, Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics.interface import LabelledEmbeddings, PublicInputs
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server import methods
from undersong_server.defaults import public_cache_path
from undersong_server.evaluation import panel
from undersong_server.evaluation.metrics import mauve, next_word_loss
from undersong_server.generators.cleaning import duplicate_key
from undersong_server.generators.interface import Completion, GenerationRequest
from undersong_server.generators.kinds.replay import ReplayGenerator, ReplaySettings
from undersong_server.generators.orders import Order
from undersong_server.methods.interface import Method, Setting
from undersong_server.pool import Pool, Sample, keep_each_once
from undersong_server.runs import task as tasks

METHODS = (
    *("undersong", "cleaned-mixture", "mixture+labels", "mixture", "wasp", "augpe", "best-single", "private-only"),
)
UNLABELLED = ("undersong", "mixture", "wasp", "augpe", "best-single", "private-only")  # methods that need no labels
SINGLE, BEST, WITHOUT = "single:", "best-single", "~"
FIRST_SEED, SEEDS = 300, 8
CHOOSING_SEED = FIRST_SEED - 1  # with it the best single generator is chosen, by the test set
ATTEMPTS = 3  # requests for a text until it is no repetition
DELTA = 1e-5
MAUVE_TEXTS = 300  # texts drawn of each side, since MAUVE depends on their number


class Records:
    """Private records as a statistic reads them, each a unit of its own."""

    local_model = ""
    columns: Mapping[str, Sequence[str]] = {}

    def __init__(self, texts: Sequence[str], labels: Int64, embeddings: Float32) -> None:
        self.texts, self.labels, self.embeddings = texts, labels, embeddings
        self.units: Int64 = np.arange(len(texts), dtype=np.int64)
        self.unit_hashes: UInt64 = self.units.astype(np.uint64)

    def __len__(self) -> int:
        return len(self.texts)


class World:
    """One setting in memory: generators, private records and test set."""

    def __init__(self, path: Path, embed: Embed) -> None:
        self.task = tasks.load(path)
        self.embed = embed
        self.labels, self.names = self.task.task.labels, tuple(each.name for each in self.task.generators)
        self._public: dict[str, Float32] = {}
        root = Path(self.task.data.root)
        settings = [each for each in self.task.generators if isinstance(each, ReplaySettings)]
        self.generators = {
            each.name: ReplayGenerator(each, labels=self.labels, folder=root, embed=self.public) for each in settings
        }
        numbers = {label: number for number, label in enumerate(self.labels)}
        private, test = (judged_settings.json_lines(root / name) for name in ("private.jsonl", "test.jsonl"))
        self._texts = [row["text"] for row in private]
        self._label_of = np.array([numbers.get(row["label"], -1) for row in private], dtype=np.int64)
        self._private = embed(self._texts)
        texts = [row["text"] for row in test]
        self.test = panel.Labelled(texts, [row["label"] for row in test], embed(texts))
        self.judged: dict[bytes, dict[str, Any]] = {}  # figures of corpora that were judged already

    def public(self, texts: Sequence[str]) -> Float32:
        """Embeddings on the public grid, float32 [n, d]; each text is embedded once."""
        new_texts = [text for text in dict.fromkeys(texts) if text not in self._public]
        if new_texts:
            self._public.update(zip(new_texts, publishable(self.embed(new_texts)), strict=True))
        return np.stack([self._public[text] for text in texts])

    def records(self, count: int, seed: int) -> Records:
        record_rows = np.random.default_rng([seed, 77]).permutation(len(self._texts))[:count]
        return Records([self._texts[i] for i in record_rows], self._label_of[record_rows], self._private[record_rows])


class OneMachine:
    """A run context without a federation (:class:`undersong_server.methods.interface.RunContext`)."""

    def __init__(self, world: World, setting: Setting, plan: Plan, records: Records, seed: int) -> None:
        self.setting, self.pool = setting, Pool(setting.labels, setting.generators)
        self.records: dict[str, list[tuple[int, Any]]] = {}
        self._world, self._plan, self._private, self._seed = world, plan, records, seed
        self._given_texts: set[str] = set()
        self._noise, self._steps = np.random.default_rng([seed, 991]), 0
        for generator in world.generators.values():
            generator._used[:] = 0

    def rng(self, step: str) -> np.random.Generator:
        digest = tagged_hash("method randomness", str(self._seed).encode(), step.encode())
        return np.random.default_rng(np.frombuffer(digest, dtype="<u4"))

    def record(self, name: str, round_: int, value: Any) -> None:
        self.records.setdefault(name, []).append((round_, value))

    def state_corpus(self, round_: int, samples: Sequence[Sample]) -> None:
        """Does nothing: figures by round are no part of a cell."""

    def generate(self, step: str, round_: int, orders: Sequence[Order]) -> list[Sample]:
        samples = [sample for sample in self.write(step, round_, orders) if sample is not None]
        self.pool.extend(samples)
        return samples

    def write(self, step: str, round_: int, orders: Sequence[Order]) -> list[Sample | None]:
        samples: list[Sample | None] = [None] * len(orders)
        self._steps += 1
        for attempt in range(ATTEMPTS):
            for name in self.setting.generators:
                generator = self._world.generators[name]
                open_orders = [i for i, order in enumerate(orders) if order.generator == name and samples[i] is None]
                requests = [self._request(orders[i], attempt, i) for i in open_orders]
                for number, answer in generator.answer(requests):
                    order = orders[open_orders[number]]
                    if isinstance(answer, Completion) and (key := duplicate_key(answer.text)) not in self._given_texts:
                        self._given_texts.add(key)
                        samples[open_orders[number]] = Sample(answer.text, order.label, name, round_, order.kind)
        return samples

    def _request(self, order: Order, attempt: int, number: int) -> GenerationRequest:
        seed = self._seed * 1_000_003 + self._steps * 100_003 + attempt * 20_011 + number
        return GenerationRequest(
            order.kind, order.label, "", seed, good=order.good, bad=order.bad, parents=order.parents
        )

    def label_numbers(self, samples: Sequence[Sample]) -> Int64:
        numbers = {name: number for number, name in enumerate(self.setting.labels)}
        return np.array([numbers.get(sample.label, -1) for sample in samples], dtype=np.int64)

    def embeddings(self, samples: Sequence[Sample]) -> Float32:
        return self._world.public([sample.text for sample in samples])

    def publish_numbers(self, name: str, values: Float64) -> tuple[str, Any]:
        return name, np.asarray(values, dtype=np.float64)

    def publish_pool(self) -> tuple[str, Any]:
        samples = self.pool.samples
        return "candidates", LabelledEmbeddings(self.embeddings(samples), self.label_numbers(samples))

    def publish_vectors(self, name: str, step: str, values: Float32, labels: Int64) -> tuple[str, Any]:
        return name, LabelledEmbeddings(publishable(values), labels)

    def votes(self, name: str) -> tuple[Float64, Float64]:
        planned, size = self._plan[name], len(self.pool)
        natural = self.private_sum(name, [self.publish_pool()]).natural
        if not planned.parameters["furthest"]:
            return natural[:size], np.zeros(size)
        half = planned.dimension // 2
        return natural[:size], natural[half : half + size]

    def planned(self, name: str) -> PlannedSum:
        return self._plan[name]

    def sigma(self, name: str) -> float:
        return self._plan[name].sigma_integer / self._plan[name].scale

    def private_sum(self, name: str, inputs: Sequence[tuple[str, Any]]) -> NoisySum:
        planned = self._plan[name]
        embedded = {key: value for key, value in inputs if isinstance(value, LabelledEmbeddings)}
        public = PublicInputs(embedded, {key: value for key, value in inputs if key not in embedded})
        rows = planned.build().rows(self._private, public, {})
        total = np.asarray(rows.take(np.arange(len(rows), dtype=np.int64)).sum(axis=0)).ravel()
        noise = self._noise.normal(0.0, 1.0, len(total)) * planned.sigma_integer
        values = np.rint(total * planned.scale + noise).astype(np.int64)
        return NoisySum(values, planned.scale, self.sigma(name), ("all",))


_Machine = TypeVar("_Machine", bound=OneMachine)


def cell(world: World, method: str, seed: int) -> dict[str, Any]:
    """Returns figures of a method's corpus in per cent: the panel's, or next words and MAUVE if there are no labels.

    ``method`` is ``METHOD[~SUM][:key=value+key=value]``, ``single:NAME`` or ``private-only``. ``~SUM`` leaves out the
    private sums whose names begin with SUM. ``single:NAME`` is the mixture with label shares of one generator.
    """
    texts, labels, records = corpus(world, method, seed)
    return {**_judge_corpus(world, texts, labels, seed), "records": records}


def corpus(world: World, method: str, seed: int) -> tuple[list[str], list[str], dict[str, Any]]:
    """Returns the texts and labels that a method publishes (named as in :func:`cell`), and what its run recorded."""
    if method == "private-only":
        records = world.records(world.task.data.records or 1, seed)
        return list(records.texts), [world.labels[i] if i >= 0 else "" for i in records.labels], {}
    samples, run = run_method(world, method, seed, OneMachine)
    recorded_names = ("weights", "verdict", "trust", "matched", "corpora", "gains", "dropped")
    recorded = {name: values[-1][1] for name, values in run.records.items() if name in recorded_names}
    return [sample.text for sample in samples], [sample.label for sample in samples], recorded


def run_method(world: World, method: str, seed: int, machine: type[_Machine]) -> tuple[Sequence[Sample], _Machine]:
    """Runs a method on one machine; returns the samples that it publishes, and the machine with what it recorded."""
    task, names = world.task, world.names
    if method.startswith(SINGLE):
        names, method = (method.removeprefix(SINGLE),), "mixture+labels" if world.labels else "mixture"
    name, _, option = method.partition(":")
    name, _, omitted_sum = name.partition(WITHOUT)
    chosen_method = without_sum(name, omitted_sum) if omitted_sum else methods.load(name)
    option_values = dict(part.split("=") for part in option.split("+") if part)
    options = chosen_method.Options(samples=task.options.samples, **option_values)
    privacy, quorum = Privacy(task.privacy.epsilon, DELTA), Quorum(1, 1, 0, 0)
    setting = Setting(
        world.labels, names, privacy=privacy, quorum=quorum, expected_records=task.privacy.expected_records
    )
    plan = plan_sums(chosen_method.plan(options, setting), privacy, quorum)
    run = machine(world, setting, plan, world.records(task.data.records or 1, seed), seed)
    return keep_each_once(chosen_method.run(options, run)), run  # type: ignore[arg-type]


def without_sum(name: str, start: str) -> Method[Any]:
    """Returns a method without the sums whose names begin with ``start``; the other sums share their budget."""
    module = importlib.import_module(f"undersong_server.methods.{name.replace('-', '_')}")
    whole_method: Method[Any] = module.METHOD

    def plan(options: Any, setting: Setting) -> list[SumRequest]:
        return [request for request in whole_method.plan(options, setting) if not request.name.startswith(start)]

    def run(options: Any, context: Any) -> Sequence[Sample]:
        with mock.patch.object(module, "plan", plan):
            return whole_method.run(options, context)

    return dataclasses.replace(whole_method, plan=plan, run=run)


def _judge_corpus(world: World, texts: Sequence[str], labels: Sequence[str], seed: int) -> dict[str, Any]:
    """Returns figures of a corpus. A corpus that several settings give is judged once."""
    key = hashlib.sha256(json.dumps([seed, list(texts), list(labels), world.test.texts]).encode()).digest()
    if key not in world.judged:
        corpus = panel.Labelled(texts, labels, world.embed(texts))
        if world.labels:
            scores = panel.judge(corpus, world.test, seed=seed)
            means = scores.figures()
            figures = {"panel": means["accuracy"], **scores.accuracies()}
            figures |= {name: means[name] for name in ("macro_f1", "rarest_recall")}
        else:
            rng = np.random.default_rng(seed)
            corpus_rows, test_rows = (
                labelled.embeddings[rng.permutation(len(labelled.texts))[:MAUVE_TEXTS]]
                for labelled in (corpus, world.test)
            )
            figures = {
                "accuracy": next_word_accuracy(texts, world.test.texts),
                "bits": next_word_loss(texts, world.test.texts) / 100,
                "mauve": mauve(corpus_rows, test_rows, seed=seed),
            }
        world.judged[key] = {"rows": len(texts), **{name: 100 * value for name, value in figures.items()}}
    return world.judged[key]


def measure(
    settings: Mapping[str, Path], methods_to_run: Sequence[str], seeds: Sequence[int], out_folder: Path, embed: Embed
) -> None:
    """Measures the cells that ``out``/cells.jsonl lacks, all settings and methods of one seed before the next seed."""
    cells_file, program = out_folder / "cells.jsonl", _program()
    known_cells = (
        {judged_tables.key(row): row for row in judged_settings.json_lines(cells_file)} if cells_file.exists() else {}
    )
    judged_figures: dict[bytes, dict[str, Any]] = {}
    worlds: dict[str, World] = {}
    with cells_file.open("a", encoding="utf-8") as file:

        def measure_cell(name: str, method: str, seed: int, run: str) -> Mapping[str, Any]:
            if (name, method, seed) not in known_cells:
                if name not in worlds:
                    worlds[name] = World(settings[name], embed)
                    worlds[name].judged = judged_figures
                start_s = time.process_time()
                cell_figures = {"setting": name, "method": method, "seed": seed, **cell(worlds[name], run, seed)}
                cell_figures |= {"seconds": round(time.process_time() - start_s, 2), "program": program}
                file.write(json.dumps(cell_figures) + "\n")
                file.flush()
                known_cells[name, method, seed] = cell_figures
            return known_cells[name, method, seed]

        for seed in seeds:
            for name, task_file in settings.items():
                task = tasks.load(task_file)
                for method in methods_to_run:
                    if method not in UNLABELLED and not task.task.labels:
                        continue
                    run = method
                    if method == BEST:
                        single_names = [f"{SINGLE}{generator.name}" for generator in task.generators]
                        figure = "panel" if task.task.labels else "accuracy"
                        run = max(single_names, key=lambda one: measure_cell(name, one, CHOOSING_SEED, one)[figure])
                    measure_cell(name, method, seed, run)
                print(f"seed {seed}, {name}", file=sys.stderr, flush=True)


def _program() -> str:
    """Returns the commit's subject, which a rebase keeps, with "+" behind it if files differ from the commit."""
    git = ["git", "-C", str(Path(__file__).parent)]
    line = subprocess.run(
        [*git, "log", "-1", "--format=%s"], capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True, check=False).returncode
    return line + (" +" if changed else "")


def main(argv: list[str] | None = None) -> int:
    """Measures what is missing, or fills the page from what is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judged", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder that holds the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/judged"), help="where settings and cells are kept")
    parser.add_argument("--settings", default=",".join(judged_settings.SETTINGS), help="separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--quick", action="store_true", help="the settings without a data folder, two seeds")
    parser.add_argument("--page", type=Path, help="fills this page with the tables of the cells, measures nothing")
    options = parser.parse_args(argv)
    if options.page:
        cells = judged_settings.json_lines(options.out / "cells.jsonl")
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        judged_tables.fill(options.page, cells, METHODS, seeds)
        return 0
    if options.quick:
        options.settings, options.seeds = ",".join(judged_settings.INVENTED), 2
    task_files = {name: judged_settings.build(name, options.data, options.out) for name in options.settings.split(",")}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    embed = CachedEmbedder(Embedder.load(), PublicFileCache(public_cache_path(os.environ))).encode
    measure(task_files, options.methods.split(","), seeds, options.out, embed)
    return 0


if __name__ == "__main__":
    entry.run(main)
