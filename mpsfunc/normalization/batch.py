"""Batch normalization the MPS way: statistics, normalization and both gradients as four functions over one state.

``MPSCNNBatchNormalizationStatistics``, ``...Normalization``, ``...StatisticsGradient``, ``...Gradient`` and
``...State``. `batch_norm` composes them for ``mx.grad``.

Four kernels over images carry everything, at every order of derivative: the moments of a channel (`bn_stats`), an
affine map of one image (`bn_normalize`) or of two (`bn_grad`), and two channel sums (`bn_stats_grad`), all in
`channels.rules`. Each
one's rules use the others; what remains is arithmetic on vectors with one entry per channel, which `batch_rules` lets
the kernels do.
"""

from __future__ import annotations

import mlx.core as mx

from mpsfunc.activation import fused, prelu_rules
from mpsfunc.activation.fused import Neuron
from mpsfunc.channels.activation_spec import NO_ACTIVATION, NeuronName
from mpsfunc.core import checks, launch
from mpsfunc.core.launch import StreamLike
from mpsfunc.core.printing import describe
from mpsfunc.normalization import across_processes, batch_rules
from mpsfunc.normalization.across_processes import Group
from mpsfunc.normalization.batch_rules import NormSpec
from mpsfunc.normalization.batch_state import UNKNOWN, BatchNormState, check_owned, zero_state
from mpsfunc.normalization.batch_statistics import check_filled
from mpsfunc.normalization.composed import Spec, check_parameters, checked_eps, filled, normalized


def bn_normalize(
    x: mx.array,
    state: BatchNormState,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    add: mx.array | None = None,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Normalizes images by a state's statistics, then scales and shifts them.

    ``y = act(gamma * (x - mean) / sqrt(var + eps) + beta + add)``. Differentiable with respect to x, the state's mean
    and var, gamma, beta and add; mean and var are independent inputs here (`batch_norm` differentiates through the
    statistics).

    `bn_stats_grad` and `bn_grad` have no ``add``: if there is one, pass them ``dz``, the gradient of the
    pre-activation, and no ``neuron``. With ``z`` from this function without an activation, ``dz`` is
    ``neuron_grad(dy, z, ...)``, and also the gradient of ``add``.

    Source: ``MPSCNNBatchNormalization``, which has no ``add``.

    Args:
        x: Images (n, h, w, c).
        state: Statistics from `bn_stats` or `bn_frozen`; a new one without statistics gives no usable result.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,). Default: zeros.
        add: Images of x's shape and dtype, such as the shortcut of a residual block, added in the same pass. A relu
            then has a slope of 0 at exactly 0, not 1. Default: none.
        neuron: The activation that follows in the same pass ("prelu" in a separate pass), ``y = act(z)`` with the z
            above: the name of one, such as "relu" or "gelu", with the defaults of `neuron`, or a `Neuron` with
            parameters. Default: none.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Images of x's shape and dtype.

    Raises:
        TypeError: An argument is not a floating array, state is not a BatchNormState, neuron is not an activation, or
            add has another dtype.
        ValueError: x is not NHWC, lengths differ, add has another shape, or neuron's name or parameters are not those
            of an activation.

    Example:
        >>> from mpsfunc import bn_stats
        >>> x = mx.array([1.0, 3.0, 2.0, 6.0]).reshape(2, 1, 2, 1)
        >>> y = bn_normalize(x, bn_stats(x, eps=1.0), mx.array([2.0]), mx.array([0.5]))
        >>> round(y[1, 0, 1, 0].item(), 6)
        3.328427
    """
    stream = launch.resolve(stream)
    checks.image("bn_normalize", "x", x, stream=stream)
    by, slopes, _ = _chosen("bn_normalize", stream, x, state, gamma, beta, neuron)
    if add is not None:
        checks.like_image("bn_normalize", "add", add, x, stream=stream)
    with mx.stream(stream):
        given = filled(x, gamma, beta)
        if add is None:
            y = batch_rules.bn_normalize_by(x, state.mean, state.var, *given, by)
        else:
            y = batch_rules.bn_normalize_add_by(x, add, (state.mean, state.var), given, by)
        return y if slopes is None else prelu_rules.prelu(y, slopes, stream)


def bn_stats_grad(
    dy: mx.array,
    x: mx.array,
    state: BatchNormState,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    neuron: NeuronName | Neuron | None = None,
    group: Group | None = None,
    stream: StreamLike = None,
) -> BatchNormState:
    """Gradients of the scale and the shift, added to those that the state holds.

    ``dbeta[c] += sum g`` and ``dgamma[c] += sum g * (x - mean) / sqrt(var + eps)``: sums, not means. Here g is dy or,
    with an activation, ``g = dy * act'(z)`` with the pre-activation ``z`` of `bn_normalize`, computed again from x; the
    slope of a relu at 0 is 1, as in MPS. The state's ``dmean`` and ``dvar`` are then the gradients of the statistics,
    ``-gamma * dbeta / sqrt(var + eps)`` and ``-gamma * dgamma / (2 * (var + eps))``. Call it for every part of the
    batch before `bn_grad`, with one gamma.

    Source: ``MPSCNNBatchNormalizationStatisticsGradient``.

    Args:
        dy: Gradient of the normalized images (n, h, w, c).
        x: The images that were normalized.
        state: Statistics of the whole batch.
        gamma: Scale (c,), which only an activation and the gradients of the statistics need. Default: ones.
        beta: Shift (c,), which only an activation needs. Default: zeros.
        neuron: As for `bn_normalize`.
        group: Processes that share the batch, as for `bn_stats`; the sums are then those of all their images.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        The state with these sums added to ``dgamma`` and ``dbeta``, and with gamma.

    Raises:
        TypeError: As for `bn_normalize`, dy and x differ in dtype, or group is not a group.
        ValueError: As for `bn_normalize`, dy and x differ in shape, or the state holds sums for another activation.

    Example:
        >>> from mpsfunc import bn_stats
        >>> x = mx.array([1.0, 3.0, 2.0, 6.0]).reshape(2, 1, 2, 1)
        >>> dy = mx.array([1.0, -2.0, 3.0, 2.0]).reshape(2, 1, 2, 1)
        >>> state = bn_stats_grad(dy, x, bn_stats(x, eps=1.0))
        >>> round(state.dgamma.item(), 6), state.dbeta.item()
        (0.471405, 4.0)
    """
    stream = launch.resolve(stream)
    checks.gradient("bn_stats_grad", dy, x, stream=stream)
    by, slopes, behind = _chosen("bn_stats_grad", stream, x, state, gamma, beta, neuron)
    if state.summed not in ("", UNKNOWN, behind):
        raise ValueError(
            f"bn_stats_grad: the state's sums are of another activation; got neuron={describe(behind)}, "
            f"expected {describe(state.summed)} as before, or the state that bn_reset returns"
        )
    processes = across_processes.others("bn_stats_grad", group)
    with mx.stream(stream):
        if slopes is not None:
            dy = _before_prelu(dy, x, state, gamma, beta, slopes, by)
        given = filled(x, gamma, beta) if by.act.kind else (state.mean, state.mean)
        statistics, held = (state.mean, state.var), (state.dgamma, state.dbeta)
        if processes is None:
            dgamma, dbeta = batch_rules.bn_stats_grad_by(dy, x, statistics, held, given, by)
        else:
            none = mx.zeros_like(state.mean)
            own = batch_rules.bn_stats_grad_by(dy, x, statistics, (none, none), given, by)
            of_all = across_processes.total(own, across_processes.Spec(processes, stream))
            dgamma, dbeta = (a.astype(b.dtype) + b for a, b in zip(held, of_all, strict=True))
        scale = mx.ones_like(state.mean) if gamma is None else gamma.astype(state.mean.dtype)
        known = UNKNOWN if state.summed == UNKNOWN else behind
        return state._replace(dgamma=dgamma, dbeta=dbeta, gamma=scale, summed=known)


def bn_grad(
    dy: mx.array,
    x: mx.array,
    state: BatchNormState,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    neuron: NeuronName | Neuron | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Gradient of batch normalization with respect to its images.

    ``dx = gamma / sqrt(var + eps) * (g - dbeta / M - xhat * dgamma / M)`` with ``xhat = (x - mean) / sqrt(var + eps)``,
    the g of `bn_stats_grad` and M the state's count; with frozen statistics ``dx = gamma / sqrt(var + eps) * g``. The
    state holds both sums, so the batch may come all at once or in parts.

    Source: ``MPSCNNBatchNormalizationGradient``.

    Args:
        dy: Gradient of the normalized images (n, h, w, c).
        x: The images that were normalized.
        state: What `bn_stats_grad` returned for the last part of the batch, or a frozen one; a new one without
            statistics gives no usable result.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,), which only an activation needs. Default: zeros.
        neuron: What `bn_stats_grad` was given.
        stream: Stream or device to run on. Default: the current one.

    Returns:
        Gradient of x's shape and dtype.

    Raises:
        TypeError: As for `bn_stats_grad`.
        ValueError: As for `bn_stats_grad`, the state is neither frozen nor has been through `bn_stats_grad`, or that
            was given another activation.

    Example:
        >>> from mpsfunc import bn_stats
        >>> x = mx.array([1.0, 3.0, 2.0, 6.0]).reshape(2, 1, 2, 1)
        >>> dy = mx.array([1.0, -2.0, 3.0, 2.0]).reshape(2, 1, 2, 1)
        >>> state = bn_stats_grad(dy, x, bn_stats(x, eps=1.0))
        >>> round(bn_grad(dy, x, state, mx.array([2.0]))[0, 0, 1, 0].item(), 6)
        -2.828427
    """
    stream = launch.resolve(stream)
    checks.gradient("bn_grad", dy, x, stream=stream)
    by, slopes, behind = _chosen("bn_grad", stream, x, state, gamma, beta, neuron)
    if not (state.summed or state.frozen):
        raise ValueError(
            "bn_grad: the state has no sums of gradients; got state.summed='', expected the state that bn_stats_grad "
            "returned for the last part of the batch"
        )
    if state.summed not in ("", UNKNOWN, behind):
        raise ValueError(
            f"bn_grad: the sums are of another activation; got neuron={describe(behind)}, "
            f"expected {describe(state.summed)}, which bn_stats_grad was given"
        )
    with mx.stream(stream):
        if slopes is not None:
            dy = _before_prelu(dy, x, state, gamma, beta, slopes, by)
        given, statistics = filled(x, gamma, beta), (state.mean, state.var)
        if not state.frozen:
            return batch_rules.bn_grad_by(dy, x, statistics, (state.dgamma, state.dbeta), given, state.count, by)
        none = mx.zeros_like(state.mean)
        if not by.act.kind:
            return batch_rules.bn_normalize_by(dy, none, state.var, given[0], none, by)
        return batch_rules.bn_grad_by(dy, x, statistics, (none, none), given, mx.array(1, mx.int64), by)


def batch_norm(
    x: mx.array,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    add: mx.array | None = None,
    neuron: NeuronName | Neuron | None = None,
    group: Group | None = None,
    stream: StreamLike = None,
) -> mx.array:
    """Normalizes images by their own statistics, then scales and shifts them; differentiable through the statistics.

    ``y = act(gamma * (x - mean) / sqrt(var + eps) + beta + add)`` with the mean and population variance of each channel
    of x. The VJP is `bn_stats_grad` and `bn_grad` in one: it reads x and dy twice.

    Args:
        x: Images (n, h, w, c) with n >= 1.
        gamma: Scale (c,). Default: ones.
        beta: Shift (c,). Default: zeros.
        eps: Added to the variance under the root. Default 1e-5.
        add: As for `bn_normalize`.
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
    return batch_norm_fwd(x, gamma, beta, eps=eps, add=add, neuron=neuron, group=group, stream=stream)[0]


def batch_norm_fwd(
    x: mx.array,
    gamma: mx.array | None = None,
    beta: mx.array | None = None,
    *,
    eps: float = 1e-5,
    add: mx.array | None = None,
    neuron: NeuronName | Neuron | None = None,
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
    return forward("batch_norm", x, gamma, beta, eps, add, neuron, group, launch.resolve(stream))


def forward(
    op: str,
    x: mx.array,
    gamma: mx.array | None,
    beta: mx.array | None,
    eps: float,
    add: mx.array | None,
    neuron: NeuronName | Neuron | None,
    group: Group | None,
    stream: mx.Stream,
) -> tuple[mx.array, BatchNormState]:
    """`batch_norm_fwd` for a function with another name in errors."""
    checks.image(op, "x", x, stream=stream)
    if add is not None:
        checks.like_image(op, "add", add, x, stream=stream)
    processes = across_processes.others(op, group)
    check_filled(op, x, processes, stream)
    check_parameters(op, stream, x, gamma, beta)
    act, slopes = fused.chosen(op, neuron, x.shape[3], stream, of=x.shape)
    spec = Spec(False, 0, checked_eps(op, eps), act if slopes is None else NO_ACTIVATION, processes, stream)
    y, mean, var, count = normalized(x, gamma, beta, spec, add)
    if slopes is not None:
        y = prelu_rules.prelu(y, slopes, stream)
    return y, zero_state(mean, var, count, spec.eps, stream)


# Checks and vectors -------------------------------------------------------------------------------------


def _chosen(
    op: str,
    stream: mx.Stream,
    x: mx.array,
    state: BatchNormState,
    gamma: mx.array | None,
    beta: mx.array | None,
    neuron: NeuronName | Neuron | None,
) -> tuple[NormSpec, mx.array | None, str]:
    """How to normalize, a prelu's slopes, and the activation in words, for checked images; checks all else."""
    check_owned(op, x, state, stream)
    check_parameters(op, stream, x, gamma, beta)
    act, slopes = how = fused.chosen(op, neuron, x.shape[3], stream, of=x.shape)
    by = NormSpec(state.eps, act if slopes is None else NO_ACTIVATION, stream)
    return by, slopes, fused.described(how)


def _before_prelu(
    dy: mx.array,
    x: mx.array,
    state: BatchNormState,
    gamma: mx.array | None,
    beta: mx.array | None,
    slopes: mx.array,
    by: NormSpec,
) -> mx.array:
    """The gradient of what a prelu was applied to, which is computed again."""
    z = batch_rules.bn_normalize_by(x, state.mean, state.var, *filled(x, gamma, beta), by)
    return prelu_rules.prelu_grad_input(dy, z, slopes, by.stream)
