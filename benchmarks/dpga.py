"""DPGA-TextSyn on real data: how far the noisy metadata are from the truth, diversity and distance a round, accuracy.

    python -m benchmarks.dpga --data FOLDER [--out FILE.jsonl] [--datasets ...] [--variants ...] [--epsilons ...]
                              [--seeds ...] [--calls N] [--rounds T] [--cache FILE] [--quick]
    python -m benchmarks.dpga --data FOLDER --pool N ...
    python -m benchmarks.dpga [--out FILE.jsonl] --summary

FOLDER holds banking77/ and mts_dialog/ (they are no part of this project). Every cell is a real simulation with five
parties (Dirichlet 1 over the labels) and one line of FILE; lines that are there are not measured again, so a run may
be stopped and continued. banking77: half of the training file is private, the other half is what the generator
replays; mts_dialog: n-gram generators of the validation and second test file.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dpkps import figure
from undersong.records import private_tables
from undersong.simulation import simulate
from undersong.workspace import Workspace
from undersong_common.arrays import Float64
from undersong_common.embedding import CachedEmbedder, Embedder, EmbeddingCache, MemoryCache, PublicFileCache
from undersong_common.table import Table, read_table
from undersong_server.evaluation import metrics, task_model
from undersong_server.methods.parts.selection import largest_remainder
from undersong_server.progress import Silent
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import RunPlan, plan_run

VARIANTS: dict[str, tuple[str, ...]] = {
    "dpga": (),
    "paper budget": ("method.accounting=paper",),
    "no suppression": ("method.suppression=false",),
    "no length": ("method.length=false",),
    "no keywords": ("method.keywords=false",),
    "no rewrite": ("method.rewrite=0",),
    "no fill-in": ("method.fill_in=0",),
    "no cross": ("method.cross=0",),
    "no generate": ("method.generate=0",),
    "half, 3 rounds": ("method.elite=5000", "method.rounds=3"),  # a last population as large as Aug-PE's
    "votes among all": ("method.label_votes=false",),
    "one elite": ("method.elite_by_label=false",),
    "votes and elite of all": ("method.label_votes=false", "method.elite_by_label=false"),
    "augpe": ("method.name=augpe",),
}
FRECHET_ROWS = 150  # its bias depends on the number of rows

GENERATORS = {
    "banking77": """
[[generators]]
name = "public-half"
kind = "replay"
path = "banking77-public.jsonl"
""",
    "mts_dialog": """
[[generators]]
name = "sections"
kind = "ngram"
corpus = ["mts_dialog-validation.jsonl", "mts_dialog-test2.jsonl"]
""",
}
DESCRIPTION = {
    "banking77": "a customer's question to an online bank",
    "mts_dialog": "a section of a clinical note that a doctor dictated",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="folder of banking77/ and mts_dialog/")
    parser.add_argument(
        "--out", type=Path, default=Path("results/dpga.jsonl"), help="JSONL file of cells, continued where it ends"
    )
    parser.add_argument("--datasets", nargs="+", default=["banking77", "mts_dialog"], choices=list(GENERATORS))
    parser.add_argument(
        "--variants", nargs="+", default=["dpga", "no suppression", "half, 3 rounds", "augpe"], choices=list(VARIANTS)
    )
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 2.0, 4.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--calls", type=int, default=3000, help="generator calls of a cell")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="file of embeddings, kept between calls: the data are public")
    parser.add_argument("--summary", action="store_true", help="print the means of FILE")
    parser.add_argument(
        "--pool", nargs="+", type=int, metavar="N", help="only: what N random texts of the generators' own files teach"
    )
    parser.add_argument("--quick", action="store_true", help="mts_dialog at epsilon 4 with one seed and 900 calls")
    arguments = parser.parse_args()
    if arguments.summary:
        print(_summary(_known(arguments.out)))
        return
    if arguments.data is None:
        parser.error("--data is missing: the real text is no part of this project")
    if arguments.quick:
        arguments.datasets, arguments.epsilons, arguments.seeds = ["mts_dialog"], [4.0], [0]
        arguments.calls, arguments.rounds = 900, 4
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.data, arguments.calls, arguments.rounds, arguments.cache)
    if arguments.pool:
        for dataset in arguments.datasets:
            print(bench.pool(dataset, arguments.pool, arguments.seeds), flush=True)
        return
    known = {_key(row) for row in _known(arguments.out)}
    for seed in arguments.seeds:
        for dataset in arguments.datasets:
            for epsilon in arguments.epsilons:
                for variant in arguments.variants:
                    cell = {
                        "dataset": dataset,
                        "variant": variant,
                        "epsilon": epsilon,
                        "seed": seed,
                        "calls": arguments.calls,
                        "rounds": arguments.rounds,
                    }
                    if _key(cell) in known:
                        continue
                    row = cell | bench.measure(dataset, variant, epsilon, seed)
                    with arguments.out.open("a", encoding="utf-8") as out:
                        out.write(json.dumps(row) + "\n")
                    print(f"{_key(cell)}: accuracy {row['accuracy']:.3f} in {row['seconds']:.0f} s", flush=True)


class Bench:
    """The data, the embedding model and everything embedded so far."""

    def __init__(self, data: Path, calls: int, rounds: int, cache: Path | None) -> None:
        self._data, self._calls, self._rounds = data, calls, rounds
        self._embedder = Embedder.load("packaged")
        self._public: EmbeddingCache = MemoryCache() if cache is None else PublicFileCache(cache)
        self._private = self._public  # no hospital's records: the benchmark's data are published
        self._plans: dict[tuple[str, str, float], RunPlan] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="undersong-dpga-"))
        self._tests: dict[str, Table] = {}

    def measure(self, dataset: str, variant: str, epsilon: float, seed: int) -> dict[str, Any]:
        begun = time.monotonic()
        run_plan = self._plan(dataset, variant, epsilon)
        task = run_plan.task
        tables = private_tables(task, seed)
        private_texts = [text for table in tables.values() for text in table.texts]
        folder = Path(tempfile.mkdtemp(dir=self._folder)) / "run"
        with Workspace(folder, task, {}, fresh=False) as workspace:
            outcome = simulate(
                run_plan,
                workspace,
                tables,
                seed=seed,
                insecure_noise_seed=seed,
                public_cache=self._public,
                environment={},
                progress=Silent(),
                embedder=self._embedder,
                private_cache=self._private,
            ).outcome
        embed = CachedEmbedder(self._embedder, self._public).encode
        test = self._tests[dataset]
        assert test.labels is not None
        real = embed(test.texts)
        texts, labels = [one.text for one in outcome.samples], [one.label for one in outcome.samples]
        model = task_model.train(embed(texts), labels, head="linear", seed=seed)
        scores = task_model.evaluate(model, real, test.labels)
        rounds = [population for _, population in outcome.records.get("population", ())]
        if rounds:
            rounds.append(texts)
        return {
            "rows": len(texts),
            "generator_calls": sum(usage.calls for usage in outcome.usage.values()),
            "accuracy": scores.accuracy,
            "macro_f1": scores.macro_f1,
            "frechet": _frechet(embed(texts), real, seed),
            "self_similarity": metrics.self_similarity(embed(texts)),
            "frechet_by_round": [_frechet(embed(each), real, seed) for each in rounds],
            "self_similarity_by_round": [metrics.self_similarity(embed(each)) for each in rounds],
            "elite_self_similarity": [
                metrics.self_similarity(embed(each)) for _, each in outcome.records.get("elite", ())
            ],
            "tau": [value for _, value in outcome.records.get("tau", ())],
            **_metadata(outcome.records, list(tables.values()), task.task.labels),
            "private_self_similarity": metrics.self_similarity(
                CachedEmbedder(self._embedder, self._private).encode(private_texts)
            ),
            "votes_sigma": run_plan.plan.sums[-1].sigma,
            "seconds": time.monotonic() - begun,
        }

    def pool(self, dataset: str, sizes: Sequence[int], seeds: Sequence[int]) -> str:
        """What random texts of the generators' files teach, without any private vote: accuracy and macro-F1 in %.

        As many texts of each label, or by the private labels' exact shares.
        """
        task = tasks.load(self._task_file(dataset, 1.0), ())
        files = [task.locate(name) for generator in task.generators for name in generator.files]
        tables = [read_table(path, "text", "label", labels=task.task.labels) for path in files]
        texts = [text for table in tables for text in table.texts]
        label_of = np.array([label for table in tables for label in table.labels or ()])
        private = read_table(task.files[0], "text", "label", labels=task.task.labels).labels or ()
        counts = np.array([private.count(label) for label in task.task.labels], dtype=float)
        embed = CachedEmbedder(self._embedder, self._public).encode
        x, test = embed(texts), self._tests[dataset]
        real = embed(test.texts)

        def taught(size: int, weights: Float64, seed: int) -> tuple[float, float]:
            rng = np.random.default_rng(seed)
            places = zip(task.task.labels, largest_remainder(weights, size), strict=True)
            own = [rng.permutation(np.flatnonzero(label_of == label))[:count] for label, count in places]
            rows = np.concatenate(own)
            model = task_model.train(x[rows], label_of[rows].tolist(), head="linear", seed=seed)
            scores = task_model.evaluate(model, real, test.labels or ())
            return 100 * scores.accuracy, 100 * scores.macro_f1

        lines = ["| data | texts | labels | accuracy, % | macro-F1, % |", "|---" * 5 + "|"]
        for size in sizes:
            for name, weights in (("even", np.ones(len(counts))), ("private shares", counts)):
                found = [taught(size, weights, seed) for seed in seeds]
                accuracy, f1 = (figure(each) for each in zip(*found, strict=True))
                lines.append(f"| {dataset} | {size} | {name} | {accuracy} | {f1} |")
        return "\n".join(lines)

    def _plan(self, dataset: str, variant: str, epsilon: float) -> RunPlan:
        key = (dataset, variant, epsilon)
        if key not in self._plans:
            self._plans[key] = plan_run(tasks.load(self._task_file(dataset, epsilon), VARIANTS[variant]))
        return self._plans[key]

    def _task_file(self, dataset: str, epsilon: float) -> Path:
        rows = {part: _rows(self._data / dataset / f"{part}.jsonl") for part in ("train", *_others(dataset))}
        private, test = rows["train"], rows["test" if dataset == "banking77" else "test1"]
        if dataset == "banking77":
            order = np.random.default_rng(77).permutation(len(private))
            half = len(order) // 2
            _write(self._folder / "banking77-public.jsonl", [private[i] for i in order[half:]])
            private = [private[i] for i in order[:half]]
        else:
            for part in ("validation", "test2"):
                _write(self._folder / f"mts_dialog-{part}.jsonl", rows[part])
        _write(self._folder / f"{dataset}-private.jsonl", private)
        _write(self._folder / f"{dataset}-test.jsonl", test)
        labels = sorted({row["label"] for row in [*private, *test]})
        self._tests[dataset] = read_table(self._folder / f"{dataset}-test.jsonl", "text", "label", labels=tuple(labels))
        path = self._folder / f"{dataset}.toml"
        path.write_text(
            f"""
[task]
name = "{dataset}"
description = "{DESCRIPTION[dataset]}"
labels = {json.dumps(labels)}
[data]
path = "{dataset}-private.jsonl"
label = "label"
[privacy]
epsilon = {epsilon}
delta = {1 / (len(private) * math.log(len(private)))}
[federation]
parties = 5
alpha = 1.0
[method]
name = "dpga"
samples = {self._calls}
rounds = {self._rounds}
{GENERATORS[dataset]}""",
            encoding="utf-8",
        )
        return path


def _others(dataset: str) -> tuple[str, ...]:
    return ("test",) if dataset == "banking77" else ("validation", "test1", "test2")


def _rows(path: Path) -> list[dict[str, str]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [{"text": row["text"], "label": row["label"]} for row in rows if row["text"].strip()]


def _write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _metadata(records: Any, tables: Sequence[Table], labels: Sequence[str]) -> dict[str, float]:
    """Total variation (half of the L1 distance) between noisy and true shares."""
    found: dict[str, float] = {}
    if "label shares" in records:
        true = np.array([sum((table.labels or ()).count(label) for table in tables) for label in labels], dtype=float)
        found["label_distance"] = _variation(np.array(records["label shares"][-1][1]), true)
    if "length shares" in records:
        edges, shares = records["length shares"][-1][1]
        words = metrics.word_lengths([text for table in tables for text in table.texts])
        bins = np.clip(np.searchsorted(edges, words, side="right") - 1, 0, len(edges) - 2)
        found["length_distance"] = _variation(np.array(shares), np.bincount(bins, minlength=len(edges) - 1))
        found["length_range"] = [edges[0], edges[-1]]  # type: ignore[assignment]
    return found


def _variation(first: Any, second: Any) -> float:
    return float(np.abs(first / first.sum() - second / second.sum()).sum() / 2)


def _frechet(synthetic: Any, real: Any, seed: int) -> float | None:
    if min(len(synthetic), len(real)) < FRECHET_ROWS:
        return None
    return metrics.frechet_distance(*metrics.equal_rows(synthetic, real, rows=FRECHET_ROWS, seed=seed))


def _known(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[field] for field in ("dataset", "variant", "epsilon", "seed", "calls", "rounds"))


def _summary(rows: Sequence[dict[str, Any]]) -> str:
    """Means and standard deviations over seeds as the tables of docs/dpga.md; self-similarity and distance by round."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["dataset"], row["epsilon"], row["variant"]), []).append(row)
    order = {name: number for number, name in enumerate(VARIANTS)}
    keys = sorted(groups, key=lambda key: (*key[:2], order[key[2]]))
    lines = [
        "| data | epsilon | | seeds | texts | accuracy, % | macro-F1, % | Frechet | self-similarity"
        " | labels | lengths |",
        "|---" * 11 + "|",
    ]
    for key in keys:
        group = groups[key]
        cells = [f"{np.mean([row['rows'] for row in group]):.0f}"]
        for name, factor, digits in (
            ("accuracy", 100, 1),
            ("macro_f1", 100, 1),
            ("frechet", 1, 3),
            ("self_similarity", 1, 3),
            ("label_distance", 1, 3),
            ("length_distance", 1, 3),
        ):
            known = [factor * row[name] for row in group if row.get(name) is not None]
            cells.append(figure(known, digits) if known else "")
        lines.append(f"| {key[0]} | {key[1]:g} | {key[2]} | {len(group)} | {' | '.join(cells)} |")
    lines += ["", "| data, epsilon | | elite | population | Frechet distance |", "|---" * 5 + "|"]
    for key in keys:
        series = []
        for name in ("elite_self_similarity", "self_similarity_by_round", "frechet_by_round"):
            found = [row[name] for row in groups[key] if row.get(name) and None not in row[name]]
            means = np.mean(found, axis=0) if found else []
            series.append(" ".join(f"{value:.3f}".removeprefix("0") for value in means))
        if all(series):
            lines.append(f"| {key[0]}, {key[1]:g} | {key[2]} | {' | '.join(series)} |")
    taus = {
        key: [row["tau"][0]["estimate"] for row in groups[key] if row.get("tau")] for key in keys if key[2] == "dpga"
    }
    lines += ["", *(f"private tau, {key[0]}, {key[1]:g}: {figure(found, 3)}" for key, found in taus.items() if found)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
