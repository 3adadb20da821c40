"""Rows of samples at places that a grid tells. Places are sixteenths of a pixel, so that no weight is rounded."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

from tests.soak.tables.case import Case, Rng, Row, dtype, family, images, numbers, numpy, of, pick


def _cubic(d: float) -> float:
    """Keys's curve with a = -0.75."""
    d = abs(d)
    if d <= 1:
        return 1.25 * d**3 - 2.25 * d**2 + 1
    return -0.75 * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def _row(at: float, length: int, mode: str, edge: str) -> np.ndarray:
    """The weight of each pixel of a line at a position."""
    first = int(np.floor(at))
    near = {
        "nearest": {int(np.rint(at)): 1.0},  # of two that are as near the even one
        "bilinear": {first: 1 - (at - first), first + 1: at - first},
        "bicubic": {i: _cubic(at - i) for i in range(first - 1, first + 3)},
    }[mode]
    made = np.zeros(length)
    for pixel, weight in near.items():
        seen = pixel
        if edge == "border":
            seen = min(max(pixel, 0), length - 1)
        if edge == "reflection":  # at the outer edges of the outermost pixels
            line = [*range(length), *reversed(range(length))]
            seen = line[pixel % len(line)]
        if 0 <= seen < length:
            made[seen] += weight
    return made


def _sampled(rng: Rng) -> Case:
    kind = dtype(rng)
    x = images(rng, kind, empty=False)
    grid = rng.integers(-24, 63, (x.shape[0], *rng.integers(1, 6, 2), 2)) / 8 + 1 / 16  # never halfway between pixels
    coordinates = str(pick(rng, "pixel", "offset"))
    how = {
        "mode": str(pick(rng, "nearest", "bilinear", "bicubic")),
        "edge_mode": str(pick(rng, "zero", "border", "reflection")),
    }

    def summed(x: np.ndarray, grid: np.ndarray, *, absolute: bool = False) -> np.ndarray:
        made = np.zeros((*grid.shape[:3], x.shape[-1]))
        for n, row, col in np.ndindex(*grid.shape[:3]):
            own = (col, row) if coordinates == "offset" else (0, 0)
            across, down = (
                _row(given + origin, length, *how.values())
                for given, origin, length in zip(grid[n, row, col], own, (x.shape[2], x.shape[1]), strict=True)
            )
            terms = down[:, None, None] * across[:, None] * x[n]
            made[n, row, col] = (np.abs(terms) if absolute else terms).sum((0, 1))
        return made

    def pulled(dy: mx.array, x: mx.array, grid: mx.array) -> dict[int, mx.array]:
        state = of.grid_sample_state(x.shape, coordinates, **how)
        assert state == of.grid_sample_fwd(x, grid, coordinates, **how)[1], "f_state and f_fwd make other states"
        return {0: of.grid_sample_grad(dy, grid, state)}

    def more(x: mx.array, grid: mx.array) -> Iterator[str]:
        dy = mx.ones((*grid.shape[:3], x.shape[-1]), x.dtype)
        state = of.grid_sample_state(x.shape, coordinates, **how)
        by_hand = of.grid_sample_grad_grid(dy, x, grid, state)
        (derived,) = mx.vjp(lambda grid: of.grid_sample(x, grid, coordinates, **how), [grid], [dy])[1]
        if not np.array_equal(numpy(by_hand), numpy(derived)):
            yield "grid_sample_grad_grid is not the derivative"

    return Case(f"{coordinates}, {how}", [x, grid], kind, lambda x, grid: of.grid_sample(x, grid, coordinates, **how),
        summed, lambda x, grid: summed(x, grid, absolute=True), 16,
        first=lambda x, grid: of.grid_sample_fwd(x, grid, coordinates, **how)[0], pulled=pulled, more=more)  # fmt: skip


def _affine(rng: Rng) -> Case:
    kind = dtype(rng)
    theta = numbers(rng, (int(rng.integers(1, 4)), 2, 3), kind)
    size = tuple(int(n) for n in rng.integers(1, 6, 2))
    aligned = bool(rng.integers(2))

    def result(theta: np.ndarray) -> np.ndarray:
        y, x = (np.arange(1 - n, n, 2) / max(n - aligned, 1) for n in size)
        base = np.stack(np.broadcast_arrays(x[None, :], y[:, None], 1.0), -1)
        return np.einsum("yxj,nij->nyxi", base, theta)

    return Case(f"{size}, {aligned}", [theta], kind, lambda theta: of.affine_grid(theta, size, align_corners=aligned),
        result, lambda theta: result(np.abs(theta)) * 0 + np.abs(theta).sum(-1)[:, None, None], 3 * size[0] * size[1],
        pulled=lambda dy, theta: {0: of.affine_grid_grad(dy, align_corners=aligned)})  # fmt: skip


def _deformed(rng: Rng) -> Case:
    kind = dtype(rng)
    wide = mx.float64 if kind == mx.float64 else mx.float32
    x = images(rng, kind, most=4, empty=False)
    (kh, kw), stride, dilation, pads = ([int(v) for v in rng.integers(low, 3, 2)] for low in (1, 1, 1, 0))
    out = [(x.shape[i + 1] + 2 * pads[i] - dilation[i] * (k - 1) - 1) // stride[i] + 1 for i, k in enumerate((kh, kw))]
    if min(out) < 1:
        return _deformed(rng)
    channels = x.shape[3]
    groups, apart = (pick(rng, 1, channels) for _ in "wo")
    how = {"stride": tuple(stride), "padding": tuple(pads), "dilation": tuple(dilation)}
    how |= {"groups": groups, "offset_groups": apart}
    size, taps = (x.shape[0], *out), kh * kw
    offsets = rng.integers(-16, 16, (*size, 2 * apart * taps)) / 8 + 1 / 16  # never on a pixel
    w = numbers(rng, (groups * int(rng.integers(1, 3)), kh, kw, channels // groups), kind)
    b = numbers(rng, w.shape[:1], kind)
    mask = [numbers(rng, (*size, apart * taps), kind)] if rng.random() < 0.5 else []
    arrays = [x, offsets, w, b, *mask]

    def summed(x: np.ndarray, offsets: np.ndarray, w: np.ndarray, b: np.ndarray, *mask: np.ndarray) -> np.ndarray:
        y = np.zeros((*size, len(w))) + b
        for n, row, col, k, c in np.ndindex(*size, taps, channels):
            number = c // (channels // apart) * taps + k
            v = row * stride[0] - pads[0] + k // kw * dilation[0] + offsets[n, row, col, 2 * number]
            u = col * stride[1] - pads[1] + k % kw * dilation[1] + offsets[n, row, col, 2 * number + 1]
            seen = _row(v, x.shape[1], "bilinear", "zero") @ x[n, :, :, c] @ _row(u, x.shape[2], "bilinear", "zero")
            seen *= mask[0][n, row, col, number] if mask else 1
            group, at = divmod(c, channels // groups)
            outs = slice(group * len(w) // groups, (group + 1) * len(w) // groups)
            y[n, row, col, outs] += seen * w[outs, k // kw, k % kw, at]
        return y

    def absolute(x: np.ndarray, offsets: np.ndarray, *others: np.ndarray) -> np.ndarray:
        return summed(np.abs(x), offsets, *map(np.abs, others))

    def pulled(
        dy: mx.array, x: mx.array, offsets: mx.array, w: mx.array, b: mx.array, *mask: mx.array
    ) -> dict[int, mx.array]:
        state = of.deform_conv_state(x.shape, w.shape, **how, dtype=wide)
        grown = of.deform_conv_grad_weights(dy, x, offsets, state, *mask)
        made = {0: of.deform_conv_grad_input(dy, offsets, w, state, *mask), 2: grown.dw, 3: grown.db}
        return made | ({4: of.deform_conv_grad_mask(dy, x, offsets, w, state, *mask)} if mask else {})

    def more(x: mx.array, offsets: mx.array, w: mx.array, b: mx.array, *mask: mx.array) -> Iterator[str]:
        dy = mx.ones((*size, len(w)), x.dtype)
        state = of.deform_conv_fwd(x, offsets, w, b, *mask, **how)[1]
        by_hand = of.deform_conv_grad_offsets(dy, x, offsets, w, state, *mask)
        (derived,) = mx.vjp(lambda offsets: of.deform_conv(x, offsets, w, b, *mask, **how), [offsets], [dy])[1]
        if not np.array_equal(numpy(by_hand), numpy(derived)):
            yield "deform_conv_grad_offsets is not the derivative"

    moving, dtypes = [i for i in range(len(arrays)) if i != 1], [kind, wide] + [kind] * (len(arrays) - 2)
    return Case(f"{how}", arrays, kind, lambda *a: of.deform_conv(*a, **how), summed, absolute, 16 * taps * channels,
        tuple(moving), tuple(dtypes), lambda *a: of.deform_conv_fwd(*a, **how)[0], pulled, more=more)  # fmt: skip


ROWS = {
    "deform_conv": Row(
        family("deform_conv", "fwd", "state", "grad_input", "grad_offsets", "grad_mask", "grad_weights"), _deformed
    ),
    "grid_sample": Row(family("grid_sample", "fwd", "state", "grad", "grad_grid"), _sampled),
    "affine_grid": Row(family("affine_grid", "grad"), _affine),
}
