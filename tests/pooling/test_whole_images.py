"""Windows that cover the image by themselves: "global" and "adaptive", for all three poolings."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, close, exact, numbers, same_bits
from support.oracle import pooling as oracle

import mpsfunc as mf
from mpsfunc.windows.axis import Axis, starts
from mpsfunc.windows.placement import place

SIZES = ((7, 5), (6, 4), (1, 1), (1, 9), (16, 3))
OUTS: tuple[Any, ...] = (1, 3, (2, 4), (5, None), (9, 11))


def check(x: mx.array, **how: Any) -> None:
    """Values and gradients of all three."""
    dy, values = None, exact(x)
    for forward in (mf.avg_pool_fwd, mf.max_pool_fwd, mf.l2_pool_fwd):
        y, state = forward(x, **how)
        axes: tuple[Axis, Axis] = (state.rows, state.cols)
        dy = numbers(tuple(y.shape), x.dtype, 1)
        small, large = exact(dy), abs(exact(dy))
        if forward is mf.avg_pool_fwd:
            close(y, oracle.avg_pool(values, *axes), oracle.avg_pool(abs(values), *axes), slack=4)
            grads = oracle.avg_pool_grad(small, *axes), oracle.avg_pool_grad(large, *axes)
            close(mf.avg_pool_grad(dy, state), *grads)
        elif forward is mf.max_pool_fwd:
            expected, at = oracle.max_pool(values, *axes)
            np.testing.assert_array_equal(exact(y), expected)
            np.testing.assert_array_equal(np.array(mf.max_pool_indices(state)), at)
            close(mf.max_pool_grad(dy, state), *[oracle.max_pool_grad(v, at, *x.shape[1:3]) for v in (small, large)])
        else:
            norms = oracle.l2_pool(values, *axes)
            close(y, norms, norms, slack=4)
            definition = [oracle.l2_pool_grad(d, v, norms, *axes) for d, v in ((small, values), (large, abs(values)))]
            close(mf.l2_pool_grad(dy, x, state), *definition, slack=4)


@pytest.mark.parametrize("channels", (3, 16))
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_global(device: mx.Device, dtype: mx.Dtype, size: tuple[int, int], channels: int) -> None:
    x = numbers((2, *size, channels), dtype)
    check(x, kernel_size="global")
    assert same_bits(mf.avg_pool(x, "global"), mf.avg_pool(x, size))
    assert mf.l2_pool(x, "global").shape == (2, 1, 1, channels)


@pytest.mark.parametrize("channels", (3, 16))
@pytest.mark.parametrize("out_size", OUTS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_adaptive(device: mx.Device, dtype: mx.Dtype, size: tuple[int, int], out_size: Any, channels: int) -> None:
    check(numbers((2, *size, channels), dtype), kernel_size="adaptive", out_size=out_size)


sides = st.integers(1, 12)


@given(
    shape=st.tuples(st.integers(0, 2), sides, sides, st.sampled_from([1, 5, 8, 17])),
    out_size=st.tuples(sides, sides),
    dtype=st.sampled_from(DTYPES),
)
@pytest.mark.needs_cpu_module
def test_adaptive_anywhere(shape: tuple[int, ...], out_size: tuple[int, int], dtype: mx.Dtype) -> None:
    with mx.stream(mx.cpu):
        check(numbers(shape, dtype), kernel_size="adaptive", out_size=out_size)


@given(n=st.integers(1, 2**29), m=st.integers(1, 300))
def test_adaptive_windows_at_any_distance(n: int, m: int) -> None:
    rows, cols = place("avg_pool", (n, m), "adaptive", out_size=(m, min(n, 300)))
    for axis in (rows, cols):
        begins = [o * axis.n_in // axis.n_out for o in range(axis.n_out)]
        lengths = [math.ceil((o + 1) * axis.n_in / axis.n_out) - begin for o, begin in enumerate(begins)]
        assert starts(axis) == begins and axis.size == max(lengths)


def test_what_divides_evenly_is_an_ordinary_window() -> None:
    assert place("avg_pool", (12, 8), "adaptive", out_size=(3, 4)) == place("avg_pool", (12, 8), (4, 2))


@pytest.mark.parametrize("edge_mode", ("zero", "clamp"))
def test_an_edge_mode_says_nothing(edge_mode: str) -> None:
    for how in ({"kernel_size": "global"}, {"kernel_size": "adaptive", "out_size": 2}):
        axes = place("avg_pool", (5, 7), **how, edge_mode=edge_mode, edge_modes=("zero", "clamp"), zero_pad=3)
        assert axes == place("avg_pool", (5, 7), **how)


@pytest.mark.parametrize("zero_pad", (-1, 1.5, "one", (1, 2, 3), ((0, 1), (2, -1))), ids=str)
def test_a_zero_pad_must_be_one_all_the_same(zero_pad: Any) -> None:
    for kernel_size in ("global", 2):
        with pytest.raises((TypeError, ValueError), match=r"^avg_pool: zero_pad .*; got zero_pad=.*, expected "):
            mf.avg_pool(mx.zeros((1, 4, 4, 1)), kernel_size, zero_pad=zero_pad)


def test_a_mean_of_many_loses_little(device: mx.Device) -> None:
    """An offset of a thousand deviations, over 40,000 pixels."""
    x = numbers((1, 200, 200, 16)) + 1e3
    y = mf.avg_pool(x, "global")
    np.testing.assert_allclose(exact(y), exact(x).mean((1, 2), keepdims=True), rtol=2e-6)
    norm = np.sqrt((exact(x) ** 2).sum((1, 2), keepdims=True))
    np.testing.assert_allclose(exact(mf.l2_pool(x, "global")), norm, rtol=2e-6)


def test_a_long_row_loses_little(on_cpu: mx.Device) -> None:
    x = mx.full((1, 1, 10**6, 3), 0.1)
    np.testing.assert_allclose(exact(mf.avg_pool(x, "global")), 0.1, rtol=2e-4)
    np.testing.assert_allclose(exact(mf.l2_pool(x, "global")), 100, rtol=2e-4)


@pytest.mark.needs_cpu_module
@pytest.mark.parametrize("pool", ("avg_pool", "max_pool", "l2_pool"))
def test_large_windows_take_little_memory(pool: str) -> None:
    """What windows read is listed once, not for each of them: that would be 1.2 GB. In a process of its own, whose peak
    is not another test's."""
    program = (
        "import resource, mlx.core as mx, mpsfunc as mf",
        "mx.set_default_device(mx.cpu)",
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss",
        f"small = mf.{pool}(mx.ones((1, 1, 400, 1)), (1, 21), stride=1)",
        "mx.eval(small)",
        "before = peak()",
        f"mx.eval(mf.{pool}(mx.ones((1, 1, 40_000, 1)), (1, 2001), stride=1))",
        "print(peak() - before)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(program)], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 50_000  # kilobytes


def test_source_window_of_adaptive_outputs(device: mx.Device) -> None:
    state = mf.avg_pool_state((1, 7, 7, 4), "adaptive", out_size=3)
    dy = numbers((1, 3, 3, 4))
    kept = np.zeros(dy.shape)
    kept[:, 1:, :2] = exact(dy)[:, 1:, :2]
    dx = mf.avg_pool_grad(dy, state, source_window=((1, 0), (2, 2)))
    close(dx, oracle.avg_pool_grad(kept, state.rows, state.cols))


REFUSED: list[tuple[str, type[Exception], dict[str, Any]]] = [
    ("unknown kernel_size", ValueError, {"kernel_size": "whole"}),
    ("kernel_size='adaptive' needs out_size", ValueError, {"kernel_size": "adaptive"}),
    ("kernel_size='global' has one window", ValueError, {"kernel_size": "global", "out_size": 1}),
    ("out_size is too small", ValueError, {"kernel_size": "adaptive", "out_size": (0, 2)}),
    ("out_size is not an int", TypeError, {"kernel_size": "adaptive", "out_size": 2.0}),
    ("out_size is not a pair", ValueError, {"kernel_size": "adaptive", "out_size": (1, 2, 3)}),
    ("unknown edge_mode", ValueError, {"kernel_size": "global", "edge_mode": "mirror"}),
    *[
        (f"kernel_size={name!r} places the windows alone", ValueError, {"kernel_size": name, **given})
        for name in ("global", "adaptive")
        for given in (
            {"stride": 1},
            {"padding": 1},
            {"padding": False},
            {"padding": np.zeros(2, int)},
            {"dilation": 2},
            {"dilation": 1.0},
            {"ceil_mode": True},
            {"offset": 0},
            {"offset": mx.array([0, 0])},
        )
    ],
]


@pytest.mark.parametrize(("words", "error", "how"), REFUSED, ids=str)
@pytest.mark.parametrize("pool", (mf.avg_pool, mf.max_pool, mf.l2_pool))
def test_bad_input(pool: Callable[..., mx.array], words: str, error: type[Exception], how: dict[str, Any]) -> None:
    if "alone" in words and how["kernel_size"] == "adaptive":
        how = how | {"out_size": 2}
    with pytest.raises(error, match=f"^{pool.__name__}: {words}; got .*, expected "):
        pool(mx.zeros((1, 4, 4, 1)), **how)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
def test_the_mean_of_large_values_is_put_back(device: mx.Device, dtype: mx.Dtype) -> None:
    """Four windows have one winner, and the sum of their values would be infinite."""
    x = mx.array([0.0, 0, 0, 0, 3e38, 0, 0, 0, 0]).reshape(1, 3, 3, 1).astype(dtype)
    for how in ({"stride": 1}, {"offset": 1, "out_size": 2, "stride": 1, "edge_mode": "clamp"}):
        y, state = mf.max_pool_fwd(x, 2, **how)
        assert y.reshape(-1).tolist() == [x[0, 1, 1, 0].item()] * 4
        assert mx.array_equal(mf.max_unpool(y, state), x)
    y, state = mf.max_pool_fwd(x, "adaptive", out_size=2)
    assert mx.array_equal(mf.max_unpool(y, state), x)
