"""The definitions that compute all at once, beside loops that ask every tap, element and shift by itself."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import mpsfunc as mf
from mpsfunc.windows.axis import EVEN, Axis
from mpsfunc.windows.placement import place
from support import geometries
from support.oracle import convolution, elementwise, normalization, pooling
from support.oracle.windows import taps, weighted

Array = np.ndarray
GEOMETRIES = geometries(mf.PaddingPolicy)
EDGES = ("zero", "clamp", "exclude")


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


# Convolution ---------------------------------------------------------------------------------------------


def conv(x: Array, w: Array, rows: Axis, cols: Axis, groups: int) -> Array:
    x, w = x.reshape(*x.shape[:3], groups, -1), w.reshape(groups, -1, *w.shape[1:])
    y = np.einsum("jqh,ipw,nhwgc,goqpc->njigo", weighted(rows), weighted(cols), x, w, optimize=True)
    return y.reshape(*y.shape[:3], -1)


@pytest.mark.parametrize("groups", (1, 2, 6))
@pytest.mark.parametrize("edge_mode", EDGES[:2])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolution(name: str, edge_mode: str, groups: int) -> None:
    """Over windows as dense arrays. It is linear in x and in w, so its gradients are what dy has in common with it."""
    image, kernel, placement = GEOMETRIES[name]
    rows, cols = place("conv", image, kernel, edge_modes=EDGES[:2], edge_mode=edge_mode, **placement)
    rows = rows._replace(begin=min(1, rows.n_out - 1))  # and one that is not selected
    where = rows, cols, groups
    x, w, b = numbers(2, *image, 6), numbers(12, *kernel, 6 // groups, seed=1), numbers(12, seed=2)
    dy = numbers(2, rows.n_out, cols.n_out, 12, seed=3)
    np.testing.assert_allclose(convolution.conv(x, w, b, *where), conv(x, w, *where) + b, atol=1e-12)
    dx, dw = convolution.conv_grad_input(dy, w, *where), convolution.conv_grad_weights(dy, x, *where)
    assert dx.shape == x.shape and dw.shape == w.shape
    for seed in range(3):
        moved, other = numbers(*x.shape, seed=10 + seed), numbers(*w.shape, seed=20 + seed)
        np.testing.assert_allclose((dx * moved).sum(), (dy * conv(moved, w, *where)).sum(), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose((dw * other).sum(), (dy * conv(x, other, *where)).sum(), rtol=1e-10, atol=1e-10)


# Pooling -------------------------------------------------------------------------------------------------


def max_pool(x: Array, rows: Axis, cols: Axis) -> tuple[Array, Array]:
    """Output by output, tap by tap."""
    n, h, w, c = x.shape
    best = np.zeros((n, rows.n_out, cols.n_out, c), x.dtype)
    at = np.full(best.shape, -1)
    for image, j, i, channel in np.ndindex(best.shape):
        found: Any = None
        outside = False
        for row, col in itertools.product(taps(rows, j), taps(cols, i)):
            if rows.edge == 1:
                row, col = min(max(row, 0), h - 1), min(max(col, 0), w - 1)
            if not (0 <= row < h and 0 <= col < w):
                outside = True
                continue
            value = x[image, row, col, channel]
            if found is None or (found == found and (value > found or value != value)):
                found, at[image, j, i, channel] = value, row * w + col
        if rows.edge == 0 and outside and (found is None or found < 0):
            found, at[image, j, i, channel] = 0, -1
        best[image, j, i, channel] = 0 if found is None else found
    return best, at


@pytest.mark.parametrize("kind", ("numbers", "ties", "not finite", "integers"))
@pytest.mark.parametrize("edge_mode", (*EDGES, "even"))
@pytest.mark.parametrize("name", GEOMETRIES)
def test_max_pool(name: str, edge_mode: str, kind: str) -> None:
    image, kernel, placement = GEOMETRIES[name]
    if edge_mode == "even":
        rows, cols = (Axis(n, out, 0, 1, 1, 0, EVEN, 0, 0, out, 0) for n, out in zip(image, (3, 4), strict=True))
    else:
        rows, cols = place("conv", image, kernel, edge_modes=EDGES[:2], **placement)
        rows, cols = (axis._replace(edge=EDGES.index(edge_mode)) for axis in (rows, cols))
    x = numbers(2, *image, 2)
    x = {"ties": np.round(x), "integers": (10 * x).astype(np.int8)}.get(kind, x)
    if kind == "not finite":
        x = np.where(x > 1, np.nan, np.where(x < -1, -np.inf, x))
    (y, at), (right, winners) = pooling.max_pool(x, rows, cols), max_pool(x, rows, cols)
    np.testing.assert_array_equal(y, right)
    np.testing.assert_array_equal(at, winners)
    dy, dx = numbers(*y.shape, seed=1), np.zeros((2, image[0] * image[1], 2))
    for n, j, i, c in np.ndindex(dy.shape):
        if at[n, j, i, c] >= 0:
            dx[n, at[n, j, i, c], c] += dy[n, j, i, c]
    np.testing.assert_array_equal(pooling.max_pool_grad(dy, at, *image), dx.reshape(x.shape))


# Arithmetic ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", elementwise.OPERATIONS)
@pytest.mark.parametrize("operand", (0, 1))
@pytest.mark.parametrize("clamp", (False, True))
def test_arithmetic_grad(operation: str, operand: int, clamp: bool) -> None:
    """Place by place, by a difference quotient of what was read there."""
    strides = [(1, 1, 1), (0, 1, 1), (1, 0, 0)]
    for shapes in (((2, 3, 2, 3), (2, 3, 2, 3)), ((2, 3, 2, 3), (1, 1, 1, 3)), ((2, 1, 2, 1), (1, 3, 1, 3))):
        for both in itertools.product(strides, strides):
            x, y = numbers(*shapes[0]), numbers(*shapes[1], seed=1)
            y, how, limits = np.where(y < 0, y - 1, y + 1), (1.5, -0.75, 0.25), (-1.0, 0.8)
            dy = numbers(*elementwise.arithmetic(x, y, operation, strides=both).shape, seed=2)
            right = np.zeros((x, y)[operand].shape)
            for at in np.ndindex(dy.shape):
                entries = [
                    tuple(
                        i if step and length > 1 else 0
                        for i, length, step in zip(at, a.shape, (1, *stride), strict=True)
                    )
                    for a, stride in zip((x, y), both, strict=True)
                ]
                read, step = np.array([x[entries[0]], y[entries[1]]]), np.eye(2)[operand] * 1e-6
                behind, here, ahead = (elementwise.arithmetic(*(read + k * step), operation, how) for k in (-1, 0, 1))
                if not clamp or limits[0] < here < limits[1]:
                    right[entries[operand]] += dy[at] * (ahead - behind) / 2e-6
            made = elementwise.arithmetic_grad(dy, x, y, operation, operand, how, limits, both, clamp)
            np.testing.assert_allclose(made, right, rtol=1e-6, atol=1e-6)


# Windows of normalizations -------------------------------------------------------------------------------


@pytest.mark.parametrize("far", (0.0, 1e4))
@pytest.mark.parametrize("size", (1, 2, 3, 5, 8, 2**31 - 1))
def test_windows_of_normalizations(size: int, far: float) -> None:
    """Position by position, and the variance from the deviations themselves."""
    x, dy = numbers(2, 4, 5, 2) + far, numbers(2, 4, 5, 2, seed=1)
    alpha, beta, delta, p0, pm, ps = how = (1.3, 0.6, 0.7, 0.9, 0.1, 1.5)
    mean, var, squares = np.zeros(x.shape), np.zeros(x.shape), np.zeros(x.shape)
    seen = {}
    for j, i in np.ndindex(4, 5):
        rows, cols = ([k for k in range(n) if -(size // 2) <= k - at <= (size - 1) // 2] for at, n in ((j, 4), (i, 5)))
        inside = x[:, rows][:, :, cols]
        none = size**2 - len(rows) * len(cols)  # zeros outside
        seen[j, i] = rows, cols
        squares[:, j, i] = (inside**2).sum((1, 2))
        m = mean[:, j, i] = inside.sum((1, 2)) / size**2
        var[:, j, i] = (((inside - m[:, None, None]) ** 2).sum((1, 2)) + none * m**2) / size**2
    np.testing.assert_allclose(normalization.square_sum(x * x, normalization.forward_shifts(size)), squares)
    base = delta + alpha * var
    right = pm + ps * (x - p0 * mean) * base**-beta
    np.testing.assert_allclose(normalization.local_contrast_norm(x, size, *how), right, rtol=1e-9, atol=1e-9)
    a, b = dy * base**-beta, dy * (x - p0 * mean) * base ** (-beta - 1)
    dx = a.copy()
    for (j, i), (rows, cols) in seen.items():  # each window gives to what it reads
        for row, col in itertools.product(rows, cols):
            turned = b[:, j, i] * (x[:, row, col] - mean[:, j, i])
            dx[:, row, col] -= (p0 * a[:, j, i] + 2 * alpha * beta * turned) / size**2
    made = normalization.local_contrast_norm_grad(dy, x, size, *how)
    np.testing.assert_allclose(made, ps * dx, rtol=1e-9, atol=1e-9 * max(1, far * 1e-2))
