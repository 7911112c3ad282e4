"""Accuracy on long texts: embeddings of all their windows, of the first window only, and TF-IDF.

    python -m benchmarks.long_texts [--data FOLDER] [--texts 360] [--quick] [--json]

``invented``: notes of 600 to 1 500 words with six labels, decided in the last third (tests/doubles/long_notes.py).
``encounters``, with ``--data``: doctor-patient talks of mts_dialog, five joined, under the header of the last, one of
the six most frequent. Two thirds train, the rest tests; figures are accuracies in percent. Ways to pool the windows:

    mean       of unit vectors (what is built in)
    early      weights 1, 1/2, 1/3, ... in their order
    late       the same from the end
    largest    the coordinate of the largest magnitude

``cut`` reads the first window only. ``seconds_a_window`` beside ``seconds_a_short_text`` shows the cost of length.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tests.doubles.long_notes import notes
from undersong_common.arrays import Float32
from undersong_common.errors import ConfigurationError
from undersong_common.models import embedding
from undersong_common.models.embedding import Embedder

JOINED = 5
MOST_FREQUENT = 6
POOLED: dict[str, Callable[[Float32], Any]] = {
    "mean": lambda units: units.sum(axis=0),
    "early": lambda units: (units / np.arange(1, len(units) + 1)[:, None]).sum(axis=0),
    "late": lambda units: (units / np.arange(len(units), 0, -1)[:, None]).sum(axis=0),
    "largest": lambda units: units[np.abs(units).argmax(axis=0), np.arange(units.shape[1])],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="folder that holds mts_dialog/")
    parser.add_argument("--texts", type=int, default=360)
    parser.add_argument("--quick", action="store_true", help="90 texts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    count = 90 if options.quick else options.texts
    tasks = {"invented": list(notes(count))}
    if options.data is not None:
        tasks["encounters"] = encounters(options.data, count)
    figures_by_task = {name: measure(*zip(*rows, strict=True)) for name, rows in tasks.items()}
    if options.json:
        print(json.dumps(figures_by_task))
        return
    for name, figures in figures_by_task.items():
        print(name)
        for key, value in figures.items():
            print(f"  {key:22} {value:.4g}")


def encounters(data_folder: Path, count: int) -> list[tuple[str, str]]:
    """Joined talks and the header of the last. Raises ConfigurationError for a folder without them."""
    path = data_folder / "mts_dialog" / "train.jsonl"
    if not path.is_file():
        raise ConfigurationError(f"--data {data_folder}: holds no mts_dialog", "name the folder of the data sets")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    frequent = {label for label, _ in Counter(row["label"] for row in rows).most_common(MOST_FREQUENT)}
    last_rows = [row for row in rows if row["label"] in frequent]
    rng = np.random.default_rng(0)
    joined_talks = []
    for number in rng.permutation(len(last_rows))[:count]:
        earlier_talks = [rows[row]["dialogue"] for row in rng.integers(0, len(rows), JOINED - 1)]
        joined_talks.append(("\n".join([*earlier_talks, last_rows[number]["dialogue"]]), last_rows[number]["label"]))
    return joined_talks


def measure(texts: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """Returns the figures of one task."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    embedder = Embedder.load()
    embedder.try_out()
    window_units: list[Any] = []
    pool = embedding._pool_windows

    def watched(units: Float32, positions: Sequence[int], count: int) -> Float32:
        window_units.append((units, np.array(positions)))
        return pool(units, positions, count)

    start_s = time.thread_time()
    with mock.patch.object(embedding, "_pool_windows", watched):
        rows = embedder.encode(texts)
    seconds = time.thread_time() - start_s
    ((units, positions),) = window_units
    short = [" ".join(text.split()[:60]) for text in texts]
    start_s = time.thread_time()
    embedder.encode(short)
    short_s = time.thread_time() - start_s
    lengths = embedder.lengths(texts)
    train_count = len(texts) * 2 // 3
    figures = {
        "texts": float(len(texts)),
        "words_a_text": float(np.mean([len(text.split()) for text in texts])),
        "long": float(lengths.long),
        "cut_at_8_windows": float(lengths.cut),
        "seconds_a_window": seconds / len(units),
        "seconds_a_short_text": short_s / len(texts),
        "built_in": _accuracy(rows, labels, train_count),
    }
    for name, way in POOLED.items():
        pooled = np.stack([way(units[positions == row]) for row in range(len(texts))])
        figures[name] = _accuracy(pooled / np.linalg.norm(pooled, axis=1, keepdims=True), labels, train_count)
    figures["cut"] = _accuracy(Embedder.load(max_windows=1).encode(texts), labels, train_count)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(texts[:train_count])
    figures["tf_idf"] = _accuracy(words.transform(texts), labels, train_count)
    return figures


def _accuracy(rows: Any, labels: Sequence[str], train_count: int) -> float:
    """Returns the percentage of test texts that a logistic regression trained on the first ``half`` labels rightly."""
    from sklearn.linear_model import LogisticRegression

    head = LogisticRegression(C=30.0, max_iter=2000).fit(rows[:train_count], labels[:train_count])
    return float(100 * head.score(rows[train_count:], labels[train_count:]))


if __name__ == "__main__":
    main()
