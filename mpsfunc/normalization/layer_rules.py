"""Normalization of lines along their last axis, and the rules of its derivatives.

Lines are (groups, lines, length), scale and shift (groups, length): all arrays are batches, and a mapped axis
joins the first. The Jacobian of a normalized line is symmetric: the gradient by x of no scale is the tangent too.

On a GPU the forward direction is MLX's own ``layer_norm``, which goes through images once: there is no text of ours.
The others are made of MLX's operations: its own gradient of 70 channels is wrong there (mlx 0.32.4, an H100).
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from mpsfunc.channels import vector_rules
from mpsfunc.core import launch
from mpsfunc.core.launch import KernelLaunch
from mpsfunc.core.operation import Arrays, Gradients, Mapped, Tangents, operation, over_batches
from mpsfunc.normalization.params import LayerNormParams

Lines = mx.array  # (groups, lines, length)
Vectors = mx.array  # (groups, length)


class Spec(NamedTuple):
    """What is added to the variance, and where everything runs."""

    eps: float
    stream: mx.Stream


# Forward ------------------------------------------------------------------------------------------------


@operation("layer_norm")
def layer_norm(x: Lines, gamma: Vectors, beta: Vectors, spec: Spec) -> Lines:
    """``gamma * (x - mean) / sqrt(var + eps) + beta`` with the moments of each line."""
    if launch.backend(spec.stream) != "cpu":
        return _by_mlx(x, gamma, beta, spec)
    arrays = {"x": x, "gamma": _wide(gamma, x), "beta": _wide(beta, x)}
    return _launched("layer_norm", arrays, (_like(x),), spec)[0]


@layer_norm.vjp
def _layer_norm_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    x, gamma, _ = arrays
    return layer_norm_grad(cotangents[0], x, gamma, spec)


@layer_norm.jvp
def _layer_norm_jvp(arrays: Arrays, tangents: Tangents, spec: Spec) -> Lines:
    (x, gamma, _), (t, of_gamma, of_beta) = arrays, tangents
    moved = []
    if t is not None:
        pushed = layer_norm_grad(t, x, mx.ones_like(gamma), spec)[0]
        moved.append((pushed * gamma[:, None]).astype(x.dtype))
    if of_gamma is not None or of_beta is not None:
        by_scale, by_shift = (mx.zeros_like(gamma) if v is None else v for v in (of_gamma, of_beta))
        moved.append(layer_norm(x, by_scale, by_shift, spec))
    return sum(moved[1:], moved[0])


@layer_norm.vmap
def _layer_norm_vmap(arrays: Arrays, mapped: Mapped, size: int, spec: Spec) -> Lines:
    x, gamma, beta = arrays
    if mapped == (True, False, False) and gamma.shape[0] == 1:  # more lines of one scale
        return layer_norm(x.reshape(1, -1, x.shape[-1]), gamma, beta, spec).reshape(x.shape)
    made: Lines = over_batches(layer_norm)(arrays, mapped, size, spec)
    return made


# Backward -----------------------------------------------------------------------------------------------


@operation("layer_norm_grad")
def layer_norm_grad(dy: Lines, x: Lines, gamma: Vectors, spec: Spec) -> tuple[Lines, Vectors, Vectors]:
    """The gradients of x, scale and shift; vectors are of the accumulator's dtype."""
    if launch.backend(spec.stream) != "cpu":
        if not x.size:
            none = mx.zeros(gamma.shape, launch.accumulator(x.dtype))
            return mx.zeros_like(x), none, none
        return _layer_norm_grad_by_formula(dy, x, gamma, spec)
    arrays = {"dy": dy, "x": x, "gamma": _wide(gamma, x)}
    dx, dgamma, dbeta = _launched("layer_norm_grad", arrays, (_like(x), _vector(x), _vector(x)), spec)
    return dx, dgamma, dbeta


@layer_norm_grad.decomposition
def _layer_norm_grad_by_formula(dy: Lines, x: Lines, gamma: Vectors, spec: Spec) -> tuple[Lines, Vectors, Vectors]:
    normalized, root = _normalized(x, spec)
    wide = _wide(dy, x)
    dx = _pulled(wide * _wide(gamma, x)[:, None], normalized) * root
    return dx.astype(x.dtype), (wide * normalized).sum(1), wide.sum(1)


@layer_norm_grad.vjp
def _layer_norm_grad_vjp(arrays: Arrays, cotangents: Arrays, outputs: Arrays, spec: Spec) -> Gradients:
    (dy, x, gamma), (u, v, w) = arrays, cotangents
    return layer_norm_grad_grad(dy, x, gamma, u, v, w, spec)


layer_norm_grad.vmap(over_batches(layer_norm_grad))


@operation("layer_norm_grad_grad")
def layer_norm_grad_grad(
    dy: Lines, x: Lines, gamma: Vectors, u: Lines, v: Vectors, w: Vectors, spec: Spec
) -> tuple[Lines, Lines, Vectors]:
    """The gradients of `layer_norm_grad`, times u, v and w and added up, by dy, x and the scale."""
    if launch.backend(spec.stream) != "cpu":
        if not x.size:
            return mx.zeros_like(dy), mx.zeros_like(x), mx.zeros(gamma.shape, launch.accumulator(x.dtype))
        return _grad_grad_by_formula(dy, x, gamma, u, v, w, spec)
    arrays = {"dy": dy, "x": x, "gamma": _wide(gamma, x), "u": u, "v": _wide(v, x), "w": _wide(w, x)}
    by_dy, by_x, by_gamma = _launched("layer_norm_grad_grad", arrays, (_like(x), _like(x), _vector(x)), spec)
    return by_dy, by_x, by_gamma


@layer_norm_grad_grad.decomposition
def _grad_grad_by_formula(
    dy: Lines, x: Lines, gamma: Vectors, u: Lines, v: Vectors, w: Vectors, spec: Spec
) -> tuple[Lines, Lines, Vectors]:
    normalized, root = _normalized(x, spec)
    from_dy, of_u = _wide(dy, x), _wide(u, x)
    scale, of_v, of_w = (_wide(a, x)[:, None] for a in (gamma, v, w))
    g = from_dy * scale
    # What dx is made of, before it is divided by the deviation, for u, for dy times the scale and for dy times v.
    with_u, with_g, with_v = (_pulled(a, normalized) for a in (of_u, g, from_dy * of_v))
    of_root = normalized * _mean(of_u * with_g)
    of_root = of_root + with_u * _mean(g * normalized) + with_g * _mean(of_u * normalized)
    by_dy = scale * (with_u * root) + of_v * normalized + of_w
    by_x = (with_v - of_root * root) * root
    return by_dy.astype(x.dtype), by_x.astype(x.dtype), (from_dy * (with_u * root)).sum(1)


layer_norm_grad_grad.vmap(over_batches(layer_norm_grad_grad))


# By MLX -------------------------------------------------------------------------------------------------


def _by_mlx(x: Lines, gamma: Vectors, beta: Vectors, spec: Spec) -> Lines:
    """In float32, since MLX rounds scale and shift to the dtype of the lines."""
    if not x.size:  # MLX's operations on nothing end the process on some GPUs
        return mx.zeros_like(x)
    wide, scale, shift = (_wide(a, x) for a in (x, gamma, beta))
    if x.shape[0] == 1:
        return mx.fast.layer_norm(wide, scale[0], shift[0], spec.eps).astype(x.dtype)
    normalized = mx.fast.layer_norm(wide, None, None, spec.eps)
    return (normalized * scale[:, None] + shift[:, None]).astype(x.dtype)


# All ----------------------------------------------------------------------------------------------------


def _normalized(x: Lines, spec: Spec) -> tuple[mx.array, mx.array]:
    """The lines without scale and shift, and one over the deviation of each, in the accumulator's dtype."""
    wide = _wide(x, x)
    centred = wide - mx.stop_gradient(wide[..., :1])  # which moves nothing, and keeps the digits of a mean far from 0
    centred = centred - _mean(centred)
    root = vector_rules.inverse_root(_mean(centred * centred), spec.eps)
    return centred * root, root


def _pulled(g: mx.array, normalized: mx.array) -> mx.array:
    return g - _mean(g) - normalized * _mean(g * normalized)


def _mean(terms: mx.array) -> mx.array:
    return terms.mean(-1, keepdims=True)


def _wide(a: mx.array, x: Lines) -> mx.array:
    return a.astype(launch.accumulator(x.dtype))


def _like(x: Lines) -> launch.Output:
    return tuple(x.shape), x.dtype


def _vector(x: Lines) -> launch.Output:
    return (x.shape[0], x.shape[2]), launch.accumulator(x.dtype)


def _launched(op: str, arrays: dict[str, mx.array], outputs: tuple[launch.Output, ...], spec: Spec) -> list[mx.array]:
    return launch.launch(op, arrays, LayerNormParams(spec.eps), outputs, _no_kernels, spec.stream)


def _no_kernels() -> tuple[KernelLaunch, ...]:
    raise AssertionError("MLX has these kernels")
