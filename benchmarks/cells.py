"""Processor time of a cell of ``undersong compare`` (one method, one seed), in this tree and at an earlier commit.

    python -m benchmarks.cells --data FOLDER [--before COMMIT] [--methods wasp,mixture] [--seeds 5]
        [--quick] [--json]

One process per tree and method runs the cells of several seeds in turn, as a worker of ``undersong compare`` does; the
first cell also loads the models and fills the caches, so it is reported apart. Noise has a fixed seed, so a method that
has not changed has the same accuracies in both trees. JSON: for each method and tree ``first_s`` and ``cell_s`` (median
of the later cells, processor seconds), ``accuracies``, and ``ratio`` (here over before).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.doubles.processes import ROOT, SOURCES
from undersong_common.errors import ConfigurationError
from undersong_common.program import entry

TASK, TEST = "benchmarks/tasks/banking_groups.toml", "banking_groups/test.jsonl"
METHODS = ("wasp", "mixture", "undersong")
PARTIES, RECORDS, EPSILON = 10, 300, 4.0
WORKER = """
import json, sys, time
from pathlib import Path
from undersong.comparison.cell import Bench, Cell, Variant
task, test, root, method, seeds, parties, records, epsilon = json.loads(sys.argv[1])
bench = Bench(Path(task), ("data.root=" + json.dumps(root),), Path(test), 2000, insecure_noise_seed=1)
free = method == "mixture"
for seed in range(seeds):
    start = time.process_time()
    cell = Cell(Variant.parse(method), *((None,) * 3 if free else (epsilon, parties, records)), seed)
    accuracy = bench.measure(cell)["accuracy"]
    print(json.dumps([time.process_time() - start, accuracy]), flush=True)
"""


def measure_cells(tree: Path, method: str, data_folder: Path, seeds: int) -> dict[str, Any]:
    """Runs the cells of one method with the code in the folder ``tree``; returns their times and accuracies."""
    worker_arguments = [
        str(ROOT / TASK),
        str(data_folder / TEST),
        str(data_folder),
        method,
        seeds,
        PARTIES,
        RECORDS,
        EPSILON,
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(tree / source.relative_to(ROOT)) for source in SOURCES)
    }
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    completed = subprocess.run(
        [sys.executable, "-c", WORKER, json.dumps(worker_arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    cells = [json.loads(line) for line in completed.stdout.splitlines()]
    return {
        "first_s": cells[0][0],
        "cell_s": statistics.median(seconds for seconds, _ in cells[1:]),
        "accuracies": [accuracy for _, accuracy in cells],
    }


def unpack_commit(commit: str, folder: Path) -> Path:
    """Unpacks the project at ``commit`` into ``folder``. Raises ConfigurationError if git lacks the commit."""
    archive = folder / "tree.tar"
    archiving = subprocess.run(
        ["git", "archive", "-o", str(archive), commit], cwd=ROOT, capture_output=True, check=False
    )
    if archiving.returncode:
        raise ConfigurationError(f"--before {commit}: git has no such commit", "name one of this repository")
    with tarfile.open(archive) as tree:
        tree.extractall(folder / "tree", filter="data")
    return folder / "tree"


def main(argv: list[str] | None = None) -> int:
    """Prints one line per method and tree."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cells", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder that holds the data sets")
    parser.add_argument("--before", metavar="COMMIT", help="measure that commit beside this tree")
    parser.add_argument("--methods", default=",".join(METHODS), help="names, commas between")
    parser.add_argument("--seeds", type=int, default=5, help="cells of each process, two at least")
    parser.add_argument("--quick", action="store_true", help="the first method, three seeds")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(argv)
    data_folder = options.data.absolute()
    if not (data_folder / TEST).exists():
        raise ConfigurationError(f"--data {options.data}: holds no {TEST}", "name the folder of the data sets")
    seeds = 3 if options.quick else max(2, options.seeds)
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="undersong-before-") as folder:
        trees = {"here": ROOT} | ({"before": unpack_commit(options.before, Path(folder))} if options.before else {})
        for method in options.methods.split(",")[: 1 if options.quick else None]:
            figures[method] = {}
            for name, tree in reversed(trees.items()):
                figures[method][name] = cost = measure_cells(tree, method, data_folder, seeds)
                if not options.json:
                    print(
                        f"{method:10} {name:7} a cell {cost['cell_s']:6.2f} s, the first {cost['first_s']:6.2f} s",
                        flush=True,
                    )
            if options.before:
                figures[method]["ratio"] = figures[method]["here"]["cell_s"] / figures[method]["before"]["cell_s"]
    if options.json:
        print(json.dumps({"before": options.before, "methods": figures}))
    return 0


if __name__ == "__main__":
    entry.run(main)
