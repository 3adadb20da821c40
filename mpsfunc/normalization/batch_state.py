"""Batch statistics as a value: what one batch normalization knows of its images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from mpsfunc.core import checks, printing
from mpsfunc.core.arguments import is_a
from mpsfunc.core.printing import describe
from mpsfunc.normalization.composed import check_statistics

UNKNOWN = "unknown"  # behind which activation the sums of a saved state are, which had no word for it


@printing.printed
class BatchNormState(NamedTuple):
    """Statistics of a batch and the gradients of its scale and shift, as they accumulate.

    Fields:
        mean: Mean of each channel (c,), float32 (float64 for float64 images).
        var: Population variance of each channel (c,).
        count: Number of elements of each channel, a 0-d int64 array; 0 in a new state.
        dgamma: Gradient of the scale (c,).
        dbeta: Gradient of the shift (c,).
        gamma: The scale (c,) that `bn_stats_grad` was given last, in mean's dtype; zeros in a state that it did not
            return, and NaN if an earlier version saved the state.
        op: "batch_norm".
        eps: Added to the variance under the root.
        frozen: The statistics are given and do not depend on the images.
        summed: The activation that `bn_stats_grad` was given; "none" for none, "" if there are no gradients yet, and
            "unknown" in a state that an earlier version saved.
    """

    mean: mx.array
    var: mx.array
    count: mx.array  # type: ignore[assignment]  # hides tuple.count, which nobody counts a state's fields with
    dgamma: mx.array
    dbeta: mx.array
    gamma: mx.array
    op: str
    eps: float
    frozen: bool
    summed: str

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """(mean, var, count, dgamma, dbeta, gamma), for transformations that only take arrays."""
        return self[:6]

    def with_arrays(self, arrays: Sequence[mx.array]) -> BatchNormState:
        """This state with other arrays, in the order of `arrays`."""
        mean, var, count, dgamma, dbeta, gamma = checks.arrays_of("BatchNormState", arrays, 6)
        return self._replace(mean=mean, var=var, count=count, dgamma=dgamma, dbeta=dbeta, gamma=gamma)

    @property
    def dmean(self) -> mx.array:
        """Gradient with respect to the mean of each channel (c,), ``-gamma * dbeta / sqrt(var + eps)``.

        The variance counts as a constant, as where mean and variance are arguments. All parts of the batch have one
        scale, that of `bn_stats_grad`; it is NaN in a state that an earlier version saved, until that function is
        called.

        Source: ``MPSCNNBatchNormalizationStatisticsGradient``.

        Raises:
            ValueError: The state has not been through `bn_stats_grad`.

        Example:
            >>> from mpsfunc import bn_stats, bn_stats_grad
            >>> x, dy = (
            ...     mx.array(v).reshape(2, 1, 2, 1)
            ...     for v in ([1.0, 3.0, 2.0, 6.0], [1.0, -2.0, 3.0, 2.0])
            ... )
            >>> state = bn_stats_grad(dy, x, bn_stats(x, eps=1.0), mx.array([2.0]))
            >>> round(state.dmean.item(), 5), round(state.dvar.item(), 5)
            (-3.77124, -0.10476)
        """
        self._check_sums("dmean")
        return -self.gamma * self.dbeta * mx.rsqrt(self.var + self.eps)

    @property
    def dvar(self) -> mx.array:
        """Gradient with respect to the variance of each channel (c,), ``-gamma * dgamma / (2 * (var + eps))``.

        Errors and an example are those of `dmean`.
        """
        self._check_sums("dvar")
        return -self.gamma * self.dgamma / (2 * (self.var + self.eps))

    def _check_sums(self, name: str) -> None:
        if self.summed == "":
            raise ValueError(
                f"BatchNormState.{name}: no gradients were taken; got summed='', expected a state from bn_stats_grad"
            )


def has_sums(state: BatchNormState) -> bool:
    """Whether `bn_stats_grad` is known to have made a state; a saved one of an earlier version may have been."""
    return state.summed not in ("", UNKNOWN)


def check_owned(op: str, x: mx.array, state: BatchNormState, stream: mx.Stream) -> None:
    """A batch normalization state with as many channels as x."""
    check_whole(op, state, stream)
    checks.shape(op, "state.mean", state.mean, (x.shape[3],), "x does not belong to this state", of=x.shape)


def check_whole(op: str, state: BatchNormState, stream: mx.Stream, said: str = "state") -> None:
    """A batch normalization state that fits together; ``said`` is the argument."""
    if is_a(state, BatchNormState) and checks.vectors_alike(state[:2] + state[3:6]) and _is_plain(state):
        return  # told in a quarter of the time, at every call
    checks.state(op, state, BatchNormState, stream=stream, said=said)
    checks.switch(op, f"{said}.frozen", state.frozen)
    checks.shape(op, f"{said}.mean", state.mean, ("c",), "the state does not fit together")
    check_statistics(op, state, said)
    checks.array(op, f"{said}.gamma", state.gamma)
    for name in ("var", "dgamma", "dbeta", "gamma"):
        checks.shape(
            op, f"{said}.{name}", getattr(state, name), tuple(state.mean.shape), "the state does not fit together"
        )
    checks.shape(op, f"{said}.count", state.count, (), "the state does not fit together")
    if state.count.dtype != mx.int64:
        raise TypeError(f"{op}: the state counts in another dtype; got {state.count.dtype}, expected mlx.core.int64")
    if type(state.summed) is not str:
        raise TypeError(
            f"{op}: the state does not fit together; got {said}.summed={describe(state.summed)}, expected a str"
        )


def _is_plain(state: BatchNormState) -> bool:
    """Whether count, eps, frozen and summed are what `zero_state` makes of them."""
    count, eps = state.count, state.eps
    if not is_a(count, mx.array) or count.ndim != 0 or count.dtype != mx.int64:
        return False
    if type(state.frozen) is not bool or type(state.summed) is not str:
        return False
    return type(eps) is float and 0 <= eps <= checks.LARGEST


def zero_state(mean: mx.array, var: mx.array, count: mx.array, eps: float, stream: mx.Stream) -> BatchNormState:
    """A state of these statistics (c,) with zero gradients."""
    with mx.stream(stream):
        none = mx.zeros_like(mean)
    return BatchNormState(mean, var, count, none, none, none, "batch_norm", eps, False, "")
