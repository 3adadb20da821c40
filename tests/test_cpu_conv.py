"""The C++ convolutions by themselves: every instruction set, dtype, kind of window, grouping and broken vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import oracle
import pytest
from support import DTYPES, VIEWS, accumulator, close, exact, numbers, same_bits

from mpsfunc.window import Axis

_primitives = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its CPU module")


def axis(
    n_in: int, n_out: int, size: int, stride: int, dilation: int, pad: int, begin: int = 0, end: int | None = None
) -> Axis:
    return Axis(n_in, n_out, size, stride, dilation, pad, 0, 0, begin, n_out if end is None else end)


# Rows and columns. The odd lengths leave broken register tiles, the strides several phases backward.
WINDOWS = {
    "1x1": (axis(3, 3, 1, 1, 1, 0), axis(5, 5, 1, 1, 1, 0)),
    "1x1 s2": (axis(5, 3, 1, 2, 1, 0), axis(4, 2, 1, 2, 1, 0)),
    "3x3 p1": (axis(5, 5, 3, 1, 1, 1), axis(16, 16, 3, 1, 1, 1)),
    "3x3 s2 p1": (axis(7, 4, 3, 2, 1, 1), axis(8, 4, 3, 2, 1, 1)),
    "2x3 s1,2": (axis(4, 3, 2, 1, 1, 0), axis(9, 5, 3, 2, 1, 1)),
    "3x2 s2,1": (axis(6, 3, 3, 2, 1, 1), axis(5, 6, 2, 1, 1, 1)),
    "4x4 s3,2": (axis(11, 4, 4, 3, 1, 2), axis(9, 5, 4, 2, 1, 2)),
    "stride leaves gaps": (axis(9, 3, 2, 4, 1, 0), axis(8, 3, 1, 3, 1, 0)),
    "dilated": (axis(8, 6, 3, 1, 2, 1), axis(9, 9, 3, 1, 3, 3)),
    "dilated s2": (axis(9, 5, 2, 2, 3, 2), axis(12, 4, 4, 3, 2, 2)),
    "dilated s4": (axis(12, 3, 3, 4, 6, 5), axis(13, 4, 2, 4, 2, 2)),
    "dilated beyond the panel": (axis(2, 2, 1, 1, 1, 0), axis(80, 14, 3, 1, 33, 0)),
    "negative pad": (axis(7, 3, 2, 2, 1, -1), axis(8, 4, 3, 1, 1, -2)),
    "hangs over": (axis(3, 6, 5, 1, 1, 4), axis(2, 7, 4, 2, 1, 5)),
    "wholly outside": (axis(3, 3, 2, 5, 1, 9), axis(4, 2, 2, 1, 1, -7)),
    "some outside": (axis(3, 4, 2, 3, 1, 4), axis(4, 5, 1, 2, 1, 2)),
    "selected": (axis(6, 5, 2, 1, 1, 0, 1, 3), axis(7, 5, 3, 2, 1, 2, 2, 5)),
    "none selected": (axis(4, 3, 2, 1, 1, 0, 2, 2), axis(4, 3, 2, 1, 1, 0)),
    "long line": (axis(2, 1, 2, 1, 1, 0), axis(530, 530, 3, 1, 1, 1)),
}
# Groups, channels and outputs of one group.
CHANNELS = ((1, 1, 1), (1, 3, 7), (1, 16, 33), (1, 65, 3), (2, 3, 16), (4, 4, 4), (6, 2, 2), (3, 1, 1), (65, 1, 1),
            (7, 1, 2), (3, 1, 9), (2, 16, 5))  # fmt: skip


class Case(NamedTuple):
    """Operands of all operations over one kind of window."""

    rows: Axis
    cols: Axis
    groups: int
    x: mx.array
    w: mx.array
    b: mx.array
    dy: mx.array
    back: mx.array  # the bias of the data gradient
    neuron: int = 0
    winograd: int = 0

    def run(self, op: str, arrays: list[mx.array], switches: list[int], *outputs: mx.array) -> list[mx.array]:
        params = [*self.rows, *self.cols, self.groups, *switches]
        shapes, dtypes = [a.shape for a in outputs], [a.dtype for a in outputs]
        return list(getattr(_primitives, op)(arrays, params, shapes, dtypes, mx.cpu))

    def conv(self) -> mx.array:
        return self.run("conv", [self.x, self.w, self.b], [self.neuron, self.winograd], self.dy)[0]

    def grad_input(self) -> mx.array:
        return self.run("conv_grad_input", [self.dy, self.w, self.back], [self.neuron, self.winograd], self.x)[0]

    def grad_weights(self) -> mx.array:
        return self.run("conv_grad_weights", [self.dy, self.x], [self.winograd], self.w)[0]

    def grad_both(self) -> list[mx.array]:
        return self.run("conv_grad_weights", [self.dy, self.x], [self.winograd], self.w, self.b)

    def grad_bias(self) -> mx.array:
        return _primitives.conv_grad_bias([self.dy], [], [self.b.shape], [self.b.dtype], mx.cpu)[0]

    def all(self) -> list[mx.array]:
        return [self.conv(), self.grad_input(), self.grad_weights(), self.grad_bias(), self.grad_both()[1]]


def case(
    windows: tuple[Axis, Axis], channels: tuple[int, int, int], dtype: mx.Dtype = mx.float32, images: int = 2
) -> Case:
    (rows, cols), (groups, c, o) = windows, channels
    x = numbers((images, rows.n_in, cols.n_in, groups * c), dtype)
    w = numbers((groups * o, rows.size, cols.size, c), accumulator(dtype), seed=1)
    b = numbers((groups * o,), accumulator(dtype), seed=2)
    dy = numbers((images, rows.n_out, cols.n_out, groups * o), dtype, seed=3)
    return Case(rows, cols, groups, x, w, b, dy, numbers((groups * c,), accumulator(dtype), seed=4))


def check(k: Case) -> None:
    """Compares all operations with their definitions."""
    x, w, b, dy, back = (exact(a) for a in (k.x, k.w, k.b, k.dy, k.back))
    where = (k.rows, k.cols, k.groups)
    # An output that is not selected is zero and has no bias.
    taken = np.ix_(range(x.shape[0]), range(k.rows.begin, k.rows.end), range(k.cols.begin, k.cols.end))
    mask = np.zeros((*dy.shape[:3], 1))
    mask[taken] = 1
    close(k.conv(), oracle.conv(x, w, b, *where) * mask, oracle.conv(abs(x), abs(w), abs(b), *where))
    dx, dx_scale = (oracle.conv_grad_input(*a, *where) for a in ((dy, w), (abs(dy), abs(w))))
    close(k.grad_input(), dx + back, dx_scale + abs(back))
    rectified = k._replace(neuron=1)
    assert same_bits(rectified.conv(), mx.maximum(k.conv(), 0))
    assert same_bits(rectified.grad_input(), mx.maximum(k.grad_input(), 0))
    close(k.grad_weights(), oracle.conv_grad_weights(dy, x, *where), oracle.conv_grad_weights(abs(dy), abs(x), *where))
    close(k.grad_bias(), oracle.conv_grad_bias(dy), oracle.conv_grad_bias(abs(dy)))
    dw, db = k.grad_both()
    assert same_bits(dw, k.grad_weights())
    close(db, oracle.conv_grad_bias(dy * mask), oracle.conv_grad_bias(abs(dy)))


# Values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS.keys())
def test_every_window(isa: str, windows: tuple[Axis, Axis], channels: tuple[int, int, int]) -> None:
    check(case(windows, channels))


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("windows", ("3x3 p1", "dilated s2", "selected"))
def test_every_dtype(isa: str, windows: str, channels: tuple[int, int, int], dtype: mx.Dtype) -> None:
    check(case(WINDOWS[windows], channels, dtype))


def test_sums_longer_than_a_panel(isa: str) -> None:
    check(case(WINDOWS["3x3 s2 p1"], (1, 150, 70), images=1))


def test_many_small_images(isa: str) -> None:
    check(case((axis(2, 2, 3, 1, 1, 1), axis(3, 3, 3, 1, 1, 1)), (1, 5, 20), images=90))


@pytest.mark.parametrize("cols", (1, 3))
@pytest.mark.parametrize("groups", (1, 20))
def test_weight_gradient_of_a_large_image_rounds_little(isa: str, groups: int, cols: int) -> None:
    # Equal terms round alike, the worst case: n of them in a row lose up to n halves of 2**-23. A plain loop over
    # this million would lose a thousandth; ours never adds more than 256 in a row.
    for height, width in ((1000, 1000), (32, 31_250)):
        windows = axis(height, height, 1, 1, 1, 0), axis(width + cols - 1, width, cols, 1, 1, 0)
        k = case(windows, (groups, 1, 1), images=1)
        k = k._replace(x=mx.full(k.x.shape, 0.1), dy=mx.full(k.dy.shape, 0.3))
        terms = float(np.float32(0.1)) * float(np.float32(0.3))
        np.testing.assert_allclose(exact(k.grad_weights()), height * width * terms, rtol=256 * 2.0**-24)


@pytest.mark.parametrize("channels", (1, 3, 15, 16))
def test_sums_over_many_taps_round_little(isa: str, channels: int) -> None:
    """Equal terms again; no more than a panel's 576 are added in a row, and the sums of panels then."""
    taps = 60_000 // channels
    k = case((axis(9, 9, 1, 1, 1, 0), axis(taps, 1, taps, 1, 1, 0)), (1, channels, 5), images=1)
    k = k._replace(x=mx.full(k.x.shape, 0.1), w=mx.full(k.w.shape, 0.3), b=mx.zeros_like(k.b))
    terms = float(np.float32(0.1)) * float(np.float32(0.3))
    np.testing.assert_allclose(exact(k.conv()), taps * channels * terms, rtol=(576 + 60_000 / 576) * 2.0**-24)


@pytest.mark.parametrize(("taps", "channels"), ((180_000, 1), (60_000, 3), (12_000, 15)))
def test_windows_longer_than_an_int_counts_in_tiles(isa: str, taps: int, channels: int) -> None:
    """Tiles are counted by products of sizes, which once left an int."""
    k = case((axis(1, 1, 1, 1, 1, 0), axis(taps + 3, 4, taps, 1, 1, 0)), (1, channels, 1), images=1)
    x, dy = exact(k.x)[0, 0], exact(k.dy)[0, 0, :, 0]
    expected = sum(dy[i] * x[i : i + taps] for i in range(4))
    close(k.grad_weights()[0, 0], expected, 20)


@pytest.mark.parametrize("dilation", (2, 50_000, 65_536))
def test_far_taps_are_not_folded(isa: str, dilation: int) -> None:
    """Phases share a product only where taps touch; once a product of dilations left an int and said that they did."""
    one = axis(3, (3 + dilation - dilation - 1) // 2 + 1, 2, 2, dilation, dilation)
    k = case((one, one), (1, 2, 2), images=1)
    right, size = (
        oracle.conv_grad_input(f(exact(k.dy)), f(exact(k.w)), k.rows, k.cols) + f(exact(k.back))
        for f in (np.asarray, np.abs)
    )
    close(k.grad_input(), right, size)


def test_terms_that_do_not_exist_do_not_count(isa: str) -> None:
    k = case(WINDOWS["selected"], (1, 3, 7))
    spoiled = np.full(k.dy.shape, np.nan, np.float32)
    taken = np.s_[:, k.rows.begin : k.rows.end, k.cols.begin : k.cols.end]
    spoiled[taken] = np.asarray(k.dy)[taken]
    other = k._replace(dy=mx.array(spoiled))
    assert same_bits(other.grad_input(), k.grad_input()) and same_bits(other.grad_weights(), k.grad_weights())


@pytest.mark.parametrize("channels", ((1, 3, 7), (4, 4, 4), (5, 1, 1)), ids=str)
def test_nan_stays_where_it_is(isa: str, channels: tuple[int, int, int]) -> None:
    groups, c, o = channels
    k = case(WINDOWS["3x3 p1"], channels)
    spoiled = np.array(k.x)
    spoiled[1, 2, 3, 0] = np.nan
    expected = np.zeros(k.dy.shape, bool)
    expected[1, 1:4, 2:5, :o] = True
    assert np.array_equal(np.isnan(exact(k._replace(x=mx.array(spoiled)).conv())), expected)


# Whatever the layout and the threads ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", ((1, 7, 5), (5, 1, 1)), ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_any_layout(isa: str, view: str, channels: tuple[int, int, int], dtype: mx.Dtype) -> None:
    k = case(WINDOWS["4x4 s3,2"], channels, dtype)
    seen = Case(k.rows, k.cols, k.groups, *(VIEWS[view](a) for a in (k.x, k.w, k.b, k.dy, k.back)))
    for got, expected in zip(seen.all(), k.all(), strict=True):
        assert same_bits(got, expected)


@pytest.mark.parametrize("channels", ((1, 40, 70), (1, 3, 20), (4, 4, 4), (40, 1, 1)), ids=str)
def test_same_bits_for_any_number_of_threads(
    isa: str, threads: Callable[[int], None], channels: tuple[int, int, int]
) -> None:
    k = case((axis(19, 10, 3, 2, 1, 1), axis(40, 40, 3, 1, 1, 1)), channels, images=3)
    threads(1)
    expected = k.all()
    mx.eval(expected)
    for count in (2, 3):
        threads(count)
        for got, one in zip(k.all(), expected, strict=True):
            assert same_bits(got, one)


@pytest.mark.parametrize("images, channels", ((0, (1, 3, 4)), (2, (2, 0, 3)), (2, (1, 3, 0)), (1, (3, 1, 0))), ids=str)
def test_empty(isa: str, images: int, channels: tuple[int, int, int]) -> None:
    k = case(WINDOWS["3x3 s2 p1"], channels, images=images)
    close(k.conv(), np.broadcast_to(exact(k.b), k.dy.shape))
    close(k.grad_input(), np.broadcast_to(exact(k.back), k.x.shape))
    dw, db = k.grad_both()
    close(dw, np.zeros(dw.shape))
    close(db, oracle.conv_grad_bias(exact(k.dy)), 100)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "rows", "cols", "dtype"),
    (
        ((16, 32, 2, 6), (8, 3, 3, 6), axis(32, 32, 3, 1, 1, 1), axis(2, 1, 3, 2, 1, 1), mx.float64),
        ((16, 32, 2, 6), (8, 3, 3, 6), axis(32, 32, 3, 1, 1, 1), axis(2, 1, 3, 2, 1, 1), mx.float32),
        ((1, 256, 10, 16), (14, 1, 11, 16), axis(256, 256, 1, 1, 1, 0), axis(10, 1, 11, 2, 1, 1), mx.float32),
        ((1, 256, 20, 3), (14, 1, 11, 3), axis(256, 256, 1, 1, 1, 0), axis(20, 1, 11, 2, 2, 1), mx.float32),
    ),
)
def test_a_full_panel_of_lines_that_start_left_of_the_image(
    isa: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], rows: Axis, cols: Axis, dtype: mx.Dtype
) -> None:
    """Once a vector was written behind the panel."""
    with mx.stream(mx.cpu):
        x, dy = numbers(x_shape, dtype), numbers((x_shape[0], rows.n_out, cols.n_out, w_shape[0]), dtype, 1)
        (dw,) = _primitives.conv_grad_weights([dy, x], [*rows, *cols, 1, 1], [list(w_shape)], [dtype], mx.cpu)
    definition = [
        oracle.conv_grad_weights(g, v, rows, cols, 1)
        for g, v in ((exact(dy), exact(x)), (abs(exact(dy)), abs(exact(x))))
    ]
    close(dw, *definition)


# Winograd -------------------------------------------------------------------------------------------------

# Large enough to be worth its while. Tiles hang over the edge, and channels break vectors.
LARGE_WINDOWS = {
    "3x3 p1": (axis(13, 13, 3, 1, 1, 1), axis(14, 14, 3, 1, 1, 1)),
    "3x3": (axis(15, 13, 3, 1, 1, 0), axis(12, 10, 3, 1, 1, 0)),
    "3x3 uneven": (axis(12, 13, 3, 1, 1, 2), axis(17, 15, 3, 1, 1, 0)),
    "3x3 inside": (axis(16, 12, 3, 1, 1, -2), axis(14, 13, 3, 1, 1, 1)),
    "3x3 selected": (axis(16, 14, 3, 1, 1, 0, 1, 12), axis(15, 15, 3, 1, 1, 1, 2, 14)),
    "3x3 some outside": (axis(9, 14, 3, 1, 1, 3), axis(10, 12, 3, 1, 1, 1)),
    "dilated": (axis(16, 16, 3, 1, 2, 2), axis(17, 13, 3, 1, 3, 1)),
    "s2 p1": (axis(25, 13, 3, 2, 1, 1), axis(26, 13, 3, 2, 1, 1)),
    "s2 uneven": (axis(24, 13, 3, 2, 1, 2), axis(29, 14, 3, 2, 1, 0)),
    "s2 selected": (axis(27, 13, 3, 2, 1, 0, 0, 11), axis(26, 13, 3, 2, 1, 1, 1, 12)),
    "6x6 s2 p2": (axis(24, 12, 6, 2, 1, 2), axis(25, 12, 6, 2, 1, 2)),  # backward, three taps a phase
}
FACTORS = 4  # that its error may exceed the direct sum's by


def _definitions(k: Case) -> list[np.ndarray]:
    x, w, b, dy, back = (exact(a) for a in (k.x, k.w, k.b, k.dy, k.back))
    where = (k.rows, k.cols, k.groups)
    mask = np.zeros((dy.shape[0], k.rows.n_out, k.cols.n_out, 1))
    mask[:, k.rows.begin : k.rows.end, k.cols.begin : k.cols.end] = 1
    dw = oracle.conv_grad_weights(dy, x, *where)
    return [oracle.conv(x, w, b, *where) * mask, oracle.conv_grad_input(dy, w, *where) + back, dw]


def _error(actual: mx.array, expected: np.ndarray) -> float:
    assert tuple(actual.shape) == expected.shape
    return float(np.linalg.norm(exact(actual) - expected))


@pytest.mark.parametrize("channels", ((1, 16, 33), (1, 37, 16), (1, 100, 17)), ids=str)
@pytest.mark.parametrize("windows", LARGE_WINDOWS.values(), ids=LARGE_WINDOWS.keys())
def test_winograd(isa: str, windows: tuple[Axis, Axis], channels: tuple[int, int, int]) -> None:
    k = case(windows, channels)
    fast = k._replace(winograd=1)
    expected = _definitions(k)
    ran = [not same_bits(quick, direct) for quick, direct in zip(fast.all(), k.all(), strict=True)]
    assert any(ran)
    if (k.rows.size, k.rows.stride, k.rows.pad) == (3, 1, 1):
        assert all(ran[:3])
    if k.rows.pad == 3:  # where windows lie wholly outside
        assert ran[:3] == [False, True, False]
    for quick, direct, right in zip(fast.all(), k.all(), expected, strict=False):
        assert _error(quick, right) <= FACTORS * _error(direct, right)
        assert np.abs(exact(quick) - right).max() <= 4e-6 * np.abs(right).max()
    dw, db = fast.grad_both()
    assert same_bits(dw, fast.grad_weights())
    y0, y1 = k.rows.begin, k.rows.end
    close(db, exact(k.dy)[:, y0:y1, k.cols.begin : k.cols.end].sum((0, 1, 2)), 400)
    rectified = fast._replace(neuron=1)
    assert same_bits(rectified.conv(), mx.maximum(fast.conv(), 0))
    assert same_bits(rectified.grad_input(), mx.maximum(fast.grad_input(), 0))


@pytest.mark.parametrize("values", ("normal", "rectified", "positive", "far from zero"))
@pytest.mark.parametrize(
    ("side", "stride", "channels", "outs", "images"),
    ((56, 1, 64, 64, 1), (14, 1, 256, 40, 2), (7, 1, 300, 64, 3), (8, 1, 32, 64, 16), (57, 1, 16, 16, 8),
     (28, 2, 128, 64, 2)),
)  # fmt: skip
def test_winograd_rounds_little_more(
    values: str, side: int, stride: int, channels: int, outs: int, images: int
) -> None:
    """Errors in the 2-norm against float64, which the direct kernel computes for itself."""
    one = axis(side, (side - 1) // stride + 1, 3, stride, 1, 1)
    k = case((one, one), (1, channels, outs), images=images)
    zero = k._replace(b=mx.zeros_like(k.b), back=mx.zeros_like(k.back))
    change = {
        "normal": lambda a: a,
        "rectified": lambda a: mx.maximum(a, 0),
        "positive": mx.abs,
        "far from zero": lambda a: a + 1,
    }[values]
    k = zero._replace(x=change(zero.x), dy=change(zero.dy), w=mx.abs(zero.w) if values == "positive" else zero.w)
    with mx.stream(mx.cpu):
        wide = k._replace(**{name: getattr(k, name).astype(mx.float64) for name in ("x", "w", "b", "dy", "back")})
        right = [exact(a) for a in wide.all()[:3]]
    ratios = [
        _error(quick, r) / _error(direct, r)
        for quick, direct, r in zip(k._replace(winograd=1).all(), k.all(), right, strict=False)
    ]
    print(values, side, channels, outs, [f"{ratio:.2f}" for ratio in ratios])
    assert max(ratios) <= FACTORS


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("windows", ("3x3 p1", "s2 p1"))
def test_winograd_of_every_dtype(isa: str, windows: str, dtype: mx.Dtype) -> None:
    k = case(LARGE_WINDOWS[windows], (1, 20, 40), dtype)
    fast = k._replace(winograd=1)
    if dtype == mx.float64:  # never
        assert all(same_bits(a, b) for a, b in zip(fast.all(), k.all(), strict=True))
        return
    for quick, right in zip(fast.all(), _definitions(k), strict=False):
        close(quick, right, 8 * np.abs(right).max())


@pytest.mark.parametrize(
    ("side", "stride", "channels", "outs"), ((28, 1, 256, 320), (56, 1, 64, 160), (28, 2, 256, 96))
)
def test_winograd_in_batches_and_rounds(side: int, stride: int, channels: int, outs: int) -> None:
    """More weights than are laid out at a time, and more tiles than have places at a time."""
    one = axis(side, (side - 1) // stride + 1, 3, stride, 1, 1)
    k = case((one, one), (1, channels, outs), images=2)
    for quick, direct in zip(k._replace(winograd=1).all(), k.all(), strict=True):
        assert np.abs(exact(quick) - exact(direct)).max() <= 6e-6 * np.abs(exact(direct)).max()


@pytest.mark.parametrize("channels", ((1, 64, 64), (64, 1, 1), (1, 3, 64), (1, 64, 40)), ids=str)
@pytest.mark.parametrize("size", (1, 3))
def test_results_stored_past_the_caches(channels: tuple[int, int, int], size: int) -> None:
    """Outputs of more than 4 MB in memory that was used before: what image by image gives, where they are small."""
    one = axis(56, 56, size, 1, 1, size // 2)
    k = case((one, one), channels, images=9)
    parts = [
        (part.conv(), part.grad_input())
        for part in (k._replace(x=k.x[i : i + 1], dy=k.dy[i : i + 1]) for i in range(9))
    ]
    for _ in range(3):
        for whole, which in ((k.conv(), 0), (k.grad_input(), 1)):
            assert same_bits(whole, mx.concatenate([part[which] for part in parts]))
            spoiled = mx.full(whole.shape, float("nan"))
            mx.eval(spoiled)
            del whole, spoiled


@pytest.mark.parametrize("images", (0, 1, 40))
def test_winograd_of_any_number_of_images(isa: str, images: int) -> None:
    k = case((axis(6, 6, 3, 1, 1, 1), axis(7, 7, 3, 1, 1, 1)), (1, 16, 40), images=images)
    for quick, right in zip(k._replace(winograd=1).all(), _definitions(k), strict=False):
        assert np.abs(exact(quick) - right).max(initial=0) <= 4e-6 * np.abs(right).max(initial=0)


@pytest.mark.parametrize("view", ("offset", "transposed"))
def test_winograd_of_any_layout(isa: str, view: str) -> None:
    k = case(LARGE_WINDOWS["3x3 uneven"], (1, 17, 35))._replace(winograd=1)
    seen = k._replace(**{name: VIEWS[view](getattr(k, name)) for name in ("x", "w", "b", "dy", "back")})
    for got, expected in zip(seen.all(), k.all(), strict=True):
        assert same_bits(got, expected)


@pytest.mark.parametrize("channels", ((1, 16, 33), (1, 70, 150)), ids=str)
@pytest.mark.parametrize("windows", ("3x3 p1", "dilated", "s2 p1"))
def test_winograd_has_the_same_bits_for_any_number_of_threads(
    isa: str, threads: Callable[[int], None], windows: str, channels: tuple[int, int, int]
) -> None:
    k = case(LARGE_WINDOWS[windows], channels, images=9)._replace(winograd=1)
    threads(1)
    expected = k.all()
    mx.eval(expected)
    for count in (2, 3):
        threads(count)
        for got, one in zip(k.all(), expected, strict=True):
            assert same_bits(got, one)


def test_winograd_is_left_alone_where_it_is_not_allowed(isa: str) -> None:
    """A number that is not finite spreads over a tile of its, and over its windows only otherwise."""
    k = case(LARGE_WINDOWS["3x3 p1"], (1, 16, 16))
    spoiled = np.array(k.x)
    spoiled[1, 6, 7, 3] = np.inf
    wrong = [~np.isfinite(exact(k._replace(x=mx.array(spoiled), winograd=allowed).conv())) for allowed in (0, 1)]
    expected = np.zeros(k.dy.shape, bool)
    expected[1, 5:8, 6:9] = True
    assert np.array_equal(wrong[0], expected)
    assert wrong[1].sum() > expected.sum() and not wrong[1][0].any()


# Few channels, and phases together ------------------------------------------------------------------------


@pytest.mark.parametrize("channels", ((1, 3, 64), (1, 1, 20), (1, 4, 35)), ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stride", (1, 2, 3))
def test_few_channels(isa: str, channels: tuple[int, int, int], dtype: mx.Dtype, stride: int) -> None:
    rows, cols = axis(20, 17 // stride + 1, 7, stride, 1, 2), axis(41, 38 // stride + 1, 7, stride, 1, 2)
    check(case((rows, cols), channels, dtype))


@pytest.mark.parametrize("size", (1, 2, 3, 5))
@pytest.mark.parametrize("n_in", (1, 2, 9))
def test_phases_together(isa: str, size: int, n_in: int) -> None:
    rows, cols = axis(n_in, 4, size, 2, 1, 1), axis(11, 5, size, 2, 1, 1)
    check(case((rows, cols), (1, 3, 20)))
    check(case((rows, cols._replace(stride=1)), (1, 2, 20)))


# The neuron's derivative ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((0,), (1,), (3, 5), (2, 3, 4, 1, 1, 2, 1, 3), (7, 50_001)), ids=str)
def test_neuron_grad(isa: str, shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    dy, y = numbers(shape, dtype), numbers(shape, dtype, seed=1)
    (dz,) = _primitives.neuron_grad([dy, y], [1], [shape], [dtype], mx.cpu)
    assert same_bits(dz, mx.where(y > 0, dy, mx.zeros_like(dy), stream=mx.cpu))


def test_neuron_grad_of_special_values(isa: str) -> None:
    inf, nan = float("inf"), float("nan")
    y = mx.array([nan, -0.0, 0.0, inf, -inf, 1e-45, 1.0, 1.0])
    dy = mx.array([1.0, nan, inf, 2.0, nan, 3.0, nan, -inf])
    (dz,) = _primitives.neuron_grad([dy, y], [1], [[8]], [mx.float32], mx.cpu)
    assert np.array_equal(np.asarray(dz), [0, 0, 0, 2, 0, 3, nan, -inf], equal_nan=True)
    assert not np.signbit(np.asarray(dz)[:6]).any()
