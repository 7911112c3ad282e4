"""Arguments of the library: checks against the types in its signatures, and DataFrames in and out.

pandas itself is imported only where a DataFrame is made (the extra ``notebook``).
"""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import GenericAlias, MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from undersong_common.errors import ConfigurationError
from undersong_common.program import extras
from undersong_common.program.configuration import in_words, nearest
from undersong_common.text.row_files import Row, absent_column, check_names
from undersong_common.text.table import Columns, Table, read_user, table_of
from undersong_server.defaults import Option

if TYPE_CHECKING:
    import pandas

    from undersong.run.options import FrameOrPath

Frame: TypeAlias = "pandas.DataFrame"

CODE = "argument"
_Function = TypeVar("_Function", bound=Callable[..., Any])
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)  # neither "3" nor True is a number


def checked(function: _Function) -> _Function:
    """Wraps a function of the library: its arguments are checked against the types in its signature before it runs.

    The wrapped function takes numpy's numbers, and any iterable for a list. It raises ConfigurationError (code
    "argument") that names every wrong argument, and one that names the extra of a package that is missing.
    """

    @functools.wraps(function)
    def called(*arguments: Any, **keywords: Any) -> Any:
        signature, hints = inspect.signature(function), _resolve_hints(function)
        try:
            bound = signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise ConfigurationError(f"us.{function.__name__}: {error}", "see its help()", code=CODE) from None
        kinds = {name: signature.parameters[name].kind for name in hints}
        hints |= {
            name: GenericAlias(tuple, (hints[name], ...))
            for name, kind in kinds.items()
            if kind is inspect.Parameter.VAR_POSITIONAL
        }
        free = inspect.Parameter.VAR_KEYWORD  # these are checked where it is known what takes them
        plain_arguments = {
            name: _to_plain(bound.arguments[name]) for name in bound.arguments if kinds.get(name, free) is not free
        }
        ConfigurationError.raise_together(_find_faults(plain_arguments, hints), code=CODE)
        bound.arguments |= plain_arguments
        with extras.named():
            return function(*bound.args, **bound.kwargs)

    return cast("_Function", called)


def check_options(arguments: Mapping[str, Any], options: type) -> dict[str, Any]:
    """Checks ``arguments`` as fields of the dataclass ``options``; returns them in Python's own types.

    Raises ConfigurationError that names every field that is unknown or of a wrong type.
    """
    hints = _resolve_hints(options)
    for name in arguments.keys() - hints:
        raise ConfigurationError(f"there is no argument {name!r}", nearest(name, hints), code="unknown-argument")
    plain_arguments = {name: _to_plain(value) for name, value in arguments.items()}
    ConfigurationError.raise_together(_find_faults(plain_arguments, hints), code=CODE)
    return plain_arguments


def _to_plain(value: Any) -> Any:
    """Numbers and arrays of numpy as Python's own; ranges, iterators and sets as lists, sets sorted."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Set):
        by_text = sorted(value, key=str)
        value = sorted(by_text, key=lambda element: element if isinstance(element, int | float) else 0)
    if isinstance(value, list | tuple | range | Iterator):
        parts = [_to_plain(element) for element in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


def _resolve_hints(annotated: Any) -> dict[str, Any]:
    frame = getattr(sys.modules.get("pandas"), "DataFrame", Path)  # pandas is loaded where there is a DataFrame
    hints = get_type_hints(annotated, localns={"Frame": frame}, include_extras=True)
    return {name: hint for name, hint in hints.items() if name != "return"}


def _find_faults(arguments: Mapping[str, Any], hints: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(problem, remedy) of each unfit argument. A value is shown if it is a number; another may be private."""
    for name, value in arguments.items():
        number_shown = f" ({value!r})" if isinstance(value, int | float) else ""
        words = _describe_misfit(hints[name], value)
        options = (
            annotation for annotation in getattr(hints[name], "__metadata__", ()) if isinstance(annotation, Option)
        )
        least = next(options, Option()).get("min")
        if words is not None:
            yield f"{name}= {words[0]}{number_shown}", f"{name}=: {words[1]}"
        elif least is not None and isinstance(value, int | float) and value < least:
            yield f"{name}= is below {least}{number_shown}", f"{name}=: choose {least} or more"


def _describe_misfit(hint: Any, value: Any) -> tuple[str, str] | None:
    """Problem and remedy of a value that is not of a type, or None. A text and a frame stand for a file's path too."""
    adapter = TypeAdapter(tuple[hint], config=_STRICT)  # a dataclass takes no config itself
    misfit: tuple[str, str] | None = None
    candidates = [value]
    if isinstance(value, str):
        candidates.append(Path(value))
    elif is_frame(value):
        candidates.append(Path())
    for candidate in candidates:
        try:
            adapter.validate_python((candidate,))
        except ValidationError as error:
            problem, remedy = in_words(error.errors(include_url=False)[0])
            misfit = misfit or (problem or f"is a {type(value).__name__}", remedy or "see its help()")
        else:
            return None
    return misfit


def is_frame(value: object) -> bool:
    """Returns true for a DataFrame; does not import pandas."""
    return type(value).__module__.partition(".")[0] == "pandas"


def selected(frame: Frame, columns: Sequence[str], frame_name: str) -> Frame:
    """Returns those columns of a frame. Raises ConfigurationError for one that is missing or stands twice."""
    names = [str(name) for name in frame.columns]
    check_names(names, columns, frame_name)
    for column in columns:
        if column not in frame.columns:
            raise absent_column(frame_name, {column: ""}, names)
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
    """Writes a frame as JSON lines, one object per row. A missing value becomes null, which reading refuses by row.

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
    return lines if not lines or lines.endswith("\n") else lines + "\n"


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
