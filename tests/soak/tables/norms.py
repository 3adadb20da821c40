"""Tables of normalizations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from tests.soak.tables.activations import NEURONS
from tests.soak.tables.case import Case, Rng, Row, array, dtype, family, images, numbers, numpy, of, pick, rounded


def _images(rng: Rng, kind: mx.Dtype) -> np.ndarray:
    shape = images(rng, kind, empty=False).shape
    return rounded(rng.standard_normal(shape) * rng.uniform(0.5, 3) + rng.uniform(-2, 2), kind)


def _scales(rng: Rng, c: int, kind: mx.Dtype) -> list[np.ndarray]:
    return [numbers(rng, (c,), mx.float32 if kind != mx.float64 else kind) for _ in range(int(rng.integers(0, 3)))]


def _float(rng: Rng, low: float, high: float) -> float:
    return float(np.float32(rng.uniform(low, high)))


def _normal(x: np.ndarray, axes: tuple[int, ...], eps: float) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def _scaled(hat: np.ndarray, gamma: np.ndarray | None = None, beta: np.ndarray | None = None) -> np.ndarray:
    return hat * (1 if gamma is None else gamma) + (0 if beta is None else beta)


def _error(x: np.ndarray, axes: tuple[int, ...], eps: float, *given: np.ndarray) -> np.ndarray:
    """What rounded arguments and sums may make of a normalized element: of the mean and of the root."""
    root = np.sqrt(x.var(axes, keepdims=True) + eps)
    far = (np.abs(x) + np.abs(x).mean(axes, keepdims=True)) / root
    spread = 1 + (np.abs(x).mean(axes, keepdims=True) / root) ** 2
    hat = np.abs(_normal(x, axes, eps))
    return _scaled(far * 2 + hat * spread, *map(np.abs, given)) + 1e-3


def _batch(rng: Rng) -> Case:
    kind = dtype(rng)
    x, eps = _images(rng, kind), _float(rng, 1e-3, 0.1)
    scales = _scales(rng, x.shape[-1], kind)
    name = pick(rng, None, None, "relu", "sigmoid", "tanh", "softplus", "gelu", "elu", "softsign")
    function = (lambda z: z) if name is None else lambda z: NEURONS[name][0](z, *NEURONS[name][1])
    axes, how = (0, 1, 2), {"eps": eps, "neuron": name}
    wide = mx.float64 if kind == mx.float64 else mx.float32

    def grown(dy: mx.array, x: mx.array, given: tuple[mx.array, ...]) -> Any:
        state = of.bn_stats(x, eps=eps)
        return of.bn_stats_grad(dy, x, state, *given, neuron=name)

    def pulled(dy: mx.array, x: mx.array, *given: mx.array) -> dict[int, mx.array]:
        state = grown(dy, x, given)
        pulled = {0: of.bn_grad(dy, x, state, *given, neuron=name)}
        return pulled | dict(list(zip((1, 2), (state.dgamma, state.dbeta), strict=True))[: len(given)])

    def more(x: mx.array, *given: mx.array) -> Iterator[str]:
        at, count = numpy(x), x.size // x.shape[-1]
        near = (
            dict(rtol=2e-5, atol=2e-5 * (1 + np.abs(at).max()) ** 2)
            if wide != mx.float64
            else dict(rtol=1e-12, atol=1e-11)
        )
        state = of.bn_stats(x, eps=eps)
        if not np.allclose(numpy(state.mean), at.mean(axes), **near) or not np.allclose(
            numpy(state.var), at.var(axes), **near
        ):
            yield "bn_stats are not mean and variance"
        if x.shape[0] > 1:
            parts = of.bn_merge(of.bn_stats(x[:1], eps=eps), of.bn_stats(x[1:], eps=eps))
            if not np.allclose(numpy(parts.var), at.var(axes), **near):
                yield "bn_merge of two parts is not the whole"
        if count > 1:
            running = of.bn_frozen(mx.zeros(x.shape[-1:], wide), mx.ones(x.shape[-1:], wide), eps)
            moved = of.bn_running(running, state, 0.25)
            want = 0.75 + 0.25 * at.var(axes) * count / (count - 1)
            if not np.allclose(numpy(moved.var), want, **near) or not np.allclose(
                numpy(moved.mean), at.mean(axes) / 4, **near
            ):
                yield "bn_running moves elsewhere"
            v = numpy(moved.var)
            plain = function(_scaled((at - numpy(moved.mean)) / np.sqrt(v + eps), *map(numpy, given)))
            got = numpy(of.bn_normalize(x, moved, *given, neuron=name))
            relative = {mx.float16: 2e-3, mx.bfloat16: 1.6e-2, mx.float32: 2e-5, mx.float64: 1e-12}[kind]
            if not np.allclose(got, plain, rtol=relative, atol=relative * (1 + np.abs(plain).max())):
                yield "bn_normalize is something else"
        whole = of.bn_stats_grad(x, x, state, *given, neuron=name)
        if any(numpy(a).any() for a in (of.bn_reset(whole).dgamma, of.bn_reset(whole).dbeta, of.bn_reset(whole).mean)):
            yield "bn_reset leaves something"
        again = whole.with_arrays(list(whole.arrays))
        if not all(np.array_equal(numpy(a), numpy(b)) for a, b in zip(again.arrays, whole.arrays, strict=True)):
            yield "with_arrays(arrays) changes a state"

    arrays, kinds = [x, *scales], (kind, *(wide for _ in scales))
    return Case(f"{how}", arrays, kind, lambda x, *g: of.batch_norm(x, *g, **how),
        lambda x, *g: function(_scaled(_normal(x, axes, eps), *g)), lambda x, *g: 2 * _error(x, axes, eps, *g) + 1,
        x.size // x.shape[-1] + 8, tuple(range(len(arrays))), kinds, lambda x, *g: of.batch_norm_fwd(x, *g, **how)[0],
        pulled, more=more, mapped=False)  # fmt: skip


def _by_image(name: str) -> Row:
    def sample(rng: Rng) -> Case:
        kind = dtype(rng)
        x, eps = _images(rng, kind), _float(rng, 1e-3, 0.1)
        c = x.shape[-1]
        groups = int(pick(rng, *(g for g in range(1, c + 1) if c % g == 0))) if name == "group_norm" else c
        scales = _scales(rng, c, kind)
        wide = mx.float64 if kind == mx.float64 else mx.float32
        own = (groups,) if name == "group_norm" else ()
        parted, axes = (*x.shape[:3], groups, c // groups), (1, 2, 4)

        def result(x: np.ndarray, *given: np.ndarray) -> np.ndarray:
            return _scaled(_normal(x.reshape(parted), axes, eps).reshape(x.shape), *given)

        def size(x: np.ndarray, *given: np.ndarray) -> np.ndarray:
            error = _error(x.reshape(parted), axes, eps).reshape(x.shape)
            return 2 * _scaled(error, *map(np.abs, given)) + 1e-3

        def pulled(dy: mx.array, x: mx.array, *given: mx.array) -> dict[int, mx.array]:
            state = getattr(of, f"{name}_fwd")(x, *own, *given, eps=eps)[1]
            dx, state = getattr(of, f"{name}_grad")(dy, x, state, *given[:1])
            sums = [state.dgamma.sum(axis=0), state.dbeta.sum(axis=0)]
            return {0: dx} | {k + 1: sums[k] for k in range(len(given))}

        arrays, kinds = [x, *scales], (kind, *(wide for _ in scales))
        return Case(f"groups {groups}, eps {eps}", arrays, kind, lambda x, *g: getattr(of, name)(x, *own, *g, eps=eps),
            result, size, x.size // x.shape[0] // groups + 8, tuple(range(len(arrays))), kinds,
            lambda x, *g: getattr(of, f"{name}_fwd")(x, *own, *g, eps=eps)[0], pulled, mapped=False)  # fmt: skip

    return Row(family(name, "fwd", "grad"), sample)


def _by_pixel(rng: Rng) -> Case:
    kind = dtype(rng)
    x, eps = _images(rng, kind), _float(rng, 1e-3, 0.1)
    x = x.reshape(-1, x.shape[-1]) if rng.random() < 0.5 else x
    scales, axes = _scales(rng, x.shape[-1], kind), (-1,)
    wide = mx.float64 if kind == mx.float64 else mx.float32

    def pulled(dy: mx.array, x: mx.array, *given: mx.array) -> dict[int, mx.array]:
        return dict(enumerate(of.layer_norm_grad(dy, x, *given[:1], eps=eps)[: 1 + len(given)]))

    return Case(f"eps {eps}", [x, *scales], kind, lambda x, *g: of.layer_norm(x, *g, eps=eps),
        lambda x, *g: _scaled(_normal(x, axes, eps), *g), lambda x, *g: 2 * _error(x, axes, eps, *g) + 1e-3,
        x.shape[-1] + 8, tuple(range(1 + len(scales))), (kind, *(wide for _ in scales)), pulled=pulled)  # fmt: skip


def _window_sum(x: np.ndarray, k: int, axes: tuple[int, ...]) -> np.ndarray:
    """Sums from k // 2 before to (k - 1) // 2 behind, zeros outside."""
    for axis in axes:
        widths = [(0, 0)] * x.ndim
        widths[axis] = (k // 2, (k - 1) // 2)
        padded, n = np.pad(x, widths), x.shape[axis]
        x = sum((np.take(padded, range(t, t + n), axis) for t in range(k)), np.zeros(x.shape))
    return x


def _by_window(name: str) -> Row:
    def sample(rng: Rng) -> Case:
        kind, k = dtype(rng), int(rng.integers(1, 6))
        x = images(rng, kind, empty=False)
        x = rounded(np.clip(x, -4, 4), kind)
        alpha, beta, delta = _float(rng, 0.1, 1.5), _float(rng, 0.2, 2), _float(rng, 0.5, 2)
        how: dict[str, Any] = {"alpha": alpha, "beta": beta, "delta": delta}
        p0, pm, ps = (_float(rng, -1, 1.5) for _ in range(3))
        if name == "local_contrast_norm":
            how |= {"p0": p0, "pm": pm, "ps": ps}
        axes, n = ((3,), k) if name == "cross_channel_norm" else ((1, 2), k * k)

        def result(x: np.ndarray) -> np.ndarray:
            mean = _window_sum(x, k, axes) / n
            squares = _window_sum(x * x, k, axes) / n
            if name != "local_contrast_norm":
                return x * (delta + alpha * squares) ** -beta
            return pm + ps * (x - p0 * mean) * (delta + alpha * (squares - mean * mean)) ** -beta

        def size(x: np.ndarray) -> np.ndarray:
            mean, squares = (_window_sum(a, k, axes) / n for a in (np.abs(x), x * x))
            y = np.abs(x) + (abs(p0) * mean if name == "local_contrast_norm" else 0)
            base = delta + (0 if name == "local_contrast_norm" else alpha * squares)
            lost = beta * alpha * (squares + mean**2) / delta if name == "local_contrast_norm" else beta
            return abs(pm) + max(abs(ps), 1) * y * base**-beta * (2 + lost)

        def pulled(dy: mx.array, x: mx.array) -> dict[int, mx.array]:
            return {0: getattr(of, f"{name}_grad")(dy, x, getattr(of, f"{name}_fwd")(x, k, **how)[1])}

        return Case(f"{k}, {how}", [x], kind, lambda x: getattr(of, name)(x, k, **how), result, size, 2 * n + 8,
            first=lambda x: getattr(of, f"{name}_fwd")(x, k, **how)[0], pulled=pulled)  # fmt: skip

    return Row(family(name, "fwd", "grad"), sample)


def _fold(rng: Rng) -> Case:
    o, kind = int(rng.integers(1, 5)), mx.float32
    w = numbers(rng, (o, *rng.integers(1, 4, 3)), kind)
    vectors = [rounded(rng.uniform(0.25, 2, o), kind) for _ in range(5)]
    eps = _float(rng, 1e-3, 0.1)

    def folded(
        w: np.ndarray, b: np.ndarray, gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, var: np.ndarray
    ) -> Any:
        scale = gamma / np.sqrt(var + eps)
        return w * scale[:, None, None, None], b * scale + beta - mean * scale

    def more(*arrays: mx.array) -> Iterator[str]:
        b = numpy(of.fold_batch_norm(*arrays, eps)[1])
        if not np.allclose(b, folded(*map(numpy, arrays))[1], rtol=1e-5, atol=1e-5 * 40):
            yield "the folded bias is another"

    call: Callable[..., mx.array] = lambda *a: of.fold_batch_norm(*a, eps)[0]  # noqa: E731
    return Case(f"eps {eps}", [w, *vectors], kind, call, lambda *a: folded(*a)[0], None, 4, (0, 2, 5), more=more)


def _dequantize(rng: Rng) -> Case:
    o, kind = int(rng.integers(1, 5)), pick(rng, mx.float32, mx.float16, mx.float64)
    q = rng.integers(0, 256, (o, *rng.integers(1, 4, 3))).astype(np.uint8)
    if rng.random() < 0.5:
        table = numbers(rng, (o, 256), kind)
        return Case("a table", [table], kind, lambda t: of.dequantize_weights(array(q, mx.uint8), table=t, dtype=kind),
            lambda t: np.stack([t[i][q[i]] for i in range(o)]), exact=True, moving=(), mapped=False)  # fmt: skip
    low, high = rounded(-rng.uniform(0, 2, o), kind), rounded(rng.uniform(0, 2, o), kind)

    def result(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return q / 255 * (high - low)[:, None, None, None] + low[:, None, None, None]

    return Case("a range", [low, high], kind,
        lambda a, b: of.dequantize_weights(array(q, mx.uint8), low=a, high=b, dtype=kind), result,
        lambda low, high: (np.abs(low) + np.abs(high))[:, None, None, None] * 2 + 0 * q,
        moving=(), mapped=False)  # fmt: skip


ROWS = {
    "batch_norm": Row((
        "batch_norm", "batch_norm_fwd", "bn_grad", "bn_stats", "bn_stats_grad", "bn_normalize", "bn_merge",
        "bn_running", "bn_frozen", "bn_reset",
    ), _batch),
    **{name: _by_image(name) for name in ("instance_norm", "group_norm")},
    "layer_norm": Row(("layer_norm", "layer_norm_grad"), _by_pixel),
    **{name: _by_window(name) for name in ("cross_channel_norm", "spatial_norm", "local_contrast_norm")},
    "fold_batch_norm": Row(("fold_batch_norm",), _fold),
    "dequantize_weights": Row(("dequantize_weights",), _dequantize),
}  # fmt: skip
