"""The part of generic/test_bad_input.py that works element by element: calls that are wrong in one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from support import numbers

import mpsfunc as mf

X = numbers((2, 6, 5, 4))
KEY = mx.array([1, 2], mx.uint32)
_, BY_KEY = mf.dropout_fwd(X, key=KEY, stream=mx.cpu)
_, BY_MASK = mf.dropout_fwd(X, mask=X > 0, stream=mx.cpu)
WIDE = mx.broadcast_to(mx.zeros((1, 1, 1, 4)), (1, 2**15, 2**14, 4))
Call = Callable[[], Any]


def _forged(**fields: Any) -> Call:
    return lambda: mf.dropout_grad(X, BY_KEY._replace(**fields))


WRONG_VALUES: list[tuple[str, Call]] = [
    *[
        ("dropout: keep_probability is out of range", lambda p=p: mf.dropout(X, keep_probability=p))
        for p in (0, 1.0, -0.5, 2, 1e-11)
    ],
    ("dropout: keep_probability is out of range", lambda: mf.dropout(X, keep_probability=float("nan"))),
    ("dropout_mask: keep_probability is out of range", lambda: mf.dropout_mask((2,), keep_probability=1 - 1e-11)),
    *[
        ("dropout: p is out of range", lambda p=p: mf.dropout(X, p=p))
        for p in (0, 1, 0.0, 1.0, -0.5, 2, 1e-11, 1 - 1e-11, float("nan"))
    ],
    ("dropout_mask: p is out of range", lambda: mf.dropout_mask((2,), p=0)),
    *[
        ("dropout: keep_probability and p exclude each other", lambda f=f: f(X, keep_probability=0.25, p=0.75))
        for f in (mf.dropout, mf.dropout_fwd)
    ],
    (
        "dropout_mask: keep_probability and p exclude each other",
        lambda: mf.dropout_mask((2,), keep_probability=0.5, p=0.5),
    ),
    ("dropout: seed is out of range", lambda: mf.dropout(X, seed=-1)),
    ("dropout: seed is out of range", lambda: mf.dropout(X, seed=2**64)),
    ("dropout: seed and key exclude each other", lambda: mf.dropout(X, seed=1, key=KEY)),
    ("dropout: key is not a key", lambda: mf.dropout(X, key=mx.zeros(3, mx.uint32))),
    ("dropout: a mask needs no seed", lambda: mf.dropout(X, seed=1, mask=X > 0)),
    ("dropout: a mask needs no key", lambda: mf.dropout(X, key=KEY, mask=X > 0)),
    ("dropout: a mask has no stride", lambda: mf.dropout(X, mask=X > 0, mask_stride=(1, 1, 0))),
    ("dropout: mask does not fit", lambda: mf.dropout(X, mask=X[:, :2] > 0)),
    ("dropout: mask does not fit", lambda: mf.dropout(X, mask=X[0] > 0)),
    ("dropout: mask does not fit", lambda: mf.dropout(X[0], mask=X[0, :1] > 0)),
    ("dropout: mask_stride is not a stride", lambda: mf.dropout(X, mask_stride=(1, 1, 2))),
    ("dropout: mask_stride is not a stride", lambda: mf.dropout(X, mask_stride=(1, 1))),
    ("dropout: only images have strides", lambda: mf.dropout(X[0], mask_stride=(1, 1, 0))),
    ("dropout_mask: only images have strides", lambda: mf.dropout_mask((2, 3), mask_stride=(0, 1, 1))),
    ("dropout_mask: shape is out of range", lambda: mf.dropout_mask((2, -1))),
    ("dropout_mask: an image is too large", lambda: mf.dropout_mask((1, 2**15, 2**15, 4))),
    ("dropout_mask: a mask is too large", lambda: mf.dropout_mask((2**31 - 1, 2**30), seed=1)),
    ("dropout_mask: a mask is too large", lambda: mf.dropout_mask((2**20, 2**20))),
    ("dropout: an image is too large", lambda: mf.dropout(WIDE)),
    ("dropout_grad: dy does not belong to this state", lambda: mf.dropout_grad(X[:1], BY_KEY)),
    ("dropout_grad: state.keep_probability is out of range", _forged(keep_probability=2.0)),
    ("dropout_grad: state.mask_stride is not a stride", _forged(mask_stride=(3, 1, 1))),
    ("dropout_grad: state.key is not a key", _forged(key=mx.zeros((2, 2), mx.uint32))),
    ("dropout_grad: state.mask does not fit", lambda: mf.dropout_grad(X, BY_MASK._replace(mask=mx.zeros(3, mx.uint8)))),
    ("add: operands do not fit", lambda: mf.add(X, X[:, :2])),
    ("divide: operands do not fit", lambda: mf.divide(X[:1], mx.zeros((3, 6, 5, 2)))),
    ("subtract: operands do not fit", lambda: mf.subtract(X, X[0, :, :3])),
    ("multiply: operands do not fit", lambda: mf.multiply(X[0], mx.ones(3))),
    ("divide: y is out of range", lambda: mf.divide(X, 1e39)),
    ("add: only images have strides", lambda: mf.add(X[0], X[0], secondary_stride=(0, 1, 1))),
    ("add: primary_stride is not a stride", lambda: mf.add(X, X, primary_stride=(1, 2, 1))),
    ("add: secondary_stride is not a stride", lambda: mf.add(X, X, secondary_stride=(1, 1, 1, 1))),
    ("add: primary_scale is out of range", lambda: mf.add(X, X, primary_scale=1e39)),
    ("add: secondary_scale is out of range", lambda: mf.add(X, X, secondary_scale=float("inf"))),
    ("add: bias is out of range", lambda: mf.add(X, X, bias=float("nan"))),
    ("add: minimum is out of range", lambda: mf.add(X, X, minimum=float("-inf"))),
    ("add: minimum is greater than maximum", lambda: mf.add(X, X, minimum=1.0, maximum=0.5)),
    ("add: an image is too large", lambda: mf.add(WIDE, WIDE)),
    ("add: an image is too large", lambda: mf.add(mx.zeros((1, 2**16, 1, 1)), mx.zeros((1, 1, 2**15, 1)))),
    ("arithmetic: unknown operation", lambda: mf.arithmetic(X, X, "power")),
    ("arithmetic_grad: unknown operation", lambda: mf.arithmetic_grad(X, X, X, "modulo")),
    ("arithmetic_grad: unknown operand", lambda: mf.arithmetic_grad(X, X, X, "add", operand="third")),
    ("arithmetic_grad: dy does not belong to the operands", lambda: mf.arithmetic_grad(X[:1], X, X, "add")),
    ("arithmetic_grad: operands do not fit", lambda: mf.arithmetic_grad(X, X, X[..., :3], "add")),
    ("compare: unknown comparison", lambda: mf.compare(X, X, "similar")),
    ("compare: threshold is out of range", lambda: mf.compare(X, X, threshold=-1.0)),
    ("compare: an ordering has no threshold", lambda: mf.compare(X, X, "less", 0.5)),
    ("compare: operands do not fit", lambda: mf.compare(X, X[..., :3])),
]
WRONG_TYPES: list[tuple[str, Call]] = [
    *[("dropout: x is not an array", lambda x=x: mf.dropout(x)) for x in (None, 3, [1.0])],
    ("dropout: x has no floating dtype", lambda: mf.dropout(X.astype(mx.int32))),
    *[
        ("dropout: keep_probability is not a number", lambda p=p: mf.dropout(X, keep_probability=p))
        for p in ("0.5", True, X)
    ],
    *[("dropout: p is not a number", lambda p=p: mf.dropout(X, p=p)) for p in ("0.5", True, X)],
    *[
        ("dropout: only x goes without a name", lambda second=second, function=function: function(X, second))
        for second in (0.1, 0.5, 1, None, X > 0)
        for function in (mf.dropout, mf.dropout_fwd)
    ],
    ("dropout: only x goes without a name", lambda: mf.dropout(X, 0.5, 7)),
    ("dropout: only x goes without a name", lambda: mf.dropout(X, 0.5, p=0.5)),
    ("dropout_mask: only shape goes without a name", lambda: mf.dropout_mask((2, 3), 0.5)),
    ("dropout: seed is not an int", lambda: mf.dropout(X, seed=1.5)),
    ("dropout: key is not a key", lambda: mf.dropout(X, key=7)),
    ("dropout: key is not a key", lambda: mf.dropout(X, key=mx.zeros(2, mx.int32))),
    ("dropout: mask is not a mask", lambda: mf.dropout(X, mask=[1, 0])),
    ("dropout: mask is not a mask", lambda: mf.dropout(X, mask=X.astype(mx.complex64))),
    ("dropout: mask_stride is not a stride", lambda: mf.dropout(X, mask_stride=1)),
    ("dropout: mask_stride is not a stride", lambda: mf.dropout(X, mask_stride=(1, 1, True))),
    ("dropout_mask: shape is not a shape", lambda: mf.dropout_mask(7)),
    ("dropout_mask: shape is not a shape", lambda: mf.dropout_mask((2, 1.5))),
    ("dropout_grad: dy is not an array", lambda: mf.dropout_grad(None, BY_KEY)),
    ("dropout_grad: dy has no floating dtype", lambda: mf.dropout_grad(X > 0, BY_KEY)),
    ("dropout_grad: state.key is not a key", _forged(key=mx.zeros(2))),
    ("add: x is not an array", lambda: mf.add(1.0, 2.0)),
    ("add: y is not an array", lambda: mf.add(X, [1.0])),
    ("multiply: x has no floating dtype", lambda: mf.multiply(X.astype(mx.int32), X.astype(mx.int32))),
    ("multiply: x and y differ in dtype", lambda: mf.multiply(X, X.astype(mx.float16))),
    ("divide: primary_scale is not a number", lambda: mf.divide(X, X, primary_scale="2")),
    ("divide: maximum is not a number", lambda: mf.divide(X, X, maximum="2")),
    ("divide: primary_stride is not a stride", lambda: mf.divide(X, X, primary_stride=0)),
    ("arithmetic: operation is not a name", lambda: mf.arithmetic(X, X, 0)),
    ("arithmetic_grad: operand is not a name", lambda: mf.arithmetic_grad(X, X, X, "add", operand=1)),
    ("arithmetic_grad: clamp is not a bool", lambda: mf.arithmetic_grad(X, X, X, "add", clamp=1)),
    ("arithmetic_grad: dy is not an array", lambda: mf.arithmetic_grad(None, X, X, "add")),
    ("arithmetic_grad: dy and x differ in dtype", lambda: mf.arithmetic_grad(X.astype(mx.float16), X, X, "add")),
    ("compare: x has no dtype of real numbers", lambda: mf.compare(X > 0, X > 0)),
    ("compare: y is not an array", lambda: mf.compare(X, True)),
    ("compare: x and y differ in dtype", lambda: mf.compare(X, X.astype(mx.int32))),
    ("compare: comparison is not a name", lambda: mf.compare(X, X, 3)),
    ("compare: threshold is not a number", lambda: mf.compare(X, X, "equal", "0.5")),
]
# On a GPU, where float64 does not exist.
WIDE_DTYPES: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda x: mf.dropout(x, key=KEY),
    "dropout_grad": lambda x: mf.dropout_grad(x, BY_KEY),
    "add": lambda x: mf.add(x, x),
    "arithmetic_grad": lambda x: mf.arithmetic_grad(x, x, x, "add"),
    "compare": lambda x: mf.compare(x, x),
}
OF_STATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "dropout_grad": ("DropoutState", lambda state: mf.dropout_grad(X, state)),
}
