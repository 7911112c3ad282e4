"""The methods that choose among a live model's texts, with many draws of records and noise.

    python -m benchmarks.live_again --live runs/live --data FOLDER --out runs/live-again

A live cell takes minutes and has one draw of noise. Here the zero-shot texts of the live cells of all seeds
(``benchmarks.live_core --methods mixture``) are the one generator's pool, and each cell takes a second. All methods
order as many texts: ``undersong`` publishes them all, and as ``undersong:written=3`` a third of them.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import judged, judged_settings, live_core
from undersong.comparison.cell import read_test
from undersong_common.models.embedding import CachedEmbedder, Embedder, PublicFileCache
from undersong_server.defaults import public_cache_path
from undersong_server.operations.tasks import read_private_files

PUBLISHED, WRITTEN = 99, 3
METHODS = ("mixture", "mixture+labels", "cleaned-mixture", "undersong", f"undersong:written={WRITTEN}")


def setting(arguments: argparse.Namespace, task: str) -> judged_settings.Setting:
    """Returns the task with the texts of its live cells as the only pool."""
    bench = live_core.bench_of(arguments, task, Path("."), "packaged")
    private = [row for table in read_private_files(bench._own_task) for row in _rows(table.texts, table.labels)]
    cells = [json.loads(path.read_text("utf-8")) for path in sorted(arguments.live.glob(f"{task}/mixture_*.json"))]
    pool = [row for cell in cells for row in _rows(cell["texts"], cell["labels"])]
    test = read_test(bench.test, bench._own_task)
    return judged_settings.Setting(
        task, private, _rows(test.texts, test.labels), {"live": pool}, samples=PUBLISHED * WRITTEN
    )


def _rows(texts: Sequence[str], labels: Sequence[str] | None) -> list[judged_settings.Row]:
    return [{"text": text, "label": label} for text, label in zip(texts, labels or (), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", type=Path, required=True, help="the --out of benchmarks.live_core")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    arguments.samples, arguments.batch, arguments.dtype = PUBLISHED, 1, "float32"
    embed = CachedEmbedder(Embedder.load("packaged"), PublicFileCache(public_cache_path(os.environ))).encode
    print("| task | method | ordered | published | panel score | minus mixture | verdict taken |")
    print("|---|---|---|---|---|---|---|")
    for task in live_core.TASKS:
        mixture_scores: list[float] = []
        whole = setting(arguments, task)
        worlds = {
            samples: judged.World(
                judged_settings.write(f"{task}-{samples}", whole._replace(samples=samples), arguments.out),
                embed,
            )
            for samples in (PUBLISHED, whole.samples)
        }
        for method in METHODS:
            world = worlds[PUBLISHED if "written" in method else whole.samples]
            cells = [judged.cell(world, method, judged.FIRST_SEED + seed) for seed in range(arguments.seeds)]
            scores = [cell["panel"] for cell in cells]
            mixture_scores = mixture_scores or scores
            gain = live_core.interval([ours - theirs for ours, theirs in zip(scores, mixture_scores, strict=True)])
            taken = sum(cell["records"].get("verdict", {}).get("taken", False) for cell in cells)
            rows = np.mean([cell["rows"] for cell in cells])
            print(
                f"| {task} | `{method}` | {whole.samples} | {rows:.0f} | {np.mean(scores):.1f} | {gain} | {taken} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
