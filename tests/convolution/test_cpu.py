"""The C++ convolutions by themselves: every instruction set, dtype, kind of window, grouping and broken vector."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, VIEWS, close, exact, numbers, same_bits, same_bits_for_threads
from support.convolution_case import CHANNELS, WINDOWS, Case, axis, case, check, each_isa, weight_gradient
from support.oracle import activation as oracle_activation
from support.oracle import convolution as oracle

from mpsfunc.channels.activation_spec import ELU, RELU, SIGMOID, TANH, Activation
from mpsfunc.convolution.params import ConvGradWeightsParams
from mpsfunc.core.params import for_cpu
from mpsfunc.windows.axis import Axis

_primitives = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its C++ module")

# Values ---------------------------------------------------------------------------------------------------


@each_isa
@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS.keys())
def test_every_window(isa: str, windows: tuple[Axis, Axis], channels: tuple[int, int, int]) -> None:
    check(windows, channels)


@each_isa
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("windows", ("3x3 p1", "dilated s2", "selected"))
def test_every_dtype(isa: str, windows: str, channels: tuple[int, int, int], dtype: mx.Dtype) -> None:
    check(WINDOWS[windows], channels, dtype)


def test_sums_longer_than_a_panel(isa: str) -> None:
    check(WINDOWS["3x3 s2 p1"], (1, 150, 70), images=1)


def test_many_small_images(isa: str) -> None:
    check((axis(2, 2, 3, 1, 1, 1), axis(3, 3, 3, 1, 1, 1)), (1, 5, 20), images=90)


@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", ((1, 1, 1), (1, 5, 70), (1, 64, 33), (1, 256, 40), (1, 257, 20)), ids=str)
def test_many_pixels_by_themselves(isa: str, channels: tuple[int, int, int], dtype: mx.Dtype) -> None:
    check((axis(24, 24, 1, 1, 1, 0), axis(41, 41, 1, 1, 1, 0)), channels, dtype, images=2)


def test_so_many_pixels_that_a_task_has_several_chunks(isa: str) -> None:
    check((axis(91, 91, 1, 1, 1, 0), axis(97, 97, 1, 1, 1, 0)), (1, 5, 35), images=1)


@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pixels, channels", ((1, (1, 1037, 1030)), (14, (1, 300, 900)), (300, (1, 515, 529)),
                                              (896, (1, 515, 529)), (897, (1, 515, 529))), ids=str)  # fmt: skip
def test_few_pixels_and_many_weights(isa: str, pixels: int, channels: tuple[int, int, int], dtype: mx.Dtype) -> None:
    check((axis(1, 1, 1, 1, 1, 0), axis(pixels, pixels, 1, 1, 1, 0)), channels, dtype, images=1)


# Rows of one image, and columns.
ELSEWHERE = {
    "a row further down": (axis(5, 1, 1, 1, 1, -2), axis(7, 7, 1, 1, 1, 0)),
    "a selected row": (axis(5, 5, 1, 1, 1, 0, 2, 3), axis(7, 7, 1, 1, 1, 0)),
    "selected columns": (axis(1, 1, 1, 1, 1, 0), axis(9, 9, 1, 1, 1, 0, 2, 6)),
    "columns further right": (axis(1, 1, 1, 1, 1, 0), axis(7, 7, 1, 1, 1, -1)),
    "padded columns": (axis(1, 1, 1, 1, 1, 0), axis(7, 9, 1, 1, 1, 1)),
    "a row below": (axis(1, 1, 1, 1, 1, -3), axis(7, 7, 1, 1, 1, 0)),
    "a row above": (axis(1, 1, 1, 3, 1, 1), axis(7, 7, 1, 1, 1, 0)),
    "no rows": (axis(0, 1, 1, 1, 1, 0), axis(7, 7, 1, 1, 1, 0)),
    "columns apart": (axis(1, 1, 1, 1, 1, 0), axis(7, 4, 1, 2, 1, 0)),
    "none selected": (axis(1, 1, 1, 1, 1, 0), axis(7, 7, 1, 1, 1, 0, 3, 3)),
}


@each_isa
@pytest.mark.parametrize("windows", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_few_pixels_and_many_weights_elsewhere(isa: str, windows: tuple[Axis, Axis]) -> None:
    check(windows, (1, 515, 529), images=1)


@each_isa
@pytest.mark.parametrize("windows", ("1x1 s2", "3x3 s2 p1", "some outside", "stride leaves gaps"))
def test_few_pixels_and_many_weights_of_other_windows(isa: str, windows: str) -> None:
    check(WINDOWS[windows], (1, 515, 529))


def test_bias_gradient_of_few_pixels_rounds_little(isa: str) -> None:
    k = case((axis(1, 1, 1, 1, 1, 0), axis(380, 380, 1, 1, 1, 0)), (1, 515, 529), images=1)
    _, db = k._replace(dy=mx.full(k.dy.shape, 1.3)).grad_both()
    # Equal terms round alike: 380 in a row would lose 3.7e-6 of the sum, at most 256 lose 2e-7.
    np.testing.assert_allclose(exact(db), np.full(db.shape, 380 * np.float64(np.float32(1.3))), rtol=1e-6)


@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("size", "channels"), ((1, (1, 1037, 1030)), (1, (2, 701, 803)), (3, (1, 603, 207))), ids=str)
def test_more_weights_than_a_cache_holds(isa: str, size: int, channels: tuple[int, int, int], dtype: mx.Dtype) -> None:
    windows = axis(4, 4, size, 1, 1, size // 2), axis(3, 3, size, 1, 1, size // 2)
    k, (of_dw, of_db) = weight_gradient(windows, channels, dtype, images=3)
    dw, db = k.grad_both()
    close(dw, *of_dw)
    close(db, *of_db)
    assert same_bits(k.grad_weights(), dw)


@pytest.mark.parametrize("winograd", (0, 1))
@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("dtype", (mx.float16, mx.bfloat16), ids=str)
@pytest.mark.parametrize("windows", ("1x1", "3x3 p1", "3x3 s2 p1"))
def test_weights_of_the_images_dtype_are_widened(
    isa: str, windows: str, dtype: mx.Dtype, channels: tuple[int, int, int], winograd: int
) -> None:
    k = case(WINDOWS[windows], channels, dtype)._replace(winograd=winograd)
    narrow = k._replace(w=k.w.astype(dtype))
    wide = k._replace(w=narrow.w.astype(mx.float32))
    assert same_bits(narrow.conv(), wide.conv()) and same_bits(narrow.grad_input(), wide.grad_input())


def test_many_weights_are_widened(isa: str) -> None:
    k = case(WINDOWS["1x1"], (1, 150, 333), mx.bfloat16)
    narrow = k._replace(w=k.w.astype(mx.bfloat16))
    assert narrow.w.size > 3 * 2**14 and same_bits(narrow.conv(), k._replace(w=narrow.w.astype(mx.float32)).conv())


def test_weights_of_another_dtype_are_refused() -> None:
    k = case(WINDOWS["1x1"], (1, 3, 7), mx.bfloat16)
    for op in (Case.conv, Case.grad_input):
        with pytest.raises(ValueError, match="expected weights of the images' dtype or the accumulator's"):
            op(k._replace(w=k.w.astype(mx.float16)))


def test_weights_of_many_tasks(isa: str) -> None:
    """Sums of more than 4 MB, cut along both kinds of channels, and cotangents of more than 16 MB."""
    windows, channels = (axis(35, 35, 1, 1, 1, 0), axis(60, 60, 1, 1, 1, 0)), (1, 517, 2061)
    k, (of_dw, _) = weight_gradient(windows, channels, mx.float32, images=1)
    assert k.dy.nbytes > 2**24 and k.w.nbytes > 2**22 and channels[1] > 15 * 32
    close(k.grad_weights(), *of_dw)


@pytest.mark.parametrize("cols", (1, 3))
@pytest.mark.parametrize("groups", (1, 20))
def test_weight_gradient_of_a_large_image_rounds_little(isa: str, groups: int, cols: int) -> None:
    # Equal terms round alike, the worst case: n of them in a row lose up to n halves of 2**-23. A plain loop over
    # this million would lose a thousandth; ours never adds more than 256 in a row.
    for height, width in ((1000, 1000), (32, 31_250)):
        rows, columns = axis(height, height, 1, 1, 1, 0), axis(width + cols - 1, width, cols, 1, 1, 0)
        x, dy = (mx.full((1, height, w, groups), v) for w, v in ((columns.n_in, 0.1), (width, 0.3)))
        none = mx.zeros((groups,))
        k = Case(rows, columns, groups, x, mx.zeros((groups, 1, cols, 1)), none, dy, none)
        terms = float(np.float32(0.1)) * float(np.float32(0.3))
        np.testing.assert_allclose(exact(k.grad_weights()), height * width * terms, rtol=256 * 2.0**-24)


@pytest.mark.parametrize("pads", ((1, 1), (0, 0), (2, 3)), ids=str)
@pytest.mark.parametrize(("height", "width"), ((70, 9), (6, 300), (3, 3)))
def test_depthwise_gradient_over_several_lines_and_pieces_of_lines(
    isa: str, height: int, width: int, pads: tuple[int, int]
) -> None:
    (top, left) = pads
    windows = axis(height, height + 2 * top - 2, 3, 1, 1, top), axis(width, width + 2 * left - 2, 3, 1, 1, left)
    check(windows, (40, 1, 1))


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


STRIDED = axis(19, 10, 3, 2, 1, 1), axis(40, 40, 3, 1, 1, 1)
FEW_PIXELS = axis(1, 1, 1, 1, 1, 0), axis(100, 100, 1, 1, 1, 0)


@pytest.mark.parametrize(
    ("windows", "channels"),
    (
        *((STRIDED, channels) for channels in ((1, 40, 70), (1, 3, 20), (4, 4, 4), (40, 1, 1))),
        (FEW_PIXELS, (1, 515, 529)),
    ),
    ids=str,
)
def test_same_bits_for_any_number_of_threads(
    isa: str, threads: Callable[[int], None], windows: tuple[Axis, Axis], channels: tuple[int, int, int]
) -> None:
    k = case(windows, channels, images=3)
    same_bits_for_threads(threads, k.all)


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
    params = for_cpu(ConvGradWeightsParams(rows, cols, 1, 1, 0))
    with mx.stream(mx.cpu):
        x, dy = numbers(x_shape, dtype), numbers((x_shape[0], rows.n_out, cols.n_out, w_shape[0]), dtype, 1)
        (dw,) = _primitives.conv_grad_weights([dy, x], params, [list(w_shape)], [dtype], mx.cpu)
    definition = [
        oracle.conv_grad_weights(g, v, rows, cols, 1)
        for g, v in ((exact(dy), exact(x)), (abs(exact(dy)), abs(exact(x))))
    ]
    close(dw, *definition)


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


def test_results_of_few_pixels_stored_past_the_caches() -> None:
    k = case((axis(1, 1, 1, 1, 1, 0), axis(380, 380, 1, 1, 1, 0)), (1, 256, 2816), images=1)
    half = axis(190, 190, 1, 1, 1, 0)
    halves = [k._replace(cols=half, x=k.x[:, :, at], dy=k.dy[:, :, at]).conv() for at in (slice(190), slice(190, None))]
    for _ in range(3):
        whole = k.conv()
        assert whole.nbytes > 2**22 > halves[0].nbytes and same_bits(whole, mx.concatenate(halves, 2))
        spoiled = mx.full(whole.shape, float("nan"))
        mx.eval(spoiled)
        del whole, spoiled


# Of 1032 channels, not all vectors are whole. With 3x3 taps the sums over all outs are a block of lanes' own.
@pytest.mark.parametrize(("size", "channels", "outs"), ((1, 1024, 1030), (1, 1032, 1030), (3, 544, 544)), ids=str)
def test_a_weight_gradient_stored_past_the_caches(size: int, channels: int, outs: int) -> None:
    one = axis(4, 4, size, 1, 1, size // 2)
    k = case((one, one), (1, channels, outs), images=3)
    parts = slice(outs // 2), slice(outs // 2, None)
    halves = [k._replace(dy=k.dy[..., part], w=k.w[part]).grad_weights() for part in parts]
    for _ in range(3):
        whole = k.grad_weights()
        assert whole.nbytes > 2**22 and same_bits(whole, mx.concatenate(halves))
        spoiled = mx.full(whole.shape, float("nan"))
        mx.eval(spoiled)
        del whole, spoiled


# Few channels, and phases together ------------------------------------------------------------------------


@each_isa
@pytest.mark.parametrize("channels", ((1, 3, 64), (1, 1, 20), (1, 4, 35), (1, 3, 100)), ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stride", (1, 2, 3))
def test_few_channels(isa: str, channels: tuple[int, int, int], dtype: mx.Dtype, stride: int) -> None:
    rows, cols = axis(20, 17 // stride + 1, 7, stride, 1, 2), axis(41, 38 // stride + 1, 7, stride, 1, 2)
    check((rows, cols), channels, dtype)


@each_isa
@pytest.mark.parametrize("size", (1, 2, 3, 5))
@pytest.mark.parametrize("n_in", (1, 2, 9))
def test_phases_together(isa: str, size: int, n_in: int) -> None:
    rows, cols = axis(n_in, 4, size, 2, 1, 1), axis(11, 5, size, 2, 1, 1)
    check((rows, cols), (1, 3, 20))
    check((rows, cols._replace(stride=1)), (1, 2, 20))


# Neurons ----------------------------------------------------------------------------------


FUSED = {
    "leaking": (Activation(RELU, 0.25), {"type": "relu", "a": 0.25}),
    "sigmoid": (Activation(SIGMOID), {"type": "sigmoid"}),
    "tanh": (Activation(TANH, -1.5, 0.5), {"type": "tanh", "a": -1.5, "b": 0.5}),
    "elu": (Activation(ELU, 0.5), {"type": "elu", "a": 0.5}),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [(1, 16, 33), (2, 3, 16), (65, 1, 1), (1, 3, 7)], ids=str)
@pytest.mark.parametrize("windows", ["3x3 p1", "3x3 s2 p1", "1x1", "dilated"])
@pytest.mark.parametrize("name", FUSED)
def test_fused_neurons(isa: str, name: str, windows: str, channels: tuple[int, int, int], dtype: mx.Dtype) -> None:
    act, how = FUSED[name]
    k = case(WINDOWS[windows], channels, dtype)
    arrays = {name: a.astype(mx.float64, stream=mx.cpu) for name, a in k._asdict().items() if isinstance(a, mx.array)}
    wide = k._replace(**arrays)
    sizes = k._replace(**{name: mx.abs(a, stream=mx.cpu) for name, a in arrays.items()})
    for run in (Case.conv, Case.grad_input):
        expected = oracle_activation.neuron(exact(run(wide)), **how)
        close(run(k._replace(neuron=act)), expected, exact(run(sizes)) + 1, slack=2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((0,), (1,), (3, 5), (2, 3, 4, 1, 1, 2, 1, 3), (7, 50_001)), ids=str)
def test_neuron_grad_from_output(isa: str, shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    dy, y = numbers(shape, dtype), numbers(shape, dtype, seed=1)
    (dz,) = _primitives.neuron_grad_from_output([dy, y], list(for_cpu(Activation(RELU))), [shape], [dtype], mx.cpu)
    assert same_bits(dz, mx.where(y > 0, dy, mx.zeros_like(dy), stream=mx.cpu))


def test_neuron_grad_from_output_of_special_values(isa: str) -> None:
    inf, nan = float("inf"), float("nan")
    y = mx.array([nan, -0.0, 0.0, inf, -inf, 1e-45, 1.0, 1.0])
    dy = mx.array([1.0, nan, inf, 2.0, nan, 3.0, nan, -inf])
    (dz,) = _primitives.neuron_grad_from_output([dy, y], list(for_cpu(Activation(RELU))), [[8]], [mx.float32], mx.cpu)
    assert np.array_equal(np.asarray(dz), [0, 0, 0, 2, 0, 3, nan, -inf], equal_nan=True)
    assert not np.signbit(np.asarray(dz)[:6]).any()
