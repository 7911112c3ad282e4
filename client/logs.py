"""What the daemon logs: its own words only, as text or as JSON, never what a library was given."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """One JSON object a line. Tracebacks are left out: they may hold values."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
            },
            ensure_ascii=False,
        )


class _NoTraceback(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.exc_info = record.exc_text = record.stack_info = None
        # a run's name comes from outside: it must not begin a line of its own
        return super().format(record).replace("\n", " ")


def to_stderr(*, as_json: bool, debug: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = _NoTraceback("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if as_json else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for package in ("client", "protocol", "common"):
        logging.getLogger(package).setLevel(logging.DEBUG if debug else logging.INFO)
