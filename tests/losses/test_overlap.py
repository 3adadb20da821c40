"""The focal and the Dice loss by hand, and at the ends of the range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import DTYPES, accumulator, exact, numbers, same_bits, same_bits_for_threads
from support import close as near
from support.losses_case import SIGMOID
from support.oracle import losses as oracle

import mpsfunc as mf
from mpsfunc.core import launch
from mpsfunc.losses import dice_rules
from mpsfunc.losses.dice import SHARES, SharesName
from mpsfunc.losses.params import DiceParams


def close(made: mx.array, right: Any) -> None:
    np.testing.assert_allclose(exact(made), right, 2e-6, 1e-7)


def drawn(shape: tuple[int, ...], dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """Logits, and targets of which many are 0 or 1."""
    y, t = numbers(shape) * 3, mx.tanh(numbers(shape, seed=1)) + 0.5
    return y.astype(dtype), mx.clip(t, 0, 1).astype(dtype)


# Focal ----------------------------------------------------------------------------------------------------


def test_focal_by_hand(device: mx.Device) -> None:
    """A logit of log 3 is a probability of 3 / 4."""
    y, t = mx.full((1, 2), float(np.log(3))), mx.array([[1.0, 0.0]])
    right = [[0.25 * np.log(4 / 3) / 16, 0.75 * np.log(4) * 9 / 16]]
    close(mf.focal_loss(y, t), right)
    close(mf.focal_loss(y, t, alpha=None, gamma=1.0), [[np.log(4 / 3) / 4, np.log(4) * 3 / 4]])
    close(mf.focal_loss(y, t, reduction="sum"), np.sum(right))
    close(mf.focal_loss(y, t, reduction="mean"), np.mean(right))
    # d/dy of (1 - p)^2 * -log p: 2 p (1 - p)^2 log p - (1 - p)^3
    close(mf.focal_loss_grad(y[:, :1], t[:, :1], alpha=None), [[2 * 0.75 / 16 * np.log(0.75) - 1 / 64]])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.25])
@pytest.mark.parametrize("alpha", [None, 0.0, 0.25, 1.0])
def test_focal_definition(device: mx.Device, dtype: mx.Dtype, alpha: float | None, gamma: float) -> None:
    for shape in ((2, 3, 5), (3, 16), (2, 3, 4, 21)):
        y, t = drawn(shape, dtype)
        lost, slope = oracle.focal(exact(y), exact(t), alpha, gamma)
        how: dict[str, Any] = {"alpha": alpha, "gamma": gamma}
        made = mf.focal_loss(y, t, **how)
        assert made.dtype == dtype and made.shape == shape
        near(made, lost, 1 + abs(lost), slack=8)
        for reduction in ("sum", "mean"):
            total = mf.focal_loss(y, t, reduction=reduction, **how)
            assert total.dtype == accumulator(dtype) and total.shape == ()
            near(total, oracle.reduced(lost, reduction), 1 + oracle.reduced(lost, reduction), slack=8)
        near(mf.focal_loss_grad(y, t, **how), slope, 1 + abs(slope), slack=12)
        pulled = mx.grad(lambda y, t=t, how=how: mf.focal_loss(y, t, reduction="mean", **how))(y)
        near(pulled, slope / y.size, (1 + abs(slope)) / y.size, slack=12)


def test_without_a_gamma_it_is_cross_entropy(device: mx.Device) -> None:
    y, t = drawn((2, 3, 8), mx.float32)
    lost = mf.focal_loss(y, t, alpha=None, gamma=0.0)
    close(lost, exact(mf.loss_value(y, t, SIGMOID, "none")))
    close(mf.focal_loss_grad(y, t, alpha=None, gamma=0.0), exact(mf.loss_grad(y, t, SIGMOID)))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 1.5, 2.0])
def test_focal_where_an_exponential_vanishes(device: mx.Device, gamma: float) -> None:
    """What is surely right costs nothing, at every order; what is surely wrong costs its logit."""
    y, t = mx.array([[300.0, -300, -300, 300]]), mx.array([[1.0, 0, 1, 0]])

    def f(y: mx.array) -> mx.array:
        return mf.focal_loss(y, t, alpha=None, gamma=gamma)

    slope = mx.grad(lambda y: f(y).sum())
    close(f(y), [[0, 0, 300, 300]])
    close(mf.focal_loss_grad(y, t, alpha=None, gamma=gamma), [[0, 0, -1, 1]])
    close(slope(y), [[0, 0, -1, 1]])
    close(mx.jvp(slope, [y], [mx.ones_like(y)])[1][0], [[0, 0, 0, 0]])
    close(mx.grad(lambda y: (slope(y) ** 2).sum())(y), [[0, 0, 0, 0]])


@pytest.mark.parametrize("gamma", [4.0, 100.0])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float64], ids=str)
def test_focal_second_order_at_the_end_of_the_range(on_cpu: mx.Device, dtype: mx.Dtype, gamma: float) -> None:
    """Of what is surely wrong the gradient of the gradient is 0, and NaN where gamma times the logit has no number."""
    largest = float(mx.finfo(dtype).max)
    for share, beyond in ((0.9, False), (1.1, True)):
        y, t = mx.array([[-largest / gamma * share, -3.0]], dtype), mx.ones((1, 2), dtype)

        def f(y: mx.array, t: mx.array = t) -> mx.array:
            return mf.focal_loss(y, t, alpha=None, gamma=gamma, reduction="sum")

        slope = mx.grad(f)
        (second,) = exact(mx.grad(lambda y, slope=slope: slope(y).sum())(y))
        (forward,) = exact(mx.jvp(slope, [y], [mx.ones_like(y)])[1][0])
        assert exact(slope(y))[0, 0] == -1 and forward[0] == 0
        assert np.isnan(second[0]) if beyond else second[0] == 0
        np.testing.assert_allclose(second[1], forward[1], 1e-5)
        assert second[1] != 0


def test_focal_nan_passes(device: mx.Device, dtype: mx.Dtype) -> None:
    y, t = drawn((2, 8), dtype)
    y[1, 3] = float("nan")
    for gamma in (0.0, 0.5, 2.0):
        for made in (mf.focal_loss(y, t, gamma=gamma), mf.focal_loss_grad(y, t, gamma=gamma)):
            assert np.argwhere(np.isnan(exact(made))).tolist() == [[1, 3]]


def test_focal_threads_do_not_change_bits(on_cpu: mx.Device, threads: Callable[[int], None]) -> None:
    y, t = drawn((2, 90, 300), mx.float32)
    same_bits_for_threads(
        threads, lambda: [mf.focal_loss(y, t, reduction="sum", gamma=1.5), mf.focal_loss_grad(y, t)], (1, 2, 5)
    )


def test_focal_every_instruction_set(on_cpu: mx.Device, isa: str) -> None:
    for dtype in DTYPES:
        y, t = drawn((3, 37), dtype)
        lost, slope = oracle.focal(exact(y), exact(t), 0.25, 1.5)
        near(mf.focal_loss(y, t, gamma=1.5), lost, 1 + abs(lost), slack=8)
        near(mf.focal_loss_grad(y, t, gamma=1.5), slope, 1 + abs(slope), slack=12)


# Dice -----------------------------------------------------------------------------------------------------


def test_dice_by_hand(device: mx.Device) -> None:
    p, t = mx.array([[[0.5, 0.0], [1.0, 0.0]]]), mx.array([[[1.0, 0.0], [0.0, 0.0]]])
    close(mf.dice_loss(p, t, smooth=0.0, reduction="none")[..., :1], [[[1 - 1 / 2.5]]])
    assert np.isnan(exact(mf.dice_loss(p, t, smooth=0.0, reduction="none"))[0, 0, 1])  # 0 / 0
    close(mf.dice_loss(p, t, smooth=1.0, reduction="none"), [[[1 - 2 / 3.5, 0]]])
    close(mf.dice_loss(p, t, smooth=1.0), (1 - 2 / 3.5) / 2)
    close(mf.dice_loss(p, t, smooth=1.0, squared=True, reduction="sum"), 1 - 2 / 3.25)
    close(mf.dice_loss(t, t), 0)
    # d/dp of -(2 p t + 1) / (sum + 1): -2 t / 3.5 + 2 / 3.5^2
    right = np.array([-2 / 3.5 + 2 / 3.5**2, 2 / 3.5**2])
    close(mf.dice_loss_grad(p, t, smooth=1.0, reduction="sum")[0, :, 0], right)
    close(mf.dice_loss_grad(p, t, smooth=1.0)[0, :, 0], right / 2)


@pytest.mark.parametrize("activation", ["none", "sigmoid", "softmax"])
@pytest.mark.parametrize("squared", [False, True])
def test_dice_definition(device: mx.Device, dtype: mx.Dtype, activation: str, squared: bool) -> None:
    for shape in ((2, 3, 5), (3, 16), (2, 9, 7, 8), (1, 40, 3)):
        y, t = drawn(shape, dtype)
        y = mx.clip(abs(y), 0, 1) if activation == "none" else y
        how: dict[str, Any] = {"activation": activation, "squared": squared}
        each, slope = oracle.dice(exact(y), exact(t), activation, 1e-5, squared)
        made = mf.dice_loss(y, t, reduction="none", **how)
        assert made.dtype == accumulator(dtype) and made.shape == (shape[0], *(1,) * (len(shape) - 2), shape[-1])
        near(made, each.reshape(made.shape), 4, slack=8)
        size = 1 + abs(slope).max()
        near(mf.dice_loss_grad(y, t, reduction="sum", **how), slope, size, slack=8)
        near(mf.dice_loss(y, t, **how), each.mean(), 4, slack=8)
        pulled = mx.grad(lambda y, t=t, how=how: mf.dice_loss(y, t, **how))(y)
        assert pulled.dtype == dtype
        near(pulled, slope / each.size, size / each.size, slack=8)


@pytest.mark.parametrize("kind", [mx.int32, mx.uint8, mx.int64], ids=str)
def test_labels_of_dice_are_targets(device: mx.Device, dtype: mx.Dtype, kind: mx.Dtype) -> None:
    y, labels = drawn((2, 4, 5), dtype)[0], np.array([[0, 4, 1, 120], [2, 2, 5, 0]])
    hot = mx.array(oracle.one_hot(labels, 5)).astype(dtype)
    for f in (mf.dice_loss, mf.dice_loss_grad):
        how: dict[str, Any] = {"activation": "softmax", "reduction": "sum"}
        assert same_bits(f(y, mx.array(labels).astype(kind), **how), f(y, hot, **how))


# Classes that leave a vector nearly empty, fill one, fill several and a rest, and are more than registers hold.
@pytest.mark.parametrize("shape", [(3, 1001, 1), (2, 31, 43, 3), (2, 17, 16), (1, 90, 21), (2, 41, 64), (2, 3, 1021)])
@pytest.mark.parametrize("activation", ["none", "sigmoid", "softmax"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dice_every_instruction_set(
    isa: str, on_cpu: mx.Device, dtype: mx.Dtype, activation: str, shape: tuple[int, ...]
) -> None:
    y, t = drawn(shape, dtype)
    labels = mx.random.randint(0, shape[-1] + 1, shape[:-1], key=mx.random.key(5))
    y = mx.clip(abs(y), 0, 1) if activation == "none" else y
    for target, squared in ((t, False), (t, True), (labels, False)):
        right = np.array(labels) if target is labels else exact(target)
        each, slope = oracle.dice(exact(y), right, activation, 1e-5, squared)
        how: dict[str, Any] = {"activation": activation, "squared": squared}
        made = mf.dice_loss(y, target, reduction="none", **how)
        near(made, each.reshape(made.shape), 4, slack=8)
        near(mf.dice_loss_grad(y, target, reduction="sum", **how), slope, abs(slope).max(), slack=8)


@pytest.mark.parametrize("activation", ["none", "sigmoid", "softmax"])
def test_dice_of_views_that_start_one_element_in(isa: str, on_cpu: mx.Device, activation: str) -> None:
    for dtype in DTYPES:
        y, t = (mx.clip(a, 0, 1) for a in drawn((5 * 64 + 1,), dtype))
        moved = [a[1:].reshape(1, 5, 64) for a in (y, t)]
        whole = [mx.array(exact(a), dtype) for a in moved]
        for f in (mf.dice_loss, mf.dice_loss_grad):
            assert same_bits(f(*moved, activation=activation), f(*whole, activation=activation))


def test_dice_threads_do_not_change_bits(on_cpu: mx.Device, threads: Callable[[int], None]) -> None:
    pairs = [drawn(shape, mx.float32) for shape in ((2, 400, 64), (9, 300, 3), (1, 70, 300))]
    settings: dict[str, Any] = {"activation": "softmax", "reduction": "sum"}
    same_bits_for_threads(
        threads, lambda: [f(*pair, **settings) for pair in pairs for f in (mf.dice_loss, mf.dice_loss_grad)], (1, 2, 5)
    )


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("activation", ["none", "sigmoid", "softmax"])
def test_dice_kernels_are_what_a_gpu_makes(on_cpu: mx.Device, activation: str, squared: bool) -> None:
    """Both ways come to the same sums and gradients, by the target too, up to rounding."""
    y, t = drawn((2, 37, 21), mx.float64)
    spec = dice_rules.DiceSpec(DiceParams(SHARES.index(activation), int(squared), 0), mx.default_stream(mx.cpu))
    by = [numbers((2, 21), mx.float64, seed) for seed in range(3)]

    def parts(y: mx.array, t: mx.array) -> list[mx.array]:
        return list(dice_rules.sums_of(dice_rules.probabilities(y, spec), dice_rules.targets(t, y, spec), spec))

    right = mx.vjp(parts, [y, t], by)
    made = mx.vjp(lambda y, t: list(dice_rules.sums(y, t, spec)), [y, t], by)
    for one, other in zip([*made[0], *made[1]], [*right[0], *right[1]], strict=True):
        np.testing.assert_allclose(exact(one), exact(other), rtol=1e-12, atol=1e-13)


def test_dice_goes_over_images_once(on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU nothing but a kernel each, and vectors of classes; as long as nobody differentiates a gradient."""
    (y, t), seen, made = drawn((2, 9, 5), mx.float32), [], launch.launch

    def watched(op: str, *rest: Any, **how: Any) -> list[mx.array]:
        seen.append(op)
        return made(op, *rest, **how)

    monkeypatch.setattr(launch, "launch", watched)
    mx.eval(mf.dice_loss(y, t, activation="softmax"))
    assert seen == ["dice_sums"]
    mx.eval(mf.dice_loss_grad(y, t, activation="softmax"))
    assert seen == ["dice_sums", "dice_loss_grad"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("activation", SHARES)
def test_a_dice_gradient_at_once_is_that_of_its_sums(
    on_cpu: mx.Device, activation: SharesName, squared: bool, threads: int
) -> None:
    """Of few images, which threads share, and of many; with fewer classes than a vector has lanes, and with more."""
    how = mx.default_stream(mx.cpu)
    before = mf.get_num_threads()
    mf.set_num_threads(threads)
    try:
        for shape in ((2, 37, 5), (1, 9000, 3), (1, 700, 40), (17, 130, 21), (13, 33, 64), (2, 3, 16500)):
            for dtype in (mx.float32, mx.bfloat16, mx.float64):
                y, dense = drawn(shape, dtype)
                y = abs(y) if activation == "none" else y
                labels = (mx.arange(shape[0] * shape[1]) * 7 % (shape[2] + 1)).astype(mx.uint32).reshape(shape[:2])
                for target, labelled in ((dense, 0), (labels, 1)):
                    of = dice_rules.DiceSpec(DiceParams(SHARES.index(activation), int(squared), labelled), how)
                    spec = dice_rules.DiceLossSpec(0.5, 0.25, of)
                    made = dice_rules.loss_gradient(y, target, spec)
                    sums = dice_rules.DiceSums(*dice_rules.sums(y, target, of))
                    right = dice_rules.gradient(y, target, *dice_rules.by_sums(sums.overlap(0.5), 0.25), of)
                    tolerance = {mx.float32: 1e-5, mx.bfloat16: 2**-7, mx.float64: 1e-13}[dtype]
                    size = float(abs(right).max())
                    np.testing.assert_allclose(exact(made), exact(right), rtol=tolerance, atol=tolerance * size)
    finally:
        mf.set_num_threads(before)


def test_a_gradient_by_the_target(on_cpu: mx.Device) -> None:
    """Sums change places, but for the activation."""
    y, t = (mx.tanh(abs(numbers((2, 6, 3), mx.float64, i))) for i in range(2))
    pulled = mx.grad(lambda t: mf.dice_loss(y, t))(t)
    np.testing.assert_allclose(exact(pulled), exact(mf.dice_loss_grad(t, y)), rtol=1e-12)


@pytest.mark.parametrize("function", [mf.focal_loss, mf.dice_loss])
def test_empty_batches(device: mx.Device, function: Callable[..., mx.array]) -> None:
    y = mx.zeros((0, 3, 4))
    assert function(y, y, reduction="sum").item() == 0
    assert np.isnan(function(y, y, reduction="mean").item())
    assert function(y, y, reduction="none").shape == (0, 1 if function is mf.dice_loss else 3, 4)
    gradient = mf.focal_loss_grad if function is mf.focal_loss else mf.dice_loss_grad
    assert gradient(y, y, reduction="mean").shape == y.shape
