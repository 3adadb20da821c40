"""The cases of `cases` that are softmaxes and losses."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from support import close, exact, numbers
from support.oracle import losses as oracle

import mpsfunc as mf
from metal_host.case import Case, named

F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
SOFTMAX, SIGMOID, CATEGORICAL, COSINE = (
    "softmax_cross_entropy", "sigmoid_cross_entropy", "categorical_cross_entropy", "cosine_distance",
)  # fmt: skip


def _softmax(
    shape: tuple[int, ...], dtype: mx.Dtype, axis: int = -1, *, strided: bool = False, size: float = 1.0, **how: Any
) -> list[Case]:
    """Both functions, both ways; ``strided`` are lines that no simdgroup holds."""
    ending = "_strided" if strided else ""

    def check(name: str) -> None:
        forward, backward = getattr(mf, name), getattr(mf, f"{name}_grad")
        x, dy = numbers(shape, dtype) * size, numbers(shape, dtype, 1)
        y = forward(x, axis)
        expected = getattr(oracle, name)(exact(x), axis)
        far = abs(exact(x) - exact(x).max(axis, keepdims=True))
        close(y, expected, (1 + far) * (1e-30 + expected if name == "softmax" else 1) + abs(expected), slack=8)
        # A result of its own, so that the gradient's terms are not all small.
        came = mx.array(expected).astype(dtype) if size == 1 else y
        values, pulled = exact(came), exact(dy)
        by = values if name == "softmax" else np.exp(values)
        if name == "softmax":
            right = oracle.softmax_grad(pulled, values, axis, rounded=dtype != F32)
        else:
            right = oracle.log_softmax_grad(pulled, values, axis)
        scale = abs(pulled) + by * abs(pulled).sum(axis, keepdims=True)
        close(backward(dy, came, axis), right, scale, slack=8)

    bodies = (f"softmax{ending}", f"softmax_grad{ending}")
    return [
        Case(named(name, shape, dtype, axis=axis, size=size), bodies, lambda name=name: check(name), **how)
        for name in ("softmax", "log_softmax")
    ]


def _images(type: str, shape: tuple[int, ...], dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    y, t = exact(numbers(shape, F32)), exact(numbers(shape, F32, 1))
    if type in (CATEGORICAL, "log"):
        y = 0.1 + 0.8 / (1 + np.exp(-y))
    if type == "hinge":
        t = (t > 0).astype(np.float64)
    elif type in (SOFTMAX, SIGMOID, CATEGORICAL, "log", "kullback_leibler"):
        t = np.exp(t) / np.exp(t).sum(-1, keepdims=True)
    return mx.array(y).astype(dtype), mx.array(t).astype(dtype)


def _loss(
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
        y, target = _images(type, shape, dtype)
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
        y, target = _images(type, (1, 2, 4), F32)
        y = mx.where(mx.arange(8).reshape(1, 2, 4) == 2, float("nan"), y)
        value, gradient = mf.loss(y, target, type, "sum")
        assert np.isnan(exact(value)).all()
        for made in (gradient, mf.loss_grad(y, target, type), mf.loss_grad(y, target, type, divided=True)):
            assert np.isnan(exact(made)).ravel().tolist() == [i == 2 for i in range(8)]

    return Case(named(f"loss {type}", (1, 2, 4), F32, nan=1), ("loss", "loss_grad"), check)


def losses() -> list[Case]:
    smooth: dict[str, Any] = {"label_smoothing": 0.2, "number_of_classes": 3}
    return [
        *_softmax((3, 5, 64), F32),
        *_softmax((2, 3, 5), F32),
        *_softmax((7, 100), F32, size=60.0),
        *_softmax((1, 3), F32),
        *_softmax((6, 8), F32, size=200.0),
        *_softmax((5, 4), F32, size=200.0),
        *_softmax((2, 1, 3), F16),
        *_softmax((3, 7), BF16),
        *_softmax((9, 24), F16, size=30.0),
        *_softmax((5, 40), BF16),
        *_softmax((2, 1000), F32),
        *_softmax((3, 200), F32),
        *_softmax((1100, 20), F32, crowded=True),
        *_softmax((2, 1030), F32, strided=True),
        *_softmax((2, 301), F32, strided=True, size=60.0),
        *_softmax((3, 10, 8), F32, 1, strided=True, size=60.0),
        *_softmax((2, 37, 3), F32, 1, strided=True),
        *_softmax((3, 2), F32, 0, strided=True),
        *_softmax((9, 16), F16, 0, strided=True),
        *_softmax((2, 3, 7), BF16, 1, strided=True),
        *_softmax((5, 16), BF16, 0, strided=True),
        *_softmax((3, 2), F16, 0, strided=True),
        *_softmax((2, 3), BF16, 0, strided=True),
        *_softmax((70, 40), F32, 0, strided=True, crowded=True),
        _loss("mean_absolute_error", (2, 3, 5), F32, "mean", whole=True),
        _loss("mean_squared_error", (2, 9, 40), F32, weighing="elements", whole=True),
        _loss("mean_squared_error", (3, 2), F16, weighing="pixels", whole=True),
        _loss("mean_squared_error", (1, 7), BF16, whole=True, weight=1.5),
        _loss("mean_squared_error", (2, 40, 64), F32, "mean", weighing="pixels"),
        _loss("mean_squared_error", (5, 150, 36), F32, weighing="elements", crowded=True),
        _loss(SIGMOID, (2, 3, 8), F32, label_smoothing=0.2, whole=True),
        _loss(SIGMOID, (1, 100, 24), F16, "mean"),
        _loss(SIGMOID, (1, 50, 48), BF16, "mean"),
        _loss(CATEGORICAL, (2, 5, 9), F32, labels=True, whole=True),
        _loss(CATEGORICAL, (2, 2, 4), F32, weighing="pixels", whole=True),
        _loss("hinge", (3, 2, 4), F32, whole=True),
        *map(_nan, ("hinge", "mean_absolute_error", "huber", SIGMOID, "log")),
        _loss("huber", (3, 2, 4), F32, delta=0.5, whole=True),
        _loss(COSINE, (3, 2, 4), F32, whole=True),
        _loss("log", (3, 2, 4), F32, epsilon=0.01, whole=True),
        _loss("kullback_leibler", (3, 2, 4), F32, whole=True),
        _loss(SOFTMAX, (3, 5, 8), F32, "mean", weighing="elements"),
        _loss(SOFTMAX, (3, 2, 5), F32, weighing="pixels", **smooth),
        _loss(SOFTMAX, (9, 37), F32, labels=True, whole=True, **smooth),
        _loss(SOFTMAX, (2, 3, 8), F32, "mean", labels=True, weighing="pixels", **smooth),
        _loss(SOFTMAX, (5, 12), F16, labels=True, weighing="elements", whole=True, **smooth),
        _loss(SOFTMAX, (2, 300), F32, whole=True),
        _loss(SOFTMAX, (1, 7), F32, labels=True, whole=True),
        _loss(SOFTMAX, (1, 1, 6), F16, whole=True),
        _loss(SOFTMAX, (1, 5), BF16, labels=True, whole=True),
        _loss(SOFTMAX, (2, 3, 24), F16, "mean", labels=True),
        _loss(SOFTMAX, (2, 3, 16), BF16),
        _loss(SOFTMAX, (3, 400, 20), F32, weighing="elements", crowded=True),
    ]
