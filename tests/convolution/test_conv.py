"""Convolution and its three gradients."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, VIEWS, accumulator, close, exact, geometries, numbers, primitives, same_bits
from support.oracle import convolution as oracle

import mpsfunc as mf

GEOMETRIES = geometries(mf.PaddingPolicy)


def check(x: mx.array, w: mx.array, b: mx.array | None, *, seed: int = 0, view: str = "contiguous", **how: Any) -> None:
    """Forward and all gradients against the definition; the inputs come as a view."""
    seen = VIEWS[view]
    y, state = mf.conv_fwd(seen(x), seen(w), b, **how)
    dy = numbers(tuple(y.shape), x.dtype, seed + 1)
    where = state.rows, state.cols, state.groups
    values = [exact(a) for a in (x, w, mx.zeros((w.shape[0],)) if b is None else b, dy)]
    sizes = [np.abs(a) for a in values]

    def both(definition: Any, *which: int) -> tuple[Any, Any]:
        return tuple(definition(*[of[i] for i in which], *where) for of in (values, sizes))

    dx, grown = mf.conv_grad_input(seen(dy), seen(w), state), mf.conv_grad_weights(seen(dy), seen(x), state)
    close(y, *both(oracle.conv, 0, 1, 2))
    close(dx, *both(oracle.conv_grad_input, 3, 1))
    close(grown.dw, *both(oracle.conv_grad_weights, 3, 0))
    close(grown.db, oracle.conv_grad_bias(values[3]), oracle.conv_grad_bias(sizes[3]))
    assert y.dtype == dx.dtype == x.dtype
    assert grown.dw.dtype == grown.db.dtype == accumulator(x.dtype)


# Worked numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "y", "dx", "dw"),
    [
        (
            0,
            [[17.5, 47.5], [133.5, 211.5]],
            [[5, 2, -5, -6], [4, 9, 6, 9], [10, 24, 15, 18]],
            [[18, 31, 36], [28, 49, 54]],
        ),
        (
            1,
            [[106.5, 79.5], [62.5, 35.5]],
            [[1, 2, 2, -2], [4, 5, 2, -5], [2, 4, 9, 6]],
            [[49, 54, 25], [-2, -2, 7]],
        ),
    ],
)
def test_two_by_three_weights_over_the_edge(
    device: mx.Device, dtype: mx.Dtype, offset: int, y: Any, dx: Any, dw: Any
) -> None:
    x = mx.arange(1.0, 13.0).reshape(1, 3, 4, 1).astype(dtype)
    w = mx.arange(1.0, 7.0).reshape(1, 2, 3, 1).astype(dtype)
    dy = mx.array([1.0, -1.0, 2.0, 3.0]).reshape(1, 2, 2, 1).astype(dtype)
    out, state = mf.conv_fwd(x, w, mx.array([0.5]), stride=2, offset=offset, out_size=2)
    close(out, np.reshape(y, (1, 2, 2, 1)))
    assert mf.conv_grad_input(dy, w, state)[0, :, :, 0].tolist() == dx
    state = mf.conv_grad_weights(dy, x, state)
    assert state.dw[0, :, :, 0].tolist() == dw and state.db.tolist() == [5]


def test_dilated_even_weights(device: mx.Device) -> None:
    x, w = mx.arange(1.0, 7.0).reshape(1, 1, 6, 1), mx.array([10.0, 1.0]).reshape(1, 1, 2, 1)
    dy = mx.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
    y, state = mf.conv_fwd(x, w, stride=(1, 2), dilation=(1, 3), offset=(0, 1), out_size=(1, 3))
    assert y.reshape(-1).tolist() == [3, 25, 40]
    assert mf.conv_grad_input(dy, w, state).reshape(-1).tolist() == [0, 20, 1, 30, 2, 0]
    assert mf.conv_grad_weights(dy, x, state).dw.reshape(-1).tolist() == [16, 13]


def test_grouped_one_by_one(device: mx.Device) -> None:
    x, w = mx.arange(1.0, 5.0).reshape(1, 1, 1, 4), mx.array([10.0, 20.0, 30.0, 40.0]).reshape(2, 1, 1, 2)
    dy = mx.array([1.0, 2.0]).reshape(1, 1, 1, 2)
    y, state = mf.conv_fwd(x, w, groups=2)
    assert y.reshape(-1).tolist() == [50, 250]
    assert mf.conv_grad_input(dy, w, state).reshape(-1).tolist() == [10, 20, 60, 80]
    assert mf.conv_grad_weights(dy, x, state).dw.reshape(2, 2).tolist() == [[1, 2], [6, 8]]


# The definition -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_mode", ["zero", "clamp"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_definition_in_every_geometry(device: mx.Device, dtype: mx.Dtype, name: str, edge_mode: str) -> None:
    image, kernel, placement = GEOMETRIES[name]
    for batch, channels, out, groups in ((2, 3, 5, 1), (1, 16, 24, 2)):
        x = numbers((batch, *image, channels), dtype)
        w = numbers((out, *kernel, channels // groups), dtype, 1)
        check(x, w, numbers((out,), dtype, 2), groups=groups, edge_mode=edge_mode, **placement)


# (batch, channels, output channels, groups): whole and broken vectors and tiles, depthwise, an empty batch.
WIDTHS = (
    (1, 1, 1, 1), (2, 3, 16, 1), (1, 4, 4, 4), (2, 7, 14, 7), (1, 8, 65, 1), (2, 16, 8, 2), (1, 65, 7, 1),
    (1, 65, 65, 65), (1, 32, 96, 4), (3, 6, 3, 3), (2, 64, 64, 1), (0, 4, 6, 2),
)  # fmt: skip


@pytest.mark.parametrize(("batch", "channels", "out", "groups"), WIDTHS)
def test_definition_for_every_width(
    device: mx.Device, dtype: mx.Dtype, batch: int, channels: int, out: int, groups: int
) -> None:
    for kernel, how in ((3, {"padding": 1}), (1, {"stride": 2}), (2, {"stride": 2, "dilation": 2})):
        x = numbers((batch, 7, 6, channels), dtype)
        w = numbers((out, kernel, kernel, channels // groups), dtype, 1)
        check(x, w, None, groups=groups, **how)


@pytest.mark.parametrize("view", VIEWS)
def test_definition_for_every_view(device: mx.Device, dtype: mx.Dtype, view: str) -> None:
    for channels in (5, 16):
        x, w = numbers((2, 6, 5, channels), dtype), numbers((8, 3, 3, channels), dtype, 1)
        check(x, w, numbers((8,), dtype, 2), view=view, stride=2, padding=1)


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(1, 8)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    widths=st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 3, 9]), st.sampled_from([1, 2, 8, 17])),
    placement=st.fixed_dictionaries(
        {
            "stride": st.tuples(st.integers(1, 4), st.integers(1, 4)),
            "dilation": st.tuples(st.integers(1, 3), st.integers(1, 3)),
            "offset": st.tuples(st.integers(-6, 9), st.integers(-6, 9)),
            "out_size": st.tuples(st.integers(1, 5), st.integers(1, 5)),
            "edge_mode": st.sampled_from(["zero", "clamp"]),
        }
    ),
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
    seed=st.integers(0, 9),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(
    shape: tuple[int, int, int],
    kernel: tuple[int, int],
    widths: tuple[int, int, int],
    placement: dict[str, Any],
    dtype: mx.Dtype,
    view: str,
    seed: int,
) -> None:
    groups, out, width = widths
    with mx.stream(mx.cpu):
        x = numbers((*shape, groups * width), dtype, seed)
        w = numbers((groups * out, *kernel, width), dtype, seed + 1)
        check(x, w, numbers((groups * out,), dtype, seed + 2), seed=seed, view=view, groups=groups, **placement)


@pytest.mark.parametrize("edge_mode", ["zero", "clamp"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_gradients_are_adjoints(on_cpu: mx.Device, name: str, edge_mode: str) -> None:
    image, kernel, placement = GEOMETRIES[name]
    placement = {"edge_mode": edge_mode, **placement}
    x, w = numbers((2, *image, 4), mx.float64), numbers((6, *kernel, 2), mx.float64, 1)
    y, state = mf.conv_fwd(x, w, groups=2, **placement)
    dy = numbers(tuple(y.shape), mx.float64, 2)
    paired = exact((y * dy).sum())
    close((x * mf.conv_grad_input(dy, w, state)).sum(), paired, 1e3)
    close((w * mf.conv_grad_weights(dy, x, state).dw).sum(), paired, 1e3)


def test_broadcast_views(device: mx.Device) -> None:
    x = mx.broadcast_to(numbers((1, 6, 1, 8)), (3, 6, 5, 8))
    w = mx.broadcast_to(numbers((1, 3, 3, 1)), (4, 3, 3, 8))
    check(x, w, mx.broadcast_to(mx.array(0.5), (4,)), padding=1)


def test_many_products_stay_accurate(device: mx.Device) -> None:
    """A sum over 2**18 pixels whose every term matters, and ones that a running float32 sum would round away."""
    x = mx.full((1, 512, 512, 1), 1.0 + 2.0**-12)
    state = mf.conv_grad_weights(mx.ones_like(x), x, mf.conv_state(x.shape, (1, 1, 1, 1)))
    close(state.dw, [[[[2.0**18 + 2.0**6]]]], 2.0**18)
    close(state.db, [2.0**18])


def test_low_precision_sums_are_float32(device: mx.Device) -> None:
    x = mx.concatenate([mx.full((1, 1, 1, 1), 2048.0), mx.ones((1, 1, 1, 64))], axis=-1).astype(mx.float16)
    assert mf.conv(x, mx.ones((1, 1, 1, 65)) / 2).item() == 1056


def test_same_bits_every_time(device: mx.Device, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSFUNC_DETERMINISTIC", "1")
    x, w = numbers((3, 17, 19, 12), dtype), numbers((10, 3, 3, 12), dtype, 1)

    def everything() -> list[mx.array]:
        y, state = mf.conv_fwd(x, w, padding=1)
        return [y, mf.conv_grad_input(y, w, state), *mf.conv_grad_weights(y, x, state).arrays]

    first = everything()
    assert all(same_bits(a, b) for _ in range(5) for a, b in zip(everything(), first, strict=True))


# States -------------------------------------------------------------------------------------------------


def test_states(device: mx.Device) -> None:
    how: dict[str, Any] = {"stride": 2, "padding": (1, 0), "groups": 2}
    _, state = mf.conv_fwd(mx.ones((2, 7, 6, 4)), mx.ones((6, 3, 2, 2)), **how)
    made = mf.conv_state((9, 7, 6, 4), (6, 3, 2, 2), **how)
    assert state[4:] == made[4:] and state.op == "conv"
    for a, b in zip(state.arrays, made.arrays, strict=True):
        assert same_bits(a, b) and not exact(a).any()
    arrays = [mx.ones((6, 3, 2, 2)), mx.ones((6,)), mx.ones((0,)), mx.ones((0,))]
    held = state.with_arrays(arrays)
    assert held[4:] == state[4:] and all(a is b for a, b in zip(held.arrays, arrays, strict=True))
    assert (state.source_height, state.source_width) == (7, 6)
    with pytest.raises(ValueError, match="^ConvState: wrong number of arrays; got 1 "):
        state.with_arrays(arrays[:1])


def test_gradients_add_up_over_parts_of_a_batch(device: mx.Device, dtype: mx.Dtype) -> None:
    x, w = numbers((5, 6, 6, 3), dtype), numbers((4, 3, 3, 3), dtype, 1)
    y, state = mf.conv_fwd(x, w)
    dy = numbers(tuple(y.shape), dtype, 2)
    whole = mf.conv_grad_weights(dy, x, state)
    parts = state
    for part in (slice(0, 2), slice(2, 3), slice(3, 5)):
        parts = mf.conv_grad_weights(dy[part], x[part], parts)
    sizes = np.abs(exact(dy)), np.abs(exact(x))
    close(parts.dw, exact(whole.dw), oracle.conv_grad_weights(*sizes, state.rows, state.cols))
    close(parts.db, exact(whole.db), oracle.conv_grad_bias(sizes[0]))
    assert parts.dw.dtype == accumulator(dtype)
    assert not exact(state.dw).any()  # states do not change


def test_states_follow_float64(on_cpu: mx.Device) -> None:
    x = numbers((1, 4, 4, 2), mx.float64)
    state = mf.conv_state(x.shape, (3, 3, 3, 2), dtype=mx.float64)
    assert state.dw.dtype == mx.float64
    dy = numbers((1, 2, 2, 3), mx.float64, 1)
    grown = mf.conv_grad_weights(dy, x, mf.conv_state(x.shape, (3, 3, 3, 2)))  # a float32 state widens
    assert grown.dw.dtype == mx.float64
    assert same_bits(grown.dw, mf.conv_grad_weights(dy, x, state).dw)


# Autodiff -----------------------------------------------------------------------------------------------


def test_derivatives_have_the_dtypes_of_their_arguments(device: mx.Device) -> None:
    x, w, b = numbers((1, 5, 5, 2), mx.bfloat16), numbers((3, 3, 3, 2)), numbers((3,), mx.float16)
    grads = mx.grad(lambda *args: mf.conv(*args).astype(mx.float32).sum(), argnums=(0, 1, 2))(x, w, b)
    assert [g.dtype for g in grads] == [mx.bfloat16, mx.float32, mx.float16]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [(1, 6, 40), (7, 1, 1)], ids=str)
def test_the_gradient_of_narrow_weights_is_rounded_by_its_kernel(
    on_cpu: mx.Device, dtype: mx.Dtype, channels: tuple[int, int, int]
) -> None:
    """Not by MLX: one number at a time on one thread, that takes as long as the sums."""
    groups, c, o = channels
    x, w = numbers((2, 5, 6, groups * c), dtype), numbers((groups * o, 3, 3, c), dtype, 1)
    y, state = mf.conv_fwd(x, w, groups=groups)
    dy = numbers(tuple(y.shape), dtype, 2)
    wide = mf.conv_grad_weights(dy, x, state).dw
    _, (dw,) = mx.vjp(lambda w: mf.conv(x, w, groups=groups), [w], [dy])
    assert wide.dtype == mx.float32 and same_bits(dw, wide.astype(dtype))
    back = numbers((groups * c, 3, 3, o), dtype, 3)
    _, (turned,) = mx.vjp(lambda w: mf.conv_transpose(dy, w, groups=groups), [back], [x])
    assert turned.dtype == dtype
    for gradient in (dw, turned):
        assert "AsType" not in primitives(mx.stop_gradient(gradient))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_a_second_derivative_of_narrow_weights_is_rounded_once(on_cpu: mx.Device, dtype: mx.Dtype) -> None:
    """Along a tangent of both sides the gradient of the weights is a sum of two, each in float32."""
    x, w, dy = numbers((2, 5, 6, 6), dtype), numbers((8, 3, 3, 6), dtype, 1), numbers((2, 3, 4, 8), dtype, 2)
    tx, tdy = numbers(x.shape, dtype, 3), numbers(dy.shape, dtype, 4)
    state = mf.conv_state(x.shape, w.shape)

    def gradient(x: mx.array, dy: mx.array) -> mx.array:
        return mx.vjp(lambda w: mf.conv(x, w), [w], [dy])[1][0]

    _, (tangent,) = mx.jvp(gradient, [x, dy], [tx, tdy])
    terms = mf.conv_grad_weights(tdy, x, state).dw + mf.conv_grad_weights(dy, tx, state).dw
    assert same_bits(tangent, terms.astype(dtype))


@pytest.mark.parametrize("wrap", [lambda f: f, mx.compile, mx.checkpoint], ids=["plain", "compile", "checkpoint"])
@pytest.mark.parametrize("argnum", [0, 1, 2])
def test_lazy_evaluation_runs_only_the_gradient_that_was_asked_for(on_cpu: mx.Device, wrap: Any, argnum: int) -> None:
    names = ("conv_grad_input", "conv_grad_weights", "conv_grad_bias")
    x, w, b = numbers((1, 5, 5, 2)), numbers((3, 3, 3, 2), seed=1), numbers((3,), seed=2)
    grad = mx.grad(wrap(lambda *args: mf.conv(*args).sum()), argnums=argnum)
    runs = primitives(grad(x, w, b))
    assert runs & set(names) == {names[argnum]}


def test_states_with_margins_that_no_convolution_has_are_refused() -> None:
    """Wider than the image, or windows of averages; a state made by hand may say so."""
    w = numbers((1, 3, 3, 1))
    for mode in ("reflect", "circular"):
        y, state = mf.conv_fwd(numbers((1, 4, 4, 1)), w, padding=3, padding_mode=mode)
        assert mf.conv_grad_input(y, w, state).shape == (1, 4, 4, 1)
        far = state.rows._replace(n_in=2)
        with pytest.raises(ValueError, match="^conv_grad_input: the state's windows cannot be; got state.rows="):
            mf.conv_grad_input(y, w, state._replace(rows=far))
    with pytest.raises(ValueError, match="^conv_grad_input: the state's windows cannot be; got state.cols="):
        mf.conv_grad_input(y, w, state._replace(cols=state.cols._replace(edge=4, zero_pad=1)))
