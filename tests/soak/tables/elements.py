"""Tables of functions of single elements, of lines of them, and of losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from tests.soak.tables.activations import sigmoid
from tests.soak.tables.case import EPS, Case, Rng, Row, array, dtype, family, images, numbers, numpy, of, pick, rounded

_RULES = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}


def _arithmetic(name: str) -> Row:
    def sample(rng: Rng) -> Case:
        kind = dtype(rng)
        x = images(rng, kind)
        y = numbers(rng, x.shape, kind)
        strides = [tuple(int(v) for v in rng.integers(0, 2, 3)) if rng.random() < 0.3 else (1, 1, 1) for _ in "xy"]
        if any(not (a or b) for a, b in zip(*strides, strict=True)):
            strides[1] = (1, 1, 1)
        if rng.random() < 0.4 and 0 not in strides[0]:
            y = y[tuple(slice(0, 1) if k and stride == 0 else slice(None) for k, stride in enumerate((1, *strides[1])))]
        if name == "divide":
            y = rounded(np.where(np.abs(y) < 0.25, 0.5, y), kind)
        ps, ss, bias = (float(np.float32(v)) for v in (*rng.uniform(0.25, 2, 2), rng.uniform(-1, 1)))
        limits = sorted(float(np.float32(v)) for v in rng.uniform(-3, 3, 2)) if rng.random() < 0.3 else [None, None]
        how: dict[str, Any] = dict(primary_scale=ps, secondary_scale=ss, bias=bias, minimum=limits[0],
            maximum=limits[1], primary_stride=strides[0], secondary_stride=strides[1])  # fmt: skip

        def firsts(a: np.ndarray, stride: tuple[int, ...]) -> np.ndarray:
            for axis, s in enumerate(stride):
                a = a if s else np.take(a, [0], axis + 1)
            return a

        def inner(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return _RULES[name](ps * firsts(x, strides[0]), ss * firsts(y, strides[1]))

        def result(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            r = inner(x, y) + bias
            return r if limits[0] is None else np.clip(r, *limits)

        def size(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            if name in ("add", "subtract"):
                return np.abs(ps * firsts(x, strides[0])) + np.abs(ss * firsts(y, strides[1])) + abs(bias)
            return np.abs(inner(x, y)) + abs(bias)

        def pulled(dy: mx.array, x: mx.array, y: mx.array) -> dict[int, mx.array]:
            sides = ("primary", "secondary")
            clamp = {} if limits[0] is None else {"clamp": True}
            return {k: of.arithmetic_grad(dy, x, y, name, operand=side, **how, **clamp) for k, side in enumerate(sides)}

        def more(x: mx.array, y: mx.array) -> Iterator[str]:
            if not np.array_equal(numpy(of.arithmetic(x, y, name, **how)), numpy(call(x, y)), equal_nan=True):
                yield "arithmetic with the operation's name is something else"

        def call(x: mx.array, y: mx.array) -> mx.array:
            return getattr(of, name)(x, y, **how)

        return Case(f"{how}", [x, y], kind, call, result, size, terms=x.shape[0] + 4, moving=(0, 1), pulled=pulled,
            more=more)  # fmt: skip

    return Row((name, "arithmetic", "arithmetic_grad"), sample)


_ORDERS = dict(less=np.less, less_equal=np.less_equal, greater=np.greater, greater_equal=np.greater_equal)


def _compare(rng: Rng) -> Case:
    kind, name = dtype(rng), pick(rng, "equal", "not_equal", *_ORDERS)
    x = rounded(rng.integers(-3, 4, images(rng, kind).shape) * 0.5, kind)
    y = rounded(rng.integers(-3, 4, x.shape) * 0.5, kind)
    threshold = float(pick(rng, 0.0, 0.25, 0.5, 1.0)) if name not in _ORDERS else 0.0

    def result(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if name in _ORDERS:
            return _ORDERS[name](x, y).astype(float)
        return ((np.abs(x - y) <= threshold) == (name == "equal")).astype(float)

    return Case(f"{name}, {threshold}", [x, y], kind, lambda x, y: of.compare(x, y, name, threshold), result,
        moving=(), exact=True)  # fmt: skip


def _softmax(name: str) -> Row:
    def sample(rng: Rng) -> Case:
        kind = dtype(rng)
        x = numbers(rng, rng.integers(1, 7, rng.integers(1, 5)), kind, wide=True)
        axis = int(rng.integers(-x.ndim, x.ndim))

        def result(x: np.ndarray) -> np.ndarray:
            shifted = x - x.max(axis, keepdims=True)
            total = np.exp(shifted).sum(axis, keepdims=True)
            return np.exp(shifted) / total if name == "softmax" else shifted - np.log(total)

        def size(x: np.ndarray) -> np.ndarray:
            away = 1 + np.minimum(np.abs(x - x.max(axis, keepdims=True)), 200)
            return result(x) * away if name == "softmax" else away + np.abs(result(x))

        def pulled(dy: mx.array, x: mx.array) -> dict[int, mx.array]:
            return {0: getattr(of, f"{name}_grad")(dy, getattr(of, name)(x, axis), axis)}

        return Case(f"axis {axis}", [x], kind, lambda x: getattr(of, name)(x, axis), result, size,
            terms=x.shape[axis], pulled=pulled,
            # Both go by the rounded result: a softmax's, which adds up to 1, by an entry's rounding and the mean's.
            narrow=0.4 * x.shape[axis] if name == "log_softmax" else 2.0)  # fmt: skip

    return Row(family(name, "grad"), sample)


def _softmin(rng: Rng) -> Case:
    kind = dtype(rng)
    x = numbers(rng, rng.integers(1, 7, rng.integers(1, 5)), kind, wide=True)
    axis = int(rng.integers(-x.ndim, x.ndim))

    def result(x: np.ndarray) -> np.ndarray:
        e = np.exp(x.min(axis, keepdims=True) - x)
        return e / e.sum(axis, keepdims=True)

    def size(x: np.ndarray) -> np.ndarray:
        return result(x) * (1 + np.minimum(np.abs(x - x.min(axis, keepdims=True)), 200))

    return Case(f"axis {axis}", [x], kind, lambda x: of.softmin(x, axis), result, size, terms=x.shape[axis],
        narrow=2.0)  # fmt: skip


def _glu(rng: Rng) -> Case:
    kind = dtype(rng)
    shape = [int(n) for n in rng.integers(1, 7, rng.integers(1, 5))]
    axis = int(rng.integers(-len(shape), len(shape)))
    shape[axis] *= 2
    x = numbers(rng, shape, kind, wide=True)

    def parts(x: np.ndarray) -> list[np.ndarray]:
        return np.split(x, 2, axis)

    def result(x: np.ndarray) -> np.ndarray:
        values, gates = parts(x)
        return values * sigmoid(gates)

    def size(x: np.ndarray) -> np.ndarray:
        return np.abs(result(x)) * (1 + np.minimum(np.abs(parts(x)[1]), 200))

    return Case(f"axis {axis}", [x], kind, lambda x: of.glu(x, axis), result, size)


# By type: loss of an element of y, t, epsilon, delta.
LOSSES: dict[str, Callable[..., np.ndarray]] = {
    "mean_absolute_error": lambda y, t, e, d: np.abs(y - t),
    "mean_squared_error": lambda y, t, e, d: (y - t) ** 2,
    "sigmoid_cross_entropy": lambda y, t, e, d: np.maximum(y, 0) - y * t + np.log1p(np.exp(-np.abs(y))),
    "categorical_cross_entropy": lambda y, t, e, d: -t * np.log(y),
    "hinge": lambda y, t, e, d: np.maximum(0, 1 - (2 * t - 1) * y),
    "huber": lambda y, t, e, d: np.where(np.abs(y - t) <= d, (y - t) ** 2 / 2, d * (np.abs(y - t) - d / 2)),
    "log": lambda y, t, e, d: -t * np.log(y + e) - (1 - t) * np.log(1 - y + e),
    "kullback_leibler": lambda y, t, e, d: t * (np.log(t) - y),
    "softmax_cross_entropy": lambda y, t, e, d: -t * (y - y.max(-1, keepdims=True) - np.log(
        np.exp(y - y.max(-1, keepdims=True)).sum(-1, keepdims=True))),
    "cosine_distance": lambda y, t, e, d: -y * t,
}  # fmt: skip


def _loss(rng: Rng) -> Case:
    kind, type = dtype(rng), pick(rng, *LOSSES)
    reduction = "sum" if type == "cosine_distance" else pick(rng, "none", "sum", "mean", "sum_by_non_zero_weights")
    shape = tuple(int(v) for v in rng.integers(1, 5, rng.integers(2, 5)))
    y, t = rounded(rng.standard_normal(shape), kind), rounded(rng.uniform(0.1, 0.9, shape), kind)
    if type in ("log", "categorical_cross_entropy"):
        y = rounded(rng.uniform(0.1, 0.9, shape), kind)
    if type == "hinge":
        t = rng.integers(0, 2, shape).astype(float)
    epsilon, delta = float(np.float32(pick(rng, 1e-7, 0.01))), float(pick(rng, 0.5, 1.0, 2.0))
    how: dict[str, Any] = {"log": {"epsilon": epsilon}, "huber": {"delta": delta}}.get(type, {})
    arrays, weight = [y, t], 1.0
    if rng.random() < 0.3:
        how["weight"] = weight = float(np.float32(rng.uniform(0.1, 2)))
    weighed = type != "cosine_distance" and rng.random() < 0.3
    if weighed:
        of_pixels = shape[:-1] + (1,) if rng.random() < 0.5 else shape[-1:]
        arrays.append(rounded(np.where(rng.random(of_pixels) < 0.3, 0.0, rng.uniform(0.5, 2, of_pixels)), kind))
        how.pop("weight", None)
    smoothing = (
        float(np.float32(pick(rng, 0.0, 0.1, 0.25)))
        if type.endswith(("softmax_cross_entropy", "d_cross_entropy"))
        else 0.0
    )
    classes = int(rng.integers(1, 6))
    if smoothing:
        how["label_smoothing"] = smoothing
        if type.startswith("softmax"):
            how["number_of_classes"] = classes

    def elements(y: np.ndarray, t: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
        if type in ("softmax_cross_entropy", "sigmoid_cross_entropy"):
            t = t * (1 - smoothing) + smoothing / (classes if type.startswith("softmax") else 2)
        return LOSSES[type](y, t, epsilon, delta) * (weight if w is None else w)

    def divisor(w: np.ndarray | None) -> Any:
        every = math.prod(shape[1:-1]) if type.startswith("softmax") else math.prod(shape[1:])
        if reduction == "mean" or reduction == "sum_by_non_zero_weights" and w is None:
            return every
        if reduction == "sum_by_non_zero_weights":
            whole = np.broadcast_to(w != 0, shape)
            if type.startswith("softmax") and w.shape[-1] == 1:
                whole = whole[..., :1]
            return np.maximum(whole.reshape(shape[0], -1).sum(1), 1).reshape((-1,) + (1,) * (len(shape) - 1))
        return 1

    def result(y: np.ndarray, t: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
        each = elements(y, t, w)
        if reduction == "none":
            return each
        total = each.sum(tuple(range(1, len(shape))), keepdims=True)
        return weight * 1.0 + total if type == "cosine_distance" else total / divisor(w)

    def size(y: np.ndarray, t: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
        whole = (np.abs(y) + np.abs(t) + 8) * (np.abs(y) + np.abs(t) + 1) * (weight if w is None else np.abs(w))
        return whole if reduction == "none" else np.abs(whole).sum(tuple(range(1, len(shape))), keepdims=True)

    def with_weights(function: Callable[..., Any], *arrays: mx.array, **more: Any) -> Any:
        weights = {"weights": arrays[2]} if weighed else {}
        return function(*arrays[:2], type, reduction, **weights, **how, **more)

    def pulled(dy: mx.array, *arrays: mx.array) -> dict[int, mx.array]:
        gradient = with_weights(of.loss_grad, *arrays, divided=True)
        ones = (
            {0: gradient * dy.astype(gradient.dtype)}
            if reduction != "none" and kind in (mx.float32, mx.float64)
            else {}
        )
        return ones

    def more(*arrays: mx.array) -> Iterator[str]:
        value = numpy(with_weights(of.loss_value, *arrays))
        (both, gradient), (first, state) = with_weights(of.loss, *arrays), with_weights(of.loss_fwd, *arrays)
        near = {"rtol": 2 * EPS[kind], "atol": 1e-5 * (1 + np.abs(value).max(initial=0))}  # sums in another order
        if not all(np.allclose(numpy(a), value, **near, equal_nan=True) for a in (both, first)):
            yield "loss, loss_fwd and loss_value differ"
        y, t = (numpy(a) for a in arrays[:2])
        if type == "softmax_cross_entropy":
            smooth = t * (1 - smoothing) + smoothing / classes
            p = np.exp(y - y.max(-1, keepdims=True))
            want = (p / p.sum(-1, keepdims=True) - smooth) * (numpy(arrays[2]) if weighed else weight)
            near = np.abs(want) * (0.004 if kind == mx.bfloat16 else 0.0005) + 1e-5
            if not (np.abs(numpy(gradient) - want) <= near).all():
                yield "MPS's gradient is not p - t"
        if not np.array_equal(numpy(state.gradient), numpy(gradient), equal_nan=True):
            yield "the state's gradient differs from loss's"

    kinds = (kind,) * len(arrays)
    return Case(f"{type}, {reduction}, {how}", arrays, kind, lambda *a: with_weights(of.loss_value, *a), result, size,
        terms=math.prod(shape[1:]) * 2, dtypes=kinds, pulled=pulled, more=more, moving=(0,), mapped=False)  # fmt: skip


def _dropout(rng: Rng) -> Case:
    kind, keep = dtype(rng), float(np.float32(rng.uniform(0.1, 0.9)))
    x, seed = images(rng, kind), int(rng.integers(2**40))
    stride = tuple(int(v) for v in rng.integers(0, 2, 3))
    how: dict[str, Any] = {"keep_probability": keep, "seed": seed, "mask_stride": stride}
    if rng.random() < 0.3:
        how = {"keep_probability": keep, "key": mx.random.key(seed), "mask_stride": stride}
    key = mx.random.key(seed).tolist()
    shape = (x.shape[0], *(n if s else 1 for n, s in zip(x.shape[1:], stride, strict=True)))
    mask = _philox(key, math.prod(shape)) < round(keep * 2**32)

    def result(x: np.ndarray) -> np.ndarray:
        return x * mask.reshape(shape) / keep

    def pulled(dy: mx.array, x: mx.array) -> dict[int, mx.array]:
        return {0: of.dropout_grad(dy, of.dropout_fwd(x, **how)[1])}

    def more(x: mx.array) -> Iterator[str]:
        if not np.array_equal(np.array(of.dropout_mask(x.shape, **how)), mask.reshape(shape)):
            yield "dropout_mask is not Philox's"
        given = array(mask.reshape(shape), mx.bool_)
        if not np.array_equal(numpy(of.dropout(x, keep_probability=keep, mask=given)), numpy(call(x))):
            yield "a mask that is given makes something else"

    def call(x: mx.array) -> mx.array:
        return of.dropout(x, **how)

    return Case(f"{how}", [x], kind, call, result, np.abs, first=lambda x: of.dropout_fwd(x, **how)[0], pulled=pulled,
        more=more, mapped=False)  # fmt: skip


def _philox(key: list[int], count: int) -> np.ndarray:
    """The first words of Philox4x32-10 of the counters (0, 0), (1, 0), ..."""
    words, mask = [], 2**32 - 1
    for at in range((count + 3) // 4):
        c, (k0, k1) = [at & mask, at >> 32, 0, 0], key
        for _ in range(10):
            p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(p1 >> 32) ^ c[1] ^ k0, p1 & mask, (p0 >> 32) ^ c[3] ^ k1, p0 & mask]
            k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
        words += c
    return np.array(words[:count], np.uint64)


ROWS = {
    **{name: _arithmetic(name) for name in _RULES},
    "compare": Row(("compare",), _compare),
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "softmin": Row(("softmin",), _softmin),
    "glu": Row(("glu",), _glu),
    "loss": Row(family("loss", "value", "grad", "fwd"), _loss),
    "dropout": Row(family("dropout", "fwd", "grad", "mask"), _dropout),
}
