"""PyTorch, where what works element by element means the same."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]
SHAPES = [((2, 3, 4, 5), (2, 3, 4, 5)), ((2, 3, 4, 5), (1, 1, 1, 5)), ((2, 1, 4, 1), (1, 3, 1, 5))]
OPERATIONS: dict[str, Any] = {
    "add": torch.add, "subtract": torch.subtract, "multiply": torch.multiply, "divide": torch.divide,
}  # fmt: skip


def theirs(a: mx.array) -> Any:
    return torch.tensor(exact(a), requires_grad=True)


def agree(ours: mx.array, tensor: Any) -> None:
    np.testing.assert_allclose(exact(ours), tensor.detach().numpy(), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("limits", [(None, None), (-0.5, 0.75)], ids=str)
def test_arithmetic(operation: str, shapes: Any, limits: Any) -> None:
    x, y = (numbers(shape, mx.float64, seed) for seed, shape in enumerate(shapes))
    a, b = theirs(x), theirs(y)
    output = OPERATIONS[operation](1.5 * a, -0.5 * b) + 0.25
    args: dict[str, Any] = {"primary_scale": 1.5, "secondary_scale": -0.5, "bias": 0.25}
    if limits[0] is not None:
        output = output.clamp(*limits)
        args |= {"minimum": limits[0], "maximum": limits[1]}
    agree(mf.arithmetic(x, y, operation, **args), output)
    dy = numbers(tuple(output.shape), mx.float64, 2)
    pulled = torch.autograd.grad(output, (a, b), torch.tensor(exact(dy)))
    for i, operand in enumerate(("primary", "secondary")):
        agree(mf.arithmetic_grad(dy, x, y, operation, operand=operand, clamp=True, **args), pulled[i])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_with_its_mask(p: float) -> None:
    """PyTorch's dropout of ones tells its mask; with that mask ours is the same, forward and backward."""
    x, dy = numbers((2, 3, 4, 5), mx.float64), numbers((2, 3, 4, 5), mx.float64, 1)
    torch.manual_seed(1)
    mask = torch.nn.functional.dropout(torch.ones(2, 3, 4, 5), p) != 0
    torch.manual_seed(1)
    source = theirs(x)
    output = torch.nn.functional.dropout(source, p)
    y, state = mf.dropout_fwd(x, p=p, mask=mx.array(mask.numpy()))
    np.testing.assert_allclose(exact(y), np.where(mask, output.detach().numpy(), 0), rtol=1e-10)
    agree(mf.dropout_grad(dy, state), torch.autograd.grad(output, source, torch.tensor(exact(dy)))[0])


@pytest.mark.parametrize("comparison", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
def test_compare(comparison: str) -> None:
    x, y = (mx.round(numbers((2, 3, 4, 5), mx.float64, seed)) for seed in (0, 1))
    theirs_of = {"equal": torch.eq}.get(comparison) or getattr(torch, comparison)
    agree(mf.compare(x, y, comparison), theirs_of(theirs(x), theirs(y)).double())


def test_equal_within_a_threshold() -> None:
    x, y = mx.round(numbers((200,), mx.float64) * 8) / 8, mx.round(numbers((200,), mx.float64, 1) * 8) / 8
    x[:3] = y[:3] = mx.array([np.inf, -np.inf, 0.0], mx.float64)
    expected = torch.isclose(theirs(x), theirs(y), rtol=0.0, atol=0.25)
    agree(mf.compare(x, y, "equal", 0.25), expected.double())


def test_dropout_of_whole_channels() -> None:
    """The mask of dropout2d has one value for each channel of each image."""
    torch.manual_seed(1)
    ones = torch.nn.functional.dropout2d(torch.ones(4, 6, 3, 5), 0.5)
    mask = mx.array((ones[:, :, :1, :1] != 0).numpy().transpose(0, 2, 3, 1))
    torch.manual_seed(1)
    x = numbers((4, 3, 5, 6), mx.float64)
    output = torch.nn.functional.dropout2d(torch.tensor(exact(x).transpose(0, 3, 1, 2)), 0.5)
    np.testing.assert_allclose(
        exact(mf.dropout(x, keep_probability=0.5, mask=mask)), output.numpy().transpose(0, 2, 3, 1)
    )


def test_slopes_on_a_limit() -> None:
    """PyTorch lets gradients through where a limit is just reached; these do not, and neither does MPS's mask."""
    x, zeros = mx.array([1.0, 2.0, 3.0], mx.float64), mx.zeros(3, mx.float64)
    source = theirs(x)
    (slopes,) = torch.autograd.grad(source.clamp(1.0, 3.0).sum(), source)
    assert slopes.tolist() == [1, 1, 1]
    assert mx.grad(lambda x: mf.add(x, zeros, minimum=1.0, maximum=3.0).sum())(x).tolist() == [0, 1, 0]
