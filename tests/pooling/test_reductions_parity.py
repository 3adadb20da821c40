"""PyTorch's reductions in float64, where they are ours."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from support import numbers
from support.oracle.reductions import AXES
from support.parity import agree, backward, theirs

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]
DIMS = {"rows": (3,), "columns": (2,), "channels": (1,), "space": (2, 3)}


@pytest.mark.parametrize("over", AXES)
@pytest.mark.parametrize("shape", [(2, 5, 7, 3), (1, 140, 3, 20), (3, 1, 1, 1)], ids=str)
def test_sums_and_means(shape: tuple[int, ...], over: str) -> None:
    x, source = numbers(shape, mx.float64), theirs(numbers(shape, mx.float64))
    for name in ("sum", "mean"):
        output = getattr(source, name)(DIMS[over], keepdim=True)
        y = getattr(mf, f"reduce_{name}")(x, over)
        agree(y, output)
        dy = numbers(tuple(y.shape), mx.float64, 1)
        agree(getattr(mf, f"reduce_{name}_grad")(dy, shape, over), *backward(output, dy, source))


@pytest.mark.parametrize("over", AXES)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_and_their_places(name: str, over: str) -> None:
    x = numbers((2, 5, 7, 3), mx.float64)  # no two are equal
    source = theirs(x)
    output = getattr(source, f"a{name}")(DIMS[over], keepdim=True)
    y = getattr(mf, f"reduce_{name}")(x, over)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    agree(getattr(mf, f"reduce_{name}_grad")(dy, x, over), *backward(output, dy, source))
    flat = source.flatten(2) if over == "space" else source
    places = getattr(flat, f"arg{name}")(DIMS[over][0], keepdim=True)
    found = np.array(getattr(mf, f"reduce_arg{name}")(x, over)).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(found.reshape(places.shape), places.numpy())


@pytest.mark.parametrize("over", AXES)
@pytest.mark.parametrize("weights", [(2, 5, 7, 3), (1, 1, 1, 3), (2, 5, 1, 1)], ids=str)
def test_weighted_sums(weights: tuple[int, ...], over: str) -> None:
    x, w = numbers((2, 5, 7, 3), mx.float64), numbers(weights, mx.float64, 2)
    source, shares = theirs(x), theirs(w)
    output = (source * shares).sum(DIMS[over], keepdim=True)
    y = mf.reduce_weighted_sum(x, w, over)
    agree(y, output)
    dy = numbers(tuple(y.shape), mx.float64, 1)
    by_x, by_w = backward(output, dy, source, shares)
    agree(mf.reduce_weighted_sum_grad(dy, x, w, over), by_x)
    agree(mf.reduce_weighted_sum_grad(dy, x, w, over, operand="secondary"), by_w)
