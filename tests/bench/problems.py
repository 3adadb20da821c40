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
    "bn_relu_normalize": (1, 1),
    "bn_relu_grad": (2, 1),
    "bn_relu_forward": (2, 1),
    "bn_relu_backward": (3, 2),
    "instance_norm": (2, 1),
    "instance_norm_grad": (3, 2),
    "group_norm": (2, 1),
    "group_norm_grad": (3, 2),
    "cross_channel_norm": (1, 1),
    "cross_channel_norm_grad": (2, 1),
    "spatial_norm": (1, 1),
    "spatial_norm_grad": (2, 1),
    "local_contrast_norm": (1, 1),
    "local_contrast_norm_grad": (2, 1),
    "conv": (1, 1),
    "conv_grad_input": (1, 1),
    "conv_grad_weights": (1, 1),
    "fully_connected": (1, 1),
    "fully_connected_grad_input": (1, 1),
    "fully_connected_grad_weights": (1, 1),
}
# Bytes of a state besides, for each element of the output: winners, and norms.
OF_STATES = {"max_pool_grad": 1, "l2_pool_grad": 4}
TITLES = {
    "bn_forward": "bn_stats + bn_normalize",
    "bn_backward": "bn_stats_grad + bn_grad",
    "bn_relu_normalize": "bn_normalize relu",
    "bn_relu_grad": "bn_grad relu",
    "bn_relu_forward": "bn_stats + bn_normalize relu",
    "bn_relu_backward": "bn_stats_grad + bn_grad relu",
}
# Largest relative error in the 2-norm. TensorFloat-32 is at 3e-4, so it does not pass for float32.
TOLERANCES = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2}
TF32_TOLERANCE = 2e-3
EPS = 1e-5
# Rounding may decide the sign of what is as small as this before a relu: dy is zero there.
_KINK = 1e-4
# Scale of x before alpha = 1e-4, so that windows weigh enough to be seen when they are wrong; float16 has its squares.
_LOUD = 32

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Problem(NamedTuple):
    """One operation; one that normalizes by statistics has no window."""

    op: str
    shape: tuple[int, int, int, int]  # of the images x, NHWC
    dtype: str  # "float32", "float16" or "bfloat16"
    kernel_size: int = 1
    stride: int = 1
    padding: int = 0
    edge_mode: str = "zero"  # of an average
    outs: int = 0  # output channels of a convolution; 0 stands for as many as there are inputs
    dilation: int = 1  # of a convolution
    groups: int = 1  # of a convolution, or of group norm
    exponent: float = 0.0  # beta of a normalization by windows, which all have one

    @property
    def title(self) -> str:
        """Names the operation in a table."""
        name = TITLES.get(self.op, self.op)
        if self.exponent:
            size = f"{self.kernel_size}" if self.op.startswith("cross") else f"{self.kernel_size}x{self.kernel_size}"
            return f"{name} {size} beta {self.exponent:g}"
        window = f" {self.kernel_size}x{self.kernel_size} s{self.stride} p{self.padding}"
        edge = "" if self.edge_mode == "zero" else f" {self.edge_mode}"
        spread = f" d{self.dilation}" if self.dilation > 1 else ""
        groups = "" if self.groups == 1 else " depthwise" if self.groups == self.shape[3] else f" g{self.groups}"
        outs = f" to {self.outs}" if self.outs else ""
        if not self.op.startswith("fully"):
            outs = spread + groups + outs
        return name + outs if self.by_statistics or self.op.startswith("fully") else name + window + edge + outs

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """Shape of the output images y and their gradient dy."""
        n, h, w, c = self.shape
        if self.exponent:
            return self.shape
        extent = (self.kernel_size - 1) * self.dilation + 1
        size = [(d + 2 * self.padding - extent) // self.stride + 1 for d in (h, w)]
        return n, size[0], size[1], self.outs or c

    @property
    def w_shape(self) -> tuple[int, int, int, int]:
        """Shape of a convolution's weights, OHWI."""
        return self.outs or self.shape[3], self.kernel_size, self.kernel_size, self.shape[3] // self.groups

    @property
    def weighted(self) -> bool:
        """Whether the operation has such weights."""
        return self.op.startswith(("conv", "fully"))

    @property
    def by_statistics(self) -> bool:
        """Whether the operation normalizes by statistics, with a scale and a shift."""
        return self.op.startswith(("bn_", "instance_norm", "group_norm"))

    @property
    def window_parameters(self) -> dict[str, float]:
        """What a normalization by windows takes besides the window, by our names."""
        alpha = 1e-4 if self.op.startswith("cross") else 1.0
        contrast = {"p0": 0.9, "pm": 0.1, "ps": 1.5} if self.op.startswith("local") else {}
        return {"alpha": alpha, "beta": self.exponent, "delta": 1.0, **contrast}

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
        """Bytes to move if each pass touched each image and weight once; vectors, under 2 %, are left out."""
        of_x, of_y = PASSES[self.op]
        an_output = _BYTES[self.dtype] * of_y + OF_STATES.get(self.op, 0)
        weights = math.prod(self.w_shape) * _BYTES[self.dtype] if self.weighted else 0
        return self.image_bytes * of_x + math.prod(self.out_shape) * an_output + weights

    def inputs(self, seed: int = 0) -> SimpleNamespace:
        """Float32 arrays x, dy and the operation's parameters, with values that the dtype has; NHWC and OHWI."""
        rng = np.random.default_rng(seed)
        channels = self.shape[3]

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, dtype=np.float32)

        round_to = {"bfloat16": _to_bfloat16, "float16": _to_float16}.get(self.dtype, np.asarray)
        arrays = SimpleNamespace(x=round_to(normal(*self.shape) + 1), dy=round_to(normal(*self.out_shape)))
        if self.by_statistics:
            arrays.gamma, arrays.beta = normal(channels) + 1, normal(channels)
        if "relu" in self.op:
            arrays.dy[np.abs(_normalized(arrays)) < _KINK] = 0
        if self.op.startswith("cross"):
            arrays.x *= _LOUD
        if self.weighted:
            arrays.w = round_to(normal(*self.w_shape))
        return arrays


def _to_bfloat16(array: np.ndarray) -> np.ndarray:
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _to_float16(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16).astype(np.float32)


def _normalized(arrays: SimpleNamespace) -> np.ndarray:
    x, axes = arrays.x.astype(np.float64), (0, 1, 2)
    z: np.ndarray = (x - x.mean(axes)) / np.sqrt(x.var(axes) + EPS) * arrays.gamma + arrays.beta
    return z


def error(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Largest relative error of any array, infinite where a shape is wrong or a number is missing."""
    if [a.shape for a in got] != [b.shape for b in expected]:
        return math.inf
    errors = [np.linalg.norm((a - b).ravel()) / np.linalg.norm(b.ravel()) for a, b in zip(got, expected, strict=True)]
    return float(max(errors)) if np.all(np.isfinite(errors)) else math.inf
