"""One run of the coordinator as files: what was planned, what the operator wants, how it stands, what came of it.

Commands and the serving process talk through these files only. Each is replaced whole, so that both may be killed
anywhere; the serving process alone writes ``status.json``, the commands alone write ``wanted.json``.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from undersong_common import configuration
from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file
from undersong_common.printable import printable
from undersong_server.runs import planning
from undersong_server.runs.planning import RunPlan
from undersong_server.runs.task import Task

NEW_LINE = re.compile(r"\s*\n\s*")
LONGEST_LINE = 4096  # characters of a line of a run's log
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,98}[A-Za-z0-9]")
State = Literal["planned", "waiting", "running", "paused", "stopped", "finished", "failed"]
Action = Literal["run", "pause", "stop"]
ENDED = ("finished", "stopped", "failed")
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Planned:
    """What ``undersong run plan`` fixed.

    Attributes:
        name: of the run, in the manifest and of its folder.
        task: the task file with its overrides, as read; ``folder`` is where its relative paths start.
        roster: names of the parties that take part.
        seed: of everything public.
        insecure_noise_seed: tests only: the parties' noise is no secret, and the outputs say so.
        patience_s: how long one request waits for a party.
    """

    name: str
    task: Mapping[str, Any]
    folder: str
    roster: tuple[str, ...]
    seed: int
    insecure_noise_seed: int | None
    patience_s: float

    def load(self) -> RunPlan:
        """The plan with its noise, computed anew. Raises ConfigurationError."""
        return planning.plan_run(coordinator_task(self.task, Path(self.folder), self.roster))


def coordinator_task(data: Mapping[str, Any], folder: Path, roster: Sequence[str]) -> Task:
    """A task as the coordinator runs it: it knows the parties' number, and nothing of their files."""
    stated = data.get("federation", {}).get("parties")
    if stated is not None and stated != len(roster):
        raise ConfigurationError(
            f"federation.parties is {stated}, but {len(roster)} parties take part: {', '.join(roster)}",
            "correct the task file, or name the parties with --parties A,B,C",
        )
    own = {key: value for key, value in data.items() if key != "data"}
    kept = {key: value for key, value in data.get("data", {}).items() if key in ("root", "text", "label")}
    federation = {**data.get("federation", {}), "parties": len(roster)}
    task = configuration.validate(
        Task, {**own, "data": kept, "federation": federation, "folder": folder}, "the task file"
    )
    _ = task.options
    return task


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    @property
    def exists(self) -> bool:
        return (self.path / "plan.json").exists()

    @property
    def journal_path(self) -> Path:
        return self.path / "journal.sqlite"

    @property
    def output(self) -> Path:
        return self.path / "output"

    def create(self, planned: Planned) -> None:
        """Raises ConfigurationError for a name that cannot be one, or is taken."""
        if not NAME.fullmatch(planned.name):
            raise ConfigurationError(
                f"the run's name {planned.name!r} cannot be a folder",
                "use letters, digits, spaces, points, hyphens and underscores",
            )
        if self.exists:
            raise ConfigurationError(
                f"a run {planned.name!r} exists already", "choose another --name: a run's name is used once"
            )
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.write_status({"state": "planned"})
        replace_json(self.path / "plan.json", asdict(planned), durable=True)

    def planned(self) -> Planned:
        """Raises ConfigurationError where the folder holds no run."""
        value = read_json(self.path / "plan.json")
        if value is None:
            raise ConfigurationError(f"no run {self.name!r}", "see `undersong run list`")
        return Planned(**{**value, "roster": tuple(value["roster"])})

    def want(self, action: Action) -> None:
        """Notes what the operator wants; the serving process acts upon it within a second, or when it next starts."""
        self.planned()
        number = self.wanted()[1] + 1
        replace_json(self.path / "wanted.json", {"action": action, "number": number}, durable=True)

    def wanted(self) -> tuple[Action | None, int]:
        """What the operator wants, and the number of that wish (0: nothing yet)."""
        value = read_json(self.path / "wanted.json")
        return (None, 0) if value is None else (value["action"], int(value["number"]))

    def status(self) -> dict[str, Any]:
        """How the run stands; always with "state"."""
        return read_json(self.path / "status.json") or {"state": "planned"}

    def write_status(self, status: Mapping[str, Any], *, durable: bool = False) -> None:
        replace_json(self.path / "status.json", {"run": self.name, "at": time.time(), **status}, durable=durable)

    def say(self, line: str) -> None:
        """Adds one line to the run's own log: public words only, and whatever a party had a part in made printable."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        line = printable(NEW_LINE.sub("; ", line), LONGEST_LINE)
        with (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{stamp} {line}\n")

    def log(self) -> list[str]:
        """What :meth:`say` wrote, by lines."""
        try:
            return (self.path / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []


def read_json(path: Path) -> dict[str, Any] | None:
    """None where the file is missing. Raises ConfigurationError for one that was damaged."""
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise ConfigurationError(f"{path}: is not JSON", "restore it from a backup") from None
    return value


def replace_json(path: Path, value: Mapping[str, Any], *, durable: bool) -> None:
    """Replaces a file whole; ``durable``: it is on the disk when this returns."""
    replace_file(path, json.dumps(value, indent=1).encode("utf-8"), durable=durable)
