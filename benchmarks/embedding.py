"""Times the packaged encoder against plain batches of the same forward pass, on every OpenBLAS kernel.

    python -m benchmarks.embedding [--quick] [--json]
    python -m benchmarks.embedding --torch [--quick] [--json] [--texts FILE.jsonl]

A plain batch sorts texts by length, takes 16 at a time and pads them to the longest, so that the last bits of a vector
depend on the batch. Both are alternated in one process per OPENBLAS_CORETYPE, on one library thread. A figure is the
median over repetitions of the ratio of processor times, which other programs disturb less than wall time.

``--torch`` compares with torch and with sentence-transformers' own encode instead. Notes are those of the shipped
clinic example; questions are the first 5 to 14 words of each; long texts are invented notes of 600 to 1 500 words.
``ratio`` is that of the medians of wall time to sentence-transformers, which cuts them; ``processor_ratio`` that of
the time that all threads spent, which other programs disturb less; ``to_torch`` is that to the same texts in the same
windows by torch. ``one_text_s`` is the median time of a text that is embedded alone. ``--texts`` takes the texts from
a file instead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tests.doubles import long_notes
from tools.kernels import kernels
from undersong_common.arrays import Float32
from undersong_common.models.embedding import Embedder
from undersong_common.models.encoders import Tokens, TorchModel
from undersong_common.models.model_files import PACKAGED, model_folder
from undersong_common.models.numpy_bert import NumpyBert, _normalise, _TextGroup
from undersong_common.models.places import features_by_tokens
from undersong_common.program.library_threads import one_library_thread

NOTES = Path(__file__).parent.parent / "examples" / "clinic" / "data" / "test.jsonl"
WORDS = ((5, 11), (4, 23), (30, 79))  # words of the shortest and the longest text of each group
TEXTS_A_PLAIN_BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer texts and repetitions")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--this-kernel", action="store_true", help="only the kernel that the environment names")
    parser.add_argument("--torch", action="store_true", help="compare with torch instead of with plain batches")
    parser.add_argument("--texts", type=Path, help="texts of a JSONL file, column text, instead of notes and questions")
    arguments = parser.parse_args()
    quick = arguments.quick
    if arguments.torch:
        figures_by_kind = measure(arguments.texts, texts=120 if quick else None, repetitions=3 if quick else 7)
    elif arguments.this_kernel:
        figures_by_kind = {
            "this kernel": to_plain_batches(words=1_600 if quick else 6_400, repetitions=3 if quick else 7)
        }
    else:
        figures_by_kind = {kernel: _of_kernel(kernel, quick) for kernel in kernels()}
    if arguments.json:
        print(json.dumps(figures_by_kind))
        return
    for kind, figures in figures_by_kind.items():
        print(kind)
        for name, value in figures.items():
            print(f"  {name:20} {value:.4g}")


def _of_kernel(kernel: str, quick: bool) -> dict[str, float]:
    """Returns the ratios to plain batches on one kernel, measured in a new process, since a process has one kernel."""
    command = [sys.executable, "-m", "benchmarks.embedding", "--this-kernel", "--json", *["--quick"] * quick]
    environment = {**os.environ, "OPENBLAS_CORETYPE": kernel}
    completed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(completed.stdout)["this kernel"]
    return figures


def to_plain_batches(*, words: int, repetitions: int) -> dict[str, float]:
    """Returns the median ratio of processor times to plain batches, by length of text; each row has ``words`` words."""
    model = NumpyBert(model_folder(PACKAGED))
    source_words = " ".join(str(json.loads(line)["text"]) for line in NOTES.read_text("utf-8").splitlines()).split()
    rng = np.random.default_rng(3)
    ratios = {}
    for shortest, longest in WORDS:
        texts = 2 * words // (shortest + longest)
        starts = rng.integers(0, len(source_words) - longest, texts)
        lengths = rng.integers(shortest, longest, texts, endpoint=True)
        notes = [" ".join(source_words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]
        windows = [np.array(ids[: model.window], dtype=np.int32) for ids in model.ids(notes)]
        seconds = [_processor_seconds(model, windows) for _ in range(repetitions + 1)][1:]  # the first warms caches
        ratios[f"{shortest} to {longest} words"] = statistics.median(
            encoder_s / plain_s for encoder_s, plain_s in seconds
        )
    return ratios


def _processor_seconds(model: NumpyBert, windows: Sequence[Tokens]) -> tuple[float, float]:
    """Processor time of the packaged encoder and of plain batches. Raises AssertionError if their vectors differ."""
    with one_library_thread():
        start_s = time.process_time()
        encoder_vectors = np.empty((len(windows), len(model._positions[0])), dtype=np.float32)
        for batch in model.batches([len(window) for window in windows]):
            encoder_vectors[batch] = model.vectors([windows[number] for number in batch])
        middle_s = time.process_time()
        plain_vectors = np.empty_like(encoder_vectors)
        by_length = sorted(range(len(windows)), key=lambda number: -len(windows[number]))
        for start in range(0, len(windows), TEXTS_A_PLAIN_BATCH):
            batch_rows = by_length[start : start + TEXTS_A_PLAIN_BATCH]
            plain_vectors[batch_rows] = plain_batch(model, [windows[number] for number in batch_rows])
        end_s = time.process_time()
    np.testing.assert_allclose(encoder_vectors, plain_vectors, atol=1e-4)
    return middle_s - start_s, end_s - middle_s


def plain_batch(model: NumpyBert, windows: Sequence[Tokens]) -> Float32:
    """Mean vectors of windows that are padded to the longest: the passes of NumpyBert with one product per layer."""
    length = max(map(len, windows))
    lengths = np.array([len(window) for window in windows])
    is_token = np.arange(length) < lengths[:, None]  # [texts, length]
    padding_scores = np.where(is_token, np.float32(0), np.float32(-1e9))[
        :, None, None, :
    ]  # scores of padding, which no query may read
    padded = [np.concatenate([window, np.zeros(length - len(window), dtype=np.int32)]) for window in windows]
    group = _TextGroup(0, len(windows), length, length)
    state = model._embed_tokens(padded, [group], len(windows) * length)
    _normalise(state, model._norm, model._epsilon)
    context = np.empty_like(state)
    for layer in model._layers:
        mixed = features_by_tokens(state, layer.attention)
        parts = group.of(mixed).reshape(3, model._heads, -1, group.texts, length)
        queries, keys, values = parts.transpose(0, 3, 1, 2, 4)
        scores = queries.swapaxes(-1, -2) @ keys
        scores += padding_scores
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        attended = values @ scores.swapaxes(-1, -2)
        attended /= scores.sum(axis=-1)[:, :, None, :]
        heads = group.of(context).reshape(model._heads, -1, group.texts, length)
        heads[:] = attended.transpose(1, 2, 0, 3)
        state = model._transform_list(context, state, layer, features_by_tokens)
    sums = (group.of(state) * is_token).sum(axis=2)
    means: Float32 = (sums / lengths.astype(np.float32)).T
    return means


def measure(file: Path | None, *, texts: int | None, repetitions: int) -> dict[str, dict[str, float]]:
    """Returns the figures of each kind of text: notes, questions and long texts, or the texts of ``file``."""
    notes = [str(json.loads(line)["text"]) for line in (file or NOTES).read_text("utf-8").splitlines()][:texts]
    if file is not None:
        return {file.stem: compare(notes, repetitions)}
    questions = [" ".join(note.split()[: 5 + number % 10]) for number, note in enumerate(notes)]
    long_texts = [text for text, _ in long_notes.notes(len(notes) // 20)]
    kinds = {"notes": notes, "questions": questions, "long texts": long_texts}
    return {kind: compare(kind_texts, repetitions) for kind, kind_texts in kinds.items()}


def compare(texts: list[str], repetitions: int) -> dict[str, float]:
    """Seconds and ratios for these texts."""
    embedder, by_torch = Embedder.load(), Embedder.load(model_folder(PACKAGED))
    plain = TorchModel(model_folder(PACKAGED)).model
    tasks: dict[str, Callable[[], object]] = {
        "plain": lambda: plain.encode(texts, normalize_embeddings=True, show_progress_bar=False),
        "numpy": lambda: embedder.encode(texts),
        "torch": lambda: by_torch.encode(texts),
        "one_text": lambda: embedder.encode(texts[:1]),
    }
    wall_s: dict[str, list[float]] = {name: [] for name in tasks}
    processor_s: dict[str, list[float]] = {name: [] for name in tasks}
    for repetition in range(repetitions + 1):
        for name, task in tasks.items():
            start_s, processor_start_s = time.perf_counter(), time.process_time()
            task()
            if repetition:  # the first warms caches, and tries out the batches
                wall_s[name].append(time.perf_counter() - start_s)
                processor_s[name].append(time.process_time() - processor_start_s)
    seconds, processor_median_s = (
        {name: statistics.median(each) for name, each in times_by_name.items()}
        for times_by_name in (wall_s, processor_s)
    )
    return {
        "texts": float(len(texts)),
        "tokens_a_text": statistics.mean(map(len, embedder._load_encoder().ids(texts))),
        "ratio": seconds["numpy"] / seconds["plain"],
        "processor_ratio": processor_median_s["numpy"] / processor_median_s["plain"],
        "to_torch": processor_median_s["numpy"] / processor_median_s["torch"],
        "plain_s": seconds["plain"],
        "numpy_s": seconds["numpy"],
        "one_text_s": seconds["one_text"],
    }


if __name__ == "__main__":
    main()
