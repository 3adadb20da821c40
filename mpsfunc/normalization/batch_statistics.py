"""Batch statistics, made, merged and reset."""

from __future__ import annotations

import math

import mlx.core as mx

from mpsfunc.channels import vector_rules
from mpsfunc.core import checks, launch, lazy
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.normalization import across_processes
from mpsfunc.normalization.across_processes import Group
from mpsfunc.normalization.batch_state import UNKNOWN, BatchNormState, check_owned, check_whole, has_sums, zero_state
from mpsfunc.normalization.composed import checked_eps, statistics_of_all


def bn_stats(
    x: mx.array,
    state: BatchNormState | None = None,
    eps: float | None = None,
    *,
    group: Group | None = None,
    stream: StreamLike = None,
) -> BatchNormState:
    """Mean and variance of each channel, merged with those that a state already holds.

    ``mean[c] = sum x / M`` and ``var[c] = sum (x - mean)**2 / M`` over the M elements of every image seen so far, so a
    batch may come in parts, and the same parts give the same bits. Statistics are merged by the pairwise rule of Chan,
    Golub and LeVeque (1979). Differentiable in x and in the state's arrays.

    Source: ``MPSCNNBatchNormalizationStatistics``.

    Args:
        x: Images (n, h, w, c) with n >= 1; float32, float16, bfloat16, or float64 on the CPU.
        state: Earlier statistics of the same batch. Default: none.
        eps: Added to the variance under the root. Default: the state's, or 1e-5. (MPS's own default is 1.17549435e-38.)
        group: Processes, from ``mx.distributed.init()``, whose images are one batch; all of them must call this. On a
            CPU a process may then have no images. Default: this process alone.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The state over all images. All of them come before the first `bn_stats_grad`.

    Raises:
        TypeError: x is not a floating array, state is not a BatchNormState, or group is not a group.
        ValueError: x is not NHWC or has no elements, the channels differ, the statistics are frozen, the state has been
            through `bn_stats_grad`, or eps is negative, not finite, or not the state's.

    Example:
        >>> state = bn_stats(mx.array([1.0, 3.0, 2.0, 6.0]).reshape(2, 1, 2, 1))
        >>> state.mean.item(), state.var.item()
        (3.0, 3.5)
    """
    stream = launch.resolve(stream)
    checks.image("bn_stats", "x", x, stream=stream)
    group = across_processes.others("bn_stats", group)
    check_filled("bn_stats", x, group, stream)
    if state is not None:
        check_owned("bn_stats", x, state, stream)
        if state.frozen:
            raise ValueError("bn_stats: statistics are frozen; got state.frozen=True, expected a state from bn_stats")
        if eps is not None and checked_eps("bn_stats", eps) != state.eps:
            raise ValueError(
                f"bn_stats: eps differs from the state's; got eps={describe(eps)}, expected {describe(state.eps)}"
            )
        if has_sums(state):
            raise ValueError(
                f"bn_stats: sums of gradients belong to their statistics; got state.summed={describe(state.summed)}, "
                "expected a state from before bn_stats_grad, or for another batch the one that bn_reset returns"
            )
    eps = checked_eps("bn_stats", 1e-5 if eps is None else eps)
    new = zero_state(*statistics_of_all(x, group, stream), eps, stream)
    return new if state is None else bn_merge(state, new._replace(eps=state.eps), stream=stream)


def bn_frozen(mean: mx.array, var: mx.array, eps: float = 1e-5, *, stream: StreamLike = None) -> BatchNormState:
    """A state with given statistics, as for inference or for training with frozen ones.

    Args:
        mean: Mean of each channel (c,).
        var: Variance of each channel (c,).
        eps: Added to the variance under the root. Default 1e-5.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        A state with ``frozen`` True and zero gradients, float32 (float64 where mean or var is).

    Raises:
        TypeError: mean or var is not a floating array.
        ValueError: They are not vectors of one length, or eps is negative or not finite.

    Example:
        >>> from mpsfunc import bn_normalize
        >>> state = bn_frozen(mx.array([3.0]), mx.array([3.0]), eps=1.0)
        >>> bn_normalize(mx.array([7.0]).reshape(1, 1, 1, 1), state).item()
        2.0
    """
    stream = launch.resolve(stream)
    checks.array("bn_frozen", "mean", mean, stream=stream)
    checks.array("bn_frozen", "var", var, stream=stream)
    checks.shape("bn_frozen", "mean", mean, ("c",), "mean is not a vector")
    checks.shape("bn_frozen", "var", var, (mean.shape[0],), "mean and var differ in length")
    with mx.stream(stream):
        dtype = mx.float64 if mx.float64 in (mean.dtype, var.dtype) else mx.float32
        none = mx.zeros(mean.shape, dtype)
        count = mx.array(0, mx.int64)
        return BatchNormState(
            mean.astype(dtype),
            var.astype(dtype),
            count,
            none,
            none,
            none,
            "batch_norm",
            checked_eps("bn_frozen", eps),
            True,
            "",
        )


def bn_merge(a: BatchNormState, b: BatchNormState, *, stream: StreamLike = None) -> BatchNormState:
    """The state over the images of two states, such as two devices' parts of a batch.

    With ``M = Ma + Mb``: ``mean = mean_a + (mean_b - mean_a) * Mb / M`` and
    ``var = (Ma * var_a + Mb * var_b) / M + (mean_b - mean_a)**2 * Ma * Mb / M**2``. A state without statistics changes
    nothing. Sums of `bn_stats_grad` belong to the statistics that they were computed with, so a state with sums can
    only be merged with one without statistics. If that one's count is not known yet, because it is an argument of a
    function under ``mx.compile``, the sums become NaN unless the count is 0.

    Args:
        a: One state.
        b: The other.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The merged state.

    Raises:
        TypeError: One is not a BatchNormState.
        ValueError: They differ in channels or eps, one is frozen, or one has been through `bn_stats_grad` and the other
            has statistics.

    Example:
        >>> x = mx.array([1.0, 3.0, 2.0, 6.0]).reshape(2, 1, 2, 1)
        >>> bn_merge(bn_stats(x[:1]), bn_stats(x[1:])).var.item()
        3.5
    """
    stream = launch.resolve(stream)
    for name, state in (("a", a), ("b", b)):
        check_whole("bn_merge", state, stream, name)
        if state.frozen:
            raise ValueError(f"bn_merge: statistics are frozen; got {name}.frozen=True, expected states from bn_stats")
    if a.mean.shape != b.mean.shape:
        raise ValueError(f"bn_merge: channels differ; got b.mean.shape={b.mean.shape}, expected {a.mean.shape}")
    if a.eps != b.eps:
        raise ValueError(f"bn_merge: eps differs; got b.eps={describe(b.eps)}, expected {describe(a.eps)}")
    for name, state, other in (("a", a, b), ("b", b, a)):
        if has_sums(state) and (has_sums(other) or lazy.known_count(other.count) not in (0, None)):
            raise ValueError(
                f"bn_merge: sums of gradients belong to their statistics; got {name}.summed={describe(state.summed)}, "
                "expected states from before bn_stats_grad, or one of them without statistics"
            )
    with mx.stream(stream):
        dtype = mx.float64 if mx.float64 in (a.mean.dtype, b.mean.dtype) else mx.float32
        of_a, of_b = ((s.mean.astype(dtype), s.var.astype(dtype), s.count) for s in (a, b))
        whole = vector_rules.joined(*of_a, *of_b)
        dgamma, dbeta = a.dgamma + b.dgamma, a.dbeta + b.dbeta
        if has_sums(a) or has_sums(b):
            count = b.count if has_sums(a) else a.count
            dgamma, dbeta = (mx.where(count == 0, sums, math.nan) for sums in (dgamma, dbeta))
        return BatchNormState(
            *whole,
            dgamma,
            dbeta,
            _scale_of(a, b).astype(dtype),
            *a[6:-1],
            UNKNOWN if UNKNOWN in (a.summed, b.summed) else a.summed or b.summed,
        )


def bn_running(
    running: BatchNormState,
    state: BatchNormState,
    momentum: float = 0.1,
    *,
    unbiased: bool = True,
    stream: StreamLike = None,
) -> BatchNormState:
    """Running statistics after one more batch, as inference uses them.

    ``mean = (1 - momentum) * running.mean + momentum * state.mean``, and the variance likewise, of which the batch's is
    ``state.var * M / (M - 1)`` where unbiased (M the state's count). A state without statistics changes nothing. A
    count of 1 is an error, since one element has no variance; if the count is not known yet, because it is an argument
    of a function under ``mx.compile``, the running variance becomes NaN. MPS has no such function; the formula is that
    of PyTorch and mlx.nn.

    Args:
        running: A frozen state; the first is ``bn_frozen(zeros, ones)``.
        state: Statistics of the batch, from `bn_stats` or `batch_norm_fwd`.
        momentum: The share of the new batch, 0 to 1. Default 0.1.
        unbiased: Whether to use the unbiased variance. Default True.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        A frozen state with the new averages and the gradients of ``running``.

    Raises:
        TypeError: One is not a BatchNormState, momentum is not a number, or unbiased is not a bool.
        ValueError: running is not frozen, state is, they differ in channels, state has a count of 1, or momentum is
            out of range.

    Example:
        >>> running = bn_frozen(mx.zeros(1), mx.ones(1))
        >>> state = bn_stats(mx.array([1.0, 3.0]).reshape(1, 1, 2, 1))
        >>> running = bn_running(running, state, momentum=0.5)
        >>> running.mean.item(), running.var.item()
        (1.0, 1.5)
    """
    stream = launch.resolve(stream)
    op = "bn_running"
    for name, given, frozen, other in (
        ("running", running, True, "from bn_frozen"),
        ("state", state, False, "from bn_stats"),
    ):
        check_whole(op, given, stream, name)
        if given.frozen != frozen:
            raise ValueError(
                f"{op}: {name} is not a state {other}; got {name}.frozen={describe(given.frozen)}, expected {frozen}"
            )
    checks.shape(op, "state.mean", state.mean, tuple(running.mean.shape), "channels differ")
    if lazy.known_count(state.count) == 1:
        raise ValueError(
            f"{op}: one element has no variance; got state.count=1, expected at least 2, or 0 for no batch"
        )
    share = checks.number(op, "momentum", momentum, 0, 1)
    drawn = float(checks.switch(op, "unbiased", unbiased))
    dtypes = running.mean.dtype, running.var.dtype
    with mx.stream(stream):
        wide = mx.float64 if mx.float64 in dtypes else mx.float32
        known_mean, known_var = running.mean, running.var
        if launch.backend(stream) == "cpu" or dtypes[0] != dtypes[1]:
            known_mean, known_var = known_mean.astype(wide), known_var.astype(wide)
        found_mean, found_var = state.mean.astype(wide), state.var.astype(wide)
        mean, var = vector_rules.running(
            known_mean, known_var, found_mean, found_var, state.count, share, drawn, stream
        )
        return running._replace(mean=mean.astype(dtypes[0]), var=var.astype(dtypes[1]))


def bn_reset(state: BatchNormState, *, stream: StreamLike = None) -> BatchNormState:
    """A state for the next batch: statistics and gradients are zero again; frozen statistics are kept.

    Source: ``reset`` of ``MPSCNNBatchNormalizationState``.

    Args:
        state: Any batch normalization state.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The state with count, gradients and, unless frozen, statistics at zero.

    Raises:
        TypeError: state is not a BatchNormState.
        ValueError: Its arrays do not fit together.

    Example:
        >>> bn_reset(bn_stats(mx.ones((1, 2, 2, 1)))).count.item()
        0
    """
    stream = launch.resolve(stream)
    check_whole("bn_reset", state, stream)
    with mx.stream(stream):
        none = mx.zeros_like(state.mean)
        if state.frozen:
            return state._replace(dgamma=none, dbeta=none, gamma=none, summed="")
        return state.with_arrays((none, none, mx.array(0, mx.int64), none, none, none))._replace(summed="")


# Checks and parts ---------------------------------------------------------------------------------------


def _scale_of(a: BatchNormState, b: BatchNormState) -> mx.array:
    """The scale that the sums of two states have, of which one at most is known to have sums."""
    if has_sums(a) or b.summed == "":
        return a.gamma
    if has_sums(b) or a.summed == "":
        return b.gamma
    return mx.where(a.gamma == b.gamma, a.gamma, math.nan)


def check_filled(op: str, x: mx.array, group: Group | None, stream: mx.Stream) -> None:
    """Refuses a batch without images, which has no statistics, unless other processes have some.

    A GPU is not asked for empty results, hence not for the gathers either that come before them.
    """
    if x.shape[0] == 0 and (group is None or launch.backend(stream) != "cpu"):
        raise ValueError(f"{op}: no elements to take statistics of; got x.shape={x.shape}, expected n >= 1")
