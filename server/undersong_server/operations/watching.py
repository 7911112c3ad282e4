"""Following a run while another process drives it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from undersong_common.errors import TransportError
from undersong_common.plurals import counted
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.operations.enrolment import parties
from undersong_server.operations.runs import LOG_LINES
from undersong_server.runs.folder import ENDED, FINAL, RunStatus, logged

POLL_S = 0.2
STAMP = len("2026-01-01 00:00:00 ")


@dataclass(frozen=True)
class RunEvent:
    """Something happened.

    Attributes:
        lines: new ones in the run's log; without what the run's error says again.
        status: how the run stands now.
        served: whether a process drives it.
        contacts: whom to telephone, by the name of a party whose people are waited for.
        away_because: why a party whose machine is waited for is away, by its name, as far as it may be known here.
    """

    lines: tuple[str, ...]
    status: RunStatus
    served: bool
    contacts: tuple[tuple[str, str], ...] = ()
    away_because: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "lines": list(self.lines),
            "status": self.status.to_json(),
            "served": self.served,
            "contacts": dict(self.contacts),
            "away_because": dict(self.away_because),
        }

    @property
    def kind(self) -> tuple[Any, ...]:
        """What makes it another event than the one before, for whoever wants no countdown."""
        status = self.status
        awaited = () if status.waiting is None else (status.waiting.whom, *(p.party for p in status.waiting.parties))
        return (status.state, status.phase, awaited, self.served, self.away_because)


def watch(home: Path, run: str, *, timeout_s: float | None = None) -> Iterator[RunEvent]:
    """Yields an event for each change until the run ends; the last event's status says how.

    The first event holds the last lines of the log. Where a later action is requested of a failed run, its old end
    does not count.

    Args:
        timeout_s: gives up after so many seconds; None never does.

    Raises:
        ConfigurationError: no such run.
        TransportError: the run did not end in time; it goes on.
    """
    opened = CoordinatorHome(home)
    folder = opened.run(run)
    folder.planned()
    begun = time.monotonic()
    read = max(0, len(folder.log()) - LOG_LINES)
    shown: tuple[object, ...] | None = None
    while True:
        if len(folder.log()) > read:
            time.sleep(POLL_S)  # what is said and the end that it brings come together
        status, served = folder.status(), opened.served
        lines = tuple(folder.log()[read:])
        read += len(lines)
        ended = status.state in FINAL or (status.state in ENDED and status.number >= folder.requested().number)
        because = away_because(home, status)
        if lines or (status.words, served, because) != shown or ended:
            shown = (status.words, served, because)
            new = _new(lines, status if ended else None)
            yield RunEvent(new, status, served, _contacts(opened, status), because)
        if ended:
            return
        if timeout_s is not None and time.monotonic() - begun > timeout_s:
            raise TransportError(f"run {run!r} did not end within {timeout_s:g} s", "it goes on; watch it again")
        time.sleep(POLL_S)


def _new(lines: tuple[str, ...], ended: RunStatus | None) -> tuple[str, ...]:
    """Without the lines that say what the run's error says: it is told once, with its remedy."""
    if ended is None or ended.error is None:
        return lines
    told = {logged(ended.error.problem), logged(f"failed: {ended.error.problem}")}
    return tuple(line for line in lines if line[STAMP:] not in told)


def mark(home: Path, run: str) -> list[object]:
    """Changes when anything of a run has changed; its name may be of none."""
    folder = CoordinatorHome(home).run(run)
    found: list[object] = []
    for name in ("status.json", "requested.json", "log.txt", "live.jsonl", "output"):
        path = folder.path / name
        found.append([path.stat().st_mtime_ns, path.stat().st_size] if path.exists() else None)
    return found


def contacts(home: Path, status: RunStatus) -> tuple[tuple[str, str], ...]:
    """Whom to telephone, by the name of a party whose people are waited for."""
    return _contacts(CoordinatorHome(home), status)


def away_because(home: Path, status: RunStatus) -> tuple[tuple[str, str], ...]:
    """Why parties that are waited for are away, by name; without those of whom nothing is known."""
    awaited = () if status.waiting is None else status.waiting.parties
    away = {party.party for party in awaited if not party.connected}
    if not away:
        return ()
    found = [(each.party.name, each.away_because) for each in parties(home) if each.party.name in away]
    return tuple((name, because) for name, because in found if because)


def log(home: Path, run: str, lines: int = 200) -> tuple[str, ...]:
    """The last lines of a run's log. Raises ConfigurationError for an unknown run."""
    folder = CoordinatorHome(home).run(run)
    folder.planned()
    return tuple(folder.log()[-lines:])


@dataclass(frozen=True)
class Moment:
    """Something in a run's course; ``at`` in seconds since the epoch, ``grade`` says whether it is over or failed."""

    at: float
    words: str
    grade: Literal["done", "now", "bad"] = "done"


def timeline(home: Path, run: str) -> tuple[Moment, ...]:
    """A run from its plan to what it does now: people's decisions, what was written, what was opened, what failed.

    Raises ConfigurationError for an unknown run.
    """
    folder = CoordinatorHome(home).run(run)
    planned, status = folder.planned(), folder.status()
    found = [Moment((folder.path / "plan.json").stat().st_mtime, f"planned with {', '.join(planned.roster)}")]
    requested = folder.path / "requested.json"
    if requested.exists():
        found.append(Moment(requested.stat().st_mtime, f"requested: {folder.requested().action}"))
    for line in folder.log():
        with contextlib.suppress(ValueError):
            at = time.mktime(time.strptime(line[: STAMP - 1], "%Y-%m-%d %H:%M:%S"))
            words = line[STAMP:]
            found.append(Moment(at, words, "bad" if words.startswith("failed") else "done"))
    for told in folder.live():
        if told["kind"] == "sum":
            taken = f"{len(told['survivors'])} of {counted(len(planned.roster), 'party', 'parties')}"
            found.append(Moment(told["at"], f"opened {told['name']} from {taken}"))
        elif told["kind"] == "texts":
            found.append(Moment(told["at"], f"wrote {counted(len(told['texts']), 'text')}: {told['step']}"))
    found.sort(key=lambda moment: int(moment.at))  # the log has whole seconds
    if status.state not in ENDED and status.at is not None:
        found.append(Moment(status.at, status.words, "now"))
    return tuple(found)


def _contacts(home: CoordinatorHome, status: RunStatus) -> tuple[tuple[str, str], ...]:
    if status.waiting is None or status.waiting.whom != "people":
        return ()
    awaited = {party.party for party in status.waiting.parties}
    with closing(home.registry()) as registry:
        return tuple((party.name, party.contact) for party in registry.parties() if party.name in awaited)
