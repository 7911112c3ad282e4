"""A local model in name only, for workers of a cluster: it writes a request's seed, and says by whom it was asked."""

import os
import time
from pathlib import Path
from typing import Any, Literal

from undersong_server.generators.interface import Completion, Surroundings
from undersong_server.generators.kinds.transformers import TransformersSettings


class WriterSettings(TransformersSettings):
    """``path``: a folder for one file per part that was begun: its name is the first seed, its text the process."""

    kind: Literal["writer"] = "writer"  # type: ignore[assignment]
    pause_s: float = 0.0

    @property
    def together(self) -> int:
        return 3

    def build(self, around: Surroundings) -> Any:
        return Writer(self, around.folder / self.path)


class Writer:
    def __init__(self, settings, folder: Path) -> None:
        self.counts: dict[str, int] = {}
        self.name, self._pause_s, self._folder = settings.name, settings.pause_s, folder

    def observe(self, requests, answers): ...

    def answer(self, requests):
        with (self._folder / str(requests[0].seed)).open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(self._pause_s)
        for index, request in enumerate(requests):
            yield index, Completion(f"text {request.seed}", 1, 2)
