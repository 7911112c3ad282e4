"""Answers of several generators at the same time, and how fast each of them is."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from undersong_common.errors import ConfigurationError, GenerationError
from undersong_server.generators.interface import Answer, GenerationRequest, Generator

T = TypeVar("T")


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
        """Yields the given answers unchanged, and counts and times them."""
        begun = time.monotonic()
        for position, answer in answers:
            now = time.monotonic()
            self.answered, self.busy_s = self.answered + 1, self.busy_s + now - begun
            if isinstance(answer, Answer) and answer.seconds:
                self.timed, self.latency_s = self.timed + 1, self.latency_s + answer.seconds
            yield position, answer
            begun = time.monotonic()  # without what the caller did with the answer


def answers_of(
    generators: Mapping[str, Generator],
    requests: Mapping[str, Mapping[int, GenerationRequest]],
    speed: Mapping[str, Speed],
) -> Iterator[tuple[str, int, Answer | GenerationError]]:
    """Yields (generator, number, answer) as answers arrive, each generator in a thread of its own.

    Raises the error of a generator that cannot go on; of several such errors, one that names them all.
    """

    def ask(name: str, _stop: threading.Event) -> Iterator[tuple[str, int, Answer | GenerationError]]:
        numbers = list(requests[name])
        answers = generators[name].answer(list(requests[name].values()))
        for position, answer in speed[name].timed_answers(answers):
            yield name, numbers[position], answer

    failures: list[BaseException] = []
    yield from merged({name: partial(ask, name) for name in requests}, failures)
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
        "\n".join(failure.problem for failure in said),
        "; ".join(dict.fromkeys(failure.remedy for failure in said)),
        code=said[0].code,
    )
