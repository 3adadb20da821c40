"""The two spellings of a dropout's share: what is kept, and what is dropped."""

from __future__ import annotations

import inspect

import mlx.core as mx
import numpy as np
import pytest
from support import close, exact, numbers, same_bits

import mpsfunc as mf

WORD = 2.0**-32


@pytest.mark.parametrize("p", [0.1, 0.2, 0.25, 0.5, 0.9, np.float32(0.3), WORD, 1 - WORD], ids=str)
def test_what_is_dropped_is_what_is_not_kept(device: mx.Device, p: float) -> None:
    x, keep = numbers((2, 3, 4, 5)), 1 - float(p)
    y, state = mf.dropout_fwd(x, p=p, seed=5)
    assert state.keep_probability == keep and type(state.keep_probability) is float
    for function, first in ((mf.dropout, x), (mf.dropout_mask, (7, 9))):
        assert same_bits(function(first, p=p, seed=5), function(first, keep_probability=keep, seed=5))
    assert same_bits(y, mf.dropout(x, keep_probability=keep, seed=5))


def test_a_tenth_that_is_dropped_leaves_nine(device: mx.Device) -> None:
    """As in PyTorch and MLX, where MPS's number would have kept a tenth."""
    x = mx.ones((100, 100))
    kept = exact(mf.dropout(x, p=0.1, seed=2)) > 0
    assert 0.88 < kept.mean() < 0.92
    close(mf.dropout(x, p=0.1, seed=2), kept / 0.9)
    half = mf.dropout(x, seed=2)
    assert same_bits(half, mf.dropout(x, p=0.5, seed=2)) and same_bits(
        half, mf.dropout(x, keep_probability=0.5, seed=2)
    )


def test_a_number_without_a_name_is_told_both(device: mx.Device) -> None:
    words = (
        r"^dropout: only x goes without a name; got the second argument=0.1, expected keep_probability=, the share "
        r"that is kept \(MPS\), or p=, the share that is dropped \(MLX, PyTorch\)$"
    )
    with pytest.raises(TypeError, match=words):
        mf.dropout(mx.ones(3), 0.1)  # type: ignore[call-arg]
    parameters = inspect.signature(mf.dropout).parameters  # what help() shows
    assert [name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD] == ["x"]
    assert mf.dropout(x=mx.ones(3), p=0.5, seed=1).shape == (3,)


@pytest.mark.parametrize("share", [{"keep_probability": 1}, {"p": 0}, {"p": 0.0}], ids=str)
def test_what_keeps_all_changes_nothing(device: mx.Device, dtype: mx.Dtype, share: dict[str, float]) -> None:
    x = mx.array([1.5, -0.0, float("inf"), float("nan")], dtype)
    mx.random.seed(3)
    y, state = mf.dropout_fwd(x, **share)
    assert same_bits(y, x) and state.keep_probability == 1 and type(state.keep_probability) is float
    assert same_bits(mf.dropout_grad(x, state), x)
    assert mf.dropout_mask((2, 3), **share).all()
    after = mx.random.uniform()
    mx.random.seed(3)
    mf.dropout(x, keep_probability=0.5), mf.dropout_mask((2, 3), p=0.5)
    assert mx.array_equal(mx.random.uniform(), after)  # the random state moves on as it does for other shares
    mask = mx.array([True, False, True, True])
    assert same_bits(mf.dropout(x[:2], mask=mask[:2], **share), mx.array([1.5, -0.0], dtype))


@pytest.mark.parametrize("least", [1e-12, 1e-11, 1e-300, 2.0**-34], ids=str)
def test_shares_next_to_0_and_1(device: mx.Device, least: float) -> None:
    """They are rounded to a step of a mask: to keeping all, but never to keeping nothing."""
    x = mx.array([1.5, -2.0, float("nan")])
    y, state = mf.dropout_fwd(x, p=least, seed=1)
    assert state.keep_probability == 1 and same_bits(y, x) and same_bits(mf.dropout_grad(x, state), x)
    assert mf.dropout_mask((2, 3), p=least).all()
    nearly = mf.nn.Dropout(least)
    assert same_bits(nearly(x), x) and same_bits(mf.nn.Dropout2d(least)(x.reshape(1, 1, 3)), x.reshape(1, 1, 3))
    shares: list[dict[str, float]] = [{"keep_probability": least}, {"p": 1 - max(least, 1e-16)}]
    for share in shares:
        state = mf.dropout_fwd(x, **share, seed=1)[1]
        assert state.keep_probability == WORD
        assert mf.dropout_fwd(x, **share, mask=mx.ones(3, mx.bool_))[0][0] == 1.5 * 2**32
        assert same_bits(
            mf.dropout_mask((4, 5), **share, seed=1), mf.dropout_mask((4, 5), keep_probability=WORD, seed=1)
        )
    forged = mf.dropout_fwd(x, keep_probability=WORD, seed=1)[1]._replace(keep_probability=least)
    assert same_bits(mf.dropout_grad(x, forged), mf.dropout_grad(x, forged._replace(keep_probability=WORD)))
    for share in ({"keep_probability": 0}, {"p": 1}):
        with pytest.raises(ValueError, match="is out of range"):
            mf.dropout(x, **share)


def test_whole_images_are_dropped(device: mx.Device) -> None:
    """Stochastic depth: each image of a batch is kept or dropped as a whole, and the mean of many stays."""
    x = mx.ones((400, 2, 3, 5))
    y, state = mf.dropout_fwd(x, p=0.2, seed=6, mask_stride=(0, 0, 0))
    images = exact(y).reshape(400, -1)
    assert np.array_equal(images.min(axis=1), images.max(axis=1))
    assert {*np.unique(images)} == {0, np.float32(1 / 0.8)} and 0.9 < images.mean() < 1.1
    assert same_bits(mf.dropout_grad(x, state), y)
    mask = mf.dropout_mask(x.shape, p=0.2, seed=6, mask_stride=(0, 0, 0))
    assert mask.shape == (400, 1, 1, 1) and np.array_equal(np.array(mask).reshape(-1), images[:, 0] > 0)
    assert same_bits(mf.dropout(x, p=0.2, mask=mask), y)
