"""Drop-ins for the layers of mlx.nn."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf
from mpsfunc.nn.activations import DropIn, Fused


class Fusing(DropIn):
    """A layer that can apply the activation behind it."""

    fused: Fused | None = None

    @property
    def neuron(self) -> mf.Neuron | None:
        """The activation that it applies, if any."""
        return None if self.fused is None else self.fused.neuron


class Conv2d(Fusing, stock.Conv2d):
    """`mlx.nn.Conv2d` by `mpsfunc.conv`. The result has the dtype of the images.

    Example:
        >>> Conv2d(3, 8, 3, stride=2, padding=1)(mx.ones((2, 8, 8, 3))).shape
        (2, 4, 4, 8)
    """

    def __call__(self, x: mx.array) -> mx.array:
        return mf.conv(
            x,
            self.weight,
            self.get("bias"),
            stride=_ints(self.stride),
            padding=_ints(self.padding),
            dilation=_ints(self.dilation),
            groups=self.groups,
            neuron=self.neuron,
        )


class ConvTranspose2d(Fusing, stock.ConvTranspose2d):
    """`mlx.nn.ConvTranspose2d` by `mpsfunc.conv_transpose`. The result has the dtype of the images.

    Example:
        >>> ConvTranspose2d(3, 8, 2, stride=2)(mx.ones((2, 4, 4, 3))).shape
        (2, 8, 8, 8)
    """

    def __call__(self, x: mx.array) -> mx.array:
        return mf.conv_transpose(
            x,
            self.weight,
            self.get("bias"),
            stride=_ints(self.stride),
            padding=_ints(self.padding),
            output_padding=_ints(self.output_padding),
            dilation=_ints(self.dilation),
            neuron=self.neuron,
        )


class Linear(Fusing, stock.Linear):
    """`mlx.nn.Linear` by `mpsfunc.fully_connected` on the CPU; on GPUs MLX's product is the vendor's, and stays.

    Example:
        >>> Linear(3, 8)(mx.ones((2, 5, 3))).shape
        (2, 5, 8)
    """

    def __call__(self, x: mx.array) -> mx.array:
        if mx.default_device() != mx.Device(mx.cpu) or x.dtype not in _FLOATING:
            y = stock.Linear.__call__(self, x)
            return y if self.neuron is None else mf.neuron(y, *self.neuron)
        rows = math.prod(x.shape[:-1])
        vectors = x.reshape(rows, 1, 1, x.shape[-1])
        y = mf.fully_connected(vectors, self.weight[:, None, None], self.get("bias"), neuron=self.neuron)
        return y.reshape(*x.shape[:-1], len(self.weight))


class BatchNorm(Fusing, stock.BatchNorm):
    """`mlx.nn.BatchNorm` by `mpsfunc.batch_norm`. The result has the dtype of the images.

    Attributes:
        group: Processes over whose images statistics are taken together, as `mpsfunc.bn_stats` does. Default: none.

    Example:
        >>> layer = BatchNorm(3)
        >>> y = layer(mx.random.normal((4, 5, 5, 3)))
        >>> layer.eval()(y).shape
        (4, 5, 5, 3)
    """

    group: mx.distributed.Group | None = None

    def __call__(self, x: mx.array) -> mx.array:
        if not 2 <= x.ndim <= 4:
            raise ValueError(f"BatchNorm: not a batch; got x.shape={tuple(x.shape)}, expected 2, 3 or 4 axes")
        images = x if x.ndim == 4 else x.reshape(x.shape[0], 1, -1, x.shape[-1])
        gamma, beta = self.get("weight"), self.get("bias")
        if not self.training and self.track_running_stats:
            y = mf.bn_normalize(images, self._running(), gamma, beta, neuron=self.neuron)
            return y.reshape(x.shape)
        if self.training and self.group is None and x.size == x.shape[-1]:
            raise ValueError(
                f"BatchNorm: one value has no variance; got x.shape={tuple(x.shape)}, expected more in training"
            )
        y, state = mf.batch_norm_fwd(images, gamma, beta, eps=self.eps, neuron=self.neuron, group=self.group)
        if self.training and self.track_running_stats:
            running = mf.bn_running(self._running(), state, self.momentum)
            self.running_mean, self.running_var = map(mx.stop_gradient, (running.mean, running.var))
        return y.reshape(x.shape)

    def _running(self) -> mf.BatchNormState:
        return mf.bn_frozen(self.running_mean, self.running_var, self.eps)


class InstanceNorm(DropIn, stock.InstanceNorm):
    """`mlx.nn.InstanceNorm` by `mpsfunc.instance_norm`. The result has the dtype of the images.

    Example:
        >>> InstanceNorm(3)(mx.random.normal((4, 5, 5, 3))).shape
        (4, 5, 5, 3)
    """

    def __call__(self, x: mx.array) -> mx.array:
        if x.ndim < 3:
            raise ValueError(f"InstanceNorm: no images; got x.shape={tuple(x.shape)}, expected 3 axes or more")
        return mf.instance_norm(_flat(x), self.get("weight"), self.get("bias"), eps=self.eps).reshape(x.shape)


class GroupNorm(DropIn, stock.GroupNorm):
    """`mlx.nn.GroupNorm` by `mpsfunc.group_norm` where it is ``pytorch_compatible``; else it is MLX's.

    Example:
        >>> GroupNorm(2, 4, pytorch_compatible=True)(mx.random.normal((4, 5, 5, 4))).shape
        (4, 5, 5, 4)
    """

    @classmethod
    def why_not(cls, layer: stock.Module) -> str:
        """PyTorch's and MPS's groups only."""
        return "" if layer.pytorch_compatible else "groups that interleave (pytorch_compatible=False)"

    def __call__(self, x: mx.array) -> mx.array:
        if self.why_not(self) or x.ndim < 3:
            return stock.GroupNorm.__call__(self, x)
        gamma, beta = self.get("weight"), self.get("bias")
        return mf.group_norm(_flat(x), self.num_groups, gamma, beta, eps=self.eps).reshape(x.shape)


class AvgPool2d(DropIn, stock.AvgPool2d):
    """`mlx.nn.AvgPool2d` by `mpsfunc.avg_pool`.

    Example:
        >>> AvgPool2d(2)(mx.ones((1, 4, 4, 3))).shape
        (1, 2, 2, 3)
    """

    def __call__(self, x: mx.array) -> mx.array:
        return mf.avg_pool(x, **_windows(self))


class MaxPool2d(DropIn, stock.MaxPool2d):
    """`mlx.nn.MaxPool2d` by `mpsfunc.max_pool`.

    Example:
        >>> MaxPool2d(2)(mx.ones((1, 4, 4, 3))).shape
        (1, 2, 2, 3)
    """

    @classmethod
    def why_not(cls, layer: stock.Module) -> str:
        """A window of padding alone has no maximum; MLX's is minus infinity."""
        far = any(max(pad) >= size for pad, size in zip(layer._padding, layer._kernel_size, strict=True))
        return "windows of padding alone" if far else ""

    def __call__(self, x: mx.array) -> mx.array:
        if self.why_not(self):
            return stock.MaxPool2d.__call__(self, x)
        return mf.max_pool(x, **_windows(self), edge_mode="exclude")

    def with_state(self, x: mx.array) -> tuple[mx.array, mf.MaxPoolState]:
        """The maxima, and the state that `MaxUnpool2d` takes.

        Raises:
            ValueError: Windows may be of padding alone.

        Example:
            >>> y, state = MaxPool2d(2).with_state(mx.ones((1, 4, 4, 3)))
            >>> y.shape
            (1, 2, 2, 3)
        """
        if why := self.why_not(self):
            raise ValueError(f"MaxPool2d: no state; got {why}, expected less padding than window")
        return mf.max_pool_fwd(x, **_windows(self), edge_mode="exclude")


class Dropout(DropIn, stock.Dropout):
    """`mlx.nn.Dropout` by `mpsfunc.dropout`, with a key from MLX's global state.

    Example:
        >>> Dropout(0.5).eval()(mx.ones(2))
        array([1, 1], dtype=float32)
    """

    _mask_stride = (1, 1, 1)

    def __call__(self, x: mx.array) -> mx.array:
        if self._p_1 == 1 or not self.training:
            return x
        return mf.dropout(x, self._p_1, mask_stride=self._mask_stride)


class Dropout2d(DropIn, stock.Dropout2d):
    """`mlx.nn.Dropout2d` by `mpsfunc.dropout`, which drops whole channels of images (n, h, w, c) or (h, w, c).

    Example:
        >>> Dropout2d(0.5).eval()(mx.ones((1, 2, 2, 1))).shape
        (1, 2, 2, 1)
    """

    def __call__(self, x: mx.array) -> mx.array:
        if x.ndim not in (3, 4):
            raise ValueError(f"Dropout2d: not images; got x.shape={tuple(x.shape)}, expected 3 or 4 axes")
        if self._p_1 == 1 or not self.training:
            return x
        images = x if x.ndim == 4 else x[None]
        return mf.dropout(images, self._p_1, mask_stride=(0, 0, 1)).reshape(x.shape)


class Upsample(DropIn, stock.Upsample):
    """`mlx.nn.Upsample` by `mpsfunc.upsample_nearest` or `mpsfunc.upsample_bilinear`, for images and whole factors.

    Example:
        >>> Upsample(2, mode="linear")(mx.ones((1, 4, 4, 3))).shape
        (1, 8, 8, 3)
    """

    @classmethod
    def why_not(cls, layer: stock.Module) -> str:
        """Whole factors, and no cubic."""
        scales = layer.scale_factor if isinstance(layer.scale_factor, (list, tuple)) else [layer.scale_factor]
        if layer.mode == "cubic":
            return "cubic interpolation"
        return "" if all(scale == int(scale) and scale >= 1 for scale in scales) else "a factor that is not whole"

    def __call__(self, x: mx.array) -> mx.array:
        scale = self.scale_factor if isinstance(self.scale_factor, (list, tuple)) else 2 * [self.scale_factor]
        if self.why_not(self) or x.ndim != 4 or len(scale) != 2:
            return stock.Upsample.__call__(self, x)
        factors = int(scale[0]), int(scale[1])
        if self.mode == "nearest":
            return mf.upsample_nearest(x, factors)
        if self.align_corners:
            return mf.upsample_bilinear(x, factors, align_corners=True)
        return mf.upsample_bilinear(x, factors, coordinate="half_pixel", edge_mode="clamp")


_FLOATING = (mx.float32, mx.float16, mx.bfloat16, mx.float64)


def _ints(value: Any) -> Any:
    """A pair that a module has made a list of."""
    return tuple(value) if isinstance(value, list) else value


def _flat(x: mx.array) -> mx.array:
    """Images of one row, since only the number of pixels matters."""
    return x if x.ndim == 4 else x.reshape(x.shape[0], 1, -1, x.shape[-1])


def _windows(pool: Any) -> dict[str, Any]:
    return {
        "kernel_size": tuple(pool._kernel_size),
        "stride": tuple(pool._stride),
        "padding": tuple(map(tuple, pool._padding)),
    }
