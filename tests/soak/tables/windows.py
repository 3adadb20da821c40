"""Tables of convolutions and poolings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

import mpsfunc as mf
from tests.soak.tables.activations import NEURONS
from tests.soak.tables.case import EPS, Case, Rng, Row, dtype, family, images, numbers, numpy, of, pick


class Axis(NamedTuple):
    """Where the taps of each window lie, and which of them count beyond the image."""

    taps: list[list[int]]
    before: int
    after: int


def placed(
    rng: Rng, sizes: tuple[int, int], *, most: int = 4, policy: bool = True
) -> tuple[dict[str, Any], list[Axis]]:
    """Arguments that place windows, and where those are: docs/families/pooling.md, section 3 of MPS's semantics."""
    while True:
        k, s, d = ([int(v) for v in rng.integers(1, top + 1, 2)] for top in (most, 3, pick(rng, 1, 1, 2)))
        reach = [(k[i] - 1) * d[i] + 1 for i in (0, 1)]
        how: dict[str, Any] = {"kernel_size": tuple(k), "stride": tuple(s), "dilation": tuple(d)}
        way = pick(
            rng, "pixels", "pixels", "same", "same_lower", "valid", "full", "offset", *(["policy"] if policy else [])
        )
        counts, pads = [0, 0], [(0, 0), (0, 0)]
        if way == "pixels":
            pads = [tuple(int(v) for v in rng.integers(0, min(reach[i], 3), 2)) for i in (0, 1)]
            how["padding"] = tuple(pads)
            if pads[0][0] == pads[0][1] and pads[1][0] == pads[1][1]:
                how["padding"] = (pads[0][0], pads[1][0])
            how["ceil_mode"] = ceil = bool(rng.random() < 0.3)
            for i in (0, 1):
                room = sizes[i] + sum(pads[i]) - reach[i]
                counts[i] = (math.ceil(room / s[i]) if ceil else room // s[i]) + 1
                if ceil and (counts[i] - 1) * s[i] >= sizes[i] + pads[i][0]:
                    counts[i] -= 1
                if room < 0:
                    counts[i] = 0
        elif way in ("same", "same_lower", "valid", "full"):
            how["padding"] = way
            for i in (0, 1):
                if way in ("same", "same_lower"):
                    counts[i] = math.ceil(sizes[i] / s[i])
                    total = max((counts[i] - 1) * s[i] + reach[i] - sizes[i], 0)
                    pads[i] = (total // 2, total - total // 2)
                    if way == "same_lower":
                        pads[i] = pads[i][::-1]
                else:
                    edge = reach[i] - 1 if way == "full" else 0
                    pads[i], counts[i] = (edge, edge), (sizes[i] + 2 * edge - reach[i]) // s[i] + 1
        elif way == "policy":
            align = pick(rng, "centered", "top_left", "bottom_right")
            corner, size = (
                pick(rng, "top_left", "top_right", "bottom_left", "bottom_right"),
                pick(rng, "same", "valid", "full"),
            )
            how["padding"] = mf.PaddingPolicy(align, corner, size)
            for i, side in enumerate(("top", "left")):
                counts[i] = math.ceil((sizes[i] + {"valid": -1, "same": 0, "full": 1}[size] * (reach[i] - 1)) / s[i])
                extra = (counts[i] - 1) * s[i] + reach[i] - sizes[i]
                left = int((extra + (side in corner)) / 2)
                left = {"centered": left, "top_left": extra, "bottom_right": 0}[align]
                pads[i] = (left, 0)
        else:
            o, counts = [int(v) for v in rng.integers(-2, 4, 2)], [int(v) for v in rng.integers(1, 5, 2)]
            how |= {"offset": tuple(o), "out_size": tuple(counts)}
            pads = [(reach[i] // 2 - o[i], 0) for i in (0, 1)]
        if min(counts) < 1 or (way in ("pixels", "valid") and any(sizes[i] + sum(pads[i]) < reach[i] for i in (0, 1))):
            continue
        made = [[[j * s[i] - pads[i][0] + t * d[i] for t in range(k[i])] for j in range(counts[i])] for i in (0, 1)]
        return how, [Axis(made[i], *pads[i]) for i in (0, 1)]


def whole(rng: Rng, sizes: tuple[int, int]) -> tuple[dict[str, Any], list[list[list[int]]]]:
    """ "global" or "adaptive": the pixels of each window along both axes."""
    if rng.random() < 0.4:
        return {"kernel_size": "global"}, [[list(range(n))] for n in sizes]
    out = [int(v) for v in rng.integers(1, 6, 2)]
    parts = [[list(range(o * n // m, -(-(o + 1) * n // m))) for o in range(m)] for n, m in zip(sizes, out, strict=True)]
    return {"kernel_size": "adaptive", "out_size": tuple(out)}, parts


def read(x: np.ndarray, taps: list[list[int]], axis: int, edge: str, fill: float = 0.0) -> np.ndarray:
    """The axis as two: windows and taps."""
    at, n = np.array(taps), x.shape[axis]
    outside = (at < 0) | (at >= n)
    if edge in ("reflect", "circular"):
        around = np.pad(np.arange(n), n, mode="wrap" if edge == "circular" else edge)
        return np.take(x, around[at + n], axis)
    got = np.take(x, np.clip(at, 0, n - 1), axis)
    if edge == "clamp":
        return got
    shape = [1] * got.ndim
    shape[axis : axis + 2] = at.shape
    return np.where(outside.reshape(shape), fill, got)


def windows(x: np.ndarray, axes: list[Axis], edge: str, fill: float = 0.0) -> np.ndarray:
    """(n, windows, windows, taps, taps, c) of images."""
    made = read(read(x, axes[0].taps, 1, edge, fill), axes[1].taps, 3, edge, fill)
    return made.transpose(0, 1, 3, 2, 4, 5)


def _before(kind: mx.Dtype, act: Any, z: np.ndarray, terms: int) -> Any:
    """In 16 bits an activation is applied to a sum that was rounded: what that adds to the size of the terms."""
    return 0 if act is None or kind in (mx.float32, mx.float64) else np.abs(z) * EPS[kind] / EPS[mx.float32] / terms


def _neuron_of(rng: Rng, kind: mx.Dtype) -> tuple[Any, Any]:
    """`neuron=`, and its function; in 16 bits none with a corner, across which what is activated may be rounded."""
    if rng.random() < 0.6:
        return None, lambda z: z
    bent = ("hard_sigmoid", "relun", "relu6", "hard_tanh", "hard_swish", "soft_shrink")
    corners = bent if kind in (mx.float16, mx.bfloat16) else ()
    jumps = ("step", "hard_shrink")
    name = pick(rng, *(n for n in NEURONS if n not in ("power", "logarithm", "exponential", *jumps, *corners)))
    function, defaults = NEURONS[name]
    return pick(rng, name, mf.Neuron(name)), lambda z: function(z, *defaults)


def _conv(rng: Rng) -> Case:
    kind = dtype(rng)
    x = images(rng, kind)
    if rng.random() < 0.15:
        return _connected(rng, kind, x)
    x = x[..., : max(1, x.shape[-1] // 2 * 2)]
    how, axes = placed(rng, x.shape[1:3])
    groups = pick(rng, 1, 1, *(g for g in (2, x.shape[-1]) if x.shape[-1] % g == 0))
    o = int(groups * rng.integers(1, 5))
    other = pick(rng, kind, kind, mx.float32 if kind != mx.float64 else kind)
    w = numbers(rng, (o, *how.pop("kernel_size"), x.shape[-1] // groups), other)
    arrays, dtypes = [x, w], [kind, other]
    if rng.random() < 0.5:
        arrays.append(numbers(rng, (o,), other))
        dtypes.append(other)
    edge, wide = pick(rng, "zero", "zero", "clamp"), mx.float64 if kind == mx.float64 else mx.float32
    act, function = _neuron_of(rng, kind)
    how |= {"groups": groups, "edge_mode": edge}
    widest = [max([0, *(-t for taps in a.taps for t in taps), *(t - n + 1 for taps in a.taps for t in taps)])
              for a, n in zip(axes, x.shape[1:3], strict=True)]  # fmt: skip
    modes = [mode for mode, less in (("reflect", 1), ("circular", 0))
             if all(far <= n - less for far, n in zip(widest, x.shape[1:3], strict=True))]  # fmt: skip
    if edge == "zero" and modes and rng.random() < 0.4:
        how["padding_mode"] = edge = pick(rng, *modes)

    def summed(x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        seen = windows(x, axes, edge)
        per = [
            np.einsum("nabpqc,opqc->nabo", a, v)
            for a, v in zip(np.split(seen, groups, -1), np.split(w, groups, 0), strict=True)
        ]
        return np.concatenate(per, -1) + (0 if b is None else b)

    def result(*arrays: np.ndarray) -> np.ndarray:
        return function(summed(*arrays))

    def size(*arrays: np.ndarray) -> np.ndarray:
        return 2 * summed(*(np.abs(a) for a in arrays)) + 1 + _before(kind, act, summed(*arrays), terms)

    terms = math.prod(w.shape[1:]) + 1

    def call(*arrays: mx.array) -> mx.array:
        return of.conv(*arrays, **how, neuron=act)

    def first(*arrays: mx.array) -> mx.array:
        return of.conv_fwd(*arrays, **how, neuron=act)[0]

    def pulled(dy: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> dict[int, mx.array]:
        state = of.conv_fwd(x, w, *b, **how, neuron=act)[1]
        if act is None and rng.random() < 0.5:
            state = of.conv_state(x.shape, w.shape, **how, dtype=wide)
        dx, grown = of.conv_grad(dy, x, w, state)
        assert np.array_equal(numpy(of.conv_grad_input(dy, w, state)), numpy(dx)), "conv_grad's dx is another"
        alone = of.conv_grad_weights(dy, x, state.with_arrays(list(state.arrays)))
        assert np.allclose(numpy(alone.dw), numpy(grown.dw), rtol=1e-5, atol=1e-4 * (1 + abs(numpy(grown.dw)).max()))
        return {0: dx, 1: grown.dw} | ({2: grown.db} if b else {})

    return Case(f"{how}, {act}", arrays, kind, call, result, size, terms, tuple(range(len(arrays))), tuple(dtypes),
        first, pulled, mapped=x.shape[0] > 0, narrow=0.0 if act is None else 4.0)  # fmt: skip


def _connected(rng: Rng, kind: mx.Dtype, x: np.ndarray) -> Case:
    w = numbers(rng, (int(rng.integers(1, 6)), *x.shape[1:]), kind)
    arrays = [x, w] + ([numbers(rng, w.shape[:1], kind)] if rng.random() < 0.5 else [])
    act, function = _neuron_of(rng, kind)

    def summed(x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        return np.einsum("nhwc,ohwc->no", x, w)[:, None, None] + (0 if b is None else b)

    def pulled(dy: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> dict[int, mx.array]:
        dx, state = of.fully_connected_grad(dy, x, w, of.fully_connected_fwd(x, w, *b, neuron=act)[1])
        return {0: dx, 1: state.dw} | ({2: state.db} if b else {})

    return Case(f"fully connected, {act}", arrays, kind, lambda *a: of.fully_connected(*a, neuron=act),
        lambda *a: function(summed(*a)),
        lambda *a: 2 * summed(*map(np.abs, a)) + 1 + _before(kind, act, summed(*a), math.prod(w.shape[1:])),
        math.prod(w.shape[1:]) + 1,
        tuple(range(len(arrays))), (), lambda *a: of.fully_connected_fwd(*a, neuron=act)[0], pulled,
        mapped=x.shape[0] > 0, narrow=0.0 if act is None else 4.0)  # fmt: skip


def _conv_transpose(rng: Rng) -> Case:
    kind = dtype(rng)
    x = images(rng, kind, most=4)
    groups = pick(rng, 1, 1, x.shape[-1])
    o = int(groups * rng.integers(1, 4))
    k, s = ([int(v) for v in rng.integers(1, 4, 2)] for _ in "ks")
    d = [1, 1] if rng.random() < 0.7 else [2, 1]
    reach = [(k[i] - 1) * d[i] + 1 for i in (0, 1)]
    how: dict[str, Any] = {"stride": tuple(s), "dilation": tuple(d), "groups": groups}
    mps = rng.random() < 0.4
    n = x.shape[1:3]
    if mps:
        offset, kernel_offset = ([int(v) for v in rng.integers(-1, 2, 2)] for _ in "ok")
        out = [int(v) for v in rng.integers(1, 9, 2)]
        how |= {"offset": tuple(offset), "kernel_offset": tuple(kernel_offset), "out_size": tuple(out)}
        start = [offset[i] * s[i] + kernel_offset[i] - reach[i] // 2 for i in (0, 1)]
    else:
        pad = [[int(v) for v in rng.integers(0, reach[i], 2)] for i in (0, 1)]
        more = [int(rng.integers(0, max(s[i], d[i]))) for i in (0, 1)]
        out = [(n[i] - 1) * s[i] + reach[i] - sum(pad[i]) + more[i] for i in (0, 1)]
        if min(out) < 1:
            pad, more = [[0, 0], [0, 0]], [0, 0]
            out = [(n[i] - 1) * s[i] + reach[i] for i in (0, 1)]
        how |= {"padding": tuple(map(tuple, pad)), "output_padding": tuple(more)}
        if rng.random() < 0.3:
            name, out = pick(rng, "same", "same_lower"), [n[i] * s[i] for i in (0, 1)]
            less = [max(reach[i] - s[i], 0) for i in (0, 1)]
            pad = [[a // 2 if name == "same" else -(-a // 2)] for a in less]
            how |= {"padding": name, "output_padding": 0}
    w = numbers(rng, (o, *k, x.shape[-1] // groups), kind)
    arrays = [x, w] + ([numbers(rng, (o,), kind)] if rng.random() < 0.5 else [])
    act, function = _neuron_of(rng, kind)

    def summed(x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        y = np.zeros((x.shape[0], *out, o))
        for m0 in range(n[0]):
            for m1 in range(n[1]):
                for q0 in range(k[0]):
                    for q1 in range(k[1]):
                        if mps:  # tap q of window j reads j + start + q * d of the source with zeros between
                            j = [m0 * s[0] - start[0] - q0 * d[0], m1 * s[1] - start[1] - q1 * d[1]]
                        else:
                            j = [m0 * s[0] - pad[0][0] + q0 * d[0], m1 * s[1] - pad[1][0] + q1 * d[1]]
                        if 0 <= j[0] < out[0] and 0 <= j[1] < out[1]:
                            parts = zip(np.split(x[:, m0, m1], groups, -1), np.split(w[:, q0, q1], groups), strict=True)
                            y[:, j[0], j[1]] += np.concatenate([a @ v.T for a, v in parts], -1)
        return y + (0 if b is None else b)

    def pulled(dy: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> dict[int, mx.array]:
        state = of.conv_transpose_fwd(x, w, *b, **how, neuron=act)[1]
        dx, grown = of.conv_transpose_grad(dy, x, w, state)
        assert np.array_equal(numpy(of.conv_transpose_grad_input(dy, w, state)), numpy(dx)), "dx is another"
        again = of.conv_transpose_grad_weights(dy, x, state)
        assert np.allclose(numpy(again.dw), numpy(grown.dw), rtol=1e-5, atol=1e-4 * (1 + abs(numpy(grown.dw)).max()))
        return {0: dx, 1: grown.dw} | ({2: grown.db} if b else {})

    return Case(f"{how}, {act}", arrays, kind, lambda *a: of.conv_transpose(*a, **how, neuron=act),
        lambda *a: function(summed(*a)),
        lambda *a: 2 * summed(*map(np.abs, a)) + 1 + _before(kind, act, summed(*a), math.prod(w.shape[1:])),
        math.prod(w.shape[1:]) + 1,
        tuple(range(len(arrays))), (), lambda *a: of.conv_transpose_fwd(*a, **how, neuron=act)[0], pulled,
        mapped=x.shape[0] > 0, narrow=0.0 if act is None else 4.0)  # fmt: skip


def _pool(name: str) -> Row:
    def sample(rng: Rng) -> Case:
        kind = dtype(rng)
        x = images(rng, kind, wide=name != "avg_pool")
        sizes = x.shape[1:3]
        edges = {"avg_pool": ("zero", "clamp"), "max_pool": ("zero", "clamp", "exclude"), "l2_pool": ("zero", "clamp")}
        if rng.random() < 0.2:
            how, parts = whole(rng, sizes)
            axes, edge = [Axis(part, 0, 0) for part in parts], "exclude"
        else:
            how, axes = placed(rng, sizes)
            how["edge_mode"] = edge = pick(rng, *edges[name])
            empty = any(all(t < 0 or t >= n for t in taps) for a, n in zip(axes, sizes, strict=True) for taps in a.taps)
            if empty and edge == "exclude":
                how["edge_mode"] = edge = "zero"
        zero_pad = [(0, 0), (0, 0)]
        if name == "avg_pool" and edge == "clamp":
            zero_pad = [tuple(int(v) for v in rng.integers(0, 3, 2)) for _ in "yx"]
            how["zero_pad"] = tuple(zero_pad)
        divisor = 0
        if name == "avg_pool" and how["kernel_size"] != "adaptive" and rng.random() < 0.2:
            how["divisor_override"] = divisor = int(rng.integers(1, 9))

        def counted(i: int) -> np.ndarray:
            return np.array([
                len(taps) if edge != "clamp" else
                sum(-zero_pad[i][0] <= t <= sizes[i] - 1 + zero_pad[i][1] for t in taps) for taps in axes[i].taps
            ])  # fmt: skip

        def over(x: np.ndarray, fill: float) -> Iterator[tuple[int, int, np.ndarray]]:
            outside = {"avg_pool": "zero"}.get(name, edge)
            for j, rows in enumerate(axes[0].taps):
                for i, columns in enumerate(axes[1].taps):
                    seen = read(read(x, [rows], 1, outside, fill), [columns], 3, outside, fill)
                    yield j, i, seen.reshape(x.shape[0], len(rows) * len(columns), x.shape[-1])

        def result(x: np.ndarray) -> np.ndarray:
            y = np.zeros((x.shape[0], len(axes[0].taps), len(axes[1].taps), x.shape[-1]))
            for j, i, seen in over(x, -np.inf if edge == "exclude" and name == "max_pool" else 0.0):
                if name == "avg_pool":
                    y[:, j, i] = seen.sum(1) / (divisor or max(counted(0)[j] * counted(1)[i], 1))
                elif name == "max_pool":
                    y[:, j, i] = seen.max(1)
                else:
                    top = np.abs(seen).max(1, initial=0)
                    y[:, j, i] = top * np.sqrt(((seen / np.where(top == 0, 1, top)[:, None]) ** 2).sum(1))
            return y

        def pulled(dy: mx.array, x: mx.array) -> dict[int, mx.array]:
            state = getattr(of, f"{name}_fwd")(x, **how)[1]
            if name == "avg_pool" and rng.random() < 0.5:
                state = of.avg_pool_state(x.shape, **how)
            if name == "max_pool":
                again = of.max_pool_grad_from_source(dy, x, **how)
                assert np.array_equal(numpy(again), numpy(of.max_pool_grad(dy, state))), "from the source it is another"
            return {0: getattr(of, f"{name}_grad")(dy, *([x] if name == "l2_pool" else []), state)}

        def more(x: mx.array) -> Iterator[str]:
            if name == "max_pool":
                y, state = of.max_pool_fwd(x, **how)
                at, flat = np.array(of.max_pool_indices(state)), numpy(x)
                flat = flat.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[3])
                at = at.reshape(x.shape[0], math.prod(at.shape[1:3]), at.shape[-1])
                won = np.where(at < 0, 0, np.take_along_axis(flat, np.maximum(at, 0), 1)) if at.size else numpy(y)
                if not np.array_equal(won.reshape(y.shape), numpy(y)):
                    yield "max_pool_indices do not lead to the maxima"
                back = numpy(of.max_unpool(y, state)).reshape(flat.shape)
                want = np.zeros(flat.shape)
                np.put_along_axis(want, np.maximum(at, 0), won, 1) if at.size else None
                if at.size and (at >= 0).all() and not np.allclose(back, want, rtol=0.01, atol=1e-30):
                    yield "max_unpool puts back something else"

        taps = max(len(t) for t in axes[0].taps) * max(len(t) for t in axes[1].taps)
        size = (lambda x: result(np.abs(x))) if name != "max_pool" else None
        return Case(f"{how}", [x], kind, lambda x: getattr(of, name)(x, **how), result, size, taps,
            (0,) if name != "max_pool" or len(np.unique(np.append(x, 0.0))) > x.size else (),  # no ties
            first=lambda x: getattr(of, f"{name}_fwd")(x, **how)[0], pulled=pulled, exact=name == "max_pool", more=more,
            mapped=x.shape[0] > 0)  # fmt: skip

    more = {"avg_pool": ["avg_pool_state"], "l2_pool": []}
    own = more.get(name, ["max_pool_grad_from_source", "max_pool_indices", "max_unpool"])
    return Row((*family(name, "fwd", "grad"), *own), sample)


ROWS = {
    "conv": Row(
        (
            *family("conv", "fwd", "state", "grad", "grad_input", "grad_weights"),
            *family("fully_connected", "fwd", "grad"),
        ),
        _conv,
    ),
    "conv_transpose": Row(family("conv_transpose", "fwd", "grad", "grad_input", "grad_weights"), _conv_transpose),
    **{name: _pool(name) for name in ("avg_pool", "max_pool", "l2_pool")},
}
