"""How good a real model's texts are for each kind of prompt, and whether methods that choose examples beat the mixture.

    python -m benchmarks.live --data FOLDER --model qwen-1.5b | qwen-0.5b | gemma-270m [--texts 200]
    python -m benchmarks.live --data FOLDER --url http://127.0.0.1:8080/v1 [--model NAME] [--chat]
    python -m benchmarks.live ... --dataset mts_dialog --prompts "real texts (a bound)" --show 5
    python -m benchmarks.live ... --methods mixture wasp augpe undersong --samples 600 --seeds 3 --cache live.sqlite
    python -m benchmarks.live ... --methods mixture wasp undersong --pool mixed
    python -m benchmarks.live --data FOLDER --folder MODEL --methods mixture undersong tuned:prompts=10+texts=20

The three models above are fetched, checked and served by ``benchmarks.live_model``. With --url, the model answers
behind an OpenAI-compatible server that runs already, in an environment of its own: for instance llama.cpp's,
`llama-server -m gemma-3-270m.gguf -t 1 -c 16384 --parallel 16` (a base model of 270 million weights writes 50 to 60
tokens a second on one core). With --folder the model is that folder of transformers instead, in this process, which
`tuned` and `vector` need. FOLDER holds banking10/train.jsonl and test.jsonl.

Per kind of prompt, and per generator of the mixed pool: texts kept, answers by their kind (refused, cut, duplicate,
...), label adherence (by a classifier of real texts), distance to the nearest real text of the label, panel
score of the texts, tokens a second. `--methods` runs methods instead: with the model as the one generator, with three
temperatures of it (`--pool temperatures`), or (`--pool mixed`) with these, the model behind prefixes of different
quality, and n-gram models.
A base model then gets no number in its prompts, and with `--cache` all methods and seeds have the same texts wherever
they order the same: the zero-shot ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from sklearn.linear_model import LogisticRegression

from benchmarks.live_model import CONTEXT_TOKENS, MODELS, PARALLEL, serving
from benchmarks.live_pool import POOLS, Generator, endpoint, ngrams, prefix_tables, temperature_tables, with_generators
from undersong.comparison.cell import read_test
from undersong.comparison.grid import compared
from undersong.run.options import ComparisonOptions
from undersong_common.arrays import Float32
from undersong_common.errors import GenerationError
from undersong_common.models.embedding import Embedder
from undersong_common.text.table import Table, read_table
from undersong_server.database.journal import Journal
from undersong_server.evaluation.evaluate import evaluate_tables
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.generators.author import Author
from undersong_server.generators.interface import Surroundings
from undersong_server.generators.kinds import GeneratorTable
from undersong_server.generators.orders import Order
from undersong_server.pool import Sample
from undersong_server.progress import Silent
from undersong_server.prompts.rendering import LIST_KINDS, Prompts, TaskWords
from undersong_server.runs import task as tasks

TASKS = Path(__file__).parent / "tasks"
SHOWN = 4  # examples in a prompt
FEWEST_OF_A_LABEL = 50
TERMS = 3  # terms in a prompt that asks for terms


def task_file(arguments: argparse.Namespace) -> Path:
    return TASKS / f"{arguments.dataset}.toml"


def data_root(arguments: argparse.Namespace) -> str:
    return f"data.root={json.dumps(str(arguments.data.absolute()))}"


def test_file(arguments: argparse.Namespace) -> Path:
    """The test set that the task names."""
    test = tasks.load(task_file(arguments), [data_root(arguments)]).evaluation.test
    assert test is not None
    return Path(arguments.data) / test


def some_rows(table: Table, most: int) -> Table:
    """Returns at most ``most`` rows, drawn at random."""
    return table.take(sorted(np.random.default_rng(0).permutation(len(table.texts))[:most].tolist()))


class Bench:
    """The model, real texts, and a classifier of them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.task = tasks.load(task_file(arguments), [data_root(arguments)])
        train = read_table(
            arguments.data / arguments.dataset / "train.jsonl", "text", "label", labels=self.task.task.labels
        )
        self.train = some_rows(train, arguments.real)
        self.test = some_rows(read_test(test_file(arguments), self.task), arguments.real)
        # the judging classifier cannot learn a label that hardly occurs
        label_counts = Counter(self.train.labels)
        self.labels = tuple(label for label in self.task.task.labels if label_counts[label] >= FEWEST_OF_A_LABEL)
        self._embedder = Embedder.load(self.task.embedder.model, self.task.embedder.max_windows)
        self._embedded: dict[str, Float32] = {}
        self.real = self.embed(self.train.texts)
        self.classifier = LogisticRegression(C=10.0, max_iter=2000).fit(self.real, self.train.labels)
        self._given = arguments

    def embed(self, texts: Sequence[str]) -> Float32:
        """Returns unit vectors. Each text is embedded once, because every line of figures needs the test set."""
        new_texts = [text for text in dict.fromkeys(texts) if text not in self._embedded]
        if new_texts:
            self._embedded.update(zip(new_texts, self._embedder.encode(new_texts), strict=True))
        return np.stack([self._embedded[text] for text in texts])

    def written(
        self, name: str, orders: Sequence[Order], table: Generator | None = None
    ) -> tuple[list[Sample], dict[str, Any]]:
        """Has the orders written; returns the texts and a line of figures. Without ``table`` the plain model writes."""
        settings = TypeAdapter(GeneratorTable).validate_python({**(table or endpoint(self._given)), "name": "live"})
        folder = Path()
        generator = settings.build(Surroundings(tuple(self.labels), folder, self.embed, {}))
        task = self.task.task
        task_words = TaskWords(
            description=task.description, labels=self.labels, label_descriptions=task.label_descriptions
        )
        formats = {settings.name: settings.prompt_format(folder)}
        with tempfile.TemporaryDirectory() as journal_folder:
            journal = Journal(Path(journal_folder) / "journal.sqlite")
            author = Author(
                {settings.name: generator},
                Prompts(task_words),
                journal,
                Silent(),
                seed=self._given.seed,
                formats=formats,
            )
            start_s = time.monotonic()
            try:
                samples = [sample for sample in author.write(name, 0, orders) if sample is not None]
            except GenerationError as error:  # a run would stop here, because most answers are no texts
                return [], {"prompt": name, "ordered": len(orders), "stopped": error.problem}
            finally:
                seconds = time.monotonic() - start_s
                journal.close()
        usage = author.usage[settings.name]
        figures = {
            "prompt": name,
            "ordered": len(orders),
            "kept": len(samples),
            "answers": dict(Counter(usage.faults) + Counter(kept=usage.kept)),
            "cut": usage.cut,
            "tokens a second": usage.completion_tokens / seconds,
            **({} if any(order.kind in LIST_KINDS for order in orders) else self.judged(samples)),
        }
        return samples, figures

    def judged(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Returns label adherence, distance and panel score of texts."""
        if len({sample.label for sample in samples}) < 2:
            return {}
        labels = [sample.label for sample in samples]
        texts = self.embed([sample.text for sample in samples])
        nearest_similarities = [
            float((texts[row] @ self.real[[real == label for real in self.train.labels or ()]].T).max())
            for row, label in enumerate(labels)
        ]
        corpus = Table(tuple(sample.text for sample in samples), tuple(labels), None)
        report = evaluate_tables("live", corpus, EvaluationOptions(test=self.test, seed=0), embed=self.embed)
        return {
            "adherence": float(np.mean(self.classifier.predict(texts) == np.array(labels))),
            "distance": 1.0 - float(np.mean(nearest_similarities)),
            "panel score": report.trained[0].scores.figures()["accuracy"],
        }

    def orders(self, kind: str, examples: Sequence[tuple[str, str]] = ()) -> list[Order]:
        """As many orders as asked for, the labels in turn, each with its own draw of examples of its label.

        A list of keywords is ordered once a label. A prompt that names a text's terms or length takes those of an
        example, and bad examples are those of other labels.
        """
        rng = np.random.default_rng(self._given.seed)
        prompt_orders = []
        for number in range(len(self.labels) if kind in LIST_KINDS else self._given.texts):
            label = self.labels[number % len(self.labels)]
            label_texts = [text for text, text_label in examples if text_label == label]
            drawn_texts = tuple(label_texts[i] for i in rng.permutation(len(label_texts))[: 2 * SHOWN])
            good, terms = drawn_texts[:SHOWN], tuple(map(_terms, drawn_texts))
            if kind in BARE:
                prompt_orders.append(Order("live", kind, label))
            elif not drawn_texts:
                continue
            elif kind in ("paraphrase", "fill_in", "cross"):
                prompt_orders.append(Order("live", kind, label, parents=drawn_texts[: 1 + (kind == "cross")]))
            elif kind == "metadata":
                prompt_orders.append(Order("live", kind, label, terms=terms[0][:1], words=len(drawn_texts[0].split())))
            elif kind == "keyphrases":
                shown, contained_terms = drawn_texts[1 : 1 + SHOWN], terms[1 : 1 + SHOWN]
                prompt_orders.append(Order("live", kind, label, terms=terms[0], good=shown, good_terms=contained_terms))
            elif kind == "contrast":
                other_texts = [text for text, text_label in examples if text_label != label]
                bad = tuple(other_texts[i] for i in rng.permutation(len(other_texts))[:SHOWN])
                prompt_orders.append(
                    Order(*("live", kind, label, good, bad), bad_reason="mislabelled", good_for_bad=drawn_texts[SHOWN:])
                )
            else:
                prompt_orders.append(Order("live", kind, label, good=good))
        return prompt_orders


def _terms(text: str) -> tuple[str, ...]:
    """Returns the longest words of a text in the order of the text."""
    words = [word.strip(".,;:!?\"'()") for word in text.split()]
    longest = sorted(set(words), key=lambda word: (-len(word), word))[:TERMS]
    return tuple(dict.fromkeys(word for word in words if word in longest))


BARE = ("zero_shot", "random", "persona", "keywords")  # kinds of prompts that show no texts


def prompts(bench: Bench, arguments: argparse.Namespace) -> Iterator[tuple[list[Sample], dict[str, Any]]]:
    """One line per kind of prompt (nothing shown, its own texts unselected, and real ones: a bound, nobody may show
    them), and one per generator of the mixed pool.
    """
    samples, first = bench.written("zero_shot", bench.orders("zero_shot"))
    own_texts = [(sample.text, sample.label) for sample in samples]
    yield samples, first
    real_texts = list(zip(bench.train.texts, bench.train.labels or (), strict=True))
    prompt_names = [name for name in arguments.prompts.split(",") if name]
    for name, kind, shown in (
        ("random", "random", ()),
        ("persona", "persona", ()),
        ("keywords", "keywords", ()),
        ("a keyword and a length", "metadata", own_texts),
        ("keyphrases", "keyphrases", own_texts),
        ("its own texts unselected", "examples", own_texts),
        ("its own texts contrasted", "contrast", own_texts),
        ("paraphrases of its own", "paraphrase", own_texts),
        ("its own with words filled in", "fill_in", own_texts),
        ("its own crossed", "cross", own_texts),
        ("real texts (a bound)", "examples", real_texts),
    ):
        if not prompt_names or name in prompt_names:
            yield bench.written(name, bench.orders(kind, shown))
    for table in (
        *(each for each in temperature_tables(arguments) if each["temperature"] != 1.0),
        *others(bench, arguments, own_texts),
    ):
        if not prompt_names or table["name"] in prompt_names:
            yield bench.written(table["name"], bench.orders("zero_shot"), table)


def others(bench: Bench, arguments: argparse.Namespace, own: Sequence[tuple[str, str]]) -> list[Generator]:
    """Returns the mixed pool's generators besides temperatures; ``own`` are the model's zero-shot texts."""
    return [*prefix_tables(arguments), *ngrams(bench.task, own, arguments.out / "written.jsonl")]


def pool(arguments: argparse.Namespace) -> list[Generator]:
    """The generators of ``--methods``."""
    if arguments.pool == "one":
        return [endpoint(arguments, arguments.temperature)]
    tables = temperature_tables(arguments)
    if arguments.pool == "mixed":
        bench = Bench(arguments)
        samples, _ = bench.written("zero_shot", bench.orders("zero_shot"))
        own_texts = [(sample.text, sample.label) for sample in samples]
        tables += others(bench, arguments, own_texts)
    return tables


def methods(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Runs the methods at epsilon 4 with a pool of generators and one seed, and compares them with the mixture.

    Each seed has a folder and a cache of its own, so that its zero-shot texts are its own and all methods have them.
    """
    arguments = argparse.Namespace(**vars(arguments) | {"out": arguments.out / f"seed-{seed}"})
    if arguments.cache:
        arguments.cache = arguments.cache.with_stem(f"{arguments.cache.stem}-{seed}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "live.toml"
    path.write_text(with_generators(task_file(arguments), pool(arguments), variety=arguments.chat), encoding="utf-8")
    sizes = (f"method.samples={arguments.samples}", f"privacy.expected_records={arguments.records}")
    return compared(
        path,
        ComparisonOptions(
            test=test_file(arguments),
            methods=arguments.methods,
            epsilons=[4.0],
            parties=[5],
            records=[arguments.records],
            seeds=[seed],
            baseline="mixture" if "mixture" in arguments.methods else None,
            out=arguments.out,
            public_data=True,
            jobs=1,
        ),
        assignments=(data_root(arguments), *sizes, *arguments.set),
        command="python -m benchmarks.live",
        progress=Silent(),
        name="live",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url")
    where.add_argument("--folder", type=Path, help="a model's folder, with --dtype and --top-p, in place of a server")
    parser.add_argument("--dtype", default="auto", help="of --folder")
    parser.add_argument("--top-p", type=float, default=1.0, help="of --folder")
    parser.add_argument("--model", default="model", help="its name at --url, or one to fetch and serve")
    parser.add_argument("--models", type=Path, default=Path("runs/models"), help="keeps what was fetched")
    parser.add_argument("--threads", type=int, default=1, help="of a model that is served")
    parser.add_argument("--chat", action="store_true", help="the model follows instructions; else it continues texts")
    parser.add_argument("--dataset", default="banking10", help="a task file of this folder")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--real", type=int, default=1500, help="most rows of real texts that texts are judged by")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the pool of one")
    parser.add_argument("--max-tokens", type=int, default=60)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", default="", help="names of lines, with commas; zero_shot is always asked")
    parser.add_argument("--show", type=int, default=0, help="texts of each kind of prompt")
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--pool", choices=POOLS, default=POOLS[0], help="generators of --methods")
    parser.add_argument("--samples", type=int, default=600, help="of --methods")
    parser.add_argument("--seeds", type=int, default=3, help="of --methods")
    parser.add_argument("--first-seed", type=int, default=0, help="of --methods")
    parser.add_argument("--records", type=int, default=300, help="of --methods, over five parties")
    parser.add_argument("--set", action="append", default=[], help="SECTION.KEY=VALUE of --methods")
    parser.add_argument("--cache", type=Path, help="a file that keeps answers across runs")
    parser.add_argument("--out", type=Path, default=Path("runs/live"))
    arguments = parser.parse_args()
    if arguments.url or arguments.folder:
        measure(arguments)
        return
    if arguments.model not in MODELS:
        parser.error(f"--url, --folder, or a --model of {', '.join(MODELS)} is needed")
    arguments.chat, arguments.context = MODELS[arguments.model].follows, CONTEXT_TOKENS
    arguments.concurrency = PARALLEL
    with serving(arguments.model, arguments.models, threads=arguments.threads) as arguments.url:
        measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    """Prints a line of figures for each kind of prompt, or each method, with a model that answers."""
    if arguments.methods:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            print(json.dumps(methods(arguments, seed), default=float), flush=True)
        return
    for samples, line in prompts(Bench(arguments), arguments):
        print(json.dumps(line, ensure_ascii=False, default=float), flush=True)
        for sample in samples[: arguments.show]:
            print("   ", sample.label, "|", sample.text, flush=True)


if __name__ == "__main__":
    main()
