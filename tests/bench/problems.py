"""What is computed: an operation on images of one shape and dtype, its inputs, and the bytes it must move."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from support.benchmarks import Benchmark

# Largest relative error in the 2-norm. TensorFloat-32 is at 3e-4, so it does not pass for float32.
TOLERANCES = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2}
TF32_TOLERANCE = 2e-3
EPS = 1e-5
KEEP = 0.5  # of dropout
IGNORED = 0  # a label whose rows count for nothing
# How far chance may take the share that dropout keeps.
_SIGMAS = 5
# Rounding may decide the sign of what is as small as this before a relu: dy is zero there.
_KINK = 1e-4
_OFF_PIXELS = 1e-3
# Where slopes of activations jump, and the derivative is a convention: MLX's and PyTorch's differ for hard_tanh at -1.
_JUMPS = (-3, -1, -0.5, 0, 0.5, 1, 3, 6)
_BESIDE = 2**-4  # what every dtype can add to those
# Scale of x before alpha = 1e-4, so that windows weigh enough to be seen when they are wrong; float16 has its squares.
_LOUD = 32

ANCHORS = (1.5, 2.0), (3.0, 3.0), (5.0, 4.0)  # of a YOLO loss, in cells
OVERLAPPING = 0.5  # IOU beyond which a box is suppressed

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# What a process is told of operations that is not to import their records, and mpsfunc with them: MLX would keep memory
# in another way.
TOLD: dict[str, Benchmark] = {}


class Problem(NamedTuple):
    """One operation; one that normalizes by statistics has no window, and a pointwise one nothing of its own."""

    op: str
    shape: tuple[int, ...]  # of the images x, NHWC, of sequences, NLC, or of rows of channels
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
    def operation(self) -> Benchmark:
        """What the operation must move, and is given."""
        if self.op in TOLD:
            return TOLD[self.op]
        from .operations import OPERATIONS

        return OPERATIONS[self.op]

    @property
    def title(self) -> str:
        """Names the operation in a table."""
        name = self.operation.title or self.op
        if self.operation.family == "pointwise":
            return name if self.scale == 1 else f"{name} x{self.scale}"
        if self.exponent:
            size = f"{self.kernel_size}" if self.op.startswith("cross") else f"{self.kernel_size}x{self.kernel_size}"
            return f"{name} {size} beta {self.exponent:g}"
        size = f"{self.kernel_size}" if len(self.shape) == 3 else f"{self.kernel_size}x{self.kernel_size}"
        window = f" {size} s{self.stride} p{self.padding}"
        edge = "" if self.edge_mode == "zero" else f" {self.edge_mode}"
        spread = f" d{self.dilation}" if self.dilation > 1 else ""
        groups = "" if self.groups == 1 else " depthwise" if self.groups == self.nhwc[3] else f" g{self.groups}"
        outs = f" to {self.outs}" if self.outs else ""
        if not self.op.startswith("fully"):
            outs = spread + groups + outs
        return name + outs if self.by_statistics or self.op.startswith("fully") else name + window + edge + outs

    @property
    def of_images(self) -> bool:
        """Whether x is images, or sequences, for which PyTorch has two layouts."""
        return len(self.shape) > 2

    @property
    def nhwc(self) -> tuple[int, int, int, int]:
        """Shape of x as images; a sequence is one of a row, and a row of channels one of a pixel."""
        n, *of_pixels, c = self.shape
        h, w = (1, 1, *of_pixels)[-2:]
        return n, h, w, c

    @property
    def bins(self) -> int:
        """Of a region along each axis, so that those of all regions are as many as pixels."""
        _, h, w, _ = self.nhwc
        return next(bins for bins in (7, 4, 2, 1) if h * w % bins**2 == 0)

    @property
    def scale(self) -> float:
        """How many times higher and wider the output is than x."""
        return self.operation.scale

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the output y and its gradient dy."""
        n, h, w, c = self.nhwc
        if self.scale != 1:
            return n, int(h * self.scale), int(w * self.scale), c
        if self.op.startswith("pad_"):
            return n, h + 2 * self.padding, w + 2 * self.padding, c
        if self.operation.reduced:
            return tuple(1 if i in self.operation.reduced else d for i, d in enumerate(self.shape))
        if self.exponent or self.operation.family == "pointwise":
            return *self.shape[:-1], self.operation.features or int(self.shape[-1] * self.operation.of_channels)
        extent = (self.kernel_size - 1) * self.dilation + 1
        if "transpose" in self.op:
            size = [(d - 1) * self.stride - 2 * self.padding + extent for d in (h, w)]
        else:
            size = [(d + 2 * self.padding - extent) // self.stride + 1 for d in (h, w)]
        return n, *size[4 - len(self.shape) :], self.outs or c

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of a convolution's weights, OHWI, or OLI."""
        channels, axes = self.nhwc[3], len(self.shape) - 2
        return self.outs or channels, *(self.kernel_size,) * axes, channels // self.groups

    @property
    def weighted(self) -> bool:
        """Whether the operation has such weights."""
        return "w" in self.operation.given

    @property
    def by_statistics(self) -> bool:
        """Whether the operation normalizes by statistics, with a scale and a shift."""
        return "gamma" in self.operation.given

    @property
    def window_parameters(self) -> dict[str, float]:
        """What a normalization by windows takes besides the window, by our names."""
        alpha = 1e-4 if self.op.startswith("cross") else 1.0
        contrast = {"p0": 0.9, "pm": 0.1, "ps": 1.5} if self.op.startswith("local") else {}
        return {"alpha": alpha, "beta": self.exponent, "delta": 1.0, **contrast}

    @property
    def pixels(self) -> int:
        """Elements a channel of x."""
        return math.prod(self.nhwc[:3])

    @property
    def image_bytes(self) -> int:
        """Bytes of x."""
        return math.prod(self.shape) * _BYTES[self.dtype]

    @property
    def necessary_bytes(self) -> int:
        """Bytes to move if each pass touched each image and weight once; vectors, under 2 %, are left out."""
        operation = self.operation
        an_output = _BYTES[self.dtype] * operation.of_y + operation.state
        weights = math.prod(self.w_shape) * _BYTES[self.dtype] if self.weighted else 0
        return self.image_bytes * operation.of_x + math.prod(self.out_shape) * an_output + weights

    def inputs(self, seed: int = 0) -> SimpleNamespace:
        """Float32 arrays x, dy and what the operation is given, with values that the dtype has; NHWC and OHWI."""
        rng = np.random.default_rng(seed)
        *of_pixel, channels = self.shape

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, dtype=np.float32)

        round_to = {"bfloat16": _to_bfloat16, "float16": _to_float16}.get(self.dtype, np.asarray)
        arrays = SimpleNamespace(x=round_to(normal(*self.shape) + 1), dy=round_to(normal(*self.out_shape)))
        make = {
            "gamma": lambda: normal(channels) + 1,
            "beta": lambda: normal(channels),
            "w": lambda: round_to(normal(*self.w_shape)),
            "other": lambda: round_to(normal(*self.shape)),
            "factors": lambda: round_to(normal(1, 1, 1, channels)),
            "mask": lambda: (rng.random(self.shape, np.float32) < KEEP).astype(np.uint8),
            "labels": lambda: rng.integers(0, channels, of_pixel, np.int32),
            "weights": lambda: rng.random(channels, np.float32) + 0.5,
            "grid": lambda: _places(self.nhwc, rng),
            "matrix": lambda: round_to(normal(self.shape[0], 1, channels, channels)),
            # Of so few digits that no place is rounded onto a pixel, where slopes jump.
            "offsets": lambda: np.round(64 * normal(*self.out_shape[:-1], 2 * self.kernel_size**2)) / 64 + 2**-7,
            "tap_mask": lambda: rng.random((*self.out_shape[:-1], self.kernel_size**2), np.float32),
            "rois": lambda: _regions(self.nhwc, self.bins, rng),
            "boxes": lambda: _boxes(self.shape[0], rng),
            # Between the sixteenths of other boxes, so that no edges meet, where slopes jump.
            "truth": lambda: _boxes(self.shape[0], rng) + np.float32(1 / 32),
            "scores": lambda: rng.permutation(self.shape[0]).astype(np.float32),
            "cells": lambda: _cells(self.nhwc, rng),
            "targets": lambda: round_to(rng.dirichlet(np.ones(channels), of_pixel).astype(np.float32)),
        }
        for name in self.operation.given:
            setattr(arrays, name, make[name]())
        if "relu" in self.op and self.by_statistics:
            arrays.dy[np.abs(_normalized(arrays)) < _KINK] = 0
        if self.op.startswith("cross_channel"):
            arrays.x *= _LOUD
        if self.operation.family == "pointwise" and self.op.endswith("_grad"):
            for jump in _JUMPS:
                arrays.x[arrays.x == jump] += _BESIDE
        if not self.operation.by_value:
            arrays.x[arrays.x == 0] = 1  # so that y tells what was kept
        return arrays


def _places(shape: tuple[int, int, int, int], rng: np.random.Generator) -> np.ndarray:
    """Normalized places (x, y) of as many samples as pixels: the image turned and shrunk a little, with some noise.

    None lies so near a pixel that rounding tells on which side of it, and so what the slope there is.
    """
    n, h, w, _ = shape
    y, x = np.meshgrid(np.linspace(-1, 1, h), np.linspace(-1, 1, w), indexing="ij")
    turned = np.stack([0.9 * x + 0.2 * y, 0.9 * y - 0.2 * x], axis=-1)
    size = np.array([w, h])
    pixels = ((turned + rng.normal(0, 0.02, (n, h, w, 2)) + 1) * size - 1) / 2
    off = pixels - np.round(pixels)
    pixels += np.where(np.abs(off) < _OFF_PIXELS, np.copysign(_OFF_PIXELS, off) - off, 0)
    return ((2 * pixels + 1) / size - 1).astype(np.float32)


def _regions(shape: tuple[int, int, int, int], bins: int, rng: np.random.Generator) -> np.ndarray:
    """Regions (n, x1, y1, x2, y2), image after image, a tenth to six tenths of it long, with as many bins as pixels."""
    n, h, w, _ = shape
    each = h * w // bins**2
    middle, half = rng.uniform(0.3, 0.7, (n * each, 2)), rng.uniform(0.05, 0.3, (n * each, 2))
    corners = np.concatenate([middle - half, middle + half], axis=1) * [w - 1, h - 1, w - 1, h - 1]
    return np.concatenate([np.repeat(np.arange(n), each)[:, None], corners], axis=1).astype(np.float32)


def _boxes(count: int, rng: np.random.Generator) -> np.ndarray:
    """Boxes (x1, y1, x2, y2) in an image of 640 by 640, of sixteenths of pixels, so that areas are exact."""
    low, size = rng.integers(0, 400 * 16, (count, 2)), rng.integers(40 * 16, 240 * 16, (count, 2))
    return (np.concatenate([low, low + size], axis=1) / 16).astype(np.float32)


def _cells(shape: tuple[int, int, int, int], rng: np.random.Generator) -> np.ndarray:
    """Labels of a YOLO loss: one cell in ten has an object, of one class."""
    n, h, w, channels = shape
    classes = channels // len(ANCHORS) - 5
    place, size = rng.uniform(0, 1, (n, h, w, 2)), rng.uniform(0.5, 6, (n, h, w, 2))
    named = np.eye(classes)[rng.integers(0, classes, (n, h, w))]
    whole = np.concatenate([place, size, np.ones((n, h, w, 1)), named], axis=-1)
    return np.where(rng.random((n, h, w, 1)) < 0.1, whole, 0).astype(np.float32)


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
    # What is zero, as the logarithms of one channel are, has no error relative to it.
    errors = [
        np.linalg.norm((a - b).ravel()) / (np.linalg.norm(b.ravel()) or 1) for a, b in zip(got, expected, strict=True)
    ]
    return float(max(errors)) if np.all(np.isfinite(errors)) else math.inf


def drop_error(got: list[np.ndarray], inputs: SimpleNamespace) -> float:
    """The same where chance says what is kept: of y alone, or of dx and the y that it goes with."""
    *gradient, y = (a.astype(np.float64) for a in got)
    kept = y != 0
    expected = [np.where(kept, inputs.x / KEEP, 0)]
    if gradient:
        expected.insert(0, np.where(kept, inputs.dy / KEEP, 0))
    sigma = math.sqrt(KEEP * (1 - KEEP) / y.size)
    by_chance = abs(kept.mean() - KEEP) <= _SIGMAS * sigma
    return error(got, expected) if by_chance else math.inf
