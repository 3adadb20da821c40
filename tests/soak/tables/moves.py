"""Tables of functions that move pixels or mix neighbours: resizing, padding, channels; and of files and threads."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tests.soak.tables.case import Case, Rng, Row, dtype, family, images, numbers, numpy, of, pick


def _places(n: int, m: int, coordinate: str, factor: Fraction | None) -> tuple[list[Fraction], Fraction]:
    """Where m positions lie among n pixels, and how far they are apart."""
    half, step = Fraction(1, 2), Fraction(n, m) if factor is None else 1 / factor
    if coordinate == "align_corners":
        return [Fraction(j * (n - 1), max(m - 1, 1)) for j in range(m)], Fraction(n - 1, max(m - 1, 1))
    if coordinate == "half_pixel":
        return [(j + half) * step - half for j in range(m)], step
    if coordinate == "half_pixel_symmetric":
        return [(j - half * (m - 1)) * step + half * (n - 1) for j in range(m)], step
    return [j * step for j in range(m)], step


def _curve(method: str, t: Fraction, antialias: bool) -> Fraction:
    """The weight at a distance."""
    if method == "bilinear":
        return max(1 - t, Fraction(0))
    a = Fraction(-1, 2) if antialias else Fraction(-3, 4)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else Fraction(0)


def _matrix(n: int, m: int, method: str, factor: Fraction | None, how: dict[str, Any]) -> np.ndarray:
    """The weights of n pixels in each of m."""
    made = np.zeros((m, n))
    antialias, edge = how.get("antialias", False), how.get("edge_mode", "clamp")
    usual = "asymmetric" if method == "nearest" else "half_pixel"
    coordinate = "align_corners" if how.get("align_corners") else how.get("coordinate", usual)
    places, step = _places(n, m, coordinate, factor)
    if factor is not None and _copied(n, m, method, coordinate, antialias):
        places = [j * Fraction(n, m) for j in range(m)]
    for j, u in enumerate(places):
        if method == "nearest":
            made[j, math.floor(u + Fraction(1, 2) if coordinate == "half_pixel" else u)] = 1
        elif method == "area":
            begin, end = j * n // m, -(-(j + 1) * n // m)
            made[j, begin:end] = 1 / (end - begin)
        else:
            wide = max(step, Fraction(1)) if antialias else Fraction(1)
            for at in range(math.floor(u - 2 * wide), math.ceil(u + 2 * wide) + 1):
                weight = float(_curve(method, abs(u - at) / wide, antialias))
                if 0 <= at < n:
                    made[j, at] += weight
                elif edge == "clamp" and not antialias:
                    made[j, min(max(at, 0), n - 1)] += weight
            made[j] /= made[j].sum() if antialias else 1
    return made


def _copied(n: int, m: int, method: str, coordinate: str, antialias: bool) -> bool:
    """Where PyTorch forgets a factor that is not whole."""
    if method == "nearest":
        return coordinate == "asymmetric" and m in (n, 2 * n)
    return m == n and coordinate != "half_pixel_symmetric" and (method != "bicubic" or antialias)


def _resampled(name: str) -> Row:
    mode, upsampled = name.split("_")[1], name.startswith("upsample")

    def sample(rng: Rng) -> Case:
        kind = dtype(rng)
        x = images(rng, kind)
        n = x.shape[1:3]
        pair = tuple(int(v) for v in rng.integers(1, 4 if upsampled else 12, 2))
        size: dict[str, Any] = {"scale" if upsampled else "out_size": pair}
        out = tuple(a * b for a, b in zip(n, pair, strict=True)) if upsampled else pair
        factors: tuple[Fraction | None, ...] = (None, None)
        if not upsampled and rng.random() < 0.4:
            tenths = [int(rng.integers(-(-10 // a), 30)) for a in n]
            factors, out = zip(*((Fraction(t, 10), t * a // 10) for t, a in zip(tenths, n, strict=True)), strict=True)
            size = {"scale": tuple(t / 10 for t in tenths)}
        how = _how(rng, mode, upsampled)
        matrices = [_matrix(a, b, mode, f, how) for a, b, f in zip(n, out, factors, strict=True)]

        def result(x: np.ndarray, by: list[np.ndarray] = matrices) -> np.ndarray:
            return np.einsum("ah,bw,nhwc->nabc", *by, x)

        def pulled(dy: mx.array, x: mx.array) -> dict[int, mx.array]:
            state = getattr(of, f"{name}_state")(x.shape, **size, **how)
            first = getattr(of, f"{name}_fwd")(x, **size, **how)[1]
            assert state == first, "f_state and f_fwd make other states"
            return {0: getattr(of, f"{name}_grad")(dy, state)}

        return Case(f"{size}, {how}", [x], kind, lambda x: getattr(of, name)(x, **size, **how), result,
            lambda x: 4 * result(np.abs(x), [abs(m) for m in matrices]), 4 + max(math.prod(out), math.prod(n)),
            first=lambda x: getattr(of, f"{name}_fwd")(x, **size, **how)[0], pulled=pulled,
            exact=mode == "nearest", mapped=x.shape[0] > 0)  # fmt: skip

    return Row(family(name, "fwd", "grad", "state"), sample)


def _how(rng: Rng, mode: str, upsampled: bool) -> dict[str, Any]:
    """Arguments of a function that resizes."""
    if mode == "area" or (mode == "nearest" and upsampled):
        return {}
    if mode == "nearest":
        return {"coordinate": pick(rng, "asymmetric", "half_pixel")}
    symmetric = () if upsampled else ("half_pixel_symmetric",)
    if not upsampled and rng.random() < 0.4:
        return {"antialias": True, "coordinate": pick(rng, "half_pixel", *symmetric)}
    edge = {"edge_mode": pick(rng, "zero", "clamp")} if mode == "bilinear" else {}
    if rng.random() < 0.3:
        return {"align_corners": True, **edge}
    return {"coordinate": pick(rng, "asymmetric", "half_pixel", *symmetric), **edge}


_NUMPY = {
    "constant": "constant",
    "zero": "constant",
    "clamp": "edge",
    "mirror": "reflect",
    "mirror_with_edge": "symmetric",
    "circular": "wrap",
    **{name: name for name in ("edge", "reflect", "symmetric", "wrap")},
    "replicate": "edge",
}


def _pad(rng: Rng) -> Case:
    kind, mode = dtype(rng), pick(rng, *_NUMPY)
    x = images(rng, kind)
    before, after = (tuple(int(v) for v in rng.integers(0, 5, 3)) for _ in "ba")
    if rng.random() < 0.3:
        before, after = before[:2], after[:2]
    value = float(pick(rng, 0.0, 1.5, -2.0)) if mode == "constant" else 0.0
    widths = [(0, 0), *zip(before, after, strict=True)] + [(0, 0)] * (3 - len(before))
    more = {"constant_values": value} if _NUMPY[mode] == "constant" else {}

    def result(x: np.ndarray) -> np.ndarray:
        if 0 in x.shape:
            return np.zeros([n + sum(w) for n, w in zip(x.shape, widths, strict=True)])
        return np.pad(x, widths, _NUMPY[mode], **more)

    def pulled(dy: mx.array, x: mx.array) -> dict[int, mx.array]:
        state = pick(rng, of.pad_state(x.shape, before, after, mode), of.pad_fwd(x, before, after, mode, value)[1])
        return {0: of.pad_grad(dy, state)}

    return Case(f"{before}, {after}, {mode}, {value}", [x], kind, lambda x: of.pad(x, before, after, mode, value),
        result,
        first=lambda x: of.pad_fwd(x, before, after, mode, value)[0], pulled=pulled, exact=True)  # fmt: skip


def _concatenate(rng: Rng) -> Case:
    kind, multiple = dtype(rng), int(pick(rng, 1, 1, 2, 4))
    x = images(rng, kind)
    others = [numbers(rng, (*x.shape[:3], int(rng.integers(1, 6))), kind) for _ in range(int(rng.integers(0, 3)))]

    def result(*arrays: np.ndarray) -> np.ndarray:
        return np.concatenate([np.pad(a, [(0, 0)] * 3 + [(0, -a.shape[-1] % multiple)]) for a in arrays], -1)

    def pulled(dy: mx.array, *arrays: mx.array) -> dict[int, mx.array]:
        counts = [a.shape[-1] for a in arrays]
        return dict(enumerate(of.concatenate_grad(dy, counts, pad_to_multiple=multiple)))

    return Case(f"multiple {multiple}", [x, *others], kind, lambda *a: of.concatenate(a, pad_to_multiple=multiple),
        result,
        moving=tuple(range(1 + len(others))), pulled=pulled, exact=True)  # fmt: skip


def _slice(rng: Rng) -> Case:
    kind = dtype(rng)
    x = images(rng, kind)
    start = int(rng.integers(x.shape[-1]))
    stop = int(rng.integers(start + 1, x.shape[-1] + 1))
    return Case(f"{start} to {stop}", [x], kind, lambda x: of.slice_channels(x, start, stop),
        lambda x: x[..., start:stop],
        pulled=lambda dy, x: {0: of.slice_channels_grad(dy, start, x.shape[-1])}, exact=True)  # fmt: skip


def _mean(rng: Rng) -> Case:
    kind = dtype(rng)
    x = images(rng, kind)
    return Case("", [x], kind, of.spatial_mean, lambda x: x.mean((1, 2), keepdims=True),
        lambda x: np.abs(x).mean((1, 2), keepdims=True), x.shape[1] * x.shape[2],
        pulled=lambda dy, x: {0: of.spatial_mean_grad(dy, x.shape)}, mapped=x.shape[0] > 0)  # fmt: skip


def _depth(name: str) -> Row:
    def sample(rng: Rng) -> Case:
        kind, r = dtype(rng), int(rng.integers(1, 4))
        n, h, w, c = (int(v) for v in rng.integers(1, 4, 4))
        shape = (n, h, w, c * r * r) if name == "depth_to_space" else (n, h * r, w * r, c)
        x = numbers(rng, shape, kind, wide=True)

        def result(x: np.ndarray) -> np.ndarray:
            if name == "depth_to_space":
                return x.reshape(n, h, w, r, r, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h * r, w * r, c)
            return x.reshape(n, h, r, w, r, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h, w, r * r * c)

        back = "space_to_depth" if name == "depth_to_space" else "depth_to_space"
        return Case(f"{r}", [x], kind, lambda x: getattr(of, name)(x, r), result,
            pulled=lambda dy, x: {0: getattr(of, back)(dy, r)}, exact=True)  # fmt: skip

    return Row(("depth_to_space", "space_to_depth"), sample)


def _exported(rng: Rng) -> Case:
    x = numbers(rng, rng.integers(1, 5, rng.integers(1, 4)), mx.float32, wide=True)

    def more(x: mx.array) -> Iterator[str]:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            path = Path(folder, "function.mlxfn")
            of.export(path, lambda x, w: {"y": mx.exp(x) * w}, x, x, device=str(rng.choice(["metal", "cuda"])))
            (signature,) = of.exported(path).signatures
        if [(a.name, a.shape) for a in signature.outputs] != [("result.y", tuple(x.shape))]:
            yield "what is exported has another result"

    return Case("", [x], mx.float32, lambda x: x + 0, lambda x: x, moving=(), exact=True, more=more, mapped=False)


def _saved(rng: Rng) -> Case:
    kind = dtype(rng)
    x = numbers(rng, rng.integers(0, 5, rng.integers(1, 4)), kind, wide=True)

    def call(x: mx.array) -> mx.array:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            path = Path(folder, "tree.safetensors")
            of.save(path, {"x": [x, 1, "text"], "state": of.bn_frozen(mx.zeros(2), mx.ones(2))})
            back = of.load(path)
        assert back["x"][1:] == [1, "text"] and back["state"].op == "batch_norm", "the tree comes back as another"
        assert back["x"][0].dtype == x.dtype, "the dtype comes back as another"
        return back["x"][0]

    def more(x: mx.array) -> Iterator[str]:
        if not np.array_equal(numpy(call(x)), numpy(x)):
            yield "what is loaded differs"

    return Case("", [x], kind, lambda x: x + 0, lambda x: x, moving=(), exact=True, more=more, mapped=False)


def _threads(rng: Rng) -> Case:
    """The same bits with any number of threads, and with a checkpoint."""
    kind, count = dtype(rng), int(rng.integers(1, 5))
    x = images(rng, kind, empty=False)

    def call(x: mx.array) -> mx.array:
        return of.checkpoint(lambda x: of.spatial_mean(of.softplus(x)))(x)

    def more(x: mx.array) -> Iterator[str]:
        before, plain = of.get_num_threads(), numpy(call(x))
        of.set_num_threads(count)
        try:
            if of.get_num_threads() != count:
                yield "set_num_threads sets something else"
            if not np.array_equal(numpy(call(x)), plain):
                yield f"{count} threads make other bits"
        finally:
            of.set_num_threads(before)

    def result(x: np.ndarray) -> np.ndarray:
        y = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
        return y.mean((1, 2), keepdims=True)

    def size(x: np.ndarray) -> np.ndarray:
        grain = {mx.float16: 2.0**13, mx.bfloat16: 2.0**16}.get(kind, 1.0)  # softplus is rounded on the way
        return result(x) * grain

    return Case(f"{count} threads", [x], kind, call, result, size, x.size, more=more, mapped=False)


ROWS = {
    **{f"{a}_{b}": _resampled(f"{a}_{b}") for a in ("upsample", "resize") for b in ("nearest", "bilinear")},
    **{f"resize_{b}": _resampled(f"resize_{b}") for b in ("bicubic", "area")},
    "pad": Row(family("pad", "fwd", "grad", "state"), _pad),
    "concatenate": Row(family("concatenate", "grad"), _concatenate),
    "slice_channels": Row(family("slice_channels", "grad"), _slice),
    "spatial_mean": Row(family("spatial_mean", "grad"), _mean),
    **{name: _depth(name) for name in ("depth_to_space", "space_to_depth")},
    "save and load": Row(("save", "load"), _saved),
    "export": Row(("export", "exported"), _exported),
    "threads": Row(("get_num_threads", "set_num_threads", "checkpoint"), _threads),
}
