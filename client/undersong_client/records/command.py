"""A hospital's own filter as a source: every row in as a line of JSON, the rows that count out."""

import json
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

from undersong_client.records.declared import Declared
from undersong_common.errors import ConfigurationError


def rows(declared: Declared, given: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the rows that the command writes.

    The command is started without a shell. What it says on standard error is not shown: it may hold a record. Raises
    ConfigurationError where it cannot be started, fails, or writes anything but one JSON object a line.
    """
    command = shlex.split(declared.row_filter)
    lines = b"".join(json.dumps(row, default=str).encode("utf-8") + b"\n" for row in given)
    try:
        done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)  # noqa: S603 - the hospital's own command
    except (OSError, IndexError) as error:
        said = getattr(error, "strerror", None) or "it names no program"
        raise ConfigurationError(f"the filter cannot be started: {said}", "check --filter", code="filter") from None
    if done.returncode:
        raise ConfigurationError(
            f"the filter ended with code {done.returncode}", "run it by hand with one row", code="filter"
        )
    for number, line in enumerate(done.stdout.splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise ConfigurationError(
                f"the filter's line {number} is not a JSON object", "one object a line, in UTF-8", code="filter"
            )
        yield row
