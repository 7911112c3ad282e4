"""Asks generators, and journals their answers as they arrive; what the journal has is not asked again."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.generators import batches
from undersong_server.generators.interface import Answer, GenerationRequest, Generator
from undersong_server.journal import Journal
from undersong_server.progress import Progress

T = TypeVar("T")

FLUSH_ANSWERS = 64  # answers of one embedded generator that share a journal write

Asked = tuple[int, str, GenerationRequest]
"""The number of an order in its batch, its generator, and what is asked of it."""


@dataclass
class Speed:
    """Speed of one generator in this process; answers that the journal had do not count.

    Attributes:
        answered: answers that came, those that failed included.
        busy_s: wall-clock seconds in which it was asked, calls under way at the same time counted once.
        timed: answers of which the generator told how long they took; latency_s: how long these took together.
    """

    answered: int = 0
    busy_s: float = 0.0
    timed: int = 0
    latency_s: float = 0.0

    def timed_answers(
        self, answers: Iterator[tuple[int, Answer | GenerationError]]
    ) -> Iterator[tuple[int, Answer | GenerationError]]:
        """The same answers, counted as they come."""
        begun = time.monotonic()
        for position, answer in answers:
            now = time.monotonic()
            self.answered, self.busy_s = self.answered + 1, self.busy_s + now - begun
            if isinstance(answer, Answer) and answer.seconds:
                self.timed, self.latency_s = self.timed + 1, self.latency_s + answer.seconds
            yield position, answer
            begun = time.monotonic()  # without what the caller did with the answer


class Asking:
    """The generators of one run, and their answers in its journal."""

    def __init__(self, generators: Mapping[str, Generator], journal: Journal, progress: Progress) -> None:
        self._generators = generators
        self._journal = journal
        self._progress = progress
        self.speed = {name: Speed() for name in generators}

    def ask(self, step: str, asked: Sequence[Asked]) -> list[Answer | GenerationError]:
        """The answers, in the order of the requests. Those that fail are journaled by :meth:`close` only.

        Raises what a generator raises that cannot go on, of several generators together; what was answered is
        journaled.
        """
        answers: dict[int, Answer | GenerationError] = {}
        by_generator: dict[str, dict[int, GenerationRequest]] = {}
        for index, name, request in asked:
            by_generator.setdefault(name, {})[index] = request
        missing: dict[str, dict[int, GenerationRequest]] = {}
        for name, requests in by_generator.items():
            kept = self.kept(step, name, list(requests))
            answers |= kept
            heard = {i: answer for i, answer in kept.items() if isinstance(answer, Answer)}
            self._generators[name].observe([requests[i] for i in heard], list(heard.values()))
            if missed := {i: request for i, request in requests.items() if i not in kept}:
                missing[name] = missed
        total, done = len(asked), len(answers)
        unwritten: list[tuple[str, bytes]] = []
        try:
            for name, index, answer in self._answers(missing):
                answers[index] = answer
                if isinstance(answer, Answer):
                    unwritten.append((_key(step, name, index), _encode(answer)))
                paid = isinstance(answer, Answer) and answer.completion_tokens > 0
                if paid or len(unwritten) >= FLUSH_ANSWERS:
                    self._journal.put_all(unwritten)
                    unwritten = []
                done += 1
                self._progress.update(f"writing {step}", done, total)
        finally:
            self._journal.put_all(unwritten)
        for index, name, _ in asked:
            if index not in answers:
                raise GenerationError(f"{name}: gave no answer to request {index} of {step}")
        return [answers[index] for index, _, _ in asked]

    def kept(self, step: str, name: str, indices: Sequence[int]) -> dict[int, Answer | GenerationError]:
        """Returns a generator's answers to these requests that the journal has."""
        journaled = self._journal.items(_key(step, name, ""))  # one query: a run has thousands of orders
        return {index: _decode(journaled[key]) for index in indices if (key := _key(step, name, index)) in journaled}

    def close(self, step: str, failed: Sequence[tuple[str, int, GenerationError]], *more: tuple[str, bytes]) -> None:
        """Journals that these requests have failed for good, with ``more``, all or none."""
        failures = [(_key(step, name, index), _encode(error)) for name, index, error in failed]
        self._journal.put_all([*failures, *more])

    def throw_away(
        self, name: str, useless: Sequence[tuple[str, int, Answer | GenerationError]], keys: Sequence[str]
    ) -> list[Answer]:
        """Takes answers (step, index, answer) and further ``keys`` out of the journal, so that they are asked for anew.

        The generator's batches go too, or they would give the same answers again. What the answers cost stays in the
        journal; returns those that were paid for.
        """
        paid = [answer for _, _, answer in useless if isinstance(answer, Answer) and answer.completion_tokens > 0]
        number = len(self._journal.items(_thrown_away_key(name)))
        submitted = self._journal.items(batches.prefix(name))
        self._journal.exchange(
            [*keys, *submitted, *(_key(step, name, index) for step, index, _ in useless)],
            [(f"{_thrown_away_key(name)}{number + place:08}", _encode(answer)) for place, answer in enumerate(paid)],
        )
        return paid

    def thrown_away(self, name: str) -> list[Answer]:
        """Returns the answers that were paid for and thrown away, by any process of this run."""
        entries = self._journal.items(_thrown_away_key(name)).values()
        return [answer for entry in entries if isinstance(answer := _decode(entry), Answer)]

    def charge(self, name: str, thrown_away: Sequence[Answer]) -> None:
        """Tells a generator what an earlier process paid for answers that were thrown away."""
        if thrown_away:
            paid = [GenerationRequest("thrown away", "", "", 0)] * len(thrown_away)
            self._generators[name].observe(paid, thrown_away)

    def _answers(
        self, missing: Mapping[str, Mapping[int, GenerationRequest]]
    ) -> Iterator[tuple[str, int, Answer | GenerationError]]:
        """Yields the answers of all generators as they arrive, each generator in a thread of its own."""

        def ask(name: str, _stop: threading.Event) -> Iterator[tuple[str, int, Answer | GenerationError]]:
            indices = list(missing[name])
            answers = self._generators[name].answer(list(missing[name].values()))
            for position, answer in self.speed[name].timed_answers(answers):
                yield name, indices[position], answer

        failures: list[BaseException] = []
        yield from merged({name: partial(ask, name) for name in missing}, failures)
        if failures:
            raise _together(failures)


def merged(
    sources: Mapping[str, Callable[[threading.Event], Iterator[T]]], failures: list[BaseException]
) -> Iterator[T]:
    """Yields the items of all sources as they come; each source is at most one item ahead of the reader.

    Several sources run in daemon threads of their names, so that an interrupted process does not wait for calls in
    flight; a single one runs in the reader's thread and raises what it raises. A failed source sets the event that each
    of them is given. The others then end with the item that they are at, and ``failures`` tells why.
    """
    stop = threading.Event()
    if len(sources) == 1:
        for source in sources.values():
            yield from source(stop)
        return
    arrived: queue.SimpleQueue[tuple[str, list[T]]] = queue.SimpleQueue()  # no item: the source has ended
    taken = {name: threading.Semaphore(0) for name in sources}

    def work(name: str) -> None:
        try:
            for item in sources[name](stop):
                arrived.put((name, [item]))
                taken[name].acquire()
                if stop.is_set():
                    break
        except BaseException as error:  # noqa: BLE001 - handed to the reader
            failures.append(error)
            stop.set()
        arrived.put((name, []))

    for name in sources:
        threading.Thread(target=work, args=(name,), daemon=True, name=name).start()
    try:
        running = len(sources)
        while running:
            name, items = arrived.get()
            yield from items
            running -= not items
            taken[name].release()
    finally:
        stop.set()
        for each in taken.values():
            each.release()


def _together(failures: Sequence[BaseException]) -> BaseException:
    """Returns one error that says what all of them say; an error of another kind than this program's comes alone."""
    said = [failure for failure in failures if isinstance(failure, ConfigurationError | GenerationError)]
    if len(said) < len(failures) or len(said) == 1:
        return next((failure for failure in failures if failure not in said), failures[0])
    return type(said[0])(
        "\n".join(failure.problem for failure in said), "; ".join(dict.fromkeys(failure.remedy for failure in said))
    )


def _key(step: str, generator: str, index: int | str) -> str:
    return f"generate/{step}/{generator}/{index}"


def _thrown_away_key(generator: str) -> str:
    return f"thrown away/{generator}/"


def _encode(answer: Answer | GenerationError) -> bytes:
    if isinstance(answer, GenerationError):
        return json.dumps({"error": answer.problem}).encode("utf-8")
    fields = [
        *(answer.text, answer.prompt_tokens, answer.completion_tokens, answer.price_usd, answer.note, answer.finish)
    ]
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _decode(entry: bytes) -> Answer | GenerationError:
    value = json.loads(entry.decode("utf-8", "surrogatepass"))
    return GenerationError(value["error"]) if isinstance(value, dict) else Answer(*value)
