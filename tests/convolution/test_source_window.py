"""Gradients of a part of a convolution's outputs."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers, same_bits
from support.oracle.windows import within

import mpsfunc as mf

X, W, DY = (2, 9, 8, 3), (4, 3, 2, 3), (2, 5, 4, 4)
HOW = {"stride": 2, "padding": (1, 0)}
WINDOWS = [((0, 0), (5, 4)), ((1, 2), (3, 1)), ((-1, 2), (3, 9)), ((4, 3), (1, 1)), ((2, 2), (0, 3)), ((7, 0), (2, 2))]


def clipped(dy: mx.array, window: tuple[tuple[int, int], tuple[int, int]]) -> mx.array:
    """dy with zeros elsewhere; what hangs over the output is not there."""
    (top, left), (height, width) = window
    ends = max(top + height, 0), max(left + width, 0)
    top, left = max(top, 0), max(left, 0)
    part = (top, left), (max(ends[0] - top, 0), max(ends[1] - left, 0))
    return mx.array(within(np.array(dy), part))


@pytest.mark.parametrize("neuron", [None, "tanh", "gelu"])
@pytest.mark.parametrize("window", WINDOWS)
def test_others_count_as_zeros(window: tuple[tuple[int, int], tuple[int, int]], neuron: str | None) -> None:
    x, w, dy = numbers(X), numbers(W, seed=1), numbers(DY, seed=2)
    _, state = mf.conv_fwd(x, w, neuron=neuron, **HOW)
    part = clipped(dy, window)
    assert same_bits(mf.conv_grad_input(dy, w, state, source_window=window), mf.conv_grad_input(part, w, state))
    for ours, zeros in (
        (mf.conv_grad_weights(dy, x, state, source_window=window), mf.conv_grad_weights(part, x, state)),
        (mf.conv_grad(dy, x, w, state, source_window=window)[1], mf.conv_grad(part, x, w, state)[1]),
    ):
        assert same_bits(ours.dw, zeros.dw) and same_bits(ours.db, zeros.db)


def test_parts_add_up_and_what_is_not_a_number_elsewhere_does_not_matter() -> None:
    x, w, dy = numbers(X), numbers(W, seed=1), numbers(DY, seed=2)
    _, whole = mf.conv_fwd(x, w, **HOW)
    parts = whole
    images = []
    for window in (((0, 0), (2, 4)), ((2, 0), (3, 1)), ((2, 1), (3, 3))):
        (top, left), (height, width) = window
        inside = mx.zeros(DY, mx.bool_)
        inside[:, top : top + height, left : left + width] = True
        given = mx.where(inside, dy, mx.nan)
        dx, parts = mf.conv_grad(given, x, w, parts, source_window=window)
        images.append(dx)
    dx, whole = mf.conv_grad(dy, x, w, whole)
    close(sum(images), exact(dx), 1 + abs(exact(dx)))
    close(parts.dw, exact(whole.dw), 1 + abs(exact(whole.dw)))
    close(parts.db, exact(whole.db), 1 + abs(exact(whole.db)))


def test_a_slope_that_is_not_a_number_does_not_matter_elsewhere() -> None:
    x, w = numbers(X), numbers(W, seed=1)
    _, state = mf.conv_fwd(x, w, neuron="tanh", **HOW)
    lost = mx.where(mx.arange(5)[:, None, None] < 2, mx.nan, state.y)
    dx = mf.conv_grad_input(mx.ones(DY), w, state._replace(y=lost), source_window=((2, 0), (3, 4)))
    assert same_bits(dx, mf.conv_grad_input(clipped(mx.ones(DY), ((2, 0), (3, 4))), w, state))


def test_it_is_differentiated_and_mapped() -> None:
    x, w, dy = numbers(X), numbers(W, seed=1), numbers(DY, seed=2)
    state = mf.conv_state(X, W, **HOW)
    window = ((1, 1), (2, 3))

    def of(dy: mx.array) -> mx.array:
        return mf.conv_grad_input(dy, w, state, source_window=window)

    (pulled,) = mx.vjp(of, [dy], [x])[1]
    right = clipped(mf.conv(x, w, **HOW), window)
    close(pulled, exact(right), 1 + abs(exact(right)))
    many = mx.stack([dy, 2 * dy])
    assert same_bits(mx.vmap(of)(many), mx.stack([of(dy), of(2 * dy)]))


@pytest.mark.parametrize("window", [(1, 2, 3), ((0, 0),), "ab", ((0, 0), (1, -1))])
def test_what_is_no_window_is_refused(window: object) -> None:
    state = mf.conv_state(X, W, **HOW)
    with pytest.raises(
        ValueError, match=r"^conv_grad_weights: source_window .*; got source_window=.*expected \(\(y, x\)"
    ):
        mf.conv_grad_weights(numbers(DY), numbers(X), state, source_window=window)  # type: ignore[arg-type]  # the point
