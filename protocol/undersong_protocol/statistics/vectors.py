"""Types of a private vector on its way out of a party, one type per stage.

    GridVector --noise share--> NoisyVector --mask--> MaskedVector --sum, unmask--> NoisySum

A stage accepts the previous stage's type only. Only a :class:`MaskedVector` can be serialised, so that a vector without
noise or mask cannot leave a party. The ``repr`` of the private types shows the shape, never values.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Float64, Int64, UInt64

Ring = npt.NDArray[np.uint32] | UInt64


class _Hidden:
    """Shared shape-only ``repr`` and refusal to pickle, so that a debugger, log or queue shows no value."""

    values: npt.NDArray[np.generic]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.values.shape}, dtype={self.values.dtype})"

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        raise TypeError(f"{type(self).__name__} holds private values and is never serialised")


@dataclass(frozen=True, repr=False, eq=False)
class GridVector(_Hidden):
    """The exact sum of one party's units' clipped and rounded contributions, ``values`` int64 [d]; private."""

    values: Int64


@dataclass(frozen=True, repr=False, eq=False)
class NoisyVector(_Hidden):
    """A GridVector plus this party's share of discrete noise, ``values`` int64 [d]; not private enough alone."""

    values: Int64


@dataclass(frozen=True, repr=False, eq=False)
class MaskedVector:
    """A NoisyVector plus masks, ``values`` uint32 or uint64 [d]; the first stage that may be serialised."""

    values: Ring

    def __repr__(self) -> str:
        return f"MaskedVector(shape={self.values.shape}, dtype={self.values.dtype})"


@dataclass(frozen=True, eq=False)
class NoisySum:
    """An opened private sum, as a method sees it.

    Attributes:
        values: int64 [d], the opened sum in integer (grid) units.
        scale: integer units per natural unit (one vote, one count, one unit of norm).
        sigma: standard deviation of the noise that was opened, in natural units.
        survivors: names of the parties whose vectors are in the sum.
    """

    values: Int64
    scale: int
    sigma: float
    survivors: tuple[str, ...]

    @property
    def natural(self) -> Float64:
        """The sum in natural units, float64 [d]."""
        return self.values / float(self.scale)
