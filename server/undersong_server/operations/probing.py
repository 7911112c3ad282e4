"""Generators beside each other: what they have done in the last runs, and one call to try one out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from undersong_common import embedders
from undersong_common.arrays import Float32
from undersong_common.embedding import CachedEmbedder, PublicFileCache
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.generators.interface import Answer, Surroundings
from undersong_server.generators.orders import Order, Requests
from undersong_server.operations.following import Plans, answer_rate, mean_latency_s
from undersong_server.runs.planning import build_prompts, coordinator_task

PROBE = "zero_shot"


@dataclass(frozen=True)
class GeneratorUsage:
    """One generator over several runs.

    Attributes:
        run: the newest of them, whose task a test call takes.
        runs: in how many it has written.
        counts: as of :class:`undersong_server.generators.author.Usage`, summed up; ``faults`` by what was wrong.
        counted: what the generator itself counted besides its calls: those that waited for a limit, that were tried
            again, answers out of a cache, ...
    """

    name: str
    kind: str
    run: str
    runs: int
    counts: Mapping[str, float]
    faults: Mapping[str, int]
    counted: Mapping[str, int]

    @property
    def answer_rate(self) -> float | None:
        """Answers per second while it was asked."""
        return answer_rate(self.counts)

    @property
    def latency_s(self) -> float | None:
        """Mean seconds of its calls, where it tells it."""
        return mean_latency_s(self.counts)


def usage(home: Path, runs: Sequence[str], plans: Plans) -> tuple[GeneratorUsage, ...]:
    """Every generator of these runs, by name; the newest run first."""
    opened = CoordinatorHome(home)
    kinds: dict[str, tuple[str, str]] = {}
    counts: dict[str, dict[str, float]] = {}
    faults: dict[str, dict[str, int]] = {}
    counted: dict[str, dict[str, int]] = {}
    taken: dict[str, int] = {}
    for run in runs:
        folder = opened.run(run)
        for table in folder.planned().task.get("generators", ()):
            kinds.setdefault(str(table.get("name", "")), (str(table.get("kind", "")), run))
        for name, used in folder.usage().items():
            taken[name] = taken.get(name, 0) + 1
            _add(counts.setdefault(name, {}), used)
            _add(faults.setdefault(name, {}), used.get("faults", {}))
            own = used.get("counted", {}).items()
            _add(counted.setdefault(name, {}), {key.replace("_", " "): count for key, count in own if key != "calls"})
    return tuple(
        GeneratorUsage(
            *(name, kind, run, taken.get(name, 0)),
            counts=counts.get(name, {}),
            faults=faults.get(name, {}),
            counted=counted.get(name, {}),
        )
        for name, (kind, run) in sorted(kinds.items())
    )


def _add(total: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, (int, float)):
            total[key] = total.get(key, 0) + value


@dataclass(frozen=True)
class Probe:
    """What one call gave: its text, untrusted, or a problem in words."""

    text: str
    problem: str
    seconds: float
    tokens: int
    price_usd: float


def call(home: Path, run: str, generator: str, *, environment: Mapping[str, str], public_cache: Path) -> Probe:
    """Asks one generator of a run's task for one text of the first label, as a run would. It may cost money.

    Args:
        environment: where it finds its key.
        public_cache: file with embeddings of public texts.

    Raises ConfigurationError where there is no such run or generator, or it cannot be built.
    """
    planned = CoordinatorHome(home).run(run).planned()
    task = coordinator_task(planned.task, Path(planned.folder), planned.roster)
    chosen = [each for each in task.generators if each.name == generator]
    if not chosen:
        raise ConfigurationError(f"run {run!r} has no generator {generator!r}", "see the list of generators")
    embed = _LazyEmbedding(task.embedder.model, public_cache)
    built = chosen[0].build(Surroundings(task.task.labels, task.locate(""), embed, environment))
    label = task.task.labels[0] if task.task.labels else ""
    formats = {generator: chosen[0].prompt_format(task.locate(""))}
    requests = Requests(build_prompts(task), formats, seed=time.time_ns() % 2**53)
    request = requests.make(PROBE, [Order(generator, PROBE, label)], [0], [1])[0][0]
    begun = time.monotonic()
    try:
        answer = next((answer for _, answer in built.answer([request])), None)
    except UndersongError as error:
        return Probe("", error.problem, time.monotonic() - begun, 0, 0.0)
    seconds = time.monotonic() - begun
    if not isinstance(answer, Answer):
        return Probe("", "it gave no answer" if answer is None else answer.problem, seconds, 0, 0.0)
    return Probe(answer.text, "", seconds, answer.prompt_tokens + answer.completion_tokens, answer.price_usd)


class _LazyEmbedding:
    """Texts to unit vectors; the model is loaded at the first call, which most generators never make."""

    def __init__(self, model: str, cache: Path) -> None:
        self._model = model
        self._cache = cache

    @cached_property
    def _embed(self) -> Any:
        return CachedEmbedder(embedders.load(self._model), PublicFileCache(self._cache)).encode

    def __call__(self, texts: Sequence[str]) -> Float32:
        vectors: Float32 = self._embed(texts)
        return vectors
