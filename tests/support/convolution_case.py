"""The C++ convolutions and their gradients over one kind of window, for tests that call them by themselves."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest

from mpsfunc.channels.activation_spec import NO_ACTIVATION, RELU, Activation
from mpsfunc.convolution.params import ConvGradWeightsParams, ConvParams
from mpsfunc.core.params import for_cpu
from mpsfunc.windows.axis import Axis
from support import accumulator, close, exact, numbers, same_bits
from support.oracle import convolution as oracle

_primitives = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its C++ module")

# The `isa` of the fixture; the uppermost decorator's values take turns with all others the same.
each_isa = pytest.mark.parametrize("isa", _primitives.isas(), indirect=True)


def axis(
    n_in: int, n_out: int, size: int, stride: int, dilation: int, pad: int, begin: int = 0, end: int | None = None
) -> Axis:
    """An axis with edge 0 and no zeros counted."""
    return Axis(n_in, n_out, size, stride, dilation, pad, 0, 0, begin, n_out if end is None else end, 0)


# Rows and columns. The odd lengths leave broken register tiles, the strides several phases backward.
WINDOWS = {
    "1x1": (axis(3, 3, 1, 1, 1, 0), axis(5, 5, 1, 1, 1, 0)),
    "1x1 s2": (axis(5, 3, 1, 2, 1, 0), axis(4, 2, 1, 2, 1, 0)),
    "3x3 p1": (axis(5, 5, 3, 1, 1, 1), axis(16, 16, 3, 1, 1, 1)),
    "3x3 s2 p1": (axis(7, 4, 3, 2, 1, 1), axis(8, 4, 3, 2, 1, 1)),
    "2x3 s1,2": (axis(4, 3, 2, 1, 1, 0), axis(9, 5, 3, 2, 1, 1)),
    "3x2 s2,1": (axis(6, 3, 3, 2, 1, 1), axis(5, 6, 2, 1, 1, 1)),
    "4x4 s3,2": (axis(11, 4, 4, 3, 1, 2), axis(9, 5, 4, 2, 1, 2)),
    "stride leaves gaps": (axis(9, 3, 2, 4, 1, 0), axis(8, 3, 1, 3, 1, 0)),
    "dilated": (axis(8, 6, 3, 1, 2, 1), axis(9, 9, 3, 1, 3, 3)),
    "dilated s2": (axis(9, 5, 2, 2, 3, 2), axis(12, 4, 4, 3, 2, 2)),
    "dilated s4": (axis(12, 3, 3, 4, 6, 5), axis(13, 4, 2, 4, 2, 2)),
    "dilated beyond the panel": (axis(2, 2, 1, 1, 1, 0), axis(80, 14, 3, 1, 33, 0)),
    "negative pad": (axis(7, 3, 2, 2, 1, -1), axis(8, 4, 3, 1, 1, -2)),
    "hangs over": (axis(3, 6, 5, 1, 1, 4), axis(2, 7, 4, 2, 1, 5)),
    "wholly outside": (axis(3, 3, 2, 5, 1, 9), axis(4, 2, 2, 1, 1, -7)),
    "some outside": (axis(3, 4, 2, 3, 1, 4), axis(4, 5, 1, 2, 1, 2)),
    "selected": (axis(6, 5, 2, 1, 1, 0, 1, 3), axis(7, 5, 3, 2, 1, 2, 2, 5)),
    "none selected": (axis(4, 3, 2, 1, 1, 0, 2, 2), axis(4, 3, 2, 1, 1, 0)),
    "long line": (axis(2, 1, 2, 1, 1, 0), axis(530, 530, 3, 1, 1, 1)),
}
# Groups, channels and outputs of one group.
CHANNELS = ((1, 1, 1), (1, 3, 7), (1, 16, 33), (1, 65, 3), (2, 3, 16), (4, 4, 4), (6, 2, 2), (3, 1, 1), (65, 1, 1),
            (7, 1, 2), (3, 1, 9), (2, 16, 5))  # fmt: skip


class Case(NamedTuple):
    """Operands of all operations over one kind of window."""

    rows: Axis
    cols: Axis
    groups: int
    x: mx.array
    w: mx.array
    b: mx.array
    dy: mx.array
    back: mx.array  # the bias of the data gradient
    neuron: Activation = NO_ACTIVATION
    winograd: int = 0
    exchanged: int = 0

    def run(self, op: str, arrays: list[mx.array], params: Any, *outputs: mx.array) -> list[mx.array]:
        shapes, dtypes = [a.shape for a in outputs], [a.dtype for a in outputs]
        return list(getattr(_primitives, op)(arrays, for_cpu(params), shapes, dtypes, mx.cpu))

    @property
    def _params(self) -> ConvParams:
        kind, a, b, c = self.neuron
        return ConvParams(self.rows, self.cols, self.groups, kind, self.winograd, self.exchanged, a, b, c)

    @property
    def _grad_weights_params(self) -> ConvGradWeightsParams:
        return ConvGradWeightsParams(self.rows, self.cols, self.groups, self.winograd, self.exchanged)

    def as_transposed(self) -> Case:
        """The same with weights as a transposed convolution has them."""
        return self._replace(w=mx.contiguous(self.w.swapaxes(0, 3)), exchanged=1)

    def conv(self) -> mx.array:
        return self.run("conv", [self.x, self.w, self.b], self._params, self.dy)[0]

    def grad_input(self) -> mx.array:
        return self.run("conv_grad_input", [self.dy, self.w, self.back], self._params, self.x)[0]

    def grad_weights(self) -> mx.array:
        return self.run("conv_grad_weights", [self.dy, self.x], self._grad_weights_params, self.w)[0]

    def grad_both(self) -> list[mx.array]:
        return self.run("conv_grad_weights", [self.dy, self.x], self._grad_weights_params, self.w, self.b)

    def grad_bias(self) -> mx.array:
        return _primitives.conv_grad_bias([self.dy], [], [self.b.shape], [self.b.dtype], mx.cpu)[0]

    def all(self) -> list[mx.array]:
        return [self.conv(), self.grad_input(), self.grad_weights(), self.grad_bias(), self.grad_both()[1]]


def case(
    windows: tuple[Axis, Axis], channels: tuple[int, int, int], dtype: mx.Dtype = mx.float32, images: int = 2
) -> Case:
    """Windows on random images, with weights, bias and dy for (groups, inputs, outputs of each) channels."""
    (rows, cols), (groups, c, o) = windows, channels
    x = numbers((images, rows.n_in, cols.n_in, groups * c), dtype)
    w = numbers((groups * o, rows.size, cols.size, c), accumulator(dtype), seed=1)
    b = numbers((groups * o,), accumulator(dtype), seed=2)
    dy = numbers((images, rows.n_out, cols.n_out, groups * o), dtype, seed=3)
    return Case(rows, cols, groups, x, w, b, dy, numbers((groups * c,), accumulator(dtype), seed=4))


def check(
    windows: tuple[Axis, Axis], channels: tuple[int, int, int], dtype: mx.Dtype = mx.float32, images: int = 2
) -> None:
    """Compares all operations of a case with their definitions."""
    k, expected = defined(windows, channels, dtype, images)
    y, dx, dw, (both, db) = k.conv(), k.grad_input(), k.grad_weights(), k.grad_both()
    for made, definition in zip((y, dx, dw, k.grad_bias(), db), expected, strict=True):
        close(made, *definition)
    assert same_bits(both, dw)
    narrow = k._replace(w=k.w.astype(dtype, stream=mx.cpu))  # whose gradient is rounded
    assert same_bits(narrow.grad_weights(), dw.astype(dtype, stream=mx.cpu))
    if k.groups == 1:
        turned = k.as_transposed()
        turned_dw, turned_db = turned.grad_both()
        close(turned.conv(), *expected[0])
        close(turned.grad_input(), *expected[1])
        close(turned_dw.swapaxes(0, 3), *expected[2])
        assert same_bits(turned_db, db)
    rectified = k._replace(neuron=Activation(RELU))
    assert same_bits(rectified.conv(), mx.maximum(y, 0))
    assert same_bits(rectified.grad_input(), mx.maximum(dx, 0))


@functools.lru_cache(maxsize=2)  # for the instruction sets, which take their turns with a case
def defined(
    windows: tuple[Axis, Axis], channels: tuple[int, int, int], dtype: mx.Dtype, images: int
) -> tuple[Case, list[tuple[np.ndarray, np.ndarray]]]:
    """A case, and what conv, grad_input, grad_weights, grad_bias and grad_both's bias are to give: values, terms."""
    k, where = case(windows, channels, dtype, images), (*windows, channels[0])
    # An output that is not selected is zero and has no bias.
    mask = np.zeros((images, k.rows.n_out, k.cols.n_out, 1))
    mask[:, k.rows.begin : k.rows.end, k.cols.begin : k.cols.end] = 1

    def definitions(x: np.ndarray, w: np.ndarray, b: np.ndarray, dy: np.ndarray, back: np.ndarray) -> list[np.ndarray]:
        y, dx = oracle.conv(x, w, b, *where) * mask, oracle.conv_grad_input(dy, w, *where) + back
        dw = oracle.conv_grad_weights(dy, x, *where)
        return [y, dx, dw, oracle.conv_grad_bias(dy), oracle.conv_grad_bias(dy * mask)]

    arrays = [exact(a) for a in (k.x, k.w, k.b, k.dy, k.back)]
    return k, list(zip(definitions(*arrays), definitions(*map(abs, arrays)), strict=True))


@functools.lru_cache(maxsize=1)
def weight_gradient(
    windows: tuple[Axis, Axis], channels: tuple[int, int, int], dtype: mx.Dtype, images: int
) -> tuple[Case, list[list[np.ndarray]]]:
    """A case, and of its weights and its bias the gradient and the size of its terms."""
    k = case(windows, channels, dtype, images)
    sides = [(f(exact(k.dy)), f(exact(k.x))) for f in (np.asarray, np.abs)]
    dw = [oracle.conv_grad_weights(*side, *windows, channels[0]) for side in sides]
    return k, [dw, [oracle.conv_grad_bias(dy) for dy, _ in sides]]
