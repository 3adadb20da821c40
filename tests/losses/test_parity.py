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


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_a_pixel_that_is_left_out_with_odd_logits(odd: float) -> None:
    """No loss; but its gradient is the softmax times 0, which is NaN of a NaN and of a positive infinity."""
    logits = exact(numbers((2, 3, 1, 5), mx.float64))
    logits[1, 2, 0, 3] = odd
    y, labels = mx.array(logits, mx.float64), np.random.default_rng(0).integers(0, 5, (2, 3, 1))
    labels[1, 2, 0] = -100
    source = channels_second(y)
    output = torch.nn.functional.cross_entropy(source, torch.tensor(labels), ignore_index=-100)
    (gradient,) = torch.autograd.grad(output, source)

    def mean(y: mx.array) -> mx.array:
        return mf.loss_value(y, mx.array(labels), CE, "mean", ignore_index=-100).mean()

    agree(mean(y), output)
    assert np.isfinite(mean(y).item())
    how: dict[str, Any] = {"ignore_index": -100, "weight": 1 / 5}
    for made in (mx.grad(mean)(y), mf.loss_grad(y, mx.array(labels), CE, divided=True, **how)):
        agree(made, gradient.movedim(1, -1))
        of_pixel = exact(made)[1, 2, 0]
        assert not of_pixel.any() if odd < 0 else np.isnan(of_pixel).any()
        assert np.isfinite(np.delete(exact(made).reshape(6, 5), 5, 0)).all()


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


# What counts ----------------------------------------------------------------------------------------------


def pulled(f: Any, y: mx.array) -> tuple[mx.array, mx.array]:
    """The gradient, and that of its squares' sum."""
    slope = mx.grad(f)
    return slope(y), mx.grad(lambda y: (slope(y) ** 2).sum())(y)


def pulled_there(output: Any, source: Any) -> tuple[Any, Any]:
    """Likewise."""
    (slope,) = torch.autograd.grad(output, source, create_graph=True)
    return slope, *torch.autograd.grad((slope**2).sum(), source, retain_graph=True)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("index", [-100, 3, None])
def test_cross_entropy_of_what_counts(index: int | None, weighed: bool, smoothing: float, reduction: str) -> None:
    """The mean over images is PyTorch's of the batch, also where one of them counts for nothing."""
    y, labels = numbers(SHAPE, mx.float64), np.random.default_rng(0).integers(0, 7, SHAPE[:-1])
    if index is not None:
        labels[:, ::2], labels[1] = index, index
    w = abs(numbers((7,), mx.float64, 2)) + 0.5 if weighed else None
    how: dict[str, Any] = {"ignore_index": index, "class_weights": w}
    how |= {"label_smoothing": smoothing, "number_of_classes": 7}

    def f(y: mx.array) -> mx.array:
        value = mf.loss_value(y, mx.array(labels), CE, reduction, **how)
        return value.mean() if reduction == "mean" else value.sum()

    source = channels_second(y)
    told = {"reduction": reduction, "label_smoothing": smoothing, **({} if index is None else {"ignore_index": index})}
    output = torch.nn.functional.cross_entropy(source, torch.tensor(labels), None if w is None else theirs(w), **told)
    agree(f(y), output)
    for ours, right in zip(pulled(f, y), pulled_there(output, source), strict=True):
        agree(ours, right.movedim(1, -1))
    (gradient,) = torch.autograd.grad(output, source, retain_graph=True)
    divided = mf.loss_grad(y, mx.array(labels), CE, reduction, divided=True, **how)
    agree(divided / (4 if reduction == "mean" else 1), gradient.movedim(1, -1))
    if reduction == "sum" and not (weighed and smoothing):  # a pixel has one weight: MPS's gradient is the derivative
        for passed in (mf.loss(y, mx.array(labels), CE, "sum", **how)[1], mf.loss_grad(y, mx.array(labels), CE, **how)):
            agree(passed, gradient.movedim(1, -1))


@pytest.mark.parametrize("weighed", [False, True])
def test_cross_entropy_of_a_label_an_image(weighed: bool) -> None:
    """Scores (n, 1, 1, c) as a network leaves them."""
    y, labels = numbers((9, 1, 1, 5), mx.float64), np.random.default_rng(0).integers(0, 5, 9)
    labels[2:4] = -100
    w = abs(numbers((5,), mx.float64, 1)) + 0.1 if weighed else None
    source = theirs(y, requires_grad=True)
    output = torch.nn.functional.cross_entropy(
        source[:, 0, 0], torch.tensor(labels), None if w is None else theirs(w), ignore_index=-100
    )

    def f(y: mx.array) -> mx.array:
        return mf.loss_value(y, mx.array(labels), CE, "mean", ignore_index=-100, class_weights=w).mean()

    agree(f(y), output)
    for ours, right in zip(pulled(f, y), pulled_there(output, source), strict=True):
        agree(ours, right)


def test_cross_entropy_of_shares_with_weights_of_classes() -> None:
    """Of probabilities PyTorch's mean goes on to divide by their number."""
    y, t, w = (
        numbers((9, 5), mx.float64),
        mf.softmax(numbers((9, 5), mx.float64, 1)),
        mx.arange(1, 6).astype(mx.float64),
    )
    output = torch.nn.functional.cross_entropy(theirs(y), theirs(t), theirs(w), label_smoothing=0.1)
    how: dict[str, Any] = {"class_weights": w, "label_smoothing": 0.1, "number_of_classes": 5}
    agree(mf.loss_value(y, t, CE, "mean", **how).mean(), output)


def test_nll_of_what_counts() -> None:
    y, labels = mf.softmax(numbers((9, 5), mx.float64)), np.random.default_rng(0).integers(0, 5, 9)
    labels[::4] = 2
    w = abs(numbers((5,), mx.float64, 1)) + 0.1
    source = theirs(y, requires_grad=True)
    output = torch.nn.functional.nll_loss(source.log(), torch.tensor(labels), theirs(w), ignore_index=2)

    def f(y: mx.array) -> mx.array:
        """A mean of this type is over classes too."""
        value = mf.loss_value(y, mx.array(labels), "categorical_cross_entropy", "mean", ignore_index=2, class_weights=w)
        return value.mean() * 5

    agree(f(y), output)
    for ours, right in zip(pulled(f, y), pulled_there(output, source), strict=True):
        agree(ours, right)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_weights_of_positives(reduction: str, dense: bool) -> None:
    y, t = numbers(SHAPE, mx.float64), mf.softmax(numbers(SHAPE, mx.float64, 1) * 3)
    t = t if dense else (t > 0.2).astype(mx.float64)
    w = abs(numbers((7,), mx.float64, 2)) + 0.1
    source = theirs(y, requires_grad=True)
    output = torch.nn.functional.binary_cross_entropy_with_logits(
        source, theirs(t), pos_weight=theirs(w), reduction=reduction
    )

    def f(y: mx.array) -> mx.array:
        value = mf.loss_value(y, t, "sigmoid_cross_entropy", reduction, pos_weight=w)
        return value if reduction == "none" else value.mean() if reduction == "mean" else value.sum()

    agree(f(y), output)
    for ours, right in zip(pulled(lambda y: f(y).sum(), y), pulled_there(output.sum(), source), strict=True):
        agree(ours, right)


# Losses that MPS does not have ----------------------------------------------------------------------------


def sigmoid_focal_loss(inputs: Any, targets: Any, alpha: float, gamma: float, reduction: str) -> Any:
    """torchvision's formula."""
    p = torch.sigmoid(inputs)
    ce_loss = torch.nn.functional.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    loss = ce_loss * ((1 - p_t) ** gamma)
    if alpha >= 0:
        loss = (alpha * targets + (1 - alpha) * (1 - targets)) * loss
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.5])
@pytest.mark.parametrize("alpha", [None, 0.25])
@pytest.mark.parametrize("dense", [False, True])
def test_focal_loss(dense: bool, alpha: float | None, gamma: float, reduction: str) -> None:
    y, t = numbers(SHAPE, mx.float64) * 3, mf.softmax(numbers(SHAPE, mx.float64, 1) * 3)
    t = t if dense else (t > 0.2).astype(mx.float64)
    source = theirs(y, requires_grad=True)
    output = sigmoid_focal_loss(source, theirs(t), -1 if alpha is None else alpha, gamma, reduction)

    def f(y: mx.array) -> mx.array:
        return mf.focal_loss(y, t, alpha=alpha, gamma=gamma, reduction=reduction)

    agree(f(y), output)
    for ours, right in zip(pulled(lambda y: f(y).sum(), y), pulled_there(output.sum(), source), strict=True):
        agree(ours, right)
    slope = pulled_there(output.sum(), source)[0]
    agree(mf.focal_loss_grad(y, t, alpha=alpha, gamma=gamma, reduction=reduction), slope)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("activation", ["none", "sigmoid", "softmax"])
def test_dice_loss(activation: str, squared: bool, reduction: str) -> None:
    """MONAI's formula, on images with channels second."""
    y, t = mf.sigmoid(numbers(SHAPE, mx.float64)), mf.softmax(numbers(SHAPE, mx.float64, 1) * 3)
    source, target = channels_second(y), channels_second(t).detach()
    p = {"none": source, "sigmoid": torch.sigmoid(source), "softmax": torch.softmax(source, 1)}[activation]
    axes, k = (2, 3), 2 if squared else 1
    below = (p**k).sum(axes, keepdim=True) + (target**k).sum(axes, keepdim=True)
    output = 1 - (2 * (p * target).sum(axes, keepdim=True) + 0.1) / (below + 0.1)
    output = output if reduction == "none" else output.mean() if reduction == "mean" else output.sum()

    def f(y: mx.array) -> mx.array:
        return mf.dice_loss(y, t, activation=activation, squared=squared, smooth=0.1, reduction=reduction)

    agree(f(y), output.movedim(1, -1) if reduction == "none" else output)
    both = zip(pulled(lambda y: f(y).sum(), y), pulled_there(output.sum(), source), strict=True)
    for ours, right in both:
        agree(ours, right.movedim(1, -1))
    slope = pulled_there(output.sum(), source)[0].movedim(1, -1)
    agree(mf.dice_loss_grad(y, t, activation=activation, squared=squared, smooth=0.1, reduction=reduction), slope)
