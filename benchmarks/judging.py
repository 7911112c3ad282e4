"""Time and memory of ``undersong evaluate`` for 10 000 synthetic texts against as many test, private and held-out ones.

    python -m benchmarks.judging [--quick] [--json] [--texts N] [--embed N]

Texts are invented here, four labels, some twenty words each. Embeddings are made up (a direction per label, a smaller
one per phrase, noise), 384 numbers each, so that the figures are the measures' own; what embedding costs is measured
apart, over ``--embed`` texts with the packaged model, and stated for all of them. Task models, distances, diversity,
label errors, next-word loss, near copies, the closest record and membership attacks are all computed, on one core.

JSON: ``texts``, ``evaluate_s``, ``processor_s`` (of all threads, which other programs disturb less; target below 300),
``resident_peak_bytes`` (target below 2e9), ``embed_s_per_10000`` (processor time).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

import numpy as np

from undersong_common.arrays import Float32
from undersong_common.text.table import Table

TARGET_S = 300.0
TARGET_BYTES = 2e9
DIMENSION = 384
LABELS = ("cardiac", "respiratory", "injury", "infection")
PHRASES = {
    "cardiac": ("crushing chest pain", "palpitations at rest", "pain into the left arm", "collapse while walking"),
    "respiratory": ("short of breath", "a wheeze at night", "a productive cough", "sats falling on air"),
    "injury": ("a swollen ankle", "fell from a ladder", "a deep cut to the hand", "cannot bear weight"),
    "infection": ("fever for three days", "hot and shivering", "a red and warm calf", "a stiff neck and headache"),
}
WHO = ("a farmer", "a child of six", "an elderly woman", "a nurse", "a cyclist", "a fisherman", "a student", "a driver")
MORE = ("no allergies", "brought in by family", "walked in", "pale and sweating", "calm", "in pain", "seen last week")


def invent_texts(count: int, seed: int) -> tuple[Table, Float32]:
    """Texts with labels, and made-up unit embeddings, float32 [count, 384]."""
    rng = np.random.default_rng(seed)
    shared_rng = np.random.default_rng(7)  # every data set has the same directions of labels and phrases
    of_label = {label: shared_rng.normal(size=DIMENSION) for label in LABELS}
    of_phrase = {phrase: shared_rng.normal(size=DIMENSION) for phrases in PHRASES.values() for phrase in phrases}
    texts, labels, rows = [], [], []
    for number in range(count):
        label = LABELS[number % len(LABELS)]
        phrase = str(rng.choice(PHRASES[label]))
        words = " ".join(f"w{word}" for word in rng.zipf(1.3, 6) % 5000)  # as rare as words of real texts
        vital_signs = f"pulse {rng.integers(50, 140)} pressure {rng.integers(90, 180)} over {rng.integers(50, 100)}"
        texts.append(f"{rng.choice(WHO)}, {phrase}, {rng.choice(MORE)}; {vital_signs}; {words}")
        labels.append(label)
        rows.append(of_label[label] + 0.6 * of_phrase[phrase] + 1.2 * rng.normal(size=DIMENSION))
    x = np.array(rows)
    embeddings = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    return Table(tuple(texts), tuple(labels), None), embeddings


def measure(texts: int, embedded: int) -> dict[str, float]:
    """Returns the JSON figures of the module's docstring."""
    from undersong_server.evaluation.evaluate import evaluate_tables
    from undersong_server.evaluation.options import EvaluationOptions

    names = ("synthetic", "test", "private", "others")
    data_sets = {name: invent_texts(texts, seed) for seed, name in enumerate(names)}
    embeddings_by_texts = {table.texts: x for table, x in data_sets.values()}
    tables = {name: table for name, (table, _) in data_sets.items()}
    start_s, processor_s = time.perf_counter(), time.process_time()
    report = evaluate_tables(
        "benchmark",
        tables["synthetic"],
        EvaluationOptions(
            test=tables["test"],
            train_private=tables["private"],
            overlap=tables["private"],
            membership=(tables["private"], tables["others"]),
        ),
        embed=lambda given: embeddings_by_texts[tuple(given)],
    )
    seconds, processor_s = time.perf_counter() - start_s, time.process_time() - processor_s
    assert len(report.distances) == 2
    assert report.closest is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "texts": texts,
        "evaluate_s": seconds,
        "processor_s": processor_s,
        "resident_peak_bytes": peak,
        "embed_s_per_10000": _embedding_s(tables["synthetic"].texts[:embedded]) * 10_000 / embedded,
    }


def _embedding_s(texts: tuple[str, ...]) -> float:
    from undersong_common.models.embedding import Embedder

    embedder = Embedder.load("packaged")
    embedder.encode(texts[:8])
    start_s = time.process_time()
    embedder.encode(texts)
    return time.process_time() - start_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="1 000 texts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--texts", type=int, default=10_000, help="texts of each of the four sets")
    parser.add_argument("--embed", type=int, default=200, help="texts that are really embedded, for what that costs")
    arguments = parser.parse_args()
    figures = measure(1_000 if arguments.quick else arguments.texts, arguments.embed)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:22} {value:,.0f}")
    misses_target = figures["processor_s"] > TARGET_S or figures["resident_peak_bytes"] > TARGET_BYTES
    return 1 if misses_target else 0


if __name__ == "__main__":
    sys.exit(main())
