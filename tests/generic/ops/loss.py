"""Losses: `loss`, `loss_fwd` and `loss_value`. Their gradients are in loss_grad.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

import mlx.core as mx
import numpy as np
from generic.opinfo import Array, Call, Fixed, Loads, Node, OpInfo, Sample, Wrong, call
from generic.ops.softmax import no_arrays
from metal_host.case import Case, named
from metal_host.geometry import LONG, LONG_IMAGE, WHOLE
from support import close, exact, numbers
from support.benchmarks import FLOAT32, LEVEL, LEVEL_IN_NHWC, Benchmark, Measured
from support.oracle import losses as oracle

import mpsfunc as mf
from mpsfunc import graph
from mpsfunc.typing import LossName

# Samples, and what they should give ----------------------------------------------------------------------

LINES, LARGER, LONG_LINES = (2, 3, 4), (3, 4, 6), (2, 3, 700)
TYPES: tuple[str, ...] = get_args(LossName)
MSE, SOFTMAX, SIGMOID, CATEGORICAL, COSINE = TYPES[1], TYPES[2], TYPES[3], TYPES[4], TYPES[7]
OPTIONS: dict[str, dict[str, Any]] = {
    SOFTMAX: {"label_smoothing": 0.2, "number_of_classes": 3},
    SIGMOID: {"label_smoothing": 0.1, "weight": 1.5},
    "huber": {"delta": 0.7},
    "log": {"epsilon": 0.1},  # so that differences tell its derivatives where a share is near 0
}
PREDICTIONS: dict[str, Any] = {CATEGORICAL: "positive", "log": "shares"}  # whose logarithms are taken
LABELS = Fixed(((0, 3, -1), (2, 9, 1)), "int32")
ROW = Fixed((0, 3, 1), "int64")
COUNTING: dict[str, Any] = {"ignore_index": 2, "class_weights": Array((4,), "positive")}
MANY_LABELS = Fixed(((5, 699, 3), (0, 1, 2)), "uint32")


def of(name: str, type: str, *how: Any, shape: tuple[int, ...] = LINES, **options: Any) -> Call:
    """A call on predictions and targets, which are shares."""
    y = Array(shape, PREDICTIONS.get(type, "numbers"))
    return call(name, y, Array(shape, "shares"), type, *how, **options)


def _value(y: np.ndarray, target: np.ndarray, type: str, reduction: str, **how: Any) -> np.ndarray:
    return oracle.loss(y, target, type, reduction, **how)[0]


def _both(y: np.ndarray, target: np.ndarray, type: str, reduction: str, **how: Any) -> tuple[np.ndarray, np.ndarray]:
    """With the gradient that MPS passes on."""
    return oracle.loss(y, target, type, reduction, **how)[:2]


# Kernel cases -------------------------------------------------------------------------------------------

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16


def images(type: str, shape: tuple[int, ...], dtype: mx.Dtype, seed: int = 0) -> tuple[mx.array, mx.array]:
    """Predictions and targets that a type takes, away from where its digits cancel."""
    y, t = exact(numbers(shape, mx.float64, seed)), exact(numbers(shape, mx.float64, seed + 1))
    shares = np.exp(t) / np.exp(t).sum(-1, keepdims=True)
    if type in (CATEGORICAL, "log"):
        y = 0.1 + 0.8 / (1 + np.exp(-y))
    if type == "hinge":
        t = (t > 0).astype(np.float64)
    elif type in (SOFTMAX, SIGMOID, CATEGORICAL, "log", "kullback_leibler"):
        t = shares
    wide = mx.float64 if dtype == mx.float64 else mx.float32
    return mx.array(y, wide).astype(dtype), mx.array(t, wide).astype(dtype)


def _case(
    type: str,
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    reduction: str = "sum",
    *,
    weighing: str = "none",
    labels: bool = False,
    whole: bool = False,
    crowded: bool = False,
    **how: Any,
) -> Case:
    """The value and both gradients; ``whole`` images are one part each, and need no more sums."""
    body = type if type == SOFTMAX else "loss"
    bodies = (body, f"{body}_grad", *(() if whole else ("sum_partials",)))
    if type == SOFTMAX and (not labels or weighing != "none"):
        bodies += ("softmax",)  # the target's and weights' derivatives, which the host runs though nobody asks for them

    def check() -> None:
        y, target = images(type, shape, dtype)
        told = dict(how)
        if weighing != "none":
            told["weights"] = abs(numbers((*shape[:-1], shape[-1] if weighing == "elements" else 1), F32, 5))
        dense = exact(target)
        if labels:
            drawn = np.random.default_rng(4).integers(-1, shape[-1], shape[:-1]).astype(np.int32)
            drawn.flat[1:2], drawn.flat[2:3] = -1, shape[-1]  # no classes
            target, dense = mx.array(drawn), drawn
        exactly = {**told, **({"weights": exact(told["weights"])} if weighing != "none" else {})}
        value, passed, derived = oracle.loss(exact(y), dense, type, reduction, **exactly)
        made, gradient = mf.loss(y, target, type, reduction, **told)
        count = np.prod(shape[1:-1] if type == SOFTMAX else shape[1:]) if reduction == "mean" else 1
        size = (1 + abs(exact(y)).sum(tuple(range(1, len(shape))), keepdims=True)) / count
        close(made, value, abs(value) + size, slack=4)
        if type not in (SOFTMAX, COSINE):
            each = oracle.loss(exact(y), dense, type, "none", **exactly)[0]
            close(mf.loss_value(y, target, type, "none", **told), each, 4 + abs(each), slack=4)
        scale = 4 + abs(passed)
        close(gradient, passed, scale, slack=4)
        close(mf.loss_grad(y, target, type, reduction, **told), passed, scale, slack=4)
        close(mf.loss_grad(y, target, type, reduction, divided=True, **told), derived, scale, slack=4)
        scales = mx.arange(1.0, shape[0] + 1).reshape(-1, *(1,) * (len(shape) - 1))
        pulled = mx.vjp(lambda y: mf.loss_value(y, target, type, reduction, **told), [y], [scales])[1][0]
        close(pulled, exact(scales) * derived, shape[0] * scale, slack=4)

    name = named(f"loss {type}", shape, dtype, r=reduction, w=weighing, l=int(labels), **how)
    return Case(name, bodies, check, crowded)


def _nan(type: str) -> Case:
    """It passes through every element's value and gradient that y is in."""

    def check() -> None:
        y, target = images(type, (1, 2, 4), F32)
        y = mx.where(mx.arange(8).reshape(1, 2, 4) == 2, float("nan"), y)
        value, gradient = mf.loss(y, target, type, "sum")
        assert np.isnan(exact(value)).all()
        for made in (gradient, mf.loss_grad(y, target, type), mf.loss_grad(y, target, type, divided=True)):
            assert np.isnan(exact(made)).ravel().tolist() == [i == 2 for i in range(8)]

    return Case(named(f"loss {type}", (1, 2, 4), F32, nan=1), ("loss", "loss_grad"), check)


def _cases() -> Iterator[Case]:
    smooth = OPTIONS[SOFTMAX]
    yield _case("mean_absolute_error", (2, 3, 5), F32, "mean", whole=True)
    yield _case(MSE, (2, 9, 40), F32, weighing="elements", whole=True)
    yield _case(MSE, (3, 2), F16, weighing="pixels", whole=True)
    yield _case(MSE, (1, 7), BF16, whole=True, weight=1.5)
    yield _case(MSE, (2, 40, 64), F32, "mean", weighing="pixels")
    yield _case(MSE, (5, 150, 36), F32, weighing="elements", crowded=True)
    yield _case(SIGMOID, (2, 3, 8), F32, label_smoothing=0.2, whole=True)
    yield _case(SIGMOID, (1, 100, 24), F16, "mean")
    yield _case(SIGMOID, (1, 50, 48), BF16, "mean")
    yield _case(CATEGORICAL, (2, 5, 9), F32, labels=True, whole=True)
    yield _case(CATEGORICAL, (2, 2, 4), F32, weighing="pixels", whole=True)
    yield _case("hinge", (3, 2, 4), F32, whole=True)
    yield from map(_nan, ("hinge", "mean_absolute_error", "huber", SIGMOID, "log"))
    yield _case("huber", (3, 2, 4), F32, delta=0.5, whole=True)
    yield _case(COSINE, (3, 2, 4), F32, whole=True)
    yield _case("log", (3, 2, 4), F32, epsilon=0.01, whole=True)
    yield _case("kullback_leibler", (3, 2, 4), F32, whole=True)
    yield _case(SOFTMAX, (3, 5, 8), F32, "mean", weighing="elements")
    yield _case(SOFTMAX, (3, 2, 5), F32, weighing="pixels", **smooth)
    yield _case(SOFTMAX, (9, 37), F32, labels=True, whole=True, **smooth)
    yield _case(SOFTMAX, (2, 3, 8), F32, "mean", labels=True, weighing="pixels", **smooth)
    yield _case(SOFTMAX, (5, 12), F16, labels=True, weighing="elements", whole=True, **smooth)
    yield _case(SOFTMAX, (2, 300), F32, whole=True)
    yield _case(SOFTMAX, (1, 7), F32, labels=True, whole=True)
    yield _case(SOFTMAX, (1, 1, 6), F16, whole=True)
    yield _case(SOFTMAX, (1, 5), BF16, labels=True, whole=True)
    yield _case(SOFTMAX, (2, 3, 24), F16, "mean", labels=True)
    yield _case(SOFTMAX, (2, 3, 16), BF16)
    yield _case(SOFTMAX, (3, 400, 20), F32, weighing="elements", crowded=True)


# What bodies load ---------------------------------------------------------------------------------------

TWICE = (LONG_IMAGE, 2 * LONG_IMAGE)
NO_WEIGHTS = {"weights": (LONG_IMAGE, 0)}  # the image stands in


def both_ways() -> None:
    """Launches all four bodies of losses."""
    y, t = numbers(LONG), numbers(LONG, seed=1)
    for type in (MSE, SOFTMAX):
        mf.loss(y, t, type, "sum")
        mf.loss_grad(y, t, type)


# What is measured ---------------------------------------------------------------------------------------

LOGITS = (4096, 1000)
_FEW = tuple(Measured(targets=LEVEL, dtypes=FLOAT32, shape=(2 * 256 * 256, classes)) for classes in range(1, 11))
_IMAGES = tuple(Measured(targets=LEVEL_IN_NHWC, dtypes=FLOAT32, shape=(2, 256, 256, few)) for few in range(1, 11))
CROSS_ENTROPY = {
    "cross_entropy": Benchmark(
        "pointwise",
        1,
        1,
        ("labels",),
        title="loss softmax_cross_entropy",
        cpu=(Measured(targets=LEVEL, shape=LOGITS), *_FEW),
        gpu=(Measured(shape=LOGITS),),
    ),
    "cross_entropy_images": Benchmark("pointwise", 1, 1, ("labels",), title="loss softmax_cross_entropy", cpu=_IMAGES),
    "cross_entropy_dense": Benchmark(
        "pointwise",
        2,
        1,
        ("targets",),
        title="loss softmax_cross_entropy dense",
        cpu=(Measured(shape=LOGITS),),
        gpu=(Measured(shape=LOGITS),),
    ),
    "cross_entropy_weighted": Benchmark(
        "pointwise",
        1,
        1,
        ("labels", "weights"),
        title="loss softmax_cross_entropy class_weights, ignore_index",
        cpu=(Measured(targets=LEVEL, dtypes=FLOAT32, shape=LOGITS),),
    ),
    "sigmoid_entropy": Benchmark(
        "pointwise",
        2,
        1,
        ("targets", "weights"),
        title="loss sigmoid_cross_entropy pos_weight",
        cpu=(Measured(targets=LEVEL, dtypes=FLOAT32),),
    ),
}

# Wrong calls, and the records ---------------------------------------------------------------------------

X, NUMBER, LABELLED = numbers(LINES), mx.array(1.0), mx.zeros((2, 3), mx.int32)
HUGE = mx.broadcast_to(mx.zeros((1, 1, 1)), (1, 2**16, 2**15))


def wrong_values(function: Callable[..., Any]) -> tuple[Wrong, ...]:
    """Of a function of y, target, type, reduction and options."""

    def wrong(told: str, y: mx.array, target: mx.array, type: str = MSE, reduction: Any = "sum", **more: Any) -> Wrong:
        return told, lambda: function(y, target, type, reduction, **more)

    return (
        wrong("no images with classes", mx.ones(4), mx.ones(4)),
        wrong("no images with classes", NUMBER, NUMBER),
        wrong("an image has no elements", X[:, :0], X[:, :0]),
        wrong("an image has no elements", X[..., :0], X[..., :0]),
        wrong("an image is too large", HUGE, HUGE),
        wrong("target does not fit y", X, X[:1]),
        wrong("target does not fit y", X, X[..., :1]),
        wrong("unknown type", X, X, "hinges"),
        wrong("unknown reduction", X, X, MSE, "average"),
        wrong("cosine_distance is a sum", X, X, COSINE, "mean"),
        wrong("cosine_distance is a sum", X, X, COSINE, "none"),
        wrong("cosine_distance has one weight", X, X, COSINE, weights=X),
        wrong("the labels do not fit y", X, LABELLED[:1], SOFTMAX),
        wrong("the labels do not fit y", X, mx.zeros((2, 3, 4), mx.int32), SOFTMAX),
        wrong("the weights do not fit y", X, X, weights=mx.ones((2, 2, 4))),
        wrong("the weights do not fit y", X, X, weights=mx.ones((1, 2, 3, 4))),
        wrong("weights and weight exclude each other", X, X, weights=X, weight=2.0),
        wrong("weight is out of range", X, X, weight=float("nan")),
        wrong("label_smoothing is out of range", X, X, SOFTMAX, label_smoothing=1.5),
        wrong("label_smoothing is out of range", X, X, SOFTMAX, label_smoothing=-0.1),
        wrong("label_smoothing has no meaning here", X, X, label_smoothing=0.1),
        wrong("number_of_classes has no meaning here", X, X, number_of_classes=3),
        wrong("epsilon has no meaning here", X, X, "huber", epsilon=0.5),
        wrong("delta has no meaning here", X, X, SOFTMAX, delta=0.5),
        wrong("number_of_classes is out of range", X, X, SOFTMAX, number_of_classes=0),
        wrong("epsilon is out of range", X, X, "log", epsilon=-1e-7),
        wrong("delta is out of range", X, X, "huber", delta=float("inf")),
        wrong("the labels do not fit y", mx.ones((3, 1, 2, 4)), mx.zeros((3,), mx.int32), SOFTMAX),
        wrong("ignore_index has no meaning here", X, X, SOFTMAX, ignore_index=-100),
        wrong("ignore_index has no meaning here", X, X, "huber", ignore_index=-100),
        wrong("ignore_index is out of range", X, LABELLED, SOFTMAX, ignore_index=2**64),
        wrong("class_weights has no meaning here", X, X, SIGMOID, class_weights=mx.ones(4)),
        wrong("class_weights does not fit y", X, X, SOFTMAX, class_weights=mx.ones(3)),
        wrong("class_weights does not fit y", X, LABELLED, SOFTMAX, class_weights=mx.ones((1, 4))),
        wrong("pos_weight has no meaning here", X, X, SOFTMAX, pos_weight=mx.ones(4)),
        wrong("pos_weight does not fit y", X, X, SIGMOID, pos_weight=mx.ones(5)),
    )


def wrong_types(function: Callable[..., Any]) -> tuple[Wrong, ...]:
    """Likewise."""

    def wrong(told: str, target: Any = X, type: Any = MSE, reduction: Any = "sum", **more: Any) -> Wrong:
        return told, lambda: function(X, target, type, reduction, **more)

    return (
        *no_arrays("y", lambda y: function(y, y, MSE, "sum")),
        wrong("target is not an array", np.ones((2, 3, 4))),
        wrong("target has no floating dtype", X.astype(mx.int32)),
        wrong("target has no floating dtype", LABELLED),
        wrong("labels are integers", LABELLED.astype(mx.bool_), SOFTMAX),
        wrong("labels are integers", LABELLED.astype(mx.float32), SOFTMAX),
        wrong("target and y differ in dtype", X.astype(mx.float16)),
        wrong("type is not a name", type=2),
        wrong("reduction is not a name", reduction=None),
        wrong("weights is not an array", weights=[1.0]),
        wrong("weights has no floating dtype", weights=mx.ones((2, 3, 4), mx.int32)),
        wrong("weight is not a number", weight="1"),
        wrong("weight is not a number", weight=mx.array(1.0)),
        wrong("label_smoothing is not a number", label_smoothing=True),
        wrong("number_of_classes is not an int", number_of_classes=3.0),
        wrong("delta is not a number", delta=None),
        wrong("ignore_index is not an int", LABELLED, SOFTMAX, ignore_index=1.0),
        wrong("class_weights is not an array", LABELLED, SOFTMAX, class_weights=[1.0] * 4),
        wrong("class_weights has no floating dtype", LABELLED, SOFTMAX, class_weights=mx.ones(4, mx.int32)),
        wrong("pos_weight is not an array", X, SIGMOID, pos_weight=2.0),
    )


OPS = (
    OpInfo(
        name="loss",
        takes_integers=True,
        samples={
            "": of("loss", SOFTMAX, "mean"),
            "of elements": of("loss", SIGMOID, "none"),
            "weighted": of("loss", SOFTMAX, "sum", weights=Array((2, 3, 1))),
            "of labels": call("loss", Array(LINES, "positive"), LABELS, CATEGORICAL, "sum"),
            "of labels that count": call("loss", Array(LINES), LABELS, SOFTMAX, "mean", **COUNTING),
            "of positives": of("loss", SIGMOID, "mean", pos_weight=Array((4,), "positive")),
            **{type: Sample(of("loss", type, "sum", shape=LARGER), in_matrix=False) for type in TYPES},
            "of weighted squares": Sample(
                of("loss", MSE, "mean", shape=LARGER, weights=Array(LARGER, "positive")), in_matrix=False
            ),
            "of many labels": Sample(call("loss", Array(LONG_LINES), MANY_LABELS, SOFTMAX, "sum"), in_matrix=False),
            "of many elements": Sample(
                call("loss", Array(LONG_LINES), Array(LONG_LINES), "huber", "none"), in_matrix=False
            ),
        },
        reference=_both,
        wrong_values=wrong_values(mf.loss),
        wrong_types=wrong_types(mf.loss),
        cases=_cases,
        loads={
            "loss": Loads(both_ways, {**dict.fromkeys(("y", "target"), WHOLE), **NO_WEIGHTS}),
            "softmax_cross_entropy": Loads(both_ways, {"y": TWICE, "target": WHOLE, **NO_WEIGHTS}),
        },
        benchmarks=CROSS_ENTROPY,
    ),
    OpInfo(
        name="loss_fwd",
        takes_integers=True,
        samples={
            "": of("loss_fwd", "huber", "mean", weights=Array(LINES)),
            "by weights": Sample(
                of("loss_fwd", "huber", "sum_by_non_zero_weights", shape=LARGER, weights=Array(LARGER, "positive")),
                in_matrix=False,
            ),
        },
        reference=_both,
        wrong_values=wrong_values(mf.loss_fwd),
        wrong_types=wrong_types(mf.loss_fwd),
    ),
    OpInfo(
        name="loss_value",
        nodes={
            "forward_loss": Node(
                lambda y, t: graph.forward_loss(y, t, "huber", "mean", label_gradients=True, delta=0.5),
                lambda p, y, t: mf.loss_value(y, t, "huber", "mean", delta=0.5),
                ((2, 6, 5, 4), (2, 6, 5, 4)),
            )
        },
        samples={
            **{type: of("loss_value", type, "sum", **OPTIONS.get(type, {})) for type in TYPES},
            "mean": of("loss_value", SOFTMAX, "mean", **OPTIONS[SOFTMAX]),
            "of elements": of("loss_value", SOFTMAX, "none", **OPTIONS[SOFTMAX]),
            "of squared elements": of("loss_value", MSE, "none"),
            "of labels": call("loss_value", Array(LINES), LABELS, SOFTMAX, "mean"),
            "of smoothed labels": call("loss_value", Array(LINES), LABELS, SOFTMAX, "none", **OPTIONS[SOFTMAX]),
            "weighted": of("loss_value", SOFTMAX, "sum_by_non_zero_weights", weights=Array(LINES)),
            "weighted by pixels": of(
                "loss_value", "log", "sum_by_non_zero_weights", weights=Array((3, 1)), epsilon=0.1
            ),
            "of weighted elements": of("loss_value", SIGMOID, "none", weights=Array((4,))),
            "of labels that count": call("loss_value", Array(LINES), LABELS, SOFTMAX, "mean", **COUNTING),
            "of smoothed labels that count": call(
                "loss_value", Array(LINES), LABELS, SOFTMAX, "mean", **COUNTING, **OPTIONS[SOFTMAX]
            ),
            "of weighted labels that count": call(
                *("loss_value", Array(LINES, "positive"), LABELS, CATEGORICAL, "sum_by_non_zero_weights"),
                **{**COUNTING, "weights": Array((2, 3, 1))},
            ),
            "of classes": of("loss_value", SOFTMAX, "mean", class_weights=Array((4,), "positive")),
            "of positives": of("loss_value", SIGMOID, "mean", pos_weight=Array((4,), "positive"), label_smoothing=0.1),
            "of positive elements": of("loss_value", SIGMOID, "none", pos_weight=Array((4,), "positive"), weight=1.5),
            "of a label an image": Sample(
                call("loss_value", Array((3, 1, 1, 4)), ROW, SOFTMAX, "mean", ignore_index=1), in_matrix=False
            ),
            "of larger images": Sample(of("loss_value", MSE, "sum", shape=LARGER), in_matrix=False),
            "of larger rows": Sample(of("loss_value", SOFTMAX, "sum", shape=LARGER), in_matrix=False),
        },
        reference=_value,
        wrong_values=wrong_values(mf.loss_value),
        wrong_types=wrong_types(mf.loss_value),
    ),
)
