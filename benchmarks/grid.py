"""Accuracy lost by rounding published embeddings to a grid: votes over the same pool, records and noise on each grid.

    python -m benchmarks.grid --data FOLDER [--seeds N] [--quick] [--json]

FOLDER holds banking_groups (benchmarks/tasks), all public. For each seed, 1 000 private questions vote for and against
3 000 candidates of six pools (Q = 8, epsilon 4, delta 1e-5, the noise that the plan of one vote has, the same draw on
every grid); the 300 candidates with the highest difference, equally many per label, train a logistic regression on
embeddings, which is judged on the test questions. Embeddings lie on multiples of 1/2048, the former public grid; the
coarser ones are rounded as ``embedding.publishable`` does. JSON: ``seeds``, ``sigma`` (votes), ``grids`` = list of
{grid, accuracy, difference, interval, same_chosen, bits}: mean accuracy, mean difference from 1/2048 with half the
width of its 95 % interval over the seeds (paired), share of the chosen candidates that 1/2048 chose too, and bits per
published coordinate.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.doubles.votes import top_q_votes
from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.models import embedding
from undersong_common.models.embedding import GRID, PUBLIC_GRID, CachedEmbedder, Embedder, PublicFileCache
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import TopQVotes
from undersong_server.defaults import public_cache_path
from undersong_server.methods.augpe import by_rank

GRIDS = (GRID, 512, 256, PUBLIC_GRID, 64)
RECORDS, CANDIDATES, KEPT, Q = 1000, 3000, 300, 8
SHRINK = 2.0**-10


def round_to_grid(rows: Float32, resolution: int) -> Float32:
    """Rows rounded to multiples of 1/resolution with norm at most 1."""
    rounded: Float32 = embedding._to_grid(rows, resolution, shrink=SHRINK).astype(np.float32) / np.float32(resolution)
    return rounded


def entropy_bits(rows: Float32, resolution: int) -> float:
    """Returns the entropy of one coordinate in bits, which the entropy coder's length comes close to."""
    counts = np.unique((rows * resolution).astype(np.int64), return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


class Questions:
    """Public questions, with label numbers and embeddings on the former grid of 1/2048."""

    def __init__(self, paths: list[Path], labels: list[str], encode: Any) -> None:
        rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
        self.labels: Int64 = np.array([labels.index(row["label"]) for row in rows], dtype=np.int64)
        self.rows: Float32 = encode([row["text"] for row in rows])


def load_questions(data_folder: Path) -> tuple[int, Questions, Questions, Questions]:
    """Returns the number of labels of banking_groups, its private and its test questions, and all pools as one."""
    folder = data_folder / "banking_groups"
    labels = sorted({json.loads(line)["label"] for line in (folder / "test.jsonl").read_text().splitlines()})
    encode = CachedEmbedder(Embedder.load(), PublicFileCache(public_cache_path(os.environ))).encode
    pools = sorted((folder / "pools").glob("*.jsonl"))
    private, test, pool = (
        Questions(paths, labels, encode) for paths in ([folder / "private.jsonl"], [folder / "test.jsonl"], pools)
    )
    return len(labels), private, test, pool


def measure(data_folder: Path, seeds: int) -> dict[str, Any]:
    """Returns the JSON figures of the module's docstring."""
    from sklearn.linear_model import LogisticRegression

    labels, private, test, pool = load_questions(data_folder)
    votes = TopQVotes(q=Q, candidates=CANDIDATES, labels=labels)
    sigma = plan_sums([SumRequest("votes", votes)], Privacy(4.0, 1e-5), Quorum(10, 7, 1, 1))["votes"].sigma
    published = {grid: pool.rows if grid == GRID else round_to_grid(pool.rows, grid) for grid in GRIDS}
    accuracy: dict[int, list[float]] = {grid: [] for grid in GRIDS}
    same_chosen: dict[int, list[float]] = {grid: [] for grid in GRIDS}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        records = rng.choice(len(private.rows), RECORDS, replace=False)
        candidate_rows = rng.choice(len(pool.rows), CANDIDATES, replace=False)
        noise = rng.normal(0.0, sigma, 2 * CANDIDATES)
        first_chosen: set[int] = set()
        for grid in GRIDS:
            candidates, candidate_labels = published[grid][candidate_rows], pool.labels[candidate_rows]
            chosen_rows = _chosen(private.rows[records], private.labels[records], candidates, candidate_labels, noise)
            first_chosen = first_chosen or set(chosen_rows.tolist())
            same_chosen[grid].append(len(first_chosen & set(chosen_rows.tolist())) / len(chosen_rows))
            head = LogisticRegression(max_iter=500).fit(
                pool.rows[candidate_rows][chosen_rows], candidate_labels[chosen_rows]
            )
            accuracy[grid].append(float(head.score(test.rows, test.labels)))
        print(f"seed {seed}: " + ", ".join(f"1/{g} {accuracy[g][-1]:.4f}" for g in GRIDS), file=sys.stderr)
    lines = []
    for grid in GRIDS:
        differences = np.array(accuracy[grid]) - np.array(accuracy[GRID])
        lines.append(
            {
                **{"grid": grid, "accuracy": float(np.mean(accuracy[grid])), "difference": float(differences.mean())},
                "interval": float(1.96 * differences.std(ddof=1) / math.sqrt(seeds)) if seeds > 1 else math.inf,
                **{"same_chosen": float(np.mean(same_chosen[grid])), "bits": entropy_bits(published[grid], grid)},
            }
        )
    return {"seeds": seeds, "sigma": sigma, "grids": lines}


def _chosen(x: Float32, x_labels: Int64, c: Float32, c_labels: Int64, noise: Float64) -> Int64:
    exact_votes = np.concatenate(top_q_votes(x, x_labels, c, c_labels, Q)) / 2.0 ** (Q - 1)  # one full vote is 1
    near_votes, far_votes = np.split(exact_votes + noise, 2)
    return by_rank(near_votes - far_votes, c_labels, KEPT)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grid", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds banking_groups")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="four seeds")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    options = parser.parse_args()
    figures = measure(options.data, 4 if options.quick else options.seeds)
    if options.json:
        print(json.dumps(figures))
        return 0
    print(f"{figures['seeds']} seeds, noise of {figures['sigma']:.2f} votes")
    for line in figures["grids"]:
        print(
            f"1/{line['grid']:<5} accuracy {line['accuracy']:.4f}, {line['difference']:+.4f} +- {line['interval']:.4f};"
            f" {line['same_chosen']:.0%} of the chosen the same; {line['bits']:.2f} bits per coordinate"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
