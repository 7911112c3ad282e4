"""Executes a planned run over any transport: the parties agree, the method runs, the receipts are collected."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from undersong_common.errors import ConfigurationError, PrivacyRefusal, UndersongError
from undersong_common.models.embedding import Embed
from undersong_common.printable import printable
from undersong_common.program.library_threads import one_thread_for_products
from undersong_common.program.logs import place_of
from undersong_protocol.agreement.full_names import TASK_KEY, stated_for
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Plan
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics.vectors import NoisySum
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server import methods
from undersong_server.database.journal import Journal
from undersong_server.federation.agreement import introduce
from undersong_server.federation.exchange import STAGE_TIMEOUT_S, PublicBlocks, Transport
from undersong_server.federation.preparation import opened_sum
from undersong_server.federation.sums import Federation
from undersong_server.generators.author import Author, AuthorUsage
from undersong_server.methods.interface import Method, Observe, RunContext
from undersong_server.methods.parts import distance, metadata, support
from undersong_server.pool import Origin, Sample, keep_each_once, no_texts_error
from undersong_server.progress import Progress
from undersong_server.runs.planning import RunPlan


@dataclass(frozen=True)
class Outcome:
    """The result of a finished run, all of it public.

    Attributes:
        manifest, signatures: what every party signed, and its signature by name.
        samples: the corpus.
        sums: facts of every opened sum by name: survivors, scale, variance of its noise, evidence, attempt.
        receipts: each party's signed statement of its spending.
        usage: usage of each generator, by name.
        records: what the method recorded (``RunContext.records``).
        seconds: wall-clock time by phase.
        adapters: files of each tuned generator's adapter, by generator.
        origins: every text that was written, with what its request showed, in the order of writing.
        corpora: the corpus after each round, by the round's number from 0, of a method that states it.
        distance: the sum of the records' embeddings, where the task asks for distances by round.
        refused_labels: labels without a text, because endpoints refused each of their orders for its content.
        opened: the opened sums by name, as the method saw them.
    """

    manifest: Manifest
    signatures: Mapping[str, bytes]
    samples: tuple[Sample, ...]
    sums: Mapping[str, Mapping[str, Any]]
    receipts: Mapping[str, wire.Receipt]
    usage: Mapping[str, AuthorUsage]
    records: Mapping[str, Sequence[tuple[int, Any]]]
    seconds: Mapping[str, float]
    adapters: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    origins: Sequence[Origin] = ()
    corpora: Mapping[int, Sequence[Sample]] = field(default_factory=dict)
    distance: NoisySum | None = None
    refused_labels: Sequence[str] = ()
    opened: Mapping[str, NoisySum] = field(default_factory=dict)


@dataclass(frozen=True)
class StartedRun:
    """A run that was begun, with the journal of all that was opened and written.

    Attributes:
        name: name of the run in the manifest.
        journal: its journal; steps whose results lie there are not repeated.
        seed: seed of everything public: prompts, draws, embedded generators.
    """

    name: str
    journal: Journal
    seed: int


@dataclass(frozen=True)
class RunParties:
    """The parties of a run, and the way to reach them.

    Attributes:
        identities: Ed25519 public key with which each party enrolled; None in a simulation, which has no enrolment.
        timeout_s: longest wait of a request for a party.
        sleep: waits between two requests for an approval; may return early if a party has decided.
    """

    transport: Transport
    names: Sequence[str]
    identities: Mapping[str, bytes] | None = None
    timeout_s: float = STAGE_TIMEOUT_S
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class PublicEmbedder:
    """The embedder of a run: ``embed`` quantises public texts, ``sha256`` (hex) names the model to the parties."""

    embed: Embed
    sha256: str


@dataclass(frozen=True)
class RunMonitor:
    """Callbacks by which a run is watched, and the clock that times it.

    Attributes:
        observe: called with each public fact of the run; a continued run repeats them from its beginning.
        clock: measures the seconds of each phase.
    """

    progress: Progress
    observe: Observe = lambda _kind, _facts: None
    clock: Callable[[], float] = time.monotonic


class _PhaseTimes:
    """Wall-clock seconds of each phase of a run, by the phase's name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock

    def measure(self, phase: str, work: Callable[[], Any]) -> Any:
        """Returns what ``work`` returns, and adds its time to the phase."""
        start_s = self._clock()
        try:
            return work()
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self._clock() - start_s


@one_thread_for_products()
def execute(
    run_plan: RunPlan,
    started_run: StartedRun,
    parties: RunParties,
    author: Author,
    embedder: PublicEmbedder,
    monitor: RunMonitor,
) -> Outcome:
    """Runs the plan to its end; ``author`` writes the texts, from the same journal."""
    phase_times = _PhaseTimes(monitor.clock)
    manifest = _sign_manifest(run_plan, started_run, parties, embedder.sha256)
    public_blocks = PublicBlocks(started_run.journal)
    federation = Federation(
        parties.transport,
        manifest,
        started_run.journal,
        monitor.progress,
        blocks=public_blocks,
        timeout_s=parties.timeout_s,
        sleep=parties.sleep,
    )
    method = methods.load(run_plan.task.method.name)
    run = RunContext(
        run_plan.setting,
        author,
        federation,
        public_blocks,
        embed=embedder.embed,
        seed=started_run.seed,
        hides_labels=method.hides_labels(run_plan.task.options, run_plan.setting),
        watch=phase_times.measure,
        observe=monitor.observe,
    )
    signatures = phase_times.measure("agreement", federation.agree)
    if metadata.NAME in {planned.name for planned in run_plan.plan.sums}:
        author.draw_words_by(metadata.draw_lengths(run, run.private_sum(metadata.NAME, [])))
    method_samples = _run_method(method, run_plan, run)
    samples = _finish_corpus(run_plan, run, author, method_samples, monitor.progress)
    asks_distance = distance.NAME in {planned.name for planned in run_plan.plan.sums}
    opened_distance = run.private_sum(distance.NAME, []) if asks_distance else None
    receipts = phase_times.measure("agreement", federation.receipts)
    sums = {planned.name: federation.opened_facts(planned.name) for planned in manifest.plan.sums}
    return Outcome(
        manifest=manifest,
        signatures=signatures,
        samples=tuple(samples),
        sums={sum_name: sum_facts for sum_name, sum_facts in sums.items() if sum_facts is not None},
        receipts=receipts,
        usage=author.usage,
        records=run.records,
        seconds=phase_times.seconds,
        adapters=run.adapters,
        origins=tuple(author.origins),
        corpora=run.corpora,
        distance=opened_distance,
        refused_labels=author.refused_labels,
        opened=_opened_sums(manifest.plan, started_run.journal),
    )


def _opened_sums(plan: Plan, journal: Journal) -> dict[str, NoisySum]:
    """Returns the plan's sums that were opened, by name."""
    opened_sums = {planned_sum.name: opened_sum(journal, planned_sum.name) for planned_sum in plan.sums}
    return {name: noisy_sum for name, noisy_sum in opened_sums.items() if noisy_sum is not None}


def _finish_corpus(
    run_plan: RunPlan, run: RunContext, author: Author, method_output: Any, progress: Progress
) -> list[Sample]:
    """Returns the corpus of what the method returned, and records remarks that compare it with opened sums."""
    author.check_finished()
    _compare_calls(run_plan, author, progress)
    samples = _read_corpus(run_plan.task.method.name, method_output)
    if support.CORPUS in {planned.name for planned in run_plan.plan.sums}:
        samples = support.supported_samples(run, samples)
    _compare_attributes(run, samples)
    for _, quantiles in run.records.get(metadata.RECORD, ()):
        run.record("remarks", 0, metadata.compare_lengths(quantiles, [sample.text for sample in samples]))
    return samples


def _run_method(method: Method[Any], run_plan: RunPlan, run: RunContext) -> Any:
    """Returns what the method returns. Raises ConfigurationError where the code of another package fails."""
    try:
        return method.run(run_plan.task.options, run)
    except Exception as error:
        method_name = run_plan.task.method.name
        if isinstance(error, UndersongError) or method_name in methods.own_names():
            raise
        raise ConfigurationError(
            f"the method {method_name} of another package fails: {place_of(error)}",
            "tell its author; what was opened and written is kept",
            code="method-fails",
        ) from error


def _compare_calls(run_plan: RunPlan, author: Author, progress: Progress) -> None:
    """Reports a method that has ordered more texts than its plan states."""
    order_count = sum(usage.orders for usage in author.usage.values()) - run_plan.trial_calls * len(author.usage)
    if order_count > run_plan.generator_calls:
        progress.say(
            f"the method {run_plan.task.method.name} ordered {order_count} texts, its plan says"
            f" {run_plan.generator_calls}: costs and comparisons at equal calls were computed with the plan's"
        )


def _read_corpus(method_name: str, method_output: Any) -> list[Sample]:
    """Returns the samples that a method has returned, each once. Raises ConfigurationError for anything else."""
    output_samples = method_output if isinstance(method_output, Sequence) else [method_output]
    if wrong_types := [type(sample).__name__ for sample in output_samples if not isinstance(sample, Sample)]:
        raise ConfigurationError(
            f"the method {method_name} returned {wrong_types[0]}: a method returns a sequence of Sample",
            "correct its run(); what was opened and written is kept",
            code="method-return",
        )
    samples = keep_each_once(method_output)  # a plug-in may return a text several times
    if not samples:
        raise no_texts_error("corpus")
    return samples


def _compare_attributes(run: RunContext, corpus: Sequence[Sample]) -> None:
    """Notes for the report the opened shares of each attribute's values, and those of the corpus in brackets."""
    for attribute in run.setting.attributes:
        for _, opened_shares in run.records.get(f"shares of {attribute.name}", []):
            samples_by_value = Counter(dict(sample.attributes).get(attribute.name) for sample in corpus)
            share_words = ", ".join(
                f"{value or 'missing'} {share:.0%} ({samples_by_value[value] / len(corpus):.0%})"
                for value, share in zip(attribute.possible, opened_shares, strict=True)
            )
            run.record(
                "remarks", 0, f"{attribute.name}, as the private sum opened it (and in the corpus): {share_words}"
            )


def _check_same_plan(agreed_manifest: Manifest, plan: Plan) -> None:
    """Refuses to continue a run with other sums or another promise than the parties signed."""

    def list_facts(stated_plan: Plan) -> dict[str, object]:
        sums = {
            planned_sum.name: json.dumps([planned_sum.statistic, planned_sum.parameters], sort_keys=True)
            for planned_sum in stated_plan.sums
        }
        return {"its privacy": stated_plan.privacy, "its quorum": stated_plan.quorum, **sums}

    agreed_facts = list_facts(agreed_manifest.plan)
    planned_facts = list_facts(plan)
    if agreed_facts != planned_facts:
        changed_facts = sorted(
            name
            for name in agreed_facts.keys() | planned_facts.keys()
            if agreed_facts.get(name) != planned_facts.get(name)
        )
        raise ConfigurationError(
            f"the run {agreed_manifest.run!r} was agreed on with another plan than its task has now:"
            f" {', '.join(changed_facts)}",
            "continue it with the program and the public files that it began with, or plan a new run",
            code="other-plan",
        )


def _sign_manifest(run_plan: RunPlan, started_run: StartedRun, parties: RunParties, embedder: str) -> Manifest:
    """Returns the manifest that the parties have agreed on, or a new one with the keys and models that they state."""
    agreed_bytes = started_run.journal.get("manifest")
    if agreed_bytes is not None:
        agreed_manifest = Manifest.from_bytes(agreed_bytes)
        _check_same_plan(agreed_manifest, run_plan.plan)
        return agreed_manifest
    introductions = introduce(parties.transport, parties.names, parties.timeout_s)
    for party, introduction in introductions.items():
        if introduction.name != party:
            raise PrivacyRefusal(
                f"{party}: the party introduces itself as {printable(introduction.name, 63)}",
                "talk to its people: another party folder answers in its name",
            )
        if parties.identities is not None and parties.identities.get(party) != introduction.identity:
            raise PrivacyRefusal(
                f"{party}: the party introduces itself with another identity key than it has enrolled with",
                "talk to its people: another party folder answers in its name",
                code="other-identity",
            )
        if introduction.embedder.hex() != embedder:
            raise ConfigurationError(
                f"{party}: the party has the embedding model {introduction.embedder.hex()[:16]}...,"
                f" the coordinator another one, {embedder[:16]}...",
                "install the same embedding model everywhere",
                code="other-embedder",
            )
        # A statistic of another package is proposed all the same: the party's people then read a refusal that names it.
        built_in_statistics = {planned.statistic for planned in run_plan.plan.sums if not planned.source}
        if lacking_statistics := sorted(built_in_statistics - set(introduction.statistics)):
            raise ConfigurationError(
                f"{party}: does not know the statistic {', '.join(lacking_statistics)}",
                "update the party's program",
                code="unknown-statistic",
            )
    full_names = stated_for(run_plan.task.federation.full_names, sorted(introductions))
    manifest = Manifest(
        run=started_run.name,
        task=run_plan.task.public_words | ({TASK_KEY: full_names} if full_names else {}),
        method=run_plan.task.method.name,
        embedder=embedder,
        roster=tuple(Member(party, introductions[party].identity) for party in sorted(introductions)),
        plan=run_plan.plan,
    )
    manifest.check_names()
    started_run.journal.put("manifest", manifest.to_bytes())
    return manifest
