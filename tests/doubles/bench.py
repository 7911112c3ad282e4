"""A method run without network, keys or masks: real plan, statistics and replay generators; noise from one seed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.doubles.parties import EMBEDDER, embed, make_party
from undersong.run.simulation import InProcess
from undersong_client.answering.party import Party
from undersong_common.printable import repeated
from undersong_common.text.table import Table
from undersong_protocol.agreement.plan import PlannedSum
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.vectors import NoisySum
from undersong_protocol.wire.public import Input, MemoryBlocks, resolve
from undersong_server import methods
from undersong_server.database.journal import Journal
from undersong_server.federation.exchange import PublicBlocks
from undersong_server.generators.orders import Order
from undersong_server.methods.interface import RunContext
from undersong_server.operations.tasks import read_private_files
from undersong_server.pool import Sample
from undersong_server.progress import Silent
from undersong_server.runs.execution import Outcome, PublicEmbedder, RunMonitor, RunParties, StartedRun, execute
from undersong_server.runs.planning import RunPlan, build_author
from undersong_server.runs.task import Task

# A choice among the same texts is made again by whoever needs it. dpkps compares its samplers on the same numbers.
DRAWN_AGAIN = {"corpus", "folds", "support folds", "sequences"}


class OpenFederation:
    """Opens sums of records that it holds itself."""

    def __init__(self, run_plan: RunPlan, records: Any, published: PublicBlocks, seed: int) -> None:
        self.manifest = run_plan  # only its plan is read
        self.asked: list[str] = []
        self._records = records
        self._published = published
        self._blocks = MemoryBlocks()
        self._rng = np.random.default_rng(seed)
        self._memory: dict[str, Any] = {}

    def private_sum(self, name: str, inputs: Sequence[Input]) -> NoisySum:
        planned: PlannedSum = self.manifest.plan[name]
        self.asked.append(name)
        for given in inputs:
            for segment in given.segments:
                self._blocks.add(self._published.get(segment.block))
        statistic = planned.build()
        rows = statistic.rows(self._records, resolve(inputs, self._blocks), self._memory)
        exact = contribute(statistic, rows, scale=planned.scale).values
        noise = np.rint(self._rng.normal(0.0, planned.sigma_integer, len(exact))).astype(np.int64)
        return NoisySum(exact + noise, planned.scale, planned.sigma, ("p",))


class Records:
    """What a statistic reads of a table."""

    def __init__(self, table: Any, labels: Sequence[str]) -> None:
        self.texts = table.texts
        self.labels = np.array(
            [labels.index(label) if label in labels else -1 for label in table.labels], dtype=np.int64
        )
        self.embeddings = embed(table.texts)
        self.columns = table.columns
        self.units = np.arange(len(table))
        self.unit_hashes = np.random.default_rng(0).integers(0, 2**63, len(table)).astype(np.uint64)

    def __len__(self) -> int:
        return len(self.texts)


class CountingRun(RunContext):
    """Counts the orders and the draws of each step; knows which sums were asked for."""

    ordered = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.draws_by_step = Counter[str]()

    def rng(self, step: str) -> np.random.Generator:
        self.draws_by_step[step] += 1
        return super().rng(step)

    def write(self, step: str, round_: int, orders: Sequence[Order]) -> list[Sample | None]:
        self.ordered += len(orders)
        return super().write(step, round_, orders)

    @property
    def asked(self) -> list[str]:
        federation: Any = self._federation
        found: list[str] = federation.asked
        return found


def run_method(task: Task, run_plan: RunPlan, *, seed: int) -> tuple[Sequence[Sample], CountingRun]:
    """The method's corpus and the run it had."""
    (table,) = read_private_files(task)
    journal = Journal(Path(":memory:"))
    author = build_author(task, embed, {}, journal, Silent(), seed=seed)
    blocks = PublicBlocks(journal)
    federation: Any = OpenFederation(run_plan, Records(table, task.task.labels), blocks, seed)
    method = methods.load(task.method.name)
    hides_labels = method.hides_labels(task.options, run_plan.setting)
    run = CountingRun(run_plan.setting, author, federation, blocks, embed=embed, seed=seed, hides_labels=hides_labels)
    corpus = method.run(task.options, run)
    steps_drawn_again = {step.partition("/")[0] for step in repeated(run.draws_by_step.elements())}
    assert steps_drawn_again <= DRAWN_AGAIN, "two steps draw the same numbers"
    return corpus, run


def in_this_process(parties: Mapping[str, Party]) -> RunParties:
    return RunParties(InProcess(parties), list(parties))


def run_federated(
    task: Task,
    run_plan: RunPlan,
    folder: Path,
    tables: Mapping[str, Table],
    *,
    seed: int,
    name: str = "federated",
    reach: Callable[[Mapping[str, Party]], RunParties] = in_this_process,
) -> Outcome:
    """The method over real parties, noise, masks, ledgers and journal; continued where ``folder`` holds their files."""
    blocks = MemoryBlocks()
    parties = {name: make_party(folder, name, table, blocks=blocks) for name, table in tables.items()}
    journal = Journal(folder / "journal.sqlite")
    try:
        return execute(
            run_plan,
            StartedRun(name, journal, seed),
            reach(parties),
            build_author(task, embed, {}, journal, Silent(), seed=seed),
            PublicEmbedder(embed, EMBEDDER),
            RunMonitor(Silent()),
        )
    finally:
        journal.close()
