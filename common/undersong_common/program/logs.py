"""Logging of a service: one line per record, as text or as JSON."""

import copy
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Sequence
from datetime import UTC, datetime
from typing import TextIO

from undersong_common.errors import UndersongError
from undersong_common.printable import json_text, printable

LONGEST_LINE = 8192  # characters


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON, with an exception's class and code, without its message and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        log_json = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            log_json["exception"] = record.exc_info[0].__name__
            if isinstance(record.exc_info[1], UndersongError):
                log_json["code"] = record.exc_info[1].code
        return json_text(log_json, indent=None)


class _Plain(logging.Formatter):
    """Formats a record as its time, level and message on one line, without an exception's message and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} {record.levelname} {record.getMessage()}"
        # Names of runs and of peers come from outside. None may begin a new line or write elsewhere on the terminal.
        return printable(line, LONGEST_LINE)


class _TerminalHandler(logging.StreamHandler[TextIO]):
    """Handler for a terminal that shows consecutive records once if they differ in numbers only.

    Progress, which is a record of level INFO or below with numbers, is always shown.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple):
            arguments = record.args
        else:
            arguments = ()
        texts = tuple(argument for argument in arguments if not isinstance(argument, int | float))
        if record.levelno > logging.INFO or len(texts) == len(arguments):
            repeat_key = getattr(record, "alike", (record.name, record.msg, *map(str, texts)))
            for line in self._repeats.lines(record.getMessage(), repeat_key):
                shown_record = copy.copy(record)
                shown_record.msg = line
                shown_record.args = None
                super().emit(shown_record)
        else:
            super().emit(record)


def place_of(error: BaseException) -> str:
    """Returns an error's class and the source lines that raised it, innermost first.

    It leaves out the error's message, which may hold private data.
    """
    frames = traceback.extract_tb(error.__traceback__)
    frames_shown = [f"{frame.filename.rsplit('/', 2)[-1]}:{frame.lineno}" for frame in reversed(frames[-5:])]
    return f"{type(error).__name__} at {' < '.join(frames_shown)}"


def to_stderr(packages: Sequence[str], *, as_json: bool, debug: bool) -> None:
    """Sets up logging to standard error: ``packages`` log from INFO (with ``debug`` from DEBUG), others from WARNING.

    A terminal shows only a count of successive records that are alike. A file, a pipe and JSON get every record.
    """
    # No log line shows threads, processes or the line of code, and finding that line doubles the cost of a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = (_TerminalHandler if sys.stderr.isatty() and not as_json else logging.StreamHandler)(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else _Plain())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for package in packages:
        logging.getLogger(package).setLevel(logging.DEBUG if debug else logging.INFO)


QUIET_S = 60.0
# A number that stands by itself: not part of a name, a date, an address, or something quoted.
_NUMBER = re.compile(r"(?<![\w.:/'\"-])\d+(?:\.\d+)?(?![.:/'\"-]*\w)(?!['\"])")


def without_numbers(message: str) -> str:
    """Returns a message with # for every number that stands by itself, so that near duplicates become equal.

    >>> without_numbers("votes/1: attempt 2 is void, next try in 0.5 s")
    'votes/1: attempt # is void, next try in # s'
    >>> without_numbers("site-2 at 10.0.0.7 refused run 'spring 3'")
    "site-2 at 10.0.0.7 refused run 'spring 3'"
    """
    return _NUMBER.sub("#", message)


class Repeats:
    """Suppresses and counts successive log messages that are alike. Threads may share an object.

    Args:
        quiet_s: seconds after which a message that is like the last one is shown all the same.
    """

    def __init__(self, quiet_s: float = QUIET_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet_s = quiet_s
        self._clock = clock
        self._last_shown: tuple[Hashable, float] = (None, 0.0)  # key and time of the last message that was shown
        self._suppressed_count = 0
        self._lock = threading.Lock()

    def lines(self, message: str, alike: Hashable = None) -> tuple[str, ...]:
        """Returns the lines to show: () if ``message`` is like the last one, else it, after a count of suppressed ones.

        Args:
            alike: a key that is equal for messages that are alike; None takes :func:`without_numbers` of the message.
        """
        alike = without_numbers(message) if alike is None else alike
        with self._lock:
            now_s = self._clock()
            last_key, last_time_s = self._last_shown
            if alike == last_key and now_s - last_time_s < self._quiet_s:
                self._suppressed_count += 1
                return ()
            suppressed = self._suppressed_count
            self._suppressed_count = 0
            self._last_shown = (alike, now_s)
        if suppressed:
            return (f"({suppressed} more like it)", message)
        return (message,)
