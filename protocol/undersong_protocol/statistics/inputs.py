"""Checks public inputs before any record is read: names, shapes, labels, magnitudes and grids.

Every error follows from public facts alone, so that it does not depend on the records. Numbers lie on a stated grid up
to a stated size: a record's products with them are then exact in float64, whatever kernel, block or number of threads
computes them, so that a record's row does not depend on the other records.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.models.embedding import GRID
from undersong_protocol.statistics.interface import LabelledEmbeddings, PublicFacts, PublicInputs

LARGEST_EMBEDDING = 4096  # coordinates of an embedding up to which its products with grid numbers are exact
NO_LABEL = -1
LARGEST_LABEL = 2**31 - 1
EXACT_BITS = 53  # bits of float64's significand

_REMEDY = "publish what the plan's statistic asks for, on its grid (the coordinator's method file)"


@dataclass(frozen=True)
class Grid:
    """The set of multiples of 2^-``bits`` whose magnitude is at most ``largest``, a power of two.

    >>> Grid(bits=1, largest=2.0).quantised(np.array([0.3, 0.2, -9.0])).tolist()
    [0.5, 0.0, -2.0]
    """

    bits: int
    largest: float

    def quantised(self, values: npt.ArrayLike) -> Float64:
        """Rounds values to the nearest number of the grid, float64 of the same shape.

        Raises InternalError for a value that is not finite.
        """
        coordinates = np.asarray(values, dtype=np.float64)
        if not np.isfinite(coordinates).all():
            raise InternalError("a public number is not finite")
        clipped_values = np.clip(coordinates, -self.largest, self.largest)
        return np.rint(clipped_values * 2.0**self.bits) / 2.0**self.bits

    def check(self, name: str, values: Float64) -> None:
        """Raises ConfigurationError if a value of the input ``name`` is not finite, too large or off the grid."""
        # One comparison refuses NaN, infinities and 1e308 before anything is multiplied.
        if not (np.abs(values) <= self.largest).all():
            raise ConfigurationError(
                f"public numbers {name!r} are not all finite and at most {self.largest:g} in size",
                _REMEDY,
                code="not-finite",
            )
        scaled_values = values * 2.0**self.bits
        if not (scaled_values == np.rint(scaled_values)).all():
            raise ConfigurationError(f"public numbers {name!r} are not all multiples of 2^-{self.bits}", _REMEDY)

    def check_exact(self, *, record_bits: int, record_norm: float) -> None:
        """Raises InternalError unless inner products of grid numbers with records are exact in float64.

        Call it where a grid is defined. A partial sum of an inner product with a record on the grid 2^-``record_bits``
        is a multiple of 2^-(bits + record_bits), and no larger than ``record_norm`` times the norm of
        ``LARGEST_EMBEDDING`` values.
        """
        largest_score = record_norm * self.largest * LARGEST_EMBEDDING**0.5 + self.largest
        if largest_score * 2.0 ** (self.bits + record_bits) > 2.0**EXACT_BITS:
            raise InternalError("products on this grid are not exact in float64")


COEFFICIENTS = Grid(bits=16, largest=2.0**16)  # the grid for linear functions of an embedding
COEFFICIENTS.check_exact(record_bits=GRID.bit_length() - 1, record_norm=1.0)
WHOLE_NUMBERS = Grid(bits=0, largest=float(LARGEST_LABEL))


def check_names(
    statistic: str,
    public: PublicInputs,
    *,
    embeddings: Collection[str] = (),
    numbers: Collection[str] = (),
    texts: Collection[str] = (),
) -> None:
    """Raises ConfigurationError unless the public inputs have exactly these names of each kind."""
    for input_kind, published_inputs, wanted_names in (
        ("embeddings", public.embeddings, embeddings),
        ("numbers", public.numbers, numbers),
        ("texts", public.texts, texts),
    ):
        if missing_names := sorted(set(wanted_names) - set(published_inputs)):
            raise ConfigurationError(f"{statistic} needs public {input_kind} named {missing_names[0]!r}", _REMEDY)
        if unknown_names := set(published_inputs) - set(wanted_names):
            raise ConfigurationError(f"{statistic} takes no public {input_kind} named {min(unknown_names)!r}", _REMEDY)


def check_task_labels(statistic: str, planned: int, facts: PublicFacts) -> None:
    """Raises ConfigurationError if the task has more than ``planned`` labels; ``planned`` 0 allows any number."""
    if planned and facts.labels > planned:
        raise ConfigurationError(
            f"{statistic} is planned for {planned} labels, the task has {facts.labels}",
            "plan it for the task's labels",
            code="other-labels",
        )


def check_embedding_size(statistic: str, facts: PublicFacts) -> None:
    """Raises ConfigurationError if embeddings have more coordinates than ``LARGEST_EMBEDDING``."""
    if facts.embedding_size > LARGEST_EMBEDDING:
        raise ConfigurationError(
            f"{statistic}: embeddings of {facts.embedding_size} coordinates are longer than {LARGEST_EMBEDDING}",
            "use another embedding model",
            code="embeddings-too-long",
        )


def check_embeddings(
    name: str, published: LabelledEmbeddings, facts: PublicFacts, *, labels: int, most: int, least: int = 0
) -> None:
    """Raises ConfigurationError for published embeddings of a wrong shape, number or label.

    Their grid and norm were checked when their block was decoded (:func:`undersong_protocol.wire.public.decode_block`).

    Args:
        labels: number of labels of the statistic, of which each row has one or -1; 0 ignores the rows' labels.
        most, least: largest and smallest number of embeddings.
    """
    embedding_rows = published.values
    if embedding_rows.ndim != 2 or embedding_rows.shape[1] != facts.embedding_size:
        raise ConfigurationError(
            f"public embeddings {name!r} of shape {embedding_rows.shape} are not of {facts.embedding_size} coordinates",
            "embed with the model that the run names",
        )
    if not least <= len(embedding_rows) <= most:
        raise ConfigurationError(
            f"{len(embedding_rows)} public embeddings {name!r} were published, the plan has {least} to {most}",
            "publish as many as are planned, or plan for more",
            code="embedding-count",
        )
    check_labels(name, published.labels, labels)


def check_labels(name: str, label_numbers: Int64, labels: int, *, least: int = NO_LABEL) -> None:
    """Raises ConfigurationError unless every label is from ``least`` to ``labels`` - 1; ``labels`` 0 allows any."""
    largest_label = labels - 1 if labels else LARGEST_LABEL
    if len(label_numbers) and (label_numbers.min() < least or label_numbers.max() > largest_label):
        raise ConfigurationError(f"a label of public {name!r} is not one of the plan's {labels}", _REMEDY)


def check_shape(name: str, values: Float64, shape: tuple[int, ...]) -> None:
    """Raises ConfigurationError if the published numbers ``name`` have another shape."""
    if values.shape != shape:
        raise ConfigurationError(
            f"public numbers {name!r} of shape {values.shape} are not of shape {shape}", _REMEDY, code="number-shape"
        )


def labels_within(labels: Int64, count: int) -> Int64:
    """Returns the records' labels, int64 [M], with -1 (no label) in place of any number outside [0, ``count``)."""
    return np.where((labels >= 0) & (labels < count), labels, NO_LABEL)
