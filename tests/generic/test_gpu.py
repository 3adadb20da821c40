"""Every kernel body, and every route to a vendor library, on a GPU. Needs NumPy and pytest only.

Each dtype and vector width of a body is a kernel of its own that takes about a second to compile, so the kernels are a
fixed list and only geometries and values vary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from metal_host.cases import CASES
from support import TOLERANCE, VIEWS, exact, geometries, numbers, same_bits
from support.matrix import MATRIX, Arrays
from support.oracle import activation as oracle_activation
from support.oracle import convolution as oracle_convolution
from support.oracle import pooling as oracle_pooling

import mpsfunc as mf
from mpsfunc.convolution import launches

pytestmark = pytest.mark.gpu

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
GEOMETRIES = geometries(mf.PaddingPolicy)
NEURONS = [mf.Neuron("sigmoid"), mf.Neuron("tanh", -1.5, 0.25), mf.Neuron("elu", 0.5), mf.Neuron("gelu")]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    with mx.stream(mx.Device(mx.gpu)):
        yield


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSFUNC_DETERMINISTIC", "1")


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSFUNC_DETERMINISTIC", "0")


# Our kernels --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("name", CASES)
def test_bodies(name: str) -> None:
    CASES[name].run()


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("conv_grad_weights ")])
def test_matrices_of_simdgroups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The body of Apple GPUs, wherever this runs: CUDA has words for it that its own choice does not use."""
    kernels = launches.grad_weights
    with_matrices = functools.partial(kernels, matrices=True)
    monkeypatch.setattr(launches, "grad_weights", lambda *args, matrices: with_matrices(*args))
    CASES[name].run()


def near(actual: mx.array, expected: np.ndarray, size: np.ndarray, dtype: mx.Dtype) -> None:
    """Equal to a few roundings to ``dtype`` of the terms, whose size is given: what a library may do."""
    assert tuple(actual.shape) == expected.shape
    assert np.all(np.abs(exact(actual) - expected) <= 4 * TOLERANCE[dtype] * (size + 1e-3))


def both(definition: Callable[..., Any], where: tuple[Any, ...], *arrays: mx.array) -> tuple[np.ndarray, np.ndarray]:
    """The definition's values, and the size of what it sums."""
    values = [exact(a) for a in arrays]
    return definition(*values, *where), definition(*map(np.abs, values), *where)


def convolved(x: mx.array, w: mx.array, b: mx.array, view: str = "contiguous", **how: Any) -> None:
    """A convolution and its gradients against the definition."""
    seen = VIEWS[view]
    y, state = mf.conv_fwd(seen(x), seen(w), b, **how)
    where = state.rows, state.cols, state.groups
    dy = numbers(tuple(y.shape), x.dtype, 3)
    done = mf.conv_grad_weights(seen(dy), seen(x), state)
    near(y, *both(oracle_convolution.conv, where, x, w, b), x.dtype)
    near(mf.conv_grad_input(seen(dy), seen(w), state), *both(oracle_convolution.conv_grad_input, where, dy, w), x.dtype)
    near(done.dw, *both(oracle_convolution.conv_grad_weights, where, dy, x), x.dtype)
    near(done.db, *both(oracle_convolution.conv_grad_bias, (), dy), x.dtype)
    assert done.dw.dtype == done.db.dtype == mx.float32 and y.dtype == x.dtype


def convolve(name: str, dtype: mx.Dtype, channels: int, out: int, groups: int = 1) -> None:
    image, kernel, placement = GEOMETRIES[name]
    w = numbers((out, *kernel, channels // groups), dtype, 1)
    convolved(numbers((2, *image, channels), dtype), w, numbers((out,), dtype, 2), groups=groups, **placement)


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize("how", NEURONS, ids=str)
@each_dtype
def test_neurons_behind_a_library(how: mf.Neuron, dtype: mx.Dtype) -> None:
    x, w, b = numbers((2, 9, 8, 16), dtype), numbers((24, 3, 3, 16), dtype, 1), numbers((24,), dtype, 2)
    y, state = mf.conv_fwd(x, w, b, padding=1, neuron=how)
    z, size = both(oracle_convolution.conv, (state.rows, state.cols, 1), x, w, b)
    near(y, oracle_activation.neuron(z, how.type, a=how.a, b=how.b), size + 1, dtype)
    # A library's rounding may bring z to the other side of 0, where the slope of elu jumps; y tells on which it is.
    other_side = (exact(y) >= 0) != (z >= 0) if how.type == "elu" else np.zeros(z.shape, bool)
    assert np.all(np.abs(z[other_side]) <= 4 * TOLERANCE[dtype] * size[other_side])
    slope = oracle_activation.slope(np.where(other_side, -z, z), how.type, a=how.a, b=how.b)
    dy = numbers(tuple(y.shape), dtype, 3)
    where = state.rows, state.cols, 1
    dx = oracle_convolution.conv_grad_input(exact(dy) * slope, exact(w), *where)
    off = oracle_convolution.conv_grad_input(np.abs(exact(dy)) * (np.abs(slope) + 1), np.abs(exact(w)), *where)
    near(mf.conv_grad_input(dy, w, state), dx, off, dtype)


@pytest.mark.parametrize("name", GEOMETRIES)
@each_dtype
def test_pooling_in_every_geometry(name: str, dtype: mx.Dtype) -> None:
    image, kernel, placement = GEOMETRIES[name]
    for channels in (3, 16):
        for edges in ({}, {"edge_mode": "clamp", "zero_pad": ((2, 0), (0, 1))}):
            x = numbers((2, *image, channels), dtype)
            y, state = mf.avg_pool_fwd(x, kernel, **placement, **edges)
            near(y, *both(oracle_pooling.avg_pool, (state.rows, state.cols), x), dtype)
            dy = numbers(tuple(y.shape), dtype, 1)
            near(mf.avg_pool_grad(dy, state), *both(oracle_pooling.avg_pool_grad, (state.rows, state.cols), dy), dtype)


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("name", GEOMETRIES)
@each_dtype
def test_convolution_in_every_geometry(name: str, dtype: mx.Dtype) -> None:
    convolve(name, dtype, 6, 4)
    convolve(name, dtype, 6, 9, groups=3)


# Routes -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize("name", GEOMETRIES)
def test_routes_in_every_geometry(name: str) -> None:
    convolve(name, mx.float32, 6, 4)
    convolve(name, mx.float32, 6, 9, groups=3)


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize(("channels", "out", "groups"), [(3, 16, 1), (16, 16, 1), (8, 8, 8), (64, 32, 2)])
@each_dtype
def test_routes_for_every_width(channels: int, out: int, groups: int, dtype: mx.Dtype) -> None:
    convolve("3x3 s2 p1", dtype, channels, out, groups)
    convolve("dilated", dtype, channels, out, groups)


@pytest.mark.usefixtures("routed")
def test_a_route_sums_weight_gradients_past_the_range_of_float16() -> None:
    x, state = mx.full((4, 64, 64, 8), 4.0, mx.float16), mf.conv_state((4, 64, 64, 8), (8, 1, 1, 8))
    done = mf.conv_grad_weights(x, x, state)
    assert np.all(exact(done.dw) == 16.0 * 4 * 64 * 64) and np.all(exact(done.db) == 4.0 * 4 * 64 * 64)


# Both ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["ours", "routed"])
@pytest.mark.parametrize("view", VIEWS)
@each_dtype
def test_views(route: str, view: str, dtype: mx.Dtype, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(route)
    seen = VIEWS[view]
    x, w = numbers((2, 7, 8, 16), dtype), numbers((8, 3, 3, 16), dtype, 1)
    # MLX 0.32.4 hands cuBLAS half-width arrays that start off a 16-byte boundary, which it refuses with an error.
    if not (route == "routed" and view == "offset" and dtype != mx.float32):
        convolved(x, w, numbers((8,), dtype, 2), view, stride=2, padding=1)
    y, state = mf.avg_pool_fwd(x, 3, stride=2, padding=1)
    done = mf.bn_stats_grad(x * x, x, mf.bn_stats(x))
    pairs = (
        (mf.avg_pool(seen(x), 3, stride=2, padding=1), y),
        (mf.avg_pool_grad(seen(y), state), mf.avg_pool_grad(y, state)),
        (mf.bn_stats(seen(x)).var, done.var),
        (mf.bn_normalize(seen(x), done), mf.bn_normalize(x, done)),
        (mf.bn_stats_grad(seen(x * x), seen(x), mf.bn_stats(x)).dgamma, done.dgamma),
        (mf.bn_grad(seen(x * x), seen(x), done), mf.bn_grad(x * x, x, done)),
    )
    assert [i for i, (a, b) in enumerate(pairs) if not same_bits(a, b)] == []


@pytest.mark.usefixtures("ours")
@each_dtype
def test_same_bits_every_time(dtype: mx.Dtype) -> None:
    x, w = numbers((4, 57, 61, 16), dtype), numbers((16, 3, 3, 16), dtype, 1)

    def everything() -> list[mx.array]:
        y, state = mf.conv_fwd(x, w, padding=1)
        norm = mf.bn_stats_grad(y, x, mf.bn_stats(x))
        pool, pool_state = mf.avg_pool_fwd(x, 3, stride=2, padding=1)
        return [
            *(y, pool, mf.avg_pool_grad(pool, pool_state), mf.conv_grad_input(y, w, state)),
            *mf.conv_grad_weights(y, x, state).arrays,
            *(*norm.arrays, mf.bn_normalize(x, norm), mf.bn_grad(y, x, norm)),
        ]

    first = everything()
    assert all(same_bits(a, b) for _ in range(4) for a, b in zip(everything(), first, strict=True))


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("name", MATRIX)
@pytest.mark.needs_cpu_module
def test_derivatives_are_those_of_the_cpu(name: str) -> None:
    entry = MATRIX[name]
    pull = mx.grad(entry.loss, argnums=tuple(range(len(entry.shapes))))
    on_gpu = as_tuple(pull(*entry.inputs(mx.float32)))
    with mx.stream(mx.Device(mx.cpu)):
        on_cpu = as_tuple(pull(*entry.inputs(mx.float64)))
    for a, b in zip(on_gpu, on_cpu, strict=True):
        np.testing.assert_allclose(exact(a), exact(b), rtol=1e-3, atol=1e-4 * max(1.0, np.abs(exact(b)).max()))


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("name", MATRIX)
@pytest.mark.needs_cpu_module  # which holds the node that lets mx.vmap pass MLX's kernels
def test_vmap(name: str) -> None:
    entry = MATRIX[name]
    arrays = entry.inputs(mx.float32, batch=3)
    for y, *loop in zip(
        mx.vmap(entry.call)(*arrays), *[entry.call(*[a[i] for a in arrays]) for i in range(3)], strict=True
    ):
        np.testing.assert_allclose(exact(y), np.stack([exact(one) for one in loop]), rtol=1e-4, atol=1e-4)


def as_tuple(grads: Any) -> Arrays:
    return grads if isinstance(grads, tuple) else (grads,)


# Devices ------------------------------------------------------------------------------------------------


def test_float64_is_refused() -> None:
    with mx.stream(mx.cpu):
        x = mx.zeros((1, 4, 4, 2), mx.float64)
    message = "float64 runs on the CPU only; got x.dtype=mlx.core.float64 on .*, expected stream=mx.cpu or"
    for call in (lambda: mf.avg_pool(x, 2), lambda: mf.conv(x, mx.zeros((1, 1, 1, 2))), lambda: mf.batch_norm(x)):
        with pytest.raises(TypeError, match=message):
            call()


@pytest.mark.needs_cpu_module
def test_float64_on_a_cpu_stream() -> None:
    def loss(x: mx.array) -> mx.array:
        y = mf.batch_norm(mf.avg_pool(x, 2, stream=mx.cpu), stream=mx.cpu)
        return (y * y * y).sum()

    with mx.stream(mx.cpu):  # without it MLX itself refuses to differentiate float64 beside a GPU
        slope = mx.grad(loss)(numbers((1, 4, 4, 2), mx.float64))
    assert slope.dtype == mx.float64 and np.isfinite(np.array(slope)).all()


def test_an_empty_batch() -> None:
    x, w = mx.zeros((0, 6, 5, 4)), mx.ones((3, 3, 3, 4))
    y, state = mf.conv_fwd(x, w)
    assert y.shape == (0, 4, 3, 3) and mf.conv_grad_input(y, w, state).shape == x.shape
    assert not any(exact(a).any() for a in mf.conv_grad_weights(y, x, state).arrays)
    assert mf.avg_pool(x, 2).shape == (0, 3, 2, 4)
    frozen = mf.bn_frozen(mx.zeros(4), mx.ones(4))
    assert mf.bn_normalize(x, frozen).shape == mf.bn_grad(x, x, frozen).shape == x.shape
