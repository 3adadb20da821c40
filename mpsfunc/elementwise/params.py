"""Parameters of the kernels that work element by element, as ``metal/elementwise/params.h`` has them.

All begin with the lengths of the result in merged axes (`channels.broadcast.Layout`).
"""

from __future__ import annotations

from typing import NamedTuple

from mpsfunc.channels.broadcast import Operand
from mpsfunc.core.params import Unsigned


class ArithmeticFactors(NamedTuple):
    """The numbers of ``(primary_scale * x) op (secondary_scale * y) + bias`` between two limits."""

    primary_scale: float
    secondary_scale: float
    bias: float
    minimum: float
    maximum: float


class ArithmeticParams(NamedTuple):
    """Arithmetic; bit 0 of ``limits`` says that there is a minimum, bit 1 that there is a maximum."""

    n: int
    h: int
    w: int
    c: int
    x: Operand
    y: Operand
    operation: int
    limits: int
    factors: ArithmeticFactors


class ArithmeticGradParams(NamedTuple):
    """The gradient for operand 0 or 1, and whether it reads x and y; what it does not read, dy stands in for."""

    n: int
    h: int
    w: int
    c: int
    dy: Operand
    x: Operand
    y: Operand
    operation: int
    operand: int
    limits: int
    reads_x: int
    reads_y: int
    factors: ArithmeticFactors


class CompareParams(NamedTuple):
    """A comparison on a CPU."""

    n: int
    h: int
    w: int
    c: int
    x: Operand
    y: Operand
    comparison: int
    threshold: float


class CompareLaunch(NamedTuple):
    """A comparison on a GPU. Integers have the threshold as 64 bits, the lower half first."""

    n: int
    h: int
    w: int
    c: int
    x: Operand
    y: Operand
    threshold: float
    threshold_low: Unsigned
    threshold_high: Unsigned


class DropoutParams(NamedTuple):
    """Dropout: a random word below the bound keeps an element."""

    n: int
    h: int
    w: int
    c: int
    x: Operand
    mask: Operand
    bound: Unsigned
    keep: float


class DropoutByMaskParams(NamedTuple):
    """Dropout with a mask that is given."""

    n: int
    h: int
    w: int
    c: int
    x: Operand
    mask: Operand
    keep: float


class DropoutMaskParams(NamedTuple):
    """The masks of dropout on a CPU."""

    bound: Unsigned


class DropoutMaskLaunch(NamedTuple):
    """The masks of dropout on a GPU, and how many entries one has, as 64 bits."""

    entries_low: Unsigned
    entries_high: Unsigned
    bound: Unsigned


def halves(count: int) -> tuple[Unsigned, Unsigned]:
    """The lower and the upper 32 bits of 64."""
    return Unsigned(count % 2**32), Unsigned(count // 2**32)
