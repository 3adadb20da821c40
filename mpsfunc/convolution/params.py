"""Parameters of the convolution kernels, as ``metal/convolution/params.h`` has them."""

from __future__ import annotations

from typing import NamedTuple

from mpsfunc.channels.activation_spec import ActivationParams
from mpsfunc.core.params import Threadgroup
from mpsfunc.windows.axis import Axis


class ConvParams(NamedTuple):
    """A convolution, or the gradient of its images, as a CPU runs them.

    Fields:
        rows: Windows along the rows.
        cols: Windows along the columns.
        groups: How many there are.
        kind: Of the activation behind the sums.
        winograd: Whether Winograd's algorithm may run where it can.
        exchanged: Whether the weights' inputs and outputs have changed places.
        a: The activation's first parameter.
        b: Its second.
        c: Its third.
    """

    rows: Axis
    cols: Axis
    groups: int
    kind: int
    winograd: int
    exchanged: int
    a: float
    b: float
    c: float


class ConvLayoutParams(NamedTuple):
    """Weights laid out ahead for an instruction set, by its number."""

    isa: int
    groups: int


class ConvGradWeightsParams(NamedTuple):
    """The gradient of the weights on a CPU."""

    rows: Axis
    cols: Axis
    groups: int
    winograd: int
    exchanged: int


class ConvLaunch(NamedTuple):
    """A convolution, or the gradient of its images, on a GPU."""

    rows: Axis
    cols: Axis
    groups: int
    kind: int
    activation: ActivationParams


class ConvGradWeightsLaunch(NamedTuple):
    """The gradient of the weights on a GPU, which cuts the pixels into so many parts."""

    rows: Axis
    cols: Axis
    groups: int
    parts: int


class ConvDepthwiseGradWeightsLaunch(NamedTuple):
    """The same where every channel is a group."""

    rows: Axis
    cols: Axis
    groups: int
    threadgroup_size: Threadgroup


class DeformParams(NamedTuple):
    """The samples of a deformable convolution.

    Fields:
        rows: Windows along the rows.
        cols: Windows along the columns.
        groups: How many groups of channels have offsets of their own.
        masked: Whether a mask follows each pair of offsets.
        order_y: Of a derivative by the offsets along y.
        order_x: By those along x.
        order_mask: By the mask.
    """

    rows: Axis
    cols: Axis
    groups: int
    masked: int
    order_y: int
    order_x: int
    order_mask: int
