"""What a service logs: its own words, as text or as JSON, one line per record, never what a library was given."""

from __future__ import annotations

import copy
import logging
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TextIO

from undersong_common.errors import UndersongError
from undersong_common.printable import json_text, printable
from undersong_common.repeats import Repeats

LONGEST_LINE = 8192  # characters


class JsonLines(logging.Formatter):
    """One JSON object a line. Tracebacks are left out, but for the exception's name: they may hold values."""

    def format(self, record: logging.LogRecord) -> str:
        value = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            value["exception"] = record.exc_info[0].__name__
            if isinstance(record.exc_info[1], UndersongError):
                value["code"] = record.exc_info[1].code
        return json_text(value, indent=None)


class _Plain(logging.Formatter):
    """A time, the level and the words. Each second's time is put together once."""

    _second = -1
    _time = ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._time = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        line = f"{self._time},{int(record.msecs):03d} {record.levelname} {record.getMessage()}"
        # names of runs and of peers come from outside: none may begin a line of its own, or draw on the terminal
        return printable(line, LONGEST_LINE)


class _Watched(logging.StreamHandler[TextIO]):
    """Where a person watches: of records in a row that differ in numbers only the first is shown; progress always."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        given = record.args if isinstance(record.args, tuple) else ()
        named = tuple(value for value in given if not isinstance(value, int | float))
        if record.levelno > logging.INFO or len(named) == len(given):
            key = getattr(record, "alike", (record.name, record.msg, *map(str, named)))
            for line in self._repeats.shown(record.getMessage(), key):
                shown = copy.copy(record)
                shown.msg, shown.args = line, None
                super().emit(shown)
        else:
            super().emit(record)


def place(error: BaseException) -> str:
    """Where an error was raised: files and lines, innermost first. Its words may hold private data, these do not."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{frame.filename.rsplit('/', 2)[-1]}:{frame.lineno}" for frame in reversed(frames[-4:]))


def to_stderr(packages: Sequence[str], *, as_json: bool, debug: bool) -> None:
    """Our own ``packages`` at information level (``debug``: all), every library at warnings.

    On a terminal a record like the one before is counted only; a file, a pipe and JSON get every one.
    """
    # No line names them, nor the line of code: to walk up the stack for it takes as long as the rest.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    watched = sys.stderr.isatty() and not as_json
    handler = _Watched(sys.stderr) if watched else logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else _Plain())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for package in packages:
        logging.getLogger(package).setLevel(logging.DEBUG if debug else logging.INFO)
