"""Which candidates could have been private: teachers and moments beside Top-Q votes and chance, on real text.

    python -m benchmarks.discriminator --data FOLDER [--tasks mts_dialog movie_reviews] [--seeds 5] [--quick]
                                       [--out runs/discriminator] [--jobs 2]
    python -m benchmarks.discriminator --summary [--out runs/discriminator]

A thin caller of ``undersong compare``: 1, 5 and 10 parties, epsilon 1, 4 and 8, and inf once more with one party; equal
numbers of generator calls. The same command continues what was stopped. mts_dialog: its six largest classes; private is
the training part, candidates come from a replay pool (test2 and validation) and three n-gram models of it, test is
test1. movie_reviews: its task file, with six pools that real models wrote. FOLDER holds both; they are no part of this
project.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from scipy.stats import t as student

from undersong.compare_cell import PRIVATE_ONLY
from undersong.comparison import CELLS, compared
from undersong.options import ComparisonOptions
from undersong_common import entry
from undersong_common.errors import ConfigurationError
from undersong_server.cli.display import Display

TASKS = Path(__file__).parent / "tasks"
METHODS = [
    'discriminator:discriminator="random"',
    'discriminator:discriminator="teachers"',
    'discriminator:discriminator="moments"',
    'discriminator:discriminator="moments"+covariance=16',
    'discriminator:discriminator="votes"',
    "wasp",
    PRIVATE_ONLY,
]
PARTIES, EPSILONS = [1, 5, 10], [1.0, 4.0, 8.0]
SAMPLES = {"mts_dialog": 1600, "movie_reviews": 6000}
CHANCE = "random"
FIGURES = ("discriminator_accuracy", "discriminator_auc", "accuracy", "macro_f1", "frechet")
CLASSES = 6  # of mts_dialog; the other fourteen have too few records to be judged by


def task_of(name: str, data: Path, folder: Path) -> tuple[Path, Path, str]:
    """Task file, test set and the root of their paths."""
    if name == "movie_reviews":
        return TASKS / "movie_reviews.toml", data / name / "test.jsonl", str(data.absolute())
    folder.mkdir(parents=True, exist_ok=True)

    def rows(*files: str) -> list[dict[str, str]]:
        return [json.loads(line) for file in files for line in (data / name / file).open(encoding="utf-8")]

    labels = sorted(label for label, _ in Counter(row["label"] for row in rows("train.jsonl")).most_common(CLASSES))
    parts = {
        "private": rows("train.jsonl"),
        "public": rows("test2.jsonl", "validation.jsonl"),
        "few": rows("validation.jsonl"),
        "test": rows("test1.jsonl"),
    }
    for part, content in parts.items():
        kept = ({"text": row["text"], "label": row["label"]} for row in content if row["label"] in labels)
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    task = folder / "mts_dialog.toml"
    task.write_text(
        f"""
[task]
name = "mts-dialog"
description = "a section of a clinical note that a doctor dictated"
labels = {json.dumps(labels)}
[data]
root = ""
path = "private.jsonl"
label = "label"
[privacy]
epsilon = 4.0
delta = 1e-5
[federation]
parties = 5
alpha = 1.0
[method]
name = "wasp"
[[generators]]
name = "pool"
kind = "replay"
path = "public.jsonl"
[[generators]]
name = "sections"
kind = "ngram"
corpus = "public.jsonl"
[[generators]]
name = "few"
kind = "ngram"
corpus = "few.jsonl"
[[generators]]
name = "smeared"
kind = "ngram"
corpus = "public.jsonl"
order = 2
temperature = 2.0
shared = 0.5
""",
        encoding="utf-8",
    )
    return task, folder / "test.jsonl", str(folder.absolute())


def measure(name: str, data: Path, out: Path, *, seeds: int, quick: bool, jobs: int) -> None:
    """Runs what is missing of one task."""
    task, test, root = task_of(name, data, out / name / "data")
    samples = 800 if quick and name == "mts_dialog" else SAMPLES[name]
    grids = {"comparison": (PARTIES, EPSILONS), "no-noise": ([1], [math.inf])}
    if quick:
        grids = {"comparison": ([5], [4.0])}
    with Display(Console(stderr=True)) as display:
        for table, (parties, epsilons) in grids.items():
            compared(
                task,
                ComparisonOptions(
                    test=test,
                    methods=METHODS,
                    epsilons=epsilons,
                    parties=parties,
                    records=[],
                    seeds=range(seeds),
                    out=out / name,
                    jobs=jobs,
                ),
                assignments=(f"data.root={json.dumps(root)}", f"method.samples={samples}"),
                command="python -m benchmarks.discriminator",
                progress=display,
                name=table,
            )


def summary(name: str, cells: Sequence[dict[str, Any]]) -> str:
    """Means over seeds by setting, one table a figure, then what each method gains over chance."""
    found: dict[tuple[str, tuple[int, float], int], dict[str, Any]] = {}
    for cell in cells:
        if cell["parties"]:
            setting = cell["parties"], float(cell["epsilon"])
            found[_short(cell["method"]), setting, cell["seed"]] = cell.get("figures", {}) | cell
    methods = [short for short in map(_short, METHODS) if any(short == key[0] for key in found)]
    settings = sorted({key[1] for key in found})
    lines = [f"### {name}"]
    for figure in FIGURES:
        columns = [m for m in methods if any(figure in cell for key, cell in found.items() if key[0] == m)]
        lines += ["", f"{figure.replace('_', ' ')}, mean over seeds:", ""]
        lines += ["| parties | epsilon | " + " | ".join(columns) + " |", "|---" * (2 + len(columns)) + "|"]
        for setting in settings:
            means = [_mean([c[figure] for k, c in found.items() if k[:2] == (m, setting)]) for m in columns]
            lines.append(f"| {setting[0]} | {setting[1]:g} | " + " | ".join(means) + " |")
    alone = [cell for cell in cells if not cell["parties"]]
    known = [f"{figure.replace('_', ' ')} {_mean([cell[figure] for cell in alone])}" for figure in FIGURES[2:]]
    lines += ["", f"Private records themselves, no privacy: {', '.join(known)}."]
    lines += [
        "",
        "Gain over chance, paired by seed, mean of the settings with noise, 95 % Student interval over seeds:",
    ]
    lines += ["", "| method | " + " | ".join(FIGURES[2:]) + " |", "|---" * (1 + len(FIGURES[2:])) + "|"]
    noisy = [setting for setting in settings if math.isfinite(setting[1])]
    for method in methods:
        if method != CHANCE:
            gains = [_gain(found, method, figure, noisy) for figure in FIGURES[2:]]
            lines.append(f"| {method} | " + " | ".join(gains) + " |")
    return "\n".join(lines)


def _gain(
    found: dict[tuple[str, tuple[int, float], int], dict[str, Any]],
    method: str,
    figure: str,
    settings: Sequence[tuple[int, float]],
) -> str:
    gains = []
    for seed in sorted({key[2] for key in found}):
        pairs = [(found.get((method, one, seed)), found.get((CHANCE, one, seed))) for one in settings]
        known = [mine[figure] - chance[figure] for mine, chance in pairs if mine and chance]
        if known and len(known) == len(settings):
            gains.append(np.mean(known))
    if len(gains) < 2:
        return "-"
    half = student.ppf(0.975, len(gains) - 1) * np.std(gains, ddof=1) / math.sqrt(len(gains))
    return f"{np.mean(gains):+.3f} ({np.mean(gains) - half:+.3f} to {np.mean(gains) + half:+.3f})"


def _short(method: str) -> str:
    return method.removeprefix("discriminator:").replace("discriminator=", "").replace('"', "")


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f}" if known else "-"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.discriminator", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", type=Path, help="folder that holds the data sets")
    parser.add_argument("--tasks", nargs="+", choices=list(SAMPLES), default=list(SAMPLES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="mts_dialog, five parties, epsilon 4, one seed")
    parser.add_argument("--out", type=Path, default=Path("runs/discriminator"), help="where cells and tables are kept")
    parser.add_argument("--jobs", type=int, default=0, help="worker processes; 0 is one a core")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    options = parser.parse_args(argv)
    chosen, out = (["mts_dialog"], options.out / "quick") if options.quick else (options.tasks, options.out)
    if not options.summary:
        if options.data is None:
            raise ConfigurationError("--data is missing", "the real text is no part of this project: name its folder")
        for name in chosen:
            if not (options.data / name).is_dir():
                raise ConfigurationError(f"--data {options.data}: holds no {name}", "name the folder of the data sets")
            measure(
                name, options.data, out, seeds=1 if options.quick else options.seeds, quick=options.quick,
                jobs=options.jobs,
            )  # fmt: skip
    for name in chosen:
        paths = sorted((out / name / CELLS).glob("*.json"))
        cells = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        print(summary(name, cells))
    return 0


if __name__ == "__main__":
    entry.run(main)
