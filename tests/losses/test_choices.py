"""What losses are by hand, where Apple's header prints something else, at the ends of the range, and their states."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import exact, numbers, same_bits
from support.losses_case import CATEGORICAL, COSINE, PAIRS, SIGMOID, SOFTMAX, each, images
from support.oracle import losses as oracle

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.core import launch as core_launch
from mpsfunc.losses import formulas

# Worked numbers -------------------------------------------------------------------------------------------


def digits(actual: mx.array, expected: Any) -> None:
    np.testing.assert_allclose(exact(actual).ravel(), np.ravel(expected), rtol=2e-6, atol=2e-7)


def test_worked_example(device: mx.Device) -> None:
    y, t = mx.array([[1.0, 2, 0]]), mx.array([[0.0, 1, 0]])
    how: dict[str, Any] = {"label_smoothing": 0.1, "number_of_classes": 3}
    elements, gradient = mf.loss(y, t, SOFTMAX, "none", **how)
    digits(elements, [0.0469202, 0.38043223, 0.08025353])
    digits(gradient, [0.21139514, -0.26809238, 0.05669724])
    digits(mf.loss_value(y, t, SOFTMAX, "sum", **how), [0.50760596])
    digits(mf.loss_value(y, mx.array([1]), SOFTMAX, "sum", **how), [0.50760596])


@pytest.mark.parametrize(
    ("type", "y", "t", "element", "slope"),
    [
        ("mean_absolute_error", [3.0, -1.0, 2.0], [1.0, 1.0, 2.0], [2, 2, 0], [1, -1, 0]),
        ("mean_squared_error", [3.0, -1.0, 2.0], [1.0, 1.0, 2.0], [4, 4, 0], [4, -4, 0]),
        (
            SIGMOID,
            [0.0, 2.0, -2.0],
            [0.5, 1.0, 1.0],
            [0.69314718, 0.12692801, 2.12692801],
            [0, -0.11920292, -0.88079708],
        ),
        (CATEGORICAL, [0.5, 0.25, 0.25], [1.0, 0.0, 2.0], [0.69314718, 0, 2.77258872], [-2, 0, -8]),
        ("hinge", [0.5, 0.5, 3.0], [1.0, 0.0, 1.0], [0.5, 1.5, 0], [-1, 1, 0]),
        ("huber", [3.0, -3.0, 0.5], [0.0, 0.0, 0.0], [2.5, 2.5, 0.125], [1, -1, 0.5]),
        ("log", [0.5, 0.25, 0.75], [1.0, 0.0, 0.5], [0.69314718, 0.28768207, 0.83698822], [-2, 1.33333333, 1.33333333]),
        ("kullback_leibler", [-1.0, -2.0, -0.5], [0.5, 0.0, 1.0], [0.15342641, 0, 0.5], [-0.5, 0, -1]),
    ],
)
def test_elements_by_hand(
    device: mx.Device, type: str, y: list[float], t: list[float], element: list[float], slope: list[float]
) -> None:
    exactly = {"epsilon": 0.0} if type == "log" else {}
    made, gradient = mf.loss(mx.array([y]), mx.array([t]), type, "none", **exactly)
    digits(made, element)
    digits(gradient, slope)


def test_cosine_distance_by_hand(device: mx.Device) -> None:
    y, t = mx.array([[[0.6, 0.8]], [[1.0, 0.0]]]), mx.array([[[0.6, 0.8]], [[0.0, 1.0]]])
    value, gradient = mf.loss(y, t, COSINE, "sum", weight=3.0)
    digits(value, [0, 3])
    digits(gradient, [-1.8, -2.4, 0, -3])


# Where Apple's header prints something else ------------------------------------------------------------------


def test_softmax_cross_entropy_is_softmax_less_the_target(device: mx.Device) -> None:
    """Printed: y - t."""
    y, t = mx.array([[1.0, 2, 0]]), mx.array([[0.0, 1, 0]])
    digits(mf.loss_grad(y, t, SOFTMAX), exact(mf.softmax(y) - t))
    assert not np.allclose(exact(mf.loss_grad(y, t, SOFTMAX)), exact(y - t))


def test_hinge_has_labels_of_0_and_1(device: mx.Device) -> None:
    """Printed: max(1 - t * y, 0), whose slope is not the gradient that is printed beside it."""
    y, t = mx.array([[0.25, 0.25]]), mx.array([[0.0, 1.0]])
    value, gradient = mf.loss(y, t, "hinge", "none")
    digits(value, [1.25, 0.75])
    digits(gradient, [1, -1])


def test_huber_has_a_sign_and_a_residual(device: mx.Device) -> None:
    """Printed: a loss of y^2 / 2, and a gradient of delta on both sides."""
    y, t = mx.array([[-5.0, 1.5]]), mx.array([[0.0, 1.0]])
    value, gradient = mf.loss(y, t, "huber", "none", delta=2.0)
    digits(value, [8, 0.125])
    digits(gradient, [-2, 0.5])


def test_the_gradient_of_a_divergence_has_no_divisor(device: mx.Device) -> None:
    """Printed: -t / y, as if y were a probability; the loss takes its logarithm."""
    y, t = mx.array([[-2.0, -0.5]]), mx.array([[0.5, 0.25]])
    digits(mf.loss_grad(y, t, "kullback_leibler"), [-0.5, -0.25])


def test_softmax_cross_entropy_averages_over_pixels(device: mx.Device) -> None:
    y, t = numbers((2, 3, 4, 5)), mx.ones((2, 3, 4, 5)) / 5
    total, mean = (mf.loss_value(y, t, SOFTMAX, r) for r in ("sum", "mean"))
    digits(mean * 12, exact(total))
    total, mean = (mf.loss_value(y, t, SIGMOID, r) for r in ("sum", "mean"))
    digits(mean * 60, exact(total))


@each
def test_the_gradient_is_not_divided_and_the_derivative_is(device: mx.Device, type: str) -> None:
    y, t = images(type, (2, 3, 4), mx.float32)
    reductions = [r for r in ("sum", "mean", "sum_by_non_zero_weights") if type != COSINE or r == "sum"]
    made = [mf.loss(y, t, type, r)[1] for r in reductions]
    assert all(same_bits(g, made[0]) for g in made)
    for reduction in reductions:
        divided = mf.loss_grad(y, t, type, reduction, divided=True)
        pulled = mx.grad(lambda y, r=reduction: mf.loss_value(y, t, type, r).sum())(y)
        assert same_bits(pulled, divided)
        share = 1 if reduction == "sum" else 3 if type == SOFTMAX else 12
        np.testing.assert_allclose(exact(divided) * share, exact(made[0]), rtol=1e-5, atol=1e-6)


def test_the_derivative_of_softmax_cross_entropy_does_not_need_targets_that_add_up_to_1(on_cpu: mx.Device) -> None:
    y, t, w = (abs(numbers((2, 5), mx.float64, seed)) for seed in range(3))
    sums = [
        oracle.loss(exact(y) + sign * 1e-6 * np.eye(5)[2], exact(t), SOFTMAX, "sum", weights=exact(w))[0]
        for sign in (1, -1)
    ]
    step = (sums[0] - sums[1]).ravel() / 2e-6
    np.testing.assert_allclose(exact(mf.loss_grad(y, t, SOFTMAX, weights=w, divided=True))[:, 2], step, rtol=1e-6)
    pulled = mx.grad(lambda y: mf.loss(y, t, SOFTMAX, "sum", weights=w)[0].sum())(y)
    np.testing.assert_allclose(exact(pulled)[:, 2], step, rtol=1e-6)
    assert not np.allclose(exact(mf.loss(y, t, SOFTMAX, "sum", weights=w)[1])[:, 2], step)  # MPS passes this on


# The ends of the range --------------------------------------------------------------------------------------


def test_a_target_of_0_has_no_loss(device: mx.Device) -> None:
    """Even where the logarithm is infinite."""
    zero, y = mx.zeros((1, 4)), mx.array([[0.0, 1.0, 0.0, 1.0]])
    assert exact(mf.loss_value(y, zero, CATEGORICAL, "none")).tolist() == [[0, 0, 0, 0]]
    assert not exact(mf.loss_grad(y, zero, CATEGORICAL)).any()
    assert exact(mf.loss_value(y, y, "log", "none", epsilon=0.0)).tolist() == [[0, 0, 0, 0]]
    assert exact(mf.loss_value(mx.full((1, 4), -float("inf")), zero, "kullback_leibler", "none")).tolist() == [[0] * 4]
    far = mx.array([[0.0, -float("inf"), 0.0, 0.0]])
    assert exact(mf.loss_value(far, zero, SOFTMAX, "none")).tolist() == [[0, 0, 0, 0]]


def test_the_derivative_by_a_target_of_0_is_the_logarithm(on_cpu: mx.Device) -> None:
    y, zero = mx.array([[0.5, 0.25]], mx.float64), mx.zeros((1, 2), mx.float64)
    pulled = mx.grad(lambda t: mf.loss_value(y, t, CATEGORICAL, "sum").sum())(zero)
    np.testing.assert_allclose(exact(pulled), -np.log(exact(y)), rtol=1e-12)
    pulled = mx.grad(lambda t: mf.loss_value(y, t, SOFTMAX, "sum").sum())(zero)
    np.testing.assert_allclose(exact(pulled), -exact(mf.log_softmax(y)), rtol=1e-12)
    _, (pushed,) = mx.jvp(lambda t: mf.loss_value(y, t, SOFTMAX, "none"), [zero], [mx.ones_like(zero)])
    np.testing.assert_allclose(exact(pushed), -exact(mf.log_softmax(y)), rtol=1e-12)


@pytest.mark.parametrize("type", [SOFTMAX, SIGMOID])
@pytest.mark.parametrize("far", [90.0, 2000.0, 6e4])
def test_large_logits(device: mx.Device, dtype: mx.Dtype, type: str, far: float) -> None:
    y, t = mx.array([[far, -far, 0.0]]).astype(dtype), mx.array([[0.0, 1.0, 0.0]]).astype(dtype)
    far = exact(y)[0, 0]
    value, gradient = mf.loss(y, t, type, "sum")
    right = [2 * far] if type == SOFTMAX else [2 * far + np.log(2)]
    np.testing.assert_allclose(exact(value).ravel(), right, rtol=1e-6)
    np.testing.assert_allclose(exact(gradient)[0, :2], [1, -1], atol=1e-6)


@each
def test_nan_passes(device: mx.Device, dtype: mx.Dtype, type: str) -> None:
    y, t = images(type, (3, 2, 5), dtype)
    y[1, 1, 2] = float("nan")
    value, gradient = mf.loss(y, t, type, "sum")
    assert np.isnan(exact(value)).ravel().tolist() == [False, True, False]
    spoilt = np.isnan(exact(gradient))
    right = np.zeros(y.shape, bool)
    if type not in (COSINE, "kullback_leibler"):  # whose gradients do not see y
        right[1, 1, slice(None) if type == SOFTMAX else 2] = True
    assert (spoilt == right).all()
    derived = mf.loss_grad(y, t, type, divided=True)
    reduction = "sum" if type == COSINE else "none"
    pulled = mx.grad(lambda y: mf.loss_value(y, t, type, reduction).sum())(y)
    assert (np.isnan(exact(derived)) == right).all() and (np.isnan(exact(pulled)) == right).all()


@each
def test_nan_passes_through_the_meaning(on_cpu: mx.Device, type: str) -> None:
    """What derivatives of higher order are made of."""
    y, t = images(type, (1, 2, 5), mx.float32)
    y[0, 1, 2] = float("nan")
    kinds = formulas.TYPES.index(type), 1.0, 0.0, 1e-7, 1.0, 1.0, 1.0
    spec = formulas.Spec(*kinds, False, False, False, False, False, mx.default_stream(mx.cpu))
    for made in (formulas.gradient((y, t), spec), formulas.derivative((y, t), spec)):
        assert bool(np.isnan(exact(made)).any()) == (type not in (COSINE, "kullback_leibler"))
    assert np.isnan(exact(formulas.target_slopes(y, t, spec))[0, 1, 2])


def test_a_residual_of_0_has_no_slope(device: mx.Device) -> None:
    y = numbers((2, 3))
    for type in ("mean_absolute_error", "mean_squared_error", "huber"):
        assert not exact(mf.loss_grad(y, y, type)).any()


def test_float64_is_float64(on_cpu: mx.Device) -> None:
    for type, reduction in PAIRS:
        y, t = images(type, (2, 3, 4), mx.float64)
        value, passed, derived = oracle.loss(exact(y), exact(t), type, reduction)
        made, gradient = mf.loss(y, t, type, reduction)
        np.testing.assert_allclose(exact(made), value, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(exact(gradient), passed, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(
            exact(mf.loss_grad(y, t, type, reduction, divided=True)), derived, rtol=1e-12, atol=1e-14
        )


# States -----------------------------------------------------------------------------------------------------


def test_the_state_starts_a_backward_chain(device: mx.Device) -> None:
    """A layer's gradient takes what a loss leaves behind."""
    x, w = numbers((2, 4, 4, 3)), numbers((5, 3, 3, 3), seed=1)
    labels = mx.array(np.random.default_rng(0).integers(0, 5, (2, 4, 4)), mx.int32)
    y, conv = mf.conv_fwd(x, w, padding=1)
    value, state = mf.loss_fwd(y, labels, SOFTMAX, "sum")
    dx = mf.conv_grad_input(state.gradient, w, conv)
    pulled = mx.grad(lambda x: mf.loss_value(mf.conv(x, w, padding=1), labels, SOFTMAX, "sum").sum())(x)
    np.testing.assert_allclose(exact(dx), exact(pulled), rtol=1e-4, atol=1e-5)
    assert state.type == SOFTMAX and state.reduction == "sum"
    assert state.with_arrays((dx,)).gradient is dx
    with pytest.raises(ValueError, match="wrong number of arrays; got 0 arrays, expected 1"):
        state.with_arrays(())


def test_mps_divides_by_the_weight(on_cpu: mx.Device) -> None:
    """Apple's training sample puts 1 / batch into ``weight``, since the gradient is not divided."""
    y, labels = numbers((8, 5)), mx.array([0, 1, 2, 3, 4, 0, 1, 2])
    value, gradient = mf.loss(y, labels, SOFTMAX, "sum", weight=1 / 8)
    mean = mx.value_and_grad(lambda y: mf.loss_value(y, labels, SOFTMAX, "mean").mean())(y)
    np.testing.assert_allclose(value.sum().item(), mean[0].item(), rtol=1e-6)
    np.testing.assert_allclose(exact(gradient), exact(mean[1]), rtol=1e-5, atol=1e-7)


def test_a_gradient_under_autodiff_costs_no_second_launch(on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch for both, compiled too; the derivative of the value alone asks for one more."""
    launched: list[str] = []
    launch = core_launch.launch

    def record(op: str, *args: Any, **options: Any) -> list[mx.array]:
        launched.append(op)
        return launch(op, *args, **options)

    monkeypatch.setattr(core_launch, "launch", record)
    y, labels = numbers((3, 4)), mx.array([0, 1, 2])
    mx.eval(mx.compile(lambda y: mf.loss(y, labels, SOFTMAX, "sum"))(y))
    assert launched == ["loss"]
    launched.clear()
    mx.eval(mx.grad(lambda y: mf.loss_value(y, labels, SOFTMAX, "sum").sum())(y))
    assert launched == ["loss", "loss_grad"]


def test_an_argument_without_a_meaning_may_be_its_default() -> None:
    """As a graph's node always gives it, and as NumPy's float32 has it; and what it says otherwise."""
    y = numbers((2, 3))
    given = {"epsilon": np.float32(1e-7), "delta": np.float16(1), "number_of_classes": np.int8(1)}
    assert same_bits(mf.loss_value(y, y, "hinge", "sum", **given), mf.loss_value(y, y, "hinge", "sum"))
    with pytest.raises(
        ValueError, match="epsilon has no meaning here; got epsilon=0.5 for huber, expected 1e-07 or log$"
    ):
        mf.loss(y, y, "huber", "sum", epsilon=0.5)
    node = graph.compile(graph.loss(graph.ImageNode("y"), graph.ImageNode("t"), "log", "sum", delta=2.0, name="l"))
    with pytest.raises(
        ValueError, match="l: loss_fwd: delta has no meaning here; got delta=2.0 for log, expected 1.0 or"
    ):
        node.shapes({"y": (2, 1, 1, 3), "t": (2, 1, 1, 3)})
