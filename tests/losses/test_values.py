"""Losses: values, the gradients that MPS passes on, and the derivatives of the values, beside their definitions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DTYPES, VIEWS, exact, numbers, same_bits, same_bits_for_threads
from support.losses_case import CATEGORICAL, COSINE, PAIRS, REDUCTIONS, SIGMOID, SOFTMAX, check, each, each_pair, images

import mpsfunc as mf
from mpsfunc import graph

# The definition ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type", "reduction", "weighing"),
    [
        (*pair, w)
        for pair in PAIRS
        for w in ("none", "scalar", "elements", "pixels")
        if pair[0] != COSINE or w in ("none", "scalar")
    ],
)
def test_definition(device: mx.Device, dtype: mx.Dtype, type: str, reduction: str, weighing: str) -> None:
    for shape in ((2, 3, 2, 5), (3, 16), (1, 2, 24)):
        y, t = images(type, shape, dtype)
        how: dict[str, Any] = {"weight": 1.75} if weighing == "scalar" else {}
        if weighing == "elements":
            w = numbers(shape, dtype, 7)
            how = {"weights": mx.where(w > 1, mx.zeros_like(w), w)}
        elif weighing == "pixels":
            w = numbers((*shape[:-1], 1), dtype, 7)
            how = {"weights": mx.where(w > 0.5, mx.zeros_like(w), w)}
        check(type, reduction, y, t, **how)


@each_pair
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 7), (3, 70), (2, 5, 33), (2, 9, 7, 3), (1, 2, 2, 2, 2, 8)])
def test_definition_for_every_shape(device: mx.Device, type: str, reduction: str, shape: tuple[int, ...]) -> None:
    how = {"huber": {"delta": 0.7}, "log": {"epsilon": 1e-3}}.get(type, {})
    check(type, reduction, *images(type, shape, mx.float32), **how)


@each
@pytest.mark.parametrize("view", VIEWS)
def test_definition_for_every_view(device: mx.Device, dtype: mx.Dtype, type: str, view: str) -> None:
    check(type, "sum", *images(type, (2, 3, 16), dtype), view=view)


@pytest.mark.parametrize("type", [SOFTMAX, SIGMOID])
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_label_smoothing(device: mx.Device, dtype: mx.Dtype, type: str, smoothing: float) -> None:
    for classes, reduction in itertools.product((1, 6), REDUCTIONS):
        y, t = images(type, (2, 3, 6), dtype)
        how = {"number_of_classes": classes} if type == SOFTMAX else {}
        check(type, reduction, y, t, label_smoothing=smoothing, **how)


FEW = 64  # classes of pixels that a CPU takes together, at most; with less than AVX-512 fewer
LABEL_DTYPES = (mx.int32, mx.int64, mx.int16, mx.int8, mx.uint32, mx.uint64, mx.uint16, mx.uint8)


@pytest.mark.parametrize("type", [SOFTMAX, CATEGORICAL])
@pytest.mark.parametrize("kind", LABEL_DTYPES, ids=str)
def test_labels(device: mx.Device, dtype: mx.Dtype, type: str, kind: mx.Dtype) -> None:
    y, _ = images(type, (2, 3, 4, 20), dtype)
    labels = mx.array(np.random.default_rng(3).integers(0, 20, (2, 3, 4))).astype(kind)
    for reduction in REDUCTIONS:
        check(type, reduction, y, labels)
        check(type, reduction, y, labels, weights=abs(numbers((2, 3, 4, 1), dtype)))
        check(type, reduction, y, labels, weights=abs(numbers((20,), dtype)))
    if type == SOFTMAX:
        check(type, "mean", y, labels, label_smoothing=0.2, number_of_classes=20)


@pytest.mark.parametrize("type", [SOFTMAX, CATEGORICAL])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (mx.int32, [-1, 4, 2**31 - 1, -(2**31), 3]),
        (mx.int64, [-1, 4, 2**32, 2**32 + 1, -(2**63)]),
        (mx.uint64, [2**64 - 1, 4, 2**32, 2**40, 2]),
        (mx.uint32, [2**32 - 1, 4, 2**31, 100, 0]),
        (mx.int8, [-1, 4, 127, -128, 1]),
        (mx.uint8, [255, 4, 128, 3, 0]),
    ],
    ids=str,
)
def test_labels_of_no_class_are_targets_of_zeros(
    device: mx.Device, type: str, kind: mx.Dtype, values: list[int]
) -> None:
    labels, (y, _) = mx.array(np.array(values, str(kind).rpartition(".")[2])), images(type, (5, 4), mx.float32)
    hot = mx.array([[float(v == k) for k in range(4)] for v in values])
    for made, right in zip(mf.loss(y, labels, type, "sum"), mf.loss(y, hot, type, "sum"), strict=True):
        np.testing.assert_allclose(exact(made), exact(right), rtol=1e-6, atol=1e-7)
    derived = [mf.loss_grad(y, t, type, divided=True) for t in (labels, hot)]
    np.testing.assert_allclose(*map(exact, derived), rtol=1e-6, atol=1e-7)
    smooth = {"label_smoothing": 0.1, "number_of_classes": 4} if type == SOFTMAX else {}
    for reduction in REDUCTIONS:
        check(type, reduction, y, labels, **smooth)
    none = mx.array([not 0 <= v < 4 for v in values])[:, None]
    _no_loss(type, y, labels, none, "sum", **smooth)


def _no_loss(type: str, y: mx.array, labels: mx.array, none: mx.array, reduction: str, **how: Any) -> None:
    """The value and its derivatives of the first and second order are 0 in the pixels that are of no class.

    They are the whole image, but with "none". MPS's gradient there is that without smoothing.
    """

    def f(y: mx.array) -> mx.array:
        return mf.loss_value(y, labels, type, reduction, **how)

    def gone(made: mx.array) -> bool:
        return not exact(mx.where(none, made, 0)).any()

    slope = mx.grad(lambda y: f(y).sum())
    (value, passed), ones = mf.loss(y, labels, type, reduction, **how), mx.ones_like(y)
    assert gone(value) and gone(f(y)) and gone(mf.loss_fwd(y, labels, type, reduction, **how)[0])
    assert gone(mf.loss_grad(y, labels, type, reduction, divided=True, **how)) and gone(slope(y))
    assert gone(mx.grad(lambda y: mf.loss(y, labels, type, reduction, **how)[0].sum())(y))
    assert gone(mx.jvp(f, [y], [ones])[1][0]) and gone(mx.jvp(slope, [y], [ones])[1][0])
    assert gone(mx.grad(lambda y: (slope(y) * ones).sum())(y))
    assert gone(mx.vmap(f)(mx.stack([y, y]))[1])
    plain = {k: v for k, v in how.items() if k != "label_smoothing"}
    # Of one of the two a CPU may take pixels together, unless there are weights of elements.
    of_elements = "weights" in how and how["weights"].shape[-1] == y.shape[-1]
    rounded = type == SOFTMAX and y.shape[-1] <= FEW and not of_elements
    for made in (passed, mf.loss_grad(y, labels, type, **how)):
        left, right = (mx.where(none, g, mx.zeros_like(g)) for g in (made, mf.loss_grad(y, labels, type, **plain)))
        if rounded:
            np.testing.assert_allclose(exact(left), exact(right), rtol=1e-6, atol=1e-7)
        else:
            assert same_bits(left, right)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighing", ["none", "scalar", "elements", "pixels"])
@pytest.mark.parametrize("classes", [3, 16, 70])
def test_smoothing_shares_nothing_where_there_is_no_class(
    device: mx.Device, dtype: mx.Dtype, reduction: str, weighing: str, classes: int
) -> None:
    """An image of no class at all beside one of which a part is."""
    y, _ = images(SOFTMAX, (2, 3, classes), dtype)
    labels = mx.array([[-1, classes, 2**31 - 1], [1, -1, classes - 1]])
    how: dict[str, Any] = {"label_smoothing": 0.1, "number_of_classes": classes}
    if weighing == "scalar":
        how["weight"] = 1.75
    elif weighing != "none":
        how["weights"] = abs(numbers((2, 3, classes if weighing == "elements" else 1), dtype, 7))
    check(SOFTMAX, reduction, y, labels, **how)
    none = (labels < 0) | (labels >= classes)
    per = none[..., None] if reduction == "none" else none.all(1)[:, None, None]
    _no_loss(SOFTMAX, y, labels, per, reduction, **how)
    check(SOFTMAX, reduction, y, labels, **{**how, "label_smoothing": 1.0})


def test_no_class_by_hand(device: mx.Device) -> None:
    y, how = mx.array([[1.0, 2, 0]]), {"label_smoothing": 0.1, "number_of_classes": 3}
    for label in (-1, 3):
        for reduction in ("sum", "mean", "sum_by_non_zero_weights"):
            value, gradient = mf.loss(y, mx.array([label]), SOFTMAX, reduction, **how)
            assert value.item() == 0
            np.testing.assert_allclose(exact(gradient), exact(mf.softmax(y)), rtol=1e-6)


def test_no_class_is_averaged_over_as_without_smoothing(device: mx.Device) -> None:
    """A mean goes on to count its pixels, and the weights of its pixels count if they are not 0."""
    y, labels, w = numbers((1, 4, 5)), mx.array([[-1, 2, 5, 0]]), mx.array([[[2.0], [1], [0], [1]]])
    how: dict[str, Any] = {"label_smoothing": 0.2, "number_of_classes": 5}
    total = mf.loss_value(y, labels, SOFTMAX, "sum", **how)
    np.testing.assert_allclose(exact(mf.loss_value(y, labels, SOFTMAX, "mean", **how)) * 4, exact(total), rtol=1e-6)
    total = mf.loss_value(y, labels, SOFTMAX, "sum", weights=w, **how)
    counted = mf.loss_value(y, labels, SOFTMAX, "sum_by_non_zero_weights", weights=w, **how)
    np.testing.assert_allclose(exact(counted) * 3, exact(total), rtol=1e-6)


@pytest.mark.parametrize("divided", [False, True])
def test_the_node_of_a_graph_knows_no_class(device: mx.Device, divided: bool) -> None:
    x, labels = graph.ImageNode("x"), graph.ImageNode("labels")
    how: dict[str, Any] = {"label_smoothing": 0.1, "number_of_classes": 4, "divided": divided}
    loss = graph.loss(graph.fully_connected(x, 4, name="scores"), labels, SOFTMAX, "mean", **how)
    step = graph.compile(loss.loss_image, gradients=graph.training_graph(loss))
    inputs = {"x": numbers((2, 3, 3, 2)), "labels": mx.array([[[-1]], [[4]]])}
    params, states = step.init(mx.random.key(0), inputs)
    value, gradients, _ = step(params, inputs, states)
    assert not exact(value).any()
    assert exact(gradients["scores"]["w"]).any() != divided


def test_dense_targets_of_zeros_are_smoothed(device: mx.Device) -> None:
    """They were given; only a label can be no class."""
    value = mf.loss_value(mx.zeros((1, 4)), mx.zeros((1, 4)), SOFTMAX, "sum", label_smoothing=0.2, number_of_classes=4)
    np.testing.assert_allclose(value.item(), 0.2 * np.log(4), rtol=1e-6)


def test_no_class_has_no_derivative_where_a_probability_is_0(on_cpu: mx.Device) -> None:
    y, labels = mx.array([[0.0, 0.5, 0.5], [0.0, 0.25, 0.75]]), mx.array([-1, 1])

    def f(y: mx.array) -> mx.array:
        return mf.loss_value(y, labels, CATEGORICAL, "sum")

    slope, ones = mx.grad(lambda y: f(y).sum()), mx.ones_like(y)
    assert exact(mx.jvp(f, [y], [ones])[1][0]).ravel().tolist() == [0, -4]
    assert exact(slope(y)).tolist() == [[0, 0, 0], [0, -4, 0]]
    curves = mx.jvp(slope, [y], [ones])[1][0], mx.grad(lambda y: slope(y).sum())(y)
    assert all(exact(c).tolist() == [[0, 0, 0], [0, 16, 0]] for c in curves)


@pytest.mark.parametrize(("type", "expected"), [(CATEGORICAL, -2.0), ("kullback_leibler", -1.0)])
def test_a_tangent_of_y_alone_where_y_and_the_target_are_0(on_cpu: mx.Device, type: str, expected: float) -> None:
    """The slope by the target is infinite there, and nobody moves the target."""
    y, target = mx.array([[0.0, 0.5, 0.5]]), mx.array([[0.0, 1.0, 0.0]])
    tangents = mx.jvp(lambda y: mf.loss_value(y, target, type, "sum"), [y], [mx.ones_like(y)])[1]
    assert exact(tangents[0]).ravel().tolist() == [expected]


@pytest.mark.parametrize("type", [CATEGORICAL, "log"])
def test_a_gradient_through_mapped_tangents_that_share_a_target(on_cpu: mx.Device, type: str) -> None:
    y, target = images(type, (3, 2, 4), mx.float32)

    def steep(y: mx.array, target: mx.array) -> mx.array:
        value = mx.jvp(lambda y: mf.loss_value(y, target, type, "sum"), [y], [mx.ones_like(y)])[1][0]
        return (value * value).sum()

    together = mx.grad(lambda *of: mx.vmap(steep, in_axes=(0, None))(*of).sum(), argnums=(0, 1))(y, target[0])
    apart = mx.grad(lambda y, target: sum(steep(one, target) for one in y), argnums=(0, 1))(y, target[0])
    for made, expected in zip(together, apart, strict=True):
        np.testing.assert_allclose(exact(made), exact(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", [(6,), (1,), (), (1, 6), (4, 6), (4, 1), (2, 1, 1), (3, 4, 6), (1, 4, 1)], ids=str)
@pytest.mark.parametrize("type", [SOFTMAX, "mean_squared_error"])
def test_weights_broadcast(device: mx.Device, type: str, weights: tuple[int, ...]) -> None:
    if weights == (2, 1, 1):
        weights = (3, 1, 1)
    w = numbers(weights) + 0.1
    for reduction in REDUCTIONS:
        check(type, reduction, *images(type, (3, 4, 6), mx.float32), weights=w)


def test_weights_that_are_all_zero_divide_by_one(device: mx.Device) -> None:
    y, t = images(SOFTMAX, (2, 3, 4), mx.float32)
    value = mf.loss_value(y, t, SOFTMAX, "sum_by_non_zero_weights", weights=mx.zeros((2, 3, 1)))
    assert not exact(value).any()


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 2, 5, 8, 17])),
    pair=st.sampled_from(PAIRS),
    dtype=st.sampled_from(DTYPES),
    view=st.sampled_from(sorted(VIEWS)),
    weighing=st.sampled_from(["none", "elements", "pixels"]),
    seed=st.integers(0, 99),
)
@pytest.mark.needs_cpu_module
def test_definition_anywhere(
    shape: tuple[int, int, int], pair: tuple[str, str], dtype: mx.Dtype, view: str, weighing: str, seed: int
) -> None:
    with mx.stream(mx.cpu):
        how = {}
        if pair[0] != COSINE and weighing != "none":
            last = shape[-1] if weighing == "elements" else 1
            how = {"weights": numbers((*shape[:-1], last), dtype, 50 + seed)}
        check(*pair, *images(pair[0], shape, dtype, seed), view=view, slack=12, **how)


@each
def test_empty_batches(device: mx.Device, type: str) -> None:
    y = mx.zeros((0, 3, 4))
    value, gradient = mf.loss(y, y, type, "sum")
    assert value.shape == (0, 1, 1) and gradient.shape == mf.loss_grad(y, y, type, divided=True).shape == y.shape


@each
def test_large_images_and_many_images(device: mx.Device, type: str) -> None:
    """Several chunks an image, and several images a chunk; sums keep their digits."""
    for shape in ((2, 150, 300), (3, 1, 20_000), (900, 3, 4)):
        y, t = images(type, shape, mx.float32)
        value, gradient = mf.loss(y, t, type, "sum")
        wide = [a.astype(mx.float64, stream=mx.cpu) for a in (y, t)]
        right = mf.loss(*wide, type, "sum", stream=mx.cpu)
        with mx.stream(mx.cpu):
            each = wide[0] * wide[1] if type == COSINE else mf.loss_value(*wide, type, "none")
        terms = exact(each).reshape(len(y), -1)
        # Terms of both signs cancel; what is left has the sum of their roundings, which goes with the root of squares.
        rounded = 8 * 2.0**-24 * np.sqrt((terms**2).sum(1)).reshape(value.shape)
        off = abs(exact(value) - exact(right[0]))
        assert (off <= 2e-6 * abs(exact(right[0])) + rounded).all(), (off, rounded)
        np.testing.assert_allclose(exact(gradient), exact(right[1]), rtol=1e-4, atol=1e-6)


@each
def test_same_bits_every_time(device: mx.Device, dtype: mx.Dtype, type: str) -> None:
    y, t = images(type, (5, 60, 70), dtype)
    made = [mf.loss(y, t, type, "sum") for _ in range(3)]
    assert all(same_bits(a, b) for pair in made[1:] for a, b in zip(pair, made[0], strict=True))


@each
def test_threads_do_not_change_bits(on_cpu: mx.Device, type: str, threads: Callable[[int], None]) -> None:
    pairs = [images(type, shape, mx.float32) for shape in ((2, 90, 300), (700, 30))]
    same_bits_for_threads(threads, lambda: [v for pair in pairs for v in mf.loss(*pair, type, "sum")], (1, 2, 5))


@each
def test_every_instruction_set(on_cpu: mx.Device, isa: str, type: str) -> None:
    for dtype, shape in itertools.product(DTYPES, ((2, 3, 19), (3, 32))):
        check(type, "none" if type != COSINE else "sum", *images(type, shape, dtype))
        check(type, "sum", *images(type, shape, dtype))
