"""Functions of MLX's own operations, which together have every primitive that the reader and NumPy know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx


class Case(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[mx.array, ...]
    keywords: dict[str, mx.array]


def _numbers(*shape: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def _case(function: Callable[..., Any], *arguments: mx.array, **keywords: mx.array) -> Case:
    return Case(function, arguments, keywords)


X, Y = _numbers(4, 6), _numbers(4, 6, seed=1)
I = mx.array([2, -1, 0])  # noqa: E741  # as in the formulas
J = mx.array([[1, 5], [0, -2], [3, 3], [2, 0]])
SHARED = mx.array([[1.5, -2.0, 0.25]])


def _updated(x: mx.array, y: mx.array) -> list[mx.array]:
    return [
        x.at[1:3, ::2].add(y[1:3, ::2]),
        mx.put_along_axis(x, J, y[:, :2], axis=1),
    ]


def _assigned(x: mx.array, y: mx.array) -> mx.array:
    x[2:, 1:5:2] = y[2:, :2]
    return x


UNARY = (mx.abs, mx.ceil, mx.cos, mx.exp, mx.expm1, mx.floor, mx.negative, mx.round, mx.sign, mx.sin, mx.square)
UNARY = (*UNARY, mx.sigmoid, mx.tan, mx.tanh, mx.cosh, mx.sinh, mx.arctan, mx.arcsinh, mx.erf)
POSITIVE = (mx.sqrt, mx.rsqrt, mx.log, mx.log2, mx.log10, mx.log1p)
BINARY = (mx.add, mx.subtract, mx.multiply, mx.divide, mx.maximum, mx.minimum, mx.logaddexp, mx.arctan2, mx.remainder)
COMPARING = (mx.less, mx.less_equal, mx.greater, mx.greater_equal, mx.equal, mx.not_equal)

FUNCTIONS = {
    "unary": _case(lambda x: [each(x) for each in UNARY], X),
    "positive": _case(lambda x: [each(mx.abs(x)) for each in POSITIVE], X),
    "unit": _case(lambda x: [mx.arccos(x / 9), mx.arcsin(x / 9), mx.arctanh(x / 9), mx.arccosh(x * x + 1)], X),
    "binary": _case(lambda x, y: [*[each(x, y) for each in BINARY], mx.power(mx.abs(x), y), x // y], X, Y),
    "comparing": _case(lambda x, y: [each(mx.round(x), mx.round(y)) for each in COMPARING], X, Y),
    "logical": _case(lambda x, y: [mx.logical_and(x, y), mx.logical_or(x, y), mx.logical_not(x)], X > 0, Y > 0),
    "equal with NaN": _case(lambda x: mx.array_equal(x, x + 0, equal_nan=True), mx.array([1.0, float("nan")])),
    "sums": _case(lambda x: [x.sum(), x.mean(axis=1), x.max(axis=0), x.min(), x.prod(axis=1), x.var(axis=0)], X),
    "all and any": _case(lambda x: [x.all(axis=0), x.any(axis=1), x.sum(axis=0)], X > 0),
    "places": _case(lambda x: [x.argmax(axis=1), x.argmin(axis=0, keepdims=True)], X),
    "softmax": _case(
        lambda x: [mx.softmax(x, axis=0), mx.logsumexp(x, axis=1), mx.softmax(x, axis=-1, precise=True)], X
    ),
    "matrices": _case(lambda x, y: [x @ y.T, mx.addmm(x[:, :4], x, y.T, alpha=0.5, beta=2.0)], X, Y),
    "shapes": _case(
        lambda x: [
            *[x.T, x.reshape(2, 12)[:, None], x.flatten(), mx.unflatten(x, 1, (2, 3)), mx.moveaxis(x[None], 0, 2)],
            *[mx.broadcast_to(x[:, :1], (4, 6)), mx.as_strided(x, (3, 2), (2, 7), 1), mx.full((2, 3), 1.5) + x[0, 0]],
        ],
        X,
    ),
    "parts": _case(lambda x: [x[::-1, 1:5:2], x[3:0:-2], *mx.split(x, [1, 4], axis=1), x[..., :0]], X),
    "joined": _case(
        lambda x, y: [mx.concatenate([x, y], axis=1), mx.pad(x, ((0, 1), (2, 0)), constant_values=1.25)], X, Y
    ),
    "gathered": _case(lambda x, i: [mx.take(x, i, axis=0), x[i, i], mx.take_along_axis(x, J, axis=1)], X, I),
    "scattered": _case(
        lambda x, i, y: [
            x.at[i].add(y[:3]),
            x.at[:, i].multiply(y[:, :3]),
            x.at[i].maximum(y[:3]),
            x.at[i, 1].minimum(0.0),
        ],
        *(X, I, Y),
    ),
    "gradients of indices": _case(
        mx.grad(lambda x, i: mx.take_along_axis(x, J, axis=1).sum() ** 2 + (x[i] ** 3).sum()), X, I
    ),
    "assigned": _case(_assigned, X, Y),
    "updated": _case(_updated, X, Y),
    "bits": _case(lambda i, j: [i & j, i | j, i ^ j, i << 2, i >> 1], mx.abs(I), mx.abs(I) + 2),
    "quotients": _case(lambda x, y, i: [*mx.divmod(x, y), *mx.divmod(i + 7, mx.abs(i) + 2)], X, Y, I),
    "chosen": _case(lambda x, y: mx.where(x > y, x, 0), X, Y),
    "dtypes": _case(
        lambda x: [x.astype(mx.bfloat16), x.astype(mx.int32), x.view(mx.uint32), x.astype(mx.bfloat16).view(mx.uint16)],
        X,
    ),
    "16 bits": _case(
        lambda x, y: [x + x * x, x.sum(), mx.softmax(x, axis=1), mx.exp(y), y.sum(axis=1), y.mean(), y > 0, y[:, ::2]],
        *(X.astype(mx.float16), X.astype(mx.bfloat16)),
    ),
    "blocks": _case(
        lambda x, y, at: [
            mx.slice(x, at, axes=(0, 1), slice_size=(2, 3)),
            mx.slice_update(x, y[:2, :3], at, axes=(0, 1)),
        ],
        *(X, Y, mx.array([1, 2])),
    ),
    "sorted": _case(lambda x: [mx.sort(x, axis=0), mx.argsort(x, axis=1)], X),
    "ordered": _case(lambda x, y: [*mx.depends([x * 2], [y * 3]), mx.stop_gradient(x)], X, Y),
    "numbers": _case(lambda x: [mx.arange(2, 14, 3) + x[0, 0], mx.eye(3) * x[0, 0], mx.linspace(0, 1, 5) + x[0, 0]], X),
    "constants": _case(lambda x: [x[:, :3] + SHARED, x[:, 3:] * SHARED, x * 2.5], X),
    "keywords": _case(lambda x, *, scale, shift: [x * scale + shift], X, shift=mx.array(1.0), scale=mx.array(2.0)),
    "random": _case(
        lambda key: [
            *[mx.random.uniform(shape=(size,), key=key) for size in (1, 2, 3, 7, 8)],
            mx.random.randint(0, 9, (3, 5), key=key),
        ],
        mx.random.key(3),
    ),
}

# Those that the reader knows, while no file that is run has needed them.
ONLY_READ = {
    "convolution": _case(
        lambda x, w: mx.conv_general(
            x, w, stride=(2, 1), padding=([1, 0], [2, 1]), input_dilation=2, groups=2, flip=True
        ),
        *(_numbers(1, 5, 5, 4), _numbers(6, 3, 3, 2)),
    ),
    "scans": _case(lambda x: [mx.cumsum(x, axis=1, reverse=True), mx.cummax(x, axis=0, inclusive=False)], X),
    "partitions": _case(lambda x: [mx.partition(x, 2, axis=0), mx.argpartition(x, 3, axis=1)], X),
    "others": _case(lambda x: [mx.erfinv(x / 9), mx.conjugate(x.astype(mx.complex64))], X),
}
