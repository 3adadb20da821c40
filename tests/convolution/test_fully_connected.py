"""The fully connected layer: a convolution that sees the whole image at once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from support import VIEWS, accumulator, close, exact, numbers, same_bits

import mpsfunc as mf


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(5, 2, 3, 4), (1, 1, 1, 7), (3, 1, 4, 33), (0, 2, 2, 3)])
def test_definition(device: mx.Device, dtype: mx.Dtype, shape: tuple[int, ...], view: str) -> None:
    seen = VIEWS[view]
    x, w, b = numbers(shape, dtype), numbers((6, *shape[1:]), dtype, 1), numbers((6,), dtype, 2)
    n, length = shape[0], x.size // max(shape[0], 1) if shape[0] else 12
    flat, rows = exact(x).reshape(n, length), exact(w).reshape(6, length)
    y, state = mf.fully_connected_fwd(seen(x), seen(w), b)
    assert y.shape == (n, 1, 1, 6) and y.dtype == dtype
    close(y.reshape(n, 6), flat @ rows.T + exact(b), np.abs(flat) @ np.abs(rows).T + np.abs(exact(b)))
    dy = numbers((n, 1, 1, 6), dtype, 3)
    g = exact(dy).reshape(n, 6)
    dx, grown = mf.fully_connected_grad(seen(dy), seen(x), seen(w), state)
    assert dx is not None and dx.dtype == dtype and grown.dw.dtype == accumulator(dtype)
    close(dx, (g @ rows).reshape(shape), (np.abs(g) @ np.abs(rows)).reshape(shape))
    close(grown.dw, (g.T @ flat).reshape(w.shape), (np.abs(g).T @ np.abs(flat)).reshape(w.shape))
    close(grown.db, g.sum(0), np.abs(g).sum(0))
    assert same_bits(dx, mf.conv_grad_input(dy, w, state))
    assert same_bits(grown.dw, mf.conv_grad_weights(dy, x, state).dw)


def test_a_convolution_as_large_as_the_image_is_the_same(device: mx.Device) -> None:
    x, w, b = numbers((3, 4, 5, 2)), numbers((6, 4, 5, 2), seed=1), numbers((6,), seed=2)
    assert same_bits(mf.fully_connected(x, w, b, neuron="relu"), mf.conv(x, w, b, neuron="relu"))
    centred = mf.conv(x, w, b, offset=(2, 2), out_size=1)  # MPS: the centre is kernel_size // 2
    assert same_bits(mf.fully_connected(x, w, b), centred)


def test_sums_over_parts_of_a_batch(device: mx.Device) -> None:
    x, w = numbers((4, 2, 2, 3)), numbers((5, 2, 2, 3), seed=1)
    _, state = mf.fully_connected_fwd(x, w)
    dy = numbers((4, 1, 1, 5), seed=2)
    _, whole = mf.fully_connected_grad(dy, x, w, state)
    for part in (slice(0, 1), slice(1, 4)):
        dx, state = mf.fully_connected_grad(dy[part], x[part], w, state, option="weights_and_bias")
        assert dx is None
    close(state.dw, exact(whole.dw), 20)
    close(state.db, exact(whole.db), 20)


def test_refusals() -> None:
    x, w = mx.zeros((2, 3, 4, 5)), mx.zeros((6, 3, 4, 5))
    with pytest.raises(ValueError, match="^fully_connected: the weights do not fit the images; got w.shape"):
        mf.fully_connected(x, w[:, :2])
    with pytest.raises(ValueError, match="^fully_connected: the bias does not fit the weights"):
        mf.fully_connected(x, w, mx.zeros(5))
    with pytest.raises(ValueError, match="^fully_connected: not an image batch"):
        mf.fully_connected(x.reshape(2, -1), w)
    y, state = mf.fully_connected_fwd(x, w)
    with pytest.raises(ValueError, match="^fully_connected_grad: x does not belong to this state"):
        mf.fully_connected_grad(y, x[:, :2], w, state)
    with pytest.raises(ValueError, match="^fully_connected_grad: dy does not belong to this state"):
        mf.fully_connected_grad(y.reshape(2, 6), x, w, state)
    with pytest.raises(TypeError, match="^fully_connected_grad: option is not a name; got option=3"):
        mf.fully_connected_grad(y, x, w, state, option=3)
    _, other = mf.conv_fwd(x, mx.zeros((6, 2, 2, 5)))
    with pytest.raises(ValueError, match="^fully_connected_grad: "):
        mf.fully_connected_grad(y, x, w, other)
