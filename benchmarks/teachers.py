"""Teachers of one party: 100 of them over 5 000 records have to be trained in under 60 s on two cores.

    python -m benchmarks.teachers [--quick] [--json] [--records M] [--teachers T ...]
    python -m benchmarks.teachers --fine-tuned MODEL --data FOLDER [--records M] [--teachers T ...]

Made-up records of ten classes, 1 000 candidates to tell them from and 400 queries, 384 coordinates; the whole of the
statistic is timed: whitening, training, votes.

The second form sets fine-tuned teachers beside linear ones on real text: records of banking_groups in FOLDER (no part
of this project), 400 candidates of its six pools against them, and 100 queries, half of them candidates and half real
questions of the test set. Their area under the ROC curve is that of the votes, without noise, within a class.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from undersong_common.models.embedding import CachedEmbedder, Embedder, MemoryCache, quantise
from undersong_protocol.statistics import LabelledEmbeddings, PublicInputs
from undersong_protocol.statistics.teacher_votes import TeacherVotes
from undersong_server.methods.parts.discrimination import discrimination

LABELS, WIDTH, QUERIES, CONTRAST = 10, 384, 400, 1000
LIMIT_S = 60.0
TEXT_QUERIES, TEXT_CONTRAST = 100, 400


class Records:
    """Private records: random unit embeddings around one centre per class, near those of the candidates."""

    def __init__(self, count: int, seed: int, shift: float) -> None:
        rng = np.random.default_rng(seed)
        centres = np.random.default_rng(0).normal(size=(LABELS, WIDTH))
        self.labels = rng.integers(0, LABELS, count)
        x = centres[self.labels] + 1.5 * rng.normal(size=(count, WIDTH)) + shift
        self.embeddings = quantise(x / np.linalg.norm(x, axis=1, keepdims=True))
        self.texts = [""] * count
        self.columns: dict[str, list[str]] = {}
        self.local_model = ""
        self.units = np.arange(count)
        self.unit_hashes = rng.integers(0, 2**63, count).astype(np.uint64)

    def __len__(self) -> int:
        return len(self.labels)


def measure(records: int, teachers: int) -> dict[str, Any]:
    """Returns wall and processor seconds of one contribution, and how far its votes favour texts like the records."""
    private = Records(records, 1, 0.1)
    public_records = {
        name: Records(count, seed, 0.0) for name, count, seed in (("queries", QUERIES, 2), ("contrast", CONTRAST, 3))
    }
    public = PublicInputs(
        {name: LabelledEmbeddings(one.embeddings, one.labels) for name, one in public_records.items()}
    )
    statistic = TeacherVotes(queries=QUERIES, teachers=teachers, labels=LABELS)
    wall, processor = time.perf_counter(), time.process_time()
    rows = statistic.rows(private, public, {})
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    votes = rows.take(np.arange(len(rows))).sum(axis=0)
    query_means = public_records["queries"].embeddings.sum(axis=1)
    return {
        "records": records,
        "teachers": teachers,
        "seconds": round(wall, 2),
        "processor_seconds": round(processor, 2),
        "correlation": round(float(np.corrcoef(votes, query_means)[0, 1]), 2),
    }


class TextRecords:
    """Private records from the rows of a data set, with texts and embeddings, as a statistic reads them."""

    def __init__(self, rows: list[dict[str, str]], labels: list[str], embed: Any, model: str) -> None:
        self.texts = [row["text"] for row in rows]
        self.labels = np.array([labels.index(row["label"]) for row in rows], dtype=np.int64)
        self.embeddings = embed(self.texts)
        self.units = np.arange(len(rows))
        self.unit_hashes = np.arange(len(rows), dtype=np.uint64)
        self.local_model = model
        self.columns: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self.texts)


def measure_texts(data_folder: Path, model: str, records: int, teachers: int) -> list[dict[str, Any]]:
    """Compares linear and fine-tuned teachers over the same records, candidates and queries."""
    folder, rng = data_folder / "banking_groups", np.random.default_rng(0)

    def draw_rows(paths: list[Path], count: int) -> list[dict[str, str]]:
        rows = [json.loads(line) for path in paths for line in path.open(encoding="utf-8")]
        return [rows[at] for at in rng.permutation(len(rows))[:count]]

    half_queries = TEXT_QUERIES // 2
    candidates = draw_rows(sorted((folder / "pools").glob("*.jsonl")), TEXT_CONTRAST + half_queries)
    private, real = draw_rows([folder / "private.jsonl"], records), draw_rows([folder / "test.jsonl"], half_queries)
    labels = sorted({row["label"] for row in [*candidates, *private, *real]})
    embed = CachedEmbedder(Embedder.load(), MemoryCache()).encode
    private_records = TextRecords(private, labels, embed, model)
    public_rows = {"queries": [*real, *candidates[:half_queries]], "contrast": candidates[half_queries:]}
    public_records = {name: TextRecords(rows, labels, embed, "") for name, rows in public_rows.items()}
    public = PublicInputs(
        {name: LabelledEmbeddings(one.embeddings, one.labels) for name, one in public_records.items()},
        {f"{name}: classes": one.labels.astype(np.float64) for name, one in public_records.items()},
        {name: one.texts for name, one in public_records.items()},
    )
    rows_of_kinds = []
    for fine_tuned in (False, True):
        statistic = TeacherVotes(TEXT_QUERIES, teachers, len(labels), fine_tuned=fine_tuned)
        start_s = time.perf_counter(), time.process_time()
        rows = statistic.rows(private_records, public, {})
        wall, processor = time.perf_counter() - start_s[0], time.process_time() - start_s[1]
        votes = rows.take(np.arange(len(rows))).sum(axis=0).astype(np.float64)
        classes = public_records["queries"].labels
        _, auc = discrimination(
            votes[:half_queries], classes[:half_queries], votes[half_queries:], classes[half_queries:]
        )
        rows_of_kinds.append(
            {
                "teacher": "fine-tuned" if fine_tuned else "linear",
                "records": records,
                "teachers": teachers,
                "seconds": round(wall, 1),
                "processor_seconds": round(processor, 1),
                "auc": round(auc, 3),
            }
        )
    return rows_of_kinds


def main(argv: list[str] | None = None) -> int:
    """Prints the figures; returns 0 if every size up to 100 teachers over 5 000 records stays below the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.teachers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 teachers over 5 000 records only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--teachers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--fine-tuned", metavar="MODEL", help='a local encoder, or "packaged"; with --data')
    parser.add_argument("--data", type=Path, help="folder that holds banking_groups")
    options = parser.parse_args(argv)
    if options.fine_tuned:
        if options.data is None:
            parser.error("--fine-tuned reads real text: name its folder by --data")
        for teachers in options.teachers:
            for row in measure_texts(options.data, options.fine_tuned, options.records, teachers):
                print(json.dumps(row), flush=True)
        return 0
    sizes = [100] if options.quick else options.teachers
    figures = [measure(options.records, teachers) for teachers in sizes]
    if options.json:
        print(json.dumps({"teachers": figures}))
    else:
        for row in figures:
            print(
                f"{row['teachers']} teachers over {row['records']} records: {row['seconds']} s"
                f" ({row['processor_seconds']} s of processor time), votes correlate"
                f" {row['correlation']} with the truth"
            )
    bounded_rows = [row for row in figures if row["teachers"] <= 100 and row["records"] <= 5000]
    return 0 if all(row["seconds"] < LIMIT_S for row in bounded_rows) else 1


if __name__ == "__main__":
    sys.exit(main())
