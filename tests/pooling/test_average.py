"""Average pooling and its gradient."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import BATCHES, DTYPES, VIEWS, Windows, close, exact, geometries, numbers, same_bits
from support.oracle import pooling as oracle

import mpsfunc as mf

GEOMETRIES = geometries(mf.PaddingPolicy) | {
    "ceil": Windows((6, 7), (3, 2), {"stride": (2, 3), "padding": 1, "ceil_mode": True}),
    "exclude edges": Windows(
        (7, 6), (3, 2), {"stride": 2, "padding": mf.PaddingPolicy(exclude_edges=True, remainder="bottom_left")}
    ),
}
EDGES: dict[str, dict[str, Any]] = {
    "zero": {},
    "clamp": {"edge_mode": "clamp"},
    "clamp, some zeros": {"edge_mode": "clamp", "zero_pad": (0, 2)},
    "clamp, many zeros": {"edge_mode": "clamp", "zero_pad": 9},
    "clamp, zeros in front": {"edge_mode": "clamp", "zero_pad": ((2, 0), (9, 0))},
    "clamp, zeros behind": {"edge_mode": "clamp", "zero_pad": ((0, 1), (1, 9))},
}


def picture(rows: list[list[float]], dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(rows, dtype)[None, :, :, None]


def check(x: mx.array, state: mf.AvgPoolState, y: mx.array, *, seed: int = 0) -> None:
    """Forward and gradient of one state against the definition."""
    axes = state.rows, state.cols
    close(y, oracle.avg_pool(exact(x), *axes), oracle.avg_pool(np.abs(exact(x)), *axes))
    dy = numbers(tuple(y.shape), x.dtype, seed + 1)
    dx = mf.avg_pool_grad(dy, state)
    assert y.dtype == dx.dtype == x.dtype
    close(dx, oracle.avg_pool_grad(exact(dy), *axes), oracle.avg_pool_grad(np.abs(exact(dy)), *axes))


# Worked numbers -----------------------------------------------------------------------------------------

SHARED = [[0.25, 0.5, 0.5, 0], [0.75, 1, 1, 0], [0.75, 1, 1, 0]]
E1: list[tuple[Any, ...]] = [
    ({}, 0, [[0.25, 1.25], [3.5, 8.5]], SHARED),
    ({"edge_mode": "clamp"}, 0, [[1, 2.5], [7, 8.5]], [[1, 1, 1, 0], [1.5, 1, 1, 0], [1.5, 1, 1, 0]]),
    ({"edge_mode": "clamp", "zero_pad": (1, 1)}, 0, [[0.25, 1.25], [3.5, 8.5]], SHARED),
    (
        {"edge_mode": "clamp", "zero_pad": (0, 1)},
        0,
        [[0.5, 2.5], [3.5, 8.5]],
        [[0.5, 1, 1, 0], [0.75, 1, 1, 0], [0.75, 1, 1, 0]],
    ),
    (
        {},
        1,
        [[3.5, 5.5], [4.75, 5.75]],
        [[0.25, 0.25, 0.5, 0.5], [0.25, 0.25, 0.5, 0.5], [0.75, 0.75, 1, 1]],
    ),
    (
        {"edge_mode": "clamp"},
        1,
        [[3.5, 5.5], [9.5, 11.5]],
        [[0.25, 0.25, 0.5, 0.5], [0.25, 0.25, 0.5, 0.5], [1.5, 1.5, 2, 2]],
    ),
]


@pytest.mark.parametrize(("edges", "offset", "forward", "gradient"), E1)
def test_two_by_two_windows_over_the_edge(
    device: mx.Device, dtype: mx.Dtype, edges: dict[str, Any], offset: int, forward: Any, gradient: Any
) -> None:
    x = picture([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], dtype)
    y, state = mf.avg_pool_fwd(x, 2, stride=2, offset=offset, out_size=2, **edges)
    dx = mf.avg_pool_grad(picture([[1, 2], [3, 4]], dtype), state)
    assert y[0, :, :, 0].tolist() == forward
    assert dx[0, :, :, 0].tolist() == gradient


@pytest.mark.parametrize(
    ("edges", "forward", "gradient"),
    [
        ({}, [1, 3, 4 / 3], [2, 4, 2, 4]),
        ({"edge_mode": "clamp"}, [1.5, 3, 4], [3, 5, 2, 8]),
        ({"edge_mode": "clamp", "zero_pad": (0, 1)}, [1, 3, 2], [2, 4, 2, 5]),
    ],
)
@pytest.mark.parametrize(
    "placement", [{"offset": 0, "out_size": (1, 3)}, {"padding": (0, 1), "ceil_mode": True}], ids=["offset", "ceil"]
)
def test_a_row_that_overhangs_in_ceil_mode(
    device: mx.Device, placement: dict[str, Any], edges: dict[str, Any], forward: list[float], gradient: list[float]
) -> None:
    y, state = mf.avg_pool_fwd(picture([[1, 2, 3, 4]]), (1, 3), stride=(1, 2), **placement, **edges)
    close(y, np.reshape(forward, (1, 1, 3, 1)))
    close(mf.avg_pool_grad(mx.full(y.shape, 6.0), state), np.reshape(gradient, (1, 1, 4, 1)))


def test_values_measured_from_mps(device: mx.Device) -> None:
    x = picture([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    y = mf.avg_pool(x, 2, stride=1, offset=0, out_size=3)
    assert y[0, :, :, 0].tolist() == [[0.25, 0.75, 1.25], [1.25, 3, 4], [2.75, 6, 7]]
    for zero_pad in (0, 1, 5):  # means nothing in edge mode zero
        corner = mf.avg_pool(x, 3, stride=1, offset=0, out_size=3, zero_pad=zero_pad)[0, 0, 0, 0]
        close(corner, 12 / 9)


# Padding that counts, more of it on one side ------------------------------------------------------------


def test_padding_in_front_counts_and_what_hangs_over_behind_does_not(device: mx.Device, dtype: mx.Dtype) -> None:
    """ONNX's AveragePool with pads (2, 0), ceil_mode and count_include_pad: divided by 3, 3, 3 and 2."""
    x = mx.arange(1.0, 7.0).astype(dtype).reshape(1, 1, 6, 1)
    how: dict[str, Any] = {"stride": (1, 2), "padding": ((0, 0), (2, 0)), "ceil_mode": True, "edge_mode": "clamp"}
    y, state = mf.avg_pool_fwd(x, (1, 3), **how, zero_pad=((0, 0), (2, 0)))
    close(y, np.reshape([1 / 3, 2, 4, 5.5], (1, 1, 4, 1)))
    dx = mf.avg_pool_grad(mx.full(y.shape, 6.0).astype(dtype), state)
    close(dx, np.reshape([2 + 2, 2, 2 + 2, 2, 2 + 3, 3], (1, 1, 6, 1)))
    # With as many zeros behind, the last window has a third pixel; behind alone, the first has two fewer.
    assert abs(mf.avg_pool(x, (1, 3), **how, zero_pad=(0, 2))[0, 0, 3].item() - 11 / 3) < 0.02
    close(mf.avg_pool(x, (1, 3), **how, zero_pad=((0, 0), (0, 2))), np.reshape([1, 2, 4, 11 / 3], (1, 1, 4, 1)))


class Onnx(NamedTuple):
    """Attributes of an AveragePool of ONNX (opset 19 has dilations)."""

    image: tuple[int, int]
    kernel: tuple[int, int]
    pads: tuple[int, int, int, int]  # top, left, bottom, right
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = True

    def ours(self) -> dict[str, Any]:
        top, left, bottom, right = self.pads
        pairs = (top, bottom), (left, right)
        return {
            "stride": self.strides,
            "padding": pairs,
            "dilation": self.dilations,
            "ceil_mode": self.ceil_mode,
            "edge_mode": "clamp",
            "zero_pad": pairs if self.count_include_pad else 0,
        }

    def matrix(self) -> np.ndarray:
        """(out_h, out_w, h, w), from the operator's text: pad, slide, and divide by the places that count."""
        (h, w), (top, left, bottom, right) = self.image, self.pads
        places = np.full((h + top + bottom, w + left + right), -1)
        places[top : top + h, left : left + w] = np.arange(h * w).reshape(h, w)
        starts = []
        for size, n, before, k, stride, dilation in zip(
            places.shape, self.image, (top, left), self.kernel, self.strides, self.dilations, strict=True
        ):
            room = size - ((k - 1) * dilation + 1)
            count = (-(-room // stride) if self.ceil_mode else room // stride) + 1
            # "Sliding windows that would start in the right padded region are ignored."
            starts.append([s * stride for s in range(count) if not self.ceil_mode or s * stride < before + n])
        made = np.zeros((len(starts[0]), len(starts[1]), h * w))
        for (j, y0), (i, x0) in itertools.product(*map(enumerate, starts)):
            (ky, kx), (dy, dx) = self.kernel, self.dilations
            seen = places[y0 : y0 + (ky - 1) * dy + 1 : dy, x0 : x0 + (kx - 1) * dx + 1 : dx].ravel()
            pixels = seen[seen >= 0]
            made[j, i, pixels] = 1 / max(1, seen.size if self.count_include_pad else pixels.size)
        return made.reshape(len(starts[0]), len(starts[1]), h, w)


def some_of_onnx() -> list[Onnx]:
    choose = np.random.default_rng(32)
    drawn = []
    while len(drawn) < 60:
        two = lambda low, high: tuple(int(n) for n in choose.integers(low, high, 2))  # noqa: E731
        kernel, dilations = two(1, 5), two(1, 3)
        pads = tuple(int(choose.integers(0, k)) for k in (*kernel, *kernel))
        image = tuple(int(choose.integers((k - 1) * d + 1, 9 + d)) for k, d in zip(kernel, dilations, strict=True))
        drawn.append(
            Onnx(image, kernel, pads, two(1, 4), dilations, bool(choose.integers(2)), bool(choose.integers(4)))
        )
    return drawn


ONNX = [
    Onnx((1, 6), (1, 3), (0, 2, 0, 0), (1, 2), ceil_mode=True),
    Onnx((1, 6), (1, 3), (0, 0, 0, 2), (1, 2), ceil_mode=True),
    Onnx((7, 8), (3, 3), (2, 0, 0, 1), (2, 2), ceil_mode=True),
    Onnx((7, 8), (3, 3), (0, 1, 1, 0), (2, 2)),
    Onnx((5, 5), (2, 2), (1, 0, 0, 1), (2, 2), (2, 2), ceil_mode=True),
    *some_of_onnx(),
]


@pytest.mark.parametrize("case", ONNX, ids=str)
def test_averages_of_onnx(device: mx.Device, case: Onnx) -> None:
    matrix, how = case.matrix(), case.ours()
    x = numbers((2, *case.image, 3))
    y, state = mf.avg_pool_fwd(x, case.kernel, **how)
    forward = lambda x: np.einsum("jihw,nhwc->njic", matrix, x)  # noqa: E731
    backward = lambda dy: np.einsum("jihw,njic->nhwc", matrix, dy)  # noqa: E731
    close(y, forward(exact(x)), forward(abs(exact(x))))
    dy = numbers(tuple(y.shape), seed=1)
    close(mf.avg_pool_grad(dy, state), backward(exact(dy)), backward(abs(exact(dy))))
    (pulled,) = mx.vjp(lambda x: mf.avg_pool(x, case.kernel, **how), [x], [dy])[1]
    assert same_bits(pulled, mf.avg_pool_grad(dy, state))


def test_some_averages_of_onnx_need_both_sides(on_cpu: mx.Device) -> None:
    """The table is no use if one number an axis would do."""
    needed = 0
    for case in ONNX:
        how, image = case.ours(), (1, *case.image, 1)
        for side in (0, 1):
            one = {**how, "zero_pad": tuple(pair[side] for pair in how["padding"])}
            if case.count_include_pad:
                told = [mf.avg_pool(mx.ones(image), case.kernel, **each) for each in (how, one)]
                needed += not same_bits(*told)
    assert needed > 20


@pytest.mark.parametrize("edge_mode", ["zero", "clamp"])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_number_is_that_many_zeros_on_every_side(device: mx.Device, edge_mode: str, n: int) -> None:
    how: dict[str, Any] = {"stride": 2, "padding": ((2, 1), (0, 2)), "edge_mode": edge_mode}
    states = [mf.avg_pool_state((2, 7, 6, 3), 3, **how, zero_pad=z) for z in (n, (n, n), ((n, n), (n, n)), [[n, n], n])]
    assert states == states[:1] * 4


# The definition -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GEOMETRIES)
def test_definition_in_every_geometry(device: mx.Device, dtype: mx.Dtype, name: str) -> None:
    image, kernel, placement = GEOMETRIES[name]
    for edges in [{}] if name == "exclude edges" else EDGES.values():
        for batch, channels in ((2, 3), (1, 16)):
            x = numbers((batch, *image, channels), dtype)
            y, state = mf.avg_pool_fwd(x, kernel, **placement, **edges)
            check(x, state, y)


@pytest.mark.parametrize(("batch", "channels"), BATCHES)
@pytest.mark.parametrize("view", VIEWS)
def test_definition_for_every_width_and_view(
    device: mx.Device, dtype: mx.Dtype, batch: int, channels: int, view: str
) -> None:
    x = numbers((batch, 6, 5, channels), dtype)
    y, state = mf.avg_pool_fwd(VIEWS[view](x), 3, stride=2, padding=1, edge_mode="clamp")
    check(x, state, y)
    dy = numbers(tuple(y.shape), dtype, 3)
    assert same_bits(mf.avg_pool_grad(VIEWS[view](dy), state), mf.avg_pool_grad(dy, state))


_few = st.integers(0, 3)
_zeros = _few | st.tuples(_few, _few)  # of an axis
placements = st.fixed_dictionaries(
    {
        "stride": st.tuples(st.integers(1, 4), st.integers(1, 4)),
        "dilation": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "offset": st.tuples(st.integers(-6, 9), st.integers(-6, 9)),
        "out_size": st.tuples(st.integers(1, 5), st.integers(1, 5)),
        "edge_mode": st.sampled_from(["zero", "clamp"]),
        "zero_pad": _few | st.tuples(_zeros, _zeros),
    }
)


@given(
    shape=st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(1, 8), st.sampled_from([1, 2, 5, 8, 17])),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    placement=placements,
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
    seed=st.integers(0, 9),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(
    shape: tuple[int, ...], kernel: tuple[int, int], placement: dict[str, Any], dtype: mx.Dtype, view: str, seed: int
) -> None:
    with mx.stream(mx.cpu):
        x = numbers(shape, dtype, seed)
        y, state = mf.avg_pool_fwd(VIEWS[view](x), kernel, **placement)
        assert state == mf.avg_pool_state(shape, kernel, **placement)
        check(x, state, y, seed=seed)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_gradient_is_the_adjoint(on_cpu: mx.Device, name: str) -> None:
    image, kernel, placement = GEOMETRIES[name]
    x = numbers((2, *image, 3), mx.float64)
    y, state = mf.avg_pool_fwd(x, kernel, **placement)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    close((y * dy).sum(), exact((x * mf.avg_pool_grad(dy, state)).sum()), exact((x * x).sum()))


def test_source_window_keeps_only_its_outputs(device: mx.Device, dtype: mx.Dtype) -> None:
    state = mf.avg_pool_state((2, 7, 8, 4), 3, stride=2, padding=1, edge_mode="clamp")
    dy = numbers((2, state.rows.n_out, state.cols.n_out, 4), dtype)
    for window in (((1, 0), (2, 3)), ((-1, 2), (3, 9)), ((0, 0), (0, 4)), ((9, 9), (2, 2))):
        (top, left), (height, width) = window
        kept = np.zeros(dy.shape)
        rows, cols = slice(max(top, 0), max(top + height, 0)), slice(max(left, 0), max(left + width, 0))
        kept[:, rows, cols] = exact(dy)[:, rows, cols]
        expected = oracle.avg_pool_grad(kept, state.rows, state.cols)
        close(mf.avg_pool_grad(dy, state, source_window=window), expected)


def test_source_window_is_the_derivative_of_what_it_returned(on_cpu: mx.Device) -> None:
    state = mf.avg_pool_state((1, 5, 5, 2), 2, stride=1)
    dy, dx = numbers((1, 4, 4, 2), mx.float64), numbers((1, 5, 5, 2), mx.float64, 1)

    def dot(dy: mx.array) -> mx.array:
        return (mf.avg_pool_grad(dy, state, source_window=((1, 1), (2, 3))) * dx).sum()

    slope = mx.grad(dot)(dy)
    close((slope * dy).sum(), dot(dy).item(), 10)
    assert not exact(slope)[:, 0].any() and exact(slope)[:, 1:3, 1:].all()


def test_windows_wholly_outside_give_zero_and_take_nothing(device: mx.Device) -> None:
    x = mx.full((1, 3, 3, 2), float("nan"))
    for edge_mode in ("zero", "clamp"):
        y, state = mf.avg_pool_fwd(x, 2, stride=1, offset=(7, -4), out_size=2, edge_mode=edge_mode)
        assert exact(y).tolist() == np.zeros((1, 2, 2, 2)).tolist()
        assert not exact(mf.avg_pool_grad(mx.ones_like(y), state)).any()


def test_low_precision_sums_are_float32(device: mx.Device) -> None:
    x = mx.concatenate([mx.full((1, 1, 1, 8), 2048.0), mx.ones((1, 1, 63, 8))], axis=2)
    y = mf.avg_pool(x.astype(mx.float16), (1, 64))
    assert exact(y).ravel().tolist() == [float(np.float16((2048 + 63) / 64))] * 8


def test_same_bits_every_time(device: mx.Device, dtype: mx.Dtype) -> None:
    x = numbers((3, 17, 19, 24), dtype)
    y, state = mf.avg_pool_fwd(x, 3, stride=2, padding=1)
    dx = mf.avg_pool_grad(y, state)
    for _ in range(5):
        again, _ = mf.avg_pool_fwd(x, 3, stride=2, padding=1)
        assert same_bits(again, y) and same_bits(mf.avg_pool_grad(again, state), dx)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_derivative_has_the_dtype_of_the_image(device: mx.Device, dtype: mx.Dtype) -> None:
    x = numbers((1, 4, 4, 3), dtype)
    assert mx.grad(lambda x: mf.avg_pool(x, 2).astype(mx.float32).sum())(x).dtype == dtype


def test_states(device: mx.Device) -> None:
    _, state = mf.avg_pool_fwd(mx.ones((2, 6, 5, 3)), 3, stride=2, padding=1, edge_mode="clamp")
    assert state == mf.avg_pool_state((9, 6, 5, 3), 3, stride=2, padding=1, edge_mode="clamp")  # no batch in it
    assert state.op == "avg_pool" and state.channels == 3
    assert state.arrays == () and state.with_arrays(()) == state
    assert hash(state) == hash(state._replace())
    with pytest.raises(ValueError, match="^AvgPoolState: wrong number of arrays; got 1 "):
        state.with_arrays([mx.zeros(1)])


def test_states_with_a_divisor(device: mx.Device) -> None:
    y, state = mf.avg_pool_fwd(mx.ones((1, 4, 4, 1)), 2, divisor_override=8)
    assert y.reshape(-1).tolist() == [0.5] * 4
    assert mf.avg_pool_grad(mx.ones_like(y), state).reshape(-1).tolist() == [0.125] * 16
    none = state._replace(rows=state.rows._replace(zero_pad=0))
    with pytest.raises(ValueError, match="^avg_pool_grad: the state's windows cannot be; got state.rows="):
        mf.avg_pool_grad(y, none)
    _, norms = mf.l2_pool_fwd(mx.ones((1, 4, 4, 1)), 2)
    with pytest.raises(ValueError, match="^l2_pool_grad: the state's windows cannot be; got state.rows="):
        mf.l2_pool_grad(y, mx.ones((1, 4, 4, 1)), norms._replace(rows=state.rows))
