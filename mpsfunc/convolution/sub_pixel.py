"""Channels laid out as pixels and back: what follows a sub-pixel convolution (``MPSCNNSubPixelConvolutionDescriptor``).

Both functions only move elements, each is the other's inverse and derivative, and MLX's own operations carry them out.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import is_a, refuse, whole
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe


def depth_to_space(x: mx.array, block_size: int, *, stream: StreamLike = None) -> mx.array:
    """Rearranges each pixel's channels as a square of pixels.

    ``y[n, h, w, c] = x[n, h // r, w // r, (r * (h % r) + w % r) * C + c]`` with ``r = block_size`` and C channels left.
    That is TensorFlow's order and ONNX's mode DCR, not that of PyTorch's ``pixel_shuffle``. After a `conv` with
    ``r * r * C`` outputs it is MPS's sub-pixel convolution.

    Source: ``MPSCNNSubPixelConvolutionDescriptor.subPixelScaleFactor``.

    Args:
        x: Images (n, h, w, r * r * C) of any dtype.
        block_size: Side r of the squares, at least 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, h * r, w * r, C).

    Raises:
        TypeError: x is not an array, or block_size not an int.
        ValueError: x is not NHWC, or its channels are not a multiple of r * r.

    Example:
        >>> depth_to_space(mx.arange(8).reshape(1, 1, 1, 8), 2).tolist()
        [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]]
    """
    op, stream = "depth_to_space", launch.resolve(stream)
    n, h, w, c = _images(op, x, stream)
    r = _side(op, block_size)
    if c % (r * r) != 0:
        refuse(
            op, "the channels make no squares", "x.shape", tuple(x.shape), f"a multiple of {describe(r * r)} channels"
        )
    with mx.stream(stream):
        return x.reshape(n, h, w, r, r, c // (r * r)).swapaxes(2, 3).reshape(n, h * r, w * r, c // (r * r))


def space_to_depth(x: mx.array, block_size: int, *, stream: StreamLike = None) -> mx.array:
    """Rearranges each square of pixels as channels: the inverse of `depth_to_space`, and its gradient.

    ``y[n, h, w, (r * i + j) * c + k] = x[n, h * r + i, w * r + j, k]`` with ``r = block_size``.

    Source: the adjoint of MPS's sub-pixel order; ``space_to_depth`` of TensorFlow and ONNX.

    Args:
        x: Images (n, h * r, w * r, c) of any dtype.
        block_size: Side r of the squares, at least 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, h, w, r * r * c).

    Raises:
        TypeError: x is not an array, or block_size not an int.
        ValueError: x is not NHWC, or its height or width is not a multiple of r.

    Example:
        >>> y = depth_to_space(mx.arange(8).reshape(1, 1, 1, 8), 2)
        >>> space_to_depth(y, 2).reshape(-1)
        array([0, 1, 2, ..., 5, 6, 7], dtype=int32)
    """
    op, stream = "space_to_depth", launch.resolve(stream)
    n, h, w, c = _images(op, x, stream)
    r = _side(op, block_size)
    if h % r != 0 or w % r != 0:
        refuse(
            op,
            "squares do not part the image",
            "x.shape",
            tuple(x.shape),
            f"height and width multiples of {describe(r)}",
        )
    with mx.stream(stream):
        return x.reshape(n, h // r, r, w // r, r, c).swapaxes(2, 3).reshape(n, h // r, w // r, r * r * c)


def _images(op: str, x: Any, stream: mx.Stream) -> tuple[int, int, int, int]:
    if not is_a(x, mx.array):
        raise TypeError(f"{op}: x is not an array; got x={describe(x)}, expected an mx.array")
    checks.on_device(op, "x", x.dtype, stream)
    checks.image_shape(op, "x.shape", x.shape)
    n, h, w, c = x.shape
    return n, h, w, c


def _side(op: str, block_size: object) -> int:
    side = whole(block_size)
    if side is None:
        refuse(op, "block_size is not an int", "block_size", block_size, "an int >= 1", TypeError)
    if side < 1:
        refuse(op, "block_size is too small", "block_size", block_size, "an int >= 1")
    return side
