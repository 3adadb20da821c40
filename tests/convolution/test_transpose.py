"""Transposed convolution in both of its forms, its gradients, and MPS's frame of zeros between pixels."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, VIEWS, accumulator, close, exact, geometries, numbers, same_bits
from support.oracle import convolution as oracle

import mpsfunc as mf
from mpsfunc.windows.axis import Axis

GEOMETRIES = geometries(mf.PaddingPolicy)


def line(*values: float) -> mx.array:
    return mx.array(values).reshape(1, 1, len(values), 1)


# Worked numbers -----------------------------------------------------------------------------------------


def test_both_forms_of_one_line(device: mx.Device, dtype: mx.Dtype) -> None:
    x, w = line(1, 2, 3).astype(dtype), line(1, 10, 100).astype(dtype)
    y = mf.conv_transpose(x, w, stride=(1, 2), padding=(0, 1), output_padding=(0, 1))
    assert y.reshape(-1).tolist() == [10, 102, 20, 203, 30, 300]
    mps = mf.conv_transpose(x, w[:, :, ::-1], stride=(1, 2), kernel_offset=(0, 0), out_size=(1, 6))
    assert mps.reshape(-1).tolist() == [10, 102, 20, 203, 30, 300]


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2])
def test_the_forms_differ_by_a_rotation_and_an_offset(device: mx.Device, kernel: int, dilation: int) -> None:
    x, w = numbers((2, 4, 5, 3)), numbers((2, kernel, kernel, 3), seed=1)
    extent = (kernel - 1) * dilation + 1
    for pad, stride in itertools.product((0, min(1, extent - 1)), (1, 2, 3)):
        how: dict[str, Any] = {"stride": stride, "dilation": dilation}
        y = mf.conv_transpose(x, w, padding=pad, **how)
        size = tuple(y.shape[1:3])
        mps = mf.conv_transpose(x, w[:, ::-1, ::-1], kernel_offset=pad - (extent - 1) // 2, out_size=size, **how)
        close(mps, exact(y), 40)


# The definitions ----------------------------------------------------------------------------------------

PIXELS: dict[str, dict[str, Any]] = {
    "stride 2": {"stride": 2, "padding": 1, "output_padding": 1},
    "uneven": {"stride": (3, 1), "padding": ((0, 1), (2, 0)), "dilation": (1, 2), "output_padding": (2, 1)},
    "gaps": {"stride": 4},
    "crops all but one": {"padding": ((2, 3), (3, 3))},
}


# The uppermost decorator's values take turns with all others the same, so that views share a definition.
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", PIXELS)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_definition_in_pixels(device: mx.Device, dtype: mx.Dtype, name: str, groups: int, view: str) -> None:
    how, seen = PIXELS[name], VIEWS[view]
    x, w = numbers((2, 4, 5, 6), dtype), numbers((12, 3, 3, 6 // groups), dtype, 1)
    b = numbers((12,), dtype, 2)
    y, state = mf.conv_transpose_fwd(seen(x), seen(w), b, groups=groups, **how)
    (value, size), _ = defined(tuple(x.shape), tuple(w.shape), dtype, state.rows, state.cols, groups, False)
    close(y, value + exact(b), size + np.abs(exact(b)))
    assert y.dtype == dtype
    check_gradients(seen(x), seen(w), state, dtype)


@functools.lru_cache(maxsize=1)
def defined(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], dtype: mx.Dtype, rows: Axis, cols: Axis, groups: int, turn: bool
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """In pixels, of `numbers` in these shapes: result, then gradients of x, w and b; each with the size of its terms.

    `turn`: with weights that are rotated by half a turn.
    """
    out = rows.n_in, cols.n_in
    place = (rows.stride, cols.stride), (rows.pad, cols.pad), (rows.dilation, cols.dilation)
    dy = numbers((x_shape[0], *out, w_shape[0]), dtype, 3)
    values, gradients = [], []
    for f in (np.asarray, np.abs):
        x, w, d = (f(exact(a)) for a in (numbers(x_shape, dtype), numbers(w_shape, dtype, 1), dy))
        w = w[:, ::-1, ::-1] if turn else w
        dx, dw = oracle.gathered(d, x, w, *place, groups)
        values.append(oracle.scattered(x, w, out, *place, groups))
        gradients.append([dx, dw[:, ::-1, ::-1] if turn else dw, d.sum((0, 1, 2))])
    return values, list(map(list, zip(*gradients, strict=True)))


def check_gradients(x: mx.array, w: mx.array, state: mf.ConvTransposeState, dtype: mx.Dtype) -> None:
    """Of x and w from `numbers`, in any layout."""
    dy = numbers((x.shape[0], state.rows.n_in, state.cols.n_in, w.shape[0]), dtype, 3)
    dx, grown = mf.conv_transpose_grad(dy, x, w, state)
    assert dx is not None and dx.dtype == dtype and grown.dw.dtype == accumulator(dtype)
    assert same_bits(dx, mf.conv_transpose_grad_input(dy, w, state))
    apart = mf.conv_transpose_grad_weights(dy, x, state)
    assert same_bits(grown.dw, apart.dw) and same_bits(grown.db, apart.db)
    shapes, where = (tuple(x.shape), tuple(w.shape)), (state.rows, state.cols, state.groups)
    _, gradients = defined(*shapes, dtype, *where, bool(state.unrotated))
    for made, (value, size) in zip((dx, grown.dw, grown.db), gradients, strict=True):
        close(made, value, size)


@given(
    length=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    offset=st.tuples(st.integers(-3, 4), st.integers(-3, 4)),
    kernel_offset=st.tuples(st.integers(-5, 5), st.integers(-5, 5)),
    out_size=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    groups=st.integers(1, 2),
    dtype=st.sampled_from(DTYPES),
)
@pytest.mark.needs_cpu_module
def test_definition_in_the_frame(
    length: Any, kernel: Any, stride: Any, dilation: Any, offset: Any, kernel_offset: Any, out_size: Any, groups: int,
    dtype: mx.Dtype,
) -> None:  # fmt: skip
    with mx.stream(mx.cpu):
        x, w = numbers((2, *length, 2 * groups), dtype), numbers((3 * groups, *kernel, 2), dtype, 1)
        how = {"stride": stride, "dilation": dilation, "groups": groups}
        y, state = mf.conv_transpose_fwd(x, w, offset=offset, kernel_offset=kernel_offset, out_size=out_size, **how)
        total = [o * s + k for o, s, k in zip(offset, stride, kernel_offset, strict=True)]
        value, size = (
            oracle.framed(f(exact(x)), f(exact(w)), out_size, stride, total, dilation, groups)
            for f in (np.asarray, np.abs)
        )
        close(y, value, size)
        check_gradients(x, w, state, dtype)


# Sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["same", "valid", "full"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (2, 2), (4, 3), (5, 1)])
def test_policies_size_in_reverse(device: mx.Device, size: Any, kernel: int, stride: int) -> None:
    policy = mf.PaddingPolicy(size=size)
    x, w = numbers((1, 6, 7, 2)), numbers((3, kernel, kernel, 2), seed=1)
    y = mf.conv_transpose(x, w, stride=stride, padding=policy)
    style = {"valid": -1, "same": 0, "full": 1}[size]
    expected = [(n - 1) * stride + 1 + style * (kernel - 1) for n in (6, 7)]
    assert list(y.shape[1:3]) == expected
    centres = [policy.reverse(n, kernel, stride, axis=axis)[1] for axis, n in enumerate((6, 7))]
    close(y, oracle.framed(exact(x), exact(w), expected, (stride,) * 2, centres, (1, 1)), 40)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_state_leads_back_where_its_convolution_came_from(device: mx.Device, name: str) -> None:
    """Sized and placed by a ConvState: with rotated weights, exactly the gradient of that convolution's images."""
    image, kernel, placement = GEOMETRIES[name]
    w = numbers((3, *kernel, 2), seed=1)
    y, state = mf.conv_fwd(numbers((2, *image, 2)), w, **placement)
    how = {"stride": placement["stride"], "dilation": placement.get("dilation", 1)}
    turned = w[:, ::-1, ::-1].swapaxes(0, 3)
    back = mf.conv_transpose(y, turned, state=state, **how)
    assert tuple(back.shape[1:3]) == (state.source_height, state.source_width)
    close(back, exact(mf.conv_grad_input(y, w, state)), 100)
    offset = [0, 1]
    elsewhere = mf.conv_transpose(y, turned, state=state, offset=offset, **how)
    pair = [(n, n) if isinstance(n, int) else n for n in how.values()]
    total = [o * s for o, s in zip(offset, pair[0], strict=True)]
    value, size = (
        oracle.framed(f(exact(y)), f(exact(turned)), image, pair[0], total, pair[1]) for f in (np.asarray, np.abs)
    )
    close(elsewhere, value, size)


@pytest.mark.parametrize("padding", ["same", "same_lower"])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 2, 1), (2, 3, 1), (4, 3, 1), (5, 1, 1), (3, 2, 2)])
def test_same_is_the_gradient_of_a_convolution_of_that_padding(
    on_cpu: mx.Device, padding: Any, kernel: int, stride: int, dilation: int
) -> None:
    """TensorFlow's rule: from n pixels to n * stride, of which the convolution makes n again."""
    x, w = numbers((2, 4, 5, 3), mx.float64), numbers((2, kernel, kernel, 3), mx.float64, 1)
    how: dict[str, Any] = {"stride": stride, "dilation": dilation, "padding": padding}
    y, state = mf.conv_transpose_fwd(x, w, **how)
    assert y.shape == (2, 4 * stride, 5 * stride, 2)
    back = mf.conv_state(y.shape, (3, kernel, kernel, 2), **how, dtype=mx.float64)
    assert (state.rows, state.cols) == (back.rows, back.cols)
    close(y, exact(mf.conv_grad_input(x, w.swapaxes(0, 3), back)), 100)


# The data gradient in MPS's frame -----------------------------------------------------------------------


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_exact_gradient_is_a_kernel_offset(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    """kernelOffset = -offset, plus 1 where the window is even; and any other offset by the frame's definition."""
    image, kernel, placement = GEOMETRIES[name]
    w = numbers((3, *kernel, 2), dtype, 1)
    y, state = mf.conv_fwd(numbers((2, *image, 2), dtype), w, **placement)
    axes = state.rows, state.cols
    extents = [(a.size - 1) * a.dilation + 1 for a in axes]
    offsets = [extent // 2 - a.pad for extent, a in zip(extents, axes, strict=True)]
    default = tuple(-o + (extent % 2 == 0) for o, extent in zip(offsets, extents, strict=True))
    dx = mf.conv_grad_input(y, w, state)
    assert same_bits(mf.conv_grad_input(y, w, state, kernel_offset=default), dx)
    for total in (default, (0, 0), (2, -3)):
        place = image, (axes[0].stride, axes[1].stride), total, (axes[0].dilation, axes[1].dilation)
        turned = exact(w)[:, ::-1, ::-1].swapaxes(0, 3)
        value, size = (oracle.framed(f(exact(y)), f(turned), *place) for f in (np.asarray, np.abs))
        close(mf.conv_grad_input(y, w, state, kernel_offset=total), value, size)


def test_the_frame_reads_zeros_whatever_the_edge_mode(device: mx.Device) -> None:
    x, w = numbers((1, 5, 5, 2)), numbers((3, 3, 3, 2), seed=1)
    (y, zero), (_, clamp) = (mf.conv_fwd(x, w, padding=1, edge_mode=edge) for edge in ("zero", "clamp"))
    assert same_bits(mf.conv_grad_input(y, w, clamp, kernel_offset=0), mf.conv_grad_input(y, w, zero))


# Refusals -----------------------------------------------------------------------------------------------

X, W = mx.zeros((1, 4, 4, 2)), mx.zeros((3, 3, 3, 2))
CONVOLVED = mf.conv_state((1, 8, 8, 3), (2, 3, 3, 3), stride=2, padding=1)


@pytest.mark.parametrize(
    ("kind", "complaint", "how"),
    [
        (ValueError, "nothing is left of the output", {"padding": 4}),
        (ValueError, "padding is negative", {"padding": -1}),
        (ValueError, "output_padding is too large", {"output_padding": 1}),
        (ValueError, "output_padding is too small", {"output_padding": -1}),
        (ValueError, "output_padding is for padding in pixels", {"output_padding": 1, "offset": 0, "out_size": 4}),
        (ValueError, "an offset or a state excludes padding", {"padding": 1, "offset": 0, "out_size": 4}),
        (ValueError, "an offset needs a size", {"offset": 0}),
        (ValueError, "out_size needs an offset", {"out_size": 4}),
        (ValueError, "the state says how large", {"state": CONVOLVED, "out_size": 4}),
        (ValueError, "this is no way back", {"state": CONVOLVED}),
        (TypeError, "not a state of this operation", {"state": 3}),
        (ValueError, "exclude_edges is for averages", {"padding": mf.PaddingPolicy(exclude_edges=True)}),
        (ValueError, "unknown padding", {"padding": "valid"}),
        (TypeError, "stride is not an int", {"stride": None}),
        (ValueError, "unknown neuron", {"neuron": "maxout"}),
        (TypeError, "neuron is not an activation", {"neuron": 1}),
        (ValueError, "groups do not divide", {"groups": 3}),
        (ValueError, "windows reach too far", {"offset": 2**30, "out_size": 4}),
    ],
)
def test_refusals(kind: type[Exception], complaint: str, how: dict[str, Any]) -> None:
    with pytest.raises(kind, match=f"^conv_transpose: {complaint}.*; got .*expected "):
        mf.conv_transpose(X, W, **how)


def test_states_of_others_are_refused() -> None:
    y, state = mf.conv_transpose_fwd(X, W)
    with pytest.raises(TypeError, match="^conv_transpose_grad_input: not a state of this operation"):
        mf.conv_transpose_grad_input(y, W, CONVOLVED)
    with pytest.raises(TypeError, match="^conv_grad_input: not a state of this operation"):
        mf.conv_grad_input(y, W, state)
    with pytest.raises(ValueError, match="^conv_transpose_grad_input: dy does not belong to this state"):
        mf.conv_transpose_grad_input(y[:, 1:], W, state)
    with pytest.raises(ValueError, match="^conv_transpose_grad_weights: x does not belong to this state"):
        mf.conv_transpose_grad_weights(y, X[:, 1:], state)
    with pytest.raises(ValueError, match="^conv_transpose_grad: unknown option"):
        mf.conv_transpose_grad(y, X, W, state, option="both")
