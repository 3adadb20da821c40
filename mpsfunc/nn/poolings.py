"""Drop-ins for the poolings of mlx.nn."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as stock

import mpsfunc as mf
from mpsfunc.nn.copying import Copied
from mpsfunc.nn.drop_in import DropIn, other


class _Average(Copied, DropIn):
    """With a divisor that MLX's do not have."""

    divisor_override: int | None = None  # of a layer that was MLX's

    def beyond(self) -> str:
        """Another divisor."""
        return other(divisor_override=(self.divisor_override, None))


class _Maximum(Copied, DropIn):
    """With padding that is smaller than the window."""

    @classmethod
    def refuses(cls, layer: Any) -> str:
        """A window that contains only padding has no maximum; MLX's is minus infinity."""
        far = any(max(pad) >= size for pad, size in zip(layer._padding, layer._kernel_size, strict=True))
        return "windows that contain only padding" if far else ""


class AvgPool2d(_Average, stock.AvgPool2d):
    """`mlx.nn.AvgPool2d` by `mpsfunc.avg_pool`.

    Args:
        divisor_override: By name only, in addition to the arguments of `mlx.nn.AvgPool2d`: what sums are divided by, as
            for `mpsfunc.avg_pool` and PyTorch's layer. Default: the size of the window.

    Raises:
        TypeError: In a call: divisor_override is not an int.
        ValueError: In a call: divisor_override is less than 1.

    Example:
        >>> AvgPool2d(2, divisor_override=1)(mx.ones((1, 4, 4, 3)))[0, 0, 0].tolist()
        [4.0, 4.0, 4.0]
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] | None = 0,
        *,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        if divisor_override is not None:
            self.divisor_override = divisor_override

    def run(self, x: mx.array) -> mx.array:
        return mf.avg_pool(x, **_windows(self), divisor_override=self.divisor_override)


class MaxPool2d(_Maximum, stock.MaxPool2d):
    """`mlx.nn.MaxPool2d` by `mpsfunc.max_pool`, whose padding must be smaller than the window.

    Example:
        >>> MaxPool2d(2)(mx.ones((1, 4, 4, 3))).shape
        (1, 2, 2, 3)
    """

    def run(self, x: mx.array) -> mx.array:
        return mf.max_pool(x, **_windows(self), edge_mode="exclude")

    def with_state(self, x: mx.array) -> tuple[mx.array, mf.MaxPoolState]:
        """The maxima, and the state that `MaxUnpool2d` takes.

        Raises:
            ValueError: A window may contain only padding.

        Example:
            >>> y, state = MaxPool2d(2).with_state(mx.ones((1, 4, 4, 3)))
            >>> y.shape
            (1, 2, 2, 3)
        """
        if why := self.refuses(self):
            raise ValueError(f"MaxPool2d: no state; got {why}, expected padding that is smaller than the window")
        return mf.max_pool_fwd(x, **_windows(self), edge_mode="exclude")


class AvgPool1d(_Average, stock.AvgPool1d):
    """`mlx.nn.AvgPool1d` by `mpsfunc.avg_pool1d`.

    Args:
        divisor_override: By name only, in addition to the arguments of `mlx.nn.AvgPool1d`: what sums are divided by, as
            for `mpsfunc.avg_pool1d` and PyTorch's layer. Default: the size of the window.

    Raises:
        TypeError: In a call: divisor_override is not an int.
        ValueError: In a call: divisor_override is less than 1.

    Example:
        >>> AvgPool1d(2)(mx.ones((1, 4, 3))).shape
        (1, 2, 3)
    """

    def __init__(
        self,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] | None = None,
        padding: int | tuple[int] = 0,
        *,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        if divisor_override is not None:
            self.divisor_override = divisor_override

    def run(self, x: mx.array) -> mx.array:
        return mf.avg_pool1d(x, **_window(self), divisor_override=self.divisor_override)


class MaxPool1d(_Maximum, stock.MaxPool1d):
    """`mlx.nn.MaxPool1d` by `mpsfunc.max_pool1d`, whose padding must be smaller than the window.

    Example:
        >>> MaxPool1d(2)(mx.ones((1, 4, 3))).shape
        (1, 2, 3)
    """

    def run(self, x: mx.array) -> mx.array:
        return mf.max_pool1d(x, **_window(self), edge_mode="exclude")


def _windows(pool: Any) -> dict[str, Any]:
    return {
        "kernel_size": tuple(pool._kernel_size),
        "stride": tuple(pool._stride),
        "padding": tuple(map(tuple, pool._padding)),
    }


def _window(pool: Any) -> dict[str, Any]:
    (kernel_size,), (stride,), (padding,) = pool._kernel_size, pool._stride, pool._padding
    return {"kernel_size": kernel_size, "stride": stride, "padding": tuple(padding)}
