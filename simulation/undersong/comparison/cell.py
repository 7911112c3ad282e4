"""One cell of a comparison: one real simulation, and what the panel's task models learn from its corpus."""

import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from undersong.comparison import reference_methods, references
from undersong.run.options import SimulationOptions
from undersong.run.records import check_units, dealt
from undersong.run.simulation import Embeddings, Host, LayeredCache, simulate
from undersong.run.workspace import Workspace
from undersong_common.arrays import Float32
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.models import embedders
from undersong_common.models.embedding import CachedEmbedder, Embedder, EmbeddingCache, MemoryCache, PublicFileCache
from undersong_common.program.library_threads import one_library_thread
from undersong_common.text import overlap
from undersong_common.text.table import Table, concatenate, read_table
from undersong_server import methods
from undersong_server.defaults import public_cache_path
from undersong_server.evaluation import metrics, panel
from undersong_server.evaluation.metrics import corpus_label_errors
from undersong_server.evaluation.panel import score
from undersong_server.generators.interface import Surroundings
from undersong_server.operations.tasks import read_private_files, task_faults
from undersong_server.progress import Silent
from undersong_server.report import usefulness
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import cap_faults, cap_warnings, plan_run, require_packages

PRIVATE_ONLY = "private-only"  # the task model trained on the private records themselves: no privacy, no generator


@dataclass(frozen=True)
class Variant:
    """A column of the comparison: a method with the options that differ from the task's.

    Attributes:
        name: as it was asked for and is shown, such as "wasp", "wasp:votes=1+rounds=3", "augpe@good", "private-only".
        method: the method's name; "" for ``private-only`` and where there is ``training``.
        options: [method] keys as written in TOML.
        generator: name of the only generator that takes part, or "" for all.
        training: options of a centralised reference of another package; None for a method.
    """

    name: str
    method: str
    options: tuple[tuple[str, str], ...] = ()
    generator: str = ""
    training: references.Reference | None = None

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """Reads ``METHOD[@GENERATOR][:key=value+key=value]``, a reference's likewise, or ``private-only``."""
        if text == PRIVATE_ONLY:
            return cls(text, "")
        if reference_training := references.parse(text):
            return cls(text, "", training=reference_training)
        method_text, _, option_text = text.partition(":")
        method, _, generator = method_text.partition("@")
        reference_methods.offer(method)
        methods.load(method)  # It raises for an unknown name here, and not only in a worker process.
        option_pairs = [option.partition("=") for option in option_text.split("+") if option]
        wrong_options = [key for key, equals, value in option_pairs if not (key and equals and value)]
        if wrong_options:
            raise ConfigurationError(
                f"--methods {text}: {wrong_options[0]!r} is not key=value",
                "write METHOD:key=value+key=value",
                code="no-option",
            )
        return cls(text, method, tuple((key, value) for key, _, value in option_pairs), generator)


@dataclass(frozen=True)
class Cell:
    """One point of the grid. ``epsilon``, ``parties`` and ``records`` are None where the variant does not depend on it.

    Attributes:
        records: private records in all, M; None takes the whole file.
        seed: seed of the records, their division, the prompts, the draws and the task model.
    """

    variant: Variant
    epsilon: float | None
    parties: int | None
    records: int | None
    seed: int

    @property
    def name(self) -> str:
        """Name of the cell's file. Cells that differ have different names."""
        name_parts = [self.variant.name, f"{self.epsilon}", f"{self.parties}", f"{self.records}", f"{self.seed}"]
        readable_name = "".join(c if c.isalnum() or c in "-.=" else "_" for c in "_".join(name_parts))
        return f"{readable_name[:120]}-{hashlib.sha256(json.dumps(name_parts).encode()).hexdigest()[:8]}"

    def described(self) -> dict[str, Any]:
        """The cell's values in the grid (method, epsilon, parties, records, seed) as plain JSON values."""
        return {
            "method": self.variant.name,
            "epsilon": None if self.epsilon is None else f"{self.epsilon:g}",
            "parties": self.parties,
            "records": self.records,
            "seed": self.seed,
        }


@dataclass
class Bench:
    """State that the cells of one worker share: the loaded embedder, and caches.

    Private embeddings are kept in memory only: they reach no disk, unless ``public_data`` says that nobody minds.

    Attributes:
        test: the test file, labelled where the task has labels; ``test_table`` is what it holds, where that has been
            read already.
        frechet_rows: number of texts of each side in Frechet distance and the measures beside it.
        public_data: True if the "private" records are public ones, so that their embeddings may be kept on this disk,
            where every process and every later command finds them.
    """

    task_file: Path
    assignments: tuple[str, ...]
    test: Path
    frechet_rows: int
    insecure_noise_seed: int | None = None
    test_table: Table | None = field(default=None, repr=False)
    public_data: bool = False
    _checked: set[str | tuple[int | None, int | None]] = field(default_factory=set, repr=False)

    def task(self, cell: Cell) -> tasks.Task:
        """Returns the task of the task file with the cell's values (epsilon, parties, method, ...) in it."""
        task_values = {
            "method.name": json.dumps(cell.variant.method) if cell.variant.method else None,
            **{f"method.{key}": value for key, value in cell.variant.options},
            "privacy.epsilon": cell.epsilon,
            "federation.parties": cell.parties,
            "data.records": cell.records,
        }
        cell_assignments = [f"{key}={value}" for key, value in task_values.items() if value is not None]
        reference_methods.offer(cell.variant.method)  # A worker has parsed no variant.
        task = tasks.load(self.task_file, [*self.assignments, *cell_assignments])
        if not cell.variant.generator:
            return task
        cell_generators = tuple(generator for generator in task.generators if generator.name == cell.variant.generator)
        if not cell_generators:
            raise ConfigurationError(
                f"--methods {cell.variant.name}: the task has no generator {cell.variant.generator!r}",
                f"name one of {', '.join(generator.name for generator in task.generators)}",
                code="no-generator",
            )
        return task.model_copy(update={"generators": cell_generators})

    @cached_property
    def _own_task(self) -> tasks.Task:
        return tasks.load(self.task_file, self.assignments)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that the cells of a comparison share, so that a folder never mixes two comparisons."""
        bench_facts = {
            **self._own_task.model_dump(mode="json", exclude={"output", "method", "folder"}),
            "method": self._own_task.method.model_dump(mode="json"),
            "test": hashlib.sha256(self.test.read_bytes()).hexdigest(),
            "frechet_rows": self.frechet_rows,
            "panel": panel.settings(),
            "insecure_noise_seed": self.insecure_noise_seed,
        }
        return hashlib.sha256(json.dumps(bench_facts, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def embedder(self) -> Embedder:
        embedder_section = self._own_task.embedder
        return embedders.check(embedder_section.model, embedder_section.max_windows)

    @cached_property
    def public(self) -> EmbeddingCache:
        """Cache of the embeddings of public texts, kept on this disk."""
        return LayeredCache([PublicFileCache(public_cache_path(os.environ))], writes=True)

    @cached_property
    def private(self) -> EmbeddingCache:
        """Cache of the embeddings of private texts, in memory unless they are public data."""
        if self.public_data:
            return self.public
        return MemoryCache()

    @cached_property
    def judged_on(self) -> tuple[Table, Float32]:
        """The test set and its embeddings, float32 [n, d]."""
        judged_table = self.test_table or read_test(self.test, self._own_task)
        return judged_table, self._embed_public(judged_table.texts)

    @cached_property
    def _private_files(self) -> Sequence[Table]:
        """The private files. All cells deal the same ones."""
        return read_private_files(self._own_task)

    def _embed_public(self, texts: Sequence[str]) -> Float32:
        return CachedEmbedder(self.embedder, self.public).encode(texts)

    def _embed_private(self, texts: Sequence[str]) -> Float32:
        return CachedEmbedder(self.embedder, self.private).encode(texts)

    def check(self, cell: Cell) -> tuple[str, ...]:
        """Raises ConfigurationError if the cell cannot run; returns remarks on its task, a sentence each.

        Reads every file that the cell reads and builds its generators, but asks and embeds nothing.
        """
        task = self.task(cell)
        cell_remarks: tuple[str, ...] = ()
        if cell.variant.training is not None:
            cell.variant.training.check(task)
        if cell.variant.method:
            run_plan = plan_run(task)
            ConfigurationError.raise_together(cap_faults(run_plan))
            require_packages(run_plan)
            cell_remarks = (*task.remarks, *cap_warnings(run_plan))
        federation_size, generator = (cell.parties, cell.records), cell.variant.generator
        if federation_size not in self._checked and (cell.epsilon is not None or not cell.variant.method):
            check_units(task.privacy.promise(), dealt(task, self._private_files, cell.seed))
            self._checked.add(federation_size)
        if generator not in self._checked:
            for problem, remedy in task_faults(task, environment=os.environ):
                raise ConfigurationError(problem, remedy)
            generator_surroundings = Surroundings(task.task.labels, task.locate(""), _embed_nothing, os.environ)
            for settings in task.generators:
                settings.build(generator_surroundings)
            self._checked.add(generator)
        return cell_remarks

    def made(self, cell: Cell) -> references.ReferenceResult:
        """Runs the cell's method or reference. Returns its corpus or predictions; of ``private-only``, the records."""
        task, variant, seed = self.task(cell), cell.variant, cell.seed
        if variant.method:
            return self._run_simulation(task, seed)
        record_table = concatenate(list(dealt(task, self._private_files, seed).values()))
        if variant.training is None:
            return references.ReferenceResult(record_table)
        return variant.training.train(
            task, record_table, self.judged_on[0], embed=self._embed_private, seed=seed,
            insecure_noise_seed=self._noise_seed(seed),
        )  # fmt: skip

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Runs the cell; returns its figures as plain JSON values, with None for one that cannot be computed."""
        started_at_s = time.monotonic()
        (test, test_embeddings), variant, seed = self.judged_on, cell.variant, cell.seed
        cell_result, simulated_at_s = self.made(cell), time.monotonic()
        empty_facts = {"generator_calls": 0, "dropped": 0, "weights": None, "epsilon_spent": None, "rows": None}
        cell_figures: dict[str, Any] = {**empty_facts, **cell_result.facts, **cell.described()}
        if cell_result.corpus is None:
            test_scores = score(test.labels or (), cell_result.predicted or ())
            cell_figures |= test_scores.figures() | test_scores.averages
        else:
            # Texts that no private sum made are as private as the records, also at epsilon = inf.
            embed_texts = self._embed_public if variant.method else self._embed_private
            corpus_texts, corpus_labels = cell_result.corpus.texts, cell_result.corpus.labels or ()
            embeddings = embed_texts(corpus_texts)
            cell_figures["rows"] = len(corpus_texts)
            if test.labels is None:
                cell_figures["bits_per_word"] = metrics.next_word_loss(corpus_texts, test.texts)
            else:
                test_rows = panel.Labelled(test.texts, test.labels, test_embeddings)
                panel_scores = panel.judge(
                    panel.Labelled(corpus_texts, corpus_labels, embeddings), test_rows, seed=seed
                )
                cell_figures |= panel_scores.figures() | panel_scores.averages() | panel_scores.accuracies()
            cell_figures |= measured(
                corpus_texts, corpus_labels, embeddings, test_embeddings, row_count=self.frechet_rows, seed=seed
            )
        phase_seconds = {"simulation": simulated_at_s - started_at_s, "evaluation": time.monotonic() - simulated_at_s}
        return cell_figures | {"seconds": {phase: round(duration_s, 3) for phase, duration_s in phase_seconds.items()}}

    def _run_simulation(self, task: tasks.Task, seed: int) -> references.ReferenceResult:
        """Runs one simulation of the task. Returns its corpus and facts about it."""
        run_plan = plan_run(task)
        party_tables = dealt(task, self._private_files, seed)
        if run_plan.plan.sums:
            # All parties' records are embedded at once: one party's would fill few batches, and batches do not change
            # a text's embedding.
            self._embed_private([text for table in party_tables.values() for text in table.texts])
        with (
            tempfile.TemporaryDirectory(prefix="undersong-cell-") as folder,
            Workspace(Path(folder) / "run", task, {}, fresh=False) as workspace,
        ):
            run_outcome = simulate(
                run_plan,
                workspace,
                party_tables,
                SimulationOptions(seed=seed, insecure_noise_seed=self._noise_seed(seed)),
                Embeddings(self.public, self.private, self.embedder),
                Host(os.environ, Silent()),
            ).outcome
        recorded_weights = run_outcome.records.get("weights")
        is_private = bool(run_plan.plan.sums) and math.isfinite(task.privacy.epsilon)
        test, _ = self.judged_on
        label_index = {name: label_number for label_number, name in enumerate(task.task.labels)}
        test_labels = np.array(
            [label_index.get(label, -1) for label in test.labels or [""] * len(test)], dtype=np.int64
        )
        method_figures = methods.load(task.method.name).figures(
            run_outcome.records, self._embed_public, test.texts, test_labels
        )
        run_facts = {
            "generator_calls": sum(usage.calls for usage in run_outcome.usage.values()),
            "dropped": sum(usage.dropped for usage in run_outcome.usage.values()),
            "weights": None
            if not recorded_weights
            else dict(zip(run_plan.setting.generators, recorded_weights[-1][1], strict=True)),
            "epsilon_spent": run_plan.plan.epsilon() if is_private else None,
            **({"figures": dict(method_figures)} if method_figures else {}),
        }
        return references.ReferenceResult(
            usefulness.table_of(run_outcome.samples), facts=run_facts, records=run_outcome.records
        )

    def _noise_seed(self, seed: int) -> int | None:
        if self.insecure_noise_seed is None:
            return None
        return self.insecure_noise_seed + seed


def _embed_nothing(texts: Sequence[str]) -> Float32:
    raise InternalError(f"{len(texts)} texts were to be embedded while cells are checked, which embeds none")


def read_test(path: Path, task: tasks.Task) -> Table:
    """Reads a test file, with labels if the task has labels. Raises ConfigurationError if it is no such file."""
    label = (task.data.label or "label") if task.task.labels else None
    return read_table(path, task.data.text, label, labels=task.task.labels)


# Keys of :func:`measured`, and the columns' names.
HEADINGS = {
    "frechet": "Frechet",
    "mauve": "MAUVE",
    "density": "density",
    "coverage": "coverage",
    "distinct_bigrams": "different word pairs",
    "vendi": "Vendi score",
    "wrong_labels": "doubtful labels",
}


def measured(
    texts: Sequence[str],
    labels: Sequence[str],
    embeddings: Float32,
    reference: Float32,
    *,
    row_count: int,
    seed: int,
) -> dict[str, float | None]:
    """Computes every figure of :data:`HEADINGS` for a corpus; None for a figure that cannot be computed.

    All but the share of doubtful labels are computed from ``row_count`` texts of the corpus and as many of the test
    set, because they compare at equal numbers only. They are None where a side has fewer.
    """
    corpus_figures: dict[str, float | None] = dict.fromkeys(HEADINGS)
    with one_library_thread():
        if len(set(labels)) > 1:
            corpus_figures["wrong_labels"] = corpus_label_errors(embeddings, labels, seed=seed).share
        if min(len(texts), len(reference)) < row_count:
            return corpus_figures
        corpus_row_numbers, reference_row_numbers = overlap.equal_choice(
            len(texts), len(reference), rows=row_count, seed=seed
        )
        synthetic_rows, real_rows = embeddings[corpus_row_numbers], reference[reference_row_numbers]
        corpus_texts = [texts[row_number] for row_number in corpus_row_numbers]
        corpus_figures["frechet"] = metrics.frechet_distance(synthetic_rows, real_rows) if row_count > 1 else None
        if row_count > 5:
            neighbour_figures = metrics.neighbourhoods(synthetic_rows, real_rows)
            corpus_figures["density"], corpus_figures["coverage"] = (
                neighbour_figures["density"],
                neighbour_figures["coverage"],
            )
        if row_count >= metrics.FEWEST_TEXTS:
            corpus_figures["mauve"] = metrics.mauve(synthetic_rows, real_rows, seed=seed)
        corpus_figures["distinct_bigrams"] = metrics.distinct_n(corpus_texts, 2)
        corpus_figures["vendi"] = metrics.vendi_score(synthetic_rows)
    return {
        name: figure if figure is not None and math.isfinite(figure) else None
        for name, figure in corpus_figures.items()
    }
