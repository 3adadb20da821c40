"""Softmax and the losses beside PyTorch's."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers

import mpsfunc as mf

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_cpu")]

CE = "softmax_cross_entropy"
SHAPE = (4, 6, 5, 7)


def theirs(a: mx.array, **how: Any) -> Any:
    """As it is; float64."""
    return torch.tensor(exact(a), **how)


def agree(ours: mx.array, tensor: Any) -> None:
    np.testing.assert_allclose(exact(ours), tensor.detach().numpy(), rtol=1e-10, atol=1e-11)


def channels_second(a: mx.array) -> Any:
    return theirs(a).movedim(-1, 1).contiguous().requires_grad_()


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name: str, axis: int) -> None:
    x, dy = numbers(SHAPE, mx.float64) * 4, numbers(SHAPE, mx.float64, 1)
    source = theirs(x, requires_grad=True)
    output = getattr(torch, name)(source, axis)
    y = getattr(mf, name)(x, axis)
    agree(y, output)
    agree(getattr(mf, f"{name}_grad")(dy, y, axis), *torch.autograd.grad(output, source, theirs(dy)))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_cross_entropy(dense: bool, weighed: bool, smoothing: float) -> None:
    """PyTorch's weights of classes are weights that broadcast."""
    y = numbers(SHAPE, mx.float64)
    labels = np.random.default_rng(0).integers(0, 7, SHAPE[:-1])
    shares = mf.softmax(numbers(SHAPE, mx.float64, 1))
    target: Any = shares if dense else mx.array(labels)
    wanted = channels_second(shares).detach() if dense else torch.tensor(labels)
    weights = abs(numbers((7,), mx.float64, 2)) + 0.5 if weighed else None
    how: dict[str, Any] = {"label_smoothing": smoothing, "number_of_classes": 7, "weights": weights}
    source = channels_second(y)
    output = torch.nn.functional.cross_entropy(
        source, wanted, None if weights is None else theirs(weights), reduction="sum", label_smoothing=smoothing
    )
    value = mf.loss_value(y, target, CE, "sum", **how)
    agree(value.sum(), output)
    (gradient,) = torch.autograd.grad(output, source)
    agree(mf.loss_grad(y, target, CE, divided=True, **how), gradient.movedim(1, -1))
    if not weighed:  # targets add up to 1, and pixels have one weight: what MPS passes on is the derivative
        agree(mf.loss(y, target, CE, "sum", **how)[1], gradient.movedim(1, -1))


def test_the_mean_of_cross_entropy() -> None:
    """MPS does not divide the gradient: 1 / (n * h * w) goes into its weight."""
    y = numbers(SHAPE, mx.float64)
    labels = np.random.default_rng(0).integers(0, 7, SHAPE[:-1])
    source = channels_second(y)
    output = torch.nn.functional.cross_entropy(source, torch.tensor(labels))
    (gradient,) = torch.autograd.grad(output, source)
    value, passed = mf.loss(y, mx.array(labels), CE, "sum", weight=1 / labels.size)
    agree(value.sum(), output)
    agree(passed, gradient.movedim(1, -1))
    agree(mf.loss_value(y, mx.array(labels), CE, "mean").mean(), output)


def test_the_mean_of_cross_entropy_with_weights_of_classes() -> None:
    """PyTorch divides by the weights of the labels, so that is what to divide a sum by."""
    y, weights = numbers((9, 5), mx.float64), abs(numbers((5,), mx.float64, 1)) + 0.1
    labels = np.random.default_rng(0).integers(0, 5, 9)
    output = torch.nn.functional.cross_entropy(theirs(y), torch.tensor(labels), theirs(weights))
    value = mf.loss_value(y, mx.array(labels), CE, "sum", weights=weights)
    agree(value.sum() / weights[mx.array(labels)].sum(), output)


ELEMENTWISE: dict[str, tuple[Any, dict[str, Any]]] = {
    "mean_absolute_error": (torch.nn.functional.l1_loss, {}),
    "mean_squared_error": (torch.nn.functional.mse_loss, {}),
    "huber": (lambda y, t, **how: torch.nn.functional.huber_loss(y, t, delta=0.6, **how), {"delta": 0.6}),
    "sigmoid_cross_entropy": (torch.nn.functional.binary_cross_entropy_with_logits, {}),
    "log": (torch.nn.functional.binary_cross_entropy, {"epsilon": 0.0}),
    "kullback_leibler": (torch.nn.functional.kl_div, {}),
}


@pytest.mark.filterwarnings("ignore:reduction")  # PyTorch would have another mean for a divergence
@pytest.mark.parametrize("type", ELEMENTWISE)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_elementwise(type: str, reduction: str) -> None:
    """Their mean is over the whole batch, ours over each image, and all images are alike."""
    function, how = ELEMENTWISE[type]
    y, t = numbers(SHAPE, mx.float64), numbers(SHAPE, mx.float64, 1)
    y = mf.softmax(y) if type == "log" else y
    t = mf.softmax(t) if type not in ("mean_absolute_error", "mean_squared_error", "huber") else t
    source = theirs(y, requires_grad=True)
    output = function(source, theirs(t), reduction=reduction)
    value, passed = mf.loss(y, t, type, reduction, **how)
    agree(value if reduction == "none" else value.sum() if reduction == "sum" else value.mean(), output)
    (gradient,) = torch.autograd.grad(output.sum(), source)
    divided = mf.loss_grad(y, t, type, reduction, divided=True, **how)
    agree(divided / 4 if reduction == "mean" else divided, gradient)
    if reduction == "sum":
        agree(passed, gradient)


def test_categorical_cross_entropy() -> None:
    """The loss of log-probabilities, nll_loss, of probabilities."""
    y, labels = mf.softmax(numbers((9, 5), mx.float64)), np.random.default_rng(0).integers(0, 5, 9)
    source = theirs(y, requires_grad=True)
    output = torch.nn.functional.nll_loss(source.log(), torch.tensor(labels), reduction="sum")
    value, gradient = mf.loss(y, mx.array(labels), "categorical_cross_entropy", "sum")
    agree(value.sum(), output)
    agree(gradient, *torch.autograd.grad(output, source))


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_smooth_l1(reduction: str) -> None:
    """It is huber divided by its beta."""
    y, t = numbers(SHAPE, mx.float64), numbers(SHAPE, mx.float64, 1)
    source = theirs(y, requires_grad=True)
    output = torch.nn.functional.smooth_l1_loss(source, theirs(t), reduction=reduction, beta=0.6)
    value, gradient = mf.loss(y, t, "huber", reduction, delta=0.6, weight=1 / 0.6)
    agree(value if reduction == "none" else value.sum(), output)
    agree(gradient, *torch.autograd.grad(output.sum(), source))


@pytest.mark.parametrize("type", ["mean_absolute_error", "huber"])
def test_a_loss_of_nothing(type: str) -> None:
    y = numbers((3, 5), mx.float64)
    source = theirs(y, requires_grad=True)
    (gradient,) = torch.autograd.grad(ELEMENTWISE[type][0](source, theirs(y), reduction="sum"), source)
    agree(mf.loss_grad(y, y, type, **ELEMENTWISE[type][1]), gradient)


def test_labels_to_leave_out() -> None:
    """``ignore_index``: no class has the number; MPS's gradient takes a weight of 0 as well."""
    y, labels = numbers(SHAPE, mx.float64), np.random.default_rng(0).integers(0, 7, SHAPE[:-1])
    labels[:, ::2] = -100
    source, counted = channels_second(y), labels >= 0
    output = torch.nn.functional.cross_entropy(source, torch.tensor(labels))
    (gradient,) = torch.autograd.grad(output, source)
    agree(mf.loss_value(y, mx.array(labels), CE, "sum").sum() / counted.sum(), output)
    how: dict[str, Any] = {"weights": mx.array(counted[..., None] / counted.sum(), mx.float64)}
    agree(mf.loss(y, mx.array(labels), CE, "sum", **how)[1], gradient.movedim(1, -1))
    divided = mf.loss_grad(y, mx.array(labels), CE, "sum", divided=True)
    agree(divided / counted.sum(), gradient.movedim(1, -1))
