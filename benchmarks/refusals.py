"""How often the rules for refusals wrongly match real texts in a folder, and how many refusals they find.

python -m benchmarks.refusals FOLDER [--texts 2000]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

from tests.doubles.refusals import REFUSALS
from undersong_server.generators.languages import is_refusal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="searched for JSONL files with a column `text`")
    parser.add_argument("--quick", action="store_true", help="a tenth of the texts")
    parser.add_argument("--texts", type=int, default=2000, help="drawn from all of them")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = []
    for path in sorted(arguments.data.rglob("*.jsonl")):
        if "pools" not in path.parts:  # pools hold texts of models, not real ones
            rows += [(path, json.loads(line)["text"]) for line in path.read_text(encoding="utf-8").split("\n") if line]
    texts = random.Random(arguments.seed).sample(
        rows, min(arguments.texts // (10 if arguments.quick else 1), len(rows))
    )
    started = time.perf_counter()
    matched = [(path, text) for path, text in texts if is_refusal(text)]
    text_ms = 1000 * (time.perf_counter() - started) / len(texts)
    for path, text in matched:
        print(f"{path.relative_to(arguments.data)}: {' '.join(text.split())[:100]}")
    print(f"real texts called refusals: {len(matched)} of {len(texts)} ({100 * len(matched) / len(texts):.2f} %)")
    phrases = [phrase for language_phrases in REFUSALS.values() for phrase in language_phrases]
    print(f"refusals found: {sum(map(is_refusal, phrases))} of {len(phrases)} in {len(REFUSALS)} languages")
    print(f"{text_ms:.2f} ms per text")


if __name__ == "__main__":
    main()
