"""What an operation must move, and the rows of the benchmarks that measure it; `tests/bench` reads these."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

OURS, COPY = "mpsfunc", "copy"
PYTORCH = ("PyTorch NCHW", "PyTorch NHWC")
FLOAT32, BOTH, DTYPES = ("float32",), ("float32", "bfloat16"), ("float32", "float16", "bfloat16")


class Target(NamedTuple):
    """At least ``least`` times the fastest of some rivals; of `COPY`, that share of its bandwidth."""

    versus: tuple[str, ...]
    least: float

    def __str__(self) -> str:
        """As a table says it."""
        if self.versus == (COPY,):
            return f"{self.least:.0%} of copy bandwidth"
        name = "PyTorch" if self.versus == PYTORCH else " or ".join(self.versus)
        return f"{self.least:g} x {name}"


LEVEL = (Target(PYTORCH, 1.0),)
LEVEL_IN_NHWC = (Target(PYTORCH[1:], 1.0),)  # of few channels, which PyTorch is faster with in planes
SHARE, PIXELWISE, LARGE = (Target((COPY,), 0.7),), (Target((COPY,), 0.8),), (Target((COPY,), 0.85),)


class Measured(NamedTuple):
    """Rows of a table, one for each dtype.

    Fields:
        how: What `tests.bench.problems.Problem` has besides the operation, the shape and the dtype.
        targets: What the rows must reach.
        dtypes: One row each.
        targeted: The dtypes that the targets are for.
        shape: Of x. Default: the table's own.
        times: How many times as many images as the table's own shape has.
    """

    how: Mapping[str, Any] = MappingProxyType({})
    targets: tuple[Target, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    targeted: tuple[str, ...] = FLOAT32
    shape: tuple[int, ...] | None = None
    times: int = 1


class Benchmark(NamedTuple):
    """How often arrays of x's size, and of the output's, must be read or written, and what is measured.

    Fields:
        family: Of the tables.
        of_x: Passes over arrays of x's size.
        of_y: Passes over arrays of the output's.
        given: What is given besides x and dy.
        state: Bytes besides for each element of the output: winners, norms and masks.
        scale: Of an image's height and width, in the output.
        title: In a table, if not the operation's own name.
        by_value: Whether another library comes to the same result.
        cpu: The rows of the CPU's table.
        gpu: The rows of the GPU's table.
        of_channels: Of x's channels, in the output.
        features: Channels of the output, where x's do not decide.
        reduced: Axes of x that have length 1 in the output.
    """

    family: str
    of_x: int
    of_y: int
    given: tuple[str, ...] = ()
    state: int = 0
    scale: float = 1
    title: str = ""
    by_value: bool = True
    cpu: tuple[Measured, ...] = ()
    gpu: tuple[Measured, ...] = ()
    of_channels: float = 1
    features: int = 0
    reduced: tuple[int, ...] = ()
