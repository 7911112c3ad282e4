"""How a run stands, as the process that drives it writes it and every command reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

State = Literal["planned", "waiting", "running", "paused", "stopped", "finished", "failed"]
ENDED = ("finished", "stopped", "failed")
FINAL = ("finished", "stopped")  # no requested action changes these any more
STATE_AFTER: Mapping[str, State] = {"pause": "paused", "stop": "stopped"}  # what a requested action leaves a run in


@dataclass(frozen=True)
class AwaitedParty:
    """A party whose connection or reply is missing; ``seconds`` since it connected or was lost, None if never seen."""

    party: str
    connected: bool
    seconds: float | None


@dataclass(frozen=True)
class Awaited:
    """For whom a run waits.

    Attributes:
        since, goes_on_at: seconds since the epoch; ``goes_on_at`` is None where it waits without a limit.
        goes_on_with: how many parties are enough.
        words: the same as one sentence.
        whom: people who have to decide, or machines that have to answer.
    """

    parties: tuple[AwaitedParty, ...]
    since: float
    goes_on_at: float | None
    goes_on_with: int
    words: str
    whom: Literal["machines", "people"] = "machines"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Awaited:
        rest = {key: item for key, item in value.items() if key != "for"}
        return cls(tuple(AwaitedParty(**party) for party in value["for"]), **rest)

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        return {"for": list(value.pop("parties")), **value}


@dataclass(frozen=True)
class RunFailure:
    """Why a run failed; ``exit_code`` is that of the error, for whoever watches it."""

    problem: str
    remedy: str
    exit_code: int


@dataclass(frozen=True)
class RunStatus:
    """How a run stands.

    Attributes:
        number: of the requested action that was carried out, 0 for none.
        at, since: when this was written and when the run's driver began, seconds since the epoch; None before that.
        phase: what is done now, ``done`` of ``total``; "" between phases.
        message: the last line of the run's log.
    """

    state: State = "planned"
    number: int = 0
    at: float | None = None
    since: float | None = None
    phase: str = ""
    done: int = 0
    total: int = 0
    message: str = ""
    waiting: Awaited | None = None
    error: RunFailure | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunStatus:
        """The status that :meth:`to_json` wrote; keys of a newer program are left aside."""
        known = {field.name for field in fields(cls)}
        plain = {key: item for key, item in value.items() if key in known}
        waiting, error = plain.pop("waiting", None), plain.pop("error", None)
        return cls(
            **plain,
            waiting=None if waiting is None else Awaited.from_json(waiting),
            error=None if error is None else RunFailure(**error),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what does not apply now is left out."""
        value: dict[str, Any] = {"state": self.state, "number": self.number, "at": self.at, "since": self.since}
        if self.phase:
            value |= {"phase": self.phase, "done": self.done, "total": self.total}
        if self.message:
            value["message"] = self.message
        if self.waiting is not None:
            value["waiting"] = self.waiting.to_json()
        if self.error is not None:
            value["error"] = asdict(self.error)
        return {key: item for key, item in value.items() if item is not None}

    @property
    def words(self) -> str:
        """How the run stands, in one line."""
        parts: list[str] = [self.state]
        if self.phase:
            parts.append(f"{self.phase} {self.done}/{self.total}")
        if self.waiting is not None:
            parts.append(self.waiting.words)
        if self.error is not None:
            parts.append(self.error.problem)
        return ": ".join(parts)
