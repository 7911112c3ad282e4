"""What a process that computes vectors does instead. It imports little, because every such process imports it."""

import os
import signal
import time

import numpy as np

from undersong_client.answering.computation import Computation, Computed, VectorRequest
from undersong_protocol.statistics.vectors import GridVector


class Scripted(Computation):
    """Does one thing in that process."""

    def __init__(self, what: str) -> None:
        self.what = what

    def vector(self, request: VectorRequest, *, start_s: float) -> Computed:
        match self.what:
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raises":
                raise KeyError("a private note")
            case "sleeps":
                time.sleep(60)
            case "priority":
                return Computed(GridVector(np.array([os.nice(0), os.getpid(), os.getppid()])), ("a caution",))
            case "another length":
                return Computed(GridVector(np.zeros(4, dtype=np.int64)))
        return Computed(GridVector(np.full(3, 7)))
