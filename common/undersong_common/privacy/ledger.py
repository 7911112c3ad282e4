"""A party's own record of what every release of one data set cost: append-only, hash-chained, on disk before a send.

One line of canonical JSON an entry, each with the hash of the line before it. No entry says anything about private
values: names, hashes, noise multipliers and rates only. The kinds are

    genesis     fingerprint of the data set and declared budget
    run         the first charge of a run follows: its manifest and the events of its whole plan
    charge      one attempt at one private sum of one run, before its vector is computed
    sent        the hash of that attempt's vector, before it leaves: no other bytes may leave any more
    withdrawn   the charged attempt never sent its vector and never will: its charge does not count
    void        a certificate that nothing of a sent attempt was opened: its charge does not count in the plan
    close       the run has ended
    budget      a later budget
    data        a later version of the same data set
    lost        what an earlier ledger of the data set had charged that cannot be found any more (see ``statement``)
    format      from here on the file is written as this version writes it

A run of unsampled Gaussian noise alone costs what its entries say. Any other run costs its whole plan from its first
charge on, whether it is closed or not, and whatever is withdrawn or void (``budget.charged_of``).

A line is one write, and every method that writes returns after fsync; what a crash leaves without its newline was never
acted upon and is dropped at the next opening. Everything else that does not fit the chain is refused, never repaired.
What a chain cannot show is that whole lines are missing at its end; :attr:`Ledger.head` is there to be kept elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.files import FileIdentity, file_identity, sync_folder
from undersong_common.privacy.accounting import Event, is_one_gaussian
from undersong_common.privacy.budget import (
    Budget,
    add_events,
    as_events,
    charged_of,
    events_from_json,
    events_json,
    parts,
    price,
    surely_within,
)

VERSION = 2
TOLERANCE = 1e-6  # relative; a plan is calibrated to its epsilon no closer than that
VOIDED_VECTORS = 3
"""Attempts at one sum that may be void although this party's vector left: a coalition could have opened them."""

_START = "0" * 64
_UNKNOWN = ""  # hash of a vector that version 1 may have sent

Slot = tuple[str, str, int]
State = Literal["unknown", "charged", "sent", "withdrawn", "void"]
_Counted = Literal["known", "charged", "sent"]


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
        alone: what is released to everyone else, should they collude: the party's own share of the noise is left.
    """

    run: str
    manifest: str
    query: str
    attempt: int
    events: tuple[Event, ...]
    question: str = ""
    alone: tuple[Event, ...] = ()

    @property
    def slot(self) -> Slot:
        return self.run, self.query, self.attempt


@dataclass(frozen=True)
class PlanPrice:
    """A run's whole plan: its events, spare attempts included, and what all its vectors show to everyone else."""

    events: tuple[Event, ...] = ()
    alone: tuple[Event, ...] = ()


@dataclass(frozen=True)
class RunCost:
    """What one run has cost: ``epsilon`` by itself, ``spent`` with everything before it; both at one delta.

    ``whole_plan``: it is charged at its whole plan, however many ``releases`` it has made.
    """

    run: str
    releases: int
    epsilon: float
    spent: float
    whole_plan: bool


@dataclass(frozen=True)
class RunTotal:
    """What one run has charged in all; a run that was lost (``lost``) with what it was found to have charged.

    Attributes:
        events: what counts, equal events as one (``budget.charged_of``).
        alone: of every vector that left, as everyone else together would see it; likewise.
        plan: its whole plan; nothing where it never charged here (or version 1 did).
        closed: whether it has ended for this party.
    """

    run: str
    manifest: str
    events: tuple[Event, ...]
    alone: tuple[Event, ...]
    plan: PlanPrice
    closed: bool


@dataclass
class _Tally:
    manifest: str = ""
    events: Counter[Event] = field(default_factory=Counter)
    alone: Counter[Event] = field(default_factory=Counter)


class Ledger:
    """The ledger of one data set. Use :meth:`open`; two processes may hold the same file open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = str(path)
        self._entries: list[dict[str, Any]] = []
        self._read_bytes = 0
        self._file: FileIdentity | None = None  # of what was read
        self._head = _START
        self._version = VERSION
        self._budget: Budget | None = None
        self._fingerprint = ""
        self._plans: dict[str, PlanPrice] = {}
        self._charges: dict[Slot, Charge] = {}
        self._attempts: dict[tuple[str, str], list[Slot]] = {}  # of those, by run and query
        self._manifests: dict[str, set[str]] = {}  # that a run was charged under, or lost
        self._charged_data: dict[Slot, str] = {}  # the data set's fingerprint at the time
        self._sent: dict[Slot, str] = {}
        self._withdrawn: set[Slot] = set()
        self._voids: set[Slot] = set()
        self._closed: set[str] = set()
        self._lost: list[Charge] = []
        self._lost_budgets: list[Budget | None] = []  # None: unknown, more than any
        self._tallies: dict[str, _Tally] | None = {}  # by run; None: to be counted anew

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

    @property
    def length(self) -> int:
        """How many entries stand in it."""
        return len(self._entries)

    def entries(self) -> list[dict[str, Any]]:
        """Every entry as it stands in the file, oldest first."""
        self.refresh()
        return [dict(entry) for entry in self._entries]

    def charges(self) -> list[Charge]:
        """The charges that count: all that are neither void nor withdrawn, oldest first; without what was lost."""
        self.refresh()
        return self._counted()

    def state(self, charge: Charge) -> State:
        """How far an attempt has come."""
        self.refresh()
        return self._state(charge.slot)

    def attempts(self, run: str, query: str) -> dict[int, State]:
        """Every attempt at a sum that was charged, by number."""
        self.refresh()
        return {slot[2]: self._state(slot) for slot in self._attempts.get((run, query), ())}

    def voided(self, run: str, query: str) -> int:
        """How many attempts at a sum are void although this party's vector left."""
        self.refresh()
        return self._voided(run, query)

    def is_begun(self, run: str) -> bool:
        """Whether the plan of a run stands here (:meth:`begin`)."""
        self.refresh()
        return run in self._plans

    def is_closed(self, run: str) -> bool:
        """Whether a run has ended for this party."""
        self.refresh()
        return run in self._closed

    def spent(self, delta: float) -> float:
        """Epsilon, at ``delta``, of everything that counts, over all runs, what was lost included.

        ``delta`` is divided among the parts of the budget (``budget.Budget.parts``; where more parts than that are
        here, among those).
        """
        self.refresh()
        runs = self._known()
        return self._spent(runs, delta, self._divided(runs))

    def spent_if_all_others_collude(self, delta: float, charge: Charge | None = None) -> float:
        """The same should everyone else have stood together: of every vector that left, void attempts included.

        inf where version 1 charged, which did not write down what a vector shows to everyone else.

        Args:
            charge: a run that is to come, with what all its vectors would show (``alone``).
        """
        self.refresh()
        left = [charge for slot, charge in self._charges.items() if slot in self._sent] + self._lost
        if any(not charge.alone for charge in left):
            return math.inf
        runs = {run: total.alone for run, total in self._totals().items() if total.alone}
        if charge is not None:
            runs[charge.run] = charge.alone
        return self._spent(runs, delta, self._divided(runs))

    def spent_with(self, charge: Charge, delta: float) -> float:
        """Epsilon, at ``delta``, should the run of ``charge`` end up having charged all its events."""
        self.refresh()
        runs = {**self._known(), charge.run: charge.events}
        return self._spent(runs, delta, self._divided(runs))

    def costs(self, delta: float) -> list[RunCost]:
        """What each run has cost at ``delta``, by its first charge; the last total is :meth:`spent`."""
        self.refresh()
        releases = Counter(charge.run for charge in [*self._lost, *self._counted()])
        runs = self._known()
        divided = self._divided(runs)
        found: list[RunCost] = []
        so_far: dict[str, Sequence[Event]] = {}
        for run, events in runs.items():
            so_far[run] = events
            alone = price({run: events}, delta, divided)
            whole_plan = not is_one_gaussian(events)
            found.append(RunCost(run, releases[run], alone, self._spent(so_far, delta, divided), whole_plan))
        return found

    def run_entries(self, run: str) -> list[dict[str, Any]]:
        """What a run did here, oldest first, with nothing of other runs, of the data set or of the time.

        The entries of kind charge, withdrawn, void and close, without number, time, chain and share of the noise.
        """
        self.refresh()
        hidden = {"entry", "at", "previous", "hash", "alone"}
        return [
            {key: value for key, value in entry.items() if key not in hidden}
            for entry in self._entries
            if entry.get("run") == run and entry["kind"] in ("charge", "withdrawn", "void", "close")
        ]

    def lost(self) -> tuple[list[Charge], list[Budget | None]]:
        """What :meth:`lose` has recorded: by run, and whole budgets."""
        self.refresh()
        return list(self._lost), list(self._lost_budgets)

    def every_charge(self) -> list[tuple[Charge, State]]:
        """Every attempt that was charged, oldest first."""
        self.refresh()
        return [(charge, self._state(slot)) for slot, charge in self._charges.items()]

    def totals(self) -> list[RunTotal]:
        """What each run has charged; what was lost first, then by first charge."""
        self.refresh()
        return list(self._totals().values())

    def refresh(self) -> None:
        """Reads what other processes have appended."""
        try:
            found = os.stat(self._name)
            # Entries are never changed: nothing is there to read.
            if found.st_size == self._read_bytes and file_identity(found) == self._file:
                return
        except FileNotFoundError:
            pass
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
            PrivacyRefusal: the budget would be exceeded, the run was charged under another manifest or has ended.
        """
        self.refresh()
        self._check_open(charge)
        self._check_budget(self._known(), charge, charge.events)

    def check_attempt(self, charge: Charge, spare_attempts: int) -> None:
        """Refuses an attempt that could not be charged, before anything is done for it.

        Args:
            charge: the attempt; its events and question do not matter.
            spare_attempts: how many the run's plan has.

        Raises:
            PrivacyRefusal: it was charged already, its run has ended, or it needs a spare attempt and none is left.
        """
        self.refresh()
        self._check_open(charge)
        if charge.slot in self._charges:
            raise PrivacyRefusal(
                f"{_place(charge)} was charged and nothing here knows its keys any more: it is refused for good",
                "a new attempt has fresh keys",
            )
        self._check_spare(charge, spare_attempts)

    def begin(self, charge: Charge, plan: PlanPrice, *, at: float = 0.0) -> None:
        """Writes down a run's whole plan, once, before its first charge: what an open run costs at most."""
        with self._locked() as file:
            self._check_open(charge)
            if charge.run not in self._plans:
                priced = {"plan": events_json(plan.events), "alone": events_json(plan.alone)}
                self._append(file, {"kind": "run", "run": charge.run, "manifest": charge.manifest, **priced, "at": at})

    def charge(self, charge: Charge, *, spare_attempts: int = 0, at: float = 0.0) -> None:
        """Writes a charge and returns once it is on the disk; call it before the vector is computed.

        Charging the same attempt again with the same content changes nothing while its vector has not been sent.

        Args:
            spare_attempts: how many the run's plan has; a second attempt at a sum takes one unless the first is void.

        Raises:
            PrivacyRefusal: the attempt was charged with other content or before the data set was replaced, was sent,
                withdrawn or is void, the sum was asked another question, no spare attempt is left, its run has ended or
                was charged under another manifest, or the budget does not allow it.
        """
        with self._locked() as file:
            self._check_open(charge)
            match self._state(charge.slot):
                case "charged":
                    if self._charges[charge.slot] != charge:
                        raise PrivacyRefusal(
                            f"{_place(charge)} was charged already with other content",
                            "an attempt is sent once; a new one needs a new number",
                        )
                    if self._charged_data[charge.slot] != self._fingerprint:
                        raise PrivacyRefusal(
                            f"{_place(charge)} was charged before the data set was replaced", "start a new attempt"
                        )
                    os.fsync(file)  # another process may have written it and not have come to its own fsync
                    return
                case "sent":
                    raise PrivacyRefusal(
                        f"{_place(charge)} has sent its vector: another one is never computed",
                        "a repeated request gets the bytes that were sent; without them a new attempt is needed",
                    )
                case "void" | "withdrawn" as ended:
                    raise PrivacyRefusal(f"{_place(charge)} is {ended}", "start a new attempt")
            self._check_question(charge)
            self._check_spare(charge, spare_attempts)
            tally, plan = self._tallied().get(charge.run, _Tally()), self._plans.get(charge.run, PlanPrice())
            events = charged_of((*as_events(tally.events), *charge.events), plan.events)
            self._check_budget(self._known(), charge, events)
            self._append(file, {"kind": "charge", **_charge_json(charge), "at": at})

    def send(self, charge: Charge, vector: str, *, at: float = 0.0) -> None:
        """Writes the hash of an attempt's vector; call it before these bytes leave, the first time and every time.

        Args:
            charge: the attempt, which was charged.
            vector: SHA-256 (hex) of the bytes.

        Raises:
            PrivacyRefusal: it was not charged, is withdrawn or void, or other bytes were sent.
        """
        with self._locked() as file:
            state = self._state(charge.slot)
            if state == "sent" and self._sent[charge.slot] == vector:
                os.fsync(file)
                return
            if state != "charged":
                raise PrivacyRefusal(
                    f"{_place(charge)} has sent another vector"
                    if state == "sent"
                    else f"{_place(charge)} is {'not charged' if state == 'unknown' else state}: no vector may leave",
                    "start a new attempt",
                )
            self._append(file, {"kind": "sent", **_slot_json(charge), "vector": vector, "at": at})

    def withdraw(self, charge: Charge, *, at: float = 0.0) -> None:
        """Records that a charged attempt has sent no vector and never will, so that its charge does not count.

        An attempt that was not charged, or that has ended, stays as it is. Raises PrivacyRefusal where it was sent.
        """
        with self._locked() as file:
            state = self._state(charge.slot)
            if state == "sent":
                raise PrivacyRefusal(f"{_place(charge)} has sent its vector", "only a void certificate refunds it")
            if state == "charged":
                self._append(file, {"kind": "withdrawn", **_slot_json(charge), "at": at})

    def void(self, charge: Charge, certificate: str, *, at: float = 0.0) -> None:
        """Records that nothing of an attempt was opened, so that its charge no longer counts in its run's plan.

        An attempt whose vector did not leave has nothing to be refunded: nothing is written.

        Args:
            charge: the attempt.
            certificate: hash (hex) of the parties' signed statements, which the caller has checked. A second
                certificate for the same attempt changes nothing.

        Raises:
            PrivacyRefusal: ``VOIDED_VECTORS`` vectors of this party have left for this sum and are void already.
        """
        with self._locked() as file:
            if self._state(charge.slot) != "sent":
                return
            if self._voided(charge.run, charge.query) >= VOIDED_VECTORS:
                raise PrivacyRefusal(
                    f"run {charge.run!r}, {charge.query}: {VOIDED_VECTORS} attempts are void although this party's "
                    "vector had left",
                    "a further attempt takes one of the plan's spare attempts",
                )
            self._append(file, {"kind": "void", **_slot_json(charge), "certificate": certificate, "at": at})

    def close(self, run: str, manifest: str, *, at: float = 0.0) -> None:
        """Records that a run has ended: nothing more is charged for it."""
        with self._locked() as file:
            if run not in self._closed:
                self._append(file, {"kind": "close", "run": run, "manifest": manifest, "at": at})

    def lose(self, charges: Sequence[Charge], budgets: Sequence[Budget | None] = (), *, at: float = 0.0) -> None:
        """Records what an earlier ledger of this data set had charged; it counts from now on, and its runs have ended.

        Args:
            charges: one for each run, with all its events; their query and attempt do not matter.
            budgets: whole budgets that count as spent; None where not even that is known: more than any.
        """
        with self._locked() as file:
            runs = [
                {
                    "run": charge.run,
                    "manifest": charge.manifest,
                    "events": events_json(charge.events),
                    "alone": events_json(charge.alone),
                }
                for charge in charges
            ]
            entry = {"kind": "lost", "runs": runs, "budgets": [_budget_json(budget) for budget in budgets], "at": at}
            self._append(file, entry)

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
        file = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            found = os.fstat(file)
            size = found.st_size
            if size < self._read_bytes:
                raise PrivacyRefusal(f"{self.path} became shorter", "restore the ledger; entries are never removed")
            if file_identity(found) != self._file:
                self._check_replaced(file)
                self._file = file_identity(found)
            data = os.pread(file, size - self._read_bytes, self._read_bytes)
            self._take(data)
            if self._read_bytes < size:  # no newline: a write that a crash cut off, of which nobody was told
                os.ftruncate(file, self._read_bytes)
                os.fsync(file)
            yield file
        finally:
            os.close(file)

    def _check_replaced(self, file: int) -> None:
        """Another file lies there than the one that was read: it must begin with the same entries."""
        other = Ledger(self.path)
        other._take(os.pread(file, self._read_bytes, 0))
        if other._head != self._head:
            raise PrivacyRefusal(
                f"{self.path} was replaced by another ledger while it was in use",
                "put back the one that was there, or start the program again",
            )

    def _append(self, file: int, content: Mapping[str, Any]) -> None:
        if self._entries and self._version < VERSION:
            self._write(file, {"kind": "format", "version": VERSION, "at": content["at"]})
        self._write(file, content)

    def _write(self, file: int, content: Mapping[str, Any]) -> None:
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
        entry = json.loads(line)  # as it stands in the file: its own line fits the chain
        self._apply(entry)
        self._took(entry, line)

    def _unwritten(self, file: int, reason: str) -> PrivacyRefusal:
        os.ftruncate(file, self._read_bytes)
        return PrivacyRefusal(f"{self.path} could not be written: {reason}", "nothing was sent; make room and resume")

    def _take(self, data: bytes) -> None:
        """Adds the complete lines of ``data`` to what is known; checks each against the chain."""
        end = data.rfind(b"\n") + 1
        for line in data[:end].splitlines(keepends=True):
            count = len(self._entries) + 1
            try:
                entry = json.loads(line)
                content = {key: value for key, value in entry.items() if key != "hash"}
                whole = canonical_json(entry) + b"\n" == line and entry["hash"] == entry_hash(content)
                fits = whole and entry["previous"] == self._head and entry["entry"] == count
                fits = fits and (entry["kind"] == "genesis") == (count == 1)
                if fits:
                    self._apply(entry)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                fits = False
            if not fits:
                raise PrivacyRefusal(
                    f"{self.path}, line {count}: does not fit the chain",
                    "the ledger was changed; restore it from a backup, and release nothing until then",
                )
            self._took(entry, line)

    def _took(self, entry: dict[str, Any], line: bytes) -> None:
        self._entries.append(entry)
        self._head = entry["hash"]
        self._read_bytes += len(line)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        match entry["kind"]:
            case "genesis":
                self._apply_version(entry["version"])
                self._fingerprint, self._budget = entry["data"], _budget(entry["budget"])
            case "format":
                if not self._version < entry["version"]:
                    raise ValueError
                self._apply_version(entry["version"])
            case "run":
                self._plans[entry["run"]] = PlanPrice(events_from_json(entry["plan"]), events_from_json(entry["alone"]))
            case "charge":
                charge = charge_of(entry)
                if charge.slot in self._charges:
                    raise ValueError
                self._charges[charge.slot] = charge
                self._attempts.setdefault(charge.slot[:2], []).append(charge.slot)
                self._manifests.setdefault(charge.run, set()).add(charge.manifest)
                self._charged_data[charge.slot] = self._fingerprint
                self._tally(charge, "charged")
                if self._version == 1:  # it noted nothing when it sent, and its runs cannot be continued
                    self._sent[charge.slot] = _UNKNOWN
                    self._closed.add(charge.run)
                if self._version == 1 or charge.slot in self._voids:
                    self._tallies = None
            case "sent" | "withdrawn" | "void" as kind:
                self._apply_end(kind, (entry["run"], entry["query"], entry["attempt"]), entry)
            case "close":
                self._closed.add(entry["run"])
            case "budget":
                self._budget = _budget(entry["budget"])
            case "data":
                self._fingerprint = entry["data"]
            case "lost":
                for run in entry["runs"]:
                    events, alone = events_from_json(run["events"]), events_from_json(run["alone"])
                    self._lost.append(Charge(run["run"], run["manifest"], "", 0, events, "", alone))
                    self._manifests.setdefault(run["run"], set()).add(run["manifest"])
                    self._closed.add(run["run"])
                self._lost_budgets += [_budget(budget) for budget in entry["budgets"]]
                self._tallies = None
            case _:
                raise ValueError

    def _apply_end(self, kind: str, slot: Slot, entry: Mapping[str, Any]) -> None:
        state = self._state(slot)
        # Version 1 also noted certificates for what it had not charged.
        if kind == "void" and (state == "sent" or self._version == 1):
            self._voids.add(slot)
            self._tallies = None
        elif kind == "sent" and state == "charged":
            self._sent[slot] = entry["vector"]
            self._tally(self._charges[slot], "sent")
        elif kind == "withdrawn" and state == "charged":
            self._withdrawn.add(slot)
            self._tallies = None
        else:
            raise ValueError

    def _apply_version(self, version: int) -> None:
        if not 1 <= version <= VERSION:
            raise ConfigurationError(
                f"{self.path}: ledger of version {version}, this program knows versions 1 to {VERSION}",
                "update Undersong",
            )
        self._version = version

    # Rules

    def _state(self, slot: Slot) -> State:
        if slot in self._voids:
            return "void"
        if slot not in self._charges:
            return "unknown"
        if slot in self._withdrawn:
            return "withdrawn"
        return "sent" if slot in self._sent else "charged"

    def _counted(self) -> list[Charge]:
        ended = self._withdrawn | self._voids
        return [charge for slot, charge in self._charges.items() if slot not in ended]

    def _known(self) -> dict[str, tuple[Event, ...]]:
        """What counts, by run, equal events as one."""
        return {run: total.events for run, total in self._totals().items() if total.events}

    def _totals(self) -> dict[str, RunTotal]:
        found = {}
        for run, tally in self._tallied().items():
            plan = self._plans.get(run, PlanPrice())
            events = charged_of(as_events(tally.events), plan.events)
            alone = charged_of(as_events(tally.alone), plan.alone)
            found[run] = RunTotal(run, tally.manifest, events, alone, plan, run in self._closed)
        return found

    def _tallied(self) -> dict[str, _Tally]:
        # A charge and a vector that left are added as they come; what takes something away is counted anew.
        tallies = self._tallies
        if tallies is None:
            tallies = {}
            for charge in self._lost:
                _add(tallies, charge, "charged")
                _add(tallies, charge, "sent")
            for slot, charge in self._charges.items():
                state = self._state(slot)
                _add(tallies, charge, "known" if state in ("void", "withdrawn") else "charged")
                if state in ("sent", "void"):
                    _add(tallies, charge, "sent")
            self._tallies = tallies  # once it is whole: half a count would be less than was spent
        return tallies

    def _tally(self, charge: Charge, what: _Counted) -> None:
        if self._tallies is not None:
            _add(self._tallies, charge, what)

    def _voided(self, run: str, query: str) -> int:
        return sum(slot in self._voids for slot in self._attempts.get((run, query), ()))

    def _check_open(self, charge: Charge) -> None:
        if self._manifests.get(charge.run, set()) - {charge.manifest}:
            raise PrivacyRefusal(
                f"run {charge.run!r} was charged under another manifest", "start a new run under a new name"
            )
        if charge.run in self._closed:
            raise PrivacyRefusal(f"run {charge.run!r} has ended at this party", "start a new run under a new name")

    def _check_question(self, charge: Charge) -> None:
        asked = {self._charges[slot].question for slot in self._attempts.get(charge.slot[:2], ())}
        if asked - {charge.question, ""}:
            raise PrivacyRefusal(
                f"{_place(charge)} was charged with other public inputs before",
                "a sum asks one question, in repeated and spare attempts too; plan another sum for another question",
            )

    def _check_spare(self, charge: Charge, spare_attempts: int) -> None:
        standing: dict[str, int] = {}
        for known in self._counted():
            if known.run == charge.run:
                standing[known.query] = standing.get(known.query, 0) + 1
        used = sum(count - 1 for count in standing.values())
        if charge.query in standing and used >= spare_attempts:
            raise PrivacyRefusal(
                f"{charge.query}: attempt {charge.attempt} needs a spare attempt, and the plan's {used} are used",
                "stop the run, or plan one with federation.spare_attempts",
            )

    def _check_budget(self, known: Mapping[str, Sequence[Event]], charge: Charge, events: tuple[Event, ...]) -> None:
        """Refuses ``events`` of the run of ``charge``, in place of those that it has among the ``known`` ones."""
        if self._budget is None or math.isinf(self._budget.epsilon):
            return
        divided = self._divided(known)
        runs = {**known, charge.run: events}
        found = parts(runs)
        if len(found) > divided:
            raise PrivacyRefusal(
                f"{_place(charge)} would need a part of this data set's budget, whose delta is divided into {divided}: "
                "runs of unsampled Gaussian noise share one, every other run takes one",
                "have the data set's owner declare a budget of more parts",
            )
        if not self._lost_budgets and surely_within(found, self._budget.epsilon, self._budget.delta / divided):
            return
        total = self._spent(runs, self._budget.delta, divided)
        if total > self._budget.epsilon * (1 + TOLERANCE):
            raise PrivacyRefusal(
                f"{_place(charge)} would bring this data set to epsilon {total:.6g} at delta {self._budget.delta:g}; "
                f"its budget is {self._budget.epsilon:g}",
                "ask for less, or have the data set's owner declare a larger budget",
            )

    def _divided(self, runs: Mapping[str, Sequence[Event]]) -> int:
        """Into how many parts delta is divided; never fewer than there are: an owner may declare fewer later."""
        return max(1 if self._budget is None else self._budget.parts, len(parts(runs)))

    def _spent(self, runs: Mapping[str, Sequence[Event]], delta: float, divided: int) -> float:
        lost = [budget for budget in self._lost_budgets if budget is not None]
        if len(lost) < len(self._lost_budgets):
            return math.inf
        left = delta - math.fsum(budget.delta for budget in lost)
        whole = math.fsum(budget.epsilon for budget in lost)
        if not any(runs.values()):
            return whole if left >= 0 else math.inf
        return whole + price(runs, left, divided) if left > 0 else math.inf


def _add(tallies: dict[str, _Tally], charge: Charge, what: _Counted) -> None:
    tally = tallies.setdefault(charge.run, _Tally())
    tally.manifest = charge.manifest
    if what == "charged":
        add_events(tally.events, charge.events)
    elif what == "sent":
        add_events(tally.alone, charge.alone)


def _place(charge: Charge) -> str:
    return f"run {charge.run!r}, {charge.query or 'its plan'}, attempt {charge.attempt}"


def entry_hash(content: Mapping[str, Any]) -> str:
    """The hash (hex) that an entry carries: over everything else in it, the hash of the entry before included."""
    return tagged_hash("undersong ledger entry", canonical_json(dict(content))).hex()


def _budget_json(budget: Budget | None) -> dict[str, Any] | None:
    return None if budget is None else budget.to_json()


def _budget(value: Mapping[str, Any] | None) -> Budget | None:
    return None if value is None else Budget.from_json(value)


def _slot_json(charge: Charge) -> dict[str, Any]:
    return {"run": charge.run, "query": charge.query, "attempt": charge.attempt}


def _charge_json(charge: Charge) -> dict[str, Any]:
    return {
        "run": charge.run,
        "manifest": charge.manifest,
        "query": charge.query,
        "attempt": charge.attempt,
        "question": charge.question,
        "events": events_json(charge.events),
        "alone": events_json(charge.alone),
    }


def charge_of(entry: Mapping[str, Any]) -> Charge:
    """An entry of kind ``charge`` as a value. Raises ValueError, KeyError or TypeError for one that is malformed."""
    return Charge(
        entry["run"],
        entry["manifest"],
        entry["query"],
        entry["attempt"],
        events_from_json(entry["events"]),
        entry.get("question", ""),  # before version 2 it was not written down, nor the next
        events_from_json(entry.get("alone", ())),
    )
