"""Writes the clinic's data: ``python -m examples.clinic.generate --out examples/clinic/data --seed 7``.

The committed files under examples/clinic/data are its output with seed 7, byte for byte.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from examples.clinic.corpora import handbook, mixed, offdomain
from examples.clinic.notes import HOSPITALS, hospital_notes

Row = Mapping[str, str]

NOTES_PER_HOSPITAL = 120
TEST_NOTES_PER_HOSPITAL = 96
CORPUS_ROWS = 900
CORPORA: Mapping[str, Callable[[Random, int], list[dict[str, str]]]] = {
    "handbook": handbook,
    "mixed": mixed,
    "offdomain": offdomain,
}


def files(seed: int) -> dict[str, list[Row]]:
    """Returns the rows of every file by its path below the output folder; each file has its own stream of ``seed``."""
    rows_by_file: dict[str, list[Row]] = {}
    test_rows: list[Row] = []
    for hospital in HOSPITALS:
        rows_by_file[f"hospitals/{hospital.name}.jsonl"] = list(
            hospital_notes(hospital, Random(f"{seed}/{hospital.name}"), NOTES_PER_HOSPITAL)
        )
        test_notes = hospital_notes(hospital, Random(f"{seed}/test/{hospital.name}"), TEST_NOTES_PER_HOSPITAL)
        test_rows += [{"text": note["text"], "label": note["label"]} for note in test_notes]
    rows_by_file["test.jsonl"] = test_rows
    for name, write_corpus in CORPORA.items():
        rows_by_file[f"corpora/{name}.jsonl"] = list(write_corpus(Random(f"{seed}/{name}"), CORPUS_ROWS))
    return rows_by_file


def write(folder: Path, seed: int) -> None:
    """Writes every file of ``files(seed)`` below ``folder`` as JSON lines."""
    for name, rows in files(seed).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_text(lines, encoding="utf-8", newline="\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line: writes every file."""
    parser = argparse.ArgumentParser(prog="python -m examples.clinic.generate", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=7, help="the committed files are those of seed 7")
    options = parser.parse_args(arguments)
    write(options.out, options.seed)


if __name__ == "__main__":
    main()
