"""What is computed: an operation on images of one shape and dtype, its inputs, and the bytes it must move."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

# How often an operation must read or write an array of x's size, and one of the output's size.
PASSES = {
    "avg_pool": (1, 1),
    "avg_pool_grad": (1, 1),
    "max_pool": (1, 1),
    "max_pool_grad": (1, 1),
    "l2_pool": (1, 1),
    "l2_pool_grad": (2, 1),
    "bn_stats": (1, 0),
    "bn_normalize": (1, 1),
    "bn_stats_grad": (1, 1),
    "bn_grad": (2, 1),
    "bn_forward": (2, 1),
    "bn_backward": (3, 2),
    "conv": (1, 1),
    "conv_grad_input": (1, 1),
    "conv_grad_weights": (1, 1),
}
# Bytes of a state besides, for each element of the output: winners, and norms.
OF_STATES = {"max_pool_grad": 1, "l2_pool_grad": 4}
TITLES = {"bn_forward": "bn_stats + bn_normalize", "bn_backward": "bn_stats_grad + bn_grad"}
# Largest relative error in the 2-norm. TensorFloat-32 is at 3e-4, so it does not pass for float32.
TOLERANCES = {"float32": 1e-4, "bfloat16": 1e-2}
EPS = 1e-5

_BYTES = {"float32": 4, "bfloat16": 2}


class Problem(NamedTuple):
    """One operation. Batch norms have no window."""

    op: str
    shape: tuple[int, int, int, int]  # of the images x, NHWC
    dtype: str  # "float32" or "bfloat16"
    kernel_size: int = 1
    stride: int = 1
    padding: int = 0
    edge_mode: str = "zero"  # of an average
    outs: int = 0  # channels that a convolution makes; 0: as many as x has
    dilation: int = 1
    groups: int = 1

    @property
    def title(self) -> str:
        """Names the operation in a table."""
        name = TITLES.get(self.op, self.op)
        window = f" {self.kernel_size}x{self.kernel_size} s{self.stride} p{self.padding}"
        edge = "" if self.edge_mode == "zero" else f" {self.edge_mode}"
        if not self.outs:
            return name if self.op.startswith("bn_") else name + window + edge
        dilated = f" d{self.dilation}" if self.dilation > 1 else ""
        grouped = f" g{self.groups}" if self.groups > 1 else ""
        return f"{name}{window}{dilated}{grouped} {'x'.join(map(str, self.shape))}->{self.outs}"

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """Shape of the output images y and their gradient dy."""
        n, h, w, c = self.shape
        extent = (self.kernel_size - 1) * self.dilation + 1
        size = [(d + 2 * self.padding - extent) // self.stride + 1 for d in (h, w)]
        return n, size[0], size[1], self.outs or c

    @property
    def pixels(self) -> int:
        """Elements a channel of x."""
        return math.prod(self.shape[:3])

    @property
    def image_bytes(self) -> int:
        """Bytes of x."""
        return math.prod(self.shape) * _BYTES[self.dtype]

    @property
    def necessary_bytes(self) -> int:
        """Bytes to move if each pass touched each image once; parameters, under 2 %, are left out."""
        of_x, of_y = PASSES[self.op]
        an_output = _BYTES[self.dtype] * of_y + OF_STATES.get(self.op, 0)
        return self.image_bytes * of_x + math.prod(self.out_shape) * an_output

    def inputs(self, seed: int = 0) -> SimpleNamespace:
        """Float32 arrays x, dy and the operation's parameters, with values that the dtype has; NHWC and OHWI."""
        rng = np.random.default_rng(seed)
        channels = self.shape[3]

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, dtype=np.float32)

        round_to = _to_bfloat16 if self.dtype == "bfloat16" else np.asarray
        arrays = SimpleNamespace(x=round_to(normal(*self.shape) + 1), dy=round_to(normal(*self.out_shape)))
        if self.op.startswith("bn_"):
            arrays.gamma, arrays.beta = normal(channels) + 1, normal(channels)
        if self.op.startswith("conv"):
            out = self.outs or channels
            arrays.w = round_to(normal(out, self.kernel_size, self.kernel_size, channels // self.groups))
        return arrays


def _to_bfloat16(array: np.ndarray) -> np.ndarray:
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def error(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Largest relative error of any array, infinite where a shape is wrong or a number is missing."""
    if [a.shape for a in got] != [b.shape for b in expected]:
        return math.inf
    errors = [np.linalg.norm((a - b).ravel()) / np.linalg.norm(b.ravel()) for a, b in zip(got, expected, strict=True)]
    return float(max(errors)) if np.all(np.isfinite(errors)) else math.inf
