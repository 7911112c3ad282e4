"""One run of the coordinator as files: its plan, the requested action, its status and its outputs.

Commands and the serving process communicate through these files only. Each file is replaced as a whole, so either may
be killed at any time. Only the serving process writes ``status.json``; only the commands write ``requested.json`` and
``annotations.json``. Where machines share a database, these files and the outputs go into it first, and each machine
copies them.
"""

import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar

from pydantic import Field, TypeAdapter

from undersong_common.errors import ConfigurationError, MachineFault
from undersong_common.files import LOST_AND_FOUND, file_state, replace_file
from undersong_common.printable import joined, number, printable
from undersong_common.program.machine import fault_of, named_faults
from undersong_protocol.agreement.manifest import PLAN_WORDS, RUN_NAME
from undersong_server.database.journal import Journal
from undersong_server.database.storage import Storage
from undersong_server.runs.planning import Planned

Action = Literal["run", "pause", "stop"]
State = Literal["planned", "waiting", "running", "paused", "stopped", "finished", "failed", "unreadable"]
ENDED = ("finished", "stopped", "failed")
UNREADABLE: Final = "unreadable"  # state of a run whose files cannot be read, and the code of the error
FINAL = ("finished", "stopped")  # no requested action changes these any more
STATE_AFTER: Mapping[str, State] = {"pause": "paused", "stop": "stopped"}  # state of a run after a requested action
STANDING = (*ENDED, "paused")  # states in which no process works on a run and the run waits for nobody


@dataclass(frozen=True)
class AwaitedParty:
    """A party whose connection or reply is missing. ``seconds``: since it connected or was lost; None if never seen."""

    party: str
    connected: bool
    seconds: float | None


@dataclass(frozen=True)
class Awaited:
    """The parties that a run waits for.

    Attributes:
        since, goes_on_at: seconds since the epoch; ``goes_on_at`` is None where it waits without a limit.
        goes_on_with: number of parties that are enough to go on.
        words: the same as one sentence; where people decide, it ends with the nine words for the plan's hash.
        whom: people who have to decide, or machines that have to answer.
    """

    parties: Annotated[tuple[AwaitedParty, ...], Field(alias="for")]
    since: float
    goes_on_at: float | None
    goes_on_with: int
    words: str
    whom: Literal["machines", "people"] = "machines"

    @property
    def sentence(self) -> str:
        """The words without the plan's nine words at the end, which a screen shows elsewhere."""
        return self.words.partition(PLAN_WORDS)[0]

    @property
    def plan_words(self) -> str:
        """The nine words for the plan's hash, which people compare; "" where no people decide."""
        return self.words.partition(PLAN_WORDS)[2]


class UnreadableRun(ConfigurationError):
    """A file of a run's folder that is not what this program wrote there, whatever is wrong with it.

    ``run`` and ``file`` name it, and ``reason`` says what is wrong.
    """

    def __init__(
        self, path: Path, reason: str, remedy: str = "restore it from a backup, or move that run's folder away"
    ) -> None:
        super().__init__(f"run {path.parent.name}: {path}: {reason}", remedy, code=UNREADABLE)
        self.run = path.parent.name
        self.file = path.name
        self.reason = reason


@dataclass(frozen=True)
class Annotations:
    """The operator's own words about a run: no party and no receiver sees them.

    ``marked`` holds row numbers of published texts, from 1, in order. ``begun_with`` is the earlier run whose values
    its form began with, "" for none. ``downloaded_at`` is when an operator took the files with these marks, in seconds
    since the epoch; 0 for never.
    """

    note: str = ""
    tags: tuple[str, ...] = ()
    marked: tuple[int, ...] = ()
    begun_with: str = ""
    downloaded_at: float = 0.0


@dataclass(frozen=True)
class RunFailure:
    """The reason why a run failed; ``exit_code`` is that of the error, for whoever watches it.

    ``rejected_by`` names the hospitals that refuse to take part, where that is the reason, and ``approved_by`` those
    that had agreed by then.
    """

    problem: str
    remedy: str
    exit_code: int
    rejected_by: tuple[str, ...] = ()
    approved_by: tuple[str, ...] = ()

    def others(self, roster: Sequence[str]) -> str:
        """The sentence on what the other hospitals had decided when one refused; "" where none refused."""
        if not self.rejected_by:
            return ""
        undecided_names = [name for name in roster if name not in (*self.rejected_by, *self.approved_by)]
        if self.approved_by:
            clauses = [f"{', '.join(self.approved_by)} had approved"]
        else:
            clauses = []
        clauses += [f"no decision had come from {', '.join(undecided_names)}"] if undecided_names else []
        return f"Of the others, {'; '.join(clauses)}." if clauses else ""

    @property
    def screen_words(self) -> str:
        """The problem for a screen that shows the run's name and state: it quotes a hospital's people by its name."""
        lines = _PEOPLE.sub(_quote_people, self.problem).split("\n")
        if len(lines) == 1:
            return lines[0]
        # Several hospitals refuse, one a line; a screen may show the lines as one.
        return "\n".join(line if line.endswith((".", ":")) else f"{line}." for line in lines)

    @property
    def advice(self) -> str:
        """The remedy where no telephone number is known: :meth:`advise`."""
        return self.advise({})

    def advise(self, contacts: Mapping[str, str]) -> str:
        """Returns what the operator does about it: the remedy, or what helps where an error has none.

        Args:
            contacts: whom to telephone at a hospital, by its name; "" for nobody.
        """
        if not self.rejected_by:
            return self.remedy or RESTART_REMEDY
        reasoning_parties = {decision[1] for decision in _PEOPLE.finditer(self.problem) if decision[3]}
        people = [_person_words(name, contacts.get(name, ""), name in reasoning_parties) for name in self.rejected_by]
        verb = "telephone" if any(contacts.get(name) for name in self.rejected_by) else "talk to"
        own_remedies = [words for words in self.remedy.split("; ") if words not in ("", TALK)]
        return "; ".join([f"{verb} {joined(people)}", *own_remedies, "then revise the run, and start the revised one"])


SUM_PHASE = "private sum "  # start of the name of a phase in which a private sum is asked
EMBEDDING = "embedding texts"  # names the phases in which texts are embedded before the last private sum
MEASURING = "measuring how good it is"  # name of the phase after the last private sum
EMBEDDED = "texts embedded; the count begins again with each set of texts"
PHASE_UNITS = {  # what a phase counts, by the beginning of its name
    SUM_PHASE.strip(): "steps of this private sum",
    EMBEDDING: EMBEDDED,
    MEASURING: EMBEDDED,
    "writing ": "texts ordered in this step",
    "approval of ": "hospitals",
}


@dataclass(frozen=True)
class RunStatus:
    """State of a run, as the process that drives it writes it and every command reads it.

    Attributes:
        number: number of the requested action that was carried out, 0 for none.
        at, since: when this was written and when the run's driver began, seconds since the epoch; None before that.
        phase: what is done now, ``done`` of ``total``; "" between phases.
        message: the last line of the run's log.
        charged: True if a private sum was asked for, so that parties may have been charged.
        evaluation_error: why a run published its texts without the figures beside its test file; None elsewhere. A
            later evaluation may have made them.
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
    charged: bool = False
    evaluation_error: RunFailure | None = None

    def __post_init__(self) -> None:
        """Empties phase, counts and ``waiting`` of a run on which nothing works: a status file may still state them."""
        if self.state not in STANDING:
            return
        for field_name, nothing in {"phase": "", "done": 0, "total": 0, "waiting": None}.items():
            object.__setattr__(self, field_name, nothing)
        if self.state in STATE_AFTER.values():  # A paused or stopped run's last log line says what it did before.
            object.__setattr__(self, "message", "")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what does not apply now is left out."""
        status_json = _STATUS.dump_python(self, mode="json", by_alias=True)
        return {
            field_name: field_value for field_name, field_value in status_json.items() if field_value not in (None, "")
        }

    @property
    def state_words(self) -> str:
        """The state as people read it: who has rejected the run, or whom it waits for."""
        if self.error is not None and self.error.rejected_by:
            return f"rejected by {', '.join(self.error.rejected_by)}"
        if self.waiting is not None:
            return f"waiting for {'people' if self.waiting.whom == 'people' else 'hospitals'}"
        if self.state == "waiting":  # It waits for nobody: its driver prepares it, or something holds it up.
            return PREPARING if self.phase else "held up"
        return self.state

    @property
    def detail(self) -> str:
        """Words to stand beside :attr:`state_words`: the phase, whom the run waits for, or the last line of the log.

        It repeats neither the state nor the error, which stand beside it.
        """
        if self.waiting is not None:
            return self.waiting.sentence
        if self.phase and self.phase != self.state_words:
            return self.phase
        if self.error is not None or self.message in (self.state, self.state_words):
            return ""
        return self.message

    @property
    def count_words(self) -> str:
        """Says how far the phase is, with the unit that it counts; "" where it counts nothing."""
        if not self.total:
            return ""
        unit = next((unit for beginning, unit in PHASE_UNITS.items() if self.phase.startswith(beginning)), "steps")
        return f"{number(self.done)} of {number(self.total)} {unit}"

    @property
    def words(self) -> str:
        """The status in one line."""
        status_parts: list[str] = [self.state_words if self.waiting is None else self.state]
        if self.phase and self.phase != self.state_words:
            status_parts.append(f"{self.phase} {self.done}/{self.total}" if self.total else self.phase)
        if self.waiting is not None:
            status_parts.append(self.waiting.words)
        if self.error is not None:
            status_parts.append(self.error.problem)
        if self.evaluation_error is not None and self.state in ENDED:
            status_parts.append(f"{UNEVALUATED}: {self.evaluation_error.problem}")
        return ": ".join(status_parts)


@dataclass(frozen=True)
class RequestedAction:
    """The operator's last request; ``number`` counts the requests of a run from 1, and is 0 before the first."""

    action: Action | None
    number: int


@dataclass(frozen=True)
class HeardEnding:
    """The parties that were told how a run ended: by ``state``, after the requested action ``number``."""

    state: str
    number: int
    parties: tuple[str, ...]


_STATUS = TypeAdapter(RunStatus)
_ACTION = TypeAdapter(RequestedAction)
_HEARD = TypeAdapter(HeardEnding)
_PLANNED = TypeAdapter(Planned)
_ANNOTATIONS = TypeAdapter(Annotations)
Kept = TypeVar("Kept")
NEW_LINE = re.compile(r"\s*\n\s*")
LIVE_END_BYTES = 2**18  # bytes in which the last usage of the generators is looked for
PREPARING = "preparing"  # phase of a run until its hospitals are asked
RESTART_REMEDY = (
    "no setting of the run caused this; have IT restart the coordinator, whose files may have changed while it ran,"
    " then: undersong run resume; if it fails again, give whoever maintains the program a support bundle:"
    " undersong console support"
)
TALK = "talk to its people"  # remedy of a refusal that a hospital's people have decided
_PEOPLE = re.compile(  # A run's name has no quotes.
    r"^(.+?) refuses: its people have (rejected|withdrawn from) run '[^'\n]*'(?:: (.+))?$", re.MULTILINE
)
UNEVALUATED = "the evaluation failed"  # begins the line of the log of a run that has no figures for that reason
FAILED, REJECTED = "failed", "is rejected"  # begin the last line of the log of a run that has not finished
LONGEST_LINE = 4096  # characters of a line of a run's log


def _person_words(party: str, contact: str, has_reason: bool) -> str:
    """Names a hospital and whom to ask for there: first whom its own reason names, then whom the operator noted."""
    if not contact:
        return party
    return f"{party} (whom its reason names, else {contact})" if has_reason else f"{party} ({contact})"


def _quote_people(decision: re.Match[str]) -> str:
    """The decision of a hospital's people as a screen quotes it."""
    party, decision_word, reason = decision.groups()
    if decision_word == "rejected":
        return f"{party} says: {reason}" if reason else f"{party} gives no reason"
    return f"{party} has withdrawn" + (f", and says: {reason}" if reason else "")


def _parse_status(value: Mapping[str, Any]) -> RunStatus:
    status = _STATUS.validate_python(value)
    if status.state == UNREADABLE:  # This state is shown, and never written.
        raise ValueError(status.state)
    return status


def _parse_planned(value: Mapping[str, Any]) -> Planned:
    unknown_keys = set(value) - set(Planned.__dataclass_fields__)
    if unknown_keys:
        raise ValueError(unknown_keys)
    return _PLANNED.validate_python({**value, "roster": tuple(value["roster"])})


class RunFolder:
    """The files of one run in a folder: plan, requested action, status, log and outputs.

    Args:
        storage: where the run's journal is, and copies of its files for another machine; None for this folder alone.
    """

    def __init__(self, path: Path, storage: Storage | None = None) -> None:
        self.path = path
        if storage is None:
            self._storage = Storage(path.parent.parent)
        else:
            self._storage = storage
        self.name = path.name
        self.journal_path = path / "journal.sqlite"
        self.output = path / "output"

    @property
    def exists(self) -> bool:
        """True if a run was planned here, though this account may not be able to read it."""
        try:
            os.lstat(f"{self.path}/plan.json")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return self.name != LOST_AND_FOUND
        return True

    def create(self, planned: Planned) -> None:
        """Makes the folder and writes the plan. Raises ConfigurationError for a name that is invalid or taken."""
        if not RUN_NAME.fullmatch(planned.name):
            raise ConfigurationError(
                f"the run's name {planned.name!r} cannot be a folder",
                "use letters, digits, spaces, points, hyphens and underscores",
                code="invalid-name",
            )
        if self.exists or self._storage.get(self.name, "plan.json"):
            raise ConfigurationError(
                f"a run {planned.name!r} exists already",
                "choose another name, since a run's name is used once (--name)",
                code="run-exists",
            )
        with named_faults(self.path):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.write_status(RunStatus())
        self._replace_file("plan.json", asdict(planned))

    def amend(self, planned: Planned) -> None:
        """Replaces the plan by one that differs only in what no party signs, such as the limits of generators."""
        self._replace_file("plan.json", asdict(planned))

    def _replace_file(self, name: str, value: Mapping[str, Any], *, durable: bool = True) -> None:
        json_data = json.dumps(value, indent=1).encode("utf-8")
        if durable:
            self._storage.put(self.name, {name: json_data})
        with named_faults(self.path / name):
            replace_file(self.path / name, json_data, durable=durable)

    def share_output(self) -> None:
        """Stores the published files in the database that machines share; does nothing if there is no such database."""
        self._storage.put_tree(self.path, self.output)

    def journal(self, epoch: int | None = None) -> Journal:
        """Opens the run's journal, under the serving process's epoch.

        Raises ConfigurationError if it is in use, and UnreadableRun if it is damaged, or is lost although parties were
        charged: a run that began anew would ask them for what they have answered.
        """
        files = self.journal_path, Path(f"{self.journal_path}-wal")
        is_empty = self._storage.shared is None and all(file_state(path)[2] <= 0 for path in files)
        if is_empty and self.exists and self.status().charged:
            raise UnreadableRun(self.journal_path, "is missing or empty, and parties were charged")
        try:
            return self._storage.journal(self.journal_path, epoch)
        except ConfigurationError as error:
            if error.code != "damaged":
                raise
            raise UnreadableRun(self.journal_path, "is damaged") from None

    @property
    def has_journal(self) -> bool:
        """True if a journal was begun."""
        return self._storage.has_journal(self.journal_path)

    def annotations(self) -> Annotations:
        """Reads the operator's words about the run. Raises UnreadableRun if they are damaged."""
        return self.read_object("annotations.json", _ANNOTATIONS.validate_python) or Annotations()

    def annotate(self, annotations: Annotations) -> None:
        """Replaces the operator's words about the run. Raises ConfigurationError if there is no run."""
        self._check_exists()
        self._replace_file("annotations.json", asdict(annotations))

    def put_away(self, successor: str = "") -> None:
        """Notes that the run needs no attention any more. Raises ConfigurationError if there is no run.

        Args:
            successor: run that replaces this one.
        """
        self._check_exists()
        with named_faults(self.path), (self.path / "put-away").open("a", encoding="utf-8") as file:
            file.write(f"{successor}\n" if successor else "")
        os.utime(file.name)

    def take_back(self) -> None:
        """Undoes :meth:`put_away`, but for the successor's name. Raises ConfigurationError if there is no run."""
        self._check_exists()
        with named_faults(self.path):
            if self.is_put_away:
                os.utime(self.path / "put-away", (0, 0))

    @property
    def successor(self) -> str:
        """Name of the last run that was planned to replace this one, "" for none."""
        return self._end_of("put-away").decode("utf-8", "replace").rpartition("\n")[0].rpartition("\n")[2]

    @property
    def is_put_away(self) -> bool:
        """True if :meth:`put_away` was called since the run's status changed last."""
        try:
            put_away_ns = os.stat(self.path / "put-away").st_mtime_ns
            return put_away_ns >= os.stat(self.path / "status.json").st_mtime_ns
        except OSError:
            return False

    def planned(self) -> Planned:
        """Reads the plan. Raises ConfigurationError if the folder holds no run, UnreadableRun if it is damaged."""
        return self.read_object("plan.json", _parse_planned) or self._raise_missing()

    def request(self, action: Action) -> None:
        """Records the requested action; the serving process acts upon it within a second, or when it next starts."""
        self._check_exists()
        newest_request = self._storage.get(self.name, "requested.json")
        # Another machine's request may not have been copied yet.
        request_number = (
            self._last_number() if newest_request is None else int(json.loads(newest_request)["number"])
        ) + 1
        self._replace_file("requested.json", {"action": action, "number": request_number})

    def _last_number(self) -> int:
        """Number of the last requested action; where that cannot be read, of the last one that was carried out."""
        try:
            return self.requested().number
        except UnreadableRun:
            return self.status().number

    def requested(self) -> RequestedAction:
        """Reads the action that the operator requested last."""
        return self.read_object("requested.json", _ACTION.validate_python) or RequestedAction(None, 0)

    def status(self) -> RunStatus:
        """Reads the last status that was written. Raises ConfigurationError if the folder holds no run."""
        self._check_exists()  # create() may have been killed after it wrote the status
        # Keys that only a newer program knows are ignored; a state that only it knows makes the run unreadable.
        return self.read_object("status.json", _parse_status) or RunStatus()

    def _check_exists(self) -> None:
        if not self.exists:
            self._raise_missing()

    def _raise_missing(self) -> NoReturn:
        raise ConfigurationError(f"no run {self.name!r}", "see `undersong run list`", code="no-run")

    # Every file of a run is read through these two methods.

    def read_object(self, name: str, parse: Callable[[dict[str, Any]], Kept]) -> Kept | None:
        """Reads a JSON object and returns what ``parse`` returns for it; None if the file is missing.

        Raises UnreadableRun if the file cannot be read, is no JSON object, or holds what ``parse`` refuses.
        """
        file_data = self._read_file(name)
        if file_data is None:
            return None
        path = self.path / name
        if not file_data.strip(b"\0 \r\n\t"):
            raise UnreadableRun(path, "is empty: a write was cut off" if not file_data else "holds nothing but zeros")
        try:
            json_value = json.loads(file_data)
        except (ValueError, RecursionError):
            raise UnreadableRun(path, "is not JSON") from None
        if not isinstance(json_value, dict):
            raise UnreadableRun(path, "is not a JSON object")
        try:
            return parse(json_value)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):  # pydantic's errors are ValueErrors
            raise UnreadableRun(
                path,
                "has other keys or values than this release writes",
                "use the release that wrote it, or restore it",
            ) from None

    def _read_file(self, name: str, most_bytes: int | None = None) -> bytes | None:
        """A file, or its last ``most_bytes`` from the beginning of a line on; None if it is missing.

        Raises UnreadableRun for whatever else is wrong, and MachineFault for what the machine lacks.
        """
        path = self.path / name
        try:
            # O_NONBLOCK, because a pipe in the file's place would block this call for ever.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise UnreadableRun(path, "is not a file", "move it away, and restore the file from a backup")
                if most_bytes is None:
                    start_byte = 0
                else:
                    start_byte = max(0, file.seek(0, os.SEEK_END) - most_bytes)
                file.seek(start_byte)
                file_bytes = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            read_fault = fault_of(error, path)
            if isinstance(read_fault, MachineFault):
                raise read_fault from None
            raise UnreadableRun(path, error.strerror or "cannot be read", read_fault.remedy) from None
        if start_byte:
            return file_bytes.partition(b"\n")[2]
        return file_bytes

    def write_status(self, status: RunStatus, *, durable: bool = False) -> None:
        """Writes the status with the present time; with ``durable`` it is on the disk when this returns."""
        stamped_status = replace(status, at=time.time())
        self._replace_file("status.json", {"run": self.name, **stamped_status.to_json()}, durable=durable)

    def heard(self, status: RunStatus) -> set[str]:
        """Names of the parties that were told of the ending that ``status`` states."""
        heard_record = self.read_object("heard.json", _HEARD.validate_python)
        is_same_ending = heard_record is not None and (heard_record.state, heard_record.number) == (
            status.state,
            status.number,
        )
        if heard_record is not None and is_same_ending:
            return set(heard_record.parties)
        return set()

    def note_heard(self, status: RunStatus, parties: Iterable[str]) -> None:
        """Notes the parties that were told of the ending that ``status`` states; else they are told again."""
        heard_json = {"state": status.state, "number": status.number, "parties": sorted(parties)}
        replace_json(self.path / "heard.json", heard_json, durable=False)

    def say(self, line: str) -> None:
        """Adds a line with its time to the run's log: public words, in which what cannot be printed is replaced."""
        time_words = time.strftime("%Y-%m-%d %H:%M:%S")
        with named_faults(self.path / "log.txt"), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time_words} {logged(line)}\n")

    def begin_live(self) -> None:
        """Drops the facts that :meth:`tell` added in an earlier start, since a continued run repeats them."""
        (self.path / "live.jsonl").unlink(missing_ok=True)

    def tell(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Adds a public fact of the run to its live file, for screens that follow it; no guarantee depends on it."""
        live_line = json.dumps({"at": time.time(), "kind": kind, **facts}, ensure_ascii=False, default=str)
        with contextlib.suppress(OSError), (self.path / "live.jsonl").open("ab") as file:
            file.write(live_line.encode("utf-8", "replace") + b"\n")

    def live(self) -> list[dict[str, Any]]:
        """The facts that :meth:`tell` added, oldest first; a line that is being written is left out."""
        return list(self._live_facts(self._end_of("live.jsonl").split(b"\n")[:-1]))

    def usage(self) -> dict[str, dict[str, Any]]:
        """Last reported usage of each generator, read from the end of the file, which may be long."""
        live_lines = self._end_of("live.jsonl", LIVE_END_BYTES).split(b"\n")[:-1]
        live_facts = self._live_facts(reversed(live_lines))
        stated_usages = (event.get("usage") for event in live_facts if event["kind"] == "usage")
        return next((usage for usage in stated_usages if isinstance(usage, dict)), {})

    def _live_facts(self, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        """The facts in lines of the live file; a line that a full disk has cut off is left out."""
        for line in lines:
            try:
                line_json = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(line_json, dict) and "kind" in line_json:
                yield line_json

    def log(self) -> list[str]:
        """The lines that :meth:`say` wrote."""
        return self._end_of("log.txt").decode("utf-8", "replace").splitlines()

    def _end_of(self, name: str, most_bytes: int | None = None) -> bytes:
        """The last ``most_bytes`` of a file, from the start of a line on; None takes all; empty if it is missing."""
        return self._read_file(name, most_bytes) or b""


def logged(line: str) -> str:
    """Formats a line for a run's log: in one line, printable and not too long. Its time comes before it."""
    return printable(NEW_LINE.sub("; ", line), LONGEST_LINE)


def read_json(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object; None if the file is missing.

    Raises ConfigurationError if it is damaged or may not be read, MachineFault for what the machine lacks.
    """
    try:
        with named_faults(path):
            json_bytes = None
            if os.path.lexists(path):
                json_bytes = path.read_bytes()
        json_value = {} if json_bytes is None else json.loads(json_bytes)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{path}: is not JSON", "restore it from a backup", code="damaged") from None
    if not isinstance(json_value, dict):
        raise ConfigurationError(f"{path}: is not a JSON object", "restore it from a backup", code="damaged")
    if json_bytes is None:
        return None
    return json_value


def replace_json(path: Path, value: Mapping[str, Any], *, durable: bool) -> None:
    """Replaces a whole file by a JSON object; with ``durable`` it is on the disk when this returns."""
    with named_faults(path):
        replace_file(path, json.dumps(value, indent=1).encode("utf-8"), durable=durable)
