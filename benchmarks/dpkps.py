"""DP-KPS on real data: what keyphrase sequences alone, and texts written from them, teach the small task model.

    python -m benchmarks.dpkps --data FOLDER [--seeds 5 | --quick] [--augpe | --draws] [--out results/dpkps.jsonl]

FOLDER holds banking10/ and mts_dialog/. Five parties, Dirichlet alpha 1, real secure aggregation in this process; one
JSON line a run, and runs that are in the file already are skipped. banking10: 1000 of the training questions are
private, the other 403 are the public part (replay pool, n-gram corpus, validation); mts_dialog: its six largest
classes, public part test2 and validation. Half of the texts come from each of the two generators. ``--augpe`` runs the
paper's baseline instead, with as many generator calls: Aug-PE, without and with the private vocabulary. ``--draws``
compares the sharpness and width of draws by the validation of ``sampler = "auto"``, over the private part: half of it
stands in for all records, its sequences are judged on the other half. ``--summary`` prints the table alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undersong.records import private_tables
from undersong.simulation import simulate
from undersong.workspace import Workspace
from undersong_common.embedding import CachedEmbedder, Embedder, MemoryCache, PublicFileCache
from undersong_common.table import Table, read_table
from undersong_protocol.statistics.phrases import Terms
from undersong_server.evaluation import task_model
from undersong_server.evaluation.evaluate import joined, sequences_of
from undersong_server.methods.dpkps import Options
from undersong_server.methods.parts import sampler_choice
from undersong_server.methods.parts.sampler_choice import SAMPLERS
from undersong_server.methods.parts.vocabulary import english_words
from undersong_server.progress import Silent
from undersong_server.runs import planning
from undersong_server.runs.task import load

SAMPLES = 400
EPSILONS = (6.0, 10.0, 15.0, math.inf)  # inf: the same pipeline without noise, the reference
DESCRIPTIONS = {"banking10": "a customer's question to an online bank", "mts_dialog": "a section of a clinical note"}
PRIVATE_QUESTIONS = 1000
DRAWS = ((2.0, 1.0), (2.0, 2.0), (2.0, 4.0), (8.0, 1.0))  # width and sharpness; the paper's first
AUGPE = {"Aug-PE": False, "Aug-PE, vocabulary": True}  # in the place of a sampler: with the private vocabulary or not


def prepare(name: str, data: Path, folder: Path) -> Path:
    """Private part, public part and test set of a data set in ``folder``, and its task file."""

    def rows(*files: str) -> list[dict[str, str]]:
        return [json.loads(line) for file in files for line in (data / name / file).open(encoding="utf-8")]

    train = rows("train.jsonl")
    if name == "banking10":
        random.Random(0).shuffle(train)
        private, public, test = train[:PRIVATE_QUESTIONS], train[PRIVATE_QUESTIONS:], rows("test.jsonl")
        labels = sorted({row["label"] for row in train})
    else:
        private, public, test = train, rows("test2.jsonl", "validation.jsonl"), rows("test1.jsonl")
        labels = sorted(label for label, _ in Counter(row["label"] for row in train).most_common(6))
    for part, content in (("private", private), ("public", public), ("test", test)):
        kept = (row for row in content if row["label"] in labels)
        text = "".join(json.dumps({"text": row["text"], "label": row["label"]}) + "\n" for row in kept)
        (folder / f"{name}-{part}.jsonl").write_text(text, encoding="utf-8")
    task = folder / f"{name}.toml"
    task.write_text(
        f"""
[task]
name = "{name}"
description = "{DESCRIPTIONS[name]}"
labels = {json.dumps(labels)}
[data]
path = "{name}-private.jsonl"
label = "label"
[privacy]
epsilon = 6.0
delta = 1e-5
[federation]
parties = 5
alpha = 1.0
[method]
name = "dpkps"
samples = {SAMPLES}
[[generators]]
name = "replay"
kind = "replay"
path = "{name}-public.jsonl"
[[generators]]
name = "ngram"
kind = "ngram"
corpus = "{name}-public.jsonl"
""",
        encoding="utf-8",
    )
    return task


def cells(seeds: int) -> Iterator[dict[str, Any]]:
    """Every run: both samplers at every epsilon, then with the class named too."""
    for seed in range(seeds):
        for name in DESCRIPTIONS:
            for epsilon in EPSILONS:
                for sampler in ("independent", "iterative"):
                    yield {"data": name, "epsilon": epsilon, "sampler": sampler, "named": False, "seed": seed}
            yield {"data": name, "epsilon": 10.0, "sampler": "independent", "named": True, "seed": seed}


def augpe_cells(seeds: int) -> Iterator[dict[str, Any]]:
    """The paper's baseline, where noise is added."""
    for seed in range(seeds):
        for name in DESCRIPTIONS:
            for epsilon in filter(math.isfinite, EPSILONS):
                for kind in AUGPE:
                    yield {"data": name, "epsilon": epsilon, "sampler": kind, "named": True, "seed": seed}


def draw_cells(seeds: int) -> Iterator[dict[str, Any]]:
    """Draws to compare; each cell has both samplers."""
    for seed in range(seeds):
        for name in DESCRIPTIONS:
            for width, sharpness in DRAWS:
                yield {"data": name, "width": width, "sharpness": sharpness, "seed": seed}


class Bench:
    """One embedder and its caches for all runs."""

    def __init__(self, data: Path, folder: Path, cache: Path) -> None:
        self._folder = folder
        self._embedder = Embedder.load()
        self._cache = PublicFileCache(cache)  # these data sets are public
        self._embed = CachedEmbedder(self._embedder, self._cache).encode
        self._tasks = {name: prepare(name, data, folder) for name in DESCRIPTIONS}
        self._references: dict[str, dict[str, float]] = {}

    def run(self, cell: dict[str, Any]) -> dict[str, Any]:
        if cell["sampler"] in AUGPE:
            own = ["method.name=augpe", f"method.private_vocabulary={str(AUGPE[cell['sampler']]).lower()}"]
        else:
            named = str(cell["named"]).lower()
            own = [f'method.sampler="{cell["sampler"]}"', f"method.class_in_prompt={named}"]
        task = load(self._tasks[cell["data"]], [f"privacy.epsilon={cell['epsilon']}", *own])
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=self._folder) as out:
            workspace = Workspace(Path(out) / "run", task, {"seed": cell["seed"]}, fresh=False)
            done = simulate(
                planning.plan_run(task),
                workspace,
                private_tables(task, cell["seed"]),
                seed=cell["seed"],
                insecure_noise_seed=None,
                public_cache=self._cache,
                environment={},
                progress=Silent(),
                embedder=self._embedder,
                private_cache=MemoryCache(),
            )
            workspace.journal.close()
        seconds = time.perf_counter() - start
        result = cell | {"seconds": seconds, "texts": len(done.outcome.samples)} | self._reference(cell["data"])
        if "keyphrases" in done.outcome.records:
            result["keyphrases"] = len(done.outcome.records["keyphrases"][0][1])
        if "sequences" in done.outcome.records:
            sequences = self._sequences(done.outcome.records)
            for part in ("test", "public"):
                result["sequences" if part == "test" else "validation"] = self._score(sequences, cell, part)
        for name in ("replay", "ngram"):
            texts = [sample for sample in done.outcome.samples if sample.generator == name]
            table = Table(tuple(each.text for each in texts), tuple(each.label for each in texts), None)
            result[name] = self._score(table, cell, "test")
        return result

    def draws(self, cell: dict[str, Any]) -> dict[str, Any]:
        """Balanced accuracy of each sampler's sequences of five terms at epsilon 6."""
        start = time.perf_counter()
        own = ["method.length=5", f"method.width={cell['width']}", f"method.sharpness={cell['sharpness']}"]
        found = {
            name: planning.plan_run(load(self._tasks[cell["data"]], [*own, f"method.sampler={name}"]))
            for name in SAMPLERS
        }
        of: dict[str, Any] = {name: each.task.options for name, each in found.items()}
        first, options = found[SAMPLERS[0]], of[SAMPLERS[0]]
        sigma, table = first.plan["vocabulary"].sigma, self._table(cell["data"], "private")
        choice = sampler_choice.validated(
            table.take(np.random.default_rng(cell["seed"]).permutation(len(table)).tolist()),
            first.setting.labels,
            self._embed,
            records=len(table),
            histogram=options.histogram(first.setting),
            vocabulary=options.terms(first.setting),
            vocabulary_sigma=sigma,
            keep=lambda counts: options.significant(counts, sigma, options.noise),
            samplers={n: (of[n].features(each.setting), each.plan["densities"].sigma) for n, each in found.items()},
            length=options.length,
            sharpness=options.sharpness,
        )
        return cell | dict(choice.scores) | {"seconds": time.perf_counter() - start}

    def _sequences(self, records: Any) -> Table:
        rows = records["sequences"][0][1]
        return Table(tuple(joined(terms) for _, terms in rows), tuple(label for label, _ in rows), None)

    def _table(self, name: str, part: str) -> Table:
        return read_table(self._folder / f"{name}-{part}.jsonl", "text", "label")

    def _reference(self, name: str) -> dict[str, float]:
        """What the private texts, and their own sequences of the 1000 truly commonest terms, teach; no privacy."""
        if name not in self._references:
            private, cell = self._table(name, "private"), {"data": name}
            options = Options()
            vocabulary = english_words(options.vocabulary_words, options.common_words)
            matcher = Terms(vocabulary)
            counts = Counter(term for text in private.texts for term in matcher.of(text, options.document_terms))
            kept = tuple(vocabulary[term] for term, _ in counts.most_common(options.keyphrases))
            terms = Table(tuple(joined(kept[at : at + 10]) for at in range(0, len(kept), 10)), None, None)
            self._references[name] = {
                "private": self._score(private, cell, "test"),
                "own_sequences": self._score(sequences_of(private, terms), cell, "test"),
            }
        return self._references[name]

    def _score(self, table: Table, cell: dict[str, Any], part: str) -> float:
        """Balanced accuracy on a part of the task model (linear head) that was trained on ``table``."""
        judged = self._table(cell["data"], part)
        assert table.labels is not None
        assert judged.labels is not None
        model = task_model.train(self._embed(table.texts), table.labels, head="linear", seed=cell.get("seed", 0))
        return task_model.evaluate(model, self._embed(judged.texts), judged.labels).balanced_accuracy


def summary(rows: list[dict[str, Any]]) -> str:
    """Means and standard deviations over seeds, and the sampler that validation on the public part chose."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["data"], row["epsilon"], row["named"], row["sampler"]].append(row)
    columns = ("sequences", "validation", "own_sequences", "replay", "ngram", "private")
    lines = ["| data | epsilon | sampler | class named | seeds | keyphrases | " + " | ".join(columns) + " |"]
    lines.append("|---" * (6 + len(columns)) + "|")
    for key, found in sorted(groups.items()):
        figures = [figure([100 * row[column] for row in found]) if column in found[0] else "" for column in columns]
        kept = f"{np.mean([row['keyphrases'] for row in found]):.0f}" if "keyphrases" in found[0] else ""
        named = "yes" if key[2] else "no"
        lines.append(
            f"| {key[0]} | {key[1]:g} | {key[3]} | {named} | {len(found)} | {kept} | " + " | ".join(figures) + " |"
        )
    judged = [row for row in rows if math.isfinite(row["epsilon"]) and not row["named"]]
    for data in sorted({row["data"] for row in judged}):
        means = {
            sampler: np.mean([row["validation"] for row in judged if (row["data"], row["sampler"]) == (data, sampler)])
            for sampler in ("independent", "iterative")
        }
        lines.append(f"\n{data}: validation on the public part chooses {max(means, key=lambda s: means[s])}.")
    return "\n".join(lines)


def draws_summary(rows: list[dict[str, Any]]) -> str:
    """Means and standard deviations over seeds, one line a kind of draw."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["data"], row["width"], row["sharpness"]].append(row)
    lines = ["| data | width | sharpness | seeds | " + " | ".join(SAMPLERS) + " |", "|---" * (4 + len(SAMPLERS)) + "|"]
    for (data, width, sharpness), found in sorted(groups.items()):
        figures = [figure([100 * row[name] for row in found]) for name in SAMPLERS]
        lines.append(f"| {data} | {width:g} | {sharpness:g} | {len(found)} | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def figure(values: Sequence[float], digits: int = 1) -> str:
    """The mean, and where there are several values their standard deviation."""
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def main(argv: list[str] | None = None) -> int:
    """Runs what is missing and prints the table; 0 unless a mean is not above chance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dpkps", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with banking10/ and mts_dialog/")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/dpkps.jsonl"))
    parser.add_argument("--quick", action="store_true", help="one seed")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--augpe", action="store_true", help="Aug-PE without and with the private vocabulary instead")
    other.add_argument("--draws", action="store_true", help="ways to draw instead; needs an --out of its own")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    options = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    rows = [json.loads(line) for line in known]
    if not options.summary:
        if options.data is None:
            parser.error("--data is missing")
        wanted = draw_cells if options.draws else augpe_cells if options.augpe else cells
        known_cells = [{key: row.get(key) for key in next(wanted(1))} for row in rows]
        with tempfile.TemporaryDirectory() as folder, options.out.open("a", encoding="utf-8") as out:
            bench = Bench(options.data, Path(folder), options.out.with_suffix(".embeddings.sqlite"))
            for cell in wanted(1 if options.quick else options.seeds):
                if cell in known_cells:
                    continue
                rows.append(bench.draws(cell) if options.draws else bench.run(cell))
                out.write(json.dumps(rows[-1]) + "\n")
                out.flush()
    if options.draws:
        print(draws_summary(rows))
        return 0
    print(summary(rows))
    chance = {"banking10": 1 / 10, "mts_dialog": 1 / 6}
    judged = [row.get("sequences", row["ngram"]) > chance[row["data"]] for row in rows]
    return 0 if all(judged) and all(math.isfinite(row["ngram"]) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
