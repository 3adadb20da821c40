"""Winograd's algorithm in the C++ convolutions: where it runs, what it rounds, and what it must not change."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, VIEWS, close, exact, numbers, same_bits, same_bits_for_threads
from support.convolution_case import Case, axis, case, defined, each_isa

import mpsfunc as mf
from mpsfunc.channels.activation_spec import RELU, Activation
from mpsfunc.windows.axis import Axis

# Large enough to be worth its while. Tiles hang over the edge, and channels break vectors.
LARGE_WINDOWS = {
    "3x3 p1": (axis(13, 13, 3, 1, 1, 1), axis(14, 14, 3, 1, 1, 1)),
    "3x3": (axis(15, 13, 3, 1, 1, 0), axis(12, 10, 3, 1, 1, 0)),
    "3x3 uneven": (axis(12, 13, 3, 1, 1, 2), axis(17, 15, 3, 1, 1, 0)),
    "3x3 inside": (axis(16, 12, 3, 1, 1, -2), axis(14, 13, 3, 1, 1, 1)),
    "3x3 selected": (axis(16, 14, 3, 1, 1, 0, 1, 12), axis(15, 15, 3, 1, 1, 1, 2, 14)),
    "3x3 some outside": (axis(9, 14, 3, 1, 1, 3), axis(10, 12, 3, 1, 1, 1)),
    "dilated": (axis(16, 16, 3, 1, 2, 2), axis(17, 13, 3, 1, 3, 1)),
    "s2 p1": (axis(28, 14, 3, 2, 1, 1), axis(27, 14, 3, 2, 1, 1)),
    "s2": (axis(30, 14, 3, 2, 1, 0), axis(27, 13, 3, 2, 1, 0)),  # backward, the last pixel may meet no window
    "s2 uneven": (axis(24, 13, 3, 2, 1, 2), axis(29, 14, 3, 2, 1, 0)),
    "s2 inside": (axis(27, 15, 3, 2, 1, 1), axis(31, 15, 3, 2, 1, -1)),
    "s2 selected p1": (axis(27, 14, 3, 2, 1, 1, 1, 14), axis(28, 14, 3, 2, 1, 1, 2, 14)),
    "s2 selected": (axis(27, 13, 3, 2, 1, 0, 0, 11), axis(26, 13, 3, 2, 1, 1, 1, 12)),
    "6x6 s2 p2": (axis(24, 12, 6, 2, 1, 2), axis(25, 12, 6, 2, 1, 2)),  # backward, three taps a phase
}
FACTORS = 4  # that its error may exceed the direct sum's by


def _defined(
    windows: tuple[Axis, Axis], channels: tuple[int, int, int], dtype: mx.Dtype = mx.float32, images: int = 2
) -> tuple[Case, list[np.ndarray]]:
    """A case, and what conv, grad_input and grad_weights are to give."""
    k, expected = defined(windows, channels, dtype, images)
    return k, [value for value, _ in expected[:3]]


def _error(actual: mx.array, expected: np.ndarray) -> float:
    assert tuple(actual.shape) == expected.shape
    return float(np.linalg.norm(exact(actual) - expected))


@each_isa
@pytest.mark.parametrize("channels", ((1, 16, 33), (1, 37, 16), (1, 100, 17)), ids=str)
@pytest.mark.parametrize("windows", LARGE_WINDOWS.values(), ids=LARGE_WINDOWS.keys())
def test_winograd(isa: str, windows: tuple[Axis, Axis], channels: tuple[int, int, int]) -> None:
    k, expected = _defined(windows, channels)
    fast = k._replace(winograd=1)
    ran = [not same_bits(quick, direct) for quick, direct in zip(fast.all(), k.all(), strict=True)]
    assert any(ran)
    if (k.rows.size, k.rows.stride, k.rows.pad) == (3, 1, 1):
        assert all(ran[:3])
    if k.rows.stride == 2 and k.rows.size == 3:
        assert ran[1] == ((k.rows.pad + k.cols.pad) % 2 == 0)
    if k.rows.pad == 3:  # where windows lie wholly outside
        assert ran[:3] == [False, True, False]
    for quick, direct, right in zip(fast.all(), k.all(), expected, strict=False):
        assert _error(quick, right) <= FACTORS * _error(direct, right)
        assert np.abs(exact(quick) - right).max() <= 4e-6 * np.abs(right).max()
    dw, db = fast.grad_both()
    assert same_bits(dw, fast.grad_weights())
    y0, y1 = k.rows.begin, k.rows.end
    close(db, exact(k.dy)[:, y0:y1, k.cols.begin : k.cols.end].sum((0, 1, 2)), 400)
    rectified = fast._replace(neuron=Activation(RELU))
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
    k, expected = _defined(LARGE_WINDOWS[windows], (1, 20, 40), dtype)
    fast = k._replace(winograd=1)
    if dtype == mx.float64:  # never
        assert all(same_bits(a, b) for a, b in zip(fast.all(), k.all(), strict=True))
        return
    for quick, right in zip(fast.all(), expected, strict=False):
        close(quick, right, 8 * np.abs(right).max())


@pytest.mark.parametrize(
    ("side", "stride", "channels", "outs", "images"),
    (
        *((28, 1, 256, 320, 2), (56, 1, 64, 160, 2), (28, 2, 256, 96, 2)),
        *((56, 1, 16, 16, 2), (56, 1, 30, 17, 2), (125, 1, 16, 20, 20), (125, 2, 33, 16, 8)),
    ),
)
def test_winograd_in_batches_and_rounds(side: int, stride: int, channels: int, outs: int, images: int) -> None:
    """More weights than are laid out at a time, more tiles than have places at a time, and parts with their own."""
    one = axis(side, (side - 1) // stride + 1, 3, stride, 1, 1)
    k = case((one, one), (1, channels, outs), images=images)
    for quick, direct in zip(k._replace(winograd=1).all(), k.all(), strict=True):
        assert np.abs(exact(quick) - exact(direct)).max() <= 6e-6 * np.abs(exact(direct)).max()


@pytest.mark.parametrize("images", (0, 1, 40))
def test_winograd_of_any_number_of_images(isa: str, images: int) -> None:
    k, expected = _defined((axis(6, 6, 3, 1, 1, 1), axis(7, 7, 3, 1, 1, 1)), (1, 16, 40), images=images)
    for quick, right in zip(k._replace(winograd=1).all(), expected, strict=False):
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
    same_bits_for_threads(threads, k.all)


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


def test_the_environment_switches_it_off(on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPSFUNC_WINOGRAD=0: other bits, and an infinity that stays with the nine outputs that read it."""
    x, w = numbers((1, 16, 16, 16)), numbers((16, 3, 3, 16), seed=1)
    spoiled = mx.where(mx.arange(256).reshape(1, 16, 16, 1) == 7 * 16 + 7, float("inf"), x)

    def everything() -> list[mx.array]:
        y, state = mf.conv_fwd(x, w, padding=1)
        return [y, mf.conv_grad_input(x, w, state), mf.conv_grad_weights(x, x, state).dw]

    def spread() -> int:
        return int(mx.logical_not(mx.isfinite(mf.conv(spoiled, w, padding=1))).any(axis=-1).sum().item())

    with_it, far = everything(), spread()
    monkeypatch.setenv("MPSFUNC_WINOGRAD", "0")
    assert not any(same_bits(a, b) for a, b in zip(everything(), with_it, strict=True))
    assert spread() == 9 < far
