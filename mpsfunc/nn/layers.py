"""Drop-ins for the layers of mlx.nn."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf
from mpsfunc.core.printing import describe
from mpsfunc.nn.drop_in import DropIn, Fusing


class Conv2d(Fusing, stock.Conv2d):
    """`mlx.nn.Conv2d` by `mpsfunc.conv`. The result has the dtype of the images.

    Example:
        >>> Conv2d(3, 8, 3, stride=2, padding=1)(mx.ones((2, 8, 8, 3))).shape
        (2, 4, 4, 8)
    """

    @classmethod
    def refuses(cls, layer: Any) -> str:
        """MLX's crops."""
        return "negative padding" if _negative(layer.padding) else ""

    def run(self, x: mx.array, neuron: mf.Neuron | None = None) -> mx.array:
        return mf.conv(
            x,
            self.weight,
            self.get("bias"),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            neuron=neuron,
        )


class ConvTranspose2d(Fusing, stock.ConvTranspose2d):
    """`mlx.nn.ConvTranspose2d` by `mpsfunc.conv_transpose`. The result has the dtype of the images.

    Its output padding has the rule of that function: fewer pixels than stride or dilation.

    Example:
        >>> ConvTranspose2d(3, 8, 2, stride=2)(mx.ones((2, 4, 4, 3))).shape
        (2, 8, 8, 8)
    """

    @classmethod
    def refuses(cls, layer: Any) -> str:
        """More output padding than that adds pixels that no window reaches; MLX's crops where padding is negative."""
        if _negative(layer.padding) or _negative(layer.output_padding):
            return "negative padding"
        steps = zip(*map(_pair, (layer.output_padding, layer.stride, layer.dilation)), strict=True)
        return "as much output padding as stride" if any(more >= max(rest) for more, *rest in steps) else ""

    def run(self, x: mx.array, neuron: mf.Neuron | None = None) -> mx.array:
        return mf.conv_transpose(
            x,
            self.weight,
            self.get("bias"),
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
            dilation=self.dilation,
            neuron=neuron,
        )


class Linear(Fusing, stock.Linear):
    """`mlx.nn.Linear` by `mpsfunc.fully_connected` on the CPU; on GPUs MLX's product is the vendor's, and stays.

    Example:
        >>> Linear(3, 8)(mx.ones((2, 5, 3))).shape
        (2, 5, 8)
    """

    def takes(self, x: mx.array) -> bool:
        """On the CPU."""
        return super().takes(x) and mx.default_device() == mx.Device(mx.cpu)

    def run(self, x: mx.array, neuron: mf.Neuron | None = None) -> mx.array:
        rows = math.prod(x.shape[:-1])
        vectors = x.reshape(rows, 1, 1, x.shape[-1])
        y = mf.fully_connected(vectors, self.weight[:, None, None], self.get("bias"), neuron=neuron)
        return y.reshape(*x.shape[:-1], len(self.weight))


class BatchNorm(Fusing, stock.BatchNorm):
    """`mlx.nn.BatchNorm` by `mpsfunc.batch_norm`. The result has the dtype of the images.

    Attributes:
        processes: Over whose images statistics are taken together, as ``group`` of `mpsfunc.bn_stats`. Default: none.

    Running statistics keep the dtype that they have.

    Example:
        >>> layer = BatchNorm(3)
        >>> y = layer(mx.random.normal((4, 5, 5, 3)))
        >>> layer.eval()(y).shape
        (4, 5, 5, 3)
    """

    _together: _Together | None = None

    @classmethod
    def refuses(cls, layer: Any) -> str:
        """MLX's extrapolates running statistics."""
        known = isinstance(layer.momentum, (int, float))
        return "a momentum beyond 0 to 1" if known and not 0 <= layer.momentum <= 1 else ""

    @property
    def processes(self) -> mx.distributed.Group | None:
        """Over whose images statistics are taken."""
        return self._together.group if self._together else None

    @processes.setter
    def processes(self, group: mx.distributed.Group | None) -> None:
        self._together = None if group is None else _Together(group)

    def takes(self, x: mx.array) -> bool:
        """MLX's knows no processes, so with some it is ours that refuses."""
        return self.processes is not None or (super().takes(x) and isinstance(self.momentum, (int, float)))

    def run(self, x: mx.array, neuron: mf.Neuron | None = None) -> mx.array:
        if self.refuses(self):
            raise ValueError(
                f"BatchNorm: momentum is out of range; got momentum={describe(self.momentum)}, expected 0 to 1"
            )
        if not 2 <= x.ndim <= 4:
            raise ValueError(f"BatchNorm: not a batch; got x.shape={tuple(x.shape)}, expected 2, 3 or 4 axes")
        images = _flat(x)
        gamma, beta = self.get("weight"), self.get("bias")
        if not self.training and self.track_running_stats:
            y = mf.bn_normalize(images, self._running(), gamma, beta, neuron=neuron)
            return y.reshape(x.shape)
        alone = self.processes is None or self.processes.size() == 1
        if self.training and alone and x.size == x.shape[-1]:
            raise ValueError(
                f"BatchNorm: one value has no variance; got x.shape={tuple(x.shape)}, expected more in training"
            )
        y, state = mf.batch_norm_fwd(images, gamma, beta, eps=self.eps, neuron=neuron, group=self.processes)
        if self.track_running_stats:
            known = self._running()._replace(mean=self["running_mean"], var=self["running_var"])  # in their own dtype
            running = mf.bn_running(known, state, self.momentum)
            self["running_mean"], self["running_var"] = running.mean, running.var
        return y.reshape(x.shape)

    def _running(self) -> mf.BatchNormState:
        return mf.bn_frozen(self.running_mean, self.running_var, self.eps)


class InstanceNorm(Fusing, stock.InstanceNorm):
    """`mlx.nn.InstanceNorm` by `mpsfunc.instance_norm`. The result has the dtype of the images.

    Example:
        >>> InstanceNorm(3)(mx.random.normal((4, 5, 5, 3))).shape
        (4, 5, 5, 3)
    """

    def run(self, x: mx.array, neuron: mf.Neuron | None = None) -> mx.array:
        if x.ndim < 3:
            raise ValueError(f"InstanceNorm: no images; got x.shape={tuple(x.shape)}, expected 3 axes or more")
        gamma, beta = self.get("weight"), self.get("bias")
        return mf.instance_norm(_flat(x), gamma, beta, eps=self.eps, neuron=neuron).reshape(x.shape)


class GroupNorm(Fusing, stock.GroupNorm):
    """`mlx.nn.GroupNorm` by `mpsfunc.group_norm` where it is ``pytorch_compatible``; else it is MLX's.

    Example:
        >>> GroupNorm(2, 4, pytorch_compatible=True)(mx.random.normal((4, 5, 5, 4))).shape
        (4, 5, 5, 4)
    """

    @classmethod
    def why_not(cls, layer: Any) -> str:
        """PyTorch's and MPS's groups only."""
        return "" if layer.pytorch_compatible else "groups that interleave (pytorch_compatible=False)"

    def takes(self, x: mx.array) -> bool:
        """Images, of any number of axes."""
        return super().takes(x) and x.ndim >= 3

    def run(self, x: mx.array, neuron: mf.Neuron | None = None) -> mx.array:
        gamma, beta = self.get("weight"), self.get("bias")
        return mf.group_norm(_flat(x), self.num_groups, gamma, beta, eps=self.eps, neuron=neuron).reshape(x.shape)


class LayerNorm(DropIn, stock.LayerNorm):
    """`mlx.nn.LayerNorm` by `mpsfunc.layer_norm`.

    Example:
        >>> LayerNorm(4)(mx.random.normal((4, 5, 5, 4))).shape
        (4, 5, 5, 4)
    """

    def takes(self, x: mx.array) -> bool:
        """Arrays that have channels."""
        return super().takes(x) and x.ndim >= 1

    def run(self, x: mx.array) -> mx.array:
        return mf.layer_norm(x, self.get("weight"), self.get("bias"), eps=self.eps)


class AvgPool2d(DropIn, stock.AvgPool2d):
    """`mlx.nn.AvgPool2d` by `mpsfunc.avg_pool`.

    Example:
        >>> AvgPool2d(2)(mx.ones((1, 4, 4, 3))).shape
        (1, 2, 2, 3)
    """

    def run(self, x: mx.array) -> mx.array:
        return mf.avg_pool(x, **_windows(self))


class MaxPool2d(DropIn, stock.MaxPool2d):
    """`mlx.nn.MaxPool2d` by `mpsfunc.max_pool`, of less padding than window.

    Example:
        >>> MaxPool2d(2)(mx.ones((1, 4, 4, 3))).shape
        (1, 2, 2, 3)
    """

    @classmethod
    def refuses(cls, layer: Any) -> str:
        """A window of padding alone has no maximum; MLX's is minus infinity."""
        far = any(max(pad) >= size for pad, size in zip(layer._padding, layer._kernel_size, strict=True))
        return "windows of padding alone" if far else ""

    def run(self, x: mx.array) -> mx.array:
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
        if why := self.refuses(self):
            raise ValueError(f"MaxPool2d: no state; got {why}, expected less padding than window")
        return mf.max_pool_fwd(x, **_windows(self), edge_mode="exclude")


class Dropout(DropIn, stock.Dropout):
    """`mlx.nn.Dropout` by `mpsfunc.dropout`, with a key from MLX's global state; to recompute it, see `checkpoint`.

    Example:
        >>> Dropout(0.5).eval()(mx.ones(2))
        array([1, 1], dtype=float32)
    """

    _mask_stride = (1, 1, 1)

    def run(self, x: mx.array) -> mx.array:
        if self._p_1 == 1 or not self.training:
            return x
        return mf.dropout(x, keep_probability=self._p_1, mask_stride=self._mask_stride)


class Dropout2d(DropIn, stock.Dropout2d):
    """`mlx.nn.Dropout2d` by `mpsfunc.dropout`, which drops whole channels of images (n, h, w, c) or (h, w, c).

    Example:
        >>> Dropout2d(0.5).eval()(mx.ones((1, 2, 2, 1))).shape
        (1, 2, 2, 1)
    """

    def run(self, x: mx.array) -> mx.array:
        if x.ndim not in (3, 4):
            raise ValueError(f"Dropout2d: not images; got x.shape={tuple(x.shape)}, expected 3 or 4 axes")
        if self._p_1 == 1 or not self.training:
            return x
        images = x if x.ndim == 4 else x[None]
        return mf.dropout(images, keep_probability=self._p_1, mask_stride=(0, 0, 1)).reshape(x.shape)


class Upsample(DropIn, stock.Upsample):
    """`mlx.nn.Upsample` by `mpsfunc.upsample_nearest` or `mpsfunc.upsample_bilinear`, for images and whole factors.

    Example:
        >>> Upsample(2, mode="linear")(mx.ones((1, 4, 4, 3))).shape
        (1, 8, 8, 3)
    """

    @classmethod
    def why_not(cls, layer: Any) -> str:
        """Whole factors, and no cubic."""
        scales = layer.scale_factor if isinstance(layer.scale_factor, (list, tuple)) else [layer.scale_factor]
        if layer.mode == "cubic":
            return "cubic interpolation"
        return "" if all(scale == int(scale) and scale >= 1 for scale in scales) else "a factor that is not whole"

    def takes(self, x: mx.array) -> bool:
        """Images."""
        return super().takes(x) and x.ndim == 4

    def run(self, x: mx.array) -> mx.array:
        scales = self.scale_factor if isinstance(self.scale_factor, (list, tuple)) else 2 * [self.scale_factor]
        factors = tuple(map(int, scales))
        if self.mode == "nearest":
            return mf.upsample_nearest(x, factors)
        if self.align_corners:
            return mf.upsample_bilinear(x, factors, align_corners=True)
        return mf.upsample_bilinear(x, factors, coordinate="half_pixel", edge_mode="clamp")


class _Together:
    """A group in a layer; copies of the layer are of the same processes."""

    def __init__(self, group: mx.distributed.Group) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> _Together:
        return self


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _negative(padding: Any) -> bool:
    return any(isinstance(pixels, int) and pixels < 0 for pixels in _pair(padding))


def _flat(x: mx.array) -> mx.array:
    """Images of one row, since only the number of pixels matters."""
    return x if x.ndim == 4 else x.reshape(x.shape[0], 1, math.prod(x.shape[1:-1]), x.shape[-1])


def _windows(pool: Any) -> dict[str, Any]:
    return {
        "kernel_size": tuple(pool._kernel_size),
        "stride": tuple(pool._stride),
        "padding": tuple(map(tuple, pool._padding)),
    }
