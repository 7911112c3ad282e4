"""Shared state of the console's screens: the coordinator's folder, its runs and their plans."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undersong_common.pages.stream import Pulse
from undersong_server.operations import coordinator, runs
from undersong_server.operations.following import Plans
from undersong_server.operations.overview import RunIndex

PULSE_S = 1.0
AWAY = "The coordinator is not running: this page is unchanged since it stopped. Start the coordinator to continue."


@dataclass(frozen=True)
class ConsoleContext:
    """One coordinator.

    Attributes:
        tasks: folders whose task files are offered, and whose files tasks from the console may name.
        keys: (host, environment variable) of every key that a task from the console may send.
        environment: variables in which generators find their keys, for a test call.
        public_cache: file with embeddings of public texts.
    """

    home: Path
    tasks: tuple[Path, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    public_cache: Path = Path("public-embeddings.sqlite")
    index: RunIndex = field(init=False)
    plans: Plans = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", RunIndex(self.home))
        object.__setattr__(self, "plans", Plans(self.home))

    def pulse(self, topic: str) -> Pulse:
        """Version of the coordinator's state, or of one run: ``topic`` is "all", or "run NAME"."""
        served = coordinator.is_served(self.home)
        marks: list[Any] = [served]
        if topic.startswith("run "):
            marks.append(runs.mark(self.home, topic.removeprefix("run ")))
        else:
            marks.append([(run.run, run.status.words) for run in self.index.runs(age_s=PULSE_S)])
            marks.append(coordinator.mark(self.home))
        version = hashlib.sha256(json.dumps(marks, default=str).encode()).hexdigest()[:16]
        return Pulse(version, "" if served else AWAY)

    def live(self, topic: str) -> dict[str, Any]:
        """Returns the variables of a screen that renews itself."""
        return {"topic": topic, "pulse": self.pulse(topic).version}
