"""Images of overlapping shapes, made from a seed, with the boxes and classes of their shapes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CLASSES = ("circle", "square", "triangle")
SIDE = 64  # pixels of an image
MOST = 5  # shapes of an image
RADIUS = 6.0, 14.0  # of the circle around a shape
VISIBLE = 0.4  # what shows of each shape, at least
CONTRAST = 0.35  # of a shape's colour and the background's, at least, in one of the three channels
NOISE = 0.06


class Shapes(NamedTuple):
    """Images (n, SIDE, SIDE, 3) about from 0 to 1, and their shapes from back to front.

    Fields:
        images: Float32.
        boxes: (n, MOST, 4) in pixels, each (x1, y1, x2, y2), around all of a shape, hidden parts too.
        classes: (n, MOST), -1 where there is no shape.
    """

    images: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray


def draw(count: int, rng: np.random.Generator) -> Shapes:
    """So many images. One in which a shape is nearly hidden is drawn anew."""
    made, kept = [], 0
    while kept < count:
        shapes, shown = _drawn(max(8, int(1.3 * (count - kept))), rng)
        good = np.flatnonzero(shown >= VISIBLE)
        made.append(Shapes(*(each[good] for each in shapes)))
        kept += len(good)
    return Shapes(*(np.concatenate(parts)[:count] for parts in zip(*made, strict=True)))


def labels(boxes: np.ndarray, classes: np.ndarray, cells: int) -> np.ndarray:
    """What `mpsfunc.yolo_loss` compares with (n, cells, cells, 5 + classes); of two in a cell the one in front."""
    n, size = len(boxes), SIDE / cells
    made = np.zeros((n, cells, cells, 5 + len(CLASSES)), np.float32)
    for k in range(boxes.shape[1]):
        image = np.flatnonzero(classes[:, k] >= 0)
        box, kind = boxes[image, k] / size, classes[image, k]
        middle, extent = (box[:, :2] + box[:, 2:]) / 2, box[:, 2:] - box[:, :2]
        cell = np.minimum(middle.astype(int), cells - 1)
        one_hot = np.eye(len(CLASSES))[kind]
        row = np.concatenate([middle - cell, extent, np.ones((len(image), 1)), one_hot], axis=1)
        made[image, cell[:, 1], cell[:, 0]] = row
    return made


def _drawn(count: int, rng: np.random.Generator) -> tuple[Shapes, np.ndarray]:
    """Images, and what shows of their least visible shapes."""
    kinds = rng.integers(0, len(CLASSES), (count, MOST))
    kinds[np.arange(MOST) >= rng.integers(1, MOST + 1, (count, 1))] = -1
    radius = rng.uniform(*RADIUS, (count, MOST)).astype(np.float32)
    middle = radius[..., None] + rng.random((count, MOST, 2), np.float32) * (SIDE - 2 * radius[..., None])
    turn = rng.uniform(0, 2 * np.pi, (count, MOST)).astype(np.float32)
    background = rng.uniform(0, 1, (count, 1, 1, 3)).astype(np.float32)
    colours = _colours(background[:, 0, 0], rng)

    images = np.broadcast_to(background, (count, SIDE, SIDE, 3)).copy()
    covers = np.stack([_cover(kinds[:, k], middle[:, k], radius[:, k], turn[:, k]) for k in range(MOST)], axis=1)
    open_, shown = np.ones((count, SIDE, SIDE), np.float32), np.ones(count)
    for k in reversed(range(MOST)):  # from the front, for what shows
        whole = covers[:, k].sum((1, 2))
        seen = (covers[:, k] * open_).sum((1, 2)) / np.maximum(whole, 1)
        shown = np.where(kinds[:, k] >= 0, np.minimum(shown, seen), shown)
        open_ *= 1 - covers[:, k]
    for k in range(MOST):
        images += covers[:, k, ..., None] * (colours[:, k, None, None] - images)
    images += NOISE * rng.standard_normal(images.shape, np.float32)
    return Shapes(images, _boxes(kinds, middle, radius, turn), kinds), shown


def _colours(background: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n, MOST, 3), none like the background (n, 3)."""
    made = rng.uniform(0, 1, (len(background), MOST, 3)).astype(np.float32)
    channel = rng.integers(0, 3, (len(background), MOST, 1))
    ground = np.take_along_axis(np.broadcast_to(background[:, None], made.shape), channel, axis=2)
    apart = rng.uniform(CONTRAST, 0.5, ground.shape).astype(np.float32)
    np.put_along_axis(made, channel, np.where(ground < 0.5, ground + apart, ground - apart), axis=2)
    return made


def _corners(kinds: np.ndarray) -> np.ndarray:
    """How many corners a polygon of each kind has."""
    return np.where(kinds == CLASSES.index("square"), 4, 3)


def _cover(kinds: np.ndarray, middle: np.ndarray, radius: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """What a shape of each image covers of its pixels, from 0 to 1."""
    at = np.arange(SIDE, dtype=np.float32) + np.float32(0.5)
    x, y = at - middle[:, :1], at - middle[:, 1:]
    corners = _corners(kinds)
    within = radius * np.cos(np.pi / corners).astype(np.float32)  # from the middle to an edge
    beyond = np.full((len(kinds), SIDE, SIDE), -np.inf, np.float32)
    for edge in range(4):  # of a triangle one is there twice
        angle = turn + (2 * edge + 1) * np.pi / corners
        cos, sin = (f(angle).astype(np.float32)[:, None] for f in (np.cos, np.sin))
        np.maximum(beyond, (x * cos)[:, None, :] + (y * sin)[:, :, None], out=beyond)
    beyond -= within[:, None, None]
    round_ = np.flatnonzero(kinds == CLASSES.index("circle"))
    beyond[round_] = np.hypot(x[round_, None, :], y[round_, :, None]) - radius[round_, None, None]
    return np.where(kinds[:, None, None] < 0, 0, np.clip(0.5 - beyond, 0, 1)).astype(np.float32)


def _boxes(kinds: np.ndarray, middle: np.ndarray, radius: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """The boxes around whole shapes; of none zeros."""
    corner = turn[..., None] + 2 * np.pi * np.arange(4) / _corners(kinds)[..., None]
    ends = np.stack([np.cos(corner), np.sin(corner)], axis=-1)  # (n, MOST, 4, 2)
    low, high = ends.min(2), ends.max(2)
    round_ = (kinds == CLASSES.index("circle"))[..., None]
    low, high = np.where(round_, -1, low), np.where(round_, 1, high)
    boxes = np.concatenate([middle + low * radius[..., None], middle + high * radius[..., None]], axis=-1)
    return np.where(kinds[..., None] < 0, 0, boxes).astype(np.float32)
