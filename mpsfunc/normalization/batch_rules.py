"""Batch normalization by a state's vectors: each direction as one launch, whose decomposition has the derivatives.

Images are (n, h, w, c) of one dtype, vectors (c,) of any. What each direction means is said by the operations of
`channels.rules` and `channels.vector_rules`, which have derivatives of every order.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.channels import launches, vector_rules
from mpsfunc.channels.activation_spec import Activation
from mpsfunc.channels.adding_rules import bn_normalize_add
from mpsfunc.channels.rules import (
    ActivationSpec,
    activated_bn_grad,
    activated_bn_stats_grad,
    bn_normalize,
    plain_bn_grad,
    plain_bn_stats_grad,
)
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import operation
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


# Normalization ------------------------------------------------------------------------------------------


@operation("bn_normalize")
def bn_normalize_by(x: mx.array, mean: Vector, var: Vector, gamma: Vector, beta: Vector, by: NormSpec) -> mx.array:
    """``act(z)`` with ``z = gamma * (x - mean) / sqrt(var + eps) + beta``."""

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_normalize_by(x, by.act, by.eps)

    image, vectors = (tuple(x.shape), x.dtype), {"mean": mean, "var": var, "gamma": gamma, "beta": beta}
    arrays = {"x": x, **_cast(x, vectors, by)}
    return launch.launch("bn_normalize_by", arrays, _params(by), (image,), kernels, by.stream)[0]


@bn_normalize_by.decomposition
def _bn_normalize_by_rows(
    x: mx.array, mean: Vector, var: Vector, gamma: Vector, beta: Vector, by: NormSpec
) -> mx.array:
    mean, var, gamma, beta = _rows(x, mean, var, gamma, beta)
    slope = vector_rules.slope(gamma, var, by.eps, by.stream)
    return bn_normalize(x, mean, slope, beta, ActivationSpec(by.act, by.stream))


def bn_normalize_add_by(
    x: mx.array,
    added: mx.array,
    statistics: tuple[Vector, Vector],
    given: tuple[Vector, Vector],
    by: NormSpec,
) -> mx.array:
    """`bn_normalize_by` with images added before the activation, from mean and variance, and gamma and beta."""
    mean, var, gamma, beta = _rows(x, *statistics, *given)
    slope = vector_rules.slope(gamma, var, by.eps, by.stream)
    return bn_normalize_add(x, added, mean, slope, beta, ActivationSpec(by.act, by.stream))


# Sums of gradients --------------------------------------------------------------------------------------


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
    if by.act.kind:
        return activated_bn_stats_grad_by(dy, x, *statistics, *gradients, *given, by)
    return plain_bn_stats_grad_by(dy, x, *statistics, *gradients, by)


@operation("bn_stats_grad")
def plain_bn_stats_grad_by(
    dy: mx.array, x: mx.array, mean: Vector, var: Vector, dgamma: Vector, dbeta: Vector, by: NormSpec
) -> tuple[Vector, Vector]:
    """`bn_stats_grad_by` without an activation."""
    return _launched_bn_stats_grad_by(dy, x, {"mean": mean, "var": var, "dgamma": dgamma, "dbeta": dbeta}, by)


@plain_bn_stats_grad_by.decomposition
def _plain_bn_stats_grad_by_rows(
    dy: mx.array, x: mx.array, mean: Vector, var: Vector, dgamma: Vector, dbeta: Vector, by: NormSpec
) -> tuple[Vector, Vector]:
    mean, var, dgamma, dbeta = _rows(x, mean, var, dgamma, dbeta)
    total, dot = plain_bn_stats_grad(dy, x, mean, ActivationSpec(by.act, by.stream))
    return _grown(dgamma, dbeta, total, dot, var, by)


@operation("bn_stats_grad")
def activated_bn_stats_grad_by(
    dy: mx.array,
    x: mx.array,
    mean: Vector,
    var: Vector,
    dgamma: Vector,
    dbeta: Vector,
    gamma: Vector,
    beta: Vector,
    by: NormSpec,
) -> tuple[Vector, Vector]:
    """`bn_stats_grad_by` with an activation."""
    vectors = {"mean": mean, "var": var, "dgamma": dgamma, "dbeta": dbeta, "gamma": gamma, "beta": beta}
    return _launched_bn_stats_grad_by(dy, x, vectors, by)


@activated_bn_stats_grad_by.decomposition
def _activated_bn_stats_grad_by_rows(
    dy: mx.array,
    x: mx.array,
    mean: Vector,
    var: Vector,
    dgamma: Vector,
    dbeta: Vector,
    gamma: Vector,
    beta: Vector,
    by: NormSpec,
) -> tuple[Vector, Vector]:
    mean, var, dgamma, dbeta, gamma, beta = _rows(x, mean, var, dgamma, dbeta, gamma, beta)
    slope = vector_rules.slope(gamma, var, by.eps, by.stream)
    total, dot = activated_bn_stats_grad(dy, x, mean, slope, beta, ActivationSpec(by.act, by.stream))
    return _grown(dgamma, dbeta, total, dot, var, by)


def _launched_bn_stats_grad_by(
    dy: mx.array, x: mx.array, vectors: dict[str, Vector], by: NormSpec
) -> tuple[Vector, Vector]:
    dtype = launch.accumulator(x.dtype)
    if x.size == 0 and launch.backend(by.stream) != "cpu":  # where nothing runs for empty arrays
        return vectors["dgamma"].astype(dtype), vectors["dbeta"].astype(dtype)

    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_stats_grad_by(dy, by.act, by.eps)

    vector, arrays = ((x.shape[3],), dtype), {"dy": dy, "x": x, **_cast(x, vectors, by)}
    grown = launch.launch("bn_stats_grad_by", arrays, _params(by), (vector, vector), kernels, by.stream)
    return grown[0], grown[1]


def _grown(
    dgamma: mx.array, dbeta: mx.array, total: mx.array, dot: mx.array, var: mx.array, by: NormSpec
) -> tuple[Vector, Vector]:
    """The gradients (c,) of gamma and beta, from rows of what they were and of both sums."""
    dgamma, dbeta = dgamma + dot * vector_rules.inverse_root(var, by.eps), dbeta + total
    return dgamma.reshape(dgamma.shape[1]), dbeta.reshape(dbeta.shape[1])


# The gradient of images ---------------------------------------------------------------------------------


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
    if by.act.kind:
        return activated_bn_grad_by(dy, x, *statistics, *gradients, gamma, count, beta, by)
    return plain_bn_grad_by(dy, x, *statistics, *gradients, gamma, count, by)


@operation("bn_grad")
def plain_bn_grad_by(
    dy: mx.array,
    x: mx.array,
    mean: Vector,
    var: Vector,
    dgamma: Vector,
    dbeta: Vector,
    gamma: Vector,
    count: mx.array,
    by: NormSpec,
) -> mx.array:
    """`bn_grad_by` without an activation."""
    vectors = {"mean": mean, "var": var, "dgamma": dgamma, "dbeta": dbeta, "gamma": gamma, "count": count}
    return _launched_bn_grad_by(dy, x, vectors, by)


@plain_bn_grad_by.decomposition
def _plain_bn_grad_by_rows(
    dy: mx.array,
    x: mx.array,
    mean: Vector,
    var: Vector,
    dgamma: Vector,
    dbeta: Vector,
    gamma: Vector,
    count: mx.array,
    by: NormSpec,
) -> mx.array:
    mean, var, dgamma, dbeta, gamma = _rows(x, mean, var, dgamma, dbeta, gamma)
    a, b, d = _coefficients(var, dgamma, dbeta, gamma, count, by)
    return plain_bn_grad(dy, x, mean, a, b, d, ActivationSpec(by.act, by.stream))


@operation("bn_grad")
def activated_bn_grad_by(
    dy: mx.array,
    x: mx.array,
    mean: Vector,
    var: Vector,
    dgamma: Vector,
    dbeta: Vector,
    gamma: Vector,
    count: mx.array,
    beta: Vector,
    by: NormSpec,
) -> mx.array:
    """`bn_grad_by` with an activation."""
    vectors = {"mean": mean, "var": var, "dgamma": dgamma, "dbeta": dbeta, "gamma": gamma, "count": count}
    return _launched_bn_grad_by(dy, x, {**vectors, "beta": beta}, by)


@activated_bn_grad_by.decomposition
def _activated_bn_grad_by_rows(
    dy: mx.array,
    x: mx.array,
    mean: Vector,
    var: Vector,
    dgamma: Vector,
    dbeta: Vector,
    gamma: Vector,
    count: mx.array,
    beta: Vector,
    by: NormSpec,
) -> mx.array:
    mean, var, dgamma, dbeta, gamma, beta = _rows(x, mean, var, dgamma, dbeta, gamma, beta)
    a, b, d = _coefficients(var, dgamma, dbeta, gamma, count, by)
    return activated_bn_grad(dy, x, mean, a, b, d, a, beta, ActivationSpec(by.act, by.stream))


def _launched_bn_grad_by(dy: mx.array, x: mx.array, vectors: dict[str, mx.array], by: NormSpec) -> mx.array:
    def kernels() -> tuple[KernelLaunch, ...]:
        return launches.bn_grad_by(dy, by.act, by.eps)

    image, arrays = (tuple(x.shape), x.dtype), {"dy": dy, "x": x, **_cast(x, vectors, by)}
    return launch.launch("bn_grad_by", arrays, _params(by), (image,), kernels, by.stream)[0]


def _coefficients(
    var: mx.array, dgamma: mx.array, dbeta: mx.array, gamma: mx.array, count: mx.array, by: NormSpec
) -> tuple[mx.array, mx.array, mx.array]:
    """Rows a, b and d of `channels.rules.bn_grad`, and a is the scale of its activation, too."""
    root = vector_rules.inverse_root(var, by.eps)
    a = gamma * root
    share = a / count.astype(var.dtype)
    return a, -share * (root * dgamma), -share * dbeta


# All ----------------------------------------------------------------------------------------------------


def _rows(x: mx.array, *vectors: Vector) -> list[mx.array]:
    """The one statistics group's vectors, as `channels.rules` takes them."""
    dtype = launch.accumulator(x.dtype)
    return [v.astype(dtype)[None] for v in vectors]


def _cast(x: mx.array, vectors: dict[str, mx.array], by: NormSpec) -> dict[str, mx.array]:
    """Vectors as a launch reads them: a GPU's kernels cast for themselves.

    A count stays as it is, but Metal would be handed a number instead of an array.
    """
    dtype = launch.accumulator(x.dtype)
    if launch.backend(by.stream) == "cpu":
        return {name: v if name == "count" else v.astype(dtype) for name, v in vectors.items()}
    return vectors | {"count": vectors["count"][None]} if "count" in vectors else vectors


def _params(by: NormSpec) -> BnByStateParams:
    return BnByStateParams(by.eps, by.act)
