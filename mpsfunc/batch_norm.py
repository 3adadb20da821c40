"""Batch normalization the MPS way: statistics, normalization and both gradients as four functions over one state.

``MPSCNNBatchNormalizationStatistics``, ``...Normalization``, ``...StatisticsGradient``, ``...Gradient`` and
``...State``. `batch_norm` composes them for ``mx.grad``.

Four kernels over images carry everything, at every order of derivative: the moments of a channel, an affine map of
one image (`affine`) or of two (`combine`), and two channel sums (`sums`), all in `_channels`. Each one's rules use the
others; what remains is arithmetic on vectors with one entry a channel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc import _across, _check, _launch, _vectors
from mpsfunc._across import Group
from mpsfunc._bn_state import BatchNormState, check_filled, check_owned, checked_eps, fresh, statistics
from mpsfunc._channels import On, accumulate, affine, combine, sums
from mpsfunc._launch import StreamLike
from mpsfunc._rules import derived


def bn_normalize(
    x: mx.array,
    state: BatchNormState,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    neuron: None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Normalizes images by a state's statistics, then scales and shifts them.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta``. Differentiable in x, in the state's mean and var, and in gamma
    and beta; mean and var count as inputs of their own (`batch_norm` has the derivative through the statistics).

    Source: ``MPSCNNBatchNormalization``.

    Args:
        x: Images (n, h, w, c).
        state: Statistics from `bn_stats` or `bn_frozen`; one that covers nothing gives no usable result.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,). Default: zeros.
        neuron: The fused activation; the family that brings it is not there yet, so only None.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images of x's shape and dtype.

    Raises:
        TypeError: An argument is not a floating array, or state is not a BatchNormState.
        ValueError: x is not NHWC, lengths differ, or neuron is given.

    Example:
        >>> from mpsfunc import bn_stats
        >>> x = mx.array([1.0, 3.0, 2.0, 6.0]).reshape(2, 1, 2, 1)
        >>> y = bn_normalize(x, bn_stats(x, eps=1.0), mx.array([2.0]), mx.array([0.5]))
        >>> round(y[1, 0, 1, 0].item(), 6)
        3.328427
    """
    run_on = _launch.resolve(stream)
    _images("bn_normalize", run_on, x, None, state, gamma, beta, neuron)
    with mx.stream(run_on):
        scale, shift = _defaults(x, gamma, beta)
        slope = _vectors.slope(scale, state.var.astype(scale.dtype), state.eps, run_on)
        return affine(x, state.mean.astype(scale.dtype), slope, shift, On(run_on))


def bn_stats_grad(
    dy: mx.array,
    x: mx.array,
    state: BatchNormState,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    neuron: None = None,
    group: Group | None = None,
    stream: StreamLike = None,
) -> BatchNormState:
    """Gradients of the scale and the shift, added to those that the state holds.

    ``dbeta[c] += sum dy`` and ``dgamma[c] += sum dy * (x - mean) / sqrt(var + eps)``: sums, not means. They also carry
    the gradients of the statistics, ``dL/dmean = -gamma * dbeta / sqrt(var + eps)`` and
    ``dL/dvar = -gamma * dgamma / (2 * (var + eps))``. Call it for every part of the batch before `bn_grad`.

    Source: ``MPSCNNBatchNormalizationStatisticsGradient``.

    Args:
        dy: Gradient of the normalized images (n, h, w, c).
        x: The images that were normalized.
        state: Statistics of the whole batch.
        gamma: Scale (c,), which only a fused activation needs.
        beta: Shift (c,), likewise.
        neuron: As for `bn_normalize`.
        group: Processes that share the batch, as for `bn_stats`; the sums are then those of all their images.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The state with ``dgamma`` and ``dbeta`` grown.

    Raises:
        TypeError: As for `bn_normalize`, dy and x differ in dtype, or group is not a group.
        ValueError: As for `bn_normalize`, or dy and x differ in shape.

    Example:
        >>> from mpsfunc import bn_stats
        >>> x, dy = (mx.array(v).reshape(2, 1, 2, 1) for v in ([1.0, 3.0, 2.0, 6.0], [1.0, -2.0, 3.0, 2.0]))
        >>> state = bn_stats_grad(dy, x, bn_stats(x, eps=1.0))
        >>> round(state.dgamma.item(), 6), state.dbeta.item()
        (0.471405, 4.0)
    """
    run_on = _launch.resolve(stream)
    _images("bn_stats_grad", run_on, x, dy, state, gamma, beta, neuron)
    group = _across.others("bn_stats_grad", group)
    with mx.stream(run_on):
        dtype = _launch.accumulator(x.dtype)
        mean, var, dgamma, dbeta = (a.astype(dtype) for a in (state.mean, state.var, state.dgamma, state.dbeta))
        if group is None:
            dgamma, dbeta = accumulate(dy, x, mean, var, dgamma, dbeta, state.eps, run_on)
        else:
            none = mx.zeros_like(mean)
            grown = accumulate(dy, x, mean, var, none, none, state.eps, run_on)
            dgamma, dbeta = (a + b for a, b in zip((dgamma, dbeta), _across.total(grown, group, run_on), strict=True))
        return state._replace(dgamma=dgamma, dbeta=dbeta)


def bn_grad(
    dy: mx.array,
    x: mx.array,
    state: BatchNormState,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    neuron: None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of batch normalization with respect to its images.

    ``dx = gamma / sqrt(var + eps) * (dy - dbeta / M - xhat * dgamma / M)`` with ``xhat = (x - mean) / sqrt(var + eps)``
    and M the state's count; with frozen statistics ``dx = gamma / sqrt(var + eps) * dy``. The state
    holds both sums, so the batch may come all at once or in parts.

    Source: ``MPSCNNBatchNormalizationGradient``.

    Args:
        dy: Gradient of the normalized images (n, h, w, c).
        x: The images that were normalized.
        state: What `bn_stats_grad` returned for the last part of the batch; one that covers nothing gives no usable
            result.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,), which only a fused activation needs.
        neuron: As for `bn_normalize`.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of x's shape and dtype.

    Raises:
        TypeError: As for `bn_stats_grad`.
        ValueError: As for `bn_stats_grad`.

    Example:
        >>> from mpsfunc import bn_stats
        >>> x, dy = (mx.array(v).reshape(2, 1, 2, 1) for v in ([1.0, 3.0, 2.0, 6.0], [1.0, -2.0, 3.0, 2.0]))
        >>> state = bn_stats_grad(dy, x, bn_stats(x, eps=1.0))
        >>> round(bn_grad(dy, x, state, mx.array([2.0]))[0, 0, 1, 0].item(), 6)
        -2.828427
    """
    run_on = _launch.resolve(stream)
    _images("bn_grad", run_on, x, dy, state, gamma, beta, neuron)
    with mx.stream(run_on):
        scale, none = _defaults(x, gamma, None)
        mean, var, dgamma, dbeta = (a.astype(scale.dtype) for a in (state.mean, state.var, state.dgamma, state.dbeta))
        if state.frozen:
            return affine(dy, none, _vectors.slope(scale, var, state.eps, run_on), none, On(run_on))
        a, b, d = _vectors.factors(scale, var, dgamma, dbeta, state.count, state.eps, run_on)
        return combine(dy, x, mean, a, b, d, On(run_on))


def batch_norm(
    x: mx.array,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    neuron: None = None,
    group: Group | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Normalizes images by their own statistics, then scales and shifts them; differentiable through the statistics.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta`` with the mean and population variance of each channel of x.
    The VJP is `bn_stats_grad` and `bn_grad` in one: it reads x and dy twice.

    Args:
        x: Images (n, h, w, c) with n >= 1.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,). Default: zeros.
        eps: Added to the variance under the root. Default 1e-5.
        neuron: As for `bn_normalize`.
        group: Processes that share the batch, as for `bn_stats`. Gradients are then those of the sum of all their
            losses, with respect to this process's x, gamma and beta; average those of parameters as usual.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images of x's shape and dtype.

    Raises:
        TypeError: As for `bn_normalize`.
        ValueError: As for `bn_normalize`, or x has no elements.

    Example:
        >>> batch_norm(mx.array([1.0, 3.0]).reshape(1, 1, 2, 1), eps=0.0).reshape(-1)
        array([-1, 1], dtype=float32)
    """
    return batch_norm_fwd(x, gamma, beta, eps=eps, neuron=neuron, group=group, stream=stream)[0]


def batch_norm_fwd(
    x: mx.array,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    neuron: None = None,
    group: Group | None = None,
    stream: StreamLike = None,
) -> tuple[mx.array, BatchNormState]:
    """`batch_norm`, and the state with the batch's statistics. Arguments and errors are those of `batch_norm`.

    Returns:
        The normalized images and the state, which `bn_stats_grad` and `bn_grad` take and running averages are made of.

    Example:
        >>> _, state = batch_norm_fwd(mx.array([1.0, 3.0]).reshape(1, 1, 2, 1))
        >>> state.mean.item(), state.count.item()
        (2.0, 2)
    """
    run_on = _launch.resolve(stream)
    _check.image("batch_norm", "x", x, stream=run_on)
    group = _across.others("batch_norm", group)
    check_filled("batch_norm", x, group, run_on)
    _parameters("batch_norm", run_on, x, gamma, beta, neuron)
    with mx.stream(run_on):
        scale, shift = _defaults(x, gamma, beta)
        eps = checked_eps("batch_norm", eps)
        y, mean, var, count = _batch_norm(x, scale, shift, _Spec(eps, group, run_on))
        return y, fresh(mean, var, count, eps, run_on)


# Checks and vectors -------------------------------------------------------------------------------------


def _parameters(
    op: str, stream: mx.Stream, x: mx.array, gamma: mx.array | None, beta: mx.array | None, neuron: None
) -> None:
    if neuron is not None:
        raise ValueError(f"{op}: no fused activation exists yet; got neuron={neuron!r}, expected None")
    for name, vector in (("gamma", gamma), ("beta", beta)):
        if vector is not None:
            _check.array(op, name, vector, stream=stream)
            _check.shape(op, name, vector, (x.shape[3],), f"{name} does not fit the channels")


def _images(
    op: str,
    stream: mx.Stream,
    x: mx.array,
    dy: mx.array | None,
    state: BatchNormState,
    gamma: mx.array | None,
    beta: mx.array | None,
    neuron: None,
) -> None:
    _check.image(op, "x", x, stream=stream)
    check_owned(op, x, state, stream)
    if dy is not None:
        _check.array(op, "dy", dy, stream=stream)
        _check.shape(op, "dy", dy, tuple(x.shape), "dy does not belong to x")
        _check.same_dtype(op, "dy", dy, "x", x.dtype)
    _parameters(op, stream, x, gamma, beta, neuron)


def _defaults(x: mx.array, gamma: mx.array | None, beta: mx.array | None) -> tuple[mx.array, mx.array]:
    dtype, channels = _launch.accumulator(x.dtype), x.shape[3]
    scale = mx.ones((channels,), dtype) if gamma is None else gamma.astype(dtype)
    shift = mx.zeros((channels,), dtype) if beta is None else beta.astype(dtype)
    return scale, shift


# The four composed --------------------------------------------------------------------------------------


class _Spec(NamedTuple):
    eps: float
    group: Group | None
    stream: mx.Stream


def _composed(x: mx.array, gamma: mx.array, beta: mx.array, spec: _Spec) -> tuple[mx.array, ...]:
    mean, var, count = statistics(x, spec.group, spec.stream)
    slope = _vectors.slope(gamma, var, spec.eps, spec.stream)
    return affine(x, mean, slope, beta, On(spec.stream)), mean, var, count


def _composed_vjp(arrays: Any, cotangents: Any, outputs: Any, spec: _Spec) -> Any:
    (x, gamma, _), (dy, dmean, dvar, _), (_, mean, var, count) = arrays, cotangents, outputs
    n, h, w, _ = x.shape
    dbeta, dot = sums(dy, x, mean, On(spec.stream))
    if spec.group is None:
        dgamma, a, b, d = _vectors.composed_factors(
            gamma, var, dmean, dvar, dbeta, dot, float(n * h * w), spec.eps, spec.stream
        )
    else:  # x gets a share of what all processes' losses want of the statistics; gamma's gradient is this one's
        dgamma = dot * mx.rsqrt(var + spec.eps)
        whole = mx.maximum(count, 1).astype(mean.dtype)
        shares = (v / whole for v in _across.total((dmean, dvar, dbeta, dot), spec.group, spec.stream))
        _, a, b, d = _vectors.composed_factors(gamma, var, *shares, 1.0, spec.eps, spec.stream)
    return combine(dy, x, mean, a, b, d, On(spec.stream)), dgamma, dbeta


_batch_norm = derived("batch_norm", _composed, _composed, vjp=_composed_vjp)
