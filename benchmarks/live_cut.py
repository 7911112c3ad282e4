"""How the score of a live corpus changes when its texts are cut to the lengths of the records.

    python -m benchmarks.live_cut --data FOLDER --out runs/live-arms [--dataset banking10] [--models runs/models]

Reads the corpora that ``benchmarks.live_arms`` left in --out and asks no model. Each text is cut to its leading whole
sentences that reach a length drawn from the real records, as no method may draw it: without noise. So the figures
bound what a private sum about lengths can bring if a model obeys it, with the same content. Corpora are judged as in
``benchmarks.live_arms``; differences are paired over the real texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import judged_tables
from benchmarks.live import TASKS, data_root
from benchmarks.live_arms import SHOWN, difference, judge, judge_of, read_cells, with_panel
from benchmarks.outside_judge import Judge
from undersong_common.arrays import Float64
from undersong_server.generators.reading import until_length
from undersong_server.operations.tasks import read_private_files
from undersong_server.runs import task as tasks

DRAWS = 3  # draws of the lengths, over which scores are averaged


def cut_texts(texts: Sequence[str], lengths: Sequence[int]) -> list[str]:
    """Returns every text up to the end of the sentence that reaches its length; whole where none reaches it."""
    return [until_length(text, words) for text, words in zip(texts, lengths, strict=True)]


def judge_cut_texts(panel: Judge, cell: dict[str, Any], lengths: Sequence[int]) -> tuple[dict[str, Float64], float]:
    """Returns each half's scores on real texts after training on cut texts, and the texts' mean number of words."""
    rng = np.random.default_rng(cell["seed"])
    draws, words = [], []
    for _ in range(DRAWS):
        shorter = cut_texts(cell["texts"], rng.choice(lengths, len(cell["texts"])).tolist())
        draws.append(with_panel(panel.right(shorter, cell["labels"])))
        words.append(float(np.mean([len(text.split()) for text in shorter])))
    return {half: np.mean([draw[half] for draw in draws], axis=0) for half in SHOWN}, float(np.mean(words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="where benchmarks.live_arms left its corpora")
    parser.add_argument("--models", type=Path, default=Path("runs/models"), help="keeps the readers' encoder")
    parser.add_argument("--dataset", default="banking10", help="a task file of benchmarks/tasks")
    arguments = parser.parse_args()
    task = tasks.load(TASKS / f"{arguments.dataset}.toml", [data_root(arguments)])
    lengths = [len(text.split()) for table in read_private_files(task) for text in table.texts]
    heads = ("model", "records", "arm", "seed", "words a text", "cut", *(f"{half}, cut - whole" for half in SHOWN))
    lines = []
    cells = [cell for cell in read_cells(arguments.out) if cell["task"] == arguments.dataset]
    judge(arguments, cells)
    panel = judge_of(arguments, arguments.dataset)
    for cell in cells:
        cut, words = judge_cut_texts(panel, cell, lengths)
        words_before = float(np.mean([len(text.split()) for text in cell["texts"]]))
        cell_facts = [str(cell[name]) for name in ("model", "records", "arm", "seed")]
        difference_words = [difference([cut[half] - cell["right"][half]]) for half in SHOWN]
        lines.append([*cell_facts, f"{words_before:.1f}", f"{words:.1f}", *difference_words])
    print(judged_tables.table(heads, lines))


if __name__ == "__main__":
    main()
