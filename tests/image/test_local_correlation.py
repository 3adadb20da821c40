"""`local_correlation` where its record says nothing: numbers worked by hand, what is beyond the image, threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from metal_host.cases import CASES
from support import DTYPES, exact, numbers, same_bits_for_threads
from support.oracle import correlation as oracle

import mpsfunc as mf
from mpsfunc import graph

pytestmark = pytest.mark.usefixtures("on_cpu")
BOTH = ("primary", "secondary")


def row(*values: float, dtype: mx.Dtype = mx.float32) -> mx.array:
    """An image of one row and one channel."""
    return mx.array(values, dtype).reshape(1, 1, len(values), 1)


def test_worked_numbers(dtype: mx.Dtype) -> None:
    x, y = row(1, 2, 3, dtype=dtype), row(10, 20, 30, dtype=dtype)
    made = mf.local_correlation(x, y, (0, 1))
    assert made.dtype == dtype
    assert exact(made).reshape(3, 3).tolist() == [[0, 10, 20], [20, 40, 60], [60, 90, 0]]
    dy = mx.arange(1.0, 10).reshape(1, 1, 3, 3).astype(dtype)
    by_both = [exact(mf.local_correlation_grad(dy, x, y, (0, 1), operand=each)).ravel().tolist() for each in BOTH]
    assert by_both == [[80, 320, 380], [10, 34, 36]]


def test_offsets_along_x_run_fastest() -> None:
    """One pixel of the secondary image is seen from each place around it, by the feature that leads there."""
    x, y = mx.ones((1, 5, 7, 1)), mx.zeros((1, 5, 7, 1))
    y[0, 2, 3, 0] = 1
    made = exact(mf.local_correlation(x, y, (1, 2)))
    for h, w, f in np.ndindex(5, 7, 15):
        assert made[0, h, w, f] == ((h + f // 5 - 1, w + f % 5 - 2) == (2, 3))


def test_strides_leave_out_pixels() -> None:
    x, y = row(1, 1, 1, 1, 1), row(1, 2, 4, 8, 16)
    made = exact(mf.local_correlation(x, y, (0, 1), stride=(1, 2))).reshape(5, 3)
    assert made.tolist() == [[0, 1, 4], [0, 2, 8], [1, 4, 16], [2, 8, 0], [4, 16, 0]]


def test_a_window_of_one_pixel_is_a_product_of_pixels() -> None:
    x, y = numbers((2, 3, 4, 5)), numbers((2, 3, 4, 5), seed=1)
    right = (exact(x) * exact(y)).sum(-1, keepdims=True)
    np.testing.assert_allclose(exact(mf.local_correlation(x, y)), right, rtol=1e-5, atol=1e-6)


def test_beyond_the_image_nothing_is_read() -> None:
    """Zeros, also beside infinity, which is in no product with them."""
    x, y = row(np.inf, 1, -np.inf), row(np.inf, 2, np.inf)
    made = exact(mf.local_correlation(x, y, (1, 1))).reshape(3, 9)
    assert not made[:, :3].any() and not made[:, 6:].any()
    np.testing.assert_array_equal(made[:, 3:6], [[0, np.inf, np.inf], [np.inf, 2, np.inf], [-np.inf, -np.inf, 0]])
    dy = mx.where(mx.arange(27).reshape(1, 1, 3, 9) % 9 < 3, mx.inf, mx.ones((1, 1, 3, 9)))
    one = mx.ones((1, 1, 3, 1))
    assert exact(mf.local_correlation_grad(dy, one, one, (1, 1))).ravel().tolist() == [2, 3, 2]


def test_steps_past_all_images() -> None:
    """Neither windows nor strides near their limits lead anywhere else."""
    x, y = numbers((1, 2, 3, 4)), numbers((1, 2, 3, 4), seed=1)
    far: dict[str, Any] = {"stride": 2**30 - 1}
    made = exact(mf.local_correlation(x, y, 3, **far)).reshape(6, 49)
    right = (exact(x) * exact(y)).sum(-1).ravel()
    np.testing.assert_allclose(made[:, 24], right, rtol=1e-5)
    assert not np.delete(made, 24, axis=1).any()
    dy = mx.ones((1, 2, 3, 49))
    assert mx.array_equal(mf.local_correlation_grad(dy, x, y, 3, **far), y)
    assert mx.array_equal(mf.local_correlation_grad(dy, x, y, 3, operand="secondary", **far), x)
    wide = mf.local_correlation(row(2), row(3), (0, 2**20))
    assert wide.shape == (1, 1, 1, 2**21 + 1) and wide.sum().item() == 6 and wide[0, 0, 0, 2**20].item() == 6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 40, 9, 3), (2, 17, 30, 20), (9, 5, 4, 1), (1, 4, 3, 70)], ids=str)
def test_bits_do_not_depend_on_threads(dtype: mx.Dtype, shape: Any, threads: Callable[[int], None]) -> None:
    x, y, dy = numbers(shape, dtype), numbers(shape, dtype, 1), numbers((*shape[:3], 35), dtype, 2)

    def compute() -> list[mx.array]:
        grads = [mf.local_correlation_grad(dy, x, y, (2, 3), operand=each) for each in BOTH]
        return [mf.local_correlation(x, y, (2, 3)), *grads]

    same_bits_for_threads(threads, compute)


@pytest.mark.parametrize("channels", [1, 5, 16, 33, 100])
@pytest.mark.parametrize("window", [0, 1, (1, 2), (0, 4), (2, 6)], ids=str)
def test_neighbours_in_eights_fours_and_one_by_one(channels: int, window: Any) -> None:
    x, y = numbers((2, 6, 15, channels), mx.float64), numbers((2, 6, 15, channels), mx.float64, 1)
    made = mf.local_correlation(x, y, window)
    np.testing.assert_allclose(exact(made), oracle.correlate(exact(x), exact(y), window), rtol=0, atol=1e-10)
    dy = numbers(made.shape, mx.float64, 2)
    for operand in BOTH:
        right = oracle.gradient(exact(dy), exact(x), exact(y), window, operand=operand)
        ours = mf.local_correlation_grad(dy, x, y, window, operand=operand)
        np.testing.assert_allclose(exact(ours), right, rtol=0, atol=1e-10)


def test_a_large_image_in_many_groups_of_lines() -> None:
    """Of several threads' lines, and with results that are stored past the caches."""
    x, y = numbers((2, 130, 60, 32)), numbers((2, 130, 60, 32), seed=1)
    for _ in range(2):  # the second time in memory that is not new
        made = mf.local_correlation(x, y, 2)
        dy = mx.ones(made.shape)
        grads = [mf.local_correlation_grad(dy, x, y, 2, operand=each) for each in BOTH]
        mx.eval(made, grads)
        np.testing.assert_allclose(exact(made), oracle.correlate(exact(x), exact(y), 2), rtol=0, atol=1e-4)
        for operand, ours in zip(BOTH, grads, strict=True):
            right = oracle.gradient(exact(dy), exact(x), exact(y), 2, operand=operand)
            np.testing.assert_allclose(exact(ours), right, rtol=0, atol=1e-4)
        del made, grads


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("local_correlation")])
def test_what_gpus_are_asked(name: str) -> None:
    CASES[name].run()


def test_gradient_nodes_of_both_images() -> None:
    shape = (2, 5, 6, 3)
    x, y = numbers(shape), numbers(shape, seed=1)
    first, second = graph.ImageNode("x"), graph.ImageNode("y")
    node = graph.local_correlation(first, second, 1, stride=2)
    dy = numbers((2, 5, 6, 9), seed=2)
    for at, operand in enumerate(BOTH):
        pulled = node.gradient_filters(graph.ImageNode("dy"))[at]
        network = graph.compile(pulled)
        given = {"x": x, "y": y, "dy": dy}
        params, states = network.init(mx.random.key(0), {name: a.shape for name, a in given.items()})
        made = network(params, given, states)
        made = made[0] if isinstance(made, tuple) else made
        assert mx.array_equal(made, mf.local_correlation_grad(dy, x, y, 1, stride=2, operand=operand))
