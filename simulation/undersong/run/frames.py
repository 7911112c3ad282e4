"""DataFrames in and out: their columns, their rows as a table, and pandas itself where one is made.

pandas comes with the extra ``notebook``; nothing else imports it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from undersong_common.errors import ConfigurationError
from undersong_common.text.row_files import Row, absent_column, check_names
from undersong_common.text.table import Columns, Table, read_user, table_of

if TYPE_CHECKING:
    import pandas

    from undersong.run.options import FrameOrPath

Frame: TypeAlias = "pandas.DataFrame"


def is_frame(value: object) -> bool:
    """Returns True for a DataFrame; does not import pandas."""
    return type(value).__module__.partition(".")[0] == "pandas"


def selected(frame: Frame, columns: Sequence[str], frame_name: str) -> Frame:
    """Returns a frame with these columns alone. Raises ConfigurationError for one that is missing or stands twice."""
    frame_columns = [str(name) for name in frame.columns]
    check_names(frame_columns, columns, frame_name)
    for column in columns:
        if column not in frame.columns:
            raise absent_column(frame_name, {column: ""}, frame_columns)
    return frame[list(dict.fromkeys(columns))]


def with_patient_ids(frame: Frame, user: str | None, frame_name: str) -> Frame:
    """Returns the frame with the ids of its patients as text, so that every reader of it joins the same rows.

    Raises ConfigurationError for a row without an id; it names the frame (by ``frame_name``), the row and the remedy.
    """
    if user is None:
        return frame
    ids = []
    for number, value in enumerate(frame[user].tolist(), start=1):
        row = Row(f"{frame_name}: row {number}", {user: value})
        ids.append(read_user(row, user).text)
    frame_with_ids = frame.copy()
    frame_with_ids[user] = ids
    return frame_with_ids


def to_jsonl(frame: Frame) -> str:
    """Returns a frame as JSON lines, one object per row. A missing value becomes null, which a reader refuses by row.

    Raises ConfigurationError for a value that JSON cannot hold.
    """
    try:
        lines: str = frame.to_json(orient="records", lines=True, force_ascii=False)
    except Exception:  # noqa: BLE001 - whatever pandas raises may hold a value
        raise ConfigurationError(
            "a frame holds a value that cannot be written as JSON",
            "turn its columns into text, for example by .astype(str)",
            code="argument",
        ) from None
    if not lines or lines.endswith("\n"):
        return lines
    return lines + "\n"


def to_table(source: "FrameOrPath | None", text: str, label: str | None, frame_name: str) -> Table | Path | None:
    """Returns a frame's texts and labels as a table; a path as it is; None for None.

    Raises ConfigurationError for data that cannot be used; it names the frame by ``frame_name``, the row and
    the remedy.
    """
    if source is None:
        return None
    if isinstance(source, str | Path):
        return Path(source)
    if not is_frame(source):
        raise ConfigurationError(
            f"{frame_name}= is a {type(source).__name__}",
            f"give a DataFrame or a file as {frame_name}=",
            code="argument",
        )
    return rows_of(selected(source, [text, *([label] if label else [])], frame_name), frame_name, text, label)


def rows_of(
    frame: Frame,
    frame_name: str,
    text: str,
    label: str | None,
    user: str | None = None,
    *,
    columns: Mapping[str, str] = MappingProxyType({}),
    labels: Sequence[str] = (),
) -> Table:
    """Returns the frame's rows as a table, read by the same rule as a file of these rows.

    Raises ConfigurationError for data that cannot be used; it names the frame by ``frame_name``, the row and
    the remedy.
    """
    lines = filter(None, to_jsonl(frame).split("\n"))
    rows = (Row(f"{frame_name}: row {number}", json.loads(line)) for number, line in enumerate(lines, start=1))
    return table_of(rows, frame_name, Columns(text, label, user, columns), labels)


def pandas_package() -> Any:
    """Imports and returns pandas. Raises ConfigurationError if it is not installed."""
    try:
        import pandas
    except ImportError:
        raise ConfigurationError(
            "DataFrames need the package pandas", "install undersong with the extra notebook"
        ) from None
    return pandas
