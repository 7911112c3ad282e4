"""A simulation's folder: which run it holds, and the state that a continued run needs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from undersong_client.storage import store
from undersong_common.errors import ConfigurationError
from undersong_server.journal import Journal
from undersong_server.release.files import OUTPUT_NAMES
from undersong_server.runs.task import Task

STATE = ".undersong"
KEYS = "keys.json"
# 1 divided the records by shuffles and derived the parties' data keys from the seed; 2 had prompts of another form and
# did not keep what became of an answer.
FORMAT = 3


class Workspace:
    """One output folder, opened for one run. Raises ConfigurationError where it holds anything else.

    Attributes:
        folder: the output folder.
        journal: the coordinator's.
        state: folder of what only this program reads (journal, encrypted party stores, keys).
    """

    def __init__(self, folder: Path, task: Task, arguments: dict[str, Any], *, fresh: bool) -> None:
        self.folder = folder.absolute()
        self.state = self.folder / STATE
        if fresh:
            self._clear()
        known = (self.state / "journal.sqlite").exists()
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigurationError(f"{folder}: is a file", "name a folder with --out")
        if not known and self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigurationError(f"{folder}: holds files that no run of Undersong wrote", "name an empty folder")
        try:
            self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigurationError(f"{folder}: cannot be made: {error.strerror}", "choose another --out") from None
        self.journal = Journal(self.state / "journal.sqlite")
        self.continued = known
        self._claim(task, arguments)

    @property
    def parties_path(self) -> Path:
        return self.state / "parties.sqlite"

    def _claim(self, task: Task, arguments: dict[str, Any]) -> None:
        """Raises ConfigurationError for another run's folder; how models are reached and limited may have changed."""
        described = task.model_dump(mode="json", exclude={"output", "generators"})
        described["generators"] = [generator.identity() for generator in task.generators]
        described |= {"arguments": arguments, "format": FORMAT}
        ours = hashlib.sha256(json.dumps(described, sort_keys=True).encode("utf-8")).digest()
        theirs = self.journal.get("run/task")
        if theirs is None:
            self.journal.put("run/task", ours)
        elif theirs != ours:
            self.journal.close()
            raise ConfigurationError(
                f"{self.folder}: holds another run (another task file, option or seed, or of an older Undersong)",
                "name another folder with --out, or start over with --fresh",
            )

    def _clear(self) -> None:
        store.close(self.parties_path)
        if not (self.state / "journal.sqlite").exists():
            return
        for name in OUTPUT_NAMES:
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.state)

    def secrets(self, draw: Any) -> dict[str, str]:
        """Keys of the simulated parties, drawn once and kept readable by this user only."""
        path = self.state / KEYS
        if path.exists():
            return read_keys(self.state)
        drawn: dict[str, str] = draw()
        temporary = path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(drawn, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        return drawn


def read_keys(state: Path) -> dict[str, str]:
    """The simulated parties' keys (hex) by their names, as :meth:`Workspace.secrets` drew them."""
    kept: dict[str, str] = json.loads((state / KEYS).read_text(encoding="utf-8"))
    return kept
