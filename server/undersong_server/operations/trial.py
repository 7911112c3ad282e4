"""Tries one generator: a few texts with their prompts, raw answers and cost. Nothing private is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from undersong_common import embedders
from undersong_common.arrays import Float32
from undersong_common.configuration import nearest
from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.generators.interface import Answer, Surroundings
from undersong_server.generators.orders import Order, Requests
from undersong_server.generators.reading import read
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import build_prompts, public_lengths

TEXTS = 5


@dataclass(frozen=True)
class Tried:
    """One order of a trial.

    Attributes:
        system, prompt, stop: what the model read.
        answer: as it wrote it; an error's words where there was none.
        text: what was found in it; fault: what is wrong with it, "" for nothing.
        finish: why it ended, where the generator says so.
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

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "stop": list(self.stop)}


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
    """Has one generator of a task write a few texts, for its labels in turn. The task's data are not read.

    Args:
        kind: of the prompts; one that shows no examples.
        texts: how many.

    Raises ConfigurationError for a wrong task file or a generator that it does not have, and what the generator raises.
    """
    task = tasks.load(task_file, assignments)
    chosen = [settings for settings in task.generators if settings.name == name]
    if not chosen:
        raise ConfigurationError(
            f"{task_file}: has no generator {name!r}", nearest(name, [settings.name for settings in task.generators])
        )
    folder = task.locate("")

    def embed(given: Sequence[str]) -> Float32:
        return embedders.load(task.embedder.model).encode(given)

    generator = chosen[0].build(Surroundings(task.task.labels, folder, embed, environment))
    form = chosen[0].prompt_format(folder)
    labels = task.task.labels or ("",)
    orders = [Order(name, kind, labels[number % len(labels)]) for number in range(texts)]
    made, _ = Requests(build_prompts(task), {name: form}, seed=seed, draw_words=public_lengths(task)).make(
        "try", orders, range(texts), [1] * texts
    )
    requests = [made[number] for number in range(texts)]
    answers = dict(generator.answer(requests))
    found = []
    for number, (order, request) in enumerate(zip(orders, requests, strict=True)):
        answer = answers.get(number, GenerationError(f"{name}: gave no answer"))
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
            )
        )
    return tuple(found)
