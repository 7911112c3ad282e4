"""A party's ledger of one data set: append-only, hash-chained, written before anything leaves (PRIVACY.md, Accounting).

One JSON object a line. Every entry holds the hash of the one before, so that a changed, lost or reordered line shows.
An entry is on disk when the call that makes it returns. Nothing in it describes the data: only public names and figures.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from common.canonical import canonical_json, tagged_hash
from common.errors import ConfigurationError, InternalError, PrivacyRefusal
from common.privacy import accounting

VERSION = 1
_FIRST = bytes(32).hex()
_EVENTS: dict[str, type[accounting.Event]] = {
    "gaussian": accounting.Gaussian,
    "laplace": accounting.Laplace,
    "discrete_laplace": accounting.DiscreteLaplace,
    "pure": accounting.Pure,
}


@dataclass(frozen=True)
class Budget:
    """A party's own limit over all runs on a data set; either may be infinite."""

    epsilon: float = math.inf
    delta: float = math.inf


@dataclass(frozen=True)
class Slot:
    """What is charged at most once: one attempt at one private sum of one manifest (hash in hex)."""

    run: str
    manifest: str
    sum: str
    attempt: int


@dataclass(frozen=True)
class Charge:
    """One release. ``event`` None is a release without noise; ``delta`` is the run's."""

    slot: Slot
    event: accounting.Event | None
    delta: float


class Ledger:
    """The ledger in ``path``, begun for the data set ``fingerprint`` where the file does not exist yet.

    Args:
        fingerprint: keyed hash that names the data set.
        clock: seconds since the epoch, for the entries' times.

    Raises:
        ConfigurationError: another data set's ledger, a broken chain (the line is named), or an unwritable file.
    """

    def __init__(self, path: Path, fingerprint: str, *, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._entries: list[dict[str, Any]] = []
        self._size = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked() as file:
                self._load(file)
                if not self._entries:
                    self._append(file, {"kind": "genesis", "version": VERSION, "data_set": fingerprint})
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}", "check the folder and its permissions") from None
        genesis = self._entries[0]
        if genesis.get("kind") != "genesis" or genesis.get("version") != VERSION:
            raise ConfigurationError(f"{path}: is no ledger of version {VERSION}", "restore the ledger")
        if genesis["data_set"] != fingerprint:
            raise ConfigurationError(
                f"{path}: belongs to another data set", "the records changed: give the new data set its own ledger"
            )

    @property
    def head(self) -> str:
        """Hash (hex) of the last entry: the whole ledger in 32 bytes."""
        head: str = self._entries[-1]["hash"]
        return head

    @property
    def entries(self) -> Sequence[Mapping[str, Any]]:
        """All entries in order."""
        return tuple(self._entries)

    @property
    def budget(self) -> Budget:
        """The limit set last; unlimited where none was set."""
        for entry in reversed(self._entries):
            if entry["kind"] == "budget":
                return Budget(_finite(entry["epsilon"]), _finite(entry["delta"]))
        return Budget()

    def set_budget(self, budget: Budget) -> None:
        """Sets the limit over all runs. Raises PrivacyRefusal where more is spent already."""
        if budget != self.budget:
            self._check(self._charges(), budget)
            self._write({"kind": "budget", "epsilon": _number(budget.epsilon), "delta": _number(budget.delta)})

    def check_room(self, planned: Sequence[Charge]) -> None:
        """Raises PrivacyRefusal where a run's whole plan, added to what is spent, exceeds the budget."""
        done = {charge.slot for charge in self._charges()}
        self._check([*self._charges(), *(charge for charge in planned if charge.slot not in done)], self.budget)

    def charge(self, charge: Charge) -> None:
        """Writes a charge, on disk on return; the same charge again is no change.

        Raises:
            PrivacyRefusal: it exceeds the budget, or the slot was charged for something else or voided.
        """
        for entry in self._entries:
            if entry["kind"] == "charge" and _slot(entry) == charge.slot:
                if _charge(entry) == charge and not self.is_void(charge.slot):
                    return
                raise PrivacyRefusal(
                    f"{charge.slot.sum}: attempt {charge.slot.attempt} was charged for another release, or voided",
                    "begin a new attempt",
                )
        self._check([*self._charges(), charge], self.budget)
        self._write({"kind": "charge", **asdict(charge.slot), "event": _event(charge.event), "delta": charge.delta})

    def void(self, slot: Slot, certificate: str) -> None:
        """Takes a charge back on the strength of a void certificate (its SHA-256, hex); once."""
        if not self.is_void(slot):
            self._write({"kind": "void", **asdict(slot), "certificate": certificate})

    def is_void(self, slot: Slot) -> bool:
        return any(entry["kind"] == "void" and _slot(entry) == slot for entry in self._entries)

    def spent(self, delta: float) -> tuple[float, float]:
        """(epsilon, delta) of everything charged and not voided, across all runs.

        Where every release is Gaussian, mu^2 adds and epsilon is stated at ``delta``. Else the runs' own epsilons (each
        at its own delta) and deltas add.
        """
        return _spent(self._charges(), delta)

    def of_run(self, manifest: str) -> list[Mapping[str, Any]]:
        """The entries (charges and voids) of one manifest (hash in hex)."""
        return [entry for entry in self._entries if entry.get("manifest") == manifest]

    def _charges(self) -> list[Charge]:
        return charges_of(self._entries)

    def _check(self, charges: Sequence[Charge], budget: Budget) -> None:
        if math.isinf(budget.epsilon):
            return
        reference = budget.delta if math.isfinite(budget.delta) else max((c.delta for c in charges), default=0.0)
        epsilon, delta = _spent(charges, reference)
        if epsilon > budget.epsilon * (1 + 1e-6) or delta > budget.delta * (1 + 1e-6):
            raise PrivacyRefusal(
                f"this party's budget is epsilon {budget.epsilon:g} (delta {budget.delta:g});"
                f" with this run epsilon {epsilon:.4g} (delta {delta:.3g}) would be spent",
                "plan a smaller run, or raise the budget of this data set",
            )

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _load(self, file: BinaryIO) -> None:
        data = file.read()
        complete = data.rfind(b"\n") + 1
        if complete < len(data):
            # Torn by a crash while it was written: what it would have allowed was never sent.
            file.truncate(complete)
        self._entries = list(parse(data[:complete], str(self._path)))
        self._size = complete

    def _write(self, body: dict[str, Any]) -> None:
        try:
            with self._locked() as file:
                if file.seek(0, os.SEEK_END) != self._size:
                    raise InternalError(f"{self._path}: another process writes this ledger", "stop the other one")
                self._append(file, body)
        except OSError as error:
            raise ConfigurationError(
                f"{self._path}: cannot be written: {error.strerror}", "free space; nothing was sent"
            ) from None

    def _append(self, file: BinaryIO, body: dict[str, Any]) -> None:
        previous = self._entries[-1]["hash"] if self._entries else _FIRST
        entry = {"number": len(self._entries), "time": self._clock(), "previous": previous, **body}
        entry["hash"] = _hash(entry)
        line = canonical_json(entry) + b"\n"
        file.seek(self._size)
        try:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            file.truncate(self._size)
            raise
        self._entries.append(entry)
        self._size += len(line)


def parse(data: bytes, source: str) -> Iterator[dict[str, Any]]:
    """The entries of a ledger's bytes, its chain checked. Raises ConfigurationError naming the first broken line."""
    previous = _FIRST
    for number, line in enumerate(data.splitlines()):
        try:
            entry = json.loads(line)
            intact = entry["number"] == number and entry["previous"] == previous and entry["hash"] == _hash(entry)
        except (ValueError, KeyError, TypeError):
            intact = False
        if not intact:
            raise ConfigurationError(
                f"{source}: line {number + 1} breaks the ledger's hash chain",
                "restore the ledger from a copy; without it this data set must not be used again",
            )
        previous = entry["hash"]
        yield entry


def charges_of(entries: Sequence[Mapping[str, Any]]) -> list[Charge]:
    """The charges among ledger entries, voided ones left out: what an auditor composes."""
    voided = {_slot(entry) for entry in entries if entry["kind"] == "void"}
    return [_charge(entry) for entry in entries if entry["kind"] == "charge" and _slot(entry) not in voided]


def _spent(charges: Sequence[Charge], delta: float) -> tuple[float, float]:
    if not charges:
        return 0.0, 0.0
    if any(charge.event is None for charge in charges):
        return math.inf, delta
    events = [charge.event for charge in charges if charge.event is not None]
    if accounting.composed_mu(events) is not None:
        return accounting.epsilon(events, delta), delta
    runs: dict[str, list[Charge]] = {}
    for charge in charges:
        runs.setdefault(charge.slot.manifest, []).append(charge)
    epsilon = sum(
        accounting.epsilon([charge.event for charge in run if charge.event is not None], run[0].delta)
        for run in runs.values()
    )
    return epsilon, sum(run[0].delta for run in runs.values())


def _hash(entry: Mapping[str, Any]) -> str:
    body = {key: value for key, value in entry.items() if key != "hash"}
    return tagged_hash("undersong ledger", canonical_json(body)).hex()


def _slot(entry: Mapping[str, Any]) -> Slot:
    return Slot(entry["run"], entry["manifest"], entry["sum"], entry["attempt"])


def _charge(entry: Mapping[str, Any]) -> Charge:
    return Charge(_slot(entry), _parsed_event(entry["event"]), entry["delta"])


def _event(event: accounting.Event | None) -> dict[str, Any] | None:
    if event is None:
        return None
    kind = next(name for name, known in _EVENTS.items() if type(event) is known)
    return {"kind": kind, **asdict(event)}


def _parsed_event(value: Mapping[str, Any] | None) -> accounting.Event | None:
    if value is None:
        return None
    return _EVENTS[value["kind"]](**{key: item for key, item in value.items() if key != "kind"})


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _finite(value: float | None) -> float:
    return math.inf if value is None else value
