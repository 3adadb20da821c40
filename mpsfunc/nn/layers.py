"""Drop-ins for the other layers of mlx.nn."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf
from mpsfunc.convolution import fully_connected
from mpsfunc.core import launch
from mpsfunc.core.printing import describe
from mpsfunc.nn import folding, laying_out
from mpsfunc.nn.drop_in import DropIn, Fusing


class Linear(Fusing, stock.Linear):
    """`mlx.nn.Linear` by `mpsfunc.fully_connected` on the CPU; on GPUs MLX's own product runs, which is a vendor's.

    Example:
        >>> Linear(3, 8)(mx.ones((2, 5, 3))).shape
        (2, 5, 8)
    """

    is_linear = True
    takes_layouts = True
    adds_in_inference = True

    def takes(self, x: mx.array) -> bool:
        """On the CPU."""
        return super().takes(x) and launch.on_cpu()

    def run(self, x: mx.array, neuron: mf.Neuron | None = None, add: mx.array | None = None) -> mx.array:
        """What a call computes with mpsfunc's functions: the product, plus ``add``, then the activation."""
        if add is not None:
            return folding.added(self, x, neuron, add)
        rows = math.prod(x.shape[:-1])
        vectors = x.reshape(rows, 1, 1, x.shape[-1])
        w, b = self.weight[:, None, None], self.get("bias")
        laid = laying_out.laid(self, x)
        if laid is None:
            y = mf.fully_connected(vectors, w, b, neuron=neuron)
        else:
            y = fully_connected.forward(vectors, w, b, neuron, None, keeping=False, laid=laid)[0]
        return y.reshape(*x.shape[:-1], len(self.weight))


class BatchNorm(Fusing, stock.BatchNorm):
    """`mlx.nn.BatchNorm` by `mpsfunc.batch_norm`. The result has the dtype of the images.

    Attributes:
        processes: The processes whose images share statistics, as ``group`` of `mpsfunc.bn_stats`. Default: none.

    Running statistics keep their dtype.

    Example:
        >>> layer = BatchNorm(3)
        >>> y = layer(mx.random.normal((4, 5, 5, 3)))
        >>> layer.eval()(y).shape
        (4, 5, 5, 3)
    """

    adds = True
    _together: _Together | None = None

    @classmethod
    def refuses(cls, layer: Any) -> str:
        """MLX's extrapolates running statistics."""
        known = isinstance(layer.momentum, (int, float))
        return "a momentum outside 0 to 1" if known and not 0 <= layer.momentum <= 1 else ""

    @property
    def processes(self) -> mx.distributed.Group | None:
        """The processes over whose images statistics are computed."""
        return self._together.group if self._together else None

    @processes.setter
    def processes(self, group: mx.distributed.Group | None) -> None:
        self._together = None if group is None else _Together(group)

    @property
    def folds(self) -> bool:
        """Whether it has running statistics, with which it can be folded into the layer before it."""
        return bool(self.track_running_stats and isinstance(self.momentum, (int, float)) and not self.refuses(self))

    def takes(self, x: mx.array) -> bool:
        """Whether mpsfunc computes this or refuses it: also for several processes, which MLX's layer does not know."""
        return self.processes is not None or (super().takes(x) and isinstance(self.momentum, (int, float)))

    def run(self, x: mx.array, neuron: mf.Neuron | None = None, add: mx.array | None = None) -> mx.array:
        """What a call computes with mpsfunc's functions: the norm of x, plus ``add``, then the activation."""
        if self.refuses(self):
            raise ValueError(
                f"BatchNorm: momentum is out of range; got momentum={describe(self.momentum)}, expected 0 to 1"
            )
        if not 2 <= x.ndim <= 4:
            raise ValueError(f"BatchNorm: not a batch; got x.shape={tuple(x.shape)}, expected 2, 3 or 4 axes")
        images, added = _flat(x), None if add is None else _flat(add)
        gamma, beta = self.get("weight"), self.get("bias")
        if not self.training and self.track_running_stats:
            y = mf.bn_normalize(images, self._running(), gamma, beta, add=added, neuron=neuron)
            return y.reshape(x.shape)
        alone = self.processes is None or self.processes.size() == 1
        if self.training and alone and x.size == x.shape[-1]:
            raise ValueError(
                f"BatchNorm: one value has no variance; got x.shape={tuple(x.shape)}, expected more in training"
            )
        how: Any = {"eps": self.eps, "add": added, "neuron": neuron, "group": self.processes}
        y, state = mf.batch_norm_fwd(images, gamma, beta, **how)
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
    """`mlx.nn.Upsample` by `mpsfunc.resize_nearest`, `resize_bilinear` or `resize_bicubic`, for rows and images.

    For factors that are not integers positions are MLX's: they are 1 / factor apart, from the centre outwards, and the
    nearest of two pixels is the one that rounding in float32 selects. Volumes are computed by MLX.

    Raises:
        ValueError: In a call, of rows and images: a factor is not a number above 0, or leaves no pixels.

    Example:
        >>> Upsample(2, mode="linear")(mx.ones((1, 4, 4, 3))).shape
        (1, 8, 8, 3)
        >>> Upsample(0.3, mode="cubic", antialias=True)(mx.ones((1, 10, 3))).shape
        (1, 3, 3)
    """

    @classmethod
    def refuses(cls, layer: Any) -> str:
        """Factors of nothing or less, and NaN."""
        given = layer.scale_factor
        factors = given if isinstance(given, (list, tuple)) else (given,)
        return "" if all(0 < factor < 2**31 for factor in factors) else "a scale out of range"

    def takes(self, x: mx.array) -> bool:
        """Rows and images, and a factor for each axis."""
        return super().takes(x) and x.ndim in (3, 4) and len(self._scales(x.ndim - 2)) == x.ndim - 2

    def run(self, x: mx.array) -> mx.array:
        scales = (1, *self._scales(x.ndim - 2))[-2:]
        images = x if x.ndim == 4 else x[:, None]
        y = self._resized(images, scales)
        return y if x.ndim == 4 else y[:, 0]

    def _resized(self, x: mx.array, scales: tuple[float, ...]) -> mx.array:
        if self.mode == "nearest":
            whole = all(float(scale).is_integer() for scale in scales)
            return mf.resize_nearest(x, scale=scales, coordinate="asymmetric" if whole else "mlx")
        how: dict[str, Any] = {"antialias": getattr(self, "antialias", False), "coordinate": "half_pixel_symmetric"}
        if self.align_corners:
            how = {"align_corners": True}
        return (mf.resize_bicubic if self.mode == "cubic" else mf.resize_bilinear)(x, scale=scales, **how)

    def _scales(self, axes: int) -> tuple[float, ...]:
        of = self.scale_factor
        return tuple(of) if isinstance(of, (list, tuple)) else axes * (of,)


class _Together:
    """A group in a layer; copies of the layer are of the same processes."""

    def __init__(self, group: mx.distributed.Group) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> _Together:
        return self


def _flat(x: mx.array) -> mx.array:
    """Images of one row, since only the number of pixels matters."""
    return x if x.ndim == 4 else x.reshape(x.shape[0], 1, math.prod(x.shape[1:-1]), x.shape[-1])
