"""What private sums about the form of texts (lengths, words, examples) are worth with a real model.

    python -m benchmarks.live_arms --data FOLDER --model qwen-1.5b --out runs/live-arms [--dataset banking10]
    python -m benchmarks.live_arms ... --records 300 1400 --seeds 3 --arms zero-shot default form
    python -m benchmarks.live_arms ... --dataset banking_groups --records 300 1000 3000 --seeds 1 \
        --arms zero-shot default lengths words-alone examples form
    python -m benchmarks.live_arms --data FOLDER --out runs/live-arms --table [--page docs/live.md] [--minus default]

The compared arms are zero-shot texts, the default method without sums about form, and with one, two and all three of
them, at epsilon 4 with 120 texts published. The arm real-examples is a bound that nobody may run: zero-shot prompts
with three records of the label in each. With it the page says how much of the way from zero-shot texts to this bound
an arm goes (its share closed). The third command gives each sum's curve over the number of records. FOLDER
holds the data sets of ``--dataset``, a task file of benchmarks/tasks. All arms and numbers of records of a seed share
the model's answers, which are kept in --out: a command that was stopped goes on without asking anything twice, and
another model, task, arm or seed adds to the same page. Readers of words and readers of what an encoder sees that no
method has (``benchmarks.outside_judge``) judge every corpus.

Three models, three seeds and the tasks banking10, banking_groups and mts_dialog take a night of two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import judged_tables, live
from benchmarks.live import TASKS, data_root, task_file
from benchmarks.live_core import interval
from benchmarks.live_model import CONTEXT_TOKENS, MODELS, PARALLEL, serving
from benchmarks.live_pool import endpoint, with_generators
from benchmarks.outside_judge import Judge
from benchmarks.shared_answers import Answers, sharing
from undersong.comparison.cell import Bench, Cell, Variant, read_test
from undersong_common.arrays import Float64
from undersong_common.files import holding, replace_file
from undersong_server.runs import task as tasks

EPSILON, PARTIES = 4.0, 5
SHOWN = ("meaning", "words", "panel")
ZERO_SHOT = "zero-shot"
REAL_EXAMPLES = "real-examples"
REAL_EXAMPLES_SHOWN = 3  # records of the label in a prompt of that arm
MOST_REAL_RECORDS = 1500  # records that its prompts draw from
TEXTS_SHOWN, WORDS_SHOWN = 10, 15
KEY = ("model", "task", "records", "arm")  # what a line of a table is about
ARMS = {
    ZERO_SHOT: "mixture",
    "default": "undersong:rounds=3+lengths=false+words=false+voted_examples=0",
    "lengths": "undersong:rounds=3+lengths=true+words=false+voted_examples=0",
    "words": "undersong:rounds=3+lengths=true+words=true+voted_examples=0",
    "form": "undersong:rounds=3+lengths=true+words=true+voted_examples=3",
    # Each of these asks one private sum about form alone, for its curve over numbers of records.
    "words-alone": "undersong:rounds=3+lengths=false+words=true+voted_examples=0",
    "examples": "undersong:rounds=3+lengths=false+words=false+voted_examples=3",
    # Orders three texts for each one that it publishes: the records choose, and no question about form is asked.
    "written-3": "undersong:rounds=3+lengths=false+words=false+voted_examples=0+written=3",
    REAL_EXAMPLES: "",  # no method
}
RECORDS_DO_NOT_MATTER = (ZERO_SHOT, REAL_EXAMPLES)
TABLE_ARMS = (ZERO_SHOT, "default", "lengths", "words", "form")


def model_table(arguments: argparse.Namespace, arm: str, records: int, seed: int, address: str) -> dict[str, Any]:
    """Returns the table of a task file for the model behind ``address``, which keeps its answers."""
    url = f"{address}/{arguments.dataset}-{seed}/{arm}-{records}/v1"
    endpoint_facts = {
        "url": url,
        "chat": MODELS[arguments.model].follows,
        "context": CONTEXT_TOKENS,
        "concurrency": PARALLEL,
    }
    return endpoint(argparse.Namespace(**vars(arguments) | endpoint_facts | {"cache": None, "folder": None}))


def bench_of(arguments: argparse.Namespace, arm: str, records: int, seed: int, address: str) -> Bench:
    """Returns the comparison's task, whose one generator is the model behind ``address``."""
    table = model_table(arguments, arm, records, seed, address)
    path = arguments.out / "tasks" / f"{arguments.dataset}-{arm}-{records}-{seed}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = with_generators(task_file(arguments), [table], variety=MODELS[arguments.model].follows)
    replace_file(path, text.encode())
    assignments = (
        data_root(arguments),
        f"method.samples={arguments.texts}",
        f"privacy.expected_records={records}",
        'privacy.unit="sample"',
    )
    task = tasks.load(path, assignments)
    test = task.locate(task.evaluation.test or "")
    return Bench(path, assignments, test, frechet_rows=arguments.texts, public_data=True)


def cells(arguments: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Yields arm, number of records and seed of each cell, seed by seed: a stopped command leaves whole seeds."""
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for records in arguments.records:
            for arm in arguments.arms:
                if arm not in RECORDS_DO_NOT_MATTER or records == arguments.records[0]:
                    yield arm, records, seed


def run(arguments: argparse.Namespace, arm: str, records: int, seed: int, address: str) -> dict[str, Any]:
    """Runs one cell; returns its corpus and what the records answered."""
    if arm == REAL_EXAMPLES:
        return run_bound(arguments, records, seed, address)
    cell = Cell(Variant.parse(ARMS[arm]), EPSILON, PARTIES, records, seed)
    start_s = time.monotonic()
    outcome = bench_of(arguments, arm, records, seed, address).made(cell)
    assert outcome.corpus is not None
    return {
        **{"task": arguments.dataset, "model": arguments.model, "arm": arm, "records": records, "seed": seed},
        **{"seconds": round(time.monotonic() - start_s), **outcome.facts},
        "noted": {name: [value for _, value in values] for name, values in outcome.records.items()},
        **{"texts": outcome.corpus.texts, "labels": outcome.corpus.labels},
    }


def run_bound(arguments: argparse.Namespace, records: int, seed: int, address: str) -> dict[str, Any]:
    """Has texts written by prompts that show real records; returns them as :func:`run` does."""
    start_s = time.monotonic()
    bench = live.Bench(argparse.Namespace(**vars(arguments), real=MOST_REAL_RECORDS, seed=seed))
    real_texts = list(zip(bench.train.texts, bench.train.labels or (), strict=True))
    orders = [replace(order, good=order.good[:REAL_EXAMPLES_SHOWN]) for order in bench.orders("examples", real_texts)]
    table = model_table(arguments, REAL_EXAMPLES, records, seed, address)
    samples, figures = bench.written(REAL_EXAMPLES, orders, table)
    return {
        **{"task": arguments.dataset, "model": arguments.model, "arm": REAL_EXAMPLES, "records": records, "seed": seed},
        **{"seconds": round(time.monotonic() - start_s), "generator_calls": sum(figures["answers"].values())},
        **{"noted": {}, "texts": [sample.text for sample in samples], "labels": [sample.label for sample in samples]},
    }


def collect(arguments: argparse.Namespace, upstream: str) -> None:
    """Runs every cell whose file is not in --out."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    answers = Answers(arguments.out / f"answers-{arguments.model}.sqlite", upstream)
    with sharing(answers) as address:
        for arm, records, seed in cells(arguments):
            path = arguments.out / arguments.model / arguments.dataset / f"{arm}-{records}-{seed}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with holding(path.with_suffix(".lock"), BlockingIOError()):
                    if not path.exists():
                        answers.begin(f"{arm}-{records}")
                        figures = run(arguments, arm, records, seed, address)
                        replace_file(path, json.dumps(figures, default=str, ensure_ascii=False).encode())
                        print(path, figures["seconds"], len(figures["texts"]), flush=True)
            except BlockingIOError:  # another command computes this cell
                continue


def read_cells(out_folder: Path) -> list[dict[str, Any]]:
    """Returns all cells of a folder, in the order of models, tasks, records, arms and seeds."""
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in out_folder.glob("*/*/*-*-*.json")]
    order = list(ARMS)
    return sorted(
        cells, key=lambda each: (each["model"], each["task"], each["records"], order.index(each["arm"]), each["seed"])
    )


def judge_of(arguments: argparse.Namespace, dataset: str) -> Judge:
    """Returns the panel on the test texts of a task file of benchmarks/tasks."""
    task = tasks.load(TASKS / f"{dataset}.toml", [data_root(arguments)])
    test = read_test(task.locate(task.evaluation.test or ""), task)
    return Judge(test.texts, test.labels or (), arguments.models)


def with_panel(right: Mapping[str, Sequence[float]]) -> dict[str, Float64]:
    """Adds the whole panel's answers, as their mean, to those of its two halves."""
    halves = {half: np.array(row) for half, row in right.items()}
    return halves | {"panel": np.mean(list(halves.values()), axis=0)}


def judge(arguments: argparse.Namespace, cells: Sequence[dict[str, Any]]) -> None:
    """Adds to each cell how often each half of the panel labels each real text rightly; what was judged is kept."""
    judges: dict[str, Judge] = {}
    for cell in cells:
        name = "{arm}-{records}-{seed}.judged".format(**cell)
        path = arguments.out / cell["model"] / cell["task"] / name
        if not path.exists():
            if cell["task"] not in judges:
                judges[cell["task"]] = judge_of(arguments, cell["task"])
            replace_file(path, json.dumps(judges[cell["task"]].right(cell["texts"], cell["labels"])).encode())
        cell["right"] = with_panel(json.loads(path.read_text(encoding="utf-8")))


def _key_of(cell: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in KEY)


def _pair(cell: dict[str, Any], base_arm: str) -> tuple[Any, ...]:
    """Returns the key that a cell shares with the cell of ``base_arm`` with which it is compared."""
    return cell["model"], cell["task"], cell["seed"], base_arm == ZERO_SHOT or cell["records"]


def table_by_arm(cells: Sequence[dict[str, Any]], base_arm: str = ZERO_SHOT) -> str:
    """Returns a table line for each model, task, number of records and arm, compared by seed with ``base_arm``."""
    halves = (*SHOWN, *(f"{half} - {base_arm}" for half in SHOWN))
    heads = (*KEY, "seeds", "texts", *halves, "words a text", "calls")
    lines = []
    base_cells = {_pair(cell, base_arm): cell for cell in cells if cell["arm"] == base_arm}
    for key, group in groupby(cells, key=_key_of):
        group_cells = list(group)
        pairs = [(cell, base_cells.get(_pair(cell, base_arm))) for cell in group_cells]
        shown = [f"{100 * np.mean([cell['right'][half].mean() for cell in group_cells]):.1f}" for half in SHOWN]
        for half in SHOWN:
            differences = [ours["right"][half] - other["right"][half] for ours, other in pairs if other]
            shown.append("" if key[-1] == base_arm else difference(differences))
        words = np.mean([len(text.split()) for cell in group_cells for text in cell["texts"]])
        facts = (
            len(group_cells),
            sum(len(cell["texts"]) for cell in group_cells) // len(group_cells),
            *shown,
            f"{words:.1f}",
        )
        calls = np.mean([cell["generator_calls"] for cell in group_cells])
        lines.append([str(each) for each in (*key, *facts, round(calls))])
    return judged_tables.table(heads, lines)


def shares_closed(cells: Sequence[dict[str, Any]]) -> str:
    """Returns a table with a line for each arm that has both ends: its share of the way from zero-shot to the bound.

    A share is the ratio of two means over the seeds that have all three cells; "-" where the bound is not above.
    """
    ends = {(_pair(cell, ZERO_SHOT), cell["arm"]): cell for cell in cells if cell["arm"] in RECORDS_DO_NOT_MATTER}
    lines = []
    compared_cells = [cell for cell in cells if cell["arm"] not in RECORDS_DO_NOT_MATTER]
    for key, group in groupby(compared_cells, key=_key_of):
        triples = [
            [end["right"], cell["right"], bound["right"]]
            for cell in group
            if (end := ends.get((_pair(cell, ZERO_SHOT), ZERO_SHOT)))
            and (bound := ends.get((_pair(cell, ZERO_SHOT), REAL_EXAMPLES)))
        ]
        if not triples:
            continue
        figures = []
        for half in SHOWN:
            low, ours, high = (
                100 * np.mean([right[half].mean() for right in rights]) for rights in zip(*triples, strict=True)
            )
            figures += [f"{high:.1f}", f"{(ours - low) / (high - low):.0%}" if high > low else "-"]
        lines.append([*map(str, key), str(len(triples)), *figures])
    heads = [head for half in SHOWN for head in (f"{half} of the bound", f"{half} closed")]
    return judged_tables.table((*KEY, "seeds", *heads), lines) if lines else ""


def difference(rows: Sequence[Float64]) -> str:
    """Returns the mean difference in points with its 95 % interval over seeds; of one seed, over real texts."""
    if not rows:
        return "-"
    if len(rows) > 1:
        return interval([100.0 * float(row.mean()) for row in rows])
    mean, error = 100.0 * float(rows[0].mean()), 196.0 * float(rows[0].std()) / math.sqrt(len(rows[0]))
    return f"{mean:+.1f} ({mean - error:+.1f} to {mean + error:+.1f})"


def side_by_side(cells: Sequence[dict[str, Any]], seed: int) -> str:
    """Returns tables with ten texts of every arm side by side, of the same labels, for each model, task and records."""
    parts = []
    base_cells = {
        (cell["model"], cell["task"]): cell for cell in cells if (cell["arm"], cell["seed"]) == (ZERO_SHOT, seed)
    }
    others = [cell for cell in cells if cell["seed"] == seed and cell["arm"] != ZERO_SHOT]
    for key, group in groupby(others, key=lambda cell: (cell["model"], cell["task"], cell["records"])):
        arm_cells = [*([base_cells[key[:2]]] if key[:2] in base_cells else []), *group]
        labels = sorted({label for cell in arm_cells for label in cell["labels"]})
        rows = []
        for number in range(TEXTS_SHOWN):
            label = labels[number % len(labels)]
            rows.append([label, *(_text(cell, label, number // len(labels)) for cell in arm_cells)])
        shown = judged_tables.table(["label", *(cell["arm"] for cell in arm_cells)], rows)
        parts.append(f"\n{key[0]}, {key[1]}, {key[2]} records:\n\n{shown}")
    return "\n".join(parts)


def _text(cell: dict[str, Any], label: str, number: int) -> str:
    label_texts = [text for text, text_label in zip(cell["texts"], cell["labels"], strict=True) if text_label == label]
    words = label_texts[number].split() if number < len(label_texts) else []
    return " ".join([*words[:WORDS_SHOWN], *["..."] * (len(words) > WORDS_SHOWN)]).replace("|", "\\|")


def write_page(arguments: argparse.Namespace) -> None:
    """Prints the table and writes it into --out with ten texts of every arm; --page gets the texts of one task."""
    all_cells = read_cells(arguments.out)
    judge(arguments, all_cells)
    arms_table, closed_table = table_by_arm(all_cells, arguments.minus), shares_closed(all_cells)
    print(arms_table, closed_table, sep="\n\n")
    parts = (arms_table, closed_table, side_by_side(all_cells, arguments.first_seed).strip())
    replace_file(arguments.out / "arms.md", "\n\n".join(part for part in parts if part).encode())
    if arguments.page:
        page_key = (arguments.model, arguments.dataset, arguments.records[0])
        shown = [cell for cell in all_cells if (cell["model"], cell["task"], cell["records"]) == page_key]
        judged_tables.fill_marks(
            arguments.page, {"arms": arms_table, "texts": side_by_side(shown, arguments.first_seed).strip()}
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="qwen-1.5b")
    parser.add_argument("--models", type=Path, default=Path("runs/models"), help="keeps what was fetched")
    parser.add_argument("--url", help="a server of the model that runs already")
    parser.add_argument("--threads", type=int, default=1, help="of a model that is served")
    parser.add_argument("--dataset", default="banking10", help="a task file of benchmarks/tasks")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(TABLE_ARMS))
    parser.add_argument("--records", nargs="+", type=int, default=[300, 1400])
    parser.add_argument("--texts", type=int, default=120)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="only writes the page of the cells that are there")
    parser.add_argument(
        "--page", type=Path, help="a page with marks, for the table and the texts of --model and --dataset"
    )
    parser.add_argument("--minus", choices=ARMS, default=ZERO_SHOT, help="the arm that others are compared with")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.table:
        write_page(arguments)
        return
    served = (
        nullcontext(arguments.url)
        if arguments.url
        else serving(arguments.model, arguments.models, threads=arguments.threads)
    )
    with served as upstream:
        collect(arguments, upstream)
    write_page(arguments)


if __name__ == "__main__":
    main()
