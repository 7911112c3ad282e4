"""Registry of statistics by wire name: a plan names one, and a party rebuilds it from public parameters."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from undersong_common.errors import ConfigurationError, InternalError
from undersong_protocol.statistics.interface import QUESTIONS, Statistic, bounded_parameters
from undersong_protocol.statistics.interface import positive_integer as positive_integer  # for other packages

_Class = TypeVar("_Class", bound=type[Statistic])
_STATISTICS: dict[str, type[Any]] = {}
_SOURCES: dict[str, str] = {}  # of other packages' statistics: SHA-256 (hex) of their source
_OWN = "undersong_protocol."


def register(statistic: _Class) -> _Class:
    """Class decorator: makes a frozen dataclass of this program with a ``name`` known under it."""
    _check(statistic)
    if not statistic.__module__.startswith(_OWN):
        raise InternalError(
            f"statistic {statistic.name!r} is another package's",
            "declare it by an entry point of undersong.statistics: parties trust it by its name and hash",
        )
    if statistic.question not in QUESTIONS:
        raise InternalError(
            f"statistic {statistic.name!r} answers no kind of question", f"name one of {', '.join(QUESTIONS)}"
        )
    _STATISTICS[statistic.name] = statistic
    return statistic


def register_foreign(name: str, statistic: Any, source: str) -> None:
    """Makes another package's statistic known; again with the same source changes nothing.

    Args:
        name: under which that package declares it.
        source: SHA-256 (hex) of its source, which plans carry and every party must trust.

    Raises ConfigurationError for what is no statistic, has another name, or has the name of one that is known.
    """
    if name in _SOURCES and _SOURCES[name] == source:
        return
    if name in _SOURCES:
        raise ConfigurationError(
            f"the statistic {name!r} is loaded here from the source {_SOURCES[name]}, and {source} is asked for",
            "start this program again",
        )
    try:
        _check(statistic)
    except InternalError as error:
        raise ConfigurationError(error.problem, error.remedy, code=error.code) from None
    if statistic.name != name:
        raise ConfigurationError(
            f"the statistic {statistic.name!r} is declared under the name {name!r}", "give its entry point that name"
        )
    _STATISTICS[name] = statistic
    _SOURCES[name] = source


def _check(statistic: Any) -> None:
    name = getattr(statistic, "name", statistic)
    if not dataclasses.is_dataclass(statistic):
        raise InternalError(f"statistic {name!r} is not a dataclass")
    if not isinstance(statistic, type) or not issubclass(statistic, Statistic):
        raise InternalError(f"statistic {name!r} is no subclass of Statistic", code="no-statistic")
    if name in _STATISTICS:
        raise InternalError(f"two statistics are named {name!r}")
    try:
        bounded_parameters(statistic)
    except NameError as error:
        raise InternalError(
            f"statistic {name!r}: a parameter's type cannot be read: {error}",
            "import it where the program runs too, not only for type checkers",
            code="unreadable-type",
        ) from None


def names() -> list[str]:
    """The wire names this program knows, sorted; with those of other packages that were registered."""
    return sorted(_STATISTICS)


def of_question(question: str) -> tuple[str, ...]:
    """The wire names of this program's own statistics that answer a kind of question (``QUESTIONS``), sorted."""
    return tuple(name for name in names() if _STATISTICS[name].question == question and name not in _SOURCES)


def source(name: str) -> str:
    """SHA-256 (hex) of the source of another package's statistic; "" for this program's own and for unknown ones."""
    return _SOURCES.get(name, "")


def known(name: str) -> type[Statistic] | None:
    """The class of that wire name, or None if this program does not know it."""
    return _STATISTICS.get(name)


def parameters(statistic: Statistic) -> dict[str, Any]:
    """The statistic's public parameters, JSON-able; ``build(statistic.name, ...)`` gives an equal statistic."""
    if not dataclasses.is_dataclass(statistic):
        raise InternalError(f"statistic {statistic.name!r} is not a dataclass")
    return {field.name: _plain(getattr(statistic, field.name)) for field in dataclasses.fields(statistic) if field.init}


def build(name: str, parameters: Mapping[str, Any]) -> Statistic:
    """The statistic of that name and these public parameters.

    Raises:
        ConfigurationError: unknown name, or parameters that the statistic does not take.
    """
    found = _STATISTICS.get(name)
    if found is None:
        raise ConfigurationError(f"unknown statistic {name!r}", f"known here: {', '.join(names())}; update Undersong")
    fields = {field.name for field in dataclasses.fields(found) if field.init}
    unknown = sorted(set(parameters) - fields)
    if unknown:
        raise ConfigurationError(f"statistic {name!r} has no parameter {unknown[0]!r}", f"it takes {sorted(fields)}")
    try:
        statistic: Statistic = found(**{key: _frozen(value) for key, value in parameters.items()})
    except TypeError:
        raise ConfigurationError(f"statistic {name!r}: a parameter is missing or of a wrong type") from None
    return statistic


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
