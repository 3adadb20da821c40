"""Layers that mlx.nn does not have."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf
from mpsfunc.core import checks
from mpsfunc.core.arguments import refuse
from mpsfunc.core.printing import describe
from mpsfunc.typing import GridCoordinatesName, GridEdgeName, GridSampleModeName

Pair = int | Sequence[int]


class L2Pool2d(stock.Module):
    """`mpsfunc.l2_pool`: the root of the sum of squares in each window.

    Args:
        kernel_size: Window, an int or (y, x).
        stride: Default: ``kernel_size``.
        padding: Zeros around the image, an int or (y, x). Default 0.

    Example:
        >>> L2Pool2d(2)(mx.ones((1, 2, 2, 1))).item()
        2.0
    """

    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def __call__(self, x: mx.array) -> mx.array:
        return mf.l2_pool(x, self.kernel_size, stride=self.stride, padding=self.padding)


class AdaptiveAvgPool2d(stock.Module):
    """`mpsfunc.avg_pool` over ``out_size`` windows, as PyTorch's layer of that name.

    Args:
        out_size: Size of the result, an int or (y, x), of which an entry may be None for the image's.

    Example:
        >>> AdaptiveAvgPool2d(1)(mx.ones((2, 7, 5, 3))).shape
        (2, 1, 1, 3)
    """

    def __init__(self, out_size: int | Sequence[int | None]) -> None:
        super().__init__()
        self.out_size = out_size

    def __call__(self, x: mx.array) -> mx.array:
        return mf.avg_pool(x, "adaptive", out_size=self.out_size)


class AdaptiveMaxPool2d(stock.Module):
    """`mpsfunc.max_pool` over ``out_size`` windows, as PyTorch's layer of that name.

    Args:
        out_size: Size of the result, an int or (y, x), of which an entry may be None for the image's.

    Example:
        >>> AdaptiveMaxPool2d((2, None))(mx.ones((2, 7, 5, 3))).shape
        (2, 2, 5, 3)
    """

    def __init__(self, out_size: int | Sequence[int | None]) -> None:
        super().__init__()
        self.out_size = out_size

    def __call__(self, x: mx.array) -> mx.array:
        return mf.max_pool(x, "adaptive", out_size=self.out_size)


class MaxUnpool2d(stock.Module):
    """`mpsfunc.max_unpool`: puts values back to where `MaxPool2d.with_state` found its maxima.

    Example:
        >>> from mpsfunc.nn import MaxPool2d
        >>> y, state = MaxPool2d(2).with_state(mx.arange(4.0).reshape(1, 2, 2, 1))
        >>> MaxUnpool2d()(y, state).reshape(-1)
        array([0, 0, 0, 3], dtype=float32)
    """

    def __call__(self, y: mx.array, state: mf.MaxPoolState) -> mx.array:
        return mf.max_unpool(y, state)


class GridSample(stock.Module):
    """`mpsfunc.grid_sample`: samples images at the positions in a grid, as PyTorch's function of that name.

    Args:
        coordinates: "normalized" (default), "pixel" or "offset".
        align_corners: Whether -1 and 1 are the centres of the outermost pixels. Default False.
        mode: "nearest", "bilinear" (default) or "bicubic".
        edge_mode: "zero" (default), "border" or "reflection".

    Example:
        >>> GridSample("pixel")(
        ...     mx.arange(4.0).reshape(1, 2, 2, 1), mx.array([[[[0.5, 1.0]]]])
        ... ).item()
        2.5
    """

    def __init__(
        self,
        coordinates: GridCoordinatesName = "normalized",
        align_corners: bool = False,
        mode: GridSampleModeName = "bilinear",
        edge_mode: GridEdgeName = "zero",
    ) -> None:
        super().__init__()
        self.coordinates, self.align_corners = coordinates, align_corners
        self.mode, self.edge_mode = mode, edge_mode

    def __call__(self, x: mx.array, grid: mx.array) -> mx.array:
        return mf.grid_sample(
            x, grid, self.coordinates, align_corners=self.align_corners, mode=self.mode, edge_mode=self.edge_mode
        )


class DeformConv2d(stock.Module):
    """`mpsfunc.deform_conv` with weights of its own, as torchvision's layer of that name.

    Offsets and masks are arguments of a call; usually other convolutions compute them from the images. The number of
    channel groups with their own offsets follows from the shape of the offsets.

    Args:
        in_channels: Channels of the images.
        out_channels: Channels of the result.
        kernel_size: Window, an int or (y, x).
        stride: Pixels between two windows, an int or (y, x). Default 1.
        padding: Zeros around the image, an int or (y, x). Default 0.
        dilation: Pixels between two taps. Default 1.
        groups: Channels are split into this many groups that do not mix. Default 1.
        bias: Whether there is a bias. Default True.

    Example:
        >>> from mlx import nn
        >>> where = nn.Conv2d(4, 2 * 3 * 3, 3, padding=1)
        >>> layer = DeformConv2d(4, 8, 3, padding=1)
        >>> x = mx.ones((1, 6, 6, 4))
        >>> layer(x, where(x)).shape, layer.weight.shape
        ((1, 6, 6, 8), (8, 3, 3, 4))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if in_channels % checks.whole("DeformConv2d", "groups", groups) or out_channels % groups:
            rule = f"a divisor of {in_channels} and {out_channels}"
            refuse("DeformConv2d", "groups do not divide the channels", "groups", groups, rule)
        size = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        shape = (out_channels, *size, in_channels // groups)
        scale = math.prod(shape[1:]) ** -0.5
        self.weight = mx.random.uniform(-scale, scale, shape)
        if bias:
            self.bias = mx.zeros((out_channels,))
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def __call__(self, x: mx.array, offsets: mx.array, mask: mx.array | None = None) -> mx.array:
        _, kh, kw, _ = self.weight.shape
        known = isinstance(offsets, mx.array) and offsets.ndim == 4  # else the function says what is wrong
        return mf.deform_conv(
            x,
            offsets,
            self.weight,
            self.get("bias"),
            mask,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            offset_groups=max(1, offsets.shape[3] // (2 * kh * kw)) if known else 1,
        )

    def _extra_repr(self) -> str:
        outs, *size, depth = self.weight.shape
        return (
            f"{depth * self.groups}, {outs}, kernel_size={tuple(size)}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, groups={self.groups}, bias={'bias' in self}"
        )


class RoIAlign(stock.Module):
    """`mpsfunc.roi_align`: means over the bins of regions of interest, as torchvision's layer of that name.

    Called with images and regions (r, 5), each (n, x1, y1, x2, y2); or with a list of regions (r, 4) for each image,
    each (x1, y1, x2, y2). The result has the channels last.

    Args:
        output_size: Bins of a region, an int or (rows, columns).
        spatial_scale: How many pixels of the images 1 in the regions is. Default 1.
        sampling_ratio: Samples of a bin along an axis; 0 or less for as many as it has pixels. Default -1.
        aligned: Whether coordinates count from the outer edge of the first pixel. Default False.

    Example:
        >>> layer = RoIAlign(2, spatial_scale=0.5, aligned=True)
        >>> layer(mx.ones((1, 4, 4, 3)), [mx.array([[0.0, 0, 8, 8]])]).shape
        (1, 2, 2, 3)
    """

    def __init__(
        self, output_size: Pair, spatial_scale: float = 1.0, sampling_ratio: int = -1, aligned: bool = False
    ) -> None:
        super().__init__()
        self.output_size, self.spatial_scale = output_size, spatial_scale
        self.sampling_ratio, self.aligned = sampling_ratio, aligned

    def __call__(self, x: mx.array, rois: mx.array | Sequence[mx.array]) -> mx.array:
        how = self.output_size, self.spatial_scale, self.sampling_ratio, self.aligned
        if isinstance(rois, mx.array):
            return mf.roi_align(x, rois, *how)
        if not isinstance(rois, list | tuple) or not all(isinstance(each, mx.array) and each.ndim for each in rois):
            raise TypeError(f"RoIAlign: no regions; got rois={describe(rois)}, expected an mx.array or a list of them")
        if len(rois) != x.shape[0]:
            raise ValueError(
                f"RoIAlign: other regions than images; got {len(rois)} arrays, expected one for each of {x.shape[0]}"
            )
        of = [mx.full(len(each), image, mx.int32) for image, each in enumerate(rois)]
        together = mx.concatenate(list(rois)) if rois else mx.zeros((0, 4), x.dtype)
        return mf.roi_align(x, together, *how, box_indices=mx.concatenate(of) if of else mx.zeros(0, mx.int32))


class CrossChannelNorm(stock.Module):
    """`mpsfunc.cross_channel_norm` (local response normalization), with MPS's defaults.

    Args:
        size: Channels in a window. Default 5.
        alpha: Factor of their mean square. Default 1.
        beta: Exponent. Default 5.
        delta: What is added. Default 1.

    Example:
        >>> CrossChannelNorm(1, beta=1.0)(mx.ones((1, 1, 1, 1))).item()
        0.5
    """

    def __init__(self, size: int = 5, alpha: float = 1.0, beta: float = 5.0, delta: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.delta = size, alpha, beta, delta

    def __call__(self, x: mx.array) -> mx.array:
        return mf.cross_channel_norm(x, self.size, alpha=self.alpha, beta=self.beta, delta=self.delta)


class SpatialNorm(stock.Module):
    """`mpsfunc.spatial_norm`, with MPS's defaults.

    Args:
        kernel_size: Side of a window.
        alpha: Factor of its mean square. Default 1.
        beta: Exponent. Default 5.
        delta: What is added. Default 1.

    Example:
        >>> SpatialNorm(1, beta=1.0)(mx.ones((1, 1, 1, 1))).item()
        0.5
    """

    def __init__(self, kernel_size: int, alpha: float = 1.0, beta: float = 5.0, delta: float = 1.0) -> None:
        super().__init__()
        self.kernel_size, self.alpha, self.beta, self.delta = kernel_size, alpha, beta, delta

    def __call__(self, x: mx.array) -> mx.array:
        return mf.spatial_norm(x, self.kernel_size, alpha=self.alpha, beta=self.beta, delta=self.delta)


class LocalContrastNorm(stock.Module):
    """`mpsfunc.local_contrast_norm`, with the defaults of its kernel in MPS.

    Args:
        kernel_size: Side of a window.
        alpha: Factor of its variance. Default 0.
        beta: Exponent. Default 0.5.
        delta: What is added. Default 1/1024.
        p0: Share of the mean that is subtracted. Default 1.
        pm: What is added to the result. Default 0.
        ps: Factor of the result. Default 1.

    Example:
        >>> LocalContrastNorm(1)(mx.ones((1, 1, 1, 1))).item()
        0.0
    """

    def __init__(
        self,
        kernel_size: int,
        alpha: float = 0.0,
        beta: float = 0.5,
        delta: float = 1 / 1024,
        p0: float = 1.0,
        pm: float = 0.0,
        ps: float = 1.0,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.alpha, self.beta, self.delta = alpha, beta, delta
        self.p0, self.pm, self.ps = p0, pm, ps

    def __call__(self, x: mx.array) -> mx.array:
        return mf.local_contrast_norm(
            x,
            self.kernel_size,
            alpha=self.alpha,
            beta=self.beta,
            delta=self.delta,
            p0=self.p0,
            pm=self.pm,
            ps=self.ps,
        )
