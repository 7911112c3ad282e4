"""Measures the papers' own tables at a small size: papers.toml names every row.

    python -m benchmarks.papers [--data FOLDER] [--papers wasp dpga dpkps discriminator] [--tables NAME ...] [--seeds N]
                                [--out FILE] [--fine-tuned [--encoder packaged]] [--causal FOLDER] [--quick]
    python -m benchmarks.papers --adopt FILE
    python -m benchmarks.papers [--data FOLDER] --check 12 [--draw SEED]
    python -m benchmarks.papers [--data FOLDER] --papers dpkps --shuffled 20
    python -m benchmarks.papers --page

Each row of a table is a real simulation (or a reference) of ``undersong compare`` at the preset of its paper, with
fewer texts, judged by the panel and by the paper's own metric. Rows are measured in the order of their cost, all seeds
of one before the next, into a journal of cells, which a later run continues; ``--adopt`` puts a journal into
papers.jsonl, from which the pages follow (tools/papers.py). ``--check`` measures drawn cells of papers.jsonl anew, at
least one of each paper, and fails where one is farther from its row's mean than twice the interval. ``--shuffled``
prints what the task model scores on labels in random order. FOLDER holds the data sets, which are no part of this
project. Noise comes from fixed seeds: the figures can be repeated, and are no private release.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import judged_settings, next_token
from benchmarks.paper_tables import (
    FIGURES,
    HERE,
    PLACE,
    Line,
    adopt,
    append_cell,
    by_cell,
    lines_of,
    reach_of,
    read_cells,
    read_plan,
    rows_of,
    section,
    shares_by_seed,
)
from undersong.comparison.cell import PRIVATE_ONLY, Bench, Cell, Variant
from undersong_common.errors import ConfigurationError
from undersong_common.models.fine_tuning import FineTuning
from undersong_common.models.model_files import model_folder
from undersong_common.program import entry
from undersong_common.text import overlap
from undersong_common.text.table import Table
from undersong_server import learning
from undersong_server.evaluation import metrics, panel
from undersong_server.evaluation.evaluate import membership, sequences_of
from undersong_server.evaluation.panel import score
from undersong_server.methods.parts.keyphrases import sequence_text

JOURNAL = Path("runs/papers.jsonl")
NOISE_SEED, FRECHET_ROWS = 1, 500
ATTACKED = 300  # members and others of a membership attack


class Papers:
    """The cells of one paper's tables."""

    def __init__(self, name: str, data_folder: Path, encoder: str, causal: Path | None) -> None:
        self._name, self._paper, self._data = name, read_plan()[name], data_folder
        self._encoder, self._causal = encoder, causal
        self._benches: dict[tuple[Any, ...], Bench] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="undersong-papers-"))

    def bench(self, row: Mapping[str, Any]) -> Bench:
        """Returns the bench of a row's task, which all cells of the same task share."""
        bench_key = (row.get("setting", ""), row.get("keywords", False), *row["set"])
        if bench_key not in self._benches:
            if setting := bench_key[0]:
                task = judged_settings.build(
                    setting, self._data, self._folder / ("keywords" if bench_key[1] else "plain")
                )
                # the setting's own numbers of texts and rounds would win over the preset's
                task.write_text(re.sub(r"(?m)^(samples|rounds) = .*\n", "", task.read_text(encoding="utf-8")), "utf-8")
                test, assignments = task.parent / "test.jsonl", row["set"]
                if bench_key[1]:
                    _with_keywords(task, self._data, labelled=setting != "no-labels")
            else:
                task, test = HERE / "tasks" / self._paper["task"], self._data / self._paper["test"]
                assignments = [f"data.root={json.dumps(str(self._data.absolute()))}", *row["set"]]
            self._benches[bench_key] = Bench(
                task, tuple(assignments), test, FRECHET_ROWS, insecure_noise_seed=NOISE_SEED, public_data=True
            )
        return self._benches[bench_key]

    def measure(self, row: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Runs one cell; returns its figures as plain JSON values, shares from 0 to 1."""
        start, bench = (time.monotonic(), time.process_time()), self.bench(row)
        cell = _cell(row, seed)
        outcome, (test, embeddings) = bench.made(cell), bench.judged_on
        figures: dict[str, Any] = {key: outcome.facts.get(key) for key in ("generator_calls", "epsilon_spent")}
        if outcome.corpus is None:
            scores = score(test.labels or (), outcome.predicted or ())
            figures |= scores.figures() | scores.averages
        else:
            figures |= self._judged(bench, outcome.corpus, test, embeddings, row, seed)
        if "sequences" in outcome.records:
            figures |= self._sequences(bench, outcome.records["sequences"][0][1], test, seed)
        seconds = {"seconds": time.monotonic() - start[0], "processor": time.process_time() - start[1]}
        return figures | {name: round(value, 1) for name, value in seconds.items()}

    def fine_tuned(self, row: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Returns the accuracy of an encoder fine-tuned on the cell's corpus, and of membership attacks on it."""
        bench, start_s = self.bench(row), time.process_time()
        cell = _cell(row, seed)
        corpus, test = bench.made(cell).corpus, bench.judged_on[0]
        if corpus is None or test.labels is None:
            raise ConfigurationError(f"{row['name']}: no labelled corpus to fine-tune on", "leave out fine_tuned")
        settings = FineTuning(model_folder(self._encoder), **self._paper["fine_tuning"])
        model = learning.fine_tune(corpus.texts, corpus.labels or (), settings, seed=seed)
        scores = score(test.labels, learning.predict(model, test.texts))
        records = bench.made(Cell(Variant.parse(PRIVATE_ONLY), None, cell.parties, cell.records, seed)).corpus
        attacks = attack_model(model, records, test, seed=seed) if records is not None else {}
        figures = {"accuracy": scores.accuracy, **scores.averages, **attacks}
        return {"tuned": figures | {"processor": round(time.process_time() - start_s, 1)}}

    def _judged(
        self, bench: Bench, corpus: Table, test: Table, real: Any, row: Mapping[str, Any], seed: int
    ) -> dict[str, Any]:
        if test.labels is None:
            token_accuracy = next_token.accuracy(corpus.texts, test.texts, folder=self._causal, seed=seed)
            return {"rows": len(corpus), "next_token": token_accuracy}
        embeddings, labels = bench._embed_public(corpus.texts), corpus.labels or ()
        judged = panel.judge(
            panel.Labelled(corpus.texts, labels, embeddings), panel.Labelled(test.texts, test.labels, real), seed=seed
        )
        figures = {"rows": len(corpus), "panel": judged.figures()["accuracy"], **judged.models["head"].averages}
        figures["accuracy"] = judged.models["head"].accuracy
        if self._name == "joint-attributes":
            figures |= self._distances(bench, corpus, embeddings, real, row, seed)
        if self._name == "dpkps":
            layers = learning.train(embeddings, labels, head="three-layer", seed=seed)
            figures["layers"] = score(test.labels, learning.predict(layers, real)).accuracy
            records = self._records(bench, {**row, "records": self._paper["records"]}, seed)
            client_rows = np.random.default_rng(seed).permutation(len(records))[: max(20, len(corpus) // 2)]
            client_embeddings = bench._embed_public([records.texts[at] for at in client_rows])
            adapted = learning.adapt(embeddings, labels, client_embeddings, seed=seed, head="three-layer")
            figures["adapted"] = score(test.labels, learning.predict(adapted, real)).accuracy
        return figures

    def _records(self, bench: Bench, row: Mapping[str, Any], seed: int) -> Table:
        """Returns the private records that the method of a row was given."""
        records = bench.made(_cell({**row, "method": PRIVATE_ONLY, "epsilon": None}, seed)).corpus
        assert records is not None  # the corpus of private-only is the records
        return records

    def _distances(
        self, bench: Bench, corpus: Table, embeddings: Any, real: Any, row: Mapping[str, Any], seed: int
    ) -> dict[str, float]:
        """Returns the Frechet distance to the test texts and total variation distances to the records."""
        rows = overlap.equal_choice(len(corpus), len(real), rows=min(FRECHET_ROWS, len(corpus), len(real)), seed=seed)
        figures = {"frechet": metrics.frechet_distance(embeddings[rows[0]], real[rows[1]])}
        for name in corpus.columns:
            figures["variation"] = total_variation(corpus, self._records(bench, row, seed), name)
        return figures

    def shuffled(self, row: Mapping[str, Any], times: int) -> dict[str, list[float]]:
        """Returns the three-layer head's accuracy on a row's texts, and on its sequences, with shuffled labels."""
        bench = self.bench(row)
        outcome, (test, real) = bench.made(_cell(row, 0)), bench.judged_on
        assert outcome.corpus is not None  # every method of these tables writes a corpus
        sequence_table = _drawn(outcome.records["sequences"][0][1])
        test_sequences = sequences_of(test, sequence_table, keep_empty=True)
        inputs_by_side = {
            "texts": (outcome.corpus, real, test),
            "sequences": (sequence_table, bench._embed_public(test_sequences.texts), test_sequences),
        }
        accuracies: dict[str, list[float]] = {name: [] for name in inputs_by_side}
        for seed in range(times):
            for name, (table, embeddings, truth) in inputs_by_side.items():
                labels = np.random.default_rng(seed).permutation(np.array(table.labels)).tolist()
                layers = learning.train(bench._embed_public(table.texts), labels, head="three-layer", seed=seed)
                accuracies[name].append(score(truth.labels or (), learning.predict(layers, embeddings)).accuracy)
        return accuracies

    def _sequences(self, bench: Bench, rows: Any, test: Table, seed: int) -> dict[str, float]:
        sequence_table = _drawn(rows)
        model = learning.train(
            bench._embed_public(sequence_table.texts), sequence_table.labels or (), head="three-layer", seed=seed
        )
        test_sequences = sequences_of(
            test, sequence_table, keep_empty=True
        )  # test records are turned into sequences too (B.2.2)
        return {
            "sequences": score(
                test_sequences.labels or (), learning.predict(model, bench._embed_public(test_sequences.texts))
            ).accuracy
        }


def total_variation(corpus: Table, records: Table, column: str) -> float:
    """Total variation distance between two tables' joint shares of labels and values of ``column``, ignoring case."""
    shares = [
        {pair: count / len(table) for pair, count in Counter(_pairs(table, column)).items()}
        for table in (corpus, records)
    ]
    return sum(abs(shares[0].get(pair, 0.0) - shares[1].get(pair, 0.0)) for pair in {*shares[0], *shares[1]}) / 2


def _pairs(table: Table, column: str) -> list[tuple[str, str]]:
    return [(label, value.casefold()) for label, value in zip(table.labels or (), table.columns[column], strict=True)]


def _drawn(rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
    return Table(tuple(sequence_text(terms) for _, terms in rows), tuple(label for label, _ in rows), None)


def _cell(row: Mapping[str, Any], seed: int) -> Cell:
    epsilon, parties, records = (row.get(key) for key in PLACE)
    return Cell(Variant.parse(row["method"]), epsilon, parties, records, seed)


def attack_model(model: Any, records: Table, test: Table, *, seed: int = 0) -> dict[str, float]:
    """Membership attacks by entropy and by confidence (DPGA-TextSyn, appendix F) on a model that labels texts.

    Returns balanced accuracy and area under the curve of telling ``records`` from ``test``; 0.5 is guessing.
    """
    tables = [table.take(range(min(ATTACKED, len(table)))) for table in (records, test)]
    members, others = ((table, table.texts) for table in tables)
    attacks = membership("corpus", model, members, others, seed=seed)
    return {f"{each.name} attack": each.accuracy.value for each in attacks.attacks} | {
        f"{each.name} area": each.auc.value for each in attacks.attacks
    }


def _with_keywords(task: Path, data_folder: Path, *, labelled: bool) -> None:
    """Adds a generator that proposes the 77 intents of banking77, public names, as the groups' keywords."""
    intents = {
        row["text"]: row["label"] for row in judged_settings.json_lines(data_folder / "banking77" / "test.jsonl")
    }
    keywords_by_label: dict[str, list[str]] = {}
    for row in judged_settings.json_lines(data_folder / "banking_groups" / "test.jsonl"):
        name, own = intents[row["text"]].replace("_", " ").lower(), keywords_by_label.setdefault(row["label"], [])
        own += [] if name in own else [name]
    text = (
        json.dumps(keywords_by_label)
        if labelled
        else "\n".join(f"- {name}" for own in keywords_by_label.values() for name in own)
    )
    line = {"text": text, "label": next(iter(keywords_by_label)) if labelled else ""}
    (task.parent / "keywords.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    with task.open("a", encoding="utf-8") as out:
        out.write('\n[[generators]]\nname = "keywords"\nkind = "replay"\npath = "keywords.jsonl"\n')


class Measurement:
    """Measures cells of several papers. A paper's embeddings and tasks are loaded at its first cell."""

    def __init__(self, data_folder: Path, encoder: str, causal: Path | None) -> None:
        self._data, self._encoder, self._causal = data_folder, encoder, causal
        self._papers: dict[str, Papers] = {}

    def paper(self, name: str) -> Papers:
        """Returns the cells of one paper."""
        if name not in self._papers:
            self._papers[name] = Papers(name, self._data, self._encoder, self._causal)
        return self._papers[name]

    def figures(self, line: Line, seed: int, *, fine_tuned: bool) -> dict[str, Any]:
        """Returns the figures of a cell: with --fine-tuned those of a fine-tuned encoder, else all others."""
        paper = self.paper(line.paper)
        return paper.fine_tuned(line.row, seed) if fine_tuned else paper.measure(line.row, seed)


def measure_missing(
    measurement: Measurement, lines: Sequence[Line], journal: Path, *, seeds: int | None, fine_tuned: bool
) -> None:
    """Measures the cells that the journal does not have, cheapest rows first, and adds each at once."""
    measured_cells = by_cell(read_cells(journal))
    known_cells, commit = by_cell(read_cells()) | measured_cells, current_commit()
    cost_key = "tuned" if fine_tuned else "processor"
    for line in sorted(lines, key=lambda line: _cost(line, known_cells)):
        for seed in range(line.row["seeds"] if seeds is None else seeds):
            if cost_key in measured_cells.get(line.key(seed), {}) or (fine_tuned and not line.row.get("fine_tuned")):
                continue
            figures = measurement.figures(line, seed, fine_tuned=fine_tuned)
            append_cell(journal, {"cell": json.loads(line.key(seed)), "commit": commit, "figures": figures})
            measured_cells.setdefault(line.key(seed), {}).update(figures)
            printed_figures = {key: round(value, 3) for key, value in figures.items() if isinstance(value, int | float)}
            print(f"{line.paper}, {line.row['name']}, seed {seed}: {printed_figures}", flush=True)


def _cost(line: Line, known_cells: Mapping[str, Mapping[str, Any]]) -> float:
    """Estimates a cell's processor seconds: as last measured, as papers.toml states, or like the paper's other rows."""
    own_seconds = [known_cells.get(line.key(seed), {}).get("processor") for seed in range(line.row["seeds"])]
    other_seconds = [cell.get("processor") for key, cell in known_cells.items() if json.loads(key)[0] == line.paper]
    for seconds in (own_seconds, [line.row.get("seconds")], other_seconds):
        if known_seconds := [value for value in seconds if value is not None]:
            return float(statistics.median(known_seconds))
    return 0.0


def current_commit() -> str:
    """Returns the commit of this tree, marked where tracked files differ from it."""
    description = subprocess.run(
        ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+changes"],
        cwd=HERE, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return description.stdout.strip() or "unknown"


def draw_cells(lines: Sequence[Line], figures: Mapping[str, Any], count: int, seed: int) -> list[tuple[Line, int]]:
    """Draws ``count`` cells to check, each a row and a seed: one of each paper first, then any."""
    rng = np.random.default_rng(seed)
    repeated_lines = [line for line in lines if len(_measured(line, figures)) > 1]
    shuffled_lines = [repeated_lines[line_number] for line_number in rng.permutation(len(repeated_lines))]
    first_lines = list({line.paper: line for line in shuffled_lines}.values())
    other_lines = [line for line in shuffled_lines if not any(line is first for first in first_lines)]
    chosen_lines = [*first_lines, *other_lines][: max(count, len(first_lines))]
    return [(line, int(rng.choice(sorted(_measured(line, figures))))) for line in chosen_lines]


def _measured(line: Line, figures: Mapping[str, Any]) -> dict[int, float]:
    cells = {seed: figures.get(line.key(seed), {}) for seed in range(line.row["seeds"])}
    return shares_by_seed(cells, line.judged)


def check(measurement: Measurement, lines: Sequence[Line], count: int, draw: int) -> int:
    """Measures drawn cells anew and prints how far they are from their rows' means; returns how many are too far."""
    figures, failures = by_cell(read_cells()), 0
    for line, seed in draw_cells(lines, figures, count, draw):
        values = _measured(line, figures)
        new_figures = measurement.figures(line, seed, fine_tuned=line.is_fine_tuned)
        value = shares_by_seed({seed: new_figures}, line.judged).get(seed, float("nan"))
        mean, reach = statistics.fmean(values.values()), reach_of(values.values())
        is_near = abs(value - mean) <= reach
        failures += not is_near
        print(
            f"{'passed' if is_near else 'FAILED'}: {line.paper}, {line.table}, {line.row['name']}, seed {seed}: "
            f"{value:.1f}, the row's mean {mean:.1f}, reach {reach:.1f}",
            flush=True,
        )
    return failures


def print_shuffled(measurement: Measurement, names: Sequence[str], times: int) -> None:
    """Prints the accuracy of task models trained on shuffled labels, which is the level of chance."""
    for name in names:
        row = rows_of(read_plan()[name], read_plan()[name]["tables"][0])[0]
        for side, values in measurement.paper(name).shuffled(row, times).items():
            shares = 100 * np.array(values)
            print(f"{row['name']}, {side}: {shares.mean():.1f}, deviation {shares.std(ddof=1):.1f}")


def main(argv: list[str] | None = None) -> int:
    """Measures what is missing, checks what was measured, or prints the page."""
    options = _parser().parse_args(argv)
    if options.page:
        print("\n".join(line for name in options.papers for line in section(name, read_cells())))
        return 0
    if options.adopt:
        print(f"{adopt(read_cells(options.adopt))} cells of {options.adopt} are in {FIGURES.name}")
        return 0
    if not options.data.is_dir():
        raise ConfigurationError(
            f"--data {options.data}: no such folder", "the real text is no part of this project: name its folder"
        )
    measurement = Measurement(options.data, options.encoder, options.causal)
    lines = lines_of(options.papers, options.tables or [""])
    if options.shuffled:
        print_shuffled(measurement, options.papers, options.shuffled)
    elif options.check:
        draw = int(time.time()) if options.draw is None else options.draw
        print(f"--draw {draw}", flush=True)
        if failures := check(measurement, lines, options.check, draw):
            print(f"{failures} cells are farther from their rows' means than twice the interval", file=sys.stderr)
            return 1
    else:
        if options.quick:
            lines = list({(line.paper, line.table): line for line in reversed(lines)}.values())
        seeds = 1 if options.quick else options.seeds
        measure_missing(measurement, lines, options.out, seeds=seeds, fine_tuned=options.fine_tuned)
    return 0


def _parser() -> argparse.ArgumentParser:
    names = list(read_plan())
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder that holds the data sets")
    parser.add_argument("--papers", nargs="+", choices=names, default=names)
    parser.add_argument("--tables", nargs="+", help="beginnings of the tables' names; all by default")
    parser.add_argument("--seeds", type=int, help="of each row, instead of papers.toml's")
    parser.add_argument("--encoder", default="packaged", help="folder of an encoder to fine-tune, such as a BERT")
    parser.add_argument("--causal", type=Path, help="folder of a BERT that is trained with a causal mask")
    parser.add_argument("--out", type=Path, default=JOURNAL, help="journal of cells, continued where it ends")
    parser.add_argument("--quick", action="store_true", help="the first row of each table, one seed")
    parser.add_argument("--fine-tuned", action="store_true", help="the encoder's figures of the rows that ask for it")
    parser.add_argument("--adopt", type=Path, metavar="FILE", help="put the cells of a journal into papers.jsonl")
    parser.add_argument("--check", type=int, metavar="N", help="measure N drawn cells anew")
    parser.add_argument("--draw", type=int, metavar="SEED", help="of the drawn cells; by default by the clock")
    parser.add_argument("--shuffled", type=int, help="trainings on shuffled labels of the papers' first rows: chance")
    parser.add_argument(
        "--page", action="store_true", help="print the sections of the site's pages and measure nothing"
    )
    return parser


if __name__ == "__main__":
    entry.run(main)
