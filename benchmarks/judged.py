"""Which method's corpora train the better model, on the settings of ``judged_settings``: cells, intervals, a picture.

    python -m benchmarks.judged --data FOLDER --out runs/judged [--seeds 20 --first-seed 100] [--settings weak,alike]
    python -m benchmarks.judged --out runs/judged --draw docs/pictures/judged.svg [--epsilon 1 --records 100,300]

A cell is the product's own method, statistics, sensitivities, calibrated noise and ``replay`` generators on one
machine: no parties, masks or ledgers, Gaussian noise in floating point, texts as the pools have them. A cell costs some
seconds of one core, most of them the panel's; ``undersong compare`` on a setting's task file runs the same with all of
it. Cells are in ``OUT/cells.jsonl`` and an interrupted command continues. ``--draw`` reads those of ``--epsilon``,
``--methods`` and ``--records`` (all, where none is named) and writes the picture and the tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import judged_settings
from undersong_common import entry
from undersong_common.arrays import Float32, Float64, Int64, UInt64
from undersong_common.canonical import tagged_hash
from undersong_common.embedding import CachedEmbedder, Embed, Embedder, MemoryCache, publishable
from undersong_common.errors import ConfigurationError
from undersong_protocol.plan import Plan, Privacy, Quorum, plan_sums
from undersong_protocol.statistics.interface import LabelledEmbeddings, PublicInputs
from undersong_protocol.vectors import NoisySum
from undersong_server import methods
from undersong_server.evaluation import metrics, panel
from undersong_server.generators.cleaning import duplicate_key
from undersong_server.generators.interface import Answer, GenerationRequest
from undersong_server.generators.kinds.replay import ReplayGenerator, ReplaySettings
from undersong_server.generators.orders import Order
from undersong_server.methods.interface import EXPECTED_RECORDS, Setting
from undersong_server.pool import Pool, Sample, each_once
from undersong_server.runs import task as tasks

METHODS = ("undersong", "mixture+labels", "wasp", "augpe")
ATTEMPTS = 3  # at a text that was given before
DELTA = 1e-5
FRECHET_ROWS = 2000
LEVEL = 0.05


class Records:
    """Private records as a statistic reads them, each a unit of its own."""

    local_model = ""

    def __init__(self, texts: Sequence[str], labels: Int64, embeddings: Float32) -> None:
        self.texts, self.labels, self.embeddings = texts, labels, embeddings
        self.units: Int64 = np.arange(len(texts), dtype=np.int64)
        self.unit_hashes: UInt64 = self.units.astype(np.uint64)

    def __len__(self) -> int:
        return len(self.texts)


class World:
    """One setting in memory: its generators, its records and its test set."""

    def __init__(self, path: Path, embed: Embed) -> None:
        self.task = tasks.load(path)
        self.embed = embed
        self.labels, self.names = self.task.task.labels, tuple(each.name for each in self.task.generators)
        self._public: dict[str, Float32] = {}
        root = Path(self.task.data.root)
        settings = [each for each in self.task.generators if isinstance(each, ReplaySettings)]
        self.generators = {
            each.name: ReplayGenerator(each, labels=self.labels, folder=root, embed=self.public) for each in settings
        }
        numbers = {label: number for number, label in enumerate(self.labels)}
        private, test = (judged_settings.json_lines(root / name) for name in ("private.jsonl", "test.jsonl"))
        self._texts = [row["text"] for row in private]
        self._label_of = np.array([numbers[row["label"]] for row in private], dtype=np.int64)
        self._private = embed(self._texts)
        test_texts = [row["text"] for row in test]
        self.test = panel.Labelled(test_texts, [row["label"] for row in test], embed(test_texts))

    def public(self, texts: Sequence[str]) -> Float32:
        """Embeddings on the public grid, float32 [n, d]; each text is embedded once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._public]
        if new:
            self._public.update(zip(new, publishable(self.embed(new)), strict=True))
        return np.stack([self._public[text] for text in texts])

    def records(self, count: int, seed: int) -> Records:
        chosen = np.random.default_rng([seed, 77]).permutation(len(self._texts))[:count]
        return Records([self._texts[i] for i in chosen], self._label_of[chosen], self._private[chosen])


class OneMachine:
    """What a method gets (:class:`undersong_server.methods.interface.RunContext`), without a federation behind it."""

    def __init__(self, world: World, setting: Setting, plan: Plan, records: Records, seed: int) -> None:
        self.setting, self.pool = setting, Pool(setting.labels, setting.generators)
        self.records: dict[str, list[tuple[int, Any]]] = {}
        self._world, self._plan, self._private, self._seed = world, plan, records, seed
        self._given: set[str] = set()
        self._noise, self._steps = np.random.default_rng([seed, 991]), 0
        for generator in world.generators.values():
            generator._used[:] = 0

    def rng(self, step: str) -> np.random.Generator:
        digest = tagged_hash("method randomness", str(self._seed).encode(), step.encode())
        return np.random.default_rng(np.frombuffer(digest, dtype="<u4"))

    def record(self, name: str, round_: int, value: Any) -> None:
        self.records.setdefault(name, []).append((round_, value))

    def generate(self, step: str, round_: int, orders: Sequence[Order]) -> list[Sample]:
        samples = [sample for sample in self.write(step, round_, orders) if sample is not None]
        self.pool.extend(samples)
        return samples

    def write(self, step: str, round_: int, orders: Sequence[Order]) -> list[Sample | None]:
        found: list[Sample | None] = [None] * len(orders)
        self._steps += 1
        for attempt in range(ATTEMPTS):
            for name, generator in self._world.generators.items():
                left = [i for i, order in enumerate(orders) if order.generator == name and found[i] is None]
                requests = [self._request(orders[i], attempt, i) for i in left]
                for number, answer in generator.answer(requests):
                    order = orders[left[number]]
                    if isinstance(answer, Answer) and (key := duplicate_key(answer.text)) not in self._given:
                        self._given.add(key)
                        found[left[number]] = Sample(answer.text, order.label, name, round_, order.kind)
        return found

    def _request(self, order: Order, attempt: int, number: int) -> GenerationRequest:
        seed = self._seed * 1_000_003 + self._steps * 100_003 + attempt * 20_011 + number
        return GenerationRequest(
            order.kind, order.label, "", seed, good=order.good, bad=order.bad, parents=order.parents
        )

    def label_numbers(self, samples: Sequence[Sample]) -> Int64:
        numbers = {name: number for number, name in enumerate(self.setting.labels)}
        return np.array([numbers.get(sample.label, -1) for sample in samples], dtype=np.int64)

    def embeddings(self, samples: Sequence[Sample]) -> Float32:
        return self._world.public([sample.text for sample in samples])

    def publish_numbers(self, name: str, values: Float64) -> tuple[str, Any]:
        return name, np.asarray(values, dtype=np.float64)

    def publish_pool(self) -> tuple[str, Any]:
        samples = self.pool.samples
        return "candidates", LabelledEmbeddings(self.embeddings(samples), self.label_numbers(samples))

    def publish_vectors(self, name: str, step: str, values: Float32, labels: Int64) -> tuple[str, Any]:
        return name, LabelledEmbeddings(publishable(values), labels)

    def votes(self, name: str) -> tuple[Float64, Float64]:
        planned, size = self._plan[name], len(self.pool)
        natural = self.private_sum(name, [self.publish_pool()]).natural
        if not planned.parameters["furthest"]:
            return natural[:size], np.zeros(size)
        half = planned.dimension // 2
        return natural[:size], natural[half : half + size]

    def sigma(self, name: str) -> float:
        return self._plan[name].sigma_integer / self._plan[name].scale

    def private_sum(self, name: str, inputs: Sequence[tuple[str, Any]]) -> NoisySum:
        planned = self._plan[name]
        embedded = {key: value for key, value in inputs if isinstance(value, LabelledEmbeddings)}
        public = PublicInputs(embedded, {key: value for key, value in inputs if key not in embedded})
        rows = planned.build().rows(self._private, public, {})
        total = np.asarray(rows.take(np.arange(len(rows), dtype=np.int64)).sum(axis=0)).ravel()
        noise = self._noise.normal(0.0, 1.0, len(total)) * planned.sigma_integer
        values = np.rint(total * planned.scale + noise).astype(np.int64)
        return NoisySum(values, planned.scale, self.sigma(name), ("all",))


def cell(
    world: World, method: str, records: int, epsilon: float, seed: int, expected: int = EXPECTED_RECORDS
) -> dict[str, Any]:
    """The panel's figures in per cent, Frechet distance, rows, and what the method recorded of its choices.

    The distance is of ``FRECHET_ROWS`` texts, or as many as the smaller set has.

    Args:
        expected: the declared number of records, ``privacy.expected_records`` of a task.
    """
    if method == "private-only":
        private = world.records(records, seed)
        return _scores(
            world, panel.Labelled(private.texts, [world.labels[i] for i in private.labels], private.embeddings), seed
        )
    name, _, option = method.partition(":")
    loaded = methods.load(name)
    given = dict(part.split("=") for part in option.split("+") if part)
    options = loaded.Options(samples=world.task.options.samples, **given)
    privacy, quorum = Privacy(epsilon, DELTA), Quorum(1, 1, 0, 0)
    setting = Setting(world.labels, world.names, privacy=privacy, quorum=quorum, expected_records=expected)
    plan = plan_sums(loaded.plan(options, setting), privacy, quorum)
    run = OneMachine(world, setting, plan, world.records(records, seed), seed)
    samples = each_once(loaded.run(options, run))  # type: ignore[arg-type]
    texts, labels = [sample.text for sample in samples], [sample.label for sample in samples]
    embeddings = world.embed(texts)
    found = _scores(world, panel.Labelled(texts, labels, embeddings), seed)
    real = world.test.embeddings
    rows = min(FRECHET_ROWS, len(texts), len(real))
    kept = ("weights", "trust", "matched", "corpora", "gains")
    return {
        **found,
        "frechet": metrics.frechet_distance(*metrics.equal_rows(embeddings, real, rows=rows, seed=seed)),
        "records": {name: values[-1][1] for name, values in run.records.items() if name in kept},
    }


def _scores(world: World, corpus: panel.Labelled, seed: int) -> dict[str, Any]:
    found = panel.judge(corpus, world.test, seed=seed).figures()
    return {name: 100 * value for name, value in found.items()} | {"rows": len(corpus.texts)}


def measure(
    settings: Mapping[str, tuple[Path, Sequence[int]]],
    chosen: Sequence[str],
    epsilon: float,
    seeds: Sequence[int],
    out: Path,
    embed: Embed,
    expected: int = EXPECTED_RECORDS,
) -> None:
    """Measures the cells that ``out``/cells.jsonl does not hold, one seed of everything after the other."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "cells.jsonl"
    known = {_key(row) for row in judged_settings.json_lines(path)} if path.exists() else set()
    worlds: dict[str, World] = {}
    with path.open("a", encoding="utf-8") as file:
        for seed in seeds:
            for name, (task_file, numbers) in settings.items():
                for records in numbers:
                    for method in chosen:
                        what = {
                            "setting": name, "method": method, "M": records, "epsilon": epsilon, "seed": seed
                        }  # fmt: skip
                        if _key(what) in known:
                            continue
                        if name not in worlds:
                            worlds[name] = World(task_file, embed)
                        world = worlds[name]
                        file.write(json.dumps(what | cell(world, method, records, epsilon, seed, expected)) + "\n")
                        file.flush()


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("setting", "method", "M", "epsilon", "seed"))


def differences(cells: Sequence[Mapping[str, Any]], ours: str, other: str, measure_: str) -> list[dict[str, Any]]:
    """Paired differences of every setting and number of records, with Holm's simultaneous intervals.

    The k-th smallest of n p-values has the level 0.05 / (n - k + 1); its interval is Student's at that level. Settings
    come in the order of ``judged_settings``, others after them.
    """
    from scipy.stats import t as student

    by = {_key(row): float(row[measure_]) for row in cells}
    found: list[dict[str, Any]] = []
    place = {name: number for number, name in enumerate(judged_settings.SETTINGS)}
    cases = {(row["setting"], row["M"], row["epsilon"]) for row in cells}
    seeds = sorted({row["seed"] for row in cells})
    for name, records, epsilon in sorted(cases, key=lambda case: (place.get(case[0], len(place)), *case)):
        both = [((name, ours, records, epsilon, s), (name, other, records, epsilon, s)) for s in seeds]
        pairs = [(by[mine], by[its]) for mine, its in both if mine in by and its in by]
        if len(pairs) < 2:
            continue
        sides = np.array(pairs)
        left = sides[:, 0] - sides[:, 1]
        error = max(float(left.std(ddof=1)) / np.sqrt(len(left)), 1e-9)
        chance = 2 * float(student.sf(abs(left.mean()) / error, len(left) - 1))
        means, worst = sides.mean(axis=0).tolist(), sides.min(axis=0).tolist()
        found.append(
            {"setting": name, "M": records, "seeds": len(left), "difference": float(left.mean()), "error": error,
             "chance": chance, "ours": means[0], "other": means[1], "worst": worst[0], "other_worst": worst[1]}
        )  # fmt: skip
    for rank, row in enumerate(sorted(found, key=lambda row: row["chance"])):
        level = LEVEL / (len(found) - rank)
        half = float(student.isf(level / 2, row["seeds"] - 1)) * row["error"]
        row["low"], row["high"] = row["difference"] - half, row["difference"] + half
    return found


def table(cells: Sequence[Mapping[str, Any]], ours: str, other: str) -> str:
    """The panel's figures of every setting with their intervals, worst runs and mean Frechet distances, as Markdown."""
    heads = ("setting", "records", "seeds", "panel score", "its panel score", "difference", "simultaneous interval")
    heads += ("worst model's difference", "macro-F1 difference", "rarest label's difference")
    heads += ("worst run", "its worst", "Frechet", "its Frechet")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    measured = {
        name: differences(cells, ours, other, name) for name in ("panel", *panel.MODELS, "macro_f1", "rarest_recall")
    }
    for place, row in enumerate(measured["panel"]):
        gap = {name: rows[place]["difference"] for name, rows in measured.items()}
        far = [_frechet(cells, row, method) for method in (ours, other)]
        lines.append(
            f"| {row['setting']} | {row['M']} | {row['seeds']} | {row['ours']:.1f} | {row['other']:.1f} "
            f"| {row['difference']:+.1f} | {row['low']:.1f} to {row['high']:.1f} "
            f"| {min(gap[name] for name in panel.MODELS):+.1f} | {gap['macro_f1']:+.1f} | {gap['rarest_recall']:+.1f} "
            f"| {row['worst']:.1f} | {row['other_worst']:.1f} | {far[0]} | {far[1]} |"
        )
    return "\n".join([*lines, "", panel.settings()])


def _frechet(cells: Sequence[Mapping[str, Any]], row: Mapping[str, Any], method: str) -> str:
    found = [
        cell["frechet"]
        for cell in cells
        if (cell["setting"], cell["M"], cell["method"]) == (row["setting"], row["M"], method) and "frechet" in cell
    ]
    return f"{np.mean(found):.3f}" if found else "-"


def picture(panels: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Differences with their intervals, one panel for each baseline, as SVG."""
    cases = list(dict.fromkeys((row["setting"], row["M"]) for rows in panels.values() for row in rows))
    line = {case: index for index, case in enumerate(cases)}
    step, left, width, top = 20, 190, 200, 46
    ends = [row[end] for rows in panels.values() for row in rows for end in ("low", "high")]
    low, high = max(-10.0, min(-1.0, *ends)), min(15.0, max(1.0, *ends))
    height = top + step * len(cases) + 34

    def at(value: float) -> float:
        return (min(max(value, low), high) - low) / (high - low) * (width - 20)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width * len(panels)} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{left + width * len(panels)}" height="{height}" fill="white"/>',
    ]
    for (name, records), index in line.items():
        y = top + step * index + 14
        parts.append(f'<text x="8" y="{y}">{name}, {records} records</text>')
    for number, (title, rows) in enumerate(panels.items()):
        x = left + width * number
        bottom = top + step * len(cases) + 4
        parts.append(f'<text x="{x}" y="18" font-weight="bold">minus {title}</text>')
        parts.append(f'<text x="{x}" y="34" fill="#555">points of panel score</text>')
        parts.append(f'<line x1="{x + at(0):.1f}" x2="{x + at(0):.1f}" y1="40" y2="{bottom}" stroke="#999"/>')
        ticks = sorted({low, 0.0, high})
        parts += [
            f'<text x="{x + at(tick):.1f}" y="{bottom + 14}" text-anchor="middle" fill="#555">{tick:.0f}</text>'
            for tick in ticks
        ]
        for row in rows:
            y = top + step * line[row["setting"], row["M"]] + 10
            colour = "#1a7f37" if row["low"] > 0 else "#b3261e" if row["high"] < 0 else "#555"
            x1, x2, middle = (x + at(row[key]) for key in ("low", "high", "difference"))
            parts.append(
                f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
                f'<circle cx="{middle:.1f}" cy="{y}" r="3.5" fill="{colour}"/>'
            )
            if row["difference"] > high:
                parts.append(
                    f'<text x="{x + at(high) - 4:.1f}" y="{y - 5}" text-anchor="end">+{row["difference"]:.0f}</text>'
                )
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw(cells: Sequence[Mapping[str, Any]], chosen: Sequence[str], target: Path) -> str:
    """Writes the picture of the first of the chosen methods beside the others; returns the tables as Markdown."""
    ours, *others = chosen
    panels = {other: differences(cells, ours, other, "panel") for other in others}
    target.write_text(picture({name: rows for name, rows in panels.items() if name in METHODS}), encoding="utf-8")
    tables = [f"### Against {other}\n\n{table(cells, ours, other)}" for other in others if panels[other]]
    return "\n\n".join(tables)


def _embedder() -> Callable[[Sequence[str]], Float32]:
    return CachedEmbedder(Embedder.load(), MemoryCache()).encode


def main(argv: list[str] | None = None) -> int:
    """Measures what is missing, or draws what is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judged", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder that holds the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/judged"), help="where settings and cells are kept")
    parser.add_argument("--settings", default=",".join(judged_settings.SETTINGS), help="separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas; private-only is one more")
    parser.add_argument("--records", default="", help="instead of each setting's own two, separated by commas")
    parser.add_argument(
        "--expected-records", type=int, default=EXPECTED_RECORDS, help="declared, as a task declares it"
    )
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="specialists only, two seeds: about a minute")
    parser.add_argument("--draw", type=Path, help="writes this SVG from the cells, prints the tables, measures nothing")
    options = parser.parse_args(argv)
    numbers, chosen_methods = [int(each) for each in options.records.split(",") if each], options.methods.split(",")
    if options.draw:
        cells = [
            row
            for row in judged_settings.json_lines(options.out / "cells.jsonl")
            if row["epsilon"] == options.epsilon and (not numbers or row["M"] in numbers)
        ]
        if not cells:
            raise ConfigurationError(
                f"{options.out}: holds no cell of these", "name the --epsilon and --records measured"
            )
        print(draw(cells, chosen_methods, options.draw))
        return 0
    if options.quick:
        options.settings, options.seeds = "specialists", 2
    chosen: dict[str, tuple[Path, Sequence[int]]] = {}
    for name in options.settings.split(","):
        path, its_own = judged_settings.build(name, options.data, options.out)
        chosen[name] = (path, numbers or its_own)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    measure(chosen, chosen_methods, options.epsilon, seeds, options.out, _embedder(), options.expected_records)
    return 0


if __name__ == "__main__":
    entry.run(main)
