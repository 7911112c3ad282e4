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
    """Every file of the example by its path below the output folder, each drawn from its own stream of ``seed``."""
    result: dict[str, list[Row]] = {}
    test: list[Row] = []
    for hospital in HOSPITALS:
        result[f"hospitals/{hospital.name}.jsonl"] = list(
            hospital_notes(hospital, Random(f"{seed}/{hospital.name}"), NOTES_PER_HOSPITAL)
        )
        fresh = hospital_notes(hospital, Random(f"{seed}/test/{hospital.name}"), TEST_NOTES_PER_HOSPITAL)
        test += [{"text": note["text"], "label": note["label"]} for note in fresh]
    result["test.jsonl"] = test
    for name, corpus in CORPORA.items():
        result[f"corpora/{name}.jsonl"] = list(corpus(Random(f"{seed}/{name}"), CORPUS_ROWS))
    return result


def write(folder: Path, seed: int) -> None:
    """Writes every file of ``files(seed)`` below ``folder`` as JSON lines."""
    for name, rows in files(seed).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_text(lines, encoding="utf-8", newline="\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.clinic.generate", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=7, help="the committed files are those of seed 7")
    chosen = parser.parse_args(arguments)
    write(chosen.out, chosen.seed)


if __name__ == "__main__":
    main()
