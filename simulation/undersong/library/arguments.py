"""Arguments of the library: checks against the types in its signatures."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from types import GenericAlias
from typing import Any, TypeVar, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from undersong.run.frames import is_frame
from undersong_common.errors import ConfigurationError
from undersong_common.program import extras
from undersong_common.program.configuration import in_words, nearest
from undersong_common.program.declarations import Option

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
        signature = inspect.signature(function)
        hints = _resolve_hints(function)
        try:
            bound_arguments = signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise ConfigurationError(f"us.{function.__name__}: {error}", "see its help()", code=CODE) from None
        parameter_kinds = {name: signature.parameters[name].kind for name in hints}
        hints |= {
            name: GenericAlias(tuple, (hints[name], ...))
            for name, kind in parameter_kinds.items()
            if kind is inspect.Parameter.VAR_POSITIONAL
        }
        # The function itself checks its ``**options``, because it knows the class whose fields they are.
        options_kind = inspect.Parameter.VAR_KEYWORD
        plain_arguments = {
            name: _to_plain(argument)
            for name, argument in bound_arguments.arguments.items()
            if parameter_kinds.get(name, options_kind) is not options_kind
        }
        ConfigurationError.raise_together(_find_faults(plain_arguments, hints), code=CODE)
        bound_arguments.arguments |= plain_arguments
        with extras.named():
            return function(*bound_arguments.args, **bound_arguments.kwargs)

    return cast("_Function", called)


def check_options(
    arguments: Mapping[str, Any], options: type, *, unknown_code: str = "unknown-argument"
) -> dict[str, Any]:
    """Checks ``arguments`` as fields of the dataclass ``options``; returns them in Python's own types.

    Args:
        unknown_code: code of the error for a name that is no field.

    Raises ConfigurationError that names every field that is unknown or of a wrong type.
    """
    hints = _resolve_hints(options)
    for name in arguments.keys() - hints:
        raise ConfigurationError(f"there is no argument {name!r}", nearest(name, hints), code=unknown_code)
    plain_arguments = {name: _to_plain(value) for name, value in arguments.items()}
    ConfigurationError.raise_together(_find_faults(plain_arguments, hints), code=CODE)
    return plain_arguments


def _to_plain(value: Any) -> Any:
    """Returns numpy's numbers and arrays as Python's own; ranges, iterators and sets as lists, sets sorted."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Set):
        sorted_by_text = sorted(value, key=str)
        value = sorted(sorted_by_text, key=lambda element: element if isinstance(element, int | float) else 0)
    if isinstance(value, list | tuple | range | Iterator):
        plain_elements = [_to_plain(element) for element in value]
        if isinstance(value, tuple):
            return tuple(plain_elements)
        return plain_elements
    return value


def _resolve_hints(annotated: Any) -> dict[str, Any]:
    # Whoever has a DataFrame has loaded pandas. Without pandas no argument can be one.
    frame_class = getattr(sys.modules.get("pandas"), "DataFrame", Path)
    hints = get_type_hints(annotated, localns={"Frame": frame_class}, include_extras=True)
    return {name: hint for name, hint in hints.items() if name != "return"}


def _find_faults(arguments: Mapping[str, Any], hints: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (problem, remedy) of each argument that does not fit. Only numbers are shown: others may be private."""
    for name, value in arguments.items():
        number_shown = ""
        if isinstance(value, int | float):
            number_shown = f" ({value!r})"
        misfit = _describe_misfit(hints[name], value)
        options = (
            annotation for annotation in getattr(hints[name], "__metadata__", ()) if isinstance(annotation, Option)
        )
        least_number = next(options, Option()).get("min")
        if misfit is not None:
            yield f"{name}= {misfit[0]}{number_shown}", f"{name}=: {misfit[1]}"
        elif least_number is not None and isinstance(value, int | float) and value < least_number:
            yield f"{name}= is below {least_number}{number_shown}", f"{name}=: choose {least_number} or more"


def _describe_misfit(hint: Any, value: Any) -> tuple[str, str] | None:
    """Returns (problem, remedy) of a value that is not of the type ``hint``, else None.

    A string, or a frame, may stand for a file's path too.
    """
    adapter = TypeAdapter(tuple[hint], config=_STRICT)  # In a tuple, because pydantic takes no config for a dataclass.
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
