"""Makes faults of the machine from the numbers of the system's errors, and records them for as long as they last.

A machine that lacks something (room, inodes, descriptors, memory, a folder that is mounted) is nobody's mistake and
passes. A :class:`MachineFault` says what is missing and where; whoever meets one holds its step and tries it again.
Every other error of the system is something that a person must correct.
"""

import errno
import json
import logging
import os
import resource
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from undersong_common.errors import ConfigurationError, InternalError, MachineFault, MissingRights, UndersongError
from undersong_common.printable import printable
from undersong_common.program.logs import place_of
from undersong_common.program.owner import account_remedy

log = logging.getLogger(__name__)

FEWEST_DESCRIPTORS = 64  # a program opens about 25 before its first message, and some for each that it answers
_ROOM = "free space on that disk"
_DESCRIPTORS = "raise the limit of open files (LimitNOFILE, ulimit -n), or close what holds them"
# The remedy for each thing that a machine may lack, by the number of the error.
REMEDIES: Mapping[int, str] = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: "free space, or raise the account's quota",
    errno.EFBIG: "raise the largest size of a file (LimitFSIZE, ulimit -f)",
    errno.EIO: "look at the disk and at the system's log",
    errno.EROFS: "mount that disk for writing: the system may have changed it after an error",
    errno.EMFILE: _DESCRIPTORS,
    errno.ENFILE: _DESCRIPTORS,
    errno.ENOMEM: "free memory, or give this machine more",
    errno.ENOLCK: "look at the file server, or raise its number of locks",
    errno.ESTALE: "mount that folder again",
    errno.EBUSY: "wait until nothing else holds it",
}
# These codes are faults of the machine only where the error names a path, because sockets raise them too.
REMEDIES_OF_PATHS: Mapping[int, str] = dict.fromkeys(
    (errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENODEV, errno.ENXIO), "mount that folder again"
)
# Codes of errors about a file that the program has written itself. No person has decided upon it, so that a serving
# program holds the step that needs the file up until somebody has put the file right.
FAULTS_OF_FILES = frozenset(
    {
        *("file-missing", "file-damaged", "unreadable", "damaged", "key-missing", "no-sealed-data", "other-version"),
        *("policy-not-signed", "shorter", "other-entries", "broken-chain"),
    }
)
NO_INODES = "no free inodes on its disk"
INODES_REMEDY = "remove files there: the disk has room, but no entries for further files"
# What a person does about a fault in this program. A new start comes first: an update that replaces files under a
# running program is such a fault.
PROGRAM_REMEDY = (
    "nothing that you typed caused this; have IT restart the program, whose files may have changed while it ran; if it"
    " fails again, have IT send its log and these words to whoever maintains it"
)
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
RECORD_BYTES = 4096  # bytes of the record's file, reserved at the start so that a full disk cannot stop the record
_GROWTH_BYTES = 1 << 16  # SQLite adds at most so much to a file at once
LONGEST_WORDS = 300  # characters of a problem or a remedy in the record
MOST_RECORDED = 5


def is_passing_fault(error: Exception) -> bool:
    """Returns True for a fault of the machine or of a file that the program wrote: it may pass without a decision."""
    if isinstance(error, UndersongError):
        return isinstance(error, (MachineFault, MissingRights)) or error.code in FAULTS_OF_FILES
    return isinstance(error, (OSError, sqlite3.Error))


def check_descriptors(wanted: int = FEWEST_DESCRIPTORS) -> None:
    """Raises this process's limit of open files to ``wanted``, as far as it may; call it before gRPC begins.

    Raises MachineFault where the limit stays so low that gRPC would end the process, or hang, without a word.
    """
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    if limit < wanted:
        if hard_limit == resource.RLIM_INFINITY:
            limit = wanted
        else:
            limit = min(hard_limit, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
    if limit < FEWEST_DESCRIPTORS:
        problem_words = f"this process may open {limit} files at once, and needs {FEWEST_DESCRIPTORS}"
        raise MachineFault(problem_words, _DESCRIPTORS, code="emfile")


def fault_of(error: Exception, path: Path | str = "", *, root: Path | None = None) -> UndersongError:
    """Returns the error to show for an error of the system or of SQLite: MachineFault, else ConfigurationError.

    Args:
        path: the file, where the error does not name it.
        root: a file that was there when the program began; where it is gone, its folder cannot be reached.

    An UndersongError is returned as it is, and any other error as an InternalError.
    """
    if isinstance(error, UndersongError):
        return error
    file_name = _file_name(error) or str(path)
    if root is not None and not os.path.lexists(root):
        problem_words = f"{printable(str(root.parent))}: cannot be reached ({_system_reason(error)})"
        return MachineFault(problem_words, "bring that folder back, by mounting its disk", code="folder-away")
    if isinstance(error, sqlite3.Error):
        return _database_fault(error, file_name)
    if isinstance(error, OSError):
        return _system_fault(error, file_name)
    if isinstance(error, MemoryError):
        return MachineFault("there is not enough memory", REMEDIES[errno.ENOMEM], code="enomem")
    return internal_error(error)


def internal_error(error: Exception, remedy: str = PROGRAM_REMEDY) -> InternalError:
    """Returns an InternalError that names the lines of code that raised ``error``, but not its message."""
    return InternalError(f"internal error: {place_of(error)}", remedy, code="internal-error")


def _file_name(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return str(error.filename)
    return ""


def _system_reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else str(error)) or "input/output error"


def _system_fault(error: OSError, place: str) -> UndersongError:
    error_number = error.errno or 0
    prefix = ""
    if place:
        prefix = f"{printable(place)}: "
    if error_number == errno.ENOSPC and place and not _has_inodes(Path(place)):
        return MachineFault(f"{prefix}{error.strerror}: {NO_INODES}", INODES_REMEDY, code="no-inodes")
    if error_number in REMEDIES or (place and error_number in REMEDIES_OF_PATHS):
        remedy = REMEDIES.get(error_number) or REMEDIES_OF_PATHS[error_number]
        return MachineFault(f"{prefix}{error.strerror}", remedy, code=errno.errorcode[error_number].lower())
    remedy = "check the path and its permissions"
    if error_number in (errno.EACCES, errno.EPERM):
        remedy = account_remedy(Path(place)) or remedy
        return MissingRights(f"{prefix}{_system_reason(error)}", remedy, code="unreadable")
    return ConfigurationError(f"{prefix}{_system_reason(error)}", remedy, code="unreadable")


def _has_inodes(path: Path) -> bool:
    """Returns False if the disk counts inodes and none is free; True also for a disk that cannot be asked."""
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return True
    return disk.f_files == 0 or disk.f_favail > 0


def _database_fault(error: sqlite3.Error, place: str) -> UndersongError:
    """Returns the fault behind an error of SQLite.

    SQLite hides the system's error number. So this tries to write into the same folder, to see the error itself.
    """
    result_code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    prefix = ""
    if place:
        prefix = f"{printable(place)}: "
    if result_code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return ConfigurationError(f"{prefix}is damaged: {error}", "restore it from a backup", code="damaged")
    if result_code == sqlite3.SQLITE_NOMEM:
        return _system_fault(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), place)
    if result_code == sqlite3.SQLITE_BUSY:
        return MachineFault(f"{prefix}is busy: {error}", "wait until no other program uses it", code="busy")
    system_error = _missing_resource(Path(place or os.devnull))
    if system_error is not None:
        return _system_fault(system_error, place)
    if place and result_code == sqlite3.SQLITE_CANTOPEN:
        return MachineFault(f"{prefix}could not be opened a moment ago: {error}", _DESCRIPTORS, code="emfile")
    if result_code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        if result_code == sqlite3.SQLITE_FULL:
            error_number = errno.ENOSPC
        else:
            error_number = errno.EIO
        return _system_fault(OSError(error_number, os.strerror(error_number)), place)
    return ConfigurationError(f"{prefix}cannot be used: {error}", "check the folder and its permissions")


def _missing_resource(path: Path) -> OSError | None:
    """Returns the system's error from opening the file, or from making another file in its folder; None without one."""
    try:
        os.close(os.open(path, os.O_RDWR))
        if not path.is_file():
            return None
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(bytes(RECORD_BYTES))
            os.truncate(probe.fileno(), _largest_size(path) + _GROWTH_BYTES)  # fails beyond the largest size of a file
    except OSError as error:
        return error
    return None


def _largest_size(path: Path) -> int:
    """Returns the bytes of the largest file of a database: itself, or the log or journal beside it."""
    database_files = (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-journal"))
    return max((file.stat().st_size for file in database_files if file.is_file()), default=0)


@contextmanager
def named_faults(path: Path | str, *, root: Path | None = None) -> Iterator[None]:
    """Replaces an error of the system or of SQLite in the block by :func:`fault_of` it.

    sqlite3.ProgrammingError, which a closed database raises, passes as it is.
    """
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except (OSError, sqlite3.Error) as error:
        raise fault_of(error, path, root=root) from None


@contextmanager
def rights_that_pass() -> Iterator[None]:
    """Turns missing rights in the block into a MachineFault, so that a unit starts its program again.

    A root shell that has left a file of its own, or changed an owner, ends no service for good.
    """
    try:
        yield
    except (MissingRights, PermissionError) as error:
        right_fault = fault_of(error)
        raise MachineFault(right_fault.problem, right_fault.remedy, code=right_fault.code) from None


@dataclass(frozen=True)
class HeldStep:
    """A step of a serving program that is held up, the reason, and since when (seconds since the epoch)."""

    step: str
    problem: str
    remedy: str
    since_s: float
    code: str = ""
    of_machine: bool = True

    @property
    def says(self) -> str:
        since_words = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_s))
        return f"{self.step} is held up since {since_words}: {self.problem}"

    @property
    def words(self) -> str:
        return f"{self.says}; {self.remedy}"


class HeldSteps:
    """The steps of a serving program that are held up now. Each is tried again after a pause that grows.

    They are recorded in a file that is allocated when the program starts and overwritten in its place, because a full
    disk has no room for a new one.

    Args:
        file: path of that record; None keeps none.
        root: a file that is there as long as the program's folder can be reached.
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        root: Path | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._steps: dict[str, HeldStep] = {}
        self._retry_times: dict[str, tuple[float, float]] = {}  # pause (s) and time of the next try, by step
        self._record_descriptor: int | None = None
        if file is not None:
            with suppress(OSError):
                self._record_descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
                self._write_record()

    def attempt(self, step: str, act: Callable[[], object]) -> bool:
        """Runs ``act`` unless its step is paused; returns True if it ended well. An error holds the step up."""
        if not self.is_due(step):
            return False
        try:
            act()
        except Exception as error:  # noqa: BLE001 - one step's fault is that step's
            self.hold(step, error)
            return False
        self.release(step)
        return True

    def is_due(self, step: str) -> bool:
        """Returns False while the step is paused after a fault."""
        _, due_s = self._retry_times.get(step, (0.0, 0.0))
        return self._monotonic() >= due_s

    def hold(self, step: str, error: Exception) -> HeldStep:
        """Records that an error holds a step up, logs it if the problem is new, and doubles the step's pause."""
        step_fault = fault_of(error, root=self._root)
        with self._lock:
            previous_step = self._steps.get(step)
            pause_s, _ = self._retry_times.get(step, (FIRST_PAUSE_S / 2, 0.0))
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            self._retry_times[step] = pause_s, self._monotonic() + pause_s
            if previous_step is None:
                since_s = self._clock()
            else:
                since_s = previous_step.since_s
            held_step = HeldStep(
                step,
                step_fault.problem,
                step_fault.remedy,
                since_s,
                step_fault.code,
                isinstance(step_fault, MachineFault),
            )
            self._steps[step] = held_step
            self._write_record()
        if previous_step is None or previous_step.problem != held_step.problem:
            log.error("%s is held up: %s; %s", step, held_step.problem, held_step.remedy)
        return held_step

    def pause_s(self, step: str) -> float:
        """Returns the seconds until a step that is held up is tried again."""
        _, due_s = self._retry_times.get(step, (0.0, 0.0))
        return max(0.0, due_s - self._monotonic())

    def release(self, step: str) -> None:
        """Records that a step goes on; does nothing if it was not held up."""
        if step not in self._steps:
            return
        with self._lock:
            held_step = self._steps.pop(step)
            self._retry_times.pop(step, None)
            self._write_record()
        log.warning("%s goes on after %.0f s", step, max(0.0, self._clock() - held_step.since_s))

    def keep_only(self, steps: set[str], prefix: str) -> None:
        """Forgets held steps whose name begins with ``prefix`` and that are not in ``steps``."""
        ended_steps = [step for step in self._steps if step.startswith(prefix) and step not in steps]
        if not ended_steps:
            return
        with self._lock:
            for step in ended_steps:
                self._steps.pop(step, None)
                self._retry_times.pop(step, None)
            self._write_record()

    def all(self) -> tuple[HeldStep, ...]:
        """Returns the steps that are held up, the oldest first."""
        with self._lock:
            return tuple(self._steps.values())

    def close(self) -> None:
        """Empties the record: a program that has ended holds nothing up."""
        with self._lock:
            self._steps.clear()
            self._write_record()
            if self._record_descriptor is not None:
                os.close(self._record_descriptor)
                self._record_descriptor = None

    def _write_record(self) -> None:
        """Overwrites the record in its place, in one write of always the same length."""
        if self._record_descriptor is None:
            return
        shortened_steps = [_shorten_step(step) for step in list(self._steps.values())[:MOST_RECORDED]]
        record_bytes = json.dumps(shortened_steps).encode("ascii")
        with suppress(OSError):  # A disk may take nothing at all; the log and the program's page still show the step.
            os.pwrite(self._record_descriptor, record_bytes.ljust(RECORD_BYTES)[:RECORD_BYTES], 0)


def _shorten_step(step: HeldStep) -> dict[str, object]:
    # An escaped character may take six bytes; a sixth of the characters lets all recorded steps fit the record.
    if (step.problem + step.remedy + step.step).isascii():
        longest_words = LONGEST_WORDS
    else:
        longest_words = LONGEST_WORDS // 6
    facts = asdict(step)
    return {**facts, **{fact_name: facts[fact_name][:longest_words] for fact_name in ("step", "problem", "remedy")}}


def held_steps(file: Path) -> tuple[HeldStep, ...]:
    """Reads the steps that a serving program has recorded as held up; () without a readable record."""
    try:
        return tuple(HeldStep(**step_json) for step_json in json.loads(file.read_bytes().decode("ascii")))
    except (OSError, ValueError, TypeError):
        return ()
