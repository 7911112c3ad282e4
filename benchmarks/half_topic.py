"""Counts off-topic texts in corpora whose generators are off topic only in part, or only of another style.

    python -m benchmarks.half_topic --data FOLDER --out runs/half-topic

Every pool has two generators. In ``PARTLY_OFF`` a part of the second one's texts is off topic, under labels by chance;
in ``ON_TOPIC`` it is wrong in its labels, narrow, or of another style. Each run has 300 records and three rounds. Rows
that are off topic are counted, in how many runs they are more than one in a hundred, and the texts on topic that are
set aside, by generator. The pools test the rules that set texts aside where no generator is wholly off topic.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fresh_tasks, judged, judged_settings, judged_tables
from benchmarks.judged_settings import Row, Setting
from undersong_common.models.embedding import CachedEmbedder, Embed, Embedder, PublicFileCache
from undersong_common.program import entry
from undersong_server.defaults import public_cache_path
from undersong_server.methods.parts import support

SEED = 53
POOL = 900  # most texts of one generator
TESTS = 400  # texts of the test set
RECORDS, ROUNDS = 300, 3
FIRST_SEED, SEEDS = 500, 8
EPSILONS = (1.0, 4.0)
MOST_OFF = 0.01  # largest share of a corpus that may be off topic
CLINIC = Path(__file__).parent.parent / "examples" / "clinic" / "data"


def half_off(on_topic_rows: Sequence[Row], off_topic_rows: Sequence[Row], seed: int, share: float = 0.5) -> list[Row]:
    """Returns rows of which ``share`` are off topic: texts of ``off`` under labels of ``on`` by chance."""
    rng = np.random.default_rng([SEED, seed])
    labels = sorted({row["label"] for row in on_topic_rows})
    off_count = min(len(off_topic_rows), round(share * POOL))
    on_count = min(len(on_topic_rows), round(off_count * (1 - share) / share))
    rows = [on_topic_rows[i] for i in rng.permutation(len(on_topic_rows))[:on_count]]
    rows += [
        {"text": off_topic_rows[i]["text"], "label": labels[int(rng.integers(len(labels)))], "off": "1"}
        for i in rng.permutation(len(off_topic_rows))[:off_count]
    ]
    return [rows[i] for i in rng.permutation(len(rows))]


def draw_rows(rows: Sequence[Row], seed: int, count: int = POOL) -> list[Row]:
    """Draws ``count`` rows with different texts."""
    rng = np.random.default_rng([SEED, seed])
    distinct_rows = list({row["text"]: row for row in rows}.values())
    return [distinct_rows[i] for i in rng.permutation(len(distinct_rows))[:count]]


def films(data_folder: Path, pool: str = "flan-t5-xl") -> list[Row]:
    """Returns film reviews that the language model ``pool`` wrote."""
    return draw_rows(judged_settings.rows_of(data_folder / "movie_reviews" / "pools" / f"{pool}.jsonl"), 1)


def bank_pool(data_folder: Path, pool: str) -> list[Row]:
    """Returns the bank questions of one pool."""
    return draw_rows(judged_settings.rows_of(data_folder / "banking_groups" / "pools" / f"{pool}.jsonl"), 2, 2 * POOL)


def clinical(data_folder: Path) -> list[Row]:
    """Sections of clinical notes under their six most common headers."""
    rows = [
        row for name in ("train", "test1", "test2") for row in json_rows(data_folder / "mts_dialog" / f"{name}.jsonl")
    ]
    common_headers = [label for label, _ in Counter(row["label"] for row in rows).most_common(6)]
    return draw_rows([row for row in rows if row["label"] in common_headers], 3, len(rows))


def json_rows(path: Path) -> list[Row]:
    """Rows of a file with text and label."""
    return judged_settings.rows_of(path)


def dialogues(data_folder: Path) -> list[Row]:
    """Doctor-patient talks on which :func:`clinical` sections were written, each labelled by the section's header."""
    rows = [
        row
        for name in ("train", "test1", "test2")
        for row in judged_settings.json_lines(data_folder / "mts_dialog" / f"{name}.jsonl")
    ]
    common_headers = {row["label"] for row in clinical(data_folder)}
    talks = [" ".join(row["dialogue"].split()[:60]) for row in rows]
    return draw_rows(
        [
            {"text": text, "label": row["label"]}
            for text, row in zip(talks, rows, strict=True)
            if row["label"] in common_headers
        ],
        4,
    )


def cook_notes(_data: Path) -> list[Row]:
    """Returns a cook's notes, which are off topic elsewhere."""
    return fresh_tasks.one_cook().pools["stereotyped"]


def shifts(_data: Path) -> list[Row]:
    """Returns reports of a warehouse, which are off topic elsewhere."""
    return fresh_tasks.quiet_shifts().pools["vivid"]


def bank(data_folder: Path, second: Callable[[list[Row]], list[Row]]) -> Setting:
    setting = judged_settings.mixed(data_folder)
    good = bank_pool(data_folder, "good")
    return setting._replace(pools={"good": good[:POOL], "second": second(good[POOL:])})


def bank_other(data_folder: Path, pool: str) -> Setting:
    return judged_settings.mixed(data_folder)._replace(
        pools={"good": bank_pool(data_folder, "good")[:POOL], "second": bank_pool(data_folder, pool)[:POOL]}
    )


def clinic(_data: Path, off_share: float = 0.0) -> Setting:
    """The clinic example with its handbook and a bulletin board, of which 30 % or ``off_share`` is off topic."""
    private = [row for path in sorted((CLINIC / "hospitals").glob("*.jsonl")) for row in json_rows(path)]
    corpora = {name: json_rows(CLINIC / "corpora" / f"{name}.jsonl") for name in ("handbook", "mixed", "offdomain")}
    words = Counter(word for row in corpora["offdomain"] for word in row["text"].casefold().split())
    on_words = {word for row in corpora["handbook"] for word in row["text"].casefold().split()}
    foreign_words = {word for word in words if word not in on_words}
    board_rows = []
    for row in draw_rows(corpora["mixed"], 5, 2 * POOL):
        text_words = row["text"].casefold().split()
        is_off = sum(piece in foreign_words for piece in text_words) > 0.25 * len(text_words)
        board_rows.append({**row, "off": "1"} if is_off else row)
    if off_share:
        board_rows = half_off(
            [row for row in board_rows if "off" not in row], draw_rows(corpora["offdomain"], 6), 7, off_share
        )
    pools = {"handbook": draw_rows(corpora["handbook"], 8), "board": board_rows}
    return Setting("a nurse's triage note", private, json_rows(CLINIC / "test.jsonl"), pools)


def movies(data_folder: Path, second: Callable[[list[Row]], list[Row]], pool: str = "opt-6.7b") -> Setting:
    rows = judged_settings.rows_of(data_folder / "movie_reviews" / "pools" / f"{pool}.jsonl")
    setting = judged_settings.movies(data_folder)
    return setting._replace(
        pools={"vicuna": draw_rows(films(data_folder, "vicuna-7b-1.5v"), 9), "second": second(draw_rows(rows, 10))}
    )


def sections(data_folder: Path, second: Callable[[list[Row]], list[Row]]) -> Setting:
    rows = clinical(data_folder)
    private, test, first_pool, other_rows = rows[:450], rows[450:650], rows[650:950], rows[950:]
    return Setting("a section of a clinical note", private, test, {"first": first_pool, "second": second(other_rows)})


def stars(data_folder: Path, second: Callable[[list[Row]], list[Row]], pool: str = "strict") -> Setting:
    setting = judged_settings.stars(data_folder)
    return _of_two(setting._replace(records=RECORDS), "alike", pool, second)


def offices(_data: Path, second: Callable[[list[Row]], list[Row]], pool: str = "careless") -> Setting:
    return _of_two(fresh_tasks.twelve_offices(), "good", pool, second)


def thirty(data_folder: Path, second: Callable[[list[Row]], list[Row]], pool: str = "noisy") -> Setting:
    return _of_two(judged_settings.thirty_labels(data_folder), "right", pool, second)


def _of_two(setting: Setting, first: str, pool: str, second: Callable[[list[Row]], list[Row]]) -> Setting:
    pools = {first: setting.pools[first][:POOL], "second": second(setting.pools[pool][:POOL])}
    return setting._replace(pools=pools)


def mixture_of(*pools: Sequence[Row]) -> list[Row]:
    return [row for rows in pools for row in rows[: POOL // len(pools)]]


def first_rows(rows: list[Row]) -> list[Row]:
    return rows[:POOL]


def bank_half_of_style(data_folder: Path) -> Setting:
    setting = bank_other(data_folder, "style")
    return setting._replace(
        pools={**setting.pools, "second": half_off(bank_pool(data_folder, "style"), films(data_folder), 12)}
    )


def several(data_folder: Path) -> list[Row]:
    """Returns texts of three subjects, which are off topic elsewhere."""
    return mixture_of(films(data_folder), cook_notes(data_folder), clinical(data_folder))


Build = Callable[[Path], Setting]
PARTLY_OFF: dict[str, Build] = {
    "bank/films": lambda d: bank(d, lambda on: half_off(on, films(d), 11)),
    "bank/style-films": bank_half_of_style,
    "clinic/board": clinic,
    "clinic/half": lambda d: clinic(d, 0.5),
    "movies/bank": lambda d: movies(d, lambda on: half_off(on, bank_pool(d, "good"), 13)),
    "sections/films": lambda d: sections(d, lambda on: half_off(on, films(d), 14)),
    "stars/cook": lambda d: stars(d, lambda on: half_off(on, cook_notes(d), 15)),
    "offices/shifts": lambda d: offices(d, lambda on: half_off(on, shifts(d), 16)),
    "thirty/several": lambda d: thirty(d, lambda on: half_off(on, several(d), 17)),
}
ON_TOPIC: dict[str, Build] = {
    "bank/style": lambda d: bank_other(d, "style"),
    "bank/narrow": lambda d: bank_other(d, "narrow"),
    "bank/label-noise": lambda d: bank_other(d, "label_noise40"),
    "bank/confused": lambda d: bank_other(d, "confused50"),
    "movies/gpt2": lambda d: movies(d, first_rows, "gpt2-xl"),
    "movies/flan": lambda d: movies(d, first_rows, "flan-t5-xl"),
    "sections/dialogues": lambda d: sections(d, lambda _: dialogues(d)),
    "stars/brief": lambda d: stars(d, first_rows, "brief"),
    "offices/formal": lambda d: offices(d, first_rows, "formal"),
    "thirty/swapped": lambda d: thirty(d, first_rows, "swapped"),
}
POOLS = {**PARTLY_OFF, **ON_TOPIC}


def build(name: str, data_folder: Path, samples: int, epsilon: float, out_folder: Path) -> tuple[Path, set[str]]:
    """Writes a pool's files; returns the path of its task file, and the texts that are off topic."""
    setting = POOLS[name](data_folder)
    off_topic_texts = {row["text"] for rows in setting.pools.values() for row in rows if "off" in row}
    test = (
        [setting.test[i * len(setting.test) // TESTS] for i in range(TESTS)]
        if len(setting.test) > TESTS
        else setting.test
    )
    setting = setting._replace(samples=samples, epsilon=epsilon, records=RECORDS, test=test)
    return judged_settings.write(name.replace("/", "-"), setting, out_folder), off_topic_texts


def cell(world: judged.World, off_topic_texts: set[str], seed: int) -> dict[str, Any]:
    """Returns figures of one run: rows, off-topic rows, and by generator its texts on topic and those set aside."""
    samples, run = judged.run_method(world, f"undersong:rounds={ROUNDS}", seed, judged.OneMachine)
    set_aside_rows = [row for _, rows in run.records.get(support.RECORD, ()) for row in rows]
    return {
        "rows": len(samples),
        "off": sum(sample.text in off_topic_texts for sample in samples),
        "on": [
            sum(
                pool_sample.text not in off_topic_texts and pool_sample.generator == name
                for pool_sample in run.pool.samples
            )
            for name in world.names
        ],
        "lost": [
            sum(row[0] not in off_topic_texts and row[2] == name for row in set_aside_rows) for name in world.names
        ],
    }


def measure(pool: str, arguments: argparse.Namespace, embed: Embed) -> list[list[str]]:
    """Returns the table's rows for one pool, one for each epsilon; cells are stored in a file of the pool."""
    lines = []
    for epsilon in EPSILONS:
        path, off_topic_texts = build(pool, arguments.data, arguments.samples, epsilon, arguments.out)
        world, cells_file = judged.World(path, embed), path.parent / f"cells-{arguments.samples}-{epsilon:g}.json"
        cells: dict[str, dict[str, Any]] = json.loads(cells_file.read_text("utf-8")) if cells_file.exists() else {}
        seeds = [str(seed) for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds)]
        for seed in seeds:
            if seed not in cells:
                cells[seed] = cell(world, off_topic_texts, int(seed))
                cells_file.write_text(json.dumps(cells), "utf-8")
        lines.append([pool, f"{epsilon:g}", *_figures([cells[seed] for seed in seeds])])
    return lines


def _figures(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the mean share of off-topic rows, the runs with more than ``MOST_OFF``, and shares wrongly set aside."""
    shares = np.array([run["off"] / run["rows"] for run in runs])
    on_counts, lost_counts = (np.sum([run[name] for run in runs], axis=0) for name in ("on", "lost"))
    lost_shares = " / ".join(f"{100 * share:.0f}" for share in lost_counts / np.maximum(on_counts, 1))
    return [f"{100 * shares.mean():.1f}", f"{(shares > MOST_OFF).sum()} of {len(runs)}", lost_shares]


def main(argv: list[str] | None = None) -> int:
    """Measures what is missing and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.half_topic", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder that holds the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/half-topic"), help="where pools and cells are kept")
    parser.add_argument("--pools", default=",".join(POOLS), help="separated by commas")
    parser.add_argument("--samples", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--quick", action="store_true", help="two pools without a data folder, two seeds")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.pools, arguments.seeds = "offices/shifts,stars/brief", 2
    embed = CachedEmbedder(Embedder.load(), PublicFileCache(public_cache_path(os.environ))).encode
    heads = ("pool", "epsilon", "off topic (%)", "runs above 1 %", "on topic, set aside (%)")
    print(
        judged_tables.table(
            heads, [line for pool in arguments.pools.split(",") for line in measure(pool, arguments, embed)]
        )
    )
    return 0


if __name__ == "__main__":
    entry.run(main)
