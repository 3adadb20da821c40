"""The mean of a whole image and its gradient (``MPSNNReductionSpatialMeanNode``): average pooling over one window."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.pooling import average_rules
from mpsfunc.pooling.launches import Spec
from mpsfunc.pooling.params import PoolParams
from mpsfunc.windows import placement
from mpsfunc.windows.axis import EDGE_MODES


def spatial_mean(x: mx.array, *, stream: StreamLike = None) -> mx.array:
    """The mean over height and width: ``y[n, 0, 0, c] = (sum of x[n, :, :, c]) / (h * w)``.

    Source: ``MPSNNReductionSpatialMeanNode``. It is `avg_pool` with ``kernel_size="global"``.

    Args:
        x: Images (n, h, w, c); float32, float16, bfloat16, or float64 on the CPU.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images (n, 1, 1, c) of x's dtype.

    Raises:
        TypeError: x is not a floating array, or float64 on a GPU.
        ValueError: x is not NHWC.

    Example:
        >>> spatial_mean(mx.arange(8.0).reshape(1, 2, 2, 2)).reshape(-1)
        array([3, 4], dtype=float32)
    """
    stream = launch.resolve(stream)
    checks.image("spatial_mean", "x", x, stream=stream)
    return average_rules.pool(x, _one_window("spatial_mean", x.shape, stream))


def spatial_mean_grad(dy: mx.array, shape: Sequence[int], *, stream: StreamLike = None) -> mx.array:
    """Gradient of `spatial_mean` with respect to its images: ``dy / (h * w)`` at every pixel.

    Source: ``MPSNNReductionSpatialMeanGradientNode``.

    Args:
        dy: Gradient of the means (n, 1, 1, c), floating.
        shape: (n, h, w, c) of the images.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of that shape and dy's dtype.

    Raises:
        TypeError: dy is not a floating array.
        ValueError: shape is not that of images, or dy does not belong to it.

    Example:
        >>> spatial_mean_grad(mx.array(6.0).reshape(1, 1, 1, 1), (1, 1, 3, 1)).reshape(-1)
        array([2, 2, 2], dtype=float32)
    """
    op, stream = "spatial_mean_grad", launch.resolve(stream)
    checks.array(op, "dy", dy, stream=stream)
    n, _, _, channels = source = checks.shape_of_images(op, "shape", shape)
    checks.shape(op, "dy", dy, (n, 1, 1, channels), "dy does not belong to images of this shape")
    return average_rules.grad(dy, _one_window(op, source, stream))


def _one_window(op: str, shape: Sequence[int], stream: mx.Stream) -> Spec:
    rows, cols = placement.place(op, (shape[1], shape[2]), "global", edge_modes=EDGE_MODES)
    return Spec(PoolParams(rows, cols), stream)
