"""How many planted wrong labels and mixed texts the check for rows that read like another label finds.

    python -m benchmarks.label_mismatches FILE.jsonl

FILE has a text with its right label on each line. A tenth of the rows gets another label; then a tenth of the texts
ends with the second half of a text of another label.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from undersong_common.text.table import read_table
from undersong_server.evaluation.label_mismatches import find_mismatches

PLANTED_SHARE = 0.1
SMALL = 60  # rows of the small corpus, drawn by chance


def swap_label(labels: Sequence[str], row: int, rng: np.random.Generator) -> str:
    """Returns a random label of the corpus other than the row's own."""
    return str(rng.choice(sorted(set(labels) - {labels[row]})))


def mix_text(texts: Sequence[str], labels: Sequence[str], row: int, rng: np.random.Generator) -> str:
    """Joins the first half of a text with the second half of one of another label, by words."""
    other_row = rng.choice([other for other, label in enumerate(labels) if label != labels[row]])
    own_words, other_words = texts[row].split(), texts[other_row].split()
    return " ".join([*own_words[: len(own_words) // 2], *other_words[len(other_words) // 2 :]])


def _print_found(name: str, texts: Sequence[str], labels: Sequence[str], planted_rows: Sequence[int]) -> None:
    start_s = time.perf_counter()
    mismatches = find_mismatches(texts, labels)
    duration_s = time.perf_counter() - start_s
    found_rows = {row - 1 for row in mismatches.label_by_row}
    planted_words = f"{len(found_rows & {*planted_rows})} of {len(planted_rows)} planted, " if planted_rows else ""
    other_count = len(found_rows - {*planted_rows})
    print(f"{name}: {planted_words}{other_count} of {len(texts) - len(planted_rows)} others, {duration_s:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    table = read_table(parser.parse_args().file, "text", "label")
    texts, labels = list(table.texts), list(table.labels or ())
    rng = np.random.default_rng(1)
    planted_rows = np.flatnonzero(rng.random(len(texts)) < PLANTED_SHARE).tolist()
    find_mismatches(texts, labels)  # scikit-learn is loaded before anything is timed
    _print_found("as it is", texts, labels, ())
    small_rows = rng.permutation(len(texts))[:SMALL].tolist()
    _print_found(f"{SMALL} rows", [texts[row] for row in small_rows], [labels[row] for row in small_rows], ())
    wrong_labels = [swap_label(labels, row, rng) if row in planted_rows else labels[row] for row in range(len(labels))]
    _print_found("wrong labels", texts, wrong_labels, planted_rows)
    mixed_texts = [
        mix_text(texts, labels, row, rng) if row in planted_rows else texts[row] for row in range(len(texts))
    ]
    _print_found("mixed texts", mixed_texts, labels, planted_rows)


if __name__ == "__main__":
    main()
