"""Six settings on which methods are judged, rebuilt from the data folder: pools, records and test set of each.

    python -m benchmarks.judged --data FOLDER --out runs/judged --seeds 0

They were written down before any method was tried on them:

* ``mixed``: banking_groups with its six pools of different quality;
* ``weak``: movie reviews by the four smaller models only (no llama-2-7b-chat, no vicuna-7b);
* ``alike``: the movie reviews of all six models, shuffled and dealt to six pools, so that no pool is better;
* ``specialists``: the four groups named below; six pools, one for each pair of labels, which name their two labels
  rightly and give the texts of the others any wrong one of the four; each has a random half of the same texts;
* ``imbalanced``: banking_groups with its six pools; 61 % of the records and of the test set have the label "transfer";
* ``nearest-not-useful``: the six movie pools, but 35 % of the labels of the two chat models', whose texts are nearest
  to real reviews, are wrong.

Not among them and measured when named: ``movies``, the six movie pools as they are, ``many-movies``, the same with all
4 000 records to draw from, and ``all-movies``, which takes all of the pools, the records and the test set and orders
6 000 texts where the other movie settings take a part and order 2 000.

Each has a folder with ``task.toml``, ``private.jsonl``, ``test.jsonl`` and one file for each pool. The same data give
the same files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from undersong_common.errors import ConfigurationError

SEED = 20
MOVIE_POOLS = ("gpt2-xl", "llama-2-7b-chat-hf", "vicuna-7b-1.5v", "opt-6.7b", "flan-t5-xl", "chatglm3-6b-base")
CHAT_POOLS = ("llama-2-7b-chat-hf", "vicuna-7b-1.5v")
BANK_POOLS = ("good", "narrow", "label_noise40", "style", "offdomain50", "confused50")
SPECIALIST_LABELS = ("card_payment", "cash_atm", "top_up", "transfer")
COMMON, COMMON_SHARE = "transfer", 0.61
WRONG_SHARE = 0.35

Row = dict[str, str]


class Setting(NamedTuple):
    """Rows of the records, the test set and each pool; numbers of records at which it is confirmed; texts ordered."""

    description: str
    private: list[Row]
    test: list[Row]
    pools: dict[str, list[Row]]
    records: tuple[int, int]
    samples: int = 6000


def mixed(data: Path) -> Setting:
    return _bank(data, (300, 2000))


def weak(data: Path) -> Setting:
    found = _movies(data)
    return found._replace(pools={name: rows for name, rows in found.pools.items() if name not in CHAT_POOLS})


def alike(data: Path) -> Setting:
    found = _movies(data)
    rows = [row for name in MOVIE_POOLS for row in found.pools[name]]
    order = np.random.default_rng([SEED, 1]).permutation(len(rows))
    parts = np.array_split(order, len(MOVIE_POOLS))
    return found._replace(pools={f"pool-{i + 1}": [rows[row] for row in part] for i, part in enumerate(parts)})


def specialists(data: Path) -> Setting:
    found = _bank(data, (300, 2000))
    rng = np.random.default_rng([SEED, 2])
    private, test, source = (
        [row for row in rows if row["label"] in SPECIALIST_LABELS]
        for rows in (found.private, found.test, found.pools["good"] + found.pools["style"])
    )
    pools: dict[str, list[Row]] = {}
    for known in combinations(SPECIALIST_LABELS, 2):
        own = []
        for i in np.sort(rng.permutation(len(source))[: len(source) // 2]):
            row = source[i]
            others = [label for label in SPECIALIST_LABELS if label != row["label"]]
            wrong = others[int(rng.integers(len(others)))]
            own.append(row if row["label"] in known else {**row, "label": wrong})
        pools["-".join(known)] = own
    return Setting(found.description, private, test, pools, found.records, samples=2000)


def imbalanced(data: Path) -> Setting:
    found = _bank(data, (300, 1000))
    rng = np.random.default_rng([SEED, 3])
    return found._replace(private=_with_common(found.private, rng), test=_with_common(found.test, rng))


def nearest_not_useful(data: Path) -> Setting:
    found = _movies(data)
    rng = np.random.default_rng([SEED, 4])
    other = {"negative": "positive", "positive": "negative"}
    pools = dict(found.pools)
    for name in CHAT_POOLS:
        wrong = rng.random(len(pools[name])) < WRONG_SHARE
        pools[name] = [
            {**row, "label": other[row["label"]]} if flip else row for row, flip in zip(pools[name], wrong, strict=True)
        ]
    return found._replace(pools=pools)


def movies(data: Path) -> Setting:
    return _movies(data)


def many_movies(data: Path) -> Setting:
    return _movies(data)._replace(private=_rows(data / "movie_reviews" / "train.jsonl"), records=(1000, 4000))


def all_movies(data: Path) -> Setting:
    folder = data / "movie_reviews"
    pools = {name: _rows(folder / "pools" / f"{name}.jsonl") for name in MOVIE_POOLS}
    private, test = (_rows(folder / f"{name}.jsonl") for name in ("train", "test"))
    return Setting("a movie review", private, test, pools, records=(100, 300))


SETTINGS: dict[str, Callable[[Path], Setting]] = {
    "mixed": mixed,
    "weak": weak,
    "alike": alike,
    "specialists": specialists,
    "imbalanced": imbalanced,
    "nearest-not-useful": nearest_not_useful,
}
BESIDE: dict[str, Callable[[Path], Setting]] = {
    "movies": movies,
    "many-movies": many_movies,
    "all-movies": all_movies,
}


def build(name: str, data: Path, out: Path) -> tuple[Path, tuple[int, int]]:
    """Writes a setting's files into ``out``/NAME; the path of its task file and its two numbers of records."""
    setting = {**SETTINGS, **BESIDE}[name](data)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    files = {"private": setting.private, "test": setting.test, **{f"pool-{k}": v for k, v in setting.pools.items()}}
    for stem, rows in files.items():
        text = "".join(json.dumps({"text": row["text"], "label": row["label"]}) + "\n" for row in rows)
        (folder / f"{stem}.jsonl").write_text(text, encoding="utf-8")
    path = folder / "task.toml"
    path.write_text(_toml(name, setting, folder), encoding="utf-8")
    return path, setting.records


def json_lines(path: Path) -> list[dict[str, Any]]:
    """One object for each line."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _toml(name: str, setting: Setting, folder: Path) -> str:
    labels = sorted({row["label"] for row in setting.test})
    generators = "".join(
        f'\n[[generators]]\nname = {json.dumps(pool)}\nkind = "replay"\npath = {json.dumps(f"pool-{pool}.jsonl")}\n'
        for pool in setting.pools
    )
    return f"""[task]
name = "judged-{name}"
description = {json.dumps(setting.description)}
labels = {json.dumps(labels)}

[data]
root = {json.dumps(str(folder.absolute()))}
path = "private.jsonl"
text = "text"
label = "label"
file_records = {len(setting.private)}

[privacy]
epsilon = 4.0
delta = 1e-5
unit = "sample"

[federation]
parties = 3
alpha = 1.0

[method]
name = "undersong"
samples = {setting.samples}
rounds = 5
{generators}
[embedder]
model = "packaged"

[evaluation]
test = "test.jsonl"

[output]
dir = "runs/judged-{name}"
"""


def _bank(data: Path, records: tuple[int, int]) -> Setting:
    folder = data / "banking_groups"
    pools = {name: _rows(folder / "pools" / f"{name}.jsonl") for name in BANK_POOLS}
    private, test = _rows(folder / "private.jsonl"), _rows(folder / "test.jsonl")
    return Setting("a customer's question to an online bank", private, test, pools, records)


def _movies(data: Path) -> Setting:
    """A quarter of the pools and of the records and a third of the test set; a third as many texts are ordered."""
    folder = data / "movie_reviews"
    pools = {name: _rows(folder / "pools" / f"{name}.jsonl")[::4] for name in MOVIE_POOLS}
    private, test = _rows(folder / "train.jsonl"), _rows(folder / "test.jsonl")[::3]
    private = private[:1000:2] + private[-1000::2]  # the file has its labels one after the other
    return Setting("a movie review", private, test, pools, (300, 1000), samples=2000)


def _with_common(rows: Sequence[Row], rng: np.random.Generator) -> list[Row]:
    """All rows of the common label, and of each other label the same part, so that the common one has its share."""
    common = [row for row in rows if row["label"] == COMMON]
    others = [row for row in rows if row["label"] != COMMON]
    wanted = round(len(common) * (1.0 - COMMON_SHARE) / COMMON_SHARE)
    kept: list[Row] = []
    for label in sorted({row["label"] for row in others}):
        own = [row for row in others if row["label"] == label]
        chosen = rng.choice(len(own), size=max(2, round(wanted * len(own) / len(others))), replace=False)
        kept += [own[i] for i in np.sort(chosen)]
    return common + kept


def _rows(path: Path) -> list[Row]:
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file", "name the folder of the data sets with --data")
    return [{"text": str(row["text"]), "label": str(row["label"])} for row in json_lines(path)]
