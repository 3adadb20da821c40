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
