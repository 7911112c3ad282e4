"""Generators side by side: their use in recent runs, and a trial of one of them. Nothing private is read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from undersong_common import embedders
from undersong_common.configuration import nearest
from undersong_common.embedding import CachedEmbedder, MemoryCache, PublicFileCache
from undersong_common.errors import ConfigurationError, GenerationError
from undersong_common.printable import counted
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.generators.interface import Answer, Surroundings
from undersong_server.generators.orders import Order, Requests
from undersong_server.generators.reading import read
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import build_prompts, coordinator_task, public_lengths
from undersong_server.runs.task import Task

TEXTS = 5  # texts of a trial


@dataclass(frozen=True)
class GeneratorUsage:
    """One generator over several runs.

    Attributes:
        run: the newest run, whose task a trial takes.
        runs: number of runs in which it has written.
        counts: sums of the counts of :class:`undersong_server.generators.author.Usage`; ``faults`` by kind.
        counted: the generator's own counts besides its calls: waits for a limit, retries, answers from a cache, ...
    """

    name: str
    kind: str
    run: str
    runs: int
    counts: Mapping[str, float]
    faults: Mapping[str, float]
    counted: Mapping[str, float]


def usage(home: Path, runs: Sequence[str]) -> tuple[GeneratorUsage, ...]:
    """Returns the usage of every generator of these runs, by name.

    Args:
        runs: newest first.
    """
    found: dict[str, GeneratorUsage] = {}
    for run in runs:
        folder = CoordinatorHome(home).run(run)
        used = folder.usage()
        for table in folder.planned().task.get("generators", ()):
            name = str(table.get("name", ""))
            new = GeneratorUsage(name, str(table.get("kind", "")), run, 0, Counter(), Counter(), Counter())
            before, more = found.get(name, new), used.get(name, {})
            own = {key.replace("_", " "): count for key, count in more.get("counted", {}).items() if key != "calls"}
            found[name] = GeneratorUsage(
                *(name, before.kind, before.run, before.runs + (name in used)),
                counts=_sum(before.counts, more),
                faults=_sum(before.faults, more.get("faults", {})),
                counted=_sum(before.counted, own),
            )
    return tuple(found[name] for name in sorted(found))


def _sum(total: Mapping[str, float], more: Mapping[str, object]) -> dict[str, float]:
    """Adds the numbers of ``more`` to those of ``total``; values of other types are left out."""
    numbers = {key: value for key, value in more.items() if isinstance(value, (int, float))}
    return {key: total.get(key, 0) + numbers.get(key, 0) for key in [*total, *(numbers.keys() - total.keys())]}


@dataclass(frozen=True)
class Tried:
    """One order of a trial.

    Attributes:
        system, prompt, stop: input of the model.
        answer: raw answer; the error's words if there was none.
        text: text found in the answer; fault: its kind of fault, "" for none.
        finish: reason why the answer ended, if the generator reports it.
        seconds: from the first request to this answer.
    """

    label: str
    system: str
    prompt: str
    stop: tuple[str, ...]
    answer: str
    text: str
    fault: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    price_usd: float
    seconds: float


def cost_of(tried: Sequence[Tried]) -> str:
    """Time, tokens and price of a whole trial in words."""
    tokens = counted(sum(each.prompt_tokens + each.completion_tokens for each in tried), "token")
    seconds, price = max(each.seconds for each in tried), sum(each.price_usd for each in tried)
    return f"{seconds:.2f} s, {tokens}, US$ {price:.4f}"


def try_generator(
    name: str,
    task_file: Path,
    assignments: Sequence[str] = (),
    *,
    environment: Mapping[str, str],
    kind: str = "zero_shot",
    texts: int = TEXTS,
    seed: int = 0,
) -> tuple[Tried, ...]:
    """Orders a few texts from one generator of a task, for its labels in turn. The task's data are not read.

    Args:
        kind: kind of the prompts; one that shows no examples.
        texts: number of texts.

    Raises ConfigurationError for a wrong task file or an unknown generator, and errors of the generator.
    """
    task = tasks.load(task_file, assignments)
    return try_task(name, task, str(task_file), environment=environment, kind=kind, texts=texts, seed=seed)


def try_in_run(home: Path, run: str, name: str, *, environment: Mapping[str, str], public_cache: Path) -> Tried:
    """Orders one text of the first label from a generator of a run's task, as the run would. It may cost money.

    Args:
        environment: variables in which the generator finds its key.
        public_cache: file with embeddings of public texts.

    Raises ConfigurationError for an unknown run or generator, or one that cannot be built.
    """
    planned = CoordinatorHome(home).run(run).planned()
    task = coordinator_task(planned.task, Path(planned.folder), planned.roster)
    (tried,) = try_task(name, task, f"run {run!r}", environment=environment, public_cache=public_cache, texts=1)
    return tried


def try_task(
    name: str,
    task: Task,
    origin: str,
    *,
    environment: Mapping[str, str],
    public_cache: Path | None = None,
    seed: int | None = None,
    kind: str = "zero_shot",
    texts: int = TEXTS,
) -> tuple[Tried, ...]:
    """Orders texts as :func:`try_generator` does, from a generator of a task that ``origin`` names in errors.

    Args:
        public_cache: as of :func:`try_in_run`; None keeps no embedding.
        seed: of the requests; None takes another one each time.
    """
    seed = time.time_ns() % 2**53 if seed is None else seed
    chosen = [settings for settings in task.generators if settings.name == name]
    if not chosen:
        raise ConfigurationError(
            f"{origin}: has no generator {name!r}",
            nearest(name, [settings.name for settings in task.generators]),
            code="unknown-generator",
        )
    folder = task.locate("")

    @cache  # most generators embed nothing
    def embedder() -> CachedEmbedder:
        return CachedEmbedder(
            embedders.load(task.embedder.model, task.embedder.max_windows),
            MemoryCache() if public_cache is None else PublicFileCache(public_cache),
        )

    surroundings = Surroundings(task.task.labels, folder, lambda given: embedder().encode(given), environment)
    generator = chosen[0].build(surroundings)
    form = chosen[0].prompt_format(folder)
    labels = task.task.labels or ("",)
    orders = [Order(name, kind, labels[number % len(labels)]) for number in range(texts)]
    requests = Requests(build_prompts(task), {name: form}, seed=seed, draw_words=public_lengths(task))
    made, _ = requests.make("try", orders, range(texts), [1] * texts)
    begun = time.monotonic()
    answers = {
        number: (answer, time.monotonic() - begun)
        for number, answer in generator.answer([made[number] for number in range(texts)])
    }
    found = []
    for number, order in enumerate(orders):
        request = made[number]
        answer, seconds = answers.get(number, (GenerationError(f"{name}: gave no answer"), time.monotonic() - begun))
        reading = read(answer, request, language=task.task.language, whole=form.reads)
        got = answer if isinstance(answer, Answer) else Answer(answer.problem)
        found.append(
            Tried(
                label=order.label,
                system=request.system if form.reads else "",
                prompt=request.prompt if form.reads else "",
                stop=request.stop,
                answer=got.text,
                text="" if reading.fault else reading.text,
                fault=reading.fault,
                finish=got.finish,
                prompt_tokens=got.prompt_tokens,
                completion_tokens=got.completion_tokens,
                price_usd=got.price_usd,
                seconds=seconds,
            )
        )
    return tuple(found)
