"""Repairs or drops doubtful labels of a corpus without private records: the baseline that private records must beat.

    python -m benchmarks.cleaned_mixture CORPUS.jsonl CLEANED.jsonl

Each line has ``text``, ``label`` and, if several generators wrote the corpus, ``generator``. The rule is that of the
method ``cleaned-mixture`` (undersong_server.methods.cleaned_mixture::cleaned), which orders the texts as well.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from undersong_common.models.embedding import Embedder
from undersong_common.program import entry
from undersong_server.methods.cleaned_mixture import DROPPED, cleaned


def main() -> int:
    """Prints how many labels were repaired and how many texts were dropped."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    labels, label_of = np.unique([row["label"] for row in rows], return_inverse=True)
    author_numbers = np.unique([row.get("generator", "") for row in rows], return_inverse=True)[1]
    embeddings = Embedder.load().encode([row["text"] for row in rows])
    new_labels = cleaned(embeddings, label_of, author_numbers, len(labels), np.random.default_rng(0))
    pairs = zip(rows, new_labels.tolist(), strict=True)
    kept_rows = [row | {"label": str(labels[label])} for row, label in pairs if label != DROPPED]
    Path(sys.argv[2]).write_text("".join(json.dumps(row) + "\n" for row in kept_rows), encoding="utf-8")
    dropped = len(rows) - len(kept_rows)
    print(f"{int((new_labels != label_of).sum()) - dropped} repaired, {dropped} dropped")
    return 0


if __name__ == "__main__":
    entry.run(main)
