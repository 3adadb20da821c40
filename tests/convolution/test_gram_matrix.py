"""`gram_matrix` where its record says nothing: numbers worked by hand, symmetry, ranges, threads, and both routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
from metal_host.host import metal_host, needs_clang
from support import DTYPES, exact, numbers, same_bits_for_threads

import mpsfunc as mf
from mpsfunc.core import launch

pytestmark = pytest.mark.usefixtures("on_cpu")
# Few channels and many, images side by side on threads and one after the other, pixels in several blocks.
SHAPES = [(1, 1, 1, 1), (3, 40, 30, 5), (2, 9, 7, 64), (8, 20, 20, 33), (20, 3, 3, 17), (1, 70, 60, 130)]


def expected(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    made: np.ndarray = np.einsum("nhwf,nhwc->nfc", x, y)[:, None]
    return made


def pulled(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    made: np.ndarray = np.einsum("nkc,nhwc->nhwk", (dy + dy.swapaxes(2, 3))[:, 0], x)
    return made


def test_worked_numbers(dtype: mx.Dtype) -> None:
    x = mx.array([[1.0, 2], [3, 4]], dtype).reshape(1, 1, 2, 2)
    made = mf.gram_matrix(x, alpha=0.5)
    assert made.dtype == dtype and exact(made).reshape(2, 2).tolist() == [[5, 7], [7, 10]]
    dy = mx.array([[1.0, 2], [3, 4]], dtype).reshape(1, 1, 2, 2)
    dx = mf.gram_matrix_grad(dy, x, alpha=0.5)
    assert dx.dtype == dtype and exact(dx).reshape(2, 2).tolist() == [[6, 10.5], [13, 23.5]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_image_has_its_own(shape: Any) -> None:
    x = numbers(shape, mx.float64)
    made = exact(mf.gram_matrix(x))
    np.testing.assert_allclose(made, expected(exact(x), exact(x)), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(made, made.swapaxes(2, 3))
    dy = numbers(made.shape, mx.float64, 1)
    dx = mf.gram_matrix_grad(dy, x)
    np.testing.assert_allclose(exact(dx), pulled(exact(dy), exact(x)), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_do_not_depend_on_threads(dtype: mx.Dtype, shape: Any, threads: Callable[[int], None]) -> None:
    x, dy = numbers(shape, dtype), numbers((shape[0], 1, shape[3], shape[3]), dtype, 1)
    same_bits_for_threads(threads, lambda: [mf.gram_matrix(x), mf.gram_matrix_grad(dy, x)])


def test_sums_are_rounded_behind_alpha() -> None:
    """float16 ends at 65,504; the gradient's factor is below its least number."""
    x = mx.full((1, 64, 64, 2), 8.0, mx.float16)
    assert mx.isinf(mf.gram_matrix(x)).all()
    assert exact(mf.gram_matrix(x, alpha=2.0**-12)).ravel().tolist() == [64.0] * 4
    dx = mf.gram_matrix_grad(mx.ones((1, 1, 2, 2), mx.float16), x, alpha=2.0**-26)
    assert exact(dx).ravel().tolist() == [4 * 8.0 * 2.0**-26] * (64 * 64 * 2)


def test_the_gradient_of_a_gradient_is_not_symmetric() -> None:
    """The VJP of products of two images, which second derivatives are made of."""
    x, v = numbers((2, 3, 2, 4), mx.float64), numbers((2, 3, 2, 4), mx.float64, 1)
    dy = numbers((2, 1, 4, 4), mx.float64, 2)
    (by_dy, by_x) = mx.vjp(mf.gram_matrix_grad, [dy, x], [v])[1]
    right = expected(exact(v), exact(x))
    np.testing.assert_allclose(exact(by_dy), right + right.swapaxes(2, 3), rtol=1e-12)
    np.testing.assert_allclose(exact(by_x), pulled(exact(dy), exact(v)), rtol=1e-12, atol=1e-12)


@needs_clang
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (1, 4, 4, 8), (3, 2, 2, 1)], ids=str)
def test_on_a_gpu_without_a_library(dtype: mx.Dtype, shape: Any) -> None:
    """Batches as groups of our own convolutions, by the kernel host."""
    x, dy = numbers(shape, dtype), numbers((shape[0], 1, shape[3], shape[3]), dtype, 1)
    with metal_host() as host:
        made, dx = mf.gram_matrix(x, alpha=0.5), mf.gram_matrix_grad(dy, x, alpha=0.5)
    assert host.runs
    tolerance = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}[dtype]
    for ours, right in ((made, expected(exact(x), exact(x))), (dx, pulled(exact(dy), exact(x)))):
        np.testing.assert_allclose(exact(ours), right / 2, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_by_a_library(dtype: mx.Dtype) -> None:
    """What a GPU's library is asked, here of MLX's own on the CPU."""
    x, dy = numbers((2, 3, 5, 6), dtype), numbers((2, 1, 6, 6), dtype, 1)
    with (
        mock.patch.object(launch, "backend", lambda stream: "cuda"),
        mock.patch.object(launch, "routed", lambda stream, *backends: "cuda" in backends),
    ):
        made, dx = mf.gram_matrix(x, alpha=0.5), mf.gram_matrix_grad(dy, x, alpha=0.5)
        none = mf.gram_matrix(x[:0])
    assert none.shape == (0, 1, 6, 6)
    for ours, right in ((made, mf.gram_matrix(x, alpha=0.5)), (dx, mf.gram_matrix_grad(dy, x, alpha=0.5))):
        assert ours.dtype == dtype
        # Both round once, of sums in another order: two neighbours of a dtype are up to 2^-7 apart, those of bfloat16.
        np.testing.assert_allclose(exact(ours), exact(right), rtol=1e-2 if dtype != mx.float32 else 1e-5, atol=1e-5)
