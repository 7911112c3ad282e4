"""A cluster in this process: every call and value is pickled, as between machines, and the last call is made first."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class PickledCalls:
    """What :class:`undersong_server.cluster.Cluster` does for who gives it work.

    Attributes:
        cores: as many as were asked for.
        asked: how many calls each use made.
    """

    def __init__(self, cores: int = 2) -> None:
        self.cores = cores
        self.asked: list[int] = []

    def each(
        self, function: Callable[..., Any], calls: Sequence[Sequence[Any]], *, gpus: int = 0
    ) -> Iterator[tuple[int, Any]]:
        self.asked.append(len(calls))
        for number in reversed(range(len(calls))):
            called, arguments = pickle.loads(pickle.dumps((function, tuple(calls[number]))))
            yield number, pickle.loads(pickle.dumps(called(*arguments)))
