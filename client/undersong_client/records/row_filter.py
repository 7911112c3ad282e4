"""Passes a source's rows through the hospital's own program, which reads one JSON object a line.

The program writes the rows that count, which it may have changed, in the same form.
"""

import base64
import decimal
import json
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.text.patient_ids import PatientId
from undersong_common.text.row_files import DottedColumns, Row, json_object


class RowFilter:
    """The hospital's filter command.

    Attributes:
        rows_in, rows_out: numbers of rows that the command has read and written.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self.rows_in = self.rows_out = 0

    def __call__(self, rows: Iterable[Row], columns: tuple[str, ...]) -> Iterator[Row]:
        """Passes rows through the command and yields the rows that it writes; their places are the filter's.

        The command is started without a shell. Its standard error is not shown, because it may hold a record. Raises
        ConfigurationError if the command cannot be started, fails, or writes anything but one JSON object per line.
        """
        input_lines = b"".join(map(self._encode_line, rows))
        try:
            process = subprocess.run(  # noqa: S603 - the hospital's own command
                shlex.split(self._command),
                input=input_lines,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, IndexError, ValueError) as error:
            problem = getattr(error, "strerror", None) or "it names no program"
            raise ConfigurationError(
                f"the filter cannot be started: {problem}", "check --filter", code="filter"
            ) from None
        if process.returncode:
            raise ConfigurationError(
                f"the filter ended with code {process.returncode}", "run it by hand with one row", code="filter"
            )
        dotted_columns = DottedColumns(columns)
        for row_number, output_line in enumerate(process.stdout.splitlines(), start=1):
            try:
                row_values = json_object(output_line, f"the filter's line {row_number}", columns)
            except ConfigurationError as error:
                raise ConfigurationError(
                    error.problem, "have the filter write one JSON object a line, in UTF-8", code="filter"
                ) from None
            self.rows_out += 1
            filtered_row = dotted_columns.read(Row(f"the filter's row {row_number}", row_values))
            yield filtered_row._replace(values={**dict.fromkeys(columns), **filtered_row.values})

    def _encode_line(self, row: Row) -> bytes:
        self.rows_in += 1
        json_values = {
            column_name: column_value.text if isinstance(column_value, PatientId) else column_value
            for column_name, column_value in row.values.items()
        }
        return json.dumps(json_values, default=_json_value).encode("utf-8") + b"\n"


def _json_value(value: Any) -> Any:
    """Returns a JSON form of a value that JSON cannot hold.

    A whole decimal becomes an integer, because 7.00 and 7 are one id.
    """
    if isinstance(value, decimal.Decimal):
        if value.is_finite() and value == value.to_integral_value():
            return int(value)
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode("ascii")}
    return str(value)
