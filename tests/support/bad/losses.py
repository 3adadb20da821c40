"""Softmax's and the losses' part of generic/test_bad_input.py: calls that are wrong in one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from support import numbers

import mpsfunc as mf

X = numbers((2, 3, 4))
LABELS = mx.zeros((2, 3), mx.int32)
CE, MSE, COSINE = "softmax_cross_entropy", "mean_squared_error", "cosine_distance"
NAN = float("nan")
HUGE = mx.broadcast_to(mx.zeros((1, 1, 1)), (1, 2**16, 2**15))

LOSSES: dict[str, Callable[..., Any]] = {
    "loss": lambda y, t, *how, **more: mf.loss(y, t, *(how or (MSE, "sum")), **more),
    "loss_value": lambda y, t, *how, **more: mf.loss_value(y, t, *(how or (MSE, "sum")), **more),
    "loss_grad": lambda y, t, *how, **more: mf.loss_grad(y, t, *(how or (MSE,)), **more),
    "loss_fwd": lambda y, t, *how, **more: mf.loss_fwd(y, t, *(how or (MSE, "sum")), **more),
}
# Functions of one array, by the name of the argument.
POINTWISE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "softmax": ("x", lambda x: mf.softmax(x)),
    "log_softmax": ("x", lambda x: mf.log_softmax(x)),
    "softmax_grad": ("y", lambda x: mf.softmax_grad(X, x)),
    "log_softmax_grad": ("y", lambda x: mf.log_softmax_grad(X, x)),
    **{op: ("y", lambda x, f=f: f(x, x)) for op, f in LOSSES.items()},
}


def _each(rest: str, *arguments: Any, **more: Any) -> list[tuple[str, Callable[[], Any]]]:
    return [(f"{op}: {rest}", lambda f=f: f(*arguments, **more)) for op, f in LOSSES.items()]


WRONG_VALUES: list[tuple[str, Callable[[], Any]]] = [
    ("softmax: axis is out of range", lambda: mf.softmax(X, 3)),
    ("softmax: axis is out of range", lambda: mf.softmax(X, -4)),
    ("softmax: x has no axes", lambda: mf.softmax(mx.array(1.0))),
    ("log_softmax: axis is out of range", lambda: mf.log_softmax(X, 2**40)),
    ("softmax_grad: axis is out of range", lambda: mf.softmax_grad(X, X, 3)),
    ("softmax_grad: dy does not belong to y", lambda: mf.softmax_grad(X[:1], X)),
    ("log_softmax_grad: dy does not belong to y", lambda: mf.log_softmax_grad(X.reshape(-1), X)),
    ("log_softmax_grad: y has no axes", lambda: mf.log_softmax_grad(mx.array(1.0), mx.array(1.0))),
    (
        "softmax: too many lines for one axis",
        lambda: mf.softmax(mx.broadcast_to(mx.zeros((1, 1, 1)), (2**16, 2**15, 2))),
    ),
    *_each("no images with classes", mx.ones(4), mx.ones(4)),
    *_each("no images with classes", mx.array(1.0), mx.array(1.0)),
    *_each("an image has no elements", X[:, :0], X[:, :0]),
    *_each("an image has no elements", X[..., :0], X[..., :0]),
    *_each("an image is too large", HUGE, HUGE),
    *_each("target does not fit y", X, X[:1]),
    *_each("target does not fit y", X, X[..., :1]),
    *_each("unknown type", X, X, "hinges", "sum"),
    *_each("unknown reduction", X, X, MSE, "average"),
    *_each("cosine_distance is a sum", X, X, COSINE, "mean"),
    *_each("cosine_distance is a sum", X, X, COSINE, "none"),
    *_each("cosine_distance has one weight", X, X, COSINE, "sum", weights=X),
    *_each("the labels do not fit y", X, LABELS[:1], CE, "sum"),
    *_each("the labels do not fit y", X, mx.zeros((2, 3, 4), mx.int32), CE, "sum"),
    *_each("the weights do not fit y", X, X, weights=mx.ones((2, 2, 4))),
    *_each("the weights do not fit y", X, X, weights=mx.ones((1, 2, 3, 4))),
    *_each("weights take the place of weight", X, X, weights=X, weight=2.0),
    *_each("weight is out of range", X, X, weight=NAN),
    *_each("label_smoothing is out of range", X, X, CE, "sum", label_smoothing=1.5),
    *_each("label_smoothing is out of range", X, X, CE, "sum", label_smoothing=-0.1),
    *_each("label_smoothing has no meaning here", X, X, MSE, "sum", label_smoothing=0.1),
    *_each("number_of_classes has no meaning here", X, X, MSE, "sum", number_of_classes=3),
    *_each(
        "epsilon has no meaning here",
        X,
        X,
        "huber",
        "sum",
        epsilon=0.5,
    ),
    *_each("delta has no meaning here", X, X, CE, "sum", delta=0.5),
    *_each("number_of_classes is out of range", X, X, CE, "sum", number_of_classes=0),
    *_each("epsilon is out of range", X, X, "log", "sum", epsilon=-1e-7),
    *_each("delta is out of range", X, X, "huber", "sum", delta=float("inf")),
]
WRONG_TYPES: list[tuple[str, Callable[[], Any]]] = [
    ("softmax: axis is not an int", lambda: mf.softmax(X, 1.0)),
    ("softmax: axis is not an int", lambda: mf.softmax(X, None)),
    ("log_softmax: axis is not an int", lambda: mf.log_softmax(X, True)),
    ("softmax_grad: dy is not an array", lambda: mf.softmax_grad(None, X)),
    ("softmax_grad: dy and y differ in dtype", lambda: mf.softmax_grad(X.astype(mx.float16), X)),
    ("log_softmax_grad: dy has no floating dtype", lambda: mf.log_softmax_grad(X.astype(mx.int32), X)),
    *_each("target is not an array", X, np.ones((2, 3, 4))),
    *_each("target has no floating dtype", X, X.astype(mx.int32)),
    *_each("target has no floating dtype", X, LABELS, MSE, "sum"),
    *_each("target has no floating dtype", X, LABELS.astype(mx.bool_), CE, "sum"),
    *_each("target and y differ in dtype", X, X.astype(mx.float16)),
    *_each("type is not a name", X, X, 2, "sum"),
    *_each("reduction is not a name", X, X, MSE, None),
    *_each("weights is not an array", X, X, weights=[1.0]),
    *_each("weights has no floating dtype", X, X, weights=mx.ones((2, 3, 4), mx.int32)),
    *_each("weight is not a number", X, X, weight="1"),
    *_each("weight is not a number", X, X, weight=mx.array(1.0)),
    *_each("label_smoothing is not a number", X, X, label_smoothing=True),
    *_each("number_of_classes is not an int", X, X, number_of_classes=3.0),
    *_each("delta is not a number", X, X, delta=None),
    ("loss_grad: divided is not a bool", lambda: mf.loss_grad(X, X, MSE, divided=1)),
]
