"""A coordinator with more parties and runs than anybody will have."""

import time
from pathlib import Path

from undersong_server.coordinator.home import CoordinatorHome


def add_parties(home: CoordinatorHome, count: int) -> None:
    """Enrolled parties, ``party-0000`` and so on, that were seen just now."""
    with home.registry().database.writing() as database:
        for number in range(count):
            database.execute(
                "INSERT INTO party (name, state, token, token_expires_at, invited_at, identity, enrolled_at, last_seen)"
                " VALUES (?, 'enrolled', '', 0, 1, ?, 1, ?)",
                (f"party-{number:04}", f"{number:064x}", time.time()),
            )


def repeat_run(first: Path, count: int) -> None:
    """Copies of a planned run's folder, ``run 0000``, until there are so many runs."""
    for number in range(1, count):
        folder = first.parent / f"run {number:04}"
        folder.mkdir()
        for name in ("plan.json", "status.json"):
            (folder / name).write_bytes((first / name).read_bytes())
