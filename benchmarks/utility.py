"""Which method's synthetic data train the better model, at equal epsilon and equal numbers of generator calls.

Calls ``undersong compare`` for the tasks of benchmarks/tasks. ``--quick`` is banking_groups with few seeds; all
four tasks with twenty seeds take a night. The same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from undersong.comparison.grid import compared
from undersong.run.options import ComparisonOptions
from undersong_common.errors import ConfigurationError
from undersong_common.program import entry
from undersong_server.cli.display import display
from undersong_server.runs import task as tasks

TASKS = Path(__file__).parent / "tasks"
TESTS = {
    "banking_groups": "banking_groups/test.jsonl",
    "movie_reviews": "movie_reviews/test.jsonl",
    "movie_reviews_without_best": "movie_reviews/test.jsonl",
    "mts_dialog": "mts_dialog/test1.jsonl",
}
METHODS = ["wasp", "undersong", "mixture+labels", "mixture", "private-only"]
BASELINES = ["augpe", "pretext", "fusegen"]
PARTIES, RECORDS = [1, 10], [100, 300]  # with ten, the task files deal labels by a Dirichlet of alpha 1


def measure(task: str, data_folder: Path, out: Path, *, quick: bool, jobs: int) -> dict[str, Any]:
    """Returns the tables of one task: methods over epsilon, and Aug-PE with each generator alone."""
    root = f"data.root={json.dumps(str(data_folder.absolute()))}"
    single_generators = [
        f"augpe@{generator.name}" for generator in tasks.load(TASKS / f"{task}.toml", [root]).generators
    ]
    grids = {
        "methods": (METHODS if quick else METHODS + BASELINES, [1.0, 4.0, 8.0, float("inf")], 3 if quick else 20),
        "alone": (["wasp", *single_generators], [4.0] if quick else [1.0, 4.0, 8.0, float("inf")], 2 if quick else 20),
    }
    tables = {}
    with display(quiet=False) as progress:
        for name, (methods, epsilons, seeds) in grids.items():
            tables[name] = compared(
                TASKS / f"{task}.toml",
                ComparisonOptions(
                    test=data_folder / TESTS[task],
                    methods=methods,
                    epsilons=epsilons,
                    parties=PARTIES,
                    records=RECORDS,
                    seeds=range(seeds),
                    baseline="wasp",
                    out=out / task,
                    jobs=jobs,
                ),
                assignments=(root,),
                command="python -m benchmarks.utility" + (" --quick" if quick else ""),
                progress=progress,
                name=name,
            )
    return {"task": task, **tables}


def main(argv: list[str] | None = None) -> int:
    """Prints the tables; they stand in --out as well."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="banking_groups only, three seeds: below ten minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder that holds the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/utility"), help="where cells and tables are kept")
    parser.add_argument("--jobs", type=int, default=0, help="worker processes; 0 is one a core")
    options = parser.parse_args(argv)
    task_names = ["banking_groups"] if options.quick else list(TESTS)
    missing_files = [TESTS[task] for task in task_names if not (options.data / TESTS[task]).exists()]
    if missing_files:
        raise ConfigurationError(
            f"--data {options.data}: holds no {missing_files[0]}", "name the folder of the data sets"
        )
    task_tables = [
        measure(task, options.data, options.out, quick=options.quick, jobs=options.jobs) for task in task_names
    ]
    if options.json:
        print(json.dumps({"quick": options.quick, "tasks": task_tables}))
        return 0
    for task in task_names:
        for path in sorted((options.out / task).glob("*.md")):
            print(path.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    entry.run(main)
