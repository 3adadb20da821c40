"""Parameters of the normalizations, as ``metal/normalization/params.h`` has them."""

from __future__ import annotations

from typing import NamedTuple

from mpsfunc.channels.activation_spec import Activation

# Batch normalization ------------------------------------------------------------------------------------


class BnByStateParams(NamedTuple):
    """Of a normalization by the vectors of a state."""

    eps: float
    act: Activation


class BatchNormParams(NamedTuple):
    """Of a normalization as a whole.

    Fields:
        groups: Of neighbouring channels that share statistics; 0 where each has its own.
        eps: Added to the variance.
        elements: So many share statistics.
        act: The activation.
    """

    groups: int
    eps: float
    elements: float
    act: Activation


class BnMessagesMergeLaunch(NamedTuple):
    """Of `across_processes.merged` with NCCL: entries of a process's rows."""

    size: int
    processes: int


class LayerNormParams(NamedTuple):
    """Of `layer_norm`: eps is added to the variance."""

    eps: float


# Windows ------------------------------------------------------------------------------------------------


class WindowSumParams(NamedTuple):
    """Windows [i - before, i + after] along axis 1, 2 or 3."""

    axis: int
    before: int
    after: int


class PowerParams(NamedTuple):
    """Of a power."""

    exponent: float


class SquaresNormParams(NamedTuple):
    """Of `cross_channel_norm` and `spatial_norm`."""

    size: int
    alpha: float
    beta: float
    delta: float


class LocalContrastParams(NamedTuple):
    """Of `local_contrast_norm`."""

    size: int
    alpha: float
    beta: float
    delta: float
    p0: float
    pm: float
    ps: float


class WindowLaunch(NamedTuple):
    """Windows along one axis.

    Fields:
        length: Of the axis.
        inner: How far apart neighbours along it are.
        before: How far a window reaches before its place.
        after: And after it.
        run: Results of a thread.
        chunk: Of these, as many as it holds at a time.
    """

    length: int
    inner: int
    before: int
    after: int
    run: int
    chunk: int


class SquaresNormLaunch(NamedTuple):
    """Of the bodies that take sums of squares; share is alpha over the size of a window."""

    share: float
    beta: float
    delta: float


class SquaresNormGradLaunch(NamedTuple):
    """Likewise for the gradient, in which factor is twice the share times beta."""

    share: float
    beta: float
    delta: float
    factor: float


class LocalContrastLaunch(NamedTuple):
    """Of the bodies that look at a pixel in its window [i - before, i + after] of so many places."""

    before: int
    after: int
    area: float
    alpha: float
    beta: float
    delta: float
    p0: float
    pm: float
    ps: float


class LocalContrastWeightsLaunch(NamedTuple):
    """Likewise for what the gradient adds up."""

    before: int
    after: int
    area: float
    alpha: float
    beta: float
    delta: float
    p0: float


class LocalContrastGradLaunch(NamedTuple):
    """Factors of the gradient's three terms."""

    straight: float
    around: float
    along: float
