"""The packaged encoder in numpy against torch and sentence-transformers' own encode, alternated in one run.

    python -m benchmarks.embedding [--quick] [--json] [--texts FILE.jsonl]

Notes are those of the shipped clinic example; questions are the first 5 to 14 words of each; long texts are invented
notes of 600 to 1 500 words. ``ratio`` is that of the medians of wall time to sentence-transformers, which cuts them;
``processor_ratio`` that of the time that all threads spent, which other programs disturb less; ``to_torch`` is that
to the same texts in the same windows by torch. ``one_text_s`` is the median time of a text that is embedded alone.
``--texts`` takes the texts from a file instead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.doubles import long_notes
from undersong_common.embedding import Embedder
from undersong_common.model_files import PACKAGED, model_folder

NOTES = Path(__file__).parent.parent / "examples" / "clinic" / "data" / "test.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="120 texts and 3 repetitions instead of all and 7")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--texts", type=Path, help="texts of a JSONL file, column text, instead of notes and questions")
    arguments = parser.parse_args()
    result = measure(arguments.texts, texts=120 if arguments.quick else None, repetitions=3 if arguments.quick else 7)
    if arguments.json:
        print(json.dumps(result))
        return
    for kind, figures in result.items():
        print(kind)
        for name, value in figures.items():
            print(f"  {name:20} {value:.4g}")


def measure(file: Path | None, *, texts: int | None, repetitions: int) -> dict[str, dict[str, float]]:
    """Figures of each kind of text."""
    notes = [str(json.loads(line)["text"]) for line in (file or NOTES).read_text("utf-8").splitlines()][:texts]
    if file is not None:
        return {file.stem: compare(notes, repetitions)}
    questions = [" ".join(note.split()[: 5 + number % 10]) for number, note in enumerate(notes)]
    long = [text for text, _ in long_notes.notes(len(notes) // 20)]
    kinds = {"notes": notes, "questions": questions, "long texts": long}
    return {kind: compare(given, repetitions) for kind, given in kinds.items()}


def compare(texts: list[str], repetitions: int) -> dict[str, float]:
    """Seconds and ratios for these texts."""
    embedder, by_torch = Embedder.load(), Embedder.load(model_folder(PACKAGED))
    embedder._loaded()
    loaded: Any = by_torch._loaded()
    plain = loaded.model
    tasks: dict[str, Callable[[], object]] = {
        "plain": lambda: plain.encode(texts, normalize_embeddings=True, show_progress_bar=False),
        "numpy": lambda: embedder.encode(texts),
        "torch": lambda: by_torch.encode(texts),
        "one_text": lambda: embedder.encode(texts[:1]),
    }
    wall: dict[str, list[float]] = {name: [] for name in tasks}
    processor: dict[str, list[float]] = {name: [] for name in tasks}
    for repetition in range(repetitions + 1):
        for name, task in tasks.items():
            begun, used = time.perf_counter(), time.process_time()
            task()
            if repetition:  # the first warms caches, and tries out the batches
                wall[name].append(time.perf_counter() - begun)
                processor[name].append(time.process_time() - used)
    seconds, used_s = ({name: statistics.median(each) for name, each in of.items()} for of in (wall, processor))
    return {
        "texts": float(len(texts)),
        "tokens_a_text": statistics.mean(map(len, embedder._loaded().ids(texts))),
        "ratio": seconds["numpy"] / seconds["plain"],
        "processor_ratio": used_s["numpy"] / used_s["plain"],
        "to_torch": used_s["numpy"] / used_s["torch"],
        "plain_s": seconds["plain"],
        "numpy_s": seconds["numpy"],
        "one_text_s": seconds["one_text"],
    }


if __name__ == "__main__":
    main()
