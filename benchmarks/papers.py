"""The papers' own tables at a size that one core runs in a quarter of an hour: papers.toml names every row.

    python -m benchmarks.papers --data FOLDER [--papers wasp dpga dpkps discriminator] [--tables NAME ...] [--seeds N]
                                [--fine-tuned [--encoder packaged]] [--causal FOLDER] [--quick]
    python -m benchmarks.papers --data FOLDER --papers dpkps --shuffled 20
    python -m benchmarks.papers --page

Each row of a table is a real simulation (or a reference) of ``undersong compare`` at the preset of its paper, with
fewer texts, judged by the panel and by the paper's own metric. A measured cell is one line of papers.jsonl and is not
measured again. ``--shuffled`` prints what the task model scores on labels in random order. ``--page`` prints what
tests/papers.py puts into docs/papers/. FOLDER holds the data sets, which are no part of this project. Noise comes from
a fixed seed: the figures can be repeated, and are no private release.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import judged_settings, next_token
from undersong.compare_cell import PRIVATE_ONLY, Bench, Cell, Variant
from undersong_common import entry
from undersong_common.errors import ConfigurationError
from undersong_common.fine_tuning import FineTuning
from undersong_common.intervals import over_seeds
from undersong_common.model_files import model_folder
from undersong_common.table import Table
from undersong_server.evaluation import panel, task_model
from undersong_server.evaluation.evaluate import joined, membership, sequences_of
from undersong_server.evaluation.panel import score

HERE = Path(__file__).parent
FIGURES = HERE / "papers.jsonl"
NOISE_SEED, FRECHET_ROWS = 1, 500
ATTACKED = 300  # members and others of a membership attack
PLACE = ("epsilon", "parties", "records")


def plan() -> dict[str, Any]:
    """The papers and their tables, as papers.toml has them."""
    return tomllib.loads((HERE / "papers.toml").read_text(encoding="utf-8"))


def rows_of(paper: Mapping[str, Any], table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table, each with every key that its table or its paper gives once for all."""
    common = {key: each[key] for each in (paper, table) for key in (*PLACE, "seeds", "setting") if key in each}
    return [{**common, **row, "set": [*paper.get("set", []), *table.get("set", [])]} for row in table["rows"]]


def key_of(name: str, row: Mapping[str, Any], seed: int) -> list[Any]:
    """Place of a cell in the file of figures."""
    return [name, row["method"], *(row.get(key) for key in ("setting", *PLACE)), row["set"], seed]


class Papers:
    """The cells of one paper's tables."""

    def __init__(self, name: str, data: Path, encoder: str, causal: Path | None) -> None:
        self._name, self._paper, self._data = name, plan()[name], data
        self._encoder, self._causal = encoder, causal
        self._benches: dict[tuple[Any, ...], Bench] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="undersong-papers-"))

    def bench(self, row: Mapping[str, Any]) -> Bench:
        """One for all cells of the same task."""
        place = (row.get("setting", ""), row.get("keywords", False), *row["set"])
        if place not in self._benches:
            if setting := place[0]:
                task = judged_settings.build(setting, self._data, self._folder / ("keywords" if place[1] else "plain"))
                # the setting's own numbers of texts and rounds would win over the preset's
                task.write_text(re.sub(r"(?m)^(samples|rounds) = .*\n", "", task.read_text(encoding="utf-8")), "utf-8")
                test, given = task.parent / "test.jsonl", row["set"]
                if place[1]:
                    _with_keywords(task, self._data, labelled=setting != "no-labels")
            else:
                task, test = HERE / "tasks" / self._paper["task"], self._data / self._paper["test"]
                given = [f"data.root={json.dumps(str(self._data.absolute()))}", *row["set"]]
            self._benches[place] = Bench(
                task, tuple(given), test, FRECHET_ROWS, insecure_noise_seed=NOISE_SEED, public_data=True
            )
        return self._benches[place]

    def measure(self, row: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The figures of one cell, plain JSON values; shares are 0 to 1."""
        begun, bench = (time.monotonic(), time.process_time()), self.bench(row)
        cell = _cell(row, seed)
        made, (test, embeddings) = bench.made(cell), bench.judged_on
        figures: dict[str, Any] = {key: made.facts.get(key) for key in ("generator_calls", "epsilon_spent")}
        if made.corpus is None:
            found = score(test.labels or (), made.predicted or ())
            figures |= found.figures() | found.averages
        else:
            figures |= self._judged(bench, made.corpus, test, embeddings, row, seed)
        if "sequences" in made.records:
            figures |= self._sequences(bench, made.records["sequences"][0][1], test, seed)
        seconds = {"seconds": time.monotonic() - begun[0], "processor": time.process_time() - begun[1]}
        return figures | {name: round(value, 1) for name, value in seconds.items()}

    def fine_tuned(self, row: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """What an encoder scores that is fine-tuned on the cell's corpus, and how far it gives records away."""
        bench, begun = self.bench(row), time.process_time()
        cell = _cell(row, seed)
        corpus, test = bench.made(cell).corpus, bench.judged_on[0]
        if corpus is None or test.labels is None:
            raise ConfigurationError(f"{row['name']}: no labelled corpus to fine-tune on", "leave out fine_tuned")
        settings = FineTuning(model_folder(self._encoder), **self._paper["fine_tuning"])
        model = task_model.fine_tune(corpus.texts, corpus.labels or (), settings, seed=seed)
        found = score(test.labels, task_model.predict(model, test.texts))
        records = bench.made(Cell(Variant.parse(PRIVATE_ONLY), None, cell.parties, cell.records, seed)).corpus
        attacks = attacked(model, records, test, seed=seed) if records is not None else {}
        figures = {"accuracy": found.accuracy, **found.averages, **attacks}
        return {"tuned": figures | {"processor": round(time.process_time() - begun, 1)}}

    def _judged(
        self, bench: Bench, corpus: Table, test: Table, real: Any, row: Mapping[str, Any], seed: int
    ) -> dict[str, Any]:
        if test.labels is None:
            found = next_token.accuracy(corpus.texts, test.texts, folder=self._causal, seed=seed)
            return {"rows": len(corpus), "next_token": found}
        embeddings, labels = bench._embed(corpus.texts), corpus.labels or ()
        judged = panel.judge(
            panel.Labelled(corpus.texts, labels, embeddings), panel.Labelled(test.texts, test.labels, real), seed=seed
        )
        figures = {"rows": len(corpus), "panel": judged.figures()["accuracy"], **judged.models["head"].averages}
        figures["accuracy"] = judged.models["head"].accuracy
        if self._name == "dpkps":
            layers = task_model.train(embeddings, labels, head="three-layer", seed=seed)
            figures["layers"] = score(test.labels, task_model.predict(layers, real)).accuracy
            place = {"method": PRIVATE_ONLY, "epsilon": None, "records": self._paper["records"]}
            records = bench.made(_cell({**row, **place}, seed)).corpus
            assert records is not None  # private-only trains on the records themselves
            client = np.random.default_rng(seed).permutation(len(records))[: max(20, len(corpus) // 2)]
            own = bench._embed([records.texts[at] for at in client])
            adapted = task_model.adapt(embeddings, labels, own, seed=seed, head="three-layer")
            figures["adapted"] = score(test.labels, task_model.predict(adapted, real)).accuracy
        return figures

    def shuffled(self, row: Mapping[str, Any], times: int) -> dict[str, list[float]]:
        """Accuracy of the three layers on the row's texts, and on its sequences, with shuffled labels."""
        bench = self.bench(row)
        made, (test, real) = bench.made(_cell(row, 0)), bench.judged_on
        assert made.corpus is not None  # of a method that writes
        drawn = _drawn(made.records["sequences"][0][1])
        own = sequences_of(test, drawn, every=True)
        sides = {"texts": (made.corpus, real, test), "sequences": (drawn, bench._embed(own.texts), own)}
        found: dict[str, list[float]] = {name: [] for name in sides}
        for seed in range(times):
            for name, (table, embeddings, truth) in sides.items():
                labels = np.random.default_rng(seed).permutation(np.array(table.labels)).tolist()
                layers = task_model.train(bench._embed(table.texts), labels, head="three-layer", seed=seed)
                found[name].append(score(truth.labels or (), task_model.predict(layers, embeddings)).accuracy)
        return found

    def _sequences(self, bench: Bench, rows: Any, test: Table, seed: int) -> dict[str, float]:
        drawn = _drawn(rows)
        model = task_model.train(bench._embed(drawn.texts), drawn.labels or (), head="three-layer", seed=seed)
        own = sequences_of(test, drawn, every=True)  # test records are turned into sequences too (B.2.2)
        return {"sequences": score(own.labels or (), task_model.predict(model, bench._embed(own.texts))).accuracy}


def _drawn(rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
    return Table(tuple(joined(terms) for _, terms in rows), tuple(label for label, _ in rows), None)


def _cell(row: Mapping[str, Any], seed: int) -> Cell:
    epsilon, parties, records = (row.get(key) for key in PLACE)
    return Cell(Variant.parse(row["method"]), epsilon, parties, records, seed)


def attacked(model: Any, records: Table, test: Table, *, seed: int = 0) -> dict[str, float]:
    """Entropy and confidence attacks (DPGA-TextSyn, appendix F) on a model of texts, as a fine-tuned encoder is.

    Balanced accuracy and area under the curve of telling ``records`` from ``test``; 0.5 is guessing.
    """
    sides = [table.take(range(min(ATTACKED, len(table)))) for table in (records, test)]
    members, others = ((table, table.texts) for table in sides)
    found = membership("corpus", model, members, others, seed=seed)
    return {f"{each.name} attack": each.accuracy.value for each in found.attacks} | {
        f"{each.name} area": each.auc.value for each in found.attacks
    }


def _with_keywords(task: Path, data: Path, *, labelled: bool) -> None:
    """Adds a generator that proposes the 77 intents of banking77, public names, as the groups' keywords."""
    intents = {row["text"]: row["label"] for row in judged_settings.json_lines(data / "banking77" / "test.jsonl")}
    found: dict[str, list[str]] = {}
    for row in judged_settings.json_lines(data / "banking_groups" / "test.jsonl"):
        name, own = intents[row["text"]].replace("_", " ").lower(), found.setdefault(row["label"], [])
        own += [] if name in own else [name]
    text = json.dumps(found) if labelled else "\n".join(f"- {name}" for own in found.values() for name in own)
    line = {"text": text, "label": next(iter(found)) if labelled else ""}
    (task.parent / "keywords.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    with task.open("a", encoding="utf-8") as out:
        out.write('\n[[generators]]\nname = "keywords"\nkind = "replay"\npath = "keywords.jsonl"\n')


# Page


def section(name: str, figures: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines of a paper's page that say what was measured here; none where nothing was."""
    paper = plan().get(name, {})
    known = by_cell(figures)
    lines: list[str] = []
    for table in paper.get("tables", []):
        rows = rows_of(paper, table)
        found = {
            row["name"]: {
                seed: known[key]
                for seed in range(row["seeds"])
                if (key := json.dumps(key_of(name, row, seed))) in known
            }
            for row in rows
        }
        if sum(bool(_values(of, table["judged"])) for of in found.values()) > 1:  # rows that can be set side by side
            lines += ["", f"### {table['name']}, measured here", "", table["about"], *_table(table, rows, found)]
            lines += _claims(table, found)
            lines += ["", said] if (said := _reversed(table, rows, found, paper.get("chance", 0.0))) else []
    return ["", "## Measured here, small", "", paper["about"].strip(), "", RULE.strip(), *lines] if lines else []


RULE = """
Each table ends with every pair of its rows that the paper's column orders and that stands the other way round here,
by however little (of several seeds: by more than the interval), whether the paper speaks of the pair or not; beside
our figure, the paper's. "k of n" counts them among all pairs that have both figures and that the paper orders: the
other n - k stand as in the paper, or are equal, or of several seeds not resolved. Where a page names chance, a pair
is left out and not counted if neither of our figures, or the lower one of the paper's, is above it. The drawing of
the test texts alone gives a difference of accuracies a standard error of up to 2.6 points at 750 test texts, 3.2 at
500 and 5 at 200; the noise and the generation of a single run come on top. For next-token accuracy it is not
estimated."""


def _table(
    table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], found: Mapping[str, Mapping[int, Any]]
) -> list[str]:
    shown = {name: key for name, key in table["columns"].items() if any(_values(found[r["name"]], key) for r in rows)}
    lines = ["", "| | paper | " + " | ".join(shown) + " | texts | seeds |", "|---" * (4 + len(shown)) + "|"]
    for row in rows:
        if of := found[row["name"]]:
            cells = [_figure(_values(of, key)) for key in shown.values()]
            texts = [one["rows"] for one in of.values() if one.get("rows")]
            cells += [f"{np.mean(texts):.0f}" if texts else "-", str(len(of))]
            lines.append(f"| {row['name']} | {row.get('paper', '-')} | {' | '.join(cells)} |")
    missing = [f"{row['name']} (the paper's: {row['paper']})" for row in rows if not found[row["name"]]]
    return [*lines, "", f"Not measured yet: {'; '.join(missing)}."] if missing else lines


def _values(of: Mapping[int, Any], key: str) -> dict[int, float]:
    """A figure, or one inside another ("tuned.accuracy"), by seed, in %."""
    values: dict[int, float] = {}
    for seed, figures in of.items():
        value: Any = figures
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None and math.isfinite(value):
            values[seed] = 100 * value
    return values


def _figure(values: Mapping[int, float]) -> str:
    """The mean; of several seeds, half the width of its 95 % interval."""
    if not values:
        return "-"
    found = over_seeds(list(values.values()))
    return f"{found.value:.1f}" + (f" ± {(found.high - found.low) / 2:.1f}" if len(values) > 1 else "")


def _claims(table: Mapping[str, Any], found: Mapping[str, Mapping[int, Any]]) -> list[str]:
    lines: list[str] = []
    for claim in table.get("claims", []):
        one, other = (_values(found.get(claim[side], {}), table["judged"]) for side in ("better", "than"))
        if len(both := sorted(one.keys() & other.keys())) < 2:
            continue
        gain = over_seeds([one[seed] - other[seed] for seed in both])
        verdict = "seen" if gain.low > 0 else "not seen" if gain.high < 0 else "open"
        said = f"* {claim['better']} above {claim['than']}: {verdict}, {gain.value:+.1f} ({gain.low:+.1f} to "
        reason = "" if verdict == "seen" else f" {claim.get('reason', '')}".rstrip()
        lines.append(f"{said}{gain.high:+.1f}).{reason}")
    if not lines:
        lines.append(
            "One seed: a difference has no interval. No claim of the paper is judged, and nothing is reproduced."
        )
    return ["", *lines] if table.get("claims") else []


def _reversed(
    table: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    found: Mapping[str, Mapping[int, Any]],
    chance: float,
) -> str:
    """The pairs of RULE, by their lower row, and how many they are of all but those at ``chance``; "" if of none."""
    column = list(table["columns"].values()).index(table["judged"])
    known: dict[str, tuple[float, dict[int, float]]] = {}
    for row in rows:
        parts = row["paper"].split("/")  # one figure for each column, or one for the judged column
        theirs = re.match(r"[\d.]+", parts[min(column, len(parts) - 1)].strip())
        if theirs and (ours := _values(found[row["name"]], table["judged"])):
            known[row["name"]] = (float(theirs[0]), ours)
    groups: list[str] = []
    pairs = found_reversed = 0
    for low, (theirs_low, one) in known.items():
        above: list[str] = []
        for high, (theirs_high, other) in known.items():
            both = sorted(one.keys() & other.keys())
            if not both or theirs_low <= theirs_high or theirs_high <= chance:
                continue
            if all(max(one[at], other[at]) <= chance for at in both):
                continue
            pairs += 1
            gain = over_seeds([one[at] - other[at] for at in both])
            if gain.value < 0 and (len(both) < 2 or gain.high < 0):
                above.append(f"{high} ({np.mean(list(other.values())):.1f}, paper {theirs_high:g})")
        found_reversed += len(above)
        if above:
            groups.append(f"{low} ({np.mean(list(one.values())):.1f}, paper {theirs_low:g}) below {'; '.join(above)}")
    if not pairs:
        return ""
    said = f"The other way round: {found_reversed} of {pairs} pairs{' above chance' if chance else ''}."
    return f"{said} {'. '.join(groups)}." if groups else said


def known(path: Path = FIGURES) -> list[dict[str, Any]]:
    """The measured cells, a line each; a fine-tuned encoder's figures are a line of their own."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def by_cell(figures: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """All figures of each cell."""
    found: dict[str, dict[str, Any]] = {}
    for one in figures:
        found.setdefault(json.dumps(one["cell"]), {}).update(one["figures"])
    return found


def main(argv: list[str] | None = None) -> int:
    """Measures what is missing, or prints the page."""
    names = list(plan())
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds the data sets")
    parser.add_argument("--papers", nargs="+", choices=names, default=names)
    parser.add_argument("--tables", nargs="+", help="beginnings of the tables' names; all by default")
    parser.add_argument("--seeds", type=int, help="of each row, instead of papers.toml's")
    parser.add_argument(
        "--encoder", default="packaged", help="folder of the encoder that is fine-tuned, such as a BERT"
    )
    parser.add_argument("--causal", type=Path, help="folder of a BERT that is trained with a causal mask")
    parser.add_argument("--out", type=Path, default=FIGURES, help="JSONL file of cells, continued where it ends")
    parser.add_argument("--quick", action="store_true", help="the first row of each table, one seed")
    parser.add_argument("--fine-tuned", action="store_true", help="the encoder's figures of the rows that ask for it")
    parser.add_argument("--shuffled", type=int, help="trainings on shuffled labels of the papers' first rows: chance")
    parser.add_argument("--page", action="store_true", help="print the sections of docs/papers/ and measure nothing")
    options = parser.parse_args(argv)
    if options.page:
        print("\n".join(line for name in options.papers for line in section(name, known(options.out))))
        return 0
    if options.data is None or not options.data.is_dir():
        raise ConfigurationError("--data is missing", "the real text is no part of this project: name its folder")
    if options.shuffled:
        for name in options.papers:
            row = rows_of(plan()[name], plan()[name]["tables"][0])[0]
            found = Papers(name, options.data, options.encoder, options.causal).shuffled(row, options.shuffled)
            for what, values in found.items():
                shares = 100 * np.array(values)
                print(f"{row['name']}, {what}: {shares.mean():.1f}, deviation {shares.std(ddof=1):.1f}")
        return 0
    done = by_cell(known(options.out))
    for name in options.papers:
        paper, papers = plan()[name], Papers(name, options.data, options.encoder, options.causal)
        tables = [t for t in paper["tables"] if not options.tables or t["name"].startswith(tuple(options.tables))]
        rows = [row for table in tables for row in rows_of(paper, table)[: 1 if options.quick else None]]
        most = 1 if options.quick else options.seeds
        for seed in range(max(row["seeds"] for row in rows) if most is None else most):
            for row in rows:
                cell = key_of(name, row, seed)
                have = done.setdefault(json.dumps(cell), {})
                if options.fine_tuned:
                    if "tuned" in have or not row.get("fine_tuned") or seed:
                        continue
                    figures = papers.fine_tuned(row, seed)
                else:
                    if "processor" in have or (most is None and seed >= row["seeds"]):
                        continue
                    figures = papers.measure(row, seed)
                have |= figures
                with options.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps({"cell": cell, "figures": figures}) + "\n")
                short = {key: round(value, 3) for key, value in figures.items() if isinstance(value, int | float)}
                print(f"{row['name']}, seed {seed}: {short}", flush=True)
    return 0


if __name__ == "__main__":
    entry.run(main)
