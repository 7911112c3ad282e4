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
from benchmarks.live_pool import POOLS, Generator, endpoint, heated, ngrams, prefixed, with_generators
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


def task_file(given: argparse.Namespace) -> Path:
    return TASKS / f"{given.dataset}.toml"


def data_root(given: argparse.Namespace) -> str:
    return f"data.root={json.dumps(str(given.data.absolute()))}"


def test_file(given: argparse.Namespace) -> Path:
    """The test set that the task names."""
    test = tasks.load(task_file(given), [data_root(given)]).evaluation.test
    assert test is not None
    return Path(given.data) / test


def some_rows(table: Table, most: int) -> Table:
    """Returns at most ``most`` rows, drawn at random."""
    return table.take(sorted(np.random.default_rng(0).permutation(len(table.texts))[:most].tolist()))


class Bench:
    """The model, real texts, and a classifier of them."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.task = tasks.load(task_file(given), [data_root(given)])
        train = read_table(given.data / given.dataset / "train.jsonl", "text", "label", labels=self.task.task.labels)
        self.train = some_rows(train, given.real)
        self.test = some_rows(read_test(test_file(given), self.task), given.real)
        # the judging classifier cannot learn a label that hardly occurs
        found = Counter(self.train.labels)
        self.labels = tuple(label for label in self.task.task.labels if found[label] >= FEWEST_OF_A_LABEL)
        self._embedder = Embedder.load(self.task.embedder.model, self.task.embedder.max_windows)
        self._embedded: dict[str, Float32] = {}
        self.real = self.embed(self.train.texts)
        self.classifier = LogisticRegression(C=10.0, max_iter=2000).fit(self.real, self.train.labels)
        self._given = given

    def embed(self, texts: Sequence[str]) -> Float32:
        """Returns unit vectors. Each text is embedded once, because every line of figures needs the test set."""
        new = [text for text in dict.fromkeys(texts) if text not in self._embedded]
        if new:
            self._embedded.update(zip(new, self._embedder.encode(new), strict=True))
        return np.stack([self._embedded[text] for text in texts])

    def written(
        self, name: str, orders: Sequence[Order], table: Generator | None = None
    ) -> tuple[list[Sample], dict[str, Any]]:
        """Has the orders written; returns the texts and a line of figures. Without ``table`` the plain model writes."""
        settings = TypeAdapter(GeneratorTable).validate_python({**(table or endpoint(self._given)), "name": "live"})
        folder = Path()
        generator = settings.build(Surroundings(tuple(self.labels), folder, self.embed, {}))
        task = self.task.task
        words = TaskWords(description=task.description, labels=self.labels, label_descriptions=task.label_descriptions)
        formats = {settings.name: settings.prompt_format(folder)}
        with tempfile.TemporaryDirectory() as kept:
            journal = Journal(Path(kept) / "journal.sqlite")
            author = Author(
                {settings.name: generator},
                Prompts(words),
                journal,
                Silent(),
                seed=self._given.seed,
                formats=formats,
            )
            started = time.monotonic()
            try:
                samples = [sample for sample in author.write(name, 0, orders) if sample is not None]
            except GenerationError as error:  # a run would stop here, because most answers are no texts
                return [], {"prompt": name, "ordered": len(orders), "stopped": error.problem}
            finally:
                seconds = time.monotonic() - started
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
        closest = [
            float((texts[row] @ self.real[[real == label for real in self.train.labels or ()]].T).max())
            for row, label in enumerate(labels)
        ]
        corpus = Table(tuple(sample.text for sample in samples), tuple(labels), None)
        report = evaluate_tables("live", corpus, EvaluationOptions(test=self.test, seed=0), embed=self.embed)
        return {
            "adherence": float(np.mean(self.classifier.predict(texts) == np.array(labels))),
            "distance": 1.0 - float(np.mean(closest)),
            "panel score": report.trained[0].scores.figures()["accuracy"],
        }

    def orders(self, kind: str, examples: Sequence[tuple[str, str]] = ()) -> list[Order]:
        """As many orders as asked for, the labels in turn, each with its own draw of examples of its label.

        A list of keywords is ordered once a label. A prompt that names a text's terms or length takes those of an
        example, and bad examples are those of other labels.
        """
        rng = np.random.default_rng(self._given.seed)
        made = []
        for number in range(len(self.labels) if kind in LIST_KINDS else self._given.texts):
            label = self.labels[number % len(self.labels)]
            own = [text for text, of in examples if of == label]
            drawn = tuple(own[i] for i in rng.permutation(len(own))[: 2 * SHOWN])
            good, terms = drawn[:SHOWN], tuple(map(_terms, drawn))
            if kind in BARE:
                made.append(Order("live", kind, label))
            elif not drawn:
                continue
            elif kind in ("paraphrase", "fill_in", "cross"):
                made.append(Order("live", kind, label, parents=drawn[: 1 + (kind == "cross")]))
            elif kind == "metadata":
                made.append(Order("live", kind, label, terms=terms[0][:1], words=len(drawn[0].split())))
            elif kind == "keyphrases":
                shown, contained = drawn[1 : 1 + SHOWN], terms[1 : 1 + SHOWN]
                made.append(Order("live", kind, label, terms=terms[0], good=shown, good_terms=contained))
            elif kind == "contrast":
                others = [text for text, of in examples if of != label]
                bad = tuple(others[i] for i in rng.permutation(len(others))[:SHOWN])
                made.append(
                    Order(*("live", kind, label, good, bad), bad_reason="mislabelled", good_for_bad=drawn[SHOWN:])
                )
            else:
                made.append(Order("live", kind, label, good=good))
        return made


def _terms(text: str) -> tuple[str, ...]:
    """Returns the longest words of a text in the order of the text."""
    words = [word.strip(".,;:!?\"'()") for word in text.split()]
    longest = sorted(set(words), key=lambda word: (-len(word), word))[:TERMS]
    return tuple(dict.fromkeys(word for word in words if word in longest))


BARE = ("zero_shot", "random", "persona", "keywords")  # kinds of prompts that show no texts


def prompts(bench: Bench, given: argparse.Namespace) -> Iterator[tuple[list[Sample], dict[str, Any]]]:
    """One line per kind of prompt (nothing shown, its own texts unselected, and real ones: a bound, nobody may show
    them), and one per generator of the mixed pool.
    """
    samples, first = bench.written("zero_shot", bench.orders("zero_shot"))
    own = [(sample.text, sample.label) for sample in samples]
    yield samples, first
    real = list(zip(bench.train.texts, bench.train.labels or (), strict=True))
    wanted = [name for name in given.prompts.split(",") if name]
    for name, kind, shown in (
        ("random", "random", ()),
        ("persona", "persona", ()),
        ("keywords", "keywords", ()),
        ("a keyword and a length", "metadata", own),
        ("keyphrases", "keyphrases", own),
        ("its own texts unselected", "examples", own),
        ("its own texts contrasted", "contrast", own),
        ("paraphrases of its own", "paraphrase", own),
        ("its own with words filled in", "fill_in", own),
        ("its own crossed", "cross", own),
        ("real texts (a bound)", "examples", real),
    ):
        if not wanted or name in wanted:
            yield bench.written(name, bench.orders(kind, shown))
    for table in (*(each for each in heated(given) if each["temperature"] != 1.0), *others(bench, given, own)):
        if not wanted or table["name"] in wanted:
            yield bench.written(table["name"], bench.orders("zero_shot"), table)


def others(bench: Bench, given: argparse.Namespace, own: Sequence[tuple[str, str]]) -> list[Generator]:
    """Returns the mixed pool's generators besides temperatures; ``own`` are the model's zero-shot texts."""
    return [*prefixed(given), *ngrams(bench.task, own, given.out / "written.jsonl")]


def pool(given: argparse.Namespace) -> list[Generator]:
    """The generators of ``--methods``."""
    if given.pool == "one":
        return [endpoint(given, given.temperature)]
    tables = heated(given)
    if given.pool == "mixed":
        bench = Bench(given)
        samples, _ = bench.written("zero_shot", bench.orders("zero_shot"))
        own = [(sample.text, sample.label) for sample in samples]
        tables += others(bench, given, own)
    return tables


def methods(given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Runs the methods at epsilon 4 with a pool of generators and one seed, and compares them with the mixture.

    Each seed has a folder and a cache of its own, so that its zero-shot texts are its own and all methods have them.
    """
    given = argparse.Namespace(**vars(given) | {"out": given.out / f"seed-{seed}"})
    if given.cache:
        given.cache = given.cache.with_stem(f"{given.cache.stem}-{seed}")
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "live.toml"
    path.write_text(with_generators(task_file(given), pool(given), variety=given.chat), encoding="utf-8")
    sizes = (f"method.samples={given.samples}", f"privacy.expected_records={given.records}")
    return compared(
        path,
        ComparisonOptions(
            test=test_file(given),
            methods=given.methods,
            epsilons=[4.0],
            parties=[5],
            records=[given.records],
            seeds=[seed],
            baseline="mixture" if "mixture" in given.methods else None,
            out=given.out,
            public_data=True,
            jobs=1,
        ),
        assignments=(data_root(given), *sizes, *given.set),
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
    given = parser.parse_args()
    if given.url or given.folder:
        measure(given)
        return
    if given.model not in MODELS:
        parser.error(f"--url, --folder, or a --model of {', '.join(MODELS)} is needed")
    given.chat, given.context = MODELS[given.model].follows, CONTEXT_TOKENS
    given.concurrency = PARALLEL
    with serving(given.model, given.models, threads=given.threads) as given.url:
        measure(given)


def measure(given: argparse.Namespace) -> None:
    """Prints a line of figures for each kind of prompt, or each method, with a model that answers."""
    if given.methods:
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            print(json.dumps(methods(given, seed), default=float), flush=True)
        return
    for samples, line in prompts(Bench(given), given):
        print(json.dumps(line, ensure_ascii=False, default=float), flush=True)
        for sample in samples[: given.show]:
            print("   ", sample.label, "|", sample.text, flush=True)


if __name__ == "__main__":
    main()
