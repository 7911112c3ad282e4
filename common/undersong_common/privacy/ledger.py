"""A party's record of what each release of one data set cost: a hash-chained file, written before anything is sent.

Each line is one entry of canonical JSON with the hash of the line before it. No entry says anything about private
values: it holds names, hashes, noise multipliers and rates only. The kinds are

    genesis     fingerprint of the data set and declared budget
    run         begin of a run, before its first charge: its manifest and the events of its whole plan
    charge      one attempt at one private sum of one run, before its vector is computed
    sent        the hash of that attempt's vector, before it leaves: no other bytes may leave any more
    withdrawn   the charged attempt never sent its vector and never will: its charge does not count
    void        a certificate that nothing of a sent attempt was opened: its charge does not count in the plan
    close       the run has ended
    budget      a later budget
    data        a later version of the same data set
    lost        charges of an earlier ledger of the data set that can no longer be found (see ``spending``)

A run of unsampled Gaussian noise alone costs what its entries say. Any other run costs its whole plan from its first
charge on, whether it is closed or not, and whatever is withdrawn or void (``spending.charged_of``).

All runs of a ledger protect one privacy unit, that of its first charge: epsilons of different units do not add.

Every method that writes returns once its entry is on the disk (``undersong_common.program.chain``).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.files import sync_folder
from undersong_common.privacy.accounting import Event, best_guess, best_guess_of, is_one_gaussian
from undersong_common.privacy.spending import (
    Budget,
    Charge,
    ChargedAttempt,
    PlanPrice,
    RunCost,
    RunRecord,
    RunSpending,
    Slot,
    State,
    Statement,
    budget_from_json,
    budget_json,
    events_from_json,
    parts,
    price,
    surely_within,
)
from undersong_common.program.chain import HashChain

VERSION = 2
TOLERANCE = 1e-6  # relative; a plan is calibrated to its epsilon no closer than that
# Attempts at one sum that may be void although this party's vector left: a coalition could have opened them.
VOIDED_VECTORS = 3

TAG = "undersong ledger entry"

_STATE_BEFORE: Mapping[str, State] = {"sent": "charged", "withdrawn": "charged", "void": "sent"}


class Ledger:
    """Records the charges against one data set's budget in a hash-chained file; refuses a charge above the budget.

    Make one with :meth:`open` or :meth:`read`. Several processes may hold the same file open.

    Attributes:
        fingerprint: keyed hash (hex) of the data set's latest version.
        budget: budget that was declared last; None for no limit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._chain = HashChain(path, TAG, self._apply_entry)
        self.budget: Budget | None = None
        self.fingerprint = ""
        self._attempts: dict[Slot, ChargedAttempt] = {}
        self._runs: defaultdict[str, RunRecord] = defaultdict(RunRecord)
        self._lost_budgets: list[Budget | None] = []  # None: unknown, more than any
        self._is_followed = True

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}, {len(self._chain.entries)} entries)"

    @classmethod
    def open(cls, path: Path, fingerprint: str, budget: Budget | None = None, *, at: float = 0.0) -> "Ledger":
        """Opens the ledger of a data set, or creates it if the file does not exist.

        Args:
            path: the ledger's file; a missing folder is created.
            fingerprint: keyed hash (hex) of the data set, which the first entry of a new ledger records.
            budget: declared in the first entry of a new ledger; None declares no limit. Later changes are made with
                :meth:`declare`.
            at: time now, seconds since the epoch.

        Raises:
            PrivacyRefusal: the file is another data set's ledger, or a line's hash is wrong (it names the line).
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        ledger = cls(path)
        with ledger._chain.locked():
            if not ledger._chain.entries:
                ledger._append_entry("genesis", at, version=VERSION, data=fingerprint, budget=budget_json(budget))
                sync_folder(path.parent)
        if ledger.fingerprint != fingerprint:
            raise PrivacyRefusal(
                f"{path} is the ledger of another data set, or of another version of this one",
                "name the right ledger, or carry it over to the new version of the same data (Ledger.adopt)",
                code="other-data-set",
            )
        return ledger

    @classmethod
    def read(cls, path: Path) -> "Ledger":
        """Opens an existing ledger of any data set, to show or verify it.

        Raises ConfigurationError if the file does not exist, PrivacyRefusal if a line's hash is wrong.
        """
        ledger = cls._existing(path)
        ledger.refresh()
        return ledger

    @classmethod
    def snapshot(cls, path: Path) -> "Ledger":
        """Opens an existing ledger as :meth:`read`; entries that are appended later are not read.

        All figures of a snapshot are of one moment, while a run goes on.
        """
        ledger = cls.read(path)
        ledger._is_followed = False
        return ledger

    @classmethod
    def verify(cls, path: Path) -> int:
        """Checks every line of a ledger file without changing it; returns the number of entries.

        Raises as :meth:`read`, and PrivacyRefusal for an incomplete last line.
        """
        return cls._existing(path)._chain.verify()

    @classmethod
    def _existing(cls, path: Path) -> "Ledger":
        if not path.exists():
            raise ConfigurationError(f"{path}: no such ledger", "check the path", code="no-ledger")
        return cls(path)

    # These methods read the contents.

    @property
    def lost_budgets(self) -> tuple[Budget | None, ...]:
        """Budgets that count as wholly spent, as :meth:`lose` has recorded them."""
        return tuple(self._lost_budgets)

    @property
    def head(self) -> str:
        """Hash (hex) of the last entry. A copy kept elsewhere later shows whether lines at the end are missing."""
        return self._chain.head

    def entries(self) -> list[dict[str, Any]]:
        """Returns every entry of the file, oldest first."""
        self.refresh()
        return [dict(entry) for entry in self._chain.entries]

    def charges(self) -> list[Charge]:
        """Returns the charges that are neither void nor withdrawn, oldest first; leaves out those of :meth:`lose`."""
        self.refresh()
        return [attempt.charge for attempt in self._attempts.values() if attempt.counts]

    def state(self, charge: Charge) -> State:
        """Returns the state of the attempt that ``charge`` identifies by run, query and attempt."""
        self.refresh()
        return self._charge_state(charge)

    def attempts(self, run: str, query: str) -> dict[int, State]:
        """Returns the states of all charged attempts at one private sum, by number of the attempt."""
        self.refresh()
        return {attempt.charge.attempt: attempt.state for attempt in self._runs[run].of(query)}

    def voided(self, run: str, query: str) -> int:
        """Returns the number of void attempts at one private sum; in each of them this party had sent its vector."""
        return sum(state == "void" for state in self.attempts(run, query).values())

    def is_closed(self, run: str) -> bool:
        """Returns True if a run was closed, so that nothing more can be charged for it."""
        self.refresh()
        return self._runs[run].closed

    def is_begun(self, run: str) -> bool:
        """Returns True if :meth:`begin` has recorded the plan of a run."""
        self.refresh()
        return self._runs[run].plan is not None

    def spent(self, delta: float) -> float:
        """Returns epsilon, at ``delta``, of all charges that count, over all runs, lost charges included.

        ``delta`` is divided by the budget's number of parts (``spending.Budget.parts``), or by the number of parts that
        this ledger holds, if that is larger. The result is inf if a lost ledger's spending is not known, or if lost
        budgets leave no delta.
        """
        return self._spent_epsilon(self._counted_events(), delta)

    def spent_if_all_others_collude(self, delta: float, charge: Charge | None = None) -> float:
        """Returns epsilon, at ``delta``, against all other parties and the coordinator if they share what they know.

        It counts every vector that was sent, in void attempts too. It is inf if the events of one of them in that case
        (``Charge.alone``) were not recorded.

        Args:
            charge: a run to come, whose ``alone`` holds the events of its whole plan; None for no further run.
        """
        run_totals = self.totals()
        if not all(charge_sent.alone for run in self._runs.values() for charge_sent in run.left()):
            return math.inf
        runs = {run_total.run: run_total.alone for run_total in run_totals if run_total.alone}
        return self._spent_epsilon(runs if charge is None else {**runs, charge.run: charge.alone}, delta)

    def spent_with(self, charge: Charge, delta: float) -> float:
        """Returns what :meth:`spent` would be if the run of ``charge`` had charged exactly the events of ``charge``."""
        return self._spent_epsilon({**self._counted_events(), charge.run: charge.events}, delta)

    def best_guess_with(self, charge: Charge, delta: float) -> float:
        """Returns the largest chance of a right guess about one unit, over all runs and the one of ``charge``.

        It is ``accounting.best_guess`` of all events. Budgets of lost ledgers have no events: there the epsilon of
        :meth:`spent_with` at ``delta`` bounds it.
        """
        runs = {**self._counted_events(), charge.run: charge.events}
        if not self._lost_budgets:
            return best_guess([event for events in runs.values() for event in events])
        return best_guess_of(self.spent_with(charge, delta), delta, one_gaussian=False)

    def costs(self, delta: float) -> list[RunCost]:
        """Returns each run's cost at ``delta``, in the order of the runs' first entries."""
        runs = self._counted_events()
        delta_parts = self._delta_parts(runs)
        run_costs: list[RunCost] = []
        so_far: dict[str, Sequence[Event]] = {}
        for run, events in runs.items():
            so_far[run] = events
            run_epsilon = price({run: events}, delta, delta_parts)
            epsilon_so_far = self._spent_epsilon(so_far, delta, delta_parts)
            run_costs.append(
                RunCost(run, len(self._runs[run].counted()), run_epsilon, epsilon_so_far, not is_one_gaussian(events))
            )
        return run_costs

    def run_entries(self, run: str) -> list[dict[str, Any]]:
        """Returns the entries of a run (charge, withdrawn, void, close), oldest first, for its receipt.

        They lack number, time, hashes and share of the noise, so that they show nothing of other runs, the data set or
        the time.
        """
        hidden_fields = {"entry", "at", "previous", "hash", "alone", "unit"}
        return [
            {entry_field: field_value for entry_field, field_value in entry.items() if entry_field not in hidden_fields}
            for entry in self.entries()
            if entry.get("run") == run and entry["kind"] in ("charge", "withdrawn", "void", "close")
        ]

    def totals(self) -> list[RunSpending]:
        """Returns the spending of each run with a charge, in the order of the runs' first entries."""
        self.refresh()
        return [run.spending() for run in self._runs.values() if run.attempts or run.lost]

    def statement(self) -> Statement:
        """Returns a summary of the ledger to keep elsewhere, in case the ledger is lost."""
        runs = tuple(self.totals())
        return Statement(self.head, len(self._chain.entries), self.budget, runs, self.lost_budgets)

    def locked(self) -> AbstractContextManager[None]:
        """Locks the file against other processes within the block, after reading their entries."""
        return self._chain.locked()

    def refresh(self) -> None:
        """Reads the entries that other processes have appended. Raises PrivacyRefusal if a line's hash is wrong."""
        if self._is_followed:
            self._chain.refresh()

    # These methods check and write entries.

    def check_room(self, charge: Charge) -> None:
        """Refuses a run whose whole plan would exceed the budget.

        Args:
            charge: the run with ALL events of its plan, which replace what it has charged so far.

        Raises:
            PrivacyRefusal: the budget would be exceeded, the run was charged under another manifest or has ended, or
                runs of another privacy unit were charged.
        """
        self.refresh()
        self._check_open(charge)
        self._check_budget(charge, charge.events)

    def check_attempt(self, charge: Charge, spare_attempts: int) -> None:
        """Refuses an attempt that could not be charged, before anything is done for it.

        Args:
            charge: the attempt; its events and question are not used.
            spare_attempts: number of repeated attempts that the run's plan allows.

        Raises:
            PrivacyRefusal: the attempt was charged already, its run has ended, or it repeats a sum and no spare attempt
                is left.
        """
        self.refresh()
        self._check_open(charge)
        if charge.slot in self._attempts:
            problem = f"{charge} was charged before, and its keys are lost: it is refused for good"
            raise PrivacyRefusal(problem, "a new attempt has fresh keys", code="charged-before")
        self._check_spare(charge, spare_attempts)

    def begin(self, charge: Charge, plan: PlanPrice, *, at: float = 0.0) -> None:
        """Records a run's whole plan, once, before its first charge. The plan bounds the cost of the open run."""
        with self._chain.locked():
            self._check_open(charge)
            if self._runs[charge.run].plan is None:
                plan_json = plan.to_json()
                plan_json["plan"] = plan_json.pop("events")
                self._append_entry("run", at, run=charge.run, manifest=charge.manifest, **plan_json)

    def charge(self, charge: Charge, *, spare_attempts: int = 0, at: float = 0.0) -> None:
        """Records the charge for one attempt and returns once it is on the disk; call it before the vector is computed.

        A second call with the same charge changes nothing if the attempt's vector has not been sent.

        Args:
            spare_attempts: number of repeated attempts that the run's plan allows; a second attempt at a sum uses one
                unless the first is void.

        Raises:
            PrivacyRefusal: the attempt was charged with other content or before the data set was replaced, was sent,
                was withdrawn or is void, an earlier attempt at the sum had another question, no spare attempt is left,
                the run has ended or was charged under another manifest, runs of another privacy unit were charged, or
                the budget does not allow it.
        """
        with self._chain.locked():
            self._check_open(charge)
            if (charged_attempt := self._attempts.get(charge.slot)) is not None:
                self._check_same(charged_attempt, charge)
                self._chain.sync()  # Another process may have written the charge and not yet have called fsync.
                return
            self._check_question(charge)
            self._check_spare(charge, spare_attempts)
            self._check_budget(charge, self._runs[charge.run].price(charge.events))
            self._append_entry("charge", at, **charge.to_json())

    def send(self, charge: Charge, vector: str, *, at: float = 0.0) -> None:
        """Records the hash of an attempt's vector; call it before each time that the vector's bytes are sent.

        Args:
            charge: the attempt, which must have been charged.
            vector: SHA-256 (hex) of the bytes.

        Raises:
            PrivacyRefusal: the attempt was not charged, is withdrawn or void, or has sent other bytes.
        """
        with self._chain.locked():
            charged_attempt = self._attempts.get(charge.slot)
            if charged_attempt is None or charged_attempt.state not in ("charged", "sent"):
                if charged_attempt is None:
                    attempt_state = "unknown"
                else:
                    attempt_state = charged_attempt.state
                problem = (
                    f"{charge} is {'not charged' if charged_attempt is None else attempt_state}: no vector may leave"
                )
                raise PrivacyRefusal(problem, "start a new attempt", code=f"attempt-{attempt_state}")
            if charged_attempt.state == "sent":
                if charged_attempt.vector != vector:
                    raise PrivacyRefusal(
                        f"{charge} has sent another vector: no other bytes may leave",
                        "start a new attempt",
                        code="other-vector",
                    )
                self._chain.sync()
                return
            self._append_entry("sent", at, **_charge_slot(charge), vector=vector)

    def withdraw(self, charge: Charge, *, at: float = 0.0) -> None:
        """Records that a charged attempt has sent no vector and never will, so that its charge does not count.

        Does nothing for an attempt that was not charged, or is withdrawn or void. Raises PrivacyRefusal if it was sent.
        """
        with self._chain.locked():
            attempt_state = self._charge_state(charge)
            if attempt_state == "sent":
                refund_remedy = "only a void certificate refunds it"
                raise PrivacyRefusal(
                    f"{charge} has sent its vector: it cannot be withdrawn", refund_remedy, code="attempt-sent"
                )
            if attempt_state == "charged":
                self._append_entry("withdrawn", at, **_charge_slot(charge))

    def void(self, charge: Charge, certificate: str, *, at: float = 0.0) -> None:
        """Records that nothing of an attempt was opened, so that its charge no longer counts in its run's plan.

        Does nothing for an attempt whose vector was not sent.

        Args:
            charge: the attempt.
            certificate: hash (hex) of the parties' signed statements, which the caller has checked. A second
                certificate for the same attempt changes nothing.

        Raises:
            PrivacyRefusal: ``VOIDED_VECTORS`` attempts at this sum are void already.
        """
        with self._chain.locked():
            if self._charge_state(charge) != "sent":
                return
            if sum(attempt.state == "void" for attempt in self._runs[charge.run].of(charge.query)) >= VOIDED_VECTORS:
                raise PrivacyRefusal(
                    f"run {charge.run!r}, {charge.query}: {VOIDED_VECTORS} attempts, the most allowed, are void "
                    "although this party's vector had left",
                    "a further attempt takes one of the plan's spare attempts",
                    code="too-many-voids",
                )
            self._append_entry("void", at, **_charge_slot(charge), certificate=certificate)

    def close(self, run: str, manifest: str, *, at: float = 0.0) -> None:
        """Records that a run has ended, so that nothing more is charged for it."""
        with self._chain.locked():
            if not self._runs[run].closed:
                self._append_entry("close", at, run=run, manifest=manifest)

    def lose(self, charges: Sequence[Charge], budgets: Sequence[Budget | None] = (), *, at: float = 0.0) -> None:
        """Records charges of a lost ledger of this data set; they count from now on, and their runs are closed.

        Args:
            charges: one for each run, with all its events; query and attempt are not used.
            budgets: budgets that count as wholly spent; None for an unknown budget, which counts as infinite spending.
        """
        field_names = ("run", "manifest", "events", "alone", "unit")
        lost_charges = [
            {
                field_name: field_value
                for field_name, field_value in charge.to_json().items()
                if field_name in field_names
            }
            for charge in charges
        ]
        with self._chain.locked():
            self._append_entry("lost", at, runs=lost_charges, budgets=[budget_json(budget) for budget in budgets])

    def declare(self, budget: Budget | None, *, at: float = 0.0) -> None:
        """Records a new budget, which replaces the earlier one; None means no limit."""
        with self._chain.locked():
            self._append_entry("budget", at, budget=budget_json(budget))

    def adopt(self, fingerprint: str, *, at: float = 0.0) -> None:
        """Records the fingerprint of a new version of the same data set; what was spent stays spent."""
        with self._chain.locked():
            if fingerprint != self.fingerprint:
                self._append_entry("data", at, data=fingerprint)

    def _append_entry(self, kind: str, at: float, **content: Any) -> None:
        self._chain.append(kind=kind, at=at, **content)

    def _apply_entry(self, entry: Mapping[str, Any]) -> None:
        """Updates the ledger's state by an entry. Raises ValueError, KeyError or TypeError if it cannot come next."""
        entry_kind = entry["kind"]
        if (entry_kind == "genesis") != (not self._chain.entries):
            raise ValueError
        if "run" in entry:
            run = self._runs[entry["run"]]
        else:
            run = RunRecord()
        run.total = None  # This comes first, so that an entry that fails half way leaves no total that is too small.
        match entry_kind:
            case "genesis":
                if entry["version"] != VERSION:
                    raise ConfigurationError(
                        f"{self.path}: ledger of version {entry['version']}, this program knows version {VERSION}",
                        "use the release of Undersong that wrote it",
                        code="other-version",
                    )
                self.fingerprint, self.budget = entry["data"], budget_from_json(entry["budget"])
            case "run":
                run.plan = PlanPrice(events_from_json(entry["plan"]), events_from_json(entry["alone"]))
            case "charge":
                charge = Charge.from_json(entry)
                if charge.slot in self._attempts:
                    raise ValueError
                attempt = self._attempts[charge.slot] = ChargedAttempt(charge, self.fingerprint)
                run.attempts.append(attempt)
                run.manifests.add(charge.manifest)
            case "sent" | "withdrawn" | "void":
                attempt = self._attempts[entry["run"], entry["query"], entry["attempt"]]
                if attempt.state != _STATE_BEFORE[entry_kind]:
                    raise ValueError
                if entry_kind == "sent":
                    attempt.vector = entry["vector"]
                attempt.state = entry_kind
            case "close":
                run.closed = True
            case "budget":
                self.budget = budget_from_json(entry["budget"])
            case "data":
                self.fingerprint = entry["data"]
            case "lost":
                for run_spending in entry["runs"]:
                    self._apply_lost(Charge.from_json({"query": "", "attempt": 0, "question": "", **run_spending}))
                self._lost_budgets += [budget_from_json(budget) for budget in entry["budgets"]]
            case _:
                raise ValueError

    def _apply_lost(self, charge: Charge) -> None:
        run = self._runs[charge.run]
        run.total = None
        run.closed = True
        run.lost.append(charge)
        run.manifests.add(charge.manifest)

    # The functions below hold the rules of entries.

    def _charge_state(self, charge: Charge) -> State:
        charged_attempt = self._attempts.get(charge.slot)
        if charged_attempt is None:
            return "unknown"
        return charged_attempt.state

    def _counted_events(self) -> dict[str, Sequence[Event]]:
        """Returns the events that count, by run, equal ones merged."""
        return {run_total.run: run_total.events for run_total in self.totals() if run_total.events}

    def _check_open(self, charge: Charge) -> None:
        run = self._runs[charge.run]
        new_run_remedy = "start a new run under a new name"
        if run.manifests - {charge.manifest}:
            problem = f"run {charge.run!r} was charged under another manifest"
            raise PrivacyRefusal(problem, new_run_remedy, code="other-manifest")
        if run.closed:
            raise PrivacyRefusal(f"run {charge.run!r} has ended at this party", new_run_remedy, code="run-ended")
        charged_units = {run_total.unit for run_total in self.totals() if run_total.events or run_total.alone} - {""}
        if charge.unit and (spent_units := charged_units - {charge.unit}):
            spent_unit = min(spent_units)
            raise PrivacyRefusal(
                f"run {charge.run!r} protects the privacy unit {charge.unit!r}, and this data set's budget was spent on"
                f" runs that protect {spent_unit!r}: their epsilons do not add",
                f"propose the run with the unit {spent_unit!r}",
                code="other-unit",
            )

    def _check_same(self, attempt: ChargedAttempt, charge: Charge) -> None:
        """Refuses to charge a known attempt again, unless nothing has changed and its vector has not been sent."""
        if attempt.state == "sent":
            raise PrivacyRefusal(
                f"{charge} has sent its vector: another one is never computed",
                "a repeated request gets the bytes that were sent; without them a new attempt is needed",
                code="attempt-sent",
            )
        if attempt.state != "charged":
            raise PrivacyRefusal(
                f"{charge} is {attempt.state}: it is not charged again",
                "start a new attempt",
                code=f"attempt-{attempt.state}",
            )
        if attempt.charge != charge:
            raise PrivacyRefusal(
                f"{charge} was charged already with other content",
                "an attempt is sent once; a new one needs a new number",
                code="other-content",
            )
        if attempt.data != self.fingerprint:
            problem = f"{charge} was charged before the data set was replaced"
            raise PrivacyRefusal(problem, "start a new attempt", code="data-replaced")

    def _check_question(self, charge: Charge) -> None:
        charged_questions = {attempt.charge.question for attempt in self._runs[charge.run].of(charge.query)}
        if charged_questions - {charge.question, ""}:
            raise PrivacyRefusal(
                f"{charge} was charged with other public inputs before",
                "a sum asks one question, in repeated and spare attempts too; plan another sum for another question",
                code="other-question",
            )

    def _check_spare(self, charge: Charge, spare_attempts: int) -> None:
        charges_by_query = Counter(counted_charge.query for counted_charge in self._runs[charge.run].counted())
        spare_charges = charges_by_query.total() - len(charges_by_query)
        if charge.query in charges_by_query and spare_charges >= spare_attempts:
            raise PrivacyRefusal(
                f"{charge.query}: attempt {charge.attempt} needs a spare attempt, and the plan's {spare_charges} are"
                " used",
                "stop the run, or plan one with federation.spare_attempts",
                code="no-spare-attempt",
            )

    def _check_budget(self, charge: Charge, events: Sequence[Event]) -> None:
        """Raises PrivacyRefusal if the budget would be exceeded if the run of ``charge`` had charged ``events``."""
        if self.budget is None or math.isinf(self.budget.epsilon):
            return
        events_by_run = self._counted_events()
        delta_parts = self._delta_parts(events_by_run)
        runs = {**events_by_run, charge.run: events}
        budget_parts = parts(runs)
        if len(budget_parts) > delta_parts:
            raise PrivacyRefusal(
                f"{charge} would need a part of this data set's budget, whose delta is divided into {delta_parts}: "
                "runs of unsampled Gaussian noise share one, every other run takes one",
                "plan the run with unsampled Gaussian sums only, or have the hospital declare a budget of more parts",
                code="too-many-parts",
                told=f"{charge}: the budget of this data set does not allow a run that is not purely Gaussian",
            )
        if not self._lost_budgets and surely_within(budget_parts, self.budget.epsilon, self.budget.delta / delta_parts):
            return
        total_epsilon = self._spent_epsilon(runs, self.budget.delta, delta_parts)
        if total_epsilon > self.budget.epsilon * (1 + TOLERANCE):
            raise PrivacyRefusal(
                f"{charge} would bring this data set to epsilon {total_epsilon:.6g} at delta {self.budget.delta:g}; "
                f"its budget is {self.budget.epsilon:g}",
                "plan the run with a smaller epsilon (privacy.epsilon)",
                code="over-budget",
                told=f"{charge}: the budget of this data set does not allow this run",
            )

    def _delta_parts(self, runs: Mapping[str, Sequence[Event]]) -> int:
        """Returns the number of parts of delta: the budget's, or that of ``runs`` if fewer were declared later."""
        return max(1 if self.budget is None else self.budget.parts, len(parts(runs)))

    def _spent_epsilon(
        self, runs: Mapping[str, Sequence[Event]], delta: float, delta_parts: int | None = None
    ) -> float:
        lost_budgets = [budget for budget in self._lost_budgets if budget is not None]
        if len(lost_budgets) < len(self._lost_budgets):
            return math.inf
        remaining_delta = delta - math.fsum(budget.delta for budget in lost_budgets)
        lost_epsilon = math.fsum(budget.epsilon for budget in lost_budgets)
        if not any(runs.values()):
            if remaining_delta >= 0:
                return lost_epsilon
            return math.inf
        if remaining_delta > 0:
            return lost_epsilon + price(runs, remaining_delta, delta_parts or self._delta_parts(runs))
        return math.inf


def _charge_slot(charge: Charge) -> dict[str, Any]:
    return {"run": charge.run, "query": charge.query, "attempt": charge.attempt}
