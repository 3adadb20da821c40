"""Batch normalization by a state's vectors: each direction as one launch, whose meaning has the derivatives.

Images are (n, h, w, c) of one dtype, vectors (c,) of any. What each direction means is said by the operations of
`channels.rules` and `channels.vector_rules`, which have derivatives of every order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from mpsfunc.channels import launches, vector_rules
from mpsfunc.channels.activation_spec import Activation
from mpsfunc.channels.rules import ActivationSpec, bn_grad, bn_normalize, bn_stats_grad
from mpsfunc.core import launch
from mpsfunc.core.autodiff import with_decomposition
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.normalization.params import BnByStateParams

Vector = mx.array  # (c,)


class NormSpec(NamedTuple):
    """How a state normalizes.

    Fields:
        eps: Added to the variance under the root.
        act: The activation that follows.
        stream: Where everything runs.
    """

    eps: float
    act: Activation
    stream: mx.Stream


def bn_normalize_by(x: mx.array, mean: Vector, var: Vector, gamma: Vector, beta: Vector, by: NormSpec) -> mx.array:
    """``act(z)`` with ``z = gamma * (x - mean) / sqrt(var + eps) + beta``."""
    y: mx.array = _bn_normalize_by(x, mean, var, gamma, beta, by)
    return y


def bn_stats_grad_by(
    dy: mx.array,
    x: mx.array,
    statistics: tuple[Vector, Vector],
    gradients: tuple[Vector, Vector],
    given: tuple[Vector, Vector],
    by: NormSpec,
) -> tuple[Vector, Vector]:
    """The gradients of gamma and beta, grown by those of some images.

    Args:
        dy: Gradient of the normalized images.
        x: The images.
        statistics: Mean and variance.
        gradients: Those of gamma and beta so far.
        given: Gamma and beta, which only an activation needs.
        by: As it was.
    """
    dgamma, dbeta = _bn_stats_grad_by(dy, x, *statistics, *gradients, *(given if by.act.kind else ()), by)
    return dgamma, dbeta


def bn_grad_by(
    dy: mx.array,
    x: mx.array,
    statistics: tuple[Vector, Vector],
    gradients: tuple[Vector, Vector],
    given: tuple[Vector, Vector],
    count: mx.array,
    by: NormSpec,
) -> mx.array:
    """The gradient of the images, from what `bn_stats_grad_by` takes and a 0-d count of what the statistics cover."""
    gamma, beta = given
    behind = (beta,) if by.act.kind else ()
    dx: mx.array = _bn_grad_by(dy, x, *statistics, *gradients, gamma, count, *behind, by)
    return dx


# Launches -----------------------------------------------------------------------------------------------


def _named(x: mx.array, names: str, vectors: Sequence[Vector], by: NormSpec) -> dict[str, Vector]:
    """Vectors as a launch reads them, by those of the names for which there are some.

    A GPU's kernels cast for themselves. A count stays as it is, but Metal would be handed a number instead of an array.
    """
    dtype, on_cpu = launch.accumulator(x.dtype), launch.backend(by.stream) == "cpu"
    named = dict(zip(names.split(), vectors, strict=False))
    if on_cpu:
        return {name: v if name == "count" else v.astype(dtype) for name, v in named.items()}
    return named | {"count": named["count"][None]} if "count" in named else named


def _params(by: NormSpec) -> BnByStateParams:
    return BnByStateParams(by.eps, by.act)


def _run_bn_normalize_by(x: mx.array, *rest: Any) -> mx.array:
    *vectors, by = rest

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_normalize_by(x, by.act, by.eps)

    image, arrays = (tuple(x.shape), x.dtype), {"x": x, **_named(x, "mean var gamma beta", vectors, by)}
    return launch.launch("bn_normalize_by", arrays, _params(by), (image,), kernels, by.stream)[0]


def _run_bn_stats_grad_by(*args: Any) -> tuple[Vector, ...]:
    dy, x, *vectors, by = args
    if x.size == 0 and launch.backend(by.stream) != "cpu":  # where nothing runs for empty arrays
        return tuple(v.astype(launch.accumulator(x.dtype)) for v in vectors[2:4])

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_stats_grad_by(dy, by.act, by.eps)

    vector = (x.shape[3],), launch.accumulator(x.dtype)
    arrays = {"dy": dy, "x": x, **_named(x, "mean var dgamma dbeta gamma beta", vectors, by)}
    return tuple(launch.launch("bn_stats_grad_by", arrays, _params(by), (vector, vector), kernels, by.stream))


def _run_bn_grad_by(*args: Any) -> mx.array:
    dy, x, *vectors, by = args

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_grad_by(dy, by.act, by.eps)

    image = (tuple(x.shape), x.dtype)
    arrays = {"dy": dy, "x": x, **_named(x, "mean var dgamma dbeta gamma count beta", vectors, by)}
    return launch.launch("bn_grad_by", arrays, _params(by), (image,), kernels, by.stream)[0]


# Decompositions ----------------------------------------------------------------------------------------


def _rows(x: mx.array, vectors: Sequence[Vector]) -> list[mx.array]:
    """The one statistics group's vectors, as `channels.rules` takes them."""
    dtype = launch.accumulator(x.dtype)
    return [v.astype(dtype)[None] for v in vectors]


def _bn_normalize_by_decomposition(x: mx.array, *rest: Any) -> mx.array:
    *vectors, by = rest
    mean, var, gamma, beta = _rows(x, vectors)
    return bn_normalize(
        x, mean, vector_rules.slope(gamma, var, by.eps, by.stream), beta, ActivationSpec(by.act, by.stream)
    )


def _bn_stats_grad_by_decomposition(*args: Any) -> tuple[Vector, Vector]:
    dy, x, *vectors, by = args
    mean, var, dgamma, dbeta, *given = _rows(x, vectors)
    scale, shift = (vector_rules.slope(given[0], var, by.eps, by.stream), given[1]) if given else (mean, mean)
    total, dot = bn_stats_grad(dy, x, mean, scale, shift, ActivationSpec(by.act, by.stream))
    made = dgamma + dot * vector_rules.inverse_root(var, by.eps), dbeta + total
    return made[0].reshape(x.shape[3]), made[1].reshape(x.shape[3])


def _bn_grad_by_decomposition(*args: Any) -> mx.array:
    dy, x, *vectors, by = args
    count = vectors.pop(5)
    mean, var, dgamma, dbeta, gamma, *given = _rows(x, vectors)
    root = vector_rules.inverse_root(var, by.eps)
    share = gamma * root / count.astype(var.dtype)
    scale = gamma * root
    shift = given[0] if given else mean
    return bn_grad(
        dy, x, mean, scale, -share * (root * dgamma), -share * dbeta, scale, shift, ActivationSpec(by.act, by.stream)
    )


_bn_normalize_by: Any = with_decomposition("bn_normalize", _run_bn_normalize_by, _bn_normalize_by_decomposition)
_bn_stats_grad_by: Any = with_decomposition("bn_stats_grad", _run_bn_stats_grad_by, _bn_stats_grad_by_decomposition)
_bn_grad_by: Any = with_decomposition("bn_grad", _run_bn_grad_by, _bn_grad_by_decomposition)
