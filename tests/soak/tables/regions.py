"""Rows of samples in boxes. Places are sixteenths of a pixel that are no eighths, so that none is on an edge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from tests.soak.tables.case import Case, Rng, Row, dtype, family, images, numpy, of, pick

Sides = Callable[[int], tuple[np.ndarray, np.ndarray]]  # of box r the weights of rows and of columns


def _weights(places: np.ndarray, length: int, margin: int, nearest: bool) -> np.ndarray:
    """Of every pixel of an axis at each place; a pixel beyond the image by up to the margin is the outermost one."""
    made = np.zeros((len(places), length))
    for row, at in zip(made, places, strict=True):
        if -margin <= at <= length - 1 + margin:
            at = min(max(at, 0), length - 1)
            first = round(at) if nearest else min(int(at), max(length - 2, 0))
            row[first] = 1 if nearest else 1 - (at - first)
            row[min(first + 1, length - 1)] += 0 if nearest else at - first
    return made


def _mixed(x: np.ndarray, numbers: np.ndarray, sides: Sides, outside: float = 0.0) -> np.ndarray:
    made = []
    for r, number in enumerate(numbers):
        rows, cols = sides(r)
        if number not in range(len(x)):
            rows, cols = rows * 0, cols * 0
        bins = np.einsum("yh,xw,hwc->yxc", rows, cols, x[number % len(x)])
        empty = (rows.sum(1)[:, None] * cols.sum(1) == 0)[..., None]
        made.append(np.where(empty, outside, bins))
    return np.stack(made)


def _drawn(rng: Rng, x: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Corners (y1, x1, y2, x2) in pixels, the sides multiples of the step, and numbers, at times one of no image."""
    count = int(rng.integers(1, 6))
    first = rng.integers(-24, 63, (count, 2)) / 8 + 1 / 16
    sides = rng.integers(-1, 12, (count, 2)) * step
    return np.concatenate([first, first + sides], 1), rng.integers(-1 if rng.random() < 0.3 else 0, x.shape[0], count)


def _cropped(rng: Rng) -> Case:
    kind = dtype(rng)
    x = images(rng, kind, empty=False)
    size = rows, cols = tuple(int(n) for n in rng.integers(1, 6, 2))
    corners, numbers = _drawn(rng, x, 0.5 if 1 in size else max(size) - 1.0)
    _, height, width, _ = x.shape
    down, across = (max(length - 1, 1) for length in (height, width))
    if height == 1:
        corners[:, [0, 2]] = 0
    if width == 1:
        corners[:, [1, 3]] = 0
    exact = mx.float64 if kind == mx.float64 else mx.float32
    boxes, indices = mx.array(corners / [down, across, down, across], exact), mx.array(numbers, mx.int32)
    how: dict[str, Any] = {
        "method": str(pick(rng, "bilinear", "nearest")),
        "extrapolation_value": float(pick(rng, 0.0, -2.5)),
    }

    def sides(r: int) -> tuple[np.ndarray, np.ndarray]:
        y1, x1, y2, x2 = corners[r]
        ends = (y1, y2, rows, height), (x1, x2, cols, width)
        at = (np.linspace(a, b, n) if n > 1 else np.array([(a + b) / 2]) for a, b, n, _ in ends)
        nearest = how["method"] == "nearest"
        down, across = (_weights(u, length, 0, nearest) for u, (*_, length) in zip(at, ends, strict=True))
        return down, across

    def result(x: np.ndarray) -> np.ndarray:
        return _mixed(x, numbers, sides, how["extrapolation_value"])

    def call(x: mx.array) -> mx.array:
        return of.crop_and_resize(x, boxes, indices, size, **how)

    def pulled(dy: mx.array, x: mx.array) -> dict[int, mx.array]:
        state = of.crop_and_resize_state(x.shape, size, **how)
        assert state == of.crop_and_resize_fwd(x, boxes, indices, size, **how)[1], "f_state and f_fwd make other states"
        return {0: of.crop_and_resize_grad(dy, boxes, indices, state)}

    def more(x: mx.array) -> Iterator[str]:
        state, dy = of.crop_and_resize_state(x.shape, size, **how), mx.ones((len(numbers), *size, x.shape[-1]), x.dtype)
        by_hand = of.crop_and_resize_grad_boxes(dy, x, boxes, indices, state)
        (derived,) = mx.vjp(lambda boxes: of.crop_and_resize(x, boxes, indices, size, **how), [boxes], [dy])[1]
        if not np.array_equal(numpy(by_hand), numpy(derived)):
            yield "crop_and_resize_grad_boxes is not the derivative"

    return Case(f"{corners.tolist()} of {numbers.tolist()} to {size}, {how}", [x], kind, call, result,
        lambda x: np.abs(x).max(initial=0) + np.abs(result(np.abs(x))), 64,
        first=lambda x: of.crop_and_resize_fwd(x, boxes, indices, size, **how)[0],
        pulled=pulled, more=more)  # fmt: skip


def _aligned(rng: Rng) -> Case:
    kind = dtype(rng)
    x = images(rng, kind, empty=False)
    size = tuple(int(n) for n in rng.integers(1, 5, 2))
    ratio, aligned, scale = int(rng.integers(-1, 4)), bool(rng.integers(2)), float(pick(rng, 1.0, 0.5, 2.0))
    corners, numbers = _drawn(rng, x, 0.5 * size[0] * size[1] * max(ratio, 1))
    _, height, width, _ = x.shape
    exact = mx.float64 if kind == mx.float64 else mx.float32
    told = np.concatenate([numbers[:, None], corners[:, [1, 0, 3, 2]] / scale], 1)
    rois, how = mx.array(told, exact), (scale, ratio, aligned)

    def side(begin: float, end: float, bins: int, length: int) -> np.ndarray:
        begin, end = begin - 0.5 * aligned, end - 0.5 * aligned
        long = end - begin if aligned else max(end - begin, 1.0)
        samples = ratio if ratio > 0 else max(int(np.ceil(long / bins)), 0)
        shares = (np.arange(bins * samples) + 0.5) / max(bins * samples, 1)
        apart = _weights(begin + long * shares, length, 1, False)
        made: np.ndarray = apart.reshape(bins, samples, length).sum(1) / max(samples, 1)
        return made

    def sides(r: int) -> tuple[np.ndarray, np.ndarray]:
        y1, x1, y2, x2 = corners[r]
        return side(y1, y2, size[0], height), side(x1, x2, size[1], width)

    def result(x: np.ndarray) -> np.ndarray:
        return _mixed(x, numbers, sides)

    def pulled(dy: mx.array, x: mx.array) -> dict[int, mx.array]:
        state = of.roi_align_state(x.shape, size, *how)
        assert state == of.roi_align_fwd(x, rois, size, *how)[1], "f_state and f_fwd make other states"
        return {0: of.roi_align_grad(dy, rois, state)}

    def more(x: mx.array) -> Iterator[str]:
        state, dy = of.roi_align_state(x.shape, size, *how), mx.ones((len(numbers), *size, x.shape[-1]), x.dtype)
        by_hand = of.roi_align_grad_rois(dy, x, rois, state)
        (derived,) = mx.vjp(lambda rois: of.roi_align(x, rois, size, *how), [rois], [dy])[1]
        if not np.array_equal(numpy(by_hand), numpy(derived)):
            yield "roi_align_grad_rois is not the derivative"

    return Case(f"{told.tolist()} to {size}, {how}", [x], kind, lambda x: of.roi_align(x, rois, size, *how), result,
        lambda x: np.abs(x).max(initial=0) + result(np.abs(x)), 256,
        first=lambda x: of.roi_align_fwd(x, rois, size, *how)[0], pulled=pulled, more=more)  # fmt: skip


ROWS = {
    "crop_and_resize": Row(family("crop_and_resize", "fwd", "state", "grad", "grad_boxes"), _cropped),
    "roi_align": Row(family("roi_align", "fwd", "state", "grad", "grad_rois"), _aligned),
}
