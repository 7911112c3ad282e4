"""How often the private score's 95 % interval covers the score on 5 000 real records that no run saw.

    python -m benchmarks.private_score --data FOLDER [--runs 100] [--corpora 5] [--out runs/private-score]
    python -m benchmarks.private_score --quick

FOLDER holds banking_groups and movie_reviews, all public. Of each task's real texts 5 000 are held out, and every run
draws its 300 records from the others. At each epsilon the default method runs ``--corpora`` times as in
``benchmarks.judged``, each with its own records, texts and noise. The score of such a run is one of ``--runs``; the
rest draw 300 records and the noise of both sums anew for the corpora and classifiers of one of them, which are so
trained once. The truth is what the same classifiers label rightly of the held-out texts.

"held out anew" draws records and 5 000 other texts of all real ones in each run, because a fixed part may differ from
the rest. Two planted mistakes must cover less often: the score of the other corpus, and an interval without the
sampling error.
--quick invents its texts and needs no data.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import judged, judged_settings, judged_tables
from benchmarks.judged_settings import Row, Setting
from undersong_common.arrays import Float64
from undersong_common.models.embedding import CachedEmbedder, Embed, Embedder, PublicFileCache
from undersong_common.program import entry
from undersong_protocol.statistics.interface import PublicInputs
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.defaults import public_cache_path
from undersong_server.methods.parts.private_score import NORMAL_95, RECORD, PrivateScore, score_of
from undersong_server.runs.task import load

HELD_OUT, SAMPLES = 5000, 400
TASKS = ("mixed", "one-pool", "movies")
EPSILONS = (1.0, 4.0)
FIRST_SEED = 700
FIGURES = ("covered", "anew", "other", "unsampled")


class Real(NamedTuple):
    """A task with all its real texts: the rows that runs draw from first, then those that are held out."""

    setting: Setting
    rows: list[Row]
    held_out: int


class VerdictMachine(judged.OneMachine):
    """A run on one machine that keeps the classifiers of its last sum, the verdict on the corpora."""

    verdict: dict[str, Any]

    def private_sum(self, name: str, inputs: Sequence[tuple[str, Any]]) -> NoisySum:
        if name == "verdict":
            self.verdict = dict(inputs)
        return super().private_sum(name, inputs)


def real_task(setting: Setting, rows: Sequence[Row], held_out: int) -> Real:
    """Shuffles the real rows, each text once; a run sees none of the last ``held_out``."""
    distinct_rows = list({row["text"]: row for row in rows}.values())
    order = np.random.default_rng(FIRST_SEED).permutation(len(distinct_rows))
    shuffled = [distinct_rows[place] for place in order]
    drawable_rows = shuffled[: len(shuffled) - held_out]
    return Real(setting._replace(private=drawable_rows, test=drawable_rows[:200], samples=SAMPLES), shuffled, held_out)


def real_tasks(data_folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Real]]:
    """Yields the named tasks: several generators, one generator, and long texts of two labels."""
    one_pool = judged_settings.only(judged_settings.mixed, "narrow", data_folder)
    for name, setting, folder, files in (
        ("mixed", judged_settings.mixed(data_folder), "banking_groups", ("private", "test")),
        ("one-pool", one_pool, "banking_groups", ("private", "test")),
        ("movies", judged_settings.movies(data_folder), "movie_reviews", ("train", "test")),
    ):
        if name in names:
            rows = [row for file in files for row in judged_settings.rows_of(data_folder / folder / f"{file}.jsonl")]
            yield name, real_task(setting, rows, HELD_OUT)


def invented_task() -> Iterator[tuple[str, Real]]:
    """Yields a small task without data: invented reviews of hotels."""
    setting = judged_settings.stars(Path())
    rows = judged_settings.invented_reviews(np.random.default_rng(FIRST_SEED), 900)
    yield "stars", real_task(setting, rows, 400)


class Scored(NamedTuple):
    """Scores of one corpus by different draws of records, the method's own first.

    Attributes:
        scores: of the published corpus and, by the same sums, of the other one.
        truths: of both on the texts held out, and in each run on those held out anew, float64 [runs, 2].
    """

    scores: list[tuple[PrivateScore, PrivateScore]]
    truths: tuple[float, float]
    anew: Float64

    def counts(self) -> dict[str, int]:
        """Returns the number of runs whose interval covers the truth, as computed and with each planted mistake."""
        truth = self.truths[0]
        return {
            "covered": sum(own.low <= truth <= own.high for own, _ in self.scores),
            "anew": sum(own.low <= here <= own.high for (own, _), here in zip(self.scores, self.anew, strict=True)),
            "other": sum(other.low <= truth <= other.high for _, other in self.scores),
            "unsampled": sum(abs(own.value - truth) <= NORMAL_95 * own.noise for own, _ in self.scores),
        }


def score_runs(world: judged.World, real: Real, all_records: judged.Records, seed: int, runs: int) -> Scored:
    """Runs the method once, and repeats its last sum, the verdict on its corpora, for further draws of records."""
    _, run = judged.run_method(world, "undersong", seed, VerdictMachine)
    is_taken = bool(run.records["verdict"][-1][1]["taken"])
    statistic, verdict, labels = run.planned("verdict").build(), run.planned("verdict"), run.planned("labels")
    rows = statistic.rows(all_records, PublicInputs({}, run.verdict), {})
    answers = np.asarray(rows.take(np.arange(len(rows), dtype=np.int64)))
    signs = (1.0, -1.0) if is_taken else (-1.0, 1.0)
    right_shares = np.stack([(1.0 + answers[:, 1] + side * answers[:, 0]) / 2.0 for side in signs], axis=1)
    count, rng, spread = real.setting.records, np.random.default_rng([seed, 5]), labels.sigma * labels.dimension**0.5

    def draw_scores(record_rows: Any) -> tuple[PrivateScore, PrivateScore]:
        noisy_sums = answers[record_rows].sum(axis=0) + rng.normal(0.0, verdict.sigma, answers.shape[1])
        opened = NoisySum(np.rint(noisy_sums * verdict.scale).astype(np.int64), verdict.scale, verdict.sigma, ("all",))
        record_count = max(len(record_rows) + rng.normal(0.0, spread), spread, 1.0)
        own, other = (score_of(opened, record_count, spread, second=second) for second in (is_taken, not is_taken))
        return own, other

    drawable_count, scores, anew = len(answers) - real.held_out, [], []
    method_score = PrivateScore.from_json(run.records[RECORD][-1][1])
    for number in range(runs):
        record_rows = rng.permutation(drawable_count)[:count]
        own, other = draw_scores(record_rows)
        scores.append((own if number else method_score, other))
        other_rows = np.setdiff1d(np.arange(len(answers)), record_rows)
        anew.append(right_shares[rng.permutation(other_rows)[: real.held_out], 0].mean())
    held_out_truth = right_shares[drawable_count:].mean(axis=0)
    return Scored(scores, (float(held_out_truth[0]), float(held_out_truth[1])), np.array(anew))


def measure(
    tasks: Iterator[tuple[str, Real]], out_folder: Path, embed: Embed, runs: int, corpora: int
) -> list[dict[str, Any]]:
    """Returns the figures of each task and epsilon."""
    figure_rows = []
    for name, real in tasks:
        path = judged_settings.write(name, real.setting, out_folder)
        world = judged.World(path, embed)
        numbers = {label: number for number, label in enumerate(world.labels)}
        texts = [row["text"] for row in real.rows]
        all_records = judged.Records(texts, np.array([numbers[row["label"]] for row in real.rows]), embed(texts))
        for epsilon in EPSILONS:
            world.task = load(path, [f"privacy.epsilon={epsilon}"])
            start_s, parts = time.process_time(), np.diff(np.linspace(0, runs, corpora + 1).astype(int)).tolist()
            scored_runs = [score_runs(world, real, all_records, FIRST_SEED + n, part) for n, part in enumerate(parts)]
            scores = [own for scored_run in scored_runs for own, _ in scored_run.scores]
            row = {"task": name, "epsilon": epsilon, "runs": len(scores), "corpora": corpora}
            row |= {key: int(sum(scored_run.counts()[key] for scored_run in scored_runs)) for key in FIGURES}
            row |= {
                "truth": 100 * float(np.mean([scored_run.truths[0] for scored_run in scored_runs])),
                "score": 100 * float(np.mean([score.value for score in scores])),
                "reach": 50 * float(np.mean([score.high - score.low for score in scores])),
                "seconds": round(time.process_time() - start_s),
            }
            figure_rows.append(row)
            print(json.dumps(row), flush=True)
    return figure_rows


def figures_table(rows: Sequence[dict[str, Any]]) -> str:
    """The figures as a Markdown table."""
    heads = ("task", "epsilon", "on held-out texts, %", "private score, %", "+-", "runs", "covered", "held out anew")
    lines = []
    for row in rows:
        figures = (f"{row['truth']:.1f}", f"{row['score']:.1f}", f"{row['reach']:.1f}", f"{row['runs']}")
        lines.append([row["task"], f"{row['epsilon']:g}", *figures, *(f"{row[key]}" for key in FIGURES)])
    return judged_tables.table((*heads, "other corpus", "without the sample"), lines)


def main(argv: list[str] | None = None) -> int:
    """Prints a line for each task and epsilon, then the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.private_score", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder that holds the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/private-score"), help="where the settings are written")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--runs", type=int, default=100, help="at each epsilon")
    parser.add_argument("--corpora", type=int, default=5, help="whole runs of the method among them")
    parser.add_argument("--quick", action="store_true", help="invented texts, 20 runs of two corpora")
    options = parser.parse_args(argv)
    tasks: Callable[[], Iterator[tuple[str, Real]]] = lambda: real_tasks(options.data, options.tasks)  # noqa: E731
    if options.quick:
        options.runs, options.corpora, tasks = 20, 2, invented_task
    embed = CachedEmbedder(Embedder.load(), PublicFileCache(public_cache_path(os.environ))).encode
    print(figures_table(measure(tasks(), options.out, embed, options.runs, options.corpora)))
    return 0


if __name__ == "__main__":
    entry.run(main)
