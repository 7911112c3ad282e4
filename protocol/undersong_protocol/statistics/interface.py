"""The interface of a statistic: public parameters, a tight bound on one record's row, the rows of a party's records.

Statistics are registered by wire name: a plan names one, and a party rebuilds it from public parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias, TypeVar, get_type_hints

import numpy as np
import scipy.sparse as sp

from undersong_common.arrays import Bools, Float32, Float64, Int64, UInt64
from undersong_common.errors import ConfigurationError, InternalError
from undersong_protocol.limits import LARGEST_DIMENSION, LARGEST_LABELS

_Value = TypeVar("_Value")
Matrix: TypeAlias = "sp.csr_array[Any] | Float64"


@dataclass(frozen=True)
class Sensitivity:
    """Largest norms of one record's row, in natural units: one vote, one count or one unit of length is 1."""

    l1: float
    l2: float
    linf: float


class RecordView(Protocol):
    """Interface through which a statistic reads a party's M private records. ``repr`` must not show them."""

    def __len__(self) -> int: ...

    @property
    def texts(self) -> Sequence[str]:
        """The records' texts, M of them."""

    @property
    def labels(self) -> Int64:
        """Each record's label, an index into the task's labels, int64 [M]; -1 or any other number means no label."""

    @property
    def embeddings(self) -> Float32:
        """The records' quantised embeddings, of norm at most 1, float32 [M, d]; every access gives the same object."""

    @property
    def units(self) -> Int64:
        """Number of each record's privacy unit, int64 [M]."""

    @property
    def unit_hashes(self) -> UInt64:
        """Hash of each record's unit under the party's secret key, uint64 [M].

        It depends on that unit alone, so that a division of the units by hash does not change when other units do.
        """

    @property
    def columns(self) -> Mapping[str, Sequence[str]]:
        """Further columns of the records by attribute, M values each; "" for a missing value."""

    @property
    def local_model(self) -> str:
        """The party's local model for fine-tuning: "packaged", a folder, or "" if the party has named none."""


@dataclass(frozen=True, eq=False)
class LabelledEmbeddings:
    """Public embeddings, quantised float32 [n, d], with their labels, int64 [n] (-1 for no label)."""

    values: Float32
    labels: Int64

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.labels.shape != (len(self.values),):
            raise ConfigurationError(
                f"public embeddings have shape {self.values.shape} and their labels {self.labels.shape}, not [n, d] and"
                " [n]",
                "check what was published",
            )


@dataclass(frozen=True, eq=False)
class PublicInputs:
    """The named public data of one private sum, the same bytes at every party.

    Attributes:
        embeddings: candidates and other embedded texts, by name.
        numbers: float64 arrays of any shape, by name.
        texts: strings (vocabulary terms, keywords), by name.
    """

    embeddings: Mapping[str, LabelledEmbeddings] = field(default_factory=dict)
    numbers: Mapping[str, Float64] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def embeddings_of(self, name: str) -> LabelledEmbeddings:
        """Returns the public embeddings of this name. Raises ConfigurationError if none were published."""
        return _look_up(self.embeddings, name, "embeddings")

    def numbers_of(self, name: str) -> Float64:
        """Returns the public numbers of this name. Raises ConfigurationError if none were published."""
        return _look_up(self.numbers, name, "numbers")

    def texts_of(self, name: str) -> Sequence[str]:
        """Returns the public texts of this name. Raises ConfigurationError if none were published."""
        return _look_up(self.texts, name, "texts")


def _look_up(values: Mapping[str, _Value], name: str, input_kind: str) -> _Value:
    if name not in values:
        raise ConfigurationError(
            f"the private sum needs public {input_kind} named {name!r}", "publish them with the request (method file)"
        )
    return values[name]


@dataclass(frozen=True)
class PublicFacts:
    """Public facts of a run, against which a party checks public inputs.

    Attributes:
        embedding_size: d, coordinates of an embedding.
        labels: number of labels of the task.
    """

    embedding_size: int
    labels: int


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """The rows of a party's records before clipping; private.

    Attributes:
        matrix: float64 [R, dimension] in natural units, sparse (CSR) or dense; or a function from row numbers,
            int64 [r], to their rows, [r, dimension]. A statistic whose dimension grows with a number of its plan must
            give a function, so that no buffer grows with the records times that number (docs/privacy.md,
            "Non-interference").
        units: number of each row's privacy unit, int64 [R].
        width: numbers that the function stores for a row; None if it stores ``dimension`` numbers.
    """

    matrix: Matrix | Callable[[Int64], Matrix]
    units: Int64
    width: int | None = None

    def __repr__(self) -> str:
        return f"Rows({len(self)})"

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        raise TypeError("Rows hold private values and are never serialised")

    def __len__(self) -> int:
        return len(self.units)

    def take(self, positions: Int64) -> Matrix:
        """Returns the rows with these numbers, [len(positions), dimension]."""
        if callable(self.matrix):
            return self.matrix(positions)
        return self.matrix[positions]

    def keep_units(self, is_kept: Bools) -> Rows:
        """Returns only the rows of the units u for which ``is_kept[u]`` is True, bool [number of units]."""
        kept_rows = np.flatnonzero(is_kept[self.units])
        if callable(self.matrix):
            compute_rows = self.matrix
            return Rows(lambda row_numbers: compute_rows(kept_rows[row_numbers]), self.units[kept_rows], self.width)
        return Rows(self.matrix[kept_rows], self.units[kept_rows])


def in_blocks(values: Float64, block: Int64, dimension: int) -> sp.csr_array[Any]:
    """Makes m rows that are zero outside one block of columns each, sparse [m, dimension].

    Args:
        values: contents of each row's block, float64 [m, width].
        block: number of each row's block, int64 [m]; block b covers the columns from b x width.
    """
    row_count, block_width = values.shape
    columns = block[:, None] * block_width + np.arange(block_width)
    row_starts = np.arange(row_count + 1) * block_width
    return sp.csr_array((values.ravel(), columns.ravel(), row_starts), shape=(row_count, dimension))


def at_columns(columns: Int64, weights: Float64, dimension: int) -> sp.csr_array[Any]:
    """Makes m rows with weights at k chosen columns each, sparse [m, dimension].

    Args:
        columns: column numbers, int64 [m, k], each at most once in a row; a negative one is left out.
        weights: weight at the first, second, ... k-th column of a row, float64 [k].
    """
    is_counted = columns >= 0
    row_starts = np.concatenate([[0], np.cumsum(is_counted.sum(axis=1))])
    row_values = np.broadcast_to(weights, columns.shape)[is_counted]
    return sp.csr_array((row_values, columns[is_counted], row_starts), shape=(len(columns), dimension))


# Kinds of questions among which a hospital chooses: plain words, and an example.
QUESTIONS: Mapping[str, tuple[str, str]] = {
    "counts": ("How many records have something", "How many notes are labelled cardiac? How many name the word fever?"),
    "nearest": ("Which texts of the run are most like the records", "How many notes have this text as nearest?"),
    "classifiers": (
        "How well public classifiers sort the records",
        "How many notes does a public classifier, a program that sorts texts, file rightly?",
    ),
    "directions": ("Where the records lie on a map of meanings", "In which direction do the notes of one label lie?"),
    "teachers": (
        "What programs that are trained here say about the run's texts",
        "How many of ten programs, each trained on a part of the notes, take this text for one of them?",
    ),
}


@dataclass(frozen=True)
class Between:
    """Marks a parameter of a statistic as an integer of [least, most], which is checked for plans from the wire."""

    least: int = 1
    most: int = LARGEST_DIMENSION


Number = Annotated[int, Between()]
LabelCount = Annotated[int, Between(0, LARGEST_LABELS)]  # 0 where the task has no labels
COUNT_SCALE = 256  # integer units per count (docs/privacy.md, "Noise"): shares of the noise stay well above 3 units


def positive_integer(
    statistic: str, name: str, value: object, *, least: int = 1, most: int = LARGEST_DIMENSION
) -> None:
    """Raises ConfigurationError unless ``value``, the parameter ``name`` of a statistic, is an int of [least, most]."""
    if type(value) is not int or not least <= value <= most:
        raise ConfigurationError(
            f"{statistic}.{name} is {value!r}, not an integer in its range",
            f"give an integer of at least {least} and at most {most}",
            code="number-out-of-range",
        )


def positive_integers(
    statistic: str, name: str, values: object, *, most_entries: int, least: int = 1, most: int
) -> None:
    """Raises ConfigurationError unless ``values`` is a tuple of 1 to ``most_entries`` ints of [least, most].

    The number of entries is checked first, because a peer's plan is built before anybody has agreed to it.
    """
    if not isinstance(values, tuple) or not 1 <= len(values) <= most_entries:
        if isinstance(values, tuple):
            values_words = f"{len(values)} entries"
        else:
            values_words = repr(values)
        raise ConfigurationError(
            f"{statistic}.{name} has {values_words}, not 1 to {most_entries} integers",
            f"give at least 1 and at most {most_entries} integers",
        )
    for value in values:
        positive_integer(statistic, name, value, least=least, most=most)


@cache
def bounded_parameters(statistic: type[Any]) -> dict[str, type[bool] | Between]:
    """Returns the type of each parameter of a statistic that is a bool or has bounds, by name."""
    type_hints = get_type_hints(statistic, include_extras=True)
    bounds = {name: getattr(type_hint, "__metadata__", (type_hint,))[0] for name, type_hint in type_hints.items()}
    return {
        name: type_bound for name, type_bound in bounds.items() if type_bound is bool or isinstance(type_bound, Between)
    }


class Statistic(ABC):
    """Base of every statistic: a frozen dataclass of public parameters, with the rows of records and their bound.

    Parameters must be values that JSON can hold.

    Attributes:
        name: name of the statistic in plans.
        question: its kind, a key of ``QUESTIONS``, named where the class is declared; "" for another package's, which
            runs in simulations only.
        consent: completes "A hospital releases ..." for the people who decide about a run; names no number. Where the
            question depends on parameters, it covers all of them, and ``asks`` says what these ask.
        whole: True where a row depends on several units of a party, so that a Poisson subsample of units must not be
            taken of the rows: a plan with a sampling rate below 1 is refused. Privacy depends on it, so each class
            states it itself; a class body without it, or without a consent sentence, raises InternalError.
    """

    name: ClassVar[str]
    whole: ClassVar[bool]
    consent: ClassVar[str]
    question: ClassVar[str] = ""

    def __init_subclass__(cls, *, question: str = "") -> None:
        super().__init_subclass__()
        cls.question = question or cls.question
        if not isinstance(cls.__dict__.get("whole"), bool):
            raise InternalError(
                f"the statistic {cls.__name__} does not state `whole`, on which privacy depends",
                "write `whole: ClassVar[bool] = False` (or True) into its class",
                code="whole-not-stated",
            )
        if not isinstance(sentence := cls.__dict__.get("consent"), str) or not sentence:
            raise InternalError(
                f"the statistic {cls.__name__} does not state `consent`, which people read before they approve a run",
                "write `consent: ClassVar[str] = ...` into its class",
            )

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of coordinates of the vector."""

    @property
    @abstractmethod
    def sensitivity(self) -> Sensitivity:
        """Tight bounds on the norms of one record's row; the framework clips rows to them."""

    def __post_init__(self) -> None:
        """Checks every parameter that is annotated with :class:`Between` or is a bool.

        Raises ConfigurationError for a number outside its range, and for a value that is no bool.
        """
        for name, type_hint in bounded_parameters(type(self)).items():
            parameter_value = getattr(self, name)
            if isinstance(type_hint, Between):
                positive_integer(self.name, name, parameter_value, least=type_hint.least, most=type_hint.most)
            elif type(parameter_value) is not bool:
                raise ConfigurationError(
                    f"{self.name}.{name} is {parameter_value!r}, neither true nor false",
                    "give true or false",
                    code="not-boolean",
                )

    @property
    def asks(self) -> str:
        """The clause ``consent`` for these parameters, without what they leave out."""
        return self.consent

    @classmethod
    def illustrate(cls, labels: Sequence[str], writers: Sequence[str]) -> str:
        """Returns an example of the question for a task's labels and whoever writes its texts; "" without one."""
        return ""

    @property
    def votes_of_a_record(self) -> int:
        """Largest number of coordinates that one record votes for, where a unit's votes are scaled to the whole bound.

        0, the default, means that the statistic estimates an average, and a unit's rows count by their mean.
        """
        return 0

    @property
    def base_scale(self) -> int:
        """Least number of integer units per natural unit, which a plan may raise; the default suits counts."""
        return COUNT_SCALE

    @classmethod
    @abstractmethod
    def example(cls, choose: Any, facts: PublicFacts) -> tuple[Statistic, Any]:
        """Draws a well-formed example of the statistic and its public inputs for tests; some examples are extreme.

        Args:
            choose: random choices (:class:`undersong_protocol.statistics.examples.Chooser`).

        Returns:
            The statistic and its inputs (``undersong_protocol.statistics.examples.Inputs``).
        """

    @abstractmethod
    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        """Raises ConfigurationError unless the public inputs are well formed; reads no record.

        It checks names, shapes, magnitudes, grids and labels (undersong_protocol.statistics.inputs), so that
        :meth:`rows` then succeeds for any records.
        """

    @abstractmethod
    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        """Returns one row for each record that contributes; never fails once the inputs have been checked.

        A row depends on its record and the public inputs alone, to the last bit: not on the other records, their number
        or their order. A row of several units (``whole``) depends on those units alone.

        Args:
            memory: a dictionary that the party keeps per data set and run, in which a statistic may cache work for a
                later, larger request. It must not change the result. The party drops all but the newest entries.
        """

    def check_party(self, local_model: str) -> None:
        """Raises ConfigurationError if a party lacks what this statistic needs; called before the party signs.

        Args:
            local_model: "packaged", the folder of the model that the party fine-tunes, or "" without one.
        """
        return None


_Class = TypeVar("_Class", bound=type[Statistic])
_STATISTICS: dict[str, type[Any]] = {}
_SOURCES: dict[str, str] = {}  # SHA-256 (hex) of the source of other packages' statistics
_OWN = "undersong_protocol."


def register(statistic: _Class) -> _Class:
    """Registers a statistic of this program, a frozen dataclass, under its ``name``; a class decorator."""
    _check_statistic(statistic)
    if not statistic.__module__.startswith(_OWN):
        raise InternalError(
            f"statistic {statistic.name!r} is another package's and cannot be registered here",
            "declare it by an entry point of undersong.statistics: it runs in simulations",
        )
    if statistic.question not in QUESTIONS:
        raise InternalError(
            f"the class of the statistic {statistic.name!r} states the unknown question {statistic.question!r}",
            f"name one of {', '.join(QUESTIONS)}",
        )
    _STATISTICS[statistic.name] = statistic
    return statistic


def register_foreign(name: str, statistic: Any, source: str) -> None:
    """Registers a statistic of another package; a repetition with the same source changes nothing.

    Args:
        name: name under which that package declares the statistic.
        source: SHA-256 (hex) of the package's source, which plans carry.

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
        _check_statistic(statistic)
    except InternalError as error:
        raise ConfigurationError(error.problem, error.remedy, code=error.code) from None
    if statistic.name != name:
        raise ConfigurationError(
            f"the statistic {statistic.name!r} is declared under the name {name!r}", "give its entry point that name"
        )
    _STATISTICS[name] = statistic
    _SOURCES[name] = source


def _check_statistic(statistic: Any) -> None:
    name = getattr(statistic, "name", statistic)
    if not is_dataclass(statistic):
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
    """Returns the names of all registered statistics, sorted."""
    return sorted(_STATISTICS)


def of_question(question: str) -> tuple[str, ...]:
    """Returns the names of this program's own statistics for a kind of question, a key of ``QUESTIONS``, sorted."""
    return tuple(name for name in names() if _STATISTICS[name].question == question and name not in _SOURCES)


def source(name: str) -> str:
    """Returns the SHA-256 (hex) of the source of another package's statistic; "" for own and unknown statistics."""
    return _SOURCES.get(name, "")


def known(name: str) -> type[Statistic] | None:
    """Returns the class of the statistic that is registered under ``name``; None if there is none."""
    return _STATISTICS.get(name)


def parameters(statistic: Statistic) -> dict[str, Any]:
    """Returns a statistic's public parameters as JSON values, from which :func:`build` makes an equal statistic."""
    if not is_dataclass(statistic):
        raise InternalError(f"statistic {statistic.name!r} is not a dataclass")
    return {
        parameter.name: _to_plain_value(getattr(statistic, parameter.name))
        for parameter in fields(statistic)
        if parameter.init
    }


def build(name: str, parameters: Mapping[str, Any]) -> Statistic:
    """Makes the statistic that is registered under ``name``, with these public parameters.

    Raises:
        ConfigurationError: the name is unknown, or the statistic does not accept the parameters.
    """
    statistic_class = _STATISTICS.get(name)
    if statistic_class is None:
        raise ConfigurationError(f"unknown statistic {name!r}", f"known here: {', '.join(names())}; update Undersong")
    parameter_names = {parameter.name for parameter in fields(statistic_class) if parameter.init}
    unknown_names = sorted(set(parameters) - parameter_names)
    if unknown_names:
        raise ConfigurationError(
            f"statistic {name!r} has no parameter {unknown_names[0]!r}", f"it takes {sorted(parameter_names)}"
        )
    try:
        statistic: Statistic = statistic_class(**{key: _freeze_value(value) for key, value in parameters.items()})
    except TypeError:
        raise ConfigurationError(
            f"statistic {name!r}: a parameter is missing or of a wrong type",
            f"its parameters are {', '.join(sorted(parameter_names))}",
        ) from None
    return statistic


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain_value(member) for member in value]
    return value


def _freeze_value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_freeze_value(member) for member in value)
    return value
