"""Images concatenated along channels, and parts of them (``MPSNNConcatenationNode``, ``MPSNNSlice``).

What only moves elements is made of MLX's own operations, which have the rules that they need.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.arguments import entries
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe


def concatenate(images: Sequence[mx.array], *, pad_to_multiple: int = 1, stream: StreamLike = None) -> mx.array:
    """Concatenates images along channels.

    Source: ``MPSNNConcatenationNode``. In MPS's graph each image starts at a multiple of four channels;
    ``pad_to_multiple=4`` does the same and fills the gap with zeros.

    Args:
        images: Arrays (n, h, w, c) that differ only in c: floating, or integers of any size. At least one.
        pad_to_multiple: Channels of each image are padded to a multiple of this number. Default 1.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, h, w, sum of the channels).

    Raises:
        TypeError: images is not a sequence of arrays of real numbers, their dtypes differ, or pad_to_multiple is not an
            int.
        ValueError: There is no image, one is not NHWC, shapes differ in more than channels, or pad_to_multiple is less
            than 1.

    Example:
        >>> a = mx.array([1.0]).reshape(1, 1, 1, 1)
        >>> b = mx.array([2.0, 3.0]).reshape(1, 1, 1, 2)
        >>> [concatenate([a, b], pad_to_multiple=m).reshape(-1).tolist() for m in (1, 4)]
        [[1.0, 2.0, 3.0], [1.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0]]
    """
    op, stream = "concatenate", launch.resolve(stream)
    given = entries(images)
    if given is None:
        raise TypeError(f"{op}: images is not a sequence; got images={describe(images)}, expected a list of arrays")
    if not given:
        raise ValueError(f"{op}: no images; got images={describe(images)}, expected at least one")
    multiple = checks.whole(op, "pad_to_multiple", pad_to_multiple)
    for i, image in enumerate(given):
        checks.moved_image(op, f"images[{i}]", image, stream=stream)
        checks.same_dtype(op, f"images[{i}]", image, "images[0]", given[0].dtype)
        checks.shape(op, f"images[{i}]", image, (*given[0].shape[:3], "c"), "images differ in more than channels")
    n, h, w, _ = given[0].shape
    ends = _ends([image.shape[3] for image in given], multiple)
    checks.image_shape(op, "output shape", (n, h, w, ends[-1]))
    with mx.stream(stream):
        parts: list[mx.array] = []
        for image in given:
            parts.append(image)
            behind = -image.shape[3] % multiple
            if behind > 0:
                parts.append(mx.zeros((n, h, w, behind), image.dtype))
        return mx.concatenate(parts, axis=3)


def concatenate_grad(
    dy: mx.array, channels: Sequence[int], *, pad_to_multiple: int = 1, stream: StreamLike = None
) -> list[mx.array]:
    """Gradients of `concatenate` with respect to its images: a slice for each, as MPS has a gradient node for each.

    Args:
        dy: Gradient of the concatenated images (n, h, w, sum of the channels); floating, or integers of any size.
        channels: The channels of each image.
        pad_to_multiple: As for `concatenate`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        One gradient (n, h, w, c) for each image.

    Raises:
        TypeError: dy is not an array of real numbers, or a number of channels or pad_to_multiple is not an int.
        ValueError: dy is not NHWC, or has other channels than these make.

    Example:
        >>> dy = mx.arange(8).reshape(1, 1, 1, 8)
        >>> [
        ...     dx.reshape(-1).tolist()
        ...     for dx in concatenate_grad(dy, (1, 2), pad_to_multiple=4)
        ... ]
        [[0], [4, 5]]
    """
    op, stream = "concatenate_grad", launch.resolve(stream)
    checks.moved_image(op, "dy", dy, stream=stream)
    given = entries(channels)
    if given is None:
        raise TypeError(f"{op}: channels is not a sequence; got channels={describe(channels)}, expected a list of ints")
    if not given:
        raise ValueError(f"{op}: no images; got channels={describe(channels)}, expected at least one")
    counts = [checks.whole(op, f"channels[{i}]", c) for i, c in enumerate(given)]
    multiple = checks.whole(op, "pad_to_multiple", pad_to_multiple)
    ends = _ends(counts, multiple)
    checks.shape(op, "dy", dy, ("n", "h", "w", ends[-1]), "dy does not belong to these channels")
    with mx.stream(stream):
        return [launch.cut(dy, (..., slice(at, at + c))) for at, c in zip([0, *ends], counts, strict=False)]


def slice_channels(x: mx.array, start: int, stop: int, *, stream: StreamLike = None) -> mx.array:
    """The channels from ``start`` up to but not including ``stop``.

    Source: ``MPSNNSlice``, and every MPS kernel's ``sourceFeatureChannelOffset``.

    Args:
        x: Images (n, h, w, c); floating, or integers of any size.
        start: First channel, from 0 on.
        stop: One past the last, at most c.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, h, w, stop - start).

    Raises:
        TypeError: x is not an array of real numbers, or a bound is not an int.
        ValueError: x is not NHWC, or the bounds hold no channel of it.

    Example:
        >>> slice_channels(mx.arange(6).reshape(1, 1, 2, 3), 1, 3).tolist()
        [[[[1, 2], [4, 5]]]]
    """
    op, stream = "slice_channels", launch.resolve(stream)
    checks.moved_image(op, "x", x, stream=stream)
    first = checks.whole(op, "start", start, 0, x.shape[3] - 1)
    last = checks.whole(op, "stop", stop, first + 1, x.shape[3])
    with mx.stream(stream):
        return launch.cut(x, (..., slice(first, last)))


def slice_channels_grad(dy: mx.array, start: int, channels: int, *, stream: StreamLike = None) -> mx.array:
    """Gradient of `slice_channels` with respect to its images: zeros except for the slice.

    Args:
        dy: Gradient of the slice (n, h, w, stop - start); floating, or integers of any size.
        start: First channel that was taken.
        channels: Channels of the images.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient (n, h, w, channels).

    Raises:
        TypeError: dy is not an array of real numbers, or a number is not an int.
        ValueError: dy is not NHWC, or reaches beyond the channels.

    Example:
        >>> slice_channels_grad(mx.array([1, 2]).reshape(1, 1, 1, 2), 1, 4).reshape(-1)
        array([0, 1, 2, 0], dtype=int32)
    """
    op, stream = "slice_channels_grad", launch.resolve(stream)
    checks.moved_image(op, "dy", dy, stream=stream)
    n, h, w, taken = dy.shape
    total = checks.whole(op, "channels", channels, taken)
    first = checks.whole(op, "start", start, 0, total - taken)
    checks.image_shape(op, "output shape", (n, h, w, total))
    with mx.stream(stream):
        around = [mx.zeros((n, h, w, c), dy.dtype) for c in (first, total - taken - first)]
        return mx.concatenate([around[0], dy, around[1]], axis=3)


def _ends(channels: Sequence[int], multiple: int) -> list[int]:
    """Where the channels of each image end among all, filled up."""
    ends, end = [], 0
    for count in channels:
        end += count + -count % multiple
        ends.append(end)
    return ends
