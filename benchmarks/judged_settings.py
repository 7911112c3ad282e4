"""The settings on which methods are judged: pools, records and test set of each, from the data folder or invented.

    python -m benchmarks.judged --data FOLDER --out runs/judged

Six served to choose the default method (``CHOSEN_ON``). They were written down before any method was tried on them:

* ``mixed``: banking_groups with its six pools of different quality;
* ``weak``: movie reviews by the four smaller models only (no llama-2-7b-chat, no vicuna-7b);
* ``alike``: the movie reviews of all six models, shuffled and dealt to six pools, so that no pool is better;
* ``specialists``: the four groups named below; six pools, one for each pair of labels, which name their two labels
  rightly and give the texts of the others any wrong one of the four; each has a random half of the same texts;
* ``imbalanced``: banking_groups with its six pools; 61 % of the records and of the test set have the label "transfer";
* ``nearest-not-useful``: the six movie pools, but 35 % of the labels of the two chat models', whose texts are nearest
  to real reviews, are wrong.

Eleven others were not used to choose the default method:

* ``one-generator``: movie reviews by vicuna-7b alone;
* ``off-topic``: two generators; the second writes reviews of films under the bank's labels, by chance;
* ``thirty-labels``: thirty intents of banking77; three pools from texts apart from the records: right labels, a quarter
  of them wrong, each label swapped with its neighbour in half of the texts;
* ``skewed``: banking_groups as "exchange" or "other", 5 to 95 in records and test set;
* ``stars``: invented hotel reviews with one to five stars that the writer gives with noise, 100 records
  (300 are declared); four pools: alike, one sentence each, stars too low, extreme texts for all stars;
* ``wrong-records``: ``mixed``, with 15 % wrong labels among the records;
* ``few-texts``: ``mixed``, 200 texts in all;
* ``low-epsilon``: ``mixed`` at epsilon 0.5;
* ``declared-tenfold``, ``declared-a-tenth``: ``mixed``, declared with ten times too many records and too few;
* ``no-labels``: the bank's questions and four of its pools without labels.

All have 300 records but ``stars``, epsilon 4 but ``low-epsilon``, and 1 000 texts but ``few-texts``; a test set has at
most 800 texts. Not among them and measured when named (``BESIDE``): ``movies``, the six movie pools as they are;
``only-POOL``, one generator, which has the pool of that name of ``mixed``, ``movies`` or ``stars``;
``many-movies``, the same with all 4 000 records to draw from, and ``all-movies``, which takes all of the pools, the
records and the test set and orders 6 000 texts. Two are ``mixed`` with a column beside the private text, which the
task has as an attribute: ``subjects``, the intent, of which each of the ten labels has its own; and ``word-counts``, a
third of the questions by their number of words, which hardly depends on the label.

Each has a folder with ``task.toml``, ``private.jsonl``, ``test.jsonl`` and one file for each pool. The same data give
the same files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from undersong_common.errors import ConfigurationError
from undersong_server.methods.interface import EXPECTED_RECORDS

SEED = 20
MOST_TESTS = 750
MOVIE_POOLS = ("gpt2-xl", "llama-2-7b-chat-hf", "vicuna-7b-1.5v", "opt-6.7b", "flan-t5-xl", "chatglm3-6b-base")
CHAT_POOLS = ("llama-2-7b-chat-hf", "vicuna-7b-1.5v")
STARS_POOLS = ("alike", "brief", "strict", "extreme")
BANK_POOLS = ("good", "narrow", "label_noise40", "style", "offdomain50", "confused50")
SPECIALIST_LABELS = ("card_payment", "cash_atm", "top_up", "transfer")
COMMON, COMMON_SHARE = "transfer", 0.61
RARE, RARE_SHARE = "exchange", 0.05
WRONG_SHARE, WRONG_RECORDS = 0.35, 0.15
UNLABELLED_POOLS = ("good", "narrow", "style", "offdomain50")
MANY_LABELS = 30
LENGTHS, LENGTH_EDGES = ("short", "medium", "long"), (9, 13)  # words; each length has about a third of the questions

ASPECTS = {
    **{"room": "the room", "bed": "the bed", "breakfast": "breakfast", "staff": "the service", "pool": "the pool"},
    **{"bath": "the bathroom", "noise": "sleep at night", "wifi": "the internet", "place": "the location"},
    **{"price": "the value for money", "bar": "the bar", "desk": "check-in"},
}
DEGREES = (  # words for the quality of a thing, from one star to five
    ("dreadful", "filthy and broken", "the worst I have seen", "unacceptable", "a disgrace", "appalling"),
    ("poor", "rather disappointing", "below what we expected", "tired and worn", "not good", "slow and careless"),
    ("acceptable", "average", "all right for one night", "neither good nor bad", "ordinary", "what one expects"),
    ("good", "pleasant", "better than expected", "clean and comfortable", "quite nice", "well kept"),
    ("superb", "perfect in every way", "the best of our trip", "outstanding", "a dream", "spotless and wonderful"),
)
OPENINGS = (
    *("In our case {} was {}.", "I have to say that {} was {}.", "As for the stay, {} was {}.", "For us {} was {}."),
    *(
        "This time {} was {}.",
        "On the first day {} was {}.",
        "To be honest, {} was {}.",
        "My wife found that {} was {}.",
    ),
)

Row = dict[str, str]


class Setting(NamedTuple):
    """Data of one setting, and what its task declares.

    Attributes:
        private, test, pools: rows to draw records from, of the test set, and of each generator.
        records: how many are drawn; ``expected``: how many are declared.
        samples: texts ordered.
        column: of the private rows, an attribute of the task, whose values are all that occur in it; "" for none.
    """

    description: str
    private: list[Row]
    test: list[Row]
    pools: dict[str, list[Row]]
    records: int = 300
    samples: int = 1000
    epsilon: float = 4.0
    expected: int = EXPECTED_RECORDS
    column: str = ""


def mixed(data_folder: Path) -> Setting:
    return _bank(data_folder)


def weak(data_folder: Path) -> Setting:
    setting = _movies(data_folder)
    return setting._replace(pools={name: rows for name, rows in setting.pools.items() if name not in CHAT_POOLS})


def alike(data_folder: Path) -> Setting:
    setting = _movies(data_folder)
    rows = [row for name in MOVIE_POOLS for row in setting.pools[name]]
    order = np.random.default_rng([SEED, 1]).permutation(len(rows))
    parts = np.array_split(order, len(MOVIE_POOLS))
    return setting._replace(pools={f"pool-{i + 1}": [rows[row] for row in part] for i, part in enumerate(parts)})


def specialists(data_folder: Path) -> Setting:
    setting, test = _bank(data_folder), rows_of(data_folder / "banking_groups" / "test.jsonl")
    rng = np.random.default_rng([SEED, 2])
    private, test, source_rows = (
        [row for row in rows if row["label"] in SPECIALIST_LABELS]
        for rows in (setting.private, test, setting.pools["good"] + setting.pools["style"])
    )
    pools: dict[str, list[Row]] = {}
    for known_labels in combinations(SPECIALIST_LABELS, 2):
        pool_rows = []
        for i in np.sort(rng.permutation(len(source_rows))[: len(source_rows) // 2]):
            row = source_rows[i]
            others = [label for label in SPECIALIST_LABELS if label != row["label"]]
            wrong_label = others[int(rng.integers(len(others)))]
            pool_rows.append(row if row["label"] in known_labels else {**row, "label": wrong_label})
        pools["-".join(known_labels)] = pool_rows
    return Setting(setting.description, private, _at_most(test, MOST_TESTS), pools)


def imbalanced(data_folder: Path) -> Setting:
    setting, test = _bank(data_folder), rows_of(data_folder / "banking_groups" / "test.jsonl")
    rng = np.random.default_rng([SEED, 3])
    return setting._replace(private=_with_common(setting.private, rng), test=_with_common(test, rng))


def nearest_not_useful(data_folder: Path) -> Setting:
    setting = _movies(data_folder)
    rng = np.random.default_rng([SEED, 4])
    opposite = {"negative": "positive", "positive": "negative"}
    pools = dict(setting.pools)
    for name in CHAT_POOLS:
        is_flipped = rng.random(len(pools[name])) < WRONG_SHARE
        pools[name] = [
            {**row, "label": opposite[row["label"]]} if flip else row
            for row, flip in zip(pools[name], is_flipped, strict=True)
        ]
    return setting._replace(pools=pools)


def one_generator(data_folder: Path) -> Setting:
    setting = _movies(data_folder)
    return setting._replace(pools={"vicuna-7b-1.5v": setting.pools["vicuna-7b-1.5v"]})


def off_topic(data_folder: Path) -> Setting:
    setting, rng = _bank(data_folder), np.random.default_rng([SEED, 5])
    labels = sorted({row["label"] for row in setting.test})
    films = _movies(data_folder).pools["flan-t5-xl"]
    mislabelled_films = [{**row, "label": labels[int(rng.integers(len(labels)))]} for row in films]
    return setting._replace(pools={"good": setting.pools["good"], "off-topic": mislabelled_films})


def thirty_labels(data_folder: Path) -> Setting:
    rng = np.random.default_rng([SEED, 6])
    train, test = (rows_of(data_folder / "banking77" / f"{name}.jsonl") for name in ("train", "test"))
    labels = sorted({row["label"] for row in test})[:MANY_LABELS]
    test = [row for row in test if row["label"] in labels]
    train = [row for row in train if row["label"] in labels]
    train = [train[i] for i in rng.permutation(len(train))]
    private, public = train[::2], train[1::2]
    right, noisy, swapped = public[::3], public[1::3], public[2::3]
    neighbour = {label: labels[number ^ 1] for number, label in enumerate(labels)}
    pools = {
        "right": right,
        "noisy": _mislabel(noisy, 0.25, rng),
        "swapped": [{**row, "label": neighbour[row["label"]]} if rng.random() < 0.5 else row for row in swapped],
    }
    return Setting("a customer's question to an online bank", private, _at_most(test, MOST_TESTS), pools)


def skewed(data_folder: Path) -> Setting:
    setting, test, rng = (
        _bank(data_folder),
        rows_of(data_folder / "banking_groups" / "test.jsonl"),
        np.random.default_rng([SEED, 7]),
    )

    def two(rows: Sequence[Row]) -> list[Row]:
        return [{**row, "label": RARE if row["label"] == RARE else "other"} for row in rows]

    def with_rare(rows: Sequence[Row], count: int) -> list[Row]:
        rare, other = ([row for row in two(rows) if (row["label"] == RARE) == which] for which in (True, False))
        rare_count = round(RARE_SHARE * count)
        rare_rows = [rare[i] for i in rng.permutation(len(rare))[:rare_count]]
        return rare_rows + [other[i] for i in rng.permutation(len(other))[: count - rare_count]]

    return setting._replace(
        private=with_rare(setting.private, 4500),
        test=with_rare(test, MOST_TESTS),
        pools={name: two(rows) for name, rows in setting.pools.items()},
    )


def stars(_data: Path) -> Setting:
    rng = np.random.default_rng([SEED, 8])
    pools = {
        "alike": invented_reviews(rng, 1000),
        "brief": invented_reviews(rng, 1000, sentences=1),
        "strict": invented_reviews(rng, 1000, shift=-0.8),
        "extreme": invented_reviews(rng, 1000, stretch=2.5),
    }
    private, test = invented_reviews(rng, 1000), invented_reviews(rng, MOST_TESTS)
    return Setting("a guest's review of a hotel", private, test, pools, records=100)


def wrong_records(data_folder: Path) -> Setting:
    setting = _bank(data_folder)
    return setting._replace(private=_mislabel(setting.private, WRONG_RECORDS, np.random.default_rng([SEED, 9])))


def few_texts(data_folder: Path) -> Setting:
    return _bank(data_folder)._replace(samples=200)


def low_epsilon(data_folder: Path) -> Setting:
    return _bank(data_folder)._replace(epsilon=0.5)


def declared_tenfold(data_folder: Path) -> Setting:
    return _bank(data_folder)._replace(expected=3000)


def declared_a_tenth(data_folder: Path) -> Setting:
    return _bank(data_folder)._replace(expected=30)


def no_labels(data_folder: Path) -> Setting:
    setting = _bank(data_folder)
    return setting._replace(
        private=_remove_labels(setting.private),
        test=_remove_labels(setting.test),
        pools={name: _remove_labels(setting.pools[name]) for name in UNLABELLED_POOLS},
    )


def movies(data_folder: Path) -> Setting:
    return _movies(data_folder)


def many_movies(data_folder: Path) -> Setting:
    return _movies(data_folder)._replace(private=rows_of(data_folder / "movie_reviews" / "train.jsonl"), records=1000)


def only(build_setting: Callable[[Path], Setting], pool: str, data_folder: Path) -> Setting:
    setting = build_setting(data_folder)
    return setting._replace(pools={pool: setting.pools[pool]})


def subjects(data_folder: Path) -> Setting:
    setting = _bank(data_folder)
    intents = {row["text"]: row["label"] for row in rows_of(data_folder / "banking77" / "train.jsonl")}
    private = [
        {**row, "subject": intents[row["text"]].replace("_", " ").lower()}
        for row in setting.private
        if row["text"] in intents
    ]
    return setting._replace(private=private, column="subject")


def word_counts(data_folder: Path) -> Setting:
    setting = _bank(data_folder)
    private = [
        {**row, "length": LENGTHS[int(np.searchsorted(LENGTH_EDGES, len(row["text"].split()), side="right"))]}
        for row in setting.private
    ]
    return setting._replace(private=private, column="length")


def all_movies(data_folder: Path) -> Setting:
    folder = data_folder / "movie_reviews"
    pools = {name: rows_of(folder / "pools" / f"{name}.jsonl") for name in MOVIE_POOLS}
    private, test = (rows_of(folder / f"{name}.jsonl") for name in ("train", "test"))
    return Setting("a movie review", private, test, pools, samples=6000)


CHOSEN_ON: dict[str, Callable[[Path], Setting]] = {
    "mixed": mixed,
    "weak": weak,
    "alike": alike,
    "specialists": specialists,
    "imbalanced": imbalanced,
    "nearest-not-useful": nearest_not_useful,
}
SETTINGS: dict[str, Callable[[Path], Setting]] = {
    **CHOSEN_ON,
    "one-generator": one_generator,
    "off-topic": off_topic,
    "thirty-labels": thirty_labels,
    "skewed": skewed,
    "stars": stars,
    "wrong-records": wrong_records,
    "few-texts": few_texts,
    "low-epsilon": low_epsilon,
    "declared-tenfold": declared_tenfold,
    "declared-a-tenth": declared_a_tenth,
    "no-labels": no_labels,
}
INVENTED = ("stars",)  # settings that need no data folder
BESIDE: dict[str, Callable[[Path], Setting]] = {
    "movies": movies,
    "many-movies": many_movies,
    "all-movies": all_movies,
    "subjects": subjects,
    "word-counts": word_counts,
    **{f"only-{pool}": partial(only, mixed, pool) for pool in BANK_POOLS},
    **{f"only-{pool}": partial(only, movies, pool) for pool in MOVIE_POOLS},
    **{f"only-{pool}": partial(only, stars, pool) for pool in STARS_POOLS},
}


def build(name: str, data_folder: Path, out_folder: Path) -> Path:
    """Writes the files of the setting ``name`` into ``out``/NAME; returns the path of its task file."""
    return write(name, {**SETTINGS, **BESIDE}[name](data_folder), out_folder)


def write(name: str, setting: Setting, out_folder: Path) -> Path:
    """Writes the files of ``setting`` into ``out``/NAME; returns the path of its task file."""
    folder = out_folder / name
    folder.mkdir(parents=True, exist_ok=True)
    files = {"private": setting.private, "test": setting.test, **{f"pool-{k}": v for k, v in setting.pools.items()}}
    for stem, rows in files.items():
        keys = ("text", "label", *([setting.column] if setting.column and stem == "private" else []))
        text = "".join(json.dumps({key: row[key] for key in keys}) + "\n" for row in rows)
        (folder / f"{stem}.jsonl").write_text(text, encoding="utf-8")
    path = folder / "task.toml"
    path.write_text(_toml(name, setting, folder), encoding="utf-8")
    return path


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the JSON object of each line of a file."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _attribute(setting: Setting) -> str:
    if not setting.column:
        return ""
    values = sorted({row[setting.column] for row in setting.private})
    return f"""
[[attributes]]
name = {json.dumps(setting.column)}
values = {json.dumps(values)}
column = {json.dumps(setting.column)}
"""


def _toml(name: str, setting: Setting, folder: Path) -> str:
    labels = sorted({row["label"] for row in setting.test} - {""})
    label = 'label = "label"\n' if labels else ""
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
{label}records = {setting.records}
file_records = {len(setting.private)}

[privacy]
epsilon = {setting.epsilon}
delta = 1e-5
unit = "sample"
expected_records = {setting.expected}
{_attribute(setting)}
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


def _bank(data_folder: Path) -> Setting:
    folder = data_folder / "banking_groups"
    pools = {name: rows_of(folder / "pools" / f"{name}.jsonl") for name in BANK_POOLS}
    private, test = rows_of(folder / "private.jsonl"), rows_of(folder / "test.jsonl")
    return Setting("a customer's question to an online bank", private, _at_most(test, MOST_TESTS), pools)


def _movies(data_folder: Path) -> Setting:
    """Movie reviews: a quarter of each pool, 1 000 of the records and a sixth of the test set."""
    folder = data_folder / "movie_reviews"
    pools = {name: rows_of(folder / "pools" / f"{name}.jsonl")[::4] for name in MOVIE_POOLS}
    private, test = rows_of(folder / "train.jsonl"), rows_of(folder / "test.jsonl")[::6]
    private = private[:1000:2] + private[-1000::2]  # the file has its labels one after the other
    return Setting("a movie review", private, test, pools)


def _at_most(rows: Sequence[Row], count: int) -> list[Row]:
    """Returns ``count`` evenly spaced rows, or all if there are fewer."""
    return [rows[i * len(rows) // count] for i in range(count)] if len(rows) > count else list(rows)


def _mislabel(rows: Sequence[Row], share: float, rng: np.random.Generator) -> list[Row]:
    """Returns the rows, a share ``share`` of them under another label."""
    labels = sorted({row["label"] for row in rows})
    mislabelled_rows = []
    for row in rows:
        other_label = labels[(labels.index(row["label"]) + int(rng.integers(1, len(labels)))) % len(labels)]
        mislabelled_rows.append({**row, "label": other_label} if rng.random() < share else row)
    return mislabelled_rows


def _remove_labels(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "label": ""} for row in rows]


def _with_common(rows: Sequence[Row], rng: np.random.Generator) -> list[Row]:
    """Returns all rows of ``COMMON`` and an equal part of each other label, so that ``COMMON`` has ``COMMON_SHARE``."""
    common = [row for row in rows if row["label"] == COMMON]
    others = [row for row in rows if row["label"] != COMMON]
    other_count = round(len(common) * (1.0 - COMMON_SHARE) / COMMON_SHARE)
    kept_rows: list[Row] = []
    for label in sorted({row["label"] for row in others}):
        label_rows = [row for row in others if row["label"] == label]
        row_numbers = rng.choice(
            len(label_rows), size=max(2, round(other_count * len(label_rows) / len(others))), replace=False
        )
        kept_rows += [label_rows[i] for i in np.sort(row_numbers)]
    return common + kept_rows


def invented_reviews(
    rng: np.random.Generator, count: int, *, sentences: int = 3, shift: float = 0.0, stretch: float = 1.0
) -> list[Row]:
    """Returns ``count`` different hotel reviews, labelled with one to five stars.

    A stay has a quality between 1 and 5; each sentence says about that of one aspect, and the stars are it with noise.

    Args:
        shift: of the stars that the writer gives.
        stretch: factor by which the sentences exaggerate the stay's distance from average quality.
    """
    rows: dict[str, Row] = {}
    while len(rows) < count:
        quality = rng.uniform(0.5, 5.5)
        aspects = rng.choice(list(ASPECTS), size=sentences, replace=False)
        sentence_texts = []
        for aspect in aspects:
            degree = 3.0 + stretch * (quality - 3.0) + rng.normal(0.0, 0.8)
            quality_words = DEGREES[int(np.clip(round(degree), 1, 5)) - 1]
            opening = OPENINGS[int(rng.integers(len(OPENINGS)))]
            sentence_texts.append(opening.format(ASPECTS[aspect], quality_words[int(rng.integers(len(quality_words)))]))
        star_count = int(np.clip(round(quality + shift + rng.normal(0.0, 0.5)), 1, 5))
        text = " ".join(sentence_texts)
        rows[text] = {"text": text, "label": f"{star_count} star{'s' if star_count > 1 else ''}"}
    return list(rows.values())


def rows_of(path: Path) -> list[Row]:
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file", "name the folder of the data sets with --data")
    return [{"text": str(row["text"]), "label": str(row["label"])} for row in json_lines(path)]
