"""The author writes a method's orders: answers are journaled as they arrive, cleaned, and asked again if useless."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.generators import Answer, GenerationRequest, Generator, cleaning
from undersong_server.journal import Journal
from undersong_server.pool import Sample
from undersong_server.progress import Progress
from undersong_server.prompts.rendering import Prompts

RETRIES = 2  # of an empty or duplicate answer, before the sample is dropped
FLUSH_ANSWERS = 64  # answers of one embedded generator that share a journal write


@dataclass(frozen=True)
class Order:
    """One text that a method wants written. Example texts are synthetic or public, never private.

    Attributes:
        generator: its name.
        kind, label, good, bad, parents, terms, words: as of a GenerationRequest.
        named: False hides the label from the generator: the sample has it, the prompt and the request do not.
    """

    generator: str
    kind: str
    label: str = ""
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    words: int | None = None
    named: bool = True


@dataclass
class Usage:
    """Counts of one generator's calls and samples in this run, journaled answers included."""

    calls: int = 0
    kept: int = 0
    retried: int = 0
    dropped: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    price_usd: float = 0.0
    notes: dict[str, int] = field(default_factory=dict)


class Author:
    """Writes samples with several generators. A restarted run asks for no answer that the journal has."""

    def __init__(
        self,
        generators: Mapping[str, Generator],
        prompts: Prompts,
        journal: Journal,
        progress: Progress,
        *,
        seed: int,
    ) -> None:
        self._generators = generators
        self._prompts = prompts
        self._journal = journal
        self._progress = progress
        self._seed = seed
        self._known: set[str] = set()
        self.usage = {name: Usage() for name in generators}

    def write(self, step: str, round_: int, orders: Sequence[Order]) -> list[Sample | None]:
        """One sample per order, None where every try was empty or a duplicate (counted as dropped).

        Raises ConfigurationError or GenerationError from a generator that cannot go on; what was answered is kept.
        """
        written: list[Sample | None] = [None] * len(orders)
        open_orders = list(range(len(orders)))
        for attempt in range(1 + RETRIES):
            if not open_orders:
                break
            answers = self._ask(f"{step}/{attempt}", [orders[index] for index in open_orders])
            failed = []
            for index, (prompt, answer) in zip(open_orders, answers, strict=True):
                order = orders[index]
                text = "" if isinstance(answer, GenerationError) else cleaning.clean(answer.text, prompt=prompt)
                key = cleaning.duplicate_key(text)
                if text and key not in self._known:
                    self._known.add(key)
                    written[index] = Sample(text, order.label, order.generator, round_, order.kind)
                    self.usage[order.generator].kept += 1
                else:
                    failed.append(index)
                    self.usage[order.generator].retried += attempt < RETRIES
            open_orders = failed
        for index in open_orders:
            self.usage[orders[index].generator].dropped += 1
        return written

    def _ask(self, step: str, orders: Sequence[Order]) -> list[tuple[str, Answer | GenerationError]]:
        requests = [self._request(step, index, order) for index, order in enumerate(orders)]
        answers: list[Answer | GenerationError | None] = [None] * len(orders)
        by_generator: dict[str, list[int]] = {}
        for index, order in enumerate(orders):
            by_generator.setdefault(order.generator, []).append(index)
        missing: dict[str, list[int]] = {}
        for name, indices in by_generator.items():
            journaled = self._journal.items(_key(step, name, ""))  # one query: a run has thousands of orders
            kept = {i: journaled[key] for i in indices if (key := _key(step, name, i)) in journaled}
            for index, entry in kept.items():
                answers[index] = _decode(entry)
            heard = [i for i in kept if isinstance(answers[i], Answer)]
            given = [answer for i in heard if isinstance(answer := answers[i], Answer)]
            self._generators[name].observe([requests[i] for i in heard], given)
            if missed := [index for index in indices if index not in kept]:
                missing[name] = missed
        total, done = len(orders), sum(answer is not None for answer in answers)
        unwritten: list[tuple[str, bytes]] = []
        try:
            for name, index, answer in self._answers(missing, requests):
                answers[index] = answer
                unwritten.append((_key(step, name, index), _encode(answer)))
                paid = isinstance(answer, Answer) and answer.completion_tokens > 0
                if paid or len(unwritten) >= FLUSH_ANSWERS:
                    self._journal.put_all(unwritten)
                    unwritten = []
                done += 1
                self._progress.update(f"writing {step}", done, total)
        finally:
            self._journal.put_all(unwritten)
        result = []
        for index, (order, answer) in enumerate(zip(orders, answers, strict=True)):
            if answer is None:
                raise GenerationError(f"{order.generator}: gave no answer to request {index} of {step}")
            self._count(order.generator, answer)
            result.append((requests[index].prompt, answer))
        return result

    def _answers(
        self, missing: Mapping[str, Sequence[int]], requests: Sequence[GenerationRequest]
    ) -> Iterator[tuple[str, int, Answer | GenerationError]]:
        """Answers of all generators as they arrive; each generator has its own thread, the caller's journals."""
        if len(missing) <= 1:
            for name, indices in missing.items():
                for position, answer in self._generators[name].answer([requests[i] for i in indices]):
                    yield name, indices[position], answer
            return
        arrived: queue.Queue[tuple[str, int, Answer | GenerationError] | tuple[str, BaseException | None]] = (
            queue.Queue()
        )
        stop = threading.Event()

        def work(name: str, indices: Sequence[int]) -> None:
            failure: BaseException | None = None
            try:
                for position, answer in self._generators[name].answer([requests[i] for i in indices]):
                    arrived.put((name, indices[position], answer))
                    if stop.is_set():
                        break
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
                failure = error
            arrived.put((name, failure))

        threads = [
            threading.Thread(target=work, args=(name, indices), daemon=True, name=f"generator {name}")
            for name, indices in missing.items()
        ]
        for thread in threads:
            thread.start()
        try:
            running = len(threads)
            failure: BaseException | None = None
            while running:
                item = arrived.get()
                if len(item) == 3:
                    yield item
                else:
                    running -= 1
                    if item[1] is not None:
                        failure = failure or item[1]
                        stop.set()  # the others' answers that are on their way are paid for, so they are kept
            if failure is not None:
                raise failure
        finally:
            stop.set()

    def _request(self, step: str, index: int, order: Order) -> GenerationRequest:
        if order.generator not in self._generators:
            raise ConfigurationError(f"no generator is named {order.generator!r}", "name it under [[generators]]")
        label = order.label if order.named else ""
        digest = tagged_hash("request", str(self._seed).encode(), step.encode(), str(index).encode())
        return GenerationRequest(
            kind=order.kind,
            label=label,
            prompt=self._prompts.render(
                order.kind,
                label=label,
                good=order.good,
                bad=order.bad,
                parents=order.parents,
                terms=order.terms,
                words=order.words,
            ),
            seed=int.from_bytes(digest[:7], "little"),
            good=order.good,
            bad=order.bad,
            parents=order.parents,
            terms=order.terms,
            words=order.words,
        )

    def _count(self, name: str, answer: Answer | GenerationError) -> None:
        usage = self.usage[name]
        usage.calls += 1
        if isinstance(answer, Answer):
            usage.prompt_tokens += answer.prompt_tokens
            usage.completion_tokens += answer.completion_tokens
            usage.price_usd += answer.price_usd
            if answer.note:
                usage.notes[answer.note] = usage.notes.get(answer.note, 0) + 1


def _key(step: str, generator: str, index: int | str) -> str:
    return f"generate/{step}/{generator}/{index}"


def _encode(answer: Answer | GenerationError) -> bytes:
    if isinstance(answer, GenerationError):
        return json.dumps({"error": answer.problem}).encode("utf-8")
    fields = [answer.text, answer.prompt_tokens, answer.completion_tokens, answer.price_usd, answer.note]
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _decode(entry: bytes) -> Answer | GenerationError:
    value = json.loads(entry.decode("utf-8", "surrogatepass"))
    return GenerationError(value["error"]) if isinstance(value, dict) else Answer(*value)
