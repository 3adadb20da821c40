"""What counts in a loss: labels that are left out, weights of classes and of positives, labels that are checked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import accumulator, exact, numbers, same_bits
from support.losses_case import CATEGORICAL, REDUCTIONS, SIGMOID, SOFTMAX, check, images

import mpsfunc as mf
from mpsfunc import graph

LABELLED = (SOFTMAX, CATEGORICAL)
BOTH = pytest.mark.parametrize("type", LABELLED)


def close(made: mx.array, right: Any) -> None:
    np.testing.assert_allclose(exact(made), exact(right) if isinstance(right, mx.array) else right, 2e-6, 1e-7)


def drawn(shape: tuple[int, ...], classes: int, seed: int = 3) -> np.ndarray:
    """Labels, some of which are -100 and some of no class."""
    made = np.random.default_rng(seed).integers(0, classes, shape)
    made.flat[::4], made.flat[1:2] = -100, classes
    return made


# Labels of images of one pixel ----------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("shape", [(3, 1, 1, 5), (3, 1, 5), (3, 5), (1, 1, 1, 5)])
def test_a_label_an_image(device: mx.Device, type: str, shape: tuple[int, ...]) -> None:
    y, labels = images(type, shape, mx.float32)[0], mx.array([4, 0, 2][: shape[0]])
    long, how = labels.reshape(shape[:-1]), {"class_weights": mx.arange(1.0, 6), "ignore_index": 0}
    for reduction in REDUCTIONS:
        for options in ({}, how):
            for f in (mf.loss_value, mf.loss, mf.loss_fwd, mf.loss_grad):
                short, right = (f(y, t, type, reduction, **options) for t in (labels, long))
                for a, b in zip(_arrays(short), _arrays(right), strict=True):
                    assert a.shape == b.shape and same_bits(a, b)
    assert mf.loss_value(y, labels, type, "mean").shape == (shape[0], *(1,) * (len(shape) - 1))
    assert same_bits(mf.dice_loss(y, labels), mf.dice_loss(y, long))


def _arrays(made: Any) -> list[mx.array]:
    flat = [made] if isinstance(made, mx.array) else [a for part in made for a in _arrays(part)] if isinstance(
        made, tuple
    ) else []  # fmt: skip
    return flat


def test_labels_of_a_network_that_classifies(device: mx.Device) -> None:
    """(n, 1, 1, c) scores and (n,) labels train; a wrong length is refused."""
    x, w, labels = numbers((4, 3, 3, 2)), numbers((5, 3, 3, 2), seed=1), mx.array([0, 4, 2, 2])

    def cost(w: mx.array) -> mx.array:
        return mf.loss_value(mf.fully_connected(x, w), labels, SOFTMAX, "mean").mean()

    assert exact(mx.grad(cost)(w)).any()
    with pytest.raises(ValueError, match=r"labels do not fit y; got target.shape=\(3,\), expected \(4, 1, 1\)"):
        mf.loss_value(mf.fully_connected(x, w), labels[:3], SOFTMAX, "mean")


# Labels that are left out ---------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("index", [-100, 3])
@pytest.mark.parametrize("weighing", ["none", "scalar", "pixels", "elements"])
@BOTH
def test_definition(device: mx.Device, dtype: mx.Dtype, type: str, weighing: str, index: int, smoothing: float) -> None:
    """With weights of classes and without."""
    for shape in ((2, 3, 5), (3, 24), (2, 2, 2, 70)):
        y, labels = images(type, shape, dtype)[0], mx.array(drawn(shape[:-1], shape[-1]))
        how: dict[str, Any] = {"ignore_index": index}
        if type == SOFTMAX and smoothing:
            how |= {"label_smoothing": smoothing, "number_of_classes": shape[-1]}
        if weighing == "scalar":
            how["weight"] = 1.75
        elif weighing != "none":
            how["weights"] = abs(numbers((*shape[:-1], shape[-1] if weighing == "elements" else 1), dtype, 7))
        for reduction in REDUCTIONS:
            check(type, reduction, y, labels, **how)
            check(type, reduction, y, labels, class_weights=abs(numbers((shape[-1],), dtype, 8)), **how)


@BOTH
def test_pixels_left_out_have_nothing(device: mx.Device, type: str) -> None:
    """Neither gradient, nor derivative, nor derivatives of it; whether the label is a class or not."""
    y, _ = images(type, (1, 6, 5), mx.float32)
    for out in (-1, 2):
        labels = mx.array([[0, out, 1, out, 4, 3]])
        gone = exact(labels)[0] == out
        how: dict[str, Any] = {"ignore_index": out}

        def f(y: mx.array, labels: mx.array = labels, how: dict[str, Any] = how) -> mx.array:
            return mf.loss_value(y, labels, type, "mean", **how)

        slope = mx.grad(lambda y, f=f: f(y).sum())
        value, passed = mf.loss(y, labels, type, "mean", **how)
        made = [
            *(passed, mf.loss_fwd(y, labels, type, "sum", **how)[1].gradient),
            *(mf.loss_grad(y, labels, type, **how), mf.loss_grad(y, labels, type, divided=True, **how)),
            *(slope(y), mx.grad(lambda y, slope=slope: (slope(y) ** 2).sum())(y)),
            mx.jvp(slope, [y], [numbers(y.shape, seed=1)])[1][0],
        ]
        for gradient in made:
            assert not exact(gradient)[0, gone].any() and exact(gradient)[0, ~gone].any(-1).all()
        kept = mx.array(np.flatnonzero(~gone))
        close(value, mf.loss_value(y[:, kept], labels[:, kept], type, "mean"))


@BOTH
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nothing_counts(device: mx.Device, type: str, reduction: str) -> None:
    """PyTorch's mean is 0 / 0 there; here it is 0, and so is its gradient."""
    y, labels = images(type, (2, 3, 5), mx.float32)[0], mx.full((2, 3), 255, mx.uint8)
    for how in ({}, {"class_weights": mx.ones(5)}, {"weights": mx.ones((3, 1))}):
        value, gradient = mf.loss(y, labels, type, reduction, ignore_index=255, **how)
        pulled = mx.grad(lambda y, how=how: mf.loss_value(y, labels, type, reduction, ignore_index=255, **how).sum())(y)
        for made in (value, gradient, pulled):
            assert (exact(made) == 0).all()


@pytest.mark.parametrize(
    ("kind", "index", "left_out"),
    [
        *((mx.uint8, 255, True), (mx.uint8, -1, False), (mx.uint8, 257, False), (mx.int8, 129, False)),
        *((mx.int8, -128, True), (mx.int64, -(2**63), True), (mx.uint64, 2**64 - 1, True), (mx.int32, 2**32, False)),
    ],
    ids=str,
)
def test_an_index_is_a_number(device: mx.Device, kind: mx.Dtype, index: int, left_out: bool) -> None:
    """Not what is left of it in the labels' dtype."""
    name = str(kind).rpartition(".")[2]
    wrapped = np.array([index % 2 ** (8 * kind.size)], np.uint64).astype(name)[0]
    labels = mx.array(np.array([[1, wrapped, 1, 1]], name))
    y = numbers((1, 4, 3))
    value = mf.loss_value(y, labels, SOFTMAX, "mean", ignore_index=index)
    close(value, mf.loss_value(y, labels, SOFTMAX, "sum") / (3 if left_out else 4))


# Weights of classes and of positives ----------------------------------------------------------------------


def test_weights_of_classes_by_hand(device: mx.Device) -> None:
    y = mx.log(mx.array([[[0.25, 0.75], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]]))
    labels, w = mx.array([[0, 1], [1, 1]]), mx.array([3.0, 1])
    lost = np.log([[4, 2], [2, 2]]) * [[3, 1], [1, 1]]
    close(mf.loss_value(y, labels, SOFTMAX, "sum", class_weights=w)[:, 0, 0], lost.sum(1))
    value, gradient = mf.loss(y, labels, SOFTMAX, "mean", class_weights=w)
    close(value[:, 0, 0], lost.sum(1) / 3)  # (3 + 1 + 1 + 1) / 2 images
    close(value.mean(), lost.sum() / 6)
    close(gradient, [[[-2.25, 2.25], [0.5, -0.5]], [[0.5, -0.5], [0.5, -0.5]]])
    ones = mf.loss_value(y, labels, SOFTMAX, "mean", class_weights=mx.ones(2))
    close(ones, mf.loss_value(y, labels, SOFTMAX, "mean"))


def test_weights_of_classes_and_images_of_one_pixel(device: mx.Device) -> None:
    """A mean of each image by itself would take the weight out again."""
    y, labels, w = numbers((3, 4)), mx.array([0, 2, 3]), mx.array([1.0, 5, 2, 0.5])
    value = mf.loss_value(y, labels, SOFTMAX, "mean", class_weights=w)
    plain = mf.loss_value(y, labels, SOFTMAX, "mean")
    close(value.mean(), (plain[:, 0] * w[labels]).sum() / 3.5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_of_positives(device: mx.Device, dtype: mx.Dtype, reduction: str) -> None:
    for shape in ((2, 3, 5), (3, 16)):
        y, t = images(SIGMOID, shape, dtype)
        for target in (t, (t > 0.2).astype(dtype)):
            w = abs(numbers((shape[-1],), dtype, 8)) + 0.25
            check(SIGMOID, reduction, y, target, pos_weight=w, slack=12)
            check(SIGMOID, reduction, y, target, pos_weight=w, label_smoothing=0.2, weight=0.5, slack=12)
            check(SIGMOID, reduction, y, target, pos_weight=w, weights=abs(numbers(shape, dtype, 9)), slack=12)


def test_one_weight_of_all_positives(device: mx.Device, dtype: mx.Dtype) -> None:
    y, t = images(SIGMOID, (2, 3, 5), dtype)
    for shape in ((), (1,)):

        def f(y: mx.array, q: mx.array) -> mx.array:
            return mf.loss_value(y, t, SIGMOID, "sum", pos_weight=q).sum()

        one, all_of_them = mx.full(shape, 2.5), mx.full((5,), 2.5)
        assert same_bits(f(y, one), f(y, all_of_them))
        (dy, dq), (right, each) = (mx.grad(f, (0, 1))(y, q) for q in (one, all_of_them))
        assert same_bits(dy, right) and dq.shape == shape
        np.testing.assert_allclose(exact(dq).sum(), exact(each).sum(), 1e-5)
        made = [mf.loss(y, t, SIGMOID, "mean", pos_weight=q)[1] for q in (one, all_of_them)]
        assert same_bits(*made)
    with pytest.raises(ValueError, match=r"pos_weight does not fit y; got pos_weight.shape=\(2,\), expected \(5,\)"):
        f(y, mx.ones(2))


def test_positives_that_count_nothing(device: mx.Device) -> None:
    y, t = mx.array([[3.0, -2.0]]), mx.array([[1.0, 0.0]])
    value, gradient = mf.loss(y, t, SIGMOID, "none", pos_weight=mx.zeros(2))
    close(value, [[0, np.log1p(np.exp(-2))]])
    close(gradient, [[0, 1 / (1 + np.exp(2))]])


def test_weights_of_positives_that_are_large_or_small(device: mx.Device) -> None:
    """Neither term is lost beside the other, of shares as of 0 and 1: both count in float32 what they count exactly."""
    random = np.random.default_rng(4)
    y, t = (random.uniform(-low, high, 200) for low, high in ((60, 60), (0, 1)))
    q = 10 ** random.uniform(-6, 6, 200)
    known = np.array(
        [[100, 0.9, 1e5], [30, 0.99, 1e3], [20, 1, 0.01], [5, 1, 0.01], [5, 1, 1e-6], [-40, 0, 1e6], [1e30, 1, 0.01]]
    )
    arrays = [mx.array(np.concatenate(column), mx.float32)[None] for column in zip(known.T, (y, t, q), strict=True)]
    y, t, q = (exact(a) for a in arrays)
    first, second = q * t * np.logaddexp(0, -y), (1 - t) * np.logaddexp(0, y)
    parts = q * t * np.exp(-np.logaddexp(0, y)), (1 - t) * np.exp(-np.logaddexp(0, -y))
    right, slope, scale = first + second, parts[1] - parts[0], parts[1] + parts[0]

    def ours(y: mx.array, reduction: str = "none") -> mx.array:
        return mf.loss_value(y, arrays[1], SIGMOID, reduction, pos_weight=arrays[2][0])

    how: dict[str, Any] = {"pos_weight": arrays[2][0]}
    for value in (ours(arrays[0]), mf.loss(*arrays[:2], SIGMOID, "none", **how)[0]):
        np.testing.assert_allclose(exact(value), right, 1e-5, 0)
    np.testing.assert_allclose(exact(ours(arrays[0], "sum"))[0, 0], right.sum(), 1e-5)
    made = [mf.loss(*arrays[:2], SIGMOID, "sum", **how)[1], mf.loss_grad(*arrays[:2], SIGMOID, divided=True, **how)]
    made += [mx.grad(lambda y, r=r: ours(y, r).sum())(arrays[0]) for r in ("none", "sum")]
    for gradient in made:
        assert (abs(exact(gradient) - slope) <= 1e-5 * scale).all()
    alone = [mf.loss_value(*(a[:, i : i + 1] for a in arrays[:2]), SIGMOID, "sum", pos_weight=arrays[2][0, i : i + 1])
             for i in range(len(known))]  # fmt: skip
    np.testing.assert_allclose(exact(mx.concatenate(alone, 1)), right[:, : len(known)], 1e-5, 0)


def _orders(f: Callable[..., mx.array], *arrays: mx.array) -> list[mx.array]:
    """Gradients of the first three orders by every array, each of a sum of functions of those before."""

    def of(pull: Callable[..., Any], *a: mx.array) -> mx.array:
        return sum((mx.sin(g) + g * 0.3).sum() for g in pull(*a))

    made: list[mx.array] = []
    for _ in range(3):
        pull = mx.grad(f, tuple(range(len(arrays))))
        made += pull(*arrays)
        f = functools.partial(of, pull)
    return made


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("q", "t"), [(0.0, 1.0), (0.0, 0.25), (-1.0, 0.5), (0.5, 2.0), (2.0, 1.0)])
def test_derivatives_where_weights_of_positives_are_0(on_cpu: mx.Device, reduction: str, q: float, t: float) -> None:
    """By images, targets, weights of positives and of elements; also where the factors of both terms add up to 0."""
    y, target = mx.array([[3.0, -2.0, 0.5]], mx.float64), mx.full((1, 3), t, mx.float64)
    of_positives, w = mx.full((3,), q, mx.float64), mx.array([[0.5, 2.0, 1.0]], mx.float64)
    divisor = 3 if reduction in ("mean", "sum_by_non_zero_weights") else 1

    def ours(y: mx.array, t: mx.array, q: mx.array, w: mx.array) -> mx.array:
        value = mf.loss_value(y, t, SIGMOID, reduction, weights=w, pos_weight=q)
        assert same_bits(mf.loss(y, t, SIGMOID, reduction, weights=w, pos_weight=q)[0], value)
        return value.sum()

    def formula(y: mx.array, t: mx.array, q: mx.array, w: mx.array) -> mx.array:
        lost = q * t * mf.softplus(-y) + (1 - t) * mf.softplus(y)
        return (w * lost).sum() / divisor

    arrays = (y, target, of_positives, w)
    np.testing.assert_allclose(ours(*arrays).item(), formula(*arrays).item(), rtol=1e-13)
    for made, right in zip(_orders(ours, *arrays), _orders(formula, *arrays), strict=True):
        np.testing.assert_allclose(exact(made), exact(right), rtol=1e-11, atol=1e-12)


def test_the_slope_by_weights_of_positives_is_the_first_term(device: mx.Device, dtype: mx.Dtype) -> None:
    y, t = mx.array([[3.0, -2.0]], dtype), mx.ones((1, 2), dtype)
    slope = mx.grad(lambda q: mf.loss_value(y, t, SIGMOID, "sum", pos_weight=q).sum())(mx.zeros(2, accumulator(dtype)))
    close(slope, [0.04858735, 2.126928])


@BOTH
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_derivatives_where_weights_of_classes_are_0(on_cpu: mx.Device, type: str, reduction: str) -> None:
    y, labels = images(type, (2, 3, 4), mx.float64)[0], mx.array([[0, 1, 3], [1, 2, 2]])
    w = mx.array([0.0, 1.5, 0.0, 2.0], mx.float64)
    hot = (labels[..., None] == mx.arange(4)).astype(mx.float64)

    def ours(y: mx.array, w: mx.array) -> mx.array:
        return mf.loss_value(y, labels, type, reduction, class_weights=w).sum()

    def formula(y: mx.array, w: mx.array) -> mx.array:
        logs = mf.log_softmax(y) if type == SOFTMAX else mx.log(y)
        total = -(w * hot * logs).sum()
        if reduction in ("none", "sum"):
            return total
        return total / ((w * hot).sum() / 2 * (1 if type == SOFTMAX else 4))

    arrays = (y, w)
    for made, right in zip(_orders(ours, *arrays), _orders(formula, *arrays), strict=True):
        np.testing.assert_allclose(exact(made), exact(right), rtol=1e-10, atol=1e-11)


def test_the_node_of_a_graph_leaves_labels_out(device: mx.Device) -> None:
    x, labels = graph.ImageNode("x"), graph.ImageNode("labels")
    loss = graph.loss(graph.fully_connected(x, 4, name="scores"), labels, SOFTMAX, "mean", ignore_index=255)
    step = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    inputs = {"x": numbers((2, 3, 3, 2)), "labels": mx.array([255, 255], mx.uint8)}
    params, states = step.init(mx.random.key(0), inputs)
    value, gradients, _ = step(params, inputs, states)
    assert not exact(value).any() and not exact(gradients["scores"]["w"]).any()


# Labels that are checked ----------------------------------------------------------------------------------


def _calls(y: mx.array, labels: mx.array, **how: Any) -> list[Callable[[], Any]]:
    return [lambda f=f: f(y, labels, SOFTMAX, "mean", **how) for f in (mf.loss, mf.loss_value, mf.loss_fwd)]


@pytest.mark.parametrize("kind", [mx.int32, mx.int64, mx.uint8, mx.int16], ids=str)
def test_a_label_of_no_class_is_an_error(kind: mx.Dtype, on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    y, labels = numbers((2, 3, 4)), mx.array([[0, 3, 1], [2, 7, 4]]).astype(kind)
    out = 255 if kind == mx.uint8 else -1
    fine = mx.where(labels < 4, labels, mx.array(out, kind))
    plain = mf.loss_value(y, fine, SOFTMAX, "mean", ignore_index=out)
    for given in ("", "0"):
        monkeypatch.setenv("MPSFUNC_CHECK_LABELS", given)
        mx.eval([call() for call in _calls(y, labels)])
    monkeypatch.setenv("MPSFUNC_CHECK_LABELS", "1")
    told = "a label is not a class; got 7 as label 4 of target, the first of 2, expected 0 to 3"
    for call in _calls(y, labels):
        with pytest.raises(ValueError, match=f"{told} or ignore_index$"):
            call()
    for dice in (mf.dice_loss, mf.dice_loss_grad):  # which have no ignore_index
        with pytest.raises(ValueError, match=f"{told}$"):
            dice(y, labels)
    with pytest.raises(ValueError, match=rf"got {out} as label 4 .* the first of 2,"):
        mf.loss_grad(y, fine, SOFTMAX)
    assert same_bits(mf.loss_value(y, fine, SOFTMAX, "mean", ignore_index=out), plain)
    mx.eval(mx.grad(lambda y: mf.loss_value(y, fine, SOFTMAX, "mean", ignore_index=out).sum())(y))


def test_labels_that_nobody_knows_yet(on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is compiled or mapped over them is refused; over other arrays it is not."""
    y, labels = numbers((2, 3, 4)), mx.zeros((2, 3), mx.int32)

    def f(y: mx.array, labels: mx.array = labels) -> mx.array:
        return mf.loss_value(y, labels, SOFTMAX, "mean")

    plain = f(y)
    monkeypatch.setenv("MPSFUNC_CHECK_LABELS", "1")
    assert same_bits(mx.compile(f)(y), plain)
    assert same_bits(mx.vmap(lambda y: f(y))(y[None])[0], plain)
    mx.eval(mx.grad(lambda y: mx.checkpoint(f)(y, labels).sum())(y))
    for call in (lambda: mx.compile(f)(y, labels), lambda: mx.vmap(f)(y[None], labels[None])):
        with pytest.raises(
            ValueError, match="^loss_value: labels that a transformation traces cannot be checked; got "
        ):
            call()
    monkeypatch.setenv("MPSFUNC_CHECK_LABELS", "yes")
    with pytest.raises(ValueError, match="MPSFUNC_CHECK_LABELS: not a switch; got 'yes', expected '0' or '1'"):
        f(y)


def test_a_checkpoint_over_labels(on_cpu: mx.Device) -> None:
    y, labels = numbers((2, 3, 4)), mx.array([[0, 3, 1], [2, 1, 0]])

    def f(y: mx.array, labels: mx.array) -> mx.array:
        return mf.loss_value(y, labels, SOFTMAX, "mean", ignore_index=0).sum()

    assert same_bits(mx.grad(mx.checkpoint(f))(y, labels), mx.grad(f)(y, labels))
