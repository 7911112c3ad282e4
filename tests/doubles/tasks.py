"""A whole small task on disk: private files, public corpora, a test set, and its TOML."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

Row = dict[str, object]

LABELS = ("kitchen", "garden")
JUDGED = {"test": "test.jsonl", "head": "linear"}
_WORDS = {
    "kitchen": ("pan", "oven", "soup", "knife", "plate", "salt", "stove", "bread", "spoon", "sauce"),
    "garden": ("rose", "spade", "soil", "hedge", "lawn", "seed", "tree", "pond", "leaf", "fence"),
}
_FILLERS = ("the", "a", "near", "behind", "my", "old", "new", "with", "looks", "needs", "has", "under")


def sentence(rng: np.random.Generator, label: str, marker: str = "") -> str:
    choices = [_WORDS[label] if position % 2 else _FILLERS for position in range(8)]
    return " ".join([*(words[rng.integers(len(words))] for words in choices), marker]).strip()


def write_rows(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@functools.cache
def _small_files(parties: int, records: int, marker: str) -> dict[str, str]:
    """Returns the contents of the small task's files by name, drawn once in a process."""
    rng = np.random.default_rng(11)
    rows: dict[str, list[Row]] = {}
    for party in range(parties):
        rows[f"private/site-{party}.jsonl"] = [
            {"text": sentence(rng, LABELS[row % 2], marker), "label": LABELS[row % 2], "user": f"u{party}-{row // 2}"}
            for row in range(records)
        ]
    for name, mixed in (("good", 0.0), ("poor", 0.5)):
        corpus = rows[f"{name}.jsonl"] = []
        for row in range(120):
            label = LABELS[row % 2]
            words = LABELS[1 - row % 2] if rng.random() < mixed else label
            corpus.append({"text": sentence(rng, words), "label": label})
    rows["test.jsonl"] = [{"text": sentence(rng, label), "label": label} for label in LABELS * 10]
    return {name: "".join(json.dumps(row) + "\n" for row in listed) for name, listed in rows.items()}


def make_task(
    folder: Path,
    *,
    parties: int = 3,
    records: int = 8,
    samples: int = 24,
    marker: str = "",
    **sections: Mapping[str, object],
) -> Path:
    """Writes the task below ``folder`` and returns its path; ``sections`` add or replace keys of a section.

    The corpus of a run is judged with ``evaluation=JUDGED``, which takes longer than the run. Every private text ends
    with ``marker``, so that a test can look for it.
    """
    for name, text in _small_files(parties, records, marker).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    document: dict[str, dict[str, object]] = {
        "task": {"name": "small", "description": "a short remark", "labels": list(LABELS)},
        "data": {"path": "private", "text": "text", "label": "label", "user": "user"},
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "federation": {},
        "method": {"name": "wasp", "samples": samples, "rounds": 3, "votes": 3, "examples": 4, "shortlist": 4},
        "embedder": {"model": "packaged"},
    }
    generators = [{"name": name, "kind": "ngram", "corpus": f"{name}.jsonl"} for name in ("good", "poor")]
    return _write(folder / "task.toml", document, sections, generators)


def take_sizes_out(path: Path) -> None:
    """Takes what :func:`make_task` states of its method's size out of the task file, so that a preset states it."""
    stated = ("samples =", "rounds =", "votes =", "examples =", "shortlist =")
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith(stated)) + "\n", encoding="utf-8")


def make_replay_task(
    folder: Path,
    rows: list[Row],
    *,
    generators: Mapping[str, list[Row]] | None = None,
    attributes: Sequence[Mapping[str, object]] = (),
    **sections: Mapping[str, object],
) -> Path:
    """A task with the labels "a" and "b" whose private and test files hold ``rows``; its path.

    ``attributes`` are its [[attributes]]. ``generators`` are the rows that each replays, by name (without it, one
    replays the private file); ``sections`` add or replace keys of a section.
    """
    for name in ("private.jsonl", "test.jsonl"):
        write_rows(folder / name, rows)
    for name, replayed in (generators or {}).items():
        write_rows(folder / f"{name}.jsonl", replayed)
    document: dict[str, dict[str, object]] = {
        "task": {"name": "tiny", "description": "a note", "labels": ["a", "b"]},
        "data": {"path": "private.jsonl", "label": "label"},
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "federation": {"parties": 2},
        "method": {"name": "mixture", "samples": 6},
    }
    files = {name: f"{name}.jsonl" for name in generators or ()} or {"one": "private.jsonl"}
    tables = [{"name": name, "kind": "replay", "path": file} for name, file in files.items()]
    return _write(folder / "task.toml", document, sections, tables, attributes)


def _write(
    path: Path,
    document: Mapping[str, Mapping[str, object]],
    sections: Mapping[str, Mapping[str, object]],
    generators: Sequence[Mapping[str, object]],
    attributes: Sequence[Mapping[str, object]] = (),
) -> Path:
    whole = {section: dict(keys) for section, keys in document.items()}
    for section, keys in sections.items():
        whole.setdefault(section, {}).update(keys)
    tables = [(f"[{section}]", keys) for section, keys in whole.items()]
    lines = []
    tables += [("[[generators]]", dict(keys)) for keys in generators]
    for head, keys in [*tables, *(("[[attributes]]", dict(keys)) for keys in attributes)]:
        lines += [head, *(f"{key} = {_toml(value)}" for key, value in keys.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _toml(value: object) -> str:
    return json.dumps(value) if not isinstance(value, float) else repr(value)
