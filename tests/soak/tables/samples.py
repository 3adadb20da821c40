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


ROWS = {
    "grid_sample": Row(family("grid_sample", "fwd", "state", "grad", "grad_grid"), _sampled),
    "affine_grid": Row(family("affine_grid", "grad"), _affine),
}
