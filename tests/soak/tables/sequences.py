"""Tables of what sequences (n, l, c) have: convolutions, poolings and norms along a line."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np

from tests.soak.tables.case import Case, Rng, Row, dtype, numbers, of, pick


def _sequences(rng: Rng, kind: mx.Dtype, *, empty: bool = True) -> np.ndarray:
    n = int(rng.integers(1, 4)) if not empty or rng.random() > 0.04 else 0
    return numbers(rng, (n, int(rng.integers(1, 12)), int(rng.integers(1, 8))), kind)


def _taps(rng: Rng, length: int, size: int, *, names: bool = True) -> tuple[dict[str, Any], list[list[int]]]:
    """Arguments that place windows, and where their taps lie."""
    while True:
        stride, dilation = int(rng.integers(1, 4)), pick(rng, 1, 1, 2)
        reach = (size - 1) * dilation + 1
        how: dict[str, Any] = {"stride": stride, "dilation": dilation}
        way = pick(rng, "elements", "elements", *(("same", "same_lower", "valid", "full") if names else ()))
        before, after = (int(v) for v in rng.integers(0, min(reach, 3), 2))
        if way == "elements":
            how["padding"] = (before, after) if before != after or rng.random() < 0.5 else before
        else:
            how["padding"] = way
            total = max((math.ceil(length / stride) - 1) * stride + reach - length, 0)
            before = {"valid": 0, "full": reach - 1, "same": total // 2}.get(way, -(-total // 2))
            after = {"valid": 0, "full": reach - 1}.get(way, total - before)
        count = (length + before + after - reach) // stride + 1
        if count >= 1 and length + before + after >= reach:
            return how, [[j * stride - before + k * dilation for k in range(size)] for j in range(count)]


def _read(x: np.ndarray, taps: list[list[int]], fill: float = 0.0) -> np.ndarray:
    """(n, windows, taps, c)."""
    at = np.array(taps)
    inside = (at >= 0) & (at < x.shape[1])
    return np.where(inside[None, :, :, None], x[:, np.clip(at, 0, x.shape[1] - 1)], fill)


def _groups(rng: Rng, channels: int) -> int:
    return int(pick(rng, 1, 1, channels))


def _conv(rng: Rng) -> Case:
    kind = dtype(rng)
    x, size = _sequences(rng, kind), int(rng.integers(1, 5))
    groups = _groups(rng, x.shape[2])
    how, taps = _taps(rng, x.shape[1], size)
    w = numbers(rng, (groups * int(rng.integers(1, 4)), size, x.shape[2] // groups), kind)
    arrays = [x, w] + ([numbers(rng, w.shape[:1], kind)] if rng.random() < 0.5 else [])
    how["groups"] = groups

    def result(x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        parts = zip(np.split(_read(x, taps), groups, -1), np.split(w, groups), strict=True)
        made = np.concatenate([np.einsum("njkc,okc->njo", seen, v) for seen, v in parts], -1)
        return made + (0 if b is None else b)

    return Case(f"{how}", arrays, kind, lambda *a: of.conv1d(*a, **how), result,
        lambda *a: 2 * result(*map(np.abs, a)) + 1, math.prod(w.shape[1:]) + 1, tuple(range(len(arrays))),
        mapped=x.shape[0] > 0)  # fmt: skip


def _conv_transpose(rng: Rng) -> Case:
    kind = dtype(rng)
    x, size = _sequences(rng, kind), int(rng.integers(1, 5))
    groups, stride, dilation = _groups(rng, x.shape[2]), int(rng.integers(1, 4)), pick(rng, 1, 1, 2)
    reach = (size - 1) * dilation + 1
    before, after = (int(v) for v in rng.integers(0, reach, 2))
    more = int(rng.integers(0, max(stride, dilation)))
    out = (x.shape[1] - 1) * stride + reach - before - after + more
    if out < 1:
        before, after, more, out = 0, 0, 0, (x.shape[1] - 1) * stride + reach
    how: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
    how |= {"padding": (before, after), "output_padding": more}
    w = numbers(rng, (groups * int(rng.integers(1, 4)), size, x.shape[2] // groups), kind)
    arrays = [x, w] + ([numbers(rng, w.shape[:1], kind)] if rng.random() < 0.5 else [])

    def result(x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        y = np.zeros((x.shape[0], out, w.shape[0]))
        for m in range(x.shape[1]):
            for q in range(size):
                if 0 <= (at := m * stride - before + q * dilation) < out:
                    parts = zip(np.split(x[:, m], groups, -1), np.split(w[:, q], groups), strict=True)
                    y[:, at] += np.concatenate([a @ v.T for a, v in parts], -1)
        return y + (0 if b is None else b)

    return Case(f"{how}", arrays, kind, lambda *a: of.conv_transpose1d(*a, **how), result,
        lambda *a: 2 * result(*map(np.abs, a)) + 1, math.prod(w.shape[1:]) + 1, tuple(range(len(arrays))),
        mapped=x.shape[0] > 0)  # fmt: skip


def _pool(name: str) -> Row:
    def sample(rng: Rng) -> Case:
        kind = dtype(rng)
        x, size = _sequences(rng, kind), int(rng.integers(1, 5))
        how, taps = _taps(rng, x.shape[1], size)
        while name == "max_pool1d" and any(all(t < 0 or t >= x.shape[1] for t in each) for each in taps):
            how, taps = _taps(rng, x.shape[1], size)
        divisor = size
        if name == "avg_pool1d" and rng.random() < 0.3:
            how["divisor_override"] = divisor = int(rng.integers(1, 9))

        def result(x: np.ndarray) -> np.ndarray:
            if name == "max_pool1d":
                return _read(x, taps, -np.inf).max(2)
            seen = _read(x, taps)
            return seen.sum(2) / divisor if name == "avg_pool1d" else np.sqrt((seen**2).sum(2))

        ties = name == "max_pool1d" and len(np.unique(np.append(x, 0.0))) <= x.size
        return Case(f"{size}, {how}", [x], kind, lambda x: getattr(of, name)(x, size, **how), result,
            None if name == "max_pool1d" else lambda x: result(np.abs(x)), size, () if ties else (0,),
            exact=name == "max_pool1d", mapped=x.shape[0] > 0)  # fmt: skip

    return Row((name,), sample)


def _norm(name: str) -> Row:
    def sample(rng: Rng) -> Case:
        kind = dtype(rng)
        x = _sequences(rng, kind, empty=False) + 0.0
        eps = float(np.float32(rng.uniform(1e-3, 0.1)))
        c = x.shape[2]
        groups = int(pick(rng, *(g for g in range(1, c + 1) if c % g == 0)))
        axes = {"batch_norm1d": (0, 1), "instance_norm1d": (1,)}.get(name, (1, 3))
        scales = [
            numbers(rng, (c,), mx.float32 if kind != mx.float64 else kind) for _ in range(int(rng.integers(0, 3)))
        ]
        first = (groups,) if name == "group_norm1d" else ()

        def parts(x: np.ndarray) -> np.ndarray:
            return x.reshape(*x.shape[:2], groups, -1) if first else x

        def scaled(a: np.ndarray, gamma: Any = 1.0, beta: Any = 0.0) -> np.ndarray:
            return a.reshape(x.shape) * gamma + beta

        def result(x: np.ndarray, *given: np.ndarray) -> np.ndarray:
            each = parts(x)
            hat = (each - each.mean(axes, keepdims=True)) / np.sqrt(each.var(axes, keepdims=True) + eps)
            return scaled(hat, *given)

        def size(x: np.ndarray, *given: np.ndarray) -> np.ndarray:
            each = parts(x)
            mean, root = np.abs(each).mean(axes, keepdims=True), np.sqrt(each.var(axes, keepdims=True) + eps)
            hat = np.abs(each - each.mean(axes, keepdims=True)) / root
            far = (np.abs(each) + mean) / root * 2 + hat * (1 + (mean / root) ** 2)
            return scaled(far, *(np.abs(a).max() for a in given)) + 1e-3  # mapped calls have scales the other way round

        def call(x: mx.array, *given: mx.array) -> mx.array:
            return getattr(of, name)(x, *first, *given, eps=eps)

        other = mx.float32 if kind != mx.float64 else kind
        return Case(f"{first} {eps}", [x, *scales], kind, call, result, size, x.size, (),
            (kind, *[other] * len(scales)))  # fmt: skip

    return Row((name,), sample)


ROWS = {
    "conv1d": Row(("conv1d",), _conv),
    "conv_transpose1d": Row(("conv_transpose1d",), _conv_transpose),
    **{name: _pool(name) for name in ("avg_pool1d", "max_pool1d", "l2_pool1d")},
    **{name: _norm(name) for name in ("batch_norm1d", "instance_norm1d", "group_norm1d")},
}
