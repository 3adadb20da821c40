"""Normalization by statistics of the images themselves, with the derivative through them as one rule.

Batch, instance and group norm differ in which elements share statistics, and in nothing else. Each direction is said
by the operations of `channels.rules` and `channels.vector_rules`, which have derivatives of every order. Where no other
process has a say between them, the CPU does it at once, and a GPU by three kernels if there are no groups either.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.channels import accumulation, launches, rules, vector_rules
from mpsfunc.channels.activation_spec import NO_ACTIVATION, Activation
from mpsfunc.channels.adding_rules import activated_sum, before_activation, bn_normalize_add
from mpsfunc.channels.rules import (
    ActivationSpec,
    ChannelVectors,
    StatGroups,
    bn_grad,
    bn_normalize,
    bn_stats,
    bn_stats_grad,
)
from mpsfunc.core import checks, launch, lazy
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, operation
from mpsfunc.normalization import across_processes, batch_by_nccl, nccl_messages
from mpsfunc.normalization.across_processes import Group
from mpsfunc.normalization.batch_rules import NormSpec
from mpsfunc.normalization.params import BatchNormParams


class Spec(NamedTuple):
    """What shares statistics, and what follows.

    Fields:
        per_image: Each image has statistics of its own; else all images share them.
        groups: Groups of neighbouring channels that share statistics; 0 where each channel has its own.
        eps: Added to the variance under the root.
        act: The activation that follows.
        processes: Those that share the statistics too, or None.
        stream: Where everything runs.
    """

    per_image: bool
    groups: int
    eps: float
    act: Activation
    processes: Group | None
    stream: mx.Stream


def normalized(
    x: mx.array, gamma: mx.array | None, beta: mx.array | None, spec: Spec, add: mx.array | None = None
) -> tuple[mx.array, ChannelVectors, ChannelVectors, mx.array]:
    """The images, and for each channel mean, variance and count of what it shares statistics with.

    Vectors are (c,) where all images share statistics, and (n, c) where each has its own. Images ``add`` are added
    before the activation, where all images share statistics.
    """
    with mx.stream(spec.stream):
        given = filled(x, gamma, beta)
        made = batch_norm(x, *given, spec) if add is None else batch_norm_add(x, add, *given, spec)
        y, mean, var, count = made
        if spec.processes is None:  # a constant also where a transformation follows what the operation returns
            count = mx.array(_elements(x, spec.per_image, spec.groups), mx.int64)
        return y, mean, var, count


def gradients(
    dy: mx.array, x: mx.array, mean: ChannelVectors, var: ChannelVectors, given: tuple[mx.array, mx.array], spec: Spec
) -> tuple[mx.array, ChannelVectors, ChannelVectors]:
    """The gradients of the images, and of scale and shift by image.

    Args:
        dy: Gradient of the normalized images.
        x: The images.
        mean: As `normalized` returned it, for each channel, or for each group (n, groups).
        var: Likewise.
        given: Scale and shift (c,).
        spec: As it was; without processes.
    """
    none = _no_gradient(mean, spec)
    return batch_norm_grad(dy, x, *given, mean, var, none, none, none, spec)


def normalized_by(
    x: mx.array, mean: ChannelVectors, var: ChannelVectors, given: tuple[mx.array, mx.array], spec: Spec
) -> mx.array:
    """The images by statistics that are known, of each image; arguments are those of `gradients`."""
    mean, var = (_by_channel(v, x.shape[3]) for v in (mean, var))
    gamma, beta = (_rows(v, mean) for v in given)
    slope = vector_rules.slope(gamma, var, spec.eps, spec.stream)
    return bn_normalize(x, mean, slope, beta, ActivationSpec(spec.act, spec.stream))


def parameters(x: mx.array, gamma: mx.array | None, beta: mx.array | None) -> tuple[mx.array, mx.array]:
    """Scale and shift (c,) in the accumulator's dtype; ones and zeros where they are absent."""
    dtype, channels = launch.accumulator(x.dtype), x.shape[3]
    scale = accumulation.constant(1.0, channels, dtype) if gamma is None else gamma.astype(dtype)
    shift = accumulation.constant(0.0, channels, dtype) if beta is None else beta.astype(dtype)
    return scale, shift


def filled(x: mx.array, gamma: mx.array | None, beta: mx.array | None) -> tuple[mx.array, mx.array]:
    """Scale and shift (c,): as they are where both are given, since launches cast for themselves, else `parameters`."""
    return parameters(x, gamma, beta) if gamma is None or beta is None else (gamma, beta)


def check_parameters(op: str, stream: mx.Stream, x: mx.array, gamma: mx.array | None, beta: mx.array | None) -> None:
    """Floating vectors with one entry per channel, or None."""
    for name, vector in (("gamma", gamma), ("beta", beta)):
        if vector is not None:
            checks.array(op, name, vector, stream=stream)
            checks.shape(op, name, vector, (x.shape[3],), f"{name} does not fit the channels", of=x.shape)


def checked_eps(op: str, eps: float) -> float:
    """An eps that float32 has, >= 0, as a float."""
    return checks.number(op, "eps", eps, least=0)


def check_statistics(op: str, state: Any, said: str = "state") -> None:
    """Floating arrays, but for a count, and an eps, in a state of a normalization; ``said`` is the argument."""
    for name in ("mean", "var", "dgamma", "dbeta"):
        checks.array(op, f"{said}.{name}", getattr(state, name))
    checks.number(op, f"{said}.eps", state.eps, least=0)


# Statistics ---------------------------------------------------------------------------------------------


def statistics(
    x: mx.array, per_image: bool, groups: int, processes: Group | None, stream: mx.Stream
) -> tuple[ChannelVectors, ChannelVectors, mx.array]:
    """Mean, variance and count of what shares them, for each channel; the fields are those of `Spec`."""
    mean, var = bn_stats(x, StatGroups(x.shape[0] if per_image else 1, stream))
    if groups:
        mean, var = vector_rules.group_moments(mean, var, float(groups), stream)
    count = mx.array(_elements(x, per_image, groups), mx.int64)
    if processes is None:
        return mean, var, count
    return across_processes.merged(mean, var, count, across_processes.Spec(processes, stream))


def statistics_of_all(x: mx.array, processes: Group | None, stream: mx.Stream) -> tuple[mx.array, mx.array, mx.array]:
    """Mean (c,), variance (c,) and count of all images together."""
    if processes is None:
        return *rules.bn_stats_of_all(x, StatGroups(1, stream)), mx.array(_elements(x, False, 0), mx.int64)
    mean, var, count = statistics(x, False, 0, processes, stream)
    with mx.stream(stream):
        mean, var = rules.of_the_group((mean, var))
    return mean, var, count


# Forward ------------------------------------------------------------------------------------------------


@operation("batch_norm")
def batch_norm(
    x: mx.array, gamma: mx.array, beta: mx.array, spec: Spec
) -> tuple[mx.array, ChannelVectors, ChannelVectors, mx.array]:
    """`normalized`, by scale and shift (c,) that are there."""
    if (group := _over_nccl(x, spec)) is not None:
        return batch_by_nccl.normalized(x, None, (gamma, beta), group, _norm(spec))
    if not _at_once(x, spec):
        return _batch_norm_in_parts(x, gamma, beta, spec)
    outputs = _, vector, _ = _outputs(x, spec)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.batch_norm(x, vector, spec.act, spec.eps)

    gamma, beta = _cast(x, gamma, beta, spec)
    arrays, returns = {"x": x, "gamma": gamma, "beta": beta}, ("y", "mean", "var")
    params = _params(x, spec)
    y, mean, var = launch.launch("batch_norm", arrays, params, outputs, kernels, spec.stream, returns=returns)
    return y, mean, var, mx.array(_elements(x, spec.per_image, spec.groups), mx.int64)


@batch_norm.decomposition
def _batch_norm_in_parts(
    x: mx.array, gamma: mx.array, beta: mx.array, spec: Spec
) -> tuple[mx.array, ChannelVectors, ChannelVectors, mx.array]:
    nothing = _of_nothing(x, spec)
    if nothing is not None:
        return *nothing, mx.array(_elements(x, spec.per_image, spec.groups), mx.int64)
    gamma, beta = parameters(x, gamma, beta)
    mean, var, count = statistics(x, spec.per_image, spec.groups, spec.processes, spec.stream)
    slope = vector_rules.slope(_rows(gamma, mean), var, spec.eps, spec.stream)
    y = bn_normalize(x, mean, slope, _rows(beta, mean), ActivationSpec(spec.act, spec.stream))
    return y, *_shared(mean, var, spec), count


@batch_norm.vjp
def _batch_norm_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (x, gamma, beta), (dy, dmean, dvar, _), (_, mean, var, count) = arrays, cotangents, outputs
    short = launch.backend(spec.stream) == "cpu" or _over_nccl(x, spec) is not None
    if short and lazy.is_lazy_zeros(dmean) and lazy.is_lazy_zeros(dvar):
        dmean = dvar = _no_gradient(mean, spec)
    dx, *of_vectors = batch_norm_grad(dy, x, gamma, beta, mean, var, dmean, dvar, count, spec)
    return dx, *(v.sum(0) if spec.per_image else v for v in of_vectors)


@operation("batch_norm_add")
def batch_norm_add(
    x: mx.array, added: mx.array, gamma: mx.array, beta: mx.array, spec: Spec
) -> tuple[mx.array, ChannelVectors, ChannelVectors, mx.array]:
    """`batch_norm` with images added before the activation; all images share statistics."""
    if (group := _over_nccl(x, spec)) is not None:
        return batch_by_nccl.normalized(x, added, (gamma, beta), group, _norm(spec))
    if not _at_once(x, spec):
        return _batch_norm_add_in_parts(x, added, gamma, beta, spec)
    outputs = _, vector, _ = _outputs(x, spec)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.batch_norm(x, vector, spec.act, spec.eps, adds=True)

    gamma, beta = _cast(x, gamma, beta, spec)
    arrays, returns = {"x": x, "added": added, "gamma": gamma, "beta": beta}, ("y", "mean", "var")
    params = _params(x, spec)
    y, mean, var = launch.launch("batch_norm_add", arrays, params, outputs, kernels, spec.stream, returns=returns)
    return y, mean, var, mx.array(_elements(x, False, 0), mx.int64)


def _batch_norm_add_in_parts(
    x: mx.array, added: mx.array, gamma: mx.array, beta: mx.array, spec: Spec
) -> tuple[mx.array, ChannelVectors, ChannelVectors, mx.array]:
    nothing = _of_nothing(x, spec)
    if nothing is not None:
        return *nothing, mx.array(_elements(x, False, 0), mx.int64)
    mean, var, count = statistics(x, False, 0, spec.processes, spec.stream)
    y = _sum(x, added, (mean, var), (gamma, beta), spec)
    return y, *_shared(mean, var, spec), count


@batch_norm_add.decomposition
def _batch_norm_and_add(
    x: mx.array, added: mx.array, gamma: mx.array, beta: mx.array, spec: Spec
) -> tuple[mx.array, ChannelVectors, ChannelVectors, mx.array]:
    z, mean, var, count = batch_norm(x, gamma, beta, spec._replace(act=NO_ACTIVATION))
    return activated_sum(z + added, ActivationSpec(spec.act, spec.stream)), mean, var, count


@batch_norm_add.vjp
def _batch_norm_add_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (x, added, gamma, beta), (dy, *others), (y, mean, var, count) = arrays, cotangents, outputs

    def sum_again() -> mx.array:
        return _sum(x, added, (mean[None], var[None]), (gamma, beta), spec._replace(act=NO_ACTIVATION))

    dz = before_activation(dy, y, sum_again, ActivationSpec(spec.act, spec.stream))
    plain, known = spec._replace(act=NO_ACTIVATION), (y, mean, var, count)
    dx, dgamma, dbeta = _batch_norm_vjp((x, gamma, beta), (dz, *others), known, plain)
    return dx, dz, dgamma, dbeta


def _sum(
    x: mx.array,
    added: mx.array,
    statistics: tuple[ChannelVectors, ChannelVectors],
    given: tuple[mx.array, mx.array],
    spec: Spec,
) -> mx.array:
    """`batch_norm_add` by statistics (1, c) that are known, and scale and shift."""
    mean, var = statistics
    gamma, beta = (_rows(v, mean) for v in parameters(x, *given))
    slope = vector_rules.slope(gamma, var, spec.eps, spec.stream)
    return bn_normalize_add(x, added, mean, slope, beta, ActivationSpec(spec.act, spec.stream))


# Backward -----------------------------------------------------------------------------------------------


@operation("batch_norm_grad")
def batch_norm_grad(
    dy: mx.array,
    x: mx.array,
    gamma: mx.array,
    beta: mx.array,
    mean: ChannelVectors,
    var: ChannelVectors,
    dmean: ChannelVectors,
    dvar: ChannelVectors,
    count: mx.array,
    spec: Spec,
) -> tuple[mx.array, ChannelVectors, ChannelVectors]:
    """The gradients of images, scale and shift.

    From dy, x, scale, shift, mean, variance, the gradients that others have of those two, and the count.
    """
    if (group := _over_nccl(x, spec)) is not None and dmean.shape != mean.shape:
        return batch_by_nccl.gradients(dy, x, (gamma, beta), (mean, var), count, group, _norm(spec))
    if not _at_once(x, spec):
        return _batch_norm_grad_in_parts(dy, x, gamma, beta, mean, var, dmean, dvar, count, spec)
    outputs = _, vector, _ = _outputs(x, spec)

    def kernels() -> tuple[KernelLaunch, ...]:
        elements = float(_elements(x, spec.per_image, 0))
        return launches.batch_norm_grad(dy, vector, spec.act, elements, spec.eps)

    gamma, beta = _cast(x, gamma, beta, spec)
    images, statistics = {"dy": dy, "x": x, "gamma": gamma, "beta": beta}, {"mean": mean, "var": var}
    arrays, returns = {**images, **statistics, "dmean": dmean, "dvar": dvar}, ("dx", "dgamma", "dbeta")
    params = _params(x, spec)
    made = launch.launch("batch_norm_grad", arrays, params, outputs, kernels, spec.stream, returns=returns)
    return made[0], made[1], made[2]


@batch_norm_grad.decomposition
def _batch_norm_grad_in_parts(
    dy: mx.array,
    x: mx.array,
    gamma: mx.array,
    beta: mx.array,
    mean: ChannelVectors,
    var: ChannelVectors,
    dmean: ChannelVectors,
    dvar: ChannelVectors,
    count: mx.array,
    spec: Spec,
) -> tuple[mx.array, ChannelVectors, ChannelVectors]:
    nothing = _of_nothing(x, spec)
    if nothing is not None:
        return nothing
    if not spec.per_image:
        mean, var, dmean, dvar = (v[None] for v in (mean, var, dmean, dvar))
    dmean, dvar = (v if v.shape == mean.shape else mx.zeros_like(mean) for v in (dmean, dvar))
    mean, var, dmean, dvar = (_by_channel(v, x.shape[3]) for v in (mean, var, dmean, dvar))
    gamma, beta = (_rows(v, mean) for v in parameters(x, gamma, beta))
    on = ActivationSpec(spec.act, spec.stream)
    slope = vector_rules.slope(gamma, var, spec.eps, spec.stream) if spec.act.kind else gamma  # else nobody reads it
    dbeta, dot = total, whole_dot = bn_stats_grad(dy, x, mean, slope, beta, on)
    elements = float(_elements(x, spec.per_image, spec.groups))
    if spec.processes is not None:  # an image gets its share of what all processes' losses want
        whole, of = mx.maximum(count, 1).astype(mean.dtype), across_processes.Spec(spec.processes, spec.stream)
        sums = across_processes.total((dmean, dvar, dbeta, dot), of)
        dmean, dvar, total, whole_dot = (v / whole for v in sums)
        elements = 1.0
    factors = vector_rules.composed_factors(gamma, var, dmean, dvar, total, whole_dot, elements, spec.eps, spec.stream)
    dgamma, a, b, d = factors
    if spec.groups:
        b, d = vector_rules.group_sums(b, d, float(spec.groups), spec.stream)
    if spec.processes is not None:  # the parameters' gradients are of this process's loss
        dgamma = dot * vector_rules.inverse_root(var, spec.eps)
    return bn_grad(dy, x, mean, a, b, d, slope, beta, on), *_shared(dgamma, dbeta, spec)


# Both ---------------------------------------------------------------------------------------------------


def _over_nccl(x: mx.array, spec: Spec) -> Group | None:
    """The processes, where their statistics go through NCCL."""
    return spec.processes if spec.processes and x.size and nccl_messages.are_sent(spec.stream) else None


def _norm(spec: Spec) -> NormSpec:
    return NormSpec(spec.eps, spec.act, spec.stream)


def _at_once(x: mx.array, spec: Spec) -> bool:
    """Whether a direction is one launch: a primitive, or three kernels."""
    if spec.processes is not None:
        return False
    return launch.backend(spec.stream) == "cpu" or not (spec.groups or x.size == 0)


def _params(x: mx.array, spec: Spec) -> BatchNormParams:
    return BatchNormParams(spec.groups, spec.eps, float(_elements(x, spec.per_image, spec.groups)), spec.act)


def _of_nothing(x: mx.array, spec: Spec) -> tuple[mx.array, ChannelVectors, ChannelVectors] | None:
    """The results of no images on a GPU, zeros: MLX's operations on empty vectors end the process there."""
    if x.size or launch.backend(spec.stream) == "cpu":
        return None
    if spec.processes is not None:
        across_processes.refuse_nothing(x)
    images, first, second = (mx.zeros(shape, dtype) for shape, dtype in _outputs(x, spec))
    return images, first, second


def _elements(x: mx.array, per_image: bool, groups: int) -> int:
    n, h, w, channels = x.shape
    return int((1 if per_image else n) * h * w * (channels // groups if groups else 1))


def _by_channel(rows: ChannelVectors, channels: int) -> ChannelVectors:
    """Rows with an entry per channel, of such or of rows with one per group."""
    return rows if rows.shape[1] == channels else mx.repeat(rows, channels // rows.shape[1], axis=1)


def _no_gradient(mean: ChannelVectors, spec: Spec) -> mx.array:
    """Zeros in place of the gradients that others have of the statistics; of another shape where nobody reads them."""
    if launch.backend(spec.stream) == "cpu":
        return accumulation.constant(0.0, 0, mean.dtype)
    if spec.processes is not None:
        return accumulation.constant(0.0, 1, mean.dtype)
    return mx.zeros_like(mean)


def _rows(vector: mx.array, like: ChannelVectors) -> ChannelVectors:
    return mx.broadcast_to(vector[None], (like.shape[0], vector.shape[0]))


def _shared(first: ChannelVectors, second: ChannelVectors, spec: Spec) -> tuple[ChannelVectors, ChannelVectors]:
    """The only row of each where all images share it."""
    return (first, second) if spec.per_image else rules.of_the_group((first, second))


def _outputs(x: mx.array, spec: Spec) -> tuple[launch.Output, ...]:
    """Images, and two vectors."""
    _, _, _, channels = x.shape
    vector = ((x.shape[0], channels) if spec.per_image else (channels,), launch.accumulator(x.dtype))
    return (tuple(x.shape), x.dtype), vector, vector


def _cast(x: mx.array, gamma: mx.array, beta: mx.array, spec: Spec) -> tuple[mx.array, mx.array]:
    """Scale and shift as the launch reads them: a GPU's kernels cast for themselves."""
    return parameters(x, gamma, beta) if launch.backend(spec.stream) == "cpu" else (gamma, beta)
