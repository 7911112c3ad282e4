"""A party's own record of what every release of one data set cost: append-only, hash-chained, on disk before a send.

One line of canonical JSON an entry, each with the hash of the line before it. The kinds are ``genesis`` (fingerprint of
the data set and declared budget), ``charge`` (one attempt at one private sum of one run), ``void`` (a certificate that
nothing of an attempt was opened: its charge no longer counts), ``budget`` and ``data`` (a later budget, a later version
of the same data set). No entry says anything about private values: names, hashes, noise multipliers and rates only.

A line is one write, and :meth:`Ledger.charge` returns after fsync; what a crash leaves without its newline was never
acted upon and is dropped at the next opening. Everything else that does not fit the chain is refused, never repaired.
What a chain cannot show is that whole lines are missing at its end; :attr:`Ledger.head` is there to be kept elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.files import sync_folder
from undersong_common.privacy import accounting
from undersong_common.privacy.accounting import DiscreteLaplace, Event, Gaussian, Laplace, Pure

VERSION = 1
TOLERANCE = 1e-6  # relative; a plan is calibrated to its epsilon no closer than that
_START = "0" * 64
_EVENTS: dict[str, type[Any]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "discrete_laplace": DiscreteLaplace,
    "pure": Pure,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


@dataclass(frozen=True)
class Budget:
    """What the owner of a data set allows over all runs. ``epsilon`` may be inf."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 < self.delta < 1:
            raise ConfigurationError(
                f"budget of epsilon {self.epsilon}, delta {self.delta}", "epsilon above 0, delta between 0 and 1"
            )


@dataclass(frozen=True)
class Charge:
    """One attempt at one private sum, as a party prices it itself.

    Attributes:
        run: name of the run.
        manifest: hash (hex) of the manifest that the run was agreed under.
        query: name of the private sum in its plan.
        attempt: number of the attempt.
        events: what is released, under the assumed number of honest survivors.
        question: q (hex), the digest of the public inputs that the sum was asked with; "" where none is meant.
    """

    run: str
    manifest: str
    query: str
    attempt: int
    events: tuple[Event, ...]
    question: str = ""

    @property
    def slot(self) -> tuple[str, str, int]:
        return self.run, self.query, self.attempt


class Ledger:
    """The ledger of one data set. Use :meth:`open`; two processes may hold the same file open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: list[dict[str, Any]] = []
        self._charges: dict[tuple[str, str, int], Charge] = {}
        self._voids: set[tuple[str, str, int]] = set()
        self._read_bytes = 0
        self._head = _START
        self._budget: Budget | None = None
        self._fingerprint = ""

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}, {len(self._entries)} entries)"

    @classmethod
    def open(cls, path: Path, fingerprint: str, budget: Budget | None = None, *, at: float = 0.0) -> Ledger:
        """Opens the ledger of a data set, or begins it.

        Args:
            path: the file; its folder is created if need be.
            fingerprint: keyed hash (hex) of the data set; stands in the first entry.
            budget: declared in the first entry where the ledger is new; None declares no limit. Later changes are
                made with :meth:`declare`.
            at: time of this act, seconds since the epoch.

        Raises:
            PrivacyRefusal: the file is another data set's ledger, or its chain is broken (the line is named).
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        ledger = cls(path)
        with ledger._locked() as file:
            if not ledger._entries:
                ledger._append(
                    file,
                    {
                        "kind": "genesis",
                        "version": VERSION,
                        "data": fingerprint,
                        "budget": _budget_json(budget),
                        "at": at,
                    },
                )
                sync_folder(path.parent)
        if ledger._fingerprint != fingerprint:
            raise PrivacyRefusal(
                f"{path} is the ledger of another data set, or of another version of this one",
                "name the right ledger, or carry it over to the new version of the same data (Ledger.adopt)",
            )
        return ledger

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Opens an existing ledger whatever its data set, to show or verify it.

        Raises ConfigurationError where there is none, PrivacyRefusal where its chain is broken.
        """
        if not path.exists():
            raise ConfigurationError(f"{path}: no such ledger", "check the path")
        ledger = cls(path)
        with ledger._locked():
            return ledger

    # What stands in it

    @property
    def fingerprint(self) -> str:
        """Of the data set's latest version."""
        return self._fingerprint

    @property
    def budget(self) -> Budget | None:
        return self._budget

    @property
    def head(self) -> str:
        """Hash (hex) of the last entry; whoever keeps it elsewhere can tell that no line is missing at the end."""
        return self._head

    def entries(self) -> list[dict[str, Any]]:
        """Every entry as it stands in the file, oldest first."""
        self.refresh()
        return [dict(entry) for entry in self._entries]

    def charges(self) -> list[Charge]:
        """The charges that count: all that are not void, oldest first."""
        self.refresh()
        return self._counted()

    def is_void(self, charge: Charge) -> bool:
        """Whether a void certificate was recorded for that attempt."""
        self.refresh()
        return charge.slot in self._voids

    def spent(self, delta: float) -> float:
        """Epsilon, at ``delta``, of everything charged and not void, over all runs.

        All Gaussian: mu^2 adds. Otherwise the Gaussian runs form one part and every other run its own, ``delta`` is
        divided equally among the parts and their epsilons add (docs/privacy.md, "Accounting").
        """
        return _compose(_by_run(self.charges()), delta)

    def refresh(self) -> None:
        """Reads what other processes have appended."""
        with self._locked():
            pass

    @classmethod
    def verify(cls, path: Path) -> int:
        """Checks every line of a ledger against its chain, changing nothing; the number of entries.

        Raises:
            PrivacyRefusal: names the first line that does not fit, an incomplete last line included.
        """
        if not path.exists():
            raise ConfigurationError(f"{path}: no such ledger", "check the path")
        ledger = cls(path)
        data = path.read_bytes()
        ledger._take(data)
        if ledger._read_bytes != len(data):
            raise PrivacyRefusal(
                f"{path}, line {len(ledger._entries) + 1}: incomplete",
                "its program was killed while writing it, before anything was sent; the next run drops it",
            )
        return len(ledger._entries)

    # What is written

    def check_room(self, charge: Charge) -> None:
        """Refuses a run that the budget cannot hold.

        Args:
            charge: the run with ALL events of its plan; they stand in for what it has charged so far.

        Raises:
            PrivacyRefusal: the budget would be exceeded, or the run was charged under another manifest.
        """
        self.refresh()
        self._same_manifest(charge)
        runs = _by_run(self._counted())
        self._check_budget({**runs, charge.run: charge.events}, charge)

    def charge(self, charge: Charge, *, at: float = 0.0) -> None:
        """Writes a charge and returns once it is on the disk; call it before anything is sent.

        Charging the same attempt again with the same content changes nothing.

        Raises:
            PrivacyRefusal: the attempt was charged with other content, is void, its run was charged under another
                manifest, or the budget does not allow it.
        """
        with self._locked() as file:
            if charge.slot in self._voids:
                raise PrivacyRefusal(f"{_place(charge)} is void", "start a new attempt")
            known = self._charges.get(charge.slot)
            if known is not None:
                if known != charge:
                    raise PrivacyRefusal(
                        f"{_place(charge)} was charged already with other content",
                        "an attempt is sent once; a new one needs a new number",
                    )
                os.fsync(file)  # another process may have written it and not have come to its own fsync
                return
            self._same_manifest(charge)
            runs = _by_run(self._counted())
            self._check_budget({**runs, charge.run: (*runs.get(charge.run, ()), *charge.events)}, charge)
            self._append(file, {"kind": "charge", **_charge_json(charge), "at": at})

    def void(self, charge: Charge, certificate: str, *, at: float = 0.0) -> None:
        """Records that nothing of an attempt was opened, so that its charge no longer counts.

        Args:
            charge: the attempt; it may never have been charged here.
            certificate: hash (hex) of the parties' signed statements, which the caller has checked. A second
                certificate for the same attempt changes nothing.
        """
        with self._locked() as file:
            if charge.slot not in self._voids:
                run, query, attempt = charge.slot
                self._append(
                    file,
                    {
                        "kind": "void",
                        "run": run,
                        "query": query,
                        "attempt": attempt,
                        "certificate": certificate,
                        "at": at,
                    },
                )

    def declare(self, budget: Budget | None, *, at: float = 0.0) -> None:
        """Replaces the budget (None: no limit) by an entry of its own."""
        with self._locked() as file:
            self._append(file, {"kind": "budget", "budget": _budget_json(budget), "at": at})

    def adopt(self, fingerprint: str, *, at: float = 0.0) -> None:
        """Carries the ledger over to a new version of the same data set: what was spent stays spent."""
        with self._locked() as file:
            if fingerprint != self._fingerprint:
                self._append(file, {"kind": "data", "data": fingerprint, "at": at})

    # The chain

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, locked against every other holder, its torn end dropped and its new entries read."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file).st_size
            if size < self._read_bytes:
                raise PrivacyRefusal(f"{self.path} became shorter", "restore the ledger; entries are never removed")
            data = os.pread(file, size - self._read_bytes, self._read_bytes)
            self._take(data)
            if self._read_bytes < size:  # no newline: a write that a crash cut off, of which nobody was told
                os.ftruncate(file, self._read_bytes)
                os.fsync(file)
            yield file
        finally:
            os.close(file)

    def _append(self, file: int, content: Mapping[str, Any]) -> None:
        content = {"entry": len(self._entries) + 1, **content, "previous": self._head}
        line = canonical_json({**content, "hash": entry_hash(content)}) + b"\n"
        written = 0
        try:
            written = os.write(file, line)
            os.fsync(file)
        except OSError as error:
            raise self._unwritten(file, os.strerror(error.errno or 0)) from None
        if written != len(line):
            raise self._unwritten(file, "the disk is full")
        self._take(line)

    def _unwritten(self, file: int, reason: str) -> PrivacyRefusal:
        os.ftruncate(file, self._read_bytes)
        return PrivacyRefusal(f"{self.path} could not be written: {reason}", "nothing was sent; make room and resume")

    def _take(self, data: bytes) -> None:
        """Adds the complete lines of ``data`` to what is known; checks each against the chain."""
        end = data.rfind(b"\n") + 1
        for line in data[:end].splitlines(keepends=True):
            number = len(self._entries) + 1
            try:
                entry = json.loads(line)
                content = {key: value for key, value in entry.items() if key != "hash"}
                whole = canonical_json(entry) + b"\n" == line and entry["hash"] == entry_hash(content)
                fits = whole and entry["previous"] == self._head and entry["entry"] == number
                fits = fits and (entry["kind"] == "genesis") == (number == 1)
                if fits:
                    self._apply(entry)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                fits = False
            if not fits:
                raise PrivacyRefusal(
                    f"{self.path}, line {number}: does not fit the chain",
                    "the ledger was changed; restore it from a backup, and release nothing until then",
                )
            self._entries.append(entry)
            self._head = entry["hash"]
            self._read_bytes += len(line)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        match entry["kind"]:
            case "genesis":
                if entry["version"] != VERSION:
                    raise ConfigurationError(f"{self.path}: ledger version {entry['version']}", "update Undersong")
                self._fingerprint, self._budget = entry["data"], _budget(entry["budget"])
            case "charge":
                charge = charge_of(entry)
                if charge.slot in self._charges:
                    raise ValueError
                self._charges[charge.slot] = charge
            case "void":
                self._voids.add((entry["run"], entry["query"], entry["attempt"]))
            case "budget":
                self._budget = _budget(entry["budget"])
            case "data":
                self._fingerprint = entry["data"]
            case _:
                raise ValueError

    # Rules

    def _counted(self) -> list[Charge]:
        return [charge for slot, charge in self._charges.items() if slot not in self._voids]

    def _same_manifest(self, charge: Charge) -> None:
        if any(known.run == charge.run and known.manifest != charge.manifest for known in self._charges.values()):
            raise PrivacyRefusal(
                f"run {charge.run!r} was charged under another manifest", "start a new run under a new name"
            )

    def _check_budget(self, runs: Mapping[str, tuple[Event, ...]], charge: Charge) -> None:
        if self._budget is None or math.isinf(self._budget.epsilon):
            return
        total = _compose(runs, self._budget.delta)
        if total > self._budget.epsilon * (1 + TOLERANCE):
            raise PrivacyRefusal(
                f"{_place(charge)} would bring this data set to epsilon {total:.6g} at delta {self._budget.delta:g}; "
                f"its budget is {self._budget.epsilon:g}",
                "ask for less, or have the data set's owner declare a larger budget",
            )


def _by_run(charges: Sequence[Charge]) -> dict[str, tuple[Event, ...]]:
    runs: dict[str, tuple[Event, ...]] = {}
    for charge in charges:
        runs[charge.run] = (*runs.get(charge.run, ()), *charge.events)
    return runs


def _compose(runs: Mapping[str, tuple[Event, ...]], delta: float) -> float:
    gaussian: list[Event] = []
    parts: list[Sequence[Event]] = []
    for events in runs.values():
        if accounting.composed_mu(events) is None:
            parts.append(events)
        else:
            gaussian.extend(events)
    if gaussian:
        parts.append(gaussian)
    return math.fsum(accounting.epsilon(part, delta / len(parts)) for part in parts)


def _place(charge: Charge) -> str:
    return f"run {charge.run!r}, {charge.query or 'its plan'}, attempt {charge.attempt}"


def entry_hash(content: Mapping[str, Any]) -> str:
    """The hash (hex) that an entry carries: over everything else in it, the hash of the entry before included."""
    return tagged_hash("undersong ledger entry", canonical_json(dict(content))).hex()


def _number(value: float) -> float | str:
    return "inf" if value == math.inf else value  # JSON has no infinity


def _budget_json(budget: Budget | None) -> dict[str, Any] | None:
    return None if budget is None else {"epsilon": _number(budget.epsilon), "delta": budget.delta}


def _budget(value: Mapping[str, Any] | None) -> Budget | None:
    return None if value is None else Budget(float(value["epsilon"]), float(value["delta"]))


def _charge_json(charge: Charge) -> dict[str, Any]:
    events: list[dict[str, Any]] = [
        {"mechanism": _NAMES[type(event)]} | {key: _number(value) for key, value in asdict(event).items()}
        for event in charge.events
    ]
    return {
        "run": charge.run,
        "manifest": charge.manifest,
        "query": charge.query,
        "attempt": charge.attempt,
        "question": charge.question,
        "events": events,
    }


def charge_of(entry: Mapping[str, Any]) -> Charge:
    """An entry of kind ``charge`` as a value. Raises ValueError, KeyError or TypeError for one that is malformed."""
    events = tuple(
        _EVENTS[event["mechanism"]](
            **{key: float(value) if value == "inf" else value for key, value in event.items() if key != "mechanism"}
        )
        for event in entry["events"]
    )
    asked = entry.get("question", "")  # before version 2 it was not written down
    return Charge(entry["run"], entry["manifest"], entry["query"], entry["attempt"], events, asked)
