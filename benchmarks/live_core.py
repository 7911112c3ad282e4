"""Compares seven methods and one reference with a real language model that writes, is steered and is tuned.

    python -m benchmarks.live_core --data FOLDER --model MODEL --out runs/live [--tasks banking10 clinic] [--seeds 3]
    python -m benchmarks.live_core --out runs/live --table
    python -m benchmarks.live_core --out runs/live --show 20
    python -m benchmarks.live_core --data FOLDER --model MODEL --out runs/live --why

MODEL is a folder of transformers, such as ``benchmarks.gguf_folder`` makes. The core: three tasks (one of them the
invented clinic, whose notes no model can have seen), one generator, epsilon 4, 300 records at five parties, 100 texts
of at most 60 tokens, three seeds. ``--full`` is for a GPU: epsilon 1 and 4, 100, 300 and 1 000 records (the clinic has
600); another MODEL is another command with another --out.

Every cell is a file in --out with its corpus: a command that was stopped goes on, and several may run side by side.
All methods order the same number of texts; ``tuned`` has more written to rank, as its options say. Whatever embedder
a method uses, the packaged one and the panel's task models judge its corpus. ``vector`` needs axes of public texts:
those of the seed's ``mixture``, which is made first.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.live_pool import endpoint, with_generators
from undersong.comparison.cell import Bench, Cell, Variant, measured
from undersong_common.arrays import Float32
from undersong_common.files import holding, replace_file
from undersong_common.intervals import over_seeds
from undersong_common.models import hidden_states
from undersong_common.models.embedding import CachedEmbedder, Embedder, PublicFileCache
from undersong_server.defaults import public_cache_path
from undersong_server.evaluation import panel
from undersong_server.evaluation.metrics import vendi_score
from undersong_server.operations.tasks import read_private_files
from undersong_server.runs import task as tasks

ROOT = Path(__file__).parents[1]
TASKS = {
    "banking10": ROOT / "benchmarks/tasks/banking10.toml",
    "mts_dialog": ROOT / "benchmarks/tasks/mts_dialog.toml",
    "clinic": ROOT / "examples/clinic/task.toml",
}
TUNED = "tuned:prompts=10+texts=16+rounds=1+pairs=6+rejected=8+epochs=2+keep=1"
METHODS = ("mixture", "undersong", "vector", TUNED, "cleaned-mixture", "augpe", "wasp", "dp-lora")
CLINIC = 600  # all records of the clinic example
LAYER = 9  # hidden layer that vectors steer, of 18
JUDGED = 50  # texts on each side of MAUVE
TEMPERATURE, TOP_P, TOKENS = 0.8, 0.95, 60
GRID = {"epsilons": (1.0, 4.0), "records": (100, 300, 1000)}


class Judge:
    """Scores a task's corpora by the packaged embedder and by classifiers of real texts."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._embedder = CachedEmbedder(Embedder.load("packaged"), PublicFileCache(public_cache_path(os.environ)))

    def embed(self, texts: Sequence[str]) -> Float32:
        return self._embedder.encode(texts)

    @cached_property
    def truth(self) -> panel.Labelled:
        table, _ = self._bench.judged_on
        return panel.Labelled(table.texts, table.labels or (), self.embed(table.texts))

    @cached_property
    def _real(self) -> LogisticRegression:
        tables = read_private_files(self._bench._own_task)
        texts = [text for table in tables for text in table.texts]
        labels = [label for table in tables for label in table.labels or ()]
        return LogisticRegression(C=10.0, max_iter=2000).fit(self.embed(texts), labels)

    def labels(self, embeddings: Float32) -> list[str]:
        """Returns the labels that a classifier trained on all real texts gives."""
        return [str(each) for each in self._real.predict(embeddings)]

    def figures(self, texts: Sequence[str], labels: Sequence[str], seed: int) -> dict[str, Any]:
        """Returns the panel's scores, MAUVE of ``JUDGED`` texts, label adherence and share of different word pairs."""
        embeddings = self.embed(texts)
        judged = panel.judge(panel.Labelled(texts, labels, embeddings), self.truth, seed=seed)
        more = measured(texts, labels, embeddings, self.truth.embeddings, row_count=JUDGED, seed=seed)
        adherence = float(np.mean(np.array(self.labels(embeddings)) == np.array(labels)))
        return {**judged.figures(), **judged.accuracies(), **more, "adherence": adherence}


def bench_of(arguments: argparse.Namespace, task: str, folder: Path, embedder: str) -> Bench:
    """Returns the comparison's task with the model as its one generator."""
    source = TASKS[task]
    sampling = {"chat": False, "top_p": TOP_P, "max_tokens": TOKENS, "concurrency": arguments.batch}
    table = endpoint(argparse.Namespace(**vars(arguments) | sampling | {"folder": folder}), TEMPERATURE)
    path = arguments.out / f"{task}-{embedder.replace('/', '_')}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, with_generators(source, [table], variety=False).encode())
    root = source.parent if task == "clinic" else arguments.data.absolute()
    assignments = [f"data.root={json.dumps(str(root))}", f"method.samples={arguments.samples}", 'privacy.unit="sample"']
    assignments += [f"embedder.model={json.dumps(embedder)}"]
    assignments += [f"data.file_records={CLINIC}"] if task == "clinic" else []
    loaded = tasks.load(path, assignments)
    return Bench(
        path, tuple(assignments), loaded.locate(loaded.evaluation.test or ""), frechet_rows=JUDGED, public_data=True
    )


def cells(arguments: argparse.Namespace) -> Iterator[tuple[str, Cell]]:
    """Yields the cells that the arguments name, seed by seed, so that a stopped command leaves whole seeds."""
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for task in arguments.tasks:
            for method in arguments.methods:
                for epsilon in arguments.epsilons:
                    for records in (each for each in arguments.records if task != "clinic" or each <= CLINIC):
                        yield task, Cell(Variant.parse(method), epsilon, 5, records, seed)


def run(arguments: argparse.Namespace, task: str, cell: Cell, judges: dict[str, Judge]) -> dict[str, Any]:
    """Runs one cell; returns its figures and corpus."""
    folder, embedder = arguments.model, "packaged"
    if cell.variant.method == "vector":
        folder = arguments.out / "steered" / f"{task}-{cell.seed}"
        if not folder.exists():
            mixture_cell = next(
                json.loads(path.read_text(encoding="utf-8"))
                for path in sorted(arguments.out.glob(f"{task}/mixture_*_{cell.seed}-*.json"))
            )
            folder.parent.mkdir(parents=True, exist_ok=True)
            hidden_states.prepare(arguments.model, folder, mixture_cell["texts"], layer=LAYER, size=64)
        embedder = str(folder.absolute())
    bench = bench_of(arguments, task, folder, embedder)
    if task not in judges:
        judges[task] = Judge(bench_of(arguments, task, arguments.model, "packaged"))
    start_s = time.monotonic()
    outcome = bench.made(cell)
    seconds = time.monotonic() - start_s
    assert outcome.corpus is not None
    texts, labels = outcome.corpus.texts, outcome.corpus.labels or ()
    facts = {"seconds": round(seconds), "rows": len(texts), **outcome.facts, **cell.described()}
    return {"task": task, **facts, **judges[task].figures(texts, labels, cell.seed), "texts": texts, "labels": labels}


def print_label_costs(arguments: argparse.Namespace, cells: Sequence[dict[str, Any]]) -> str:
    """Prints each method's score with its ordered labels, and with labels by a classifier of real texts.

    The classifier is trained on all records, which no method has. The second score measures the texts alone; the
    difference is what wrong labels cost.
    """
    heads = (
        "task",
        "method",
        "seeds",
        "adherence",
        "panel score",
        "with a classifier's labels",
        "Vendi score",
        "words",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for task in sorted({cell["task"] for cell in cells}):
        judge = Judge(bench_of(arguments, task, arguments.model, "packaged"))
        for method in sorted({cell["method"] for cell in cells if cell["task"] == task}):
            method_cells = [cell for cell in cells if (cell["task"], cell["method"]) == (task, method)]
            for cell in method_cells:
                embeddings = judge.embed(cell["texts"])
                relabelled = panel.Labelled(cell["texts"], judge.labels(embeddings), embeddings)
                cell["mended"] = panel.judge(relabelled, judge.truth, seed=cell["seed"]).figures()["accuracy"]
                cell["vendi"] = vendi_score(embeddings)
                cell["words"] = float(np.mean([len(text.split()) for text in cell["texts"]]))
            means = [_mean(method_cells, name) for name in ("adherence", "accuracy", "mended")]
            vendi, words = (
                f"{float(np.mean([cell[name] for cell in method_cells])):.1f}" for name in ("vendi", "words")
            )
            lines.append(f"| {task} | `{method}` | {len(method_cells)} | {' | '.join(means)} | {vendi} | {words} |")
    return "\n".join(lines)


def read_cells(out_folder: Path) -> list[dict[str, Any]]:
    """Returns all cells of a folder."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out_folder.glob("*/*.json"))]


def methods_table(cells: Sequence[dict[str, Any]]) -> str:
    """Returns a table line for each task, size and method, and lines of the differences over all tasks."""
    shown = ("mauve", "adherence", "distinct_bigrams", "rows", "generator_calls")
    heads = ("task", "epsilon", "records", "method", "panel score, each seed", "mean", "minus undersong", "macro-F1")
    lines = [f"| {' | '.join((*heads, *shown))} |", "|---" * (len(heads) + len(shown)) + "|"]
    order = {name: number for number, name in enumerate(METHODS)}
    sizes = sorted({(cell["epsilon"], cell["records"]) for cell in cells})
    for epsilon, records in sizes:
        sized_cells = [cell for cell in cells if (cell["epsilon"], cell["records"]) == (epsilon, records)]
        for task in (*TASKS, "pooled"):
            task_cells = [cell for cell in sized_cells if task in (cell["task"], "pooled")]
            mixture_scores = {
                (cell["task"], cell["seed"]): cell["accuracy"] for cell in task_cells if cell["method"] == "undersong"
            }
            for method in sorted({cell["method"] for cell in task_cells}, key=lambda name: (order.get(name, 99), name)):
                rows = sorted((c for c in task_cells if c["method"] == method), key=lambda c: (c["task"], c["seed"]))
                pairs = [(row["accuracy"], mixture_scores.get((row["task"], row["seed"]))) for row in rows]
                differences = [100 * (ours - theirs) for ours, theirs in pairs if theirs is not None]
                score_words = (
                    ", ".join(f"{100 * row['accuracy']:.1f}" for row in rows) if task != "pooled" else len(rows)
                )
                lines.append(
                    f"| {task} | {epsilon} | {records} | `{method}` | {score_words} | {_mean(rows, 'accuracy')} |"
                    f" {'' if method == 'undersong' else interval(differences)} | {_mean(rows, 'macro_f1')} |"
                    f" {' | '.join(_mean(rows, name) for name in shown)} |"
                )
    return "\n".join(lines)


def _mean(rows: Sequence[dict[str, Any]], key: str) -> str:
    values = [row[key] for row in rows if row.get(key) is not None]
    scale = 1 if key in ("rows", "generator_calls") else 100
    return f"{scale * float(np.mean(values)):.{0 if scale == 1 else 1}f}" if values else "-"


def interval(differences: Sequence[float]) -> str:
    """Returns the mean difference with Student's 95 % interval, or only the mean of a single difference."""
    mean_interval = over_seeds(differences)
    return f"{mean_interval.value:+.1f}" + (
        "" if np.isnan(mean_interval.low) else f" ({mean_interval.low:+.1f} to {mean_interval.high:+.1f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="holds banking10/ and mts_dialog/")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[4.0])
    parser.add_argument("--records", nargs="+", type=int, default=[300])
    parser.add_argument("--full", action="store_true", help="the grid of epsilons and records")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--table", action="store_true", help="prints the table of what is there")
    parser.add_argument("--why", action="store_true", help="prints what labels cost and what texts are worth")
    parser.add_argument("--show", type=int, default=0, help="prints so many texts of every cell of the first seed")
    arguments = parser.parse_args()
    if arguments.full:
        arguments.epsilons, arguments.records = list(GRID["epsilons"]), list(GRID["records"])
    if arguments.table or arguments.show or arguments.why:
        stored_cells = read_cells(arguments.out)
        if arguments.table:
            print(methods_table(stored_cells))
        if arguments.why:
            print(print_label_costs(arguments, stored_cells))
        for each in (each for each in stored_cells if each["seed"] == arguments.first_seed and arguments.show):
            print(f"\n## {each['task']}, {each['method']}")
            for text, label in list(zip(each["texts"], each["labels"], strict=True))[: arguments.show]:
                print("   ", label, "|", text)
        return
    judges: dict[str, Judge] = {}
    for task, cell in cells(arguments):
        path = arguments.out / task / f"{cell.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with holding(path.with_suffix(".lock"), BlockingIOError()):
                if path.exists():
                    continue
                figures = run(arguments, task, cell, judges)
                replace_file(path, json.dumps(figures, default=float).encode())
        except BlockingIOError:  # another command computes this cell
            continue
        line = {key: figures.get(key) for key in ("accuracy", "mauve", "adherence", "rows", "seconds")}
        print(task, cell.name, json.dumps(line, default=float), flush=True)


if __name__ == "__main__":
    main()
