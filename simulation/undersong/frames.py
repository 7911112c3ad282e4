"""pandas DataFrames in and out; pandas itself is imported only where one is made (the extra ``notebook``)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from undersong_common.configuration import nearest
from undersong_common.errors import ConfigurationError
from undersong_common.table import Table, table_of

if TYPE_CHECKING:
    import pandas

    from undersong.options import FrameOrPath

Frame: TypeAlias = "pandas.DataFrame"


def is_frame(value: object) -> bool:
    """Returns true for a DataFrame; does not import pandas."""
    return type(value).__module__.partition(".")[0] == "pandas"


def selected(frame: Frame, columns: Sequence[str], what: str) -> Frame:
    """Returns those columns of a frame. Raises ConfigurationError that names a column which is missing."""
    for column in columns:
        if column not in frame.columns:
            raise ConfigurationError(
                f"{what}: has no column {column!r}", nearest(column, [str(each) for each in frame.columns])
            )
    return frame[list(dict.fromkeys(columns))]


def to_jsonl(frame: Frame) -> str:
    """Writes a frame as JSON lines, one object per row. A missing value becomes null, which reading refuses by row."""
    written: str = frame.to_json(orient="records", lines=True, force_ascii=False)
    return written if not written or written.endswith("\n") else written + "\n"


def to_table(source: "FrameOrPath | None", text: str, label: str | None, what: str) -> Table | Path | None:
    """Returns a frame's texts and labels as a table; a path as it is; None for None.

    Raises ConfigurationError for data that cannot be used; it names the frame (by ``what``), the row and the remedy.
    """
    if source is None:
        return None
    if isinstance(source, str | Path):
        return Path(source)
    if not is_frame(source):
        raise ConfigurationError(
            f"{what}= is a {type(source).__name__}", f"give a DataFrame or a file as {what}=", code="argument"
        )
    return rows_of(selected(source, [text, *([label] if label else [])], what), what, text, label)


def rows_of(
    frame: Frame,
    what: str,
    text: str,
    label: str | None,
    user: str | None = None,
    *,
    columns: Mapping[str, str] = MappingProxyType({}),
    labels: Sequence[str] = (),
) -> Table:
    """Returns the frame's rows as a table, read by the same rule as a file of these rows.

    Raises ConfigurationError for data that cannot be used; it names the frame (by ``what``), the row and the remedy.
    """
    rows = (json.loads(line) for line in to_jsonl(frame).split("\n") if line)
    return table_of(rows, what, text, label, user, columns=columns, labels=labels)


def pandas_package() -> Any:
    """Imports and returns pandas. Raises ConfigurationError if it is not installed."""
    try:
        import pandas
    except ImportError:
        raise ConfigurationError(
            "DataFrames need the package pandas", "install undersong with the extra notebook"
        ) from None
    return pandas
