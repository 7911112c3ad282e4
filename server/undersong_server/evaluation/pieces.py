"""The pieces of an evaluation, none of which needs another's value: computed here, or wherever there are more cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from undersong_common.threads import one_numpy_thread

_Value = TypeVar("_Value")
Piece = tuple[Callable[..., Any], tuple[Any, ...]]  # a module's own function, and its arguments
Compute = Callable[[Sequence[Piece]], Sequence[Any]]  # the values, in the pieces' order


def in_this_process(pieces: Sequence[Piece]) -> list[Any]:
    """One piece after the other."""
    return [computed(*piece) for piece in pieces]


def computed(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """A piece's value. Products and decompositions take one thread: the same sums in the same order anywhere."""
    import sklearn.cluster  # noqa: F401 - the threads of what is loaded later would not be counted

    with one_numpy_thread():
        return function(*arguments)


class Later(Generic[_Value]):
    """A piece's value, once it has been computed."""

    def __init__(self) -> None:
        self._found: list[_Value] = []

    @property
    def value(self) -> _Value:
        return self._found[0]

    def settle(self, value: _Value) -> None:
        self._found.append(value)


class Pieces:
    """What is to be computed."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._later: list[Later[Any]] = []

    def add(self, function: Callable[..., _Value], *arguments: Any) -> Later[_Value]:
        """The value that ``function`` will have for the arguments; both are sent to where it is computed."""
        later: Later[_Value] = Later()
        self._pieces.append((function, arguments))
        self._later.append(later)
        return later

    def compute(self, compute: Compute) -> None:
        """Gives every piece its value."""
        for later, value in zip(self._later, compute(self._pieces), strict=True):
            later.settle(value)
